#include "tool/local.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/assert.h"
#include "collective/host/host.h"
#include "device/compiler/child.h"
#include "device/options.h"
#include "device/pjrt/pjrt.h"
#include "device/sim/sim_device.h"
#include "device/xla_cpu/xla_cpu.h"
#include "tool/command.h"

#define REPLICA_COUNT_MAX 256
#define OPTIONS_BYTES_MAX (64 + 11 * REPLICA_COUNT_MAX)
#define PATH_SIZE         4096

struct tow_local {
    tow_security_t security; /* nobody connects: it stays empty */
    tow_net_t *net;          /* owned */
    tow_driver_t *driver;    /* owned */
    /* For collectives between devices of the adapter. */
    char arena[64];   /* "": none */
    tow_host_t *host; /* owned; NULL: none */
    tow_xla_collectives_t collectives;
    char plugin[PATH_SIZE]; /* "": none, a model */
    bool is_adapter;
    tow_local_compile_place_t compile_place;
    tow_compiler_t *compiler; /* owned; NULL until it is needed */
    /* What is being waited for. */
    bool done;
    tow_status_t status; /* owned */
    tow_executable_t *executable;
    tow_compiled_t *compiled;
};

/* -- Waiting ---------------------------------------------------------------- */

static tow_status_t await(tow_local_t *local)
{
    while (!local->done)
        tow_net_turn(local->net, TOW_TIME_NEVER);
    local->done = false;
    tow_status_t status = local->status;
    local->status = TOW_OK;
    return status;
}

static void complete(tow_local_t *local, tow_status_t take_status)
{
    TOW_ASSERT(!local->done);
    local->done = true;
    local->status = take_status;
}

static void complete_closed(void *context)
{
    complete(context, TOW_OK);
}

/* -- Opening ---------------------------------------------------------------- */

static bool try_path(char *path, size_t capacity, const char *folder,
                     const char *tail)
{
    int length = snprintf(path, capacity, "%s/%s", folder, tail);
    return length > 0 && (size_t)length < capacity && access(path, R_OK) == 0;
}

tow_status_t tow_local_find_adapter(char *path, size_t capacity)
{
    const char *given = getenv("TOW_XLA_CPU");
    if (given != NULL) {
        snprintf(path, capacity, "%s", given);
        return TOW_OK;
    }
    char folder[PATH_SIZE];
    ssize_t length = readlink("/proc/self/exe", folder, sizeof(folder) - 1);
    if (length > 0) {
        folder[length] = '\0';
        *strrchr(folder, '/') = '\0';
        if (try_path(path, capacity, folder,
                     "src/device/xla_cpu/libtow_xla_cpu.so") ||
            try_path(path, capacity, folder,
                     "../lib/x86_64-linux-gnu/towpath/libtow_xla_cpu.so") ||
            try_path(path, capacity, folder,
                     "../lib/towpath/libtow_xla_cpu.so"))
            return TOW_OK;
    }
    return TOW_ERROR(TOW_NOT_FOUND,
                     "libtow_xla_cpu.so is not built here: `make` builds it, "
                     "or TOW_XLA_CPU names it");
}

void tow_local_quiet_adapter(void)
{
    /* The library around XLA greets on standard error when it loads, unless it
     * is told to leave out kernels that XLA does not use. */
    setenv("TF_ENABLE_ONEDNN_OPTS", "0", 0);
    /* And it warns, for screens, of each executable that it loads: two tuning
     * preferences of its own are no features of this host's processor. */
    setenv("TF_CPP_MIN_LOG_LEVEL", "3", 0);
}

#if TOW_HAS_PJRT

typedef struct opening {
    tow_pjrt_open_t open;
    tow_local_t *local;
} opening_t;

static void opened(tow_pjrt_open_t *open, tow_status_t take_status,
                   tow_driver_t *take_driver)
{
    opening_t *opening = TOW_CONTAINER_OF(open, opening_t, open);
    opening->local->driver = take_driver;
    complete(opening->local, take_status);
}

