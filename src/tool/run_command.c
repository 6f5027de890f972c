/* `tow run FILE`: compiles one program, runs it, shows what came out. */
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/vec.h"
#include "tool/bench.h"
#include "tool/cluster.h"
#include "tool/command.h"
#include "tool/gang.h"
#include "tool/literal.h"
#include "tool/local.h"

#define PROGRAM_SIZE_MAX     (256u << 20)
#define PRINTED_ELEMENTS_MAX 64

typedef struct run_arguments {
    const char *path;
    TOW_VEC(const char *) inputs; /* texts are argv's */
    const char *plugin;
    const char *model;
    uint64_t process_count; /* 0: this one */
    uint64_t device_count;  /* of each process */
    uint64_t repeat_count;
    bool in_process;
    bool json;
    /* On a cluster: one that is there, or one of its own. */
    bool on_cluster;
    bool on_local_cluster;
    bool has_device_count;
    tow_cluster_options_t cluster;
} run_arguments_t;

enum {
    OPTION_FOLDER = 256,
    OPTION_TOKEN,
    OPTION_CLUSTER,
    OPTION_LOCAL
};

static error_t parse_cluster(int key, char *argument, struct argp_state *state)
{
    run_arguments_t *a = state->input;
    switch (key) {
    case 'a': a->cluster.address = argument; break;
    case OPTION_FOLDER: a->cluster.folder = argument; break;
    case OPTION_TOKEN: a->cluster.token_file = argument; break;
    case OPTION_CLUSTER: break;
    case OPTION_LOCAL: a->on_local_cluster = true; break;
    default: return ARGP_ERR_UNKNOWN;
    }
    a->on_cluster = true;
    return 0;
}

static void check_words(const run_arguments_t *a, struct argp_state *state)
{
    if (a->path == NULL) argp_error(state, "name a file with a program");
    if (a->process_count > 0 && (a->plugin != NULL || a->model != NULL))
        argp_error(state, "--processes is for XLA on the CPU, without "
                          "--plugin or --sim");
    if (a->on_cluster &&
        (a->plugin != NULL || a->process_count > 0 || a->in_process))
        argp_error(state, "a cluster has its own devices: --plugin, "
                          "--processes and --in-process are for this host");
}

static error_t parse(int key, char *argument, struct argp_state *state)
{
    run_arguments_t *a = state->input;
    switch (key) {
    case 'i': return tow_vec_push(&a->inputs, argument) ? 0 : ENOMEM;
    case 'n':
        a->device_count =
            tow_command_number(state, "devices", argument, 1, 4096);
        a->has_device_count = true;
        return 0;
    case 'P':
        a->process_count = tow_command_number(state, "processes", argument, 1,
                                              TOW_GANG_PROCESS_COUNT_MAX);
        return 0;
    case 'r':
        a->repeat_count =
            tow_command_number(state, "repeat", argument, 1, 100000000);
        return 0;
    case 'p': a->plugin = argument; return 0;
    case 's': a->model = argument; return 0;
    case 'I': a->in_process = true; return 0;
    case 'j': a->json = true; return 0;
    case ARGP_KEY_ARG:
        if (a->path != NULL)
            argp_error(state, "one file, please: '%s' is a second", argument);
        a->path = argument;
        return 0;
    case ARGP_KEY_END: check_words(a, state); return 0;
    default: return parse_cluster(key, argument, state);
    }
}

/* All of one run: arguments and results of every device. */
typedef struct session {
    const run_arguments_t *arguments; /* lent */
    tow_local_t *local;               /* owned */
    void *program;                    /* owned */
    size_t program_size;
    tow_executable_t *executable;    /* owned */
    TOW_VEC(tow_buffer_t *) inputs;  /* owned; device by device */
    TOW_VEC(tow_buffer_t *) results; /* owned; device by device */
    size_t kept_count;               /* inputs of one device */
    size_t kept[TOW_RANK_MAX * 8];
    double compile_ms;
    double first_run_us;
    double run_us; /* median over the repetitions */
} session_t;

