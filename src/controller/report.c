/* Reports on the cluster: the controller's own state, and what each worker
 * answers. A worker that disconnects in the meantime is left out; one that
 * does not answer in time is marked silent. */
#include "controller/controller_impl.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/assert.h"
#include "base/trace.h"
#include "controller/blob_impl.h"
#include "controller/trace_spans_impl.h"

/* A report that waits for its workers. */
struct tow_ctl_report {
    tow_controller_t *controller;
    tow_ctl_client_t *client;
    uint64_t request; /* the client's */
    uint64_t number;  /* ours, to the workers */
    tow_report_kind_t kind;
    uint64_t window_ns; /* of trace events */
    uint64_t run;       /* WAITS: key of the run */
    int64_t until_ns;   /* deadline; INT64_MAX: none */
    tow_list_t node;
    json_t *answers;            /* owned: {worker: its answer} */
    tow_ctl_wait_graph_t waits; /* of all workers */
    TOW_VEC(tow_ctl_worker_t *)
    waiting; /* borrowed; removed when they disconnect */
};

static void free_report(tow_ctl_report_t *report)
{
    tow_list_remove(&report->node);
    if (report->kind != TOW_REPORT_WAITS) report->client->report_count--;
    tow_vec_deinit(&report->waiting);
    tow_ctl_wait_graph_deinit(&report->waits);
    json_decref(report->answers);
    tow_free(report);
}

/* -- The controller's own state -------------------------------------------- */

static json_t *json_of_count(uint64_t count)
{
    return json_integer((json_int_t)count);
}

static json_t *describe_device(const tow_resource_device_t *device)
{
    json_t *json = json_object();
    json_object_set_new(json, "id", json_integer(device->id));
    json_object_set_new(json, "kind", json_string(device->kind));
    json_object_set_new(json, "name", json_string(device->name));
    json_object_set_new(json, "memory_bytes",
                        json_of_count(device->memory_bytes));
    json_object_set_new(json, "object_bytes",
                        json_of_count(device->account->object_bytes));
    json_object_set_new(json, "reserved_bytes",
                        json_of_count(device->account->reserved_bytes));
    json_object_set_new(json, "spilled_bytes",
                        json_of_count(device->account->spilled_bytes));
    json_object_set_new(json, "peak_bytes",
                        json_of_count(device->account->peak_bytes));
    json_object_set_new(
        json, "recent_peak_bytes",
        json_of_count(tow_account_take_recent_peak(device->account)));
    json_object_set_new(json, "pieces_under_way",
                        json_of_count(device->account->gang_count));
    json_object_set_new(json, "slices", json_of_count(device->slice_count));
    return json;
}

static void add_traffic(json_t *json, const tow_session_t *session)
{
    const tow_session_stats_t stats = tow_session_stats(session);
    json_object_set_new(json, "messages_sent",
                        json_of_count(stats.messages_sent));
    json_object_set_new(json, "messages_received",
                        json_of_count(stats.messages_received));
}

static json_t *describe_worker(const tow_ctl_worker_t *worker)
{
    const tow_resource_worker_t *entry = worker->entry;
    json_t *json = json_object();
    json_object_set_new(json, "name", json_string(entry->name));
    json_object_set_new(json, "host", json_string(entry->host));
    json_object_set_new(json, "island", json_string(entry->island->name));
    json_object_set_new(json, "place", json_of_count(entry->place));
    json_object_set_new(json, "process", json_of_count(entry->process));
    json_object_set_new(json, "platform", json_string(entry->platform));
    json_object_set_new(json, "version", json_string(entry->version));
    json_object_set_new(json, "simulated", json_boolean(entry->simulated));
    json_object_set_new(json, "spilled_bytes",
                        json_of_count(worker->memory->spilled_bytes));
    json_object_set_new(json, "spill_limit_bytes",
                        json_of_count(worker->memory->limit_bytes));
    add_traffic(json, worker->session);
    json_t *devices = json_array();
    for (size_t i = 0; i < entry->device_count; i++)
        json_array_append_new(devices, describe_device(&entry->devices[i]));
    json_object_set_new(json, "devices", devices);
    return json;
}

