/* One job of a child compiler, on the thread of its slot: looks into the cache,
 * sends the program to the child, passes partition queries to the loop, and
 * checks what comes back. */
#include <stdio.h>
#include <string.h>

#include "base/assert.h"
#include "device/compiler/child_impl.h"
#include "device/compiler/protocol_impl.h"

static const tow_compile_job_t *job_of(const compile_slot_t *slot)
{
    return slot->child.job;
}

/* A crash before the child is ready is not the program's fault. */
void tow_compile_slot_describe(const tow_child_slot_t *child, char *text,
                               size_t capacity, int64_t *out_timeout_ns)
{
    const compile_slot_t *slot = compile_slot_of(child);
    snprintf(text, capacity, "%s %s",
             slot->is_ready ? "compiling" : "starting the compiler of",
             compile_job_name(job_of(slot)));
    *out_timeout_ns = slot->compiler->timeout_ns;
}

/* -- In the child ----------------------------------------------------------- */

typedef struct conversation {
    compile_slot_t *slot;
    tow_child_exchange_t exchange;
    bool is_waiting_for_reply; /* of the program's client */
    int64_t left_ns;           /* of the time limit, meanwhile */
    bool is_over;
    tow_status_t status; /* owned: the job's, once it is over */
} conversation_t;

static void conclude(conversation_t *talk, tow_status_t take_status)
{
    talk->is_over = true;
    talk->status = take_status;
}

static void take_reply(conversation_t *talk)
{
    compile_slot_t *slot = talk->slot;
    tow_child_in_t *in = &talk->exchange.in;
    if (in->header.code != TOW_CODE_OK) {
        conclude(talk, tow_child_in_status(in));
        return;
    }
    const tow_bytes_t signature = {in->parts[REPLY_SIGNATURE],
                                   (size_t)in->header.sizes[REPLY_SIGNATURE]};
    tow_status_t status = tow_compiled_make(
        tow_child_in_take(in, REPLY_EXECUTABLE),
        (size_t)in->header.sizes[REPLY_EXECUTABLE], signature, &slot->compiled);
    if (status != TOW_OK) tow_child_slot_end(&slot->child);
    conclude(talk,
             tow_status_annotate(status, "the reply of the compiler of %s",
                                 compile_job_name(job_of(slot))));
}

/* To the loop. The client's time does not count against the compiler's. */
static void take_query(conversation_t *talk)
{
    compile_slot_t *slot = talk->slot;
    tow_child_in_t *in = &talk->exchange.in;
    slot->query_size = (size_t)in->header.sizes[QUERY_BYTES];
    slot->query = tow_child_in_take(in, QUERY_BYTES);
    talk->is_waiting_for_reply = true;
    talk->left_ns = talk->exchange.deadline_ns - tow_child_now_ns();
    talk->exchange.deadline_ns = INT64_MAX;
    tow_child_slot_report(&slot->child);
}

static void pass_reply(conversation_t *talk)
{
    const compile_slot_t *slot = talk->slot;
    tow_child_out_t *out = &talk->exchange.out;
    talk->is_waiting_for_reply = false;
    talk->exchange.deadline_ns = tow_child_now_ns() + talk->left_ns;
    *out = tow_child_out(&tow_compile_protocol, COMPILE_ANSWER);
    tow_child_out_set_status(out, slot->reply_status);
    tow_child_out_set(out, QUERY_BYTES, slot->reply, slot->reply_size);
    talk->exchange.has_out = true;
}

/* The request leaves once the plugin is loaded: a child that could not load it
 * ends. */
static void take_ready(conversation_t *talk)
{
    compile_slot_t *slot = talk->slot;
    if (talk->exchange.in.header.code != TOW_CODE_OK) {
        conclude(talk, tow_child_in_status(&talk->exchange.in));
        tow_child_slot_end(&slot->child);
        return;
    }
    slot->is_ready = true;
    talk->exchange.has_out = true;
    /* What it wrote until now is not about the program. */
    tow_child_process_read_output(&slot->child.process);
    slot->child.process.last_output_size = 0;
}

