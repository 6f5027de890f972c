/* Internals shared by the files of a trunk: trunk.c (opening, ending, ports),
 * trunk_send.c and trunk_receive.c; and of its subflows: subflow.c (opening,
 * ending, jobs), subflow_send.c and subflow_receive.c. */
#ifndef TOW_ENV_NET_DATA_TRUNK_IMPL_H_
#define TOW_ENV_NET_DATA_TRUNK_IMPL_H_

#include <stdatomic.h>

#include "env/net/connection.h"
#include "env/net/data/data_impl.h"
#include "env/net/data/trunk.h"

typedef enum trunk_state {
    TRUNK_CONNECTING,
    TRUNK_GREETING, /* connected: the peer's greeting is missing */
    TRUNK_UP,
    TRUNK_ENDING, /* its link is closing, and then frees it */
} trunk_state_t;

/* The message that is being received. */
typedef struct incoming {
    size_t head_count; /* bytes of frame and header received */
    uint32_t payload_count;
    bool is_skipped; /* the rest of the payload is ignored */
    tow_data_frame_t frame;
    tow_data_fragment_t fragment; /* parsed, if it is one */
    uint8_t header[TOW_DATA_TRUNK_HEADER_SIZE_MAX];
    uint8_t payload[TOW_DATAGRAM_SIZE_MAX]; /* unless it is a fragment's */
} incoming_t;

_Static_assert(TOW_DATA_ADDRESS_SIZE_MAX <= TOW_DATAGRAM_SIZE_MAX,
               "payloads of control messages fit");

/* Also a connection that is going to be a subflow, until both sides have
 * greeted each other. */
struct tow_data_trunk {
    tow_data_t *data;     /* lent */
    tow_net_link_t *link; /* owned; NULL: closed */
    tow_list_t all;       /* in data->trunks */
    tow_list_t ports;     /* that it carries */
    uint64_t node;        /* of the peer; 0: not known yet */
    trunk_state_t state;
    bool is_dialled;   /* by us */
    bool has_waiters;  /* a message was refused for lack of room */
    tow_timer_t timer; /* to come up; then, while it carries no lane, to end */
    incoming_t incoming;
    /* Reading through TLS. */
    size_t unread_bytes; /* that this pass may still read from the socket */
    int receive_error;   /* of the last read; 0: none */
    bool has_ended;      /* the peer has closed its side */
    /* Subflows. */
    tow_data_connection_kind_t kind; /* of a connection that we dialled */
    tow_data_trunk_t *parent; /* lent: of a subflow that we dialled; or NULL */
    uint64_t number;          /* random, the listener's; 0: none */
    uint32_t subflow_max;     /* that both sides accept, in each direction */
    uint32_t sending_count;   /* subflows on which we send */
    uint32_t receiving_count;
    bool has_opened; /* our side has begun to open its own */
    bool was_asked;  /* by the listener, to dial its own */
    tow_list_t subflows;
    tow_list_t outgoing; /* striped writes with bytes to send */
};

/* Fails its ports, and closes all its connections. `cause` is lent. */
void trunk_end(tow_data_trunk_t *trunk, tow_status_t cause);
/* The peer breaks the protocol. */
void trunk_refuse(tow_data_trunk_t *trunk, const char *what);
void trunk_on_greeting(tow_data_trunk_t *trunk,
                       const tow_data_greeting_t *greeting);
/* Sends it whether there is room or not. */
void trunk_send(tow_data_trunk_t *trunk, tow_data_id_t id,
                tow_data_bytes_t header, tow_data_bytes_t payload);
/* An ending trunk: frees it if its link is closed and no thread uses a
 * subflow. */
void trunk_try_free(tow_data_trunk_t *trunk);
/* Dials a connection that is going to be a subflow. */
tow_status_t trunk_dial_subflow(tow_data_trunk_t *trunk,
                                tow_data_connection_kind_t kind) TOW_MUST_USE;
/* For the link of a trunk, the context. */
void trunk_on_link_closed(void *context);
/* For TLS: cipher bytes from the socket; `context` is the trunk. */
size_t trunk_receive_cipher(void *context, void *bytes, size_t capacity);
/* Messages that were refused may be sent. */
void trunk_wake_senders(tow_data_trunk_t *trunk);

/* -- Subflows ------------------------------------------------------------- */

/* A write that is being sent. Its threads take a fragment each in turn. */
typedef struct outgoing {
    tow_list_t list;    /* in trunk->outgoing */
    tow_data_op_t *op;  /* owned: the header of the fragments, and the bytes */
    uint32_t job_count; /* that send it */
    /* Accessed by the loop and all threads. */
    _Atomic uint64_t next; /* offset of the next fragment */
    _Atomic bool is_cancelled;
} outgoing_t;

/* A write of a peer that is arriving. It exists until all its bytes have come,
 * or its inbound has ended: so a fragment never comes too late. */
