/* Executables: one round trip returns the signature, which answers everything
 * that JAX asks. */
#include <string.h>

#include "device/options.h"
#include "device/proto.h"
#include "device/xla_cpu/xla_cpu.h"
#include "pjrt/bytecode.h"
#include "pjrt/plugin_impl.h"
#include "pjrt/tuning.h"

/* -- References ------------------------------------------------------------ */

static void free_variants(PJRT_Executable *executable)
{
    for (size_t i = 0; i < executable->variants.count; i++) {
        tow_program_release_locked(executable->variants.items[i].program);
        tow_free(executable->variants.items[i].is_donated);
    }
    tow_vec_deinit(&executable->variants);
}

static uint64_t key_of(const void *address)
{
    return (uint64_t)(uintptr_t)address;
}

/* Accepts one that is partly built. */
static void destroy(PJRT_Executable *executable)
{
    TOW_ASSERT(executable->port == NULL); /* Its program holds it. */
    const size_t results =
        executable->signature != NULL ? executable->signature->result_count : 0;
    for (size_t i = 0; executable->result_types != NULL && i < results; i++)
        tow_plugin_shard_type_release(executable->result_types[i]);
    tow_free(executable->result_types);
    tow_free(executable->result_elements);
    tow_free(executable->result_dims);
    tow_free(executable->result_ranks);
    tow_free(executable->memory_kinds);
    tow_free(executable->memory_kind_sizes);
    tow_free(executable->sharding_bytes);
    tow_free(executable->sharding_sizes);
    tow_free(executable->layouts);
    tow_free(executable->layout_list);
    tow_free(executable->may_donate);
    tow_free(executable->assignment);
    tow_free(executable->program);
    tow_free(executable->options);
    tow_free_text(executable->code);
    tow_free(executable->given_name);
    if (!atomic_load(&tow_plugin_is_forked)) {
        client_enter(executable->client);
        tow_map_remove(&executable->client->executables, key_of(executable));
        free_variants(executable);
        if (executable->function != NULL)
            tow_function_release_locked(executable->function);
        if (executable->first != NULL)
            tow_function_release_locked(executable->first);
        client_leave_lazily(executable->client);
    }
    tow_free(executable);
}

void tow_plugin_executable_retain(PJRT_Executable *executable)
{
    const unsigned before = atomic_fetch_add(&executable->reference_count, 1);
    TOW_ASSERT(before > 0);
}

void tow_plugin_executable_release(PJRT_Executable *executable)
{
    if (executable == NULL) return;
    const unsigned before = atomic_fetch_sub(&executable->reference_count, 1);
    TOW_ASSERT(before > 0);
    if (before == 1) destroy(executable);
}

/* -- Executables that Python names ----------------------------------------- */

static tow_status_t enlist(PJRT_Executable *executable)
{
    PJRT_Client *client = executable->client;
    client_enter(client);
    const bool is_put =
        tow_map_put(&client->executables, key_of(executable), executable);
    client_leave_lazily(client);
    return is_put ? TOW_OK : tow_status_bare(TOW_RESOURCE_EXHAUSTED);
}

PJRT_Executable *tow_plugin_executable_find(PJRT_Client *client,
                                            const void *address)
{
    PJRT_Executable *executable =
        tow_map_find(&client->executables, key_of(address));
    if (executable == NULL) return NULL;
    /* Without a reference it is about to leave the map. */
    unsigned count = atomic_load(&executable->reference_count);
    while (count > 0)
        if (atomic_compare_exchange_weak(&executable->reference_count, &count,
                                         count + 1))
            return executable;
    return NULL;
}

/* -- Attributes from the signature ----------------------------------------- */

