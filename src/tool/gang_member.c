/* A member of a gang: does what its parent tells, one command at a time. */
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
#include "collective/host/host.h"
#include "device/pjrt/pjrt.h"
#include "tool/bench.h"
#include "tool/command.h"
#include "tool/cores.h"
#include "tool/gang_impl.h"
#include "tool/literal.h"
#include "tool/local.h"

#define PATH_SIZE 4096
/* Runs whose times are kept for the median. */
#define SAMPLE_COUNT_MAX (1u << 20)
#define NAP_NS_MAX       INT64_C(1000000)

typedef TOW_VEC(tow_buffer_t *) buffers_t;

typedef struct member {
    int socket;
    int program_fd;
    const char *arena;
    size_t index;
    size_t process_count;
    size_t device_count; /* of each process */
    size_t printed_max;
    size_t core_count;
    char *const *input_texts;
    size_t input_count;

    tow_security_t security; /* nobody connects: it stays empty */
    tow_net_t *net;          /* owned */
    tow_host_t *host;        /* owned */
    tow_xla_collectives_t collectives;
    tow_driver_t *driver;         /* owned */
    tow_executable_t *executable; /* owned */
    buffers_t inputs;             /* owned; device by device */
    buffers_t results;            /* owned; of the last run */
    uint64_t runs_ever;           /* the same in all members */
    /* What is being waited for. */
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
        if (buffers->items[i] != NULL) /* A run that was refused. */
            tow_buffer_release(buffers->items[i]);
    buffers->count = 0;
}

/* -- Opening ---------------------------------------------------------------- */

static tow_status_t join(member_t *member)
{
    int64_t ids[TOW_GANG_DEVICE_COUNT_MAX];
    for (size_t i = 0; i < member->device_count; i++)
        ids[i] = tow_gang_device_id(member->index, i);
    tow_host_options_t options = {.arena = member->arena,
                                  .device_ids = ids,
                                  .device_count = member->device_count};
    TOW_RETURN_IF_ERROR(tow_host_open(&options, &member->host));
    member->collectives =
        (tow_xla_collectives_t){.struct_size = sizeof(member->collectives),
                                .context = member->host,
                                .run = tow_host_collective,
                                .takes_turns = 1};
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
    TOW_RETURN_IF_ERROR(tow_local_find_adapter(plugin, sizeof(plugin)));
    /* Or the library around XLA greets on standard error, and each program that
     * another process compiled is called foreign to this processor: XLA writes
     * down two tuning flags among the features, and then does not find them. */
    setenv("TF_ENABLE_ONEDNN_OPTS", "0", 0);
    setenv("TF_CPP_MIN_LOG_LEVEL", "3", 0);
    const tow_pjrt_value_t values[] = {
        {.name = "process_id",
         .type = TOW_PJRT_INT64,
         .int64 =
             tow_gang_device_id(member->index, 0) / TOW_XLA_PROCESS_STRIDE},
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
                     "setup` brings it");
}

#endif

