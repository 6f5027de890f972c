/* The ledger beside a model that is too simple to be wrong: plain arrays, no
 * sums, every number worked out anew from what each object and each run is.
 * Thousands of random operations a seed, compared after each. */
#include "base/testing.h"

#include <stdio.h>
#include <string.h>

#include "base/random.h"
#include "store/ledger.h"

#define DEVICE_COUNT    5
#define PLACEMENT_COUNT 6
#define HOST_COUNT      2
#define HOST_BYTES      4000
#define CLIENT_COUNT    4
#define OBJECT_COUNT    48 /* ids of each client */
#define RUN_COUNT       12
#define ARGUMENT_COUNT  4

typedef struct model_object {
    bool exists; /* there is a record of it */
    bool handle, consumed, counted, gone, failed;
    tow_residence_t residence;
    uint32_t holds;
    uint64_t bytes;
    size_t placement;
    size_t drop_count; /* in its present life */
} model_object_t;

/* A run under way: what it holds, makes and reserves. */
typedef struct model_run {
    bool exists;
    size_t placement;
    uint64_t bytes;
    size_t argument_count;
    tow_object_id_t arguments[ARGUMENT_COUNT];
    bool has_result;
    tow_object_id_t result;
} model_run_t;

typedef struct world {
    tow_random_t random;
    tow_ledger_t *ledger;
    tow_account_t *accounts[DEVICE_COUNT];
    tow_host_t *hosts[HOST_COUNT]; /* of device d: d % HOST_COUNT */
    bool host_lost[HOST_COUNT];
    tow_placement_t *placements[PLACEMENT_COUNT];
    bool on[PLACEMENT_COUNT][DEVICE_COUNT];
    bool device_lost[DEVICE_COUNT];
    bool placement_lost[PLACEMENT_COUNT];
    model_object_t objects[CLIENT_COUNT][OBJECT_COUNT];
    model_run_t runs[RUN_COUNT];
    size_t expected_drops;
    size_t drops;
} world_t;

static uint64_t below(world_t *world, uint64_t bound)
{
    return tow_random_below(&world->random, bound);
}

static model_object_t *model_of(world_t *world, tow_object_id_t id)
{
    return &world->objects[tow_key_client(id.value) - 1]
                          [tow_key_id(id.value) - 1];
}

static tow_object_id_t random_id(world_t *world)
{
    return (tow_object_id_t){tow_key((uint32_t)(1 + below(world, CLIENT_COUNT)),
                                     1 + below(world, OBJECT_COUNT))};
}

/* -- The model's rules -------------------------------------------------------- */

/* Gone when nobody holds it; forgotten when its handle went, too. */
static void settle(world_t *world, model_object_t *object)
{
    if (!object->exists) return;
    bool wanted = object->handle && !object->consumed;
    if (!object->gone && object->holds == 0 && !wanted) {
        object->gone = true;
        object->counted = false;
        object->residence = TOW_ON_DEVICE;
        world->expected_drops++;
    }
    if (object->gone && !object->handle) object->exists = false;
}

static void note_dropped(void *context, tow_object_t *object)
{
    world_t *world = context;
    model_object_t *model = model_of(world, object->id);
    world->drops++;
    model->drop_count++;
    assert_int_equal(model->drop_count, 1);
    assert_int_equal(object->hold_count, 0);
}

/* -- Operations --------------------------------------------------------------- */

static tow_object_t *add_object(world_t *world, tow_object_id_t id,
                                size_t placement, bool counted)
{
    model_object_t *model = model_of(world, id);
    tow_object_options_t options = {
        .id = id,
        .state = counted ? TOW_OBJECT_ARRIVING : TOW_OBJECT_PENDING,
        .bytes = below(world, 1000),
        .placement = world->placements[placement],
        .count_bytes = counted,
    };
    options.shape = (tow_shape_t){
        .type = TOW_TYPE_U8, .rank = 1, .dims = {(int64_t)options.bytes}};
    tow_object_t *object;
    tow_status_t status = tow_ledger_add(world->ledger, &options, &object);
    if (model->exists) {
        assert_int_equal(tow_status_code(status), TOW_ALREADY_EXISTS);
        tow_status_release(status);
        return NULL;
    }
    assert_null(status);
    *model = (model_object_t){.exists = true,
                              .handle = true,
                              .counted = counted,
                              .failed = world->placement_lost[placement],
                              .bytes = options.bytes,
                              .placement = placement};
    return object;
}

