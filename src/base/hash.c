#include "base/hash.h"

#include <isa-l/crc.h>
#include <stdbool.h>
#include <string.h>
#include <xxhash.h>

#include "base/macros.h"
#include "base/tuning.h"

uint64_t tow_hash_bytes(const void *bytes, size_t count, uint64_t seed)
{
    return XXH3_64bits_withSeed(bytes, count, seed);
}

/* The functions below work on the register as the polynomial division leaves
 * it. The standard's CRC32C is that register inverted before and after. */

/* ISA-L takes its length as an int. A multiple of 64 keeps its inner loop. */
#define ISAL_PIECE_BYTES ((size_t)1 << 30)

#if defined(__x86_64__)

/* ISA-L does not clear the upper halves of the vector registers. Until they are
 * cleared each plain SSE instruction of the caller costs about 300 ns:
 * measured on a frame of 256 bytes, 290 ns to parse against 25. */
__attribute__((target("avx"))) static void clear_upper_halves(void)
{
    __builtin_ia32_vzeroupper();
}

static void leave_vector_code(void)
{
    if (__builtin_cpu_supports("avx")) clear_upper_halves();
}

#else

static void leave_vector_code(void) {}

#endif

static uint32_t divide_large(uint32_t register_, const uint8_t *bytes,
                             size_t count)
{
    while (count > 0) {
        size_t piece = count < ISAL_PIECE_BYTES ? count : ISAL_PIECE_BYTES;
        /* ISA-L only reads the buffer; its declaration lacks the const. */
        register_ = crc32_iscsi((unsigned char *)bytes, (int)piece, register_);
        bytes += piece;
        count -= piece;
    }
    leave_vector_code();
    return register_;
}

#if defined(__x86_64__)

__attribute__((target("sse4.2"))) static uint32_t divide_small(
    uint32_t register_, const uint8_t *bytes, size_t count)
{
    uint64_t wide = register_;
    for (; count >= 8; bytes += 8, count -= 8) {
        uint64_t word;
        memcpy(&word, bytes, 8);
        wide = __builtin_ia32_crc32di(wide, word);
    }
    register_ = (uint32_t)wide;
    if (count & 4) {
        uint32_t word;
        memcpy(&word, bytes, 4);
        register_ = __builtin_ia32_crc32si(register_, word);
        bytes += 4;
    }
    if (count & 2) {
        uint16_t word;
        memcpy(&word, bytes, 2);
        register_ = __builtin_ia32_crc32hi(register_, word);
        bytes += 2;
    }
    if (count & 1) register_ = __builtin_ia32_crc32qi(register_, *bytes);
    return register_;
}

static bool has_crc_instruction(void)
{
    return __builtin_cpu_supports("sse4.2");
}

#else

/* Elsewhere ISA-L does small inputs too: it picks the best code for the
 * processor, down to a table. */
#define divide_small divide_large

static bool has_crc_instruction(void)
{
    return false;
}

#endif

uint32_t tow_crc32c(uint32_t crc, const void *bytes, size_t count)
{
    if (count <= TOW_CRC32C_SMALL_BYTES_MAX && has_crc_instruction())
        return ~divide_small(~crc, bytes, count);
    return ~divide_large(~crc, bytes, count);
}
