/* Whether the fragments of a pipeline fit its schedule. */
#include <inttypes.h>

#include "base/assert.h"
#include "plan/schedule/nodes_impl.h"

static const char *const names[TOW_PLAN_FRAGMENT_KIND_COUNT] = {
    [TOW_PLAN_FRAGMENT_FORWARD] = "forward",
    [TOW_PLAN_FRAGMENT_BACKWARD] = "backward",
    [TOW_PLAN_FRAGMENT_INPUT_GRAD] = "input gradient",
    [TOW_PLAN_FRAGMENT_WEIGHT_GRAD] = "weight gradient",
    [TOW_PLAN_FRAGMENT_RECOMPUTE] = "recomputation",
    [TOW_PLAN_FRAGMENT_ACCUMULATE] = "accumulation",
    [TOW_PLAN_FRAGMENT_UPDATE] = "update",
};

const char *tow_plan_fragment_kind_name(tow_plan_fragment_kind_t kind)
{
    TOW_ASSERT(kind < TOW_PLAN_FRAGMENT_KIND_COUNT);
    return names[kind];
}

tow_plan_fragment_kind_t tow_plan_fragment_of(tow_plan_action_kind_t kind)
{
    switch (kind) {
    case TOW_PLAN_FORWARD: return TOW_PLAN_FRAGMENT_FORWARD;
    case TOW_PLAN_BACKWARD: return TOW_PLAN_FRAGMENT_BACKWARD;
    case TOW_PLAN_INPUT_GRAD: return TOW_PLAN_FRAGMENT_INPUT_GRAD;
    case TOW_PLAN_WEIGHT_GRAD: return TOW_PLAN_FRAGMENT_WEIGHT_GRAD;
    case TOW_PLAN_RECOMPUTE: return TOW_PLAN_FRAGMENT_RECOMPUTE;
    case TOW_PLAN_UPDATE: return TOW_PLAN_FRAGMENT_UPDATE;
    default: return TOW_PLAN_FRAGMENT_KIND_COUNT;
    }
}

const tow_plan_fragment_t *tow_plan_stage_fragment(
    const tow_plan_stage_t *stage, tow_plan_fragment_kind_t kind)
{
    const tow_plan_fragment_t *fragment = stage->fragments[kind];
    if (fragment == NULL && kind == TOW_PLAN_FRAGMENT_RECOMPUTE)
        return stage->fragments[TOW_PLAN_FRAGMENT_FORWARD];
    return fragment;
}

/* -- Operands -------------------------------------------------------------- */

#define BIT(fragment) (1u << (fragment))
#define FORWARDS \
    (BIT(TOW_PLAN_FRAGMENT_FORWARD) | BIT(TOW_PLAN_FRAGMENT_RECOMPUTE))
#define BACKWARDS                                                          \
    (BIT(TOW_PLAN_FRAGMENT_BACKWARD) | BIT(TOW_PLAN_FRAGMENT_INPUT_GRAD) | \
     BIT(TOW_PLAN_FRAGMENT_WEIGHT_GRAD))

/* The fragments that may use a source. */
static const unsigned users[TOW_PLAN_SOURCE_COUNT] = {
    [TOW_PLAN_SOURCE_ARGUMENT] =
        FORWARDS | BACKWARDS | BIT(TOW_PLAN_FRAGMENT_UPDATE),
    [TOW_PLAN_SOURCE_BATCH] = FORWARDS | BACKWARDS,
    [TOW_PLAN_SOURCE_ACTIVATION] = FORWARDS | BACKWARDS,
    [TOW_PLAN_SOURCE_COTANGENT] = BACKWARDS,
    [TOW_PLAN_SOURCE_FORWARD] = BACKWARDS,
    [TOW_PLAN_SOURCE_INPUT_GRAD] = BIT(TOW_PLAN_FRAGMENT_WEIGHT_GRAD),
    [TOW_PLAN_SOURCE_GRADIENT] = BIT(TOW_PLAN_FRAGMENT_ACCUMULATE),
    [TOW_PLAN_SOURCE_SUM] =
        BIT(TOW_PLAN_FRAGMENT_ACCUMULATE) | BIT(TOW_PLAN_FRAGMENT_UPDATE),
};

typedef struct pipeline_check {
    const tow_plan_pipeline_t *pipeline;
    const tow_plan_work_t *work;
    uint32_t stage;
} pipeline_check_t;

static const tow_plan_stage_t *stage_of(const pipeline_check_t *check)
{
    return &check->pipeline->stages[check->stage];
}

