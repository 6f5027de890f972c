/* Clients: their sessions, and the tables of what they have named. */
#ifndef TOW_CONTROLLER_CLIENT_IMPL_H_
#define TOW_CONTROLLER_CLIENT_IMPL_H_

#include "base/list.h"
#include "base/map.h"
#include "controller/types_impl.h"
#include "device/device.h"

typedef struct tow_ctl_clients {
    tow_list_t list;        /* open and connected */
    uint32_t number;        /* of the last; never reused */
    tow_timer_t idle_timer; /* runs while there is none: idle_timeout_ns */
    tow_device_time_t disconnected_time; /* of clients that have disconnected */
} tow_ctl_clients_t;

struct tow_ctl_client {
    tow_controller_t *controller;
    tow_session_t *session; /* NULL: disconnected */
    uint32_t number;
    char *name; /* owned */
    tow_list_t node;
    tow_map_t slices;    /* id -> tow_ctl_slice_t, owned */
    tow_map_t functions; /* id -> tow_ctl_function_t, owned */
    tow_map_t programs;  /* id -> tow_ctl_program_t, counted */
    tow_map_t blobs;     /* number -> tow_ctl_blob_t, owned */
    /* Completions of this turn. */
    tow_ctl_id_vec_t done_runs;
    TOW_VEC(tow_ctl_run_t *) failed_runs; /* owned until they are sent */
    uint32_t run_count;                   /* not finished */
    uint64_t ended_run_count;             /* finished, with or without error */
    tow_device_time_t time;               /* reported, of all its runs */
    uint32_t get_count;                   /* not answered */
    uint32_t put_count;                   /* not answered */
    uint64_t put_bytes;      /* of those, bytes that came in messages */
    uint32_t report_count;   /* reports that are not answered */
    uint32_t callback_count; /* calls that it has not answered */
    uint64_t stall_seen;     /* last tick of the stall watchdog */
    tow_status_t fault; /* owned: its protocol violation; ends the session */
    uint64_t membership_seen; /* when its slices were last remapped */
    uint64_t lowered_number;  /* counts programs that were lowered again */
};

tow_status_t tow_ctl_client_create(tow_controller_t *controller,
                                   tow_session_t *session, const char *name,
                                   tow_ctl_client_t **out_client) TOW_MUST_USE;
/* Sends, or ends the session at the end of the turn if the send queue is full.
 */
void tow_ctl_client_send(tow_ctl_client_t *client, uint32_t type,
                         const tow_body_t *body);
/* It violated the protocol: its session ends with this at the end of the turn,
 * and it is sent nothing any more. Only the first violation counts. */
void tow_ctl_client_fault(tow_ctl_client_t *client, tow_status_t take_status);
void tow_ctl_client_message(tow_ctl_client_t *client,
                            const tow_message_t *message);
void tow_ctl_client_blob(tow_ctl_client_t *client, uint64_t number,
                         void *take_bytes, size_t size);
void tow_ctl_client_on_disconnect(tow_ctl_client_t *client, tow_status_t cause);
/* Call when the list of clients has changed. */
void tow_ctl_clients_watch_idle(tow_controller_t *controller);
void tow_ctl_clients_on_idle_timer(tow_timer_t *timer);
void tow_ctl_clients_close(tow_controller_t *controller, tow_status_t reason);
/* For a simulated process that has crashed: makes no calls to the env. */
void tow_ctl_clients_discard(tow_controller_t *controller);
void tow_ctl_clients_destroy(tow_controller_t *controller);
/* A new id of the client's: in range, and not taken. Else a fault. */
bool tow_ctl_client_check_id(tow_ctl_client_t *client, uint64_t id,
                             bool is_taken, const char *what);
void tow_ctl_client_check(const tow_ctl_client_t *client);

#endif /* TOW_CONTROLLER_CLIENT_IMPL_H_ */
