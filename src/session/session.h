/* Sessions: exactly-once, in-order delivery of messages between two processes,
 * until one of them disconnects.
 *
 * The epoch of a link, one connection, may break at any time, and messages in
 * flight are lost with it. A session outlives its epochs: it retains messages
 * that the peer has not acknowledged; after a break both sides exchange the
 * numbers of messages received, and retransmit the rest. A session ends only
 * when a side closes it, when the peer has another incarnation than before,
 * when the system reports that the peer's process has ended, or when nothing
 * was received from it for `lease_ns`. Protocols above therefore see two events
 * only: the next message, and `disconnected`.
 *
 * Within an epoch nothing is lost, so messages carry no sequence numbers: a
 * count at the beginning of each epoch is enough. Acknowledgements are sent
 * every TOW_SESSION_ACK_BYTES or TOW_SESSION_ACK_COUNT, and as heartbeats.
 *
 * State machines over tow_env; they run in `net` and in `sim`. */
#ifndef TOW_SESSION_SESSION_H_
#define TOW_SESSION_SESSION_H_

#include <stdbool.h>
#include <stdint.h>

#include "base/macros.h"
#include "base/status.h"
#include "env/env.h"
#include "wire/message.h"

typedef struct tow_session tow_session_t;
typedef struct tow_session_port tow_session_port_t;

typedef struct tow_session_handler {
    /* The first epoch is up: tow_session_peer identifies the peer. */
    void (*opened)(void *context, tow_session_t *session);
    /* Lent for the callback. The session handles its own types and blobs. */
    void (*message)(void *context, tow_session_t *session,
                    const tow_message_t *message);
    /* A blob is complete; see tow_session_send_blob. The receiver owns the
     * bytes; tow_free. NULL: blobs are refused, which ends the session. */
    void (*blob)(void *context, tow_session_t *session, uint64_t blob,
                 void *take_bytes, size_t size);
    /* After TOW_SEND_FULL: at least half of the retransmit buffer is free. May
     * be NULL. */
    void (*writable)(void *context, tow_session_t *session);
    /* The last callback, once. `cause` is lent and names the peer: CANCELLED if
     * the peer closed the session without a reason, ABORTED if it restarted,
     * UNAVAILABLE if it is silent; or the peer's reason, or its protocol
     * violation. The owner closes the session, then or later. */
    void (*disconnected)(void *context, tow_session_t *session,
                         tow_status_t cause);
} tow_session_handler_t;

typedef struct tow_session_limits {
    int64_t lease_ns;              /* 0: TOW_SESSION_LEASE_NS, below 3 s */
    uint64_t retransmit_bytes_max; /* unacknowledged; 0: the default */
    uint64_t blob_bytes_max;       /* of an incoming blob; 0: the default */
} tow_session_limits_t;

typedef struct tow_session_dial_options {
    const char *address;
    const char *expected_name; /* NULL: any peer that passes the handshake */
    bool is_announced;         /* as in tow_connect_options_t */
    /* Time to establish the first epoch; 0: the lease. Then `disconnected`
     * reports that the address does not answer, with the last reason. A peer
     * with another token fails it at once, with UNAUTHENTICATED. */
    int64_t connect_timeout_ns;
    tow_session_limits_t limits;
    const tow_session_handler_t *handler; /* lent, outlives the session */
    void *context;                        /* lent */
} tow_session_dial_options_t;

tow_status_t tow_session_dial(tow_env_t *env,
                              const tow_session_dial_options_t *options,
                              tow_session_t **out_session) TOW_MUST_USE;

typedef struct tow_session_listen_options {
    const char *address;
    bool carries_lanes; /* as in tow_listen_options_t */
    tow_session_limits_t limits;
    uint32_t session_count_max; /* 0: the default; more are refused */
    /* A new session: set its handler with tow_session_accept, or close it to
     * refuse. `opened` follows in a separate event-loop turn. */
    void (*arrived)(void *context, tow_session_t *session);
    void *context;
} tow_session_listen_options_t;

tow_status_t tow_session_listen(tow_env_t *env,
                                const tow_session_listen_options_t *options,
                                tow_session_port_t **out_port) TOW_MUST_USE;
