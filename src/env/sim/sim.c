/* The simulation: creating, stepping, destroying. */
#include "env/sim/sim.h"

#include "env/sim/sim_impl.h"

const tow_env_ops_t tow_sim_env_ops = {
    .name = "sim",
    .timer_start = tow_sim_timer_start,
    .timer_stop = tow_sim_timer_stop,
    .post = tow_sim_post,
    .work_start = tow_sim_work_start,
    .work_cancel = tow_sim_work_cancel,
    .listen = tow_sim_listen,
    .listener_close = tow_sim_listener_close,
    .connect = tow_sim_connect,
    .link_begin = tow_sim_link_begin,
    .link_commit = tow_sim_link_commit,
    .link_close = tow_sim_link_close,
    .lane_address = tow_sim_lane_address,
    .lane_prepare = tow_sim_lane_prepare,
    .datagram_handler = tow_sim_set_datagram_handler,
    .lane_open = tow_sim_lane_open,
    .lane_send = tow_sim_lane_send,
    .lane_write = tow_sim_lane_write,
    .lane_close = tow_sim_lane_close,
    .region_open = tow_sim_region_open,
    .region_close = tow_sim_region_close,
    .close = tow_sim_env_close,
};

/* -- Creating ------------------------------------------------------------- */

static void set_defaults(tow_sim_options_t *options)
{
    tow_sim_timeouts_t *timeouts = &options->timeouts;
    if (timeouts->link_ns == 0) timeouts->link_ns = TOW_SIM_LINK_TIMEOUT_NS;
    if (timeouts->lane_ns == 0) timeouts->lane_ns = TOW_SIM_LANE_TIMEOUT_NS;
    if (timeouts->dial_ns == 0) timeouts->dial_ns = TOW_SIM_DIAL_TIMEOUT_NS;
    if (options->link_bytes_max == 0)
        options->link_bytes_max = TOW_LINK_QUEUE_BYTES_MAX;
    if (options->lane_bytes_max == 0)
        options->lane_bytes_max = TOW_SIM_LANE_BYTES_MAX;
}

static void init_pools(tow_sim_t *sim)
{
    tow_pool_init(&sim->items, sizeof(tow_sim_item_t), 0);
    tow_pool_init(&sim->links, sizeof(tow_sim_link_t), 0);
    tow_pool_init(&sim->dials, tow_sim_dial_bytes(), 0);
    tow_pool_init(&sim->credits, tow_sim_credit_bytes(), 0);
    tow_pool_init(&sim->datagrams, tow_sim_datagram_bytes(), 0);
    tow_pool_init(&sim->transfers, tow_sim_transfer_bytes(), 0);
    tow_pool_init(&sim->fragments, tow_sim_fragment_bytes(), 0);
    tow_pool_init(&sim->jobs, tow_sim_job_bytes(), 0);
}

static tow_status_t check_options(const tow_sim_options_t *options)
{
    TOW_RETURN_IF_ERROR(tow_sim_check_path(&options->remote_path));
    TOW_RETURN_IF_ERROR(tow_sim_check_path(&options->local_path));
    if (options->fault_chance_ppm > 1000000)
        return TOW_ERROR(TOW_INVALID_ARGUMENT,
                         "fault_chance_ppm is %u; at most 1,000,000",
                         options->fault_chance_ppm);
    const tow_sim_timeouts_t *timeouts = &options->timeouts;
    TOW_RETURN_IF_ERROR(
        tow_sim_check_delay("timeouts.link_ns", timeouts->link_ns));
    TOW_RETURN_IF_ERROR(
        tow_sim_check_delay("timeouts.lane_ns", timeouts->lane_ns));
    return tow_sim_check_delay("timeouts.dial_ns", timeouts->dial_ns);
}

tow_status_t tow_sim_create(const tow_sim_options_t *options,
                            tow_sim_t **out_sim)
{
    *out_sim = NULL;
    TOW_RETURN_IF_ERROR(check_options(options));
    tow_sim_t *sim = tow_calloc(1, sizeof(*sim));
    if (sim == NULL) return tow_status_bare(TOW_RESOURCE_EXHAUSTED);
    sim->options = *options;
    set_defaults(&sim->options);
    tow_random_init(&sim->random, options->seed);
    sim->faults.random = tow_random_fork(&sim->random);
    sim->faults.chance_ppm = options->fault_chance_ppm;
    sim->digest =
        (tow_sim_digest_t){.value = options->seed, .log = options->event_log};
    tow_sim_queue_init(&sim->queue);
    pthread_mutex_init(&sim->foreign_lock, NULL);
    init_pools(sim);
    *out_sim = sim;
    return TOW_OK;
}

