/* A recipe: a simulated client's own record of a program, from which it computes
 * the results that the program should have. Pure: it knows nothing of workers,
 * order, memory or pieces. */
#ifndef TOW_SIMCLUSTER_RECIPE_IMPL_H_
#define TOW_SIMCLUSTER_RECIPE_IMPL_H_

#include "base/vec.h"
#include "simcluster/content_impl.h"

#define SIM_INPUTS_MAX 2 /* of a step, and outputs */

/* A simulated function. Its name determines its values. */
typedef struct sim_function {
    char name[32];
    uint32_t input_count, output_count;
    /* The collective among its devices. Groups of two have members that are half
     * of the devices apart. */
    enum {
        SIM_ALONE,
        SIM_ALL_REDUCE,
        SIM_GATHER_PAIRS
    } collective;
    uint32_t output_bytes;
} sim_function_t;

typedef struct sim_host_function {
    const char *name;
    uint32_t output_bytes; /* or at most this */
    bool is_bounded;
} sim_host_function_t;

typedef enum sim_step_kind {
    SIM_STEP_ARGUMENT,
    SIM_STEP_CALL,
    SIM_STEP_HOST,
    SIM_STEP_TRANSFER,
    SIM_STEP_COLLECTIVE,
} sim_step_kind_t;

typedef struct sim_step {
    sim_step_kind_t kind;
    uint32_t device_count;           /* of its outputs */
    uint32_t inputs[SIM_INPUTS_MAX]; /* values */
    uint32_t input_count, output_count;
    union {
        uint32_t argument; /* its index */
        sim_function_t function;
        sim_host_function_t host;
        struct {
            tow_sharding_t from, to;
        } transfer;
        tow_collective_t collective;
    } as;
} sim_step_t;

typedef struct sim_recipe {
    TOW_VEC(sim_step_t) steps;
    TOW_VEC(uint32_t) last_steps; /* by value: 1 + the last step that uses it */
    TOW_VEC(uint32_t) results;    /* values */
} sim_recipe_t;

/* Appends the step. Returns its first output; the others follow it. */
uint32_t sim_recipe_add(sim_recipe_t *recipe, const sim_step_t *step);
void sim_recipe_add_result(sim_recipe_t *recipe, uint32_t value);
void sim_recipe_deinit(sim_recipe_t *recipe);

/* Computes the results; each has one reference. */
void sim_recipe_run(const sim_recipe_t *recipe,
                    sim_contents_t *const *arguments,
                    sim_contents_t **out_results);

#endif /* TOW_SIMCLUSTER_RECIPE_IMPL_H_ */
