#include "base/testing.h"

#include <string.h>

#include "base/alloc.h"
#include "store/shard_store.h"

/* A driver that only counts references. */
typedef struct counted {
    tow_buffer_t base;
    int reference_count;
} counted_t;

static void retain(tow_buffer_t *buffer)
{
    ((counted_t *)buffer)->reference_count++;
}

static void release(tow_buffer_t *buffer)
{
    assert_true(((counted_t *)buffer)->reference_count-- > 0);
}

static const tow_driver_ops_t counting_ops = {.buffer_retain = retain,
                                              .buffer_release = release};
static tow_driver_t counting_driver = {.ops = &counting_ops, .name = "count"};

#define SHARDS 3

typedef struct fixture {
    tow_shard_store_t *shard_store;
    counted_t buffers[2 * SHARDS];
    tow_buffer_t *list[2 * SHARDS];
} fixture_t;

static void must(tow_status_t status)
{
    if (status != TOW_OK) fail_msg("%s", tow_status_message(status));
}

static void expect_error(tow_status_t status, tow_code_t code, const char *part)
{
    assert_int_equal(tow_status_code(status), code);
    if (strstr(tow_status_message(status), part) == NULL)
        fail_msg("'%s' has no '%s'", tow_status_message(status), part);
    tow_status_release(status);
}

static void open_shard_store(fixture_t *fixture, size_t object_count_max)
{
    *fixture = (fixture_t){0};
    must(tow_shard_store_create(
        &(tow_shard_store_options_t){.shard_count_max = SHARDS,
                                     .object_count_max = object_count_max},
        &fixture->shard_store));
    for (size_t i = 0; i < TOW_COUNT_OF(fixture->buffers); i++) {
        fixture->buffers[i].base =
            (tow_buffer_t){.driver = &counting_driver, .bytes = 100 + i};
        fixture->buffers[i].reference_count = 1;
        fixture->list[i] = &fixture->buffers[i].base;
    }
}

static void expect_released(const fixture_t *fixture, size_t from,
                            size_t stride)
{
    for (size_t i = 0; i < SHARDS; i++)
        assert_int_equal(fixture->buffers[from + i * stride].reference_count,
                         0);
}

static tow_shard_list_t shards_at(const fixture_t *fixture, size_t from,
                                  size_t stride)
{
    return (tow_shard_list_t){
        .first = fixture->list + from, .stride = stride, .count = SHARDS};
}

static void an_object_keeps_its_shards_and_their_bytes(void **state)
{
    (void)state;
    fixture_t fixture;
    open_shard_store(&fixture, 0);
    tow_shard_list_t odd = shards_at(&fixture, 1, 2);
    must(tow_shard_store_put(fixture.shard_store, 7, &odd));
    const tow_shard_store_object_t *object =
        tow_shard_store_find(fixture.shard_store, 7);
    assert_non_null(object);
    assert_int_equal(object->shard_count, SHARDS);
    for (size_t i = 0; i < SHARDS; i++)
        assert_ptr_equal(object->shards[i], fixture.list[1 + 2 * i]);
    tow_shard_store_totals_t totals =
        tow_shard_store_totals(fixture.shard_store);
    assert_int_equal(totals.bytes, 101 + 103 + 105);
    assert_int_equal(totals.shard_count, SHARDS);
    assert_true(tow_shard_store_remove(fixture.shard_store, 7));
    assert_false(tow_shard_store_remove(fixture.shard_store, 7));
    expect_released(&fixture, 1, 2);
    totals = tow_shard_store_totals(fixture.shard_store);
    assert_int_equal(totals.bytes + totals.object_count + totals.shard_count,
                     0);
    tow_shard_store_destroy(fixture.shard_store);
}

static void a_key_is_used_once(void **state)
{
    (void)state;
    fixture_t fixture;
    open_shard_store(&fixture, 0);
    tow_shard_list_t first = shards_at(&fixture, 0, 1);
    tow_shard_list_t second = shards_at(&fixture, SHARDS, 1);
    must(tow_shard_store_put(fixture.shard_store, 7, &first));
    expect_error(tow_shard_store_put(fixture.shard_store, 7, &second),
                 TOW_ALREADY_EXISTS, "object 7");
    assert_int_equal(fixture.buffers[SHARDS].reference_count, 1);
    tow_shard_store_destroy(fixture.shard_store);
    expect_released(&fixture, 0, 1);
}

