/* A simulated cluster for the controller's tests: the controller with a
 * compiler for simulated devices, and scripted workers and clients, which record
 * the messages that they receive. */
#ifndef TOW_CONTROLLER_FIXTURE_TESTING_IMPL_H_
#define TOW_CONTROLLER_FIXTURE_TESTING_IMPL_H_

#include "base/testing.h"

#include "base/alloc.h"
#include "base/arena.h"
#include "base/vec.h"
#include "controller/controller.h"
#include "device/compiler/direct.h"
#include "device/sim/sim_device.h"
#include "env/sim/sim.h"
#include "ir/graph.h"
#include "ir/lower.h"
#include "store/object_table.h"

#define PEERS_MAX    8
#define DEVICES      2 /* of a worker */
#define MEMORY_BYTES (1u << 20)
#define SECOND       1000000000ll
typedef struct received {
    uint32_t type;
    uint8_t *bytes; /* owned */
    size_t size;
} received_t;

/* A scripted worker or client. */
typedef struct peer {
    struct cluster *cluster;
    tow_sim_node_t *node;
    tow_session_t *session; /* NULL: none, or disconnected */
    char name[32];
    bool is_open;
    tow_arena_t arena; /* of the last message received */
    TOW_VEC(received_t) messages;
    size_t read_count;
    bool holds_loads;    /* does not answer loads automatically */
    bool answers_aborts; /* answers aborts automatically */
    uint64_t blob;       /* the last that arrived */
    void *blob_bytes;    /* owned */
    size_t blob_size;
    int disconnect_count;
    tow_code_t disconnect_code;
    char disconnect_message[512];
    uint32_t number; /* a client's */
} peer_t;

typedef struct cluster {
    tow_sim_t *sim;
    tow_sim_node_t *node;
    tow_controller_t *controller;
    tow_controller_options_t options;
    tow_driver_t *driver;
    tow_compiler_t *compiler;
    peer_t peers[PEERS_MAX];
    size_t peer_count;
    uint64_t host_bytes;  /* of workers that join, for spilled objects */
    bool receives_stalls; /* receives requests and reports about stalled runs */
    bool is_closed;
} cluster_fixture_t;

void must(tow_status_t status);
void run_for(cluster_fixture_t *cluster, int64_t span_ns);
void expect_part(const char *text, const char *part);

/* -- The controller's process ------------------------------------------------- */

/* -- Peers ---------------------------------------------------------------------- */

void send_message(peer_t *peer, uint32_t type, const tow_body_t *body);
uint64_t send_blob(peer_t *peer, const void *bytes, size_t size);
void answer_load(peer_t *peer, uint64_t executable, const char *failure);
void send_failed(peer_t *worker, uint64_t run, tow_code_t code,
                 const char *message);
void peer_disconnected(void *context, tow_session_t *session,
                       tow_status_t cause);
void peer_dial(peer_t *peer);
peer_t *peer_make(cluster_fixture_t *cluster, const char *name);
/* The process crashes, and the controller detects it. */
void peer_crash(peer_t *peer);
/* Closes its session. */
void peer_leave(peer_t *peer);
const received_t *next_message(peer_t *peer, uint32_t wanted);
/* The next message, which must be of this type. Valid until the next of this
 * peer. */
const tow_body_t *expect_message(peer_t *peer, uint32_t type);
void expect_no_message(peer_t *peer);
void discard_messages(peer_t *peer);
#define EXPECT(peer, kind, name) \
    ((const tow_msg_##name##_t *)expect_message((peer), TOW_MESSAGE_##kind))
void expect_failure(const tow_msg_failure_t *failure, tow_code_t code,
                    const char *part);
void expect_success(const tow_msg_failure_t *failure);

/* -- The cluster ------------------------------------------------------------------ */

void cluster_open(cluster_fixture_t *cluster);
void cluster_destroy(cluster_fixture_t *cluster);
void expect_nothing(const cluster_fixture_t *cluster);
/* All clients disconnect, and nothing is left of them. */
void cluster_close(cluster_fixture_t *cluster);

/* -- Workers ---------------------------------------------------------------------- */

void send_join_on(peer_t *peer, uint32_t process, size_t count,
                  const char *island);
void send_join(peer_t *peer, uint32_t process, size_t count);
peer_t *worker_make_on(cluster_fixture_t *cluster, uint32_t process,
                       const char *island);
peer_t *worker_make(cluster_fixture_t *cluster, uint32_t process);
void send_done(peer_t *worker, uint64_t run);

/* -- Clients ---------------------------------------------------------------------- */

peer_t *client_make(cluster_fixture_t *cluster, const char *name);
void send_slice(peer_t *client, uint64_t slice, uint32_t count);
void open_slice(peer_t *client, uint64_t slice, uint32_t count);
extern const char add_text[];
/* Reuses the memory of its argument. */
extern const char consuming_text[];
extern const char big_text[];
extern const char huge_text[];
void send_compile(peer_t *client, uint64_t function, uint64_t slice,
                  const char *text);
void compile(peer_t *client, uint64_t function, uint64_t slice,
             const char *text);
void send_program(peer_t *client, uint64_t program, const char *text);
void add_program(peer_t *client, uint64_t program, const char *text);
void refuse_program(peer_t *client, uint64_t program, const char *text,
                    tow_code_t code, const char *part);
extern const char one_add[];
extern const char donating[];
/* u8[size] on every device of a slice; not inlined without bytes. */
void send_put(peer_t *client, uint64_t object, uint64_t slice, size_t size,
              const void *bytes);
void send_run(peer_t *client, uint64_t run, uint64_t program, uint64_t argument,
              uint64_t first_result);
void send_get(peer_t *client, uint64_t request, uint64_t object,
              uint32_t shard);
void send_release(peer_t *client, uint64_t first, uint32_t count);
void send_cancel(peer_t *client, uint64_t run);
void expect_run_done(peer_t *client, uint64_t run);
void expect_run_failed(peer_t *client, uint64_t run, tow_code_t code,
                       const char *part);
/* Expects the grant of a client's run at a worker; returns its key. */
uint64_t expect_grant(peer_t *worker, const peer_t *client, uint64_t run);

#endif /* TOW_CONTROLLER_FIXTURE_TESTING_IMPL_H_ */
