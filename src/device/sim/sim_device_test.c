/* The whole driver: in real time, and with many devices. */
#include "device/sim/device_testing_impl.h"

#include "device/sim/tuning.h"
#include "env/net/net.h"

static void a_driver_tells_what_it_is(void **state)
{
    (void)state;
    fixture_t fixture;
    tow_sim_model_t model;
    tow_driver_t *driver;
    fixture_open(&fixture,
                 (fixture_options_t){.host_count = 1, .device_count = 1});
    must(tow_sim_model_find("tpu_v4", &model));
    must(tow_sim_device_driver_create(
        driver_at(&fixture, 0)->env,
        &(tow_sim_device_options_t){
            .model = &model, .device_count = 2, .first_id = 2048},
        &driver));
    assert_true(driver->simulated);
    assert_string_equal(driver->name, "sim");
    assert_int_equal(driver->device_count, 2);
    assert_int_equal(driver->devices[1].id, 2049);
    assert_string_equal(driver->devices[1].kind, "TPU v4");
    assert_string_equal(driver->devices[1].name, "tpu_v4/2049");
    assert_int_equal(driver->devices[1].memory_bytes, (uint64_t)32 << 30);
    tow_sim_device_driver_crash(driver);
    tow_sim_device_driver_crash(NULL);
    expect_error(
        tow_sim_device_driver_create(
            driver_at(&fixture, 0)->env,
            &(tow_sim_device_options_t){
                .model = &model, .device_count = TOW_SIM_DEVICE_COUNT_MAX + 1},
            &driver),
        TOW_INVALID_ARGUMENT, "at most 65536");
    fixture_close(&fixture);
}

/* -- Real time ------------------------------------------------------------- */

typedef struct real {
    tow_security_t security;
    tow_net_t *net;
    tow_driver_t *driver;
    bool is_closed;
} real_t;

static void note_closed(void *context)
{
    bool *is_closed = context;
    *is_closed = true;
}

static void real_open(real_t *real, const tow_sim_device_options_t *options)
{
    *real = (real_t){.security.has_token = true};
    must(tow_net_create(&(tow_net_options_t){.name = "worker/1",
                                             .security = &real->security,
                                             .spin_ns = -1},
                        &real->net));
    must(tow_sim_device_driver_create(tow_net_env(real->net), options,
                                      &real->driver));
}

static void turn_until(real_t *real, const bool *wish)
{
    while (!*wish)
        tow_net_turn(real->net, TOW_TIME_NEVER);
}

static void real_close(real_t *real)
{
    tow_driver_close(real->driver,
                     (tow_closed_t){note_closed, &real->is_closed});
    turn_until(real, &real->is_closed);
    tow_net_destroy(real->net);
}

static tow_executable_t *real_compile(real_t *real, const char *text,
                                      const options_bytes_t *options)
{
    compiled_t compiled = {
        .compile = {.format = TOW_PROGRAM_COST,
                    .program = {text, strlen(text)},
                    .options = {options->bytes, options->size},
                    .done = compile_done}};
    must(tow_driver_compile(real->driver, &compiled.compile));
    turn_until(real, &compiled.is_done);
    must(compiled.status);
    return compiled.executable;
}

static void the_same_driver_runs_in_real_time(void **state)
{
    (void)state;
    real_t real;
    launch_t first, second;
    tow_sim_model_t model = toy_model();
    const int64_t ids[] = {0, 1};
    real_open(&real, &(tow_sim_device_options_t){
                         .model = &model, .device_count = 2, .speedup = 10});
    options_bytes_t options = assign_to(ids, 2);
    tow_executable_t *program =
        real_compile(&real,
                     "towpath-cost 1\nname step\nduration 20000000\n"
                     "all_reduce 1000\n",
                     &options);
    launch_gang(&first, program, 1);
    launch_gang(&second, program, 2);
    int64_t start_ns = tow_env_now_ns(tow_net_env(real.net));
    turn_until(&real, &second.is_done);
    assert_true(first.is_done);
    must(first.status);
    must(second.status);
    /* 2 ms each, and no upper limit: the machine may be busy. */
    assert_true(first.done_ns - start_ns >= 2000000);
    assert_true(second.done_ns - start_ns >= 4000000);
    assert_int_equal(first.run.time.longest_ns, second.run.time.longest_ns);
    tow_executable_release(program);
    real_close(&real);
}

