/* Internals shared by the files of the data plane:
 *
 *   wire        layout of addresses and headers; pure functions
 *   ucx         set-up of UCX
 *   host        whether a peer shares our memory
 *   trunk       connections to other hosts, each for all lanes between two
 *               processes
 *   subflow     their extra connections, for striped writes, on other threads
 *   ring        fragment slots in memory shared by two processes
 *   port        a UCX endpoint, or a place on a trunk, with its pending sends,
 *               under lanes and inbounds
 *   lane        lanes that we opened, and datagrams
 *   write       our bulk writes on them
 *   cross_read  reading the memory of other processes of this host
 *   inbound     lanes that peers opened to us, and their writes
 *   pull        writes of peers that we read out of their memory
 *   view        mapped memory blocks of peers, and zero-copy shares in them
 *   region      memory that peers may write to
 *   data        creating and freeing, progress, incoming messages
 *
 * UCX runs callbacks inside ucp_worker_progress, and those of sends also inside
 * a close by force. Datagrams and arrivals are delivered from there, because
 * their bytes do not live longer; all other callbacks of users run later. An
 * endpoint is closed, and a struct freed, in tasks only: within a callback all
 * pointers stay valid. */
#ifndef TOW_ENV_NET_DATA_IMPL_H_
#define TOW_ENV_NET_DATA_IMPL_H_

#include <ucp/api/ucp.h>

#include "base/map.h"
#include "base/pool.h"
#include "env/net/data/cross_read.h"
#include "env/net/data/data.h"
#include "env/net/data/host.h"
#include "env/net/data/ring.h"
#include "env/net/data/trunk.h"
#include "env/net/data/wire.h"
#include "env/net/net_impl.h"

typedef struct tow_data tow_data_t;
typedef struct tow_data_port tow_data_port_t;
typedef struct tow_data_op tow_data_op_t;
typedef struct tow_data_region tow_data_region_t;
typedef struct tow_data_inbound tow_data_inbound_t;

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

/* Which way a lane takes, decided when it is opened. */
typedef enum tow_data_route {
    TOW_DATA_MEMORY,  /* UCX on shared memory: the peer is on this host */
    TOW_DATA_NETWORK, /* UCX on a network that both sides trust */
    TOW_DATA_TRUNK,
} tow_data_route_t;

/* A UCX endpoint, or a place on a trunk. Outlives its owner if UCX needs it. */
struct tow_data_port {
    tow_data_t *data; /* lent */
    tow_data_route_t route;
    tow_data_trunk_t *trunk; /* lent; NULL: none yet, or it has ended */
    tow_list_t in_trunk;     /* among its ports, or in data->awaiting */
    uint64_t node;           /* of the peer */
    tow_status_t cause;      /* owned: more than `failure` says, or TOW_OK */
    ucp_ep_h ep;          /* owned; NULL before connecting and after closing */
    void *ucx_address;    /* owned: the target; NULL once connected or closed */
    void *owner;          /* lent */
    bool sends_at_once;   /* else it queues; see port.c */
    bool is_settled;      /* a message has been sent */
    bool is_parked;       /* has no owner any more */
    uint32_t send_count;  /* operations inside UCX or in the outbox */
    ucs_status_t failure; /* UCS_OK while the port works */
    tow_data_flush_t flush;
    tow_list_t parked;     /* in data->parked */
    tow_list_t connecting; /* in data->connecting */
    int64_t linger_ns;     /* until when a parked port may send */
    tow_list_t waiting;    /* in data->outboxes */
    tow_list_t outbox;     /* operations that UCX did not accept */
    tow_net_task_t *task;  /* the owner's; deferred when the port changes */
    /* An operation has left UCX. The caller frees the op. */
    void (*sent)(tow_data_port_t *port, tow_data_op_t *op);
};

