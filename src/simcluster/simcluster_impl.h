/* Shared by the files of this module: simcluster.c has the processes, faults
 * and invariants, client.c the clients. */
#ifndef TOW_SIMCLUSTER_SIMCLUSTER_IMPL_H_
#define TOW_SIMCLUSTER_SIMCLUSTER_IMPL_H_

#include "base/list.h"
#include "base/vec.h"
#include "client/client.h"
#include "simcluster/roles.h"
#include "simcluster/simcluster.h"

#define SIM_MILLISECOND_NS 1000000
#define SIM_SECOND_NS      1000000000
#define SIM_NAME_SIZE      32
#define SIM_SLICES_MAX     3
#define SIM_FUNCTIONS      4 /* of each slice and size */
#define SIM_HOSTS          3 /* host functions of each slice and size */
#define SIM_SIZES          3 /* of arrays: inline in messages, either, over lanes */
#define SIM_PROGRAMS_MAX   4
#define SIM_ISLANDS_MAX    4
#define SIM_PARTS_MAX      3  /* of a program, on slices of any islands */
#define SIM_VALUES_MAX     6  /* arguments or results of a program */
#define SIM_ARRAYS_MAX     96 /* that a client holds, if memory is tight */
#define SIM_ARRAYS_FEW     24
#define SIM_PATTERN_BYTES  (2u << 20)

typedef struct simcluster simcluster_t;

/* A process of the cluster, across its restarts. */
typedef struct sim_process {
    simcluster_t *cluster;
    size_t index; /* among processes of its kind */
    char name[SIM_NAME_SIZE];
    char host_name[SIM_NAME_SIZE]; /* that a worker reports */
    tow_sim_host_t *host;          /* lent by the simulation */
    tow_sim_node_t *node;          /* lent by the simulation */
    tow_simcluster_role_t role;    /* of a controller or worker */
    /* Of a client: operations left, and starts so far. */
    uint32_t operations_left;
    bool is_done;
    uint64_t start_count;
} sim_process_t;

struct simcluster {
    const tow_simcluster_options_t *options; /* lent */
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
    size_t island_count; /* worker i belongs to island i modulo this */
    char islands[SIM_ISLANDS_MAX][SIM_NAME_SIZE];
    uint64_t memory_bytes; /* of a device */
    uint32_t relay_fanout;
    uint32_t piece_steps; /* 0: runs are granted whole, as they are short */
    uint32_t late_shift;
    bool is_calm;  /* no faults: every error is a bug */
    bool is_tight; /* memory may run out */
    /* Memory is tight and clients hold several times as much, but there are no
     * faults and hosts have enough: spilling must prevent every out-of-memory
     * error. */
    bool is_spilling;
    uint64_t host_bytes; /* of a worker, for spilled objects */
    /* Nodes of the long program that each client has; 0: none. And the runs of
     * these that may still be started. */
    uint32_t long_nodes, long_runs_left;
    tow_sim_device_clock_t clock;                /* of the devices */
    uint32_t jitter_ppm;                         /* of their computations */
    bool is_cancelling, is_flooding, has_giants; /* clients behave badly */
    /* When the controller has sent so many grants, a worker crashes; 0: none
     * does. So they die between two pieces, some of them relays. */
    uint64_t hunt_at;
    bool is_hunting;
    bool is_damaging; /* the network corrupts bytes */
    uint32_t controller_start_count;
    tow_device_time_t lost_time; /* of the devices of workers that died */
    uint32_t check_every;        /* events */
    size_t fault_count;
    tow_status_t deadlock; /* owned: the last one reported */
    int64_t deadlock_ns;
    int64_t idle_ns;  /* when the last client finished; 0: not yet */
    uint8_t *pattern; /* owned: the bytes that clients upload */
    tow_simcluster_stats_t stats;
};

extern const tow_sim_program_t tow_simcluster_client_program;
/* Asserts the invariants of a client's records; NULL: the process is down. */
void tow_simcluster_client_check(const void *machine);
/* The oldest operation that a client waits for; static text. */
const char *tow_simcluster_client_awaits(const void *machine);

static inline size_t sim_island_devices(const simcluster_t *cluster,
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

#endif /* TOW_SIMCLUSTER_SIMCLUSTER_IMPL_H_ */
