/* `tow worker`: the devices of one process, in the hands of a controller. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/assert.h"
#include "base/block.h"
#include "device/host/child.h"
#include "device/pjrt/pjrt.h"
#include "device/sim/sim_device.h"
#include "device/xla_cpu/xla_cpu.h"
#include "env/tuning.h"
#include "session/tuning.h"
#include "tool/client_calls.h"
#include "tool/command.h"
#include "tool/controller_part.h"
#include "tool/cores.h"
#include "tool/local.h"
#include "tool/role.h"
#include "wire/address.h"
#include "worker/gangs.h"
#include "worker/tuning.h"
#include "worker/worker.h"

#define PATH_SIZE 4096
#define DOOR_SIZE (TOW_ADDRESS_TEXT_MAX + 32)
/* How long something of ours may be taken by another: twice what the controller
 * needs to know that one is gone. */
#define REFUSED_NS         (2 * TOW_SESSION_LEASE_NS)
#define HOST_BYTES_DEFAULT UINT64_MAX /* nobody has said */

typedef struct worker_arguments {
    const char *controller;
    const char *name;
    const char *host;   /* NULL: this machine's */
    const char *island; /* NULL: the default */
    const char *keys;
    const char *plugin;
    const char *model;
    const char *data_devices; /* NULL: this host only */
    const char *door;         /* NULL: as the controller's address suggests */
    uint64_t device_count;
    uint64_t process;
    uint64_t memory_bytes; /* 0: no limit */
    uint64_t host_bytes;   /* for spilled objects */
    uint64_t ready_fd;
    bool host_functions;
    /* The cluster's controller is a part of this process, the only worker. */
    bool has_controller;
    bool keeps_compiled;  /* of the controller, as the next */
    uint64_t launcher_fd; /* 0: none */
} worker_arguments_t;

typedef struct worker_process {
    const worker_arguments_t *arguments;
    char host_name[TOW_ROLE_HOST_SIZE];
    tow_role_t role;
    tow_controller_part_t controller; /* if this process has it */
    char address[DOOR_SIZE];          /* of the controller, port resolved */
    tow_gangs_t *gangs;               /* owned; NULL: the driver needs none */
    tow_worker_hooks_t gang_hooks;
    tow_client_calls_t calls;
    tow_driver_t *driver;           /* owned */
    tow_host_runner_t *host_runner; /* owned; NULL: none */
    tow_worker_t *worker;           /* owned */
    bool has_joined;
    int64_t refused_ns;   /* since when it is not let in; 0: nobody said so */
    tow_status_t refusal; /* owned: why it gives up */
    /* Of opening the driver. */
    bool is_opened;
    tow_status_t open_status; /* owned */
} worker_process_t;

enum {
    OPTION_KEYS = 256,
    OPTION_READY_FD,
    OPTION_HOST,
    OPTION_DATA,
    OPTION_HOST_MEMORY,
    OPTION_DOOR,
    OPTION_HOST_FUNCTIONS,
    OPTION_WITH_CONTROLLER,
    OPTION_COMPILE_CACHE,
    OPTION_LAUNCHER_FD,
};

static error_t parse_more(int key, char *argument, struct argp_state *state)
{
    worker_arguments_t *a = state->input;
    switch (key) {
    case OPTION_KEYS: a->keys = argument; return 0;
    case OPTION_HOST: a->host = argument; return 0;
    case OPTION_DATA: a->data_devices = argument; return 0;
    case OPTION_DOOR: a->door = argument; return 0;
    case OPTION_HOST_FUNCTIONS: a->host_functions = true; return 0;
    case OPTION_WITH_CONTROLLER: a->has_controller = true; return 0;
    case OPTION_COMPILE_CACHE: a->keeps_compiled = true; return 0;
    case OPTION_LAUNCHER_FD:
        a->launcher_fd =
            tow_command_number(state, "launcher-fd", argument, 3, 1 << 20);
        return 0;
    case OPTION_READY_FD:
        a->ready_fd =
            tow_command_number(state, "ready-fd", argument, 0, 1 << 20);
        return 0;
    case ARGP_KEY_ARG:
        argp_error(state, "unexpected word '%s'", argument);
        return EINVAL;
    case ARGP_KEY_END:
        if (a->controller == NULL)
            argp_error(state, "--controller is missing: its address");
        if (a->plugin != NULL && a->model != NULL)
            argp_error(state, "--plugin and --simulated are two answers to "
                              "one question");
        if (!a->has_controller && (a->keeps_compiled || a->launcher_fd != 0))
            argp_error(state, "--compile-cache and --launcher-fd are for a "
                              "controller: --with-controller");
        return 0;
    default: return ARGP_ERR_UNKNOWN;
    }
}

