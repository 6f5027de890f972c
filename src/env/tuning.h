/* Tunable constants of env: what each one bounds, what was measured, and what
 * happens when it is wrong. Both implementations use the first part, so that a
 * state machine meets the same limits in either. */
#ifndef TOW_ENV_TUNING_H_
#define TOW_ENV_TUNING_H_

#define TOW_NS_PER_US 1000ll
#define TOW_NS_PER_MS 1000000ll
#define TOW_NS_PER_S  1000000000ll

/* -- Links, in both implementations --------------------------------------- */

/* Bytes that one link's send queue may hold, headers included; beyond it a send
 * returns FULL. Must hold one message of the maximal size; a larger bound only
 * hides a slow peer for longer. */
#define TOW_LINK_QUEUE_BYTES_MAX (8u << 20)

/* Delay before redialling: doubles from MIN to MAX, and its second half is
 * random, so that a thousand workers do not reconnect at the same instant. */
#define TOW_DIAL_DELAY_MIN_NS (10 * TOW_NS_PER_MS)
#define TOW_DIAL_DELAY_MAX_NS (5 * TOW_NS_PER_S)
/* An epoch that lasted this long resets the delay. Without this bound, a peer
 * that accepts and immediately disconnects would be redialled at full speed. */
#define TOW_DIAL_STABLE_NS (1 * TOW_NS_PER_S)

/* -- net: connections ----------------------------------------------------- */

/* Timeout from the connect or the accept to the end of the handshake. Loopback
 * takes 1 ms; a remote peer, three round trips and two signatures. */
#define TOW_NET_HANDSHAKE_NS (5 * TOW_NS_PER_S)
/* How long a closing link waits for the peer to receive the queued messages and
 * to close its side. */
#define TOW_NET_LINGER_NS (1 * TOW_NS_PER_S)
/* An exiting process closes its sockets a little before its pidfd becomes
 * readable: 0.1 ms, a few more on a busy machine. For this long `down` is
 * delayed on a connection within the host, to report both at once. */
#define TOW_NET_EXIT_WAIT_NS (50 * TOW_NS_PER_MS)
/* Accepted connections that have not authenticated. One more closes the oldest:
 * a genuine peer needs milliseconds, so it is hardly ever the oldest. */
#define TOW_NET_HALF_OPEN_MAX 256
/* Connections accepted from one listener in one pass. */
#define TOW_NET_ACCEPT_COUNT_MAX 16
#define TOW_NET_LISTEN_BACKLOG   1024
/* Pause after an accept that failed for lack of descriptors or memory. */
#define TOW_NET_ACCEPT_RETRY_NS (100 * TOW_NS_PER_MS)
/* Addresses of one host name that one attempt tries. */
#define TOW_NET_RESOLVE_COUNT_MAX 4
/* TCP detects a host that disappeared after IDLE + COUNT * INTERVAL, or TIMEOUT
 * after unacknowledged data. Heartbeats of the protocols above are faster. */
#define TOW_NET_KEEPALIVE_IDLE_S     10
#define TOW_NET_KEEPALIVE_INTERVAL_S 5
#define TOW_NET_KEEPALIVE_COUNT_MAX  3
#define TOW_NET_USER_TIMEOUT_MS      20000
/* Log lines about rejected or broken connections, so that a port scanner cannot
 * fill a disk: BURST at once, then one per INTERVAL. */
#define TOW_NET_LOG_BURST       10
#define TOW_NET_LOG_INTERVAL_NS (1 * TOW_NS_PER_S)

/* -- net: buffers --------------------------------------------------------- */

/* One read of a socket, and the bytes that one link reads per pass. */
#define TOW_NET_READ_BYTES (64u << 10)
/* A partial frame that misses at least this much is read directly into its own
 * buffer instead of through the shared one. */
#define TOW_NET_DIRECT_READ_BYTES     (16u << 10)
#define TOW_NET_DIRECT_READ_BYTES_MAX (256u << 10)
/* The buffer of a partial frame is kept for the next frame up to this size. */
#define TOW_NET_INBOX_KEEP_BYTES (4u << 10)
/* A send queue grows by chunks of this size; a larger message gets a chunk of
 * its own. Also the batch that is sent before the end of the turn. */
