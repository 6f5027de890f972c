#include "plan/schedule/generate.h"

#include <inttypes.h>
#include <string.h>

#include "base/assert.h"

/* The list of one device while it is being written. `failed` is set once and
 * stays, so that generators need no status after each action. */
typedef struct writer {
    tow_plan_schedule_t *schedule;
    uint32_t device;
    tow_status_t failed;
} writer_t;

static void put(writer_t *writer, tow_plan_action_kind_t kind, uint32_t stage,
                uint32_t microbatch)
{
    if (writer->failed != TOW_OK) return;
    writer->failed =
        tow_plan_schedule_add(writer->schedule, writer->device,
                              (tow_plan_action_t){kind, stage, microbatch});
}

static uint32_t least(uint32_t a, uint32_t b)
{
    return a < b ? a : b;
}

/* -- One stage per device -------------------------------------------------- */

static void write_gpipe(writer_t *writer)
{
    const uint32_t microbatches = writer->schedule->shape.microbatch_count;
    for (uint32_t m = 0; m < microbatches; m++)
        put(writer, TOW_PLAN_FORWARD, writer->device, m);
    for (uint32_t m = 0; m < microbatches; m++)
        put(writer, TOW_PLAN_BACKWARD, writer->device, m);
}

/* `warmup` forwards, then a backward and a forward in turn. */
static void write_1f1b(writer_t *writer, uint32_t warmup)
{
    const uint32_t microbatches = writer->schedule->shape.microbatch_count;
    uint32_t forwards = 0;
    for (; forwards < least(warmup, microbatches); forwards++)
        put(writer, TOW_PLAN_FORWARD, writer->device, forwards);
    for (uint32_t m = 0; m < microbatches; m++) {
        put(writer, TOW_PLAN_BACKWARD, writer->device, m);
        if (forwards < microbatches)
            put(writer, TOW_PLAN_FORWARD, writer->device, forwards++);
    }
}

static uint32_t warmup_of(const tow_plan_generate_options_t *options,
                          uint32_t stage)
{
    const uint32_t rest = options->device_count - stage;
    const uint32_t wanted =
        options->warmup == TOW_PLAN_WARMUP_B ? 2 * rest - 1 : rest;
    return options->in_flight_max == 0 ? wanted
                                       : least(wanted, options->in_flight_max);
}

/* 1F1B with split backwards: the weight gradient of a microbatch follows the
 * input gradient of the microbatch `delay` later. A device that starts later
 * has a longer delay, so that all devices hold the same number of activations,
 * and the delayed weight gradients fill the end of the step. */
static void write_zero_bubble(writer_t *writer, uint32_t warmup, uint32_t delay)
{
    const uint32_t microbatches = writer->schedule->shape.microbatch_count;
    const uint32_t stage = writer->device;
    uint32_t forwards = 0;
    uint32_t weights = 0;
    for (; forwards < least(warmup, microbatches); forwards++)
        put(writer, TOW_PLAN_FORWARD, stage, forwards);
    for (uint32_t m = 0; m < microbatches; m++) {
        put(writer, TOW_PLAN_INPUT_GRAD, stage, m);
        if (m >= delay) put(writer, TOW_PLAN_WEIGHT_GRAD, stage, weights++);
        if (forwards < microbatches)
            put(writer, TOW_PLAN_FORWARD, stage, forwards++);
    }
    while (weights < microbatches)
        put(writer, TOW_PLAN_WEIGHT_GRAD, stage, weights++);
}

/* -- Interleaved ----------------------------------------------------------- */

/* Action `k` of the forwards or backwards of a device: S microbatches of one
 * chunk, the same of the next chunk, and so on; backwards begin with the last
 * chunk. */
static void put_interleaved(writer_t *writer, tow_plan_action_kind_t kind,
                            uint32_t k)
{
    const uint32_t devices = writer->schedule->shape.device_count;
    const uint32_t stages = writer->schedule->shape.stage_count;
    uint32_t chunk = k % stages / devices;
    if (kind == TOW_PLAN_BACKWARD) chunk = stages / devices - 1 - chunk;
    put(writer, kind, chunk * devices + writer->device,
        k / stages * devices + k % devices);
}

static void write_interleaved(writer_t *writer)
{
    const tow_plan_shape_t *shape = &writer->schedule->shape;
    const uint32_t chunks = shape->stage_count / shape->device_count;
    const uint32_t count = chunks * shape->microbatch_count;
    const uint32_t rest = shape->device_count - writer->device - 1;
    uint32_t forwards = 0;
    for (; forwards <
           least(2 * rest + (chunks - 1) * shape->device_count + 1, count);
         forwards++)
        put_interleaved(writer, TOW_PLAN_FORWARD, forwards);
    for (uint32_t k = 0; k < count; k++) {
        put_interleaved(writer, TOW_PLAN_BACKWARD, k);
        if (forwards < count)
            put_interleaved(writer, TOW_PLAN_FORWARD, forwards++);
    }
}

