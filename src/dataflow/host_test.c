/* Host functions and steps that wait for their data, on two simulated devices
 * and a simulated host. */
#include "dataflow/dataflow_testing_impl.h"

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

typedef struct fixture {
    device_fixture_t devices;
    tow_host_runner_t *host;
    tow_shard_store_t *shard_store;
    tow_dataflow_t *dataflow;
    size_t succeeded_count, failed_count, unblocked_count;
    uint32_t progress_end;
    uint32_t failed_node;
    tow_code_t failed_code;
    char failed_text[256];
    bool is_closed;
} fixture_t;

static void run_idle(fixture_t *fixture)
{
    device_fixture_run_idle(&fixture->devices);
}

/* -- Programs and objects -------------------------------------------------- */

static void add_host(fixture_t *fixture, uint64_t key, const char *name,
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
    must(tow_dataflow_add_host(fixture->dataflow, key, code));
}

/* A chain of these functions; all outputs are results. */
static void add_chain(fixture_t *fixture, uint64_t key,
                      const uint64_t *functions, uint32_t count,
                      bool is_sequential)
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
    device_fixture_add_program(fixture->dataflow, key, &lowered);
}

static void put_zeroes(fixture_t *fixture, uint64_t key, int64_t count)
{
    tow_buffer_t *shards[DEVICES];
    const tow_shape_t shape = {.type = TOW_TYPE_U8, .rank = 1, .dims = {count}};
    for (size_t d = 0; d < DEVICES; d++)
        must(tow_driver_allocate(fixture->devices.driver, d, &shape,
                                 &shards[d]));
    must(tow_shard_store_put(
        fixture->shard_store, key,
        &(tow_shard_list_t){.first = shards, .stride = 1, .count = DEVICES}));
}

/* -- The fixture ----------------------------------------------------------- */

static void on_finished(void *context, const tow_finished_runs_t *finished)
{
    fixture_t *fixture = context;
    fixture->succeeded_count += finished->run_count;
    if (finished->progress_count > 0)
        fixture->progress_end = finished->progress[0].step_end;
    if (finished->failure_count == 0) return;
    const tow_failed_run_t *failure = &finished->failures[0];
    fixture->failed_count += !failure->is_early;
    fixture->failed_node = failure->node;
    fixture->failed_code = tow_status_code(failure->cause);
    snprintf(fixture->failed_text, sizeof(fixture->failed_text), "%s",
             tow_status_message(failure->cause));
}

static void on_unblocked(void *context)
{
    ((fixture_t *)context)->unblocked_count++;
}

static void fixture_open(fixture_t *fixture)
{
    *fixture = (fixture_t){0};
    device_fixture_open(&fixture->devices, 0);
    must(tow_host_sim_create(fixture->devices.env, "worker", &fixture->host));
    must(tow_shard_store_create(
        &(tow_shard_store_options_t){.shard_count_max = DEVICES},
        &fixture->shard_store));
    const tow_dataflow_options_t options = {.driver = fixture->devices.driver,
                                            .shard_store = fixture->shard_store,
                                            .host_runner = fixture->host,
                                            .finished = on_finished,
                                            .unblocked = on_unblocked,
                                            .context = fixture};
    must(tow_dataflow_create(&options, &fixture->dataflow));
    device_fixture_add_executable(&fixture->devices, fixture->dataflow, ADD,
                                  ADD_TEXT);
    add_host(fixture, SAME, "same", 0, 0);
    add_host(fixture, FILTER, "filter", 0, 1);
    add_host(fixture, PAD, "pad", 1, 0);
    add_host(fixture, FAIL, "fail", 0, 1);
    add_host(fixture, CRASH, "crash", 0, 1);
    add_host(fixture, HANG, "hang", 0, 1);
    put_zeroes(fixture, 1, BYTES);
}

static void on_closed(void *context)
{
    ((fixture_t *)context)->is_closed = true;
}

