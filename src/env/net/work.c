/* Helper threads for tow_work_t: started on demand, asleep when idle, joined
 * when the net is destroyed. */
#include <pthread.h>
#include <signal.h>

#include "base/alloc.h"
#include "env/net/net_impl.h"

typedef enum work_state {
    WORK_WAITING = 1,
    WORK_RUNNING,
    WORK_ENDED,
} work_state_t;

struct tow_net_helpers {
    pthread_mutex_t lock; /* guards all fields below, and state_ of all work */
    pthread_cond_t changed;
    tow_work_t *first; /* waiting, oldest first */
    tow_work_t *last;
    uint32_t idle_count;
    uint32_t thread_count;
    uint32_t thread_count_max;
    bool is_ending;
    pthread_t threads[TOW_NET_HELPER_COUNT_MAX];
};

static void append(tow_net_helpers_t *helpers, tow_work_t *work)
{
    work->next_ = NULL;
    work->previous_ = helpers->last;
    if (helpers->last != NULL)
        helpers->last->next_ = work;
    else
        helpers->first = work;
    helpers->last = work;
}

static void remove_waiting(tow_net_helpers_t *helpers, tow_work_t *work)
{
    if (work->previous_ != NULL)
        work->previous_->next_ = work->next_;
    else
        helpers->first = work->next_;
    if (work->next_ != NULL)
        work->next_->previous_ = work->previous_;
    else
        helpers->last = work->previous_;
}

/* Runs on the loop, from the post. */
static void finish(tow_post_t *post)
{
    tow_work_t *work = TOW_CONTAINER_OF(post, tow_work_t, post_);
    tow_net_t *net = tow_net_of(work->env_);
    tow_status_t status = work->status_;
    work->status_ = TOW_OK;
    work->done(work, status); /* May free it. */
    tow_net_release(net);
}

static void end_work(tow_work_t *work, tow_status_t take_status)
{
    work->status_ = take_status;
    tow_env_post(work->env_, &work->post_);
}

/* Waits for work; NULL when the thread must end. */
static tow_work_t *take_work(tow_net_helpers_t *helpers)
{
    pthread_mutex_lock(&helpers->lock);
    helpers->idle_count++;
    while (helpers->first == NULL && !helpers->is_ending)
        pthread_cond_wait(&helpers->changed, &helpers->lock);
    helpers->idle_count--;
    tow_work_t *work = helpers->first;
    if (work != NULL) {
        remove_waiting(helpers, work);
        work->state_ = WORK_RUNNING;
    }
    pthread_mutex_unlock(&helpers->lock);
    return work;
}

static void *helper_main(void *argument)
{
    tow_net_helpers_t *helpers = argument;
    tow_work_t *work;
    while ((work = take_work(helpers)) != NULL)
        end_work(work, work->run(work));
    return NULL;
}

/* Created with the first job. */
static tow_net_helpers_t *helpers_in(tow_net_helpers_t **place,
                                     uint32_t thread_count_max)
{
    if (*place != NULL) return *place;
    tow_net_helpers_t *helpers = tow_calloc(1, sizeof(*helpers));
    if (helpers == NULL) return NULL;
    pthread_mutex_init(&helpers->lock, NULL);
    pthread_cond_init(&helpers->changed, NULL);
    helpers->thread_count_max = thread_count_max;
    *place = helpers;
    return helpers;
}

/* Helpers block all signals: those are for the user's threads. */
static int start_thread(tow_net_helpers_t *helpers)
{
    sigset_t all;
    sigfillset(&all);
    pthread_attr_t attributes;
    pthread_attr_init(&attributes);
    pthread_attr_setsigmask_np(&attributes, &all);
    int error = pthread_create(&helpers->threads[helpers->thread_count],
                               &attributes, helper_main, helpers);
    pthread_attr_destroy(&attributes);
    if (error == 0) helpers->thread_count++;
    return error;
}