/* -- V shape --------------------------------------------------------------- */

/* Device d has stages d (chunk 0) and 2S - 1 - d (chunk 1). */
typedef struct v_writer {
    writer_t *writer;
    uint32_t stages[2];
    uint32_t forwards[2];
    uint32_t input_grads[2];
    tow_plan_actions_t waiting; /* owned; weight gradients in order */
    size_t weights;             /* of `waiting`, already put */
} v_writer_t;

static bool v_has(const v_writer_t *v, const uint32_t counts[2])
{
    const uint32_t microbatches = v->writer->schedule->shape.microbatch_count;
    return counts[0] < microbatches || counts[1] < microbatches;
}

static void v_forward(v_writer_t *v, int chunk)
{
    if (v->forwards[chunk] < v->writer->schedule->shape.microbatch_count)
        put(v->writer, TOW_PLAN_FORWARD, v->stages[chunk],
            v->forwards[chunk]++);
}

static void v_input_grad(v_writer_t *v, int chunk)
{
    const uint32_t m = v->input_grads[chunk];
    if (m >= v->writer->schedule->shape.microbatch_count) return;
    put(v->writer, TOW_PLAN_INPUT_GRAD, v->stages[chunk], m);
    const tow_plan_action_t weight = {TOW_PLAN_WEIGHT_GRAD, v->stages[chunk],
                                      m};
    if (!tow_vec_push(&v->waiting, weight) && v->writer->failed == TOW_OK)
        v->writer->failed = tow_status_bare(TOW_RESOURCE_EXHAUSTED);
    v->input_grads[chunk]++;
}

static void v_weight_grad(v_writer_t *v)
{
    if (v->weights == v->waiting.count) return;
    const tow_plan_action_t *next = &v->waiting.items[v->weights++];
    put(v->writer, next->kind, next->stage, next->microbatch);
}

static void v_backward(v_writer_t *v, int chunk)
{
    v_input_grad(v, chunk);
    v_weight_grad(v);
}

/* The first microbatch goes down the devices with chunk 0 and up again with
 * chunk 1, then its input gradient down and up. Until each of these arrives a
 * device has time for exactly the forwards that are written here, if all
 * actions take the same time: it is never idle. */
static void v_warm_up(v_writer_t *v, uint32_t device, uint32_t devices)
{
    for (uint32_t i = 0; i < 2 * (devices - device) - 1; i++)
        v_forward(v, 0);
    for (uint32_t i = 0; i < device; i++) {
        v_forward(v, 1);
        v_forward(v, 0);
    }
    for (uint32_t i = 0; i < devices - device; i++) {
        v_forward(v, 1);
        v_backward(v, 1);
    }
}

static void v_steady(v_writer_t *v)
{
    while (v_has(v, v->forwards)) {
        for (int chunk = 0; chunk < 2; chunk++) {
            v_forward(v, chunk);
            v_backward(v, chunk);
        }
    }
}

/* Input gradients are urgent at the end, because other devices wait for them:
 * later devices postpone more weight gradients. */
static void v_cool_down(v_writer_t *v, uint32_t device)
{
    for (uint32_t i = 0; i < device; i++) {
        v_input_grad(v, 0);
        v_input_grad(v, 1);
    }
    while (v_has(v, v->input_grads)) {
        v_backward(v, 0);
        if (v->input_grads[1] < v->writer->schedule->shape.microbatch_count)
            v_backward(v, 1);
    }
    while (v->weights < v->waiting.count)
        v_weight_grad(v);
}

static void write_zb_v(writer_t *writer)
{
    const uint32_t devices = writer->schedule->shape.device_count;
    v_writer_t v = {
        .writer = writer,
        .stages = {writer->device, 2 * devices - 1 - writer->device},
    };
    v_warm_up(&v, writer->device, devices);
    v_steady(&v);
    v_cool_down(&v, writer->device);
    tow_vec_deinit(&v.waiting);
}

/* -- All ------------------------------------------------------------------- */

static void write_device(writer_t *writer,
                         const tow_plan_generate_options_t *options)
{
    const uint32_t device = writer->device;
    const uint32_t rest = options->device_count - device;
    switch (options->generator) {
    case TOW_PLAN_GPIPE: write_gpipe(writer); return;
    case TOW_PLAN_1F1B: write_1f1b(writer, warmup_of(options, device)); return;
    case TOW_PLAN_INTERLEAVED: write_interleaved(writer); return;
    case TOW_PLAN_ZB_H1: write_zero_bubble(writer, rest, device); return;
    case TOW_PLAN_ZB_H2:
        write_zero_bubble(writer, 2 * rest - 1, 2 * device);
        return;
    case TOW_PLAN_ZB_V: write_zb_v(writer); return;
    case TOW_PLAN_GENERATOR_COUNT: break;
    }
    TOW_UNREACHABLE();
}

