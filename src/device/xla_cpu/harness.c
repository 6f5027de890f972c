#include "device/xla_cpu/harness.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "device/options.h"

const PJRT_Api *api;
const tow_xla_extension_t *extension;

bool harness_load(void)
{
    const char *path = getenv("TOW_XLA_CPU");
    if (path == NULL || path[0] == '\0') return false;
    if (api != NULL) return true;
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (library == NULL) fail_msg("%s", dlerror());
    const PJRT_Api *(*get_api)(void) =
        (const PJRT_Api *(*)(void))dlsym(library, "GetPjrtApi");
    assert_non_null(get_api);
    api = get_api();
    for (PJRT_Extension_Base *node = api->extension_start; node != NULL;
         node = node->next)
        if ((int)node->type == TOW_XLA_EXTENSION_TYPE)
            extension = (const tow_xla_extension_t *)node;
    return true;
}

int harness_set_up(void **state)
{
    if (!harness_load())
        tow_test_skip("TOW_XLA_CPU does not name the adapter's file");
    return 0;
}

/* --- Errors --------------------------------------------------------------- */

failure_t failure_of(PJRT_Error *error)
{
    failure_t failure = {.code = PJRT_Error_Code_OK};
    if (error == NULL) return failure;
    PJRT_Error_GetCode_Args code = {.struct_size = sizeof(code),
                                    .error = error};
    assert_null(api->PJRT_Error_GetCode(&code));
    PJRT_Error_Message_Args words = {.struct_size = sizeof(words),
                                     .error = error};
    api->PJRT_Error_Message(&words);
    failure.code = code.code;
    snprintf(failure.message, sizeof(failure.message), "%.*s",
             (int)words.message_size, words.message);
    PJRT_Error_Destroy_Args done = {.struct_size = sizeof(done),
                                    .error = error};
    api->PJRT_Error_Destroy(&done);
    return failure;
}

void expect_ok(PJRT_Error *error)
{
    failure_t failure = failure_of(error);
    if (failure.code != PJRT_Error_Code_OK)
        fail_msg("code %d: %s", (int)failure.code, failure.message);
}

void expect_error(PJRT_Error *error, PJRT_Error_Code code, const char *words)
{
    failure_t failure = failure_of(error);
    if (failure.code != code || strstr(failure.message, words) == NULL)
        fail_msg("expected code %d with \"%s\", got %d: %s", (int)code, words,
                 (int)failure.code, failure.message);
}

/* --- Clients and programs ------------------------------------------------- */

static PJRT_NamedValue number(const char *name, int64_t value)
{
    return (PJRT_NamedValue){
        .struct_size = PJRT_NamedValue_STRUCT_SIZE,
        .name = name,
        .name_size = strlen(name),
        .type = PJRT_NamedValue_kInt64,
        .int64_value = value,
        .value_size = 1,
    };
}

PJRT_Client *client_open(client_options_t options)
{
    PJRT_NamedValue values[] = {
        number("process_id", options.process_id),
        number("device_count",
               options.device_count == 0 ? 1 : options.device_count),
        number("memory_limit_bytes", options.memory_limit_bytes),
        number("tow_collectives", (int64_t)(intptr_t)options.collectives),
        number("tow_blocks", (int64_t)(intptr_t)options.blocks),
        number("tow_calls", (int64_t)(intptr_t)options.calls),
    };
    PJRT_Client_Create_Args args = {
        .struct_size = sizeof(args),
        .create_options = values,
        .num_options = TOW_COUNT_OF(values),
    };
    expect_ok(api->PJRT_Client_Create(&args));
    return args.client;
}

void client_close(PJRT_Client *client)
{
    PJRT_Client_Destroy_Args args = {.struct_size = sizeof(args),
                                     .client = client};
    expect_ok(api->PJRT_Client_Destroy(&args));
}

PJRT_Device *device_at(PJRT_Client *client, size_t index)
{
    PJRT_Client_AddressableDevices_Args args = {.struct_size = sizeof(args),
                                                .client = client};
    expect_ok(api->PJRT_Client_AddressableDevices(&args));
    assert_true(index < args.num_addressable_devices);
    return args.addressable_devices[index];
}

/* What no client of ours sends, by hand. */
static void pack_varint(bytes_t *out, uint64_t value)
{
    while (value >= 0x80) {
        out->data[out->size++] = (char)(value | 0x80);
        value >>= 7;
    }
    out->data[out->size++] = (char)value;
    assert_true(out->size < sizeof(out->data) - 16);
}

static void pack_bytes(bytes_t *out, int field, const void *data, size_t size)
{
    pack_varint(out, ((uint64_t)field << 3) | 2);
    pack_varint(out, size);
    assert_true(out->size + size < sizeof(out->data) - 16);
    memcpy(out->data + out->size, data, size);
    out->size += size;
}

