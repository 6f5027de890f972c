/* Internals of the simulation.
 *
 * Every event comes from a source: the inbox of a link, the timers of a node, a
 * datagram in flight. A source is in the queue at most once, at the time of its
 * next event. Most sources belong to a node, and their events are turns of that
 * node: while it is busy, paused or waits for a core, they are in its ready
 * list instead.
 *
 * Death. Sources of a dead node may still be in the queue. They stay there,
 * marked, and free themselves when their time comes; their events are not
 * counted. So the queue is never searched.
 *
 * If memory runs out, the run ends (tow_sim_out_of_memory): calls of env.h that
 * cannot fail then have no effect. */
#ifndef TOW_ENV_SIM_SIM_IMPL_H_
#define TOW_ENV_SIM_SIM_IMPL_H_

#include <pthread.h>
#include <stdatomic.h>

#include "base/fault.h"
#include "base/list.h"
#include "base/map.h"
#include "base/pool.h"
#include "base/vec.h"
#include "env/sim/digest_impl.h"
#include "env/sim/queue_impl.h"
#include "env/sim/sim.h"
#include "env/sim/tuning.h"
#include "env/timer_heap.h"

typedef struct tow_sim_channel tow_sim_channel_t;
typedef struct tow_sim_link tow_sim_link_t;
typedef struct tow_sim_item tow_sim_item_t;
typedef struct tow_sim_dial tow_sim_dial_t;
typedef struct tow_sim_listener tow_sim_listener_t;
typedef struct tow_sim_lane tow_sim_lane_t;
typedef struct tow_sim_region tow_sim_region_t;
typedef struct tow_sim_transfer tow_sim_transfer_t;

/* -- Sources -------------------------------------------------------------- */

/* Performs the event. Returns the time of the source's next event, or
 * TOW_TIME_NEVER, after which the source may have been freed. */
typedef int64_t (*tow_sim_perform_t)(tow_sim_t *sim, tow_sim_source_t *source);

struct tow_sim_source {
    tow_sim_perform_t perform;
    tow_sim_node_t *node; /* whose turn it is; NULL: none */
    tow_sim_source_t *next_ready;
    bool scheduled; /* in the queue, in a ready list, or being performed */
};

/* Adds the source to the queue. It must not be scheduled. */
void tow_sim_schedule_source(tow_sim_t *sim, tow_sim_source_t *source,
                             int64_t time_ns);
/* The same, unless it is already scheduled: its event handles
 * everything that is due. */
static inline void tow_sim_wake_source(tow_sim_t *sim, tow_sim_source_t *source,
                                       int64_t time_ns)
{
    if (!source->scheduled) tow_sim_schedule_source(sim, source, time_ns);
}

/* Something that leaves a node when the turn that created it has been
 * charged. */
typedef struct tow_sim_emission {
    struct tow_sim_emission *next;
    /* Sends it, or frees it if the node has died. */
    void (*emit)(tow_sim_t *sim, struct tow_sim_emission *emission);
} tow_sim_emission_t;

/* An object whose owner waits for the end of its close: `release` frees the
 * object, then `closed` runs. */
typedef struct tow_sim_pending_close {
    struct tow_sim_pending_close *next;
    void (*release)(tow_sim_t *sim,
                    struct tow_sim_pending_close *pending_close);
    tow_closed_t closed;
} tow_sim_pending_close_t;

/* -- The simulation ------------------------------------------------------- */

typedef struct tow_sim_active_cut {
    uint64_t id; /* 0: healed */
    /* Owned, one byte per host: bit 0 for `a`, bit 1 for `b`. Hosts created
     * after the cut are in neither. */
    uint8_t *sides;
    size_t side_count;
    tow_sim_direction_t direction;
} tow_sim_active_cut_t;

