/* A gang over several processes of this host, without a cluster: the parent starts
 * one member process per share of the devices, compiles a program once and runs
 * it on all devices, so that a benchmark measures executions and collectives
 * alone.
 *
 * The program takes one f32 scalar and returns one. The result of a run is the
 * argument of the next; each call of tow_bench_gang_run begins with zero. */
#ifndef TOW_BENCH_GANG_H_
#define TOW_BENCH_GANG_H_

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/macros.h"
#include "base/status.h"
#include "device/device.h"

#define TOW_BENCH_GANG_PROCESS_COUNT_MAX 64
#define TOW_BENCH_GANG_DEVICE_COUNT_MAX  256 /* of all members together */
/* Runs in flight: as many as collective/intra_host can abort. */
#define TOW_BENCH_GANG_IN_FLIGHT_MAX 32

typedef struct tow_bench_gang tow_bench_gang_t;

typedef struct tow_bench_gang_options {
    size_t process_count;
    size_t device_count; /* of each process */
    tow_bytes_t program; /* StableHLO, one replica per device */
} tow_bench_gang_options_t;

/* Starts the members, compiles and loads. The options are lent for the call. */
tow_status_t tow_bench_gang_open(const tow_bench_gang_options_t *options,
                                 tow_bench_gang_t **out_gang) TOW_MUST_USE;
/* Kills the members. NULL is fine. */
void tow_bench_gang_close(tow_bench_gang_t *gang);

typedef struct tow_bench_gang_run {
    uint64_t count;
    uint64_t in_flight; /* runs enqueued before the first must complete */
    bool may_block;     /* as in tow_run */
} tow_bench_gang_run_t;

/* Runs the program `count` times in all members. `out_seconds` is the time from
 * the first start to the last completion in any member. An error names the
 * member that failed, died or does not reply. */
tow_status_t tow_bench_gang_run(tow_bench_gang_t *gang,
                                const tow_bench_gang_run_t *run,
                                double *out_seconds) TOW_MUST_USE;

/* Downloads the result of the last run from a device of a member. */
tow_status_t tow_bench_gang_value(tow_bench_gang_t *gang, size_t member,
                                  size_t device, float *out_value) TOW_MUST_USE;

/* The member process: `tow bench gang-member ...`. */
tow_status_t tow_bench_gang_member(int argc, char **argv) TOW_MUST_USE;

#endif /* TOW_BENCH_GANG_H_ */
