/* The insides of a worker.
 *
 * Whatever has a callback outstanding is on a list of the worker until that has
 * come: loads, puts, gets, lanes. When a session ends they are all told to end
 * (worker_*_drop), and worker_settle looks whether the lists are empty. */
#ifndef TOW_WORKER_WORKER_IMPL_H_
#define TOW_WORKER_WORKER_IMPL_H_

#include "base/arena.h"
#include "base/list.h"
#include "base/map.h"
#include "base/pool.h"
#include "base/vec.h"
#include "worker/stash.h"
#include "worker/tuning.h"
#include "worker/worker.h"

typedef struct put put_t;
typedef struct get get_t;
typedef struct peer peer_t;
typedef struct spill spill_t;

typedef struct blob {
    void *bytes; /* owned */
    size_t size;
} blob_t;

/* See relay.c. */
typedef struct relay {
    uint64_t applied;     /* the number of the last thing that was done */
    uint64_t direct_next; /* of what the controller sends next */
    tow_list_t held;      /* of held_t, owned: what waits for passed grants */
    size_t held_bytes;
    tow_map_t passed;   /* number -> passed_t, owned: what waits for its turn */
    tow_map_t routes;   /* run -> who is told that it is done */
    tow_map_t partners; /* processes that we passed to, or that did to us */
    tow_map_t gathers;  /* run -> gather_t, owned */
    tow_list_t gathering; /* those that have begun, oldest first */
    tow_timer_t timer;    /* for them */
} relay_t;

struct tow_worker {
    tow_env_t *env;
    tow_worker_options_t options; /* strings are owned */
    tow_worker_state_t state;
    tow_session_t *session; /* NULL between sessions */
    bool is_session_closing;
    uint64_t cluster;
    uint64_t session_count;
    tow_timer_t redial;
    int64_t redial_delay_ns;
    int64_t complained_ns; /* when it last logged that it is not let in; 0: not
                              since it was */
    bool is_closing;
    tow_closed_t closed;
    tow_post_t closing; /* tells it in a turn of its own */

    tow_shelf_t *shelf;       /* owned */
    tow_dataflow_t *dataflow; /* owned */
    tow_arena_t arena;        /* of the message or report in hand */

    tow_mover_t *mover; /* owned */
    tow_map_t peers;    /* by process, of owned peer_t */
    tow_list_t lines;   /* of line_t, owned: sessions with other workers */
    size_t line_count;
    tow_session_port_t *port; /* where other workers come in; NULL: nowhere */
    bool is_port_closing;
    tow_list_t peer_writes; /* of peer_write_t, from the pool */
    tow_pool_t peer_write_pool;
    TOW_VEC(uint32_t) strangers; /* that the mover spoke to */
    tow_timer_t peer_timer;      /* tells it who is lost */
    tow_timer_t peer_redial;     /* those whose lines broke */
    tow_map_t blobs;             /* number -> blob_t, owned */
    uint64_t blob_bytes;

    relay_t relay;

    tow_list_t loads; /* of load_t, owned */
    size_t load_count;

    tow_map_t puts_by_object; /* those that are not settled */
    tow_list_t puts;          /* of put_t, owned */
    size_t put_count;
    uint64_t put_bytes;
    tow_stash_t stash; /* memory for their shards */

    tow_list_t gets;         /* of get_t, owned: under way */
    tow_list_t waiting_gets; /* for memory; in order */
    size_t get_count;        /* of both */
    uint64_t get_bytes;

    tow_map_t spills_by_object; /* that are away, or leaving */
    tow_list_t spills;          /* of spill_t, owned */
    size_t spill_count;
    uint64_t spill_bytes; /* of host memory */

    tow_list_t calls; /* of tow_client_call_t, lent: not answered */
    size_t call_count;
    uint64_t call_number;

    tow_list_t lanes; /* of lane_t, owned; last used last */
    size_t lane_count;

    tow_list_t outbox; /* of letters that the session did not take */
    size_t outbox_bytes;
    tow_status_t doom;      /* owned; why the session will end */
    tow_timer_t doom_timer; /* ... in a turn of its own */
};

/* -- worker.c: life, and what leaves ------------------------------------------ */

/* Queues it on the session, or behind what waits already. */
void worker_send(tow_worker_t *worker, uint32_t type, const tow_body_t *body);
/* The session cannot go on: in a turn of its own the controller is told why, and
 * everything is dropped. Until then nothing more is sent. */
