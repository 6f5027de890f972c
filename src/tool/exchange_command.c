/* `tow exchange`: the exchange between two real processes, or simulated. */
#include <inttypes.h>
#include <jansson.h>
#include <limits.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "env/net/net.h"
#include "tool/bench.h"
#include "tool/command.h"
#include "tool/exchange.h"
#include "tool/keys.h"
#include "tool/process.h"
#include "tool/scenario.h"

/* What either process waits for the other before it gives up. */
#define EXCHANGE_TIMEOUT_NS INT64_C(60000000000)
/* How the taking process says where. */
#define LISTENING "listening "

typedef enum transport {
    TRANSPORT_UNIX,
    TRANSPORT_TCP,
    TRANSPORT_TLS
} transport_t;

typedef struct exchange_arguments {
    uint64_t message_count;
    uint64_t payload_size;
    uint64_t block_count;
    uint64_t block_size;
    transport_t transport;
    bool simulated;
    uint64_t seed;
    bool json;
    const char *serve_address; /* the child: where to listen */
    const char *keys_folder;   /* the child: where the secrets are */
} exchange_arguments_t;

enum {
    OPTION_SIM = 256,
    OPTION_SEED,
    OPTION_BLOCKS,
    OPTION_BLOCK_SIZE,
    OPTION_SERVE,
    OPTION_KEYS,
};

static transport_t parse_transport(const struct argp_state *state,
                                   const char *text)
{
    if (strcmp(text, "unix") == 0) return TRANSPORT_UNIX;
    if (strcmp(text, "tcp") == 0) return TRANSPORT_TCP;
    if (strcmp(text, "tls") == 0) return TRANSPORT_TLS;
    argp_error(state, "--transport takes unix, tcp or tls, not '%s'", text);
    return TRANSPORT_UNIX;
}

static error_t parse(int key, char *argument, struct argp_state *state)
{
    exchange_arguments_t *a = state->input;
    switch (key) {
    case 'm':
        a->message_count = tow_command_number(state, "messages", argument, 1,
                                              UINT64_C(1000000000));
        return 0;
    case 's':
        a->payload_size = tow_command_number(state, "size", argument, 16,
                                             TOW_EXCHANGE_PAYLOAD_SIZE_MAX);
        return 0;
    case OPTION_BLOCKS:
        a->block_count =
            tow_command_number(state, "blocks", argument, 0, 1000000);
        return 0;
    case OPTION_BLOCK_SIZE:
        a->block_size = tow_command_number(state, "block-size", argument, 16,
                                           UINT64_C(1) << 30);
        return 0;
    case 't': a->transport = parse_transport(state, argument); return 0;
    case OPTION_SIM: a->simulated = true; return 0;
    case OPTION_SEED:
        a->seed = tow_command_number(state, "seed", argument, 0, UINT64_MAX);
        return 0;
    case 'j': a->json = true; return 0;
    case OPTION_SERVE: a->serve_address = argument; return 0;
    case OPTION_KEYS: a->keys_folder = argument; return 0;
    case ARGP_KEY_ARG:
        argp_error(state, "unexpected word '%s'", argument);
        return EINVAL;
    default: return ARGP_ERR_UNKNOWN;
    }
}

/* -- One process of the two ------------------------------------------------ */

typedef struct side {
    const char *name;
    tow_security_t security;  /* its tls is owned */
    tow_net_t *net;           /* owned */
    tow_exchange_t *exchange; /* owned */
    bool done;
    bool timed_out;
    tow_timer_t patience;
} side_t;

static void side_done(void *context)
{
    side_t *side = context;
    side->done = true;
    tow_net_stop(side->net);
}

static void out_of_patience(tow_timer_t *timer)
{
    side_t *side = TOW_CONTAINER_OF(timer, side_t, patience);
    side->timed_out = true;
    tow_net_stop(side->net);
}

