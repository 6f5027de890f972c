/* Runs that take long, and who is named for it. */
#include "controller/controller_impl.h"
#include "controller/world_testing_impl.h"

static const uint8_t zeroes[1024];

typedef struct cast {
    world_t world;
    peer_t *one, *two; /* workers: devices 2048 and 2049, 4096 and 4097 */
    peer_t *client;
    uint64_t run;  /* the first of the client's, granted */
    uint64_t gang; /* its only one */
} cast_t;

static void cast_open(cast_t *cast)
{
    *cast = (cast_t){0};
    world_open(&cast->world);
    cast->one = worker_make(&cast->world, 1);
    cast->two = worker_make(&cast->world, 2);
    cast->client = client_make(&cast->world, "client/1");
    open_slice(cast->client, 1, 4);
    compile(cast->client, 1, 1, add_text);
    add_program(cast->client, 1, one_add);
    say_put(cast->client, 1, 1, 1024, zeroes);
    expect_well(HEAR(cast->client, PUT_DONE, put_done)->failure);
    hear_out(cast->one);
    hear_out(cast->two);
    cast->world.hears_late = true;
    say_run(cast->client, 1, 1, 1, 10);
    const tow_msg_grant_t *grant = HEAR(cast->one, GRANT, grant);
    cast->run = grant->run;
    cast->gang = grant->first_gang;
    hear_grant(cast->two, cast->client, 1);
}

/* The next message, as soon as there is one. */
static void await_note(peer_t *peer)
{
    for (int i = 0;
         peer->world->hears_late && i < 300 && next_note(peer, 0) == NULL; i++)
        run_for(peer->world, SECOND / 100);
}

static tow_msg_report_t hear_question(peer_t *worker, tow_report_kind_t kind)
{
    tow_msg_report_t answer = TOW_MSG_REPORT_INIT;
    await_note(worker);
    const tow_msg_report_get_t *get;
    do
        get = HEAR(worker, REPORT_GET, report_get);
    while (get->kind != kind);
    answer.request = get->request;
    return answer;
}

static void say_nobody_waits(peer_t *worker)
{
    tow_msg_report_t answer = hear_question(worker, TOW_REPORT_WAITS);
    say(worker, TOW_MESSAGE_REPORT, &answer.base);
}

/* `device` of the worker waits for `missing`. */
static void say_waits(peer_t *worker, uint64_t gang, int64_t device,
                      int64_t missing, tow_report_kind_t kind)
{
    tow_msg_report_t answer = hear_question(worker, kind);
    tow_msg_wait_t wait = TOW_MSG_WAIT_INIT, *list = &wait;
    wait.device = device;
    wait.gang = gang;
    wait.waited_ns = SECOND / 2;
    wait.missing = &missing;
    wait.n_missing = 1;
    answer.waits = &list;
    answer.n_waits = 1;
    say(worker, TOW_MESSAGE_REPORT, &answer.base);
}

static const tow_msg_run_late_t *hear_late(const cast_t *cast)
{
    await_note(cast->client);
    return HEAR(cast->client, RUN_LATE, run_late);
}

static void expect_no_part(const char *text, const char *part)
{
    if (strstr(text, part) != NULL) fail_msg("'%s' has '%s'", text, part);
}

/* -- Runs ------------------------------------------------------------------------ */

static void a_run_that_takes_long_names_who_has_not_finished(void **state)
{
    (void)state;
    cast_t cast;
    cast_open(&cast);
    say_run(cast.client, 2, 1, 10, 11);
    uint64_t second = hear_grant(cast.one, cast.client, 2);
    hear_grant(cast.two, cast.client, 2);
    say_done(cast.one, cast.run);
    hear_nothing(cast.client);
    for (int i = 1; i <= 3; i++) {
        say_nobody_waits(cast.two);
        const tow_msg_run_late_t *late = hear_late(&cast);
        assert_int_equal(late->run, 1); /* The other waits behind it. */
        assert_true(late->waited_ns >= (uint64_t)(i * TOW_LATE_NS));
        assert_true(late->waited_ns <
                    (uint64_t)(i * TOW_LATE_NS + 2 * TOW_LATE_LOOK_NS));
        expect_part(late->text, "1 of 2 workers");
        expect_part(late->text, cast.two->name);
        expect_no_part(late->text, cast.one->name);
        hear_nothing(cast.client);
    }
    say_done(cast.two, cast.run);
    hear_run_done(cast.client, 1);
    say_done(cast.one, second);
    say_done(cast.two, second);
    hear_run_done(cast.client, 2);
    run_for(&cast.world, 2 * TOW_LATE_NS);
    hear_nothing(cast.client);
    world_close(&cast.world);
}

static void a_device_that_others_wait_for_is_late_and_they_are_not(void **state)
{
    (void)state;
    cast_t cast;
    cast_open(&cast);
    say_waits(cast.one, cast.gang, 2048, 4097, TOW_REPORT_WAITS);
    say_nobody_waits(cast.two);
    const tow_msg_run_late_t *late = hear_late(&cast);
    expect_part(late->text,
                "late: device 4097 of worker/2 (host host, island ");
    expect_part(late->text, "1 other waits for it");
    expect_no_part(late->text, cast.one->name);
    expect_no_part(late->text, "still at it");
    world_close(&cast.world);
}

static void waits_of_other_runs_name_nobody(void **state)
{
    (void)state;
    cast_t cast;
    cast_open(&cast);
    say_waits(cast.one, cast.gang + 1, 2048, 4097, TOW_REPORT_WAITS);
    say_nobody_waits(cast.two);
    expect_part(hear_late(&cast)->text, "still at it: worker/1");
    world_close(&cast.world);
}

