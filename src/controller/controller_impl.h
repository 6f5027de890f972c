/* What the files of this folder share.
 *
 *   controller.c   sessions come and go; the end of a turn
 *   worker.c       what workers say; a worker that is gone
 *   client.c       what clients say; a client that is gone
 *   mapping.c      where shards lie: placements with their workers
 *   code.c         compiling, once for all who ask for the same
 *   question.c     what compilers ask clients meanwhile
 *   resident.c     executables and programs on their workers
 *   remap.c        slices mapped anew, programs lowered again
 *   object.c       puts, gets, releases
 *   copy.c         copies of shards to other devices
 *   regroup.c      new objects of shards that are there
 *   spill.c        idle objects in host memory, and back
 *   run.c          runs, from the client's message to its completion
 *   callback.c     functions of clients that computations call
 *   relay.c        grants and completions of many workers, through a few
 *   report.c       what `tow status` shows
 *   spans.c        trace events as lines
 *   late.c         runs that take long
 *   waits.c        ... and who keeps their gangs waiting
 *
 * Things that outlive the one who made them are counted (retain, release). */
#ifndef TOW_CONTROLLER_CONTROLLER_IMPL_H_
#define TOW_CONTROLLER_CONTROLLER_IMPL_H_

#include <stdio.h>

#include "base/arena.h"
#include "base/list.h"
#include "base/map.h"
#include "base/vec.h"
#include "controller/controller.h"
#include "controller/tuning.h"
#include "ir/lower.h"
#include "resource/resource.h"
#include "sched/sched.h"

typedef struct worker worker_t;
typedef struct client client_t;
typedef struct mapping mapping_t;
typedef struct code code_t;
typedef struct executable executable_t;
typedef struct resident resident_t;
typedef struct run run_t;
typedef struct put put_t;
typedef struct get get_t;
typedef struct regroup regroup_t;
typedef struct spill spill_t;
typedef struct run_block run_block_t;
typedef struct gather gather_t;

typedef TOW_VEC(uint64_t) id_vec_t;
typedef TOW_VEC(uint32_t) count_vec_t;

struct tow_controller {
    tow_env_t *env; /* lent */
    tow_controller_options_t options;
    uint64_t cluster; /* names this life of the cluster */
    tow_session_port_t *port;
    tow_ledger_t *ledger;
    tow_sched_t *sched;
    tow_resource_t *resource;
    tow_arena_t arena; /* of the message that is being handled */

    tow_list_t strangers; /* sessions that have not said what they are */
    tow_list_t workers;   /* joined and alive, in order of arrival */
    tow_list_t clients;   /* open and alive */
    tow_list_t residents; /* all, also those that only runs hold */
    tow_list_t codes;     /* least lately used first */
    tow_list_t runs;      /* all that are not finished, oldest first */
    tow_list_t doomed;    /* runs that were granted in vain, this turn */
    tow_list_t gathers;
    tow_list_t regroups;     /* that wait for their turn */
    tow_list_t mappings;     /* all */
    tow_map_t run_of;        /* key -> run_t */
    tow_map_t put_of;        /* object key -> put_t, not inlined */
    tow_map_t get_of;        /* request number -> get_t */
    tow_map_t callback_of;   /* number -> callback_t, owned */
    tow_map_t executable_of; /* id -> executable_t */
    tow_map_t spill_of;      /* object key -> spill_t */
    tow_names_t mapping_of;  /* ids as text -> mapping_t */

    uint64_t membership_number; /* counts workers that came or went */
    uint32_t client_number;
    uint64_t executable_number;
    uint64_t gang_number;
    uint64_t request_number;
    uint64_t callback_number;
    uint64_t mark_number; /* of runs, on the objects that they name */
    uint64_t code_bytes;
    uint64_t granted_count;
    uint64_t granted_worker_count; /* of all runs; then their messages */
    uint64_t grant_message_count, done_message_count, abort_message_count;
    uint64_t again_message_count;
    uint32_t join_count; /* of workers, ever */
    uint64_t compile_count;
    size_t copy_count; /* under way */

