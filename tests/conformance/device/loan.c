/* Bytes of buffers, lent in host memory. */
#include "world.h"

#include "base/alloc.h"

static const float ones[4] = {1, 1, 1, 1};

static tow_driver_t *open_lender(void)
{
    tow_driver_t *driver = world_open(1);
    world_require_of(driver, driver->ops->borrow != NULL,
                     "the driver lends no bytes");
    return driver;
}

static const float *lent(borrow_probe_t *probe, tow_buffer_t *buffer)
{
    expect_ok(probe_borrow(probe, buffer));
    outcome_expect(&probe->outcome, TOW_CODE_OK);
    assert_non_null(probe->borrow.bytes);
    return probe->borrow.bytes;
}

static void loan_shows_the_bytes_as_often_as_wanted(void **state)
{
    tow_driver_t *driver = open_lender();
    tow_buffer_t *buffer = uploaded(driver, 0, (float[]){1, 2, 3, 4});
    borrow_probe_t loans[3];
    for (int i = 0; i < 3; i++)
        expect_ok(probe_borrow(&loans[i], buffer));
    for (int i = 0; i < 3; i++) {
        outcome_expect(&loans[i].outcome, TOW_CODE_OK);
        const float *values = loans[i].borrow.bytes;
        assert_float_equal(values[0], 1, 0);
        assert_float_equal(values[3], 4, 0);
    }
    for (int i = 0; i < 3; i++)
        tow_borrow_give_back(driver, &loans[i].borrow);
    assert_int_equal(tow_buffer_state(buffer), TOW_BUFFER_READY);
    tow_buffer_release(buffer);
    world_close(driver);
}

static void loan_waits_for_the_producer(void **state)
{
    tow_driver_t *driver = open_lender();
    tow_executable_t *executable = compiled(driver, PROGRAM_ADD);
    tow_buffer_t *one = uploaded(driver, 0, ones);
    run_probe_t run = {.arguments = {one, one}};
    expect_ok(probe_run(&run, executable, 2));
    borrow_probe_t loan;
    const float *values = lent(&loan, run.results[0]);
    if (subject.computes) assert_float_equal(values[2], 2, 0);
    tow_borrow_give_back(driver, &loan.borrow);
    outcome_expect(&run.outcome, TOW_CODE_OK);
    tow_buffer_release(run.results[0]);
    tow_buffer_release(one);
    tow_executable_release(executable);
    world_close(driver);
}

static void loan_of_much_needs_no_copy_where_the_host_shares_it(void **state)
{
    tow_driver_t *driver = open_lender();
    const size_t size = 4u << 20;
    char *bytes = tow_calloc(1, size);
    for (size_t i = 0; i < size; i++)
        bytes[i] = (char)(i * 3);
    upload_probe_t upload = {0};
    expect_ok(probe_upload(&upload, driver, 0, "u8[4194304]", bytes));
    borrow_probe_t loan;
    const void *values = lent(&loan, upload.upload.buffer);
    if (subject.computes) assert_memory_equal(values, bytes, size);
    if (subject.lends_in_place) {
        void *address;
        expect_ok(tow_buffer_address(upload.upload.buffer, &address));
        assert_ptr_equal(address, values);
    }
    tow_borrow_give_back(driver, &loan.borrow);
    outcome_expect(&upload.outcome, TOW_CODE_OK);
    tow_buffer_release(upload.upload.buffer);
    tow_free(bytes);
    world_close(driver);
}

static void loan_of_nothing_works(void **state)
{
    tow_driver_t *driver = open_lender();
    upload_probe_t upload = {0};
    expect_ok(probe_upload(&upload, driver, 0, "f32[0]", ""));
    outcome_expect(&upload.outcome, TOW_CODE_OK);
    borrow_probe_t loan;
    expect_ok(probe_borrow(&loan, upload.upload.buffer));
    outcome_expect(&loan.outcome, TOW_CODE_OK);
    tow_borrow_give_back(driver, &loan.borrow);
    tow_buffer_release(upload.upload.buffer);
    world_close(driver);
}

/* The run waits, or works on a copy: either is right. */
static void run_that_consumes_leaves_what_is_lent(void **state)
{
    tow_driver_t *driver = open_lender();
    tow_executable_t *executable = compiled(driver, PROGRAM_DONATE);
    tow_buffer_t *one = uploaded(driver, 0, ones);
    tow_buffer_t *buffer = uploaded(driver, 0, (float[]){5, 5, 5, 5});
    borrow_probe_t loan;
    const float *values = lent(&loan, buffer);
    run_probe_t run = {.arguments = {buffer, one}};
    expect_ok(probe_run(&run, executable, 2));
    assert_int_equal(tow_buffer_state(buffer), TOW_BUFFER_DONATED);
    world_settle();
    assert_float_equal(values[0], 5, 0);
    assert_float_equal(values[3], 5, 0);
    tow_borrow_give_back(driver, &loan.borrow);
    outcome_expect(&run.outcome, TOW_CODE_OK);
    expect_values(run.results[0], 6);
    tow_buffer_release(run.results[0]);
    tow_buffer_release(buffer);
    tow_buffer_release(one);
    tow_executable_release(executable);
    world_close(driver);
}