static tow_status_t check_costs(const tow_sim_costs_t *costs)
{
    TOW_RETURN_IF_ERROR(tow_sim_check_delay("turn_ns", costs->turn_ns));
    TOW_RETURN_IF_ERROR(tow_sim_check_delay("receive_ns", costs->receive_ns));
    TOW_RETURN_IF_ERROR(
        tow_sim_check_delay("receive_ns_per_kib", costs->receive_ns_per_kib));
    TOW_RETURN_IF_ERROR(tow_sim_check_delay("send_ns", costs->send_ns));
    return tow_sim_check_delay("send_ns_per_kib", costs->send_ns_per_kib);
}

static bool has_costs(const tow_sim_costs_t *costs)
{
    return costs->turn_ns > 0 || costs->receive_ns > 0 ||
           costs->receive_ns_per_kib > 0 || costs->send_ns > 0 ||
           costs->send_ns_per_kib > 0;
}

tow_status_t tow_sim_host_create(tow_sim_t *sim,
                                 const tow_sim_host_options_t *options,
                                 tow_sim_host_t **out_host)
{
    *out_host = NULL;
    TOW_RETURN_IF_ERROR(check_costs(&options->costs));
    if (sim->hosts.count == TOW_SIM_HOST_COUNT_MAX)
        return TOW_ERROR(TOW_RESOURCE_EXHAUSTED, "more than %u hosts",
                         TOW_SIM_HOST_COUNT_MAX);
    tow_sim_host_t *host = tow_calloc(1, sizeof(*host));
    if (host == NULL) return tow_status_bare(TOW_RESOURCE_EXHAUSTED);
    host->index = (uint32_t)sim->hosts.count;
    host->core_count = options->core_count > 0 ? options->core_count : 1;
    host->costs = options->costs;
    host->charges = has_costs(&host->costs);
    if (!tow_vec_push(&sim->hosts, host)) {
        tow_free(host);
        return tow_status_bare(TOW_RESOURCE_EXHAUSTED);
    }
    *out_host = host;
    return TOW_OK;
}

/* -- Destroying ----------------------------------------------------------- */

static tow_sim_source_t *take_any(tow_sim_t *sim)
{
    tow_sim_source_t *source = sim->unqueued;
    if (source != NULL) {
        sim->unqueued = source->next_ready;
    } else if (sim->queue.count > 0) {
        source = tow_sim_queue_first(&sim->queue)->source;
        tow_sim_queue_pop(&sim->queue);
    }
    return source;
}

/* All remaining sources see that their node is dead, or that the simulation
 * ends. */
static void drain(tow_sim_t *sim)
{
    for (tow_sim_source_t *source; (source = take_any(sim)) != NULL;) {
        int64_t next_ns = source->perform(sim, source);
        TOW_ASSERT(next_ns == TOW_TIME_NEVER);
    }
}

void tow_sim_destroy(tow_sim_t *sim)
{
    if (sim == NULL) return;
    TOW_ASSERT(sim->current == NULL);
    sim->ending = true;
    for (size_t i = 0; i < sim->nodes.count; i++)
        tow_sim_node_kill(sim->nodes.items[i]);
    drain(sim);
    for (size_t i = 0; i < sim->nodes.count; i++)
        tow_sim_node_destroy(sim->nodes.items[i]);
    for (size_t i = 0; i < sim->hosts.count; i++)
        tow_free(sim->hosts.items[i]);
    tow_vec_deinit(&sim->nodes);
    tow_vec_deinit(&sim->hosts);
    tow_names_deinit(&sim->nodes_by_name);
    tow_names_deinit(&sim->listeners);
    tow_sim_channels_deinit(sim);
    tow_sim_cuts_deinit(sim);
    tow_sim_queue_deinit(&sim->queue);
    tow_pool_t *pools[] = {&sim->items,     &sim->links,     &sim->dials,
                           &sim->credits,   &sim->datagrams, &sim->transfers,
                           &sim->fragments, &sim->jobs};
    for (size_t i = 0; i < TOW_COUNT_OF(pools); i++) {
        TOW_ASSERT(pools[i]->taken_count ==
                   0); /* Otherwise something leaked. */
        tow_pool_deinit(pools[i]);
    }
    pthread_mutex_destroy(&sim->foreign_lock);
    tow_status_release(sim->failure);
    tow_free(sim);
}

