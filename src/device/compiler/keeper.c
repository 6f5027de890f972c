#include "device/compiler/keeper.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

#include "base/assert.h"
#include "base/macros.h"

#define NS_PER_S  INT64_C(1000000000)
#define NS_PER_MS INT64_C(1000000)

/* -- For the loop ----------------------------------------------------------- */

void tow_keeper_init(tow_keeper_t *keeper)
{
    *keeper = (tow_keeper_t){.wake_fd = -1};
    tow_child_process_init(&keeper->process);
}

void tow_keeper_deinit(tow_keeper_t *keeper)
{
    TOW_ASSERT(!keeper->has_thread);
    if (keeper->wake_fd >= 0) close(keeper->wake_fd);
    keeper->wake_fd = -1;
}

tow_status_t tow_keeper_start(tow_keeper_t *keeper, void *(*run)(void *context),
                              void *context)
{
    if (keeper->has_thread) return TOW_OK;
    if (keeper->wake_fd < 0)
        keeper->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (keeper->wake_fd < 0) return TOW_ERRNO(errno, "eventfd");
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    const int error = pthread_create(&keeper->thread, NULL, run, context);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (error != 0) return TOW_ERRNO(error, "starting a thread");
    keeper->has_thread = true;
    return TOW_OK;
}

void tow_keeper_order(tow_keeper_t *keeper, unsigned order)
{
    const uint64_t one = 1;
    ssize_t written;
    TOW_ASSERT(keeper->has_thread);
    /* Only what is for the job that runs is added: what came too late for the
     * last one must not meet the next. */
    if (order == TOW_KEEPER_CANCEL || order == TOW_KEEPER_TELL)
        atomic_fetch_or(&keeper->orders, order);
    else
        atomic_store(&keeper->orders, order);
    do {
        written = write(keeper->wake_fd, &one, sizeof(one));
    } while (written < 0 && errno == EINTR);
    TOW_ASSERT(written == sizeof(one));
}

void tow_keeper_join(tow_keeper_t *keeper)
{
    TOW_ASSERT(keeper->has_thread);
    pthread_join(keeper->thread, NULL);
    keeper->has_thread = false;
}

/* -- For the thread --------------------------------------------------------- */

int64_t tow_keeper_now_ns(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (int64_t)time.tv_sec * NS_PER_S + time.tv_nsec;
}

static unsigned take_orders(tow_keeper_t *keeper)
{
    uint64_t count;
    ssize_t got = read(keeper->wake_fd, &count, sizeof(count));
    TOW_ASSERT(got == sizeof(count) || errno == EAGAIN || errno == EINTR);
    return atomic_exchange(&keeper->orders, 0);
}

enum {
    POLL_WAKE,
    POLL_SOCKET,
    POLL_WORDS,
    POLL_END,
    POLL_COUNT
};

/* True if there is anything. Of a child that is not there nothing comes. */
static bool sleep_until_news(const tow_keeper_t *keeper, short socket_events,
                             int wait_ms, struct pollfd polls[POLL_COUNT])
{
    const child_process_t *process = &keeper->process;
    polls[POLL_WAKE] = (struct pollfd){keeper->wake_fd, POLLIN, 0};
    polls[POLL_SOCKET] = (struct pollfd){process->socket_fd, socket_events, 0};
    polls[POLL_WORDS] = (struct pollfd){process->error_fd, POLLIN, 0};
    polls[POLL_END] = (struct pollfd){process->pid_fd, POLLIN, 0};
    return poll(polls, POLL_COUNT, wait_ms) > 0;
}

unsigned tow_keeper_await(tow_keeper_t *keeper)
{
    for (;;) {
        const unsigned orders = take_orders(keeper);
        struct pollfd polls[POLL_COUNT];
        if ((orders & (TOW_KEEPER_WORK | TOW_KEEPER_QUIT)) != 0) return orders;
        if (!sleep_until_news(keeper, POLLIN, -1, polls)) continue;
        /* Between jobs a child says nothing but words. */
        if (polls[POLL_SOCKET].revents != 0 || polls[POLL_END].revents != 0)
            return 0;
        if (polls[POLL_WORDS].revents != 0)
            tow_child_process_listen(&keeper->process);
    }
}

tow_keeper_news_t tow_keeper_follow(tow_keeper_t *keeper, int64_t deadline_ns,
                                    short socket_events)
{
    const int64_t left_ns = deadline_ns - tow_keeper_now_ns();
    const int64_t left_ms = left_ns / NS_PER_MS + 1;
    struct pollfd polls[POLL_COUNT];
    if (left_ns <= 0) return (tow_keeper_news_t){.is_late = true};
    if (!sleep_until_news(keeper, socket_events,
                          left_ms < INT32_MAX ? (int)left_ms : INT32_MAX,
                          polls))
        return (tow_keeper_news_t){0};
    if (polls[POLL_WORDS].revents != 0)
        tow_child_process_listen(&keeper->process);
    const unsigned orders =
        polls[POLL_WAKE].revents != 0 ? take_orders(keeper) : 0;
    return (tow_keeper_news_t){
        .is_cancelled = (orders & TOW_KEEPER_CANCEL) != 0,
        .is_told = (orders & TOW_KEEPER_TELL) != 0,
        .has_message = polls[POLL_SOCKET].revents != 0,
        .has_ended = polls[POLL_END].revents != 0,
    };
}
