/* Timers and posts of a node, and notifications of completed closes. */
#include "env/sim/sim_impl.h"

/* The simulation whose event this thread performs: a post from within needs no
 * atomic operation. */
static _Thread_local tow_sim_t *performing;

/* -- Timers --------------------------------------------------------------- */

/* Schedules the alarm for the earliest timer. Queue entries for timers that
 * were stopped remain and have no effect. */
static void set_alarm(tow_sim_node_t *node)
{
    tow_sim_t *sim = node->sim;
    const tow_timer_t *first = tow_timer_heap_first(&node->timers);
    if (first == NULL) return;
    int64_t time_ns = first->deadline_ns;
    if (time_ns < sim->now_ns) time_ns = sim->now_ns;
    if (time_ns >= node->alarm_ns || time_ns > TOW_SIM_TIME_MAX) return;
    if (!tow_sim_queue_push(&sim->queue, time_ns, &node->node_sources->alarm)) {
        tow_sim_out_of_memory(sim);
        return;
    }
    node->node_sources->alarm_count++;
    node->alarm_ns = time_ns;
}

static bool timer_is_due(const tow_sim_node_t *node)
{
    const tow_timer_t *first = tow_timer_heap_first(&node->timers);
    return first != NULL && first->deadline_ns <= node->sim->now_ns;
}

static void fire_first(tow_sim_node_t *node)
{
    tow_sim_t *sim = node->sim;
    tow_timer_t *timer = tow_timer_heap_first(&node->timers);
    tow_timer_heap_disarm(&node->timers, timer);
    tow_sim_record(sim,
                   &(tow_sim_event_t){.time_ns = sim->now_ns,
                                      .kind = EVENT_TIMER,
                                      .node = node->index,
                                      .peer = EVENT_NO_NODE,
                                      .content = (uint64_t)timer->deadline_ns});
    tow_sim_turn_begin(node, 0);
    timer->fire(timer);
    tow_sim_turn_end(node);
}

int64_t tow_sim_due_perform(tow_sim_t *sim, tow_sim_source_t *source)
{
    tow_sim_node_sources_t *node_sources =
        TOW_CONTAINER_OF(source, tow_sim_node_sources_t, due);
    tow_sim_node_t *node = node_sources->node;
    if (node == NULL) {
        tow_sim_source_rest(source);
        tow_sim_node_sources_try_free(node_sources);
        return TOW_TIME_NEVER;
    }
    if (timer_is_due(node)) fire_first(node);
    if (timer_is_due(node)) return sim->now_ns;
    tow_sim_source_rest(source);
    set_alarm(node);
    return TOW_TIME_NEVER;
}

int64_t tow_sim_alarm_perform(tow_sim_t *sim, tow_sim_source_t *source)
{
    tow_sim_node_sources_t *node_sources =
        TOW_CONTAINER_OF(source, tow_sim_node_sources_t, alarm);
    tow_sim_node_t *node = node_sources->node;
    node_sources->alarm_count--;
    if (node == NULL) {
        tow_sim_node_sources_try_free(node_sources);
        return TOW_TIME_NEVER;
    }
    if (sim->now_ns >= node->alarm_ns) node->alarm_ns = TOW_TIME_NEVER;
    if (timer_is_due(node) && !node_sources->due.scheduled) {
        node_sources->due.scheduled = true;
        if (!tow_sim_node_take_turn(node, &node_sources->due))
            return TOW_TIME_NEVER;
        node_sources->due.scheduled = false;
        fire_first(node);
    }
    if (!node_sources->due.scheduled) set_alarm(node);
    return TOW_TIME_NEVER;
}

void tow_sim_timer_start(tow_env_t *env, tow_timer_t *timer)
{
    tow_sim_node_t *node = tow_sim_node_of(env);
    TOW_ASSERT(node->alive);
    tow_timer_heap_arm(&node->timers, timer, node->timer_sequence++);
    if (!node->node_sources->due.scheduled) set_alarm(node);
}

void tow_sim_timer_stop(tow_env_t *env, tow_timer_t *timer)
{
    tow_timer_heap_disarm(&tow_sim_node_of(env)->timers, timer);
}

/* -- Posts ---------------------------------------------------------------- */

static void posts_append(tow_sim_node_t *node, tow_post_t *post)
{
    post->next_ = NULL;
    if (node->posts_first == NULL)
        node->posts_first = post;
    else
        node->posts_last->next_ = post;
    node->posts_last = post;
    tow_sim_node_events_wake(node);
}

tow_sim_t *tow_sim_set_performing(tow_sim_t *sim)
{
    tow_sim_t *before = performing;
    performing = sim;
    return before;
}

void tow_sim_post(tow_env_t *env, tow_post_t *post)
{
    tow_sim_node_t *node = tow_sim_node_of(env);
    if (performing == node->sim) {
        if (node->alive) posts_append(node, post);
        return;
    }
    pthread_mutex_lock(&node->sim->foreign_lock);
    post->next_ = NULL;
    if (node->foreign_first == NULL)
        node->foreign_first = post;
    else
        node->foreign_last->next_ = post;
    node->foreign_last = post;
    pthread_mutex_unlock(&node->sim->foreign_lock);
    atomic_store_explicit(&node->sim->has_foreign_posts, true,
                          memory_order_release);
}

