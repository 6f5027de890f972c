#include "worker/enrol.h"

#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/arena.h"
#include "base/assert.h"
#include "worker/tuning.h"

#define ARENA_BYTES_MAX (64u << 10)

struct tow_enrolment {
    tow_env_t *env;
    tow_enrol_options_t options; /* strings are owned */
    tow_session_t *session;      /* NULL: waiting for the next attempt */
    bool is_enrolled;
    bool is_closing;
    tow_timer_t retry;
    int64_t retry_delay_ns;
    tow_arena_t arena; /* of the answer */
    tow_post_t post;   /* calls `closed` if there is no session */
    tow_closed_t closed;
};

static void destroy(tow_enrolment_t *enrolment)
{
    tow_arena_deinit(&enrolment->arena);
    tow_free((char *)enrolment->options.controller);
    tow_free((char *)enrolment->options.host);
    tow_free((char *)enrolment->options.name);
    tow_free(enrolment);
}

/* -- Asking ---------------------------------------------------------------- */

static void wait_to_retry(tow_enrolment_t *enrolment)
{
    const int64_t delay_ns = enrolment->retry_delay_ns;
    const uint64_t half_ns = (uint64_t)delay_ns / 2;
    const uint64_t more_ns =
        tow_random_below(tow_env_random(enrolment->env), half_ns + 1);
    TOW_ASSERT(enrolment->session == NULL && !enrolment->is_enrolled);
    tow_env_timer_start(enrolment->env, &enrolment->retry,
                        tow_env_now_ns(enrolment->env) +
                            (int64_t)(half_ns + more_ns));
    enrolment->retry_delay_ns = 2 * delay_ns < TOW_ENROL_RETRY_MAX_NS
                                    ? 2 * delay_ns
                                    : TOW_ENROL_RETRY_MAX_NS;
}

/* The session has no callbacks any more. */
static void fail(tow_enrolment_t *enrolment, tow_status_t cause)
{
    enrolment->session = NULL;
    if (enrolment->is_enrolled) return; /* Joining will decide. */
    if (enrolment->options.hooks.failed != NULL)
        enrolment->options.hooks.failed(enrolment->options.hooks.context,
                                        cause);
    wait_to_retry(enrolment);
}

static void on_opened(void *context, tow_session_t *session)
{
    const tow_enrolment_t *enrolment = context;
    tow_msg_worker_enrol_t message = TOW_MSG_WORKER_ENROL_INIT;
    message.host = (char *)enrolment->options.host;
    if (enrolment->options.name != NULL)
        message.name = (char *)enrolment->options.name;
    message.has_process = enrolment->options.has_process;
    message.process = enrolment->options.process;
    const tow_send_result_t result =
        tow_session_send(session, TOW_MESSAGE_WORKER_ENROL, &message.base);
    TOW_ASSERT(result != TOW_SEND_FULL); /* It is the first message. */
}

static tow_status_t take_answer(tow_enrolment_t *enrolment,
                                const tow_message_t *message,
                                tow_enrolled_t *out_enrolled)
{
    const tow_body_t *body;
    if (message->type != TOW_MESSAGE_WORKER_ENROL || enrolment->is_enrolled)
        return TOW_ERROR(TOW_FAILED_PRECONDITION,
                         "the controller sent %s to a worker that enrols",
                         tow_message_type_name(message->type));
    tow_arena_reset(&enrolment->arena);
    TOW_RETURN_IF_ERROR(tow_message_decode(message->type, message->bytes,
                                           message->size, &enrolment->arena,
                                           &body));
    const tow_msg_worker_enrol_t *answer = (const tow_msg_worker_enrol_t *)body;
    TOW_RETURN_IF_ERROR(tow_failure_status(answer->failure));
    if (answer->name[0] == '\0' || !answer->has_process)
        return TOW_ERROR(TOW_FAILED_PRECONDITION,
                         "the controller assigned no name or no number");
    snprintf(out_enrolled->name, sizeof(out_enrolled->name), "%s",
             answer->name);
    out_enrolled->process = answer->process;
    return TOW_OK;
}

static void on_message(void *context, tow_session_t *session,
                       const tow_message_t *message)
{
    tow_enrolment_t *enrolment = context;
    tow_enrolled_t enrolled;
    tow_status_t status = take_answer(enrolment, message, &enrolled);
    if (status != TOW_OK) {
        tow_session_close(session, TOW_OK, (tow_closed_t){0});
        fail(enrolment, status);
        tow_status_release(status);
        return;
    }
    enrolment->is_enrolled = true;
    enrolment->options.hooks.enrolled(enrolment->options.hooks.context,
                                      &enrolled);
}

