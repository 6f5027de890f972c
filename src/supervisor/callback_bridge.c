#include "supervisor/callback_bridge.h"

#include <semaphore.h>
#include <stdio.h>

#include "base/alloc.h"
#include "base/macros.h"

/* A call in progress, on the stack of the blocked thread. */
typedef struct pending_call {
    tow_callback_bridge_t *bridge;
    tow_post_t post;
    tow_worker_callback_t call;
    sem_t is_done;
    tow_status_t status; /* owned */
} pending_call_t;

static void complete(tow_worker_callback_t *call, tow_status_t take_status)
{
    pending_call_t *pending = TOW_CONTAINER_OF(call, pending_call_t, call);
    pending->status = take_status;
    sem_post(&pending->is_done);
}

static void submit(tow_post_t *post)
{
    pending_call_t *pending = TOW_CONTAINER_OF(post, pending_call_t, post);
    tow_worker_t *worker = pending->bridge->worker;
    if (worker != NULL)
        tow_worker_call_client(worker, &pending->call);
    else
        complete(&pending->call,
                 TOW_ERROR(TOW_UNAVAILABLE, "the worker is shutting down"));
}

/* Returns the code and copies the message. */
static int report(tow_status_t take_status, char *error, size_t error_capacity)
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
    pending_call_t pending = {
        .bridge = context,
        .post = {.run = submit},
        .call = {.gang_id = call->run_id,
                 .function = call->function,
                 .device = call->device,
                 .argument_count = call->argument_count,
                 .result_count = call->result_count,
                 .done = complete},
    };
    tow_bytes_t *arguments =
        tow_calloc(call->argument_count + 1, sizeof(*arguments));
    tow_mutable_bytes_t *results =
        tow_calloc(call->result_count + 1, sizeof(*results));
    if (arguments != NULL && results != NULL) {
        for (size_t i = 0; i < call->argument_count; i++)
            arguments[i] =
                (tow_bytes_t){call->arguments[i].data, call->arguments[i].size};
        for (size_t i = 0; i < call->result_count; i++)
            results[i] = (tow_mutable_bytes_t){call->results[i].data,
                                               call->results[i].size};
        pending.call.arguments = arguments;
        pending.call.results = results;
        sem_init(&pending.is_done, 0, 0);
        tow_env_post(pending.bridge->env, &pending.post);
        while (sem_wait(&pending.is_done) != 0) {
        }
        sem_destroy(&pending.is_done);
    } else {
        pending.status = tow_status_bare(TOW_RESOURCE_EXHAUSTED);
    }
    tow_free(arguments);
    tow_free(results);
    return report(pending.status, error, error_capacity);
}

void tow_callback_bridge_init(tow_callback_bridge_t *bridge, tow_env_t *env)
{
    *bridge = (tow_callback_bridge_t){.env = env};
    bridge->table = (tow_xla_calls_t){
        .struct_size = sizeof(bridge->table), .context = bridge, .run = run};
}