/* Asked for before the run that consumes it, and before there is a value. */
static void loan_comes_before_a_later_run_that_consumes(void **state)
{
    tow_driver_t *driver = open_lender();
    tow_executable_t *adds = compiled(driver, PROGRAM_ADD);
    tow_executable_t *consumes = compiled(driver, PROGRAM_DONATE);
    tow_buffer_t *one = uploaded(driver, 0, ones);
    run_probe_t first = {.arguments = {one, one}};
    expect_ok(probe_run(&first, adds, 2));
    borrow_probe_t loan;
    expect_ok(probe_borrow(&loan, first.results[0]));
    run_probe_t second = {.arguments = {first.results[0], one}};
    expect_ok(probe_run(&second, consumes, 2));
    outcome_expect(&loan.outcome, TOW_CODE_OK);
    world_settle();
    const float *values = loan.borrow.bytes;
    if (subject.computes) assert_float_equal(values[1], 2, 0);
    tow_borrow_give_back(driver, &loan.borrow);
    outcome_expect(&second.outcome, TOW_CODE_OK);
    outcome_expect(&first.outcome, TOW_CODE_OK);
    expect_values(second.results[0], 3);
    tow_buffer_release(first.results[0]);
    tow_buffer_release(second.results[0]);
    tow_buffer_release(one);
    tow_executable_release(adds);
    tow_executable_release(consumes);
    world_close(driver);
}

static void loan_of_what_was_donated_is_refused(void **state)
{
    tow_driver_t *driver = open_lender();
    tow_executable_t *executable = compiled(driver, PROGRAM_DONATE);
    tow_buffer_t *one = uploaded(driver, 0, ones);
    tow_buffer_t *buffer = uploaded(driver, 0, ones);
    run_probe_t run = {.arguments = {buffer, one}};
    expect_ok(probe_run(&run, executable, 2));
    borrow_probe_t loan;
    expect_refusal(probe_borrow(&loan, buffer), TOW_FAILED_PRECONDITION,
                   "donated");
    outcome_expect(&run.outcome, TOW_CODE_OK);
    assert_int_equal(loan.outcome.done_count, 0);
    tow_buffer_release(run.results[0]);
    tow_buffer_release(buffer);
    tow_buffer_release(one);
    tow_executable_release(executable);
    world_close(driver);
}

static void loan_of_what_failed_tells_why(void **state)
{
    tow_driver_t *driver = open_lender();
    world_require_of(driver, driver->ops->upload_settle != NULL,
                     "the driver has no late uploads");
    upload_probe_t upload = {.upload = {.is_late = true}};
    expect_ok(probe_upload(&upload, driver, 0, "f32[4]", NULL));
    borrow_probe_t before;
    expect_ok(probe_borrow(&before, upload.upload.buffer));
    world_settle();
    assert_int_equal(before.outcome.done_count, 0);
    probe_settle(&upload, NULL, TOW_ERROR(TOW_UNAVAILABLE, "host 7 is gone"));
    WORLD_UNTIL(before.outcome.done_count > 0);
    expect_refusal(before.outcome.status, TOW_UNAVAILABLE, "host 7 is gone");
    borrow_probe_t after;
    expect_ok(probe_borrow(&after, upload.upload.buffer));
    WORLD_UNTIL(after.outcome.done_count > 0);
    expect_refusal(after.outcome.status, TOW_UNAVAILABLE, "host 7 is gone");
    outcome_expect(&upload.outcome, TOW_UNAVAILABLE);
    tow_buffer_release(upload.upload.buffer);
    world_close(driver);
}

static void close_waits_for_loans(void **state)
{
    tow_driver_t *driver = open_lender();
    tow_buffer_t *buffer = uploaded(driver, 0, ones);
    borrow_probe_t loan;
    const float *values = lent(&loan, buffer);
    world_begin_close(driver);
    world_settle();
    assert_false(world_is_closed());
    assert_float_equal(values[3], 1, 0);
    tow_borrow_give_back(driver, &loan.borrow);
    tow_buffer_release(buffer);
    world_end_close();
}

WORLD_SUITE(loan_suite, WORLD_CASE(loan_shows_the_bytes_as_often_as_wanted),
            WORLD_CASE(loan_waits_for_the_producer),
            WORLD_CASE(loan_of_much_needs_no_copy_where_the_host_shares_it),
            WORLD_CASE(loan_of_nothing_works),
            WORLD_CASE(run_that_consumes_leaves_what_is_lent),
            WORLD_CASE(loan_comes_before_a_later_run_that_consumes),
            WORLD_CASE(loan_of_what_was_donated_is_refused),
            WORLD_CASE(loan_of_what_failed_tells_why),
            WORLD_CASE(close_waits_for_loans));