/* Called under the lock. An idle thread that was already woken for another job
 * still counts as idle: so compare with the number of waiting jobs. */
static bool wants_thread(const tow_net_helpers_t *helpers)
{
    uint32_t waiting = 0;
    for (tow_work_t *work = helpers->first;
         work != NULL && waiting <= helpers->idle_count; work = work->next_)
        waiting++;
    return waiting > helpers->idle_count &&
           helpers->thread_count < helpers->thread_count_max;
}

static void start(tow_net_t *net, tow_net_helpers_t *helpers, tow_work_t *work)
{
    work->env_ = &net->env;
    work->post_.run = finish;
    work->status_ = TOW_OK;
    work->state_ = WORK_WAITING;
    tow_net_retain(net);
    if (helpers == NULL) {
        work->state_ = WORK_ENDED;
        end_work(work, tow_status_bare(TOW_RESOURCE_EXHAUSTED));
        return;
    }
    pthread_mutex_lock(&helpers->lock);
    append(helpers, work);
    int error = wants_thread(helpers) ? start_thread(helpers) : 0;
    bool is_hopeless = error != 0 && helpers->thread_count == 0;
    if (is_hopeless) {
        remove_waiting(helpers, work);
        work->state_ = WORK_ENDED;
    }
    pthread_cond_signal(&helpers->changed);
    pthread_mutex_unlock(&helpers->lock);
    if (is_hopeless)
        end_work(work, TOW_ERRNO(error, "starting a helper thread"));
}

void tow_net_work_start(tow_env_t *env, tow_work_t *work)
{
    tow_net_t *net = tow_net_of(env);
    start(net, helpers_in(&net->helpers, net->helper_count_max), work);
}

void tow_net_copy_start(tow_net_t *net, tow_work_t *work)
{
    start(net, helpers_in(&net->copiers, TOW_NET_PULL_COPIERS), work);
}

void tow_net_cipher_start(tow_net_t *net, tow_work_t *work,
                          uint32_t thread_count_max)
{
    TOW_ASSERT(thread_count_max <= TOW_NET_HELPER_COUNT_MAX);
    start(net, helpers_in(&net->ciphers, thread_count_max), work);
}

void tow_net_work_cancel(tow_env_t *env, tow_work_t *work)
{
    tow_net_helpers_t *helpers = tow_net_of(env)->helpers;
    if (helpers == NULL) return;
    pthread_mutex_lock(&helpers->lock);
    bool has_begun = work->state_ != WORK_WAITING;
    if (!has_begun) {
        remove_waiting(helpers, work);
        work->state_ = WORK_ENDED;
    }
    pthread_mutex_unlock(&helpers->lock);
    if (!has_begun) end_work(work, tow_status_bare(TOW_CANCELLED));
}

void tow_net_work_cancel_all(tow_net_t *net)
{
    if (net->helpers == NULL) return;
    for (;;) {
        pthread_mutex_lock(&net->helpers->lock);
        tow_work_t *work = net->helpers->first;
        pthread_mutex_unlock(&net->helpers->lock);
        if (work == NULL) return;
        /* A helper may have taken it in between: then it runs. */
        tow_net_work_cancel(&net->env, work);
    }
}

static void destroy_in(tow_net_helpers_t **place)
{
    tow_net_helpers_t *helpers = *place;
    if (helpers == NULL) return;
    pthread_mutex_lock(&helpers->lock);
    helpers->is_ending = true;
    pthread_cond_broadcast(&helpers->changed);
    pthread_mutex_unlock(&helpers->lock);
    for (uint32_t i = 0; i < helpers->thread_count; i++)
        pthread_join(helpers->threads[i], NULL);
    pthread_cond_destroy(&helpers->changed);
    pthread_mutex_destroy(&helpers->lock);
    tow_free(helpers);
    *place = NULL;
}

void tow_net_helpers_destroy(tow_net_t *net)
{
    destroy_in(&net->helpers);
    destroy_in(&net->copiers);
    destroy_in(&net->ciphers);
}
