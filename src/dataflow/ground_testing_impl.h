/* What tests of the executor stand on: simulated devices in a simulated world,
 * computations for them, and programs that come as they do over the wire. */
#ifndef TOW_DATAFLOW_GROUND_TESTING_IMPL_H_
#define TOW_DATAFLOW_GROUND_TESTING_IMPL_H_

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

typedef struct ground {
    tow_sim_t *sim;
    tow_env_t *env;
    tow_driver_t *driver;
    tow_executable_t *compiled; /* the last */
} ground_t;

static inline void must(tow_status_t status)
{
    if (status != TOW_OK) fail_msg("%s", tow_status_message(status));
}

static inline void ground_run_idle(ground_t *ground)
{
    must(tow_sim_run(ground->sim, &(tow_sim_run_options_t){0}));
}

/* A world without devices. */
static inline void ground_open_bare(ground_t *ground)
{
    tow_sim_options_t options = {.seed = 1, .log.level = TOW_LOG_OFF};
    tow_sim_node_t *node;
    *ground = (ground_t){0};
    must(tow_sim_create(&options, &ground->sim));
    must(tow_sim_node_create(
        ground->sim, &(tow_sim_node_options_t){.name = "worker"}, &node));
    ground->env = tow_sim_node_env(node);
}

/* 0 bytes: as many as the model has. */
static inline void ground_open(ground_t *ground, uint64_t memory_bytes)
{
    tow_sim_model_t model;
    ground_open_bare(ground);
    must(tow_sim_model_find("tpu_v4", &model));
    must(tow_sim_device_driver_create(
        ground->env,
        &(tow_sim_device_options_t){.model = &model,
                                    .device_count = DEVICES,
                                    .memory_bytes = memory_bytes},
        &ground->driver));
}

/* All that devices gave has been given back. */
static inline void ground_close(ground_t *ground)
{
    assert_int_equal(tow_sim_device_counts(ground->driver).buffers, 0);
    assert_int_equal(tow_sim_device_counts(ground->driver).executables, 0);
    tow_driver_close(ground->driver, (tow_closed_t){0});
    ground_run_idle(ground);
    tow_sim_destroy(ground->sim);
}

typedef struct ground_compile {
    tow_compile_t compile;
    ground_t *ground;
} ground_compile_t;

static inline void ground_on_compiled(tow_compile_t *compile,
                                      tow_status_t take_status,
                                      tow_executable_t *take_executable)
{
    must(take_status);
    TOW_CONTAINER_OF(compile, ground_compile_t, compile)->ground->compiled =
        take_executable;
}

/* On all devices, for the executor, which takes it. */
static inline void ground_add_executable(ground_t *ground,
                                         tow_dataflow_t *dataflow, uint64_t key,
                                         const char *text)
{
    ground_compile_t compiling = {.ground = ground};
    int64_t ids[DEVICES];
    uint8_t bytes[256];
    for (int i = 0; i < DEVICES; i++)
        ids[i] = ground->driver->devices[i].id;
    const tow_compile_options_t options = {
        .assignment = {.replica_count = DEVICES, .device_ids = ids}};
    compiling.compile = (tow_compile_t){
        .format = TOW_PROGRAM_COST,
        .program = {text, strlen(text)},
        .options = {bytes, tow_compile_options_pack(&options, bytes)},
        .done = ground_on_compiled,
    };
    must(tow_driver_compile(ground->driver, &compiling.compile));
    ground_run_idle(ground);
    must(tow_dataflow_add_executable(dataflow, key, ground->compiled));
}

/* A program goes the way that it comes over the wire. */
static inline void ground_add_program(tow_dataflow_t *dataflow, uint64_t key,
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

#endif /* TOW_DATAFLOW_GROUND_TESTING_IMPL_H_ */
