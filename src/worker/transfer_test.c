/* Workers that send each other shards: three in a simulated world, under a
 * controller that introduces them, grants, and aborts what fails. */
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

#define SMALL 4096u  /* bytes of an array: pieces in messages */
#define LARGE 65536u /* of one whose shards are written */

typedef struct town town_t;

/* A worker, and what the controller knows of it. */
typedef struct citizen {
    town_t *town;
    uint32_t number;
    char name[16];
    char door[24];
    tow_sim_node_t *node;
    tow_driver_t *driver;
    tow_worker_t *worker;
    uint32_t process; /* another in each life */
    tow_session_t *session;
    bool is_joined;
} citizen_t;

typedef enum report {
    REPORT_NONE, /* it has no part in it */
    REPORT_DUE,
    REPORT_DONE,
    REPORT_FAILED,
    REPORT_GONE,
} report_t;

typedef struct town_run {
    uint64_t key;
    size_t bytes; /* of the array */
    uint32_t from_parts, to_parts;
    tow_place_t from[WORKERS * DEVICES], to[WORKERS * DEVICES];
    size_t from_count, to_count;
    report_t reports[WORKERS];
    bool is_aborted;
    char message[256]; /* of its first failure */
} town_run_t;

struct town {
    uint64_t seed; /* 0: a kind network */
    tow_random_t random;
    tow_sim_t *sim;
    tow_sim_node_t *node;
    tow_session_port_t *port;
    tow_arena_t arena;
    citizen_t citizens[WORKERS];
    town_run_t runs[RUNS];
    size_t run_count;
    uint8_t got[LARGE];
    size_t got_size;
    tow_code_t got_code;
    int got_count;
    bool has_no_doors;
};

static void must(tow_status_t status)
{
    if (status != TOW_OK) fail_msg("%s", tow_status_message(status));
}

static void run_for(town_t *town, int64_t span_ns)
{
    must(tow_sim_run(town->sim,
                     &(tow_sim_run_options_t){
                         .until_ns = tow_sim_now_ns(town->sim) + span_ns}));
}

/* -- The controller -------------------------------------------------------------- */

static void say(citizen_t *to, uint32_t type, const tow_body_t *body)
{
    if (to->session == NULL) return;
    const tow_send_result_t result = tow_session_send(to->session, type, body);
    assert_true(result != TOW_SEND_FULL);
}

static void introduce(citizen_t *one, citizen_t *other)
{
    tow_msg_peer_t peer = TOW_MSG_PEER_INIT;
    peer.process = other->process;
    peer.name = other->name;
    peer.host = other->name;
    peer.device_count = DEVICES;
    peer.door = other->town->has_no_doors ? (char *)"" : other->door;
    say(one, TOW_MESSAGE_PEER, &peer.base);
}

static void hear_join(citizen_t *from, const tow_msg_worker_join_t *join)
{
    tow_msg_worker_joined_t joined = TOW_MSG_WORKER_JOINED_INIT;
    assert_string_equal(join->door, from->door);
    joined.cluster = CLUSTER;
    say(from, TOW_MESSAGE_WORKER_JOINED, &joined.base);
    from->is_joined = true;
    for (uint32_t i = 0; i < WORKERS; i++) {
        citizen_t *other = &from->town->citizens[i];
        if (other == from || !other->is_joined) continue;
        introduce(from, other);
        introduce(other, from);
    }
}

static void abort_run(town_t *town, town_run_t *run, const char *why)
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
            say(&town->citizens[i], TOW_MESSAGE_ABORT, &abort.base);
}

static town_run_t *find_run(town_t *town, uint64_t key)
{
    assert_true(key >= 1 && key <= town->run_count);
    return &town->runs[key - 1];
}

