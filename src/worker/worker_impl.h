/* Internals of a worker.
 *
 * Every record with an outstanding callback is on a list of the worker until
 * the callback has arrived: loads, puts, gets, lanes. When a session ends, all
 * of them are cancelled (worker_*_on_disconnect), and worker_settle checks
 * whether the lists are empty. */
#ifndef TOW_WORKER_WORKER_IMPL_H_
#define TOW_WORKER_WORKER_IMPL_H_

#include "base/arena.h"
#include "base/invariant.h"
#include "base/list.h"
#include "base/map.h"
#include "base/pool.h"
#include "base/vec.h"
#include "device/time_list.h"
#include "worker/block_cache.h"
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
    uint64_t applied;     /* the number of the last message that was applied */
    uint64_t direct_next; /* the number of the controller's next message */
    tow_list_t held;      /* of held_t, owned: messages behind relayed grants */
    size_t held_bytes;
    tow_map_t
        passed; /* number -> passed_t, owned: grants ahead of their turn */
    tow_map_t routes;        /* run -> the process to report it to */
    tow_map_t partners;      /* processes that relayed to us, or we to them */
    tow_map_t batches;       /* run -> report_batch_t, owned */
    tow_list_t open_batches; /* batches with a report, oldest first */
    tow_timer_t timer;       /* for them */
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
    int64_t
        refusal_logged_ns; /* last logged refusal; 0: none since it joined */
    bool is_closing;
    tow_closed_t closed;
    tow_post_t closing; /* calls `closed` in a turn of its own */

    tow_shard_store_t *shard_store; /* owned */
    tow_dataflow_t *dataflow;       /* owned */
    tow_arena_t arena;              /* of the current message or report */

    tow_transfer_engine_t *transfer_engine; /* owned */
    tow_map_t peers;                        /* by process, of owned peer_t */
    tow_list_t peer_sessions;               /* of peer_session_t, owned */
    size_t peer_session_count;
    tow_session_port_t *port; /* accepts other workers; NULL: none */
    bool is_port_closing;
    tow_list_t peer_writes; /* of peer_write_t, from the pool */
    tow_pool_t peer_write_pool;
    TOW_VEC(uint32_t)
    unknown_peers;           /* unknown processes that transfers were for */
    tow_timer_t peer_timer;  /* reports disconnected peers */
    tow_timer_t peer_redial; /* of peers whose sessions broke */
    tow_map_t blobs;         /* number -> blob_t, owned */
    uint64_t blob_bytes;

    relay_t relay;

    tow_list_t loads; /* of load_t, owned */
    size_t load_count;

    tow_map_t puts_by_object; /* those that are not settled */
    tow_list_t puts;          /* of put_t, owned */
    size_t put_count;
    uint64_t put_bytes, put_bytes_total;
    tow_block_cache_t block_cache; /* memory for their shards */

    tow_list_t gets;         /* of get_t, owned: under way */
    tow_list_t waiting_gets; /* for memory; in order */
    size_t get_count;        /* of both */
    uint64_t get_bytes, get_bytes_total;

    tow_map_t spills_by_object; /* in host memory, or leaving */
    tow_list_t spills;          /* of spill_t, owned */
    size_t spill_count;
    uint64_t spill_bytes; /* of host memory */

    tow_list_t calls; /* of tow_worker_callback_t, lent: unanswered */
    size_t call_count;
    uint64_t call_number;

    tow_list_t lanes; /* of lane_t, owned; most recently used last */
    size_t lane_count;

    tow_list_t outbox; /* of messages that did not fit into the session */
    size_t outbox_bytes;
    tow_status_t end_cause; /* owned; why the session will end */
    tow_timer_t end_timer;  /* ends it in a turn of its own */
};

/* -- worker.c: sessions with the controller, and sending ------------------- */

/* Sends it over the session, or queues it behind earlier messages. */
void worker_send(tow_worker_t *worker, uint32_t type, const tow_body_t *body);
/* Ends the session in a turn of its own: the controller gets the cause, and all
 * state is discarded. Until then nothing more is sent. */
void worker_end_session_soon(tow_worker_t *worker, tow_status_t take_cause);
/* Call after an operation has ended. After the last one of an old session the
 * worker dials again. */
void worker_settle(tow_worker_t *worker);
static inline bool worker_is_joined(const tow_worker_t *worker)
{
    return worker->state == TOW_WORKER_JOINED;
}

/* -- messages.c: messages of the controller -------------------------------- */

/* An error ends the session. */
tow_status_t worker_handle_message(tow_worker_t *worker,
                                   const tow_message_t *message) TOW_MUST_USE;
/* Handles a held message. */
tow_status_t worker_handle_held(tow_worker_t *worker, uint32_t type,
                                const uint8_t *bytes, size_t size) TOW_MUST_USE;
