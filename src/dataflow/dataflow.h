/* The executor of lowered programs on one worker.
 *
 * It stores executables and programs under the controller's keys. It applies a
 * grant when it arrives, strictly in order: every step is enqueued on the
 * driver at once, ahead of its data, for buffers are promises; results go to
 * the shard store, where the next grant finds them. When all local shards of
 * all steps of a run have finished, the executor reports the run, together with
 * all others that finish in the same turn.
 *
 * A run may be granted in pieces: ranges of its steps, in order, with pieces of
 * other runs between them. It keeps its values and its arguments from one piece
 * to the next. The executor reports each piece when its steps have ended.
 *
 * A sequential step (ir/lower.h) starts only when its inputs have been
 * produced, with their sizes. Until then the grant is partly applied, the
 * executor is *blocked*, and its owner holds back all later messages. A
 * sequential step waits only for steps before it in the order that all workers
 * share, so the first of all waiting steps can always go on.
 *
 * An error fails the run, never the worker: it names node, device and cause,
 * the results of the run become failed objects, and a later run that uses one
 * fails with the same first error.
 *
 * A state machine: it acts through its driver and the driver's env. */
#ifndef TOW_DATAFLOW_DATAFLOW_H_
#define TOW_DATAFLOW_DATAFLOW_H_

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/macros.h"
#include "base/status.h"
#include "dataflow/transfer.h"
#include "device/device.h"
#include "device/host/host.h"
#include "ir/lower.h"
#include "store/shard_store.h"

typedef struct tow_dataflow tow_dataflow_t;

typedef struct tow_failed_run {
    uint64_t run;
    uint32_t node; /* of the client's graph: the one that failed */
    tow_status_t cause;
    tow_device_time_t time; /* until it ended */
    /* It is in pieces, and steps of it are under way: it is reported again when
     * they have ended. Members of its gangs elsewhere must give up before, for
     * our steps may be queued behind other runs that wait for them. */
    bool is_early;
} tow_failed_run_t;

/* All steps before this one have ended on this worker. */
typedef struct tow_run_progress {
    uint64_t run;
    uint32_t step_end;      /* of a piece that was granted; not the last one */
    tow_device_time_t time; /* since the last report of the run */
} tow_run_progress_t;

/* Runs that have finished since the last report. */
typedef struct tow_finished_runs {
    const uint64_t
        *runs; /* without an error, in the order in which they finished */
    /* Of `runs`: sums over their computations on this worker's devices. The
     * longest is that of one device: exact if any two computations use the same
     * devices or have none in common, and otherwise too long. Without the
     * time that was reported with progress before, like those of failures. */
    const tow_device_time_t *times;
    size_t run_count;
    const tow_failed_run_t *failures;
    size_t failure_count;
    const tow_run_progress_t *progress; /* unfinished runs, each once */
    size_t progress_count;
} tow_finished_runs_t;

typedef struct tow_dataflow_options {
    tow_driver_t *driver;           /* lent, outlives the executor */
    tow_shard_store_t *shard_store; /* lent, outlives the executor */
    /* Lent, outlives the executor. NULL: programs with transfers are
     * refused. */
    tow_transfer_engine_t *engine;
    /* Lent, outlives the executor. NULL: programs with host functions are
     * refused. */
    tow_host_runner_t *host_runner;
    uint32_t process; /* our own, as in routes */
    /* Called in a turn of its own, with `finished` lent. Also called with
     * nothing in it when the last run that tow_dataflow_clear cancelled has
     * ended. */
    void (*finished)(void *context, const tow_finished_runs_t *finished);
    /* The members of this gang must give up, in collectives that the driver
     * does not know. `cause` is lent. May be NULL. */
    void (*abort_gang)(void *context, uint64_t gang_id, tow_status_t cause);
    /* The executor is no longer blocked: grants may follow. In a turn of its
     * own. May be NULL if no program is sequential. */
    void (*unblocked)(void *context);
    void *context;
    uint32_t run_count_max;  /* 0: TOW_DATAFLOW_RUN_COUNT_MAX */
    uint32_t step_count_max; /* 0: TOW_DATAFLOW_STEP_COUNT_MAX */
    /* Small programs on a worker of one device may run inside the call: this
     * saves two hops between threads where a client waits for each result. A
     * program that was small and no longer is (a loop that depends on data)
     * then blocks the worker's loop once: for owners that can bear it. Runs of
     * one step that have the worker to themselves may also linger there (see
     * tow_run_t), whatever the number of devices. */
    bool may_run_inline;
    /* All other runs of one step may linger too; for owners with few cores: see
     * TOW_DATAFLOW_LINGER_COUNT. */
    bool may_linger_always;
} tow_dataflow_options_t;

tow_status_t tow_dataflow_create(const tow_dataflow_options_t *options,
                                 tow_dataflow_t **out_dataflow) TOW_MUST_USE;
/* Nothing is under way and nothing remains to be reported. NULL is harmless. */
void tow_dataflow_destroy(tow_dataflow_t *dataflow);
/* The same after a simulated crash, at any moment: makes no calls. */
void tow_dataflow_discard(tow_dataflow_t *dataflow);

