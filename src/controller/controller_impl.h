/* The controller's state: one sub-structure for each noun, which that noun's files
 * change and others read.
 *
 *   controller.c       sessions arrive; the end of a turn
 *   check.c            invariants of all records
 *   worker.c           workers: joining, messages, disconnection
 *   roster.c           names and process numbers of workers
 *   client.c           clients: messages, disconnection
 *   blob.c             blobs that no message has named yet
 *   slice.c            slices: opening and closing
 *   mapping.c          placements with their workers
 *   code.c             compiling, once for all equal requests
 *   partition_query.c  queries of compilers to clients
 *   program.c          executables and programs on their workers
 *   remap.c            slices remapped, programs lowered again
 *   object.c           objects on workers, releases
 *   put.c              objects from the client's memory
 *   copy.c             copies of shards to other devices
 *   get.c              shards to the client's memory
 *   assembly.c         objects made of existing shards
 *   spill.c            idle objects to host memory, and back
 *   run.c              runs, from the client's message to its completion
 *   callback.c         functions of clients that computations call
 *   piece.c            pieces of long runs
 *   relay.c            grants and completions of many workers, through a few
 *   report.c           status and traces
 *   trace_spans.c      trace events as lines of text
 *   stall.c            the stall watchdog
 *   wait_graph.c       which devices stall a gang */
#ifndef TOW_CONTROLLER_CONTROLLER_IMPL_H_
#define TOW_CONTROLLER_CONTROLLER_IMPL_H_

#include "base/arena.h"
#include "base/list.h"
#include "controller/assembly_impl.h"
#include "controller/callback_impl.h"
#include "controller/client_impl.h"
#include "controller/code_impl.h"
#include "controller/get_impl.h"
#include "controller/mapping_impl.h"
#include "controller/program_impl.h"
#include "controller/put_impl.h"
#include "controller/report_impl.h"
#include "controller/roster_impl.h"
#include "controller/run_impl.h"
#include "controller/spill_impl.h"
#include "controller/stall_impl.h"
#include "controller/tuning.h"
#include "controller/types_impl.h"
#include "controller/worker_impl.h"
#include "resource/resource.h"
#include "sched/sched.h"

struct tow_controller {
    tow_env_t *env; /* borrowed */
    tow_controller_options_t options;
    uint64_t cluster; /* identifies this instance of the cluster */
    tow_session_port_t *port;
    tow_object_table_t *object_table;
    tow_sched_t *sched;
    tow_resource_t *resource;
    tow_arena_t arena;       /* of the message that is being handled */
    uint64_t request_number; /* of gets and reports, to workers */

    tow_list_t pending_sessions; /* not identified yet */
    tow_ctl_workers_t workers;
    tow_ctl_roster_t roster;
    tow_ctl_clients_t clients;
    tow_ctl_mappings_t mappings;
    tow_ctl_codes_t codes;
    tow_ctl_programs_t programs;
    tow_ctl_runs_t runs;
    tow_ctl_puts_t puts;
    tow_ctl_gets_t gets;
    tow_ctl_assemblies_t assemblies;
    tow_ctl_spills_t spills;
    tow_ctl_callbacks_t callbacks;
    tow_ctl_reports_t reports;
    tow_ctl_stalls_t stalls;

    /* The end of the turn. */
    tow_post_t turn_end;
    bool turn_end_is_posted;
    bool is_closing;
    size_t closing_count; /* parts that have not closed yet */
    tow_closed_t closed;
};

/* Posts the end of the turn: there is something to grant or to send. */
void tow_controller_touch(tow_controller_t *controller);
/* Another part closes, and calls tow_controller_part_closed. */
tow_closed_t tow_controller_closing(tow_controller_t *controller);
void tow_controller_part_closed(void *controller);

#endif /* TOW_CONTROLLER_CONTROLLER_IMPL_H_ */
