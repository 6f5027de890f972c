/* What a node does with itself: timers, posts, and telling owners that what
 * they closed is gone. */
#include "env/sim/sim_impl.h"

/* Set while a world performs an event in this thread: a post from within needs
 * no atomic operation. */
static _Thread_local tow_sim_t *performing;

/* -- Timers --------------------------------------------------------------- */

/* Makes sure that the alarm goes off in time for the soonest timer. Entries for
 * timers that were stopped stay in the queue and do no harm. */
static void set_alarm(tow_sim_node_t *node)
{
    tow_sim_t *sim = node->sim;
    const tow_timer_t *first = tow_timer_heap_first(&node->timers);
    if (first == NULL) return;
    int64_t time_ns = first->deadline_ns;
    if (time_ns < sim->now_ns) time_ns = sim->now_ns;
    if (time_ns >= node->alarm_ns || time_ns > TOW_SIM_TIME_MAX) return;
    if (!tow_sim_queue_push(&sim->queue, time_ns, &node->pulse->alarm)) {
        tow_sim_out_of_memory(sim);
        return;
    }
    node->pulse->alarm_count++;
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
    tow_sim_record(sim, &(event_t){.time_ns = sim->now_ns,
                                   .kind = EVENT_TIMER,
                                   .node = node->index,
                                   .peer = EVENT_NO_NODE,
                                   .content = (uint64_t)timer->deadline_ns});
    tow_sim_turn_begin(node, 0);
    timer->fire(timer);
    tow_sim_turn_end(node);
}

int64_t tow_sim_due_perform(tow_sim_t *sim, source_t *source)
{
    pulse_t *pulse = TOW_CONTAINER_OF(source, pulse_t, due);
    tow_sim_node_t *node = pulse->node;
    if (node == NULL) {
        tow_sim_source_rest(source);
        tow_sim_pulse_try_free(pulse);
        return TOW_TIME_NEVER;
    }
    if (timer_is_due(node)) fire_first(node);
    if (timer_is_due(node)) return sim->now_ns;
    tow_sim_source_rest(source);
    set_alarm(node);
    return TOW_TIME_NEVER;
}

int64_t tow_sim_alarm_perform(tow_sim_t *sim, source_t *source)
{
    pulse_t *pulse = TOW_CONTAINER_OF(source, pulse_t, alarm);
    tow_sim_node_t *node = pulse->node;
    pulse->alarm_count--;
    if (node == NULL) {
        tow_sim_pulse_try_free(pulse);
        return TOW_TIME_NEVER;
    }
    if (sim->now_ns >= node->alarm_ns) node->alarm_ns = TOW_TIME_NEVER;
    if (timer_is_due(node) && !pulse->due.scheduled) {
        pulse->due.scheduled = true;
        if (!tow_sim_node_take_turn(node, &pulse->due)) return TOW_TIME_NEVER;
        pulse->due.scheduled = false;
        fire_first(node);
    }
    if (!pulse->due.scheduled) set_alarm(node);
    return TOW_TIME_NEVER;
}

void tow_sim_timer_start(tow_env_t *env, tow_timer_t *timer)
{
    tow_sim_node_t *node = tow_sim_node_of(env);
    TOW_ASSERT(node->alive);
    tow_timer_heap_arm(&node->timers, timer, node->timer_sequence++);
    if (!node->pulse->due.scheduled) set_alarm(node);
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
    tow_sim_chores_wake(node);
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

/* -- Chores --------------------------------------------------------------- */

void tow_sim_chores_wake(tow_sim_node_t *node)
{
    tow_sim_wake_source(node->sim, &node->pulse->chores, node->sim->now_ns);
}

void tow_sim_close_later(tow_sim_node_t *node, closure_t *closure)
{
    closure->next = NULL;
    if (node->closures_first == NULL)
        node->closures_first = closure;
    else
        node->closures_last->next = closure;
    node->closures_last = closure;
    tow_sim_chores_wake(node);
}

static void record_chore(tow_sim_node_t *node, event_kind_t kind)
{
    tow_sim_record(node->sim, &(event_t){.time_ns = node->sim->now_ns,
                                         .kind = kind,
                                         .node = node->index,
                                         .peer = EVENT_NO_NODE,
                                         .size = node->incarnation});
}

static void do_start(tow_sim_node_t *node)
{
    node->start_due = false;
    record_chore(node, EVENT_START);
    tow_sim_turn_begin(node, 0);
    tow_status_t status =
        node->program->start(&node->env, node->argument, &node->machine);
    tow_sim_turn_end(node);
    if (status != TOW_OK)
        tow_sim_fail(node->sim, tow_status_annotate(status, "starting node %s",
                                                    node->name));
}

static void tell_closed(tow_sim_node_t *node, tow_closed_t closed)
{
    record_chore(node, EVENT_CLOSED);
    if (closed.run == NULL) return;
    tow_sim_turn_begin(node, 0);
    closed.run(closed.context);
    tow_sim_turn_end(node);
}

static void do_closure(tow_sim_node_t *node)
{
    closure_t *closure = node->closures_first;
    node->closures_first = closure->next;
    tow_closed_t closed = closure->closed;
    closure->release(node->sim, closure);
    tell_closed(node, closed);
}

static void do_post(tow_sim_node_t *node)
{
    tow_post_t *post = node->posts_first;
    node->posts_first = post->next_;
    record_chore(node, EVENT_POST);
    tow_sim_turn_begin(node, 0);
    post->run(post);
    tow_sim_turn_end(node);
}

/* False when there was none. */
static bool do_one_chore(tow_sim_node_t *node)
{
    if (node->start_due)
        do_start(node);
    else if (node->completed_first != NULL)
        tow_sim_write_complete_first(node);
    else if (node->closures_first != NULL)
        do_closure(node);
    else if (node->posts_first != NULL)
        do_post(node);
    else
        return false;
    return true;
}

/* Chores are done in turns of their own. When a closing env has none left, and
 * nothing else, its end is the last one. */
int64_t tow_sim_chores_perform(tow_sim_t *sim, source_t *source)
{
    pulse_t *pulse = TOW_CONTAINER_OF(source, pulse_t, chores);
    tow_sim_node_t *node = pulse->node;
    if (node == NULL) {
        tow_sim_source_rest(source);
        tow_sim_pulse_try_free(pulse);
        return TOW_TIME_NEVER;
    }
    if (do_one_chore(node)) return sim->now_ns;
    tow_sim_source_rest(source);
    if (tow_sim_env_is_empty(node)) {
        node->closed = true;
        tell_closed(node, node->env_closed);
    }
    return TOW_TIME_NEVER;
}

void tow_sim_chores_forget(tow_sim_node_t *node)
{
    tow_sim_t *sim = node->sim;
    node->start_due = false;
    node->timers = (tow_timer_heap_t){0};
    node->alarm_ns = TOW_TIME_NEVER;
    node->posts_first = node->posts_last = NULL;
    pthread_mutex_lock(&sim->foreign_lock);
    node->foreign_first = node->foreign_last = NULL;
    pthread_mutex_unlock(&sim->foreign_lock);
    while (node->closures_first != NULL) {
        closure_t *closure = node->closures_first;
        node->closures_first = closure->next;
        closure->release(sim, closure);
    }
}
