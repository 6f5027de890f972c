/* Test library of this folder: a cluster of slices with devices on processes,
 * and functions with shardings. For test programs only. */
#ifndef TOW_IR_CLUSTER_TESTING_IMPL_H_
#define TOW_IR_CLUSTER_TESTING_IMPL_H_

#include "ir/ir_testing_impl.h"

#define IR_CLUSTER_SLICES    4 /* 1 to 3 */
#define IR_CLUSTER_FUNCTIONS 12
#define IR_CLUSTER_DEVICES   2048

/* A function of one to two arguments and one result, written as
 * "f32[2] as 4 -> f32[8] as *4", for the number of devices of its shardings. */
typedef struct ir_cluster_function {
    tow_signature_t signature;
    tow_array_info_t arrays[3]; /* arguments, then the result */
    uint8_t bytes[3][TOW_SHARDING_XLA_MAX];
    tow_alias_t alias;
    char name[8];
} ir_cluster_function_t;

typedef struct ir_cluster_slice {
    size_t count;
    tow_place_t places[IR_CLUSTER_DEVICES];
} ir_cluster_slice_t;

typedef struct ir_cluster {
    ir_cluster_slice_t slices[IR_CLUSTER_SLICES];
    ir_cluster_function_t functions[IR_CLUSTER_FUNCTIONS]; /* from 1 on */
    tow_lower_scope_t scope;
} ir_cluster_t;

void ir_cluster_init(ir_cluster_t *cluster);

/* A slice of `count` devices: `each` on every process from `process` on. Every
 * process is on a host of its own. */
void ir_cluster_open_slice(ir_cluster_t *cluster, uint64_t slice, size_t count,
                           uint32_t process, uint32_t each);

ir_cluster_function_t *ir_cluster_define(ir_cluster_t *cluster, uint64_t number,
                                         size_t device_count, const char *text);

/* Verifies the program and inserts transfers; the caller destroys the
 * result. */
tow_graph_t *ir_cluster_insert(ir_cluster_t *cluster, const char *text);

tow_lowered_t *ir_cluster_lower(ir_cluster_t *cluster,
                                const tow_graph_t *program, uint32_t process);

#endif /* TOW_IR_CLUSTER_TESTING_IMPL_H_ */
