#include "base/testing.h"

#include <string.h>

#include "base/alloc.h"
#include "store/object_table_impl.h"

#define DEVICE_COUNT 4
#define LIMIT_BYTES  1000

/* An object table with four devices, a placement on all of them, and one on the
 * first two. */
typedef struct fixture {
    tow_object_table_t *object_table;
    tow_account_t *accounts[DEVICE_COUNT];
    tow_placement_t *all;
    tow_placement_t *half;
    size_t discarded_count;
    tow_object_id_t discarded[16];
    tow_object_t *unhold_at_discard; /* or NULL */
} fixture_t;

static void note_discarded(void *context, tow_object_t *object)
{
    fixture_t *fixture = context;
    assert_true(fixture->discarded_count < TOW_COUNT_OF(fixture->discarded));
    fixture->discarded[fixture->discarded_count++] = object->id;
    tow_object_t *other = fixture->unhold_at_discard;
    fixture->unhold_at_discard = NULL;
    if (other != NULL) tow_object_unhold(fixture->object_table, other);
}

static int set_up(void **state)
{
    static fixture_t fixture;
    memset(&fixture, 0, sizeof(fixture));
    tow_object_table_options_t options = {.object_count_max = 8,
                                          .discarded = note_discarded,
                                          .context = &fixture};
    assert_null(tow_object_table_create(&options, &fixture.object_table));
    for (size_t i = 0; i < DEVICE_COUNT; i++)
        assert_null(tow_object_table_add_account(
            fixture.object_table, LIMIT_BYTES, &fixture.accounts[i]));
    assert_null(tow_object_table_place(fixture.object_table, fixture.accounts,
                                       DEVICE_COUNT, NULL, &fixture.all));
    assert_null(tow_object_table_place(fixture.object_table, fixture.accounts,
                                       2, NULL, &fixture.half));
    *state = &fixture;
    return 0;
}

static int tear_down(void **state)
{
    fixture_t *fixture = *state;
    assert_null(tow_object_table_check(fixture->object_table));
    tow_placement_release(fixture->all);
    tow_placement_release(fixture->half);
    tow_object_table_destroy(fixture->object_table);
    return 0;
}

static tow_object_id_t id_of(uint32_t client, uint64_t id)
{
    return (tow_object_id_t){tow_key(client, id)};
}

static tow_object_t *add(fixture_t *fixture, uint32_t client, uint64_t id,
                         uint64_t bytes)
{
    tow_object_options_t options = {
        .id = id_of(client, id),
        .state = TOW_OBJECT_ARRIVING,
        .shape = {.type = TOW_TYPE_F32, .rank = 2, .dims = {2, 3}},
        .bytes = bytes,
        .placement = fixture->all,
        .count_bytes = true,
    };
    tow_object_t *object;
    assert_null(tow_object_table_add(fixture->object_table, &options, &object));
    return object;
}

/* A result whose bytes are still reserved by its run. */
static tow_object_t *add_result(fixture_t *fixture, uint32_t client,
                                uint64_t id, uint64_t bytes)
{
    tow_object_options_t options = {
        .id = id_of(client, id),
        .state = TOW_OBJECT_PENDING,
        .bytes = bytes,
        .placement = fixture->all,
    };
    tow_object_t *object;
    assert_null(tow_object_table_add(fixture->object_table, &options, &object));
    tow_object_hold(object);
    return object;
}

static void release(fixture_t *fixture, uint32_t client, uint64_t id)
{
    assert_null(
        tow_object_table_release(fixture->object_table, id_of(client, id)));
}

static void assert_code(tow_status_t status, tow_code_t code, const char *word)
{
    assert_int_equal(tow_status_code(status), code);
    assert_non_null(strstr(tow_status_message(status), word));
    tow_status_release(status);
}

static void assert_code_and_release(tow_status_t status, tow_code_t code)
{
    assert_int_equal(tow_status_code(status), code);
    tow_status_release(status);
}

/* -- Handles and holds ----------------------------------------------------- */

