/* Owners of sessions that check the contract of session.h: numbered messages
 * and blobs arrive once and in order, `opened` first, `disconnected` last. For
 * tests. */
#ifndef TOW_SESSION_SESSION_TESTING_IMPL_H_
#define TOW_SESSION_SESSION_TESTING_IMPL_H_

#include "base/testing.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "env/sim/sim.h"
#include "session/session_impl.h"

#define MS         TOW_NS_PER_MS
#define SECOND     TOW_NS_PER_S
#define TEST_TYPE  TOW_MESSAGE_RUN
#define TEST_BYTES 4096 /* of a message, at most */

static inline void must(tow_status_t status)
{
    if (status != TOW_OK) fail_msg("%s", tow_status_message(status));
}

/* One end of a session. */
typedef struct owner {
    tow_session_t *session; /* NULL: none, or closed */
    int opened_count;
    int disconnected_count;
    int writable_count;
    int closed_count;
    uint64_t sent;     /* messages and blobs */
    uint64_t received; /* the same */
    uint64_t blobs_received;
    int64_t released_balance; /* blobs sent that were not released */
    tow_code_t disconnect_code;
    char disconnect_message[1024];
    int64_t disconnected_ns;
    bool close_on_disconnect;
    bool keep_quiet; /* do not check messages */
    void (*on_message)(struct owner *owner, const tow_message_t *message);
    void (*on_disconnect)(struct owner *owner);
} owner_t;

/* The content of message `number`: the number, then a pattern. */
static inline uint32_t test_size(uint64_t number)
{
    uint32_t size = 8 + (uint32_t)(number * 37 % 120);
    return number % 17 == 0 ? size + 3000 : size;
}

static inline void test_fill(uint8_t *bytes, uint64_t number, size_t size)
{
    for (size_t i = 0; i < size; i++)
        bytes[i] = (uint8_t)(number * 31 + i);
    memcpy(bytes, &number, size < 8 ? size : 8);
}

static inline bool test_is_right(const uint8_t *bytes, uint64_t number,
                                 size_t size)
{
    uint64_t said = 0;
    memcpy(&said, bytes, size < 8 ? size : 8);
    if (size >= 8 && said != number) return false;
    for (size_t i = 8; i < size; i++)
        if (bytes[i] != (uint8_t)(number * 31 + i)) return false;
    return true;
}

static inline void owner_opened(void *context, tow_session_t *session)
{
    owner_t *owner = context;
    assert_ptr_equal(owner->session, session);
    assert_true(tow_session_is_open(session));
    assert_int_equal(owner->opened_count, 0);
    owner->opened_count++;
}

static inline void owner_message(void *context, tow_session_t *session,
                                 const tow_message_t *message)
{
    owner_t *owner = context;
    assert_ptr_equal(owner->session, session);
    assert_true(owner->opened_count == 1 && owner->disconnected_count == 0);
    if (!owner->keep_quiet) {
        assert_int_equal(message->type, TEST_TYPE);
        assert_true(
            test_is_right(message->bytes, owner->received, message->size));
        assert_int_equal(message->size, test_size(owner->received));
    }
    owner->received++;
    tow_session_check(session);
    if (owner->on_message != NULL) owner->on_message(owner, message);
}

static inline void owner_blob(void *context, tow_session_t *session,
                              uint64_t blob, void *take_bytes, size_t size)
{
    owner_t *owner = context;
    assert_ptr_equal(owner->session, session);
    assert_true(owner->opened_count == 1 && owner->disconnected_count == 0);
    assert_true(blob > 0);
    if (!owner->keep_quiet)
        assert_true(test_is_right(take_bytes, owner->received, size));
    tow_free(take_bytes);
    owner->received++;
    owner->blobs_received++;
}

static inline void owner_writable(void *context, tow_session_t *session)
{
    owner_t *owner = context;
    assert_ptr_equal(owner->session, session);
    assert_true(session->ring.used <= session->limits.retransmit_bytes_max / 2);
    owner->writable_count++;
}

static inline void owner_disconnected(void *context, tow_session_t *session,
                                      tow_status_t cause)
{
    owner_t *owner = context;
    assert_ptr_equal(owner->session, session);
    assert_int_equal(owner->disconnected_count, 0);
    assert_int_not_equal(tow_status_code(cause), TOW_CODE_OK);
    assert_false(tow_session_is_open(session));
    assert_int_equal(tow_session_stats(session).retransmit_bytes, 0);
    owner->disconnected_count++;
    owner->disconnect_code = tow_status_code(cause);
    owner->disconnected_ns = tow_env_now_ns(session->env);
    snprintf(owner->disconnect_message, sizeof(owner->disconnect_message), "%s",
             tow_status_message(cause));
    if (owner->close_on_disconnect) {
        owner->session = NULL;
        tow_session_close(session, TOW_OK, (tow_closed_t){0});
    }
    if (owner->on_disconnect != NULL) owner->on_disconnect(owner);
}

static const tow_session_handler_t owner_handler = {
    .opened = owner_opened,
    .message = owner_message,
    .blob = owner_blob,
    .writable = owner_writable,
    .disconnected = owner_disconnected,
};

static inline void owner_closed(void *context)
{
    owner_t *owner = context;
    owner->closed_count++;
    owner->session = NULL;
}

