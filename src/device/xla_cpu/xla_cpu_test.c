/* The adapter in one process: what a driver needs of any PJRT plugin, and the
 * guarantees that this one adds. Needs TOW_XLA_CPU, the adapter's file. */
#include "device/xla_cpu/harness.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

/* --- The plugin and its clients ------------------------------------------- */

static void plugin_reports_its_version_and_extension(void **state)
{
    assert_int_equal(api->pjrt_api_version.major_version, PJRT_API_MAJOR);
    assert_int_equal(api->pjrt_api_version.minor_version, PJRT_API_MINOR);
    assert_int_equal(api->struct_size, PJRT_Api_STRUCT_SIZE);
    assert_non_null(extension);
    PJRT_Plugin_Attributes_Args args = {.struct_size = sizeof(args)};
    expect_ok(api->PJRT_Plugin_Attributes(&args));
    assert_int_equal(args.num_attributes, 2);
    assert_int_equal(args.attributes[0].value_size, 3);
    assert_true(args.attributes[0].int64_array_value[0] >= 1);
}

static void client_numbers_its_devices_by_process(void **state)
{
    PJRT_Client *client =
        client_open((client_options_t){.process_id = 5, .device_count = 3});
    PJRT_Device *last = device_at(client, 2);
    PJRT_Device_GetDescription_Args get = {.struct_size = sizeof(get),
                                           .device = last};
    expect_ok(api->PJRT_Device_GetDescription(&get));
    PJRT_DeviceDescription_Id_Args id = {
        .struct_size = sizeof(id),
        .device_description = get.device_description,
    };
    expect_ok(api->PJRT_DeviceDescription_Id(&id));
    assert_int_equal(id.id, 5 * TOW_XLA_PROCESS_STRIDE + 2);

    PJRT_Client_LookupDevice_Args look = {
        .struct_size = sizeof(look), .client = client, .id = id.id};
    expect_ok(api->PJRT_Client_LookupDevice(&look));
    assert_ptr_equal(look.device, last);
    look.id = 1;
    expect_error(api->PJRT_Client_LookupDevice(&look),
                 PJRT_Error_Code_NOT_FOUND, "no device 1");
    PJRT_Device_DefaultMemory_Args memory = {.struct_size = sizeof(memory),
                                             .device = last};
    expect_ok(api->PJRT_Device_DefaultMemory(&memory));
    PJRT_Memory_Kind_Args kind = {.struct_size = sizeof(kind),
                                  .memory = memory.memory};
    expect_ok(api->PJRT_Memory_Kind(&kind));
    assert_memory_equal(kind.kind, "device", kind.kind_size);
    client_close(client);
}

static void client_refuses_unknown_options(void **state)
{
    PJRT_NamedValue option = {
        .struct_size = PJRT_NamedValue_STRUCT_SIZE,
        .name = "device_cuont",
        .name_size = 12,
        .type = PJRT_NamedValue_kInt64,
        .int64_value = 2,
        .value_size = 1,
    };
    PJRT_Client_Create_Args args = {
        .struct_size = sizeof(args),
        .create_options = &option,
        .num_options = 1,
    };
    expect_error(api->PJRT_Client_Create(&args),
                 PJRT_Error_Code_INVALID_ARGUMENT, "device_cuont");
    option.name = "device_count";
    option.int64_value = 0;
    expect_error(api->PJRT_Client_Create(&args),
                 PJRT_Error_Code_INVALID_ARGUMENT, "from 1 to");
}

/* --- Executing ------------------------------------------------------------ */