static void hear_done(citizen_t *from, const tow_msg_done_t *done)
{
    town_t *town = from->town;
    for (size_t i = 0; i < done->n_runs; i++) {
        town_run_t *run = find_run(town, done->runs[i]);
        assert_int_equal(run->reports[from->number], REPORT_DUE);
        run->reports[from->number] = REPORT_DONE;
    }
    for (size_t i = 0; i < done->n_failures; i++) {
        town_run_t *run = find_run(town, done->failures[i]->run);
        assert_int_equal(run->reports[from->number], REPORT_DUE);
        run->reports[from->number] = REPORT_FAILED;
        abort_run(town, run, done->failures[i]->failure->message);
    }
}

static void hear_get(town_t *town, const tow_msg_shard_get_done_t *done)
{
    town->got_count++;
    town->got_code =
        done->failure != NULL ? (tow_code_t)done->failure->code : TOW_CODE_OK;
    town->got_size = done->bytes.len;
    if (done->bytes.len > 0)
        memcpy(town->got, done->bytes.data, done->bytes.len);
}

static void on_message(void *context, tow_session_t *session,
                       const tow_message_t *message)
{
    (void)session;
    citizen_t *from = context;
    const tow_body_t *body;
    tow_arena_reset(&from->town->arena);
    must(tow_message_decode(message->type, message->bytes, message->size,
                            &from->town->arena, &body));
    switch (message->type) {
    case TOW_MESSAGE_WORKER_JOIN:
        hear_join(from, (const tow_msg_worker_join_t *)body);
        break;
    case TOW_MESSAGE_DONE: hear_done(from, (const tow_msg_done_t *)body); break;
    case TOW_MESSAGE_SHARD_GET_DONE:
        hear_get(from->town, (const tow_msg_shard_get_done_t *)body);
        break;
    default: break; /* Answers to puts. */
    }
}

static void lose(citizen_t *lost)
{
    town_t *town = lost->town;
    tow_msg_peer_gone_t gone = TOW_MSG_PEER_GONE_INIT;
    lost->session = NULL;
    if (!lost->is_joined) return;
    lost->is_joined = false;
    gone.process = lost->process;
    for (uint32_t i = 0; i < WORKERS; i++)
        if (town->citizens[i].is_joined)
            say(&town->citizens[i], TOW_MESSAGE_PEER_GONE, &gone.base);
    for (size_t i = 0; i < town->run_count; i++) {
        town_run_t *run = &town->runs[i];
        if (run->reports[lost->number] != REPORT_DUE) continue;
        run->reports[lost->number] = REPORT_GONE;
        abort_run(town, run, "a worker is gone");
    }
}

static void on_gone(void *context, tow_session_t *session, tow_status_t cause)
{
    (void)cause;
    tow_session_close(session, TOW_OK, (tow_closed_t){0});
    lose(context);
}

static void on_opened(void *context, tow_session_t *session)
{
    (void)context, (void)session;
}

static const tow_session_handler_t handler = {.opened = on_opened,
                                              .message = on_message,
                                              .gone = on_gone};

static void on_arrived(void *context, tow_session_t *session)
{
    town_t *town = context;
    const char *name = tow_session_peer(session)->name;
    citizen_t *from = NULL;
    for (uint32_t i = 0; i < WORKERS; i++)
        if (strcmp(town->citizens[i].name, name) == 0)
            from = &town->citizens[i];
    assert_non_null(from);
    if (from->session != NULL) { /* A life that we did not see end. */
        tow_session_close(from->session, TOW_OK, (tow_closed_t){0});
        lose(from);
    }
    from->session = session;
    tow_session_accept(session, &handler, from);
}

/* -- The workers ------------------------------------------------------------------- */

