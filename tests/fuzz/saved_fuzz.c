/* Input: a saved executable. It is refused, or saving it again gives the same
 * bytes. Once as it is, and once with a corrected checksum, which no fuzzer
 * guesses. */
#include <endian.h>
#include <string.h>

#include "base/alloc.h"
#include "base/assert.h"
#include "base/hash.h"
#include "fuzz.h"
#include "pjrt/saved.h"

/* As in saved.c. */
#define CRC_OFFSET  12
#define CRC_COVERED 16

static void try_bytes(const uint8_t *bytes, size_t count)
{
    tow_saved_t saved;
    tow_status_t status = tow_saved_unpack((tow_bytes_t){bytes, count}, &saved);
    if (status == TOW_OK) {
        void *again;
        size_t size;
        TOW_ASSERT(tow_saved_pack(&saved, &again, &size) == TOW_OK);
        TOW_ASSERT(size == count && memcmp(again, bytes, size) == 0);
        tow_free(again);
    }
    tow_status_release(status);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t count)
{
    try_bytes(bytes, count);
    if (count < CRC_COVERED) return 0;
    uint8_t *right = tow_malloc(count);
    TOW_ASSERT(right != NULL);
    memcpy(right, bytes, count);
    const uint32_t crc =
        htole32(tow_crc32c(0, bytes + CRC_COVERED, count - CRC_COVERED));
    memcpy(right + CRC_OFFSET, &crc, sizeof(crc));
    try_bytes(right, count);
    tow_free(right);
    return 0;
}
