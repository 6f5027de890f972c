/* The numbers of env that someone may want to change: what each one bounds,
 * what was measured, and what happens when it is wrong. Both implementations
 * read the first part, so that a machine meets the same limits in either. */
#ifndef TOW_ENV_TUNING_H_
#define TOW_ENV_TUNING_H_

#define TOW_NS_PER_US 1000ll
#define TOW_NS_PER_MS 1000000ll
#define TOW_NS_PER_S  1000000000ll

/* -- Links, in both worlds ------------------------------------------------ */

/* Bytes that may wait in one link's send queue, headers included. The next
 * message is FULL. Must hold one message of the largest size; larger only
 * hides a slow peer for longer. */
#define TOW_LINK_QUEUE_BYTES_MAX (8u << 20)

/* Delay before dialling again: doubles from MIN to MAX, and the second half of
 * it is random, so that a thousand workers do not come back in one instant. */
#define TOW_DIAL_DELAY_MIN_NS (10 * TOW_NS_PER_MS)
#define TOW_DIAL_DELAY_MAX_NS (5 * TOW_NS_PER_S)
/* An epoch that lasted this long makes the next delay short again. Without it a
 * peer that takes us in and throws us out would be dialled at full speed. */
#define TOW_DIAL_STABLE_NS (1 * TOW_NS_PER_S)

/* -- net: connections ----------------------------------------------------- */

/* From the connect or the accept to the end of the handshake. Loopback takes
 * 1 ms; beyond, three round trips and two signatures. */
#define TOW_NET_HANDSHAKE_NS (5 * TOW_NS_PER_S)
/* How long a closing link waits for the peer to take what is queued and to
 * close its side. */
#define TOW_NET_LINGER_NS (1 * TOW_NS_PER_S)
/* Accepted connections that have not proved themselves. One more ends the
 * oldest: a true peer needs milliseconds, so it is hardly ever the oldest. */
#define TOW_NET_HALF_OPEN_MAX 256
/* Connections taken from one listener in one pass. */
#define TOW_NET_ACCEPT_COUNT_MAX 16
#define TOW_NET_LISTEN_BACKLOG   1024
/* Pause after an accept that failed for want of descriptors or memory. */
#define TOW_NET_ACCEPT_RETRY_NS (100 * TOW_NS_PER_MS)
/* Addresses of one name that one attempt tries. */
#define TOW_NET_RESOLVE_COUNT_MAX 4
/* A host that vanished without a word is noticed by TCP after IDLE + COUNT *
 * INTERVAL, or TIMEOUT after unanswered data. Protocols above beat faster. */
#define TOW_NET_KEEPALIVE_IDLE_S     10
#define TOW_NET_KEEPALIVE_INTERVAL_S 5
#define TOW_NET_KEEPALIVE_COUNT_MAX  3
#define TOW_NET_USER_TIMEOUT_MS      20000
/* Lines about refused or broken connections, so that a port scanner cannot
 * fill a disk: BURST at once, then one each INTERVAL. */
#define TOW_NET_COMPLAINT_BURST       10
#define TOW_NET_COMPLAINT_INTERVAL_NS (1 * TOW_NS_PER_S)

/* -- net: bytes ----------------------------------------------------------- */

/* One read of a socket, and what one link may take in one pass. */
#define TOW_NET_READ_BYTES (64u << 10)
/* A partial frame that misses at least this much is read straight into its own
 * buffer instead of through the shared one. */
#define TOW_NET_DIRECT_READ_BYTES (16u << 10)
/* The buffer of a partial frame is kept between frames up to this size. */
#define TOW_NET_INBOX_KEEP_BYTES (4u << 10)
/* A send queue grows by chunks of this size; a larger message gets a chunk of
 * its own. Also the batch that leaves before the end of the turn. */
#define TOW_NET_CHUNK_BYTES (64u << 10)
/* Free chunks that a net keeps for all its links. */
#define TOW_NET_CHUNK_SPARE_COUNT 16
/* Plain bytes that become one TLS record. */
#define TOW_NET_TLS_RECORD_BYTES (16u << 10)

/* -- net: the loop -------------------------------------------------------- */

/* How long the loop looks again and again after something happened before it
 * sleeps. Waking a sleeper on another core costs 15-60 us, so spinning about
 * as long as that at most doubles the cost of a wrong guess. */
#define TOW_NET_SPIN_NS (50 * TOW_NS_PER_US)
/* A yield that took so long let somebody else run; one of 0.2 us did not. So
 * many in a row, and the loop sleeps instead of spinning for CROWDED_NS. */
#define TOW_NET_LONG_YIELD_NS    (2 * TOW_NS_PER_US)
#define TOW_NET_LONG_YIELD_COUNT 3
#define TOW_NET_CROWDED_NS       (5 * TOW_NS_PER_MS)
/* While the data plane is the busy one, sockets are looked at this often: a
 * look costs 0.3 us, and a round trip of the data plane 0.4 us. */
#define TOW_NET_LOOK_NS (10 * TOW_NS_PER_US)
/* Looks at the data plane between two looks at the clock in the spin. */
#define TOW_NET_BURST_COUNT 16
/* While one socket is the busy one it is read directly; every so many looks
 * the others get theirs through epoll. 8-byte round trip on a Unix socket: 4.9
 * us with 2, 4.5 with 8, 4.3 with 64 (6 us for a bare blocking ping-pong). */
#define TOW_NET_HOT_LOOK_COUNT  16
#define TOW_NET_EVENT_COUNT_MAX 64

#define TOW_NET_HELPER_COUNT_DEFAULT 2
#define TOW_NET_HELPER_COUNT_MAX     64

#endif /* TOW_ENV_TUNING_H_ */
