/* Hashes: XXH3 for tables and digests, CRC32C for frames and bulk data, and a
 * mixer for integer keys. */
#ifndef TOW_BASE_HASH_H_
#define TOW_BASE_HASH_H_

#include <stddef.h>
#include <stdint.h>

/* XXH3 of the bytes. Same value on every machine. */
uint64_t tow_hash_bytes(const void *bytes, size_t count, uint64_t seed);

/* CRC32C (Castagnoli), continued from `crc` (0 to begin). */
uint32_t tow_crc32c(uint32_t crc, const void *bytes, size_t count);

/* A bijection of 64-bit numbers whose low bits depend on all bits. */
static inline uint64_t tow_mix64(uint64_t x)
{
    x ^= x >> 32;
    x *= 0xd6e8feb86659fd93u;
    x ^= x >> 32;
    x *= 0xd6e8feb86659fd93u;
    x ^= x >> 32;
    return x;
}

#endif /* TOW_BASE_HASH_H_ */
