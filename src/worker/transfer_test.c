/* Transfers between three workers in simulation, with a scripted controller
 * that introduces the workers, grants runs, and aborts runs that fail. */
#include "base/testing.h"

#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/random.h"
#include "device/sim/sim_device.h"
#include "env/sim/sim.h"
#include "ir/reshard.h"
#include "worker/worker.h"

#define WORKERS 3
#define DEVICES 2
#define CLUSTER 77
#define RUNS    64
#define SEEDS   60
#define SECOND  1000000000ll

#define SMALL 4096u  /* bytes of an array whose pieces fit in messages */
#define LARGE 65536u /* of one whose shards are written over lanes */

typedef struct cluster cluster_t;

/* A worker, and the controller's record of it. */
typedef struct member {
    cluster_t *cluster;
    uint32_t number;
    char name[16];
    char address[24];
    tow_sim_node_t *node;
    tow_driver_t *driver;
    tow_worker_t *worker;
    uint32_t process; /* another after each restart */
    tow_session_t *session;
    bool is_joined;
} member_t;

typedef enum report {
    REPORT_NONE, /* the worker has no part in the run */
    REPORT_DUE,
    REPORT_DONE,
    REPORT_FAILED,
    REPORT_DISCONNECTED,
} report_t;

typedef struct cluster_run {
    uint64_t key;
    size_t bytes; /* of the array */
    uint32_t from_parts, to_parts;
    tow_place_t from[WORKERS * DEVICES], to[WORKERS * DEVICES];
    size_t from_count, to_count;
    report_t reports[WORKERS];
    bool is_aborted;
    char message[256]; /* of its first failure */
} cluster_run_t;

struct cluster {
    uint64_t seed; /* 0: a network without faults */
    tow_random_t random;
    tow_sim_t *sim;
    tow_sim_node_t *node;
    tow_session_port_t *port;
    tow_arena_t arena;
    member_t members[WORKERS];
    cluster_run_t runs[RUNS];
    size_t run_count;
    uint8_t got[LARGE];
    size_t got_size;
    tow_code_t got_code;
    int got_count;
    bool has_no_addresses;
};

static void must(tow_status_t status)
{
    if (status != TOW_OK) fail_msg("%s", tow_status_message(status));
}

static void run_for(cluster_t *cluster, int64_t span_ns)
{
    must(tow_sim_run(cluster->sim,
                     &(tow_sim_run_options_t){
                         .until_ns = tow_sim_now_ns(cluster->sim) + span_ns}));
}

/* -- The controller -------------------------------------------------------- */

static void send_message(member_t *to, uint32_t type, const tow_body_t *body)
{
    if (to->session == NULL) return;
    const tow_send_result_t result = tow_session_send(to->session, type, body);
    assert_true(result != TOW_SEND_FULL);
}

static void introduce(member_t *one, member_t *other)
{
    tow_msg_peer_t peer = TOW_MSG_PEER_INIT;
    peer.process = other->process;
    peer.name = other->name;
    peer.host = other->name;
    peer.device_count = DEVICES;
    peer.listen_address =
        other->cluster->has_no_addresses ? (char *)"" : other->address;
    send_message(one, TOW_MESSAGE_PEER, &peer.base);
}

static void on_join(member_t *from, const tow_msg_worker_join_t *join)
{
    tow_msg_worker_joined_t joined = TOW_MSG_WORKER_JOINED_INIT;
    assert_string_equal(join->listen_address, from->address);
    joined.cluster = CLUSTER;
    send_message(from, TOW_MESSAGE_WORKER_JOINED, &joined.base);
    from->is_joined = true;
    for (uint32_t i = 0; i < WORKERS; i++) {
        member_t *other = &from->cluster->members[i];
        if (other == from || !other->is_joined) continue;
        introduce(from, other);
        introduce(other, from);
    }
}

static void abort_run(cluster_t *cluster, cluster_run_t *run, const char *why)
{
    tow_msg_abort_t abort = TOW_MSG_ABORT_INIT;
    tow_msg_failure_t failure = TOW_MSG_FAILURE_INIT;
    if (run->is_aborted) return;
    run->is_aborted = true;
    snprintf(run->message, sizeof(run->message), "%s", why);
    failure.code = TOW_ABORTED;
    failure.message = run->message;
    abort.run = run->key;
    abort.failure = &failure;
    for (uint32_t i = 0; i < WORKERS; i++)
        if (run->reports[i] == REPORT_DUE)
            send_message(&cluster->members[i], TOW_MESSAGE_ABORT, &abort.base);
}

static cluster_run_t *find_run(cluster_t *cluster, uint64_t key)
{
    assert_true(key >= 1 && key <= cluster->run_count);
    return &cluster->runs[key - 1];
}

