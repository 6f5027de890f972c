/* Programs: graphs of clients, lowered and loaded on their workers; and the
 * executables that they use. */
#ifndef TOW_CONTROLLER_PROGRAM_IMPL_H_
#define TOW_CONTROLLER_PROGRAM_IMPL_H_

#include "base/list.h"
#include "base/map.h"
#include "controller/blob_impl.h"
#include "controller/types_impl.h"
#include "device/device.h"
#include "sched/estimate.h"
#include "sched/sched.h"

typedef struct tow_ctl_programs {
    tow_list_t list; /* all, also those that only runs reference */
    tow_map_t executable_by_id;
    uint64_t executable_number;
} tow_ctl_programs_t;

/* Code loaded for a mapping. Counted by programs. */
struct tow_ctl_executable {
    uint64_t id;
    uint32_t reference_count;
    tow_ctl_code_t *code;       /* counted */
    tow_ctl_mapping_t *mapping; /* counted */
    tow_list_t node;            /* in mapping->executables */
    uint32_t loading_count;     /* workers that have not answered */
    bool *is_loading;           /* owned: by part */
    tow_status_t error;         /* owned: a load failed */
};

typedef struct tow_ctl_argument {
    tow_ctl_mapping_t *mapping; /* borrowed from the program */
    tow_shape_t shape;
    bool consumed;
} tow_ctl_argument_t;

typedef struct tow_ctl_result {
    tow_ctl_mapping_t *mapping; /* borrowed from the program */
    tow_shape_t shape;
    uint64_t bytes;
    uint32_t argument; /* whose memory it reuses; UINT32_MAX: none */
} tow_ctl_result_t;

/* A client's program on its workers. Counted by the client's id for it and by
 * its runs. */
struct tow_ctl_program {
    tow_controller_t *controller;
    uint32_t reference_count;
    uint64_t key;
    char *name; /* owned */
    tow_list_t node;
    tow_ctl_argument_t *arguments;
    size_t argument_count;
    tow_ctl_result_t *results;
    size_t result_count;
    tow_ticket_part_t *parts;     /* one a mapping */
    tow_ctl_mapping_t **mappings; /* counted, as many */
    size_t mapping_count;
    tow_ctl_worker_t **workers; /* counted: all that have a part of it */
    size_t worker_count;
    tow_ctl_executable_t **executables; /* counted */
    size_t executable_count;
    bool is_refused; /* only `error` and `result_count` are meaningful */
    uint32_t step_count;
    uint32_t *step_parts;        /* owned: by step, see sched/cut.h */
    uint32_t busiest_step_count; /* the most computations on one part */
    /* Steps on the longest path, beyond those of the busiest part. */
    uint32_t lag_step_count;
    uint32_t loading_count;   /* executables that are being loaded */
    tow_status_t error;       /* owned: it can never run */
    tow_list_t waiting;       /* blocks of runs that wait for loads */
    tow_ctl_blob_t graph;     /* owned: as the client sent it */
    uint64_t membership_seen; /* when it was last lowered, or tried to be */
    /* Of the time that a step keeps a device. Placed anew, the program is
     * lowered again, and begins without an estimate. */
    tow_estimate_t estimate;
};

/* Ids of clients for programs; ids above are those of programs lowered again.
 */
#define TOW_PROGRAM_ID_MAX (TOW_CLIENT_ID_MAX >> 1)

tow_status_t tow_ctl_program_load(tow_ctl_client_t *client, uint64_t id,
                                  const tow_ctl_blob_t *blob,
                                  tow_ctl_program_t **out_program) TOW_MUST_USE;
/* Stands in for a program that was refused: its runs fail with `cause`
 * (borrowed), and so does the use of their results. NULL: no memory. */
tow_ctl_program_t *tow_ctl_program_refuse(tow_ctl_client_t *client, uint64_t id,
                                          const tow_ctl_blob_t *blob,
                                          tow_status_t cause);
/* The client's program, lowered again if its slices were remapped (remap.c).
 * Borrowed; NULL: there is none with this id. */
tow_ctl_program_t *tow_ctl_program_find(tow_ctl_client_t *client, uint64_t id);
void tow_ctl_program_retain(tow_ctl_program_t *program);
void tow_ctl_program_release(tow_ctl_program_t *program);
void tow_ctl_executable_loaded(tow_controller_t *controller,
                               tow_ctl_worker_t *worker, uint64_t id,
                               tow_status_t take_status);
void tow_ctl_executables_on_disconnect(tow_controller_t *controller,
                                       tow_ctl_worker_t *worker,
                                       tow_status_t cause);
/* O(parts). */
void tow_ctl_executable_check(const tow_ctl_executable_t *executable);
void tow_ctl_program_check(const tow_ctl_program_t *program);

#endif /* TOW_CONTROLLER_PROGRAM_IMPL_H_ */
