/* Numbers of the client that may be tuned. */
#ifndef TOW_CLIENT_TUNING_H_
#define TOW_CLIENT_TUNING_H_

#include "env/tuning.h"

/* Runs that have not been told done; a call beyond waits. The controller ends a
 * session at twice this. */
#define TOW_CLIENT_IN_FLIGHT_MAX 32768u
/* Uploads that have not been answered, all and their bytes; an upload beyond
 * waits, or goes alone if it is larger. A few of 64 MiB keep a lane busy; more
 * would only hold the user's memory, or copies of it. */
#define TOW_CLIENT_UPLOADS_MAX      32768u
#define TOW_CLIENT_UPLOAD_BYTES_MAX (UINT64_C(256) << 20)
/* Of those that travel in messages, which the controller keeps until there is
 * memory for them on the devices. It ends a session at twice this. */
#define TOW_CLIENT_INLINED_BYTES_MAX (UINT64_C(32) << 20)
/* With fewer runs in flight than this a call flushes at once: the workers may be
 * idle. With more they are not, and calls leave together, this many at a time:
 * a system call costs as much as ten calls. */
#define TOW_CLIENT_EAGER_COUNT 4u
#define TOW_CLIENT_BATCH_COUNT 16u
/* Shards of at most so many bytes are kept when they are uploaded, and fetched
 * ahead when their program's results are looked at: losses, counters, norms. */
#define TOW_CLIENT_KEPT_BYTES_MAX 256u
/* Looking at a result earns this credit, up to a bound, and with this much the
 * next ones are fetched ahead; each that nobody looked at costs 1. So one that is
 * looked at every time, or every fourth, is always fetched; after 128 calls in a
 * chain and one look, the next four. One for nothing costs some 5 us of CPU in
 * all processes; one that is missed a round trip. */
#define TOW_CLIENT_AHEAD_CREDIT     4u
#define TOW_CLIENT_AHEAD_CREDIT_MAX 16u
/* On their way, of all runs; a run beyond has its results fetched when wanted. */
#define TOW_CLIENT_AHEAD_COUNT_MAX 1024u
/* Results of one call by a computation: they go through the controller. */
#define TOW_CLIENT_RESULT_BYTES_MAX (UINT64_C(1) << 28)
/* Released handles are told in ranges, this many at a time or after a while. */
#define TOW_CLIENT_RELEASE_COUNT 64u
#define TOW_CLIENT_RELEASE_NS    (1000 * 1000)

/* From the loss of the controller to the first dial; doubles until it has let us
 * in. A supervisor starts it after 100 ms; a busy loop of dials would cost more
 * than the wait. An attempt lasts so long: between two we ask whether the cluster
 * has ended for good. */
#define TOW_CLIENT_REDIAL_MIN_NS      (20 * TOW_NS_PER_MS)
#define TOW_CLIENT_REDIAL_MAX_NS      (1 * TOW_NS_PER_S)
#define TOW_CLIENT_REDIAL_PATIENCE_NS (1 * TOW_NS_PER_S)

/* A local cluster of its own, unless told otherwise. One worker: the devices
 * then share one XLA. */
#define TOW_LOCAL_WORKER_COUNT 1u
#define TOW_LOCAL_DEVICE_COUNT 8u
#define TOW_LOCAL_COUNT_MAX    256u
/* How long a client looks for an answer before it sleeps if all the rest of the
 * cluster is one process, which has a core of its own then, as the client has. A JAX
 * loop that waits for each call on eight devices, two cores: 70 us a call instead
 * of 109, of which 30 went into waking each other. */
#define TOW_LOCAL_JOINT_SPIN_NS (200 * TOW_NS_PER_US)
/* Until it is ready: XLA loads in about a second, from a cold disk in ten. */
#define TOW_LOCAL_START_NS (60 * TOW_NS_PER_S)
/* Until it has ended; it gives its workers half of that to leave. */
#define TOW_LOCAL_STOP_NS (10 * TOW_NS_PER_S)
/* The longest name of a folder that a socket's path has room for. */
#define TOW_LOCAL_FOLDER_MAX 40

#endif /* TOW_CLIENT_TUNING_H_ */
