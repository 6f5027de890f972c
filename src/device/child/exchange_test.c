/* Exchanges with child processes that echo, crash, hang and break the protocol:
 * one-line shell programs whose descriptor 3 is the socket. */
#include "base/testing.h"

#include <string.h>

#include "device/child/exchange.h"

#define NS_PER_MS INT64_C(1000000)
#define LONG_NS   (INT64_C(60000) * NS_PER_MS)
#define SHORT_NS  (INT64_C(50) * NS_PER_MS)

enum {
    NOTE = 1,
    TYPE_COUNT
};

static const uint64_t part_bytes_max[][TOW_CHILD_PART_COUNT] = {
    [NOTE] = {100},
};

static const tow_child_protocol_t protocol = {.magic = 0x1234,
                                              .type_count = TYPE_COUNT,
                                              .part_bytes_max = part_bytes_max};

static tow_child_exchange_t start(tow_child_process_t *process,
                                  const char *script, int64_t timeout_ns)
{
    char *argv[] = {"/bin/sh", "-c", (char *)script, NULL};
    tow_status_t status = tow_child_process_start(process, argv);
    if (status != TOW_OK) fail_msg("%s", tow_status_message(status));
    tow_child_exchange_t exchange = {
        .process = process,
        .protocol = &protocol,
        .wake_fd = -1,
        .deadline_ns = tow_child_now_ns() + timeout_ns,
        .out = tow_child_out(&protocol, NOTE),
        .has_out = true,
    };
    tow_child_out_set(&exchange.out, 0, "hello", 5);
    return exchange;
}

/* Runs the script until its exchange ends; checks the event and the error. */
static void expect_end(const char *script, int64_t timeout_ns,
                       tow_child_event_t event, tow_code_t code,
                       const char *message)
{
    const tow_child_subject_t subject = {.text = "the test",
                                         .timeout_ns = timeout_ns,
                                         .crash_code = TOW_ABORTED};
    tow_child_process_t process;
    tow_child_exchange_t exchange = start(&process, script, timeout_ns);
    assert_int_equal(tow_child_exchange_wait(&exchange), event);
    tow_child_process_end(&process);
    tow_status_t status = tow_child_event_status(event, &process, &subject);
    assert_int_equal(tow_status_code(status), code);
    if (strstr(tow_status_message(status), message) == NULL)
        fail_msg("no '%s' in: %s", message, tow_status_message(status));
    tow_status_release(status);
    tow_child_exchange_deinit(&exchange);
}

static void messages_are_sent_and_received(void **state)
{
    (void)state;
    tow_child_process_t process;
    tow_child_exchange_t exchange =
        start(&process, "exec cat <&3 >&3", LONG_NS);
    for (int i = 0; i < 3; i++) {
        assert_int_equal(tow_child_exchange_wait(&exchange),
                         TOW_CHILD_RECEIVED);
        assert_false(exchange.has_out);
        assert_string_equal(exchange.in.parts[0], "hello");
        exchange.out.done_count = 0;
        exchange.has_out = true;
    }
    tow_child_process_end(&process);
    tow_child_exchange_deinit(&exchange);
}

static void reply_of_a_child_that_ended_is_received(void **state)
{
    (void)state;
    tow_child_process_t process;
    /* 48 bytes of header and 5 of the part. */
    tow_child_exchange_t exchange =
        start(&process, "exec head -c 53 <&3 >&3", LONG_NS);
    assert_int_equal(tow_child_exchange_wait(&exchange), TOW_CHILD_RECEIVED);
    assert_int_equal(tow_child_exchange_wait(&exchange), TOW_CHILD_ENDED);
    tow_child_process_end(&process);
    assert_string_equal(tow_child_process_end_text(&process).text,
                        "exit status 0 (without a reply)");
    tow_child_exchange_deinit(&exchange);
}

static void crash_is_an_error_with_the_last_output(void **state)
{
    (void)state;
    expect_end("echo so far; kill -SEGV $$", LONG_NS, TOW_CHILD_ENDED,
               TOW_ABORTED,
               "the test: its process ended by signal 11 (Segmentation fault); "
               "its last output: so far");
    expect_end("exit 7", LONG_NS, TOW_CHILD_ENDED, TOW_ABORTED,
               "exit status 7 (without a reply)");
}

static void time_limit_ends_a_child_that_hangs(void **state)
{
    (void)state;
    expect_end("sleep 1000", SHORT_NS, TOW_CHILD_TIMED_OUT,
               TOW_DEADLINE_EXCEEDED, "took longer than its limit, 50 ms");
}

static void message_that_breaks_the_protocol_is_an_error(void **state)
{
    (void)state;
    expect_end("head -c 100 /dev/zero >&3; sleep 1000", LONG_NS,
               TOW_CHILD_INVALID, TOW_ABORTED, "sent an invalid message");
}

TOW_TEST_MAIN(cmocka_unit_test(messages_are_sent_and_received),
              cmocka_unit_test(reply_of_a_child_that_ended_is_received),
              cmocka_unit_test(crash_is_an_error_with_the_last_output),
              cmocka_unit_test(time_limit_ends_a_child_that_hangs),
              cmocka_unit_test(message_that_breaks_the_protocol_is_an_error))
