/* The table of the fake plugin, and its getters.
 *
 * The environment variable TOW_FAKE_PJRT says how it misbehaves when it is
 * loaded:
 *
 *     major=N minor=N   another version; below 54 the table ends early
 *     without=NAME      a function that is missing
 *     initialize=HOW    fails, aborts or hangs
 *     plain             without our extension, as other vendors' plugins
 *     null              no table at all */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "device/xla_cpu/abi.h"
#include "fake_impl.h"

static const char platform[] = "fake";
static const char version[] = "fake 1.0";
static const char kind[] = "fakium";

/* -- Getters ---------------------------------------------------------------- */

static void error_destroy(PJRT_Error_Destroy_Args *args)
{
    free(args->error);
}

static void error_message(PJRT_Error_Message_Args *args)
{
    args->message = args->error->message;
    args->message_size = strlen(args->message);
}

static PJRT_Error *error_code(PJRT_Error_GetCode_Args *args)
{
    args->code = args->error->code;
    return NULL;
}

static PJRT_Error *initialize(PJRT_Plugin_Initialize_Args *args)
{
    (void)args;
    const char *how = getenv("TOW_FAKE_PJRT");
    if (how == NULL) return NULL;
    if (strstr(how, "initialize=aborts") != NULL) {
        fprintf(stderr, "check failed: 1 == 2\n");
        abort();
    }
    while (strstr(how, "initialize=hangs") != NULL)
        pause();
    if (strstr(how, "initialize=fails") == NULL) return NULL;
    return fake_error(PJRT_Error_Code_FAILED_PRECONDITION,
                      "no driver in the kernel");
}

static PJRT_Error *platform_name(PJRT_Client_PlatformName_Args *args)
{
    args->platform_name = platform;
    args->platform_name_size = strlen(platform);
    return NULL;
}

static PJRT_Error *platform_version(PJRT_Client_PlatformVersion_Args *args)
{
    args->platform_version = version;
    args->platform_version_size = strlen(version);
    return NULL;
}

static PJRT_Error *device_description(PJRT_Device_GetDescription_Args *args)
{
    args->device_description = &args->device->description;
    return NULL;
}

static PJRT_Error *description_id(PJRT_DeviceDescription_Id_Args *args)
{
    args->id = args->device_description->id;
    return NULL;
}

static PJRT_Error *description_kind(PJRT_DeviceDescription_Kind_Args *args)
{
    args->device_kind = kind;
    args->device_kind_size = strlen(kind);
    return NULL;
}

static PJRT_Error *description_text(PJRT_DeviceDescription_ToString_Args *args)
{
    args->to_string = args->device_description->name;
    args->to_string_size = strlen(args->to_string);
    return NULL;
}

static PJRT_Error *memories(PJRT_Device_AddressableMemories_Args *args)
{
    args->memories = args->device->memory_list;
    args->num_memories = FAKE_MEMORY_COUNT;
    return NULL;
}

static PJRT_Error *default_memory(PJRT_Device_DefaultMemory_Args *args)
{
    args->memory = args->device->memory_list[0];
    return NULL;
}

static PJRT_Error *memory_id(PJRT_Memory_Id_Args *args)
{
    args->id = args->memory->id;
    return NULL;
}

static PJRT_Error *memory_kind(PJRT_Memory_Kind_Args *args)
{
    args->kind = args->memory->kind;
    args->kind_size = strlen(args->kind);
    return NULL;
}

static PJRT_Error *executable_destroy(PJRT_Executable_Destroy_Args *args)
{
    fake_executable_release(args->executable);
    return NULL;
}

static PJRT_Error *executable_name(PJRT_Executable_Name_Args *args)
{
    args->executable_name = args->executable->name;
    args->executable_name_size = strlen(args->executable_name);
    return NULL;
}

static PJRT_Error *replica_count(PJRT_Executable_NumReplicas_Args *args)
{
    args->num_replicas = args->executable->device_count;
    return NULL;
}

static PJRT_Error *partition_count(PJRT_Executable_NumPartitions_Args *args)
{
    args->num_partitions = 1;
    return NULL;
}

static PJRT_Error *output_count(PJRT_Executable_NumOutputs_Args *args)
{
    args->num_outputs = 1;
    return NULL;
}

static PJRT_Error *output_types(PJRT_Executable_OutputElementTypes_Args *args)
{
    args->output_types = args->executable->types;
    args->num_output_types = 1;
    return NULL;
}

static PJRT_Error *output_dims(PJRT_Executable_OutputDimensions_Args *args)
{
    args->num_outputs = 1;
    args->dims = args->executable->dims;
    args->dim_sizes = args->executable->rank_list;
    return NULL;
}

static PJRT_Error *cost(PJRT_Executable_GetCostAnalysis_Args *args)
{
    args->properties = &args->executable->cost;
    args->num_properties = 1;
    return NULL;
}

static PJRT_Error *memory(PJRT_Executable_GetCompiledMemoryStats_Args *args)
{
    args->generated_code_size_in_bytes = 123;
    args->temp_size_in_bytes = 45;
    return NULL;
}

