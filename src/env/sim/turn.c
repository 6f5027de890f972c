/* Turns: when a node may act, what that costs, and when its output leaves.
 *
 * A node is a single thread on a host. On a host without costs a turn takes no
 * time, and a node that is not paused can always take one. On a host with costs
 * a turn occupies a core until it has been charged; only then does its output
 * leave, and may the node's next turn start. Nodes that find no free core wait
 * in FIFO order. */
#include "env/sim/sim_impl.h"

static bool has_ready(const tow_sim_node_t *node)
{
    return node->ready_first != NULL;
}

static void ready_append(tow_sim_node_t *node, tow_sim_source_t *source)
{
    source->next_ready = NULL;
    if (node->ready_first == NULL)
        node->ready_first = source;
    else
        node->ready_last->next_ready = source;
    node->ready_last = source;
}

static tow_sim_source_t *ready_pop(tow_sim_node_t *node)
{
    tow_sim_source_t *source = node->ready_first;
    node->ready_first = source->next_ready;
    return source;
}

/* -- Cores ---------------------------------------------------------------- */

static void wait_for_core(tow_sim_node_t *node)
{
    tow_sim_host_t *host = node->host;
    node->waits_for_core = true;
    node->next_waiting = NULL;
    if (host->waiting_first == NULL)
        host->waiting_first = node;
    else
        host->waiting_last->next_waiting = node;
    host->waiting_last = node;
}

static void stop_waiting(tow_sim_node_t *node)
{
    tow_sim_host_t *host = node->host;
    tow_sim_node_t *before = NULL;
    tow_sim_node_t *at = host->waiting_first;
    for (; at != node; before = at, at = at->next_waiting)
        TOW_ASSERT(at != NULL);
    if (before == NULL)
        host->waiting_first = node->next_waiting;
    else
        before->next_waiting = node->next_waiting;
    if (host->waiting_last == node) host->waiting_last = before;
    node->waits_for_core = false;
}

static bool take_core(tow_sim_node_t *node)
{
    tow_sim_host_t *host = node->host;
    if (host->busy_core_count == host->core_count) return false;
    host->busy_core_count++;
    node->holds_core = true;
    return true;
}

/* The core goes directly to the first waiting node, so that no node that
 * arrives at this moment overtakes it. */
static void release_core(tow_sim_node_t *node)
{
    tow_sim_host_t *host = node->host;
    TOW_ASSERT(node->holds_core && host->busy_core_count > 0);
    node->holds_core = false;
    host->busy_core_count--;
    tow_sim_node_t *next = host->waiting_first;
    if (next == NULL) return;
    stop_waiting(next);
    TOW_ASSERT(take_core(next));
    tow_sim_wake_source(next->sim, &next->node_sources->wake,
                        next->sim->now_ns);
}

/* -- Turns ---------------------------------------------------------------- */

bool tow_sim_node_take_turn(tow_sim_node_t *node, tow_sim_source_t *source)
{
    if (!node->alive) return true;
    /* One of these wakes the node later. */
    bool resting = !node->paused && !has_ready(node) && !node->holds_core;
    if (TOW_LIKELY(resting)) {
        if (TOW_LIKELY(!node->charges)) return true;
        if (node->host->busy_core_count < node->host->core_count) return true;
        wait_for_core(node);
    }
    ready_append(node, source);
    return false;
}

void tow_sim_turn_begin(tow_sim_node_t *node, int64_t cost_ns)
{
    tow_sim_t *sim = node->sim;
    TOW_ASSERT(sim->current == NULL && node->alive);
    sim->current = node;
    sim->counts.turns++;
    node->env.now_ns = sim->now_ns;
    if (TOW_LIKELY(!node->charges)) return;
    sim->turn_cost_ns = node->host->costs.turn_ns + cost_ns;
    if (!node->holds_core) TOW_ASSERT(take_core(node));
}

static void flush_outbox(tow_sim_node_t *node)
{
    tow_sim_emission_t *emission = node->outbox_first;
    node->outbox_first = node->outbox_last = NULL;
    while (emission != NULL) {
        tow_sim_emission_t *next = emission->next;
        emission->emit(node->sim, emission);
        emission = next;
    }
}

