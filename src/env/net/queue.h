/* The send queue of one link: frames in the order of sending, in chunks.
 *
 * A message is encoded where it will be sent from: begin returns a pointer
 * behind the space for the frame's header, commit completes the frame in place,
 * and the socket sends it from there. Bounded in bytes by
 * TOW_LINK_QUEUE_BYTES_MAX; memory is at most about twice that, whatever sizes
 * are reserved and committed. */
#ifndef TOW_ENV_NET_QUEUE_H_
#define TOW_ENV_NET_QUEUE_H_

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/uio.h>

#include "base/macros.h"
#include "env/env.h"

typedef struct tow_net_chunk {
    struct tow_net_chunk *next;
    uint32_t capacity;
    uint32_t begin; /* the next byte to send */
    uint32_t end;   /* behind the last committed byte */
    uint8_t bytes[];
} tow_net_chunk_t;

/* Spare chunks of the usual size, shared by all queues of a net. */
typedef struct tow_net_chunks {
    tow_net_chunk_t *spare; /* owned */
    size_t spare_count;
} tow_net_chunks_t;

void tow_net_chunks_deinit(tow_net_chunks_t *chunks);

typedef struct tow_net_queue {
    tow_net_chunks_t *chunks; /* lent by the net */
    tow_net_chunk_t *first;   /* owned list; NULL when empty */
    tow_net_chunk_t *last;
    tow_net_chunk_t *begun; /* owned: holds what was begun and is not yet in
                               the list, when the last chunk had no room */
    size_t bytes;           /* committed and not sent */
} tow_net_queue_t;

/* Zeroed memory with `chunks` set is an empty queue; clear empties it. */
void tow_net_queue_clear(tow_net_queue_t *queue);

typedef enum tow_net_queue_result {
    TOW_NET_QUEUE_OK,
    TOW_NET_QUEUE_FULL,
    TOW_NET_QUEUE_NO_MEMORY,
} tow_net_queue_result_t;

/* Asserts the invariants of the queue. O(n): for tests. */
void tow_net_queue_check(const tow_net_queue_t *queue);

/* Reserves `size_max` bytes for a payload, behind a header. */
tow_net_queue_result_t tow_net_queue_begin(tow_net_queue_t *queue,
                                           uint32_t size_max,
                                           uint8_t **out_payload) TOW_MUST_USE;
/* Completes the frame whose payload was written after begin. */
void tow_net_queue_commit(tow_net_queue_t *queue, uint16_t type, uint32_t size);
/* Appends raw bytes, without a frame: those of a handshake. */
tow_net_queue_result_t tow_net_queue_append(tow_net_queue_t *queue,
                                            const uint8_t *bytes, size_t count)
    TOW_MUST_USE;

/* The next bytes to send, as up to `count_max` pieces; returns the number of
 * pieces. */
size_t tow_net_queue_peek(const tow_net_queue_t *queue, struct iovec *pieces,
                          size_t count_max);
/* Removes `count` bytes, which have been sent. */
void tow_net_queue_consume(tow_net_queue_t *queue, size_t count);

#endif /* TOW_ENV_NET_QUEUE_H_ */