static tow_status_t citizen_start(tow_env_t *env, void *argument,
                                  void **out_machine)
{
    citizen_t *citizen = argument;
    tow_sim_model_t model;
    citizen->process += WORKERS;
    TOW_RETURN_IF_ERROR(tow_sim_model_find("tpu_v4", &model));
    TOW_RETURN_IF_ERROR(tow_sim_device_driver_create(
        env,
        &(tow_sim_device_options_t){.model = &model,
                                    .device_count = DEVICES,
                                    .first_id = 2048 * citizen->process,
                                    .memory_bytes = 64u << 20},
        &citizen->driver));
    *out_machine = citizen;
    return tow_worker_open(
        env,
        &(tow_worker_options_t){.controller = "sim:controller",
                                .host = citizen->name,
                                .process = citizen->process,
                                .door = citizen->door,
                                .driver = citizen->driver},
        &citizen->worker);
}

static void citizen_destroy(void *machine)
{
    citizen_t *citizen = machine;
    tow_worker_abandon(citizen->worker);
    tow_sim_device_driver_crash(citizen->driver);
    citizen->worker = NULL;
    citizen->driver = NULL;
}

static const tow_sim_program_t citizen_program = {.start = citizen_start,
                                                  .destroy = citizen_destroy};

/* -- The town ----------------------------------------------------------------------- */

static void town_open(town_t *town)
{
    tow_sim_options_t options = {.seed = town->seed,
                                 .remote_path = {.latency_ns = 20000}};
    if (town->seed != 0) {
        options.remote_path.jitter_ns = 100000;
        options.remote_path.loss_ppm = 1000;
        options.remote_path.corrupt_ppm = 300;
        options.remote_path.bandwidth_bytes_per_second = 1000000000;
        options.fault_chance_ppm = 100;
    }
    options.log.level = TOW_LOG_OFF;
    tow_random_init(&town->random, town->seed);
    tow_arena_init(&town->arena, 0);
    must(tow_sim_create(&options, &town->sim));
    must(tow_sim_node_create(town->sim,
                             &(tow_sim_node_options_t){.name = "controller"},
                             &town->node));
    must(tow_session_listen(
        tow_sim_node_env(town->node),
        &(tow_session_listen_options_t){.address = "sim:controller",
                                        .arrived = on_arrived,
                                        .context = town},
        &town->port));
    for (uint32_t i = 0; i < WORKERS; i++) {
        citizen_t *citizen = &town->citizens[i];
        citizen->town = town;
        citizen->number = citizen->process = i;
        snprintf(citizen->name, sizeof(citizen->name), "w%u", i);
        snprintf(citizen->door, sizeof(citizen->door), "sim:w%u", i);
        must(tow_sim_node_create(
            town->sim,
            &(tow_sim_node_options_t){.name = citizen->name,
                                      .program = &citizen_program,
                                      .argument = citizen},
            &citizen->node));
    }
    run_for(town, (town->seed != 0 ? 10 : 1) * SECOND);
}

static void expect_quiet(const citizen_t *citizen)
{
    const tow_worker_stats_t stats = tow_worker_stats(citizen->worker);
    assert_int_equal(stats.dataflow.run_count, 0);
    assert_int_equal(stats.dataflow.step_count, 0);
    assert_int_equal(stats.mover.move_count, 0);
    assert_int_equal(stats.mover.receive_bytes, 0);
}

static void on_closed(void *context)
{
    *(bool *)context = true;
}

static void town_close(town_t *town)
{
    for (uint32_t i = 0; i < WORKERS; i++) {
        citizen_t *citizen = &town->citizens[i];
        bool is_closed = false;
        expect_quiet(citizen);
        tow_worker_close(citizen->worker, TOW_OK,
                         (tow_closed_t){on_closed, &is_closed});
        run_for(town, 10 * SECOND);
        assert_true(is_closed);
        citizen->worker = NULL;
        const tow_sim_device_counts_t counts =
            tow_sim_device_counts(citizen->driver);
        assert_int_equal(counts.buffers + counts.executables, 0);
    }
    tow_sim_crash(town->node);
    for (uint32_t i = 0; i < WORKERS; i++)
        if (town->citizens[i].session != NULL)
            tow_session_abandon(town->citizens[i].session);
    tow_session_port_abandon(town->port);
    tow_sim_destroy(town->sim);
    tow_arena_deinit(&town->arena);
}

