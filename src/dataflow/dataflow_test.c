/* Programs on two simulated devices, and the cost of a run on a fake device. */
#include "dataflow/fake_driver_testing_impl.h"

#include <stdio.h>
#include <string.h>
#include <time.h> /* tow-allow: a measurement, printed and not judged */

#include "dataflow/dataflow_testing_impl.h"
#include "dataflow/tuning.h"

#define MEMORY_BYTES 1000000
#define SELF         1 /* process */
#define OTHER        9

static const char pair_text[] = "towpath-cost 1\n"
                                "name pair\n"
                                "argument u8[16]\n"
                                "argument u8[16]\n"
                                "result u8[16]\n"
                                "result u8[16]\n"
                                "duration 100\n";
/* Reuses its argument's memory. */
static const char update_text[] = "towpath-cost 1\n"
                                  "name update\n"
                                  "argument u8[16]\n"
                                  "result u8[16] alias 0\n"
                                  "duration 100\n";
/* Fails when it starts: no device has so much temporary memory. */
static const char greedy_text[] = "towpath-cost 1\n"
                                  "name greedy\n"
                                  "argument u8[16]\n"
                                  "result u8[16]\n"
                                  "temporary 4611686018427387904\n";
/* Takes half of a small device's memory, and then has a collective. */
static const char heavy_text[] = "towpath-cost 1\n"
                                 "name heavy\n"
                                 "argument u8[16]\n"
                                 "result u8[16]\n"
                                 "temporary 500000\n"
                                 "all_reduce 16\n";
/* Fails when it is enqueued. */
static const char huge_text[] = "towpath-cost 1\n"
                                "name huge\n"
                                "argument u8[16]\n"
                                "result u8[4611686018427387904]\n";

enum {
    ADD = 101,
    PAIR,
    UPDATE,
    SLOW,
    GREEDY,
    HUGE_RESULT,
    HEAVY,
};

typedef struct fixture {
    device_fixture_t devices;
    tow_shard_store_t *shard_store;
    tow_dataflow_t *dataflow;
    tow_transfer_engine_t *engine;
    int message_count; /* of the engine */
    int report_count;
    uint64_t succeeded[64];
    size_t succeeded_count;
    tow_device_time_t time; /* of all runs that were reported */
    struct {
        uint64_t run;
        uint32_t node;
        tow_code_t code;
        char message[256];
    } failed[64];
    size_t failed_count;
    tow_status_t status;
    size_t pending_uploads;
} fixture_t;

static void expect_error(tow_status_t status, tow_code_t code, const char *part)
{
    assert_int_equal(tow_status_code(status), code);
    if (strstr(tow_status_message(status), part) == NULL)
        fail_msg("'%s' has no '%s'", tow_status_message(status), part);
    tow_status_release(status);
}

static void on_finished(void *context, const tow_finished_runs_t *finished)
{
    fixture_t *fixture = context;
    fixture->report_count++;
    for (size_t i = 0; i < finished->run_count; i++) {
        tow_device_time_merge(&fixture->time, &finished->times[i]);
        fixture->succeeded[fixture->succeeded_count++ % 64] = finished->runs[i];
    }
    for (size_t i = 0; i < finished->failure_count; i++) {
        const tow_failed_run_t *failure = &finished->failures[i];
        size_t at = fixture->failed_count++ % 64;
        tow_device_time_merge(&fixture->time, &failure->time);
        fixture->failed[at].run = failure->run;
        fixture->failed[at].node = failure->node;
        fixture->failed[at].code = tow_status_code(failure->cause);
        snprintf(fixture->failed[at].message,
                 sizeof(fixture->failed[at].message), "%s",
                 tow_status_message(failure->cause));
    }
}

static void run_idle(fixture_t *fixture)
{
    device_fixture_run_idle(&fixture->devices);
}

/* -- Programs -------------------------------------------------------------- */

static void add_executable(fixture_t *fixture, uint64_t key, const char *text)
{
    device_fixture_add_executable(&fixture->devices, fixture->dataflow, key,
                                  text);
}

static void add_program(fixture_t *fixture, uint64_t key,
                        const tow_lowered_t *lowered)
{
    device_fixture_add_program(fixture->dataflow, key, lowered);
}

static const uint32_t slot_0[] = {0};
static const uint32_t slot_1[] = {1};
static const uint32_t slot_2[] = {2};
static const uint32_t kept_0[] = {0};

/* argument -> executable -> result; node 1. Does not consume its argument. */
static void add_single(fixture_t *fixture, uint64_t key, uint64_t executable)
{
    const tow_lowered_step_t step = {.executable = {executable},
                                     .inputs = slot_0,
                                     .input_count = 1,
                                     .first_output = 1,
                                     .output_count = 1,
                                     .non_donatable = kept_0,
                                     .non_donatable_count = 1,
                                     .node = 1};
    add_program(fixture, key,
                &(tow_lowered_t){.slot_count = 2,
                                 .argument_count = 1,
                                 .results = slot_1,
                                 .result_count = 1,
                                 .steps = &step,
                                 .step_count = 1,
                                 .step_count_all = 1});
}

/* argument -> add (node 1) -> executable (node 2) -> result. */
static void add_chain_of(fixture_t *fixture, uint64_t key,
                         tow_lowered_step_t second)
{
    const tow_lowered_step_t first = {.executable = {ADD},
                                      .inputs = slot_0,
                                      .input_count = 1,
                                      .first_output = 1,
                                      .output_count = 1,
                                      .node = 1};
    second.inputs = second.freed = slot_1;
    second.input_count = second.freed_count = 1;
    second.first_output = second.node = 2;
    second.output_count = second.index = 1;
    add_program(
        fixture, key,
        &(tow_lowered_t){.slot_count = 3,
                         .argument_count = 1,
                         .results = slot_2,
                         .result_count = 1,
                         .steps = (const tow_lowered_step_t[]){first, second},
                         .step_count = 2,
                         .step_count_all = 2});
}

static void add_chain(fixture_t *fixture, uint64_t key, uint64_t executable)
{
    add_chain_of(fixture, key,
                 (tow_lowered_step_t){.executable = {executable}});
}

enum {
    SINGLE_ADD = 201,
    SINGLE_GREEDY,
    SINGLE_HUGE,
    CHAIN,
    CHAIN_HUGE,
    CONSUME,
    SHARE,
    SINGLE_HEAVY,
    TWO,
    ABSENT = 299,
};

/* Consumes its argument. */
static void add_consume(fixture_t *fixture)
{
    const tow_lowered_step_t step = {.executable = {UPDATE},
                                     .inputs = slot_0,
                                     .input_count = 1,
                                     .first_output = 1,
                                     .output_count = 1,
                                     .freed = slot_0,
                                     .freed_count = 1,
                                     .node = 1};
    add_program(fixture, CONSUME,
                &(tow_lowered_t){.slot_count = 2,
                                 .argument_count = 1,
                                 .results = slot_1,
                                 .result_count = 1,
                                 .steps = &step,
                                 .step_count = 1,
                                 .step_count_all = 1});
}

/* (a, b) -> pair(a, b): results are its first output twice, and a. Its second
 * output is not used. */
static void add_share(fixture_t *fixture)
{
    static const uint32_t inputs[] = {0, 1}, freed[] = {3},
                          results[] = {2, 2, 0};
    const tow_lowered_step_t step = {.executable = {PAIR},
                                     .inputs = inputs,
                                     .input_count = 2,
                                     .first_output = 2,
                                     .output_count = 2,
                                     .freed = freed,
                                     .freed_count = 1,
                                     .node = 2};
    add_program(fixture, SHARE,
                &(tow_lowered_t){.slot_count = 4,
                                 .argument_count = 2,
                                 .results = results,
                                 .result_count = 3,
                                 .steps = &step,
                                 .step_count = 1,
                                 .step_count_all = 1});
}

/* -- The fixture ----------------------------------------------------------- */

static tow_transfer_sent_t on_send(void *context, uint32_t process,
                                   uint32_t type, const tow_body_t *body)
{
    (void)type, (void)body;
    assert_int_equal(process, OTHER);
    ((fixture_t *)context)->message_count++;
    return TOW_TRANSFER_SENT;
}

static tow_status_t on_write(void *context, tow_transfer_write_t *write)
{
    (void)context, (void)write;
    return tow_status_bare(TOW_UNIMPLEMENTED);
}

static void on_unblocked(void *context)
{
    (void)context;
}

