/* Joining and disconnecting, slices, compilation and programs, with scripted
 * workers and clients. */
#include "controller/fixture_testing_impl.h"

/* -- Workers --------------------------------------------------------------------- */

static void workers_are_introduced_to_each_other(void **state)
{
    (void)state;
    cluster_fixture_t cluster = {0};
    cluster_open(&cluster);
    peer_t *first = worker_make(&cluster, 1);
    peer_t *second = worker_make(&cluster, 2);
    const tow_msg_peer_t *peer = EXPECT(first, PEER, peer);
    assert_int_equal(peer->process, 2);
    assert_string_equal(peer->name, "worker/2");
    assert_int_equal(peer->device_count, DEVICES);
    assert_int_equal(EXPECT(second, PEER, peer)->process, 1);
    assert_int_equal(tow_controller_totals(cluster.controller).worker_count, 2);
    peer_crash(second);
    const tow_msg_peer_disconnected_t *disconnected =
        EXPECT(first, PEER_DISCONNECTED, peer_disconnected);
    assert_int_equal(disconnected->process, 2);
    expect_failure(disconnected->failure, TOW_UNAVAILABLE, "worker/2");
    assert_int_equal(tow_controller_totals(cluster.controller).worker_count, 1);
    cluster_close(&cluster);
}

static void a_worker_with_a_process_number_in_use_is_refused(void **state)
{
    (void)state;
    cluster_fixture_t cluster = {0};
    cluster_open(&cluster);
    worker_make(&cluster, 1);
    peer_t *second = peer_make(&cluster, "worker/other");
    send_join(second, 1, DEVICES);
    expect_failure(EXPECT(second, WORKER_JOINED, worker_joined)->failure,
                   TOW_ALREADY_EXISTS, "1");
    run_for(&cluster, SECOND / 10);
    assert_int_equal(second->disconnect_count, 1);
    peer_t *empty = peer_make(&cluster, "worker/empty");
    send_join(empty, 3, 0);
    expect_failure(EXPECT(empty, WORKER_JOINED, worker_joined)->failure,
                   TOW_INVALID_ARGUMENT, "device");
    assert_int_equal(tow_controller_totals(cluster.controller).worker_count, 1);
    cluster_close(&cluster);
}

static void a_worker_that_leaves_is_reported_at_once(void **state)
{
    (void)state;
    cluster_fixture_t cluster = {0};
    cluster_open(&cluster);
    peer_t *first = worker_make(&cluster, 1);
    peer_t *second = worker_make(&cluster, 2);
    peer_leave(second); /* 0.1 s: no lease expires. */
    expect_failure(EXPECT(first, PEER_DISCONNECTED, peer_disconnected)->failure,
                   TOW_UNAVAILABLE, "worker worker/2 on host host left");
    cluster_close(&cluster);
}

static void a_disconnected_worker_joins_again(void **state)
{
    (void)state;
    cluster_fixture_t cluster = {0};
    cluster_open(&cluster);
    peer_t *worker = worker_make(&cluster, 1);
    peer_t *client = client_make(&cluster, "client/1");
    open_slice(client, 1, 2);
    peer_crash(worker);
    tow_sim_restart(worker->node);
    peer_dial(worker);
    send_join(worker, 1, DEVICES);
    expect_success(EXPECT(worker, WORKER_JOINED, worker_joined)->failure);
    /* The same ids are other devices now: the slice is mapped to them. */
    compile(client, 1, 1, add_text);
    add_program(client, 1, one_add);
    (void)EXPECT(worker, PROGRAM_LOAD, program_load);
    open_slice(client, 2, 2);
    cluster_close(&cluster);
}

static void sessions_with_an_invalid_first_message_are_rejected(void **state)
{
    (void)state;
    cluster_fixture_t cluster = {0};
    cluster_open(&cluster);
    peer_t *worker = worker_make(&cluster, 1);
    peer_t *pending = peer_make(&cluster, "pending");
    tow_msg_cancel_t cancel = TOW_MSG_CANCEL_INIT;
    send_message(pending, TOW_MESSAGE_CANCEL, &cancel.base);
    run_for(&cluster, SECOND / 10);
    assert_int_equal(pending->disconnect_count, 1);
    expect_part(pending->disconnect_message, "ClientOpen");
    peer_t *quiet = peer_make(&cluster, "quiet"); /* never identifies itself */
    run_for(&cluster, 10 * SECOND);
    peer_crash(quiet);
    assert_int_equal(worker->disconnect_count, 0);
    cluster_close(&cluster);
}

/* -- Slices ---------------------------------------------------------------------- */

static void count_idle(void *context)
{
    (*(int *)context)++;
}

