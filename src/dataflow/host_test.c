/* Host functions and steps that wait for their data, on two simulated devices
 * and a simulated host. */
#include "base/testing.h"

#include <elf.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "dataflow/dataflow.h"
#include "device/host/sim.h"
#include "device/options.h"
#include "device/signature.h"
#include "device/sim/sim_device.h"
#include "env/sim/sim.h"

#define DEVICES 2
#define BYTES   16

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
    tow_sim_t *sim;
    tow_env_t *env;
    tow_driver_t *driver;
    tow_host_runner_t *host;
    tow_shelf_t *shelf;
    tow_dataflow_t *dataflow;
    tow_executable_t *compiled;
    size_t succeeded_count, failed_count, unblocked_count;
    uint32_t failed_node;
    tow_code_t failed_code;
    char failed_text[256];
    bool is_closed;
} stage_t;

static void must(tow_status_t status)
{
    if (status != TOW_OK) fail_msg("%s", tow_status_message(status));
}

static void run_idle(stage_t *stage)
{
    must(tow_sim_run(stage->sim, &(tow_sim_run_options_t){0}));
}

/* -- What there is ------------------------------------------------------------- */

static void on_compiled(tow_compile_t *compile, tow_status_t take_status,
                        tow_executable_t *take_executable)
{
    stage_t *stage = *(stage_t **)(compile + 1);
    must(take_status);
    stage->compiled = take_executable;
}

static void add_computation(stage_t *stage)
{
    static const char text[] = "towpath-cost 1\nname add\nargument u8[16]\n"
                               "result u8[16]\nduration 100\nall_reduce 16\n";
    struct {
        tow_compile_t compile;
        stage_t *stage;
    } compiling = {.stage = stage};
    int64_t ids[DEVICES];
    uint8_t bytes[256];
    for (int i = 0; i < DEVICES; i++)
        ids[i] = stage->driver->devices[i].id;
    const tow_compile_options_t options = {
        .assignment = {.replica_count = DEVICES, .device_ids = ids}};
    compiling.compile = (tow_compile_t){
        .format = TOW_PROGRAM_COST,
        .program = {text, strlen(text)},
        .options = {bytes, tow_compile_options_pack(&options, bytes)},
        .done = on_compiled};
    must(tow_driver_compile(stage->driver, &compiling.compile));
    run_idle(stage);
    must(tow_dataflow_add_executable(stage->dataflow, ADD, stage->compiled));
}

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
    void *bytes;
    size_t size;
    tow_lowered_t *unpacked;
    must(tow_lowered_pack(&lowered, &bytes, &size));
    must(tow_lowered_unpack(bytes, size, &unpacked));
    tow_free(bytes);
    must(tow_dataflow_add_program(stage->dataflow, key, unpacked));
}

static void put_zeroes(stage_t *stage, uint64_t key, int64_t count)
{
    tow_buffer_t *shards[DEVICES];
    const tow_shape_t shape = {.type = TOW_TYPE_U8, .rank = 1, .dims = {count}};
    for (size_t d = 0; d < DEVICES; d++)
        must(tow_driver_allocate(stage->driver, d, &shape, &shards[d]));
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
    tow_sim_options_t sim = {.seed = 1};
    sim.log.level = TOW_LOG_OFF;
    tow_sim_node_t *node;
    tow_sim_model_t model;
    must(tow_sim_create(&sim, &stage->sim));
    must(tow_sim_node_create(
        stage->sim, &(tow_sim_node_options_t){.name = "worker"}, &node));
    stage->env = tow_sim_node_env(node);
    must(tow_sim_model_find("tpu_v4", &model));
    must(tow_sim_device_driver_create(
        stage->env,
        &(tow_sim_device_options_t){.model = &model, .device_count = DEVICES},
        &stage->driver));
    must(tow_host_sim_create(stage->env, "worker", &stage->host));
    must(tow_shelf_create(&(tow_shelf_options_t){.shard_count_max = DEVICES},
                          &stage->shelf));
    const tow_dataflow_options_t options = {.driver = stage->driver,
                                            .shelf = stage->shelf,
                                            .host_runner = stage->host,
                                            .finished = on_finished,
                                            .unblocked = on_unblocked,
                                            .context = stage};
    must(tow_dataflow_create(&options, &stage->dataflow));
    add_computation(stage);
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
    assert_int_equal(tow_sim_device_counts(stage->driver).buffers, 0);
    assert_int_equal(tow_sim_device_counts(stage->driver).executables, 0);
    tow_driver_close(stage->driver, (tow_closed_t){0});
    run_idle(stage);
    tow_sim_destroy(stage->sim);
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