/* Sums over the devices of an island. Limits add up only if all devices have
 * one. */
static void describe_memory(const tow_controller_t *controller,
                            const tow_resource_island_t *island, json_t *json)
{
    uint64_t limit = 0, objects = 0, reserved = 0;
    bool is_limited = true;
    const size_t count = tow_resource_worker_count(controller->resource);
    for (size_t i = 0; i < count; i++) {
        const tow_resource_worker_t *worker =
            tow_resource_worker(controller->resource, i);
        for (size_t k = 0; worker->island == island && k < worker->device_count;
             k++) {
            const tow_resource_device_t *device = &worker->devices[k];
            is_limited &= device->memory_bytes > 0;
            limit += device->memory_bytes;
            objects += device->account->object_bytes;
            reserved += device->account->reserved_bytes;
        }
    }
    json_object_set_new(json, "memory_bytes",
                        json_of_count(is_limited ? limit : 0));
    json_object_set_new(json, "object_bytes", json_of_count(objects));
    json_object_set_new(json, "reserved_bytes", json_of_count(reserved));
}

static json_t *describe_island(const tow_controller_t *controller,
                               const tow_resource_island_t *island)
{
    tow_sched_island_stats_t stats =
        tow_sched_island_stats(controller->sched, island->number);
    json_t *json = json_object();
    json_object_set_new(json, "name", json_string(island->name));
    json_object_set_new(json, "workers", json_of_count(island->worker_count));
    json_object_set_new(json, "devices", json_of_count(island->device_count));
    json_object_set_new(json, "runs_queued", json_of_count(stats.queued_count));
    json_object_set_new(json, "runs_under_way",
                        json_of_count(stats.under_way_count));
    json_object_set_new(json, "runs_granted", json_of_count(stats.granted));
    json_object_set_new(json, "waiting_for_run_ahead",
                        json_of_count(stats.run_ahead_count));
    /* The number of the client whose run waits; the other runs of the island
     * wait behind it. */
    json_object_set_new(json, "waiting_for_memory",
                        stats.memory_waiting_client != 0
                            ? json_of_count(stats.memory_waiting_client)
                            : json_null());
    describe_memory(controller, island, json);
    return json;
}

static json_t *describe_islands(const tow_controller_t *controller)
{
    json_t *islands = json_array();
    for (uint32_t i = 0; i < TOW_ISLANDS_MAX; i++) {
        const tow_resource_island_t *island =
            tow_resource_island(controller->resource, i);
        if (island != NULL)
            json_array_append_new(islands, describe_island(controller, island));
    }
    return islands;
}

static json_t *describe_client(const tow_ctl_client_t *client,
                               const tow_ctl_wait_report_t *wait_report)
{
    tow_object_table_totals_t objects_of_client =
        tow_object_table_client_totals(client->controller->object_table,
                                       client->number);
    json_t *json = json_object();
    json_object_set_new(json, "number", json_of_count(client->number));
    json_object_set_new(json, "name", json_string(client->name));
    json_object_set_new(json, "slices",
                        json_of_count(tow_map_count(&client->slices)));
    json_object_set_new(json, "functions",
                        json_of_count(tow_map_count(&client->functions)));
    json_object_set_new(json, "programs",
                        json_of_count(tow_map_count(&client->programs)));
    json_object_set_new(json, "runs", json_of_count(client->run_count));
    json_object_set_new(json, "runs_ended",
                        json_of_count(client->ended_run_count));
    json_object_set_new(json, "device_ns", json_of_count(client->time.busy_ns));
    json_object_set_new(json, "wait_ns", json_of_count(client->time.wait_ns));
    json_object_set_new(json, "objects",
                        json_of_count(objects_of_client.object_count));
    json_object_set_new(json, "bytes",
                        json_of_count(objects_of_client.object_bytes));
    char stall[TOW_STALL_TEXT_MAX];
    json_object_set_new(json, "late",
                        tow_ctl_stall_describe(client, wait_report, stall)
                            ? json_string(stall)
                            : json_null());
    add_traffic(json, client->session);
    return json;
}