/* -- Runs ------------------------------------------------------------------------------ */

/* A shard on each device of each of these workers. */
static size_t place_on(town_t *town, uint32_t workers, tow_place_t *places)
{
    size_t count = 0;
    for (uint32_t i = 0; i < WORKERS; i++)
        for (uint32_t d = 0; d < DEVICES && (workers >> i & 1) != 0; d++)
            places[count++] =
                (tow_place_t){.process = town->citizens[i].process,
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

/* Which part shard `shard` has: parts in order, replicas of one together. */
static size_t part_of(uint32_t parts, size_t count, size_t shard)
{
    return shard / (count / parts);
}

static uint8_t byte_of(uint64_t run, size_t at)
{
    return (uint8_t)((run * 1000003 + at) * 2654435761u >> 11);
}

static uint64_t say_blob(citizen_t *to, const void *bytes, size_t size)
{
    char *copy = tow_malloc(size + 1);
    memcpy(copy, bytes, size);
    return tow_session_send_blob(
        to->session,
        &(tow_session_blob_t){
            .bytes = copy, .size = size, .release = tow_free, .context = copy});
}

static void say_put(citizen_t *to, const town_run_t *run, const side_t *side)
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
    say(to, TOW_MESSAGE_SHARD_PUT, &put.base);
}

/* argument -> transfer (node 3) -> result */
static void say_program(citizen_t *to, const town_run_t *run,
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
    load.lowered_blob = say_blob(to, bytes, size);
    tow_free(bytes);
    say(to, TOW_MESSAGE_PROGRAM_LOAD, &load.base);
}

static void say_grant(citizen_t *to, const town_run_t *run)
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
    say(to, TOW_MESSAGE_GRANT, &grant.base);
    unload.program = run->key; /* The run does not need it any more. */
    say(to, TOW_MESSAGE_PROGRAM_UNLOAD, &unload.base);
}

static void grant_to(town_t *town, town_run_t *run, citizen_t *citizen)
{
    side_t from, to;
    tow_route_t route;
    tow_arena_t arena;
    fill_side(&from, run->bytes, run->from_parts, run->from, run->from_count,
              citizen->process);
    fill_side(&to, run->bytes, run->to_parts, run->to, run->to_count,
              citizen->process);
    if (from.side.own_count + to.side.own_count == 0) return;
    tow_arena_init(&arena, 0);
    must(tow_reshard_route(&from.side, &to.side, citizen->process, &arena,
                           &route));
    if (from.side.own_count > 0) say_put(citizen, run, &from);
    say_program(citizen, run, &route);
    run->reports[citizen->number] = REPORT_DUE;
    say_grant(citizen, run);
    tow_arena_deinit(&arena);
    (void)town;
}

/* An array of so many bytes, from some workers to others; bits say which. */
static town_run_t *grant(town_t *town, size_t bytes, uint32_t from,
                         uint32_t from_parts, uint32_t to, uint32_t to_parts)
{
    assert_true(town->run_count < RUNS);
    town_run_t *run = &town->runs[town->run_count++];
    *run = (town_run_t){.key = town->run_count,
                        .bytes = bytes,
                        .from_parts = from_parts,
                        .to_parts = to_parts};
    run->from_count = place_on(town, from, run->from);
    run->to_count = place_on(town, to, run->to);
    for (uint32_t i = 0; i < WORKERS; i++)
        grant_to(town, run, &town->citizens[i]);
    return run;
}

static void expect_done(const town_run_t *run)
{
    for (uint32_t i = 0; i < WORKERS; i++)
        if (run->reports[i] != REPORT_NONE && run->reports[i] != REPORT_DONE)
            fail_msg("run %u, worker %u: report %d, %s", (unsigned)run->key, i,
                     (int)run->reports[i], run->message);
}

