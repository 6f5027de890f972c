/* The client: one state machine, and the public interface around it.
 *
 *   connection.c       the session with the controller
 *   reconnect.c        connection generations: disconnecting and redialling
 *   slice.c function.c program.c
 *   partition_query.c  queries of compilers
 *   array.c            arrays and their completion
 *   run.c              calls and runs: the hot path
 *   transfer.c         uploads and downloads
 *   prefetch.c         cached values, and results fetched with their run
 *   callback.c         functions that computations call
 *   assemble.c         arrays made of existing shards
 *   move.c             transfers and collectives between slices
 *   stall.c            notifications of stalled runs
 *   check.c            invariants of all records
 *   api.c              towpath.h: locks, calls the machine, waits, unlocks
 *   local_cluster.c    a cluster of child processes
 *
 * The functions here are for a thread that holds the client's lock
 * (env/net/locked_net.h), or for the one thread of a simulation, which has no
 * lock: the same machine drives real and simulated clusters. None of them waits:
 * an operation that has an answer has a completion_t, which the answer settles. */
#ifndef TOW_CLIENT_CLIENT_IMPL_H_
#define TOW_CLIENT_CLIENT_IMPL_H_

#include <towpath/towpath.h>

#include "base/arena.h"
#include "base/list.h"
#include "base/map.h"
#include "base/vec.h"
#include "client/client.h"
#include "client/tuning.h"
#include "device/signature.h"
#include "env/net/locked_net.h"
#include "ir/lower.h"
#include "session/session.h"

typedef tow_completion_t completion_t;
typedef tow_callback_t callback_t;
typedef struct run_record run_record_t;
typedef struct request request_t;
typedef struct upload upload_t;
typedef struct client_lane client_lane_t;
typedef struct assembly assembly_t;
typedef struct reader reader_t;

struct tow_client {
    uint32_t reference_count;
    tow_env_t *env;
    tow_locked_net_t *net;           /* NULL in a simulation */
    struct tow_local_cluster *local; /* owned; NULL: a cluster of others */
    struct tow_security *security;   /* owned; the net borrows it */
    tow_session_t *session;          /* NULL: closed */
    tow_session_t *closing;          /* until it is closed */
    completion_t opening;
    /* See reconnect.c. */
    atomic_uint generation;        /* also read unlocked */
    tow_status_t disconnect_cause; /* owned: why there is no cluster now */
    tow_status_t last_cause;       /* owned: why the last generation ended */
    char *address;                 /* owned */
    tow_cluster_monitor_t monitor;
    tow_timer_t redial;
    int64_t redial_delay_ns;
    bool is_final; /* the cluster has ended for good */
    uint32_t number;
    char name[TOW_PEER_NAME_MAX + 1]; /* for display; "": the env's */
    tow_arena_t arena;                /* of the message that is being handled */

    uint64_t slice_number, function_number, program_number, object_number,
        run_number, request_number;
    tow_map_t slices;    /* id -> tow_slice_t */
    tow_map_t functions; /* id -> tow_function_t */
    tow_map_t programs;  /* id -> tow_program_t */
    tow_map_t arrays;    /* object id -> upload_t */
    tow_map_t runs;      /* id -> run_record_t */
    tow_map_t requests;  /* id -> request_t */
    tow_map_t blobs;     /* number -> report_blob_t */
    tow_list_t lanes;
    tow_list_t uploads;

    /* Released handles, sent in ranges. */
    TOW_VEC(uint64_t) release_firsts;
    TOW_VEC(uint32_t) release_counts;
    tow_timer_t release_timer;

    tow_list_t callbacks;                  /* to be called */
    tow_callback_server_t callback_server; /* of callbacks */
    tow_stall_watcher_t stall_watcher;     /* of runs that take long */
    uint32_t lazy_count;                   /* calls since the last flush */
    uint64_t upload_bytes;  /* of uploads that were not answered */
    uint64_t inlined_bytes; /* of those, in messages */
    size_t prefetch_count;  /* prefetches under way */
    bool has_room;          /* waiters clear it, then wait for it */
    bool is_closing;
    bool is_closed;
};

struct tow_slice {
    uint32_t reference_count;
    tow_client_t *client; /* counted */
    uint64_t id;
    uint32_t generation; /* of the client */
    completion_t opening;
    tow_device_t *devices; /* owned */
    char *text;            /* owned: their strings */
    const char *stablehlo; /* in `text` */
    size_t device_count;
};

