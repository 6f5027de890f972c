/* The adapter in one process: what a driver asks of any PJRT plugin, and what
 * this one promises beyond that. Needs TOW_XLA_CPU, the adapter's file. */
#include "device/xla_cpu/harness_impl.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

static const char ADD[] =
    "func.func public @main(%a: tensor<4xf32>, %b: tensor<4xf32>)"
    " -> tensor<4xf32> {\n"
    "  %0 = stablehlo.add %a, %b : tensor<4xf32>\n"
    "  return %0 : tensor<4xf32>\n"
    "}\n";

/* Gives the first argument's memory to the result. */
static const char ADD_DONATING[] =
    "func.func public @main("
    "%a: tensor<4xf32> {tf.aliasing_output = 0 : i32}, %b: tensor<4xf32>)"
    " -> tensor<4xf32> {\n"
    "  %0 = stablehlo.add %a, %b : tensor<4xf32>\n"
    "  return %0 : tensor<4xf32>\n"
    "}\n";

/* Counts to 300,000: tens of milliseconds, and no memory. */
static const char SLOW[] =
    "func.func public @main(%a: tensor<4xf32>) -> tensor<4xf32> {\n"
    "  %zero = stablehlo.constant dense<0> : tensor<i32>\n"
    "  %r:2 = stablehlo.while(%i = %zero, %x = %a) :"
    " tensor<i32>, tensor<4xf32>\n"
    "  cond {\n"
    "    %n = stablehlo.constant dense<300000> : tensor<i32>\n"
    "    %c = stablehlo.compare LT, %i, %n :"
    " (tensor<i32>, tensor<i32>) -> tensor<i1>\n"
    "    stablehlo.return %c : tensor<i1>\n"
    "  } do {\n"
    "    %one = stablehlo.constant dense<1> : tensor<i32>\n"
    "    %j = stablehlo.add %i, %one : tensor<i32>\n"
    "    %unit = stablehlo.constant dense<1.0> : tensor<4xf32>\n"
    "    %y = stablehlo.add %x, %unit : tensor<4xf32>\n"
    "    stablehlo.return %j, %y : tensor<i32>, tensor<4xf32>\n"
    "  }\n"
    "  return %r#1 : tensor<4xf32>\n"
    "}\n";

static const float ONES[4] = {1, 1, 1, 1};
static const float COUNT[4] = {1, 2, 3, 4};

static void expect_values(PJRT_Buffer *buffer, float a, float b, float c,
                          float d)
{
    float values[4];
    const float expected[4] = {a, b, c, d};
    download(buffer, values, sizeof(values));
    assert_memory_equal(values, expected, sizeof(values));
}

/* --- What it is ------------------------------------------------------------- */

static void plugin_says_its_version_and_has_the_extension(void **state)
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

static void client_refuses_options_it_does_not_know(void **state)
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

/* --- Compiling ----------------------------------------------------------------- */

static void compile_explains_a_malformed_program(void **state)
{
    PJRT_Client *client = client_open((client_options_t){0});
    PJRT_LoadedExecutable *executable = NULL;
    expect_error(try_compile(client, "func.func @main( {", NULL, &executable),
                 PJRT_Error_Code_INVALID_ARGUMENT, "cannot read the program");
    expect_error(try_compile(client,
                             "func.func public @main(%a: tensor<4xf32>) -> "
                             "tensor<4xf32> { %0 = stablehlo.frobnicate %a : "
                             "tensor<4xf32> return %0 : tensor<4xf32> }",
                             NULL, &executable),
                 PJRT_Error_Code_INVALID_ARGUMENT, "frobnicate");
    expect_error(try_compile(client,
                             "func.func public @main(%a: tensor<4xf32>) -> "
                             "tensor<3xf32> { %0 = stablehlo.add %a, %a : "
                             "tensor<4xf32> return %0 : tensor<4xf32> }",
                             NULL, &executable),
                 PJRT_Error_Code_INVALID_ARGUMENT, "cannot read the program");
    expect_error(try_compile(client, "", NULL, &executable),
                 PJRT_Error_Code_INVALID_ARGUMENT, "");
    client_close(client);
}

/* xla_backend_extra_options in DebugOptions: options of LLVM. */
#define EXTRA_OPTIONS_FIELD 500

