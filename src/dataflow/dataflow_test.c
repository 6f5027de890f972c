/* Programs on two simulated devices, and what a run costs on a fake one. */
#include "dataflow/fake_driver_testing_impl.h"

#include <stdio.h>
#include <string.h>
#include <time.h> /* tow-allow: a measurement, printed and not judged */

#include "dataflow/ground_testing_impl.h"
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
/* Takes half of a small device's memory, and then meets the others. */
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

typedef struct flow {
    ground_t ground;
    tow_shelf_t *shelf;
    tow_dataflow_t *dataflow;
    tow_mover_t *mover;
    int message_count; /* of the mover */
    int report_count;
    uint64_t succeeded[64];
    size_t succeeded_count;
    struct {
        uint64_t run;
        uint32_t node;
        tow_code_t code;
        char message[256];
    } failed[64];
    size_t failed_count;
    tow_status_t status;
    size_t pending_uploads;
} flow_t;

static void expect_error(tow_status_t status, tow_code_t code, const char *part)
{
    assert_int_equal(tow_status_code(status), code);
    if (strstr(tow_status_message(status), part) == NULL)
        fail_msg("'%s' has no '%s'", tow_status_message(status), part);
    tow_status_release(status);
}

static void on_finished(void *context, const tow_finished_runs_t *finished)
{
    flow_t *flow = context;
    flow->report_count++;
    for (size_t i = 0; i < finished->run_count; i++)
        flow->succeeded[flow->succeeded_count++ % 64] = finished->runs[i];
    for (size_t i = 0; i < finished->failure_count; i++) {
        const tow_failed_run_t *failure = &finished->failures[i];
        size_t at = flow->failed_count++ % 64;
        flow->failed[at].run = failure->run;
        flow->failed[at].node = failure->node;
        flow->failed[at].code = tow_status_code(failure->cause);
        snprintf(flow->failed[at].message, sizeof(flow->failed[at].message),
                 "%s", tow_status_message(failure->cause));
    }
}

static void run_idle(flow_t *flow)
{
    ground_run_idle(&flow->ground);
}

/* -- Things to run ----------------------------------------------------------- */

static void add_executable(flow_t *flow, uint64_t key, const char *text)
{
    ground_add_executable(&flow->ground, flow->dataflow, key, text);
}

static void add_program(flow_t *flow, uint64_t key,
                        const tow_lowered_t *lowered)
{
    ground_add_program(flow->dataflow, key, lowered);
}

static const uint32_t slot_0[] = {0};
static const uint32_t slot_1[] = {1};
static const uint32_t slot_2[] = {2};
static const uint32_t kept_0[] = {0};

/* argument -> executable -> result; node 1. Keeps its argument. */
static void add_single(flow_t *flow, uint64_t key, uint64_t executable)
{
    const tow_lowered_step_t step = {.executable = {executable},
                                     .inputs = slot_0,
                                     .input_count = 1,
                                     .first_output = 1,
                                     .output_count = 1,
                                     .kept = kept_0,
                                     .kept_count = 1,
                                     .node = 1};
    add_program(flow, key,
                &(tow_lowered_t){.slot_count = 2,
                                 .argument_count = 1,
                                 .results = slot_1,
                                 .result_count = 1,
                                 .steps = &step,
                                 .step_count = 1,
                                 .step_count_all = 1});
}

/* argument -> add (node 1) -> executable (node 2) -> result. */
static void add_chain(flow_t *flow, uint64_t key, uint64_t executable)
{
    const tow_lowered_step_t steps[] = {{.executable = {ADD},
                                         .inputs = slot_0,
                                         .input_count = 1,
                                         .first_output = 1,
                                         .output_count = 1,
                                         .node = 1},
                                        {.executable = {executable},
                                         .inputs = slot_1,
                                         .input_count = 1,
                                         .first_output = 2,
                                         .output_count = 1,
                                         .freed = slot_1,
                                         .freed_count = 1,
                                         .node = 2,
                                         .index = 1}};
    add_program(flow, key,
                &(tow_lowered_t){.slot_count = 3,
                                 .argument_count = 1,
                                 .results = slot_2,
                                 .result_count = 1,
                                 .steps = steps,
                                 .step_count = 2,
                                 .step_count_all = 2});
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
static void add_consume(flow_t *flow)
{
    const tow_lowered_step_t step = {.executable = {UPDATE},
                                     .inputs = slot_0,
                                     .input_count = 1,
                                     .first_output = 1,
                                     .output_count = 1,
                                     .freed = slot_0,
                                     .freed_count = 1,
                                     .node = 1};
    add_program(flow, CONSUME,
                &(tow_lowered_t){.slot_count = 2,
                                 .argument_count = 1,
                                 .results = slot_1,
                                 .result_count = 1,
                                 .steps = &step,
                                 .step_count = 1,
                                 .step_count_all = 1});
}

/* (a, b) -> pair(a, b): results are its first output twice, and a. Its second
 * output is used by nobody. */
static void add_share(flow_t *flow)
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
    add_program(flow, SHARE,
                &(tow_lowered_t){.slot_count = 4,
                                 .argument_count = 2,
                                 .results = results,
                                 .result_count = 3,
                                 .steps = &step,
                                 .step_count = 1,
                                 .step_count_all = 1});
}

