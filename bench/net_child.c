/* The two processes of `tow bench net`: one serves, one measures and prints a
 * number. Both use the production event loop. They are the same program on one
 * host, so messages are plain structs. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/vec.h"
#include "bench/harness.h"
#include "bench/net.h"
#include "env/net/net.h"
#include "supervisor/keys.h"
#include "supervisor/log_environment.h"

enum {
    TYPE_ECHO = 100, /* is sent back */
    TYPE_FLOOD,      /* is only counted */
    TYPE_FLOOD_END,  /* asks for the count */
    TYPE_LANE_ASK,   /* our lane address */
    TYPE_LANE_OFFER, /* a region, and the server's lane address */
};

#define ECHO_CHANNEL     1
#define BULK_SLOTS       2
#define LANE_ADDRESS_MAX 4096

typedef struct lane_offer {
    tow_region_key_t key;
    uint64_t address_size;
    uint8_t address[LANE_ADDRESS_MAX];
} lane_offer_t;

typedef struct bench_process bench_process_t;

typedef struct bulk_slot {
    tow_write_t write;
    bench_process_t *process; /* lent */
} bulk_slot_t;

struct bench_process {
    tow_security_t security;
    tow_net_t *net; /* owned */
    tow_env_t *env;
    tow_link_t *link;
    tow_lane_t *lane;
    tow_region_t *region;
    uint8_t *memory; /* owned: bulk source or target */
    /* The measuring side. */
    const char *kind;
    uint64_t count;
    uint64_t started;
    uint64_t done;
    int64_t start_ns;
    int64_t end_ns;
    double *samples; /* owned: round trips, in ns */
    int64_t sent_ns;
    tow_region_key_t key;
    bulk_slot_t slots[BULK_SLOTS];
    tow_status_t error; /* owned */
    /* The serving side. */
    uint64_t flood_count;
};

static void stop_with(bench_process_t *process, tow_status_t take_error)
{
    if (process->error == TOW_OK)
        process->error = take_error;
    else
        tow_status_ignore(take_error, "the first error is kept");
    tow_net_stop(process->net);
}

/* With a certificate in the folder, for tls: addresses. */
static tow_status_t load_keys(bench_process_t *process, const char *folder)
{
    tow_keys_t keys;
    TOW_RETURN_IF_ERROR(tow_keys_in(folder, &keys));
    TOW_RETURN_IF_ERROR(tow_token_load(keys.token, &process->security.token));
    process->security.has_token = true;
    if (access(keys.certificate, R_OK) != 0) return TOW_OK;
    const tow_tls_options_t tls = {.certificate_path = keys.certificate,
                                   .key_path = keys.key,
                                   .authority_path = keys.certificate};
    return tow_tls_context_create(&tls, &process->security.tls);
}

static tow_status_t process_open(bench_process_t *process, const char *name,
                                 const char *keys_folder)
{
    TOW_RETURN_IF_ERROR(load_keys(process, keys_folder));
    tow_net_options_t options = {.name = name,
                                 .security = &process->security,
                                 .log = tow_log_from_environment(name),
                                 .data_plane = TOW_NET_DATA_UCX};
    TOW_RETURN_IF_ERROR(tow_net_create(&options, &process->net));
    process->env = tow_net_env(process->net);
    return TOW_OK;
}

static void process_close(bench_process_t *process)
{
    tow_net_destroy(process->net);
    tow_tls_context_destroy(process->security.tls);
    tow_free(process->memory);
    tow_free(process->samples);
}

static void lane_down(void *context, tow_lane_t *lane, tow_status_t cause)
{
    (void)lane;
    bench_process_t *process = context;
    /* The server's region may be released before the link goes down. */
    if (process->kind != NULL) stop_with(process, tow_status_retain(cause));
}

static tow_status_t open_lane(bench_process_t *process, const void *address,
                              size_t size)
{
    tow_lane_options_t options = {.address = address,
                                  .address_size = size,
                                  .peer_name = process->link->peer.name,
                                  .down = lane_down,
                                  .context = process};
    return tow_env_lane_open(process->env, &options, &process->lane);
}