static bool fill_results(PJRT_Executable *executable)
{
    const tow_signature_t *signature = executable->signature;
    const size_t count = signature->result_count;
    size_t rank_sum = 0;
    for (size_t i = 0; i < count; i++)
        rank_sum += signature->results[i].shape.rank;
    executable->result_types = tow_calloc(count + 1, sizeof(shard_type_t *));
    executable->result_elements =
        tow_calloc(count + 1, sizeof(PJRT_Buffer_Type));
    executable->result_dims = tow_calloc(rank_sum + 1, sizeof(int64_t));
    executable->result_ranks = tow_calloc(count + 1, sizeof(size_t));
    executable->memory_kinds = tow_calloc(count + 1, sizeof(char *));
    executable->memory_kind_sizes = tow_calloc(count + 1, sizeof(size_t));
    if (executable->result_types == NULL ||
        executable->result_elements == NULL ||
        executable->result_dims == NULL || executable->result_ranks == NULL ||
        executable->memory_kinds == NULL ||
        executable->memory_kind_sizes == NULL)
        return false;
    int64_t *dims = executable->result_dims;
    for (size_t i = 0; i < count; i++) {
        const layout_t layout = tow_plugin_layout_of(&signature->results[i]);
        const tow_shape_t shape =
            tow_plugin_layout_program_shape(&signature->results[i]);
        uint64_t bytes = 0;
        if (tow_shape_bytes(&shape, &bytes) != TOW_OK) return false;
        const tow_memory_kind_t memory = signature->results[i].memory;
        executable->result_types[i] =
            tow_plugin_shard_type_create(&shape, bytes, memory, &layout);
        if (executable->result_types[i] == NULL) return false;
        executable->result_elements[i] = (PJRT_Buffer_Type)shape.type;
        executable->result_ranks[i] = shape.rank;
        memcpy(dims, shape.dims, shape.rank * sizeof(int64_t));
        dims += shape.rank;
        executable->memory_kinds[i] = tow_plugin_memory_kind_name(memory);
        executable->memory_kind_sizes[i] = strlen(executable->memory_kinds[i]);
    }
    return true;
}

/* True: all are known, and there is at least one: JAX treats none as an error.
 */
static bool fill_shardings(PJRT_Executable *executable,
                           const tow_array_info_t *arrays, size_t count,
                           size_t first)
{
    bool all = count > 0;
    for (size_t i = 0; i < count; i++) {
        const tow_bytes_t *sharding = &arrays[i].sharding;
        executable->sharding_bytes[first + i] =
            sharding->data != NULL ? sharding->data : "";
        executable->sharding_sizes[first + i] = sharding->size;
        all = all && sharding->data != NULL;
    }
    return all;
}

static bool fill_arguments(PJRT_Executable *executable)
{
    const tow_signature_t *signature = executable->signature;
    const size_t results = signature->result_count;
    const size_t arguments = signature->argument_count;
    executable->sharding_bytes =
        tow_calloc(results + arguments + 1, sizeof(char *));
    executable->sharding_sizes =
        tow_calloc(results + arguments + 1, sizeof(size_t));
    executable->may_donate = tow_calloc(arguments + 1, sizeof(bool));
    if (executable->sharding_bytes == NULL ||
        executable->sharding_sizes == NULL || executable->may_donate == NULL)
        return false;
    executable->has_result_shardings =
        fill_shardings(executable, signature->results, results, 0);
    executable->has_argument_shardings =
        fill_shardings(executable, signature->arguments, arguments, results);
    for (size_t i = 0; i < signature->alias_count; i++) {
        bool *may_donate =
            &executable->may_donate[signature->aliases[i].argument];
        executable->donor_count += !*may_donate;
        *may_donate = true;
    }
    return true;
}

static tow_status_t fill_assignment(PJRT_Executable *executable)
{
    const slice_entry_t *slice = executable->slice;
    int64_t *ids = tow_malloc(slice->count * sizeof(*ids));
    if (ids == NULL) return tow_status_bare(TOW_RESOURCE_EXHAUSTED);
    for (size_t i = 0; i < slice->count; i++)
        ids[i] = slice->devices[i]->description.id;
    tow_status_t status = tow_assignment_pack(
        &(tow_assignment_t){
            .replica_count = executable->signature->replica_count,
            .partition_count = executable->signature->partition_count,
            .device_ids = ids},
        &executable->assignment, &executable->assignment_size);
    tow_free(ids);
    return status;
}

/* -- Compiling ------------------------------------------------------------------------ */