bytes_t options_pack(size_t replica_count, size_t partition_count,
                     const int64_t *devices)
{
    const tow_compile_options_t options = {
        .assignment = {.replica_count = replica_count,
                       .partition_count = partition_count,
                       .device_ids = devices}};
    bytes_t packed;
    assert_true(tow_compile_options_size(&options) <= sizeof(packed.data));
    packed.size = tow_compile_options_pack(&options, (uint8_t *)packed.data);
    return packed;
}

void options_add_text(bytes_t *options, const char *name, const char *value)
{
    bytes_t text = {.size = 0};
    pack_bytes(&text, 1, value, strlen(value));
    bytes_t entry = {.size = 0};
    pack_bytes(&entry, 1, name, strlen(name));
    pack_bytes(&entry, 2, text.data, text.size);
    pack_bytes(options, 7, entry.data, entry.size);
}

void options_add_entry(bytes_t *options, int field, const char *name,
                       const char *value)
{
    bytes_t entry = {.size = 0};
    pack_bytes(&entry, 1, name, strlen(name));
    pack_bytes(&entry, 2, value, strlen(value));
    bytes_t debug = {.size = 0};
    pack_bytes(&debug, field, entry.data, entry.size);
    bytes_t build = {.size = 0};
    pack_bytes(&build, 3, debug.data, debug.size);
    /* A second message in the same field is merged into the first. */
    pack_bytes(options, 3, build.data, build.size);
}

PJRT_Error *try_compile(PJRT_Client *client, const char *text,
                        const bytes_t *options,
                        PJRT_LoadedExecutable **out_executable)
{
    PJRT_Program program = {
        .struct_size = sizeof(program),
        .code = (char *)text,
        .code_size = strlen(text),
        .format = "mlir",
        .format_size = 4,
    };
    PJRT_Client_Compile_Args args = {
        .struct_size = sizeof(args),
        .client = client,
        .program = &program,
        .compile_options = options == NULL ? NULL : options->data,
        .compile_options_size = options == NULL ? 0 : options->size,
    };
    PJRT_Error *error = api->PJRT_Client_Compile(&args);
    *out_executable = args.executable;
    return error;
}

PJRT_LoadedExecutable *compile(PJRT_Client *client, const char *text,
                               const bytes_t *options)
{
    PJRT_LoadedExecutable *executable = NULL;
    expect_ok(try_compile(client, text, options, &executable));
    return executable;
}

void unload(PJRT_LoadedExecutable *executable)
{
    PJRT_LoadedExecutable_Destroy_Args args = {.struct_size = sizeof(args),
                                               .executable = executable};
    expect_ok(api->PJRT_LoadedExecutable_Destroy(&args));
}

PJRT_Executable *executable_of(PJRT_LoadedExecutable *loaded)
{
    PJRT_LoadedExecutable_GetExecutable_Args args = {
        .struct_size = sizeof(args), .loaded_executable = loaded};
    expect_ok(api->PJRT_LoadedExecutable_GetExecutable(&args));
    return args.executable;
}

void executable_close(PJRT_Executable *executable)
{
    PJRT_Executable_Destroy_Args args = {.struct_size = sizeof(args),
                                         .executable = executable};
    expect_ok(api->PJRT_Executable_Destroy(&args));
}

const char ADD[] =
    "func.func public @main(%a: tensor<4xf32>, %b: tensor<4xf32>)"
    " -> tensor<4xf32> {\n"
    "  %0 = stablehlo.add %a, %b : tensor<4xf32>\n"
    "  return %0 : tensor<4xf32>\n"
    "}\n";

const char ADD_DONATING[] =
    "func.func public @main("
    "%a: tensor<4xf32> {tf.aliasing_output = 0 : i32}, %b: tensor<4xf32>)"
    " -> tensor<4xf32> {\n"
    "  %0 = stablehlo.add %a, %b : tensor<4xf32>\n"
    "  return %0 : tensor<4xf32>\n"
    "}\n";

const char SLOW[] =
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

const float ONES[4] = {1, 1, 1, 1};
const float COUNT[4] = {1, 2, 3, 4};

/* --- Arrays --------------------------------------------------------------- */

PJRT_Error *try_upload(PJRT_Client *client, PJRT_Device *device,
                       PJRT_Buffer_Type type, const void *data,
                       const int64_t *dims, size_t dim_count,
                       PJRT_Buffer **out_buffer)
{
    PJRT_Client_BufferFromHostBuffer_Args args = {
        .struct_size = sizeof(args),
        .client = client,
        .data = data,
        .type = type,
        .dims = dims,
        .num_dims = dim_count,
        .device = device,
    };
    PJRT_Error *error = api->PJRT_Client_BufferFromHostBuffer(&args);
    if (error != NULL) return error;
    *out_buffer = args.buffer;
    return try_await(args.done_with_host_buffer);
}

