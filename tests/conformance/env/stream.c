#include "stream.h"

#include "probe.h"

/* One in eight may be large, the others fit into a few cache lines. */
static uint32_t stream_size(const stream_t *stream)
{
    tow_random_t random;
    tow_random_init(&random, stream->seed ^ (stream->next * 0x9e3779b97f4au));
    uint32_t bound = stream->size_max;
    if (tow_random_below(&random, 8) != 0 && bound > 200) bound = 200;
    return (uint32_t)tow_random_below(&random, (uint64_t)bound + 1);
}

static uint64_t stream_content(const stream_t *stream)
{
    return stream->seed * 1000003 + stream->next;
}

tow_send_result_t stream_send(stream_t *stream, tow_link_t *link)
{
    uint32_t size = stream_size(stream);
    uint8_t *room = NULL;
    tow_send_result_t result = tow_link_begin(link, size, &room);
    if (result != TOW_SEND_OK) return result;
    pattern_fill(room, size, stream_content(stream));
    call_enter();
    tow_link_commit(link, stream->next & UINT16_MAX, size);
    call_leave();
    stream->next++;
    return TOW_SEND_OK;
}

tow_send_result_t stream_pump(stream_t *stream, tow_link_t *link, uint64_t end)
{
    tow_send_result_t result = TOW_SEND_OK;
    while (result == TOW_SEND_OK && stream->next < end)
        result = stream_send(stream, link);
    return result;
}

void stream_expect(stream_t *stream, const tow_message_t *message)
{
    unsigned long long number = stream->next;
    if (message->type != (stream->next & UINT16_MAX))
        fail_msg("message %llu: type %u came out of order", number,
                 message->type);
    if (message->size != stream_size(stream))
        fail_msg("message %llu: %u bytes came, %u were sent", number,
                 message->size, stream_size(stream));
    size_t good =
        pattern_check(message->bytes, message->size, stream_content(stream));
    if (good != message->size)
        fail_msg("message %llu: byte %zu of %u is altered", number, good,
                 message->size);
    stream->next++;
}
