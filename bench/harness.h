/* Shared by all benchmarks: paired rounds, their ratio and spread, and the
 * output format.
 *
 * On a busy machine a number alone says little. Each case alternates between
 * ours and the peer; the ratio is taken within each round, and its median and
 * extremes over the rounds are printed. */
#ifndef TOW_BENCH_HARNESS_H_
#define TOW_BENCH_HARNESS_H_

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/macros.h"
#include "base/status.h"

typedef struct tow_bench_options {
    bool json;
    bool quick;       /* the whole benchmark takes at most 40 s */
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
    /* Target: the least acceptable ratio; 0: none. */
    double bar;
    bool simulated;
    /* One measurement each, in `unit`. `peer_run` NULL: `limit` is the peer. */
    tow_status_t (*run)(void *context, double *out_value);
    tow_status_t (*peer_run)(void *context, double *out_value);
    double limit;
    void *context;
} tow_bench_case_t;

#define TOW_BENCH_ROUNDS_MAX 32

/* True if the options select this case. */
bool tow_bench_is_chosen(const tow_bench_case_t *bench_case,
                         const tow_bench_options_t *options);
/* Runs a selected case for `rounds` pairs and prints the result. */
tow_status_t tow_bench_run_case(const tow_bench_case_t *bench_case,
                                size_t rounds,
                                const tow_bench_options_t *options)
    TOW_MUST_USE;

/* Sorts the values and returns their median; `count` > 0. */
double tow_bench_median(double *values, size_t count);

/* CLOCK_MONOTONIC. */
int64_t tow_bench_now_ns(void);

#endif /* TOW_BENCH_HARNESS_H_ */
