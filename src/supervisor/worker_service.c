#include "supervisor/worker_service.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/assert.h"
#include "base/block.h"
#include "client/local_cluster.h"
#include "device/host/child.h"
#include "device/pjrt/pjrt.h"
#include "device/sim/sim_device.h"
#include "device/xla_cpu/xla_cpu.h"
#include "env/tuning.h"
#include "session/tuning.h"
#include "supervisor/adapter.h"
#include "supervisor/callback_bridge.h"
#include "supervisor/controller_service.h"
#include "supervisor/cores.h"
#include "supervisor/daemon.h"
#include "supervisor/route.h"
#include "wire/address.h"
#include "wire/handshake.h"
#include "worker/enrol.h"
#include "worker/gang_comm.h"
#include "worker/tuning.h"
#include "worker/worker.h"

#define PATH_SIZE    4096
#define ADDRESS_SIZE (TOW_ADDRESS_TEXT_MAX + 32)
/* How long a name or number that is taken may stay taken: twice the time in which
 * the controller notices that a worker has died. */
#define REFUSED_NS (2 * TOW_SESSION_LEASE_NS)
/* Characters of the host's name in our name in handshakes. */
#define HANDSHAKE_HOST_MAX 32

typedef struct worker_service {
    const tow_worker_service_options_t *options; /* lent */
    char host_name[TOW_DAEMON_HOST_SIZE];
    char handshake_name[TOW_PEER_NAME_MAX + 1];
    tow_enrolled_t place; /* our name and process number */
    tow_daemon_t daemon;
    tow_enrolment_t *enrolment; /* owned; until the worker has joined */
    bool is_enrolled;
    int64_t logged_ns; /* the last failure to enrol; 0: none */
    tow_controller_service_t controller; /* if it runs in this process */
    char address[ADDRESS_SIZE];          /* of the controller, with its port */
    tow_gang_comm_t *gangs; /* owned; NULL: the driver needs none */
    tow_worker_hooks_t gang_hooks;
    tow_callback_bridge_t callbacks;
    tow_driver_t *driver;           /* owned */
    tow_host_runner_t *host_runner; /* owned; NULL: none */
    tow_worker_t *worker;           /* owned */
    bool has_joined;
    /* The first and the last of consecutive refusals; 0: none. */
    int64_t refused_ns, refused_last_ns;
    tow_status_t refusal; /* owned: the final one */
    /* Of opening the driver. */
    bool is_opened;
    tow_status_t open_status; /* owned */
} worker_service_t;

/* -- Devices -------------------------------------------------------------------- */

static int64_t first_device_id(const worker_service_t *self)
{
    return (int64_t)self->place.process * TOW_XLA_PROCESS_STRIDE;
}

/* Collectives between our devices and those of other workers. */
static tow_status_t open_gangs(worker_service_t *self)
{
    const tow_worker_service_options_t *a = self->options;
    const tow_gang_comm_options_t options = {
        .env = tow_net_env(self->daemon.net),
        .cluster = self->address,
        .host = self->host_name,
        .process = self->place.process,
        .device_count = (uint32_t)a->device_count};
    TOW_RETURN_IF_ERROR(tow_gang_comm_open(&options, &self->gangs));
    self->gang_hooks = tow_gang_comm_hooks(self->gangs);
    return TOW_OK;
}

#if TOW_HAS_PJRT

typedef struct opening {
    tow_pjrt_open_t open;
    worker_service_t *service;
} opening_t;

static void opened(tow_pjrt_open_t *open, tow_status_t take_status,
                   tow_driver_t *take_driver)
{
    worker_service_t *self = TOW_CONTAINER_OF(open, opening_t, open)->service;
    self->driver = take_driver;
    self->open_status = take_status;
    self->is_opened = true;
}

static tow_status_t open_plugin(worker_service_t *self, const char *path,
                                const tow_pjrt_value_t *values, size_t count)
{
    opening_t opening = {.service = self,
                         .open = {.path = path,
                                  .values = values,
                                  .value_count = count,
                                  .done = opened}};
    TOW_RETURN_IF_ERROR(
        tow_pjrt_open(tow_net_env(self->daemon.net), &opening.open));
    tow_daemon_await(&self->daemon, &self->is_opened);
    return self->open_status;
}

#else

static tow_status_t open_plugin(worker_service_t *self, const char *path,
                                const tow_pjrt_value_t *values, size_t count)
{
    (void)self, (void)values, (void)count;
    return TOW_ERROR(TOW_UNIMPLEMENTED,
                     "%s: this program was built without the PJRT header; "
                     "`make setup` installs it",
                     path);
}