static json_t *describe_totals(const tow_controller_t *controller)
{
    tow_controller_totals_t totals = tow_controller_totals(controller);
    tow_sched_stats_t queue = tow_sched_stats(controller->sched);
    json_t *json = json_object();
    json_object_set_new(json, "workers", json_of_count(totals.worker_count));
    json_object_set_new(
        json, "devices",
        json_of_count(tow_resource_device_count(controller->resource)));
    json_object_set_new(json, "clients", json_of_count(totals.client_count));
    json_object_set_new(json, "slices", json_of_count(totals.slice_count));
    json_object_set_new(json, "programs", json_of_count(totals.program_count));
    json_object_set_new(json, "runs", json_of_count(totals.run_count));
    json_object_set_new(json, "runs_queued", json_of_count(queue.queued_count));
    json_object_set_new(json, "runs_granted", json_of_count(queue.granted));
    json_object_set_new(json, "grant_messages",
                        json_of_count(totals.grant_message_count));
    json_object_set_new(json, "grants_again",
                        json_of_count(totals.again_message_count));
    json_object_set_new(json, "device_ns", json_of_count(totals.device_ns));
    json_object_set_new(json, "wait_ns", json_of_count(totals.wait_ns));
    json_object_set_new(json, "objects", json_of_count(totals.object_count));
    json_object_set_new(json, "object_bytes",
                        json_of_count(totals.object_bytes));
    json_object_set_new(json, "reserved_bytes",
                        json_of_count(totals.reserved_bytes));
    json_object_set_new(json, "spilled_bytes",
                        json_of_count(totals.spilled_bytes));
    json_object_set_new(json, "spilled_count",
                        json_of_count(totals.spilled_count));
    json_object_set_new(json, "compiles",
                        json_of_count(controller->codes.compile_count));
    json_object_set_new(json, "code_bytes",
                        json_of_count(controller->codes.bytes));
    return json;
}

static json_t *describe_cluster(const tow_controller_t *controller,
                                const tow_ctl_wait_report_t *wait_report)
{
    json_t *json = json_object(), *workers = json_array(),
           *clients = json_array();
    char cluster[32];
    snprintf(cluster, sizeof(cluster), "%016llx",
             (unsigned long long)controller->cluster);
    for (const tow_list_t *item = controller->workers.list.next;
         item != &controller->workers.list; item = item->next)
        json_array_append_new(
            workers, describe_worker(
                         TOW_CONTAINER_OF(item, const tow_ctl_worker_t, node)));
    for (const tow_list_t *item = controller->clients.list.next;
         item != &controller->clients.list; item = item->next)
        json_array_append_new(
            clients, describe_client(
                         TOW_CONTAINER_OF(item, const tow_ctl_client_t, node),
                         wait_report));
    json_object_set_new(json, "cluster", json_string(cluster));
    json_object_set_new(json, "totals", describe_totals(controller));
    json_object_set_new(json, "islands", describe_islands(controller));
    json_object_set_new(json, "workers", workers);
    json_object_set_new(json, "clients", clients);
    return json;
}

/* -- Answers to clients ---------------------------------------------------- */

static void free_text(void *context)
{
    free(context);
}

/* Puts each worker's answer in its entry. */
static void merge_answers(json_t *cluster, json_t *answers)
{
    size_t index;
    json_t *worker;
    json_array_foreach(json_object_get(cluster, "workers"), index, worker)
    {
        const char *name = json_string_value(json_object_get(worker, "name"));
        json_t *answer = json_object_get(answers, name);
        if (answer != NULL) json_object_set(worker, "report", answer);
    }
}

/* "Sets "silent" for those that have not answered. */
static void mark_silent(json_t *cluster, const tow_ctl_wait_report_t *json)
{
    size_t index;
    json_t *worker;
    for (size_t i = 0; i < json->silent_count; i++)
        json_array_foreach(json_object_get(cluster, "workers"), index, worker)
        {
            const char *name =
                json_string_value(json_object_get(worker, "name"));
            if (strcmp(name, json->silent[i]->name) == 0)
                json_object_set_new(worker, "silent", json_true());
        }
}