static tow_status_t open_plugin(tow_local_t *local, const char *path,
                                const tow_pjrt_value_t *values, size_t count)
{
    opening_t opening = {.local = local,
                         .open = {.path = path,
                                  .values = values,
                                  .value_count = count,
                                  .done = opened}};
    TOW_RETURN_IF_ERROR(tow_pjrt_open(tow_net_env(local->net), &opening.open));
    return await(local);
}

#else

static tow_status_t open_plugin(tow_local_t *local, const char *path,
                                const tow_pjrt_value_t *values, size_t count)
{
    (void)local, (void)values, (void)count;
    return TOW_ERROR(TOW_UNIMPLEMENTED,
                     "%s: this program was built without the PJRT header; "
                     "`make setup` brings it",
                     path);
}

#endif

/* An arena of our own: the devices are all in this process. */
static tow_status_t open_collectives(tow_local_t *local, size_t device_count)
{
    int64_t ids[REPLICA_COUNT_MAX];
    for (size_t i = 0; i < device_count; i++)
        ids[i] = (int64_t)i;
    snprintf(local->arena, sizeof(local->arena), "/tow-local-%d",
             (int)getpid());
    TOW_RETURN_IF_ERROR(tow_host_arena_create(local->arena));
    tow_host_options_t options = {
        .arena = local->arena, .device_ids = ids, .device_count = device_count};
    TOW_RETURN_IF_ERROR(tow_host_open(&options, &local->host));
    local->collectives =
        (tow_xla_collectives_t){.struct_size = sizeof(local->collectives),
                                .context = local->host,
                                .run = tow_host_collective,
                                .takes_turns = 1};
    return TOW_OK;
}

static tow_status_t open_adapter(tow_local_t *local, size_t device_count)
{
    local->is_adapter = true;
    TOW_RETURN_IF_ERROR(
        tow_local_find_adapter(local->plugin, sizeof(local->plugin)));
    tow_local_quiet_adapter();
    if (device_count > 1)
        TOW_RETURN_IF_ERROR(open_collectives(local, device_count));
    const tow_pjrt_value_t values[] = {
        {.name = "device_count",
         .type = TOW_PJRT_INT64,
         .int64 = (int64_t)device_count},
        {.name = "tow_collectives",
         .type = TOW_PJRT_INT64,
         .int64 = (int64_t)(intptr_t)&local->collectives},
    };
    return open_plugin(local, local->plugin, values, device_count > 1 ? 2 : 1);
}

static tow_status_t open_model(tow_local_t *local, const char *name,
                               size_t device_count)
{
    tow_sim_model_t model;
    TOW_RETURN_IF_ERROR(tow_sim_model_find(name, &model));
    tow_sim_device_options_t options = {.model = &model,
                                        .device_count = device_count};
    return tow_sim_device_driver_create(tow_net_env(local->net), &options,
                                        &local->driver);
}

static tow_status_t open_driver(tow_local_t *local,
                                const tow_local_options_t *options)
{
    const size_t count = options->device_count != 0 ? options->device_count : 1;
    if (count > REPLICA_COUNT_MAX)
        return TOW_ERROR(TOW_INVALID_ARGUMENT, "%zu devices: at most %d", count,
                         REPLICA_COUNT_MAX);
    if (options->model != NULL) return open_model(local, options->model, count);
    if (options->plugin == NULL) return open_adapter(local, count);
    snprintf(local->plugin, sizeof(local->plugin), "%s", options->plugin);
    return open_plugin(local, local->plugin, NULL, 0);
}

tow_status_t tow_local_open(const tow_local_options_t *options,
                            tow_local_t **out_local)
{
    *out_local = NULL;
    tow_local_t *local = tow_calloc(1, sizeof(*local));
    if (local == NULL) return tow_status_bare(TOW_RESOURCE_EXHAUSTED);
    tow_net_options_t net = {.name = "local",
                             .security = &local->security,
                             .log = tow_command_log("local")};
    local->compile_place = options->compile_place;
    tow_status_t status = tow_net_create(&net, &local->net);
    if (status == TOW_OK) status = open_driver(local, options);
    if (status != TOW_OK) {
        tow_local_close(local);
        return status;
    }
    *out_local = local;
    return TOW_OK;
}

