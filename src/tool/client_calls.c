#include "tool/client_calls.h"

#include <semaphore.h>
#include <stdio.h>

#include "base/alloc.h"
#include "base/macros.h"

/* On the stack of the thread that waits. */
typedef struct waiting {
    tow_client_calls_t *owner;
    tow_post_t post;
    tow_client_call_t call;
    sem_t is_answered;
    tow_status_t status; /* owned */
} waiting_t;

static void answered(tow_client_call_t *call, tow_status_t take_status)
{
    waiting_t *waiting = TOW_CONTAINER_OF(call, waiting_t, call);
    waiting->status = take_status;
    sem_post(&waiting->is_answered);
}

static void ask(tow_post_t *post)
{
    waiting_t *waiting = TOW_CONTAINER_OF(post, waiting_t, post);
    tow_worker_t *worker = waiting->owner->worker;
    if (worker != NULL)
        tow_worker_call_client(worker, &waiting->call);
    else
        answered(&waiting->call,
                 TOW_ERROR(TOW_UNAVAILABLE, "the worker is leaving"));
}

/* Takes the status. */
static int tell(tow_status_t take_status, char *error, size_t error_capacity)
{
    const tow_code_t code = tow_status_code(take_status);
    if (code != TOW_CODE_OK)
        snprintf(error, error_capacity, "%s", tow_status_message(take_status));
    tow_status_release(take_status);
    return (int)code;
}

/* tow_xla_calls_t.run. */
static int run(void *context, const tow_xla_call_t *call, char *error,
               size_t error_capacity)
{
    waiting_t waiting = {
        .owner = context,
        .post = {.run = ask},
        .call = {.gang_id = call->run_id,
                 .function = call->function,
                 .device = call->device,
                 .argument_count = call->argument_count,
                 .result_count = call->result_count,
                 .done = answered},
    };
    tow_bytes_t *arguments =
        tow_calloc(call->argument_count + 1, sizeof(*arguments));
    tow_room_t *results = tow_calloc(call->result_count + 1, sizeof(*results));
    if (arguments != NULL && results != NULL) {
        for (size_t i = 0; i < call->argument_count; i++)
            arguments[i] =
                (tow_bytes_t){call->arguments[i].data, call->arguments[i].size};
        for (size_t i = 0; i < call->result_count; i++)
            results[i] =
                (tow_room_t){call->results[i].data, call->results[i].size};
        waiting.call.arguments = arguments;
        waiting.call.results = results;
        sem_init(&waiting.is_answered, 0, 0);
        tow_env_post(waiting.owner->env, &waiting.post);
        while (sem_wait(&waiting.is_answered) != 0) {
        }
        sem_destroy(&waiting.is_answered);
    } else {
        waiting.status = tow_status_bare(TOW_RESOURCE_EXHAUSTED);
    }
    tow_free(arguments);
    tow_free(results);
    return tell(waiting.status, error, error_capacity);
}

void tow_client_calls_init(tow_client_calls_t *calls, tow_env_t *env)
{
    *calls = (tow_client_calls_t){.env = env};
    calls->table = (tow_xla_calls_t){
        .struct_size = sizeof(calls->table), .context = calls, .run = run};
}
