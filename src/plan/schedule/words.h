/* Pipelines and their nodes as lists of 32-bit numbers, for callers in other
 * languages. A pipeline is
 *
 *     stages, then for each stage
 *         arguments, batch arguments, gradients,
 *         first gradient of the backward, of the weight gradient,
 *         outputs, then each of them
 *         for each kind of fragment: 0, or
 *             1, function, results, inputs, then for each input
 *                 source, index
 *     edges, then for each edge
 *         from, to, 1 if it has no cotangent, result, cotangent
 *
 * and the nodes are, one after the other,
 *
 *     kind, device, stage, microbatch, fragment, function, index, results,
 *     operands, then for each operand
 *         node, result */
#ifndef TOW_PLAN_SCHEDULE_WORDS_H_
#define TOW_PLAN_SCHEDULE_WORDS_H_

#include "plan/schedule/nodes.h"

/* Memory of a pipeline that was read; deinitialise after its use. */
typedef struct tow_plan_words_pipeline {
    tow_plan_pipeline_t pipeline; /* lends what follows */
    TOW_VEC(void *) blocks;       /* owned */
} tow_plan_words_pipeline_t;

/* INVALID_ARGUMENT: it ends too early, or is too long, by position. Zeroed
 * after an error. What it says is checked by tow_plan_nodes_init, except for
 * the kinds of sources and the number of stages. */
tow_status_t tow_plan_words_read(const uint32_t *words, size_t count,
                                 uint32_t stage_count,
                                 tow_plan_words_pipeline_t *out_pipeline)
    TOW_MUST_USE;
void tow_plan_words_deinit(tow_plan_words_pipeline_t *pipeline);

/* tow_free. */
tow_status_t tow_plan_words_print(const tow_plan_nodes_t *nodes,
                                  uint32_t **out_words, size_t *out_count)
    TOW_MUST_USE;

#endif /* TOW_PLAN_SCHEDULE_WORDS_H_ */
