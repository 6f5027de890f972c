#include "base/testing.h"

#include <string.h>

#include "base/alloc.h"
#include "store/ledger_impl.h"

#define DEVICE_COUNT 4
#define LIMIT_BYTES  1000

/* A ledger of four devices, one placement of all, one of the first two. */
typedef struct fixture {
    tow_ledger_t *ledger;
    tow_account_t *accounts[DEVICE_COUNT];
    tow_placement_t *all;
    tow_placement_t *half;
    size_t dropped_count;
    tow_object_id_t dropped[16];
    tow_object_t *unhold_at_drop; /* or NULL */
} fixture_t;

static void note_dropped(void *context, tow_object_t *object)
{
    fixture_t *fixture = context;
    assert_true(fixture->dropped_count < TOW_COUNT_OF(fixture->dropped));
    fixture->dropped[fixture->dropped_count++] = object->id;
    tow_object_t *other = fixture->unhold_at_drop;
    fixture->unhold_at_drop = NULL;
    if (other != NULL) tow_object_unhold(fixture->ledger, other);
}

static int set_up(void **state)
{
    static fixture_t fixture;
    memset(&fixture, 0, sizeof(fixture));
    tow_ledger_options_t options = {
        .object_count_max = 8, .dropped = note_dropped, .context = &fixture};
    assert_null(tow_ledger_create(&options, &fixture.ledger));
    for (size_t i = 0; i < DEVICE_COUNT; i++)
        assert_null(tow_ledger_add_account(fixture.ledger, LIMIT_BYTES,
                                           &fixture.accounts[i]));
    assert_null(tow_ledger_place(fixture.ledger, fixture.accounts, DEVICE_COUNT,
                                 NULL, &fixture.all));
    assert_null(tow_ledger_place(fixture.ledger, fixture.accounts, 2, NULL,
                                 &fixture.half));
    *state = &fixture;
    return 0;
}

static int tear_down(void **state)
{
    fixture_t *fixture = *state;
    assert_null(tow_ledger_check(fixture->ledger));
    tow_placement_release(fixture->all);
    tow_placement_release(fixture->half);
    tow_ledger_destroy(fixture->ledger);
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
    assert_null(tow_ledger_add(fixture->ledger, &options, &object));
    return object;
}

/* A run's result: its bytes are still the run's. */
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
    assert_null(tow_ledger_add(fixture->ledger, &options, &object));
    tow_object_hold(object);
    return object;
}

