#include "plan/schedule/words.h"

#include <inttypes.h>
#include <string.h>

#include "base/alloc.h"
#include "base/assert.h"

/* -- Reading --------------------------------------------------------------- */

typedef struct reader {
    const uint32_t *words;
    size_t count;
    size_t at;
    tow_plan_words_pipeline_t *out;
} reader_t;

static tow_status_t read_word(reader_t *reader, uint32_t *out_word)
{
    if (reader->at == reader->count)
        return TOW_ERROR(TOW_INVALID_ARGUMENT,
                         "the pipeline ends after %zu numbers", reader->count);
    *out_word = reader->words[reader->at++];
    return TOW_OK;
}

static tow_status_t read_words(reader_t *reader, uint32_t *const *words,
                               size_t count)
{
    for (size_t i = 0; i < count; i++)
        TOW_RETURN_IF_ERROR(read_word(reader, words[i]));
    return TOW_OK;
}

/* Each of the `count` items takes at least one number of those left, so a false
 * count allocates no more than the input's size allows. */
static tow_status_t allocate(reader_t *reader, uint32_t count, size_t size,
                             void **out_block)
{
    if (count > reader->count - reader->at)
        return TOW_ERROR(TOW_INVALID_ARGUMENT,
                         "number %zu of the pipeline announces %" PRIu32
                         " items, but %zu numbers follow",
                         reader->at - 1, count, reader->count - reader->at);
    void *block = tow_calloc((size_t)count + 1, size);
    if (block == NULL || !tow_vec_push(&reader->out->blocks, block)) {
        tow_free(block);
        return tow_status_bare(TOW_RESOURCE_EXHAUSTED);
    }
    *out_block = block;
    return TOW_OK;
}

static tow_status_t read_input(reader_t *reader, tow_plan_input_t *out_input)
{
    uint32_t source = 0;
    TOW_RETURN_IF_ERROR(read_word(reader, &source));
    if (source >= TOW_PLAN_SOURCE_COUNT)
        return TOW_ERROR(TOW_INVALID_ARGUMENT,
                         "number %zu of the pipeline: there is no source "
                         "%" PRIu32,
                         reader->at - 1, source);
    out_input->source = (tow_plan_source_t)source;
    return read_word(reader, &out_input->index);
}

static tow_status_t read_fragment(reader_t *reader,
                                  const tow_plan_fragment_t **out_fragment)
{
    uint32_t is_there = 0;
    void *block;
    TOW_RETURN_IF_ERROR(read_word(reader, &is_there));
    if (is_there == 0) return TOW_OK;
    TOW_RETURN_IF_ERROR(
        allocate(reader, 1, sizeof(tow_plan_fragment_t), &block));
    tow_plan_fragment_t *fragment = block;
    TOW_RETURN_IF_ERROR(
        read_words(reader,
                   (uint32_t *[]){&fragment->function, &fragment->result_count,
                                  &fragment->input_count},
                   3));
    TOW_RETURN_IF_ERROR(allocate(reader, fragment->input_count,
                                 sizeof(tow_plan_input_t), &block));
    tow_plan_input_t *inputs = block;
    for (uint32_t i = 0; i < fragment->input_count; i++)
        TOW_RETURN_IF_ERROR(read_input(reader, &inputs[i]));
    fragment->inputs = inputs;
    *out_fragment = fragment;
    return TOW_OK;
}

static tow_status_t read_outputs(reader_t *reader, tow_plan_stage_t *stage)
{
    void *block;
    TOW_RETURN_IF_ERROR(read_word(reader, &stage->output_count));
    TOW_RETURN_IF_ERROR(
        allocate(reader, stage->output_count, sizeof(uint32_t), &block));
    uint32_t *outputs = block;
    for (uint32_t i = 0; i < stage->output_count; i++)
        TOW_RETURN_IF_ERROR(read_word(reader, &outputs[i]));
    stage->outputs = outputs;
    return TOW_OK;
}

static tow_status_t read_stage(reader_t *reader, tow_plan_stage_t *stage)
{
    TOW_RETURN_IF_ERROR(read_words(
        reader,
        (uint32_t *[]){&stage->argument_count, &stage->batch_count,
                       &stage->gradient_count, &stage->backward_gradient,
                       &stage->weight_gradient},
        5));
    TOW_RETURN_IF_ERROR(read_outputs(reader, stage));
    for (int kind = 0; kind < TOW_PLAN_FRAGMENT_KIND_COUNT; kind++)
        TOW_RETURN_IF_ERROR(read_fragment(reader, &stage->fragments[kind]));
    return TOW_OK;
}