static void upload(world_t *world)
{
    add_object(world, random_id(world), below(world, PLACEMENT_COUNT), true);
}

static void release_one(world_t *world)
{
    tow_object_id_t id = random_id(world);
    model_object_t *model = model_of(world, id);
    tow_status_t status = tow_ledger_release(world->ledger, id);
    if (!model->exists || !model->handle) {
        assert_int_equal(tow_status_code(status), TOW_NOT_FOUND);
        tow_status_release(status);
        return;
    }
    assert_null(status);
    model->handle = false;
    settle(world, model);
}

static void release_client(world_t *world)
{
    uint32_t client = (uint32_t)(1 + below(world, CLIENT_COUNT));
    tow_ledger_release_client(world->ledger, client);
    for (size_t i = 0; i < OBJECT_COUNT; i++) {
        world->objects[client - 1][i].handle = false;
        settle(world, &world->objects[client - 1][i]);
    }
}

/* An argument that a run may use. Now and then it is donated. */
static void add_argument(world_t *world, model_run_t *run)
{
    tow_object_id_t id = random_id(world);
    model_object_t *model = model_of(world, id);
    if (!model->exists || !model->handle || model->consumed) return;
    tow_object_t *object = tow_ledger_find(world->ledger, id);
    tow_object_hold(object);
    model->holds++;
    run->arguments[run->argument_count++] = id;
    if (below(world, 3) > 0) return;
    tow_object_consume(world->ledger, object);
    model->consumed = true;
}

static void start_run(world_t *world)
{
    model_run_t *run = &world->runs[below(world, RUN_COUNT)];
    if (run->exists) return;
    *run = (model_run_t){.exists = true,
                         .placement = below(world, PLACEMENT_COUNT),
                         .bytes = below(world, 1000)};
    for (size_t i = 0; i < ARGUMENT_COUNT; i++)
        add_argument(world, run);
    run->result = random_id(world);
    tow_object_t *result =
        add_object(world, run->result, run->placement, false);
    run->has_result = result != NULL;
    if (run->has_result) {
        tow_object_hold(result);
        model_of(world, run->result)->holds++;
    }
    tow_placement_reserve(world->placements[run->placement], run->bytes);
}

static void unhold(world_t *world, tow_object_id_t id)
{
    tow_object_unhold(world->ledger, tow_ledger_find(world->ledger, id));
    model_of(world, id)->holds--;
    settle(world, model_of(world, id));
}

static void finish_run(world_t *world)
{
    model_run_t *run = &world->runs[below(world, RUN_COUNT)];
    if (!run->exists) return;
    run->exists = false;
    tow_placement_unreserve(world->placements[run->placement], run->bytes);
    if (run->has_result) {
        tow_object_t *result = tow_ledger_find(world->ledger, run->result);
        tow_object_count_bytes(result);
        tow_object_set_ready(result);
        model_of(world, run->result)->counted = true;
        unhold(world, run->result);
    }
    for (size_t i = 0; i < run->argument_count; i++)
        unhold(world, run->arguments[i]);
}

static void fail_one(world_t *world)
{
    tow_object_id_t id = random_id(world);
    tow_object_t *object = tow_ledger_find(world->ledger, id);
    if (object == NULL) return;
    tow_object_fail(object, tow_status_bare(TOW_ABORTED));
    model_of(world, id)->failed = true;
}

static void lose_device(world_t *world)
{
    size_t device = below(world, DEVICE_COUNT);
    tow_status_t cause = TOW_ERROR(TOW_UNAVAILABLE, "device %zu", device);
    tow_ledger_lose_account(world->ledger, world->accounts[device], cause);
    tow_status_release(cause);
    world->device_lost[device] = true;
    for (size_t p = 0; p < PLACEMENT_COUNT; p++)
        if (world->on[p][device]) world->placement_lost[p] = true;
    for (size_t c = 0; c < CLIENT_COUNT; c++)
        for (size_t i = 0; i < OBJECT_COUNT; i++)
            if (world->placement_lost[world->objects[c][i].placement])
                world->objects[c][i].failed = true;
}

