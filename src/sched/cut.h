/* Cutting a run into pieces. Pure functions.
 *
 * The steps of a run are in one order that all workers share, in which each
 * comes after its inputs, and the two ends of a transfer, or the members of a
 * collective, are one step: so a cut between any two steps divides none of
 * them. */
#ifndef TOW_SCHED_CUT_H_
#define TOW_SCHED_CUT_H_

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* A step that keeps no device busy: a transfer or a collective. */
#define TOW_CUT_NO_PART UINT32_MAX

typedef struct tow_cut {
    const uint32_t
        *parts; /* by step: the part of the ticket with its devices */
    uint32_t step_count;
    size_t part_count;
    /* The estimated device time of a step; 0: unknown. */
    uint64_t step_ns;
    /* For simulation: pieces of at most so many steps, however short; 0: as
     * estimated. */
    uint32_t piece_steps;
} tow_cut_t;

/* Whether it is granted whole: it is short, or has few steps of unknown
 * duration. `busiest_count` is the largest number of steps on one part. */
bool tow_cut_is_whole(const tow_cut_t *cut, uint32_t busiest_count);
/* The device time of a step that a run counts with, if it is granted whole. A
 * run has its room on all its devices until it has ended on all of them, and
 * the longest path through it has `lag_count` steps more than its busiest
 * device. Stages of a pipeline wait for so many runs before them: there must be
 * room for these beside the run-ahead. */
uint64_t tow_cut_counted_ns(const tow_cut_t *cut, uint32_t lag_count,
                            uint64_t run_ahead_ns);
/* The end of the piece that begins at `first`, and its steps by part. Steps that
 * keep no device busy belong to the piece before them, so that their bytes move
 * early. */
uint32_t tow_cut_next(const tow_cut_t *cut, uint32_t first,
                      uint32_t *out_step_counts);

#endif /* TOW_SCHED_CUT_H_ */
