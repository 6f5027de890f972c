/* A simulated world for the controller's tests: the controller with a compiler for
 * simulated devices, and workers and clients that say what the test tells them to
 * say and write down what they hear. */
#ifndef TOW_CONTROLLER_WORLD_TESTING_IMPL_H_
#define TOW_CONTROLLER_WORLD_TESTING_IMPL_H_

#include "base/testing.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/arena.h"
#include "base/vec.h"
#include "controller/controller.h"
#include "device/compiler/direct.h"
#include "device/sim/sim_device.h"
#include "env/sim/sim.h"
#include "ir/graph.h"
#include "ir/lower.h"
#include "store/ledger.h"

#define PEERS_MAX    8
#define DEVICES      2 /* of a worker */
#define MEMORY_BYTES (1u << 20)
#define SECOND       1000000000ll

typedef struct note {
    uint32_t type;
    uint8_t *bytes; /* owned */
    size_t size;
} note_t;

/* A scripted worker or client. */
typedef struct peer {
    struct world *world;
    tow_sim_node_t *node;
    tow_session_t *session; /* NULL: none, or gone */
    char name[32];
    bool is_open;
    tow_arena_t arena; /* of the message that was heard last */
    TOW_VEC(note_t) notes;
    size_t read_count;
    bool keeps_loads; /* does not answer them by itself */
    bool obeys;       /* answers aborts by itself */
    uint64_t blob;    /* the last that came */
    void *blob_bytes; /* owned */
    size_t blob_size;
    int gone_count;
    tow_code_t gone_code;
    char gone_message[512];
    uint32_t number; /* a client's */
} peer_t;

typedef struct world {
    tow_sim_t *sim;
    tow_sim_node_t *node;
    tow_controller_t *controller;
    tow_controller_options_t options;
    tow_driver_t *driver;
    tow_compiler_t *compiler;
    peer_t peers[PEERS_MAX];
    size_t peer_count;
    uint64_t host_bytes; /* of workers that join, for what is spilled */
    bool hears_late;     /* what is asked and said of runs that take long */
    bool is_closed;
} world_t;

static inline void must(tow_status_t status)
{
    if (status != TOW_OK) fail_msg("%s", tow_status_message(status));
}

static inline void run_for(world_t *world, int64_t span_ns)
{
    must(tow_sim_run(world->sim,
                     &(tow_sim_run_options_t){
                         .until_ns = tow_sim_now_ns(world->sim) + span_ns}));
    if (world->controller != NULL)
        must(tow_controller_check(world->controller));
}

static inline void expect_part(const char *text, const char *part)
{
    if (strstr(text, part) == NULL) fail_msg("'%s' has no '%s'", text, part);
}

/* -- The controller's process ------------------------------------------------- */

static inline tow_status_t controller_start(tow_env_t *env, void *argument,
                                            void **out_machine)
{
    world_t *world = argument;
    tow_sim_model_t model;
    TOW_RETURN_IF_ERROR(tow_sim_model_find("tpu_v4", &model));
    TOW_RETURN_IF_ERROR(tow_sim_device_driver_create(
        env, &(tow_sim_device_options_t){.model = &model}, &world->driver));
    TOW_RETURN_IF_ERROR(tow_direct_compiler_create(
        world->driver, &(tow_direct_compiler_options_t){0}, &world->compiler));
    world->options.address = "sim:controller";
    world->options.compiler = world->compiler;
    *out_machine = world;
    return tow_controller_open(env, &world->options, &world->controller);
}

static inline void controller_destroy(void *machine)
{
    world_t *world = machine;
    tow_direct_compiler_abandon(world->compiler);
    tow_controller_destroy(world->controller);
    tow_sim_device_driver_crash(world->driver);
    world->compiler = NULL;
    world->controller = NULL;
    world->driver = NULL;
}

static const tow_sim_program_t controller_program = {.start = controller_start,
                                                     .destroy =
                                                         controller_destroy};

/* -- Peers ---------------------------------------------------------------------- */

