/* Runs that are granted in pieces: on a driver that computes values, so that
 * the results of pieces can be compared with those of whole runs. */
#include "dataflow/calc_driver_testing_impl.h"

#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/random.h"
#include "dataflow/dataflow_testing_impl.h"

#define STEPS_MAX     24
#define ARGUMENTS_MAX 3
#define SLOTS_MAX     (STEPS_MAX + ARGUMENTS_MAX)
#define RESULTS_MAX   4
#define OBJECTS_MAX   4096
#define RUNS_MAX      256

enum {
    ONE = 101, /* f(a) */
    TWO,       /* f(a, b) */
    UPDATE,    /* f(a), donates a */
    MERGE,     /* f(a, b), donates a */
    FAILS,
    FUNCTION_END,
};

/* A program, with the storage of its lowered form. */
typedef struct program {
    uint32_t argument_count, step_count, result_count;
    bool donated[ARGUMENTS_MAX]; /* by the caller */
    bool consumed[ARGUMENTS_MAX];
    tow_lowered_step_t steps[STEPS_MAX];
    uint32_t inputs[STEPS_MAX][CALC_ARGUMENT_MAX];
    uint32_t freed[STEPS_MAX][CALC_ARGUMENT_MAX + 1];
    uint32_t kept[STEPS_MAX];
    uint32_t results[RESULTS_MAX];
} program_t;

typedef struct fixture {
    device_fixture_t devices;
    calc_driver_t calc;
    calc_function_t functions[FUNCTION_END - ONE];
    tow_shard_store_t *shard_store;
    tow_dataflow_t *dataflow;
    uint64_t next_gang;
    uint64_t succeeded[RUNS_MAX];
    size_t succeeded_count, failed_count, early_count;
    uint64_t failed_run;
    char failed_text[256];
    uint32_t progress[RUNS_MAX]; /* by run; the last */
    size_t progress_count;
    tow_device_time_t time; /* of all reports */
} fixture_t;

/* -- Programs -------------------------------------------------------------- */

static bool takes_two(uint64_t function)
{
    return function == TWO || function == MERGE;
}

static bool is_result(const program_t *program, uint32_t slot)
{
    for (uint32_t i = 0; i < program->result_count; i++)
        if (program->results[i] == slot) return true;
    return false;
}

/* TOW_SLOTS_MAX: not used. */
static uint32_t last_use(const program_t *program, uint32_t slot)
{
    for (uint32_t s = program->step_count; s-- > 0;)
        for (size_t i = 0; i < program->steps[s].input_count; i++)
            if (program->inputs[s][i] == slot) return s;
    return TOW_SLOTS_MAX;
}

static bool may_donate(const program_t *program, uint32_t step)
{
    const uint32_t slot = program->inputs[step][0];
    return last_use(program, slot) == step && !is_result(program, slot) &&
           (slot >= program->argument_count || program->donated[slot]) &&
           (program->steps[step].input_count == 1 ||
            program->inputs[step][1] != slot);
}

static void add_freed(program_t *program, uint32_t step, uint32_t slot)
{
    tow_lowered_step_t *lowered = &program->steps[step];
    for (size_t i = 0; i < lowered->freed_count; i++)
        if (program->freed[step][i] == slot) return;
    program->freed[step][lowered->freed_count++] = slot;
}

/* As lowering does. */
static void list_kept_and_freed(program_t *program, uint32_t step)
{
    tow_lowered_step_t *lowered = &program->steps[step];
    const uint64_t function = lowered->executable.value;
    const bool donates = function == UPDATE || function == MERGE;
    const bool may = may_donate(program, step);
    if (donates && !may) lowered->non_donatable_count = 1;
    for (size_t i = 0; i < lowered->input_count; i++) {
        const uint32_t slot = program->inputs[step][i];
        if (slot < program->argument_count) {
            if (i > 0 || !donates || !may) continue;
            program->consumed[slot] = true;
        } else if (last_use(program, slot) != step ||
                   is_result(program, slot)) {
            continue;
        }
        add_freed(program, step, slot);
    }
    if (last_use(program, lowered->first_output) == TOW_SLOTS_MAX &&
        !is_result(program, lowered->first_output))
        add_freed(program, step, lowered->first_output);
}

static void add_step(program_t *program, uint64_t function, uint32_t a,
                     uint32_t b)
{
    const uint32_t step = program->step_count++;
    program->inputs[step][0] = a;
    program->inputs[step][1] = b;
    program->steps[step] =
        (tow_lowered_step_t){.executable = {function},
                             .inputs = program->inputs[step],
                             .input_count = takes_two(function) ? 2 : 1,
                             .first_output = program->argument_count + step,
                             .output_count = 1,
                             .freed = program->freed[step],
                             .non_donatable = &program->kept[step],
                             .node = step + 1,
                             .index = step};
}