static void fixture_open(fixture_t *fixture, tow_dataflow_options_t options)
{
    *fixture = (fixture_t){0};
    device_fixture_open(&fixture->devices, MEMORY_BYTES);
    must(tow_shard_store_create(
        &(tow_shard_store_options_t){.shard_count_max = DEVICES},
        &fixture->shard_store));
    must(tow_transfer_engine_create(
        &(tow_transfer_engine_options_t){.driver = fixture->devices.driver,
                                         .process = SELF,
                                         .send = on_send,
                                         .write = on_write,
                                         .context = fixture},
        &fixture->engine));
    options.driver = fixture->devices.driver;
    options.shard_store = fixture->shard_store;
    options.engine = fixture->engine;
    options.process = SELF;
    options.finished = on_finished;
    options.context = fixture;
    must(tow_dataflow_create(&options, &fixture->dataflow));
}

static void fixture_open_filled(fixture_t *fixture)
{
    fixture_open(fixture, (tow_dataflow_options_t){.unblocked = on_unblocked});
    add_executable(fixture, ADD, ADD_TEXT);
    add_executable(fixture, PAIR, pair_text);
    add_executable(fixture, UPDATE, update_text);
    add_executable(fixture, GREEDY, greedy_text);
    add_executable(fixture, HUGE_RESULT, huge_text);
    add_single(fixture, SINGLE_ADD, ADD);
    add_single(fixture, SINGLE_GREEDY, GREEDY);
    add_single(fixture, SINGLE_HUGE, HUGE_RESULT);
    add_chain(fixture, CHAIN, ADD);
    add_chain(fixture, CHAIN_HUGE, HUGE_RESULT);
    add_consume(fixture);
    add_share(fixture);
}

/* Checks that all memory has been released. */
static void fixture_close(fixture_t *fixture)
{
    run_idle(fixture);
    assert_true(tow_dataflow_is_quiet(fixture->dataflow));
    tow_dataflow_destroy(fixture->dataflow);
    tow_shard_store_destroy(fixture->shard_store);
    run_idle(fixture); /* Devices release memory of the engine. */
    tow_transfer_engine_destroy(fixture->engine);
    device_fixture_close(&fixture->devices);
}

static void uploaded(tow_upload_t *upload, tow_status_t take_status)
{
    fixture_t *fixture = *(fixture_t **)(upload + 1);
    must(take_status);
    fixture->pending_uploads--;
}

static void put_object(fixture_t *fixture, uint64_t key)
{
    struct {
        tow_upload_t upload;
        fixture_t *fixture;
    } uploading[DEVICES];
    tow_buffer_t *shards[DEVICES];
    uint8_t bytes[16] = {(uint8_t)key};
    for (size_t d = 0; d < DEVICES; d++) {
        uploading[d].fixture = fixture;
        uploading[d].upload = (tow_upload_t){
            .device = d,
            .shape = {.type = TOW_TYPE_U8, .rank = 1, .dims = {16}},
            .bytes = bytes,
            .done = uploaded};
        must(tow_driver_upload(fixture->devices.driver, &uploading[d].upload));
        shards[d] = uploading[d].upload.buffer;
        fixture->pending_uploads++;
    }
    must(tow_shard_store_put(
        fixture->shard_store, key,
        &(tow_shard_list_t){.first = shards, .stride = 1, .count = DEVICES}));
    run_idle(fixture);
    assert_int_equal(fixture->pending_uploads, 0);
}

/* Run `run` of a program, whose results are objects 1000 * run, ... */
static void grant(fixture_t *fixture, uint64_t run, uint64_t program,
                  uint64_t argument)
{
    const uint64_t arguments[] = {argument, argument};
    must(tow_dataflow_grant(
        fixture->dataflow,
        &(tow_run_grant_t){.run = run,
                           .program = program,
                           .arguments = arguments,
                           .argument_count = program == SHARE ? 2 : 1,
                           .first_result = 1000 * run,
                           .first_gang = 10 * run}));
}

static void expect_failure(const fixture_t *fixture, size_t index, uint64_t run,
                           tow_code_t code, const char *part)
{
    assert_true(fixture->failed_count > index);
    assert_int_equal(fixture->failed[index].run, run);
    assert_int_equal(fixture->failed[index].code, code);
    if (strstr(fixture->failed[index].message, part) == NULL)
        fail_msg("'%s' has no '%s'", fixture->failed[index].message, part);
}

static tow_buffer_state_t state_of(const fixture_t *fixture, uint64_t key)
{
    const tow_shard_store_object_t *object =
        tow_shard_store_find(fixture->shard_store, key);
    assert_non_null(object);
    assert_int_equal(object->shard_count, DEVICES);
    return tow_buffer_state(object->shards[0]);
}

/* -- Running --------------------------------------------------------------- */

static void unawaited_runs_are_enqueued_ahead_of_their_data(void **state)
{
    (void)state;
    fixture_t fixture;
    fixture_open_filled(&fixture);
    put_object(&fixture, 1);
    grant(&fixture, 1, SINGLE_ADD, 1);
    for (uint64_t run = 2; run <= 20; run++)
        grant(&fixture, run, CHAIN, 1000 * (run - 1));
    assert_int_equal(tow_dataflow_stats(fixture.dataflow).step_count,
                     1 + 19 * 2);
    assert_int_equal(state_of(&fixture, 20000), TOW_BUFFER_PENDING);
    run_idle(&fixture);
    assert_int_equal(fixture.succeeded_count, 20);
    for (uint64_t run = 1; run <= 20; run++)
        assert_int_equal(fixture.succeeded[run - 1], run);
    assert_int_equal(fixture.failed_count, 0);
    assert_int_equal(state_of(&fixture, 20000), TOW_BUFFER_READY);
    assert_int_equal(tow_shard_store_totals(fixture.shard_store).object_count,
                     21);
    assert_int_equal(tow_shard_store_totals(fixture.shard_store).bytes,
                     21 * DEVICES * 16);
    fixture_close(&fixture);
}

static void runs_that_finish_in_one_turn_are_reported_together(void **state)
{
    (void)state;
    fixture_t fixture;
    fixture_open_filled(&fixture);
    /* None of these reaches a device. */
    for (uint64_t run = 1; run <= 5; run++)
        grant(&fixture, run, SINGLE_ADD, 77);
    assert_int_equal(fixture.report_count, 0);
    run_idle(&fixture);
    assert_int_equal(fixture.report_count, 1);
    assert_int_equal(fixture.failed_count, 5);
    expect_failure(&fixture, 0, 1, TOW_NOT_FOUND, "object 77");
    assert_int_equal(fixture.failed[0].node, 1);
    fixture_close(&fixture);
}

static void an_argument_may_be_a_result_and_a_value_two_results(void **state)
{
    (void)state;
    fixture_t fixture;
    fixture_open_filled(&fixture);
    put_object(&fixture, 1);
    grant(&fixture, 1, SHARE, 1);
    run_idle(&fixture);
    assert_int_equal(fixture.succeeded_count, 1);
    for (uint64_t i = 0; i < 3; i++)
        assert_int_equal(state_of(&fixture, 1000 + i), TOW_BUFFER_READY);
    assert_true(tow_shard_store_remove(fixture.shard_store, 1));
    assert_true(tow_shard_store_remove(fixture.shard_store, 1000));
    grant(&fixture, 2, SINGLE_ADD, 1001);
    grant(&fixture, 3, SINGLE_ADD, 1002);
    run_idle(&fixture);
    assert_int_equal(fixture.succeeded_count, 3);
    fixture_close(&fixture);
}

/* Several objects have one value: consuming one of them keeps the others. */
static void consuming_an_object_keeps_others_with_the_same_value(void **state)
{
    (void)state;
    fixture_t fixture;
    fixture_open_filled(&fixture);
    put_object(&fixture, 1);
    grant(&fixture, 1, SHARE, 1);
    grant(&fixture, 2, CONSUME, 1000); /* 1001 is the same value, */
    grant(&fixture, 3, CONSUME, 1);    /* and so is 1002. */
    grant(&fixture, 4, SINGLE_ADD, 1001);
    grant(&fixture, 5, CONSUME, 1002); /* the last one may reuse the memory */
    run_idle(&fixture);
    assert_int_equal(fixture.succeeded_count, 5);
    assert_int_equal(fixture.failed_count, 0);
    fixture_close(&fixture);
}

