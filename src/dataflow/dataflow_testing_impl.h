/* The fixture of the executor's tests: simulated devices in a simulated env,
 * computations for them, and programs that are packed and unpacked as on the
 * wire. */
#ifndef TOW_DATAFLOW_DATAFLOW_TESTING_IMPL_H_
#define TOW_DATAFLOW_DATAFLOW_TESTING_IMPL_H_

#include "base/testing.h"

#include <string.h>

#include "base/alloc.h"
#include "dataflow/dataflow.h"
#include "device/options.h"
#include "device/sim/sim_device.h"
#include "env/sim/sim.h"

#define DEVICES 2

/* One argument, one result, an all-reduce: u8[16] -> u8[16]. */
#define ADD_TEXT                                  \
    "towpath-cost 1\nname add\nargument u8[16]\n" \
    "result u8[16]\nduration 100\nall_reduce 16\n"

typedef struct device_fixture {
    tow_sim_t *sim;
    tow_env_t *env;
    tow_driver_t *driver;
    tow_executable_t *compiled; /* the last */
} device_fixture_t;

static inline void must(tow_status_t status)
{
    if (status != TOW_OK) fail_msg("%s", tow_status_message(status));
}

static inline void device_fixture_run_idle(device_fixture_t *fixture)
{
    must(tow_sim_run(fixture->sim, &(tow_sim_run_options_t){0}));
}

/* A fixture without devices. */
static inline void device_fixture_open_bare(device_fixture_t *fixture)
{
    tow_sim_options_t options = {.seed = 1, .log.level = TOW_LOG_OFF};
    tow_sim_node_t *node;
    *fixture = (device_fixture_t){0};
    must(tow_sim_create(&options, &fixture->sim));
    must(tow_sim_node_create(
        fixture->sim, &(tow_sim_node_options_t){.name = "worker"}, &node));
    fixture->env = tow_sim_node_env(node);
}

/* 0 bytes: the memory of the model. */
static inline void device_fixture_open(device_fixture_t *fixture,
                                       uint64_t memory_bytes)
{
    tow_sim_model_t model;
    device_fixture_open_bare(fixture);
    must(tow_sim_model_find("tpu_v4", &model));
    must(tow_sim_device_driver_create(
        fixture->env,
        &(tow_sim_device_options_t){.model = &model,
                                    .device_count = DEVICES,
                                    .memory_bytes = memory_bytes},
        &fixture->driver));
}

/* All buffers of the devices have been released. */
static inline void device_fixture_close(device_fixture_t *fixture)
{
    assert_int_equal(tow_sim_device_counts(fixture->driver).buffers, 0);
    assert_int_equal(tow_sim_device_counts(fixture->driver).executables, 0);
    tow_driver_close(fixture->driver, (tow_closed_t){0});
    device_fixture_run_idle(fixture);
    tow_sim_destroy(fixture->sim);
}

typedef struct device_fixture_compile {
    tow_compile_t compile;
    device_fixture_t *fixture;
} device_fixture_compile_t;

static inline void device_fixture_on_compiled(tow_compile_t *compile,
                                              tow_status_t take_status,
                                              tow_executable_t *take_executable)
{
    must(take_status);
    TOW_CONTAINER_OF(compile, device_fixture_compile_t, compile)
        ->fixture->compiled = take_executable;
}

/* Compiles for `count` devices, and passes ownership to the executor. */
static inline void device_fixture_add_executable_on(
    device_fixture_t *fixture, tow_dataflow_t *dataflow, uint64_t key,
    const char *text, size_t first_device, size_t count)
{
    device_fixture_compile_t compiling = {.fixture = fixture};
    int64_t ids[DEVICES];
    uint8_t bytes[256];
    for (size_t i = 0; i < count; i++)
        ids[i] = fixture->driver->devices[first_device + i].id;
    const tow_compile_options_t options = {
        .assignment = {.replica_count = count, .device_ids = ids}};
    compiling.compile = (tow_compile_t){
        .format = TOW_PROGRAM_COST,
        .program = {text, strlen(text)},
        .options = {bytes, tow_compile_options_pack(&options, bytes)},
        .done = device_fixture_on_compiled,
    };
    must(tow_driver_compile(fixture->driver, &compiling.compile));
    device_fixture_run_idle(fixture);
    must(tow_dataflow_add_executable(dataflow, key, fixture->compiled));
}

/* The same, for all devices. */
static inline void device_fixture_add_executable(device_fixture_t *fixture,
                                                 tow_dataflow_t *dataflow,
                                                 uint64_t key, const char *text)
{
    device_fixture_add_executable_on(fixture, dataflow, key, text, 0, DEVICES);
}

/* Packs and unpacks a program as on the wire. */
static inline void device_fixture_add_program(tow_dataflow_t *dataflow,
                                              uint64_t key,
                                              const tow_lowered_t *lowered)
{
    void *bytes;
    size_t size;
    tow_lowered_t *unpacked;
    must(tow_lowered_pack(lowered, &bytes, &size));
    must(tow_lowered_unpack(bytes, size, &unpacked));
    tow_free(bytes);
    must(tow_dataflow_add_program(dataflow, key, unpacked));
}

#endif /* TOW_DATAFLOW_DATAFLOW_TESTING_IMPL_H_ */