/* -- The world --------------------------------------------------------------- */

static tow_mover_sent_t on_send(void *context, uint32_t process, uint32_t type,
                                const tow_body_t *body)
{
    (void)type, (void)body;
    assert_int_equal(process, OTHER);
    ((flow_t *)context)->message_count++;
    return TOW_MOVER_SENT;
}

static tow_status_t on_write(void *context, tow_mover_write_t *write)
{
    (void)context, (void)write;
    return tow_status_bare(TOW_UNIMPLEMENTED);
}

static void flow_open(flow_t *flow, tow_dataflow_options_t options)
{
    *flow = (flow_t){0};
    ground_open(&flow->ground, MEMORY_BYTES);
    must(tow_shelf_create(&(tow_shelf_options_t){.shard_count_max = DEVICES},
                          &flow->shelf));
    must(tow_mover_create(&(tow_mover_options_t){.driver = flow->ground.driver,
                                                 .process = SELF,
                                                 .send = on_send,
                                                 .write = on_write,
                                                 .context = flow},
                          &flow->mover));
    options.driver = flow->ground.driver;
    options.shelf = flow->shelf;
    options.mover = flow->mover;
    options.process = SELF;
    options.finished = on_finished;
    options.context = flow;
    must(tow_dataflow_create(&options, &flow->dataflow));
}

static void flow_fill(flow_t *flow)
{
    flow_open(flow, (tow_dataflow_options_t){0});
    add_executable(flow, ADD, ADD_TEXT);
    add_executable(flow, PAIR, pair_text);
    add_executable(flow, UPDATE, update_text);
    add_executable(flow, GREEDY, greedy_text);
    add_executable(flow, HUGE_RESULT, huge_text);
    add_single(flow, SINGLE_ADD, ADD);
    add_single(flow, SINGLE_GREEDY, GREEDY);
    add_single(flow, SINGLE_HUGE, HUGE_RESULT);
    add_chain(flow, CHAIN, ADD);
    add_chain(flow, CHAIN_HUGE, HUGE_RESULT);
    add_consume(flow);
    add_share(flow);
}

/* All that was taken is given back. */
static void flow_close(flow_t *flow)
{
    run_idle(flow);
    assert_true(tow_dataflow_is_quiet(flow->dataflow));
    tow_dataflow_destroy(flow->dataflow);
    tow_shelf_destroy(flow->shelf);
    run_idle(flow); /* Devices give back what they used of the mover. */
    tow_mover_destroy(flow->mover);
    ground_close(&flow->ground);
}

static void uploaded(tow_upload_t *upload, tow_status_t take_status)
{
    flow_t *flow = *(flow_t **)(upload + 1);
    must(take_status);
    flow->pending_uploads--;
}

static void put_object(flow_t *flow, uint64_t key)
{
    struct {
        tow_upload_t upload;
        flow_t *flow;
    } uploading[DEVICES];
    tow_buffer_t *shards[DEVICES];
    uint8_t bytes[16] = {(uint8_t)key};
    for (size_t d = 0; d < DEVICES; d++) {
        uploading[d].flow = flow;
        uploading[d].upload = (tow_upload_t){
            .device = d,
            .shape = {.type = TOW_TYPE_U8, .rank = 1, .dims = {16}},
            .bytes = bytes,
            .done = uploaded};
        must(tow_driver_upload(flow->ground.driver, &uploading[d].upload));
        shards[d] = uploading[d].upload.buffer;
        flow->pending_uploads++;
    }
    must(tow_shelf_put(
        flow->shelf, key,
        &(tow_shard_list_t){.first = shards, .stride = 1, .count = DEVICES}));
    run_idle(flow);
    assert_int_equal(flow->pending_uploads, 0);
}

/* Run `run` of a program, whose results are objects 1000 * run, ... */
static void grant(flow_t *flow, uint64_t run, uint64_t program,
                  uint64_t argument)
{
    const uint64_t arguments[] = {argument, argument};
    must(tow_dataflow_grant(
        flow->dataflow,
        &(tow_run_grant_t){.run = run,
                           .program = program,
                           .arguments = arguments,
                           .argument_count = program == SHARE ? 2 : 1,
                           .first_result = 1000 * run,
                           .first_gang = 10 * run}));
}

static void expect_failure(const flow_t *flow, size_t index, uint64_t run,
                           tow_code_t code, const char *part)
{
    assert_true(flow->failed_count > index);
    assert_int_equal(flow->failed[index].run, run);
    assert_int_equal(flow->failed[index].code, code);
    if (strstr(flow->failed[index].message, part) == NULL)
        fail_msg("'%s' has no '%s'", flow->failed[index].message, part);
}

static tow_buffer_state_t state_of(const flow_t *flow, uint64_t key)
{
    const tow_shelf_object_t *object = tow_shelf_find(flow->shelf, key);
    assert_non_null(object);
    assert_int_equal(object->shard_count, DEVICES);
    return tow_buffer_state(object->shards[0]);
}

/* -- Running ----------------------------------------------------------------- */

