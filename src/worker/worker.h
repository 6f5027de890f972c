/* A worker: the devices of one process, in the hands of a controller.
 *
 * It dials the controller, says what it has, and then does what it is told, in
 * the order of the session: loads executables and programs, applies grants
 * (src/dataflow), keeps objects (store/shelf.h), takes bytes from clients and
 * gives them back over lanes. docs/spine.md has the protocol.
 *
 * When the controller is gone the worker aborts and drops everything, waits
 * until its devices are quiet, and dials again, for ever. What the controller
 * sends is checked; what cannot be understood ends the session, never the
 * process.
 *
 * A state machine over tow_env: it runs in `net` with real drivers and in `sim`
 * with simulated ones. How the members of a gang find each other is its owner's
 * business: worker/gangs.h for real ones, the fabric for simulated ones. */
#ifndef TOW_WORKER_WORKER_H_
#define TOW_WORKER_WORKER_H_

#include <stdbool.h>
#include <stdint.h>

#include "base/list.h"
#include "base/macros.h"
#include "base/status.h"
#include "dataflow/dataflow.h"
#include "device/device.h"
#include "env/env.h"
#include "session/session.h"
#include "store/shelf.h"
#include "wire/message.h"

typedef struct tow_worker tow_worker_t;

typedef struct tow_room {
    void *data;
    size_t size;
} tow_room_t;

/* Another worker of the cluster. Lent for the callback. */
typedef struct tow_worker_peer {
    uint32_t process;
    uint32_t device_count;
    const char *name;
    const char *host;
    const void *lane_address;
    size_t lane_address_size; /* 0: it has no data plane */
    tow_region_key_t mail;
} tow_worker_peer_t;

/* A device of ours that has waited in a collective for long. */
typedef struct tow_worker_wait {
    int64_t device;
    uint64_t gang_id;
    uint64_t waited_ns;
    size_t missing_count; /* of members that have not come, the first few */
    int64_t missing[TOW_WAIT_MISSING_MAX];
} tow_worker_wait_t;

/* What the owner wants to know. All may be NULL; all run in turns of the env,
 * and must not close the worker. */
typedef struct tow_worker_hooks {
    void (*joined)(void *context, uint64_t cluster);
    /* Everything of that session is dropped now, or about to be: peers have
     * been told as gone. `cause` is lent. */
    void (*lost)(void *context, tow_status_t cause);
    /* The controller, or who answers at its address, does not let us in: another
     * token or version, or a name, number or device that another worker has. We
     * dial again for ever; the owner may know better. `cause` is lent. */
    void (*refused)(void *context, tow_status_t cause);
    /* An error fails nothing here: gangs with that peer will. */
    void (*peer_added)(void *context, const tow_worker_peer_t *peer);
    void (*peer_gone)(void *context, uint32_t process, tow_status_t cause);
    /* Our members of this gang shall give up, in collectives that the driver
     * does not know. `cause` is lent. */
    void (*abort_gang)(void *context, uint64_t gang_id, tow_status_t cause);
    /* Which of our devices wait in collectives that the driver does not know, and
     * for whom; returns how many. */
    size_t (*waits)(void *context, tow_worker_wait_t *waits, size_t capacity);
    void *context; /* lent */
} tow_worker_hooks_t;

/* Zero: the numbers of tuning.h. */
typedef struct tow_worker_limits {
    uint32_t run_count_max;
    uint32_t step_count_max;
    size_t object_count_max;
    uint64_t put_bytes_max;
    uint64_t get_bytes_max;
    uint64_t host_bytes_max; /* for spilled objects; 0: none are */
    tow_session_limits_t session;
} tow_worker_limits_t;