#endif

static tow_pjrt_value_t int64_option(const char *name, int64_t value)
{
    return (tow_pjrt_value_t){
        .name = name, .type = TOW_PJRT_INT64, .int64 = value};
}

/* Device memory that other workers of this host can map. */
static int block_is_wanted(size_t size)
{
    return tow_block_is_preferred(size);
}

static int block_is_stranded(const void *bytes)
{
    return tow_block_is_quarantined(bytes);
}

static const tow_xla_blocks_t blocks = {.struct_size = sizeof(blocks),
                                        .is_preferred = block_is_wanted,
                                        .alloc = tow_block_alloc,
                                        .free = tow_block_free,
                                        .is_quarantined = block_is_stranded};

static tow_status_t open_adapter(worker_service_t *self)
{
    const tow_worker_service_options_t *a = self->options;
    char path[PATH_SIZE];
    TOW_RETURN_IF_ERROR(tow_adapter_find(path, sizeof(path)));
    TOW_RETURN_IF_ERROR(open_gangs(self));
    tow_callback_bridge_init(&self->callbacks, tow_net_env(self->daemon.net));
    tow_adapter_quiet();
    const tow_pjrt_value_t values[] = {
        int64_option("process_id", (int64_t)self->place.process),
        int64_option("device_count", (int64_t)a->device_count),
        int64_option("tow_collectives",
                     (int64_t)(intptr_t)tow_gang_comm_collectives(self->gangs)),
        int64_option("tow_calls", (int64_t)(intptr_t)&self->callbacks.table),
        int64_option("tow_blocks", (int64_t)(intptr_t)&blocks),
        int64_option("memory_limit_bytes", (int64_t)a->memory_bytes),
    };
    return open_plugin(self, path, values,
                       TOW_COUNT_OF(values) - (a->memory_bytes == 0 ? 1 : 0));
}

static tow_status_t open_model(worker_service_t *self)
{
    const tow_worker_service_options_t *a = self->options;
    tow_sim_model_t model;
    TOW_RETURN_IF_ERROR(tow_sim_model_find(a->model, &model));
    const tow_sim_device_options_t options = {.model = &model,
                                              .device_count = a->device_count,
                                              .first_id = first_device_id(self),
                                              .memory_bytes = a->memory_bytes};
    return tow_sim_device_driver_create(tow_net_env(self->daemon.net), &options,
                                        &self->driver);
}

static tow_status_t open_devices(worker_service_t *self)
{
    const tow_worker_service_options_t *a = self->options;
    if (a->model != NULL) return open_model(self);
    if (a->plugin == NULL) return open_adapter(self);
    return open_plugin(self, a->plugin, NULL, 0);
}

static int64_t now_ns(const worker_service_t *self)
{
    return tow_env_now_ns(tow_net_env(self->daemon.net));
}

/* -- Events of the worker --------------------------------------------------------- */

static void on_joined(void *context, uint64_t cluster)
{
    worker_service_t *self = context;
    tow_log(&tow_net_env(self->daemon.net)->log, TOW_LOG_INFO, "joined",
            TOW_F_STR("controller", self->address),
            TOW_F_U64("cluster", cluster));
    if (self->gang_hooks.joined != NULL)
        self->gang_hooks.joined(self->gang_hooks.context, cluster);
    self->refused_ns = self->refused_last_ns = 0;
    if (self->has_joined) return;
    self->has_joined = true;
    if (self->enrolment != NULL)
        tow_enrolment_close(self->enrolment, (tow_closed_t){0});
    self->enrolment = NULL;
    tow_daemon_report_ready((int)self->options->ready_fd,
                            self->options->has_controller ? self->address
                                                          : self->place.name);
}

static void on_disconnected(void *context, tow_status_t cause)
{
    worker_service_t *self = context;
    tow_log(&tow_net_env(self->daemon.net)->log, TOW_LOG_WARN,
            "controller disconnected", TOW_F_STATUS("cause", cause));
    if (self->gang_hooks.disconnected != NULL)
        self->gang_hooks.disconnected(self->gang_hooks.context, cause);
}

/* A name or number that is taken may become free: the worker that has it may have
 * died before the controller noticed. No other refusal ends by itself. */
static bool may_be_temporary(const worker_service_t *self, tow_status_t cause)
{
    return tow_status_code(cause) == TOW_ALREADY_EXISTS &&
           now_ns(self) - self->refused_ns < REFUSED_NS;
}

/* A worker that has joined once keeps trying, because the cluster may restart;
 * unless another worker has got its name or number meanwhile. */
