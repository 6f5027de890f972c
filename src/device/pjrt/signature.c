/* Reads an executable's signature: through PJRT's own calls where they suffice,
 * and through our xla_cpu's extension. What a plugin does not report is
 * unknown. */
#include "device/pjrt/pjrt_impl.h"

#include <string.h>

typedef struct reader {
    pjrt_executable_t *executable;
    const pjrt_plugin_t *plugin;
    tow_signature_t *signature;
} reader_t;

static tow_status_t exhausted(void)
{
    return tow_status_bare(TOW_RESOURCE_EXHAUSTED);
}

/* An array of a size that the plugin gave; not NULL for 0. */
static void *take(const reader_t *reader, size_t count, size_t bytes)
{
    return tow_arena_calloc(&reader->executable->arena, count > 0 ? count : 1,
                            bytes);
}

/* -- Numbers ---------------------------------------------------------------- */

static tow_status_t read_name(const reader_t *reader)
{
    const PJRT_Api *api = &reader->plugin->api;
    const char *name = "program";
    size_t size = strlen(name);
    PJRT_Executable_Name_Args args = PJRT_ARGS(
        PJRT_Executable_Name, .executable = reader->executable->handle);
    PJRT_Error *error = NULL;
    if (api->PJRT_Executable_Name != NULL) {
        error = api->PJRT_Executable_Name(&args);
        if (error == NULL && args.executable_name != NULL) {
            name = args.executable_name;
            size = args.executable_name_size;
        }
    }
    tow_pjrt_error_discard(reader->plugin, error);
    reader->signature->name =
        tow_arena_strndup(&reader->executable->arena, name, size);
    return reader->signature->name != NULL ? TOW_OK : exhausted();
}

static void read_parallelism(const reader_t *reader)
{
    const PJRT_Api *api = &reader->plugin->api;
    tow_signature_t *signature = reader->signature;
    signature->replica_count = signature->partition_count = 1;
    PJRT_Executable_NumReplicas_Args replicas = PJRT_ARGS(
        PJRT_Executable_NumReplicas, .executable = reader->executable->handle);
    PJRT_Executable_NumPartitions_Args partitions =
        PJRT_ARGS(PJRT_Executable_NumPartitions,
                  .executable = reader->executable->handle);
    if (api->PJRT_Executable_NumReplicas != NULL) {
        PJRT_Error *error = api->PJRT_Executable_NumReplicas(&replicas);
        if (error == NULL) signature->replica_count = replicas.num_replicas;
        tow_pjrt_error_discard(reader->plugin, error);
    }
    if (api->PJRT_Executable_NumPartitions != NULL) {
        PJRT_Error *error = api->PJRT_Executable_NumPartitions(&partitions);
        if (error == NULL)
            signature->partition_count = partitions.num_partitions;
        tow_pjrt_error_discard(reader->plugin, error);
    }
}

static uint64_t positive(int64_t value)
{
    return value > 0 ? (uint64_t)value : 0;
}

static void read_memory(const reader_t *reader)
{
    const PJRT_Api *api = &reader->plugin->api;
    PJRT_Executable *handle = reader->executable->handle;
    PJRT_Error *error = NULL;
    if (api->PJRT_Executable_GetCompiledMemoryStats != NULL) {
        PJRT_Executable_GetCompiledMemoryStats_Args args = PJRT_ARGS(
            PJRT_Executable_GetCompiledMemoryStats, .executable = handle);
        error = api->PJRT_Executable_GetCompiledMemoryStats(&args);
        if (error == NULL) {
            reader->signature->code_bytes =
                positive(args.generated_code_size_in_bytes);
            reader->signature->temporary_bytes =
                positive(args.temp_size_in_bytes);
        }
        tow_pjrt_error_discard(reader->plugin, error);
    }
    if (reader->signature->code_bytes == 0 &&
        api->PJRT_Executable_SizeOfGeneratedCodeInBytes != NULL) {
        PJRT_Executable_SizeOfGeneratedCodeInBytes_Args args = PJRT_ARGS(
            PJRT_Executable_SizeOfGeneratedCodeInBytes, .executable = handle);
        error = api->PJRT_Executable_SizeOfGeneratedCodeInBytes(&args);
        if (error == NULL)
            reader->signature->code_bytes = positive(args.size_in_bytes);
        tow_pjrt_error_discard(reader->plugin, error);
    }
}

