/* Host functions and steps that wait for their data, on two simulated devices
 * and a simulated host. */
#include "dataflow/ground_testing_impl.h"

#include <elf.h>
#include <stdio.h>
#include <string.h>

#include "device/host/sim.h"
#include "device/signature.h"

#define BYTES 16

enum {
    ADD = 101,
    SAME,   /* a host function: u8[16] -> u8[16] */
    FILTER, /* u8[16] -> u8[<=16] */
    PAD,    /* u8[<=16] -> u8[16] */
    FAIL,   /* as FILTER, and so are the others */
    CRASH,
    HANG,
};

typedef struct stage {
    ground_t ground;
    tow_host_runner_t *host;
    tow_shelf_t *shelf;
    tow_dataflow_t *dataflow;
    size_t succeeded_count, failed_count, unblocked_count;
    uint32_t failed_node;
    tow_code_t failed_code;
    char failed_text[256];
    bool is_closed;
} stage_t;

static void run_idle(stage_t *stage)
{
    ground_run_idle(&stage->ground);
}

/* -- What there is ------------------------------------------------------------- */

static void add_host(stage_t *stage, uint64_t key, const char *name,
                     uint32_t bounds_in, uint32_t bounds_out)
{
    static const Elf64_Ehdr object = {
        .e_ident = {ELFMAG0, ELFMAG1, ELFMAG2, ELFMAG3, ELFCLASS64},
        .e_type = ET_DYN,
        .e_machine = EM_X86_64};
    static const uint32_t numbers[DEVICES] = {0, 1};
    const tow_array_info_t array = {
        .shape = {.type = TOW_TYPE_U8, .rank = 1, .dims = {BYTES}},
        .bytes = BYTES};
    tow_array_info_t in = array, out = array;
    in.bounds = bounds_in;
    out.bounds = bounds_out;
    const tow_signature_t signature = {.name = name,
                                       .replica_count = 1,
                                       .partition_count = DEVICES,
                                       .argument_count = 1,
                                       .arguments = &in,
                                       .result_count = 1,
                                       .results = &out,
                                       .is_host = true};
    void *packed;
    tow_host_code_options_t options = {.size = sizeof(object),
                                       .devices = numbers,
                                       .shards = numbers,
                                       .device_count = DEVICES,
                                       .device_count_max = DEVICES};
    must(tow_signature_pack(&signature, &packed, &options.signature.size));
    options.signature.data = packed;
    options.take_bytes = tow_malloc(sizeof(object));
    memcpy(options.take_bytes, &object, sizeof(object));
    tow_host_code_t *code;
    must(tow_host_code_create(&options, &code));
    tow_free(packed);
    must(tow_dataflow_add_host(stage->dataflow, key, code));
}

/* A chain of these, each behind the one before; all are results. */
static void add_chain(stage_t *stage, uint64_t key, const uint64_t *functions,
                      uint32_t count, bool is_sequential)
{
    uint32_t numbers[8];
    tow_lowered_step_t steps[8];
    for (uint32_t i = 0; i < count; i++) {
        numbers[i] = i;
        steps[i] = (tow_lowered_step_t){.executable = {functions[i]},
                                        .inputs = &numbers[i],
                                        .input_count = 1,
                                        .first_output = i + 1,
                                        .output_count = 1,
                                        .node = i + 1,
                                        .index = i,
                                        .is_host = functions[i] != ADD,
                                        .is_sequential = is_sequential ||
                                                         functions[i] > SAME,
                                        .time_limit_ms = 50};
    }
    numbers[count] = count;
    const tow_lowered_t lowered = {.slot_count = count + 1,
                                   .argument_count = 1,
                                   .results = numbers + 1,
                                   .result_count = count,
                                   .steps = steps,
                                   .step_count = count,
                                   .step_count_all = count};
    ground_add_program(stage->dataflow, key, &lowered);
}

static void put_zeroes(stage_t *stage, uint64_t key, int64_t count)
{
    tow_buffer_t *shards[DEVICES];
    const tow_shape_t shape = {.type = TOW_TYPE_U8, .rank = 1, .dims = {count}};
    for (size_t d = 0; d < DEVICES; d++)
        must(tow_driver_allocate(stage->ground.driver, d, &shape, &shards[d]));
    must(tow_shelf_put(
        stage->shelf, key,
        &(tow_shard_list_t){.first = shards, .stride = 1, .count = DEVICES}));
}

/* -- The world ----------------------------------------------------------------- */

static void on_finished(void *context, const tow_finished_runs_t *finished)
{
    stage_t *stage = context;
    stage->succeeded_count += finished->run_count;
    stage->failed_count += finished->failure_count;
    if (finished->failure_count == 0) return;
    const tow_failed_run_t *failure = &finished->failures[0];
    stage->failed_node = failure->node;
    stage->failed_code = tow_status_code(failure->cause);
    snprintf(stage->failed_text, sizeof(stage->failed_text), "%s",
             tow_status_message(failure->cause));
}

