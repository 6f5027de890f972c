/* The simulated cluster of the worker's tests. */
#include "worker/worker_testing_impl.h"

#include "device/time_list.h"

void worker_fixture_run_for(worker_fixture_t *fixture, int64_t span_ns)
{
    must(tow_sim_run(fixture->sim,
                     &(tow_sim_run_options_t){
                         .until_ns = tow_sim_now_ns(fixture->sim) + span_ns}));
}

static tow_code_t code_of(const tow_msg_failure_t *failure, char *text,
                          size_t capacity)
{
    if (failure == NULL) return TOW_CODE_OK;
    snprintf(text, capacity, "%s", failure->message);
    return (tow_code_t)failure->code;
}

/* -- The controller -------------------------------------------------------- */

void worker_fixture_send(worker_fixture_t *fixture, uint32_t type,
                         const tow_body_t *body)
{
    assert_non_null(fixture->session);
    const tow_send_result_t result =
        tow_session_send(fixture->session, type, body);
    if (fixture->seed == 0) assert_int_equal(result, TOW_SEND_OK);
}

uint64_t worker_fixture_send_blob(worker_fixture_t *fixture, const void *bytes,
                                  size_t size)
{
    char *copy = tow_malloc(size + 1);
    memcpy(copy, bytes, size);
    return tow_session_send_blob(
        fixture->session,
        &(tow_session_blob_t){
            .bytes = copy, .size = size, .release = tow_free, .context = copy});
}

static void on_join(worker_fixture_t *fixture,
                    const tow_msg_worker_join_t *join)
{
    worker_received_t *received = &fixture->received;
    received->join_count++;
    received->join_process = join->process;
    received->join_devices = join->n_devices;
    snprintf(received->join_host, sizeof(received->join_host), "%s",
             join->host);
    if (fixture->is_silent) return;
    tow_msg_worker_joined_t joined = TOW_MSG_WORKER_JOINED_INIT;
    tow_msg_failure_t failure = TOW_MSG_FAILURE_INIT;
    joined.cluster = CLUSTER;
    if (fixture->refuses) {
        failure.code = TOW_ALREADY_EXISTS;
        failure.message = (char *)"process 1 is taken";
        joined.failure = &failure;
    }
    worker_fixture_send(fixture, TOW_MESSAGE_WORKER_JOINED, &joined.base);
}

static void add_times(worker_received_t *received, const tow_time_list_t *list,
                      size_t run_count)
{
    assert_null(tow_time_list_check(list, run_count));
    for (size_t i = 0; i < run_count; i++) {
        const tow_device_time_t time = tow_time_list_at(list, i);
        tow_device_time_merge(&received->time, &time);
    }
}

static void on_done(worker_received_t *received, const tow_msg_done_t *done)
{
    received->done_count++;
    add_times(received,
              &(tow_time_list_t){done->busy_ns, done->wait_ns, done->longest_ns,
                                 done->n_busy_ns, done->n_wait_ns,
                                 done->n_longest_ns},
              done->n_runs);
    for (size_t i = 0; i < done->n_runs; i++)
        received->runs[received->run_count++ % RECEIVED_MAX] = done->runs[i];
    assert_int_equal(done->n_progress_runs, done->n_progress_ends);
    add_times(received,
              &(tow_time_list_t){
                  done->progress_busy_ns, done->progress_wait_ns,
                  done->progress_longest_ns, done->n_progress_busy_ns,
                  done->n_progress_wait_ns, done->n_progress_longest_ns},
              done->n_progress_runs);
    for (size_t i = 0; i < done->n_progress_runs; i++) {
        received->progress_run = done->progress_runs[i];
        received->progress_end = done->progress_ends[i];
        received->progress_count++;
    }
    for (size_t i = 0; i < done->n_failures; i++) {
        if (done->failures[i]->early) continue;
        size_t at = received->failure_count++ % RECEIVED_MAX;
        received->failures[at].run = done->failures[i]->run;
        received->failures[at].node = done->failures[i]->node;
        tow_device_time_add(&received->time, done->failures[i]->busy_ns,
                            done->failures[i]->wait_ns);
        received->failures[at].code =
            code_of(done->failures[i]->failure, received->failures[at].message,
                    sizeof(received->failures[at].message));
    }
}