typedef struct tow_worker_options {
    const char *controller;      /* its address; copied */
    const char *controller_name; /* NULL: whoever the handshake lets in */
    const char *host;            /* this machine's name; copied */
    uint32_t process;            /* see device/xla_cpu/xla_cpu.h */
    tow_driver_t *driver;        /* lent, outlives the worker; open */
    /* Lent, outlives the worker. NULL: it runs no host functions. */
    tow_host_runner_t *host_runner;
    /* Where other workers write to us; id 0: nowhere. */
    tow_region_key_t mail;
    tow_worker_hooks_t hooks;
    tow_worker_limits_t limits;
    bool may_run_inline; /* see tow_dataflow_options_t */
    bool may_linger_always;
    /* The controller is on this thread, too, and tells its trace events. */
    bool has_controller;
    const char *island; /* copied; NULL: the default */
    /* Where other workers come in, to be listened at; lent for the call. NULL:
     * nowhere, and nobody can send it shards. */
    const char *door;
    /* Whether what clients get over lanes carries a checksum of ours. */
    tow_write_check_t check;
} tow_worker_options_t;

/* Begins to dial. The env's name is the worker's. INVALID_ARGUMENT for options
 * or an address that make no sense. */
tow_status_t tow_worker_open(tow_env_t *env,
                             const tow_worker_options_t *options,
                             tow_worker_t **out_worker) TOW_MUST_USE;
/* Leaves the cluster (`reason` is lent and may be TOW_OK), drops all, waits for
 * the devices; then frees the worker and calls `closed`. No hook runs after
 * `lost`. */
void tow_worker_close(tow_worker_t *worker, tow_status_t reason,
                      tow_closed_t closed);
/* For a simulated process that has died: frees the worker and calls nobody. Its
 * driver goes by tow_sim_device_driver_crash, before or after. */
void tow_worker_abandon(tow_worker_t *worker);

/* -- Functions of clients ------------------------------------------------------- */

typedef struct tow_client_call tow_client_call_t;

/* A computation wants a function that its client has. Owned by the caller until
 * `done`; all that it points to is lent as long. */
struct tow_client_call {
    uint64_t gang_id; /* of the run that it is part of */
    uint64_t function;
    int64_t device;
    const tow_bytes_t *arguments; /* dense, row major */
    size_t argument_count;
    /* Where the results go. */
    const tow_room_t *results;
    size_t result_count;
    /* An error has the words of whoever failed: the client's, or ours when the
     * gang is aborted or the cluster lost. */
    void (*done)(tow_client_call_t *call, tow_status_t take_status);
    tow_list_t node_; /* these belong to the worker */
    uint64_t number_;
};

/* Asks the client whose run it is. `done` runs once, perhaps inside the call. */
void tow_worker_call_client(tow_worker_t *worker, tow_client_call_t *call);

typedef enum tow_worker_state {
    TOW_WORKER_WAITING, /* to dial again */
    TOW_WORKER_DIALLING,
    TOW_WORKER_JOINING, /* the controller has not said yes yet */
    TOW_WORKER_JOINED,
    TOW_WORKER_DRAINING, /* until all of the last session is gone */
    TOW_WORKER_CLOSING,
} tow_worker_state_t;

const char *tow_worker_state_name(tow_worker_state_t state);

typedef struct tow_worker_stats {
    tow_worker_state_t state;
    uint64_t cluster;       /* of this or the last session; 0: none yet */
    uint64_t session_count; /* that were joined */
    tow_shelf_totals_t shelf;
    tow_dataflow_stats_t dataflow;
    tow_mover_stats_t mover;
    size_t load_count, put_count, get_count; /* under way */
    uint64_t put_bytes, get_bytes;           /* of host memory */
    size_t spill_count;   /* objects in host memory, or on their way */
    uint64_t spill_bytes; /* of it */
    size_t lane_count, peer_count, blob_count;
    size_t line_count;  /* sessions with other workers */
    size_t relay_count; /* what waits in, or for, a relay */
    size_t outbox_bytes;
} tow_worker_stats_t;
tow_worker_stats_t tow_worker_stats(const tow_worker_t *worker);

#endif /* TOW_WORKER_WORKER_H_ */
