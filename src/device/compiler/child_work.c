/* tow_compile_child PARENT MEMORY PLUGIN [NAME TYPE VALUE]...: compiles what
 * comes over descriptor TALK_FD until that is closed, or PARENT, who started it,
 * is gone. MEMORY bounds the bytes of its private memory; 0 is no bound. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/assert.h"
#include "device/compiler/child.h"
#include "device/compiler/direct.h"
#include "device/compiler/process.h"
#include "device/compiler/talk_impl.h"
#include "device/compiler/tuning.h"
#include "device/pjrt/pjrt.h"
#include "device/pjrt/words.h"
#include "device/question.h"
#include "env/net/net.h"

#define WORD_COUNT_MIN 4

typedef struct child {
    tow_security_t security; /* nobody connects: it stays empty */
    tow_net_t *net;
    tow_pjrt_open_t open;
    tow_driver_t *driver;
    tow_compiler_t *compiler;
    tow_compile_job_t job;
    /* What is being waited for. */
    bool is_done;
    tow_status_t status;      /* owned */
    tow_compiled_t *compiled; /* owned */
    /* Questions of the compiler's. While it compiles, the socket is the thread's
     * that does. */
    tow_xla_asker_t asker;
    bool may_ask; /* this program's client answers */
    talk_in_t answer;
    tow_arena_t answer_arena;
} child_t;

/* -- Waiting ---------------------------------------------------------------- */

static tow_status_t await(child_t *child)
{
    while (!child->is_done)
        tow_net_turn(child->net, TOW_TIME_NEVER);
    child->is_done = false;
    return child->status;
}

static void opened(tow_pjrt_open_t *open, tow_status_t take_status,
                   tow_driver_t *take_driver)
{
    child_t *child = TOW_CONTAINER_OF(open, child_t, open);
    child->is_done = true;
    child->status = take_status;
    child->driver = take_driver;
}

static void compiled(tow_compile_job_t *job, tow_status_t take_status,
                     tow_compiled_t *take_compiled)
{
    child_t *child = TOW_CONTAINER_OF(job, child_t, job);
    child->is_done = true;
    child->status = take_status;
    child->compiled = take_compiled;
}

/* -- Questions -------------------------------------------------------------- */

static void set_part(talk_out_t *out, size_t part, const void *bytes,
                     size_t size)
{
    out->parts[part] = bytes;
    out->header.sizes[part] = size;
}

/* Both block. */
static tow_status_t send_question(const void *bytes, size_t size)
{
    talk_out_t out = {.header = {.magic = TALK_MAGIC, .type = TALK_QUESTION}};
    set_part(&out, ASKED_BYTES, bytes, size);
    if (tow_talk_send(TALK_FD, &out) == TALK_DONE) return TOW_OK;
    return TOW_ERROR(TOW_UNAVAILABLE, "nobody is there to be asked any more");
}

static tow_status_t receive_answer(child_t *child, tow_xla_answer_t *out_answer)
{
    talk_in_t *in = &child->answer;
    tow_talk_reset(in);
    tow_arena_reset(&child->answer_arena);
    if (tow_talk_receive(TALK_FD, in) != TALK_DONE ||
        in->header.type != TALK_ANSWER)
        return TOW_ERROR(TOW_UNAVAILABLE, "the compiler's question was not "
                                          "answered");
    if (in->header.code != TOW_CODE_OK)
        return TOW_ERROR((tow_code_t)in->header.code, "%s",
                         (const char *)in->parts[ASKED_MESSAGE]);
    return tow_answer_unpack(
        (tow_bytes_t){in->parts[ASKED_BYTES],
                      (size_t)in->header.sizes[ASKED_BYTES]},
        &child->answer_arena, out_answer);
}

static tow_status_t put_question(child_t *child,
                                 const tow_xla_question_t *question,
                                 tow_xla_answer_t *out_answer)
{
    void *bytes;
    size_t size;
    if (!child->may_ask)
        return TOW_ERROR(TOW_FAILED_PRECONDITION,
                         "the program has a custom call '%s', of which its "
                         "client was to say that it would be asked",
                         question->target);
    TOW_RETURN_IF_ERROR(tow_question_pack(question, &bytes, &size));
    tow_status_t status = send_question(bytes, size);
    tow_free(bytes);
    if (status != TOW_OK) return status;
    return receive_answer(child, out_answer);
}

static int ask(void *context, const tow_xla_question_t *question,
               tow_xla_answer_t *out_answer, char *error, size_t error_capacity)
{
    tow_status_t status = put_question(context, question, out_answer);
    const tow_code_t code = tow_status_code(status);
    if (status != TOW_OK)
        snprintf(error, error_capacity, "%s", tow_status_message(status));
    tow_status_release(status);
    return (int)code;
}

/* -- Work ------------------------------------------------------------------- */

