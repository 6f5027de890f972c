/* Clients, devices and memories. Getters answer from what was known when the
 * client was created: they cannot fail, even without a cluster. */
#include <pthread.h> /* tow-allow: pthread_atfork and once, for forked users */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "pjrt/plugin_impl.h"
#include "pjrt/tuning.h"

static const char platform[] = TOW_PLUGIN_PLATFORM;
static const char *const memory_kinds[] = {TOW_PLUGIN_MEMORY_KINDS};
_Static_assert(TOW_COUNT_OF(memory_kinds) == TOW_MEMORY_KIND_COUNT,
               "a name for each");

/* -- Forks ---------------------------------------------------------------------- */

atomic_bool tow_plugin_is_forked;

static void child_was_forked(void)
{
    atomic_store(&tow_plugin_is_forked, true);
}

static void watch_forks(void)
{
    /* If this fails, a forked child goes undetected. */
    pthread_atfork(NULL, NULL, child_was_forked);
}

tow_status_t tow_plugin_check_fork(void)
{
    if (TOW_LIKELY(
            !atomic_load_explicit(&tow_plugin_is_forked, memory_order_relaxed)))
        return TOW_OK;
    return TOW_ERROR(TOW_FAILED_PRECONDITION,
                     "this process was forked from one that uses towpath, and "
                     "has no connection of its own: use "
                     "multiprocessing.set_start_method('spawn')");
}

/* -- Creation -------------------------------------------------------------- */

static bool is_named(const PJRT_NamedValue *value, const char *name)
{
    return value->type == PJRT_NamedValue_kString &&
           value->name_size == strlen(name) &&
           memcmp(value->name, name, value->name_size) == 0;
}

/* A copy; NULL: absent, or no memory. */
static char *string_option(const PJRT_Client_Create_Args *args,
                           const char *name)
{
    for (size_t i = 0; i < args->num_options; i++) {
        const PJRT_NamedValue *value = &args->create_options[i];
        if (!is_named(value, name) || value->value_size == 0) continue;
        char *copy = tow_malloc(value->value_size + 1);
        if (copy == NULL) return NULL;
        memcpy(copy, value->string_value, value->value_size);
        copy[value->value_size] = '\0';
        return copy;
    }
    return NULL;
}

static tow_status_t open_client(const PJRT_Client_Create_Args *args,
                                tow_client_t **out_client)
{
    char *address = string_option(args, "address");
    char *token_file = string_option(args, "token_file");
    char *simulated = string_option(args, "simulated");
    const tow_client_options_t options = {.struct_size = sizeof(options),
                                          .address = address,
                                          .token_file = token_file,
                                          .simulated = simulated};
    tow_status_t status = tow_client_open(&options, out_client);
    tow_free(address);
    tow_free(token_file);
    tow_free(simulated);
    return status;
}

static tow_device_t info_of(const PJRT_Client *client, size_t index)
{
    tow_device_t info = {.struct_size = sizeof(info)};
    tow_status_ignore(tow_slice_device(client->all, index, &info), "in range");
    return info;
}

static const char *host_of(const tow_device_t *info)
{
    return info->host;
}

static const char *island_of(const tow_device_t *info)
{
    return info->island;
}

/* Numbers hosts or islands in order of appearance: the number of an earlier
 * device with the same name, or the next one. */
static int64_t ordinal(const PJRT_Client *client, size_t index,
                       size_t attribute,
                       const char *(*name_of)(const tow_device_t *))
{
    const tow_device_t self = info_of(client, index);
    int64_t next = 0;
    for (size_t i = index; i-- > 0;) {
        const int64_t number = client->device_storage[i]
                                   .description.attributes[attribute]
                                   .int64_value;
        const tow_device_t other = info_of(client, i);
        if (strcmp(name_of(&other), name_of(&self)) == 0) return number;
        if (number >= next) next = number + 1;
    }
    return next;
}

static PJRT_NamedValue number(const char *name, int64_t value)
{
    return (PJRT_NamedValue){.struct_size = PJRT_NamedValue_STRUCT_SIZE,
                             .name = name,
                             .name_size = strlen(name),
                             .type = PJRT_NamedValue_kInt64,
                             .int64_value = value,
                             .value_size = 1};
}

/* Borrowed from the slice of all devices. */
static PJRT_NamedValue text(const char *name, const char *value)
{
    return (PJRT_NamedValue){.struct_size = PJRT_NamedValue_STRUCT_SIZE,
                             .name = name,
                             .name_size = strlen(name),
                             .type = PJRT_NamedValue_kString,
                             .string_value = value,
                             .value_size = strlen(value)};
}

