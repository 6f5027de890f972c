/* Lanes: opening and closing, the pump that sends bulk writes fragment by
 * fragment, and silence, by which a lane detects that its target is dead. */
#include <inttypes.h>
#include <string.h>

#include "env/sim/lane_impl.h"

static int64_t watch_perform(tow_sim_t *sim, tow_sim_source_t *source);
static int64_t notify_perform(tow_sim_t *sim, tow_sim_source_t *source);

/* -- Memory --------------------------------------------------------------- */

static void try_free(tow_sim_lane_t *lane)
{
    if (lane->pin_count > 0 || lane->pump.scheduled || lane->watch.scheduled ||
        lane->notify.scheduled)
        return;
    TOW_ASSERT(lane->dead && lane->transfer_count == 0);
    tow_status_release(lane->cause);
    tow_free(lane->peer_name);
    tow_free(lane);
}

void tow_sim_lane_unpin(tow_sim_lane_t *lane)
{
    TOW_ASSERT(lane->pin_count > 0);
    lane->pin_count--;
    try_free(lane);
}

/* -- Opening -------------------------------------------------------------- */

void tow_sim_lane_address(tow_env_t *env, const void **out_bytes,
                          size_t *out_size)
{
    tow_sim_node_t *node = tow_sim_node_of(env);
    *out_bytes = &node->lane_address;
    *out_size = sizeof(node->lane_address);
}

/* Every node of the simulator can be dialled. */
void tow_sim_lane_prepare(tow_env_t *env, const void *address, size_t size)
{
    (void)env, (void)address, (void)size;
}

static tow_status_t parse_address(tow_sim_node_t *node,
                                  const tow_lane_options_t *options,
                                  tow_sim_lane_address_t *out_address)
{
    const char *peer =
        options->peer_name != NULL ? options->peer_name : "a peer";
    if (options->address_size != sizeof(*out_address))
        return TOW_ERROR(TOW_INVALID_ARGUMENT,
                         "the lane address of %s has %zu bytes; %zu expected",
                         peer, options->address_size, sizeof(*out_address));
    memcpy(out_address, options->address, sizeof(*out_address));
    if (out_address->magic != node->lane_address.magic ||
        out_address->node_index >= node->sim->nodes.count)
        return TOW_ERROR(TOW_INVALID_ARGUMENT,
                         "the lane address of %s names no simulated node",
                         peer);
    return TOW_OK;
}

static tow_sim_lane_t *lane_create(tow_sim_node_t *node,
                                   const tow_lane_options_t *options)
{
    tow_sim_lane_t *lane = tow_calloc(1, sizeof(*lane));
    if (lane == NULL) return NULL;
    if (options->peer_name != NULL) {
        lane->peer_name = tow_strdup(options->peer_name);
        if (lane->peer_name == NULL) {
            tow_free(lane);
            return NULL;
        }
    }
    lane->base.env = &node->env;
    lane->down = options->down;
    lane->writable = options->writable;
    lane->context = options->context;
    lane->silent_since_ns = TOW_TIME_NEVER;
    lane->pin_count = 1;
    lane->pump.perform = tow_sim_pump_perform;
    lane->watch.perform = watch_perform;
    lane->notify = (tow_sim_source_t){.perform = notify_perform, .node = node};
    tow_list_init(&lane->transfers);
    tow_list_init(&lane->to_send);
    return lane;
}

tow_status_t tow_sim_lane_open(tow_env_t *env,
                               const tow_lane_options_t *options,
                               tow_lane_t **out_lane)
{
    tow_sim_node_t *node = tow_sim_node_of(env);
    tow_sim_lane_address_t address;
    TOW_RETURN_IF_ERROR(tow_sim_check_open(node));
    TOW_RETURN_IF_ERROR(parse_address(node, options, &address));
    tow_sim_node_t *target = node->sim->nodes.items[address.node_index];
    tow_sim_channel_t *out =
        tow_sim_channel(node->sim, node->host, target->host);
    tow_sim_lane_t *lane = out != NULL ? lane_create(node, options) : NULL;
    if (lane == NULL) return tow_status_bare(TOW_RESOURCE_EXHAUSTED);
    lane->target = target;
    lane->target_incarnation = address.incarnation;
    lane->out = out;
    tow_list_append(&node->lanes, &lane->by_node);
    *out_lane = &lane->base;
    return TOW_OK;
}

