/* Tunable constants of the client. */
#ifndef TOW_CLIENT_TUNING_H_
#define TOW_CLIENT_TUNING_H_

#include "env/tuning.h"

/* Runs under way; a call beyond waits. The controller ends a session at twice
 * this. */
#define TOW_CLIENT_IN_FLIGHT_MAX 32768u
/* Unanswered uploads and their bytes; an upload beyond waits, or goes alone if
 * it is larger than the limit. A few of 64 MiB keep a lane busy; more would
 * only hold the user's memory, or copies of it. */
#define TOW_CLIENT_UPLOADS_MAX      32768u
#define TOW_CLIENT_UPLOAD_BYTES_MAX (UINT64_C(256) << 20)
/* Bytes of uploads that travel in messages, which the controller buffers until
 * there is memory for them on the devices. It ends a session at twice this. */
#define TOW_CLIENT_INLINED_BYTES_MAX (UINT64_C(32) << 20)
/* With fewer runs in flight than EAGER a call flushes at once: the workers may
 * be idle. With more, calls are flushed in batches: a system call costs as
 * much as ten calls. */
#define TOW_CLIENT_EAGER_COUNT 4u
#define TOW_CLIENT_BATCH_COUNT 16u
/* Shards of at most so many bytes are cached when they are uploaded, and
 * prefetched when users read their program's results: losses, counters, norms.
 */
#define TOW_CLIENT_CACHED_BYTES_MAX 256u
/* A read of a result earns CREDIT, up to a limit; with at least this much the
 * result is prefetched with the next runs. Each unread prefetch costs 1. So a
 * result that is read every time, or every fourth, is always prefetched; after
 * 128 calls in a chain and one read, the next four are. An unread prefetch
 * costs about 5 us of CPU in all processes; a missing one costs a round trip.
 */
#define TOW_CLIENT_PREFETCH_CREDIT     4u
#define TOW_CLIENT_PREFETCH_CREDIT_MAX 16u
/* Prefetches under way, of all runs; results of further runs are fetched on
 * demand. */
#define TOW_CLIENT_PREFETCH_COUNT_MAX 1024u
/* Results of one callback: they go through the controller. */
#define TOW_CLIENT_RESULT_BYTES_MAX (UINT64_C(1) << 28)
/* Released handles are sent in ranges, this many at a time or after this
 * delay. */
#define TOW_CLIENT_RELEASE_COUNT 64u
#define TOW_CLIENT_RELEASE_NS    (1000 * 1000)

/* Delay from the disconnection of the controller to the first redial; doubles
 * until the controller accepts. A supervisor restarts it after 100 ms; a busy
 * loop of dials would cost more than the wait. An attempt lasts PATIENCE;
 * before each the monitor says whether the cluster has ended for good. */
#define TOW_CLIENT_REDIAL_MIN_NS      (20 * TOW_NS_PER_MS)
#define TOW_CLIENT_REDIAL_MAX_NS      (1 * TOW_NS_PER_S)
#define TOW_CLIENT_REDIAL_PATIENCE_NS (1 * TOW_NS_PER_S)

/* Size of a local cluster, by default. One worker: its devices share one XLA.
 */
#define TOW_LOCAL_WORKER_COUNT 1u
#define TOW_LOCAL_DEVICE_COUNT 8u
#define TOW_LOCAL_COUNT_MAX    256u
/* How long a client polls for an answer before it sleeps, if the rest of the
 * cluster is one process: each of the two then has a core. A synchronous JAX
 * loop on eight devices, two cores: 70 us a call instead of 109, of which 30
 * went into wake-ups. */
#define TOW_LOCAL_JOINT_SPIN_NS (200 * TOW_NS_PER_US)
/* Timeout for its start: XLA loads in about a second, from a cold disk in ten.
 */
#define TOW_LOCAL_START_NS (60 * TOW_NS_PER_S)
/* Timeout for its end; it gives its workers half of that. */
#define TOW_LOCAL_STOP_NS (10 * TOW_NS_PER_S)
/* The longest folder name that fits in a socket's path. */
#define TOW_LOCAL_FOLDER_MAX 40

#endif /* TOW_CLIENT_TUNING_H_ */
