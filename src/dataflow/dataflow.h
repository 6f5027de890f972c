/* The executor of lowered programs on one worker.
 *
 * It keeps executables and programs by the controller's keys. A grant is applied
 * when it comes, strictly in order: every step is enqueued on the driver at
 * once, ahead of its data, for buffers are promises; results go to the shelf,
 * where the next grant finds them. When all local shards of all steps of a run
 * have finished the run is reported, together with all others of the same turn.
 *
 * A step that is sequential (ir/lower.h) is begun only when its inputs have been
 * produced, with their sizes; until then the grant is half applied, the executor
 * is *blocked*, and its owner holds back all that comes after. Whatever such a
 * step waits for comes before it in the order that all workers share, so the first
 * of all that wait can always go on.
 *
 * What goes wrong fails the run, never the worker: the error names node, device
 * and cause, its results become failed objects, and a later run that uses one
 * fails with that same first error.
 *
 * A state machine: acts through its driver and the driver's env. */
#ifndef TOW_DATAFLOW_DATAFLOW_H_
#define TOW_DATAFLOW_DATAFLOW_H_

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/macros.h"
#include "base/status.h"
#include "dataflow/mover.h"
#include "device/device.h"
#include "device/host/host.h"
#include "ir/lower.h"
#include "store/shelf.h"

typedef struct tow_dataflow tow_dataflow_t;

typedef struct tow_failed_run {
    uint64_t run;
    uint32_t node; /* of the client's graph, where it failed */
    tow_status_t cause;
} tow_failed_run_t;

/* Runs that have finished since the last time. */
typedef struct tow_finished_runs {
    const uint64_t *runs; /* without an error, in the order of finishing */
    size_t run_count;
    const tow_failed_run_t *failures;
    size_t failure_count;
} tow_finished_runs_t;

typedef struct tow_dataflow_options {
    tow_driver_t *driver; /* lent, outlives the executor */
    tow_shelf_t *shelf;   /* lent, outlives the executor */
    /* Lent, outlives the executor. NULL: programs with transfers are refused. */
    tow_mover_t *mover;
    /* Lent, outlives the executor. NULL: programs with host functions are
     * refused. */
    tow_host_runner_t *host_runner;
    uint32_t process; /* our own, as routes know it */
    /* Lent for the callback, which is a turn of its own. Also with nothing in it,
     * when the last run that tow_dataflow_clear dropped has ended. */
    void (*finished)(void *context, const tow_finished_runs_t *finished);
    /* Members of this gang shall give up, in collectives that the driver does
     * not know. `cause` is lent. May be NULL. */
    void (*abort_gang)(void *context, uint64_t gang_id, tow_status_t cause);
    /* A grant that was half applied is not any more: grants are welcome. In a
     * turn of its own. May be NULL if no program is sequential. */
    void (*unblocked)(void *context);
    void *context;
    uint32_t run_count_max;  /* 0: TOW_DATAFLOW_RUN_COUNT_MAX */
    uint32_t step_count_max; /* 0: TOW_DATAFLOW_STEP_COUNT_MAX */
    /* Small programs on a worker of one device may run inside the call: saves
     * two hops between threads where a client waits for each result. A program
     * that was small and is not any more (a loop that depends on data) then
     * holds up the worker's loop, once: for owners that can bear it. And runs
     * of one step that have the worker to themselves may linger there (see
     * tow_run_t), whatever the number of devices. */
    bool may_run_inline;
    /* All others of one step may linger, too; for owners with few cores: see
     * TOW_DATAFLOW_LINGER_COUNT. */
    bool may_linger_always;
} tow_dataflow_options_t;

tow_status_t tow_dataflow_create(const tow_dataflow_options_t *options,
                                 tow_dataflow_t **out_dataflow) TOW_MUST_USE;