static void release(town_t *town, uint64_t first)
{
    uint32_t count = 1;
    tow_msg_release_t release = TOW_MSG_RELEASE_INIT;
    release.firsts = &first;
    release.n_firsts = 1;
    release.counts = &count;
    release.n_counts = 1;
    for (uint32_t i = 0; i < WORKERS; i++)
        say(&town->citizens[i], TOW_MESSAGE_RELEASE, &release.base);
}

static void expect_bytes(town_t *town, const town_run_t *run)
{
    const size_t shard_bytes = run->bytes / run->to_parts;
    for (size_t t = 0; t < run->to_count; t++) {
        tow_msg_shard_get_t get = TOW_MSG_SHARD_GET_INIT;
        get.request = t;
        get.object = 2000 + run->key;
        get.shard = run->to[t].index;
        const int before = town->got_count;
        say(&town->citizens[run->to[t].host], TOW_MESSAGE_SHARD_GET, &get.base);
        run_for(town, SECOND / 10);
        assert_int_equal(town->got_count, before + 1);
        assert_int_equal(town->got_code, TOW_CODE_OK);
        assert_int_equal(town->got_size, shard_bytes);
        const size_t part = part_of(run->to_parts, run->to_count, t);
        for (size_t at = 0; at < shard_bytes; at++)
            if (town->got[at] != byte_of(run->key, part * shard_bytes + at))
                fail_msg("run %u: target %zu is wrong at %zu",
                         (unsigned)run->key, t, at);
    }
}

/* -- Transfers -------------------------------------------------------------------------- */

static const struct {
    size_t bytes;
    uint32_t from, from_parts, to, to_parts;
} kinds[] = {
    {SMALL, 1, 2, 2, 2}, /* one to one */
    {LARGE, 1, 2, 2, 2}, /* the same, written */
    {SMALL, 1, 2, 1, 2}, /* within a worker */
    {LARGE, 1, 2, 3, 4}, /* scatter, some of it at home */
    {LARGE, 3, 4, 4, 1}, /* gather */
    {SMALL, 1, 2, 7, 1}, /* broadcast */
    {LARGE, 5, 4, 2, 2}, /* any to any */
    {SMALL, 7, 3, 7, 6}, /* in place, finer */
    {LARGE, 2, 1, 5, 4}, /* of replicas */
};

static void shards_go_from_worker_to_worker(void **state)
{
    (void)state;
    static town_t town;
    town = (town_t){0};
    town_open(&town);
    for (size_t i = 0; i < TOW_COUNT_OF(kinds); i++) {
        const size_t bytes = kinds[i].bytes / 12 * 12; /* for any parts */
        town_run_t *run =
            grant(&town, bytes, kinds[i].from, kinds[i].from_parts, kinds[i].to,
                  kinds[i].to_parts);
        run_for(&town, SECOND);
        expect_done(run);
        expect_bytes(&town, run);
        release(&town, 1000 + run->key);
        release(&town, 2000 + run->key);
    }
    run_for(&town, SECOND);
    uint64_t small = 0, large = 0;
    for (uint32_t i = 0; i < WORKERS; i++) {
        const tow_worker_stats_t stats =
            tow_worker_stats(town.citizens[i].worker);
        assert_int_equal(stats.shelf.object_count, 0);
        assert_true(stats.line_count <= 2 * (WORKERS - 1));
        small += stats.mover.sent_small;
        large += stats.mover.sent_large;
    }
    assert_true(small > 0 && large > 0);
    town_close(&town);
}

static void many_are_under_way_at_once(void **state)
{
    (void)state;
    static town_t town;
    town = (town_t){0};
    town_open(&town);
    for (size_t i = 0; i < 45; i++) {
        const size_t k = i % TOW_COUNT_OF(kinds);
        grant(&town, kinds[k].bytes / 12 * 12, kinds[k].from,
              kinds[k].from_parts, kinds[k].to, kinds[k].to_parts);
    }
    run_for(&town, 5 * SECOND);
    for (size_t i = 0; i < town.run_count; i++)
        expect_done(&town.runs[i]);
    town_close(&town);
}

