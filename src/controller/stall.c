/* The stall watchdog. A long run is not an error, because only the client
 * knows how long it may take; but we report which devices stall the gang. Only
 * for a client's oldest run: the others wait behind it.
 *
 * Each second of such a run its workers are asked which of their devices wait
 * in a collective, and for which members (wait_graph.c). The client is
 * notified when they have answered, or have not within TOW_REPORT_TIMEOUT_NS
 * (report.c). */
#include "controller/controller_impl.h"

#include <stdio.h>

#include "env/tuning.h"

static int64_t waited_ns(const tow_ctl_run_t *run)
{
    return tow_env_now_ns(run->controller->env) - run->granted_ns;
}

/* -- Describing a stalled run ---------------------------------------------- */

static void name_worker(FILE *out, const tow_ctl_worker_t *worker)
{
    if (worker->entry == NULL)
        fprintf(out, "%s (disconnected)", worker->name);
    else
        fprintf(out, "%s (host %s, island %s)", worker->name,
                worker->entry->host, worker->entry->island->name);
}

static void name_unfinished(FILE *out, const tow_ctl_run_t *run)
{
    const tow_ctl_program_t *program = run->program;
    uint32_t named = 0;
    fputs("; not finished on:", out);
    for (size_t i = 0; i < program->worker_count; i++) {
        if (run->has_reported[i]) continue;
        if (named++ == TOW_STALL_NAMES_MAX) {
            fprintf(out, " and %u more",
                    run->reporting_count - TOW_STALL_NAMES_MAX);
            return;
        }
        fputs(named > 1 ? ", " : " ", out);
        name_worker(out, program->workers[i]);
    }
}

static const tow_ctl_worker_t *worker_of(const tow_ctl_run_t *run,
                                         int64_t device)
{
    for (size_t i = 0; i < run->program->worker_count; i++) {
        const tow_resource_worker_t *entry = run->program->workers[i]->entry;
        for (size_t k = 0; entry != NULL && k < entry->device_count; k++)
            if (entry->devices[k].id == device) return run->program->workers[i];
    }
    return NULL;
}

static void name_stalled(FILE *out, const tow_ctl_run_t *run,
                         const tow_ctl_stall_t *stall)
{
    for (size_t i = 0; i < stall->device_count; i++) {
        const tow_ctl_worker_t *worker = worker_of(run, stall->devices[i]);
        fprintf(out, "%s device %lld", i == 0 ? "; late:" : ",",
                (long long)stall->devices[i]);
        if (worker == NULL) continue;
        fputs(" of ", out);
        name_worker(out, worker);
    }
    if (stall->has_more) fputs(" and more", out);
    fprintf(out, "; %zu other%s wait%s for %s in a collective, for %.1f s",
            stall->waiting_count, stall->waiting_count == 1 ? "" : "s",
            stall->waiting_count == 1 ? "s" : "",
            stall->device_count == 1 ? "it" : "them",
            (double)stall->waited_ns / (double)TOW_NS_PER_S);
}

static void name_silent(FILE *out, const tow_ctl_run_t *run,
                        const tow_ctl_wait_report_t *wait_report)
{
    uint32_t named = 0;
    for (size_t i = 0; i < wait_report->silent_count; i++) {
        const tow_ctl_worker_t *worker = wait_report->silent[i];
        const size_t index = tow_ctl_run_index_of(run, worker);
        if (index == run->program->worker_count || run->has_reported[index])
            continue;
        if (named++ == TOW_STALL_NAMES_MAX) {
            fputs(" and more", out);
            break;
        }
        fputs(named > 1 ? ", " : "; late: ", out);
        name_worker(out, worker);
    }
    if (named > 0)
        fprintf(out, ", which do%s not answer", named > 1 ? "" : "es");
}

static void describe(FILE *out, const tow_ctl_run_t *run,
                     const tow_ctl_wait_report_t *wait_report)
{
    const tow_ctl_piece_t *piece = tow_ctl_pieces_oldest(run);
    const tow_ctl_stall_t stall = tow_ctl_wait_graph_find_stall(
        wait_report->waits, piece->first_gang + piece->first,
        piece->end - piece->first);
    fprintf(out,
            "'%s' has been running for %lld s; %zu of %zu workers have "
            "finished it",
            run->program->name, (long long)(waited_ns(run) / TOW_NS_PER_S),
            run->program->worker_count - run->reporting_count,
            run->program->worker_count);
    name_silent(out, run, wait_report);
    if (stall.device_count > 0)
        name_stalled(out, run, &stall);
    else
        name_unfinished(out, run);
    tow_ctl_callbacks_describe(out, run);
}

