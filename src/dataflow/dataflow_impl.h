/* Internals of the executor. */
#ifndef TOW_DATAFLOW_DATAFLOW_IMPL_H_
#define TOW_DATAFLOW_DATAFLOW_IMPL_H_

#include "base/arena.h"
#include "base/list.h"
#include "base/map.h"
#include "base/pool.h"
#include "base/vec.h"
#include "dataflow/dataflow.h"

typedef struct program program_t;
typedef struct ranges ranges_t;

/* A value while a run is applied: shard i is shards[i * stride]. */
typedef struct slot {
    tow_buffer_t **shards;
    uint32_t stride;
    uint32_t count; /* 0: no shards here */
    bool is_owned;  /* by the slot: to be released or put into the store */
    bool is_needed; /* arguments: by a step on this worker */
    /* Its size is unknown yet, so it has no buffer: its step is under way. */
    bool is_pending;
    bool is_shared; /* arguments of a run in pieces: tow_shard_share */
    /* Arguments: lent by the shard store. Of a run in pieces, valid while a
     * piece is applied; NULL: not in the store any more, or failed. */
    tow_shard_store_object_t *object;
} slot_t;

/* The values of a run while its steps are being started. A whole grant is
 * applied in one go and uses the scratch of its program; a run in pieces has
 * one of its own until its last piece has been applied, or until it fails. */
typedef struct scratch {
    program_t *program;
    slot_t *slots;
    tow_buffer_t **results; /* of all steps: step_t.first_result */
    uint32_t pending_count; /* slots without buffers yet */
    /* The rest: of a run in pieces. */
    tow_list_t in_program;
    bool is_used;
    uint64_t *argument_keys;
    tow_buffer_t **argument_shards; /* one row per argument */
} scratch_t;

/* A lowered step bound to its executable or host function; a transfer has
 * neither. */
typedef struct step {
    const tow_lowered_step_t *lowered;
    tow_executable_t *executable; /* counted */
    tow_host_code_t *host;        /* counted */
    uint32_t shard_count;         /* of its outputs, on this worker */
    size_t *kept;                 /* in the driver's type */
    size_t *kept_now;             /* for one call: and shared arguments */
    size_t first_result;          /* in the results: device by device */
    /* Memory in the order of use (ir/late.c), of computations: a transfer waits
     * for its end; it waits until transfers have been sent. */
    bool is_awaited, waits_for_sends;
    bool may_wait;    /* before it starts, in apply.c */
    bool is_consumed; /* a transfer: a computation overwrites its value */
    /* Of a transfer that waits for memory: what it takes, if only computations
     * use the value; of a computation: what its end returns. */
    uint64_t late_bytes;
    size_t freer; /* of such a transfer: the last of those computations */
    uint32_t device_set; /* of a computation: time.c */
} step_t;

/* A program in the table. */
struct program {
    uint64_t key;
    tow_lowered_t *lowered; /* owned */
    bool is_bound;          /* the fields below are set */
    tow_arena_t arena;      /* of the fields below */
    step_t *steps;
    bool is_spread;           /* its computations have several device sets */
    size_t result_count;      /* of all steps, on all devices */
    scratch_t scratch;        /* of the grant that is being applied */
    tow_buffer_t **arguments; /* for one call: of a step, device by device */
    tow_list_t scratches;     /* owned; of runs in pieces, unused ones first */
    uint32_t spare_count;     /* unused */
    /* Transfers read its routes, host functions and a blocked grant its steps:
     * a removed program is freed when the last of them has ended. */
    uint32_t hold_count;
    bool is_removed;
    tow_list_t in_removed;
    /* Whether it is small enough to run inline; for programs of one step. */
    uint32_t fast_count;
    bool is_slow;
};

/* A run under way. */
typedef struct run {
    uint64_t key;
    uint64_t program_key;
    uint64_t first_result;
    uint32_t result_count;
    uint32_t node;      /* that failed */
    tow_status_t error; /* owned; the first */
    /* Since it was last reported as progress. */
    tow_device_time_t time;
    /* In place of time.longest_ns, by device set: from the pool. NULL: there is
     * one set, or no memory. */
    uint64_t *kept_ns;
    tow_list_t steps;    /* under way, in their order */
    tow_list_t held;     /* of those, transfers that wait for memory */
    tow_list_t in_held;  /* runs with such transfers; or unlinked */
    uint32_t hold_count; /* being applied; awaited inputs; more pieces follow */
    bool is_cancelled;   /* the controller disconnected: not reported */
    ranges_t *ranges;    /* owned; NULL: it was granted whole */
} run_t;

