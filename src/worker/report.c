/* Reports: the state of this worker, and the trace events of this process. */
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/trace.h"
#include "worker/tuning.h"
#include "worker/worker_impl.h"

/* -- Status ---------------------------------------------------------------- */

static json_t *describe_device(tow_driver_t *driver, size_t index)
{
    const tow_device_info_t *info = &driver->devices[index];
    json_t *device = json_pack(
        "{s:I, s:s, s:s, s:I}", "id", (json_int_t)info->id, "kind", info->kind,
        "name", info->name, "memory_bytes", (json_int_t)info->memory_bytes);
    tow_memory_stats_t memory;
    tow_status_t status = tow_driver_memory_stats(driver, index, &memory);
    if (status == TOW_OK && device != NULL) {
        json_object_set_new(device, "bytes_in_use",
                            json_integer((json_int_t)memory.bytes_in_use));
        json_object_set_new(device, "bytes_peak",
                            json_integer((json_int_t)memory.bytes_peak));
        json_object_set_new(
            device, "recent_peak_bytes",
            json_integer((json_int_t)tow_driver_recent_peak(driver, index)));
        json_object_set_new(device, "bytes_limit",
                            json_integer((json_int_t)memory.bytes_limit));
    }
    tow_status_ignore(status, "the driver does not report it");
    return device;
}

static json_t *describe_devices(tow_driver_t *driver)
{
    json_t *devices = json_array();
    for (size_t i = 0; devices != NULL && i < driver->device_count; i++)
        json_array_append_new(devices, describe_device(driver, i));
    return devices;
}

static json_t *describe_work(const tow_worker_stats_t *stats)
{
    return json_pack(
        "{s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, "
        "s:I, s:I, s:I, s:I, s:I, s:I}",
        "device_ns", (json_int_t)stats->dataflow.device_ns, "wait_ns",
        (json_int_t)stats->dataflow.wait_ns, "runs",
        (json_int_t)stats->dataflow.run_count, "steps",
        (json_int_t)stats->dataflow.step_count, "runs_granted",
        (json_int_t)stats->dataflow.granted, "runs_failed",
        (json_int_t)stats->dataflow.failed, "programs",
        (json_int_t)stats->dataflow.program_count, "executables",
        (json_int_t)stats->dataflow.executable_count, "loads",
        (json_int_t)stats->load_count, "puts", (json_int_t)stats->put_count,
        "put_bytes", (json_int_t)stats->put_bytes, "gets",
        (json_int_t)stats->get_count, "put_bytes_total",
        (json_int_t)stats->put_bytes_total, "get_bytes_total",
        (json_int_t)stats->get_bytes_total, "lanes",
        (json_int_t)stats->lane_count, "lent_bytes",
        (json_int_t)stats->transfer_engine.shared_bytes, "received_bytes",
        (json_int_t)stats->transfer_engine.memory_bytes, "received_bytes_peak",
        (json_int_t)stats->transfer_engine.memory_bytes_peak, "memory_waits",
        (json_int_t)stats->dataflow.memory_wait_count);
}

static json_t *describe_store(const tow_shard_store_totals_t *shard_store)
{
    return json_pack("{s:I, s:I, s:I, s:I}", "objects",
                     (json_int_t)shard_store->object_count, "failed",
                     (json_int_t)shard_store->failed_count, "shards",
                     (json_int_t)shard_store->shard_count, "bytes",
                     (json_int_t)shard_store->bytes);
}