tow_status_t worker_take_grant(tow_worker_t *worker,
                               const tow_msg_grant_t *message) TOW_MUST_USE;
void worker_report_finished(void *context, const tow_finished_runs_t *finished);
void worker_peers_on_disconnect(tow_worker_t *worker, tow_status_t cause);

/* -- peer.c: other workers ------------------------------------------------- */

tow_status_t worker_peers_open(tow_worker_t *worker, const char *address)
    TOW_MUST_USE;
/* The address that we announce; "": none. */
const char *worker_peers_listen_address(const tow_worker_t *worker);
/* For the transfer engine. */
tow_transfer_sent_t worker_peer_send(void *context, uint32_t process,
                                     uint32_t type, const tow_body_t *body);
tow_status_t worker_peer_write(void *context, tow_transfer_write_t *write)
    TOW_MUST_USE;
tow_status_t worker_peer_add(tow_worker_t *worker,
                             const tow_msg_peer_t *message) TOW_MUST_USE;
/* Operations with it fail. False: it is not known. */
bool worker_peer_remove(tow_worker_t *worker, uint32_t process,
                        tow_status_t cause);
/* We have joined a cluster: accepts or refuses waiting peers. */
void worker_peers_joined(tow_worker_t *worker);
void worker_peer_sessions_on_disconnect(tow_worker_t *worker,
                                        tow_status_t cause);
void worker_peers_close(tow_worker_t *worker);
void worker_peers_discard(tow_worker_t *worker);
void worker_peers_free(tow_worker_t *worker);

/* -- relay.c: grants that other workers relay ------------------------------ */

void worker_relay_open(tow_worker_t *worker);
/* We have joined: later messages have the numbers after this one. */
void worker_relay_begin(tow_worker_t *worker, uint64_t sequence);
/* A message before the controller's next one has not been applied yet. */
static inline bool worker_relay_is_behind(const tow_worker_t *worker)
{
    return worker->relay.direct_next != worker->relay.applied + 1 ||
           tow_dataflow_is_blocked(worker->dataflow);
}
tow_status_t worker_relay_hold(tow_worker_t *worker,
                               const tow_message_t *message) TOW_MUST_USE;
/* Call after a message was applied: applies those that waited for it. */
tow_status_t worker_relay_drain(tow_worker_t *worker) TOW_MUST_USE;
/* The executor takes grants again: held messages follow. */
void worker_relay_unblocked(void *context);
tow_status_t worker_relay_sequence(tow_worker_t *worker,
                                   const tow_msg_sequence_t *message)
    TOW_MUST_USE;
tow_status_t worker_relay_grant(tow_worker_t *worker,
                                const tow_msg_relay_grant_t *message)
    TOW_MUST_USE;
/* From the controller, which does not know whether a relay passed it on. */
tow_status_t worker_relay_resend(tow_worker_t *worker,
                                 const tow_msg_forwarded_grant_t *message)
    TOW_MUST_USE;
/* From another worker: an error is its own. */
tow_status_t worker_relay_passed(tow_worker_t *worker, uint32_t process,
                                 const tow_msg_forwarded_grant_t *message)
    TOW_MUST_USE;
tow_status_t worker_relay_passed_done(tow_worker_t *worker, uint32_t process,
                                      const tow_msg_forwarded_done_t *message)
    TOW_MUST_USE;
/* Reports for the controller itself: space for all. */
typedef struct unrelayed {
    uint64_t *runs;
    tow_device_time_t *times; /* of runs */
    tow_run_progress_t *progress;
    size_t run_count, progress_count;
} unrelayed_t;

/* Reports runs to other workers. What is for the controller itself is left in
 * `rest`, in its arrays. */
void worker_relay_report(tow_worker_t *worker,
                         const tow_finished_runs_t *finished,
                         unrelayed_t *rest);
/* The controller itself has granted the next piece of the run. */
void worker_relay_direct(tow_worker_t *worker, uint64_t run);
/* Messages between us and that worker may be lost. */
void worker_relay_on_peer_disconnect(tow_worker_t *worker, uint32_t process);
void worker_relay_on_disconnect(tow_worker_t *worker);
void worker_relay_free(tow_worker_t *worker);
size_t worker_relay_count(const tow_worker_t *worker);

/* -- relay_batch.c: reports that a relay combines --------------------------- */

/* For a run, or its next piece, that we forward. */
tow_status_t worker_batch_start(tow_worker_t *worker,
                                const tow_msg_relay_grant_t *message)
    TOW_MUST_USE;
void worker_batch_timer(tow_timer_t *timer);
/* The run has succeeded on that worker, which may be our own. */
void worker_batch_report(tow_worker_t *worker, uint64_t run, uint32_t process,
                         const tow_device_time_t *time);
