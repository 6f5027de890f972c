/* A fixture of simulated hosts with simulated devices, for the driver's
 * tests. */
#ifndef TOW_DEVICE_SIM_DEVICE_TESTING_IMPL_H_
#define TOW_DEVICE_SIM_DEVICE_TESTING_IMPL_H_

#include "base/testing.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "device/options.h"
#include "device/sim/sim_device.h"
#include "env/sim/sim.h"

/* Round numbers: a byte or a flop takes a nanosecond everywhere. */
static const char toy_models[] =
    "model,property,value,source\n"
    "toy,kind,toy,\"test\"\n"
    "toy,memory_bytes,1000000,\"test\"\n"
    "toy,memory_bytes_per_second,1000000000,\"test\"\n"
    "toy,flops_per_second.f32,1000000000,\"test\"\n"
    "toy,link_bytes_per_second,1000000000,\"test\"\n"
    "toy,link_latency_ns,100,\"test\"\n"
    "toy,host_bytes_per_second,1000000000,\"test\"\n"
    "toy,host_latency_ns,10,\"test\"\n"
    "toy,launch_ns,5,\"test\"\n";

static inline void must(tow_status_t status)
{
    if (status != TOW_OK) fail_msg("%s", tow_status_message(status));
}

/* Checks and releases an error. */
static inline void expect_error(tow_status_t status, tow_code_t code,
                                const char *words)
{
    assert_int_equal(tow_status_code(status), code);
    if (strstr(tow_status_message(status), words) == NULL)
        fail_msg("\"%s\" is not in: %s", words, tow_status_message(status));
    tow_status_release(status);
}

static inline tow_sim_model_t toy_model(void)
{
    tow_sim_model_t model;
    must(tow_sim_model_parse(toy_models, strlen(toy_models), "toy models",
                             "toy", &model));
    return model;
}

/* -- The fixture ------------------------------------------------------------- */

#define HOST_COUNT_MAX 6

typedef struct host {
    tow_sim_node_t *node;
    tow_driver_t *driver; /* NULL when dead */
    tow_sim_device_options_t options;
} host_t;

typedef struct fixture {
    tow_sim_t *sim;
    tow_sim_fabric_t *fabric;
    tow_sim_model_t model;
    host_t hosts[HOST_COUNT_MAX];
    size_t host_count;
    int deadlock_count;
    char deadlock[1024];
} fixture_t;

static inline tow_status_t host_start(tow_env_t *env, void *argument,
                                      void **out_machine)
{
    host_t *host = argument;
    *out_machine = host;
    return tow_sim_device_driver_create(env, &host->options, &host->driver);
}

static inline void host_destroy(void *machine)
{
    host_t *host = machine;
    tow_sim_device_driver_crash(host->driver);
    host->driver = NULL;
}

static const tow_sim_program_t host_program = {.start = host_start,
                                               .destroy = host_destroy};

static inline void note_deadlock(void *context, tow_status_t status)
{
    fixture_t *fixture = context;
    fixture->deadlock_count++;
    snprintf(fixture->deadlock, sizeof(fixture->deadlock), "%s",
             tow_status_message(status));
}

static inline void run_idle(fixture_t *fixture)
{
    must(tow_sim_run(fixture->sim, &(tow_sim_run_options_t){0}));
}

static inline void run_until(fixture_t *fixture, int64_t time_ns)
{
    must(tow_sim_run(fixture->sim,
                     &(tow_sim_run_options_t){.until_ns = time_ns}));
}

typedef struct fixture_options {
    size_t host_count;
    size_t device_count; /* of each host */
    uint64_t seed;
    uint32_t jitter_ppm;
} fixture_options_t;