/* -- Serving ---------------------------------------------------------------- */

static void datagram_echo(void *context, uint64_t channel, const void *bytes,
                          size_t size)
{
    bench_process_t *process = context;
    if (tow_lane_send(process->lane, channel, bytes, size) != TOW_SEND_OK)
        stop_with(process, TOW_ERROR(TOW_INTERNAL,
                                     "send queue full: no room for an echo"));
}

static void bulk_arrived(void *context, tow_region_t *region,
                         const tow_arrival_t *arrival)
{
    (void)context, (void)region, (void)arrival;
}

static tow_status_t answer_lane(bench_process_t *process,
                                const tow_message_t *message)
{
    size_t size = (size_t)BULK_SLOTS * TOW_BENCH_BULK_SIZE;
    TOW_RETURN_IF_ERROR(open_lane(process, message->bytes, message->size));
    tow_env_datagram_handler(process->env, datagram_echo, process);
    process->memory = tow_aligned_alloc(4096, size);
    if (process->memory == NULL) return tow_status_bare(TOW_RESOURCE_EXHAUSTED);
    memset(process->memory, 0, size);
    tow_region_options_t region = {.bytes = process->memory,
                                   .size = size,
                                   .arrived = bulk_arrived,
                                   .context = process};
    TOW_RETURN_IF_ERROR(
        tow_env_region_open(process->env, &region, &process->region));
    lane_offer_t offer = {.key = tow_region_key(process->region)};
    const void *address = NULL;
    tow_env_lane_address(process->env, &address, &offer.address_size);
    if (offer.address_size > LANE_ADDRESS_MAX)
        return TOW_ERROR(TOW_INTERNAL, "a lane address of %llu bytes",
                         (unsigned long long)offer.address_size);
    memcpy(offer.address, address, offer.address_size);
    if (tow_link_send(process->link, TYPE_LANE_OFFER, &offer, sizeof(offer)) !=
        TOW_SEND_OK)
        return TOW_ERROR(TOW_INTERNAL,
                         "send queue full: no room for the offer");
    return TOW_OK;
}

static void serve_message(void *context, tow_link_t *link,
                          const tow_message_t *message)
{
    bench_process_t *process = context;
    tow_send_result_t result = TOW_SEND_OK;
    tow_status_t status = TOW_OK;
    switch (message->type) {
    case TYPE_ECHO:
        result = tow_link_send(link, TYPE_ECHO, message->bytes, message->size);
        break;
    case TYPE_FLOOD: process->flood_count++; break;
    case TYPE_FLOOD_END:
        result = tow_link_send(link, TYPE_FLOOD_END, &process->flood_count,
                               sizeof(process->flood_count));
        break;
    case TYPE_LANE_ASK: status = answer_lane(process, message); break;
    default: status = TOW_ERROR(TOW_INTERNAL, "type %u", message->type);
    }
    if (result != TOW_SEND_OK)
        status =
            TOW_ERROR(TOW_INTERNAL, "send queue full: no room for a reply");
    if (status != TOW_OK) stop_with(process, status);
}

static void serve_up(void *context, tow_link_t *link)
{
    (void)context, (void)link;
}

static void serve_down(void *context, tow_link_t *link, tow_status_t cause)
{
    (void)link, (void)cause;
    bench_process_t *process = context;
    tow_net_stop(process->net);
}

static void serve_accept(void *context, tow_link_t *link)
{
    static const tow_link_handler_t handler = {
        .up = serve_up, .message = serve_message, .down = serve_down};
    bench_process_t *process = context;
    process->link = link;
    link->handler = &handler;
    link->context = process;
}

tow_status_t tow_bench_net_serve(int argc, char **argv)
{
    if (argc != 3)
        return TOW_ERROR(TOW_INVALID_ARGUMENT, "%d arguments, not 2", argc - 1);
    bench_process_t process = {0};
    tow_listener_t *listener = NULL;
    tow_status_t status = process_open(&process, "server", argv[2]);
    if (status == TOW_OK) {
        tow_listen_options_t listen = {.address = argv[1],
                                       .carries_lanes = true,
                                       .accept = serve_accept,
                                       .context = &process};
        status = tow_env_listen(process.env, &listen, &listener);
    }
    if (status == TOW_OK) {
        printf("%s\n", listener->address);
        fflush(stdout);
        tow_net_run(process.net);
        status = process.error;
    }
    process_close(&process);
    return status;
}

