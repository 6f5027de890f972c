/* A local cluster with the computation of Figure 5 of the Pathways paper, a
 * scalar add and an all-reduce over all devices, through the C API: alone, and
 * as a program of 128 calls, each with the last result. */
#ifndef TOW_BENCH_CHAIN_H_
#define TOW_BENCH_CHAIN_H_

#include <stddef.h>
#include <stdint.h>
#include <towpath/towpath.h>

#include "base/macros.h"
#include "base/status.h"

#define TOW_BENCH_CHAIN_LENGTH 128

typedef struct tow_bench_chain_options {
    uint32_t worker_count;
    uint32_t devices_per_worker;
} tow_bench_chain_options_t;

typedef struct tow_bench_chain {
    size_t device_count;
    tow_client_t *client; /* owned, as the fields below */
    tow_slice_t *slice;
    tow_function_t *one;
    tow_program_t *program;
} tow_bench_chain_t;

/* Starts the cluster, and checks values of the computation. After an error it
 * must be closed too. */
tow_status_t tow_bench_chain_open(const tow_bench_chain_options_t *options,
                                  tow_bench_chain_t *out_chain) TOW_MUST_USE;
void tow_bench_chain_close(tow_bench_chain_t *chain);

/* `length` adds and all-reduces in one computation. */
tow_status_t tow_bench_chain_compile(tow_bench_chain_t *chain, int length,
                                     tow_function_t **out_function)
    TOW_MUST_USE;
/* A 0 on every device. */
tow_status_t tow_bench_chain_begin(tow_bench_chain_t *chain,
                                   tow_array_t **out_value) TOW_MUST_USE;
/* Replaces the value by the function's result for it. */
tow_status_t tow_bench_chain_call(tow_bench_chain_t *chain,
                                  tow_function_t *function, tow_array_t **value)
    TOW_MUST_USE;
/* The same for the program. Returns when the old value is ready: two programs
 * are in flight, as in a loop that reads its results one iteration late. */
tow_status_t tow_bench_chain_run(tow_bench_chain_t *chain, tow_array_t **value)
    TOW_MUST_USE;

#endif /* TOW_BENCH_CHAIN_H_ */
