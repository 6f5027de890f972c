/* What benchmarks share: paired rounds, their ratio and spread, and the one
 * form in which results are printed.
 *
 * The machine is noisy, so a figure alone says little. Each case runs ours and
 * the peer alternately, a pair a round; the ratio is taken within each round,
 * and its median and extremes over the rounds are printed. */
#ifndef TOW_TOOL_BENCH_H_
#define TOW_TOOL_BENCH_H_

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/macros.h"
#include "base/status.h"

typedef struct tow_bench_options {
    bool json;
    bool quick;       /* all of a benchmark within 40 s */
    const char *only; /* run cases whose name contains it; NULL: all */
} tow_bench_options_t;

typedef enum tow_bench_better {
    TOW_BENCH_LOWER_IS_BETTER, /* times */
    TOW_BENCH_HIGHER_IS_BETTER /* rates */
} tow_bench_better_t;

typedef struct tow_bench_case {
    const char *bench; /* "net" */
    const char *name;  /* "lane_roundtrip_8B" */
    const char *unit;  /* "us" */
    const char *peer;  /* "ucx_perftest ucp_am_lat" */
    tow_bench_better_t better;
    /* What the ratio should be at least; 0: none is asked for. */
    double bar;
    bool simulated;
    /* One measurement each, in `unit`. `peer_run` NULL: `limit` is the peer. */
    tow_status_t (*run)(void *context, double *out_value);
    tow_status_t (*peer_run)(void *context, double *out_value);
    double limit;
    void *context;
} tow_bench_case_t;

#define TOW_BENCH_ROUNDS_MAX 32

/* Is it among the cases that were asked for? */
bool tow_bench_is_chosen(const tow_bench_case_t *bench_case,
                         const tow_bench_options_t *options);
/* Runs one case, if it is chosen, for `rounds` pairs and prints it. */
tow_status_t tow_bench_run_case(const tow_bench_case_t *bench_case,
                                size_t rounds,
                                const tow_bench_options_t *options)
    TOW_MUST_USE;

/* Sorts the values, `count` > 0 of them, and returns the middle one. */
double tow_bench_median(double *values, size_t count);

/* Nanoseconds of the real clock. */
int64_t tow_bench_now_ns(void);

/* The benchmarks. */
tow_status_t tow_bench_net(const tow_bench_options_t *options) TOW_MUST_USE;
tow_status_t tow_bench_device(const tow_bench_options_t *options) TOW_MUST_USE;
tow_status_t tow_bench_dispatch(const tow_bench_options_t *options)
    TOW_MUST_USE;
/* Becomes another program: returns only if it cannot. */
tow_status_t tow_bench_jax(const tow_bench_options_t *options) TOW_MUST_USE;
tow_status_t tow_bench_jax_help(void) TOW_MUST_USE;
tow_status_t tow_bench_pipeline(const tow_bench_options_t *options)
    TOW_MUST_USE;
tow_status_t tow_bench_calibrate(const tow_bench_options_t *options)
    TOW_MUST_USE;
tow_status_t tow_bench_scale(const tow_bench_options_t *options) TOW_MUST_USE;
tow_status_t tow_bench_sim(const tow_bench_options_t *options) TOW_MUST_USE;
tow_status_t tow_bench_transfer(const tow_bench_options_t *options)
    TOW_MUST_USE;

#endif /* TOW_TOOL_BENCH_H_ */
