/* A member of a gang: executes the commands of its parent, one at a time. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/assert.h"
#include "base/vec.h"
#include "bench/gang_impl.h"
#include "bench/harness.h"
#include "collective/intra_host/intra_host.h"
#include "device/pjrt/pjrt.h"
#include "env/net/net.h"
#include "supervisor/adapter.h"
#include "supervisor/cores.h"
#include "supervisor/log_environment.h"

#define PATH_SIZE    4096
#define SLEEP_NS_MAX INT64_C(1000000)

typedef TOW_VEC(tow_buffer_t *) buffers_t;

typedef struct member {
    int socket;
    int program_fd;
    const char *arena;
    size_t index;
    size_t process_count;
    size_t device_count; /* of each process */
    size_t core_count;

    tow_security_t security; /* empty: nothing connects */
    tow_net_t *net;          /* owned */
    tow_intra_host_t *host;  /* owned */
    tow_xla_collectives_t collectives;
    tow_driver_t *driver;         /* owned */
    tow_executable_t *executable; /* owned */
    buffers_t inputs;             /* owned; one per device */
    buffers_t results;            /* owned; of the last run, one per device */
    uint64_t run_count;           /* so far; the same in all members */
    /* The driver operation in progress. */
    bool is_done;
    tow_status_t status; /* owned */
} member_t;

/* -- Waiting ---------------------------------------------------------------- */

static tow_status_t await(member_t *member)
{
    while (!member->is_done)
        tow_net_turn(member->net, TOW_TIME_NEVER);
    member->is_done = false;
    tow_status_t status = member->status;
    member->status = TOW_OK;
    return status;
}

static void complete(member_t *member, tow_status_t take_status)
{
    TOW_ASSERT(!member->is_done);
    member->is_done = true;
    member->status = take_status;
}

static void complete_closed(void *context)
{
    complete(context, TOW_OK);
}

static void release_all(buffers_t *buffers)
{
    for (size_t i = 0; i < buffers->count; i++)
        if (buffers->items[i] != NULL) /* NULL: the run was refused. */
            tow_buffer_release(buffers->items[i]);
    buffers->count = 0;
}

/* -- Opening ---------------------------------------------------------------- */

static tow_status_t join(member_t *member)
{
    int64_t ids[TOW_BENCH_GANG_DEVICE_COUNT_MAX];
    for (size_t i = 0; i < member->device_count; i++)
        ids[i] = gang_device_id(member->index, i);
    tow_intra_host_options_t options = {.arena = member->arena,
                                        .device_ids = ids,
                                        .device_count = member->device_count};
    TOW_RETURN_IF_ERROR(tow_intra_host_open(&options, &member->host));
    member->collectives =
        (tow_xla_collectives_t){.struct_size = sizeof(member->collectives),
                                .context = member->host,
                                .run = tow_intra_host_collective,
                                .supports_fibers = 1};
    return TOW_OK;
}

#if TOW_HAS_PJRT

typedef struct opening {
    tow_pjrt_open_t open;
    member_t *member;
} opening_t;

static void opened(tow_pjrt_open_t *open, tow_status_t take_status,
                   tow_driver_t *take_driver)
{
    opening_t *opening = TOW_CONTAINER_OF(open, opening_t, open);
    opening->member->driver = take_driver;
    complete(opening->member, take_status);
}

static tow_status_t open_driver(member_t *member)
{
    char plugin[PATH_SIZE];
    TOW_RETURN_IF_ERROR(tow_adapter_find(plugin, sizeof(plugin)));
    tow_adapter_quiet();
    const tow_pjrt_value_t values[] = {
        {.name = "process_id",
         .type = TOW_PJRT_INT64,
         .int64 = gang_device_id(member->index, 0) / TOW_XLA_PROCESS_STRIDE},
        {.name = "device_count",
         .type = TOW_PJRT_INT64,
         .int64 = (int64_t)member->device_count},
        {.name = "tow_collectives",
         .type = TOW_PJRT_INT64,
         .int64 = (int64_t)(intptr_t)&member->collectives},
    };
    opening_t opening = {.member = member,
                         .open = {.path = plugin,
                                  .values = values,
                                  .value_count = TOW_COUNT_OF(values),
                                  .done = opened}};
    TOW_RETURN_IF_ERROR(tow_pjrt_open(tow_net_env(member->net), &opening.open));
    return await(member);
}

#else

static tow_status_t open_driver(member_t *member)
{
    (void)member;
    return TOW_ERROR(TOW_UNIMPLEMENTED,
                     "this program was built without the PJRT header; `make "
                     "setup` installs it");
}