static void load(fixture_t *fixture, uint64_t key, program_t *program)
{
    for (uint32_t i = 0; i < program->step_count; i++)
        list_kept_and_freed(program, i);
    const tow_lowered_t lowered = {.slot_count = program->argument_count +
                                                 program->step_count,
                                   .argument_count = program->argument_count,
                                   .results = program->results,
                                   .result_count = program->result_count,
                                   .steps = program->steps,
                                   .step_count = program->step_count,
                                   .step_count_all = program->step_count};
    device_fixture_add_program(fixture->dataflow, key, &lowered);
}

/* argument -> f -> f ... -> result */
static void make_chain(program_t *program, uint32_t count)
{
    *program = (program_t){.argument_count = 1};
    for (uint32_t i = 0; i < count; i++)
        add_step(program, ONE, i, 0);
    program->results[program->result_count++] = count;
}

static void make_random(program_t *program, tow_random_t *random)
{
    *program = (program_t){0};
    program->argument_count = 1 + (uint32_t)tow_random_below(random, 3);
    for (uint32_t i = 0; i < program->argument_count; i++)
        program->donated[i] = tow_random_below(random, 3) == 0;
    const uint32_t count = 1 + (uint32_t)tow_random_below(random, STEPS_MAX);
    for (uint32_t i = 0; i < count; i++) {
        const uint32_t slots = program->argument_count + i;
        add_step(program, ONE + tow_random_below(random, 4),
                 (uint32_t)tow_random_below(random, slots),
                 (uint32_t)tow_random_below(random, slots));
    }
    program->result_count = 1 + (uint32_t)tow_random_below(random, RESULTS_MAX);
    for (uint32_t i = 0; i < program->result_count; i++)
        program->results[i] =
            (uint32_t)tow_random_below(random, program->argument_count + count);
}

/* -- The fixture ----------------------------------------------------------- */

static void on_finished(void *context, const tow_finished_runs_t *finished)
{
    fixture_t *fixture = context;
    for (size_t i = 0; i < finished->run_count; i++) {
        tow_device_time_merge(&fixture->time, &finished->times[i]);
        fixture->succeeded[fixture->succeeded_count++] = finished->runs[i];
    }
    for (size_t i = 0; i < finished->failure_count; i++) {
        tow_device_time_merge(&fixture->time, &finished->failures[i].time);
        fixture->early_count += finished->failures[i].is_early;
        fixture->failed_count += !finished->failures[i].is_early;
        fixture->failed_run = finished->failures[i].run;
        snprintf(fixture->failed_text, sizeof(fixture->failed_text), "%s",
                 tow_status_message(finished->failures[i].cause));
    }
    for (size_t i = 0; i < finished->progress_count; i++) {
        const tow_run_progress_t *progress = &finished->progress[i];
        assert_true(progress->step_end > fixture->progress[progress->run]);
        fixture->progress[progress->run] = progress->step_end;
        tow_device_time_merge(&fixture->time, &progress->time);
        fixture->progress_count++;
    }
}

static void fixture_open(fixture_t *fixture)
{
    *fixture = (fixture_t){.next_gang = 1};
    device_fixture_open_bare(&fixture->devices);
    calc_open(&fixture->calc, fixture->devices.env);
    must(tow_shard_store_create(
        &(tow_shard_store_options_t){.shard_count_max = 1},
        &fixture->shard_store));
    must(tow_dataflow_create(
        &(tow_dataflow_options_t){.driver = &fixture->calc.base,
                                  .shard_store = fixture->shard_store,
                                  .finished = on_finished,
                                  .context = fixture},
        &fixture->dataflow));
    for (uint64_t key = ONE; key < FUNCTION_END; key++) {
        calc_function_t *function = &fixture->functions[key - ONE];
        calc_function_init(function, &fixture->calc, key,
                           takes_two(key) ? 2 : 1,
                           key == UPDATE || key == MERGE);
        function->fails = key == FAILS;
        must(tow_dataflow_add_executable(fixture->dataflow, key,
                                         &function->base));
    }
}

static void run_idle(fixture_t *fixture)
{
    device_fixture_run_idle(&fixture->devices);
    must(tow_dataflow_check(fixture->dataflow));
    must(tow_shard_store_check(fixture->shard_store));
}

static void finish_all(fixture_t *fixture)
{
    calc_advance_all(&fixture->calc);
    run_idle(fixture);
}

