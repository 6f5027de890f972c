/* `tow bench sim`: messages per second that the simulator delivers in one
 * thread, against a bare event loop, and memory per simulated peer. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/alloc.h"
#include "bench/benchmarks.h"
#include "bench/harness.h"
#include "env/sim/sim.h"

#define VOLLEY_TYPE   100
#define VOLLEY_WINDOW 16 /* messages in flight between two nodes */
#define PAIR_COUNT    512

/* -- Volley: pairs of nodes that echo each other's messages --------------- */

typedef struct volley_node {
    char name[24];
    char address[32];
    char peer_address[32]; /* "": listens only */
    uint64_t *left;        /* lent: messages left to send, of all nodes */
} volley_node_t;

static void volley_send(tow_link_t *link, uint64_t *left)
{
    if (*left == 0) return;
    (*left)--;
    uint64_t payload = *left;
    if (tow_link_send(link, VOLLEY_TYPE, &payload, sizeof(payload)) !=
        TOW_SEND_OK)
        abort(); /* The window is far below the queue's limit. */
}

static void volley_up(void *context, tow_link_t *link)
{
    volley_node_t *node = context;
    if (node->peer_address[0] == '\0') return;
    for (int i = 0; i < VOLLEY_WINDOW; i++)
        volley_send(link, node->left);
}

static void volley_message(void *context, tow_link_t *link,
                           const tow_message_t *message)
{
    (void)message;
    volley_node_t *node = context;
    volley_send(link, node->left);
}

static void volley_down(void *context, tow_link_t *link, tow_status_t cause)
{
    (void)context, (void)link, (void)cause;
}

static const tow_link_handler_t volley_handler = {.up = volley_up,
                                                  .message = volley_message,
                                                  .down = volley_down};

static void volley_accept(void *context, tow_link_t *link)
{
    link->handler = &volley_handler;
    link->context = context;
}

static tow_status_t volley_start(tow_env_t *env, void *argument,
                                 void **out_machine)
{
    volley_node_t *node = argument;
    *out_machine = node;
    tow_listener_t *listener = NULL;
    tow_listen_options_t listen = {
        .address = node->address, .accept = volley_accept, .context = node};
    TOW_RETURN_IF_ERROR(tow_env_listen(env, &listen, &listener));
    if (node->peer_address[0] == '\0') return TOW_OK;
    tow_link_t *link = NULL;
    tow_connect_options_t connect = {.address = node->peer_address,
                                     .handler = &volley_handler,
                                     .context = node};
    return tow_env_connect(env, &connect, &link);
}

static const tow_sim_program_t volley_program = {.start = volley_start};

typedef struct volley_world {
    tow_sim_t *sim;       /* owned */
    volley_node_t *nodes; /* owned */
    uint64_t left;
} volley_world_t;

static tow_status_t volley_add(volley_world_t *world, size_t index,
                               size_t peer_index)
{
    volley_node_t *node = &world->nodes[index];
    node->left = &world->left;
    snprintf(node->name, sizeof(node->name), "n/%zu", index);
    snprintf(node->address, sizeof(node->address), "sim:n/%zu", index);
    if (peer_index != index)
        snprintf(node->peer_address, sizeof(node->peer_address), "sim:n/%zu",
                 peer_index);
    tow_sim_node_options_t options = {
        .name = node->name, .program = &volley_program, .argument = node};
    tow_sim_node_t *ignored = NULL;
    return tow_sim_node_create(world->sim, &options, &ignored);
}

static tow_status_t volley_create(volley_world_t *world, size_t node_count)
{
    tow_sim_options_t options = {
        .seed = 1,
        .remote_path = {.latency_ns = 10000, .jitter_ns = 1000},
        .log.level = TOW_LOG_OFF};
    world->nodes = tow_calloc(node_count, sizeof(*world->nodes));
    if (world->nodes == NULL) return tow_status_bare(TOW_RESOURCE_EXHAUSTED);
    TOW_RETURN_IF_ERROR(tow_sim_create(&options, &world->sim));
    for (size_t i = 0; i < node_count; i++)
        TOW_RETURN_IF_ERROR(volley_add(world, i, i % 2 == 0 ? i : i - 1));
    return TOW_OK;
}

static void volley_destroy(volley_world_t *world)
{
    tow_sim_destroy(world->sim);
    tow_free(world->nodes);
}

static tow_status_t volley_rate(void *context, double *out_rate)
{
    const tow_bench_options_t *options = context;
    uint64_t count = options->quick ? 2000000 : 10000000;
    volley_world_t world = {.left = count};
    tow_status_t status = volley_create(&world, (size_t)2 * PAIR_COUNT);
    int64_t start_ns = tow_bench_now_ns();
    if (status == TOW_OK) {
        tow_sim_run_options_t run = {0};
        status = tow_sim_run(world.sim, &run);
    }
    double seconds = (double)(tow_bench_now_ns() - start_ns) * 1e-9;
    if (status == TOW_OK) {
        uint64_t delivered = tow_sim_counts(world.sim).messages_delivered;
        if (delivered != count)
            status = TOW_ERROR(TOW_INTERNAL, "%llu of %llu messages delivered",
                               (unsigned long long)delivered,
                               (unsigned long long)count);
        *out_rate = (double)count / seconds;
    }
    volley_destroy(&world);
    return status;
}

/* -- The limit: a binary heap and a call through a pointer ------------------ */