static PJRT_NamedValue numbers(const char *name, const int64_t *values,
                               size_t count)
{
    return (PJRT_NamedValue){.struct_size = PJRT_NamedValue_STRUCT_SIZE,
                             .name = name,
                             .name_size = strlen(name),
                             .type = PJRT_NamedValue_kInt64List,
                             .int64_array_value = values,
                             .value_size = count};
}

/* The device's position, for mesh layouts. Not `slice_index`, which JAX uses
 * for hybrid meshes: jax.make_mesh refuses devices that differ in it. */
static void fill_attributes(PJRT_Client *client, size_t index,
                            const tow_device_t *info)
{
    PJRT_DeviceDescription *description =
        &client->device_storage[index].description;
    PJRT_NamedValue *values = description->attributes;
    description->coordinates[0] = info->place;
    description->coordinates[1] = info->index;
    values[0] = number("host_index", ordinal(client, index, 0, host_of));
    values[1] = number("island_index", ordinal(client, index, 1, island_of));
    values[2] = text("island", info->island);
    values[3] = text("host", info->host);
    values[4] = text("worker", info->worker);
    values[5] = numbers("coords", description->coordinates, 2);
}

const char *tow_plugin_memory_kind_name(tow_memory_kind_t kind)
{
    return memory_kinds[kind];
}

static void fill_memories(PJRT_Client *client, PJRT_Device *device)
{
    const size_t first = (size_t)device->local_index * TOW_MEMORY_KIND_COUNT;
    for (size_t i = 0; i < TOW_MEMORY_KIND_COUNT; i++) {
        PJRT_Memory *memory = &device->memory_storage[i];
        *memory = (PJRT_Memory){.device = device,
                                .kind = (tow_memory_kind_t)i,
                                .id = (int)(first + i)};
        snprintf(memory->text, sizeof(memory->text),
                 "TowpathMemory(id=%d, device=%d, %s)", memory->id,
                 device->description.id, memory_kinds[i]);
        device->memories[i] = memory;
        client->memories[first + i] = memory;
    }
}

static void fill_device(PJRT_Client *client, size_t index)
{
    PJRT_Device *device = &client->device_storage[index];
    const tow_device_t info = info_of(client, index);
    device->client = client;
    device->local_index = (int)index;
    device->cluster_id = info.id;
    PJRT_DeviceDescription *description = &device->description;
    description->id = (int)info.id;
    description->kind = info.kind;
    snprintf(description->text, sizeof(description->text),
             "TowpathDevice(id=%lld, %s on %s)", (long long)info.id, info.name,
             info.worker);
    fill_attributes(client, index, &info);
    fill_memories(client, device);
    client->devices[index] = device;
}

/* Tells the user once on which cluster the framework has landed. */
static void announce(const PJRT_Client *client)
{
    const char *quiet = getenv("TOW_QUIET");
    if (quiet != NULL && strcmp(quiet, "1") == 0) return;
    const tow_device_t first = info_of(client, 0);
    const bool is_local = tow_client_is_local(client->tow);
    fprintf(stderr, "towpath: %zu device(s) (%s) of %s%s\n",
            client->device_count, first.kind,
            is_local ? "a local cluster, which ends with this process"
                     : "the cluster at ",
            is_local ? "" : tow_client_address(client->tow));
}

static tow_status_t fill_client(PJRT_Client *client)
{
    const tow_slice_options_t every = {.struct_size = sizeof(every),
                                       .island = TOW_ISLAND_EVERY};
    client_enter(client);
    tow_locked_net_run_callback_on_leave(tow_client_locked_net(client->tow));
    client_leave_lazily(client);
    TOW_RETURN_IF_ERROR(tow_slice_open(client->tow, &every, &client->all));
    const size_t count = tow_slice_device_count(client->all);
    client->device_storage = tow_calloc(count, sizeof(PJRT_Device));
    client->devices = tow_calloc(count, sizeof(PJRT_Device *));
    client->memories =
        tow_calloc(count * TOW_MEMORY_KIND_COUNT, sizeof(PJRT_Memory *));
    if (client->device_storage == NULL || client->devices == NULL ||
        client->memories == NULL)
        return tow_status_bare(TOW_RESOURCE_EXHAUSTED);
    client->device_count = count;
    tow_plugin_set_stablehlo(tow_slice_stablehlo(client->all));
    for (size_t i = 0; i < count; i++)
        fill_device(client, i);
    snprintf(client->version, sizeof(client->version), "towpath %d.%d.%d",
             TOW_VERSION_MAJOR, TOW_VERSION_MINOR, TOW_VERSION_PATCH);
    if (count > 0) announce(client);
    client->topology = tow_plugin_topology_create(client);
    return client->topology != NULL ? TOW_OK
                                    : tow_status_bare(TOW_RESOURCE_EXHAUSTED);
}

