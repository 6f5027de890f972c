/* What the files of a simulated client share: sim_client.c has its life,
 * sim_client_program.c what it asks for, sim_client_work.c what it does with it. */
#ifndef TOW_TOOL_SIM_CLIENT_IMPL_H_
#define TOW_TOOL_SIM_CLIENT_IMPL_H_

#include "tool/sim_cluster_impl.h"

/* Bytes of one shard. With several shards the second is written over lanes, and
 * still read in messages; the third goes over lanes both ways. */
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

typedef struct sim_routine { /* a program, and what it takes and gives */
    tow_program_t *program;
    sim_value_t arguments[SIM_VALUES_MAX];
    size_t argument_count;
    sim_value_t results[SIM_VALUES_MAX];
    size_t result_count;
} sim_routine_t;

typedef struct sim_array {
    tow_array_t *array;
    uint32_t slice;
    uint32_t size; /* SIM_SIZES: one that no function takes */
    uint32_t shard_bytes;
    bool is_known;   /* then its bytes are those of the pattern: */
    uint32_t offset; /* from here on */
    uint32_t parts;  /* cut into so many, each on equally many devices */
} sim_array_t;

typedef struct sim_client sim_client_t;

/* Something that was promised. */
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
    sim_cluster_t *cluster;
    tow_env_t *env;
    tow_random_t random;
    tow_timer_t timer;
    sim_phase_t phase;
    tow_client_t *client;
    bool is_shut;
    bool is_staying; /* when the controller is lost, until it comes again */
    uint32_t life;   /* of the client */
    bool is_broken;  /* something was lost: begin anew */
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
    tow_list_t futures; /* that have not settled */
};

static inline uint64_t sim_client_below(sim_client_t *self, uint64_t bound)
{
    return sim_below(&self->random, bound);
}

/* -- sim_client.c ------------------------------------------------------------------ */

void sim_client_fail(sim_client_t *self, tow_status_t take_status);
/* True if all is well. Anything but want of memory breaks what we have. An error
 * that nothing explains fails the run. */
bool sim_client_look_at(sim_client_t *self, tow_status_t status,
                        const char *what);
bool sim_client_try(sim_client_t *self, tow_status_t take_status,
                    const char *what);
sim_future_t *sim_client_make_future(sim_client_t *self,
                                     tow_callback_t **out_callback);
void sim_client_free_future(sim_future_t *future);
void sim_client_expect_value(sim_client_t *self, tow_array_t *array,
                             const char *what);

/* -- sim_client_program.c ----------------------------------------------------------- */

tow_shape_t sim_client_shape_of(uint32_t size);
bool sim_client_ask_slices(sim_client_t *self);
bool sim_client_ask_functions(sim_client_t *self);
bool sim_client_ask_programs(sim_client_t *self);
tow_status_t sim_client_make_routine(sim_client_t *self, sim_routine_t *routine)
    TOW_MUST_USE;

/* -- sim_client_work.c --------------------------------------------------------------- */

/* Does something at random. */
void sim_client_operate(sim_client_t *self);
void sim_client_drop_array(sim_client_t *self, size_t index);

#endif /* TOW_TOOL_SIM_CLIENT_IMPL_H_ */
