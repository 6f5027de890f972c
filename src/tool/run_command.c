/* `tow run FILE`: compiles one program, runs it and prints the results. */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/vec.h"
#include "tool/cluster_client.h"
#include "tool/command.h"
#include "tool/run.h"

#define PROGRAM_SIZE_MAX  (256u << 20)
#define PROCESS_COUNT_MAX 64 /* workers of an embedded cluster */

typedef enum run_target {
    RUN_EMBEDDED,          /* on a cluster sized by --processes and --devices */
    RUN_EMBEDDED_BY_LOCAL, /* on a cluster sized by TOW_LOCAL */
    RUN_CLUSTER,           /* on a running cluster */
    RUN_DRIVER,            /* on a driver in this process */
} run_target_t;

typedef struct run_arguments {
    const char *path;
    TOW_VEC(const char *) inputs; /* of argv */
    const char *plugin;
    const char *model;
    uint64_t process_count; /* 0: not given */
    uint64_t device_count;  /* 0: not given */
    uint64_t repeat_count;
    bool in_process;
    bool json;
    bool is_cluster; /* a running one */
    bool is_local;   /* an embedded one, sized by TOW_LOCAL */
    tow_cluster_client_options_t cluster;
} run_arguments_t;

enum {
    OPTION_FOLDER = 256,
    OPTION_TOKEN,
    OPTION_CLUSTER,
    OPTION_LOCAL
};

static run_target_t target_of(const run_arguments_t *a)
{
    if (a->is_local) return RUN_EMBEDDED_BY_LOCAL;
    if (a->is_cluster) return RUN_CLUSTER;
    return a->plugin != NULL || a->in_process ? RUN_DRIVER : RUN_EMBEDDED;
}

static error_t parse_cluster(int key, char *argument, struct argp_state *state)
{
    run_arguments_t *a = state->input;
    switch (key) {
    case 'a': a->cluster.address = argument; break;
    case OPTION_FOLDER: a->cluster.folder = argument; break;
    case OPTION_TOKEN: a->cluster.token_file = argument; break;
    case OPTION_CLUSTER: break;
    default: return ARGP_ERR_UNKNOWN;
    }
    a->is_cluster = true;
    return 0;
}

static void check_arguments(const run_arguments_t *a, struct argp_state *state)
{
    const run_target_t target = target_of(a);
    const bool is_direct = a->plugin != NULL || a->in_process;
    if (a->path == NULL) argp_error(state, "name a program file");
    if (is_direct &&
        (target != RUN_DRIVER || a->process_count > 0 || a->model != NULL))
        argp_error(state, "--plugin and --in-process run without a cluster: "
                          "they exclude --cluster, --local, --processes and "
                          "--sim");
    if (a->process_count > 0 && target != RUN_EMBEDDED)
        argp_error(state, "--processes sizes an embedded cluster: it excludes "
                          "--cluster and --local");
}

static error_t parse(int key, char *argument, struct argp_state *state)
{
    run_arguments_t *a = state->input;
    switch (key) {
    case 'i': return tow_vec_push(&a->inputs, argument) ? 0 : ENOMEM;
    case 'n':
        a->device_count =
            tow_command_number(state, "devices", argument, 1, 4096);
        return 0;
    case 'P':
        a->process_count = tow_command_number(state, "processes", argument, 1,
                                              PROCESS_COUNT_MAX);
        return 0;
    case 'r':
        a->repeat_count =
            tow_command_number(state, "repeat", argument, 1, 100000000);
        return 0;
    case 'p': a->plugin = argument; return 0;
    case 's': a->model = argument; return 0;
    case 'I': a->in_process = true; return 0;
    case 'j': a->json = true; return 0;
    case OPTION_LOCAL: a->is_local = true; return 0;
    case ARGP_KEY_ARG:
        if (a->path != NULL)
            argp_error(state, "unexpected argument '%s': one file per run",
                       argument);
        a->path = argument;
        return 0;
    case ARGP_KEY_END: check_arguments(a, state); return 0;
    default: return parse_cluster(key, argument, state);
    }
}

/* The caller frees *out_program. */
static tow_status_t read_program(const char *path, void **out_program,
                                 size_t *out_size)
{
    FILE *file = fopen(path, "rb");
    if (file == NULL) return TOW_ERRNO(errno, "opening %s", path);
    tow_status_t status = TOW_OK;
    fseek(file, 0, SEEK_END);
    long size = ftell(file);
    rewind(file);
    if (size < 0 || size > (long)PROGRAM_SIZE_MAX) {
        status =
            TOW_ERROR(TOW_OUT_OF_RANGE, "program %s has %ld bytes, limit %u",
                      path, size, PROGRAM_SIZE_MAX);
    } else if ((*out_program = tow_malloc((size_t)size + 1)) == NULL) {
        status = tow_status_bare(TOW_RESOURCE_EXHAUSTED);
    } else {
        *out_size = fread(*out_program, 1, (size_t)size, file);
        if (*out_size != (size_t)size)
            status = TOW_ERROR(TOW_DATA_LOSS, "%s: read %zu of %ld bytes", path,
                               *out_size, size);
    }
    fclose(file);
    return status;
}