    uint64_t spill_number;
    uint64_t spilled_count; /* objects, since the beginning */
    size_t kept_count;      /* at least so many objects are `kept` */
    size_t weighed_count;   /* units whose parts are their own */
    size_t spilling_count[TOW_ISLANDS_MAX];
    size_t returning_count[TOW_ISLANDS_MAX];
    tow_status_t room_error; /* owned: why idle objects could not be spilled */

    /* The end of the turn. */
    tow_post_t turn_end;
    bool turn_end_is_posted;
    tow_timer_t release_timer;  /* see TOW_RELEASE_DELAY_NS */
    tow_timer_t late_timer;     /* while there are runs: see TOW_LATE_NS */
    uint64_t late_number;       /* how often it has fired */
    tow_timer_t patience_timer; /* while there are gathers: report.c */
    bool is_closing;
    size_t closing_count; /* things that have yet to say that they are closed */
    tow_closed_t closed;
};

/* What the scheduler orders: runs and puts. */
typedef enum unit_kind {
    UNIT_RUN,
    UNIT_PUT,
    UNIT_REGROUP,
} unit_kind_t;

typedef struct unit { /* first member of each */
    tow_ticket_t ticket;
    unit_kind_t kind;
    /* Owned: its parts, and those of spilled objects that it needs; or NULL. */
    tow_ticket_part_t *weighed;
} unit_t;

/* -- Sessions --------------------------------------------------------------- */

/* A worker's session. Stays, counted, while mappings name it. */
struct worker {
    tow_controller_t *controller;
    tow_session_t *session;    /* NULL when it is gone */
    tow_worker_entry_t *entry; /* lent by the resource manager; NULL: not yet
                                  joined, or gone */
    uint32_t reference_count;
    uint32_t process;
    char *name; /* owned */
    tow_list_t node;
    tow_status_t fault; /* owned: what it did wrong; ends the session */
    uint64_t sequence;  /* the number of the last thing that it was told */
    bool needs_mark;    /* ... which went through a relay */
    bool is_direct;     /* a relay did not reach it: never again through one */
    tow_host_t *memory; /* lent by the ledger: for what is spilled there */
    /* Releases of this turn, as ranges. */
    id_vec_t release_firsts;
    count_vec_t release_counts;
    /* What it told of itself, for those that join later. */
    tow_msg_peer_t peer;
    void *peer_bytes; /* owned: what `peer` points to */
    tow_map_t blobs;  /* number -> blob_t, owned: no message named them yet */
};

struct client {
    tow_controller_t *controller;
    tow_session_t *session; /* NULL when it is gone */
    uint32_t number;
    char *name; /* owned */
    tow_list_t node;
    tow_map_t slices;    /* id -> slice_t */
    tow_map_t functions; /* id -> function_t */
    tow_map_t programs;  /* id -> resident_t, counted */
    tow_map_t blobs;     /* number -> blob_t */
    /* Completions of this turn. */
    id_vec_t done_runs;
    TOW_VEC(run_t *) failed_runs; /* owned until told */
    uint32_t run_count;           /* not finished */
    uint32_t get_count;           /* not answered */
    uint32_t put_count;           /* not answered */
    uint64_t put_bytes;           /* of those, that came in messages */
    uint32_t gather_count;        /* not answered */
    uint32_t callback_count;      /* that it has not answered */
    uint64_t late_seen;           /* when it was last told of a late run */
    tow_status_t fault;       /* owned: what it did wrong; ends the session */
    uint64_t membership_seen; /* when its slices were looked at */
    uint64_t lowered_number;  /* of programs that were lowered again */
};

typedef struct blob {
    void *bytes; /* owned */
    size_t size;
} blob_t;

