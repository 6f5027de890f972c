/* Time, order, inputs, memory, donation and poisoning, on one host. */
#include "device/sim/device_testing_impl.h"

#include "device/sim/tuning.h"

static const char pause_100[] = "towpath-cost 1\n"
                                "name pause\n"
                                "result u8[16]\n"
                                "duration 100\n";
static const char copy_program[] = "towpath-cost 1\n"
                                   "name copy\n"
                                   "argument u8[16]\n"
                                   "result u8[16]\n"
                                   "temporary 1000\n"
                                   "duration 100\n";

static void open_one(fixture_t *fixture)
{
    fixture_open(fixture,
                 (fixture_options_t){.host_count = 1, .device_count = 2});
}

static const int64_t device_0[] = {0};
static const int64_t device_1[] = {1};

/* -- Time and order -------------------------------------------------------- */

static void runs_of_a_device_follow_each_other(void **state)
{
    (void)state;
    fixture_t fixture;
    launch_t launches[3];
    open_one(&fixture);
    tow_executable_t *program =
        compile_for(&fixture, 0, pause_100, device_0, 1);
    int64_t start_ns = tow_sim_now_ns(fixture.sim);
    for (int i = 0; i < 3; i++) {
        launch_gang(&launches[i], program, (uint64_t)i);
        assert_int_equal(tow_buffer_state(launches[i].results[0]),
                         TOW_BUFFER_PENDING);
    }
    assert_false(launches[0].is_done);
    run_idle(&fixture);
    for (int i = 0; i < 3; i++) {
        expect_done_at(&launches[i], start_ns + (i + 1) * 105);
        assert_int_equal(tow_buffer_state(launches[i].results[0]),
                         TOW_BUFFER_READY);
        launch_end(&launches[i]);
    }
    tow_executable_release(program);
    fixture_close(&fixture);
}

static void devices_of_a_host_run_side_by_side(void **state)
{
    (void)state;
    fixture_t fixture;
    launch_t a, b;
    open_one(&fixture);
    tow_executable_t *on_0 = compile_for(&fixture, 0, pause_100, device_0, 1);
    tow_executable_t *on_1 = compile_for(&fixture, 0, pause_100, device_1, 1);
    int64_t start_ns = tow_sim_now_ns(fixture.sim);
    launch_gang(&a, on_0, 1);
    launch_gang(&b, on_1, 2);
    run_idle(&fixture);
    expect_done_at(&a, start_ns + 105);
    expect_done_at(&b, start_ns + 105);
    launch_end(&a);
    launch_end(&b);
    fixture_close(&fixture);
}

static int64_t time_of(fixture_t *fixture, const char *steps)
{
    char text[512];
    launch_t launch;
    snprintf(text, sizeof(text), "towpath-cost 1\nname timed\n%s", steps);
    tow_executable_t *program = compile_for(fixture, 0, text, device_0, 1);
    int64_t start_ns = tow_sim_now_ns(fixture->sim);
    launch_gang(&launch, program, 1);
    run_idle(fixture);
    assert_true(launch.is_done);
    tow_executable_release(program);
    return launch.done_ns - start_ns;
}

static void count_end(tow_run_t *run, tow_status_t take_status)
{
    (void)run;
    tow_status_release(take_status);
}

static void a_queue_has_a_bound(void **state)
{
    (void)state;
    fixture_t fixture;
    open_one(&fixture);
    tow_executable_t *program =
        compile_for(&fixture, 0, "towpath-cost 1\nname x\n", device_0, 1);
    tow_run_t *runs = test_calloc(TOW_SIM_QUEUED_RUNS_MAX + 1, sizeof(*runs));
    for (size_t i = 0; i <= TOW_SIM_QUEUED_RUNS_MAX; i++) {
        runs[i] = (tow_run_t){.executable = program, .done = count_end};
        tow_status_t status = tow_driver_run(driver_at(&fixture, 0), &runs[i]);
        if (i < TOW_SIM_QUEUED_RUNS_MAX)
            must(status);
        else
            expect_error(status, TOW_RESOURCE_EXHAUSTED,
                         "device 0: 65536 runs are queued");
    }
    run_idle(&fixture);
    must(tow_driver_run(driver_at(&fixture, 0), &runs[0]));
    run_idle(&fixture);
    assert_int_equal(tow_sim_device_counts(driver_at(&fixture, 0)).runs,
                     TOW_SIM_QUEUED_RUNS_MAX + 1);
    test_free(runs);
    fixture_close(&fixture);
}