static PJRT_Error *loaded_destroy(PJRT_LoadedExecutable_Destroy_Args *args)
{
    fake_executable_release(args->executable->executable);
    free(args->executable);
    return NULL;
}

static PJRT_Error *loaded_executable(
    PJRT_LoadedExecutable_GetExecutable_Args *args)
{
    args->executable = args->loaded_executable->executable;
    pthread_mutex_lock(&fake_lock);
    args->executable->reference_count++;
    pthread_mutex_unlock(&fake_lock);
    return NULL;
}

static PJRT_Error *loaded_devices(
    PJRT_LoadedExecutable_AddressableDevices_Args *args)
{
    args->addressable_devices = args->executable->executable->devices;
    args->num_addressable_devices = args->executable->executable->device_count;
    return NULL;
}

static PJRT_Error *buffer_destroy(PJRT_Buffer_Destroy_Args *args)
{
    fake_buffer_release(args->buffer);
    return NULL;
}

static PJRT_Error *buffer_is_deleted(PJRT_Buffer_IsDeleted_Args *args)
{
    args->is_deleted = args->buffer->is_deleted;
    return NULL;
}

static PJRT_Error *buffer_ready(PJRT_Buffer_ReadyEvent_Args *args)
{
    args->event = fake_event_retain(args->buffer->ready);
    return NULL;
}

static PJRT_Error *buffer_is_on_cpu(PJRT_Buffer_IsOnCpu_Args *args)
{
    args->is_on_cpu = !args->buffer->device->client->is_off_host;
    return NULL;
}

static PJRT_Error *buffer_pointer(PJRT_Buffer_UnsafePointer_Args *args)
{
    args->buffer_pointer = (uintptr_t)args->buffer->data;
    return NULL;
}

static PJRT_Error *buffer_address(
    PJRT_Buffer_OpaqueDeviceMemoryDataPointer_Args *args)
{
    args->device_memory_ptr = args->buffer->data;
    return NULL;
}

static PJRT_Error *signature(PJRT_Executable *executable,
                             const tow_xla_signature_t **out_signature)
{
    *out_signature = &executable->signature;
    return NULL;
}

/* -- The table -------------------------------------------------------------- */

static tow_xla_extension_t extension = {
    .struct_size = sizeof(extension),
    .type = TOW_XLA_EXTENSION_TYPE,
    .signature = signature,
    .promise = fake_promise,
    .fulfil = fake_fulfil,
    .fail = fake_fail,
    .set_query_handler = fake_set_query_handler,
};

__attribute__((visibility("default"))) uint64_t tow_xla_abi(void)
{
#ifdef FAKE_IS_OLD
    return 1;
#else
    return tow_xla_abi_number();
#endif
}

static const PJRT_Api whole = {
    .struct_size = PJRT_Api_STRUCT_SIZE,
    .extension_start = (PJRT_Extension_Base *)&extension,
    .pjrt_api_version = {.struct_size = PJRT_Api_Version_STRUCT_SIZE,
                         .major_version = PJRT_API_MAJOR,
                         .minor_version = PJRT_API_MINOR},
    .PJRT_Error_Destroy = error_destroy,
    .PJRT_Error_Message = error_message,
    .PJRT_Error_GetCode = error_code,
    .PJRT_Plugin_Initialize = initialize,
    .PJRT_Event_Destroy = fake_event_destroy,
    .PJRT_Event_IsReady = fake_event_is_ready,
    .PJRT_Event_OnReady = fake_event_on_ready,
    .PJRT_Client_Create = fake_client_create,
    .PJRT_Client_Destroy = fake_client_destroy,
    .PJRT_Client_PlatformName = platform_name,
    .PJRT_Client_PlatformVersion = platform_version,
    .PJRT_Client_AddressableDevices = fake_client_devices,
    .PJRT_Client_Compile = fake_compile,
    .PJRT_Client_BufferFromHostBuffer = fake_buffer_from_host,
    .PJRT_Client_CreateUninitializedBuffer = fake_buffer_uninitialized,
    .PJRT_Device_GetDescription = device_description,
    .PJRT_Device_AddressableMemories = memories,
    .PJRT_Device_DefaultMemory = default_memory,
    .PJRT_Memory_Id = memory_id,
    .PJRT_Memory_Kind = memory_kind,
    .PJRT_Device_MemoryStats = fake_device_memory_stats,
    .PJRT_Device_PoisonExecution = fake_poison,
    .PJRT_DeviceDescription_Id = description_id,
    .PJRT_DeviceDescription_Kind = description_kind,
    .PJRT_DeviceDescription_ToString = description_text,
    .PJRT_Executable_Destroy = executable_destroy,
    .PJRT_Executable_Name = executable_name,
    .PJRT_Executable_NumReplicas = replica_count,
    .PJRT_Executable_NumPartitions = partition_count,
    .PJRT_Executable_NumOutputs = output_count,
    .PJRT_Executable_OutputElementTypes = output_types,
    .PJRT_Executable_OutputDimensions = output_dims,
    .PJRT_Executable_GetCostAnalysis = cost,
    .PJRT_Executable_GetCompiledMemoryStats = memory,
    .PJRT_Executable_Serialize = fake_serialize,
    .PJRT_Executable_DeserializeAndLoad = fake_deserialize,
    .PJRT_LoadedExecutable_Destroy = loaded_destroy,
    .PJRT_LoadedExecutable_GetExecutable = loaded_executable,
    .PJRT_LoadedExecutable_AddressableDevices = loaded_devices,
    .PJRT_LoadedExecutable_Execute = fake_execute,
    .PJRT_Buffer_Destroy = buffer_destroy,
    .PJRT_Buffer_IsDeleted = buffer_is_deleted,
    .PJRT_Buffer_ReadyEvent = buffer_ready,
    .PJRT_Buffer_IsOnCpu = buffer_is_on_cpu,
    .PJRT_Buffer_UnsafePointer = buffer_pointer,
    .PJRT_Buffer_ToHostBuffer = fake_buffer_to_host,
    .PJRT_Buffer_CopyToDevice = fake_buffer_to_device,
    .PJRT_Buffer_OpaqueDeviceMemoryDataPointer = buffer_address,
    .PJRT_Buffer_IncreaseExternalReferenceCount = fake_buffer_refer,
    .PJRT_Buffer_DecreaseExternalReferenceCount = fake_buffer_stop_referring,
    .PJRT_Client_CreateBuffersForAsyncHostToDevice = fake_manager_create,
    .PJRT_AsyncHostToDeviceTransferManager_Destroy = fake_manager_destroy,
    .PJRT_AsyncHostToDeviceTransferManager_RetrieveBuffer =
        fake_manager_retrieve,
    .PJRT_AsyncHostToDeviceTransferManager_TransferLiteral =
        fake_manager_transfer,
    .PJRT_AsyncHostToDeviceTransferManager_SetBufferError = fake_manager_fail,
};