void tow_blob_free(blob_t *blob);
/* Takes the bytes; NULL is no blob. */
uint64_t tow_blob_send(tow_session_t *session, blob_t *take_blob);
/* Keeps at most `count_max`; false: the bytes are gone. */
bool tow_blob_keep(tow_map_t *blobs, size_t count_max, uint64_t number,
                   void *take_bytes, size_t size);
void tow_blobs_deinit(tow_map_t *blobs);

typedef struct slice {
    tow_device_entry_t **devices; /* owned array */
    size_t device_count;
    mapping_t *mapping; /* counted */
    /* What was asked for. */
    bool is_named; /* these devices and no others */
    char *island;  /* owned; "": any */
    uint32_t dims[TOW_SLICE_RANK_MAX];
    size_t dim_count; /* 0: all devices */
} slice_t;

typedef struct function {
    client_t *client;
    uint64_t id;
    code_t *code;    /* counted */
    tow_list_t node; /* of those that wait for the code */
    bool is_answered;
} function_t;

/* -- Where shards lie ------------------------------------------------------- */

typedef struct mapping_part {
    worker_t *worker;  /* counted */
    uint32_t *devices; /* owned: indices among the worker's, in shard order */
    uint32_t *shards;  /* owned: which shards these are */
    uint32_t count;
} mapping_part_t;

/* One for each ordered set of devices that slices have now. Counted: by slices,
 * programs, executables and puts, and by each object on its placement, whose
 * context it is. */
struct mapping {
    tow_controller_t *controller;
    uint32_t reference_count;
    tow_list_t node;            /* in controller->mappings */
    char *key;                  /* owned */
    tow_placement_t *placement; /* counted */
    char *kind;                 /* owned */
    int64_t *device_ids;        /* owned */
    uint32_t device_count;
    mapping_part_t *parts; /* owned */
    uint32_t part_count;
    uint32_t *part_of_shard; /* owned */
    uint32_t *index_in_part; /* owned */
    tow_list_t executables;  /* loaded for it */
};

tow_status_t tow_mapping_of(tow_controller_t *controller,
                            tow_device_entry_t *const *devices, size_t count,
                            mapping_t **out_mapping) TOW_MUST_USE;
void tow_mapping_retain(mapping_t *mapping);
void tow_mapping_release(mapping_t *mapping);
/* All that are left, whoever holds them. */
void tow_mappings_destroy(tow_controller_t *controller);
/* Its error if one of its workers is gone. */
tow_status_t tow_mapping_check(const mapping_t *mapping) TOW_MUST_USE;
void tow_worker_retain(worker_t *worker);
void tow_worker_release(worker_t *worker);

/* -- Code ------------------------------------------------------------------- */

typedef enum code_state {
    CODE_COMPILING,
    CODE_READY,
    CODE_FAILED,
} code_state_t;

struct code {
    tow_controller_t *controller;
    uint32_t reference_count; /* functions, executables, blobs under way, and
                                 the compiler while it is at it */
    code_state_t state;
    tow_list_t node;    /* in controller->codes */
    tow_list_t waiting; /* functions */
    uint64_t hash;
    char *kind; /* owned */
    size_t device_count;
    void *program; /* owned */
    size_t program_size;
    void *options; /* owned: without an assignment */
    size_t options_size;
    void *job_options; /* owned: with one, while it is compiled */
    tow_compile_job_t job;
    tow_compiled_t *compiled; /* owned; READY */
    void *signature;          /* owned: packed */
    size_t signature_size;
    tow_status_t error; /* owned; FAILED */
    /* Its client is asked while it is compiled: it is for one function alone, and
     * goes with it. */
    bool asks;
    uint64_t question_number; /* of the last */
};

/* Takes the blobs' bytes if it wants them. Answers, now or later. */
void tow_code_compile(client_t *client, const tow_msg_compile_t *message,
                      blob_t *program, blob_t *options);