/* A pending send. UCX keeps a pointer to the header, so it is part of this. */
struct tow_data_op {
    tow_list_t list;       /* in the port's outbox */
    tow_data_port_t *port; /* lent: waits for this op */
    tow_write_t *write;    /* lent: the write of this fragment, or NULL */
    tow_data_bytes_t payload;
    uint32_t datagram_cost;
    uint32_t header_size;
    tow_data_id_t id;
    bool has_room; /* from the pool of large operations */
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
    TOW_DATA_SENT,   /* and the op is free */
    TOW_DATA_QUEUED, /* `sent` will run */
    TOW_DATA_FULL,   /* from tow_data_port_try: try again later */
    TOW_DATA_FAILED, /* the op is free, the port has failed */
} tow_data_sent_t;

typedef struct tow_data_port_options {
    tow_data_t *data;
    const tow_data_address_t *address; /* lent for the call */
    tow_data_trunk_t *trunk;           /* the one to use; NULL: find the way */
    tow_net_task_t *task;
    void (*sent)(tow_data_port_t *port, tow_data_op_t *op);
    void *owner;
} tow_data_port_options_t;

/* The way to the peer with this address. */
tow_data_route_t tow_data_route_to(const tow_data_t *data,
                                   const tow_data_address_t *address);
tow_status_t tow_data_port_create(const tow_data_port_options_t *options,
                                  tow_data_port_t **out_port) TOW_MUST_USE;
/* Ends all sends. `cause`, lent, may be TOW_OK. */
void tow_data_port_fail(tow_data_port_t *port, ucs_status_t failure,
                        tow_status_t cause);
/* What the port is waiting for, for an error message. */
void tow_data_port_describe(const tow_data_port_t *port, char *text,
                            size_t capacity);
/* Connects the ports that were created inside a callback. */
void tow_data_connect_work(tow_net_task_t *task);
/* Closes by force: UCX returns the memory of users, and `sent` runs for it
 * before this returns; subflows return it soon. Control messages of the owner may still be sent. In
 * tasks only. */
void tow_data_port_close(tow_data_port_t *port);
/* The owner is done with the port: closes and frees it, now or later. In tasks
 * only. */
void tow_data_port_release(tow_data_port_t *port);

/* NULL when memory is exhausted. */
tow_data_op_t *tow_data_op_take(tow_data_port_t *port, size_t payload_size);
void tow_data_op_give(tow_data_op_t *op);
/* Takes the op. `payload` must live until the op is free. */
tow_data_sent_t tow_data_port_send(tow_data_port_t *port, tow_data_op_t *op,
                                   tow_data_id_t id, size_t header_size,
                                   tow_data_bytes_t payload);
/* On a port that sends at once: sends now or returns FULL; keeps nothing. */
tow_data_sent_t tow_data_port_try(tow_data_port_t *port, tow_data_id_t id,
                                  tow_data_bytes_t header,
                                  tow_data_bytes_t payload);
/* Takes an op with a whole write, to be striped over the subflows of the port's
 * trunk: QUEUED, or FULL, and the caller keeps the op. */
tow_data_sent_t tow_data_port_stripe(tow_data_port_t *port, tow_data_op_t *op,
                                     tow_data_bytes_t payload);
/* The op has left UCX or the subflows: runs `sent`, frees it. */
void tow_data_port_note_sent(tow_data_op_t *op);
/* Sends a control message; FAILED also when memory is exhausted. The payload is
 * copied. */
tow_data_sent_t tow_data_port_send_control(tow_data_port_t *port,
                                           const tow_data_control_t *control,
                                           tow_data_bytes_t payload);

/* Retries the queued messages; true if one was sent. */
bool tow_data_flush_outboxes(tow_data_t *data);
/* Closes parked ports that may be closed by now. */
void tow_data_parked_work(tow_net_task_t *task);
void tow_data_linger_fired(tow_timer_t *timer);
/* Whether a parked port may still send. */
bool tow_data_has_lingering(const tow_data_t *data);
/* Called before the UCX worker is destroyed, after the last progress. False if
 * it must not be destroyed. */
