/* Shardings: every device has the part that a naive expansion of the mesh
 * gives; text, bytes and XLA's form are equivalent. */
#include "ir/ir_testing_impl.h"

#include "device/proto.h"

/* -- Naive expansion ------------------------------------------------------- */

/* Devices in the order of positions: lays them out and reads them back. */
static void expand(const tow_sharding_t *sharding, size_t count,
                   size_t *devices)
{
    size_t strides[TOW_MESH_RANK_MAX], stride = 1;
    for (uint32_t i = sharding->mesh_rank; i-- > 0;) {
        strides[i] = stride;
        stride *= sharding->mesh_dims[i];
    }
    for (size_t position = 0; position < count; position++) {
        size_t rest = position, device = 0;
        for (uint32_t i = sharding->mesh_rank; i-- > 0;) {
            const uint32_t axis = sharding->mesh_axes[i];
            device += rest % sharding->mesh_dims[axis] * strides[axis];
            rest /= sharding->mesh_dims[axis];
        }
        devices[position] = sharding->mesh_rank == 0 ? position : device;
    }
}

static void parts_are_where_the_mesh_puts_them(void **state)
{
    (void)state;
    tow_random_t random;
    tow_random_init(&random, 1);
    for (int round = 0; round < 2000; round++) {
        size_t count, devices[1024];
        uint32_t index[TOW_RANK_MAX];
        const tow_sharding_t sharding = ir_random_sharding(&random, &count);
        must(tow_sharding_check(&sharding, count));
        expand(&sharding, count, devices);
        for (size_t position = 0; position < count; position++) {
            const uint32_t replica =
                tow_sharding_part_of(&sharding, devices[position], index);
            size_t part = 0;
            for (uint32_t i = 0; i < sharding.rank; i++)
                part = part * sharding.parts[i] + index[i];
            assert_int_equal(part * sharding.replicas + replica, position);
            assert_int_equal(tow_sharding_device_of(&sharding, index, replica),
                             devices[position]);
        }
    }
}

static void text_and_xla_say_the_same(void **state)
{
    (void)state;
    tow_random_t random;
    tow_random_init(&random, 2);
    for (int round = 0; round < 2000; round++) {
        char text[TOW_SHARDING_TEXT_MAX];
        uint8_t bytes[TOW_SHARDING_XLA_MAX];
        size_t count;
        tow_sharding_t again;
        const tow_sharding_t sharding = ir_random_sharding(&random, &count);
        tow_sharding_format(&sharding, text);
        must(tow_sharding_parse(text, strlen(text), &again));
        assert_memory_equal(&sharding, &again, sizeof(sharding));
        const size_t size = tow_sharding_to_xla(&sharding, bytes);
        must(tow_sharding_from_xla((tow_bytes_t){bytes, size}, sharding.rank,
                                   count, &again));
        assert_true(tow_sharding_equal(&sharding, &again));
    }
}

/* -- XLA's older form ------------------------------------------------------ */

typedef struct op_text {
    uint8_t bytes[4096];
    size_t size;
} op_text_t;

static void put_number(op_text_t *op, uint32_t field, uint64_t value)
{
    op->size = (size_t)(proto_write_number(op->bytes + op->size, field, value) -
                        op->bytes);
}

static tow_status_t read_op(const op_text_t *op, uint32_t rank, size_t devices,
                            tow_sharding_t *out_sharding)
{
    return tow_sharding_from_xla((tow_bytes_t){op->bytes, op->size}, rank,
                                 devices, out_sharding);
}

static void lists_of_devices_become_meshes(void **state)
{
    (void)state;
    tow_random_t random;
    tow_random_init(&random, 3);
    for (int round = 0; round < 2000; round++) {
        size_t count, devices[1024];
        tow_sharding_t again;
        const tow_sharding_t sharding = ir_random_sharding(&random, &count);
        op_text_t op = {0};
        expand(&sharding, count, devices);
        put_number(&op, 1, 3);
        for (uint32_t i = 0; i < sharding.rank; i++)
            put_number(&op, 3, sharding.parts[i]);
        put_number(&op, 3, sharding.replicas);
        put_number(&op, 6, 1);
        for (size_t i = 0; i < count; i++)
            put_number(&op, 4, devices[i]);
        must(read_op(&op, sharding.rank, count, &again));
        assert_true(tow_sharding_equal(&sharding, &again));
    }
}

