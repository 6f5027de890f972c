#include "env/net/queue.h"

#include <string.h>

#include "base/alloc.h"
#include "env/tuning.h"
#include "wire/frame.h"

_Static_assert(TOW_LINK_QUEUE_BYTES_MAX >=
                   TOW_MESSAGE_SIZE_MAX + TOW_FRAME_HEADER_SIZE,
               "an empty queue takes the largest message");

static tow_net_chunk_t *chunk_take(tow_net_chunks_t *chunks, size_t wanted)
{
    tow_net_chunk_t *chunk = chunks->spare;
    if (wanted <= TOW_NET_CHUNK_BYTES && chunk != NULL) {
        chunks->spare = chunk->next;
        chunks->spare_count--;
    } else {
        if (wanted < TOW_NET_CHUNK_BYTES) wanted = TOW_NET_CHUNK_BYTES;
        chunk = tow_malloc(sizeof(*chunk) + wanted);
        if (chunk == NULL) return NULL;
        chunk->capacity = (uint32_t)wanted;
    }
    chunk->next = NULL;
    chunk->begin = chunk->end = 0;
    return chunk;
}

static void chunk_give(tow_net_chunks_t *chunks, tow_net_chunk_t *chunk)
{
    if (chunk->capacity != TOW_NET_CHUNK_BYTES ||
        chunks->spare_count >= TOW_NET_CHUNK_SPARE_COUNT) {
        tow_free(chunk);
        return;
    }
    chunk->next = chunks->spare;
    chunks->spare = chunk;
    chunks->spare_count++;
}

void tow_net_chunks_deinit(tow_net_chunks_t *chunks)
{
    while (chunks->spare != NULL) {
        tow_net_chunk_t *chunk = chunks->spare;
        chunks->spare = chunk->next;
        tow_free(chunk);
    }
    chunks->spare_count = 0;
}

static void remove_first(tow_net_queue_t *queue)
{
    tow_net_chunk_t *chunk = queue->first;
    queue->first = chunk->next;
    if (queue->first == NULL) queue->last = NULL;
    chunk_give(queue->chunks, chunk);
}

void tow_net_queue_clear(tow_net_queue_t *queue)
{
    while (queue->first != NULL)
        remove_first(queue);
    if (queue->begun != NULL) chunk_give(queue->chunks, queue->begun);
    queue->begun = NULL;
    queue->bytes = 0;
}

static bool fits_last(const tow_net_queue_t *queue, size_t wanted)
{
    const tow_net_chunk_t *last = queue->last;
    return TOW_LIKELY(last != NULL) && last->capacity - last->end >= wanted;
}

static void append_chunk(tow_net_queue_t *queue, tow_net_chunk_t *chunk)
{
    if (queue->last != NULL)
        queue->last->next = chunk;
    else
        queue->first = chunk;
    queue->last = chunk;
}

/* A contiguous space of `wanted` bytes: in the last chunk, or in a new chunk
 * that is not in the list yet. */
static tow_net_queue_result_t reserve(tow_net_queue_t *queue, size_t wanted,
                                      tow_net_chunk_t **out_chunk)
{
    TOW_ASSERT(queue->begun == NULL);
    if (queue->bytes + wanted > TOW_LINK_QUEUE_BYTES_MAX)
        return TOW_NET_QUEUE_FULL;
    *out_chunk = queue->last;
    if (fits_last(queue, wanted)) return TOW_NET_QUEUE_OK;
    *out_chunk = queue->begun = chunk_take(queue->chunks, wanted);
    return queue->begun != NULL ? TOW_NET_QUEUE_OK : TOW_NET_QUEUE_NO_MEMORY;
}

