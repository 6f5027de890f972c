/* Tunable numbers of sessions. */
#ifndef TOW_SESSION_TUNING_H_
#define TOW_SESSION_TUNING_H_

#include "env/tuning.h"

/* A peer that is silent for so long is disconnected. Users are promised 3 s
 * from the last message to `disconnected`; half a second of it is for an event
 * loop that is busy when the lease expires. A shorter lease would disconnect a
 * process that is swapping or forks a large child. */
#define TOW_SESSION_LEASE_NS (2500 * TOW_NS_PER_MS)
/* Heartbeats per lease: one every 500 ms. Three in a row may be late. A
 * heartbeat is 30 bytes and below 1 us at either end, so a controller of 2,048
 * workers spends below 1% of a core on them. */
#define TOW_SESSION_HEARTBEATS_PER_LEASE 5
/* A dialler redials when an epoch has been silent for this part of the lease: a
 * connection may be dead without an error (a lost route, a moved address), and
 * TCP would wait for 20 s. Two heartbeats are missing then, and as much time is
 * left to reconnect. */
#define TOW_SESSION_STALLS_PER_LEASE 2
/* From then on each attempt gets this part of the lease, 500 ms: three
 * attempts. A TLS handshake takes three round trips. */
#define TOW_SESSION_REDIALS_PER_LEASE 5

/* A timer this late means that our own event loop was blocked: a controller
 * that was busy for 2 s must not end sessions whose heartbeats wait in its
 * sockets. The timer is restarted with this delay. */
#define TOW_SESSION_LATE_NS (50 * TOW_NS_PER_MS)

/* Unacknowledged bytes; then sending returns FULL. A larger bound hides a slow
 * peer for longer; one below the bandwidth-delay product makes the sender
 * wait. */
#define TOW_SESSION_RETRANSMIT_BYTES_MAX (16u << 20)
/* An incoming blob. Memory grows with the parts received, so this bounds a
 * hostile peer and costs nothing otherwise. */
#define TOW_SESSION_BLOB_BYTES_MAX (1ull << 30)
/* A blob's memory at its first part, and how it grows: doubling. Above 128 KiB
 * glibc moves pages, not bytes. */
#define TOW_SESSION_BLOB_BYTES_FIRST (1u << 20)
/* Sessions of one port, unless its options say otherwise. */
#define TOW_SESSION_COUNT_MAX 4096
/* Links of one port that have not named their session. One more closes the
 * oldest: an honest peer names it at once. */
#define TOW_SESSION_PENDING_COUNT_MAX 256

/* An acknowledgement is sent after so many bytes or messages. It costs both
 * sides together about 0.5 us, 4 ns for each of 128 messages. Until then the
 * sender retains them, and 128 of 60 bytes (10 KiB) still fit into its L1
 * cache. */
#define TOW_SESSION_ACK_BYTES (256u << 10)
#define TOW_SESSION_ACK_COUNT 128u

/* The retransmit buffer starts with FIRST and doubles. A buffer above KEEP is
 * freed when a heartbeat finds it empty. */
#define TOW_SESSION_RING_BYTES_FIRST (4u << 10)
#define TOW_SESSION_RING_BYTES_KEEP  (64u << 10)

/* To decode one of the session's own messages. The largest is a part of a blob,
 * which protobuf-c copies. */
#define TOW_SESSION_ARENA_BYTES_MAX (512u << 10)

/* Clock drift in parts per million: quartz has 100. The error bound of an old
 * sample grows by that much, so that a newer one replaces it eventually. */
#define TOW_SESSION_DRIFT_PPM 100

#endif /* TOW_SESSION_TUNING_H_ */
