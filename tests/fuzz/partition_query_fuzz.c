/* Input: a partition query or a reply. It is refused, or survives another round
 * trip unchanged. */
#include <string.h>

#include "base/alloc.h"
#include "base/assert.h"
#include "device/partition_query.h"
#include "fuzz.h"

#define ARENA_BYTES_MAX ((size_t)256 << 20)

static tow_arena_t arena;

static tow_bytes_t pack_query(const tow_xla_partition_query_t *query)
{
    void *bytes;
    size_t size;
    TOW_ASSERT(tow_partition_query_pack(query, &bytes, &size) == TOW_OK);
    return (tow_bytes_t){bytes, size};
}

static tow_bytes_t pack_reply(const tow_xla_partition_reply_t *reply)
{
    void *bytes;
    size_t size;
    TOW_ASSERT(tow_partition_reply_pack(reply, &bytes, &size) == TOW_OK);
    return (tow_bytes_t){bytes, size};
}

static void expect_same(tow_bytes_t take_first, tow_bytes_t take_second)
{
    TOW_ASSERT(take_first.size == take_second.size &&
               memcmp(take_first.data, take_second.data, take_first.size) == 0);
    tow_free((void *)take_first.data);
    tow_free((void *)take_second.data);
}

static void try_question(tow_bytes_t bytes)
{
    tow_xla_partition_query_t query, again;
    tow_status_t status = tow_partition_query_unpack(bytes, &arena, &query);
    if (status == TOW_OK) {
        tow_bytes_t first = pack_query(&query);
        TOW_ASSERT(tow_partition_query_unpack(first, &arena, &again) == TOW_OK);
        expect_same(first, pack_query(&again));
    }
    tow_status_release(status);
}

static void try_answer(tow_bytes_t bytes)
{
    tow_xla_partition_reply_t reply, again;
    tow_status_t status = tow_partition_reply_unpack(bytes, &arena, &reply);
    if (status == TOW_OK) {
        tow_bytes_t first = pack_reply(&reply);
        TOW_ASSERT(tow_partition_reply_unpack(first, &arena, &again) == TOW_OK);
        expect_same(first, pack_reply(&again));
    }
    tow_status_release(status);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t count)
{
    if (arena.bytes_max == 0) tow_arena_init(&arena, ARENA_BYTES_MAX);
    tow_arena_reset(&arena);
    try_question((tow_bytes_t){bytes, count});
    try_answer((tow_bytes_t){bytes, count});
    return 0;
}