static tow_status_t open_client(const run_arguments_t *a,
                                tow_client_t **out_client)
{
    const run_target_t target = target_of(a);
    if (target == RUN_CLUSTER)
        return tow_cluster_client_open(&a->cluster, out_client);
    tow_client_options_t options = {.struct_size = sizeof(options),
                                    .name = "tow",
                                    .address = "", /* embedded */
                                    .simulated = a->model};
    if (target == RUN_EMBEDDED) {
        options.worker_count =
            (uint32_t)(a->process_count > 0 ? a->process_count : 1);
        options.devices_per_worker =
            (uint32_t)(a->device_count > 0 ? a->device_count : 1);
    }
    return tow_client_open(&options, out_client);
}

static tow_status_t run_on_cluster(const run_arguments_t *a,
                                   tow_run_request_t *request)
{
    tow_client_t *client = NULL;
    TOW_RETURN_IF_ERROR(open_client(a, &client));
    /* An embedded cluster has exactly the devices that were asked for. */
    if (target_of(a) == RUN_EMBEDDED) request->device_count = 0;
    tow_status_t status = tow_run_on_cluster(client, request);
    tow_client_release(client);
    return status;
}

static tow_status_t perform(const run_arguments_t *a)
{
    void *program = NULL;
    tow_run_request_t request = {.path = a->path,
                                 .inputs = a->inputs.items,
                                 .input_count = a->inputs.count,
                                 .device_count = a->device_count,
                                 .repeat_count = a->repeat_count,
                                 .is_cost = a->model != NULL,
                                 .json = a->json};
    tow_status_t status =
        read_program(a->path, &program, &request.program_size);
    request.program = program;
    if (status == TOW_OK && target_of(a) == RUN_DRIVER) {
        if (request.device_count == 0) request.device_count = 1;
        status = tow_run_on_driver(&request, a->plugin, a->in_process);
    } else if (status == TOW_OK) {
        status = run_on_cluster(a, &request);
    }
    tow_free(program);
    return status;
}

int tow_command_run(int argc, char **argv)
{
    static const struct argp_option table[] = {
        {"input", 'i', "ARRAY", 0,
         "An argument of the program, in order: f32[2,2]=1,2,3,4, s32[8]=iota, "
         "f32[4]=0 or f32[4]=@FILE. Every device gets all of them",
         0},
        {"devices", 'n', "N", 0,
         "Run on N devices, as replicas (1; on a running cluster: all)", 0},
        {"processes", 'P', "N", 0,
         "Run on N workers with --devices each (1); embedded cluster only", 0},
        {"repeat", 'r', "N", 0, "Run N times, for the timings (1)", 0},
        {"json", 'j', NULL, 0, "Print JSON objects", 0},
        {"sim", 's', "MODEL", 0,
         "Simulated devices (tpu_v3, tpu_v4, ...); FILE is a cost program", 0},
        {"local", OPTION_LOCAL, NULL, 0,
         "Size the embedded cluster by TOW_LOCAL (workers=2,devices=4)", 0},
        {"cluster", OPTION_CLUSTER, NULL, 0,
         "Run on a running cluster: TOW_ADDRESS, or the one of `tow up`", 0},
        {"address", 'a', "ADDRESS", 0, "Run on the cluster at this address", 0},
        {"folder", OPTION_FOLDER, "FOLDER", 0,
         "Run on the cluster of `tow up --folder FOLDER`", 0},
        {"token", OPTION_TOKEN, "FILE", 0, "Token of the cluster", 0},
        {"plugin", 'p', "PATH", 0,
         "Load this PJRT plugin into this process and run without a cluster, "
         "to try the plugin",
         0},
        {"in-process", 'I', NULL, 0,
         "Run without a cluster, and compile in this process instead of a "
         "child: for plugins that cannot serialise executables, or whose "
         "devices belong to one process",
         0},
        {0},
    };
    static const struct argp argp = {
        .options = table,
        .parser = parse,
        .args_doc = "FILE",
        .doc = "Compiles one StableHLO program (text or portable artifact), "
               "runs it, and prints results and timings. By default it starts "
               "an embedded cluster on this host, which ends with the command.",
    };
    run_arguments_t arguments = {.repeat_count = 1};
    int result = tow_command_parse(&argp, argc, argv, &arguments);
    if (result == 0) result = tow_command_finish("run", perform(&arguments));
    tow_vec_deinit(&arguments.inputs);
    return result;
}
