/* A worker: the devices of one process, under the control of a controller.
 *
 * It dials the controller, announces its devices, and then executes the
 * controller's messages in the order of the session: it loads executables and
 * programs, applies grants (src/dataflow), stores objects
 * (store/shard_store.h), and exchanges bytes with clients over lanes.
 * docs/protocol.md has the protocol.
 *
 * When the controller disconnects, the worker aborts and discards everything,
 * waits until its devices are quiet, and dials again, for ever. It checks every
 * message of the controller; an invalid message ends the session, never the
 * process.
 *
 * A state machine over tow_env: it runs in `net` with real drivers and in `sim`
 * with simulated ones. Its owner provides the communication between the members
 * of a gang: worker/gang_comm.h for real devices, the fabric for simulated
 * ones. */
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
#include "store/shard_store.h"
#include "wire/message.h"

typedef struct tow_worker tow_worker_t;

typedef struct tow_mutable_bytes {
    void *data;
    size_t size;
} tow_mutable_bytes_t;

/* Another worker of the cluster. Lent for the callback. */
typedef struct tow_worker_peer {
    uint32_t process;
    uint32_t device_count;
    const char *name;
    uint64_t memory; /* equal to ours if we share memory for gangs; 0: none */
    const void *lane_address;
    size_t lane_address_size; /* 0: it has no data plane */
    tow_region_key_t mail;    /* id 0: none */
} tow_worker_peer_t;

/* A device of ours that has waited in a collective for long. */
typedef struct tow_worker_wait {
    int64_t device;
    uint64_t gang_id;
    uint64_t waited_ns;
    size_t missing_count; /* the first few of the missing members */
    int64_t missing[TOW_WAIT_MISSING_MAX];
} tow_worker_wait_t;

/* Notifications for the owner. All may be NULL; all run in turns of the env,
 * and must not close the worker. */
typedef struct tow_worker_hooks {
    void (*joined)(void *context, uint64_t cluster);
    /* The session has ended. Its state is discarded now or soon, and its peers
     * have been reported as disconnected. `cause` is lent. */
    void (*disconnected)(void *context, tow_status_t cause);
    /* The controller, or the process at its address, refuses us: another token
     * or version, or a name, number or device that another worker has. The
     * worker dials again for ever; the owner may decide otherwise. `cause` is
     * lent. */
    void (*refused)(void *context, tow_status_t cause);
    /* An error here fails nothing: gangs with that peer will fail. */
    void (*peer_added)(void *context, const tow_worker_peer_t *peer);
    void (*peer_disconnected)(void *context, uint32_t process,
                              tow_status_t cause);
    /* Our members of this gang must give up, in collectives that the driver
     * does not know. `cause` is lent. */
    void (*abort_gang)(void *context, uint64_t gang_id, tow_status_t cause);
    /* Lists our devices that wait in collectives that the driver does not know,
     * and the members they wait for; returns the number. */
    size_t (*waits)(void *context, tow_worker_wait_t *waits, size_t capacity);
    void *context; /* lent */
} tow_worker_hooks_t;

/* Zero: the defaults of tuning.h. */
typedef struct tow_worker_limits {
    uint32_t run_count_max;
    uint32_t step_count_max;
    size_t object_count_max;
    uint64_t put_bytes_max;
    uint64_t get_bytes_max;
    uint64_t host_bytes_max; /* for spilled objects; 0: no spilling */
    tow_session_limits_t session;
} tow_worker_limits_t;

typedef struct tow_worker_options {
    const char *controller;      /* its address; copied */
    const char *name;            /* copied; NULL: the env's */
    bool is_name_assigned;       /* by a controller: see enrol.h */
    const char *controller_name; /* NULL: any that passes the handshake */
    const char *host;            /* this machine's name; copied */
    uint32_t process;            /* see device/xla_cpu/xla_cpu.h */
    tow_driver_t *driver;        /* lent, outlives the worker; open */
    /* Lent, outlives the worker. NULL: it runs no host functions. */
    tow_host_runner_t *host_runner;
    /* The region that other workers write to; id 0: none. */
    tow_region_key_t mail;
    /* A random number in the memory through which gangs of one host
     * communicate; 0: none. */
    uint64_t memory;
    tow_worker_hooks_t hooks;
    tow_worker_limits_t limits;
    bool may_run_inline; /* see tow_dataflow_options_t */
    bool may_linger_always;
    /* The controller runs on this thread too, and reports its trace events. */
    bool has_controller;
    const char *island; /* copied; NULL: the default */
    /* The address at which it accepts other workers; lent for the call. NULL:
     * none, so no worker can send it shards. */
    const char *listen_address;
    /* Whether bytes that clients get over lanes carry our checksum. */
    tow_write_check_t check;
} tow_worker_options_t;

