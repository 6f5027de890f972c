/* Posts from any thread, and the loop's own tasks.
 *
 * Posts are a stack: producers push with one compare-and-swap; the loop takes
 * the whole stack and reverses it. A producer makes a system call only when the
 * loop sleeps: the loop sets is_sleeping before its last look at the stack, the
 * producer pushes before it reads is_sleeping, and both are sequentially
 * consistent, so at least one of them sees the other. */
#include <errno.h>
#include <unistd.h>

#include "env/net/net_impl.h"

void tow_net_wake(tow_net_t *net)
{
    if (!atomic_load(&net->is_sleeping)) return;
    if (!atomic_exchange(&net->is_sleeping, false)) return;
    /* Never read back: the source is edge-triggered, and the counter would
     * overflow only after 2^64 wakeups. */
    const uint64_t one = 1;
    ssize_t written;
    do {
        written = write(net->wake_source.fd, &one, sizeof(one));
    } while (written < 0 && errno == EINTR);
    TOW_ASSERT(written == sizeof(one));
}

void tow_net_post(tow_env_t *env, tow_post_t *post)
{
    tow_net_t *net = tow_net_of(env);
    tow_post_t *head = atomic_load_explicit(&net->posts, memory_order_relaxed);
    do {
        post->next_ = head;
    } while (!atomic_compare_exchange_weak(&net->posts, &head, post));
    tow_net_wake(net);
}

bool tow_net_run_posts(tow_net_t *net)
{
    if (!tow_net_has_posts(net)) return false;
    tow_post_t *newest = atomic_exchange(&net->posts, NULL);
    tow_post_t *oldest = NULL;
    while (newest != NULL) {
        tow_post_t *next = newest->next_;
        newest->next_ = oldest;
        oldest = newest;
        newest = next;
    }
    while (oldest != NULL) {
        tow_post_t *post = oldest;
        oldest = post->next_; /* `run` may free it. */
        post->run(post);
    }
    return true;
}

void tow_net_task_init(tow_net_task_t *task, void (*run)(tow_net_task_t *task))
{
    tow_list_init(&task->list);
    task->run = run;
}

void tow_net_defer(tow_net_t *net, tow_net_task_t *task)
{
    if (tow_list_is_empty(&task->list))
        tow_list_append(&net->tasks, &task->list);
}

bool tow_net_run_tasks(tow_net_t *net)
{
    if (tow_list_is_empty(&net->tasks)) return false;
    /* Tasks deferred meanwhile are behind the mark, for the next pass. A task
     * may free itself and others, so no pointer into the list is kept. */
    tow_list_t mark;
    tow_list_append(&net->tasks, &mark);
    while (net->tasks.next != &mark) {
        tow_list_t *item = tow_list_pop_front(&net->tasks);
        tow_net_task_t *task = TOW_CONTAINER_OF(item, tow_net_task_t, list);
        task->run(task);
    }
    tow_list_remove(&mark);
    return true;
}
