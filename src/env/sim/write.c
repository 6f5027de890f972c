/* Bulk writes. A transfer carries one: its fragments leave through the lane's
 * pump, arrive in the region one by one, and are copied as they do. Then the
 * target's `arrived` runs in a turn of its own, and the answer travels back. */
#include <string.h>

#include "base/hash.h"
#include "env/sim/lane_impl.h"

size_t tow_sim_transfer_bytes(void)
{
    return sizeof(tow_sim_transfer_t);
}

size_t tow_sim_fragment_bytes(void)
{
    return sizeof(tow_sim_fragment_t);
}

/* The private fields of a write. */
static tow_write_t **next_slot(tow_write_t *write)
{
    return (tow_write_t **)&write->private_[0];
}

static tow_status_t *status_slot(tow_write_t *write)
{
    return (tow_status_t *)(void *)&write->private_[1];
}

/* -- Memory --------------------------------------------------------------- */

static void discard_fragments(tow_sim_t *sim, tow_sim_transfer_t *transfer)
{
    while (transfer->fragments_first != NULL) {
        tow_sim_fragment_t *fragment = transfer->fragments_first;
        transfer->fragments_first = fragment->next;
        tow_pool_give(&sim->fragments, fragment);
    }
    tow_list_remove(&transfer->by_queue);
}

void tow_sim_transfer_try_free(tow_sim_transfer_t *transfer)
{
    tow_sim_t *sim = transfer->writer->sim;
    if (transfer->write != NULL || transfer->region != NULL) return;
    if (transfer->source.scheduled || transfer->in_outbox) return;
    discard_fragments(sim, transfer);
    tow_status_release(transfer->status);
    tow_pool_give(&sim->transfers, transfer);
}

/* Detaches the write from the transfer. */
static tow_write_t *detach(tow_sim_transfer_t *transfer)
{
    tow_write_t *write = transfer->write;
    tow_sim_lane_t *lane = transfer->lane;
    transfer->write = NULL;
    transfer->lane = NULL;
    tow_list_remove(&transfer->by_lane);
    tow_list_remove(&transfer->by_queue);
    lane->transfer_count--;
    return write;
}

/* -- Completion ----------------------------------------------------------- */

/* A turn of the writer. */
static void run_done(tow_sim_node_t *node, tow_write_t *write,
                     tow_status_t take_status)
{
    tow_sim_t *sim = node->sim;
    if (take_status == TOW_OK) {
        sim->counts.writes_completed++;
        sim->counts.bytes_written += write->size;
    } else {
        sim->counts.writes_failed++;
    }
    tow_sim_record(sim, &(tow_sim_event_t){.time_ns = sim->now_ns,
                                           .kind = EVENT_WRITTEN,
                                           .node = node->index,
                                           .peer = EVENT_NO_NODE,
                                           .type = tow_status_code(take_status),
                                           .size = write->size,
                                           .content = write->tag});
    tow_sim_turn_begin(node, 0);
    write->done(write, take_status);
    tow_sim_turn_end(node);
}

void tow_sim_write_complete_first(tow_sim_node_t *node)
{
    tow_write_t *write = node->completed_first;
    node->completed_first = *next_slot(write);
    run_done(node, write, *status_slot(write));
}

void tow_sim_writes_discard(tow_sim_node_t *node)
{
    for (; node->completed_first != NULL;
         node->completed_first = *next_slot(node->completed_first))
        tow_status_release(*status_slot(node->completed_first));
}

static void complete_later(tow_sim_node_t *node, tow_write_t *write,
                           tow_status_t take_status)
{
    *next_slot(write) = NULL;
    *status_slot(write) = take_status;
    if (node->completed_first == NULL)
        node->completed_first = write;
    else
        *next_slot(node->completed_last) = write;
    node->completed_last = write;
    tow_sim_node_events_wake(node);
}

void tow_sim_transfer_orphan(tow_sim_transfer_t *transfer, int64_t release_ns)
{
    detach(transfer);
    transfer->release_ns = release_ns;
    if (transfer->region != NULL && !transfer->source.scheduled) {
        transfer->source.node = NULL;
        tow_sim_schedule_source(transfer->writer->sim, &transfer->source,
                                release_ns);
    }
    tow_sim_transfer_try_free(transfer);
}