/* The devices that the options name, or the first ones. */
static tow_status_t find_devices(PJRT_Client *client, tow_bytes_t options,
                                 PJRT_Device ***out_devices, size_t *out_count)
{
    size_t replicas, partitions;
    TOW_RETURN_IF_ERROR(
        tow_compile_options_counts(options, &replicas, &partitions));
    const size_t count = replicas * partitions;
    if (count > client->device_count)
        return TOW_ERROR(TOW_INVALID_ARGUMENT,
                         "the program is for %zu devices, but there are %zu",
                         count, client->device_count);
    int64_t *ids = tow_malloc(count * sizeof(*ids));
    PJRT_Device **devices = tow_malloc(count * sizeof(*devices));
    tow_status_t status = ids != NULL && devices != NULL
                              ? TOW_OK
                              : tow_status_bare(TOW_RESOURCE_EXHAUSTED);
    const bool is_given =
        status == TOW_OK &&
        tow_compile_options_devices(options, replicas, partitions, ids);
    for (size_t i = 0; i < count && status == TOW_OK; i++) {
        devices[i] = is_given ? tow_plugin_find_device(client, ids[i])
                              : client->devices[i];
        if (devices[i] == NULL)
            status = TOW_ERROR(TOW_INVALID_ARGUMENT,
                               "the program is for device %lld, which is not "
                               "there",
                               (long long)ids[i]);
    }
    tow_free(ids);
    if (status != TOW_OK) {
        tow_free(devices);
        return status;
    }
    *out_devices = devices;
    *out_count = count;
    return TOW_OK;
}

static tow_status_t find_slice(PJRT_Client *client, tow_bytes_t options,
                               slice_entry_t **out_slice)
{
    PJRT_Device **devices = NULL;
    size_t count = 0;
    TOW_RETURN_IF_ERROR(find_devices(client, options, &devices, &count));
    tow_status_t status =
        count == 1 ? tow_plugin_device_slice(devices[0], out_slice)
                   : tow_plugin_slice(client, devices, count, out_slice);
    tow_free(devices);
    return status;
}

static bool is_format(const PJRT_Program *program, const char *format)
{
    return program->format_size == strlen(format) &&
           memcmp(program->format, format, program->format_size) == 0;
}

/* The cluster accepts XLA's own modules behind a mark. */
static tow_status_t mark_hlo(tow_bytes_t module, void **out_bytes,
                             size_t *out_size)
{
    static const char mark[] = TOW_XLA_HLO_MARK;
    const size_t mark_size = sizeof(mark) - 1;
    uint8_t *bytes = tow_malloc(mark_size + module.size);
    if (bytes == NULL) return tow_status_bare(TOW_RESOURCE_EXHAUSTED);
    memcpy(bytes, mark, mark_size);
    memcpy(bytes + mark_size, module.data, module.size);
    *out_bytes = bytes;
    *out_size = mark_size + module.size;
    return TOW_OK;
}

/* The configuration is in the compile options too. */
static tow_status_t find_module(tow_bytes_t with_config,
                                tow_bytes_t *out_module)
{
    const uint32_t module_number = 1;
    proto_field_t field;
    while (with_config.size > 0 && proto_read_field(&with_config, &field))
        if (field.number == module_number && field.kind == PROTO_BYTES) {
            *out_module = field.bytes;
            return TOW_OK;
        }
    return TOW_ERROR(TOW_INVALID_ARGUMENT,
                     "the program is not an HloModuleProtoWithConfig");
}

/* Converts a framework's program to the cluster's format; NULL: no conversion
 * is needed. */
static tow_status_t read_program(const PJRT_Program *program, void **out_bytes,
                                 size_t *out_size)
{
    tow_bytes_t code = {program->code, program->code_size};
    *out_bytes = NULL;
    if (is_format(program, "mlir")) {
        *out_bytes = tow_bytecode_spell(code, out_size);
        return TOW_OK;
    }
    if (is_format(program, "hlo_with_config"))
        TOW_RETURN_IF_ERROR(find_module(code, &code));
    else if (!is_format(program, "hlo"))
        return TOW_ERROR(TOW_UNIMPLEMENTED,
                         "a program in the format '%.*s': towpath takes "
                         "'mlir', 'hlo' and 'hlo_with_config'",
                         (int)program->format_size, program->format);
    return mark_hlo(code, out_bytes, out_size);
}

/* Omits unknown costs. */
static void add_cost(PJRT_Executable *executable, const char *name, double cost)
{
    if (cost <= 0) return;
    executable->costs[executable->cost_count++] =
        (PJRT_NamedValue){.struct_size = PJRT_NamedValue_STRUCT_SIZE,
                          .name = name,
                          .name_size = strlen(name),
                          .type = PJRT_NamedValue_kFloat,
                          .float_value = (float)cost,
                          .value_size = 1};
}

static void fill_costs(PJRT_Executable *executable)
{
    const tow_signature_t *signature = executable->signature;
    add_cost(executable, "flops", signature->flops);
    add_cost(executable, "bytes accessed", signature->bytes_accessed);
    add_cost(executable, "transcendentals", signature->transcendentals);
}

