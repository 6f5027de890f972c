/* The drivers' side of the fabric. */
#ifndef TOW_DEVICE_SIM_FABRIC_IMPL_H_
#define TOW_DEVICE_SIM_FABRIC_IMPL_H_

#include <stdbool.h>

#include "base/list.h"
#include "base/map.h"
#include "device/sim/fabric.h"
#include "device/sim/tuning.h"
#include "env/env.h"

typedef struct rendezvous rendezvous_t;

/* The device ids of a gang by position; counted. All executables of a fabric
 * with the same devices share one, so that pointers can be compared and a
 * thousand hosts do not have a thousand copies. */
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

/* The fabric's part of a device. */
typedef struct member {
    int64_t device_id;
    tow_env_t *env;     /* lent; NULL: its host has died, and it will leave */
    tow_timer_t *timer; /* lent; fires when the collective has ended */
    rendezvous_t *rendezvous; /* NULL: in none */
    tow_list_t in_rendezvous;
    uint32_t rank;
    int64_t since_ns;
    uint64_t contribution; /* in: what the member brings */
    uint64_t combined;     /* out: of all members, when the timer fires */
    int64_t started_ns;    /* out: the last member arrived */
    int64_t end_ns;        /* out: the collective ends; the timer's deadline */
    /* Open rendezvous that miss it. If it waits elsewhere meanwhile, there may
     * be a cycle. */
    uint32_t awaited_count;
} member_t;

typedef struct arrival {
    uint64_t gang_id;
    uint32_t collective; /* of the program */
    tow_sim_collective_kind_t kind;
    uint64_t bytes;
    uint64_t duration_ns; /* of this member's model; the longest counts */
    group_t group;
    uint32_t rank;  /* in the group */
    int64_t now_ns; /* of the member's device */
} arrival_t;

struct rendezvous {
    tow_list_t in_fabric;
    rendezvous_t *next_same_hash;
    uint64_t hash;
    uint64_t gang_id;
    uint32_t collective;
    tow_sim_collective_kind_t kind;
    uint64_t bytes;
    uint64_t duration_ns;
    int64_t last_ns; /* the last arrival so far, in the devices' own time */
    group_t group;   /* its assignment is counted */
    tow_list_t members;
    uint32_t present_count; /* members that arrived and did not withdraw */
    bool is_open;           /* in the table: members may arrive */
    bool is_running;        /* all arrived, and none withdrew */
    bool has_departed;      /* a member has continued: it has ended */
    bool is_broken;         /* one withdrew: it will never be complete */
    bool is_reported;       /* in a deadlock */
    uint64_t combined;
    /* Of the search for a cycle. */
    uint64_t search_number;
    rendezvous_t *search_next;
    rendezvous_t *search_from;
    int64_t search_device; /* for which `search_from` waits here */
    uint64_t present[];    /* a bit per rank */
};

struct tow_sim_fabric {
    tow_sim_fabric_options_t options;
    tow_map_t members;         /* by device id */
    tow_map_t open;            /* hash to chain of rendezvous */
    tow_list_t all_rendezvous; /* oldest first */
    tow_map_t assignments;     /* hash to chain */
    tow_status_t deadlock;     /* counted */
    uint64_t search_count;
    tow_sim_fabric_counts_t counts;
    /* The gangs that were aborted last: a table, and a ring in the order in
     * which they are discarded. */
    tow_map_t aborted;
    uint64_t aborted_ids[TOW_SIM_ABORTED_GANGS_MAX];
    uint64_t aborted_count;
};

/* ALREADY_EXISTS for an id that another driver has. */
tow_status_t tow_sim_fabric_join(tow_sim_fabric_t *fabric, member_t *member)
    TOW_MUST_USE;
/* Withdraws the member and removes it. Does not call the member's env. Harmless
 * for one that has not joined. */
void tow_sim_fabric_leave(tow_sim_fabric_t *fabric, member_t *member);

/* Blocks the member until its timer fires. FAILED_PRECONDITION: the others wait
 * for a different collective here; then the member has not arrived. */
tow_status_t tow_sim_fabric_arrive(tow_sim_fabric_t *fabric, member_t *member,
                                   const arrival_t *arrival) TOW_MUST_USE;
/* The timer has fired: the member continues. */
void tow_sim_fabric_depart(tow_sim_fabric_t *fabric, member_t *member);
/* The member leaves before the end: the others stay blocked. Does not touch the
 * member's own timer. Harmless outside a rendezvous. */
void tow_sim_fabric_withdraw(tow_sim_fabric_t *fabric, member_t *member);

/* A member of the gang was aborted: others that wait, or arrive later, are not
 * part of a deadlock, because they will be aborted, too. */
void tow_sim_fabric_abort(tow_sim_fabric_t *fabric, uint64_t gang_id);

/* The shared assignment of these ids, one reference; NULL: no memory. */
assignment_t *tow_sim_assignment_intern(tow_sim_fabric_t *fabric,
                                        const int64_t *ids, uint32_t count);
void tow_sim_assignment_release(tow_sim_fabric_t *fabric,
                                assignment_t *assignment);

static inline int64_t tow_sim_group_id(const group_t *group, uint32_t rank)
{
    return group->assignment->ids[group->start + rank * group->stride];
}

static inline bool tow_sim_rendezvous_has(const rendezvous_t *rendezvous,
                                          uint32_t rank)
{
    return (rendezvous->present[rank / 64] >> (rank % 64) & 1) != 0;
}

void tow_sim_rendezvous_check(const rendezvous_t *rendezvous);

/* deadlock.c: reports a deadlock if the member that just arrived closed a
 * cycle. */
void tow_sim_fabric_find_cycle(tow_sim_fabric_t *fabric, member_t *member);

#endif /* TOW_DEVICE_SIM_FABRIC_IMPL_H_ */