void tow_local_close(tow_local_t *local)
{
    if (local == NULL) return;
    if (local->compiler != NULL) {
        tow_compiler_close(local->compiler,
                           (tow_closed_t){complete_closed, local});
        tow_status_ignore(await(local), "closing always ends well");
    }
    if (local->driver != NULL) {
        tow_driver_close(local->driver, (tow_closed_t){complete_closed, local});
        tow_status_ignore(await(local), "closing always ends well");
    }
    tow_host_close(local->host);
    if (local->arena[0] != '\0') tow_host_arena_remove(local->arena);
    tow_net_destroy(local->net);
    tow_free(local);
}

tow_driver_t *tow_local_driver(tow_local_t *local)
{
    return local->driver;
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
    tow_local_t *local;
} compiling_t;

static void compiled(tow_compile_t *compile, tow_status_t take_status,
                     tow_executable_t *take_executable)
{
    compiling_t *compiling = TOW_CONTAINER_OF(compile, compiling_t, compile);
    compiling->local->executable = take_executable;
    complete(compiling->local, take_status);
}

/* Through the driver: loads bytes if they are serialised, else compiles. */
typedef tow_status_t (*make_t)(tow_driver_t *driver, tow_compile_t *compile);

static tow_status_t make(tow_local_t *local, make_t how,
                         const tow_compile_job_t *job, tow_bytes_t program,
                         tow_executable_t **out_executable)
{
    compiling_t compiling = {.local = local,
                             .compile = {.format = job->format,
                                         .program = program,
                                         .options = job->options,
                                         .done = compiled}};
    TOW_RETURN_IF_ERROR(how(local->driver, &compiling.compile));
    tow_status_t status = await(local);
    *out_executable = local->executable;
    local->executable = NULL;
    return status;
}

#if TOW_HAS_PJRT

typedef struct submitted {
    tow_compile_job_t job;
    tow_local_t *local;
} submitted_t;

static void job_done(tow_compile_job_t *job, tow_status_t take_status,
                     tow_compiled_t *take_compiled)
{
    submitted_t *submitted = TOW_CONTAINER_OF(job, submitted_t, job);
    submitted->local->compiled = take_compiled;
    complete(submitted->local, take_status);
}

/* The adapter's other values are addresses in this process. */
static tow_status_t open_compiler(tow_local_t *local)
{
    char program[PATH_SIZE];
    const tow_pjrt_value_t count = {.name = "device_count",
                                    .type = TOW_PJRT_INT64,
                                    .int64 =
                                        (int64_t)local->driver->device_count};
    if (local->compiler != NULL) return TOW_OK;
    TOW_RETURN_IF_ERROR(tow_child_compiler_find(program, sizeof(program)));
    const tow_child_compiler_options_t options = {
        .program = program,
        .plugin = local->plugin,
        .values = &count,
        .value_count = local->is_adapter ? 1 : 0};
    return tow_child_compiler_create(tow_net_env(local->net), &options,
                                     &local->compiler);
}

static tow_status_t compile_in_child(tow_local_t *local,
                                     const tow_compile_job_t *job,
                                     tow_executable_t **out_executable)
{
    TOW_RETURN_IF_ERROR(open_compiler(local));
    submitted_t submitted = {.job = *job, .local = local};
    submitted.job.done = job_done;
    const tow_submit_result_t result =
        tow_compiler_submit(local->compiler, &submitted.job);
    TOW_ASSERT(result == TOW_SUBMIT_OK); /* It is the only one. */
    TOW_RETURN_IF_ERROR(await(local));
    tow_compiled_t *bytes = local->compiled;
    local->compiled = NULL;
    tow_status_t status =
        make(local, tow_driver_load, job,
             (tow_bytes_t){bytes->bytes, bytes->size}, out_executable);
    tow_compiled_destroy(bytes);
    return status;
}