/* The program of a call on a slice. */
typedef struct call_program {
    tow_slice_t *slice;     /* counted */
    tow_program_t *program; /* counted */
} call_program_t;

struct tow_function {
    uint32_t reference_count;
    tow_slice_t *slice; /* counted: the slice that it was compiled for */
    uint64_t id;
    completion_t compiling;
    tow_arena_t arena;
    tow_signature_t signature; /* in the arena */
    TOW_VEC(call_program_t) calls;
    uint32_t time_limit_ms; /* of a host function; 0: the default */
    /* A partition query: settled when there is one, or none will arrive. */
    completion_t query_ready;
    uint64_t query_number;
    void *query; /* owned; NULL: none */
    size_t query_size;
};

typedef struct program_result {
    tow_slice_t *slice; /* counted */
    tow_shape_t shape;
    uint32_t bounds;
    uint32_t credit;    /* see prefetch.c */
    bool is_read_whole; /* not only its first shard */
} program_result_t;

struct tow_program {
    uint32_t reference_count;
    tow_client_t *client; /* counted, except by programs of calls */
    bool is_of_call;
    uint32_t generation; /* of the client */
    uint64_t id;         /* 0: not sent */
    tow_graph_t *graph;  /* owned; NULL: it has been sent */
    completion_t adding;
    bool is_finished;
    size_t argument_count;
    TOW_VEC(program_result_t) results;
    TOW_VEC(uint32_t) donated;           /* arguments that a run consumes */
    size_t wanted_count;                 /* results to prefetch */
    TOW_VEC(tow_slice_t *) slices;       /* counted */
    TOW_VEC(tow_function_t *) functions; /* counted */
};

struct tow_array {
    uint32_t reference_count;
    tow_client_t *client; /* counted */
    tow_slice_t *slice;   /* counted */
    uint64_t id;
    tow_shape_t shape;    /* of one shard */
    uint64_t shard_bytes; /* the maximum, if some dims are bounds */
    uint32_t bounds;      /* bit i: shape.dims[i] is an upper bound */
    completion_t value;
    run_record_t *run;           /* borrowed: makes it; NULL: none, or done */
    upload_t *upload;            /* borrowed: the upload that makes it */
    tow_list_t waiting;          /* callback_t, owned */
    tow_list_t assembly_sources; /* of arrays assembled from it */
    assembly_t *assembly;        /* borrowed: the assembly that makes it */
    /* A value of a program under trace has no object. */
    tow_program_t *program; /* counted */
    tow_value_t place;
    /* See prefetch.c. */
    uint64_t maker; /* id of the program whose result it is; 0: none */
    uint32_t maker_result;
    bool is_fetched;            /* with its run */
    bool is_read;               /* the user has read it */
    tow_cached_value_t *cached; /* each counted: cached shards */
    request_t *prefetch;        /* borrowed: prefetches under way */
};

/* A source array that an assembled array waits for, and holds. */
typedef struct assembly_source {
    tow_list_t node;
    assembly_t *assembly;
} assembly_source_t;

struct assembly {
    tow_array_t *array; /* borrowed; NULL: released */
    uint32_t left_count;
    tow_status_t error; /* owned: the first */
    assembly_source_t assembly_sources[];
};

/* A run that has not completed. */
struct run_record {
    uint64_t id;
    tow_program_t *program; /* counted */
    bool is_given_up;
    uint32_t result_count;
    tow_array_t *results[]; /* borrowed; NULL: released */
};

struct upload {
    tow_client_t *client;
    tow_array_t *array; /* borrowed; NULL: released */
    uint64_t id;        /* of the object */
    tow_list_t node;    /* in client->uploads */
    const uint8_t *bytes;
    void *copy; /* owned: the memory of `bytes`, if it is a copy */
    size_t shard_bytes;
    size_t shard_count;
    size_t size; /* as counted in upload_bytes */
    bool replicated;
    bool inlined;
    size_t unsent_count;      /* shards whose bytes are still needed */
    size_t writing_count;     /* writes under way */
    bool is_answered;         /* PutDone has arrived, or never will */
    bool is_given_up;         /* and the controller has been notified */
    completion_t *bytes_free; /* borrowed: settled when the bytes are free */
    void (*done_with_bytes)(void *context);
    void *context;
};

