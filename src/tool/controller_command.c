/* `tow controller`: the process that clients and workers connect to. */
#include <stdlib.h>
#include <unistd.h>

#include "env/tuning.h"
#include "tool/command.h"
#include "tool/controller_part.h"
#include "tool/role.h"
#include "wire/message.h"

typedef struct controller_arguments {
    tow_controller_part_options_t part;
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
};

static error_t parse(int key, char *argument, struct argp_state *state)
{
    controller_arguments_t *a = state->input;
    switch (key) {
    case 'l': a->part.address = argument; return 0;
    case 'p': a->part.plugin = argument; return 0;
    case 's': a->part.model = argument; return 0;
    case OPTION_KEYS: a->keys = argument; return 0;
    case OPTION_COMPILE_CACHE: a->part.keeps_compiled = true; return 0;
    case OPTION_COMPILERS:
        a->part.compiler_count =
            tow_command_number(state, "compilers", argument, 1, 256);
        return 0;
    case OPTION_RELAY_ABOVE:
        a->part.relay_above =
            tow_command_number(state, "relay-above", argument, 1, UINT32_MAX);
        return 0;
    case OPTION_RELAY_GROUP:
        a->part.relay_group = tow_command_number(state, "relay-group", argument,
                                                 1, TOW_RELAY_FANOUT_MAX);
        return 0;
    case OPTION_LAUNCHER_FD:
        a->part.launcher_fd =
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
        if (a->part.address == NULL)
            argp_error(state, "--listen is missing: unix:PATH, "
                              "tcp:127.0.0.1:PORT or tls:HOST:PORT");
        if (a->part.plugin != NULL && a->part.model != NULL)
            argp_error(state, "--plugin and --simulated are two answers to "
                              "one question");
        return 0;
    default: return ARGP_ERR_UNKNOWN;
    }
}

static tow_status_t perform(const controller_arguments_t *a)
{
    const tow_role_options_t options = {.name = "controller",
                                        .keys = a->keys,
                                        .address = a->part.address,
                                        .spin_ns = (int64_t)a->spin_us *
                                                   TOW_NS_PER_US};
    tow_role_t role;
    tow_controller_part_t part = {0};
    tow_status_t status = tow_role_open(&role, &options);
    if (status == TOW_OK)
        status = tow_controller_part_open(&part, &role, &a->part);
    if (status == TOW_OK) {
        tow_role_say_ready((int)a->ready_fd,
                           tow_controller_address(part.controller));
        tow_role_run(&role);
    }
    tow_controller_part_close(&part, &role);
    tow_role_close(&role);
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
