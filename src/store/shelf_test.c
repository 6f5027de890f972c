#include "base/testing.h"

#include <string.h>

#include "base/alloc.h"
#include "store/shelf.h"

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
    tow_shelf_t *shelf;
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

static void open_shelf(fixture_t *fixture, size_t object_count_max)
{
    *fixture = (fixture_t){0};
    must(tow_shelf_create(
        &(tow_shelf_options_t){.shard_count_max = SHARDS,
                               .object_count_max = object_count_max},
        &fixture->shelf));
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
    open_shelf(&fixture, 0);
    tow_shard_list_t odd = shards_at(&fixture, 1, 2);
    must(tow_shelf_put(fixture.shelf, 7, &odd));
    const tow_shelf_object_t *object = tow_shelf_find(fixture.shelf, 7);
    assert_non_null(object);
    assert_int_equal(object->shard_count, SHARDS);
    for (size_t i = 0; i < SHARDS; i++)
        assert_ptr_equal(object->shards[i], fixture.list[1 + 2 * i]);
    tow_shelf_totals_t totals = tow_shelf_totals(fixture.shelf);
    assert_int_equal(totals.bytes, 101 + 103 + 105);
    assert_int_equal(totals.shard_count, SHARDS);
    assert_true(tow_shelf_remove(fixture.shelf, 7));
    assert_false(tow_shelf_remove(fixture.shelf, 7));
    expect_released(&fixture, 1, 2);
    totals = tow_shelf_totals(fixture.shelf);
    assert_int_equal(totals.bytes + totals.object_count + totals.shard_count,
                     0);
    tow_shelf_destroy(fixture.shelf);
}

static void a_key_is_taken_once(void **state)
{
    (void)state;
    fixture_t fixture;
    open_shelf(&fixture, 0);
    tow_shard_list_t first = shards_at(&fixture, 0, 1);
    tow_shard_list_t second = shards_at(&fixture, SHARDS, 1);
    must(tow_shelf_put(fixture.shelf, 7, &first));
    expect_error(tow_shelf_put(fixture.shelf, 7, &second), TOW_ALREADY_EXISTS,
                 "object 7");
    assert_int_equal(fixture.buffers[SHARDS].reference_count, 1);
    tow_shelf_destroy(fixture.shelf);
    expect_released(&fixture, 0, 1);
}

static void a_failed_object_lets_its_shards_go_and_keeps_the_first_cause(
    void **state)
{
    (void)state;
    fixture_t fixture;
    open_shelf(&fixture, 0);
    tow_shard_list_t shards = shards_at(&fixture, 0, 1);
    must(tow_shelf_put(fixture.shelf, 7, &shards));
    tow_shelf_object_t *object = tow_shelf_find(fixture.shelf, 7);
    tow_status_t cause = TOW_ERROR(TOW_DATA_LOSS, "first");
    tow_shelf_fail(fixture.shelf, object, cause);
    tow_shelf_fail(fixture.shelf, object, tow_status_bare(TOW_INTERNAL));
    expect_released(&fixture, 0, 1);
    assert_ptr_equal(object->error, cause);
    assert_int_equal(tow_shelf_totals(fixture.shelf).bytes, 0);
    assert_int_equal(tow_shelf_totals(fixture.shelf).failed_count, 1);
    must(tow_shelf_put_failed(fixture.shelf, 8, cause));
    tow_status_release(cause);
    assert_int_equal(tow_shelf_totals(fixture.shelf).failed_count, 2);
    tow_shelf_clear(fixture.shelf);
    assert_int_equal(tow_shelf_totals(fixture.shelf).object_count, 0);
    assert_int_equal(tow_shelf_totals(fixture.shelf).failed_count, 0);
    tow_shelf_destroy(fixture.shelf);
}

static void a_full_shelf_refuses(void **state)
{
    (void)state;
    fixture_t fixture;
    open_shelf(&fixture, 1);
    tow_shard_list_t first = shards_at(&fixture, 0, 1);
    tow_shard_list_t second = shards_at(&fixture, SHARDS, 1);
    must(tow_shelf_put(fixture.shelf, 1, &first));
    expect_error(tow_shelf_put(fixture.shelf, 2, &second),
                 TOW_RESOURCE_EXHAUSTED, "which has 1 places");
    assert_true(tow_shelf_remove(fixture.shelf, 1));
    must(tow_shelf_put(fixture.shelf, 2, &second));
    tow_shelf_destroy(fixture.shelf);
}

static void a_dead_process_releases_nothing(void **state)
{
    (void)state;
    fixture_t fixture;
    open_shelf(&fixture, 0);
    tow_shard_list_t shards = shards_at(&fixture, 0, 1);
    must(tow_shelf_put(fixture.shelf, 1, &shards));
    tow_status_t cause = TOW_ERROR(TOW_INTERNAL, "cause");
    must(tow_shelf_put_failed(fixture.shelf, 2, cause));
    tow_status_release(cause);
    tow_shelf_forget(fixture.shelf);
    assert_int_equal(fixture.buffers[0].reference_count, 1);
}

static tow_exhaust_result_t fill(void *context)
{
    (void)context;
    fixture_t fixture = {0};
    tow_status_t status = tow_shelf_create(
        &(tow_shelf_options_t){.shard_count_max = SHARDS}, &fixture.shelf);
    counted_t buffer = {.base.driver = &counting_driver,
                        .reference_count = 1000};
    tow_buffer_t *list[] = {&buffer.base};
    tow_shard_list_t shards = {.first = list, .stride = 0, .count = SHARDS};
    for (uint64_t key = 1; key <= 100 && status == TOW_OK; key++)
        status = tow_shelf_put(fixture.shelf, key, &shards);
    tow_exhaust_result_t result =
        status == TOW_OK ? TOW_EXHAUST_SUCCEEDED : TOW_EXHAUST_FAILED;
    tow_status_release(status);
    tow_shelf_destroy(fixture.shelf);
    return result;
}

static void no_memory_is_an_error(void **state)
{
    (void)state;
    assert_true(tow_test_exhaust(fill, NULL) > 3);
}

TOW_TEST_MAIN(cmocka_unit_test(an_object_keeps_its_shards_and_their_bytes),
              cmocka_unit_test(a_key_is_taken_once),
              cmocka_unit_test(
                  a_failed_object_lets_its_shards_go_and_keeps_the_first_cause),
              cmocka_unit_test(a_full_shelf_refuses),
              cmocka_unit_test(a_dead_process_releases_nothing),
              cmocka_unit_test(no_memory_is_an_error))