static void unawaited_runs_are_enqueued_ahead_of_their_data(void **state)
{
    (void)state;
    flow_t flow;
    flow_fill(&flow);
    put_object(&flow, 1);
    grant(&flow, 1, SINGLE_ADD, 1);
    for (uint64_t run = 2; run <= 20; run++)
        grant(&flow, run, CHAIN, 1000 * (run - 1));
    assert_int_equal(tow_dataflow_stats(flow.dataflow).step_count, 1 + 19 * 2);
    assert_int_equal(state_of(&flow, 20000), TOW_BUFFER_PENDING);
    run_idle(&flow);
    assert_int_equal(flow.succeeded_count, 20);
    for (uint64_t run = 1; run <= 20; run++)
        assert_int_equal(flow.succeeded[run - 1], run);
    assert_int_equal(flow.failed_count, 0);
    assert_int_equal(state_of(&flow, 20000), TOW_BUFFER_READY);
    assert_int_equal(tow_shelf_totals(flow.shelf).object_count, 21);
    assert_int_equal(tow_shelf_totals(flow.shelf).bytes, 21 * DEVICES * 16);
    flow_close(&flow);
}

static void what_finishes_in_one_turn_is_reported_once(void **state)
{
    (void)state;
    flow_t flow;
    flow_fill(&flow);
    /* None of these reaches a device. */
    for (uint64_t run = 1; run <= 5; run++)
        grant(&flow, run, SINGLE_ADD, 77);
    assert_int_equal(flow.report_count, 0);
    run_idle(&flow);
    assert_int_equal(flow.report_count, 1);
    assert_int_equal(flow.failed_count, 5);
    expect_failure(&flow, 0, 1, TOW_NOT_FOUND, "object 77");
    assert_int_equal(flow.failed[0].node, 1);
    flow_close(&flow);
}

static void an_argument_may_be_a_result_and_a_result_two(void **state)
{
    (void)state;
    flow_t flow;
    flow_fill(&flow);
    put_object(&flow, 1);
    grant(&flow, 1, SHARE, 1);
    run_idle(&flow);
    assert_int_equal(flow.succeeded_count, 1);
    for (uint64_t i = 0; i < 3; i++)
        assert_int_equal(state_of(&flow, 1000 + i), TOW_BUFFER_READY);
    assert_true(tow_shelf_remove(flow.shelf, 1));
    assert_true(tow_shelf_remove(flow.shelf, 1000));
    grant(&flow, 2, SINGLE_ADD, 1001);
    grant(&flow, 3, SINGLE_ADD, 1002);
    run_idle(&flow);
    assert_int_equal(flow.succeeded_count, 3);
    flow_close(&flow);
}

/* Objects that are one value: who consumes one leaves the others theirs. */
static void a_consumer_spares_objects_that_share_its_bytes(void **state)
{
    (void)state;
    flow_t flow;
    flow_fill(&flow);
    put_object(&flow, 1);
    grant(&flow, 1, SHARE, 1);
    grant(&flow, 2, CONSUME, 1000); /* 1001 is the same value, */
    grant(&flow, 3, CONSUME, 1);    /* and so is 1002. */
    grant(&flow, 4, SINGLE_ADD, 1001);
    grant(&flow, 5, CONSUME, 1002); /* the last one has its memory */
    run_idle(&flow);
    assert_int_equal(flow.succeeded_count, 5);
    assert_int_equal(flow.failed_count, 0);
    flow_close(&flow);
}

static void a_consumed_argument_is_gone(void **state)
{
    (void)state;
    flow_t flow;
    flow_fill(&flow);
    put_object(&flow, 1);
    grant(&flow, 1, CONSUME, 1);
    assert_int_equal(tow_shelf_totals(flow.shelf).bytes, DEVICES * 16);
    grant(&flow, 2, SINGLE_ADD, 1);
    run_idle(&flow);
    assert_int_equal(flow.succeeded_count, 1);
    expect_failure(&flow, 0, 2, TOW_FAILED_PRECONDITION, "donated");
    flow_close(&flow);
}

/* -- Failing ------------------------------------------------------------------ */

static void a_failed_step_names_its_origin_to_all_downstream(void **state)
{
    (void)state;
    flow_t flow;
    flow_fill(&flow);
    put_object(&flow, 1);
    grant(&flow, 1, SINGLE_GREEDY, 1);
    grant(&flow, 2, CHAIN, 1000);   /* enqueued before it is known */
    grant(&flow, 3, SINGLE_ADD, 1); /* has nothing to do with it */
    run_idle(&flow);
    assert_int_equal(flow.succeeded_count, 1);
    assert_int_equal(flow.succeeded[0], 3);
    expect_failure(&flow, 0, 1, TOW_RESOURCE_EXHAUSTED, "run 1, node 1");
    expect_failure(&flow, 0, 1, TOW_RESOURCE_EXHAUSTED, "greedy");
    grant(&flow, 4, SINGLE_ADD, 2000); /* granted after it is known */
    run_idle(&flow);
    assert_int_equal(flow.failed_count, 3);
    for (size_t i = 1; i < 3; i++)
        assert_string_equal(flow.failed[i].message, flow.failed[0].message);
    /* Only the argument and the third run's result have bytes. */
    assert_int_equal(tow_shelf_totals(flow.shelf).bytes, 2 * DEVICES * 16);
    assert_int_equal(tow_shelf_totals(flow.shelf).failed_count, 3);
    flow_close(&flow);
}

