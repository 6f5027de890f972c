/* The object table compared with a simple model: plain arrays without sums,
 * from which every number is computed anew. Each seed runs thousands of random
 * operations, with a comparison after each. */
#include "base/testing.h"

#include <stdio.h>
#include <string.h>

#include "base/random.h"
#include "store/object_table.h"

#define DEVICE_COUNT    5
#define PLACEMENT_COUNT 6
#define HOST_COUNT      2
#define HOST_BYTES      4000
#define CLIENT_COUNT    4
#define OBJECT_COUNT    48 /* ids of each client */
#define RUN_COUNT       12
#define ARGUMENT_COUNT  4

typedef struct model_object {
    bool exists; /* it has a record */
    bool handle, consumed, counted, discarded, failed;
    tow_residence_t residence;
    uint32_t holds;
    uint64_t bytes;
    size_t placement;
    size_t discard_count; /* since it was added */
} model_object_t;

/* A run under way: its arguments, its result and its reservation. */
typedef struct model_run {
    bool exists;
    size_t placement;
    uint64_t bytes;
    size_t argument_count;
    tow_object_id_t arguments[ARGUMENT_COUNT];
    bool has_result;
    tow_object_id_t result;
} model_run_t;

typedef struct model {
    tow_random_t random;
    tow_object_table_t *object_table;
    tow_account_t *accounts[DEVICE_COUNT];
    tow_host_memory_t *hosts[HOST_COUNT]; /* of device d: d % HOST_COUNT */
    bool host_disconnected[HOST_COUNT];
    tow_placement_t *placements[PLACEMENT_COUNT];
    bool on[PLACEMENT_COUNT][DEVICE_COUNT];
    bool device_disconnected[DEVICE_COUNT];
    bool placement_disconnected[PLACEMENT_COUNT];
    model_object_t objects[CLIENT_COUNT][OBJECT_COUNT];
    model_run_t runs[RUN_COUNT];
    size_t expected_discards;
    size_t discards;
} model_t;

static uint64_t below(model_t *model, uint64_t bound)
{
    return tow_random_below(&model->random, bound);
}

static model_object_t *model_of(model_t *model, tow_object_id_t id)
{
    return &model->objects[tow_key_client(id.value) - 1]
                          [tow_key_id(id.value) - 1];
}

static tow_object_id_t random_id(model_t *model)
{
    return (tow_object_id_t){tow_key((uint32_t)(1 + below(model, CLIENT_COUNT)),
                                     1 + below(model, OBJECT_COUNT))};
}

/* -- The model's rules ----------------------------------------------------- */

/* An object is discarded when nothing holds it; its record is removed with its
 * handle. */
static void discard_unused(model_t *model, model_object_t *object)
{
    if (!object->exists) return;
    bool wanted = object->handle && !object->consumed;
    if (!object->discarded && object->holds == 0 && !wanted) {
        object->discarded = true;
        object->counted = false;
        object->residence = TOW_ON_DEVICE;
        model->expected_discards++;
    }
    if (object->discarded && !object->handle) object->exists = false;
}

static void note_discarded(void *context, tow_object_t *object)
{
    model_t *model = context;
    model_object_t *expected = model_of(model, object->id);
    model->discards++;
    expected->discard_count++;
    assert_int_equal(expected->discard_count, 1);
    assert_int_equal(object->hold_count, 0);
}

/* -- Operations ------------------------------------------------------------ */

static tow_object_t *add_object(model_t *model, tow_object_id_t id,
                                size_t placement, bool counted)
{
    model_object_t *expected = model_of(model, id);
    tow_object_options_t options = {
        .id = id,
        .state = counted ? TOW_OBJECT_ARRIVING : TOW_OBJECT_PENDING,
        .bytes = below(model, 1000),
        .placement = model->placements[placement],
        .count_bytes = counted,
    };
    options.shape = (tow_shape_t){
        .type = TOW_TYPE_U8, .rank = 1, .dims = {(int64_t)options.bytes}};
    tow_object_t *object;
    tow_status_t status =
        tow_object_table_add(model->object_table, &options, &object);
    if (expected->exists) {
        assert_int_equal(tow_status_code(status), TOW_ALREADY_EXISTS);
        tow_status_release(status);
        return NULL;
    }
    assert_null(status);
    *expected =
        (model_object_t){.exists = true,
                         .handle = true,
                         .counted = counted,
                         .failed = model->placement_disconnected[placement],
                         .bytes = options.bytes,
                         .placement = placement};
    return object;
}