/* What all spilled objects have of a host; with one more, if it fits. */
static uint64_t spilled_bytes(const world_t *world, size_t host)
{
    uint64_t bytes = 0;
    for (size_t c = 0; c < CLIENT_COUNT; c++)
        for (size_t i = 0; i < OBJECT_COUNT; i++) {
            const model_object_t *object = &world->objects[c][i];
            for (size_t d = host; d < DEVICE_COUNT; d += HOST_COUNT)
                if (object->exists && object->residence != TOW_ON_DEVICE &&
                    world->on[object->placement][d])
                    bytes += object->bytes;
        }
    return world->host_lost[host] ? 0 : bytes;
}

static bool has_room(const world_t *world, model_object_t *object)
{
    bool fits = true;
    object->residence = TOW_SPILLING;
    for (size_t h = 0; h < HOST_COUNT; h++) {
        bool is_there = false;
        for (size_t d = h; d < DEVICE_COUNT; d += HOST_COUNT)
            is_there |= world->on[object->placement][d];
        fits &= !is_there ||
                (!world->host_lost[h] && spilled_bytes(world, h) <= HOST_BYTES);
    }
    object->residence = TOW_ON_DEVICE;
    return fits;
}

static void begin_spill(world_t *world, tow_object_t *object,
                        model_object_t *model)
{
    if (object->state != TOW_OBJECT_READY || !object->counted ||
        object->dropped)
        return;
    const bool fits = has_room(world, model);
    assert_int_equal(tow_object_short_host(world->ledger, object) == NULL,
                     fits);
    if (!fits) return;
    tow_object_begin_spill(world->ledger, object);
    model->residence = TOW_SPILLING;
}

/* To host memory and back, a step at a time; at times it turns round. */
static void move_one(world_t *world)
{
    const tow_object_id_t id = random_id(world);
    tow_object_t *object = tow_ledger_find(world->ledger, id);
    model_object_t *model = model_of(world, id);
    if (object == NULL) return;
    if (model->residence == TOW_ON_DEVICE) {
        begin_spill(world, object, model);
    } else if (model->residence == TOW_SPILLING && below(world, 4) > 0) {
        tow_object_end_spill(object);
        model->residence = TOW_SPILLED;
        model->counted = false;
    } else if (model->residence == TOW_RETURNING) {
        tow_object_end_return(world->ledger, object);
        model->residence = TOW_ON_DEVICE;
    } else {
        tow_object_begin_return(object);
        model->residence = TOW_RETURNING;
        model->counted = true;
    }
}

static void lose_host(world_t *world)
{
    const size_t host = below(world, HOST_COUNT);
    tow_ledger_lose_host(world->hosts[host]);
    world->host_lost[host] = true;
}

/* -- Comparing ---------------------------------------------------------------- */

static void compare_object(world_t *world, tow_object_id_t id)
{
    const model_object_t *model = model_of(world, id);
    const tow_object_t *object = tow_ledger_find(world->ledger, id);
    assert_int_equal(object != NULL, model->exists);
    if (object == NULL) return;
    assert_int_equal(object->has_handle, model->handle);
    assert_int_equal(object->consumed, model->consumed);
    assert_int_equal(object->counted, model->counted);
    assert_int_equal(object->dropped, model->gone);
    assert_int_equal(object->residence, model->residence);
    assert_int_equal(object->hold_count, model->holds);
    assert_int_equal(object->state == TOW_OBJECT_FAILED, model->failed);
}

static void compare_device(world_t *world, size_t device)
{
    uint64_t objects = 0;
    uint64_t reserved = 0;
    for (size_t c = 0; c < CLIENT_COUNT; c++) {
        for (size_t i = 0; i < OBJECT_COUNT; i++) {
            const model_object_t *object = &world->objects[c][i];
            if (object->exists && object->counted &&
                world->on[object->placement][device])
                objects += object->bytes;
        }
    }
    for (size_t r = 0; r < RUN_COUNT; r++)
        if (world->runs[r].exists &&
            world->on[world->runs[r].placement][device])
            reserved += world->runs[r].bytes;
    if (world->device_lost[device]) objects = reserved = 0;
    assert_int_equal(world->accounts[device]->object_bytes, objects);
    assert_int_equal(world->accounts[device]->reserved_bytes, reserved);
}

