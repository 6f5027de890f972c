#include "device/host/sim.h"

#include <inttypes.h>
#include <string.h>

#include "base/alloc.h"
#include "base/assert.h"
#include "base/fault.h"
#include "base/hash.h"
#include "device/host/tuning.h"
#include "device/sim/value.h"

/* The longest call. */
#define CALL_NS_MAX UINT64_C(2000000)

typedef struct host_sim {
    tow_host_runner_t host;
    char *name; /* owned */
    tow_list_t jobs;
    bool is_closing;
    tow_closed_t closed;
    tow_post_t close_post;
} host_sim_t;

static host_sim_t *sim_of(tow_host_runner_t *host)
{
    return TOW_CONTAINER_OF(host, host_sim_t, host);
}

static void free_sim(host_sim_t *sim)
{
    tow_free(sim->name);
    tow_free(sim);
}

static void on_close(tow_post_t *post)
{
    host_sim_t *sim = TOW_CONTAINER_OF(post, host_sim_t, close_post);
    const tow_closed_t closed = sim->closed;
    free_sim(sim);
    closed.run(closed.context);
}

static void end(host_sim_t *sim, tow_host_job_t *job, tow_status_t take_status)
{
    tow_list_remove(&job->private_.list);
    job->done(job, take_status);
    if (sim->is_closing && tow_list_is_empty(&sim->jobs))
        tow_env_post(sim->host.env, &sim->close_post);
}

/* Depends on the function and on all inputs, their sizes included. */
static uint64_t value_of(const tow_host_job_t *job)
{
    const tow_signature_t *signature = &job->code->signature;
    uint64_t value = tow_sim_value_begin(signature->name);
    for (size_t i = 0; i < signature->argument_count; i++) {
        const tow_host_array_t *input = &job->inputs[i];
        const size_t size = (size_t)input->size;
        value = tow_host_sim_mix(value, input->bytes, size);
    }
    return value;
}

static tow_status_t make_output(tow_host_job_t *job, size_t index,
                                uint64_t value)
{
    const tow_array_info_t *info = &job->code->signature.results[index];
    int64_t dims[TOW_RANK_MAX];
    for (uint32_t k = 0; k < info->shape.rank; k++) {
        dims[k] = info->shape.dims[k];
        if ((info->bounds >> k & 1) != 0)
            dims[k] = tow_host_sim_dim(value, k, dims[k]);
    }
    TOW_RETURN_IF_ERROR(tow_host_accept_dims(job, index, dims));
    const tow_host_array_t *output = &job->outputs[index];
    if (output->size > 0)
        tow_sim_value_show(tow_sim_value_mix(value, index + 1), output->bytes,
                           (size_t)output->size);
    return TOW_OK;
}

static tow_status_t make_outputs(tow_host_job_t *job)
{
    const uint64_t value = value_of(job);
    for (size_t i = 0; i < job->code->signature.result_count; i++)
        TOW_RETURN_IF_ERROR(make_output(job, i, value));
    return TOW_OK;
}

uint64_t tow_host_sim_mix(uint64_t value, const void *bytes, size_t size)
{
    const uint64_t input = size > 0 ? tow_sim_value_read(bytes, size) : 0;
    return tow_sim_value_mix(tow_sim_value_mix(value, input), size);
}

int64_t tow_host_sim_dim(uint64_t value, uint32_t dimension, int64_t bound)
{
    const uint64_t drawn = tow_mix64(value + dimension + 1);
    return (int64_t)(drawn % ((uint64_t)bound + 1));
}

static bool is_named(const tow_host_job_t *job, const char *name)
{
    return strcmp(job->code->signature.name, name) == 0;
}

/* The call ends: with private_.status, or with outputs. */
static void on_timer(tow_timer_t *timer)
{
    tow_host_job_t *job =
        TOW_CONTAINER_OF(timer, tow_host_job_t, private_.timer);
    host_sim_t *sim = job->private_.place;
    tow_status_t status = job->private_.status;
    if (status == TOW_OK && !job->is_probe) status = make_outputs(job);
    end(sim, job, status);
}