#define TOW_NET_CHUNK_BYTES (64u << 10)
/* Free chunks that a net keeps for all its links. */
#define TOW_NET_CHUNK_SPARE_COUNT 16
/* Plaintext bytes per TLS record. */
#define TOW_NET_TLS_RECORD_BYTES (16u << 10)

/* -- net: the event loop -------------------------------------------------- */

/* How long the loop polls after the last activity before it sleeps. Waking a
 * sleeping thread on another core costs 15-60 us, so spinning about as long at
 * most doubles the cost of a wrong guess. */
#define TOW_NET_SPIN_NS (50 * TOW_NS_PER_US)
/* The same for workers, each of which has a share of the cores: while a client
 * waits for each call, a worker is idle between two calls for as long as a call
 * takes, and one that sleeps then adds a wakeup to every call. Eight devices in
 * two workers on two cores: 12,500 calls per second instead of 9,500. Also for
 * a controller on a host with more cores than workers: a JAX loop that waits
 * for each call on eight devices of one worker, two cores, takes 132 us per
 * call instead of 166; but 157 instead of 142 with two workers, whose cores the
 * controller then takes. */
#define TOW_NET_WORKER_SPIN_NS (200 * TOW_NS_PER_US)
/* A client with fewer cores than this does not spin while it waits, unless its
 * options say so: the controller and the workers need the cores. One device on
 * two cores: 20,700 calls per second instead of 16,100. */
#define TOW_LOCKED_NET_SPIN_CORES_MIN 4
/* After this many consecutive spins without an event the next one is skipped,
 * and after each further one the next 3, 7, and so on up to MAX; a successful
 * spin resets that. A client whose calls took 80 us lost a third of its
 * throughput to its own spin of 50 us, on the core that the controller was
 * waiting for. */
#define TOW_NET_VAIN_SPIN_COUNT  4
#define TOW_NET_SKIPPED_SPIN_MAX 63
/* How often the progress thread of a locked net drives it while no thread is
 * inside and no callback is expected: the longest delay of unflushed messages.
 * It costs an idle process 5 us each time, 0.25% of a core. */
#define TOW_LOCKED_NET_TICK_NS (2 * TOW_NS_PER_MS)
/* A yield that took this long let another thread run; one of 0.2 us did not.
 * After COUNT of them in a row the loop sleeps instead of spinning, for
 * CROWDED_NS. */
#define TOW_NET_LONG_YIELD_NS    (2 * TOW_NS_PER_US)
#define TOW_NET_LONG_YIELD_COUNT 3
#define TOW_NET_CROWDED_NS       (5 * TOW_NS_PER_MS)
/* A yield that took this long gave away a whole time slice, to a thread with
 * much to do: one is enough, and for longer, since the next one costs as
 * much. */
#define TOW_NET_LOST_YIELD_NS (200 * TOW_NS_PER_US)
#define TOW_NET_LOST_NS       (50 * TOW_NS_PER_MS)
/* Even then the loop spins this long on the data plane: a round trip to a
 * running peer takes 0.8 us, and a sleep would make it 8. */
#define TOW_NET_CROWDED_SPIN_NS (3 * TOW_NS_PER_US)
/* While the data plane or one socket is busy, the other sources are polled this
 * often. A poll costs 0.1 to 0.3 us, a round trip 0.4 us on the data plane and
 * 4.3 us on a Unix socket. */
#define TOW_NET_LOOK_NS (10 * TOW_NS_PER_US)
/* Polls of the data plane between two reads of the clock in the spin. */
#define TOW_NET_BURST_COUNT     16
#define TOW_NET_EVENT_COUNT_MAX 64

#define TOW_NET_HELPER_COUNT_DEFAULT 2
#define TOW_NET_HELPER_COUNT_MAX     64

/* -- net: the data plane -------------------------------------------------- */

/* Bytes of datagrams of one lane that UCX has accepted and not yet sent; beyond
 * it a send returns FULL. Each counts its size and COST, about the bookkeeping
 * of ours and of UCX, so that small ones are bounded too. */
#define TOW_NET_LANE_DATAGRAM_BYTES_MAX (1u << 20)
#define TOW_NET_LANE_DATAGRAM_COST      512u
/* Pending writes of one lane. They cost their bookkeeping only: the bytes stay
 * in the caller's memory. */
#define TOW_NET_LANE_WRITE_COUNT_MAX 1024
/* Writes of more than one fragment that are sent concurrently on one lane; the
 * others wait. Writes of one fragment are sent immediately. Also the number of
 * partial writes that a target tracks per inbound lane, at 72 bytes each. */