static uint32_t chunks_of(const tow_plan_generate_options_t *options)
{
    if (options->generator == TOW_PLAN_ZB_V) return 2;
    if (options->generator != TOW_PLAN_INTERLEAVED) return 1;
    return options->chunk_count == 0 ? 2 : options->chunk_count;
}

static tow_status_t check_options(const tow_plan_generate_options_t *options)
{
    const char *name = tow_plan_generator_name(options->generator);
    if (options->chunk_count != 0 && options->chunk_count != chunks_of(options))
        return TOW_ERROR(
            TOW_INVALID_ARGUMENT,
            "%s puts %" PRIu32 " stage%s on a device, not %" PRIu32, name,
            chunks_of(options), chunks_of(options) == 1 ? "" : "s",
            options->chunk_count);
    if (options->generator != TOW_PLAN_1F1B &&
        (options->warmup != TOW_PLAN_WARMUP_A || options->in_flight_max != 0))
        return TOW_ERROR(TOW_INVALID_ARGUMENT,
                         "%s has no choice of warm-up or of microbatches in "
                         "flight; only 1f1b has",
                         name);
    if (options->generator == TOW_PLAN_INTERLEAVED &&
        (options->device_count == 0 ||
         options->microbatch_count % options->device_count != 0))
        return TOW_ERROR(TOW_INVALID_ARGUMENT,
                         "interleaved needs a multiple of %" PRIu32
                         " microbatches, one round of its devices; it got "
                         "%" PRIu32,
                         options->device_count, options->microbatch_count);
    return TOW_OK;
}

/* Before lists grow. A cell, one stage and one microbatch, has at most six
 * actions: F, SEND_F, R, I, SEND_B, W. */
#define CELL_COUNT_MAX (TOW_PLAN_ACTION_COUNT_MAX / 8)

static tow_status_t check_size(const tow_plan_shape_t *shape)
{
    const uint64_t cells =
        (uint64_t)shape->stage_count * shape->microbatch_count;
    if (cells <= CELL_COUNT_MAX) return TOW_OK;
    return TOW_ERROR(TOW_INVALID_ARGUMENT,
                     "%" PRIu32 " stages times %" PRIu32
                     " microbatches are more than the limit of %zu",
                     shape->stage_count, shape->microbatch_count,
                     CELL_COUNT_MAX);
}

static tow_status_t write_all(const tow_plan_generate_options_t *options,
                              tow_plan_schedule_t *schedule)
{
    for (uint32_t d = 0; d < options->device_count; d++) {
        writer_t writer = {.schedule = schedule, .device = d};
        write_device(&writer, options);
        TOW_RETURN_IF_ERROR(writer.failed);
    }
    return tow_plan_schedule_extend(schedule, &options->extras);
}

tow_status_t tow_plan_generate(const tow_plan_generate_options_t *options,
                               tow_plan_schedule_t *out_schedule)
{
    *out_schedule = (tow_plan_schedule_t){0};
    TOW_RETURN_IF_ERROR(check_options(options));
    const uint64_t stages =
        (uint64_t)options->device_count * chunks_of(options);
    const tow_plan_shape_t shape = {
        .device_count = options->device_count,
        .stage_count = stages > UINT32_MAX ? UINT32_MAX : (uint32_t)stages,
        .microbatch_count = options->microbatch_count,
    };
    TOW_RETURN_IF_ERROR(tow_plan_schedule_init(out_schedule, &shape));
    if (options->generator == TOW_PLAN_ZB_V)
        for (uint32_t d = 0; d < shape.device_count; d++)
            out_schedule->stage_devices[shape.stage_count - 1 - d] = d;
    tow_status_t status = check_size(&shape);
    if (status == TOW_OK) status = write_all(options, out_schedule);
    if (status != TOW_OK) tow_plan_schedule_deinit(out_schedule);
    return status;
}

static const char *const names[TOW_PLAN_GENERATOR_COUNT] = {
    [TOW_PLAN_GPIPE] = "gpipe",
    [TOW_PLAN_1F1B] = "1f1b",
    [TOW_PLAN_INTERLEAVED] = "interleaved",
    [TOW_PLAN_ZB_H1] = "zb-h1",
    [TOW_PLAN_ZB_H2] = "zb-h2",
    [TOW_PLAN_ZB_V] = "zb-v",
};

const char *tow_plan_generator_name(tow_plan_generator_t generator)
{
    TOW_ASSERT(generator < TOW_PLAN_GENERATOR_COUNT);
    return names[generator];
}

bool tow_plan_generator_find(const char *name,
                             tow_plan_generator_t *out_generator)
{
    for (int i = 0; i < TOW_PLAN_GENERATOR_COUNT; i++)
        if (strcmp(name, names[i]) == 0) {
            *out_generator = (tow_plan_generator_t)i;
            return true;
        }
    return false;
}
