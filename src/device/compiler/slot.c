/* The thread of one child. It sleeps in poll: for an order of the loop, for the
 * child's answer, its words and its end, and for the time limit. */
#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/assert.h"
#include "device/compiler/child_impl.h"
#include "device/compiler/talk_impl.h"

#define NS_PER_S  1000000000
#define NS_PER_MS 1000000

static int64_t now_ns(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (int64_t)time.tv_sec * NS_PER_S + time.tv_nsec;
}

/* -- Orders ----------------------------------------------------------------- */

static void wake(child_slot_t *slot)
{
    const uint64_t one = 1;
    ssize_t written;
    do {
        written = write(slot->wake_fd, &one, sizeof(one));
    } while (written < 0 && errno == EINTR);
    TOW_ASSERT(written == sizeof(one));
}

void tow_slot_compile(child_slot_t *slot)
{
    /* Not added to the others: a cancellation that came too late for the last
     * job must not meet this one. */
    atomic_store(&slot->orders, ORDER_COMPILE);
    wake(slot);
}

void tow_slot_cancel(child_slot_t *slot)
{
    atomic_fetch_or(&slot->orders, ORDER_CANCEL);
    wake(slot);
}

void tow_slot_quit(child_slot_t *slot)
{
    atomic_store(&slot->orders, ORDER_QUIT);
    wake(slot);
}

static unsigned take_orders(child_slot_t *slot)
{
    uint64_t count;
    ssize_t got = read(slot->wake_fd, &count, sizeof(count));
    TOW_ASSERT(got == sizeof(count) || errno == EAGAIN || errno == EINTR);
    return atomic_exchange(&slot->orders, 0);
}

/* -- The child -------------------------------------------------------------- */

static void drop_child(child_slot_t *slot)
{
    if (slot->process.pid == 0) return;
    tow_child_process_end(&slot->process);
    atomic_store(&slot->pid, 0);
}

/* It cannot be awaited: poll says it, and then it is gone for good. */
static bool has_child_ended(const child_slot_t *slot)
{
    struct pollfd poll_fd = {.fd = slot->process.pid_fd, .events = POLLIN};
    return poll(&poll_fd, 1, 0) > 0;
}

static tow_status_t ensure_child(child_slot_t *slot)
{
    if (slot->process.pid != 0 &&
        (slot->compile_count >= slot->compiler->compile_count_max ||
         has_child_ended(slot)))
        drop_child(slot);
    if (slot->process.pid != 0) return TOW_OK;
    TOW_RETURN_IF_ERROR(
        tow_child_process_start(&slot->process, slot->compiler->words));
    slot->is_ready = false;
    slot->compile_count = 0;
    atomic_store(&slot->pid, slot->process.pid);
    atomic_fetch_add(&slot->started_count, 1);
    return TOW_OK;
}

/* -- Verdicts --------------------------------------------------------------- */

/* Each ends the child. */

static tow_status_t crashed(child_slot_t *slot)
{
    child_process_t *process = &slot->process;
    drop_child(slot);
    atomic_fetch_add(&slot->crashed_count, 1);
    const bool is_signal = WIFSIGNALED(process->wait_status);
    const int number = is_signal ? WTERMSIG(process->wait_status)
                                 : WEXITSTATUS(process->wait_status);
    return TOW_ERROR(
        TOW_INTERNAL,
        "the compiler ended by %s %d (%s)%s %s %s; its last "
        "words: %s",
        is_signal ? "signal" : "exit status", number,
        is_signal ? sigdescr_np(number) : "without an answer",
        is_signal && number == SIGKILL ? ", from outside or for want of memory,"
                                       : "",
        slot->is_ready ? "while it compiled" : "before it came to",
        compile_job_name(slot->job), tow_child_process_last_words(process));
}

static tow_status_t late(child_slot_t *slot)
{
    drop_child(slot);
    atomic_fetch_add(&slot->late_count, 1);
    return TOW_ERROR(TOW_DEADLINE_EXCEEDED,
                     "compiling %s took longer than %" PRId64
                     " ms, and was ended; its last words: %s",
                     compile_job_name(slot->job),
                     slot->compiler->timeout_ns / NS_PER_MS,
                     tow_child_process_last_words(&slot->process));
}

