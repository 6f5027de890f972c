/* Random programs over the devices of a cluster, from a seed, with the numbers
 * that they must compute. */
#ifndef RANDOM_PROGRAM_H_
#define RANDOM_PROGRAM_H_

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <towpath/towpath.h>

#define DEVICES_MAX   8
#define SIZE_COUNT    8
#define ARGUMENTS_MAX 4
#define RESULTS_MAX   4

typedef enum op {
    OP_PLUS,    /* x + 1 */
    OP_ADD,     /* x + y */
    OP_BOTH,    /* x + 1 and 2 * x */
    OP_MIX,     /* 256 * x, with a temporary of the size of x */
    OP_CONSUME, /* x + 1, in the memory of x if it may be donated */
    OP_COUNT,
} op_t;

/* Devices, slices of one device each, and the functions for each size. */
typedef struct machine {
    tow_client_t *client;
    size_t device_count;
    int64_t device_ids[DEVICES_MAX];
    tow_slice_t *slices[DEVICES_MAX];
    tow_function_t *functions[SIZE_COUNT][OP_COUNT];
} machine_t;

void machine_open(machine_t *machine);
void machine_close(machine_t *machine);

/* One number, repeated: all values of these programs are that. */
typedef struct value {
    tow_array_t *array;
    size_t device;
    size_t size; /* index of its size */
    uint32_t number;
} value_t;

typedef struct random_program {
    tow_program_t *program;
    value_t arguments[ARGUMENTS_MAX]; /* without arrays */
    bool is_donated[ARGUMENTS_MAX];
    size_t argument_count;
    value_t results[RESULTS_MAX]; /* without arrays */
    size_t result_count;
    /* By device: of transfers to or from it that are too small to wait for
     * memory (TOW_LATE_BYTES_MIN in src/ir/tuning.h). */
    uint64_t small_bytes[DEVICES_MAX];
    uint64_t moved_bytes[DEVICES_MAX]; /* the same of all transfers */
    size_t node_count;
} random_program_t;

uint64_t size_bytes(size_t size);
/* `is_told`: prints each node. */
void random_program_make(const machine_t *machine, uint64_t seed, bool is_told,
                         random_program_t *out_program);

#endif /* RANDOM_PROGRAM_H_ */