void tow_sim_transfer_fail(tow_sim_transfer_t *transfer, int64_t release_ns,
                           tow_status_t take_status)
{
    tow_sim_node_t *writer = transfer->writer;
    tow_sim_lane_t *lane = transfer->lane;
    complete_later(writer, transfer->write, take_status);
    tow_sim_transfer_orphan(transfer, release_ns);
    tow_sim_lane_drained(lane);
}

/* -- The answer ----------------------------------------------------------- */

/* Sends `take_status` back. Returns when the transfer acts next. */
static int64_t answer(tow_sim_t *sim, tow_sim_transfer_t *transfer,
                      tow_status_t take_status)
{
    tow_status_release(transfer->status);
    transfer->status = take_status;
    tow_sim_region_release(transfer);
    discard_fragments(sim, transfer);
    tow_sim_channel_t *back = transfer->lane->out->reverse;
    if (tow_sim_channel_is_cut(back)) {
        tow_sim_lane_note_silence(transfer->lane);
        transfer->phase = TRANSFER_RETURNING;
        transfer->source.node = NULL;
        return sim->now_ns + TOW_SIM_RETRANSMIT_NS;
    }
    transfer->lane->silent_since_ns = TOW_TIME_NEVER;
    transfer->phase = TRANSFER_ANSWERING;
    transfer->source.node = transfer->writer;
    return tow_sim_channel_trip(sim, back);
}

static int64_t finish(tow_sim_t *sim, tow_sim_transfer_t *transfer)
{
    tow_sim_node_t *writer = transfer->writer;
    tow_sim_lane_t *lane = transfer->lane;
    tow_status_t status = transfer->status;
    transfer->status = TOW_OK;
    tow_write_t *write = detach(transfer);
    tow_sim_source_rest(&transfer->source);
    tow_sim_transfer_try_free(transfer);
    tow_sim_lane_credited(lane);
    lane->pin_count++; /* `done` may close and free it. */
    run_done(writer, write, status);
    tow_sim_lane_drained(lane);
    tow_sim_lane_unpin(lane);
    (void)sim;
    return TOW_TIME_NEVER;
}

void tow_sim_transfer_abort(tow_sim_transfer_t *transfer)
{
    tow_sim_t *sim = transfer->writer->sim;
    tow_sim_region_release(transfer);
    transfer->aborted = true;
    if (transfer->source.scheduled) return; /* It handles it. */
    TOW_ASSERT(transfer->write != NULL);    /* Orphans are scheduled. */
    tow_sim_schedule_source(sim, &transfer->source, sim->now_ns);
}

/* -- Arriving fragments --------------------------------------------------- */

void tow_sim_transfer_launch(tow_sim_transfer_t *transfer,
                             tow_sim_fragment_t *fragment)
{
    tow_sim_t *sim = transfer->writer->sim;
    transfer->sent_bytes += fragment->size;
    fragment->next = NULL;
    if (transfer->fragments_first == NULL) {
        transfer->fragments_first = fragment;
    } else {
        tow_sim_fragment_t *last = transfer->fragments_last;
        if (fragment->time_ns < last->time_ns)
            fragment->time_ns = last->time_ns;
        last->next = fragment;
    }
    transfer->fragments_last = fragment;
    tow_sim_wake_source(sim, &transfer->source, fragment->time_ns);
}

static void copy_fragment(tow_sim_t *sim, tow_sim_transfer_t *transfer,
                          const tow_sim_fragment_t *fragment)
{
    uint8_t *to =
        transfer->region->bytes + transfer->offset + transfer->landed_bytes;
    const uint8_t *from =
        (const uint8_t *)transfer->write->bytes + transfer->landed_bytes;
    memcpy(to, from, fragment->size);
    if (fragment->damaged) {
        uint64_t bit = tow_random_below(&sim->random, 8 * fragment->size);
        to[bit / 8] ^= (uint8_t)(1u << (bit % 8));
    }
    transfer->landed_bytes += fragment->size;
}

/* End to end: of the bytes in the writer's memory and of those in the
 * region. */