static void a_worker_that_does_not_answer_is_late(void **state)
{
    (void)state;
    cast_t cast;
    cast_open(&cast);
    say_nobody_waits(cast.one);
    const tow_msg_run_late_t *late = hear_late(&cast);
    expect_part(late->text, "late: worker/2 (host host");
    expect_part(late->text, "does not answer");
    assert_true(late->waited_ns <
                (uint64_t)(TOW_LATE_NS + TOW_LATE_LOOK_NS +
                           TOW_REPORT_PATIENCE_NS + SECOND / 10));
    say_nobody_waits(cast.two); /* Too late, and harmless. */
    hear_question(cast.one, TOW_REPORT_WAITS);
    world_close(&cast.world); /* Before the answer. */
}

static void a_run_that_ends_while_its_workers_are_asked_is_not_told(
    void **state)
{
    (void)state;
    cast_t cast;
    cast_open(&cast);
    say_nobody_waits(cast.one);
    say_done(cast.one, cast.run);
    say_done(cast.two, cast.run);
    hear_run_done(cast.client, 1);
    run_for(&cast.world, SECOND);
    hear_nothing(cast.client);
    world_close(&cast.world);
}

/* -- Status ---------------------------------------------------------------------- */

static void status_does_not_wait_for_who_does_not_answer(void **state)
{
    (void)state;
    cast_t cast;
    cast_open(&cast);
    run_for(&cast.world, 3 * TOW_LATE_NS);
    cast.world.hears_late = false;
    hear_out(cast.one);
    tow_msg_report_get_t get = TOW_MSG_REPORT_GET_INIT;
    get.request = 3;
    get.kind = TOW_REPORT_STATUS;
    say(cast.client, TOW_MESSAGE_REPORT_GET, &get.base);
    say_waits(cast.one, cast.gang, 2049, 4096, TOW_REPORT_STATUS);
    run_for(&cast.world, TOW_REPORT_PATIENCE_NS);
    assert_int_equal(HEAR(cast.client, REPORT, report)->request, 3);
    char *text = tow_calloc(1, cast.client->blob_size + 1);
    memcpy(text, cast.client->blob_bytes, cast.client->blob_size);
    expect_part(text, "\"silent\":true");
    expect_part(text, "late: worker/2 (host host");
    expect_part(text, "late: device 4096 of worker/2");
    tow_free(text);
    world_close(&cast.world);
}

/* -- Who waits for whom ------------------------------------------------------------ */

static void add_wait(waits_t *waits, uint64_t gang, int64_t device,
                     int64_t missing)
{
    tow_msg_report_t report = TOW_MSG_REPORT_INIT;
    tow_msg_wait_t wait = TOW_MSG_WAIT_INIT, *list = &wait;
    wait.device = device;
    wait.gang = gang;
    wait.waited_ns = (uint64_t)device;
    wait.missing = &missing;
    wait.n_missing = 1;
    report.waits = &list;
    report.n_waits = 1;
    tow_waits_add(waits, &report);
}

/* Members wait for the leader of their host, and that for the other leader, who
 * waits in another gang, for somebody who does not wait. */
static void chains_are_followed_to_their_ends(void **state)
{
    (void)state;
    waits_t waits = {0};
    add_wait(&waits, 7, 12, 11);
    add_wait(&waits, 7, 13, 11);
    add_wait(&waits, 7, 11, 21);
    add_wait(&waits, 6, 21, 22);
    add_wait(&waits, 6, 30, 31);  /* Nobody's business. */
    for (int i = 0; i < 2; i++) { /* It can be asked again. */
        const late_t late = tow_waits_judge(&waits, 7, 1);
        assert_int_equal(late.device_count, 1);
        assert_int_equal(late.devices[0], 22);
        assert_int_equal(late.waiting_count, 4);
        assert_int_equal(late.waited_ns, 21);
        assert_false(late.has_more);
    }
    tow_waits_deinit(&waits);
}

static void who_waits_in_a_circle_is_not_late(void **state)
{
    (void)state;
    waits_t waits = {0};
    add_wait(&waits, 7, 1, 2);
    add_wait(&waits, 7, 2, 3);
    add_wait(&waits, 7, 3, 1);
    const late_t late = tow_waits_judge(&waits, 0, 100);
    assert_int_equal(late.device_count, 0);
    assert_int_equal(late.waiting_count, 3);
    tow_waits_deinit(&waits);
}

static void no_more_than_a_few_are_named(void **state)
{
    (void)state;
    waits_t waits = {0};
    for (int64_t i = 0; i < 2 * TOW_LATE_NAMES_MAX; i++)
        add_wait(&waits, 7, i, 100 + i);
    const late_t late = tow_waits_judge(&waits, 7, 1);
    assert_int_equal(late.device_count, TOW_LATE_NAMES_MAX);
    assert_true(late.has_more);
    tow_waits_deinit(&waits);
}

TOW_TEST_MAIN(
    cmocka_unit_test(a_run_that_takes_long_names_who_has_not_finished),
    cmocka_unit_test(a_device_that_others_wait_for_is_late_and_they_are_not),
    cmocka_unit_test(waits_of_other_runs_name_nobody),
    cmocka_unit_test(a_worker_that_does_not_answer_is_late),
    cmocka_unit_test(a_run_that_ends_while_its_workers_are_asked_is_not_told),
    cmocka_unit_test(status_does_not_wait_for_who_does_not_answer),
    cmocka_unit_test(chains_are_followed_to_their_ends),
    cmocka_unit_test(who_waits_in_a_circle_is_not_late),
    cmocka_unit_test(no_more_than_a_few_are_named))
