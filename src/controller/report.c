/* What the cluster says of itself: the controller's own books, and what each
 * worker answers. A worker that goes meanwhile is left out, and one that does not
 * answer is told of as such. */
#include "controller/controller_impl.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/assert.h"
#include "base/trace.h"
#include "controller/spans_impl.h"

/* A report that waits for its workers. */
struct gather {
    tow_controller_t *controller;
    client_t *client;
    uint64_t request; /* the client's */
    uint64_t number;  /* ours, to the workers */
    tow_report_kind_t kind;
    uint64_t window_ns; /* of trace events */
    uint64_t run;       /* of WAITS, which we ask for ourselves: its key */
    int64_t until_ns;   /* ... we wait; INT64_MAX: for as long as it takes */
    tow_list_t node;
    json_t *answers;             /* owned: {worker: what it says} */
    waits_t waits;               /* of all workers */
    TOW_VEC(worker_t *) waiting; /* lent; removed when they go */
};

static void free_gather(gather_t *gather)
{
    tow_list_remove(&gather->node);
    if (gather->kind != TOW_REPORT_WAITS) gather->client->gather_count--;
    tow_vec_deinit(&gather->waiting);
    tow_waits_deinit(&gather->waits);
    json_decref(gather->answers);
    tow_free(gather);
}

/* -- The controller's part ----------------------------------------------------- */

static json_t *json_of_count(uint64_t count)
{
    return json_integer((json_int_t)count);
}

static json_t *describe_device(const tow_device_entry_t *device)
{
    json_t *told = json_object();
    json_object_set_new(told, "id", json_integer(device->id));
    json_object_set_new(told, "kind", json_string(device->kind));
    json_object_set_new(told, "name", json_string(device->name));
    json_object_set_new(told, "memory_bytes",
                        json_of_count(device->memory_bytes));
    json_object_set_new(told, "object_bytes",
                        json_of_count(device->account->object_bytes));
    json_object_set_new(told, "reserved_bytes",
                        json_of_count(device->account->reserved_bytes));
    json_object_set_new(told, "spilled_bytes",
                        json_of_count(device->account->spilled_bytes));
    json_object_set_new(told, "peak_bytes",
                        json_of_count(device->account->peak_bytes));
    json_object_set_new(told, "steps_under_way",
                        json_of_count(device->account->step_count));
    json_object_set_new(told, "slices", json_of_count(device->slice_count));
    return told;
}

static void add_traffic(json_t *told, const tow_session_t *session)
{
    const tow_session_stats_t stats = tow_session_stats(session);
    json_object_set_new(told, "messages_sent",
                        json_of_count(stats.messages_sent));
    json_object_set_new(told, "messages_received",
                        json_of_count(stats.messages_received));
}

static json_t *describe_worker(const worker_t *worker)
{
    const tow_worker_entry_t *entry = worker->entry;
    json_t *told = json_object();
    json_object_set_new(told, "name", json_string(entry->name));
    json_object_set_new(told, "host", json_string(entry->host));
    json_object_set_new(told, "island", json_string(entry->island->name));
    json_object_set_new(told, "place", json_of_count(entry->place));
    json_object_set_new(told, "process", json_of_count(entry->process));
    json_object_set_new(told, "platform", json_string(entry->platform));
    json_object_set_new(told, "version", json_string(entry->version));
    json_object_set_new(told, "simulated", json_boolean(entry->simulated));
    json_object_set_new(told, "spilled_bytes",
                        json_of_count(worker->memory->spilled_bytes));
    json_object_set_new(told, "spill_limit_bytes",
                        json_of_count(worker->memory->limit_bytes));
    add_traffic(told, worker->session);
    json_t *devices = json_array();
    for (size_t i = 0; i < entry->device_count; i++)
        json_array_append_new(devices, describe_device(&entry->devices[i]));
    json_object_set_new(told, "devices", devices);
    return told;
}

