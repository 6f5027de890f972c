/* Compiling and loading: accepted programs and options, error messages for the
 * others, and the signatures of executables. Needs TOW_XLA_CPU. */
#include "device/xla_cpu/harness.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* --- Compiling ------------------------------------------------------------ */

/* One argument, one result, and this in between. */
#define MAIN(BODY)                                                 \
    "func.func public @main(%a: tensor<4xf32>) -> tensor<4xf32> {" \
    "\n  %0 = " BODY "\n  return %0 : tensor<4xf32>\n}\n"

#define ALL_REDUCE(OP, GROUPS)                                      \
    "\"stablehlo.all_reduce\"(%a) ({"                               \
    "^bb0(%x: tensor<f32>, %y: tensor<f32>): "                      \
    "%z = stablehlo." OP " %x, %y : tensor<f32> "                   \
    "stablehlo.return %z : tensor<f32>}) {replica_groups = " GROUPS \
    "} : (tensor<4xf32>) -> tensor<4xf32>"

/* An invalid program, and the text that its error message must contain. */
static const struct {
    const char *text;
    PJRT_Error_Code code;
    const char *words;
} BAD_PROGRAMS[] = {
    {"func.func @main( {", PJRT_Error_Code_INVALID_ARGUMENT,
     "cannot read the program"},
    {"hello", PJRT_Error_Code_INVALID_ARGUMENT, "'hello' is unknown"},
    {"", PJRT_Error_Code_INVALID_ARGUMENT, ""},
    {"func.func public @main(%a: tensor<4xf32>) -> tensor<4xf32> {\n"
     "%0 = stablehlo.add %a, %a : tensor<4xf32>",
     PJRT_Error_Code_INVALID_ARGUMENT, "expected operation name"},
    {"func.func public @other(%a: tensor<f32>) -> tensor<f32> {\n"
     "return %a : tensor<f32>\n}\n",
     PJRT_Error_Code_INVALID_ARGUMENT, "`main`"},
    {MAIN("stablehlo.frobnicate %a : tensor<4xf32>"),
     PJRT_Error_Code_INVALID_ARGUMENT, "frobnicate"},
    {MAIN("\"foo.bar\"(%a) : (tensor<4xf32>) -> tensor<4xf32>"),
     PJRT_Error_Code_INVALID_ARGUMENT, "at:   %0 = \"foo.bar\"(%a)"},
    {MAIN("arith.addf %a, %a : tensor<4xf32>"),
     PJRT_Error_Code_INVALID_ARGUMENT, "'arith.addf' op unsupported"},
    {MAIN("stablehlo.add %a, %b : tensor<4xf32>"),
     PJRT_Error_Code_INVALID_ARGUMENT, "%b"},
    {MAIN("\"stablehlo.add\"(%a, %a) : (tensor<4xf32>, tensor<4xf32>) -> "
          "tensor<3xf32>"),
     PJRT_Error_Code_INVALID_ARGUMENT, "'tensor<4xf32>' vs 'tensor<3xf32>'"},
    {MAIN("stablehlo.custom_call @call_me(%a) : (tensor<4xf32>) -> "
          "tensor<4xf32>"),
     PJRT_Error_Code_PERMISSION_DENIED, "custom call target 'call_me'"},
    {MAIN(
         "stablehlo.custom_call @xla_python_cpu_callback(%a) "
         "{api_version = 2 : i32, backend_config = \"7\"} : (tensor<4xf32>) -> "
         "tensor<4xf32>"),
     PJRT_Error_Code_PERMISSION_DENIED, "'xla_python_cpu_callback'"},
    /* Would expose unwritten memory. */
    {MAIN("stablehlo.custom_call @AllocateBuffer() : () -> tensor<4xf32>"),
     PJRT_Error_Code_NOT_FOUND, "AllocateBuffer"},
    {"func.func public @main() -> tensor<4xf32> {\n"
     "%t = stablehlo.create_token : !stablehlo.token\n"
     "%0:2 = \"stablehlo.infeed\"(%t) : (!stablehlo.token) -> "
     "(tensor<4xf32>, !stablehlo.token)\n"
     "return %0#0 : tensor<4xf32>\n}\n",
     PJRT_Error_Code_UNIMPLEMENTED, "infeed"},
    /* Collectives that XLA's CPU compiler does not support. */
    {MAIN("\"stablehlo.collective_broadcast\"(%a) {replica_groups = "
          "dense<[[0, 1]]> : tensor<1x2xi64>} : (tensor<4xf32>) -> "
          "tensor<4xf32>"),
     PJRT_Error_Code_UNIMPLEMENTED, "collective-broadcast"},
    {MAIN(ALL_REDUCE("subtract", "dense<[[0, 1]]> : tensor<1x2xi64>")),
     PJRT_Error_Code_UNIMPLEMENTED, "subtract"},
    {MAIN(ALL_REDUCE("add", "dense<[[0, 9]]> : tensor<1x2xi64>")),
     PJRT_Error_Code_INVALID_ARGUMENT, "not seen in replica groups"},
};

