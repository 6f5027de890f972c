/* Tunable numbers of this module. Measured on a 2-core
 * virtual machine (Sapphire Rapids class, gcc 12, -O2). */
#ifndef TOW_BASE_TUNING_H_
#define TOW_BASE_TUNING_H_

#include <stddef.h>

/* An arena's first block; later ones double up to the largest. Too small costs
 * a trip to the heap per few messages, too large wastes memory per arena: the
 * control messages that arenas hold are mostly below 1 KiB. */
#define TOW_ARENA_BLOCK_BYTES_MIN ((size_t)4096)
#define TOW_ARENA_BLOCK_BYTES_MAX ((size_t)1 << 20)

/* What a pool takes from the heap at a time. Objects are carved out as they
 * are first needed, so an unused tail costs address space, not memory. */
#define TOW_POOL_SLAB_BYTES ((size_t)65536)

/* Below this many bytes CRC32C uses the processor's instruction directly, from
 * it on ISA-L. Measured: 8 bytes 2 ns against ISA-L's 16, 64 bytes 8 against
 * 15, 192 bytes 25 against 32; at 256 bytes ISA-L folds 16 bytes at a time and
 * takes 16 against 34. Wrong by a factor of two costs about 15 ns a frame. */
#define TOW_CRC32C_SMALL_BYTES_MAX ((size_t)255)

/* Real trace time is the processor's tick counter, tied to CLOCK_MONOTONIC
 * again after this long. Ticks cost 10 ns to read against 22 for clock_gettime,
 * twice a zone. A longer window lets the two drift further apart: at 100 ppm of
 * error in the measured rate, 10 ms is 1 us. */
#define TOW_TRACE_ANCHOR_WINDOW_NS 10000000

/* Shareable blocks take one file descriptor each, of the 1,024 that a process
 * has by default. Buffers beyond this number come from other memory and are
 * copied when they are sent. Sizes are whole huge pages, or, below one, a
 * multiple of STEP. From BYTES_MIN on sharing is cheaper than copying: 1 MiB is
 * read from another process in 200 us, and a share that is mapped already takes
 * two messages. */
#define TOW_BLOCK_COUNT_MAX  256
#define TOW_BLOCK_HUGE_BYTES ((size_t)2 << 20)
#define TOW_BLOCK_STEP_BYTES ((size_t)64 << 10)
#define TOW_BLOCK_BYTES_MIN  ((size_t)1 << 20)
/* Sizes remembered for tow_block_is_preferred. */
#define TOW_BLOCK_PREFERRED_COUNT 64

#endif /* TOW_BASE_TUNING_H_ */