/* -- Sending fragments ---------------------------------------------------- */

/* The delay of a fragment that was lost and resent; TOW_TIME_NEVER if no
 * attempt succeeded. */
static int64_t delay_by_loss(tow_sim_t *sim, const tow_sim_channel_t *channel)
{
    int64_t delay_ns = 0;
    for (int i = 0; i <= TOW_SIM_RETRANSMIT_COUNT_MAX; i++) {
        if (!tow_sim_chance(sim, channel->path->loss_ppm)) return delay_ns;
        delay_ns += TOW_SIM_RETRANSMIT_NS;
    }
    return TOW_TIME_NEVER;
}

static uint64_t fragment_size(const tow_sim_transfer_t *transfer)
{
    uint64_t left = transfer->size - transfer->sent_bytes;
    bool paced = transfer->lane->out->path->bandwidth_bytes_per_second > 0;
    return paced && left > TOW_SIM_FRAGMENT_BYTES ? TOW_SIM_FRAGMENT_BYTES
                                                  : left;
}

static bool send_fragment(tow_sim_t *sim, tow_sim_transfer_t *transfer)
{
    tow_sim_channel_t *out = transfer->lane->out;
    tow_sim_fragment_t *fragment = tow_pool_take(&sim->fragments);
    int64_t delay_ns = delay_by_loss(sim, out);
    if (fragment == NULL || delay_ns == TOW_TIME_NEVER) {
        if (fragment == NULL)
            tow_sim_out_of_memory(sim);
        else
            tow_pool_give(&sim->fragments, fragment);
        return false;
    }
    /* One draw per statement: in an initialiser, each compiler has its own
     * order. */
    uint64_t size = fragment_size(transfer);
    int64_t landing_ns = tow_sim_channel_transit(sim, out, size) + delay_ns;
    bool damaged = tow_sim_chance(sim, out->path->corrupt_ppm);
    *fragment = (tow_sim_fragment_t){
        .time_ns = landing_ns, .size = size, .damaged = damaged};
    tow_sim_transfer_launch(transfer, fragment);
    if (transfer->sent_bytes == transfer->size)
        tow_list_remove(&transfer->by_queue);
    return true;
}

int64_t tow_sim_pump_perform(tow_sim_t *sim, tow_sim_source_t *source)
{
    tow_sim_lane_t *lane = TOW_CONTAINER_OF(source, tow_sim_lane_t, pump);
    if (lane->dead || tow_list_is_empty(&lane->to_send)) {
        tow_sim_source_rest(source);
        if (lane->dead) try_free(lane);
        return TOW_TIME_NEVER;
    }
    if (tow_sim_channel_is_cut(lane->out)) {
        tow_sim_lane_note_silence(lane);
        return sim->now_ns + TOW_SIM_RETRANSMIT_NS;
    }
    if (tow_sim_lane_target_lives(lane)) lane->silent_since_ns = TOW_TIME_NEVER;
    tow_sim_transfer_t *transfer =
        TOW_CONTAINER_OF(lane->to_send.next, tow_sim_transfer_t, by_queue);
    if (!send_fragment(sim, transfer)) {
        tow_sim_source_rest(source);
        tow_sim_lane_break(lane,
                           TOW_ERROR(TOW_UNAVAILABLE, "%s cannot be reached",
                                     lane->target->name));
        return TOW_TIME_NEVER;
    }
    if (tow_list_is_empty(&lane->to_send)) return tow_sim_source_rest(source);
    int64_t free_ns = lane->out->busy_until_ns;
    return free_ns > sim->now_ns ? free_ns : sim->now_ns;
}

/* -- Silence -------------------------------------------------------------- */

