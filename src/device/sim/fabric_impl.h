/* The drivers' side of the fabric. */
#ifndef TOW_DEVICE_SIM_FABRIC_IMPL_H_
#define TOW_DEVICE_SIM_FABRIC_IMPL_H_

#include <stdbool.h>

#include "base/list.h"
#include "base/map.h"
#include "device/sim/fabric.h"
#include "device/sim/tuning.h"
#include "env/env.h"

typedef struct meeting meeting_t;

/* The device ids of a gang by position. All executables of a fabric with the
 * same devices share one, so comparing is comparing pointers, and a thousand
 * hosts do not hold a thousand copies. Counted. */
typedef struct assignment {
    uint32_t reference_count;
    uint32_t count;
    uint64_t hash;
    struct assignment *next_same_hash;
    int64_t ids[];
} assignment_t;

/* Every `stride`th position from `start`. */
typedef struct group {
    assignment_t *assignment; /* lent */
    uint32_t start;
    uint32_t stride;
    uint32_t size;
} group_t;

/* A device as the fabric knows it; part of the device. */
typedef struct member {
    int64_t device_id;
    tow_env_t *env;     /* lent; NULL: its node has died, it will vanish */
    tow_timer_t *timer; /* lent; fires when the collective is over */
    /* Where it is. */
    meeting_t *meeting; /* NULL: in none */
    tow_list_t in_meeting;
    uint32_t rank;
    int64_t since_ns;
    uint64_t contribution; /* in: what the member brings */
    uint64_t combined;     /* out: of all members, when the timer fires */
    /* Meetings that have begun without it. When it waits elsewhere although
     * somebody waits for it, there may be a circle. */
    uint32_t awaited_count;
} member_t;

typedef struct arrival {
    uint64_t gang_id;
    uint32_t collective; /* of the program */
    tow_sim_collective_kind_t kind;
    uint64_t bytes;
    uint64_t duration_ns; /* by this member's model; the slowest decides */
    group_t group;
    uint32_t rank; /* in the group */
    int64_t now_ns;
} arrival_t;

struct meeting {
    tow_list_t in_fabric;
    meeting_t *next_same_hash;
    uint64_t hash;
    uint64_t gang_id;
    uint32_t collective;
    tow_sim_collective_kind_t kind;
    uint64_t bytes;
    uint64_t duration_ns;
    group_t group; /* its assignment is counted */
    tow_list_t members;
    uint32_t present_count; /* those that came and did not withdraw */
    bool is_open;           /* in the table: members may come */
    bool is_running;        /* all came, and none withdrew */
    bool has_departed;      /* somebody has gone on: it is over */
    bool is_broken;         /* one withdrew: it will never be complete */
    bool is_reported;       /* in a deadlock */
    uint64_t combined;
    /* Of the search for a circle. */
    uint64_t search_number;
    meeting_t *search_next;
    meeting_t *search_from;
    int64_t search_device; /* for which `search_from` waits here */
    uint64_t present[];    /* a bit a rank */
};

struct tow_sim_fabric {
    tow_sim_fabric_options_t options;
    tow_map_t members;     /* by device id */
    tow_map_t open;        /* hash to chain of meetings */
    tow_list_t meetings;   /* oldest first */
    tow_map_t assignments; /* hash to chain */
    tow_status_t deadlock; /* counted */
    uint64_t search_count;
    tow_sim_fabric_counts_t counts;
    /* Gangs that were aborted somewhere, the latest ones: a table and the order
     * in which they are forgotten. */
    tow_map_t aborted;
    uint64_t aborted_ids[TOW_SIM_ABORTED_GANGS_MAX];
    uint64_t aborted_count;
};

/* ALREADY_EXISTS for an id that another driver has. */
tow_status_t tow_sim_fabric_join(tow_sim_fabric_t *fabric, member_t *member)
    TOW_MUST_USE;
/* Leaves whatever it is in; the others stay blocked. Calls no env of the member
 * itself. Harmless for one that has not joined. */
void tow_sim_fabric_vanish(tow_sim_fabric_t *fabric, member_t *member);

/* Blocks the member until its timer fires. FAILED_PRECONDITION when the others
 * are about to do something else in this place: then it has not arrived. */
tow_status_t tow_sim_fabric_arrive(tow_sim_fabric_t *fabric, member_t *member,
                                   const arrival_t *arrival) TOW_MUST_USE;
/* The timer has fired: goes on. */
void tow_sim_fabric_depart(tow_sim_fabric_t *fabric, member_t *member);
/* Gives up before the end: the others stay blocked. Does not touch the member's
 * own timer. Harmless in no meeting. */
void tow_sim_fabric_withdraw(tow_sim_fabric_t *fabric, member_t *member);

/* Some member of the gang was aborted: others that still wait in it, or come,
 * are no part of a deadlock but wait to be aborted too. */
void tow_sim_fabric_abort(tow_sim_fabric_t *fabric, uint64_t gang_id);

/* The shared one of these ids; NULL when memory is exhausted. One reference. */
assignment_t *tow_sim_assignment_intern(tow_sim_fabric_t *fabric,
                                        const int64_t *ids, uint32_t count);
void tow_sim_assignment_release(tow_sim_fabric_t *fabric,
                                assignment_t *assignment);

static inline int64_t tow_sim_group_id(const group_t *group, uint32_t rank)
{
    return group->assignment->ids[group->start + rank * group->stride];
}

static inline bool tow_sim_meeting_has(const meeting_t *meeting, uint32_t rank)
{
    return (meeting->present[rank / 64] >> (rank % 64) & 1) != 0;
}

/* deadlock.c: has the member that just came to wait closed a circle? */
void tow_sim_fabric_look_for_circle(tow_sim_fabric_t *fabric, member_t *member);

#endif /* TOW_DEVICE_SIM_FABRIC_IMPL_H_ */