struct tow_sim {
    tow_sim_options_t options;
    int64_t now_ns;
    tow_sim_queue_t queue;
    tow_sim_source_t *unqueued; /* sources for which the queue had no memory */
    tow_sim_digest_t digest;
    tow_sim_counts_t counts;
    tow_random_t random; /* for the network and new nodes */
    tow_fault_plan_t faults;
    tow_status_t failure; /* owned; ends the run */
    bool ending;          /* in tow_sim_destroy: only free */

    TOW_VEC(tow_sim_host_t *) hosts; /* owned */
    TOW_VEC(tow_sim_node_t *) nodes; /* owned */
    tow_names_t nodes_by_name;
    tow_names_t listeners; /* by address without its scheme */
    tow_map_t channels;    /* owned; by (from << 32 | to) */
    tow_sim_active_cut_t cuts[TOW_SIM_CUT_COUNT_MAX];
    uint64_t cut_id_last;
    uint64_t listener_id_last;

    /* The current turn. */
    tow_sim_node_t *current;
    int64_t turn_cost_ns;

    tow_pool_t items;
    tow_pool_t links;
    tow_pool_t dials;
    tow_pool_t credits;
    tow_pool_t datagrams;
    tow_pool_t transfers;
    tow_pool_t fragments;
    tow_pool_t jobs;
    size_t payload_bytes; /* heap memory of items and datagrams */

    /* Some node has posts from other threads. Set by any thread under the lock,
     * which also guards those lists; the simulation's thread checks it before
     * each event. */
    atomic_bool has_foreign_posts;
    pthread_mutex_t foreign_lock;
};

TOW_COLD void tow_sim_out_of_memory(tow_sim_t *sim);

/* The result of `perform` when the source has no next event. */
static inline int64_t tow_sim_source_rest(tow_sim_source_t *source)
{
    source->scheduled = false;
    return TOW_TIME_NEVER;
}

/* Counts the event and adds it to the digest. */
static inline void tow_sim_record(tow_sim_t *sim, const tow_sim_event_t *event)
{
    sim->counts.events++;
    tow_sim_digest_add(&sim->digest, event);
}

/* -- Hosts and nodes ------------------------------------------------------ */

struct tow_sim_host {
    uint32_t index;
    uint32_t core_count;
    uint32_t busy_core_count;
    bool charges; /* any cost is above zero */
    tow_sim_costs_t costs;
    tow_sim_node_t *waiting_first; /* for a core, in FIFO order */
    tow_sim_node_t *waiting_last;
};

/* The content of a lane address. */
typedef struct tow_sim_lane_address {
    uint32_t magic;
    uint32_t node_index;
    uint64_t incarnation;
} tow_sim_lane_address_t;

/* The event sources of one incarnation of a node. The queue may refer to them
 * after its end: they are freed when none of them is scheduled. */
typedef struct tow_sim_node_sources {
    tow_sim_source_t wake; /* the end of a charged turn, or a source is ready */
    tow_sim_source_t node_events; /* start, completions, closes, posts */
    tow_sim_source_t due;         /* due timers that must wait for a turn */
    tow_sim_source_t
        alarm; /* the next timer; in the queue any number of times */
    size_t alarm_count;
    tow_sim_node_t *node; /* NULL: the incarnation has ended */
} tow_sim_node_sources_t;

struct tow_sim_node {
    tow_env_t env; /* first: a tow_env_t is its node */
    tow_sim_t *sim;
    tow_sim_host_t *host;
    char *name; /* owned */
    tow_sim_source_t *ready_first;
    tow_sim_source_t *ready_last;
    uint32_t index;
    bool charges; /* copied from the host */
    bool alive;
    bool paused;
    bool start_due;
    bool charging; /* the last turn is charged until busy_until_ns */
    bool holds_core;
    bool waits_for_core;
    bool closing;
    bool closed;
    uint64_t incarnation;
    uint64_t features;
    const tow_sim_program_t *program;
    void *argument;
    void *machine; /* owned by the program */

