/* Tunable constants of the controller. */
#ifndef TOW_CONTROLLER_TUNING_H_
#define TOW_CONTROLLER_TUNING_H_

#include <stdint.h>

/* Limit of the cache of compiled functions that are not in use. A client that
 * reconnects finds its programs compiled. */
#define TOW_CODE_BYTES_MAX ((uint64_t)1 << 30)
/* Blobs of a worker that no message has named yet: the callbacks that it may
 * have under way, and reports. */
#define TOW_WORKER_BLOBS_MAX 1100u
/* Names of workers that have left, for those that return: the one that left
 * first is forgotten. 200 bytes each. */
#define TOW_PLACES_LEFT_MAX 4096u
/* Limits for each client: far above what JAX needs, far below what would harm
 * the controller. */
#define TOW_CLIENT_SLICES_MAX    4096u
#define TOW_CLIENT_FUNCTIONS_MAX 65536u
#define TOW_CLIENT_PROGRAMS_MAX  65536u
#define TOW_CLIENT_RUNS_MAX      65536u
#define TOW_CLIENT_GETS_MAX      65536u
#define TOW_CLIENT_PUTS_MAX      65536u
#define TOW_CLIENT_PUT_BYTES_MAX ((uint64_t)64 << 20) /* in messages */
#define TOW_CLIENT_BLOBS_MAX     64u
#define TOW_CLIENT_CALLBACKS_MAX 4096u
#define TOW_CLIENT_REPORTS_MAX   64u /* waiting for workers */
/* In one message: a few milliseconds of work. */
#define TOW_CLIENT_RELEASES_MAX 1048576u
/* A worker gets its releases with its next message, because that costs it no
 * extra wake-up; or after this many ranges, or after this delay. Pending
 * releases count as free memory, because they precede any grant. Sent at once,
 * they made a synchronous call 15 us slower on two cores. */
#define TOW_RELEASE_RANGES_MAX 64u
#define TOW_RELEASE_DELAY_NS   1000000
/* The stall watchdog notifies a client when its oldest run was granted NS ago,
 * and each NS again: one message to the client, and one request to each of the
 * run's workers before. It checks every PERIOD_NS, so that a limit of a second
 * is kept to a quarter of one. The others bound the runs of all clients that
 * it examines, the workers that it asks, the waits that it reads, and the
 * devices or workers that it names. */
#define TOW_STALL_NS          1000000000ll
#define TOW_STALL_PERIOD_NS   250000000ll
#define TOW_STALL_RUNS_MAX    256u
#define TOW_STALL_WORKERS_MAX 1024u
#define TOW_STALL_WAITS_MAX   8192u
#define TOW_STALL_NAMES_MAX   4u
/* A worker that does not answer a report within this time is marked silent:
 * people wait for this. A worker that is alive answers in a millisecond; the
 * session detects a dead one in 3 s. Traces, which may be large, have no
 * deadline. */
#define TOW_REPORT_TIMEOUT_NS 250000000ll
/* A run on more workers than MIN is granted through relays, each for FANOUT
 * workers including itself: see relay.c. A message costs a worker about three
 * times what it costs the controller, so a relay for 32 of 64 workers is
 * slower than none. `tow bench scale`, simulated, smallest computation at 512
 * hosts x 4 devices, and the cost of a message in the controller in the same
 * run: 0.67 ms without relays (0.58 us), 0.15 ms with 32 (0.42 us), 0.11 ms
 * with 16 (0.51 us). */
#define TOW_RELAY_WORKERS_MIN 128u
#define TOW_RELAY_FANOUT      16u
/* Arena limit for one decoded message. */
#define TOW_MESSAGE_ARENA_BYTES ((size_t)64 << 20)

#endif /* TOW_CONTROLLER_TUNING_H_ */