typedef struct function {
    const char *name;
    size_t offset;
} function_t;

#define FUNCTION(name)                  \
    {                                   \
#name, offsetof(PJRT_Api, name) \
    }

static const function_t removable[] = {
    FUNCTION(PJRT_Event_OnReady),
    FUNCTION(PJRT_Plugin_Initialize),
    FUNCTION(PJRT_Executable_Name),
    FUNCTION(PJRT_Buffer_ReadyEvent),
    FUNCTION(PJRT_LoadedExecutable_Execute),
    FUNCTION(PJRT_Executable_GetCostAnalysis),
    FUNCTION(PJRT_Device_AddressableMemories),
    FUNCTION(PJRT_Device_DefaultMemory),
    FUNCTION(PJRT_Executable_Serialize),
    FUNCTION(PJRT_Executable_DeserializeAndLoad),
    FUNCTION(PJRT_Buffer_CopyToDevice),
    FUNCTION(PJRT_Client_CreateBuffersForAsyncHostToDevice),
};

static void remove_function(PJRT_Api *api, const char *how)
{
    const char *without = strstr(how, "without=");
    if (without == NULL) return;
    without += strlen("without=");
    for (size_t i = 0; i < sizeof(removable) / sizeof(removable[0]); i++)
        if (strcmp(removable[i].name, without) == 0)
            memset((char *)api + removable[i].offset, 0, sizeof(void *));
}

static int number(const char *how, const char *name, int otherwise)
{
    const char *at = strstr(how, name);
    return at != NULL ? atoi(at + strlen(name)) : otherwise;
}

static void shape_table(PJRT_Api *api, const char *how)
{
    PJRT_Api_Version *mine = &api->pjrt_api_version;
    mine->major_version = number(how, "major=", mine->major_version);
    mine->minor_version = number(how, "minor=", mine->minor_version);
    /* About where the tables of old versions ended. */
    if (mine->minor_version < 54)
        api->struct_size =
            offsetof(PJRT_Api, PJRT_Executable_GetCompiledMemoryStats);
    if (mine->minor_version < 20)
        api->struct_size =
            offsetof(PJRT_Api, PJRT_Executable_OutputElementTypes);
    api->struct_size = (size_t)number(how, "size=", (int)api->struct_size);
    if (strstr(how, "plain") != NULL) api->extension_start = NULL;
    remove_function(api, how);
}

const PJRT_Api *GetPjrtApi(void);

/* Another table each time, so that each is initialised again. They are never
 * freed: they may still be in use. */
typedef struct table {
    PJRT_Api api;
    struct table *next;
} table_t;

static table_t *tables; /* under fake_lock */

__attribute__((visibility("default"))) const PJRT_Api *GetPjrtApi(void)
{
    const char *how = getenv("TOW_FAKE_PJRT");
    if (how != NULL && strcmp(how, "null") == 0) return NULL;
    table_t *table = malloc(sizeof(*table));
    if (table == NULL) abort();
    table->api = whole;
    if (how != NULL) shape_table(&table->api, how);
    pthread_mutex_lock(&fake_lock);
    table->next = tables;
    tables = table;
    pthread_mutex_unlock(&fake_lock);
    return &table->api;
}