static void a_controller_without_clients_is_idle(void **state)
{
    (void)state;
    int idle_count = 0;
    cluster_fixture_t cluster = {.options = {.idle_timeout_ns = 20 * SECOND,
                                             .idle = count_idle,
                                             .context = &idle_count}};
    cluster_open(&cluster);
    worker_make(&cluster, 1); /* Not a client. */
    run_for(&cluster, 15 * SECOND);
    peer_t *client = client_make(&cluster, "client/1");
    run_for(&cluster, 60 * SECOND);
    assert_int_equal(idle_count, 0);
    peer_crash(client);
    run_for(&cluster, 15 * SECOND);
    assert_int_equal(idle_count, 0);
    run_for(&cluster, 10 * SECOND);
    assert_int_equal(idle_count, 1);
    cluster_close(&cluster);
}

static void slices_name_their_devices(void **state)
{
    (void)state;
    cluster_fixture_t cluster = {0};
    cluster_open(&cluster);
    worker_make(&cluster, 1);
    worker_make(&cluster, 2);
    peer_t *client = client_make(&cluster, "client/1");
    send_slice(client, 1, 4);
    const tow_msg_slice_opened_t *opened =
        EXPECT(client, SLICE_OPENED, slice_opened);
    expect_success(opened->failure);
    assert_int_equal(opened->n_devices, 4);
    assert_int_equal(opened->devices[0]->id, 2048);
    assert_int_equal(opened->devices[2]->id, 4096);
    assert_string_equal(opened->devices[3]->worker, "worker/2");
    send_slice(client, 2, 5);
    expect_failure(EXPECT(client, SLICE_OPENED, slice_opened)->failure,
                   TOW_RESOURCE_EXHAUSTED, "5 devices");
    assert_int_equal(tow_controller_totals(cluster.controller).slice_count, 1);
    tow_msg_slice_close_t close = TOW_MSG_SLICE_CLOSE_INIT;
    close.slice = 1;
    send_message(client, TOW_MESSAGE_SLICE_CLOSE, &close.base);
    send_message(client, TOW_MESSAGE_SLICE_CLOSE, &close.base);
    expect_no_message(client);
    assert_int_equal(tow_controller_totals(cluster.controller).slice_count, 0);
    cluster_close(&cluster);
}

static void reusing_a_slice_id_ends_the_session(void **state)
{
    (void)state;
    cluster_fixture_t cluster = {0};
    cluster_open(&cluster);
    worker_make(&cluster, 1);
    peer_t *bad = client_make(&cluster, "client/bad");
    peer_t *good = client_make(&cluster, "client/good");
    open_slice(bad, 1, 2);
    open_slice(good, 1, 2); /* Each client has its own numbers. */
    send_slice(bad, 1, 1);
    run_for(&cluster, SECOND / 10);
    assert_int_equal(bad->disconnect_count, 1);
    expect_part(bad->disconnect_message, "in use");
    assert_int_equal(good->disconnect_count, 0);
    assert_int_equal(tow_controller_totals(cluster.controller).slice_count, 1);
    cluster_close(&cluster);
}

/* -- Compiling ------------------------------------------------------------------- */

static void equal_functions_are_compiled_once(void **state)
{
    (void)state;
    cluster_fixture_t cluster = {0};
    cluster_open(&cluster);
    worker_make(&cluster, 1);
    peer_t *one = client_make(&cluster, "client/1");
    peer_t *two = client_make(&cluster, "client/2");
    open_slice(one, 1, 2);
    open_slice(two, 7, 2);
    send_compile(one, 1, 1, add_text); /* under way, ... */
    send_compile(two, 1, 7, add_text); /* ... shared, ... */
    expect_success(EXPECT(one, COMPILE_DONE, compile_done)->failure);
    expect_success(EXPECT(two, COMPILE_DONE, compile_done)->failure);
    compile(two, 2, 7, add_text); /* ... and cached. */
    tow_msg_report_get_t get = TOW_MSG_REPORT_GET_INIT;
    get.request = 9;
    get.kind = TOW_REPORT_STATUS;
    peer_leave(&cluster.peers[0]); /* so that no worker loads it */
    send_message(one, TOW_MESSAGE_REPORT_GET, &get.base);
    const tow_msg_report_t *report = EXPECT(one, REPORT, report);
    expect_success(report->failure);
    assert_int_equal(report->request, 9);
    assert_int_equal(report->blob, one->blob);
    char *text = tow_calloc(1, one->blob_size + 1);
    memcpy(text, one->blob_bytes, one->blob_size);
    expect_part(text, "\"compiles\":1,");
    tow_free(text);
    cluster_close(&cluster);
}

