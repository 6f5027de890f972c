/* Cuts what a socket brings into frames. Frames that came whole are parsed where
 * they lie; only one that is cut off is copied, into a buffer that grows as its
 * bytes arrive (never ahead of them by more than half) and goes away after it. */
#ifndef TOW_ENV_NET_INBOX_H_
#define TOW_ENV_NET_INBOX_H_

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "wire/frame.h"

typedef struct tow_net_inbox {
    uint8_t *bytes; /* owned: the beginning of a frame */
    size_t count;
    size_t capacity;
    size_t needed; /* bytes of the whole frame, as far as is known */
    bool is_spent; /* the frame in `bytes` has been handed out */
} tow_net_inbox_t;

/* Zeroed memory is an empty inbox; clear empties it and frees. */
void tow_net_inbox_clear(tow_net_inbox_t *inbox);

/* The bytes that have just arrived. */
typedef struct tow_net_input {
    const uint8_t *bytes; /* lent */
    size_t count;
} tow_net_input_t;

/* The next frame of what is held and of *input, which moves on. READY: the
 * payload lives until the next call. PARTIAL: all of the input is taken. BAD
 * sets *out_error: not a frame, larger than `size_max`, or no memory. */
tow_frame_result_t tow_net_inbox_next(tow_net_inbox_t *inbox,
                                      tow_net_input_t *input, uint32_t size_max,
                                      tow_frame_t *out_frame,
                                      tow_status_t *out_error);

/* Where the socket may read to directly, when a large frame misses much: 0, or
 * the room at *out_bytes. `added` then tells how much came. */
size_t tow_net_inbox_room(tow_net_inbox_t *inbox, uint8_t **out_bytes);
void tow_net_inbox_added(tow_net_inbox_t *inbox, size_t count);

/* Bytes of a frame that is not whole. */
static inline size_t tow_net_inbox_held(const tow_net_inbox_t *inbox)
{
    return inbox->is_spent ? 0 : inbox->count;
}

#endif /* TOW_ENV_NET_INBOX_H_ */
