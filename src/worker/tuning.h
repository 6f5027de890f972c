/* Tunable constants of the worker. */
#ifndef TOW_WORKER_TUNING_H_
#define TOW_WORKER_TUNING_H_

#include "env/tuning.h"

/* From the end of a session, when all its state is discarded, to the next dial.
 * Doubles from MIN to MAX until the controller accepts us again; the second
 * half is random, so that a thousand workers do not dial at once. */
#define TOW_WORKER_REDIAL_MIN_NS (20 * TOW_NS_PER_MS)
#define TOW_WORKER_REDIAL_MAX_NS (2 * TOW_NS_PER_S)
/* The same between requests to enrol. The controller decides within a lease
 * whether a silent worker of our host lives, and people wait for us. */
#define TOW_ENROL_RETRY_MIN_NS (20 * TOW_NS_PER_MS)
#define TOW_ENROL_RETRY_MAX_NS (250 * TOW_NS_PER_MS)

/* With more cores than this, small computations run beside the loop and not on
 * it: see TOW_DATAFLOW_LINGER_COUNT. */
#define TOW_WORKER_LINGER_CORES_MAX 2u

/* How often a refused worker logs the reason. */
#define TOW_WORKER_REFUSAL_LOG_NS (30 * TOW_NS_PER_S)

/* To decode one message; the largest is a put with TOW_INLINE_BYTES_MAX, or a
 * release of TOW_BATCH_MAX ranges. A larger one is refused. */
#define TOW_WORKER_ARENA_BYTES_MAX (8u << 20)

/* Messages queued because the session is full: the controller does not read.
 * More end the session. */
#define TOW_WORKER_OUTBOX_BYTES_MAX (64u << 20)
/* Failures in one Done: with messages of 2 KiB it stays below 1 MiB. */
#define TOW_WORKER_FAILURES_PER_DONE 512u

/* Blobs that have arrived and that no message has named yet. */
#define TOW_WORKER_BLOB_COUNT_MAX 1024u
#define TOW_WORKER_BLOB_BYTES_MAX (UINT64_C(4) << 30)
/* Unanswered callbacks to clients, and the bytes of one. */
#define TOW_WORKER_CALL_COUNT_MAX 1024u
#define TOW_WORKER_CALL_BYTES_MAX (UINT64_C(1) << 28)
/* Loads under way. The driver does them one by one. */
#define TOW_WORKER_LOAD_COUNT_MAX 4096u
/* Puts that have not been handed to their devices, and their memory. */
#define TOW_WORKER_PUT_COUNT_MAX 16384u
#define TOW_WORKER_PUT_BYTES_MAX (UINT64_C(1) << 36)
/* Unanswered gets. Their copies in host memory together: gets beyond that wait
 * in order, and a larger one runs alone. */
#define TOW_WORKER_GET_COUNT_MAX 16384u
#define TOW_WORKER_GET_BYTES_MAX (UINT64_C(1) << 30)
/* Lanes kept open without a write under way; the least recently used one is
 * closed. And lanes in all: a transfer may go to every other worker. */
#define TOW_WORKER_LANE_IDLE_MAX  64u
#define TOW_WORKER_LANE_COUNT_MAX 4096u
/* Messages queued for one other worker, because its session is full or not open
 * yet. With more, that worker is disconnected; others are not affected. */
#define TOW_WORKER_PEER_OUTBOX_BYTES_MAX (64u << 20)
/* From a break to the next attempt, while the controller reports the peer as
 * alive. An attempt lasts up to the session's lease. */
#define TOW_WORKER_PEER_REDIAL_NS (200 * TOW_NS_PER_MS)
/* Messages of the controller behind relayed grants that have not arrived yet;
 * and relayed grants ahead of the next one. More end the session. */
#define TOW_WORKER_HELD_BYTES_MAX   (64u << 20)
#define TOW_WORKER_PASSED_COUNT_MAX 65536u
/* How long a relay waits for other workers' reports of a run after the first
 * one; then it sends those it has. */
#define TOW_WORKER_REPORT_BATCH_NS (2 * TOW_NS_PER_MS)
/* Peers. */
#define TOW_WORKER_PEER_COUNT_MAX 65536u
/* Objects that one Release may name. A controller with more sends several. */
#define TOW_WORKER_RELEASE_COUNT_MAX (1u << 22)

/* For devices that use uploaded memory without a copy: see
 * src/device/README.md. */
#define TOW_WORKER_UPLOAD_ALIGNMENT 64u
/* Shards from MIN on are in huge pages, and their memory is cached for the next
 * one: up to MAX bytes, and until none has been freed for NS. One thread that
 * reads 64 MiB from another process does 2.0 GB/s into small pages that were
 * never touched, 3.6 into such huge ones, 5.7 into used ones. */
#define TOW_WORKER_HUGE_PAGE_BYTES             ((size_t)2 << 20)
#define TOW_WORKER_BLOCK_CACHE_BLOCK_BYTES_MIN ((size_t)2 << 20)
#define TOW_WORKER_BLOCK_CACHE_STEP_BYTES      ((size_t)64 << 10)
#define TOW_WORKER_BLOCK_CACHE_BYTES_MAX       ((size_t)256 << 20)
#define TOW_WORKER_BLOCK_CACHE_NS              (1 * TOW_NS_PER_S)
/* From this size on, a get is written directly from the device's memory, where
 * the driver allows borrowing; below, a copy costs less than keeping the
 * memory. */
#define TOW_WORKER_BORROW_BYTES_MIN (256u << 10)

/* Devices whose runs are in a trace, and the last runs of each: as many as the
 * XLA adapter records. 64 bytes each while the trace is written, and about 110
 * in it. */
#define TOW_WORKER_TRACKS_MAX   64u
#define TOW_WORKER_EXECUTED_MAX 4096u

/* By default a worker offers this share of its host's memory for spilled
 * objects: one in SHARE. Each of several workers of a host offers it. */
#define TOW_WORKER_HOST_SHARE 8u

#endif /* TOW_WORKER_TUNING_H_ */
