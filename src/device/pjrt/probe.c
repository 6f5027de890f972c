#include "device/pjrt/probe.h"

#include <stdio.h>

#include "base/arena.h"
#include "device/child/pool.h"
#include "device/pjrt/argv.h"
#include "device/pjrt/tuning.h"

#define SUBJECT_BYTES_MAX 1024

/* PROGRAM PARENT MEMORY PLUGIN, and the values; see probe_main.c. */
static char **make_argv(tow_arena_t *arena, const tow_pjrt_open_t *open)
{
    char **argv =
        tow_child_argv_make(arena, open->probe_program, 0,
                            1 + TOW_PJRT_ARGS_PER_VALUE * open->value_count);
    if (argv == NULL) return NULL;
    argv[TOW_CHILD_ARGC] = (char *)open->path;
    return tow_pjrt_argv_write(arena, open->values, open->value_count,
                               argv + TOW_CHILD_ARGC + 1)
               ? argv
               : NULL;
}

static tow_status_t await_result(tow_child_process_t *process,
                                 const tow_child_subject_t *subject)
{
    tow_child_exchange_t exchange = {
        .process = process,
        .protocol = &tow_pjrt_probe_protocol,
        .wake_fd = -1,
        .deadline_ns = tow_child_now_ns() + subject->timeout_ns,
    };
    const tow_child_event_t event = tow_child_exchange_wait(&exchange);
    tow_child_process_end(process);
    tow_status_t status = event == TOW_CHILD_RECEIVED
                              ? tow_child_in_status(&exchange.in)
                              : tow_child_event_status(event, process, subject);
    tow_child_exchange_deinit(&exchange);
    return status;
}

tow_status_t tow_pjrt_probe(const tow_pjrt_open_t *open)
{
    char text[SUBJECT_BYTES_MAX];
    const tow_child_subject_t subject = {
        .text = text,
        .timeout_ns = open->probe_timeout_ns > 0 ? open->probe_timeout_ns
                                                 : TOW_PJRT_PROBE_TIMEOUT_NS,
        .crash_code = TOW_ABORTED,
    };
    tow_child_process_t process;
    tow_arena_t arena;
    tow_arena_init(&arena, 0);
    snprintf(text, sizeof(text), "probing plugin %s", open->path);
    char **argv = make_argv(&arena, open);
    tow_status_t status = argv != NULL
                              ? tow_child_process_start(&process, argv)
                              : tow_status_bare(TOW_RESOURCE_EXHAUSTED);
    if (status == TOW_OK) status = await_result(&process, &subject);
    tow_arena_deinit(&arena);
    return status;
}