static void upload(model_t *model)
{
    add_object(model, random_id(model), below(model, PLACEMENT_COUNT), true);
}

static void release_one(model_t *model)
{
    tow_object_id_t id = random_id(model);
    model_object_t *expected = model_of(model, id);
    tow_status_t status = tow_object_table_release(model->object_table, id);
    if (!expected->exists || !expected->handle) {
        assert_int_equal(tow_status_code(status), TOW_NOT_FOUND);
        tow_status_release(status);
        return;
    }
    assert_null(status);
    expected->handle = false;
    discard_unused(model, expected);
}

static void release_client(model_t *model)
{
    uint32_t client = (uint32_t)(1 + below(model, CLIENT_COUNT));
    tow_object_table_release_client(model->object_table, client);
    for (size_t i = 0; i < OBJECT_COUNT; i++) {
        model->objects[client - 1][i].handle = false;
        discard_unused(model, &model->objects[client - 1][i]);
    }
}

/* An argument that a run may use. Sometimes it is donated. */
static void add_argument(model_t *model, model_run_t *run)
{
    tow_object_id_t id = random_id(model);
    model_object_t *expected = model_of(model, id);
    if (!expected->exists || !expected->handle || expected->consumed) return;
    tow_object_t *object = tow_object_table_find(model->object_table, id);
    tow_object_hold(object);
    expected->holds++;
    run->arguments[run->argument_count++] = id;
    if (below(model, 3) > 0) return;
    tow_object_consume(model->object_table, object);
    expected->consumed = true;
}

static void start_run(model_t *model)
{
    model_run_t *run = &model->runs[below(model, RUN_COUNT)];
    if (run->exists) return;
    *run = (model_run_t){.exists = true,
                         .placement = below(model, PLACEMENT_COUNT),
                         .bytes = below(model, 1000)};
    for (size_t i = 0; i < ARGUMENT_COUNT; i++)
        add_argument(model, run);
    run->result = random_id(model);
    tow_object_t *result =
        add_object(model, run->result, run->placement, false);
    run->has_result = result != NULL;
    if (run->has_result) {
        tow_object_hold(result);
        model_of(model, run->result)->holds++;
    }
    tow_placement_reserve(model->placements[run->placement], run->bytes);
}

static void unhold(model_t *model, tow_object_id_t id)
{
    tow_object_unhold(model->object_table,
                      tow_object_table_find(model->object_table, id));
    model_of(model, id)->holds--;
    discard_unused(model, model_of(model, id));
}

static void finish_run(model_t *model)
{
    model_run_t *run = &model->runs[below(model, RUN_COUNT)];
    if (!run->exists) return;
    run->exists = false;
    tow_placement_unreserve(model->placements[run->placement], run->bytes);
    if (run->has_result) {
        tow_object_t *result =
            tow_object_table_find(model->object_table, run->result);
        tow_object_count_bytes(result);
        tow_object_set_ready(result);
        model_of(model, run->result)->counted = true;
        unhold(model, run->result);
    }
    for (size_t i = 0; i < run->argument_count; i++)
        unhold(model, run->arguments[i]);
}

static void fail_one(model_t *model)
{
    tow_object_id_t id = random_id(model);
    tow_object_t *object = tow_object_table_find(model->object_table, id);
    if (object == NULL) return;
    tow_object_fail(object, tow_status_bare(TOW_ABORTED));
    model_of(model, id)->failed = true;
}

static void disconnect_device(model_t *model)
{
    size_t device = below(model, DEVICE_COUNT);
    tow_status_t cause = TOW_ERROR(TOW_UNAVAILABLE, "device %zu", device);
    tow_object_table_on_disconnect(model->object_table, model->accounts[device],
                                   cause);
    tow_status_release(cause);
    model->device_disconnected[device] = true;
    for (size_t p = 0; p < PLACEMENT_COUNT; p++)
        if (model->on[p][device]) model->placement_disconnected[p] = true;
    for (size_t c = 0; c < CLIENT_COUNT; c++)
        for (size_t i = 0; i < OBJECT_COUNT; i++)
            if (model->placement_disconnected[model->objects[c][i].placement])
                model->objects[c][i].failed = true;
}