static void object_table_release_of_the_only_handle_discards_an_object(
    void **state)
{
    fixture_t *fixture = *state;
    add(fixture, 1, 7, 100);
    assert_int_equal(fixture->accounts[3]->object_bytes, 100);
    release(fixture, 1, 7);
    assert_int_equal(fixture->discarded_count, 1);
    assert_int_equal(fixture->discarded[0].value, tow_key(1, 7));
    assert_null(tow_object_table_find(fixture->object_table, id_of(1, 7)));
    assert_int_equal(fixture->accounts[3]->object_bytes, 0);
    assert_int_equal(fixture->accounts[3]->peak_bytes, 100);
}

static void object_table_keeps_an_object_until_its_last_hold_ends(void **state)
{
    fixture_t *fixture = *state;
    tow_object_t *object = add(fixture, 1, 1, 100);
    tow_object_hold(object);
    tow_object_hold(object);
    release(fixture, 1, 1);
    tow_object_unhold(fixture->object_table, object);
    assert_int_equal(fixture->discarded_count, 0);
    assert_ptr_equal(tow_object_table_find(fixture->object_table, id_of(1, 1)),
                     object);
    assert_false(object->has_handle);
    tow_object_unhold(fixture->object_table, object);
    assert_int_equal(fixture->discarded_count, 1);
}

static void object_table_keeps_an_object_that_only_its_handle_holds(
    void **state)
{
    fixture_t *fixture = *state;
    tow_object_t *object = add(fixture, 1, 1, 100);
    tow_object_hold(object);
    tow_object_unhold(fixture->object_table, object);
    assert_int_equal(fixture->discarded_count, 0);
    assert_int_equal(fixture->accounts[0]->object_bytes, 100);
}

static void object_table_names_an_object_that_is_released_twice(void **state)
{
    fixture_t *fixture = *state;
    tow_object_t *object = add(fixture, 2, 5, 100);
    tow_object_hold(object);
    release(fixture, 2, 5);
    assert_code(tow_object_table_release(fixture->object_table, id_of(2, 5)),
                TOW_NOT_FOUND, "object 5 of client 2");
    tow_object_unhold(fixture->object_table, object);
    assert_code(tow_object_table_release(fixture->object_table, id_of(2, 5)),
                TOW_NOT_FOUND, "object 5 of client 2");
    assert_int_equal(fixture->discarded_count, 1);
}

static void object_table_does_not_find_another_clients_object(void **state)
{
    fixture_t *fixture = *state;
    add(fixture, 1, 5, 100);
    assert_null(tow_object_table_find(fixture->object_table, id_of(2, 5)));
    assert_code(tow_object_table_release(fixture->object_table, id_of(2, 5)),
                TOW_NOT_FOUND, "client 2");
}

static void object_table_refuses_an_id_in_use(void **state)
{
    fixture_t *fixture = *state;
    tow_object_t *object = add(fixture, 1, 5, 100);
    tow_object_hold(object);
    release(fixture, 1, 5);
    tow_object_options_t options = {.id = id_of(1, 5),
                                    .state = TOW_OBJECT_PENDING,
                                    .placement = fixture->half};
    tow_object_t *second;
    assert_code(tow_object_table_add(fixture->object_table, &options, &second),
                TOW_ALREADY_EXISTS, "object 5 of client 1");
    assert_null(second);
    options.id = id_of(1, 0);
    assert_code(tow_object_table_add(fixture->object_table, &options, &second),
                TOW_INVALID_ARGUMENT, "begin with 1");
    tow_object_unhold(fixture->object_table, object);
}

static void object_table_limits_objects_per_client(void **state)
{
    fixture_t *fixture = *state;
    for (uint64_t id = 1; id <= 8; id++)
        add(fixture, 1, id, 1);
    tow_object_options_t options = {.id = id_of(1, 9),
                                    .state = TOW_OBJECT_PENDING,
                                    .placement = fixture->half};
    tow_object_t *object;
    assert_code(tow_object_table_add(fixture->object_table, &options, &object),
                TOW_RESOURCE_EXHAUSTED, "object 9 of client 1");
    add(fixture, 2, 1, 1);
    release(fixture, 1, 4);
    assert_null(tow_object_table_add(fixture->object_table, &options, &object));
}

static void object_table_keeps_the_shape(void **state)
{
    fixture_t *fixture = *state;
    tow_object_t *object = add(fixture, 1, 1, 24);
    tow_shape_t expected = {.type = TOW_TYPE_F32, .rank = 2, .dims = {2, 3}};
    assert_true(tow_shape_equal(&object->shape, &expected));
}

