#include "base/testing.h"

#include <jansson.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/log.h"

/* The lines of one test. */
typedef struct capture {
    pthread_mutex_t lock; /* threads log into one capture */
    size_t line_count;
    size_t length; /* of the last line */
    char last[2 * TOW_LOG_LINE_MAX];
} capture_t;

static void capture_line(void *context, const char *line, size_t length)
{
    capture_t *capture = context;
    pthread_mutex_lock(&capture->lock);
    capture->line_count++;
    capture->length = length;
    memcpy(capture->last, line, length);
    capture->last[length] = '\0';
    pthread_mutex_unlock(&capture->lock);
}

static int64_t fixed_wall_ns(void *context)
{
    return *(const int64_t *)context;
}

static capture_t capture = {.lock = PTHREAD_MUTEX_INITIALIZER};
static int64_t wall_ns;

static tow_log_t make_log(tow_log_format_t format)
{
    capture.line_count = 0;
    capture.last[0] = '\0';
    wall_ns = 1794773671000123456; /* 2026-11-15T20:14:31.000123456 */
    return (tow_log_t){.format = format,
                       .source = "worker-1",
                       .sink = capture_line,
                       .sink_context = &capture,
                       .wall_ns = fixed_wall_ns,
                       .wall_context = &wall_ns};
}

/* The last line, which must be one JSON object and one line. */
static json_t *last_as_json(void)
{
    json_error_t error;
    json_t *root = json_loads(capture.last, JSON_REJECT_DUPLICATES, &error);
    if (root == NULL) fail_msg("%s in: %s", error.text, capture.last);
    assert_ptr_equal(strchr(capture.last, '\n'),
                     capture.last + capture.length - 1);
    return root;
}

static const char *text_in(const json_t *root, const char *key)
{
    return json_string_value(json_object_get(root, key));
}

static void text_line_reads_as_documented(void **state)
{
    tow_log_t log = make_log(TOW_LOG_TEXT);
    tow_status_t status = tow_status_bare(TOW_UNAVAILABLE);
    tow_log(&log, TOW_LOG_WARN, "link down", TOW_F_STR("peer", "worker/2"),
            TOW_F_U64("epoch", 3), TOW_F_I64("drift_ns", -5),
            TOW_F_STR("why", "cable cut"), TOW_F_STR("note", ""),
            TOW_F_STR("none", NULL), TOW_F_STATUS("cause", status));
    assert_string_equal(
        capture.last,
        "2026-11-15T20:14:31.000123Z warn worker-1 link down peer worker/2 "
        "epoch 3 drift_ns -5 why \"cable cut\" note \"\" none - "
        "cause UNAVAILABLE\n");
}

static void line_without_fields_is_fine(void **state)
{
    tow_log_t log = make_log(TOW_LOG_TEXT);
    tow_log(&log, TOW_LOG_INFO, "started");
    assert_string_equal(capture.last,
                        "2026-11-15T20:14:31.000123Z info worker-1 started\n");
}

static void json_line_has_every_value_in_its_type(void **state)
{
    tow_log_t log = make_log(TOW_LOG_JSON);
    tow_status_t status = TOW_ERROR(TOW_UNAVAILABLE, "peer \"x\" closed");
    tow_log(&log, TOW_LOG_ERROR, "link down", TOW_F_STR("peer", "a \"b\"\n"),
            TOW_F_U64("bytes", INT64_MAX), TOW_F_U64("seed", UINT64_MAX),
            TOW_F_I64("drift_ns", INT64_MIN + 1), TOW_F_STR("none", NULL),
            TOW_F_STATUS("cause", status));
    json_t *root = last_as_json();
    assert_string_equal(text_in(root, "time"), "2026-11-15T20:14:31.000123Z");
    assert_string_equal(text_in(root, "level"), "error");
    assert_string_equal(text_in(root, "source"), "worker-1");
    assert_string_equal(text_in(root, "event"), "link down");
    assert_string_equal(text_in(root, "peer"), "a \"b\"\n");
    assert_true(json_integer_value(json_object_get(root, "bytes")) ==
                INT64_MAX);
    assert_string_equal(text_in(root, "seed"), "18446744073709551615");
    assert_true(json_integer_value(json_object_get(root, "drift_ns")) ==
                INT64_MIN + 1);
    assert_true(json_is_null(json_object_get(root, "none")));
    const char *cause = text_in(root, "cause");
    assert_ptr_equal(strstr(cause, "UNAVAILABLE: peer \"x\" closed ("), cause);
    assert_non_null(strstr(cause, "log_test.c:"));
    json_decref(root);
    tow_status_release(status);
}

static void peer_cannot_forge_a_line_or_a_field(void **state)
{
    tow_log_t log = make_log(TOW_LOG_TEXT);
    log.source = "w\n1";
    tow_log(&log, TOW_LOG_INFO, "hello",
            TOW_F_STR("name", "x\n2026-01-01 error worker-1 gone"),
            TOW_F_STR("next", "y epoch 9"), TOW_F_STR("last", "q\" admin 1"));
    assert_string_equal(capture.last,
                        "2026-11-15T20:14:31.000123Z info \"w\\n1\" hello "
                        "name \"x\\n2026-01-01 error worker-1 gone\" "
                        "next \"y epoch 9\" last \"q\\\" admin 1\"\n");
}

