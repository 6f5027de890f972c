/* tow_pjrt_probe PLUGIN [NAME TYPE VALUE]...: loads a plugin and makes a client,
 * so that whoever asked need not risk it. The verdict goes to a descriptor that
 * only we know; see probe.h. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "device/pjrt/client_impl.h"
#include "device/pjrt/probe.h"

#define VALUE_COUNT_MAX 64
#define LIST_COUNT_MAX  256

static int64_t list[LIST_COUNT_MAX]; /* of all lists, one after the other */
static size_t list_count;

static void read_list(tow_pjrt_value_t *value, const char *text)
{
    value->int64_list = list + list_count;
    while (*text != '\0' && list_count < LIST_COUNT_MAX) {
        char *end = NULL;
        list[list_count++] = strtoll(text, &end, 10);
        value->count++;
        text = *end == ',' ? end + 1 : end;
    }
}

static tow_pjrt_value_t read_value(char **words)
{
    tow_pjrt_value_t value = {.name = words[0],
                              .type = (tow_pjrt_value_type_t)atoi(words[1])};
    switch (value.type) {
    case TOW_PJRT_STRING: value.string = words[2]; break;
    case TOW_PJRT_INT64: value.int64 = strtoll(words[2], NULL, 10); break;
    case TOW_PJRT_INT64_LIST: read_list(&value, words[2]); break;
    case TOW_PJRT_FLOAT: value.float_ = strtof(words[2], NULL); break;
    case TOW_PJRT_BOOL: value.bool_ = words[2][0] == '1'; break;
    }
    return value;
}

static tow_status_t try_plugin(const tow_pjrt_open_t *open)
{
    static pjrt_plugin_t plugin;
    PJRT_Client *client = NULL;
    TOW_RETURN_IF_ERROR(tow_pjrt_plugin_load(&plugin, open->path));
    return tow_pjrt_client_create(&plugin, open, &client);
}

int main(int argc, char **argv)
{
    tow_pjrt_value_t values[VALUE_COUNT_MAX];
    tow_pjrt_open_t open = {.values = values};
    if (argc < 2) {
        fprintf(stderr, "usage: tow_pjrt_probe PLUGIN [NAME TYPE VALUE]...\n");
        return 2;
    }
    open.path = argv[1];
    for (int i = 2; i + 2 < argc && open.value_count < VALUE_COUNT_MAX; i += 3)
        values[open.value_count++] = read_value(argv + i);
    tow_status_t status = try_plugin(&open);
    dprintf(TOW_PJRT_PROBE_FD, "%d %s", (int)tow_status_code(status),
            tow_status_message(status));
    /* At once: what plugins do on the way out is not of interest. */
    _exit(0);
}
