/* `tow bench pieces`: a client beside another one's long program.
 *
 * One worker with one simulated device on the real clock, on a local cluster
 * through the C interface: devices take time, but no core. One client runs a
 * program of 10,000 computations, another one calls a single computation and
 * waits for it, again and again. Runs are granted in pieces, so the call waits
 * for a few pieces, not for the program. `program_10000` compares the program
 * with itself on a cluster that grants every run whole (TOW_PIECES=off). */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <towpath/towpath.h>

#include "base/alloc.h"
#include "bench/benchmarks.h"
#include "bench/harness.h"

#define NODE_COUNT 10000
#define NODE_US    50  /* of the long program: half a second in all */
#define CALL_US    300 /* of the single call */
/* Calls of a round: as many as fit into a run, and some more. */
#define CALL_COUNT 200

/* A client with its functions. */
typedef struct party {
    tow_client_t *client;     /* owned, as the fields below */
    tow_slice_t *slice;       /* the device */
    tow_function_t *function; /* takes NODE_US or CALL_US */
    tow_program_t *program;   /* NODE_COUNT of them; NULL: none */
    tow_array_t *value;       /* the argument */
} party_t;

typedef struct pieces_bench {
    party_t runner;     /* of the long program */
    party_t caller;     /* on the same cluster */
    party_t wholly;     /* of the same program, on one that grants it whole */
    double alone_ms;    /* a call without the program */
    bool takes_longest; /* of the calls of a round, instead of the median */
} pieces_bench_t;

static const tow_array_type_t number = {.struct_size = sizeof(tow_array_type_t),
                                        .type = TOW_TYPE_F32,
                                        .rank = 1,
                                        .dims = {1}};

/* -- Clients --------------------------------------------------------------- */

static tow_status_t compile(party_t *party, uint32_t duration_us)
{
    char text[160];
    snprintf(text, sizeof(text),
             "towpath-cost 1\nname busy\nargument f32[1]\nresult f32[1]\n"
             "duration %u000\n",
             duration_us);
    tow_source_t source = {.struct_size = sizeof(source),
                           .format = TOW_SOURCE_COST,
                           .bytes = text,
                           .size = strlen(text)};
    return tow_function_compile(party->slice, &source, &party->function);
}

static tow_status_t upload(party_t *party)
{
    static const float zero = 0;
    tow_upload_options_t options = {.struct_size = sizeof(options),
                                    .type = number,
                                    .bytes = &zero,
                                    .size = sizeof(zero)};
    return tow_array_upload(party->slice, &options, &party->value);
}

/* `address`: "": a local cluster of its own. */
static tow_status_t open_party(party_t *party, const char *address,
                               uint32_t duration_us)
{
    const bool is_local = address[0] == '\0';
    tow_client_options_t client = {.struct_size = sizeof(client),
                                   .address = address,
                                   .name = "bench",
                                   .worker_count = is_local ? 1 : 0,
                                   .devices_per_worker = is_local ? 1 : 0,
                                   .simulated = is_local ? "tpu_v3" : NULL};
    tow_slice_options_t slice = {.struct_size = sizeof(slice), .dims = {1}};
    TOW_RETURN_IF_ERROR(tow_client_open(&client, &party->client));
    TOW_RETURN_IF_ERROR(tow_slice_open(party->client, &slice, &party->slice));
    TOW_RETURN_IF_ERROR(compile(party, duration_us));
    return upload(party);
}

static void close_party(party_t *party)
{
    tow_array_release(party->value);
    tow_program_release(party->program);
    tow_function_release(party->function);
    tow_slice_release(party->slice);
    tow_client_release(party->client);
}

/* A chain of NODE_COUNT computations. */
static tow_status_t trace(party_t *party)
{
    tow_array_t *value = NULL;
    TOW_RETURN_IF_ERROR(
        tow_program_create(party->client, "long", &party->program));
    TOW_RETURN_IF_ERROR(tow_program_argument(party->program, party->slice,
                                             &number, false, &value));
    tow_status_t status = TOW_OK;
    for (size_t i = 0; i < NODE_COUNT && status == TOW_OK; i++) {
        tow_array_t *next = NULL;
        status = tow_function_call(party->function, party->slice, &value, 1,
                                   &next, 1);
        tow_array_release(value);
        value = next;
    }
    if (status == TOW_OK) status = tow_program_result(party->program, value);
    tow_array_release(value);
    TOW_RETURN_IF_ERROR(status);
    return tow_program_finish(party->program);
}

static tow_status_t start_program(party_t *party, tow_array_t **out_result)
{
    return tow_program_run(party->program, &party->value, 1, out_result, 1);
}

/* -- Measurements ---------------------------------------------------------- */

static tow_status_t time_program(party_t *party, double *out_ms)
{
    tow_array_t *result = NULL;
    const int64_t start_ns = tow_bench_now_ns();
    TOW_RETURN_IF_ERROR(start_program(party, &result));
    tow_status_t status = tow_array_wait(result, -1);
    *out_ms = (double)(tow_bench_now_ns() - start_ns) * 1e-6;
    tow_array_release(result);
    return status;
}

static tow_status_t in_pieces_ms(void *context, double *out_ms)
{
    return time_program(&((pieces_bench_t *)context)->runner, out_ms);
}

static tow_status_t whole_ms(void *context, double *out_ms)
{
    return time_program(&((pieces_bench_t *)context)->wholly, out_ms);
}

