/* tow_pjrt_probe PARENT MEMORY PLUGIN [NAME TYPE VALUE]...: loads a plugin and
 * makes a client, so that a crash or a hang does no harm to the process PARENT.
 * Sends the result as probe.h says. */
#include <stdio.h>
#include <unistd.h>

#include "device/child/pool.h"
#include "device/pjrt/argv.h"
#include "device/pjrt/client_impl.h"
#include "device/pjrt/probe.h"

#define ARGC_MIN (TOW_CHILD_ARGC + 1)

static tow_status_t try_plugin(const tow_pjrt_open_t *open)
{
    static pjrt_plugin_t plugin;
    PJRT_Client *client = NULL;
    TOW_RETURN_IF_ERROR(tow_pjrt_plugin_load(&plugin, open->path));
    return tow_pjrt_client_create(&plugin, open, &client);
}

int main(int argc, char **argv)
{
    tow_arena_t arena;
    tow_pjrt_open_t open = {0};
    if (argc < ARGC_MIN) {
        fprintf(stderr, "usage: tow_pjrt_probe PARENT MEMORY PLUGIN "
                        "[NAME TYPE VALUE]...\n");
        return 2;
    }
    tow_child_process_enter(argv[1], argv[2]);
    tow_arena_init(&arena, 0);
    open.path = argv[TOW_CHILD_ARGC];
    open.values = tow_pjrt_argv_read(
        &arena, argv + ARGC_MIN, (size_t)argc - ARGC_MIN, &open.value_count);
    if (open.values == NULL) return 1;
    tow_child_out_t out =
        tow_child_out(&tow_pjrt_probe_protocol, TOW_PJRT_PROBE_RESULT);
    tow_child_out_set_status(&out, try_plugin(&open));
    tow_child_send(TOW_CHILD_SOCKET_FD, &out);
    /* At once: a plugin's exit handlers may crash or hang. */
    _exit(0);
}
