/* `tow worker`: runs a worker of a cluster. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "device/xla_cpu/xla_cpu.h"
#include "supervisor/log_environment.h"
#include "supervisor/worker_service.h"
#include "tool/command.h"

enum {
    OPTION_KEYS = 256,
    OPTION_READY_FD,
    OPTION_HOST,
    OPTION_DATA,
    OPTION_DATA_TRUSTED,
    OPTION_DATA_STREAMS,
    OPTION_HOST_MEMORY,
    OPTION_LISTEN,
    OPTION_HOST_FUNCTIONS,
    OPTION_WITH_CONTROLLER,
    OPTION_COMPILE_CACHE,
    OPTION_LAUNCHER_FD,
    OPTION_IDLE_TIMEOUT,
    OPTION_ASSIGNED,
    OPTION_FOLLOW_FD,
};

static error_t parse_more(int key, char *argument, struct argp_state *state)
{
    tow_worker_service_options_t *a = state->input;
    switch (key) {
    case OPTION_KEYS: a->keys = argument; return 0;
    case OPTION_HOST: a->host = argument; return 0;
    case OPTION_DATA: a->data = argument; return 0;
    case OPTION_DATA_TRUSTED: a->data_trusted = argument; return 0;
    case OPTION_DATA_STREAMS: a->data_streams = argument; return 0;
    case OPTION_LISTEN: a->listen = argument; return 0;
    case OPTION_HOST_FUNCTIONS: a->host_functions = true; return 0;
    case OPTION_WITH_CONTROLLER: a->has_controller = true; return 0;
    case OPTION_COMPILE_CACHE: a->use_compile_cache = true; return 0;
    case OPTION_ASSIGNED: a->is_assigned = true; return 0;
    case OPTION_FOLLOW_FD:
        a->follow_fd =
            tow_command_number(state, "follow-fd", argument, 0, 1 << 20);
        return 0;
    case OPTION_LAUNCHER_FD:
        a->fork_server_fd =
            tow_command_number(state, "launcher-fd", argument, 3, 1 << 20);
        return 0;
    case OPTION_IDLE_TIMEOUT:
        a->idle_timeout_s =
            tow_command_number(state, "idle-timeout", argument, 1, UINT32_MAX);
        return 0;
    case OPTION_READY_FD:
        a->ready_fd =
            tow_command_number(state, "ready-fd", argument, 0, 1 << 20);
        return 0;
    case ARGP_KEY_ARG:
        argp_error(state, "unexpected argument '%s'", argument);
        return EINVAL;
    case ARGP_KEY_END:
        if (a->controller == NULL)
            argp_error(state, "--controller ADDRESS is missing");
        if (a->is_assigned && (a->name == NULL || !a->has_process))
            argp_error(state, "--assigned needs --name and --process");
        if (a->plugin != NULL && a->model != NULL)
            argp_error(state, "--plugin and --simulated exclude each other");
        if (!a->has_controller &&
            (a->use_compile_cache || a->fork_server_fd != 0 ||
             a->idle_timeout_s != 0))
            argp_error(state, "--compile-cache, --launcher-fd and "
                              "--idle-timeout need --with-controller");
        return 0;
    default: return ARGP_ERR_UNKNOWN;
    }
}

static error_t parse(int key, char *argument, struct argp_state *state)
{
    tow_worker_service_options_t *a = state->input;
    switch (key) {
    case 'c': a->controller = argument; return 0;
    case 'N': a->name = argument; return 0;
    case 'p': a->plugin = argument; return 0;
    case 's': a->model = argument; return 0;
    case 'i': a->island = argument; return 0;
    case 'n':
        a->device_count = tow_command_number(state, "devices", argument, 1,
                                             TOW_XLA_DEVICE_COUNT_MAX);
        return 0;
    case 'P':
        a->process = tow_command_number(state, "process", argument, 0,
                                        TOW_XLA_PROCESS_COUNT_MAX - 2);
        a->has_process = true;
        return 0;
    case 'm':
        a->memory_bytes =
            tow_command_number(state, "memory", argument, 1, INT64_MAX);
        return 0;
    case OPTION_HOST_MEMORY:
        a->host_bytes =
            tow_command_number(state, "host-memory", argument, 0, INT64_MAX);
        return 0;
    default: return parse_more(key, argument, state);
    }
}

/* After a restart of the controller, another worker may have got our name or
 * number. All state is lost already, so the process begins anew, with another
 * one: its devices have the number in their ids. */
static void begin_anew(const tow_worker_service_options_t *a,
                       tow_status_t status, int argc, char **argv)
{
    if (a->name != NULL || a->has_process || a->ready_fd > STDERR_FILENO)
        return;
    char **words = calloc((size_t)argc + 2, sizeof(*words));
    if (words == NULL) return;
    words[0] = "tow";
    words[1] = "worker";
    memcpy(words + 2, argv + 1, ((size_t)argc - 1) * sizeof(*words));
    fprintf(stderr, "tow worker: enrols again: %s\n",
            tow_status_message(status));
    execv("/proc/self/exe", words);
    free(words);
}

