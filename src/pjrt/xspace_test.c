#include "base/testing.h"

#include <string.h>

#include "base/alloc.h"
#include "device/proto.h"
#include "pjrt/xspace.h"

/* The n-th field of that number in a message; the test fails if there is none.
 */
static proto_field_t field(tow_bytes_t message, uint32_t number, size_t n)
{
    proto_field_t found = {0};
    while (message.size > 0) {
        assert_true(proto_read_field(&message, &found));
        if (found.number == number && n-- == 0) return found;
    }
    fail_msg("no field %u", number);
    return found;
}

static size_t count(tow_bytes_t message, uint32_t number)
{
    proto_field_t found = {0};
    size_t total = 0;
    while (message.size > 0) {
        assert_true(proto_read_field(&message, &found));
        total += found.number == number;
    }
    return total;
}

static void expect_text(proto_field_t found, const char *text)
{
    assert_int_equal(found.bytes.size, strlen(text));
    assert_memory_equal(found.bytes.data, text, found.bytes.size);
}

static tow_bytes_t write_space(const char *spans)
{
    const tow_xspace_source_t source = {.spans = spans,
                                        .shift_ns = 1000000,
                                        .start_ns = 1000500,
                                        .end_ns = 1002000};
    void *bytes;
    size_t size;
    assert_null(tow_xspace_write(&source, &bytes, &size));
    return (tow_bytes_t){bytes, size};
}

static void a_process_is_a_plane_and_a_thread_a_line(void **state)
{
    tow_bytes_t space = write_space("process 1 head\n"
                                    "thread 1 1 loop\n"
                                    "event 1 1 600 10 Run\n"
                                    "event 1 1 700 20 Done\n"
                                    "process 2 worker-0\n"
                                    "thread 2 1 loop\n"
                                    "thread 2 2 device 0\n"
                                    "event 2 2 800 300 jit a step\n");
    assert_int_equal(count(space, 1), 2);
    tow_bytes_t head = field(space, 1, 0).bytes;
    expect_text(field(head, 2, 0), "/device:CUSTOM:towpath head");
    tow_bytes_t loop = field(head, 3, 0).bytes;
    assert_int_equal(field(loop, 3, 0).value, 1000500);
    assert_int_equal(count(loop, 4), 2);
    assert_int_equal(count(head, 4), 2);
    tow_bytes_t worker = field(space, 1, 1).bytes;
    assert_int_equal(count(worker, 3), 2);
    tow_bytes_t device = field(worker, 3, 1).bytes;
    expect_text(field(device, 2, 0), "device 0");
    tow_bytes_t event = field(device, 4, 0).bytes;
    assert_int_equal(field(event, 2, 0).value, 300 * 1000);
    assert_int_equal(field(event, 3, 0).value, 300 * 1000);
    tow_bytes_t entry = field(worker, 4, 0).bytes;
    assert_int_equal(field(entry, 1, 0).value, field(event, 1, 0).value);
    expect_text(field(field(entry, 2, 0).bytes, 2, 0), "jit a step");
    tow_free((void *)space.data);
}

static void events_are_cut_to_the_trace(void **state)
{
    tow_bytes_t space = write_space("process 1 head\n"
                                    "thread 1 1 loop\n"
                                    "event 1 1 100 100 before\n"
                                    "event 1 1 400 200 into\n"
                                    "event 1 1 1900 500 out\n"
                                    "event 1 1 2100 5 after\n");
    tow_bytes_t line = field(field(space, 1, 0).bytes, 3, 0).bytes;
    assert_int_equal(count(line, 4), 2);
    tow_bytes_t into = field(line, 4, 0).bytes, out = field(line, 4, 1).bytes;
    assert_int_equal(field(into, 2, 0).value, 0);
    assert_int_equal(field(into, 3, 0).value, 100 * 1000);
    assert_int_equal(field(out, 2, 0).value, 1400 * 1000);
    assert_int_equal(field(out, 3, 0).value, 100 * 1000);
    tow_free((void *)space.data);
}

static void lines_that_are_none_are_not_read(void **state)
{
    tow_bytes_t space = write_space("event 1 1 600 10 nowhere\n"
                                    "thread 1 1 of nobody\n"
                                    "\n"
                                    "process\n"
                                    "event 1 1 6");
    assert_int_equal(space.size, 0);
    tow_free((void *)space.data);
}

static void what_went_wrong_is_in_it(void **state)
{
    void *bytes;
    size_t size;
    const tow_xspace_source_t source = {.error = "the cluster is gone"};
    assert_null(tow_xspace_write(&source, &bytes, &size));
    expect_text(field(field((tow_bytes_t){bytes, size}, 1, 0).bytes, 2, 0),
                "/device:CUSTOM:towpath the cluster is gone");
    tow_free(bytes);
}

TOW_TEST_MAIN(cmocka_unit_test(a_process_is_a_plane_and_a_thread_a_line),
              cmocka_unit_test(events_are_cut_to_the_trace),
              cmocka_unit_test(lines_that_are_none_are_not_read),
              cmocka_unit_test(what_went_wrong_is_in_it))