static void on_put_opened(worker_received_t *received,
                          const tow_msg_shard_put_opened_t *opened)
{
    received->opened_count++;
    received->target_count = opened->n_targets;
    assert_true(opened->n_targets <= DEVICES);
    for (size_t i = 0; i < opened->n_targets; i++) {
        const tow_msg_lane_target_t *target = opened->targets[i];
        received->targets[i] =
            (tow_region_key_t){target->region_id, target->region_secret};
        received->address_size = target->lane_address.len;
        memcpy(received->address, target->lane_address.data,
               target->lane_address.len);
    }
}

static void on_get_done(worker_received_t *received,
                        const tow_msg_shard_get_done_t *done)
{
    received->get_count++;
    received->get_request = done->request;
    received->get_code = code_of(done->failure, received->get_message,
                                 sizeof(received->get_message));
    received->get_size = done->bytes.len;
    if (done->bytes.len > 0)
        memcpy(received->get_bytes, done->bytes.data,
               done->bytes.len < sizeof(received->get_bytes)
                   ? done->bytes.len
                   : sizeof(received->get_bytes));
}

static void on_spill_done(worker_received_t *received,
                          const tow_msg_spill_done_t *done)
{
    received->spill_count++;
    received->spill_object = done->object;
    received->spill_number = done->spill;
    received->spill_is_back = done->is_back;
    received->spill_code = code_of(done->failure, received->spill_message,
                                   sizeof(received->spill_message));
}

static void on_relay_done(worker_received_t *received,
                          const tow_msg_relay_done_t *done)
{
    add_times(received,
              &(tow_time_list_t){done->busy_ns, done->wait_ns, done->longest_ns,
                                 done->n_busy_ns, done->n_wait_ns,
                                 done->n_longest_ns},
              done->n_runs);
    add_times(received,
              &(tow_time_list_t){done->part_busy_ns, done->part_wait_ns,
                                 done->part_longest_ns, done->n_part_busy_ns,
                                 done->n_part_wait_ns, done->n_part_longest_ns},
              done->n_part_runs);
    for (size_t i = 0; i < done->n_runs; i++)
        received->complete_runs[received->complete_count++ % RECEIVED_MAX] =
            done->runs[i];
    assert_int_equal(done->n_part_runs, done->n_part_processes);
    for (size_t i = 0; i < done->n_part_runs; i++) {
        const size_t at = received->part_count++ % RECEIVED_MAX;
        received->part_runs[at] = done->part_runs[i];
        received->part_processes[at] = done->part_processes[i];
        received->part_ends[at] =
            done->n_part_ends > 0 ? done->part_ends[i] : 0;
    }
    assert_int_equal(done->n_progress_runs, done->n_progress_ends);
    add_times(received,
              &(tow_time_list_t){
                  done->progress_busy_ns, done->progress_wait_ns,
                  done->progress_longest_ns, done->n_progress_busy_ns,
                  done->n_progress_wait_ns, done->n_progress_longest_ns},
              done->n_progress_runs);
    for (size_t i = 0; i < done->n_progress_runs; i++) {
        received->least_run = done->progress_runs[i];
        received->least_end = done->progress_ends[i];
        received->least_count++;
    }
}

static void on_callback(worker_received_t *received,
                        const tow_msg_callback_t *message)
{
    received->callback_count++;
    received->callback_run = message->run;
    received->callback_call = message->call;
    received->callback_function = message->function;
    snprintf(received->callback_text, sizeof(received->callback_text), "%.*s",
             (int)message->bytes.len, (const char *)message->bytes.data);
}

static void on_load_done(worker_received_t *received,
                         const tow_msg_load_done_t *done)
{
    char text[256];
    received->load_count++;
    received->load_executable = done->executable;
    received->load_code = code_of(done->failure, text, sizeof(text));
}

static void on_put_done(worker_received_t *received,
                        const tow_msg_shard_put_done_t *done)
{
    received->put_count++;
    received->put_object = done->object;
    received->put_code = code_of(done->failure, received->put_message,
                                 sizeof(received->put_message));
}