/* Accepts one that is partly built. */
static void destroy(PJRT_Client *client)
{
    tow_plugin_python_close(client);
    tow_map_deinit(&client->executables);
    for (size_t i = 0; i < client->slices.count; i++) {
        slice_entry_t *entry = client->slices.items[i];
        tow_slice_release(entry->slice);
        tow_free(entry->devices);
        tow_free(entry);
    }
    tow_vec_deinit(&client->slices);
    tow_plugin_callbacks_close(client);
    tow_plugin_topology_destroy(client->topology);
    if (client->all != NULL) tow_slice_release(client->all);
    if (client->tow != NULL) tow_client_release(client->tow);
    tow_free(client->memories);
    tow_free(client->devices);
    tow_free(client->device_storage);
    tow_free(client);
}

static PJRT_Error *client_create(PJRT_Client_Create_Args *args)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT; /* tow-allow: see README */
    pthread_once(&once, watch_forks);               /* tow-allow: ditto */
    RETURN_IF_ERROR(tow_plugin_check_fork());
    PJRT_Client *client = tow_calloc(1, sizeof(*client));
    if (client == NULL)
        return take_error(tow_status_bare(TOW_RESOURCE_EXHAUSTED));
    tow_status_t status = open_client(args, &client->tow);
    if (status == TOW_OK) status = fill_client(client);
    if (status != TOW_OK) {
        destroy(client);
        return take_error(status);
    }
    tow_plugin_watch_stalls(client);
    args->client = client;
    atomic_store(&tow_plugin_latest_client, client);
    return NULL;
}

static PJRT_Error *client_destroy(PJRT_Client_Destroy_Args *args)
{
    if (atomic_load(&tow_plugin_is_forked)) return NULL;
    PJRT_Client *latest = args->client;
    atomic_compare_exchange_strong(&tow_plugin_latest_client, &latest, NULL);
    destroy(args->client);
    return NULL;
}

/* -- Getters of clients ----------------------------------------------------------- */

static PJRT_Error *client_platform_name(PJRT_Client_PlatformName_Args *args)
{
    args->platform_name = platform;
    args->platform_name_size = strlen(platform);
    return NULL;
}

static PJRT_Error *client_process_index(PJRT_Client_ProcessIndex_Args *args)
{
    args->process_index = 0;
    return NULL;
}

static PJRT_Error *client_platform_version(
    PJRT_Client_PlatformVersion_Args *args)
{
    args->platform_version = args->client->version;
    args->platform_version_size = strlen(args->client->version);
    return NULL;
}

static PJRT_Error *client_devices(PJRT_Client_Devices_Args *args)
{
    args->devices = args->client->devices;
    args->num_devices = args->client->device_count;
    return NULL;
}

static PJRT_Error *client_addressable_devices(
    PJRT_Client_AddressableDevices_Args *args)
{
    args->addressable_devices = args->client->devices;
    args->num_addressable_devices = args->client->device_count;
    return NULL;
}

PJRT_Device *tow_plugin_find_device(const PJRT_Client *client, int64_t id)
{
    for (size_t i = 0; i < client->device_count; i++)
        if (client->devices[i]->description.id == id) return client->devices[i];
    return NULL;
}

static PJRT_Error *client_lookup_device(PJRT_Client_LookupDevice_Args *args)
{
    args->device = tow_plugin_find_device(args->client, args->id);
    if (args->device != NULL) return NULL;
    return take_error(
        TOW_ERROR(TOW_INVALID_ARGUMENT, "there is no device %d", args->id));
}

static PJRT_Error *client_lookup_addressable(
    PJRT_Client_LookupAddressableDevice_Args *args)
{
    const int index = args->local_hardware_id;
    if (index < 0 || (size_t)index >= args->client->device_count)
        return take_error(TOW_ERROR(TOW_INVALID_ARGUMENT,
                                    "there is no device with index %d", index));
    args->addressable_device = args->client->devices[index];
    return NULL;
}

