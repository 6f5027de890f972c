#include "tool/schedule_costs.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"

#define TIME_NS_DEFAULT 1000000

static const char *const names[TOW_COST_OPTION_COUNT] = {
    [TOW_COST_FORWARD] = "forward",
    [TOW_COST_BACKWARD] = "backward",
    [TOW_COST_WEIGHT] = "weight",
    [TOW_COST_RECOMPUTE] = "recompute",
    [TOW_COST_ALL_REDUCE] = "all-reduce",
    [TOW_COST_UPDATE] = "update",
    [TOW_COST_ACTIVATION] = "activation",
    [TOW_COST_STASH] = "stash",
    [TOW_COST_INPUT] = "input",
    [TOW_COST_PARAMETERS] = "parameters",
    [TOW_COST_EDGE] = "edge",
    [TOW_COST_LATENCY] = "latency",
    [TOW_COST_BANDWIDTH] = "bandwidth",
};

const char *tow_cost_option_name(tow_cost_option_t option)
{
    return names[option];
}

static uint64_t factor_of(char suffix)
{
    switch (suffix) {
    case 'k': return 1000;
    case 'M': return 1000000;
    case 'G': return 1000000000;
    default: return 1;
    }
}

/* Digits and perhaps k, M or G; moves *text behind them. */
static bool parse_number(const char **text, uint64_t max, uint64_t *out_number)
{
    char *end;
    if (**text < '0' || **text > '9') return false;
    const uint64_t number = strtoull(*text, &end, 10);
    const uint64_t factor = factor_of(*end);
    if (number > max / factor) return false;
    *out_number = number * factor;
    *text = end + (factor > 1);
    return true;
}

static uint64_t max_of(tow_cost_option_t option)
{
    if (option == TOW_COST_BANDWIDTH) return UINT64_C(1) << 60;
    return option <= TOW_COST_UPDATE || option == TOW_COST_LATENCY
               ? (uint64_t)TOW_PLAN_TIME_NS_MAX
               : TOW_PLAN_BYTES_MAX;
}

static tow_status_t refuse(tow_cost_option_t option, const char *text,
                           uint32_t count)
{
    return TOW_ERROR(TOW_INVALID_ARGUMENT,
                     "--%s takes a whole number up to %" PRIu64 ", or %" PRIu32
                     " of them with commas, one for each %s; not '%s'",
                     names[option], max_of(option), count,
                     option < TOW_COST_EDGE ? "stage" : "edge", text);
}

/* Fills `numbers`, one for each of `count` stages or edges. */
static tow_status_t parse_list(tow_cost_option_t option, const char *text,
                               uint32_t count, uint64_t *numbers)
{
    const char *at = text;
    for (uint32_t i = 0; i < count; i++) {
        if (i > 0 && *at++ != ',') return refuse(option, text, count);
        if (!parse_number(&at, max_of(option), &numbers[i]))
            return refuse(option, text, count);
        if (i == 0 && *at == '\0') {
            for (uint32_t k = 1; k < count; k++)
                numbers[k] = numbers[0];
            return TOW_OK;
        }
    }
    return *at == '\0' ? TOW_OK : refuse(option, text, count);
}

static void set_stage(tow_plan_stage_cost_t *stage, tow_cost_option_t option,
                      uint64_t number)
{
    switch (option) {
    case TOW_COST_FORWARD: stage->forward_ns = (int64_t)number; break;
    case TOW_COST_BACKWARD: stage->input_grad_ns = (int64_t)number; break;
    case TOW_COST_WEIGHT: stage->weight_grad_ns = (int64_t)number; break;
    case TOW_COST_RECOMPUTE: stage->recompute_ns = (int64_t)number; break;
    case TOW_COST_ALL_REDUCE: stage->all_reduce_ns = (int64_t)number; break;
    case TOW_COST_UPDATE: stage->update_ns = (int64_t)number; break;
    case TOW_COST_ACTIVATION: stage->activation_bytes = number; break;
    case TOW_COST_STASH: stage->stash_bytes = number; break;
    case TOW_COST_INPUT: stage->input_bytes = number; break;
    case TOW_COST_PARAMETERS: stage->parameter_bytes = number; break;
    default: break;
    }
}