static void on_unblocked(void *context)
{
    ((stage_t *)context)->unblocked_count++;
}

static void stage_open(stage_t *stage)
{
    *stage = (stage_t){0};
    ground_open(&stage->ground, 0);
    must(tow_host_sim_create(stage->ground.env, "worker", &stage->host));
    must(tow_shelf_create(&(tow_shelf_options_t){.shard_count_max = DEVICES},
                          &stage->shelf));
    const tow_dataflow_options_t options = {.driver = stage->ground.driver,
                                            .shelf = stage->shelf,
                                            .host_runner = stage->host,
                                            .finished = on_finished,
                                            .unblocked = on_unblocked,
                                            .context = stage};
    must(tow_dataflow_create(&options, &stage->dataflow));
    ground_add_executable(&stage->ground, stage->dataflow, ADD, ADD_TEXT);
    add_host(stage, SAME, "same", 0, 0);
    add_host(stage, FILTER, "filter", 0, 1);
    add_host(stage, PAD, "pad", 1, 0);
    add_host(stage, FAIL, "fail", 0, 1);
    add_host(stage, CRASH, "crash", 0, 1);
    add_host(stage, HANG, "hang", 0, 1);
    put_zeroes(stage, 1, BYTES);
}

static void on_closed(void *context)
{
    ((stage_t *)context)->is_closed = true;
}

/* All that was taken is given back. */
static void stage_close(stage_t *stage)
{
    run_idle(stage);
    tow_shelf_clear(stage->shelf);
    run_idle(stage);
    assert_true(tow_dataflow_is_quiet(stage->dataflow));
    assert_false(tow_dataflow_is_blocked(stage->dataflow));
    tow_dataflow_destroy(stage->dataflow);
    tow_shelf_destroy(stage->shelf);
    tow_host_runner_close(stage->host, (tow_closed_t){on_closed, stage});
    run_idle(stage);
    assert_true(stage->is_closed);
    ground_close(&stage->ground);
}

static void grant(stage_t *stage, uint64_t run, uint64_t program)
{
    const uint64_t argument = 1;
    must(tow_dataflow_grant(stage->dataflow,
                            &(tow_run_grant_t){.run = run,
                                               .program = program,
                                               .arguments = &argument,
                                               .argument_count = 1,
                                               .first_result = 100 * run,
                                               .first_gang = 100 * run}));
}

static const tow_shape_t *shape_of(stage_t *stage, uint64_t object,
                                   size_t shard)
{
    const tow_shelf_object_t *it = tow_shelf_find(stage->shelf, object);
    assert_non_null(it);
    assert_int_equal(it->shard_count, DEVICES);
    return &it->shards[shard]->shape;
}

/* -- Tests --------------------------------------------------------------------- */

/* Sizes are known, so nothing waits: results are there at once. */
static void a_regular_host_function_is_begun_ahead_of_its_data(void **state)
{
    (void)state;
    stage_t stage;
    stage_open(&stage);
    add_chain(&stage, 201, (uint64_t[]){ADD, SAME, ADD}, 3, false);
    grant(&stage, 1, 201);
    assert_false(tow_dataflow_is_blocked(stage.dataflow));
    assert_int_equal(tow_dataflow_stats(stage.dataflow).step_count, 3);
    assert_int_equal(shape_of(&stage, 102, 1)->dims[0], BYTES);
    run_idle(&stage);
    assert_int_equal(stage.succeeded_count, 1);
    assert_int_equal(stage.unblocked_count, 0);
    assert_int_equal(tow_dataflow_stats(stage.dataflow).host_call_count,
                     DEVICES);
    stage_close(&stage);
}

static void what_takes_an_irregular_value_waits_for_its_size(void **state)
{
    (void)state;
    stage_t stage;
    bool is_smaller = false;
    stage_open(&stage);
    add_chain(&stage, 201, (uint64_t[]){ADD, FILTER, PAD, ADD}, 4, false);
    for (uint64_t run = 1; run <= 8; run++) {
        grant(&stage, run, 201);
        assert_true(tow_dataflow_is_blocked(stage.dataflow));
        assert_null(tow_shelf_find(stage.shelf, 100 * run));
        run_idle(&stage);
        assert_int_equal(stage.unblocked_count, run);
        for (size_t d = 0; d < DEVICES; d++) {
            const int64_t size = shape_of(&stage, 100 * run + 1, d)->dims[0];
            assert_in_range(size, 0, BYTES);
            is_smaller |= size < BYTES;
            assert_int_equal(shape_of(&stage, 100 * run + 3, d)->dims[0],
                             BYTES);
        }
    }
    assert_true(is_smaller);
    assert_int_equal(stage.succeeded_count, 8);
    stage_close(&stage);
}