/* The trace ring of this thread; nothing if it has none. */
static json_t *own_trace(const tow_controller_t *controller, uint64_t window_ns)
{
    const int64_t since_ns =
        tow_trace_since(tow_env_now_ns(controller->env), window_ns);
    char *text = NULL;
    size_t size = 0;
    FILE *out = open_memstream(&text, &size);
    if (out == NULL) return NULL;
    tow_trace_ring_t *ring = tow_trace_attach(NULL);
    /* Not the env's name, which may be that of a worker in the same process. */
    tow_status_t status = tow_trace_write_json(out, "controller", &ring,
                                               ring != NULL ? 1 : 0, since_ns);
    tow_trace_attach(ring);
    fclose(out);
    json_t *trace = status == TOW_OK ? json_loadb(text, size, 0, NULL) : NULL;
    tow_status_ignore(status, "the others' traces are worth having alone");
    free(text);
    return trace;
}

/* Shifts events to the controller's clock and renumbers their process, because
 * process ids are unique on one host only. */
static void adopt_events(json_t *trace, json_int_t process, int64_t shift_ns)
{
    size_t index;
    json_t *event;
    json_array_foreach(json_object_get(trace, "traceEvents"), index, event)
    {
        json_t *time = json_object_get(event, "ts");
        json_object_set_new(event, "pid", json_integer(process));
        if (time != NULL && shift_ns != 0)
            json_object_set_new(
                event, "ts",
                json_real(json_number_value(time) + (double)shift_ns * 1e-3));
    }
}

/* 0 if the worker's clock may be the same, as on one host. */
static int64_t clock_shift_ns(const tow_ctl_worker_t *worker)
{
    int64_t offset_ns, error_ns;
    if (worker->session == NULL ||
        !tow_session_clock_offset(worker->session, &offset_ns, &error_ns))
        return 0;
    return llabs(offset_ns) <= error_ns ? 0 : offset_ns;
}

#define CONTROLLER_TRACE \
    1 /* workers: their process number, plus 1 more than this */

/* Trace events of all processes in one list, as Perfetto reads it. */
static json_t *merge_traces(const tow_ctl_report_t *report)
{
    json_t *events = json_array(), *trace;
    json_t *own = own_trace(report->controller, report->window_ns);
    adopt_events(own, CONTROLLER_TRACE, 0);
    json_array_extend(events, json_object_get(own, "traceEvents"));
    json_decref(own);
    const char *name;
    json_object_foreach(report->answers, name, trace)
    {
        json_array_extend(events, json_object_get(trace, "traceEvents"));
    }
    json_t *json = json_object();
    json_object_set_new(json, "displayTimeUnit", json_string("ns"));
    json_object_set_new(json, "traceEvents", events);
    return json;
}

static void answer_failure(tow_ctl_client_t *client, uint64_t request,
                           tow_status_t take_status)
{
    tow_msg_report_t report = TOW_MSG_REPORT_INIT;
    tow_msg_failure_t failure = tow_failure_of(take_status);
    report.request = request;
    report.failure = &failure;
    tow_ctl_client_send(client, TOW_MESSAGE_REPORT, &report.base);
    tow_status_release(take_status);
}

/* Releases the blob's bytes even if the client has disconnected. */
static void answer_blob(tow_ctl_client_t *client, uint64_t request,
                        const tow_session_blob_t *blob)
{
    if (client->session == NULL) {
        blob->release(blob->context);
        return;
    }
    tow_msg_report_t report = TOW_MSG_REPORT_INIT;
    report.request = request;
    report.blob = tow_session_send_blob(client->session, blob);
    tow_ctl_client_send(client, TOW_MESSAGE_REPORT, &report.base);
}

/* Takes a text from malloc; NULL: no memory. */
static void answer_text(tow_ctl_client_t *client, uint64_t request,
                        char *take_text)
{
    if (take_text == NULL)
        answer_failure(
            client, request,
            TOW_ERROR(TOW_RESOURCE_EXHAUSTED, "no memory for the report"));
    else
        answer_blob(client, request,
                    &(tow_session_blob_t){.bytes = take_text,
                                          .size = strlen(take_text),
                                          .release = free_text,
                                          .context = take_text});
}

