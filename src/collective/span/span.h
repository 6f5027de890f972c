/* Collectives of a gang whose members lie on several hosts.
 *
 * The members of one host meet in shared memory, through collective/host; the
 * thread of the lowest rank of each host, its leader, exchanges with the leaders
 * of the other hosts over the data plane. The entry has the form of
 * tow_host_collective: it is called on any thread of XLA's, blocks there, does
 * the arithmetic there, and obeys an abort. A gang that lies on this host alone
 * goes straight to collective/host.
 *
 * Two parts. The letters (span/letters.h) are a state machine over tow_env: they
 * carry keyed messages between processes, exactly once or not at all. What is
 * here is the blocking face of it, exempt from the rule of the state machines as
 * collective/host is: threads of others wait in it.
 *
 * Who is where is told by the owner of the env, the worker: a process is added
 * with what it says of itself (tow_span_self there), which travels over the
 * control plane, and removed when the control plane has declared it dead. */
#ifndef TOW_COLLECTIVE_SPAN_SPAN_H_
#define TOW_COLLECTIVE_SPAN_SPAN_H_

#include "collective/host/host.h"
#include "env/env.h"

typedef struct tow_span tow_span_t;

/* What a process says of itself to those that it shares gangs with. It has the
 * devices TOW_XLA_PROCESS_STRIDE * process_id + [0, device_count). */
typedef struct tow_span_peer {
    uint32_t process_id;   /* an incarnation: never used again */
    uint32_t device_count; /* at most TOW_XLA_DEVICE_COUNT_MAX */
    /* Processes with the same number share an arena. */
    uint64_t host_id;
    tow_region_key_t door; /* a secret: authenticated links only */
    const void *lane_address;
    size_t lane_address_size;
} tow_span_peer_t;

typedef struct tow_span_options {
    tow_env_t *env;   /* lent, outlives the span; with lanes */
    tow_host_t *host; /* lent, outlives the span: our part in the arena */
    uint32_t process_id;
    uint32_t device_count;
    uint64_t host_id;
    /* Silence of a process that an operation waits for, after which the
     * operation fails and names it; 0: TOW_SPAN_PATIENCE_NS. Its lane stays: it
     * may wake up. */
    int64_t patience_ns;
    /* Whether the bytes between hosts carry a checksum of ours, end to end. */
    tow_write_check_t check;
    /* The lane to a process broke by itself, or it fell silent. Operations with
     * it have failed. After a broken lane nothing goes to or comes from it until
     * it is removed and added again. On the loop; `cause` is lent. May be
     * NULL. */
    void (*peer_failed)(void *context, uint32_t process_id, tow_status_t cause);
    void *context; /* lent */
} tow_span_options_t;

/* -- For the owner, on the env's loop ---------------------------------------- */

tow_status_t tow_span_open(const tow_span_options_t *options,
                           tow_span_t **out_span) TOW_MUST_USE;
/* No call may be inside. Frees the span, then calls `closed`. */
void tow_span_close(tow_span_t *span, tow_closed_t closed);

/* What the others need to add us. The address is lent, as long as the env
 * lives. */
tow_span_peer_t tow_span_self(const tow_span_t *span);

/* Adds a process, of this host or of another; before or after it adds us, for
 * letters wait until both have. ALREADY_EXISTS, INVALID_ARGUMENT (makes no
 * sense), RESOURCE_EXHAUSTED. */
tow_status_t tow_span_add_peer(tow_span_t *span, const tow_span_peer_t *peer)
    TOW_MUST_USE;
/* It is dead, says the control plane: all that waits for it fails now, with the
 * code of `cause` (lent) and a message that names it. Harmless when it is not
 * there. */
void tow_span_remove_peer(tow_span_t *span, uint32_t process_id,
                          tow_status_t cause);

/* -- For every thread -------------------------------------------------------- */

/* Does one member's part in one collective. Has the form that
 * tow_xla_collectives_t wants, with the span as context: returns 0 or a
 * tow_code_t, with the reason in `error`. One at a time for each device, which
 * is how XLA calls. Not on the env's loop, which must turn meanwhile. */
int tow_span_collective(void *span, const tow_xla_collective_t *collective,
                        char *error, size_t error_capacity);

/* Fails all that wait, or will wait, in a collective of this run: here, in the
 * other processes of this host, and on the hosts that we are in touch with. */
void tow_span_abort(tow_span_t *span, uint64_t run_id, tow_code_t code,
                    const char *reason);

#endif /* TOW_COLLECTIVE_SPAN_SPAN_H_ */
