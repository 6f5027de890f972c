/* The thread of one child. It sleeps in poll: for an order of the loop, for the
 * child's answer, its words and its end, and for the time limit. */
#include <inttypes.h>
#include <poll.h>
#include <string.h>

#include "base/assert.h"
#include "device/compiler/child_impl.h"
#include "device/compiler/talk_impl.h"
#include "device/compiler/tuning.h"

#define NS_PER_MS 1000000

/* -- The child -------------------------------------------------------------- */

static void drop_child(child_slot_t *slot)
{
    if (slot->keeper.process.pid == 0) return;
    tow_child_process_end(&slot->keeper.process);
    atomic_store(&slot->pid, 0);
}

static tow_status_t ensure_child(child_slot_t *slot)
{
    if (slot->keeper.process.pid != 0 &&
        (slot->compile_count >= slot->compiler->compile_count_max ||
         tow_child_process_has_ended(&slot->keeper.process)))
        drop_child(slot);
    if (slot->keeper.process.pid != 0) return TOW_OK;
    TOW_RETURN_IF_ERROR(tow_child_process_launch(&slot->keeper.process,
                                                 slot->compiler->words,
                                                 slot->compiler->launcher_fd));
    slot->is_ready = false;
    slot->compile_count = 0;
    atomic_store(&slot->pid, slot->keeper.process.pid);
    atomic_fetch_add(&slot->started_count, 1);
    return TOW_OK;
}

/* -- Verdicts --------------------------------------------------------------- */

/* Each ends the child. */

static tow_status_t crashed(child_slot_t *slot)
{
    child_process_t *process = &slot->keeper.process;
    drop_child(slot);
    atomic_fetch_add(&slot->crashed_count, 1);
    return TOW_ERROR(
        TOW_INTERNAL, "the compiler ended by %s %s %s; its last words: %s",
        tow_child_process_how_it_ended(process).text,
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
                     tow_child_process_last_words(&slot->keeper.process));
}