/* The actual address, with the port number that the system chose. Lent until
 * the port is closed. */
const char *tow_session_port_address(const tow_session_port_t *port);
/* Refuses new sessions and new epochs: close the sessions first. Others live on
 * until their epoch breaks and their lease expires. */
void tow_session_port_close(tow_session_port_t *port, tow_closed_t closed);
/* Frees the port, not its sessions, of a simulated process that has died, as
 * tow_session_discard. */
void tow_session_port_discard(tow_session_port_t *port);

/* Sets the handler. May be called again, from a callback too, when the session
 * changes owners. */
void tow_session_accept(tow_session_t *session,
                        const tow_session_handler_t *handler, void *context);

/* Name, incarnation and features of the peer. Lent. */
const tow_peer_t *tow_session_peer(const tow_session_t *session);
/* False before `opened` and after `disconnected`. */
bool tow_session_is_open(const tow_session_t *session);
/* True while an epoch is up. For status displays only. */
bool tow_session_is_connected(const tow_session_t *session);
/* The offset to add to the peer's clock to get ours, and its error bound,
 * measured by heartbeats. False while unknown. For traces. */
bool tow_session_clock_offset(const tow_session_t *session, int64_t *out_ns,
                              int64_t *out_error_ns);

/* Encodes `body` and queues it. OK between epochs too. FULL: the retransmit
 * buffer is full, nothing was queued; retry after `writable`. DOWN:
 * disconnected, closed, or not yet opened. */
tow_send_result_t tow_session_send(tow_session_t *session, uint32_t type,
                                   const tow_body_t *body) TOW_MUST_USE;
/* True if a message of any size fits. False: retry after `writable`. */
bool tow_session_has_room(tow_session_t *session);
/* Space for a message that the caller encodes, as tow_link_begin. */
tow_send_result_t tow_session_begin(tow_session_t *session, uint32_t size_max,
                                    uint8_t **out_bytes) TOW_MUST_USE;
void tow_session_commit(tow_session_t *session, uint32_t type, uint32_t size);

/* Sends bytes of any size in parts, in order with the messages: those sent
 * after this call arrive after the blob. The session owns the bytes until it
 * calls `release`: once, also when the session ends, and before `disconnected`.
 * Returns the blob's number, which the next message may name; 0 if the session
 * has ended (then `release` has been called). Blobs do not count towards
 * retransmit_bytes_max: parts are encoded from the caller's bytes as the link
 * takes them, and later messages wait behind. */
typedef struct tow_session_blob {
    const void *bytes;
    size_t size;
    void (*release)(void *context);
    void *context;
} tow_session_blob_t;
uint64_t tow_session_send_blob(tow_session_t *session,
                               const tow_session_blob_t *blob);

/* Sends `reason` (lent, may be NULL) to the peer and closes the session.
 * Messages that the link has accepted are still sent, queued ones are not. No
 * callback of the handler runs after this, only `closed`. Without a
 * `closed.run` the session must not be used any more; with one, until it runs,
 * only tow_session_discard may be called. */
void tow_session_close(tow_session_t *session, tow_status_t reason,
                       tow_closed_t closed);
/* Frees a session of a simulated process that has died (`destroy` of
 * tow_sim_program_t): releases blobs, calls nothing else. NULL is allowed. */
void tow_session_discard(tow_session_t *session);

typedef struct tow_session_stats {
    uint64_t messages_sent, messages_received;
    uint64_t messages_sent_again;
    uint64_t epochs;
    uint64_t retransmit_bytes;
} tow_session_stats_t;
tow_session_stats_t tow_session_stats(const tow_session_t *session);

/* Converts between a status and a Failure. The message points into the status;
 * of one beyond the wire's limit, to its end, which names the cause. A NULL
 * failure or code 0 is TOW_OK. */
tow_msg_failure_t tow_failure_of(tow_status_t status);
tow_status_t tow_failure_status(const tow_msg_failure_t *failure) TOW_MUST_USE;

#endif /* TOW_SESSION_SESSION_H_ */
