/* Device memory: its limit, its initial content, uploads and sharing. Needs
 * TOW_XLA_CPU. */
#include "device/xla_cpu/harness.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "base/block.h"

static void memory_limit_fails_one_allocation_only(void **state)
{
    PJRT_Client *client = client_open(
        (client_options_t){.device_count = 2, .memory_limit_bytes = 1 << 20});
    PJRT_Device *device = device_at(client, 0);
    /* Needs 800 kB for its result. */
    PJRT_LoadedExecutable *fill = compile(
        client,
        "func.func public @main(%a: tensor<f32>) -> tensor<200000xf32> {\n"
        "  %0 = stablehlo.broadcast_in_dim %a, dims = [] :"
        " (tensor<f32>) -> tensor<200000xf32>\n"
        "  return %0 : tensor<200000xf32>\n"
        "}\n",
        NULL);
    const float one = 1;
    PJRT_Buffer *a = NULL;
    expect_ok(
        try_upload(client, device, PJRT_Buffer_Type_F32, &one, NULL, 0, &a));
    call_t call = {.executable = fill, .argument_count = 1, .arguments = {{a}}};
    execute(&call);
    assert_true(bytes_in_use(device) >= 800000);
    assert_int_equal(bytes_in_use(device_at(client, 1)), 0);

    call_t second = call;
    expect_ok(try_execute(&second));
    expect_error(try_await(second.done[0]), PJRT_Error_Code_RESOURCE_EXHAUSTED,
                 "out of device memory");
    destroy(second.outputs[0][0]);
    float *values = calloc(200000, sizeof(float));
    assert_non_null(values);
    const int64_t dims[] = {200000};
    PJRT_Buffer *refused = NULL;
    expect_error(try_upload(client, device, PJRT_Buffer_Type_F32, values, dims,
                            1, &refused),
                 PJRT_Error_Code_RESOURCE_EXHAUSTED, "limit 1048576");
    destroy(call.outputs[0][0]);
    execute(&call);
    destroy(call.outputs[0][0]);
    destroy(a);
    free(values);
    unload(fill);
    assert_int_equal(bytes_in_use(device), 0);
    client_close(client);
}

/* --- Copies --------------------------------------------------------------- */

static void mark(PJRT_Error *error, void *argument)
{
    expect_ok(error);
    atomic_store((_Atomic bool *)argument, true);
}

static void aligned_memory_is_used_without_a_copy(void **state)
{
    PJRT_Client *client = client_open((client_options_t){0});
    const int64_t dims[] = {1 << 16};
    float *values = aligned_alloc(64, sizeof(float) << 16);
    assert_non_null(values);
    for (size_t i = 0; i < 1 << 16; i++)
        values[i] = (float)i;
    PJRT_Client_BufferFromHostBuffer_Args args = {
        .struct_size = sizeof(args),
        .client = client,
        .data = values,
        .type = PJRT_Buffer_Type_F32,
        .dims = dims,
        .num_dims = 1,
        .host_buffer_semantics = PJRT_HostBufferSemantics_kImmutableZeroCopy,
        .device = device_at(client, 0),
    };
    expect_ok(api->PJRT_Client_BufferFromHostBuffer(&args));
    PJRT_Buffer_UnsafePointer_Args where = {.struct_size = sizeof(where),
                                            .buffer = args.buffer};
    expect_ok(api->PJRT_Buffer_UnsafePointer(&where));
    assert_true(where.buffer_pointer == (uintptr_t)values);
    _Atomic bool is_free = false;
    PJRT_Event_OnReady_Args on_ready = {.struct_size = sizeof(on_ready),
                                        .event = args.done_with_host_buffer,
                                        .callback = mark,
                                        .user_arg = &is_free};
    expect_ok(api->PJRT_Event_OnReady(&on_ready));
    assert_false(is_free);
    destroy(args.buffer);
    await(args.done_with_host_buffer);
    assert_true(is_free);
    free(values);
    client_close(client);
}

