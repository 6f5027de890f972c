/* Inside the exchange: senders (one per dialled node) and receivers (one per
 * accepted link), with streams that outlive links. */
#ifndef TOW_TOOL_EXCHANGE_IMPL_H_
#define TOW_TOOL_EXCHANGE_IMPL_H_

#include "base/arena.h"
#include "base/list.h"
#include "base/map.h"
#include "base/vec.h"
#include "tool/exchange.h"

/* Messages sent and not acknowledged yet, at most. */
#define EXCHANGE_WINDOW 256
/* Messages that one acknowledgement may stand for. */
#define EXCHANGE_ACK_EVERY 32
/* How long a shorter run waits for its acknowledgement. */
#define EXCHANGE_ACK_DELAY_NS 1000000
/* One decoded message, its payload included. */
#define EXCHANGE_ARENA_BYTES_MAX (1u << 18)
/* Blocks under way to one peer. */
#define EXCHANGE_BLOCKS_IN_FLIGHT 2

typedef struct exchange_sender exchange_sender_t;
typedef struct exchange_receiver exchange_receiver_t;

/* A block's tag names its stream too: the link that it arrives beside may be too
 * new to have carried a message of that stream. */
static inline uint64_t block_tag(uint64_t stream, uint64_t index)
{
    return stream << 32 | index;
}
static inline uint64_t block_stream(uint64_t tag)
{
    return tag >> 32;
}
static inline uint64_t block_index(uint64_t tag)
{
    return tag & UINT32_MAX;
}

typedef enum block_state {
    BLOCK_WAITING,
    BLOCK_FLYING,
    BLOCK_DONE
} block_state_t;

typedef struct block_slot {
    tow_write_t write;
    exchange_sender_t *sender; /* lent */
    uint8_t *bytes;            /* owned */
    uint64_t index;
    bool in_flight; /* the write is not done */
    /* Written, and the receiver has not confirmed it: it may not have looked at
     * the place yet. */
    bool unconfirmed;
} block_slot_t;

struct exchange_sender {
    tow_exchange_t *exchange; /* lent */
    tow_link_t *link;
    uint64_t stream;
    uint64_t peer_incarnation;
    uint64_t next_sequence; /* the next to put on the link */
    uint64_t acknowledged;  /* the receiver has all below */
    uint64_t sent_once;     /* all below have been sent at least once */
    tow_lane_t *lane;       /* NULL: none is open */
    tow_region_key_t key;   /* of the current offer */
    uint8_t *block_states;  /* owned, block_state_t each */
    uint64_t blocks_done;
    block_slot_t slots[EXCHANGE_BLOCKS_IN_FLIGHT];
    bool finished;
};

/* What a receiver knows of a stream. Survives breaks of the link; a new life
 * of the sender begins anew. */
typedef struct exchange_stream {
    tow_list_t all; /* in exchange->streams */
    uint64_t sender_incarnation;
    uint64_t expected; /* the next sequence to take */
} exchange_stream_t;

/* A region that was offered. One that is replaced lives until it is closed. */
typedef struct exchange_landing {
    tow_list_t all;                /* in receiver->landings */
    exchange_receiver_t *receiver; /* lent */
    tow_region_t *region;          /* NULL: not opened */
    bool closing;
    uint8_t memory[];
} exchange_landing_t;

struct exchange_receiver {
    tow_exchange_t *exchange; /* lent */
    tow_list_t all;           /* in exchange->receivers */
    tow_link_t *link;         /* NULL once closed */
    tow_list_t landings;      /* owned; the newest is last */
    tow_timer_t ack_timer;
    exchange_stream_t *stream; /* counted by nobody: lives in the exchange */
    uint64_t stream_id;
    uint64_t unacknowledged;
};

struct tow_exchange {
    tow_env_t *env; /* lent */
    tow_exchange_options_t options;
    tow_listener_t *listener;
    TOW_VEC(exchange_sender_t *) senders; /* owned */
    tow_list_t receivers;                 /* owned */
    tow_list_t streams;                   /* owned */
    tow_names_t streams_by_name;          /* "peer#stream" */
    size_t unfinished_count;
    tow_exchange_stats_t stats;
    tow_arena_t arena;      /* of the message that is being handled */
    tow_status_t violation; /* owned */
};

/* Keeps the first violation; takes the status. */
void exchange_violate(tow_exchange_t *exchange, tow_status_t take_status);

tow_status_t exchange_sender_create(tow_exchange_t *exchange,
                                    const char *address, uint64_t stream,
                                    exchange_sender_t **out_sender)
    TOW_MUST_USE;
void exchange_sender_destroy(exchange_sender_t *sender);

/* The accept callback of the listener; `context` is the exchange. */
void exchange_receiver_accept(void *context, tow_link_t *link);
void exchange_receiver_destroy(exchange_receiver_t *receiver);

#endif /* TOW_TOOL_EXCHANGE_IMPL_H_ */