/* Of all devices of an island. Limits add up only where all have one. */
static void describe_memory(const tow_controller_t *controller,
                            const tow_island_entry_t *island, json_t *told)
{
    uint64_t limit = 0, objects = 0, reserved = 0;
    bool is_limited = true;
    const size_t count = tow_resource_worker_count(controller->resource);
    for (size_t i = 0; i < count; i++) {
        const tow_worker_entry_t *worker =
            tow_resource_worker(controller->resource, i);
        for (size_t k = 0; worker->island == island && k < worker->device_count;
             k++) {
            const tow_device_entry_t *device = &worker->devices[k];
            is_limited &= device->memory_bytes > 0;
            limit += device->memory_bytes;
            objects += device->account->object_bytes;
            reserved += device->account->reserved_bytes;
        }
    }
    json_object_set_new(told, "memory_bytes",
                        json_of_count(is_limited ? limit : 0));
    json_object_set_new(told, "object_bytes", json_of_count(objects));
    json_object_set_new(told, "reserved_bytes", json_of_count(reserved));
}

static json_t *describe_island(const tow_controller_t *controller,
                               const tow_island_entry_t *island)
{
    tow_island_stats_t stats =
        tow_sched_island_stats(controller->sched, island->number);
    json_t *told = json_object();
    json_object_set_new(told, "name", json_string(island->name));
    json_object_set_new(told, "workers", json_of_count(island->worker_count));
    json_object_set_new(told, "devices", json_of_count(island->device_count));
    json_object_set_new(told, "runs_queued", json_of_count(stats.queued_count));
    json_object_set_new(told, "runs_under_way",
                        json_of_count(stats.under_way_count));
    json_object_set_new(told, "runs_granted", json_of_count(stats.granted));
    json_object_set_new(told, "waiting_for_run_ahead",
                        json_of_count(stats.run_ahead_count));
    /* The number of the client whose run it is; everybody waits for that. */
    json_object_set_new(told, "waiting_for_memory",
                        stats.short_client != 0
                            ? json_of_count(stats.short_client)
                            : json_null());
    describe_memory(controller, island, told);
    return told;
}

static json_t *describe_islands(const tow_controller_t *controller)
{
    json_t *islands = json_array();
    for (uint32_t i = 0; i < TOW_ISLANDS_MAX; i++) {
        const tow_island_entry_t *island =
            tow_resource_island(controller->resource, i);
        if (island != NULL)
            json_array_append_new(islands, describe_island(controller, island));
    }
    return islands;
}

static json_t *describe_client(const client_t *client, const told_t *told_of)
{
    tow_ledger_totals_t books =
        tow_ledger_client_totals(client->controller->ledger, client->number);
    json_t *told = json_object();
    json_object_set_new(told, "number", json_of_count(client->number));
    json_object_set_new(told, "name", json_string(client->name));
    json_object_set_new(told, "slices",
                        json_of_count(tow_map_count(&client->slices)));
    json_object_set_new(told, "functions",
                        json_of_count(tow_map_count(&client->functions)));
    json_object_set_new(told, "programs",
                        json_of_count(tow_map_count(&client->programs)));
    json_object_set_new(told, "runs", json_of_count(client->run_count));
    json_object_set_new(told, "objects", json_of_count(books.object_count));
    json_object_set_new(told, "bytes", json_of_count(books.object_bytes));
    char late[TOW_LATE_TEXT_MAX];
    json_object_set_new(told, "late",
                        tow_late_text(client, told_of, late) ? json_string(late)
                                                             : json_null());
    add_traffic(told, client->session);
    return told;
}