static bool is_whole(const tow_sim_transfer_t *transfer)
{
    const tow_write_t *write = transfer->write;
    if (write->check == TOW_WRITE_UNCHECKED) return true;
    uint32_t sent = tow_crc32c(0, write->bytes, write->size);
    uint32_t landed = tow_crc32c(0, transfer->region->bytes + transfer->offset,
                                 transfer->size);
    return sent == landed;
}

static int64_t repeat(tow_sim_t *sim, tow_sim_transfer_t *transfer)
{
    if (transfer->repeat_count == TOW_SIM_WRITE_RETRY_COUNT_MAX)
        return answer(sim, transfer,
                      TOW_ERROR(TOW_DATA_LOSS,
                                "the checksum of a write to %s was wrong %d "
                                "times",
                                transfer->lane->target->name,
                                TOW_SIM_WRITE_RETRY_COUNT_MAX + 1));
    transfer->repeat_count++;
    transfer->phase = TRANSFER_REPEATING;
    return tow_sim_channel_trip(sim, transfer->lane->out->reverse);
}

static int64_t land_all(tow_sim_t *sim, tow_sim_transfer_t *transfer)
{
    if (!is_whole(transfer)) return repeat(sim, transfer);
    transfer->phase = TRANSFER_ARRIVING;
    transfer->source.node = transfer->lane->target;
    return sim->now_ns;
}

static int64_t land(tow_sim_t *sim, tow_sim_transfer_t *transfer)
{
    tow_sim_node_t *target = transfer->lane->target;
    if (transfer->region == NULL) {
        tow_status_t status =
            tow_sim_region_find(target, transfer->write, &transfer->region);
        if (status != TOW_OK) return answer(sim, transfer, status);
        tow_list_append(&transfer->region->transfers, &transfer->by_region);
    }
    tow_sim_fragment_t *fragment = transfer->fragments_first;
    transfer->fragments_first = fragment->next;
    copy_fragment(sim, transfer, fragment);
    tow_pool_give(&sim->fragments, fragment);
    if (transfer->landed_bytes == transfer->size)
        return land_all(sim, transfer);
    return transfer->fragments_first != NULL
               ? transfer->fragments_first->time_ns
               : tow_sim_source_rest(&transfer->source);
}

/* A turn of the target. The writer may have died since: the bytes are
 * complete. */
static void arrive(tow_sim_t *sim, tow_sim_transfer_t *transfer)
{
    tow_sim_region_t *region = transfer->region;
    tow_sim_node_t *target = tow_sim_node_of(region->base.env);
    const tow_arrival_t arrival = {.offset = transfer->offset,
                                   .size = transfer->size,
                                   .tag = transfer->tag};
    tow_sim_record(
        sim, &(tow_sim_event_t){
                 .time_ns = sim->now_ns,
                 .kind = EVENT_ARRIVED,
                 .node = target->index,
                 .peer = transfer->writer->index,
                 .type = (uint32_t)region->base.key.id,
                 .size = transfer->size,
                 .content = tow_hash_bytes(region->bytes + transfer->offset,
                                           transfer->size, transfer->tag)});
    if (region->arrived == NULL) return;
    tow_sim_turn_begin(target, 0);
    region->arrived(region->context, &region->base, &arrival);
    tow_sim_turn_end(target);
}

/* The writer has died or has been notified. */
static int64_t go_on_alone(tow_sim_t *sim, tow_sim_transfer_t *transfer)
{
    bool holds = transfer->region != NULL && !sim->ending;
    if (holds && transfer->phase == TRANSFER_ARRIVING)
        arrive(sim, transfer);
    else if (holds && sim->now_ns < transfer->release_ns) {
        transfer->source.node = NULL;
        return transfer->release_ns;
    }
    tow_sim_region_release(transfer);
    tow_sim_source_rest(&transfer->source);
    tow_sim_transfer_try_free(transfer);
    return TOW_TIME_NEVER;
}

static int64_t begin_again(tow_sim_t *sim, tow_sim_transfer_t *transfer)
{
    tow_sim_lane_t *lane = transfer->lane;
    transfer->sent_bytes = transfer->landed_bytes = 0;
    transfer->phase = TRANSFER_LANDING;
    tow_list_append(&lane->to_send, &transfer->by_queue);
    tow_sim_source_rest(&transfer->source);
    tow_sim_wake_source(sim, &lane->pump, sim->now_ns);
    return TOW_TIME_NEVER;
}