/* -- Measuring -------------------------------------------------------------- */

static void begin(bench_process_t *process)
{
    process->start_ns = process->sent_ns = tow_bench_now_ns();
}

static void end(bench_process_t *process)
{
    process->end_ns = tow_bench_now_ns();
    tow_net_stop(process->net);
}

/* One clock reading per round trip: the end of one is the start of the next. */
static void take_sample(bench_process_t *process)
{
    int64_t now_ns = tow_bench_now_ns();
    process->samples[process->done++] = (double)(now_ns - process->sent_ns);
    process->sent_ns = now_ns;
}

static void send_echo(bench_process_t *process)
{
    if (tow_link_send(process->link, TYPE_ECHO, &process->done, 8) !=
        TOW_SEND_OK)
        stop_with(process, TOW_ERROR(TOW_INTERNAL,
                                     "send queue full: no room for an echo"));
}

static void take_echo(bench_process_t *process)
{
    take_sample(process);
    if (process->done == process->count)
        end(process);
    else
        send_echo(process);
}

static void pump_flood(bench_process_t *process)
{
    while (process->started < process->count) {
        if (tow_link_send(process->link, TYPE_FLOOD, &process->started, 8) !=
            TOW_SEND_OK)
            return;
        process->started++;
    }
    if (process->done == 0 &&
        tow_link_send(process->link, TYPE_FLOOD_END, NULL, 0) == TOW_SEND_OK)
        process->done = 1;
}

static void take_flood_count(bench_process_t *process,
                             const tow_message_t *message)
{
    uint64_t counted = 0;
    memcpy(&counted, message->bytes, sizeof(counted));
    if (counted != process->count)
        stop_with(process,
                  TOW_ERROR(TOW_DATA_LOSS, "%llu of %llu messages arrived",
                            (unsigned long long)counted,
                            (unsigned long long)process->count));
    end(process);
}

static void send_datagram(bench_process_t *process)
{
    if (tow_lane_send(process->lane, ECHO_CHANNEL, &process->done, 8) !=
        TOW_SEND_OK)
        stop_with(
            process,
            TOW_ERROR(TOW_INTERNAL, "send queue full: no room for a datagram"));
}

static void datagram_back(void *context, uint64_t channel, const void *bytes,
                          size_t size)
{
    (void)channel, (void)bytes, (void)size;
    bench_process_t *process = context;
    take_sample(process);
    if (process->done == process->count)
        end(process);
    else
        send_datagram(process);
}

static void start_write(bulk_slot_t *slot);

static void write_done(tow_write_t *write, tow_status_t take_status)
{
    bulk_slot_t *slot = TOW_CONTAINER_OF(write, bulk_slot_t, write);
    bench_process_t *process = slot->process;
    if (take_status != TOW_OK) {
        stop_with(process, take_status);
        return;
    }
    /* The first write of each slot is a warm-up: it touches the pages and
     * connects the lane. Timing starts after it. */
    if (++process->done == BULK_SLOTS) begin(process);
    if (process->done == process->count + BULK_SLOTS)
        end(process);
    else if (process->started < process->count + BULK_SLOTS)
        start_write(slot);
}

static void start_write(bulk_slot_t *slot)
{
    bench_process_t *process = slot->process;
    size_t offset = (size_t)(slot - process->slots) * TOW_BENCH_BULK_SIZE;
    slot->write = (tow_write_t){.bytes = process->memory + offset,
                                .size = TOW_BENCH_BULK_SIZE,
                                .key = process->key,
                                .offset = offset,
                                .done = write_done};
    process->started++;
    if (tow_lane_write(process->lane, &slot->write) != TOW_SEND_OK)
        stop_with(process, TOW_ERROR(TOW_INTERNAL, "write queue full"));
}

