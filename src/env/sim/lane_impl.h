/* The data plane of the simulated world: lanes, regions, and the transfers that
 * carry a bulk write from one to the other. */
#ifndef TOW_ENV_SIM_LANE_IMPL_H_
#define TOW_ENV_SIM_LANE_IMPL_H_

#include "env/sim/sim_impl.h"

struct lane {
    tow_lane_t base; /* first */
    tow_list_t by_node;
    tow_sim_node_t *target;
    uint64_t target_incarnation;
    channel_t *out;
    char *peer_name; /* owned */
    void (*down)(void *context, tow_lane_t *lane, tow_status_t cause);
    void (*writable)(void *context, tow_lane_t *lane);
    void *context;
    source_t pump;        /* the next fragment leaves */
    source_t watch;       /* silence has lasted too long */
    source_t news;        /* a turn of the owner: down or writable */
    tow_list_t transfers; /* not completed, in order of writing */
    tow_list_t to_send;   /* those with bytes that have not left */
    size_t transfer_count;
    uint64_t datagram_bytes; /* on their way */
    int64_t silent_since_ns; /* TOW_TIME_NEVER: it is not silent */
    tow_status_t cause;      /* owned; why it broke */
    uint32_t pin_count;      /* the owner, and datagrams on their way */
    bool broken;
    bool down_due;
    bool wants_writable;
    bool closing;
    bool dead;
    closure_t closure;
};

struct region {
    tow_region_t base; /* first */
    uint8_t *bytes;    /* lent */
    size_t size;
    void (*arrived)(void *context, tow_region_t *region,
                    const tow_arrival_t *arrival);
    void *context;
    tow_list_t transfers; /* under way into it */
    bool closing;
    closure_t closure;
};

typedef enum transfer_phase {
    TRANSFER_LANDING,   /* fragments leave and land */
    TRANSFER_REPEATING, /* the checksum was wrong: the news travels back */
    TRANSFER_ARRIVING,  /* a turn of the target */
    TRANSFER_RETURNING, /* the way back is cut */
    TRANSFER_ANSWERING, /* a turn of the writer */
} transfer_phase_t;

typedef struct fragment {
    struct fragment *next;
    int64_t time_ns;
    uint64_t size;
    bool damaged;
} fragment_t;

struct transfer {
    source_t source;
    emission_t emission;
    tow_list_t by_lane;
    tow_list_t by_queue; /* in the lane's to_send */
    tow_list_t by_region;
    lane_t *lane;       /* NULL exactly when `write` is */
    tow_write_t *write; /* NULL: the writer was told, or died */
    region_t *region;   /* while it is written to */
    tow_sim_node_t *writer;
    uint64_t writer_incarnation;
    uint64_t size;
    uint64_t offset;
    uint64_t tag;
    fragment_t *fragments_first; /* on their way */
    fragment_t *fragments_last;
    uint64_t sent_bytes;
    uint64_t landed_bytes;
    int64_t release_ns;  /* an orphan lets go of its region then */
    tow_status_t status; /* owned: the answer */
    uint32_t repeat_count;
    transfer_phase_t phase;
    bool in_outbox;
    bool aborted; /* by the target */
};

static inline tow_sim_node_t *tow_sim_lane_node(const lane_t *lane)
{
    return (tow_sim_node_t *)lane->base.env;
}

static inline bool tow_sim_lane_target_lives(const lane_t *lane)
{
    return lane->target->alive &&
           lane->target->incarnation == lane->target_incarnation;
}

/* lane.c */
void tow_sim_lane_unpin(lane_t *lane);
/* Room came free: the owner may be waiting for it. */
void tow_sim_lane_credited(lane_t *lane);
/* Something that was sent met nobody. If that lasts, the lane breaks. */
void tow_sim_lane_hush(lane_t *lane);
void tow_sim_lane_break(lane_t *lane, tow_status_t take_cause);
/* A transfer of the lane is over. */
void tow_sim_lane_drained(lane_t *lane);
int64_t tow_sim_pump_perform(tow_sim_t *sim, source_t *source);

/* write.c */
/* Takes the fragment, which is on its way from now. */
void tow_sim_transfer_launch(transfer_t *transfer, fragment_t *fragment);
/* Frees it if neither side needs it and nothing of it is scheduled. */
void tow_sim_transfer_try_free(transfer_t *transfer);
/* Takes the write away from its transfer and lets its owner know, in a turn of
 * its own, or not if the owner is dead. What lands afterwards is nobody's; the
 * target lets go of the region at `release_ns`. */
void tow_sim_transfer_fail(transfer_t *transfer, int64_t release_ns,
                           tow_status_t take_status);
void tow_sim_transfer_orphan(transfer_t *transfer, int64_t release_ns);
/* The target wants no more of it: the writer hears of that. */
void tow_sim_transfer_abort(transfer_t *transfer);

/* region.c */
/* The region that the write names, or an error for its writer. */
tow_status_t tow_sim_region_find(tow_sim_node_t *node, const tow_write_t *write,
                                 region_t **out_region) TOW_MUST_USE;
void tow_sim_region_release(transfer_t *transfer);
/* Ends what comes in from one life of a peer. */
void tow_sim_regions_abort_from(tow_sim_node_t *node, tow_sim_node_t *peer,
                                uint64_t incarnation);

#endif /* TOW_ENV_SIM_LANE_IMPL_H_ */
