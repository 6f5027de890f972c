/* `tow run` on a cluster. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "tool/bench.h"
#include "tool/cluster.h"
#include "tool/literal.h"

#define INPUT_COUNT_MAX 256

typedef struct cluster_session {
    const tow_cluster_run_t *run; /* lent */
    tow_client_t *client;         /* lent */
    tow_slice_t *slice;           /* this and the rest: owned */
    tow_function_t *function;
    tow_array_t *inputs[INPUT_COUNT_MAX];
    size_t input_count;
    tow_array_t **results;
    size_t result_count;
    double compile_ms, first_us, median_us;
} cluster_session_t;

static tow_status_t open_slice(cluster_session_t *session)
{
    const tow_slice_options_t options = {
        .struct_size = sizeof(options),
        .dims = {(uint32_t)session->run->device_count}};
    return tow_slice_open(session->client, &options, &session->slice);
}

static tow_status_t compile(cluster_session_t *session)
{
    const tow_cluster_run_t *run = session->run;
    const int64_t start_ns = tow_bench_now_ns();
    const tow_source_t source = {.struct_size = sizeof(source),
                                 .format = run->is_cost ? TOW_SOURCE_COST
                                                        : TOW_SOURCE_STABLEHLO,
                                 .bytes = run->program,
                                 .size = run->program_size};
    TOW_RETURN_IF_ERROR(
        tow_function_compile(session->slice, &source, &session->function));
    session->compile_ms = (double)(tow_bench_now_ns() - start_ns) * 1e-6;
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
        return TOW_ERROR(TOW_OUT_OF_RANGE, "more than %d inputs",
                         INPUT_COUNT_MAX);
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
    const size_t count = session->run->repeat_count;
    double *samples = tow_calloc(count, sizeof(*samples));
    if (samples == NULL) return tow_status_bare(TOW_RESOURCE_EXHAUSTED);
    tow_status_t status = TOW_OK;
    for (size_t i = 0; i < count && status == TOW_OK; i++)
        status = run_once(session, &samples[i]);
    session->first_us = samples[0];
    session->median_us = tow_bench_median(samples, count);
    tow_free(samples);
    return status;
}

/* -- Printing ---------------------------------------------------------------------- */

static tow_status_t shape_of(const tow_array_t *array, tow_shape_t *out_shape)
{
    tow_array_type_t type = {.struct_size = sizeof(type)};
    TOW_RETURN_IF_ERROR(tow_array_type(array, &type));
    *out_shape =
        (tow_shape_t){.type = (tow_type_t)type.type, .rank = type.rank};
    memcpy(out_shape->dims, type.dims, type.rank * sizeof(int64_t));
    return TOW_OK;
}

static void print_value(const cluster_session_t *session, size_t device,
                        size_t result, const tow_shape_t *shape,
                        const void *bytes)
{
    const bool json = session->run->json;
    printf(json ? "{\"device\":%zu,\"result\":%zu,\"value\":\""
                : "device %zu result %zu ",
           device, result);
    tow_literal_print(stdout, shape, bytes, session->run->printed_elements_max);
    printf(json ? "\"}\n" : "\n");
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
    if (status == TOW_OK) print_value(session, device, result, &shape, bytes);
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

static void print_timings(const cluster_session_t *session)
{
    const size_t devices = tow_slice_device_count(session->slice);
    if (session->run->json)
        printf("{\"compile_ms\":%.3f,\"first_run_us\":%.2f,\"run_us\":%.2f,"
               "\"runs\":%zu,\"devices\":%zu,\"simulated\":%s}\n",
               session->compile_ms, session->first_us, session->median_us,
               session->run->repeat_count, devices,
               session->run->is_cost ? "true" : "false");
    else
        printf("compiled in %.1f ms; first run %.1f us, median of %zu %.1f us "
               "on %zu device(s) of the cluster\n",
               session->compile_ms, session->first_us,
               session->run->repeat_count, session->median_us, devices);
}

/* -- All of it --------------------------------------------------------------------- */

static tow_status_t perform(cluster_session_t *session)
{
    const tow_cluster_run_t *run = session->run;
    TOW_RETURN_IF_ERROR(open_slice(session));
    TOW_RETURN_IF_ERROR(
        tow_status_annotate(compile(session), "compiling %s", run->path));
    for (size_t i = 0; i < run->input_count; i++)
        TOW_RETURN_IF_ERROR(upload(session, run->inputs[i]));
    TOW_RETURN_IF_ERROR(
        tow_status_annotate(run_all(session), "running %s", run->path));
    TOW_RETURN_IF_ERROR(print_results(session));
    print_timings(session);
    return TOW_OK;
}

tow_status_t tow_cluster_run(tow_client_t *client, const tow_cluster_run_t *run)
{
    cluster_session_t session = {.run = run, .client = client};
    tow_status_t status = perform(&session);
    release_results(&session);
    tow_free(session.results);
    for (size_t i = 0; i < session.input_count; i++)
        tow_array_release(session.inputs[i]);
    tow_function_release(session.function);
    tow_slice_release(session.slice);
    return status;
}