static tow_status_t senseless(child_slot_t *slot, const char *what)
{
    drop_child(slot);
    atomic_fetch_add(&slot->crashed_count, 1);
    return TOW_ERROR(TOW_INTERNAL,
                     "the compiler of %s sent %s, and was ended; its last "
                     "words: %s",
                     compile_job_name(slot->job), what,
                     tow_child_process_last_words(&slot->keeper.process));
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
    bool is_out; /* the request has left, or the answer */
    talk_in_t in;
    bool is_asking;  /* the client has the word */
    int64_t left_ns; /* of the time limit, meanwhile */
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

static void set_part(talk_out_t *out, size_t part, const void *bytes,
                     size_t size)
{
    out->parts[part] = bytes;
    out->header.sizes[part] = size;
}

/* To the loop. How long the client thinks is not the compiler's fault. */
static void take_question(conversation_t *talk)
{
    child_slot_t *slot = talk->slot;
    slot->question_size = (size_t)talk->in.header.sizes[ASKED_BYTES];
    slot->question = tow_talk_take(&talk->in, ASKED_BYTES);
    tow_talk_reset(&talk->in);
    talk->is_asking = true;
    talk->left_ns = talk->deadline_ns - tow_keeper_now_ns();
    talk->deadline_ns = INT64_MAX;
    tow_env_post(slot->compiler->compiler.env, &slot->asked);
}

static void pass_answer(conversation_t *talk)
{
    child_slot_t *slot = talk->slot;
    const tow_status_t status = slot->answer_status;
    talk->is_asking = false;
    talk->deadline_ns = tow_keeper_now_ns() + talk->left_ns;
    talk->is_out = false;
    talk->out = (talk_out_t){.header = {.magic = TALK_MAGIC,
                                        .type = TALK_ANSWER,
                                        .code = tow_status_code(status)}};
    if (status != TOW_OK) {
        const char *message = tow_status_message(status);
        set_part(&talk->out, ASKED_MESSAGE, message,
                 strnlen(message, TOW_COMPILER_MESSAGE_BYTES_MAX));
    }
    set_part(&talk->out, ASKED_BYTES, slot->answer, slot->answer_size);
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
    tow_child_process_listen(&talk->slot->keeper.process);
    talk->slot->keeper.process.last_size = 0;
}

static void take_message(conversation_t *talk)
{
    child_slot_t *slot = talk->slot;
    const talk_header_t *header = &talk->in.header;
    if (header->type == TALK_READY && !slot->is_ready && is_code(header->code))
        take_ready(talk);
    else if (header->type == TALK_REPLY && slot->is_ready && talk->is_out &&
             !talk->is_asking && is_code(header->code))
        take_reply(talk);
    else if (header->type == TALK_QUESTION && slot->job->asked != NULL &&
             talk->is_out && !talk->is_asking)
        take_question(talk);
    else
        conclude(talk, senseless(slot, "a message out of turn"));
}

static void receive(conversation_t *talk)
{
    child_slot_t *slot = talk->slot;
    while (!talk->is_over) {
        switch (tow_talk_receive(slot->keeper.process.socket_fd, &talk->in)) {
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
        talk->is_out = tow_talk_send(talk->slot->keeper.process.socket_fd,
                                     &talk->out) != TALK_WAIT;
}

/* One sleep and what came of it. */
static void follow(conversation_t *talk)
{
    child_slot_t *slot = talk->slot;
    const tow_keeper_news_t news =
        tow_keeper_follow(&slot->keeper, talk->deadline_ns,
                          (short)(POLLIN | (may_transmit(talk) ? POLLOUT : 0)));
    if (news.is_late) {
        conclude(talk, late(slot));
        return;
    }
    if (news.is_cancelled) {
        conclude(talk, stopped(slot));
        return;
    }
    if (news.is_told && talk->is_asking) pass_answer(talk);
    if (news.has_message || news.is_told) transmit(talk);
    /* One that has ended may have answered after we looked. */
    if (news.has_message || news.has_ended) receive(talk);
    if (!talk->is_over && news.has_ended) conclude(talk, crashed(slot));
}

static tow_status_t compile_in_child(child_slot_t *slot)
{
    const tow_compile_job_t *job = slot->job;
    conversation_t talk = {
        .slot = slot,
        .deadline_ns = tow_keeper_now_ns() + slot->compiler->timeout_ns,
        .out.header = {.magic = TALK_MAGIC,
                       .type = TALK_REQUEST,
                       .format = (uint32_t)job->format,
                       .asks = job->asked != NULL},
    };
    const char *kind = job->device_kind != NULL ? job->device_kind : "";
    set_part(&talk.out, REQUEST_KIND, kind, strlen(kind));
    set_part(&talk.out, REQUEST_OPTIONS, job->options.data, job->options.size);
    set_part(&talk.out, REQUEST_PROGRAM, job->program.data, job->program.size);
    TOW_RETURN_IF_ERROR(ensure_child(slot));
    slot->keeper.process.last_size = 0; /* Words of before are about others. */
    while (!talk.is_over)
        follow(&talk);
    tow_talk_reset(&talk.in);
    return talk.status;
}

/* -- What was compiled before ------------------------------------------------- */

/* The first of them is what the log gets. */
static void note_trouble(child_slot_t *slot, tow_status_t take_status)
{
    if (slot->trouble == TOW_OK)
        slot->trouble = take_status;
    else
        tow_status_release(take_status);
}

static bool find_kept(child_slot_t *slot, const tow_code_key_t *key)
{
    note_trouble(
        slot, tow_code_cache_get(slot->compiler->cache, key, &slot->compiled));
    if (slot->compiled == NULL) return false;
    atomic_fetch_add(&slot->found_count, 1);
    return true;
}

static tow_status_t compile(child_slot_t *slot)
{
    const tow_code_cache_t *cache = slot->compiler->cache;
    tow_code_key_t key;
    if (cache == NULL || slot->job->asked != NULL)
        return compile_in_child(slot);
    TOW_RETURN_IF_ERROR(tow_code_cache_key(cache, slot->job, &key));
    if (find_kept(slot, &key)) return TOW_OK;
    TOW_RETURN_IF_ERROR(compile_in_child(slot));
    note_trouble(slot, tow_code_cache_put(cache, &key, slot->compiled));
    return TOW_OK;
}

/* -- The thread ------------------------------------------------------------- */

/* A child that ends between jobs is replaced when it is needed. */
static unsigned await_orders(child_slot_t *slot)
{
    unsigned orders;
    while ((orders = tow_keeper_await(&slot->keeper)) == 0)
        drop_child(slot);
    return orders;
}

void *tow_slot_run(void *context)
{
    child_slot_t *slot = context;
    tow_env_t *env = slot->compiler->compiler.env;
    for (;;) {
        const unsigned orders = await_orders(slot);
        if ((orders & TOW_KEEPER_QUIT) != 0) break;
        slot->status =
            (orders & TOW_KEEPER_CANCEL) != 0 ? stopped(slot) : compile(slot);
        if (slot->is_extra) drop_child(slot);
        tow_env_post(env, &slot->finished);
    }
    drop_child(slot);
    tow_env_post(env, &slot->ended);
    return NULL;
}
