#include "pjrt/python_plan.h"

#include <string.h>

#include "base/alloc.h"
#include "base/status.h"
#include "pjrt/python_text.h"
#include "plan/schedule/check.h"
#include "plan/schedule/csv.h"
#include "plan/schedule/generate.h"
#include "plan/schedule/words.h"

/* -- Schedules by name ----------------------------------------------------- */

static tow_status_t find_generator(const char *name,
                                   tow_plan_generator_t *out_generator)
{
    if (tow_plan_generator_find(name, out_generator)) return TOW_OK;
    return TOW_ERROR(TOW_INVALID_ARGUMENT,
                     "there is no schedule '%s': gpipe, 1f1b, interleaved, "
                     "zb-h1, zb-h2, zb-v, or a schedule as CSV",
                     name);
}

static tow_status_t generate(const char *name,
                             tow_plan_generate_options_t *options,
                             char **out_csv)
{
    tow_plan_schedule_t schedule;
    size_t size;
    TOW_RETURN_IF_ERROR(find_generator(name, &options->generator));
    TOW_RETURN_IF_ERROR(tow_plan_generate(options, &schedule));
    tow_status_t status = tow_plan_csv_print(&schedule, out_csv, &size);
    tow_plan_schedule_deinit(&schedule);
    return status;
}

char *towpath_schedule_generate(const char *name, uint32_t devices,
                                uint32_t microbatches, uint32_t chunks,
                                uint32_t warmup, uint32_t recompute,
                                char **out_csv)
{
    tow_plan_generate_options_t options = {
        .device_count = devices,
        .microbatch_count = microbatches,
        .chunk_count = chunks,
        .warmup = warmup != 0 ? TOW_PLAN_WARMUP_B : TOW_PLAN_WARMUP_A,
        .extras = {.recompute = recompute != 0}};
    return tow_python_error_text(generate(name, &options, out_csv));
}

/* -- Nodes ----------------------------------------------------------------- */

static tow_status_t print_nodes(const tow_plan_schedule_t *schedule,
                                const tow_plan_pipeline_t *pipeline,
                                uint32_t **out_words, size_t *out_count)
{
    tow_plan_nodes_t nodes;
    TOW_RETURN_IF_ERROR(tow_plan_nodes_init(&nodes, schedule, pipeline));
    tow_status_t status = tow_plan_words_print(&nodes, out_words, out_count);
    tow_plan_nodes_deinit(&nodes);
    return status;
}

static tow_status_t make_nodes(const tow_plan_schedule_t *schedule,
                               const uint32_t *words, size_t count,
                               uint32_t **out_words, size_t *out_count)
{
    tow_plan_words_pipeline_t pipeline;
    TOW_RETURN_IF_ERROR(tow_plan_words_read(
        words, count, schedule->shape.stage_count, &pipeline));
    tow_status_t status =
        print_nodes(schedule, &pipeline.pipeline, out_words, out_count);
    tow_plan_words_deinit(&pipeline);
    return status;
}

static tow_status_t parse_and_make(const char *csv, const uint32_t *words,
                                   size_t count, uint32_t **out_words,
                                   size_t *out_count)
{
    tow_plan_schedule_t schedule;
    TOW_RETURN_IF_ERROR(tow_plan_csv_parse(csv, strlen(csv), &schedule));
    tow_status_t status =
        make_nodes(&schedule, words, count, out_words, out_count);
    tow_plan_schedule_deinit(&schedule);
    return status;
}

char *towpath_schedule_nodes(const char *csv, const uint32_t *pipeline,
                             size_t count, uint32_t **out_words,
                             size_t *out_count)
{
    return tow_python_error_text(
        parse_and_make(csv, pipeline, count, out_words, out_count));
}
