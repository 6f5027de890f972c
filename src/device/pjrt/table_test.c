#include "base/testing.h"

#include <pthread.h>
#include <string.h>

#include "base/alloc.h"
#include "device/pjrt/table.h"
#include "device/pjrt/tuning.h"

#define LONG_NS ((int64_t)60 * 1000000000)

static int set_up(void **state)
{
    assert_null(tow_pjrt_table_create((tow_pjrt_table_t **)state));
    return 0;
}

static int tear_down(void **state)
{
    tow_pjrt_table_destroy(*state);
    return 0;
}

static tow_status_t put(tow_pjrt_table_t *table, const char *key,
                        const char *value)
{
    return tow_pjrt_table_put(table, key, strlen(key), value, strlen(value));
}

static tow_code_t try_put(tow_pjrt_table_t *table, const char *key,
                          const char *value)
{
    tow_status_t status = put(table, key, value);
    const tow_code_t code = tow_status_code(status);
    tow_status_release(status);
    return code;
}

/* The code, and the value in `out_value` if there is one. */
static tow_code_t get(tow_pjrt_table_t *table, const char *key,
                      int64_t timeout_ns, char out_value[64])
{
    char *value = NULL;
    size_t size = 0;
    tow_status_t status =
        tow_pjrt_table_get(table, key, strlen(key), timeout_ns, &value, &size);
    const tow_code_t code = tow_status_code(status);
    tow_status_release(status);
    out_value[0] = '\0';
    if (value != NULL) {
        assert_int_equal(strlen(value), size);
        strncat(out_value, value, 63);
    }
    tow_free(value);
    return code;
}

static void table_gives_what_was_put(void **state)
{
    char value[64];
    assert_null(put(*state, "a", "one"));
    assert_null(put(*state, "ab", ""));
    assert_int_equal(get(*state, "a", 0, value), TOW_CODE_OK);
    assert_string_equal(value, "one");
    assert_int_equal(get(*state, "ab", LONG_NS, value), TOW_CODE_OK);
    assert_string_equal(value, "");
}

static void table_without_the_key_says_so(void **state)
{
    char value[64];
    assert_int_equal(get(*state, "a", 0, value), TOW_NOT_FOUND);
    assert_int_equal(get(*state, "a", 1, value), TOW_DEADLINE_EXCEEDED);
}

static void table_refuses_another_value_for_a_key(void **state)
{
    char value[64];
    assert_int_equal(try_put(*state, "a", "one"), TOW_CODE_OK);
    assert_int_equal(try_put(*state, "a", "one"), TOW_CODE_OK);
    assert_int_equal(try_put(*state, "a", "two"), TOW_ALREADY_EXISTS);
    assert_int_equal(try_put(*state, "a", "on"), TOW_ALREADY_EXISTS);
    assert_int_equal(get(*state, "a", 0, value), TOW_CODE_OK);
    assert_string_equal(value, "one");
}

static void table_has_a_bound(void **state)
{
    char *large = tow_calloc(1, TOW_PJRT_TABLE_BYTES_MAX);
    assert_non_null(large);
    tow_status_t status =
        tow_pjrt_table_put(*state, "a", 1, large, TOW_PJRT_TABLE_BYTES_MAX);
    assert_int_equal(tow_status_code(status), TOW_RESOURCE_EXHAUSTED);
    tow_status_release(status);
    assert_null(tow_pjrt_table_put(*state, "a", 1, large,
                                   TOW_PJRT_TABLE_BYTES_MAX - 1));
    assert_int_equal(try_put(*state, "b", ""), TOW_RESOURCE_EXHAUSTED);
    tow_free(large);
}

typedef struct waiter {
    tow_pjrt_table_t *table;
    tow_code_t code;
    char value[64];
} waiter_t;

static void *wait_for_key(void *context)
{
    waiter_t *waiter = context;
    waiter->code = get(waiter->table, "late", LONG_NS, waiter->value);
    return NULL;
}

static void table_get_waits_for_a_key_to_come(void **state)
{
    waiter_t waiter = {.table = *state};
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, wait_for_key, &waiter), 0);
    assert_null(put(*state, "other", "no"));
    assert_null(put(*state, "late", "yes"));
    pthread_join(thread, NULL);
    assert_int_equal(waiter.code, TOW_CODE_OK);
    assert_string_equal(waiter.value, "yes");
}

static void table_that_stops_sends_waiters_away(void **state)
{
    waiter_t waiter = {.table = *state};
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, wait_for_key, &waiter), 0);
    tow_pjrt_table_stop(*state);
    pthread_join(thread, NULL);
    assert_int_equal(waiter.code, TOW_CANCELLED);
    char value[64];
    assert_int_equal(get(*state, "late", 0, value), TOW_CANCELLED);
}

#define CASE(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)

TOW_TEST_MAIN(CASE(table_gives_what_was_put),
              CASE(table_without_the_key_says_so),
              CASE(table_refuses_another_value_for_a_key),
              CASE(table_has_a_bound), CASE(table_get_waits_for_a_key_to_come),
              CASE(table_that_stops_sends_waiters_away))