static void release(fixture_t *fixture, uint32_t client, uint64_t id)
{
    assert_null(tow_ledger_release(fixture->ledger, id_of(client, id)));
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

/* -- Who holds what ----------------------------------------------------------- */

static void ledger_release_of_the_handle_drops_what_nobody_else_holds(
    void **state)
{
    fixture_t *fixture = *state;
    add(fixture, 1, 7, 100);
    assert_int_equal(fixture->accounts[3]->object_bytes, 100);
    release(fixture, 1, 7);
    assert_int_equal(fixture->dropped_count, 1);
    assert_int_equal(fixture->dropped[0].value, tow_key(1, 7));
    assert_null(tow_ledger_find(fixture->ledger, id_of(1, 7)));
    assert_int_equal(fixture->accounts[3]->object_bytes, 0);
    assert_int_equal(fixture->accounts[3]->peak_bytes, 100);
}

static void ledger_keeps_an_object_until_the_last_hold_has_gone(void **state)
{
    fixture_t *fixture = *state;
    tow_object_t *object = add(fixture, 1, 1, 100);
    tow_object_hold(object);
    tow_object_hold(object);
    release(fixture, 1, 1);
    tow_object_unhold(fixture->ledger, object);
    assert_int_equal(fixture->dropped_count, 0);
    assert_ptr_equal(tow_ledger_find(fixture->ledger, id_of(1, 1)), object);
    assert_false(object->has_handle);
    tow_object_unhold(fixture->ledger, object);
    assert_int_equal(fixture->dropped_count, 1);
}

static void ledger_keeps_an_object_that_only_its_handle_holds(void **state)
{
    fixture_t *fixture = *state;
    tow_object_t *object = add(fixture, 1, 1, 100);
    tow_object_hold(object);
    tow_object_unhold(fixture->ledger, object);
    assert_int_equal(fixture->dropped_count, 0);
    assert_int_equal(fixture->accounts[0]->object_bytes, 100);
}

static void ledger_names_the_object_that_is_released_twice(void **state)
{
    fixture_t *fixture = *state;
    tow_object_t *object = add(fixture, 2, 5, 100);
    tow_object_hold(object);
    release(fixture, 2, 5);
    assert_code(tow_ledger_release(fixture->ledger, id_of(2, 5)), TOW_NOT_FOUND,
                "object 5 of client 2");
    tow_object_unhold(fixture->ledger, object);
    assert_code(tow_ledger_release(fixture->ledger, id_of(2, 5)), TOW_NOT_FOUND,
                "object 5 of client 2");
    assert_int_equal(fixture->dropped_count, 1);
}

static void ledger_does_not_find_another_clients_object(void **state)
{
    fixture_t *fixture = *state;
    add(fixture, 1, 5, 100);
    assert_null(tow_ledger_find(fixture->ledger, id_of(2, 5)));
    assert_code(tow_ledger_release(fixture->ledger, id_of(2, 5)), TOW_NOT_FOUND,
                "client 2");
}

static void ledger_refuses_an_id_that_is_taken(void **state)
{
    fixture_t *fixture = *state;
    tow_object_t *object = add(fixture, 1, 5, 100);
    tow_object_hold(object);
    release(fixture, 1, 5);
    tow_object_options_t options = {.id = id_of(1, 5),
                                    .state = TOW_OBJECT_PENDING,
                                    .placement = fixture->half};
    tow_object_t *second;
    assert_code(tow_ledger_add(fixture->ledger, &options, &second),
                TOW_ALREADY_EXISTS, "object 5 of client 1");
    assert_null(second);
    options.id = id_of(1, 0);
    assert_code(tow_ledger_add(fixture->ledger, &options, &second),
                TOW_INVALID_ARGUMENT, "begin with 1");
    tow_object_unhold(fixture->ledger, object);
}

static void ledger_limits_each_clients_objects_apart(void **state)
{
    fixture_t *fixture = *state;
    for (uint64_t id = 1; id <= 8; id++)
        add(fixture, 1, id, 1);
    tow_object_options_t options = {.id = id_of(1, 9),
                                    .state = TOW_OBJECT_PENDING,
                                    .placement = fixture->half};
    tow_object_t *object;
    assert_code(tow_ledger_add(fixture->ledger, &options, &object),
                TOW_RESOURCE_EXHAUSTED, "object 9 of client 1");
    add(fixture, 2, 1, 1);
    release(fixture, 1, 4);
    assert_null(tow_ledger_add(fixture->ledger, &options, &object));
}

static void ledger_keeps_the_shape(void **state)
{
    fixture_t *fixture = *state;
    tow_object_t *object = add(fixture, 1, 1, 24);
    tow_shape_t expected = {.type = TOW_TYPE_F32, .rank = 2, .dims = {2, 3}};
    assert_true(tow_shape_equal(&object->shape, &expected));
}

/* -- Donation ----------------------------------------------------------------- */

static void ledger_drops_a_consumed_object_when_its_run_has_finished(
    void **state)
{
    fixture_t *fixture = *state;
    tow_object_t *object = add(fixture, 1, 1, 100);
    tow_object_hold(object);
    tow_object_consume(fixture->ledger, object);
    assert_int_equal(fixture->accounts[0]->object_bytes, 100);
    tow_object_unhold(fixture->ledger, object);
    assert_int_equal(fixture->dropped_count, 1);
    assert_int_equal(fixture->accounts[0]->object_bytes, 0);
}

static void ledger_keeps_the_handle_of_a_consumed_object_to_tell_of_it(
    void **state)
{
    fixture_t *fixture = *state;
    tow_object_t *object = add(fixture, 1, 1, 100);
    tow_object_hold(object);
    tow_object_consume(fixture->ledger, object);
    tow_object_unhold(fixture->ledger, object);
    assert_ptr_equal(tow_ledger_find(fixture->ledger, id_of(1, 1)), object);
    assert_true(object->consumed);
    assert_int_equal(tow_ledger_totals(fixture->ledger).dropped_count, 1);
    assert_null(tow_ledger_check(fixture->ledger));
    release(fixture, 1, 1);
    assert_int_equal(fixture->dropped_count, 1);
    assert_null(tow_ledger_find(fixture->ledger, id_of(1, 1)));
    assert_int_equal(tow_ledger_totals(fixture->ledger).object_count, 0);
}

static void ledger_donation_waits_for_every_other_holder(void **state)
{
    fixture_t *fixture = *state;
    tow_object_t *object = add(fixture, 1, 1, 100);
    tow_object_hold(object); /* A run that reads it. */
    tow_object_hold(object); /* The one that consumes it. */
    tow_object_consume(fixture->ledger, object);
    release(fixture, 1, 1);
    tow_object_unhold(fixture->ledger, object);
    assert_int_equal(fixture->dropped_count, 0);
    assert_int_equal(fixture->accounts[0]->object_bytes, 100);
    tow_object_unhold(fixture->ledger, object);
    assert_int_equal(fixture->dropped_count, 1);
}

/* -- Owners and devices that die ---------------------------------------------- */

static void ledger_release_of_a_client_drops_its_objects_in_order(void **state)
{
    fixture_t *fixture = *state;
    add(fixture, 1, 3, 10);
    add(fixture, 2, 1, 10);
    add(fixture, 1, 1, 10);
    tow_object_t *held = add(fixture, 1, 2, 10);
    tow_object_hold(held);
    tow_ledger_release_client(fixture->ledger, 1);
    assert_int_equal(fixture->dropped_count, 2);
    assert_int_equal(fixture->dropped[0].value, tow_key(1, 3));
    assert_int_equal(fixture->dropped[1].value, tow_key(1, 1));
    assert_null(tow_ledger_check(fixture->ledger));
    tow_object_unhold(fixture->ledger, held);
    assert_int_equal(fixture->dropped_count, 3);
    tow_ledger_totals_t totals = tow_ledger_totals(fixture->ledger);
    assert_int_equal(totals.object_count, 1);
    assert_int_equal(totals.object_bytes, 10 * DEVICE_COUNT);
}

static void ledger_release_of_a_client_takes_consumed_handles_too(void **state)
{
    fixture_t *fixture = *state;
    tow_object_t *object = add(fixture, 1, 1, 10);
    tow_object_hold(object);
    tow_object_consume(fixture->ledger, object);
    tow_object_unhold(fixture->ledger, object);
    tow_ledger_release_client(fixture->ledger, 1);
    tow_ledger_release_client(fixture->ledger, 1);
    tow_ledger_release_client(fixture->ledger, 99);
    assert_int_equal(fixture->dropped_count, 1);
    assert_int_equal(tow_ledger_totals(fixture->ledger).object_count, 0);
}

static void ledger_drop_may_lead_to_others(void **state)
{
    fixture_t *fixture = *state;
    add(fixture, 1, 1, 10);
    tow_object_t *next = add(fixture, 1, 2, 10);
    add(fixture, 1, 3, 10);
    tow_object_hold(next);
    release(fixture, 1, 2);
    fixture->unhold_at_drop = next; /* The first to go held it. */
    tow_ledger_release_client(fixture->ledger, 1);
    assert_int_equal(fixture->dropped_count, 3);
    assert_int_equal(fixture->dropped[1].value, tow_key(1, 2));
    assert_int_equal(tow_ledger_totals(fixture->ledger).object_count, 0);
}

static void ledger_keeps_nothing_of_a_client_that_is_gone(void **state)
{
    fixture_t *fixture = *state;
    tow_object_t *object = add(fixture, 1, 1, 10);
    add(fixture, 2, 1, 10);
    tow_object_hold(object);
    tow_ledger_release_client(fixture->ledger, 1);
    tow_ledger_release_client(fixture->ledger, 2);
    assert_int_equal(tow_map_count(&fixture->ledger->clients), 1);
    tow_object_unhold(fixture->ledger, object);
    assert_int_equal(tow_map_count(&fixture->ledger->clients), 0);
    add(fixture, 1, 1, 10);
}

static void ledger_loss_of_a_device_fails_what_has_a_shard_there(void **state)
{
    fixture_t *fixture = *state;
    tow_object_t *wide = add(fixture, 1, 1, 100);
    tow_object_options_t options = {.id = id_of(1, 2),
                                    .state = TOW_OBJECT_ARRIVING,
                                    .bytes = 7,
                                    .placement = fixture->half,
                                    .count_bytes = true};
    tow_object_t *narrow;
    assert_null(tow_ledger_add(fixture->ledger, &options, &narrow));
    tow_status_t cause = TOW_ERROR(TOW_UNAVAILABLE, "worker w3 is gone");
    tow_ledger_lose_account(fixture->ledger, fixture->accounts[3], cause);
    tow_status_release(cause);

    assert_int_equal(wide->state, TOW_OBJECT_FAILED);
    assert_string_equal(tow_status_message(wide->error), "worker w3 is gone");
    assert_true(fixture->all->lost);
    assert_int_equal(narrow->state, TOW_OBJECT_ARRIVING);
    assert_false(fixture->half->lost);
    assert_int_equal(fixture->accounts[3]->object_bytes, 0);
    assert_int_equal(fixture->accounts[2]->object_bytes, 100);
    assert_null(tow_ledger_check(fixture->ledger));
    assert_int_equal(fixture->dropped_count, 0);
    release(fixture, 1, 1);
    assert_int_equal(fixture->accounts[2]->object_bytes, 0);
    assert_int_equal(fixture->accounts[0]->object_bytes, 7);
}

static void ledger_loss_keeps_the_first_error(void **state)
{
    fixture_t *fixture = *state;
    tow_object_t *object = add(fixture, 1, 1, 100);
    tow_status_t first = TOW_ERROR(TOW_UNAVAILABLE, "first");
    tow_status_t second = TOW_ERROR(TOW_UNAVAILABLE, "second");
    tow_ledger_lose_account(fixture->ledger, fixture->accounts[0], first);
    tow_ledger_lose_account(fixture->ledger, fixture->accounts[1], second);
    tow_ledger_lose_account(fixture->ledger, fixture->accounts[1], second);
    tow_object_fail(object, second);
    tow_object_set_ready(object);
    assert_int_equal(object->state, TOW_OBJECT_FAILED);
    assert_string_equal(tow_status_message(object->error), "first");
    assert_string_equal(tow_status_message(fixture->half->error), "first");
    tow_status_release(first);
    tow_status_release(second);
}

static void ledger_object_on_a_lost_placement_fails_at_once(void **state)
{
    fixture_t *fixture = *state;
    tow_status_t cause = TOW_ERROR(TOW_UNAVAILABLE, "worker w3 is gone");
    tow_ledger_lose_account(fixture->ledger, fixture->accounts[3], cause);
    tow_status_release(cause);
    tow_object_t *object = add(fixture, 1, 1, 100);
    assert_int_equal(object->state, TOW_OBJECT_FAILED);
    assert_string_equal(tow_status_message(object->error), "worker w3 is gone");
    assert_false(tow_placement_fits(fixture->all, 0));
    assert_code(tow_placement_refusal(fixture->all, 0), TOW_UNAVAILABLE, "w3");
}

static void ledger_object_without_a_placement_only_carries_its_error(
    void **state)
{
    fixture_t *fixture = *state;
    tow_object_options_t options = {.id = id_of(1, 1),
                                    .state = TOW_OBJECT_PENDING};
    tow_object_t *object;
    assert_null(tow_ledger_add(fixture->ledger, &options, &object));
    tow_status_t cause = TOW_ERROR(TOW_INVALID_ARGUMENT, "no such program");
    tow_object_fail(object, cause);
    tow_status_release(cause);
    assert_null(tow_ledger_check(fixture->ledger));
    tow_ledger_lose_account(fixture->ledger, fixture->accounts[0],
                            object->error);
    release(fixture, 1, 1);
    assert_int_equal(fixture->dropped_count, 1);
}

static void placement_refuses_devices_that_are_gone_or_there_twice(void **state)
{
    fixture_t *fixture = *state;
    tow_account_t *twice[] = {fixture->accounts[1], fixture->accounts[2],
                              fixture->accounts[1]};
    tow_placement_t *placement;
    assert_code(tow_ledger_place(fixture->ledger, twice, 3, NULL, &placement),
                TOW_INVALID_ARGUMENT, "device 0 of 3");
    assert_code(tow_ledger_place(fixture->ledger, twice, 0, NULL, &placement),
                TOW_INVALID_ARGUMENT, "at least one");
    tow_status_t cause = TOW_ERROR(TOW_UNAVAILABLE, "gone");
    tow_ledger_lose_account(fixture->ledger, fixture->accounts[2], cause);
    tow_status_release(cause);
    assert_code(tow_ledger_place(fixture->ledger, twice, 2, NULL, &placement),
                TOW_UNAVAILABLE, "device 1 of 2");
    assert_null(placement);
    assert_null(
        tow_ledger_place(fixture->ledger, twice, 1, fixture, &placement));
    assert_ptr_equal(placement->context, fixture);
    tow_placement_release(placement);
}

/* -- Memory ------------------------------------------------------------------- */

static void memory_is_counted_exactly_from_reservation_to_object(void **state)
{
    fixture_t *fixture = *state;
    tow_object_t *result = add_result(fixture, 1, 1, 300);
    tow_account_t *account = fixture->accounts[2];
    assert_int_equal(account->object_bytes, 0);
    tow_placement_reserve(fixture->all, 500);
    assert_int_equal(account->reserved_bytes, 500);
    assert_null(tow_ledger_check(fixture->ledger));
    tow_placement_unreserve(fixture->all, 500);
    tow_object_count_bytes(result);
    tow_object_count_bytes(result);
    tow_object_set_ready(result);
    tow_object_unhold(fixture->ledger, result);
    assert_int_equal(account->reserved_bytes, 0);
    assert_int_equal(account->object_bytes, 300);
    assert_int_equal(account->peak_bytes, 500);
    release(fixture, 1, 1);
    assert_int_equal(account->object_bytes, 0);
}

static void memory_of_a_result_whose_handle_went_early_comes_back(void **state)
{
    fixture_t *fixture = *state;
    tow_object_t *result = add_result(fixture, 1, 1, 300);
    release(fixture, 1, 1);
    assert_int_equal(fixture->dropped_count, 0);
    tow_object_count_bytes(result);
    tow_object_unhold(fixture->ledger, result);
    assert_int_equal(fixture->dropped_count, 1);
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
    assert_null(tow_ledger_add_account(fixture->ledger, 0, &account));
    assert_null(
        tow_ledger_place(fixture->ledger, &account, 1, NULL, &placement));
    tow_placement_reserve(placement, UINT64_MAX - 10);
    assert_true(tow_placement_fits(placement, 10));
    assert_false(tow_placement_fits(placement, 11));
    tow_placement_unreserve(placement, UINT64_MAX - 10);
    tow_placement_release(placement);
}

static void memory_refusal_says_where_and_what_is_short(void **state)
{
    fixture_t *fixture = *state;
    tow_account_t *pair[] = {fixture->accounts[3], fixture->accounts[2]};
    tow_placement_t *placement;
    assert_null(tow_ledger_place(fixture->ledger, pair, 1, NULL, &placement));
    tow_placement_reserve(placement, 600);
    tow_status_t status = tow_placement_refusal(fixture->all, 500);
    assert_int_equal(tow_status_code(status), TOW_RESOURCE_EXHAUSTED);
    assert_string_equal(tow_status_message(status),
                        "500 bytes do not fit on device 3 of 4: of its 1000 "
                        "bytes, objects have 0 and runs under way 600");
    tow_status_release(status);
    tow_placement_unreserve(placement, 600);
    tow_placement_release(placement);
}

static void memory_reserved_on_a_device_that_is_lost_comes_back_once(
    void **state)
{
    fixture_t *fixture = *state;
    tow_placement_reserve(fixture->all, 500);
    tow_status_t cause = TOW_ERROR(TOW_UNAVAILABLE, "gone");
    tow_ledger_lose_account(fixture->ledger, fixture->accounts[1], cause);
    tow_status_release(cause);
    assert_null(tow_ledger_check(fixture->ledger));
    assert_int_equal(tow_ledger_totals(fixture->ledger).reserved_bytes, 1500);
    tow_placement_unreserve(fixture->all, 500);
    assert_int_equal(tow_ledger_totals(fixture->ledger).reserved_bytes, 0);
}

/* -- The books ---------------------------------------------------------------- */

static void totals_are_told_for_all_and_for_each_client(void **state)
{
    fixture_t *fixture = *state;
    add(fixture, 1, 1, 100);
    add(fixture, 1, 2, 100);
    add(fixture, 2, 1, 50);
    add_result(fixture, 2, 2, 500);
    tow_ledger_totals_t all = tow_ledger_totals(fixture->ledger);
    tow_ledger_totals_t first = tow_ledger_client_totals(fixture->ledger, 1);
    tow_ledger_totals_t second = tow_ledger_client_totals(fixture->ledger, 2);
    assert_int_equal(all.object_count, 4);
    assert_int_equal(all.object_bytes, 250 * DEVICE_COUNT);
    assert_int_equal(first.object_count, 2);
    assert_int_equal(first.object_bytes, 200 * DEVICE_COUNT);
    assert_int_equal(second.object_count, 2);
    assert_int_equal(second.object_bytes, 50 * DEVICE_COUNT);
    assert_int_equal(tow_ledger_client_totals(fixture->ledger, 3).object_count,
                     0);
}

static void check_finds_books_that_do_not_balance(void **state)
{
    fixture_t *fixture = *state;
    tow_object_t *object = add(fixture, 1, 1, 100);
    fixture->accounts[2]->object_bytes++;
    assert_code(tow_ledger_check(fixture->ledger), TOW_INTERNAL, "account 2");
    fixture->accounts[2]->object_bytes--;
    fixture->accounts[1]->reserved_bytes += 5;
    assert_code(tow_ledger_check(fixture->ledger), TOW_INTERNAL,
                "account 1: reservations have 0");
    fixture->accounts[1]->reserved_bytes -= 5;
    object->has_handle = false;
    assert_code(tow_ledger_check(fixture->ledger), TOW_INTERNAL,
                "nobody holds it");
    object->has_handle = true;
    fixture->half->lost = true;
    assert_code_and_release(tow_ledger_check(fixture->ledger), TOW_INTERNAL);
    fixture->half->lost = false;
    assert_null(tow_ledger_check(fixture->ledger));
}

/* -- Exhaustion --------------------------------------------------------------- */

static tow_status_t use_ledger(tow_ledger_t *ledger)
{
    tow_account_t *account;
    tow_placement_t *placement;
    TOW_RETURN_IF_ERROR(tow_ledger_add_account(ledger, 0, &account));
    TOW_RETURN_IF_ERROR(
        tow_ledger_place(ledger, &account, 1, NULL, &placement));
    tow_status_t status = TOW_OK;
    for (uint64_t i = 0; i < 40 && status == TOW_OK; i++) {
        tow_object_options_t options = {.id = id_of(1 + i % 3, 1 + i),
                                        .state = TOW_OBJECT_PENDING,
                                        .bytes = 8,
                                        .placement = placement,
                                        .count_bytes = true};
        tow_object_t *object;
        status = tow_ledger_add(ledger, &options, &object);
        assert_null(tow_ledger_check(ledger));
    }
    if (status == TOW_OK) status = tow_ledger_release(ledger, id_of(1, 1));
    tow_placement_release(placement);
    return status;
}

static tow_exhaust_result_t use_and_destroy(void *context)
{
    (void)context;
    tow_ledger_t *ledger;
    tow_status_t status =
        tow_ledger_create(&(tow_ledger_options_t){0}, &ledger);
    if (status == TOW_OK) status = use_ledger(ledger);
    tow_ledger_destroy(ledger);
    bool failed = status != TOW_OK;
    tow_status_release(status);
    return failed ? TOW_EXHAUST_FAILED : TOW_EXHAUST_SUCCEEDED;
}

static void ledger_balances_after_any_allocation_fails(void **state)
{
    (void)state;
    assert_true(tow_test_exhaust(use_and_destroy, NULL) > 8);
}

static void ledger_makes_no_allocation_per_object(void **state)
{
    fixture_t *fixture = *state;
    add(fixture, 1, 1, 8);
    add(fixture, 1, 2, 8);
    release(fixture, 1, 2);
    tow_alloc_fail_after(0);
    for (uint64_t id = 3; id < 14; id++) {
        tow_object_hold(add(fixture, 1, id, 8));
        tow_object_unhold(fixture->ledger,
                          tow_ledger_find(fixture->ledger, id_of(1, id)));
        release(fixture, 1, id);
    }
    assert_false(tow_alloc_has_failed());
    tow_alloc_fail_after(UINT64_MAX);
}

#define CASE(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)

TOW_TEST_MAIN(CASE(ledger_release_of_the_handle_drops_what_nobody_else_holds),
              CASE(ledger_keeps_an_object_until_the_last_hold_has_gone),
              CASE(ledger_keeps_an_object_that_only_its_handle_holds),
              CASE(ledger_names_the_object_that_is_released_twice),
              CASE(ledger_does_not_find_another_clients_object),
              CASE(ledger_refuses_an_id_that_is_taken),
              CASE(ledger_limits_each_clients_objects_apart),
              CASE(ledger_keeps_the_shape),
              CASE(ledger_drops_a_consumed_object_when_its_run_has_finished),
              CASE(ledger_keeps_the_handle_of_a_consumed_object_to_tell_of_it),
              CASE(ledger_donation_waits_for_every_other_holder),
              CASE(ledger_release_of_a_client_drops_its_objects_in_order),
              CASE(ledger_release_of_a_client_takes_consumed_handles_too),
              CASE(ledger_drop_may_lead_to_others),
              CASE(ledger_keeps_nothing_of_a_client_that_is_gone),
              CASE(ledger_loss_of_a_device_fails_what_has_a_shard_there),
              CASE(ledger_loss_keeps_the_first_error),
              CASE(ledger_object_on_a_lost_placement_fails_at_once),
              CASE(ledger_object_without_a_placement_only_carries_its_error),
              CASE(placement_refuses_devices_that_are_gone_or_there_twice),
              CASE(memory_is_counted_exactly_from_reservation_to_object),
              CASE(memory_of_a_result_whose_handle_went_early_comes_back),
              CASE(memory_fits_to_the_last_byte),
              CASE(memory_without_a_limit_never_wraps_around),
              CASE(memory_refusal_says_where_and_what_is_short),
              CASE(memory_reserved_on_a_device_that_is_lost_comes_back_once),
              CASE(totals_are_told_for_all_and_for_each_client),
              CASE(check_finds_books_that_do_not_balance),
              cmocka_unit_test(ledger_balances_after_any_allocation_fails),
              CASE(ledger_makes_no_allocation_per_object))
