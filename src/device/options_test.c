#include "base/testing.h"

#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "device/options.h"
#include "device/proto.h"

/* In a block of exactly its size, so that sanitizers detect overruns. */
static tow_bytes_t pack(const tow_compile_options_t *options)
{
    const size_t size = tow_compile_options_size(options);
    uint8_t *bytes = malloc(size);
    assert_non_null(bytes);
    assert_int_equal(tow_compile_options_pack(options, bytes), size);
    return (tow_bytes_t){bytes, size};
}

static void expect_bytes(tow_bytes_t take_got, const char *bytes, size_t size)
{
    assert_int_equal(take_got.size, size);
    assert_memory_equal(take_got.data, bytes, size);
    free((void *)take_got.data);
}

#define NO_ORDINAL "\x08\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01"

static void zeros_are_one_device_that_the_driver_chooses(void **state)
{
    static const char bytes[] = "\x1a\x0f" NO_ORDINAL "\x20\x01\x28\x01";
    expect_bytes(pack(&(tow_compile_options_t){0}), bytes, sizeof(bytes) - 1);
}

static void assignment_goes_partition_by_partition(void **state)
{
    const int64_t ids[] = {1, 2, 3, 300, 5, 6};
    const tow_compile_options_t options = {.assignment = {.replica_count = 2,
                                                          .partition_count = 3,
                                                          .device_ids = ids}};
    static const char bytes[] =
        "\x1a\x2a" NO_ORDINAL "\x20\x02\x28\x03"
        "\x4a\x17\x08\x02\x10\x03"
        "\x1a\x05\x08\x01\x08\xac\x02\x1a\x04\x08\x02\x08\x05"
        "\x1a\x04\x08\x03\x08\x06"
        "\x30\x01";
    expect_bytes(pack(&options), bytes, sizeof(bytes) - 1);
}

static void shardy_is_said_when_asked_for(void **state)
{
    const tow_compile_options_t options = {.partitioner =
                                               TOW_PARTITIONER_SHARDY};
    static const char bytes[] =
        "\x1a\x12" NO_ORDINAL "\x20\x01\x28\x01\x98\x01\x01";
    expect_bytes(pack(&options), bytes, sizeof(bytes) - 1);
}

static void thousands_of_devices_fit(void **state)
{
    enum {
        COUNT = 4096
    };
    static int64_t ids[COUNT];
    for (size_t i = 0; i < COUNT; i++)
        ids[i] = (int64_t)i * 2048;
    tow_bytes_t bytes =
        pack(&(tow_compile_options_t){.assignment = {.replica_count = COUNT / 8,
                                                     .partition_count = 8,
                                                     .device_ids = ids}});
    assert_true(bytes.size > COUNT * 3);
    free((void *)bytes.data);
}

/* -- Reassigning ------------------------------------------------------------ */

static tow_bytes_t reassigned(tow_bytes_t given,
                              const tow_assignment_t *assignment)
{
    void *bytes;
    size_t size;
    tow_status_t status =
        tow_compile_options_reassign(given, assignment, &bytes, &size);
    if (status != TOW_OK) fail_msg("%s", tow_status_message(status));
    return (tow_bytes_t){bytes, size};
}

static void other_devices_and_all_else_as_it_was(void **state)
{
    const int64_t before[] = {0, 1}, after[] = {70, 80};
    const tow_compile_options_t first = {
        .assignment = {.partition_count = 2, .device_ids = before}};
    const tow_compile_options_t second = {
        .assignment = {.partition_count = 2, .device_ids = after}};
    tow_bytes_t given = pack(&first);
    tow_bytes_t got = reassigned(given, &second.assignment);
    static const char bytes[] =
        "\x1a\x1f\x30\x01" NO_ORDINAL "\x20\x01\x28\x02"
        "\x4a\x0c\x08\x01\x10\x02\x1a\x02\x08\x46\x1a\x02\x08\x50";
    assert_int_equal(got.size, sizeof(bytes) - 1);
    assert_memory_equal(got.data, bytes, got.size);
    /* Idempotent. */
    tow_bytes_t again = reassigned(got, &second.assignment);
    assert_int_equal(again.size, got.size);
    assert_memory_equal(again.data, got.data, got.size);
    tow_free((void *)again.data);
    tow_free((void *)got.data);
    free((void *)given.data);
}

