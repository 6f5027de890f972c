/* Compiling, options, loading on other hosts. */
#include "device/sim/device_testing_impl.h"

#define HEAD "towpath-cost 1\nname x\n"

static void open_two(fixture_t *fixture)
{
    fixture_open(fixture,
                 (fixture_options_t){.host_count = 2, .device_count = 2});
}

static void expect_refused(fixture_t *fixture, const char *text,
                           const options_bytes_t *options, const char *words)
{
    tow_executable_t *executable;
    expect_error(try_compile(fixture, 0, text, options, &executable),
                 TOW_INVALID_ARGUMENT, words);
    assert_int_equal(tow_sim_device_counts(driver_at(fixture, 0)).executables,
                     0);
}

static void without_options_the_first_device_does_it(void **state)
{
    (void)state;
    fixture_t fixture;
    tow_executable_t *executable;
    open_two(&fixture);
    must(try_compile(&fixture, 1, HEAD "compute flops 8 f32\n", NULL,
                     &executable));
    assert_int_equal(executable->local_device_count, 1);
    assert_int_equal(executable->local_devices[0], 0);
    assert_int_equal(executable->signature.replica_count, 1);
    assert_string_equal(executable->signature.name, "x");
    assert_true(executable->signature.flops > 7.5);
    fixture_close(&fixture);
}

static void devices_are_taken_in_the_order_of_the_assignment(void **state)
{
    (void)state;
    fixture_t fixture;
    const int64_t ids[] = {3, 1, 0, 2};
    open_two(&fixture);
    tow_executable_t *executable = compile_for(&fixture, 0, HEAD, ids, 4);
    assert_int_equal(executable->local_device_count, 2);
    assert_int_equal(executable->local_devices[0], 1);
    assert_int_equal(executable->local_devices[1], 0);
    tow_executable_release(executable);
    executable = compile_for(&fixture, 1, HEAD, ids, 4);
    assert_int_equal(executable->local_devices[0], 1);
    assert_int_equal(executable->local_devices[1], 0);
    fixture_close(&fixture);
}

static void a_program_for_others_is_there_to_be_shipped(void **state)
{
    (void)state;
    fixture_t fixture;
    launch_t launch;
    const int64_t theirs[] = {2, 3};
    void *bytes;
    size_t size;
    open_two(&fixture);
    tow_executable_t *executable =
        compile_for(&fixture, 0, HEAD "barrier\n", theirs, 2);
    assert_int_equal(executable->local_device_count, 0);
    expect_error(try_launch(&launch, executable, 1, NULL, 0),
                 TOW_FAILED_PRECONDITION, "none of this host's devices");
    must(tow_executable_serialize(executable, &bytes, &size));
    options_bytes_t options = assign_to(theirs, 2);
    compiled_t loaded = {.compile = {.program = {bytes, size},
                                     .options = {options.bytes, options.size},
                                     .done = compile_done}};
    must(tow_driver_load(driver_at(&fixture, 1), &loaded.compile));
    run_idle(&fixture);
    must(loaded.status);
    tow_free(bytes);
    assert_int_equal(loaded.executable->local_device_count, 2);
    launch_gang(&launch, loaded.executable, 1);
    run_idle(&fixture);
    assert_true(launch.is_done);
    must(launch.status);
    fixture_close(&fixture);
}

static void bad_programs_and_options_are_refused(void **state)
{
    (void)state;
    fixture_t fixture;
    const int64_t three[] = {0, 1, 2}, twice[] = {1, 1};
    open_two(&fixture);
    expect_refused(&fixture, "nonsense", NULL,
                   "line 1: the first line must be");
    expect_refused(
        &fixture, HEAD "compute flops 1 bf16\n", NULL,
        "cost program x: model toy has no rate for bf16; it knows: f32");
    options_bytes_t options = assign_to(three, 3);
    expect_refused(&fixture, HEAD "barrier group 2\n", &options,
                   "barrier among groups of 2, stride 1: 3 devices do not "
                   "divide into them");
    expect_refused(&fixture, HEAD "barrier group 4\n", &options, "3 devices");
    options = assign_to(twice, 2);
    expect_refused(&fixture, HEAD, &options, "device 1 is assigned twice");
    options.bytes[1] = 100; /* A length beyond the end. */
    expect_refused(&fixture, HEAD, &options, "not a CompileOptionsProto");
    options = assign_to(three, 3);
    options.bytes[14] = 2; /* Two replicas, and three devices. */
    expect_refused(&fixture, HEAD, &options,
                   "2 replicas of 1 partitions, and devices for 3 of 1");
    options =
        (options_bytes_t){.bytes = {3 << 3 | 2, 2, 4 << 3, 100}, .size = 4};
    expect_refused(&fixture, HEAD, &options,
                   "100 devices are wanted and none assigned; this host has 2");
    fixture_close(&fixture);
}

