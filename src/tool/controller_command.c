/* `tow controller`: runs the controller of a cluster. */
#include <stdlib.h>
#include <unistd.h>

#include "env/tuning.h"
#include "supervisor/controller_service.h"
#include "supervisor/daemon.h"
#include "supervisor/log_environment.h"
#include "tool/command.h"
#include "wire/message.h"

typedef struct controller_arguments {
    tow_controller_service_options_t service;
    const char *keys;
    uint64_t ready_fd;
    uint64_t spin_us; /* 0: the default */
} controller_arguments_t;

enum {
    OPTION_KEYS = 256,
    OPTION_READY_FD,
    OPTION_COMPILERS,
    OPTION_RELAY_ABOVE,
    OPTION_RELAY_GROUP,
    OPTION_LAUNCHER_FD,
    OPTION_COMPILE_CACHE,
    OPTION_SPIN,
    OPTION_IDLE_TIMEOUT,
    OPTION_OWN_WORKERS,
    OPTION_FIRST_PROCESS,
};

static error_t parse(int key, char *argument, struct argp_state *state)
{
    controller_arguments_t *a = state->input;
    switch (key) {
    case 'l': a->service.address = argument; return 0;
    case 'p': a->service.plugin = argument; return 0;
    case 's': a->service.model = argument; return 0;
    case OPTION_KEYS: a->keys = argument; return 0;
    case OPTION_COMPILE_CACHE: a->service.use_compile_cache = true; return 0;
    case OPTION_COMPILERS:
        a->service.compiler_count =
            tow_command_number(state, "compilers", argument, 1, 256);
        return 0;
    case OPTION_RELAY_ABOVE:
        a->service.relay_above =
            tow_command_number(state, "relay-above", argument, 1, UINT32_MAX);
        return 0;
    case OPTION_RELAY_GROUP:
        a->service.relay_group = tow_command_number(
            state, "relay-group", argument, 1, TOW_RELAY_FANOUT_MAX);
        return 0;
    case OPTION_LAUNCHER_FD:
        a->service.fork_server_fd =
            tow_command_number(state, "launcher-fd", argument, 3, 1 << 20);
        return 0;
    case OPTION_SPIN:
        a->spin_us = tow_command_number(state, "spin", argument, 1, 10000);
        return 0;
    case OPTION_IDLE_TIMEOUT:
        a->service.idle_timeout_s =
            tow_command_number(state, "idle-timeout", argument, 1, UINT32_MAX);
        return 0;
    case OPTION_OWN_WORKERS:
        a->service.own_worker_count =
            tow_command_number(state, "own-workers", argument, 0, 1 << 16);
        return 0;
    case OPTION_FIRST_PROCESS:
        a->service.first_process =
            tow_command_number(state, "first-process", argument, 0, 1 << 19);
        return 0;
    case OPTION_READY_FD:
        a->ready_fd =
            tow_command_number(state, "ready-fd", argument, 0, 1 << 20);
        return 0;
    case ARGP_KEY_ARG:
        argp_error(state, "unexpected argument '%s'", argument);
        return EINVAL;
    case ARGP_KEY_END:
        if (a->service.address == NULL)
            argp_error(state, "--listen ADDRESS is missing: unix:PATH, "
                              "tcp:127.0.0.1:PORT or tls:HOST:PORT");
        if (a->service.plugin != NULL && a->service.model != NULL)
            argp_error(state, "--plugin and --simulated exclude each other");
        return 0;
    default: return ARGP_ERR_UNKNOWN;
    }
}

static tow_status_t perform(const controller_arguments_t *a)
{
    const tow_daemon_options_t options = {
        .name = "controller",
        .log = tow_log_from_environment("controller"),
        .keys = a->keys,
        .address = a->service.address,
        .spin_ns = (int64_t)a->spin_us * TOW_NS_PER_US};
    tow_daemon_t daemon;
    tow_controller_service_t service = {0};
    tow_status_t status = tow_daemon_open(&daemon, &options);
    if (status == TOW_OK)
        status = tow_controller_service_open(&service, &daemon, &a->service);
    if (status == TOW_OK) {
        tow_daemon_report_ready((int)a->ready_fd,
                                tow_controller_address(service.controller));
        tow_daemon_run(&daemon);
    }
    tow_controller_service_close(&service, &daemon);
    tow_daemon_close(&daemon);
    return status;
}

int tow_command_controller(int argc, char **argv)
{
    static const struct argp_option table[] = {
        {"listen", 'l', "ADDRESS", 0,
         "Address for clients and workers: unix:PATH, tcp:127.0.0.1:PORT or "
         "tls:HOST:PORT; port 0 chooses a free one",
         0},
        {"plugin", 'p', "PATH", 0,
         "PJRT plugin to compile with (default: XLA on the CPU)", 0},
        {"simulated", 's', "MODEL", 0,
         "Model of simulated devices: tpu_v3, tpu_v4, ...", 0},
        {"compilers", OPTION_COMPILERS, "N", 0,
         "Compile at most N programs at a time, each in its own process", 0},
        {"relay-above", OPTION_RELAY_ABOVE, "N", 0,
         "Send grants of runs on more than N workers through relays (128)", 0},
        {"relay-group", OPTION_RELAY_GROUP, "N", 0,
         "Workers per relay, itself included (16); 1: no relays", 0},
        {"keys", OPTION_KEYS, "FOLDER", 0,
         "Folder with token and certificate, as `tow keys` creates it", 0},
        {"ready-fd", OPTION_READY_FD, "N", 0,
         "When ready, write the address to this file descriptor (1)", 0},
        {"compile-cache", OPTION_COMPILE_CACHE, 0, 0,
         "Cache compiled programs in the user's cache folder "
         "(TOW_COMPILE_CACHE: another folder, or off)",
         0},
        {"spin", OPTION_SPIN, "US", 0,
         "Poll for messages for this many microseconds before sleeping (50)",
         0},
        {"idle-timeout", OPTION_IDLE_TIMEOUT, "SECONDS", 0,
         "Exit when there has been no client for this long (never)", 0},
        {"launcher-fd", OPTION_LAUNCHER_FD, "N", 0,
         "Socket to `tow up`, which forks compilers that have XLA loaded", 0},
        {"first-process", OPTION_FIRST_PROCESS, "P", 0,
         "Give workers numbers from P on (0): after a restart, numbers that "
         "workers of the controller before do not have",
         0},
        {"own-workers", OPTION_OWN_WORKERS, "N", 0,
         "The names worker-0, ... and the numbers below N are those of the "
         "workers that `tow up` starts",
         0},
        {0},
    };
    static const struct argp argp = {
        .options = table,
        .parser = parse,
        .doc = "Runs the controller of a cluster until SIGTERM or SIGINT. "
               "Writes its address in one line when it is ready. `tow up` "
               "starts a controller with workers on this host.",
    };
    controller_arguments_t arguments = {.ready_fd = STDOUT_FILENO};
    int usage = tow_command_parse(&argp, argc, argv, &arguments);
    if (usage != 0) return usage;
    return tow_command_finish("controller", perform(&arguments));
}
