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
    tow_shelf_object_t *object; /* arguments: lent by the shelf */
} slot_t;

/* A lowered step with its executable; a transfer has none. */
typedef struct step {
    const tow_lowered_step_t *lowered;
    tow_executable_t *executable; /* counted */
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
    /* Moves read its routes: it is kept until the last of them has ended. */
    uint32_t move_count;
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
    uint32_t node;      /* where it failed */
    tow_status_t error; /* owned; the first one */
    tow_list_t steps;   /* under way */
    bool is_dropped;    /* the controller is gone: nobody wants to know */
} run_t;

/* One step of a run, until the driver, or the mover, is done with it. */
typedef struct step_run {
    union {
        tow_run_t run;
        tow_move_t move;
    };
    bool is_move;
    tow_dataflow_t *dataflow;
    run_t *owner;
    tow_list_t in_owner;
    tow_list_t in_doomed; /* or alone */
    tow_status_t doom;    /* owned; why its gang shall give up */
    program_t *program;   /* of a move */
    uint32_t node;
    bool is_alone;       /* nothing else was under way when it began */
    int64_t enqueued_ns; /* when alone */
} step_run_t;

struct tow_dataflow {
    tow_dataflow_options_t options;
    tow_map_t executables; /* of counted tow_executable_t */
    tow_map_t programs;    /* of owned program_t */
    tow_list_t removed;    /* of owned program_t, whose moves are under way */
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
/* It is no more, or will be when its last move has ended. */
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

#endif /* TOW_DATAFLOW_DATAFLOW_IMPL_H_ */
