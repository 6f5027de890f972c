/* The memory of each device over the time of a simulated step. */
#include <stdlib.h>

#include "base/alloc.h"
#include "base/assert.h"
#include "plan/schedule/memory_impl.h"
#include "plan/schedule/simulate_impl.h"

/* Events of one time happen in the order of `sequence`: receive buffers first
 * (0), then each action's start and end. */
typedef struct event {
    int64_t time_ns;
    uint64_t sequence;
    tow_plan_memory_change_t change;
} event_t;

typedef TOW_VEC(event_t) events_t;

static int compare(const void *a, const void *b)
{
    const event_t *x = a;
    const event_t *y = b;
    if (x->time_ns != y->time_ns) return x->time_ns < y->time_ns ? -1 : 1;
    if (x->sequence == y->sequence) return 0;
    return x->sequence < y->sequence ? -1 : 1;
}

static bool add(events_t *events, int64_t time_ns, uint64_t sequence,
                tow_plan_memory_change_t change)
{
    const event_t event = {time_ns, sequence, change};
    if (change.bytes == 0 && change.activation_count == 0 &&
        change.input_count == 0)
        return true;
    return tow_vec_push(events, event);
}

static bool add_actions(const tow_plan_simulation_t *sim, uint32_t device,
                        events_t *events)
{
    const tow_plan_actions_t *actions = &sim->work.schedule->devices[device];
    const tow_plan_device_times_t *times = &sim->timeline->devices[device];
    for (size_t i = 0; i < actions->count; i++) {
        const tow_plan_action_t action = actions->items[i];
        if (!add(events, times->intervals[i].start_ns, 2 * i + 1,
                 tow_plan_memory_at_start(&sim->work, sim->costs, action)) ||
            !add(events, times->intervals[i].end_ns, 2 * i + 2,
                 tow_plan_memory_at_end(&sim->work, sim->costs, action)))
            return false;
    }
    return true;
}

static uint32_t consumer_of(const tow_plan_simulation_t *sim,
                            const tow_plan_transfer_t *transfer)
{
    const tow_plan_edge_t *edge = &sim->work.edges[transfer->edge];
    const uint32_t m = transfer->microbatch;
    const tow_plan_action_t consumer =
        transfer->is_cotangent
            ? tow_plan_work_backward(&sim->work, edge->from_stage, m)
            : (tow_plan_action_t){TOW_PLAN_FORWARD, edge->to_stage, m};
    return tow_plan_work_index(&sim->work, consumer);
}

static bool add_buffer(const tow_plan_simulation_t *sim,
                       const tow_plan_transfer_t *transfer, events_t *events)
{
    const uint32_t index = consumer_of(sim, transfer);
    const int64_t end_ns =
        sim->timeline->devices[transfer->to_device].intervals[index].end_ns;
    const int64_t bytes = (int64_t)sim->work.edges[transfer->edge].bytes;
    return add(events, transfer->link.start_ns, 0,
               (tow_plan_memory_change_t){.bytes = bytes}) &&
           add(events, end_ns, 2 * (uint64_t)index + 2,
               (tow_plan_memory_change_t){.bytes = -bytes});
}

/* -- From events to samples ------------------------------------------------ */

typedef struct level {
    uint64_t bytes;
    uint32_t activation_count;
    uint32_t input_count;
} level_t;

static void raise(tow_plan_device_times_t *times, const level_t *level)
{
    if (level->bytes > times->bytes_peak) times->bytes_peak = level->bytes;
    if (level->activation_count > times->activation_count_peak)
        times->activation_count_peak = level->activation_count;
    if (level->input_count > times->input_count_peak)
        times->input_count_peak = level->input_count;
}

static bool sample(tow_plan_device_times_t *times, int64_t time_ns,
                   uint64_t bytes)
{
    const size_t count = times->memory.count;
    const tow_plan_memory_sample_t it = {time_ns, bytes};
    if (count > 0 && times->memory.items[count - 1].time_ns == time_ns) {
        times->memory.items[count - 1].bytes = bytes;
        return true;
    }
    return tow_vec_push(&times->memory, it);
}

static bool apply(tow_plan_device_times_t *times, const events_t *events,
                  level_t level)
{
    raise(times, &level);
    if (!sample(times, 0, level.bytes)) return false;
    for (size_t i = 0; i < events->count; i++) {
        const tow_plan_memory_change_t *change = &events->items[i].change;
        level.bytes += (uint64_t)change->bytes;
        level.activation_count += (uint32_t)change->activation_count;
        level.input_count += (uint32_t)change->input_count;
        raise(times, &level);
        if (!sample(times, events->items[i].time_ns, level.bytes)) return false;
    }
    return true;
}

static uint64_t mean_of(const tow_plan_device_times_t *times, int64_t step_ns)
{
    unsigned __int128 sum = 0;
    for (size_t i = 0; i < times->memory.count; i++) {
        const tow_plan_memory_sample_t *it = &times->memory.items[i];
        const int64_t end_ns =
            i + 1 < times->memory.count ? it[1].time_ns : step_ns;
        TOW_ASSERT(end_ns >= it->time_ns);
        sum += (unsigned __int128)it->bytes * (uint64_t)(end_ns - it->time_ns);
    }
    return step_ns == 0 ? times->bytes_peak
                        : (uint64_t)(sum / (uint64_t)step_ns);
}

/* -- All ------------------------------------------------------------------- */

static bool add_all(const tow_plan_simulation_t *sim, events_t *events)
{
    const tow_plan_timeline_t *timeline = sim->timeline;
    for (uint32_t d = 0; d < timeline->device_count; d++)
        if (!add_actions(sim, d, &events[d])) return false;
    for (size_t i = 0; i < timeline->transfers.count; i++) {
        const tow_plan_transfer_t *it = &timeline->transfers.items[i];
        if (!add_buffer(sim, it, &events[it->to_device])) return false;
    }
    return true;
}

static bool finish_device(tow_plan_simulation_t *sim, uint32_t device,
                          events_t *events)
{
    tow_plan_device_times_t *times = &sim->timeline->devices[device];
    const level_t start = {
        .bytes = tow_plan_memory_of_parameters(&sim->work, sim->costs, device)};
    if (events->count > 0)
        qsort(events->items, events->count, sizeof(events->items[0]), compare);
    if (!apply(times, events, start)) return false;
    times->bytes_mean = mean_of(times, sim->timeline->step_ns);
    return true;
}

tow_status_t tow_plan_simulation_add_memory(tow_plan_simulation_t *simulation)
{
    const uint32_t devices = simulation->timeline->device_count;
    events_t *events = tow_calloc(devices, sizeof(events[0]));
    bool ok = events != NULL && add_all(simulation, events);
    for (uint32_t d = 0; ok && d < devices; d++)
        ok = finish_device(simulation, d, &events[d]);
    for (uint32_t d = 0; events != NULL && d < devices; d++)
        tow_vec_deinit(&events[d]);
    tow_free(events);
    return ok ? TOW_OK : tow_status_bare(TOW_RESOURCE_EXHAUSTED);
}
