/* The records of the controller, named ahead of their definitions. Each record
 * has a header of its own; records that outlive their creator are
 * reference-counted (retain, release). */
#ifndef TOW_CONTROLLER_TYPES_IMPL_H_
#define TOW_CONTROLLER_TYPES_IMPL_H_

#include "base/vec.h"
#include "controller/controller.h"

typedef struct tow_ctl_blob tow_ctl_blob_t;
typedef struct tow_ctl_client tow_ctl_client_t;
typedef struct tow_ctl_code tow_ctl_code_t;
typedef struct tow_ctl_executable tow_ctl_executable_t;
typedef struct tow_ctl_function tow_ctl_function_t;
typedef struct tow_ctl_report tow_ctl_report_t;
typedef struct tow_ctl_get tow_ctl_get_t;
typedef struct tow_ctl_mapping tow_ctl_mapping_t;
typedef struct tow_ctl_put tow_ctl_put_t;
typedef struct tow_ctl_assembly tow_ctl_assembly_t;
typedef struct tow_ctl_place tow_ctl_place_t;
typedef struct tow_ctl_program tow_ctl_program_t;
typedef struct tow_ctl_pieces tow_ctl_pieces_t;
typedef struct tow_ctl_run tow_ctl_run_t;
typedef struct tow_ctl_block tow_ctl_block_t;
typedef struct tow_ctl_slice tow_ctl_slice_t;
typedef struct tow_ctl_spill tow_ctl_spill_t;
typedef struct tow_ctl_unit tow_ctl_unit_t;
typedef struct tow_ctl_worker tow_ctl_worker_t;

typedef TOW_VEC(uint64_t) tow_ctl_id_vec_t;
typedef TOW_VEC(uint32_t) tow_ctl_count_vec_t;

#endif /* TOW_CONTROLLER_TYPES_IMPL_H_ */