/* -- Donation -------------------------------------------------------------- */

static void object_table_discards_a_consumed_object_after_its_run(void **state)
{
    fixture_t *fixture = *state;
    tow_object_t *object = add(fixture, 1, 1, 100);
    tow_object_hold(object);
    tow_object_consume(fixture->object_table, object);
    assert_int_equal(fixture->accounts[0]->object_bytes, 100);
    tow_object_unhold(fixture->object_table, object);
    assert_int_equal(fixture->discarded_count, 1);
    assert_int_equal(fixture->accounts[0]->object_bytes, 0);
}

static void object_table_keeps_the_record_of_a_consumed_object(void **state)
{
    fixture_t *fixture = *state;
    tow_object_t *object = add(fixture, 1, 1, 100);
    tow_object_hold(object);
    tow_object_consume(fixture->object_table, object);
    tow_object_unhold(fixture->object_table, object);
    assert_ptr_equal(tow_object_table_find(fixture->object_table, id_of(1, 1)),
                     object);
    assert_true(object->consumed);
    assert_int_equal(
        tow_object_table_totals(fixture->object_table).discarded_count, 1);
    assert_null(tow_object_table_check(fixture->object_table));
    release(fixture, 1, 1);
    assert_int_equal(fixture->discarded_count, 1);
    assert_null(tow_object_table_find(fixture->object_table, id_of(1, 1)));
    assert_int_equal(
        tow_object_table_totals(fixture->object_table).object_count, 0);
}

static void object_table_donation_waits_for_all_other_holds(void **state)
{
    fixture_t *fixture = *state;
    tow_object_t *object = add(fixture, 1, 1, 100);
    tow_object_hold(object); /* A run that reads it. */
    tow_object_hold(object); /* The one that consumes it. */
    tow_object_consume(fixture->object_table, object);
    release(fixture, 1, 1);
    tow_object_unhold(fixture->object_table, object);
    assert_int_equal(fixture->discarded_count, 0);
    assert_int_equal(fixture->accounts[0]->object_bytes, 100);
    tow_object_unhold(fixture->object_table, object);
    assert_int_equal(fixture->discarded_count, 1);
}

/* -- Disconnected clients and devices -------------------------------------- */

static void object_table_release_of_a_client_discards_its_objects_in_order(
    void **state)
{
    fixture_t *fixture = *state;
    add(fixture, 1, 3, 10);
    add(fixture, 2, 1, 10);
    add(fixture, 1, 1, 10);
    tow_object_t *held = add(fixture, 1, 2, 10);
    tow_object_hold(held);
    tow_object_table_release_client(fixture->object_table, 1);
    assert_int_equal(fixture->discarded_count, 2);
    assert_int_equal(fixture->discarded[0].value, tow_key(1, 3));
    assert_int_equal(fixture->discarded[1].value, tow_key(1, 1));
    assert_null(tow_object_table_check(fixture->object_table));
    tow_object_unhold(fixture->object_table, held);
    assert_int_equal(fixture->discarded_count, 3);
    tow_object_table_totals_t totals =
        tow_object_table_totals(fixture->object_table);
    assert_int_equal(totals.object_count, 1);
    assert_int_equal(totals.object_bytes, 10 * DEVICE_COUNT);
}

static void object_table_release_of_a_client_includes_consumed_handles(
    void **state)
{
    fixture_t *fixture = *state;
    tow_object_t *object = add(fixture, 1, 1, 10);
    tow_object_hold(object);
    tow_object_consume(fixture->object_table, object);
    tow_object_unhold(fixture->object_table, object);
    tow_object_table_release_client(fixture->object_table, 1);
    tow_object_table_release_client(fixture->object_table, 1);
    tow_object_table_release_client(fixture->object_table, 99);
    assert_int_equal(fixture->discarded_count, 1);
    assert_int_equal(
        tow_object_table_totals(fixture->object_table).object_count, 0);
}

static void object_table_a_discard_may_cause_others(void **state)
{
    fixture_t *fixture = *state;
    add(fixture, 1, 1, 10);
    tow_object_t *next = add(fixture, 1, 2, 10);
    add(fixture, 1, 3, 10);
    tow_object_hold(next);
    release(fixture, 1, 2);
    fixture->unhold_at_discard = next; /* Held by the first discarded object. */
    tow_object_table_release_client(fixture->object_table, 1);
    assert_int_equal(fixture->discarded_count, 3);
    assert_int_equal(fixture->discarded[1].value, tow_key(1, 2));
    assert_int_equal(
        tow_object_table_totals(fixture->object_table).object_count, 0);
}