#define TOW_NET_LANE_LARGE_COUNT_MAX 16
/* Size of a fragment: a slot of a ring in shared memory (see net/data/ring.h),
 * one segment of UCX over TCP. Two processes, GB/s, 64 MiB per write, two at a
 * time, on shared memory with a ring of 1 MiB: 8.0 with 16 KiB, 8.5 with 32,
 * 8.9 with 64, 8.8 with 128. TCP on loopback, one at a time: 4.3 with 32 KiB,
 * 6.2 with 60, 6.0 with 240, which is faster under load. */
#define TOW_NET_FRAGMENT_SHM_BYTES (64u << 10)
#define TOW_NET_FRAGMENT_TCP_BYTES (240u << 10)
/* A fragment on a trunk: encrypted in one go, 60 us. */
#define TOW_NET_FRAGMENT_TRUNK_BYTES (256u << 10)
/* Bytes that wait for the socket of a trunk, beyond which it takes no more
 * messages; and from how many on they are sent before the end of the pass, so
 * that the kernel works while we encrypt. */
#define TOW_NET_TRUNK_QUEUE_BYTES (256u << 10)
#define TOW_NET_TRUNK_BATCH_BYTES (64u << 10)
/* Subflows: the extra connections of a trunk, in each direction, whose bytes
 * other threads encrypt and decrypt. One core encrypts or decrypts 1.1 GB/s. By
 * default there is one for CORES_PER cores that the process may use, up to
 * DEFAULT_MAX; with fewer than CORES_MIN cores none, since the threads would
 * only compete with the loop: on two cores, which two hosts share, 64 MiB go
 * over two subflows no faster than over the trunk (docs/performance.md). MAX
 * bounds the option. */
#define TOW_NET_SUBFLOW_CORES_MIN   3
#define TOW_NET_SUBFLOW_CORES_PER   2
#define TOW_NET_SUBFLOW_DEFAULT_MAX 4
#define TOW_NET_SUBFLOW_COUNT_MAX   16
/* A write of at least this size is striped over the subflows. Handing it over
 * costs two changes of thread on each side, 0.1 ms; encrypting 1 MiB on the
 * loop 0.9. */
#define TOW_NET_STRIPED_BYTES_MIN (1u << 20)
/* Striped writes of one lane that the target has not answered; further ones
 * wait. Below TOW_NET_LANE_WINDOW, so that small writes pass. Also the number
 * that a target tracks per inbound lane. */
#define TOW_NET_LANE_STRIPED_COUNT_MAX 8u
/* How long a thread waits for the socket of its subflow before it returns it to
 * the loop: as long as a peer that stalls may keep it, and a close may wait for
 * it. Shorter than this, each full socket would cost a change of thread. */
#define TOW_NET_SUBFLOW_WAIT_MS 2
/* After so many bytes, 8 ms, or waits that end after so long, another subflow
 * gets the thread, and another write the subflow: a peer that sends a byte now
 * and then does not keep a thread either. A turn costs 0.1 ms. */
#define TOW_NET_SUBFLOW_TURN_BYTES (8u << 20)
#define TOW_NET_SUBFLOW_TURN_NS    (20 * TOW_NS_PER_MS)
/* Bytes between two looks at whether the region is closing. */
#define TOW_NET_SUBFLOW_READ_BYTES (64u << 10)
/* Bytes that one trunk reads from its socket per pass. */
#define TOW_NET_TRUNK_READ_BYTES (512u << 10)
/* How long a lane may take to open, from the first packet to the target's
 * answer. Longer than the lease of a session (2.5 s): a frozen process is
 * reported as such by its session. */
#define TOW_NET_LANE_OPEN_NS (3 * TOW_NS_PER_S)
/* Bytes on a trunk that stay unacknowledged for this long break it: TCP would
 * retransmit for minutes. As long as the lease of a session. */
#define TOW_NET_TRUNK_TIMEOUT_MS 2500
/* After this long without a lane, the side that dialled a trunk proposes its
 * end. */
#define TOW_NET_TRUNK_IDLE_NS (30 * TOW_NS_PER_S)
/* Trunks of one data plane; one more is refused. */
#define TOW_NET_TRUNK_COUNT_MAX 16384
/* Slots of a ring: 1 MiB for each lane that writes. Fewer than the 64 entries
 * of a process's receive queue in UCX. */