static bool is_of_traces(const tow_ctl_report_t *report)
{
    return report->kind == TOW_REPORT_TRACE || report->kind == TOW_REPORT_SPANS;
}

static tow_ctl_wait_report_t wait_report_of(tow_ctl_report_t *report)
{
    return (tow_ctl_wait_report_t){.waits = &report->waits,
                                   .silent = report->waiting.items,
                                   .silent_count = report->waiting.count};
}

static json_t *merge_status(tow_ctl_report_t *report)
{
    const tow_ctl_wait_report_t wait_report = wait_report_of(report);
    json_t *json = describe_cluster(report->controller, &wait_report);
    merge_answers(json, report->answers);
    mark_silent(json, &wait_report);
    return json;
}

static void answer_client(tow_ctl_report_t *report)
{
    json_t *json =
        is_of_traces(report) ? merge_traces(report) : merge_status(report);
    char *text =
        report->kind == TOW_REPORT_SPANS
            ? tow_ctl_trace_spans_write(json_object_get(json, "traceEvents"))
            : json_dumps(json, JSON_COMPACT | JSON_SORT_KEYS);
    json_decref(json);
    answer_text(report->client, report->request, text);
}

static void answer(tow_ctl_report_t *report)
{
    const tow_ctl_wait_report_t json = wait_report_of(report);
    if (report->kind == TOW_REPORT_WAITS)
        tow_ctl_stall_notify(report->client, report->run, &json);
    else
        answer_client(report);
    free_report(report);
}

/* -- Reports without workers ----------------------------------------------- */

static void write_memory(FILE *out, const tow_resource_worker_t *worker)
{
    for (size_t i = 0; i < worker->device_count; i++) {
        const tow_resource_device_t *device = &worker->devices[i];
        const tow_account_t *account = device->account;
        fprintf(out, "%lld %llu %llu %llu %llu\n", (long long)device->id,
                (unsigned long long)device->memory_bytes,
                (unsigned long long)account->object_bytes,
                (unsigned long long)account->reserved_bytes,
                (unsigned long long)account->peak_bytes);
    }
}

static void send_memory(tow_ctl_client_t *client, uint64_t request)
{
    const tow_resource_t *resource = client->controller->resource;
    char *text = NULL;
    size_t size = 0;
    FILE *out = open_memstream(&text, &size);
    for (size_t i = 0; out != NULL && i < tow_resource_worker_count(resource);
         i++)
        write_memory(out, tow_resource_worker(resource, i));
    if (out != NULL && fclose(out) != 0) {
        free(text);
        text = NULL;
    }
    answer_text(client, request, text);
}

static void release_code(void *context)
{
    tow_ctl_code_release(context);
}

static void send_code(tow_ctl_client_t *client,
                      const tow_msg_report_get_t *message)
{
    const tow_ctl_function_t *function =
        tow_map_find(&client->functions, message->function);
    tow_ctl_code_t *code = function != NULL ? function->code : NULL;
    if (code == NULL || code->state != CODE_READY) {
        answer_failure(client, message->request,
                       TOW_ERROR(TOW_NOT_FOUND,
                                 "there is no compiled function %llu",
                                 (unsigned long long)message->function));
        return;
    }
    tow_ctl_code_retain(code);
    answer_blob(client, message->request,
                &(tow_session_blob_t){.bytes = code->compiled->bytes,
                                      .size = code->compiled->size,
                                      .release = release_code,
                                      .context = code});
}

static void settle(tow_ctl_report_t *report)
{
    if (report->waiting.count == 0) answer(report);
}

/* -- Requests to workers --------------------------------------------------- */

static bool choose_all(tow_ctl_report_t *report)
{
    tow_controller_t *controller = report->controller;
    for (tow_list_t *item = controller->workers.list.next;
         item != &controller->workers.list; item = item->next)
        if (!tow_vec_push(&report->waiting,
                          TOW_CONTAINER_OF(item, tow_ctl_worker_t, node)))
            return false;
    return true;
}

