/* A link and, while it has one, its connection.
 *
 *     dialling:  IDLE -> RESOLVING -> CONNECTING -> TLS -> HANDSHAKE -> UP
 *     accepted:                                     TLS -> HANDSHAKE -> UP
 *     either, when closed or rejected:                      LINGERING -> IDLE
 *     either, on unix: when the connection broke:       AWAITING_EXIT -> IDLE
 *
 * link.c creates and frees links and has the calls of their owners, dial.c the
 * phases up to CONNECTING, listener.c the start of accepted links, connection.c
 * the other phases and reading, send.c writing, loopback.c reading and writing
 * without a socket.
 *
 * The loop makes all callbacks, never a call of the link's owner. A link is
 * freed by its `free_task` only, so after a callback a function may find its
 * link closing, but never freed. */
#ifndef TOW_ENV_NET_CONNECTION_H_
#define TOW_ENV_NET_CONNECTION_H_

#include "env/net/data/trunk.h"
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
    TOW_NET_LINGERING,     /* sends the rest; reads and discards the input */
    TOW_NET_AWAITING_EXIT, /* broken; waits to learn whether the peer exited */
} tow_net_phase_t;

typedef struct tow_net_listener tow_net_listener_t;

struct tow_net_link {
    tow_link_t link; /* first */
    tow_net_t *net;  /* lent, outlives us */
    tow_list_t all;
    tow_side_t side;
    char *address; /* owned: the address dialled, or the peer's */
    /* Lent: carries lanes instead of messages, once it is up. */
    tow_data_trunk_t *trunk;
    bool is_exposed; /* known outside of net */
    tow_closed_t closed;
    tow_net_task_t free_task;

    /* The connection: these are reset before the next one. */
    tow_net_phase_t phase;
    tow_net_source_t source; /* the socket; AWAITING_EXIT: the pidfd */
    /* A loopback connection has no socket (loopback.c): ... */
    bool is_loopback;
    tow_net_link_t
        *loopback_peer; /* ... its other end; lent; NULL: disconnected */
    int peer_fd; /* owned: pidfd of the peer's process, if on this host */
    /* The timeout of the current phase: the redial delay, the handshake
     * deadline, the end of lingering or of waiting for the peer's exit. */
    tow_timer_t timer;
    tow_net_task_t again;       /* more to read, or a write failed */
    tow_handshake_t *handshake; /* owned */
    tow_tls_t *tls;             /* owned; NULL on unix: and tcp: */
    tow_net_inbox_t inbox;
    tow_net_queue_t queue;
    tow_list_t dirty;
    bool waits_for_room;  /* the socket's buffer is full */
    bool wants_room;      /* EPOLLOUT is requested */
    bool was_full;        /* the owner waits for `writable` */
    bool has_received;    /* the peer has sent at least one byte */
    bool has_hung_up;     /* the peer has disconnected: read to the end */
    bool has_shut_down;   /* lingering: our side is shut down */
    tow_status_t failure; /* owned: why writing failed */