static void on_report(worker_received_t *received,
                      const tow_msg_report_t *report)
{
    char text[256];
    received->report_count++;
    received->wait_count = report->n_waits;
    if (report->n_waits > 0) {
        received->wait_gang = report->waits[0]->gang;
        received->wait_missing_count = report->waits[0]->n_missing;
    }
    received->report_code = code_of(report->failure, text, sizeof(text));
}

static void controller_message(void *context, tow_session_t *session,
                               const tow_message_t *message)
{
    (void)session;
    worker_fixture_t *fixture = context;
    worker_received_t *received = &fixture->received;
    const tow_body_t *body;
    tow_arena_reset(&fixture->arena);
    must(tow_message_decode(message->type, message->bytes, message->size,
                            &fixture->arena, &body));
    switch (message->type) {
    case TOW_MESSAGE_WORKER_JOIN:
        on_join(fixture, (const tow_msg_worker_join_t *)body);
        break;
    case TOW_MESSAGE_DONE:
        on_done(received, (const tow_msg_done_t *)body);
        break;
    case TOW_MESSAGE_LOAD_DONE:
        on_load_done(received, (const tow_msg_load_done_t *)body);
        break;
    case TOW_MESSAGE_SHARD_PUT_OPENED:
        on_put_opened(received, (const tow_msg_shard_put_opened_t *)body);
        break;
    case TOW_MESSAGE_SHARD_PUT_DONE:
        on_put_done(received, (const tow_msg_shard_put_done_t *)body);
        break;
    case TOW_MESSAGE_SHARD_GET_DONE:
        on_get_done(received, (const tow_msg_shard_get_done_t *)body);
        break;
    case TOW_MESSAGE_SPILL_DONE:
        on_spill_done(received, (const tow_msg_spill_done_t *)body);
        break;
    case TOW_MESSAGE_RELAY_DONE:
        on_relay_done(received, (const tow_msg_relay_done_t *)body);
        break;
    case TOW_MESSAGE_RELAY_DISCONNECTED:
        received->relay_disconnected_count++;
        received->relay_disconnected_process =
            ((const tow_msg_relay_disconnected_t *)body)->process;
        break;
    case TOW_MESSAGE_CALLBACK:
        on_callback(received, (const tow_msg_callback_t *)body);
        break;
    case TOW_MESSAGE_REPORT:
        on_report(received, (const tow_msg_report_t *)body);
        break;
    default: fail_msg("a worker sent %s", tow_message_type_name(message->type));
    }
}

static void controller_blob(void *context, tow_session_t *session,
                            uint64_t blob, void *take_bytes, size_t size)
{
    (void)session, (void)blob;
    worker_fixture_t *fixture = context;
    tow_free(fixture->received.report_text);
    fixture->received.report_text = tow_calloc(1, size + 1);
    memcpy(fixture->received.report_text, take_bytes, size);
    tow_free(take_bytes);
}

static void controller_opened(void *context, tow_session_t *session)
{
    (void)context, (void)session;
}

static void controller_disconnected(void *context, tow_session_t *session,
                                    tow_status_t cause)
{
    worker_fixture_t *fixture = context;
    fixture->received.session_end_count++;
    fixture->received.session_end_code = tow_status_code(cause);
    snprintf(fixture->received.session_end_message,
             sizeof(fixture->received.session_end_message), "%s",
             tow_status_message(cause));
    tow_session_close(session, TOW_OK, (tow_closed_t){0});
    fixture->session = NULL;
}

static const tow_session_handler_t controller_handler = {
    .opened = controller_opened,
    .message = controller_message,
    .blob = controller_blob,
    .disconnected = controller_disconnected,
};

static void controller_arrived(void *context, tow_session_t *session)
{
    worker_fixture_t *fixture = context;
    assert_null(fixture->session);
    fixture->session = session;
    fixture->received.arrived_count++;
    tow_session_accept(session, &controller_handler, fixture);
}

void worker_fixture_listen(worker_fixture_t *fixture)
{
    fixture->controller_env = tow_sim_node_env(fixture->controller);
    must(tow_session_listen(
        fixture->controller_env,
        &(tow_session_listen_options_t){.address = "sim:controller",
                                        .arrived = controller_arrived,
                                        .context = fixture},
        &fixture->port));
}

/* -- The worker's process -------------------------------------------------- */

