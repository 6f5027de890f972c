/* Executables: compiled and loaded on a helper thread, counted. */
#include "device/pjrt/pjrt_impl.h"

#include <string.h>

#include "base/alloc.h"
#include "device/options.h"

#define DEFAULT_OPTIONS_BYTES_MAX 64

/* -- Reference counts ------------------------------------------------------- */

static void destroy_handles(pjrt_executable_t *executable)
{
    const pjrt_plugin_t *plugin =
        &pjrt_driver_of(executable->executable.driver)->plugin;
    if (executable->handle != NULL) {
        PJRT_Executable_Destroy_Args args = PJRT_ARGS(
            PJRT_Executable_Destroy, .executable = executable->handle);
        tow_pjrt_error_discard(plugin,
                               plugin->api.PJRT_Executable_Destroy(&args));
    }
    if (executable->loaded != NULL) {
        PJRT_LoadedExecutable_Destroy_Args args = PJRT_ARGS(
            PJRT_LoadedExecutable_Destroy, .executable = executable->loaded);
        tow_pjrt_error_discard(
            plugin, plugin->api.PJRT_LoadedExecutable_Destroy(&args));
    }
}

static void destroy(pjrt_executable_t *executable)
{
    destroy_handles(executable);
    tow_pjrt_runs_free(executable);
    tow_arena_deinit(&executable->arena);
    tow_free(executable);
}

void tow_pjrt_executable_retain(tow_executable_t *executable)
{
    pjrt_executable_of(executable)->reference_count++;
}

void tow_pjrt_executable_release(tow_executable_t *base)
{
    pjrt_executable_t *executable = pjrt_executable_of(base);
    pjrt_driver_t *driver = pjrt_driver_of(base->driver);
    TOW_ASSERT(executable->reference_count > 0);
    if (--executable->reference_count > 0) return;
    destroy(executable);
    driver->executable_count--;
    if (driver->is_closing) tow_pjrt_check_closed(driver);
}

/* -- Compiling and loading -------------------------------------------------- */

typedef enum source {
    FROM_PROGRAM,
    FROM_SERIALIZED,
} source_t;

typedef struct making {
    tow_work_t work;
    pjrt_driver_t *driver;
    tow_compile_t *compile; /* the caller's */
    source_t source;
    pjrt_executable_t *executable; /* owned until done */
    uint8_t options[DEFAULT_OPTIONS_BYTES_MAX];
    size_t options_size;
} making_t;

/* The driver's first device. */
static void set_default_options(making_t *making)
{
    const int64_t id = making->driver->driver.devices[0].id;
    const tow_compile_options_t options = {.assignment = {.device_ids = &id}};
    TOW_ASSERT(tow_compile_options_size(&options) <= sizeof(making->options));
    making->options_size = tow_compile_options_pack(&options, making->options);
}

static tow_bytes_t options_of(const making_t *making)
{
    if (making->compile->options.size > 0) return making->compile->options;
    return (tow_bytes_t){.data = making->options, .size = making->options_size};
}

static tow_status_t compile_program(making_t *making)
{
    static const char format[] = "mlir";
    const pjrt_plugin_t *plugin = &making->driver->plugin;
    const tow_bytes_t options = options_of(making);
    PJRT_Program program = {
        .struct_size = PJRT_Program_STRUCT_SIZE,
        .code = (char *)making->compile->program.data, /* It only reads. */
        .code_size = making->compile->program.size,
        .format = format,
        .format_size = sizeof(format) - 1,
    };
    PJRT_Client_Compile_Args args =
        PJRT_ARGS(PJRT_Client_Compile, .client = making->driver->client,
                  .program = &program, .compile_options = options.data,
                  .compile_options_size = options.size);
    PJRT_Error *error = plugin->api.PJRT_Client_Compile(&args);
    making->executable->loaded = error == NULL ? args.executable : NULL;
    return tow_status_annotate(tow_pjrt_status(plugin, error), "compiling");
}

static tow_status_t load_serialized(making_t *making)
{
    const pjrt_plugin_t *plugin = &making->driver->plugin;
    const tow_bytes_t options = options_of(making);
    PJRT_Executable_DeserializeAndLoad_Args args = PJRT_ARGS(
        PJRT_Executable_DeserializeAndLoad, .client = making->driver->client,
        .serialized_executable = making->compile->program.data,
        .serialized_executable_size = making->compile->program.size,
        .overridden_serialized_compile_options = options.data,
        .overridden_serialized_compile_options_size = options.size);
    PJRT_Error *error = plugin->api.PJRT_Executable_DeserializeAndLoad(&args);
    making->executable->loaded = error == NULL ? args.loaded_executable : NULL;
    return tow_status_annotate(tow_pjrt_status(plugin, error),
                               "loading an executable");
}

