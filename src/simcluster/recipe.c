#include "simcluster/recipe_impl.h"

#include "base/alloc.h"
#include "base/assert.h"
#include "base/hash.h"
#include "device/host/sim.h"
#include "device/sim/value.h"

uint32_t sim_recipe_add(sim_recipe_t *recipe, const sim_step_t *step)
{
    const uint32_t first = (uint32_t)recipe->last_steps.count;
    bool ok = tow_vec_push(&recipe->steps, *step);
    for (uint32_t i = 0; i < step->output_count; i++)
        ok &= tow_vec_push(&recipe->last_steps, 0);
    TOW_ASSERT(ok);
    for (uint32_t i = 0; i < step->input_count; i++) {
        TOW_ASSERT(step->inputs[i] < first);
        recipe->last_steps.items[step->inputs[i]] =
            (uint32_t)recipe->steps.count;
    }
    return first;
}

void sim_recipe_add_result(sim_recipe_t *recipe, uint32_t value)
{
    const bool ok = tow_vec_push(&recipe->results, value);
    TOW_ASSERT(ok && value < recipe->last_steps.count);
    recipe->last_steps.items[value] = UINT32_MAX; /* Never released. */
}

void sim_recipe_deinit(sim_recipe_t *recipe)
{
    tow_vec_deinit(&recipe->steps);
    tow_vec_deinit(&recipe->last_steps);
    tow_vec_deinit(&recipe->results);
}

/* -- Computations ---------------------------------------------------------- */

/* The group of a device, and its rank there. */
typedef struct place {
    uint32_t group, rank;
} place_t;

static place_t place_of(const sim_function_t *function, uint32_t device,
                        uint32_t device_count)
{
    const uint32_t half = device_count / 2;
    if (function->collective == SIM_GATHER_PAIRS)
        return (place_t){device % half, device / half};
    return (place_t){0, device};
}

static tow_sim_collective_kind_t kind_of(const sim_function_t *function)
{
    return function->collective == SIM_GATHER_PAIRS ? TOW_SIM_ALL_GATHER
                                                    : TOW_SIM_ALL_REDUCE;
}

/* Replaces each device's value by that of its group. */
static void combine(const sim_function_t *function, uint64_t *values,
                    uint32_t count)
{
    if (function->collective == SIM_ALONE) return;
    uint64_t *sums = tow_calloc(count, sizeof(*sums));
    TOW_ASSERT(sums != NULL);
    for (uint32_t i = 0; i < count; i++) {
        const place_t place = place_of(function, i, count);
        sums[place.group] +=
            tow_mix64(values[i] ^ tow_mix64((uint64_t)place.rank + 1));
    }
    for (uint32_t i = 0; i < count; i++) {
        const place_t place = place_of(function, i, count);
        values[i] = tow_sim_value_after_collective(
            kind_of(function), sums[place.group], place.rank);
    }
    tow_free(sums);
}

static uint64_t value_on(const sim_function_t *function,
                         sim_contents_t *const *inputs, uint32_t device)
{
    uint64_t value = tow_sim_value_begin(function->name);
    for (uint32_t i = 0; i < function->input_count; i++)
        value = tow_sim_value_mix(value,
                                  sim_contents_shard(inputs[i], device)->value);
    return value;
}

static bool are_uniform(sim_contents_t *const *inputs, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++)
        if (inputs[i]->distinct_count > 1) return false;
    return true;
}

static void call(const sim_step_t *step, sim_contents_t *const *inputs,
                 sim_contents_t **outputs)
{
    const sim_function_t *function = &step->as.function;
    const uint32_t count = step->device_count;
    const bool is_uniform = function->collective == SIM_ALL_REDUCE ||
                            are_uniform(inputs, step->input_count);
    uint64_t *values = tow_calloc(count, sizeof(*values));
    TOW_ASSERT(values != NULL);
    for (uint32_t i = 0; i < count; i++)
        values[i] = value_on(function, inputs, i);
    combine(function, values, count);
    for (uint32_t k = 0; k < step->output_count; k++) {
        outputs[k] = sim_contents_create(count, is_uniform ? 1 : count);
        for (uint32_t i = 0; i < outputs[k]->distinct_count; i++)
            outputs[k]->shards[i] = sim_shard_of_value(
                tow_sim_value_mix(values[i], k + 1), function->output_bytes);
    }
    tow_free(values);
}