    tow_sim_node_sources_t
        *node_sources; /* owned while alive, then by the queue */
    int64_t alarm_ns;  /* the earliest time of the alarm in the queue */
    int64_t busy_until_ns;
    tow_timer_heap_t timers;
    uint64_t timer_sequence;
    tow_sim_node_t *next_waiting;

    tow_post_t *posts_first;
    tow_post_t *posts_last;
    tow_post_t *foreign_first; /* from other threads, under foreign_lock */
    tow_post_t *foreign_last;
    tow_sim_pending_close_t *pending_closes_first;
    tow_sim_pending_close_t *pending_closes_last;
    tow_write_t *completed_first; /* see write.c */
    tow_write_t *completed_last;
    tow_sim_emission_t *outbox_first;
    tow_sim_emission_t *outbox_last;
    tow_list_t jobs;
    tow_list_t links;
    tow_list_t listeners;
    tow_list_t lanes;
    tow_map_t regions;
    uint64_t region_id_last;
    tow_closed_t env_closed;
    tow_sim_lane_address_t lane_address;
    void (*datagram_arrived)(void *context, uint64_t channel, const void *bytes,
                             size_t size);
    void *datagram_context;
};

extern const tow_env_ops_t tow_sim_env_ops;

static inline tow_sim_node_t *tow_sim_node_of(tow_env_t *env)
{
    return (tow_sim_node_t *)env;
}

/* turn.c: when a node may act, and what that costs. */

/* Whether the node can take a turn now; if not, `source` has been added to its
 * ready list. */
bool tow_sim_node_take_turn(tow_sim_node_t *node, tow_sim_source_t *source);
/* The node's callback runs between these two. `cost_ns` is for the cause of the
 * turn; callers add the cost of its bytes. */
void tow_sim_turn_begin(tow_sim_node_t *node, int64_t cost_ns);
void tow_sim_turn_end(tow_sim_node_t *node);
int64_t tow_sim_charge_receive(const tow_sim_node_t *node, uint64_t size);
static inline int64_t tow_sim_receive_cost(const tow_sim_node_t *node,
                                           uint64_t size)
{
    return TOW_LIKELY(!node->charges) ? 0 : tow_sim_charge_receive(node, size);
}
/* Charges the current turn for sending. */
void tow_sim_charge_send(tow_sim_node_t *node, uint64_t size);
/* Sends it: immediately, or when the current turn has been charged. */
void tow_sim_emit(tow_sim_node_t *node, tow_sim_emission_t *emission);
int64_t tow_sim_wake_perform(tow_sim_t *sim, tow_sim_source_t *source);
/* A node that was paused or waited for a core may continue. */
void tow_sim_node_continue(tow_sim_node_t *node);
/* The node has died: discards its state in this file. */
void tow_sim_turn_discard(tow_sim_node_t *node);

/* node_events.c: timers, posts, and notifications of closes. */
int64_t tow_sim_alarm_perform(tow_sim_t *sim, tow_sim_source_t *source);
int64_t tow_sim_due_perform(tow_sim_t *sim, tow_sim_source_t *source);
int64_t tow_sim_node_events_perform(tow_sim_t *sim, tow_sim_source_t *source);
void tow_sim_node_events_wake(tow_sim_node_t *node);
void tow_sim_timer_start(tow_env_t *env, tow_timer_t *timer);
void tow_sim_timer_stop(tow_env_t *env, tow_timer_t *timer);
void tow_sim_post(tow_env_t *env, tow_post_t *post);
void tow_sim_take_foreign_posts(tow_sim_t *sim);
/* Sets the simulation whose events this thread performs. Returns the one
 * before. */
tow_sim_t *tow_sim_set_performing(tow_sim_t *sim);
void tow_sim_close_later(tow_sim_node_t *node,
                         tow_sim_pending_close_t *pending_close);
void tow_sim_node_events_discard(tow_sim_node_t *node);