static void any_bytes_make_a_valid_json_line(void **state)
{
    tow_log_t log = make_log(TOW_LOG_JSON);
    char bytes[4] = {0};
    for (int first = 1; first < 256; first++) {
        for (int second = 0; second < 256; second += 3) {
            bytes[0] = (char)first;
            bytes[1] = (char)second;
            bytes[2] = (char)0x80;
            tow_log(&log, TOW_LOG_INFO, "said", TOW_F_STR("bytes", bytes));
            json_decref(last_as_json());
        }
    }
}

static void levels_below_the_logs_are_silent(void **state)
{
    tow_log_t log = make_log(TOW_LOG_TEXT);
    log.level = TOW_LOG_WARN;
    tow_log(&log, TOW_LOG_INFO, "quiet");
    assert_int_equal(capture.line_count, 0);
    tow_log(&log, TOW_LOG_WARN, "heard");
    tow_log(&log, TOW_LOG_ERROR, "heard");
    assert_int_equal(capture.line_count, 2);
    log.level = TOW_LOG_OFF;
    tow_log(&log, TOW_LOG_ERROR, "quiet");
    assert_int_equal(capture.line_count, 2);
}

static void level_names_are_parsed(void **state)
{
    tow_log_level_t level = TOW_LOG_OFF;
    assert_true(tow_log_level_parse("debug", &level));
    assert_int_equal(level, TOW_LOG_DEBUG);
    assert_true(tow_log_level_parse("off", &level));
    assert_int_equal(level, TOW_LOG_OFF);
    assert_false(tow_log_level_parse("loud", &level));
    assert_false(tow_log_level_parse("", &level));
}

/* A value of `count` copies of one piece of text. */
static const char *repeated(const char *piece, size_t count)
{
    static char text[4 * TOW_LOG_LINE_MAX];
    char *end = text;
    for (size_t i = 0; i < count; i++)
        end = stpcpy(end, piece);
    return text;
}

static void long_text_line_is_cut_and_marked(void **state)
{
    tow_log_t log = make_log(TOW_LOG_TEXT);
    tow_log(&log, TOW_LOG_INFO, "said", TOW_F_STR("a", repeated("x", 3000)),
            TOW_F_U64("after", 1));
    assert_true(capture.length <= TOW_LOG_LINE_MAX);
    assert_string_equal(capture.last + capture.length - 8, "xxx...\"\n");
    assert_null(strstr(capture.last, "after"));
}

static void field_that_does_not_fit_is_left_out_whole(void **state)
{
    tow_log_t log = make_log(TOW_LOG_TEXT);
    const char *text = repeated("x", 200);
    tow_field_t fields[20];
    for (size_t i = 0; i < TOW_COUNT_OF(fields); i++)
        fields[i] = TOW_F_STR("field", text);
    tow_log_write(&log, TOW_LOG_INFO, "said", fields, TOW_COUNT_OF(fields));
    assert_true(capture.length <= TOW_LOG_LINE_MAX);
    assert_string_equal(capture.last + capture.length - 8, "xxx ...\n");
}

/* Wherever the cut falls, in whatever it falls. */
static void cut_json_lines_are_valid_at_every_length(void **state)
{
    static const char *const pieces[] = {"x", "\n", "\"", "\001", "駒", "\xff"};
    tow_log_t log = make_log(TOW_LOG_JSON);
    for (size_t p = 0; p < TOW_COUNT_OF(pieces); p++) {
        for (size_t count = 250; count < 2100; count++) {
            const char *text = repeated(pieces[p], count);
            tow_log(&log, TOW_LOG_INFO, "said", TOW_F_STR("first", text),
                    TOW_F_U64("number", UINT64_MAX / 2),
                    TOW_F_STR("last", "y"));
            assert_true(capture.length <= TOW_LOG_LINE_MAX);
            json_t *root = last_as_json();
            const char *last = text_in(root, "last");
            bool is_whole = last != NULL && strcmp(last, "y") == 0;
            assert_true(is_whole == (json_object_get(root, "cut") == NULL));
            json_decref(root);
        }
    }
}

static void cut_never_splits_an_escape_or_a_character(void **state)
{
    tow_log_t log = make_log(TOW_LOG_TEXT);
    for (size_t pad = 0; pad < 8; pad++) {
        char source[9] = "aaaaaaaa";
        source[pad + 1] = '\0';
        log.source = source;
        tow_log(&log, TOW_LOG_INFO, "said",
                TOW_F_STR("a", repeated("\001", 2000)));
        assert_string_equal(capture.last + capture.length - 11,
                            "\\u0001...\"\n");
        tow_log(&log, TOW_LOG_INFO, "said",
                TOW_F_STR("a", repeated("駒", 2000)));
        assert_string_equal(capture.last + capture.length - 8, "駒...\"\n");
    }
}

