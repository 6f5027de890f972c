/* Uploads, downloads and simulated values. */
#include "device/sim/device_testing_impl.h"

#include "device/sim/tuning.h"
#include "device/sim/value.h"

static void open_one(fixture_t *fixture)
{
    fixture_open(fixture,
                 (fixture_options_t){.host_count = 1, .device_count = 2});
}

static void small_buffers_keep_their_bytes(void **state)
{
    (void)state;
    fixture_t fixture;
    open_one(&fixture);
    const int64_t sizes[] = {0, 1, 7, 8, 9, 4096, TOW_SIM_CONTENT_BYTES_MAX};
    uint8_t *bytes = test_malloc(TOW_SIM_CONTENT_BYTES_MAX);
    uint8_t *back = test_malloc(TOW_SIM_CONTENT_BYTES_MAX);
    for (size_t i = 0; i < TOW_SIM_CONTENT_BYTES_MAX; i++)
        bytes[i] = (uint8_t)(i * 7 + i / 256);
    for (size_t i = 0; i < TOW_COUNT_OF(sizes); i++) {
        size_t size = (size_t)sizes[i];
        tow_buffer_t *buffer = upload_now(&fixture, 0, 1, bytes, sizes[i]);
        memset(back, 0xee, TOW_SIM_CONTENT_BYTES_MAX);
        download_now(&fixture, buffer, back, size);
        assert_memory_equal(bytes, back, size);
        tow_buffer_release(buffer);
    }
    test_free(bytes);
    test_free(back);
    fixture_close(&fixture);
}

static void large_buffers_come_back_as_their_value(void **state)
{
    (void)state;
    fixture_t fixture;
    open_one(&fixture);
    size_t size = TOW_SIM_CONTENT_BYTES_MAX + 1000;
    uint8_t *bytes = test_calloc(1, size);
    uint8_t *back = test_malloc(size);
    uint8_t *again = test_malloc(size);
    bytes[5] = 1;
    tow_buffer_t *buffer = upload_now(&fixture, 0, 0, bytes, (int64_t)size);
    download_now(&fixture, buffer, back, size);
    assert_int_equal(back[size - 1], 0);
    /* Another move does not change it. */
    tow_buffer_t *moved = upload_now(&fixture, 0, 1, back, (int64_t)size);
    download_now(&fixture, moved, again, size);
    assert_memory_equal(back, again, size);
    tow_buffer_release(buffer);
    tow_buffer_release(moved);
    test_free(bytes);
    test_free(back);
    test_free(again);
    fixture_close(&fixture);
}

static void a_value_is_read_from_what_shows_it(void **state)
{
    (void)state;
    uint8_t bytes[100];
    for (size_t size = 0; size <= sizeof(bytes); size++) {
        uint64_t value = tow_sim_value_fit(0x123456789abcdef0u + size, size);
        tow_sim_value_show(value, bytes, size);
        assert_int_equal(tow_sim_value_read(bytes, size), value);
        if (size <= 8) continue;
        bytes[size - 1] ^= 1;
        assert_int_not_equal(tow_sim_value_read(bytes, size), value);
    }
}

static void a_scalar_is_its_own_value(void **state)
{
    (void)state;
    const uint32_t scalar = 77;
    assert_int_equal(tow_sim_value_read(&scalar, 4), 77);
}

/* The definition in the README, computed by hand. */
static void results_follow_from_name_and_arguments(void **state)
{
    (void)state;
    fixture_t fixture;
    launch_t launch;
    const int64_t device_0[] = {0};
    const char *text = "towpath-cost 1\nname f\nargument u8[8]\n"
                       "argument u8[4]\nresult u8[8]\nresult u8[4]\n";
    uint64_t a = 11, b = 22, results[2] = {0};
    open_one(&fixture);
    tow_executable_t *program = compile_for(&fixture, 0, text, device_0, 1);
    tow_buffer_t *arguments[] = {upload_now(&fixture, 0, 0, &a, 8),
                                 upload_now(&fixture, 0, 0, &b, 4)};
    must(try_launch(&launch, program, 1, arguments, 2));
    run_idle(&fixture);
    download_now(&fixture, launch.results[0], &results[0], 8);
    download_now(&fixture, launch.results[1], &results[1], 4);
    uint64_t value = tow_sim_value_begin("f");
    value = tow_sim_value_mix(tow_sim_value_mix(value, a), b);
    assert_int_equal(results[0], tow_sim_value_mix(value, 1));
    assert_int_equal(results[1], tow_sim_value_mix(value, 2) & UINT32_MAX);
    fixture_close(&fixture);
}

