/* Inbox items: everything in flight to one end of a link, in order of arrival.
 * The link's source is in the queue for the first item only, so a link costs
 * one entry however much is in flight. */
#include <string.h>

#include "env/sim/sim_impl.h"
#include "wire/frame.h"

tow_sim_item_t *tow_sim_item_create(tow_sim_t *sim, tow_sim_item_kind_t kind,
                                    uint32_t capacity)
{
    tow_sim_item_t *item = tow_pool_take(&sim->items);
    if (item == NULL) goto fail;
    item->kind = kind;
    item->link = NULL;
    item->type = item->size = 0;
    item->capacity = capacity;
    if (capacity > TOW_SIM_INLINE_BYTES) {
        item->bytes = tow_malloc(capacity);
        if (item->bytes == NULL) goto fail;
        sim->payload_bytes += capacity;
    }
    return item;

fail:
    if (item != NULL) tow_pool_give(&sim->items, item);
    tow_sim_out_of_memory(sim);
    return NULL;
}

void tow_sim_item_free(tow_sim_t *sim, tow_sim_item_t *item)
{
    if (item->kind == ITEM_DOWN) {
        tow_status_release(item->cause);
    } else if (item->capacity > TOW_SIM_INLINE_BYTES) {
        sim->payload_bytes -= item->capacity;
        tow_free(item->bytes);
    }
    tow_pool_give(&sim->items, item);
}

uint8_t *tow_sim_item_bytes(tow_sim_item_t *item)
{
    return item->capacity > TOW_SIM_INLINE_BYTES ? item->bytes
                                                 : item->inline_bytes;
}

static tow_sim_item_t *next_of(const tow_sim_item_t *item)
{
    return (tow_sim_item_t *)item->emission.next;
}

void tow_sim_inbox_take(tow_sim_t *sim, tow_sim_link_t *link,
                        tow_sim_item_t *item, int64_t time_ns)
{
    if (link->inbox_ended || link->dead) {
        tow_sim_item_free(sim, item);
        return;
    }
    if (link->inbox_first == NULL) {
        link->inbox_first = item;
    } else {
        /* Items of a link stay in order: those behind a stalled one are
         * stalled. */
        if (time_ns < link->inbox_last->time_ns)
            time_ns = link->inbox_last->time_ns;
        link->inbox_last->emission.next = &item->emission;
    }
    item->emission.next = NULL;
    item->time_ns = time_ns;
    link->inbox_last = item;
    if (item->kind == ITEM_DOWN) link->inbox_ended = true;
    if (time_ns != TOW_TIME_NEVER)
        tow_sim_wake_source(sim, &link->source, time_ns);
}

tow_sim_item_t *tow_sim_inbox_pop(tow_sim_link_t *link)
{
    tow_sim_item_t *item = link->inbox_first;
    link->inbox_first = next_of(item);
    return item;
}

static void count_lost(tow_sim_t *sim, const tow_sim_item_t *item)
{
    if (item->kind == ITEM_MESSAGE || item->kind == ITEM_DAMAGED)
        sim->counts.messages_lost++;
}

static void free_chain(tow_sim_t *sim, tow_sim_item_t *item)
{
    while (item != NULL) {
        tow_sim_item_t *next = next_of(item);
        count_lost(sim, item);
        tow_sim_item_free(sim, item);
        item = next;
    }
}

void tow_sim_inbox_clear(tow_sim_link_t *link)
{
    tow_sim_item_t *first = link->inbox_first;
    link->inbox_first = link->inbox_last = NULL;
    free_chain(tow_sim_link_node(link)->sim, first);
}

void tow_sim_inbox_discard_stalled(tow_sim_link_t *link)
{
    tow_sim_item_t *before = NULL;
    tow_sim_item_t *item = link->inbox_first;
    for (; item != NULL && item->time_ns != TOW_TIME_NEVER;
         item = next_of(item))
        before = item;
    if (item == NULL) return;
    if (before == NULL)
        link->inbox_first = NULL;
    else
        before->emission.next = NULL;
    link->inbox_last = before;
    /* An end of stream would have been the last, and stalled too. */
    link->inbox_ended = false;
    free_chain(tow_sim_link_node(link)->sim, item);
}

void tow_sim_inbox_release_stalled(tow_sim_link_t *link)
{
    tow_sim_t *sim = tow_sim_link_node(link)->sim;
    tow_sim_item_t *item = link->inbox_first;
    int64_t before_ns = sim->now_ns;
    for (; item != NULL; item = next_of(item)) {
        if (item->time_ns == TOW_TIME_NEVER) {
            item->time_ns = tow_sim_channel_transit(
                sim, link->out->reverse, TOW_FRAME_HEADER_SIZE + item->size);
            if (item->time_ns < before_ns) item->time_ns = before_ns;
        }
        before_ns = item->time_ns;
    }
    if (link->inbox_first != NULL)
        tow_sim_wake_source(sim, &link->source, link->inbox_first->time_ns);
}