static void take_foreign_of(tow_sim_node_t *node)
{
    tow_post_t *post = node->foreign_first;
    node->foreign_first = node->foreign_last = NULL;
    while (post != NULL) {
        tow_post_t *next = post->next_;
        if (node->alive) posts_append(node, post);
        post = next;
    }
}

void tow_sim_take_foreign_posts(tow_sim_t *sim)
{
    pthread_mutex_lock(&sim->foreign_lock);
    atomic_store_explicit(&sim->has_foreign_posts, false, memory_order_relaxed);
    for (size_t i = 0; i < sim->nodes.count; i++)
        take_foreign_of(sim->nodes.items[i]);
    pthread_mutex_unlock(&sim->foreign_lock);
}

/* -- Node events ---------------------------------------------------------- */

void tow_sim_node_events_wake(tow_sim_node_t *node)
{
    tow_sim_wake_source(node->sim, &node->node_sources->node_events,
                        node->sim->now_ns);
}

void tow_sim_close_later(tow_sim_node_t *node,
                         tow_sim_pending_close_t *pending_close)
{
    pending_close->next = NULL;
    if (node->pending_closes_first == NULL)
        node->pending_closes_first = pending_close;
    else
        node->pending_closes_last->next = pending_close;
    node->pending_closes_last = pending_close;
    tow_sim_node_events_wake(node);
}

static void record_node_event(tow_sim_node_t *node, tow_sim_event_kind_t kind)
{
    tow_sim_record(node->sim, &(tow_sim_event_t){.time_ns = node->sim->now_ns,
                                                 .kind = kind,
                                                 .node = node->index,
                                                 .peer = EVENT_NO_NODE,
                                                 .size = node->incarnation});
}

static void do_start(tow_sim_node_t *node)
{
    node->start_due = false;
    record_node_event(node, EVENT_START);
    tow_sim_turn_begin(node, 0);
    tow_status_t status =
        node->program->start(&node->env, node->argument, &node->machine);
    tow_sim_turn_end(node);
    if (status != TOW_OK)
        tow_sim_fail(node->sim, tow_status_annotate(status, "starting node %s",
                                                    node->name));
}

static void notify_closed(tow_sim_node_t *node, tow_closed_t closed)
{
    record_node_event(node, EVENT_CLOSED);
    if (closed.run == NULL) return;
    tow_sim_turn_begin(node, 0);
    closed.run(closed.context);
    tow_sim_turn_end(node);
}

static void finish_close(tow_sim_node_t *node)
{
    tow_sim_pending_close_t *pending_close = node->pending_closes_first;
    node->pending_closes_first = pending_close->next;
    tow_closed_t closed = pending_close->closed;
    pending_close->release(node->sim, pending_close);
    notify_closed(node, closed);
}

static void do_post(tow_sim_node_t *node)
{
    tow_post_t *post = node->posts_first;
    node->posts_first = post->next_;
    record_node_event(node, EVENT_POST);
    tow_sim_turn_begin(node, 0);
    post->run(post);
    tow_sim_turn_end(node);
}

/* False when there was none. */
static bool run_one_event(tow_sim_node_t *node)
{
    if (node->start_due)
        do_start(node);
    else if (node->completed_first != NULL)
        tow_sim_write_complete_first(node);
    else if (node->pending_closes_first != NULL)
        finish_close(node);
    else if (node->posts_first != NULL)
        do_post(node);
    else
        return false;
    return true;
}

/* Each node event is a turn of its own. When a closing env has no event left
 * and nothing open, its own `closed` is the last one. */
int64_t tow_sim_node_events_perform(tow_sim_t *sim, tow_sim_source_t *source)
{
    tow_sim_node_sources_t *node_sources =
        TOW_CONTAINER_OF(source, tow_sim_node_sources_t, node_events);
    tow_sim_node_t *node = node_sources->node;
    if (node == NULL) {
        tow_sim_source_rest(source);
        tow_sim_node_sources_try_free(node_sources);
        return TOW_TIME_NEVER;
    }
    if (run_one_event(node)) return sim->now_ns;
    tow_sim_source_rest(source);
    if (tow_sim_env_is_empty(node)) {
        node->closed = true;
        notify_closed(node, node->env_closed);
    }
    return TOW_TIME_NEVER;
}

void tow_sim_node_events_discard(tow_sim_node_t *node)
{
    tow_sim_t *sim = node->sim;
    node->start_due = false;
    node->timers = (tow_timer_heap_t){0};
    node->alarm_ns = TOW_TIME_NEVER;
    node->posts_first = node->posts_last = NULL;
    pthread_mutex_lock(&sim->foreign_lock);
    node->foreign_first = node->foreign_last = NULL;
    pthread_mutex_unlock(&sim->foreign_lock);
    while (node->pending_closes_first != NULL) {
        tow_sim_pending_close_t *pending_close = node->pending_closes_first;
        node->pending_closes_first = pending_close->next;
        pending_close->release(sim, pending_close);
    }
}