typedef struct arriving {
    tow_data_inbound_t *inbound; /* lent; NULL: it has ended */
    tow_list_t in_inbound;
    tow_data_region_t *region; /* lent; NULL: the bytes are ignored */
    tow_list_t in_region;
    tow_data_fragment_t first; /* one of its fragments */
    tow_code_t code;           /* the answer, unless the bytes are damaged */
    tow_list_t jobs;           /* that receive it: subflows */
    /* Accessed by the loop and all threads. */
    _Atomic uint64_t received; /* ignored ones, too */
    _Atomic bool is_damaged;
    _Atomic bool is_cancelled; /* no more bytes into the region */
} arriving_t;

/* Why a job has ended. */
typedef enum subflow_result {
    SUBFLOW_AGAIN,   /* its turn is over, or the loop has to decide */
    SUBFLOW_BLOCKED, /* the socket is full, or empty */
    SUBFLOW_BROKEN,  /* see `problem` */
    SUBFLOW_REFUSED, /* the peer breaks the protocol; see `problem` */
} subflow_result_t;

typedef enum subflow_phase {
    SUBFLOW_IDLE,
    SUBFLOW_RUNNING, /* a thread has a job with it */
    SUBFLOW_WAITING, /* for the socket */
} subflow_phase_t;

#define SUBFLOW_HEAD_SIZE \
    (sizeof(tow_data_frame_t) + sizeof(tow_data_fragment_t))

typedef struct subflow {
    tow_data_trunk_t *trunk; /* lent: waits for us */
    tow_list_t list;         /* in trunk->subflows */
    bool sends;              /* else it receives */
    subflow_phase_t phase;
    bool has_hung_up;        /* the peer has closed its side */
    tow_net_source_t source; /* owned: the socket */
    tow_work_t work;
    _Atomic bool is_stopped; /* set by the loop, read by the thread */
    _Atomic bool is_writing; /* set by the thread, read by the loop */
    tow_list_t in_arriving;
    tow_data_region_t *region; /* the loop's; pinned for the job, or NULL */

    /* The thread's while the job runs, the loop's at all other times. */
    tow_tls_t *tls; /* owned */
    subflow_result_t result;
    int64_t turn_end_ns; /* no waiting after this */
    char problem[160];
    outgoing_t *outgoing; /* counted; NULL: bytes of former ones are left */

    /* The fragment that is being received. */
    size_t head_count;
    uint8_t head[SUBFLOW_HEAD_SIZE];
    tow_data_fragment_t fragment; /* once the head is complete */
    uint32_t size;
    uint32_t count;       /* bytes received of `size` */
    arriving_t *arriving; /* counted; NULL: ignored, or not known yet */
    uint8_t *target;      /* for the write; NULL: ignored */
    bool is_to_damage;    /* for tests: flip a bit */
    int receive_error;    /* of the last read; 0: none */
    bool has_ended;       /* the peer has closed its side */
} subflow_t;

/* The connection is greeted: it becomes a subflow of `trunk`. */
void subflow_adopt(tow_data_trunk_t *connection, tow_data_trunk_t *trunk,
                   tow_data_connection_kind_t kind);
/* The listener asks for subflows. */
void subflows_on_request(tow_data_trunk_t *trunk,
                         const tow_data_subflows_t *request);
/* The trunk ends: no job lasts longer, and no write is sent. */
void subflows_stop(tow_data_trunk_t *trunk);
/* Frees those that no thread uses. */
void subflows_free(tow_data_trunk_t *trunk);
/* Hands the subflow to a thread. */
void subflow_start(subflow_t *subflow);

/* On threads. */
void subflow_send(subflow_t *subflow);
void subflow_receive(subflow_t *subflow);
/* Waits for the socket, for `events` of poll. False: the job has ended. */
bool subflow_wait(subflow_t *subflow, short events);
/* The job ends. */
void subflow_break(subflow_t *subflow, const char *problem);
void subflow_refuse(subflow_t *subflow, const char *problem);
void subflow_break_status(subflow_t *subflow, tow_status_t take_status);
/* For TLS: cipher bytes from the socket; `context` is the subflow. */
size_t subflow_receive_cipher(void *context, void *bytes, size_t capacity);

/* On the loop, after a job. */
void subflow_sent(subflow_t *subflow);
void subflow_received(subflow_t *subflow);
/* Before a job: finds the write of a fragment whose head is complete. NULL, or
 * what the peer has done wrong. */
const char *subflow_find_arriving(subflow_t *subflow) TOW_MUST_USE;
/* Starts jobs for the writes of the trunk on idle subflows. */
void subflows_pump(tow_data_trunk_t *trunk);
void outgoing_end_all(tow_data_trunk_t *trunk);

#endif /* TOW_ENV_NET_DATA_TRUNK_IMPL_H_ */