/* Checks that all memory has been released. */
static void fixture_close(fixture_t *fixture)
{
    run_idle(fixture);
    tow_shard_store_clear(fixture->shard_store);
    run_idle(fixture);
    assert_true(tow_dataflow_is_quiet(fixture->dataflow));
    assert_false(tow_dataflow_is_blocked(fixture->dataflow));
    tow_dataflow_destroy(fixture->dataflow);
    tow_shard_store_destroy(fixture->shard_store);
    tow_host_runner_close(fixture->host, (tow_closed_t){on_closed, fixture});
    run_idle(fixture);
    assert_true(fixture->is_closed);
    device_fixture_close(&fixture->devices);
}

static void grant(fixture_t *fixture, uint64_t run, uint64_t program)
{
    const uint64_t argument = 1;
    must(tow_dataflow_grant(fixture->dataflow,
                            &(tow_run_grant_t){.run = run,
                                               .program = program,
                                               .arguments = &argument,
                                               .argument_count = 1,
                                               .first_result = 100 * run,
                                               .first_gang = 100 * run}));
}

static const tow_shape_t *shape_of(fixture_t *fixture, uint64_t object,
                                   size_t shard)
{
    const tow_shard_store_object_t *it =
        tow_shard_store_find(fixture->shard_store, object);
    assert_non_null(it);
    assert_int_equal(it->shard_count, DEVICES);
    return &it->shards[shard]->shape;
}

/* -- Tests ----------------------------------------------------------------- */

/* Sizes are known, so results exist at once. */
static void a_host_function_of_fixed_sizes_is_enqueued_before_its_data(
    void **state)
{
    (void)state;
    fixture_t fixture;
    fixture_open(&fixture);
    add_chain(&fixture, 201, (uint64_t[]){ADD, SAME, ADD}, 3, false);
    grant(&fixture, 1, 201);
    assert_false(tow_dataflow_is_blocked(fixture.dataflow));
    assert_int_equal(tow_dataflow_stats(fixture.dataflow).step_count, 3);
    assert_int_equal(shape_of(&fixture, 102, 1)->dims[0], BYTES);
    run_idle(&fixture);
    assert_int_equal(fixture.succeeded_count, 1);
    assert_int_equal(fixture.unblocked_count, 0);
    assert_int_equal(tow_dataflow_stats(fixture.dataflow).host_call_count,
                     DEVICES);
    fixture_close(&fixture);
}

static void a_step_on_a_bounded_value_waits_for_its_size(void **state)
{
    (void)state;
    fixture_t fixture;
    bool is_smaller = false;
    fixture_open(&fixture);
    add_chain(&fixture, 201, (uint64_t[]){ADD, FILTER, PAD, ADD}, 4, false);
    for (uint64_t run = 1; run <= 8; run++) {
        grant(&fixture, run, 201);
        assert_true(tow_dataflow_is_blocked(fixture.dataflow));
        assert_null(tow_shard_store_find(fixture.shard_store, 100 * run));
        run_idle(&fixture);
        assert_int_equal(fixture.unblocked_count, run);
        for (size_t d = 0; d < DEVICES; d++) {
            const int64_t size = shape_of(&fixture, 100 * run + 1, d)->dims[0];
            assert_in_range(size, 0, BYTES);
            is_smaller |= size < BYTES;
            assert_int_equal(shape_of(&fixture, 100 * run + 3, d)->dims[0],
                             BYTES);
        }
    }
    assert_true(is_smaller);
    assert_int_equal(fixture.succeeded_count, 8);
    fixture_close(&fixture);
}

static void grant_piece(fixture_t *fixture, uint64_t first_gang, uint32_t first,
                        uint32_t end)
{
    const uint64_t argument = 1;
    must(tow_dataflow_grant(fixture->dataflow,
                            &(tow_run_grant_t){.run = 1,
                                               .program = 201,
                                               .arguments = &argument,
                                               .argument_count = 1,
                                               .first_result = 100,
                                               .first_gang = first_gang - first,
                                               .first_step = first,
                                               .step_end = end}));
}