static void take_message(conversation_t *talk)
{
    compile_slot_t *slot = talk->slot;
    const tow_child_header_t *header = &talk->exchange.in.header;
    const bool is_compiling = slot->is_ready && !talk->exchange.has_out &&
                              !talk->is_waiting_for_reply;
    const bool has_code = header->code <= TOW_UNAUTHENTICATED;
    if (header->type == COMPILE_READY && !slot->is_ready && has_code)
        take_ready(talk);
    else if (header->type == COMPILE_REPLY && is_compiling && has_code)
        take_reply(talk);
    else if (header->type == COMPILE_QUERY && is_compiling &&
             job_of(slot)->on_query != NULL)
        take_query(talk);
    else
        conclude(talk, tow_child_slot_reject(&slot->child));
}

static void follow(conversation_t *talk)
{
    tow_child_slot_t *child = &talk->slot->child;
    const tow_child_event_t event = tow_child_slot_wait(child, &talk->exchange);
    if (event == TOW_CHILD_RECEIVED)
        take_message(talk);
    else if (event == TOW_CHILD_NOTIFIED && talk->is_waiting_for_reply)
        pass_reply(talk);
    else if (event >= TOW_CHILD_CANCELLED)
        conclude(talk, tow_child_slot_error(child, event));
}

static void make_request(const tow_compile_job_t *job, tow_child_out_t *out)
{
    const char *kind = job->device_kind != NULL ? job->device_kind : "";
    *out = tow_child_out(&tow_compile_protocol, COMPILE_REQUEST);
    out->header.value = (uint32_t)job->format;
    out->header.flags = job->on_query != NULL ? COMPILE_MAY_QUERY : 0;
    tow_child_out_set(out, REQUEST_KIND, kind, strlen(kind));
    tow_child_out_set(out, REQUEST_OPTIONS, job->options.data,
                      job->options.size);
    tow_child_out_set(out, REQUEST_PROGRAM, job->program.data,
                      job->program.size);
}

static tow_status_t compile_in_child(compile_slot_t *slot)
{
    conversation_t talk = {.slot = slot,
                           .exchange = tow_child_slot_exchange(
                               &slot->child, slot->compiler->timeout_ns)};
    make_request(job_of(slot), &talk.exchange.out);
    TOW_RETURN_IF_ERROR(tow_child_slot_ensure(&slot->child));
    slot->is_ready = slot->child.job_count > 1; /* It has served others. */
    talk.exchange.has_out = slot->is_ready;
    while (!talk.is_over)
        follow(&talk);
    tow_child_exchange_deinit(&talk.exchange);
    return talk.status;
}

/* -- The cache -------------------------------------------------------------- */

/* The log gets the first error; the program is compiled all the same. */
static void note_cache_error(compile_slot_t *slot, tow_status_t take_status)
{
    if (slot->cache_error == TOW_OK)
        slot->cache_error = take_status;
    else
        tow_status_release(take_status);
}

static bool find_cached(compile_slot_t *slot, const tow_code_key_t *key)
{
    note_cache_error(
        slot, tow_code_cache_get(slot->compiler->cache, key, &slot->compiled));
    if (slot->compiled == NULL) return false;
    atomic_fetch_add(&slot->cache_hit_count, 1);
    return true;
}

tow_status_t tow_compile_slot_run(tow_child_slot_t *child)
{
    compile_slot_t *slot = compile_slot_of(child);
    const tow_code_cache_t *cache = slot->compiler->cache;
    tow_code_key_t key;
    /* What a client replied is part of the result, and of no key. */
    if (cache == NULL || job_of(slot)->on_query != NULL)
        return compile_in_child(slot);
    TOW_RETURN_IF_ERROR(tow_code_cache_key(cache, job_of(slot), &key));
    if (find_cached(slot, &key)) return TOW_OK;
    TOW_RETURN_IF_ERROR(compile_in_child(slot));
    note_cache_error(slot, tow_code_cache_put(cache, &key, slot->compiled));
    return TOW_OK;
}