/* The other steps of its run would wait for members that wait for us. */
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
                                         .node = 1},
                                        {.executable = {SLOW},
                                         .inputs = slot_0,
                                         .input_count = 1,
                                         .first_output = 2,
                                         .output_count = 1,
                                         .node = 2,
                                         .index = 1}};
    flow_t flow;
    flow_fill(&flow);
    add_executable(&flow, SLOW, slow_text);
    add_program(&flow, TWO,
                &(tow_lowered_t){.slot_count = 3,
                                 .argument_count = 1,
                                 .results = slot_2,
                                 .result_count = 1,
                                 .steps = steps,
                                 .step_count = 2,
                                 .step_count_all = 2});
    put_object(&flow, 1);
    grant(&flow, 1, TWO, 1);
    run_idle(&flow);
    expect_failure(&flow, 0, 1, TOW_RESOURCE_EXHAUSTED, "run 1, node 1");
    assert_true(tow_env_now_ns(flow.ground.env) < 1000000000);
    flow_close(&flow);
}

static void a_step_that_cannot_be_enqueued_fails_its_run(void **state)
{
    (void)state;
    flow_t flow;
    flow_fill(&flow);
    put_object(&flow, 1);
    grant(&flow, 1, CHAIN_HUGE, 1);
    assert_int_equal(tow_dataflow_stats(flow.dataflow).step_count, 1);
    grant(&flow, 2, SINGLE_ADD, 1000);
    run_idle(&flow);
    /* The second never began; the first waits for its first step. */
    expect_failure(&flow, 0, 2, TOW_RESOURCE_EXHAUSTED, "run 1, node 2");
    expect_failure(&flow, 1, 1, TOW_RESOURCE_EXHAUSTED, "run 1, node 2");
    assert_int_equal(flow.failed[1].node, 2);
    grant(&flow, 3, SINGLE_ADD, 1);
    run_idle(&flow);
    assert_int_equal(flow.succeeded_count, 1);
    flow_close(&flow);
}

static void a_member_that_fails_alone_takes_its_gang_along(void **state)
{
    (void)state;
    flow_t flow;
    flow_fill(&flow);
    add_executable(&flow, HEAVY, heavy_text);
    add_single(&flow, SINGLE_HEAVY, HEAVY);
    put_object(&flow, 1);
    tow_buffer_t *ballast;
    must(tow_driver_allocate(
        flow.ground.driver, 1,
        &(tow_shape_t){.type = TOW_TYPE_U8, .rank = 1, .dims = {800000}},
        &ballast));
    grant(&flow, 1, SINGLE_HEAVY, 1);
    grant(&flow, 2, SINGLE_ADD, 1);
    run_idle(&flow);
    expect_failure(&flow, 0, 1, TOW_RESOURCE_EXHAUSTED, "device 1, heavy");
    assert_int_equal(flow.succeeded_count, 1);
    tow_buffer_release(ballast);
    flow_close(&flow);
}

static void a_run_of_what_is_not_there_fails_alone(void **state)
{
    (void)state;
    flow_t flow;
    flow_fill(&flow);
    put_object(&flow, 1);
    grant(&flow, 1, ABSENT, 1);
    add_single(&flow, ABSENT, 555);
    grant(&flow, 2, ABSENT, 1);
    grant(&flow, 3, SINGLE_ADD, 1);
    run_idle(&flow);
    expect_failure(&flow, 0, 1, TOW_NOT_FOUND, "program 299");
    expect_failure(&flow, 1, 2, TOW_NOT_FOUND, "executable 555");
    assert_int_equal(flow.succeeded_count, 1);
    /* It may come later. */
    add_executable(&flow, 555, ADD_TEXT);
    grant(&flow, 4, ABSENT, 1);
    run_idle(&flow);
    assert_int_equal(flow.succeeded_count, 2);
    expect_error(tow_dataflow_remove_program(flow.dataflow, 12345),
                 TOW_NOT_FOUND, "12345");
    expect_error(tow_dataflow_remove_executable(flow.dataflow, 12345),
                 TOW_NOT_FOUND, "12345");
    flow_close(&flow);
}

static void a_wrong_number_of_arguments_or_results_is_refused(void **state)
{
    (void)state;
    flow_t flow;
    flow_fill(&flow);
    put_object(&flow, 1);
    const uint64_t arguments[] = {1, 1};
    must(tow_dataflow_grant(flow.dataflow,
                            &(tow_run_grant_t){.run = 1,
                                               .program = SINGLE_ADD,
                                               .arguments = arguments,
                                               .argument_count = 2,
                                               .first_result = 1000}));
    add_single(&flow, ABSENT, PAIR);
    grant(&flow, 2, ABSENT, 1);
    run_idle(&flow);
    expect_failure(&flow, 0, 1, TOW_INVALID_ARGUMENT, "has 2 arguments");
    expect_failure(&flow, 1, 2, TOW_INVALID_ARGUMENT, "pair takes 2 arguments");
    flow_close(&flow);
}

/* -- Aborting ----------------------------------------------------------------- */