int tow_command_worker(int argc, char **argv)
{
    static const struct argp_option table[] = {
        {"controller", 'c', "ADDRESS", 0, "Address of the controller", 0},
        {"name", 'N', "NAME", 0,
         "Name of this worker (default: the controller chooses one; a worker "
         "of this host that has left gets its name back)",
         0},
        {"devices", 'n', "N", 0, "Number of devices (1)", 0},
        {"process", 'P', "P", 0,
         "Number of this worker, which no other worker has (default: the "
         "controller chooses one). Its devices get the ids 2048 P, 2048 P + 1, "
         "...",
         0},
        {"island", 'i', "NAME", 0,
         "Island: workers whose devices share a fast network (main)", 0},
        {"host", OPTION_HOST, "NAME", 0, "Name of this host", 0},
        {"plugin", 'p', "PATH", 0, "PJRT plugin (default: XLA on the CPU)", 0},
        {"simulated", 's', "MODEL", 0, "Simulated devices: tpu_v3, tpu_v4, ...",
         0},
        {"memory", 'm', "BYTES", 0, "Memory limit of each device (none)", 0},
        {"host-memory", OPTION_HOST_MEMORY, "BYTES", 0,
         "Host memory for objects spilled from devices; 0: none (an eighth of "
         "the host's)",
         0},
        {"data", OPTION_DATA, "INTERFACE", 0,
         "Network interface, or an address of this host, for data and other "
         "workers (default: the one that the route to the controller takes)",
         0},
        {"data-trusted", OPTION_DATA_TRUSTED, "DEVICES", 0,
         "Network devices, as UCX names them, on which data goes unencrypted "
         "through UCX: only on a network that nobody else can reach (default: "
         "TOW_DATA_TRUSTED; otherwise data between hosts is TLS)",
         0},
        {"data-streams", OPTION_DATA_STREAMS, "N", 0,
         "Extra connections to each process of another host, in each direction, "
         "whose bytes other cores encrypt: 0 to 16 (default: TOW_DATA_STREAMS; "
         "otherwise half of the cores, at most 4, and 0 on one or two)",
         0},
        {"door", OPTION_LISTEN, "ADDRESS", 0,
         "Address on which other workers connect (default: a socket beside the "
         "controller's, or a free port of this host)",
         0},
        {"host-functions", OPTION_HOST_FUNCTIONS, 0, 0,
         "Run clients' host functions: native code, as the user of this worker",
         0},
        {"with-controller", OPTION_WITH_CONTROLLER, 0, 0,
         "Run the controller in this process too, on that address: for a "
         "cluster of one worker",
         0},
        {"compile-cache", OPTION_COMPILE_CACHE, 0, 0,
         "With --with-controller: as for `tow controller`", 0},
        {"idle-timeout", OPTION_IDLE_TIMEOUT, "SECONDS", 0,
         "With --with-controller: as for `tow controller`", 0},
        {"launcher-fd", OPTION_LAUNCHER_FD, "N", 0,
         "With --with-controller: as for `tow controller`", 0},
        {"keys", OPTION_KEYS, "FOLDER", 0,
         "Folder with token and certificate, as `tow keys` creates it", 0},
        {"ready-fd", OPTION_READY_FD, "N", 0,
         "After joining, write the worker's name (with a controller, the "
         "address) to this file descriptor (1)",
         0},
        {"follow-fd", OPTION_FOLLOW_FD, "N", 0,
         "End at the end of file of this descriptor, as after SIGTERM", 0},
        {"assigned", OPTION_ASSIGNED, 0, 0,
         "The controller keeps --name and --process for this worker (see `tow "
         "controller --own-workers`), and is not asked",
         0},
        {0},
    };
    static const struct argp argp = {
        .options = table,
        .parser = parse,
        .doc =
            "Runs a worker until SIGTERM or SIGINT. It needs the address of "
            "the controller and a credential; the controller gives it a name "
            "and a number. If the connection to the controller is lost, the "
            "worker discards its state and joins again. `tow up` starts "
            "workers on this host, `tow up --hosts` on others.",
    };
    tow_worker_service_options_t arguments = {
        .device_count = 1,
        .host_bytes = TOW_WORKER_SERVICE_HOST_BYTES_DEFAULT,
        .follow_fd = TOW_WORKER_SERVICE_FOLLOW_NONE,
        .ready_fd = STDOUT_FILENO};
    int usage = tow_command_parse(&argp, argc, argv, &arguments);
    if (usage != 0) return usage;
    arguments.log = tow_log_from_environment(
        arguments.name != NULL ? arguments.name : "worker");
    /* The controller of this process has one worker. */
    if (arguments.has_controller) {
        if (arguments.name == NULL) arguments.name = "worker-0";
        arguments.is_assigned = true;
    }
    bool is_superseded;
    tow_status_t status = tow_worker_service_run(&arguments, &is_superseded);
    if (is_superseded) begin_anew(&arguments, status, argc, argv);
    return tow_command_finish("worker", status);
}