static void a_consumed_argument_cannot_be_used_again(void **state)
{
    (void)state;
    fixture_t fixture;
    fixture_open_filled(&fixture);
    put_object(&fixture, 1);
    grant(&fixture, 1, CONSUME, 1);
    assert_int_equal(tow_shard_store_totals(fixture.shard_store).bytes,
                     DEVICES * 16);
    grant(&fixture, 2, SINGLE_ADD, 1);
    run_idle(&fixture);
    assert_int_equal(fixture.succeeded_count, 1);
    expect_failure(&fixture, 0, 2, TOW_FAILED_PRECONDITION, "donated");
    fixture_close(&fixture);
}

/* -- Failures -------------------------------------------------------------- */

static void device_time_of_a_run_is_the_sum_of_its_steps(void **state)
{
    (void)state;
    fixture_t fixture;
    fixture_open_filled(&fixture);
    put_object(&fixture, 1);
    grant(&fixture, 1, SINGLE_ADD, 1);
    run_idle(&fixture);
    const tow_device_time_t single = fixture.time;
    assert_true(single.longest_ns > 0);
    assert_int_equal(single.busy_ns, DEVICES * single.longest_ns);
    fixture.time = (tow_device_time_t){0};
    grant(&fixture, 2, CHAIN, 1);
    run_idle(&fixture);
    assert_int_equal(fixture.time.busy_ns, 2 * single.busy_ns);
    assert_int_equal(fixture.time.wait_ns, 0);
    assert_int_equal(fixture.time.longest_ns, 2 * single.longest_ns);
    assert_int_equal(tow_dataflow_stats(fixture.dataflow).device_ns,
                     3 * single.busy_ns);
    fixture_close(&fixture);
}

/* Without arguments. */
#define STAGE_TEXT \
    "towpath-cost 1\nname stage\nresult u8[16]\nduration 1000000\n"

enum {
    ON_0 = 301,
    ON_1,
    ON_BOTH,
    STAGES,
};

/* Steps that use no values of each other. */
static void add_stages(fixture_t *fixture, const uint64_t *executables,
                       size_t count)
{
    tow_lowered_step_t steps[8] = {0};
    for (size_t i = 0; i < count; i++)
        steps[i] = (tow_lowered_step_t){.executable = {executables[i]},
                                        .first_output = (uint32_t)i,
                                        .output_count = 1,
                                        .node = (uint32_t)i,
                                        .index = (uint32_t)i};
    add_program(fixture, STAGES,
                &(tow_lowered_t){.slot_count = (uint32_t)count,
                                 .results = slot_0,
                                 .result_count = 1,
                                 .steps = steps,
                                 .step_count = count,
                                 .step_count_all = (uint32_t)count});
}

/* How many times as long as one step the longest device of a run was kept. */
static uint64_t longest_steps(const uint64_t *executables, size_t count)
{
    fixture_t fixture;
    fixture_open_filled(&fixture);
    for (size_t i = 0; i < 2; i++)
        device_fixture_add_executable_on(&fixture.devices, fixture.dataflow,
                                         ON_0 + i, STAGE_TEXT, i, 1);
    add_executable(&fixture, ON_BOTH, STAGE_TEXT);
    add_stages(&fixture, executables, count);
    must(tow_dataflow_grant(fixture.dataflow,
                            &(tow_run_grant_t){.run = 1,
                                               .program = STAGES,
                                               .first_result = 1000,
                                               .first_gang = 10}));
    must(tow_dataflow_check(fixture.dataflow));
    run_idle(&fixture);
    assert_int_equal(fixture.succeeded_count, 1);
    /* The model adds some 2 us to each. */
    const uint64_t longest = fixture.time.longest_ns / 1000000;
    fixture_close(&fixture);
    return longest;
}

static void longest_time_is_that_of_one_device(void **state)
{
    (void)state;
    assert_int_equal(longest_steps((uint64_t[]){ON_0, ON_1}, 2), 1);
    assert_int_equal(longest_steps((uint64_t[]){ON_0, ON_1, ON_1}, 3), 2);
    assert_int_equal(longest_steps((uint64_t[]){ON_1, ON_0, ON_1, ON_1}, 4), 3);
    assert_int_equal(longest_steps((uint64_t[]){ON_1, ON_1}, 2), 2);
}

/* Then the sum is an upper bound. */
static void times_on_overlapping_devices_add_up(void **state)
{
    (void)state;
    assert_int_equal(longest_steps((uint64_t[]){ON_0, ON_BOTH}, 2), 2);
    assert_int_equal(longest_steps((uint64_t[]){ON_0, ON_1, ON_BOTH}, 3), 3);
}

static void downstream_failures_name_the_failed_step(void **state)
{
    (void)state;
    fixture_t fixture;
    fixture_open_filled(&fixture);
    put_object(&fixture, 1);
    grant(&fixture, 1, SINGLE_GREEDY, 1);
    grant(&fixture, 2, CHAIN, 1000);   /* enqueued before the failure */
    grant(&fixture, 3, SINGLE_ADD, 1); /* independent of it */
    run_idle(&fixture);
    assert_int_equal(fixture.succeeded_count, 1);
    assert_int_equal(fixture.succeeded[0], 3);
    expect_failure(&fixture, 0, 1, TOW_RESOURCE_EXHAUSTED, "run 1, node 1");
    expect_failure(&fixture, 0, 1, TOW_RESOURCE_EXHAUSTED, "greedy");
    grant(&fixture, 4, SINGLE_ADD, 2000); /* granted after the failure */
    run_idle(&fixture);
    assert_int_equal(fixture.failed_count, 3);
    for (size_t i = 1; i < 3; i++)
        assert_string_equal(fixture.failed[i].message,
                            fixture.failed[0].message);
    /* Only the argument and the third run's result have bytes. */
    assert_int_equal(tow_shard_store_totals(fixture.shard_store).bytes,
                     2 * DEVICES * 16);
    assert_int_equal(tow_shard_store_totals(fixture.shard_store).failed_count,
                     3);
    fixture_close(&fixture);
}

/* Other steps of the run would deadlock with members on other workers. */
static void a_failed_step_ends_its_run(void **state)
{
    (void)state;
    static const char slow_text[] = "towpath-cost 1\n"
                                    "name slow\n"
                                    "argument u8[16]\n"
                                    "result u8[16]\n"
                                    "duration 60000000000\n";
    const tow_lowered_step_t steps[] = {{.executable = {GREEDY},
                                         .inputs = slot_0,
                                         .input_count = 1,
                                         .first_output = 1,
                                         .output_count = 1,
                                         .node = 1,
                                         .name = "first train.py:41"},
                                        {.executable = {SLOW},
                                         .inputs = slot_0,
                                         .input_count = 1,
                                         .first_output = 2,
                                         .output_count = 1,
                                         .node = 2,
                                         .index = 1}};
    fixture_t fixture;
    fixture_open_filled(&fixture);
    add_executable(&fixture, SLOW, slow_text);
    add_program(&fixture, TWO,
                &(tow_lowered_t){.slot_count = 3,
                                 .argument_count = 1,
                                 .results = slot_2,
                                 .result_count = 1,
                                 .steps = steps,
                                 .step_count = 2,
                                 .step_count_all = 2});
    put_object(&fixture, 1);
    grant(&fixture, 1, TWO, 1);
    run_idle(&fixture);
    expect_failure(&fixture, 0, 1, TOW_RESOURCE_EXHAUSTED,
                   "run 1, node 1 (first train.py:41): ");
    assert_true(tow_env_now_ns(fixture.devices.env) < 1000000000);
    fixture_close(&fixture);
}

static void a_step_that_cannot_be_enqueued_fails_its_run(void **state)
{
    (void)state;
    fixture_t fixture;
    fixture_open_filled(&fixture);
    put_object(&fixture, 1);
    grant(&fixture, 1, CHAIN_HUGE, 1);
    assert_int_equal(tow_dataflow_stats(fixture.dataflow).step_count, 1);
    grant(&fixture, 2, SINGLE_ADD, 1000);
    run_idle(&fixture);
    /* The second never began; the first waits for its first step. */
    expect_failure(&fixture, 0, 2, TOW_RESOURCE_EXHAUSTED, "run 1, node 2");
    expect_failure(&fixture, 1, 1, TOW_RESOURCE_EXHAUSTED, "run 1, node 2");
    assert_int_equal(fixture.failed[1].node, 2);
    grant(&fixture, 3, SINGLE_ADD, 1);
    run_idle(&fixture);
    assert_int_equal(fixture.succeeded_count, 1);
    fixture_close(&fixture);
}

