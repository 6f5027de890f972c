/* Cuts the bytes received on a socket into frames. A frame that arrived whole
 * is parsed in place; only an incomplete one is copied, into a buffer that
 * grows with its bytes (never beyond them by more than half) and is freed after
 * it. */
#ifndef TOW_ENV_NET_INBOX_H_
#define TOW_ENV_NET_INBOX_H_

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "wire/frame.h"

typedef struct tow_net_inbox {
    uint8_t *bytes; /* owned: the start of a frame */
    size_t count;
    size_t capacity;
    size_t needed; /* size of the whole frame, as far as known */
    bool is_spent; /* the frame in `bytes` has been returned */
} tow_net_inbox_t;

/* Zeroed memory is an empty inbox; clear empties it and frees. */
void tow_net_inbox_clear(tow_net_inbox_t *inbox);

/* Asserts the invariants of the inbox. */
void tow_net_inbox_check(const tow_net_inbox_t *inbox);

/* Bytes just received. */
typedef struct tow_net_input {
    const uint8_t *bytes; /* lent */
    size_t count;
} tow_net_input_t;

/* The next frame from the bytes held and from *input, which is advanced. READY:
 * the payload is valid until the next call. PARTIAL: the input is consumed. BAD
 * sets *out_error: not a frame, larger than `size_max`, or out of memory. */
tow_frame_result_t tow_net_inbox_next(tow_net_inbox_t *inbox,
                                      tow_net_input_t *input, uint32_t size_max,
                                      tow_frame_t *out_frame,
                                      tow_status_t *out_error);

/* Space to which the socket may be read directly, when a large frame misses
 * many bytes; returns its size, or 0. Afterwards `added` takes the number of
 * bytes read. */
size_t tow_net_inbox_room(tow_net_inbox_t *inbox, uint8_t **out_bytes);
void tow_net_inbox_added(tow_net_inbox_t *inbox, size_t count);

/* The number of bytes held of an incomplete frame. */
static inline size_t tow_net_inbox_held(const tow_net_inbox_t *inbox)
{
    return inbox->is_spent ? 0 : inbox->count;
}

#endif /* TOW_ENV_NET_INBOX_H_ */