static void on_done(member_t *from, const tow_msg_done_t *done)
{
    cluster_t *cluster = from->cluster;
    for (size_t i = 0; i < done->n_runs; i++) {
        cluster_run_t *run = find_run(cluster, done->runs[i]);
        assert_int_equal(run->reports[from->number], REPORT_DUE);
        run->reports[from->number] = REPORT_DONE;
    }
    for (size_t i = 0; i < done->n_failures; i++) {
        cluster_run_t *run = find_run(cluster, done->failures[i]->run);
        assert_int_equal(run->reports[from->number], REPORT_DUE);
        run->reports[from->number] = REPORT_FAILED;
        abort_run(cluster, run, done->failures[i]->failure->message);
    }
}

static void on_get_done(cluster_t *cluster,
                        const tow_msg_shard_get_done_t *done)
{
    cluster->got_count++;
    cluster->got_code =
        done->failure != NULL ? (tow_code_t)done->failure->code : TOW_CODE_OK;
    cluster->got_size = done->bytes.len;
    if (done->bytes.len > 0)
        memcpy(cluster->got, done->bytes.data, done->bytes.len);
}

static void on_message(void *context, tow_session_t *session,
                       const tow_message_t *message)
{
    (void)session;
    member_t *from = context;
    const tow_body_t *body;
    tow_arena_reset(&from->cluster->arena);
    must(tow_message_decode(message->type, message->bytes, message->size,
                            &from->cluster->arena, &body));
    switch (message->type) {
    case TOW_MESSAGE_WORKER_JOIN:
        on_join(from, (const tow_msg_worker_join_t *)body);
        break;
    case TOW_MESSAGE_DONE: on_done(from, (const tow_msg_done_t *)body); break;
    case TOW_MESSAGE_SHARD_GET_DONE:
        on_get_done(from->cluster, (const tow_msg_shard_get_done_t *)body);
        break;
    default: break; /* Replies to puts. */
    }
}

static void disconnect(member_t *member)
{
    cluster_t *cluster = member->cluster;
    tow_msg_peer_disconnected_t message = TOW_MSG_PEER_DISCONNECTED_INIT;
    member->session = NULL;
    if (!member->is_joined) return;
    member->is_joined = false;
    message.process = member->process;
    for (uint32_t i = 0; i < WORKERS; i++)
        if (cluster->members[i].is_joined)
            send_message(&cluster->members[i], TOW_MESSAGE_PEER_DISCONNECTED,
                         &message.base);
    for (size_t i = 0; i < cluster->run_count; i++) {
        cluster_run_t *run = &cluster->runs[i];
        if (run->reports[member->number] != REPORT_DUE) continue;
        run->reports[member->number] = REPORT_DISCONNECTED;
        abort_run(cluster, run, "a worker is gone");
    }
}

static void on_disconnected(void *context, tow_session_t *session,
                            tow_status_t cause)
{
    (void)cause;
    tow_session_close(session, TOW_OK, (tow_closed_t){0});
    disconnect(context);
}

static void on_opened(void *context, tow_session_t *session)
{
    (void)context, (void)session;
}

static const tow_session_handler_t handler = {.opened = on_opened,
                                              .message = on_message,
                                              .disconnected = on_disconnected};

static void on_arrived(void *context, tow_session_t *session)
{
    cluster_t *cluster = context;
    const char *name = tow_session_peer(session)->name;
    member_t *from = NULL;
    for (uint32_t i = 0; i < WORKERS; i++)
        if (strcmp(cluster->members[i].name, name) == 0)
            from = &cluster->members[i];
    TOW_ASSERT(from != NULL);
    if (from->session != NULL) { /* It crashed unnoticed. */
        tow_session_close(from->session, TOW_OK, (tow_closed_t){0});
        disconnect(from);
    }
    from->session = session;
    tow_session_accept(session, &handler, from);
}

/* -- The workers ----------------------------------------------------------- */

static tow_status_t member_start(tow_env_t *env, void *argument,
                                 void **out_machine)
{
    member_t *member = argument;
    tow_sim_model_t model;
    member->process += WORKERS;
    TOW_RETURN_IF_ERROR(tow_sim_model_find("tpu_v4", &model));
    TOW_RETURN_IF_ERROR(tow_sim_device_driver_create(
        env,
        &(tow_sim_device_options_t){.model = &model,
                                    .device_count = DEVICES,
                                    .first_id = 2048 * member->process,
                                    .memory_bytes = 64u << 20},
        &member->driver));
    *out_machine = member;
    return tow_worker_open(
        env,
        &(tow_worker_options_t){.controller = "sim:controller",
                                .host = member->name,
                                .process = member->process,
                                .listen_address = member->address,
                                .driver = member->driver},
        &member->worker);
}

