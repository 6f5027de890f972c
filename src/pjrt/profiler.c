/* The Profiler extension: JAX asks every plugin for its part of a trace, and some
 * versions (0.6.2) do not live through it when there is nobody to ask. Ours is an
 * empty one: what this process does JAX sees itself, and what the cluster does is
 * in `tow trace`, with its own clocks put right. */
#include <string.h>
#include <xla/pjrt/c/pjrt_c_api_profiler_extension.h>

#include "pjrt/plugin_impl.h"

/* There is nothing to know of one. */
static char the_profiler;

static void error_destroy(PLUGIN_Profiler_Error_Destroy_Args *args)
{
    tow_status_release((tow_status_t)args->error);
}

static void error_message(PLUGIN_Profiler_Error_Message_Args *args)
{
    args->message = tow_status_message((tow_status_t)args->error);
    args->message_size = strlen(args->message);
}

static PLUGIN_Profiler_Error *error_code(
    PLUGIN_Profiler_Error_GetCode_Args *args)
{
    args->code = (int)tow_status_code((tow_status_t)args->error);
    return NULL;
}

static PLUGIN_Profiler_Error *create(PLUGIN_Profiler_Create_Args *args)
{
    args->profiler = (PLUGIN_Profiler *)&the_profiler;
    return NULL;
}

static PLUGIN_Profiler_Error *destroy(PLUGIN_Profiler_Destroy_Args *args)
{
    return NULL;
}

static PLUGIN_Profiler_Error *start(PLUGIN_Profiler_Start_Args *args)
{
    return NULL;
}

static PLUGIN_Profiler_Error *stop(PLUGIN_Profiler_Stop_Args *args)
{
    return NULL;
}

/* An XSpace without planes has no bytes. */
static PLUGIN_Profiler_Error *collect_data(
    PLUGIN_Profiler_CollectData_Args *args)
{
    args->buffer_size_in_bytes = 0;
    return NULL;
}

PJRT_Extension_Base *tow_pjrt_profiler_extension(PJRT_Extension_Base *next)
{
    static PLUGIN_Profiler_Api api = {
        .struct_size = PLUGIN_Profiler_Api_STRUCT_SIZE,
        .error_destroy = error_destroy,
        .error_message = error_message,
        .error_get_code = error_code,
        .create = create,
        .destroy = destroy,
        .start = start,
        .stop = stop,
        .collect_data = collect_data,
    };
    static PJRT_Profiler_Extension extension = {
        .base = {.struct_size = PJRT_Profiler_Extension_STRUCT_SIZE,
                 .type = PJRT_Extension_Type_Profiler},
        .profiler_api = &api,
        .traceme_context_id = -1,
    };
    extension.base.next = next;
    return &extension.base;
}