    /* Dialling. */
    tow_address_t target;
    char *expected_name;        /* owned, or NULL */
    bool is_announced;          /* see tow_connect_options_t */
    tow_net_resolve_t *resolve; /* owned while RESOLVING */
    tow_net_addresses_t addresses;
    size_t address_index;
    uint32_t failure_count;
    int64_t up_ns; /* when the last epoch started */

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
/* Undoes create, for a link that is not yet exposed. */
void tow_net_link_discard(tow_net_link_t *link);
/* Frees a link that has no connection, in a later pass, then notifies its
 * owner. */
void tow_net_link_finish(tow_net_link_t *link);
tow_send_result_t tow_net_link_begin(tow_link_t *link, uint32_t size_max,
                                     uint8_t **out_bytes);
void tow_net_link_commit(tow_link_t *link, uint32_t type, uint32_t size);
void tow_net_link_close(tow_link_t *link, tow_closed_t closed);
/* Takes the socket, and TLS if it is used, out of a link that is up and has
 * nothing to send, and closes the link. */
void tow_net_link_take_connection(tow_net_link_t *link, tow_closed_t closed,
                                  int *out_fd, tow_tls_t **out_tls);

/* check.c: asserts the invariants of a link. O(1); called after each change of
 * its phase. */
void tow_net_link_check(const tow_net_link_t *link);

/* -- dial.c --------------------------------------------------------------- */

tow_status_t tow_net_connect(tow_env_t *env,
                             const tow_connect_options_t *options,
                             tow_link_t **out_link);
/* Starts a dial attempt. On the loop only: it may fail immediately. */
void tow_net_dial(tow_net_link_t *link);
/* A connecting socket has become writable or failed. */
void tow_net_dial_connected(tow_net_link_t *link);
/* Arms the timer for the next attempt. */
void tow_net_dial_later(tow_net_link_t *link);
/* The owner closes the link. True if the link must wait for the resolver. */
bool tow_net_dial_cancel(tow_net_link_t *link);

/* -- listener.c ----------------------------------------------------------- */

tow_status_t tow_net_listen(tow_env_t *env, const tow_listen_options_t *options,
                            tow_listener_t **out_listener);
void tow_net_listener_close(tow_listener_t *listener, tow_closed_t closed);
void tow_net_listeners_close(tow_net_t *net);
/* The peer has authenticated: passes the link to the listener's owner. */
void tow_net_listener_hand_over(tow_net_link_t *link);
bool tow_net_listener_carries_lanes(const tow_net_listener_t *listener);
/* The listener of this net at exactly this address, or NULL. */
tow_net_listener_t *tow_net_listener_find(tow_net_t *net,
                                          const tow_address_t *address);
/* Creates a half-open link for an incoming connection; NULL when memory is
 * exhausted. */
tow_net_link_t *tow_net_listener_add_link(tow_net_listener_t *listener,
                                          const char *peer_address);

/* -- loopback.c ----------------------------------------------------------- */

/* Connects a dialling link to a listener of its own net. False if the net has
 * no such listener: the link is then dialled through a socket. */
bool tow_net_loopback_dial(tow_net_link_t *link);
/* Like tow_net_connection_read. */
bool tow_net_loopback_read(tow_net_link_t *link);
/* Schedules a read at the other end if there are bytes for it. */
void tow_net_loopback_notify(tow_net_link_t *link);
/* The connection is closed: the other end reads end-of-stream. */
void tow_net_loopback_disconnect(tow_net_link_t *link);

/* -- connection.c --------------------------------------------------------- */

/* The socket in `source.fd` is connected: starts TLS or the handshake, with a
 * deadline. On the loop only. */
void tow_net_connection_start(tow_net_link_t *link);
/* The connection or the attempt has failed: resets it and reports or logs the
 * cause. On the loop only; calls `down`. */
void tow_net_connection_fail(tow_net_link_t *link, tow_status_t take_cause);
/* The wait for the exit of the peer's process is over. */
void tow_net_connection_exit_checked(tow_net_link_t *link, bool is_dead);
/* Closes the connection without notifying anyone. */
void tow_net_connection_discard(tow_net_link_t *link);
/* Sends the rest for as long as the peer reads, then discards the
 * connection. */
void tow_net_connection_linger(tow_net_link_t *link);
/* Reads once; returns whether bytes arrived. Calls `message`. */
bool tow_net_connection_read(tow_net_link_t *link);
/* Processes received plaintext. Calls `message`. */
void tow_net_connection_take(tow_net_link_t *link, tow_net_input_t input);
/* One read of the socket. Above 0: bytes in `bytes`. Otherwise the connection
 * has failed, ended, or has no more for now. */
ssize_t tow_net_connection_receive(tow_net_link_t *link, void *bytes,
                                   size_t room);
/* `count` bytes were read into a buffer of `room`. Makes no callbacks. */
void tow_net_connection_note_received(tow_net_link_t *link, size_t count,
                                      size_t room);
/* A read of the socket returned `error`. */
void tow_net_connection_read_failed(tow_net_link_t *link, int error);
/* All input has been read: handles a failed write, or our own shutdown. */
void tow_net_connection_read_dry(tow_net_link_t *link);
/* The peer has closed the connection. */
void tow_net_connection_read_end(tow_net_link_t *link);
/* The phase in words, for error messages: "in the handshake". */
const char *tow_net_phase_name(tow_net_phase_t phase);

/* -- send.c --------------------------------------------------------------- */

/* Sends until the queue is empty or the socket is full. Makes no callbacks: a
 * failure is reported in a later pass. */
void tow_net_connection_flush(tow_net_link_t *link);
/* Evaluates the result of one send to the socket; whether to continue. */
bool tow_net_connection_note_sent(tow_net_link_t *link, ssize_t sent);
/* Requests an event when a full socket has room, or not any more. */
void tow_net_connection_want_room(tow_net_link_t *link, bool wants_room);
/* Marks the connection as failed for writing. Makes no callbacks. */
void tow_net_connection_break(tow_net_link_t *link, tow_status_t take_failure);
void tow_net_connection_mark_dirty(tow_net_link_t *link);
/* Flushes an item of net->dirty at the end of a pass. */
void tow_net_connection_flush_dirty(tow_list_t *dirty);

#endif /* TOW_ENV_NET_CONNECTION_H_ */