static void member_destroy(void *machine)
{
    member_t *member = machine;
    tow_worker_discard(member->worker);
    tow_sim_device_driver_crash(member->driver);
    member->worker = NULL;
    member->driver = NULL;
}

static const tow_sim_program_t member_program = {.start = member_start,
                                                 .destroy = member_destroy};

/* -- The cluster ----------------------------------------------------------- */

static void check_workers(void *context, tow_sim_t *sim)
{
    const cluster_t *cluster = context;
    for (uint32_t i = 0; i < WORKERS; i++) {
        const member_t *member = &cluster->members[i];
        if (member->worker == NULL) continue;
        tow_status_t status = tow_worker_check(member->worker);
        if (status != TOW_OK)
            tow_sim_fail(sim, tow_status_annotate(status, "%s", member->name));
    }
}

static void cluster_open(cluster_t *cluster)
{
    tow_sim_options_t options = {.seed = cluster->seed,
                                 .remote_path = {.latency_ns = 20000}};
    if (cluster->seed != 0) {
        options.remote_path.jitter_ns = 100000;
        options.remote_path.loss_ppm = 1000;
        options.remote_path.corrupt_ppm = 300;
        options.remote_path.bandwidth_bytes_per_second = 1000000000;
        options.fault_chance_ppm = 100;
    }
    options.log.level = TOW_LOG_OFF;
    options.after_event = check_workers;
    options.after_event_context = cluster;
    tow_random_init(&cluster->random, cluster->seed);
    tow_arena_init(&cluster->arena, 0);
    must(tow_sim_create(&options, &cluster->sim));
    must(tow_sim_node_create(cluster->sim,
                             &(tow_sim_node_options_t){.name = "controller"},
                             &cluster->node));
    must(tow_session_listen(
        tow_sim_node_env(cluster->node),
        &(tow_session_listen_options_t){.address = "sim:controller",
                                        .arrived = on_arrived,
                                        .context = cluster},
        &cluster->port));
    for (uint32_t i = 0; i < WORKERS; i++) {
        member_t *member = &cluster->members[i];
        member->cluster = cluster;
        member->number = member->process = i;
        snprintf(member->name, sizeof(member->name), "w%u", i);
        snprintf(member->address, sizeof(member->address), "sim:w%u", i);
        must(tow_sim_node_create(
            cluster->sim,
            &(tow_sim_node_options_t){.name = member->name,
                                      .program = &member_program,
                                      .argument = member},
            &member->node));
    }
    run_for(cluster, (cluster->seed != 0 ? 10 : 1) * SECOND);
}

static void expect_idle(const member_t *member)
{
    const tow_worker_stats_t stats = tow_worker_stats(member->worker);
    assert_int_equal(stats.dataflow.run_count, 0);
    assert_int_equal(stats.dataflow.step_count, 0);
    assert_int_equal(stats.transfer_engine.transfer_count, 0);
    assert_int_equal(stats.transfer_engine.receive_bytes, 0);
}

static void on_closed(void *context)
{
    ((member_t *)context)->worker = NULL;
}

static void cluster_close(cluster_t *cluster)
{
    for (uint32_t i = 0; i < WORKERS; i++) {
        member_t *member = &cluster->members[i];
        expect_idle(member);
        tow_worker_close(member->worker, TOW_OK,
                         (tow_closed_t){on_closed, member});
        run_for(cluster, 10 * SECOND);
        assert_null(member->worker);
        const tow_sim_device_counts_t counts =
            tow_sim_device_counts(member->driver);
        assert_int_equal(counts.buffers + counts.executables, 0);
    }
    tow_sim_crash(cluster->node);
    for (uint32_t i = 0; i < WORKERS; i++)
        if (cluster->members[i].session != NULL)
            tow_session_discard(cluster->members[i].session);
    tow_session_port_discard(cluster->port);
    tow_sim_destroy(cluster->sim);
    tow_arena_deinit(&cluster->arena);
}

/* -- Runs ------------------------------------------------------------------ */

/* A shard on each device of each of these workers. */
static size_t place_on(cluster_t *cluster, uint32_t workers,
                       tow_place_t *places)
{
    size_t count = 0;
    for (uint32_t i = 0; i < WORKERS; i++)
        for (uint32_t d = 0; d < DEVICES && (workers >> i & 1) != 0; d++)
            places[count++] =
                (tow_place_t){.process = cluster->members[i].process,
                              .index = d,
                              .device = d,
                              .host = i};
    return count;
}