static inline void say(peer_t *peer, uint32_t type, const tow_body_t *body)
{
    assert_non_null(peer->session);
    assert_int_equal(tow_session_send(peer->session, type, body), TOW_SEND_OK);
}

static inline uint64_t say_blob(peer_t *peer, const void *bytes, size_t size)
{
    char *copy = tow_malloc(size + 1);
    memcpy(copy, bytes, size);
    return tow_session_send_blob(
        peer->session,
        &(tow_session_blob_t){
            .bytes = copy, .size = size, .release = tow_free, .context = copy});
}

static inline void peer_opened(void *context, tow_session_t *session)
{
    (void)session;
    ((peer_t *)context)->is_open = true;
}

static inline const tow_body_t *read_note(peer_t *peer, const note_t *note)
{
    const tow_body_t *body;
    tow_arena_reset(&peer->arena);
    must(tow_message_decode(note->type, note->bytes, note->size, &peer->arena,
                            &body));
    return body;
}

static inline void answer_load(peer_t *peer, uint64_t executable,
                               const char *failure)
{
    tow_msg_load_done_t done = TOW_MSG_LOAD_DONE_INIT;
    tow_msg_failure_t told = TOW_MSG_FAILURE_INIT;
    told.code = TOW_INTERNAL;
    told.message = (char *)failure;
    done.executable = executable;
    if (failure != NULL) done.failure = &told;
    say(peer, TOW_MESSAGE_LOAD_DONE, &done.base);
}

static inline void say_failed(peer_t *worker, uint64_t run, tow_code_t code,
                              const char *message)
{
    tow_msg_done_t done = TOW_MSG_DONE_INIT;
    tow_msg_failure_t failure = TOW_MSG_FAILURE_INIT;
    tow_msg_run_failure_t entry = TOW_MSG_RUN_FAILURE_INIT;
    tow_msg_run_failure_t *list = &entry;
    failure.code = code;
    failure.message = (char *)message;
    entry.run = run;
    entry.node = 1;
    entry.failure = &failure;
    done.failures = &list;
    done.n_failures = 1;
    say(worker, TOW_MESSAGE_DONE, &done.base);
}

static inline void peer_message(void *context, tow_session_t *session,
                                const tow_message_t *message)
{
    (void)session;
    peer_t *peer = context;
    note_t note = {.type = message->type,
                   .bytes = tow_malloc(message->size + 1),
                   .size = message->size};
    memcpy(note.bytes, message->bytes, message->size);
    assert_true(tow_vec_push(&peer->notes, note));
    if (message->type == TOW_MESSAGE_LOAD && !peer->keeps_loads)
        answer_load(
            peer, ((const tow_msg_load_t *)read_note(peer, &note))->executable,
            NULL);
    if (message->type == TOW_MESSAGE_ABORT && peer->obeys)
        say_failed(peer, ((const tow_msg_abort_t *)read_note(peer, &note))->run,
                   TOW_CANCELLED, "aborted");
}

static inline void peer_blob(void *context, tow_session_t *session,
                             uint64_t blob, void *take_bytes, size_t size)
{
    (void)session;
    peer_t *peer = context;
    tow_free(peer->blob_bytes);
    peer->blob = blob;
    peer->blob_bytes = take_bytes;
    peer->blob_size = size;
}

static inline void peer_gone(void *context, tow_session_t *session,
                             tow_status_t cause)
{
    peer_t *peer = context;
    peer->gone_count++;
    peer->gone_code = tow_status_code(cause);
    snprintf(peer->gone_message, sizeof(peer->gone_message), "%s",
             tow_status_message(cause));
    tow_session_close(session, TOW_OK, (tow_closed_t){0});
    peer->session = NULL;
}

static const tow_session_handler_t peer_handler = {
    .opened = peer_opened,
    .message = peer_message,
    .blob = peer_blob,
    .gone = peer_gone,
};

static inline void peer_dial(peer_t *peer)
{
    peer->is_open = false;
    must(tow_session_dial(
        tow_sim_node_env(peer->node),
        &(tow_session_dial_options_t){.address = "sim:controller",
                                      .handler = &peer_handler,
                                      .context = peer},
        &peer->session));
    run_for(peer->world, SECOND / 100);
    assert_true(peer->is_open);
}