static void on_joined(void *context, uint64_t cluster)
{
    assert_int_equal(cluster, CLUSTER);
    ((worker_fixture_t *)context)->received.joined_count++;
}

static void on_disconnected(void *context, tow_status_t cause)
{
    assert_true(cause != TOW_OK);
    ((worker_fixture_t *)context)->received.disconnected_count++;
}

static void on_peer_added(void *context, const tow_worker_peer_t *peer)
{
    worker_fixture_t *fixture = context;
    fixture->received.peer_added_count++;
    fixture->received.peer = *peer;
}

static void on_peer_disconnected(void *context, uint32_t process,
                                 tow_status_t cause)
{
    (void)process;
    assert_true(cause != TOW_OK);
    ((worker_fixture_t *)context)->received.peer_disconnected_count++;
}

static size_t on_waits(void *context, tow_worker_wait_t *waits, size_t capacity)
{
    (void)context;
    assert_true(capacity >= DEVICES);
    waits[0] = (tow_worker_wait_t){.device = FIRST_ID,
                                   .gang_id = 77,
                                   .waited_ns = SECOND,
                                   .missing_count = 2,
                                   .missing = {5, 6}};
    return 1;
}

static tow_status_t worker_start(tow_env_t *env, void *argument,
                                 void **out_machine)
{
    worker_fixture_t *fixture = argument;
    tow_sim_model_t model;
    TOW_RETURN_IF_ERROR(tow_sim_model_find("tpu_v4", &model));
    TOW_RETURN_IF_ERROR(tow_sim_device_driver_create(
        env,
        &(tow_sim_device_options_t){.model = &model,
                                    .device_count = DEVICES,
                                    .first_id = FIRST_ID,
                                    .memory_bytes = MEMORY_BYTES},
        &fixture->driver));
    *out_machine = fixture;
    return tow_worker_open(
        env,
        &(tow_worker_options_t){
            .controller = "sim:controller",
            .host = "host-1",
            .process = 1,
            .listen_address = fixture->listen_address,
            .driver = fixture->driver,
            .hooks = {.joined = on_joined,
                      .disconnected = on_disconnected,
                      .peer_added = on_peer_added,
                      .peer_disconnected = on_peer_disconnected,
                      .waits = on_waits,
                      .context = fixture},
            .limits = fixture->limits,
        },
        &fixture->worker);
}

static void worker_destroy(void *machine)
{
    worker_fixture_t *fixture = machine;
    tow_worker_discard(fixture->worker);
    tow_sim_device_driver_crash(fixture->driver);
    fixture->worker = NULL;
    fixture->driver = NULL;
}

static const tow_sim_program_t worker_program = {.start = worker_start,
                                                 .destroy = worker_destroy};

/* -- The client ------------------------------------------------------------ */

static void client_arrived(void *context, tow_region_t *region,
                           const tow_arrival_t *arrival)
{
    (void)region;
    worker_fixture_t *fixture = context;
    fixture->arrived_count++;
    fixture->arrival = *arrival;
}

void worker_fixture_lane_down(void *context, tow_lane_t *lane,
                              tow_status_t cause)
{
    (void)context, (void)lane, (void)cause;
}

void worker_fixture_write_done(tow_write_t *write, tow_status_t take_status)
{
    worker_fixture_t *fixture =
        TOW_CONTAINER_OF(write, worker_fixture_t, write);
    fixture->write_code = tow_status_code(take_status);
    fixture->written_count++;
    tow_status_release(take_status);
}

void worker_fixture_client_write(worker_fixture_t *fixture, size_t index,
                                 const void *bytes, size_t size,
                                 uint64_t offset)
{
    if (fixture->lane == NULL)
        must(tow_env_lane_open(
            fixture->client_env,
            &(tow_lane_options_t){.address = fixture->received.address,
                                  .address_size =
                                      fixture->received.address_size,
                                  .peer_name = "worker",
                                  .down = worker_fixture_lane_down,
                                  .context = fixture},
            &fixture->lane));
    const int before = fixture->written_count;
    fixture->write = (tow_write_t){.bytes = bytes,
                                   .size = size,
                                   .offset = offset,
                                   .key = fixture->received.targets[index],
                                   .tag = 5,
                                   .done = worker_fixture_write_done};
    assert_int_equal(tow_lane_write(fixture->lane, &fixture->write),
                     TOW_SEND_OK);
    worker_fixture_run_for(fixture, SECOND / 10);
    assert_int_equal(fixture->written_count, before + 1);
}

