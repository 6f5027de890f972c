/* `tow run --plugin`: on a driver that this process loads, without a cluster. */
#include <string.h>

#include "base/alloc.h"
#include "base/vec.h"
#include "bench/harness.h"
#include "supervisor/log_environment.h"
#include "supervisor/sync_driver.h"
#include "tool/literal.h"
#include "tool/run.h"

#define INPUT_COUNT_MAX 64

typedef struct direct_session {
    const tow_run_request_t *request; /* lent */
    tow_sync_driver_t *driver;        /* owned */
    tow_executable_t *executable;     /* owned */
    TOW_VEC(tow_buffer_t *) inputs;   /* owned; device by device */
    TOW_VEC(tow_buffer_t *) results;  /* owned; device by device */
    size_t kept_count;                /* inputs of one device */
    size_t kept[INPUT_COUNT_MAX];
    tow_run_timings_t timings;
} direct_session_t;

static tow_status_t compile(direct_session_t *session)
{
    const tow_run_request_t *request = session->request;
    int64_t start_ns = tow_bench_now_ns();
    TOW_RETURN_IF_ERROR(tow_sync_driver_compile(
        session->driver, TOW_PROGRAM_MLIR,
        (tow_bytes_t){request->program, request->program_size},
        request->device_count, &session->executable));
    session->timings.compile_ms =
        (double)(tow_bench_now_ns() - start_ns) * 1e-6;
    return TOW_OK;
}

static tow_status_t upload_one(direct_session_t *session, size_t device,
                               const char *text)
{
    tow_literal_t literal;
    TOW_RETURN_IF_ERROR(tow_literal_parse(text, &literal));
    tow_buffer_t *buffer = NULL;
    tow_status_t status = tow_sync_driver_upload(
        session->driver, device, &literal.shape, literal.bytes, &buffer);
    tow_literal_deinit(&literal);
    if (buffer != NULL && !tow_vec_push(&session->inputs, buffer)) {
        tow_buffer_release(buffer);
        status = tow_status_bare(TOW_RESOURCE_EXHAUSTED);
    }
    return tow_status_annotate(status, "--input %s", text);
}

static tow_status_t upload_all(direct_session_t *session)
{
    const tow_run_request_t *request = session->request;
    for (size_t device = 0; device < request->device_count; device++)
        for (size_t i = 0; i < request->input_count; i++)
            TOW_RETURN_IF_ERROR(
                upload_one(session, device, request->inputs[i]));
    return TOW_OK;
}

static void release_results(direct_session_t *session)
{
    for (size_t i = 0; i < session->results.count; i++)
        if (session->results.items[i] != NULL) /* NULL: the run was refused. */
            tow_buffer_release(session->results.items[i]);
    session->results.count = 0;
}

/* The run donates no input, so that it can be repeated. */
static tow_status_t run_once(direct_session_t *session, uint64_t gang_id,
                             double *out_us)
{
    const tow_run_request_t *request = session->request;
    const size_t count =
        request->device_count * session->executable->signature.result_count;
    release_results(session);
    if (!tow_vec_reserve(&session->results, count + 1))
        return tow_status_bare(TOW_RESOURCE_EXHAUSTED);
    memset(session->results.items, 0, count * sizeof(tow_buffer_t *));
    session->results.count = count;
    tow_run_t run = {.executable = session->executable,
                     .gang_id = gang_id,
                     .arguments = session->inputs.items,
                     .argument_count = request->input_count,
                     .non_donatable_arguments = session->kept,
                     .non_donatable_argument_count = session->kept_count,
                     .results = session->results.items};
    int64_t start_ns = tow_bench_now_ns();
    tow_status_t status = tow_sync_driver_run(session->driver, &run);
    *out_us = (double)(tow_bench_now_ns() - start_ns) * 1e-3;
    return status;
}

static tow_status_t run_all(direct_session_t *session)
{
    const tow_run_request_t *request = session->request;
    session->kept_count = request->input_count;
    if (session->kept_count > TOW_COUNT_OF(session->kept))
        return TOW_ERROR(TOW_OUT_OF_RANGE, "%zu inputs, limit %zu",
                         request->input_count, TOW_COUNT_OF(session->kept));
    for (size_t i = 0; i < session->kept_count; i++)
        session->kept[i] = i;
    double *samples = tow_calloc(request->repeat_count, sizeof(*samples));
    if (samples == NULL) return tow_status_bare(TOW_RESOURCE_EXHAUSTED);
    tow_status_t status = TOW_OK;
    for (uint64_t i = 0; i < request->repeat_count && status == TOW_OK; i++)
        status = run_once(session, i + 1, &samples[i]);
    session->timings.first_us = samples[0];
    session->timings.median_us =
        tow_bench_median(samples, request->repeat_count);
    tow_free(samples);
    return status;
}

static tow_status_t print_results(direct_session_t *session)
{
    const size_t result_count = session->executable->signature.result_count;
    for (size_t i = 0; i < session->results.count; i++) {
        void *bytes = NULL;
        size_t size = 0;
        tow_buffer_t *buffer = session->results.items[i];
        TOW_RETURN_IF_ERROR(
            tow_sync_driver_download(session->driver, buffer, &bytes, &size));
        tow_run_print_value(session->request, i / result_count,
                            i % result_count, &buffer->shape, bytes);
        tow_free(bytes);
    }
    return TOW_OK;
}

static tow_status_t perform(direct_session_t *session)
{
    const tow_run_request_t *request = session->request;
    TOW_RETURN_IF_ERROR(
        tow_status_annotate(compile(session), "compiling %s", request->path));
    TOW_RETURN_IF_ERROR(upload_all(session));
    TOW_RETURN_IF_ERROR(
        tow_status_annotate(run_all(session), "running %s", request->path));
    TOW_RETURN_IF_ERROR(print_results(session));
    const tow_driver_t *driver = tow_sync_driver_driver(session->driver);
    tow_run_print_timings(request, &session->timings, request->device_count,
                          driver->platform, driver->simulated);
    return TOW_OK;
}

static void close_session(direct_session_t *session)
{
    release_results(session);
    tow_vec_deinit(&session->results);
    for (size_t i = 0; i < session->inputs.count; i++)
        tow_buffer_release(session->inputs.items[i]);
    tow_vec_deinit(&session->inputs);
    if (session->executable != NULL)
        tow_executable_release(session->executable);
    tow_sync_driver_close(session->driver);
}

tow_status_t tow_run_on_driver(const tow_run_request_t *request,
                               const char *plugin, bool in_process)
{
    direct_session_t session = {.request = request};
    const tow_sync_driver_options_t options = {
        .plugin = plugin,
        .device_count = request->device_count,
        .compile_place = in_process ? TOW_SYNC_DRIVER_COMPILE_IN_PROCESS
                                    : TOW_SYNC_DRIVER_COMPILE_IN_CHILD,
        .log = tow_log_from_environment("run")};
    TOW_RETURN_IF_ERROR(tow_sync_driver_open(&options, &session.driver));
    tow_status_t status = perform(&session);
    close_session(&session);
    return status;
}