tow_net_queue_result_t tow_net_queue_begin(tow_net_queue_t *queue,
                                           uint32_t size_max,
                                           uint8_t **out_payload)
{
    tow_net_chunk_t *chunk;
    tow_net_queue_result_t result =
        reserve(queue, (size_t)size_max + TOW_FRAME_HEADER_SIZE, &chunk);
    if (TOW_UNLIKELY(result != TOW_NET_QUEUE_OK)) return result;
    *out_payload = chunk->bytes + chunk->end + TOW_FRAME_HEADER_SIZE;
    return TOW_NET_QUEUE_OK;
}

/* Frees most of a large chunk that was hardly filled. */
static tow_net_chunk_t *shrink(tow_net_chunk_t *chunk)
{
    tow_net_chunk_t *smaller = tow_realloc(chunk, sizeof(*chunk) + chunk->end);
    if (smaller == NULL) return chunk;
    smaller->capacity = smaller->end;
    return smaller;
}

/* Appends the separate chunk to the list. Unused space is freed here: otherwise
 * a series of tiny messages, each begun with the maximal size, would hold
 * megabytes each. */
static void place_begun(tow_net_queue_t *queue)
{
    tow_net_chunk_t *chunk = queue->begun;
    queue->begun = NULL;
    bool is_large = chunk->capacity > TOW_NET_CHUNK_BYTES;
    if (is_large && chunk->end <= TOW_NET_CHUNK_BYTES / 2 &&
        !fits_last(queue, chunk->end)) {
        tow_net_chunk_t *usual = chunk_take(queue->chunks, chunk->end);
        if (usual != NULL) append_chunk(queue, usual);
    }
    if (fits_last(queue, chunk->end)) {
        tow_net_chunk_t *last = queue->last;
        memcpy(last->bytes + last->end, chunk->bytes, chunk->end);
        last->end += chunk->end;
        chunk_give(queue->chunks, chunk);
        return;
    }
    if (is_large && chunk->end < chunk->capacity / 2) chunk = shrink(chunk);
    append_chunk(queue, chunk);
}

void tow_net_queue_commit(tow_net_queue_t *queue, uint16_t type, uint32_t size)
{
    tow_net_chunk_t *chunk = queue->begun != NULL ? queue->begun : queue->last;
    size_t taken = (size_t)size + TOW_FRAME_HEADER_SIZE;
    TOW_ASSERT(chunk != NULL && chunk->capacity - chunk->end >= taken);
    tow_frame_seal(chunk->bytes + chunk->end, type, size);
    chunk->end += (uint32_t)taken;
    queue->bytes += taken;
    if (queue->begun != NULL) place_begun(queue);
}

tow_net_queue_result_t tow_net_queue_append(tow_net_queue_t *queue,
                                            const uint8_t *bytes, size_t count)
{
    tow_net_chunk_t *chunk;
    tow_net_queue_result_t result = reserve(queue, count, &chunk);
    if (result != TOW_NET_QUEUE_OK) return result;
    memcpy(chunk->bytes + chunk->end, bytes, count);
    chunk->end += (uint32_t)count;
    queue->bytes += count;
    if (queue->begun != NULL) place_begun(queue);
    return TOW_NET_QUEUE_OK;
}

size_t tow_net_queue_peek(const tow_net_queue_t *queue, struct iovec *pieces,
                          size_t count_max)
{
    size_t count = 0;
    for (tow_net_chunk_t *chunk = queue->first;
         chunk != NULL && count < count_max; chunk = chunk->next) {
        if (chunk->begin == chunk->end) continue;
        pieces[count].iov_base = chunk->bytes + chunk->begin;
        pieces[count].iov_len = chunk->end - chunk->begin;
        count++;
    }
    return count;
}

void tow_net_queue_consume(tow_net_queue_t *queue, size_t count)
{
    TOW_ASSERT(count <= queue->bytes);
    queue->bytes -= count;
    while (queue->first != NULL) {
        tow_net_chunk_t *chunk = queue->first;
        size_t held = chunk->end - chunk->begin;
        if (count < held) {
            chunk->begin += (uint32_t)count;
            return;
        }
        count -= held;
        remove_first(queue);
    }
}