static tow_status_t fill(PJRT_Executable *executable)
{
    const tow_signature_t *signature =
        tow_function_signature(executable->first);
    if (signature->argument_count == TOW_COUNT_UNKNOWN)
        return TOW_ERROR(
            TOW_UNIMPLEMENTED,
            "the devices' compiler does not report the arguments of "
            "a program");
    executable->signature = signature;
    if (!fill_results(executable) || !fill_arguments(executable) ||
        !tow_plugin_fill_layouts(executable))
        return tow_status_bare(TOW_RESOURCE_EXHAUSTED);
    fill_costs(executable);
    TOW_RETURN_IF_ERROR(tow_plugin_fill_fingerprint(executable));
    return fill_assignment(executable);
}

/* Compiles from the stored source. Another thread may reopen the slice
 * meanwhile. */
static tow_status_t compile_for(const PJRT_Executable *executable,
                                const slice_entry_t *entry,
                                tow_function_t **out_function)
{
    const tow_source_t source = {.struct_size = sizeof(source),
                                 .format = TOW_SOURCE_STABLEHLO,
                                 .bytes = executable->program,
                                 .size = executable->program_size,
                                 .options = executable->options,
                                 .options_size = executable->options_size};
    client_enter(executable->client);
    tow_slice_t *slice = entry->slice;
    tow_slice_retain_locked(slice);
    client_leave_lazily(executable->client);
    const tow_bytes_t program = {source.bytes, source.size};
    tow_status_t status =
        tow_plugin_program_has_queries(program)
            ? tow_plugin_compile_with_queries(slice, &source, out_function)
            : tow_function_compile(slice, &source, out_function);
    tow_slice_release(slice);
    return status;
}

static tow_status_t compile_first(PJRT_Executable *executable)
{
    tow_function_t *function;
    TOW_RETURN_IF_ERROR(compile_for(executable, executable->slice, &function));
    client_enter(executable->client);
    tow_function_retain_locked(function);
    client_leave_lazily(executable->client);
    executable->first = executable->function = function;
    atomic_init(&executable->client_generation,
                tow_function_generation(function));
    return TOW_OK;
}

/* Copies the source, for serialisation and recompilation. */
static tow_status_t keep_source(PJRT_Executable *executable,
                                const tow_saved_t *source)
{
    executable->program = tow_malloc(source->program.size + 1);
    executable->options = tow_malloc(source->options.size + 1);
    if (executable->program == NULL || executable->options == NULL)
        return tow_status_bare(TOW_RESOURCE_EXHAUSTED);
    executable->program_size = source->program.size;
    executable->options_size = source->options.size;
    if (source->program.size > 0)
        memcpy(executable->program, source->program.data, source->program.size);
    if (source->options.size > 0)
        memcpy(executable->options, source->options.data, source->options.size);
    return TOW_OK;
}

static tow_status_t keep_name(PJRT_Executable *executable, tow_bytes_t name)
{
    if (name.data == NULL) return TOW_OK;
    executable->given_name = tow_malloc(name.size + 1);
    if (executable->given_name == NULL)
        return tow_status_bare(TOW_RESOURCE_EXHAUSTED);
    memcpy(executable->given_name, name.data, name.size);
    executable->given_name[name.size] = '\0';
    return TOW_OK;
}

/* `name` has no data: none was given. */
static tow_status_t compile_named(PJRT_Client *client, const tow_saved_t *saved,
                                  tow_bytes_t name,
                                  PJRT_LoadedExecutable **out_loaded)
{
    TOW_RETURN_IF_ERROR(tow_plugin_enable_callbacks(client, saved->program.data,
                                                    saved->program.size));
    slice_entry_t *slice = NULL;
    TOW_RETURN_IF_ERROR(find_slice(client, saved->options, &slice));
    PJRT_LoadedExecutable *loaded = tow_calloc(1, sizeof(*loaded));
    if (loaded == NULL) return tow_status_bare(TOW_RESOURCE_EXHAUSTED);
    PJRT_Executable *executable = &loaded->executable;
    atomic_init(&executable->reference_count, 1);
    executable->client = client;
    executable->slice = slice;
    tow_status_t status = keep_source(executable, saved);
    if (status == TOW_OK) status = keep_name(executable, name);
    if (status == TOW_OK) status = compile_first(executable);
    if (status == TOW_OK) status = fill(executable);
    if (status == TOW_OK) status = enlist(executable);
    if (status != TOW_OK) {
        destroy(executable);
        return status;
    }
    tow_plugin_executable_check(executable);
    *out_loaded = loaded;
    return TOW_OK;
}