void worker_end_soon(tow_worker_t *worker, tow_status_t take_cause);
/* Something has ended. If that was the last of an old session, goes on. */
void worker_settle(tow_worker_t *worker);
static inline bool worker_is_joined(const tow_worker_t *worker)
{
    return worker->state == TOW_WORKER_JOINED;
}

/* -- serve.c: what arrives ----------------------------------------------------- */

/* An error ends the session. */
tow_status_t worker_serve(tow_worker_t *worker, const tow_message_t *message)
    TOW_MUST_USE;
/* One that waited, by itself. */
tow_status_t worker_serve_held(tow_worker_t *worker, uint32_t type,
                               const uint8_t *bytes, size_t size) TOW_MUST_USE;
tow_status_t worker_take_grant(tow_worker_t *worker,
                               const tow_msg_grant_t *message) TOW_MUST_USE;
void worker_report_finished(void *context, const tow_finished_runs_t *finished);
void worker_peers_drop(tow_worker_t *worker, tow_status_t cause);

/* -- peer.c: other workers ------------------------------------------------------- */

tow_status_t worker_peers_open(tow_worker_t *worker, const char *door)
    TOW_MUST_USE;
/* Where others come in; "": nowhere. */
const char *worker_peers_door(const tow_worker_t *worker);
/* For the mover. */
tow_mover_sent_t worker_peer_send(void *context, uint32_t process,
                                  uint32_t type, const tow_body_t *body);
tow_status_t worker_peer_write(void *context, tow_mover_write_t *write)
    TOW_MUST_USE;
tow_status_t worker_peer_add(tow_worker_t *worker,
                             const tow_msg_peer_t *message) TOW_MUST_USE;
/* What is under way with it fails. False: it is not known. */
bool worker_peer_remove(tow_worker_t *worker, uint32_t process,
                        tow_status_t cause);
/* We are in a cluster: who waited at the door comes in, or does not. */
void worker_peers_joined(tow_worker_t *worker);
void worker_peer_sessions_drop(tow_worker_t *worker, tow_status_t cause);
void worker_peers_close(tow_worker_t *worker);
void worker_peers_forget(tow_worker_t *worker);
void worker_peers_free(tow_worker_t *worker);

/* -- relay.c: grants that come by other workers -------------------------------- */

void worker_relay_open(tow_worker_t *worker);
/* We have joined: what comes has the numbers after this one. */
void worker_relay_begin(tow_worker_t *worker, uint64_t sequence);
/* Something before the controller's next message is not here yet. */
static inline bool worker_relay_is_behind(const tow_worker_t *worker)
{
    return worker->relay.direct_next != worker->relay.applied + 1 ||
           tow_dataflow_is_blocked(worker->dataflow);
}
tow_status_t worker_relay_hold(tow_worker_t *worker,
                               const tow_message_t *message) TOW_MUST_USE;
/* After something was done: what waited for it. */
tow_status_t worker_relay_drain(tow_worker_t *worker) TOW_MUST_USE;
/* The executor takes grants again: what was held back follows. */
void worker_relay_unblocked(void *context);
tow_status_t worker_relay_sequence(tow_worker_t *worker,
                                   const tow_msg_sequence_t *message)
    TOW_MUST_USE;
tow_status_t worker_relay_grant(tow_worker_t *worker,
                                const tow_msg_relay_grant_t *message)
    TOW_MUST_USE;
/* From the controller, who does not know whether a relay passed it. */
tow_status_t worker_relay_again(tow_worker_t *worker,
                                const tow_msg_passed_grant_t *message)
    TOW_MUST_USE;
/* From another worker: an error is its own. */
tow_status_t worker_relay_passed(tow_worker_t *worker, uint32_t process,
                                 const tow_msg_passed_grant_t *message)
    TOW_MUST_USE;
tow_status_t worker_relay_passed_done(tow_worker_t *worker, uint32_t process,
                                      const tow_msg_passed_done_t *message)
    TOW_MUST_USE;
/* Reports those that go elsewhere, and leaves in `out_runs` (room for all) those
 * that are for the controller itself; returns how many. */
size_t worker_relay_report(tow_worker_t *worker,
                           const tow_finished_runs_t *finished,
                           uint64_t *out_runs);