static void ask_workers(tow_ctl_report_t *report)
{
    tow_msg_report_get_t ask = TOW_MSG_REPORT_GET_INIT;
    ask.request = report->number;
    ask.kind = is_of_traces(report) ? TOW_REPORT_TRACE : report->kind;
    ask.window_ns = report->window_ns;
    for (size_t i = 0; i < report->waiting.count; i++)
        tow_ctl_worker_send(report->waiting.items[i], TOW_MESSAGE_REPORT_GET,
                            &ask.base);
}

/* Starts the timer for the earliest deadline. There are few reports. */
static void watch_timeout(tow_controller_t *controller)
{
    int64_t until_ns = INT64_MAX;
    if (tow_timer_is_armed(&controller->reports.timer)) return;
    for (const tow_list_t *item = controller->reports.list.next;
         item != &controller->reports.list; item = item->next) {
        const tow_ctl_report_t *report =
            TOW_CONTAINER_OF(item, const tow_ctl_report_t, node);
        if (report->until_ns < until_ns) until_ns = report->until_ns;
    }
    if (until_ns != INT64_MAX)
        tow_env_timer_start(controller->env, &controller->reports.timer,
                            until_ns);
}

void tow_ctl_reports_on_timeout(tow_timer_t *timer)
{
    tow_controller_t *controller =
        TOW_CONTAINER_OF(timer, tow_controller_t, reports.timer);
    const int64_t now_ns = tow_env_now_ns(controller->env);
    tow_list_t *item = controller->reports.list.next;
    while (item != &controller->reports.list) {
        tow_ctl_report_t *report =
            TOW_CONTAINER_OF(item, tow_ctl_report_t, node);
        item = item->next;
        if (report->until_ns <= now_ns) answer(report);
    }
    watch_timeout(controller);
    tow_controller_touch(controller);
}

static tow_status_t check_report(const tow_ctl_client_t *client,
                                 const tow_msg_report_get_t *message)
{
    if (message->kind < TOW_REPORT_STATUS || message->kind > TOW_REPORT_SPANS)
        return TOW_ERROR(TOW_INVALID_ARGUMENT,
                         "client %s requests a report of unknown kind %u",
                         client->name, message->kind);
    if (client->report_count >= TOW_CLIENT_REPORTS_MAX)
        return TOW_ERROR(TOW_RESOURCE_EXHAUSTED,
                         "client %s waits for %u reports, the limit",
                         client->name, TOW_CLIENT_REPORTS_MAX);
    return TOW_OK;
}

/* Without workers yet; NULL: no memory. */
static tow_ctl_report_t *make_report(tow_ctl_client_t *client,
                                     tow_report_kind_t kind)
{
    tow_controller_t *controller = client->controller;
    tow_ctl_report_t *report = tow_calloc(1, sizeof(*report));
    if (report == NULL) return NULL;
    *report = (tow_ctl_report_t){.controller = controller,
                                 .client = client,
                                 .number = ++controller->request_number,
                                 .kind = kind,
                                 .until_ns = INT64_MAX,
                                 .answers = json_object()};
    if (!is_of_traces(report))
        report->until_ns =
            tow_env_now_ns(controller->env) + TOW_REPORT_TIMEOUT_NS;
    tow_list_append(&controller->reports.list, &report->node);
    if (kind != TOW_REPORT_WAITS) client->report_count++;
    return report;
}

static void begin_report(tow_ctl_report_t *report)
{
    tow_controller_t *controller = report->controller;
    ask_workers(report);
    settle(report);
    watch_timeout(controller);
}

static void gather_from_workers(tow_ctl_client_t *client,
                                const tow_msg_report_get_t *message)
{
    tow_ctl_report_t *report =
        make_report(client, (tow_report_kind_t)message->kind);
    if (report == NULL || !choose_all(report)) {
        if (report != NULL) free_report(report);
        tow_ctl_client_fault(client, tow_status_bare(TOW_RESOURCE_EXHAUSTED));
        return;
    }
    report->request = message->request;
    report->window_ns = message->window_ns;
    begin_report(report);
}

/* If there is no memory the client is not notified; the watchdog tries again
 * in a second. */
