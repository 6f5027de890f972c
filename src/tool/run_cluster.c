/* `tow run` as a client of a cluster. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "bench/harness.h"
#include "tool/literal.h"
#include "tool/run.h"

#define INPUT_COUNT_MAX 256

typedef struct cluster_session {
    const tow_run_request_t *request; /* lent */
    tow_client_t *client;             /* lent */
    tow_slice_t *slice;               /* owned, as the rest */
    tow_function_t *function;
    tow_array_t *inputs[INPUT_COUNT_MAX];
    size_t input_count;
    tow_array_t **results;
    size_t result_count;
    tow_run_timings_t timings;
} cluster_session_t;

static tow_status_t open_slice(cluster_session_t *session)
{
    const tow_slice_options_t options = {
        .struct_size = sizeof(options),
        .dims = {(uint32_t)session->request->device_count}};
    return tow_slice_open(session->client, &options, &session->slice);
}

static tow_status_t compile(cluster_session_t *session)
{
    const tow_run_request_t *request = session->request;
    const int64_t start_ns = tow_bench_now_ns();
    const tow_source_t source = {
        .struct_size = sizeof(source),
        .format = request->is_cost ? TOW_SOURCE_COST : TOW_SOURCE_STABLEHLO,
        .bytes = request->program,
        .size = request->program_size};
    TOW_RETURN_IF_ERROR(
        tow_function_compile(session->slice, &source, &session->function));
    session->timings.compile_ms =
        (double)(tow_bench_now_ns() - start_ns) * 1e-6;
    session->result_count = tow_function_result_count(session->function);
    session->results =
        tow_calloc(session->result_count + 1, sizeof(*session->results));
    if (session->results == NULL)
        return tow_status_bare(TOW_RESOURCE_EXHAUSTED);
    return TOW_OK;
}

static tow_status_t upload(cluster_session_t *session, const char *text)
{
    if (session->input_count == INPUT_COUNT_MAX)
        return TOW_ERROR(TOW_OUT_OF_RANGE, "%zu inputs, limit %d",
                         session->request->input_count, INPUT_COUNT_MAX);
    tow_literal_t literal;
    TOW_RETURN_IF_ERROR(tow_literal_parse(text, &literal));
    tow_upload_options_t options = {
        .struct_size = sizeof(options),
        .type = {.struct_size = sizeof(options.type),
                 .type = (uint32_t)literal.shape.type,
                 .rank = literal.shape.rank},
        .bytes = literal.bytes,
        .size = literal.size,
        .replicated = true};
    memcpy(options.type.dims, literal.shape.dims,
           literal.shape.rank * sizeof(int64_t));
    tow_status_t status = tow_array_upload(
        session->slice, &options, &session->inputs[session->input_count]);
    if (status == TOW_OK) session->input_count++;
    tow_literal_deinit(&literal);
    return tow_status_annotate(status, "--input %s", text);
}

static void release_results(cluster_session_t *session)
{
    for (size_t i = 0; session->results != NULL && i < session->result_count;
         i++) {
        tow_array_release(session->results[i]);
        session->results[i] = NULL;
    }
}

static tow_status_t run_once(cluster_session_t *session, double *out_us)
{
    release_results(session);
    const int64_t start_ns = tow_bench_now_ns();
    TOW_RETURN_IF_ERROR(tow_function_call(
        session->function, session->slice, session->inputs,
        session->input_count, session->results, session->result_count));
    for (size_t i = 0; i < session->result_count; i++)
        TOW_RETURN_IF_ERROR(tow_array_wait(session->results[i], -1));
    *out_us = (double)(tow_bench_now_ns() - start_ns) * 1e-3;
    return TOW_OK;
}

static tow_status_t run_all(cluster_session_t *session)
{
    const size_t count = session->request->repeat_count;
    double *samples = tow_calloc(count, sizeof(*samples));
    if (samples == NULL) return tow_status_bare(TOW_RESOURCE_EXHAUSTED);
    tow_status_t status = TOW_OK;
    for (size_t i = 0; i < count && status == TOW_OK; i++)
        status = run_once(session, &samples[i]);
    session->timings.first_us = samples[0];
    session->timings.median_us = tow_bench_median(samples, count);
    tow_free(samples);
    return status;
}

/* -- Results ----------------------------------------------------------------------- */

static tow_status_t shape_of(const tow_array_t *array, tow_shape_t *out_shape)
{
    tow_array_type_t type = {.struct_size = sizeof(type)};
    TOW_RETURN_IF_ERROR(tow_array_type(array, &type));
    *out_shape =
        (tow_shape_t){.type = (tow_type_t)type.type, .rank = type.rank};
    memcpy(out_shape->dims, type.dims, type.rank * sizeof(int64_t));
    return TOW_OK;
}

static tow_status_t print_result(cluster_session_t *session, size_t device,
                                 size_t result)
{
    tow_array_t *array = session->results[result];
    const size_t size = tow_array_shard_size(array);
    tow_shape_t shape;
    TOW_RETURN_IF_ERROR(shape_of(array, &shape));
    void *bytes = tow_malloc(size + 1);
    if (bytes == NULL) return tow_status_bare(TOW_RESOURCE_EXHAUSTED);
    tow_status_t status = tow_array_download(array, device, bytes, size);
    if (status == TOW_OK)
        tow_run_print_value(session->request, device, result, &shape, bytes);
    tow_free(bytes);
    return status;
}

static tow_status_t print_results(cluster_session_t *session)
{
    for (size_t device = 0; device < tow_slice_device_count(session->slice);
         device++)
        for (size_t i = 0; i < session->result_count; i++)
            TOW_RETURN_IF_ERROR(print_result(session, device, i));
    return TOW_OK;
}

/* -- The whole run --------------------------------------------------------------------- */

static tow_status_t perform(cluster_session_t *session)
{
    const tow_run_request_t *request = session->request;
    TOW_RETURN_IF_ERROR(open_slice(session));
    TOW_RETURN_IF_ERROR(
        tow_status_annotate(compile(session), "compiling %s", request->path));
    for (size_t i = 0; i < request->input_count; i++)
        TOW_RETURN_IF_ERROR(upload(session, request->inputs[i]));
    TOW_RETURN_IF_ERROR(
        tow_status_annotate(run_all(session), "running %s", request->path));
    TOW_RETURN_IF_ERROR(print_results(session));
    tow_run_print_timings(request, &session->timings,
                          tow_slice_device_count(session->slice), "the cluster",
                          request->is_cost);
    return TOW_OK;
}

tow_status_t tow_run_on_cluster(tow_client_t *client,
                                const tow_run_request_t *request)
{
    cluster_session_t session = {.request = request, .client = client};
    tow_status_t status = perform(&session);
    release_results(&session);
    tow_free(session.results);
    for (size_t i = 0; i < session.input_count; i++)
        tow_array_release(session.inputs[i]);
    tow_function_release(session.function);
    tow_slice_release(session.slice);
    return status;
}
