/* Reports that a relay combines.
 *
 * A run that we forwarded has a batch until all members of its group, ourselves
 * included, have reported it: then one message reports it for all. Some time
 * after the first report, those of the others are reported one by one instead.
 * The progress of a run that is granted in pieces is the least of all members,
 * and is reported whenever that has grown. The device time of all reports is
 * summed until it is passed on. */
#include <string.h>

#include "base/alloc.h"
#include "base/assert.h"
#include "worker/worker_impl.h"

typedef struct member {
    uint32_t process;
    uint32_t end; /* all steps before it have ended there */
    bool has_reported;
    bool is_apart; /* disconnected: it reports to the controller itself */
    tow_device_time_t time; /* not passed on yet */
} member_t;

typedef struct batch {
    tow_list_t in_open;
    uint64_t run;
    int64_t until_ns; /* 0: no report yet */
    uint32_t member_count, reported_count;
    uint32_t progress_end; /* reported */
    member_t members[];    /* the first is our own */
} report_batch_t;

/* -- Messages -------------------------------------------------------------- */

/* Reports of single members. */
typedef struct parts {
    size_t count;
    uint64_t runs[TOW_RELAY_FANOUT_MAX + 1];
    uint32_t processes[TOW_RELAY_FANOUT_MAX + 1];
    uint32_t ends[TOW_RELAY_FANOUT_MAX + 1]; /* 0: the run has succeeded */
    tow_device_time_t times[TOW_RELAY_FANOUT_MAX + 1];
    bool has_progress;
} parts_t;

static void add_part(parts_t *parts, uint64_t run, const member_t *part)
{
    const size_t at = parts->count++;
    parts->runs[at] = run;
    parts->processes[at] = part->process;
    parts->ends[at] = part->has_reported ? 0 : part->end;
    parts->times[at] = part->time;
    parts->has_progress |= parts->ends[at] > 0;
}

static void send_parts(tow_worker_t *worker, parts_t *parts)
{
    if (parts->count == 0) return;
    uint64_t scratch[TOW_TIME_LIST_SCRATCH(TOW_RELAY_FANOUT_MAX + 1)];
    const tow_time_list_t list =
        tow_time_list_pack(parts->times, parts->count, scratch);
    tow_msg_relay_done_t done = TOW_MSG_RELAY_DONE_INIT;
    done.part_runs = parts->runs;
    done.part_processes = parts->processes;
    done.n_part_runs = done.n_part_processes = parts->count;
    done.part_ends = parts->ends;
    done.n_part_ends = parts->has_progress ? parts->count : 0;
    done.part_busy_ns = list.busy_ns;
    done.n_part_busy_ns = list.busy_count;
    done.part_wait_ns = list.wait_ns;
    done.n_part_wait_ns = list.wait_count;
    done.part_longest_ns = list.longest_ns;
    done.n_part_longest_ns = list.longest_count;
    worker_send(worker, TOW_MESSAGE_RELAY_DONE, &done.base);
}

static void send_part(tow_worker_t *worker, uint64_t run, const member_t *part)
{
    parts_t parts = {0};
    add_part(&parts, run, part);
    send_parts(worker, &parts);
}

/* Has the member a report that was not passed on? */
static bool has_news(const report_batch_t *batch, const member_t *member)
{
    return member->has_reported || member->end > batch->progress_end ||
           (member->time.busy_ns | member->time.wait_ns) != 0;
}

static void send_reported(tow_worker_t *worker, const report_batch_t *batch)
{
    parts_t parts = {0};
    for (size_t i = 0; i < batch->member_count; i++)
        if (has_news(batch, &batch->members[i]))
            add_part(&parts, batch->run, &batch->members[i]);
    send_parts(worker, &parts);
}

/* The reports of one member follow each other, those of members do not. */
static void add_time(member_t *member, const tow_device_time_t *time)
{
    member->time.busy_ns += time->busy_ns;
    member->time.wait_ns += time->wait_ns;
    member->time.longest_ns += time->longest_ns;
}