/* -- The simulated cluster ------------------------------------------------- */

static void make_nodes(worker_fixture_t *fixture)
{
    must(tow_sim_node_create(fixture->sim,
                             &(tow_sim_node_options_t){.name = "controller"},
                             &fixture->controller));
    must(tow_sim_node_create(fixture->sim,
                             &(tow_sim_node_options_t){.name = "client"},
                             &fixture->client));
    fixture->client_env = tow_sim_node_env(fixture->client);
    must(tow_sim_node_create(
        fixture->sim,
        &(tow_sim_node_options_t){.name = "worker/1",
                                  .program = &worker_program,
                                  .argument = fixture},
        &fixture->worker_node));
}

static void check_worker(void *context, tow_sim_t *sim)
{
    worker_fixture_t *fixture = context;
    if (fixture->worker == NULL || fixture->is_closed) return;
    tow_status_t status = tow_worker_check(fixture->worker);
    if (status != TOW_OK) tow_sim_fail(sim, status);
}

void worker_fixture_open(worker_fixture_t *fixture, tow_worker_limits_t limits)
{
    *fixture = (worker_fixture_t){.limits = limits,
                                  .seed = fixture->seed,
                                  .listen_address = fixture->listen_address};
    tow_sim_options_t options = {.seed = fixture->seed,
                                 .remote_path = {.latency_ns = 20000}};
    if (fixture->seed != 0) {
        options.remote_path.jitter_ns = 100000;
        options.remote_path.loss_ppm = 1000;
        options.remote_path.corrupt_ppm = 500;
        options.remote_path.bandwidth_bytes_per_second = 1000000000;
        options.fault_chance_ppm = 200;
    }
    options.log.level = TOW_LOG_OFF;
    options.after_event = check_worker;
    options.after_event_context = fixture;
    tow_arena_init(&fixture->arena, 0);
    must(tow_sim_create(&options, &fixture->sim));
    make_nodes(fixture);
    fixture->memory = test_calloc(1, REGION_BYTES);
    must(tow_env_region_open(fixture->client_env,
                             &(tow_region_options_t){.bytes = fixture->memory,
                                                     .size = REGION_BYTES,
                                                     .arrived = client_arrived,
                                                     .context = fixture},
                             &fixture->region));
}

void worker_fixture_join(worker_fixture_t *fixture, tow_worker_limits_t limits)
{
    worker_fixture_open(fixture, limits);
    worker_fixture_listen(fixture);
    worker_fixture_run_for(fixture, fixture->seed != 0 ? 10 * SECOND : SECOND);
    if (fixture->seed == 0) assert_int_equal(fixture->received.joined_count, 1);
    assert_int_equal(tow_worker_stats(fixture->worker).state,
                     TOW_WORKER_JOINED);
}

static void on_worker_closed(void *context)
{
    ((worker_fixture_t *)context)->is_closed = true;
}

void worker_fixture_expect_empty(const worker_fixture_t *fixture)
{
    const tow_worker_stats_t stats = tow_worker_stats(fixture->worker);
    assert_int_equal(stats.shard_store.object_count, 0);
    assert_int_equal(stats.shard_store.bytes, 0);
    assert_int_equal(stats.dataflow.run_count, 0);
    assert_int_equal(stats.dataflow.program_count, 0);
    assert_int_equal(stats.dataflow.executable_count, 0);
    assert_int_equal(stats.load_count + stats.put_count + stats.get_count, 0);
    assert_int_equal(stats.put_bytes + stats.get_bytes, 0);
    assert_int_equal(stats.lane_count + stats.peer_count + stats.blob_count, 0);
    assert_int_equal(stats.outbox_bytes, 0);
    const tow_sim_device_counts_t counts =
        tow_sim_device_counts(fixture->driver);
    assert_int_equal(counts.buffers, 0);
    assert_int_equal(counts.executables, 0);
}