static void a_blocked_gang_is_aborted_in_real_time(void **state)
{
    (void)state;
    real_t real;
    launch_t launch;
    tow_sim_model_t model = toy_model();
    const int64_t ids[] = {0, 99}; /* No fabric has device 99. */
    real_open(&real, &(tow_sim_device_options_t){.model = &model});
    options_bytes_t options = assign_to(ids, 2);
    tow_executable_t *program =
        real_compile(&real, "towpath-cost 1\nname stuck\nbarrier\n", &options);
    launch_gang(&launch, program, 1);
    for (int i = 0; i < 10; i++)
        tow_net_turn(real.net, 100000);
    assert_false(launch.is_done);
    tow_status_t cause = TOW_ERROR(TOW_ABORTED, "enough");
    tow_driver_abort(real.driver, 1, cause);
    tow_status_release(cause);
    turn_until(&real, &launch.is_done);
    expect_error(launch.status, TOW_ABORTED, "device 0, stuck: enough");
    tow_executable_release(program);
    real_close(&real);
}

/* -- Scale ----------------------------------------------------------------- */

#define MANY      2048
#define RUN_COUNT 10

/* Replicas on devices 0 to MANY - 1. */
static tow_bytes_t assign_many(uint8_t *room, size_t capacity)
{
    static int64_t ids[MANY];
    for (size_t i = 0; i < MANY; i++)
        ids[i] = (int64_t)i;
    const tow_compile_options_t options = {
        .assignment = {.replica_count = MANY, .device_ids = ids}};
    assert_true(tow_compile_options_size(&options) <= capacity);
    return (tow_bytes_t){room, tow_compile_options_pack(&options, room)};
}

static int finished_count;

static void count_finished(tow_run_t *run, tow_status_t take_status)
{
    (void)run;
    must(take_status);
    finished_count++;
}

static void thousands_of_devices_are_cheap(void **state)
{
    (void)state;
    fixture_t fixture;
    tow_driver_t *driver;
    static uint8_t room[MANY * 3 + 128];
    static tow_run_t runs[RUN_COUNT];
    const char *text = "towpath-cost 1\nname step\ncompute flops 1000 f32\n"
                       "all_reduce 1000 group 64\ncompute flops 500 f32\n"
                       "barrier\n";
    fixture_open(&fixture,
                 (fixture_options_t){.host_count = 1, .device_count = 1});
    must(tow_sim_device_driver_create(
        driver_at(&fixture, 0)->env,
        &(tow_sim_device_options_t){.model = &fixture.model,
                                    .device_count = MANY},
        &driver));
    compiled_t compiled = {
        .compile = {.format = TOW_PROGRAM_COST,
                    .program = {text, strlen(text)},
                    .options = assign_many(room, sizeof(room)),
                    .done = compile_done}};
    must(tow_driver_compile(driver, &compiled.compile));
    run_idle(&fixture);
    must(compiled.status);
    uint64_t events = tow_sim_counts(fixture.sim).events;
    finished_count = 0;
    for (int i = 0; i < RUN_COUNT; i++) {
        runs[i] = (tow_run_t){.executable = compiled.executable,
                              .gang_id = (uint64_t)i,
                              .done = count_finished};
        must(tow_driver_run(driver, &runs[i]));
    }
    run_idle(&fixture);
    assert_int_equal(finished_count, RUN_COUNT);
    events = tow_sim_counts(fixture.sim).events - events;
    tow_sim_device_counts_t counts = tow_sim_device_counts(driver);
    assert_int_equal(counts.runs, MANY * RUN_COUNT);
    /* Two pauses and two collectives. */
    assert_in_range(events, 4 * MANY * RUN_COUNT, 4 * MANY * RUN_COUNT + 2);
    assert_true(counts.memory_bytes / MANY < 1024);
    fprintf(stderr, "%zu bytes a device, %.2f events a run of a device\n",
            counts.memory_bytes / MANY, (double)events / (MANY * RUN_COUNT));
    tow_sim_device_driver_crash(driver);
    fixture_close(&fixture);
}

TOW_TEST_MAIN(cmocka_unit_test(a_driver_tells_what_it_is),
              cmocka_unit_test(the_same_driver_runs_in_real_time),
              cmocka_unit_test(a_blocked_gang_is_aborted_in_real_time),
              cmocka_unit_test(thousands_of_devices_are_cheap))