/* -- Failing ------------------------------------------------------------------------------- */

static void expect_part(const char *text, const char *part)
{
    if (strstr(text, part) == NULL) fail_msg("'%s' has no '%s'", text, part);
}

/* Worker 1 is not granted what worker 0 is: then it goes. */
static void a_worker_that_dies_fails_transfers_with_it(void **state)
{
    (void)state;
    static town_t town;
    town = (town_t){0};
    town_open(&town);
    town_run_t *run = &town.runs[town.run_count++];
    *run =
        (town_run_t){.key = 1, .bytes = LARGE, .from_parts = 2, .to_parts = 2};
    run->from_count = place_on(&town, 2, run->from);
    run->to_count = place_on(&town, 1, run->to);
    grant_to(&town, run, &town.citizens[0]);
    run_for(&town, SECOND);
    assert_int_equal(run->reports[0], REPORT_DUE);
    tow_sim_crash(town.citizens[1].node);
    run_for(&town, 5 * SECOND);
    assert_int_equal(run->reports[0], REPORT_FAILED);
    expect_part(run->message, "run 1, node 3: transfer from process 4: worker "
                              "w1: ");
    tow_sim_restart(town.citizens[1].node);
    run_for(&town, 5 * SECOND);
    run = grant(&town, SMALL, 1, 2, 2, 2);
    run_for(&town, 5 * SECOND);
    expect_done(run);
    expect_bytes(&town, run);
    town_close(&town);
}

static void a_worker_without_a_door_is_told_of(void **state)
{
    (void)state;
    static town_t town;
    town = (town_t){.has_no_doors = true};
    town_open(&town);
    town_run_t *run = grant(&town, SMALL, 1, 2, 2, 2);
    run_for(&town, 2 * SECOND);
    assert_int_equal(run->reports[0], REPORT_FAILED);
    assert_int_equal(run->reports[1], REPORT_FAILED); /* aborted */
    expect_part(run->message, "transfer to process 4: worker w1: it has no");
    run = grant(&town, LARGE, 1, 2, 2, 2);
    run_for(&town, 2 * SECOND);
    assert_int_equal(run->reports[1], REPORT_FAILED);
    expect_part(run->message, "worker w0: it has no address");
    run_for(&town, 2 * SECOND);
    town_close(&town);
}

static void cut_between(town_t *town, uint32_t one, uint32_t other)
{
    tow_sim_host_t *const a[] = {tow_sim_node_host(town->citizens[one].node)};
    tow_sim_host_t *const b[] = {tow_sim_node_host(town->citizens[other].node)};
    tow_status_ignore(
        tow_sim_partition(
            town->sim,
            &(tow_sim_cut_t){.a = a, .a_count = 1, .b = b, .b_count = 1}, NULL),
        "there are cuts enough");
}

static void workers_that_cannot_reach_each_other_say_so(void **state)
{
    (void)state;
    static town_t town;
    town = (town_t){0};
    town_open(&town);
    cut_between(&town, 0, 1);
    town_run_t *run = grant(&town, LARGE, 1, 2, 2, 2);
    town_run_t *other = grant(&town, LARGE, 1, 2, 4, 2);
    run_for(&town, 10 * SECOND);
    expect_done(other);
    assert_int_equal(run->reports[1], REPORT_FAILED);
    assert_int_equal(run->reports[0], REPORT_FAILED); /* aborted */
    expect_part(run->message, "node 3: transfer ");
    tow_sim_heal(town.sim, 0);
    run_for(&town, 10 * SECOND);
    run = grant(&town, LARGE, 1, 2, 2, 2); /* They try again. */
    run_for(&town, 10 * SECOND);
    expect_done(run);
    expect_bytes(&town, run);
    town_close(&town);
}

/* -- Who does not keep the rules -------------------------------------------------------------- */