static tow_status_t read_program(session_t *session)
{
    const char *path = session->arguments->path;
    FILE *file = fopen(path, "rb");
    if (file == NULL) return TOW_ERRNO(errno, "opening %s", path);
    tow_status_t status = TOW_OK;
    fseek(file, 0, SEEK_END);
    long size = ftell(file);
    rewind(file);
    if (size < 0 || size > (long)PROGRAM_SIZE_MAX) {
        status = TOW_ERROR(TOW_OUT_OF_RANGE,
                           "%s has %ld bytes: a program has "
                           "at most %u",
                           path, size, PROGRAM_SIZE_MAX);
    } else if ((session->program = tow_malloc((size_t)size + 1)) == NULL) {
        status = tow_status_bare(TOW_RESOURCE_EXHAUSTED);
    } else {
        session->program_size = fread(session->program, 1, (size_t)size, file);
        if (session->program_size != (size_t)size)
            status = TOW_ERROR(TOW_DATA_LOSS, "reading %s stopped early", path);
    }
    fclose(file);
    return status;
}

static tow_status_t compile(session_t *session)
{
    const run_arguments_t *a = session->arguments;
    int64_t start_ns = tow_bench_now_ns();
    TOW_RETURN_IF_ERROR(tow_local_compile(
        session->local, a->model != NULL ? TOW_PROGRAM_COST : TOW_PROGRAM_MLIR,
        (tow_bytes_t){session->program, session->program_size}, a->device_count,
        &session->executable));
    session->compile_ms = (double)(tow_bench_now_ns() - start_ns) * 1e-6;
    return TOW_OK;
}

static tow_status_t upload_one(session_t *session, size_t device,
                               const char *text)
{
    tow_literal_t literal;
    TOW_RETURN_IF_ERROR(tow_literal_parse(text, &literal));
    tow_buffer_t *buffer = NULL;
    tow_status_t status = tow_local_upload(
        session->local, device, &literal.shape, literal.bytes, &buffer);
    tow_literal_deinit(&literal);
    if (buffer != NULL && !tow_vec_push(&session->inputs, buffer)) {
        tow_buffer_release(buffer);
        status = tow_status_bare(TOW_RESOURCE_EXHAUSTED);
    }
    return tow_status_annotate(status, "--input %s", text);
}

static tow_status_t upload_all(session_t *session)
{
    const run_arguments_t *a = session->arguments;
    for (size_t device = 0; device < a->device_count; device++)
        for (size_t i = 0; i < a->inputs.count; i++)
            TOW_RETURN_IF_ERROR(
                upload_one(session, device, a->inputs.items[i]));
    return TOW_OK;
}

static void release_results(session_t *session)
{
    for (size_t i = 0; i < session->results.count; i++)
        if (session->results.items[i] != NULL) /* A run that was refused. */
            tow_buffer_release(session->results.items[i]);
    session->results.count = 0;
}

/* Inputs are kept, so that the same run can be done again. */
static tow_status_t run_once(session_t *session, uint64_t gang_id,
                             double *out_us)
{
    const run_arguments_t *a = session->arguments;
    const size_t count =
        a->device_count * session->executable->signature.result_count;
    release_results(session);
    if (!tow_vec_reserve(&session->results, count + 1))
        return tow_status_bare(TOW_RESOURCE_EXHAUSTED);
    memset(session->results.items, 0, count * sizeof(tow_buffer_t *));
    session->results.count = count;
    tow_run_t run = {.executable = session->executable,
                     .gang_id = gang_id,
                     .arguments = session->inputs.items,
                     .argument_count = a->inputs.count,
                     .kept_arguments = session->kept,
                     .kept_argument_count = session->kept_count,
                     .results = session->results.items};
    int64_t start_ns = tow_bench_now_ns();
    tow_status_t status = tow_local_run(session->local, &run);
    *out_us = (double)(tow_bench_now_ns() - start_ns) * 1e-3;
    return status;
}

