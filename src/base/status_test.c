#include "base/testing.h"

#include <errno.h>
#include <pthread.h>
#include <stdbool.h>
#include <string.h>

#include "base/alloc.h"
#include "base/status.h"

static void ok_is_null_and_has_no_message(void **state)
{
    assert_null(TOW_OK);
    assert_int_equal(tow_status_code(TOW_OK), TOW_CODE_OK);
    assert_string_equal(tow_status_message(TOW_OK), "");
    assert_ptr_equal(tow_status_bare(TOW_CODE_OK), TOW_OK);
    assert_ptr_equal(tow_status_annotate(TOW_OK, "context"), TOW_OK);
    tow_status_release(TOW_OK);
}

static void codes_have_their_canonical_names(void **state)
{
    assert_string_equal(tow_code_name(TOW_INVALID_ARGUMENT),
                        "INVALID_ARGUMENT");
    assert_string_equal(tow_code_name(TOW_UNAUTHENTICATED), "UNAUTHENTICATED");
    assert_string_equal(tow_code_name((tow_code_t)17), "UNKNOWN");
    assert_string_equal(tow_code_name((tow_code_t)-1), "UNKNOWN");
    assert_int_equal(TOW_DATA_LOSS, 15); /* As in PJRT and gRPC. */
}

static void bare_status_needs_no_memory(void **state)
{
    tow_alloc_fail_after(0);
    tow_status_t status = tow_status_bare(TOW_RESOURCE_EXHAUSTED);
    assert_int_equal(tow_status_code(status), TOW_RESOURCE_EXHAUSTED);
    assert_string_equal(tow_status_message(status), "RESOURCE_EXHAUSTED");
    assert_string_equal(tow_status_file(status), "");
    assert_ptr_equal(tow_status_retain(status), status);
    tow_status_release(status);
    tow_status_release(status);
    assert_false(tow_alloc_has_failed());
    tow_alloc_fail_after(UINT64_MAX);
}

static void error_knows_its_place(void **state)
{
    int line = __LINE__ + 1;
    tow_status_t status = TOW_ERROR(TOW_NOT_FOUND, "no barge %d", 7);
    assert_int_equal(tow_status_code(status), TOW_NOT_FOUND);
    assert_string_equal(tow_status_message(status), "no barge 7");
    assert_string_equal(tow_status_file(status), __FILE__);
    assert_int_equal(tow_status_line(status), line);
    tow_status_release(status);
}

static void annotate_puts_context_first_and_keeps_the_cause(void **state)
{
    tow_status_t status = TOW_ERROR(TOW_UNAVAILABLE, "peer closed");
    int line = tow_status_line(status);
    status = tow_status_annotate(status, "joining %s", "island/3");
    status = tow_status_annotate(status, "starting");
    assert_int_equal(tow_status_code(status), TOW_UNAVAILABLE);
    assert_string_equal(tow_status_message(status),
                        "starting: joining island/3: peer closed");
    assert_int_equal(tow_status_line(status), line);
    tow_status_release(status);
}

static void annotate_gives_a_bare_status_a_message(void **state)
{
    tow_status_t status = tow_status_annotate(
        tow_status_bare(TOW_RESOURCE_EXHAUSTED), "growing the store");
    assert_int_equal(tow_status_code(status), TOW_RESOURCE_EXHAUSTED);
    assert_string_equal(tow_status_message(status),
                        "growing the store: RESOURCE_EXHAUSTED");
    tow_status_release(status);
}

static void errno_becomes_a_code_and_a_named_reason(void **state)
{
    static const struct {
        int number;
        tow_code_t code;
    } cases[] = {
        {ENOENT, TOW_NOT_FOUND},
        {EADDRINUSE, TOW_ALREADY_EXISTS},
        {EACCES, TOW_PERMISSION_DENIED},
        {ENOSPC, TOW_RESOURCE_EXHAUSTED},
        {ETIMEDOUT, TOW_DEADLINE_EXCEEDED},
        {ECONNREFUSED, TOW_UNAVAILABLE},
        {EINVAL, TOW_INVALID_ARGUMENT},
        {EXDEV, TOW_UNKNOWN},
    };
    for (size_t i = 0; i < TOW_COUNT_OF(cases); i++) {
        tow_status_t status = TOW_ERRNO(cases[i].number, "file %s", "x");
        assert_int_equal(tow_status_code(status), cases[i].code);
        tow_status_release(status);
    }
    tow_status_t status = TOW_ERRNO(ENOENT, "reading %s", "/etc/tow");
    assert_string_equal(tow_status_message(status),
                        "reading /etc/tow: No such file or directory (ENOENT)");
    tow_status_release(status);
    status = TOW_ERRNO(123456, "odd");
    assert_non_null(strstr(tow_status_message(status), "(unknown errno)"));
    tow_status_release(status);
}