/* The name of an executable in this process must not reach the cluster: equal
 * programs would be compiled again. */
tow_status_t tow_plugin_compile(PJRT_Client *client, const tow_saved_t *saved,
                                PJRT_LoadedExecutable **out_loaded)
{
    TOW_RETURN_IF_ERROR(tow_plugin_check_fork());
    tow_bytes_t name = {0};
    void *options = NULL;
    tow_saved_t source = *saved;
    TOW_RETURN_IF_ERROR(
        tow_compile_options_take_text(saved->options, TOW_PLUGIN_NAME_OPTION,
                                      &name, &options, &source.options.size));
    if (options != NULL) source.options.data = options;
    tow_status_t status = compile_named(client, &source, name, out_loaded);
    tow_free(options);
    return status;
}

/* -- Recompilation after a reconnect --------------------------------------- */

static bool are_same(const tow_array_info_t *a, const tow_array_info_t *b,
                     size_t count)
{
    for (size_t i = 0; i < count; i++) {
        const layout_t layouts[] = {tow_plugin_layout_of(&a[i]),
                                    tow_plugin_layout_of(&b[i])};
        if (!tow_shape_equal(&a[i].shape, &b[i].shape) ||
            a[i].memory != b[i].memory ||
            !tow_plugin_layout_equal(&layouts[0], &layouts[1]))
            return false;
    }
    return true;
}

/* The signature that JAX has seen must still hold: the new cluster may have
 * another compiler. */
static tow_status_t check_signature(const tow_signature_t *first,
                                    const tow_signature_t *now)
{
    if (now->argument_count == first->argument_count &&
        now->result_count == first->result_count &&
        are_same(now->arguments, first->arguments, now->argument_count) &&
        are_same(now->results, first->results, now->result_count))
        return TOW_OK;
    return TOW_ERROR(TOW_FAILED_PRECONDITION,
                     "the restarted cluster compiles %s to other shapes: call "
                     "jax.clear_caches() to compile it again",
                     first->name != NULL ? first->name : "the program");
}

/* Locked. If two threads compiled it at once, the first wins. */
static void exchange(PJRT_Executable *executable, tow_function_t *take_function)
{
    const uint32_t client_generation = tow_function_generation(take_function);
    tow_function_t *old = take_function;
    if (atomic_load(&executable->client_generation) != client_generation) {
        old = executable->function;
        executable->function = take_function;
        atomic_store(&executable->client_generation, client_generation);
    }
    tow_function_release_locked(old);
}

tow_status_t tow_plugin_executable_recompile(PJRT_Executable *executable,
                                             const slice_entry_t *slice)
{
    PJRT_Client *client = executable->client;
    if (TOW_LIKELY(atomic_load(&executable->client_generation) ==
                   tow_client_generation(client->tow)))
        return TOW_OK;
    tow_function_t *function;
    TOW_RETURN_IF_ERROR(compile_for(executable, slice, &function));
    tow_status_t status = check_signature(executable->signature,
                                          tow_function_signature(function));
    if (status != TOW_OK) {
        tow_function_release(function);
        return status;
    }
    client_enter(client);
    exchange(executable, function);
    client_leave_lazily(client);
    return TOW_OK;
}

tow_status_t tow_plugin_compile_program(PJRT_Client *client,
                                        const PJRT_Program *program,
                                        tow_bytes_t options,
                                        PJRT_LoadedExecutable **out_loaded)
{
    void *own;
    size_t own_size = 0;
    TOW_RETURN_IF_ERROR(read_program(program, &own, &own_size));
    tow_saved_t source = {.program = {program->code, program->code_size},
                          .options = options};
    if (own != NULL) source.program = (tow_bytes_t){own, own_size};
    tow_status_t status = tow_plugin_compile(client, &source, out_loaded);
    tow_free(own);
    return status;
}

static PJRT_Error *client_compile(PJRT_Client_Compile_Args *args)
{
    const tow_bytes_t options = {args->compile_options,
                                 args->compile_options_size};
    return take_error(tow_plugin_compile_program(args->client, args->program,
                                                 options, &args->executable));
}