static void compile_refuses_options_that_reach_outside(void **state)
{
    PJRT_Client *client = client_open((client_options_t){0});
    PJRT_LoadedExecutable *executable = NULL;
    static const char *const refused[][2] = {
        {"xla_dump_to", "somewhere"},
        {"xla_dump_hlo_as_text", "True"},
        {"xla_gpu_dump_llvmir", "True"},
    };
    for (size_t i = 0; i < TOW_COUNT_OF(refused); i++) {
        bytes_t options = options_pack(1, 1, NULL);
        options_add_text(&options, refused[i][0], refused[i][1]);
        expect_error(try_compile(client, ADD, &options, &executable),
                     PJRT_Error_Code_PERMISSION_DENIED, refused[i][0]);
    }
    bytes_t options = options_pack(1, 1, NULL);
    options_add_entry(&options, EXTRA_OPTIONS_FIELD, "a", "b");
    expect_error(try_compile(client, ADD, &options, &executable),
                 PJRT_Error_Code_PERMISSION_DENIED,
                 "xla_backend_extra_options");
    options = options_pack(1, 1, NULL);
    options_add_text(&options, "xla_cpu_enable_fast_math", "True");
    options_add_text(&options, "xla_backend_optimization_level", "1");
    unload(compile(client, ADD, &options));

    options = options_pack(1, 1, NULL);
    options_add_text(&options, "xla_no_such_option", "1");
    expect_error(try_compile(client, ADD, &options, &executable),
                 PJRT_Error_Code_INVALID_ARGUMENT, "xla_no_such_option");
    client_close(client);
}

static void compile_refuses_foreign_code(void **state)
{
    PJRT_Client *client = client_open((client_options_t){0});
    PJRT_LoadedExecutable *executable = NULL;
    expect_error(try_compile(client,
                             "func.func public @main(%a: tensor<4xf32>) -> "
                             "tensor<4xf32> { %0 = stablehlo.custom_call "
                             "@call_me(%a) : (tensor<4xf32>) -> tensor<4xf32> "
                             "return %0 : tensor<4xf32> }",
                             NULL, &executable),
                 PJRT_Error_Code_PERMISSION_DENIED, "call_me");
    expect_error(
        try_compile(client,
                    "func.func public @main() -> tensor<4xf32> { "
                    "%t = stablehlo.create_token : !stablehlo.token "
                    "%0:2 = \"stablehlo.infeed\"(%t) : (!stablehlo.token) -> "
                    "(tensor<4xf32>, !stablehlo.token) "
                    "return %0#0 : tensor<4xf32> }",
                    NULL, &executable),
        PJRT_Error_Code_UNIMPLEMENTED, "infeed");
    client_close(client);
}

static void signature_names_shapes_and_donations(void **state)
{
    PJRT_Client *client = client_open((client_options_t){0});
    PJRT_LoadedExecutable *loaded = compile(client, ADD_DONATING, NULL);
    PJRT_Executable *executable = executable_of(loaded);
    unload(loaded); /* What is asked below lives with `executable`. */

    const tow_xla_signature_t *signature = NULL;
    expect_ok(extension->signature(executable, &signature));
    assert_int_equal(signature->parameter_count, 2);
    assert_int_equal(signature->output_count, 1);
    assert_int_equal(signature->outputs[0].element_type, PJRT_Buffer_Type_F32);
    assert_int_equal(signature->outputs[0].dimension_count, 1);
    assert_int_equal(signature->outputs[0].dimensions[0], 4);
    assert_int_equal(signature->outputs[0].size_bytes, 16);
    assert_int_equal(signature->alias_count, 1);
    assert_int_equal(signature->aliases[0].output, 0);
    assert_int_equal(signature->aliases[0].parameter, 0);
    assert_int_equal(signature->donated_count, 1);
    assert_int_equal(signature->donated[0], 0);

    PJRT_Executable_NumOutputs_Args outputs = {.struct_size = sizeof(outputs),
                                               .executable = executable};
    expect_ok(api->PJRT_Executable_NumOutputs(&outputs));
    assert_int_equal(outputs.num_outputs, 1);
    PJRT_Executable_GetCompiledMemoryStats_Args memory = {
        .struct_size = sizeof(memory), .executable = executable};
    expect_ok(api->PJRT_Executable_GetCompiledMemoryStats(&memory));
    assert_int_equal(memory.argument_size_in_bytes, 32);
    PJRT_Executable_GetCostAnalysis_Args cost = {.struct_size = sizeof(cost),
                                                 .executable = executable};
    expect_ok(api->PJRT_Executable_GetCostAnalysis(&cost));
    assert_true(cost.num_properties > 0);
    PJRT_Executable_OutputMemoryKinds_Args kinds = {
        .struct_size = sizeof(kinds), .executable = executable};
    expect_ok(api->PJRT_Executable_OutputMemoryKinds(&kinds));
    assert_memory_equal(kinds.memory_kinds[0], "device",
                        kinds.memory_kind_sizes[0]);
    PJRT_Program program = {.struct_size = sizeof(program)};
    PJRT_Executable_OptimizedProgram_Args optimized = {
        .struct_size = sizeof(optimized),
        .executable = executable,
        .program = &program,
    };
    expect_ok(api->PJRT_Executable_OptimizedProgram(&optimized));
    assert_true(program.code_size > 0);
    executable_close(executable);
    client_close(client);
}