/* Checks that everything has been released. */
static void fixture_close(fixture_t *fixture)
{
    finish_all(fixture);
    assert_true(tow_dataflow_is_quiet(fixture->dataflow));
    tow_dataflow_destroy(fixture->dataflow);
    tow_shard_store_destroy(fixture->shard_store);
    for (size_t i = 0; i < TOW_COUNT_OF(fixture->functions); i++)
        assert_int_equal(fixture->functions[i].reference_count, 0);
    calc_close(&fixture->calc);
    tow_sim_destroy(fixture->devices.sim);
}

static void put(fixture_t *fixture, uint64_t key, uint64_t value)
{
    calc_buffer_t *buffer = calc_buffer_make(&fixture->calc);
    tow_buffer_t *shard = &buffer->base;
    buffer->value = value;
    buffer->state = TOW_BUFFER_READY;
    must(tow_shard_store_put(fixture->shard_store, key,
                             &(tow_shard_list_t){.first = &shard, .count = 1}));
}

static void expect_object(const fixture_t *fixture, uint64_t key,
                          uint64_t value)
{
    const tow_shard_store_object_t *object =
        tow_shard_store_find(fixture->shard_store, key);
    assert_non_null(object);
    assert_int_equal(object->shard_count, 1);
    assert_true(((calc_buffer_t *)object->shards[0])->value == value);
}

static uint64_t chain_value(uint64_t value, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++)
        value = calc_value(ONE, &value, 1);
    return value;
}

/* A run of program 1 over object 1; its result is object 1000 * run. */
static tow_status_t try_piece(fixture_t *fixture, uint64_t run, uint32_t first,
                              uint32_t end)
{
    const uint64_t argument = 1;
    const tow_run_grant_t grant = {.run = run,
                                   .program = 1,
                                   .arguments = &argument,
                                   .argument_count = first == 0 ? 1 : 0,
                                   .first_result = 1000 * run,
                                   .first_gang = fixture->next_gang - first,
                                   .first_step = first,
                                   .step_end = end};
    fixture->next_gang += STEPS_MAX;
    return tow_dataflow_grant(fixture->dataflow, &grant);
}

static void grant_piece(fixture_t *fixture, uint64_t run, uint32_t first,
                        uint32_t end)
{
    must(try_piece(fixture, run, first, end));
    must(tow_dataflow_check(fixture->dataflow));
}

static void fixture_open_chain(fixture_t *fixture, uint32_t count)
{
    program_t program;
    fixture_open(fixture);
    make_chain(&program, count);
    load(fixture, 1, &program);
    put(fixture, 1, 7);
}

static void expect_failure(const fixture_t *fixture, uint64_t run,
                           const char *part)
{
    assert_int_equal(fixture->failed_run, run);
    if (strstr(fixture->failed_text, part) == NULL)
        fail_msg("'%s' has no '%s'", fixture->failed_text, part);
}

static void abort_run(fixture_t *fixture, uint64_t run)
{
    tow_status_t cause = TOW_ERROR(TOW_CANCELLED, "nobody wants it");
    tow_dataflow_abort(fixture->dataflow, run, cause);
    tow_status_release(cause);
    must(tow_dataflow_check(fixture->dataflow));
}

/* -- Pieces ---------------------------------------------------------------- */

static void pieces_of_two_runs_interleave(void **state)
{
    (void)state;
    fixture_t fixture;
    fixture_open_chain(&fixture, 6);
    grant_piece(&fixture, 1, 0, 2);
    grant_piece(&fixture, 2, 0, 1);
    grant_piece(&fixture, 1, 2, 5);
    grant_piece(&fixture, 3, 0, 0); /* whole */
    grant_piece(&fixture, 2, 1, 6);
    assert_int_equal(tow_dataflow_stats(fixture.dataflow).in_piece_count, 2);
    grant_piece(&fixture, 1, 5, 0);
    finish_all(&fixture);
    assert_int_equal(fixture.succeeded_count, 3);
    for (uint64_t run = 1; run <= 3; run++)
        expect_object(&fixture, 1000 * run, chain_value(7, 6));
    fixture_close(&fixture);
}

static void a_piece_is_reported_when_its_steps_have_ended(void **state)
{
    (void)state;
    fixture_t fixture;
    fixture_open_chain(&fixture, 6);
    grant_piece(&fixture, 1, 0, 2);
    grant_piece(&fixture, 1, 2, 4);
    calc_advance(&fixture.calc, 1);
    run_idle(&fixture);
    assert_int_equal(fixture.progress_count, 0);
    calc_advance(&fixture.calc, 1);
    run_idle(&fixture);
    assert_int_equal(fixture.progress[1], 2);
    assert_int_equal(tow_dataflow_progress(fixture.dataflow, 1), 2);
    grant_piece(&fixture, 1, 4, 5);
    calc_advance(&fixture.calc, 3); /* Two pieces end: one report. */
    run_idle(&fixture);
    assert_int_equal(fixture.progress[1], 5);
    assert_int_equal(fixture.progress_count, 2);
    assert_null(tow_shard_store_find(fixture.shard_store, 1000));
    assert_true(tow_dataflow_has_run(fixture.dataflow, 1));
    grant_piece(&fixture, 1, 5, 0);
    assert_non_null(tow_shard_store_find(fixture.shard_store, 1000));
    finish_all(&fixture);
    assert_int_equal(fixture.progress_count, 2); /* The last is the run. */
    assert_int_equal(fixture.succeeded_count, 1);
    fixture_close(&fixture);
}

