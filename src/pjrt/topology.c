/* Topologies: the devices of a cluster as a compilation target, independent of
 * the client.
 *
 * A topology copies the descriptions of the devices and may outlive the
 * client: JAX keeps it in devices that it makes for compilation only. The
 * cluster compiles, so a client must be connected; device ids are the same. */
#include <string.h>

#include "base/arena.h"
#include "pjrt/plugin_impl.h"

struct PJRT_TopologyDescription {
    tow_arena_t arena; /* all below */
    PJRT_DeviceDescription **descriptions;
    size_t count;
    char *version;
    char *serialized;
    size_t serialized_size;
};

/* -- Creation -------------------------------------------------------------- */

static const char *copy_text(tow_arena_t *arena, const char *text)
{
    return tow_arena_strndup(arena, text, strlen(text));
}

static PJRT_DeviceDescription *copy_description(
    tow_arena_t *arena, const PJRT_DeviceDescription *given)
{
    PJRT_DeviceDescription *copy = tow_arena_alloc(arena, sizeof(*copy));
    if (copy == NULL) return NULL;
    *copy = *given;
    copy->kind = copy_text(arena, given->kind);
    bool is_well = copy->kind != NULL;
    for (size_t i = 0; i < TOW_COUNT_OF(copy->attributes); i++) {
        PJRT_NamedValue *value = &copy->attributes[i];
        if (value->type == PJRT_NamedValue_kInt64List)
            value->int64_array_value = copy->coordinates;
        if (value->type != PJRT_NamedValue_kString) continue;
        value->string_value = tow_arena_strndup(
            arena, given->attributes[i].string_value, value->value_size);
        is_well = is_well && value->string_value != NULL;
    }
    return is_well ? copy : NULL;
}

/* JAX uses it in the keys of its cache, so it must be equal for equal
 * programs: their options state the number of devices, and this the kinds. */
static bool serialize(PJRT_TopologyDescription *topology)
{
    size_t size = strlen(topology->version) + 1;
    for (size_t i = 0; i < topology->count; i++)
        size += strlen(topology->descriptions[i]->kind) + 1;
    char *text = tow_arena_calloc(&topology->arena, 1, size + 1);
    if (text == NULL) return false;
    char *at = stpcpy(text, topology->version);
    const char *last = "";
    for (size_t i = 0; i < topology->count; i++) {
        const char *kind = topology->descriptions[i]->kind;
        if (strcmp(kind, last) == 0) continue;
        *at++ = '\n';
        at = stpcpy(at, kind);
        last = kind;
    }
    topology->serialized = text;
    topology->serialized_size = (size_t)(at - text);
    return true;
}

static bool fill(PJRT_TopologyDescription *topology, const PJRT_Client *client)
{
    tow_arena_t *arena = &topology->arena;
    topology->descriptions =
        tow_arena_calloc(arena, client->device_count + 1, sizeof(void *));
    topology->version =
        tow_arena_strndup(arena, client->version, strlen(client->version));
    if (topology->descriptions == NULL || topology->version == NULL)
        return false;
    for (size_t i = 0; i < client->device_count; i++) {
        topology->descriptions[i] =
            copy_description(arena, &client->devices[i]->description);
        if (topology->descriptions[i] == NULL) return false;
    }
    topology->count = client->device_count;
    return serialize(topology);
}

void tow_plugin_topology_destroy(PJRT_TopologyDescription *topology)
{
    if (topology == NULL) return;
    tow_arena_deinit(&topology->arena);
    tow_free(topology);
}

PJRT_TopologyDescription *tow_plugin_topology_create(const PJRT_Client *client)
{
    PJRT_TopologyDescription *topology = tow_calloc(1, sizeof(*topology));
    if (topology == NULL) return NULL;
    tow_arena_init(&topology->arena, 0);
    if (fill(topology, client)) return topology;
    tow_plugin_topology_destroy(topology);
    return NULL;
}