static void an_aborted_run_fails_with_the_cause(void **state)
{
    (void)state;
    flow_t flow;
    flow_fill(&flow);
    put_object(&flow, 1);
    for (uint64_t run = 1; run <= 3; run++)
        grant(&flow, run, CHAIN, 1);
    tow_status_t cause = TOW_ERROR(TOW_CANCELLED, "nobody wants it");
    tow_dataflow_abort(flow.dataflow, 2, cause);
    tow_dataflow_abort(flow.dataflow, 999, cause);
    tow_status_release(cause);
    run_idle(&flow);
    assert_int_equal(flow.succeeded_count, 2);
    expect_failure(&flow, 0, 2, TOW_CANCELLED, "nobody wants it");
    assert_int_equal(tow_shelf_totals(flow.shelf).failed_count, 1);
    flow_close(&flow);
}

static void clearing_drops_all_and_reports_nothing(void **state)
{
    (void)state;
    flow_t flow;
    flow_fill(&flow);
    put_object(&flow, 1);
    for (uint64_t run = 1; run <= 3; run++)
        grant(&flow, run, CHAIN, 1);
    grant(&flow, 4, SINGLE_ADD, 77);
    tow_status_t cause = TOW_ERROR(TOW_UNAVAILABLE, "the controller is gone");
    tow_dataflow_clear(flow.dataflow, cause);
    tow_status_release(cause);
    tow_shelf_clear(flow.shelf);
    assert_false(tow_dataflow_is_quiet(flow.dataflow));
    run_idle(&flow);
    assert_true(tow_dataflow_is_quiet(flow.dataflow));
    assert_true(flow.report_count > 0); /* That it is quiet. */
    assert_int_equal(flow.succeeded_count + flow.failed_count, 0);
    assert_int_equal(tow_sim_device_counts(flow.ground.driver).executables, 0);
    flow_close(&flow);
}

static void a_program_may_go_while_it_runs(void **state)
{
    (void)state;
    flow_t flow;
    flow_fill(&flow);
    put_object(&flow, 1);
    grant(&flow, 1, CHAIN, 1);
    must(tow_dataflow_remove_program(flow.dataflow, CHAIN));
    must(tow_dataflow_remove_executable(flow.dataflow, ADD));
    run_idle(&flow);
    assert_int_equal(flow.succeeded_count, 1);
    flow_close(&flow);
}

/* -- Bounds ------------------------------------------------------------------- */

/* -- Transfers ---------------------------------------------------------------- */

enum {
    GATHER = 301,
    GATHER_GREEDY,
    RECEIVE,
    SEND,
    WRONG,
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
static void add_gather(flow_t *flow, uint64_t key, uint64_t executable)
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
    add_program(flow, key,
                &(tow_lowered_t){.slot_count = 3,
                                 .argument_count = 1,
                                 .results = slot_2,
                                 .result_count = 1,
                                 .steps = steps,
                                 .step_count = 2,
                                 .step_count_all = 2});
}

/* transfer from elsewhere (node 1) -> add (node 2) -> result */
static void add_receive(flow_t *flow)
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
    add_program(flow, RECEIVE,
                &(tow_lowered_t){.slot_count = 3,
                                 .argument_count = 1,
                                 .results = slot_2,
                                 .result_count = 1,
                                 .steps = steps,
                                 .step_count = 2,
                                 .step_count_all = 2});
}

/* argument -> transfer to elsewhere (node 1) */
static void add_send(flow_t *flow)
{
    const tow_lowered_step_t step = {
        .route = &send_route, .inputs = slot_0, .input_count = 1, .node = 1};
    add_program(flow, SEND,
                &(tow_lowered_t){.slot_count = 1,
                                 .argument_count = 1,
                                 .steps = &step,
                                 .step_count = 1,
                                 .step_count_all = 1});
}

static void flow_fill_moves(flow_t *flow)
{
    flow_fill(flow);
    add_gather(flow, GATHER, ADD);
    add_gather(flow, GATHER_GREEDY, GREEDY);
    add_receive(flow);
    add_send(flow);
    put_object(flow, 1);
}

static void arrive(flow_t *flow, uint64_t gang, uint32_t shard)
{
    static uint8_t bytes[16];
    tow_msg_edge_piece_t piece = TOW_MSG_EDGE_PIECE_INIT;
    piece.gang = gang;
    piece.shard = shard;
    piece.bytes.data = bytes;
    piece.bytes.len = sizeof(bytes);
    must(tow_mover_piece(flow->mover, OTHER, &piece));
}

static void a_transfer_is_a_step(void **state)
{
    (void)state;
    flow_t flow;
    flow_fill_moves(&flow);
    grant(&flow, 1, GATHER, 1);
    grant(&flow, 2, SEND, 1);
    grant(&flow, 3, RECEIVE, 1);
    arrive(&flow, 30, 0);
    arrive(&flow, 30, 1);
    arrive(&flow, 40, 1); /* early */
    must(tow_dataflow_remove_program(flow.dataflow, GATHER));
    run_idle(&flow);
    assert_int_equal(flow.succeeded_count, 3);
    assert_int_equal(flow.message_count, 2);
    const tow_shelf_object_t *object = tow_shelf_find(flow.shelf, 1000);
    assert_int_equal(object->shard_count, 1);
    assert_int_equal(object->bytes, 32);
    grant(&flow, 4, RECEIVE, 1);
    arrive(&flow, 40, 0);
    run_idle(&flow);
    assert_int_equal(flow.succeeded_count, 4);
    flow_close(&flow);
}