static void a_failed_member_fails_its_gang(void **state)
{
    (void)state;
    fixture_t fixture;
    fixture_open_filled(&fixture);
    add_executable(&fixture, HEAVY, heavy_text);
    add_single(&fixture, SINGLE_HEAVY, HEAVY);
    put_object(&fixture, 1);
    tow_buffer_t *ballast;
    must(tow_driver_allocate(
        fixture.devices.driver, 1,
        &(tow_shape_t){.type = TOW_TYPE_U8, .rank = 1, .dims = {800000}},
        &ballast));
    grant(&fixture, 1, SINGLE_HEAVY, 1);
    grant(&fixture, 2, SINGLE_ADD, 1);
    run_idle(&fixture);
    expect_failure(&fixture, 0, 1, TOW_RESOURCE_EXHAUSTED, "device 1, heavy");
    assert_int_equal(fixture.succeeded_count, 1);
    tow_buffer_release(ballast);
    fixture_close(&fixture);
}

static void a_run_of_a_missing_object_fails_only_itself(void **state)
{
    (void)state;
    fixture_t fixture;
    fixture_open_filled(&fixture);
    put_object(&fixture, 1);
    grant(&fixture, 1, ABSENT, 1);
    add_single(&fixture, ABSENT, 555);
    grant(&fixture, 2, ABSENT, 1);
    grant(&fixture, 3, SINGLE_ADD, 1);
    run_idle(&fixture);
    expect_failure(&fixture, 0, 1, TOW_NOT_FOUND, "program 299");
    expect_failure(&fixture, 1, 2, TOW_NOT_FOUND, "executable 555");
    assert_int_equal(fixture.succeeded_count, 1);
    /* The object may be put later. */
    add_executable(&fixture, 555, ADD_TEXT);
    grant(&fixture, 4, ABSENT, 1);
    run_idle(&fixture);
    assert_int_equal(fixture.succeeded_count, 2);
    expect_error(tow_dataflow_remove_program(fixture.dataflow, 12345),
                 TOW_NOT_FOUND, "12345");
    expect_error(tow_dataflow_remove_executable(fixture.dataflow, 12345),
                 TOW_NOT_FOUND, "12345");
    fixture_close(&fixture);
}

static void a_wrong_number_of_arguments_or_results_is_refused(void **state)
{
    (void)state;
    fixture_t fixture;
    fixture_open_filled(&fixture);
    put_object(&fixture, 1);
    const uint64_t arguments[] = {1, 1};
    must(tow_dataflow_grant(fixture.dataflow,
                            &(tow_run_grant_t){.run = 1,
                                               .program = SINGLE_ADD,
                                               .arguments = arguments,
                                               .argument_count = 2,
                                               .first_result = 1000}));
    add_single(&fixture, ABSENT, PAIR);
    grant(&fixture, 2, ABSENT, 1);
    run_idle(&fixture);
    expect_failure(&fixture, 0, 1, TOW_INVALID_ARGUMENT, "has 2 arguments");
    expect_failure(&fixture, 1, 2, TOW_INVALID_ARGUMENT,
                   "pair takes 2 arguments");
    fixture_close(&fixture);
}

/* -- Aborting -------------------------------------------------------------- */

static void an_aborted_run_fails_with_the_cause(void **state)
{
    (void)state;
    fixture_t fixture;
    fixture_open_filled(&fixture);
    put_object(&fixture, 1);
    for (uint64_t run = 1; run <= 3; run++)
        grant(&fixture, run, CHAIN, 1);
    tow_status_t cause = TOW_ERROR(TOW_CANCELLED, "nobody wants it");
    tow_dataflow_abort(fixture.dataflow, 2, cause);
    tow_dataflow_abort(fixture.dataflow, 999, cause);
    tow_status_release(cause);
    run_idle(&fixture);
    assert_int_equal(fixture.succeeded_count, 2);
    expect_failure(&fixture, 0, 2, TOW_CANCELLED, "nobody wants it");
    assert_int_equal(tow_shard_store_totals(fixture.shard_store).failed_count,
                     1);
    fixture_close(&fixture);
}

static void clearing_discards_all_runs_without_reports(void **state)
{
    (void)state;
    fixture_t fixture;
    fixture_open_filled(&fixture);
    put_object(&fixture, 1);
    for (uint64_t run = 1; run <= 3; run++)
        grant(&fixture, run, CHAIN, 1);
    grant(&fixture, 4, SINGLE_ADD, 77);
    tow_status_t cause = TOW_ERROR(TOW_UNAVAILABLE, "the controller is gone");
    tow_dataflow_clear(fixture.dataflow, cause);
    tow_status_release(cause);
    tow_shard_store_clear(fixture.shard_store);
    assert_false(tow_dataflow_is_quiet(fixture.dataflow));
    run_idle(&fixture);
    assert_true(tow_dataflow_is_quiet(fixture.dataflow));
    assert_true(fixture.report_count > 0); /* of becoming quiet */
    assert_int_equal(fixture.succeeded_count + fixture.failed_count, 0);
    assert_int_equal(tow_sim_device_counts(fixture.devices.driver).executables,
                     0);
    fixture_close(&fixture);
}

static void a_program_may_be_removed_during_its_run(void **state)
{
    (void)state;
    fixture_t fixture;
    fixture_open_filled(&fixture);
    put_object(&fixture, 1);
    grant(&fixture, 1, CHAIN, 1);
    must(tow_dataflow_remove_program(fixture.dataflow, CHAIN));
    must(tow_dataflow_remove_executable(fixture.dataflow, ADD));
    run_idle(&fixture);
    assert_int_equal(fixture.succeeded_count, 1);
    fixture_close(&fixture);
}

/* -- Transfers ------------------------------------------------------------- */

enum {
    GATHER = 301,
    GATHER_GREEDY,
    RECEIVE,
    SEND,
    SEQUENTIAL,
    WRONG,
    LATE_RECEIVE,
    LATE_SEND,
    LATE_CALL,
};

/* Two shards of 16 bytes become one of 32, on the second device. */
static const tow_piece_t gather_pieces[] = {
    {.process = SELF, .bytes = 16, .extent = {16}},
    {.process = SELF,
     .source_shard = 1,
     .number = 1,
     .bytes = 16,
     .offset = 16,
     .target_start = {16},
     .extent = {16}},
};
static const tow_piece_t other_pieces[] = {
    {.process = OTHER, .bytes = 16, .extent = {16}},
    {.process = OTHER,
     .source_shard = 1,
     .target_shard = 1,
     .bytes = 16,
     .extent = {16}},
};
static const uint32_t both_devices[] = {0, 1};
#define VECTOR(size)                                     \
    {                                                    \
        .type = TOW_TYPE_U8, .rank = 1, .dims = { size } \
    }
static const tow_route_t gather_route = {.source = VECTOR(16),
                                         .target = VECTOR(32),
                                         .source_count = 2,
                                         .sends = gather_pieces,
                                         .send_count = 2,
                                         .receives = gather_pieces,
                                         .receive_count = 2,
                                         .target_devices = both_devices + 1,
                                         .target_count = 1};
static const tow_route_t receive_route = {.source = VECTOR(16),
                                          .target = VECTOR(16),
                                          .receives = other_pieces,
                                          .receive_count = 2,
                                          .target_devices = both_devices,
                                          .target_count = 2};
static const tow_route_t send_route = {.source = VECTOR(16),
                                       .target = VECTOR(16),
                                       .source_count = 2,
                                       .sends = other_pieces,
                                       .send_count = 2};

/* argument -> executable (node 1) -> transfer (node 2) -> result */
static void add_gather(fixture_t *fixture, uint64_t key, uint64_t executable)
{
    const tow_lowered_step_t steps[] = {{.executable = {executable},
                                         .inputs = slot_0,
                                         .input_count = 1,
                                         .first_output = 1,
                                         .output_count = 1,
                                         .node = 1},
                                        {.route = &gather_route,
                                         .inputs = slot_1,
                                         .input_count = 1,
                                         .first_output = 2,
                                         .output_count = 1,
                                         .freed = slot_1,
                                         .freed_count = 1,
                                         .node = 2,
                                         .index = 1}};
    add_program(fixture, key,
                &(tow_lowered_t){.slot_count = 3,
                                 .argument_count = 1,
                                 .results = slot_2,
                                 .result_count = 1,
                                 .steps = steps,
                                 .step_count = 2,
                                 .step_count_all = 2});
}

