/* Nodes: creating, starting, crashing, restarting, pausing, closing. */
#include <string.h>

#include "env/sim/sim_impl.h"
#include "wire/address.h"

#define LANE_ADDRESS_MAGIC 0x656e616cu /* "lane" */

/* -- Event sources of an incarnation -------------------------------------- */

tow_sim_node_sources_t *tow_sim_node_sources_create(tow_sim_node_t *node)
{
    tow_sim_node_sources_t *node_sources = tow_calloc(1, sizeof(*node_sources));
    if (node_sources == NULL) return NULL;
    node_sources->node = node;
    node_sources->wake.perform = tow_sim_wake_perform;
    node_sources->alarm.perform = tow_sim_alarm_perform;
    node_sources->due =
        (tow_sim_source_t){.perform = tow_sim_due_perform, .node = node};
    node_sources->node_events = (tow_sim_source_t){
        .perform = tow_sim_node_events_perform, .node = node};
    return node_sources;
}

void tow_sim_node_sources_try_free(tow_sim_node_sources_t *node_sources)
{
    if (node_sources->node != NULL || node_sources->alarm_count > 0) return;
    if (node_sources->wake.scheduled || node_sources->due.scheduled) return;
    if (node_sources->node_events.scheduled) return;
    tow_free(node_sources);
}

static void discard_node_sources(tow_sim_node_t *node)
{
    tow_sim_node_sources_t *node_sources = node->node_sources;
    node->node_sources = NULL;
    if (node_sources == NULL) return;
    node_sources->node = NULL;
    node_sources->due.node = node_sources->node_events.node = NULL;
    tow_sim_node_sources_try_free(node_sources);
}

/* -- Creating ------------------------------------------------------------- */

static int64_t wall_ns(void *context)
{
    const tow_sim_t *sim = context;
    return sim->now_ns;
}

static void set_up_env(tow_sim_node_t *node)
{
    tow_sim_t *sim = node->sim;
    node->env = (tow_env_t){.ops = &tow_sim_env_ops,
                            .now_ns = sim->now_ns,
                            .random = tow_random_fork(&sim->random),
                            .log = sim->options.log,
                            .name = node->name};
    node->env.log.source = node->name;
    node->env.log.wall_ns = wall_ns;
    node->env.log.wall_context = sim;
}

/* The initial state of an incarnation. */
static tow_status_t start_incarnation(tow_sim_node_t *node)
{
    node->node_sources = tow_sim_node_sources_create(node);
    if (node->node_sources == NULL)
        return tow_status_bare(TOW_RESOURCE_EXHAUSTED);
    node->incarnation++;
    set_up_env(node);
    node->alive = true;
    node->paused = node->closing = node->closed = false;
    node->alarm_ns = TOW_TIME_NEVER;
    node->timer_sequence = 0;
    node->region_id_last = 0;
    node->datagram_arrived = NULL;
    node->datagram_context = NULL;
    node->lane_address =
        (tow_sim_lane_address_t){.magic = LANE_ADDRESS_MAGIC,
                                 .node_index = node->index,
                                 .incarnation = node->incarnation};
    if (node->program != NULL) {
        node->start_due = true;
        tow_sim_node_events_wake(node);
    }
    return TOW_OK;
}

static tow_status_t check_name(const tow_sim_t *sim, const char *name)
{
    char text[TOW_PEER_NAME_MAX + 8];
    tow_address_t address;
    if (name == NULL || strlen(name) > TOW_PEER_NAME_MAX)
        return TOW_ERROR(TOW_INVALID_ARGUMENT,
                         "a node needs a name of 1 to %d bytes",
                         TOW_PEER_NAME_MAX);
    snprintf(text, sizeof(text), "sim:%s", name);
    TOW_RETURN_IF_ERROR(tow_address_parse(text, &address));
    if (tow_names_find(&sim->nodes_by_name, name) != NULL)
        return TOW_ERROR(TOW_ALREADY_EXISTS,
                         "there is a node %s already; choose another name",
                         name);
    return TOW_OK;
}