static void object_table_keeps_nothing_of_a_disconnected_client(void **state)
{
    fixture_t *fixture = *state;
    tow_object_t *object = add(fixture, 1, 1, 10);
    add(fixture, 2, 1, 10);
    tow_object_hold(object);
    tow_object_table_release_client(fixture->object_table, 1);
    tow_object_table_release_client(fixture->object_table, 2);
    assert_int_equal(tow_map_count(&fixture->object_table->clients), 1);
    tow_object_unhold(fixture->object_table, object);
    assert_int_equal(tow_map_count(&fixture->object_table->clients), 0);
    add(fixture, 1, 1, 10);
}

static void object_table_disconnected_device_fails_its_objects(void **state)
{
    fixture_t *fixture = *state;
    tow_object_t *wide = add(fixture, 1, 1, 100);
    tow_object_options_t options = {.id = id_of(1, 2),
                                    .state = TOW_OBJECT_ARRIVING,
                                    .bytes = 7,
                                    .placement = fixture->half,
                                    .count_bytes = true};
    tow_object_t *narrow;
    assert_null(tow_object_table_add(fixture->object_table, &options, &narrow));
    tow_status_t cause = TOW_ERROR(TOW_UNAVAILABLE, "worker w3 is gone");
    tow_object_table_on_disconnect(fixture->object_table, fixture->accounts[3],
                                   cause);
    tow_status_release(cause);

    assert_int_equal(wide->state, TOW_OBJECT_FAILED);
    assert_string_equal(tow_status_message(wide->error), "worker w3 is gone");
    assert_true(fixture->all->disconnected);
    assert_int_equal(narrow->state, TOW_OBJECT_ARRIVING);
    assert_false(fixture->half->disconnected);
    assert_int_equal(fixture->accounts[3]->object_bytes, 0);
    assert_int_equal(fixture->accounts[2]->object_bytes, 100);
    assert_null(tow_object_table_check(fixture->object_table));
    assert_int_equal(fixture->discarded_count, 0);
    release(fixture, 1, 1);
    assert_int_equal(fixture->accounts[2]->object_bytes, 0);
    assert_int_equal(fixture->accounts[0]->object_bytes, 7);
}

static void object_table_failed_object_keeps_its_first_error(void **state)
{
    fixture_t *fixture = *state;
    tow_object_t *object = add(fixture, 1, 1, 100);
    tow_status_t first = TOW_ERROR(TOW_UNAVAILABLE, "first");
    tow_status_t second = TOW_ERROR(TOW_UNAVAILABLE, "second");
    tow_object_table_on_disconnect(fixture->object_table, fixture->accounts[0],
                                   first);
    tow_object_table_on_disconnect(fixture->object_table, fixture->accounts[1],
                                   second);
    tow_object_table_on_disconnect(fixture->object_table, fixture->accounts[1],
                                   second);
    tow_object_fail(object, second);
    tow_object_set_ready(object);
    assert_int_equal(object->state, TOW_OBJECT_FAILED);
    assert_string_equal(tow_status_message(object->error), "first");
    assert_string_equal(tow_status_message(fixture->half->error), "first");
    tow_status_release(first);
    tow_status_release(second);
}

static void object_table_object_on_a_disconnected_placement_fails_at_once(
    void **state)
{
    fixture_t *fixture = *state;
    tow_status_t cause = TOW_ERROR(TOW_UNAVAILABLE, "worker w3 is gone");
    tow_object_table_on_disconnect(fixture->object_table, fixture->accounts[3],
                                   cause);
    tow_status_release(cause);
    tow_object_t *object = add(fixture, 1, 1, 100);
    assert_int_equal(object->state, TOW_OBJECT_FAILED);
    assert_string_equal(tow_status_message(object->error), "worker w3 is gone");
    assert_false(tow_placement_fits(fixture->all, 0));
    assert_code(tow_placement_refusal(fixture->all, 0), TOW_UNAVAILABLE, "w3");
}