static void a_transfer_of_what_failed_tells_where_it_began(void **state)
{
    (void)state;
    flow_t flow;
    flow_fill_moves(&flow);
    grant(&flow, 1, GATHER_GREEDY, 1);
    run_idle(&flow);
    assert_int_equal(flow.failed_count, 1);
    expect_failure(&flow, 0, 1, TOW_RESOURCE_EXHAUSTED, "run 1, node 1: ");
    assert_int_equal(flow.failed[0].node, 1);
    flow_close(&flow);
}

static void a_transfer_fails_with_node_and_worker(void **state)
{
    (void)state;
    flow_t flow;
    flow_fill_moves(&flow);
    grant(&flow, 1, RECEIVE, 1);
    arrive(&flow, 10, 0);
    run_idle(&flow);
    assert_int_equal(tow_dataflow_stats(flow.dataflow).run_count, 1);
    tow_status_t gone = TOW_ERROR(TOW_UNAVAILABLE, "worker w9 is gone");
    tow_mover_peer_gone(flow.mover, OTHER, gone);
    tow_status_release(gone);
    run_idle(&flow);
    assert_int_equal(flow.failed_count, 1);
    expect_failure(&flow, 0, 1, TOW_UNAVAILABLE,
                   "run 1, node 1: transfer from process 9: worker w9 is gone");
    assert_int_equal(flow.failed[0].node, 1);
    grant(&flow, 2, SINGLE_ADD, 1000);
    run_idle(&flow);
    expect_failure(&flow, 1, 2, TOW_UNAVAILABLE, "run 1, node 1: transfer");
    flow_close(&flow);
}

static void an_abort_reaches_transfers(void **state)
{
    (void)state;
    flow_t flow;
    flow_fill_moves(&flow);
    grant(&flow, 1, RECEIVE, 1);
    must(tow_dataflow_remove_program(flow.dataflow, RECEIVE));
    run_idle(&flow);
    tow_status_t cause = TOW_ERROR(TOW_CANCELLED, "the client is gone");
    tow_dataflow_abort(flow.dataflow, 1, cause);
    tow_status_release(cause);
    run_idle(&flow);
    expect_failure(&flow, 0, 1, TOW_CANCELLED, "the client is gone");
    arrive(&flow, 10, 0); /* late: nobody minds */
    flow_close(&flow);
}

static void clearing_drops_transfers(void **state)
{
    (void)state;
    flow_t flow;
    flow_fill_moves(&flow);
    grant(&flow, 1, RECEIVE, 1);
    grant(&flow, 2, GATHER, 1);
    tow_status_t cause = TOW_ERROR(TOW_UNAVAILABLE, "the controller is gone");
    tow_dataflow_clear(flow.dataflow, cause);
    tow_mover_clear(flow.mover);
    tow_status_release(cause);
    tow_shelf_clear(flow.shelf);
    run_idle(&flow);
    assert_true(tow_dataflow_is_quiet(flow.dataflow));
    assert_true(tow_mover_is_quiet(flow.mover));
    assert_int_equal(flow.succeeded_count + flow.failed_count, 0);
    flow_close(&flow);
}

static void a_transfer_that_does_not_fit_is_refused(void **state)
{
    (void)state;
    flow_t flow;
    flow_fill_moves(&flow);
    static const uint32_t device[] = {DEVICES};
    tow_route_t route = gather_route;
    route.target_devices = device;
    const tow_lowered_step_t step = {.route = &route,
                                     .inputs = slot_0,
                                     .input_count = 1,
                                     .first_output = 1,
                                     .output_count = 1,
                                     .node = 1};
    add_program(&flow, WRONG,
                &(tow_lowered_t){.slot_count = 2,
                                 .argument_count = 1,
                                 .results = slot_1,
                                 .result_count = 1,
                                 .steps = &step,
                                 .step_count = 1,
                                 .step_count_all = 1});
    grant(&flow, 1, WRONG, 1);
    grant(&flow, 2, GATHER, 1);
    run_idle(&flow);
    expect_failure(&flow, 0, 1, TOW_INVALID_ARGUMENT, "node 1: target shard 0");
    grant(&flow, 3, SEND, 2000); /* It has one shard here, not two. */
    run_idle(&flow);
    expect_failure(&flow, 1, 3, TOW_FAILED_PRECONDITION, "has 1 shards");
    flow_close(&flow);
}

static void runs_beyond_the_bound_are_refused(void **state)
{
    (void)state;
    flow_t flow;
    flow_open(&flow, (tow_dataflow_options_t){.run_count_max = 2,
                                              .step_count_max = 4});
    add_executable(&flow, ADD, ADD_TEXT);
    add_single(&flow, SINGLE_ADD, ADD);
    add_chain(&flow, CHAIN, ADD);
    put_object(&flow, 1);
    grant(&flow, 1, CHAIN, 1);
    grant(&flow, 2, SINGLE_ADD, 1);
    grant(&flow, 3, SINGLE_ADD, 1);
    grant(&flow, 4, CHAIN, 1);
    const uint64_t argument = 1;
    expect_error(tow_dataflow_grant(flow.dataflow,
                                    &(tow_run_grant_t){.run = 1,
                                                       .program = SINGLE_ADD,
                                                       .arguments = &argument,
                                                       .argument_count = 1,
                                                       .first_result = 9000}),
                 TOW_ALREADY_EXISTS, "second time");
    run_idle(&flow);
    expect_failure(&flow, 0, 3, TOW_RESOURCE_EXHAUSTED, "2 runs are under way");
    expect_failure(&flow, 1, 4, TOW_RESOURCE_EXHAUSTED, "at most 4");
    assert_int_equal(flow.succeeded_count, 2);
    flow_close(&flow);
}