/* Borrowed. A topology does not name its client, but there is only one. */
static tow_status_t find_cluster(PJRT_Client **out_client)
{
    *out_client = atomic_load(&tow_plugin_latest_client);
    if (*out_client != NULL) return TOW_OK;
    return TOW_ERROR(TOW_UNIMPLEMENTED,
                     "topologies without devices: compilers are the "
                     "cluster's, and none is connected; jax.devices() connects "
                     "to that of TOW_ADDRESS, or starts one");
}

static PJRT_Error *create(PJRT_TopologyDescription_Create_Args *args)
{
    PJRT_Client *client;
    RETURN_IF_ERROR(tow_plugin_check_fork());
    RETURN_IF_ERROR(find_cluster(&client));
    if (args->topology_name_size > 0)
        return take_error(TOW_ERROR(
            TOW_INVALID_ARGUMENT,
            "the topology '%.*s': there is one, without a name, that of the "
            "cluster's devices",
            (int)args->topology_name_size, args->topology_name));
    args->topology = tow_plugin_topology_create(client);
    return args->topology != NULL
               ? NULL
               : take_error(tow_status_bare(TOW_RESOURCE_EXHAUSTED));
}

static PJRT_Error *destroy(PJRT_TopologyDescription_Destroy_Args *args)
{
    tow_plugin_topology_destroy(args->topology);
    return NULL;
}

/* -- Compiling ---------------------------------------------------------------------- */

/* The executable is also loaded; it can be serialised. */
static PJRT_Error *compile(PJRT_Compile_Args *args)
{
    PJRT_Client *client = args->client;
    PJRT_LoadedExecutable *loaded = NULL;
    if (client == NULL) RETURN_IF_ERROR(find_cluster(&client));
    RETURN_IF_ERROR(tow_plugin_compile_program(
        client, args->program,
        (tow_bytes_t){args->compile_options, args->compile_options_size},
        &loaded));
    args->executable = &loaded->executable;
    return NULL;
}

/* -- Getters ------------------------------------------------------------------------ */

static PJRT_Error *platform_name(
    PJRT_TopologyDescription_PlatformName_Args *args)
{
    args->platform_name = TOW_PLUGIN_PLATFORM;
    args->platform_name_size = strlen(TOW_PLUGIN_PLATFORM);
    return NULL;
}

static PJRT_Error *platform_version(
    PJRT_TopologyDescription_PlatformVersion_Args *args)
{
    args->platform_version = args->topology->version;
    args->platform_version_size = strlen(args->topology->version);
    return NULL;
}

static PJRT_Error *device_descriptions(
    PJRT_TopologyDescription_GetDeviceDescriptions_Args *args)
{
    args->descriptions = args->topology->descriptions;
    args->num_descriptions = args->topology->count;
    return NULL;
}

static void keep_bytes(PJRT_SerializedTopology *serialized)
{
    /* The topology owns them. */
}

static PJRT_Error *serialized(PJRT_TopologyDescription_Serialize_Args *args)
{
    args->serialized_bytes = args->topology->serialized;
    args->serialized_bytes_size = args->topology->serialized_size;
    args->serialized_topology = (PJRT_SerializedTopology *)args->topology;
    args->serialized_topology_deleter = keep_bytes;
    return NULL;
}

static PJRT_Error *attributes(PJRT_TopologyDescription_Attributes_Args *args)
{
    args->attributes = NULL;
    args->num_attributes = 0;
    return NULL;
}

static PJRT_Error *topology_of_client(
    PJRT_Client_TopologyDescription_Args *args)
{
    args->topology = args->client->topology;
    return NULL;
}

void tow_plugin_fill_topology(PJRT_Api *api)
{
    api->PJRT_TopologyDescription_Create = create;
    api->PJRT_TopologyDescription_Destroy = destroy;
    api->PJRT_TopologyDescription_PlatformName = platform_name;
    api->PJRT_TopologyDescription_PlatformVersion = platform_version;
    api->PJRT_TopologyDescription_GetDeviceDescriptions = device_descriptions;
    api->PJRT_TopologyDescription_Serialize = serialized;
    api->PJRT_TopologyDescription_Attributes = attributes;
    api->PJRT_Client_TopologyDescription = topology_of_client;
    api->PJRT_Compile = compile;
}
