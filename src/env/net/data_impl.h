/* What the files of the data plane share. They are:
 *
 *   data_wire    bytes of addresses and headers, pure
 *   data_ucx     how UCX is set up, and what it is kept from doing
 *   data_ring    memory that two processes share, for fragments
 *   data_port    an endpoint of UCX with sends under way: what lanes and
 *                inbounds have in common
 *   data_lane    lanes that we opened, and datagrams
 *   data_write   our writes on them
 *   data_reach   memory of other processes of this host
 *   data_inbound lanes that others opened to us, and their writes
 *   data_pull    their writes that we fetch ourselves
 *   data_view    blocks of theirs that we have mapped, and writes that they lend
 *   data_region  memory that may be written to
 *   data         the whole: life, progress, messages that arrive
 *
 * Callbacks of UCX run inside ucp_worker_progress, and those of sends also
 * inside a close by force. Datagrams and arrivals are told from within, because
 * their bytes do not live longer; all other callbacks of users run after. An
 * endpoint is closed in a task only, never in a callback, and so is every
 * struct freed: within a callback all pointers stay good. */
#ifndef TOW_ENV_NET_DATA_IMPL_H_
#define TOW_ENV_NET_DATA_IMPL_H_

#include <ucp/api/ucp.h>

#include "base/map.h"
#include "base/pool.h"
#include "env/net/data.h"
#include "env/net/data_reach.h"
#include "env/net/data_ring.h"
#include "env/net/data_wire.h"
#include "env/net/net_impl.h"

typedef struct tow_data tow_data_t;
typedef struct tow_data_port tow_data_port_t;
typedef struct tow_data_op tow_data_op_t;
typedef struct tow_data_region tow_data_region_t;

typedef struct tow_data_bytes {
    const void *bytes;
    size_t size;
} tow_data_bytes_t;

/* -- Ports ---------------------------------------------------------------- */

typedef enum tow_data_flush {
    TOW_DATA_NOT_FLUSHED,
    TOW_DATA_FLUSHING,
    TOW_DATA_FLUSHED,
} tow_data_flush_t;

/* An endpoint of UCX. Lives longer than its owner when UCX needs it. */
struct tow_data_port {
    tow_data_t *data;     /* lent */
    ucp_ep_h ep;          /* owned; NULL before and after */
    void *ucx_address;    /* owned: where to; NULL once connected or closed */
    void *owner;          /* lent */
    bool is_local;        /* by shared memory */
    bool sends_at_once;   /* else by queue; see data_port.c */
    bool is_settled;      /* something has been sent */
    bool is_parked;       /* the owner is gone */
    uint32_t send_count;  /* operations inside UCX or in the outbox */
    ucs_status_t failure; /* UCS_OK while it works */
    tow_data_flush_t flush;
    tow_list_t parked;     /* in data->parked */
    tow_list_t connecting; /* in data->connecting */
    int64_t linger_ns;     /* until when a parked one may send */
    tow_list_t waiting;    /* in data->outboxes */
    tow_list_t outbox;     /* operations that UCX did not take */
    tow_net_task_t *task;  /* the owner's, deferred when the port changes */
    /* An operation has left. The op is freed by the caller. */
    void (*sent)(tow_data_port_t *port, tow_data_op_t *op);
};

/* A send under way. UCX keeps the header by pointer, so it lies here. */
struct tow_data_op {
    tow_list_t list;       /* in the port's outbox */
    tow_data_port_t *port; /* lent: it waits for us */
    tow_write_t *write;    /* lent: whose fragment it is, or NULL */
    tow_data_bytes_t payload;
    uint32_t datagram_cost;
    uint32_t header_size;
    tow_data_id_t id;
    bool has_room; /* from the pool of large ones */
    union {
        tow_data_datagram_t datagram;
        tow_data_fragment_t fragment;
        tow_data_control_t control;
        tow_data_pull_t pull;
    } header;
    uint8_t room[]; /* TOW_DATA_OP_SMALL_BYTES or _LARGE_BYTES */
};

#define TOW_DATA_OP_SMALL_BYTES 128u
#define TOW_DATA_OP_LARGE_BYTES TOW_DATAGRAM_SIZE_MAX
_Static_assert(TOW_DATA_ADDRESS_SIZE_MAX <= TOW_DATA_OP_LARGE_BYTES,
               "a HELLO carries an address");