PJRT_Buffer *upload(PJRT_Client *client, PJRT_Device *device,
                    const float *values, size_t count)
{
    int64_t dims[] = {(int64_t)count};
    PJRT_Buffer *buffer = NULL;
    expect_ok(try_upload(client, device, PJRT_Buffer_Type_F32, values, dims, 1,
                         &buffer));
    return buffer;
}

PJRT_Error *try_await(PJRT_Event *event)
{
    PJRT_Event_Await_Args args = {.struct_size = sizeof(args), .event = event};
    PJRT_Error *error = api->PJRT_Event_Await(&args);
    PJRT_Event_Destroy_Args done = {.struct_size = sizeof(done),
                                    .event = event};
    expect_ok(api->PJRT_Event_Destroy(&done));
    return error;
}

void await(PJRT_Event *event)
{
    expect_ok(try_await(event));
}

PJRT_Error *try_download(PJRT_Buffer *buffer, void *out_data, size_t size)
{
    PJRT_Buffer_ToHostBuffer_Args args = {
        .struct_size = sizeof(args),
        .src = buffer,
        .dst = out_data,
        .dst_size = size,
    };
    PJRT_Error *error = api->PJRT_Buffer_ToHostBuffer(&args);
    return error != NULL ? error : try_await(args.event);
}

void download(PJRT_Buffer *buffer, void *out_data, size_t size)
{
    expect_ok(try_download(buffer, out_data, size));
}

void expect_values(PJRT_Buffer *buffer, float a, float b, float c, float d)
{
    float values[4];
    const float expected[4] = {a, b, c, d};
    download(buffer, values, sizeof(values));
    assert_memory_equal(values, expected, sizeof(values));
}

PJRT_Event *ready_event_of(PJRT_Buffer *buffer)
{
    PJRT_Buffer_ReadyEvent_Args args = {.struct_size = sizeof(args),
                                        .buffer = buffer};
    expect_ok(api->PJRT_Buffer_ReadyEvent(&args));
    return args.event;
}

bool is_deleted(PJRT_Buffer *buffer)
{
    PJRT_Buffer_IsDeleted_Args args = {.struct_size = sizeof(args),
                                       .buffer = buffer};
    expect_ok(api->PJRT_Buffer_IsDeleted(&args));
    return args.is_deleted;
}

void destroy(PJRT_Buffer *buffer)
{
    PJRT_Buffer_Destroy_Args args = {.struct_size = sizeof(args),
                                     .buffer = buffer};
    expect_ok(api->PJRT_Buffer_Destroy(&args));
}

int64_t bytes_in_use(PJRT_Device *device)
{
    PJRT_Device_MemoryStats_Args args = {.struct_size = sizeof(args),
                                         .device = device};
    expect_ok(api->PJRT_Device_MemoryStats(&args));
    return args.bytes_in_use;
}

/* --- Executions ----------------------------------------------------------- */

PJRT_Error *try_execute(call_t *call)
{
    if (call->device_count == 0) call->device_count = 1;
    tow_xla_execute_options_t own = {
        .struct_size = sizeof(own),
        .type = TOW_XLA_EXECUTE_OPTIONS_TYPE,
        .run_id = call->run_id,
        .flags = call->flags,
    };
    PJRT_ExecuteOptions options = {
        .struct_size = sizeof(options),
        .extension_start = (PJRT_Extension_Base *)&own,
        .non_donatable_input_indices = call->undonated,
        .num_non_donatable_input_indices = call->undonated_count,
    };
    PJRT_Buffer *const *arguments[HARNESS_DEVICE_COUNT_MAX];
    PJRT_Buffer **outputs[HARNESS_DEVICE_COUNT_MAX];
    for (size_t i = 0; i < call->device_count; i++) {
        arguments[i] = call->arguments[i];
        outputs[i] = call->outputs[i];
    }
    PJRT_LoadedExecutable_Execute_Args args = {
        .struct_size = sizeof(args),
        .executable = call->executable,
        .options = &options,
        .argument_lists = arguments,
        .num_devices = call->device_count,
        .num_args = call->argument_count,
        .output_lists = outputs,
        .device_complete_events = call->done,
        .execute_device = call->device,
    };
    return api->PJRT_LoadedExecutable_Execute(&args);
}

void execute(call_t *call)
{
    expect_ok(try_execute(call));
    for (size_t i = 0; i < call->device_count; i++)
        await(call->done[i]);
}