static tow_status_t open_all(member_t *member)
{
    tow_net_options_t net = {.name = "gang-member",
                             .security = &member->security,
                             .log = tow_command_log("gang-member")};
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
    tow_host_close(member->host);
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

static tow_status_t upload_literal(member_t *member, size_t device,
                                   const tow_literal_t *literal)
{
    uploading_t uploading = {.member = member,
                             .upload = {.device = device,
                                        .shape = literal->shape,
                                        .bytes = literal->bytes,
                                        .done = uploaded}};
    TOW_RETURN_IF_ERROR(tow_driver_upload(member->driver, &uploading.upload));
    bool has_room = tow_vec_push(&member->inputs, uploading.upload.buffer);
    tow_status_t status = await(member);
    if (has_room) return status;
    tow_status_ignore(status, "there is no room for the buffer");
    tow_buffer_release(uploading.upload.buffer);
    return tow_status_bare(TOW_RESOURCE_EXHAUSTED);
}

static tow_status_t upload_inputs(member_t *member)
{
    for (size_t i = 0; i < member->device_count * member->input_count; i++) {
        const char *text = member->input_texts[i % member->input_count];
        tow_literal_t literal;
        TOW_RETURN_IF_ERROR(tow_status_annotate(
            tow_literal_parse(text, &literal), "--input %s", text));
        tow_status_t status =
            upload_literal(member, i / member->input_count, &literal);
        tow_literal_deinit(&literal);
        TOW_RETURN_IF_ERROR(tow_status_annotate(status, "--input %s", text));
    }
    return TOW_OK;
}

static tow_status_t load(member_t *member, const gang_command_t *command,
                         gang_answer_t *answer)
{
    TOW_RETURN_IF_ERROR(load_program(member, command->program_size));
    TOW_RETURN_IF_ERROR(upload_inputs(member));
    answer->result_count = member->executable->signature.result_count;
    return TOW_OK;
}

/* -- Running ---------------------------------------------------------------- */

typedef struct stepper stepper_t;

typedef struct step {
    tow_run_t run;
    stepper_t *stepper;
    int64_t start_ns;
    uint64_t index;
} step_t;

/* Some runs of the program, one behind the other. */
struct stepper {
    member_t *member;
    const tow_gang_run_t *asked;
    uint64_t first_id;
    int64_t start_ns;
    uint64_t started_count;
    uint64_t done_count;
    /* Of the next step: the inputs, or the results of the last one. */
    buffers_t arguments;
    size_t *kept; /* all of them: the inputs serve again */
    double *samples;
    size_t sample_count;
    tow_status_t error; /* owned; the first */
    step_t steps[TOW_GANG_AHEAD_MAX];
};

/* Tells the others not to wait for us: not in this run, nor in those that they
 * may have enqueued behind it. */
static void give_up(stepper_t *stepper, uint64_t index, tow_status_t take_error)
{
    if (stepper->error != TOW_OK) {
        tow_status_ignore(take_error, "the first error is kept");
        return;
    }
    stepper->error = take_error;
    for (uint64_t i = 0; i < stepper->asked->ahead; i++)
        tow_host_abort(stepper->member->host, stepper->first_id + index + i,
                       tow_status_code(take_error),
                       tow_status_message(take_error));
}

static void step_done(tow_run_t *run, tow_status_t take_status)
{
    step_t *step = TOW_CONTAINER_OF(run, step_t, run);
    stepper_t *stepper = step->stepper;
    if (stepper->samples != NULL && step->index < stepper->sample_count)
        stepper->samples[step->index] =
            (double)(tow_bench_now_ns() - step->start_ns) * 1e-3;
    stepper->done_count++;
    if (take_status != TOW_OK) give_up(stepper, step->index, take_status);
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
    const tow_gang_run_t *asked = stepper->asked;
    const uint64_t index = stepper->started_count++;
    step_t *step = &stepper->steps[index % asked->ahead];
    buffers_t *results = &member->results;
    *step = (step_t){.stepper = stepper,
                     .index = index,
                     .run = {.executable = member->executable,
                             .gang_id = stepper->first_id + index,
                             .arguments = stepper->arguments.items,
                             .argument_count = member->input_count,
                             .kept_arguments = stepper->kept,
                             .kept_argument_count = member->input_count,
                             .results = results->items,
                             .may_block = asked->may_block,
                             .may_be_late = index + 1 < asked->count,
                             .done = step_done}};
    release_all(results);
    if (asked->ahead == 1) step->start_ns = tow_bench_now_ns();
    TOW_RETURN_IF_ERROR(tow_driver_run(member->driver, &step->run));
    results->count =
        member->device_count * member->executable->signature.result_count;
    if (asked->is_chained) chain(stepper);
    return TOW_OK;
}

/* With more threads than cores, the devices need ours. As long as they have
 * steps to do, we need not hear of each that is done: while we sleep they post
 * without a system call, and we take many at once. Sleeps until about a quarter
 * of the window is left, at the pace so far. */
static void nap(const stepper_t *stepper)
{
    const tow_gang_run_t *asked = stepper->asked;
    const member_t *member = stepper->member;
    const uint64_t under_way = stepper->started_count - stepper->done_count;
    const size_t thread_count =
        member->process_count * (member->device_count + 1);
    if (asked->may_block || under_way <= asked->ahead / 2 ||
        stepper->done_count < asked->ahead ||
        thread_count <= member->core_count)
        return;
    const int64_t pace_ns =
        (tow_bench_now_ns() - stepper->start_ns) / (int64_t)stepper->done_count;
    int64_t nap_ns = pace_ns * (int64_t)(under_way - asked->ahead / 4);
    if (nap_ns > NAP_NS_MAX) nap_ns = NAP_NS_MAX;
    nanosleep(&(struct timespec){.tv_nsec = nap_ns}, NULL);
}

static tow_status_t run_steps(stepper_t *stepper)
{
    const tow_gang_run_t *asked = stepper->asked;
    uint64_t refused_count = 0;
    stepper->start_ns = tow_bench_now_ns();
    for (;;) {
        while (stepper->error == TOW_OK &&
               stepper->started_count < asked->count &&
               stepper->started_count - stepper->done_count < asked->ahead) {
            tow_status_t status = start_step(stepper);
            if (status == TOW_OK) continue;
            refused_count++;
            give_up(stepper, stepper->started_count - 1, status);
        }
        if (stepper->done_count + refused_count == stepper->started_count &&
            (stepper->error != TOW_OK ||
             stepper->started_count == asked->count))
            return stepper->error;
        nap(stepper);
        tow_net_turn(stepper->member->net, TOW_TIME_NEVER);
    }
}

/* Room for all that the steps need, and the first arguments. */
static tow_status_t stepper_init(stepper_t *stepper)
{
    member_t *member = stepper->member;
    const tow_gang_run_t *asked = stepper->asked;
    const size_t result_count = member->executable->signature.result_count;
    if (asked->is_chained && result_count != member->input_count)
        return TOW_ERROR(TOW_INVALID_ARGUMENT,
                         "%zu results cannot be the %zu arguments of the next "
                         "run",
                         result_count, member->input_count);
    if (asked->ahead == 1) {
        stepper->sample_count = asked->count < SAMPLE_COUNT_MAX
                                    ? (size_t)asked->count
                                    : SAMPLE_COUNT_MAX;
        stepper->samples =
            tow_calloc(stepper->sample_count, sizeof(*stepper->samples));
    }
    stepper->kept = tow_calloc(member->input_count + 1, sizeof(size_t));
    if (stepper->kept == NULL ||
        (asked->ahead == 1 && stepper->samples == NULL) ||
        !tow_vec_reserve(&stepper->arguments, member->inputs.count + 1) ||
        !tow_vec_reserve(&member->results,
                         member->device_count * result_count + 1))
        return tow_status_bare(TOW_RESOURCE_EXHAUSTED);
    for (size_t i = 0; i < member->input_count; i++)
        stepper->kept[i] = i;
    TOW_ASSERT(stepper->arguments.items != NULL &&
               (member->inputs.count == 0 || member->inputs.items != NULL));
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
    tow_free(stepper->kept);
    tow_free(stepper->samples);
}

static tow_status_t run(member_t *member, const gang_command_t *command,
                        gang_answer_t *answer)
{
    stepper_t stepper = {.member = member,
                         .asked = &command->run,
                         .first_id = member->runs_ever + 1};
    member->runs_ever += command->run.count;
    tow_status_t status = stepper_init(&stepper);
    answer->start_ns = tow_bench_now_ns();
    if (status == TOW_OK) status = run_steps(&stepper);
    answer->end_ns = tow_bench_now_ns();
    if (status == TOW_OK && stepper.sample_count > 0) {
        answer->first_us = stepper.samples[0];
        answer->median_us =
            tow_bench_median(stepper.samples, stepper.sample_count);
    }
    stepper_deinit(&stepper);
    return status;
}

/* -- Results ---------------------------------------------------------------- */

typedef struct downloading {
    tow_download_t download;
    member_t *member;
} downloading_t;

static void downloaded(tow_download_t *download, tow_status_t take_status)
{
    complete(TOW_CONTAINER_OF(download, downloading_t, download)->member,
             take_status);
}

static tow_status_t result(member_t *member, const gang_command_t *command,
                           gang_answer_t *answer)
{
    const size_t index =
        command->result.device * member->executable->signature.result_count +
        command->result.result;
    TOW_ASSERT(index < member->results.count);
    tow_buffer_t *buffer = member->results.items[index];
    uint64_t size = 0;
    TOW_RETURN_IF_ERROR(tow_shape_bytes(&buffer->shape, &size));
    void *bytes = tow_malloc(size + 1);
    if (bytes == NULL) return tow_status_bare(TOW_RESOURCE_EXHAUSTED);
    downloading_t downloading = {.member = member,
                                 .download = {.buffer = buffer,
                                              .bytes = bytes,
                                              .size = size,
                                              .done = downloaded}};
    tow_status_t status =
        tow_driver_download(member->driver, &downloading.download);
    if (status == TOW_OK) status = await(member);
    FILE *out = status == TOW_OK
                    ? fmemopen(answer->text, sizeof(answer->text), "w")
                    : NULL;
    if (out != NULL) {
        tow_literal_print(out, &buffer->shape, bytes, member->printed_max);
        fclose(out);
    }
    tow_free(bytes);
    return status;
}

/* -- The process ------------------------------------------------------------ */

static bool reply(const member_t *member, gang_answer_t *answer,
                  tow_status_t take_status)
{
    answer->code = TOW_CODE_OK;
    if (take_status != TOW_OK) {
        answer->code = (int32_t)tow_status_code(take_status);
        snprintf(answer->text, sizeof(answer->text), "%s",
                 tow_status_message(take_status));
        tow_status_ignore(take_status, "it was told to the parent");
    }
    return send(member->socket, answer, sizeof(*answer), MSG_NOSIGNAL) ==
           (ssize_t)sizeof(*answer);
}

static tow_status_t perform(member_t *member, const gang_command_t *command,
                            gang_answer_t *answer)
{
    switch (command->kind) {
    case GANG_LOAD: return load(member, command, answer);
    case GANG_RUN: return run(member, command, answer);
    case GANG_RESULT: return result(member, command, answer);
    }
    return TOW_ERROR(TOW_INTERNAL, "command %d", (int)command->kind);
}

/* Until the parent has closed its end. */
static void obey(member_t *member)
{
    gang_answer_t answer = {0};
    gang_command_t command;
    tow_status_t status = open_all(member);
    while (reply(member, &answer, status) &&
           recv(member->socket, &command, sizeof(command), 0) ==
               (ssize_t)sizeof(command)) {
        answer = (gang_answer_t){0};
        status = perform(member, &command, &answer);
    }
}

int tow_gang_member(int argc, char **argv)
{
    if (argc < GANG_WORD_INPUTS) return TOW_EXIT_USAGE;
    member_t member = {
        .socket = atoi(argv[GANG_WORD_SOCKET]),
        .program_fd = atoi(argv[GANG_WORD_PROGRAM]),
        .arena = argv[GANG_WORD_ARENA],
        .index = strtoull(argv[GANG_WORD_MEMBER], NULL, 10),
        .process_count = strtoull(argv[GANG_WORD_PROCESS_COUNT], NULL, 10),
        .device_count = strtoull(argv[GANG_WORD_DEVICE_COUNT], NULL, 10),
        .printed_max = strtoull(argv[GANG_WORD_PRINTED_MAX], NULL, 10),
        .core_count = (size_t)sysconf(_SC_NPROCESSORS_ONLN),
        .input_texts = argv + GANG_WORD_INPUTS,
        .input_count = (size_t)(argc - GANG_WORD_INPUTS),
    };
    tow_cores_take_share(member.index, member.process_count);
    obey(&member);
    close_all(&member);
    return TOW_EXIT_OK;
}
