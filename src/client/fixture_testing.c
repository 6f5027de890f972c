#include "client/fixture_testing_impl.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"

void must(tow_status_t status)
{
    if (status != TOW_OK) fail_msg("%s", tow_status_message(status));
}

void run_for(fixture_t *fixture, int64_t span_ns)
{
    must(tow_sim_run(fixture->sim,
                     &(tow_sim_run_options_t){
                         .until_ns = tow_sim_now_ns(fixture->sim) + span_ns}));
}

/* Not after the client has been freed. */
void soon(fixture_t *fixture)
{
    run_for(fixture, SECOND / 100);
    if (fixture->client != NULL) tow_client_check(fixture->client);
}

void expect_error(tow_status_t status, tow_code_t code, const char *part)
{
    if (tow_status_code(status) != code ||
        strstr(tow_status_message(status), part) == NULL)
        fail_msg("code %d: %s", tow_status_code(status),
                 tow_status_message(status));
}

void expect_settled(const tow_completion_t *completion)
{
    assert_true(completion->settled);
    must(completion->error);
}

void expect_failed(const tow_completion_t *completion, tow_code_t code,
                   const char *part)
{
    assert_true(completion->settled);
    expect_error(completion->error, code, part);
}

/* -- The controller --------------------------------------------------------------- */

void send_message(fixture_t *fixture, uint32_t type, const tow_body_t *body)
{
    assert_non_null(fixture->session);
    assert_int_equal(tow_session_send(fixture->session, type, body),
                     TOW_SEND_OK);
}

static void on_message(void *context, tow_session_t *session,
                       const tow_message_t *message)
{
    (void)session;
    fixture_t *fixture = context;
    received_t received = {.type = message->type,
                           .bytes = tow_malloc(message->size + 1),
                           .size = message->size};
    memcpy(received.bytes, message->bytes, message->size);
    assert_true(tow_vec_push(&fixture->messages, received));
}

static void on_blob(void *context, tow_session_t *session, uint64_t blob,
                    void *take_bytes, size_t size)
{
    (void)context, (void)session, (void)blob, (void)size;
    tow_free(take_bytes);
}

static void on_disconnect(void *context, tow_session_t *session,
                          tow_status_t cause)
{
    (void)cause;
    fixture_t *fixture = context;
    fixture->disconnect_count++;
    fixture->session = NULL;
    tow_session_close(session, TOW_OK, (tow_closed_t){0});
}

static const tow_session_handler_t controller_handler = {.message = on_message,
                                                         .blob = on_blob,
                                                         .disconnected =
                                                             on_disconnect};

static void on_arrived(void *context, tow_session_t *session)
{
    fixture_t *fixture = context;
    fixture->session = session;
    tow_session_accept(session, &controller_handler, fixture);
}

const tow_body_t *expect_message(fixture_t *fixture, uint32_t type)
{
    if (fixture->read_count == fixture->messages.count) soon(fixture);
    if (fixture->read_count == fixture->messages.count)
        fail_msg("the controller received nothing, not %s",
                 tow_message_type_name(type));
    const received_t *received =
        &fixture->messages.items[fixture->read_count++];
    if (received->type != type)
        fail_msg("the controller received %s, not %s",
                 tow_message_type_name(received->type),
                 tow_message_type_name(type));
    const tow_body_t *body;
    tow_arena_reset(&fixture->arena);
    must(tow_message_decode(received->type, received->bytes, received->size,
                            &fixture->arena, &body));
    return body;
}

void expect_no_message(fixture_t *fixture)
{
    soon(fixture);
    if (fixture->read_count < fixture->messages.count)
        fail_msg("the controller received %s",
                 tow_message_type_name(
                     fixture->messages.items[fixture->read_count].type));
}

tow_msg_failure_t failure_of(tow_code_t code, const char *text)
{
    tow_msg_failure_t failure = TOW_MSG_FAILURE_INIT;
    failure.code = code;
    failure.message = (char *)text;
    return failure;
}

/* -- The fixture ---------------------------------------------------------------------- */

static void fixture_listen(fixture_t *fixture)
{
    must(tow_session_listen(
        tow_sim_node_env(fixture->controller_node),
        &(tow_session_listen_options_t){.address = "sim:controller",
                                        .arrived = on_arrived,
                                        .context = fixture},
        &fixture->port));
}