static void the_slower_of_arithmetic_and_memory_decides(void **state)
{
    (void)state;
    fixture_t fixture;
    open_one(&fixture);
    assert_int_equal(time_of(&fixture, "compute flops 700 f32 bytes 300\n"),
                     705);
    assert_int_equal(time_of(&fixture, "compute flops 300 f32 bytes 700\n"),
                     705);
    assert_int_equal(
        time_of(&fixture, "compute bytes 7\ncompute flops 8 f32\n"), 20);
    assert_int_equal(time_of(&fixture, ""), 5);
    assert_int_equal(time_of(&fixture, "all_reduce 1000\n"), 5); /* alone */
    fixture_close(&fixture);
}

static void enormous_costs_do_not_wrap(void **state)
{
    (void)state;
    fixture_t fixture;
    open_one(&fixture);
    assert_int_equal(time_of(&fixture, "compute bytes 9223372036854775807\n"
                                       "compute bytes 9223372036854775807\n"),
                     TOW_SIM_NS_MAX);
    fixture_close(&fixture);
}

static void a_run_waits_for_its_upload(void **state)
{
    (void)state;
    fixture_t fixture;
    movement_t movement;
    launch_t launch;
    uint8_t bytes[16] = {1};
    open_one(&fixture);
    tow_executable_t *program =
        compile_for(&fixture, 0, copy_program, device_0, 1);
    int64_t start_ns = tow_sim_now_ns(fixture.sim);
    must(try_upload(driver_at(&fixture, 0), 0, bytes, 16, &movement));
    must(try_launch(&launch, program, 1, &movement.upload.buffer, 1));
    assert_int_equal(tow_buffer_state(movement.upload.buffer),
                     TOW_BUFFER_PENDING);
    run_idle(&fixture);
    expect_done_at(&launch, start_ns + 10 + 16 + 105);
    launch_end(&launch);
    tow_buffer_release(movement.upload.buffer);
    fixture_close(&fixture);
}

static void jitter_only_makes_longer(void **state)
{
    (void)state;
    fixture_t fixture;
    fixture_open(&fixture, (fixture_options_t){.host_count = 1,
                                               .device_count = 1,
                                               .seed = 3,
                                               .jitter_ppm = 100000});
    bool differs = false;
    int64_t first = time_of(&fixture, "duration 10000\n");
    for (int i = 0; i < 20; i++) {
        int64_t ns = time_of(&fixture, "duration 10000\n");
        assert_in_range(ns, 10005, 11005);
        differs |= ns != first;
    }
    assert_true(differs);
    fixture_close(&fixture);
}

/* -- Memory ---------------------------------------------------------------- */

static void memory_is_counted_to_the_byte(void **state)
{
    (void)state;
    fixture_t fixture;
    launch_t launch;
    tow_memory_stats_t stats;
    uint8_t bytes[16] = {0};
    open_one(&fixture);
    tow_buffer_t *input = upload_now(&fixture, 0, 0, bytes, 16);
    tow_executable_t *program =
        compile_for(&fixture, 0, copy_program, device_0, 1);
    assert_int_equal(bytes_in_use(&fixture, 0, 0), 16);
    must(try_launch(&launch, program, 1, &input, 1));
    assert_int_equal(bytes_in_use(&fixture, 0, 0), 16); /* It has not begun. */
    run_until(&fixture, tow_sim_now_ns(fixture.sim) + 50);
    assert_int_equal(bytes_in_use(&fixture, 0, 0), 1032);
    tow_buffer_release(input); /* The device still uses it. */
    assert_int_equal(bytes_in_use(&fixture, 0, 0), 1032);
    run_idle(&fixture);
    assert_int_equal(bytes_in_use(&fixture, 0, 0), 16);
    launch_end(&launch);
    must(tow_driver_memory_stats(driver_at(&fixture, 0), 0, &stats));
    assert_int_equal(stats.bytes_in_use, 0);
    assert_int_equal(stats.bytes_peak, 1032);
    assert_int_equal(stats.bytes_limit, 1000000);
    assert_int_equal(bytes_in_use(&fixture, 0, 1), 0);
    fixture_close(&fixture);
}