void tow_sim_lane_note_silence(tow_sim_lane_t *lane)
{
    tow_sim_t *sim = tow_sim_lane_node(lane)->sim;
    if (lane->broken || lane->dead) return;
    if (lane->silent_since_ns != TOW_TIME_NEVER) return;
    lane->silent_since_ns = sim->now_ns;
    tow_sim_wake_source(sim, &lane->watch,
                        sim->now_ns + sim->options.timeouts.lane_ns);
}

static int64_t watch_perform(tow_sim_t *sim, tow_sim_source_t *source)
{
    tow_sim_lane_t *lane = TOW_CONTAINER_OF(source, tow_sim_lane_t, watch);
    bool silent = !lane->dead && lane->silent_since_ns != TOW_TIME_NEVER;
    if (silent) {
        int64_t end_ns = lane->silent_since_ns + sim->options.timeouts.lane_ns;
        if (end_ns > sim->now_ns) return end_ns;
    }
    tow_sim_source_rest(source);
    if (lane->dead)
        try_free(lane);
    else if (silent)
        tow_sim_lane_break(lane,
                           TOW_ERROR(TOW_UNAVAILABLE, "%s has gone silent",
                                     lane->target->name));
    return TOW_TIME_NEVER;
}

/* When the target learns that transfers from here have ended: by a message, or
 * by timeout. */
static int64_t target_knows_ns(const tow_sim_lane_t *lane, bool told)
{
    tow_sim_t *sim = tow_sim_lane_node(lane)->sim;
    if (told && !tow_sim_channel_is_cut(lane->out))
        return tow_sim_channel_trip(sim, lane->out);
    return sim->now_ns + sim->options.timeouts.lane_ns;
}

static void fail_transfers(tow_sim_lane_t *lane, tow_status_t cause)
{
    int64_t release_ns = target_knows_ns(lane, true);
    while (!tow_list_is_empty(&lane->transfers))
        tow_sim_transfer_fail(
            TOW_CONTAINER_OF(lane->transfers.next, tow_sim_transfer_t, by_lane),
            release_ns, tow_status_retain(cause));
}

void tow_sim_lane_break(tow_sim_lane_t *lane, tow_status_t take_cause)
{
    tow_sim_node_t *node = tow_sim_lane_node(lane);
    if (lane->broken || lane->dead) {
        tow_status_ignore(take_cause, "the lane broke before");
        return;
    }
    lane->broken = true;
    lane->cause = take_cause;
    bool closing = lane->closing;
    fail_transfers(lane, take_cause); /* May end a lane that is closing. */
    if (closing) return;
    lane->down_due = true;
    tow_sim_wake_source(node->sim, &lane->notify, node->sim->now_ns);
}

/* -- Notifying the owner -------------------------------------------------- */

static bool has_room(const tow_sim_lane_t *lane)
{
    const tow_sim_t *sim = tow_sim_lane_node(lane)->sim;
    return lane->datagram_bytes <= sim->options.lane_bytes_max / 2 &&
           lane->transfer_count <= TOW_SIM_LANE_WRITE_COUNT_MAX / 2;
}

void tow_sim_lane_credited(tow_sim_lane_t *lane)
{
    tow_sim_t *sim = tow_sim_lane_node(lane)->sim;
    if (!lane->wants_writable || lane->dead || lane->closing) return;
    if (!has_room(lane)) return;
    tow_sim_wake_source(sim, &lane->notify,
                        tow_sim_channel_trip(sim, lane->out->reverse));
}

static void notify_owner(tow_sim_t *sim, tow_sim_lane_t *lane,
                         tow_sim_event_kind_t kind)
{
    tow_sim_node_t *node = tow_sim_lane_node(lane);
    tow_sim_record(sim, &(tow_sim_event_t){.time_ns = sim->now_ns,
                                           .kind = kind,
                                           .node = node->index,
                                           .peer = lane->target->index});
    bool wanted =
        kind == EVENT_LANE_DOWN ? lane->down != NULL : lane->writable != NULL;
    if (!wanted) return;
    tow_sim_turn_begin(node, 0);
    if (kind == EVENT_LANE_DOWN)
        lane->down(lane->context, &lane->base, lane->cause);
    else
        lane->writable(lane->context, &lane->base);
    tow_sim_turn_end(node);
}