/* A compiler asks, and its client answers. */
void tow_code_asked(tow_compile_job_t *job, tow_bytes_t question);
void tow_code_answered(client_t *client, const tow_msg_answer_t *message);
void tow_code_retain(code_t *code);
void tow_code_release(code_t *code);
void tow_function_forget(client_t *client, function_t *function);
void tow_codes_cancel(tow_controller_t *controller);
void tow_codes_destroy(tow_controller_t *controller);

/* -- Executables and programs ------------------------------------------------ */

/* Code loaded for a mapping. Counted by programs. */
struct executable {
    uint64_t id;
    uint32_t reference_count;
    code_t *code;           /* counted */
    mapping_t *mapping;     /* counted */
    tow_list_t node;        /* in mapping->executables */
    uint32_t loading_count; /* workers that have not answered */
    bool *is_loading;       /* owned: by part */
    tow_status_t error;     /* owned: a load failed */
};

typedef struct argument {
    mapping_t *mapping; /* lent by the program */
    tow_shape_t shape;
    bool consumed;
} argument_t;

typedef struct result {
    mapping_t *mapping; /* lent by the program */
    tow_shape_t shape;
    uint64_t bytes;
    uint32_t argument; /* UINT32_MAX: a result of its own */
} result_t;

/* A client's program on its workers. Counted: by the client's name for it and by
 * its runs. */
struct resident {
    tow_controller_t *controller;
    uint32_t reference_count;
    uint64_t key;
    char *name; /* owned */
    tow_list_t node;
    argument_t *arguments;
    size_t argument_count;
    result_t *results;
    size_t result_count;
    tow_ticket_part_t *parts; /* one a mapping */
    mapping_t **mappings;     /* counted, as many */
    size_t mapping_count;
    worker_t **workers; /* counted: all that have a part of it */
    size_t worker_count;
    executable_t **executables; /* counted */
    size_t executable_count;
    bool is_refused; /* only `error` and how many results it would have */
    uint32_t step_count;
    uint32_t loading_count;   /* executables that are being loaded */
    tow_status_t error;       /* owned: it can never run */
    tow_list_t waiting;       /* runs that wait for loads */
    blob_t graph;             /* owned: as the client sent it */
    uint64_t membership_seen; /* when it was last lowered, or tried to be */
};

tow_status_t tow_resident_take(client_t *client, uint64_t id,
                               const blob_t *blob, resident_t **out_resident)
    TOW_MUST_USE;
/* In the place of one that was refused: its runs fail with `cause` (lent), and so
 * do those that use their results. NULL: no memory. */
resident_t *tow_resident_refuse(client_t *client, uint64_t id,
                                const blob_t *blob, tow_status_t cause);
void tow_resident_retain(resident_t *resident);
void tow_resident_release(resident_t *resident);
void tow_executable_loaded(tow_controller_t *controller, worker_t *worker,
                           uint64_t id, tow_status_t take_status);
void tow_executables_lose(tow_controller_t *controller, worker_t *worker,
                          tow_status_t cause);

/* -- Mapping anew ------------------------------------------------------------ */

/* Clients' names for programs; above are those of programs lowered again. */
#define TOW_PROGRAM_ID_MAX (TOW_CLIENT_ID_MAX >> 1)

/* Slices that have lost devices get others, if there are enough and workers have
 * come or gone since this was tried. */
void tow_slices_revive(client_t *client);
/* The client's program, lowered again if its slices were mapped anew; NULL: it
 * has none of that name. Lent. */
resident_t *tow_program_use(client_t *client, uint64_t id);

/* -- Objects ---------------------------------------------------------------- */

/* An object's context: this when it is on the workers; before that the list of
 * gets that wait for it; NULL when it never will be. */
extern char tow_object_is_placed;
/* Its put or run has been granted: gets that waited go. */
void tow_object_placed(tow_object_t *object, tow_list_t *gets);
/* It never will be: gets that waited for it fail with `cause`, lent. */
void tow_object_lost(tow_object_t *object, tow_list_t *gets,
                     tow_status_t cause);

