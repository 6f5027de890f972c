/* `tow status` and `tow trace`: reports of a running cluster. */
#include <errno.h>
#include <jansson.h>
#include <stdio.h>
#include <string.h>

#include "tool/cluster_client.h"
#include "tool/command.h"

typedef struct status_arguments {
    tow_cluster_client_options_t cluster;
    const char *out; /* of a trace */
    bool json;
} status_arguments_t;

enum {
    OPTION_FOLDER = 256,
    OPTION_TOKEN
};

static error_t parse(int key, char *argument, struct argp_state *state)
{
    status_arguments_t *a = state->input;
    switch (key) {
    case 'a': a->cluster.address = argument; return 0;
    case 'j': a->json = true; return 0;
    case 'o': a->out = argument; return 0;
    case OPTION_FOLDER: a->cluster.folder = argument; return 0;
    case OPTION_TOKEN: a->cluster.token_file = argument; return 0;
    case ARGP_KEY_ARG:
        argp_error(state, "unexpected argument '%s'", argument);
        return EINVAL;
    default: return ARGP_ERR_UNKNOWN;
    }
}

/* -- Status as text -------------------------------------------------------------- */

static const char *text_of(const json_t *object, const char *key)
{
    const char *text = json_string_value(json_object_get(object, key));
    return text != NULL ? text : "?";
}

static long long count_of(const json_t *object, const char *key)
{
    return json_integer_value(json_object_get(object, key));
}

/* "1.5 GiB". */
static const char *bytes_text(long long bytes, char text[32])
{
    static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB"};
    double size = (double)bytes;
    size_t unit = 0;
    while (size >= 1024 && unit + 1 < TOW_COUNT_OF(units)) {
        size /= 1024;
        unit++;
    }
    snprintf(text, 32, unit == 0 ? "%.0f %s" : "%.1f %s", size, units[unit]);
    return text;
}

static void print_device(const json_t *device)
{
    char objects[32], reserved[32], spilled[32], peak[32], memory[32];
    const long long limit = count_of(device, "memory_bytes");
    printf("  %8lld  %-12s %10s %10s %10s %10s %10s %6lld %7lld\n",
           count_of(device, "id"), text_of(device, "kind"),
           bytes_text(count_of(device, "object_bytes"), objects),
           bytes_text(count_of(device, "reserved_bytes"), reserved),
           bytes_text(count_of(device, "spilled_bytes"), spilled),
           bytes_text(count_of(device, "peak_bytes"), peak),
           limit > 0 ? bytes_text(limit, memory) : "-",
           count_of(device, "pieces_under_way"), count_of(device, "slices"));
}

/* "memory, for client 3", "run-ahead (2)", "-". */
static const char *waiting_text(const json_t *island, char text[64])
{
    const json_t *memory = json_object_get(island, "waiting_for_memory");
    const long long run_ahead = count_of(island, "waiting_for_run_ahead");
    if (json_is_integer(memory))
        snprintf(text, 64, "memory, for client %lld",
                 (long long)json_integer_value(memory));
    else if (run_ahead > 0)
        snprintf(text, 64, "run-ahead (%lld)", run_ahead);
    else
        snprintf(text, 64, "-");
    return text;
}

static void print_islands(const json_t *islands)
{
    size_t i;
    const json_t *island;
    char objects[32], reserved[32], memory[32], waiting[64];
    printf("%-12s %7s %7s %6s %8s %8s %10s %10s %10s  %s\n", "island",
           "workers", "devices", "queued", "underway", "granted", "objects",
           "reserved", "memory", "waits for");
    json_array_foreach(islands, i, island)
    {
        const long long limit = count_of(island, "memory_bytes");
        printf("%-12s %7lld %7lld %6lld %8lld %8lld %10s %10s %10s  %s\n",
               text_of(island, "name"), count_of(island, "workers"),
               count_of(island, "devices"), count_of(island, "runs_queued"),
               count_of(island, "runs_under_way"),
               count_of(island, "runs_granted"),
               bytes_text(count_of(island, "object_bytes"), objects),
               bytes_text(count_of(island, "reserved_bytes"), reserved),
               limit > 0 ? bytes_text(limit, memory) : "-",
               waiting_text(island, waiting));
    }
}

static void print_workers(const json_t *workers)
{
    size_t i, k;
    const json_t *worker, *device;
    json_array_foreach(workers, i, worker)
    {
        char spilled[32], limit[32];
        printf("%s on %s, island %s: %s%s, process %lld, spilled %s of %s%s\n",
               text_of(worker, "name"), text_of(worker, "host"),
               text_of(worker, "island"), text_of(worker, "platform"),
               json_is_true(json_object_get(worker, "simulated"))
                   ? " (simulated)"
                   : "",
               count_of(worker, "process"),
               bytes_text(count_of(worker, "spilled_bytes"), spilled),
               bytes_text(count_of(worker, "spill_limit_bytes"), limit),
               json_is_true(json_object_get(worker, "silent"))
                   ? "; it does not answer"
                   : "");
        printf("  %8s  %-12s %10s %10s %10s %10s %10s %6s %7s\n", "device",
               "kind", "objects", "reserved", "spilled", "peak", "memory",
               "pieces", "slices");
        json_array_foreach(json_object_get(worker, "devices"), k, device)
        {
            print_device(device);
        }
    }
}

static double seconds_of(const json_t *json, const char *name)
{
    return (double)count_of(json, name) * 1e-9;
}