/* -- Host functions -------------------------------------------------------- */

static sim_shard_t call_host(const sim_host_function_t *function,
                             const sim_shard_t *input)
{
    uint8_t *bytes = tow_malloc(input->size + 1);
    TOW_ASSERT(bytes != NULL);
    sim_shard_show(input, bytes);
    const uint64_t value = tow_host_sim_mix(tow_sim_value_begin(function->name),
                                            bytes, input->size);
    tow_free(bytes);
    uint32_t size = function->output_bytes;
    if (function->is_bounded) size = (uint32_t)tow_host_sim_dim(value, 0, size);
    return sim_shard_of_value(tow_sim_value_mix(value, 1), size);
}

static sim_contents_t *host(const sim_step_t *step, const sim_contents_t *input)
{
    sim_contents_t *output =
        sim_contents_create(input->device_count, input->distinct_count);
    for (uint32_t i = 0; i < output->distinct_count; i++)
        output->shards[i] = call_host(&step->as.host, &input->shards[i]);
    return output;
}

/* -- Running --------------------------------------------------------------- */

static void run_step(const sim_step_t *step, sim_contents_t *const *arguments,
                     sim_contents_t *const *inputs, sim_contents_t **outputs)
{
    switch (step->kind) {
    case SIM_STEP_ARGUMENT:
        outputs[0] = sim_contents_retain(arguments[step->as.argument]);
        return;
    case SIM_STEP_CALL: call(step, inputs, outputs); return;
    case SIM_STEP_HOST: outputs[0] = host(step, inputs[0]); return;
    case SIM_STEP_TRANSFER:
        outputs[0] =
            sim_contents_reshard(inputs[0], &step->as.transfer.from,
                                 &step->as.transfer.to, step->device_count);
        return;
    case SIM_STEP_COLLECTIVE:
        for (uint32_t i = 0; i < step->output_count; i++)
            outputs[i] =
                sim_contents_all_reduce(inputs[i], &step->as.collective);
        return;
    }
}

/* Releases the inputs that no later step uses. */
static void release_used(const sim_recipe_t *recipe, uint32_t index,
                         sim_contents_t **values)
{
    const sim_step_t *step = &recipe->steps.items[index];
    for (uint32_t i = 0; i < step->input_count; i++) {
        const uint32_t value = step->inputs[i];
        if (recipe->last_steps.items[value] != index + 1) continue;
        sim_contents_release(values[value]);
        values[value] = NULL;
    }
}

void sim_recipe_run(const sim_recipe_t *recipe,
                    sim_contents_t *const *arguments,
                    sim_contents_t **out_results)
{
    const size_t value_count = recipe->last_steps.count;
    sim_contents_t **values = tow_calloc(value_count, sizeof(sim_contents_t *));
    TOW_ASSERT(values != NULL);
    uint32_t next = 0;
    for (uint32_t i = 0; i < recipe->steps.count; i++) {
        const sim_step_t *step = &recipe->steps.items[i];
        sim_contents_t *inputs[SIM_INPUTS_MAX];
        for (uint32_t k = 0; k < step->input_count; k++)
            inputs[k] = values[step->inputs[k]];
        run_step(step, arguments, inputs, values + next);
        next += step->output_count;
        release_used(recipe, i, values);
    }
    for (size_t i = 0; i < recipe->results.count; i++)
        out_results[i] = sim_contents_retain(values[recipe->results.items[i]]);
    for (size_t i = 0; i < value_count; i++)
        sim_contents_release(values[i]);
    tow_free(values);
}
