/* One link and, while it has one, its connection.
 *
 *     dialling:  IDLE -> RESOLVING -> CONNECTING -> TLS -> HANDSHAKE -> UP
 *     accepted:                                     TLS -> HANDSHAKE -> UP
 *     either, when told to close or after a refusal:        LINGERING -> IDLE
 *     either, on unix: when the connection broke:           MOURNING -> IDLE
 *
 * Files: link.c has the life of a link and its calls, dial.c the way to CONNECTING,
 * listener.c how accepted ones begin, connection.c the rest of the phases and
 * reading, send.c writing, mate.c both where no socket is between. Callbacks are made by the loop only, never inside a call of the
 * link's owner; a link is freed by its `gone` task, so no function here finds
 * its link freed after a callback, only closing. */
#ifndef TOW_ENV_NET_CONNECTION_H_
#define TOW_ENV_NET_CONNECTION_H_

#include "env/net/inbox.h"
#include "env/net/net_impl.h"
#include "env/net/resolve.h"
#include "wire/tls.h"

typedef enum tow_net_phase {
    TOW_NET_IDLE, /* no connection */
    TOW_NET_RESOLVING,
    TOW_NET_CONNECTING,
    TOW_NET_TLS,
    TOW_NET_HANDSHAKE,
    TOW_NET_UP,
    TOW_NET_LINGERING, /* sends what is left, reads to the end, keeps nothing */
    TOW_NET_MOURNING, /* it broke; did the peer's process end? `failure` is why */
} tow_net_phase_t;

typedef struct tow_net_listener tow_net_listener_t;

/* One TLS record and what TLS adds to it. */
#define TOW_NET_CIPHER_BYTES (TOW_NET_TLS_RECORD_BYTES + 1024)

struct tow_net_link {
    tow_link_t link; /* first */
    tow_net_t *net;  /* lent, outlives us */
    tow_list_t all;
    tow_side_t side;
    char *address;   /* owned: whom we dial, or who came */
    bool is_exposed; /* somebody outside of net knows this link */
    tow_closed_t closed;
    tow_net_task_t gone;

    /* The connection: reset between one and the next. */
    tow_net_phase_t phase;
    tow_net_source_t source; /* the socket; MOURNING: what was peer_fd */
    /* A connection within this net has no socket (mate.c): ... */
    bool is_mated;
    tow_net_link_t *mate; /* ... its other end; lent; NULL: it is gone */
    int peer_fd; /* owned: the peer's process, if it is another of this host */
    /* What the phase waits for: the time to dial again, the end of patience
     * with a handshake, the end of lingering or mourning. */
    tow_timer_t timer;
    tow_net_task_t again;       /* there is more to read, or a write failed */
    tow_handshake_t *handshake; /* owned */
    tow_tls_t *tls;             /* owned; NULL on unix: and tcp: */
    tow_net_inbox_t inbox;
    tow_net_queue_t queue;
    tow_list_t dirty;
    bool waits_for_room;  /* the socket is full */
    bool wants_room;      /* EPOLLOUT is asked for */
    bool was_full;        /* the owner waits for `writable` */
    bool has_spoken;      /* the peer has sent something */
    bool has_hung_up;     /* the peer is gone: read to the end */
    bool has_shut_down;   /* lingering: our side is closed */
    tow_status_t failure; /* owned: why nothing can be written any more */
    uint8_t *cipher;      /* owned: TLS bytes on their way to the socket */
    size_t cipher_begin;
    size_t cipher_end;

    /* Dialling. */
    tow_address_t target;
    char *expected_name;        /* owned, or NULL */
    tow_net_resolve_t *resolve; /* owned while RESOLVING */
    tow_net_addresses_t addresses;
    size_t address_index;
    uint32_t failure_count;
    int64_t up_ns; /* when the last epoch began */

    /* Accepted. */
    tow_list_t half_open;
    tow_net_listener_t *listener; /* lent until up; NULL after */
};

static inline tow_net_link_t *tow_net_link_of(tow_link_t *link)
{
    return (tow_net_link_t *)link;
}

/* -- link.c --------------------------------------------------------------- */

/* NULL when memory is exhausted. `address` is copied. */
tow_net_link_t *tow_net_link_create(tow_net_t *net, tow_side_t side,
                                    const char *address);
/* Undoes create, for one that nobody outside has seen. */
void tow_net_link_discard(tow_net_link_t *link);
/* The link has no connection and nobody needs it: frees it in a later pass,
 * then tells its owner. */