static void object_table_object_without_a_placement_has_only_an_error(
    void **state)
{
    fixture_t *fixture = *state;
    tow_object_options_t options = {.id = id_of(1, 1),
                                    .state = TOW_OBJECT_PENDING};
    tow_object_t *object;
    assert_null(tow_object_table_add(fixture->object_table, &options, &object));
    tow_status_t cause = TOW_ERROR(TOW_INVALID_ARGUMENT, "no such program");
    tow_object_fail(object, cause);
    tow_status_release(cause);
    assert_null(tow_object_table_check(fixture->object_table));
    tow_object_table_on_disconnect(fixture->object_table, fixture->accounts[0],
                                   object->error);
    release(fixture, 1, 1);
    assert_int_equal(fixture->discarded_count, 1);
}

static void placement_refuses_disconnected_and_duplicate_devices(void **state)
{
    fixture_t *fixture = *state;
    tow_account_t *twice[] = {fixture->accounts[1], fixture->accounts[2],
                              fixture->accounts[1]};
    tow_placement_t *placement;
    assert_code(tow_object_table_place(fixture->object_table, twice, 3, NULL,
                                       &placement),
                TOW_INVALID_ARGUMENT, "device 0 of 3");
    assert_code(tow_object_table_place(fixture->object_table, twice, 0, NULL,
                                       &placement),
                TOW_INVALID_ARGUMENT, "at least one");
    tow_status_t cause = TOW_ERROR(TOW_UNAVAILABLE, "gone");
    tow_object_table_on_disconnect(fixture->object_table, fixture->accounts[2],
                                   cause);
    tow_status_release(cause);
    assert_code(tow_object_table_place(fixture->object_table, twice, 2, NULL,
                                       &placement),
                TOW_UNAVAILABLE, "device 1 of 2");
    assert_null(placement);
    assert_null(tow_object_table_place(fixture->object_table, twice, 1, fixture,
                                       &placement));
    assert_ptr_equal(placement->context, fixture);
    tow_placement_release(placement);
}

/* -- Memory ---------------------------------------------------------------- */

static void memory_is_counted_exactly_from_reservation_to_object(void **state)
{
    fixture_t *fixture = *state;
    tow_object_t *result = add_result(fixture, 1, 1, 300);
    tow_account_t *account = fixture->accounts[2];
    assert_int_equal(account->object_bytes, 0);
    tow_placement_reserve(fixture->all, 500);
    assert_int_equal(account->reserved_bytes, 500);
    assert_null(tow_object_table_check(fixture->object_table));
    tow_placement_unreserve(fixture->all, 500);
    tow_object_count_bytes(result);
    tow_object_count_bytes(result);
    tow_object_set_ready(result);
    tow_object_unhold(fixture->object_table, result);
    assert_int_equal(account->reserved_bytes, 0);
    assert_int_equal(account->object_bytes, 300);
    assert_int_equal(account->peak_bytes, 500);
    release(fixture, 1, 1);
    assert_int_equal(account->object_bytes, 0);
}

static void memory_of_a_result_released_early_is_returned(void **state)
{
    fixture_t *fixture = *state;
    tow_object_t *result = add_result(fixture, 1, 1, 300);
    release(fixture, 1, 1);
    assert_int_equal(fixture->discarded_count, 0);
    tow_object_count_bytes(result);
    tow_object_unhold(fixture->object_table, result);
    assert_int_equal(fixture->discarded_count, 1);
    assert_int_equal(fixture->accounts[0]->object_bytes, 0);
}

static void memory_fits_to_the_last_byte(void **state)
{
    fixture_t *fixture = *state;
    add(fixture, 1, 1, 600);
    assert_true(tow_placement_fits(fixture->half, 400));
    assert_false(tow_placement_fits(fixture->half, 401));
    assert_false(tow_placement_fits(fixture->half, UINT64_MAX));
    tow_placement_reserve(fixture->half, 400);
    assert_true(tow_placement_fits(fixture->half, 0));
    assert_false(tow_placement_fits(fixture->half, 1));
    assert_false(tow_placement_fits(fixture->all, 1));
    tow_placement_unreserve(fixture->half, 400);
}