static void expect_time(const fixture_t *fixture, uint64_t step_count)
{
    assert_int_equal(fixture->time.busy_ns, step_count * CALC_BUSY_NS);
    assert_int_equal(fixture->time.wait_ns, step_count * CALC_WAIT_NS);
}

static void device_time_is_reported_with_progress(void **state)
{
    (void)state;
    fixture_t fixture;
    fixture_open_chain(&fixture, 6);
    grant_piece(&fixture, 1, 0, 2);
    grant_piece(&fixture, 1, 2, 4);
    calc_advance(&fixture.calc, 1);
    run_idle(&fixture);
    expect_time(&fixture, 0);
    calc_advance(&fixture.calc, 2);
    run_idle(&fixture);
    expect_time(&fixture, 3); /* of all steps that have ended */
    assert_int_equal(fixture.time.longest_ns,
                     3 * (CALC_BUSY_NS + CALC_WAIT_NS));
    calc_advance(&fixture.calc, 1);
    run_idle(&fixture);
    expect_time(&fixture, 4);
    grant_piece(&fixture, 1, 4, 0);
    finish_all(&fixture);
    assert_int_equal(fixture.succeeded_count, 1);
    expect_time(&fixture, 6);
    assert_int_equal(tow_dataflow_stats(fixture.dataflow).device_ns,
                     fixture.time.busy_ns);
    fixture_close(&fixture);
}

static void a_failure_has_the_device_time_since_the_last_progress(void **state)
{
    (void)state;
    fixture_t fixture;
    fixture_open_chain(&fixture, 6);
    grant_piece(&fixture, 1, 0, 2);
    finish_all(&fixture);
    expect_time(&fixture, 2);
    grant_piece(&fixture, 1, 2, 5);
    calc_advance(&fixture.calc, 1);
    run_idle(&fixture);
    expect_time(&fixture, 2);
    tow_status_t cause = TOW_ERROR(TOW_CANCELLED, "enough");
    tow_dataflow_abort(fixture.dataflow, 1, cause);
    tow_status_release(cause);
    finish_all(&fixture);
    assert_int_equal(fixture.failed_count, 1);
    assert_int_equal(fixture.progress_count, 1);
    assert_int_equal(fixture.time.busy_ns,
                     tow_dataflow_stats(fixture.dataflow).device_ns);
    assert_true(fixture.time.busy_ns >= (uint64_t)3 * CALC_BUSY_NS);
    fixture_close(&fixture);
}

/* Steps 1 and 3 of 6 are this worker's. */
static void a_piece_without_steps_here_is_reported_at_once(void **state)
{
    (void)state;
    static const uint32_t inputs[] = {0, 1};
    const tow_lowered_step_t steps[] = {{.executable = {ONE},
                                         .inputs = inputs,
                                         .input_count = 1,
                                         .first_output = 1,
                                         .output_count = 1,
                                         .index = 1},
                                        {.executable = {ONE},
                                         .inputs = inputs + 1,
                                         .input_count = 1,
                                         .first_output = 2,
                                         .output_count = 1,
                                         .index = 3}};
    const uint32_t result = 2;
    fixture_t fixture;
    fixture_open(&fixture);
    device_fixture_add_program(fixture.dataflow, 1,
                               &(tow_lowered_t){.slot_count = 3,
                                                .argument_count = 1,
                                                .results = &result,
                                                .result_count = 1,
                                                .steps = steps,
                                                .step_count = 2,
                                                .step_count_all = 6});
    put(&fixture, 1, 7);
    grant_piece(&fixture, 1, 0, 1);
    run_idle(&fixture);
    assert_int_equal(fixture.progress[1], 1);
    grant_piece(&fixture, 1, 1, 2);
    grant_piece(&fixture, 1, 2, 3); /* after one that is under way */
    run_idle(&fixture);
    assert_int_equal(fixture.progress[1], 1);
    calc_advance(&fixture.calc, 1);
    run_idle(&fixture);
    assert_int_equal(fixture.progress[1], 3);
    grant_piece(&fixture, 1, 3, 5);
    finish_all(&fixture);
    assert_int_equal(fixture.progress[1], 5);
    grant_piece(&fixture, 1, 5, 6);
    run_idle(&fixture);
    assert_int_equal(fixture.succeeded_count, 1);
    expect_object(&fixture, 1000, chain_value(7, 2));
    fixture_close(&fixture);
}