static void build_options_in_pieces_become_one(void **state)
{
    /* argument_layouts, debug options in two fields, a flag between them. */
    static const char given[] = "\x0a\x01z\x1a\x05\x20\x07\x1a\x01x\x10\x01"
                                "\x1a\x06\x28\x09\x30\x01\x4a\x00";
    static const char bytes[] =
        "\x0a\x01z\x10\x01\x1a\x14\x1a\x01x\x30\x01" NO_ORDINAL
        "\x20\x01\x28\x01";
    tow_bytes_t got = reassigned((tow_bytes_t){given, sizeof(given) - 1},
                                 &(tow_assignment_t){0});
    assert_int_equal(got.size, sizeof(bytes) - 1);
    assert_memory_equal(got.data, bytes, got.size);
    tow_free((void *)got.data);
}

static void no_options_are_options_too(void **state)
{
    const int64_t id = 5;
    const tow_compile_options_t options = {.assignment = {.device_ids = &id}};
    tow_bytes_t got = reassigned((tow_bytes_t){0}, &options.assignment);
    tow_bytes_t packed = pack(&options);
    assert_int_equal(got.size, packed.size);
    assert_memory_equal(got.data, packed.data, got.size);
    tow_free((void *)got.data);
    free((void *)packed.data);
}

static void expect_refused(tow_bytes_t given, const char *words)
{
    void *bytes;
    size_t size;
    tow_status_t status = tow_compile_options_reassign(
        given, &(tow_assignment_t){0}, &bytes, &size);
    assert_int_equal(tow_status_code(status), TOW_INVALID_ARGUMENT);
    assert_non_null(strstr(tow_status_message(status), words));
    assert_null(bytes);
    tow_status_release(status);
}

static void bytes_that_are_no_message_are_refused(void **state)
{
    static const char *const wrong[] = {
        "\x1a\x05x",        /* cut off */
        "\x1a\x02\x20\xff", /* cut off inside */
        "\x03",             /* a group */
        "\x02\x01x",        /* field 0 */
        "\x20\xff\xff\xff\xff\xff\xff\xff\xff\xff\x02",
    };
    for (size_t i = 0; i < TOW_COUNT_OF(wrong); i++)
        expect_refused((tow_bytes_t){wrong[i], strlen(wrong[i])},
                       "not a CompileOptionsProto");
    expect_refused((tow_bytes_t){"", TOW_COMPILE_OPTIONS_BYTES_MAX + 1},
                   "the limit is");
}

static void every_cut_of_options_is_survived(void **state)
{
    const int64_t ids[] = {1, 200, 30000};
    tow_bytes_t whole = pack(&(tow_compile_options_t){
        .assignment = {.replica_count = 3, .device_ids = ids}});
    for (size_t size = 0; size < whole.size; size++) {
        uint8_t *cut = malloc(size + 1);
        assert_non_null(cut);
        memcpy(cut, whole.data, size);
        void *bytes;
        size_t count;
        tow_status_t status = tow_compile_options_reassign(
            (tow_bytes_t){cut, size}, &(tow_assignment_t){0}, &bytes, &count);
        assert_true((status == TOW_OK) == (size == 0));
        tow_status_release(status);
        tow_free(bytes);
        free(cut);
    }
    free((void *)whole.data);
}