/* On a helper thread: does not touch the driver's state. */
static tow_status_t make(tow_work_t *work)
{
    making_t *making = TOW_CONTAINER_OF(work, making_t, work);
    TOW_RETURN_IF_ERROR(making->source == FROM_PROGRAM
                            ? compile_program(making)
                            : load_serialized(making));
    const pjrt_plugin_t *plugin = &making->driver->plugin;
    PJRT_LoadedExecutable_GetExecutable_Args args =
        PJRT_ARGS(PJRT_LoadedExecutable_GetExecutable,
                  .loaded_executable = making->executable->loaded);
    TOW_RETURN_IF_ERROR(tow_pjrt_status(
        plugin, plugin->api.PJRT_LoadedExecutable_GetExecutable(&args)));
    making->executable->handle = args.executable;
    return tow_pjrt_signature_read(making->executable);
}

static void made(tow_work_t *work, tow_status_t take_status)
{
    making_t *making = TOW_CONTAINER_OF(work, making_t, work);
    pjrt_driver_t *driver = making->driver;
    tow_compile_t *compile = making->compile;
    pjrt_executable_t *executable = making->executable;
    tow_free(making);
    if (take_status != TOW_OK) {
        destroy(executable);
        compile->done(compile, take_status, NULL);
    } else {
        driver->executable_count++;
        compile->done(compile, TOW_OK, &executable->executable);
    }
    tow_pjrt_end(driver);
}

static tow_status_t start_making(pjrt_driver_t *driver, tow_compile_t *compile,
                                 source_t source)
{
    TOW_RETURN_IF_ERROR(tow_pjrt_check_open(driver));
    making_t *making = tow_calloc(1, sizeof(*making));
    pjrt_executable_t *executable = tow_calloc(1, sizeof(*executable));
    if (making == NULL || executable == NULL) {
        tow_free(making);
        tow_free(executable);
        return tow_status_bare(TOW_RESOURCE_EXHAUSTED);
    }
    tow_arena_init(&executable->arena, 0);
    executable->executable.driver = &driver->driver;
    executable->reference_count = 1;
    *making = (making_t){
        .work = {.run = make, .done = made},
        .driver = driver,
        .compile = compile,
        .source = source,
        .executable = executable,
    };
    set_default_options(making);
    driver->operation_count++;
    tow_env_work_start(driver->driver.env, &making->work);
    return TOW_OK;
}

tow_status_t tow_pjrt_compile(tow_driver_t *driver, tow_compile_t *compile)
{
    if (compile->format != TOW_PROGRAM_MLIR)
        return TOW_ERROR(TOW_INVALID_ARGUMENT,
                         "driver pjrt compiles StableHLO only; a program that "
                         "says what it costs is for driver sim");
    return start_making(pjrt_driver_of(driver), compile, FROM_PROGRAM);
}

tow_status_t tow_pjrt_load(tow_driver_t *driver, tow_compile_t *load)
{
    return start_making(pjrt_driver_of(driver), load, FROM_SERIALIZED);
}

/* -- Serialising ------------------------------------------------------------ */

tow_status_t tow_pjrt_serialize(tow_executable_t *base, void **out_bytes,
                                size_t *out_size)
{
    const pjrt_plugin_t *plugin = &pjrt_driver_of(base->driver)->plugin;
    PJRT_Executable_Serialize_Args args =
        PJRT_ARGS(PJRT_Executable_Serialize,
                  .executable = pjrt_executable_of(base)->handle);
    TOW_RETURN_IF_ERROR(tow_status_annotate(
        tow_pjrt_status(plugin, plugin->api.PJRT_Executable_Serialize(&args)),
        "serialising %s", base->signature.name));
    tow_status_t status = TOW_OK;
    void *bytes = tow_malloc(args.serialized_bytes_size);
    if (bytes == NULL) {
        status = tow_status_bare(TOW_RESOURCE_EXHAUSTED);
    } else {
        memcpy(bytes, args.serialized_bytes, args.serialized_bytes_size);
        *out_bytes = bytes;
        *out_size = args.serialized_bytes_size;
    }
    if (args.serialized_executable_deleter != NULL)
        args.serialized_executable_deleter(args.serialized_executable);
    return status;
}