#endif

static tow_status_t open_all(member_t *member)
{
    tow_net_options_t net = {.name = "gang-member",
                             .security = &member->security,
                             .log = tow_log_from_environment("gang-member")};
    TOW_RETURN_IF_ERROR(tow_net_create(&net, &member->net));
    TOW_RETURN_IF_ERROR(join(member));
    return open_driver(member);
}

static void close_all(member_t *member)
{
    release_all(&member->inputs);
    tow_vec_deinit(&member->inputs);
    release_all(&member->results);
    tow_vec_deinit(&member->results);
    if (member->executable != NULL) tow_executable_release(member->executable);
    if (member->driver != NULL) {
        tow_driver_close(member->driver,
                         (tow_closed_t){complete_closed, member});
        tow_status_ignore(await(member), "closing always ends well");
    }
    tow_intra_host_close(member->host);
    tow_net_destroy(member->net);
}

/* -- Loading ---------------------------------------------------------------- */

typedef struct loading {
    tow_compile_t load;
    member_t *member;
} loading_t;

static void loaded(tow_compile_t *load, tow_status_t take_status,
                   tow_executable_t *take_executable)
{
    member_t *member = TOW_CONTAINER_OF(load, loading_t, load)->member;
    member->executable = take_executable;
    complete(member, take_status);
}

static tow_status_t load_program(member_t *member, size_t size)
{
    void *bytes =
        mmap(NULL, size, PROT_READ, MAP_PRIVATE, member->program_fd, 0);
    if (bytes == MAP_FAILED)
        return TOW_ERRNO(errno, "reading a program of %zu bytes", size);
    uint8_t options[GANG_OPTIONS_SIZE_MAX];
    const size_t options_size =
        gang_pack_options(member->process_count, member->device_count, options);
    loading_t loading = {.member = member,
                         .load = {.format = TOW_PROGRAM_MLIR,
                                  .program = {bytes, size},
                                  .options = {options, options_size},
                                  .done = loaded}};
    tow_status_t status = tow_driver_load(member->driver, &loading.load);
    if (status == TOW_OK) status = await(member);
    munmap(bytes, size);
    return status;
}

typedef struct uploading {
    tow_upload_t upload;
    member_t *member;
} uploading_t;

static void uploaded(tow_upload_t *upload, tow_status_t take_status)
{
    complete(TOW_CONTAINER_OF(upload, uploading_t, upload)->member,
             take_status);
}

static tow_status_t upload_zero(member_t *member, size_t device)
{
    static const float zero = 0;
    uploading_t uploading = {.member = member,
                             .upload = {.device = device,
                                        .shape = {.type = TOW_TYPE_F32},
                                        .bytes = &zero,
                                        .done = uploaded}};
    TOW_RETURN_IF_ERROR(tow_driver_upload(member->driver, &uploading.upload));
    bool has_room = tow_vec_push(&member->inputs, uploading.upload.buffer);
    tow_status_t status = await(member);
    if (has_room) return status;
    tow_status_ignore(status, "there is no room for the buffer");
    tow_buffer_release(uploading.upload.buffer);
    return tow_status_bare(TOW_RESOURCE_EXHAUSTED);
}

static tow_status_t load(member_t *member, const gang_command_t *command)
{
    TOW_RETURN_IF_ERROR(load_program(member, command->program_size));
    if (member->executable->signature.result_count != 1)
        return TOW_ERROR(TOW_INVALID_ARGUMENT,
                         "the program has %zu results, not 1",
                         member->executable->signature.result_count);
    for (size_t i = 0; i < member->device_count; i++)
        TOW_RETURN_IF_ERROR(upload_zero(member, i));
    return TOW_OK;
}

/* -- Running ---------------------------------------------------------------- */

typedef struct stepper stepper_t;

typedef struct step {
    tow_run_t run;
    stepper_t *stepper;
    uint64_t index;
} step_t;

/* Runs of the program, each with the result of the one before. */
struct stepper {
    member_t *member;
    const tow_bench_gang_run_t *asked;
    uint64_t first_id;
    int64_t start_ns;
    uint64_t started_count;
    uint64_t done_count;
    /* Of the next step: the inputs, then the results of the last one. */
    buffers_t arguments;
    size_t kept;        /* index of the argument: it is not donated */
    tow_status_t error; /* owned; the first */
    step_t steps[TOW_BENCH_GANG_IN_FLIGHT_MAX];
};

