/* The optimised program of an executable, which `compiled.as_text()` prints.
 *
 * XLA for CPUs keeps it beside the machine code, so the cluster has it, and it
 * is fetched on request. Versions of JAX without the Shardings extension read
 * shardings from it, about nine times a compilation, and may be older than the
 * cluster's XLA. For them, and for other compilers, the plugin makes a module
 * with the executable's arguments, results and shardings, and an empty call as
 * its body. */
#include <stdio.h>
#include <string.h>

#include "device/proto.h"
#include "pjrt/plugin_impl.h"
#include "pjrt/text_impl.h"

/* Field numbers in xla/service/hlo.proto, xla_data.proto and xla.proto. */
enum {
    WITH_CONFIG_MODULE = 1,
    WITH_CONFIG_CONFIG = 2,
    CONFIG_LAYOUT = 1,
    MODULE_NAME = 1,
    MODULE_ENTRY_NAME = 2,
    MODULE_COMPUTATIONS = 3,
    MODULE_PROGRAM_SHAPE = 4,
    MODULE_ID = 5,
    MODULE_ENTRY_ID = 6,
    MODULE_RESULT_SHARDING = 12,
    MODULE_ARGUMENT_SHARDINGS = 14,
    COMPUTATION_NAME = 1,
    COMPUTATION_INSTRUCTIONS = 2,
    COMPUTATION_PROGRAM_SHAPE = 4,
    COMPUTATION_ID = 5,
    COMPUTATION_ROOT = 6,
    INSTRUCTION_NAME = 1,
    INSTRUCTION_OPCODE = 2,
    INSTRUCTION_SHAPE = 3,
    INSTRUCTION_PARAMETER = 9,
    INSTRUCTION_TARGET = 28,
    INSTRUCTION_ID = 35,
    SHAPE_ELEMENT = 2,
    SHAPE_DIMS = 3,
    SHAPE_TUPLE = 4,
    SHAPE_LAYOUT = 5,
    LAYOUT_MINOR_TO_MAJOR = 1,
    PROGRAM_PARAMETERS = 1,
    PROGRAM_RESULT = 2,
    PROGRAM_NAMES = 3,
    SHARDING_TYPE = 1,
    SHARDING_TUPLE = 5,
    /* xla/pjrt/proto/compile_options.proto, xla/service/cpu/executable.proto.
     */
    COMPILED_EXECUTABLE = 1,
    EXECUTABLE_MODULE = 1,
};
#define XLA_TUPLE       13
#define SHARDING_TUPLES 2

/* -- Shapes ---------------------------------------------------------------------- */

/* XLA's number of a type, which differs from PJRT's. */
static uint64_t element_of(uint32_t type)
{
    static const uint8_t numbers[] = {
        [PJRT_Buffer_Type_PRED] = 1,
        [PJRT_Buffer_Type_S8] = 2,
        [PJRT_Buffer_Type_S16] = 3,
        [PJRT_Buffer_Type_S32] = 4,
        [PJRT_Buffer_Type_S64] = 5,
        [PJRT_Buffer_Type_U8] = 6,
        [PJRT_Buffer_Type_U16] = 7,
        [PJRT_Buffer_Type_U32] = 8,
        [PJRT_Buffer_Type_U64] = 9,
        [PJRT_Buffer_Type_F16] = 10,
        [PJRT_Buffer_Type_F32] = 11,
        [PJRT_Buffer_Type_F64] = 12,
        [PJRT_Buffer_Type_BF16] = 16,
        [PJRT_Buffer_Type_C64] = 15,
        [PJRT_Buffer_Type_C128] = 18,
        [PJRT_Buffer_Type_F8E5M2] = 19,
        [PJRT_Buffer_Type_F8E4M3FN] = 20,
        [PJRT_Buffer_Type_F8E4M3B11FNUZ] = 23,
        [PJRT_Buffer_Type_F8E5M2FNUZ] = 24,
        [PJRT_Buffer_Type_F8E4M3FNUZ] = 25,
        [PJRT_Buffer_Type_S4] = 21,
        [PJRT_Buffer_Type_U4] = 22,
        [PJRT_Buffer_Type_TOKEN] = 17,
        [PJRT_Buffer_Type_S2] = 26,
        [PJRT_Buffer_Type_U2] = 27,
        [PJRT_Buffer_Type_F8E4M3] = 28,
        [PJRT_Buffer_Type_F8E3M4] = 29,
        [PJRT_Buffer_Type_F8E8M0FNU] = 33,
        [PJRT_Buffer_Type_F4E2M1FN] = 32,
    };
    return type < TOW_COUNT_OF(numbers) ? numbers[type] : 0;
}

