/* XLA's CPU client as a PJRT plugin: the table of functions.
 *
 * The functions are in headers, in one translation unit, because including
 * XLA's headers once costs a minute of compilation. README.md lists them.
 *
 * Every function may be called from any thread. None blocks on a device, except
 * PJRT_Event_Await, the destruction of a client, and inline executions. */
#include "device/xla_cpu/xla_cpu.h"
#include "device/xla_cpu/buffer_impl.hh"
#include "device/xla_cpu/device_impl.hh"
#include "device/xla_cpu/event_impl.hh"
#include "device/xla_cpu/executable_impl.hh"
#include "device/xla_cpu/execute_impl.hh"
#include "device/xla_cpu/library_graphs.hh"
#include "device/xla_cpu/partition_query.hh"
#include "xla/pjrt/c/pjrt_c_api.h"

namespace tow
{
namespace
{

tow_xla_extension_t extension = {
    sizeof(tow_xla_extension_t),
    TOW_XLA_EXTENSION_TYPE,
    nullptr,
    executable_signature,
    time_directly,
    buffer_promise,
    buffer_fulfil,
    buffer_fail,
    progress,
    buffer_share,
    device_executed,
    set_query_handler,
    library_graph_count,
    device_time,
    device_borrow,
    device_recent_peak,
};

PJRT_Api make_api()
{
    PJRT_Api api = {};
    api.struct_size = PJRT_Api_STRUCT_SIZE;
    api.extension_start = reinterpret_cast<PJRT_Extension_Base *>(&extension);
    api.pjrt_api_version.struct_size = PJRT_Api_Version_STRUCT_SIZE;
    api.pjrt_api_version.major_version = PJRT_API_MAJOR;
    api.pjrt_api_version.minor_version = PJRT_API_MINOR;

    api.PJRT_Error_Destroy = error_destroy;
    api.PJRT_Error_Message = error_message;
    api.PJRT_Error_GetCode = error_get_code;
    api.PJRT_Plugin_Initialize = plugin_initialize;
    api.PJRT_Plugin_Attributes = plugin_attributes;
    api.PJRT_Event_Destroy = event_destroy;
    api.PJRT_Event_IsReady = event_is_ready;
    api.PJRT_Event_Error = event_error;
    api.PJRT_Event_Await = event_await;
    api.PJRT_Event_OnReady = event_on_ready;
    api.PJRT_Event_Create = event_create;
    api.PJRT_Event_Set = event_set;

    api.PJRT_Client_Create = client_create;
    api.PJRT_Client_Destroy = client_destroy;
    api.PJRT_Client_PlatformName = client_platform_name;
    api.PJRT_Client_PlatformVersion = client_platform_version;
    api.PJRT_Client_ProcessIndex = client_process_index;
    api.PJRT_Client_Devices = client_devices;
    api.PJRT_Client_AddressableDevices = client_addressable_devices;
    api.PJRT_Client_LookupDevice = client_lookup_device;
    api.PJRT_Client_LookupAddressableDevice = client_lookup_addressable_device;
    api.PJRT_Client_AddressableMemories = client_addressable_memories;
    api.PJRT_Client_TopologyDescription = client_topology;
    api.PJRT_Client_DefaultDeviceAssignment = client_default_device_assignment;
    api.PJRT_Client_Compile = client_compile;
    api.PJRT_Client_BufferFromHostBuffer = client_buffer_from_host_buffer;
    api.PJRT_Client_CreateUninitializedBuffer =
        client_create_uninitialized_buffer;
    api.PJRT_Client_CreateErrorBuffer = client_create_error_buffer;

    api.PJRT_DeviceDescription_Id = description_id;
    api.PJRT_DeviceDescription_ProcessIndex = description_process_index;
    api.PJRT_DeviceDescription_Attributes = description_attributes;
    api.PJRT_DeviceDescription_Kind = description_kind;
    api.PJRT_DeviceDescription_DebugString = description_debug_string;
    api.PJRT_DeviceDescription_ToString = description_to_string;
    api.PJRT_Device_GetDescription = device_get_description;
    api.PJRT_Device_IsAddressable = device_is_addressable;
    api.PJRT_Device_LocalHardwareId = device_local_hardware_id;
    api.PJRT_Device_AddressableMemories = device_addressable_memories;
    api.PJRT_Device_DefaultMemory = device_default_memory;
    api.PJRT_Device_MemoryStats = device_memory_stats;
    api.PJRT_Memory_Id = memory_id;
    api.PJRT_Memory_Kind = memory_kind;
    api.PJRT_Memory_Kind_Id = memory_kind_id;
    api.PJRT_Memory_DebugString = memory_debug_string;
    api.PJRT_Memory_ToString = memory_to_string;
    api.PJRT_Memory_AddressableByDevices = memory_addressable_by_devices;

    api.PJRT_Executable_Destroy = executable_destroy;
    api.PJRT_Executable_Name = executable_name;
    api.PJRT_Executable_NumReplicas = executable_num_replicas;
    api.PJRT_Executable_NumPartitions = executable_num_partitions;
    api.PJRT_Executable_NumOutputs = executable_num_outputs;
    api.PJRT_Executable_SizeOfGeneratedCodeInBytes = executable_code_size;
    api.PJRT_Executable_OutputElementTypes = executable_output_types;
    api.PJRT_Executable_OutputDimensions = executable_output_dimensions;
    api.PJRT_Executable_OutputMemoryKinds = executable_output_memory_kinds;
    api.PJRT_Executable_GetCostAnalysis = executable_cost_analysis;
    api.PJRT_Executable_GetCompiledMemoryStats = executable_memory_stats;
    api.PJRT_Executable_Serialize = executable_serialize;
    api.PJRT_Executable_GetCompileOptions = executable_compile_options;
    api.PJRT_Executable_Fingerprint = executable_fingerprint;
    api.PJRT_Executable_OptimizedProgram = executable_optimized_program;
    api.PJRT_Executable_DeserializeAndLoad = executable_deserialize_and_load;
    api.PJRT_LoadedExecutable_Destroy = loaded_destroy;
    api.PJRT_LoadedExecutable_GetExecutable = loaded_get_executable;
    api.PJRT_LoadedExecutable_AddressableDevices = loaded_addressable_devices;
    api.PJRT_LoadedExecutable_GetDeviceAssignment = loaded_device_assignment;
    api.PJRT_LoadedExecutable_Delete = loaded_delete;
    api.PJRT_LoadedExecutable_IsDeleted = loaded_is_deleted;
    api.PJRT_LoadedExecutable_Fingerprint = loaded_fingerprint;
    api.PJRT_LoadedExecutable_Execute = loaded_execute;

    api.PJRT_Buffer_Destroy = buffer_destroy;
    api.PJRT_Buffer_Delete = buffer_delete;
    api.PJRT_Buffer_IsDeleted = buffer_is_deleted;
    api.PJRT_Buffer_ElementType = buffer_element_type;
    api.PJRT_Buffer_Dimensions = buffer_dimensions;
    api.PJRT_Buffer_UnpaddedDimensions = buffer_unpadded_dimensions;
    api.PJRT_Buffer_DynamicDimensionIndices = buffer_dynamic_dimensions;
    api.PJRT_Buffer_OnDeviceSizeInBytes = buffer_size;
    api.PJRT_Buffer_Device = buffer_device;
    api.PJRT_Buffer_Memory = buffer_memory;
    api.PJRT_Buffer_IsOnCpu = buffer_is_on_cpu;
    api.PJRT_Buffer_ReadyEvent = buffer_ready_event;
    api.PJRT_Buffer_ToHostBuffer = buffer_to_host_buffer;
    api.PJRT_Buffer_CopyRawToHost = buffer_copy_raw_to_host;
    api.PJRT_Buffer_CopyToDevice = buffer_copy_to_device;
    api.PJRT_Buffer_CopyToMemory = buffer_copy_to_memory;
    api.PJRT_Buffer_UnsafePointer = buffer_unsafe_pointer;
    api.PJRT_Buffer_OpaqueDeviceMemoryDataPointer = buffer_opaque_data_pointer;
    api.PJRT_Buffer_IncreaseExternalReferenceCount = buffer_increase_references;
    api.PJRT_Buffer_DecreaseExternalReferenceCount = buffer_decrease_references;
    return api;
}

} // namespace
} // namespace tow

extern "C" __attribute__((visibility("default"))) const PJRT_Api *
GetPjrtApi() noexcept
{
    static const PJRT_Api api = tow::make_api();
    return &api;
}