static void execute_adds(void **state)
{
    PJRT_Client *client = client_open((client_options_t){0});
    PJRT_LoadedExecutable *add = compile(client, ADD, NULL);
    PJRT_Buffer *a = upload(client, device_at(client, 0), ONES, 4);
    PJRT_Buffer *b = upload(client, device_at(client, 0), COUNT, 4);
    for (uint32_t flags = 0; flags <= TOW_XLA_EXECUTE_INLINE; flags++) {
        call_t call = {.executable = add,
                       .flags = flags,
                       .argument_count = 2,
                       .arguments = {{a, b}}};
        execute(&call);
        expect_values(call.outputs[0][0], 2, 3, 4, 5);
        assert_false(is_deleted(a));
        destroy(call.outputs[0][0]);
    }
    destroy(a);
    destroy(b);
    unload(add);
    assert_int_equal(bytes_in_use(device_at(client, 0)), 0);
    client_close(client);
}

static const char CALLING[] =
    "func.func @main(%a: tensor<4xf32>) -> tensor<4xf32> {\n"
    "  %b = stablehlo.custom_call @xla_ffi_python_cpu_callback(%a) "
    "{api_version = 4 : i32, backend_config = {function = 7 : ui64}} "
    ": (tensor<4xf32>) -> tensor<4xf32>\n"
    "  return %b : tensor<4xf32>\n"
    "}\n";

/* Replies when the thread that called Execute has returned from it. */
static int answer_late(void *context, const tow_xla_call_t *call, char *error,
                       size_t error_capacity)
{
    const atomic_bool *has_returned = context;
    while (!atomic_load(has_returned))
        sched_yield();
    memcpy(call->results[0].data, COUNT, sizeof(COUNT));
    return 0;
}

static void a_call_of_the_client_is_not_waited_for_on_the_thread_of_execute(
    void **state)
{
    atomic_bool has_returned = false;
    const tow_xla_calls_t calls = {.struct_size = sizeof(calls),
                                   .context = &has_returned,
                                   .run = answer_late};
    PJRT_Client *client = client_open((client_options_t){.calls = &calls});
    PJRT_LoadedExecutable *calling = compile(client, CALLING, NULL);
    PJRT_Buffer *a = upload(client, device_at(client, 0), ONES, 4);
    call_t call = {.executable = calling,
                   .flags =
                       TOW_XLA_EXECUTE_INLINE | TOW_XLA_EXECUTE_INLINE_FIBERS,
                   .argument_count = 1,
                   .arguments = {{a}}};
    await(ready_event_of(a));
    expect_ok(try_execute(&call));
    atomic_store(&has_returned, true);
    await(call.done[0]);
    expect_values(call.outputs[0][0], 1, 2, 3, 4);
    destroy(call.outputs[0][0]);
    destroy(a);
    unload(calling);
    client_close(client);
}

/* Handles may be destroyed as soon as the call that took them has returned. */
static void execute_holds_its_inputs(void **state)
{
    PJRT_Client *client = client_open((client_options_t){0});
    PJRT_LoadedExecutable *slow = compile(client, SLOW, NULL);
    PJRT_LoadedExecutable *add = compile(client, ADD, NULL);
    PJRT_Buffer *a = upload(client, device_at(client, 0), ONES, 4);
    call_t first = {
        .executable = slow, .argument_count = 1, .arguments = {{a}}};
    expect_ok(try_execute(&first));
    call_t second = {.executable = add,
                     .argument_count = 2,
                     .arguments = {{a, first.outputs[0][0]}}};
    expect_ok(try_execute(&second));
    destroy(a);
    destroy(first.outputs[0][0]);
    unload(slow);
    unload(add);
    await(first.done[0]);
    expect_values(second.outputs[0][0], 300002, 300002, 300002, 300002);
    await(second.done[0]);
    destroy(second.outputs[0][0]);
    client_close(client);
}

typedef struct sequence {
    _Atomic int next;
    int seen[64];
} sequence_t;

typedef struct sequence_step {
    sequence_t *sequence;
    int number;
} sequence_step_t;

static void note_step(PJRT_Error *error, void *argument)
{
    sequence_step_t *step = argument;
    expect_ok(error);
    step->sequence->seen[atomic_fetch_add(&step->sequence->next, 1)] =
        step->number;
}