static void transfers_share_the_host_link_in_order(void **state)
{
    (void)state;
    fixture_t fixture;
    movement_t movements[3];
    uint8_t bytes[100] = {0};
    open_one(&fixture);
    int64_t start_ns = tow_sim_now_ns(fixture.sim);
    must(try_upload(driver_at(&fixture, 0), 0, bytes, 100, &movements[0]));
    must(try_upload(driver_at(&fixture, 0), 0, bytes, 50, &movements[1]));
    must(try_upload(driver_at(&fixture, 0), 1, bytes, 50, &movements[2]));
    run_until(&fixture, start_ns + 60);
    assert_true(movements[2].is_done); /* The other device's link. */
    assert_false(movements[0].is_done);
    run_until(&fixture, start_ns + 110);
    assert_true(movements[0].is_done);
    run_until(&fixture, start_ns + 169);
    assert_false(movements[1].is_done);
    run_until(&fixture, start_ns + 170);
    assert_true(movements[1].is_done);
    for (int i = 0; i < 3; i++)
        tow_buffer_release(movements[i].upload.buffer);
    fixture_close(&fixture);
}

static bool copy_is_done;

static void note_copy(tow_copy_t *copy, tow_status_t take_status)
{
    (void)copy;
    must(take_status);
    copy_is_done = true;
}

/* Between devices the link's time, within one that of reading and writing. */
static void copies_take_the_time_of_what_they_cross(void **state)
{
    (void)state;
    fixture_t fixture;
    const uint64_t content = 0x0123456789abcdefu;
    open_one(&fixture);
    const tow_sim_model_t model = toy_model();
    tow_buffer_t *source = upload_now(&fixture, 0, 0, &content, 8);
    for (size_t device = 0; device < 2; device++) {
        const uint64_t ns =
            device == 0
                ? 2 * tow_sim_ns_at_rate(8, model.memory_bytes_per_second)
                : model.link_latency_ns +
                      tow_sim_ns_at_rate(8, model.link_bytes_per_second);
        tow_copy_t copy = {
            .source = source, .device = device, .done = note_copy};
        const int64_t start_ns = tow_sim_now_ns(fixture.sim);
        copy_is_done = false;
        must(tow_driver_copy(driver_at(&fixture, 0), &copy));
        assert_int_equal(bytes_in_use(&fixture, 0, device),
                         device == 0 ? 16 : 8);
        run_until(&fixture, start_ns + (int64_t)ns - 1);
        assert_false(copy_is_done);
        run_until(&fixture, start_ns + (int64_t)ns);
        assert_true(copy_is_done);
        uint64_t back = 0;
        download_now(&fixture, copy.buffer, &back, 8);
        assert_int_equal(back, content);
        tow_buffer_release(copy.buffer);
    }
    tow_buffer_release(source);
    fixture_close(&fixture);
}

static void note_share(tow_buffer_share_t *share, tow_status_t take_status)
{
    (void)share;
    must(take_status);
}

/* Large arrays have no bytes: their shares use bytes that show the value. */
static void shares_of_a_large_buffer_have_one_copy(void **state)
{
    (void)state;
    fixture_t fixture;
    open_one(&fixture);
    tow_driver_t *driver = driver_at(&fixture, 0);
    size_t size = TOW_SIM_CONTENT_BYTES_MAX + 1000;
    uint8_t *bytes = test_malloc(size);
    tow_sim_value_show(77, bytes, size);
    tow_buffer_t *buffer = upload_now(&fixture, 0, 0, bytes, (int64_t)size);
    tow_buffer_share_t shares[2];
    for (int i = 0; i < 2; i++) {
        shares[i] = (tow_buffer_share_t){.buffer = buffer, .done = note_share};
        must(tow_driver_share(driver, &shares[i]));
    }
    run_idle(&fixture);
    assert_non_null(shares[0].bytes);
    assert_ptr_equal(shares[0].bytes, shares[1].bytes);
    tow_buffer_share_end(driver, &shares[0]);
    assert_memory_equal(shares[1].bytes, bytes, size);
    tow_buffer_share_end(driver, &shares[1]);
    tow_buffer_release(buffer);
    test_free(bytes);
    fixture_close(&fixture);
}

static void a_buffer_may_be_released_while_it_is_uploaded(void **state)
{
    (void)state;
    fixture_t fixture;
    movement_t movement;
    uint8_t bytes[100] = {0};
    open_one(&fixture);
    must(try_upload(driver_at(&fixture, 0), 0, bytes, 100, &movement));
    tow_buffer_release(movement.upload.buffer);
    assert_int_equal(bytes_in_use(&fixture, 0, 0), 100);
    run_idle(&fixture);
    assert_true(movement.is_done);
    must(movement.status);
    assert_int_equal(bytes_in_use(&fixture, 0, 0), 0);
    fixture_close(&fixture);
}

TOW_TEST_MAIN(cmocka_unit_test(small_buffers_keep_their_bytes),
              cmocka_unit_test(large_buffers_come_back_as_their_value),
              cmocka_unit_test(a_value_is_read_from_what_shows_it),
              cmocka_unit_test(a_scalar_is_its_own_value),
              cmocka_unit_test(results_follow_from_name_and_arguments),
              cmocka_unit_test(transfers_share_the_host_link_in_order),
              cmocka_unit_test(copies_take_the_time_of_what_they_cross),
              cmocka_unit_test(shares_of_a_large_buffer_have_one_copy),
              cmocka_unit_test(a_buffer_may_be_released_while_it_is_uploaded))
