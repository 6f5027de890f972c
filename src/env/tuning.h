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
/* A process that ends closes its sockets a little before the system calls it
 * dead: 0.1 ms, a few more on a busy machine. For so long the end of a connection
 * of this host is kept from its owner, to say both at once. */
#define TOW_NET_MOURN_NS (50 * TOW_NS_PER_MS)
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
#define TOW_NET_DIRECT_READ_BYTES     (16u << 10)
#define TOW_NET_DIRECT_READ_BYTES_MAX (256u << 10)
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
/* The same for workers, which have a share of the cores each: between two calls
 * of a client that waits for each a worker is idle for as long as a call takes,
 * and a worker that sleeps then is woken on the way of every call. Eight devices
 * in two workers on two cores: 12,500 calls a second instead of 9,500. And for a
 * controller on a host with more cores than workers: a JAX loop that waits for each
 * call on eight devices of one worker, two cores, 132 us a call instead of 166; but
 * 157 instead of 142 with two workers, whose cores it then takes. */
#define TOW_NET_WORKER_SPIN_NS (200 * TOW_NS_PER_US)
/* And a client with fewer cores than this does not spin while it waits, unless it
 * is told to: they are the controller's and the workers'. One device on two cores: 20,700 calls a
 * second instead of 16,100. */
#define TOW_SHARED_SPIN_CORES_MIN 4
/* After so many spins in a row in which nothing came, the next one is left out,
 * and after one more in vain the next 3, 7, and so on up to MAX; the first that is
 * not in vain ends that. A client whose calls took 80 us lost a third of them to
 * its own spin of 50 us, on the core that the controller was waiting for. */
#define TOW_NET_VAIN_SPIN_COUNT  4
#define TOW_NET_SKIPPED_SPIN_MAX 63
/* How often the keeper of a shared net looks after it while nobody is inside and
 * no callback is expected: what was left unflushed waits at most so long, and an
 * idle process pays 5 us for it each time, 0.25% of a core. */
#define TOW_SHARED_TICK_NS (2 * TOW_NS_PER_MS)
/* A yield that took so long let somebody else run; one of 0.2 us did not. So
 * many in a row, and the loop sleeps instead of spinning for CROWDED_NS. */
#define TOW_NET_LONG_YIELD_NS    (2 * TOW_NS_PER_US)
#define TOW_NET_LONG_YIELD_COUNT 3
#define TOW_NET_CROWDED_NS       (5 * TOW_NS_PER_MS)
/* One that took so long gave away a whole slice, to somebody with much to do:
 * enough to know, and for longer, since the next one costs as much again. */
#define TOW_NET_LOST_YIELD_NS (200 * TOW_NS_PER_US)
#define TOW_NET_LOST_NS       (50 * TOW_NS_PER_MS)
/* Meanwhile the data plane still gets this much: a round trip to a peer that
 * runs takes 0.8 us, and a sleep would make it 8. */
#define TOW_NET_CROWDED_SPIN_NS (3 * TOW_NS_PER_US)
/* While the data plane or one socket is the busy one, all others are looked at
 * this often. A look costs 0.1 to 0.3 us, a round trip 0.4 us on the data
 * plane and 4.3 us on a Unix socket. */
#define TOW_NET_LOOK_NS (10 * TOW_NS_PER_US)
/* Looks at the data plane between two looks at the clock in the spin. */
#define TOW_NET_BURST_COUNT     16
#define TOW_NET_EVENT_COUNT_MAX 64

#define TOW_NET_HELPER_COUNT_DEFAULT 2
#define TOW_NET_HELPER_COUNT_MAX     64

/* -- net: the data plane -------------------------------------------------- */

/* Bytes of datagrams of one lane that UCX has taken and not yet sent; the next
 * is FULL. Each costs its size and COST, about what we and UCX keep for it, so
 * that small ones are bounded too. */
#define TOW_NET_LANE_DATAGRAM_BYTES_MAX (1u << 20)
#define TOW_NET_LANE_DATAGRAM_COST      512u
/* Writes of one lane that are not done. They cost their bookkeeping only: the
 * bytes stay where they are until their turn comes. */
#define TOW_NET_LANE_WRITE_COUNT_MAX 1024
/* Writes of more than one fragment that take turns on one lane; the others wait
 * behind them. Writes of one fragment go at once. Also what a target keeps
 * track of for each lane that comes in, at 72 bytes each. */
#define TOW_NET_LANE_LARGE_COUNT_MAX 16
/* A write is cut into fragments: slots of a ring in shared memory (see
 * net/data_ring.h), one segment of UCX over TCP. Two processes, GB/s, 64 MiB a
 * write, two at a time, on shared memory with a ring of 1 MiB: 8.0 with 16 KiB,
 * 8.5 with 32, 8.9 with 64, 8.8 with 128. TCP on loopback, one at a time: 4.3
 * with 32 KiB, 6.2 with 60, 6.0 with 240 and then ahead under load. */
