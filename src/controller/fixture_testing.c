#include "controller/fixture_testing_impl.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"

void must(tow_status_t status)
{
    if (status != TOW_OK) fail_msg("%s", tow_status_message(status));
}

void run_for(cluster_fixture_t *cluster, int64_t span_ns)
{
    must(tow_sim_run(cluster->sim,
                     &(tow_sim_run_options_t){
                         .until_ns = tow_sim_now_ns(cluster->sim) + span_ns}));
    if (cluster->controller != NULL) {
        must(tow_controller_check(cluster->controller));
        must(tow_controller_check_records(cluster->controller));
    }
}

void expect_part(const char *text, const char *part)
{
    if (strstr(text, part) == NULL) fail_msg("'%s' has no '%s'", text, part);
}

/* -- The controller's process ------------------------------------------------- */

static tow_status_t controller_start(tow_env_t *env, void *argument,
                                     void **out_machine)
{
    cluster_fixture_t *cluster = argument;
    tow_sim_model_t model;
    TOW_RETURN_IF_ERROR(tow_sim_model_find("tpu_v4", &model));
    TOW_RETURN_IF_ERROR(tow_sim_device_driver_create(
        env, &(tow_sim_device_options_t){.model = &model}, &cluster->driver));
    TOW_RETURN_IF_ERROR(tow_direct_compiler_create(
        cluster->driver, &(tow_direct_compiler_options_t){0},
        &cluster->compiler));
    cluster->options.address = "sim:controller";
    cluster->options.compiler = cluster->compiler;
    *out_machine = cluster;
    return tow_controller_open(env, &cluster->options, &cluster->controller);
}

static void controller_destroy(void *machine)
{
    cluster_fixture_t *cluster = machine;
    tow_direct_compiler_discard(cluster->compiler);
    tow_controller_destroy(cluster->controller);
    tow_sim_device_driver_crash(cluster->driver);
    cluster->compiler = NULL;
    cluster->controller = NULL;
    cluster->driver = NULL;
}

static const tow_sim_program_t controller_program = {.start = controller_start,
                                                     .destroy =
                                                         controller_destroy};

/* -- Peers ---------------------------------------------------------------------- */

void send_message(peer_t *peer, uint32_t type, const tow_body_t *body)
{
    assert_non_null(peer->session);
    assert_int_equal(tow_session_send(peer->session, type, body), TOW_SEND_OK);
}

uint64_t send_blob(peer_t *peer, const void *bytes, size_t size)
{
    char *copy = tow_malloc(size + 1);
    memcpy(copy, bytes, size);
    return tow_session_send_blob(
        peer->session,
        &(tow_session_blob_t){
            .bytes = copy, .size = size, .release = tow_free, .context = copy});
}

static void peer_opened(void *context, tow_session_t *session)
{
    (void)session;
    ((peer_t *)context)->is_open = true;
}

static const tow_body_t *decode_message(peer_t *peer,
                                        const received_t *received)
{
    const tow_body_t *body;
    tow_arena_reset(&peer->arena);
    must(tow_message_decode(received->type, received->bytes, received->size,
                            &peer->arena, &body));
    return body;
}

void answer_load(peer_t *peer, uint64_t executable, const char *failure)
{
    tow_msg_load_done_t done = TOW_MSG_LOAD_DONE_INIT;
    tow_msg_failure_t given = TOW_MSG_FAILURE_INIT;
    given.code = TOW_INTERNAL;
    given.message = (char *)failure;
    done.executable = executable;
    if (failure != NULL) done.failure = &given;
    send_message(peer, TOW_MESSAGE_LOAD_DONE, &done.base);
}

void send_failed(peer_t *worker, uint64_t run, tow_code_t code,
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
    send_message(worker, TOW_MESSAGE_DONE, &done.base);
}