static bool write_text(const tow_ctl_run_t *run,
                       const tow_ctl_wait_report_t *wait_report,
                       char text[TOW_STALL_TEXT_MAX])
{
    if (waited_ns(run) < TOW_STALL_NS) return false;
    FILE *out = fmemopen(text, TOW_STALL_TEXT_MAX, "w");
    if (out == NULL) return false;
    describe(out, run, wait_report);
    fclose(out);
    text[TOW_STALL_TEXT_MAX - 1] = '\0';
    return true;
}

/* -- On request ------------------------------------------------------------ */

bool tow_ctl_stall_describe(const tow_ctl_client_t *client,
                            const tow_ctl_wait_report_t *wait_report,
                            char text[TOW_STALL_TEXT_MAX])
{
    const tow_controller_t *controller = client->controller;
    uint32_t examined = 0;
    for (const tow_list_t *item = controller->runs.list.next;
         item != &controller->runs.list && examined < TOW_STALL_RUNS_MAX;
         item = item->next, examined++) {
        const tow_ctl_run_t *run =
            TOW_CONTAINER_OF(item, const tow_ctl_run_t, node);
        if (run->client == client && run->is_granted)
            return write_text(run, wait_report, text);
    }
    return false;
}

/* -- The timer ------------------------------------------------------------- */

void tow_ctl_stall_notify(tow_ctl_client_t *client, uint64_t key,
                          const tow_ctl_wait_report_t *wait_report)
{
    const tow_ctl_run_t *run =
        tow_map_find(&client->controller->runs.by_key, key);
    char text[TOW_STALL_TEXT_MAX];
    if (run == NULL || run->client != client) return; /* It has finished. */
    if (!write_text(run, wait_report, text)) return;
    tow_msg_run_stalled_t stall = TOW_MSG_RUN_STALLED_INIT;
    stall.run = run->id;
    stall.waited_ns = (uint64_t)waited_ns(run);
    stall.text = text;
    tow_ctl_client_send(client, TOW_MESSAGE_RUN_STALLED, &stall.base);
}

/* Another second of the run has passed. */
static bool is_due(tow_ctl_run_t *run)
{
    const int64_t seconds = waited_ns(run) / TOW_STALL_NS;
    if (seconds <= run->stall_reported_s) return false;
    run->stall_reported_s = seconds;
    return true;
}

/* The oldest granted run of each client, among the first few of all. */
static void examine_runs(tow_controller_t *controller)
{
    const uint64_t mark = ++controller->stalls.tick;
    uint32_t examined = 0;
    for (tow_list_t *item = controller->runs.list.next;
         item != &controller->runs.list && examined < TOW_STALL_RUNS_MAX;
         item = item->next, examined++) {
        tow_ctl_run_t *run = TOW_CONTAINER_OF(item, tow_ctl_run_t, node);
        tow_ctl_client_t *client = run->client;
        if (!run->is_granted || client == NULL || client->session == NULL ||
            client->stall_seen == mark)
            continue;
        client->stall_seen = mark;
        if (is_due(run)) tow_ctl_report_query_waits(client, run);
    }
}

void tow_ctl_stall_watch(tow_controller_t *controller)
{
    if (TOW_LIKELY(tow_timer_is_armed(&controller->stalls.timer))) return;
    tow_env_timer_start(controller->env, &controller->stalls.timer,
                        tow_env_now_ns(controller->env) + TOW_STALL_PERIOD_NS);
}

void tow_ctl_stall_on_timer(tow_timer_t *timer)
{
    tow_controller_t *controller =
        TOW_CONTAINER_OF(timer, tow_controller_t, stalls.timer);
    examine_runs(controller);
    if (!tow_list_is_empty(&controller->runs.list))
        tow_ctl_stall_watch(controller);
    tow_controller_touch(controller);
}