/* work.c */
void tow_sim_work_start(tow_env_t *env, tow_work_t *work);
void tow_sim_work_cancel(tow_env_t *env, tow_work_t *work);
void tow_sim_works_cancel(tow_sim_node_t *node);
void tow_sim_works_discard(tow_sim_node_t *node);
size_t tow_sim_job_bytes(void);

/* node.c */
tow_sim_node_sources_t *tow_sim_node_sources_create(tow_sim_node_t *node);
/* Frees them if the incarnation has ended and none of them is scheduled. */
void tow_sim_node_sources_try_free(tow_sim_node_sources_t *node_sources);
void tow_sim_node_kill(tow_sim_node_t *node);
void tow_sim_node_destroy(tow_sim_node_t *node);
/* FAILED_PRECONDITION when the env is closing. */
tow_status_t tow_sim_check_open(const tow_sim_node_t *node) TOW_MUST_USE;
void tow_sim_env_close(tow_env_t *env, tow_closed_t closed);
/* Whether the node's env is closing, has nothing open, and has not yet run
 * `closed`. */
bool tow_sim_env_is_empty(const tow_sim_node_t *node);
/* Called when something in the node's env has closed: it may have been the
 * last. */
void tow_sim_env_check_empty(tow_sim_node_t *node);

/* -- Channels ------------------------------------------------------------- */

/* One direction between two hosts. */
struct tow_sim_channel {
    const tow_sim_path_t *path; /* the default, or own_path */
    tow_sim_path_t *own_path;   /* owned, or NULL */
    tow_sim_channel_t *reverse; /* the same on one host */
    uint32_t from;
    uint32_t to;
    int64_t busy_until_ns;
    uint32_t cut_count; /* cuts that block it */
    uint32_t cut_epoch; /* counts its cuts and healings */
    tow_list_t links;   /* of link ends that send into it, during epochs */
};

/* Created on first use. NULL when memory is exhausted. */
tow_sim_channel_t *tow_sim_channel(tow_sim_t *sim, tow_sim_host_t *from,
                                   tow_sim_host_t *to);
static inline bool tow_sim_channel_is_cut(const tow_sim_channel_t *channel)
{
    return channel->cut_count > 0;
}
/* Occupies the channel for `size` bytes from now on. Returns the arrival
 * time. */
int64_t tow_sim_channel_transit(tow_sim_t *sim, tow_sim_channel_t *channel,
                                uint64_t size);
/* The arrival time of a packet without size: latency and jitter alone. */
int64_t tow_sim_channel_trip(tow_sim_t *sim, tow_sim_channel_t *channel);
bool tow_sim_chance(tow_sim_t *sim, uint32_t ppm);
/* INVALID_ARGUMENT names the field out of range. */
tow_status_t tow_sim_check_delay(const char *name, int64_t delay_ns)
    TOW_MUST_USE;
tow_status_t tow_sim_check_path(const tow_sim_path_t *path) TOW_MUST_USE;
void tow_sim_channels_deinit(tow_sim_t *sim);

/* -- Links ---------------------------------------------------------------- */

typedef enum tow_sim_item_kind {
    ITEM_MESSAGE,
    ITEM_DAMAGED, /* its payload is a whole frame, with a flipped bit */
    ITEM_UP,
    ITEM_DOWN, /* the epoch or the dial attempt has ended */
    ITEM_REDIAL,
} tow_sim_item_kind_t;

/* An entry in the inbox of a link, in order of arrival. */
struct tow_sim_item {
    tow_sim_emission_t emission; /* `next` also links the inbox */
    tow_sim_link_t *link; /* until it is emitted: the sending end, pinned */
    int64_t time_ns;      /* TOW_TIME_NEVER: stalled by a cut */
    uint32_t type;
    uint32_t size;
    uint32_t capacity;
    tow_sim_item_kind_t kind;
    union {
        uint8_t inline_bytes[TOW_SIM_INLINE_BYTES];
        uint8_t *bytes;     /* owned, when capacity > TOW_SIM_INLINE_BYTES */
        tow_status_t cause; /* owned; DOWN */
        struct {            /* UP */
            tow_sim_node_t *peer;
            uint64_t incarnation;
        } up;
    };
};