static void a_compile_error_reaches_all_equal_requests(void **state)
{
    (void)state;
    cluster_fixture_t cluster = {0};
    cluster_open(&cluster);
    worker_make(&cluster, 1);
    peer_t *one = client_make(&cluster, "client/1");
    peer_t *two = client_make(&cluster, "client/2");
    open_slice(one, 1, 2);
    open_slice(two, 1, 2);
    send_compile(one, 1, 1, "towpath-cost 1\nnonsense\n");
    send_compile(two, 1, 1, "towpath-cost 1\nnonsense\n");
    expect_failure(EXPECT(one, COMPILE_DONE, compile_done)->failure,
                   TOW_INVALID_ARGUMENT, "nonsense");
    expect_failure(EXPECT(two, COMPILE_DONE, compile_done)->failure,
                   TOW_INVALID_ARGUMENT, "nonsense");
    compile(one, 1, 1, add_text); /* The id is free again. */
    send_compile(one, 2, 99, add_text);
    expect_failure(EXPECT(one, COMPILE_DONE, compile_done)->failure,
                   TOW_NOT_FOUND, "slice 99");
    cluster_close(&cluster);
}

static void a_client_may_disconnect_during_a_compilation(void **state)
{
    (void)state;
    cluster_fixture_t cluster = {.options = {.code_bytes_max = 1}};
    cluster_open(&cluster);
    worker_make(&cluster, 1);
    peer_t *client = client_make(&cluster, "client/1");
    open_slice(client, 1, 2);
    send_compile(client, 1, 1, add_text);
    send_compile(client, 2, 1, consuming_text);
    peer_leave(client);
    expect_nothing(&cluster);
    peer_t *next = client_make(&cluster, "client/2");
    open_slice(next, 1, 2);
    compile(next, 1, 1, add_text);
    cluster_close(&cluster);
}

/* -- Programs -------------------------------------------------------------------- */

static void invalid_programs_are_refused_by_node(void **state)
{
    (void)state;
    cluster_fixture_t cluster = {0};
    cluster_open(&cluster);
    peer_t *worker = worker_make(&cluster, 1);
    peer_t *client = client_make(&cluster, "client/1");
    open_slice(client, 1, 2);
    open_slice(client, 2, 1);
    compile(client, 1, 1, add_text);
    refuse_program(client, 1,
                   "program \"p\" {\n"
                   "  %0 = argument \"x\" : u8[1024] on slice 1\n"
                   "  %1 = compute \"A\" function 9 on slice 1 (%0)\n"
                   "  %2 = result \"y\" (%1)\n}\n",
                   TOW_INVALID_ARGUMENT, "\"A\"");
    refuse_program(client, 1,
                   "program \"p\" {\n"
                   "  %0 = argument \"x\" : u8[1024] on slice 5\n"
                   "  %1 = compute \"A\" function 1 on slice 5 (%0)\n"
                   "  %2 = result \"y\" (%1)\n}\n",
                   TOW_INVALID_ARGUMENT, "slice 5");
    refuse_program(client, 1,
                   "program \"p\" {\n"
                   "  %0 = argument \"x\" : u8[1024] on slice 2\n"
                   "  %1 = compute \"A\" function 1 on slice 2 (%0)\n"
                   "  %2 = result \"y\" (%1)\n}\n",
                   TOW_INVALID_ARGUMENT, "\"A\"");
    refuse_program(client, 1,
                   "program \"p\" {\n"
                   "  %0 = argument \"x\" : u8[7] on slice 1\n"
                   "  %1 = compute \"A\" function 1 on slice 1 (%0)\n"
                   "  %2 = result \"y\" (%1)\n}\n",
                   TOW_INVALID_ARGUMENT, "u8[7]");
    refuse_program(client, 1,
                   "program \"p\" {\n"
                   "  %0 = compute \"A\" function 1 on slice 1 (%1)\n"
                   "  %1 = compute \"B\" function 1 on slice 1 (%0)\n"
                   "  %2 = result \"y\" (%1)\n}\n",
                   TOW_INVALID_ARGUMENT, "cycle");
    expect_no_message(worker); /* Workers have received none of them. */
    add_program(client, 1, one_add);
    cluster_close(&cluster);
}

