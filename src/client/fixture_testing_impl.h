/* A fixture for the client's tests: the client's state machine in a simulation,
 * and a scripted controller, which records the messages that it receives. */
#ifndef TOW_CLIENT_FIXTURE_TESTING_IMPL_H_
#define TOW_CLIENT_FIXTURE_TESTING_IMPL_H_

#include "base/testing.h"

#include "base/alloc.h"
#include "base/arena.h"
#include "base/vec.h"
#include "client/client.h"
#include "device/signature.h"
#include "env/sim/sim.h"
#include "session/session.h"

#define SECOND 1000000000ll
typedef struct received {
    uint32_t type;
    uint8_t *bytes; /* owned */
    size_t size;
} received_t;

typedef struct fixture {
    tow_sim_t *sim;
    tow_sim_node_t *controller_node;
    tow_sim_node_t *client_node;
    tow_session_port_t *port;
    tow_session_t *session; /* NULL: none, or disconnected */
    tow_arena_t arena;
    TOW_VEC(received_t) messages;
    size_t read_count;
    int disconnect_count;
    tow_client_t *client;
    /* A region of the controller's node, as a worker would open it. */
    uint8_t *memory; /* owned */
    tow_region_t *region;
    int arrived_count;
} fixture_t;

void must(tow_status_t status);
void run_for(fixture_t *fixture, int64_t span_ns);
void soon(fixture_t *fixture);
void expect_error(tow_status_t status, tow_code_t code, const char *part);
void expect_settled(const tow_completion_t *completion);
void expect_failed(const tow_completion_t *completion, tow_code_t code,
                   const char *part);

/* -- The controller --------------------------------------------------------------- */

void send_message(fixture_t *fixture, uint32_t type, const tow_body_t *body);
const tow_body_t *expect_message(fixture_t *fixture, uint32_t type);
#define EXPECT(fixture, kind, name) \
    ((const tow_msg_##name##_t *)expect_message((fixture), TOW_MESSAGE_##kind))
void expect_no_message(fixture_t *fixture);
tow_msg_failure_t failure_of(tow_code_t code, const char *text);

/* -- The fixture ---------------------------------------------------------------------- */

/* The client dials; the controller has not answered yet. */
void fixture_open(fixture_t *fixture);
void send_opened(fixture_t *fixture);
void send_refused(fixture_t *fixture);
void fixture_connect(fixture_t *fixture);
void fixture_free(fixture_t *fixture);
/* The controller crashes, and the client detects it. */
void fixture_disconnect(fixture_t *fixture);
/* A new controller listens; the client redials it. */
void fixture_restart(fixture_t *fixture);
void fixture_reconnect(fixture_t *fixture);
/* Closes the client and checks that nothing is left. */
void fixture_close(fixture_t *fixture);

/* -- Handles --------------------------------------------------------------- */

void send_slice(fixture_t *fixture, uint64_t slice, size_t count);
tow_slice_t *open_slice(fixture_t *fixture);
extern const tow_shape_t row;
/* A function from one row to one row. */
void send_compiled(fixture_t *fixture, uint64_t function);
tow_function_t *compile(fixture_t *fixture, tow_slice_t *slice);
tow_program_t *call_of(fixture_t *fixture, tow_function_t *function,
                       tow_slice_t *slice);
void send_done(fixture_t *fixture, uint64_t run);
void send_failed(fixture_t *fixture, uint64_t run, tow_code_t code,
                 const char *text);
void send_put_done(fixture_t *fixture, uint64_t object,
                   const tow_msg_failure_t *failure);
tow_status_t start_upload(tow_slice_t *slice, const void *bytes,
                          size_t shard_bytes, tow_array_t **out_array);
/* An object of one row, settled. */
tow_array_t *make_array(fixture_t *fixture, tow_slice_t *slice);
/* Counts calls, and records the last code. */
typedef struct calls {
    int count;
    tow_code_t code;
} calls_t;

tow_callback_t *make_callback(calls_t *calls);
void send_get_done(fixture_t *fixture, uint64_t request, const void *bytes,
                   size_t size, const tow_msg_failure_t *failure);

/* -- Operations under way -------------------------------------------------- */

extern uint8_t large[100000];
/* Opens both shards of an upload in the controller's own memory. */
void send_put_opened(fixture_t *fixture, uint64_t object);
/* A run, an upload, and downloads of both kinds, all without an answer. */
typedef struct operations {
    tow_slice_t *slice;
    tow_function_t *function;
    tow_array_t *x, *y, *upload, *wide;
    uint8_t *bytes;
    calls_t run, small, large_get;
} operations_t;

void start_operations(fixture_t *fixture, operations_t *operations);
void release_operations(operations_t *operations);
void expect_notified(const operations_t *operations, tow_code_t code);

#endif /* TOW_CLIENT_FIXTURE_TESTING_IMPL_H_ */