static json_t *describe_totals(const tow_controller_t *controller)
{
    tow_controller_totals_t totals = tow_controller_totals(controller);
    tow_sched_stats_t queue = tow_sched_stats(controller->sched);
    json_t *told = json_object();
    json_object_set_new(told, "workers", json_of_count(totals.worker_count));
    json_object_set_new(
        told, "devices",
        json_of_count(tow_resource_device_count(controller->resource)));
    json_object_set_new(told, "clients", json_of_count(totals.client_count));
    json_object_set_new(told, "slices", json_of_count(totals.slice_count));
    json_object_set_new(told, "programs", json_of_count(totals.program_count));
    json_object_set_new(told, "runs", json_of_count(totals.run_count));
    json_object_set_new(told, "runs_queued", json_of_count(queue.queued_count));
    json_object_set_new(told, "runs_granted", json_of_count(queue.granted));
    json_object_set_new(told, "grant_messages",
                        json_of_count(totals.grant_message_count));
    json_object_set_new(told, "grants_again",
                        json_of_count(totals.again_message_count));
    json_object_set_new(told, "objects", json_of_count(totals.object_count));
    json_object_set_new(told, "object_bytes",
                        json_of_count(totals.object_bytes));
    json_object_set_new(told, "reserved_bytes",
                        json_of_count(totals.reserved_bytes));
    json_object_set_new(told, "spilled_bytes",
                        json_of_count(totals.spilled_bytes));
    json_object_set_new(told, "spilled_count",
                        json_of_count(totals.spilled_count));
    json_object_set_new(told, "compiles",
                        json_of_count(controller->compile_count));
    json_object_set_new(told, "code_bytes",
                        json_of_count(controller->code_bytes));
    return told;
}

static json_t *describe_cluster(const tow_controller_t *controller,
                                const told_t *told_of)
{
    json_t *told = json_object(), *workers = json_array(),
           *clients = json_array();
    char cluster[32];
    snprintf(cluster, sizeof(cluster), "%016llx",
             (unsigned long long)controller->cluster);
    for (const tow_list_t *item = controller->workers.next;
         item != &controller->workers; item = item->next)
        json_array_append_new(workers, describe_worker(TOW_CONTAINER_OF(
                                           item, const worker_t, node)));
    for (const tow_list_t *item = controller->clients.next;
         item != &controller->clients; item = item->next)
        json_array_append_new(
            clients,
            describe_client(TOW_CONTAINER_OF(item, const client_t, node),
                            told_of));
    json_object_set_new(told, "cluster", json_string(cluster));
    json_object_set_new(told, "totals", describe_totals(controller));
    json_object_set_new(told, "islands", describe_islands(controller));
    json_object_set_new(told, "workers", workers);
    json_object_set_new(told, "clients", clients);
    return told;
}

/* -- Answering ----------------------------------------------------------------- */

static void free_text(void *context)
{
    free(context);
}

/* What a worker said goes into its entry. */
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

/* "silent" is true of those that have not answered. */
static void mark_silent(json_t *cluster, const told_t *told)
{
    size_t index;
    json_t *worker;
    for (size_t i = 0; i < told->silent_count; i++)
        json_array_foreach(json_object_get(cluster, "workers"), index, worker)
        {
            const char *name =
                json_string_value(json_object_get(worker, "name"));
            if (strcmp(name, told->silent[i]->name) == 0)
                json_object_set_new(worker, "silent", json_true());
        }
}

/* What the thread that turns us has in its ring; nothing if it has none. */
static json_t *own_trace(const tow_controller_t *controller, uint64_t window_ns)
{
    const int64_t since_ns =
        tow_trace_since(tow_env_now_ns(controller->env), window_ns);
    char *text = NULL;
    size_t size = 0;
    FILE *out = open_memstream(&text, &size);
    if (out == NULL) return NULL;
    tow_trace_ring_t *ring = tow_trace_attach(NULL);
    /* Not the env's name: that may be of a worker in the same process. */
    tow_status_t status = tow_trace_write_json(out, "controller", &ring,
                                               ring != NULL ? 1 : 0, since_ns);
    tow_trace_attach(ring);
    fclose(out);
    json_t *trace = status == TOW_OK ? json_loadb(text, size, 0, NULL) : NULL;
    tow_status_ignore(status, "the others' traces are worth having alone");
    free(text);
    return trace;
}

/* Moves events to our clock, and under a number of their own: numbers of
 * processes are unique on one host only. */
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

/* 0 for a worker whose clock may well be ours: on one host it is. */
static int64_t clock_shift_ns(const worker_t *worker)
{
    int64_t offset_ns, error_ns;
    if (worker->session == NULL ||
        !tow_session_clock_offset(worker->session, &offset_ns, &error_ns))
        return 0;
    return llabs(offset_ns) <= error_ns ? 0 : offset_ns;
}