static tow_status_t fate_of(const host_sim_t *sim, const tow_host_job_t *job,
                            bool *out_hangs)
{
    const char *symbol = job->code->signature.name;
    *out_hangs = false;
    if (job->is_probe) return TOW_OK;
    if (is_named(job, "hang") || TOW_FAULT("host.hang")) {
        *out_hangs = true;
        return TOW_ERROR(TOW_DEADLINE_EXCEEDED,
                         "host function %s on worker %s took longer than its "
                         "limit, %" PRId64 " ms, and was ended (simulated)",
                         symbol, sim->name, job->time_limit_ns / 1000000);
    }
    if (is_named(job, "crash") || TOW_FAULT("host.crash"))
        return TOW_ERROR(TOW_INTERNAL,
                         "host function %s on worker %s ended its process "
                         "(simulated)",
                         symbol, sim->name);
    if (is_named(job, "fail") || TOW_FAULT("host.fail"))
        return TOW_ERROR(TOW_ABORTED,
                         "host function %s on worker %s failed with 1 "
                         "(simulated)",
                         symbol, sim->name);
    return TOW_OK;
}

static tow_status_t submit(tow_host_runner_t *host, tow_host_job_t *job)
{
    host_sim_t *sim = sim_of(host);
    bool hangs;
    if (sim->is_closing)
        return TOW_ERROR(TOW_UNAVAILABLE, "host functions are closing");
    job->private_.status = fate_of(sim, job, &hangs);
    job->private_.place = sim;
    job->private_.timer = (tow_timer_t){.fire = on_timer};
    tow_list_append(&sim->jobs, &job->private_.list);
    const int64_t span_ns =
        hangs ? job->time_limit_ns
              : (int64_t)(1 + tow_random_below(tow_env_random(host->env),
                                               CALL_NS_MAX));
    tow_env_timer_start(host->env, &job->private_.timer,
                        tow_env_now_ns(host->env) + span_ns);
    return TOW_OK;
}

static void cancel(tow_host_runner_t *host, tow_host_job_t *job)
{
    tow_status_release(job->private_.status);
    job->private_.status =
        TOW_ERROR(TOW_CANCELLED, "host function %s was cancelled",
                  job->code->signature.name);
    tow_env_timer_stop(host->env, &job->private_.timer);
    tow_env_timer_start(host->env, &job->private_.timer,
                        tow_env_now_ns(host->env));
}

static void close_host(tow_host_runner_t *host, tow_closed_t closed)
{
    host_sim_t *sim = sim_of(host);
    sim->is_closing = true;
    sim->closed = closed;
    const tow_list_t *head = &sim->jobs;
    for (tow_list_t *at = head->next; at != head; at = at->next)
        cancel(host, TOW_CONTAINER_OF(at, tow_host_job_t, private_.list));
    if (tow_list_is_empty(head)) tow_env_post(host->env, &sim->close_post);
}

static void discard(tow_host_runner_t *host)
{
    host_sim_t *sim = sim_of(host);
    tow_list_t *item;
    while ((item = tow_list_pop_front(&sim->jobs)) != NULL)
        tow_status_release(TOW_CONTAINER_OF(item, tow_host_job_t, private_.list)
                               ->private_.status);
    free_sim(sim);
}

tow_status_t tow_host_sim_create(tow_env_t *env, const char *name,
                                 tow_host_runner_t **out_host)
{
    static const tow_host_runner_ops_t ops = {.name = "sim",
                                              .submit = submit,
                                              .cancel = cancel,
                                              .close = close_host,
                                              .discard = discard};
    *out_host = NULL;
    host_sim_t *sim = tow_calloc(1, sizeof(*sim));
    if (sim == NULL) return tow_status_bare(TOW_RESOURCE_EXHAUSTED);
    sim->host = (tow_host_runner_t){.ops = &ops, .env = env};
    sim->close_post.run = on_close;
    tow_list_init(&sim->jobs);
    sim->name = tow_strdup(name);
    if (sim->name == NULL) {
        free_sim(sim);
        return tow_status_bare(TOW_RESOURCE_EXHAUSTED);
    }
    *out_host = &sim->host;
    return TOW_OK;
}