typedef enum tow_data_sent {
    TOW_DATA_SENT,   /* and the op is free again */
    TOW_DATA_QUEUED, /* `sent` will run */
    TOW_DATA_FULL,   /* of tow_data_port_try: not now */
    TOW_DATA_FAILED, /* the op is free again, the port has failed */
} tow_data_sent_t;

typedef struct tow_data_port_options {
    tow_data_t *data;
    const tow_data_address_t *address; /* lent for the call */
    tow_net_task_t *task;
    void (*sent)(tow_data_port_t *port, tow_data_op_t *op);
    void *owner;
} tow_data_port_options_t;

tow_status_t tow_data_port_create(const tow_data_port_options_t *options,
                                  tow_data_port_t **out_port) TOW_MUST_USE;
/* Ports that were made inside of a callback get their endpoints. */
void tow_data_connect_work(tow_net_task_t *task);
/* Force: memory of users comes back from UCX, `sent` runs for it before this
 * returns. What the owner has told the peer may still go. In tasks only. */
void tow_data_port_close(tow_data_port_t *port);
/* The owner goes. Closes the port and frees it, now or later. In tasks only. */
void tow_data_port_release(tow_data_port_t *port);

/* NULL when memory is exhausted. */
tow_data_op_t *tow_data_op_take(tow_data_port_t *port, size_t payload_size);
void tow_data_op_give(tow_data_op_t *op);
/* Takes the op. `payload` lives until the op is free. */
tow_data_sent_t tow_data_port_send(tow_data_port_t *port, tow_data_op_t *op,
                                   tow_data_id_t id, size_t header_size,
                                   tow_data_bytes_t payload);
/* On a port that sends at once: now or FULL, and nothing is kept. */
tow_data_sent_t tow_data_port_try(tow_data_port_t *port, tow_data_id_t id,
                                  tow_data_bytes_t header,
                                  tow_data_bytes_t payload);
/* Sends a control message; FAILED also when memory is exhausted. The payload is
 * copied. */
tow_data_sent_t tow_data_port_tell(tow_data_port_t *port,
                                   const tow_data_control_t *control,
                                   tow_data_bytes_t payload);

/* Tries the messages that wait; true if one went. */
bool tow_data_flush_outboxes(tow_data_t *data);
/* Ends those parked ports that may be closed by now. */
void tow_data_parked_work(tow_net_task_t *task);
void tow_data_linger_fired(tow_timer_t *timer);
/* Whether a parked port may still send something. */
bool tow_data_has_lingering(const tow_data_t *data);
/* Before the worker is destroyed, when no progress is made any more. False if
 * it must not be destroyed. */
bool tow_data_parked_end(tow_data_t *data);
void tow_data_parked_free(tow_data_t *data);

/* -- Lanes ---------------------------------------------------------------- */

typedef enum tow_data_lane_state {
    TOW_DATA_LANE_OPEN,
    TOW_DATA_LANE_DRAINING, /* closing gracefully: writes are under way */
    TOW_DATA_LANE_LEAVING,  /* BYE is under way */
    TOW_DATA_LANE_BROKEN,   /* it failed and its owner has been told */
    TOW_DATA_LANE_ENDING,   /* its task will free it */
} tow_data_lane_state_t;

/* Whether the target fetches large writes by itself. */
typedef enum tow_data_reach_state {
    TOW_DATA_REACH_NONE,
    TOW_DATA_REACH_ASKED, /* HELLO_BACK will tell */
    TOW_DATA_REACH_GRANTED,
} tow_data_reach_state_t;