static void a_run_keeps_its_arguments_between_pieces(void **state)
{
    (void)state;
    program_t program = {.argument_count = 2};
    fixture_t fixture;
    fixture_open(&fixture);
    add_step(&program, ONE, 0, 0);
    add_step(&program, TWO, 2, 1);
    program.results[program.result_count++] = 3;
    load(&fixture, 2, &program);
    put(&fixture, 1, 7);
    put(&fixture, 2, 8);
    const uint64_t arguments[] = {1, 2};
    tow_run_grant_t grant = {.run = 1,
                             .program = 2,
                             .arguments = arguments,
                             .argument_count = 2,
                             .first_result = 1000,
                             .first_gang = 1,
                             .step_end = 1};
    must(tow_dataflow_grant(fixture.dataflow, &grant));
    must(tow_dataflow_remove_program(fixture.dataflow, 2));
    tow_shard_store_remove(fixture.shard_store, 2);
    finish_all(&fixture);
    grant.first_gang = 10;
    grant.first_step = 1;
    grant.step_end = 0;
    grant.argument_count = 0;
    must(tow_dataflow_grant(fixture.dataflow, &grant));
    finish_all(&fixture);
    const uint64_t values[] = {chain_value(7, 1), 8};
    expect_object(&fixture, 1000, calc_value(TWO, values, 2));
    fixture_close(&fixture);
}

/* Run 1 needs object 1 in its second piece; run 2 consumes the object. */
static void another_run_does_not_destroy_an_argument_between_pieces(
    void **state)
{
    (void)state;
    program_t chain = {.argument_count = 1}, update = {.argument_count = 1};
    fixture_t fixture;
    fixture_open(&fixture);
    add_step(&chain, ONE, 0, 0);
    add_step(&chain, TWO, 1, 0);
    chain.results[chain.result_count++] = 2;
    load(&fixture, 1, &chain);
    update.donated[0] = true;
    add_step(&update, UPDATE, 0, 0);
    update.results[update.result_count++] = 1;
    load(&fixture, 2, &update);
    put(&fixture, 1, 7);
    const uint64_t argument = 1;
    grant_piece(&fixture, 1, 0, 1);
    must(tow_dataflow_grant(fixture.dataflow,
                            &(tow_run_grant_t){.run = 2,
                                               .program = 2,
                                               .arguments = &argument,
                                               .argument_count = 1,
                                               .first_result = 2000,
                                               .first_gang = 100}));
    finish_all(&fixture);
    assert_int_equal(fixture.calc.donated_count, 0);
    fixture.next_gang = 200;
    grant_piece(&fixture, 1, 1, 2);
    finish_all(&fixture);
    const uint64_t values[] = {chain_value(7, 1), 7};
    expect_object(&fixture, 1000, calc_value(TWO, values, 2));
    fixture_close(&fixture);
}

/* -- Failures -------------------------------------------------------------- */

static void an_abort_between_two_pieces_releases_everything(void **state)
{
    (void)state;
    fixture_t fixture;
    fixture_open_chain(&fixture, 6);
    grant_piece(&fixture, 1, 0, 2);
    finish_all(&fixture);
    assert_int_equal(fixture.calc.buffers.taken_count, 2);
    abort_run(&fixture, 1);
    run_idle(&fixture);
    expect_failure(&fixture, 1, "nobody wants it");
    assert_int_equal(fixture.calc.buffers.taken_count, 1); /* the argument */
    const tow_shard_store_object_t *object =
        tow_shard_store_find(fixture.shard_store, 1000);
    assert_int_equal(tow_status_code(object->error), TOW_CANCELLED);
    assert_true(tow_dataflow_is_quiet(fixture.dataflow));
    fixture_close(&fixture);
}

static void a_stale_piece_is_ignored(void **state)
{
    (void)state;
    fixture_t fixture;
    fixture_open_chain(&fixture, 6);
    grant_piece(&fixture, 1, 0, 2);
    abort_run(&fixture, 1); /* Its steps are under way. */
    grant_piece(&fixture, 1, 2, 4);
    finish_all(&fixture);
    grant_piece(&fixture, 1, 4, 0); /* It has ended. */
    grant_piece(&fixture, 2, 0, 0);
    finish_all(&fixture);
    assert_int_equal(tow_dataflow_stats(fixture.dataflow).stale_count, 2);
    assert_int_equal(fixture.failed_count, 1);
    assert_int_equal(fixture.succeeded_count, 1);
    fixture_close(&fixture);
}

