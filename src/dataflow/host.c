/* Host functions of a run: one call for each of our shards, when its inputs are
 * ready.
 *
 * Inputs are borrowed. Outputs of a known size are late uploads from the start,
 * promises that later steps are enqueued behind; others are uploaded when the
 * function has reported their size. A device may keep their memory for as long
 * as it likes, so each has a record that outlives the step. */
#include "base/alloc.h"
#include "base/assert.h"
#include "dataflow/dataflow_impl.h"
#include "dataflow/tuning.h"
#include "device/host/tuning.h"

typedef struct host_shard host_shard_t;

typedef struct host_output {
    tow_upload_t upload;
    tow_dataflow_t *dataflow;
    tow_list_t in_dataflow;
    void *bytes;       /* owned */
    bool is_uploading; /* its callback is outstanding */
} host_output_t;

typedef struct host_input {
    tow_buffer_share_t share; /* its buffer is retained */
    host_shard_t *shard;
    bool is_shared;
} host_input_t;

struct host_shard {
    host_run_t *run;
    uint32_t index;         /* among our shards */
    uint32_t missing_count; /* inputs that are not borrowed yet */
    uint32_t asked_count;   /* of those, requested */
    bool is_calling;
    bool is_ended;
    tow_host_job_t job;
    host_input_t *inputs;
    host_output_t **outputs; /* NULL: detached */
};

struct host_run {
    tow_list_t in_dataflow;
    tow_dataflow_t *dataflow;
    step_run_t *step;
    const tow_signature_t *signature; /* of the code, which the step holds */
    const tow_host_code_t *code;
    tow_status_t error;               /* owned; the first */
    uint32_t shard_count, open_count; /* shards; not ended */
    tow_post_t ended;
    tow_arena_t arena; /* of the fields below */
    host_shard_t *shards;
};

/* -- Memory ---------------------------------------------------------------- */

static void free_output(host_output_t *output)
{
    tow_dataflow_t *dataflow = output->dataflow;
    tow_list_remove(&output->in_dataflow);
    tow_free(output->bytes);
    tow_free(output);
    if (tow_list_is_empty(&dataflow->host_outputs) &&
        tow_map_count(&dataflow->runs) == 0)
        dataflow_wake(dataflow);
}

/* The device does not need the memory any more. */
static void uploaded(tow_upload_t *upload, tow_status_t take_status)
{
    tow_status_ignore(take_status, "the buffer reports the same error");
    free_output(TOW_CONTAINER_OF(upload, host_output_t, upload));
}

static void free_run(host_run_t *run)
{
    tow_list_remove(&run->in_dataflow);
    tow_status_release(run->error);
    tow_arena_deinit(&run->arena);
    tow_free(run);
}

void dataflow_hosts_discard(tow_dataflow_t *dataflow)
{
    tow_list_t *item;
    while (!tow_list_is_empty(&dataflow->host_runs))
        free_run(TOW_CONTAINER_OF(dataflow->host_runs.next, host_run_t,
                                  in_dataflow));
    while ((item = tow_list_pop_front(&dataflow->host_outputs)) != NULL) {
        host_output_t *output =
            TOW_CONTAINER_OF(item, host_output_t, in_dataflow);
        tow_free(output->bytes);
        tow_free(output);
    }
}

/* -- Ending a step --------------------------------------------------------- */

/* A failure poisons promised outputs; the others are never created. */
static void discard_outputs(host_shard_t *shard, tow_status_t cause)
{
    tow_driver_t *driver = shard->run->dataflow->options.driver;
    for (size_t i = 0; i < shard->run->signature->result_count; i++) {
        host_output_t *output = shard->outputs[i];
        if (output == NULL) continue;
        shard->outputs[i] = NULL;
        if (output->is_uploading)
            tow_upload_settle(driver, &output->upload,
                              tow_status_retain(cause));
        else
            free_output(output);
    }
}

/* In a turn of its own: the caller that aborts it is in the middle of an
 * operation. */
static void end_run(tow_post_t *post)
{
    host_run_t *run = TOW_CONTAINER_OF(post, host_run_t, ended);
    step_run_t *step = run->step;
    tow_dataflow_t *dataflow = run->dataflow;
    program_t *program = step->program;
    tow_status_t error = run->error;
    run->error = TOW_OK;
    free_run(run);
    if (error == TOW_OK && step->owner->error == TOW_OK)
        dataflow_outputs_ready(dataflow, step->owner, step->step);
    dataflow_end_step(step, error);
    dataflow_program_unhold(program);
}