/* transfer from elsewhere (node 1) -> add (node 2) -> result */
static void add_receive(fixture_t *fixture)
{
    const tow_lowered_step_t steps[] = {{.route = &receive_route,
                                         .first_output = 1,
                                         .output_count = 1,
                                         .node = 1},
                                        {.executable = {ADD},
                                         .inputs = slot_1,
                                         .input_count = 1,
                                         .first_output = 2,
                                         .output_count = 1,
                                         .freed = slot_1,
                                         .freed_count = 1,
                                         .node = 2,
                                         .index = 1}};
    add_program(fixture, RECEIVE,
                &(tow_lowered_t){.slot_count = 3,
                                 .argument_count = 1,
                                 .results = slot_2,
                                 .result_count = 1,
                                 .steps = steps,
                                 .step_count = 2,
                                 .step_count_all = 2});
}

/* argument -> transfer to elsewhere (node 1) */
static void add_send(fixture_t *fixture)
{
    const tow_lowered_step_t step = {
        .route = &send_route, .inputs = slot_0, .input_count = 1, .node = 1};
    add_program(fixture, SEND,
                &(tow_lowered_t){.slot_count = 1,
                                 .argument_count = 1,
                                 .steps = &step,
                                 .step_count = 1,
                                 .step_count_all = 1});
}

static void fixture_open_transfers(fixture_t *fixture)
{
    fixture_open_filled(fixture);
    add_gather(fixture, GATHER, ADD);
    add_gather(fixture, GATHER_GREEDY, GREEDY);
    add_receive(fixture);
    add_send(fixture);
    put_object(fixture, 1);
}

static void receive_piece(fixture_t *fixture, uint64_t gang, uint32_t shard)
{
    static uint8_t bytes[16];
    tow_msg_edge_piece_t piece = TOW_MSG_EDGE_PIECE_INIT;
    piece.gang = gang;
    piece.shard = shard;
    piece.bytes.data = bytes;
    piece.bytes.len = sizeof(bytes);
    must(tow_transfer_engine_on_piece(fixture->engine, OTHER, &piece));
}

static void a_transfer_is_a_step(void **state)
{
    (void)state;
    fixture_t fixture;
    fixture_open_transfers(&fixture);
    grant(&fixture, 1, GATHER, 1);
    grant(&fixture, 2, SEND, 1);
    grant(&fixture, 3, RECEIVE, 1);
    receive_piece(&fixture, 30, 0);
    receive_piece(&fixture, 30, 1);
    receive_piece(&fixture, 40, 1); /* early */
    must(tow_dataflow_remove_program(fixture.dataflow, GATHER));
    run_idle(&fixture);
    assert_int_equal(fixture.succeeded_count, 3);
    assert_int_equal(fixture.message_count, 2);
    const tow_shard_store_object_t *object =
        tow_shard_store_find(fixture.shard_store, 1000);
    assert_int_equal(object->shard_count, 1);
    assert_int_equal(object->bytes, 32);
    grant(&fixture, 4, RECEIVE, 1);
    receive_piece(&fixture, 40, 0);
    run_idle(&fixture);
    assert_int_equal(fixture.succeeded_count, 4);
    fixture_close(&fixture);
}

static void a_transfer_of_a_failed_value_names_its_origin(void **state)
{
    (void)state;
    fixture_t fixture;
    fixture_open_transfers(&fixture);
    grant(&fixture, 1, GATHER_GREEDY, 1);
    run_idle(&fixture);
    assert_int_equal(fixture.failed_count, 1);
    expect_failure(&fixture, 0, 1, TOW_RESOURCE_EXHAUSTED, "run 1, node 1: ");
    assert_int_equal(fixture.failed[0].node, 1);
    fixture_close(&fixture);
}

static void a_transfer_fails_with_node_and_worker(void **state)
{
    (void)state;
    fixture_t fixture;
    fixture_open_transfers(&fixture);
    grant(&fixture, 1, RECEIVE, 1);
    receive_piece(&fixture, 10, 0);
    run_idle(&fixture);
    assert_int_equal(tow_dataflow_stats(fixture.dataflow).run_count, 1);
    tow_status_t disconnected = TOW_ERROR(TOW_UNAVAILABLE, "worker w9 is gone");
    tow_transfer_engine_on_peer_disconnect(fixture.engine, OTHER, disconnected);
    tow_status_release(disconnected);
    run_idle(&fixture);
    assert_int_equal(fixture.failed_count, 1);
    expect_failure(&fixture, 0, 1, TOW_UNAVAILABLE,
                   "run 1, node 1: transfer from process 9: worker w9 is gone");
    assert_int_equal(fixture.failed[0].node, 1);
    grant(&fixture, 2, SINGLE_ADD, 1000);
    run_idle(&fixture);
    expect_failure(&fixture, 1, 2, TOW_UNAVAILABLE, "run 1, node 1: transfer");
    fixture_close(&fixture);
}

static void an_abort_reaches_transfers(void **state)
{
    (void)state;
    fixture_t fixture;
    fixture_open_transfers(&fixture);
    grant(&fixture, 1, RECEIVE, 1);
    must(tow_dataflow_remove_program(fixture.dataflow, RECEIVE));
    run_idle(&fixture);
    tow_status_t cause = TOW_ERROR(TOW_CANCELLED, "the client is gone");
    tow_dataflow_abort(fixture.dataflow, 1, cause);
    tow_status_release(cause);
    run_idle(&fixture);
    expect_failure(&fixture, 0, 1, TOW_CANCELLED, "the client is gone");
    receive_piece(&fixture, 10, 0); /* late: ignored */
    fixture_close(&fixture);
}

static void clearing_discards_transfers(void **state)
{
    (void)state;
    fixture_t fixture;
    fixture_open_transfers(&fixture);
    grant(&fixture, 1, RECEIVE, 1);
    grant(&fixture, 2, GATHER, 1);
    tow_status_t cause = TOW_ERROR(TOW_UNAVAILABLE, "the controller is gone");
    tow_dataflow_clear(fixture.dataflow, cause);
    tow_transfer_engine_clear(fixture.engine);
    tow_status_release(cause);
    tow_shard_store_clear(fixture.shard_store);
    run_idle(&fixture);
    assert_true(tow_dataflow_is_quiet(fixture.dataflow));
    assert_true(tow_transfer_engine_is_quiet(fixture.engine));
    assert_int_equal(fixture.succeeded_count + fixture.failed_count, 0);
    fixture_close(&fixture);
}

/* Gangs of another controller start at lower numbers: a grant that is cleared
 * while it waits must not make their early messages stale. */
static void a_cleared_grant_leaves_no_gang_number(void **state)
{
    (void)state;
    fixture_t fixture;
    fixture_open_transfers(&fixture);
    add_chain_of(
        &fixture, SEQUENTIAL,
        (tow_lowered_step_t){.executable = {ADD}, .is_sequential = true});
    grant(&fixture, 5, SEQUENTIAL, 1);
    assert_true(tow_dataflow_is_blocked(fixture.dataflow));
    tow_status_t cause = TOW_ERROR(TOW_UNAVAILABLE, "the controller is gone");
    tow_dataflow_clear(fixture.dataflow, cause);
    tow_transfer_engine_clear(fixture.engine);
    tow_status_release(cause);
    tow_shard_store_clear(fixture.shard_store);
    run_idle(&fixture);
    add_executable(&fixture, ADD, ADD_TEXT);
    add_receive(&fixture);
    put_object(&fixture, 1);
    receive_piece(&fixture, 10, 0);
    receive_piece(&fixture, 10, 1);
    grant(&fixture, 1, RECEIVE, 1);
    run_idle(&fixture);
    assert_int_equal(fixture.succeeded_count, 1);
    fixture_close(&fixture);
}

