#include "device/compiler/direct.h"

#include <string.h>

#include "base/alloc.h"
#include "device/compiler/compiler_impl.h"

typedef struct direct_compiler {
    tow_compiler_t compiler;
    tow_driver_t *driver;   /* lent */
    tow_compile_t compile;  /* of the one job that runs */
    tow_compile_job_t *job; /* the owner's */
} direct_compiler_t;

static tow_status_t check_kind(const direct_compiler_t *direct,
                               const tow_compile_job_t *job)
{
    const char *kind = direct->driver->device_count > 0
                           ? direct->driver->devices[0].kind
                           : "none";
    if (job->device_kind == NULL || strcmp(job->device_kind, kind) == 0)
        return TOW_OK;
    return TOW_ERROR(
        TOW_INVALID_ARGUMENT,
        "%s is for devices of kind '%s'; this compiler compiles for "
        "'%s'",
        compile_job_name(job), job->device_kind, kind);
}

static tow_status_t export(tow_executable_t *executable,
                           tow_compiled_t **out_compiled)
{
    void *bytes = NULL, *signature = NULL;
    size_t size = 0, signature_size = 0;
    *out_compiled = NULL;
    TOW_RETURN_IF_ERROR(tow_executable_serialize(executable, &bytes, &size));
    tow_status_t status =
        tow_signature_pack(&executable->signature, &signature, &signature_size);
    if (status == TOW_OK)
        status = tow_compiled_make(bytes, size,
                                   (tow_bytes_t){signature, signature_size},
                                   out_compiled);
    else
        tow_free(bytes);
    tow_free(signature);
    return status;
}

static void compiled(tow_compile_t *compile, tow_status_t take_status,
                     tow_executable_t *take_executable)
{
    direct_compiler_t *direct =
        TOW_CONTAINER_OF(compile, direct_compiler_t, compile);
    tow_compiled_t *result = NULL;
    if (take_status == TOW_OK) take_status = export(take_executable, &result);
    tow_executable_release(take_executable);
    tow_compiler_finish(&direct->compiler, direct->job, take_status, result);
}

static void start(tow_compiler_t *compiler, tow_compile_job_t *job)
{
    direct_compiler_t *direct =
        TOW_CONTAINER_OF(compiler, direct_compiler_t, compiler);
    direct->job = job;
    direct->compile = (tow_compile_t){.format = job->format,
                                      .program = job->program,
                                      .options = job->options,
                                      .done = compiled};
    tow_status_t status = check_kind(direct, job);
    if (status == TOW_OK)
        status = tow_driver_compile(direct->driver, &direct->compile);
    if (status != TOW_OK) tow_compiler_finish(compiler, job, status, NULL);
}

static void destroy(tow_compiler_t *compiler)
{
    const tow_closed_t closed = compiler->closed;
    tow_free(TOW_CONTAINER_OF(compiler, direct_compiler_t, compiler));
    if (closed.run != NULL) closed.run(closed.context);
}

tow_status_t tow_direct_compiler_create(
    tow_driver_t *driver, const tow_direct_compiler_options_t *options,
    tow_compiler_t **out_compiler)
{
    static const tow_compiler_ops_t ops = {
        .name = "direct", .start = start, .destroy = destroy};
    *out_compiler = NULL;
    direct_compiler_t *direct = tow_calloc(1, sizeof(*direct));
    if (direct == NULL) return tow_status_bare(TOW_RESOURCE_EXHAUSTED);
    direct->driver = driver;
    direct->compiler.queue_count_max = options->queue_count_max;
    tow_compiler_init(&direct->compiler, &ops, driver->env);
    *out_compiler = &direct->compiler;
    return TOW_OK;
}

void tow_direct_compiler_discard(tow_compiler_t *compiler)
{
    if (compiler == NULL) return;
    tow_list_t *item;
    while ((item = tow_list_pop_front(&compiler->ended)) != NULL) {
        tow_compile_job_t *job =
            TOW_CONTAINER_OF(item, tow_compile_job_t, private_.list);
        tow_status_release(job->private_.status);
        tow_compiled_destroy(job->private_.compiled);
    }
    tow_free(TOW_CONTAINER_OF(compiler, direct_compiler_t, compiler));
}