static void long_messages_are_whole(void **state)
{
    static char text[5000];
    memset(text, 'x', sizeof(text) - 1);
    tow_status_t status = TOW_ERROR(TOW_INTERNAL, "%s", text);
    status = tow_status_annotate(status, "%s", text);
    assert_int_equal(strlen(tow_status_message(status)),
                     2 * (sizeof(text) - 1) + 2);
    tow_status_release(status);
}

static tow_exhaust_result_t make_and_annotate(void *context)
{
    tow_status_t status = TOW_ERROR(TOW_ABORTED, "rope %s", "broke");
    status = tow_status_annotate(status, "hauling");
    bool has_all =
        strcmp(tow_status_message(status), "hauling: rope broke") == 0;
    /* Whatever was refused, the code is there. */
    assert_int_equal(tow_status_code(status), TOW_ABORTED);
    tow_status_release(status);
    return has_all ? TOW_EXHAUST_SUCCEEDED : TOW_EXHAUST_FAILED;
}

static void making_an_error_never_fails(void **state)
{
    assert_int_equal(tow_test_exhaust(make_and_annotate, NULL), 2);
}

static void retained_status_lives_until_its_last_release(void **state)
{
    int64_t live_before = tow_alloc_live_count();
    tow_status_t status = TOW_ERROR(TOW_CANCELLED, "stop");
    tow_status_t second = tow_status_retain(status);
    tow_status_release(status);
    assert_string_equal(tow_status_message(second), "stop");
    tow_status_ignore(second, "the test is over");
    assert_int_equal(tow_alloc_live_count(), live_before);
}

static void *use_shared_status(void *shared)
{
    for (int i = 0; i < 2000; i++) {
        tow_status_t mine = tow_status_retain(shared);
        if (strcmp(tow_status_message(mine), "shared") != 0) return NULL;
        tow_status_release(mine);
    }
    tow_status_release(shared);
    return shared;
}

static void status_is_shared_between_threads(void **state)
{
    enum {
        THREAD_COUNT = 4
    };
    pthread_t threads[THREAD_COUNT];
    tow_status_t status = TOW_ERROR(TOW_INTERNAL, "shared");
    for (int i = 0; i < THREAD_COUNT; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, use_shared_status,
                                        (void *)tow_status_retain(status)),
                         0);
    tow_status_release(status); /* The last thread frees it. */
    for (int i = 0; i < THREAD_COUNT; i++) {
        void *result;
        pthread_join(threads[i], &result);
        assert_non_null(result);
    }
}

static tow_status_t fail_early(int *out_reached)
{
    TOW_RETURN_IF_ERROR(TOW_OK);
    *out_reached = 1;
    TOW_RETURN_IF_ERROR(tow_status_bare(TOW_ABORTED));
    *out_reached = 2;
    return TOW_OK;
}

static void return_if_error_returns_only_errors(void **state)
{
    int reached = 0;
    tow_status_t status = fail_early(&reached);
    assert_int_equal(tow_status_code(status), TOW_ABORTED);
    assert_int_equal(reached, 1);
    tow_status_release(status);
}

TOW_TEST_MAIN(cmocka_unit_test(ok_is_null_and_has_no_message),
              cmocka_unit_test(codes_have_their_canonical_names),
              cmocka_unit_test(bare_status_needs_no_memory),
              cmocka_unit_test(error_knows_its_place),
              cmocka_unit_test(annotate_puts_context_first_and_keeps_the_cause),
              cmocka_unit_test(annotate_gives_a_bare_status_a_message),
              cmocka_unit_test(errno_becomes_a_code_and_a_named_reason),
              cmocka_unit_test(long_messages_are_whole),
              cmocka_unit_test(making_an_error_never_fails),
              cmocka_unit_test(retained_status_lives_until_its_last_release),
              cmocka_unit_test(status_is_shared_between_threads),
              cmocka_unit_test(return_if_error_returns_only_errors))