size_t tow_sim_memory_bytes(const tow_sim_t *sim)
{
    const tow_pool_t *pools[] = {
        &sim->items,     &sim->links,     &sim->dials,     &sim->credits,
        &sim->datagrams, &sim->transfers, &sim->fragments, &sim->jobs};
    size_t bytes = sizeof(*sim) + sim->payload_bytes;
    for (size_t i = 0; i < TOW_COUNT_OF(pools); i++)
        bytes += pools[i]->made_count * pools[i]->object_bytes;
    bytes += tow_sim_queue_bytes(&sim->queue);
    bytes += sim->nodes.count *
             (sizeof(tow_sim_node_t) + sizeof(tow_sim_node_sources_t));
    bytes += sim->hosts.count * sizeof(tow_sim_host_t);
    bytes += tow_map_count(&sim->channels) * sizeof(tow_sim_channel_t);
    return bytes;
}

/* -- Stepping ------------------------------------------------------------- */

int64_t tow_sim_now_ns(const tow_sim_t *sim)
{
    return sim->now_ns;
}

uint64_t tow_sim_digest(const tow_sim_t *sim)
{
    return sim->digest.value;
}

tow_sim_counts_t tow_sim_counts(const tow_sim_t *sim)
{
    return sim->counts;
}

void tow_sim_fail(tow_sim_t *sim, tow_status_t take_status)
{
    TOW_ASSERT(take_status != TOW_OK);
    if (sim->failure == TOW_OK)
        sim->failure = take_status;
    else
        tow_status_ignore(take_status, "the run has failed before");
}

void tow_sim_out_of_memory(tow_sim_t *sim)
{
    tow_sim_fail(sim, tow_status_bare(TOW_RESOURCE_EXHAUSTED));
}

void tow_sim_schedule_source(tow_sim_t *sim, tow_sim_source_t *source,
                             int64_t time_ns)
{
    TOW_ASSERT(!source->scheduled && time_ns >= sim->now_ns);
    source->scheduled = true;
    if (TOW_LIKELY(tow_sim_queue_push(&sim->queue, time_ns, source))) return;
    source->next_ready = sim->unqueued;
    sim->unqueued = source;
    tow_sim_out_of_memory(sim);
}

/* As integers, since `from` may be NULL or an unrelated pointer: harmless to
 * prefetch, but undefined in pointer arithmetic. */
static void prefetch_lines(uintptr_t from, size_t bytes)
{
    for (size_t at = 0; at < bytes; at += TOW_CACHE_LINE_BYTES)
        __builtin_prefetch((const void *)(from + at));
}

/* With many nodes, an event spends most of its time on cache misses. The links
 * of the first queue entries are prefetched some events ahead, and what they
 * point to one event ahead: with 100,000 nodes this halves the cost of a
 * message in random order, and saves a quarter in regular order. */
static void prefetch(const tow_sim_queue_t *queue)
{
    const tow_sim_queue_heap_t *near = &queue->near;
    for (size_t i = 1; i <= TOW_SIM_QUEUE_FAN_OUT && i < near->count; i++) {
        uintptr_t source = (uintptr_t)near->entries[i].source;
        prefetch_lines(source - offsetof(tow_sim_link_t, source), 192);
    }
    const tow_sim_queue_entry_t *second = tow_sim_queue_second(queue);
    if (second == NULL || second->source->perform != tow_sim_link_perform)
        return;
    const tow_sim_link_t *link =
        TOW_CONTAINER_OF(second->source, tow_sim_link_t, source);
    prefetch_lines((uintptr_t)link->source.node, sizeof(tow_env_t) + 64);
    prefetch_lines((uintptr_t)link->inbox_first, sizeof(tow_sim_item_t));
    prefetch_lines((uintptr_t)link->remote, 192);
    __builtin_prefetch(link->out);
    __builtin_prefetch(link->base.context);
}