static void read_property(tow_signature_t *signature,
                          const PJRT_NamedValue *value)
{
    const struct {
        const char *name;
        double *place;
    } known[] = {{"flops", &signature->flops},
                 {"bytes accessed", &signature->bytes_accessed},
                 {"transcendentals", &signature->transcendentals}};
    if (value->type != PJRT_NamedValue_kFloat || !(value->float_value > 0))
        return;
    for (size_t i = 0; i < TOW_COUNT_OF(known); i++)
        if (value->name_size == strlen(known[i].name) &&
            memcmp(value->name, known[i].name, value->name_size) == 0)
            *known[i].place = value->float_value;
}

static void read_cost(const reader_t *reader)
{
    const PJRT_Api *api = &reader->plugin->api;
    if (api->PJRT_Executable_GetCostAnalysis == NULL) return;
    PJRT_Executable_GetCostAnalysis_Args args =
        PJRT_ARGS(PJRT_Executable_GetCostAnalysis,
                  .executable = reader->executable->handle);
    PJRT_Error *error = api->PJRT_Executable_GetCostAnalysis(&args);
    for (size_t i = 0; error == NULL && i < args.num_properties; i++)
        read_property(reader->signature, &args.properties[i]);
    tow_pjrt_error_discard(reader->plugin, error);
}

/* -- Arrays ----------------------------------------------------------------- */

static tow_status_t set_shape(const reader_t *reader, const char *what,
                              size_t index, int type, const int64_t *dims,
                              size_t rank, tow_array_info_t *out_info)
{
    if (rank > TOW_RANK_MAX)
        return TOW_ERROR(TOW_UNIMPLEMENTED,
                         "%s: %s %zu has %zu dimensions; we have room for %d",
                         reader->signature->name, what, index, rank,
                         TOW_RANK_MAX);
    out_info->shape =
        (tow_shape_t){.type = (tow_type_t)type, .rank = (uint32_t)rank};
    if (rank > 0) memcpy(out_info->shape.dims, dims, rank * sizeof(dims[0]));
    /* Tokens and types that we do not know have no size, and are accepted. */
    if (tow_type_bits(out_info->shape.type) == 0) return TOW_OK;
    return tow_shape_bytes(&out_info->shape, &out_info->bytes);
}

static tow_status_t wrong_results(const reader_t *reader, size_t count,
                                  size_t type_count)
{
    return TOW_ERROR(
        TOW_INTERNAL, "%s: plugin %s reports %zu results and the types of %zu",
        reader->signature->name, reader->plugin->path, count, type_count);
}

/* PJRT's own calls, which every plugin has. */
static tow_status_t read_results(const reader_t *reader)
{
    const pjrt_plugin_t *plugin = reader->plugin;
    PJRT_Executable *handle = reader->executable->handle;
    PJRT_Executable_NumOutputs_Args count =
        PJRT_ARGS(PJRT_Executable_NumOutputs, .executable = handle);
    PJRT_Executable_OutputElementTypes_Args types =
        PJRT_ARGS(PJRT_Executable_OutputElementTypes, .executable = handle);
    PJRT_Executable_OutputDimensions_Args dims =
        PJRT_ARGS(PJRT_Executable_OutputDimensions, .executable = handle);
    TOW_RETURN_IF_ERROR(tow_pjrt_status(
        plugin, plugin->api.PJRT_Executable_NumOutputs(&count)));
    TOW_RETURN_IF_ERROR(tow_pjrt_status(
        plugin, plugin->api.PJRT_Executable_OutputElementTypes(&types)));
    TOW_RETURN_IF_ERROR(tow_pjrt_status(
        plugin, plugin->api.PJRT_Executable_OutputDimensions(&dims)));
    if (types.num_output_types != count.num_outputs ||
        dims.num_outputs != count.num_outputs)
        return wrong_results(reader, count.num_outputs, types.num_output_types);
    tow_array_info_t *results =
        take(reader, count.num_outputs, sizeof(results[0]));
    if (results == NULL) return exhausted();
    const int64_t *next = dims.dims; /* of all results, in order */
    for (size_t i = 0; i < count.num_outputs; i++) {
        TOW_RETURN_IF_ERROR(set_shape(reader, "result", i,
                                      (int)types.output_types[i], next,
                                      dims.dim_sizes[i], &results[i]));
        /* If all results are scalars there may be no list. */
        if (dims.dim_sizes[i] > 0) next += dims.dim_sizes[i];
    }
    reader->signature->results = results;
    reader->signature->result_count = count.num_outputs;
    return TOW_OK;
}