static void what_does_not_fit_is_refused_with_the_numbers(void **state)
{
    (void)state;
    fixture_t fixture;
    tow_buffer_t *most, *more;
    launch_t launch;
    open_one(&fixture);
    tow_driver_t *driver = driver_at(&fixture, 0);
    tow_shape_t shape = bytes_shape(999990);
    must(tow_driver_allocate(driver, 0, &shape, &most));
    shape = bytes_shape(11);
    expect_error(tow_driver_allocate(driver, 0, &shape, &more),
                 TOW_RESOURCE_EXHAUSTED,
                 "device 0: u8[11] needs 11 bytes; 10 of 1000000 are free");
    tow_executable_t *program =
        compile_for(&fixture, 0, pause_100, device_0, 1);
    must(try_launch(&launch, program, 1, NULL, 0));
    run_idle(&fixture);
    expect_error(launch.status, TOW_RESOURCE_EXHAUSTED,
                 "device 0, pause: result 0: device 0: u8[16]");
    launch.status = TOW_OK;
    launch_end(&launch);
    assert_int_equal(bytes_in_use(&fixture, 0, 0), 999990);
    tow_buffer_release(most);
    assert_int_equal(bytes_in_use(&fixture, 0, 0), 0);
    fixture_close(&fixture);
}

static void temporary_memory_that_does_not_fit_fails_the_run(void **state)
{
    (void)state;
    fixture_t fixture;
    tow_buffer_t *input;
    launch_t launch;
    open_one(&fixture);
    tow_shape_t shape = bytes_shape(16);
    must(tow_driver_allocate(driver_at(&fixture, 0), 0, &shape, &input));
    tow_executable_t *program =
        compile_for(&fixture, 0,
                    "towpath-cost 1\nname big\nargument u8[16]\nresult u8[8]\n"
                    "temporary 999977\n",
                    device_0, 1);
    must(try_launch(&launch, program, 1, &input, 1));
    run_idle(&fixture);
    assert_true(launch.is_done);
    assert_int_equal(tow_buffer_state(launch.results[0]), TOW_BUFFER_FAILED);
    expect_error(launch.status, TOW_RESOURCE_EXHAUSTED,
                 "device 0, big: device 0: temporary memory needs 999977 "
                 "bytes; 999976 of");
    launch.status = TOW_OK;
    launch_end(&launch);
    tow_buffer_release(input);
    assert_int_equal(bytes_in_use(&fixture, 0, 0), 0);
    fixture_close(&fixture);
}

/* -- Donation -------------------------------------------------------------- */

static const char update[] = "towpath-cost 1\n"
                             "name update\n"
                             "argument u8[1000]\n"
                             "result u8[1000] alias 0\n"
                             "duration 100\n";

static void a_donated_argument_gives_its_memory(void **state)
{
    (void)state;
    fixture_t fixture;
    launch_t launch, again;
    tow_buffer_t *input;
    movement_t movement;
    uint8_t bytes[1000];
    open_one(&fixture);
    tow_shape_t shape = bytes_shape(1000);
    must(tow_driver_allocate(driver_at(&fixture, 0), 0, &shape, &input));
    tow_executable_t *program = compile_for(&fixture, 0, update, device_0, 1);
    must(try_launch(&launch, program, 1, &input, 1));
    assert_int_equal(tow_buffer_state(input), TOW_BUFFER_DONATED);
    assert_int_equal(bytes_in_use(&fixture, 0, 0), 1000);
    expect_error(try_launch(&again, program, 2, &input, 1),
                 TOW_FAILED_PRECONDITION, "donated");
    expect_error(try_download(input, bytes, 1000, &movement),
                 TOW_FAILED_PRECONDITION, "donated");
    run_idle(&fixture);
    tow_buffer_release(input);
    assert_int_equal(bytes_in_use(&fixture, 0, 0), 1000);
    launch_end(&launch);
    assert_int_equal(bytes_in_use(&fixture, 0, 0), 0);
    fixture_close(&fixture);
}