static void executions_finish_in_order(void **state)
{
    PJRT_Client *client = client_open((client_options_t){0});
    PJRT_LoadedExecutable *slow = compile(client, SLOW, NULL);
    PJRT_LoadedExecutable *add = compile(client, ADD, NULL);
    PJRT_Buffer *a = upload(client, device_at(client, 0), ONES, 4);
    sequence_t sequence = {.next = 0};
    sequence_step_t steps[64];
    PJRT_Event *events[64];
    for (int i = 0; i < 64; i++) {
        call_t call = {.executable = i % 16 == 0 ? slow : add,
                       .argument_count = i % 16 == 0 ? 1 : 2,
                       .arguments = {{a, a}}};
        expect_ok(try_execute(&call));
        steps[i] = (sequence_step_t){&sequence, i};
        PJRT_Event_OnReady_Args on_ready = {.struct_size = sizeof(on_ready),
                                            .event = call.done[0],
                                            .callback = note_step,
                                            .user_arg = &steps[i]};
        expect_ok(api->PJRT_Event_OnReady(&on_ready));
        events[i] = call.done[0];
        destroy(call.outputs[0][0]);
    }
    for (int i = 0; i < 64; i++)
        await(events[i]);
    /* An event wakes waiting threads before it runs callbacks. */
    while (atomic_load(&sequence.next) < 64)
        sched_yield();
    for (int i = 0; i < 64; i++)
        assert_int_equal(sequence.seen[i], i);
    destroy(a);
    unload(slow);
    unload(add);
    client_close(client);
}

static void execute_refuses_wrong_arguments(void **state)
{
    PJRT_Client *client = client_open((client_options_t){.device_count = 2});
    PJRT_LoadedExecutable *add = compile(client, ADD, NULL);
    PJRT_Buffer *a = upload(client, device_at(client, 0), ONES, 4);
    PJRT_Buffer *shorter = upload(client, device_at(client, 0), ONES, 3);
    PJRT_Buffer *elsewhere = upload(client, device_at(client, 1), ONES, 4);
    call_t call = {
        .executable = add, .argument_count = 1, .arguments = {{a, a}}};
    expect_error(try_execute(&call), PJRT_Error_Code_INVALID_ARGUMENT,
                 "takes 2 arguments");
    call.argument_count = 2;
    call.arguments[0][1] = shorter;
    expect_error(try_execute(&call), PJRT_Error_Code_INVALID_ARGUMENT,
                 "argument 1 of main is f32[3]");
    PJRT_Buffer *whole = NULL;
    expect_ok(try_upload(client, device_at(client, 0), PJRT_Buffer_Type_S32,
                         (int32_t[]){1, 2, 3, 4}, (int64_t[]){4}, 1, &whole));
    call.arguments[0][1] = whole;
    expect_error(try_execute(&call), PJRT_Error_Code_INVALID_ARGUMENT,
                 "argument 1 of main is s32[4]");
    destroy(whole);
    call.arguments[0][1] = elsewhere;
    expect_error(try_execute(&call), PJRT_Error_Code_INVALID_ARGUMENT,
                 "is on device 1, but is needed on 0");
    call.device_count = 2;
    expect_error(try_execute(&call), PJRT_Error_Code_INVALID_ARGUMENT,
                 "runs on 1 devices");
    call.device_count = 1;
    call.arguments[0][1] = a;
    call.device = device_at(client, 1);
    expect_error(try_execute(&call), PJRT_Error_Code_INVALID_ARGUMENT,
                 "not loaded on device 1");
    destroy(a);
    destroy(shorter);
    destroy(elsewhere);
    unload(add);
    client_close(client);
}