static void a_failed_object_releases_its_shards_and_keeps_the_first_cause(
    void **state)
{
    (void)state;
    fixture_t fixture;
    open_shard_store(&fixture, 0);
    tow_shard_list_t shards = shards_at(&fixture, 0, 1);
    must(tow_shard_store_put(fixture.shard_store, 7, &shards));
    tow_shard_store_object_t *object =
        tow_shard_store_find(fixture.shard_store, 7);
    tow_status_t cause = TOW_ERROR(TOW_DATA_LOSS, "first");
    tow_shard_store_fail(fixture.shard_store, object, cause);
    tow_shard_store_fail(fixture.shard_store, object,
                         tow_status_bare(TOW_INTERNAL));
    expect_released(&fixture, 0, 1);
    assert_ptr_equal(object->error, cause);
    assert_int_equal(tow_shard_store_totals(fixture.shard_store).bytes, 0);
    assert_int_equal(tow_shard_store_totals(fixture.shard_store).failed_count,
                     1);
    must(tow_shard_store_put_failed(fixture.shard_store, 8, cause));
    tow_status_release(cause);
    assert_int_equal(tow_shard_store_totals(fixture.shard_store).failed_count,
                     2);
    tow_shard_store_clear(fixture.shard_store);
    assert_int_equal(tow_shard_store_totals(fixture.shard_store).object_count,
                     0);
    assert_int_equal(tow_shard_store_totals(fixture.shard_store).failed_count,
                     0);
    tow_shard_store_destroy(fixture.shard_store);
}

static void a_full_shard_store_refuses_objects(void **state)
{
    (void)state;
    fixture_t fixture;
    open_shard_store(&fixture, 1);
    tow_shard_list_t first = shards_at(&fixture, 0, 1);
    tow_shard_list_t second = shards_at(&fixture, SHARDS, 1);
    must(tow_shard_store_put(fixture.shard_store, 1, &first));
    expect_error(tow_shard_store_put(fixture.shard_store, 2, &second),
                 TOW_RESOURCE_EXHAUSTED, "limit is 1");
    assert_true(tow_shard_store_remove(fixture.shard_store, 1));
    must(tow_shard_store_put(fixture.shard_store, 2, &second));
    tow_shard_store_destroy(fixture.shard_store);
}

static void a_discarded_shard_store_releases_nothing(void **state)
{
    (void)state;
    fixture_t fixture;
    open_shard_store(&fixture, 0);
    tow_shard_list_t shards = shards_at(&fixture, 0, 1);
    must(tow_shard_store_put(fixture.shard_store, 1, &shards));
    tow_status_t cause = TOW_ERROR(TOW_INTERNAL, "cause");
    must(tow_shard_store_put_failed(fixture.shard_store, 2, cause));
    tow_status_release(cause);
    tow_shard_store_discard(fixture.shard_store);
    assert_int_equal(fixture.buffers[0].reference_count, 1);
}

static tow_exhaust_result_t fill(void *context)
{
    (void)context;
    fixture_t fixture = {0};
    tow_status_t status = tow_shard_store_create(
        &(tow_shard_store_options_t){.shard_count_max = SHARDS},
        &fixture.shard_store);
    counted_t buffer = {.base.driver = &counting_driver,
                        .reference_count = 1000};
    tow_buffer_t *list[] = {&buffer.base};
    tow_shard_list_t shards = {.first = list, .stride = 0, .count = SHARDS};
    for (uint64_t key = 1; key <= 100 && status == TOW_OK; key++)
        status = tow_shard_store_put(fixture.shard_store, key, &shards);
    tow_exhaust_result_t result =
        status == TOW_OK ? TOW_EXHAUST_SUCCEEDED : TOW_EXHAUST_FAILED;
    tow_status_release(status);
    tow_shard_store_destroy(fixture.shard_store);
    return result;
}

static void exhausted_memory_is_an_error(void **state)
{
    (void)state;
    assert_true(tow_test_exhaust(fill, NULL) > 3);
}

TOW_TEST_MAIN(
    cmocka_unit_test(an_object_keeps_its_shards_and_their_bytes),
    cmocka_unit_test(a_key_is_used_once),
    cmocka_unit_test(
        a_failed_object_releases_its_shards_and_keeps_the_first_cause),
    cmocka_unit_test(a_full_shard_store_refuses_objects),
    cmocka_unit_test(a_discarded_shard_store_releases_nothing),
    cmocka_unit_test(exhausted_memory_is_an_error))
