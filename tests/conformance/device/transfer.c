#include <string.h>

#include "base/alloc.h"
#include "fixture.h"

/* Uploads `size` bytes as this shape, downloads them, and compares. */
static void expect_round_trip(tow_driver_t *driver, const char *shape,
                              const void *bytes, size_t size, bool may_alias)
{
    upload_probe_t upload = {.upload = {.may_alias = may_alias}};
    expect_ok(probe_upload(&upload, driver, 0, shape, bytes));
    tow_buffer_t *buffer = upload.upload.buffer;
    assert_non_null(buffer);
    assert_int_equal(buffer->device, 0);
    assert_true(tow_shape_equal(&buffer->shape, &upload.upload.shape));
    char *back = tow_calloc(1, size + 1);
    download_probe_t download;
    expect_ok(probe_download(&download, buffer, back, size));
    outcome_expect(&download.outcome, TOW_CODE_OK);
    if (subject.computes) assert_memory_equal(back, bytes, size);
    assert_int_equal(tow_buffer_state(buffer), TOW_BUFFER_READY);
    assert_null(tow_buffer_error(buffer));
    tow_buffer_release(buffer);
    outcome_expect(&upload.outcome, TOW_CODE_OK);
    tow_free(back);
}

static void transfer_brings_back_what_was_sent(void **state)
{
    tow_driver_t *driver = fixture_open(1);
    const float values[] = {1, 2, 3, 4, 5, 6};
    expect_round_trip(driver, "f32[6]", values, sizeof(values), false);
    expect_round_trip(driver, "f32[2,3]", values, sizeof(values), false);
    expect_round_trip(driver, "f32[1,3,2]", values, sizeof(values), false);
    expect_round_trip(driver, "f32[]", values, sizeof(values[0]), false);
    expect_round_trip(driver, "u8[24]", values, sizeof(values), false);
    expect_round_trip(driver, "s64[3]", values, sizeof(values), false);
    fixture_close(driver);
}

static void transfer_of_nothing_works(void **state)
{
    tow_driver_t *driver = fixture_open(1);
    expect_round_trip(driver, "f32[0]", "", 0, false);
    expect_round_trip(driver, "f32[3,0]", "", 0, false);
    fixture_close(driver);
}

static void transfer_of_much_works_with_and_without_a_copy(void **state)
{
    tow_driver_t *driver = fixture_open(1);
    const size_t size = 4u << 20;
    char *bytes = tow_aligned_alloc(64, size);
    for (size_t i = 0; i < size; i++)
        bytes[i] = (char)(i * 7);
    expect_round_trip(driver, "u8[4194304]", bytes, size, false);
    expect_round_trip(driver, "u8[4194304]", bytes, size, true);
    expect_round_trip(driver, "u8[4194300]", bytes + 3, size - 4, true);
    tow_free(bytes);
    fixture_close(driver);
}

static void upload_keeps_the_bytes_of_the_call_until_done(void **state)
{
    tow_driver_t *driver = fixture_open(1);
    const size_t size = 1u << 20;
    char *bytes = tow_calloc(1, size);
    memset(bytes, 7, size);
    upload_probe_t upload = {0};
    expect_ok(probe_upload(&upload, driver, 0, "u8[1048576]", bytes));
    outcome_expect(&upload.outcome, TOW_CODE_OK);
    memset(bytes, 8, size); /* Ours again. */
    download_probe_t download;
    expect_ok(probe_download(&download, upload.upload.buffer, bytes, size));
    outcome_expect(&download.outcome, TOW_CODE_OK);
    for (size_t i = 0; i < size && subject.computes; i++)
        assert_int_equal(bytes[i], 7);
    tow_buffer_release(upload.upload.buffer);
    tow_free(bytes);
    fixture_close(driver);
}

static void upload_may_be_released_before_it_is_done(void **state)
{
    tow_driver_t *driver = fixture_open(1);
    const float values[4] = {0};
    upload_probe_t upload = {0};
    expect_ok(probe_upload(&upload, driver, 0, "f32[4]", values));
    tow_buffer_release(upload.upload.buffer);
    outcome_expect(&upload.outcome, TOW_CODE_OK);
    fixture_close(driver);
}