static void donated_inputs_are_deleted_at_once(void **state)
{
    PJRT_Client *client = client_open((client_options_t){0});
    PJRT_LoadedExecutable *add = compile(client, ADD_DONATING, NULL);
    PJRT_Buffer *a = upload(client, device_at(client, 0), ONES, 4);
    PJRT_Buffer *b = upload(client, device_at(client, 0), COUNT, 4);
    call_t call = {
        .executable = add, .argument_count = 2, .arguments = {{a, b}}};
    expect_ok(try_execute(&call));
    assert_true(is_deleted(a));
    assert_false(is_deleted(b));
    await(call.done[0]);
    expect_values(call.outputs[0][0], 2, 3, 4, 5);
    expect_error(try_await(ready_event_of(a)), PJRT_Error_Code_INVALID_ARGUMENT,
                 "deleted or donated");
    call_t again = call;
    expect_error(try_execute(&again), PJRT_Error_Code_INVALID_ARGUMENT,
                 "has been deleted or donated");
    destroy(a);
    destroy(b);
    destroy(call.outputs[0][0]);
    unload(add);
    assert_int_equal(bytes_in_use(device_at(client, 0)), 0);
    client_close(client);
}

static void inputs_that_must_not_be_donated_are_copied(void **state)
{
    PJRT_Client *client = client_open((client_options_t){0});
    PJRT_LoadedExecutable *add = compile(client, ADD_DONATING, NULL);
    PJRT_Buffer *a = upload(client, device_at(client, 0), ONES, 4);
    const int64_t undonated[] = {0};
    call_t call = {.executable = add,
                   .argument_count = 2,
                   .arguments = {{a, a}},
                   .undonated = undonated,
                   .undonated_count = 1};
    execute(&call);
    assert_false(is_deleted(a));
    expect_values(call.outputs[0][0], 2, 2, 2, 2);
    expect_values(a, 1, 1, 1, 1);
    destroy(a);
    destroy(call.outputs[0][0]);
    unload(add);
    client_close(client);
}

/* A chain in which each result is donated to the next execution, while copies
 * of the results to the host are in flight. */
static void donation_waits_for_reads(void **state)
{
    PJRT_Client *client = client_open((client_options_t){0});
    enum {
        COUNT_OF_FLOATS = 1 << 20,
        LENGTH = 8
    };
    static const char text[] =
        "func.func public @main(%a: tensor<1048576xf32> "
        "{tf.aliasing_output = 0 : i32}) -> tensor<1048576xf32> {\n"
        "  %0 = stablehlo.add %a, %a : tensor<1048576xf32>\n"
        "  return %0 : tensor<1048576xf32>\n"
        "}\n";
    PJRT_LoadedExecutable *twice = compile(client, text, NULL);
    float *values = calloc(COUNT_OF_FLOATS, sizeof(float));
    float *read = calloc((size_t)COUNT_OF_FLOATS * LENGTH, sizeof(float));
    assert_non_null(values);
    assert_non_null(read);
    for (size_t i = 0; i < COUNT_OF_FLOATS; i++)
        values[i] = (float)(i % 97);
    PJRT_Buffer *array =
        upload(client, device_at(client, 0), values, COUNT_OF_FLOATS);
    PJRT_Event *copied[LENGTH];
    for (size_t step = 0; step < LENGTH; step++) {
        PJRT_Buffer_ToHostBuffer_Args to_host = {
            .struct_size = sizeof(to_host),
            .src = array,
            .dst = read + step * COUNT_OF_FLOATS,
            .dst_size = COUNT_OF_FLOATS * sizeof(float),
        };
        expect_ok(api->PJRT_Buffer_ToHostBuffer(&to_host));
        copied[step] = to_host.event;
        call_t call = {
            .executable = twice, .argument_count = 1, .arguments = {{array}}};
        execute(&call);
        destroy(array);
        array = call.outputs[0][0];
    }
    for (size_t step = 0; step < LENGTH; step++) {
        await(copied[step]);
        for (size_t i = 0; i < COUNT_OF_FLOATS; i++)
            assert_true(read[step * COUNT_OF_FLOATS + i] ==
                        values[i] * (float)(1 << step));
    }
    destroy(array);
    free(values);
    free(read);
    unload(twice);
    client_close(client);
}