typedef struct side {
    tow_sharding_t sharding;
    tow_shape_t shard;
    uint32_t own[DEVICES];
    tow_reshard_side_t side;
} side_t;

static void fill_side(side_t *side, size_t bytes, uint32_t parts,
                      const tow_place_t *places, size_t count, uint32_t process)
{
    *side = (side_t){.sharding = {.rank = 1,
                                  .parts = {parts},
                                  .replicas = (uint32_t)count / parts},
                     .shard = {.type = TOW_TYPE_U8,
                               .rank = 1,
                               .dims = {(int64_t)(bytes / parts)}}};
    size_t own_count = 0;
    for (uint32_t i = 0; i < count; i++)
        if (places[i].process == process) side->own[own_count++] = i;
    side->side = (tow_reshard_side_t){&side->sharding, &side->shard, places,
                                      side->own, own_count};
}

/* The part that a shard holds: parts in order, replicas of a part adjacent. */
static size_t part_of(uint32_t parts, size_t count, size_t shard)
{
    return shard / (count / parts);
}

static uint8_t byte_of(uint64_t run, size_t at)
{
    return (uint8_t)((run * 1000003 + at) * 2654435761u >> 11);
}

static uint64_t send_blob(member_t *to, const void *bytes, size_t size)
{
    char *copy = tow_malloc(size + 1);
    memcpy(copy, bytes, size);
    return tow_session_send_blob(
        to->session,
        &(tow_session_blob_t){
            .bytes = copy, .size = size, .release = tow_free, .context = copy});
}

static void send_put(member_t *to, const cluster_run_t *run, const side_t *side)
{
    static uint8_t bytes[DEVICES * LARGE];
    const size_t shard_bytes = run->bytes / run->from_parts;
    uint32_t devices[DEVICES] = {0, 1};
    tow_msg_array_type_t type = TOW_MSG_ARRAY_TYPE_INIT;
    tow_msg_shard_put_t put = TOW_MSG_SHARD_PUT_INIT;
    for (size_t i = 0; i < side->side.own_count; i++) {
        const size_t part =
            part_of(run->from_parts, run->from_count, side->own[i]);
        for (size_t at = 0; at < shard_bytes; at++)
            bytes[i * shard_bytes + at] =
                byte_of(run->key, part * shard_bytes + at);
    }
    put.replicated = run->from_parts == 1;
    type.type = TOW_TYPE_U8;
    type.dims = (int64_t *)side->shard.dims;
    type.n_dims = 1;
    type.bytes = shard_bytes;
    put.object = 1000 + run->key;
    put.type = &type;
    put.devices = devices;
    put.n_devices = side->side.own_count;
    put.inlined = true;
    put.bytes.data = bytes;
    put.bytes.len = shard_bytes * (put.replicated ? 1 : side->side.own_count);
    send_message(to, TOW_MESSAGE_SHARD_PUT, &put.base);
}

/* argument -> transfer (node 3) -> result */
static void send_program(member_t *to, const cluster_run_t *run,
                         const tow_route_t *route)
{
    static const uint32_t slots[] = {0, 1};
    void *bytes;
    size_t size;
    const tow_lowered_step_t step = {.route = route,
                                     .inputs = slots,
                                     .input_count = route->source_count > 0,
                                     .first_output = 1,
                                     .output_count = route->target_count > 0,
                                     .node = 3};
    must(tow_lowered_pack(
        &(tow_lowered_t){.slot_count = 2,
                         .argument_count = 1,
                         .results = slots + 1,
                         .result_count = route->target_count > 0,
                         .steps = &step,
                         .step_count = 1,
                         .step_count_all = 1},
        &bytes, &size));
    tow_msg_program_load_t load = TOW_MSG_PROGRAM_LOAD_INIT;
    load.program = run->key;
    load.lowered_blob = send_blob(to, bytes, size);
    tow_free(bytes);
    send_message(to, TOW_MESSAGE_PROGRAM_LOAD, &load.base);
}

static void send_grant(member_t *to, const cluster_run_t *run)
{
    uint64_t argument = 1000 + run->key;
    tow_msg_grant_t grant = TOW_MSG_GRANT_INIT;
    tow_msg_program_unload_t unload = TOW_MSG_PROGRAM_UNLOAD_INIT;
    grant.run = run->key;
    grant.program = run->key;
    grant.arguments = &argument;
    grant.n_arguments = 1;
    grant.first_result = 2000 + run->key;
    grant.first_gang = 5 * run->key;
    send_message(to, TOW_MESSAGE_GRANT, &grant.base);
    unload.program = run->key; /* The run keeps what it needs. */
    send_message(to, TOW_MESSAGE_PROGRAM_UNLOAD, &unload.base);
}

