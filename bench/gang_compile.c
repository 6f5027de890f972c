/* Compiles a gang's program in a child process, which may crash without harm and
 * has none of the gang's devices. The parent never loads XLA. */
#include <string.h>

#include "base/alloc.h"
#include "base/assert.h"
#include "bench/gang_impl.h"
#include "device/compiler/child.h"
#include "device/compiler/compiler.h"
#include "device/options.h"
#include "env/net/net.h"
#include "supervisor/adapter.h"
#include "supervisor/log_environment.h"

#define PATH_SIZE 4096

size_t gang_pack_options(size_t process_count, size_t device_count,
                         uint8_t bytes[GANG_OPTIONS_SIZE_MAX])
{
    int64_t ids[TOW_BENCH_GANG_DEVICE_COUNT_MAX];
    const size_t count = process_count * device_count;
    TOW_ASSERT(count <= TOW_COUNT_OF(ids));
    for (size_t i = 0; i < count; i++)
        ids[i] = gang_device_id(i / device_count, i % device_count);
    const tow_compile_options_t options = {
        .assignment = {.replica_count = count, .device_ids = ids}};
    TOW_ASSERT(tow_compile_options_size(&options) <= GANG_OPTIONS_SIZE_MAX);
    return tow_compile_options_pack(&options, bytes);
}

#if TOW_HAS_PJRT

typedef struct compilation {
    tow_security_t security;  /* empty: nothing connects */
    tow_net_t *net;           /* owned */
    tow_compiler_t *compiler; /* owned */
    tow_compile_job_t job;
    tow_compiled_t *compiled; /* owned */
    /* The operation in progress. */
    bool is_done;
    tow_status_t status; /* owned */
} compilation_t;

static tow_status_t await(compilation_t *compilation)
{
    while (!compilation->is_done)
        tow_net_turn(compilation->net, TOW_TIME_NEVER);
    compilation->is_done = false;
    tow_status_t status = compilation->status;
    compilation->status = TOW_OK;
    return status;
}

static void closed(void *context)
{
    compilation_t *compilation = context;
    compilation->is_done = true;
}

static void job_done(tow_compile_job_t *job, tow_status_t take_status,
                     tow_compiled_t *take_compiled)
{
    compilation_t *compilation = TOW_CONTAINER_OF(job, compilation_t, job);
    compilation->compiled = take_compiled;
    compilation->status = take_status;
    compilation->is_done = true;
}

static tow_status_t open_compiler(compilation_t *compilation)
{
    char program[PATH_SIZE], plugin[PATH_SIZE];
    tow_net_options_t net = {.name = "gang",
                             .security = &compilation->security,
                             .log = tow_log_from_environment("gang")};
    TOW_RETURN_IF_ERROR(tow_adapter_find(plugin, sizeof(plugin)));
    TOW_RETURN_IF_ERROR(tow_child_compiler_find(program, sizeof(program)));
    TOW_RETURN_IF_ERROR(tow_net_create(&net, &compilation->net));
    const tow_child_compiler_options_t options = {.program = program,
                                                  .plugin = plugin};
    return tow_child_compiler_create(tow_net_env(compilation->net), &options,
                                     &compilation->compiler);
}

static tow_status_t compile(compilation_t *compilation,
                            const tow_bench_gang_options_t *gang)
{
    uint8_t options[GANG_OPTIONS_SIZE_MAX];
    TOW_RETURN_IF_ERROR(open_compiler(compilation));
    compilation->job = (tow_compile_job_t){
        .format = TOW_PROGRAM_MLIR,
        .program = gang->program,
        .options = {options, gang_pack_options(gang->process_count,
                                               gang->device_count, options)},
        .done = job_done};
    const tow_submit_result_t result =
        tow_compiler_submit(compilation->compiler, &compilation->job);
    TOW_ASSERT(result == TOW_SUBMIT_OK); /* It is the only one. */
    return await(compilation);
}

tow_status_t gang_compile(const tow_bench_gang_options_t *options,
                          tow_status_t (*take)(void *context, const void *bytes,
                                               size_t size),
                          void *context)
{
    compilation_t compilation = {0};
    tow_status_t status = compile(&compilation, options);
    if (status == TOW_OK)
        status = take(context, compilation.compiled->bytes,
                      compilation.compiled->size);
    tow_compiled_destroy(compilation.compiled);
    if (compilation.compiler != NULL) {
        tow_compiler_close(compilation.compiler,
                           (tow_closed_t){closed, &compilation});
        tow_status_ignore(await(&compilation), "closing always ends well");
    }
    tow_net_destroy(compilation.net);
    return status;
}

#else

tow_status_t gang_compile(const tow_bench_gang_options_t *options,
                          tow_status_t (*take)(void *context, const void *bytes,
                                               size_t size),
                          void *context)
{
    (void)options, (void)take, (void)context;
    return TOW_ERROR(TOW_UNIMPLEMENTED,
                     "this program was built without the PJRT header; `make "
                     "setup` installs it");
}

#endif