typedef struct tow_data_lane {
    tow_lane_t lane;
    tow_data_t *data;
    tow_data_port_t *port; /* owned */
    tow_net_task_t task;   /* what is to be done outside of callbacks */
    tow_list_t all;        /* in data->lanes */
    tow_list_t busy;       /* in data->busy while fragments can be sent */
    tow_data_lane_state_t state;
    bool is_cut; /* the port is closed and all writes have ended */
    bool wants_writable;
    bool bye_is_back;
    uint64_t stream;
    uint64_t node;         /* the peer's */
    tow_data_ring_t *ring; /* owned; NULL: none, or not yet */
    size_t fragment_bytes;
    uint32_t fragment_count; /* inside UCX with memory of users */
    uint32_t datagram_bytes; /* inside UCX, with their cost */
    uint32_t write_count;    /* accepted and not done */
    uint32_t large_count;    /* of more than one fragment, in `ready` */
    uint32_t reached_count;  /* by pulls, and not ended */
    uint32_t lent_count;     /* used by the target where they are */
    tow_data_reach_state_t reach;
    uint64_t reach_word; /* a random number that the target looks for */
    uint64_t next_write;
    tow_map_t writes;         /* by number, those that wait for an answer */
    tow_list_t ready;         /* writes with fragments to send, in turn */
    tow_list_t waiting;       /* large writes that are not in turn yet */
    tow_list_t reach_waiting; /* those that are to go by pulls */
    tow_list_t sent;          /* writes whose fragments have all been sent */
    tow_list_t lent;          /* writes that the target uses where they are */
    tow_list_t ending;        /* writes that ended with fragments inside UCX */
    tow_timer_t linger;
    bool sees_door;     /* the peer's, on this host: then ... */
    tow_timer_t watch;  /* ... looks after it while writes are under way */
    tow_status_t cause; /* owned: why it broke */
    tow_closed_t closed;
    void (*down)(void *context, tow_lane_t *lane, tow_status_t cause);
    void (*writable)(void *context, tow_lane_t *lane);
    void *context;
    char peer_name[TOW_PEER_NAME_MAX + 1];
} tow_data_lane_t;

tow_status_t tow_data_lane_open(tow_env_t *env,
                                const tow_lane_options_t *options,
                                tow_lane_t **out_lane) TOW_MUST_USE;
tow_send_result_t tow_data_lane_send(tow_lane_t *lane, uint64_t channel,
                                     const void *bytes, size_t size);
tow_send_result_t tow_data_lane_write(tow_lane_t *lane, tow_write_t *write);
void tow_data_lane_close(tow_lane_t *lane, tow_lane_close_mode_t mode,
                         tow_closed_t closed);
/* The env closes: as by force, and nobody is told but who asked. */
void tow_data_lanes_end(tow_data_t *data);

static inline bool tow_data_lane_takes_sends(const tow_data_lane_t *lane)
{
    return lane->state == TOW_DATA_LANE_OPEN && lane->port->failure == UCS_OK;
}
/* A write is under way: from now on the peer's death is noticed. */
void tow_data_lane_watch(tow_data_lane_t *lane);
/* TOW_SEND_FULL; `writable` will run. */
tow_send_result_t tow_data_lane_refuse(tow_data_lane_t *lane);
/* Something has completed. */
void tow_data_lane_note_progress(tow_data_lane_t *lane);

/* -- Writes --------------------------------------------------------------- */

/* Puts the lane among the busy ones if it has a fragment that may go. */
void tow_data_lane_mark_busy(tow_data_lane_t *lane);
/* A fragment of op->write has left UCX. */
void tow_data_write_sent(tow_data_op_t *op);
/* The target has said whether it pulls. */
void tow_data_lane_reach_told(tow_data_lane_t *lane, bool is_granted);
void tow_data_write_answered(tow_data_lane_t *lane,
                             const tow_data_control_t *control);
/* LENT has come. */
void tow_data_write_lent(tow_data_lane_t *lane,
                         const tow_data_control_t *control);
/* The lane is cut: ends all its writes. */
void tow_data_writes_end(tow_data_lane_t *lane, tow_status_t cause);
/* Sends fragments of busy lanes, up to a bound; true if there were any. */
bool tow_data_pump(tow_data_t *data);
/* Runs `done` of the writes that have ended, and `lent`. */
void tow_data_finish_writes(tow_data_t *data);
/* BYE_BACK, RESET or ANSWER has come for one of our lanes. */
void tow_data_lane_hear(tow_data_lane_t *lane,
                        const tow_data_control_t *control);

/* -- Inbounds ------------------------------------------------------------- */

typedef enum tow_data_inbound_state {
    TOW_DATA_INBOUND_OPEN,
    TOW_DATA_INBOUND_LEAVING, /* BYE_BACK is under way */
    TOW_DATA_INBOUND_ENDING,  /* its task will free it */
} tow_data_inbound_state_t;