static void grant_to(cluster_t *cluster, cluster_run_t *run, member_t *member)
{
    side_t from, to;
    tow_route_t route;
    tow_arena_t arena;
    fill_side(&from, run->bytes, run->from_parts, run->from, run->from_count,
              member->process);
    fill_side(&to, run->bytes, run->to_parts, run->to, run->to_count,
              member->process);
    if (from.side.own_count + to.side.own_count == 0) return;
    tow_arena_init(&arena, 0);
    must(tow_reshard_route(&from.side, &to.side, member->process, &arena,
                           &route));
    if (from.side.own_count > 0) send_put(member, run, &from);
    send_program(member, run, &route);
    run->reports[member->number] = REPORT_DUE;
    send_grant(member, run);
    tow_arena_deinit(&arena);
    (void)cluster;
}

/* An array of `bytes` bytes; `from` and `to` are bit masks of workers. */
static cluster_run_t *grant(cluster_t *cluster, size_t bytes, uint32_t from,
                            uint32_t from_parts, uint32_t to, uint32_t to_parts)
{
    assert_true(cluster->run_count < RUNS);
    cluster_run_t *run = &cluster->runs[cluster->run_count++];
    *run = (cluster_run_t){.key = cluster->run_count,
                           .bytes = bytes,
                           .from_parts = from_parts,
                           .to_parts = to_parts};
    run->from_count = place_on(cluster, from, run->from);
    run->to_count = place_on(cluster, to, run->to);
    for (uint32_t i = 0; i < WORKERS; i++)
        grant_to(cluster, run, &cluster->members[i]);
    return run;
}

static void expect_done(const cluster_run_t *run)
{
    for (uint32_t i = 0; i < WORKERS; i++)
        if (run->reports[i] != REPORT_NONE && run->reports[i] != REPORT_DONE)
            fail_msg("run %u, worker %u: report %d, %s", (unsigned)run->key, i,
                     (int)run->reports[i], run->message);
}

static void release(cluster_t *cluster, uint64_t first)
{
    uint32_t count = 1;
    tow_msg_release_t release = TOW_MSG_RELEASE_INIT;
    release.firsts = &first;
    release.n_firsts = 1;
    release.counts = &count;
    release.n_counts = 1;
    for (uint32_t i = 0; i < WORKERS; i++)
        send_message(&cluster->members[i], TOW_MESSAGE_RELEASE, &release.base);
}

static void expect_bytes(cluster_t *cluster, const cluster_run_t *run)
{
    const size_t shard_bytes = run->bytes / run->to_parts;
    for (size_t t = 0; t < run->to_count; t++) {
        tow_msg_shard_get_t get = TOW_MSG_SHARD_GET_INIT;
        get.request = t;
        get.object = 2000 + run->key;
        get.shard = run->to[t].index;
        const int before = cluster->got_count;
        send_message(&cluster->members[run->to[t].host], TOW_MESSAGE_SHARD_GET,
                     &get.base);
        run_for(cluster, SECOND / 10);
        assert_int_equal(cluster->got_count, before + 1);
        assert_int_equal(cluster->got_code, TOW_CODE_OK);
        assert_int_equal(cluster->got_size, shard_bytes);
        const size_t part = part_of(run->to_parts, run->to_count, t);
        for (size_t at = 0; at < shard_bytes; at++)
            if (cluster->got[at] != byte_of(run->key, part * shard_bytes + at))
                fail_msg("run %u: target %zu is wrong at %zu",
                         (unsigned)run->key, t, at);
    }
}

/* -- Transfers ------------------------------------------------------------- */

static const struct {
    size_t bytes;
    uint32_t from, from_parts, to, to_parts;
} kinds[] = {
    {SMALL, 1, 2, 2, 2}, /* one to one */
    {LARGE, 1, 2, 2, 2}, /* the same, over lanes */
    {SMALL, 1, 2, 1, 2}, /* within a worker */
    {LARGE, 1, 2, 3, 4}, /* scatter, partly local */
    {LARGE, 3, 4, 4, 1}, /* gather */
    {SMALL, 1, 2, 7, 1}, /* broadcast */
    {LARGE, 5, 4, 2, 2}, /* any to any */
    {SMALL, 7, 3, 7, 6}, /* in place, into smaller parts */
    {LARGE, 2, 1, 5, 4}, /* from replicas */
};