/* A put that waits for its turn, or for its bytes. */
struct put {
    unit_t unit;
    /* A copy from another island takes its turn behind its source there. */
    tow_ticket_part_t parts[2];
    size_t part_count;
    tow_ticket_link_t *links; /* owned; NULL: it is on one island */
    client_t *client;         /* NULL: gone */
    tow_object_t *object;     /* held */
    mapping_t *mapping;       /* counted */
    bool inlined;
    bool replicated;
    void *bytes; /* owned */
    size_t size;
    uint32_t open_count; /* workers that have not finished */
    bool *is_open;       /* owned: by part */
    tow_status_t error;  /* owned: the first */
    tow_list_t waiting;  /* run_block_t of units that need it */
    tow_list_t gets;     /* that wait for it */
    /* A copy: the bytes are those of a shard of another object. */
    tow_object_t *source; /* held; NULL: they come from the client */
    uint32_t source_shard;
    get_t *fetch; /* lent: that brings them */
};

struct get {
    uint64_t number;
    client_t *client; /* NULL: gone */
    uint64_t request;
    tow_object_t *object; /* held */
    worker_t *worker;     /* counted; NULL: not sent yet */
    uint32_t shard;
    bool has_target;
    tow_msg_lane_target_t target;
    void *lane_address; /* owned */
    tow_list_t node;    /* of a run or put that its object waits for */
    put_t *put;         /* lent: a copy that fetches its bytes; or NULL */
};

void tow_put_begin(client_t *client, const tow_msg_put_t *message);
/* An object and its put, which waits for its turn; found in put_of. `source` is
 * of a copy, or NULL. */
tow_status_t tow_put_start(client_t *client, const tow_msg_put_t *message,
                           const slice_t *slice, const tow_shape_t *shape,
                           uint64_t shard_bytes, const tow_object_t *source)
    TOW_MUST_USE;
/* Its bytes will never come. `cause` is lent. */
void tow_put_forsake(tow_controller_t *controller, put_t *put,
                     tow_status_t cause);
void tow_copy_begin(client_t *client, const tow_msg_copy_t *message);
/* The worker is ready for the bytes of a copy. */
void tow_copy_fetch(worker_t *worker, put_t *put,
                    const tow_msg_shard_put_opened_t *message);
/* The ticket waits until the object, which is ARRIVING, has arrived. */
void tow_put_await(tow_controller_t *controller, const tow_object_t *object,
                   run_block_t *block, tow_ticket_t *ticket);
/* ... until nobody copies from the object any more, if somebody does. */
void tow_copies_await(tow_controller_t *controller, const tow_object_t *object,
                      run_block_t *block, tow_ticket_t *ticket);
void tow_put_grant(tow_controller_t *controller, put_t *put);
void tow_put_refuse(tow_controller_t *controller, put_t *put,
                    tow_status_t take_status);
void tow_put_opened(worker_t *worker,
                    const tow_msg_shard_put_opened_t *message);
void tow_put_done(worker_t *worker, const tow_msg_shard_put_done_t *message);
/* The client says that its bytes will never come. */
void tow_put_give_up(client_t *client, const tow_msg_put_done_t *message);
void tow_puts_lose(tow_controller_t *controller, worker_t *worker,
                   client_t *client, tow_status_t cause);
void tow_get_begin(client_t *client, const tow_msg_get_t *message);
/* Holds the object. */
tow_status_t tow_get_make(client_t *client, const tow_msg_get_t *message,
                          tow_object_t *object, get_t **out_get) TOW_MUST_USE;