void tow_ctl_report_query_waits(tow_ctl_client_t *client,
                                const tow_ctl_run_t *run)
{
    const tow_ctl_program_t *program = run->program;
    tow_ctl_report_t *report = make_report(client, TOW_REPORT_WAITS);
    if (report == NULL) return;
    report->run = run->key;
    for (size_t i = 0; i < program->worker_count &&
                       report->waiting.count < TOW_STALL_WORKERS_MAX;
         i++)
        if (!run->has_reported[i] && program->workers[i]->session != NULL &&
            !tow_vec_push(&report->waiting, program->workers[i]))
            break;
    begin_report(report);
}

void tow_ctl_report_begin(tow_ctl_client_t *client,
                          const tow_msg_report_get_t *message)
{
    tow_status_t status = check_report(client, message);
    if (status != TOW_OK)
        tow_ctl_client_fault(client, status);
    else if (message->kind == TOW_REPORT_MEMORY)
        send_memory(client, message->request);
    else if (message->kind == TOW_REPORT_CODE)
        send_code(client, message);
    else
        gather_from_workers(client, message);
}

static void remove_waiting(tow_ctl_report_t *report,
                           const tow_ctl_worker_t *worker)
{
    for (size_t i = 0; i < report->waiting.count; i++)
        if (report->waiting.items[i] == worker) {
            tow_vec_swap_remove(&report->waiting, i);
            return;
        }
}

/* The worker's answer, or NULL. */
static json_t *read_answer(tow_ctl_worker_t *worker, uint64_t number)
{
    tow_ctl_blob_t *blob = tow_map_remove(&worker->blobs, number);
    json_t *json =
        blob != NULL ? json_loadb(blob->bytes, blob->size, 0, NULL) : NULL;
    tow_ctl_blob_free(blob);
    return json;
}

void tow_ctl_report_answer(tow_ctl_worker_t *worker,
                           const tow_msg_report_t *message)
{
    tow_controller_t *controller = worker->controller;
    json_t *json = read_answer(worker, message->blob);
    for (tow_list_t *item = controller->reports.list.next;
         item != &controller->reports.list; item = item->next) {
        tow_ctl_report_t *report =
            TOW_CONTAINER_OF(item, tow_ctl_report_t, node);
        if (report->number != message->request) continue;
        if (is_of_traces(report))
            adopt_events(json, CONTROLLER_TRACE + 1 + worker->process,
                         clock_shift_ns(worker));
        if (json != NULL) json_object_set(report->answers, worker->name, json);
        tow_ctl_wait_graph_add(&report->waits, message);
        remove_waiting(report, worker);
        settle(report);
        break;
    }
    json_decref(json);
}

void tow_ctl_reports_on_disconnect(tow_controller_t *controller,
                                   tow_ctl_worker_t *worker,
                                   tow_ctl_client_t *client)
{
    tow_list_t *item = controller->reports.list.next;
    while (item != &controller->reports.list) {
        tow_ctl_report_t *report =
            TOW_CONTAINER_OF(item, tow_ctl_report_t, node);
        item = item->next;
        if (client != NULL && report->client == client) {
            free_report(report);
        } else if (worker != NULL) {
            remove_waiting(report, worker);
            settle(report);
        }
    }
}

void tow_ctl_reports_check(const tow_controller_t *controller)
{
    for (const tow_list_t *item = controller->reports.list.next;
         item != &controller->reports.list; item = item->next) {
        const tow_ctl_report_t *report =
            TOW_CONTAINER_OF(item, const tow_ctl_report_t, node);
        TOW_ASSERT(report->client != NULL && report->answers != NULL);
        TOW_ASSERT(report->waiting.count > 0); /* Else it was answered. */
        TOW_ASSERT(report->until_ns == INT64_MAX ||
                   tow_timer_is_armed(&controller->reports.timer));
    }
}

void tow_ctl_reports_destroy(tow_controller_t *controller)
{
    while (!tow_list_is_empty(&controller->reports.list))
        free_report(TOW_CONTAINER_OF(controller->reports.list.next,
                                     tow_ctl_report_t, node));
}