#define TOW_NET_FRAGMENT_SHM_BYTES (64u << 10)
#define TOW_NET_FRAGMENT_TCP_BYTES (240u << 10)
/* Slots of a ring: 1 MiB for each lane that writes. Fewer than the 64 places
 * that a process' receive queue has in UCX. */
#define TOW_NET_RING_SLOT_COUNT 16
/* Up to so many bytes go in the message itself: it stays below the 93 bytes that
 * UCX sends the shortest way. */
#define TOW_NET_FRAGMENT_INLINE_BYTES 16u
/* Without a ring, for want of shared memory: what fits UCX's own segments, and
 * how many of them it holds at most, for it would queue without bound. */
#define TOW_NET_FRAGMENT_DIRECT_BYTES (7u << 10)
#define TOW_NET_LANE_WINDOW           16
/* Fragments that one lane sends before the next lane, and in all lanes before
 * the loop looks at something else: 4 MiB on shared memory, about 400 us. */
#define TOW_NET_PUMP_LANE_COUNT  16
#define TOW_NET_PUMP_TOTAL_COUNT 64
/* A write of at least so many bytes to a process of this host that may read ours
 * is fetched by it: one copy instead of two. Two processes on a busy machine, us
 * a write through the ring and by a pull: 64 KiB 12 and 15, 128 KiB 23 and 17,
 * 512 KiB 68 and 49, 4 MiB 1000 and 500, 64 MiB 30,000 and 16,000. */
#define TOW_NET_PULL_BYTES_MIN (128u << 10)
/* Fetched within the loop, which takes 30 us; larger ones by copiers. */
#define TOW_NET_PULL_AT_ONCE_BYTES (256u << 10)
/* Threads of a net that fetch. One copies at 5.5 GB/s where memcpy does 8, for
 * the kernel looks up each page; two at 8 to 11. */
#define TOW_NET_PULL_COPIERS 2u
/* Waking the second one pays from here on. */
#define TOW_NET_PULL_BYTES_PER_COPIER (2u << 20)
/* What a copier takes at a time: a huge page. A region that closes waits for as
 * long as that takes, 0.5 ms. */
#define TOW_NET_PULL_CHUNK_BYTES (2u << 20)
/* Writes of one lane that its target uses where they are; more are copied. And
 * the same of all lanes that come in. */
#define TOW_NET_LANE_LENT_COUNT_MAX 256u
#define TOW_NET_LOAN_COUNT_MAX      4096u
/* Blocks of other processes stay mapped for so long after their last use, and at
 * most so many that are not in use: mapping 64 MiB takes 20 us, and touching all
 * of it for the first time 2 ms. One that its owner has freed costs memory. */
#define TOW_NET_VIEW_IDLE_NS        (1 * TOW_NS_PER_S)
#define TOW_NET_VIEW_IDLE_COUNT_MAX 64u
/* How often a lane with writes under way looks whether its peer on this host is
 * still alive; a look costs 4 us. Sessions take 2.5 s to decide that. */
#define TOW_NET_LANE_WATCH_NS (250 * TOW_NS_PER_MS)
/* Pulls of one lane that are not answered; the next waits with the writer. */
#define TOW_NET_LANE_PULL_COUNT_MAX 16u
/* A write whose checksum was wrong is sent again, up to so many times in all. */
#define TOW_NET_WRITE_ATTEMPT_COUNT_MAX 4
/* Lanes that come in from others. One more ends the oldest. */
#define TOW_NET_INBOUND_COUNT_MAX 4096
/* Answers to one lane that comes in which UCX has not yet sent. An honest peer
 * has at most TOW_NET_LANE_WRITE_COUNT_MAX writes unanswered. */
#define TOW_NET_INBOUND_ANSWER_COUNT_MAX (2 * TOW_NET_LANE_WRITE_COUNT_MAX)
/* How often the loop looks while UCX holds sends that do not move: shared
 * memory has no event for "there is room again". Doubles from MIN to MAX. */
#define TOW_NET_SEND_POLL_MIN_NS (100 * TOW_NS_PER_US)
#define TOW_NET_SEND_POLL_MAX_NS (5 * TOW_NS_PER_MS)
/* Refusals of UCX to be armed, in a row and without any progress, after which
 * the loop sleeps with the poll above instead of asking on. */
#define TOW_NET_ARM_BUSY_COUNT_MAX 64

#endif /* TOW_ENV_TUNING_H_ */