/* Sends it when its object is there. */
void tow_get_route(get_t *get);
void tow_get_send(get_t *get);
void tow_get_fail(get_t *get, tow_status_t take_status);
void tow_get_done(worker_t *worker, const tow_msg_shard_get_done_t *message);
void tow_gets_lose(tow_controller_t *controller, worker_t *worker,
                   client_t *client, tow_status_t cause);
void tow_release_handles(client_t *client, const tow_msg_release_t *message);
void tow_gets_destroy(tow_controller_t *controller);
void tow_puts_destroy(tow_controller_t *controller);
void tow_object_dropped(void *context, tow_object_t *object);
/* Adds it to the books; it counts its mapping until it is dropped. One without a
 * mapping is about to fail. */
tow_status_t tow_object_add(tow_controller_t *controller, mapping_t *mapping,
                            tow_object_options_t *options,
                            tow_object_t **out_object) TOW_MUST_USE;
/* One that has failed with `cause` (lent) from the start, because what it was to
 * be made of is not there: the client may already have used it. */
tow_status_t tow_object_add_failed(client_t *client, const slice_t *slice,
                                   uint64_t id, tow_status_t cause)
    TOW_MUST_USE;

/* -- Regroups ----------------------------------------------------------------- */

void tow_regroup_begin(client_t *client, const tow_msg_regroup_t *message);
void tow_regroup_grant(regroup_t *regroup);
void tow_regroup_refuse(regroup_t *regroup, tow_status_t take_status);
void tow_regroups_lose(client_t *client, tow_status_t cause);
void tow_regroups_destroy(tow_controller_t *controller);
/* A client's object that has such a shard and may be used. */
tow_status_t tow_shard_find(const client_t *client, uint64_t id, uint32_t shard,
                            tow_object_t **out_source) TOW_MUST_USE;

/* What it needs on its devices; lent. */
void tow_regroup_needs(const regroup_t *regroup,
                       tow_object_t *const **out_sources, size_t *out_count,
                       const tow_ticket_part_t **out_part);

/* -- Spilling ----------------------------------------------------------------- */

/* For the scheduler. */
bool tow_spill_weigh(void *controller, tow_ticket_t *ticket);
bool tow_spill_make_room(void *controller, tow_ticket_t *ticket);
/* Why a ticket that was refused found no room, if that is known. */
tow_status_t tow_spill_explain(tow_controller_t *controller,
                               tow_status_t take_refusal) TOW_MUST_USE;
/* The unit is granted, and about to be sent: what it needs goes before it. */
void tow_spill_bring_back(tow_controller_t *controller, unit_t *unit);
/* The unit goes, or its objects are all on their devices. */
void tow_spill_unweigh(tow_controller_t *controller, unit_t *unit);
void tow_spill_done(worker_t *worker, const tow_msg_spill_done_t *message);
void tow_spill_dropped(tow_controller_t *controller, tow_object_t *object);
void tow_spills_lose(tow_controller_t *controller, worker_t *worker);
void tow_spills_destroy(tow_controller_t *controller);

/* -- Runs ------------------------------------------------------------------- */

struct run {
    unit_t unit;
    tow_controller_t *controller;
    client_t *client; /* NULL: gone */
    uint64_t id;      /* the client's */
    uint64_t key;
    uint64_t first_result; /* the client's id */
    uint64_t first_gang;
    int64_t granted_ns;
    int64_t late_told;   /* seconds of it that the client was told of */
    resident_t *program; /* counted */
    tow_list_t node;     /* in controller->runs, or ->doomed */
    tow_list_t gets;     /* that wait for the grant */
    bool is_granted;
    bool is_aborted;
    uint32_t reporting_count; /* workers that have not reported */
    uint32_t failed_node;
    tow_status_t error;       /* owned: the first */
    tow_object_t **results;   /* held */
    bool *has_reported;       /* by worker of the program */
    uint64_t *numbers;        /* owned: likewise, of what went through relays,
                                 and 0 for what did not; NULL: nothing did */
    run_block_t *blocks;      /* one an argument, and one for loads */
    tow_ticket_link_t *links; /* if it spans islands */
    size_t argument_count;
    tow_object_t *arguments[]; /* held */
};

