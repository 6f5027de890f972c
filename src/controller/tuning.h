/* Numbers of the controller that may be tuned. */
#ifndef TOW_CONTROLLER_TUNING_H_
#define TOW_CONTROLLER_TUNING_H_

#include <stdint.h>

/* Compiled functions that nobody uses now are kept up to this: a client that
 * comes again finds its programs compiled. */
#define TOW_CODE_BYTES_MAX ((uint64_t)1 << 30)
/* Blobs of a worker that no message has named yet: as many calls of clients'
 * functions as it may have under way, and reports. */
#define TOW_WORKER_BLOBS_MAX 1100u
/* Of one client, each: far above what JAX holds, far below what would hurt. */
#define TOW_CLIENT_SLICES_MAX    4096u
#define TOW_CLIENT_FUNCTIONS_MAX 65536u
#define TOW_CLIENT_PROGRAMS_MAX  65536u
#define TOW_CLIENT_RUNS_MAX      65536u
#define TOW_CLIENT_GETS_MAX      65536u
#define TOW_CLIENT_PUTS_MAX      65536u
#define TOW_CLIENT_PUT_BYTES_MAX ((uint64_t)64 << 20) /* in messages */
#define TOW_CLIENT_BLOBS_MAX     64u
#define TOW_CLIENT_CALLBACKS_MAX 4096u
#define TOW_CLIENT_REPORTS_MAX   64u /* that are gathered */
/* In one message: a loop of a few milliseconds. */
#define TOW_CLIENT_RELEASES_MAX 1048576u
/* A worker is told what to release with the next message that it gets, for that
 * costs it no wake-up of its own; or when there are so many ranges, or after so
 * long. What waits counts as free, for it is told before any grant. Told at
 * once, a call that is waited for took 15 us longer on two cores. */
#define TOW_RELEASE_RANGES_MAX 64u
#define TOW_RELEASE_DELAY_NS   1000000
/* A client is told of its oldest run when that has been granted for so long, and
 * again each time as much has passed: one message, and one question to each of its
 * workers before. Looked for more often, so that limits of a second are kept to a
 * quarter of one. So many runs of all clients are looked at, so many workers are
 * asked and waits listened to, and so many devices or workers are named. */
#define TOW_LATE_NS        1000000000ll
#define TOW_LATE_LOOK_NS   250000000ll
#define TOW_LATE_LOOK_MAX  256u
#define TOW_LATE_ASK_MAX   1024u
#define TOW_LATE_WAITS_MAX 8192u
#define TOW_LATE_NAMES_MAX 4u
/* A worker that has not said for so long what it does is told of as one that does
 * not answer: people wait for this. One that is alive answers in a millisecond;
 * one that is dead is noticed by its session, in 3 s. Traces, which may be large,
 * are waited for. */
#define TOW_REPORT_PATIENCE_NS 250000000ll
/* A run on more workers than MIN is granted through relays, each for FANOUT with
 * itself: see relay.c. A message costs a worker about three times what it costs
 * the controller, so a relay for 32 of 64 workers is slower than none. `tow bench
 * scale`, simulated, smallest computation at 512 hosts x 4 devices, and what a
 * message cost the controller in the same run: 0.67 ms without relays (0.58 us),
 * 0.15 ms with 32 (0.42 us), 0.11 ms with 16 (0.51 us). */
#define TOW_RELAY_WORKERS_MIN 128u
#define TOW_RELAY_FANOUT      16u
/* The largest message that is decoded takes this much of the arena. */
#define TOW_MESSAGE_ARENA_BYTES ((size_t)64 << 20)

#endif /* TOW_CONTROLLER_TUNING_H_ */