/* -- Executables and programs ---------------------------------------------- */

/* Takes the reference, also on failure: ALREADY_EXISTS, RESOURCE_EXHAUSTED. */
tow_status_t tow_dataflow_add_executable(tow_dataflow_t *dataflow,
                                         uint64_t executable,
                                         tow_executable_t *take_executable)
    TOW_MUST_USE;
/* Programs that have run keep their reference. NOT_FOUND. */
tow_status_t tow_dataflow_remove_executable(tow_dataflow_t *dataflow,
                                            uint64_t executable) TOW_MUST_USE;
/* The same for host functions; tow_dataflow_remove_executable removes them. */
tow_status_t tow_dataflow_add_host(tow_dataflow_t *dataflow,
                                   uint64_t executable,
                                   tow_host_code_t *take_code) TOW_MUST_USE;
/* Takes the lowered program, also on failure. Its executables may be added
 * until its first run. ALREADY_EXISTS, RESOURCE_EXHAUSTED. */
tow_status_t tow_dataflow_add_program(tow_dataflow_t *dataflow,
                                      uint64_t program,
                                      tow_lowered_t *take_lowered) TOW_MUST_USE;
/* Runs under way continue. NOT_FOUND. */
tow_status_t tow_dataflow_remove_program(tow_dataflow_t *dataflow,
                                         uint64_t program) TOW_MUST_USE;

/* -- Runs ------------------------------------------------------------------ */

typedef struct tow_run_grant {
    uint64_t run;
    uint64_t program;
    /* Objects; lent for the call. Only the first piece of a run has them. */
    const uint64_t *arguments;
    size_t argument_count;
    uint64_t first_result; /* an object id; the others follow */
    /* Step s has the gang first_gang + s. Gangs are in the order of grants, so
     * each piece has a number of its own here. */
    uint64_t first_gang;
    /* Of the steps of all workers (tow_lowered_step_t.index). */
    uint32_t first_step;
    uint32_t step_end; /* 0: to the last */
} tow_run_grant_t;

/* Is a grant partly applied? Then the owner must apply no other, nor anything
 * that is later in the order. */
bool tow_dataflow_is_blocked(const tow_dataflow_t *dataflow);
/* Enqueues all steps, or as many as possible. An error of the run is reported
 * as the run's own failure: also a piece that does not begin where the run
 * stands. A later piece of a run that is not under way is ignored: the run has
 * failed here. This returns an error only if even that is impossible: the
 * number of an unfinished run is used again, or no memory is left for its
 * record. */
tow_status_t tow_dataflow_grant(tow_dataflow_t *dataflow,
                                const tow_run_grant_t *grant) TOW_MUST_USE;
/* Is the run under way? */
bool tow_dataflow_has_run(const tow_dataflow_t *dataflow, uint64_t run);
/* The end of its last piece that has ended and is not the last of the run; 0:
 * none, or the run is not under way. */
uint32_t tow_dataflow_progress(const tow_dataflow_t *dataflow, uint64_t run);
/* Finds the run under way that has a gang as a step. False: none. Searches all
 * steps under way: for rare events. */
bool tow_dataflow_run_of_gang(const tow_dataflow_t *dataflow, uint64_t gang_id,
                              uint64_t *out_run);
/* Fails the run with `cause` (lent): its gangs give up as soon as they can.
 * Harmless for a run that has finished. */
void tow_dataflow_abort(tow_dataflow_t *dataflow, uint64_t run,
                        tow_status_t cause);

/* The controller has disconnected: aborts all runs, reports none of them,
 * discards programs and executables. Work that devices have begun ends by
 * itself. */
void tow_dataflow_clear(tow_dataflow_t *dataflow, tow_status_t cause);

typedef struct tow_dataflow_stats {
    uint64_t granted, succeeded, failed;
    size_t run_count;  /* under way */
    size_t step_count; /* under way, including transfers */
    size_t program_count, executable_count;
    uint64_t inline_count;  /* steps that were allowed to run inside the call */
    uint64_t blocked_count; /* grants that waited for data, or for memory */
    uint64_t memory_wait_count; /* steps that waited for memory: ir/late.c */
    uint64_t host_call_count;
    uint64_t piece_count;  /* pieces of runs, not whole ones */
    uint64_t stale_count;  /* of those, ignored */
    size_t in_piece_count; /* runs under way that have pieces */
    uint64_t device_ns,
        wait_ns; /* device time of all computations that ended */
} tow_dataflow_stats_t;
tow_dataflow_stats_t tow_dataflow_stats(const tow_dataflow_t *dataflow);
/* Is nothing under way, and nothing left to be reported? */
bool tow_dataflow_is_quiet(const tow_dataflow_t *dataflow);
/* Verifies the invariants of all records, between turns of the env. O(steps
 * under way): for tests and simulation. */
tow_status_t tow_dataflow_check(const tow_dataflow_t *dataflow) TOW_MUST_USE;

#endif /* TOW_DATAFLOW_DATAFLOW_H_ */
