/* The driver: creation, closing, and its turns. */
#include "device/sim/sim_device.h"

#include <inttypes.h>
#include <stdio.h>

#include "base/alloc.h"
#include "base/assert.h"
#include "device/sim/driver_impl.h"

#define NAME_SIZE (TOW_SIM_MODEL_NAME_MAX + 24)

uint64_t tow_sim_scale_ns(const driver_t *driver, uint64_t ns)
{
    return ns / driver->speedup + (ns % driver->speedup != 0);
}

tow_status_t tow_sim_check_open_driver(const driver_t *driver)
{
    if (TOW_LIKELY(!driver->is_closing)) return TOW_OK;
    return TOW_ERROR(TOW_FAILED_PRECONDITION, "the driver is closing");
}

/* -- Turns ----------------------------------------------------------------- */

void tow_sim_driver_kick(driver_t *driver)
{
    if (driver->is_kicked) return;
    driver->is_kicked = true;
    tow_env_post(driver->base.env, &driver->kick);
}

void tow_sim_device_touch(device_t *device)
{
    driver_t *driver = device->driver;
    if (!tow_list_is_empty(&device->in_dirty)) return;
    tow_list_append(&driver->touched, &device->in_dirty);
    tow_sim_driver_kick(driver);
}

void tow_sim_device_mark(device_t *device)
{
    tow_list_remove(&device->in_dirty);
    tow_list_append(&device->driver->dirty, &device->in_dirty);
}

void tow_sim_driver_process_marked(driver_t *driver)
{
    tow_list_t *link;
    while ((link = tow_list_pop_front(&driver->dirty)) != NULL) {
        device_t *device = TOW_CONTAINER_OF(link, device_t, in_dirty);
        for (int i = 0; i < LANE_COUNT; i++) {
            tow_sim_lane_advance(&device->lanes[i]);
            tow_sim_lane_check(&device->lanes[i]);
        }
        tow_sim_device_advance(device);
        tow_sim_device_check(device);
    }
}

static void mark_touched(driver_t *driver)
{
    tow_list_t *link;
    while ((link = tow_list_pop_front(&driver->touched)) != NULL)
        tow_list_append(&driver->dirty, link);
}

/* -- Closing --------------------------------------------------------------- */

/* Also of a partly created driver. */
static void free_driver(driver_t *driver)
{
    size_t count = driver->base.device_count;
    for (size_t i = 0; driver->devices != NULL && i < count; i++)
        if (driver->devices[i].driver != NULL)
            tow_sim_fabric_leave(driver->fabric, &driver->devices[i].member);
    tow_sim_fabric_destroy(driver->own_fabric);
    tow_free(driver->devices);
    tow_free(driver->infos);
    tow_free(driver->names);
    tow_free(driver);
}

static bool is_empty(const driver_t *driver)
{
    return tow_list_is_empty(&driver->jobs) && driver->compiles == NULL &&
           driver->counts.buffers == 0 && driver->counts.executables == 0;
}

static void try_to_end(driver_t *driver)
{
    bool is_quiet = tow_list_is_empty(&driver->touched) && !driver->is_kicked;
    if (!is_quiet) return;
    if (!is_empty(driver)) {
        tow_log(&driver->base.env->log, TOW_LOG_WARN,
                "sim driver waits for its owner to release",
                TOW_F_U64("buffers", driver->counts.buffers),
                TOW_F_U64("executables", driver->counts.executables));
        return;
    }
    tow_closed_t closed = driver->closed;
    free_driver(driver);
    if (closed.run != NULL) closed.run(closed.context);
}

static void kick_run(tow_post_t *post)
{
    driver_t *driver = TOW_CONTAINER_OF(post, driver_t, kick);
    driver->is_kicked = false;
    driver->counts.turns++;
    mark_touched(driver);
    tow_sim_compiles_finish(driver);
    tow_sim_driver_process_marked(driver);
    if (driver->is_closing) try_to_end(driver);
}