/* Aborts this run and those that the other members may have enqueued behind it, so
 * that they do not wait for us. */
static void abort_runs(stepper_t *stepper, uint64_t index,
                       tow_status_t take_error)
{
    if (stepper->error != TOW_OK) {
        tow_status_ignore(take_error, "the first error is kept");
        return;
    }
    stepper->error = take_error;
    for (uint64_t i = 0; i < stepper->asked->in_flight; i++)
        tow_intra_host_abort(
            stepper->member->host, stepper->first_id + index + i,
            tow_status_code(take_error), tow_status_message(take_error));
}

static void step_done(tow_run_t *run, tow_status_t take_status)
{
    step_t *step = TOW_CONTAINER_OF(run, step_t, run);
    stepper_t *stepper = step->stepper;
    stepper->done_count++;
    if (take_status != TOW_OK) abort_runs(stepper, step->index, take_status);
}

static void chain(stepper_t *stepper)
{
    buffers_t *results = &stepper->member->results;
    release_all(&stepper->arguments);
    memcpy(stepper->arguments.items, results->items,
           results->count * sizeof(results->items[0]));
    stepper->arguments.count = results->count;
    for (size_t i = 0; i < results->count; i++)
        tow_buffer_retain(results->items[i]);
}

static tow_status_t start_step(stepper_t *stepper)
{
    member_t *member = stepper->member;
    const tow_bench_gang_run_t *asked = stepper->asked;
    const uint64_t index = stepper->started_count++;
    step_t *step = &stepper->steps[index % asked->in_flight];
    buffers_t *results = &member->results;
    *step = (step_t){.stepper = stepper,
                     .index = index,
                     .run = {.executable = member->executable,
                             .gang_id = stepper->first_id + index,
                             .arguments = stepper->arguments.items,
                             .argument_count = 1,
                             .non_donatable_arguments = &stepper->kept,
                             .non_donatable_argument_count = 1,
                             .results = results->items,
                             .may_block = asked->may_block,
                             .may_coalesce = index + 1 < asked->count,
                             .done = step_done}};
    release_all(results);
    TOW_RETURN_IF_ERROR(tow_driver_run(member->driver, &step->run));
    results->count = member->device_count;
    chain(stepper);
    return TOW_OK;
}

/* With more threads than cores, the device threads need this thread's core. While
 * enough steps are in flight, this thread sleeps and then takes many completions
 * at once; device threads post to a sleeping loop without a system call. Sleeps
 * until about a quarter of the window is left, at the rate so far. */
static void sleep_while_busy(const stepper_t *stepper)
{
    const tow_bench_gang_run_t *asked = stepper->asked;
    const member_t *member = stepper->member;
    const uint64_t in_flight = stepper->started_count - stepper->done_count;
    const size_t thread_count =
        member->process_count * (member->device_count + 1);
    if (asked->may_block || in_flight <= asked->in_flight / 2 ||
        stepper->done_count < asked->in_flight ||
        thread_count <= member->core_count)
        return;
    const int64_t step_ns =
        (tow_bench_now_ns() - stepper->start_ns) / (int64_t)stepper->done_count;
    int64_t sleep_ns = step_ns * (int64_t)(in_flight - asked->in_flight / 4);
    if (sleep_ns > SLEEP_NS_MAX) sleep_ns = SLEEP_NS_MAX;
    nanosleep(&(struct timespec){.tv_nsec = sleep_ns}, NULL);
}

static tow_status_t run_steps(stepper_t *stepper)
{
    const tow_bench_gang_run_t *asked = stepper->asked;
    uint64_t refused_count = 0;
    stepper->start_ns = tow_bench_now_ns();
    for (;;) {
        while (
            stepper->error == TOW_OK && stepper->started_count < asked->count &&
            stepper->started_count - stepper->done_count < asked->in_flight) {
            tow_status_t status = start_step(stepper);
            if (status == TOW_OK) continue;
            refused_count++;
            abort_runs(stepper, stepper->started_count - 1, status);
        }
        if (stepper->done_count + refused_count == stepper->started_count &&
            (stepper->error != TOW_OK ||
             stepper->started_count == asked->count))
            return stepper->error;
        sleep_while_busy(stepper);
        tow_net_turn(stepper->member->net, TOW_TIME_NEVER);
    }
}