static void devices_are_read_as_they_were_written(void **state)
{
    const int64_t ids[] = {7, 2048, 3, 40000, 5, 6};
    tow_assignment_t assignment = {
        .replica_count = 2, .partition_count = 3, .device_ids = ids};
    tow_bytes_t whole =
        pack(&(tow_compile_options_t){.assignment = assignment});
    int64_t read[6] = {0};
    assert_true(tow_compile_options_devices(whole, 2, 3, read));
    assert_memory_equal(read, ids, sizeof(ids));
    assert_false(tow_compile_options_devices(whole, 2, 2, read));
    assert_false(tow_compile_options_devices(whole, 3, 3, (int64_t[9]){0}));
    assert_false(tow_compile_options_devices((tow_bytes_t){0}, 1, 1, read));
    free((void *)whole.data);
    void *bytes;
    size_t size;
    assert_null(tow_assignment_pack(&assignment, &bytes, &size));
    assert_true(size > 6);
    tow_free(bytes);
}

/* Entries of 357 and 500 in the debug options, and of 7 beside them. */
#define LATENCY(text)  "\xaa\x16\x02" text
#define EXTRA(text)    "\xa2\x1f\x02" text
#define OVERRIDE(text) "\x3a\x02" text

static void maps_in_any_order_are_the_same(void **state)
{
    static const char *const orders[] = {
        OVERRIDE("q1") OVERRIDE("p1") "\x1a\x18\x1a\x16" LATENCY("b2")
            LATENCY("a2") "\x08\x07" EXTRA("y3") EXTRA("x3"),
        OVERRIDE("p1") OVERRIDE("q1") "\x1a\x18\x1a\x16" LATENCY("a2")
            LATENCY("b2") "\x08\x07" EXTRA("x3") EXTRA("y3"),
        /* Not a map: the order of 100 means something. */
        "\x1a\x0e\x1a\x0c\xa2\x06\x02zz\xa2\x06\x02yy\x08\x07",
        "\x1a\x0e\x1a\x0c\xa2\x06\x02yy\xa2\x06\x02zz\x08\x07",
    };
    tow_bytes_t made[TOW_COUNT_OF(orders)];
    for (size_t i = 0; i < TOW_COUNT_OF(orders); i++) {
        void *bytes;
        assert_null(tow_compile_options_reassign(
            (tow_bytes_t){orders[i], strlen(orders[i])}, &(tow_assignment_t){0},
            &bytes, &made[i].size));
        made[i].data = bytes;
    }
    for (size_t i = 0; i < TOW_COUNT_OF(orders); i += 2) {
        assert_int_equal(made[i].size, made[i + 1].size);
        assert_true((memcmp(made[i].data, made[i + 1].data, made[i].size) ==
                     0) == (i == 0));
    }
    assert_non_null(memmem(made[0].data, made[0].size, "a2", 2));
    assert_non_null(memmem(made[0].data, made[0].size, "y3", 2));
    for (size_t i = 0; i < TOW_COUNT_OF(orders); i++)
        tow_free((void *)made[i].data);
}

/* More fields of one number than one sort takes, of two kinds. */
static void sorting_maps_again_changes_nothing(void **state)
{
    uint8_t given[3 * TOW_OPTIONS_MAP_COUNT_MAX + 6], *at = given;
    for (size_t i = 0; i < TOW_OPTIONS_MAP_COUNT_MAX / 2; i++)
        at = mempcpy(at, (uint8_t[]){0x3a, 1, (uint8_t)(200 - i)}, 3);
    for (size_t i = 0; i < TOW_OPTIONS_MAP_COUNT_MAX / 2; i++)
        at = mempcpy(at, "\x38", 2);
    at = mempcpy(at,
                 "\x3a\x01"
                 "b"
                 "\x3a\x01"
                 "a",
                 6);
    const tow_assignment_t assignment = {0};
    void *once, *twice;
    size_t once_size, twice_size;
    assert_null(
        tow_compile_options_reassign((tow_bytes_t){given, (size_t)(at - given)},
                                     &assignment, &once, &once_size));
    assert_null(tow_compile_options_reassign((tow_bytes_t){once, once_size},
                                             &assignment, &twice, &twice_size));
    assert_int_equal(once_size, twice_size);
    assert_memory_equal(once, twice, once_size);
    tow_free(once);
    tow_free(twice);
}