static void sim_close(tow_driver_t *base, tow_closed_t closed)
{
    driver_t *driver = tow_sim_driver_of(base);
    TOW_ASSERT(!driver->is_closing);
    driver->is_closing = true;
    driver->closed = closed;
    tow_status_t cause = TOW_ERROR(TOW_CANCELLED, "the driver was closed");
    tow_list_t *head = &driver->jobs;
    for (tow_list_t *at = head->next; at != head; at = at->next)
        tow_sim_abort(base, TOW_CONTAINER_OF(at, job_t, in_driver)->gang_id,
                      cause);
    tow_status_release(cause);
    for (size_t i = 0; i < base->device_count; i++)
        tow_sim_device_touch(&driver->devices[i]);
}

void tow_sim_device_driver_crash(tow_driver_t *base)
{
    if (base == NULL) return;
    driver_t *driver = tow_sim_driver_of(base);
    for (size_t i = 0; i < base->device_count; i++)
        driver->devices[i].member.env = NULL;
    for (size_t i = 0; i < base->device_count; i++)
        tow_sim_fabric_leave(driver->fabric, &driver->devices[i].member);
    while (!tow_list_is_empty(&driver->jobs))
        tow_sim_job_free(TOW_CONTAINER_OF(driver->jobs.next, job_t, in_driver));
    while (!tow_list_is_empty(&driver->buffers))
        tow_sim_buffer_free(
            TOW_CONTAINER_OF(driver->buffers.next, buffer_t, in_driver));
    tow_sim_compiles_discard(driver);
    while (!tow_list_is_empty(&driver->executables))
        tow_sim_executable_free(TOW_CONTAINER_OF(driver->executables.next,
                                                 executable_t, in_driver));
    free_driver(driver);
}

/* -- The table ------------------------------------------------------------- */

static tow_status_t sim_memory_stats(tow_driver_t *base, size_t device,
                                     tow_memory_stats_t *out_stats)
{
    *out_stats = tow_sim_driver_of(base)->devices[device].memory;
    return TOW_OK;
}

static const tow_driver_ops_t sim_ops = {
    .close = sim_close,
    .memory_stats = sim_memory_stats,
    .compile = tow_sim_compile,
    .load = tow_sim_load,
    .serialize = tow_sim_serialize,
    .executable_retain = tow_sim_executable_retain,
    .executable_release = tow_sim_executable_release,
    .allocate = tow_sim_allocate,
    .upload = tow_sim_upload,
    .upload_settle = tow_sim_upload_settle,
    .download = tow_sim_download,
    .share = tow_sim_share,
    .share_end = tow_sim_share_end,
    .copy = tow_sim_copy,
    .buffer_state = tow_sim_buffer_state,
    .buffer_error = tow_sim_buffer_error,
    .buffer_retain = tow_sim_buffer_retain,
    .buffer_release = tow_sim_buffer_release,
    .run = tow_sim_run_enqueue,
    .abort = tow_sim_abort,
};

/* -- Creating -------------------------------------------------------------- */

static tow_status_t set_up_device(driver_t *driver, size_t index,
                                  const tow_sim_device_options_t *options)
{
    device_t *device = &driver->devices[index];
    tow_device_info_t *info = &driver->infos[index];
    char *name = driver->names + index * NAME_SIZE;
    uint64_t memory_bytes = options->memory_bytes > 0
                                ? options->memory_bytes
                                : driver->model.memory_bytes;
    *info = (tow_device_info_t){.id = options->first_id + (int64_t)index,
                                .kind = driver->model.kind,
                                .name = name,
                                .memory_bytes = memory_bytes};
    snprintf(name, NAME_SIZE, "%s/%" PRId64, driver->model.name, info->id);
    device->driver = driver;
    device->index = index;
    device->memory.bytes_limit = memory_bytes;
    device->member.device_id = info->id;
    device->member.env = driver->base.env;
    device->member.timer = &device->timer;
    tow_sim_device_init(device);
    for (int i = 0; i < LANE_COUNT; i++)
        tow_sim_lane_init(&device->lanes[i], device, (lane_kind_t)i);
    return tow_sim_fabric_join(driver->fabric, &device->member);
}