static void compile_errors_name_the_cause(void **state)
{
    PJRT_Client *client = client_open((client_options_t){.device_count = 2});
    bytes_t options = options_pack(2, 1, (int64_t[]){0, 1});
    PJRT_LoadedExecutable *executable = NULL;
    for (size_t i = 0; i < TOW_COUNT_OF(BAD_PROGRAMS); i++)
        expect_error(
            try_compile(client, BAD_PROGRAMS[i].text, &options, &executable),
            BAD_PROGRAMS[i].code, BAD_PROGRAMS[i].words);
    client_close(client);
}

/* ADD as a portable artifact of StableHLO 1.0.0. */
static const unsigned char ADD_BYTECODE[] = {
    0x4d, 0x4c, 0xef, 0x52, 0x0d, 0x53, 0x74, 0x61, 0x62, 0x6c, 0x65, 0x48,
    0x4c, 0x4f, 0x5f, 0x76, 0x31, 0x2e, 0x30, 0x2e, 0x30, 0x00, 0x01, 0x19,
    0x05, 0x01, 0x05, 0x09, 0x01, 0x03, 0x0b, 0x03, 0x07, 0x0f, 0x13, 0x17,
    0x03, 0x2d, 0x17, 0x07, 0x01, 0x0f, 0x0b, 0x13, 0x13, 0x13, 0x13, 0x13,
    0x13, 0x03, 0x09, 0x0b, 0x0b, 0x0b, 0x0b, 0x03, 0x07, 0x13, 0x1b, 0x07,
    0x02, 0x5b, 0x05, 0x0d, 0x17, 0x01, 0x03, 0x03, 0x17, 0x01, 0x05, 0x07,
    0x17, 0x01, 0x05, 0x35, 0x17, 0x01, 0x05, 0x61, 0x17, 0x01, 0x07, 0x15,
    0x17, 0x01, 0x09, 0x0b, 0x03, 0x01, 0x23, 0x03, 0x1d, 0x0f, 0x1d, 0x11,
    0x29, 0x03, 0x11, 0x05, 0x11, 0x05, 0x01, 0x01, 0x03, 0x01, 0x09, 0x04,
    0x51, 0x05, 0x01, 0x50, 0x03, 0x01, 0x07, 0x04, 0x41, 0x03, 0x01, 0x05,
    0x03, 0x50, 0x05, 0x03, 0x07, 0x04, 0x2d, 0x03, 0x07, 0x0b, 0x05, 0x03,
    0x07, 0x03, 0x09, 0x00, 0x05, 0x06, 0x0b, 0x03, 0x01, 0x05, 0x01, 0x03,
    0x07, 0x04, 0x0d, 0x03, 0x05, 0x06, 0x03, 0x01, 0x05, 0x01, 0x00, 0x8b,
    0x13, 0x0f, 0x0b, 0x05, 0x15, 0x0f, 0x11, 0x0f, 0x0b, 0x11, 0x62, 0x75,
    0x69, 0x6c, 0x74, 0x69, 0x6e, 0x00, 0x76, 0x68, 0x6c, 0x6f, 0x00, 0x6d,
    0x6f, 0x64, 0x75, 0x6c, 0x65, 0x00, 0x66, 0x75, 0x6e, 0x63, 0x5f, 0x76,
    0x31, 0x00, 0x61, 0x64, 0x64, 0x5f, 0x76, 0x31, 0x00, 0x72, 0x65, 0x74,
    0x75, 0x72, 0x6e, 0x5f, 0x76, 0x31, 0x00, 0x2d, 0x00, 0x6d, 0x61, 0x69,
    0x6e, 0x00, 0x70, 0x75, 0x62, 0x6c, 0x69, 0x63, 0x00, 0x08, 0x15, 0x05,
    0x05, 0x01, 0x01, 0x0b, 0x0f, 0x11, 0x0f, 0x13, 0x15,
};