bool tow_data_parked_end(tow_data_t *data);
void tow_data_parked_free(tow_data_t *data);

static inline bool tow_data_port_is_local(const tow_data_port_t *port)
{
    return port->route == TOW_DATA_MEMORY;
}

/* -- Trunks --------------------------------------------------------------- */

/* The trunk to a peer for a new lane, or NULL. */
tow_data_trunk_t *tow_data_trunk_find(tow_data_t *data,
                                      const tow_data_address_t *address);
tow_status_t tow_data_trunk_dial(tow_data_t *data,
                                 const tow_data_address_t *address,
                                 tow_data_trunk_t **out_trunk) TOW_MUST_USE;
bool tow_data_trunk_is_up(const tow_data_trunk_t *trunk);
/* For tests: sends raw bytes; false if it is not up. */
bool tow_data_trunk_inject(tow_data_trunk_t *trunk, const void *bytes,
                           size_t size);
/* Why it is not up. */
void tow_data_trunk_describe(const tow_data_trunk_t *trunk, char *text,
                             size_t capacity);
/* The dialler has said that it is idle. */
void tow_data_trunk_on_idle(tow_data_trunk_t *trunk);
void tow_data_trunk_attach(tow_data_trunk_t *trunk, tow_data_port_t *port);
/* Also of a port that waits for a trunk. */
void tow_data_trunk_detach(tow_data_port_t *port);
/* Sends a message now or returns FULL; keeps nothing. */
tow_data_sent_t tow_data_trunk_try(tow_data_trunk_t *trunk, tow_data_id_t id,
                                   tow_data_bytes_t header,
                                   tow_data_bytes_t payload);
void tow_data_trunks_end(tow_data_t *data);

/* -- Subflows ------------------------------------------------------------- */

/* How many a trunk may have in each direction: `text`, or TOW_DATA_STREAMS, or
 * as many as the cores suggest. */
tow_status_t tow_data_count_subflows(const char *text, uint32_t *out_count)
    TOW_MUST_USE;
/* Whether a write may be striped over subflows now. The first call opens them,
 * for later writes. */
bool tow_data_trunk_may_stripe(tow_data_trunk_t *trunk);
/* Takes the op, unless it returns false. */
bool tow_data_trunk_stripe(tow_data_trunk_t *trunk, tow_data_op_t *op);
/* For tests: sends raw bytes on a subflow of this trunk; false if none is
 * idle. */
bool tow_data_trunk_inject_striped(tow_data_trunk_t *trunk, const void *bytes,
                                   size_t size);
/* The striped writes of this port end soon. */
void tow_data_trunk_cancel_striped(tow_data_port_t *port);
/* Striped writes that are arriving are ignored from now on; those of a region
 * are answered when all their bytes have come. */
void tow_data_arriving_cancel_of_inbound(tow_data_inbound_t *inbound);
void tow_data_arriving_cancel_of_region(tow_data_region_t *region);

/* -- Lanes ---------------------------------------------------------------- */

typedef enum tow_data_lane_state {
    TOW_DATA_LANE_OPEN,
    TOW_DATA_LANE_DRAINING, /* closing gracefully: writes are pending */
    TOW_DATA_LANE_LEAVING,  /* BYE is pending */
    TOW_DATA_LANE_BROKEN,   /* failed; the owner has been notified */
    TOW_DATA_LANE_ENDING,   /* its task will free it */
} tow_data_lane_state_t;

/* Whether the target reads large writes out of our memory (cross_read.h). */
typedef enum tow_data_cross_read_state {
    TOW_DATA_CROSS_READ_NONE,
    TOW_DATA_CROSS_READ_REQUESTED, /* HELLO_BACK will have the answer */
    TOW_DATA_CROSS_READ_GRANTED,
} tow_data_cross_read_state_t;

