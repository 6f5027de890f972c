/* What collectives across hosts can be tuned by: bounds, sizes, patience. */
#ifndef TOW_COLLECTIVE_SPAN_TUNING_H_
#define TOW_COLLECTIVE_SPAN_TUNING_H_

#include "env/tuning.h"

/* Bytes of a slot: the head of a letter and what it carries. An all-reduce of
 * 64 MiB between two processes took, in ms of processor time of each, on shared
 * memory and TCP: 31 and 60 with 8 slots of 192 KiB, 42 and 70 with 8 of 128, 40
 * and 57 with 8 of 64, 35 and 77 with 32 of 64. Three fragments of the data plane
 * on shared memory, one on TCP. */
#define TOW_SPAN_SLOT_BYTES (192u << 10)
/* Slots that a device of ours has at each peer: so many letters may be unread
 * there. Credits come back when half of them have been read. At most 32. */
#define TOW_SPAN_SLOT_COUNT 8
/* Envelopes that one operation may have under way, to all peers together. */
#define TOW_SPAN_ENVELOPE_COUNT_MAX 16
/* Envelopes of one device to one process that have not been taken there; more
 * wait with their sender. Without it one that only sends, such as the root of a
 * broadcast, could run ahead of a slow reader without bound. */
#define TOW_SPAN_BACKLOG_COUNT_MAX 16
/* Empty envelopes of full size that a span keeps: fresh memory of that size
 * costs a page fault for every 4 KiB. */
#define TOW_SPAN_ENVELOPE_SPARE_COUNT 32

/* Operations whose letters all fit this make envelopes of this size, which is
 * cheaper than to keep large ones. */
#define TOW_SPAN_SMALL_BYTES (4u << 10)

/* An all-reduce between hosts up to here doubles its reach in each round, with
 * all bytes in all rounds; above it goes round a ring in slices. n hosts take
 * log2(n) trips with log2(n) times the bytes, or 2(n - 1) trips with less than
 * twice the bytes. Reckoned, not measured (two hosts move the same bytes either
 * way): a trip takes about 30 us here, in which TCP moves some 50 KiB. */
#define TOW_SPAN_DOUBLING_BYTES_MAX (64u << 10)
/* An all-reduce in which some host has several members goes in chunks of this
 * size, between which members and leader take turns. */
#define TOW_SPAN_CHUNK_BYTES (4u << 20)
/* What members of one host gather or scatter at a time through their leader,
 * in all other collectives. */
#define TOW_SPAN_STAGE_BYTES (1u << 20)

/* Looks before the caller sleeps, where there are cores enough for it and the
 * loop. On two cores with two processes it only takes the loops' cores from them:
 * 8 bytes over shared memory and TCP took 46 and 38 us (medians of three runs)
 * without, 67 and 79 with 30 looks, 44 and 88 with 500, 94 and 137 with 4,000; the
 * machine was busy with other work. */
#define TOW_SPAN_SPIN_COUNT      500
#define TOW_SPAN_SPIN_CORE_COUNT 4
/* A sleeper is woken; this only bounds how late it sees that its host has
 * aborted the run. */
#define TOW_SPAN_SLEEP_NS (2 * TOW_NS_PER_MS)

/* While an operation is open, the processes that it exchanges with are asked
 * this often whether they live; silence for PATIENCE fails it. An error within
 * 3 s is asked for. */
#define TOW_SPAN_PROBE_NS    (250 * TOW_NS_PER_MS)
#define TOW_SPAN_PATIENCE_NS (2 * TOW_NS_PER_S)
/* How long a process may take to be added, and to answer for the first time. */
#define TOW_SPAN_ABSENCE_NS (5 * TOW_NS_PER_S / 2)
/* Until a peer has answered our hello: doubles from MIN to MAX. */
#define TOW_SPAN_HELLO_MIN_NS (5 * TOW_NS_PER_MS)
#define TOW_SPAN_HELLO_MAX_NS (500 * TOW_NS_PER_MS)

/* How long a span that closes waits for its last letters to be taken, and how
 * often it looks. */
#define TOW_SPAN_LINGER_NS     (1 * TOW_NS_PER_S)
#define TOW_SPAN_DRAIN_LOOK_NS (1 * TOW_NS_PER_MS)

/* Processes that a span may know. */
#define TOW_SPAN_PEER_COUNT_MAX 4096
/* Places at the door. Two processes that share one repeat their hellos until
 * both got through. */
#define TOW_SPAN_DOOR_COUNT 256
/* Gangs whose geography is kept between collectives. To work it out takes the
 * product of members and hosts. */
#define TOW_SPAN_GANG_COUNT 16
/* Aborted runs, and dead processes, that are remembered. */
#define TOW_SPAN_ABORT_COUNT 64
#define TOW_SPAN_DEAD_COUNT  64
/* Bytes of a reason that travel. */
#define TOW_SPAN_REASON_BYTES 200

#endif /* TOW_COLLECTIVE_SPAN_TUNING_H_ */
