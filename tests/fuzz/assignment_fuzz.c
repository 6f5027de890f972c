/* Input: untrusted compile options. A simulated driver refuses them, or returns
 * an executable with valid devices. */
#include "base/assert.h"
#include "device/sim/sim_device.h"
#include "env/sim/sim.h"
#include "fuzz.h"

static const char program[] = "towpath-cost 1\nname x\nbarrier\n";
#define DEVICE_COUNT 4

/* One driver for all inputs: creating it takes far longer than a compile. */
static tow_sim_t *sim;
static tow_driver_t *driver;
static bool is_done;

static void set_up(void)
{
    tow_sim_node_t *node = NULL;
    tow_sim_model_t model;
    const tow_sim_options_t options = {.log.level = TOW_LOG_OFF};
    TOW_ASSERT(tow_sim_create(&options, &sim) == TOW_OK);
    const tow_sim_node_options_t node_options = {.name = "host"};
    TOW_ASSERT(tow_sim_node_create(sim, &node_options, &node) == TOW_OK);
    TOW_ASSERT(tow_sim_model_find("cpu_core", &model) == TOW_OK);
    const tow_sim_device_options_t device_options = {
        .model = &model, .device_count = DEVICE_COUNT};
    TOW_ASSERT(tow_sim_device_driver_create(
                   tow_sim_node_env(node), &device_options, &driver) == TOW_OK);
}

static void check_devices(const tow_executable_t *executable)
{
    TOW_ASSERT(executable->local_device_count <= DEVICE_COUNT);
    for (size_t i = 0; i < executable->local_device_count; i++)
        TOW_ASSERT(executable->local_devices[i] < DEVICE_COUNT);
    TOW_ASSERT(executable->signature.replica_count > 0 &&
               executable->signature.partition_count > 0);
}

static void compile_done(tow_compile_t *compile, tow_status_t take_status,
                         tow_executable_t *take_executable)
{
    (void)compile;
    is_done = true;
    TOW_ASSERT((take_status == TOW_OK) == (take_executable != NULL));
    if (take_executable != NULL) check_devices(take_executable);
    tow_executable_release(take_executable);
    tow_status_release(take_status);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t count)
{
    tow_compile_t compile = {.format = TOW_PROGRAM_COST,
                             .program = {program, sizeof(program) - 1},
                             .options = {bytes, count},
                             .done = compile_done};
    if (driver == NULL) set_up();
    is_done = false;
    TOW_ASSERT(tow_driver_compile(driver, &compile) == TOW_OK);
    const tow_sim_run_options_t run = {0};
    TOW_ASSERT(tow_sim_run(sim, &run) == TOW_OK);
    TOW_ASSERT(is_done);
    return 0;
}