static inline void owner_close(owner_t *owner, tow_status_t reason)
{
    tow_session_close(owner->session, reason,
                      (tow_closed_t){owner_closed, owner});
}

static inline tow_send_result_t owner_send(owner_t *owner)
{
    uint8_t *room = NULL;
    uint32_t size = test_size(owner->sent);
    tow_send_result_t result = tow_session_begin(owner->session, size, &room);
    if (result != TOW_SEND_OK) return result;
    test_fill(room, owner->sent, size);
    tow_session_commit(owner->session, TEST_TYPE, size);
    tow_session_check(owner->session);
    owner->sent++;
    return TOW_SEND_OK;
}

static inline void owner_send_many(owner_t *owner, int count)
{
    for (int i = 0; i < count; i++)
        assert_int_equal(owner_send(owner), TOW_SEND_OK);
}

/* Heap bytes; their release decrements a balance. */
typedef struct test_blob {
    int64_t *balance;
    uint8_t bytes[];
} test_blob_t;

static inline void test_blob_release(void *context)
{
    test_blob_t *blob = context;
    (*blob->balance)--;
    tow_free(blob);
}

static inline uint64_t owner_send_blob(owner_t *owner, int64_t *balance,
                                       size_t size)
{
    test_blob_t *blob = tow_malloc(sizeof(*blob) + size);
    if (blob == NULL) return 0;
    blob->balance = balance;
    test_fill(blob->bytes, owner->sent, size);
    (*balance)++;
    uint64_t number = tow_session_send_blob(
        owner->session, &(tow_session_blob_t){.bytes = blob->bytes,
                                              .size = size,
                                              .release = test_blob_release,
                                              .context = blob});
    if (number != 0) owner->sent++;
    return number;
}

/* -- Two nodes ------------------------------------------------------------- */

#define TEST_ARRIVALS_MAX 8

/* Node "a" dials, node "b" listens; both are driven by the test. */
typedef struct pair {
    tow_sim_t *sim;
    tow_sim_node_t *a;
    tow_sim_node_t *b;
    tow_session_port_t *port;
    owner_t dialled;
    owner_t accepted[TEST_ARRIVALS_MAX];
    int arrived_count;
    bool refuse;
    tow_session_limits_t limits;
    const tow_session_handler_t *accept_handler;
} pair_t;

static inline void pair_arrived(void *context, tow_session_t *session)
{
    pair_t *pair = context;
    assert_true(pair->arrived_count < TEST_ARRIVALS_MAX);
    if (pair->refuse) {
        tow_status_t reason = TOW_ERROR(TOW_FAILED_PRECONDITION, "not today");
        tow_session_close(session, reason, (tow_closed_t){0});
        tow_status_release(reason);
        return;
    }
    owner_t *owner = &pair->accepted[pair->arrived_count++];
    owner->session = session;
    tow_session_accept(session, pair->accept_handler, owner);
}

static inline tow_status_t pair_listen(pair_t *pair)
{
    return tow_session_listen(
        tow_sim_node_env(pair->b),
        &(tow_session_listen_options_t){.address = "sim:b",
                                        .limits = pair->limits,
                                        .session_count_max = 4,
                                        .arrived = pair_arrived,
                                        .context = pair},
        &pair->port);
}

static inline tow_status_t pair_dial(pair_t *pair)
{
    return tow_session_dial(
        tow_sim_node_env(pair->a),
        &(tow_session_dial_options_t){.address = "sim:b",
                                      .limits = pair->limits,
                                      .handler = &owner_handler,
                                      .context = &pair->dialled},
        &pair->dialled.session);
}

static inline void pair_open(pair_t *pair, tow_sim_options_t options)
{
    tow_session_limits_t limits = pair->limits;
    *pair = (pair_t){.limits = limits, .accept_handler = &owner_handler};
    options.log.level = TOW_LOG_OFF;
    must(tow_sim_create(&options, &pair->sim));
    must(tow_sim_node_create(pair->sim, &(tow_sim_node_options_t){.name = "a"},
                             &pair->a));
    must(tow_sim_node_create(pair->sim, &(tow_sim_node_options_t){.name = "b"},
                             &pair->b));
}

static inline void pair_run(pair_t *pair, int64_t span_ns)
{
    must(tow_sim_run(pair->sim,
                     &(tow_sim_run_options_t){
                         .until_ns = tow_sim_now_ns(pair->sim) + span_ns}));
    tow_sim_node_env(pair->a);
    tow_sim_node_env(pair->b);
}

static inline void pair_connect(pair_t *pair, tow_sim_options_t options)
{
    pair_open(pair, options);
    must(pair_listen(pair));
    must(pair_dial(pair));
    pair_run(pair, 200 * MS);
    assert_int_equal(pair->dialled.opened_count, 1);
    assert_int_equal(pair->accepted[0].opened_count, 1);
}

/* Ends the simulation without callbacks. */
static inline void pair_end(pair_t *pair)
{
    tow_sim_destroy(pair->sim);
    tow_session_discard(pair->dialled.session);
    for (int i = 0; i < TEST_ARRIVALS_MAX; i++)
        tow_session_discard(pair->accepted[i].session);
    tow_session_port_discard(pair->port);
    pair->limits = (tow_session_limits_t){0};
}

#endif /* TOW_SESSION_SESSION_TESTING_IMPL_H_ */
