/* Sessions: messages between two processes that arrive in order, each exactly
 * once, until one of the two is gone.
 *
 * A link's epoch may break at any time, and what was under way is lost with it.
 * A session outlives its epochs: it keeps what the peer has not acknowledged,
 * and after a break both sides say what they have and send the rest again. It
 * ends only when a side closes it, when the peer is another incarnation than
 * before, when its process has ended and the system says so, or when nothing was
 * heard of it for `lease_ns`. Protocols above
 * therefore know two things only: the next message, and "gone".
 *
 * Within an epoch nothing is lost, so messages carry no numbers of their own: a
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
    /* The first epoch is up: tow_session_peer says with whom. */
    void (*opened)(void *context, tow_session_t *session);
    /* Lent for the callback. Types of sessions and blobs are not seen here. */
    void (*message)(void *context, tow_session_t *session,
                    const tow_message_t *message);
    /* A blob is complete; see tow_session_send_blob. The bytes are the
     * receiver's; tow_free. NULL: blobs are refused, which ends the session. */
    void (*blob)(void *context, tow_session_t *session, uint64_t blob,
                 void *take_bytes, size_t size);
    /* After TOW_SEND_FULL: at least half of the bound is free again. May be
     * NULL. */
    void (*writable)(void *context, tow_session_t *session);
    /* Once, the last callback. `cause` is lent and names the peer: CANCELLED if
     * the peer closed it without a reason, ABORTED if it restarted, UNAVAILABLE
     * if nothing is heard of it; or what the peer gave as a reason, or did
     * against the rules. The owner closes it, then or later. */
    void (*gone)(void *context, tow_session_t *session, tow_status_t cause);
} tow_session_handler_t;

typedef struct tow_session_limits {
    int64_t lease_ns;        /* 0: TOW_SESSION_LEASE_NS, below 3 s */
    uint64_t kept_bytes_max; /* not yet acknowledged; 0: the default */
    uint64_t blob_bytes_max; /* of all blobs that are arriving; 0: default */
} tow_session_limits_t;

typedef struct tow_session_dial_options {
    const char *address;
    const char *expected_name; /* NULL: anybody that the handshake lets in */
    /* How long to try for the first epoch; 0: the lease. Then gone says that
     * nobody answers there, with the last reason. UNAUTHENTICATED at once, if who
     * answers has another token. */
    int64_t patience_ns;
    tow_session_limits_t limits;
    const tow_session_handler_t *handler; /* lent, outlives the session */
    void *context;                        /* lent */
} tow_session_dial_options_t;

tow_status_t tow_session_dial(tow_env_t *env,
                              const tow_session_dial_options_t *options,
                              tow_session_t **out_session) TOW_MUST_USE;

typedef struct tow_session_listen_options {
    const char *address;
    tow_session_limits_t limits;
    uint32_t session_count_max; /* 0: the default; more are refused */
    /* A new session: set its handler with tow_session_accept, or close it to
     * refuse. `opened` follows in a turn of its own. */
    void (*arrived)(void *context, tow_session_t *session);
    void *context;
} tow_session_listen_options_t;

tow_status_t tow_session_listen(tow_env_t *env,
                                const tow_session_listen_options_t *options,
                                tow_session_port_t **out_port) TOW_MUST_USE;
/* The true address, port resolved. Lent until the port is closed. */
const char *tow_session_port_address(const tow_session_port_t *port);
/* New sessions and new epochs are refused: close the sessions first. Those that
 * are left live until their epoch breaks, and a lease longer. */
void tow_session_port_close(tow_session_port_t *port, tow_closed_t closed);
/* For a simulated process that has died, as tow_session_abandon. Not its
 * sessions. */
void tow_session_port_abandon(tow_session_port_t *port);

/* Says who takes what comes. May be said again, by any owner and also from
 * within a callback, when the session changes hands. */
void tow_session_accept(tow_session_t *session,
                        const tow_session_handler_t *handler, void *context);

/* Name, incarnation, features; the epoch is the link's. Lent. */
const tow_peer_t *tow_session_peer(const tow_session_t *session);
/* False before `opened` and after `gone`. */
bool tow_session_is_open(const tow_session_t *session);
/* Is an epoch up right now? For status displays only. */
bool tow_session_is_connected(const tow_session_t *session);
/* What to add to the peer's clock to get ours, and how wrong that may be; from
 * heartbeats. False while it is not known. For traces. */
bool tow_session_clock_offset(const tow_session_t *session, int64_t *out_ns,
                              int64_t *out_error_ns);

/* Encodes `body` and queues it. OK also between epochs: it is kept. FULL: the
 * bound is reached, nothing was queued; `writable` tells when to go on. DOWN:
 * gone, closed, or not yet opened. */
tow_send_result_t tow_session_send(tow_session_t *session, uint32_t type,
                                   const tow_body_t *body) TOW_MUST_USE;
/* Would a message of any size be taken? False: `writable` tells when. */
bool tow_session_has_room(tow_session_t *session);
/* Room for a message that the caller encodes itself, as tow_link_begin. */
tow_send_result_t tow_session_begin(tow_session_t *session, uint32_t size_max,
                                    uint8_t **out_bytes) TOW_MUST_USE;
void tow_session_commit(tow_session_t *session, uint32_t type, uint32_t size);

/* Sends bytes of any size in parts, in the stream of messages: those sent after
 * this call arrive after the blob. The bytes are the session's from now on, until
 * it calls `release`: once, also when the session goes, and before `gone`.
 * Returns the blob's number, which the message that follows may name; 0 if the
 * session is gone (then `release` has run). Blobs are not held to
 * kept_bytes_max but to their own memory: parts are made from it as the link
 * takes them, and other messages wait behind. */
typedef struct tow_session_blob {
    const void *bytes;
    size_t size;
    void (*release)(void *context);
    void *context;
} tow_session_blob_t;
uint64_t tow_session_send_blob(tow_session_t *session,
                               const tow_session_blob_t *blob);

/* Tells the peer (`reason` is lent and may be NULL), and forgets it. What the link
 * has taken still goes out, what waits behind it does not. No callback of the
 * handler runs after this, only `closed`. Without a `closed.run` the session is
 * not to be touched any more; with one, until it runs, only by
 * tow_session_abandon. */
void tow_session_close(tow_session_t *session, tow_status_t reason,
                       tow_closed_t closed);
/* Frees a session of a process that has died in the simulator (`destroy` of
 * tow_sim_program_t): releases blobs, calls nothing else. NULL is fine. */
void tow_session_abandon(tow_session_t *session);

typedef struct tow_session_stats {
    uint64_t messages_sent, messages_received;
    uint64_t messages_sent_again;
    uint64_t epochs;
    uint64_t kept_bytes;
} tow_session_stats_t;
tow_session_stats_t tow_session_stats(const tow_session_t *session);

/* Makes a Failure of a status and back. The message points into the status: of
 * one beyond the wire's limit to its end, where the cause is. A NULL failure or
 * code 0 is TOW_OK. */
tow_msg_failure_t tow_failure_of(tow_status_t status);
tow_status_t tow_failure_status(const tow_msg_failure_t *failure) TOW_MUST_USE;

#endif /* TOW_SESSION_SESSION_H_ */