struct tow_sim_link {
    tow_link_t base;         /* first */
    tow_sim_source_t source; /* for the first item of the inbox */
    tow_sim_item_t *inbox_first;
    tow_sim_item_t *inbox_last;
    tow_sim_link_t *remote;        /* the other end, during an epoch */
    tow_sim_channel_t *out;        /* to the remote's host, during an epoch */
    uint64_t unacknowledged_bytes; /* sent, without credit yet */
    uint64_t taken_bytes;          /* received, without credit sent yet */
    tow_sim_item_t *writing;       /* begun and not committed */
    uint32_t peer_index;           /* the node of the other end */
    uint32_t pin_count;            /* references: source, items, credits */
    bool dead;                     /* to be freed with the last reference */
    bool inbox_ended;              /* nothing may be appended to the inbox */
    bool wants_writable;
    tow_list_t by_node;
    tow_list_t by_channel;
    char *address;        /* owned; of a dialling link, without scheme */
    char *expected_name;  /* owned or NULL */
    tow_sim_dial_t *dial; /* the attempt in progress */
    int64_t dial_delay_ns;
    int64_t up_since_ns;
    tow_sim_pending_close_t pending_close;
};

struct tow_sim_listener {
    tow_listener_t base; /* first */
    tow_list_t by_node;
    char *address; /* owned; base.address points here */
    uint64_t id;
    bool closing;
    void (*accept)(void *context, tow_link_t *link);
    void *context;
    tow_sim_pending_close_t pending_close;
};

static inline tow_sim_node_t *tow_sim_link_node(const tow_sim_link_t *link)
{
    return (tow_sim_node_t *)link->base.env;
}

/* item.c: the inbox. */
tow_sim_item_t *tow_sim_item_create(tow_sim_t *sim, tow_sim_item_kind_t kind,
                                    uint32_t capacity);
void tow_sim_item_free(tow_sim_t *sim, tow_sim_item_t *item);
uint8_t *tow_sim_item_bytes(tow_sim_item_t *item);
/* Takes the item; delays `time_ns` as needed to keep the order. */
void tow_sim_inbox_take(tow_sim_t *sim, tow_sim_link_t *link,
                        tow_sim_item_t *item, int64_t time_ns);
tow_sim_item_t *tow_sim_inbox_pop(tow_sim_link_t *link);
void tow_sim_inbox_clear(tow_sim_link_t *link);
/* Discards the items stalled by a cut, and reopens the inbox for a DOWN. */
void tow_sim_inbox_discard_stalled(tow_sim_link_t *link);
/* Schedules the items that a cut stalled. */
void tow_sim_inbox_release_stalled(tow_sim_link_t *link);

/* link.c */
int64_t tow_sim_link_perform(tow_sim_t *sim, tow_sim_source_t *source);
tow_sim_link_t *tow_sim_link_create(tow_sim_node_t *node);
void tow_sim_link_unpin(tow_sim_t *sim, tow_sim_link_t *link);
/* The link learns at `time_ns` that its epoch or attempt has ended. */
void tow_sim_link_end_at(tow_sim_link_t *link, int64_t time_ns,
                         tow_status_t take_cause);
/* Ends the epoch of both ends without notifying them. Returns the other end. */
tow_sim_link_t *tow_sim_link_disconnect(tow_sim_link_t *link);
/* Starts an epoch of two ends. False when memory is exhausted. */
bool tow_sim_link_connect(tow_sim_link_t *dialled, tow_sim_link_t *accepted);
/* The process of this end has died. */
void tow_sim_link_kill(tow_sim_link_t *link);
/* The cut between the ends is healed: stalled items move on, and an end without
 * a peer is notified. */
void tow_sim_link_healed(tow_sim_link_t *link);
/* Disconnects the ends and notifies the other one if the path is free;
 * otherwise healing or a timeout will. `what` follows our name: "died". */