static tow_status_t side_open(side_t *side, const exchange_arguments_t *a,
                              const char *keys_folder)
{
    tow_keys_t keys;
    TOW_RETURN_IF_ERROR(tow_keys_in(keys_folder, &keys));
    TOW_RETURN_IF_ERROR(tow_keys_load(&keys, &side->security));
    tow_net_options_t net = {
        .name = side->name,
        .security = &side->security,
        .log = tow_command_log(side->name),
        .data_plane = a->block_count > 0 ? TOW_NET_DATA_UCX : TOW_NET_DATA_OFF,
    };
    return tow_net_create(&net, &side->net);
}

static tow_status_t side_start(side_t *side, const exchange_arguments_t *a,
                               const char *listen, const char *dial)
{
    tow_env_t *env = tow_net_env(side->net);
    tow_exchange_options_t exchange = {
        .listen_address = listen,
        .dial_addresses = &dial,
        .dial_count = dial != NULL ? 1 : 0,
        .message_count = a->message_count,
        .payload_size = (uint32_t)a->payload_size,
        .block_count = a->block_count,
        .block_size = a->block_size,
        .finished = side_done,
        .peer_left = side_done,
        .context = side,
    };
    side->patience.fire = out_of_patience;
    tow_env_timer_start(env, &side->patience,
                        tow_env_now_ns(env) + EXCHANGE_TIMEOUT_NS);
    return tow_exchange_create(env, &exchange, &side->exchange);
}

static tow_status_t side_outcome(const side_t *side)
{
    TOW_RETURN_IF_ERROR(tow_exchange_check(side->exchange));
    if (side->timed_out)
        return TOW_ERROR(TOW_DEADLINE_EXCEEDED,
                         "%s was not done within %lld s: see what the link "
                         "says with TOW_LOG=info",
                         side->name,
                         (long long)(EXCHANGE_TIMEOUT_NS / 1000000000));
    return TOW_OK;
}

static void side_close(side_t *side)
{
    tow_net_destroy(side->net);
    tow_exchange_destroy(side->exchange);
    tow_tls_context_destroy(side->security.tls);
}

/* -- The child -------------------------------------------------------------- */

static json_t *stats_json(const char *who, const tow_exchange_stats_t *stats)
{
    return json_pack(
        "{s:s, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I}", "process",
        who, "pid", (json_int_t)getpid(), "messages_sent",
        (json_int_t)stats->messages_sent, "messages_resent",
        (json_int_t)stats->messages_resent, "messages_taken",
        (json_int_t)stats->messages_taken, "duplicates_dropped",
        (json_int_t)stats->duplicates_dropped, "blocks_written",
        (json_int_t)stats->blocks_written, "blocks_repeated",
        (json_int_t)stats->blocks_repeated, "blocks_taken",
        (json_int_t)stats->blocks_taken, "epochs", (json_int_t)stats->epochs,
        "breaks", (json_int_t)stats->breaks);
}

static void print_object(json_t *take_object)
{
    if (take_object == NULL) return;
    json_dumpf(take_object, stdout, JSON_COMPACT);
    printf("\n");
    fflush(stdout);
    json_decref(take_object);
}

/* Says where it listens in its first line, and what it took in its last. */
static tow_status_t serve(const exchange_arguments_t *a)
{
    side_t side = {.name = "taker"};
    tow_status_t status = side_open(&side, a, a->keys_folder);
    if (status == TOW_OK) status = side_start(&side, a, a->serve_address, NULL);
    if (status == TOW_OK) {
        printf(LISTENING "%s\n", tow_exchange_address(side.exchange));
        fflush(stdout);
        tow_net_run(side.net);
        status = side_outcome(&side);
        print_object(stats_json("taker", tow_exchange_stats(side.exchange)));
    }
    side_close(&side);
    return status;
}

/* -- The parent ------------------------------------------------------------- */

static tow_status_t make_keys(const char *folder, transport_t transport)
{
    tow_keys_t keys;
    TOW_RETURN_IF_ERROR(tow_keys_in(folder, &keys));
    return tow_keys_make(&keys,
                         transport == TRANSPORT_TLS ? "127.0.0.1" : NULL);
}

static void listen_address(transport_t transport, const char *folder,
                           char *text, size_t capacity)
{
    if (transport == TRANSPORT_UNIX)
        snprintf(text, capacity, "unix:%s/taker.sock", folder);
    else
        snprintf(text, capacity, "%s:127.0.0.1:0",
                 transport == TRANSPORT_TCP ? "tcp" : "tls");
}