static void upload_to_no_device_is_refused(void **state)
{
    tow_driver_t *driver = fixture_open(1);
    const float values[4] = {0};
    upload_probe_t upload = {0};
    expect_refusal(probe_upload(&upload, driver, 1, "f32[4]", values),
                   TOW_INVALID_ARGUMENT, "device 1");
    assert_null(upload.upload.buffer);
    fixture_settle();
    assert_int_equal(upload.outcome.done_count, 0);
    fixture_close(driver);
}

static void download_needs_room(void **state)
{
    tow_driver_t *driver = fixture_open(1);
    tow_buffer_t *buffer = uploaded(driver, 0, (float[]){1, 2, 3, 4});
    float values[4];
    download_probe_t download;
    expect_refusal(probe_download(&download, buffer, values, 15),
                   TOW_INVALID_ARGUMENT, "16");
    tow_buffer_release(buffer);
    fixture_close(driver);
}

static void download_holds_the_buffer(void **state)
{
    tow_driver_t *driver = fixture_open(1);
    tow_buffer_t *buffer = uploaded(driver, 0, (float[]){1, 2, 3, 4});
    float values[4] = {0};
    download_probe_t download;
    expect_ok(probe_download(&download, buffer, values, sizeof(values)));
    tow_buffer_release(buffer);
    outcome_expect(&download.outcome, TOW_CODE_OK);
    if (subject.computes) assert_float_equal(values[3], 4, 0);
    fixture_close(driver);
}

static void buffer_lives_until_its_last_reference(void **state)
{
    tow_driver_t *driver = fixture_open(1);
    tow_buffer_t *buffer = uploaded(driver, 0, (float[]){5, 5, 5, 5});
    tow_buffer_retain(buffer);
    tow_buffer_release(buffer);
    expect_values(buffer, 5);
    tow_buffer_release(buffer);
    fixture_close(driver);
}

static uint64_t bytes_in_use(tow_driver_t *driver)
{
    tow_memory_stats_t stats;
    expect_ok(tow_driver_memory_stats(driver, 0, &stats));
    return stats.bytes_in_use;
}

static void memory_is_counted_and_given_back(void **state)
{
    tow_driver_t *driver = fixture_open(1);
    tow_memory_stats_t before;
    tow_memory_stats_t during;
    expect_ok(tow_driver_memory_stats(driver, 0, &before));
    upload_probe_t upload = {0};
    char *bytes = tow_calloc(1, 1u << 20);
    expect_ok(probe_upload(&upload, driver, 0, "u8[1048576]", bytes));
    outcome_expect(&upload.outcome, TOW_CODE_OK);
    expect_ok(tow_driver_memory_stats(driver, 0, &during));
    assert_true(during.bytes_in_use >= before.bytes_in_use + (1u << 20));
    assert_true(during.bytes_peak == 0 ||
                during.bytes_peak >= during.bytes_in_use);
    tow_buffer_release(upload.upload.buffer);
    /* The device may not have freed it yet. */
    FIXTURE_UNTIL(bytes_in_use(driver) == before.bytes_in_use);
    expect_refusal(tow_driver_memory_stats(driver, 9, &during),
                   TOW_INVALID_ARGUMENT, "device 9");
    tow_free(bytes);
    fixture_close(driver);
}

static void memory_has_an_address_where_the_host_shares_it(void **state)
{
    tow_driver_t *driver = fixture_open(1);
    tow_buffer_t *buffer = uploaded(driver, 0, (float[]){1, 2, 3, 4});
    void *address;
    if (subject.shares_host) {
        FIXTURE_UNTIL(tow_buffer_state(buffer) == TOW_BUFFER_READY);
        expect_ok(tow_buffer_address(buffer, &address));
        assert_non_null(address);
        if (subject.computes)
            assert_float_equal(((const float *)address)[2], 3, 0);
    } else {
        expect_refusal(tow_buffer_address(buffer, &address), TOW_UNIMPLEMENTED,
                       "");
    }
    tow_buffer_release(buffer);
    fixture_close(driver);
}