static void on_refused(void *context, tow_status_t cause)
{
    worker_service_t *self = context;
    const int64_t now = now_ns(self);
    if (self->refusal != TOW_OK) return;
    if (self->refused_ns == 0 || now - self->refused_last_ns > REFUSED_NS)
        self->refused_ns = now;
    self->refused_last_ns = now;
    if (may_be_temporary(self, cause)) return;
    if (self->has_joined && tow_status_code(cause) != TOW_ALREADY_EXISTS)
        return;
    self->refusal = tow_status_retain(cause);
    tow_net_stop(self->daemon.net);
}

static void on_peer_added(void *context, const tow_worker_peer_t *peer)
{
    worker_service_t *self = context;
    if (self->gang_hooks.peer_added != NULL)
        self->gang_hooks.peer_added(self->gang_hooks.context, peer);
}

static void on_peer_disconnected(void *context, uint32_t number,
                                 tow_status_t cause)
{
    worker_service_t *self = context;
    if (self->gang_hooks.peer_disconnected != NULL)
        self->gang_hooks.peer_disconnected(self->gang_hooks.context, number,
                                           cause);
}

static void on_abort_gang(void *context, uint64_t gang_id, tow_status_t cause)
{
    worker_service_t *self = context;
    if (self->gang_hooks.abort_gang != NULL)
        self->gang_hooks.abort_gang(self->gang_hooks.context, gang_id, cause);
}

static size_t on_waits(void *context, tow_worker_wait_t *waits, size_t capacity)
{
    worker_service_t *self = context;
    return self->gang_hooks.waits == NULL
               ? 0
               : self->gang_hooks.waits(self->gang_hooks.context, waits,
                                        capacity);
}

/* -- Enrolment --------------------------------------------------------------------- */

/* Unique, because the controller ends the sessions of an earlier process of the
 * same name. A process whose name was given to it by the supervisor of the
 * cluster is the successor of that process. */
static void choose_handshake_name(worker_service_t *self)
{
    const tow_worker_service_options_t *a = self->options;
    char host[HANDSHAKE_HOST_MAX + 1];
    size_t length = 0;
    if (a->is_assigned) {
        snprintf(self->handshake_name, sizeof(self->handshake_name), "%s",
                 a->name);
        return;
    }
    for (const char *at = self->host_name;
         *at != '\0' && length < HANDSHAKE_HOST_MAX; at++) {
        const char one[] = {*at, '\0'};
        host[length++] = tow_identity_name_is_valid(one) ? *at : '-';
    }
    host[length] = '\0';
    snprintf(self->handshake_name, sizeof(self->handshake_name), "%s.%d.%08x",
             host, (int)getpid(), (unsigned)tow_local_cluster_random());
}

static void on_enrolled(void *context, const tow_enrolled_t *enrolled)
{
    worker_service_t *self = context;
    self->place = *enrolled;
    self->is_enrolled = true;
    tow_net_stop(self->daemon.net);
}

/* The enrolment asks again; a refusal that does not end by itself is final. */
static void on_enrol_failed(void *context, tow_status_t cause)
{
    worker_service_t *self = context;
    const int64_t now = now_ns(self);
    if (self->logged_ns == 0 ||
        now - self->logged_ns >= TOW_WORKER_REFUSAL_LOG_NS) {
        self->logged_ns = now;
        tow_log(&tow_net_env(self->daemon.net)->log, TOW_LOG_WARN,
                "not in a cluster", TOW_F_STR("controller", self->address),
                TOW_F_STATUS("cause", cause));
    }
    if (tow_worker_is_refusal(cause)) on_refused(self, cause);
}

static tow_status_t open_enrolment(worker_service_t *self)
{
    const tow_worker_service_options_t *a = self->options;
    const tow_enrol_options_t options = {.controller = self->address,
                                         .host = self->host_name,
                                         .name = a->name,
                                         .has_process = a->has_process,
                                         .process = (uint32_t)a->process,
                                         .hooks = {.enrolled = on_enrolled,
                                                   .failed = on_enrol_failed,
                                                   .context = self}};
    return tow_enrolment_open(tow_net_env(self->daemon.net), &options,
                              &self->enrolment);
}

/* Asks the controller for a name and a number, until it answers or a signal
 * arrives. */
