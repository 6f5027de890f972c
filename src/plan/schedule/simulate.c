#include "plan/schedule/simulate.h"

#include "base/alloc.h"
#include "base/assert.h"
#include "base/map.h"
#include "plan/schedule/check.h"
#include "plan/schedule/simulate_impl.h"

#define PPM 1000000

static int64_t latest(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

/* -- Edges and links ------------------------------------------------------- */

static int64_t *arrival_of(const tow_plan_simulation_t *sim, uint32_t edge,
                           uint32_t microbatch, bool is_cotangent)
{
    const tow_plan_work_t *work = &sim->work;
    const size_t row = (is_cotangent ? work->edge_count : 0) + edge;
    return &sim->arrivals_ns[row * work->schedule->shape.microbatch_count +
                             microbatch];
}

/* Gives each ordered pair of devices that edges connect a number. */
static bool number_link(tow_plan_simulation_t *sim, tow_map_t *links,
                        uint32_t edge, bool is_cotangent)
{
    const tow_plan_edge_t *it = &sim->work.edges[edge];
    const uint32_t *devices = sim->work.schedule->stage_devices;
    const uint32_t from = devices[is_cotangent ? it->to_stage : it->from_stage];
    const uint32_t to = devices[is_cotangent ? it->from_stage : it->to_stage];
    const uint64_t key = (uint64_t)from << 32 | to;
    uintptr_t number = (uintptr_t)tow_map_find(links, key);
    if (number == 0) {
        number = tow_map_count(links) + 1;
        if (!tow_map_put(links, key, (void *)number)) return false;
    }
    sim->edge_links[(is_cotangent ? sim->work.edge_count : 0) + edge] =
        (uint32_t)(number - 1);
    return true;
}

static bool number_links(tow_plan_simulation_t *sim)
{
    tow_map_t links = {0};
    bool ok = true;
    for (uint32_t i = 0; ok && i < sim->work.edge_count; i++)
        ok = number_link(sim, &links, i, false) &&
             number_link(sim, &links, i, true);
    tow_map_deinit(&links);
    return ok;
}

static bool transfer(tow_plan_simulation_t *sim, tow_plan_transfer_t transfer,
                     int64_t ready_ns)
{
    const tow_plan_edge_t *edge = &sim->work.edges[transfer.edge];
    const uint32_t *devices = sim->work.schedule->stage_devices;
    int64_t *free_ns =
        &sim->link_free_ns[sim->edge_links[(transfer.is_cotangent
                                                ? sim->work.edge_count
                                                : 0) +
                                           transfer.edge]];
    const uint32_t ends[2] = {devices[edge->from_stage],
                              devices[edge->to_stage]};
    transfer.from_device = ends[transfer.is_cotangent];
    transfer.to_device = ends[!transfer.is_cotangent];
    transfer.link.start_ns = latest(ready_ns, *free_ns);
    transfer.link.end_ns = transfer.link.start_ns + tow_plan_edge_time_ns(edge);
    transfer.arrival_ns = transfer.link.end_ns + edge->latency_ns;
    *free_ns = transfer.link.end_ns;
    *arrival_of(sim, transfer.edge, transfer.microbatch,
                transfer.is_cotangent) = transfer.arrival_ns;
    return tow_vec_push(&sim->timeline->transfers, transfer);
}

/* The value of an edge exists, or is sent, at `time_ns`. */
static bool publish(tow_plan_simulation_t *sim, uint32_t edge,
                    uint32_t microbatch, bool is_cotangent, int64_t time_ns)
{
    if (tow_plan_work_crosses(&sim->work, &sim->work.edges[edge]))
        return transfer(sim,
                        (tow_plan_transfer_t){.edge = edge,
                                              .microbatch = microbatch,
                                              .is_cotangent = is_cotangent},
                        time_ns);
    *arrival_of(sim, edge, microbatch, is_cotangent) = time_ns;
    return true;
}

/* Whether this action starts the edge's value on its way. */
static bool publishes(const tow_plan_simulation_t *sim, uint32_t edge,
                      tow_plan_action_t action, bool is_cotangent)
{
    if (is_cotangent && sim->work.edges[edge].is_forward_only) return false;
    return tow_plan_work_source(&sim->work, &sim->work.edges[edge],
                                action.microbatch, is_cotangent)
               .kind == action.kind;
}

static bool publish_all(tow_plan_simulation_t *sim, tow_plan_action_t action,
                        bool is_cotangent, int64_t time_ns)
{
    const tow_plan_edge_lists_t *lists =
        is_cotangent ? &sim->work.entering : &sim->work.leaving;
    for (uint32_t i = lists->firsts[action.stage];
         i < lists->firsts[action.stage + 1]; i++)
        if (publishes(sim, lists->items[i], action, is_cotangent) &&
            !publish(sim, lists->items[i], action.microbatch, is_cotangent,
                     time_ns))
            return false;
    return true;
}

static int64_t last_arrival(const tow_plan_simulation_t *sim,
                            tow_plan_action_t action, bool is_cotangent)
{
    const tow_plan_edge_lists_t *lists =
        is_cotangent ? &sim->work.leaving : &sim->work.entering;
    int64_t last = 0;
    for (uint32_t i = lists->firsts[action.stage];
         i < lists->firsts[action.stage + 1]; i++) {
        const uint32_t edge = lists->items[i];
        if (is_cotangent && sim->work.edges[edge].is_forward_only) continue;
        last = latest(last,
                      *arrival_of(sim, edge, action.microbatch, is_cotangent));
    }
    return last;
}

/* -- Actions --------------------------------------------------------------- */

static int64_t inputs_ready(const tow_plan_simulation_t *sim,
                            tow_plan_action_t action)
{
    switch (action.kind) {
    case TOW_PLAN_FORWARD: return last_arrival(sim, action, false);
    case TOW_PLAN_BACKWARD:
    case TOW_PLAN_INPUT_GRAD: return last_arrival(sim, action, true);
    case TOW_PLAN_UPDATE: return sim->reduced_ns[action.stage];
    default: return 0;
    }
}

static tow_plan_interval_t time_action(tow_plan_simulation_t *sim,
                                       uint32_t device,
                                       tow_plan_action_t action)
{
    tow_plan_interval_t it;
    it.start_ns =
        latest(sim->device_free_ns[device], inputs_ready(sim, action));
    if (action.kind == TOW_PLAN_ALL_REDUCE)
        it.start_ns = latest(it.start_ns, sim->collective_free_ns[device]);
    it.end_ns = it.start_ns + tow_plan_costs_time_ns(sim->costs, action);
    if (action.kind == TOW_PLAN_ALL_REDUCE)
        sim->collective_free_ns[device] = sim->reduced_ns[action.stage] =
            it.end_ns;
    if (!tow_plan_action_is_asynchronous(action.kind))
        sim->device_free_ns[device] = it.end_ns;
    return it;
}

static bool publish_results(tow_plan_simulation_t *sim,
                            tow_plan_action_t action, int64_t time_ns)
{
    switch (action.kind) {
    case TOW_PLAN_FORWARD:
    case TOW_PLAN_SEND_FORWARD: return publish_all(sim, action, false, time_ns);
    case TOW_PLAN_BACKWARD:
    case TOW_PLAN_INPUT_GRAD:
    case TOW_PLAN_SEND_BACKWARD: return publish_all(sim, action, true, time_ns);
    default: return true;
    }
}

static void note_times(tow_plan_device_times_t *times, tow_plan_place_t place,
                       tow_plan_action_t action, tow_plan_interval_t it)
{
    times->intervals[place.index] = it;
    if (place.index == 0) times->span = it;
    if (it.start_ns < times->span.start_ns) times->span.start_ns = it.start_ns;
    times->span.end_ns = latest(times->span.end_ns, it.end_ns);
    if (!tow_plan_action_is_asynchronous(action.kind))
        times->busy_ns += it.end_ns - it.start_ns;
}

static bool run_action(tow_plan_simulation_t *sim, tow_plan_place_t place)
{
    const tow_plan_action_t action =
        tow_plan_schedule_at(sim->work.schedule, place);
    const tow_plan_interval_t it = time_action(sim, place.device, action);
    note_times(&sim->timeline->devices[place.device], place, action, it);
    return publish_results(sim, action, it.end_ns);
}

static void sum_up(tow_plan_timeline_t *timeline)
{
    for (uint32_t d = 0; d < timeline->device_count; d++) {
        const tow_plan_interval_t *span = &timeline->devices[d].span;
        timeline->step_ns = latest(timeline->step_ns, span->end_ns);
        timeline->period_ns =
            latest(timeline->period_ns, span->end_ns - span->start_ns);
    }
    for (uint32_t d = 0; d < timeline->device_count; d++)
        timeline->devices[d].bubble_ns =
            timeline->step_ns - timeline->devices[d].busy_ns;
}

/* -- Memory of the simulation ---------------------------------------------- */

static bool allocate_timeline(tow_plan_simulation_t *sim)
{
    const tow_plan_schedule_t *schedule = sim->work.schedule;
    tow_plan_timeline_t *timeline = sim->timeline;
    timeline->devices =
        tow_calloc(schedule->shape.device_count, sizeof(timeline->devices[0]));
    if (timeline->devices == NULL) return false;
    timeline->device_count = schedule->shape.device_count;
    for (uint32_t d = 0; d < timeline->device_count; d++) {
        tow_plan_device_times_t *times = &timeline->devices[d];
        times->intervals = tow_calloc(schedule->devices[d].count + 1,
                                      sizeof(times->intervals[0]));
        if (times->intervals == NULL) return false;
    }
    return true;
}

static bool allocate(tow_plan_simulation_t *sim)
{
    const tow_plan_shape_t *shape = &sim->work.schedule->shape;
    const size_t edges = 2 * sim->work.edge_count + 1;
    sim->order = tow_calloc(sim->work.action_count + 1, sizeof(sim->order[0]));
    sim->stuck = tow_calloc(shape->device_count, sizeof(sim->stuck[0]));
    sim->device_free_ns =
        tow_calloc(shape->device_count, sizeof(sim->device_free_ns[0]));
    sim->collective_free_ns =
        tow_calloc(shape->device_count, sizeof(sim->collective_free_ns[0]));
    sim->reduced_ns =
        tow_calloc(shape->stage_count, sizeof(sim->reduced_ns[0]));
    sim->arrivals_ns = tow_calloc(edges * shape->microbatch_count,
                                  sizeof(sim->arrivals_ns[0]));
    sim->edge_links = tow_calloc(edges, sizeof(sim->edge_links[0]));
    sim->link_free_ns = tow_calloc(edges, sizeof(sim->link_free_ns[0]));
    return sim->order != NULL && sim->stuck != NULL &&
           sim->device_free_ns != NULL && sim->collective_free_ns != NULL &&
           sim->reduced_ns != NULL && sim->arrivals_ns != NULL &&
           sim->edge_links != NULL && sim->link_free_ns != NULL &&
           allocate_timeline(sim) && number_links(sim);
}

static void deinit(tow_plan_simulation_t *sim)
{
    tow_free(sim->order);
    tow_free(sim->stuck);
    tow_free(sim->device_free_ns);
    tow_free(sim->collective_free_ns);
    tow_free(sim->reduced_ns);
    tow_free(sim->arrivals_ns);
    tow_free(sim->edge_links);
    tow_free(sim->link_free_ns);
    tow_plan_work_deinit(&sim->work);
}

/* -- All ------------------------------------------------------------------- */

static tow_status_t run_all(tow_plan_simulation_t *sim)
{
    if (!allocate(sim)) return tow_status_bare(TOW_RESOURCE_EXHAUSTED);
    const bool ordered =
        tow_plan_work_order(&sim->work, sim->order, sim->stuck);
    TOW_ASSERT(ordered); /* The schedule has been checked. */
    for (size_t i = 0; i < sim->work.action_count; i++)
        if (!run_action(sim, sim->order[i]))
            return tow_status_bare(TOW_RESOURCE_EXHAUSTED);
    sum_up(sim->timeline);
    return tow_plan_simulation_add_memory(sim);
}

tow_status_t tow_plan_simulate(const tow_plan_schedule_t *schedule,
                               const tow_plan_costs_t *costs,
                               tow_plan_timeline_t *out_timeline)
{
    const tow_plan_check_options_t check = {.costs = *costs};
    tow_plan_simulation_t sim = {.costs = costs, .timeline = out_timeline};
    *out_timeline = (tow_plan_timeline_t){0};
    TOW_RETURN_IF_ERROR(tow_plan_schedule_check(schedule, &check, NULL));
    tow_status_t status = tow_plan_work_init(&sim.work, schedule, costs, NULL);
    if (status == TOW_OK) status = run_all(&sim);
    deinit(&sim);
    if (status != TOW_OK) tow_plan_timeline_deinit(out_timeline);
    return status;
}

void tow_plan_timeline_deinit(tow_plan_timeline_t *timeline)
{
    for (uint32_t d = 0; d < timeline->device_count; d++) {
        tow_free(timeline->devices[d].intervals);
        tow_vec_deinit(&timeline->devices[d].memory);
    }
    tow_free(timeline->devices);
    tow_vec_deinit(&timeline->transfers);
    *timeline = (tow_plan_timeline_t){0};
}

uint32_t tow_plan_timeline_bubble_ppm(const tow_plan_timeline_t *timeline)
{
    const __int128 all = (__int128)timeline->step_ns * timeline->device_count;
    __int128 idle = 0;
    for (uint32_t d = 0; d < timeline->device_count; d++)
        idle += timeline->devices[d].bubble_ns;
    return all == 0 ? 0 : (uint32_t)((idle * PPM + all / 2) / all);
}

uint32_t tow_plan_timeline_period_bubble_ppm(
    const tow_plan_timeline_t *timeline)
{
    const __int128 period = timeline->period_ns;
    int64_t busy = 0;
    for (uint32_t d = 0; d < timeline->device_count; d++)
        busy = latest(busy, timeline->devices[d].busy_ns);
    return period == 0
               ? 0
               : (uint32_t)(((period - busy) * PPM + period / 2) / period);
}