static tow_status_t senseless(child_slot_t *slot, const char *what)
{
    drop_child(slot);
    atomic_fetch_add(&slot->crashed_count, 1);
    return TOW_ERROR(TOW_INTERNAL,
                     "the compiler of %s sent %s, and was ended; its last "
                     "words: %s",
                     compile_job_name(slot->job), what,
                     tow_child_process_last_words(&slot->process));
}

static tow_status_t stopped(child_slot_t *slot)
{
    drop_child(slot);
    return TOW_ERROR(TOW_CANCELLED, "compiling %s was cancelled",
                     compile_job_name(slot->job));
}

/* -- One job ---------------------------------------------------------------- */

typedef struct conversation {
    child_slot_t *slot;
    int64_t deadline_ns;
    talk_out_t out;
    bool is_out; /* the request has left */
    talk_in_t in;
    bool is_over;
    tow_status_t status; /* owned: the verdict, once it is over */
} conversation_t;

static void conclude(conversation_t *talk, tow_status_t take_status)
{
    talk->is_over = true;
    talk->status = take_status;
}

static tow_status_t status_of(const talk_in_t *in)
{
    const char *message = in->parts[REPLY_MESSAGE];
    return TOW_ERROR((tow_code_t)in->header.code, "%s",
                     message[0] != '\0' ? message
                                        : "the compiler says no more");
}

static bool is_code(uint32_t code)
{
    return code <= TOW_UNAUTHENTICATED;
}

static void take_reply(conversation_t *talk)
{
    child_slot_t *slot = talk->slot;
    talk_in_t *in = &talk->in;
    slot->compile_count++;
    if (in->header.code != TOW_CODE_OK) {
        conclude(talk, status_of(in));
        return;
    }
    const tow_bytes_t signature = {in->parts[REPLY_SIGNATURE],
                                   (size_t)in->header.sizes[REPLY_SIGNATURE]};
    tow_status_t status = tow_compiled_make(
        tow_talk_take(in, REPLY_EXECUTABLE),
        (size_t)in->header.sizes[REPLY_EXECUTABLE], signature, &slot->compiled);
    if (status != TOW_OK) drop_child(slot);
    conclude(talk, tow_status_annotate(status, "what the compiler of %s sent",
                                       compile_job_name(slot->job)));
}

/* The plugin is there, or it is not and the child goes. */
static void take_ready(conversation_t *talk)
{
    if (talk->in.header.code != TOW_CODE_OK) {
        conclude(talk, status_of(&talk->in));
        drop_child(talk->slot);
        return;
    }
    talk->slot->is_ready = true;
    tow_talk_reset(&talk->in);
    tow_child_process_listen(&talk->slot->process);
    talk->slot->process.last_size = 0;
}

static void take_message(conversation_t *talk)
{
    child_slot_t *slot = talk->slot;
    const talk_header_t *header = &talk->in.header;
    if (header->type == TALK_READY && !slot->is_ready && is_code(header->code))
        take_ready(talk);
    else if (header->type == TALK_REPLY && slot->is_ready && talk->is_out &&
             is_code(header->code))
        take_reply(talk);
    else
        conclude(talk, senseless(slot, "a message out of turn"));
}

static void receive(conversation_t *talk)
{
    child_slot_t *slot = talk->slot;
    while (!talk->is_over) {
        switch (tow_talk_receive(slot->process.socket_fd, &talk->in)) {
        case TALK_WAIT: return;
        case TALK_DONE: take_message(talk); break;
        case TALK_OVER: conclude(talk, crashed(slot)); break;
        case TALK_GARBAGE:
            conclude(talk, senseless(slot, "bytes that make no sense"));
            break;
        case TALK_MEMORY:
            drop_child(slot);
            conclude(talk, tow_status_bare(TOW_RESOURCE_EXHAUSTED));
            break;
        }
    }
}

/* Only to a child that is ready: what it says until then is about itself. */
static bool may_transmit(const conversation_t *talk)
{
    return talk->slot->is_ready && !talk->is_out;
}

static void transmit(conversation_t *talk)
{
    /* That it is gone shows, with more words, when we read. */
    if (may_transmit(talk))
        talk->is_out = tow_talk_send(talk->slot->process.socket_fd,
                                     &talk->out) != TALK_WAIT;
}