/* Host h has the devices from h * device_count on. */
static inline void fixture_open(fixture_t *fixture, fixture_options_t options)
{
    *fixture =
        (fixture_t){.host_count = options.host_count, .model = toy_model()};
    must(tow_sim_create(
        &(tow_sim_options_t){.seed = options.seed, .log.level = TOW_LOG_OFF},
        &fixture->sim));
    must(tow_sim_fabric_create(
        &(tow_sim_fabric_options_t){.deadlock = note_deadlock,
                                    .context = fixture},
        &fixture->fabric));
    for (size_t i = 0; i < options.host_count; i++) {
        char name[16];
        host_t *host = &fixture->hosts[i];
        snprintf(name, sizeof(name), "host%zu", i);
        host->options = (tow_sim_device_options_t){
            .model = &fixture->model,
            .device_count = options.device_count,
            .first_id = (int64_t)(i * options.device_count),
            .fabric = fixture->fabric,
            .jitter_ppm = options.jitter_ppm,
        };
        must(tow_sim_node_create(
            fixture->sim,
            &(tow_sim_node_options_t){
                .name = name, .program = &host_program, .argument = host},
            &host->node));
    }
    run_idle(fixture);
}

static inline void fixture_close(fixture_t *fixture)
{
    tow_sim_destroy(fixture->sim);
    tow_sim_fabric_destroy(fixture->fabric);
}

static inline tow_driver_t *driver_at(fixture_t *fixture, size_t host)
{
    return fixture->hosts[host].driver;
}

/* -- Compile options ------------------------------------------------------- */

typedef struct options_bytes {
    uint8_t bytes[256];
    size_t size;
} options_bytes_t;

/* Replicas on these devices. */
static inline options_bytes_t assign_to(const int64_t *ids, size_t count)
{
    const tow_compile_options_t options = {
        .assignment = {.replica_count = count, .device_ids = ids}};
    options_bytes_t packed;
    assert_true(tow_compile_options_size(&options) <= sizeof(packed.bytes));
    packed.size = tow_compile_options_pack(&options, packed.bytes);
    return packed;
}

/* -- Operations ------------------------------------------------------------ */

typedef struct compiled {
    tow_compile_t compile;
    tow_executable_t *executable;
    tow_status_t status;
    bool is_done;
} compiled_t;

static inline void compile_done(tow_compile_t *compile,
                                tow_status_t take_status,
                                tow_executable_t *take_executable)
{
    compiled_t *compiled = TOW_CONTAINER_OF(compile, compiled_t, compile);
    assert_false(compiled->is_done);
    compiled->is_done = true;
    compiled->status = take_status;
    compiled->executable = take_executable;
}

static inline bool compile_is_done(void *context)
{
    const compiled_t *compiled = context;
    return compiled->is_done;
}

/* The outcome of a compile; the status is the caller's. */
static inline tow_status_t try_compile(fixture_t *fixture, size_t host,
                                       const char *text,
                                       const options_bytes_t *options,
                                       tow_executable_t **out_executable)
{
    compiled_t compiled = {
        .compile = {.format = TOW_PROGRAM_COST,
                    .program = {text, strlen(text)},
                    .done = compile_done},
    };
    if (options != NULL)
        compiled.compile.options = (tow_bytes_t){options->bytes, options->size};
    must(tow_driver_compile(driver_at(fixture, host), &compiled.compile));
    assert_false(compiled.is_done);
    must(tow_sim_run(fixture->sim,
                     &(tow_sim_run_options_t){.until = compile_is_done,
                                              .context = &compiled}));
    assert_int_equal(compiled.status == TOW_OK, compiled.executable != NULL);
    *out_executable = compiled.executable;
    return compiled.status;
}

static inline tow_executable_t *compile_for(fixture_t *fixture, size_t host,
                                            const char *text,
                                            const int64_t *ids, size_t count)
{
    tow_executable_t *executable;
    options_bytes_t options = assign_to(ids, count);
    must(try_compile(fixture, host, text, &options, &executable));
    if (executable == NULL) abort(); /* for the analyzer: must() has looked */
    return executable;
}

#define RESULT_COUNT_MAX 8

/* A run and its outcome. */
typedef struct launch {
    tow_run_t run;
    tow_buffer_t *results[RESULT_COUNT_MAX];
    size_t result_count;
    tow_env_t *env;
    bool is_done;
    int64_t done_ns;
    tow_status_t status;
} launch_t;

static inline void launch_done(tow_run_t *run, tow_status_t take_status)
{
    launch_t *launch = TOW_CONTAINER_OF(run, launch_t, run);
    assert_false(launch->is_done);
    launch->is_done = true;
    launch->done_ns = tow_env_now_ns(launch->env);
    launch->status = take_status;
}

