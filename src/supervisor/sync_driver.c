#include "supervisor/sync_driver.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/assert.h"
#include "collective/intra_host/intra_host.h"
#include "device/compiler/child.h"
#include "device/options.h"
#include "device/pjrt/pjrt.h"
#include "device/sim/sim_device.h"
#include "device/xla_cpu/xla_cpu.h"
#include "supervisor/adapter.h"

#define REPLICA_COUNT_MAX 256
#define OPTIONS_BYTES_MAX (64 + 11 * REPLICA_COUNT_MAX)
#define PATH_SIZE         4096

struct tow_sync_driver {
    tow_security_t security; /* empty: nothing connects */
    tow_net_t *net;          /* owned */
    tow_driver_t *driver;    /* owned */
    /* For collectives between devices of the adapter. */
    char arena[64];         /* "": none */
    tow_intra_host_t *host; /* owned; NULL: none */
    tow_xla_collectives_t collectives;
    char plugin[PATH_SIZE]; /* "": none, a simulated model */
    bool is_adapter;
    tow_sync_driver_compile_place_t compile_place;
    tow_compiler_t *compiler; /* owned; NULL until it is needed */
    /* The operation that the caller waits for. */
    bool done;
    tow_status_t status; /* owned */
    tow_executable_t *executable;
    tow_compiled_t *compiled;
};

/* -- Waiting ---------------------------------------------------------------- */

/* Between two calls no operation is in progress and no result is pending. */
static void check_idle(const tow_sync_driver_t *self)
{
    TOW_ASSERT(self->net != NULL);
    TOW_ASSERT(!self->done && self->status == TOW_OK);
    TOW_ASSERT(self->executable == NULL && self->compiled == NULL);
}

static tow_status_t await(tow_sync_driver_t *self)
{
    while (!self->done)
        tow_net_turn(self->net, TOW_TIME_NEVER);
    self->done = false;
    tow_status_t status = self->status;
    self->status = TOW_OK;
    return status;
}

static void complete(tow_sync_driver_t *self, tow_status_t take_status)
{
    TOW_ASSERT(!self->done);
    self->done = true;
    self->status = take_status;
}

static void complete_closed(void *context)
{
    complete(context, TOW_OK);
}

/* -- Opening ---------------------------------------------------------------- */

#if TOW_HAS_PJRT

typedef struct opening {
    tow_pjrt_open_t open;
    tow_sync_driver_t *self;
} opening_t;

static void opened(tow_pjrt_open_t *open, tow_status_t take_status,
                   tow_driver_t *take_driver)
{
    opening_t *opening = TOW_CONTAINER_OF(open, opening_t, open);
    opening->self->driver = take_driver;
    complete(opening->self, take_status);
}

static tow_status_t open_plugin(tow_sync_driver_t *self, const char *path,
                                const tow_pjrt_value_t *values, size_t count)
{
    opening_t opening = {.self = self,
                         .open = {.path = path,
                                  .values = values,
                                  .value_count = count,
                                  .done = opened}};
    TOW_RETURN_IF_ERROR(tow_pjrt_open(tow_net_env(self->net), &opening.open));
    return await(self);
}

#else

static tow_status_t open_plugin(tow_sync_driver_t *self, const char *path,
                                const tow_pjrt_value_t *values, size_t count)
{
    (void)self, (void)values, (void)count;
    return TOW_ERROR(TOW_UNIMPLEMENTED,
                     "%s: this program was built without the PJRT header; "
                     "`make setup` installs it",
                     path);
}

#endif

/* A private arena: all devices are in this process. */
static tow_status_t open_collectives(tow_sync_driver_t *self,
                                     size_t device_count)
{
    int64_t ids[REPLICA_COUNT_MAX];
    for (size_t i = 0; i < device_count; i++)
        ids[i] = (int64_t)i;
    snprintf(self->arena, sizeof(self->arena), "/tow-self-%d", (int)getpid());
    TOW_RETURN_IF_ERROR(tow_intra_host_arena_create(self->arena));
    tow_intra_host_options_t options = {
        .arena = self->arena, .device_ids = ids, .device_count = device_count};
    TOW_RETURN_IF_ERROR(tow_intra_host_open(&options, &self->host));
    self->collectives =
        (tow_xla_collectives_t){.struct_size = sizeof(self->collectives),
                                .context = self->host,
                                .run = tow_intra_host_collective,
                                .supports_fibers = 1};
    return TOW_OK;
}