static PJRT_Error *try_compile_bytes(PJRT_Client *client, const char *format,
                                     const void *bytes, size_t size,
                                     PJRT_LoadedExecutable **out_executable)
{
    PJRT_Program program = {
        .struct_size = sizeof(program),
        .code = (char *)bytes,
        .code_size = size,
        .format = format,
        .format_size = strlen(format),
    };
    PJRT_Client_Compile_Args args = {
        .struct_size = sizeof(args), .client = client, .program = &program};
    PJRT_Error *error = api->PJRT_Client_Compile(&args);
    *out_executable = args.executable;
    return error;
}

static void bytecode_compiles_and_truncated_bytecode_is_refused(void **state)
{
    PJRT_Client *client = client_open((client_options_t){0});
    PJRT_LoadedExecutable *executable = NULL;
    expect_ok(try_compile_bytes(client, "mlir", ADD_BYTECODE,
                                sizeof(ADD_BYTECODE), &executable));
    PJRT_Buffer *a = upload(client, device_at(client, 0), COUNT, 4);
    call_t call = {
        .executable = executable, .argument_count = 2, .arguments = {{a, a}}};
    execute(&call);
    expect_values(call.outputs[0][0], 2, 4, 6, 8);
    destroy(call.outputs[0][0]);
    destroy(a);
    unload(executable);
    for (size_t size = 1; size < sizeof(ADD_BYTECODE); size++) {
        /* An allocation of this size, so that a read past the end is found. */
        char *cut = malloc(size);
        assert_non_null(cut);
        memcpy(cut, ADD_BYTECODE, size);
        expect_error(try_compile_bytes(client, "mlir", cut, size, &executable),
                     PJRT_Error_Code_INVALID_ARGUMENT,
                     "cannot read the program");
        free(cut);
    }
    expect_error(try_compile_bytes(client, "hlo", ADD_BYTECODE,
                                   sizeof(ADD_BYTECODE), &executable),
                 PJRT_Error_Code_INVALID_ARGUMENT, "program format 'hlo'");
    client_close(client);
}

/* The module of an executable, behind TOW_XLA_HLO_MARK. */
static size_t write_marked(PJRT_LoadedExecutable *loaded, char *out,
                           size_t room)
{
    static const char mark[] = TOW_XLA_HLO_MARK;
    const size_t mark_size = sizeof(mark) - 1;
    PJRT_Executable *executable = executable_of(loaded);
    PJRT_Program program = {.struct_size = sizeof(program),
                            .code = out + mark_size,
                            .code_size = room - mark_size};
    PJRT_Executable_OptimizedProgram_Args args = {.struct_size = sizeof(args),
                                                  .executable = executable,
                                                  .program = &program};
    PJRT_Program sized = {.struct_size = sizeof(sized)};
    PJRT_Executable_OptimizedProgram_Args size_args = args;
    size_args.program = &sized;
    expect_ok(api->PJRT_Executable_OptimizedProgram(&size_args));
    expect_ok(api->PJRT_Executable_OptimizedProgram(&args));
    memcpy(out, mark, mark_size);
    executable_close(executable);
    return mark_size + sized.code_size;
}

static void hlo_modules_are_compiled_too(void **state)
{
    static char marked[1 << 16];
    PJRT_Client *client = client_open((client_options_t){0});
    PJRT_LoadedExecutable *first = compile(client, ADD, NULL), *second = NULL;
    const size_t size = write_marked(first, marked, sizeof(marked));
    unload(first);
    expect_ok(try_compile_bytes(client, "mlir", marked, size, &second));
    PJRT_Buffer *a = upload(client, device_at(client, 0), COUNT, 4);
    call_t call = {
        .executable = second, .argument_count = 2, .arguments = {{a, a}}};
    execute(&call);
    expect_values(call.outputs[0][0], 2, 4, 6, 8);
    destroy(call.outputs[0][0]);
    destroy(a);
    unload(second);
    expect_error(try_compile_bytes(client, "mlir", marked, size / 2, &second),
                 PJRT_Error_Code_INVALID_ARGUMENT, "not an HloModuleProto");
    client_close(client);
}

/* xla_backend_extra_options in DebugOptions: options of LLVM. */
#define EXTRA_OPTIONS_FIELD 500

