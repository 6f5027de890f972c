/* Runs that take long. That is no error, for nobody but the client knows how long
 * they may take; but it is told who has not finished, so that somebody who waits
 * knows for whom. Only of its oldest run: the others wait behind that one. */
#include "controller/controller_impl.h"

#include <stdio.h>

#include "env/tuning.h"

static int64_t waited_ns(const run_t *run)
{
    return tow_env_now_ns(run->controller->env) - run->granted_ns;
}

static void name_worker(FILE *out, const worker_t *worker)
{
    if (worker->entry == NULL)
        fprintf(out, "%s (gone)", worker->name);
    else
        fprintf(out, "%s (host %s, island %s)", worker->name,
                worker->entry->host, worker->entry->island->name);
}

static void name_late(FILE *out, const run_t *run)
{
    const resident_t *program = run->program;
    uint32_t named = 0;
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

/* Which of them the others may be waiting for is not known here, unless it waits
 * itself, for a function of the client's. */
static void describe(FILE *out, const run_t *run)
{
    fprintf(out,
            "'%s' has been running for %lld s; %zu of %zu workers have "
            "finished it, still at it:",
            run->program->name, (long long)(waited_ns(run) / TOW_NS_PER_S),
            run->program->worker_count - run->reporting_count,
            run->program->worker_count);
    name_late(out, run);
    tow_callbacks_describe(out, run);
}

static bool write_text(const run_t *run, char text[TOW_LATE_TEXT_MAX])
{
    if (waited_ns(run) < TOW_LATE_NS) return false;
    FILE *out = fmemopen(text, TOW_LATE_TEXT_MAX, "w");
    if (out == NULL) return false;
    describe(out, run);
    fclose(out);
    text[TOW_LATE_TEXT_MAX - 1] = '\0';
    return true;
}

bool tow_late_text(const client_t *client, char text[TOW_LATE_TEXT_MAX])
{
    const tow_controller_t *controller = client->controller;
    uint32_t looked = 0;
    for (const tow_list_t *item = controller->runs.next;
         item != &controller->runs && looked < TOW_LATE_LOOK_MAX;
         item = item->next, looked++) {
        const run_t *run = TOW_CONTAINER_OF(item, const run_t, node);
        if (run->client == client && run->is_granted)
            return write_text(run, text);
    }
    return false;
}

static void tell(client_t *client, const run_t *run)
{
    char text[TOW_LATE_TEXT_MAX];
    if (!write_text(run, text)) return;
    tow_msg_run_late_t late = TOW_MSG_RUN_LATE_INIT;
    late.run = run->id;
    late.waited_ns = (uint64_t)waited_ns(run);
    late.text = text;
    tow_tell_client(client, TOW_MESSAGE_RUN_LATE, &late.base);
}

/* The oldest of each client that is granted, among the first few of all. */
static void tell_all(tow_controller_t *controller)
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
        tell(client, run);
    }
}

void tow_late_watch(tow_controller_t *controller)
{
    if (TOW_LIKELY(tow_timer_is_armed(&controller->late_timer))) return;
    tow_env_timer_start(controller->env, &controller->late_timer,
                        tow_env_now_ns(controller->env) + TOW_LATE_NS);
}

void tow_late_look(tow_timer_t *timer)
{
    tow_controller_t *controller =
        TOW_CONTAINER_OF(timer, tow_controller_t, late_timer);
    tell_all(controller);
    if (!tow_list_is_empty(&controller->runs)) tow_late_watch(controller);
    tow_controller_touch(controller);
}
