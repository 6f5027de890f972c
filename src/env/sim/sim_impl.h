/* The insides of the simulated world.
 *
 * Whatever happens comes from a source: the inbox of a link, the timers of a
 * node, a datagram on its way. A source stands in the queue at most once, at
 * the time of its next event. Most sources name a node, and their events are
 * turns of it: while the node is busy, paused or waits for a core, they stand
 * in the node's ready list instead.
 *
 * Death. The things of a node that dies may still be in the queue. They stay
 * there, marked, and free themselves when their time comes; an event of a
 * dead thing is not counted. So nothing is ever searched for in the queue.
 *
 * Memory that runs out in mid-run ends the run (tow_sim_out_of_memory): the
 * calls of env.h that cannot fail then simply do nothing more. */
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

typedef struct channel channel_t;
typedef struct link link_t;
typedef struct item item_t;
typedef struct dial dial_t;
typedef struct listener listener_t;
typedef struct lane lane_t;
typedef struct region region_t;
typedef struct transfer transfer_t;

/* -- Sources -------------------------------------------------------------- */

/* Performs the event. Returns the time of the source's next one, or
 * TOW_TIME_NEVER, after which the source may be gone. */
typedef int64_t (*perform_t)(tow_sim_t *sim, source_t *source);

struct source {
    perform_t perform;
    tow_sim_node_t *node; /* whose turn it is; NULL: nobody's */
    source_t *next_ready;
    bool scheduled; /* in the queue, in a ready list, or being performed */
};

/* Puts the source into the queue. It must not be scheduled. */
void tow_sim_schedule_source(tow_sim_t *sim, source_t *source, int64_t time_ns);
/* The same, unless it is scheduled already: its event will see what is new. */
static inline void tow_sim_wake_source(tow_sim_t *sim, source_t *source,
                                       int64_t time_ns)
{
    if (!source->scheduled) tow_sim_schedule_source(sim, source, time_ns);
}

/* Something that leaves a node at the end of the turn that made it. */
typedef struct emission {
    struct emission *next;
    /* Sends it, or frees it if the node died before. */
    void (*emit)(tow_sim_t *sim, struct emission *emission);
} emission_t;

/* Something whose owner waits to hear that it is gone. First lets go of the
 * thing, then tells. */
typedef struct closure {
    struct closure *next;
    void (*release)(tow_sim_t *sim, struct closure *closure);
    tow_closed_t closed;
} closure_t;

/* -- The world ------------------------------------------------------------ */

typedef struct cut {
    uint64_t id; /* 0: healed */
    /* Owned, one byte a host: bit 0 in `a`, bit 1 in `b`. Hosts made later than
     * the cut are in neither. */
    uint8_t *sides;
    size_t side_count;
    tow_sim_direction_t direction;
} cut_t;

struct tow_sim {
    tow_sim_options_t options;
    int64_t now_ns;
    queue_t queue;
    source_t *stranded; /* those that the queue had no memory for */
    digest_t digest;
    tow_sim_counts_t counts;
    tow_random_t random; /* of the network and of new nodes */
    tow_fault_plan_t faults;
    tow_status_t failure; /* owned; the run is over */
    bool ending;          /* in tow_sim_destroy: only free */

    TOW_VEC(tow_sim_host_t *) hosts; /* owned */
    TOW_VEC(tow_sim_node_t *) nodes; /* owned */
    tow_names_t nodes_by_name;
    tow_names_t listeners; /* by address without its scheme */
    tow_map_t channels;    /* owned; by (from << 32 | to) */
    cut_t cuts[TOW_SIM_CUT_COUNT_MAX];
    uint64_t cut_id_last;
    uint64_t listener_id_last;

    /* The turn that is being performed. */
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
    size_t payload_bytes; /* of items and datagrams that are on the heap */

    /* Some node has posts of other threads. Set by anyone under the lock, which
     * also guards those lists; the world's own thread looks before each event.
     */
    atomic_bool has_foreign_posts;
    pthread_mutex_t foreign_lock;
};

TOW_COLD void tow_sim_out_of_memory(tow_sim_t *sim);

/* What perform returns when nothing more comes from the source for now. */
static inline int64_t tow_sim_source_rest(source_t *source)
{
    source->scheduled = false;
    return TOW_TIME_NEVER;
}

/* Counts and digests an event. */
static inline void tow_sim_record(tow_sim_t *sim, const event_t *event)
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
    tow_sim_node_t *waiting_first; /* for a core, in order */
    tow_sim_node_t *waiting_last;
};

/* What a lane address is made of. */
typedef struct lane_address {
    uint32_t magic;
    uint32_t node_index;
    uint64_t incarnation;
} lane_address_t;