typedef enum request_kind {
    REQUEST_GET,
    REQUEST_REPORT,
} request_kind_t;

struct request {
    tow_client_t *client;
    uint64_t id;
    request_kind_t kind;
    completion_t *answer; /* borrowed; or NULL and: */
    callback_t *callback; /* owned */
    void *bytes;          /* borrowed: destination of a value */
    size_t size;
    char **out_text;  /* borrowed: destination of a report */
    size_t *out_size; /* borrowed: its size; may be NULL */
    tow_region_t *region;
    tow_status_t status;    /* owned: while the region closes */
    tow_shape_t *out_shape; /* borrowed; NULL: the size is known */
    /* Of a prefetch: */
    tow_cached_value_t *cached; /* owned; NULL: not a prefetch */
    tow_array_t *array;         /* borrowed; NULL: released */
    request_t *next_prefetch;
    reader_t *readers; /* owned: reads since it was sent */
};

/* -- connection.c ----------------------------------------------------------------- */

tow_status_t tow_client_send(tow_client_t *client, uint32_t type,
                             const tow_body_t *body) TOW_MUST_USE;
/* A blob that a message names; tow_free. NULL: it has not arrived. */
void *tow_client_take_blob(tow_client_t *client, uint64_t number,
                           size_t *out_size);
/* The session takes the bytes. 0: disconnected. */
uint64_t tow_client_send_blob(tow_client_t *client, void *take_bytes,
                              size_t size);
void tow_completion_settle(tow_client_t *client, completion_t *completion,
                           tow_status_t take_status);
/* Takes the callback: it is called soon, unlocked. */
void tow_client_call_later(tow_client_t *client, callback_t *take_callback,
                           tow_status_t take_status);
void tow_client_expect(tow_client_t *client, bool expected);
void tow_client_callback_free(callback_t *callback);
/* Calls the callbacks of the list, and empties it. Not locked. */
void tow_client_callbacks_run(tow_list_t *callbacks);
void tow_client_flush_releases(tow_client_t *client);
void tow_client_discard_releases(tow_client_t *client);
void tow_client_discard_blobs(tow_client_t *client);
void tow_client_note_release(tow_client_t *client, uint64_t id);

extern const tow_session_handler_t tow_client_handler;

/* -- reconnect.c --------------------------------------------------------------------- */

/* TOW_OK, or the error of operations while there is no cluster. */
tow_status_t tow_client_connection_status(const tow_client_t *client)
    TOW_MUST_USE;
/* The same for things made in that generation. */
tow_status_t tow_client_generation_status(const tow_client_t *client,
                                          uint32_t generation) TOW_MUST_USE;
/* The same for a slice, and for functions and arrays through their slices. */
tow_status_t tow_slice_generation_status(const tow_slice_t *slice) TOW_MUST_USE;
/* The current controller knows the slice. */
static inline bool tow_slice_is_known(const tow_slice_t *slice)
{
    return slice->generation == atomic_load_explicit(&slice->client->generation,
                                                     memory_order_relaxed);
}

/* The cluster has disconnected: all operations under way fail with this, and
 * the client redials. */
void tow_client_on_disconnect(tow_client_t *client, tow_status_t take_cause);
/* The controller has accepted the client. */
void tow_client_begin_generation(tow_client_t *client);
tow_status_t tow_client_dial_first(tow_client_t *client,
                                   const tow_client_dial_options_t *options)
    TOW_MUST_USE;

/* -- Operations and their answers ------------------------------------------ */

void tow_slice_opened(tow_client_t *client,
                      const tow_msg_slice_opened_t *opened);

void tow_function_compiled(tow_client_t *client,
                           const tow_msg_compile_done_t *done);

void tow_function_on_partition_query(tow_client_t *client,
                                     const tow_msg_partition_query_t *message);

void tow_program_answered(tow_client_t *client,
                          const tow_msg_program_added_t *added);
/* The program of a call, made at the first call. Borrowed. */
tow_status_t tow_function_program(tow_function_t *function, tow_slice_t *slice,
                                  tow_program_t **out_program) TOW_MUST_USE;

tow_status_t tow_array_make(tow_slice_t *slice, const tow_shape_t *shape,
                            tow_array_t **out_array) TOW_MUST_USE;
