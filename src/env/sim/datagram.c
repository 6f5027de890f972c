/* Datagrams: each travels alone. They are lost, duplicated and delayed
 * according to the path; a damaged one is dropped by its checksum. */
#include <string.h>

#include "base/hash.h"
#include "env/sim/lane_impl.h"

typedef struct datagram {
    tow_sim_emission_t emission;
    tow_sim_source_t source;
    tow_sim_lane_t *lane; /* pinned */
    uint64_t channel;
    uint32_t size;
    uint32_t credit; /* bytes to credit to its lane; 0 for a duplicate */
    union {
        uint8_t inline_bytes[TOW_SIM_INLINE_BYTES];
        uint8_t *bytes; /* owned, when size > TOW_SIM_INLINE_BYTES */
    };
} datagram_t;

size_t tow_sim_datagram_bytes(void)
{
    return sizeof(datagram_t);
}

static int64_t datagram_perform(tow_sim_t *sim, tow_sim_source_t *source);
static void emit_datagram(tow_sim_t *sim, tow_sim_emission_t *emission);

static uint8_t *bytes_of(datagram_t *datagram)
{
    return datagram->size > TOW_SIM_INLINE_BYTES ? datagram->bytes
                                                 : datagram->inline_bytes;
}

static datagram_t *datagram_create(tow_sim_lane_t *lane, uint64_t channel,
                                   const void *bytes, size_t size)
{
    tow_sim_t *sim = tow_sim_lane_node(lane)->sim;
    datagram_t *datagram = tow_pool_take(&sim->datagrams);
    if (datagram == NULL) goto fail;
    datagram->emission = (tow_sim_emission_t){.emit = emit_datagram};
    datagram->source = (tow_sim_source_t){.perform = datagram_perform};
    datagram->lane = lane;
    datagram->channel = channel;
    datagram->size = (uint32_t)size;
    datagram->credit = 0;
    if (size > TOW_SIM_INLINE_BYTES) {
        datagram->bytes = tow_malloc(size);
        if (datagram->bytes == NULL) goto fail;
        sim->payload_bytes += size;
    }
    if (size > 0) memcpy(bytes_of(datagram), bytes, size);
    lane->pin_count++;
    return datagram;

fail:
    if (datagram != NULL) tow_pool_give(&sim->datagrams, datagram);
    tow_sim_out_of_memory(sim);
    return NULL;
}

static void datagram_free(tow_sim_t *sim, datagram_t *datagram)
{
    tow_sim_lane_t *lane = datagram->lane;
    lane->datagram_bytes -= datagram->credit;
    if (datagram->size > TOW_SIM_INLINE_BYTES) {
        sim->payload_bytes -= datagram->size;
        tow_free(datagram->bytes);
    }
    tow_pool_give(&sim->datagrams, datagram);
    tow_sim_lane_credited(lane);
    tow_sim_lane_unpin(lane);
}

static void lose(tow_sim_t *sim, datagram_t *datagram)
{
    sim->counts.datagrams_lost++;
    tow_sim_record(sim, &(tow_sim_event_t){
                            .time_ns = sim->now_ns,
                            .kind = EVENT_LOST,
                            .node = tow_sim_lane_node(datagram->lane)->index,
                            .peer = datagram->lane->target->index,
                            .size = datagram->size,
                            .content = datagram->channel});
    datagram_free(sim, datagram);
}

static int64_t put_back(tow_sim_t *sim, const tow_sim_path_t *path)
{
    if (!tow_sim_chance(sim, path->reorder_ppm)) return 0;
    int64_t most_ns =
        path->reorder_ns > 0 ? path->reorder_ns : TOW_SIM_REORDER_NS;
    return 1 + (int64_t)tow_random_below(&sim->random, (uint64_t)most_ns);
}

