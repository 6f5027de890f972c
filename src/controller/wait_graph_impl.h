/* The wait-for graph of devices in collectives, from the reports of workers; it
 * shows which devices stall a gang. */
#ifndef TOW_CONTROLLER_WAIT_GRAPH_IMPL_H_
#define TOW_CONTROLLER_WAIT_GRAPH_IMPL_H_

#include "controller/tuning.h"
#include "controller/types_impl.h"

/* A device that waits in a collective for other members. */
typedef struct tow_ctl_wait {
    int64_t device;
    uint64_t gang;
    uint64_t waited_ns;
    size_t missing_count;
    int64_t missing[TOW_WAIT_MISSING_MAX];
    /* During a search: */
    bool is_seen;
    struct tow_ctl_wait *after;
} tow_ctl_wait_t;

typedef struct tow_ctl_wait_graph {
    TOW_VEC(tow_ctl_wait_t) items;
    bool is_sorted; /* by device */
} tow_ctl_wait_graph_t;

/* The devices that stall gangs. */
typedef struct tow_ctl_stall {
    int64_t devices[TOW_STALL_NAMES_MAX];
    size_t device_count;
    bool has_more;
    size_t waiting_count; /* devices that wait for these, directly or not */
    uint64_t waited_ns;   /* the longest */
} tow_ctl_stall_t;

/* At most TOW_STALL_WAITS_MAX in all. */
void tow_ctl_wait_graph_add(tow_ctl_wait_graph_t *waits,
                            const tow_msg_report_t *message);
void tow_ctl_wait_graph_deinit(tow_ctl_wait_graph_t *waits);
/* Follows the waits in these gangs to devices that do not wait themselves. */
tow_ctl_stall_t tow_ctl_wait_graph_find_stall(tow_ctl_wait_graph_t *waits,
                                              uint64_t first_gang,
                                              uint64_t gang_count);

#endif /* TOW_CONTROLLER_WAIT_GRAPH_IMPL_H_ */