static void peer_message(void *context, tow_session_t *session,
                         const tow_message_t *message)
{
    (void)session;
    peer_t *peer = context;
    received_t received = {.type = message->type,
                           .bytes = tow_malloc(message->size + 1),
                           .size = message->size};
    memcpy(received.bytes, message->bytes, message->size);
    assert_true(tow_vec_push(&peer->messages, received));
    if (message->type == TOW_MESSAGE_LOAD && !peer->holds_loads)
        answer_load(peer,
                    ((const tow_msg_load_t *)decode_message(peer, &received))
                        ->executable,
                    NULL);
    if (message->type == TOW_MESSAGE_ABORT && peer->answers_aborts)
        send_failed(
            peer,
            ((const tow_msg_abort_t *)decode_message(peer, &received))->run,
            TOW_CANCELLED, "aborted");
}

static void peer_blob(void *context, tow_session_t *session, uint64_t blob,
                      void *take_bytes, size_t size)
{
    (void)session;
    peer_t *peer = context;
    tow_free(peer->blob_bytes);
    peer->blob = blob;
    peer->blob_bytes = take_bytes;
    peer->blob_size = size;
}

void peer_disconnected(void *context, tow_session_t *session,
                       tow_status_t cause)
{
    peer_t *peer = context;
    peer->disconnect_count++;
    peer->disconnect_code = tow_status_code(cause);
    snprintf(peer->disconnect_message, sizeof(peer->disconnect_message), "%s",
             tow_status_message(cause));
    tow_session_close(session, TOW_OK, (tow_closed_t){0});
    peer->session = NULL;
}

static const tow_session_handler_t peer_handler = {
    .opened = peer_opened,
    .message = peer_message,
    .blob = peer_blob,
    .disconnected = peer_disconnected,
};

void peer_dial(peer_t *peer)
{
    peer->is_open = false;
    must(tow_session_dial(
        tow_sim_node_env(peer->node),
        &(tow_session_dial_options_t){.address = "sim:controller",
                                      .handler = &peer_handler,
                                      .context = peer},
        &peer->session));
    run_for(peer->cluster, SECOND / 100);
    assert_true(peer->is_open);
}

peer_t *peer_make(cluster_fixture_t *cluster, const char *name)
{
    assert_true(cluster->peer_count < PEERS_MAX);
    peer_t *peer = &cluster->peers[cluster->peer_count++];
    peer->cluster = cluster;
    snprintf(peer->name, sizeof(peer->name), "%s", name);
    tow_arena_init(&peer->arena, 0);
    must(tow_sim_node_create(cluster->sim,
                             &(tow_sim_node_options_t){.name = peer->name},
                             &peer->node));
    peer_dial(peer);
    return peer;
}

void peer_crash(peer_t *peer)
{
    tow_session_t *session = peer->session;
    peer->session = NULL;
    tow_sim_crash(peer->node);
    tow_session_discard(session);
    run_for(peer->cluster, 4 * SECOND);
}

void peer_leave(peer_t *peer)
{
    tow_session_close(peer->session, TOW_OK, (tow_closed_t){0});
    peer->session = NULL;
    run_for(peer->cluster, SECOND / 10);
}

static bool is_skipped(const peer_t *peer, uint32_t type, uint32_t wanted)
{
    return type != wanted &&
           (type == TOW_MESSAGE_PEER || type == TOW_MESSAGE_PEER_DISCONNECTED ||
            (type == TOW_MESSAGE_LOAD && !peer->holds_loads) ||
            ((type == TOW_MESSAGE_REPORT_GET ||
              type == TOW_MESSAGE_RUN_STALLED) &&
             !peer->cluster->receives_stalls));
}

const received_t *next_message(peer_t *peer, uint32_t wanted)
{
    while (peer->read_count < peer->messages.count) {
        const received_t *received = &peer->messages.items[peer->read_count];
        if (!is_skipped(peer, received->type, wanted)) return received;
        peer->read_count++;
    }
    return NULL;
}

const tow_body_t *expect_message(peer_t *peer, uint32_t type)
{
    if (next_message(peer, type) == NULL) run_for(peer->cluster, SECOND / 100);
    const received_t *received = next_message(peer, type);
    if (received == NULL) {
        fail_msg("%s received nothing, not %s (disconnected: %s)", peer->name,
                 tow_message_type_name(type), peer->disconnect_message);
        return NULL; /* fail_msg does not return. */
    }
    if (received->type != type)
        fail_msg("%s received %s, not %s", peer->name,
                 tow_message_type_name(received->type),
                 tow_message_type_name(type));
    peer->read_count++;
    return decode_message(peer, received);
}