static void set_edge(tow_plan_edge_t *edge, tow_cost_option_t option,
                     uint64_t number)
{
    switch (option) {
    case TOW_COST_EDGE: edge->bytes = number; break;
    case TOW_COST_LATENCY: edge->latency_ns = (int64_t)number; break;
    case TOW_COST_BANDWIDTH: edge->bytes_per_s = number; break;
    default: break;
    }
}

static tow_status_t set_option(tow_cost_set_t *set, tow_cost_option_t option,
                               const char *text, uint32_t stage_count,
                               uint64_t *numbers)
{
    const bool is_edge = option >= TOW_COST_EDGE;
    const uint32_t count = is_edge ? stage_count - 1 : stage_count;
    if (count == 0) return TOW_OK;
    TOW_RETURN_IF_ERROR(parse_list(option, text, count, numbers));
    for (uint32_t i = 0; i < count; i++)
        if (is_edge)
            set_edge(&set->edges[i], option, numbers[i]);
        else
            set_stage(&set->stages[i], option, numbers[i]);
    set->has_memory |= option >= TOW_COST_ACTIVATION && option <= TOW_COST_EDGE;
    return TOW_OK;
}

static void set_defaults(tow_cost_set_t *set, uint32_t stage_count)
{
    for (uint32_t s = 0; s < stage_count; s++) {
        set->stages[s] = (tow_plan_stage_cost_t){
            .forward_ns = TIME_NS_DEFAULT,
            .input_grad_ns = TIME_NS_DEFAULT,
            .weight_grad_ns = TIME_NS_DEFAULT,
            .recompute_ns = -1,
        };
        set->edges[s] = (tow_plan_edge_t){.from_stage = s, .to_stage = s + 1};
    }
}

static tow_status_t set_all(tow_cost_set_t *set, const tow_cost_texts_t *texts,
                            uint32_t stage_count, uint64_t *numbers)
{
    for (int option = 0; option < TOW_COST_OPTION_COUNT; option++)
        if (texts->texts[option] != NULL)
            TOW_RETURN_IF_ERROR(set_option(set, (tow_cost_option_t)option,
                                           texts->texts[option], stage_count,
                                           numbers));
    for (uint32_t s = 0; s < stage_count; s++) {
        tow_plan_stage_cost_t *it = &set->stages[s];
        it->backward_ns = it->input_grad_ns + it->weight_grad_ns;
        if (it->recompute_ns < 0) it->recompute_ns = it->forward_ns;
    }
    return TOW_OK;
}

tow_status_t tow_cost_set_init(tow_cost_set_t *set,
                               const tow_cost_texts_t *texts,
                               const tow_plan_shape_t *shape)
{
    const uint32_t stages = shape->stage_count;
    uint64_t *numbers = tow_calloc(stages, sizeof(numbers[0]));
    *set = (tow_cost_set_t){
        .stages = tow_calloc(stages, sizeof(set->stages[0])),
        .edges = tow_calloc(stages, sizeof(set->edges[0])),
    };
    tow_status_t status = TOW_OK;
    if (numbers == NULL || set->stages == NULL || set->edges == NULL) {
        status = tow_status_bare(TOW_RESOURCE_EXHAUSTED);
    } else {
        set_defaults(set, stages);
        set->costs = (tow_plan_costs_t){set->stages, set->edges, stages - 1};
        status = set_all(set, texts, stages, numbers);
    }
    tow_free(numbers);
    if (status != TOW_OK) tow_cost_set_deinit(set);
    return status;
}

void tow_cost_set_deinit(tow_cost_set_t *set)
{
    tow_free(set->stages);
    tow_free(set->edges);
    *set = (tow_cost_set_t){0};
}
