/* A driver whose computations have values, for tests that compare them. One
 * device; a value is one number. Computations wait in a queue until the test
 * lets some of them run. A donated argument loses its value. */
#ifndef TOW_DATAFLOW_CALC_DRIVER_TESTING_IMPL_H_
#define TOW_DATAFLOW_CALC_DRIVER_TESTING_IMPL_H_

#include "base/hash.h"
#include "base/pool.h"
#include "base/testing.h"
#include "device/device.h"

#define CALC_QUEUE_MAX    8192
#define CALC_ARGUMENT_MAX 2

typedef struct calc_buffer {
    tow_buffer_t base;
    uint32_t reference_count;
    tow_buffer_state_t state;
    uint64_t value;
    tow_status_t error; /* owned */
} calc_buffer_t;

/* f(a), f(a, b); `donates`: the first argument. `fails`: when it runs. */
typedef struct calc_function {
    tow_executable_t base;
    uint64_t number;
    bool donates, fails;
    int reference_count;
    tow_alias_t alias;
} calc_function_t;

typedef struct calc_job {
    tow_run_t *run;
    const calc_function_t *function;
    calc_buffer_t *arguments[CALC_ARGUMENT_MAX];
    size_t argument_count;
    bool donates; /* its first argument, now */
    calc_buffer_t *result;
} calc_job_t;

typedef struct calc_driver {
    tow_driver_t base;
    tow_device_info_t device;
    tow_array_info_t arrays[CALC_ARGUMENT_MAX];
    tow_pool_t buffers;
    calc_job_t queue[CALC_QUEUE_MAX];
    size_t first, end;    /* of the queue */
    uint64_t last_gang;   /* gangs must ascend */
    size_t donated_count; /* in total */
} calc_driver_t;

static inline uint64_t calc_value(uint64_t number, const uint64_t *values,
                                  size_t count)
{
    uint64_t value = tow_mix64(number);
    for (size_t i = 0; i < count; i++)
        value = tow_mix64(value ^ (values[i] + i));
    return value;
}

static inline calc_buffer_t *calc_buffer_make(calc_driver_t *calc)
{
    calc_buffer_t *buffer = tow_pool_take(&calc->buffers);
    if (buffer == NULL) return NULL;
    *buffer = (calc_buffer_t){.base = {.driver = &calc->base,
                                       .bytes = 8,
                                       .shape = calc->arrays[0].shape},
                              .reference_count = 1};
    return buffer;
}

static inline tow_buffer_state_t calc_state(tow_buffer_t *buffer)
{
    return ((calc_buffer_t *)buffer)->state;
}

static inline void calc_retain(tow_buffer_t *buffer)
{
    assert_true(((calc_buffer_t *)buffer)->reference_count++ > 0);
}

static inline void calc_release(tow_buffer_t *buffer)
{
    calc_buffer_t *it = (calc_buffer_t *)buffer;
    assert_true(it->reference_count > 0);
    if (--it->reference_count > 0) return;
    assert_int_equal(buffer->shelf_count_, 0);
    tow_status_release(it->error);
    tow_pool_give(&((calc_driver_t *)buffer->driver)->buffers, it);
}

static inline void calc_function_retain(tow_executable_t *executable)
{
    ((calc_function_t *)executable)->reference_count++;
}

static inline void calc_function_release(tow_executable_t *executable)
{
    ((calc_function_t *)executable)->reference_count--;
}

static inline tow_status_t calc_run(tow_driver_t *driver, tow_run_t *run)
{
    calc_driver_t *calc = (calc_driver_t *)driver;
    const calc_function_t *function = (calc_function_t *)run->executable;
    calc_job_t *job = &calc->queue[calc->end];
    *job = (calc_job_t){.run = run, .function = function};
    job->result = calc_buffer_make(calc);
    if (job->result == NULL) return tow_status_bare(TOW_RESOURCE_EXHAUSTED);
    assert_true(run->gang_id > calc->last_gang);
    calc->last_gang = run->gang_id;
    job->argument_count = run->argument_count;
    for (size_t i = 0; i < run->argument_count; i++) {
        job->arguments[i] = (calc_buffer_t *)run->arguments[i];
        assert_int_not_equal(job->arguments[i]->state, TOW_BUFFER_DONATED);
        calc_retain(run->arguments[i]);
    }
    const bool is_kept = run->non_donatable_argument_count > 0 &&
                         run->non_donatable_arguments[0] == 0;
    job->donates = function->donates && !is_kept;
    if (job->donates) {
        job->arguments[0]->state = TOW_BUFFER_DONATED;
        calc->donated_count++;
    }
    run->results[0] = &job->result->base;
    job->result->reference_count++;
    calc->end++;
    assert_true(calc->end < CALC_QUEUE_MAX);
    return TOW_OK;
}

