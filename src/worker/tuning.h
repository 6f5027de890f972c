/* Numbers of the worker that someone may tune. */
#ifndef TOW_WORKER_TUNING_H_
#define TOW_WORKER_TUNING_H_

#include "env/tuning.h"

/* From the end of a session, when all of it has been dropped, to the next dial.
 * Doubles from MIN to MAX until the controller has let us in again; the second
 * half is random, so that a thousand workers do not come back at once. */
#define TOW_WORKER_REDIAL_MIN_NS (20 * TOW_NS_PER_MS)
#define TOW_WORKER_REDIAL_MAX_NS (2 * TOW_NS_PER_S)

/* With more cores than this, small computations run beside the loop and not on it:
 * see TOW_DATAFLOW_LINGER_COUNT. */
#define TOW_WORKER_LINGER_CORES_MAX 2u

/* How often a worker that is not let in logs why. */
#define TOW_WORKER_COMPLAINT_NS (30 * TOW_NS_PER_S)

/* To decode one message; the largest is a put with TOW_INLINE_BYTES_MAX, or a
 * release of TOW_BATCH_MAX ranges. More is refused. */
#define TOW_WORKER_ARENA_BYTES_MAX (8u << 20)

/* Messages that wait because the session is full, which takes a controller that
 * does not read. More ends the session. */
#define TOW_WORKER_OUTBOX_BYTES_MAX (64u << 20)
/* Failures in one Done: with texts of 2 KiB it stays below 1 MiB. */
#define TOW_WORKER_FAILURES_PER_DONE 512u

/* Blobs that have come and that no message has named yet. */
#define TOW_WORKER_BLOB_COUNT_MAX 1024u
#define TOW_WORKER_BLOB_BYTES_MAX (UINT64_C(4) << 30)
/* Calls of functions of clients that were not answered, and the bytes of one. */
#define TOW_WORKER_CALL_COUNT_MAX 1024u
#define TOW_WORKER_CALL_BYTES_MAX (UINT64_C(1) << 28)
/* Loads under way. The driver does one after the other. */
#define TOW_WORKER_LOAD_COUNT_MAX 4096u
/* Puts that have not been handed to their devices, and their memory. */
#define TOW_WORKER_PUT_COUNT_MAX 16384u
#define TOW_WORKER_PUT_BYTES_MAX (UINT64_C(1) << 36)
/* Gets that were asked for and not answered. Their copies on the host together:
 * those beyond wait in order, and a larger one goes alone. */
#define TOW_WORKER_GET_COUNT_MAX 16384u
#define TOW_WORKER_GET_BYTES_MAX (UINT64_C(1) << 30)
/* Lanes that are kept open without a write under way; the one not used for
 * longest goes. And lanes in all: a transfer may go to every other worker. */
#define TOW_WORKER_LANE_KEPT_MAX  64u
#define TOW_WORKER_LANE_COUNT_MAX 4096u
/* Messages that wait for one other worker, because its session is full or does
 * not stand yet. More, and that worker is lost; others are not concerned. */
#define TOW_WORKER_PEER_OUTBOX_BYTES_MAX (64u << 20)
/* From a break to the next attempt, while the controller says that the other
 * lives. An attempt lasts up to the session's lease. */
#define TOW_WORKER_PEER_REDIAL_NS (200 * TOW_NS_PER_MS)
/* What the controller said after grants that come by a relay and are not here
 * yet; and such grants beyond the next one. More ends the session. */
#define TOW_WORKER_HELD_BYTES_MAX   (64u << 20)
#define TOW_WORKER_PASSED_COUNT_MAX 65536u
/* How long a relay waits for others' reports of a run from the first one on, then
 * it sends what it has. */
#define TOW_WORKER_GATHER_NS (2 * TOW_NS_PER_MS)
/* Other workers. */
#define TOW_WORKER_PEER_COUNT_MAX 65536u
/* Objects that one Release may name. A controller with more sends another. */
#define TOW_WORKER_RELEASE_COUNT_MAX (1u << 22)

/* Where devices use uploaded memory as it is: see src/device/README.md. */
#define TOW_WORKER_UPLOAD_ALIGNMENT 64u
/* Shards from MIN on lie in huge pages, and their memory is kept for the next
 * one: up to MAX bytes, and until none has been freed for NS. One
 * thread that reads 64 MiB from another process does 2.0 GB/s into small pages
 * that were never touched, 3.6 into such huge ones, 5.7 into used ones. */
#define TOW_WORKER_HUGE_PAGE_BYTES       ((size_t)2 << 20)
#define TOW_WORKER_STASH_BLOCK_BYTES_MIN ((size_t)2 << 20)
#define TOW_WORKER_STASH_STEP_BYTES      ((size_t)64 << 10)
#define TOW_WORKER_STASH_BYTES_MAX       ((size_t)256 << 20)
#define TOW_WORKER_STASH_NS              (1 * TOW_NS_PER_S)
/* From here on a get is written from the device's memory itself, where the
 * driver lends it; below, a copy costs less than what holding it may. */
#define TOW_WORKER_BORROW_BYTES_MIN (256u << 10)

/* Devices whose runs are in a trace, and the last runs of each that are: as many
 * as the XLA adapter remembers. 64 bytes each while the trace is written, and
 * about 110 in it. */
#define TOW_WORKER_TRACKS_MAX   64u
#define TOW_WORKER_EXECUTED_MAX 4096u

/* A worker that is told nothing else offers this share of its host's memory for
 * spilled objects: one in SHARE. Several workers of one host offer it each. */
#define TOW_WORKER_HOST_SHARE 8u

#endif /* TOW_WORKER_TUNING_H_ */