/* What makes one life of a node go on. The queue may hold it longer than the
 * life lasts: it is freed when no source of it is scheduled. */
typedef struct pulse {
    source_t wake;   /* the end of a charged turn, or something is ready */
    source_t chores; /* start, completions, closures, posts */
    source_t due;    /* timers that are due, when they must wait for a turn */
    source_t alarm;  /* the soonest timer; in the queue any number of times */
    size_t alarm_count;
    tow_sim_node_t *node; /* NULL: that life is over */
} pulse_t;

struct tow_sim_node {
    tow_env_t env; /* first: an env is its node */
    tow_sim_t *sim;
    tow_sim_host_t *host;
    char *name; /* owned */
    source_t *ready_first;
    source_t *ready_last;
    uint32_t index;
    bool charges; /* as the host says */
    bool alive;
    bool paused;
    bool start_due;
    bool charging; /* the last turn is being paid for, until busy_until_ns */
    bool holds_core;
    bool waits_for_core;
    bool closing;
    bool closed;
    uint64_t incarnation;
    uint64_t features;
    const tow_sim_program_t *program;
    void *argument;
    void *machine; /* the program's own */

    pulse_t *pulse;   /* owned while alive, then by the queue */
    int64_t alarm_ns; /* the soonest time at which the alarm is in the queue */
    int64_t busy_until_ns;
    tow_timer_heap_t timers;
    uint64_t timer_sequence;
    tow_sim_node_t *next_waiting;

    tow_post_t *posts_first;
    tow_post_t *posts_last;
    tow_post_t *foreign_first; /* of other threads, under the world's lock */
    tow_post_t *foreign_last;
    closure_t *closures_first;
    closure_t *closures_last;
    tow_write_t *completed_first; /* see write.c */
    tow_write_t *completed_last;
    emission_t *outbox_first;
    emission_t *outbox_last;
    tow_list_t jobs;
    tow_list_t links;
    tow_list_t listeners;
    tow_list_t lanes;
    tow_map_t regions;
    uint64_t region_id_last;
    tow_closed_t env_closed;
    lane_address_t lane_address;
    void (*datagram_arrived)(void *context, uint64_t channel, const void *bytes,
                             size_t size);
    void *datagram_context;
};

extern const tow_env_ops_t tow_sim_env_ops;

static inline tow_sim_node_t *tow_sim_node_of(tow_env_t *env)
{
    return (tow_sim_node_t *)env;
}

/* turn.c: who may act, and what it costs. */

/* Whether the node can take a turn now; if not, `source` has been put into its
 * ready list. */
bool tow_sim_node_take_turn(tow_sim_node_t *node, source_t *source);
/* Between these two the node's callback runs. `cost_ns` is for what led to the
 * turn; callers add the bytes they handle. */
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
/* Lets it go: at once, or when the current turn has been paid for. */
void tow_sim_emit(tow_sim_node_t *node, emission_t *emission);
int64_t tow_sim_wake_perform(tow_sim_t *sim, source_t *source);
/* A node that was paused or waited may go on. */
void tow_sim_node_rouse(tow_sim_node_t *node);
/* The death of a node, as far as turns are concerned. */
void tow_sim_turn_forget(tow_sim_node_t *node);

/* chores.c: timers, posts, work, and closures. */
int64_t tow_sim_alarm_perform(tow_sim_t *sim, source_t *source);
int64_t tow_sim_due_perform(tow_sim_t *sim, source_t *source);
int64_t tow_sim_chores_perform(tow_sim_t *sim, source_t *source);
void tow_sim_chores_wake(tow_sim_node_t *node);
void tow_sim_timer_start(tow_env_t *env, tow_timer_t *timer);
void tow_sim_timer_stop(tow_env_t *env, tow_timer_t *timer);
void tow_sim_post(tow_env_t *env, tow_post_t *post);
void tow_sim_take_foreign_posts(tow_sim_t *sim);
/* Names the world that this thread performs events of. Returns the one before.
 */
tow_sim_t *tow_sim_set_performing(tow_sim_t *sim);
void tow_sim_close_later(tow_sim_node_t *node, closure_t *closure);
void tow_sim_chores_forget(tow_sim_node_t *node);

/* work.c */
void tow_sim_work_start(tow_env_t *env, tow_work_t *work);
void tow_sim_work_cancel(tow_env_t *env, tow_work_t *work);
void tow_sim_works_cancel(tow_sim_node_t *node);
void tow_sim_works_forget(tow_sim_node_t *node);
size_t tow_sim_job_bytes(void);

