/* The numbers of sessions that someone may want to change. */
#ifndef TOW_SESSION_TUNING_H_
#define TOW_SESSION_TUNING_H_

#include "env/tuning.h"

/* Nothing heard of the peer for so long: it is gone. The promise to users is 3 s
 * from the last sign of life to `gone`; half a second of it is left for a loop
 * that is busy when the time is up. Shorter would mistake a process that is
 * swapped or that forks a large child for a dead one. */
#define TOW_SESSION_LEASE_NS (2500 * TOW_NS_PER_MS)
/* Heartbeats in one lease: one each 500 ms. Three in a row may be late. A
 * heartbeat is 30 bytes and below 1 us at either end, so a controller of 2,048
 * workers spends below 1% of a core on them. */
#define TOW_SESSION_BEATS_PER_LEASE 5
/* A dialler gives up an epoch that has been silent for this part of the lease,
 * and dials anew: a connection may be dead although nobody says so (a lost
 * route, an address that moved), and TCP would wait for 20 s. Two heartbeats
 * are missing then, and as much time is left to come back. */
#define TOW_SESSION_STALLS_PER_LEASE 2
/* From then on each try gets this part of the lease, 500 ms: three tries. A TLS
 * handshake takes three round trips. */
#define TOW_SESSION_TRIES_PER_LEASE 5

/* A timer that fires so late says that our own loop stood still: a controller that
 * was busy for 2 s must not end sessions whose heartbeats wait in its sockets. It
 * looks again after as long a time. */
#define TOW_SESSION_LATE_NS (50 * TOW_NS_PER_MS)

/* What is kept for the peer until it is acknowledged; the next message is FULL.
 * Larger hides a slow peer for longer; smaller than what a round trip to the
 * peer carries would make the sender wait. */
#define TOW_SESSION_KEPT_BYTES_MAX (16u << 20)
/* A blob that arrives. The memory grows with the parts that have come, so this
 * is a bound for a hostile peer, not a cost. */
#define TOW_SESSION_BLOB_BYTES_MAX (1ull << 30)
/* A blob's memory at its first part, and how it grows: doubling. Above 128 KiB
 * glibc moves pages, not bytes. */
#define TOW_SESSION_BLOB_BYTES_FIRST (1u << 20)
/* Sessions of one port, unless its options say otherwise. */
#define TOW_SESSION_COUNT_MAX 4096
/* Links of one port that have not said which session they are for. One more
 * ends the oldest: an honest peer says so at once. */
#define TOW_SESSION_GREETING_COUNT_MAX 256

/* So many bytes or messages, and they are acknowledged. An acknowledgement costs
 * both sides together about 0.5 us, 4 ns for each of 128 messages; until then
 * the sender keeps them, and 128 of 60 bytes (10 KiB) still lie in its L1
 * cache. */
#define TOW_SESSION_ACK_BYTES (256u << 10)
#define TOW_SESSION_ACK_COUNT 128u

/* What is kept lies in one block that doubles from FIRST. A block above KEEP is
 * given back once a heartbeat finds it empty. */
#define TOW_SESSION_RING_BYTES_FIRST (4u << 10)
#define TOW_SESSION_RING_BYTES_KEEP  (64u << 10)

/* To decode one message of the session's own. The largest is a part of a blob,
 * which protobuf-c copies. */
#define TOW_SESSION_ARENA_BYTES_MAX (512u << 10)

/* How far two clocks may drift apart, in parts per million: quartz does 100. An
 * old sample of the offset is worth less by that much, so that a worse but
 * newer one takes its place some day. */
#define TOW_SESSION_DRIFT_PPM 100

#endif /* TOW_SESSION_TUNING_H_ */