static void a_gap_or_an_overlap_fails_that_run_alone(void **state)
{
    (void)state;
    static const uint32_t wrong[][2] = {{3, 5}, {1, 4}, {2, 7}, {2, 2}, {2, 1}};
    for (size_t i = 0; i < TOW_COUNT_OF(wrong); i++) {
        fixture_t fixture;
        fixture_open_chain(&fixture, 6);
        grant_piece(&fixture, 1, 0, 2);
        grant_piece(&fixture, 2, 0, 2);
        grant_piece(&fixture, 1, wrong[i][0], wrong[i][1]);
        finish_all(&fixture);
        expect_failure(&fixture, 1, "it stands at step 2 of 6");
        grant_piece(&fixture, 2, 2, 0);
        finish_all(&fixture);
        assert_int_equal(fixture.failed_count, 1);
        assert_int_equal(fixture.succeeded_count, 1);
        fixture_close(&fixture);
    }
}

static void a_first_piece_beyond_the_program_is_refused(void **state)
{
    (void)state;
    fixture_t fixture;
    fixture_open_chain(&fixture, 6);
    grant_piece(&fixture, 1, 0, 7);
    finish_all(&fixture);
    expect_failure(&fixture, 1, "steps 0 to 7 are granted");
    fixture.next_gang = 2; /* below the last */
    grant_piece(&fixture, 2, 0, 3);
    finish_all(&fixture);
    expect_failure(&fixture, 2, "is granted after gang");
    assert_int_equal(tow_status_code(try_piece(&fixture, 3, 0, 0)), TOW_OK);
    tow_status_t status = try_piece(&fixture, 3, 0, 2);
    assert_int_equal(tow_status_code(status), TOW_ALREADY_EXISTS);
    tow_status_release(status);
    finish_all(&fixture);
    assert_int_equal(fixture.succeeded_count, 1);
    fixture_close(&fixture);
}

static void a_piece_of_a_whole_run_fails_it(void **state)
{
    (void)state;
    fixture_t fixture;
    fixture_open_chain(&fixture, 6);
    grant_piece(&fixture, 1, 0, 0);
    grant_piece(&fixture, 1, 3, 0);
    finish_all(&fixture);
    expect_failure(&fixture, 1, "a second time");
    fixture_close(&fixture);
}

static void a_failed_step_ends_a_run_between_its_pieces(void **state)
{
    (void)state;
    program_t program = {.argument_count = 1};
    fixture_t fixture;
    fixture_open(&fixture);
    add_step(&program, FAILS, 0, 0);
    add_step(&program, ONE, 0, 0);
    add_step(&program, TWO, 1, 2);
    program.results[program.result_count++] = 3;
    load(&fixture, 1, &program);
    put(&fixture, 1, 7);
    grant_piece(&fixture, 1, 0, 2);
    calc_advance(&fixture.calc, 1);
    run_idle(&fixture);
    assert_int_equal(fixture.failed_count, 0); /* A step is under way. */
    assert_int_equal(fixture.early_count, 1);
    finish_all(&fixture);
    expect_failure(&fixture, 1, "run 1, node 1");
    assert_int_equal(fixture.progress_count, 0);
    assert_int_equal(fixture.calc.buffers.taken_count, 1);
    fixture_close(&fixture);
}

static void clearing_releases_runs_between_their_pieces(void **state)
{
    (void)state;
    fixture_t fixture;
    fixture_open_chain(&fixture, 6);
    grant_piece(&fixture, 1, 0, 2);
    finish_all(&fixture);
    grant_piece(&fixture, 2, 0, 2);
    tow_status_t cause = TOW_ERROR(TOW_UNAVAILABLE, "the controller is gone");
    tow_dataflow_clear(fixture.dataflow, cause);
    tow_status_release(cause);
    tow_shard_store_clear(fixture.shard_store);
    finish_all(&fixture);
    assert_true(tow_dataflow_is_quiet(fixture.dataflow));
    assert_int_equal(fixture.calc.buffers.taken_count, 0);
    assert_int_equal(fixture.failed_count + fixture.succeeded_count, 0);
    fixture_close(&fixture);
}

