/* Who comes and goes, slices, compiling and programs, against workers and
 * clients that the tests write themselves. */
#include "controller/world_testing_impl.h"

/* -- Workers --------------------------------------------------------------------- */

static void workers_are_introduced_to_each_other(void **state)
{
    (void)state;
    world_t world = {0};
    world_open(&world);
    peer_t *first = worker_make(&world, 1);
    peer_t *second = worker_make(&world, 2);
    const tow_msg_peer_t *peer = HEAR(first, PEER, peer);
    assert_int_equal(peer->process, 2);
    assert_string_equal(peer->name, "worker/2");
    assert_int_equal(peer->device_count, DEVICES);
    assert_int_equal(HEAR(second, PEER, peer)->process, 1);
    assert_int_equal(tow_controller_totals(world.controller).worker_count, 2);
    peer_die(second);
    const tow_msg_peer_gone_t *gone = HEAR(first, PEER_GONE, peer_gone);
    assert_int_equal(gone->process, 2);
    expect_failure(gone->failure, TOW_UNAVAILABLE, "worker/2");
    assert_int_equal(tow_controller_totals(world.controller).worker_count, 1);
    world_close(&world);
}

static void a_worker_with_a_taken_number_is_refused(void **state)
{
    (void)state;
    world_t world = {0};
    world_open(&world);
    worker_make(&world, 1);
    peer_t *second = peer_make(&world, "worker/other");
    say_join(second, 1, DEVICES);
    expect_failure(HEAR(second, WORKER_JOINED, worker_joined)->failure,
                   TOW_ALREADY_EXISTS, "1");
    run_for(&world, SECOND / 10);
    assert_int_equal(second->gone_count, 1);
    peer_t *empty = peer_make(&world, "worker/empty");
    say_join(empty, 3, 0);
    expect_failure(HEAR(empty, WORKER_JOINED, worker_joined)->failure,
                   TOW_INVALID_ARGUMENT, "device");
    assert_int_equal(tow_controller_totals(world.controller).worker_count, 1);
    world_close(&world);
}

static void a_worker_that_was_gone_joins_again(void **state)
{
    (void)state;
    world_t world = {0};
    world_open(&world);
    peer_t *worker = worker_make(&world, 1);
    peer_t *client = client_make(&world, "client/1");
    open_slice(client, 1, 2);
    peer_die(worker);
    tow_sim_restart(worker->node);
    peer_dial(worker);
    say_join(worker, 1, DEVICES);
    expect_well(HEAR(worker, WORKER_JOINED, worker_joined)->failure);
    /* The same ids are other devices now: the slice is mapped to them. */
    compile(client, 1, 1, add_text);
    add_program(client, 1, one_add);
    (void)HEAR(worker, PROGRAM_LOAD, program_load);
    open_slice(client, 2, 2);
    world_close(&world);
}

static void strangers_that_talk_nonsense_are_turned_away(void **state)
{
    (void)state;
    world_t world = {0};
    world_open(&world);
    peer_t *worker = worker_make(&world, 1);
    peer_t *stranger = peer_make(&world, "stranger");
    tow_msg_cancel_t cancel = TOW_MSG_CANCEL_INIT;
    say(stranger, TOW_MESSAGE_CANCEL, &cancel.base);
    run_for(&world, SECOND / 10);
    assert_int_equal(stranger->gone_count, 1);
    expect_part(stranger->gone_message, "ClientOpen");
    peer_t *quiet = peer_make(&world, "quiet"); /* never says what it is */
    run_for(&world, 10 * SECOND);
    peer_die(quiet);
    assert_int_equal(worker->gone_count, 0);
    world_close(&world);
}

/* -- Slices ---------------------------------------------------------------------- */

static void slices_name_their_devices(void **state)
{
    (void)state;
    world_t world = {0};
    world_open(&world);
    worker_make(&world, 1);
    worker_make(&world, 2);
    peer_t *client = client_make(&world, "client/1");
    say_slice(client, 1, 4);
    const tow_msg_slice_opened_t *opened =
        HEAR(client, SLICE_OPENED, slice_opened);
    expect_well(opened->failure);
    assert_int_equal(opened->n_devices, 4);
    assert_int_equal(opened->devices[0]->id, 2048);
    assert_int_equal(opened->devices[2]->id, 4096);
    assert_string_equal(opened->devices[3]->worker, "worker/2");
    say_slice(client, 2, 5);
    expect_failure(HEAR(client, SLICE_OPENED, slice_opened)->failure,
                   TOW_RESOURCE_EXHAUSTED, "5 devices");
    assert_int_equal(tow_controller_totals(world.controller).slice_count, 1);
    tow_msg_slice_close_t close = TOW_MSG_SLICE_CLOSE_INIT;
    close.slice = 1;
    say(client, TOW_MESSAGE_SLICE_CLOSE, &close.base);
    say(client, TOW_MESSAGE_SLICE_CLOSE, &close.base);
    hear_nothing(client);
    assert_int_equal(tow_controller_totals(world.controller).slice_count, 0);
    world_close(&world);
}