static void a_kept_argument_is_copied(void **state)
{
    (void)state;
    fixture_t fixture;
    launch_t launch;
    tow_buffer_t *input;
    const size_t kept[] = {0};
    open_one(&fixture);
    tow_shape_t shape = bytes_shape(1000);
    must(tow_driver_allocate(driver_at(&fixture, 0), 0, &shape, &input));
    tow_executable_t *program = compile_for(&fixture, 0, update, device_0, 1);
    launch = (launch_t){.run = {.executable = program,
                                .arguments = &input,
                                .argument_count = 1,
                                .non_donatable_arguments = kept,
                                .non_donatable_argument_count = 1,
                                .results = launch.results,
                                .done = launch_done},
                        .result_count = 1,
                        .env = driver_at(&fixture, 0)->env};
    must(tow_driver_run(driver_at(&fixture, 0), &launch.run));
    run_idle(&fixture);
    assert_int_equal(tow_buffer_state(input), TOW_BUFFER_READY);
    assert_int_equal(bytes_in_use(&fixture, 0, 0), 2000);
    launch_end(&launch);
    tow_buffer_release(input);
    fixture_close(&fixture);
}

static void what_must_be_reused_cannot_be_kept(void **state)
{
    (void)state;
    fixture_t fixture;
    tow_buffer_t *input, *result;
    const size_t kept[] = {0};
    open_one(&fixture);
    tow_shape_t shape = bytes_shape(8);
    must(tow_driver_allocate(driver_at(&fixture, 0), 0, &shape, &input));
    tow_executable_t *program =
        compile_for(&fixture, 0,
                    "towpath-cost 1\nname strict\nargument u8[8]\n"
                    "result u8[8] must_alias 0\n",
                    device_0, 1);
    tow_run_t run = {.executable = program,
                     .arguments = &input,
                     .argument_count = 1,
                     .non_donatable_arguments = kept,
                     .non_donatable_argument_count = 1,
                     .results = &result,
                     .done = launch_done};
    expect_error(tow_driver_run(driver_at(&fixture, 0), &run),
                 TOW_INVALID_ARGUMENT,
                 "strict: argument 0 must not be donated");
    tow_buffer_release(input);
    assert_int_equal(bytes_in_use(&fixture, 0, 0), 0);
    fixture_close(&fixture);
}

static void a_donation_waits_for_readers(void **state)
{
    (void)state;
    fixture_t fixture;
    launch_t launch;
    movement_t movement;
    uint8_t bytes[1000] = {7};
    uint8_t back[1000];
    open_one(&fixture);
    tow_buffer_t *input = upload_now(&fixture, 0, 0, bytes, 1000);
    tow_executable_t *program = compile_for(&fixture, 0, update, device_0, 1);
    int64_t start_ns = tow_sim_now_ns(fixture.sim);
    must(try_download(input, back, sizeof(back), &movement));
    must(try_launch(&launch, program, 1, &input, 1));
    run_idle(&fixture);
    assert_true(movement.is_done);
    must(movement.status);
    assert_memory_equal(bytes, back, sizeof(back));
    expect_done_at(&launch, start_ns + 1010 + 105);
    launch_end(&launch);
    tow_buffer_release(input);
    fixture_close(&fixture);
}

/* -- Poison ---------------------------------------------------------------- */

