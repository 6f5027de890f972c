#include "device/child/exchange.h"

#include <inttypes.h>
#include <poll.h>
#include <time.h>

#include "base/assert.h"

#define NS_PER_S  INT64_C(1000000000)
#define NS_PER_MS INT64_C(1000000)

int64_t tow_child_now_ns(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (int64_t)time.tv_sec * NS_PER_S + time.tv_nsec;
}

enum {
    POLL_WAKE,
    POLL_SOCKET,
    POLL_OUTPUT,
    POLL_END,
    POLL_COUNT
};

/* False: nothing happened before the timeout, or a signal arrived. */
static bool sleep_for(const tow_child_exchange_t *exchange, int64_t left_ns,
                      struct pollfd polls[POLL_COUNT])
{
    const tow_child_process_t *process = exchange->process;
    const int64_t left_ms = left_ns / NS_PER_MS + 1;
    const short events = (short)(POLLIN | (exchange->has_out ? POLLOUT : 0));
    polls[POLL_WAKE] = (struct pollfd){exchange->wake_fd, POLLIN, 0};
    polls[POLL_SOCKET] = (struct pollfd){process->socket_fd, events, 0};
    polls[POLL_OUTPUT] = (struct pollfd){process->error_fd, POLLIN, 0};
    polls[POLL_END] = (struct pollfd){process->pid_fd, POLLIN, 0};
    return poll(polls, POLL_COUNT,
                left_ms < INT32_MAX ? (int)left_ms : INT32_MAX) > 0;
}

/* A send that fails is no event: reading from the socket says more. */
static void transmit(tow_child_exchange_t *exchange)
{
    if (exchange->has_out)
        exchange->has_out = tow_child_send(exchange->process->socket_fd,
                                           &exchange->out) == TOW_CHILD_BLOCKED;
}

/* False: nothing yet. */
static bool receive(tow_child_exchange_t *exchange,
                    tow_child_event_t *out_event)
{
    switch (tow_child_receive(exchange->process->socket_fd, exchange->protocol,
                              &exchange->in)) {
    case TOW_CHILD_BLOCKED: return false;
    case TOW_CHILD_DONE:
        exchange->has_in = true;
        *out_event = TOW_CHILD_RECEIVED;
        break;
    case TOW_CHILD_CLOSED: *out_event = TOW_CHILD_ENDED; break;
    case TOW_CHILD_MALFORMED: *out_event = TOW_CHILD_INVALID; break;
    case TOW_CHILD_NO_MEMORY: *out_event = TOW_CHILD_EXHAUSTED; break;
    }
    return true;
}

tow_child_event_t tow_child_exchange_wait(tow_child_exchange_t *exchange)
{
    tow_child_event_t event = TOW_CHILD_ENDED;
    struct pollfd polls[POLL_COUNT];
    if (exchange->has_in) tow_child_in_reset(&exchange->in);
    exchange->has_in = false;
    for (;;) {
        const int64_t left_ns = exchange->deadline_ns - tow_child_now_ns();
        if (left_ns <= 0) return TOW_CHILD_TIMED_OUT;
        if (!sleep_for(exchange, left_ns, polls)) continue;
        if (polls[POLL_OUTPUT].revents != 0)
            tow_child_process_read_output(exchange->process);
        if (polls[POLL_WAKE].revents != 0) return TOW_CHILD_WOKEN;
        const bool has_ended = polls[POLL_END].revents != 0;
        if (polls[POLL_SOCKET].revents == 0 && !has_ended) continue;
        transmit(exchange);
        /* A child may have replied just before it ended. */
        if (receive(exchange, &event)) return event;
        if (has_ended) return TOW_CHILD_ENDED;
    }
}

void tow_child_exchange_deinit(tow_child_exchange_t *exchange)
{
    tow_child_in_reset(&exchange->in);
    exchange->has_in = false;
}

tow_status_t tow_child_event_status(tow_child_event_t event,
                                    tow_child_process_t *process,
                                    const tow_child_subject_t *subject)
{
    TOW_ASSERT(event == TOW_CHILD_CANCELLED || process->pid == 0);
    switch (event) {
    case TOW_CHILD_CANCELLED:
        return TOW_ERROR(TOW_CANCELLED, "%s was cancelled", subject->text);
    case TOW_CHILD_TIMED_OUT:
        return TOW_ERROR(TOW_DEADLINE_EXCEEDED,
                         "%s took longer than its limit, %" PRId64
                         " ms, and was ended; its last output: %s",
                         subject->text, subject->timeout_ns / NS_PER_MS,
                         tow_child_process_last_output(process));
    case TOW_CHILD_ENDED:
        return TOW_ERROR(subject->crash_code,
                         "%s: its process ended by %s; its last output: %s",
                         subject->text,
                         tow_child_process_end_text(process).text,
                         tow_child_process_last_output(process));
    case TOW_CHILD_INVALID:
        return TOW_ERROR(subject->crash_code,
                         "%s: its process sent an invalid message and was "
                         "ended; its last output: %s",
                         subject->text, tow_child_process_last_output(process));
    case TOW_CHILD_EXHAUSTED: return tow_status_bare(TOW_RESOURCE_EXHAUSTED);
    default: TOW_UNREACHABLE();
    }
}
