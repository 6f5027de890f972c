/* The direct compiler on the simulated device, whose programs are ours. */
#include "fixture.h"
#include "subject.h"

#include "device/compiler/direct.h"
#include "device/sim/sim_device.h"

const subject_t subject = {
    .format = TOW_PROGRAM_COST,
    .device_kind = "TPU v4",
    .program = "towpath-cost 1\nname add\nargument f32[4]\nargument f32[4]\n"
               "result f32[4]\nduration 1000\n",
    .malformed = "towpath-cost 1\nname x\nhope 4\n",
    .complaint = "hope",
};

static tow_driver_t *driver;
static bool is_closed;

tow_compiler_t *subject_open(size_t queue_count_max)
{
    tow_sim_model_t model;
    tow_compiler_t *compiler = NULL;
    expect_ok(tow_sim_model_find("tpu_v4", &model));
    const tow_sim_device_options_t devices = {.model = &model,
                                              .device_count = 1};
    expect_ok(tow_sim_device_driver_create(fixture_env(), &devices, &driver));
    const tow_direct_compiler_options_t options = {.queue_count_max =
                                                       queue_count_max};
    expect_ok(tow_direct_compiler_create(driver, &options, &compiler));
    return compiler;
}

static void closed(void *context)
{
    (void)context;
    is_closed = true;
}

void subject_close(void)
{
    is_closed = false;
    tow_driver_close(driver, (tow_closed_t){.run = closed});
    FIXTURE_UNTIL(is_closed);
}
