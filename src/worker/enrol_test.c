/* Enrolment with a scripted controller. */
#include "worker/enrol.h"

#include <string.h>

#include "base/testing.h"
#include "env/sim/sim.h"

#define SECOND 1000000000ll

typedef struct fixture {
    tow_sim_t *sim;
    tow_sim_node_t *controller;
    tow_sim_node_t *worker;
    tow_session_port_t *port;
    tow_session_t *session; /* NULL: none */
    tow_arena_t arena;
    int refuse_count; /* requests to refuse */
    int request_count;
    char request_host[32], request_name[32];
    bool request_has_process;
    tow_enrolment_t *enrolment;
    int enrolled_count, failed_count;
    tow_enrolled_t enrolled;
    tow_code_t failed_code;
    char failed_message[256];
    bool is_closed;
} fixture_t;

static void must(tow_status_t status)
{
    if (status != TOW_OK) fail_msg("%s", tow_status_message(status));
}

static void run_for(fixture_t *fixture, int64_t span_ns)
{
    must(tow_sim_run(fixture->sim,
                     &(tow_sim_run_options_t){
                         .until_ns = tow_sim_now_ns(fixture->sim) + span_ns}));
}

/* -- The controller -------------------------------------------------------- */

static void answer(fixture_t *fixture, tow_session_t *session)
{
    tow_msg_worker_enrol_t message = TOW_MSG_WORKER_ENROL_INIT;
    tow_msg_failure_t failure = TOW_MSG_FAILURE_INIT;
    failure.code = TOW_ALREADY_EXISTS;
    failure.message = (char *)"taken";
    message.name = (char *)"worker-7";
    message.has_process = true;
    message.process = 9;
    if (fixture->refuse_count > 0) message.failure = &failure;
    fixture->refuse_count -= fixture->refuse_count > 0;
    assert_int_equal(
        tow_session_send(session, TOW_MESSAGE_WORKER_ENROL, &message.base),
        TOW_SEND_OK);
}

static void on_message(void *context, tow_session_t *session,
                       const tow_message_t *message)
{
    fixture_t *fixture = context;
    const tow_body_t *body;
    assert_int_equal(message->type, TOW_MESSAGE_WORKER_ENROL);
    must(tow_message_decode(message->type, message->bytes, message->size,
                            &fixture->arena, &body));
    const tow_msg_worker_enrol_t *enrol = (const tow_msg_worker_enrol_t *)body;
    fixture->request_count++;
    snprintf(fixture->request_host, sizeof(fixture->request_host), "%s",
             enrol->host);
    snprintf(fixture->request_name, sizeof(fixture->request_name), "%s",
             enrol->name);
    fixture->request_has_process = enrol->has_process;
    answer(fixture, session);
}

static void on_disconnected(void *context, tow_session_t *session,
                            tow_status_t cause)
{
    (void)cause;
    fixture_t *fixture = context;
    tow_session_close(session, TOW_OK, (tow_closed_t){0});
    fixture->session = NULL;
}

static const tow_session_handler_t handler = {.message = on_message,
                                              .disconnected = on_disconnected};

static void arrived(void *context, tow_session_t *session)
{
    ((fixture_t *)context)->session = session;
    tow_session_accept(session, &handler, context);
}

static void listen_as_controller(fixture_t *fixture)
{
    must(tow_session_listen(
        tow_sim_node_env(fixture->controller),
        &(tow_session_listen_options_t){.address = "sim:controller",
                                        .arrived = arrived,
                                        .context = fixture},
        &fixture->port));
}

/* -- The worker ------------------------------------------------------------ */

static void on_enrolled(void *context, const tow_enrolled_t *enrolled)
{
    fixture_t *fixture = context;
    fixture->enrolled_count++;
    fixture->enrolled = *enrolled;
}

static void on_failed(void *context, tow_status_t cause)
{
    fixture_t *fixture = context;
    fixture->failed_count++;
    fixture->failed_code = tow_status_code(cause);
    snprintf(fixture->failed_message, sizeof(fixture->failed_message), "%s",
             tow_status_message(cause));
}

static void set_closed(void *context)
{
    ((fixture_t *)context)->is_closed = true;
}

static void open_fixture(fixture_t *fixture)
{
    tow_sim_options_t options = {.seed = 3,
                                 .remote_path = {.latency_ns = 20000}};
    options.log.level = TOW_LOG_OFF;
    must(tow_sim_create(&options, &fixture->sim));
    must(tow_sim_node_create(fixture->sim,
                             &(tow_sim_node_options_t){.name = "controller"},
                             &fixture->controller));
    must(tow_sim_node_create(fixture->sim,
                             &(tow_sim_node_options_t){.name = "unique"},
                             &fixture->worker));
    tow_arena_init(&fixture->arena, 0);
}

static void enrol(fixture_t *fixture, const char *name)
{
    must(tow_enrolment_open(
        tow_sim_node_env(fixture->worker),
        &(tow_enrol_options_t){.controller = "sim:controller",
                               .host = "a",
                               .name = name,
                               .hooks = {.enrolled = on_enrolled,
                                         .failed = on_failed,
                                         .context = fixture}},
        &fixture->enrolment));
}

