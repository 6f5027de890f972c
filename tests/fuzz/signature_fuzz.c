/* Input: a signature. It is refused, or survives another round trip
 * unchanged. */
#include <string.h>

#include "base/alloc.h"
#include "base/assert.h"
#include "device/signature.h"
#include "fuzz.h"

#define ARENA_BYTES_MAX ((size_t)64 << 20)

static tow_bytes_t pack(const tow_signature_t *signature)
{
    void *bytes;
    size_t size;
    TOW_ASSERT(tow_signature_pack(signature, &bytes, &size) == TOW_OK);
    return (tow_bytes_t){bytes, size};
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t count)
{
    static tow_arena_t arena;
    if (arena.bytes_max == 0) tow_arena_init(&arena, ARENA_BYTES_MAX);
    tow_arena_reset(&arena);
    tow_signature_t signature, again;
    tow_status_t status =
        tow_signature_unpack((tow_bytes_t){bytes, count}, &arena, &signature);
    TOW_ASSERT(tow_status_code(status) != TOW_RESOURCE_EXHAUSTED);
    if (status == TOW_OK) {
        tow_bytes_t first = pack(&signature);
        TOW_ASSERT(tow_signature_unpack(first, &arena, &again) == TOW_OK);
        tow_bytes_t second = pack(&again);
        TOW_ASSERT(first.size == second.size &&
                   memcmp(first.data, second.data, first.size) == 0);
        tow_free((void *)first.data);
        tow_free((void *)second.data);
    }
    tow_status_release(status);
    return 0;
}
