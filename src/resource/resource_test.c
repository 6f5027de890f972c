#include "base/testing.h"

#include <string.h>

#include "base/alloc.h"
#include "resource/resource.h"

typedef struct fixture {
    tow_ledger_t *ledger;
    tow_resource_t *resource;
} fixture_t;

static void ignore_drop(void *context, tow_object_t *object) {}

static int set_up(void **state)
{
    fixture_t *fixture = tow_calloc(1, sizeof(*fixture));
    tow_ledger_options_t options = {.dropped = ignore_drop};
    if (tow_ledger_create(&options, &fixture->ledger) != TOW_OK) return -1;
    if (tow_resource_create(fixture->ledger, &fixture->resource) != TOW_OK)
        return -1;
    *state = fixture;
    return 0;
}

static int tear_down(void **state)
{
    fixture_t *fixture = *state;
    tow_resource_destroy(fixture->resource);
    tow_ledger_destroy(fixture->ledger);
    tow_free(fixture);
    return 0;
}

typedef struct join {
    const char *name;
    uint32_t process;
    uint32_t device_count;
    const char *kind; /* NULL: "cpu" */
} join_t;

static tow_status_t add(fixture_t *fixture, const join_t *join,
                        tow_worker_entry_t **out_worker)
{
    tow_msg_device_t devices[16];
    tow_msg_device_t *list[16];
    tow_msg_worker_join_t message = TOW_MSG_WORKER_JOIN_INIT;
    assert_true(join->device_count <= 16);
    for (uint32_t i = 0; i < join->device_count; i++) {
        devices[i] = (tow_msg_device_t)TOW_MSG_DEVICE_INIT;
        devices[i].id = join->process * 2048 + i;
        devices[i].kind = (char *)(join->kind != NULL ? join->kind : "cpu");
        devices[i].memory_bytes = 1 << 20;
        list[i] = &devices[i];
    }
    message.process = join->process;
    message.host = "host";
    message.devices = list;
    message.n_devices = join->device_count;
    tow_worker_entry_t *worker;
    return tow_resource_add_worker(fixture->resource, join->name, &message,
                                   NULL,
                                   out_worker != NULL ? out_worker : &worker);
}

static tow_worker_entry_t *must_add(fixture_t *fixture, const join_t *join)
{
    tow_worker_entry_t *worker;
    tow_status_t status = add(fixture, join, &worker);
    if (status != TOW_OK) fail_msg("%s", tow_status_message(status));
    return worker;
}

typedef struct taken {
    tow_device_entry_t **devices;
    size_t count;
} taken_t;

static taken_t must_take(fixture_t *fixture, const tow_slice_request_t *request)
{
    taken_t taken;
    tow_status_t status = tow_resource_take(fixture->resource, request,
                                            &taken.devices, &taken.count);
    if (status != TOW_OK) fail_msg("%s", tow_status_message(status));
    return taken;
}

static void give_back(fixture_t *fixture, taken_t taken)
{
    tow_resource_give_back(fixture->resource, taken.devices, taken.count);
    tow_free(taken.devices);
}

static void expect(tow_status_t status, tow_code_t code, const char *words)
{
    assert_int_equal(tow_status_code(status), code);
    if (strstr(tow_status_message(status), words) == NULL)
        fail_msg("no '%s' in: %s", words, tow_status_message(status));
    tow_status_release(status);
}

static tow_status_t take(fixture_t *fixture, const tow_slice_request_t *request)
{
    taken_t taken;
    tow_status_t status = tow_resource_take(fixture->resource, request,
                                            &taken.devices, &taken.count);
    if (status == TOW_OK) give_back(fixture, taken);
    return status;
}

static void slices_get_the_devices_with_the_least_load(void **state)
{
    fixture_t *fixture = *state;
    must_add(fixture, &(join_t){"a", 1, 2, NULL});
    must_add(fixture, &(join_t){"b", 2, 2, NULL});
    const tow_slice_request_t two = {.dims = (uint32_t[]){2}, .dim_count = 1};
    taken_t first = must_take(fixture, &two), second = must_take(fixture, &two);
    assert_int_equal(first.devices[0]->id, 2048);
    assert_int_equal(first.devices[1]->id, 2049);
    assert_int_equal(second.devices[0]->id, 4096);
    give_back(fixture, first);
    taken_t third = must_take(fixture, &two);
    assert_int_equal(third.devices[0]->id, 2048);
    give_back(fixture, second);
    give_back(fixture, third);
}