static text_t shape_text(const tow_array_info_t *array)
{
    const tow_shape_t shape = tow_plugin_layout_program_shape(array);
    const layout_t layout = tow_plugin_layout_of(array);
    const int64_t *minor_to_major =
        tow_plugin_layout_minor_to_major(&layout, shape.rank);
    text_t text = {0}, order = {0};
    put_number(&text, SHAPE_ELEMENT, element_of(shape.type));
    for (uint32_t i = 0; i < shape.rank; i++)
        put_number(&text, SHAPE_DIMS, (uint64_t)shape.dims[i]);
    for (uint32_t i = 0; i < shape.rank; i++)
        put_number(&order, LAYOUT_MINOR_TO_MAJOR, (uint64_t)minor_to_major[i]);
    put_message(&text, SHAPE_LAYOUT, &order);
    return text;
}

static text_t result_text(const tow_signature_t *signature)
{
    if (signature->result_count == 1) return shape_text(&signature->results[0]);
    text_t text = {0};
    put_number(&text, SHAPE_ELEMENT, XLA_TUPLE);
    for (size_t i = 0; i < signature->result_count; i++) {
        text_t shape = shape_text(&signature->results[i]);
        put_message(&text, SHAPE_TUPLE, &shape);
    }
    return text;
}

static text_t program_text(const tow_signature_t *signature)
{
    text_t text = {0};
    for (size_t i = 0; i < signature->argument_count; i++) {
        text_t shape = shape_text(&signature->arguments[i]);
        put_message(&text, PROGRAM_PARAMETERS, &shape);
    }
    text_t result = result_text(signature);
    put_message(&text, PROGRAM_RESULT, &result);
    for (size_t i = 0; i < signature->argument_count; i++)
        put_string(&text, PROGRAM_NAMES, "");
    return text;
}

/* -- The module ------------------------------------------------------------------- */

static void put_parameter(text_t *computation, const tow_signature_t *signature,
                          size_t index)
{
    char name[32];
    snprintf(name, sizeof(name), "p%zu", index);
    text_t text = {0}, shape = shape_text(&signature->arguments[index]);
    put_string(&text, INSTRUCTION_NAME, name);
    put_string(&text, INSTRUCTION_OPCODE, "parameter");
    put_message(&text, INSTRUCTION_SHAPE, &shape);
    put_number(&text, INSTRUCTION_PARAMETER, index);
    put_number(&text, INSTRUCTION_ID, index + 1);
    put_message(computation, COMPUTATION_INSTRUCTIONS, &text);
}

static text_t computation_text(const tow_signature_t *signature)
{
    const uint64_t root = signature->argument_count + 1;
    text_t text = {0}, body = {0}, program = program_text(signature);
    put_string(&text, COMPUTATION_NAME, "main");
    for (size_t i = 0; i < signature->argument_count; i++)
        put_parameter(&text, signature, i);
    text_t shape = result_text(signature);
    put_string(&body, INSTRUCTION_NAME, "body");
    put_string(&body, INSTRUCTION_OPCODE, "custom-call");
    put_message(&body, INSTRUCTION_SHAPE, &shape);
    put_string(&body, INSTRUCTION_TARGET, "towpath_elsewhere");
    put_number(&body, INSTRUCTION_ID, root);
    put_message(&text, COMPUTATION_INSTRUCTIONS, &body);
    put_message(&text, COMPUTATION_PROGRAM_SHAPE, &program);
    put_number(&text, COMPUTATION_ID, 1);
    put_number(&text, COMPUTATION_ROOT, root);
    return text;
}

