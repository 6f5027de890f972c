/* Results that are promised before their run starts. */
#include "client/client_impl.h"
#include "client/fixture_testing_impl.h"

/* A program of one argument and one result. */
typedef struct promise_fixture {
    fixture_t fixture;
    tow_slice_t *slice;
    tow_function_t *function;
    tow_program_t *program;
    tow_array_t *x;
    tow_array_t *promise;
    calls_t calls;
} promise_fixture_t;

static void open_promise(promise_fixture_t *it)
{
    *it = (promise_fixture_t){0};
    fixture_connect(&it->fixture);
    it->slice = open_slice(&it->fixture);
    it->function = compile(&it->fixture, it->slice);
    it->program = call_of(&it->fixture, it->function, it->slice);
    it->x = make_array(&it->fixture, it->slice);
    must(tow_program_promise(it->program, 0, &it->promise));
    tow_array_call_when_ready(it->promise, make_callback(&it->calls));
}

static void close_promise(promise_fixture_t *it)
{
    tow_array_release_locked(it->promise);
    tow_array_release_locked(it->x);
    tow_function_release_locked(it->function);
    tow_slice_release_locked(it->slice);
    fixture_close(&it->fixture);
}

static tow_status_t start(promise_fixture_t *it)
{
    return tow_program_start_promised(it->program, &it->x, 1, &it->promise, 1);
}

static void refused(tow_status_t take_status, tow_code_t code, const char *part)
{
    expect_error(take_status, code, part);
    tow_status_release(take_status);
}

static void a_promise_is_kept_by_its_run(void **state)
{
    (void)state;
    promise_fixture_t it;
    open_promise(&it);
    expect_no_message(&it.fixture);
    must(start(&it));
    const tow_msg_run_t *run = EXPECT(&it.fixture, RUN, run);
    assert_int_equal(run->first_result, it.promise->id);
    assert_int_equal(run->arguments[0], it.x->id);
    assert_int_equal(it.calls.count, 0);
    send_done(&it.fixture, run->run);
    assert_int_equal(it.calls.count, 1);
    assert_int_equal(it.calls.code, TOW_OK);
    close_promise(&it);
}

/* Between promise and run other results get ids. */
static void results_of_one_run_have_adjacent_ids(void **state)
{
    (void)state;
    promise_fixture_t it;
    open_promise(&it);
    tow_array_t *other;
    must(tow_program_start(it.program, &it.x, 1, &other, 1));
    const uint64_t first = EXPECT(&it.fixture, RUN, run)->first_result;
    must(start(&it));
    assert_int_equal(EXPECT(&it.fixture, RUN, run)->first_result, first + 1);
    tow_array_release_locked(other);
    close_promise(&it);
}

static void a_promise_cannot_be_used_before_its_run(void **state)
{
    (void)state;
    promise_fixture_t it;
    open_promise(&it);
    tow_array_t *y, *const sources[] = {it.promise, it.promise};
    const uint32_t shards[] = {0, 1};
    uint8_t bytes[16];
    tow_completion_t answer = {0};
    static const char part[] = "a call that is not complete";
    refused(tow_program_start(it.program, &it.promise, 1, &y, 1),
            TOW_FAILED_PRECONDITION, part);
    refused(tow_download_start(it.promise, 0, bytes, 16, &answer, NULL),
            TOW_FAILED_PRECONDITION, part);
    refused(tow_assemble_start(it.slice, sources, shards, &y),
            TOW_FAILED_PRECONDITION, part);
    refused(tow_copy_start(it.slice, it.promise, 0, &y),
            TOW_FAILED_PRECONDITION, part);
    expect_no_message(&it.fixture);
    tow_program_break_promise(it.promise, tow_status_bare(TOW_CANCELLED));
    close_promise(&it);
}

static void a_broken_promise_fails_and_the_controller_never_hears_of_it(
    void **state)
{
    (void)state;
    promise_fixture_t it;
    open_promise(&it);
    tow_program_break_promise(it.promise,
                              TOW_ERROR(TOW_CANCELLED, "abandoned"));
    soon(&it.fixture);
    assert_int_equal(it.calls.count, 1);
    assert_int_equal(it.calls.code, TOW_CANCELLED);
    tow_array_t *y;
    refused(tow_program_start(it.program, &it.promise, 1, &y, 1), TOW_CANCELLED,
            "abandoned");
    tow_array_release_locked(it.promise);
    soon(&it.fixture);
    expect_no_message(&it.fixture);
    must(tow_program_promise(it.program, 0, &it.promise));
    close_promise(&it);
}

static void a_run_that_does_not_start_leaves_its_promises(void **state)
{
    (void)state;
    promise_fixture_t it;
    open_promise(&it);
    refused(tow_program_start_promised(it.program, NULL, 0, &it.promise, 1),
            TOW_INVALID_ARGUMENT, "0 arguments");
    must(start(&it));
    send_failed(&it.fixture, EXPECT(&it.fixture, RUN, run)->run, TOW_INTERNAL,
                "device 1 caught fire");
    assert_int_equal(it.calls.code, TOW_INTERNAL);
    close_promise(&it);
}

static void a_promise_of_an_earlier_generation_is_not_kept(void **state)
{
    (void)state;
    promise_fixture_t it;
    open_promise(&it);
    fixture_disconnect(&it.fixture);
    assert_int_equal(it.calls.count, 0); /* Its caller breaks it. */
    tow_status_t status = start(&it);
    assert_int_equal(tow_status_code(status), TOW_UNAVAILABLE);
    tow_program_break_promise(it.promise, status);
    soon(&it.fixture);
    assert_int_equal(it.calls.code, TOW_UNAVAILABLE);
    close_promise(&it);
}

TOW_TEST_MAIN(cmocka_unit_test(a_promise_is_kept_by_its_run),
              cmocka_unit_test(results_of_one_run_have_adjacent_ids),
              cmocka_unit_test(a_promise_cannot_be_used_before_its_run),
              cmocka_unit_test(
                  a_broken_promise_fails_and_the_controller_never_hears_of_it),
              cmocka_unit_test(a_run_that_does_not_start_leaves_its_promises),
              cmocka_unit_test(a_promise_of_an_earlier_generation_is_not_kept))