/* What waits for a put, or for its program's loads. */
struct run_block {
    tow_list_t node;
    tow_controller_t *controller; /* set when it waits */
    tow_ticket_t *ticket;
    /* What it will consume, and nobody may copy from then; or NULL. Held by the
     * unit. */
    const tow_object_t *consumed;
};

/* Its arguments' keys are in `few`, or in the controller's arena. False: no
 * memory. */
#define RUN_FEW_ARGUMENTS 16
bool tow_run_fill_grant(const run_t *run, uint64_t few[RUN_FEW_ARGUMENTS],
                        tow_msg_grant_t *out_grant);
/* That worker of its program has done its part, well or not; if it is the last,
 * the run is gone. */
void tow_run_report(run_t *run, size_t index, tow_status_t take_status,
                    uint32_t node);
size_t tow_run_index_of(const run_t *run, const worker_t *worker);
void tow_run_grant(run_t *run);
void tow_run_refuse(run_t *run, tow_status_t take_status);
/* Ends those that were granted in vain. True if there were any. */
bool tow_runs_end_doomed(tow_controller_t *controller);
void tow_runs_destroy(tow_controller_t *controller);
void tow_run_begin(client_t *client, const tow_msg_run_t *message);
void tow_run_unblock(run_block_t *block);
void tow_unit_block(tow_controller_t *controller, tow_ticket_t *ticket,
                    run_block_t *block, tow_list_t *waiting);
void tow_run_cancel(client_t *client, const tow_msg_cancel_t *message);
void tow_runs_done(worker_t *worker, const tow_msg_done_t *message);
void tow_runs_lose(tow_controller_t *controller, worker_t *worker,
                   tow_status_t cause);
void tow_runs_forsake(client_t *client);
void tow_runs_tell(client_t *client);
void tow_run_free(run_t *run);

/* -- Sessions, again --------------------------------------------------------- */

tow_closed_t tow_controller_closing(tow_controller_t *controller);
void tow_controller_part_closed(void *controller);
void tow_clients_close(tow_controller_t *controller, tow_status_t reason);
void tow_clients_destroy(tow_controller_t *controller);
void tow_workers_close(tow_controller_t *controller, tow_status_t reason);
void tow_workers_destroy(tow_controller_t *controller);
/* The turn has something to finish. */
void tow_controller_touch(tow_controller_t *controller);
/* Sends, or ends the session at the end of the turn: a queue that is full is a
 * peer that is hopeless. */
void tow_worker_send(worker_t *worker, uint32_t type, const tow_body_t *body);
void tow_tell_client(client_t *client, uint32_t type, const tow_body_t *body);
/* It broke the protocol: its session ends with this, at the end of the turn, and
 * nothing is said to it any more. The first counts. */
void tow_worker_fault(worker_t *worker, tow_status_t take_status);
void tow_client_fault(client_t *client, tow_status_t take_status);
void tow_client_message(client_t *client, const tow_message_t *message);
void tow_client_blob(client_t *client, uint64_t number, void *take_bytes,
                     size_t size);
void tow_client_gone(client_t *client, tow_status_t cause);
tow_status_t tow_client_create(tow_controller_t *controller,
                               tow_session_t *session, const char *name,
                               client_t **out_client) TOW_MUST_USE;
void tow_client_destroy(client_t *client);
void tow_worker_message(worker_t *worker, const tow_message_t *message);
void tow_worker_gone(worker_t *worker, tow_status_t cause);
tow_status_t tow_worker_join(tow_controller_t *controller,
                             tow_session_t *session,
                             const tow_msg_worker_join_t *join) TOW_MUST_USE;