/* A piece that ends with the value does not block; others run meanwhile. */
static void a_piece_ends_before_the_size_of_its_value_is_known(void **state)
{
    (void)state;
    fixture_t fixture;
    fixture_open(&fixture);
    add_chain(&fixture, 201, (uint64_t[]){SAME, FILTER, PAD, ADD}, 4, false);
    add_chain(&fixture, 202, (uint64_t[]){ADD}, 1, false);
    grant_piece(&fixture, 10, 0, 1);
    run_idle(&fixture);
    assert_int_equal(fixture.progress_end, 1);
    grant_piece(&fixture, 20, 1, 2);
    assert_false(tow_dataflow_is_blocked(fixture.dataflow));
    grant(&fixture, 2, 202);
    run_idle(&fixture);
    assert_int_equal(fixture.progress_end, 2);
    assert_int_equal(fixture.succeeded_count, 1);
    grant_piece(&fixture, 300, 2, 3);
    assert_false(tow_dataflow_is_blocked(fixture.dataflow));
    grant_piece(&fixture, 400, 3, 4);
    run_idle(&fixture);
    assert_int_equal(fixture.succeeded_count, 2);
    assert_in_range(shape_of(&fixture, 101, 0)->dims[0], 0, BYTES);
    assert_int_equal(shape_of(&fixture, 103, 0)->dims[0], BYTES);
    fixture_close(&fixture);
}

/* Granted at once, a piece that needs the value waits for it. */
static void a_piece_waits_for_the_size_of_an_earlier_one(void **state)
{
    (void)state;
    fixture_t fixture;
    fixture_open(&fixture);
    add_chain(&fixture, 201, (uint64_t[]){SAME, FILTER, PAD, ADD}, 4, false);
    grant_piece(&fixture, 10, 0, 1);
    run_idle(&fixture);
    grant_piece(&fixture, 20, 1, 2);
    grant_piece(&fixture, 30, 2, 3);
    assert_true(tow_dataflow_is_blocked(fixture.dataflow));
    tow_status_t cause = TOW_ERROR(TOW_CANCELLED, "nobody wants it");
    tow_dataflow_abort(fixture.dataflow, 1, cause);
    tow_status_release(cause);
    run_idle(&fixture);
    assert_int_equal(fixture.failed_count, 1);
    assert_int_equal(fixture.unblocked_count, 1);
    fixture_close(&fixture);
}

static void expect_failure(uint64_t function, tow_code_t code, const char *part)
{
    fixture_t fixture;
    fixture_open(&fixture);
    add_chain(&fixture, 201, (uint64_t[]){ADD, function, PAD}, 3, false);
    add_chain(&fixture, 202, (uint64_t[]){ADD, FILTER}, 2, false);
    grant(&fixture, 1, 201);
    run_idle(&fixture);
    assert_int_equal(fixture.failed_count, 1);
    assert_int_equal(fixture.failed_node, 2);
    assert_int_equal(fixture.failed_code, code);
    if (strstr(fixture.failed_text, part) == NULL)
        fail_msg("'%s' has no '%s'", fixture.failed_text, part);
    assert_int_equal(fixture.unblocked_count, 1);
    assert_true(tow_shard_store_find(fixture.shard_store, 102)->error !=
                TOW_OK);
    grant(&fixture, 2, 202); /* The next run succeeds. */
    run_idle(&fixture);
    assert_int_equal(fixture.succeeded_count, 1);
    fixture_close(&fixture);
}

static void a_function_that_fails_crashes_or_hangs_fails_its_run(void **state)
{
    (void)state;
    expect_failure(
        FAIL, TOW_ABORTED,
        "run 1, node 2: host function fail on worker worker failed with 1");
    expect_failure(CRASH, TOW_INTERNAL, "run 1, node 2: host function crash");
    expect_failure(
        HANG, TOW_DEADLINE_EXCEEDED,
        "run 1, node 2: host function hang on worker worker took longer than "
        "its limit, 50 ms");
}