/* Nothing is under way and nothing is to be reported. NULL is harmless. */
void tow_dataflow_destroy(tow_dataflow_t *dataflow);
/* The same for a process that has died, at any moment: calls nobody. */
void tow_dataflow_forget(tow_dataflow_t *dataflow);

/* -- What there is to run ---------------------------------------------------- */

/* Takes the reference, also on failure: ALREADY_EXISTS, RESOURCE_EXHAUSTED. */
tow_status_t tow_dataflow_add_executable(tow_dataflow_t *dataflow,
                                         uint64_t executable,
                                         tow_executable_t *take_executable)
    TOW_MUST_USE;
/* Programs that have run keep theirs. NOT_FOUND. */
tow_status_t tow_dataflow_remove_executable(tow_dataflow_t *dataflow,
                                            uint64_t executable) TOW_MUST_USE;
/* The same for host functions: with tow_dataflow_remove_executable they go. */
tow_status_t tow_dataflow_add_host(tow_dataflow_t *dataflow,
                                   uint64_t executable,
                                   tow_host_code_t *take_code) TOW_MUST_USE;
/* Takes the lowered program, also on failure. Its executables need not be there
 * before its first run. ALREADY_EXISTS, RESOURCE_EXHAUSTED. */
tow_status_t tow_dataflow_add_program(tow_dataflow_t *dataflow,
                                      uint64_t program,
                                      tow_lowered_t *take_lowered) TOW_MUST_USE;
/* Runs that are under way go on. NOT_FOUND. */
tow_status_t tow_dataflow_remove_program(tow_dataflow_t *dataflow,
                                         uint64_t program) TOW_MUST_USE;

/* -- Running ----------------------------------------------------------------- */

typedef struct tow_run_grant {
    uint64_t run;
    uint64_t program;
    const uint64_t *arguments; /* objects; lent for the call */
    size_t argument_count;
    uint64_t first_result; /* an object; the others follow */
    uint64_t first_gang;   /* of step 0; the others follow */
} tow_run_grant_t;

/* Is a grant half applied? Then no other may be given, nor may anything that
 * stands behind it in the order be done. */
bool tow_dataflow_is_blocked(const tow_dataflow_t *dataflow);
/* Enqueues all of it, or what can be. Whatever is wrong with the run is reported as the run's
 * own failure. An error here means that not even that can be done: the number
 * of an unfinished run again, or no memory to remember it. */
tow_status_t tow_dataflow_grant(tow_dataflow_t *dataflow,
                                const tow_run_grant_t *grant) TOW_MUST_USE;
/* The run under way that a gang is a step of. False: there is none. Looks at all
 * steps under way: for what happens seldom. */
bool tow_dataflow_run_of_gang(const tow_dataflow_t *dataflow, uint64_t gang_id,
                              uint64_t *out_run);
/* The run fails with `cause` (lent): its gangs give up as soon as they can.
 * Harmless for one that has finished. */
void tow_dataflow_abort(tow_dataflow_t *dataflow, uint64_t run,
                        tow_status_t cause);

/* The controller is gone: aborts all, reports none of them, drops programs and
 * executables. What the devices still do ends in its own time. */
void tow_dataflow_clear(tow_dataflow_t *dataflow, tow_status_t cause);

typedef struct tow_dataflow_stats {
    uint64_t granted, succeeded, failed;
    size_t run_count;  /* under way */
    size_t step_count; /* under way, transfers included */
    size_t program_count, executable_count;
    uint64_t inline_count;  /* steps that were allowed to run inside the call */
    uint64_t blocked_count; /* grants that had to wait for data */
    uint64_t host_call_count;
} tow_dataflow_stats_t;
tow_dataflow_stats_t tow_dataflow_stats(const tow_dataflow_t *dataflow);
/* Is nothing under way and nothing to be reported? */
bool tow_dataflow_is_quiet(const tow_dataflow_t *dataflow);

#endif /* TOW_DATAFLOW_DATAFLOW_H_ */