static PJRT_Error *client_addressable_memories(
    PJRT_Client_AddressableMemories_Args *args)
{
    args->addressable_memories = args->client->memories;
    args->num_addressable_memories =
        args->client->device_count * TOW_MEMORY_KIND_COUNT;
    return NULL;
}

static PJRT_Error *client_default_assignment(
    PJRT_Client_DefaultDeviceAssignment_Args *args)
{
    const size_t count =
        (size_t)args->num_replicas * (size_t)args->num_partitions;
    if (args->num_replicas < 1 || args->num_partitions < 1 ||
        count > args->client->device_count ||
        args->default_assignment_size < count)
        return take_error(TOW_ERROR(
            TOW_INVALID_ARGUMENT, "%d replicas of %d partitions on %zu devices",
            args->num_replicas, args->num_partitions,
            args->client->device_count));
    for (size_t i = 0; i < count; i++)
        args->default_assignment[i] = args->client->devices[i]->description.id;
    return NULL;
}

/* -- Getters of devices ------------------------------------------------------------ */

static PJRT_Error *description_id(PJRT_DeviceDescription_Id_Args *args)
{
    args->id = args->device_description->id;
    return NULL;
}

static PJRT_Error *description_process_index(
    PJRT_DeviceDescription_ProcessIndex_Args *args)
{
    args->process_index = 0; /* One process drives all devices. */
    return NULL;
}

static PJRT_Error *description_attributes(
    PJRT_DeviceDescription_Attributes_Args *args)
{
    args->attributes = args->device_description->attributes;
    args->num_attributes = TOW_COUNT_OF(args->device_description->attributes);
    return NULL;
}

static PJRT_Error *description_kind(PJRT_DeviceDescription_Kind_Args *args)
{
    args->device_kind = args->device_description->kind;
    args->device_kind_size = strlen(args->device_kind);
    return NULL;
}

static PJRT_Error *description_debug_string(
    PJRT_DeviceDescription_DebugString_Args *args)
{
    args->debug_string = args->device_description->text;
    args->debug_string_size = strlen(args->debug_string);
    return NULL;
}

static PJRT_Error *description_to_string(
    PJRT_DeviceDescription_ToString_Args *args)
{
    args->to_string = args->device_description->text;
    args->to_string_size = strlen(args->to_string);
    return NULL;
}

static PJRT_Error *device_description(PJRT_Device_GetDescription_Args *args)
{
    args->device_description = &args->device->description;
    return NULL;
}

static PJRT_Error *device_is_addressable(PJRT_Device_IsAddressable_Args *args)
{
    args->is_addressable = true;
    return NULL;
}

static PJRT_Error *device_hardware_id(PJRT_Device_LocalHardwareId_Args *args)
{
    args->local_hardware_id = args->device->local_index;
    return NULL;
}

static PJRT_Error *device_memories(PJRT_Device_AddressableMemories_Args *args)
{
    args->memories = args->device->memories;
    args->num_memories = TOW_MEMORY_KIND_COUNT;
    return NULL;
}

static PJRT_Error *device_default_memory(PJRT_Device_DefaultMemory_Args *args)
{
    args->memory = args->device->memories[TOW_MEMORY_DEVICE];
    return NULL;
}

/* Parses a line of the cluster's memory accounts, which cover all clients and
 * count reservations of runs before they are used. */
static bool read_memory_line(const char *line, int64_t id,
                             PJRT_Device_MemoryStats_Args *args)
{
    long long device;
    unsigned long long limit, objects, reserved, peak;
    if (sscanf(line, "%lld %llu %llu %llu %llu", &device, &limit, &objects,
               &reserved, &peak) != 5 ||
        device != id)
        return false;
    args->bytes_in_use = (int64_t)(objects + reserved);
    args->peak_bytes_in_use = (int64_t)peak;
    args->peak_bytes_in_use_is_set = true;
    args->bytes_reserved = (int64_t)reserved;
    args->bytes_reserved_is_set = true;
    args->bytes_limit = (int64_t)limit;
    args->bytes_limit_is_set = limit > 0;
    /* The accounts have no addresses. */
    args->num_allocs_is_set = args->largest_alloc_size_is_set = false;
    args->peak_bytes_reserved_is_set = false;
    args->bytes_reservable_limit_is_set = false;
    args->largest_free_block_bytes_is_set = false;
    args->pool_bytes_is_set = args->peak_pool_bytes_is_set = false;
    return true;
}