#define CONTROLLER_TRACE 1 /* workers are their process number and above it */

/* Trace events of all processes in one list, as Perfetto reads it. */
static json_t *merge_traces(const gather_t *gather)
{
    json_t *events = json_array(), *trace;
    json_t *own = own_trace(gather->controller, gather->window_ns);
    adopt_events(own, CONTROLLER_TRACE, 0);
    json_array_extend(events, json_object_get(own, "traceEvents"));
    json_decref(own);
    const char *name;
    json_object_foreach(gather->answers, name, trace)
    {
        json_array_extend(events, json_object_get(trace, "traceEvents"));
    }
    json_t *told = json_object();
    json_object_set_new(told, "displayTimeUnit", json_string("ns"));
    json_object_set_new(told, "traceEvents", events);
    return told;
}

static void answer_failure(client_t *client, uint64_t request,
                           tow_status_t take_status)
{
    tow_msg_report_t report = TOW_MSG_REPORT_INIT;
    tow_msg_failure_t failure = tow_failure_of(take_status);
    report.request = request;
    report.failure = &failure;
    tow_tell_client(client, TOW_MESSAGE_REPORT, &report.base);
    tow_status_release(take_status);
}

/* The blob gives back its bytes, also if there is nobody to send them to. */
static void answer_blob(client_t *client, uint64_t request,
                        const tow_session_blob_t *blob)
{
    if (client->session == NULL) {
        blob->release(blob->context);
        return;
    }
    tow_msg_report_t report = TOW_MSG_REPORT_INIT;
    report.request = request;
    report.blob = tow_session_send_blob(client->session, blob);
    tow_tell_client(client, TOW_MESSAGE_REPORT, &report.base);
}

/* Takes a text of malloc's; NULL: no memory. */
static void answer_text(client_t *client, uint64_t request, char *take_text)
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

static bool is_of_traces(const gather_t *gather)
{
    return gather->kind == TOW_REPORT_TRACE || gather->kind == TOW_REPORT_SPANS;
}

static told_t told_by(gather_t *gather)
{
    return (told_t){.waits = &gather->waits,
                    .silent = gather->waiting.items,
                    .silent_count = gather->waiting.count};
}

static json_t *merge_status(gather_t *gather)
{
    const told_t told_of = told_by(gather);
    json_t *told = describe_cluster(gather->controller, &told_of);
    merge_answers(told, gather->answers);
    mark_silent(told, &told_of);
    return told;
}

static void answer_client(gather_t *gather)
{
    json_t *told =
        is_of_traces(gather) ? merge_traces(gather) : merge_status(gather);
    char *text = gather->kind == TOW_REPORT_SPANS
                     ? tow_spans_write(json_object_get(told, "traceEvents"))
                     : json_dumps(told, JSON_COMPACT | JSON_SORT_KEYS);
    json_decref(told);
    answer_text(gather->client, gather->request, text);
}

static void answer(gather_t *gather)
{
    const told_t told = told_by(gather);
    if (gather->kind == TOW_REPORT_WAITS)
        tow_late_tell(gather->client, gather->run, &told);
    else
        answer_client(gather);
    free_gather(gather);
}

/* -- What no worker is asked for ------------------------------------------------- */

static void write_memory(FILE *out, const tow_worker_entry_t *worker)
{
    for (size_t i = 0; i < worker->device_count; i++) {
        const tow_device_entry_t *device = &worker->devices[i];
        const tow_account_t *account = device->account;
        fprintf(out, "%lld %llu %llu %llu %llu\n", (long long)device->id,
                (unsigned long long)device->memory_bytes,
                (unsigned long long)account->object_bytes,
                (unsigned long long)account->reserved_bytes,
                (unsigned long long)account->peak_bytes);
    }
}

static void tell_memory(client_t *client, uint64_t request)
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
    tow_code_release(context);
}