static void an_abort_ends_a_waiting_run(void **state)
{
    (void)state;
    fixture_t fixture;
    fixture_open(&fixture);
    add_chain(&fixture, 201, (uint64_t[]){ADD, HANG, PAD}, 3, false);
    grant(&fixture, 1, 201);
    tow_status_t cause = TOW_ERROR(TOW_CANCELLED, "enough");
    tow_dataflow_abort(fixture.dataflow, 1, cause);
    tow_status_release(cause);
    run_idle(&fixture);
    assert_int_equal(fixture.failed_code, TOW_CANCELLED);
    assert_int_equal(fixture.unblocked_count, 1);
    fixture_close(&fixture);
}

/* As at the end of a session: the shard store keeps nothing of its runs. */
static void clearing_discards_waiting_runs(void **state)
{
    (void)state;
    fixture_t fixture;
    fixture_open(&fixture);
    add_chain(&fixture, 201, (uint64_t[]){ADD, HANG, PAD}, 3, false);
    grant(&fixture, 1, 201);
    tow_status_t cause = TOW_ERROR(TOW_UNAVAILABLE, "gone");
    tow_dataflow_clear(fixture.dataflow, cause);
    tow_shard_store_clear(fixture.shard_store);
    tow_status_release(cause);
    run_idle(&fixture);
    assert_int_equal(tow_shard_store_totals(fixture.shard_store).object_count,
                     0);
    assert_int_equal(fixture.failed_count, 0);
    fixture_close(&fixture);
}

static void all_steps_of_a_sequential_program_wait(void **state)
{
    (void)state;
    fixture_t fixture;
    fixture_open(&fixture);
    add_chain(&fixture, 201, (uint64_t[]){ADD, SAME, ADD}, 3, true);
    grant(&fixture, 1, 201);
    assert_true(tow_dataflow_is_blocked(fixture.dataflow));
    assert_int_equal(tow_dataflow_stats(fixture.dataflow).step_count, 1);
    run_idle(&fixture);
    assert_int_equal(fixture.succeeded_count, 1);
    assert_int_equal(fixture.unblocked_count, 1);
    fixture_close(&fixture);
}

/* For example a result of an earlier run, smaller than its bound. */
static void an_argument_of_another_size_is_refused(void **state)
{
    (void)state;
    fixture_t fixture;
    fixture_open(&fixture);
    tow_shard_store_clear(fixture.shard_store);
    put_zeroes(&fixture, 1, BYTES - 1);
    add_chain(&fixture, 201, (uint64_t[]){SAME}, 1, false);
    add_chain(&fixture, 202, (uint64_t[]){PAD}, 1, false);
    grant(&fixture, 1, 201);
    run_idle(&fixture);
    assert_int_equal(fixture.failed_code, TOW_INVALID_ARGUMENT);
    assert_string_equal(fixture.failed_text,
                        "run 1, node 1: host function same, input 0: it is "
                        "u8[15], the function takes u8[16]");
    grant(&fixture, 2, 202);
    run_idle(&fixture);
    assert_int_equal(fixture.succeeded_count, 1);
    fixture_close(&fixture);
}

TOW_TEST_MAIN(
    cmocka_unit_test(
        a_host_function_of_fixed_sizes_is_enqueued_before_its_data),
    cmocka_unit_test(a_step_on_a_bounded_value_waits_for_its_size),
    cmocka_unit_test(a_piece_ends_before_the_size_of_its_value_is_known),
    cmocka_unit_test(a_piece_waits_for_the_size_of_an_earlier_one),
    cmocka_unit_test(a_function_that_fails_crashes_or_hangs_fails_its_run),
    cmocka_unit_test(an_abort_ends_a_waiting_run),
    cmocka_unit_test(clearing_discards_waiting_runs),
    cmocka_unit_test(all_steps_of_a_sequential_program_wait),
    cmocka_unit_test(an_argument_of_another_size_is_refused))