static void give_back(host_shard_t *shard)
{
    tow_driver_t *driver = shard->run->dataflow->options.driver;
    for (size_t i = 0; i < shard->run->signature->argument_count; i++) {
        host_input_t *input = &shard->inputs[i];
        if (!input->is_shared) continue;
        input->is_shared = false;
        tow_buffer_share_end(driver, &input->share);
        tow_buffer_release(input->share.buffer);
    }
}

/* Ends the shard if its call is over, or will never be made, and no input is
 * borrowed or about to be. */
static void look_at(host_shard_t *shard)
{
    host_run_t *run = shard->run;
    if (shard->is_ended || shard->is_calling) return;
    if (run->error == TOW_OK && shard->missing_count > 0) return;
    give_back(shard);
    if (shard->asked_count > 0) return;
    if (run->error != TOW_OK) discard_outputs(shard, run->error);
    shard->is_ended = true;
    TOW_ASSERT(run->open_count > 0);
    if (--run->open_count == 0)
        tow_env_post(run->dataflow->options.driver->env, &run->ended);
}

/* The first error counts. Calls are cancelled, and end by themselves. */
static void fail_run(host_run_t *run, tow_status_t take_error)
{
    if (run->error != TOW_OK || run->open_count == 0) {
        tow_status_ignore(take_error, "the step has an earlier error");
        return;
    }
    run->error = take_error;
    for (uint32_t i = 0; i < run->shard_count; i++)
        if (run->shards[i].is_calling)
            tow_host_runner_cancel(run->dataflow->options.host_runner,
                                   &run->shards[i].job);
        else
            look_at(&run->shards[i]);
}

void dataflow_host_abort(step_run_t *step_run, tow_status_t cause)
{
    fail_run(step_run->host, tow_status_retain(cause));
}

/* -- Outputs --------------------------------------------------------------- */

static bool is_regular(const host_run_t *run, size_t output)
{
    return run->signature->results[output].bounds == 0;
}

static tow_status_t upload(host_shard_t *shard, size_t index, bool is_deferred)
{
    const host_run_t *run = shard->run;
    host_output_t *output = shard->outputs[index];
    const step_t *step = run->step->step;
    output->upload = (tow_upload_t){.device = run->code->devices[shard->index],
                                    .shape = shard->job.outputs[index].shape,
                                    .bytes = output->bytes,
                                    .done = uploaded,
                                    .may_alias = true,
                                    .is_deferred = is_deferred};
    TOW_RETURN_IF_ERROR(
        tow_driver_upload(run->dataflow->options.driver, &output->upload));
    output->is_uploading = true;
    dataflow_results(
        dataflow_scratch_of(run->dataflow, run->step->owner),
        step)[shard->index * run->signature->result_count + index] =
        output->upload.buffer;
    return TOW_OK;
}

static tow_status_t publish(host_shard_t *shard)
{
    const host_run_t *run = shard->run;
    for (size_t i = 0; i < run->signature->result_count; i++) {
        host_output_t *output = shard->outputs[i];
        if (is_regular(run, i))
            tow_upload_settle(run->dataflow->options.driver, &output->upload,
                              TOW_OK);
        else
            TOW_RETURN_IF_ERROR(upload(shard, i, false));
        shard->outputs[i] = NULL; /* Its callback ends it. */
    }
    return TOW_OK;
}

/* -- Calls ----------------------------------------------------------------- */

static void called(tow_host_job_t *job, tow_status_t take_status)
{
    host_shard_t *shard = TOW_CONTAINER_OF(job, host_shard_t, job);
    host_run_t *run = shard->run;
    shard->is_calling = false;
    if (take_status == TOW_OK && run->error == TOW_OK)
        take_status = publish(shard);
    if (TOW_UNLIKELY(take_status != TOW_OK)) fail_run(run, take_status);
    look_at(shard);
}

static void call(host_shard_t *shard)
{
    host_run_t *run = shard->run;
    for (size_t i = 0; i < run->signature->argument_count; i++)
        shard->job.inputs[i].bytes =
            (void *)shard->inputs[i].share.bytes; /* only read */
    run->dataflow->stats.host_call_count++;
    tow_status_t status =
        tow_host_runner_submit(run->dataflow->options.host_runner, &shard->job);
    shard->is_calling = status == TOW_OK;
    if (TOW_UNLIKELY(status != TOW_OK)) fail_run(run, status);
}