static tow_status_t add_to_simulation(tow_sim_t *sim, tow_sim_node_t *node)
{
    if (sim->nodes.count == TOW_SIM_NODE_COUNT_MAX)
        return TOW_ERROR(TOW_RESOURCE_EXHAUSTED, "more than %u nodes",
                         TOW_SIM_NODE_COUNT_MAX);
    if (!tow_vec_push(&sim->nodes, node))
        return tow_status_bare(TOW_RESOURCE_EXHAUSTED);
    if (tow_names_put(&sim->nodes_by_name, node->name, node)) return TOW_OK;
    sim->nodes.count--;
    return tow_status_bare(TOW_RESOURCE_EXHAUSTED);
}

static tow_status_t build_node(tow_sim_t *sim, tow_sim_node_t *node,
                               const tow_sim_node_options_t *options)
{
    node->name = tow_strdup(options->name);
    if (node->name == NULL) return tow_status_bare(TOW_RESOURCE_EXHAUSTED);
    if (node->host == NULL)
        TOW_RETURN_IF_ERROR(tow_sim_host_create(
            sim, &(tow_sim_host_options_t){0}, &node->host));
    node->charges = node->host->charges;
    TOW_RETURN_IF_ERROR(start_incarnation(node));
    tow_status_t status = add_to_simulation(sim, node);
    if (status != TOW_OK) node->alive = false;
    return status;
}

tow_status_t tow_sim_node_create(tow_sim_t *sim,
                                 const tow_sim_node_options_t *options,
                                 tow_sim_node_t **out_node)
{
    *out_node = NULL;
    TOW_RETURN_IF_ERROR(check_name(sim, options->name));
    tow_sim_node_t *node = tow_calloc(1, sizeof(*node));
    if (node == NULL) return tow_status_bare(TOW_RESOURCE_EXHAUSTED);
    node->sim = sim;
    node->index = (uint32_t)sim->nodes.count;
    node->host = options->host;
    node->features = options->features;
    node->program = options->program;
    node->argument = options->argument;
    tow_list_init(&node->jobs);
    tow_list_init(&node->links);
    tow_list_init(&node->listeners);
    tow_list_init(&node->lanes);
    tow_status_t status = build_node(sim, node, options);
    if (status != TOW_OK) {
        discard_node_sources(node);
        tow_sim_node_destroy(node);
        return tow_status_annotate(status, "creating node %s", options->name);
    }
    *out_node = node;
    return TOW_OK;
}

void tow_sim_node_destroy(tow_sim_node_t *node)
{
    TOW_ASSERT(!node->alive);
    tow_map_deinit(&node->regions);
    tow_free(node->name);
    tow_free(node);
}

/* -- Crashing and restarting ---------------------------------------------- */

static void record_node_change(tow_sim_node_t *node, tow_sim_event_kind_t kind)
{
    tow_sim_record(node->sim, &(tow_sim_event_t){.time_ns = node->sim->now_ns,
                                                 .kind = kind,
                                                 .node = node->index,
                                                 .peer = EVENT_NO_NODE,
                                                 .size = node->incarnation});
}

static void kill_all(tow_sim_node_t *node)
{
    for (tow_list_t *at; (at = tow_list_pop_front(&node->listeners)) != NULL;)
        tow_sim_listener_kill(
            TOW_CONTAINER_OF(at, tow_sim_listener_t, by_node));
    for (tow_list_t *at; (at = tow_list_pop_front(&node->links)) != NULL;)
        tow_sim_link_kill(TOW_CONTAINER_OF(at, tow_sim_link_t, by_node));
    tow_sim_lanes_discard(node);
    tow_sim_regions_discard(node);
    tow_sim_writes_discard(node);
    tow_sim_works_discard(node);
    tow_sim_node_events_discard(node);
}

void tow_sim_node_kill(tow_sim_node_t *node)
{
    TOW_ASSERT(node->sim->current == NULL);
    if (!node->alive) return;
    node->alive = false;
    kill_all(node);
    discard_node_sources(node);
    tow_sim_turn_discard(node);
    if (node->program != NULL && node->program->destroy != NULL &&
        node->machine != NULL)
        node->program->destroy(node->machine);
    node->machine = NULL;
}

