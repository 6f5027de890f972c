/* Compiling and loading: what programs and options are taken, what is said of
 * those that are not, and what is known of an executable. Needs TOW_XLA_CPU. */
#include "device/xla_cpu/harness.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

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

TOW_TEST_MAIN(CASE(compile_explains_a_malformed_program),
              CASE(compile_refuses_options_that_reach_outside),
              CASE(compile_refuses_foreign_code),
              CASE(signature_names_shapes_and_donations),
              CASE(signature_has_the_shardings),
              CASE(executables_load_under_other_devices))