static void memory_without_a_limit_never_wraps_around(void **state)
{
    fixture_t *fixture = *state;
    tow_account_t *account;
    tow_placement_t *placement;
    assert_null(
        tow_object_table_add_account(fixture->object_table, 0, &account));
    assert_null(tow_object_table_place(fixture->object_table, &account, 1, NULL,
                                       &placement));
    tow_placement_reserve(placement, UINT64_MAX - 10);
    assert_true(tow_placement_fits(placement, 10));
    assert_false(tow_placement_fits(placement, 11));
    tow_placement_unreserve(placement, UINT64_MAX - 10);
    tow_placement_release(placement);
}

static void memory_refusal_names_the_device_and_the_shortage(void **state)
{
    fixture_t *fixture = *state;
    tow_account_t *pair[] = {fixture->accounts[3], fixture->accounts[2]};
    tow_placement_t *placement;
    assert_null(tow_object_table_place(fixture->object_table, pair, 1, NULL,
                                       &placement));
    tow_placement_reserve(placement, 600);
    tow_status_t status = tow_placement_refusal(fixture->all, 500);
    assert_int_equal(tow_status_code(status), TOW_RESOURCE_EXHAUSTED);
    assert_string_equal(tow_status_message(status),
                        "500 bytes do not fit on device 3 of 4: of its 1000 "
                        "bytes of memory, objects have 0 and runs under way "
                        "600");
    tow_status_release(status);
    tow_placement_unreserve(placement, 600);
    tow_placement_release(placement);
}

static void memory_reserved_on_a_disconnected_device_is_returned_once(
    void **state)
{
    fixture_t *fixture = *state;
    tow_placement_reserve(fixture->all, 500);
    tow_status_t cause = TOW_ERROR(TOW_UNAVAILABLE, "gone");
    tow_object_table_on_disconnect(fixture->object_table, fixture->accounts[1],
                                   cause);
    tow_status_release(cause);
    assert_null(tow_object_table_check(fixture->object_table));
    assert_int_equal(
        tow_object_table_totals(fixture->object_table).reserved_bytes, 1500);
    tow_placement_unreserve(fixture->all, 500);
    assert_int_equal(
        tow_object_table_totals(fixture->object_table).reserved_bytes, 0);
}

/* -- Accounting ------------------------------------------------------------ */

static void totals_exist_for_all_and_for_each_client(void **state)
{
    fixture_t *fixture = *state;
    add(fixture, 1, 1, 100);
    add(fixture, 1, 2, 100);
    add(fixture, 2, 1, 50);
    add_result(fixture, 2, 2, 500);
    tow_object_table_totals_t all =
        tow_object_table_totals(fixture->object_table);
    tow_object_table_totals_t first =
        tow_object_table_client_totals(fixture->object_table, 1);
    tow_object_table_totals_t second =
        tow_object_table_client_totals(fixture->object_table, 2);
    assert_int_equal(all.object_count, 4);
    assert_int_equal(all.object_bytes, 250 * DEVICE_COUNT);
    assert_int_equal(first.object_count, 2);
    assert_int_equal(first.object_bytes, 200 * DEVICE_COUNT);
    assert_int_equal(second.object_count, 2);
    assert_int_equal(second.object_bytes, 50 * DEVICE_COUNT);
    assert_int_equal(
        tow_object_table_client_totals(fixture->object_table, 3).object_count,
        0);
}

static void check_finds_sums_that_disagree(void **state)
{
    fixture_t *fixture = *state;
    tow_object_t *object = add(fixture, 1, 1, 100);
    fixture->accounts[2]->object_bytes++;
    assert_code(tow_object_table_check(fixture->object_table), TOW_INTERNAL,
                "account 2");
    fixture->accounts[2]->object_bytes--;
    fixture->accounts[1]->reserved_bytes += 5;
    assert_code(tow_object_table_check(fixture->object_table), TOW_INTERNAL,
                "account 1: reservations have 0");
    fixture->accounts[1]->reserved_bytes -= 5;
    object->has_handle = false;
    assert_code(tow_object_table_check(fixture->object_table), TOW_INTERNAL,
                "it has no holds");
    object->has_handle = true;
    fixture->half->disconnected = true;
    assert_code_and_release(tow_object_table_check(fixture->object_table),
                            TOW_INTERNAL);
    fixture->half->disconnected = false;
    assert_null(tow_object_table_check(fixture->object_table));
}

/* -- Exhaustion ------------------------------------------------------------ */