static void borrowed(tow_buffer_share_t *share, tow_status_t take_status)
{
    host_input_t *input = TOW_CONTAINER_OF(share, host_input_t, share);
    host_shard_t *shard = input->shard;
    shard->asked_count--;
    if (TOW_LIKELY(take_status == TOW_OK)) {
        input->is_shared = true;
        if (--shard->missing_count == 0 && shard->run->error == TOW_OK) {
            call(shard);
            return;
        }
    } else {
        tow_buffer_release(share->buffer);
        fail_run(shard->run, take_status);
    }
    look_at(shard);
}

/* -- Starting a step ------------------------------------------------------- */

static tow_status_t check_input(const host_run_t *run, size_t index,
                                const tow_shape_t *given)
{
    const tow_array_info_t *wanted = &run->signature->arguments[index];
    bool fits =
        given->type == wanted->shape.type && given->rank == wanted->shape.rank;
    for (uint32_t i = 0; fits && i < given->rank; i++)
        fits = given->dims[i] == wanted->shape.dims[i] ||
               ((wanted->bounds >> i & 1) != 0 &&
                given->dims[i] < wanted->shape.dims[i]);
    if (fits) return TOW_OK;
    char texts[2][TOW_SHAPE_TEXT_MAX];
    return TOW_ERROR(
        TOW_INVALID_ARGUMENT,
        "host function %s, input %zu: it is %s, the function takes %s%s",
        run->signature->name, index, tow_shape_format(given, texts[0]),
        wanted->bounds != 0 ? "at most " : "",
        tow_shape_format(&wanted->shape, texts[1]));
}

static tow_status_t note_input(host_shard_t *shard, const slot_t *slot,
                               size_t index)
{
    const host_run_t *run = shard->run;
    if (dataflow_count_shards(slot) != run->shard_count)
        return TOW_ERROR(TOW_INVALID_ARGUMENT,
                         "host function %s, input %zu: it has %u shards on "
                         "this worker, the function runs for %u",
                         run->signature->name, index,
                         dataflow_count_shards(slot), run->shard_count);
    tow_buffer_t *buffer = slot->shards[shard->index * slot->stride];
    TOW_RETURN_IF_ERROR(check_input(run, index, &buffer->shape));
    tow_host_array_t *array = &shard->job.inputs[index];
    array->shape = buffer->shape;
    shard->inputs[index].shard = shard;
    shard->inputs[index].share =
        (tow_buffer_share_t){.buffer = buffer, .done = borrowed};
    return tow_shape_bytes(&buffer->shape, &array->size);
}

static tow_status_t make_output(host_shard_t *shard, size_t index)
{
    host_run_t *run = shard->run;
    const tow_array_info_t *info = &run->signature->results[index];
    const uint64_t size = info->bytes > 0 ? info->bytes : 1;
    host_output_t *output = tow_calloc(1, sizeof(*output));
    if (output == NULL) return tow_status_bare(TOW_RESOURCE_EXHAUSTED);
    output->dataflow = run->dataflow;
    tow_list_append(&run->dataflow->host_outputs, &output->in_dataflow);
    shard->outputs[index] = output;
    output->bytes = tow_aligned_alloc(TOW_TRANSFER_ALIGNMENT, size);
    if (output->bytes == NULL)
        return TOW_ERROR(
            TOW_RESOURCE_EXHAUSTED,
            "host function %s: cannot allocate %llu bytes for output %zu",
            run->signature->name, (unsigned long long)size, index);
    shard->job.outputs[index] = (tow_host_array_t){
        .shape = info->shape, .bytes = output->bytes, .size = info->bytes};
    return is_regular(run, index) ? upload(shard, index, true) : TOW_OK;
}