static void errors_propagate_to_dependent_executions(void **state)
{
    PJRT_Client *client = client_open((client_options_t){0});
    PJRT_LoadedExecutable *add = compile(client, ADD, NULL);
    const int64_t dims[] = {4};
    PJRT_Device_DefaultMemory_Args memory = {.struct_size = sizeof(memory),
                                             .device = device_at(client, 0)};
    expect_ok(api->PJRT_Device_DefaultMemory(&memory));
    PJRT_Client_CreateErrorBuffer_Args bad = {
        .struct_size = sizeof(bad),
        .client = client,
        .error_code = PJRT_Error_Code_DATA_LOSS,
        .error_message = "the first cause",
        .error_message_size = 15,
        .shape_dims = dims,
        .shape_num_dims = 1,
        .shape_element_type = PJRT_Buffer_Type_F32,
        .memory = memory.memory,
    };
    expect_ok(api->PJRT_Client_CreateErrorBuffer(&bad));
    PJRT_Buffer *good = upload(client, device_at(client, 0), ONES, 4);
    PJRT_Buffer *poisoned = bad.buffer;
    for (int depth = 0; depth < 3; depth++) {
        call_t call = {.executable = add,
                       .argument_count = 2,
                       .arguments = {{good, poisoned}}};
        expect_ok(try_execute(&call));
        destroy(poisoned);
        poisoned = call.outputs[0][0];
        expect_error(try_await(call.done[0]), PJRT_Error_Code_DATA_LOSS,
                     "the first cause [input 1 of main]");
    }
    float values[4];
    expect_error(try_download(poisoned, values, sizeof(values)),
                 PJRT_Error_Code_DATA_LOSS, "the first cause");
    destroy(poisoned);
    call_t call = {
        .executable = add, .argument_count = 2, .arguments = {{good, good}}};
    execute(&call);
    expect_values(call.outputs[0][0], 2, 2, 2, 2);
    destroy(call.outputs[0][0]);
    destroy(good);
    unload(add);
    client_close(client);
}

/* --- Copies --------------------------------------------------------------- */

static void copies_wait_for_their_source(void **state)
{
    PJRT_Client *client = client_open((client_options_t){.device_count = 2});
    PJRT_LoadedExecutable *slow = compile(client, SLOW, NULL);
    PJRT_Buffer *a = upload(client, device_at(client, 0), ONES, 4);
    call_t call = {.executable = slow, .argument_count = 1, .arguments = {{a}}};
    expect_ok(try_execute(&call));
    PJRT_Buffer_CopyToDevice_Args copy = {
        .struct_size = sizeof(copy),
        .buffer = call.outputs[0][0],
        .dst_device = device_at(client, 1),
    };
    expect_ok(api->PJRT_Buffer_CopyToDevice(&copy));
    float values[4] = {0};
    PJRT_Buffer_ToHostBuffer_Args to_host = {
        .struct_size = sizeof(to_host),
        .src = call.outputs[0][0],
        .dst = values,
        .dst_size = sizeof(values),
    };
    expect_ok(api->PJRT_Buffer_ToHostBuffer(&to_host));
    destroy(call.outputs[0][0]);
    destroy(a);
    await(to_host.event);
    assert_true(values[3] == 300001);
    expect_values(copy.dst_buffer, 300001, 300001, 300001, 300001);
    PJRT_Buffer_Device_Args where = {.struct_size = sizeof(where),
                                     .buffer = copy.dst_buffer};
    expect_ok(api->PJRT_Buffer_Device(&where));
    assert_ptr_equal(where.device, device_at(client, 1));
    destroy(copy.dst_buffer);
    await(call.done[0]);
    unload(slow);
    client_close(client);
}

