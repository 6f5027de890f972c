/* The controller is lost, and comes again. */
#include "client/client_impl.h"
#include "client/world_testing_impl.h"

static void expect_lost(tow_status_t take_status)
{
    expect_error(take_status, TOW_UNAVAILABLE, "come again without it");
    tow_status_release(take_status);
}

/* A slice, a function, its program and an array, all made and answered. */
typedef struct things {
    tow_slice_t *slice;
    tow_function_t *function;
    tow_program_t *program;
    tow_array_t *x;
} things_t;

static things_t make_things(world_t *world)
{
    things_t things = {.slice = open_slice(world)};
    things.function = compile(world, things.slice);
    things.x = make_array(world, things.slice);
    things.program = call_of(world, things.function, things.slice);
    return things;
}

static void drop_things(things_t *things)
{
    tow_array_drop(things->x);
    tow_function_drop(things->function);
    tow_slice_drop(things->slice);
}

static void expect_run_works(world_t *world, const things_t *things)
{
    tow_array_t *y;
    must(tow_program_start(things->program, (tow_array_t *const *)&things->x, 1,
                           &y, 1));
    say_done(world, HEAR(world, RUN, run)->run);
    expect_settled(tow_array_value(y));
    tow_array_drop(y);
    HEAR(world, RELEASE, release);
}

/* -- Coming again ------------------------------------------------------------------ */

static void new_things_work_when_the_controller_has_come_again(void **state)
{
    (void)state;
    world_t world;
    world_connect(&world);
    things_t old = make_things(&world);
    assert_int_equal(tow_client_life(world.client), 0);
    world_lose(&world);
    expect_error(tow_client_lost(world.client), TOW_UNAVAILABLE, "gone");
    world_come_again(&world);
    assert_int_equal(tow_client_life(world.client), 1);
    things_t now = make_things(&world);
    assert_true(now.slice->id > old.slice->id);
    assert_true(now.function->id > old.function->id);
    assert_true(now.program->id > old.program->id);
    assert_true(now.x->id > old.x->id);
    expect_run_works(&world, &now);
    drop_things(&old);
    hear_nothing(&world);
    drop_things(&now);
    world_close(&world);
}

static void a_controller_lost_again_and_again_comes_again(void **state)
{
    (void)state;
    world_t world;
    world_connect(&world);
    for (uint32_t life = 0; life < 3; life++) {
        things_t things = make_things(&world);
        expect_run_works(&world, &things);
        world_lose(&world);
        world_come_again(&world);
        assert_int_equal(tow_client_life(world.client), life + 1);
        expect_lost(tow_slice_check(things.slice));
        drop_things(&things);
        hear_nothing(&world);
    }
    world_close(&world);
}

/* -- What was before ----------------------------------------------------------------- */

static void expect_uses_refused(things_t *old)
{
    tow_array_t *array;
    tow_function_t *function;
    tow_program_t *program;
    uint8_t bytes[16];
    tow_settling_t answer = {0};
    const uint32_t shards[] = {0, 0};
    tow_array_t *const sources[] = {old->x, old->x};
    const tow_source_t source = {
        .struct_size = sizeof(source), .bytes = "text", .size = 4};
    expect_lost(tow_program_start(old->program, &old->x, 1, &array, 1));
    expect_lost(start_upload(old->slice, "x", 1, &array));
    expect_lost(start_upload(old->slice, large, sizeof(large), &array));
    expect_lost(tow_copy_start(old->slice, old->x, 0, &array));
    expect_lost(tow_regroup_start(old->slice, sources, shards, &array));
    expect_lost(tow_download_start(old->x, 0, bytes, 16, &answer, NULL));
    expect_lost(tow_function_ask(old->slice, &source, &function));
    must(tow_function_program(old->function, old->slice, &program));
    expect_lost(tow_program_start(program, &old->x, 1, &array, 1));
    expect_lost(tow_array_outcome(old->x));
    assert_null(tow_array_kept(old->x, 0));
    char *text;
    const report_wish_t wish = {.kind = TOW_REPORT_CODE,
                                .function = old->function};
    expect_lost(
        tow_report_start(old->slice->client, &wish, &text, NULL, &answer));
}

static void things_of_before_are_refused_and_never_told_of(void **state)
{
    (void)state;
    world_t world;
    world_connect(&world);
    things_t old = make_things(&world);
    world_lose(&world);
    world_come_again(&world);
    expect_uses_refused(&old);
    drop_things(&old);
    run_for(&world, SECOND);
    hear_nothing(&world);
    world_close(&world);
}

static void things_of_two_lives_do_not_mix(void **state)
{
    (void)state;
    world_t world;
    world_connect(&world);
    things_t old = make_things(&world);
    tow_program_t *traced;
    must(tow_program_begin(world.client, "traced", &traced));
    world_lose(&world);
    world_come_again(&world);
    things_t now = make_things(&world);
    tow_array_t *array;
    tow_value_t value;
    const uint32_t shards[] = {0, 0};
    tow_array_t *const sources[] = {now.x, old.x};
    expect_lost(tow_program_start(now.program, &old.x, 1, &array, 1));
    expect_lost(tow_copy_start(now.slice, old.x, 0, &array));
    expect_lost(tow_regroup_start(now.slice, sources, shards, &array));
    tow_program_t *program;
    expect_lost(tow_function_program(old.function, now.slice, &program));
    expect_lost(tow_function_program(now.function, old.slice, &program));
    must(tow_program_begin(world.client, "mixed", &program));
    must(tow_program_add_argument(program, old.slice, &row, false, &value));
    expect_lost(tow_program_send(program));
    expect_lost(tow_program_send(traced));
    tow_program_drop(program);
    tow_program_drop(traced);
    hear_nothing(&world);
    drop_things(&old);
    drop_things(&now);
    world_close(&world);
}