static tow_status_t enrol(worker_service_t *self)
{
    const tow_worker_service_options_t *a = self->options;
    if (a->is_assigned) {
        snprintf(self->place.name, sizeof(self->place.name), "%s", a->name);
        self->place.process = (uint32_t)a->process;
        return TOW_OK;
    }
    TOW_RETURN_IF_ERROR(open_enrolment(self));
    tow_daemon_run(&self->daemon);
    if (self->refusal != TOW_OK) return tow_status_retain(self->refusal);
    if (!self->is_enrolled) return TOW_OK; /* A signal. */
    tow_net_env(self->daemon.net)->log.source = self->place.name;
    return TOW_OK;
}

/* -- Opening and closing ----------------------------------------------------------- */

/* The address for other processes: a socket beside the controller's; or, with the
 * controller's protection, a port that the system chooses, on the interface that
 * the route to the controller takes, or on the one that was named. */
static tow_status_t choose_listen_address(const worker_service_t *self,
                                          char listen[ADDRESS_SIZE])
{
    const tow_worker_service_options_t *a = self->options;
    tow_address_t address;
    if (a->listen != NULL) {
        snprintf(listen, ADDRESS_SIZE, "%s", a->listen);
        return TOW_OK;
    }
    TOW_RETURN_IF_ERROR(tow_address_parse(self->address, &address));
    if (address.kind == TOW_ADDRESS_UNIX) {
        char *file = strrchr(address.host, '/');
        file = file != NULL ? file + 1 : address.host;
        /* A worker of an earlier controller may still have our number. */
        snprintf(file, sizeof(address.host) - (size_t)(file - address.host),
                 "w%u.%x", (unsigned)self->place.process, (unsigned)getpid());
    } else {
        TOW_RETURN_IF_ERROR(
            a->data != NULL
                ? tow_route_named(a->data, address.host, sizeof(address.host))
                : tow_route_source(&address, address.host,
                                   sizeof(address.host)));
        address.port = 0;
    }
    tow_address_format(&address, listen, ADDRESS_SIZE);
    return TOW_OK;
}

/* Runs clients' host functions in child processes, if that is enabled. */
static tow_status_t open_host_runner(worker_service_t *self)
{
    const tow_worker_service_options_t *a = self->options;
    char path[PATH_SIZE];
    if (!a->host_functions) return TOW_OK;
    TOW_RETURN_IF_ERROR(tow_host_child_find(path, sizeof(path)));
    const tow_host_child_options_t options = {.program = path,
                                              .name = self->place.name};
    return tow_host_child_create(tow_net_env(self->daemon.net), &options,
                                 &self->host_runner);
}

static tow_status_t open_worker(worker_service_t *self)
{
    const tow_worker_service_options_t *a = self->options;
    char listen[ADDRESS_SIZE];
    TOW_RETURN_IF_ERROR(choose_listen_address(self, listen));
    const tow_worker_options_t options = {
        .controller = self->address,
        .name = self->place.name,
        .is_name_assigned = a->name == NULL,
        .host = self->host_name,
        .island = a->island,
        .listen_address = listen,
        .process = self->place.process,
        .driver = self->driver,
        .host_runner = self->host_runner,
        .mail = self->gangs != NULL ? tow_gang_comm_mail(self->gangs)
                                    : (tow_region_key_t){0},
        .memory = self->gangs != NULL ? tow_gang_comm_memory(self->gangs) : 0,
        .may_run_inline = true,
        .has_controller = a->has_controller,
        .may_linger_always = tow_cores_count() <= TOW_WORKER_LINGER_CORES_MAX,
        .limits = {.host_bytes_max =
                       a->host_bytes != TOW_WORKER_SERVICE_HOST_BYTES_DEFAULT
                           ? a->host_bytes
                           : tow_daemon_host_memory_share(
                                 TOW_WORKER_HOST_SHARE)},
        .hooks = {.joined = on_joined,
                  .disconnected = on_disconnected,
                  .refused = on_refused,
                  .peer_added = on_peer_added,
                  .peer_disconnected = on_peer_disconnected,
                  .abort_gang = on_abort_gang,
                  .waits = on_waits,
                  .context = self},
    };
    TOW_RETURN_IF_ERROR(tow_worker_open(tow_net_env(self->daemon.net), &options,
                                        &self->worker));
    self->callbacks.worker = self->worker;
    return TOW_OK;
}

/* Opened before the worker, which connects to its own process as to any other.
 * Messages between the two stay in one event loop and wake no thread. */
