/* The Profiler extension: JAX asks every plugin for its part of a trace. This
 * plugin returns the trace of controller and workers, on this process's clock;
 * JAX traces this process itself. A cluster that does not answer does not fail
 * the trace: the trace then contains the reason. */
#include <string.h>
#include <time.h> /* tow-allow: JAX's events have such times */
#include <xla/pjrt/c/pjrt_c_api_profiler_extension.h>

#include "env/tuning.h"
#include "pjrt/plugin_impl.h"
#include "pjrt/xspace.h"

/* Beyond the trace's length, because the clocks of hosts differ slightly. */
#define SLACK_NS TOW_NS_PER_S

struct PLUGIN_Profiler {
    int64_t start_ns; /* since 1970, as JAX's own events */
    int64_t end_ns;
    void *bytes; /* owned: a serialised XSpace */
    size_t size;
};

_Atomic(PJRT_Client *) tow_plugin_latest_client;

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
    args->profiler = tow_calloc(1, sizeof(*args->profiler));
    if (args->profiler != NULL) return NULL;
    return (PLUGIN_Profiler_Error *)tow_status_bare(TOW_RESOURCE_EXHAUSTED);
}

static PLUGIN_Profiler_Error *destroy(PLUGIN_Profiler_Destroy_Args *args)
{
    if (args->profiler != NULL) tow_free(args->profiler->bytes);
    tow_free(args->profiler);
    return NULL;
}

static int64_t clock_ns(clockid_t clock)
{
    struct timespec now;
    clock_gettime(clock, &now); /* tow-allow: ditto */
    return (int64_t)now.tv_sec * TOW_NS_PER_S + now.tv_nsec;
}

static tow_status_t ask(uint64_t window_ns, char **out_spans,
                        int64_t *out_shift_ns)
{
    TOW_RETURN_IF_ERROR(tow_plugin_check_fork());
    PJRT_Client *client = atomic_load(&tow_plugin_latest_client);
    if (client == NULL)
        return TOW_ERROR(TOW_FAILED_PRECONDITION, "JAX has no towpath client");
    TOW_RETURN_IF_ERROR(
        tow_client_trace_spans(client->tow, window_ns, out_spans));
    *out_shift_ns = tow_client_clock_shift_ns(client->tow) +
                    clock_ns(CLOCK_REALTIME) - clock_ns(CLOCK_MONOTONIC);
    return TOW_OK;
}

/* Devices start recording with the first request. */
static PLUGIN_Profiler_Error *start(PLUGIN_Profiler_Start_Args *args)
{
    char *spans = NULL;
    int64_t shift_ns;
    tow_status_ignore(ask(1, &spans, &shift_ns), "stop reports it again");
    tow_free_text(spans);
    args->profiler->start_ns = clock_ns(CLOCK_REALTIME);
    return NULL;
}

static PLUGIN_Profiler_Error *stop(PLUGIN_Profiler_Stop_Args *args)
{
    struct PLUGIN_Profiler *self = args->profiler;
    self->end_ns = clock_ns(CLOCK_REALTIME);
    char *spans = NULL;
    tow_xspace_source_t source = {.start_ns = self->start_ns,
                                  .end_ns = self->end_ns};
    tow_status_t asked =
        ask((uint64_t)(self->end_ns - self->start_ns) + SLACK_NS, &spans,
            &source.shift_ns);
    source.spans = spans;
    if (asked != TOW_OK) source.error = tow_status_message(asked);
    tow_free(self->bytes);
    tow_status_t status = tow_xspace_write(&source, &self->bytes, &self->size);
    tow_free_text(spans);
    tow_status_ignore(asked, "it is in the trace");
    return (PLUGIN_Profiler_Error *)status;
}

/* According to the header it is called twice, for the size and for the bytes.
 * JAX calls once, without a buffer, and reads the pointer that the plugin
 * sets. */
static PLUGIN_Profiler_Error *collect_data(
    PLUGIN_Profiler_CollectData_Args *args)
{
    const struct PLUGIN_Profiler *self = args->profiler;
    if (args->buffer == NULL)
        args->buffer = self->bytes;
    else if (self->size > 0)
        memcpy(args->buffer, self->bytes, self->size);
    args->buffer_size_in_bytes = self->size;
    return NULL;
}

PJRT_Extension_Base *tow_plugin_profiler_extension(PJRT_Extension_Base *next)
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
