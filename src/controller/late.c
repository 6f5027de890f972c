/* Runs that take long. That is no error, for nobody but the client knows how long
 * they may take; but it is told who keeps the others waiting, so that somebody who
 * waits knows for whom. Only of its oldest run: the others wait behind that one.
 *
 * Each second of such a run its workers are asked which of their devices wait in a
 * collective, and for whom (waits.c); the client is told when they have answered,
 * or have not for TOW_REPORT_PATIENCE_NS (report.c). */
#include "controller/controller_impl.h"

#include <stdio.h>

#include "env/tuning.h"

static int64_t waited_ns(const run_t *run)
{
    return tow_env_now_ns(run->controller->env) - run->granted_ns;
}

/* -- In words -------------------------------------------------------------------- */

static void name_worker(FILE *out, const worker_t *worker)
{
    if (worker->entry == NULL)
        fprintf(out, "%s (gone)", worker->name);
    else
        fprintf(out, "%s (host %s, island %s)", worker->name,
                worker->entry->host, worker->entry->island->name);
}

static void name_unfinished(FILE *out, const run_t *run)
{
    const resident_t *program = run->program;
    uint32_t named = 0;
    fputs("; still at it:", out);
    for (size_t i = 0; i < program->worker_count; i++) {
        if (run->has_reported[i]) continue;
        if (named++ == TOW_LATE_NAMES_MAX) {
            fprintf(out, " and %u more",
                    run->reporting_count - TOW_LATE_NAMES_MAX);
            return;
        }
        fputs(named > 1 ? ", " : " ", out);
        name_worker(out, program->workers[i]);
    }
}

static const worker_t *worker_of(const run_t *run, int64_t device)
{
    for (size_t i = 0; i < run->program->worker_count; i++) {
        const tow_worker_entry_t *entry = run->program->workers[i]->entry;
        for (size_t k = 0; entry != NULL && k < entry->device_count; k++)
            if (entry->devices[k].id == device) return run->program->workers[i];
    }
    return NULL;
}

static void name_late(FILE *out, const run_t *run, const late_t *late)
{
    for (size_t i = 0; i < late->device_count; i++) {
        const worker_t *worker = worker_of(run, late->devices[i]);
        fprintf(out, "%s device %lld", i == 0 ? "; late:" : ",",
                (long long)late->devices[i]);
        if (worker == NULL) continue;
        fputs(" of ", out);
        name_worker(out, worker);
    }
    if (late->has_more) fputs(" and more", out);
    fprintf(out, "; %zu other%s wait%s for %s in a collective, for %.1f s",
            late->waiting_count, late->waiting_count == 1 ? "" : "s",
            late->waiting_count == 1 ? "s" : "",
            late->device_count == 1 ? "it" : "them",
            (double)late->waited_ns / (double)TOW_NS_PER_S);
}

static void name_silent(FILE *out, const run_t *run, const told_t *told)
{
    uint32_t named = 0;
    for (size_t i = 0; i < told->silent_count; i++) {
        const worker_t *worker = told->silent[i];
        const size_t index = tow_run_index_of(run, worker);
        if (index == run->program->worker_count || run->has_reported[index])
            continue;
        if (named++ == TOW_LATE_NAMES_MAX) {
            fputs(" and more", out);
            break;
        }
        fputs(named > 1 ? ", " : "; late: ", out);
        name_worker(out, worker);
    }
    if (named > 0)
        fprintf(out, ", which do%s not answer", named > 1 ? "" : "es");
}

static void describe(FILE *out, const run_t *run, const told_t *told)
{
    const late_t late =
        tow_waits_judge(told->waits, run->first_gang, run->program->step_count);
    fprintf(out,
            "'%s' has been running for %lld s; %zu of %zu workers have "
            "finished it",
            run->program->name, (long long)(waited_ns(run) / TOW_NS_PER_S),
            run->program->worker_count - run->reporting_count,
            run->program->worker_count);
    name_silent(out, run, told);
    if (late.device_count > 0)
        name_late(out, run, &late);
    else
        name_unfinished(out, run);
    tow_callbacks_describe(out, run);
}

static bool write_text(const run_t *run, const told_t *told,
                       char text[TOW_LATE_TEXT_MAX])
{
    if (waited_ns(run) < TOW_LATE_NS) return false;
    FILE *out = fmemopen(text, TOW_LATE_TEXT_MAX, "w");
    if (out == NULL) return false;
    describe(out, run, told);
    fclose(out);
    text[TOW_LATE_TEXT_MAX - 1] = '\0';
    return true;
}

/* -- Asked by somebody ----------------------------------------------------------- */

bool tow_late_text(const client_t *client, const told_t *told,
                   char text[TOW_LATE_TEXT_MAX])
{
    const tow_controller_t *controller = client->controller;
    uint32_t looked = 0;
    for (const tow_list_t *item = controller->runs.next;
         item != &controller->runs && looked < TOW_LATE_LOOK_MAX;
         item = item->next, looked++) {
        const run_t *run = TOW_CONTAINER_OF(item, const run_t, node);
        if (run->client == client && run->is_granted)
            return write_text(run, told, text);
    }
    return false;
}

/* -- Looking --------------------------------------------------------------------- */

void tow_late_tell(client_t *client, uint64_t key, const told_t *told)
{
    const run_t *run = tow_map_find(&client->controller->run_of, key);
    char text[TOW_LATE_TEXT_MAX];
    if (run == NULL || run->client != client) return; /* It has finished. */
    if (!write_text(run, told, text)) return;
    tow_msg_run_late_t late = TOW_MSG_RUN_LATE_INIT;
    late.run = run->id;
    late.waited_ns = (uint64_t)waited_ns(run);
    late.text = text;
    tow_tell_client(client, TOW_MESSAGE_RUN_LATE, &late.base);
}

/* Another second of it has passed. */
static bool is_due(run_t *run)
{
    const int64_t seconds = waited_ns(run) / TOW_LATE_NS;
    if (seconds <= run->late_told) return false;
    run->late_told = seconds;
    return true;
}

/* The oldest of each client that is granted, among the first few of all. */
static void look_at_all(tow_controller_t *controller)
{
    const uint64_t mark = ++controller->late_number;
    uint32_t looked = 0;
    for (tow_list_t *item = controller->runs.next;
         item != &controller->runs && looked < TOW_LATE_LOOK_MAX;
         item = item->next, looked++) {
        run_t *run = TOW_CONTAINER_OF(item, run_t, node);
        client_t *client = run->client;
        if (!run->is_granted || client == NULL || client->session == NULL ||
            client->late_seen == mark)
            continue;
        client->late_seen = mark;
        if (is_due(run)) tow_report_ask_waits(client, run);
    }
}

void tow_late_watch(tow_controller_t *controller)
{
    if (TOW_LIKELY(tow_timer_is_armed(&controller->late_timer))) return;
    tow_env_timer_start(controller->env, &controller->late_timer,
                        tow_env_now_ns(controller->env) + TOW_LATE_LOOK_NS);
}

void tow_late_look(tow_timer_t *timer)
{
    tow_controller_t *controller =
        TOW_CONTAINER_OF(timer, tow_controller_t, late_timer);
    look_at_all(controller);
    if (!tow_list_is_empty(&controller->runs)) tow_late_watch(controller);
    tow_controller_touch(controller);
}
