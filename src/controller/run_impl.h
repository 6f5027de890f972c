/* Runs: from the client's message to its completion. */
#ifndef TOW_CONTROLLER_RUN_IMPL_H_
#define TOW_CONTROLLER_RUN_IMPL_H_

#include "base/list.h"
#include "base/map.h"
#include "controller/piece_impl.h"
#include "controller/types_impl.h"
#include "controller/unit_impl.h"
#include "device/time_list.h"

typedef struct tow_ctl_runs {
    tow_list_t list;       /* all that are not finished, oldest first */
    tow_list_t unsendable; /* granted, but could not be sent */
    tow_map_t by_key;      /* key -> tow_ctl_run_t */
    uint64_t gang_number;
    uint64_t mark_number;   /* of runs, on the objects that they name */
    uint64_t granted_count; /* units, ever */
    /* Workers of all granted runs, and the messages that took. */
    uint64_t granted_worker_count;
    uint64_t grant_message_count, done_message_count, abort_message_count;
    uint64_t again_message_count;
    tow_device_time_t time; /* reported, of all runs ever */
} tow_ctl_runs_t;

struct tow_ctl_run {
    tow_ctl_unit_t unit;
    tow_controller_t *controller;
    tow_ctl_client_t *client; /* NULL: disconnected */
    uint64_t id;              /* the client's */
    uint64_t key;
    uint64_t first_result; /* the client's id */
    int64_t granted_ns;
    int64_t stall_reported_s;   /* seconds that the client knows of */
    tow_ctl_program_t *program; /* counted */
    tow_list_t node;            /* in runs.list, or .unsendable */
    tow_list_t gets; /* that wait for the grant; then, those that failed */
    bool is_granted; /* at least in part */
    bool is_partly;  /* and some of it is still to be granted */
    bool is_aborted;
    bool uses_relays;
    uint32_t reporting_count; /* workers that have not reported */
    uint32_t failed_node;
    tow_device_time_t time;   /* of the workers that have reported */
    tow_status_t error;       /* owned: the first */
    tow_object_t **results;   /* held */
    bool *has_reported;       /* by worker of the program */
    tow_ctl_pieces_t *pieces; /* owned; NULL: it is granted whole, ... */
    tow_ctl_piece_t whole;    /* ... as this piece */
    tow_ctl_block_t *blocks;  /* one an argument, and one for loads */
    tow_ticket_link_t *links; /* if it spans islands */
    size_t argument_count;
    tow_object_t *arguments[]; /* held */
};

void tow_ctl_run_begin(tow_ctl_client_t *client, const tow_msg_run_t *message);
void tow_ctl_run_grant(tow_ctl_run_t *run);
void tow_ctl_run_refuse(tow_ctl_run_t *run, tow_status_t take_status);
void tow_ctl_run_cancel(tow_ctl_client_t *client,
                        const tow_msg_cancel_t *message);
/* Of a piece. Puts the keys of its arguments in `few`, or in the controller's
 * arena. False: no memory. */
#define RUN_FEW_ARGUMENTS 16
bool tow_ctl_run_fill_grant(const tow_ctl_run_t *run,
                            const tow_ctl_piece_t *piece,
                            uint64_t few[RUN_FEW_ARGUMENTS],
                            tow_msg_grant_t *out_grant);
/* Device time of the run on one or several workers, before they are reported. */
void tow_ctl_run_add_time(tow_ctl_run_t *run, const tow_device_time_t *time);
/* Device time that was reported with progress. Through a relay it may arrive
 * after all workers have reported the failure of the run, which has ended then:
 * the time still belongs to its client. */
void tow_ctl_progress_add_time(tow_controller_t *controller, uint64_t run,
                               const tow_device_time_t *time);
/* That worker of its program has finished its part, or failed; after the last
 * one the run is freed. */
void tow_ctl_run_report(tow_ctl_run_t *run, size_t index,
                        tow_status_t take_status, uint32_t node);
size_t tow_ctl_run_index_of(const tow_ctl_run_t *run,
                            const tow_ctl_worker_t *worker);
void tow_ctl_runs_done(tow_ctl_worker_t *worker, const tow_msg_done_t *message);
/* True: a run that has not ended makes its object. The get is answered with the
 * run's error when that ends, or with its own if the run succeeds. */
bool tow_ctl_run_take_failed_get(tow_ctl_get_t *get);
/* Ends those that could not be sent. True if there were any. */
bool tow_ctl_runs_end_unsendable(tow_controller_t *controller);
/* Sends the completions of this turn. */
void tow_ctl_runs_notify(tow_ctl_client_t *client);
void tow_ctl_runs_on_worker_disconnect(tow_controller_t *controller,
                                       tow_ctl_worker_t *worker,
                                       tow_status_t cause);
void tow_ctl_runs_on_client_disconnect(tow_ctl_client_t *client);
void tow_ctl_run_free(tow_ctl_run_t *run);
void tow_ctl_runs_destroy(tow_controller_t *controller);
void tow_ctl_run_check(const tow_ctl_run_t *run);

#endif /* TOW_CONTROLLER_RUN_IMPL_H_ */