static inline tow_status_t calc_finish(const calc_job_t *job)
{
    uint64_t values[CALC_ARGUMENT_MAX];
    for (size_t i = 0; i < job->argument_count; i++) {
        if (job->arguments[i]->error != TOW_OK)
            return tow_status_retain(job->arguments[i]->error);
        values[i] = job->arguments[i]->value;
    }
    if (job->function->fails) return TOW_ERROR(TOW_ABORTED, "it fails");
    job->result->value =
        calc_value(job->function->number, values, job->argument_count);
    return TOW_OK;
}

/* Device time of each computation. */
#define CALC_BUSY_NS 10
#define CALC_WAIT_NS 1

/* Runs the first computations of the queue; returns how many. */
static inline size_t calc_advance(calc_driver_t *calc, size_t count)
{
    size_t done = 0;
    for (; done < count && calc->first < calc->end; done++) {
        const calc_job_t job = calc->queue[calc->first++];
        tow_status_t status = calc_finish(&job);
        job.result->error = tow_status_retain(status);
        if (job.result->state != TOW_BUFFER_DONATED)
            job.result->state =
                status == TOW_OK ? TOW_BUFFER_READY : TOW_BUFFER_FAILED;
        if (job.donates) job.arguments[0]->value = UINT64_MAX;
        for (size_t i = 0; i < job.argument_count; i++)
            calc_release(&job.arguments[i]->base);
        calc_release(&job.result->base);
        tow_device_time_add(&job.run->time, CALC_BUSY_NS, CALC_WAIT_NS);
        job.run->done(job.run, status);
    }
    if (calc->first == calc->end) calc->first = calc->end = 0;
    return done;
}

static inline void calc_advance_all(calc_driver_t *calc)
{
    while (calc_advance(calc, CALC_QUEUE_MAX) > 0) {
    }
}

static const tow_driver_ops_t calc_ops = {
    .buffer_state = calc_state,
    .buffer_retain = calc_retain,
    .buffer_release = calc_release,
    .executable_retain = calc_function_retain,
    .executable_release = calc_function_release,
    .run = calc_run,
};

static inline void calc_open(calc_driver_t *calc, tow_env_t *env)
{
    *calc = (calc_driver_t){0};
    calc->device = (tow_device_info_t){.kind = "calc", .name = "calc"};
    calc->base = (tow_driver_t){.ops = &calc_ops,
                                .env = env,
                                .name = "calc",
                                .devices = &calc->device,
                                .device_count = 1};
    for (size_t i = 0; i < CALC_ARGUMENT_MAX; i++)
        calc->arrays[i] =
            (tow_array_info_t){.shape = {.type = TOW_TYPE_U64}, .bytes = 8};
    tow_pool_init(&calc->buffers, sizeof(calc_buffer_t), 0);
}

static inline void calc_close(calc_driver_t *calc)
{
    assert_int_equal(calc->first, calc->end);
    assert_int_equal(calc->buffers.taken_count, 0);
    tow_pool_deinit(&calc->buffers);
}

static inline void calc_function_init(calc_function_t *function,
                                      calc_driver_t *calc, uint64_t number,
                                      size_t argument_count, bool donates)
{
    static const size_t first_device[] = {0};
    *function = (calc_function_t){
        .number = number, .donates = donates, .reference_count = 1};
    function->base = (tow_executable_t){
        .driver = &calc->base,
        .signature = {.name = "calc",
                      .replica_count = 1,
                      .partition_count = 1,
                      .argument_count = argument_count,
                      .arguments = calc->arrays,
                      .result_count = 1,
                      .results = calc->arrays,
                      .aliases = donates ? &function->alias : NULL,
                      .alias_count = donates ? 1 : 0},
        .local_devices = first_device,
        .local_device_count = 1,
    };
}

#endif /* TOW_DATAFLOW_CALC_DRIVER_TESTING_IMPL_H_ */
