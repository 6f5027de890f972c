/* The simulated device, in real time. It computes nothing. */
#include "device/sim/sim_device.h"

#include "fixture.h"

#define ADD_NS (2000 + 1000) /* launch_ns of the model, and its duration */

static const char add[] =
    "towpath-cost 1\nname add\nargument f32[4]\nargument f32[4]\n"
    "result f32[4]\nduration 1000\n";

static const char donate[] =
    "towpath-cost 1\nname donate\nargument f32[4]\nargument f32[4]\n"
    "result f32[4] alias 0\nduration 1000\n";

static const char large[] =
    "towpath-cost 1\nname large\nargument f32[65536]\nargument f32[65536]\n"
    "result f32[65536] alias 0\nduration 1000\n";

/* Its result does not fit. */
static const char fails[] =
    "towpath-cost 1\nname fails\nargument f32[4]\nresult f32[1000000,4]\n"
    "duration 1000\n";

static const char after[] =
    "towpath-cost 1\nname after\nargument f32[1000000,4]\nresult f32[4]\n"
    "duration 1000\n";

static const char minutes[] =
    "towpath-cost 1\nname minutes\nargument f32[4]\nresult f32[4]\n"
    "duration 600000000000\n";

static void open_sim(tow_env_t *env, size_t device_count, uint64_t memory_bytes)
{
    tow_sim_model_t model;
    tow_driver_t *driver = NULL;
    tow_status_t status = tow_sim_model_find("tpu_v4", &model);
    if (status == TOW_OK)
        status = tow_sim_device_driver_create(
            env,
            &(tow_sim_device_options_t){.model = &model,
                                        .device_count = device_count,
                                        .first_id = 2048,
                                        .memory_bytes = memory_bytes},
            &driver);
    fixture_opened(status, driver);
}

const subject_t subject = {
    .name = "sim",
    .format = TOW_PROGRAM_COST,
    .add_ns = ADD_NS,
    .programs = {[PROGRAM_ADD] = add,
                 [PROGRAM_DONATE] = donate,
                 [PROGRAM_LARGE] = large,
                 [PROGRAM_FAIL] = fails,
                 [PROGRAM_AFTER] = after,
                 [PROGRAM_LONG] = minutes,
                 [PROGRAM_MALFORMED] = "towpath-cost 1\nname x\nhope 4\n"},
    .open = open_sim,
};