/* What went between us and that one may be lost. */
void worker_relay_lost(tow_worker_t *worker, uint32_t process);
void worker_relay_drop(tow_worker_t *worker);
void worker_relay_free(tow_worker_t *worker);
size_t worker_relay_count(const tow_worker_t *worker);

/* -- load.c: blobs, executables, programs --------------------------------------- */

tow_status_t worker_take_blob(tow_worker_t *worker, uint64_t number,
                              void *take_bytes, size_t size) TOW_MUST_USE;
/* The bytes are the caller's; tow_free. */
tow_status_t worker_claim_blob(tow_worker_t *worker, uint64_t number,
                               blob_t *out_blob) TOW_MUST_USE;
tow_status_t worker_load(tow_worker_t *worker, const tow_msg_load_t *message)
    TOW_MUST_USE;
void worker_unload(tow_worker_t *worker, uint64_t executable);
tow_status_t worker_load_program(tow_worker_t *worker,
                                 const tow_msg_program_load_t *message)
    TOW_MUST_USE;
void worker_loads_drop(tow_worker_t *worker);
void worker_loads_forget(tow_worker_t *worker);

/* -- put.c ----------------------------------------------------------------------- */

void worker_put(tow_worker_t *worker, const tow_msg_shard_put_t *message);
/* The object was released before it was complete. False: it is no such put. */
bool worker_put_cancel(tow_worker_t *worker, uint64_t object);
void worker_puts_drop(tow_worker_t *worker);
void worker_puts_forget(tow_worker_t *worker);

/* -- get.c ----------------------------------------------------------------------- */

void worker_get(tow_worker_t *worker, const tow_msg_shard_get_t *message);
void worker_gets_drop(tow_worker_t *worker);
void worker_gets_forget(tow_worker_t *worker);

/* -- spill.c --------------------------------------------------------------------- */

/* A shard in host memory. Counted. */
typedef struct host_bytes {
    uint64_t reference_count;
    uint64_t size;
    tow_shape_t shape; /* of the shard */
    uint8_t bytes[];
} host_bytes_t;

void worker_host_bytes_release(tow_worker_t *worker, host_bytes_t *bytes);
void worker_spill(tow_worker_t *worker, const tow_msg_spill_t *message);
tow_status_t worker_unspill(tow_worker_t *worker,
                            const tow_msg_unspill_t *message) TOW_MUST_USE;
/* Lent; NULL: it is not in host memory. */
host_bytes_t *worker_spill_find(const tow_worker_t *worker, uint64_t object,
                                uint32_t shard);
/* The object goes, wherever it is. */
void worker_spill_release(tow_worker_t *worker, uint64_t object);
void worker_spills_drop(tow_worker_t *worker);
void worker_spills_forget(tow_worker_t *worker);

/* -- call.c: functions of clients -------------------------------------------------- */

tow_status_t worker_call_done(tow_worker_t *worker,
                              const tow_msg_callback_done_t *message)
    TOW_MUST_USE;
/* Those of one gang, or of all. `cause` is lent. */
void worker_calls_abort(tow_worker_t *worker, uint64_t gang_id,
                        tow_status_t cause);
void worker_calls_drop(tow_worker_t *worker, tow_status_t cause);

/* -- lane.c ---------------------------------------------------------------------- */

/* A write over a lane to a client. */
typedef struct delivery {
    tow_write_t write;
    struct lane *lane;
    tow_list_t in_lane; /* waits for room there */
    /* `write.lent` is the caller's to set; NULL if it is not to be lent. */
    void (*done)(struct delivery *delivery, tow_status_t take_status);
} delivery_t;

/* `done` follows in a turn of its own, unless this fails. */
tow_status_t worker_deliver(tow_worker_t *worker,
                            const tow_msg_lane_target_t *target,
                            delivery_t *delivery) TOW_MUST_USE;
/* Who is there is gone: what is being written there ends now. */
void worker_lane_cut(tow_worker_t *worker, const ProtobufCBinaryData *address);
void worker_lanes_drop(tow_worker_t *worker);
void worker_lanes_forget(tow_worker_t *worker);

/* -- report.c -------------------------------------------------------------------- */

void worker_report(tow_worker_t *worker, const tow_msg_report_get_t *message);

#endif /* TOW_WORKER_WORKER_IMPL_H_ */
