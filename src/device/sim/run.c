/* Runs: each device runs its shards in order, one at a time.
 *
 *     IDLE -> WAITING for inputs -> COMPUTING -> IN_COLLECTIVE -> COMPUTING ...
 *          -> IDLE
 *
 * Every run takes at least one timer, so that a chain of runs, each started by
 * the completion of the last, cannot occupy a turn for ever.
 *
 * A device has its own time. A run starts when the one before was due to end,
 * when its inputs were ready or when it was enqueued, whichever is last, and
 * each stage ends when it is due. On the real clock timers fire late, so events
 * are behind that time; they catch up, and delays do not add up. */
#include <inttypes.h>
#include <string.h>

#include "base/alloc.h"
#include "base/assert.h"
#include "device/sim/driver_impl.h"
#include "device/sim/value.h"

static shard_t *first_shard(const device_t *device)
{
    return TOW_CONTAINER_OF(device->queue.next, shard_t, in_queue);
}

static buffer_t **arguments_of(const shard_t *shard)
{
    const job_t *job = shard->job;
    return job->arguments + shard->local * job->executable->cost.argument_count;
}

static buffer_t **results_of(const shard_t *shard)
{
    const job_t *job = shard->job;
    return job->results + shard->local * job->executable->cost.result_count;
}

/* -- The end of a shard ---------------------------------------------------- */

void tow_sim_job_free(job_t *job)
{
    tow_list_remove(&job->in_driver);
    tow_status_release(job->error);
    tow_status_release(job->abort);
    tow_free(job);
}

/* The time as the clock of the driver shows it. */
static uint64_t shown_ns(driver_t *driver, uint64_t ns)
{
    switch (driver->clock) {
    case TOW_SIM_CLOCK_ZERO: return 0;
    case TOW_SIM_CLOCK_SLOW: return ns / 1000;
    case TOW_SIM_CLOCK_FAST: return ns * 1000;
    case TOW_SIM_CLOCK_ABSURD:
        return tow_random_below(&driver->random, UINT64_C(1) << 44);
    default: return ns;
    }
}

/* Reports the time that the first shard kept the device. */
static void count_time(device_t *device, job_t *job)
{
    driver_t *driver = device->driver;
    const uint64_t busy_ns = shown_ns(driver, device->busy_ns);
    const uint64_t wait_ns = shown_ns(driver, device->wait_ns);
    tow_device_time_add(&job->run->time, busy_ns, wait_ns);
    driver->counts.busy_ns += busy_ns;
    driver->counts.wait_ns += wait_ns;
    device->busy_ns = device->wait_ns = 0;
}

static void finish_job(job_t *job)
{
    tow_run_t *run = job->run;
    tow_status_t error = job->error;
    job->error = TOW_OK;
    tow_sim_executable_unref(job->executable);
    tow_sim_job_free(job);
    run->done(run, error);
}

static void finish_results(const device_t *device, const shard_t *shard,
                           tow_status_t status)
{
    buffer_t **results = results_of(shard);
    size_t count = shard->job->executable->cost.result_count;
    for (size_t i = 0; i < count; i++) {
        buffer_t *buffer = results[i];
        buffer->value = tow_sim_value_fit(
            tow_sim_value_mix(device->value, i + 1), buffer->base.bytes);
        if (status == TOW_OK)
            tow_sim_buffer_ready(buffer, device->at_ns);
        else
            tow_sim_buffer_fail(buffer, status);
        tow_sim_buffer_unref(buffer);
    }
}

static void release_arguments(const shard_t *shard)
{
    buffer_t **arguments = arguments_of(shard);
    size_t count = shard->job->executable->cost.argument_count;
    for (size_t i = 0; i < count; i++)
        tow_sim_buffer_unref(arguments[i]);
}