static tow_status_t write_status(tow_worker_t *worker, char **out_text,
                                 size_t *out_size)
{
    tow_driver_t *driver = worker->options.driver;
    const tow_worker_stats_t stats = tow_worker_stats(worker);
    json_t *json = json_pack(
        "{s:s, s:s, s:i, s:s, s:b, s:I, s:o*, s:o*, s:o*}", "worker",
        worker->options.name, "host", worker->options.host, "process",
        (int)worker->options.process, "platform", driver->platform, "simulated",
        driver->simulated, "peers", (json_int_t)stats.peer_count, "shelf",
        describe_store(&stats.shard_store), "work", describe_work(&stats),
        "devices", describe_devices(driver));
    *out_text = json != NULL ? json_dumps(json, JSON_COMPACT) : NULL;
    json_decref(json);
    if (*out_text == NULL)
        return TOW_ERROR(TOW_INTERNAL, "the status cannot be encoded as JSON");
    *out_size = strlen(*out_text);
    return TOW_OK;
}

/* -- Trace ----------------------------------------------------------------- */

/* The runs of a device, as a ring of its own beside that of the loop. */
static tow_status_t trace_device(tow_driver_t *driver, size_t device,
                                 tow_executed_t *events, size_t count,
                                 tow_trace_ring_t **out_ring)
{
    char name[48];
    snprintf(name, sizeof(name), "device %lld",
             (long long)driver->devices[device].id);
    TOW_RETURN_IF_ERROR(
        tow_trace_ring_create(name, count, NULL, NULL, out_ring));
    for (size_t i = 0; i < count; i++)
        tow_trace_ring_add(
            *out_ring,
            &(tow_trace_event_t){.time_ns = events[i].start_ns,
                                 .name = events[i].name,
                                 .duration_ns = (uint64_t)(events[i].end_ns -
                                                           events[i].start_ns),
                                 .kind = TOW_TRACE_ZONE});
    return TOW_OK;
}

/* The ring of the loop's thread, if it has one, and those of the devices, if
 * the driver has them. */
typedef struct tracks {
    size_t count;
    tow_trace_ring_t *rings[1 + TOW_WORKER_TRACKS_MAX]; /* the first is lent */
    tow_executed_t *events[TOW_WORKER_TRACKS_MAX];      /* owned */
    size_t event_count;                                 /* arrays of them */
} tracks_t;

static tow_status_t add_device(tracks_t *tracks, tow_driver_t *driver,
                               size_t device)
{
    tow_executed_t *events =
        tow_calloc(TOW_WORKER_EXECUTED_MAX, sizeof(*events));
    if (events == NULL) return tow_status_bare(TOW_RESOURCE_EXHAUSTED);
    tracks->events[tracks->event_count++] = events;
    const size_t count =
        tow_driver_executed(driver, device, events, TOW_WORKER_EXECUTED_MAX);
    if (count == 0) return TOW_OK;
    TOW_RETURN_IF_ERROR(trace_device(driver, device, events, count,
                                     &tracks->rings[tracks->count]));
    tracks->count++;
    return TOW_OK;
}

static void free_tracks(tracks_t *tracks, bool has_loop)
{
    for (size_t i = has_loop ? 1 : 0; i < tracks->count; i++)
        tow_trace_ring_destroy(tracks->rings[i]);
    for (size_t i = 0; i < tracks->event_count; i++)
        tow_free(tracks->events[i]);
    tow_free(tracks);
}

static tow_status_t write_tracks(tow_worker_t *worker, tow_trace_ring_t *loop,
                                 int64_t since_ns, FILE *out)
{
    tow_driver_t *driver = worker->options.driver;
    tracks_t *tracks = tow_calloc(1, sizeof(*tracks));
    if (tracks == NULL) return tow_status_bare(TOW_RESOURCE_EXHAUSTED);
    if (loop != NULL) tracks->rings[tracks->count++] = loop;
    tow_status_t status = TOW_OK;
    for (size_t i = 0; status == TOW_OK && i < driver->device_count &&
                       i < TOW_WORKER_TRACKS_MAX;
         i++)
        status = add_device(tracks, driver, i);
    if (status == TOW_OK)
        status = tow_trace_write_json(out, worker->options.name, tracks->rings,
                                      tracks->count, since_ns);
    free_tracks(tracks, loop != NULL);
    return status;
}