static void a_transfer_with_a_wrong_shard_count_is_refused(void **state)
{
    (void)state;
    fixture_t fixture;
    fixture_open_transfers(&fixture);
    static const uint32_t device[] = {DEVICES};
    tow_route_t route = gather_route;
    route.target_devices = device;
    const tow_lowered_step_t step = {.route = &route,
                                     .inputs = slot_0,
                                     .input_count = 1,
                                     .first_output = 1,
                                     .output_count = 1,
                                     .node = 1};
    add_program(&fixture, WRONG,
                &(tow_lowered_t){.slot_count = 2,
                                 .argument_count = 1,
                                 .results = slot_1,
                                 .result_count = 1,
                                 .steps = &step,
                                 .step_count = 1,
                                 .step_count_all = 1});
    grant(&fixture, 1, WRONG, 1);
    grant(&fixture, 2, GATHER, 1);
    run_idle(&fixture);
    expect_failure(&fixture, 0, 1, TOW_INVALID_ARGUMENT,
                   "node 1: target shard 0");
    grant(&fixture, 3, SEND, 2000); /* The worker has one shard, not two. */
    run_idle(&fixture);
    expect_failure(&fixture, 1, 3, TOW_FAILED_PRECONDITION, "has 1 shards");
    fixture_close(&fixture);
}

/* -- Memory in the order of use -------------------------------------------- */

/* argument -> add (step 0); a late transfer from elsewhere (step 1), which takes
 * memory when step 0 has ended -> add (step 2) -> result */
static void add_late_receive(fixture_t *fixture)
{
    const tow_lowered_step_t steps[] = {{.executable = {ADD},
                                         .inputs = slot_0,
                                         .input_count = 1,
                                         .first_output = 1,
                                         .output_count = 1,
                                         .freed = slot_1,
                                         .freed_count = 1,
                                         .node = 1},
                                        {.route = &receive_route,
                                         .first_output = 2,
                                         .output_count = 1,
                                         .node = 2,
                                         .index = 1,
                                         .is_late = true,
                                         .memory_after = 1},
                                        {.executable = {ADD},
                                         .inputs = slot_2,
                                         .input_count = 1,
                                         .first_output = 3,
                                         .output_count = 1,
                                         .freed = slot_2,
                                         .freed_count = 1,
                                         .node = 3,
                                         .index = 2}};
    static const uint32_t result[] = {3};
    add_program(fixture, LATE_RECEIVE,
                &(tow_lowered_t){.slot_count = 4,
                                 .argument_count = 1,
                                 .results = result,
                                 .result_count = 1,
                                 .steps = steps,
                                 .step_count = 3,
                                 .step_count_all = 3});
}

/* argument -> add (step 0) -> a late transfer to elsewhere (step 1), after which
 * an add (step 2) starts -> result */
static void add_late_send(fixture_t *fixture)
{
    const tow_lowered_step_t steps[] = {{.executable = {ADD},
                                         .inputs = slot_0,
                                         .input_count = 1,
                                         .first_output = 1,
                                         .output_count = 1,
                                         .node = 1},
                                        {.route = &send_route,
                                         .inputs = slot_1,
                                         .input_count = 1,
                                         .first_output = 2,
                                         .freed = slot_1,
                                         .freed_count = 1,
                                         .node = 2,
                                         .index = 1,
                                         .is_late = true,
                                         .sent_before = 3},
                                        {.executable = {ADD},
                                         .inputs = slot_0,
                                         .input_count = 1,
                                         .first_output = 2,
                                         .output_count = 1,
                                         .node = 3,
                                         .index = 2}};
    add_program(fixture, LATE_SEND,
                &(tow_lowered_t){.slot_count = 3,
                                 .argument_count = 1,
                                 .results = slot_2,
                                 .result_count = 1,
                                 .steps = steps,
                                 .step_count = 3,
                                 .step_count_all = 3});
}

/* Promises of some devices take memory: there a grant waits as a whole. */
static void fixture_open_late(fixture_t *fixture, bool can_hold)
{
    fixture_open_transfers(fixture);
    fixture->devices.driver->has_free_promises = can_hold;
    add_late_receive(fixture);
}

static void a_late_transfer_takes_memory_after_a_computation(void **state)
{
    (void)state;
    for (int can_hold = 0; can_hold < 2; can_hold++) {
        fixture_t fixture;
        fixture_open_late(&fixture, can_hold);
        grant(&fixture, 1, LATE_RECEIVE, 1);
        assert_int_equal(tow_dataflow_is_blocked(fixture.dataflow), !can_hold);
        assert_int_equal(tow_dataflow_stats(fixture.dataflow).memory_wait_count,
                         1);
        assert_int_equal(tow_transfer_engine_stats(fixture.engine).late_bytes,
                         0);
        receive_piece(&fixture, 11, 0); /* before the memory is there */
        must(tow_transfer_engine_check(fixture.engine));
        must(tow_dataflow_check(fixture.dataflow));
        run_idle(&fixture);
        assert_false(tow_dataflow_is_blocked(fixture.dataflow));
        assert_int_equal(tow_dataflow_stats(fixture.dataflow).step_count, 2);
        /* The memory of the other shard. */
        assert_int_equal(tow_transfer_engine_stats(fixture.engine).late_bytes,
                         16);
        must(tow_dataflow_check(fixture.dataflow));
        must(tow_transfer_engine_check(fixture.engine));
        receive_piece(&fixture, 11, 1);
        run_idle(&fixture);
        assert_int_equal(fixture.succeeded_count, 1);
        assert_int_equal(tow_transfer_engine_stats(fixture.engine).late_bytes,
                         0);
        fixture_close(&fixture);
    }
}

/* Another run starts while a transfer waits for memory; the messages for the
 * transfer are kept. */
static void a_held_transfer_holds_up_nothing_else(void **state)
{
    (void)state;
    fixture_t fixture;
    fixture_open_late(&fixture, true);
    grant(&fixture, 1, LATE_RECEIVE, 1);
    receive_piece(&fixture, 11, 0);
    receive_piece(&fixture, 11, 1);
    assert_false(tow_dataflow_is_blocked(fixture.dataflow));
    grant(&fixture, 2, SINGLE_ADD, 1);
    grant(&fixture, 3, LATE_RECEIVE, 1);
    assert_int_equal(tow_dataflow_stats(fixture.dataflow).step_count, 7);
    assert_int_equal(tow_transfer_engine_stats(fixture.engine).early_count, 2);
    must(tow_transfer_engine_check(fixture.engine));
    run_idle(&fixture);
    assert_int_equal(fixture.succeeded_count, 2);
    receive_piece(&fixture, 31, 0);
    receive_piece(&fixture, 31, 1);
    run_idle(&fixture);
    assert_int_equal(fixture.succeeded_count, 3);
    fixture_close(&fixture);
}

/* A receive (step 0) -> add (step 1), a computation that calls its client; a
 * late transfer (step 2), which takes memory when step 1 has ended -> add
 * (step 3) -> result */
static void add_late_call(fixture_t *fixture)
{
    static const uint32_t slot_3[] = {3}, result[] = {4};
    const tow_lowered_step_t steps[] = {{.route = &receive_route,
                                         .first_output = 1,
                                         .output_count = 1,
                                         .node = 1},
                                        {.executable = {ADD},
                                         .inputs = slot_1,
                                         .input_count = 1,
                                         .first_output = 2,
                                         .output_count = 1,
                                         .freed = slot_2,
                                         .freed_count = 1,
                                         .node = 2,
                                         .index = 1},
                                        {.route = &receive_route,
                                         .first_output = 3,
                                         .output_count = 1,
                                         .node = 3,
                                         .index = 2,
                                         .is_late = true,
                                         .memory_after = 2},
                                        {.executable = {ADD},
                                         .inputs = slot_3,
                                         .input_count = 1,
                                         .first_output = 4,
                                         .output_count = 1,
                                         .freed = slot_3,
                                         .freed_count = 1,
                                         .node = 4,
                                         .index = 3}};
    add_program(fixture, LATE_CALL,
                &(tow_lowered_t){.slot_count = 5,
                                 .argument_count = 1,
                                 .results = result,
                                 .result_count = 1,
                                 .steps = steps,
                                 .step_count = 4,
                                 .step_count_all = 4});
}

/* The client answers a callback of run 1 when run 2 has ended, which needs
 * nothing of the devices that run 1 occupies. */
static void a_callback_may_run_a_program_here(void **state)
{
    (void)state;
    fixture_t fixture;
    fixture_open_late(&fixture, true);
    add_late_call(&fixture);
    grant(&fixture, 1, LATE_CALL, 1);
    run_idle(&fixture);
    assert_int_equal(fixture.succeeded_count, 0);
    assert_false(tow_dataflow_is_blocked(fixture.dataflow));
    grant(&fixture, 2, SEND, 1);
    run_idle(&fixture);
    assert_int_equal(fixture.succeeded_count, 1);
    receive_piece(&fixture, 10, 0); /* the answer */
    receive_piece(&fixture, 10, 1);
    run_idle(&fixture);
    receive_piece(&fixture, 12, 0);
    receive_piece(&fixture, 12, 1);
    run_idle(&fixture);
    assert_int_equal(fixture.succeeded_count, 2);
    fixture_close(&fixture);
}

