#include "base/testing.h"

#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "resource/resource.h"

typedef struct fixture {
    tow_object_table_t *object_table;
    tow_resource_t *resource;
} fixture_t;

static void ignore_drop(void *context, tow_object_t *object) {}

static int set_up(void **state)
{
    fixture_t *fixture = tow_calloc(1, sizeof(*fixture));
    tow_object_table_options_t options = {.discarded = ignore_drop};
    if (tow_object_table_create(&options, &fixture->object_table) != TOW_OK)
        return -1;
    if (tow_resource_create(fixture->object_table, &fixture->resource) !=
        TOW_OK)
        return -1;
    *state = fixture;
    return 0;
}

static int tear_down(void **state)
{
    fixture_t *fixture = *state;
    assert_null(tow_resource_check(fixture->resource));
    tow_resource_destroy(fixture->resource);
    tow_object_table_destroy(fixture->object_table);
    tow_free(fixture);
    return 0;
}

typedef struct join {
    const char *name;
    uint32_t process;
    uint32_t device_count;
    const char *kind;   /* NULL: "cpu" */
    const char *island; /* NULL: none is named */
} join_t;

static tow_status_t add(fixture_t *fixture, const join_t *join,
                        tow_resource_worker_t **out_worker)
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
    if (join->island != NULL) message.island = (char *)join->island;
    message.devices = list;
    message.n_devices = join->device_count;
    tow_resource_worker_t *worker;
    return tow_resource_add_worker(fixture->resource, join->name, &message,
                                   NULL,
                                   out_worker != NULL ? out_worker : &worker);
}

static tow_resource_worker_t *must_add(fixture_t *fixture, const join_t *join)
{
    tow_resource_worker_t *worker;
    tow_status_t status = add(fixture, join, &worker);
    if (status != TOW_OK) fail_msg("%s", tow_status_message(status));
    assert_null(tow_resource_check(fixture->resource));
    return worker;
}

typedef struct taken {
    tow_resource_device_t **devices;
    size_t count;
} taken_t;

static taken_t must_take(fixture_t *fixture, const tow_slice_request_t *request)
{
    taken_t taken;
    tow_status_t status = tow_resource_acquire_devices(
        fixture->resource, request, &taken.devices, &taken.count);
    if (status != TOW_OK) fail_msg("%s", tow_status_message(status));
    assert_null(tow_resource_check(fixture->resource));
    return taken;
}

static void give_back(fixture_t *fixture, taken_t taken)
{
    tow_resource_release_devices(fixture->resource, taken.devices, taken.count);
    tow_free(taken.devices);
    assert_null(tow_resource_check(fixture->resource));
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
    tow_status_t status = tow_resource_acquire_devices(
        fixture->resource, request, &taken.devices, &taken.count);
    if (status == TOW_OK) give_back(fixture, taken);
    return status;
}