typedef struct tow_data_inbound {
    tow_data_t *data;
    tow_data_port_t *port; /* owned, for answers; NULL: could not be made */
    tow_net_task_t task;
    tow_list_t all; /* in data->inbounds, oldest first */
    tow_data_inbound_state_t state;
    uint64_t stream;
    uint64_t node;
    tow_data_ring_t *ring;  /* owned, the peer's; NULL until it names one */
    tow_data_reach_t reach; /* owned: the peer's process, if we may read it */
    tow_list_t pulls;
    uint32_t pull_count;
    tow_list_t loans; /* writes of its that are used where they are */
    uint32_t partial_count;
    tow_data_partial_t partials[TOW_NET_LANE_LARGE_COUNT_MAX];
} tow_data_inbound_t;

void tow_data_inbound_hello(tow_data_t *data, const tow_data_control_t *control,
                            tow_data_bytes_t address);
void tow_data_inbound_bye(tow_data_inbound_t *inbound);
void tow_data_inbound_fragment(tow_data_inbound_t *inbound,
                               const tow_data_fragment_t *fragment,
                               tow_data_bytes_t payload);
/* Where the bytes of a fragment are that is in the peer's ring, or NULL. */
const void *tow_data_inbound_look(tow_data_inbound_t *inbound,
                                  const tow_data_ring_ref_t *ref);
void tow_data_inbound_answer(tow_data_inbound_t *inbound, uint64_t write,
                             tow_code_t code);
/* We use it where it is. */
void tow_data_inbound_tell_lent(tow_data_inbound_t *inbound, uint64_t write);
/* A write is in place: answers it and tells the region's owner. */
void tow_data_inbound_arrived(tow_data_inbound_t *inbound,
                              tow_data_region_t *region, uint64_t write,
                              const tow_arrival_t *arrival);
/* A pull has ended. */
void tow_data_inbound_release(tow_data_inbound_t *inbound);
/* The open inbound with this stream, or NULL. */
tow_data_inbound_t *tow_data_inbound_find(tow_data_t *data, uint64_t stream);
/* From now on nothing that `node` has sent on its present lanes gets in. */
void tow_data_inbounds_drop_of(tow_data_t *data, uint64_t node);
void tow_data_inbounds_drop_all(tow_data_t *data);

/* -- Pulls ---------------------------------------------------------------- */

void tow_data_inbound_pull(tow_data_inbound_t *inbound,
                           const tow_data_pull_t *what);
/* They end soon, on the loop, and nothing of them arrives. */
void tow_data_pulls_cancel_of_inbound(tow_data_inbound_t *inbound);
void tow_data_pulls_cancel_of_region(tow_data_region_t *region);

/* -- Views and loans ------------------------------------------------------ */

typedef struct tow_data_view tow_data_view_t;

/* Maps the block that a pull names, or finds it mapped. NULL: it cannot be, and
 * the bytes are to be fetched otherwise. */
tow_data_view_t *tow_data_view_open(tow_data_inbound_t *inbound,
                                    const tow_data_pull_t *what);
void tow_data_view_close(tow_data_view_t *view);
const uint8_t *tow_data_view_bytes(const tow_data_view_t *view,
                                   const tow_data_pull_t *what);
/* Those that nobody uses are unmapped. */
void tow_data_views_fired(tow_timer_t *timer);
void tow_data_views_end(tow_data_t *data);

/* May this write be used where it is? */
bool tow_data_may_borrow(const tow_data_region_t *region,
                         const tow_data_pull_t *what);
/* Uses it so, and tells both sides. False: no memory, and `view` is the
 * caller's still. */
bool tow_data_borrow(tow_data_inbound_t *inbound, tow_data_region_t *region,
                     const tow_data_pull_t *what, tow_data_view_t *take_view);
void tow_data_loan_end(tow_env_t *env, tow_loan_t *loan);
/* The lane is gone: what it lent stays with who has it. */
void tow_data_loans_detach(tow_data_inbound_t *inbound);

/* -- Regions -------------------------------------------------------------- */

struct tow_data_region {
    tow_region_t region;
    tow_data_t *data;
    uint8_t *bytes; /* lent by the owner */
    size_t size;
    bool may_borrow;
    void (*arrived)(void *context, tow_region_t *region,
                    const tow_arrival_t *arrival);
    void *context;
    tow_list_t pulls;
    uint32_t pull_count;
    bool is_closing;
    tow_net_task_t task;
    tow_closed_t closed;
};

