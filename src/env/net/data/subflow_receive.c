/* Striped writes that arrive. A thread reads a head, and asks the loop for its
 * write; further fragments of the same write it receives by itself, straight
 * into the region, which stays pinned for the job. Nothing of a head is trusted
 * beyond what the parser has checked, and a write fits into its region before a
 * thread gets it.
 *
 * A region that closes cancels the writes into it. A thread announces that it
 * writes (is_writing) before it looks whether its write is cancelled; the loop
 * cancels the write before it looks whether the thread writes. So one of them
 * sees the other, and the region waits for threads in a fragment only, not for
 * those that wait for the next one. */
#include <errno.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>

#include "base/alloc.h"
#include "base/hash.h"
#include "env/net/data/trunk_impl.h"

/* -- On threads ------------------------------------------------------------ */

size_t subflow_receive_cipher(void *context, void *bytes, size_t capacity)
{
    subflow_t *subflow = context;
    const ssize_t count =
        recv(subflow->source.fd, bytes, capacity, MSG_DONTWAIT);
    subflow->receive_error = count < 0 ? errno : 0;
    subflow->has_ended = count == 0;
    return count > 0 ? (size_t)count : 0;
}

/* Nothing was read. False: the job has ended. */
static bool await_more(subflow_t *subflow)
{
    const int error = subflow->receive_error;
    if (subflow->has_ended) {
        subflow_break(subflow, "the peer closed it");
        return false;
    }
    if (error != 0 && error != EAGAIN && error != EINTR) {
        subflow_break(subflow, strerrordesc_np(error));
        return false;
    }
    return subflow_wait(subflow, POLLIN);
}

/* At least one byte. 0: the job has ended. */
static size_t read_some(subflow_t *subflow, void *bytes, size_t capacity)
{
    for (;;) {
        size_t count = 0;
        bool is_closed = false;
        tow_status_t status =
            tow_tls_read(subflow->tls, bytes, capacity, &count, &is_closed);
        if (status != TOW_OK) {
            subflow_break_status(subflow, status);
            return 0;
        }
        if (is_closed) {
            subflow_break(subflow, "the peer closed it");
            return 0;
        }
        /* We never send here, so TLS must not want to. */
        if (tow_tls_drain_pending(subflow->tls) > 0) {
            subflow_refuse(subflow, "new keys for a subflow");
            return 0;
        }
        if (count > 0) return count;
        if (!await_more(subflow)) return 0;
    }
}

/* NULL, or what is wrong. */
static const char *parse_head(subflow_t *subflow)
{
    tow_data_frame_t frame;
    tow_data_ring_ref_t ref;
    const uint8_t *header = subflow->head + sizeof(frame);
    memcpy(&frame, subflow->head, sizeof(frame));
    if (frame.id != TOW_DATA_FRAGMENT) return "no fragment on a subflow";
    const char *problem = tow_data_check_frame(&frame);
    if (problem != NULL) return problem;
    memcpy(&subflow->fragment, header, sizeof(subflow->fragment));
    if (subflow->fragment.flags & TOW_DATA_IN_RING)
        return "a fragment in a ring, from another host";
    subflow->size = frame.payload_size;
    subflow->count = 0;
    return tow_data_parse_fragment(header, frame.header_size, NULL,
                                   frame.payload_size, &subflow->fragment,
                                   &ref);
}

/* False: the job has ended, possibly because the loop has to find the write. */
static bool receive_head(subflow_t *subflow)
{
    const size_t count = read_some(subflow, subflow->head + subflow->head_count,
                                   SUBFLOW_HEAD_SIZE - subflow->head_count);
    subflow->head_count += count;
    if (count == 0) return false;
    if (subflow->head_count < SUBFLOW_HEAD_SIZE) return true;
    const char *problem = parse_head(subflow);
    if (problem != NULL) subflow_refuse(subflow, problem);
    return problem == NULL && subflow->arriving != NULL &&
           tow_data_fragment_is_of(&subflow->arriving->first,
                                   &subflow->fragment);
}