static void strided_memory_is_made_dense(void **state)
{
    PJRT_Client *client = client_open((client_options_t){0});
    const float values[6] = {1, 2, 3, 4, 5, 6};
    const int64_t dims[] = {3, 2};
    const int64_t strides[] = {4, 12}; /* A transposed view. */
    PJRT_Client_BufferFromHostBuffer_Args args = {
        .struct_size = sizeof(args),
        .client = client,
        .data = values,
        .type = PJRT_Buffer_Type_F32,
        .dims = dims,
        .num_dims = 2,
        .byte_strides = strides,
        .num_byte_strides = 2,
        .device = device_at(client, 0),
    };
    expect_ok(api->PJRT_Client_BufferFromHostBuffer(&args));
    await(args.done_with_host_buffer);
    float read[6];
    download(args.buffer, read, sizeof(read));
    const float expected[6] = {1, 4, 2, 5, 3, 6};
    assert_memory_equal(read, expected, sizeof(read));

    /* And back, in row-major order. */
    const int64_t minor_to_major[] = {0, 1};
    PJRT_Buffer_MemoryLayout layout = {
        .struct_size = sizeof(layout),
        .tiled = {.struct_size = sizeof(layout.tiled),
                  .minor_to_major = minor_to_major,
                  .minor_to_major_size = 2},
        .type = PJRT_Buffer_MemoryLayout_Type_Tiled,
    };
    PJRT_Buffer_ToHostBuffer_Args to_host = {
        .struct_size = sizeof(to_host),
        .src = args.buffer,
        .host_layout = &layout,
        .dst = read,
        .dst_size = sizeof(read),
    };
    expect_ok(api->PJRT_Buffer_ToHostBuffer(&to_host));
    await(to_host.event);
    assert_memory_equal(read, values, sizeof(read));
    destroy(args.buffer);
    client_close(client);
}

/* --- Content of reused memory --------------------------------------------- */

enum {
    MIB = 1 << 20
};

static PJRT_Buffer *allocate(PJRT_Client *client, int64_t size)
{
    PJRT_Client_CreateUninitializedBuffer_Args args = {
        .struct_size = sizeof(args),
        .client = client,
        .shape_dims = &size,
        .shape_num_dims = 1,
        .shape_element_type = PJRT_Buffer_Type_U8,
        .device = device_at(client, 0),
    };
    expect_ok(api->PJRT_Client_CreateUninitializedBuffer(&args));
    return args.buffer;
}

/* Returns the address, for comparing. */
static uintptr_t fill(PJRT_Buffer *buffer, int value, size_t size)
{
    PJRT_Buffer_UnsafePointer_Args where = {.struct_size = sizeof(where),
                                            .buffer = buffer};
    expect_ok(api->PJRT_Buffer_UnsafePointer(&where));
    memset((void *)where.buffer_pointer, value, size);
    return where.buffer_pointer;
}

static void allocated_memory_holds_zeroes(void **state)
{
    static const int64_t sizes[] = {1,       100,         4096,    65536,
                                    MIB + 7, 2 * MIB - 1, 5 * MIB, 32 * MIB};
    PJRT_Client *client = client_open((client_options_t){0});
    unsigned char *read = malloc(32 * MIB);
    assert_non_null(read);
    for (size_t i = 0; i < TOW_COUNT_OF(sizes); i++)
        for (int round = 0; round < 4; round++) {
            size_t size = (size_t)sizes[i];
            PJRT_Buffer *buffer = allocate(client, sizes[i]);
            download(buffer, read, size);
            assert_int_equal(read[0], 0);
            assert_memory_equal(read, read + 1, size - 1);
            fill(buffer, 0xa5, size);
            destroy(buffer);
        }
    free(read);
    client_close(client);
}

static int64_t bytes_held(PJRT_Device *device)
{
    PJRT_Device_MemoryStats_Args args = {.struct_size = sizeof(args),
                                         .device = device};
    expect_ok(api->PJRT_Device_MemoryStats(&args));
    assert_true(args.pool_bytes_is_set);
    return args.pool_bytes;
}

/* Freed blocks are cached for allocations of the same size, but make room for
 * memory in use. */