static void steps_beyond_the_bound_fail_their_run(void **state)
{
    (void)state;
    fixture_t fixture;
    fixture_open_chain(&fixture, 6);
    tow_dataflow_destroy(fixture.dataflow);
    for (size_t i = 0; i < TOW_COUNT_OF(fixture.functions); i++)
        fixture.functions[i].reference_count = 1;
    must(tow_dataflow_create(
        &(tow_dataflow_options_t){.driver = &fixture.calc.base,
                                  .shard_store = fixture.shard_store,
                                  .finished = on_finished,
                                  .context = &fixture,
                                  .step_count_max = 4},
        &fixture.dataflow));
    for (size_t i = 0; i < TOW_COUNT_OF(fixture.functions); i++)
        must(tow_dataflow_add_executable(fixture.dataflow, ONE + i,
                                         &fixture.functions[i].base));
    program_t program;
    make_chain(&program, 6);
    load(&fixture, 1, &program);
    grant_piece(&fixture, 1, 0, 3); /* Not all 6 at once: it fits. */
    grant_piece(&fixture, 2, 0, 2);
    finish_all(&fixture);
    expect_failure(&fixture, 2, "limit is 4");
    grant_piece(&fixture, 1, 3, 0);
    finish_all(&fixture);
    assert_int_equal(fixture.succeeded_count, 1);
    fixture_close(&fixture);
}

/* -- Exhausted memory ------------------------------------------------------ */

static bool grant_all_pieces(fixture_t *fixture)
{
    bool is_ok = true;
    for (uint32_t at = 0; at < 6; at += 2)
        for (uint64_t run = 1; run <= 2; run++) {
            tow_status_t status = try_piece(fixture, run, at, at + 2);
            is_ok &= status == TOW_OK;
            tow_status_release(status);
        }
    return is_ok;
}

/* Allocations fail only within the executor: the fixture needs its own. */
static void an_exhausted_worker_leaks_nothing(void **state)
{
    (void)state;
    bool has_failed = true;
    uint64_t nth = 0;
    for (; has_failed; nth++) {
        fixture_t fixture;
        fixture_open_chain(&fixture, 6);
        tow_alloc_fail_after(nth);
        const bool is_ok = grant_all_pieces(&fixture);
        has_failed = tow_alloc_has_failed();
        tow_alloc_fail_after(UINT64_MAX);
        finish_all(&fixture);
        if (!has_failed) assert_true(is_ok);
        if (is_ok)
            assert_int_equal(fixture.succeeded_count + fixture.failed_count, 2);
        if (!has_failed) assert_int_equal(fixture.succeeded_count, 2);
        fixture_close(&fixture);
    }
    assert_true(nth > 5);
}

/* After the first runs, pieces take nothing from the heap but their ends. */
static void scratches_are_used_again(void **state)
{
    (void)state;
    fixture_t fixture;
    fixture_open_chain(&fixture, 6);
    for (uint64_t run = 1; run <= 20; run++) {
        grant_piece(&fixture, run, 0, 3);
        grant_piece(&fixture, run, 3, 6);
        finish_all(&fixture);
    }
    assert_int_equal(fixture.succeeded_count, 20);
    fixture_close(&fixture);
}

/* -- Random programs, cut at random places --------------------------------- */

#define PROGRAMS     4
#define RUNS_AT_ONCE 6

/* A run that is partly granted, and the values that it must have. */
typedef struct cut_run {
    uint64_t run;
    const program_t *program;
    uint64_t program_key;
    uint64_t arguments[ARGUMENTS_MAX];
    uint64_t values[SLOTS_MAX];
    uint32_t next; /* step */
} cut_run_t;

typedef struct cut_fixture {
    fixture_t base;
    tow_random_t random;
    program_t programs[PROGRAMS];
    cut_run_t runs[RUNS_AT_ONCE]; /* run 0: none */
    uint64_t next_run, next_object;
    struct {
        uint64_t key, value;
    } expected[OBJECTS_MAX];
    size_t expected_count;
} cut_fixture_t;

static void evaluate(cut_run_t *run)
{
    const program_t *program = run->program;
    for (uint32_t i = 0; i < program->step_count; i++) {
        uint64_t values[CALC_ARGUMENT_MAX];
        const tow_lowered_step_t *step = &program->steps[i];
        for (size_t k = 0; k < step->input_count; k++)
            values[k] = run->values[program->inputs[i][k]];
        run->values[program->argument_count + i] =
            calc_value(step->executable.value, values, step->input_count);
    }
}

/* Arguments are objects of their own, sometimes shared with another run. */
static void choose_arguments(cut_fixture_t *cut, cut_run_t *run)
{
    for (uint32_t i = 0; i < run->program->argument_count; i++) {
        run->arguments[i] = cut->next_object++;
        run->values[i] = tow_random_next(&cut->random);
        put(&cut->base, run->arguments[i], run->values[i]);
    }
}

static void begin_run(cut_fixture_t *cut, cut_run_t *run)
{
    const uint64_t index = tow_random_below(&cut->random, PROGRAMS);
    *run = (cut_run_t){.run = cut->next_run++,
                       .program = &cut->programs[index],
                       .program_key = 1 + index};
    choose_arguments(cut, run);
    evaluate(run);
}

