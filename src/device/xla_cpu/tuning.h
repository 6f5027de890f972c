/* Tuning constants of the XLA CPU adapter. Measured on two cores at 2.1 GHz,
 * where waking a sleeping thread costs 15 to 60 us and a scalar add in XLA
 * 2.3 us. */
#ifndef TOW_DEVICE_XLA_CPU_TUNING_H_
#define TOW_DEVICE_XLA_CPU_TUNING_H_

/* How long a waiting thread spins before it sleeps: about the cost of waking
 * it. With less, every execution of a stream of small ones pays for a wake-up;
 * with more, idle devices take time from busy ones. */
#define TOW_XLA_SPIN_NS 50000

/* The same for a carrier whose core is contended. A sched_yield that takes
 * longer than LONG_YIELD_NS marks the core as contended for CONTENDED_NS. */
#define TOW_XLA_CONTENDED_SPIN_NS 5000
#define TOW_XLA_LONG_YIELD_NS     200000
#define TOW_XLA_CONTENDED_NS      5000000
/* A sleeping carrier is woken by futexes; SLEEP_NS only bounds how late its
 * fibers see an abort. A fiber without a futex is polled every POLL_NS. */
#define TOW_XLA_SLEEP_NS 2000000
#define TOW_XLA_POLL_NS  100000

/* How long fibers may run on the thread of a caller
 * (TOW_XLA_EXECUTE_INLINE_FIBERS): as long as the other members of a gang
 * usually take, and no longer than an event loop may be unresponsive. */
#define TOW_XLA_INLINE_LIMIT_NS 200000
/* Of that, the bounds of how long the thread spins at a time before it sleeps;
 * halved after a spin in vain, doubled after a successful one. Members of a
 * gang that are running reach a collective within 5 to 20 us of each other. */
#define TOW_XLA_INLINE_SPIN_MIN_NS 2000
#define TOW_XLA_INLINE_SPIN_MAX_NS 40000
/* The most collectives of a program that runs so: each waits for the slowest
 * member. */
#define TOW_XLA_INLINE_COLLECTIVES_MAX 4

/* The stack of a fiber; its pages are allocated on first use. */
#define TOW_XLA_FIBER_STACK_BYTES (2 << 20)

/* The highest cost of a program that runs on fibers: the bytes of all arrays
 * that it computes, plus STEP_COST for each. 256 KiB of elementwise work take
 * some 50 us, as long as it takes to wake a thread. */
#define TOW_XLA_FIBER_COST_MAX  (256 << 10)
#define TOW_XLA_FIBER_STEP_COST 64
/* XLA runs the steps of a program in sequence if there are at most this many,
 * or if no array is larger: execute_sequential_num_thunks_threshold and
 * _buffer_threshold of its ThunkExecutor, whose header needs headers that the
 * wheel lacks. Compare them again when the wheel changes. */
#define TOW_XLA_SEQUENCE_STEPS_MAX 8
#define TOW_XLA_SEQUENCE_BYTES_MAX 512

/* How many polls of a spin pass before the thread yields its core. A poll with
 * its pause takes 13 to 40 ns, a yield at least 260 ns: this covers the
 * smallest computations. More only helps when every thread has a core of its
 * own. */
#define TOW_XLA_SPIN_POLLS_BEFORE_YIELD 300

/* Cache lines of a work item that its consumer prefetches: an execution with a
 * few arguments has six. */
#define TOW_XLA_PREFETCH_LINES 6

/* Executions that may be queued for one device, and copies for the copy thread;
 * one more fails with RESOURCE_EXHAUSTED. A queued execution holds its inputs
 * and some 500 bytes. */
#define TOW_XLA_QUEUE_DEPTH_MAX 65536

/* A copy to the host of at most this many bytes runs on the thread that finds
 * the source ready, because handing it over costs more than copying; larger
 * ones run on the client's copy thread, so that neither a caller nor a device
 * waits for them. 16 KiB copy in 1 to 2 us. */
#define TOW_XLA_INLINE_COPY_BYTES_MAX 16384

/* A copy to another device of at least this many bytes shares the memory of its
 * source, which takes 0.9 us whatever the size. Copying 16 bytes takes 1.4 us,
 * 4 KiB 3 us, 32 KiB 16 us. Smaller values are copied, so that a few bytes do
 * not keep the memory of another device allocated. */
#define TOW_XLA_SHARE_BYTES_MIN 1024

/* A result of at most this many bytes is freed by the device's thread, which
 * allocated it, rather than by the user's; at most COUNT_MAX wait for that. XLA
 * allocates some fifteen small objects per result; if another core frees them,
 * the next execution finds none in its cache: a scalar add and a wait take 10
 * us instead of 3. Larger results are freed at once: their memory may be needed
 * while the device is in a long computation. */
#define TOW_XLA_DEFERRED_FREE_BYTES_MAX 4096
#define TOW_XLA_DEFERRED_FREE_COUNT_MAX 64

/* Device memory from this size on is mapped in huge pages of this size. Mapping
 * 64 MiB in small pages takes as long as filling it. */
#define TOW_XLA_HUGE_PAGE_BYTES (2 << 20)
/* Smaller memory, from MIN on, is mapped in blocks of a multiple of STEP: the
 * heap returns freed memory of this size to the system within milliseconds, and
 * a program whose values add up to more than the processor's caches pays for
 * fresh pages in every run. 64 values of 1 MiB, all alive at once: 25 ms of the
 * processor a run instead of 13. Must be TOW_BLOCK_STEP_BYTES and ..._MIN
 * (base/tuning.h). */
#define TOW_XLA_BLOCK_BYTES_MIN  (1 << 20)
#define TOW_XLA_BLOCK_STEP_BYTES (64 << 10)

/* Bounds of the cache of freed blocks, per process. An upload of 64 MiB takes 16
 * ms into fresh memory and 10 ms, as memcpy does, into used memory. The cached
 * blocks of a device and its memory in use together stay within its memory
 * limit. */
#define TOW_XLA_CACHE_BYTES_MAX (256u << 20)
#define TOW_XLA_CACHE_COUNT_MAX 256

/* Free objects of each kind (executions, buffers, callbacks) that a thread
 * keeps before it hands the batch to the common depot, and how many batches the
 * depot holds. A batch of executions is some 16 KiB. */
#define TOW_XLA_POOL_BATCH       32
#define TOW_XLA_POOL_DEPOT_COUNT 64

/* Executions of a device that are recorded for traces once tracing has begun,
 * of 64 bytes each: 256 KiB per device, 4 s of steps of 1 ms. */
#define TOW_XLA_EXECUTED_COUNT 4096

/* Characters of a program that are quoted beside an error of the compiler: one
 * operation with its operands. */
#define TOW_XLA_QUOTE_LENGTH 120

#endif /* TOW_DEVICE_XLA_CPU_TUNING_H_ */