static void tell_code(client_t *client, const tow_msg_report_get_t *message)
{
    const function_t *function =
        tow_map_find(&client->functions, message->function);
    code_t *code = function != NULL ? function->code : NULL;
    if (code == NULL || code->state != CODE_READY) {
        answer_failure(client, message->request,
                       TOW_ERROR(TOW_NOT_FOUND,
                                 "there is no compiled function %llu",
                                 (unsigned long long)message->function));
        return;
    }
    tow_code_retain(code);
    answer_blob(client, message->request,
                &(tow_session_blob_t){.bytes = code->compiled->bytes,
                                      .size = code->compiled->size,
                                      .release = release_code,
                                      .context = code});
}

static void settle(gather_t *gather)
{
    if (gather->waiting.count == 0) answer(gather);
}

/* -- Asking -------------------------------------------------------------------- */

static bool choose_all(gather_t *gather)
{
    tow_controller_t *controller = gather->controller;
    for (tow_list_t *item = controller->workers.next;
         item != &controller->workers; item = item->next)
        if (!tow_vec_push(&gather->waiting,
                          TOW_CONTAINER_OF(item, worker_t, node)))
            return false;
    return true;
}

static void ask_workers(gather_t *gather)
{
    tow_msg_report_get_t ask = TOW_MSG_REPORT_GET_INIT;
    ask.request = gather->number;
    ask.kind = is_of_traces(gather) ? TOW_REPORT_TRACE : gather->kind;
    ask.window_ns = gather->window_ns;
    for (size_t i = 0; i < gather->waiting.count; i++)
        tow_worker_send(gather->waiting.items[i], TOW_MESSAGE_REPORT_GET,
                        &ask.base);
}

/* Looks again at the next of those that will not be waited for. Gathers are few,
 * and those of traces fewer. */
static void watch_patience(tow_controller_t *controller)
{
    int64_t until_ns = INT64_MAX;
    if (tow_timer_is_armed(&controller->patience_timer)) return;
    for (const tow_list_t *item = controller->gathers.next;
         item != &controller->gathers; item = item->next) {
        const gather_t *gather = TOW_CONTAINER_OF(item, const gather_t, node);
        if (gather->until_ns < until_ns) until_ns = gather->until_ns;
    }
    if (until_ns != INT64_MAX)
        tow_env_timer_start(controller->env, &controller->patience_timer,
                            until_ns);
}

void tow_reports_lose_patience(tow_timer_t *timer)
{
    tow_controller_t *controller =
        TOW_CONTAINER_OF(timer, tow_controller_t, patience_timer);
    const int64_t now_ns = tow_env_now_ns(controller->env);
    tow_list_t *item = controller->gathers.next;
    while (item != &controller->gathers) {
        gather_t *gather = TOW_CONTAINER_OF(item, gather_t, node);
        item = item->next;
        if (gather->until_ns <= now_ns) answer(gather);
    }
    watch_patience(controller);
    tow_controller_touch(controller);
}

static tow_status_t check_report(const client_t *client,
                                 const tow_msg_report_get_t *message)
{
    if (message->kind < TOW_REPORT_STATUS || message->kind > TOW_REPORT_SPANS)
        return TOW_ERROR(TOW_INVALID_ARGUMENT,
                         "client %s asks for a report of kind %u, which is "
                         "none",
                         client->name, message->kind);
    if (client->gather_count >= TOW_CLIENT_REPORTS_MAX)
        return TOW_ERROR(TOW_RESOURCE_EXHAUSTED,
                         "client %s waits for more than %u reports",
                         client->name, TOW_CLIENT_REPORTS_MAX);
    return TOW_OK;
}

/* Nobody is chosen yet; NULL: no memory. */
static gather_t *make_gather(client_t *client, tow_report_kind_t kind)
{
    tow_controller_t *controller = client->controller;
    gather_t *gather = tow_calloc(1, sizeof(*gather));
    if (gather == NULL) return NULL;
    *gather = (gather_t){.controller = controller,
                         .client = client,
                         .number = ++controller->request_number,
                         .kind = kind,
                         .until_ns = INT64_MAX,
                         .answers = json_object()};
    if (!is_of_traces(gather))
        gather->until_ns =
            tow_env_now_ns(controller->env) + TOW_REPORT_PATIENCE_NS;
    tow_list_append(&controller->gathers, &gather->node);
    if (kind != TOW_REPORT_WAITS) client->gather_count++;
    return gather;
}