/* Starts dialling. INVALID_ARGUMENT for invalid
 * options or an invalid address. */
tow_status_t tow_worker_open(tow_env_t *env,
                             const tow_worker_options_t *options,
                             tow_worker_t **out_worker) TOW_MUST_USE;
/* Leaves the cluster (`reason` is lent and may be TOW_OK), discards all state,
 * waits for the devices; then frees the worker and calls `closed`. No hook runs
 * after `disconnected`. */
void tow_worker_close(tow_worker_t *worker, tow_status_t reason,
                      tow_closed_t closed);
/* After a simulated crash: frees the worker and calls nobody. The driver is
 * freed by tow_sim_device_driver_crash, before or after. */
void tow_worker_discard(tow_worker_t *worker);

/* The error of a process that answered and refused us: dialling again does not
 * help, unless a name or number becomes free (ALREADY_EXISTS). */
bool tow_worker_is_refusal(tow_status_t cause);

/* -- Callbacks to clients -------------------------------------------------- */

typedef struct tow_worker_callback tow_worker_callback_t;

/* A computation calls a function of its client. Owned by the caller until
 * `done`; everything that it points to is lent as long. */
struct tow_worker_callback {
    uint64_t gang_id; /* of the step that makes the call */
    uint64_t function;
    int64_t device;
    const tow_bytes_t *arguments; /* dense, row major */
    size_t argument_count;
    /* Memory for the results. */
    const tow_mutable_bytes_t *results;
    size_t result_count;
    /* The error is the client's, or ours when the gang is aborted or the
     * session ends. */
    void (*done)(tow_worker_callback_t *call, tow_status_t take_status);
    tow_list_t node_; /* these belong to the worker */
    uint64_t number_;
};

/* Calls the client of that run. `done` runs once, perhaps inside the call. */
void tow_worker_call_client(tow_worker_t *worker, tow_worker_callback_t *call);

typedef enum tow_worker_state {
    TOW_WORKER_WAITING, /* for the next dial */
    TOW_WORKER_DIALLING,
    TOW_WORKER_JOINING, /* the controller has not accepted us yet */
    TOW_WORKER_JOINED,
    TOW_WORKER_DRAINING, /* until all state of the last session is gone */
    TOW_WORKER_CLOSING,
} tow_worker_state_t;

const char *tow_worker_state_name(tow_worker_state_t state);

typedef struct tow_worker_stats {
    tow_worker_state_t state;
    uint64_t cluster;       /* of this or the last session; 0: none yet */
    uint64_t session_count; /* that were joined */
    tow_shard_store_totals_t shard_store;
    tow_dataflow_stats_t dataflow;
    tow_transfer_engine_stats_t transfer_engine;
    size_t load_count, put_count, get_count; /* under way */
    uint64_t put_bytes, get_bytes;           /* of host memory */
    /* Of arrays: from clients, and to them, since the worker was created. */
    uint64_t put_bytes_total, get_bytes_total;
    size_t spill_count;   /* objects in host memory, or moving */
    uint64_t spill_bytes; /* of host memory */
    size_t lane_count, peer_count, blob_count;
    size_t peer_session_count; /* sessions with other workers */
    size_t relay_count;        /* messages that wait in, or for, a relay */
    size_t outbox_bytes;
} tow_worker_stats_t;
tow_worker_stats_t tow_worker_stats(const tow_worker_t *worker);
/* Verifies the invariants of all its records, between turns of the env. O(all
 * of them): for tests and simulation. */
tow_status_t tow_worker_check(const tow_worker_t *worker) TOW_MUST_USE;

#endif /* TOW_WORKER_WORKER_H_ */