/* Two options by name, with a build option between them. */
static const char by_name[] = "\x3a\x0a\x0a\x04name\x12\x02\x0a\x00"
                              "\x1a\x02\x20\x01"
                              "\x3a\x0c\x0a\x04name\x12\x04\x0a\x02n1"
                              "\x3a\x0b\x0a\x05other\x12\x02\x10\x01";

static void an_option_by_name_is_taken_out(void **state)
{
    (void)state;
    const tow_bytes_t given = {by_name, sizeof(by_name) - 1};
    tow_bytes_t text;
    void *bytes;
    size_t size;
    assert_null(
        tow_compile_options_take_text(given, "name", &text, &bytes, &size));
    assert_int_equal(text.size, 2);
    assert_memory_equal(text.data, "n1", 2); /* The last one counts. */
    static const char rest[] = "\x1a\x02\x20\x01"
                               "\x3a\x0b\x0a\x05other\x12\x02\x10\x01";
    assert_int_equal(size, sizeof(rest) - 1);
    assert_memory_equal(bytes, rest, size);
    tow_free(bytes);
}

static void options_without_the_name_are_not_copied(void **state)
{
    (void)state;
    const tow_bytes_t given = {by_name, sizeof(by_name) - 1};
    tow_bytes_t text;
    void *bytes;
    size_t size;
    assert_null(
        tow_compile_options_take_text(given, "nam", &text, &bytes, &size));
    assert_null(text.data);
    assert_null(bytes);
    assert_int_equal(size, given.size);
    tow_status_t status =
        tow_compile_options_take_text(given, "other", &text, &bytes, &size);
    assert_int_equal(tow_status_code(status), TOW_INVALID_ARGUMENT);
    assert_non_null(strstr(tow_status_message(status), "not a text"));
    tow_status_release(status);
    assert_null(bytes);
}

/* In blocks of exactly their size, so that sanitizers detect overruns. */
static void every_cut_of_options_by_name_is_survived(void **state)
{
    (void)state;
    for (size_t cut = 0; cut < sizeof(by_name) - 1; cut++) {
        uint8_t *copy = malloc(cut + (cut == 0));
        assert_non_null(copy);
        memcpy(copy, by_name, cut);
        tow_bytes_t text;
        void *bytes;
        size_t size;
        tow_status_release(tow_compile_options_take_text(
            (tow_bytes_t){copy, cut}, "name", &text, &bytes, &size));
        tow_free(bytes);
        free(copy);
    }
}

TOW_TEST_MAIN(cmocka_unit_test(an_option_by_name_is_taken_out),
              cmocka_unit_test(options_without_the_name_are_not_copied),
              cmocka_unit_test(every_cut_of_options_by_name_is_survived),
              cmocka_unit_test(maps_in_any_order_are_the_same),
              cmocka_unit_test(sorting_maps_again_changes_nothing),
              cmocka_unit_test(zeros_are_one_device_that_the_driver_chooses),
              cmocka_unit_test(assignment_goes_partition_by_partition),
              cmocka_unit_test(shardy_is_said_when_asked_for),
              cmocka_unit_test(thousands_of_devices_fit),
              cmocka_unit_test(other_devices_and_all_else_as_it_was),
              cmocka_unit_test(build_options_in_pieces_become_one),
              cmocka_unit_test(no_options_are_options_too),
              cmocka_unit_test(bytes_that_are_no_message_are_refused),
              cmocka_unit_test(every_cut_of_options_is_survived),
              cmocka_unit_test(devices_are_read_as_they_were_written))
