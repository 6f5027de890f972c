/* Shared by the files of a simulated client: client.c has its phases,
 * client_function.c its slices and functions, client_program.c the programs it
 * builds, client_work.c its random operations. */
#ifndef TOW_SIMCLUSTER_CLIENT_IMPL_H_
#define TOW_SIMCLUSTER_CLIENT_IMPL_H_

#include "simcluster/content_impl.h"
#include "simcluster/recipe_impl.h"
#include "simcluster/simcluster_impl.h"

/* Bytes of one shard. Arrays of several shards of the second size are written
 * over lanes and read in messages; the third size uses lanes both ways. */
extern const uint32_t sim_size_bytes[SIM_SIZES];

typedef enum sim_phase {
    PHASE_DIAL,
    PHASE_OPENING,
    PHASE_SLICES,
    PHASE_FUNCTIONS,
    PHASE_PROGRAMS,
    PHASE_WORK,
    PHASE_DRAIN,
    PHASE_LEAVE,
    PHASE_DONE,
} sim_phase_t;

typedef struct sim_value {
    uint32_t slice;
    uint32_t size;
    bool donated;
    bool is_uniform; /* all its shards are equal */
    uint32_t node;   /* of a result */
} sim_value_t;

typedef struct sim_routine { /* a program with its arguments and results */
    tow_program_t *program;
    sim_value_t arguments[SIM_VALUES_MAX];
    size_t argument_count;
    sim_value_t results[SIM_VALUES_MAX];
    size_t result_count;
    sim_recipe_t recipe;
    bool is_long;
} sim_routine_t;

/* How an array was made, for messages. */
typedef struct sim_origin {
    const char *what; /* static text */
    uint64_t run;     /* number, among those of all clients; 0: no run */
    uint32_t node;    /* of the program: the value that is the result */
} sim_origin_t;

typedef struct sim_array {
    tow_array_t *array;
    uint32_t slice;
    uint32_t size; /* SIM_SIZES: no function takes this size */
    uint32_t shard_bytes;
    sim_contents_t *contents; /* counted; that it should have */
    sim_origin_t origin;
} sim_array_t;

typedef struct sim_client sim_client_t;

/* An operation that must settle exactly once. */
typedef struct sim_future {
    tow_list_t node;
    sim_client_t *client;
    const char *what;
    bool must_fail; /* for lack of memory */
    uint8_t *bytes; /* owned: of a download */
    size_t size;
    bool is_expected;
    sim_shard_t expected; /* counted; of a download */
    sim_origin_t origin;
    size_t shard;
} sim_future_t;

struct sim_client {
    sim_process_t *process;
    simcluster_t *cluster;
    tow_env_t *env;
    tow_random_t random;
    tow_timer_t timer;
    sim_phase_t phase;
    tow_client_t *client;
    bool is_shut;
    bool
        is_staying; /* keeps its session while the controller is disconnected */
    uint32_t generation; /* connection generation of the client */
    bool is_broken;      /* something was lost: start again */
    tow_slice_t *slices[SIM_SLICES_MAX];
    uint32_t slice_sizes[SIM_SLICES_MAX];
    size_t slice_count;
    tow_function_t *functions[SIM_SLICES_MAX][SIM_SIZES][SIM_FUNCTIONS];
    tow_function_t *hosts[SIM_SLICES_MAX][SIM_SIZES][SIM_HOSTS];
    tow_function_t *giants[SIM_SLICES_MAX]; /* that need too much memory */
    bool has_hosts;
    bool has_cancelled;
    sim_routine_t routines[SIM_PROGRAMS_MAX];
    size_t routine_count;
    sim_array_t arrays[SIM_ARRAYS_MAX];
    size_t array_count;
    tow_list_t futures; /* not settled yet */
    size_t future_count;
    size_t future_count_max; /* above this it waits; drawn at each start */
};

static inline uint64_t sim_client_below(sim_client_t *self, uint64_t bound)
{
    return sim_below(&self->random, bound);
}

/* -- client.c ------------------------------------------------------------- */

void sim_client_fail(sim_client_t *self, tow_status_t take_status);
/* True for TOW_OK. An error other than RESOURCE_EXHAUSTED sets is_broken; one
 * that no fault explains fails the simulation. */
bool sim_client_check_status(sim_client_t *self, tow_status_t status,
                             const char *what);
bool sim_client_try(sim_client_t *self, tow_status_t take_status,
                    const char *what);
sim_future_t *sim_client_make_future(sim_client_t *self,
                                     tow_callback_t **out_callback);
void sim_client_free_future(sim_future_t *future);
void sim_client_expect_value(sim_client_t *self, tow_array_t *array,
                             const char *what);

/* -- client_function.c ---------------------------------------------------- */

/* Kinds of host functions: results of the argument's size, of any smaller size,
 * and from any smaller size to the full one. */
typedef enum sim_host_kind {
    HOST_SAME,
    HOST_FILTER,
    HOST_PAD,
} sim_host_kind_t;

tow_shape_t sim_client_shape_of(uint32_t size);
sim_function_t sim_client_function(uint32_t kind, uint32_t size,
                                   uint32_t device_count);
sim_host_function_t sim_client_host_function(sim_host_kind_t kind,
                                             uint32_t size);
bool sim_client_request_slices(sim_client_t *self);
bool sim_client_request_functions(sim_client_t *self);

/* -- client_program.c ----------------------------------------------------- */

/* The array in `parts` parts, each on equally many devices. */
tow_sharding_t sim_client_cut(sim_client_t *self, uint32_t parts,
                              uint32_t devices);
/* A number of parts that divides both devices and bytes. */
uint32_t sim_client_choose_parts(sim_client_t *self, uint32_t devices,
                                 uint64_t bytes);
bool sim_client_request_programs(sim_client_t *self);
tow_status_t sim_client_make_routine(sim_client_t *self, sim_routine_t *routine)
    TOW_MUST_USE;
void sim_client_discard_routine(sim_routine_t *routine);

/* -- client_work.c -------------------------------------------------------- */

/* Performs one random operation. */
void sim_client_operate(sim_client_t *self);
void sim_client_delete_array(sim_client_t *self, size_t index);
/* Downloads shards of all arrays, to compare them. */
void sim_client_audit(sim_client_t *self);

#endif /* TOW_SIMCLUSTER_CLIENT_IMPL_H_ */