void fixture_open(fixture_t *fixture)
{
    *fixture = (fixture_t){0};
    tow_sim_options_t options = {.seed = 3,
                                 .remote_path = {.latency_ns = 20000}};
    options.log.level = TOW_LOG_OFF;
    tow_arena_init(&fixture->arena, 0);
    must(tow_sim_create(&options, &fixture->sim));
    must(tow_sim_node_create(fixture->sim,
                             &(tow_sim_node_options_t){.name = "controller"},
                             &fixture->controller_node));
    must(tow_sim_node_create(fixture->sim,
                             &(tow_sim_node_options_t){.name = "client/1"},
                             &fixture->client_node));
    fixture_listen(fixture);
    must(tow_client_dial(
        tow_sim_node_env(fixture->client_node),
        &(tow_client_dial_options_t){.address = "sim:controller"},
        &fixture->client));
}

void send_opened(fixture_t *fixture)
{
    assert_string_equal(EXPECT(fixture, CLIENT_OPEN, client_open)->name,
                        "client/1");
    tow_msg_client_opened_t opened = TOW_MSG_CLIENT_OPENED_INIT;
    opened.cluster = 5;
    opened.client = 7;
    send_message(fixture, TOW_MESSAGE_CLIENT_OPENED, &opened.base);
    soon(fixture);
    expect_settled(tow_client_opening(fixture->client));
}

void send_refused(fixture_t *fixture)
{
    EXPECT(fixture, CLIENT_OPEN, client_open);
    tow_msg_client_opened_t opened = TOW_MSG_CLIENT_OPENED_INIT;
    tow_msg_failure_t failure =
        failure_of(TOW_RESOURCE_EXHAUSTED, "no more numbers");
    opened.failure = &failure;
    send_message(fixture, TOW_MESSAGE_CLIENT_OPENED, &opened.base);
    soon(fixture);
}

void fixture_connect(fixture_t *fixture)
{
    fixture_open(fixture);
    send_opened(fixture);
}

void fixture_free(fixture_t *fixture)
{
    tow_sim_crash(fixture->controller_node);
    tow_session_discard(fixture->session);
    if (fixture->port != NULL) tow_session_port_discard(fixture->port);
    tow_sim_destroy(fixture->sim);
    for (size_t i = 0; i < fixture->messages.count; i++)
        tow_free(fixture->messages.items[i].bytes);
    tow_vec_deinit(&fixture->messages);
    tow_arena_deinit(&fixture->arena);
    tow_free(fixture->memory);
}

void fixture_disconnect(fixture_t *fixture)
{
    tow_sim_crash(fixture->controller_node);
    tow_session_discard(fixture->session);
    tow_session_port_discard(fixture->port);
    fixture->session = NULL;
    fixture->port = NULL;
    run_for(fixture, 5 * SECOND);
    fixture->read_count = fixture->messages.count;
}

void fixture_restart(fixture_t *fixture)
{
    tow_sim_restart(fixture->controller_node);
    fixture_listen(fixture);
    run_for(fixture, 3 * SECOND);
}

void fixture_reconnect(fixture_t *fixture)
{
    fixture_restart(fixture);
    send_opened(fixture);
    must(tow_client_disconnect_cause(fixture->client));
}

void fixture_close(fixture_t *fixture)
{
    tow_client_shut(fixture->client);
    run_for(fixture, SECOND);
    assert_true(tow_client_is_quiet(fixture->client));
    tow_client_free(fixture->client);
    fixture_free(fixture);
}

/* -- Handles --------------------------------------------------------------- */

void send_slice(fixture_t *fixture, uint64_t slice, size_t count)
{
    tow_msg_device_t devices[4], *list[4];
    for (size_t i = 0; i < count; i++) {
        devices[i] = (tow_msg_device_t)TOW_MSG_DEVICE_INIT;
        devices[i].id = 2048 + (int64_t)i;
        devices[i].kind = (char *)"TPU v4";
        devices[i].name = devices[i].worker = devices[i].host = (char *)"w";
        devices[i].island = (char *)"west";
        list[i] = &devices[i];
    }
    tow_msg_slice_opened_t opened = TOW_MSG_SLICE_OPENED_INIT;
    opened.slice = slice;
    opened.devices = list;
    opened.n_devices = count;
    send_message(fixture, TOW_MESSAGE_SLICE_OPENED, &opened.base);
    soon(fixture);
}