static inline peer_t *peer_make(world_t *world, const char *name)
{
    assert_true(world->peer_count < PEERS_MAX);
    peer_t *peer = &world->peers[world->peer_count++];
    peer->world = world;
    snprintf(peer->name, sizeof(peer->name), "%s", name);
    tow_arena_init(&peer->arena, 0);
    must(tow_sim_node_create(world->sim,
                             &(tow_sim_node_options_t){.name = peer->name},
                             &peer->node));
    peer_dial(peer);
    return peer;
}

/* The process ends without a word, and the controller finds out. */
static inline void peer_die(peer_t *peer)
{
    tow_session_t *session = peer->session;
    peer->session = NULL;
    tow_sim_crash(peer->node);
    tow_session_abandon(session);
    run_for(peer->world, 4 * SECOND);
}

/* Leaves politely. */
static inline void peer_leave(peer_t *peer)
{
    tow_session_close(peer->session, TOW_OK, (tow_closed_t){0});
    peer->session = NULL;
    run_for(peer->world, SECOND / 10);
}

static inline bool is_passed_over(const peer_t *peer, uint32_t type,
                                  uint32_t wanted)
{
    return type != wanted &&
           (type == TOW_MESSAGE_PEER || type == TOW_MESSAGE_PEER_GONE ||
            (type == TOW_MESSAGE_LOAD && !peer->keeps_loads) ||
            ((type == TOW_MESSAGE_REPORT_GET || type == TOW_MESSAGE_RUN_LATE) &&
             !peer->world->hears_late));
}

static inline const note_t *next_note(peer_t *peer, uint32_t wanted)
{
    while (peer->read_count < peer->notes.count) {
        const note_t *note = &peer->notes.items[peer->read_count];
        if (!is_passed_over(peer, note->type, wanted)) return note;
        peer->read_count++;
    }
    return NULL;
}

/* The next message, which is of this type. Valid until the next of this peer. */
static inline const tow_body_t *hear(peer_t *peer, uint32_t type)
{
    if (next_note(peer, type) == NULL) run_for(peer->world, SECOND / 100);
    const note_t *note = next_note(peer, type);
    if (note == NULL) {
        fail_msg("%s hears nothing, not %s (gone: %s)", peer->name,
                 tow_message_type_name(type), peer->gone_message);
        return NULL; /* For those who do not know that it does not come back. */
    }
    if (note->type != type)
        fail_msg("%s hears %s, not %s", peer->name,
                 tow_message_type_name(note->type),
                 tow_message_type_name(type));
    peer->read_count++;
    return read_note(peer, note);
}

static inline void hear_nothing(peer_t *peer)
{
    run_for(peer->world, SECOND / 100);
    const note_t *note = next_note(peer, 0);
    if (note != NULL)
        fail_msg("%s hears %s", peer->name, tow_message_type_name(note->type));
}

static inline void hear_out(peer_t *peer)
{
    run_for(peer->world, SECOND / 100);
    peer->read_count = peer->notes.count;
}