static tow_status_t run_all(session_t *session)
{
    const run_arguments_t *a = session->arguments;
    session->kept_count = a->inputs.count;
    if (session->kept_count > TOW_COUNT_OF(session->kept))
        return TOW_ERROR(TOW_OUT_OF_RANGE, "more than %zu inputs",
                         TOW_COUNT_OF(session->kept));
    for (size_t i = 0; i < session->kept_count; i++)
        session->kept[i] = i;
    double *samples = tow_calloc(a->repeat_count, sizeof(*samples));
    if (samples == NULL) return tow_status_bare(TOW_RESOURCE_EXHAUSTED);
    tow_status_t status = TOW_OK;
    for (uint64_t i = 0; i < a->repeat_count && status == TOW_OK; i++)
        status = run_once(session, i + 1, &samples[i]);
    session->first_run_us = samples[0];
    session->run_us = tow_bench_median(samples, a->repeat_count);
    tow_free(samples);
    return status;
}

static tow_status_t print_results(session_t *session)
{
    const size_t result_count = session->executable->signature.result_count;
    for (size_t i = 0; i < session->results.count; i++) {
        void *bytes = NULL;
        size_t size = 0;
        tow_buffer_t *buffer = session->results.items[i];
        TOW_RETURN_IF_ERROR(
            tow_local_download(session->local, buffer, &bytes, &size));
        printf("device %zu result %zu ", i / result_count, i % result_count);
        tow_literal_print(stdout, &buffer->shape, bytes, PRINTED_ELEMENTS_MAX);
        printf("\n");
        tow_free(bytes);
    }
    return TOW_OK;
}

static tow_status_t print_results_json(session_t *session)
{
    const size_t result_count = session->executable->signature.result_count;
    for (size_t i = 0; i < session->results.count; i++) {
        void *bytes = NULL;
        size_t size = 0, length = 0;
        char *text = NULL;
        tow_buffer_t *buffer = session->results.items[i];
        TOW_RETURN_IF_ERROR(
            tow_local_download(session->local, buffer, &bytes, &size));
        FILE *memory = open_memstream(&text, &length);
        if (memory != NULL) {
            tow_literal_print(memory, &buffer->shape, bytes,
                              PRINTED_ELEMENTS_MAX);
            fclose(memory);
            printf("{\"device\":%zu,\"result\":%zu,\"value\":\"%s\"}\n",
                   i / result_count, i % result_count, text);
            free(text);
        }
        tow_free(bytes);
    }
    return TOW_OK;
}

static void print_timings(const session_t *session)
{
    const tow_driver_t *driver = tow_local_driver(session->local);
    const run_arguments_t *a = session->arguments;
    if (a->json)
        printf("{\"compile_ms\":%.3f,\"first_run_us\":%.2f,\"run_us\":%.2f,"
               "\"runs\":%llu,\"devices\":%llu,\"simulated\":%s}\n",
               session->compile_ms, session->first_run_us, session->run_us,
               (unsigned long long)a->repeat_count,
               (unsigned long long)a->device_count,
               driver->simulated ? "true" : "false");
    else
        printf("compiled in %.1f ms; first run %.1f us, median of %llu %.1f us "
               "on %llu device(s) of %s%s\n",
               session->compile_ms, session->first_run_us,
               (unsigned long long)a->repeat_count, session->run_us,
               (unsigned long long)a->device_count, driver->platform,
               driver->simulated ? " (simulated)" : "");
}

/* -- A gang of processes ---------------------------------------------------- */

/* Before it runs, so that one who watches or disturbs it knows whom. */
static void print_members(const run_arguments_t *a, const tow_gang_t *gang)
{
    for (size_t i = 0; i < a->process_count; i++) {
        const int pid = (int)tow_gang_pid(gang, i);
        const long long first = tow_gang_device_id(i, 0);
        printf(a->json ? "{\"member\":%zu,\"pid\":%d,\"first_device_id\":%lld,"
                         "\"devices\":%llu}\n"
                       : "member %zu: process %d, device id %lld and up, "
                         "%llu device(s)\n",
               i, pid, first, (unsigned long long)a->device_count);
    }
    fflush(stdout);
}