/* At the end of a turn: sends what is released, now or a little later. */
void tow_worker_flush(worker_t *worker);
/* What is released, now. */
void tow_worker_send_releases(worker_t *worker);
/* And this is later. */
void tow_workers_release(tow_timer_t *timer);
/* For a process that has died: sessions go without a word to the env. */
void tow_clients_abandon(tow_controller_t *controller);
void tow_workers_abandon(tow_controller_t *controller);

/* -- Reports ---------------------------------------------------------------- */

void tow_report_begin(client_t *client, const tow_msg_report_get_t *message);
void tow_report_answer(worker_t *worker, const tow_msg_report_t *message);
void tow_reports_lose(tow_controller_t *controller, worker_t *worker,
                      client_t *client);

/* Of its workers that have not reported; tow_late_tell follows. */
void tow_report_ask_waits(client_t *client, const run_t *run);
void tow_reports_lose_patience(tow_timer_t *timer);
void tow_reports_destroy(tow_controller_t *controller);

/* -- Functions of clients ------------------------------------------------------- */

/* A computation on a worker calls, and its client answers. */
void tow_callback_begin(worker_t *worker, const tow_msg_callback_t *message);
void tow_callback_done(client_t *client,
                       const tow_msg_callback_done_t *message);
/* Those of a worker, or of a client, who is gone. */
void tow_callbacks_lose(tow_controller_t *controller, const worker_t *worker,
                        const client_t *client);
void tow_callbacks_destroy(tow_controller_t *controller);
/* Those that the run waits for, if any: "; worker-1 waits ...". */
void tow_callbacks_describe(FILE *out, const run_t *run);

/* -- Runs that take long -------------------------------------------------------- */

/* A run has been granted. */
void tow_late_watch(tow_controller_t *controller);
void tow_late_look(tow_timer_t *timer);
/* What workers were asked, and said. Lent for the call. */
typedef struct told {
    struct waits *waits;
    worker_t *const *silent; /* those that have not answered */
    size_t silent_count;
} told_t;

/* Of the client's oldest run; false: it has none that takes long. */
bool tow_late_text(const client_t *client, const told_t *told,
                   char text[TOW_LATE_TEXT_MAX]);
/* The workers of the run with this key have been asked. */
void tow_late_tell(client_t *client, uint64_t key, const told_t *told);

/* A device that waits in a collective, as its worker told. */
typedef struct wait {
    int64_t device;
    uint64_t gang;
    uint64_t waited_ns;
    size_t missing_count;
    int64_t missing[TOW_WAIT_MISSING_MAX];
    /* While it is judged: */
    bool is_seen;
    struct wait *after;
} wait_t;

typedef struct waits {
    TOW_VEC(wait_t) items;
    bool is_sorted; /* by device */
} waits_t;

/* Who keeps gangs waiting. */
typedef struct late {
    int64_t devices[TOW_LATE_NAMES_MAX];
    size_t device_count;
    bool has_more;
    size_t waiting_count; /* devices that wait for them, or for who waits */
    uint64_t waited_ns;   /* the longest */
} late_t;

/* At most TOW_LATE_WAITS_MAX. */
void tow_waits_add(waits_t *waits, const tow_msg_report_t *message);
void tow_waits_deinit(waits_t *waits);
/* Of these gangs, and of those that their members wait in instead. */
late_t tow_waits_judge(waits_t *waits, uint64_t first_gang,
                       uint64_t gang_count);

/* -- Relays ------------------------------------------------------------------- */

bool tow_relays_are_used(const resident_t *resident);
void tow_relays_grant(run_t *run, tow_msg_grant_t *grant);
void tow_relay_done(worker_t *relay, const tow_msg_relay_done_t *message);
/* `worker` and that process, one of them perhaps a relay of the other. */
void tow_relay_lost(worker_t *worker, uint32_t process);
/* All that it was to pass on is sent again. */
void tow_relay_gone(worker_t *relay);

#endif /* TOW_CONTROLLER_CONTROLLER_IMPL_H_ */