static void an_abort_ends_a_wait_for_memory(void **state)
{
    (void)state;
    for (int variant = 0; variant < 4; variant++) {
        const bool is_cleared = variant % 2 == 1, can_hold = variant / 2 == 1;
        fixture_t fixture;
        fixture_open_late(&fixture, can_hold);
        grant(&fixture, 1, LATE_RECEIVE, 1);
        assert_int_equal(tow_dataflow_is_blocked(fixture.dataflow), !can_hold);
        if (can_hold) receive_piece(&fixture, 11, 0);
        tow_status_t cause = TOW_ERROR(TOW_CANCELLED, "nobody wants it");
        if (is_cleared)
            tow_dataflow_clear(fixture.dataflow, cause);
        else
            tow_dataflow_abort(fixture.dataflow, 1, cause);
        tow_status_release(cause);
        must(tow_transfer_engine_check(fixture.engine));
        run_idle(&fixture);
        assert_false(tow_dataflow_is_blocked(fixture.dataflow));
        assert_int_equal(fixture.failed_count, is_cleared ? 0 : 1);
        must(tow_dataflow_check(fixture.dataflow));
        fixture_close(&fixture);
    }
}

static void a_held_transfer_fails_with_its_peer(void **state)
{
    (void)state;
    fixture_t fixture;
    fixture_open_late(&fixture, true);
    grant(&fixture, 1, LATE_RECEIVE, 1);
    receive_piece(&fixture, 11, 0);
    tow_status_t disconnected = TOW_ERROR(TOW_UNAVAILABLE, "worker w9 is gone");
    tow_transfer_engine_on_peer_disconnect(fixture.engine, OTHER, disconnected);
    tow_status_release(disconnected);
    must(tow_transfer_engine_check(fixture.engine));
    run_idle(&fixture);
    expect_failure(&fixture, 0, 1, TOW_UNAVAILABLE,
                   "run 1, node 2: transfer from process 9: worker w9 is gone");
    must(tow_dataflow_check(fixture.dataflow));
    grant(&fixture, 2, LATE_RECEIVE, 1); /* The books are right again. */
    run_idle(&fixture);
    receive_piece(&fixture, 21, 0);
    receive_piece(&fixture, 21, 1);
    run_idle(&fixture);
    assert_int_equal(fixture.succeeded_count, 1);
    fixture_close(&fixture);
}

static void a_computation_waits_until_a_late_transfer_was_sent(void **state)
{
    (void)state;
    fixture_t fixture;
    fixture_open_transfers(&fixture);
    add_late_send(&fixture);
    grant(&fixture, 1, LATE_SEND, 1);
    assert_true(tow_dataflow_is_blocked(fixture.dataflow));
    assert_int_equal(tow_dataflow_stats(fixture.dataflow).step_count, 2);
    run_idle(&fixture);
    assert_int_equal(fixture.message_count, 2);
    assert_int_equal(fixture.succeeded_count, 1);
    assert_int_equal(tow_dataflow_stats(fixture.dataflow).memory_wait_count, 1);
    fixture_close(&fixture);
}

/* A wait in one piece is for a step of an earlier one. */
static void a_late_transfer_waits_across_pieces(void **state)
{
    (void)state;
    fixture_t fixture;
    fixture_open_transfers(&fixture);
    add_late_receive(&fixture);
    const uint64_t argument = 1;
    tow_run_grant_t grant = {.run = 1,
                             .program = LATE_RECEIVE,
                             .arguments = &argument,
                             .argument_count = 1,
                             .first_result = 1000,
                             .first_gang = 10,
                             .step_end = 1};
    must(tow_dataflow_grant(fixture.dataflow, &grant));
    assert_false(tow_dataflow_is_blocked(fixture.dataflow));
    grant.first_step = 1;
    grant.step_end = 0;
    must(tow_dataflow_grant(fixture.dataflow, &grant));
    assert_int_equal(tow_dataflow_stats(fixture.dataflow).memory_wait_count, 1);
    run_idle(&fixture);
    receive_piece(&fixture, 11, 0);
    receive_piece(&fixture, 11, 1);
    run_idle(&fixture);
    assert_int_equal(fixture.succeeded_count, 1);
    fixture_close(&fixture);
}

static void runs_beyond_the_bound_are_refused(void **state)
{
    (void)state;
    fixture_t fixture;
    fixture_open(&fixture, (tow_dataflow_options_t){.run_count_max = 2,
                                                    .step_count_max = 4});
    add_executable(&fixture, ADD, ADD_TEXT);
    add_single(&fixture, SINGLE_ADD, ADD);
    add_chain(&fixture, CHAIN, ADD);
    put_object(&fixture, 1);
    grant(&fixture, 1, CHAIN, 1);
    grant(&fixture, 2, SINGLE_ADD, 1);
    grant(&fixture, 3, SINGLE_ADD, 1);
    grant(&fixture, 4, CHAIN, 1);
    const uint64_t argument = 1;
    expect_error(tow_dataflow_grant(fixture.dataflow,
                                    &(tow_run_grant_t){.run = 1,
                                                       .program = SINGLE_ADD,
                                                       .arguments = &argument,
                                                       .argument_count = 1,
                                                       .first_result = 9000}),
                 TOW_ALREADY_EXISTS, "second time");
    run_idle(&fixture);
    expect_failure(&fixture, 0, 3, TOW_RESOURCE_EXHAUSTED,
                   "2 runs are under way");
    expect_failure(&fixture, 1, 4, TOW_RESOURCE_EXHAUSTED, "limit is 4");
    assert_int_equal(fixture.succeeded_count, 2);
    fixture_close(&fixture);
}

/* -- Cost ------------------------------------------------------------------ */

typedef struct cost_fixture {
    fixture_t fixture;
    fake_driver_t fake;
    uint32_t abort_counts[2048]; /* by gang */
} cost_fixture_t;

static void count_abort(void *context, uint64_t gang_id, tow_status_t cause)
{
    cost_fixture_t *cost =
        (cost_fixture_t *)((char *)context - offsetof(cost_fixture_t, fixture));
    assert_int_equal(tow_status_code(cause), TOW_CANCELLED);
    cost->abort_counts[gang_id % 2048]++;
}

typedef enum mode {
    THREADED,
    INLINE,
    LINGERING
} exec_mode_t;

static void cost_fixture_open(cost_fixture_t *cost, exec_mode_t mode)
{
    *cost = (cost_fixture_t){0};
    device_fixture_open_bare(&cost->fixture.devices);
    fake_open(&cost->fake, cost->fixture.devices.env);
    must(tow_shard_store_create(
        &(tow_shard_store_options_t){.shard_count_max = 1},
        &cost->fixture.shard_store));
    must(tow_dataflow_create(
        &(tow_dataflow_options_t){.driver = &cost->fake.base,
                                  .shard_store = cost->fixture.shard_store,
                                  .finished = on_finished,
                                  .abort_gang = count_abort,
                                  .context = &cost->fixture,
                                  .may_run_inline = mode != THREADED,
                                  .may_linger_always = mode == LINGERING},
        &cost->fixture.dataflow));
    must(tow_dataflow_add_executable(cost->fixture.dataflow, ADD,
                                     &cost->fake.executable));
    add_single(&cost->fixture, SINGLE_ADD, ADD);
    tow_buffer_t *buffer = fake_buffer_make(&cost->fake);
    must(
        tow_shard_store_put(cost->fixture.shard_store, 1,
                            &(tow_shard_list_t){.first = &buffer, .count = 1}));
}

static void cost_fixture_close(cost_fixture_t *cost)
{
    run_idle(&cost->fixture);
    tow_dataflow_destroy(cost->fixture.dataflow);
    tow_shard_store_destroy(cost->fixture.shard_store);
    fake_close(&cost->fake);
    tow_sim_destroy(cost->fixture.devices.sim);
}

#define CHAIN_RUNS 128

/* A chain of unawaited runs, each of which uses the result of the previous one
 * and then releases it. Object 1 is the first argument of all chains. */