static void cached_blocks_count_within_the_limit(void **state)
{
    enum {
        LIMIT = 32 * MIB
    };
    PJRT_Client *client = client_open(
        (client_options_t){.device_count = 2, .memory_limit_bytes = LIMIT});
    PJRT_Device *device = device_at(client, 0);
    PJRT_Buffer *buffer = allocate(client, 16 * MIB);
    uintptr_t first = fill(buffer, 1, 16 * MIB);
    destroy(buffer);
    assert_int_equal(bytes_in_use(device), 0);
    assert_int_equal(bytes_held(device), 16 * MIB);
    assert_int_equal(bytes_held(device_at(client, 1)), 0);
    buffer = allocate(client, 16 * MIB);
    assert_true(fill(buffer, 2, 16 * MIB) == first);
    destroy(buffer);

    buffer = allocate(client, MIB); /* Smaller than a huge page. */
    first = fill(buffer, 1, MIB);
    destroy(buffer);
    assert_int_equal(bytes_held(device), 17 * MIB);
    buffer = allocate(client, MIB);
    assert_true(fill(buffer, 2, MIB) == first);
    destroy(buffer);

    for (int64_t mib = 2; mib <= 30; mib += 4) {
        buffer = allocate(client, mib * MIB);
        assert_true(bytes_held(device) <= LIMIT);
        PJRT_Buffer *rest = allocate(client, LIMIT - mib * MIB);
        assert_int_equal(bytes_held(device), LIMIT);
        destroy(buffer);
        destroy(rest);
        assert_int_equal(bytes_in_use(device), 0);
        assert_true(bytes_held(device) <= LIMIT);
    }
    client_close(client);
}

/* --- Memory shared with other processes ----------------------------------- */

static int is_wanted(size_t size)
{
    return tow_block_is_preferred(size);
}

static int is_quarantined(const void *bytes)
{
    return tow_block_is_quarantined(bytes);
}

static const tow_xla_blocks_t blocks = {.struct_size = sizeof(blocks),
                                        .is_preferred = is_wanted,
                                        .alloc = tow_block_alloc,
                                        .free = tow_block_free,
                                        .is_quarantined = is_quarantined};

#define ARRAY "tensor<2097152xf32>" /* 8 MiB */

static const char FILL[] =
    "func.func public @main(%a: tensor<f32>) -> " ARRAY " {\n"
    "  %0 = stablehlo.broadcast_in_dim %a, dims = [] :"
    " (tensor<f32>) -> " ARRAY "\n"
    "  return %0 : " ARRAY "\n"
    "}\n";

static const char DOUBLE[] =
    "func.func public @main(%a: " ARRAY " {tf.aliasing_output = 0 : i32})"
    " -> " ARRAY " {\n"
    "  %0 = stablehlo.add %a, %a : " ARRAY "\n"
    "  return %0 : " ARRAY "\n"
    "}\n";

static uintptr_t address_of(PJRT_Buffer *buffer)
{
    PJRT_Buffer_UnsafePointer_Args where = {.struct_size = sizeof(where),
                                            .buffer = buffer};
    expect_ok(api->PJRT_Buffer_UnsafePointer(&where));
    return where.buffer_pointer;
}

static void delete (PJRT_Buffer *buffer)
{
    PJRT_Buffer_Delete_Args args = {.struct_size = sizeof(args),
                                    .buffer = buffer};
    expect_ok(api->PJRT_Buffer_Delete(&args));
}

static void begin_remote_share(PJRT_Buffer *buffer)
{
    PJRT_Buffer_IncreaseExternalReferenceCount_Args args = {
        .struct_size = sizeof(args), .buffer = buffer};
    expect_ok(api->PJRT_Buffer_IncreaseExternalReferenceCount(&args));
    extension->share(buffer, 1);
}

static void end_remote_share(PJRT_Buffer *buffer)
{
    PJRT_Buffer_DecreaseExternalReferenceCount_Args args = {
        .struct_size = sizeof(args), .buffer = buffer};
    extension->share(buffer, 0);
    expect_ok(api->PJRT_Buffer_DecreaseExternalReferenceCount(&args));
}

typedef struct sharing_fixture {
    PJRT_Client *client;
    PJRT_Device *device;
    PJRT_LoadedExecutable *fill;
    PJRT_Buffer *one;
} sharing_fixture_t;

