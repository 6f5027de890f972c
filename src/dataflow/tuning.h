/* Numbers of the executor that someone may tune. */
#ifndef TOW_DATAFLOW_TUNING_H_
#define TOW_DATAFLOW_TUNING_H_

#include "env/tuning.h"
#include "wire/message.h"

/* Runs that were granted here and have not finished. The controller's run-ahead
 * keeps far below; a grant beyond is refused. 88 bytes each. */
#define TOW_DATAFLOW_RUN_COUNT_MAX 8192u
/* Their steps. Two of the largest programs: one that runs, one behind it. About
 * 200 bytes each. */
#define TOW_DATAFLOW_STEP_COUNT_MAX (2u * TOW_NODES_MAX)
/* Programs and executables that the controller may load here. */
#define TOW_DATAFLOW_PROGRAM_COUNT_MAX    65536u
#define TOW_DATAFLOW_EXECUTABLE_COUNT_MAX 65536u

/* Engines of collectives remember few aborted gangs (TOW_HOST_ABORT_COUNT is 64)
 * and a run-ahead of 256 may be aborted at once, so they are told again: so many
 * at a time, in turn, until the gang has ended. Two batches fit into such a
 * memory, and a sleeper looks there within 2 ms. */
#define TOW_DATAFLOW_ABORT_AGAIN_NS    (5 * TOW_NS_PER_MS)
#define TOW_DATAFLOW_ABORT_AGAIN_COUNT 32u

/* With at most so many runs under way the end of each is told at once: a client
 * that keeps two programs in flight waits for it before it sends a third. */
#define TOW_DATAFLOW_PROMPT_RUN_COUNT 4u

/* Running a step inside the call (tow_run_t.may_block), where the owner allows
 * it. From one turn to another a scalar add takes 8 to 60 us when it is handed
 * to a device's thread, most of it waking threads; 3 us inside the call. A step
 * counts as small when this many runs in a row, each alone on the device, took
 * less than FAST_NS from turn to turn, and never again once one took more than
 * SLOW_NS. Too large a FAST_NS holds up messages by that much. */
#define TOW_DATAFLOW_INLINE_RUN_COUNT 8u
#define TOW_DATAFLOW_INLINE_FAST_NS   (100 * TOW_NS_PER_US)
#define TOW_DATAFLOW_INLINE_SLOW_NS   (1 * TOW_NS_PER_MS)

/* Steps that may linger in one turn although others are under way, for owners who
 * allow it. Handing a small step to other threads, and hearing of its end, costs as
 * much as the step; that pays only where these threads have cores of their own. Eight
 * devices in two workers on two cores, 128 calls of a scalar add and an all-reduce
 * that are not waited for: 40,900 a second instead of 21,300; a JAX loop on one
 * device 9.5 us a call instead of 12.6. So many take some milliseconds, in which no
 * message is read; the rest is handed over. Programs of many steps always are: 16
 * stages on 8 devices made 286,000 a second, and 172,000 on the loop. */
#define TOW_DATAFLOW_LINGER_COUNT 128u

/* A piece of at most so many bytes travels inside its message. A message costs
 * two copies and no round trip; an offer and a write cost two messages, a
 * region and about 20 us of latency, and copy once or not at all. Both ends go
 * by it: the receiver offers room only for larger ones. */
#define TOW_MOVER_EAGER_BYTES (16u << 10)

/* What one other worker may send ahead of our grants. Its grants are ours too,
 * and the controller's run-ahead keeps both within a few hundred runs: who passes
 * this does not keep the rules. */
#define TOW_MOVER_EARLY_COUNT_MAX (1u << 17)
#define TOW_MOVER_EARLY_BYTES_MAX (UINT64_C(512) << 20)
/* Bytes of an early piece that lie in its record, from a pool. */
#define TOW_MOVER_EARLY_INLINE_BYTES 256u

/* Where devices use memory as it is: see src/device/README.md. */
#define TOW_MOVER_ALIGNMENT 64u
/* Targets of at most so many bytes get a block of this size, which is kept for
 * the next when the device has given it back: so many at most. */
#define TOW_MOVER_SMALL_BYTES       4096u
#define TOW_MOVER_SMALL_SPARE_COUNT 1024u

/* Targets, or sources, of a move that need no table from the heap. */
#define TOW_MOVER_INLINE_COUNT 8u

/* -- Collectives: all members must have the same numbers. */
/* A tensor of at most so many bytes goes from each member to all, where there
 * are at most so many: one way instead of two, for more bytes. */
#define TOW_REDUCE_SHARED_BYTES       4096u
#define TOW_REDUCE_SHARED_MEMBERS_MAX 8u
/* Less is not worth an owner of its own. */
#define TOW_REDUCE_CHUNK_BYTES_MIN 4096u
#define TOW_REDUCE_CHUNK_COUNT_MAX (1u << 20)

/* Chunks that are combined in the turn that has them ready: 5 to 10 us. All else
 * goes to a helper of the env, which takes 15 to 60 us to wake: in batches of so
 * many chunks, or as many bytes, after which what has become more urgent meanwhile
 * has its turn. */
#define TOW_REDUCE_INLINE_BYTES (32u << 10)
#define TOW_REDUCE_BATCH_COUNT  16u
#define TOW_REDUCE_BATCH_BYTES  (UINT64_C(4) << 20)
/* What combining takes in simulated time: 4 GB/s, as on one core. */
#define TOW_REDUCE_BYTES_PER_US 4096u

#endif /* TOW_DATAFLOW_TUNING_H_ */