/* -- Getters --------------------------------------------------------------------------- */

static PJRT_Error *executable_destroy(PJRT_Executable_Destroy_Args *args)
{
    tow_plugin_executable_release(args->executable);
    return NULL;
}

static PJRT_Error *executable_name(PJRT_Executable_Name_Args *args)
{
    const char *name = args->executable->signature->name;
    args->executable_name = name != NULL ? name : "";
    args->executable_name_size = strlen(args->executable_name);
    return NULL;
}

static PJRT_Error *executable_replicas(PJRT_Executable_NumReplicas_Args *args)
{
    args->num_replicas = args->executable->signature->replica_count;
    return NULL;
}

static PJRT_Error *executable_partitions(
    PJRT_Executable_NumPartitions_Args *args)
{
    args->num_partitions = args->executable->signature->partition_count;
    return NULL;
}

static PJRT_Error *executable_outputs(PJRT_Executable_NumOutputs_Args *args)
{
    args->num_outputs = args->executable->signature->result_count;
    return NULL;
}

static PJRT_Error *executable_code_size(
    PJRT_Executable_SizeOfGeneratedCodeInBytes_Args *args)
{
    args->size_in_bytes = (int64_t)args->executable->signature->code_bytes;
    return NULL;
}

static PJRT_Error *executable_costs(PJRT_Executable_GetCostAnalysis_Args *args)
{
    args->properties = args->executable->costs;
    args->num_properties = args->executable->cost_count;
    return NULL;
}

static PJRT_Error *executable_memory_kinds(
    PJRT_Executable_OutputMemoryKinds_Args *args)
{
    args->num_outputs = args->executable->signature->result_count;
    args->memory_kinds = args->executable->memory_kinds;
    args->memory_kind_sizes = args->executable->memory_kind_sizes;
    return NULL;
}

static PJRT_Error *executable_element_types(
    PJRT_Executable_OutputElementTypes_Args *args)
{
    args->output_types = args->executable->result_elements;
    args->num_output_types = args->executable->signature->result_count;
    return NULL;
}

static PJRT_Error *executable_dimensions(
    PJRT_Executable_OutputDimensions_Args *args)
{
    args->num_outputs = args->executable->signature->result_count;
    args->dims = args->executable->result_dims;
    args->dim_sizes = args->executable->result_ranks;
    return NULL;
}

static int64_t sum_bytes(const tow_array_info_t *arrays, size_t count,
                         bool is_host)
{
    uint64_t sum = 0;
    for (size_t i = 0; i < count; i++)
        if ((arrays[i].memory != TOW_MEMORY_DEVICE) == is_host)
            sum += arrays[i].bytes;
    return (int64_t)sum;
}

static PJRT_Error *executable_memory_stats(
    PJRT_Executable_GetCompiledMemoryStats_Args *args)
{
    const tow_signature_t *signature = args->executable->signature;
    args->generated_code_size_in_bytes = (int64_t)signature->code_bytes;
    args->argument_size_in_bytes =
        sum_bytes(signature->arguments, signature->argument_count, false);
    args->output_size_in_bytes =
        sum_bytes(signature->results, signature->result_count, false);
    args->temp_size_in_bytes = (int64_t)signature->temporary_bytes;
    args->alias_size_in_bytes = 0;
    for (size_t i = 0; i < signature->alias_count; i++)
        args->alias_size_in_bytes +=
            (int64_t)signature->results[signature->aliases[i].result].bytes;
    args->host_generated_code_size_in_bytes = 0;
    args->host_argument_size_in_bytes = 0;
    args->host_output_size_in_bytes =
        sum_bytes(signature->results, signature->result_count, true);
    args->host_alias_size_in_bytes = 0;
    args->host_temp_size_in_bytes = 0;
    /* Older callers do not have these fields. */
    if (args->struct_size <
        PJRT_Executable_GetCompiledMemoryStats_Args_STRUCT_SIZE)
        return NULL;
    args->peak_memory_in_bytes =
        args->argument_size_in_bytes + args->output_size_in_bytes +
        args->temp_size_in_bytes - args->alias_size_in_bytes;
    args->total_size_in_bytes =
        args->peak_memory_in_bytes + args->generated_code_size_in_bytes;
    return NULL;
}