static void start_bulk(bench_process_t *process)
{
    size_t size = (size_t)BULK_SLOTS * TOW_BENCH_BULK_SIZE;
    process->memory = tow_aligned_alloc(4096, size);
    if (process->memory == NULL) {
        stop_with(process, tow_status_bare(TOW_RESOURCE_EXHAUSTED));
        return;
    }
    memset(process->memory, 1, size);
    for (size_t i = 0; i < BULK_SLOTS; i++) {
        process->slots[i].process = process;
        start_write(&process->slots[i]);
    }
}

static void take_offer(bench_process_t *process, const tow_message_t *message)
{
    lane_offer_t offer;
    memcpy(&offer, message->bytes, sizeof(offer));
    process->key = offer.key;
    tow_env_lane_prepare(process->env, offer.address, offer.address_size);
    tow_status_t status = open_lane(process, offer.address, offer.address_size);
    if (status != TOW_OK) {
        stop_with(process, status);
        return;
    }
    if (strcmp(process->kind, "lane_bulk") == 0) {
        start_bulk(process);
    } else {
        tow_env_datagram_handler(process->env, datagram_back, process);
        begin(process);
        send_datagram(process);
    }
}

static void measure_up(void *context, tow_link_t *link)
{
    bench_process_t *process = context;
    begin(process);
    if (strcmp(process->kind, "link_roundtrip") == 0) {
        send_echo(process);
    } else if (strcmp(process->kind, "link_oneway") == 0) {
        pump_flood(process);
    } else {
        const void *address = NULL;
        size_t size = 0;
        tow_env_lane_address(process->env, &address, &size);
        if (tow_link_send(link, TYPE_LANE_ASK, address, (uint32_t)size) !=
            TOW_SEND_OK)
            stop_with(process,
                      TOW_ERROR(TOW_INTERNAL,
                                "send queue full: no room for a lane request"));
    }
}

static void measure_message(void *context, tow_link_t *link,
                            const tow_message_t *message)
{
    (void)link;
    bench_process_t *process = context;
    switch (message->type) {
    case TYPE_ECHO: take_echo(process); break;
    case TYPE_FLOOD_END: take_flood_count(process, message); break;
    case TYPE_LANE_OFFER: take_offer(process, message); break;
    default:
        stop_with(process, TOW_ERROR(TOW_INTERNAL, "type %u", message->type));
    }
}

static void measure_writable(void *context, tow_link_t *link)
{
    (void)link;
    pump_flood(context);
}

static void measure_down(void *context, tow_link_t *link, tow_status_t cause)
{
    (void)link;
    stop_with(context, tow_status_retain(cause));
}

/* Round trips: the median, as the peers report it, so that preemption does not
 * count. Streams: total time divided by the count. */
static double seconds_per_operation(const bench_process_t *process)
{
    if (strstr(process->kind, "roundtrip") == NULL)
        return (double)(process->end_ns - process->start_ns) * 1e-9 /
               (double)process->count;
    return tow_bench_median(process->samples, process->count) * 1e-9;
}

tow_status_t tow_bench_net_measure(int argc, char **argv)
{
    static const tow_link_handler_t handler = {.up = measure_up,
                                               .message = measure_message,
                                               .writable = measure_writable,
                                               .down = measure_down};
    if (argc != 5)
        return TOW_ERROR(TOW_INVALID_ARGUMENT, "%d arguments, not 4", argc - 1);
    bench_process_t process = {.kind = argv[1],
                               .count = strtoull(argv[2], NULL, 10)};
    process.samples = tow_calloc(process.count, sizeof(*process.samples));
    tow_status_t status = process.samples == NULL
                              ? tow_status_bare(TOW_RESOURCE_EXHAUSTED)
                              : process_open(&process, "client", argv[4]);
    if (status == TOW_OK) {
        tow_connect_options_t connect = {
            .address = argv[3], .handler = &handler, .context = &process};
        status = tow_env_connect(process.env, &connect, &process.link);
    }
    if (status == TOW_OK) {
        tow_net_run(process.net);
        status = process.error;
        if (status == TOW_OK) printf("%.9g\n", seconds_per_operation(&process));
    }
    process_close(&process);
    return status;
}
