/* Tunable constants of the executor and the transfer engine. */
#ifndef TOW_DATAFLOW_TUNING_H_
#define TOW_DATAFLOW_TUNING_H_

#include "env/tuning.h"
#include "wire/message.h"

/* Unfinished runs granted to this worker. The controller's run-ahead stays far
 * below; a grant beyond is refused. 88 bytes each. */
#define TOW_DATAFLOW_RUN_COUNT_MAX 8192u
/* Their steps. Two of the largest programs: one that runs, one behind it. About
 * 200 bytes each. */
#define TOW_DATAFLOW_STEP_COUNT_MAX (2u * TOW_NODES_MAX)
/* Tables of values that a program keeps for its next runs in pieces: about as
 * many of them as a scheduler lets run at once. 48 bytes a value, 8 for each of
 * its shards. */
#define TOW_DATAFLOW_SPARE_SCRATCH_COUNT 4u
/* Steps in which the last user of a large received value is looked for, when a
 * program is bound: it is near, because such values come directly before their
 * first use. Of others the executor does not check that the device has freed
 * the memory. */
#define TOW_DATAFLOW_LAST_USE_SEARCH_COUNT 1024u
/* Transfers of a run that wait for memory, and are looked at when something has
 * ended. The first one is always among them. */
#define TOW_DATAFLOW_HELD_LOOK_COUNT 16u
/* Programs and executables that the controller may load here. */
#define TOW_DATAFLOW_PROGRAM_COUNT_MAX    65536u
#define TOW_DATAFLOW_EXECUTABLE_COUNT_MAX 65536u

/* The collective engines remember few aborted gangs (TOW_INTRA_HOST_ABORT_COUNT
 * is 64), and a run-ahead of 256 may be aborted at once. So aborts are sent
 * again, COUNT at a time in turn, until the gang has ended. Two batches fit
 * into such a memory, and a sleeping member looks there within 2 ms. */
#define TOW_DATAFLOW_ABORT_AGAIN_NS    (5 * TOW_NS_PER_MS)
#define TOW_DATAFLOW_ABORT_AGAIN_COUNT 32u

/* With at most this many runs under way, the end of each is reported at once: a
 * client that keeps two programs in flight waits for it before it sends a
 * third. */
#define TOW_DATAFLOW_PROMPT_RUN_COUNT 4u

/* Running a step inside the call (tow_run_t.may_block), where the owner allows
 * it. Handing a scalar add to a device's thread takes 8 to 60 us from turn to
 * turn, mostly for waking threads; inside the call it takes 3 us. A step counts
 * as small when this many runs in a row, each alone on the device, took less
 * than FAST_NS from turn to turn, and never again once one took more than
 * SLOW_NS. A larger FAST_NS delays messages by that much. */
#define TOW_DATAFLOW_INLINE_RUN_COUNT 8u
#define TOW_DATAFLOW_INLINE_FAST_NS   (100 * TOW_NS_PER_US)
#define TOW_DATAFLOW_INLINE_SLOW_NS   (1 * TOW_NS_PER_MS)

/* Steps that may linger in one turn while others are under way, for owners that
 * allow it. Handing a small step to other threads and back costs as much as the
 * step; that pays only where these threads have cores of their own. Eight
 * devices in two workers on two cores, 128 outstanding calls of a scalar add
 * and an all-reduce: 40,900 a second instead of 21,300; a JAX loop on one
 * device 9.5 us a call instead of 12.6. This many steps take some milliseconds,
 * in which no message is read; the rest is handed over. Programs of many steps
 * always are: 16 stages on 8 devices made 286,000 a second, and 172,000 on the
 * loop. */
#define TOW_DATAFLOW_LINGER_COUNT 128u

/* A piece of at most this size travels inside its message. A message costs two
 * copies and no round trip; an offer and a write cost two messages, a region
 * and about 20 us of latency, and copy once or not at all. Both ends use it:
 * the receiver offers memory only for larger pieces. */
#define TOW_TRANSFER_EAGER_BYTES (16u << 10)

/* Limits of one peer's messages ahead of our grants. It gets the same grants,
 * and the controller's run-ahead keeps both within a few hundred runs: a peer
 * beyond the limits breaks the protocol. */
#define TOW_TRANSFER_EARLY_COUNT_MAX (1u << 17)
#define TOW_TRANSFER_EARLY_BYTES_MAX (UINT64_C(512) << 20)
/* Bytes of an early piece that are stored in its pooled record. */
#define TOW_TRANSFER_EARLY_INLINE_BYTES 256u

/* For devices that use memory without a copy: see src/device/README.md. */
#define TOW_TRANSFER_ALIGNMENT 64u
/* Targets of at most this size get a block of this size, which is cached for
 * the next when the device has returned it: at most COUNT. */
#define TOW_TRANSFER_SMALL_BYTES       4096u
#define TOW_TRANSFER_SMALL_SPARE_COUNT 1024u

/* Targets, or sources, of a transfer that need no table from the heap. */
#define TOW_TRANSFER_INLINE_COUNT 8u

/* -- Collectives: all members must have the same numbers. */
/* A tensor of at most this size goes from each member to all, if there are at
 * most this many: one message delay instead of two, for more bytes. */
#define TOW_REDUCE_SHARED_BYTES       4096u
#define TOW_REDUCE_SHARED_MEMBERS_MAX 8u
/* A smaller chunk is not worth an owner of its own. */
#define TOW_REDUCE_CHUNK_BYTES_MIN 4096u
#define TOW_REDUCE_CHUNK_COUNT_MAX (1u << 20)

/* Chunks that are combined in the turn that has them ready: 5 to 10 us. Larger
 * ones go to a helper thread of the env, which takes 15 to 60 us to wake: in
 * batches of this many chunks or bytes, after which more urgent ones go
 * first. */
#define TOW_REDUCE_INLINE_BYTES (32u << 10)
#define TOW_REDUCE_BATCH_COUNT  16u
#define TOW_REDUCE_BATCH_BYTES  (UINT64_C(4) << 20)
/* Time of combining in simulation: 4 GB/s, as on one core. */
#define TOW_REDUCE_BYTES_PER_US 4096u

#endif /* TOW_DATAFLOW_TUNING_H_ */
