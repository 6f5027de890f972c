/* Tuning constants of collectives across hosts: bounds, sizes, timeouts. */
#ifndef TOW_COLLECTIVE_MULTI_HOST_TUNING_H_
#define TOW_COLLECTIVE_MULTI_HOST_TUNING_H_

#include "env/tuning.h"

/* Bytes of a slot: the header of a letter and its payload. An all-reduce of 64
 * MiB between two processes took, in ms of processor time of each, on shared
 * memory and TCP: 31 and 60 with 8 slots of 192 KiB, 42 and 70 with 8 of 128,
 * 40 and 57 with 8 of 64, 35 and 77 with 32 of 64. Three fragments of the data
 * plane on shared memory, one on TCP. */
#define TOW_MULTI_HOST_SLOT_BYTES (192u << 10)
/* Slots of each of our devices at each peer: the number of its letters that may
 * be unread there. Credits come back when half of them have been read. At most
 * 32. */
#define TOW_MULTI_HOST_SLOT_COUNT 8
/* Envelopes of one operation that may be in flight, to all peers together. */
#define TOW_MULTI_HOST_ENVELOPE_COUNT_MAX 16
/* Envelopes of one device to one process that have not arrived; more wait at
 * their sender. Without this bound a device that only sends, such as the root
 * of a broadcast, could run ahead of a slow reader without limit. */
#define TOW_MULTI_HOST_BACKLOG_COUNT_MAX 16
/* Empty envelopes of full size that are cached: fresh memory of that size costs
 * a page fault for every 4 KiB. */
#define TOW_MULTI_HOST_ENVELOPE_SPARE_COUNT 32

/* Operations whose letters all fit this allocate envelopes of this size, which
 * is cheaper than caching large ones. */
#define TOW_MULTI_HOST_SMALL_BYTES (4u << 10)

/* All-reduces between hosts use recursive doubling up to this size, and a ring
 * above. n hosts take log2(n) steps with log2(n) times the bytes, or 2(n - 1)
 * steps with less than twice the bytes. Calculated, not measured (two hosts
 * move the same bytes either way): a step takes about 30 us here, in which TCP
 * moves some 50 KiB. */
#define TOW_MULTI_HOST_DOUBLING_BYTES_MAX (64u << 10)
/* An all-reduce in which some host has several members runs in chunks of this
 * size, between which members and leader alternate. */
#define TOW_MULTI_HOST_CHUNK_BYTES (4u << 20)
/* The bytes that members of one host gather or scatter at a time through their
 * leader, in all other collectives. */
#define TOW_MULTI_HOST_STAGE_BYTES (1u << 20)

/* Polls before the caller sleeps, if there are enough cores for it and the
 * loop. On two cores with two processes, spinning takes the loops' cores: 8
 * bytes over shared memory and TCP took 46 and 38 us (medians of three runs)
 * without, 67 and 79 with 30 polls, 44 and 88 with 500, 94 and 137 with 4,000;
 * the machine was busy with other work. */
#define TOW_MULTI_HOST_SPIN_COUNT      500
#define TOW_MULTI_HOST_SPIN_CORE_COUNT 4
/* Sleeping callers are woken; this only bounds how late they see that the run
 * was aborted on their host. */
#define TOW_MULTI_HOST_SLEEP_NS (2 * TOW_NS_PER_MS)

/* The interval of probes to the processes that an open operation exchanges
 * with, and the timeout after which it fails. It must fail within 3 s. */
#define TOW_MULTI_HOST_PROBE_NS    (250 * TOW_NS_PER_MS)
#define TOW_MULTI_HOST_PATIENCE_NS (2 * TOW_NS_PER_S)
/* How long a process may take to be added, and to respond for the first time.
 */
#define TOW_MULTI_HOST_ABSENCE_NS (5 * TOW_NS_PER_S / 2)
/* The interval of hellos until the peer responds: doubles from MIN to MAX. */
#define TOW_MULTI_HOST_HELLO_MIN_NS (5 * TOW_NS_PER_MS)
#define TOW_MULTI_HOST_HELLO_MAX_NS (500 * TOW_NS_PER_MS)

/* How long closing waits for the last letters to arrive, and how often it
 * polls. */
#define TOW_MULTI_HOST_LINGER_NS     (1 * TOW_NS_PER_S)
#define TOW_MULTI_HOST_DRAIN_LOOK_NS (1 * TOW_NS_PER_MS)

/* Peers of a process. */
#define TOW_MULTI_HOST_PEER_COUNT_MAX 4096
/* Entries of the hello region. Two processes that share one repeat their hellos
 * until both have arrived. */
#define TOW_MULTI_HOST_DOOR_COUNT 256
/* Gangs in the cache. Computing one takes time proportional to members times
 * hosts. */
#define TOW_MULTI_HOST_GANG_COUNT 16
/* Aborted runs, and dead processes, that are recorded. */
#define TOW_MULTI_HOST_ABORT_COUNT 64
#define TOW_MULTI_HOST_DEAD_COUNT  64
/* Bytes of the reason of an abort in a letter. */
#define TOW_MULTI_HOST_REASON_BYTES 200

#endif /* TOW_COLLECTIVE_MULTI_HOST_TUNING_H_ */