#define TOW_NET_RING_SLOT_COUNT 16
/* Up to this many bytes are sent inside the message: it stays below the 93
 * bytes that UCX sends on its short-message path. */
#define TOW_NET_FRAGMENT_INLINE_BYTES 16u
/* Without a ring, when shared memory is unavailable: the size of UCX's own
 * segments, and how many of them may be pending, since UCX would queue without
 * bound. */
#define TOW_NET_FRAGMENT_DIRECT_BYTES (7u << 10)
#define TOW_NET_LANE_WINDOW           16
/* Fragments that one lane sends before the next lane, and all lanes together
 * before the loop polls other sources: 4 MiB on shared memory, about 400 us. */
#define TOW_NET_PUMP_LANE_COUNT  16
#define TOW_NET_PUMP_TOTAL_COUNT 64
/* Fragments that one on a trunk counts for: 2 MiB before the loop polls other
 * sources, about 2 ms. */
#define TOW_NET_PUMP_TRUNK_COST 8
/* A write of at least this size to a process of this host that may read our
 * memory is sent as a pull: one copy instead of two. Two processes on a busy
 * machine, us per write through the ring and by a pull: 64 KiB 12 and 15, 128
 * KiB 23 and 17, 512 KiB 68 and 49, 4 MiB 1000 and 500, 64 MiB 30,000 and
 * 16,000. */
#define TOW_NET_PULL_BYTES_MIN (128u << 10)
/* Pulls up to this size are copied on the loop, which takes 30 us; larger ones
 * by copier threads. */
#define TOW_NET_PULL_AT_ONCE_BYTES (256u << 10)
/* Copier threads of a net. One copies at 5.5 GB/s where memcpy does 8, since
 * the kernel looks up each page; two at 8 to 11. */
#define TOW_NET_PULL_COPIERS 2u
/* From this size on, waking the second copier pays. */
#define TOW_NET_PULL_BYTES_PER_COPIER (2u << 20)
/* The unit of work of a copier: a huge page. A closing region waits at most for
 * one, 0.5 ms. */
#define TOW_NET_PULL_CHUNK_BYTES (2u << 20)
/* Writes of one lane that its target may share; further ones are copied. And
 * the same for all inbound lanes together. */
#define TOW_NET_LANE_SHARE_COUNT_MAX 256u
#define TOW_NET_SHARE_COUNT_MAX      4096u
/* Blocks of other processes stay mapped for this long after their last use, and
 * at most this many idle ones: mapping 64 MiB takes 20 us, and touching all of
 * it for the first time 2 ms. A mapped block that its owner has freed costs
 * memory. */
#define TOW_NET_VIEW_IDLE_NS        (1 * TOW_NS_PER_S)
#define TOW_NET_VIEW_IDLE_COUNT_MAX 64u
/* How often a lane with pending writes checks whether its peer on this host is
 * alive; a check costs 4 us. Sessions take 2.5 s to detect that. */
#define TOW_NET_LANE_WATCH_NS (250 * TOW_NS_PER_MS)
/* Unanswered pulls of one lane; further ones wait at the writer. */
#define TOW_NET_LANE_PULL_COUNT_MAX 16u
/* Attempts of a write whose checksum is wrong. */
#define TOW_NET_WRITE_ATTEMPT_COUNT_MAX 4
/* Inbound lanes. One more closes the oldest. */
#define TOW_NET_INBOUND_COUNT_MAX 4096
/* Answers on one inbound lane that UCX has not yet sent. A correct peer has at
 * most TOW_NET_LANE_WRITE_COUNT_MAX unanswered writes. */
#define TOW_NET_INBOUND_ANSWER_COUNT_MAX (2 * TOW_NET_LANE_WRITE_COUNT_MAX)
/* How often the loop polls while sends inside UCX make no progress: shared
 * memory has no event for free space. Doubles from MIN to MAX. */
#define TOW_NET_SEND_POLL_MIN_NS (100 * TOW_NS_PER_US)
#define TOW_NET_SEND_POLL_MAX_NS (5 * TOW_NS_PER_MS)
/* Consecutive refusals of UCX to be armed, without any progress, after which
 * the loop sleeps with the poll above instead of retrying. */
#define TOW_NET_ARM_BUSY_COUNT_MAX 64

#endif /* TOW_ENV_TUNING_H_ */