#else

static tow_status_t compile_in_child(tow_local_t *local,
                                     const tow_compile_job_t *job,
                                     tow_executable_t **out_executable)
{
    return make(local, tow_driver_compile, job, job->program, out_executable);
}

#endif

static tow_status_t explain(tow_status_t take_status)
{
    if (tow_status_code(take_status) != TOW_UNIMPLEMENTED) return take_status;
    return tow_status_annotate(take_status,
                               "in a child process (`tow run --in-process` "
                               "compiles without one)");
}

tow_status_t tow_local_compile(tow_local_t *local, tow_program_format_t format,
                               tow_bytes_t program, size_t device_count,
                               tow_executable_t **out_executable)
{
    *out_executable = NULL;
    if (device_count == 0 || device_count > local->driver->device_count ||
        device_count > REPLICA_COUNT_MAX)
        return TOW_ERROR(TOW_INVALID_ARGUMENT,
                         "%zu devices are asked for, and there are %zu",
                         device_count, local->driver->device_count);
    uint8_t options[OPTIONS_BYTES_MAX];
    const size_t options_size =
        pack_options(local->driver, device_count, options);
    const tow_compile_job_t job = {.format = format,
                                   .program = program,
                                   .options = {options, options_size},
                                   .device_kind =
                                       local->driver->devices[0].kind};
    if (local->plugin[0] != '\0' && local->compile_place == TOW_LOCAL_CHILD)
        return explain(compile_in_child(local, &job, out_executable));
    return make(local, tow_driver_compile, &job, program, out_executable);
}

/* -- Buffers and runs ------------------------------------------------------- */

typedef struct uploading {
    tow_upload_t upload;
    tow_local_t *local;
} uploading_t;

static void uploaded(tow_upload_t *upload, tow_status_t take_status)
{
    complete(TOW_CONTAINER_OF(upload, uploading_t, upload)->local, take_status);
}

tow_status_t tow_local_upload(tow_local_t *local, size_t device,
                              const tow_shape_t *shape, const void *bytes,
                              tow_buffer_t **out_buffer)
{
    *out_buffer = NULL;
    uploading_t uploading = {.local = local,
                             .upload = {.device = device,
                                        .shape = *shape,
                                        .bytes = bytes,
                                        .done = uploaded}};
    TOW_RETURN_IF_ERROR(tow_driver_upload(local->driver, &uploading.upload));
    *out_buffer = uploading.upload.buffer;
    return await(local);
}

typedef struct downloading {
    tow_download_t download;
    tow_local_t *local;
} downloading_t;

static void downloaded(tow_download_t *download, tow_status_t take_status)
{
    complete(TOW_CONTAINER_OF(download, downloading_t, download)->local,
             take_status);
}

tow_status_t tow_local_download(tow_local_t *local, tow_buffer_t *buffer,
                                void **out_bytes, size_t *out_size)
{
    uint64_t size = 0;
    *out_bytes = NULL;
    TOW_RETURN_IF_ERROR(tow_shape_bytes(&buffer->shape, &size));
    void *bytes = tow_malloc(size + 1);
    if (bytes == NULL) return tow_status_bare(TOW_RESOURCE_EXHAUSTED);
    downloading_t downloading = {.local = local,
                                 .download = {.buffer = buffer,
                                              .bytes = bytes,
                                              .size = size,
                                              .done = downloaded}};
    tow_status_t status =
        tow_driver_download(local->driver, &downloading.download);
    if (status == TOW_OK) status = await(local);
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
    tow_local_t *local;
} running_t;

static void ran(tow_run_t *run, tow_status_t take_status)
{
    complete(TOW_CONTAINER_OF(run, running_t, run)->local, take_status);
}

tow_status_t tow_local_run(tow_local_t *local, const tow_run_t *run)
{
    running_t running = {.run = *run, .local = local};
    running.run.done = ran;
    TOW_RETURN_IF_ERROR(tow_driver_run(local->driver, &running.run));
    return await(local);
}