/* node.c */
pulse_t *tow_sim_pulse_create(tow_sim_node_t *node);
/* Frees it if its life is over and nothing of it is scheduled. */
void tow_sim_pulse_try_free(pulse_t *pulse);
void tow_sim_node_kill(tow_sim_node_t *node);
void tow_sim_node_destroy(tow_sim_node_t *node);
/* FAILED_PRECONDITION when nothing may be opened any more. */
tow_status_t tow_sim_check_open(const tow_sim_node_t *node) TOW_MUST_USE;
void tow_sim_env_close(tow_env_t *env, tow_closed_t closed);
/* Whether the node's env was told to close, has nothing left, and has not said
 * so. */
bool tow_sim_env_is_empty(const tow_sim_node_t *node);
/* Call when something of the node is gone: it may have been the last. */
void tow_sim_env_check_empty(tow_sim_node_t *node);

/* -- Channels ------------------------------------------------------------- */

/* One direction between two hosts. */
struct channel {
    const tow_sim_path_t *path; /* the world's, or own_path */
    tow_sim_path_t *own_path;   /* owned, or NULL */
    channel_t *reverse;         /* itself on one host */
    uint32_t from;
    uint32_t to;
    int64_t busy_until_ns;
    uint32_t cut_count; /* cuts that block it */
    uint32_t cut_epoch; /* counts its cuts and healings */
    tow_list_t links;   /* link ends that send into it, epochs only */
};

/* Made on first use. NULL when memory is exhausted. */
channel_t *tow_sim_channel(tow_sim_t *sim, tow_sim_host_t *from,
                           tow_sim_host_t *to);
static inline bool tow_sim_channel_is_cut(const channel_t *channel)
{
    return channel->cut_count > 0;
}
/* Takes the channel for `size` bytes from now on, and says when they are
 * through it and when they arrive. */
int64_t tow_sim_channel_transit(tow_sim_t *sim, channel_t *channel,
                                uint64_t size);
/* A packet without weight: latency and jitter alone. */
int64_t tow_sim_channel_trip(tow_sim_t *sim, channel_t *channel);
bool tow_sim_chance(tow_sim_t *sim, uint32_t ppm);
/* INVALID_ARGUMENT names what is out of range. */
tow_status_t tow_sim_check_delay(const char *name, int64_t delay_ns)
    TOW_MUST_USE;
tow_status_t tow_sim_check_path(const tow_sim_path_t *path) TOW_MUST_USE;
void tow_sim_channels_deinit(tow_sim_t *sim);

/* -- Links ---------------------------------------------------------------- */

typedef enum item_kind {
    ITEM_MESSAGE,
    ITEM_DAMAGED, /* its payload is a whole frame, damaged */
    ITEM_UP,
    ITEM_DOWN, /* the epoch or the attempt is over */
    ITEM_REDIAL,
} item_kind_t;

