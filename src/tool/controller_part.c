#include "tool/controller_part.h"

#include <stdio.h>

#include "device/compiler/child.h"
#include "device/compiler/direct.h"
#include "device/sim/sim_device.h"
#include "device/xla_cpu/xla_cpu.h"
#include "tool/local.h"

#define PATH_SIZE 4096

/* -- The compiler ------------------------------------------------------------- */

/* One simulated device knows how to compile for any number of them. */
static tow_status_t open_direct(tow_controller_part_t *part, tow_env_t *env,
                                const char *model_name)
{
    tow_sim_model_t model;
    TOW_RETURN_IF_ERROR(tow_sim_model_find(model_name, &model));
    const tow_sim_device_options_t device = {.model = &model,
                                             .device_count = 1};
    TOW_RETURN_IF_ERROR(
        tow_sim_device_driver_create(env, &device, &part->driver));
    const tow_direct_compiler_options_t options = {0};
    return tow_direct_compiler_create(part->driver, &options, &part->compiler);
}

#if TOW_HAS_PJRT

/* What it cannot have it does without, and says so: compiling is what counts. */
static void open_cache(tow_controller_part_t *part, tow_env_t *env,
                       const char *adapter)
{
    char folder[PATH_SIZE];
    if (!tow_code_cache_folder(folder, sizeof(folder))) return;
    const tow_code_cache_options_t options = {.folder = folder,
                                              .plugin = adapter};
    tow_status_t status = tow_code_cache_open(&options, &part->cache);
    if (status == TOW_OK) return;
    tow_log(&env->log, TOW_LOG_WARN, "no compile cache",
            TOW_F_STATUS("cause", status));
    tow_status_release(status);
}

static tow_status_t open_child(tow_controller_part_t *part, tow_env_t *env,
                               const tow_controller_part_options_t *a)
{
    char program[PATH_SIZE], adapter[PATH_SIZE];
    TOW_RETURN_IF_ERROR(tow_child_compiler_find(program, sizeof(program)));
    if (a->plugin == NULL)
        TOW_RETURN_IF_ERROR(tow_local_find_adapter(adapter, sizeof(adapter)));
    if (a->plugin == NULL && a->keeps_compiled) open_cache(part, env, adapter);
    /* The adapter compiles for devices of any process but those that it would
     * have itself and has not: it gets a number that no worker has. */
    const tow_pjrt_value_t process_id = {.name = "process_id",
                                         .type = TOW_PJRT_INT64,
                                         .int64 =
                                             TOW_XLA_PROCESS_COUNT_MAX - 1};
    const tow_child_compiler_options_t options = {
        .program = program,
        .plugin = a->plugin != NULL ? a->plugin : adapter,
        .values = &process_id,
        .value_count = a->plugin == NULL ? 1 : 0,
        .child_count_max = a->compiler_count,
        .launcher_fd = (int)a->launcher_fd,
        .cache = part->cache};
    return tow_child_compiler_create(env, &options, &part->compiler);
}

#else

static tow_status_t open_child(tow_controller_part_t *part, tow_env_t *env,
                               const tow_controller_part_options_t *a)
{
    (void)part, (void)env, (void)a;
    return TOW_ERROR(TOW_UNIMPLEMENTED,
                     "this program was built without the PJRT header, which "
                     "`make setup` brings; --simulated MODEL works");
}

#endif

/* -- Life --------------------------------------------------------------------- */

tow_status_t tow_controller_part_open(
    tow_controller_part_t *part, tow_role_t *role,
    const tow_controller_part_options_t *options)
{
    tow_env_t *env = tow_net_env(role->net);
    *part = (tow_controller_part_t){0};
    TOW_RETURN_IF_ERROR(options->model != NULL
                            ? open_direct(part, env, options->model)
                            : open_child(part, env, options));
    const tow_controller_options_t controller = {
        .address = options->address,
        .compiler = part->compiler,
        .relay_above = (uint32_t)options->relay_above,
        .relay_fanout = (uint32_t)options->relay_group};
    return tow_controller_open(env, &controller, &part->controller);
}

void tow_controller_part_close(tow_controller_part_t *part, tow_role_t *role)
{
    bool is_done = false;
    const tow_closed_t closed = {tow_role_set_done, &is_done};
    if (part->controller != NULL) {
        tow_controller_close(part->controller, closed);
        tow_role_await(role, &is_done);
    }
    if (part->compiler != NULL) {
        is_done = false;
        tow_compiler_close(part->compiler, closed);
        tow_role_await(role, &is_done);
    }
    tow_code_cache_close(part->cache);
    if (part->driver != NULL) {
        is_done = false;
        tow_driver_close(part->driver, closed);
        tow_role_await(role, &is_done);
    }
}
