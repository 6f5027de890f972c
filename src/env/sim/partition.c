/* Partitions: cuts between sets of hosts.
 *
 * Messages sent into a cut stall, as with TCP, which retransmits. If the cut
 * heals in time, they move on. If the silence exceeds the timeout, both ends
 * give up, each at its own time; a cut of one direction silences both, since
 * acknowledgements need the other. */
#include <string.h>

#include "env/sim/sim_impl.h"

#define SIDE_A 1u
#define SIDE_B 2u

/* -- Silence -------------------------------------------------------------- */

typedef struct silence {
    tow_sim_source_t source;
    tow_sim_channel_t *channel;
    uint32_t cut_epoch;
} silence_t;

static void give_up(tow_sim_t *sim, tow_sim_link_t *link)
{
    int64_t spread = sim->options.timeouts.link_ns / TOW_SIM_TIMEOUT_SPREAD;
    int64_t delay_ns = 0;
    if (spread > 0)
        delay_ns = (int64_t)tow_random_below(&sim->random, (uint64_t)spread);
    tow_sim_link_disconnect(link);
    tow_sim_inbox_discard_stalled(link);
    if (link->inbox_ended) return; /* It has been notified already. */
    tow_sim_link_end_at(
        link, sim->now_ns + delay_ns,
        TOW_ERROR(TOW_UNAVAILABLE, "%s has gone silent", link->base.peer.name));
}

static void give_up_all(tow_sim_t *sim, tow_sim_channel_t *channel)
{
    for (tow_list_t *at = channel->links.next; at != &channel->links;
         at = at->next)
        give_up(sim, TOW_CONTAINER_OF(at, tow_sim_link_t, by_channel));
}

static int64_t silence_perform(tow_sim_t *sim, tow_sim_source_t *source)
{
    silence_t *silence = TOW_CONTAINER_OF(source, silence_t, source);
    tow_sim_channel_t *channel = silence->channel;
    bool lasts = !sim->ending && tow_sim_channel_is_cut(channel) &&
                 channel->cut_epoch == silence->cut_epoch;
    tow_free(silence);
    if (!lasts) return TOW_TIME_NEVER;
    give_up_all(sim, channel);
    if (channel->reverse != channel) give_up_all(sim, channel->reverse);
    return TOW_TIME_NEVER;
}

static void begin_silence(tow_sim_t *sim, tow_sim_channel_t *channel)
{
    silence_t *silence = tow_calloc(1, sizeof(*silence));
    if (silence == NULL) {
        tow_sim_out_of_memory(sim);
        return;
    }
    silence->source.perform = silence_perform;
    silence->channel = channel;
    silence->cut_epoch = channel->cut_epoch;
    tow_sim_schedule_source(sim, &silence->source,
                            sim->now_ns + sim->options.timeouts.link_ns);
}

/* -- Cutting and healing a channel ---------------------------------------- */

static void block(tow_sim_t *sim, tow_sim_channel_t *channel)
{
    if (channel->cut_count++ > 0) return;
    channel->cut_epoch++;
    begin_silence(sim, channel);
}

static void heal_ends(tow_sim_channel_t *channel)
{
    for (tow_list_t *at = channel->links.next; at != &channel->links;
         at = at->next)
        tow_sim_link_healed(TOW_CONTAINER_OF(at, tow_sim_link_t, by_channel));
}

/* With one direction cut, the other still carries its own bytes. */
static void unblock(tow_sim_channel_t *channel)
{
    TOW_ASSERT(channel->cut_count > 0);
    if (--channel->cut_count > 0) return;
    channel->cut_epoch++;
    heal_ends(channel);
    if (channel->reverse != NULL && channel->reverse != channel)
        heal_ends(channel->reverse);
}

static uint8_t side_of(const tow_sim_active_cut_t *cut, uint32_t host)
{
    return host < cut->side_count ? cut->sides[host] : 0;
}

static bool cut_blocks(const tow_sim_active_cut_t *cut,
                       const tow_sim_channel_t *channel)
{
    if (cut->id == 0) return false;
    uint8_t from = side_of(cut, channel->from);
    uint8_t to = side_of(cut, channel->to);
    if ((from & SIDE_A) && (to & SIDE_B)) return true;
    return cut->direction == TOW_SIM_BOTH_WAYS && (from & SIDE_B) &&
           (to & SIDE_A);
}