static tow_status_t print_gang_result(const run_arguments_t *a,
                                      tow_gang_t *gang,
                                      const tow_gang_result_t *which)
{
    char text[TOW_GANG_TEXT_MAX];
    TOW_RETURN_IF_ERROR(tow_gang_result(gang, which, text));
    const size_t device = which->member * a->device_count + which->device;
    if (a->json)
        printf("{\"device\":%zu,\"member\":%zu,\"result\":%zu,"
               "\"value\":\"%s\"}\n",
               device, which->member, which->result, text);
    else
        printf("device %zu (member %zu) result %zu %s\n", device, which->member,
               which->result, text);
    return TOW_OK;
}

static tow_status_t print_gang_results(const run_arguments_t *a,
                                       tow_gang_t *gang)
{
    const size_t result_count = tow_gang_result_count(gang);
    const size_t each = a->device_count * result_count;
    for (size_t i = 0; i < a->process_count * each; i++) {
        tow_gang_result_t which = {.member = i / each,
                                   .device = i % each / result_count,
                                   .result = i % result_count};
        TOW_RETURN_IF_ERROR(print_gang_result(a, gang, &which));
    }
    return TOW_OK;
}

static void print_gang_timings(const run_arguments_t *a, const tow_gang_t *gang,
                               const tow_gang_timing_t *timing)
{
    const unsigned long long runs = a->repeat_count,
                             devices = a->process_count * a->device_count,
                             processes = a->process_count;
    if (a->json)
        printf("{\"compile_ms\":%.3f,\"first_run_us\":%.2f,\"run_us\":%.2f,"
               "\"runs\":%llu,\"devices\":%llu,\"processes\":%llu,"
               "\"simulated\":false}\n",
               tow_gang_compile_ms(gang), timing->first_us, timing->median_us,
               runs, devices, processes);
    else
        printf("compiled in %.1f ms; first run %.1f us, median of %llu %.1f us "
               "on %llu device(s) in %llu process(es)\n",
               tow_gang_compile_ms(gang), timing->first_us, runs,
               timing->median_us, devices, processes);
}

static tow_status_t perform_gang(session_t *session)
{
    const run_arguments_t *a = session->arguments;
    TOW_RETURN_IF_ERROR(read_program(session));
    tow_gang_options_t options = {
        .process_count = a->process_count,
        .device_count = a->device_count,
        .program = {session->program, session->program_size},
        .inputs = a->inputs.items,
        .input_count = a->inputs.count,
        .printed_elements_max = PRINTED_ELEMENTS_MAX};
    tow_gang_t *gang = NULL;
    TOW_RETURN_IF_ERROR(tow_status_annotate(tow_gang_open(&options, &gang),
                                            "loading %s", a->path));
    print_members(a, gang);
    tow_gang_run_t run = {.count = a->repeat_count, .ahead = 1};
    tow_gang_timing_t timing;
    tow_status_t status = tow_status_annotate(tow_gang_run(gang, &run, &timing),
                                              "running %s", a->path);
    if (status == TOW_OK) status = print_gang_results(a, gang);
    if (status == TOW_OK) print_gang_timings(a, gang, &timing);
    tow_gang_close(gang);
    return status;
}

/* -- On a cluster ----------------------------------------------------------- */

static tow_status_t open_client(const run_arguments_t *a,
                                tow_client_t **out_client)
{
    if (!a->on_local_cluster) return tow_cluster_open(&a->cluster, out_client);
    const tow_client_options_t options = {.struct_size = sizeof(options),
                                          .name = "tow",
                                          .address = "",
                                          .simulated = a->model};
    return tow_client_open(&options, out_client);
}

static tow_status_t perform_on_cluster(session_t *session)
{
    const run_arguments_t *a = session->arguments;
    tow_client_t *client = NULL;
    TOW_RETURN_IF_ERROR(read_program(session));
    TOW_RETURN_IF_ERROR(open_client(a, &client));
    const tow_cluster_run_t run = {
        .program = session->program,
        .program_size = session->program_size,
        .path = a->path,
        .inputs = a->inputs.items,
        .input_count = a->inputs.count,
        .device_count = a->has_device_count ? a->device_count : 0,
        .repeat_count = a->repeat_count,
        .printed_elements_max = PRINTED_ELEMENTS_MAX,
        .is_cost = a->model != NULL,
        .json = a->json};
    tow_status_t status = tow_cluster_run(client, &run);
    tow_client_release(client);
    return status;
}