static void lists_in_no_order_are_refused_in_words(void **state)
{
    (void)state;
    const uint64_t lists[][4] = {
        {0, 1, 3, 2}, {1, 0, 2, 3}, {0, 0, 0, 0}, {0, 9, 1, 2}, {0, 2, 2, 0}};
    for (size_t i = 0; i < TOW_COUNT_OF(lists); i++) {
        tow_sharding_t sharding;
        op_text_t op = {0};
        put_number(&op, 1, 3);
        put_number(&op, 3, 4);
        for (size_t k = 0; k < 4; k++)
            put_number(&op, 4, lists[i][k]);
        must_fail(read_op(&op, 1, 4, &sharding), TOW_UNIMPLEMENTED,
                  "its devices are in no regular order; use a mesh whose "
                  "devices are in the slice's order, or a transpose of it");
        assert_false(tow_sharding_is_known(&sharding));
    }
}

static void what_xla_says_and_we_cannot_is_refused(void **state)
{
    (void)state;
    tow_sharding_t sharding;
    op_text_t manual = {0}, maximal = {0}, subgroup = {0}, wrong = {0};
    put_number(&manual, 1, 4);
    must_fail(read_op(&manual, 1, 4, &sharding), TOW_UNIMPLEMENTED,
              "a manual sharding: what each device holds is known to the "
              "function alone");
    put_number(&maximal, 1, 1);
    put_number(&maximal, 3, 1);
    put_number(&maximal, 4, 0);
    must_fail(read_op(&maximal, 1, 4, &sharding), TOW_UNIMPLEMENTED,
              "all of it is on one of 4 devices");
    must(read_op(&maximal, 1, 1, &sharding));
    put_number(&subgroup, 1, 3);
    put_number(&subgroup, 3, 2);
    put_number(&subgroup, 3, 2);
    put_number(&subgroup, 8, 4);
    must_fail(read_op(&subgroup, 1, 4, &sharding), TOW_UNIMPLEMENTED,
              "a manual subgroup: what its members hold is known to the "
              "function alone");
    put_number(&wrong, 1, 3);
    put_number(&wrong, 3, 3);
    put_number(&wrong, 9, 3);
    put_number(&wrong, 10, 0);
    must_fail(read_op(&wrong, 1, 4, &sharding), TOW_INVALID_ARGUMENT,
              "sharding 3 is not for 4 devices: its parts and replicas must "
              "multiply to that");
    must_fail(tow_sharding_from_xla((tow_bytes_t){"\xff", 1}, 1, 4, &sharding),
              TOW_INVALID_ARGUMENT, "the bytes are not an xla.OpSharding");
}

static void no_bytes_are_replicated(void **state)
{
    (void)state;
    tow_sharding_t sharding;
    const tow_sharding_t wanted = tow_sharding_replicated(2, 8);
    must(tow_sharding_from_xla((tow_bytes_t){0}, 2, 8, &sharding));
    assert_true(tow_sharding_equal(&sharding, &wanted));
}

/* Replicas of several dimensions, as subgroups write them. */
static void replicated_subgroups_are_replicas(void **state)
{
    (void)state;
    tow_sharding_t sharding;
    op_text_t op = {0};
    char text[TOW_SHARDING_TEXT_MAX];
    put_number(&op, 1, 3);
    put_number(&op, 3, 2);
    put_number(&op, 3, 2);
    put_number(&op, 3, 2);
    put_number(&op, 8, 0);
    put_number(&op, 8, 0);
    put_number(&op, 9, 8);
    put_number(&op, 10, 0);
    must(read_op(&op, 1, 8, &sharding));
    assert_string_equal(tow_sharding_format(&sharding, text), "2*4");
}

/* -- Shapes and errors ----------------------------------------------------- */

static void shapes_of_wholes_and_shards_follow(void **state)
{
    (void)state;
    char text[TOW_SHAPE_TEXT_MAX];
    const tow_sharding_t sharding = sharding_of("2x4*2");
    const tow_shape_t shard = shape_of("f32[3,5]");
    tow_shape_t whole, again;
    must(tow_sharding_whole(&sharding, &shard, &whole));
    assert_string_equal(tow_shape_format(&whole, text), "f32[6,20]");
    must(tow_sharding_shard(&sharding, &whole, &again));
    assert_true(tow_shape_equal(&shard, &again));
}