static tow_status_t make_shard(host_run_t *run, uint32_t index)
{
    host_shard_t *shard = &run->shards[index];
    const tow_lowered_step_t *lowered = run->step->step->lowered;
    const scratch_t *scratch = run->dataflow->applying.scratch;
    const tow_signature_t *signature = run->signature;
    tow_arena_t *arena = &run->arena;
    shard->run = run;
    shard->index = index;
    shard->inputs = tow_arena_calloc(arena, signature->argument_count + 1,
                                     sizeof(*shard->inputs));
    shard->outputs = tow_arena_calloc(arena, signature->result_count + 1,
                                      sizeof(*shard->outputs));
    shard->job = (tow_host_job_t){
        .code = run->step->step->host,
        .inputs = tow_arena_calloc(arena, signature->argument_count + 1,
                                   sizeof(tow_host_array_t)),
        .outputs = tow_arena_calloc(arena, signature->result_count + 1,
                                    sizeof(tow_host_array_t)),
        .shard = run->code->shards[index],
        .time_limit_ns = lowered->time_limit_ms > 0
                             ? lowered->time_limit_ms * TOW_NS_PER_MS
                             : TOW_HOST_TIME_LIMIT_NS,
        .done = called};
    if (shard->inputs == NULL || shard->outputs == NULL ||
        shard->job.inputs == NULL || shard->job.outputs == NULL)
        return tow_status_bare(TOW_RESOURCE_EXHAUSTED);
    for (size_t i = 0; i < signature->argument_count; i++)
        TOW_RETURN_IF_ERROR(
            note_input(shard, &scratch->slots[lowered->inputs[i]], i));
    for (size_t i = 0; i < signature->result_count; i++)
        TOW_RETURN_IF_ERROR(make_output(shard, i));
    return TOW_OK;
}

/* From here on, an error is the step's and is reported when it has ended. */
static void borrow_inputs(host_shard_t *shard)
{
    host_run_t *run = shard->run;
    const size_t count = run->signature->argument_count;
    for (size_t i = 0; i < count && run->error == TOW_OK; i++) {
        tow_buffer_share_t *share = &shard->inputs[i].share;
        tow_buffer_retain(share->buffer);
        tow_status_t status =
            tow_driver_share(run->dataflow->options.driver, share);
        if (TOW_LIKELY(status == TOW_OK)) {
            shard->asked_count++;
            continue;
        }
        tow_buffer_release(share->buffer);
        fail_run(run, status);
    }
}

static tow_status_t make_run(const step_t *step, host_run_t *run)
{
    tow_buffer_t **results =
        dataflow_results(run->dataflow->applying.scratch, step);
    const size_t result_count =
        (size_t)step->shard_count * step->lowered->output_count;
    run->shards =
        tow_arena_calloc(&run->arena, run->shard_count, sizeof(*run->shards));
    if (run->shards == NULL) return tow_status_bare(TOW_RESOURCE_EXHAUSTED);
    for (size_t i = 0; i < result_count; i++)
        results[i] = NULL;
    for (uint32_t i = 0; i < run->shard_count; i++) {
        tow_status_t status = make_shard(run, i);
        if (status == TOW_OK) continue;
        for (uint32_t k = 0; k <= i; k++)
            if (run->shards[k].outputs != NULL)
                discard_outputs(&run->shards[k], status);
        for (size_t k = 0; k < result_count; k++) {
            if (results[k] != NULL) tow_buffer_release(results[k]);
            results[k] = NULL;
        }
        return status;
    }
    return TOW_OK;
}

tow_status_t dataflow_host_start(tow_dataflow_t *dataflow, const step_t *step,
                                 step_run_t *step_run)
{
    host_run_t *run = tow_calloc(1, sizeof(*run));
    if (run == NULL) return tow_status_bare(TOW_RESOURCE_EXHAUSTED);
    run->dataflow = dataflow;
    run->step = step_run;
    run->code = step->host;
    run->signature = &step->host->signature;
    run->shard_count = run->open_count = step->shard_count;
    tow_arena_init(&run->arena, 0);
    tow_list_append(&dataflow->host_runs, &run->in_dataflow);
    tow_status_t status = make_run(step, run);
    if (status != TOW_OK) {
        free_run(run);
        return status;
    }
    step_run->host = run;
    run->ended.run = end_run;
    for (uint32_t i = 0; i < run->shard_count; i++)
        run->shards[i].missing_count = (uint32_t)run->signature->argument_count;
    for (uint32_t i = 0; i < run->shard_count && run->error == TOW_OK; i++) {
        borrow_inputs(&run->shards[i]);
        if (run->signature->argument_count == 0) call(&run->shards[i]);
    }
    return TOW_OK;
}
