/* One SPMD gang over several processes of this host, on the XLA CPU adapter.
 *
 * Each member is a child process with a client that knows only its own devices.
 * The program is compiled once, by a child that has none of the gang's devices,
 * and loaded by all members. Collectives go through shared memory
 * (collective/host), which is removed as soon as all members have it open, so
 * nothing is left behind however this process ends.
 *
 * A gang that has failed is only good to be closed. */
#ifndef TOW_TOOL_GANG_H_
#define TOW_TOOL_GANG_H_

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/macros.h"
#include "base/status.h"
#include "device/device.h"

#define TOW_GANG_PROCESS_COUNT_MAX 64
#define TOW_GANG_DEVICE_COUNT_MAX  256 /* of all members together */
/* Runs that may be under way at once: as many as collective/host can abort. */
#define TOW_GANG_AHEAD_MAX 32
/* A result as text, or why a member failed. */
#define TOW_GANG_TEXT_MAX 8192

typedef struct tow_gang tow_gang_t;

typedef struct tow_gang_options {
    size_t process_count;
    size_t device_count; /* of each */
    tow_bytes_t program; /* StableHLO; a replica on each device */
    /* Arguments as tow_literal_parse takes them; each device gets all. */
    const char *const *inputs;
    size_t input_count;
    size_t printed_elements_max; /* in the text of a result */
} tow_gang_options_t;

/* Starts the members, compiles, loads, uploads. Everything in the options is
 * lent for the call. */
tow_status_t tow_gang_open(const tow_gang_options_t *options,
                           tow_gang_t **out_gang) TOW_MUST_USE;
/* Ends the members. NULL is fine. */
void tow_gang_close(tow_gang_t *gang);

/* How long the compiler took, the start of its process included. */
double tow_gang_compile_ms(const tow_gang_t *gang);
pid_t tow_gang_pid(const tow_gang_t *gang, size_t member);
/* As programs and error messages name it. */
int64_t tow_gang_device_id(size_t member, size_t device);
size_t tow_gang_result_count(const tow_gang_t *gang);

typedef struct tow_gang_run {
    uint64_t count;
    uint64_t ahead; /* enqueued before the first of them has to be done */
    /* The results of a run are the arguments of the next, instead of the
     * inputs. */
    bool is_chained;
    bool may_block; /* as in tow_run */
} tow_gang_run_t;

typedef struct tow_gang_timing {
    double seconds; /* from the first start to the last end in any member */
    /* From enqueueing to completion, of the slowest member; only when `ahead`
     * is 1. */
    double first_us;
    double median_us;
} tow_gang_timing_t;

/* Runs the program `count` times in all members. An error names the member; one
 * that is killed or frozen inside a collective is named by the others within
 * 3 s. */
tow_status_t tow_gang_run(tow_gang_t *gang, const tow_gang_run_t *run,
                          tow_gang_timing_t *out_timing) TOW_MUST_USE;

typedef struct tow_gang_result {
    size_t member;
    size_t device; /* of the member */
    size_t result;
} tow_gang_result_t;

/* A result of the last run, as "f32[2]=1,2". */
tow_status_t tow_gang_result(tow_gang_t *gang, const tow_gang_result_t *which,
                             char text[TOW_GANG_TEXT_MAX]) TOW_MUST_USE;

/* A member's process: `tow run gang-member ...`. Returns its exit status. */
int tow_gang_member(int argc, char **argv);

#endif /* TOW_TOOL_GANG_H_ */