typedef struct bare_event {
    int64_t time_ns;
    uint64_t sequence;
    uint64_t (*run)(uint64_t value);
    uint64_t value;
} bare_event_t;

typedef struct bare_queue {
    bare_event_t *events; /* owned */
    size_t count;
} bare_queue_t;

static int is_before(const bare_event_t *a, const bare_event_t *b)
{
    if (a->time_ns != b->time_ns) return a->time_ns < b->time_ns;
    return a->sequence < b->sequence;
}

static void bare_push(bare_queue_t *queue, bare_event_t event)
{
    size_t at = queue->count++;
    while (at > 0 && is_before(&event, &queue->events[(at - 1) / 2])) {
        queue->events[at] = queue->events[(at - 1) / 2];
        at = (at - 1) / 2;
    }
    queue->events[at] = event;
}

static bare_event_t bare_pop(bare_queue_t *queue)
{
    bare_event_t first = queue->events[0];
    bare_event_t last = queue->events[--queue->count];
    size_t at = 0;
    for (size_t child = 1; child < queue->count; child = 2 * at + 1) {
        if (child + 1 < queue->count &&
            is_before(&queue->events[child + 1], &queue->events[child]))
            child++;
        if (!is_before(&queue->events[child], &last)) break;
        queue->events[at] = queue->events[child];
        at = child;
    }
    queue->events[at] = last;
    return first;
}

static uint64_t bare_callback(uint64_t value)
{
    return value * UINT64_C(6364136223846793005) + 1;
}

static tow_status_t bare_rate(void *context, double *out_rate)
{
    const tow_bench_options_t *options = context;
    uint64_t count = options->quick ? 2000000 : 10000000;
    size_t in_flight = (size_t)PAIR_COUNT * VOLLEY_WINDOW;
    bare_queue_t queue = {.events =
                              tow_calloc(in_flight + 1, sizeof(bare_event_t))};
    if (queue.events == NULL) return tow_status_bare(TOW_RESOURCE_EXHAUSTED);
    for (uint64_t i = 0; i < in_flight; i++)
        bare_push(&queue, (bare_event_t){0, i, bare_callback, i});
    int64_t start_ns = tow_bench_now_ns();
    for (uint64_t i = 0; i < count; i++) {
        bare_event_t event = bare_pop(&queue);
        event.value = event.run(event.value);
        event.time_ns += 10000 + (int64_t)(event.value >> 54);
        event.sequence = in_flight + i;
        bare_push(&queue, event);
    }
    *out_rate =
        (double)count / ((double)(tow_bench_now_ns() - start_ns) * 1e-9);
    tow_free(queue.events);
    return TOW_OK;
}

/* -- Memory ------------------------------------------------------------------ */

#define PEER_COUNT 100000

static double resident_bytes(void)
{
    unsigned long total = 0, resident = 0;
    FILE *file = fopen("/proc/self/statm", "r");
    if (file == NULL) return 0;
    int got = fscanf(file, "%lu %lu", &total, &resident);
    fclose(file);
    return got == 2 ? (double)resident * (double)sysconf(_SC_PAGESIZE) : 0;
}

/* 100,000 nodes in pairs, each pair with a used link. */
static tow_status_t peer_memory(void *context, double *out_bytes)
{
    (void)context;
    double before = resident_bytes();
    volley_world_t world = {.left = (uint64_t)PEER_COUNT * 4};
    tow_status_t status = volley_create(&world, PEER_COUNT);
    if (status == TOW_OK) {
        tow_sim_run_options_t run = {0};
        status = tow_sim_run(world.sim, &run);
    }
    *out_bytes = (resident_bytes() - before) / PEER_COUNT;
    volley_destroy(&world);
    return status;
}

static tow_status_t run_benchmark(const tow_bench_options_t *options)
{
    tow_bench_case_t rate = {.bench = "sim",
                             .name = "messages_per_second",
                             .unit = "1/s",
                             .peer = "bare event heap",
                             .better = TOW_BENCH_HIGHER_IS_BETTER,
                             .simulated = true,
                             .run = volley_rate,
                             .peer_run = bare_rate,
                             .context = (void *)options};
    tow_bench_case_t bar = rate;
    bar.name = "messages_per_second_bar";
    bar.peer = "2 M messages/s asked for";
    bar.peer_run = NULL;
    bar.limit = 2e6;
    bar.bar = 1;
    tow_bench_case_t memory = {.bench = "sim",
                               .name = "bytes_per_peer_100k",
                               .unit = "B",
                               .peer = "4 GiB for 100,000 peers",
                               .better = TOW_BENCH_LOWER_IS_BETTER,
                               .bar = 1,
                               .simulated = true,
                               .run = peer_memory,
                               .limit = 4294967296.0 / PEER_COUNT};
    /* First, while the heap is small: memory freed by another case would hide
     * the memory of this one. */
    TOW_RETURN_IF_ERROR(tow_bench_run_case(&memory, 1, options));
    TOW_RETURN_IF_ERROR(
        tow_bench_run_case(&rate, options->quick ? 5 : 9, options));
    return tow_bench_run_case(&bar, options->quick ? 3 : 5, options);
}

static const char *const case_names[] = {"bytes_per_peer_100k",
                                         "messages_per_second",
                                         "messages_per_second_bar", NULL};

const tow_benchmark_t tow_bench_sim = {
    .name = "sim",
    .summary = "speed and memory of the simulator",
    .cases = case_names,
    .run = run_benchmark,
};