static tow_memory_kind_t kind_of(const char *name, size_t size)
{
    static const char *const names[TOW_MEMORY_KIND_COUNT] = {
        [TOW_MEMORY_DEVICE] = "device",
        [TOW_MEMORY_PINNED_HOST] = "pinned_host",
        [TOW_MEMORY_UNPINNED_HOST] = "unpinned_host"};
    for (size_t i = 0; i < TOW_MEMORY_KIND_COUNT; i++)
        if (size == strlen(names[i]) && memcmp(name, names[i], size) == 0)
            return (tow_memory_kind_t)i;
    return TOW_MEMORY_DEVICE;
}

/* After the results are known. */
static void read_memory_kinds(const reader_t *reader)
{
    const pjrt_plugin_t *plugin = reader->plugin;
    if (plugin->api.PJRT_Executable_OutputMemoryKinds == NULL) return;
    PJRT_Executable_OutputMemoryKinds_Args args =
        PJRT_ARGS(PJRT_Executable_OutputMemoryKinds,
                  .executable = reader->executable->handle);
    PJRT_Error *error = plugin->api.PJRT_Executable_OutputMemoryKinds(&args);
    /* Ours: in the executable's arena. */
    tow_array_info_t *results =
        (tow_array_info_t *)(uintptr_t)reader->signature->results;
    for (size_t i = 0; error == NULL && i < args.num_outputs &&
                       i < reader->signature->result_count;
         i++)
        results[i].memory =
            kind_of(args.memory_kinds[i], args.memory_kind_sizes[i]);
    tow_pjrt_error_discard(plugin, error);
}

/* -- Our own extension ------------------------------------------------------ */

/* False: no memory. */
static bool copy_bytes(tow_arena_t *arena, tow_xla_bytes_t given,
                       tow_bytes_t *out_bytes)
{
    if (given.data == NULL) return true;
    void *bytes = tow_arena_alloc(arena, given.size + 1);
    if (bytes == NULL) return false;
    memcpy(bytes, given.data, given.size);
    *out_bytes = (tow_bytes_t){.data = bytes, .size = given.size};
    return true;
}

static tow_status_t copy_arrays(const reader_t *reader, const char *what,
                                const tow_xla_array_t *arrays, size_t count,
                                const tow_array_info_t **out_infos)
{
    tow_arena_t *arena = &reader->executable->arena;
    tow_array_info_t *infos = take(reader, count, sizeof(infos[0]));
    if (infos == NULL) return exhausted();
    for (size_t i = 0; i < count; i++) {
        TOW_RETURN_IF_ERROR(set_shape(reader, what, i, arrays[i].element_type,
                                      arrays[i].dimensions,
                                      arrays[i].dimension_count, &infos[i]));
        infos[i].bytes = arrays[i].size_bytes;
        if (!copy_bytes(arena, arrays[i].sharding, &infos[i].sharding) ||
            !copy_bytes(arena, arrays[i].order, &infos[i].order))
            return exhausted();
    }
    *out_infos = infos;
    return TOW_OK;
}

