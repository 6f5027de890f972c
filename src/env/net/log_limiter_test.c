#include "base/testing.h"

#include <string.h>

#include "env/net/log_limiter.h"
#include "env/tuning.h"

static int line_count;
static char last_line[TOW_LOG_LINE_MAX + 1];

static void count_line(void *context, const char *line, size_t length)
{
    (void)context;
    line_count++;
    memcpy(last_line, line, length);
    last_line[length] = '\0';
}

static void log_lines_are_limited_and_count_suppressed_ones(void **state)
{
    (void)state;
    const tow_log_t log = {.level = TOW_LOG_WARN, .sink = count_line};
    tow_status_t cause = TOW_ERROR(TOW_INVALID_ARGUMENT, "not ours");
    tow_net_log_limiter_t log_limiter;
    int64_t now_ns = 12345;
    tow_net_log_limiter_init(&log_limiter, now_ns);
    for (int i = 0; i < 1000; i++)
        tow_net_log_limited(&log_limiter, &log, now_ns, "refused",
                            "tcp:1.2.3.4:5", cause);
    assert_int_equal(line_count, TOW_NET_LOG_BURST);
    assert_non_null(strstr(last_line, "tcp:1.2.3.4:5"));
    assert_non_null(strstr(last_line, "not ours"));

    now_ns += TOW_NET_LOG_INTERVAL_NS;
    for (int i = 0; i < 2; i++)
        tow_net_log_limited(&log_limiter, &log, now_ns, "refused",
                            "tcp:1.2.3.4:5", cause);
    assert_int_equal(line_count, TOW_NET_LOG_BURST + 1);
    assert_non_null(strstr(last_line, "lines_left_out 990"));
    tow_status_release(cause);
}

TOW_TEST_MAIN(cmocka_unit_test(log_lines_are_limited_and_count_suppressed_ones))
