/* Serialised executables: for jax.experimental.serialize_executable and JAX's
 * persistent compilation cache. */
#include <stdio.h>
#include <string.h>

#include "base/hash.h"
#include "device/options.h"
#include "pjrt/plugin_impl.h"

/* -- Fingerprints ------------------------------------------------------------------ */

static uint64_t hash_bytes(tow_bytes_t bytes, uint64_t seed)
{
    return tow_hash_bytes(bytes.data, bytes.size, seed);
}

tow_status_t tow_plugin_fill_fingerprint(PJRT_Executable *executable)
{
    const tow_signature_t *signature = executable->signature;
    const tow_assignment_t anywhere = {
        .replica_count = signature->replica_count,
        .partition_count = signature->partition_count};
    void *options = NULL;
    size_t size = 0;
    TOW_RETURN_IF_ERROR(tow_compile_options_reassign(
        (tow_bytes_t){executable->options, executable->options_size}, &anywhere,
        &options, &size));
    const char *kind = executable->slice->devices[0]->description.kind;
    uint64_t halves[2];
    for (uint64_t i = 0; i < TOW_COUNT_OF(halves); i++) {
        uint64_t hash = hash_bytes(
            (tow_bytes_t){executable->program, executable->program_size}, i);
        hash = hash_bytes((tow_bytes_t){options, size}, hash);
        halves[i] = hash_bytes((tow_bytes_t){kind, strlen(kind)}, hash);
    }
    tow_free(options);
    snprintf(executable->fingerprint, sizeof(executable->fingerprint),
             "%016llx%016llx", (unsigned long long)halves[0],
             (unsigned long long)halves[1]);
    return TOW_OK;
}

static PJRT_Error *executable_fingerprint(
    PJRT_Executable_Fingerprint_Args *args)
{
    args->executable_fingerprint = args->executable->fingerprint;
    args->executable_fingerprint_size = strlen(args->executable->fingerprint);
    return NULL;
}

static PJRT_Error *loaded_fingerprint(
    PJRT_LoadedExecutable_Fingerprint_Args *args)
{
    const PJRT_Executable *executable = &args->executable->executable;
    args->executable_fingerprint = executable->fingerprint;
    args->executable_fingerprint_size = strlen(executable->fingerprint);
    return NULL;
}

/* -- Serialisation --------------------------------------------------------- */

static void free_saved(PJRT_SerializedExecutable *saved)
{
    tow_free(saved);
}

static PJRT_Error *executable_serialize(PJRT_Executable_Serialize_Args *args)
{
    const PJRT_Executable *executable = args->executable;
    const tow_saved_t saved = {
        .program = {executable->program, executable->program_size},
        .options = {executable->options, executable->options_size}};
    void *bytes = NULL;
    /* It names functions of this process by their addresses. */
    if (tow_plugin_program_has_queries(saved.program))
        return tow_plugin_unimplemented(
            "executables as bytes of programs that ask functions of yours while "
            "they are compiled (custom_partitioning, inspect_array_sharding)");
    RETURN_IF_ERROR(
        tow_saved_pack(&saved, &bytes, &args->serialized_bytes_size));
    args->serialized_bytes = bytes;
    args->serialized_executable = bytes;
    args->serialized_executable_deleter = free_saved;
    return NULL;
}

/* The options that it was compiled with, for the devices that `wanted` names:
 * so the cluster finds the code in its cache. */
static tow_status_t choose_devices(tow_bytes_t options, tow_bytes_t wanted,
                                   void **out_options, size_t *out_size)
{
    size_t replicas, partitions;
    TOW_RETURN_IF_ERROR(
        tow_compile_options_counts(options, &replicas, &partitions));
    const size_t count = replicas * partitions;
    int64_t *ids = tow_malloc(count * sizeof(*ids));
    if (ids == NULL) return tow_status_bare(TOW_RESOURCE_EXHAUSTED);
    const bool is_given =
        tow_compile_options_devices(wanted, replicas, partitions, ids) ||
        tow_compile_options_devices(options, replicas, partitions, ids);
    const tow_assignment_t assignment = {.replica_count = replicas,
                                         .partition_count = partitions,
                                         .device_ids = is_given ? ids : NULL};
    tow_status_t status = tow_compile_options_reassign(options, &assignment,
                                                       out_options, out_size);
    tow_free(ids);
    return status;
}

static tow_status_t load(PJRT_Executable_DeserializeAndLoad_Args *args,
                         tow_bytes_t wanted)
{
    const tow_bytes_t bytes = {args->serialized_executable,
                               args->serialized_executable_size};
    tow_saved_t saved;
    TOW_RETURN_IF_ERROR(tow_saved_unpack(bytes, &saved));
    void *options;
    size_t size;
    TOW_RETURN_IF_ERROR(choose_devices(saved.options, wanted, &options, &size));
    saved.options = (tow_bytes_t){options, size};
    tow_status_t status =
        tow_plugin_compile(args->client, &saved, &args->loaded_executable);
    tow_free(options);
    return status;
}

static PJRT_Error *executable_deserialize(
    PJRT_Executable_DeserializeAndLoad_Args *args)
{
    tow_bytes_t wanted = {0};
    /* Older callers do not have this field. */
    if (args->struct_size >=
            PJRT_Executable_DeserializeAndLoad_Args_STRUCT_SIZE &&
        args->overridden_serialized_compile_options != NULL)
        wanted =
            (tow_bytes_t){args->overridden_serialized_compile_options,
                          args->overridden_serialized_compile_options_size};
    return take_error(load(args, wanted));
}

static void keep_options(PJRT_SerializedCompileOptions *options)
{
    /* The executable owns them. */
}

static PJRT_Error *executable_options(
    PJRT_Executable_GetCompileOptions_Args *args)
{
    args->serialized_bytes = args->executable->options;
    args->serialized_bytes_size = args->executable->options_size;
    args->serialized_compile_options = args->executable->options;
    args->serialized_compile_options_deleter = keep_options;
    return NULL;
}

void tow_plugin_fill_save(PJRT_Api *api)
{
    api->PJRT_Executable_Fingerprint = executable_fingerprint;
    api->PJRT_LoadedExecutable_Fingerprint = loaded_fingerprint;
    api->PJRT_Executable_Serialize = executable_serialize;
    api->PJRT_Executable_DeserializeAndLoad = executable_deserialize;
    api->PJRT_Executable_GetCompileOptions = executable_options;
}