/* The first shard ends, with TOW_OK or an error. */
static void finish_shard(device_t *device, tow_status_t take_status)
{
    shard_t *shard = first_shard(device);
    job_t *job = shard->job;
    tow_list_remove(&shard->in_queue);
    device->queued_count--;
    device->stage = DEVICE_IDLE;
    device->driver->counts.runs++;
    tow_sim_memory_give(device, device->temporary_bytes);
    device->temporary_bytes = 0;
    tow_sim_device_mark(device);
    count_time(device, job);
    finish_results(device, shard, take_status);
    release_arguments(shard);
    const bool is_first_error = job->error == TOW_OK && take_status != TOW_OK;
    if (job->error == TOW_OK)
        job->error = take_status;
    else
        tow_status_release(take_status);
    if (--job->unfinished_count == 0)
        finish_job(job);
    else if (is_first_error && job->run->failed != NULL)
        job->run->failed(job->run, job->error);
}

static tow_status_t name_device(const device_t *device, const shard_t *shard,
                                tow_status_t take_status)
{
    return tow_status_annotate(take_status, "device %" PRId64 ", %s",
                               device->member.device_id,
                               shard->job->executable->cost.name);
}

static void fail_shard(device_t *device, tow_status_t take_status)
{
    finish_shard(device, name_device(device, first_shard(device), take_status));
}

/* -- Stages ---------------------------------------------------------------- */

static const stage_t *stage_of(const device_t *device)
{
    const executable_t *executable = first_shard(device)->job->executable;
    return &executable->stages[device->stage_index];
}

static uint64_t with_jitter(driver_t *driver, uint64_t ns)
{
    if (driver->jitter_ppm == 0) return ns;
    unsigned __int128 most = (unsigned __int128)ns * driver->jitter_ppm;
    uint64_t more =
        tow_random_below(&driver->random, (uint64_t)(most / 1000000u) + 1);
    return tow_sim_ns_add(ns, more);
}

static void compute(device_t *device, uint64_t pause_ns)
{
    driver_t *driver = device->driver;
    uint64_t ns = with_jitter(driver, pause_ns);
    device->stage = DEVICE_COMPUTING;
    device->busy_ns += ns;
    device->at_ns += (int64_t)ns;
    tow_env_timer_start(driver->base.env, &device->timer, device->at_ns);
}

/* The group of the collective to which the position belongs. */
static group_t group_at(const executable_t *executable, const stage_t *stage,
                        uint32_t position, uint32_t *out_rank)
{
    uint32_t rank = position / stage->stride % stage->group_size;
    *out_rank = rank;
    return (group_t){.assignment = executable->assignment,
                     .start = position - rank * stage->stride,
                     .stride = stage->stride,
                     .size = stage->group_size};
}

static void enter_collective(device_t *device)
{
    const stage_t *stage = stage_of(device);
    const shard_t *shard = first_shard(device);
    const executable_t *executable = shard->job->executable;
    arrival_t arrival = {
        .gang_id = shard->job->gang_id,
        .collective = (uint32_t)device->stage_index,
        .kind = stage->kind,
        .bytes = stage->bytes,
        .duration_ns = stage->duration_ns,
        .now_ns = device->at_ns,
    };
    arrival.group =
        group_at(executable, stage, executable->local_positions[shard->local],
                 &arrival.rank);
    device->member.contribution = device->value;
    device->stage = DEVICE_IN_COLLECTIVE;
    tow_status_t status = tow_sim_fabric_arrive(device->driver->fabric,
                                                &device->member, &arrival);
    if (status != TOW_OK) fail_shard(device, status);
}

/* Starts the stage stage_index, or ends the shard. */
static void enter_stage(device_t *device)
{
    const executable_t *executable = first_shard(device)->job->executable;
    if (device->stage_index == executable->stage_count) {
        finish_shard(device, TOW_OK);
        return;
    }
    const stage_t *stage = stage_of(device);
    if (stage->pause_ns > 0 || device->stage_index == 0)
        compute(device, stage->pause_ns);
    else if (stage->has_collective)
        enter_collective(device);
    else
        finish_shard(device, TOW_OK);
}