static void compile_refuses_options_with_outside_effects(void **state)
{
    PJRT_Client *client = client_open((client_options_t){0});
    PJRT_LoadedExecutable *executable = NULL;
    static const char *const refused[][2] = {
        {"xla_dump_to", "somewhere"},
        {"xla_dump_hlo_as_text", "True"},
        {"xla_gpu_dump_llvmir", "True"},
        {"xla_hlo_profile", "True"},
        {"xla_gpu_per_fusion_autotune_cache_dir", "somewhere"},
        {"xla_debug_buffer_assignment_show_max", "3"},
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

/* Bytes that are no CompileOptionsProto, or an invalid one. */
static void compile_refuses_invalid_options(void **state)
{
    PJRT_Client *client = client_open((client_options_t){0});
    PJRT_LoadedExecutable *executable = NULL;
    bytes_t options = {.data = "\xff\xff\xff", .size = 3};
    expect_error(try_compile(client, ADD, &options, &executable),
                 PJRT_Error_Code_INVALID_ARGUMENT, "CompileOptionsProto");
    options = options_pack(3, 1, (int64_t[]){0, 1, 2});
    options.size--;
    expect_error(try_compile(client, ADD, &options, &executable),
                 PJRT_Error_Code_INVALID_ARGUMENT, "CompileOptionsProto");
    /* executable_build_options.num_replicas */
    options = options_pack(1, 1, NULL);
    memcpy(options.data + options.size, "\x1a\x05\x20\x80\x80\x80\x01", 7);
    options.size += 7;
    expect_error(try_compile(client, ADD, &options, &executable),
                 PJRT_Error_Code_INVALID_ARGUMENT, "2097152 replicas");
    options = options_pack(1, 1, NULL);
    options_add_text(&options, "xla_backend_optimization_level", "much");
    expect_error(try_compile(client, ADD, &options, &executable),
                 PJRT_Error_Code_INVALID_ARGUMENT,
                 "xla_backend_optimization_level");
    client_close(client);
}

static void signature_names_shapes_and_donations(void **state)
{
    PJRT_Client *client = client_open((client_options_t){0});
    PJRT_LoadedExecutable *loaded = compile(client, ADD_DONATING, NULL);
    PJRT_Executable *executable = executable_of(loaded);
    unload(loaded); /* The signature lives as long as `executable`. */

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

/* The partitioner decides the outputs' shardings. */
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

/* --- Layouts -------------------------------------------------------------- */

/* Returns an array of two rows, doubled, and its transpose. `LAYOUT` is the
 * layout of the argument and of the first result. The second result becomes
 * row-major, because XLA would otherwise choose the layouts of both results. */
#define LAID_OUT(LAYOUT)                                               \
    "func.func public @main(%a: tensor<2x3xf32> "                      \
    "{mhlo.layout_mode = \"" LAYOUT "\"}) -> (tensor<2x3xf32> "        \
    "{mhlo.layout_mode = \"" LAYOUT "\"}, tensor<3x2xf32> "            \
    "{mhlo.layout_mode = \"auto\"}) {\n"                               \
    "  %0 = stablehlo.add %a, %a : tensor<2x3xf32>\n"                  \
    "  %1 = stablehlo.transpose %a, dims = [1, 0] : (tensor<2x3xf32>)" \
    " -> tensor<3x2xf32>\n"                                            \
    "  return %0, %1 : tensor<2x3xf32>, tensor<3x2xf32>\n}\n"

static void expect_array(const tow_xla_array_t *array, int64_t rows,
                         int64_t columns, const char *order)
{
    assert_int_equal(array->dimension_count, 2);
    assert_int_equal(array->dimensions[0], rows);
    assert_int_equal(array->dimensions[1], columns);
    assert_int_equal(array->order.size, order != NULL ? 2 : 0);
    if (order != NULL) assert_memory_equal(array->order.data, order, 2);
}

/* Column-major: the row-major array with the same bytes has three rows. */
static void arrays_in_other_layouts_are_described_row_major(void **state)
{
    PJRT_Client *client = client_open((client_options_t){0});
    PJRT_LoadedExecutable *loaded = compile(client, LAID_OUT("{0,1}"), NULL);
    PJRT_Executable *executable = executable_of(loaded);
    const tow_xla_signature_t *signature = NULL;
    expect_ok(extension->signature(executable, &signature));
    expect_array(&signature->parameters[0], 3, 2, "\1\0");
    expect_array(&signature->outputs[0], 3, 2, "\1\0");
    expect_array(&signature->outputs[1], 3, 2, NULL);

    const float columns[6] = {1, 4, 2, 5, 3, 6};
    const float twice[6] = {2, 8, 4, 10, 6, 12};
    const int64_t dims[] = {3, 2};
    call_t call = {.executable = loaded, .argument_count = 1};
    expect_ok(try_upload(client, device_at(client, 0), PJRT_Buffer_Type_F32,
                         columns, dims, 2, &call.arguments[0][0]));
    execute(&call);
    float read[6];
    download(call.outputs[0][0], read, sizeof(read));
    assert_memory_equal(read, twice, sizeof(read));
    download(call.outputs[0][1], read, sizeof(read));
    assert_memory_equal(read, columns, sizeof(read));
    destroy(call.outputs[0][0]);
    destroy(call.outputs[0][1]);
    destroy(call.arguments[0][0]);
    executable_close(executable);
    unload(loaded);
    client_close(client);
}

static void invalid_layouts_are_refused(void **state)
{
    static const struct {
        const char *text;
        PJRT_Error_Code code;
        const char *words;
    } bad[] = {
        {LAID_OUT("{0,0}"), PJRT_Error_Code_INVALID_ARGUMENT, "layout {0,0}"},
        {LAID_OUT("{0}"), PJRT_Error_Code_INVALID_ARGUMENT, "layout {0}"},
        {LAID_OUT("{2,1,0}"), PJRT_Error_Code_INVALID_ARGUMENT,
         "layout {2,1,0} for f32[2,3]"},
        {LAID_OUT("{1,0:T(2,2)}"), PJRT_Error_Code_UNIMPLEMENTED,
         "tiles and memory spaces"},
        {LAID_OUT("{1,0:S(1)}"), PJRT_Error_Code_UNIMPLEMENTED, "S(1)"},
        {LAID_OUT("askew"), PJRT_Error_Code_INVALID_ARGUMENT, "askew"},
    };
    PJRT_Client *client = client_open((client_options_t){0});
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        PJRT_LoadedExecutable *executable = NULL;
        expect_error(try_compile(client, bad[i].text, NULL, &executable),
                     bad[i].code, bad[i].words);
    }
    client_close(client);
}

/* --- Serialising ---------------------------------------------------------- */

static void executables_load_onto_other_devices(void **state)
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

/* The largest elements of eight rows: XLA makes a library fusion of it. */
static const char ROW_MAX[] =
    "module { func.func @main(%x: tensor<8x65536xf32>) -> tensor<65536xf32> {\n"
    "  %least = stablehlo.constant dense<0xFF800000> : tensor<f32>\n"
    "  %0 = stablehlo.reduce(%x init: %least) applies stablehlo.maximum "
    "across dimensions = [0]\n"
    "      : (tensor<8x65536xf32>, tensor<f32>) -> tensor<65536xf32>\n"
    "  return %0 : tensor<65536xf32> } }";

static void library_graphs_are_built_under_a_lock(void **state)
{
    static const int64_t dims[] = {8, 65536};
    static float values[8 * 65536];
    PJRT_Client *client = client_open((client_options_t){0});
    PJRT_LoadedExecutable *executable = compile(client, ROW_MAX, NULL);
    const uint64_t before = extension->library_graph_count();
    PJRT_Buffer *rows;
    expect_ok(try_upload(client, device_at(client, 0), PJRT_Buffer_Type_F32,
                         values, dims, 2, &rows));
    call_t call = {
        .executable = executable, .argument_count = 1, .arguments = {{rows}}};
    execute(&call);
    assert_true(extension->library_graph_count() > before);
    destroy(call.outputs[0][0]);
    destroy(rows);
    unload(executable);
    client_close(client);
}

#define CASE(name) cmocka_unit_test_setup(name, harness_set_up)

TOW_TEST_MAIN(CASE(compile_errors_name_the_cause),
              CASE(bytecode_compiles_and_truncated_bytecode_is_refused),
              CASE(hlo_modules_are_compiled_too),
              CASE(compile_refuses_options_with_outside_effects),
              CASE(compile_refuses_invalid_options),
              CASE(signature_names_shapes_and_donations),
              CASE(signature_has_the_shardings),
              CASE(arrays_in_other_layouts_are_described_row_major),
              CASE(invalid_layouts_are_refused),
              CASE(executables_load_onto_other_devices),
              CASE(library_graphs_are_built_under_a_lock))