void worker_batch_progress(tow_worker_t *worker,
                           const tow_run_progress_t *progress,
                           uint32_t process);
/* We report it to the controller ourselves: it failed, or came directly. */
void worker_batch_end(tow_worker_t *worker, uint64_t run);
/* That worker reports to the controller from now on. */
void worker_batches_on_disconnect(tow_worker_t *worker, uint32_t process);
tow_status_t worker_batches_check(const tow_worker_t *worker) TOW_MUST_USE;

/* -- load.c: blobs, executables, programs ---------------------------------- */

tow_status_t worker_take_blob(tow_worker_t *worker, uint64_t number,
                              void *take_bytes, size_t size) TOW_MUST_USE;
/* The caller owns the bytes; tow_free. */
tow_status_t worker_claim_blob(tow_worker_t *worker, uint64_t number,
                               blob_t *out_blob) TOW_MUST_USE;
tow_status_t worker_load(tow_worker_t *worker, const tow_msg_load_t *message)
    TOW_MUST_USE;
void worker_unload(tow_worker_t *worker, uint64_t executable);
tow_status_t worker_load_program(tow_worker_t *worker,
                                 const tow_msg_program_load_t *message)
    TOW_MUST_USE;
void worker_loads_on_disconnect(tow_worker_t *worker);
void worker_loads_discard(tow_worker_t *worker);

/* -- put.c ----------------------------------------------------------------- */

void worker_put(tow_worker_t *worker, const tow_msg_shard_put_t *message);
/* The object was released before it was complete. False: no such put. */
bool worker_put_cancel(tow_worker_t *worker, uint64_t object);
void worker_puts_on_disconnect(tow_worker_t *worker);
void worker_puts_discard(tow_worker_t *worker);

/* -- get.c ----------------------------------------------------------------- */

void worker_get(tow_worker_t *worker, const tow_msg_shard_get_t *message);
void worker_gets_on_disconnect(tow_worker_t *worker);
void worker_gets_discard(tow_worker_t *worker);

/* -- spill.c --------------------------------------------------------------- */

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
/* The object is released, on devices or in host memory. */
void worker_spill_release(tow_worker_t *worker, uint64_t object);
void worker_spills_on_disconnect(tow_worker_t *worker);
void worker_spills_discard(tow_worker_t *worker);

/* -- callback.c: callbacks to clients -------------------------------------- */

tow_status_t worker_callback_done(tow_worker_t *worker,
                                  const tow_msg_callback_done_t *message)
    TOW_MUST_USE;
/* Those of one gang, or all. `cause` is lent. */
void worker_callbacks_abort(tow_worker_t *worker, uint64_t gang_id,
                            tow_status_t cause);
void worker_callbacks_on_disconnect(tow_worker_t *worker, tow_status_t cause);

/* -- lane.c ---------------------------------------------------------------- */

/* A write over a lane to a client or another worker. */
typedef struct delivery {
    tow_write_t write;
    struct lane *lane;
    tow_list_t in_lane; /* while the lane is full */
    /* The caller sets `write.shared`; NULL if the bytes may not be shared. */
    void (*done)(struct delivery *delivery, tow_status_t take_status);
} delivery_t;

/* `done` follows in a turn of its own, unless this fails. */
tow_status_t worker_deliver(tow_worker_t *worker,
                            const tow_msg_lane_target_t *target,
                            delivery_t *delivery) TOW_MUST_USE;
/* The process at that address has disconnected: writes to it end now. */
void worker_lane_cut(tow_worker_t *worker, const ProtobufCBinaryData *address);
void worker_lanes_on_disconnect(tow_worker_t *worker);
void worker_lanes_discard(tow_worker_t *worker);

/* -- report.c -------------------------------------------------------------- */

void worker_report(tow_worker_t *worker, const tow_msg_report_get_t *message);

/* -- Invariants: see tow_worker_check -------------------------------------- */

tow_status_t worker_relay_check(const tow_worker_t *worker) TOW_MUST_USE;
tow_status_t worker_peers_check(const tow_worker_t *worker) TOW_MUST_USE;
tow_status_t worker_callbacks_check(const tow_worker_t *worker) TOW_MUST_USE;
tow_status_t worker_loads_check(const tow_worker_t *worker) TOW_MUST_USE;
tow_status_t worker_puts_check(const tow_worker_t *worker) TOW_MUST_USE;
tow_status_t worker_gets_check(const tow_worker_t *worker) TOW_MUST_USE;
tow_status_t worker_spills_check(const tow_worker_t *worker) TOW_MUST_USE;
tow_status_t worker_lanes_check(const tow_worker_t *worker) TOW_MUST_USE;

#endif /* TOW_WORKER_WORKER_IMPL_H_ */
