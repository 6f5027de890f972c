#include "simcluster/roles.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "device/compiler/direct.h"
#include "device/host/sim.h"
#include "session/tuning.h"
#include "worker/enrol.h"

#define PROCESSES_PER_START 4096
/* How long a name may stay taken, as in supervisor/worker_service.c. */
#define REFUSED_NS (2 * TOW_SESSION_LEASE_NS)
#define RESTART_NS (10 * TOW_NS_PER_MS)

/* -- Controllers ------------------------------------------------------------------ */

typedef struct sim_controller {
    tow_driver_t *driver;     /* owned; the compiler uses it */
    tow_compiler_t *compiler; /* owned */
    tow_controller_t *controller;
} sim_controller_t;

static void destroy_controller(void *machine)
{
    sim_controller_t *self = machine;
    tow_direct_compiler_discard(self->compiler);
    tow_controller_destroy(self->controller);
    tow_sim_device_driver_crash(self->driver);
    tow_free(self);
}

/* As `tow up` restarts a controller: above the numbers of the one before. */
static uint32_t first_process(const tow_simcluster_role_t *role)
{
    if (role->start_count == NULL) return 0;
    return PROCESSES_PER_START * (*role->start_count)++;
}

static tow_status_t open_controller(tow_env_t *env,
                                    const tow_simcluster_role_t *role,
                                    sim_controller_t *self)
{
    TOW_RETURN_IF_ERROR(tow_sim_device_driver_create(
        env, &(tow_sim_device_options_t){.model = role->model}, &self->driver));
    TOW_RETURN_IF_ERROR(tow_direct_compiler_create(
        self->driver, &(tow_direct_compiler_options_t){0}, &self->compiler));
    return tow_controller_open(
        env,
        &(tow_controller_options_t){.address = role->controller,
                                    .relay_fanout = role->relay_fanout,
                                    .piece_steps = role->piece_steps,
                                    .late_shift = role->late_shift,
                                    .first_process = first_process(role),
                                    .compiler = self->compiler},
        &self->controller);
}

static tow_status_t start_controller(tow_env_t *env, void *argument,
                                     void **out_machine)
{
    sim_controller_t *self = tow_calloc(1, sizeof(*self));
    if (self == NULL) return tow_status_bare(TOW_RESOURCE_EXHAUSTED);
    *out_machine = self;
    return open_controller(env, argument, self);
}

const tow_sim_program_t tow_simcluster_controller_program = {
    .start = start_controller,
    .destroy = destroy_controller};

tow_controller_t *tow_simcluster_controller_of(const tow_sim_node_t *node)
{
    const sim_controller_t *self = tow_sim_node_machine(node);
    return self == NULL ? NULL : self->controller;
}

/* -- Workers ---------------------------------------------------------------------- */

typedef struct sim_worker {
    const tow_simcluster_role_t *role;
    tow_env_t *env;
    int64_t refused_ns;             /* the first refusal; 0: none */
    tow_enrolment_t *enrolment;     /* owned; NULL: none any more */
    bool enrolment_ends;            /* it is closing */
    tow_driver_t *driver;           /* owned; NULL: not enrolled yet */
    tow_host_runner_t *host_runner; /* owned */
    tow_worker_t *worker;
    /* Replaces the driver's table, to observe the order of gangs. */
    tow_driver_ops_t ops;
    const tow_driver_ops_t *driver_ops;
    uint64_t last_gangs[]; /* by device */
} sim_worker_t;

/* A controller numbers gangs consecutively, and every device gets its gangs in
 * ascending order: so two gangs that share several devices run in the same
 * order on all of them, within and across islands. */
static void check_gang_order(sim_worker_t *self, size_t device, uint64_t gang)
{
    if (gang <= self->last_gangs[device])
        tow_sim_fail(self->role->checker,
                     TOW_ERROR(TOW_INTERNAL,
                               "device %lld gets gang %" PRIu64
                               " after gang %" PRIu64,
                               (long long)self->driver->devices[device].id,
                               gang, self->last_gangs[device]));
    self->last_gangs[device] = gang;
}

static tow_status_t check_run(tow_driver_t *driver, tow_run_t *run)
{
    sim_worker_t *self = TOW_CONTAINER_OF(driver->ops, sim_worker_t, ops);
    for (size_t i = 0; i < run->executable->local_device_count; i++)
        check_gang_order(self, run->executable->local_devices[i], run->gang_id);
    return self->driver_ops->run(driver, run);
}

static void install_check(sim_worker_t *self)
{
    self->driver_ops = self->driver->ops;
    self->ops = *self->driver->ops;
    self->ops.run = check_run;
    self->driver->ops = &self->ops;
}

static void on_enrolment_closed(void *context)
{
    ((sim_worker_t *)context)->enrolment = NULL;
}

/* The process may crash before the enrolment has closed, and discards it then. */
static void end_enrolment(sim_worker_t *self)
{
    if (self->enrolment == NULL || self->enrolment_ends) return;
    self->enrolment_ends = true;
    tow_enrolment_close(self->enrolment,
                        (tow_closed_t){on_enrolment_closed, self});
}

/* The controller may have restarted, which restarts the numbers. */
static void on_joined(void *context, uint64_t cluster)
{
    (void)cluster;
    sim_worker_t *self = context;
    end_enrolment(self);
    self->refused_ns = 0;
    memset(self->last_gangs, 0,
           self->role->device_count * sizeof(*self->last_gangs));
}

