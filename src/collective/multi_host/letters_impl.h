/* Shared by letters.c (operations, aborts, timeouts) and peer.c (one peer: its
 * session, slots and credits). */
#ifndef TOW_COLLECTIVE_MULTI_HOST_LETTERS_IMPL_H_
#define TOW_COLLECTIVE_MULTI_HOST_LETTERS_IMPL_H_

#include "base/map.h"
#include "collective/multi_host/letters.h"

typedef enum letter_kind {
    LETTER_OF_BOX = 1,
    LETTER_ABORT, /* run_id; the code is in op_id; the reason follows */
} letter_kind_t;

/* The upper byte of a write's tag; a credit names its stream and slots below.
 */
typedef enum tag_kind {
    TAG_LETTER = 1,
    TAG_CREDIT,
    TAG_PROBE,
    TAG_HELLO,
} tag_kind_t;

/* The handshake message, written into the peer's hello region (its `door`). */
typedef struct hello {
    uint64_t magic;
    uint32_t process_id;
    uint32_t device_count;
    uint64_t session;      /* ours with this peer */
    uint64_t your_session; /* 0: not known yet */
    tow_region_key_t slots;
    uint32_t slot_bytes;
    uint32_t slot_count;
    uint64_t wants_answer; /* the peer may not know our session */
    uint64_t check;        /* hash of all fields above */
} hello_t;

#define HELLO_MAGIC UINT64_C(0x316e617073776f74)

typedef struct abort_note {
    bool is_set;
    bool is_ours; /* to be sent to peers that connect later */
    uint64_t run_id;
    tow_code_t code;
    char reason[TOW_MULTI_HOST_REASON_BYTES];
} abort_note_t;

typedef struct dead_process {
    uint32_t process_id;
    tow_status_t cause; /* owned; NULL: an empty place */
} dead_process_t;

/* Letters of one of our devices to a peer. */
typedef struct out_stream {
    uint32_t free_slots; /* bits: ours to use */
    tow_list_t waiting;  /* envelopes */
} out_stream_t;

/* Letters of one of a peer's devices to us. */
typedef struct in_stream {
    tow_letters_peer_t *peer;
    uint32_t owed_slots; /* bits: read, but not yet credited */
    uint32_t told_slots; /* bits: in the write below */
    tow_write_t credit;
    bool is_telling;
} in_stream_t;

struct tow_letters_peer {
    tow_letters_t *letters;
    tow_list_t list; /* in letters->retired, when it is */
    uint32_t process_id;
    uint32_t device_count;
    bool is_here;    /* on our host: no letters are exchanged */
    bool is_awake;   /* lane and region are open */
    bool is_failed;  /* the lane broke, or it violated the protocol */
    bool is_retired; /* removed: freed when no write is in flight */
    tow_region_key_t door;
    void *address; /* owned */
    size_t address_size;
    tow_status_t cause; /* owned: why it failed */
    int64_t heard_ns;

    tow_lane_t *lane;
    bool lane_is_closing;
    tow_region_t *region;
    bool region_is_closing;
    uint8_t *bytes;       /* owned: the region's */
    tow_letter_t *slots;  /* owned: the letters in it */
    in_stream_t *ins;     /* owned: device_count + 1, the last for notices */
    out_stream_t *outs;   /* owned: the same for us */
    tow_list_t flying;    /* envelopes whose writes are not done */
    size_t held_count;    /* letters that are not released */
    size_t writing_count; /* writes of all kinds that are not done */
    uint8_t scratch[8];   /* payload of credits and probes: unused */

    uint64_t session;
    uint64_t their_session; /* 0: no hello received */
    tow_region_key_t their_slots;
    bool has_answered; /* it knows our session */
    hello_t hello;
    tow_write_t hello_write;
    bool is_greeting;
    bool must_greet; /* again, when the write has completed */
    tow_timer_t hello_timer;
    int64_t hello_delay_ns;
    tow_write_t probe;
    bool is_probing;
};

struct tow_letters {
    tow_letters_options_t options;
    tow_env_t *env;
    tow_region_t *door;
    uint8_t *door_bytes; /* owned */
    tow_map_t peers;     /* by process id + 1 */
    tow_list_t retired;
    tow_list_t boxes;
    tow_list_t unclaimed; /* letters whose box is not open */
    tow_list_t unrouted;  /* envelopes to processes that are not added */
    tow_timer_t tick;
    int64_t awake_ns; /* we did not poll before: timeouts count from here */
    abort_note_t aborts[TOW_MULTI_HOST_ABORT_COUNT];
    uint64_t abort_count; /* the next entry is abort_count % size */
    dead_process_t dead[TOW_MULTI_HOST_DEAD_COUNT];
    uint64_t dead_count;
    tow_letters_stats_t stats;
    int64_t linger_ns; /* the deadline of closing; 0: open */
    bool is_closing;
    bool door_is_closed;
    tow_closed_t closed;
    tow_post_t end_post;
    bool end_is_posted;
};

/* -- peer.c ---------------------------------------------------------------- */

tow_status_t peer_create(tow_letters_t *letters,
                         const tow_multi_host_peer_t *about,
                         tow_letters_peer_t **out_peer) TOW_MUST_USE;
/* Opens its lane and region. No effect if it is awake, failed or on our host.
 */
void peer_wake(tow_letters_peer_t *peer);
/* Sends the letter, or queues it. */
void peer_send(tow_letters_peer_t *peer, tow_envelope_t *envelope);
/* A hello of this process has arrived. */
void peer_hear_hello(tow_letters_peer_t *peer, const hello_t *hello);
void peer_probe(tow_letters_peer_t *peer);
/* Whether letters can be sent to it now. */
static inline bool peer_is_up(const tow_letters_peer_t *peer)
{
    return peer->their_session != 0 && !peer->is_failed && !peer->is_retired;
}
/* Whether envelopes are queued for it or in flight. */
bool peer_has_mail(const tow_letters_peer_t *peer);
/* Notifies it of an aborted run. */
void peer_tell_abort(tow_letters_peer_t *peer, const abort_note_t *note);
/* Closes its lane and region; it is freed when no write is in flight. */
void peer_retire(tow_letters_peer_t *peer);
/* At once: no write is in flight, or the env no longer exists. */
void peer_free(tow_letters_peer_t *peer);
uint64_t hello_check(const hello_t *hello);

/* -- letters.c ------------------------------------------------------------- */

/* A letter of a box has arrived. */
void letters_sort(tow_letters_t *letters, tow_letter_t *letter);
/* Another process has aborted a run. */
void letters_hear_abort(tow_letters_t *letters, const tow_letter_t *letter);
/* A peer has failed: fails its boxes and notifies the owner. */
void letters_peer_failed(tow_letters_peer_t *peer);
/* It has just connected: sends aborts that it may not know. */
void letters_tell_aborts(tow_letters_peer_t *peer);
void letters_peer_gone(tow_letters_t *letters);
void letters_return(tow_letters_t *letters, tow_envelope_t *envelope);

#endif /* TOW_COLLECTIVE_MULTI_HOST_LETTERS_IMPL_H_ */