static void every_cut_of_the_options_is_survived(void **state)
{
    (void)state;
    fixture_t fixture;
    const int64_t ids[] = {0, 1, 2};
    open_two(&fixture);
    options_bytes_t whole = assign_to(ids, 3);
    for (size_t size = 1; size < whole.size; size++) {
        tow_executable_t *executable;
        options_bytes_t cut = whole;
        cut.size = size;
        expect_error(try_compile(&fixture, 0, HEAD, &cut, &executable),
                     TOW_INVALID_ARGUMENT, "compile options");
    }
    fixture_close(&fixture);
}

static void stablehlo_is_not_understood(void **state)
{
    (void)state;
    fixture_t fixture;
    open_two(&fixture);
    compiled_t compiled = {.compile = {.format = TOW_PROGRAM_MLIR,
                                       .program = {"module {}", 9},
                                       .done = compile_done}};
    expect_error(tow_driver_compile(driver_at(&fixture, 0), &compiled.compile),
                 TOW_UNIMPLEMENTED, "cost programs");
    fixture_close(&fixture);
}

/* One host from creation to crash, with one allocation that fails. */
static tow_exhaust_result_t live(void *context)
{
    fixture_t *fixture = context;
    tow_driver_t *driver;
    tow_sim_device_options_t options = {
        .model = &fixture->model, .device_count = 3, .first_id = 100};
    tow_env_t *env = driver_at(fixture, 0)->env;
    tow_status_t status = tow_sim_device_driver_create(env, &options, &driver);
    if (status != TOW_OK) {
        tow_status_release(status);
        return TOW_EXHAUST_FAILED;
    }
    const char text[] = HEAD "argument u8[8]\nresult u8[8]\nbarrier\n";
    compiled_t compiled = {.compile = {.format = TOW_PROGRAM_COST,
                                       .program = {text, strlen(text)},
                                       .done = compile_done}};
    tow_shape_t shape = bytes_shape(8);
    tow_buffer_t *buffer = NULL;
    launch_t launch = {0};
    status = tow_driver_compile(driver, &compiled.compile);
    if (status == TOW_OK) {
        run_idle(fixture);
        status = compiled.status;
    }
    if (status == TOW_OK)
        status = tow_driver_allocate(driver, 0, &shape, &buffer);
    if (status == TOW_OK)
        status = try_launch(&launch, compiled.executable, 1, &buffer, 1);
    if (status == TOW_OK) {
        run_idle(fixture);
        status = launch.status;
    }
    tow_sim_device_driver_crash(driver); /* Frees everything. */
    bool is_good = status == TOW_OK;
    tow_status_release(status);
    return is_good ? TOW_EXHAUST_SUCCEEDED : TOW_EXHAUST_FAILED;
}

static void without_memory_nothing_leaks(void **state)
{
    (void)state;
    fixture_t fixture;
    open_two(&fixture);
    /* Once without failures, so that the fixture has allocated its memory. */
    assert_int_equal(live(&fixture), TOW_EXHAUST_SUCCEEDED);
    assert_true(tow_test_exhaust(live, &fixture) > 10);
    fixture_close(&fixture);
}

TOW_TEST_MAIN(
    cmocka_unit_test(without_options_the_first_device_does_it),
    cmocka_unit_test(devices_are_taken_in_the_order_of_the_assignment),
    cmocka_unit_test(a_program_for_others_is_there_to_be_shipped),
    cmocka_unit_test(bad_programs_and_options_are_refused),
    cmocka_unit_test(every_cut_of_the_options_is_survived),
    cmocka_unit_test(stablehlo_is_not_understood),
    cmocka_unit_test(without_memory_nothing_leaks))
