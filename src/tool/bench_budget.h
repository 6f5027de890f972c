/* Where the time goes: CPU time of each role of a local cluster that this
 * process started, from the kernel's books of their threads. */
#ifndef TOW_TOOL_BENCH_BUDGET_H_
#define TOW_TOOL_BENCH_BUDGET_H_

#include "base/macros.h"
#include "base/status.h"

/* Seconds of CPU since the processes began. `wire` is what the kernel took of them
 * on behalf of the loop: sockets, waking and sleeping; by the kernel's samples, so
 * only as exact as the time is long. */
typedef struct tow_budget_part {
    double all;
    double wire;
} tow_budget_part_t;

typedef struct tow_budget {
    tow_budget_part_t client;     /* this process */
    tow_budget_part_t controller; /* its loop */
    /* The loops of all workers; small executions that somebody waits for run
     * there too. */
    tow_budget_part_t worker;
    /* All other threads of workers: devices, XLA's pools. */
    tow_budget_part_t device;
} tow_budget_t;

/* NOT_FOUND: no controller or worker descends from this process. */
tow_status_t tow_budget_read(tow_budget_t *out_budget) TOW_MUST_USE;
tow_budget_t tow_budget_between(const tow_budget_t *before,
                                const tow_budget_t *after);

#endif /* TOW_TOOL_BENCH_BUDGET_H_ */