static void after_computing(device_t *device)
{
    if (stage_of(device)->has_collective) {
        enter_collective(device);
        return;
    }
    device->stage_index++;
    enter_stage(device);
}

/* The device has been in a running collective until `until_ns`. */
static void count_collective(device_t *device, int64_t until_ns)
{
    const int64_t started_ns = device->member.started_ns;
    const int64_t waited_ns = until_ns < started_ns ? until_ns : started_ns;
    device->wait_ns += (uint64_t)(waited_ns - device->at_ns);
    device->busy_ns += (uint64_t)(until_ns - waited_ns);
    device->at_ns = until_ns;
}

static void after_collective(device_t *device)
{
    tow_sim_collective_kind_t kind = stage_of(device)->kind;
    count_collective(device, device->member.end_ns);
    tow_sim_fabric_depart(device->driver->fabric, &device->member);
    if (kind != TOW_SIM_BARRIER)
        device->value = tow_sim_value_after_collective(
            kind, device->member.combined, device->member.rank);
    device->stage_index++;
    enter_stage(device);
}

static void device_fire(tow_timer_t *timer)
{
    device_t *device = TOW_CONTAINER_OF(timer, device_t, timer);
    driver_t *driver = device->driver;
    driver->counts.turns++;
    if (first_shard(device)->job->abort != TOW_OK)
        tow_sim_device_mark(device); /* It was aborted just before. */
    else if (device->stage == DEVICE_COMPUTING)
        after_computing(device);
    else
        after_collective(device);
    tow_sim_driver_process_marked(driver);
}

/* -- The start of a shard -------------------------------------------------- */

/* The first argument that failed, is not ready, or would be consumed while an
 * operation reads it. NULL: none. */
static buffer_t *find_obstacle(const shard_t *shard)
{
    buffer_t **arguments = arguments_of(shard);
    size_t count = shard->job->executable->cost.argument_count;
    buffer_t *obstacle = NULL;
    for (size_t i = 0; i < count; i++) {
        buffer_t *buffer = arguments[i];
        if (buffer->state == TOW_BUFFER_FAILED) return buffer;
        bool is_read = buffer->reader_count > 0 && shard->job->is_consumed[i];
        if (obstacle == NULL && (buffer->state != TOW_BUFFER_READY || is_read))
            obstacle = buffer;
    }
    return obstacle;
}

static void begin_value(device_t *device, const shard_t *shard)
{
    const executable_t *executable = shard->job->executable;
    buffer_t **arguments = arguments_of(shard);
    device->value = executable->value;
    for (size_t i = 0; i < executable->cost.argument_count; i++)
        device->value = tow_sim_value_mix(device->value, arguments[i]->value);
}

/* Of donated arguments, which have their memory. */
static void pass_memory_on(const shard_t *shard)
{
    const tow_sim_cost_t *cost = &shard->job->executable->cost;
    for (size_t i = 0; i < cost->alias_count; i++) {
        const tow_alias_t *alias = &cost->aliases[i];
        if (!shard->job->is_consumed[alias->argument]) continue;
        buffer_t *from = arguments_of(shard)[alias->argument];
        buffer_t *to = results_of(shard)[alias->result];
        to->memory_bytes = from->memory_bytes;
        to->has_memory = true;
        from->memory_bytes = 0;
    }
}

static tow_status_t take_memory(device_t *device, const shard_t *shard)
{
    const tow_sim_cost_t *cost = &shard->job->executable->cost;
    pass_memory_on(shard);
    for (size_t i = 0; i < cost->result_count; i++) {
        char text[TOW_SHAPE_TEXT_MAX];
        buffer_t *result = results_of(shard)[i];
        if (result->has_memory) continue;
        TOW_RETURN_IF_ERROR(tow_status_annotate(
            tow_sim_memory_take(device, result->base.bytes,
                                tow_shape_format(&result->base.shape, text)),
            "result %zu", i));
        result->memory_bytes = result->base.bytes;
        result->has_memory = true;
    }
    TOW_RETURN_IF_ERROR(
        tow_sim_memory_take(device, cost->temporary_bytes, "temporary memory"));
    device->temporary_bytes = cost->temporary_bytes;
    return TOW_OK;
}