static uint32_t results_of(const tow_plan_stage_t *stage,
                           tow_plan_fragment_kind_t kind)
{
    const tow_plan_fragment_t *fragment = tow_plan_stage_fragment(stage, kind);
    return fragment == NULL ? 0 : fragment->result_count;
}

/* Indices of a source are below this. */
static uint32_t count_of(const pipeline_check_t *check,
                         tow_plan_source_t source)
{
    const tow_plan_stage_t *stage = stage_of(check);
    switch (source) {
    case TOW_PLAN_SOURCE_ARGUMENT: return stage->argument_count;
    case TOW_PLAN_SOURCE_BATCH: return stage->batch_count;
    case TOW_PLAN_SOURCE_ACTIVATION:
    case TOW_PLAN_SOURCE_COTANGENT:
        return (uint32_t)check->pipeline->edge_count;
    case TOW_PLAN_SOURCE_FORWARD:
        return results_of(stage, TOW_PLAN_FRAGMENT_FORWARD);
    case TOW_PLAN_SOURCE_INPUT_GRAD:
        return results_of(stage, TOW_PLAN_FRAGMENT_INPUT_GRAD);
    case TOW_PLAN_SOURCE_GRADIENT:
    case TOW_PLAN_SOURCE_SUM: return stage->gradient_count;
    case TOW_PLAN_SOURCE_COUNT: break;
    }
    TOW_UNREACHABLE();
}

/* Whether an edge ends (activation) or begins (cotangent) at the stage. */
static bool edge_fits(const pipeline_check_t *check,
                      const tow_plan_input_t *input)
{
    const tow_plan_edge_t *edge = &check->pipeline->edges[input->index];
    if (input->source == TOW_PLAN_SOURCE_ACTIVATION)
        return edge->to_stage == check->stage;
    if (input->source == TOW_PLAN_SOURCE_COTANGENT)
        return edge->from_stage == check->stage && !edge->is_forward_only;
    return true;
}

static const char *fault_of(const pipeline_check_t *check,
                            tow_plan_fragment_kind_t kind,
                            const tow_plan_input_t *input)
{
    if (input->source >= TOW_PLAN_SOURCE_COUNT) return "has no such source";
    if ((users[input->source] & BIT(kind)) == 0)
        return "comes from a source that this fragment cannot use";
    if (input->index >= count_of(check, input->source))
        return "has an index above the count of its source";
    const bool is_edge = input->source == TOW_PLAN_SOURCE_ACTIVATION ||
                         input->source == TOW_PLAN_SOURCE_COTANGENT;
    if (is_edge && !edge_fits(check, input))
        return "comes over an edge of another stage";
    return NULL;
}

static tow_status_t check_inputs(const pipeline_check_t *check,
                                 tow_plan_fragment_kind_t kind,
                                 const tow_plan_fragment_t *fragment)
{
    for (uint32_t i = 0; i < fragment->input_count; i++) {
        const tow_plan_input_t *input = &fragment->inputs[i];
        const char *fault = fault_of(check, kind, input);
        if (fault != NULL)
            return TOW_ERROR(TOW_INVALID_ARGUMENT,
                             "stage %" PRIu32 ", %s: operand %" PRIu32
                             " (source %d, index %" PRIu32 ") %s",
                             check->stage, names[kind], i, (int)input->source,
                             input->index, fault);
    }
    return TOW_OK;
}

/* -- Fragments ------------------------------------------------------------- */

static tow_status_t require(const pipeline_check_t *check,
                            tow_plan_fragment_kind_t kind)
{
    const tow_plan_fragment_t *fragment =
        tow_plan_stage_fragment(stage_of(check), kind);
    if (fragment == NULL)
        return TOW_ERROR(TOW_INVALID_ARGUMENT,
                         "stage %" PRIu32 " has no function for its %s, which "
                         "the schedule needs",
                         check->stage, names[kind]);
    return check_inputs(check, kind, fragment);
}

static tow_status_t require_results(const pipeline_check_t *check,
                                    tow_plan_fragment_kind_t kind,
                                    uint64_t count)
{
    const uint32_t actual = results_of(stage_of(check), kind);
    if (actual >= count) return TOW_OK;
    return TOW_ERROR(TOW_INVALID_ARGUMENT,
                     "stage %" PRIu32 ", %s: %" PRIu32
                     " results; the pipeline uses %" PRIu64,
                     check->stage, names[kind], actual, count);
}