void tow_sim_turn_end(tow_sim_node_t *node)
{
    tow_sim_t *sim = node->sim;
    TOW_ASSERT(sim->current == node);
    sim->current = NULL;
    if (TOW_LIKELY(!node->charges)) return;
    if (sim->turn_cost_ns == 0) {
        flush_outbox(node);
        release_core(node);
        return;
    }
    node->charging = true;
    node->busy_until_ns = sim->now_ns + sim->turn_cost_ns;
    tow_sim_wake_source(sim, &node->node_sources->wake, node->busy_until_ns);
}

static int64_t cost_of(int64_t fixed_ns, int64_t ns_per_kib, uint64_t size)
{
    return fixed_ns + (int64_t)(size * (uint64_t)ns_per_kib / 1024);
}

int64_t tow_sim_charge_receive(const tow_sim_node_t *node, uint64_t size)
{
    const tow_sim_costs_t *costs = &node->host->costs;
    return cost_of(costs->receive_ns, costs->receive_ns_per_kib, size);
}

void tow_sim_charge_send(tow_sim_node_t *node, uint64_t size)
{
    if (TOW_LIKELY(!node->charges) || node->sim->current != node) return;
    const tow_sim_costs_t *costs = &node->host->costs;
    node->sim->turn_cost_ns +=
        cost_of(costs->send_ns, costs->send_ns_per_kib, size);
}

void tow_sim_emit(tow_sim_node_t *node, tow_sim_emission_t *emission)
{
    /* Output of a call outside of turns stays behind the output of a turn that
     * is being charged. */
    bool is_busy = node->sim->current == node || node->charging;
    if (TOW_LIKELY(!node->charges) || !is_busy) {
        emission->emit(node->sim, emission);
        return;
    }
    emission->next = NULL;
    if (node->outbox_first == NULL)
        node->outbox_first = emission;
    else
        node->outbox_last->next = emission;
    node->outbox_last = emission;
}

/* Performs the source that has waited longest. Returns when the node wants to
 * be woken again. */
static int64_t run_ready(tow_sim_node_t *node)
{
    tow_sim_t *sim = node->sim;
    tow_sim_source_t *source = ready_pop(node);
    int64_t next_ns = source->perform(sim, source);
    if (next_ns != TOW_TIME_NEVER) {
        source->scheduled = false;
        tow_sim_schedule_source(sim, source, next_ns);
    }
    if (node->charging) return node->busy_until_ns;
    if (node->holds_core) release_core(node);
    return has_ready(node) ? sim->now_ns
                           : tow_sim_source_rest(&node->node_sources->wake);
}

int64_t tow_sim_wake_perform(tow_sim_t *sim, tow_sim_source_t *source)
{
    tow_sim_node_sources_t *node_sources =
        TOW_CONTAINER_OF(source, tow_sim_node_sources_t, wake);
    tow_sim_node_t *node = node_sources->node;
    if (node == NULL) {
        tow_sim_source_rest(source);
        tow_sim_node_sources_try_free(node_sources);
        return TOW_TIME_NEVER;
    }
    if (node->charging) {
        TOW_ASSERT(sim->now_ns == node->busy_until_ns);
        node->charging = false;
        flush_outbox(node);
        release_core(node);
    }
    bool may_run = !node->paused && has_ready(node);
    if (may_run && node->charges && !node->holds_core && !take_core(node)) {
        wait_for_core(node);
        return tow_sim_source_rest(source);
    }
    if (may_run) return run_ready(node);
    if (node->holds_core) release_core(node);
    return tow_sim_source_rest(source);
}

void tow_sim_node_continue(tow_sim_node_t *node)
{
    if (!node->alive || node->paused || !has_ready(node)) return;
    if (node->holds_core || node->waits_for_core) return;
    tow_sim_wake_source(node->sim, &node->node_sources->wake,
                        node->sim->now_ns);
}

void tow_sim_turn_discard(tow_sim_node_t *node)
{
    TOW_ASSERT(!node->alive);
    tow_sim_t *sim = node->sim;
    while (has_ready(node)) {
        /* The source sees that the node is dead, and frees itself or continues
         * alone. */
        tow_sim_source_t *source = ready_pop(node);
        int64_t next_ns = source->perform(sim, source);
        if (next_ns == TOW_TIME_NEVER) continue;
        source->scheduled = false;
        tow_sim_schedule_source(sim, source, next_ns);
    }
    flush_outbox(node);
    if (node->waits_for_core) stop_waiting(node);
    if (node->holds_core) release_core(node);
    node->charging = false;
}