static tow_status_t read_memory(const char *text, PJRT_Device *device,
                                PJRT_Device_MemoryStats_Args *args)
{
    client_enter(device->client);
    const int64_t id = device->cluster_id;
    client_leave_lazily(device->client);
    for (const char *line = text; *line != '\0';) {
        if (read_memory_line(line, id, args)) return TOW_OK;
        const size_t length = strcspn(line, "\n");
        line += length + (line[length] == '\n');
    }
    return TOW_ERROR(TOW_UNAVAILABLE, "%s is gone with its worker",
                     device->description.text);
}

static PJRT_Error *device_memory_stats(PJRT_Device_MemoryStats_Args *args)
{
    char *text;
    RETURN_IF_ERROR(tow_plugin_check_fork());
    RETURN_IF_ERROR(tow_plugin_refresh_devices(args->device->client));
    RETURN_IF_ERROR(tow_client_memory(args->device->client->tow, &text));
    tow_status_t status = read_memory(text, args->device, args);
    tow_free_text(text);
    return take_error(status);
}

/* -- Getters of memories ------------------------------------------------------------ */

static PJRT_Error *memory_id(PJRT_Memory_Id_Args *args)
{
    args->id = args->memory->id;
    return NULL;
}

static PJRT_Error *memory_get_kind(PJRT_Memory_Kind_Args *args)
{
    args->kind = memory_kinds[args->memory->kind];
    args->kind_size = strlen(args->kind);
    return NULL;
}

static PJRT_Error *memory_kind_id(PJRT_Memory_Kind_Id_Args *args)
{
    args->kind_id = args->memory->kind;
    return NULL;
}

static PJRT_Error *memory_debug_string(PJRT_Memory_DebugString_Args *args)
{
    args->debug_string = args->memory->text;
    args->debug_string_size = strlen(args->memory->text);
    return NULL;
}

static PJRT_Error *memory_to_string(PJRT_Memory_ToString_Args *args)
{
    args->to_string = args->memory->text;
    args->to_string_size = strlen(args->memory->text);
    return NULL;
}

static PJRT_Error *memory_devices(PJRT_Memory_AddressableByDevices_Args *args)
{
    PJRT_Device *device = args->memory->device;
    args->devices = &device->client->devices[device->local_index];
    args->num_devices = 1;
    return NULL;
}

/* After jax.distributed.initialize JAX reports the state of all processes. Ours
 * is the only client of its devices, so nothing depends on the others. */
static PJRT_Error *client_update_processes(
    PJRT_Client_UpdateGlobalProcessInfo_Args *args)
{
    return NULL;
}

void tow_plugin_fill_client(PJRT_Api *api)
{
    api->PJRT_Client_UpdateGlobalProcessInfo = client_update_processes;
    api->PJRT_Client_Create = client_create;
    api->PJRT_Client_Destroy = client_destroy;
    api->PJRT_Client_PlatformName = client_platform_name;
    api->PJRT_Client_ProcessIndex = client_process_index;
    api->PJRT_Client_PlatformVersion = client_platform_version;
    api->PJRT_Client_Devices = client_devices;
    api->PJRT_Client_AddressableDevices = client_addressable_devices;
    api->PJRT_Client_LookupDevice = client_lookup_device;
    api->PJRT_Client_LookupAddressableDevice = client_lookup_addressable;
    api->PJRT_Client_AddressableMemories = client_addressable_memories;
    api->PJRT_Client_DefaultDeviceAssignment = client_default_assignment;
    api->PJRT_DeviceDescription_Id = description_id;
    api->PJRT_DeviceDescription_ProcessIndex = description_process_index;
    api->PJRT_DeviceDescription_Attributes = description_attributes;
    api->PJRT_DeviceDescription_Kind = description_kind;
    api->PJRT_DeviceDescription_DebugString = description_debug_string;
    api->PJRT_DeviceDescription_ToString = description_to_string;
    api->PJRT_Device_GetDescription = device_description;
    api->PJRT_Device_IsAddressable = device_is_addressable;
    api->PJRT_Device_LocalHardwareId = device_hardware_id;
    api->PJRT_Device_AddressableMemories = device_memories;
    api->PJRT_Device_DefaultMemory = device_default_memory;
    api->PJRT_Device_MemoryStats = device_memory_stats;
    api->PJRT_Memory_Id = memory_id;
    api->PJRT_Memory_Kind = memory_get_kind;
    api->PJRT_Memory_Kind_Id = memory_kind_id;
    api->PJRT_Memory_DebugString = memory_debug_string;
    api->PJRT_Memory_ToString = memory_to_string;
    api->PJRT_Memory_AddressableByDevices = memory_devices;
}