static void slices_get_the_devices_with_the_least_load(void **state)
{
    fixture_t *fixture = *state;
    must_add(fixture, &(join_t){"a", 1, 2, NULL, NULL});
    must_add(fixture, &(join_t){"b", 2, 2, NULL, NULL});
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

static void assert_devices(taken_t taken, size_t count, const int64_t *ids)
{
    assert_int_equal(taken.count, count);
    for (size_t i = 0; i < count; i++)
        assert_int_equal(taken.devices[i]->id, ids[i]);
}
#define ASSERT_DEVICES(taken, ...)                                     \
    assert_devices((taken),                                            \
                   sizeof((int64_t[]){__VA_ARGS__}) / sizeof(int64_t), \
                   (int64_t[]){__VA_ARGS__})

static tow_slice_devices_t devices_of(const taken_t *taken,
                                      const tow_slice_request_t *request)
{
    return (tow_slice_devices_t){taken->devices, taken->count,
                                 tow_slice_choice(request)};
}

/* JAX names its devices, and has all of them. */
static void slices_that_choose_no_devices_are_no_load_to_their_client(
    void **state)
{
    fixture_t *fixture = *state;
    must_add(fixture, &(join_t){"a", 1, 4, NULL, NULL});
    const int64_t ids[] = {2048};
    const tow_slice_request_t named = {.device_ids = ids, .device_id_count = 1},
                              every = {.island = TOW_ISLAND_EVERY};
    taken_t others[] = {must_take(fixture, &named), must_take(fixture, &every),
                        must_take(fixture, &named)};
    tow_slice_devices_t own[] = {devices_of(&others[0], &named),
                                 devices_of(&others[1], &every),
                                 devices_of(&others[2], &named),
                                 {0}};
    tow_slice_request_t two = {
        .dims = (uint32_t[]){2}, .dim_count = 1, .own = own, .own_count = 3};
    taken_t first = must_take(fixture, &two);
    ASSERT_DEVICES(first, 2048, 2049);
    own[two.own_count++] = devices_of(&first, &two);
    taken_t second = must_take(fixture, &two);
    ASSERT_DEVICES(second, 2050, 2051);
    give_back(fixture, first);
    give_back(fixture, second);
    two.own_count = 0; /* To another client they are. */
    taken_t other = must_take(fixture, &two);
    ASSERT_DEVICES(other, 2049, 2050);
    give_back(fixture, other);
    for (size_t i = 0; i < TOW_COUNT_OF(others); i++)
        give_back(fixture, others[i]);
}

/* Before the shape, and before the load that other clients cause. */
static void slices_of_one_client_are_disjoint_while_devices_suffice(
    void **state)
{
    fixture_t *fixture = *state;
    must_add(fixture, &(join_t){"a", 1, 4, NULL, NULL});
    const tow_slice_request_t one = {.dims = (uint32_t[]){1}, .dim_count = 1};
    taken_t ones[4], loads[8];
    for (size_t i = 0; i < TOW_COUNT_OF(ones); i++)
        ones[i] = must_take(fixture, &one);
    for (size_t i = 0; i < TOW_COUNT_OF(loads); i++)
        loads[i] = must_take(fixture, &one);
    /* The client has devices 1 and 2; 0 and 3 are not adjacent. */
    const tow_slice_devices_t own[] = {devices_of(&ones[1], &one),
                                       devices_of(&ones[2], &one)};
    tow_slice_request_t two = {.dims = (uint32_t[]){2},
                               .dim_count = 1,
                               .own = own,
                               .own_count = TOW_COUNT_OF(own)};
    taken_t taken = must_take(fixture, &two);
    ASSERT_DEVICES(taken, 2048, 2051);
    give_back(fixture, taken);
    /* All devices of its own are needed: then a shape that fits. */
    two.dims = (uint32_t[]){2, 2};
    two.dim_count = 2;
    taken = must_take(fixture, &two);
    ASSERT_DEVICES(taken, 2048, 2049, 2050, 2051);
    assert_int_equal(taken.devices[1]->own_count, 0);
    give_back(fixture, taken);
    for (size_t i = 0; i < TOW_COUNT_OF(ones); i++)
        give_back(fixture, ones[i]);
    for (size_t i = 0; i < TOW_COUNT_OF(loads); i++)
        give_back(fixture, loads[i]);
}

static void slice_without_dims_gets_all_of_one_kind(void **state)
{
    fixture_t *fixture = *state;
    must_add(fixture, &(join_t){"a", 1, 2, "gpu", NULL});
    must_add(fixture, &(join_t){"b", 2, 3, "cpu", NULL});
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
    must_add(fixture, &(join_t){"a", 1, 4, NULL, NULL});
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
    must_add(fixture, &(join_t){"a", 1, 4, NULL, NULL});
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
    must_add(fixture, &(join_t){"a", 1, 1, NULL, NULL});
    expect(add(fixture, &(join_t){"a", 2, 1, NULL, NULL}, NULL),
           TOW_ALREADY_EXISTS, "named a");
    expect(add(fixture, &(join_t){"b", 1, 1, NULL, NULL}, NULL),
           TOW_ALREADY_EXISTS, "taken by worker a");
    expect(add(fixture, &(join_t){"c", 3, 0, NULL, NULL}, NULL),
           TOW_INVALID_ARGUMENT, "no devices");
    assert_int_equal(tow_resource_worker_count(fixture->resource), 1);
}

static void gone_worker_stays_known_to_its_slices_only(void **state)
{
    fixture_t *fixture = *state;
    tow_resource_worker_t *a =
        must_add(fixture, &(join_t){"a", 1, 2, NULL, NULL});
    must_add(fixture, &(join_t){"b", 2, 2, NULL, NULL});
    taken_t all = must_take(fixture, &(tow_slice_request_t){0});
    tow_resource_remove_worker(fixture->resource, a);
    assert_int_equal(tow_resource_device_count(fixture->resource), 2);
    assert_true(all.devices[0]->worker->disconnected);
    must_add(fixture,
             &(join_t){"a", 1, 2, NULL, NULL}); /* It may come again. */
    give_back(fixture, all);
    taken_t again = must_take(fixture, &(tow_slice_request_t){0});
    assert_int_equal(again.count, 4);
    give_back(fixture, again);
}

/* -- Islands --------------------------------------------------------------- */

static void slice_lies_within_one_island(void **state)
{
    fixture_t *fixture = *state;
    must_add(fixture, &(join_t){"a", 1, 2, NULL, "west"});
    must_add(fixture, &(join_t){"b", 2, 2, NULL, "east"});
    must_add(fixture, &(join_t){"c", 3, 1, NULL, "east"});
    must_add(fixture, &(join_t){"d", 4, 1, NULL, NULL});
    assert_string_equal(tow_resource_island(fixture->resource, 0)->name,
                        "west");
    assert_int_equal(tow_resource_island(fixture->resource, 1)->device_count,
                     3);
    assert_string_equal(tow_resource_island(fixture->resource, 2)->name,
                        TOW_ISLAND_DEFAULT);
    assert_null(tow_resource_island(fixture->resource, 3));
    /* All is all of the island that has most. */
    taken_t all = must_take(fixture, &(tow_slice_request_t){0});
    ASSERT_DEVICES(all, 4096, 4097, 6144);
    assert_int_equal(all.devices[0]->account->island, 1);
    /* Of any island: where it fits, and where the least is. */
    const tow_slice_request_t two = {.dims = (uint32_t[]){2}, .dim_count = 1};
    taken_t first = must_take(fixture, &two), second = must_take(fixture, &two);
    ASSERT_DEVICES(first, 2048, 2049);
    ASSERT_DEVICES(second, 2048, 2049); /* A whole worker, as loaded as any. */
    taken_t named =
        must_take(fixture, &(tow_slice_request_t){.island = "main"});
    ASSERT_DEVICES(named, 8192);
    give_back(fixture, all);
    give_back(fixture, first);
    give_back(fixture, second);
    give_back(fixture, named);
}

static void impossible_islands_are_refused_by_name(void **state)
{
    fixture_t *fixture = *state;
    must_add(fixture, &(join_t){"a", 1, 2, NULL, "west"});
    must_add(fixture, &(join_t){"b", 2, 2, NULL, "east"});
    expect(take(fixture, &(tow_slice_request_t){.island = "north"}),
           TOW_NOT_FOUND, "no island 'north'");
    const tow_slice_request_t four = {.dims = (uint32_t[]){4}, .dim_count = 1};
    expect(take(fixture, &four), TOW_RESOURCE_EXHAUSTED,
           "the largest island has 2");
    expect(take(fixture, &(tow_slice_request_t){.island = "east",
                                                .dims = (uint32_t[]){3},
                                                .dim_count = 1}),
           TOW_RESOURCE_EXHAUSTED, "island east has 2");
    const int64_t both[] = {2048, 4096};
    const tow_slice_request_t five = {
        .island = TOW_ISLAND_EVERY, .dims = (uint32_t[]){5}, .dim_count = 1};
    expect(take(fixture, &five), TOW_RESOURCE_EXHAUSTED, "the cluster has 4");
    expect(take(fixture, &(tow_slice_request_t){.island = TOW_ISLAND_EVERY,
                                                .kind = "quantum"}),
           TOW_NOT_FOUND, "no device of kind 'quantum'");
    expect(add(fixture, &(join_t){"c", 3, 1, NULL, TOW_ISLAND_EVERY}, NULL),
           TOW_INVALID_ARGUMENT, "no island is called '*'");
    expect(take(fixture, &(tow_slice_request_t){.device_ids = both,
                                                .device_id_count = 1,
                                                .island = "east"}),
           TOW_INVALID_ARGUMENT, "is of island 'west'");
}

static void slices_may_go_over_islands_if_they_say_so(void **state)
{
    fixture_t *fixture = *state;
    must_add(fixture, &(join_t){"a", 1, 2, NULL, "island-10"});
    must_add(fixture, &(join_t){"b", 2, 2, NULL, "island-2"});
    const int64_t both[] = {2049, 4096};
    taken_t named =
        must_take(fixture, &(tow_slice_request_t){.device_ids = both,
                                                  .device_id_count = 2});
    ASSERT_DEVICES(named, 2049, 4096);
    taken_t all =
        must_take(fixture, &(tow_slice_request_t){.island = TOW_ISLAND_EVERY});
    ASSERT_DEVICES(all, 4096, 4097, 2048, 2049);
    const tow_slice_request_t two = {
        .island = TOW_ISLAND_EVERY, .dims = (uint32_t[]){2}, .dim_count = 1};
    taken_t idle = must_take(fixture, &two);
    ASSERT_DEVICES(idle, 4097, 2048);
    give_back(fixture, named);
    give_back(fixture, all);
    give_back(fixture, idle);
}

static void islands_are_bounded_and_empty_ones_used_again(void **state)
{
    fixture_t *fixture = *state;
    char names[TOW_ISLANDS_MAX + 1][16];
    tow_resource_worker_t *workers[TOW_ISLANDS_MAX];
    for (uint32_t i = 0; i <= TOW_ISLANDS_MAX; i++)
        snprintf(names[i], sizeof(names[i]), "i%u", i);
    for (uint32_t i = 0; i < TOW_ISLANDS_MAX; i++)
        workers[i] =
            must_add(fixture, &(join_t){names[i], i, 1, NULL, names[i]});
    const join_t another = {"another", TOW_ISLANDS_MAX, 1, NULL,
                            names[TOW_ISLANDS_MAX]};
    expect(add(fixture, &another, NULL), TOW_RESOURCE_EXHAUSTED,
           "island 'i64'");
    taken_t held = must_take(fixture, &(tow_slice_request_t){.island = "i7"});
    tow_resource_remove_worker(fixture->resource, workers[7]);
    expect(add(fixture, &another, NULL), TOW_RESOURCE_EXHAUSTED,
           "island 'i64'");
    give_back(fixture, held);
    const tow_resource_worker_t *worker = must_add(fixture, &another);
    assert_int_equal(worker->island->number, 7);
    assert_string_equal(worker->island->name, "i64");
}

/* -- Shapes ---------------------------------------------------------------- */

static void shape_gets_neighbours_on_neighbouring_workers(void **state)
{
    fixture_t *fixture = *state;
    for (uint32_t i = 1; i <= 4; i++)
        must_add(fixture, &(join_t){(const char *[]){"", "a", "b", "c", "d"}[i],
                                    i, 4, NULL, NULL});
    /* One device of the first worker is busy: it is left alone. */
    const int64_t busy_id = 2049;
    taken_t busy =
        must_take(fixture, &(tow_slice_request_t){.device_ids = &busy_id,
                                                  .device_id_count = 1});
    const tow_slice_request_t shape = {.dims = (uint32_t[]){2, 4},
                                       .dim_count = 2};
    taken_t first = must_take(fixture, &shape);
    ASSERT_DEVICES(first, 4096, 4097, 4098, 4099, 6144, 6145, 6146, 6147);
    /* 2 x 2: on one worker, since one has so many. */
    taken_t square =
        must_take(fixture, &(tow_slice_request_t){.dims = (uint32_t[]){2, 2},
                                                  .dim_count = 2});
    ASSERT_DEVICES(square, 8192, 8193, 8194, 8195);
    /* 2 x 3 x 1 and 2 x 3: three on each of two workers. */
    taken_t three =
        must_take(fixture, &(tow_slice_request_t){.dims = (uint32_t[]){2, 3, 1},
                                                  .dim_count = 3});
    assert_int_equal(three.devices[0]->index, three.devices[3]->index);
    assert_int_equal(three.devices[0]->worker->place + 1,
                     three.devices[3]->worker->place);
    give_back(fixture, busy);
    give_back(fixture, first);
    give_back(fixture, square);
    give_back(fixture, three);
}

static void what_has_no_shape_is_any_devices(void **state)
{
    fixture_t *fixture = *state;
    must_add(fixture, &(join_t){"a", 1, 2, NULL, NULL});
    must_add(fixture, &(join_t){"b", 2, 3, NULL, NULL});
    taken_t five =
        must_take(fixture, &(tow_slice_request_t){.dims = (uint32_t[]){5, 1},
                                                  .dim_count = 2});
    ASSERT_DEVICES(five, 2048, 2049, 4096, 4097, 4098);
    give_back(fixture, five);
}

static void island_with_a_shape_that_fits_is_preferred(void **state)
{
    fixture_t *fixture = *state;
    must_add(fixture, &(join_t){"a", 1, 1, NULL, "bits"});
    must_add(fixture, &(join_t){"b", 2, 3, NULL, "bits"});
    must_add(fixture, &(join_t){"c", 3, 4, NULL, "whole"});
    const tow_slice_request_t four = {.dims = (uint32_t[]){4}, .dim_count = 1};
    taken_t first = must_take(fixture, &four),
            second = must_take(fixture, &four);
    assert_int_equal(first.devices[0]->id, 6144);
    assert_int_equal(second.devices[0]->id, 6144);
    give_back(fixture, first);
    give_back(fixture, second);
}

static void worker_that_comes_again_stands_where_it_stood(void **state)
{
    fixture_t *fixture = *state;
    tow_resource_worker_t *a =
        must_add(fixture, &(join_t){"a", 1, 1, NULL, NULL});
    const tow_resource_worker_t *b =
        must_add(fixture, &(join_t){"b", 2, 1, NULL, NULL});
    assert_int_equal(b->place, 1);
    tow_resource_remove_worker(fixture->resource, a);
    must_add(fixture, &(join_t){"a", 3, 1, NULL, NULL});
    taken_t all = must_take(fixture, &(tow_slice_request_t){0});
    ASSERT_DEVICES(all, 6144, 4096);
    give_back(fixture, all);
}

static void places_are_in_the_order_of_names_whoever_came_first(void **state)
{
    fixture_t *fixture = *state;
    const tow_resource_worker_t *ten =
        must_add(fixture, &(join_t){"w-10", 1, 1, NULL, NULL});
    tow_resource_worker_t *two =
        must_add(fixture, &(join_t){"w-2", 2, 1, NULL, NULL});
    must_add(fixture, &(join_t){"w-0", 3, 1, NULL, "other"});
    const tow_resource_worker_t *one =
        must_add(fixture, &(join_t){"w-1", 4, 1, NULL, NULL});
    assert_int_equal(one->place, 0);
    assert_int_equal(two->place, 1);
    assert_int_equal(ten->place, 2);
    taken_t all = must_take(fixture, &(tow_slice_request_t){.island = "main"});
    ASSERT_DEVICES(all, 8192, 4096, 2048);
    give_back(fixture, all);
    tow_resource_remove_worker(fixture->resource, two);
    assert_int_equal(one->place, 0);
    assert_int_equal(ten->place, 1);
}

#define WITH(test) cmocka_unit_test_setup_teardown(test, set_up, tear_down)

TOW_TEST_MAIN(WITH(slices_get_the_devices_with_the_least_load),
              WITH(slices_that_choose_no_devices_are_no_load_to_their_client),
              WITH(slices_of_one_client_are_disjoint_while_devices_suffice),
              WITH(slice_without_dims_gets_all_of_one_kind),
              WITH(named_devices_come_in_the_order_asked_for),
              WITH(impossible_slices_are_refused_with_what_there_is),
              WITH(workers_that_clash_are_refused_by_name),
              WITH(gone_worker_stays_known_to_its_slices_only),
              WITH(slice_lies_within_one_island),
              WITH(slices_may_go_over_islands_if_they_say_so),
              WITH(impossible_islands_are_refused_by_name),
              WITH(islands_are_bounded_and_empty_ones_used_again),
              WITH(shape_gets_neighbours_on_neighbouring_workers),
              WITH(what_has_no_shape_is_any_devices),
              WITH(island_with_a_shape_that_fits_is_preferred),
              WITH(places_are_in_the_order_of_names_whoever_came_first),
              WITH(worker_that_comes_again_stands_where_it_stood))