static uint64_t result_key(const cut_run_t *run, uint32_t result)
{
    return (UINT64_C(1) << 32) + run->run * RESULTS_MAX + result;
}

static void end_run(cut_fixture_t *cut, cut_run_t *run)
{
    for (uint32_t i = 0; i < run->program->result_count; i++) {
        cut->expected[cut->expected_count].key = result_key(run, i);
        cut->expected[cut->expected_count++].value =
            run->values[run->program->results[i]];
    }
    for (uint32_t i = 0; i < run->program->argument_count; i++)
        if (tow_random_below(&cut->random, 2) == 0)
            tow_shard_store_remove(cut->base.shard_store, run->arguments[i]);
    run->run = 0;
}

static void grant_next_piece(cut_fixture_t *cut, cut_run_t *run)
{
    const uint32_t all = run->program->step_count;
    const uint32_t end =
        run->next + 1 +
        (uint32_t)tow_random_below(&cut->random, all - run->next);
    const bool may_be_whole = tow_random_below(&cut->random, 2) == 0;
    const tow_run_grant_t grant = {
        .run = run->run,
        .program = run->program_key,
        .arguments = run->arguments,
        .argument_count = run->next == 0 ? run->program->argument_count : 0,
        .first_result = result_key(run, 0),
        .first_gang = cut->base.next_gang - run->next,
        .first_step = run->next,
        .step_end = end == all && may_be_whole ? 0 : end};
    must(tow_dataflow_grant(cut->base.dataflow, &grant));
    cut->base.next_gang += end - run->next;
    run->next = end;
    if (end == all) end_run(cut, run);
}

static void expect_all(const cut_fixture_t *cut)
{
    assert_int_equal(cut->base.failed_count, 0);
    for (size_t i = 0; i < cut->expected_count; i++)
        expect_object(&cut->base, cut->expected[i].key, cut->expected[i].value);
}

static void open_random(cut_fixture_t *cut, uint64_t seed)
{
    *cut = (cut_fixture_t){.next_run = 1, .next_object = 1};
    fixture_open(&cut->base);
    tow_random_init(&cut->random, seed);
    for (uint64_t i = 0; i < PROGRAMS; i++) {
        make_random(&cut->programs[i], &cut->random);
        load(&cut->base, 1 + i, &cut->programs[i]);
    }
}

static void random_pieces_have_the_values_of_whole_runs(void **state)
{
    (void)state;
    static cut_fixture_t cut; /* large */
    for (uint64_t seed = 1; seed <= 60; seed++) {
        open_random(&cut, seed);
        for (int turn = 0; turn < 300; turn++) {
            cut_run_t *run =
                &cut.runs[tow_random_below(&cut.random, RUNS_AT_ONCE)];
            if (run->run == 0 && cut.next_run < RUNS_MAX) begin_run(&cut, run);
            if (run->run != 0) grant_next_piece(&cut, run);
            calc_advance(&cut.base.calc, tow_random_below(&cut.random, 8));
            run_idle(&cut.base);
        }
        for (size_t i = 0; i < RUNS_AT_ONCE; i++)
            while (cut.runs[i].run != 0)
                grant_next_piece(&cut, &cut.runs[i]);
        finish_all(&cut.base);
        expect_all(&cut);
        fixture_close(&cut.base);
    }
}

TOW_TEST_MAIN(
    cmocka_unit_test(pieces_of_two_runs_interleave),
    cmocka_unit_test(a_piece_is_reported_when_its_steps_have_ended),
    cmocka_unit_test(device_time_is_reported_with_progress),
    cmocka_unit_test(a_failure_has_the_device_time_since_the_last_progress),
    cmocka_unit_test(a_piece_without_steps_here_is_reported_at_once),
    cmocka_unit_test(a_run_keeps_its_arguments_between_pieces),
    cmocka_unit_test(another_run_does_not_destroy_an_argument_between_pieces),
    cmocka_unit_test(an_abort_between_two_pieces_releases_everything),
    cmocka_unit_test(a_stale_piece_is_ignored),
    cmocka_unit_test(a_gap_or_an_overlap_fails_that_run_alone),
    cmocka_unit_test(a_first_piece_beyond_the_program_is_refused),
    cmocka_unit_test(a_piece_of_a_whole_run_fails_it),
    cmocka_unit_test(a_failed_step_ends_a_run_between_its_pieces),
    cmocka_unit_test(clearing_releases_runs_between_their_pieces),
    cmocka_unit_test(steps_beyond_the_bound_fail_their_run),
    cmocka_unit_test(an_exhausted_worker_leaks_nothing),
    cmocka_unit_test(scratches_are_used_again),
    cmocka_unit_test(random_pieces_have_the_values_of_whole_runs))