/* The outputs' sharding is for the partitioner to decide. */
static void signature_has_the_shardings(void **state)
{
    PJRT_Client *client =
        client_open((client_options_t){.process_id = 1, .device_count = 2});
    const int64_t devices[] = {2048, 2049};
    bytes_t options = options_pack(1, 2, devices);
    PJRT_LoadedExecutable *loaded =
        compile(client,
                "module @m attributes {mhlo.num_partitions = 2 : i32} {\n"
                "func.func public @main(%a: tensor<8xf32> "
                "{mhlo.sharding = \"{devices=[2]<=[2]}\"}) -> (tensor<8xf32> "
                "{mhlo.sharding = \"{devices=[2]<=[2]}\"}) {\n"
                "  %0 = stablehlo.add %a, %a : tensor<8xf32>\n"
                "  return %0 : tensor<8xf32>\n"
                "}}\n",
                &options);
    PJRT_Executable *executable = executable_of(loaded);
    const tow_xla_signature_t *signature = NULL;
    expect_ok(extension->signature(executable, &signature));
    assert_int_equal(signature->parameters[0].dimensions[0], 4);
    assert_int_equal(signature->outputs[0].dimensions[0], 4);
    assert_true(signature->parameters[0].sharding.size > 0);
    assert_true(signature->outputs[0].sharding.size > 0);

    call_t call = {
        .executable = loaded, .device_count = 2, .argument_count = 1};
    for (size_t i = 0; i < 2; i++)
        call.arguments[i][0] = upload(client, device_at(client, i), COUNT, 4);
    execute(&call);
    for (size_t i = 0; i < 2; i++) {
        expect_values(call.outputs[i][0], 2, 4, 6, 8);
        destroy(call.outputs[i][0]);
        destroy(call.arguments[i][0]);
    }
    executable_close(executable);
    unload(loaded);
    client_close(client);
}

/* --- Executing --------------------------------------------------------------- */

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

/* Handles may go as soon as the call that took them has returned. */
static void execute_keeps_what_it_was_given(void **state)
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
    /* An event wakes those who await it before it calls back. */
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

static void donated_inputs_are_gone_at_once(void **state)
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
                 "was deleted or donated before");
    destroy(a);
    destroy(b);
    destroy(call.outputs[0][0]);
    unload(add);
    assert_int_equal(bytes_in_use(device_at(client, 0)), 0);
    client_close(client);
}

static void inputs_that_must_be_kept_are_copied(void **state)
{
    PJRT_Client *client = client_open((client_options_t){0});
    PJRT_LoadedExecutable *add = compile(client, ADD_DONATING, NULL);
    PJRT_Buffer *a = upload(client, device_at(client, 0), ONES, 4);
    const int64_t kept[] = {0};
    call_t call = {.executable = add,
                   .argument_count = 2,
                   .arguments = {{a, a}},
                   .kept = kept,
                   .kept_count = 1};
    execute(&call);
    assert_false(is_deleted(a));
    expect_values(call.outputs[0][0], 2, 2, 2, 2);
    expect_values(a, 1, 1, 1, 1);
    destroy(a);
    destroy(call.outputs[0][0]);
    unload(add);
    client_close(client);
}

/* A chain in which each result is given to the next, while copies of the
 * results to the host are under way. */
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

static void errors_reach_what_depends_on_them(void **state)
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

static void memory_limit_is_an_error_and_passes(void **state)
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
                 PJRT_Error_Code_RESOURCE_EXHAUSTED, "limit of 1048576");
    destroy(call.outputs[0][0]);
    execute(&call);
    destroy(call.outputs[0][0]);
    destroy(a);
    free(values);
    unload(fill);
    assert_int_equal(bytes_in_use(device), 0);
    client_close(client);
}

/* --- Moving --------------------------------------------------------------------- */

static void mark(PJRT_Error *error, void *argument)
{
    expect_ok(error);
    atomic_store((_Atomic bool *)argument, true);
}

static void aligned_memory_is_used_where_it_lies(void **state)
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

    /* And back, first dimension first. */
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

static void client_cancels_what_waits_when_it_closes(void **state)
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

/* --- Many threads -------------------------------------------------------------------- */

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

/* Adds one again and again, each time to the result before, which is given
 * away, destroyed early or late, read or not. */