static bool uses(const pipeline_check_t *check, tow_plan_action_kind_t kind)
{
    for (uint32_t m = 0; m < check->work->schedule->shape.microbatch_count; m++)
        if (tow_plan_work_has(check->work, kind, check->stage, m)) return true;
    return false;
}

static tow_status_t check_gradients(const pipeline_check_t *check)
{
    const tow_plan_stage_t *stage = stage_of(check);
    const uint64_t count = stage->gradient_count;
    if (count == 0) return TOW_OK;
    if (uses(check, TOW_PLAN_BACKWARD))
        TOW_RETURN_IF_ERROR(require_results(check, TOW_PLAN_FRAGMENT_BACKWARD,
                                            stage->backward_gradient + count));
    if (uses(check, TOW_PLAN_WEIGHT_GRAD))
        TOW_RETURN_IF_ERROR(require_results(check,
                                            TOW_PLAN_FRAGMENT_WEIGHT_GRAD,
                                            stage->weight_gradient + count));
    if (check->work->schedule->shape.microbatch_count == 1) return TOW_OK;
    TOW_RETURN_IF_ERROR(require(check, TOW_PLAN_FRAGMENT_ACCUMULATE));
    return require_results(check, TOW_PLAN_FRAGMENT_ACCUMULATE, count);
}

static tow_status_t check_outputs(const pipeline_check_t *check)
{
    const tow_plan_stage_t *stage = stage_of(check);
    for (uint32_t i = 0; i < stage->output_count; i++)
        TOW_RETURN_IF_ERROR(require_results(check, TOW_PLAN_FRAGMENT_FORWARD,
                                            (uint64_t)stage->outputs[i] + 1));
    return TOW_OK;
}

static tow_status_t check_stage(const pipeline_check_t *check)
{
    static const tow_plan_action_kind_t kinds[] = {
        TOW_PLAN_FORWARD,     TOW_PLAN_BACKWARD,  TOW_PLAN_INPUT_GRAD,
        TOW_PLAN_WEIGHT_GRAD, TOW_PLAN_RECOMPUTE,
    };
    for (size_t i = 0; i < TOW_COUNT_OF(kinds); i++)
        if (uses(check, kinds[i]))
            TOW_RETURN_IF_ERROR(require(check, tow_plan_fragment_of(kinds[i])));
    if (uses(check, TOW_PLAN_RECOMPUTE))
        TOW_RETURN_IF_ERROR(require_results(
            check, TOW_PLAN_FRAGMENT_RECOMPUTE,
            results_of(stage_of(check), TOW_PLAN_FRAGMENT_FORWARD)));
    if (check->work->has_updates)
        TOW_RETURN_IF_ERROR(require(check, TOW_PLAN_FRAGMENT_UPDATE));
    TOW_RETURN_IF_ERROR(check_gradients(check));
    return check_outputs(check);
}

/* -- Edges ----------------------------------------------------------------- */

static tow_status_t check_edge(const tow_plan_pipeline_t *pipeline,
                               const tow_plan_work_t *work,
                               const tow_plan_edge_t *edge)
{
    pipeline_check_t check = {pipeline, work, edge->from_stage};
    TOW_RETURN_IF_ERROR(require_results(&check, TOW_PLAN_FRAGMENT_FORWARD,
                                        (uint64_t)edge->result + 1));
    if (edge->is_forward_only) return TOW_OK;
    check.stage = edge->to_stage;
    if (uses(&check, TOW_PLAN_BACKWARD))
        TOW_RETURN_IF_ERROR(require_results(&check, TOW_PLAN_FRAGMENT_BACKWARD,
                                            (uint64_t)edge->cotangent + 1));
    if (uses(&check, TOW_PLAN_INPUT_GRAD))
        TOW_RETURN_IF_ERROR(require_results(&check,
                                            TOW_PLAN_FRAGMENT_INPUT_GRAD,
                                            (uint64_t)edge->cotangent + 1));
    return TOW_OK;
}

tow_status_t tow_plan_pipeline_check(const tow_plan_pipeline_t *pipeline,
                                     const tow_plan_work_t *work)
{
    pipeline_check_t check = {pipeline, work, 0};
    for (; check.stage < work->schedule->shape.stage_count; check.stage++)
        TOW_RETURN_IF_ERROR(check_stage(&check));
    for (size_t i = 0; i < pipeline->edge_count; i++)
        TOW_RETURN_IF_ERROR(check_edge(pipeline, work, &pipeline->edges[i]));
    return TOW_OK;
}