static tow_device_time_t take_times(report_batch_t *batch)
{
    tow_device_time_t sum = {0};
    for (size_t i = 0; i < batch->member_count; i++) {
        tow_device_time_merge(&sum, &batch->members[i].time);
        batch->members[i].time = (tow_device_time_t){0};
    }
    return sum;
}

static void send_whole(tow_worker_t *worker, report_batch_t *batch)
{
    const tow_device_time_t sum = take_times(batch);
    uint64_t scratch[TOW_TIME_LIST_SCRATCH(1)];
    const tow_time_list_t list = tow_time_list_pack(&sum, 1, scratch);
    uint64_t run = batch->run;
    tow_msg_relay_done_t done = TOW_MSG_RELAY_DONE_INIT;
    done.runs = &run;
    done.n_runs = 1;
    done.busy_ns = list.busy_ns;
    done.n_busy_ns = list.busy_count;
    done.wait_ns = list.wait_ns;
    done.n_wait_ns = list.wait_count;
    done.longest_ns = list.longest_ns;
    done.n_longest_ns = list.longest_count;
    worker_send(worker, TOW_MESSAGE_RELAY_DONE, &done.base);
}

static void send_progress(tow_worker_t *worker, report_batch_t *batch)
{
    const tow_device_time_t sum = take_times(batch);
    uint64_t scratch[TOW_TIME_LIST_SCRATCH(1)];
    const tow_time_list_t list = tow_time_list_pack(&sum, 1, scratch);
    uint64_t run = batch->run;
    uint32_t end = batch->progress_end;
    tow_msg_relay_done_t done = TOW_MSG_RELAY_DONE_INIT;
    done.progress_runs = &run;
    done.progress_ends = &end;
    done.n_progress_runs = done.n_progress_ends = 1;
    done.progress_busy_ns = list.busy_ns;
    done.n_progress_busy_ns = list.busy_count;
    done.progress_wait_ns = list.wait_ns;
    done.n_progress_wait_ns = list.wait_count;
    done.progress_longest_ns = list.longest_ns;
    done.n_progress_longest_ns = list.longest_count;
    worker_send(worker, TOW_MESSAGE_RELAY_DONE, &done.base);
}

/* -- Batches --------------------------------------------------------------- */

static member_t *find_member(report_batch_t *batch, uint32_t process)
{
    for (uint32_t i = 0; i < batch->member_count; i++)
        if (batch->members[i].process == process) return &batch->members[i];
    return NULL;
}

static void free_batch(tow_worker_t *worker, report_batch_t *batch)
{
    tow_list_remove(&batch->in_open);
    tow_map_remove(&worker->relay.batches, batch->run);
    tow_free(batch);
}

static bool has_group(const report_batch_t *batch,
                      const tow_msg_relay_grant_t *message)
{
    if (batch->member_count != message->n_processes + 1) return false;
    for (size_t i = 0; i < message->n_processes; i++)
        if (batch->members[i + 1].process != message->processes[i])
            return false;
    return true;
}

/* A later piece of the run has another group: its members keep their
 * progress. */
static void take_over(tow_worker_t *worker, report_batch_t *batch,
                      report_batch_t *old)
{
    for (uint32_t i = 0; i < old->member_count; i++) {
        const member_t *former = &old->members[i];
        member_t *member = find_member(batch, former->process);
        if (member != NULL) {
            member->end = former->end;
            member->time = former->time;
        } else if (has_news(old, former)) {
            send_part(worker, old->run, former);
        }
    }
    batch->progress_end = old->progress_end;
    free_batch(worker, old);
}