static tow_status_t open_adapter(tow_sync_driver_t *self, size_t device_count)
{
    self->is_adapter = true;
    TOW_RETURN_IF_ERROR(tow_adapter_find(self->plugin, sizeof(self->plugin)));
    tow_adapter_quiet();
    if (device_count > 1)
        TOW_RETURN_IF_ERROR(open_collectives(self, device_count));
    const tow_pjrt_value_t values[] = {
        {.name = "device_count",
         .type = TOW_PJRT_INT64,
         .int64 = (int64_t)device_count},
        {.name = "tow_collectives",
         .type = TOW_PJRT_INT64,
         .int64 = (int64_t)(intptr_t)&self->collectives},
    };
    return open_plugin(self, self->plugin, values, device_count > 1 ? 2 : 1);
}

static tow_status_t open_model(tow_sync_driver_t *self, const char *name,
                               size_t device_count)
{
    tow_sim_model_t model;
    TOW_RETURN_IF_ERROR(tow_sim_model_find(name, &model));
    tow_sim_device_options_t options = {.model = &model,
                                        .device_count = device_count};
    return tow_sim_device_driver_create(tow_net_env(self->net), &options,
                                        &self->driver);
}

static tow_status_t open_driver(tow_sync_driver_t *self,
                                const tow_sync_driver_options_t *options)
{
    const size_t count = options->device_count != 0 ? options->device_count : 1;
    if (count > REPLICA_COUNT_MAX)
        return TOW_ERROR(TOW_INVALID_ARGUMENT,
                         "%zu devices requested, limit %d", count,
                         REPLICA_COUNT_MAX);
    if (options->model != NULL) return open_model(self, options->model, count);
    if (options->plugin == NULL) return open_adapter(self, count);
    snprintf(self->plugin, sizeof(self->plugin), "%s", options->plugin);
    return open_plugin(self, self->plugin, NULL, 0);
}

tow_status_t tow_sync_driver_open(const tow_sync_driver_options_t *options,
                                  tow_sync_driver_t **out_self)
{
    *out_self = NULL;
    tow_sync_driver_t *self = tow_calloc(1, sizeof(*self));
    if (self == NULL) return tow_status_bare(TOW_RESOURCE_EXHAUSTED);
    tow_net_options_t net = {
        .name = "local", .security = &self->security, .log = options->log};
    self->compile_place = options->compile_place;
    tow_status_t status = tow_net_create(&net, &self->net);
    if (status == TOW_OK) status = open_driver(self, options);
    if (status != TOW_OK) {
        tow_sync_driver_close(self);
        return status;
    }
    *out_self = self;
    return TOW_OK;
}

void tow_sync_driver_close(tow_sync_driver_t *self)
{
    if (self == NULL) return;
    if (self->compiler != NULL) {
        tow_compiler_close(self->compiler,
                           (tow_closed_t){complete_closed, self});
        tow_status_ignore(await(self), "closing always ends well");
    }
    if (self->driver != NULL) {
        tow_driver_close(self->driver, (tow_closed_t){complete_closed, self});
        tow_status_ignore(await(self), "closing always ends well");
    }
    tow_intra_host_close(self->host);
    if (self->arena[0] != '\0') tow_intra_host_arena_remove(self->arena);
    tow_net_destroy(self->net);
    tow_free(self);
}

tow_driver_t *tow_sync_driver_driver(tow_sync_driver_t *self)
{
    return self->driver;
}

/* -- Compiling -------------------------------------------------------------- */

