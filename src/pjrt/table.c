/* GetPjrtApi: the table, errors, attributes and the extension.
 *
 * The table is that of the header, and one newer function. JAX uses functions
 * newer than that only of plugins that state a newer minor version. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "pjrt/plugin_impl.h"
#include "pjrt/tuning.h"

/* The Shardings extension, which is newer than our header: the shardings of a
 * compiled program's arguments and results. With it JAX never asks for the
 * optimised program. */
#define EXTENSION_SHARDINGS 19

/* Minor version 91 added it; JAX looks for it in plugins of at least that
 * version. Version 92 added one function, behind those of our header; 93 the
 * layouts of parameters (layout.c). */
_Static_assert(PJRT_API_MAJOR == 0 && PJRT_API_MINOR == 90,
               "another header: does the table below still hold?");
#define MINOR_VERSION 93

typedef struct device_attributes_args {
    size_t struct_size;
    PJRT_Extension_Base *extension_start;
    PJRT_Device *device;
    const PJRT_NamedValue *attributes; /* out */
    size_t num_attributes;             /* out */
    void *holder;                      /* out: passed to the deleter */
    void (*deleter)(void *holder);     /* out */
} device_attributes_args_t;

typedef struct newer_api {
    PJRT_Api known;
    PJRT_Error *(*device_attributes)(device_attributes_args_t *args);
} newer_api_t;

static void delete_nothing(void *holder)
{
    (void)holder;
}

/* Those of its description, which live as long as the device. */
static PJRT_Error *device_attributes(device_attributes_args_t *args)
{
    const PJRT_DeviceDescription *description = &args->device->description;
    args->attributes = description->attributes;
    args->num_attributes = TOW_COUNT_OF(description->attributes);
    args->holder = NULL;
    args->deleter = delete_nothing;
    return NULL;
}

typedef struct sharding_args {
    size_t struct_size;
    PJRT_Extension_Base *extension_start;
    PJRT_Executable *executable;
    size_t count;                 /* out */
    const char *const *shardings; /* out: xla.OpSharding; NULL: unknown */
    const size_t *sizes;          /* out */
} sharding_args_t;

typedef struct shardings_extension {
    PJRT_Extension_Base base;
    PJRT_Error *(*arguments)(sharding_args_t *args);
    PJRT_Error *(*results)(sharding_args_t *args);
} shardings_extension_t;

static PJRT_Error *argument_shardings(sharding_args_t *args)
{
    PJRT_Executable *executable = args->executable;
    atomic_store(&executable->knows_shardings, true);
    const size_t results = executable->signature->result_count;
    args->count = executable->signature->argument_count;
    args->shardings = NULL;
    args->sizes = NULL;
    if (!executable->has_argument_shardings) return NULL;
    args->shardings = executable->sharding_bytes + results;
    args->sizes = executable->sharding_sizes + results;
    return NULL;
}

static PJRT_Error *result_shardings(sharding_args_t *args)
{
    PJRT_Executable *executable = args->executable;
    atomic_store(&executable->knows_shardings, true);
    args->count = executable->signature->result_count;
    args->shardings = NULL;
    args->sizes = NULL;
    if (!executable->has_result_shardings) return NULL;
    args->shardings = executable->sharding_bytes;
    args->sizes = executable->sharding_sizes;
    return NULL;
}

static shardings_extension_t shardings = {
    .base = {.struct_size = sizeof(shardings_extension_t),
             .type = (PJRT_Extension_Type)EXTENSION_SHARDINGS},
    .arguments = argument_shardings,
    .results = result_shardings,
};

/* -- Errors ---------------------------------------------------------------------- */

PJRT_Error *tow_plugin_unimplemented(const char *what)
{
    return take_error(
        TOW_ERROR(TOW_UNIMPLEMENTED, "towpath does not have %s", what));
}

static void error_destroy(PJRT_Error_Destroy_Args *args)
{
    tow_status_release((tow_status_t)args->error);
}

static void error_message(PJRT_Error_Message_Args *args)
{
    args->message = tow_status_message((tow_status_t)args->error);
    args->message_size = strlen(args->message);
}

static PJRT_Error *error_code(PJRT_Error_GetCode_Args *args)
{
    args->code = (PJRT_Error_Code)tow_status_code((tow_status_t)args->error);
    return NULL;
}

/* -- The plugin -------------------------------------------------------------------- */

static PJRT_Error *initialize(PJRT_Plugin_Initialize_Args *args)
{
    return NULL;
}

#define NUMBERS(text, numbers)                                             \
    {                                                                      \
        .struct_size = PJRT_NamedValue_STRUCT_SIZE, .name = text,          \
        .name_size = sizeof(text) - 1, .type = PJRT_NamedValue_kInt64List, \
        .int64_array_value = numbers, .value_size = 3                      \
    }

/* The version that JAX is to write. */
static int64_t stablehlo[] = {TOW_PLUGIN_STABLEHLO_DEFAULT};

static bool read_stablehlo(const char *text)
{
    int major, minor, patch, end = 0;
    if (text == NULL ||
        sscanf(text, "%d.%d.%d%n", &major, &minor, &patch, &end) != 3 ||
        text[end] != '\0' || major < 0 || minor < 0 || patch < 0)
        return false;
    stablehlo[0] = major;
    stablehlo[1] = minor;
    stablehlo[2] = patch;
    return true;
}

void tow_plugin_set_stablehlo(const char *version)
{
    if (!read_stablehlo(getenv(TOW_PLUGIN_STABLEHLO_VARIABLE)))
        (void)read_stablehlo(version);
}

static PJRT_Error *attributes(PJRT_Plugin_Attributes_Args *args)
{
    static const int64_t minimum[] = {TOW_PLUGIN_STABLEHLO_MINIMUM};
    static const PJRT_NamedValue values[] = {
        NUMBERS("stablehlo_current_version", stablehlo),
        NUMBERS("stablehlo_minimum_version", minimum),
    };
    args->attributes = values;
    args->num_attributes = TOW_COUNT_OF(values);
    return NULL;
}

static newer_api_t table;

/* At load time, before any use. */
__attribute__((constructor)) static void fill_table(void)
{
    tow_plugin_set_stablehlo(NULL);
    PJRT_Api *api = &table.known;
    *api = (PJRT_Api){
        .struct_size = sizeof(table),
        .extension_start =
            tow_plugin_profiler_extension(tow_plugin_partitioner_extension(
                tow_plugin_layouts_extension(&shardings.base))),
        .pjrt_api_version = {.struct_size = PJRT_Api_Version_STRUCT_SIZE,
                             .major_version = PJRT_API_MAJOR,
                             .minor_version = MINOR_VERSION}};
    api->PJRT_Error_Destroy = error_destroy;
    api->PJRT_Error_Message = error_message;
    api->PJRT_Error_GetCode = error_code;
    api->PJRT_Plugin_Initialize = initialize;
    api->PJRT_Plugin_Attributes = attributes;
    tow_plugin_fill_events(api);
    tow_plugin_fill_client(api);
    tow_plugin_fill_executable(api);
    tow_plugin_fill_save(api);
    tow_plugin_fill_buffer(api);
    tow_plugin_fill_transfer(api);
    tow_plugin_fill_execute(api);
    tow_plugin_fill_topology(api);
    tow_plugin_fill_unimplemented(api);
    table.device_attributes = device_attributes;
}

const PJRT_Api *GetPjrtApi(void);

__attribute__((visibility("default"))) const PJRT_Api *GetPjrtApi(void)
{
    return &table.known;
}
