/* Workers: joining, sending, disconnecting. */
#ifndef TOW_CONTROLLER_WORKER_IMPL_H_
#define TOW_CONTROLLER_WORKER_IMPL_H_

#include "base/list.h"
#include "base/map.h"
#include "controller/types_impl.h"
#include "resource/resource.h"

typedef struct tow_ctl_workers {
    tow_list_t list;            /* joined and connected, in order of arrival */
    uint64_t membership_number; /* counts joins and disconnections */
    uint32_t join_count;        /* ever */
    tow_timer_t release_timer;  /* see TOW_RELEASE_DELAY_NS */
} tow_ctl_workers_t;

/* A worker's session. Counted by mappings, programs, gets and callbacks, which
 * may outlive it. */
struct tow_ctl_worker {
    tow_controller_t *controller;
    tow_session_t *session;       /* NULL: disconnected */
    tow_resource_worker_t *entry; /* borrowed; NULL: not joined yet, or gone */
    tow_ctl_place_t *place;       /* borrowed; NULL: as `entry` */
    uint32_t reference_count;
    uint32_t process;
    char *name; /* owned */
    tow_list_t node;
    tow_status_t fault; /* owned: its protocol violation; ends the session */
    uint64_t sequence;  /* number of the last command to it */
    bool needs_mark;    /* that command went through a relay */
    bool is_direct;     /* takes no part in relaying any more */
    tow_host_memory_t *memory; /* borrowed: for spilled objects */
    /* Releases of this turn, as ranges. */
    tow_ctl_id_vec_t release_firsts;
    tow_ctl_count_vec_t release_counts;
    /* How other workers reach it, for those that join later. */
    tow_msg_peer_t peer;
    void *peer_bytes; /* owned: what `peer` points to */
    tow_map_t blobs;  /* number -> tow_ctl_blob_t, owned */
};

tow_status_t tow_ctl_worker_join(tow_controller_t *controller,
                                 tow_session_t *session,
                                 const tow_msg_worker_join_t *join)
    TOW_MUST_USE;
void tow_ctl_worker_retain(tow_ctl_worker_t *worker);
void tow_ctl_worker_release(tow_ctl_worker_t *worker);
/* Sends, or ends the session at the end of the turn if the send queue is full.
 */
void tow_ctl_worker_send(tow_ctl_worker_t *worker, uint32_t type,
                         const tow_body_t *body);
/* It violated the protocol: its session ends with this at the end of the turn,
 * and it is sent nothing any more. Only the first violation counts. */
void tow_ctl_worker_fault(tow_ctl_worker_t *worker, tow_status_t take_status);
void tow_ctl_worker_message(tow_ctl_worker_t *worker,
                            const tow_message_t *message);
void tow_ctl_worker_on_disconnect(tow_ctl_worker_t *worker, tow_status_t cause);
/* At the end of a turn: sends the releases now, or starts the timer. */
void tow_ctl_worker_flush(tow_ctl_worker_t *worker);
/* Sends the releases now. */
void tow_ctl_worker_send_releases(tow_ctl_worker_t *worker);
void tow_ctl_workers_on_release_timer(tow_timer_t *timer);
void tow_ctl_workers_close(tow_controller_t *controller, tow_status_t reason);
/* For a simulated process that has crashed: makes no calls to the env. */
void tow_ctl_workers_discard(tow_controller_t *controller);
void tow_ctl_workers_destroy(tow_controller_t *controller);
void tow_ctl_worker_check(const tow_ctl_worker_t *worker);

#endif /* TOW_CONTROLLER_WORKER_IMPL_H_ */