static tow_status_t use_table(tow_object_table_t *object_table)
{
    tow_account_t *account;
    tow_placement_t *placement;
    TOW_RETURN_IF_ERROR(
        tow_object_table_add_account(object_table, 0, &account));
    TOW_RETURN_IF_ERROR(
        tow_object_table_place(object_table, &account, 1, NULL, &placement));
    tow_status_t status = TOW_OK;
    for (uint64_t i = 0; i < 40 && status == TOW_OK; i++) {
        tow_object_options_t options = {.id = id_of(1 + i % 3, 1 + i),
                                        .state = TOW_OBJECT_PENDING,
                                        .bytes = 8,
                                        .placement = placement,
                                        .count_bytes = true};
        tow_object_t *object;
        status = tow_object_table_add(object_table, &options, &object);
        assert_null(tow_object_table_check(object_table));
    }
    if (status == TOW_OK)
        status = tow_object_table_release(object_table, id_of(1, 1));
    tow_placement_release(placement);
    return status;
}

static tow_exhaust_result_t use_and_destroy(void *context)
{
    (void)context;
    tow_object_table_t *object_table;
    tow_status_t status = tow_object_table_create(
        &(tow_object_table_options_t){0}, &object_table);
    if (status == TOW_OK) status = use_table(object_table);
    tow_object_table_destroy(object_table);
    bool failed = status != TOW_OK;
    tow_status_release(status);
    return failed ? TOW_EXHAUST_FAILED : TOW_EXHAUST_SUCCEEDED;
}

static void object_table_balances_after_any_allocation_fails(void **state)
{
    (void)state;
    assert_true(tow_test_exhaust(use_and_destroy, NULL) > 8);
}

static void object_table_makes_no_allocation_per_object(void **state)
{
    fixture_t *fixture = *state;
    add(fixture, 1, 1, 8);
    add(fixture, 1, 2, 8);
    release(fixture, 1, 2);
    tow_alloc_fail_after(0);
    for (uint64_t id = 3; id < 14; id++) {
        tow_object_hold(add(fixture, 1, id, 8));
        tow_object_unhold(
            fixture->object_table,
            tow_object_table_find(fixture->object_table, id_of(1, id)));
        release(fixture, 1, id);
    }
    assert_false(tow_alloc_has_failed());
    tow_alloc_fail_after(UINT64_MAX);
}

#define CASE(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)

TOW_TEST_MAIN(
    CASE(object_table_release_of_the_only_handle_discards_an_object),
    CASE(object_table_keeps_an_object_until_its_last_hold_ends),
    CASE(object_table_keeps_an_object_that_only_its_handle_holds),
    CASE(object_table_names_an_object_that_is_released_twice),
    CASE(object_table_does_not_find_another_clients_object),
    CASE(object_table_refuses_an_id_in_use),
    CASE(object_table_limits_objects_per_client),
    CASE(object_table_keeps_the_shape),
    CASE(object_table_discards_a_consumed_object_after_its_run),
    CASE(object_table_keeps_the_record_of_a_consumed_object),
    CASE(object_table_donation_waits_for_all_other_holds),
    CASE(object_table_release_of_a_client_discards_its_objects_in_order),
    CASE(object_table_release_of_a_client_includes_consumed_handles),
    CASE(object_table_a_discard_may_cause_others),
    CASE(object_table_keeps_nothing_of_a_disconnected_client),
    CASE(object_table_disconnected_device_fails_its_objects),
    CASE(object_table_failed_object_keeps_its_first_error),
    CASE(object_table_object_on_a_disconnected_placement_fails_at_once),
    CASE(object_table_object_without_a_placement_has_only_an_error),
    CASE(placement_refuses_disconnected_and_duplicate_devices),
    CASE(memory_is_counted_exactly_from_reservation_to_object),
    CASE(memory_of_a_result_released_early_is_returned),
    CASE(memory_fits_to_the_last_byte),
    CASE(memory_without_a_limit_never_wraps_around),
    CASE(memory_refusal_names_the_device_and_the_shortage),
    CASE(memory_reserved_on_a_disconnected_device_is_returned_once),
    CASE(totals_exist_for_all_and_for_each_client),
    CASE(check_finds_sums_that_disagree),
    cmocka_unit_test(object_table_balances_after_any_allocation_fails),
    CASE(object_table_makes_no_allocation_per_object))
