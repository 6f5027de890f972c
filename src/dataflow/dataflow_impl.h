/* The insides of the executor. */
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
    bool is_owned;  /* by the slot: to be released or put on the shelf */
    bool is_needed; /* arguments: by a step of ours */
    /* Its size is not known yet, so there is no buffer: its step is under way. */
    bool is_pending;
    tow_shelf_object_t *object; /* arguments: lent by the shelf */
} slot_t;

/* A lowered step with its executable or host function; a transfer has none. */
typedef struct step {
    const tow_lowered_step_t *lowered;
    tow_executable_t *executable; /* counted */
    tow_host_code_t *host;        /* counted */
    uint32_t shard_count;         /* of its outputs, here */
    size_t *kept;                 /* as the driver wants them */
    size_t *kept_now;             /* scratch: these and shared arguments */
    tow_buffer_t **results;       /* scratch: device by device */
} step_t;

/* A program as it is kept. A grant is applied in one go, so all that it needs
 * in between is the program's scratch and belongs to no run. */
typedef struct program {
    uint64_t key;
    tow_lowered_t *lowered; /* owned */
    bool is_bound;          /* what follows is there */
    tow_arena_t arena;      /* of what follows */
    step_t *steps;
    slot_t *slots;
    tow_buffer_t **arguments; /* scratch: of one step, device by device */
    /* Moves read its routes, host functions and a grant that waits its steps: it
     * is kept until the last of them has ended. */
    uint32_t hold_count;
    bool is_removed;
    tow_list_t in_removed;
    /* How small it is; for programs of one step. */
    uint32_t fast_count;
    bool is_slow;
} program_t;

/* A run under way. */
typedef struct run {
    uint64_t key;
    uint64_t program_key;
    uint64_t first_result;
    uint32_t result_count;
    uint32_t node;       /* where it failed */
    tow_status_t error;  /* owned; the first one */
    tow_list_t steps;    /* under way */
    uint32_t hold_count; /* it is being applied; inputs that it waits for */
    bool is_dropped;     /* the controller is gone: nobody wants to know */
} run_t;

typedef enum step_kind {
    STEP_COMPUTE,
    STEP_MOVE,
    STEP_HOST,
} step_kind_t;

typedef struct host_run host_run_t;

/* One step of a run, until the driver, the mover, or the host is done with it. */
typedef struct step_run {
    union {
        tow_run_t run;
        tow_move_t move;
        host_run_t *host; /* owned: host.c */
    };
    step_kind_t kind;
    tow_dataflow_t *dataflow;
    run_t *owner;
    tow_list_t in_owner;
    tow_list_t in_doomed; /* or alone */
    tow_status_t doom;    /* owned; why its gang shall give up */
    program_t *program;   /* of a move or a host function */
    const step_t *step;   /* the same */
    uint32_t node;
    bool is_alone;       /* nothing else was under way when it began */
    int64_t enqueued_ns; /* when alone */
} step_run_t;

/* A grant that is being applied. Only one at a time: whoever waits for its data
 * holds up all that comes after it, for order is what keeps gangs apart. */
typedef struct walk {
    program_t *program; /* NULL: there is none */
    run_t *run;
    uint64_t first_gang;
    size_t next; /* step */
    /* Inputs of that step that are awaited; all have been asked for. */
    uint32_t await_count;
    bool has_asked;
    uint32_t pending_count; /* slots whose buffers are still to come */
    bool is_blocked;        /* the owner holds back what comes */
    tow_post_t resume;
    bool is_resuming; /* the post is on its way */
} walk_t;

struct tow_dataflow {
    tow_dataflow_options_t options;
    walk_t walk;
    int64_t linger_turn_ns; /* the turn that lingered_count is of */
    uint32_t lingered_count;
    tow_map_t hosts;         /* of counted tow_host_code_t */
    tow_list_t host_runs;    /* of host_run_t */
    tow_list_t host_outputs; /* of those whose memory a device may use */
    tow_pool_t await_pool;
    tow_map_t executables; /* of counted tow_executable_t */
    tow_map_t programs;    /* of owned program_t */
    tow_list_t removed;    /* of owned program_t that are held */
    tow_map_t runs;        /* of run_t, from the pool */
    tow_pool_t run_pool;
    tow_pool_t step_pool;
    TOW_VEC(uint64_t) finished;
    TOW_VEC(tow_failed_run_t) failures; /* causes are owned */
    tow_list_t doomed; /* steps that were aborted and are still under way */
    tow_timer_t doom_timer;
    tow_post_t report;
    bool is_reporting;    /* the post is on its way */
    tow_status_t donated; /* owned; what a consumed object says */
    /* The last error of the driver's and what we made of it: what depends on it
     * fails with the same. Both owned. */
    tow_status_t raw_error;
    tow_status_t told_error;
    tow_dataflow_stats_t stats;
};

