/* Tunable constants of the scheduler. */
#ifndef TOW_SCHED_TUNING_H_
#define TOW_SCHED_TUNING_H_

#include <stdint.h>

/* Device time under way on a device. The queue must outlast a round trip from
 * the worker's report to the next grant, some 60 us where threads are woken; the
 * rest is for passes that are delayed. Too small, and devices idle between
 * grants; too large, and an urgent run waits behind the queue, which cannot be
 * recalled. */
#define TOW_SCHED_RUN_AHEAD_NS UINT64_C(1000000)
/* Pieces under way on a device, however long they take: one that runs, and one
 * behind it. */
#define TOW_SCHED_GANG_COUNT_MIN 2u
/* However short they seem: steps of 2 to 7 us (a scalar add, and a gang of two
 * with an all-reduce) last for a round trip with 30. More than this, and a
 * disconnected worker fails more runs than need be. */
#define TOW_SCHED_GANG_COUNT_MAX 256u

/* A run below WHOLE_NS is granted whole: pieces would cost it more than others
 * gain. A longer one is granted in pieces of about PIECE_NS, two under way at a
 * time, also when it is alone: what is in a device's queue cannot be recalled.
 * So another client waits for about three of them. */
#define TOW_CUT_WHOLE_NS UINT64_C(2000000)
#define TOW_CUT_PIECE_NS UINT64_C(1000000)
/* The same while the duration of a step is not known, as in the first run of a
 * program: steps of 30 us make 2 ms, and 0.5 ms. */
#define TOW_CUT_WHOLE_STEPS 64u
#define TOW_CUT_PIECE_STEPS 16u
/* However short the steps seem: an estimate may be wrong by far. */
#define TOW_CUT_PIECE_STEPS_MAX 1024u

/* Tickets that are granted in part, on all islands. They hold memory, and each
 * has its values on the workers; a new ticket that would be granted in part
 * waits beyond. */
#define TOW_SCHED_PARTLY_MAX 256u

/* How many grants may overtake the head of an island, which reserves its
 * devices, if the policy prefers others: with pieces of 1 ms, 64 ms. */
#define TOW_SCHED_OVERTAKEN_MAX 64u

/* Estimates of device time (estimate.h). A core that the host's scheduler takes
 * away makes a run longer, and nothing makes one shorter: of chains of 16
 * additions on a busy host, half took 4 us on the slowest device, and one in five
 * 20 us or more. So estimates follow the shorter ones: a measurement moves them
 * by 1 / DOWN_DIVISOR of the difference, or by 1 / UP_DIVISOR, where more than
 * twice the estimate counts as twice. One that is shorter by more than
 * FAR_FACTOR, or FAR_COUNT in succession that are longer by that, show that the
 * program itself has changed, or that its first run was slow: estimates move by
 * half of the difference. */
#define TOW_ESTIMATE_DOWN_DIVISOR 8u
#define TOW_ESTIMATE_UP_DIVISOR   32u
#define TOW_ESTIMATE_FAR_FACTOR   4u
#define TOW_ESTIMATE_FAR_COUNT    5u
#define TOW_ESTIMATE_FAR_DIVISOR  2u
/* An hour. A longer run of one program is a stuck one, or a wrong clock. */
#define TOW_ESTIMATE_NS_MAX (UINT64_C(3600) * 1000000000)

#endif /* TOW_SCHED_TUNING_H_ */