/* Bytes of all spilled objects on a host. */
static uint64_t spilled_bytes(const model_t *model, size_t host)
{
    uint64_t bytes = 0;
    for (size_t c = 0; c < CLIENT_COUNT; c++)
        for (size_t i = 0; i < OBJECT_COUNT; i++) {
            const model_object_t *object = &model->objects[c][i];
            for (size_t d = host; d < DEVICE_COUNT; d += HOST_COUNT)
                if (object->exists && object->residence != TOW_ON_DEVICE &&
                    model->on[object->placement][d])
                    bytes += object->bytes;
        }
    return model->host_disconnected[host] ? 0 : bytes;
}

static bool has_room(const model_t *model, model_object_t *object)
{
    bool fits = true;
    object->residence = TOW_SPILLING;
    for (size_t h = 0; h < HOST_COUNT; h++) {
        bool is_there = false;
        for (size_t d = h; d < DEVICE_COUNT; d += HOST_COUNT)
            is_there |= model->on[object->placement][d];
        fits &= !is_there || (!model->host_disconnected[h] &&
                              spilled_bytes(model, h) <= HOST_BYTES);
    }
    object->residence = TOW_ON_DEVICE;
    return fits;
}

static void begin_spill(model_t *model, tow_object_t *object,
                        model_object_t *expected)
{
    if (object->state != TOW_OBJECT_READY || !object->counted ||
        object->discarded)
        return;
    const bool fits = has_room(model, expected);
    assert_int_equal(tow_object_full_host(model->object_table, object) == NULL,
                     fits);
    if (!fits) return;
    tow_object_begin_spill(model->object_table, object);
    expected->residence = TOW_SPILLING;
}

/* To host memory and back, one step at a time; a spill may be reversed. */
static void spill_or_unspill(model_t *model)
{
    const tow_object_id_t id = random_id(model);
    tow_object_t *object = tow_object_table_find(model->object_table, id);
    model_object_t *expected = model_of(model, id);
    if (object == NULL) return;
    if (expected->residence == TOW_ON_DEVICE) {
        begin_spill(model, object, expected);
    } else if (expected->residence == TOW_SPILLING && below(model, 4) > 0) {
        tow_object_end_spill(object);
        expected->residence = TOW_SPILLED;
        expected->counted = false;
    } else if (expected->residence == TOW_RETURNING) {
        tow_object_end_return(model->object_table, object);
        expected->residence = TOW_ON_DEVICE;
    } else {
        tow_object_begin_return(object);
        expected->residence = TOW_RETURNING;
        expected->counted = true;
    }
}

static void disconnect_host(model_t *model)
{
    const size_t host = below(model, HOST_COUNT);
    tow_host_memory_on_disconnect(model->hosts[host]);
    model->host_disconnected[host] = true;
}

/* -- Comparing ------------------------------------------------------------- */

static void compare_object(model_t *model, tow_object_id_t id)
{
    const model_object_t *expected = model_of(model, id);
    const tow_object_t *object = tow_object_table_find(model->object_table, id);
    assert_int_equal(object != NULL, expected->exists);
    if (object == NULL) return;
    assert_int_equal(object->has_handle, expected->handle);
    assert_int_equal(object->consumed, expected->consumed);
    assert_int_equal(object->counted, expected->counted);
    assert_int_equal(object->discarded, expected->discarded);
    assert_int_equal(object->residence, expected->residence);
    assert_int_equal(object->hold_count, expected->holds);
    assert_int_equal(object->state == TOW_OBJECT_FAILED, expected->failed);
}

static void compare_device(model_t *model, size_t device)
{
    uint64_t objects = 0;
    uint64_t reserved = 0;
    for (size_t c = 0; c < CLIENT_COUNT; c++) {
        for (size_t i = 0; i < OBJECT_COUNT; i++) {
            const model_object_t *object = &model->objects[c][i];
            if (object->exists && object->counted &&
                model->on[object->placement][device])
                objects += object->bytes;
        }
    }
    for (size_t r = 0; r < RUN_COUNT; r++)
        if (model->runs[r].exists &&
            model->on[model->runs[r].placement][device])
            reserved += model->runs[r].bytes;
    if (model->device_disconnected[device]) objects = reserved = 0;
    assert_int_equal(model->accounts[device]->object_bytes, objects);
    assert_int_equal(model->accounts[device]->reserved_bytes, reserved);
}