/* What stands in the inbox of a link, in order of arrival. */
struct item {
    emission_t emission; /* `next` is also the inbox's */
    link_t *link;        /* before it is emitted: the sending end, pinned */
    int64_t time_ns;     /* TOW_TIME_NEVER: stalled by a cut */
    uint32_t type;
    uint32_t size;
    uint32_t capacity;
    item_kind_t kind;
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

struct link {
    tow_link_t base; /* first */
    source_t source; /* the first item of the inbox */
    item_t *inbox_first;
    item_t *inbox_last;
    link_t *remote; /* the other end, while both are in the epoch */
    channel_t *out; /* to the remote's host, while in an epoch */
    uint64_t unacknowledged_bytes; /* sent, and no credit came yet */
    uint64_t taken_bytes;          /* received, and no credit given yet */
    item_t *writing;               /* begun and not committed */
    uint32_t peer_index;           /* the node of the other end */
    uint32_t pin_count; /* who still points here: source, items, credits */
    bool dead;          /* free it when nobody points here */
    bool inbox_ended;   /* nothing may follow what is in the inbox */
    bool wants_writable;
    tow_list_t by_node;
    tow_list_t by_channel;
    char *address;       /* owned; of a dialling link, without the scheme */
    char *expected_name; /* owned or NULL */
    dial_t *dial;        /* the attempt under way */
    int64_t dial_delay_ns;
    int64_t up_since_ns;
    closure_t closure;
};

struct listener {
    tow_listener_t base; /* first */
    tow_list_t by_node;
    char *address; /* owned; base.address points here */
    uint64_t id;
    bool closing;
    void (*accept)(void *context, tow_link_t *link);
    void *context;
    closure_t closure;
};

static inline tow_sim_node_t *tow_sim_link_node(const link_t *link)
{
    return (tow_sim_node_t *)link->base.env;
}

/* item.c: the inbox. */
item_t *tow_sim_item_create(tow_sim_t *sim, item_kind_t kind,
                            uint32_t capacity);
void tow_sim_item_free(tow_sim_t *sim, item_t *item);
uint8_t *tow_sim_item_bytes(item_t *item);
/* Takes the item; `time_ns` is moved back to keep the order. */
void tow_sim_inbox_take(tow_sim_t *sim, link_t *link, item_t *item,
                        int64_t time_ns);
item_t *tow_sim_inbox_pop(link_t *link);
void tow_sim_inbox_clear(link_t *link);
/* Drops what a cut holds back, and opens the inbox again for a DOWN. */
void tow_sim_inbox_drop_stalled(link_t *link);
/* Gives what a cut held back its times. */
void tow_sim_inbox_release_stalled(link_t *link);

/* link.c */
int64_t tow_sim_link_perform(tow_sim_t *sim, source_t *source);
link_t *tow_sim_link_create(tow_sim_node_t *node);
void tow_sim_link_unpin(tow_sim_t *sim, link_t *link);
/* Lets the link know at `time_ns` that the epoch or attempt is over. */
void tow_sim_link_end_at(link_t *link, int64_t time_ns,
                         tow_status_t take_cause);
/* Makes both ends strangers; neither is told. Returns the other one. */
link_t *tow_sim_link_part(link_t *link);
/* Joins two ends in an epoch. False when memory is exhausted. */
bool tow_sim_link_join(link_t *dialled, link_t *accepted);
/* The process of this end is gone. */
void tow_sim_link_kill(link_t *link);
/* The way between the ends is free again: what stalled moves on, and an end
 * that stayed behind alone is told. */
void tow_sim_link_healed(link_t *link);
/* Parts the ends and tells the other one, if the way there is free; else
 * healing or silence will. `what` follows our name: "died". */
void tow_sim_link_end_remote(link_t *link, const char *what);
void tow_sim_link_close(tow_link_t *base, tow_closed_t closed);

/* send.c */
/* Takes the item. */
void tow_sim_link_send_item(link_t *link, item_t *item);
/* The owner has taken so many bytes of the inbox. */
void tow_sim_link_take_bytes(tow_sim_t *sim, link_t *link, uint64_t size);
size_t tow_sim_credit_bytes(void);
tow_send_result_t tow_sim_link_begin(tow_link_t *base, uint32_t size_max,
                                     uint8_t **out_bytes);
void tow_sim_link_commit(tow_link_t *base, uint32_t type, uint32_t size);

/* dial.c */
tow_status_t tow_sim_listen(tow_env_t *env, const tow_listen_options_t *options,
                            tow_listener_t **out_listener);
void tow_sim_listener_close(tow_listener_t *base, tow_closed_t closed);
void tow_sim_listener_kill(listener_t *listener);
tow_status_t tow_sim_connect(tow_env_t *env,
                             const tow_connect_options_t *options,
                             tow_link_t **out_link);
/* Begins an attempt of a dialling link. */
void tow_sim_dial(link_t *link);
void tow_sim_dial_abandon(link_t *link);
size_t tow_sim_dial_bytes(void);

/* -- Lanes ---------------------------------------------------------------- */

/* lane.c */
void tow_sim_lane_address(tow_env_t *env, const void **out_bytes,
                          size_t *out_size);
tow_status_t tow_sim_lane_open(tow_env_t *env,
                               const tow_lane_options_t *options,
                               tow_lane_t **out_lane);
void tow_sim_lane_close(tow_lane_t *base, tow_lane_close_mode_t mode,
                        tow_closed_t closed);
/* By force, all of them. */
void tow_sim_lanes_close(tow_sim_node_t *node);
void tow_sim_lanes_forget(tow_sim_node_t *node);

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
void tow_sim_regions_forget(tow_sim_node_t *node);

/* write.c */
tow_send_result_t tow_sim_lane_write(tow_lane_t *base, tow_write_t *write);
void tow_sim_writes_forget(tow_sim_node_t *node);
size_t tow_sim_transfer_bytes(void);
size_t tow_sim_fragment_bytes(void);
/* Tells the owner of the first completed write. */
void tow_sim_write_complete_first(tow_sim_node_t *node);

/* -- Partitions ----------------------------------------------------------- */

/* tow_sim_partition with an id that was given out before. */
tow_status_t tow_sim_partition_as(tow_sim_t *sim, const tow_sim_cut_t *options,
                                  uint64_t cut_id) TOW_MUST_USE;
void tow_sim_apply_cuts(tow_sim_t *sim, channel_t *channel);
void tow_sim_cuts_deinit(tow_sim_t *sim);

#endif /* TOW_ENV_SIM_SIM_IMPL_H_ */
