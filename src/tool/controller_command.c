/* `tow controller`: the process that clients and workers connect to. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "controller/controller.h"
#include "device/compiler/child.h"
#include "device/compiler/direct.h"
#include "device/sim/sim_device.h"
#include "device/xla_cpu/xla_cpu.h"
#include "env/tuning.h"
#include "tool/command.h"
#include "tool/local.h"
#include "tool/role.h"
#include "wire/message.h"

#define PATH_SIZE 4096
#define NAME      "controller"

typedef struct controller_arguments {
    const char *address;
    const char *keys;
    const char *plugin;
    const char *model;
    uint64_t compiler_count;           /* 0: the default */
    uint64_t relay_above, relay_group; /* 0: the defaults */
    uint64_t ready_fd;
    uint64_t spin_us;     /* 0: the default */
    uint64_t launcher_fd; /* 0: none */
    bool keeps_compiled;
} controller_arguments_t;

typedef struct controller_process {
    tow_role_t role;
    tow_driver_t *driver;     /* owned; for a direct compiler */
    tow_compiler_t *compiler; /* owned */
    tow_code_cache_t *cache;  /* owned; NULL: none */
    tow_controller_t *controller;
} controller_process_t;

enum {
    OPTION_KEYS = 256,
    OPTION_READY_FD,
    OPTION_COMPILERS,
    OPTION_RELAY_ABOVE,
    OPTION_RELAY_GROUP,
    OPTION_LAUNCHER_FD,
    OPTION_COMPILE_CACHE,
    OPTION_SPIN,
};

static error_t parse(int key, char *argument, struct argp_state *state)
{
    controller_arguments_t *a = state->input;
    switch (key) {
    case 'l': a->address = argument; return 0;
    case 'p': a->plugin = argument; return 0;
    case 's': a->model = argument; return 0;
    case OPTION_KEYS: a->keys = argument; return 0;
    case OPTION_COMPILE_CACHE: a->keeps_compiled = true; return 0;
    case OPTION_COMPILERS:
        a->compiler_count =
            tow_command_number(state, "compilers", argument, 1, 256);
        return 0;
    case OPTION_RELAY_ABOVE:
        a->relay_above =
            tow_command_number(state, "relay-above", argument, 1, UINT32_MAX);
        return 0;
    case OPTION_RELAY_GROUP:
        a->relay_group = tow_command_number(state, "relay-group", argument, 1,
                                            TOW_RELAY_FANOUT_MAX);
        return 0;
    case OPTION_LAUNCHER_FD:
        a->launcher_fd =
            tow_command_number(state, "launcher-fd", argument, 3, 1 << 20);
        return 0;
    case OPTION_SPIN:
        a->spin_us = tow_command_number(state, "spin", argument, 1, 10000);
        return 0;
    case OPTION_READY_FD:
        a->ready_fd =
            tow_command_number(state, "ready-fd", argument, 0, 1 << 20);
        return 0;
    case ARGP_KEY_ARG:
        argp_error(state, "unexpected word '%s'", argument);
        return EINVAL;
    case ARGP_KEY_END:
        if (a->address == NULL)
            argp_error(state, "--listen is missing: unix:PATH, "
                              "tcp:127.0.0.1:PORT or tls:HOST:PORT");
        if (a->plugin != NULL && a->model != NULL)
            argp_error(state, "--plugin and --simulated are two answers to "
                              "one question");
        return 0;
    default: return ARGP_ERR_UNKNOWN;
    }
}

/* -- The compiler ------------------------------------------------------------- */

/* One simulated device knows how to compile for any number of them. */
static tow_status_t open_direct(controller_process_t *process,
                                const char *model_name)
{
    tow_sim_model_t model;
    TOW_RETURN_IF_ERROR(tow_sim_model_find(model_name, &model));
    const tow_sim_device_options_t device = {.model = &model,
                                             .device_count = 1};
    TOW_RETURN_IF_ERROR(tow_sim_device_driver_create(
        tow_net_env(process->role.net), &device, &process->driver));
    const tow_direct_compiler_options_t options = {0};
    return tow_direct_compiler_create(process->driver, &options,
                                      &process->compiler);
}

#if TOW_HAS_PJRT

/* What it cannot have it does without, and says so: compiling is what counts. */
static void open_cache(controller_process_t *process, const char *adapter)
{
    char folder[PATH_SIZE];
    if (!tow_code_cache_folder(folder, sizeof(folder))) return;
    const tow_code_cache_options_t options = {.folder = folder,
                                              .plugin = adapter};
    tow_status_t status = tow_code_cache_open(&options, &process->cache);
    if (status == TOW_OK) return;
    tow_log(&tow_net_env(process->role.net)->log, TOW_LOG_WARN,
            "no compile cache", TOW_F_STATUS("cause", status));
    tow_status_release(status);
}

