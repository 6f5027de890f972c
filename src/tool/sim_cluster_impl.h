/* What the files of the simulated cluster share: sim_cluster.c has the world, its
 * faults and its checks, sim_client.c what a client does. */
#ifndef TOW_TOOL_SIM_CLUSTER_IMPL_H_
#define TOW_TOOL_SIM_CLUSTER_IMPL_H_

#include "base/list.h"
#include "base/vec.h"
#include "client/client.h"
#include "tool/sim_cluster.h"
#include "tool/sim_roles.h"

#define SIM_MILLISECOND_NS 1000000
#define SIM_SECOND_NS      1000000000
#define SIM_NAME_SIZE      32
#define SIM_SLICES_MAX     3
#define SIM_FUNCTIONS      4 /* of each slice and size */
#define SIM_HOSTS          3 /* the same, of host functions */
#define SIM_SIZES          3 /* of arrays: inlined, either, over lanes */
#define SIM_PROGRAMS_MAX   4
#define SIM_ISLANDS_MAX    4
#define SIM_PARTS_MAX      3  /* of a program, on slices of any islands */
#define SIM_VALUES_MAX     6  /* arguments or results of a program */
#define SIM_ARRAYS_MAX     96 /* that a client keeps, where memory is short */
#define SIM_ARRAYS_FEW     24
#define SIM_PATTERN_BYTES  (2u << 20)

typedef struct sim_cluster sim_cluster_t;

/* One of the cluster's processes, through all its lives. */
typedef struct sim_process {
    sim_cluster_t *cluster;
    size_t index; /* among those of its kind */
    char name[SIM_NAME_SIZE];
    tow_sim_host_t *host; /* lent by the world */
    tow_sim_node_t *node; /* lent by the world */
    tow_sim_role_t role;  /* of a controller or worker */
    /* Of a client: what is left to do, and how often it began. */
    uint32_t operations_left;
    bool is_done;
    uint64_t life;
} sim_process_t;

struct sim_cluster {
    const tow_sim_cluster_options_t *options; /* lent */
    tow_random_t random;
    tow_sim_t *sim;           /* owned */
    tow_sim_fabric_t *fabric; /* owned */
    tow_sim_model_t model;
    sim_process_t controller;
    sim_process_t *workers; /* owned */
    size_t worker_count;
    sim_process_t *clients; /* owned */
    size_t client_count;
    size_t devices_per_worker;
    size_t island_count; /* worker i is of island i modulo this */
    char islands[SIM_ISLANDS_MAX][SIM_NAME_SIZE];
    uint64_t memory_bytes; /* of a device */
    uint32_t relay_fanout;
    bool is_calm;  /* nothing goes wrong: nor may anything fail */
    bool is_tight; /* memory may run out */
    /* It is, and what is kept is several times as much; nothing goes wrong, and
     * hosts have enough: so nothing may fail for want of it. */
    bool is_spilling;
    uint64_t host_bytes; /* of a worker, for what is spilled */
    bool is_damaging;    /* bytes may change on their way */
    uint32_t process_number;
    uint32_t check_every; /* events */
    size_t fault_count;
    tow_status_t deadlock; /* owned: the last that was named */
    int64_t deadlock_ns;
    int64_t alone_ns; /* since when all clients are done; 0: they are not */
    uint8_t *pattern; /* owned: what clients upload */
    tow_sim_cluster_stats_t stats;
};

extern const tow_sim_program_t tow_sim_client_program;
/* What the machine of a client has waited for the longest; static. */
const char *tow_sim_client_awaits(const void *machine);

static inline size_t sim_island_devices(const sim_cluster_t *cluster,
                                        size_t island)
{
    return (cluster->worker_count - island + cluster->island_count - 1) /
           cluster->island_count * cluster->devices_per_worker;
}

static inline void sim_island_name(size_t island, char name[SIM_NAME_SIZE])
{
    snprintf(name, SIM_NAME_SIZE, "island/%zu", island);
}

static inline uint64_t sim_below(tow_random_t *random, uint64_t bound)
{
    return tow_random_below(random, bound);
}

#endif /* TOW_TOOL_SIM_CLUSTER_IMPL_H_ */
