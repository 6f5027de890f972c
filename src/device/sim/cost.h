/* TOW_PROGRAM_COST: a program described by its costs.
 *
 *     towpath-cost 1
 *     name train_step
 *     argument f32[1024,1024]
 *     argument bf16[8,1024]
 *     result f32[1024,1024] alias 0
 *     result f32[] must_alias 2
 *     temporary 1048576
 *     compute flops 16777216 bf16 bytes 4194304
 *     all_reduce 4194304 group 8 stride 2
 *     duration 1500
 *     # A comment. Empty lines are ignored.
 *
 * One item per line, words separated by spaces; ASCII. The first line has the
 * format's name and version; `name` is required. The order matters within
 * arguments, within results and within steps. Shapes are those of one device.
 * Numbers are integers below 2^63.
 *
 *   name NAME               letters, digits and "-_./"
 *   argument SHAPE
 *   result SHAPE [alias N | must_alias N]
 *                           takes the memory of argument N, which is donated
 *   temporary BYTES         memory while it runs
 *
 * Steps, which each device executes in order:
 *
 *   compute [flops N TYPE] [bytes N]
 *                           takes the longer of arithmetic and memory time
 *   duration NS             the same on every model
 *   KIND BYTES [group SIZE [stride N]]
 *                           a collective: all_reduce, reduce_scatter,
 *                           all_gather, all_to_all, permute, broadcast;
 *                           `barrier` has no BYTES. Without a group all members
 *                           of the gang take part. With one, the gang's
 *                           positions are divided into groups of SIZE, whose
 *                           members are N positions apart: group 2 stride 4 of
 *                           8 is {0,4} {1,5} {2,6} {3,7}.
 *
 * BYTES of a collective are the whole array of one member: the larger one of
 * operand and result. */
#ifndef TOW_DEVICE_SIM_COST_H_
#define TOW_DEVICE_SIM_COST_H_

#include <stddef.h>
#include <stdint.h>

#include "base/status.h"
#include "device/device.h"
#include "device/sim/model.h"
#include "device/sim/tuning.h"

typedef enum tow_sim_cost_step_kind {
    TOW_SIM_STEP_COMPUTE,
    TOW_SIM_STEP_DURATION,
    TOW_SIM_STEP_COLLECTIVE,
} tow_sim_cost_step_kind_t;

typedef struct tow_sim_cost_step {
    tow_sim_cost_step_kind_t kind;
    tow_type_t type; /* COMPUTE: of the arithmetic; INVALID when flops is 0 */
    uint64_t flops;  /* COMPUTE */
    uint64_t bytes;  /* COMPUTE: memory traffic; COLLECTIVE */
    uint64_t ns;     /* DURATION */
    tow_sim_collective_kind_t collective;
    uint32_t group_size; /* 0: the whole gang */
    uint32_t stride;     /* 1 or more with a group, else 0 */
} tow_sim_cost_step_t;

typedef struct tow_sim_cost {
    char *name; /* owned, as all that follows */
    tow_array_info_t *arguments;
    size_t argument_count;
    tow_array_info_t *results;
    size_t result_count;
    tow_alias_t *aliases;
    size_t alias_count;
    uint64_t temporary_bytes;
    tow_sim_cost_step_t *steps;
    size_t step_count;
} tow_sim_cost_t;

/* INVALID_ARGUMENT, or OUT_OF_RANGE for an array that is too large, names the
 * line. On error there is nothing to deinit. */
tow_status_t tow_sim_cost_parse(const void *text, size_t size,
                                tow_sim_cost_t *out_cost) TOW_MUST_USE;
void tow_sim_cost_deinit(tow_sim_cost_t *cost);

/* Its canonical text: equal programs have equal texts. The bytes are the
 * caller's; tow_free. The size excludes the final NUL. */
tow_status_t tow_sim_cost_print(const tow_sim_cost_t *cost, char **out_text,
                                size_t *out_size) TOW_MUST_USE;

#endif /* TOW_DEVICE_SIM_COST_H_ */