static tow_status_t open_controller(worker_service_t *self)
{
    const tow_worker_service_options_t *a = self->options;
    const char *address = a->controller;
    if (a->has_controller) {
        const tow_controller_service_options_t options = {
            .address = a->controller,
            .plugin = a->plugin,
            .model = a->model,
            .fork_server_fd = a->fork_server_fd,
            .use_compile_cache = a->use_compile_cache,
            .idle_timeout_s = a->idle_timeout_s};
        TOW_RETURN_IF_ERROR(tow_controller_service_open(
            &self->controller, &self->daemon, &options));
        address = tow_controller_address(self->controller.controller);
    }
    snprintf(self->address, sizeof(self->address), "%s", address);
    return TOW_OK;
}

static tow_status_t open_all(worker_service_t *self)
{
    const tow_worker_service_options_t *a = self->options;
    if (a->host != NULL)
        snprintf(self->host_name, TOW_DAEMON_HOST_SIZE, "%s", a->host);
    else
        tow_daemon_host_name(self->host_name);
    choose_handshake_name(self);
    const tow_daemon_options_t daemon = {.name = self->handshake_name,
                                         .log = a->log,
                                         .keys = a->keys,
                                         .address = a->controller,
                                         .data_plane = TOW_NET_DATA_UCX,
                                         .data_trusted = a->data_trusted,
                                         .data_source = a->data,
                                         .data_streams = a->data_streams,
                                         .spin_ns = TOW_NET_WORKER_SPIN_NS};
    TOW_RETURN_IF_ERROR(tow_daemon_open(&self->daemon, &daemon));
    if (a->follow_fd != TOW_WORKER_SERVICE_FOLLOW_NONE)
        TOW_RETURN_IF_ERROR(tow_daemon_follow((int)a->follow_fd));
    TOW_RETURN_IF_ERROR(open_controller(self));
    TOW_RETURN_IF_ERROR(enrol(self));
    if (tow_daemon_is_signalled()) return TOW_OK;
    TOW_RETURN_IF_ERROR(open_devices(self));
    TOW_RETURN_IF_ERROR(open_host_runner(self));
    return open_worker(self);
}

/* Its devices are busy, with a computation that cannot be interrupted: the process
 * ends without them. */
TOW_NORETURN static void exit_busy(worker_service_t *self)
{
    tow_log(&tow_net_env(self->daemon.net)->log, TOW_LOG_WARN,
            "exits while its devices are busy",
            TOW_F_U64("waited_ns", (uint64_t)TOW_WORKER_SERVICE_STOP_NS));
    if (self->gangs != NULL) tow_gang_comm_abandon(self->gangs);
    _exit(EXIT_SUCCESS);
}

/* Waits for a part to close. */
static void await_closed(worker_service_t *self, const bool *is_done,
                         int64_t deadline_ns)
{
    if (!tow_daemon_await_until(&self->daemon, is_done, deadline_ns))
        exit_busy(self);
}

static void close_all(worker_service_t *self)
{
    bool is_done = false;
    const tow_closed_t closed = {tow_daemon_set_done, &is_done};
    const int64_t deadline_ns = self->worker != NULL
                                    ? now_ns(self) + TOW_WORKER_SERVICE_STOP_NS
                                    : TOW_TIME_NEVER;
    if (self->enrolment != NULL) {
        tow_enrolment_close(self->enrolment, closed);
        tow_daemon_await(&self->daemon, &is_done);
    }
    if (self->worker != NULL) {
        is_done = false;
        tow_worker_close(self->worker, TOW_OK, closed);
        await_closed(self, &is_done, deadline_ns);
        self->callbacks.worker = NULL;
    }
    if (self->host_runner != NULL) {
        is_done = false;
        tow_host_runner_close(self->host_runner, closed);
        await_closed(self, &is_done, deadline_ns);
    }
    if (self->driver != NULL) {
        is_done = false;
        tow_driver_close(self->driver, closed);
        await_closed(self, &is_done, deadline_ns);
    }
    if (self->gangs != NULL) {
        is_done = false;
        tow_gang_comm_close(self->gangs, closed);
        tow_daemon_await(&self->daemon, &is_done);
    }
    tow_controller_service_close(&self->controller, &self->daemon);
    tow_daemon_close(&self->daemon);
}

tow_status_t tow_worker_service_run(const tow_worker_service_options_t *options,
                                    bool *out_is_superseded)
{
    worker_service_t self = {.options = options};
    tow_status_t status = open_all(&self);
    if (status == TOW_OK && !tow_daemon_is_signalled())
        tow_daemon_run(&self.daemon);
    close_all(&self);
    *out_is_superseded = tow_status_code(self.refusal) == TOW_ALREADY_EXISTS;
    if (status == TOW_OK)
        status = self.refusal;
    else
        tow_status_release(self.refusal);
    return status;
}