static int64_t notify_perform(tow_sim_t *sim, tow_sim_source_t *source)
{
    tow_sim_lane_t *lane = TOW_CONTAINER_OF(source, tow_sim_lane_t, notify);
    bool listening = !lane->dead && !lane->closing;
    if (listening && lane->down_due) {
        lane->down_due = false;
        notify_owner(sim, lane, EVENT_LANE_DOWN);
    } else if (listening && !lane->broken && lane->wants_writable &&
               has_room(lane)) {
        lane->wants_writable = false;
        notify_owner(sim, lane, EVENT_LANE_WRITABLE);
    }
    if (lane->down_due && !lane->dead && !lane->closing) return sim->now_ns;
    tow_sim_source_rest(source);
    if (lane->dead) try_free(lane);
    return TOW_TIME_NEVER;
}

/* -- Closing -------------------------------------------------------------- */

static void release_closed(tow_sim_t *sim,
                           tow_sim_pending_close_t *pending_close)
{
    (void)sim;
    tow_sim_lane_t *lane =
        TOW_CONTAINER_OF(pending_close, tow_sim_lane_t, pending_close);
    tow_sim_node_t *node = tow_sim_lane_node(lane);
    tow_list_remove(&lane->by_node);
    lane->dead = true;
    tow_sim_lane_unpin(lane);
    if (node->alive) tow_sim_env_check_empty(node);
}

void tow_sim_lane_drained(tow_sim_lane_t *lane)
{
    tow_sim_node_t *node = tow_sim_lane_node(lane);
    if (!lane->closing || lane->transfer_count > 0 ||
        lane->pending_close.release)
        return;
    lane->pending_close.release = release_closed;
    tow_sim_close_later(node, &lane->pending_close);
}

void tow_sim_lane_close(tow_lane_t *base, tow_lane_close_mode_t mode,
                        tow_closed_t closed)
{
    tow_sim_lane_t *lane = (tow_sim_lane_t *)base;
    tow_sim_node_t *node = tow_sim_lane_node(lane);
    TOW_ASSERT(!lane->closing);
    lane->closing = true;
    lane->pending_close.closed = closed;
    if (mode == TOW_LANE_CLOSE_FORCE) {
        tow_status_t cause =
            TOW_ERROR(TOW_UNAVAILABLE, "the lane to %s was closed by force",
                      lane->target->name);
        fail_transfers(lane, cause);
        tow_status_release(cause);
        tow_sim_regions_abort_from(node, lane->target,
                                   lane->target_incarnation);
    }
    tow_sim_lane_drained(lane);
}

/* Lanes that are closing gracefully are forced. */
static void force(tow_sim_lane_t *lane)
{
    if (!lane->closing) {
        tow_sim_lane_close(&lane->base, TOW_LANE_CLOSE_FORCE,
                           (tow_closed_t){0});
        return;
    }
    tow_status_t cause = TOW_ERROR(TOW_UNAVAILABLE, "the env was closed");
    fail_transfers(lane, cause);
    tow_status_release(cause);
}

void tow_sim_lanes_close(tow_sim_node_t *node)
{
    for (tow_list_t *at = node->lanes.next; at != &node->lanes; at = at->next)
        force(TOW_CONTAINER_OF(at, tow_sim_lane_t, by_node));
}

static void kill(tow_sim_lane_t *lane)
{
    int64_t release_ns = target_knows_ns(lane, false);
    while (!tow_list_is_empty(&lane->transfers))
        tow_sim_transfer_orphan(
            TOW_CONTAINER_OF(lane->transfers.next, tow_sim_transfer_t, by_lane),
            release_ns);
    if (lane->pending_close.release != NULL)
        return; /* The pending close frees it. */
    lane->dead = true;
    tow_sim_lane_unpin(lane);
}

void tow_sim_lanes_discard(tow_sim_node_t *node)
{
    for (tow_list_t *at; (at = tow_list_pop_front(&node->lanes)) != NULL;)
        kill(TOW_CONTAINER_OF(at, tow_sim_lane_t, by_node));
}