typedef struct stranger {
    tow_session_t *session;
    int gone_count;
    int answer_count;
    char cause[256];
} stranger_t;

static void stranger_opened(void *context, tow_session_t *session)
{
    (void)context, (void)session;
}

static void stranger_message(void *context, tow_session_t *session,
                             const tow_message_t *message)
{
    (void)session;
    assert_int_equal(message->type, TOW_MESSAGE_PEER_OPEN);
    ((stranger_t *)context)->answer_count++;
}

static void stranger_gone(void *context, tow_session_t *session,
                          tow_status_t cause)
{
    stranger_t *stranger = context;
    stranger->gone_count++;
    snprintf(stranger->cause, sizeof(stranger->cause), "%s",
             tow_status_message(cause));
    tow_session_close(session, TOW_OK, (tow_closed_t){0});
    stranger->session = NULL;
}

static const tow_session_handler_t stranger_handler = {
    .opened = stranger_opened,
    .message = stranger_message,
    .gone = stranger_gone};

static void stranger_dial(town_t *town, tow_env_t *env, stranger_t *stranger)
{
    *stranger = (stranger_t){0};
    must(tow_session_dial(
        env,
        &(tow_session_dial_options_t){.address = town->citizens[0].door,
                                      .handler = &stranger_handler,
                                      .context = stranger},
        &stranger->session));
    run_for(town, SECOND / 10);
}

static void stranger_open(stranger_t *stranger, uint64_t cluster,
                          uint32_t process)
{
    tow_msg_peer_open_t open = TOW_MSG_PEER_OPEN_INIT;
    open.cluster = cluster;
    open.process = process;
    assert_int_equal(
        tow_session_send(stranger->session, TOW_MESSAGE_PEER_OPEN, &open.base),
        TOW_SEND_OK);
}

static void who_is_not_let_in_is_told_why(void **state)
{
    (void)state;
    static town_t town;
    stranger_t stranger;
    tow_sim_node_t *node;
    town = (town_t){0};
    town_open(&town);
    must(tow_sim_node_create(
        town.sim, &(tow_sim_node_options_t){.name = "stranger"}, &node));
    tow_env_t *env = tow_sim_node_env(node);
    const struct {
        uint64_t cluster;
        uint32_t process;
        const char *part;
    } rows[] = {{CLUSTER + 1, 9, "process 9 is of cluster"},
                {CLUSTER, 3, "two workers are process 3"}};
    for (size_t i = 0; i < TOW_COUNT_OF(rows); i++) {
        stranger_dial(&town, env, &stranger);
        stranger_open(&stranger, rows[i].cluster, rows[i].process);
        run_for(&town, SECOND);
        assert_int_equal(stranger.gone_count, 1);
        assert_int_equal(stranger.answer_count, 0);
        expect_part(stranger.cause, rows[i].part);
    }
    for (int way = 0; way < 4; way++) {
        tow_msg_edge_piece_t piece = TOW_MSG_EDGE_PIECE_INIT;
        tow_msg_grant_t grant = TOW_MSG_GRANT_INIT;
        piece.gang = 1000;
        stranger_dial(&town, env, &stranger);
        if (way > 0) stranger_open(&stranger, CLUSTER, 77);
        run_for(&town, SECOND / 10);
        assert_int_equal(stranger.answer_count, way > 0);
        if (way == 1) {
            stranger_open(&stranger, CLUSTER, 77);
        } else if (way == 2) {
            assert_int_equal(tow_session_send(stranger.session,
                                              TOW_MESSAGE_GRANT, &grant.base),
                             TOW_SEND_OK);
        } else {
            assert_int_equal(tow_session_send(stranger.session,
                                              TOW_MESSAGE_EDGE_PIECE,
                                              &piece.base),
                             TOW_SEND_OK);
        }
        run_for(&town, SECOND);
        assert_int_equal(stranger.gone_count, way < 3);
        const tow_mover_stats_t stats =
            tow_worker_stats(town.citizens[0].worker).mover;
        assert_int_equal(stats.early_count, way == 3);
    }
    tow_session_close(stranger.session, TOW_OK, (tow_closed_t){0});
    run_for(&town, SECOND);
    assert_int_equal(
        tow_worker_stats(town.citizens[0].worker).mover.early_count, 0);
    town_run_t *run = grant(&town, LARGE, 1, 2, 2, 2); /* Nobody minds. */
    run_for(&town, SECOND);
    expect_done(run);
    town_close(&town);
}

