/* tow_pjrt_probe PLUGIN [NAME TYPE VALUE]...: loads a plugin and makes a client,
 * so that whoever asked need not risk it. The verdict goes to a descriptor that
 * only we know; see probe.h. */
#include <stdio.h>
#include <unistd.h>

#include "device/pjrt/client_impl.h"
#include "device/pjrt/probe.h"
#include "device/pjrt/words.h"

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
    if (argc < 2) {
        fprintf(stderr, "usage: tow_pjrt_probe PLUGIN [NAME TYPE VALUE]...\n");
        return 2;
    }
    tow_arena_init(&arena, 0);
    open.path = argv[1];
    open.values = tow_pjrt_words_read(&arena, argv + 2, (size_t)argc - 2,
                                      &open.value_count);
    if (open.values == NULL) return 1;
    tow_status_t status = try_plugin(&open);
    dprintf(TOW_PJRT_PROBE_FD, "%d %s", (int)tow_status_code(status),
            tow_status_message(status));
    /* At once: what plugins do on the way out is not of interest. */
    _exit(0);
}