static tow_status_t time_call(party_t *party, double *out_ms)
{
    tow_array_t *result = NULL;
    const int64_t start_ns = tow_bench_now_ns();
    TOW_RETURN_IF_ERROR(tow_function_call(party->function, party->slice,
                                          &party->value, 1, &result, 1));
    tow_status_t status = tow_array_wait(result, -1);
    *out_ms = (double)(tow_bench_now_ns() - start_ns) * 1e-6;
    tow_array_release(result);
    return status;
}

/* The times of calls, until `busy` has its value or there are CALL_COUNT. */
static tow_status_t time_calls(party_t *party, tow_array_t *busy, double *times,
                               size_t *out_count)
{
    *out_count = 0;
    do {
        TOW_RETURN_IF_ERROR(time_call(party, &times[(*out_count)++]));
    } while (*out_count < CALL_COUNT &&
             (busy == NULL || !tow_array_is_ready(busy)));
    return TOW_OK;
}

/* Calls made while the program runs, sorted by their time. */
static tow_status_t call_beside(pieces_bench_t *bench, double *times,
                                size_t *out_count)
{
    tow_array_t *busy = NULL;
    TOW_RETURN_IF_ERROR(start_program(&bench->runner, &busy));
    tow_status_t status = time_calls(&bench->caller, busy, times, out_count);
    if (status == TOW_OK) status = tow_array_wait(busy, -1);
    tow_array_release(busy);
    (void)tow_bench_median(times, *out_count);
    return status;
}

/* What a call waits beyond the time of one alone. */
static tow_status_t wait_ms(void *context, double *out_ms)
{
    pieces_bench_t *bench = context;
    double times[CALL_COUNT];
    size_t count = 0;
    TOW_RETURN_IF_ERROR(call_beside(bench, times, &count));
    *out_ms =
        times[bench->takes_longest ? count - 1 : count / 2] - bench->alone_ms;
    return TOW_OK;
}

/* -- The cases ------------------------------------------------------------- */

static tow_status_t measure_alone(pieces_bench_t *bench)
{
    double times[CALL_COUNT];
    size_t count = 0;
    TOW_RETURN_IF_ERROR(time_calls(&bench->caller, NULL, times, &count));
    bench->alone_ms = tow_bench_median(times, count);
    return TOW_OK;
}

/* The median and the longest of the calls of a round. The second depends on
 * every delay of the machine, so it has no target. */
static tow_status_t run_wait(pieces_bench_t *bench,
                             const tow_bench_options_t *options)
{
    tow_bench_case_t shown = {.bench = "pieces",
                              .name = "wait_beside_10000",
                              .unit = "ms",
                              .peer = "limit",
                              .better = TOW_BENCH_LOWER_IS_BETTER,
                              .bar = 1,
                              .simulated = true,
                              .run = wait_ms,
                              .limit = 3,
                              .context = bench};
    TOW_RETURN_IF_ERROR(measure_alone(bench));
    if (tow_bench_is_chosen(&shown, options))
        TOW_RETURN_IF_ERROR(
            tow_bench_run_case(&shown, options->quick ? 3 : 15, options));
    shown.name = "longest_wait_beside_10000";
    bench->takes_longest = true;
    shown.bar = 0;
    if (!tow_bench_is_chosen(&shown, options)) return TOW_OK;
    return tow_bench_run_case(&shown, options->quick ? 3 : 15, options);
}

static tow_status_t run_program(pieces_bench_t *bench,
                                const tow_bench_options_t *options)
{
    const tow_bench_case_t shown = {.bench = "pieces",
                                    .name = "program_10000",
                                    .unit = "ms",
                                    .peer = "the same, granted whole",
                                    .better = TOW_BENCH_LOWER_IS_BETTER,
                                    .bar = 0.97,
                                    .simulated = true,
                                    .run = in_pieces_ms,
                                    .peer_run = whole_ms,
                                    .context = bench};
    if (!tow_bench_is_chosen(&shown, options)) return TOW_OK;
    setenv("TOW_PIECES", "off", 1);
    tow_status_t status = open_party(&bench->wholly, "", NODE_US);
    unsetenv("TOW_PIECES");
    double unused;
    if (status == TOW_OK) status = trace(&bench->wholly);
    if (status == TOW_OK) status = time_program(&bench->wholly, &unused);
    if (status == TOW_OK)
        status = tow_bench_run_case(&shown, options->quick ? 5 : 15, options);
    return status;
}

static tow_status_t run_cases(pieces_bench_t *bench,
                              const tow_bench_options_t *options)
{
    double unused;
    TOW_RETURN_IF_ERROR(open_party(&bench->runner, "", NODE_US));
    TOW_RETURN_IF_ERROR(open_party(
        &bench->caller, tow_client_address(bench->runner.client), CALL_US));
    TOW_RETURN_IF_ERROR(trace(&bench->runner));
    TOW_RETURN_IF_ERROR(time_program(&bench->runner, &unused));
    TOW_RETURN_IF_ERROR(run_wait(bench, options));
    return run_program(bench, options);
}

static tow_status_t run_benchmark(const tow_bench_options_t *options)
{
    pieces_bench_t bench = {0};
    tow_status_t status = run_cases(&bench, options);
    close_party(&bench.caller);
    close_party(&bench.runner);
    close_party(&bench.wholly);
    return status;
}

static const char *const case_names[] = {
    "wait_beside_10000", "longest_wait_beside_10000", "program_10000", NULL};

const tow_benchmark_t tow_bench_pieces = {
    .name = "pieces",
    .summary = "a client's calls beside another one's long program",
    .cases = case_names,
    .run = run_benchmark,
};