static void begin_gather(gather_t *gather)
{
    tow_controller_t *controller = gather->controller;
    ask_workers(gather);
    settle(gather);
    watch_patience(controller);
}

static void gather_from_workers(client_t *client,
                                const tow_msg_report_get_t *message)
{
    gather_t *gather = make_gather(client, (tow_report_kind_t)message->kind);
    if (gather == NULL || !choose_all(gather)) {
        if (gather != NULL) free_gather(gather);
        tow_client_fault(client, tow_status_bare(TOW_RESOURCE_EXHAUSTED));
        return;
    }
    gather->request = message->request;
    gather->window_ns = message->window_ns;
    begin_gather(gather);
}

/* Without memory nobody is told, and it is tried again in a second. */
void tow_report_ask_waits(client_t *client, const run_t *run)
{
    const resident_t *program = run->program;
    gather_t *gather = make_gather(client, TOW_REPORT_WAITS);
    if (gather == NULL) return;
    gather->run = run->key;
    for (size_t i = 0;
         i < program->worker_count && gather->waiting.count < TOW_LATE_ASK_MAX;
         i++)
        if (!run->has_reported[i] && program->workers[i]->session != NULL &&
            !tow_vec_push(&gather->waiting, program->workers[i]))
            break;
    begin_gather(gather);
}

void tow_report_begin(client_t *client, const tow_msg_report_get_t *message)
{
    tow_status_t status = check_report(client, message);
    if (status != TOW_OK)
        tow_client_fault(client, status);
    else if (message->kind == TOW_REPORT_MEMORY)
        tell_memory(client, message->request);
    else if (message->kind == TOW_REPORT_CODE)
        tell_code(client, message);
    else
        gather_from_workers(client, message);
}

static void heard(gather_t *gather, const worker_t *worker)
{
    for (size_t i = 0; i < gather->waiting.count; i++)
        if (gather->waiting.items[i] == worker) {
            tow_vec_swap_remove(&gather->waiting, i);
            return;
        }
}

/* What the worker says, or NULL. */
static json_t *read_told(worker_t *worker, uint64_t number)
{
    blob_t *blob = tow_map_remove(&worker->blobs, number);
    json_t *told =
        blob != NULL ? json_loadb(blob->bytes, blob->size, 0, NULL) : NULL;
    tow_blob_free(blob);
    return told;
}

void tow_report_answer(worker_t *worker, const tow_msg_report_t *message)
{
    tow_controller_t *controller = worker->controller;
    json_t *told = read_told(worker, message->blob);
    for (tow_list_t *item = controller->gathers.next;
         item != &controller->gathers; item = item->next) {
        gather_t *gather = TOW_CONTAINER_OF(item, gather_t, node);
        if (gather->number != message->request) continue;
        if (is_of_traces(gather))
            adopt_events(told, CONTROLLER_TRACE + 1 + worker->process,
                         clock_shift_ns(worker));
        if (told != NULL) json_object_set(gather->answers, worker->name, told);
        tow_waits_add(&gather->waits, message);
        heard(gather, worker);
        settle(gather);
        break;
    }
    json_decref(told);
}

void tow_reports_lose(tow_controller_t *controller, worker_t *worker,
                      client_t *client)
{
    tow_list_t *item = controller->gathers.next;
    while (item != &controller->gathers) {
        gather_t *gather = TOW_CONTAINER_OF(item, gather_t, node);
        item = item->next;
        if (client != NULL && gather->client == client) {
            free_gather(gather);
        } else if (worker != NULL) {
            heard(gather, worker);
            settle(gather);
        }
    }
}

void tow_reports_destroy(tow_controller_t *controller)
{
    while (!tow_list_is_empty(&controller->gathers))
        free_gather(TOW_CONTAINER_OF(controller->gathers.next, gather_t, node));
}