void worker_fixture_close(worker_fixture_t *fixture)
{
    if (fixture->worker != NULL) {
        tow_worker_close(fixture->worker, TOW_OK,
                         (tow_closed_t){on_worker_closed, fixture});
        worker_fixture_run_for(fixture, 10 * SECOND);
        assert_true(fixture->is_closed);
        fixture->worker = NULL;
        const tow_sim_device_counts_t counts =
            tow_sim_device_counts(fixture->driver);
        assert_int_equal(counts.buffers + counts.executables, 0);
    }
    tow_sim_crash(fixture->controller);
    if (fixture->session != NULL) tow_session_discard(fixture->session);
    if (fixture->port != NULL) tow_session_port_discard(fixture->port);
    tow_sim_destroy(fixture->sim);
    tow_arena_deinit(&fixture->arena);
    tow_free(fixture->received.report_text);
    test_free(fixture->memory);
}

/* -- Messages of the controller -------------------------------------------- */

void worker_fixture_send_load(worker_fixture_t *fixture, uint64_t executable,
                              const char *text)
{
    int64_t ids[DEVICES];
    uint8_t options_bytes[256];
    for (int i = 0; i < DEVICES; i++)
        ids[i] = FIRST_ID + i;
    const tow_compile_options_t options = {
        .assignment = {.replica_count = DEVICES, .device_ids = ids}};
    const size_t options_size =
        tow_compile_options_pack(&options, options_bytes);
    tow_msg_load_t load = TOW_MSG_LOAD_INIT;
    load.executable = executable;
    load.code_blob = worker_fixture_send_blob(fixture, text, strlen(text));
    load.options_blob =
        worker_fixture_send_blob(fixture, options_bytes, options_size);
    worker_fixture_send(fixture, TOW_MESSAGE_LOAD, &load.base);
}

static void send_lowered(worker_fixture_t *fixture, uint64_t program,
                         const tow_lowered_t *lowered)
{
    void *bytes;
    size_t size;
    must(tow_lowered_pack(lowered, &bytes, &size));
    tow_msg_program_load_t load = TOW_MSG_PROGRAM_LOAD_INIT;
    load.program = program;
    load.lowered_blob = worker_fixture_send_blob(fixture, bytes, size);
    tow_free(bytes);
    worker_fixture_send(fixture, TOW_MESSAGE_PROGRAM_LOAD, &load.base);
}

void worker_fixture_send_step(worker_fixture_t *fixture, uint64_t program,
                              uint64_t executable, fixture_step_kind_t kind)
{
    const bool consumes = kind == CONSUMES_ARGUMENT;
    static const uint32_t argument[] = {0}, result[] = {1},
                          argument_input[] = {0};
    const tow_lowered_step_t step = {.executable = {executable},
                                     .inputs = argument,
                                     .input_count = 1,
                                     .first_output = 1,
                                     .output_count = 1,
                                     .non_donatable = argument_input,
                                     .non_donatable_count = consumes ? 0 : 1,
                                     .freed = argument,
                                     .freed_count = consumes ? 1 : 0,
                                     .is_sequential = kind == SEQUENTIAL,
                                     .node = 1};
    send_lowered(fixture, program,
                 &(tow_lowered_t){.slot_count = 2,
                                  .argument_count = 1,
                                  .results = result,
                                  .result_count = 1,
                                  .steps = &step,
                                  .step_count = 1,
                                  .step_count_all = 1});
}

void worker_fixture_send_chain(worker_fixture_t *fixture, uint64_t program,
                               uint64_t executable)
{
    static const uint32_t slots[] = {0, 1, 2, CHAIN_STEPS};
    tow_lowered_step_t steps[CHAIN_STEPS];
    for (uint32_t i = 0; i < CHAIN_STEPS; i++)
        steps[i] = (tow_lowered_step_t){.executable = {executable},
                                        .inputs = &slots[i],
                                        .input_count = 1,
                                        .first_output = i + 1,
                                        .output_count = 1,
                                        .freed = &slots[i],
                                        .freed_count = i > 0 ? 1 : 0,
                                        .node = i + 1,
                                        .index = i};
    send_lowered(fixture, program,
                 &(tow_lowered_t){.slot_count = CHAIN_STEPS + 1,
                                  .argument_count = 1,
                                  .results = &slots[CHAIN_STEPS],
                                  .result_count = 1,
                                  .steps = steps,
                                  .step_count = CHAIN_STEPS,
                                  .step_count_all = CHAIN_STEPS});
}