static void slice_without_dims_gets_all_of_one_kind(void **state)
{
    fixture_t *fixture = *state;
    must_add(fixture, &(join_t){"a", 1, 2, "gpu"});
    must_add(fixture, &(join_t){"b", 2, 3, "cpu"});
    taken_t all = must_take(fixture, &(tow_slice_request_t){0});
    assert_int_equal(all.count, 3);
    assert_string_equal(all.devices[0]->kind, "cpu");
    give_back(fixture, all);
    all = must_take(fixture, &(tow_slice_request_t){.kind = "gpu"});
    assert_int_equal(all.count, 2);
    give_back(fixture, all);
}

static void named_devices_come_in_the_order_asked_for(void **state)
{
    fixture_t *fixture = *state;
    must_add(fixture, &(join_t){"a", 1, 4, NULL});
    const int64_t ids[] = {2051, 2048};
    taken_t taken =
        must_take(fixture, &(tow_slice_request_t){.device_ids = ids,
                                                  .device_id_count = 2});
    assert_int_equal(taken.devices[0]->id, 2051);
    assert_int_equal(taken.devices[1]->id, 2048);
    give_back(fixture, taken);
}

static void impossible_slices_are_refused_with_what_there_is(void **state)
{
    fixture_t *fixture = *state;
    expect(take(fixture, &(tow_slice_request_t){0}), TOW_NOT_FOUND,
           "no device of kind");
    must_add(fixture, &(join_t){"a", 1, 4, NULL});
    expect(take(fixture, &(tow_slice_request_t){.dims = (uint32_t[]){2, 3},
                                                .dim_count = 2}),
           TOW_RESOURCE_EXHAUSTED, "6 devices of kind cpu");
    expect(take(fixture, &(tow_slice_request_t){.dims = (uint32_t[]){0},
                                                .dim_count = 1}),
           TOW_INVALID_ARGUMENT, "dimension 0");
    expect(take(fixture, &(tow_slice_request_t){.kind = "tpu"}), TOW_NOT_FOUND,
           "kind 'tpu'");
    expect(take(fixture, &(tow_slice_request_t){.device_ids = (int64_t[]){7},
                                                .device_id_count = 1}),
           TOW_NOT_FOUND, "no device 7");
    const int64_t twice[] = {2048, 2048};
    expect(take(fixture, &(tow_slice_request_t){.device_ids = twice,
                                                .device_id_count = 2}),
           TOW_INVALID_ARGUMENT, "twice");
}

static void workers_that_clash_are_refused_by_name(void **state)
{
    fixture_t *fixture = *state;
    must_add(fixture, &(join_t){"a", 1, 1, NULL});
    expect(add(fixture, &(join_t){"a", 2, 1, NULL}, NULL), TOW_ALREADY_EXISTS,
           "named a");
    expect(add(fixture, &(join_t){"b", 1, 1, NULL}, NULL), TOW_ALREADY_EXISTS,
           "taken by worker a");
    expect(add(fixture, &(join_t){"c", 3, 0, NULL}, NULL), TOW_INVALID_ARGUMENT,
           "no devices");
    assert_int_equal(tow_resource_worker_count(fixture->resource), 1);
}

static void gone_worker_stays_known_to_its_slices_only(void **state)
{
    fixture_t *fixture = *state;
    tow_worker_entry_t *a = must_add(fixture, &(join_t){"a", 1, 2, NULL});
    must_add(fixture, &(join_t){"b", 2, 2, NULL});
    taken_t all = must_take(fixture, &(tow_slice_request_t){0});
    tow_resource_remove_worker(fixture->resource, a);
    assert_int_equal(tow_resource_device_count(fixture->resource), 2);
    assert_true(all.devices[0]->worker->gone);
    must_add(fixture, &(join_t){"a", 1, 2, NULL}); /* It may come again. */
    give_back(fixture, all);
    taken_t again = must_take(fixture, &(tow_slice_request_t){0});
    assert_int_equal(again.count, 4);
    give_back(fixture, again);
}

#define WITH(test) cmocka_unit_test_setup_teardown(test, set_up, tear_down)

TOW_TEST_MAIN(WITH(slices_get_the_devices_with_the_least_load),
              WITH(slice_without_dims_gets_all_of_one_kind),
              WITH(named_devices_come_in_the_order_asked_for),
              WITH(impossible_slices_are_refused_with_what_there_is),
              WITH(workers_that_clash_are_refused_by_name),
              WITH(gone_worker_stays_known_to_its_slices_only))
