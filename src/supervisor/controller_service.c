#include "supervisor/controller_service.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "device/compiler/child.h"
#include "device/compiler/direct.h"
#include "device/sim/sim_device.h"
#include "device/xla_cpu/xla_cpu.h"
#include "env/tuning.h"
#include "supervisor/adapter.h"

#define PATH_SIZE 4096

/* -- The compiler ------------------------------------------------------------- */

/* One simulated device compiles for any number of them. */
static tow_status_t open_direct(tow_controller_service_t *service,
                                tow_env_t *env, const char *model_name)
{
    tow_sim_model_t model;
    TOW_RETURN_IF_ERROR(tow_sim_model_find(model_name, &model));
    const tow_sim_device_options_t device = {.model = &model,
                                             .device_count = 1};
    TOW_RETURN_IF_ERROR(
        tow_sim_device_driver_create(env, &device, &service->driver));
    const tow_direct_compiler_options_t options = {0};
    return tow_direct_compiler_create(service->driver, &options,
                                      &service->compiler);
}

#if TOW_HAS_PJRT

/* A cache that cannot be opened is logged and left out: compiling still works. */
static void open_cache(tow_controller_service_t *service, tow_env_t *env,
                       const char *adapter)
{
    char folder[PATH_SIZE];
    if (!tow_code_cache_folder(folder, sizeof(folder))) return;
    const tow_code_cache_options_t options = {.folder = folder,
                                              .plugin = adapter};
    tow_status_t status = tow_code_cache_open(&options, &service->cache);
    if (status == TOW_OK) return;
    tow_log(&env->log, TOW_LOG_WARN, "no compile cache",
            TOW_F_STATUS("cause", status));
    tow_status_release(status);
}

static tow_status_t open_child(tow_controller_service_t *service,
                               tow_env_t *env,
                               const tow_controller_service_options_t *a)
{
    char program[PATH_SIZE], adapter[PATH_SIZE];
    TOW_RETURN_IF_ERROR(tow_child_compiler_find(program, sizeof(program)));
    if (a->plugin == NULL)
        TOW_RETURN_IF_ERROR(tow_adapter_find(adapter, sizeof(adapter)));
    if (a->plugin == NULL && a->use_compile_cache)
        open_cache(service, env, adapter);
    /* The adapter compiles for the devices of every process except its own
     * number, so the compiler gets a number that no worker has. */
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
        .fork_server_fd = (int)a->fork_server_fd,
        .cache = service->cache};
    return tow_child_compiler_create(env, &options, &service->compiler);
}

#else

static tow_status_t open_child(tow_controller_service_t *service,
                               tow_env_t *env,
                               const tow_controller_service_options_t *a)
{
    (void)service, (void)env, (void)a;
    return TOW_ERROR(TOW_UNIMPLEMENTED,
                     "this program was built without the PJRT header, which "
                     "`make setup` installs; --simulated MODEL works");
}

#endif

/* -- Opening and closing -------------------------------------------------------- */

static void stop_daemon(void *context)
{
    tow_daemon_t *daemon = context;
    tow_net_stop(daemon->net);
}

/* TOW_PIECES=off: every run is granted whole, to compare. */
static uint32_t piece_steps(void)
{
    const char *pieces = getenv("TOW_PIECES");
    return pieces != NULL && strcmp(pieces, "off") == 0 ? UINT32_MAX : 0;
}

tow_status_t tow_controller_service_open(
    tow_controller_service_t *service, tow_daemon_t *daemon,
    const tow_controller_service_options_t *options)
{
    tow_env_t *env = tow_net_env(daemon->net);
    *service = (tow_controller_service_t){0};
    TOW_RETURN_IF_ERROR(options->model != NULL
                            ? open_direct(service, env, options->model)
                            : open_child(service, env, options));
    const tow_controller_options_t controller = {
        .address = options->address,
        .compiler = service->compiler,
        .piece_steps = piece_steps(),
        .relay_above = (uint32_t)options->relay_above,
        .relay_fanout = (uint32_t)options->relay_group,
        .own_worker_count = (uint32_t)options->own_worker_count,
        .first_process = (uint32_t)options->first_process,
        .idle_timeout_ns = (int64_t)options->idle_timeout_s * TOW_NS_PER_S,
        .idle = stop_daemon,
        .context = daemon};
    return tow_controller_open(env, &controller, &service->controller);
}

void tow_controller_service_close(tow_controller_service_t *service,
                                  tow_daemon_t *daemon)
{
    bool is_done = false;
    const tow_closed_t closed = {tow_daemon_set_done, &is_done};
    if (service->controller != NULL) {
        tow_controller_close(service->controller, closed);
        tow_daemon_await(daemon, &is_done);
    }
    if (service->compiler != NULL) {
        is_done = false;
        tow_compiler_close(service->compiler, closed);
        tow_daemon_await(daemon, &is_done);
    }
    tow_code_cache_close(service->cache);
    if (service->driver != NULL) {
        is_done = false;
        tow_driver_close(service->driver, closed);
        tow_daemon_await(daemon, &is_done);
    }
}