static tow_status_t start_taker(const exchange_arguments_t *a,
                                const char *folder, tow_process_t *out_process)
{
    char address[TOW_KEYS_PATH_SIZE], blocks[32], block_size[32], size[32];
    listen_address(a->transport, folder, address, sizeof(address));
    snprintf(blocks, sizeof(blocks), "%" PRIu64, a->block_count);
    snprintf(block_size, sizeof(block_size), "%" PRIu64, a->block_size);
    snprintf(size, sizeof(size), "%" PRIu64, a->payload_size);
    char *const argv[] = {
        "tow",          "exchange", "--serve", address,        "--keys",
        (char *)folder, "--blocks", blocks,    "--block-size", block_size,
        "--size",       size,       NULL};
    return tow_process_start_self(argv, NULL, TOW_OUTPUT_PIPE, out_process);
}

static tow_status_t read_line(int fd, char *line, size_t capacity)
{
    size_t count = 0;
    struct pollfd waited = {.fd = fd, .events = POLLIN};
    while (count + 1 < capacity) {
        if (poll(&waited, 1, 20000) != 1 || read(fd, line + count, 1) != 1)
            return TOW_ERROR(TOW_UNAVAILABLE,
                             "the other process did not say where it listens");
        if (line[count] == '\n') break;
        count++;
    }
    line[count] = '\0';
    return TOW_OK;
}

/* UCX may have something to say on standard output first. */
static tow_status_t read_address(int fd, char *address, size_t capacity)
{
    char line[PATH_MAX + sizeof(LISTENING)];
    do
        TOW_RETURN_IF_ERROR(read_line(fd, line, sizeof(line)));
    while (strncmp(line, LISTENING, strlen(LISTENING)) != 0);
    snprintf(address, capacity, "%s", line + strlen(LISTENING));
    return TOW_OK;
}

static void print_summary(const exchange_arguments_t *a, const side_t *side,
                          const char *address, double seconds)
{
    const tow_exchange_stats_t *stats = tow_exchange_stats(side->exchange);
    double bytes = (double)stats->blocks_written * (double)a->block_size;
    if (a->json) {
        print_object(stats_json("giver", stats));
        print_object(json_pack("{s:s, s:f, s:f, s:f, s:b}", "address", address,
                               "seconds", seconds, "messages_per_second",
                               (double)stats->messages_sent / seconds,
                               "bytes_in_blocks", bytes, "simulated", 0));
        return;
    }
    printf("two processes over %s: %" PRIu64 " messages of %" PRIu64
           " bytes and %" PRIu64 " blocks of %" PRIu64
           " bytes, every byte checked, in %.3f s\n",
           address, stats->messages_sent, a->payload_size,
           stats->blocks_written, a->block_size, seconds);
}

static tow_status_t give(const exchange_arguments_t *a, const char *folder,
                         tow_process_t *taker)
{
    char address[PATH_MAX + sizeof(LISTENING)], text[4096];
    TOW_RETURN_IF_ERROR(
        read_address(taker->output_fd, address, sizeof(address)));
    side_t side = {.name = "giver"};
    tow_status_t status = side_open(&side, a, folder);
    int64_t start_ns = tow_bench_now_ns();
    if (status == TOW_OK) status = side_start(&side, a, NULL, address);
    if (status == TOW_OK) {
        tow_net_run(side.net);
        double seconds = (double)(tow_bench_now_ns() - start_ns) * 1e-9;
        status = side_outcome(&side);
        if (status == TOW_OK) print_summary(a, &side, address, seconds);
    }
    side_close(&side);
    TOW_RETURN_IF_ERROR(status);
    TOW_RETURN_IF_ERROR(tow_process_finish(
        taker, "the taking process", EXCHANGE_TIMEOUT_NS, text, sizeof(text)));
    if (a->json) printf("%s", text);
    return TOW_OK;
}