static void print_clients(const json_t *clients)
{
    size_t i;
    const json_t *client;
    char bytes[32];
    if (json_array_size(clients) == 0) return;
    printf("%-4s %-36s %7s %9s %8s %6s %8s %10s %10s %10s\n", "", "client",
           "slices", "functions", "programs", "runs", "objects", "bytes",
           "device s", "wait s");
    json_array_foreach(clients, i, client)
    {
        printf(
            "%-4lld %-36s %7lld %9lld %8lld %6lld %8lld %10s %10.3f %10.3f\n",
            count_of(client, "number"), text_of(client, "name"),
            count_of(client, "slices"), count_of(client, "functions"),
            count_of(client, "programs"), count_of(client, "runs"),
            count_of(client, "objects"),
            bytes_text(count_of(client, "bytes"), bytes),
            seconds_of(client, "device_ns"), seconds_of(client, "wait_ns"));
    }
    json_array_foreach(clients, i, client)
    {
        const json_t *late = json_object_get(client, "late");
        if (json_is_string(late))
            printf("client %lld: %s\n", count_of(client, "number"),
                   json_string_value(late));
    }
}

static void print_totals(const json_t *report)
{
    char objects[32], reserved[32], spilled[32];
    const json_t *totals = json_object_get(report, "totals");
    printf("cluster %s: %lld worker(s), %lld device(s), %lld client(s)\n",
           text_of(report, "cluster"), count_of(totals, "workers"),
           count_of(totals, "devices"), count_of(totals, "clients"));
    printf(
        "objects %lld with %s, spilled %s, reserved %s; runs %lld, of them %lld "
        "queued; granted %lld; compiled %lld; device time %.3f s, waits %.3f s\n",
        count_of(totals, "objects"),
        bytes_text(count_of(totals, "object_bytes"), objects),
        bytes_text(count_of(totals, "spilled_bytes"), spilled),
        bytes_text(count_of(totals, "reserved_bytes"), reserved),
        count_of(totals, "runs"), count_of(totals, "runs_queued"),
        count_of(totals, "runs_granted"), count_of(totals, "compiles"),
        seconds_of(totals, "device_ns"), seconds_of(totals, "wait_ns"));
}

static tow_status_t print_text(const char *text)
{
    json_error_t error;
    json_t *report = json_loads(text, 0, &error);
    if (report == NULL)
        return TOW_ERROR(TOW_DATA_LOSS,
                         "the controller's report is not JSON: %s", error.text);
    print_totals(report);
    print_islands(json_object_get(report, "islands"));
    print_workers(json_object_get(report, "workers"));
    print_clients(json_object_get(report, "clients"));
    json_decref(report);
    return TOW_OK;
}

static tow_status_t show_status(const status_arguments_t *a)
{
    tow_client_t *client = NULL;
    char *text = NULL;
    TOW_RETURN_IF_ERROR(tow_cluster_client_open(&a->cluster, &client));
    tow_status_t status = tow_client_report(client, &text);
    if (status == TOW_OK) {
        if (a->json)
            printf("%s\n", text);
        else
            status = print_text(text);
    }
    tow_free_text(text);
    tow_client_release(client);
    return status;
}

#define CLUSTER_OPTIONS                                                          \
    {"address",                                                                  \
     'a',                                                                        \
     "ADDRESS",                                                                  \
     0,                                                                          \
     "Address of the controller (default: TOW_ADDRESS, or the one of `tow up`)", \
     0},                                                                         \
        {"folder", OPTION_FOLDER, "FOLDER", 0, "Folder of `tow up`", 0},         \
    {                                                                            \
        "token", OPTION_TOKEN, "FILE", 0, "Token file of the cluster", 0         \
    }

int tow_command_status(int argc, char **argv)
{
    static const struct argp_option table[] = {
        CLUSTER_OPTIONS,
        {"json", 'j', NULL, 0, "Print the full report as JSON", 0},
        {0},
    };
    static const struct argp argp = {
        .options = table,
        .parser = parse,
        .doc =
            "Prints islands, workers, devices, memory, clients and queues of a cluster. The client named tow is this command.",
    };
    status_arguments_t arguments = {0};
    int usage = tow_command_parse(&argp, argc, argv, &arguments);
    if (usage != 0) return usage;
    return tow_command_finish("status", show_status(&arguments));
}

/* -- Trace ------------------------------------------------------------------------ */

static tow_status_t write_file(const char *path, const char *text)
{
    FILE *file = fopen(path, "w");
    if (file == NULL) return TOW_ERRNO(errno, "opening %s", path);
    const bool failed = fputs(text, file) == EOF;
    if (fclose(file) != 0 || failed)
        return TOW_ERRNO(errno, "writing %s", path);
    return TOW_OK;
}

static tow_status_t take_trace(const status_arguments_t *a)
{
    tow_client_t *client = NULL;
    char *text = NULL;
    TOW_RETURN_IF_ERROR(tow_cluster_client_open(&a->cluster, &client));
    tow_status_t status = tow_client_trace(client, &text);
    if (status == TOW_OK) status = write_file(a->out, text);
    if (status == TOW_OK)
        printf("wrote %s (%zu bytes): open it with ui.perfetto.dev\n", a->out,
               strlen(text));
    tow_free_text(text);
    tow_client_release(client);
    return status;
}

int tow_command_trace(int argc, char **argv)
{
    static const struct argp_option table[] = {
        CLUSTER_OPTIONS,
        {"out", 'o', "FILE", 0, "Output file (trace.json)", 0},
        {0},
    };
    static const struct argp argp = {
        .options = table,
        .parser = parse,
        .doc =
            "Writes the most recent trace events of all processes of a cluster, with aligned clocks, to a file for Perfetto.",
    };
    status_arguments_t arguments = {.out = "trace.json"};
    int usage = tow_command_parse(&argp, argc, argv, &arguments);
    if (usage != 0) return usage;
    return tow_command_finish("trace", take_trace(&arguments));
}