static int64_t meet_nobody(tow_sim_t *sim, tow_sim_transfer_t *transfer)
{
    discard_fragments(sim, transfer);
    tow_sim_lane_note_silence(transfer->lane);
    return tow_sim_source_rest(&transfer->source);
}

static int64_t transfer_perform(tow_sim_t *sim, tow_sim_source_t *source)
{
    tow_sim_transfer_t *transfer =
        TOW_CONTAINER_OF(source, tow_sim_transfer_t, source);
    if (transfer->write == NULL) return go_on_alone(sim, transfer);
    bool answered = transfer->phase == TRANSFER_RETURNING ||
                    transfer->phase == TRANSFER_ANSWERING;
    if (!answered && !tow_sim_lane_target_lives(transfer->lane))
        return meet_nobody(sim, transfer);
    if (!answered && transfer->aborted)
        return answer(sim, transfer,
                      TOW_ERROR(TOW_UNAVAILABLE, "%s closed its lane by force",
                                transfer->lane->target->name));
    switch (transfer->phase) {
    case TRANSFER_LANDING: return land(sim, transfer);
    case TRANSFER_REPEATING: return begin_again(sim, transfer);
    case TRANSFER_ARRIVING:
        arrive(sim, transfer);
        return answer(sim, transfer, TOW_OK);
    case TRANSFER_RETURNING: {
        tow_status_t status = transfer->status;
        transfer->status = TOW_OK;
        return answer(sim, transfer, status);
    }
    case TRANSFER_ANSWERING: return finish(sim, transfer);
    }
    TOW_UNREACHABLE();
}

/* -- Writing -------------------------------------------------------------- */

static void emit_transfer(tow_sim_t *sim, tow_sim_emission_t *emission)
{
    tow_sim_transfer_t *transfer =
        TOW_CONTAINER_OF(emission, tow_sim_transfer_t, emission);
    transfer->in_outbox = false;
    tow_sim_lane_t *lane = transfer->lane;
    if (lane == NULL) {
        tow_sim_transfer_try_free(transfer);
        return;
    }
    tow_list_append(&lane->to_send, &transfer->by_queue);
    tow_sim_wake_source(sim, &lane->pump, sim->now_ns);
}

static tow_sim_transfer_t *transfer_create(tow_sim_lane_t *lane,
                                           tow_write_t *write)
{
    tow_sim_node_t *node = tow_sim_lane_node(lane);
    tow_sim_transfer_t *transfer = tow_pool_take(&node->sim->transfers);
    if (transfer == NULL) return NULL;
    *transfer = (tow_sim_transfer_t){.source = {.perform = transfer_perform},
                                     .emission = {.emit = emit_transfer},
                                     .lane = lane,
                                     .write = write,
                                     .writer = node,
                                     .writer_incarnation = node->incarnation,
                                     .size = write->size,
                                     .offset = write->offset,
                                     .tag = write->tag,
                                     .in_outbox = true};
    tow_list_init(&transfer->by_queue);
    tow_list_init(&transfer->by_region);
    tow_list_append(&lane->transfers, &transfer->by_lane);
    lane->transfer_count++;
    return transfer;
}

tow_send_result_t tow_sim_lane_write(tow_lane_t *base, tow_write_t *write)
{
    tow_sim_lane_t *lane = (tow_sim_lane_t *)base;
    tow_sim_node_t *node = tow_sim_lane_node(lane);
    if (lane->broken || lane->closing) return TOW_SEND_DOWN;
    if (lane->transfer_count == TOW_SIM_LANE_WRITE_COUNT_MAX) {
        lane->wants_writable = true;
        return TOW_SEND_FULL;
    }
    tow_sim_transfer_t *transfer = transfer_create(lane, write);
    if (transfer == NULL) {
        tow_sim_out_of_memory(node->sim);
        return TOW_SEND_DOWN;
    }
    tow_sim_charge_send(node, 0);
    tow_sim_emit(node, &transfer->emission);
    return TOW_SEND_OK;
}