static void compare(world_t *world)
{
    assert_int_equal(world->drops, world->expected_drops);
    for (uint32_t c = 1; c <= CLIENT_COUNT; c++)
        for (uint64_t i = 1; i <= OBJECT_COUNT; i++)
            compare_object(world, (tow_object_id_t){tow_key(c, i)});
    for (size_t d = 0; d < DEVICE_COUNT; d++)
        compare_device(world, d);
    for (size_t h = 0; h < HOST_COUNT; h++)
        assert_int_equal(world->hosts[h]->spilled_bytes,
                         spilled_bytes(world, h));
    assert_null(tow_ledger_check(world->ledger));
}

/* -- Worlds ------------------------------------------------------------------- */

/* A random non-empty set of devices, in random order of none twice. */
static void make_placement(world_t *world, size_t index)
{
    tow_account_t *chosen[DEVICE_COUNT];
    size_t count = 0;
    size_t first = below(world, DEVICE_COUNT);
    for (size_t i = 0; i < DEVICE_COUNT; i++) {
        size_t device = (first + i) % DEVICE_COUNT;
        if (i > 0 && below(world, 2) == 0) continue;
        world->on[index][device] = true;
        chosen[count++] = world->accounts[device];
    }
    assert_null(tow_ledger_place(world->ledger, chosen, count, NULL,
                                 &world->placements[index]));
}

static void make_world(world_t *world, uint64_t seed)
{
    memset(world, 0, sizeof(*world));
    tow_random_init(&world->random, seed);
    tow_ledger_options_t options = {.dropped = note_dropped, .context = world};
    assert_null(tow_ledger_create(&options, &world->ledger));
    for (size_t h = 0; h < HOST_COUNT; h++)
        assert_null(
            tow_ledger_add_host(world->ledger, HOST_BYTES, &world->hosts[h]));
    for (size_t d = 0; d < DEVICE_COUNT; d++) {
        assert_null(
            tow_ledger_add_account(world->ledger, 0, &world->accounts[d]));
        world->accounts[d]->host = world->hosts[d % HOST_COUNT]->number;
    }
    for (size_t p = 0; p < PLACEMENT_COUNT; p++)
        make_placement(world, p);
}

static void act(world_t *world)
{
    if (below(world, 3) == 0) move_one(world);
    uint64_t dice = below(world, 1000);
    if (dice < 250)
        upload(world);
    else if (dice < 500)
        release_one(world);
    else if (dice < 700)
        start_run(world);
    else if (dice < 960)
        finish_run(world);
    else if (dice < 985)
        fail_one(world);
    else if (dice < 999)
        release_client(world);
    else if (below(world, 3) == 0)
        lose_device(world);
    else if (below(world, 6) == 0)
        lose_host(world);
}

/* Everybody goes; nothing may be left. */
static void wind_down(world_t *world)
{
    for (uint32_t c = 1; c <= CLIENT_COUNT; c++) {
        tow_ledger_release_client(world->ledger, c);
        for (size_t i = 0; i < OBJECT_COUNT; i++) {
            world->objects[c - 1][i].handle = false;
            settle(world, &world->objects[c - 1][i]);
        }
    }
    bool any = true;
    while (any) {
        any = false;
        finish_run(world);
        for (size_t r = 0; r < RUN_COUNT; r++)
            any |= world->runs[r].exists;
    }
    compare(world);
    tow_ledger_totals_t totals = tow_ledger_totals(world->ledger);
    assert_int_equal(totals.object_count, 0);
    assert_int_equal(totals.object_bytes, 0);
    assert_int_equal(totals.reserved_bytes, 0);
    assert_int_equal(totals.spilled_bytes, 0);
    for (size_t p = 0; p < PLACEMENT_COUNT; p++) {
        assert_int_equal(world->placements[p]->reference_count, 1);
        tow_placement_release(world->placements[p]);
    }
    tow_ledger_destroy(world->ledger);
}

static void ledger_agrees_with_a_plain_model_from_any_seed(void **state)
{
    (void)state;
    static world_t world;
    size_t drops = 0;
    for (uint64_t seed = 1; seed <= 20; seed++) {
        fprintf(stderr, "seed %llu\n", (unsigned long long)seed);
        make_world(&world, seed);
        for (size_t step = 0; step < 1500; step++) {
            act(&world);
            compare(&world);
        }
        wind_down(&world);
        drops += world.drops;
    }
    assert_true(drops > 1000); /* The test did something. */
}

TOW_TEST_MAIN(cmocka_unit_test(ledger_agrees_with_a_plain_model_from_any_seed))