static void on_disconnected(void *context, tow_session_t *session,
                            tow_status_t cause)
{
    tow_session_close(session, TOW_OK, (tow_closed_t){0});
    fail(context, cause);
}

static const tow_session_handler_t session_handler = {
    .opened = on_opened,
    .message = on_message,
    .disconnected = on_disconnected,
};

static tow_status_t dial(tow_enrolment_t *enrolment)
{
    const tow_session_dial_options_t options = {
        .address = enrolment->options.controller,
        .limits = enrolment->options.limits,
        .handler = &session_handler,
        .context = enrolment,
    };
    return tow_session_dial(enrolment->env, &options, &enrolment->session);
}

/* The address was valid the first time, so memory is exhausted. */
static void on_retry(tow_timer_t *timer)
{
    tow_enrolment_t *enrolment =
        TOW_CONTAINER_OF(timer, tow_enrolment_t, retry);
    tow_status_t status = dial(enrolment);
    if (status == TOW_OK) return;
    fail(enrolment, status);
    tow_status_release(status);
}

/* -- Opening and closing --------------------------------------------------- */

static tow_status_t copy_options(tow_enrolment_t *enrolment,
                                 const tow_enrol_options_t *options)
{
    tow_enrol_options_t *copy = &enrolment->options;
    *copy = *options;
    copy->controller = tow_strdup(options->controller);
    copy->host = tow_strdup(options->host);
    copy->name = options->name != NULL ? tow_strdup(options->name) : NULL;
    if (copy->controller == NULL || copy->host == NULL ||
        (options->name != NULL && copy->name == NULL))
        return tow_status_bare(TOW_RESOURCE_EXHAUSTED);
    return TOW_OK;
}

static tow_status_t check_options(const tow_enrol_options_t *options)
{
    TOW_ASSERT(options->controller != NULL && options->host != NULL &&
               options->hooks.enrolled != NULL);
    if (options->name != NULL && strlen(options->name) > TOW_WORKER_NAME_MAX)
        return TOW_ERROR(TOW_INVALID_ARGUMENT,
                         "the worker's name has %zu bytes, limit %u",
                         strlen(options->name), TOW_WORKER_NAME_MAX);
    if (strlen(options->host) > TOW_NAME_MAX)
        return TOW_ERROR(TOW_INVALID_ARGUMENT,
                         "the host's name has %zu bytes, limit %u",
                         strlen(options->host), TOW_NAME_MAX);
    return TOW_OK;
}

tow_status_t tow_enrolment_open(tow_env_t *env,
                                const tow_enrol_options_t *options,
                                tow_enrolment_t **out_enrolment)
{
    *out_enrolment = NULL;
    TOW_RETURN_IF_ERROR(check_options(options));
    tow_enrolment_t *enrolment = tow_calloc(1, sizeof(*enrolment));
    if (enrolment == NULL) return tow_status_bare(TOW_RESOURCE_EXHAUSTED);
    enrolment->env = env;
    enrolment->retry.fire = on_retry;
    enrolment->retry_delay_ns = TOW_ENROL_RETRY_MIN_NS;
    tow_arena_init(&enrolment->arena, ARENA_BYTES_MAX);
    tow_status_t status = copy_options(enrolment, options);
    if (status == TOW_OK) status = dial(enrolment);
    if (status != TOW_OK) {
        destroy(enrolment);
        return tow_status_annotate(status, "enrolling at %s",
                                   options->controller);
    }
    *out_enrolment = enrolment;
    return TOW_OK;
}

static void on_closed(void *context)
{
    tow_enrolment_t *enrolment = context;
    const tow_closed_t closed = enrolment->closed;
    destroy(enrolment);
    if (closed.run != NULL) closed.run(closed.context);
}

static void on_posted(tow_post_t *post)
{
    on_closed(TOW_CONTAINER_OF(post, tow_enrolment_t, post));
}

void tow_enrolment_close(tow_enrolment_t *enrolment, tow_closed_t closed)
{
    TOW_ASSERT(!enrolment->is_closing);
    enrolment->is_closing = true;
    enrolment->closed = closed;
    tow_env_timer_stop(enrolment->env, &enrolment->retry);
    if (enrolment->session != NULL) {
        tow_session_close(enrolment->session, TOW_OK,
                          (tow_closed_t){on_closed, enrolment});
        return;
    }
    enrolment->post.run = on_posted;
    tow_env_post(enrolment->env, &enrolment->post);
}

void tow_enrolment_discard(tow_enrolment_t *enrolment)
{
    if (enrolment == NULL) return;
    tow_session_discard(enrolment->session);
    destroy(enrolment);
}
