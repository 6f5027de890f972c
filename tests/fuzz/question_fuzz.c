/* Whatever is said to be a question of a compiler's, or an answer, either is
 * refused, or is one that we could have sent: it packs again, and unpacks to the
 * same bytes. */
#include <string.h>

#include "base/alloc.h"
#include "base/assert.h"
#include "device/question.h"
#include "fuzz.h"

#define ARENA_BYTES_MAX ((size_t)256 << 20)

static tow_arena_t arena;

static tow_bytes_t pack_question(const tow_xla_question_t *question)
{
    void *bytes;
    size_t size;
    TOW_ASSERT(tow_question_pack(question, &bytes, &size) == TOW_OK);
    return (tow_bytes_t){bytes, size};
}

static tow_bytes_t pack_answer(const tow_xla_answer_t *answer)
{
    void *bytes;
    size_t size;
    TOW_ASSERT(tow_answer_pack(answer, &bytes, &size) == TOW_OK);
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
    tow_xla_question_t question, again;
    tow_status_t status = tow_question_unpack(bytes, &arena, &question);
    if (status == TOW_OK) {
        tow_bytes_t first = pack_question(&question);
        TOW_ASSERT(tow_question_unpack(first, &arena, &again) == TOW_OK);
        expect_same(first, pack_question(&again));
    }
    tow_status_release(status);
}

static void try_answer(tow_bytes_t bytes)
{
    tow_xla_answer_t answer, again;
    tow_status_t status = tow_answer_unpack(bytes, &arena, &answer);
    if (status == TOW_OK) {
        tow_bytes_t first = pack_answer(&answer);
        TOW_ASSERT(tow_answer_unpack(first, &arena, &again) == TOW_OK);
        expect_same(first, pack_answer(&again));
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
