/* Channels: the network between two hosts, one direction each. */
#include <inttypes.h>

#include "env/sim/sim_impl.h"

static uint64_t key_of(const tow_sim_host_t *from, const tow_sim_host_t *to)
{
    return (uint64_t)from->index << 32 | to->index;
}

static tow_sim_channel_t *channel_create(tow_sim_t *sim, tow_sim_host_t *from,
                                         tow_sim_host_t *to)
{
    tow_sim_channel_t *channel = tow_calloc(1, sizeof(*channel));
    if (channel == NULL) return NULL;
    channel->path =
        from == to ? &sim->options.local_path : &sim->options.remote_path;
    channel->from = from->index;
    channel->to = to->index;
    tow_list_init(&channel->links);
    if (!tow_map_put(&sim->channels, key_of(from, to), channel)) {
        tow_free(channel);
        return NULL;
    }
    tow_sim_apply_cuts(sim, channel);
    return channel;
}

static tow_sim_channel_t *find_or_create(tow_sim_t *sim, tow_sim_host_t *from,
                                         tow_sim_host_t *to)
{
    tow_sim_channel_t *channel = tow_map_find(&sim->channels, key_of(from, to));
    return channel != NULL ? channel : channel_create(sim, from, to);
}

tow_sim_channel_t *tow_sim_channel(tow_sim_t *sim, tow_sim_host_t *from,
                                   tow_sim_host_t *to)
{
    tow_sim_channel_t *channel = find_or_create(sim, from, to);
    if (channel == NULL || channel->reverse != NULL) return channel;
    tow_sim_channel_t *reverse = find_or_create(sim, to, from);
    if (reverse == NULL) return NULL;
    channel->reverse = reverse;
    reverse->reverse = channel;
    return channel;
}

bool tow_sim_chance(tow_sim_t *sim, uint32_t ppm)
{
    return ppm > 0 && tow_random_chance_ppm(&sim->random, ppm);
}

static int64_t delay_of(tow_sim_t *sim, const tow_sim_path_t *path)
{
    if (path->jitter_ns == 0) return path->latency_ns;
    uint64_t spread = (uint64_t)path->jitter_ns + 1;
    return path->latency_ns + (int64_t)tow_random_below(&sim->random, spread);
}

int64_t tow_sim_channel_trip(tow_sim_t *sim, tow_sim_channel_t *channel)
{
    return sim->now_ns + delay_of(sim, channel->path);
}

/* Rounded up: no byte is faster than the path. */
static int64_t time_on_path(uint64_t size, uint64_t bytes_per_second)
{
    __extension__ typedef unsigned __int128 wide_t;
    wide_t scaled = (wide_t)size * TOW_NS_PER_S + (bytes_per_second - 1);
    return (int64_t)(scaled / bytes_per_second);
}

int64_t tow_sim_channel_transit(tow_sim_t *sim, tow_sim_channel_t *channel,
                                uint64_t size)
{
    const tow_sim_path_t *path = channel->path;
    int64_t leaves_ns = sim->now_ns;
    if (path->bandwidth_bytes_per_second > 0) {
        if (leaves_ns < channel->busy_until_ns)
            leaves_ns = channel->busy_until_ns;
        leaves_ns += time_on_path(size, path->bandwidth_bytes_per_second);
        if (leaves_ns > TOW_SIM_TIME_MAX) leaves_ns = TOW_SIM_TIME_MAX;
        channel->busy_until_ns = leaves_ns;
    }
    return leaves_ns + delay_of(sim, path);
}

tow_status_t tow_sim_check_delay(const char *name, int64_t delay_ns)
{
    if (delay_ns >= 0 && delay_ns <= TOW_SIM_DELAY_MAX_NS) return TOW_OK;
    return TOW_ERROR(TOW_INVALID_ARGUMENT,
                     "%s is %" PRId64 "; 0 to %lld (a year) are possible", name,
                     delay_ns, TOW_SIM_DELAY_MAX_NS);
}

tow_status_t tow_sim_check_path(const tow_sim_path_t *path)
{
    const struct {
        const char *name;
        uint32_t ppm;
    } chances[] = {{"loss", path->loss_ppm},
                   {"corrupt", path->corrupt_ppm},
                   {"duplicate", path->duplicate_ppm},
                   {"reorder", path->reorder_ppm}};
    for (size_t i = 0; i < TOW_COUNT_OF(chances); i++) {
        if (chances[i].ppm > 1000000)
            return TOW_ERROR(TOW_INVALID_ARGUMENT,
                             "%s_ppm is %u; at most 1,000,000", chances[i].name,
                             chances[i].ppm);
    }
    TOW_RETURN_IF_ERROR(tow_sim_check_delay("latency_ns", path->latency_ns));
    TOW_RETURN_IF_ERROR(tow_sim_check_delay("jitter_ns", path->jitter_ns));
    return tow_sim_check_delay("reorder_ns", path->reorder_ns);
}

static tow_status_t set_own_path(tow_sim_channel_t *channel,
                                 const tow_sim_path_t *path)
{
    if (channel->own_path == NULL) {
        channel->own_path = tow_malloc(sizeof(*channel->own_path));
        if (channel->own_path == NULL)
            return tow_status_bare(TOW_RESOURCE_EXHAUSTED);
    }
    *channel->own_path = *path;
    channel->path = channel->own_path;
    return TOW_OK;
}

tow_status_t tow_sim_set_path(tow_sim_t *sim, tow_sim_host_t *a,
                              tow_sim_host_t *b, tow_sim_direction_t direction,
                              const tow_sim_path_t *path)
{
    TOW_RETURN_IF_ERROR(tow_sim_check_path(path));
    tow_sim_channel_t *channel = tow_sim_channel(sim, a, b);
    if (channel == NULL) return tow_status_bare(TOW_RESOURCE_EXHAUSTED);
    TOW_RETURN_IF_ERROR(set_own_path(channel, path));
    if (direction == TOW_SIM_BOTH_WAYS)
        TOW_RETURN_IF_ERROR(set_own_path(channel->reverse, path));
    tow_sim_record(
        sim, &(tow_sim_event_t){.time_ns = sim->now_ns,
                                .kind = EVENT_PATH,
                                .node = a->index,
                                .peer = b->index,
                                .type = (uint32_t)direction,
                                .size = (uint64_t)path->latency_ns,
                                .content = path->bandwidth_bytes_per_second});
    return TOW_OK;
}

void tow_sim_channels_deinit(tow_sim_t *sim)
{
    size_t cursor = 0;
    uint64_t key;
    void *value;
    while (tow_map_next(&sim->channels, &cursor, &key, &value)) {
        tow_sim_channel_t *channel = value;
        tow_free(channel->own_path);
        tow_free(channel);
    }
    tow_map_deinit(&sim->channels);
}