/* The limit is one and a half arrays. */
static void fixture_open(sharing_fixture_t *fixture)
{
    tow_block_prefer(8 * MIB);
    fixture->client = client_open(
        (client_options_t){.memory_limit_bytes = 12 * MIB, .blocks = &blocks});
    fixture->device = device_at(fixture->client, 0);
    fixture->fill = compile(fixture->client, FILL, NULL);
    const float one = 1;
    expect_ok(try_upload(fixture->client, fixture->device, PJRT_Buffer_Type_F32,
                         &one, NULL, 0, &fixture->one));
}

static void fixture_close(sharing_fixture_t *fixture)
{
    destroy(fixture->one);
    unload(fixture->fill);
    assert_int_equal(bytes_in_use(fixture->device), 0);
    client_close(fixture->client);
    assert_int_equal(tow_block_stats().count, 0);
}

static PJRT_Buffer *make_array(const sharing_fixture_t *fixture)
{
    call_t call = {.executable = fixture->fill,
                   .argument_count = 1,
                   .arguments = {{fixture->one}}};
    execute(&call);
    return call.outputs[0][0];
}

static void remotely_shared_results_are_not_charged(void **state)
{
    sharing_fixture_t fixture;
    tow_block_place_t place;
    fixture_open(&fixture);
    PJRT_Buffer *first = make_array(&fixture);
    assert_true(tow_block_find((void *)address_of(first), 8 * MIB, &place));
    begin_remote_share(first);
    begin_remote_share(first);
    assert_true(bytes_in_use(fixture.device) >= 8 * MIB); /* Still charged. */
    delete (first);
    assert_true(bytes_in_use(fixture.device) < 100);
    PJRT_Buffer *second = make_array(&fixture); /* It fits. */
    tow_block_place_t other;
    assert_true(tow_block_find((void *)address_of(second), 8 * MIB, &other));
    assert_true(other.number != place.number);
    destroy(second);
    end_remote_share(first);
    assert_true(bytes_in_use(fixture.device) < 100);
    end_remote_share(first);
    destroy(first);
    fixture_close(&fixture);
}

/* A lost peer may have the block mapped for an unknown time. */
static void quarantined_memory_is_not_overwritten(void **state)
{
    sharing_fixture_t fixture;
    tow_block_place_t place;
    fixture_open(&fixture);
    PJRT_LoadedExecutable *twice = compile(fixture.client, DOUBLE, NULL);
    PJRT_Buffer *array = make_array(&fixture);
    const uintptr_t address = address_of(array);
    assert_true(tow_block_find((void *)address, 8 * MIB, &place));
    const float *seen = mmap(NULL, 8 * MIB, PROT_READ, MAP_SHARED, place.fd, 0);
    assert_true(seen != MAP_FAILED);
    begin_remote_share(array);
    tow_block_quarantine((void *)address);
    end_remote_share(array);
    call_t call = {
        .executable = twice, .argument_count = 1, .arguments = {{array}}};
    expect_ok(try_execute(&call));
    /* The copy that it needs does not fit; without the array it would. */
    expect_error(try_await(call.done[0]), PJRT_Error_Code_RESOURCE_EXHAUSTED,
                 "out of device memory");
    destroy(call.outputs[0][0]);
    destroy(array);
    array = make_array(&fixture);
    assert_true(tow_block_find((void *)address_of(array), 8 * MIB, &place));
    call = (call_t){
        .executable = twice, .argument_count = 1, .arguments = {{array}}};
    execute(&call);
    for (size_t i = 0; i < 8 * MIB / sizeof(float); i++)
        assert_true(seen[i] == 1);
    destroy(call.outputs[0][0]);
    destroy(array);
    munmap((void *)seen, 8 * MIB);
    unload(twice);
    fixture_close(&fixture);
}

#define CASE(name) cmocka_unit_test_setup(name, harness_set_up)

TOW_TEST_MAIN(CASE(memory_limit_fails_one_allocation_only),
              CASE(aligned_memory_is_used_without_a_copy),
              CASE(strided_memory_is_made_dense),
              CASE(allocated_memory_holds_zeroes),
              CASE(cached_blocks_count_within_the_limit),
              CASE(remotely_shared_results_are_not_charged),
              CASE(quarantined_memory_is_not_overwritten))