static void huge_source_and_status_are_cut_too(void **state)
{
    tow_log_t log = make_log(TOW_LOG_JSON);
    tow_status_t status = TOW_ERROR(TOW_INTERNAL, "%s", repeated("z", 5000));
    tow_log(&log, TOW_LOG_INFO, "failed", TOW_F_STATUS("cause", status));
    json_decref(last_as_json());
    assert_true(capture.length <= TOW_LOG_LINE_MAX);
    log.source = repeated("s", 5000);
    tow_log(&log, TOW_LOG_INFO, "failed", TOW_F_STATUS("cause", status));
    json_decref(last_as_json());
    log.format = TOW_LOG_TEXT;
    tow_log(&log, TOW_LOG_INFO, "failed", TOW_F_STATUS("cause", status));
    assert_true(capture.length <= TOW_LOG_LINE_MAX);
    tow_status_release(status);
}

static void time_before_1970_and_the_extremes_are_dates(void **state)
{
    tow_log_t log = make_log(TOW_LOG_TEXT);
    wall_ns = -1;
    tow_log(&log, TOW_LOG_INFO, "old");
    assert_string_equal(capture.last,
                        "1969-12-31T23:59:59.999999Z info worker-1 old\n");
    wall_ns = INT64_MAX;
    tow_log(&log, TOW_LOG_INFO, "new");
    assert_string_equal(capture.last,
                        "2262-04-11T23:47:16.854775Z info worker-1 new\n");
    wall_ns = INT64_MIN;
    tow_log(&log, TOW_LOG_INFO, "old");
    assert_string_equal(capture.last,
                        "1677-09-21T00:12:43.145224Z info worker-1 old\n");
}

/* Points standard error at a pipe for the length of one call. */
static size_t read_standard_error(void (*body)(void), char *out,
                                  size_t out_bytes)
{
    int pipe_fds[2];
    assert_int_equal(pipe(pipe_fds), 0);
    int saved = dup(STDERR_FILENO);
    dup2(pipe_fds[1], STDERR_FILENO);
    body();
    dup2(saved, STDERR_FILENO);
    close(saved);
    close(pipe_fds[1]);
    size_t length = 0;
    ssize_t count;
    while ((count = read(pipe_fds[0], out + length, out_bytes - 1 - length)) >
           0)
        length += (size_t)count;
    close(pipe_fds[0]);
    out[length] = '\0';
    return length;
}

static void log_by_default(void)
{
    tow_log_t log = {.source = "controller"};
    tow_log(&log, TOW_LOG_INFO, "ready", TOW_F_U64("port", 7000));
}

static void zeroed_log_writes_to_standard_error_in_real_time(void **state)
{
    char said[256];
    read_standard_error(log_by_default, said, sizeof(said));
    assert_non_null(strstr(said, "Z info controller ready port 7000\n"));
    assert_true(strncmp(said, "20", 2) == 0);
}

enum {
    THREAD_COUNT = 4,
    LINES_A_THREAD = 500
};

static void *log_many(void *log)
{
    for (int i = 0; i < LINES_A_THREAD; i++)
        tow_log((const tow_log_t *)log, TOW_LOG_INFO, "busy",
                TOW_F_I64("step", i), TOW_F_STR("text", "a b c"));
    return NULL;
}

static void threads_log_through_one_log(void **state)
{
    tow_log_t log = make_log(TOW_LOG_JSON);
    pthread_t threads[THREAD_COUNT];
    for (int i = 0; i < THREAD_COUNT; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, log_many, &log), 0);
    for (int i = 0; i < THREAD_COUNT; i++)
        pthread_join(threads[i], NULL);
    assert_int_equal(capture.line_count, THREAD_COUNT * LINES_A_THREAD);
    json_decref(last_as_json());
}

TOW_TEST_MAIN(
    cmocka_unit_test(text_line_reads_as_documented),
    cmocka_unit_test(line_without_fields_is_fine),
    cmocka_unit_test(json_line_has_every_value_in_its_type),
    cmocka_unit_test(peer_cannot_forge_a_line_or_a_field),
    cmocka_unit_test(any_bytes_make_a_valid_json_line),
    cmocka_unit_test(levels_below_the_logs_are_silent),
    cmocka_unit_test(level_names_are_parsed),
    cmocka_unit_test(long_text_line_is_cut_and_marked),
    cmocka_unit_test(field_that_does_not_fit_is_left_out_whole),
    cmocka_unit_test(cut_json_lines_are_valid_at_every_length),
    cmocka_unit_test(cut_never_splits_an_escape_or_a_character),
    cmocka_unit_test(huge_source_and_status_are_cut_too),
    cmocka_unit_test(time_before_1970_and_the_extremes_are_dates),
    cmocka_unit_test(zeroed_log_writes_to_standard_error_in_real_time),
    cmocka_unit_test(threads_log_through_one_log))