/* Copies to the caller's memory, or returns the size that it needs. */
static tow_status_t hand_over(PJRT_Program *program, tow_bytes_t module)
{
    static const char format[] = "hlo_with_config";
    program->format = format;
    program->format_size = strlen(format);
    if (program->code == NULL) {
        program->code_size = module.size;
        return TOW_OK;
    }
    if (program->code_size < module.size)
        return TOW_ERROR(TOW_INVALID_ARGUMENT,
                         "there is room for %zu bytes, but the program has %zu",
                         program->code_size, module.size);
    memcpy(program->code, module.data, module.size);
    return TOW_OK;
}

static PJRT_Error *executable_optimized(
    PJRT_Executable_OptimizedProgram_Args *args)
{
    PJRT_Executable *executable = args->executable;
    tow_bytes_t module = {0};
    if (atomic_load(&executable->knows_shardings))
        RETURN_IF_ERROR(tow_plugin_optimized(executable, &module));
    if (module.size > 0) return take_error(hand_over(args->program, module));
    void *bytes = NULL;
    size_t size = 0;
    RETURN_IF_ERROR(tow_plugin_describe(executable, &bytes, &size));
    tow_status_t status = hand_over(args->program, (tow_bytes_t){bytes, size});
    tow_free(bytes);
    return take_error(status);
}

static PJRT_Error *loaded_destroy(PJRT_LoadedExecutable_Destroy_Args *args)
{
    tow_plugin_executable_release(&args->executable->executable);
    return NULL;
}

static PJRT_Error *loaded_executable(
    PJRT_LoadedExecutable_GetExecutable_Args *args)
{
    args->executable = &args->loaded_executable->executable;
    tow_plugin_executable_retain(args->executable);
    return NULL;
}

static PJRT_Error *loaded_devices(
    PJRT_LoadedExecutable_AddressableDevices_Args *args)
{
    const slice_entry_t *slice = args->executable->executable.slice;
    args->addressable_devices = slice->devices;
    args->num_addressable_devices = slice->count;
    return NULL;
}

static PJRT_Error *loaded_delete(PJRT_LoadedExecutable_Delete_Args *args)
{
    atomic_store(&args->executable->executable.is_deleted, true);
    return NULL;
}

static PJRT_Error *loaded_is_deleted(PJRT_LoadedExecutable_IsDeleted_Args *args)
{
    args->is_deleted = atomic_load(&args->executable->executable.is_deleted);
    return NULL;
}

static void keep_assignment(PJRT_DeviceAssignmentSerialized *assignment)
{
    /* The executable owns it. */
}

static PJRT_Error *loaded_assignment(
    PJRT_LoadedExecutable_GetDeviceAssignment_Args *args)
{
    PJRT_Executable *executable = &args->executable->executable;
    args->serialized_bytes = executable->assignment;
    args->serialized_bytes_size = executable->assignment_size;
    args->serialized_device_assignment =
        (PJRT_DeviceAssignmentSerialized *)executable;
    args->serialized_device_assignment_deleter = keep_assignment;
    return NULL;
}

void tow_plugin_fill_executable(PJRT_Api *api)
{
    api->PJRT_Client_Compile = client_compile;
    api->PJRT_Executable_Destroy = executable_destroy;
    api->PJRT_Executable_Name = executable_name;
    api->PJRT_Executable_NumReplicas = executable_replicas;
    api->PJRT_Executable_NumPartitions = executable_partitions;
    api->PJRT_Executable_NumOutputs = executable_outputs;
    api->PJRT_Executable_SizeOfGeneratedCodeInBytes = executable_code_size;
    api->PJRT_Executable_GetCostAnalysis = executable_costs;
    api->PJRT_Executable_OutputMemoryKinds = executable_memory_kinds;
    api->PJRT_Executable_OutputElementTypes = executable_element_types;
    api->PJRT_Executable_OutputDimensions = executable_dimensions;
    api->PJRT_Executable_GetCompiledMemoryStats = executable_memory_stats;
    api->PJRT_Executable_OptimizedProgram = executable_optimized;
    api->PJRT_LoadedExecutable_Destroy = loaded_destroy;
    api->PJRT_LoadedExecutable_GetExecutable = loaded_executable;
    api->PJRT_LoadedExecutable_AddressableDevices = loaded_devices;
    api->PJRT_LoadedExecutable_Delete = loaded_delete;
    api->PJRT_LoadedExecutable_IsDeleted = loaded_is_deleted;
    api->PJRT_LoadedExecutable_GetDeviceAssignment = loaded_assignment;
}