void expect_no_message(peer_t *peer)
{
    run_for(peer->cluster, SECOND / 100);
    const received_t *received = next_message(peer, 0);
    if (received != NULL)
        fail_msg("%s received %s", peer->name,
                 tow_message_type_name(received->type));
}

void discard_messages(peer_t *peer)
{
    run_for(peer->cluster, SECOND / 100);
    peer->read_count = peer->messages.count;
}

void expect_failure(const tow_msg_failure_t *failure, tow_code_t code,
                    const char *part)
{
    if (failure == NULL) {
        fail_msg("no failure, but '%s' was expected", part);
        return;
    }
    if ((tow_code_t)failure->code != code)
        fail_msg("code %u: %s", failure->code, failure->message);
    expect_part(failure->message, part);
}

void expect_success(const tow_msg_failure_t *failure)
{
    if (failure != NULL) fail_msg("%s", failure->message);
}

/* -- The cluster ------------------------------------------------------------------ */

void cluster_open(cluster_fixture_t *cluster)
{
    tow_sim_options_t options = {.seed = 5,
                                 .remote_path = {.latency_ns = 20000}};
    options.log.level = TOW_LOG_OFF;
    must(tow_sim_create(&options, &cluster->sim));
    must(tow_sim_node_create(
        cluster->sim,
        &(tow_sim_node_options_t){.name = "controller",
                                  .program = &controller_program,
                                  .argument = cluster},
        &cluster->node));
    run_for(cluster, 1000);
}

static void peer_free(peer_t *peer)
{
    tow_sim_crash(peer->node);
    tow_session_discard(peer->session);
    for (size_t i = 0; i < peer->messages.count; i++)
        tow_free(peer->messages.items[i].bytes);
    tow_vec_deinit(&peer->messages);
    tow_free(peer->blob_bytes);
    tow_arena_deinit(&peer->arena);
}

void cluster_destroy(cluster_fixture_t *cluster)
{
    tow_sim_crash(cluster->node);
    for (size_t i = 0; i < cluster->peer_count; i++)
        peer_free(&cluster->peers[i]);
    tow_sim_destroy(cluster->sim);
}

void expect_nothing(const cluster_fixture_t *cluster)
{
    const tow_controller_totals_t totals =
        tow_controller_totals(cluster->controller);
    assert_int_equal(totals.run_count, 0);
    assert_int_equal(totals.object_count, 0);
    assert_int_equal(totals.object_bytes, 0);
    assert_int_equal(totals.reserved_bytes, 0);
    assert_int_equal(totals.spilled_bytes, 0);
    assert_int_equal(totals.slice_count, 0);
    assert_int_equal(totals.program_count, 0);
    assert_int_equal(totals.client_count, 0);
}

void cluster_close(cluster_fixture_t *cluster)
{
    for (size_t i = 0; i < cluster->peer_count; i++)
        cluster->peers[i].answers_aborts = true;
    for (size_t i = 0; i < cluster->peer_count; i++)
        if (cluster->peers[i].number != 0 && cluster->peers[i].session != NULL)
            peer_leave(&cluster->peers[i]);
    expect_nothing(cluster);
    cluster_destroy(cluster);
}

/* -- Workers ---------------------------------------------------------------------- */

