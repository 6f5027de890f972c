/* Internals shared by the files of a trunk: trunk.c (opening, ending, ports),
 * trunk_send.c and trunk_receive.c. */
#ifndef TOW_ENV_NET_DATA_TRUNK_IMPL_H_
#define TOW_ENV_NET_DATA_TRUNK_IMPL_H_

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

struct tow_data_trunk {
    tow_data_t *data;     /* lent */
    tow_net_link_t *link; /* owned */
    tow_list_t all;       /* in data->trunks */
    tow_list_t ports;     /* that it carries */
    uint64_t node;        /* of the peer; 0: not known yet */
    trunk_state_t state;
    bool is_dialled;       /* by us */
    bool has_waiters;      /* a message was refused for lack of room */
    int64_t idle_since_ns; /* it carries no lane since then */
    tow_timer_t timer; /* to come up; then, while it carries no lane, to end */
    incoming_t incoming;
    /* Reading through TLS. */
    size_t unread_bytes; /* that this pass may still read from the socket */
    int receive_error;   /* of the last read; 0: none */
    bool has_ended;      /* the peer has closed its side */
};

/* The peer breaks the protocol. */
void trunk_refuse(tow_data_trunk_t *trunk, const char *what);
void trunk_on_greeting(tow_data_trunk_t *trunk,
                       const tow_data_greeting_t *greeting);
/* Sends it whether there is room or not. */
void trunk_send(tow_data_trunk_t *trunk, tow_data_id_t id,
                tow_data_bytes_t header, tow_data_bytes_t payload);
/* For TLS: cipher bytes from the socket; `context` is the trunk. */
size_t trunk_receive_cipher(void *context, void *bytes, size_t capacity);
/* Messages that were refused may be sent. */
void trunk_wake_senders(tow_data_trunk_t *trunk);

#endif /* TOW_ENV_NET_DATA_TRUNK_IMPL_H_ */