/* Over the bytes in the region, not over those received: end to end. */
static void check_bytes(subflow_t *subflow)
{
    const tow_data_fragment_t *fragment = &subflow->fragment;
    if (subflow->target == NULL) return;
    uint8_t *bytes = subflow->target + fragment->at;
    if (subflow->is_to_damage) bytes[subflow->size / 2] ^= 1;
    subflow->is_to_damage = false;
    if ((fragment->flags & TOW_DATA_CHECKED) &&
        tow_crc32c(0, bytes, subflow->size) != fragment->crc)
        atomic_store(&subflow->arriving->is_damaged, true);
}

/* False if that was the last fragment of the write: the loop completes it. */
static bool finish_fragment(subflow_t *subflow)
{
    arriving_t *arriving = subflow->arriving;
    check_bytes(subflow);
    subflow->head_count = 0;
    atomic_store(&subflow->is_writing, false);
    if (arriving == NULL) return true;
    return atomic_fetch_add(&arriving->received, subflow->size) +
               subflow->size <
           arriving->first.total;
}

/* False: the job has ended. */
static bool receive_payload(subflow_t *subflow, size_t *out_count)
{
    uint8_t ignored[16 << 10];
    size_t size = subflow->size - subflow->count;
    if (size > TOW_NET_SUBFLOW_READ_BYTES) size = TOW_NET_SUBFLOW_READ_BYTES;
    uint8_t *room = ignored;
    if (subflow->target != NULL) {
        atomic_store(&subflow->is_writing, true);
        if (atomic_load(&subflow->arriving->is_cancelled)) return false;
        room = subflow->target + subflow->fragment.at + subflow->count;
    } else if (size > sizeof(ignored)) {
        size = sizeof(ignored);
    }
    *out_count = read_some(subflow, room, size);
    subflow->count += (uint32_t)*out_count;
    if (*out_count == 0) return false;
    return subflow->count < subflow->size || finish_fragment(subflow);
}

void subflow_receive(subflow_t *subflow)
{
    size_t left = TOW_NET_SUBFLOW_TURN_BYTES;
    size_t count;
    while (left > 0 && !atomic_load(&subflow->is_stopped)) {
        count = 0;
        if (subflow->head_count < SUBFLOW_HEAD_SIZE
                ? !receive_head(subflow)
                : !receive_payload(subflow, &count))
            return;
        left -= count < left ? count : left;
    }
}

/* -- Writes that arrive, on the loop ---------------------------------------- */

static void free_if_over(arriving_t *arriving)
{
    if (arriving->inbound == NULL && tow_list_is_empty(&arriving->jobs))
        tow_free(arriving);
}

static void unpin(subflow_t *subflow)
{
    if (subflow->region == NULL) return;
    tow_data_region_release(subflow->region);
    subflow->region = NULL;
}

/* From now on, threads do not begin to write into the region. */
static void leave_region(arriving_t *arriving)
{
    const tow_list_t *head = &arriving->jobs;
    atomic_store(&arriving->is_cancelled, true);
    for (tow_list_t *at = head->next; at != head; at = at->next) {
        subflow_t *subflow = TOW_CONTAINER_OF(at, subflow_t, in_arriving);
        if (!atomic_load(&subflow->is_writing)) unpin(subflow);
    }
    tow_list_remove(&arriving->in_region);
    arriving->region = NULL;
}

static void leave_inbound(arriving_t *arriving)
{
    leave_region(arriving);
    tow_list_remove(&arriving->in_inbound);
    arriving->inbound->arriving_count--;
    arriving->inbound = NULL;
}

void tow_data_arriving_cancel_of_inbound(tow_data_inbound_t *inbound)
{
    while (!tow_list_is_empty(&inbound->arriving)) {
        arriving_t *arriving =
            TOW_CONTAINER_OF(inbound->arriving.next, arriving_t, in_inbound);
        leave_inbound(arriving);
        free_if_over(arriving);
    }
}

void tow_data_arriving_cancel_of_region(tow_data_region_t *region)
{
    while (!tow_list_is_empty(&region->arriving)) {
        arriving_t *arriving =
            TOW_CONTAINER_OF(region->arriving.next, arriving_t, in_region);
        arriving->code = TOW_NOT_FOUND;
        leave_region(arriving);
    }
}