/* The pieces of a run: ranges of its steps, until it ends. */
struct ranges {
    run_t *run;
    scratch_t *scratch;   /* NULL: all of it has been applied */
    uint32_t granted_end; /* the next piece begins here */
    uint32_t applied_end; /* all steps before it have been started */
    size_t next, stop;    /* of this worker's steps, those of the last piece */
    TOW_VEC(uint32_t) ends; /* of pieces that have not been reported */
    tow_list_t in_progressed;
    uint32_t progress_end; /* to be reported */
};

typedef enum step_kind {
    STEP_COMPUTE,
    STEP_TRANSFER,
    STEP_HOST,
} step_kind_t;

typedef struct host_run host_run_t;

/* One step of a run, until the driver, the transfer engine or the host function
 * is done with it. */
typedef struct step_run {
    union {
        tow_run_t run;
        tow_transfer_t transfer;
        host_run_t *host; /* owned: host.c */
    };
    step_kind_t kind;
    uint32_t index; /* among the steps of all workers */
    tow_dataflow_t *dataflow;
    run_t *owner;
    tow_list_t in_owner;
    tow_list_t in_aborted;    /* or unlinked */
    tow_list_t in_held;       /* of a transfer that waits for memory */
    tow_status_t abort_cause; /* owned; why its gang must give up */
    union {
        program_t *program;  /* of a transfer or a host function */
        uint64_t late_bytes; /* of a computation: its end returns them */
    };
    union {
        const step_t *step;   /* of a transfer or a host function */
        uint64_t program_key; /* of a computation, if is_alone */
    };
    uint32_t node;
    uint32_t device_set; /* of a computation */
    bool is_alone;       /* nothing else was under way at its start */
    int64_t enqueued_ns; /* if is_alone */
} step_run_t;

/* The grant that is being applied. Only one at a time: a grant that waits for
 * data holds up all later ones, because the common order is what prevents
 * deadlocks between gangs. */
typedef struct applying {
    program_t *program; /* NULL: no grant */
    run_t *run;
    scratch_t *scratch;
    uint64_t first_gang;
    uint64_t last_gang; /* of this grant */
    size_t next;        /* the next step, */
    size_t stop;        /* and the first that is not granted */
    bool is_last;       /* no piece follows */
    /* Inputs of that step that are awaited; all have been requested. */
    uint32_t await_count;
    bool has_asked;
    bool awaits_end; /* of a step of the run, for memory */
    bool is_blocked; /* the owner holds back messages */
    tow_post_t resume;
    bool is_resuming; /* the post is queued */
} applying_t;

struct tow_dataflow {
    tow_dataflow_options_t options;
    applying_t applying;
    int64_t linger_turn_ns; /* the turn that lingered_count counts in */
    uint32_t lingered_count;
    tow_map_t hosts;         /* of counted tow_host_code_t */
    tow_list_t host_runs;    /* of host_run_t */
    tow_list_t host_outputs; /* whose memory a device may still use */
    tow_pool_t await_pool;
    tow_map_t executables; /* of counted tow_executable_t */
    tow_map_t programs;    /* of owned program_t */
    tow_list_t removed;    /* of owned program_t, removed but held */
    tow_map_t runs;        /* of run_t, from the pool */
    tow_pool_t run_pool;
    tow_pool_t step_pool;
    tow_pool_t ranges_pool;
    tow_pool_t kept_pool;
    uint64_t last_gang; /* granted */
    /* Of all runs, as the steps say. The transfer engine has the real number,
     * which is larger while devices are about to free memory. */
    uint64_t late_bytes;
    tow_list_t held_runs; /* of run_t, in the order of their first held step */
    tow_post_t release;
    bool is_releasing; /* the post is queued */
    TOW_VEC(uint64_t) finished;
    TOW_VEC(tow_device_time_t) finished_times; /* as many */
    TOW_VEC(tow_failed_run_t) failures;        /* causes are owned */
    TOW_VEC(tow_run_progress_t) progress;
    tow_list_t progressed; /* of ranges_t, with progress to be reported */
    tow_list_t aborted;    /* aborted steps that are still under way */
    tow_timer_t abort_timer;
    tow_post_t report;
    bool is_reporting;    /* the post is queued */
    tow_status_t donated; /* owned; the error of a consumed object */
    /* The last error of the driver and our annotated form of it: runs that
     * depend on it fail with the same text. Both owned. */
    tow_status_t raw_error;
    tow_status_t reported_error;
    tow_dataflow_stats_t stats;
};

/* Finds the executables and lays out the scratch, once. */
tow_status_t dataflow_bind(tow_dataflow_t *dataflow, program_t *program)
    TOW_MUST_USE;