/* Replicas on the first devices. Returns the size. */
static size_t pack_options(const tow_driver_t *driver, size_t replica_count,
                           uint8_t bytes[OPTIONS_BYTES_MAX])
{
    int64_t ids[REPLICA_COUNT_MAX];
    for (size_t i = 0; i < replica_count; i++)
        ids[i] = driver->devices[i].id;
    const tow_compile_options_t options = {
        .assignment = {.replica_count = replica_count, .device_ids = ids}};
    TOW_ASSERT(tow_compile_options_size(&options) <= OPTIONS_BYTES_MAX);
    return tow_compile_options_pack(&options, bytes);
}

typedef struct compiling {
    tow_compile_t compile;
    tow_sync_driver_t *self;
} compiling_t;

static void compiled(tow_compile_t *compile, tow_status_t take_status,
                     tow_executable_t *take_executable)
{
    compiling_t *compiling = TOW_CONTAINER_OF(compile, compiling_t, compile);
    compiling->self->executable = take_executable;
    complete(compiling->self, take_status);
}

/* tow_driver_load of a serialised executable, or tow_driver_compile. */
typedef tow_status_t (*make_t)(tow_driver_t *driver, tow_compile_t *compile);

static tow_status_t make(tow_sync_driver_t *self, make_t how,
                         const tow_compile_job_t *job, tow_bytes_t program,
                         tow_executable_t **out_executable)
{
    compiling_t compiling = {.self = self,
                             .compile = {.format = job->format,
                                         .program = program,
                                         .options = job->options,
                                         .done = compiled}};
    TOW_RETURN_IF_ERROR(how(self->driver, &compiling.compile));
    tow_status_t status = await(self);
    *out_executable = self->executable;
    self->executable = NULL;
    return status;
}

#if TOW_HAS_PJRT

typedef struct submitted {
    tow_compile_job_t job;
    tow_sync_driver_t *self;
} submitted_t;

static void job_done(tow_compile_job_t *job, tow_status_t take_status,
                     tow_compiled_t *take_compiled)
{
    submitted_t *submitted = TOW_CONTAINER_OF(job, submitted_t, job);
    submitted->self->compiled = take_compiled;
    complete(submitted->self, take_status);
}

/* The adapter's other options are addresses in this process, useless in a
 * child. */
static tow_status_t open_compiler(tow_sync_driver_t *self)
{
    char program[PATH_SIZE];
    const tow_pjrt_value_t count = {.name = "device_count",
                                    .type = TOW_PJRT_INT64,
                                    .int64 =
                                        (int64_t)self->driver->device_count};
    if (self->compiler != NULL) return TOW_OK;
    TOW_RETURN_IF_ERROR(tow_child_compiler_find(program, sizeof(program)));
    const tow_child_compiler_options_t options = {.program = program,
                                                  .plugin = self->plugin,
                                                  .values = &count,
                                                  .value_count =
                                                      self->is_adapter ? 1 : 0};
    return tow_child_compiler_create(tow_net_env(self->net), &options,
                                     &self->compiler);
}

static tow_status_t compile_in_child(tow_sync_driver_t *self,
                                     const tow_compile_job_t *job,
                                     tow_executable_t **out_executable)
{
    TOW_RETURN_IF_ERROR(open_compiler(self));
    submitted_t submitted = {.job = *job, .self = self};
    submitted.job.done = job_done;
    const tow_submit_result_t result =
        tow_compiler_submit(self->compiler, &submitted.job);
    TOW_ASSERT(result == TOW_SUBMIT_OK); /* No other job is queued. */
    TOW_RETURN_IF_ERROR(await(self));
    tow_compiled_t *bytes = self->compiled;
    self->compiled = NULL;
    tow_status_t status =
        make(self, tow_driver_load, job,
             (tow_bytes_t){bytes->bytes, bytes->size}, out_executable);
    tow_compiled_destroy(bytes);
    return status;
}

#else

static tow_status_t compile_in_child(tow_sync_driver_t *self,
                                     const tow_compile_job_t *job,
                                     tow_executable_t **out_executable)
{
    return make(self, tow_driver_compile, job, job->program, out_executable);
}

#endif