static void shards_are_transferred_between_workers(void **state)
{
    (void)state;
    static cluster_t cluster;
    cluster = (cluster_t){0};
    cluster_open(&cluster);
    for (size_t i = 0; i < TOW_COUNT_OF(kinds); i++) {
        const size_t bytes =
            kinds[i].bytes / 12 * 12; /* divisible by all part counts */
        cluster_run_t *run =
            grant(&cluster, bytes, kinds[i].from, kinds[i].from_parts,
                  kinds[i].to, kinds[i].to_parts);
        run_for(&cluster, SECOND);
        expect_done(run);
        expect_bytes(&cluster, run);
        release(&cluster, 1000 + run->key);
        release(&cluster, 2000 + run->key);
    }
    run_for(&cluster, SECOND);
    uint64_t small = 0, large = 0;
    for (uint32_t i = 0; i < WORKERS; i++) {
        const tow_worker_stats_t stats =
            tow_worker_stats(cluster.members[i].worker);
        assert_int_equal(stats.shard_store.object_count, 0);
        assert_true(stats.peer_session_count <= 2 * (WORKERS - 1));
        small += stats.transfer_engine.sent_small;
        large += stats.transfer_engine.sent_large;
    }
    assert_true(small > 0 && large > 0);
    cluster_close(&cluster);
}

static void many_transfers_run_concurrently(void **state)
{
    (void)state;
    static cluster_t cluster;
    cluster = (cluster_t){0};
    cluster_open(&cluster);
    for (size_t i = 0; i < 45; i++) {
        const size_t k = i % TOW_COUNT_OF(kinds);
        grant(&cluster, kinds[k].bytes / 12 * 12, kinds[k].from,
              kinds[k].from_parts, kinds[k].to, kinds[k].to_parts);
    }
    run_for(&cluster, 5 * SECOND);
    for (size_t i = 0; i < cluster.run_count; i++)
        expect_done(&cluster.runs[i]);
    cluster_close(&cluster);
}

/* -- Failures -------------------------------------------------------------- */

static void expect_part(const char *text, const char *part)
{
    if (strstr(text, part) == NULL) fail_msg("'%s' has no '%s'", text, part);
}

/* Only worker 0 gets the grant; then worker 1 crashes. */
static void a_crashed_worker_fails_its_transfers(void **state)
{
    (void)state;
    static cluster_t cluster;
    cluster = (cluster_t){0};
    cluster_open(&cluster);
    cluster_run_t *run = &cluster.runs[cluster.run_count++];
    *run = (cluster_run_t){
        .key = 1, .bytes = LARGE, .from_parts = 2, .to_parts = 2};
    run->from_count = place_on(&cluster, 2, run->from);
    run->to_count = place_on(&cluster, 1, run->to);
    grant_to(&cluster, run, &cluster.members[0]);
    run_for(&cluster, SECOND);
    assert_int_equal(run->reports[0], REPORT_DUE);
    tow_sim_crash(cluster.members[1].node);
    run_for(&cluster, 5 * SECOND);
    assert_int_equal(run->reports[0], REPORT_FAILED);
    expect_part(run->message, "run 1, node 3: transfer from process 4: worker "
                              "w1: ");
    tow_sim_restart(cluster.members[1].node);
    run_for(&cluster, 5 * SECOND);
    run = grant(&cluster, SMALL, 1, 2, 2, 2);
    run_for(&cluster, 5 * SECOND);
    expect_done(run);
    expect_bytes(&cluster, run);
    cluster_close(&cluster);
}

static void a_worker_without_an_address_fails_transfers_to_it(void **state)
{
    (void)state;
    static cluster_t cluster;
    cluster = (cluster_t){.has_no_addresses = true};
    cluster_open(&cluster);
    cluster_run_t *run = grant(&cluster, SMALL, 1, 2, 2, 2);
    run_for(&cluster, 2 * SECOND);
    assert_int_equal(run->reports[0], REPORT_FAILED);
    assert_int_equal(run->reports[1], REPORT_FAILED); /* aborted */
    expect_part(run->message, "transfer to process 4: worker w1: it has no");
    run = grant(&cluster, LARGE, 1, 2, 2, 2);
    run_for(&cluster, 2 * SECOND);
    assert_int_equal(run->reports[1], REPORT_FAILED);
    expect_part(run->message, "worker w0: it has no address");
    run_for(&cluster, 2 * SECOND);
    cluster_close(&cluster);
}

static void partition(cluster_t *cluster, uint32_t one, uint32_t other)
{
    tow_sim_host_t *const a[] = {tow_sim_node_host(cluster->members[one].node)};
    tow_sim_host_t *const b[] = {
        tow_sim_node_host(cluster->members[other].node)};
    tow_status_ignore(
        tow_sim_partition(
            cluster->sim,
            &(tow_sim_cut_t){.a = a, .a_count = 1, .b = b, .b_count = 1}, NULL),
        "the limit of partitions is reached");
}