tow_status_t worker_batch_start(tow_worker_t *worker,
                                const tow_msg_relay_grant_t *message)
{
    const uint64_t run = message->grant->run;
    const size_t count = message->n_processes + 1;
    report_batch_t *old = tow_map_find(&worker->relay.batches, run);
    if (old != NULL && message->grant->first_step == 0)
        return TOW_ERROR(TOW_INVALID_ARGUMENT, "a run that is under way");
    if (old != NULL && has_group(old, message)) return TOW_OK;
    report_batch_t *batch =
        tow_calloc(1, sizeof(*batch) + count * sizeof(batch->members[0]));
    if (batch == NULL) return tow_status_bare(TOW_RESOURCE_EXHAUSTED);
    batch->run = run;
    batch->member_count = (uint32_t)count;
    batch->members[0].process = worker->options.process;
    for (size_t i = 0; i < message->n_processes; i++)
        batch->members[i + 1].process = message->processes[i];
    tow_list_init(&batch->in_open);
    if (old != NULL) take_over(worker, batch, old);
    if (tow_map_put(&worker->relay.batches, run, batch)) return TOW_OK;
    tow_free(batch);
    return tow_status_bare(TOW_RESOURCE_EXHAUSTED);
}

static void wait_for_others(tow_worker_t *worker, report_batch_t *batch)
{
    relay_t *relay = &worker->relay;
    if (batch->until_ns != 0) return;
    batch->until_ns = tow_env_now_ns(worker->env) + TOW_WORKER_REPORT_BATCH_NS;
    tow_list_append(&relay->open_batches, &batch->in_open);
    if (!tow_timer_is_armed(&relay->timer))
        tow_env_timer_start(worker->env, &relay->timer, batch->until_ns);
}

void worker_batch_timer(tow_timer_t *timer)
{
    tow_worker_t *worker = TOW_CONTAINER_OF(timer, tow_worker_t, relay.timer);
    relay_t *relay = &worker->relay;
    const int64_t now_ns = tow_env_now_ns(worker->env);
    while (!tow_list_is_empty(&relay->open_batches)) {
        report_batch_t *batch =
            TOW_CONTAINER_OF(relay->open_batches.next, report_batch_t, in_open);
        if (batch->until_ns > now_ns) {
            tow_env_timer_start(worker->env, timer, batch->until_ns);
            return;
        }
        send_reported(worker, batch);
        free_batch(worker, batch);
    }
}

/* -- Reports --------------------------------------------------------------- */

/* Reports the least progress of all members, if it has grown. */
static void check_progress(tow_worker_t *worker, report_batch_t *batch)
{
    uint32_t least = UINT32_MAX;
    for (uint32_t i = 0; i < batch->member_count; i++) {
        const member_t *member = &batch->members[i];
        if (!member->has_reported && !member->is_apart && member->end < least)
            least = member->end;
    }
    if (least == UINT32_MAX || least <= batch->progress_end) return;
    batch->progress_end = least;
    send_progress(worker, batch);
}

void worker_batch_report(tow_worker_t *worker, uint64_t run, uint32_t process,
                         const tow_device_time_t *time)
{
    report_batch_t *batch = tow_map_find(&worker->relay.batches, run);
    member_t *member = batch != NULL ? find_member(batch, process) : NULL;
    if (member == NULL) { /* It arrived after the batch was sent. */
        send_part(worker, run,
                  &(member_t){
                      .process = process, .has_reported = true, .time = *time});
        return;
    }
    if (member->has_reported) return;
    member->has_reported = true;
    add_time(member, time);
    if (++batch->reported_count < batch->member_count) {
        check_progress(worker, batch);
        wait_for_others(worker, batch);
        return;
    }
    send_whole(worker, batch);
    free_batch(worker, batch);
}

void worker_batch_progress(tow_worker_t *worker,
                           const tow_run_progress_t *progress, uint32_t process)
{
    if (progress->step_end == 0) return;
    report_batch_t *batch = tow_map_find(&worker->relay.batches, progress->run);
    member_t *member = batch != NULL ? find_member(batch, process) : NULL;
    if (member == NULL || member->is_apart) {
        send_part(worker, progress->run,
                  &(member_t){.process = process,
                              .end = progress->step_end,
                              .time = progress->time});
        return;
    }
    if (progress->step_end > member->end) member->end = progress->step_end;
    add_time(member, &progress->time);
    check_progress(worker, batch);
}

