/* Input: a byte of flags, then a stream of frames. Every frame that parses is
 * decoded as a message of its type. */
#include <stdlib.h>
#include <string.h>

#include "base/assert.h"
#include "fuzz.h"
#include "wire/frame.h"
#include "wire/message.h"

#define SIZE_MAX_HERE   4096u
#define ARENA_BYTES_MAX ((size_t)1 << 20)

enum {
    MEND = 1, /* correct the checksums, which a fuzzer cannot guess */
};

static uint32_t load_u32(const uint8_t *bytes)
{
    return bytes[0] | (uint32_t)bytes[1] << 8 | (uint32_t)bytes[2] << 16 |
           (uint32_t)bytes[3] << 24;
}

static void mend(uint8_t *stream, size_t count)
{
    size_t at = 0;
    while (count - at >= TOW_FRAME_HEADER_SIZE) {
        uint8_t *frame = stream + at;
        uint32_t size = load_u32(frame);
        if (size > count - at - TOW_FRAME_HEADER_SIZE) return;
        tow_frame_seal(frame, (uint16_t)(frame[4] | frame[5] << 8), size);
        at += TOW_FRAME_HEADER_SIZE + size;
    }
}

static void decode(const tow_frame_t *frame)
{
    tow_arena_t arena;
    const tow_body_t *body;
    tow_arena_init(&arena, ARENA_BYTES_MAX);
    tow_status_t status = tow_message_decode(frame->type, frame->payload,
                                             frame->size, &arena, &body);
    TOW_ASSERT((status == TOW_OK) == (body != NULL));
    tow_status_release(status);
    tow_arena_deinit(&arena);
}

/* The verdict on a prefix must not change with more bytes. */
static void check_prefix(const uint8_t *bytes, size_t count,
                         tow_frame_result_t whole, size_t frame_size)
{
    size_t some = count / 2 < 64 ? count / 2 : 64, needed = 0;
    tow_frame_t frame;
    tow_status_t error = TOW_OK;
    switch (
        tow_frame_parse(bytes, some, SIZE_MAX_HERE, &frame, &needed, &error)) {
    case TOW_FRAME_READY: TOW_ASSERT(whole == TOW_FRAME_READY); break;
    case TOW_FRAME_BAD: TOW_ASSERT(whole == TOW_FRAME_BAD); break;
    case TOW_FRAME_PARTIAL:
        TOW_ASSERT(needed > some);
        if (whole == TOW_FRAME_READY) TOW_ASSERT(needed <= frame_size);
        break;
    }
    tow_status_release(error);
}

/* Returns the size of the frame; 0 if no more can be parsed. */
static size_t parse_one(const uint8_t *bytes, size_t count)
{
    tow_frame_t frame;
    size_t needed = 0, size = 0;
    tow_status_t error = TOW_OK;
    tow_frame_result_t result =
        tow_frame_parse(bytes, count, SIZE_MAX_HERE, &frame, &needed, &error);
    if (result == TOW_FRAME_READY) {
        size = TOW_FRAME_HEADER_SIZE + frame.size;
        TOW_ASSERT(size <= count && frame.size <= SIZE_MAX_HERE);
        decode(&frame);
    }
    TOW_ASSERT((result == TOW_FRAME_BAD) == (error != TOW_OK));
    if (result == TOW_FRAME_PARTIAL)
        TOW_ASSERT(needed > count &&
                   needed <= TOW_FRAME_HEADER_SIZE + SIZE_MAX_HERE);
    check_prefix(bytes, count, result, size);
    tow_status_release(error);
    return size;
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t count)
{
    if (count == 0) return 0;
    size_t stream_count = count - 1, at = 0, size;
    uint8_t *stream = malloc(stream_count + (stream_count == 0));
    TOW_ASSERT(stream != NULL);
    memcpy(stream, bytes + 1, stream_count);
    if (bytes[0] & MEND) mend(stream, stream_count);
    while ((size = parse_one(stream + at, stream_count - at)) > 0)
        at += size;
    free(stream);
    return 0;
}