static void restart(sim_worker_t *self)
{
    tow_sim_t *sim = self->role->checker;
    tow_sim_node_t *node = tow_sim_node_find(sim, self->env->name);
    const int64_t now_ns = tow_sim_now_ns(sim);
    tow_status_t status = tow_sim_schedule(
        sim, now_ns, &(tow_sim_action_t){.kind = TOW_SIM_CRASH, .node = node},
        NULL);
    if (status == TOW_OK)
        status = tow_sim_schedule(
            sim, now_ns + RESTART_NS,
            &(tow_sim_action_t){.kind = TOW_SIM_RESTART, .node = node}, NULL);
    if (status != TOW_OK) tow_sim_fail(sim, status);
}

/* While it was disconnected, or when the controller restarted, another worker has
 * got its name: it begins anew, as `tow worker` does. */
static void on_refused(void *context, tow_status_t cause)
{
    sim_worker_t *self = context;
    const int64_t now_ns = tow_env_now_ns(self->env);
    if (tow_status_code(cause) != TOW_ALREADY_EXISTS ||
        self->role->checker == NULL)
        return;
    if (self->refused_ns == 0) self->refused_ns = now_ns;
    if (now_ns - self->refused_ns < REFUSED_NS) return;
    self->refused_ns = now_ns; /* Once. */
    restart(self);
}

static void destroy_worker(void *machine)
{
    sim_worker_t *self = machine;
    tow_enrolment_discard(self->enrolment);
    if (self->host_runner != NULL)
        tow_host_runner_discard(
            self->host_runner); /* The worker frees its jobs. */
    if (self->worker != NULL) tow_worker_discard(self->worker);
    if (self->driver != NULL && self->role->lost_time != NULL) {
        const tow_sim_device_counts_t counts =
            tow_sim_device_counts(self->driver);
        tow_device_time_add(self->role->lost_time, counts.busy_ns,
                            counts.wait_ns);
    }
    if (self->driver != NULL) tow_sim_device_driver_crash(self->driver);
    tow_free(self);
}

/* The fabric refuses two live workers with one number. */
static tow_status_t open_worker(sim_worker_t *self, const char *name,
                                uint32_t number)
{
    const tow_simcluster_role_t *role = self->role;
    tow_env_t *env = self->env;
    TOW_RETURN_IF_ERROR(tow_sim_device_driver_create(
        env,
        &(tow_sim_device_options_t){.model = role->model,
                                    .device_count = role->device_count,
                                    .first_id = 2048 * (int64_t)number,
                                    .fabric = role->fabric,
                                    .memory_bytes = role->memory_bytes,
                                    .jitter_ppm = role->jitter_ppm,
                                    .clock = role->clock},
        &self->driver));
    TOW_RETURN_IF_ERROR(
        tow_host_sim_create(env, role->host, &self->host_runner));
    if (role->checker != NULL) install_check(self);
    char listen_address[TOW_PEER_NAME_MAX + 8];
    snprintf(listen_address, sizeof(listen_address), "sim:%s", env->name);
    const tow_worker_options_t options = {
        .controller = role->controller,
        .name = name,
        .is_name_assigned = name != NULL,
        .host = role->host,
        .island = role->island,
        .listen_address = listen_address,
        .process = number,
        .driver = self->driver,
        .host_runner = self->host_runner,
        .limits = {.host_bytes_max = role->host_bytes},
        .hooks = {.joined = on_joined, .refused = on_refused, .context = self}};
    return tow_worker_open(env, &options, &self->worker);
}

static void on_enrolled(void *context, const tow_enrolled_t *enrolled)
{
    sim_worker_t *self = context;
    tow_status_t status = open_worker(self, enrolled->name, enrolled->process);
    if (status != TOW_OK)
        tow_sim_fail(self->role->checker,
                     tow_status_annotate(status, "%s with number %u",
                                         enrolled->name, enrolled->process));
}

static tow_status_t enrol(sim_worker_t *self)
{
    const tow_enrol_options_t options = {
        .controller = self->role->controller,
        .host = self->role->host,
        .hooks = {.enrolled = on_enrolled, .context = self}};
    return tow_enrolment_open(self->env, &options, &self->enrolment);
}

static tow_status_t start_worker(tow_env_t *env, void *argument,
                                 void **out_machine)
{
    const tow_simcluster_role_t *role = argument;
    sim_worker_t *self = tow_calloc(
        1, sizeof(*self) + role->device_count * sizeof(*self->last_gangs));
    if (self == NULL) return tow_status_bare(TOW_RESOURCE_EXHAUSTED);
    *out_machine = self;
    self->role = role;
    self->env = env;
    return role->process_number != NULL
               ? open_worker(self, NULL, ++*role->process_number)
               : enrol(self);
}

const tow_sim_program_t tow_simcluster_worker_program = {.start = start_worker,
                                                         .destroy =
                                                             destroy_worker};

tow_worker_t *tow_simcluster_worker_of(const tow_sim_node_t *node)
{
    const sim_worker_t *self = tow_sim_node_machine(node);
    return self == NULL ? NULL : self->worker;
}

tow_driver_t *tow_simcluster_driver_of(const tow_sim_node_t *node)
{
    const sim_worker_t *self = tow_sim_node_machine(node);
    return self == NULL ? NULL : self->driver;
}
