/* The simulated data plane: lanes, regions, and the transfers that carry bulk
 * writes from a lane to a region. */
#ifndef TOW_ENV_SIM_LANE_IMPL_H_
#define TOW_ENV_SIM_LANE_IMPL_H_

#include "env/sim/sim_impl.h"

struct tow_sim_lane {
    tow_lane_t base; /* first */
    tow_list_t by_node;
    tow_sim_node_t *target;
    uint64_t target_incarnation;
    tow_sim_channel_t *out;
    char *peer_name; /* owned */
    void (*down)(void *context, tow_lane_t *lane, tow_status_t cause);
    void (*writable)(void *context, tow_lane_t *lane);
    void *context;
    tow_sim_source_t pump;   /* the next fragment leaves */
    tow_sim_source_t watch;  /* silence has lasted too long */
    tow_sim_source_t notify; /* a turn of the owner: `down` or `writable` */
    tow_list_t transfers;    /* not completed, in order of writing */
    tow_list_t to_send;      /* those with unsent bytes */
    size_t transfer_count;
    uint64_t datagram_bytes; /* in flight */
    int64_t silent_since_ns; /* TOW_TIME_NEVER: not silent */
    tow_status_t cause;      /* owned; why it broke */
    uint32_t pin_count;      /* the owner, and datagrams in flight */
    bool broken;
    bool down_due;
    bool wants_writable;
    bool closing;
    bool dead;
    tow_sim_pending_close_t pending_close;
};

struct tow_sim_region {
    tow_region_t base; /* first */
    uint8_t *bytes;    /* lent */
    size_t size;
    void (*arrived)(void *context, tow_region_t *region,
                    const tow_arrival_t *arrival);
    void *context;
    tow_list_t transfers; /* in progress into it */
    bool closing;
    tow_sim_pending_close_t pending_close;
};

typedef enum tow_sim_transfer_phase {
    TRANSFER_LANDING,   /* fragments leave and arrive */
    TRANSFER_REPEATING, /* wrong checksum: the resend request travels back */
    TRANSFER_ARRIVING,  /* a turn of the target */
    TRANSFER_RETURNING, /* the path back is cut */
    TRANSFER_ANSWERING, /* a turn of the writer */
} tow_sim_transfer_phase_t;

typedef struct tow_sim_fragment {
    struct tow_sim_fragment *next;
    int64_t time_ns;
    uint64_t size;
    bool damaged;
} tow_sim_fragment_t;

struct tow_sim_transfer {
    tow_sim_source_t source;
    tow_sim_emission_t emission;
    tow_list_t by_lane;
    tow_list_t by_queue; /* in the lane's to_send */
    tow_list_t by_region;
    tow_sim_lane_t *lane;     /* NULL exactly when `write` is */
    tow_write_t *write;       /* NULL: the writer was notified, or died */
    tow_sim_region_t *region; /* while it is being written to */
    tow_sim_node_t *writer;
    uint64_t writer_incarnation;
    uint64_t size;
    uint64_t offset;
    uint64_t tag;
    tow_sim_fragment_t *fragments_first; /* in flight */
    tow_sim_fragment_t *fragments_last;
    uint64_t sent_bytes;
    uint64_t landed_bytes;
    int64_t release_ns;  /* when an orphan releases its region */
    tow_status_t status; /* owned: the answer */
    uint32_t repeat_count;
    tow_sim_transfer_phase_t phase;
    bool in_outbox;
    bool aborted; /* by the target */
};

static inline tow_sim_node_t *tow_sim_lane_node(const tow_sim_lane_t *lane)
{
    return (tow_sim_node_t *)lane->base.env;
}

static inline bool tow_sim_lane_target_lives(const tow_sim_lane_t *lane)
{
    return lane->target->alive &&
           lane->target->incarnation == lane->target_incarnation;
}

/* lane.c */
void tow_sim_lane_unpin(tow_sim_lane_t *lane);
/* Space was freed: the owner may be waiting for it. */
void tow_sim_lane_credited(tow_sim_lane_t *lane);
/* A packet was sent to a dead target. If that lasts, the lane breaks. */
void tow_sim_lane_note_silence(tow_sim_lane_t *lane);
void tow_sim_lane_break(tow_sim_lane_t *lane, tow_status_t take_cause);
/* A transfer of the lane has ended. */
void tow_sim_lane_drained(tow_sim_lane_t *lane);
int64_t tow_sim_pump_perform(tow_sim_t *sim, tow_sim_source_t *source);

/* write.c */
/* Takes the fragment, which is in flight from now on. */
void tow_sim_transfer_launch(tow_sim_transfer_t *transfer,
                             tow_sim_fragment_t *fragment);
/* Frees it if neither side needs it and none of its sources is scheduled. */
void tow_sim_transfer_try_free(tow_sim_transfer_t *transfer);
/* Detaches the write from its transfer and notifies its owner, in a turn of its
 * own, unless the owner is dead. Fragments that arrive later are discarded; the
 * target releases the region at `release_ns`. */
void tow_sim_transfer_fail(tow_sim_transfer_t *transfer, int64_t release_ns,
                           tow_status_t take_status);
void tow_sim_transfer_orphan(tow_sim_transfer_t *transfer, int64_t release_ns);
/* The target rejects the rest: the writer is notified. */
void tow_sim_transfer_abort(tow_sim_transfer_t *transfer);

/* region.c */
/* The region for the write, or an error for its writer. */
tow_status_t tow_sim_region_find(tow_sim_node_t *node, const tow_write_t *write,
                                 tow_sim_region_t **out_region) TOW_MUST_USE;
void tow_sim_region_release(tow_sim_transfer_t *transfer);
/* Ends the transfers from one incarnation of a peer. */
void tow_sim_regions_abort_from(tow_sim_node_t *node, tow_sim_node_t *peer,
                                uint64_t incarnation);

#endif /* TOW_ENV_SIM_LANE_IMPL_H_ */