static void fails(uint64_t function, tow_code_t code, const char *part)
{
    stage_t stage;
    stage_open(&stage);
    add_chain(&stage, 201, (uint64_t[]){ADD, function, PAD}, 3, false);
    add_chain(&stage, 202, (uint64_t[]){ADD, FILTER}, 2, false);
    grant(&stage, 1, 201);
    run_idle(&stage);
    assert_int_equal(stage.failed_count, 1);
    assert_int_equal(stage.failed_node, 2);
    assert_int_equal(stage.failed_code, code);
    if (strstr(stage.failed_text, part) == NULL)
        fail_msg("'%s' has no '%s'", stage.failed_text, part);
    assert_int_equal(stage.unblocked_count, 1);
    assert_true(tow_shelf_find(stage.shelf, 102)->error != TOW_OK);
    grant(&stage, 2, 202); /* The next is not concerned. */
    run_idle(&stage);
    assert_int_equal(stage.succeeded_count, 1);
    stage_close(&stage);
}

static void a_function_that_fails_crashes_or_hangs_costs_its_run(void **state)
{
    (void)state;
    fails(FAIL, TOW_ABORTED,
          "run 1, node 2: host function fail on worker worker failed with 1");
    fails(CRASH, TOW_INTERNAL, "run 1, node 2: host function crash");
    fails(HANG, TOW_DEADLINE_EXCEEDED,
          "run 1, node 2: host function hang on worker worker took longer than "
          "its limit, 50 ms");
}

static void an_abort_ends_the_wait(void **state)
{
    (void)state;
    stage_t stage;
    stage_open(&stage);
    add_chain(&stage, 201, (uint64_t[]){ADD, HANG, PAD}, 3, false);
    grant(&stage, 1, 201);
    tow_status_t cause = TOW_ERROR(TOW_CANCELLED, "enough");
    tow_dataflow_abort(stage.dataflow, 1, cause);
    tow_status_release(cause);
    run_idle(&stage);
    assert_int_equal(stage.failed_code, TOW_CANCELLED);
    assert_int_equal(stage.unblocked_count, 1);
    stage_close(&stage);
}

/* The session is gone: nothing of its runs is left on the shelf. */
static void what_is_cleared_while_it_waits_leaves_nothing(void **state)
{
    (void)state;
    stage_t stage;
    stage_open(&stage);
    add_chain(&stage, 201, (uint64_t[]){ADD, HANG, PAD}, 3, false);
    grant(&stage, 1, 201);
    tow_status_t cause = TOW_ERROR(TOW_UNAVAILABLE, "gone");
    tow_dataflow_clear(stage.dataflow, cause);
    tow_shelf_clear(stage.shelf);
    tow_status_release(cause);
    run_idle(&stage);
    assert_int_equal(tow_shelf_totals(stage.shelf).object_count, 0);
    assert_int_equal(stage.failed_count, 0);
    stage_close(&stage);
}

static void all_of_a_sequential_program_waits(void **state)
{
    (void)state;
    stage_t stage;
    stage_open(&stage);
    add_chain(&stage, 201, (uint64_t[]){ADD, SAME, ADD}, 3, true);
    grant(&stage, 1, 201);
    assert_true(tow_dataflow_is_blocked(stage.dataflow));
    assert_int_equal(tow_dataflow_stats(stage.dataflow).step_count, 1);
    run_idle(&stage);
    assert_int_equal(stage.succeeded_count, 1);
    assert_int_equal(stage.unblocked_count, 1);
    stage_close(&stage);
}

/* Of an earlier run, say, whose result was smaller than its bound. */
static void an_argument_of_another_size_is_refused(void **state)
{
    (void)state;
    stage_t stage;
    stage_open(&stage);
    tow_shelf_clear(stage.shelf);
    put_zeroes(&stage, 1, BYTES - 1);
    add_chain(&stage, 201, (uint64_t[]){SAME}, 1, false);
    add_chain(&stage, 202, (uint64_t[]){PAD}, 1, false);
    grant(&stage, 1, 201);
    run_idle(&stage);
    assert_int_equal(stage.failed_code, TOW_INVALID_ARGUMENT);
    assert_string_equal(stage.failed_text,
                        "run 1, node 1: host function same, input 0: it is "
                        "u8[15], and u8[16] is taken");
    grant(&stage, 2, 202);
    run_idle(&stage);
    assert_int_equal(stage.succeeded_count, 1);
    stage_close(&stage);
}

TOW_TEST_MAIN(
    cmocka_unit_test(a_regular_host_function_is_begun_ahead_of_its_data),
    cmocka_unit_test(what_takes_an_irregular_value_waits_for_its_size),
    cmocka_unit_test(a_function_that_fails_crashes_or_hangs_costs_its_run),
    cmocka_unit_test(an_abort_ends_the_wait),
    cmocka_unit_test(what_is_cleared_while_it_waits_leaves_nothing),
    cmocka_unit_test(all_of_a_sequential_program_waits),
    cmocka_unit_test(an_argument_of_another_size_is_refused))