/* Finds the executables and lays out the scratch, once. */
tow_status_t dataflow_bind(tow_dataflow_t *dataflow, program_t *program)
    TOW_MUST_USE;
void dataflow_program_free(program_t *program);
/* It is no more, or will be when nobody holds it. */
void dataflow_program_remove(tow_dataflow_t *dataflow, program_t *program);
/* Without releasing its executables. */
void dataflow_program_forget(program_t *program);

/* A report follows. */
void dataflow_wake(tow_dataflow_t *dataflow);
/* Remembers it for the report of this turn; there is room. */
void dataflow_report(tow_dataflow_t *dataflow, uint64_t run, uint32_t node,
                     tow_status_t take_cause);

void dataflow_abort_run(tow_dataflow_t *dataflow, run_t *run,
                        tow_status_t cause);
void dataflow_tell_doomed(tow_timer_t *timer);
/* Frees one that was removed, with the last. */
void dataflow_program_unhold(program_t *program);

/* -- run.c ------------------------------------------------------------------------ */

/* The run fails, if it has not before: its steps give up. */
void dataflow_fail_run(tow_dataflow_t *dataflow, run_t *run, uint32_t node,
                       tow_status_t take_cause);
/* With the run's number and the node before it. */
tow_status_t dataflow_tell(tow_dataflow_t *dataflow, const run_t *run,
                           uint32_t node, tow_status_t take_raw) TOW_MUST_USE;
/* Nothing of it is under way any more? Then it is reported. */
void dataflow_finish_run(tow_dataflow_t *dataflow, run_t *run);
tow_status_t dataflow_start_step(tow_dataflow_t *dataflow, program_t *program,
                                 const step_t *step, uint64_t gang, run_t *run)
    TOW_MUST_USE;
/* A step of a run is under way: it is listed and counted. */
void dataflow_list_step(tow_dataflow_t *dataflow, step_run_t *step_run);
void dataflow_end_step(step_run_t *step, tow_status_t take_status);
/* Results on the shelf, as values or with the run's error. */
tow_status_t dataflow_put_results(tow_dataflow_t *dataflow, program_t *program,
                                  run_t *run) TOW_MUST_USE;
void dataflow_put_failed_results(tow_dataflow_t *dataflow,
                                 const program_t *program,
                                 uint64_t first_result, tow_status_t cause);
uint32_t dataflow_count_shards(const slot_t *slot);
void dataflow_release_slots(program_t *program);
/* What other workers sent for this run and none of our moves took is stale. */
void dataflow_tell_mover(tow_dataflow_t *dataflow, const program_t *program,
                         uint64_t first_gang);

/* -- walk.c: applying a grant ------------------------------------------------------ */

void dataflow_walk_init(tow_dataflow_t *dataflow);
/* As far as it goes at once. */
void dataflow_walk_begin(tow_dataflow_t *dataflow, program_t *program,
                         run_t *run, const tow_run_grant_t *grant);
/* Something that the walk may wait for has happened. */
void dataflow_walk_soon(tow_dataflow_t *dataflow);
/* Outputs of the step are there. */
void dataflow_outputs_ready(tow_dataflow_t *dataflow, program_t *program,
                            const step_t *step);

/* -- host.c: host functions --------------------------------------------------------- */

tow_status_t dataflow_host_start(tow_dataflow_t *dataflow, program_t *program,
                                 const step_t *step, step_run_t *step_run)
    TOW_MUST_USE;
void dataflow_host_abort(step_run_t *step_run, tow_status_t cause);
void dataflow_hosts_forget(tow_dataflow_t *dataflow);

#endif /* TOW_DATAFLOW_DATAFLOW_IMPL_H_ */