static void run_chain(cost_fixture_t *cost, uint64_t first_run)
{
    uint64_t argument = 1;
    for (uint64_t i = 0; i < CHAIN_RUNS; i++) {
        const uint64_t run = first_run + i;
        must(tow_dataflow_grant(cost->fixture.dataflow,
                                &(tow_run_grant_t){.run = run,
                                                   .program = SINGLE_ADD,
                                                   .arguments = &argument,
                                                   .argument_count = 1,
                                                   .first_result = 1000 + run,
                                                   .first_gang = run}));
        if (argument != 1)
            tow_shard_store_remove(cost->fixture.shard_store, argument);
        argument = 1000 + run;
    }
    tow_shard_store_remove(cost->fixture.shard_store, argument);
    fake_finish_all(&cost->fake);
    run_idle(&cost->fixture);
}

static int64_t real_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now); /* tow-allow: as above */
    return now.tv_sec * 1000000000ll + now.tv_nsec;
}

static void a_run_makes_no_heap_allocation(void **state)
{
    (void)state;
    cost_fixture_t cost;
    cost_fixture_open(&cost, THREADED);
    uint64_t run = 1;
    for (int i = 0; i < 20; i++, run += CHAIN_RUNS)
        run_chain(&cost, run);
    tow_alloc_fail_after(0);
    run_chain(&cost, run);
    assert_false(tow_alloc_has_failed());
    tow_alloc_fail_after(UINT64_MAX);
    run += CHAIN_RUNS;

    int64_t best_ns = INT64_MAX;
    for (int i = 0; i < 200; i++, run += CHAIN_RUNS) {
        const int64_t start_ns = real_ns();
        run_chain(&cost, run);
        const int64_t span_ns = real_ns() - start_ns;
        if (span_ns < best_ns) best_ns = span_ns;
    }
    fprintf(stderr, "a granted run of one step: %lld ns\n",
            (long long)(best_ns / CHAIN_RUNS));
    assert_int_equal(cost.fixture.failed_count, 0);
    cost_fixture_close(&cost);
}

/* If runs may linger always; otherwise only the first one does. */
static void only_the_first_runs_of_a_turn_linger(void **state)
{
    (void)state;
    for (exec_mode_t mode = INLINE; mode <= LINGERING; mode++) {
        const size_t most = mode == LINGERING ? TOW_DATAFLOW_LINGER_COUNT : 1;
        cost_fixture_t cost;
        cost_fixture_open(&cost, mode);
        for (uint64_t run = 1; run <= 2 * TOW_DATAFLOW_LINGER_COUNT; run++)
            grant(&cost.fixture, run, SINGLE_ADD, 1);
        assert_int_equal(cost.fake.linger_count, most);
        fake_finish_all(&cost.fake);
        must(tow_sim_run(
            cost.fixture.devices.sim,
            &(tow_sim_run_options_t){
                .until_ns = tow_env_now_ns(cost.fixture.devices.env) + 1000}));
        grant(&cost.fixture, 1000, SINGLE_ADD, 1);
        assert_int_equal(cost.fake.linger_count, most + 1);
        fake_finish_all(&cost.fake);
        cost_fixture_close(&cost);
    }
}

static void aborts_of_gangs_are_repeated_until_they_end(void **state)
{
    (void)state;
    cost_fixture_t cost;
    cost_fixture_open(&cost, THREADED);
    tow_status_t cause = TOW_ERROR(TOW_CANCELLED, "all of them");
    for (uint64_t run = 1; run <= 200; run++)
        grant(&cost.fixture, run, SINGLE_ADD, 1);
    for (uint64_t run = 1; run <= 200; run++)
        tow_dataflow_abort(cost.fixture.dataflow, run, cause);
    tow_status_release(cause);
    const int64_t round_ns = (200 / TOW_DATAFLOW_ABORT_AGAIN_COUNT + 1) *
                             TOW_DATAFLOW_ABORT_AGAIN_NS;
    must(tow_sim_run(cost.fixture.devices.sim,
                     &(tow_sim_run_options_t){
                         .until_ns = tow_sim_now_ns(cost.fixture.devices.sim) +
                                     2 * round_ns}));
    for (uint64_t run = 1; run <= 200; run++)
        assert_true(cost.abort_counts[10 * run] >= 2);
    fake_finish_all(&cost.fake);
    run_idle(&cost.fixture); /* Returns only if no timer is left. */
    assert_int_equal(cost.fixture.failed_count, 200);
    cost_fixture_close(&cost);
}

static void small_programs_run_inline_if_allowed(void **state)
{
    (void)state;
    for (int allowed = 0; allowed < 2; allowed++) {
        cost_fixture_t cost;
        cost_fixture_open(&cost, allowed ? INLINE : THREADED);
        for (uint64_t i = 0; i < 2 * TOW_DATAFLOW_INLINE_RUN_COUNT; i++) {
            grant(&cost.fixture, 10 + i, SINGLE_ADD, 1);
            fake_finish_all(&cost.fake);
            run_idle(&cost.fixture);
        }
        assert_int_equal(cost.fake.inline_count,
                         allowed ? TOW_DATAFLOW_INLINE_RUN_COUNT : 0);
        /* A program that was slow once is never run inline again. */
        const size_t before = cost.fake.inline_count;
        grant(&cost.fixture, 100, SINGLE_ADD, 1);
        must(tow_sim_run(
            cost.fixture.devices.sim,
            &(tow_sim_run_options_t){
                .until_ns = tow_sim_now_ns(cost.fixture.devices.sim) +
                            2 * TOW_DATAFLOW_INLINE_SLOW_NS}));
        fake_finish_all(&cost.fake);
        grant(&cost.fixture, 101, SINGLE_ADD, 1);
        fake_finish_all(&cost.fake);
        run_idle(&cost.fixture);
        assert_int_equal(cost.fake.inline_count, before + (allowed ? 1 : 0));
        cost_fixture_close(&cost);
    }
}

TOW_TEST_MAIN(
    cmocka_unit_test(unawaited_runs_are_enqueued_ahead_of_their_data),
    cmocka_unit_test(runs_that_finish_in_one_turn_are_reported_together),
    cmocka_unit_test(device_time_of_a_run_is_the_sum_of_its_steps),
    cmocka_unit_test(longest_time_is_that_of_one_device),
    cmocka_unit_test(times_on_overlapping_devices_add_up),
    cmocka_unit_test(an_argument_may_be_a_result_and_a_value_two_results),
    cmocka_unit_test(consuming_an_object_keeps_others_with_the_same_value),
    cmocka_unit_test(a_consumed_argument_cannot_be_used_again),
    cmocka_unit_test(downstream_failures_name_the_failed_step),
    cmocka_unit_test(a_failed_step_ends_its_run),
    cmocka_unit_test(a_step_that_cannot_be_enqueued_fails_its_run),
    cmocka_unit_test(a_failed_member_fails_its_gang),
    cmocka_unit_test(a_run_of_a_missing_object_fails_only_itself),
    cmocka_unit_test(a_wrong_number_of_arguments_or_results_is_refused),
    cmocka_unit_test(an_aborted_run_fails_with_the_cause),
    cmocka_unit_test(clearing_discards_all_runs_without_reports),
    cmocka_unit_test(a_program_may_be_removed_during_its_run),
    cmocka_unit_test(a_transfer_is_a_step),
    cmocka_unit_test(a_transfer_of_a_failed_value_names_its_origin),
    cmocka_unit_test(a_transfer_fails_with_node_and_worker),
    cmocka_unit_test(an_abort_reaches_transfers),
    cmocka_unit_test(clearing_discards_transfers),
    cmocka_unit_test(a_cleared_grant_leaves_no_gang_number),
    cmocka_unit_test(a_transfer_with_a_wrong_shard_count_is_refused),
    cmocka_unit_test(a_late_transfer_takes_memory_after_a_computation),
    cmocka_unit_test(a_held_transfer_holds_up_nothing_else),
    cmocka_unit_test(a_callback_may_run_a_program_here),
    cmocka_unit_test(a_held_transfer_fails_with_its_peer),
    cmocka_unit_test(an_abort_ends_a_wait_for_memory),
    cmocka_unit_test(a_computation_waits_until_a_late_transfer_was_sent),
    cmocka_unit_test(a_late_transfer_waits_across_pieces),
    cmocka_unit_test(runs_beyond_the_bound_are_refused),
    cmocka_unit_test(a_run_makes_no_heap_allocation),
    cmocka_unit_test(only_the_first_runs_of_a_turn_linger),
    cmocka_unit_test(aborts_of_gangs_are_repeated_until_they_end),
    cmocka_unit_test(small_programs_run_inline_if_allowed))