/* -- Cost --------------------------------------------------------------------- */

typedef struct fake_flow {
    flow_t flow;
    fake_driver_t fake;
    uint32_t told_counts[2048]; /* of gangs: how often they were to give up */
} fake_flow_t;

static void count_abort(void *context, uint64_t gang_id, tow_status_t cause)
{
    fake_flow_t *it =
        (fake_flow_t *)((char *)context - offsetof(fake_flow_t, flow));
    assert_int_equal(tow_status_code(cause), TOW_CANCELLED);
    it->told_counts[gang_id % 2048]++;
}

typedef enum where {
    BESIDE,
    INLINE,
    LINGERING
} where_t;

static void fake_flow_open(fake_flow_t *it, where_t where)
{
    *it = (fake_flow_t){0};
    ground_open_bare(&it->flow.ground);
    fake_open(&it->fake, it->flow.ground.env);
    must(tow_shelf_create(&(tow_shelf_options_t){.shard_count_max = 1},
                          &it->flow.shelf));
    must(tow_dataflow_create(
        &(tow_dataflow_options_t){.driver = &it->fake.base,
                                  .shelf = it->flow.shelf,
                                  .finished = on_finished,
                                  .abort_gang = count_abort,
                                  .context = &it->flow,
                                  .may_run_inline = where != BESIDE,
                                  .may_linger_always = where == LINGERING},
        &it->flow.dataflow));
    must(tow_dataflow_add_executable(it->flow.dataflow, ADD,
                                     &it->fake.executable));
    add_single(&it->flow, SINGLE_ADD, ADD);
    tow_buffer_t *buffer = fake_buffer_make(&it->fake);
    must(tow_shelf_put(it->flow.shelf, 1,
                       &(tow_shard_list_t){.first = &buffer, .count = 1}));
}

static void fake_flow_close(fake_flow_t *it)
{
    run_idle(&it->flow);
    tow_dataflow_destroy(it->flow.dataflow);
    tow_shelf_destroy(it->flow.shelf);
    fake_close(&it->fake);
    tow_sim_destroy(it->flow.ground.sim);
}

#define CHAIN_RUNS 128

/* A chain of unawaited runs, each of which uses the result of the one before;
 * what was used is released. Object 1 is the first argument of all chains. */
static void run_chain(fake_flow_t *it, uint64_t first_run)
{
    uint64_t argument = 1;
    for (uint64_t i = 0; i < CHAIN_RUNS; i++) {
        const uint64_t run = first_run + i;
        must(tow_dataflow_grant(it->flow.dataflow,
                                &(tow_run_grant_t){.run = run,
                                                   .program = SINGLE_ADD,
                                                   .arguments = &argument,
                                                   .argument_count = 1,
                                                   .first_result = 1000 + run,
                                                   .first_gang = run}));
        if (argument != 1) tow_shelf_remove(it->flow.shelf, argument);
        argument = 1000 + run;
    }
    tow_shelf_remove(it->flow.shelf, argument);
    fake_finish_all(&it->fake);
    run_idle(&it->flow);
}

static int64_t real_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now); /* tow-allow: as above */
    return now.tv_sec * 1000000000ll + now.tv_nsec;
}

static void a_run_takes_no_memory_from_the_heap(void **state)
{
    (void)state;
    fake_flow_t it;
    fake_flow_open(&it, BESIDE);
    uint64_t run = 1;
    for (int i = 0; i < 20; i++, run += CHAIN_RUNS)
        run_chain(&it, run);
    tow_alloc_fail_after(0);
    run_chain(&it, run);
    assert_false(tow_alloc_has_failed());
    tow_alloc_fail_after(UINT64_MAX);
    run += CHAIN_RUNS;

    int64_t best_ns = INT64_MAX;
    for (int i = 0; i < 200; i++, run += CHAIN_RUNS) {
        const int64_t start_ns = real_ns();
        run_chain(&it, run);
        const int64_t span_ns = real_ns() - start_ns;
        if (span_ns < best_ns) best_ns = span_ns;
    }
    fprintf(stderr, "a granted run of one step: %lld ns\n",
            (long long)(best_ns / CHAIN_RUNS));
    assert_int_equal(it.flow.failed_count, 0);
    fake_flow_close(&it);
}