static void shapes_that_do_not_fit_are_refused(void **state)
{
    (void)state;
    const tow_sharding_t sharding = sharding_of("2x4");
    tow_shape_t out;
    tow_shape_t shape = shape_of("f32[3]");
    must_fail(tow_sharding_whole(&sharding, &shape, &out), TOW_INVALID_ARGUMENT,
              "sharding 2x4 is of rank 2, and f32[3] of rank 1");
    shape = shape_of("f32[4,6]");
    must_fail(tow_sharding_shard(&sharding, &shape, &out), TOW_INVALID_ARGUMENT,
              "sharding 2x4 does not divide dimension 1 of f32[4,6]");
    shape = shape_of("s8[4611686018427387904,1]");
    must_fail(tow_sharding_whole(&sharding, &shape, &out), TOW_OUT_OF_RANGE,
              "2 parts of 4611686018427387904 along dimension 0 are more than "
              "2^63 - 1");
}

static void checks_name_what_is_wrong(void **state)
{
    (void)state;
    tow_sharding_t sharding = sharding_of("2x4*2");
    must_fail(tow_sharding_check(&sharding, 8), TOW_INVALID_ARGUMENT,
              "sharding 2x4*2 is not for 8 devices: its parts and replicas "
              "must multiply to that");
    sharding = sharding_of("8 mesh 2x3 axes 0,1");
    must_fail(tow_sharding_check(&sharding, 8), TOW_INVALID_ARGUMENT,
              "the mesh of sharding 8 mesh 2x3 axes 0,1 is not of 8 devices");
    sharding = sharding_of("8 mesh 2x4 axes 1,1");
    must_fail(tow_sharding_check(&sharding, 8), TOW_INVALID_ARGUMENT,
              "the axes of sharding 8 mesh 2x4 axes 1,1 must be the numbers "
              "below 2, each once");
    sharding = sharding_of("4294967295x4294967295*4294967295");
    must_fail(tow_sharding_check(&sharding, 8), TOW_INVALID_ARGUMENT,
              "sharding 4294967295x4294967295*4294967295 is not for 8 devices: "
              "its parts and replicas must multiply to that");
    sharding = sharding_of("0x8");
    must_fail(tow_sharding_check(&sharding, 8), TOW_INVALID_ARGUMENT,
              "sharding 0x8 has no parts along dimension 0");
    sharding = sharding_of("?");
    must_fail(tow_sharding_check(&sharding, 8), TOW_INVALID_ARGUMENT,
              "the sharding is not known");
}

static void meshes_that_say_the_same_are_equal(void **state)
{
    (void)state;
    const tow_sharding_t plain = sharding_of("8");
    const tow_sharding_t mesh = sharding_of("8 mesh 2x4 axes 0,1");
    const tow_sharding_t other = sharding_of("8 mesh 2x4 axes 1,0");
    const tow_sharding_t unknown = sharding_of("?");
    assert_true(tow_sharding_equal(&plain, &mesh));
    assert_false(tow_sharding_equal(&plain, &other));
    assert_false(tow_sharding_equal(&unknown, &unknown));
    /* The order of replicas does not matter. */
    const tow_sharding_t a = sharding_of("*8");
    const tow_sharding_t b = sharding_of("*8 mesh 2x4 axes 1,0");
    assert_true(tow_sharding_equal(&a, &b));
}

static void bad_text_is_refused(void **state)
{
    (void)state;
    static const char *const texts[] = {"",           "x",
                                        "2x",         "2*",
                                        "2*0",        "2x4 ",
                                        "2 mesh 2",   "4 mesh 2x2 axes 0",
                                        "4294967296", "*",
                                        "2x4*2*",     "4 mesh x axes 0",
                                        "??",         "4 mesh 2x2 axes 0,1,0"};
    for (size_t i = 0; i < TOW_COUNT_OF(texts); i++) {
        tow_sharding_t sharding;
        tow_status_t status =
            tow_sharding_parse(texts[i], strlen(texts[i]), &sharding);
        assert_int_equal(tow_status_code(status), TOW_INVALID_ARGUMENT);
        assert_false(tow_sharding_is_known(&sharding));
        tow_status_release(status);
    }
}

TOW_TEST_MAIN(cmocka_unit_test(parts_are_where_the_mesh_puts_them),
              cmocka_unit_test(text_and_xla_say_the_same),
              cmocka_unit_test(lists_of_devices_become_meshes),
              cmocka_unit_test(lists_in_no_order_are_refused_in_words),
              cmocka_unit_test(what_xla_says_and_we_cannot_is_refused),
              cmocka_unit_test(no_bytes_are_replicated),
              cmocka_unit_test(replicated_subgroups_are_replicas),
              cmocka_unit_test(shapes_of_wholes_and_shards_follow),
              cmocka_unit_test(shapes_that_do_not_fit_are_refused),
              cmocka_unit_test(checks_name_what_is_wrong),
              cmocka_unit_test(meshes_that_say_the_same_are_equal),
              cmocka_unit_test(bad_text_is_refused))