static void an_error_flows_to_all_that_follows(void **state)
{
    (void)state;
    fixture_t fixture;
    launch_t first, second, third;
    movement_t movement;
    uint8_t bytes[16];
    open_one(&fixture);
    tow_executable_t *pause = compile_for(&fixture, 0, pause_100, device_0, 1);
    tow_executable_t *copy =
        compile_for(&fixture, 0, copy_program, device_0, 1);
    launch_gang(&first, pause, 1);
    must(try_launch(&second, copy, 2, &first.results[0], 1));
    launch_gang(&third, pause, 3);
    must(try_download(second.results[0], bytes, 16, &movement));
    tow_status_t cause = TOW_ERROR(TOW_ABORTED, "the operator said so");
    tow_driver_abort(driver_at(&fixture, 0), 1, cause);
    tow_status_release(cause);
    assert_false(first.is_done);
    run_idle(&fixture);
    const char *words = "device 0, pause: the operator said so";
    expect_error(first.status, TOW_ABORTED, words);
    expect_error(second.status, TOW_ABORTED, words);
    expect_error(movement.status, TOW_ABORTED, words);
    expect_error(tow_buffer_error(second.results[0]), TOW_ABORTED, words);
    assert_int_equal(tow_buffer_state(second.results[0]), TOW_BUFFER_FAILED);
    must(third.status); /* Unrelated. */
    first.status = second.status = TOW_OK;
    launch_end(&first);
    launch_end(&second);
    launch_end(&third);
    assert_int_equal(bytes_in_use(&fixture, 0, 0), 0);
    fixture_close(&fixture);
}

static void aborting_what_is_not_there_is_harmless(void **state)
{
    (void)state;
    fixture_t fixture;
    open_one(&fixture);
    tow_status_t cause = TOW_ERROR(TOW_ABORTED, "nothing");
    tow_driver_abort(driver_at(&fixture, 0), 77, cause);
    tow_status_release(cause);
    run_idle(&fixture);
    fixture_close(&fixture);
}

/* -- Closing --------------------------------------------------------------- */

static void note_closed(void *context)
{
    bool *is_closed = context;
    *is_closed = true;
}

static void closing_cancels_and_waits_for_releases(void **state)
{
    (void)state;
    fixture_t fixture;
    launch_t launch;
    movement_t movement;
    uint8_t bytes[16] = {0};
    bool is_closed = false;
    open_one(&fixture);
    tow_driver_t *driver = driver_at(&fixture, 0);
    tow_executable_t *program =
        compile_for(&fixture, 0, pause_100, device_0, 1);
    launch_gang(&launch, program, 1);
    must(try_upload(driver, 1, bytes, 16, &movement));
    run_until(&fixture, tow_sim_now_ns(fixture.sim) + 1);
    fixture.hosts[0].driver = NULL;
    tow_driver_close(driver, (tow_closed_t){note_closed, &is_closed});
    expect_error(tow_driver_run(driver, &launch.run), TOW_FAILED_PRECONDITION,
                 "closing");
    run_idle(&fixture);
    expect_error(launch.status, TOW_CANCELLED, "closed");
    expect_error(movement.status, TOW_CANCELLED, "closed");
    launch.status = TOW_OK;
    assert_false(is_closed);
    launch_end(&launch);
    tow_buffer_release(movement.upload.buffer);
    tow_executable_release(program);
    assert_false(is_closed);
    run_idle(&fixture);
    assert_true(is_closed);
    assert_int_equal(tow_sim_fabric_counts(fixture.fabric).devices, 0);
    fixture_close(&fixture);
}

TOW_TEST_MAIN(
    cmocka_unit_test(runs_of_a_device_follow_each_other),
    cmocka_unit_test(devices_of_a_host_run_side_by_side),
    cmocka_unit_test(a_queue_has_a_bound),
    cmocka_unit_test(the_slower_of_arithmetic_and_memory_decides),
    cmocka_unit_test(enormous_costs_do_not_wrap),
    cmocka_unit_test(a_run_waits_for_its_upload),
    cmocka_unit_test(jitter_only_makes_longer),
    cmocka_unit_test(memory_is_counted_to_the_byte),
    cmocka_unit_test(what_does_not_fit_is_refused_with_the_numbers),
    cmocka_unit_test(temporary_memory_that_does_not_fit_fails_the_run),
    cmocka_unit_test(a_donated_argument_gives_its_memory),
    cmocka_unit_test(a_kept_argument_is_copied),
    cmocka_unit_test(what_must_be_reused_cannot_be_kept),
    cmocka_unit_test(a_donation_waits_for_readers),
    cmocka_unit_test(an_error_flows_to_all_that_follows),
    cmocka_unit_test(aborting_what_is_not_there_is_harmless),
    cmocka_unit_test(closing_cancels_and_waits_for_releases))