static void a_program_is_loaded_once_and_unloaded(void **state)
{
    (void)state;
    cluster_fixture_t cluster = {0};
    cluster_open(&cluster);
    peer_t *worker = worker_make(&cluster, 1);
    worker->holds_loads = true;
    peer_t *client = client_make(&cluster, "client/1");
    open_slice(client, 1, 2);
    compile(client, 1, 1, add_text);
    add_program(client, 1, one_add);
    uint64_t executable = EXPECT(worker, LOAD, load)->executable;
    assert_int_equal(EXPECT(worker, PROGRAM_LOAD, program_load)->program,
                     tow_key(client->number, 1));
    add_program(client, 2, one_add); /* has the executable already */
    assert_int_equal(EXPECT(worker, PROGRAM_LOAD, program_load)->program,
                     tow_key(client->number, 2));
    answer_load(worker, executable, NULL);
    tow_msg_program_discard_t drop = TOW_MSG_PROGRAM_DISCARD_INIT;
    for (drop.program = 1; drop.program <= 2; drop.program++)
        send_message(client, TOW_MESSAGE_PROGRAM_DISCARD, &drop.base);
    EXPECT(worker, PROGRAM_UNLOAD, program_unload);
    EXPECT(worker, PROGRAM_UNLOAD, program_unload);
    assert_int_equal(EXPECT(worker, UNLOAD, unload)->executable, executable);
    cluster_close(&cluster);
}

/* -- Closing and crashing -------------------------------------------------- */

static void on_closed(void *context)
{
    cluster_fixture_t *cluster = context;
    cluster->is_closed = true;
    cluster->controller = NULL;
}

static void close_cluster(cluster_fixture_t *cluster)
{
    tow_controller_t *controller = cluster->controller;
    cluster->controller = NULL;
    (void)tow_sim_node_env(cluster->node);
    tow_controller_close(controller, (tow_closed_t){on_closed, cluster});
    run_for(cluster, SECOND);
    assert_true(cluster->is_closed);
}

static void a_controller_closes_with_work_under_way(void **state)
{
    (void)state;
    cluster_fixture_t cluster = {0};
    cluster_open(&cluster);
    peer_t *worker = worker_make(&cluster, 1);
    peer_t *client = client_make(&cluster, "client/1");
    peer_make(&cluster, "pending");
    static const uint8_t bytes[1024];
    open_slice(client, 1, 2);
    compile(client, 1, 1, add_text);
    add_program(client, 1, one_add);
    send_put(client, 1, 1, 1024, bytes);
    send_put(client, 2, 1, 1024, NULL);
    send_run(client, 1, 1, 1, 10);
    send_run(client, 2, 1, 2, 11); /* waits for the put */
    send_get(client, 1, 10, 0);
    send_get(client, 2, 11, 0);
    run_for(&cluster, SECOND / 100);
    send_compile(client, 2, 1, consuming_text);
    run_for(&cluster, 30000); /* It is being compiled. */
    close_cluster(&cluster);
    assert_int_equal(worker->disconnect_count, 1);
    assert_int_equal(client->disconnect_count, 1);
    assert_int_equal(client->disconnect_code, TOW_UNAVAILABLE);
    expect_part(client->disconnect_message, "shutting down");
    cluster_destroy(&cluster);
}

static void a_controller_crashes_with_work_under_way(void **state)
{
    (void)state;
    cluster_fixture_t cluster = {0};
    cluster_open(&cluster);
    worker_make(&cluster, 1);
    peer_t *client = client_make(&cluster, "client/1");
    peer_make(&cluster, "pending");
    static const uint8_t bytes[1024];
    open_slice(client, 1, 2);
    compile(client, 1, 1, add_text);
    add_program(client, 1, one_add);
    send_put(client, 1, 1, 1024, bytes);
    send_put(client, 2, 1, 1024, NULL);
    send_run(client, 1, 1, 1, 10);
    send_run(client, 2, 1, 2, 11);
    send_get(client, 1, 10, 0);
    send_get(client, 2, 11, 0);
    run_for(&cluster, SECOND / 100);
    cluster_destroy(&cluster); /* Sanitizers detect leaks. */
}

TOW_TEST_MAIN(
    cmocka_unit_test(workers_are_introduced_to_each_other),
    cmocka_unit_test(a_worker_with_a_process_number_in_use_is_refused),
    cmocka_unit_test(a_worker_that_leaves_is_reported_at_once),
    cmocka_unit_test(a_disconnected_worker_joins_again),
    cmocka_unit_test(sessions_with_an_invalid_first_message_are_rejected),
    cmocka_unit_test(a_controller_without_clients_is_idle),
    cmocka_unit_test(slices_name_their_devices),
    cmocka_unit_test(reusing_a_slice_id_ends_the_session),
    cmocka_unit_test(equal_functions_are_compiled_once),
    cmocka_unit_test(a_compile_error_reaches_all_equal_requests),
    cmocka_unit_test(a_client_may_disconnect_during_a_compilation),
    cmocka_unit_test(invalid_programs_are_refused_by_node),
    cmocka_unit_test(a_program_is_loaded_once_and_unloaded),
    cmocka_unit_test(a_controller_closes_with_work_under_way),
    cmocka_unit_test(a_controller_crashes_with_work_under_way))
