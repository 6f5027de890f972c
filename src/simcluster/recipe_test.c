#include "simcluster/recipe_impl.h"

#include <string.h>

#include "base/testing.h"
#include "device/sim/value.h"

#define BYTES 12

/* Shard i has bytes 10 i, 10 i + 1, ... */
static sim_contents_t *make_array(uint32_t device_count)
{
    uint8_t bytes[8 * BYTES];
    for (uint32_t i = 0; i < device_count * BYTES; i++)
        bytes[i] = (uint8_t)(10 * (i / BYTES) + i % BYTES);
    return sim_contents_upload(bytes, BYTES, device_count, device_count);
}

static void expect_byte(const sim_contents_t *contents, size_t device,
                        size_t index, uint8_t expected)
{
    uint8_t bytes[8 * BYTES];
    sim_shard_show(sim_contents_shard(contents, device), bytes);
    assert_int_equal(bytes[index], expected);
}

static void parts_are_joined_and_cut_anew(void **state)
{
    const tow_sharding_t by_shard = tow_sharding_by_shard(1, 4);
    const tow_sharding_t whole = tow_sharding_replicated(1, 3);
    const tow_sharding_t halves = {.rank = 1,
                                   .parts = {2},
                                   .replicas = 2,
                                   .mesh_rank = 2,
                                   .mesh_dims = {2, 2},
                                   .mesh_axes = {1, 0}};
    sim_contents_t *array = make_array(4);
    sim_contents_t *all = sim_contents_reshard(array, &by_shard, &whole, 3);
    sim_contents_t *half = sim_contents_reshard(all, &whole, &halves, 4);
    assert_int_equal(all->distinct_count, 1);
    expect_byte(all, 2, 3 * BYTES + 1, 31);
    /* Devices 0 and 2 have the first half, in this order of the mesh. */
    expect_byte(half, 2, BYTES, 10);
    expect_byte(half, 1, BYTES, 30);
    sim_contents_release(array);
    sim_contents_release(all);
    sim_contents_release(half);
}

static void groups_are_reduced_apart(void **state)
{
    const tow_collective_t columns = {.kind = TOW_COLLECTIVE_ALL_REDUCE,
                                      .reduction = TOW_REDUCE_SUM,
                                      .mesh_rank = 2,
                                      .mesh_dims = {2, 2},
                                      .axis_count = 1,
                                      .axes = {0}};
    sim_contents_t *array = make_array(4);
    sim_contents_t *sum = sim_contents_all_reduce(array, &columns);
    expect_byte(sum, 0, 1, 1 + 21);
    expect_byte(sum, 2, 1, 1 + 21);
    expect_byte(sum, 3, 1, 11 + 31);
    sim_contents_release(array);
    sim_contents_release(sum);
}

/* result = f(argument, argument), without a collective */
static uint64_t run_once(const char *name, sim_contents_t *argument,
                         size_t device)
{
    sim_recipe_t recipe = {0};
    sim_step_t step = {.kind = SIM_STEP_ARGUMENT,
                       .device_count = argument->device_count,
                       .output_count = 1};
    const uint32_t value = sim_recipe_add(&recipe, &step);
    step = (sim_step_t){.kind = SIM_STEP_CALL,
                        .device_count = argument->device_count,
                        .inputs = {value, value},
                        .input_count = 2,
                        .output_count = 1,
                        .as.function = {.input_count = 2,
                                        .output_count = 1,
                                        .output_bytes = BYTES}};
    memcpy(step.as.function.name, name, strlen(name));
    sim_recipe_add_result(&recipe, sim_recipe_add(&recipe, &step));
    sim_contents_t *result;
    sim_recipe_run(&recipe, &argument, &result);
    const uint64_t number = sim_contents_shard(result, device)->value;
    sim_contents_release(result);
    sim_recipe_deinit(&recipe);
    return number;
}

static void a_result_depends_on_function_and_shard(void **state)
{
    sim_contents_t *array = make_array(2);
    uint64_t expected = tow_sim_value_begin("f");
    for (int i = 0; i < 2; i++)
        expected = tow_sim_value_mix(expected, array->shards[1].value);
    assert_true(run_once("f", array, 1) == tow_sim_value_mix(expected, 1));
    assert_true(run_once("f", array, 0) != run_once("f", array, 1));
    assert_true(run_once("f", array, 0) != run_once("g", array, 0));
    sim_contents_release(array);
}

TOW_TEST_MAIN(cmocka_unit_test(parts_are_joined_and_cut_anew),
              cmocka_unit_test(groups_are_reduced_apart),
              cmocka_unit_test(a_result_depends_on_function_and_shard))
