#include "env/net/inbox.h"

#include <string.h>

#include "base/alloc.h"
#include "base/assert.h"
#include "env/tuning.h"

void tow_net_inbox_clear(tow_net_inbox_t *inbox)
{
    tow_free(inbox->bytes);
    *inbox = (tow_net_inbox_t){0};
}

/* Discards the frame that was returned last. */
static void discard_spent(tow_net_inbox_t *inbox)
{
    if (!inbox->is_spent) return;
    if (inbox->capacity > TOW_NET_INBOX_KEEP_BYTES) {
        tow_net_inbox_clear(inbox);
        return;
    }
    inbox->count = inbox->needed = 0;
    inbox->is_spent = false;
}

/* Grows the buffer to hold `wanted` bytes, by doubling: a peer that announces a
 * large frame and sends little of it makes us allocate little. */
static bool grow(tow_net_inbox_t *inbox, size_t wanted)
{
    if (wanted <= inbox->capacity) return true;
    size_t capacity = inbox->capacity * 2;
    if (capacity < TOW_NET_INBOX_KEEP_BYTES)
        capacity = TOW_NET_INBOX_KEEP_BYTES;
    if (capacity > inbox->needed && inbox->needed > TOW_NET_INBOX_KEEP_BYTES)
        capacity = inbox->needed;
    if (capacity < wanted) capacity = wanted;
    uint8_t *bytes = tow_realloc(inbox->bytes, capacity);
    if (bytes == NULL) return false;
    inbox->bytes = bytes;
    inbox->capacity = capacity;
    return true;
}

/* Appends up to `wanted` bytes of the input to those held. */
static bool take(tow_net_inbox_t *inbox, tow_net_input_t *input, size_t wanted)
{
    if (wanted > input->count) wanted = input->count;
    if (wanted == 0) return true;
    if (!grow(inbox, inbox->count + wanted)) return false;
    memcpy(inbox->bytes + inbox->count, input->bytes, wanted);
    inbox->count += wanted;
    input->bytes += wanted;
    input->count -= wanted;
    return true;
}

static tow_frame_result_t out_of_memory(tow_status_t *out_error)
{
    *out_error =
        TOW_ERROR(TOW_RESOURCE_EXHAUSTED, "no memory for an incoming frame");
    return TOW_FRAME_BAD;
}

/* Completes a partially received frame from the input. At most three rounds:
 * the header, the payload, and the check that finds it complete. */
static tow_frame_result_t next_of_held(tow_net_inbox_t *inbox,
                                       tow_net_input_t *input,
                                       uint32_t size_max,
                                       tow_frame_t *out_frame,
                                       tow_status_t *out_error)
{
    for (;;) {
        if (inbox->needed > inbox->count &&
            !take(inbox, input, inbox->needed - inbox->count))
            return out_of_memory(out_error);
        if (inbox->count < inbox->needed) return TOW_FRAME_PARTIAL;
        tow_frame_result_t result =
            tow_frame_parse(inbox->bytes, inbox->count, size_max, out_frame,
                            &inbox->needed, out_error);
        if (result == TOW_FRAME_READY) inbox->is_spent = true;
        if (result != TOW_FRAME_PARTIAL) return result;
        TOW_ASSERT(inbox->needed > inbox->count);
    }
}

tow_frame_result_t tow_net_inbox_next(tow_net_inbox_t *inbox,
                                      tow_net_input_t *input, uint32_t size_max,
                                      tow_frame_t *out_frame,
                                      tow_status_t *out_error)
{
    discard_spent(inbox);
    if (inbox->count > 0)
        return next_of_held(inbox, input, size_max, out_frame, out_error);
    if (input->count == 0) return TOW_FRAME_PARTIAL;
    tow_frame_result_t result =
        tow_frame_parse(input->bytes, input->count, size_max, out_frame,
                        &inbox->needed, out_error);
    if (TOW_LIKELY(result == TOW_FRAME_READY)) {
        size_t taken = TOW_FRAME_HEADER_SIZE + out_frame->size;
        input->bytes += taken;
        input->count -= taken;
    } else if (result == TOW_FRAME_PARTIAL &&
               !take(inbox, input, input->count)) {
        return out_of_memory(out_error);
    }
    return result;
}

size_t tow_net_inbox_room(tow_net_inbox_t *inbox, uint8_t **out_bytes)
{
    if (inbox->is_spent || inbox->count < TOW_FRAME_HEADER_SIZE ||
        inbox->needed < inbox->count + TOW_NET_DIRECT_READ_BYTES)
        return 0;
    if (inbox->capacity - inbox->count < TOW_NET_DIRECT_READ_BYTES &&
        !grow(inbox, inbox->count + TOW_NET_DIRECT_READ_BYTES))
        return 0; /* The path through the shared buffer reports it. */
    *out_bytes = inbox->bytes + inbox->count;
    size_t missing = inbox->needed - inbox->count;
    size_t room = inbox->capacity - inbox->count;
    if (room > missing) room = missing;
    return room < TOW_NET_DIRECT_READ_BYTES_MAX ? room
                                                : TOW_NET_DIRECT_READ_BYTES_MAX;
}

void tow_net_inbox_added(tow_net_inbox_t *inbox, size_t count)
{
    TOW_ASSERT(inbox->count + count <= inbox->capacity);
    inbox->count += count;
}
