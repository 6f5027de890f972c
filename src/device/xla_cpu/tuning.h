/* Constants of the XLA CPU adapter that someone may tune. Measured on two
 * cores at 2.1 GHz, where waking a sleeping thread costs 15 to 60 us and a
 * scalar add in XLA 2.3 us. */
#ifndef TOW_DEVICE_XLA_CPU_TUNING_H_
#define TOW_DEVICE_XLA_CPU_TUNING_H_

/* How long a waiting thread looks before it sleeps: about what waking it costs.
 * Shorter, and a stream of small executions pays a wake-up each; longer, and
 * idle devices take time from busy ones. */
#define TOW_XLA_SPIN_NS 50000

/* The same for a seat while others want its core, which shows in an offer of the
 * core that took longer than LONG_YIELD_NS: for so long it does not linger. */
#define TOW_XLA_CROWDED_SPIN_NS 5000
#define TOW_XLA_LONG_YIELD_NS   200000
#define TOW_XLA_CROWDED_NS      5000000
/* A seat that sleeps is woken; this only bounds how late its members see an
 * abort. Where there is nothing to be woken by, it looks again after POLL_NS. */
#define TOW_XLA_SLEEP_NS 2000000
#define TOW_XLA_POLL_NS  100000

/* How long light executions may keep the thread of a caller who lets them: as
 * long as the other members of their gang usually take, and no longer than a
 * loop may be deaf. */
#define TOW_XLA_GUESTS_NS 200000
/* Of that, how long they look at a time before the thread sleeps: between these,
 * halved when it was in vain and doubled when not. Members of a gang that run
 * come within 5 to 20 us of each other. */
#define TOW_XLA_GUESTS_SPIN_MIN_NS 2000
#define TOW_XLA_GUESTS_SPIN_MAX_NS 40000
/* The same in collectives: each waits for the slowest member. */
#define TOW_XLA_GUESTS_COLLECTIVES_MAX 4

/* The stack of a light execution; pages are taken as they are used. */
#define TOW_XLA_STACK (2 << 20)

/* The most that a light program may have to do: bytes of all arrays that it
 * makes, and so many more for each. 256 KiB of elementwise work take some 50 us,
 * as long as it takes to wake a thread. */
#define TOW_XLA_LIGHT_COST_MAX  (256 << 10)
#define TOW_XLA_LIGHT_STEP_COST 64
/* XLA runs a program's steps in sequence if there are so few, or if no array is
 * larger: execute_sequential_num_thunks_threshold and _buffer_threshold of its
 * ThunkExecutor, whose header does not compile without others that the wheel
 * lacks. To be looked up again with another wheel. */
#define TOW_XLA_SEQUENCE_STEPS_MAX 8
#define TOW_XLA_SEQUENCE_BYTES_MAX 512

/* Of that, how many looks pass without giving up the processor. A look with its
 * pause takes 13 to 40 ns, a yield from 260 ns: this covers the smallest
 * computations. More only helps when every thread has a core of its own. */
#define TOW_XLA_SPIN_LOOKS_BEFORE_YIELD 300

/* Cache lines of an item that its worker fetches at once: an execution with a
 * few arguments has six. */
#define TOW_XLA_PREFETCH_LINES 6

/* Executions that may wait for one device, and copies for the copy thread; one
 * more fails with RESOURCE_EXHAUSTED. A queued execution holds its inputs and
 * some 500 bytes. */
#define TOW_XLA_QUEUE_DEPTH_MAX 65536

/* A copy to the host of at most this many bytes is made by the thread that
 * finds the source ready, since handing it over costs more than copying; larger
 * ones by the client's copy thread, so that neither a caller nor a device waits
 * for them. 16 KiB copy in 1 to 2 us. */
#define TOW_XLA_INLINE_COPY_BYTES_MAX 16384

/* A copy to another device of at least this many bytes shares the memory of its
 * source, which takes 0.9 us whatever the size. Copying 16 bytes takes 1.4 us,
 * 4 KiB 3 us, 32 KiB 16 us; what is smaller is copied, so that a value of some
 * bytes does not keep the memory of another device. */
#define TOW_XLA_SHARE_BYTES_MIN 1024

/* A result of at most this many bytes that its user destroys is given back to
 * the device's thread, which made it, to be freed there, and up to so many at
 * once. XLA makes some fifteen small objects a result; freed by another core,
 * the next execution finds none of them in its cache: 10 us for a scalar add
 * and a wait instead of 3. Larger ones are freed at once: their memory may be
 * needed, and the device may be in a long computation. */
#define TOW_XLA_RETURN_BYTES_MAX 4096
#define TOW_XLA_RETURN_COUNT_MAX 64

/* Device memory from this size on asks for pages of this size. Mapping 64 MiB
 * in small pages takes as long as filling it. */
#define TOW_XLA_HUGE_PAGE_BYTES (2 << 20)

/* Freed blocks of at least that size that a process keeps for reuse. An upload
 * of 64 MiB takes 16 ms into fresh memory and 10 ms, as memcpy does, into memory
 * that was used before. A device's blocks count within its memory limit,
 * together with what is in use. */
#define TOW_XLA_CACHE_BYTES_MAX (256u << 20)
#define TOW_XLA_CACHE_COUNT_MAX 64

/* Spare objects that a thread keeps of each kind (executions, buffers,
 * callbacks) before it gives them to others, all at once, and how many such
 * handfuls wait for a taker. A handful of executions is some 16 KiB. */
#define TOW_XLA_POOL_HANDFUL 32
#define TOW_XLA_POOL_SHELF   64

/* Executions that a device remembers for traces, of 64 bytes each, once somebody
 * has asked: 256 KiB a device, and 4 s of steps of 1 ms. */
#define TOW_XLA_EXECUTED_COUNT 4096

/* Characters of a program that are quoted beside the compiler's complaint: one
 * operation with its operands. */
#define TOW_XLA_QUOTE_LENGTH 120

#endif /* TOW_DEVICE_XLA_CPU_TUNING_H_ */
