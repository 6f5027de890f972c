/* Collectives of a gang whose members are on several hosts.
 *
 * The members of one host combine their data in shared memory, through
 * collective/intra_host. The thread of the lowest rank of each host, its
 * leader, exchanges data with the leaders of the other hosts over the data
 * plane. The entry point has the interface of tow_intra_host_collective: it is
 * called on any thread of XLA's, blocks it, does the arithmetic on it, and
 * fails when the run is aborted. A gang on one host goes straight to
 * collective/intra_host.
 *
 * Two layers. The letters (letters.h) are a state machine over tow_env: keyed
 * messages between processes, each delivered exactly once or failed. This
 * header is the blocking interface on top, exempt from the purity rule of the
 * state machines as collective/intra_host is, because threads of XLA wait in
 * it.
 *
 * The owner of the env, the worker, adds each process with its self-description
 * (tow_multi_host_self in that process), which travels over the control plane,
 * and removes it when the control plane has declared it dead. */
#ifndef TOW_COLLECTIVE_MULTI_HOST_MULTI_HOST_H_
#define TOW_COLLECTIVE_MULTI_HOST_MULTI_HOST_H_

#include "collective/intra_host/intra_host.h"
#include "env/env.h"

typedef struct tow_multi_host tow_multi_host_t;

/* A process's self-description for its peers. It has the devices
 * TOW_XLA_PROCESS_STRIDE * process_id + [0, device_count). */
typedef struct tow_multi_host_peer {
    uint32_t process_id;   /* an incarnation number: never reused */
    uint32_t device_count; /* at most TOW_XLA_DEVICE_COUNT_MAX */
    /* Processes with the same number share an arena. */
    uint64_t host_id;
    /* Of the region for hello messages. A secret: authenticated links only. */
    tow_region_key_t door;
    const void *lane_address;
    size_t lane_address_size;
} tow_multi_host_peer_t;

typedef struct tow_multi_host_options {
    tow_env_t *env;         /* not owned, with a data plane */
    tow_intra_host_t *host; /* not owned: our membership in the arena */
    uint32_t process_id;
    uint32_t device_count;
    uint64_t host_id;
    /* Timeout of a process that an operation waits for, after which the
     * operation fails and names it; 0: TOW_MULTI_HOST_PATIENCE_NS. Its lane
     * stays open, because the process may resume. */
    int64_t patience_ns;
    /* Whether data between hosts carries an end-to-end checksum. */
    tow_write_check_t check;
    /* The lane to a process broke, or the process timed out; operations with it
     * have failed. After a broken lane no data is exchanged with it until it is
     * removed and added again. Called on the loop; `cause` is valid during the
     * call. May be NULL. */
    void (*peer_failed)(void *context, uint32_t process_id, tow_status_t cause);
    void *context;
} tow_multi_host_options_t;

/* -- For the owner, on the env's loop -------------------------------------- */

tow_status_t tow_multi_host_open(const tow_multi_host_options_t *options,
                                 tow_multi_host_t **out_span) TOW_MUST_USE;
/* No collective may be in progress. Frees the object, then calls `closed`. */
void tow_multi_host_close(tow_multi_host_t *span, tow_closed_t closed);

/* The self-description for tow_multi_host_add_peer in other processes. The
 * address is valid as long as the env lives. */
tow_multi_host_peer_t tow_multi_host_self(const tow_multi_host_t *span);

/* Adds a process of this host or of another. The two processes may add each
 * other in any order: letters wait until both have. ALREADY_EXISTS,
 * INVALID_ARGUMENT, RESOURCE_EXHAUSTED. */
tow_status_t tow_multi_host_add_peer(tow_multi_host_t *span,
                                     const tow_multi_host_peer_t *peer)
    TOW_MUST_USE;
/* The control plane has declared the process dead: all operations with it fail,
 * with the code of `cause` and a message that names it. No effect if it has not
 * been added. */
void tow_multi_host_remove_peer(tow_multi_host_t *span, uint32_t process_id,
                                tow_status_t cause);

/* -- For every thread ------------------------------------------------------ */

/* Runs one member's part in one collective: tow_xla_collectives_t.run, with the
 * tow_multi_host_t as context. Returns 0 or a tow_code_t, with a message in
 * `error`. One at a time for each device, which is how XLA calls. Not on the
 * env's loop, which must run meanwhile. */
int tow_multi_host_collective(void *span,
                              const tow_xla_collective_t *collective,
                              char *error, size_t error_capacity);

/* Fails all present and future collectives of this run: in this process, in the
 * other processes of this host, and on the hosts of known peers. */
void tow_multi_host_abort(tow_multi_host_t *span, uint64_t run_id,
                          tow_code_t code, const char *reason);

#endif /* TOW_COLLECTIVE_MULTI_HOST_MULTI_HOST_H_ */