typedef struct tow_data_lane {
    tow_lane_t lane;
    tow_data_t *data;
    tow_data_port_t *port; /* owned */
    tow_net_task_t task;   /* for work outside of callbacks */
    tow_list_t all;        /* in data->lanes */
    tow_list_t busy;       /* in data->busy while fragments can be sent */
    tow_data_lane_state_t state;
    bool is_cut; /* the port is closed and all writes have ended */
    bool wants_writable;
    bool bye_is_back;
    uint64_t stream;
    uint64_t node;         /* identifies the peer's data plane */
    tow_data_ring_t *ring; /* owned; NULL: none, or not created yet */
    size_t fragment_bytes;
    uint32_t fragment_count; /* inside UCX or subflows, with users' memory */
    uint32_t datagram_bytes; /* inside UCX, including their cost */
    uint32_t write_count;    /* accepted and not done */
    uint32_t large_count;    /* of more than one fragment, in `ready` */
    uint32_t whole_count;    /* sent as pulls, or striped, and not ended */
    uint32_t shared_count;   /* that the target shares */
    tow_data_cross_read_state_t cross_read;
    uint64_t cross_read_proof; /* random; proves to the target who we are */
    uint64_t next_write;
    tow_map_t writes;   /* by number: those without an answer */
    tow_list_t ready;   /* writes with fragments to send, round robin */
    tow_list_t waiting; /* large writes that wait for a place in `ready` */
    tow_list_t whole_waiting; /* those that wait to be sent as a whole */
    tow_list_t sent;          /* writes whose fragments have all been sent */
    tow_list_t shared;        /* writes that the target shares */
    tow_list_t ending;   /* ended ones of which fragment_count counts some */
    tow_timer_t opening; /* until the target has answered our HELLO */
    tow_timer_t linger;
    bool sees_endpoint; /* the peer has one on this host: ... */
    tow_timer_t watch;  /* ... polls it while writes are pending */
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
void tow_data_lane_prepare(tow_env_t *env, const void *address, size_t size);
tow_send_result_t tow_data_lane_send(tow_lane_t *lane, uint64_t channel,
                                     const void *bytes, size_t size);
tow_send_result_t tow_data_lane_write(tow_lane_t *lane, tow_write_t *write);
void tow_data_lane_close(tow_lane_t *lane, tow_lane_close_mode_t mode,
                         tow_closed_t closed);
/* The env closes: closes all lanes by force, without `down`. */
void tow_data_lanes_end(tow_data_t *data);

static inline bool tow_data_lane_takes_sends(const tow_data_lane_t *lane)
{
    return lane->state == TOW_DATA_LANE_OPEN && lane->port->failure == UCS_OK;
}
/* A write is pending: from now on the peer's death is detected. */
void tow_data_lane_watch(tow_data_lane_t *lane);
/* Returns TOW_SEND_FULL; `writable` will run. */
tow_send_result_t tow_data_lane_refuse(tow_data_lane_t *lane);
/* An operation has completed. */
void tow_data_lane_note_progress(tow_data_lane_t *lane);

/* -- Writes --------------------------------------------------------------- */

/* Adds the lane to the busy lanes if it has a fragment to send. */
void tow_data_lane_mark_busy(tow_data_lane_t *lane);
/* A fragment of op->write has left UCX. */
void tow_data_write_sent(tow_data_op_t *op);
/* The target's reply to our cross-read offer. */
void tow_data_lane_on_cross_read_reply(tow_data_lane_t *lane, bool is_granted);
void tow_data_write_on_answer(tow_data_lane_t *lane,
                              const tow_data_control_t *control);
/* The target shares the write. */
void tow_data_write_on_shared(tow_data_lane_t *lane,
                              const tow_data_control_t *control);
/* The lane is cut: ends all its writes. */
void tow_data_writes_end(tow_data_lane_t *lane, tow_status_t cause);
/* Sends fragments of busy lanes, up to a bound; true if any were sent. */
bool tow_data_pump(tow_data_t *data);
/* Runs `done` and `shared` of writes for which they are due. */
void tow_data_finish_writes(tow_data_t *data);
/* Handles a control message for one of our lanes. */
void tow_data_lane_on_control(tow_data_lane_t *lane,
                              const tow_data_control_t *control);

/* -- Inbound lanes -------------------------------------------------------- */

typedef enum tow_data_inbound_state {
    TOW_DATA_INBOUND_OPEN,
    TOW_DATA_INBOUND_LEAVING, /* BYE_BACK is pending */
    TOW_DATA_INBOUND_ENDING,  /* its task will free it */
} tow_data_inbound_state_t;

struct tow_data_inbound {
    tow_data_t *data;
    tow_data_port_t *port; /* owned, for answers; NULL: could not be created */
    tow_net_task_t task;
    tow_list_t all; /* in data->inbounds, oldest first */
    tow_data_inbound_state_t state;
    uint64_t stream;
    uint64_t node;
    tow_data_ring_t *ring; /* owned, attached; NULL until the peer names one */
    tow_data_cross_read_t
        cross_read; /* owned: the peer's process, if readable */
    tow_list_t pulls;
    uint32_t pull_count;
    tow_list_t shares; /* its writes that we share */
    uint32_t partial_count;
    tow_data_partial_t partials[TOW_NET_LANE_LARGE_COUNT_MAX];
    tow_list_t arriving; /* striped writes */
    uint32_t arriving_count;
};

/* `trunk`: on which the HELLO came; NULL: through UCX. */
void tow_data_inbound_hello(tow_data_t *data, tow_data_trunk_t *trunk,
                            const tow_data_control_t *control,
                            tow_data_bytes_t address);
void tow_data_inbound_bye(tow_data_inbound_t *inbound);
/* Where the bytes of the fragment go. NULL: they are to be ignored, and the
 * peer has been told. May be called again until the fragment has ended. */
uint8_t *tow_data_inbound_begin_fragment(tow_data_inbound_t *inbound,
                                         const tow_data_fragment_t *fragment);
/* All `size` bytes of the fragment are there. */
void tow_data_inbound_end_fragment(tow_data_inbound_t *inbound,
                                   const tow_data_fragment_t *fragment,
                                   size_t size);
/* The bytes of a fragment in the peer's ring, or NULL. */
const void *tow_data_inbound_ring_bytes(tow_data_inbound_t *inbound,
                                        const tow_data_ring_ref_t *ref);
void tow_data_inbound_answer(tow_data_inbound_t *inbound, uint64_t write,
                             tow_code_t code);
/* Notifies the writer that we share its write. */
void tow_data_inbound_send_shared(tow_data_inbound_t *inbound, uint64_t write);
/* A write is in place: answers it and notifies the region's owner. */
void tow_data_inbound_arrived(tow_data_inbound_t *inbound,
                              tow_data_region_t *region, uint64_t write,
                              const tow_arrival_t *arrival);
/* A pull has ended. */
void tow_data_inbound_release(tow_data_inbound_t *inbound);
/* The open inbound with this stream, or NULL. */
tow_data_inbound_t *tow_data_inbound_find(tow_data_t *data, uint64_t stream);
/* From now on, messages that `node` has sent on its present lanes are
 * rejected. */
void tow_data_inbounds_disconnect_node(tow_data_t *data, uint64_t node);
void tow_data_inbounds_disconnect_all(tow_data_t *data);

/* -- Pulls ---------------------------------------------------------------- */

void tow_data_inbound_pull(tow_data_inbound_t *inbound,
                           const tow_data_pull_t *what);
/* These pulls end soon, on the loop, without an arrival. */
void tow_data_pulls_cancel_of_inbound(tow_data_inbound_t *inbound);
void tow_data_pulls_cancel_of_region(tow_data_region_t *region);

/* -- Views and shares ----------------------------------------------------- */

typedef struct tow_data_view tow_data_view_t;

/* Maps the block that a pull names, or finds its mapping. NULL if it cannot be
 * mapped: the bytes must then be read by other means. */
tow_data_view_t *tow_data_view_open(tow_data_inbound_t *inbound,
                                    const tow_data_pull_t *what);
void tow_data_view_close(tow_data_view_t *view);
const uint8_t *tow_data_view_bytes(const tow_data_view_t *view,
                                   const tow_data_pull_t *what);
/* Unmaps views that have been idle for too long. */
void tow_data_views_fired(tow_timer_t *timer);
void tow_data_views_end(tow_data_t *data);

/* Whether this write may be shared instead of copied. */
bool tow_data_may_share(const tow_data_region_t *region,
                        const tow_data_pull_t *what);
/* Shares it and notifies both sides. False when memory is exhausted: the caller
 * then keeps `take_view`. */
bool tow_data_share_begin(tow_data_inbound_t *inbound,
                          tow_data_region_t *region,
                          const tow_data_pull_t *what,
                          tow_data_view_t *take_view);
void tow_data_share_release(tow_env_t *env, tow_share_t *share);
/* The lane has closed: its shares stay valid until their holders release
 * them. */
void tow_data_shares_detach(tow_data_inbound_t *inbound);

/* -- Regions -------------------------------------------------------------- */

struct tow_data_region {
    tow_region_t region;
    tow_data_t *data;
    uint8_t *bytes; /* lent by the owner */
    size_t size;
    bool may_share;
    void (*arrived)(void *context, tow_region_t *region,
                    const tow_arrival_t *arrival);
    void *context;
    tow_list_t pulls;
    tow_list_t arriving; /* striped writes */
    uint32_t pin_count;  /* pulls, and jobs of subflows that write here */
    bool is_closing;
    tow_net_task_t task;
    tow_closed_t closed;
};

tow_status_t tow_data_region_open(tow_env_t *env,
                                  const tow_region_options_t *options,
                                  tow_region_t **out_region) TOW_MUST_USE;
void tow_data_region_close(tow_region_t *region, tow_closed_t closed);
void tow_data_regions_end(tow_data_t *data);
/* A pull, or the job of a subflow, has ended. */
void tow_data_region_release(tow_data_region_t *region);
/* The region for this write; otherwise the code of the failure. */
tow_code_t tow_data_region_find(tow_data_t *data, const tow_data_extent_t *span,
                                tow_data_region_t **out_region);

/* -- The data plane ------------------------------------------------------- */

struct tow_data {
    tow_net_t *net; /* lent */
    ucp_context_h context;
    ucp_worker_h worker; /* NULL: no shared memory, and no trusted network */
    int event_fd;        /* owned: instead of the worker's */
    bool uses_shm;
    bool uses_tcp;
    bool trusts_network;   /* UCX may carry lanes between hosts */
    bool may_cross_read;   /* see cross_read.h */
    bool may_send_at_once; /* TCP is the only transport between hosts */
    bool is_closing;
    bool retains_net;
    bool is_gone;        /* the worker is being destroyed: ignore its events */
    bool clock_is_fresh; /* in the current call of progress */
    bool is_in_ucx;      /* a callback of UCX may be running */
    bool is_stuck;       /* messages are queued and the last try sent none */
    ucp_request_param_t queue_param;
    ucp_request_param_t once_param;
    uint32_t send_count; /* of all ports that are not parked */
    uint32_t arm_busy_count;
    int64_t poll_ns; /* how long to sleep while sends make no progress */
    tow_timer_t poll_timer;
    tow_pool_t small_ops;
    tow_pool_t large_ops;
    tow_net_log_limiter_t log_limiter;

    uint64_t node;
    tow_data_beacon_t beacon;
    tow_data_cross_endpoint_t endpoint;
    uint8_t *address; /* owned */
    size_t address_size;
    uint8_t *former_address; /* owned: before we listened; NULL: none */
    char listens[TOW_ADDRESS_TEXT_MAX + 32]; /* for trunks; "": nowhere */

    tow_list_t outboxes; /* ports with messages that UCX did not accept */
    tow_list_t parked;
    tow_net_task_t parked_task;
    tow_timer_t linger_timer; /* of parked ports */
    tow_list_t connecting;    /* ports that wait for the task below */
    tow_net_task_t connect_task;

    tow_list_t trunks;
    uint32_t trunk_count; /* with subflows that are being opened */
    uint32_t subflow_max; /* of a trunk, in each direction */
    tow_map_t trunks_by_node;
    tow_list_t awaiting;    /* ports whose peer must dial us */
    uint8_t *skipped_bytes; /* owned: TOW_NET_READ_BYTES for ignored ones */

    tow_map_t lanes_by_stream;
    tow_list_t lanes;
    tow_list_t busy;
    tow_list_t finished; /* writes whose `done` is due */
    tow_list_t shared;   /* writes whose `shared` callback is due */

    tow_map_t inbounds_by_stream;
    tow_list_t inbounds;
    uint32_t inbound_count;
    tow_data_inbound_t *last_inbound; /* lent: the last one looked up */

    tow_map_t regions;
    uint32_t region_count; /* including those that are closing */
    uint64_t next_region;

    tow_list_t views;      /* in use */
    tow_list_t idle_views; /* least recently used first */
    uint32_t idle_view_count;
    tow_timer_t view_timer; /* expiry of the first idle view */
    uint32_t share_count;

    void (*datagram_arrived)(void *context, uint64_t channel, const void *bytes,
                             size_t size);
    void *datagram_context;

    uint64_t straggler_count; /* fragments of writes that had been rejected */
    uint64_t pulled_count;    /* writes received by pulls */
    uint64_t striped_count;   /* writes received over subflows */
    uint64_t shared_arrival_count; /* writes received as shares */
    uint32_t damage_count;         /* for tests: fragments still to damage */
};

tow_data_t *tow_data_of(tow_env_t *env);
/* Whether lanes to that peer may use shared memory; see host.h. */
bool tow_data_is_on_this_host(const tow_data_t *data,
                              const tow_data_address_t *address);

/* Starts a turn; called before a callback of the user. */
static inline void tow_data_begin_turn(tow_data_t *data)
{
    if (data->clock_is_fresh) return;
    data->clock_is_fresh = true;
    tow_net_refresh_clock(data->net);
}

/* Messages that have arrived. `trunk` as above. */
void tow_data_receive_datagram(tow_data_t *data, tow_data_bytes_t header,
                               tow_data_bytes_t payload);
void tow_data_receive_control(tow_data_t *data, tow_data_trunk_t *trunk,
                              tow_data_bytes_t header,
                              tow_data_bytes_t payload);
/* Logs a malformed message of a peer, rate-limited. */
void tow_data_log_bad_peer(tow_data_t *data, uint64_t stream, const char *what);
/* Releases the net if it is closing and nothing is open. */
void tow_data_check_closed(tow_data_t *data);
/* A nonzero random number from the operating system. */
tow_status_t tow_data_random(uint64_t *out_number) TOW_MUST_USE;

/* -- check.c -------------------------------------------------------------- */

/* Each asserts the invariants of a record. O(1), except tow_data_check and
 * tow_data_views_check, which are for tests. */
void tow_data_lane_check(const tow_data_lane_t *lane);
void tow_data_inbound_check(const tow_data_inbound_t *inbound);
void tow_data_region_check(const tow_data_region_t *region);
void tow_data_port_check(const tow_data_port_t *port);
void tow_data_views_check(const tow_data_t *data);
void tow_data_check(const tow_data_t *data);

/* -- ucx.c ---------------------------------------------------------------- */

/* `trusted`: the network devices for lanes between hosts; NULL: none. */
tow_status_t tow_data_ucx_open(tow_data_t *data, const char *trusted)
    TOW_MUST_USE;
/* Accepts a half-open one. */
void tow_data_ucx_close(tow_data_t *data);

#endif /* TOW_ENV_NET_DATA_IMPL_H_ */