static void perform_first(tow_sim_t *sim)
{
    const tow_sim_queue_entry_t *first = tow_sim_queue_first(&sim->queue);
    tow_sim_source_t *source = first->source;
    sim->now_ns = first->time_ns;
    uint64_t events_before = sim->counts.events;
    prefetch(&sim->queue);
    if (source->node != NULL && !tow_sim_node_take_turn(source->node, source)) {
        tow_sim_queue_pop(&sim->queue);
        return;
    }
    int64_t next_ns = source->perform(sim, source);
    if (next_ns == TOW_TIME_NEVER)
        tow_sim_queue_pop(&sim->queue);
    else
        tow_sim_queue_postpone(&sim->queue, next_ns);
    if (sim->options.after_event != NULL && sim->counts.events != events_before)
        sim->options.after_event(sim->options.after_event_context, sim);
}

static void take_foreign_posts(tow_sim_t *sim)
{
    if (TOW_UNLIKELY(atomic_load_explicit(&sim->has_foreign_posts,
                                          memory_order_acquire)))
        tow_sim_take_foreign_posts(sim);
}

static bool step(tow_sim_t *sim)
{
    take_foreign_posts(sim);
    if (sim->failure != TOW_OK || sim->queue.count == 0) return false;
    if (TOW_UNLIKELY(tow_sim_queue_first(&sim->queue)->time_ns >=
                     TOW_SIM_TIME_MAX)) {
        tow_sim_fail(
            sim,
            TOW_ERROR(
                TOW_OUT_OF_RANGE,
                "the virtual clock has passed its limit of 146 years; is a "
                "path too slow for the bytes sent on it?"));
        return false;
    }
    perform_first(sim);
    return true;
}

/* The value of this thread before it entered the simulation. */
typedef struct outside {
    tow_sim_t *performing;
    tow_fault_plan_t *faults;
} outside_t;

static outside_t enter(tow_sim_t *sim)
{
    TOW_ASSERT(sim->current == NULL);
    bool faulty = sim->faults.chance_ppm > 0;
    return (outside_t){.performing = tow_sim_set_performing(sim),
                       .faults =
                           tow_fault_attach(faulty ? &sim->faults : NULL)};
}

static void leave(outside_t outside)
{
    (void)tow_fault_attach(outside.faults);
    (void)tow_sim_set_performing(outside.performing);
}

bool tow_sim_step(tow_sim_t *sim)
{
    outside_t outside = enter(sim);
    bool stepped = step(sim);
    leave(outside);
    return stepped;
}

typedef enum stop {
    STOP_IDLE,
    STOP_TIME,
    STOP_EVENTS,
    STOP_CONDITION,
} stop_t;

static stop_t run(tow_sim_t *sim, const tow_sim_run_options_t *options)
{
    int64_t until_ns = options->until_ns > 0 ? options->until_ns : INT64_MAX;
    uint64_t events_max = options->event_count_max > 0
                              ? sim->counts.events + options->event_count_max
                              : UINT64_MAX;
    for (;;) {
        if (options->until != NULL && options->until(options->context))
            return STOP_CONDITION;
        if (sim->counts.events >= events_max) return STOP_EVENTS;
        /* Before the queue: a post is due now. */
        take_foreign_posts(sim);
        const tow_sim_queue_entry_t *first = tow_sim_queue_first(&sim->queue);
        if (first != NULL && first->time_ns > until_ns) return STOP_TIME;
        if (!step(sim)) return STOP_IDLE;
    }
}

/* Callers that drive nodes outside of turns find the current time in them. */
static void update_clocks(tow_sim_t *sim)
{
    for (size_t i = 0; i < sim->nodes.count; i++)
        sim->nodes.items[i]->env.now_ns = sim->now_ns;
}

tow_status_t tow_sim_run(tow_sim_t *sim, const tow_sim_run_options_t *options)
{
    outside_t outside = enter(sim);
    stop_t stop = run(sim, options);
    leave(outside);
    if (sim->failure != TOW_OK) return tow_status_retain(sim->failure);
    bool time_ran_out = stop == STOP_TIME || stop == STOP_IDLE;
    if (time_ran_out && options->until_ns > sim->now_ns)
        sim->now_ns = options->until_ns;
    update_clocks(sim);
    if (options->until == NULL || stop == STOP_CONDITION) return TOW_OK;
    static const char *const why[] = {[STOP_IDLE] = "no event is left",
                                      [STOP_TIME] = "time ran out",
                                      [STOP_EVENTS] =
                                          "the limit of events is reached"};
    return TOW_ERROR(TOW_DEADLINE_EXCEEDED,
                     "the condition of the run did not become true: %s",
                     why[stop]);
}