static void a_transfer_between_partitioned_workers_fails(void **state)
{
    (void)state;
    static cluster_t cluster;
    cluster = (cluster_t){0};
    cluster_open(&cluster);
    partition(&cluster, 0, 1);
    cluster_run_t *run = grant(&cluster, LARGE, 1, 2, 2, 2);
    cluster_run_t *other = grant(&cluster, LARGE, 1, 2, 4, 2);
    run_for(&cluster, 10 * SECOND);
    expect_done(other);
    assert_int_equal(run->reports[1], REPORT_FAILED);
    assert_int_equal(run->reports[0], REPORT_FAILED); /* aborted */
    expect_part(run->message, "node 3: transfer ");
    tow_sim_heal(cluster.sim, 0);
    run_for(&cluster, 10 * SECOND);
    run = grant(&cluster, LARGE, 1, 2, 2, 2); /* They connect again. */
    run_for(&cluster, 10 * SECOND);
    expect_done(run);
    expect_bytes(&cluster, run);
    cluster_close(&cluster);
}

/* -- Protocol violations --------------------------------------------------- */

typedef struct unknown {
    tow_session_t *session;
    int disconnect_count;
    int answer_count;
    char cause[256];
} unknown_peer_t;

static void unknown_opened(void *context, tow_session_t *session)
{
    (void)context, (void)session;
}

static void unknown_message(void *context, tow_session_t *session,
                            const tow_message_t *message)
{
    (void)session;
    assert_int_equal(message->type, TOW_MESSAGE_PEER_OPEN);
    ((unknown_peer_t *)context)->answer_count++;
}

static void unknown_disconnected(void *context, tow_session_t *session,
                                 tow_status_t cause)
{
    unknown_peer_t *unknown = context;
    unknown->disconnect_count++;
    snprintf(unknown->cause, sizeof(unknown->cause), "%s",
             tow_status_message(cause));
    tow_session_close(session, TOW_OK, (tow_closed_t){0});
    unknown->session = NULL;
}

static const tow_session_handler_t unknown_handler = {
    .opened = unknown_opened,
    .message = unknown_message,
    .disconnected = unknown_disconnected};

static void unknown_dial(cluster_t *cluster, tow_env_t *env,
                         unknown_peer_t *unknown)
{
    *unknown = (unknown_peer_t){0};
    must(tow_session_dial(
        env,
        &(tow_session_dial_options_t){.address = cluster->members[0].address,
                                      .handler = &unknown_handler,
                                      .context = unknown},
        &unknown->session));
    run_for(cluster, SECOND / 10);
}

static void unknown_open(unknown_peer_t *unknown, uint64_t cluster,
                         uint32_t process)
{
    tow_msg_peer_open_t open = TOW_MSG_PEER_OPEN_INIT;
    open.cluster = cluster;
    open.process = process;
    assert_int_equal(
        tow_session_send(unknown->session, TOW_MESSAGE_PEER_OPEN, &open.base),
        TOW_SEND_OK);
}

static void a_rejected_peer_gets_the_reason(void **state)
{
    (void)state;
    static cluster_t cluster;
    unknown_peer_t unknown;
    tow_sim_node_t *node;
    cluster = (cluster_t){0};
    cluster_open(&cluster);
    must(tow_sim_node_create(
        cluster.sim, &(tow_sim_node_options_t){.name = "unknown"}, &node));
    tow_env_t *env = tow_sim_node_env(node);
    const struct {
        uint64_t cluster;
        uint32_t process;
        const char *part;
    } rows[] = {{CLUSTER + 1, 9, "process 9 is of cluster"},
                {CLUSTER, 3, "two workers have process number 3"}};
    for (size_t i = 0; i < TOW_COUNT_OF(rows); i++) {
        unknown_dial(&cluster, env, &unknown);
        unknown_open(&unknown, rows[i].cluster, rows[i].process);
        run_for(&cluster, SECOND);
        assert_int_equal(unknown.disconnect_count, 1);
        assert_int_equal(unknown.answer_count, 0);
        expect_part(unknown.cause, rows[i].part);
    }
    for (int way = 0; way < 4; way++) {
        tow_msg_edge_piece_t piece = TOW_MSG_EDGE_PIECE_INIT;
        tow_msg_grant_t grant = TOW_MSG_GRANT_INIT;
        piece.gang = 1000;
        unknown_dial(&cluster, env, &unknown);
        if (way > 0) unknown_open(&unknown, CLUSTER, 77);
        run_for(&cluster, SECOND / 10);
        assert_int_equal(unknown.answer_count, way > 0);
        if (way == 1) {
            unknown_open(&unknown, CLUSTER, 77);
        } else if (way == 2) {
            assert_int_equal(tow_session_send(unknown.session,
                                              TOW_MESSAGE_GRANT, &grant.base),
                             TOW_SEND_OK);
        } else {
            assert_int_equal(tow_session_send(unknown.session,
                                              TOW_MESSAGE_EDGE_PIECE,
                                              &piece.base),
                             TOW_SEND_OK);
        }
        run_for(&cluster, SECOND);
        assert_int_equal(unknown.disconnect_count, way < 3);
        const tow_transfer_engine_stats_t stats =
            tow_worker_stats(cluster.members[0].worker).transfer_engine;
        assert_int_equal(stats.early_count, way == 3);
    }
    tow_session_close(unknown.session, TOW_OK, (tow_closed_t){0});
    run_for(&cluster, SECOND);
    assert_int_equal(
        tow_worker_stats(cluster.members[0].worker).transfer_engine.early_count,
        0);
    cluster_run_t *run = grant(&cluster, LARGE, 1, 2, 2, 2); /* Unaffected. */
    run_for(&cluster, SECOND);
    expect_done(run);
    cluster_close(&cluster);
}