static void close_enrolment(fixture_t *fixture)
{
    tow_enrolment_close(fixture->enrolment,
                        (tow_closed_t){set_closed, fixture});
    fixture->enrolment = NULL;
    run_for(fixture, SECOND / 10);
    assert_true(fixture->is_closed);
}

static void destroy_fixture(fixture_t *fixture)
{
    tow_sim_crash(fixture->worker);
    tow_enrolment_discard(fixture->enrolment);
    tow_sim_crash(fixture->controller);
    tow_session_discard(fixture->session);
    tow_session_port_discard(fixture->port);
    tow_arena_deinit(&fixture->arena);
    tow_sim_destroy(fixture->sim);
}

/* -- Tests ----------------------------------------------------------------- */

static void the_session_stays_open_until_the_enrolment_is_closed(void **state)
{
    (void)state;
    fixture_t fixture = {0};
    open_fixture(&fixture);
    listen_as_controller(&fixture);
    enrol(&fixture, NULL);
    run_for(&fixture, 10 * SECOND);
    assert_int_equal(fixture.enrolled_count, 1);
    assert_string_equal(fixture.enrolled.name, "worker-7");
    assert_int_equal(fixture.enrolled.process, 9);
    assert_string_equal(fixture.request_host, "a");
    assert_string_equal(fixture.request_name, "");
    assert_false(fixture.request_has_process);
    assert_non_null(fixture.session);
    close_enrolment(&fixture);
    assert_null(fixture.session);
    destroy_fixture(&fixture);
}

static void a_refused_request_is_repeated(void **state)
{
    (void)state;
    fixture_t fixture = {.refuse_count = 3};
    open_fixture(&fixture);
    listen_as_controller(&fixture);
    enrol(&fixture, "trainer");
    run_for(&fixture, 2 * SECOND);
    assert_int_equal(fixture.failed_count, 3);
    assert_int_equal(fixture.failed_code, TOW_ALREADY_EXISTS);
    assert_non_null(strstr(fixture.failed_message, "taken"));
    assert_int_equal(fixture.request_count, 4);
    assert_int_equal(fixture.enrolled_count, 1);
    assert_string_equal(fixture.request_name, "trainer");
    close_enrolment(&fixture);
    destroy_fixture(&fixture);
}

static void it_waits_for_a_controller_that_is_not_up_yet(void **state)
{
    (void)state;
    fixture_t fixture = {0};
    open_fixture(&fixture);
    enrol(&fixture, NULL);
    run_for(&fixture, 10 * SECOND);
    assert_true(fixture.failed_count > 0);
    listen_as_controller(&fixture);
    run_for(&fixture, 10 * SECOND);
    assert_int_equal(fixture.enrolled_count, 1);
    close_enrolment(&fixture);
    destroy_fixture(&fixture);
}

static void it_closes_before_an_answer(void **state)
{
    (void)state;
    fixture_t fixture = {0};
    open_fixture(&fixture);
    enrol(&fixture, NULL);
    run_for(&fixture, SECOND / 100);
    close_enrolment(&fixture);
    assert_int_equal(fixture.enrolled_count, 0);
    destroy_fixture(&fixture);
}

/* The owner has its name and its number: joining decides. */
static void a_lost_session_after_the_answer_is_no_failure(void **state)
{
    (void)state;
    fixture_t fixture = {0};
    open_fixture(&fixture);
    listen_as_controller(&fixture);
    enrol(&fixture, NULL);
    run_for(&fixture, SECOND);
    tow_session_close(fixture.session, TOW_OK, (tow_closed_t){0});
    fixture.session = NULL;
    run_for(&fixture, 10 * SECOND);
    assert_int_equal(fixture.request_count, 1);
    assert_int_equal(fixture.enrolled_count, 1);
    assert_int_equal(fixture.failed_count, 0);
    close_enrolment(&fixture);
    destroy_fixture(&fixture);
}

static void invalid_options_are_refused(void **state)
{
    (void)state;
    fixture_t fixture = {0};
    tow_enrolment_t *enrolment;
    open_fixture(&fixture);
    tow_enrol_options_t options = {.controller = "nowhere",
                                   .host = "a",
                                   .hooks = {.enrolled = on_enrolled}};
    tow_status_t status = tow_enrolment_open(tow_sim_node_env(fixture.worker),
                                             &options, &enrolment);
    assert_int_equal(tow_status_code(status), TOW_INVALID_ARGUMENT);
    tow_status_release(status);
    options.controller = "sim:controller";
    options.name =
        "a-name-of-more-than-sixty-three-bytes-which-is-the-limit-of-"
        "handshakes";
    status = tow_enrolment_open(tow_sim_node_env(fixture.worker), &options,
                                &enrolment);
    assert_int_equal(tow_status_code(status), TOW_INVALID_ARGUMENT);
    assert_null(enrolment);
    tow_status_release(status);
    destroy_fixture(&fixture);
}

TOW_TEST_MAIN(
    cmocka_unit_test(the_session_stays_open_until_the_enrolment_is_closed),
    cmocka_unit_test(a_refused_request_is_repeated),
    cmocka_unit_test(it_waits_for_a_controller_that_is_not_up_yet),
    cmocka_unit_test(it_closes_before_an_answer),
    cmocka_unit_test(a_lost_session_after_the_answer_is_no_failure),
    cmocka_unit_test(invalid_options_are_refused))