static tow_status_t read_stages(reader_t *reader, uint32_t stage_count)
{
    uint32_t count = 0;
    void *block;
    TOW_RETURN_IF_ERROR(read_word(reader, &count));
    if (count != stage_count)
        return TOW_ERROR(TOW_INVALID_ARGUMENT,
                         "the schedule has %" PRIu32
                         " stages, but the pipeline has %" PRIu32,
                         stage_count, count);
    TOW_RETURN_IF_ERROR(
        allocate(reader, count, sizeof(tow_plan_stage_t), &block));
    tow_plan_stage_t *stages = block;
    for (uint32_t i = 0; i < count; i++)
        TOW_RETURN_IF_ERROR(read_stage(reader, &stages[i]));
    reader->out->pipeline.stages = stages;
    return TOW_OK;
}

static tow_status_t read_edge(reader_t *reader, tow_plan_edge_t *edge)
{
    uint32_t is_forward_only = 0;
    TOW_RETURN_IF_ERROR(read_words(
        reader,
        (uint32_t *[]){&edge->from_stage, &edge->to_stage, &is_forward_only,
                       &edge->result, &edge->cotangent},
        5));
    edge->is_forward_only = is_forward_only != 0;
    return TOW_OK;
}

static tow_status_t read_edges(reader_t *reader)
{
    uint32_t count = 0;
    void *block;
    TOW_RETURN_IF_ERROR(read_word(reader, &count));
    TOW_RETURN_IF_ERROR(
        allocate(reader, count, sizeof(tow_plan_edge_t), &block));
    tow_plan_edge_t *edges = block;
    for (uint32_t i = 0; i < count; i++)
        TOW_RETURN_IF_ERROR(read_edge(reader, &edges[i]));
    reader->out->pipeline.edges = edges;
    reader->out->pipeline.edge_count = count;
    return TOW_OK;
}

static tow_status_t read_all(reader_t *reader, uint32_t stage_count)
{
    TOW_RETURN_IF_ERROR(read_stages(reader, stage_count));
    TOW_RETURN_IF_ERROR(read_edges(reader));
    if (reader->at == reader->count) return TOW_OK;
    return TOW_ERROR(TOW_INVALID_ARGUMENT,
                     "the pipeline has %zu numbers, of which %zu are used",
                     reader->count, reader->at);
}

tow_status_t tow_plan_words_read(const uint32_t *words, size_t count,
                                 uint32_t stage_count,
                                 tow_plan_words_pipeline_t *out_pipeline)
{
    reader_t reader = {.words = words, .count = count, .out = out_pipeline};
    memset(out_pipeline, 0, sizeof(*out_pipeline));
    tow_status_t status = read_all(&reader, stage_count);
    if (status != TOW_OK) tow_plan_words_deinit(out_pipeline);
    return status;
}

void tow_plan_words_deinit(tow_plan_words_pipeline_t *pipeline)
{
    for (size_t i = 0; i < pipeline->blocks.count; i++)
        tow_free(pipeline->blocks.items[i]);
    tow_vec_deinit(&pipeline->blocks);
    memset(pipeline, 0, sizeof(*pipeline));
}

/* -- Printing -------------------------------------------------------------- */

#define NODE_WORDS 9

static uint32_t *print_node(const tow_plan_nodes_t *nodes,
                            const tow_plan_node_t *node, uint32_t *words)
{
    const uint32_t head[NODE_WORDS] = {
        (uint32_t)node->kind, node->device,       node->stage,
        node->microbatch,     node->fragment,     node->function,
        node->index,          node->result_count, node->operand_count};
    memcpy(words, head, sizeof(head));
    words += NODE_WORDS;
    for (uint32_t i = 0; i < node->operand_count; i++) {
        const tow_plan_value_t *value =
            &nodes->operands.items[node->first_operand + i];
        *words++ = value->node;
        *words++ = value->result;
    }
    return words;
}

tow_status_t tow_plan_words_print(const tow_plan_nodes_t *nodes,
                                  uint32_t **out_words, size_t *out_count)
{
    const size_t count =
        nodes->nodes.count * NODE_WORDS + nodes->operands.count * 2;
    uint32_t *words = tow_calloc(count + 1, sizeof(*words));
    if (words == NULL) return tow_status_bare(TOW_RESOURCE_EXHAUSTED);
    uint32_t *end = words;
    for (size_t i = 0; i < nodes->nodes.count; i++)
        end = print_node(nodes, &nodes->nodes.items[i], end);
    TOW_ASSERT((size_t)(end - words) == count);
    *out_words = words;
    *out_count = count;
    return TOW_OK;
}
