/* Concurrent sequences of letters between leaders. */
#include "base/assert.h"
#include "collective/multi_host/multi_host_impl.h"

/* Both sides compute the same numbers for the letters of an exchange. */
static uint64_t step_of(const job_t *job, size_t index)
{
    return job->exchange_count << 32 | index;
}

static bool may_move(const flow_t *flow)
{
    return flow->done < flow->count &&
           (flow->after == NULL || flow->done < flow->after->done + flow->lag);
}

/* False if there is nothing to send, or it cannot be sent now. */
static bool send_one(job_t *job, flow_t *flow)
{
    const gang_host_t *host = &job->gang->hosts[flow->host];
    if (!may_move(flow) ||
        atomic_load(&host->backlog->count) >= TOW_MULTI_HOST_BACKLOG_COUNT_MAX)
        return false;
    tow_envelope_t *envelope = errand_envelope(job->errand);
    if (envelope == NULL) return false;
    const size_t size = flow->size_of(flow, flow->done);
    TOW_ASSERT(size <= job->errand->capacity);
    envelope->head.step = step_of(job, flow->done);
    envelope->head.size = (uint32_t)size;
    flow->move(flow, flow->done, envelope->bytes);
    errand_send(job->errand, envelope, host);
    flow->done++;
    return true;
}

/* *out_did: whether a letter had arrived. */
static tow_status_t take_one(job_t *job, flow_t *flow, bool *out_did)
{
    *out_did = false;
    if (!may_move(flow)) return TOW_OK;
    const gang_host_t *host = &job->gang->hosts[flow->host];
    tow_letter_t *letter =
        errand_find(job->errand, host->leader, step_of(job, flow->done));
    if (letter == NULL) return TOW_OK;
    const size_t size = flow->size_of(flow, flow->done);
    if (letter->head->size != size)
        return TOW_ERROR(TOW_INVALID_ARGUMENT,
                         "device %lld sends %u bytes where device %lld expects "
                         "%zu: they do not run the same program",
                         (long long)host->leader, (unsigned)letter->head->size,
                         (long long)letter->head->box.to, size);
    flow->move(flow, flow->done, letter->bytes);
    errand_release(job->errand, letter);
    flow->done++;
    *out_did = true;
    return TOW_OK;
}

static bool all_done(const flow_t *flows, size_t count)
{
    for (size_t i = 0; i < count; i++)
        if (flows[i].done < flows[i].count) return false;
    return true;
}

static int64_t own_device(const job_t *job)
{
    return job->collective->members[job->collective->rank];
}

/* Lists the leaders that have not sent all that we need. Empty if we only wait
 * for free envelopes. */
static void note_missing(const job_t *job, const flow_t *ins, size_t in_count,
                         tow_intra_host_wait_timer_t *watch)
{
    tow_intra_host_wait_t wait = {.device = own_device(job),
                                  .run_id = job->collective->run_id};
    for (size_t i = 0;
         i < in_count && wait.missing_count < TOW_INTRA_HOST_MISSING_MAX; i++)
        if (may_move(&ins[i]))
            wait.missing[wait.missing_count++] =
                job->gang->hosts[ins[i].host].leader;
    tow_intra_host_wait_report(job->span->options.host, watch, &wait);
}

static void stop_waiting(const job_t *job, tow_intra_host_wait_timer_t *watch)
{
    tow_intra_host_wait_end(job->span->options.host, watch, job->collective);
    *watch = (tow_intra_host_wait_timer_t){0};
}

static tow_status_t run_all(job_t *job, flow_t *outs, size_t out_count,
                            flow_t *ins, size_t in_count,
                            tow_intra_host_wait_timer_t *watch)
{
    errand_t *errand = job->errand;
    for (;;) {
        const uint32_t heard =
            atomic_load_explicit(&errand->bell, memory_order_acquire);
        errand_collect(errand);
        bool moved = false;
        for (size_t i = 0; i < out_count; i++)
            moved |= send_one(job, &outs[i]);
        if (moved) errand_kick(errand);
        for (size_t i = 0; i < in_count; i++) {
            bool did;
            TOW_RETURN_IF_ERROR(take_one(job, &ins[i], &did));
            moved |= did;
        }
        if (moved) {
            stop_waiting(job, watch);
            continue;
        }
        if (all_done(outs, out_count) && all_done(ins, in_count)) break;
        tow_intra_host_wait_begin(watch);
        TOW_RETURN_IF_ERROR(errand_wait(errand, heard));
        if (TOW_UNLIKELY(tow_intra_host_wait_is_long(watch)))
            note_missing(job, ins, in_count, watch);
    }
    job->exchange_count++;
    return TOW_OK;
}

tow_status_t flow_run(job_t *job, flow_t *outs, size_t out_count, flow_t *ins,
                      size_t in_count)
{
    tow_intra_host_wait_timer_t watch = {0};
    tow_status_t status = run_all(job, outs, out_count, ins, in_count, &watch);
    stop_waiting(job, &watch);
    return status;
}