static tow_status_t copy_aliases(const reader_t *reader,
                                 const tow_xla_signature_t *xla)
{
    tow_alias_t *aliases = take(reader, xla->alias_count, sizeof(aliases[0]));
    size_t *donated = take(reader, xla->donated_count, sizeof(donated[0]));
    if (aliases == NULL || donated == NULL) return exhausted();
    for (size_t i = 0; i < xla->alias_count; i++)
        aliases[i] = (tow_alias_t){.result = xla->aliases[i].output,
                                   .argument = xla->aliases[i].parameter,
                                   .required = xla->aliases[i].must != 0};
    for (size_t i = 0; i < xla->donated_count; i++)
        donated[i] = xla->donated[i];
    reader->signature->aliases = aliases;
    reader->signature->alias_count = xla->alias_count;
    reader->executable->is_donation_known = true;
    reader->executable->donated = donated;
    reader->executable->donated_count = xla->donated_count;
    return TOW_OK;
}

static tow_status_t read_extension(const reader_t *reader)
{
    tow_signature_t *signature = reader->signature;
    signature->argument_count = TOW_COUNT_UNKNOWN;
    if (reader->plugin->xla == NULL) return TOW_OK;
    const tow_xla_signature_t *xla = NULL;
    TOW_RETURN_IF_ERROR(tow_pjrt_status(
        reader->plugin,
        reader->plugin->xla->signature(reader->executable->handle, &xla)));
    TOW_RETURN_IF_ERROR(copy_arrays(reader, "argument", xla->parameters,
                                    xla->parameter_count,
                                    &signature->arguments));
    TOW_RETURN_IF_ERROR(copy_arrays(reader, "result", xla->outputs,
                                    xla->output_count, &signature->results));
    signature->argument_count = xla->parameter_count;
    signature->result_count = xla->output_count;
    return copy_aliases(reader, xla);
}

/* -- Devices ---------------------------------------------------------------- */

static tow_status_t index_of(const pjrt_driver_t *driver,
                             const PJRT_Device *device, size_t *out_index)
{
    for (size_t i = 0; i < driver->driver.device_count; i++)
        if (driver->devices[i] == device) {
            *out_index = i;
            return TOW_OK;
        }
    return TOW_ERROR(TOW_INTERNAL,
                     "plugin %s put an executable on a device that its client "
                     "does not have",
                     driver->plugin.path);
}

static tow_status_t read_devices(const reader_t *reader)
{
    pjrt_executable_t *executable = reader->executable;
    const pjrt_driver_t *driver = pjrt_driver_of(executable->executable.driver);
    PJRT_LoadedExecutable_AddressableDevices_Args args =
        PJRT_ARGS(PJRT_LoadedExecutable_AddressableDevices,
                  .executable = executable->loaded);
    TOW_RETURN_IF_ERROR(tow_pjrt_status(
        reader->plugin,
        reader->plugin->api.PJRT_LoadedExecutable_AddressableDevices(&args)));
    size_t *devices =
        take(reader, args.num_addressable_devices, sizeof(devices[0]));
    if (devices == NULL) return exhausted();
    for (size_t i = 0; i < args.num_addressable_devices; i++)
        TOW_RETURN_IF_ERROR(
            index_of(driver, args.addressable_devices[i], &devices[i]));
    executable->executable.local_devices = devices;
    executable->executable.local_device_count = args.num_addressable_devices;
    return TOW_OK;
}

tow_status_t tow_pjrt_signature_read(pjrt_executable_t *executable)
{
    const reader_t reader = {
        .executable = executable,
        .plugin = &pjrt_driver_of(executable->executable.driver)->plugin,
        .signature = &executable->executable.signature,
    };
    TOW_RETURN_IF_ERROR(read_name(&reader));
    read_parallelism(&reader);
    read_memory(&reader);
    read_cost(&reader);
    TOW_RETURN_IF_ERROR(read_results(&reader));
    TOW_RETURN_IF_ERROR(read_extension(&reader));
    read_memory_kinds(&reader);
    return read_devices(&reader);
}
