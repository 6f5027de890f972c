/* Where the time goes: CPU time of each role of a local cluster that this
 * process started, from the kernel's books of their threads. */
#ifndef TOW_TOOL_BENCH_BUDGET_H_
#define TOW_TOOL_BENCH_BUDGET_H_

#include "base/macros.h"
#include "base/status.h"

/* Seconds of CPU since the processes began. */
typedef struct tow_budget {
    double client;     /* this process */
    double controller; /* its loop */
    double worker;     /* the loops of all workers */
    double device;     /* all other threads of workers: devices, XLA's pools */
} tow_budget_t;

/* NOT_FOUND: no controller or worker descends from this process. */
tow_status_t tow_budget_read(tow_budget_t *out_budget) TOW_MUST_USE;
tow_budget_t tow_budget_between(const tow_budget_t *before,
                                const tow_budget_t *after);

#endif /* TOW_TOOL_BENCH_BUDGET_H_ */