tow_slice_t *open_slice(fixture_t *fixture)
{
    tow_slice_t *slice;
    tow_slice_options_t options = {.struct_size = sizeof(options), .dims = {2}};
    must(tow_slice_open_start(fixture->client, &options, &slice));
    const tow_msg_slice_open_t *open = EXPECT(fixture, SLICE_OPEN, slice_open);
    assert_int_equal(open->n_dims, 1);
    send_slice(fixture, open->slice, 2);
    expect_settled(tow_slice_opening(slice));
    return slice;
}

const tow_shape_t row = {.type = TOW_TYPE_U8, .rank = 1, .dims = {16}};

void send_compiled(fixture_t *fixture, uint64_t function)
{
    tow_array_info_t info = {.shape = row, .bytes = 16};
    tow_signature_t signature = {.name = "f",
                                 .replica_count = 2,
                                 .partition_count = 1,
                                 .argument_count = 1,
                                 .arguments = &info,
                                 .result_count = 1,
                                 .results = &info};
    void *bytes;
    size_t size;
    must(tow_signature_pack(&signature, &bytes, &size));
    tow_msg_compile_done_t done = TOW_MSG_COMPILE_DONE_INIT;
    done.function = function;
    done.signature = (ProtobufCBinaryData){size, bytes};
    send_message(fixture, TOW_MESSAGE_COMPILE_DONE, &done.base);
    tow_free(bytes);
    soon(fixture);
}

tow_function_t *compile(fixture_t *fixture, tow_slice_t *slice)
{
    tow_function_t *function;
    tow_source_t source = {.struct_size = sizeof(source),
                           .format = TOW_SOURCE_COST,
                           .bytes = "text",
                           .size = 4};
    must(tow_function_compile_start(slice, &source, &function));
    const tow_msg_compile_t *request = EXPECT(fixture, COMPILE, compile);
    assert_true(request->program_blob != 0);
    send_compiled(fixture, request->function);
    expect_settled(tow_function_compiling(function));
    return function;
}

tow_program_t *call_of(fixture_t *fixture, tow_function_t *function,
                       tow_slice_t *slice)
{
    tow_program_t *program;
    must(tow_function_program(function, slice, &program));
    EXPECT(fixture, PROGRAM_ADD, program_add);
    return program;
}

void send_done(fixture_t *fixture, uint64_t run)
{
    tow_msg_runs_done_t done = TOW_MSG_RUNS_DONE_INIT;
    done.runs = &run;
    done.n_runs = 1;
    send_message(fixture, TOW_MESSAGE_RUNS_DONE, &done.base);
    soon(fixture);
}

void send_failed(fixture_t *fixture, uint64_t run, tow_code_t code,
                 const char *text)
{
    tow_msg_failure_t failure = failure_of(code, text);
    tow_msg_run_failure_t entry = TOW_MSG_RUN_FAILURE_INIT;
    tow_msg_run_failure_t *list = &entry;
    entry.run = run;
    entry.failure = &failure;
    tow_msg_runs_done_t done = TOW_MSG_RUNS_DONE_INIT;
    done.failures = &list;
    done.n_failures = 1;
    send_message(fixture, TOW_MESSAGE_RUNS_DONE, &done.base);
    soon(fixture);
}

void send_put_done(fixture_t *fixture, uint64_t object,
                   const tow_msg_failure_t *failure)
{
    tow_msg_put_done_t done = TOW_MSG_PUT_DONE_INIT;
    done.object = object;
    done.failure = (tow_msg_failure_t *)failure;
    send_message(fixture, TOW_MESSAGE_PUT_DONE, &done.base);
    soon(fixture);
}

tow_status_t start_upload(tow_slice_t *slice, const void *bytes,
                          size_t shard_bytes, tow_array_t **out_array)
{
    tow_upload_options_t options = {.struct_size = sizeof(options),
                                    .bytes = bytes,
                                    .size = shard_bytes,
                                    .replicated = true};
    tow_shape_t shape = row;
    shape.dims[0] = (int64_t)shard_bytes;
    return tow_upload_start(slice, &options, &shape, shard_bytes, NULL,
                            out_array);
}

