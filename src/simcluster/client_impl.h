/* Shared by the files of a simulated client: client.c has its phases,
 * client_program.c the programs it builds, client_work.c its random
 * operations. */
#ifndef TOW_SIMCLUSTER_CLIENT_IMPL_H_
#define TOW_SIMCLUSTER_CLIENT_IMPL_H_

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
} sim_value_t;

typedef struct sim_routine { /* a program with its arguments and results */
    tow_program_t *program;
    sim_value_t arguments[SIM_VALUES_MAX];
    size_t argument_count;
    sim_value_t results[SIM_VALUES_MAX];
    size_t result_count;
} sim_routine_t;

typedef struct sim_array {
    tow_array_t *array;
    uint32_t slice;
    uint32_t size; /* SIM_SIZES: no function takes this size */
    uint32_t shard_bytes;
    bool is_known;   /* its bytes are those of the pattern */
    uint32_t offset; /* of its bytes in the pattern */
    uint32_t parts;  /* distinct shards, each on equally many devices */
} sim_array_t;

typedef struct sim_client sim_client_t;

/* An operation that must settle exactly once. */
typedef struct sim_future {
    tow_list_t node;
    sim_client_t *client;
    const char *what;
    uint8_t *bytes; /* owned: of a download */
    size_t size;
    const uint8_t *expected; /* lent; NULL: not known */
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
    bool has_hosts;
    sim_routine_t routines[SIM_PROGRAMS_MAX];
    size_t routine_count;
    sim_array_t arrays[SIM_ARRAYS_MAX];
    size_t array_count;
    tow_list_t futures; /* not settled yet */
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

/* -- client_program.c ----------------------------------------------------- */

tow_shape_t sim_client_shape_of(uint32_t size);
bool sim_client_request_slices(sim_client_t *self);
bool sim_client_request_functions(sim_client_t *self);
bool sim_client_request_programs(sim_client_t *self);
tow_status_t sim_client_make_routine(sim_client_t *self, sim_routine_t *routine)
    TOW_MUST_USE;

/* -- client_work.c -------------------------------------------------------- */

/* Performs one random operation. */
void sim_client_operate(sim_client_t *self);
void sim_client_delete_array(sim_client_t *self, size_t index);

#endif /* TOW_SIMCLUSTER_CLIENT_IMPL_H_ */