void worker_fixture_send_program(worker_fixture_t *fixture, uint64_t program,
                                 uint64_t executable)
{
    worker_fixture_send_step(fixture, program, executable, LEAVES_ARGUMENT);
}

void worker_fixture_send_grant(worker_fixture_t *fixture, uint64_t run,
                               uint64_t program, uint64_t argument)
{
    tow_msg_grant_t grant = TOW_MSG_GRANT_INIT;
    grant.run = run;
    grant.program = program;
    grant.arguments = &argument;
    grant.n_arguments = 1;
    grant.first_result = 1000 * run;
    grant.first_gang = 10 * run;
    worker_fixture_send(fixture, TOW_MESSAGE_GRANT, &grant.base);
}

void worker_fixture_send_put(worker_fixture_t *fixture, uint64_t object,
                             size_t size, const void *bytes, size_t byte_count)
{
    uint32_t devices[DEVICES] = {0, 1};
    int64_t dims[] = {(int64_t)size};
    tow_msg_array_type_t type = TOW_MSG_ARRAY_TYPE_INIT;
    tow_msg_shard_put_t put = TOW_MSG_SHARD_PUT_INIT;
    type.type = TOW_TYPE_U8;
    type.dims = dims;
    type.n_dims = 1;
    type.bytes = size;
    put.object = object;
    put.type = &type;
    put.devices = devices;
    put.n_devices = DEVICES;
    put.replicated = byte_count == size;
    put.inlined = bytes != NULL;
    put.bytes.data = (uint8_t *)bytes;
    put.bytes.len = bytes != NULL ? byte_count : 0;
    worker_fixture_send(fixture, TOW_MESSAGE_SHARD_PUT, &put.base);
}

void worker_fixture_send_get(worker_fixture_t *fixture, uint64_t request,
                             uint64_t object, uint32_t shard, bool has_target)
{
    tow_msg_shard_get_t get = TOW_MSG_SHARD_GET_INIT;
    tow_msg_lane_target_t target = TOW_MSG_LANE_TARGET_INIT;
    const void *address;
    tow_env_lane_address(fixture->client_env, &address,
                         &target.lane_address.len);
    target.lane_address.data = (uint8_t *)address;
    target.region_id = tow_region_key(fixture->region).id;
    target.region_secret = tow_region_key(fixture->region).secret;
    get.request = request;
    get.object = object;
    get.shard = shard;
    if (has_target) get.target = &target;
    worker_fixture_send(fixture, TOW_MESSAGE_SHARD_GET, &get.base);
}

void worker_fixture_send_release(worker_fixture_t *fixture, uint64_t first,
                                 uint32_t count)
{
    tow_msg_release_t release = TOW_MSG_RELEASE_INIT;
    release.firsts = &first;
    release.n_firsts = 1;
    release.counts = &count;
    release.n_counts = 1;
    worker_fixture_send(fixture, TOW_MESSAGE_RELEASE, &release.base);
}

void worker_fixture_send_assemble(worker_fixture_t *fixture, uint64_t object,
                                  const uint64_t sources[DEVICES],
                                  uint32_t shard)
{
    uint32_t shards[DEVICES] = {0, shard};
    tow_msg_shard_assemble_t assemble = TOW_MSG_SHARD_ASSEMBLE_INIT;
    assemble.object = object;
    assemble.sources = (uint64_t *)sources;
    assemble.n_sources = DEVICES;
    assemble.shards = shards;
    assemble.n_shards = DEVICES;
    worker_fixture_send(fixture, TOW_MESSAGE_SHARD_ASSEMBLE, &assemble.base);
}

void worker_fixture_send_abort(worker_fixture_t *fixture, uint64_t run,
                               const char *why)
{
    tow_msg_abort_t abort = TOW_MSG_ABORT_INIT;
    tow_msg_failure_t failure = TOW_MSG_FAILURE_INIT;
    failure.code = TOW_CANCELLED;
    failure.message = (char *)why;
    abort.run = run;
    if (why != NULL) abort.failure = &failure;
    worker_fixture_send(fixture, TOW_MESSAGE_ABORT, &abort.base);
}