void dataflow_program_free(program_t *program);
/* Removes it from the tables; frees it when the last hold ends. */
void dataflow_program_remove(tow_dataflow_t *dataflow, program_t *program);
/* Without releasing its executables. */
void dataflow_program_discard(program_t *program);

/* Schedules a report. */
void dataflow_wake(tow_dataflow_t *dataflow);
/* Adds it to the report of this turn; the space is reserved. Takes its cause,
 * which is TOW_OK if it succeeded. */
void dataflow_report(tow_dataflow_t *dataflow, const tow_failed_run_t *ended);
/* The run has failed, and steps of it are under way. */
void dataflow_report_early(tow_dataflow_t *dataflow, const run_t *run);

void dataflow_abort_run(tow_dataflow_t *dataflow, run_t *run,
                        tow_status_t cause);
void dataflow_resend_aborts(tow_timer_t *timer);
/* Ends a hold; the last one frees a removed program. */
void dataflow_program_unhold(program_t *program);

/* -- scratch.c: values of runs ---------------------------------------------- */

/* NULL: all of the run has been applied. */
static inline scratch_t *dataflow_scratch_of(const tow_dataflow_t *dataflow,
                                             const run_t *run)
{
    if (run->ranges != NULL) return run->ranges->scratch;
    return dataflow->applying.run == run ? dataflow->applying.scratch : NULL;
}

static inline tow_buffer_t **dataflow_results(const scratch_t *scratch,
                                              const step_t *step)
{
    return scratch->results + step->first_result;
}
/* The slots of the outputs of all steps. */
void dataflow_place_outputs(scratch_t *scratch, const program_t *program);
/* For a run in pieces. NULL: no memory. */
scratch_t *dataflow_scratch_take(program_t *program, size_t device_count);
/* Holds the arguments that the program's own scratch has found. */
void dataflow_scratch_adopt(scratch_t *scratch, const uint64_t *keys,
                            size_t device_count);
/* A piece begins: finds the arguments in the store again. */
void dataflow_scratch_find(tow_dataflow_t *dataflow, scratch_t *scratch);
/* The step consumes its arguments: the run itself is not another user. */
void dataflow_scratch_unshare(scratch_t *scratch, const step_t *step);
void dataflow_release_shards(slot_t *slot);
static inline void dataflow_release_slot(slot_t *slot)
{
    if (slot->is_owned || slot->is_shared) dataflow_release_shards(slot);
}
/* Nothing more of the run will be started: releases its values, and adds failed
 * objects for its results if it has failed. `next`: the first of its steps that
 * was not started. */
void dataflow_end_values(tow_dataflow_t *dataflow, run_t *run, size_t next);
void dataflow_scratches_free(program_t *program);

/* -- range.c: runs in pieces ------------------------------------------------ */

/* The first piece of a run that is not granted whole. */
tow_status_t dataflow_check_first(const tow_dataflow_t *dataflow,
                                  const program_t *program,
                                  const tow_run_grant_t *grant) TOW_MUST_USE;
/* Gives it values of its own. It has found its arguments in the scratch of its
 * program. After an error the run is gone. */
tow_status_t dataflow_begin_ranges(tow_dataflow_t *dataflow, program_t *program,
                                   run_t *run, const tow_run_grant_t *grant)
    TOW_MUST_USE;
/* A later piece. */
void dataflow_grant_more(tow_dataflow_t *dataflow,
                         const tow_run_grant_t *grant);
/* The steps of a piece have been started. */
void dataflow_range_applied(tow_dataflow_t *dataflow, run_t *run);
/* A step has ended: reports the pieces that have ended with it. */
void dataflow_range_progress(tow_dataflow_t *dataflow, run_t *run);
void dataflow_ranges_free(tow_dataflow_t *dataflow, run_t *run);
/* Fills `progress`. */
void dataflow_ranges_report(tow_dataflow_t *dataflow);

/* -- grant.c ----------------------------------------------------------------- */

tow_status_t dataflow_too_many_steps(const tow_dataflow_t *dataflow,
                                     uint64_t run) TOW_MUST_USE;
static inline tow_status_t dataflow_check_steps(const tow_dataflow_t *dataflow,
                                                uint64_t run, size_t count)
{
    if (TOW_LIKELY(dataflow->stats.step_count + count <=
                   dataflow->options.step_count_max))
        return TOW_OK;
    return dataflow_too_many_steps(dataflow, run);
}
/* Messages of other workers for gangs up to this one that no transfer has taken
 * are stale. */
static inline void dataflow_granted(tow_dataflow_t *dataflow,
                                    uint64_t last_gang)
{
    if (last_gang > dataflow->last_gang) dataflow->last_gang = last_gang;
    if (dataflow->options.engine != NULL)
        tow_transfer_engine_granted(dataflow->options.engine, last_gang);
}