void tow_sim_apply_cuts(tow_sim_t *sim, tow_sim_channel_t *channel)
{
    for (size_t i = 0; i < TOW_SIM_CUT_COUNT_MAX; i++) {
        if (cut_blocks(&sim->cuts[i], channel)) channel->cut_count++;
    }
}

/* -- Cuts ----------------------------------------------------------------- */

static tow_sim_active_cut_t *free_cut(tow_sim_t *sim)
{
    for (size_t i = 0; i < TOW_SIM_CUT_COUNT_MAX; i++) {
        if (sim->cuts[i].id == 0) return &sim->cuts[i];
    }
    return NULL;
}

static void mark(uint8_t *sides, tow_sim_host_t *const *hosts, size_t count,
                 uint8_t side)
{
    for (size_t i = 0; i < count; i++)
        sides[hosts[i]->index] |= side;
}

static tow_status_t fill_cut(tow_sim_t *sim, tow_sim_active_cut_t *cut,
                             const tow_sim_cut_t *options)
{
    size_t host_count = sim->hosts.count;
    uint8_t *sides = tow_calloc(host_count > 0 ? host_count : 1, 1);
    if (sides == NULL) return tow_status_bare(TOW_RESOURCE_EXHAUSTED);
    mark(sides, options->a, options->a_count, SIDE_A);
    mark(sides, options->b, options->b_count, SIDE_B);
    for (size_t i = 0; options->b_count == 0 && i < host_count; i++) {
        if (sides[i] == 0) sides[i] = SIDE_B;
    }
    cut->sides = sides;
    cut->side_count = host_count;
    cut->direction = options->direction;
    return TOW_OK;
}

static void record_cut(tow_sim_t *sim, tow_sim_event_kind_t kind,
                       const tow_sim_active_cut_t *cut)
{
    tow_sim_record(
        sim, &(tow_sim_event_t){
                 .time_ns = sim->now_ns,
                 .kind = kind,
                 .node = EVENT_NO_NODE,
                 .peer = EVENT_NO_NODE,
                 .type = (uint32_t)cut->direction,
                 .size = cut->id,
                 .content = tow_hash_bytes(cut->sides, cut->side_count, 0)});
}

tow_status_t tow_sim_partition_as(tow_sim_t *sim, const tow_sim_cut_t *options,
                                  uint64_t cut_id)
{
    tow_sim_active_cut_t *cut = free_cut(sim);
    if (cut == NULL)
        return TOW_ERROR(TOW_RESOURCE_EXHAUSTED,
                         "more than %d partitions at once; heal one first",
                         TOW_SIM_CUT_COUNT_MAX);
    TOW_RETURN_IF_ERROR(fill_cut(sim, cut, options));
    cut->id = cut_id;
    record_cut(sim, EVENT_CUT, cut);
    size_t cursor = 0;
    uint64_t key;
    void *value;
    while (tow_map_next(&sim->channels, &cursor, &key, &value)) {
        tow_sim_channel_t *channel = value;
        if (cut_blocks(cut, channel)) block(sim, channel);
    }
    return TOW_OK;
}

tow_status_t tow_sim_partition(tow_sim_t *sim, const tow_sim_cut_t *cut,
                               uint64_t *out_cut_id)
{
    uint64_t id = ++sim->cut_id_last;
    if (out_cut_id != NULL) *out_cut_id = id;
    return tow_sim_partition_as(sim, cut, id);
}

static void heal_cut(tow_sim_t *sim, tow_sim_active_cut_t *cut)
{
    record_cut(sim, EVENT_HEAL, cut);
    tow_sim_active_cut_t healed = *cut;
    *cut = (tow_sim_active_cut_t){0};
    size_t cursor = 0;
    uint64_t key;
    void *value;
    while (tow_map_next(&sim->channels, &cursor, &key, &value)) {
        tow_sim_channel_t *channel = value;
        if (cut_blocks(&healed, channel)) unblock(channel);
    }
    tow_free(healed.sides);
}

void tow_sim_heal(tow_sim_t *sim, uint64_t cut_id)
{
    for (size_t i = 0; i < TOW_SIM_CUT_COUNT_MAX; i++) {
        tow_sim_active_cut_t *cut = &sim->cuts[i];
        if (cut->id != 0 && (cut_id == 0 || cut->id == cut_id))
            heal_cut(sim, cut);
    }
}

void tow_sim_cuts_deinit(tow_sim_t *sim)
{
    for (size_t i = 0; i < TOW_SIM_CUT_COUNT_MAX; i++)
        tow_free(sim->cuts[i].sides);
}
