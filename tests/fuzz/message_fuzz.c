/* Input: a byte that selects the type, then the bytes of a message. A message
 * that decodes survives another round trip unchanged. */
#include <stdlib.h>
#include <string.h>

#include "base/assert.h"
#include "fuzz.h"
#include "wire/message.h"

/* Room for two decoded messages. The worst case is a repeated message field,
 * whose elements take two bytes each on the wire and 150 in memory. */
#define ARENA_BYTES_MAX ((size_t)64 << 20)

static size_t encode(const tow_body_t *body, uint8_t **out_bytes)
{
    size_t size = tow_message_size(body);
    *out_bytes = malloc(size + 1);
    TOW_ASSERT(*out_bytes != NULL);
    TOW_ASSERT(tow_message_encode(body, *out_bytes) == size);
    return size;
}

static void check_round_trip(uint32_t type, const tow_body_t *body,
                             tow_arena_t *arena)
{
    uint8_t *first, *second;
    const tow_body_t *again;
    size_t first_size = encode(body, &first);
    tow_status_t status =
        tow_message_decode(type, first, first_size, arena, &again);
    TOW_ASSERT(status == TOW_OK);
    size_t second_size = encode(again, &second);
    TOW_ASSERT(first_size == second_size);
    TOW_ASSERT(memcmp(first, second, first_size) == 0);
    free(first);
    free(second);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t count)
{
    static tow_arena_t arena;
    if (arena.bytes_max == 0) tow_arena_init(&arena, ARENA_BYTES_MAX);
    if (count == 0) return 0;
    uint32_t type = bytes[0] % (TOW_MESSAGE_TYPE_COUNT + 1);
    const tow_body_t *body;
    tow_arena_reset(&arena);
    tow_status_t status =
        tow_message_decode(type, bytes + 1, count - 1, &arena, &body);
    TOW_ASSERT((status == TOW_OK) == (body != NULL));
    if (status == TOW_OK)
        check_round_trip(type, body, &arena);
    else
        TOW_ASSERT(tow_status_code(status) != TOW_RESOURCE_EXHAUSTED);
    tow_status_release(status);
    return 0;
}