static tow_status_t run_two_processes(const exchange_arguments_t *a)
{
    char folder[PATH_MAX];
    TOW_RETURN_IF_ERROR(tow_scratch_create(folder, sizeof(folder)));
    tow_process_t taker = {.output_fd = -1};
    tow_status_t status = make_keys(folder, a->transport);
    if (status == TOW_OK) status = start_taker(a, folder, &taker);
    if (status == TOW_OK) status = give(a, folder, &taker);
    tow_process_kill(&taker);
    tow_scratch_remove(folder);
    return status;
}

static tow_status_t run_simulated(const exchange_arguments_t *a)
{
    tow_scenario_options_t options = {.seed = a->seed,
                                      .node_count = 2,
                                      .message_count = a->message_count,
                                      .block_count = a->block_count,
                                      .faults = TOW_SCENARIO_FAULTY,
                                      .log = tow_command_log("sim")};
    if (getenv("TOW_LOG") == NULL) options.log.level = TOW_LOG_ERROR;
    tow_scenario_result_t result;
    TOW_RETURN_IF_ERROR(tow_scenario_run(&options, &result));
    if (a->json) {
        print_object(json_pack(
            "{s:I, s:f, s:I, s:I, s:I, s:I, s:b}", "seed", (json_int_t)a->seed,
            "virtual_seconds", (double)result.virtual_ns * 1e-9,
            "messages_taken", (json_int_t)result.stats.messages_taken,
            "messages_resent", (json_int_t)result.stats.messages_resent,
            "blocks_taken", (json_int_t)result.stats.blocks_taken, "faults",
            (json_int_t)result.fault_count, "simulated", 1));
        return TOW_OK;
    }
    printf("simulated, the same machines: seed %" PRIu64 ", %" PRIu64
           " messages taken and %" PRIu64
           " sent again through %zu faults, %" PRIu64
           " blocks, in %.3f virtual s, digest %016" PRIx64 "\n",
           a->seed, result.stats.messages_taken, result.stats.messages_resent,
           result.fault_count, result.stats.blocks_taken,
           (double)result.virtual_ns * 1e-9, result.digest);
    return TOW_OK;
}

int tow_command_exchange(int argc, char **argv)
{
    static const struct argp_option table[] = {
        {"messages", 'm', "N", 0, "Messages to send (default 10000)", 0},
        {"size", 's', "BYTES", 0, "Bytes in each message (default 64)", 0},
        {"blocks", OPTION_BLOCKS, "N", 0,
         "Bulk writes over the data plane after that (default 8)", 0},
        {"block-size", OPTION_BLOCK_SIZE, "BYTES", 0,
         "Bytes in each bulk write (default 1M)", 0},
        {"transport", 't', "NAME", 0,
         "unix, tcp or tls for the control plane (default unix)", 0},
        {"sim", OPTION_SIM, NULL, 0,
         "Run the same machines in the simulator, with faults", 0},
        {"seed", OPTION_SEED, "N", 0, "Of the simulation (default 1)", 0},
        {"json", 'j', NULL, 0, "JSON objects instead of sentences", 0},
        {"serve", OPTION_SERVE, "ADDRESS", OPTION_HIDDEN, NULL, 0},
        {"keys", OPTION_KEYS, "FOLDER", OPTION_HIDDEN, NULL, 0},
        {0},
    };
    static const struct argp argp = {
        .options = table,
        .parser = parse,
        .doc = "Starts a second process and exchanges numbered messages (over "
               "the control plane) and blocks of data (over the data plane) "
               "with it; every byte is checked. With --sim the same state "
               "machines run in the simulator.",
    };
    exchange_arguments_t arguments = {.message_count = 10000,
                                      .payload_size = 64,
                                      .block_count = 8,
                                      .block_size = 1000000,
                                      .seed = 1};
    int usage = tow_command_parse(&argp, argc, argv, &arguments);
    if (usage != 0) return usage;
    tow_status_t status;
    if (arguments.serve_address != NULL)
        status = serve(&arguments);
    else if (arguments.simulated)
        status = run_simulated(&arguments);
    else
        status = run_two_processes(&arguments);
    return tow_command_finish("exchange", status);
}