static void closing_a_client_cancels_queued_executions(void **state)
{
    PJRT_Client *client = client_open((client_options_t){0});
    PJRT_LoadedExecutable *slow = compile(client, SLOW, NULL);
    PJRT_Buffer *a = upload(client, device_at(client, 0), ONES, 4);
    PJRT_Event *events[16];
    for (int i = 0; i < 16; i++) {
        call_t call = {
            .executable = slow, .argument_count = 1, .arguments = {{a}}};
        expect_ok(try_execute(&call));
        events[i] = call.done[0];
        destroy(call.outputs[0][0]);
    }
    destroy(a);
    unload(slow);
    client_close(client);
    failure_t last = failure_of(try_await(events[15]));
    assert_int_equal(last.code, PJRT_Error_Code_CANCELLED);
    for (int i = 0; i < 15; i++)
        failure_of(try_await(events[i]));
}

/* --- Many threads --------------------------------------------------------- */

enum {
    USER_COUNT = 4,
    STEP_COUNT = 300
};

typedef struct user {
    PJRT_Client *client;
    PJRT_LoadedExecutable *donating;
    float last;
    pthread_t thread;
} user_t;

/* Adds one repeatedly, each time to the previous result, which is donated,
 * destroyed early or late, read or not. */
static void *add_up(void *argument)
{
    user_t *user = argument;
    PJRT_Device *device = device_at(user->client, 0);
    PJRT_Buffer *one = upload(user->client, device, ONES, 4);
    PJRT_Buffer *sum = upload(user->client, device, ONES, 4);
    const int64_t undonated[] = {0};
    for (int step = 1; step < STEP_COUNT; step++) {
        call_t call = {.executable = user->donating,
                       .flags = step % 5 == 0 ? TOW_XLA_EXECUTE_INLINE : 0,
                       .argument_count = 2,
                       .arguments = {{sum, one}},
                       .undonated = undonated,
                       .undonated_count = step % 3 == 0};
        expect_ok(try_execute(&call));
        if (step % 2 == 0) await(call.done[0]);
        float values[4];
        if (step % 7 == 0) {
            download(call.outputs[0][0], values, sizeof(values));
            assert_true(values[0] == (float)(step + 1));
        }
        destroy(sum);
        sum = call.outputs[0][0];
        if (step % 2 != 0) await(call.done[0]);
    }
    float values[4];
    download(sum, values, sizeof(values));
    user->last = values[3];
    destroy(sum);
    destroy(one);
    return NULL;
}

static void many_threads_may_use_a_client(void **state)
{
    PJRT_Client *client = client_open((client_options_t){0});
    user_t users[USER_COUNT];
    PJRT_LoadedExecutable *donating = compile(client, ADD_DONATING, NULL);
    for (size_t i = 0; i < USER_COUNT; i++) {
        users[i] = (user_t){.client = client, .donating = donating};
        assert_int_equal(
            pthread_create(&users[i].thread, NULL, add_up, &users[i]), 0);
    }
    for (size_t i = 0; i < USER_COUNT; i++) {
        pthread_join(users[i].thread, NULL);
        assert_true(users[i].last == STEP_COUNT);
    }
    unload(donating);
    assert_int_equal(bytes_in_use(device_at(client, 0)), 0);
    client_close(client);
}

#define CASE(name) cmocka_unit_test_setup(name, harness_set_up)

TOW_TEST_MAIN(
    CASE(plugin_reports_its_version_and_extension),
    CASE(client_numbers_its_devices_by_process),
    CASE(client_refuses_unknown_options), CASE(execute_adds),
    CASE(a_call_of_the_client_is_not_waited_for_on_the_thread_of_execute),
    CASE(execute_holds_its_inputs), CASE(executions_finish_in_order),
    CASE(execute_refuses_wrong_arguments),
    CASE(donated_inputs_are_deleted_at_once),
    CASE(inputs_that_must_not_be_donated_are_copied),
    CASE(donation_waits_for_reads),
    CASE(errors_propagate_to_dependent_executions),
    CASE(copies_wait_for_their_source),
    CASE(closing_a_client_cancels_queued_executions),
    CASE(many_threads_may_use_a_client))