/* -- The command ------------------------------------------------------------ */

static tow_status_t perform(session_t *session)
{
    const run_arguments_t *a = session->arguments;
    TOW_RETURN_IF_ERROR(read_program(session));
    tow_local_options_t options = {.plugin = a->plugin,
                                   .model = a->model,
                                   .device_count = a->device_count,
                                   .compile_place = a->in_process
                                                        ? TOW_LOCAL_IN_PROCESS
                                                        : TOW_LOCAL_CHILD};
    TOW_RETURN_IF_ERROR(tow_local_open(&options, &session->local));
    TOW_RETURN_IF_ERROR(
        tow_status_annotate(compile(session), "compiling %s", a->path));
    TOW_RETURN_IF_ERROR(upload_all(session));
    TOW_RETURN_IF_ERROR(
        tow_status_annotate(run_all(session), "running %s", a->path));
    TOW_RETURN_IF_ERROR(a->json ? print_results_json(session)
                                : print_results(session));
    print_timings(session);
    return TOW_OK;
}

static void end(session_t *session)
{
    release_results(session);
    tow_vec_deinit(&session->results);
    for (size_t i = 0; i < session->inputs.count; i++)
        tow_buffer_release(session->inputs.items[i]);
    tow_vec_deinit(&session->inputs);
    if (session->executable != NULL)
        tow_executable_release(session->executable);
    tow_local_close(session->local);
    tow_free(session->program);
}

int tow_command_run(int argc, char **argv)
{
    static const struct argp_option table[] = {
        {"input", 'i', "ARRAY", 0,
         "An argument, in order: f32[2,2]=1,2,3,4, s32[8]=iota, f32[4]=0 or "
         "f32[4]=@FILE",
         0},
        {"devices", 'n', "N", 0,
         "Run on N devices, as replicas (1; on a cluster: all)", 0},
        {"cluster", OPTION_CLUSTER, NULL, 0,
         "Run on a cluster: that of TOW_ADDRESS, or of `tow up`", 0},
        {"address", 'a', "ADDRESS", 0, "Run on the cluster at this address", 0},
        {"folder", OPTION_FOLDER, "FOLDER", 0,
         "Run on the cluster of `tow up --folder`", 0},
        {"token", OPTION_TOKEN, "FILE", 0, "The cluster's token", 0},
        {"local", OPTION_LOCAL, NULL, 0,
         "Run on a cluster of its own, which TOW_LOCAL sizes "
         "(workers=2,devices=4)",
         0},
        {"processes", 'P', "N", 0,
         "One gang over N child processes with --devices each, on XLA on the "
         "CPU",
         0},
        {"repeat", 'r', "N", 0, "Run N times, for the timings (1)", 0},
        {"plugin", 'p', "PATH", 0, "A PJRT plugin (default: XLA on the CPU)",
         0},
        {"sim", 's', "MODEL", 0,
         "A simulated device; FILE is then a cost program", 0},
        {"in-process", 'I', NULL, 0,
         "Compile in this process, and not in a child that may crash: for "
         "plugins that cannot serialise, or whose devices take one process",
         0},
        {"json", 'j', NULL, 0, "JSON objects instead of text", 0},
        {0},
    };
    static const struct argp argp = {
        .options = table,
        .parser = parse,
        .args_doc = "FILE",
        .doc = "Compiles one StableHLO program (text or portable artifact), "
               "runs it, and prints results and timings: on devices of this "
               "process, or as a client of a cluster.",
    };
    if (argc > 1 && strcmp(argv[1], "gang-member") == 0)
        return tow_gang_member(argc - 1, argv + 1);
    run_arguments_t arguments = {.device_count = 1, .repeat_count = 1};
    int result = tow_command_parse(&argp, argc, argv, &arguments);
    if (result == 0) {
        session_t session = {.arguments = &arguments};
        tow_status_t status =
            arguments.on_cluster          ? perform_on_cluster(&session)
            : arguments.process_count > 0 ? perform_gang(&session)
                                          : perform(&session);
        end(&session);
        result = tow_command_finish("run", status);
    }
    tow_vec_deinit(&arguments.inputs);
    return result;
}