/* All in one turn; else only the first, which is alone. */
static void with_few_cores_runs_linger_but_not_all_of_a_turn(void **state)
{
    (void)state;
    for (where_t where = INLINE; where <= LINGERING; where++) {
        const size_t most = where == LINGERING ? TOW_DATAFLOW_LINGER_COUNT : 1;
        fake_flow_t it;
        fake_flow_open(&it, where);
        for (uint64_t run = 1; run <= 2 * TOW_DATAFLOW_LINGER_COUNT; run++)
            grant(&it.flow, run, SINGLE_ADD, 1);
        assert_int_equal(it.fake.linger_count, most);
        fake_finish_all(&it.fake);
        must(tow_sim_run(
            it.flow.ground.sim,
            &(tow_sim_run_options_t){
                .until_ns = tow_env_now_ns(it.flow.ground.env) + 1000}));
        grant(&it.flow, 1000, SINGLE_ADD, 1);
        assert_int_equal(it.fake.linger_count, most + 1);
        fake_finish_all(&it.fake);
        fake_flow_close(&it);
    }
}

static void aborted_gangs_are_told_again_until_they_end(void **state)
{
    (void)state;
    fake_flow_t it;
    fake_flow_open(&it, BESIDE);
    tow_status_t cause = TOW_ERROR(TOW_CANCELLED, "all of them");
    for (uint64_t run = 1; run <= 200; run++)
        grant(&it.flow, run, SINGLE_ADD, 1);
    for (uint64_t run = 1; run <= 200; run++)
        tow_dataflow_abort(it.flow.dataflow, run, cause);
    tow_status_release(cause);
    const int64_t round_ns = (200 / TOW_DATAFLOW_ABORT_AGAIN_COUNT + 1) *
                             TOW_DATAFLOW_ABORT_AGAIN_NS;
    must(tow_sim_run(
        it.flow.ground.sim,
        &(tow_sim_run_options_t){
            .until_ns = tow_sim_now_ns(it.flow.ground.sim) + 2 * round_ns}));
    for (uint64_t run = 1; run <= 200; run++)
        assert_true(it.told_counts[10 * run] >= 2);
    fake_finish_all(&it.fake);
    run_idle(&it.flow); /* It would not end if a timer were left. */
    assert_int_equal(it.flow.failed_count, 200);
    fake_flow_close(&it);
}

static void small_programs_run_inside_the_call_if_allowed(void **state)
{
    (void)state;
    for (int allowed = 0; allowed < 2; allowed++) {
        fake_flow_t it;
        fake_flow_open(&it, allowed ? INLINE : BESIDE);
        for (uint64_t i = 0; i < 2 * TOW_DATAFLOW_INLINE_RUN_COUNT; i++) {
            grant(&it.flow, 10 + i, SINGLE_ADD, 1);
            fake_finish_all(&it.fake);
            run_idle(&it.flow);
        }
        assert_int_equal(it.fake.inline_count,
                         allowed ? TOW_DATAFLOW_INLINE_RUN_COUNT : 0);
        /* Once it has been slow it is never trusted again. */
        const size_t before = it.fake.inline_count;
        grant(&it.flow, 100, SINGLE_ADD, 1);
        must(tow_sim_run(it.flow.ground.sim,
                         &(tow_sim_run_options_t){
                             .until_ns = tow_sim_now_ns(it.flow.ground.sim) +
                                         2 * TOW_DATAFLOW_INLINE_SLOW_NS}));
        fake_finish_all(&it.fake);
        grant(&it.flow, 101, SINGLE_ADD, 1);
        fake_finish_all(&it.fake);
        run_idle(&it.flow);
        assert_int_equal(it.fake.inline_count, before + (allowed ? 1 : 0));
        fake_flow_close(&it);
    }
}

TOW_TEST_MAIN(
    cmocka_unit_test(unawaited_runs_are_enqueued_ahead_of_their_data),
    cmocka_unit_test(what_finishes_in_one_turn_is_reported_once),
    cmocka_unit_test(an_argument_may_be_a_result_and_a_result_two),
    cmocka_unit_test(a_consumer_spares_objects_that_share_its_bytes),
    cmocka_unit_test(a_consumed_argument_is_gone),
    cmocka_unit_test(a_failed_step_names_its_origin_to_all_downstream),
    cmocka_unit_test(a_failed_step_ends_its_run),
    cmocka_unit_test(a_step_that_cannot_be_enqueued_fails_its_run),
    cmocka_unit_test(a_member_that_fails_alone_takes_its_gang_along),
    cmocka_unit_test(a_run_of_what_is_not_there_fails_alone),
    cmocka_unit_test(a_wrong_number_of_arguments_or_results_is_refused),
    cmocka_unit_test(an_aborted_run_fails_with_the_cause),
    cmocka_unit_test(clearing_drops_all_and_reports_nothing),
    cmocka_unit_test(a_program_may_go_while_it_runs),
    cmocka_unit_test(a_transfer_is_a_step),
    cmocka_unit_test(a_transfer_of_what_failed_tells_where_it_began),
    cmocka_unit_test(a_transfer_fails_with_node_and_worker),
    cmocka_unit_test(an_abort_reaches_transfers),
    cmocka_unit_test(clearing_drops_transfers),
    cmocka_unit_test(a_transfer_that_does_not_fit_is_refused),
    cmocka_unit_test(runs_beyond_the_bound_are_refused),
    cmocka_unit_test(a_run_takes_no_memory_from_the_heap),
    cmocka_unit_test(with_few_cores_runs_linger_but_not_all_of_a_turn),
    cmocka_unit_test(aborted_gangs_are_told_again_until_they_end),
    cmocka_unit_test(small_programs_run_inside_the_call_if_allowed))