static tow_status_t set_up_devices(driver_t *driver,
                                   const tow_sim_device_options_t *options)
{
    size_t count = driver->base.device_count;
    driver->devices = tow_calloc(count, sizeof(*driver->devices));
    driver->infos = tow_calloc(count, sizeof(*driver->infos));
    driver->names = tow_calloc(count, NAME_SIZE);
    if (driver->devices == NULL || driver->infos == NULL ||
        driver->names == NULL)
        return tow_status_bare(TOW_RESOURCE_EXHAUSTED);
    driver->base.devices = driver->infos;
    driver->counts.memory_bytes =
        sizeof(*driver) +
        count * (sizeof(*driver->devices) + sizeof(*driver->infos) + NAME_SIZE);
    for (size_t i = 0; i < count; i++)
        TOW_RETURN_IF_ERROR(set_up_device(driver, i, options));
    return TOW_OK;
}

static tow_status_t set_up(driver_t *driver,
                           const tow_sim_device_options_t *options)
{
    driver->fabric = options->fabric;
    if (driver->fabric == NULL) {
        TOW_RETURN_IF_ERROR(tow_sim_fabric_create(NULL, &driver->own_fabric));
        driver->fabric = driver->own_fabric;
    }
    return set_up_devices(driver, options);
}

static void init_driver(driver_t *driver, tow_env_t *env,
                        const tow_sim_device_options_t *options)
{
    driver->base = (tow_driver_t){
        .ops = &sim_ops,
        .env = env,
        .name = "sim",
        .platform = "sim",
        .version = "cost 1",
        .device_count = options->device_count > 0 ? options->device_count : 1,
        .simulated = true,
        .has_free_promises = true,
    };
    driver->model = *options->model;
    driver->speedup = options->speedup > 0 ? options->speedup : 1;
    driver->jitter_ppm = options->jitter_ppm;
    driver->clock = options->clock;
    if (options->jitter_ppm > 0 || options->clock == TOW_SIM_CLOCK_ABSURD)
        driver->random = tow_random_fork(tow_env_random(env));
    driver->kick.run = kick_run;
    tow_list_init(&driver->buffers);
    tow_list_init(&driver->executables);
    tow_list_init(&driver->jobs);
    tow_list_init(&driver->touched);
    tow_list_init(&driver->dirty);
}

tow_status_t tow_sim_device_driver_create(
    tow_env_t *env, const tow_sim_device_options_t *options,
    tow_driver_t **out_driver)
{
    TOW_ASSERT(options->model != NULL);
    *out_driver = NULL;
    if (options->device_count > TOW_SIM_DEVICE_COUNT_MAX ||
        options->first_id > INT64_MAX - TOW_SIM_DEVICE_COUNT_MAX)
        return TOW_ERROR(
            TOW_INVALID_ARGUMENT,
            "%zu simulated devices from id %" PRId64 "; at most %u are allowed",
            options->device_count, options->first_id, TOW_SIM_DEVICE_COUNT_MAX);
    driver_t *driver = tow_calloc(1, sizeof(*driver));
    if (driver == NULL) return tow_status_bare(TOW_RESOURCE_EXHAUSTED);
    init_driver(driver, env, options);
    tow_status_t status = set_up(driver, options);
    if (status != TOW_OK) {
        free_driver(driver);
        return tow_status_annotate(status, "creating simulated devices");
    }
    *out_driver = &driver->base;
    return TOW_OK;
}

tow_sim_device_counts_t tow_sim_device_counts(const tow_driver_t *driver)
{
    return ((const driver_t *)driver)->counts;
}