tow_status_t worker_relay_passed_done(tow_worker_t *worker, uint32_t process,
                                      const tow_msg_forwarded_done_t *message)
{
    if (message->n_progress_runs != message->n_progress_ends)
        return TOW_ERROR(TOW_INVALID_ARGUMENT, "%zu runs and %zu ends",
                         message->n_progress_runs, message->n_progress_ends);
    const tow_time_list_t times = {.busy_ns = message->busy_ns,
                                   .busy_count = message->n_busy_ns,
                                   .wait_ns = message->wait_ns,
                                   .wait_count = message->n_wait_ns,
                                   .longest_ns = message->longest_ns,
                                   .longest_count = message->n_longest_ns};
    const tow_time_list_t progress_times = {
        .busy_ns = message->progress_busy_ns,
        .busy_count = message->n_progress_busy_ns,
        .wait_ns = message->progress_wait_ns,
        .wait_count = message->n_progress_wait_ns,
        .longest_ns = message->progress_longest_ns,
        .longest_count = message->n_progress_longest_ns};
    TOW_RETURN_IF_ERROR(tow_time_list_check(&times, message->n_runs));
    TOW_RETURN_IF_ERROR(
        tow_time_list_check(&progress_times, message->n_progress_runs));
    if (!worker_is_joined(worker)) return TOW_OK;
    for (size_t i = 0; i < message->n_progress_runs; i++)
        worker_batch_progress(
            worker,
            &(tow_run_progress_t){message->progress_runs[i],
                                  message->progress_ends[i],
                                  tow_time_list_at(&progress_times, i)},
            process);
    for (size_t i = 0; i < message->n_runs; i++) {
        const tow_device_time_t time = tow_time_list_at(&times, i);
        worker_batch_report(worker, message->runs[i], process, &time);
    }
    return TOW_OK;
}

/* We report it to the controller ourselves, and the others may not report any
 * more. */
void worker_batch_end(tow_worker_t *worker, uint64_t run)
{
    report_batch_t *batch = tow_map_find(&worker->relay.batches, run);
    if (batch != NULL) wait_for_others(worker, batch);
}

void worker_batches_on_disconnect(tow_worker_t *worker, uint32_t process)
{
    size_t cursor = 0;
    uint64_t run;
    void *value;
    while (tow_map_next(&worker->relay.batches, &cursor, &run, &value)) {
        member_t *member = find_member(value, process);
        if (member == NULL || member->is_apart) continue;
        member->is_apart = true;
        check_progress(worker, value);
    }
}

/* -- Invariants ------------------------------------------------------------ */

tow_status_t worker_batches_check(const tow_worker_t *worker)
{
    const relay_t *relay = &worker->relay;
    size_t begun_count = 0, cursor = 0;
    uint64_t run;
    void *value;
    while (tow_map_next(&relay->batches, &cursor, &run, &value)) {
        const report_batch_t *batch = value;
        uint32_t reported_count = 0;
        for (uint32_t i = 0; i < batch->member_count; i++)
            reported_count += batch->members[i].has_reported;
        TOW_INVARIANT(batch->run == run);
        TOW_INVARIANT(reported_count == batch->reported_count);
        TOW_INVARIANT(reported_count < batch->member_count);
        TOW_INVARIANT(reported_count == 0 || batch->until_ns != 0);
        begun_count += batch->until_ns != 0;
    }
    TOW_INVARIANT(tow_list_length(&relay->open_batches) == begun_count);
    TOW_INVARIANT(begun_count == 0 || tow_timer_is_armed(&relay->timer));
    return TOW_OK;
}