void tow_sim_crash(tow_sim_node_t *node)
{
    if (!node->alive) return;
    record_node_change(node, EVENT_CRASH);
    tow_sim_node_kill(node);
}

void tow_sim_restart(tow_sim_node_t *node)
{
    TOW_ASSERT(node->sim->current == NULL);
    if (node->alive) return;
    tow_status_t status = start_incarnation(node);
    if (status != TOW_OK)
        tow_sim_fail(node->sim, status);
    else
        record_node_change(node, EVENT_RESTART);
}

void tow_sim_pause(tow_sim_node_t *node)
{
    if (!node->alive || node->paused) return;
    node->paused = true;
    record_node_change(node, EVENT_PAUSE);
}

void tow_sim_resume(tow_sim_node_t *node)
{
    if (!node->paused) return;
    node->paused = false;
    record_node_change(node, EVENT_RESUME);
    tow_sim_node_continue(node);
}

/* -- Closing -------------------------------------------------------------- */

static void close_links(tow_sim_node_t *node)
{
    while (!tow_list_is_empty(&node->listeners)) {
        tow_sim_listener_t *listener =
            TOW_CONTAINER_OF(node->listeners.next, tow_sim_listener_t, by_node);
        tow_sim_listener_close(&listener->base, (tow_closed_t){0});
    }
    while (!tow_list_is_empty(&node->links)) {
        tow_sim_link_t *link =
            TOW_CONTAINER_OF(node->links.next, tow_sim_link_t, by_node);
        tow_sim_link_close(&link->base, (tow_closed_t){0});
    }
}

void tow_sim_env_close(tow_env_t *env, tow_closed_t closed)
{
    tow_sim_node_t *node = tow_sim_node_of(env);
    TOW_ASSERT(node->alive && !node->closing);
    node->closing = true;
    node->env_closed = closed;
    while (tow_timer_heap_first(&node->timers) != NULL)
        tow_timer_heap_disarm(&node->timers,
                              tow_timer_heap_first(&node->timers));
    close_links(node);
    tow_sim_lanes_close(node);
    tow_sim_regions_close(node);
    tow_sim_works_cancel(node);
    tow_sim_node_events_wake(node);
}

tow_status_t tow_sim_check_open(const tow_sim_node_t *node)
{
    if (node->alive && !node->closing) return TOW_OK;
    return TOW_ERROR(TOW_FAILED_PRECONDITION, "%s is %s", node->name,
                     node->alive ? "closing" : "dead");
}

bool tow_sim_env_is_empty(const tow_sim_node_t *node)
{
    return node->closing && !node->closed && tow_list_is_empty(&node->jobs) &&
           tow_list_is_empty(&node->lanes) &&
           tow_map_count(&node->regions) == 0;
}

void tow_sim_env_check_empty(tow_sim_node_t *node)
{
    if (node->closing && !node->closed) tow_sim_node_events_wake(node);
}

/* -- Accessors ------------------------------------------------------------ */

size_t tow_sim_node_count(const tow_sim_t *sim)
{
    return sim->nodes.count;
}

tow_sim_node_t *tow_sim_node_at(const tow_sim_t *sim, size_t index)
{
    TOW_ASSERT(index < sim->nodes.count);
    return sim->nodes.items[index];
}

tow_sim_node_t *tow_sim_node_find(const tow_sim_t *sim, const char *name)
{
    return tow_names_find(&sim->nodes_by_name, name);
}

tow_env_t *tow_sim_node_env(tow_sim_node_t *node)
{
    node->env.now_ns = node->sim->now_ns;
    return &node->env;
}

tow_sim_host_t *tow_sim_node_host(const tow_sim_node_t *node)
{
    return node->host;
}

const char *tow_sim_node_name(const tow_sim_node_t *node)
{
    return node->name;
}

void *tow_sim_node_machine(const tow_sim_node_t *node)
{
    return node->machine;
}

bool tow_sim_node_is_alive(const tow_sim_node_t *node)
{
    return node->alive;
}

bool tow_sim_node_is_paused(const tow_sim_node_t *node)
{
    return node->paused;
}

uint64_t tow_sim_node_incarnation(const tow_sim_node_t *node)
{
    return node->incarnation;
}