#define HEAR(peer, kind, name) \
    ((const tow_msg_##name##_t *)hear((peer), TOW_MESSAGE_##kind))

static inline void expect_failure(const tow_msg_failure_t *failure,
                                  tow_code_t code, const char *part)
{
    if (failure == NULL) {
        fail_msg("no failure, but '%s' was expected", part);
        return;
    }
    if ((tow_code_t)failure->code != code)
        fail_msg("code %u: %s", failure->code, failure->message);
    expect_part(failure->message, part);
}

static inline void expect_well(const tow_msg_failure_t *failure)
{
    if (failure != NULL) fail_msg("%s", failure->message);
}

/* -- The world ------------------------------------------------------------------ */

static inline void world_open(world_t *world)
{
    tow_sim_options_t options = {.seed = 5,
                                 .remote_path = {.latency_ns = 20000}};
    options.log.level = TOW_LOG_OFF;
    must(tow_sim_create(&options, &world->sim));
    must(tow_sim_node_create(
        world->sim,
        &(tow_sim_node_options_t){.name = "controller",
                                  .program = &controller_program,
                                  .argument = world},
        &world->node));
    run_for(world, 1000);
}

static inline void peer_free(peer_t *peer)
{
    tow_sim_crash(peer->node);
    tow_session_abandon(peer->session);
    for (size_t i = 0; i < peer->notes.count; i++)
        tow_free(peer->notes.items[i].bytes);
    tow_vec_deinit(&peer->notes);
    tow_free(peer->blob_bytes);
    tow_arena_deinit(&peer->arena);
}

static inline void world_destroy(world_t *world)
{
    tow_sim_crash(world->node);
    for (size_t i = 0; i < world->peer_count; i++)
        peer_free(&world->peers[i]);
    tow_sim_destroy(world->sim);
}

static inline void expect_nothing(const world_t *world)
{
    const tow_controller_totals_t totals =
        tow_controller_totals(world->controller);
    assert_int_equal(totals.run_count, 0);
    assert_int_equal(totals.object_count, 0);
    assert_int_equal(totals.object_bytes, 0);
    assert_int_equal(totals.reserved_bytes, 0);
    assert_int_equal(totals.spilled_bytes, 0);
    assert_int_equal(totals.slice_count, 0);
    assert_int_equal(totals.program_count, 0);
    assert_int_equal(totals.client_count, 0);
}

/* All clients leave, and nothing is left of them. */
static inline void world_close(world_t *world)
{
    for (size_t i = 0; i < world->peer_count; i++)
        world->peers[i].obeys = true;
    for (size_t i = 0; i < world->peer_count; i++)
        if (world->peers[i].number != 0 && world->peers[i].session != NULL)
            peer_leave(&world->peers[i]);
    expect_nothing(world);
    world_destroy(world);
}

/* -- Workers ---------------------------------------------------------------------- */

static inline void say_join_on(peer_t *peer, uint32_t process, size_t count,
                               const char *island)
{
    tow_msg_device_t devices[DEVICES + 1];
    tow_msg_device_t *list[DEVICES + 1];
    for (size_t i = 0; i < count; i++) {
        devices[i] = (tow_msg_device_t)TOW_MSG_DEVICE_INIT;
        devices[i].id = 2048 * (int64_t)process + (int64_t)i;
        devices[i].kind = (char *)peer->world->driver->devices[0].kind;
        devices[i].name = (char *)"device";
        devices[i].memory_bytes = MEMORY_BYTES;
        list[i] = &devices[i];
    }
    tow_msg_worker_join_t join = TOW_MSG_WORKER_JOIN_INIT;
    join.process = process;
    join.host = (char *)"host";
    join.platform = (char *)"sim";
    join.version = (char *)"1";
    join.stablehlo = (char *)(process == 2 ? "1.9.0" : "1.13.7");
    join.simulated = true;
    join.devices = list;
    join.n_devices = count;
    join.island = (char *)island;
    join.door = peer->name;
    join.host_bytes = peer->world->host_bytes;
    say(peer, TOW_MESSAGE_WORKER_JOIN, &join.base);
}

static inline void say_join(peer_t *peer, uint32_t process, size_t count)
{
    say_join_on(peer, process, count, "");
}

static inline peer_t *worker_make_on(world_t *world, uint32_t process,
                                     const char *island)
{
    char name[32];
    snprintf(name, sizeof(name), "worker/%u", process);
    peer_t *peer = peer_make(world, name);
    say_join_on(peer, process, DEVICES, island);
    expect_well(HEAR(peer, WORKER_JOINED, worker_joined)->failure);
    return peer;
}

static inline peer_t *worker_make(world_t *world, uint32_t process)
{
    return worker_make_on(world, process, "");
}

static inline void say_done(peer_t *worker, uint64_t run)
{
    tow_msg_done_t done = TOW_MSG_DONE_INIT;
    done.runs = &run;
    done.n_runs = 1;
    say(worker, TOW_MESSAGE_DONE, &done.base);
}

/* -- Clients ---------------------------------------------------------------------- */

static inline peer_t *client_make(world_t *world, const char *name)
{
    peer_t *peer = peer_make(world, name);
    tow_msg_client_open_t open = TOW_MSG_CLIENT_OPEN_INIT;
    open.name = peer->name;
    say(peer, TOW_MESSAGE_CLIENT_OPEN, &open.base);
    const tow_msg_client_opened_t *opened =
        HEAR(peer, CLIENT_OPENED, client_opened);
    expect_well(opened->failure);
    peer->number = opened->client;
    return peer;
}

static inline void say_slice(peer_t *client, uint64_t slice, uint32_t count)
{
    tow_msg_slice_open_t open = TOW_MSG_SLICE_OPEN_INIT;
    open.slice = slice;
    open.kind = (char *)"";
    open.dims = &count;
    open.n_dims = 1;
    say(client, TOW_MESSAGE_SLICE_OPEN, &open.base);
}

static inline void open_slice(peer_t *client, uint64_t slice, uint32_t count)
{
    say_slice(client, slice, count);
    const tow_msg_slice_opened_t *opened =
        HEAR(client, SLICE_OPENED, slice_opened);
    expect_well(opened->failure);
    assert_int_equal(opened->n_devices, count);
}

static const char add_text[] = "towpath-cost 1\n"
                               "name add\n"
                               "argument u8[1024]\n"
                               "result u8[1024]\n"
                               "duration 1000\n";
/* Takes its argument's memory. */
static const char eat_text[] = "towpath-cost 1\n"
                               "name eat\n"
                               "argument u8[1024]\n"
                               "result u8[1024] alias 0\n"
                               "duration 1000\n";
static const char big_text[] = "towpath-cost 1\n"
                               "name big\n"
                               "argument u8[1024]\n"
                               "result u8[1024]\n"
                               "temporary 600000\n";
static const char huge_text[] = "towpath-cost 1\n"
                                "name huge\n"
                                "argument u8[1024]\n"
                                "result u8[1024]\n"
                                "temporary 6000000\n";

static inline void say_compile(peer_t *client, uint64_t function,
                               uint64_t slice, const char *text)
{
    tow_msg_compile_t compile = TOW_MSG_COMPILE_INIT;
    compile.function = function;
    compile.slice = slice;
    compile.format = TOW_PROGRAM_COST;
    compile.program_blob = say_blob(client, text, strlen(text));
    say(client, TOW_MESSAGE_COMPILE, &compile.base);
}

static inline void compile(peer_t *client, uint64_t function, uint64_t slice,
                           const char *text)
{
    say_compile(client, function, slice, text);
    const tow_msg_compile_done_t *done =
        HEAR(client, COMPILE_DONE, compile_done);
    expect_well(done->failure);
    assert_int_equal(done->function, function);
    assert_true(done->signature.len > 0);
}

static inline void say_program(peer_t *client, uint64_t program,
                               const char *text)
{
    tow_graph_t *graph;
    void *bytes;
    size_t size;
    must(tow_graph_parse(text, strlen(text), &graph));
    must(tow_graph_pack(graph, &bytes, &size));
    tow_graph_destroy(graph);
    tow_msg_program_add_t add = TOW_MSG_PROGRAM_ADD_INIT;
    add.program = program;
    add.graph_blob = say_blob(client, bytes, size);
    tow_free(bytes);
    say(client, TOW_MESSAGE_PROGRAM_ADD, &add.base);
}

static inline void add_program(peer_t *client, uint64_t program,
                               const char *text)
{
    say_program(client, program, text);
    const tow_msg_program_added_t *added =
        HEAR(client, PROGRAM_ADDED, program_added);
    expect_well(added->failure);
    assert_int_equal(added->program, program);
}

static inline void refuse_program(peer_t *client, uint64_t program,
                                  const char *text, tow_code_t code,
                                  const char *part)
{
    say_program(client, program, text);
    expect_failure(HEAR(client, PROGRAM_ADDED, program_added)->failure, code,
                   part);
}

static const char one_add[] =
    "program \"one\" {\n"
    "  %0 = argument \"x\" : u8[1024] on slice 1\n"
    "  %1 = compute \"A\" function 1 on slice 1 (%0)\n"
    "  %2 = result \"y\" (%1)\n"
    "}\n";
static const char donating[] =
    "program \"donating\" {\n"
    "  %0 = argument \"x\" : u8[1024] on slice 1 donated\n"
    "  %1 = compute \"A\" function 1 on slice 1 (%0)\n"
    "  %2 = result \"y\" (%1)\n"
    "}\n";

/* u8[size] on every device of a slice; not inlined without bytes. */
static inline void say_put(peer_t *client, uint64_t object, uint64_t slice,
                           size_t size, const void *bytes)
{
    int64_t dims[] = {(int64_t)size};
    tow_msg_array_type_t type = TOW_MSG_ARRAY_TYPE_INIT;
    tow_msg_put_t put = TOW_MSG_PUT_INIT;
    type.type = TOW_TYPE_U8;
    type.dims = dims;
    type.n_dims = 1;
    type.bytes = size;
    put.object = object;
    put.slice = slice;
    put.type = &type;
    put.replicated = true;
    put.inlined = bytes != NULL;
    put.bytes.data = (uint8_t *)bytes;
    put.bytes.len = bytes != NULL ? size : 0;
    say(client, TOW_MESSAGE_PUT, &put.base);
}

static inline void say_run(peer_t *client, uint64_t run, uint64_t program,
                           uint64_t argument, uint64_t first_result)
{
    tow_msg_run_t message = TOW_MSG_RUN_INIT;
    message.run = run;
    message.program = program;
    message.arguments = &argument;
    message.n_arguments = argument != 0;
    message.first_result = first_result;
    say(client, TOW_MESSAGE_RUN, &message.base);
}

static inline void say_get(peer_t *client, uint64_t request, uint64_t object,
                           uint32_t shard)
{
    tow_msg_get_t get = TOW_MSG_GET_INIT;
    get.request = request;
    get.object = object;
    get.shard = shard;
    say(client, TOW_MESSAGE_GET, &get.base);
}

static inline void say_release(peer_t *client, uint64_t first, uint32_t count)
{
    tow_msg_release_t release = TOW_MSG_RELEASE_INIT;
    release.firsts = &first;
    release.n_firsts = 1;
    release.counts = &count;
    release.n_counts = 1;
    say(client, TOW_MESSAGE_RELEASE, &release.base);
}

static inline void say_cancel(peer_t *client, uint64_t run)
{
    tow_msg_cancel_t cancel = TOW_MSG_CANCEL_INIT;
    cancel.run = run;
    say(client, TOW_MESSAGE_CANCEL, &cancel.base);
}

static inline void hear_run_done(peer_t *client, uint64_t run)
{
    const tow_msg_runs_done_t *done = HEAR(client, RUNS_DONE, runs_done);
    if (done->n_failures > 0)
        fail_msg("%s", done->failures[0]->failure->message);
    assert_int_equal(done->n_runs, 1);
    assert_int_equal(done->runs[0], run);
}

static inline void hear_run_failed(peer_t *client, uint64_t run,
                                   tow_code_t code, const char *part)
{
    const tow_msg_runs_done_t *done = HEAR(client, RUNS_DONE, runs_done);
    assert_int_equal(done->n_runs, 0);
    assert_int_equal(done->n_failures, 1);
    assert_int_equal(done->failures[0]->run, run);
    expect_failure(done->failures[0]->failure, code, part);
}

/* The grant of a client's run, as a worker gets it; returns its key. */
static inline uint64_t hear_grant(peer_t *worker, const peer_t *client,
                                  uint64_t run)
{
    const tow_msg_grant_t *grant = HEAR(worker, GRANT, grant);
    assert_int_equal(grant->run, tow_key(client->number, run));
    return grant->run;
}

#endif /* TOW_CONTROLLER_WORLD_TESTING_IMPL_H_ */