void tow_array_settle(tow_array_t *array, tow_status_t take_status);
/* Of a settled array: TOW_OK if it has its value. */
tow_status_t tow_array_outcome(const tow_array_t *array) TOW_MUST_USE;
/* TOW_OK if the controller knows the array: it is neither a value of a program
 * under trace nor a promise without a run. */
tow_status_t tow_array_check_started(const tow_array_t *array) TOW_MUST_USE;
/* Notifies arrays assembled from its shards, if it is settled. */
void tow_array_notify_assemblies(tow_array_t *array);

void tow_client_runs_done(tow_client_t *client,
                          const tow_msg_runs_done_t *done);
void tow_client_runs_on_disconnect(tow_client_t *client);
/* There is room for another run, or an upload of so many bytes. */
bool tow_client_has_room(tow_client_t *client);
bool tow_client_has_room_for(tow_client_t *client, uint64_t upload_bytes);
/* Wakes threads that wait for room. */
void tow_client_notify_room(tow_client_t *client);

void tow_client_on_callback(tow_client_t *client,
                            const tow_msg_callback_t *message);
void tow_client_run_on_stall(tow_client_t *client,
                             const tow_msg_run_stalled_t *stalled);

void tow_client_upload_opened(tow_client_t *client,
                              const tow_msg_put_opened_t *opened);
void tow_client_upload_done(tow_client_t *client,
                            const tow_msg_put_done_t *done);
void tow_client_uploads_on_disconnect(tow_client_t *client);
void tow_client_download_done(tow_client_t *client,
                              const tow_msg_get_done_t *done);
/* A report request, as in ReportGet. */
typedef struct report_wish {
    tow_report_kind_t kind;
    const tow_function_t *function; /* or NULL */
    uint64_t window_ns;
} report_wish_t;

tow_status_t tow_client_report_start(tow_client_t *client,
                                     const report_wish_t *wish, char **out_text,
                                     size_t *out_size, completion_t *answer)
    TOW_MUST_USE;
void tow_client_report_done(tow_client_t *client,
                            const tow_msg_report_t *report);
void tow_client_requests_on_disconnect(tow_client_t *client);
/* Requests a shard that arrives in the answer, without a waiter yet. Borrowed
 * until it has completed. */
tow_status_t tow_client_request_get(tow_array_t *array, size_t shard,
                                    void *bytes, size_t size,
                                    request_t **out_request) TOW_MUST_USE;

/* -- prefetch.c -------------------------------------------------------------------- */

/* Caches the bytes of an upload, if they are few. */
void tow_array_cache_upload(tow_array_t *array,
                            const tow_upload_options_t *options);
/* The array is freed or consumed. */
void tow_array_discard_cached(tow_array_t *array);
void tow_array_leave_prefetch(tow_array_t *array);
/* It is freed; if its prefetch was not read, that costs credit. */
void tow_array_note_unread(tow_array_t *array);
/* Prefetches results, after the run has been sent. */
void tow_client_results_prefetch(const tow_program_t *program,
                                 tow_array_t *const *results);
void tow_client_prefetch_done(request_t *request, tow_status_t take_status);
void tow_client_prefetch_discard(request_t *request);
/* True: the value is cached or being prefetched, and the callback is taken.
 * False: it must be requested. */
bool tow_array_read(tow_array_t *array, size_t shard, void *bytes,
                    completion_t *answer, callback_t *take_callback);

/* -- check.c ------------------------------------------------------------------- */

void tow_slice_check(const tow_slice_t *slice);
void tow_function_check(const tow_function_t *function);
void tow_program_check(const tow_program_t *program);
void tow_array_check(const tow_array_t *array);
void tow_client_upload_check(const upload_t *upload);
void tow_client_request_check(const request_t *request);

/* -- Discarding and closing ------------------------------------------------ */

/* For a simulated process that has crashed: frees without calling the env. */
void tow_client_runs_discard(tow_client_t *client);
void tow_client_transfers_discard(tow_client_t *client);
/* Frees the callbacks that wait for it. */
void tow_array_discard_callbacks(tow_array_t *array);
void tow_client_lanes_close(tow_client_t *client);
bool tow_client_transfers_are_quiet(const tow_client_t *client);

#endif /* TOW_CLIENT_CLIENT_IMPL_H_ */