tow_array_t *make_array(fixture_t *fixture, tow_slice_t *slice)
{
    tow_array_t *array;
    must(start_upload(slice, "0123456789abcde", 16, &array));
    const tow_msg_put_t *put = EXPECT(fixture, PUT, put);
    assert_true(put->inlined && put->replicated);
    assert_memory_equal(put->bytes.data, "0123456789abcde", 16);
    send_put_done(fixture, put->object, NULL);
    expect_settled(tow_array_value(array));
    return array;
}

static void called(void *context, tow_status_t take_status)
{
    calls_t *calls = context;
    calls->count++;
    calls->code = tow_status_code(take_status);
    tow_status_release(take_status);
}

tow_callback_t *make_callback(calls_t *calls)
{
    tow_callback_t *callback = tow_calloc(1, sizeof(*callback));
    callback->done = called;
    callback->context = calls;
    return callback;
}

void send_get_done(fixture_t *fixture, uint64_t request, const void *bytes,
                   size_t size, const tow_msg_failure_t *failure)
{
    tow_msg_get_done_t done = TOW_MSG_GET_DONE_INIT;
    done.request = request;
    done.bytes = (ProtobufCBinaryData){size, (uint8_t *)bytes};
    done.failure = (tow_msg_failure_t *)failure;
    send_message(fixture, TOW_MESSAGE_GET_DONE, &done.base);
    soon(fixture);
}

/* -- Operations under way -------------------------------------------------- */

uint8_t large[100000];

static void target_arrived(void *context, tow_region_t *region,
                           const tow_arrival_t *arrival)
{
    (void)region, (void)arrival;
    ((fixture_t *)context)->arrived_count++;
}

void send_put_opened(fixture_t *fixture, uint64_t object)
{
    tow_env_t *env = tow_sim_node_env(fixture->controller_node);
    fixture->memory = tow_calloc(1, sizeof(large));
    must(tow_env_region_open(env,
                             &(tow_region_options_t){.bytes = fixture->memory,
                                                     .size = sizeof(large),
                                                     .arrived = target_arrived,
                                                     .context = fixture},
                             &fixture->region));
    tow_msg_lane_target_t target = TOW_MSG_LANE_TARGET_INIT;
    tow_msg_lane_target_t *list[] = {&target, &target};
    const void *address;
    tow_env_lane_address(env, &address, &target.lane_address.len);
    target.lane_address.data = (uint8_t *)address;
    target.region_id = tow_region_key(fixture->region).id;
    target.region_secret = tow_region_key(fixture->region).secret;
    tow_msg_put_opened_t opened = TOW_MSG_PUT_OPENED_INIT;
    opened.object = object;
    opened.targets = list;
    opened.n_targets = 2;
    send_message(fixture, TOW_MESSAGE_PUT_OPENED, &opened.base);
}

void start_operations(fixture_t *fixture, operations_t *operations)
{
    *operations = (operations_t){.bytes = tow_calloc(1, sizeof(large))};
    operations->slice = open_slice(fixture);
    operations->function = compile(fixture, operations->slice);
    operations->x = make_array(fixture, operations->slice);
    tow_program_t *program =
        call_of(fixture, operations->function, operations->slice);
    must(tow_program_start(program, &operations->x, 1, &operations->y, 1));
    tow_array_call_when_ready(operations->y, make_callback(&operations->run));
    must(start_upload(operations->slice, large, sizeof(large),
                      &operations->upload));
    EXPECT(fixture, RUN, run);
    send_put_opened(fixture, EXPECT(fixture, PUT, put)->object);
    run_for(fixture, SECOND / 1000);
    must(tow_download_start(operations->y, 0, operations->bytes, 16, NULL,
                            make_callback(&operations->small)));
    must(tow_download_start(operations->upload, 0, operations->bytes,
                            sizeof(large), NULL,
                            make_callback(&operations->large_get)));
}

void release_operations(operations_t *operations)
{
    tow_array_release_locked(operations->x);
    tow_array_release_locked(operations->y);
    tow_array_release_locked(operations->upload);
    tow_function_release_locked(operations->function);
    tow_slice_release_locked(operations->slice);
}

void expect_notified(const operations_t *operations, tow_code_t code)
{
    assert_int_equal(operations->run.count, 1);
    assert_int_equal(operations->run.code, code);
    assert_int_equal(operations->small.count, 1);
    assert_int_equal(operations->large_get.count, 1);
    assert_int_equal(operations->large_get.code, code);
    assert_true(tow_array_value(operations->upload)->settled);
}