static error_t parse(int key, char *argument, struct argp_state *state)
{
    worker_arguments_t *a = state->input;
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

/* -- Devices -------------------------------------------------------------------- */

static int64_t first_device_id(const worker_arguments_t *a)
{
    return (int64_t)a->process * TOW_XLA_PROCESS_STRIDE;
}

/* How our devices meet those of other workers. */
static tow_status_t open_gangs(worker_process_t *process)
{
    const worker_arguments_t *a = process->arguments;
    const tow_gangs_options_t options = {.env = tow_net_env(process->role.net),
                                         .cluster = process->address,
                                         .host = process->host_name,
                                         .process = (uint32_t)a->process,
                                         .device_count =
                                             (uint32_t)a->device_count};
    TOW_RETURN_IF_ERROR(tow_gangs_open(&options, &process->gangs));
    process->gang_hooks = tow_gangs_hooks(process->gangs);
    return TOW_OK;
}

#if TOW_HAS_PJRT

typedef struct opening {
    tow_pjrt_open_t open;
    worker_process_t *process;
} opening_t;

static void opened(tow_pjrt_open_t *open, tow_status_t take_status,
                   tow_driver_t *take_driver)
{
    worker_process_t *process =
        TOW_CONTAINER_OF(open, opening_t, open)->process;
    process->driver = take_driver;
    process->open_status = take_status;
    process->is_opened = true;
}

static tow_status_t open_plugin(worker_process_t *process, const char *path,
                                const tow_pjrt_value_t *values, size_t count)
{
    opening_t opening = {.process = process,
                         .open = {.path = path,
                                  .values = values,
                                  .value_count = count,
                                  .done = opened}};
    TOW_RETURN_IF_ERROR(
        tow_pjrt_open(tow_net_env(process->role.net), &opening.open));
    tow_role_await(&process->role, &process->is_opened);
    return process->open_status;
}

#else

static tow_status_t open_plugin(worker_process_t *process, const char *path,
                                const tow_pjrt_value_t *values, size_t count)
{
    (void)process, (void)values, (void)count;
    return TOW_ERROR(TOW_UNIMPLEMENTED,
                     "%s: this program was built without the PJRT header; "
                     "`make setup` brings it",
                     path);
}

#endif

static tow_pjrt_value_t number(const char *name, int64_t value)
{
    return (tow_pjrt_value_t){
        .name = name, .type = TOW_PJRT_INT64, .int64 = value};
}

/* Device memory that other workers of this host can be shown. */
static int block_is_wanted(size_t size)
{
    return tow_block_is_wanted(size);
}

static int block_is_stranded(const void *bytes)
{
    return tow_block_is_stranded(bytes);
}

static const tow_xla_blocks_t blocks = {.struct_size = sizeof(blocks),
                                        .is_wanted = block_is_wanted,
                                        .take = tow_block_take,
                                        .give = tow_block_give,
                                        .is_stranded = block_is_stranded};

static tow_status_t open_adapter(worker_process_t *process)
{
    const worker_arguments_t *a = process->arguments;
    char path[PATH_SIZE];
    TOW_RETURN_IF_ERROR(tow_local_find_adapter(path, sizeof(path)));
    TOW_RETURN_IF_ERROR(open_gangs(process));
    tow_client_calls_init(&process->calls, tow_net_env(process->role.net));
    tow_local_quiet_adapter();
    const tow_pjrt_value_t values[] = {
        number("process_id", (int64_t)a->process),
        number("device_count", (int64_t)a->device_count),
        number("tow_collectives",
               (int64_t)(intptr_t)tow_gangs_collectives(process->gangs)),
        number("tow_calls", (int64_t)(intptr_t)&process->calls.table),
        number("tow_blocks", (int64_t)(intptr_t)&blocks),
        number("memory_limit_bytes", (int64_t)a->memory_bytes),
    };
    return open_plugin(process, path, values,
                       TOW_COUNT_OF(values) - (a->memory_bytes == 0 ? 1 : 0));
}

static tow_status_t open_model(worker_process_t *process)
{
    const worker_arguments_t *a = process->arguments;
    tow_sim_model_t model;
    TOW_RETURN_IF_ERROR(tow_sim_model_find(a->model, &model));
    const tow_sim_device_options_t options = {.model = &model,
                                              .device_count = a->device_count,
                                              .first_id = first_device_id(a),
                                              .memory_bytes = a->memory_bytes};
    return tow_sim_device_driver_create(tow_net_env(process->role.net),
                                        &options, &process->driver);
}

static tow_status_t open_devices(worker_process_t *process)
{
    const worker_arguments_t *a = process->arguments;
    if (a->model != NULL) return open_model(process);
    if (a->plugin == NULL) return open_adapter(process);
    return open_plugin(process, a->plugin, NULL, 0);
}

static int64_t now_ns(const worker_process_t *process)
{
    return tow_env_now_ns(tow_net_env(process->role.net));
}

/* -- What the worker tells ------------------------------------------------------- */

static void on_joined(void *context, uint64_t cluster)
{
    worker_process_t *process = context;
    tow_log(&tow_net_env(process->role.net)->log, TOW_LOG_INFO, "joined",
            TOW_F_STR("controller", process->address),
            TOW_F_U64("cluster", cluster));
    if (process->gang_hooks.joined != NULL)
        process->gang_hooks.joined(process->gang_hooks.context, cluster);
    if (process->has_joined) return;
    process->has_joined = true;
    tow_role_say_ready((int)process->arguments->ready_fd,
                       process->arguments->has_controller
                           ? process->address
                           : process->arguments->name);
}

static void on_lost(void *context, tow_status_t cause)
{
    worker_process_t *process = context;
    tow_log(&tow_net_env(process->role.net)->log, TOW_LOG_WARN,
            "controller lost", TOW_F_STATUS("cause", cause));
    if (process->gang_hooks.lost != NULL)
        process->gang_hooks.lost(process->gang_hooks.context, cause);
}

/* What is taken may become free: the worker that has it may have died just now,
 * and the controller does not know yet. Nothing else heals by itself. */
static bool may_heal(const worker_process_t *process, tow_status_t cause)
{
    return tow_status_code(cause) == TOW_ALREADY_EXISTS &&
           now_ns(process) - process->refused_ns < REFUSED_NS;
}

/* One that was let in once is patient: the cluster may be set up anew. */
static void on_refused(void *context, tow_status_t cause)
{
    worker_process_t *process = context;
    if (process->has_joined || process->refusal != TOW_OK) return;
    if (process->refused_ns == 0) process->refused_ns = now_ns(process);
    if (may_heal(process, cause)) return;
    process->refusal = tow_status_retain(cause);
    tow_net_stop(process->role.net);
}

static void on_peer_added(void *context, const tow_worker_peer_t *peer)
{
    worker_process_t *process = context;
    if (process->gang_hooks.peer_added != NULL)
        process->gang_hooks.peer_added(process->gang_hooks.context, peer);
}

static void on_peer_gone(void *context, uint32_t number, tow_status_t cause)
{
    worker_process_t *process = context;
    if (process->gang_hooks.peer_gone != NULL)
        process->gang_hooks.peer_gone(process->gang_hooks.context, number,
                                      cause);
}

static void on_abort_gang(void *context, uint64_t gang_id, tow_status_t cause)
{
    worker_process_t *process = context;
    if (process->gang_hooks.abort_gang != NULL)
        process->gang_hooks.abort_gang(process->gang_hooks.context, gang_id,
                                       cause);
}

static size_t on_waits(void *context, tow_worker_wait_t *waits, size_t capacity)
{
    worker_process_t *process = context;
    return process->gang_hooks.waits == NULL
               ? 0
               : process->gang_hooks.waits(process->gang_hooks.context, waits,
                                           capacity);
}

/* -- Life ------------------------------------------------------------------------ */

/* Where other workers find it: a socket beside the controller's, or a port that
 * the system chooses, protected as the controller's is. */
static tow_status_t choose_door(const worker_process_t *process,
                                char door[DOOR_SIZE])
{
    const worker_arguments_t *a = process->arguments;
    tow_address_t address;
    if (a->door != NULL) {
        snprintf(door, DOOR_SIZE, "%s", a->door);
        return TOW_OK;
    }
    TOW_RETURN_IF_ERROR(tow_address_parse(process->address, &address));
    if (address.kind == TOW_ADDRESS_UNIX) {
        char *file = strrchr(address.host, '/');
        file = file != NULL ? file + 1 : address.host;
        snprintf(file, sizeof(address.host) - (size_t)(file - address.host),
                 "w%u.sock", (unsigned)a->process);
    } else {
        if (!tow_address_is_local(&address))
            snprintf(address.host, sizeof(address.host), "%s",
                     process->host_name);
        address.port = 0;
    }
    tow_address_format(&address, door, DOOR_SIZE);
    return TOW_OK;
}

/* Code of clients, in processes of its own, if it may run here at all. */
static tow_status_t open_host_runner(worker_process_t *process)
{
    const worker_arguments_t *a = process->arguments;
    char path[PATH_SIZE];
    if (!a->host_functions) return TOW_OK;
    TOW_RETURN_IF_ERROR(tow_host_child_find(path, sizeof(path)));
    const tow_host_child_options_t options = {.program = path, .name = a->name};
    return tow_host_child_create(tow_net_env(process->role.net), &options,
                                 &process->host_runner);
}

static tow_status_t open_worker(worker_process_t *process)
{
    const worker_arguments_t *a = process->arguments;
    char door[DOOR_SIZE];
    TOW_RETURN_IF_ERROR(choose_door(process, door));
    const tow_worker_options_t options = {
        .controller = process->address,
        .host = process->host_name,
        .island = a->island,
        .door = door,
        .process = (uint32_t)a->process,
        .driver = process->driver,
        .host_runner = process->host_runner,
        .mail = process->gangs != NULL ? tow_gangs_mail(process->gangs)
                                       : (tow_region_key_t){0},
        .may_run_inline = true,
        .has_controller = a->has_controller,
        .may_linger_always = tow_cores_count() <= TOW_WORKER_LINGER_CORES_MAX,
        .limits = {.host_bytes_max =
                       a->host_bytes != HOST_BYTES_DEFAULT
                           ? a->host_bytes
                           : tow_role_host_bytes(TOW_WORKER_HOST_SHARE)},
        .hooks = {.joined = on_joined,
                  .lost = on_lost,
                  .refused = on_refused,
                  .peer_added = on_peer_added,
                  .peer_gone = on_peer_gone,
                  .abort_gang = on_abort_gang,
                  .waits = on_waits,
                  .context = process},
    };
    TOW_RETURN_IF_ERROR(tow_worker_open(tow_net_env(process->role.net),
                                        &options, &process->worker));
    process->calls.worker = process->worker;
    return TOW_OK;
}

/* Before the worker: it dials its own process as it would another. What the two
 * say to each other goes through the same loop, and wakes nobody. */
static tow_status_t open_controller(worker_process_t *process)
{
    const worker_arguments_t *a = process->arguments;
    const char *address = a->controller;
    if (a->has_controller) {
        const tow_controller_part_options_t options = {
            .address = a->controller,
            .plugin = a->plugin,
            .model = a->model,
            .launcher_fd = a->launcher_fd,
            .keeps_compiled = a->keeps_compiled};
        TOW_RETURN_IF_ERROR(tow_controller_part_open(&process->controller,
                                                     &process->role, &options));
        address = tow_controller_address(process->controller.controller);
    }
    snprintf(process->address, sizeof(process->address), "%s", address);
    return TOW_OK;
}

static tow_status_t open_all(worker_process_t *process)
{
    const worker_arguments_t *a = process->arguments;
    const tow_role_options_t role = {.name = a->name,
                                     .keys = a->keys,
                                     .address = a->controller,
                                     .data_plane = TOW_NET_DATA_UCX,
                                     .data_devices = a->data_devices,
                                     .spin_ns = TOW_NET_WORKER_SPIN_NS};
    TOW_RETURN_IF_ERROR(tow_role_open(&process->role, &role));
    if (a->host != NULL)
        snprintf(process->host_name, TOW_ROLE_HOST_SIZE, "%s", a->host);
    else
        tow_role_host_name(process->host_name);
    TOW_RETURN_IF_ERROR(open_controller(process));
    TOW_RETURN_IF_ERROR(open_devices(process));
    TOW_RETURN_IF_ERROR(open_host_runner(process));
    return open_worker(process);
}

static void close_all(worker_process_t *process)
{
    bool is_done = false;
    const tow_closed_t closed = {tow_role_set_done, &is_done};
    if (process->worker != NULL) {
        tow_worker_close(process->worker, TOW_OK, closed);
        tow_role_await(&process->role, &is_done);
        process->calls.worker = NULL;
    }
    if (process->host_runner != NULL) {
        is_done = false;
        tow_host_runner_close(process->host_runner, closed);
        tow_role_await(&process->role, &is_done);
    }
    if (process->driver != NULL) {
        is_done = false;
        tow_driver_close(process->driver, closed);
        tow_role_await(&process->role, &is_done);
    }
    if (process->gangs != NULL) {
        is_done = false;
        tow_gangs_close(process->gangs, closed);
        tow_role_await(&process->role, &is_done);
    }
    tow_controller_part_close(&process->controller, &process->role);
    tow_role_close(&process->role);
}

static tow_status_t perform(const worker_arguments_t *arguments)
{
    worker_process_t process = {.arguments = arguments};
    tow_status_t status = open_all(&process);
    if (status == TOW_OK) tow_role_run(&process.role);
    close_all(&process);
    if (status == TOW_OK) status = process.refusal;
    return status;
}

int tow_command_worker(int argc, char **argv)
{
    static const struct argp_option table[] = {
        {"controller", 'c', "ADDRESS", 0, "The controller's address", 0},
        {"name", 'N', "NAME", 0, "How others know it (worker-P)", 0},
        {"devices", 'n', "N", 0, "How many devices it has (1)", 0},
        {"process", 'P', "P", 0,
         "Its number, which no other worker of the cluster has or had (0); "
         "its devices are 2048 P, 2048 P + 1, ...",
         0},
        {"island", 'i', "NAME", 0,
         "Which devices its own have a fast network with (main)", 0},
        {"host", OPTION_HOST, "NAME", 0, "This machine's name", 0},
        {"plugin", 'p', "PATH", 0, "A PJRT plugin (default: XLA on the CPU)",
         0},
        {"simulated", 's', "MODEL", 0, "Simulated devices: tpu_v3, tpu_v4, ...",
         0},
        {"memory", 'm', "BYTES", 0, "Memory of each device (no limit)", 0},
        {"host-memory", OPTION_HOST_MEMORY, "BYTES", 0,
         "Host memory for idle objects that give way; 0: none (an eighth)", 0},
        {"data", OPTION_DATA, "DEVICES", 0,
         "Network interfaces for data, as UCX names them (this host only)", 0},
        {"door", OPTION_DOOR, "ADDRESS", 0,
         "Where other workers reach it (a socket beside the controller's, or "
         "a port of this host)",
         0},
        {"host-functions", OPTION_HOST_FUNCTIONS, 0, 0,
         "Run host functions: C of its clients, as the user that the worker "
         "runs as",
         0},
        {"with-controller", OPTION_WITH_CONTROLLER, 0, 0,
         "Be the controller too, at that address: for a cluster of one worker",
         0},
        {"compile-cache", OPTION_COMPILE_CACHE, 0, 0,
         "With a controller: as `tow controller` takes it", 0},
        {"launcher-fd", OPTION_LAUNCHER_FD, "N", 0,
         "With a controller: as `tow controller` takes it", 0},
        {"keys", OPTION_KEYS, "FOLDER", 0,
         "Token and certificates, as `tow keys` makes them", 0},
        {"ready-fd", OPTION_READY_FD, "N", 0,
         "Say its name, or its address if it has the controller, on this "
         "descriptor when it has joined (1)",
         0},
        {0},
    };
    static const struct argp argp = {
        .options = table,
        .parser = parse,
        .doc = "Runs a worker until it is told to end (SIGTERM, SIGINT). When "
               "the controller goes it drops all that it has, and joins again "
               "when there is one. `tow up` starts workers on this host.",
    };
    worker_arguments_t arguments = {.device_count = 1,
                                    .host_bytes = HOST_BYTES_DEFAULT,
                                    .ready_fd = STDOUT_FILENO};
    int usage = tow_command_parse(&argp, argc, argv, &arguments);
    if (usage != 0) return usage;
    char name[32];
    snprintf(name, sizeof(name), "worker-%u", (unsigned)arguments.process);
    if (arguments.name == NULL) arguments.name = name;
    return tow_command_finish("worker", perform(&arguments));
}