static void a_slice_id_that_is_taken_costs_the_session(void **state)
{
    (void)state;
    world_t world = {0};
    world_open(&world);
    worker_make(&world, 1);
    peer_t *bad = client_make(&world, "client/bad");
    peer_t *good = client_make(&world, "client/good");
    open_slice(bad, 1, 2);
    open_slice(good, 1, 2); /* Each client has its own numbers. */
    say_slice(bad, 1, 1);
    run_for(&world, SECOND / 10);
    assert_int_equal(bad->gone_count, 1);
    expect_part(bad->gone_message, "in use");
    assert_int_equal(good->gone_count, 0);
    assert_int_equal(tow_controller_totals(world.controller).slice_count, 1);
    world_close(&world);
}

/* -- Compiling ------------------------------------------------------------------- */

static void equal_functions_are_compiled_once(void **state)
{
    (void)state;
    world_t world = {0};
    world_open(&world);
    worker_make(&world, 1);
    peer_t *one = client_make(&world, "client/1");
    peer_t *two = client_make(&world, "client/2");
    open_slice(one, 1, 2);
    open_slice(two, 7, 2);
    say_compile(one, 1, 1, add_text); /* under way, ... */
    say_compile(two, 1, 7, add_text); /* ... shared, ... */
    expect_well(HEAR(one, COMPILE_DONE, compile_done)->failure);
    expect_well(HEAR(two, COMPILE_DONE, compile_done)->failure);
    compile(two, 2, 7, add_text); /* ... and kept. */
    tow_msg_report_get_t get = TOW_MSG_REPORT_GET_INIT;
    get.request = 9;
    get.kind = TOW_REPORT_STATUS;
    peer_leave(&world.peers[0]); /* so that no worker is asked */
    say(one, TOW_MESSAGE_REPORT_GET, &get.base);
    const tow_msg_report_t *report = HEAR(one, REPORT, report);
    expect_well(report->failure);
    assert_int_equal(report->request, 9);
    assert_int_equal(report->blob, one->blob);
    char *text = tow_calloc(1, one->blob_size + 1);
    memcpy(text, one->blob_bytes, one->blob_size);
    expect_part(text, "\"compiles\":1,");
    tow_free(text);
    world_close(&world);
}

static void what_does_not_compile_is_told_to_all_who_asked(void **state)
{
    (void)state;
    world_t world = {0};
    world_open(&world);
    worker_make(&world, 1);
    peer_t *one = client_make(&world, "client/1");
    peer_t *two = client_make(&world, "client/2");
    open_slice(one, 1, 2);
    open_slice(two, 1, 2);
    say_compile(one, 1, 1, "towpath-cost 1\nnonsense\n");
    say_compile(two, 1, 1, "towpath-cost 1\nnonsense\n");
    expect_failure(HEAR(one, COMPILE_DONE, compile_done)->failure,
                   TOW_INVALID_ARGUMENT, "nonsense");
    expect_failure(HEAR(two, COMPILE_DONE, compile_done)->failure,
                   TOW_INVALID_ARGUMENT, "nonsense");
    compile(one, 1, 1, add_text); /* The id is free again. */
    say_compile(one, 2, 99, add_text);
    expect_failure(HEAR(one, COMPILE_DONE, compile_done)->failure,
                   TOW_NOT_FOUND, "slice 99");
    world_close(&world);
}

static void a_client_may_go_while_its_function_is_compiled(void **state)
{
    (void)state;
    world_t world = {.options = {.code_bytes_max = 1}};
    world_open(&world);
    worker_make(&world, 1);
    peer_t *client = client_make(&world, "client/1");
    open_slice(client, 1, 2);
    say_compile(client, 1, 1, add_text);
    say_compile(client, 2, 1, eat_text);
    peer_leave(client);
    expect_nothing(&world);
    peer_t *next = client_make(&world, "client/2");
    open_slice(next, 1, 2);
    compile(next, 1, 1, add_text);
    world_close(&world);
}

/* -- Programs -------------------------------------------------------------------- */

static void programs_that_make_no_sense_are_refused_by_node(void **state)
{
    (void)state;
    world_t world = {0};
    world_open(&world);
    peer_t *worker = worker_make(&world, 1);
    peer_t *client = client_make(&world, "client/1");
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
    hear_nothing(worker); /* Workers never heard of any of them. */
    add_program(client, 1, one_add);
    world_close(&world);
}