static inline tow_status_t try_launch(launch_t *launch,
                                      tow_executable_t *executable,
                                      uint64_t gang_id,
                                      tow_buffer_t *const *arguments,
                                      size_t argument_count)
{
    *launch = (launch_t){
        .run = {.executable = executable,
                .gang_id = gang_id,
                .arguments = arguments,
                .argument_count = argument_count,
                .done = launch_done},
        .env = executable->driver->env,
        .result_count =
            executable->signature.result_count * executable->local_device_count,
    };
    assert_true(launch->result_count <= RESULT_COUNT_MAX);
    launch->run.results = launch->results;
    return tow_driver_run(executable->driver, &launch->run);
}

static inline void launch_gang(launch_t *launch, tow_executable_t *executable,
                               uint64_t gang_id)
{
    must(try_launch(launch, executable, gang_id, NULL, 0));
}

static inline void launch_end(launch_t *launch)
{
    for (size_t i = 0; i < launch->result_count; i++)
        tow_buffer_release(launch->results[i]);
    tow_status_release(launch->status);
    launch->result_count = 0;
    launch->status = TOW_OK;
}

static inline void expect_done_at(const launch_t *launch, int64_t time_ns)
{
    assert_true(launch->is_done);
    must(launch->status);
    assert_int_equal(launch->done_ns, time_ns);
}

/* An upload or a download and its outcome. */
typedef struct movement {
    tow_upload_t upload;
    tow_download_t download;
    bool is_done;
    tow_status_t status;
} movement_t;

static inline void movement_end(movement_t *movement, tow_status_t take_status)
{
    assert_false(movement->is_done);
    movement->is_done = true;
    movement->status = take_status;
}

static inline void upload_done(tow_upload_t *upload, tow_status_t take_status)
{
    movement_end(TOW_CONTAINER_OF(upload, movement_t, upload), take_status);
}

static inline void download_done(tow_download_t *download,
                                 tow_status_t take_status)
{
    movement_end(TOW_CONTAINER_OF(download, movement_t, download), take_status);
}

static inline tow_shape_t bytes_shape(int64_t count)
{
    return (tow_shape_t){.type = TOW_TYPE_U8, .rank = 1, .dims = {count}};
}

static inline tow_status_t try_upload(tow_driver_t *driver, size_t device,
                                      const void *bytes, int64_t count,
                                      movement_t *movement)
{
    *movement = (movement_t){.upload = {.device = device,
                                        .shape = bytes_shape(count),
                                        .bytes = bytes,
                                        .done = upload_done}};
    return tow_driver_upload(driver, &movement->upload);
}

static inline tow_status_t try_download(tow_buffer_t *buffer, void *bytes,
                                        size_t size, movement_t *movement)
{
    *movement = (movement_t){.download = {.buffer = buffer,
                                          .bytes = bytes,
                                          .size = size,
                                          .done = download_done}};
    return tow_driver_download(buffer->driver, &movement->download);
}

/* Until it is ready. */
static inline tow_buffer_t *upload_now(fixture_t *fixture, size_t host,
                                       size_t device, const void *bytes,
                                       int64_t count)
{
    movement_t movement;
    must(try_upload(driver_at(fixture, host), device, bytes, count, &movement));
    run_idle(fixture);
    assert_true(movement.is_done);
    must(movement.status);
    assert_int_equal(tow_buffer_state(movement.upload.buffer),
                     TOW_BUFFER_READY);
    return movement.upload.buffer;
}

static inline void download_now(fixture_t *fixture, tow_buffer_t *buffer,
                                void *bytes, size_t size)
{
    movement_t movement;
    must(try_download(buffer, bytes, size, &movement));
    run_idle(fixture);
    assert_true(movement.is_done);
    must(movement.status);
}

static inline uint64_t bytes_in_use(fixture_t *fixture, size_t host,
                                    size_t device)
{
    tow_memory_stats_t stats;
    must(tow_driver_memory_stats(driver_at(fixture, host), device, &stats));
    return stats.bytes_in_use;
}

#endif /* TOW_DEVICE_SIM_DEVICE_TESTING_IMPL_H_ */