static void launch(tow_sim_t *sim, datagram_t *datagram)
{
    tow_sim_lane_t *lane = datagram->lane;
    const tow_sim_path_t *path = lane->out->path;
    int64_t arrival_ns = tow_sim_channel_transit(
        sim, lane->out, TOW_SIM_DATAGRAM_HEADER_BYTES + datagram->size);
    arrival_ns += put_back(sim, path);
    datagram->source.node = lane->target;
    tow_sim_schedule_source(sim, &datagram->source, arrival_ns);
}

static void emit_datagram(tow_sim_t *sim, tow_sim_emission_t *emission)
{
    datagram_t *datagram = TOW_CONTAINER_OF(emission, datagram_t, emission);
    tow_sim_lane_t *lane = datagram->lane;
    const tow_sim_path_t *path = lane->out->path;
    if (!tow_sim_lane_node(lane)->alive) {
        datagram_free(sim, datagram);
        return;
    }
    bool doubled = tow_sim_chance(sim, path->duplicate_ppm);
    bool lost = tow_sim_channel_is_cut(lane->out) ||
                tow_sim_chance(sim, path->loss_ppm) ||
                tow_sim_chance(sim, path->corrupt_ppm);
    if (lost) {
        lose(sim, datagram);
        return;
    }
    if (doubled) {
        datagram_t *copy = datagram_create(lane, datagram->channel,
                                           bytes_of(datagram), datagram->size);
        if (copy != NULL) launch(sim, copy);
    }
    launch(sim, datagram);
}

tow_send_result_t tow_sim_lane_send(tow_lane_t *base, uint64_t channel,
                                    const void *bytes, size_t size)
{
    tow_sim_lane_t *lane = (tow_sim_lane_t *)base;
    tow_sim_node_t *node = tow_sim_lane_node(lane);
    if (lane->broken || lane->closing) return TOW_SEND_DOWN;
    uint64_t cost = size + TOW_SIM_DATAGRAM_HEADER_BYTES;
    if (lane->datagram_bytes + cost > node->sim->options.lane_bytes_max &&
        lane->datagram_bytes > 0) {
        lane->wants_writable = true;
        return TOW_SEND_FULL;
    }
    datagram_t *datagram = datagram_create(lane, channel, bytes, size);
    if (datagram == NULL) return TOW_SEND_DOWN;
    datagram->credit = (uint32_t)cost;
    lane->datagram_bytes += cost;
    tow_sim_charge_send(node, size);
    tow_sim_emit(node, &datagram->emission);
    return TOW_SEND_OK;
}

static int64_t datagram_perform(tow_sim_t *sim, tow_sim_source_t *source)
{
    datagram_t *datagram = TOW_CONTAINER_OF(source, datagram_t, source);
    tow_sim_node_t *target = datagram->lane->target;
    if (sim->ending) {
        datagram_free(sim, datagram);
        return TOW_TIME_NEVER;
    }
    if (!tow_sim_lane_target_lives(datagram->lane) ||
        target->datagram_arrived == NULL) {
        lose(sim, datagram);
        return TOW_TIME_NEVER;
    }
    const uint8_t *bytes = bytes_of(datagram);
    sim->counts.datagrams_delivered++;
    tow_sim_record(sim, &(tow_sim_event_t){
                            .time_ns = sim->now_ns,
                            .kind = EVENT_DATAGRAM,
                            .node = target->index,
                            .peer = tow_sim_lane_node(datagram->lane)->index,
                            .size = datagram->size,
                            .content = tow_hash_bytes(bytes, datagram->size,
                                                      datagram->channel)});
    tow_sim_turn_begin(target, tow_sim_receive_cost(target, datagram->size));
    target->datagram_arrived(target->datagram_context, datagram->channel, bytes,
                             datagram->size);
    tow_sim_turn_end(target);
    datagram_free(sim, datagram);
    return TOW_TIME_NEVER;
}

void tow_sim_set_datagram_handler(tow_env_t *env,
                                  void (*arrived)(void *context,
                                                  uint64_t channel,
                                                  const void *bytes,
                                                  size_t size),
                                  void *context)
{
    tow_sim_node_t *node = tow_sim_node_of(env);
    node->datagram_arrived = arrived;
    node->datagram_context = context;
}