void send_join_on(peer_t *peer, uint32_t process, size_t count,
                  const char *island)
{
    tow_msg_device_t devices[DEVICES + 1];
    tow_msg_device_t *list[DEVICES + 1];
    for (size_t i = 0; i < count; i++) {
        devices[i] = (tow_msg_device_t)TOW_MSG_DEVICE_INIT;
        devices[i].id = 2048 * (int64_t)process + (int64_t)i;
        devices[i].kind = (char *)peer->cluster->driver->devices[0].kind;
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
    join.listen_address = peer->name;
    join.host_bytes = peer->cluster->host_bytes;
    send_message(peer, TOW_MESSAGE_WORKER_JOIN, &join.base);
}

void send_join(peer_t *peer, uint32_t process, size_t count)
{
    send_join_on(peer, process, count, "");
}

peer_t *worker_make_on(cluster_fixture_t *cluster, uint32_t process,
                       const char *island)
{
    char name[32];
    snprintf(name, sizeof(name), "worker/%u", process);
    peer_t *peer = peer_make(cluster, name);
    send_join_on(peer, process, DEVICES, island);
    expect_success(EXPECT(peer, WORKER_JOINED, worker_joined)->failure);
    return peer;
}

peer_t *worker_make(cluster_fixture_t *cluster, uint32_t process)
{
    return worker_make_on(cluster, process, "");
}

void send_done(peer_t *worker, uint64_t run)
{
    tow_msg_done_t done = TOW_MSG_DONE_INIT;
    done.runs = &run;
    done.n_runs = 1;
    send_message(worker, TOW_MESSAGE_DONE, &done.base);
}

/* -- Clients ---------------------------------------------------------------------- */

peer_t *client_make(cluster_fixture_t *cluster, const char *name)
{
    peer_t *peer = peer_make(cluster, name);
    tow_msg_client_open_t open = TOW_MSG_CLIENT_OPEN_INIT;
    open.name = peer->name;
    send_message(peer, TOW_MESSAGE_CLIENT_OPEN, &open.base);
    const tow_msg_client_opened_t *opened =
        EXPECT(peer, CLIENT_OPENED, client_opened);
    expect_success(opened->failure);
    peer->number = opened->client;
    return peer;
}

void send_slice(peer_t *client, uint64_t slice, uint32_t count)
{
    tow_msg_slice_open_t open = TOW_MSG_SLICE_OPEN_INIT;
    open.slice = slice;
    open.kind = (char *)"";
    open.dims = &count;
    open.n_dims = 1;
    send_message(client, TOW_MESSAGE_SLICE_OPEN, &open.base);
}

void open_slice(peer_t *client, uint64_t slice, uint32_t count)
{
    send_slice(client, slice, count);
    const tow_msg_slice_opened_t *opened =
        EXPECT(client, SLICE_OPENED, slice_opened);
    expect_success(opened->failure);
    assert_int_equal(opened->n_devices, count);
}

const char add_text[] = "towpath-cost 1\n"
                        "name add\n"
                        "argument u8[1024]\n"
                        "result u8[1024]\n"
                        "duration 1000\n";

const char consuming_text[] = "towpath-cost 1\n"
                              "name eat\n"
                              "argument u8[1024]\n"
                              "result u8[1024] alias 0\n"
                              "duration 1000\n";

const char big_text[] = "towpath-cost 1\n"
                        "name big\n"
                        "argument u8[1024]\n"
                        "result u8[1024]\n"
                        "temporary 600000\n";

const char huge_text[] = "towpath-cost 1\n"
                         "name huge\n"
                         "argument u8[1024]\n"
                         "result u8[1024]\n"
                         "temporary 6000000\n";

void send_compile(peer_t *client, uint64_t function, uint64_t slice,
                  const char *text)
{
    tow_msg_compile_t compile = TOW_MSG_COMPILE_INIT;
    compile.function = function;
    compile.slice = slice;
    compile.format = TOW_PROGRAM_COST;
    compile.program_blob = send_blob(client, text, strlen(text));
    send_message(client, TOW_MESSAGE_COMPILE, &compile.base);
}

void compile(peer_t *client, uint64_t function, uint64_t slice,
             const char *text)
{
    send_compile(client, function, slice, text);
    const tow_msg_compile_done_t *done =
        EXPECT(client, COMPILE_DONE, compile_done);
    expect_success(done->failure);
    assert_int_equal(done->function, function);
    assert_true(done->signature.len > 0);
}

void send_program(peer_t *client, uint64_t program, const char *text)
{
    tow_graph_t *graph;
    void *bytes;
    size_t size;
    must(tow_graph_parse(text, strlen(text), &graph));
    must(tow_graph_pack(graph, &bytes, &size));
    tow_graph_destroy(graph);
    tow_msg_program_add_t add = TOW_MSG_PROGRAM_ADD_INIT;
    add.program = program;
    add.graph_blob = send_blob(client, bytes, size);
    tow_free(bytes);
    send_message(client, TOW_MESSAGE_PROGRAM_ADD, &add.base);
}

void add_program(peer_t *client, uint64_t program, const char *text)
{
    send_program(client, program, text);
    const tow_msg_program_added_t *added =
        EXPECT(client, PROGRAM_ADDED, program_added);
    expect_success(added->failure);
    assert_int_equal(added->program, program);
}

void refuse_program(peer_t *client, uint64_t program, const char *text,
                    tow_code_t code, const char *part)
{
    send_program(client, program, text);
    expect_failure(EXPECT(client, PROGRAM_ADDED, program_added)->failure, code,
                   part);
}

const char one_add[] = "program \"one\" {\n"
                       "  %0 = argument \"x\" : u8[1024] on slice 1\n"
                       "  %1 = compute \"A\" function 1 on slice 1 (%0)\n"
                       "  %2 = result \"y\" (%1)\n"
                       "}\n";

const char donating[] = "program \"donating\" {\n"
                        "  %0 = argument \"x\" : u8[1024] on slice 1 donated\n"
                        "  %1 = compute \"A\" function 1 on slice 1 (%0)\n"
                        "  %2 = result \"y\" (%1)\n"
                        "}\n";

void send_put(peer_t *client, uint64_t object, uint64_t slice, size_t size,
              const void *bytes)
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
    send_message(client, TOW_MESSAGE_PUT, &put.base);
}