static tow_status_t open_compiler(child_t *child)
{
    const tow_net_options_t net = {
        .name = "compiler", .security = &child->security, .spin_ns = -1};
    const tow_direct_compiler_options_t direct = {0};
    TOW_RETURN_IF_ERROR(tow_net_create(&net, &child->net));
    child->open.done = opened;
    TOW_RETURN_IF_ERROR(tow_pjrt_open(tow_net_env(child->net), &child->open));
    TOW_RETURN_IF_ERROR(await(child));
    tow_arena_init(&child->answer_arena, 0);
    child->asker = (tow_xla_asker_t){
        .struct_size = sizeof(child->asker), .context = child, .ask = ask};
    tow_pjrt_set_asker(child->driver, &child->asker);
    return tow_direct_compiler_create(child->driver, &direct, &child->compiler);
}

static tow_status_t compile(child_t *child, const talk_in_t *request)
{
    const char *kind = request->parts[REQUEST_KIND];
    child->may_ask = request->header.asks != 0;
    child->job = (tow_compile_job_t){
        .format = (tow_program_format_t)request->header.format,
        .program = {request->parts[REQUEST_PROGRAM],
                    (size_t)request->header.sizes[REQUEST_PROGRAM]},
        .options = {request->parts[REQUEST_OPTIONS],
                    (size_t)request->header.sizes[REQUEST_OPTIONS]},
        .device_kind = kind[0] != '\0' ? kind : NULL,
        .done = compiled,
    };
    const tow_submit_result_t result =
        tow_compiler_submit(child->compiler, &child->job);
    TOW_ASSERT(result == TOW_SUBMIT_OK); /* It is the only one. */
    return await(child);
}

/* -- Answers ---------------------------------------------------------------- */

/* Takes the status. */
static talk_out_t answer(talk_type_t type, tow_status_t status)
{
    talk_out_t out = {.header = {.magic = TALK_MAGIC,
                                 .type = type,
                                 .code = (uint32_t)tow_status_code(status)}};
    if (status != TOW_OK) {
        const char *message = tow_status_message(status);
        set_part(&out, REPLY_MESSAGE, message,
                 strnlen(message, TOW_COMPILER_MESSAGE_BYTES_MAX));
    }
    return out;
}

static bool send_ready(tow_status_t take_status)
{
    talk_out_t out = answer(TALK_READY, take_status);
    const bool is_sent = tow_talk_send(TALK_FD, &out) == TALK_DONE;
    tow_status_release(take_status);
    return is_sent && out.header.code == TOW_CODE_OK;
}

static bool send_compiled(tow_status_t take_status,
                          const tow_compiled_t *result)
{
    void *signature = NULL;
    size_t size = 0;
    if (take_status == TOW_OK)
        take_status = tow_signature_pack(&result->signature, &signature, &size);
    if (take_status == TOW_OK &&
        result->size > TOW_COMPILER_EXECUTABLE_BYTES_MAX)
        take_status = TOW_ERROR(
            TOW_OUT_OF_RANGE, "the executable has %zu bytes: at most %llu",
            result->size,
            (unsigned long long)TOW_COMPILER_EXECUTABLE_BYTES_MAX);
    talk_out_t out = answer(TALK_REPLY, take_status);
    if (take_status == TOW_OK) {
        set_part(&out, REPLY_SIGNATURE, signature, size);
        set_part(&out, REPLY_EXECUTABLE, result->bytes, result->size);
    }
    const bool is_sent = tow_talk_send(TALK_FD, &out) == TALK_DONE;
    tow_free(signature);
    tow_status_release(take_status);
    return is_sent;
}

static bool serve_one(child_t *child)
{
    talk_in_t request = {0};
    if (tow_talk_receive(TALK_FD, &request) != TALK_DONE ||
        request.header.type != TALK_REQUEST)
        return false;
    const tow_status_t status = compile(child, &request);
    const bool is_sent = send_compiled(status, child->compiled);
    tow_compiled_destroy(child->compiled);
    child->compiled = NULL;
    tow_talk_reset(&child->answer);
    tow_talk_reset(&request);
    return is_sent;
}

int tow_compile_child_main(int argc, char **argv)
{
    static child_t child;
    tow_arena_t arena;
    if (argc < WORD_COUNT_MIN) {
        fprintf(stderr, "usage: tow_compile_child PARENT MEMORY PLUGIN "
                        "[NAME TYPE VALUE]...\n");
        return 2;
    }
    tow_child_process_behave(argv[1], argv[2]); /* before the plugin runs */
    tow_arena_init(&arena, 0);
    child.open.path = argv[3];
    child.open.values = tow_pjrt_words_read(&arena, argv + WORD_COUNT_MIN,
                                            (size_t)(argc - WORD_COUNT_MIN),
                                            &child.open.value_count);
    if (child.open.values == NULL) return 1;
    if (send_ready(open_compiler(&child)))
        while (serve_one(&child))
            ;
    /* At once: what plugins do on the way out is not of interest. */
    _exit(0);
}