void tow_net_link_finish(tow_net_link_t *link);
tow_send_result_t tow_net_link_begin(tow_link_t *link, uint32_t size_max,
                                     uint8_t **out_bytes);
void tow_net_link_commit(tow_link_t *link, uint32_t type, uint32_t size);
void tow_net_link_close(tow_link_t *link, tow_closed_t closed);

/* -- dial.c --------------------------------------------------------------- */

tow_status_t tow_net_connect(tow_env_t *env,
                             const tow_connect_options_t *options,
                             tow_link_t **out_link);
/* Begins an attempt. On the loop only: the first steps may fail at once. */
void tow_net_dial(tow_net_link_t *link);
/* A connecting socket has news. */
void tow_net_dial_connected(tow_net_link_t *link);
/* Arms the timer for the next attempt. */
void tow_net_dial_later(tow_net_link_t *link);
/* The owner closes the link; true if it must wait for the resolver. */
bool tow_net_dial_cancel(tow_net_link_t *link);

/* -- listener.c ----------------------------------------------------------- */

tow_status_t tow_net_listen(tow_env_t *env, const tow_listen_options_t *options,
                            tow_listener_t **out_listener);
void tow_net_listener_close(tow_listener_t *listener, tow_closed_t closed);
void tow_net_listeners_close(tow_net_t *net);
/* The peer has proved itself: its owner gets the link. */
void tow_net_listener_hand_over(tow_net_link_t *link);
/* The listener of this net at this very address, or NULL. */
tow_net_listener_t *tow_net_listener_find(tow_net_t *net,
                                          const tow_address_t *address);
/* A link for a connection that has come, among those that have not proved
 * themselves; NULL when memory is exhausted. */
tow_net_link_t *tow_net_listener_take_in(tow_net_listener_t *listener,
                                         const char *peer_address);

/* -- mate.c --------------------------------------------------------------- */

/* Connects a dialling link to a listener of its own net; false: it has none
 * there, and the link goes the usual way. */
bool tow_net_mate_dial(tow_net_link_t *link);
/* As tow_net_connection_read. */
bool tow_net_mate_read(tow_net_link_t *link);
/* There is something for the other end to read, or an end to notice. */
void tow_net_mate_tell(tow_net_link_t *link);
/* The connection is dropped: the other end reads its end. */
void tow_net_mate_part(tow_net_link_t *link);

/* -- connection.c --------------------------------------------------------- */

/* The socket in `source.fd` is connected: TLS or the handshake begins, with
 * a deadline. On the loop only. */
void tow_net_connection_start(tow_net_link_t *link);
/* The connection is over, or the attempt to get one: undoes it, and tells or
 * logs why. On the loop only; calls `down`. */
void tow_net_connection_fail(tow_net_link_t *link, tow_status_t take_cause);
/* Enough was waited for the death of the peer's process, or it has come. */
void tow_net_connection_mourned(tow_net_link_t *link, bool is_dead);
/* Ends the connection without a word to anyone. */
void tow_net_connection_drop(tow_net_link_t *link);
/* Sends what is left for as long as the peer takes it, then drops. */
void tow_net_connection_linger(tow_net_link_t *link);
/* Reads once; true if bytes came. Calls `message`. */
bool tow_net_connection_read(tow_net_link_t *link);
/* Bytes have come, in plain. Calls `message`. */
void tow_net_connection_take(tow_net_link_t *link, tow_net_input_t input);
/* All has been read: notices a failure to write, or our own end. */
void tow_net_connection_read_dry(tow_net_link_t *link);
/* The peer has ended. */
void tow_net_connection_read_end(tow_net_link_t *link);
/* The name of the phase, for messages: "in the handshake". */
const char *tow_net_phase_name(tow_net_phase_t phase);

/* -- send.c --------------------------------------------------------------- */

/* Sends until the queue is empty or the socket full. Calls nobody: a failure is
 * told in a later pass. */
void tow_net_connection_flush(tow_net_link_t *link);
/* Nothing more can be written. Calls nobody either. */
void tow_net_connection_break(tow_net_link_t *link, tow_status_t take_failure);
void tow_net_connection_mark_dirty(tow_net_link_t *link);
/* What the loop does at the end of a pass with an item of net->dirty. */
void tow_net_connection_flush_dirty(tow_list_t *dirty);

#endif /* TOW_ENV_NET_CONNECTION_H_ */