/* One sleep and what came of it. */
static void follow(conversation_t *talk)
{
    child_slot_t *slot = talk->slot;
    child_process_t *process = &slot->process;
    const int64_t left_ns = talk->deadline_ns - now_ns();
    if (left_ns <= 0) {
        conclude(talk, late(slot));
        return;
    }
    struct pollfd polls[] = {
        {.fd = slot->wake_fd, .events = POLLIN},
        {.fd = process->socket_fd,
         .events = (short)(POLLIN | (may_transmit(talk) ? POLLOUT : 0))},
        {.fd = process->error_fd, .events = POLLIN},
        {.fd = process->pid_fd, .events = POLLIN},
    };
    const int64_t left_ms = left_ns / NS_PER_MS + 1;
    const int wait_ms = left_ms < NS_PER_S ? (int)left_ms : NS_PER_S;
    if (poll(polls, TOW_COUNT_OF(polls), wait_ms) <= 0) return;
    if (polls[0].revents != 0) {
        if ((take_orders(slot) & ORDER_CANCEL) != 0) {
            conclude(talk, stopped(slot));
            return;
        }
    }
    if (polls[2].revents != 0) tow_child_process_listen(process);
    transmit(talk);
    receive(talk);
    /* Its end, though somebody else may still hold its end of the socket. */
    if (!talk->is_over && polls[3].revents != 0) conclude(talk, crashed(slot));
}

static void set_part(talk_out_t *out, size_t part, const void *bytes,
                     size_t size)
{
    out->parts[part] = bytes;
    out->header.sizes[part] = size;
}

static tow_status_t compile(child_slot_t *slot)
{
    const tow_compile_job_t *job = slot->job;
    conversation_t talk = {
        .slot = slot,
        .deadline_ns = now_ns() + slot->compiler->timeout_ns,
        .out.header = {.magic = TALK_MAGIC,
                       .type = TALK_REQUEST,
                       .format = (uint32_t)job->format},
    };
    const char *kind = job->device_kind != NULL ? job->device_kind : "";
    set_part(&talk.out, REQUEST_KIND, kind, strlen(kind));
    set_part(&talk.out, REQUEST_OPTIONS, job->options.data, job->options.size);
    set_part(&talk.out, REQUEST_PROGRAM, job->program.data, job->program.size);
    TOW_RETURN_IF_ERROR(ensure_child(slot));
    slot->process.last_size = 0; /* Words of before are about others. */
    while (!talk.is_over)
        follow(&talk);
    tow_talk_reset(&talk.in);
    return talk.status;
}

/* -- The thread ------------------------------------------------------------- */

/* Between jobs a child says nothing but words, and one that ends is replaced
 * when it is needed. */
static void watch_idle(child_slot_t *slot, const struct pollfd *polls)
{
    if (polls[1].revents != 0 || polls[3].revents != 0)
        drop_child(slot);
    else if (polls[2].revents != 0)
        tow_child_process_listen(&slot->process);
}

/* To compile or to quit, perhaps to cancel too. */
static unsigned await_orders(child_slot_t *slot)
{
    for (;;) {
        const unsigned orders = take_orders(slot);
        if ((orders & (ORDER_COMPILE | ORDER_QUIT)) != 0) return orders;
        struct pollfd polls[] = {
            {.fd = slot->wake_fd, .events = POLLIN},
            {.fd = slot->process.socket_fd, .events = POLLIN},
            {.fd = slot->process.error_fd, .events = POLLIN},
            {.fd = slot->process.pid_fd, .events = POLLIN},
        };
        if (poll(polls, TOW_COUNT_OF(polls), -1) > 0) watch_idle(slot, polls);
    }
}

void *tow_slot_run(void *context)
{
    child_slot_t *slot = context;
    tow_env_t *env = slot->compiler->compiler.env;
    for (;;) {
        const unsigned orders = await_orders(slot);
        if ((orders & ORDER_QUIT) != 0) break;
        slot->status =
            (orders & ORDER_CANCEL) != 0 ? stopped(slot) : compile(slot);
        tow_env_post(env, &slot->finished);
    }
    drop_child(slot);
    tow_env_post(env, &slot->ended);
    return NULL;
}