static int64_t later(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

/* When the shard could start: not before at_ns. */
static int64_t start_ns_of(const device_t *device, const shard_t *shard)
{
    const job_t *job = shard->job;
    buffer_t **arguments = arguments_of(shard);
    int64_t start_ns = later(device->at_ns, job->enqueued_ns);
    for (size_t i = 0; i < job->executable->cost.argument_count; i++) {
        start_ns = later(start_ns, arguments[i]->ready_ns);
        if (job->is_consumed[i])
            start_ns = later(start_ns, arguments[i]->unread_ns);
    }
    return start_ns;
}

static void start_shard(device_t *device, const shard_t *shard)
{
    device->at_ns = start_ns_of(device, shard);
    tow_status_t status = take_memory(device, shard);
    if (status != TOW_OK) {
        fail_shard(device, status);
        return;
    }
    begin_value(device, shard);
    device->stage_index = 0;
    enter_stage(device);
}

/* Starts the first shard, fails it, or waits for an input. */
static void try_start(device_t *device)
{
    const shard_t *shard = first_shard(device);
    buffer_t *obstacle = find_obstacle(shard);
    device->stage = DEVICE_IDLE;
    if (obstacle == NULL) {
        start_shard(device, shard);
    } else if (obstacle->state == TOW_BUFFER_FAILED) {
        finish_shard(device, tow_status_retain(obstacle->error));
    } else {
        device->stage = DEVICE_WAITING;
        tow_sim_buffer_wait(obstacle, &device->waiter);
    }
}

/* The first shard ends now, before its stage is due to end. */
static void cut_short(device_t *device)
{
    const int64_t now_ns = tow_env_now_ns(device->driver->base.env);
    const member_t *member = &device->member;
    if (device->stage == DEVICE_COMPUTING && now_ns < device->at_ns) {
        const uint64_t left_ns = (uint64_t)(device->at_ns - now_ns);
        TOW_ASSERT(left_ns <= device->busy_ns);
        device->busy_ns -= left_ns;
        device->at_ns = now_ns;
    } else if (device->stage == DEVICE_IN_COLLECTIVE &&
               member->rendezvous->is_running) {
        count_collective(device,
                         now_ns < member->end_ns ? now_ns : member->end_ns);
    } else if (device->stage == DEVICE_IN_COLLECTIVE) {
        device->wait_ns += (uint64_t)(now_ns - device->at_ns);
        device->at_ns = now_ns;
    }
}

static void abort_shard(device_t *device)
{
    const shard_t *shard = first_shard(device);
    cut_short(device);
    tow_env_timer_stop(device->driver->base.env, &device->timer);
    tow_sim_fabric_withdraw(device->driver->fabric, &device->member);
    tow_list_remove(&device->waiter.link);
    fail_shard(device, tow_status_retain(shard->job->abort));
}

void tow_sim_device_advance(device_t *device)
{
    while (!tow_list_is_empty(&device->queue)) {
        const shard_t *shard = first_shard(device);
        if (shard->job->abort != TOW_OK) {
            abort_shard(device);
            continue;
        }
        bool is_woken = tow_list_is_empty(&device->waiter.link);
        if (device->stage == DEVICE_IDLE ||
            (device->stage == DEVICE_WAITING && is_woken))
            try_start(device);
        if (device->stage != DEVICE_IDLE) return;
    }
}

static void device_woken(waiter_t *waiter)
{
    tow_sim_device_mark(TOW_CONTAINER_OF(waiter, device_t, waiter));
}

void tow_sim_device_init(device_t *device)
{
    tow_list_init(&device->queue);
    tow_list_init(&device->in_dirty);
    tow_list_init(&device->waiter.link);
    device->waiter.wake = device_woken;
    device->timer.fire = device_fire;
}

/* -- Enqueueing ------------------------------------------------------------ */

static job_t *new_job(executable_t *executable, tow_run_t *run)
{
    size_t devices = executable->base.local_device_count;
    size_t arguments = devices * executable->cost.argument_count;
    size_t results = devices * executable->cost.result_count;
    job_t *job =
        tow_calloc(1, sizeof(*job) + devices * sizeof(shard_t) +
                          (arguments + results) * sizeof(buffer_t *) +
                          executable->cost.argument_count * sizeof(bool));
    if (job == NULL) return NULL;
    job->run = run;
    job->driver = tow_sim_driver_of(executable->base.driver);
    job->executable = executable;
    job->gang_id = run->gang_id;
    job->enqueued_ns = tow_env_now_ns(executable->base.driver->env);
    job->unfinished_count = (uint32_t)devices;
    job->arguments = (buffer_t **)(void *)(job->shards + devices);
    job->results = job->arguments + arguments;
    job->is_consumed = (bool *)(job->results + results);
    tow_list_init(&job->in_driver);
    return job;
}

static bool is_non_donatable(const tow_run_t *run, size_t argument)
{
    for (size_t i = 0; i < run->non_donatable_argument_count; i++)
        if (run->non_donatable_arguments[i] == argument) return true;
    return false;
}

static tow_status_t choose_consumed(job_t *job)
{
    const tow_sim_cost_t *cost = &job->executable->cost;
    for (size_t i = 0; i < cost->alias_count; i++) {
        const tow_alias_t *alias = &cost->aliases[i];
        job->is_consumed[alias->argument] =
            !is_non_donatable(job->run, alias->argument);
        if (alias->required && !job->is_consumed[alias->argument])
            return TOW_ERROR(
                TOW_INVALID_ARGUMENT,
                "%s: argument %zu must not be donated, but the program "
                "requires its memory",
                cost->name, alias->argument);
    }
    return TOW_OK;
}

/* A result larger than the device's memory fails at once. */
static tow_status_t check_result(const device_t *device,
                                 const tow_array_info_t *result)
{
    char text[TOW_SHAPE_TEXT_MAX];
    if (result->bytes <= device->memory.bytes_limit) return TOW_OK;
    return TOW_ERROR(
        TOW_RESOURCE_EXHAUSTED,
        "device %" PRId64 ": %s needs %" PRIu64 " bytes, and has %" PRIu64,
        device->member.device_id, tow_shape_format(&result->shape, text),
        result->bytes, device->memory.bytes_limit);
}

/* Without memory, which is allocated when the run starts. */
static tow_status_t make_results(job_t *job, uint32_t local)
{
    const tow_sim_cost_t *cost = &job->executable->cost;
    size_t device = job->executable->local_devices[local];
    buffer_t **results = job->results + local * cost->result_count;
    for (size_t i = 0; i < cost->result_count; i++) {
        TOW_RETURN_IF_ERROR(tow_status_annotate(
            check_result(&job->driver->devices[device], &cost->results[i]),
            "%s, result %zu", cost->name, i));
        results[i] =
            tow_sim_buffer_make_bare(job->driver, device, &cost->results[i]);
        if (results[i] == NULL) return tow_status_bare(TOW_RESOURCE_EXHAUSTED);
    }
    return TOW_OK;
}

static tow_status_t check_queues(const job_t *job)
{
    const executable_t *executable = job->executable;
    for (size_t i = 0; i < executable->base.local_device_count; i++) {
        const device_t *device =
            &job->driver->devices[executable->local_devices[i]];
        if (device->queued_count < TOW_SIM_QUEUED_RUNS_MAX) continue;
        return TOW_ERROR(TOW_RESOURCE_EXHAUSTED,
                         "device %" PRId64
                         ": %u runs are queued, which is the limit",
                         device->member.device_id, device->queued_count);
    }
    return TOW_OK;
}

static tow_status_t prepare(job_t *job)
{
    TOW_RETURN_IF_ERROR(check_queues(job));
    TOW_RETURN_IF_ERROR(choose_consumed(job));
    for (uint32_t i = 0; i < job->executable->base.local_device_count; i++)
        TOW_RETURN_IF_ERROR(make_results(job, i));
    return TOW_OK;
}

static void undo(job_t *job)
{
    const executable_t *executable = job->executable;
    size_t count =
        executable->base.local_device_count * executable->cost.result_count;
    for (size_t i = 0; i < count; i++)
        if (job->results[i] != NULL) tow_sim_buffer_unref(job->results[i]);
    tow_sim_job_free(job);
}

/* The argument is consumed. The result gets its memory when the run starts. */
static void donate(job_t *job, uint32_t local)
{
    const tow_sim_cost_t *cost = &job->executable->cost;
    for (size_t i = 0; i < cost->alias_count; i++) {
        const size_t argument = cost->aliases[i].argument;
        if (job->is_consumed[argument])
            job->arguments[local * cost->argument_count + argument]
                ->is_donated = true;
    }
}

/* From here on nothing can fail. */
static void enqueue_shard(job_t *job, uint32_t local)
{
    executable_t *executable = job->executable;
    device_t *device = &job->driver->devices[executable->local_devices[local]];
    shard_t *shard = &job->shards[local];
    shard->job = job;
    shard->local = local;
    tow_list_append(&device->queue, &shard->in_queue);
    device->queued_count++;
    tow_sim_device_touch(device);
}

static void commit(job_t *job, const tow_run_t *run)
{
    executable_t *executable = job->executable;
    size_t devices = executable->base.local_device_count;
    size_t arguments = devices * executable->cost.argument_count;
    size_t results = devices * executable->cost.result_count;
    for (size_t i = 0; i < arguments; i++) {
        job->arguments[i] = (buffer_t *)run->arguments[i];
        job->arguments[i]->reference_count++;
    }
    for (size_t i = 0; i < results; i++) {
        job->results[i]->reference_count++;
        run->results[i] = &job->results[i]->base;
    }
    executable->reference_count++;
    tow_list_append(&job->driver->jobs, &job->in_driver);
    for (uint32_t i = 0; i < devices; i++) {
        donate(job, i);
        enqueue_shard(job, i);
    }
}

tow_status_t tow_sim_run_enqueue(tow_driver_t *base, tow_run_t *run)
{
    TOW_RETURN_IF_ERROR(tow_sim_check_open_driver(tow_sim_driver_of(base)));
    job_t *job = new_job((executable_t *)run->executable, run);
    if (job == NULL) return tow_status_bare(TOW_RESOURCE_EXHAUSTED);
    tow_status_t status = prepare(job);
    if (status != TOW_OK) {
        undo(job);
        return status;
    }
    commit(job, run);
    return TOW_OK;
}

static void touch_unfinished(job_t *job)
{
    const executable_t *executable = job->executable;
    for (size_t i = 0; i < executable->base.local_device_count; i++)
        if (!tow_list_is_empty(&job->shards[i].in_queue))
            tow_sim_device_touch(
                &job->driver->devices[executable->local_devices[i]]);
}

void tow_sim_abort(tow_driver_t *base, uint64_t gang_id, tow_status_t cause)
{
    driver_t *driver = tow_sim_driver_of(base);
    bool is_found = false;
    tow_list_t *head = &driver->jobs;
    for (tow_list_t *at = head->next; at != head; at = at->next) {
        job_t *job = TOW_CONTAINER_OF(at, job_t, in_driver);
        if (job->gang_id != gang_id || job->abort != TOW_OK) continue;
        job->abort = tow_status_retain(cause);
        touch_unfinished(job);
        is_found = true;
    }
    if (is_found) tow_sim_fabric_abort(driver->fabric, gang_id);
}