static void put_shardings(text_t *module, const PJRT_Executable *executable)
{
    const tow_signature_t *signature = executable->signature;
    const size_t results = signature->result_count;
    if (executable->has_result_shardings && results == 1) {
        put_bytes(module, MODULE_RESULT_SHARDING, executable->sharding_bytes[0],
                  executable->sharding_sizes[0]);
    } else if (executable->has_result_shardings) {
        text_t all = {0};
        put_number(&all, SHARDING_TYPE, SHARDING_TUPLES);
        for (size_t i = 0; i < results; i++)
            put_bytes(&all, SHARDING_TUPLE, executable->sharding_bytes[i],
                      executable->sharding_sizes[i]);
        put_message(module, MODULE_RESULT_SHARDING, &all);
    }
    for (size_t i = 0;
         executable->has_argument_shardings && i < signature->argument_count;
         i++)
        put_bytes(module, MODULE_ARGUMENT_SHARDINGS,
                  executable->sharding_bytes[results + i],
                  executable->sharding_sizes[results + i]);
}

tow_status_t tow_plugin_describe(const PJRT_Executable *executable,
                                 void **out_bytes, size_t *out_size)
{
    const tow_signature_t *signature = executable->signature;
    text_t whole = {0}, module = {0}, config = {0};
    text_t computation = computation_text(signature);
    text_t program = program_text(signature), layout = program_text(signature);
    put_string(&module, MODULE_NAME,
               signature->name != NULL ? signature->name : "main");
    put_string(&module, MODULE_ENTRY_NAME, "main");
    put_message(&module, MODULE_COMPUTATIONS, &computation);
    put_message(&module, MODULE_PROGRAM_SHAPE, &program);
    put_number(&module, MODULE_ID, 1);
    put_number(&module, MODULE_ENTRY_ID, 1);
    put_shardings(&module, executable);
    put_message(&config, CONFIG_LAYOUT, &layout);
    put_message(&whole, WITH_CONFIG_MODULE, &module);
    put_message(&whole, WITH_CONFIG_CONFIG, &config);
    if (whole.has_failed) {
        tow_free(whole.bytes);
        return tow_status_bare(TOW_RESOURCE_EXHAUSTED);
    }
    *out_bytes = whole.bytes;
    *out_size = whole.size;
    return TOW_OK;
}

/* -- The optimised module -------------------------------------------------- */

/* The bytes of the last field with this number; size 0: none. */
static tow_bytes_t find_bytes(tow_bytes_t message, uint32_t number)
{
    tow_bytes_t found = {0};
    proto_field_t field;
    while (message.size > 0) {
        if (!proto_read_field(&message, &field)) return (tow_bytes_t){0};
        if (field.number == number && field.kind == PROTO_BYTES)
            found = field.bytes;
    }
    return found;
}

static tow_status_t fetch_code(PJRT_Executable *executable)
{
    char *code;
    size_t size;
    TOW_RETURN_IF_ERROR(tow_plugin_check_fork());
    TOW_RETURN_IF_ERROR(tow_plugin_slice_refresh(executable->slice));
    TOW_RETURN_IF_ERROR(
        tow_plugin_executable_recompile(executable, executable->slice));
    client_enter(executable->client);
    tow_function_t *function = executable->function;
    tow_function_retain_locked(function);
    client_leave_lazily(executable->client);
    tow_status_t status = tow_function_code(function, &code, &size);
    tow_function_release(function);
    TOW_RETURN_IF_ERROR(status);
    client_enter(executable->client);
    if (executable->code == NULL) { /* Unless another thread has set it. */
        executable->code = code;
        executable->code_size = size;
        code = NULL;
    }
    client_leave_lazily(executable->client);
    tow_free_text(code);
    return TOW_OK;
}

tow_status_t tow_plugin_optimized(PJRT_Executable *executable,
                                  tow_bytes_t *out_module)
{
    client_enter(executable->client);
    const bool is_there = executable->code != NULL;
    client_leave_lazily(executable->client);
    if (!is_there) TOW_RETURN_IF_ERROR(fetch_code(executable));
    const tow_bytes_t code = {executable->code, executable->code_size};
    const tow_bytes_t module =
        find_bytes(find_bytes(code, COMPILED_EXECUTABLE), EXECUTABLE_MODULE);
    /* Checks that it is a module: another compiler's bytes may look similar so
     * far. */
    *out_module = find_bytes(module, WITH_CONFIG_MODULE).size > 0
                      ? module
                      : (tow_bytes_t){0};
    return TOW_OK;
}