void send_run(peer_t *client, uint64_t run, uint64_t program, uint64_t argument,
              uint64_t first_result)
{
    tow_msg_run_t message = TOW_MSG_RUN_INIT;
    message.run = run;
    message.program = program;
    message.arguments = &argument;
    message.n_arguments = argument != 0;
    message.first_result = first_result;
    send_message(client, TOW_MESSAGE_RUN, &message.base);
}

void send_get(peer_t *client, uint64_t request, uint64_t object, uint32_t shard)
{
    tow_msg_get_t get = TOW_MSG_GET_INIT;
    get.request = request;
    get.object = object;
    get.shard = shard;
    send_message(client, TOW_MESSAGE_GET, &get.base);
}

void send_release(peer_t *client, uint64_t first, uint32_t count)
{
    tow_msg_release_t release = TOW_MSG_RELEASE_INIT;
    release.firsts = &first;
    release.n_firsts = 1;
    release.counts = &count;
    release.n_counts = 1;
    send_message(client, TOW_MESSAGE_RELEASE, &release.base);
}

void send_cancel(peer_t *client, uint64_t run)
{
    tow_msg_cancel_t cancel = TOW_MSG_CANCEL_INIT;
    cancel.run = run;
    send_message(client, TOW_MESSAGE_CANCEL, &cancel.base);
}

void expect_run_done(peer_t *client, uint64_t run)
{
    const tow_msg_runs_done_t *done = EXPECT(client, RUNS_DONE, runs_done);
    if (done->n_failures > 0)
        fail_msg("%s", done->failures[0]->failure->message);
    assert_int_equal(done->n_runs, 1);
    assert_int_equal(done->runs[0], run);
}

void expect_run_failed(peer_t *client, uint64_t run, tow_code_t code,
                       const char *part)
{
    const tow_msg_runs_done_t *done = EXPECT(client, RUNS_DONE, runs_done);
    assert_int_equal(done->n_runs, 0);
    assert_int_equal(done->n_failures, 1);
    assert_int_equal(done->failures[0]->run, run);
    expect_failure(done->failures[0]->failure, code, part);
}

uint64_t expect_grant(peer_t *worker, const peer_t *client, uint64_t run)
{
    const tow_msg_grant_t *grant = EXPECT(worker, GRANT, grant);
    assert_int_equal(grant->run, tow_key(client->number, run));
    return grant->run;
}