static tow_status_t open_child(controller_process_t *process,
                               const controller_arguments_t *a)
{
    char program[PATH_SIZE], adapter[PATH_SIZE];
    TOW_RETURN_IF_ERROR(tow_child_compiler_find(program, sizeof(program)));
    if (a->plugin == NULL)
        TOW_RETURN_IF_ERROR(tow_local_find_adapter(adapter, sizeof(adapter)));
    if (a->plugin == NULL && a->keeps_compiled) open_cache(process, adapter);
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
        .cache = process->cache};
    return tow_child_compiler_create(tow_net_env(process->role.net), &options,
                                     &process->compiler);
}

#else

static tow_status_t open_child(controller_process_t *process,
                               const controller_arguments_t *a)
{
    (void)process, (void)a;
    return TOW_ERROR(TOW_UNIMPLEMENTED,
                     "this program was built without the PJRT header, which "
                     "`make setup` brings; --simulated MODEL works");
}

#endif

/* -- Life --------------------------------------------------------------------- */

static tow_status_t open_all(controller_process_t *process,
                             const controller_arguments_t *a)
{
    const tow_role_options_t role = {.name = NAME,
                                     .keys = a->keys,
                                     .address = a->address,
                                     .spin_ns =
                                         (int64_t)a->spin_us * TOW_NS_PER_US};
    TOW_RETURN_IF_ERROR(tow_role_open(&process->role, &role));
    TOW_RETURN_IF_ERROR(a->model != NULL ? open_direct(process, a->model)
                                         : open_child(process, a));
    const tow_controller_options_t options = {
        .address = a->address,
        .compiler = process->compiler,
        .relay_above = (uint32_t)a->relay_above,
        .relay_fanout = (uint32_t)a->relay_group};
    return tow_controller_open(tow_net_env(process->role.net), &options,
                               &process->controller);
}

static void close_all(controller_process_t *process)
{
    bool is_done = false;
    const tow_closed_t closed = {tow_role_set_done, &is_done};
    if (process->controller != NULL) {
        tow_controller_close(process->controller, closed);
        tow_role_await(&process->role, &is_done);
    }
    if (process->compiler != NULL) {
        is_done = false;
        tow_compiler_close(process->compiler, closed);
        tow_role_await(&process->role, &is_done);
    }
    tow_code_cache_close(process->cache);
    if (process->driver != NULL) {
        is_done = false;
        tow_driver_close(process->driver, closed);
        tow_role_await(&process->role, &is_done);
    }
    tow_role_close(&process->role);
}

static tow_status_t perform(const controller_arguments_t *a)
{
    controller_process_t process = {0};
    tow_status_t status = open_all(&process, a);
    if (status == TOW_OK) {
        tow_role_say_ready((int)a->ready_fd,
                           tow_controller_address(process.controller));
        tow_role_run(&process.role);
    }
    close_all(&process);
    return status;
}

int tow_command_controller(int argc, char **argv)
{
    static const struct argp_option table[] = {
        {"listen", 'l', "ADDRESS", 0,
         "Where clients and workers connect: unix:PATH, tcp:127.0.0.1:PORT or "
         "tls:HOST:PORT; port 0 takes a free one",
         0},
        {"plugin", 'p', "PATH", 0,
         "Compile with this PJRT plugin (default: XLA on the CPU)", 0},
        {"simulated", 's', "MODEL", 0,
         "The devices are simulated: tpu_v3, tpu_v4, ...", 0},
        {"compilers", OPTION_COMPILERS, "N", 0,
         "Compile at most N programs at a time, each in a process of its own",
         0},
        {"relay-above", OPTION_RELAY_ABOVE, "N", 0,
         "Grant runs on more than N workers through some of them (128)", 0},
        {"relay-group", OPTION_RELAY_GROUP, "N", 0,
         "... each for N with itself (16); 1: never", 0},
        {"keys", OPTION_KEYS, "FOLDER", 0,
         "Token and certificates, as `tow keys` makes them", 0},
        {"ready-fd", OPTION_READY_FD, "N", 0,
         "Say the address on this descriptor (1)", 0},
        {"compile-cache", OPTION_COMPILE_CACHE, 0, 0,
         "Keep compiled programs in the user's cache folder, and use those "
         "that are there (TOW_COMPILE_CACHE names another; off: do not)",
         0},
        {"spin", OPTION_SPIN, "US", 0,
         "Look for messages so many microseconds before sleeping (50)", 0},
        {"launcher-fd", OPTION_LAUNCHER_FD, "N", 0,
         "A socket of `tow up`, which forks compilers that have XLA loaded", 0},
        {0},
    };
    static const struct argp argp = {
        .options = table,
        .parser = parse,
        .doc = "Runs the controller of a cluster until it is told to end "
               "(SIGTERM, SIGINT). Says its address in one line when it is "
               "ready. `tow up` starts one, with workers, on this host.",
    };
    controller_arguments_t arguments = {.ready_fd = STDOUT_FILENO};
    int usage = tow_command_parse(&argp, argc, argv, &arguments);
    if (usage != 0) return usage;
    return tow_command_finish("controller", perform(&arguments));
}