static tow_status_t write_trace(tow_worker_t *worker, uint64_t window_ns,
                                char **out_text, size_t *out_size)
{
    const int64_t since_ns =
        tow_trace_since(tow_env_now_ns(worker->env), window_ns);
    FILE *out = open_memstream(out_text, out_size);
    if (out == NULL) return tow_status_bare(TOW_RESOURCE_EXHAUSTED);
    tow_trace_ring_t *loop = tow_trace_attach(NULL);
    tow_status_t status = write_tracks(
        worker, worker->options.has_controller ? NULL : loop, since_ns, out);
    tow_trace_attach(loop);
    if (fclose(out) != 0 && status == TOW_OK)
        status = tow_status_bare(TOW_RESOURCE_EXHAUSTED);
    return status;
}

/* -- Waits ----------------------------------------------------------------- */

static void pack_waits(tow_worker_wait_t *waits, size_t count,
                       tow_msg_wait_t *messages, tow_msg_report_t *report)
{
    for (size_t i = 0; i < count; i++) {
        messages[i] = (tow_msg_wait_t)TOW_MSG_WAIT_INIT;
        messages[i].device = waits[i].device;
        messages[i].gang = waits[i].gang_id;
        messages[i].waited_ns = waits[i].waited_ns;
        messages[i].missing = waits[i].missing;
        messages[i].n_missing = waits[i].missing_count;
        report->waits[i] = &messages[i];
    }
    report->n_waits = count;
}

/* In the arena, beside the current message. */
static tow_status_t add_waits(tow_worker_t *worker, tow_msg_report_t *report)
{
    const tow_worker_hooks_t *hooks = &worker->options.hooks;
    if (hooks->waits == NULL) return TOW_OK;
    const size_t capacity = TOW_WORKER_DEVICES_MAX;
    tow_arena_t *arena = &worker->arena;
    tow_worker_wait_t *waits =
        tow_arena_alloc(arena, capacity * sizeof(*waits));
    tow_msg_wait_t *messages =
        tow_arena_alloc(arena, capacity * sizeof(*messages));
    report->waits = tow_arena_alloc(arena, capacity * sizeof(*report->waits));
    if (waits == NULL || messages == NULL || report->waits == NULL)
        return tow_status_bare(TOW_RESOURCE_EXHAUSTED);
    const size_t count = hooks->waits(hooks->context, waits, capacity);
    pack_waits(waits, count, messages, report);
    return TOW_OK;
}

/* -- Reports --------------------------------------------------------------- */

static tow_status_t write_report(tow_worker_t *worker,
                                 const tow_msg_report_get_t *message,
                                 tow_msg_report_t *report, char **out_text,
                                 size_t *out_size)
{
    switch (message->kind) {
    case TOW_REPORT_STATUS:
        TOW_RETURN_IF_ERROR(add_waits(worker, report));
        return write_status(worker, out_text, out_size);
    case TOW_REPORT_WAITS: return add_waits(worker, report);
    case TOW_REPORT_TRACE:
        return write_trace(worker, message->window_ns, out_text, out_size);
    default:
        return TOW_ERROR(TOW_UNIMPLEMENTED, "unknown kind of report %u",
                         message->kind);
    }
}

void worker_report(tow_worker_t *worker, const tow_msg_report_get_t *message)
{
    tow_msg_report_t report = TOW_MSG_REPORT_INIT;
    tow_msg_failure_t failure;
    char *text = NULL;
    size_t size = 0;
    report.request = message->request;
    tow_status_t status = write_report(worker, message, &report, &text, &size);
    if (text != NULL && status == TOW_OK) {
        const tow_session_blob_t blob = {
            .bytes = text, .size = size, .release = free, .context = text};
        report.blob = tow_session_send_blob(worker->session, &blob);
    } else if (status != TOW_OK) {
        failure = tow_failure_of(status);
        report.failure = &failure;
        free(text);
    }
    worker_send(worker, TOW_MESSAGE_REPORT, &report.base);
    tow_status_release(status);
}