/* -- By chance ------------------------------------------------------------------------------- */

static uint32_t below(town_t *town, uint64_t limit)
{
    return (uint32_t)tow_random_below(&town->random, limit);
}

static void grant_any(town_t *town)
{
    const size_t k = below(town, TOW_COUNT_OF(kinds));
    for (uint32_t i = 0; i < WORKERS; i++) {
        const citizen_t *citizen = &town->citizens[i];
        if (!citizen->is_joined || !tow_session_is_open(citizen->session))
            return; /* A controller knows who is there. */
    }
    if (town->run_count < RUNS)
        grant(town, kinds[k].bytes / 12 * 12, kinds[k].from,
              kinds[k].from_parts, kinds[k].to, kinds[k].to_parts);
}

static void act(town_t *town)
{
    const uint32_t choice = below(town, 100);
    citizen_t *citizen = &town->citizens[below(town, WORKERS)];
    if (choice < 50) {
        grant_any(town);
    } else if (choice < 55 && town->run_count > 0) {
        town_run_t *run = &town->runs[below(town, town->run_count)];
        abort_run(town, run, "by chance");
    } else if (choice < 60) {
        cut_between(town, citizen->number, (citizen->number + 1) % WORKERS);
    } else if (choice < 65) {
        tow_sim_heal(town->sim, 0);
    } else if (choice < 67) {
        tow_sim_crash(citizen->node);
        tow_sim_restart(citizen->node);
        run_for(town, 1000);
    } else if (choice < 75) {
        run_for(town, below(town, 1000000000));
    } else {
        run_for(town, below(town, 300000));
    }
}

/* How often a worker ended its part of a run well. */
static size_t run_seed(uint64_t seed)
{
    static town_t town;
    town = (town_t){.seed = seed};
    town_open(&town);
    for (int i = 0; i < 150; i++)
        act(&town);
    tow_sim_heal(town.sim, 0);
    run_for(&town, 30 * SECOND);
    size_t done = 0;
    for (size_t i = 0; i < town.run_count; i++)
        for (uint32_t w = 0; w < WORKERS; w++) {
            if (town.runs[i].reports[w] == REPORT_DUE)
                fail_msg("seed %u: worker %u never ended run %u",
                         (unsigned)seed, w, (unsigned)town.runs[i].key);
            done += town.runs[i].reports[w] == REPORT_DONE;
        }
    for (uint32_t w = 0; w < WORKERS; w++)
        assert_int_equal(tow_worker_stats(town.citizens[w].worker).state,
                         TOW_WORKER_JOINED);
    town_close(&town);
    return done;
}

static void every_run_ends_whatever_happens(void **state)
{
    (void)state;
    size_t done = 0;
    for (uint64_t seed = 1; seed <= SEEDS; seed++)
        done += run_seed(seed);
    assert_true(done > 10 * SEEDS);
}

TOW_TEST_MAIN(cmocka_unit_test(shards_go_from_worker_to_worker),
              cmocka_unit_test(many_are_under_way_at_once),
              cmocka_unit_test(a_worker_that_dies_fails_transfers_with_it),
              cmocka_unit_test(a_worker_without_a_door_is_told_of),
              cmocka_unit_test(workers_that_cannot_reach_each_other_say_so),
              cmocka_unit_test(who_is_not_let_in_is_told_why),
              cmocka_unit_test(every_run_ends_whatever_happens))