static void expect_zeroes(tow_driver_t *driver, const char *shape_text)
{
    tow_shape_t shape;
    uint64_t size;
    expect_ok(tow_shape_parse(shape_text, &shape));
    expect_ok(tow_shape_bytes(&shape, &size));
    tow_buffer_t *buffer;
    expect_ok(tow_driver_allocate(driver, 0, &shape, &buffer));
    assert_int_equal(buffer->bytes, size);
    unsigned char *bytes = tow_malloc(size);
    memset(bytes, 0xa5, size);
    download_probe_t download;
    expect_ok(probe_download(&download, buffer, bytes, size));
    outcome_expect(&download.outcome, TOW_CODE_OK);
    assert_int_equal(tow_buffer_state(buffer), TOW_BUFFER_READY);
    for (uint64_t i = 0; i < size; i++)
        if (bytes[i] != 0) fail_msg("byte %zu is %d", (size_t)i, bytes[i]);
    tow_free(bytes);
    tow_buffer_release(buffer);
}

/* Writes bytes into a buffer and releases it. */
static void leave_bytes_behind(tow_driver_t *driver, const char *shape_text)
{
    tow_shape_t shape;
    uint64_t size;
    expect_ok(tow_shape_parse(shape_text, &shape));
    expect_ok(tow_shape_bytes(&shape, &size));
    char *bytes = tow_malloc(size);
    memset(bytes, 0x5a, size);
    upload_probe_t upload = {0};
    expect_ok(probe_upload(&upload, driver, 0, shape_text, bytes));
    outcome_expect(&upload.outcome, TOW_CODE_OK);
    tow_buffer_release(upload.upload.buffer);
    fixture_settle();
    tow_free(bytes);
}

/* Sizes that allocators serve differently. */
static void memory_that_is_had_holds_zeroes(void **state)
{
    static const char *const shapes[] = {"u8[3]", "f32[4]", "f32[40000]",
                                         "u8[5242880]"};
    tow_driver_t *driver = fixture_open(1);
    for (int round = 0; round < 3; round++)
        for (size_t i = 0; i < TOW_COUNT_OF(shapes); i++) {
            expect_zeroes(driver, shapes[i]);
            leave_bytes_behind(driver, shapes[i]);
        }
    tow_shape_t shape;
    tow_buffer_t *buffer;
    expect_ok(tow_shape_parse("f32[4]", &shape));
    expect_refusal(tow_driver_allocate(driver, 1, &shape, &buffer),
                   TOW_INVALID_ARGUMENT, "device 1");
    shape.dims[0] = -1;
    expect_refusal(tow_driver_allocate(driver, 0, &shape, &buffer),
                   TOW_OUT_OF_RANGE, "negative");
    fixture_close(driver);
}

static void memory_that_is_not_there_is_refused(void **state)
{
    tow_driver_t *driver = fixture_open_small();
    tow_shape_t shape;
    expect_ok(tow_shape_parse("u8[2097152]", &shape));
    tow_buffer_t *buffer;
    expect_refusal(tow_driver_allocate(driver, 0, &shape, &buffer),
                   TOW_RESOURCE_EXHAUSTED, "2097152");
    char *bytes = tow_calloc(1, 2u << 20);
    upload_probe_t upload = {0};
    expect_refusal(probe_upload(&upload, driver, 0, "u8[2097152]", bytes),
                   TOW_RESOURCE_EXHAUSTED, "");
    tow_free(bytes);
    /* And a buffer that fits is still allocated. */
    tow_buffer_t *small = uploaded(driver, 0, (float[]){3, 3, 3, 3});
    expect_values(small, 3);
    tow_buffer_release(small);
    fixture_close(driver);
}

FIXTURE_SUITE(transfer_suite, FIXTURE_CASE(transfer_brings_back_what_was_sent),
              FIXTURE_CASE(transfer_of_nothing_works),
              FIXTURE_CASE(transfer_of_much_works_with_and_without_a_copy),
              FIXTURE_CASE(upload_keeps_the_bytes_of_the_call_until_done),
              FIXTURE_CASE(upload_may_be_released_before_it_is_done),
              FIXTURE_CASE(upload_to_no_device_is_refused),
              FIXTURE_CASE(download_needs_room),
              FIXTURE_CASE(download_holds_the_buffer),
              FIXTURE_CASE(buffer_lives_until_its_last_reference),
              FIXTURE_CASE(memory_is_counted_and_given_back),
              FIXTURE_CASE(memory_has_an_address_where_the_host_shares_it),
              FIXTURE_CASE(memory_that_is_had_holds_zeroes),
              FIXTURE_CASE(memory_that_is_not_there_is_refused));