/* -- Random operations ----------------------------------------------------- */

static uint32_t below(cluster_t *cluster, uint64_t limit)
{
    return (uint32_t)tow_random_below(&cluster->random, limit);
}

static void grant_any(cluster_t *cluster)
{
    const size_t k = below(cluster, TOW_COUNT_OF(kinds));
    for (uint32_t i = 0; i < WORKERS; i++) {
        const member_t *member = &cluster->members[i];
        if (!member->is_joined || !tow_session_is_open(member->session))
            return; /* A controller grants only to joined workers. */
    }
    if (cluster->run_count < RUNS)
        grant(cluster, kinds[k].bytes / 12 * 12, kinds[k].from,
              kinds[k].from_parts, kinds[k].to, kinds[k].to_parts);
}

static void act(cluster_t *cluster)
{
    const uint32_t choice = below(cluster, 100);
    member_t *member = &cluster->members[below(cluster, WORKERS)];
    if (choice < 50) {
        grant_any(cluster);
    } else if (choice < 55 && cluster->run_count > 0) {
        cluster_run_t *run = &cluster->runs[below(cluster, cluster->run_count)];
        abort_run(cluster, run, "by chance");
    } else if (choice < 60) {
        partition(cluster, member->number, (member->number + 1) % WORKERS);
    } else if (choice < 65) {
        tow_sim_heal(cluster->sim, 0);
    } else if (choice < 67) {
        tow_sim_crash(member->node);
        tow_sim_restart(member->node);
        run_for(cluster, 1000);
    } else if (choice < 75) {
        run_for(cluster, below(cluster, 1000000000));
    } else {
        run_for(cluster, below(cluster, 300000));
    }
}

/* Returns how many parts of runs succeeded. */
static size_t run_seed(uint64_t seed)
{
    static cluster_t cluster;
    cluster = (cluster_t){.seed = seed};
    cluster_open(&cluster);
    for (int i = 0; i < 150; i++)
        act(&cluster);
    tow_sim_heal(cluster.sim, 0);
    run_for(&cluster, 30 * SECOND);
    size_t done = 0;
    for (size_t i = 0; i < cluster.run_count; i++)
        for (uint32_t w = 0; w < WORKERS; w++) {
            if (cluster.runs[i].reports[w] == REPORT_DUE)
                fail_msg("seed %u: worker %u never ended run %u",
                         (unsigned)seed, w, (unsigned)cluster.runs[i].key);
            done += cluster.runs[i].reports[w] == REPORT_DONE;
        }
    for (uint32_t w = 0; w < WORKERS; w++)
        assert_int_equal(tow_worker_stats(cluster.members[w].worker).state,
                         TOW_WORKER_JOINED);
    cluster_close(&cluster);
    return done;
}

static void every_run_ends_under_random_faults(void **state)
{
    (void)state;
    size_t done = 0;
    for (uint64_t seed = 1; seed <= SEEDS; seed++)
        done += run_seed(seed);
    assert_true(done > 10 * SEEDS);
}

TOW_TEST_MAIN(
    cmocka_unit_test(shards_are_transferred_between_workers),
    cmocka_unit_test(many_transfers_run_concurrently),
    cmocka_unit_test(a_crashed_worker_fails_its_transfers),
    cmocka_unit_test(a_worker_without_an_address_fails_transfers_to_it),
    cmocka_unit_test(a_transfer_between_partitioned_workers_fails),
    cmocka_unit_test(a_rejected_peer_gets_the_reason),
    cmocka_unit_test(every_run_ends_under_random_faults))