/* Reserves buffers for the arguments and results, and sets the first arguments. */
static tow_status_t stepper_init(stepper_t *stepper)
{
    member_t *member = stepper->member;
    if (!tow_vec_reserve(&stepper->arguments, member->device_count) ||
        !tow_vec_reserve(&member->results, member->device_count))
        return tow_status_bare(TOW_RESOURCE_EXHAUSTED);
    TOW_ASSERT(stepper->arguments.items != NULL);
    TOW_ASSERT(member->inputs.count == member->device_count);
    for (size_t i = 0; i < member->inputs.count; i++) {
        tow_buffer_retain(member->inputs.items[i]);
        stepper->arguments.items[stepper->arguments.count++] =
            member->inputs.items[i];
    }
    return TOW_OK;
}

static void stepper_deinit(stepper_t *stepper)
{
    release_all(&stepper->arguments);
    tow_vec_deinit(&stepper->arguments);
}

static tow_status_t run(member_t *member, const gang_command_t *command,
                        gang_reply_t *reply)
{
    stepper_t stepper = {.member = member,
                         .asked = &command->run,
                         .first_id = member->run_count + 1};
    member->run_count += command->run.count;
    tow_status_t status = stepper_init(&stepper);
    reply->start_ns = tow_bench_now_ns();
    if (status == TOW_OK) status = run_steps(&stepper);
    reply->end_ns = tow_bench_now_ns();
    stepper_deinit(&stepper);
    return status;
}

/* -- Values ---------------------------------------------------------------- */

typedef struct downloading {
    tow_download_t download;
    member_t *member;
} downloading_t;

static void downloaded(tow_download_t *download, tow_status_t take_status)
{
    complete(TOW_CONTAINER_OF(download, downloading_t, download)->member,
             take_status);
}

static tow_status_t download(member_t *member, const gang_command_t *command,
                             gang_reply_t *reply)
{
    TOW_ASSERT(command->device < member->results.count);
    downloading_t downloading = {
        .member = member,
        .download = {.buffer = member->results.items[command->device],
                     .bytes = &reply->value,
                     .size = sizeof(reply->value),
                     .done = downloaded}};
    TOW_RETURN_IF_ERROR(
        tow_driver_download(member->driver, &downloading.download));
    return await(member);
}

/* -- The process ------------------------------------------------------------ */

static bool send_reply(const member_t *member, gang_reply_t *reply,
                       tow_status_t take_status)
{
    reply->code = TOW_CODE_OK;
    if (take_status != TOW_OK) {
        reply->code = (int32_t)tow_status_code(take_status);
        snprintf(reply->text, sizeof(reply->text), "%s",
                 tow_status_message(take_status));
        tow_status_ignore(take_status, "the parent has it");
    }
    return send(member->socket, reply, sizeof(*reply), MSG_NOSIGNAL) ==
           (ssize_t)sizeof(*reply);
}

static tow_status_t perform(member_t *member, const gang_command_t *command,
                            gang_reply_t *reply)
{
    switch (command->kind) {
    case GANG_LOAD: return load(member, command);
    case GANG_RUN: return run(member, command, reply);
    case GANG_VALUE: return download(member, command, reply);
    }
    return TOW_ERROR(TOW_INTERNAL, "command %d", (int)command->kind);
}

/* Runs until the parent closes its end of the socket. */
static void serve(member_t *member)
{
    gang_reply_t reply = {0};
    gang_command_t command;
    tow_status_t status = open_all(member);
    while (send_reply(member, &reply, status) &&
           recv(member->socket, &command, sizeof(command), 0) ==
               (ssize_t)sizeof(command)) {
        reply = (gang_reply_t){0};
        status = perform(member, &command, &reply);
    }
}

tow_status_t tow_bench_gang_member(int argc, char **argv)
{
    if (argc != GANG_ARGUMENT_COUNT)
        return TOW_ERROR(TOW_INVALID_ARGUMENT, "%d arguments, not %d", argc - 1,
                         GANG_ARGUMENT_COUNT - 1);
    member_t member = {
        .socket = atoi(argv[GANG_ARGUMENT_SOCKET]),
        .program_fd = atoi(argv[GANG_ARGUMENT_PROGRAM]),
        .arena = argv[GANG_ARGUMENT_ARENA],
        .index = strtoull(argv[GANG_ARGUMENT_MEMBER], NULL, 10),
        .process_count = strtoull(argv[GANG_ARGUMENT_PROCESS_COUNT], NULL, 10),
        .device_count = strtoull(argv[GANG_ARGUMENT_DEVICE_COUNT], NULL, 10),
        .core_count = (size_t)sysconf(_SC_NPROCESSORS_ONLN),
    };
    tow_cores_take_share(member.index, member.process_count);
    serve(&member);
    close_all(&member);
    return TOW_OK;
}