tow_status_t tow_data_region_open(tow_env_t *env,
                                  const tow_region_options_t *options,
                                  tow_region_t **out_region) TOW_MUST_USE;
void tow_data_region_close(tow_region_t *region, tow_closed_t closed);
void tow_data_regions_end(tow_data_t *data);
/* A pull has ended. */
void tow_data_region_release(tow_data_region_t *region);
/* The region that this may be written to. Else why not. */
tow_code_t tow_data_region_find(tow_data_t *data, const tow_data_span_t *span,
                                tow_data_region_t **out_region);

/* -- The whole ------------------------------------------------------------ */

struct tow_data {
    tow_net_t *net; /* lent */
    ucp_context_h context;
    ucp_worker_h worker;
    bool uses_shm;
    bool uses_tcp;
    bool may_send_at_once; /* TCP is all there is beyond this host */
    bool is_closing;
    bool holds_net;
    bool is_gone;        /* the worker is being destroyed: hear nothing */
    bool clock_is_fresh; /* in this call of progress */
    bool is_in_ucx;      /* a callback of UCX may be running */
    bool is_stuck;       /* messages wait, and the last look moved none */
    ucp_request_param_t queue_param;
    ucp_request_param_t once_param;
    uint32_t send_count; /* of all ports that are not parked */
    uint32_t arm_busy_count;
    int64_t poll_ns; /* how long to sleep while sends do not move */
    tow_timer_t poll_timer;
    tow_pool_t small_ops;
    tow_pool_t large_ops;
    tow_net_complaints_t complaints;

    uint64_t node;
    uint64_t host;
    tow_data_door_t door;
    uint8_t *address; /* owned */
    size_t address_size;

    tow_list_t outboxes; /* ports with messages that UCX did not take */
    tow_list_t parked;
    tow_net_task_t parked_task;
    tow_timer_t linger_timer; /* of parked ports */
    tow_list_t connecting;    /* ports that wait for the task below */
    tow_net_task_t connect_task;

    tow_map_t lanes_by_stream;
    tow_list_t lanes;
    tow_list_t busy;
    tow_list_t finished; /* writes whose `done` is due */
    tow_list_t lent;     /* writes whose `lent` is due */

    tow_map_t inbounds_by_stream;
    tow_list_t inbounds;
    uint32_t inbound_count;
    tow_data_inbound_t *last_inbound; /* lent: the last that was found */

    tow_map_t regions;
    uint32_t region_count; /* closing ones included */
    uint64_t next_region;

    tow_list_t views;      /* in use */
    tow_list_t idle_views; /* the one not used for longest first */
    uint32_t idle_view_count;
    tow_timer_t view_timer; /* when the first of them goes */
    uint32_t loan_count;

    void (*datagram_arrived)(void *context, uint64_t channel, const void *bytes,
                             size_t size);
    void *datagram_context;

    uint64_t straggler_count; /* fragments of writes that had been refused */
    uint64_t pulled_count;    /* writes that have arrived by pulls */
    uint64_t borrowed_count;  /* writes that were lent to us */
    uint32_t damage_count;    /* tests: so many fragments to damage */
};

tow_data_t *tow_data_of(tow_env_t *env);

/* Before a callback of the user's: a turn begins. */
static inline void tow_data_begin_turn(tow_data_t *data)
{
    if (data->clock_is_fresh) return;
    data->clock_is_fresh = true;
    tow_net_refresh_clock(data->net);
}

/* One line about a peer that talks nonsense. */
void tow_data_complain(tow_data_t *data, uint64_t stream, const char *what);
/* Drops the net's hold when it closes and nothing is left. */
void tow_data_check_closed(tow_data_t *data);
/* A random number of the system's, never 0. */
tow_status_t tow_data_draw(uint64_t *out_number) TOW_MUST_USE;

/* -- data_ucx.c ----------------------------------------------------------- */

tow_status_t tow_data_ucx_open(tow_data_t *data, const char *devices)
    TOW_MUST_USE;
/* Accepts half-open. */
void tow_data_ucx_close(tow_data_t *data);

#endif /* TOW_ENV_NET_DATA_IMPL_H_ */
