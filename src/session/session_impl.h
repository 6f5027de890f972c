/* Internals of a session. Reentrancy rules:
 *
 * - env calls on_up, on_message and so on in epoch.c. The handler's callbacks
 *   run inside these and inside timers. An owner may close the session in any
 *   callback; `depth` defers freeing it until the last of ours has returned.
 * - Functions of session.h that an owner calls never call its handler. Failures
 *   that they detect (no memory) are reported from the timer `soon`. */
#ifndef TOW_SESSION_SESSION_IMPL_H_
#define TOW_SESSION_SESSION_IMPL_H_

#include "base/arena.h"
#include "base/list.h"
#include "base/map.h"
#include "session/clock_offset.h"
#include "session/ring.h"
#include "session/session.h"
#include "session/tuning.h"

typedef enum session_state {
    SESSION_NEW, /* before `opened` */
    SESSION_OPEN,
    SESSION_DISCONNECTED, /* `disconnected` has run, or is about to */
    SESSION_CLOSED,       /* by the owner */
} session_state_t;

/* Records of this type hold a blob_t instead of an encoded message. */
#define RECORD_BLOB (UINT16_MAX + 1u)

/* An outgoing blob. Each of its parts counts as one message. */
typedef struct blob {
    tow_session_blob_t source;
    uint64_t number;
} blob_t;

/* The incoming blob. */
typedef struct incoming_blob {
    bool is_open;
    uint64_t number; /* of this blob, or of the last one */
    uint64_t size;
    uint64_t got; /* bytes received */
    uint64_t capacity;
    uint8_t *bytes; /* owned */
} incoming_blob_t;

struct tow_session {
    tow_env_t *env;
    const tow_session_handler_t *handler; /* lent */
    void *context;                        /* lent */
    session_state_t state;
    tow_session_limits_t limits; /* with defaults filled in */
    uint64_t id;
    tow_peer_t peer;

    /* Of a dialler. */
    char *address;       /* owned; NULL: accepted, not dialled */
    char *expected_name; /* owned; may be NULL */
    bool is_announced;
    int64_t connect_timeout_ns;
    int64_t connect_deadline_ns;

    /* Of a listener. */
    tow_session_port_t
        *port; /* lent; NULL: dialled, or removed from the port */
    tow_list_t by_port;

    /* The epoch. */
    tow_link_t *link;        /* owned; NULL: none */
    bool is_ready;           /* both sides have sent SessionResume */
    bool is_opened_due;      /* `opened` runs in the next event-loop turn */
    bool timer_was_late;     /* pending input is read before we judge */
    tow_status_t down_cause; /* owned: why the last epoch or attempt ended */
    tow_status_t pending_failure; /* owned: `soon` fails the session with it */
    int64_t heard_ns;             /* time of the last message */
    int64_t attempted_ns;         /* time of the link's last dial, up or down */
    int64_t heartbeat_ns;         /* time of the next heartbeat */
    tow_timer_t timer;
    tow_timer_t soon;

    /* Outgoing messages, numbered from 0. */
    tow_ring_t ring;
    uint64_t acknowledged;       /* the peer has acknowledged all before it */
    uint64_t next;               /* the next message for the link */
    uint64_t sent;               /* all before it were sent at least once */
    uint64_t parts_acknowledged; /* of the oldest record, if a blob */
    uint64_t parts_sent;         /* of the record at the cursor */
    uint64_t blob_last;
    bool wants_writable;

    /* Incoming messages. */
    uint64_t received;
    uint32_t unacknowledged_count;
    uint64_t unacknowledged_bytes;
    bool ack_is_due; /* the link was full */
    incoming_blob_t incoming;
    tow_arena_t arena; /* to decode the session's own messages */

    /* Clocks. */
    tow_clock_offset_t offset;
    uint64_t echo_ns; /* sent_ns of the peer's last acknowledgement */
    int64_t echo_came_ns;

    uint64_t epoch_count;
    uint64_t sent_again_count;

    uint32_t depth; /* of nested callbacks */
    tow_closed_t closed;
    tow_post_t post;
};

static inline bool session_is_live(const tow_session_t *session)
{
    return session->state <= SESSION_OPEN;
}

/* 32 to 47. */
static inline bool session_owns_type(uint32_t type)
{
    return type - TOW_MESSAGE_SESSION_RESUME < 16u;
}

/* -- session.c: creation and end ------------------------------------------- */

/* NULL when memory is exhausted. */
tow_session_t *tow_session_create(tow_env_t *env,
                                  const tow_session_limits_t *limits);
static inline void tow_session_enter(tow_session_t *session)
{
    session->depth++;
}
void tow_session_leave(tow_session_t *session);
/* Ends the session: notifies the peer, if possible, then the owner. From
 * callbacks of the env only. Ignored if it has ended already. */
void tow_session_fail(tow_session_t *session, tow_status_t take_cause);
/* The same from any context, in the next event-loop turn. */
void tow_session_fail_soon(tow_session_t *session, tow_status_t take_cause);
/* The peer's name for messages; its address while the name is unknown. */
const char *tow_session_peer_name(const tow_session_t *session);
/* Sends SessionEnd, if the link is up and has room. */
void tow_session_send_end(tow_link_t *link, tow_status_t reason);

/* -- epoch.c: links and timers --------------------------------------------- */

tow_status_t tow_session_connect(tow_session_t *session) TOW_MUST_USE;
/* Attaches the session to this link, in place of any other. */
void tow_session_adopt(tow_session_t *session, tow_link_t *link);
/* The listener's part of starting an epoch: the peer has `received`
 * messages. */
void tow_session_answer(tow_session_t *session, uint64_t received);
void tow_session_schedule(tow_session_t *session);
void tow_session_on_timer(tow_timer_t *timer);
void tow_session_on_soon(tow_timer_t *timer);

/* -- send.c ---------------------------------------------------------------- */

/* Sends queued records until the link is full. */
void tow_session_pump(tow_session_t *session);
void tow_session_send_ack(tow_session_t *session);
/* The peer has all messages before `received`: discards them. */
void tow_session_discard_acknowledged(tow_session_t *session,
                                      uint64_t received);
/* For a new epoch: all unacknowledged records are to be sent again. */
void tow_session_rewind(tow_session_t *session);
/* Discards all records, sent or not. */
void tow_session_discard_unacknowledged(tow_session_t *session);
/* Calls `writable` if the owner waits for it and there is room. */
void tow_session_notify_writable(tow_session_t *session);

/* -- receive.c ------------------------------------------------------------- */

/* Handles a message after both sides have sent SessionResume. */
void tow_session_receive(tow_session_t *session, const tow_message_t *message);
/* Decodes one of the session's own messages; NULL: malformed, and the session
 * has ended with an error. */
const tow_body_t *tow_session_decode(tow_session_t *session,
                                     const tow_message_t *message);
/* Checks a peer's count of received messages. False: it is impossible, and the
 * session has ended with an error. */
bool tow_session_check_received(tow_session_t *session, uint64_t received,
                                uint64_t sent);

/* -- port.c ---------------------------------------------------------------- */

/* Removes the session from its port. */
void tow_session_unlist(tow_session_t *session);

/* -- check.c --------------------------------------------------------------- */

/* Asserts the invariants of a session; O(1). Called after every change but the
 * receipt and sending of single messages, which must stay fast: there the tests
 * call it. */
void tow_session_check(const tow_session_t *session);

#endif /* TOW_SESSION_SESSION_IMPL_H_ */