static tow_status_t explain(tow_status_t take_status)
{
    if (tow_status_code(take_status) != TOW_UNIMPLEMENTED) return take_status;
    return tow_status_annotate(
        take_status, "compiling in a child process (`tow run --in-process` "
                     "compiles without one)");
}

tow_status_t tow_sync_driver_compile(tow_sync_driver_t *self,
                                     tow_program_format_t format,
                                     tow_bytes_t program, size_t device_count,
                                     tow_executable_t **out_executable)
{
    check_idle(self);
    *out_executable = NULL;
    if (device_count == 0 || device_count > self->driver->device_count ||
        device_count > REPLICA_COUNT_MAX)
        return TOW_ERROR(TOW_INVALID_ARGUMENT,
                         "%zu devices requested, %zu available", device_count,
                         self->driver->device_count);
    uint8_t options[OPTIONS_BYTES_MAX];
    const size_t options_size =
        pack_options(self->driver, device_count, options);
    const tow_compile_job_t job = {.format = format,
                                   .program = program,
                                   .options = {options, options_size},
                                   .device_kind =
                                       self->driver->devices[0].kind};
    if (self->plugin[0] != '\0' &&
        self->compile_place == TOW_SYNC_DRIVER_COMPILE_IN_CHILD)
        return explain(compile_in_child(self, &job, out_executable));
    return make(self, tow_driver_compile, &job, program, out_executable);
}

/* -- Buffers and runs ------------------------------------------------------- */

typedef struct uploading {
    tow_upload_t upload;
    tow_sync_driver_t *self;
} uploading_t;

static void uploaded(tow_upload_t *upload, tow_status_t take_status)
{
    complete(TOW_CONTAINER_OF(upload, uploading_t, upload)->self, take_status);
}

tow_status_t tow_sync_driver_upload(tow_sync_driver_t *self, size_t device,
                                    const tow_shape_t *shape, const void *bytes,
                                    tow_buffer_t **out_buffer)
{
    check_idle(self);
    *out_buffer = NULL;
    uploading_t uploading = {.self = self,
                             .upload = {.device = device,
                                        .shape = *shape,
                                        .bytes = bytes,
                                        .done = uploaded}};
    TOW_RETURN_IF_ERROR(tow_driver_upload(self->driver, &uploading.upload));
    *out_buffer = uploading.upload.buffer;
    return await(self);
}

typedef struct downloading {
    tow_download_t download;
    tow_sync_driver_t *self;
} downloading_t;

static void downloaded(tow_download_t *download, tow_status_t take_status)
{
    complete(TOW_CONTAINER_OF(download, downloading_t, download)->self,
             take_status);
}

tow_status_t tow_sync_driver_download(tow_sync_driver_t *self,
                                      tow_buffer_t *buffer, void **out_bytes,
                                      size_t *out_size)
{
    check_idle(self);
    uint64_t size = 0;
    *out_bytes = NULL;
    TOW_RETURN_IF_ERROR(tow_shape_bytes(&buffer->shape, &size));
    void *bytes = tow_malloc(size + 1);
    if (bytes == NULL) return tow_status_bare(TOW_RESOURCE_EXHAUSTED);
    downloading_t downloading = {.self = self,
                                 .download = {.buffer = buffer,
                                              .bytes = bytes,
                                              .size = size,
                                              .done = downloaded}};
    tow_status_t status =
        tow_driver_download(self->driver, &downloading.download);
    if (status == TOW_OK) status = await(self);
    if (status != TOW_OK) {
        tow_free(bytes);
        return status;
    }
    *out_bytes = bytes;
    *out_size = size;
    return TOW_OK;
}

typedef struct running {
    tow_run_t run;
    tow_sync_driver_t *self;
} running_t;

static void ran(tow_run_t *run, tow_status_t take_status)
{
    complete(TOW_CONTAINER_OF(run, running_t, run)->self, take_status);
}

tow_status_t tow_sync_driver_run(tow_sync_driver_t *self, const tow_run_t *run)
{
    check_idle(self);
    running_t running = {.run = *run, .self = self};
    running.run.done = ran;
    TOW_RETURN_IF_ERROR(tow_driver_run(self->driver, &running.run));
    return await(self);
}