static void compare(model_t *model)
{
    assert_int_equal(model->discards, model->expected_discards);
    for (uint32_t c = 1; c <= CLIENT_COUNT; c++)
        for (uint64_t i = 1; i <= OBJECT_COUNT; i++)
            compare_object(model, (tow_object_id_t){tow_key(c, i)});
    for (size_t d = 0; d < DEVICE_COUNT; d++)
        compare_device(model, d);
    for (size_t h = 0; h < HOST_COUNT; h++)
        assert_int_equal(model->hosts[h]->spilled_bytes,
                         spilled_bytes(model, h));
    assert_null(tow_object_table_check(model->object_table));
}

/* -- Seeds ----------------------------------------------------------------- */

/* A random non-empty set of distinct devices, in random order. */
static void make_placement(model_t *model, size_t index)
{
    tow_account_t *chosen[DEVICE_COUNT];
    size_t count = 0;
    size_t first = below(model, DEVICE_COUNT);
    for (size_t i = 0; i < DEVICE_COUNT; i++) {
        size_t device = (first + i) % DEVICE_COUNT;
        if (i > 0 && below(model, 2) == 0) continue;
        model->on[index][device] = true;
        chosen[count++] = model->accounts[device];
    }
    assert_null(tow_object_table_place(model->object_table, chosen, count, NULL,
                                       &model->placements[index]));
}

static void make_model(model_t *model, uint64_t seed)
{
    memset(model, 0, sizeof(*model));
    tow_random_init(&model->random, seed);
    tow_object_table_options_t options = {.discarded = note_discarded,
                                          .context = model};
    assert_null(tow_object_table_create(&options, &model->object_table));
    for (size_t h = 0; h < HOST_COUNT; h++)
        assert_null(tow_object_table_add_host_memory(
            model->object_table, HOST_BYTES, &model->hosts[h]));
    for (size_t d = 0; d < DEVICE_COUNT; d++) {
        assert_null(tow_object_table_add_account(model->object_table, 0,
                                                 &model->accounts[d]));
        model->accounts[d]->host = model->hosts[d % HOST_COUNT]->number;
    }
    for (size_t p = 0; p < PLACEMENT_COUNT; p++)
        make_placement(model, p);
}

static void act(model_t *model)
{
    if (below(model, 3) == 0) spill_or_unspill(model);
    uint64_t choice = below(model, 1000);
    if (choice < 250)
        upload(model);
    else if (choice < 500)
        release_one(model);
    else if (choice < 700)
        start_run(model);
    else if (choice < 960)
        finish_run(model);
    else if (choice < 985)
        fail_one(model);
    else if (choice < 999)
        release_client(model);
    else if (below(model, 3) == 0)
        disconnect_device(model);
    else if (below(model, 6) == 0)
        disconnect_host(model);
}

/* Releases all clients and runs; nothing may be left. */
static void release_everything(model_t *model)
{
    for (uint32_t c = 1; c <= CLIENT_COUNT; c++) {
        tow_object_table_release_client(model->object_table, c);
        for (size_t i = 0; i < OBJECT_COUNT; i++) {
            model->objects[c - 1][i].handle = false;
            discard_unused(model, &model->objects[c - 1][i]);
        }
    }
    bool any = true;
    while (any) {
        any = false;
        finish_run(model);
        for (size_t r = 0; r < RUN_COUNT; r++)
            any |= model->runs[r].exists;
    }
    compare(model);
    tow_object_table_totals_t totals =
        tow_object_table_totals(model->object_table);
    assert_int_equal(totals.object_count, 0);
    assert_int_equal(totals.object_bytes, 0);
    assert_int_equal(totals.reserved_bytes, 0);
    assert_int_equal(totals.spilled_bytes, 0);
    for (size_t p = 0; p < PLACEMENT_COUNT; p++) {
        assert_int_equal(model->placements[p]->reference_count, 1);
        tow_placement_release(model->placements[p]);
    }
    tow_object_table_destroy(model->object_table);
}

static void object_table_agrees_with_a_plain_model_from_any_seed(void **state)
{
    (void)state;
    static model_t model;
    size_t discards = 0;
    for (uint64_t seed = 1; seed <= 20; seed++) {
        fprintf(stderr, "seed %llu\n", (unsigned long long)seed);
        make_model(&model, seed);
        for (size_t step = 0; step < 1500; step++) {
            act(&model);
            compare(&model);
        }
        release_everything(&model);
        discards += model.discards;
    }
    assert_true(discards > 1000); /* The test is not vacuous. */
}

TOW_TEST_MAIN(
    cmocka_unit_test(object_table_agrees_with_a_plain_model_from_any_seed))