static arriving_t *create_arriving(tow_data_inbound_t *inbound,
                                   const tow_data_fragment_t *fragment)
{
    arriving_t *arriving = tow_calloc(1, sizeof(*arriving));
    if (arriving == NULL) return NULL;
    const tow_data_extent_t span = tow_data_extent_of(fragment);
    arriving->inbound = inbound;
    arriving->first = *fragment;
    tow_list_append(&inbound->arriving, &arriving->in_inbound);
    inbound->arriving_count++;
    tow_list_init(&arriving->in_region);
    tow_list_init(&arriving->jobs);
    arriving->code =
        tow_data_region_find(inbound->data, &span, &arriving->region);
    if (arriving->code == TOW_CODE_OK)
        tow_list_append(&arriving->region->arriving, &arriving->in_region);
    return arriving;
}

static arriving_t *find(tow_data_inbound_t *inbound, uint64_t write)
{
    const tow_list_t *head = &inbound->arriving;
    for (tow_list_t *at = head->next; at != head; at = at->next) {
        arriving_t *arriving = TOW_CONTAINER_OF(at, arriving_t, in_inbound);
        if (arriving->first.write == write) return arriving;
    }
    return NULL;
}

/* The job may write into the region until it has ended. */
static void join(subflow_t *subflow, arriving_t *arriving)
{
    tow_data_t *data = subflow->trunk->data;
    tow_list_append(&arriving->jobs, &subflow->in_arriving);
    subflow->arriving = arriving;
    atomic_store(&subflow->is_writing, false);
    if (arriving->region == NULL) return;
    subflow->region = arriving->region;
    subflow->region->pin_count++;
    subflow->target = subflow->region->bytes + arriving->first.place;
    if (TOW_LIKELY(data->damage_count == 0)) return;
    data->damage_count--;
    subflow->is_to_damage = true;
}

const char *subflow_find_arriving(subflow_t *subflow)
{
    const tow_data_fragment_t *fragment = &subflow->fragment;
    TOW_ASSERT(subflow->arriving == NULL && subflow->region == NULL);
    if (subflow->head_count < SUBFLOW_HEAD_SIZE) return NULL;
    /* Its lane may have been closed by force: the bytes are ignored. */
    tow_data_inbound_t *inbound =
        tow_data_inbound_find(subflow->trunk->data, fragment->stream);
    if (inbound == NULL) return NULL;
    arriving_t *arriving = find(inbound, fragment->write);
    if (arriving == NULL &&
        inbound->arriving_count >= TOW_NET_LANE_STRIPED_COUNT_MAX)
        return "too many striped writes at once on one lane";
    if (arriving == NULL) arriving = create_arriving(inbound, fragment);
    if (arriving == NULL) return "no memory for a write that arrives";
    if (!tow_data_fragment_is_of(&arriving->first, fragment))
        return "fragments of one write contradict each other";
    join(subflow, arriving);
    return NULL;
}

static void report(tow_data_inbound_t *inbound, tow_data_region_t *region,
                   const tow_data_fragment_t *first, tow_code_t code)
{
    if (inbound->state != TOW_DATA_INBOUND_OPEN) return;
    if (code != TOW_CODE_OK) {
        tow_data_inbound_answer(inbound, first->write, code);
        return;
    }
    const tow_arrival_t arrival = {
        .offset = first->place, .size = first->total, .tag = first->tag};
    inbound->data->striped_count++;
    tow_data_inbound_arrived(inbound, region, first->write, &arrival);
}

/* All bytes have come: answers, and notifies the region's owner. */
static void complete(arriving_t *arriving)
{
    tow_data_inbound_t *inbound = arriving->inbound;
    tow_data_region_t *region = arriving->region;
    const tow_data_fragment_t first = arriving->first;
    const tow_code_t code =
        arriving->code == TOW_CODE_OK && atomic_load(&arriving->is_damaged)
            ? TOW_DATA_LOSS
            : arriving->code;
    leave_inbound(arriving);
    free_if_over(arriving);
    report(inbound, region, &first, code);
}

void subflow_received(subflow_t *subflow)
{
    arriving_t *arriving = subflow->arriving;
    if (arriving == NULL) return;
    unpin(subflow);
    subflow->arriving = NULL;
    subflow->target = NULL;
    tow_list_remove(&subflow->in_arriving);
    if (arriving->inbound != NULL &&
        atomic_load(&arriving->received) >= arriving->first.total)
        complete(arriving);
    else
        free_if_over(arriving);
}