void tow_sim_link_end_remote(tow_sim_link_t *link, const char *what);
void tow_sim_link_close(tow_link_t *base, tow_closed_t closed);

/* send.c */
/* Takes the item. */
void tow_sim_link_send_item(tow_sim_link_t *link, tow_sim_item_t *item);
/* The owner has consumed `size` bytes of the inbox. */
void tow_sim_link_take_bytes(tow_sim_t *sim, tow_sim_link_t *link,
                             uint64_t size);
size_t tow_sim_credit_bytes(void);
tow_send_result_t tow_sim_link_begin(tow_link_t *base, uint32_t size_max,
                                     uint8_t **out_bytes);
void tow_sim_link_commit(tow_link_t *base, uint32_t type, uint32_t size);

/* dial.c */
tow_status_t tow_sim_listen(tow_env_t *env, const tow_listen_options_t *options,
                            tow_listener_t **out_listener);
void tow_sim_listener_close(tow_listener_t *base, tow_closed_t closed);
void tow_sim_listener_kill(tow_sim_listener_t *listener);
tow_status_t tow_sim_connect(tow_env_t *env,
                             const tow_connect_options_t *options,
                             tow_link_t **out_link);
/* Starts an attempt of a dialling link. */
void tow_sim_dial(tow_sim_link_t *link);
void tow_sim_dial_discard(tow_sim_link_t *link);
size_t tow_sim_dial_bytes(void);

/* -- Lanes ---------------------------------------------------------------- */

/* lane.c */
void tow_sim_lane_prepare(tow_env_t *env, const void *address, size_t size);
void tow_sim_lane_address(tow_env_t *env, const void **out_bytes,
                          size_t *out_size);
tow_status_t tow_sim_lane_open(tow_env_t *env,
                               const tow_lane_options_t *options,
                               tow_lane_t **out_lane);
void tow_sim_lane_close(tow_lane_t *base, tow_lane_close_mode_t mode,
                        tow_closed_t closed);
/* Closes all of them by force. */
void tow_sim_lanes_close(tow_sim_node_t *node);
void tow_sim_lanes_discard(tow_sim_node_t *node);

/* datagram.c */
tow_send_result_t tow_sim_lane_send(tow_lane_t *base, uint64_t channel,
                                    const void *bytes, size_t size);
void tow_sim_set_datagram_handler(tow_env_t *env,
                                  void (*arrived)(void *context,
                                                  uint64_t channel,
                                                  const void *bytes,
                                                  size_t size),
                                  void *context);
size_t tow_sim_datagram_bytes(void);

/* region.c */
tow_status_t tow_sim_region_open(tow_env_t *env,
                                 const tow_region_options_t *options,
                                 tow_region_t **out_region);
void tow_sim_region_close(tow_region_t *base, tow_closed_t closed);
void tow_sim_regions_close(tow_sim_node_t *node);
void tow_sim_regions_discard(tow_sim_node_t *node);

/* write.c */
tow_send_result_t tow_sim_lane_write(tow_lane_t *base, tow_write_t *write);
void tow_sim_writes_discard(tow_sim_node_t *node);
size_t tow_sim_transfer_bytes(void);
size_t tow_sim_fragment_bytes(void);
/* Runs `done` of the first completed write. */
void tow_sim_write_complete_first(tow_sim_node_t *node);

/* -- Partitions ----------------------------------------------------------- */

/* tow_sim_partition with an id that was assigned before. */
tow_status_t tow_sim_partition_as(tow_sim_t *sim, const tow_sim_cut_t *options,
                                  uint64_t cut_id) TOW_MUST_USE;
void tow_sim_apply_cuts(tow_sim_t *sim, tow_sim_channel_t *channel);
void tow_sim_cuts_deinit(tow_sim_t *sim);

#endif /* TOW_ENV_SIM_SIM_IMPL_H_ */
