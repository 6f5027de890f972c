/* The simulated driver, in real time: what a conformance test can see of it is
 * the same in virtual time. Its values are not sums, so none are compared. */
#include "device/sim/sim_device.h"

#include "world.h"

static void open_sim(tow_env_t *env, size_t device_count, uint64_t memory_bytes)
{
    tow_sim_model_t model;
    tow_driver_t *driver = NULL;
    tow_status_t status = tow_sim_model_find("cpu_core", &model);
    if (status == TOW_OK)
        status = tow_sim_device_driver_create(
            env,
            &(tow_sim_device_options_t){.model = &model,
                                        .device_count = device_count,
                                        .memory_bytes = memory_bytes},
            &driver);
    world_opened(status, driver);
}

#define HEAD "towpath-cost 1\nname test\nargument f32[4]\n"
#define WORK "compute flops 4 f32 bytes 48\n"

static const char add[] =
    HEAD "argument f32[4]\nresult f32[4]\n" WORK "barrier\n";
static const char donate[] =
    HEAD "argument f32[4]\nresult f32[4] alias 0\n" WORK;
/* More temporary memory than a small device has. */
static const char fails[] = HEAD "result f32[4]\ntemporary 2097152\n" WORK;
static const char after[] = HEAD "result f32[4]\n" WORK;
static const char malformed[] = HEAD "hope\n";

const subject_t subject = {
    .name = "sim",
    .format = TOW_PROGRAM_COST,
    .programs = {[PROGRAM_ADD] = add,
                 [PROGRAM_DONATE] = donate,
                 [PROGRAM_FAIL] = fails,
                 [PROGRAM_AFTER] = after,
                 [PROGRAM_MALFORMED] = malformed},
    .open = open_sim,
};
