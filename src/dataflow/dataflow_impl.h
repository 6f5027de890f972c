/* Internals of the executor. */
#ifndef TOW_DATAFLOW_DATAFLOW_IMPL_H_
#define TOW_DATAFLOW_DATAFLOW_IMPL_H_

#include "base/arena.h"
#include "base/list.h"
#include "base/map.h"
#include "base/pool.h"
#include "base/vec.h"
#include "dataflow/dataflow.h"

/* A value while a grant is applied: shard i is shards[i * stride]. */
typedef struct slot {
    tow_buffer_t **shards;
    uint32_t stride;
    uint32_t count; /* 0: no shards here */
    bool is_owned;  /* by the slot: to be released or put into the store */
    bool is_needed; /* arguments: by a step on this worker */
    /* Its size is unknown yet, so it has no buffer: its step is under way. */
    bool is_pending;
    tow_shard_store_object_t *object; /* arguments: lent by the shard store */
} slot_t;

/* A lowered step bound to its executable or host function; a transfer has
 * neither. */
typedef struct step {
    const tow_lowered_step_t *lowered;
    tow_executable_t *executable; /* counted */
    tow_host_code_t *host;        /* counted */
    uint32_t shard_count;         /* of its outputs, on this worker */
    size_t *kept;                 /* in the driver's type */
    size_t *kept_now;             /* scratch: `kept` and shared arguments */
    tow_buffer_t **results;       /* scratch: device by device */
} step_t;

/* A program in the table. A grant is applied in one go, so all intermediate
 * state is the program's scratch and belongs to no run. */
typedef struct program {
    uint64_t key;
    tow_lowered_t *lowered; /* owned */
    bool is_bound;          /* the fields below are set */
    tow_arena_t arena;      /* of the fields below */
    step_t *steps;
    slot_t *slots;
    tow_buffer_t **arguments; /* scratch: of one step, device by device */
    /* Transfers read its routes, host functions and a blocked grant its steps:
     * a removed program is freed when the last of them has ended. */
    uint32_t hold_count;
    bool is_removed;
    tow_list_t in_removed;
    /* Whether it is small enough to run inline; for programs of one step. */
    uint32_t fast_count;
    bool is_slow;
} program_t;

/* A run under way. */
typedef struct run {
    uint64_t key;
    uint64_t program_key;
    uint64_t first_result;
    uint32_t result_count;
    uint32_t node;      /* that failed */
    tow_status_t error; /* owned; the first */
    tow_device_time_t time;
    tow_list_t steps;    /* under way */
    uint32_t hold_count; /* while it is being applied; awaited inputs */
    bool is_cancelled;   /* the controller disconnected: not reported */
} run_t;

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
    tow_dataflow_t *dataflow;
    run_t *owner;
    tow_list_t in_owner;
    tow_list_t in_aborted;    /* or unlinked */
    tow_status_t abort_cause; /* owned; why its gang must give up */
    program_t *program;       /* of a transfer or a host function */
    const step_t *step;       /* the same */
    uint32_t node;
    bool is_alone;       /* nothing else was under way at its start */
    int64_t enqueued_ns; /* if is_alone */
} step_run_t;

/* The grant that is being applied. Only one at a time: a grant that waits for
 * data holds up all later ones, because the common order is what prevents
 * deadlocks between gangs. */
typedef struct applying {
    program_t *program; /* NULL: no grant */
    run_t *run;
    uint64_t first_gang;
    size_t next; /* the next step */
    /* Inputs of that step that are awaited; all have been requested. */
    uint32_t await_count;
    bool has_asked;
    uint32_t pending_count; /* slots without buffers yet */
    bool is_blocked;        /* the owner holds back messages */
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
    TOW_VEC(uint64_t) finished;
    TOW_VEC(tow_device_time_t) finished_times; /* as many */
    TOW_VEC(tow_failed_run_t) failures;        /* causes are owned */
    tow_list_t aborted; /* aborted steps that are still under way */
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

void dataflow_abort_run(tow_dataflow_t *dataflow, run_t *run,
                        tow_status_t cause);
void dataflow_resend_aborts(tow_timer_t *timer);
/* Ends a hold; the last one frees a removed program. */
void dataflow_program_unhold(program_t *program);

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
tow_status_t dataflow_start_step(tow_dataflow_t *dataflow, program_t *program,
                                 const step_t *step, uint64_t gang, run_t *run)
    TOW_MUST_USE;
/* Lists and counts a step of a run as under way. */
void dataflow_list_step(tow_dataflow_t *dataflow, step_run_t *step_run);
void dataflow_end_step(step_run_t *step, tow_status_t take_status);
/* Puts the results into the shard store, as values or with the run's error. */
tow_status_t dataflow_put_results(tow_dataflow_t *dataflow, program_t *program,
                                  run_t *run) TOW_MUST_USE;
void dataflow_put_failed_results(tow_dataflow_t *dataflow,
                                 const program_t *program,
                                 uint64_t first_result, tow_status_t cause);
uint32_t dataflow_count_shards(const slot_t *slot);
void dataflow_release_slots(program_t *program);
/* Messages of other workers for this run that no transfer has taken are
 * stale. */
void dataflow_grant_applied(tow_dataflow_t *dataflow, const program_t *program,
                            uint64_t first_gang);

/* -- apply.c: applying a grant --------------------------------------------- */

void dataflow_apply_init(tow_dataflow_t *dataflow);
/* Applies as many steps as possible at once. */
void dataflow_apply_begin(tow_dataflow_t *dataflow, program_t *program,
                          run_t *run, const tow_run_grant_t *grant);
/* An event has happened that a blocked grant may wait for. */
void dataflow_apply_soon(tow_dataflow_t *dataflow);
/* The outputs of the step have buffers. */
void dataflow_outputs_ready(tow_dataflow_t *dataflow, program_t *program,
                            const step_t *step);

/* -- host.c: host functions ------------------------------------------------ */

tow_status_t dataflow_host_start(tow_dataflow_t *dataflow, program_t *program,
                                 const step_t *step, step_run_t *step_run)
    TOW_MUST_USE;
void dataflow_host_abort(step_run_t *step_run, tow_status_t cause);
void dataflow_hosts_discard(tow_dataflow_t *dataflow);

#endif /* TOW_DATAFLOW_DATAFLOW_IMPL_H_ */