static void *add_up(void *argument)
{
    user_t *user = argument;
    PJRT_Device *device = device_at(user->client, 0);
    PJRT_Buffer *one = upload(user->client, device, ONES, 4);
    PJRT_Buffer *sum = upload(user->client, device, ONES, 4);
    const int64_t kept[] = {0};
    for (int step = 1; step < STEP_COUNT; step++) {
        call_t call = {.executable = user->donating,
                       .flags = step % 5 == 0 ? TOW_XLA_EXECUTE_INLINE : 0,
                       .argument_count = 2,
                       .arguments = {{sum, one}},
                       .kept = kept,
                       .kept_count = step % 3 == 0};
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

static void users_may_be_many(void **state)
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

/* --- Serialising ------------------------------------------------------------------ */

static void executables_load_under_other_devices(void **state)
{
    /* A compiler that has none of the devices. */
    PJRT_Client *compiler = client_open((client_options_t){.process_id = 99});
    const int64_t devices[] = {7 * TOW_XLA_PROCESS_STRIDE};
    bytes_t options = options_pack(1, 1, devices);
    PJRT_LoadedExecutable *compiled = compile(compiler, ADD, &options);
    PJRT_Executable *executable = executable_of(compiled);
    PJRT_Executable_Serialize_Args serialized = {
        .struct_size = sizeof(serialized), .executable = executable};
    expect_ok(api->PJRT_Executable_Serialize(&serialized));
    executable_close(executable);
    unload(compiled);

    PJRT_Client *client =
        client_open((client_options_t){.process_id = 8, .device_count = 2});
    const int64_t mapped_anew[] = {8 * TOW_XLA_PROCESS_STRIDE + 1};
    bytes_t overriding = options_pack(1, 1, mapped_anew);
    PJRT_Executable_DeserializeAndLoad_Args load = {
        .struct_size = sizeof(load),
        .client = client,
        .serialized_executable = serialized.serialized_bytes,
        .serialized_executable_size = serialized.serialized_bytes_size,
        .overridden_serialized_compile_options = overriding.data,
        .overridden_serialized_compile_options_size = overriding.size,
    };
    expect_ok(api->PJRT_Executable_DeserializeAndLoad(&load));
    PJRT_LoadedExecutable_AddressableDevices_Args where = {
        .struct_size = sizeof(where), .executable = load.loaded_executable};
    expect_ok(api->PJRT_LoadedExecutable_AddressableDevices(&where));
    assert_int_equal(where.num_addressable_devices, 1);
    assert_ptr_equal(where.addressable_devices[0], device_at(client, 1));
    PJRT_Buffer *a = upload(client, device_at(client, 1), COUNT, 4);
    call_t call = {.executable = load.loaded_executable,
                   .argument_count = 2,
                   .arguments = {{a, a}}};
    execute(&call);
    expect_values(call.outputs[0][0], 2, 4, 6, 8);
    destroy(call.outputs[0][0]);
    destroy(a);
    unload(load.loaded_executable);

    const int64_t too_many[] = {8 * TOW_XLA_PROCESS_STRIDE,
                                8 * TOW_XLA_PROCESS_STRIDE + 1};
    overriding = options_pack(2, 1, too_many);
    load.overridden_serialized_compile_options_size = overriding.size;
    expect_error(api->PJRT_Executable_DeserializeAndLoad(&load),
                 PJRT_Error_Code_INVALID_ARGUMENT, "compiled for 1 replicas");
    load.serialized_executable = "nonsense";
    load.serialized_executable_size = 8;
    expect_error(api->PJRT_Executable_DeserializeAndLoad(&load),
                 PJRT_Error_Code_INVALID_ARGUMENT, "not an executable");
    serialized.serialized_executable_deleter(serialized.serialized_executable);
    client_close(client);
    client_close(compiler);
}

#define CASE(name) cmocka_unit_test_setup(name, harness_set_up)

TOW_TEST_MAIN(
    CASE(plugin_says_its_version_and_has_the_extension),
    CASE(client_numbers_its_devices_by_process),
    CASE(client_refuses_options_it_does_not_know),
    CASE(compile_explains_a_malformed_program),
    CASE(compile_refuses_options_that_reach_outside),
    CASE(compile_refuses_foreign_code),
    CASE(signature_names_shapes_and_donations),
    CASE(signature_has_the_shardings), CASE(execute_adds),
    CASE(execute_keeps_what_it_was_given), CASE(executions_finish_in_order),
    CASE(execute_refuses_wrong_arguments),
    CASE(donated_inputs_are_gone_at_once),
    CASE(inputs_that_must_be_kept_are_copied), CASE(donation_waits_for_reads),
    CASE(errors_reach_what_depends_on_them),
    CASE(memory_limit_is_an_error_and_passes),
    CASE(aligned_memory_is_used_where_it_lies),
    CASE(strided_memory_is_made_dense), CASE(copies_wait_for_their_source),
    CASE(client_cancels_what_waits_when_it_closes), CASE(users_may_be_many),
    CASE(executables_load_under_other_devices))