static void a_program_is_loaded_once_and_unloaded(void **state)
{
    (void)state;
    world_t world = {0};
    world_open(&world);
    peer_t *worker = worker_make(&world, 1);
    worker->keeps_loads = true;
    peer_t *client = client_make(&world, "client/1");
    open_slice(client, 1, 2);
    compile(client, 1, 1, add_text);
    add_program(client, 1, one_add);
    uint64_t executable = HEAR(worker, LOAD, load)->executable;
    assert_int_equal(HEAR(worker, PROGRAM_LOAD, program_load)->program,
                     tow_key(client->number, 1));
    add_program(client, 2, one_add); /* has the executable already */
    assert_int_equal(HEAR(worker, PROGRAM_LOAD, program_load)->program,
                     tow_key(client->number, 2));
    answer_load(worker, executable, NULL);
    tow_msg_program_drop_t drop = TOW_MSG_PROGRAM_DROP_INIT;
    for (drop.program = 1; drop.program <= 2; drop.program++)
        say(client, TOW_MESSAGE_PROGRAM_DROP, &drop.base);
    HEAR(worker, PROGRAM_UNLOAD, program_unload);
    HEAR(worker, PROGRAM_UNLOAD, program_unload);
    assert_int_equal(HEAR(worker, UNLOAD, unload)->executable, executable);
    world_close(&world);
}

/* -- The end --------------------------------------------------------------------- */

static void on_closed(void *context)
{
    world_t *world = context;
    world->is_closed = true;
    world->controller = NULL;
}

static void close_world(world_t *world)
{
    tow_controller_t *controller = world->controller;
    world->controller = NULL;
    (void)tow_sim_node_env(world->node);
    tow_controller_close(controller, (tow_closed_t){on_closed, world});
    run_for(world, SECOND);
    assert_true(world->is_closed);
}

static void a_controller_closes_with_everything_under_way(void **state)
{
    (void)state;
    world_t world = {0};
    world_open(&world);
    peer_t *worker = worker_make(&world, 1);
    peer_t *client = client_make(&world, "client/1");
    peer_make(&world, "stranger");
    static const uint8_t bytes[1024];
    open_slice(client, 1, 2);
    compile(client, 1, 1, add_text);
    add_program(client, 1, one_add);
    say_put(client, 1, 1, 1024, bytes);
    say_put(client, 2, 1, 1024, NULL);
    say_run(client, 1, 1, 1, 10);
    say_run(client, 2, 1, 2, 11); /* waits for the put */
    say_get(client, 1, 10, 0);
    say_get(client, 2, 11, 0);
    run_for(&world, SECOND / 100);
    say_compile(client, 2, 1, eat_text);
    run_for(&world, 30000); /* It is being compiled. */
    close_world(&world);
    assert_int_equal(worker->gone_count, 1);
    assert_int_equal(client->gone_count, 1);
    assert_int_equal(client->gone_code, TOW_UNAVAILABLE);
    expect_part(client->gone_message, "told to end");
    world_destroy(&world);
}

static void a_controller_dies_with_everything_under_way(void **state)
{
    (void)state;
    world_t world = {0};
    world_open(&world);
    worker_make(&world, 1);
    peer_t *client = client_make(&world, "client/1");
    peer_make(&world, "stranger");
    static const uint8_t bytes[1024];
    open_slice(client, 1, 2);
    compile(client, 1, 1, add_text);
    add_program(client, 1, one_add);
    say_put(client, 1, 1, 1024, bytes);
    say_put(client, 2, 1, 1024, NULL);
    say_run(client, 1, 1, 1, 10);
    say_run(client, 2, 1, 2, 11);
    say_get(client, 1, 10, 0);
    say_get(client, 2, 11, 0);
    run_for(&world, SECOND / 100);
    world_destroy(&world); /* Sanitizers see what is left. */
}

TOW_TEST_MAIN(cmocka_unit_test(workers_are_introduced_to_each_other),
              cmocka_unit_test(a_worker_with_a_taken_number_is_refused),
              cmocka_unit_test(a_worker_that_was_gone_joins_again),
              cmocka_unit_test(strangers_that_talk_nonsense_are_turned_away),
              cmocka_unit_test(slices_name_their_devices),
              cmocka_unit_test(a_slice_id_that_is_taken_costs_the_session),
              cmocka_unit_test(equal_functions_are_compiled_once),
              cmocka_unit_test(what_does_not_compile_is_told_to_all_who_asked),
              cmocka_unit_test(a_client_may_go_while_its_function_is_compiled),
              cmocka_unit_test(programs_that_make_no_sense_are_refused_by_node),
              cmocka_unit_test(a_program_is_loaded_once_and_unloaded),
              cmocka_unit_test(a_controller_closes_with_everything_under_way),
              cmocka_unit_test(a_controller_dies_with_everything_under_way))