static void what_was_under_way_fails_once_and_is_not_told_of(void **state)
{
    (void)state;
    world_t world;
    world_connect(&world);
    busy_t busy;
    make_busy(&world, &busy);
    tow_array_t *short_lived;
    must(start_upload(busy.slice, "x", 1, &short_lived));
    tow_array_drop(short_lived); /* To be told, soon. */
    world_lose(&world);
    expect_told(&busy, TOW_UNAVAILABLE);
    world_come_again(&world);
    assert_int_equal(tow_client_run_count(world.client), 0);
    assert_true(tow_client_has_room_for(world.client, sizeof(large)));
    say_done(&world, 1); /* A number of before is nobody's. */
    say_put_done(&world, busy.upload->id, NULL);
    expect_told(&busy, TOW_UNAVAILABLE);
    drop_busy(&busy);
    hear_nothing(&world);
    world_close(&world);
    tow_free(busy.bytes);
}

static void note_request(void *context, tow_client_request_t *take_request)
{
    *(tow_client_request_t **)context = take_request;
}

static void a_call_of_before_is_answered_to_nobody(void **state)
{
    (void)state;
    world_t world;
    world_connect(&world);
    tow_client_request_t *request = NULL;
    tow_client_set_server(world.client,
                          &(tow_client_server_t){note_request, &request});
    tow_msg_callback_t call = TOW_MSG_CALLBACK_INIT;
    call.call = 1;
    say(&world, TOW_MESSAGE_CALLBACK, &call.base);
    soon(&world);
    assert_non_null(request);
    world_lose(&world);
    world_come_again(&world);
    tow_client_answer(world.client, request, NULL, TOW_OK);
    hear_nothing(&world);
    world_close(&world);
}

/* -- While it is away ------------------------------------------------------------------ */

static void a_controller_that_refuses_is_dialled_again(void **state)
{
    (void)state;
    world_t world;
    world_connect(&world);
    tow_slice_t *slice;
    const tow_slice_options_t options = {.struct_size = sizeof(options),
                                         .dims = {2}};
    world_lose(&world);
    tow_status_t status = tow_slice_ask(world.client, &options, &slice);
    expect_error(status, TOW_UNAVAILABLE, "it has not come again");
    tow_status_release(status);
    world_restart(&world);
    say_refused(&world);
    expect_error(tow_client_lost(world.client), TOW_UNAVAILABLE,
                 "not come again: no more numbers");
    run_for(&world, 3 * SECOND);
    say_opened(&world);
    must(tow_client_lost(world.client));
    assert_int_equal(tow_client_life(world.client), 1);
    world_close(&world);
}

static tow_status_t ended_for_good(void *context)
{
    ++*(int *)context;
    return TOW_ERROR(TOW_UNAVAILABLE, "ended for good");
}

static void a_cluster_that_has_ended_for_good_is_not_dialled(void **state)
{
    (void)state;
    world_t world;
    world_connect(&world);
    int count = 0;
    world.client->keeper = (tow_client_keeper_t){ended_for_good, &count};
    world_lose(&world);
    expect_error(tow_client_lost(world.client), TOW_UNAVAILABLE, "for good");
    world_restart(&world);
    hear_nothing(&world);
    assert_null(world.session);
    assert_int_equal(count, 1);
    world_close(&world);
}

/* Their controller is lost, and that was a while ago. */
static things_t lose_things(world_t *world, int64_t wait_ms)
{
    world_connect(world);
    things_t things = make_things(world);
    world_lose(world);
    run_for(world, wait_ms * SECOND / 1000);
    return things;
}

static void a_client_may_leave_at_any_moment_of_it(void **state)
{
    (void)state;
    for (int64_t wait_ms = 0; wait_ms < 2600; wait_ms += 97) {
        world_t world;
        things_t old = lose_things(&world, wait_ms);
        if (wait_ms % 2 == 0) world_restart(&world);
        drop_things(&old);
        world_close(&world);
    }
}

static void a_client_may_die_at_any_moment_of_it(void **state)
{
    (void)state;
    for (int64_t wait_ms = 0; wait_ms < 2600; wait_ms += 97) {
        world_t world;
        things_t old = lose_things(&world, wait_ms);
        tow_sim_crash(world.client_node);
        tow_client_abandon(world.client);
        drop_things(&old);
        tow_client_free(world.client);
        world_free(&world);
    }
}

TOW_TEST_MAIN(
    cmocka_unit_test(new_things_work_when_the_controller_has_come_again),
    cmocka_unit_test(a_controller_lost_again_and_again_comes_again),
    cmocka_unit_test(things_of_before_are_refused_and_never_told_of),
    cmocka_unit_test(things_of_two_lives_do_not_mix),
    cmocka_unit_test(what_was_under_way_fails_once_and_is_not_told_of),
    cmocka_unit_test(a_call_of_before_is_answered_to_nobody),
    cmocka_unit_test(a_controller_that_refuses_is_dialled_again),
    cmocka_unit_test(a_cluster_that_has_ended_for_good_is_not_dialled),
    cmocka_unit_test(a_client_may_leave_at_any_moment_of_it),
    cmocka_unit_test(a_client_may_die_at_any_moment_of_it))
