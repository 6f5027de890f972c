/* Pieces: a long run is granted in ranges of its steps. */
#ifndef TOW_CONTROLLER_PIECE_IMPL_H_
#define TOW_CONTROLLER_PIECE_IMPL_H_

#include "controller/types_impl.h"
#include "sched/sched.h"

/* A piece under way; of a run that is granted whole, the whole run. */
typedef struct tow_ctl_piece {
    uint32_t first; /* steps */
    uint32_t end;
    uint64_t first_gang;         /* of step 0, if it had that step */
    uint32_t reporting_count;    /* workers that have not reported it */
    uint64_t longest_ns;         /* that it kept a device, as reported so far */
    const uint32_t *step_counts; /* lent, by part; NULL: the whole run */
    /* Owned: by worker of the program, the sequence numbers of grants through
     * relays, 0: direct; NULL: no relays. */
    uint64_t *numbers;
} tow_ctl_piece_t;

/* What a run that is granted in pieces has in addition. */
struct tow_ctl_pieces {
    tow_ctl_piece_t under_way[TOW_SCHED_PIECES_MAX]; /* oldest first */
    uint32_t under_way_count;
    uint32_t next_first; /* the piece that is granted next */
    uint32_t next_end;
    uint32_t next_slot; /* of step_counts */
    uint32_t *progress; /* owned: by worker: all steps before have ended */
    /* By slot and part: of the pieces under way and of the next one. */
    uint32_t step_counts[];
};

/* Before a look at the ticket of a run that is not granted: decides whether it
 * is granted whole, and estimates its next piece. */
void tow_ctl_pieces_prepare(tow_ctl_run_t *run);
/* Whether it uses results of a run that is granted in part, or destroys
 * something that such a run uses. */
bool tow_ctl_pieces_hold(const tow_ctl_unit_t *unit);
/* The next piece of the run is granted. */
tow_ctl_piece_t *tow_ctl_pieces_take(tow_ctl_run_t *run);
/* Whether pieces are left to be granted. */
bool tow_ctl_pieces_remain(const tow_ctl_run_t *run);
/* A worker has ended all steps before `end`; the steps since its last report
 * kept a device for longest_ns. Harmless if it says nonsense. */
void tow_ctl_pieces_progress(tow_ctl_run_t *run, size_t index, uint32_t end,
                             uint64_t longest_ns);
/* A worker has ended all steps. INTERNAL: not all are granted yet. */
tow_status_t tow_ctl_pieces_reported(tow_ctl_run_t *run, size_t index)
    TOW_MUST_USE;
/* So many steps, one after the other, kept a device for that long. */
void tow_ctl_program_measured(tow_ctl_program_t *program, uint32_t step_count,
                              uint64_t longest_ns);
/* The run is granted in part from now on, or no longer. */
void tow_ctl_pieces_mark(tow_ctl_run_t *run, bool is_partly);
/* The oldest one under way; an empty one if none is. */
const tow_ctl_piece_t *tow_ctl_pieces_oldest(const tow_ctl_run_t *run);
/* The piece under way that ends there, or NULL. */
tow_ctl_piece_t *tow_ctl_pieces_find(tow_ctl_run_t *run, uint32_t end);
void tow_ctl_pieces_free(tow_ctl_run_t *run);

#endif /* TOW_CONTROLLER_PIECE_IMPL_H_ */
