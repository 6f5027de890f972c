/* Functions that this plugin does not implement: each returns an error with
 * its name instead of being NULL. Functions that JAX tests for NULL before
 * calling stay NULL. */
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
#undef FILL
}
