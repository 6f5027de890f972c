/* Tuning constants of collectives within one host. Measured by `tow bench
 * device` and `collective_bench`, on two cores. */
#ifndef TOW_COLLECTIVE_INTRA_HOST_TUNING_H_
#define TOW_COLLECTIVE_INTRA_HOST_TUNING_H_

/* Bytes of one half of a mailbox. Larger collectives pass through it in chunks,
 * so all halves in use should fit into the last-level cache together: 8 devices
 * take 4 MiB. If it is too small, the two synchronisations per chunk dominate.
 */
#define TOW_INTRA_HOST_STAGE_BYTES (256u << 10)

/* In an all-reduce up to this size every member reduces all elements after one
 * synchronisation; in larger ones each member reduces a slice, which takes a
 * second synchronisation. */
#define TOW_INTRA_HOST_WHOLE_BYTES_MAX (16u << 10)

/* Polls of a mailbox before the thread yields its core. A member that is
 * running publishes within a few hundred nanoseconds. */
#define TOW_INTRA_HOST_SPIN_COUNT 200
/* Yields before sleeping. */
#define TOW_INTRA_HOST_YIELD_COUNT 200
/* The same with more members than cores. The awaited member needs our core, so
 * no member spins. While the gang has the cores to itself, a yield is the
 * cheapest way to let the next member run: eight members on two cores made
 * 19,000 steps a second with 300 yields, 12,400 with 3. On contended cores a
 * yield gives away a whole time slice, and sleeping is better, because the
 * kernel prefers threads that are woken. So a yield that takes longer than
 * LONG_YIELD_NS, which never happens within a gang of small steps, makes the
 * members of this process sleep at once, for the next CONTENDED_NS.
 *
 * They also sleep for REST_NS after every YIELDING_NS of yields. Members that
 * only yield to each other can keep a core from all processes of other
 * scheduling groups (sessions, cgroups): on Linux 6.18 with automatic groups, a
 * gang of four on two cores delayed other processes, even kernel threads, by up
 * to 8 s, and peers took them for dead. With rests the longest delay was
 * 60 ms, and the gang was not slower. */
#define TOW_INTRA_HOST_GANG_YIELD_COUNT 300
#define TOW_INTRA_HOST_LONG_YIELD_NS    200000
#define TOW_INTRA_HOST_CONTENDED_NS     5000000
#define TOW_INTRA_HOST_YIELDING_NS      2000000
#define TOW_INTRA_HOST_REST_NS          500000
/* Readers do not wake the owner of a mailbox. It polls for late readers for
 * this long, and every SLEEP_NS afterwards. */
#define TOW_INTRA_HOST_READER_SPIN_NS 10000000
/* Futexes that gangs share by key: more than gangs that run at once. */
#define TOW_INTRA_HOST_GANG_FUTEX_COUNT 64
/* Sleeping members are woken; this only bounds how late they see an abort. */
#define TOW_INTRA_HOST_SLEEP_NS 2000000

/* The heartbeat interval of a process, and the timeout after which it counts as
 * frozen. Members of a frozen process must fail within 3 s. */
#define TOW_INTRA_HOST_HEARTBEAT_NS         100000000
#define TOW_INTRA_HOST_HEARTBEAT_TIMEOUT_NS 2000000000
/* Unread bytes of an earlier run block their mailbox half for at most this
 * long. The readers may be that late, because a device that only sends runs
 * ahead of its receivers; or their run has failed on another host and they
 * never come. */
#define TOW_INTRA_HOST_UNREAD_TIMEOUT_NS 30000000000ll
/* How long members wait for a device to join the arena: its process may just be
 * starting. */
#define TOW_INTRA_HOST_JOIN_TIMEOUT_NS 2500000000

/* Waits are reported after this long, and updated at this interval. Far above
 * the duration of any successful collective, so that these pay nothing for it.
 */
#define TOW_INTRA_HOST_LONG_WAIT_NS 100000000

/* Aborted runs that are recorded. All waiting members see an abort within
 * milliseconds, so few are needed at a time. */
#define TOW_INTRA_HOST_ABORT_COUNT 64
/* Bytes of the reason of an abort; the longest error text of a run must fit. */
#define TOW_INTRA_HOST_REASON_BYTES 1020

#endif /* TOW_COLLECTIVE_INTRA_HOST_TUNING_H_ */
