/* The inside of a session. Whose turn it is and what may be touched when:
 *
 * - env calls on_up, on_message and so on in epoch.c. They, and timers, are
 *   where callbacks of the handler run. An owner may close the session in any
 *   of them; `depth` keeps its memory until the last of them has returned.
 * - Functions of session.h that an owner calls never call its handler. What they
 *   find out (no memory) is told by the timer `soon`. */
#ifndef TOW_SESSION_SESSION_IMPL_H_
#define TOW_SESSION_SESSION_IMPL_H_

#include "base/arena.h"
#include "base/list.h"
#include "base/map.h"
#include "session/offset.h"
#include "session/ring.h"
#include "session/session.h"
#include "session/tuning.h"

typedef enum session_state {
    SESSION_NEW, /* `opened` has not been told */
    SESSION_OPEN,
    SESSION_GONE,   /* `gone` has been told, or is about to be */
    SESSION_CLOSED, /* by the owner */
} session_state_t;

/* Records of the ring with this type hold a blob_t instead of bytes. */
#define RECORD_BLOB (UINT16_MAX + 1u)

/* One that leaves. It is as many messages as it has parts. */
typedef struct blob {
    tow_session_blob_t source;
    uint64_t number;
} blob_t;

/* One that arrives. */
typedef struct arrival {
    bool is_open;
    uint64_t number; /* of this or the last one */
    uint64_t size;
    uint64_t got;
    uint64_t capacity;
    uint8_t *bytes; /* owned */
} arrival_t;

struct tow_session {
    tow_env_t *env;
    const tow_session_handler_t *handler; /* lent */
    void *context;                        /* lent */
    session_state_t state;
    tow_session_limits_t limits; /* none is 0 */
    uint64_t id;
    tow_peer_t peer;

    /* The dialler's. */
    char *address;       /* owned; NULL: it was accepted */
    char *expected_name; /* owned; may be NULL */
    int64_t patience_ns;
    int64_t patience_end_ns;

    /* The listener's. */
    tow_session_port_t *port; /* lent; NULL: dialled, or not listed any more */
    tow_list_t by_port;

    /* The epoch. */
    tow_link_t *link;        /* ours to close; NULL: none */
    bool is_ready;           /* both sides have said what they have */
    bool is_opened_due;      /* `opened` waits for a turn of its own */
    bool is_late;            /* the timer was, and what waits is read first */
    tow_status_t down_cause; /* owned: why the last epoch or attempt ended */
    tow_status_t doom;       /* owned: why `soon` will end it */
    int64_t heard_ns;        /* when the last message came */
    int64_t tried_ns; /* when the link was dialled, came up or went down */
    int64_t beat_ns;  /* when the next heartbeat is due */
    tow_timer_t timer;
    tow_timer_t soon;

    /* What leaves. Messages have numbers from 0 on. */
    tow_ring_t ring;
    uint64_t acknowledged;       /* the peer has all before this one */
    uint64_t next;               /* the next to give to the link */
    uint64_t sent;               /* all before it were given to some link */
    uint64_t parts_acknowledged; /* of the oldest record, if it is a blob */
    uint64_t parts_sent;         /* of the record at the cursor */
    uint64_t blob_last;
    bool wants_writable;

    /* What arrives. */
    uint64_t received;
    uint32_t unacknowledged_count;
    uint64_t unacknowledged_bytes;
    bool owes_ack; /* the link was full */
    arrival_t arrival;
    tow_arena_t arena; /* for messages of the session's own */

    /* Time. */
    tow_offset_t offset;
    uint64_t echo_ns; /* the peer's clock, from its last acknowledgement */
    int64_t echo_came_ns;

    uint64_t epoch_count;
    uint64_t sent_again_count;

    uint32_t depth; /* callbacks of ours that are running */
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

/* -- session.c: life ------------------------------------------------------- */

/* NULL when memory is exhausted. */
tow_session_t *tow_session_create(tow_env_t *env,
                                  const tow_session_limits_t *limits);
static inline void tow_session_enter(tow_session_t *session)
{
    session->depth++;
}
void tow_session_leave(tow_session_t *session);
/* Ends it: the peer is told if it can be, then the owner. From callbacks of the
 * env only. Harmless when it is gone already. */
void tow_session_go(tow_session_t *session, tow_status_t take_cause);
/* The same, from anywhere, a turn later. */
void tow_session_go_soon(tow_session_t *session, tow_status_t take_cause);
/* Who it is with, for messages: a name, or the address before there is one. */
const char *tow_session_peer_name(const tow_session_t *session);
/* Says goodbye on a link that may be up. */
void tow_session_send_end(tow_link_t *link, tow_status_t reason);

/* -- epoch.c: links come and go --------------------------------------------- */

tow_status_t tow_session_connect(tow_session_t *session) TOW_MUST_USE;
/* The session is with this link from now on, and with no other. */
void tow_session_adopt(tow_session_t *session, tow_link_t *link);
/* The listener's half of the beginning of an epoch: the peer has `received`. */
void tow_session_answer(tow_session_t *session, uint64_t received);
void tow_session_schedule(tow_session_t *session);
void tow_session_on_timer(tow_timer_t *timer);
void tow_session_on_soon(tow_timer_t *timer);

/* -- send.c ------------------------------------------------------------------ */

/* Gives the link what it takes. */
void tow_session_pump(tow_session_t *session);
void tow_session_send_ack(tow_session_t *session);
/* The peer has all before `received`: forgets them. */
void tow_session_forget(tow_session_t *session, uint64_t received);
/* What is kept waits from the oldest on: a new epoch. */
void tow_session_rewind(tow_session_t *session);
/* Forgets everything, sent or not. */
void tow_session_drop_kept(tow_session_t *session);
/* Tells the owner that there is room, if it waits for it. */
void tow_session_tell_writable(tow_session_t *session);

/* -- receive.c ----------------------------------------------------------------- */

/* A message of a link whose epoch has begun for both. */
void tow_session_take(tow_session_t *session, const tow_message_t *message);
/* The decoded body of a message of ours; NULL: malformed, and the session has
 * ended for it. */
const tow_body_t *tow_session_decode(tow_session_t *session,
                                     const tow_message_t *message);
/* Both of them have `received`, if it can be. False: it cannot, and the session
 * has ended for it. */
bool tow_session_check_received(tow_session_t *session, uint64_t received,
                                uint64_t sent);

/* -- port.c -------------------------------------------------------------------- */

/* The port knows it no more. */
void tow_session_unlist(tow_session_t *session);

#endif /* TOW_SESSION_SESSION_IMPL_H_ */
