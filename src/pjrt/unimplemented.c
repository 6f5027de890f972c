/* Functions that this plugin does not implement. Each returns an error with
 * its name: no entry of the table is NULL, because not every caller tests for
 * that. */
#include "pjrt/plugin_impl.h"

#define ABSENT(function, what)                              \
    static PJRT_Error *no_##function(function##_Args *args) \
    {                                                       \
        return tow_plugin_unimplemented(what);              \
    }

ABSENT(PJRT_TopologyDescription_Deserialize,
       "topologies from bytes: topologies.get_topology_desc(platform="
       "'towpath') describes the cluster that is connected")
ABSENT(PJRT_ExecuteContext_Create, "contexts of executions")
ABSENT(PJRT_Client_CreateViewOfDeviceBuffer,
       "views of memory of this process: its arrays are in other processes")
ABSENT(PJRT_Client_CreateUninitializedBuffer, "arrays without a value")
ABSENT(PJRT_Client_CreateErrorBuffer, "arrays that are an error from the start")
ABSENT(PJRT_Client_CreateAliasBuffer, "arrays that are promised")
ABSENT(PJRT_Client_CreateBuffersForAsyncHostToDevice, "uploads piece by piece")
ABSENT(PJRT_Client_DmaMap, "memory that is pinned for transfers")
ABSENT(PJRT_Client_DmaUnmap, "memory that is pinned for transfers")
ABSENT(PJRT_Buffer_CopyRawToHost, "downloads of a part of an array")
ABSENT(PJRT_Buffer_CopyRawToHostFuture, "downloads of a part of an array")
ABSENT(PJRT_Buffer_DonateWithControlDependency,
       "donation that waits for an event")
ABSENT(PJRT_ExecuteContext_Destroy, "contexts of executions")
ABSENT(PJRT_CopyToDeviceStream_Destroy,
       "streams from the host to a running program")
ABSENT(PJRT_CopyToDeviceStream_AddChunk,
       "streams from the host to a running program")
ABSENT(PJRT_CopyToDeviceStream_TotalBytes,
       "streams from the host to a running program")
ABSENT(PJRT_CopyToDeviceStream_GranuleSize,
       "streams from the host to a running program")
ABSENT(PJRT_CopyToDeviceStream_CurrentBytes,
       "streams from the host to a running program")
ABSENT(PJRT_AsyncHostToDeviceTransferManager_Destroy, "uploads piece by piece")
ABSENT(PJRT_AsyncHostToDeviceTransferManager_TransferData,
       "uploads piece by piece")
ABSENT(PJRT_AsyncHostToDeviceTransferManager_TransferLiteral,
       "uploads piece by piece")
ABSENT(PJRT_AsyncHostToDeviceTransferManager_RetrieveBuffer,
       "uploads piece by piece")
ABSENT(PJRT_AsyncHostToDeviceTransferManager_Device, "uploads piece by piece")
ABSENT(PJRT_AsyncHostToDeviceTransferManager_BufferCount,
       "uploads piece by piece")
ABSENT(PJRT_AsyncHostToDeviceTransferManager_BufferSize,
       "uploads piece by piece")
ABSENT(PJRT_AsyncHostToDeviceTransferManager_SetBufferError,
       "uploads piece by piece")
ABSENT(PJRT_AsyncHostToDeviceTransferManager_AddMetadata,
       "uploads piece by piece")
ABSENT(PJRT_Client_FulfillAliasBuffer, "arrays that are promised")
ABSENT(PJRT_Device_PoisonExecution, "executions that are made to fail")
ABSENT(PJRT_Device_CreateAsyncTrackingEvent,
       "events that track work of a device")
ABSENT(PJRT_AsyncTrackingEvent_Destroy, "events that track work of a device")

void tow_plugin_fill_unimplemented(PJRT_Api *api)
{
#define FILL(function) api->function = no_##function
    FILL(PJRT_TopologyDescription_Deserialize);
    FILL(PJRT_ExecuteContext_Create);
    FILL(PJRT_Client_CreateViewOfDeviceBuffer);
    FILL(PJRT_Client_CreateUninitializedBuffer);
    FILL(PJRT_Client_CreateErrorBuffer);
    FILL(PJRT_Client_CreateAliasBuffer);
    FILL(PJRT_Client_CreateBuffersForAsyncHostToDevice);
    FILL(PJRT_Client_DmaMap);
    FILL(PJRT_Client_DmaUnmap);
    FILL(PJRT_Buffer_CopyRawToHost);
    FILL(PJRT_Buffer_CopyRawToHostFuture);
    FILL(PJRT_Buffer_DonateWithControlDependency);
    FILL(PJRT_ExecuteContext_Destroy);
    FILL(PJRT_CopyToDeviceStream_Destroy);
    FILL(PJRT_CopyToDeviceStream_AddChunk);
    FILL(PJRT_CopyToDeviceStream_TotalBytes);
    FILL(PJRT_CopyToDeviceStream_GranuleSize);
    FILL(PJRT_CopyToDeviceStream_CurrentBytes);
    FILL(PJRT_AsyncHostToDeviceTransferManager_Destroy);
    FILL(PJRT_AsyncHostToDeviceTransferManager_TransferData);
    FILL(PJRT_AsyncHostToDeviceTransferManager_TransferLiteral);
    FILL(PJRT_AsyncHostToDeviceTransferManager_RetrieveBuffer);
    FILL(PJRT_AsyncHostToDeviceTransferManager_Device);
    FILL(PJRT_AsyncHostToDeviceTransferManager_BufferCount);
    FILL(PJRT_AsyncHostToDeviceTransferManager_BufferSize);
    FILL(PJRT_AsyncHostToDeviceTransferManager_SetBufferError);
    FILL(PJRT_AsyncHostToDeviceTransferManager_AddMetadata);
    FILL(PJRT_Client_FulfillAliasBuffer);
    FILL(PJRT_Device_PoisonExecution);
    FILL(PJRT_Device_CreateAsyncTrackingEvent);
    FILL(PJRT_AsyncTrackingEvent_Destroy);
#undef FILL
}