/* -- run.c ----------------------------------------------------------------- */

/* Fails the run, unless it has failed before: its steps give up. */
void dataflow_fail_run(tow_dataflow_t *dataflow, run_t *run, uint32_t node,
                       tow_status_t take_cause);
/* Prefixes the run's number and the node. */
tow_status_t dataflow_describe(tow_dataflow_t *dataflow, const run_t *run,
                               uint32_t node, tow_status_t take_raw)
    TOW_MUST_USE;
/* Reports the run if nothing of it is under way any more. */
void dataflow_finish_run(tow_dataflow_t *dataflow, run_t *run);
tow_status_t dataflow_start_step(tow_dataflow_t *dataflow, run_t *run,
                                 const step_t *step, uint64_t gang)
    TOW_MUST_USE;
/* Lists and counts a step of a run as under way. */
void dataflow_list_step(tow_dataflow_t *dataflow, step_run_t *step_run);
void dataflow_end_step(step_run_t *step, tow_status_t take_status);
/* Puts the results into the shard store, as values or with the run's error. */
tow_status_t dataflow_put_results(tow_dataflow_t *dataflow, run_t *run)
    TOW_MUST_USE;
void dataflow_put_failed_results(tow_dataflow_t *dataflow,
                                 const scratch_t *scratch,
                                 uint64_t first_result, tow_status_t cause);
/* Zero: no shards here, or no longer. */
static inline uint32_t dataflow_count_shards(const slot_t *slot)
{
    return slot->object != NULL ? slot->object->shard_count : slot->count;
}

/* -- time.c: device time ---------------------------------------------------- */

void dataflow_time_init(tow_dataflow_t *dataflow);
/* Its executables are known. False: no memory. */
bool dataflow_time_bind(const tow_dataflow_t *dataflow, program_t *program);
void dataflow_time_begin(tow_dataflow_t *dataflow, const program_t *program,
                         run_t *run);
/* The computation has ended. */
void dataflow_time_add(step_run_t *step);
/* What was added since the last call. */
tow_device_time_t dataflow_time_take(const tow_dataflow_t *dataflow,
                                     run_t *run);
void dataflow_time_end(tow_dataflow_t *dataflow, run_t *run);

/* -- apply.c: applying a grant --------------------------------------------- */

void dataflow_apply_init(tow_dataflow_t *dataflow);
/* Applies as many steps as possible at once; of a run in pieces, those of the
 * piece that was added last. */
void dataflow_apply_begin(tow_dataflow_t *dataflow, run_t *run,
                          scratch_t *scratch, uint64_t first_gang);
/* An event has happened that a blocked grant may wait for. */
void dataflow_apply_soon(tow_dataflow_t *dataflow);
/* The outputs of the step have buffers. */
void dataflow_outputs_ready(tow_dataflow_t *dataflow, const run_t *run,
                            const step_t *step);

/* -- late.c: memory in the order of use -------------------------------------- */

void dataflow_late_init(tow_dataflow_t *dataflow);
/* Has the computation ended that the late transfer waits for, and is the memory
 * free? */
bool dataflow_has_memory(const tow_dataflow_t *dataflow, const run_t *run,
                         const step_t *step);
/* Have all late transfers been sent that name this computation? */
bool dataflow_has_sent(const run_t *run, const step_t *step);
/* Can transfers wait for memory while later steps start? */
bool dataflow_can_hold(const tow_dataflow_t *dataflow);
/* The transfer, which is under way, waits for memory. */
void dataflow_hold(step_run_t *step);
/* It gets its memory now, or has failed before. */
void dataflow_unhold(step_run_t *step);
static inline bool dataflow_is_held(const step_run_t *step)
{
    return step->kind == STEP_TRANSFER && !tow_list_is_empty(&step->in_held);
}
/* A step of the run has ended: held transfers may begin. */
void dataflow_release_soon(tow_dataflow_t *dataflow);
/* A computation has ended, and with it the use of late memory. */
void dataflow_return_late(tow_dataflow_t *dataflow, uint64_t bytes);
/* The run has failed: computations from `next` on do not return it. */
void dataflow_return_unused(tow_dataflow_t *dataflow, const program_t *program,
                            size_t next);

/* -- host.c: host functions ------------------------------------------------ */

tow_status_t dataflow_host_start(tow_dataflow_t *dataflow, const step_t *step,
                                 step_run_t *step_run) TOW_MUST_USE;
void dataflow_host_abort(step_run_t *step_run, tow_status_t cause);
void dataflow_hosts_discard(tow_dataflow_t *dataflow);

#endif /* TOW_DATAFLOW_DATAFLOW_IMPL_H_ */
