/* The client: one state machine, and the public interface around it.
 *
 *   machine.c    the session with the controller; what it says
 *   life.c       the controller that is lost, and comes again
 *   slice.c function.c program.c
 *   question.c   what compilers ask us
 *   array.c      values, their references and who waits for them
 *   run.c        calls and runs: the hot path
 *   transfer.c   uploads and downloads
 *   ahead.c      values that are here before they are asked for
 *   callback.c   functions that computations call
 *   shards.c     arrays of shards that are there
 *   api.c        towpath.h: enters, calls the machine, waits, leaves
 *   local.c      a cluster of processes of our own
 *
 * The functions here are for whoever is inside (env/net/shared.h), or for the
 * one thread of a simulation, where there is no shared net: so the same machine
 * drives real and simulated clusters. None of them waits: what has an answer
 * has `settled`, which its answer sets, and `error`. */
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
#include "env/net/shared.h"
#include "ir/lower.h"
#include "session/session.h"

typedef tow_settling_t settling_t;
typedef tow_callback_t callback_t;
typedef struct run_record run_record_t;
typedef struct request request_t;
typedef struct upload upload_t;
typedef struct client_lane client_lane_t;
typedef struct gathering gathering_t;
typedef struct reader reader_t;

struct tow_client {
    uint32_t reference_count;
    tow_env_t *env;
    tow_shared_net_t *shared;        /* NULL in a simulation */
    struct tow_local_cluster *local; /* owned; NULL: somebody else's */
    struct tow_security *security;   /* owned; lent to the shared net */
    tow_session_t *session;          /* NULL when it is closed */
    tow_session_t *closing;          /* until it is closed */
    settling_t opening;
    /* See life.c. */
    atomic_uint life;   /* also read outside: lives that have ended */
    tow_status_t lost;  /* owned: why there is no cluster now */
    tow_status_t ended; /* owned: what ended the last life */
    char *address;      /* owned */
    tow_client_keeper_t keeper;
    tow_timer_t redial;
    int64_t redial_delay_ns;
    bool is_final; /* the cluster will not be there again */
    uint32_t number;
    char name[TOW_PEER_NAME_MAX + 1]; /* for people; "": the env's */
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

    /* Handles that go, told in ranges. */
    TOW_VEC(uint64_t) release_firsts;
    TOW_VEC(uint32_t) release_counts;
    tow_timer_t release_timer;

    tow_list_t callbacks;         /* to be called */
    tow_client_server_t server;   /* of functions that computations call */
    tow_client_watcher_t watcher; /* of runs that take long */
    uint32_t lazy_count;          /* calls since the last flush */
    uint64_t upload_bytes;        /* of uploads that were not answered */
    uint64_t inlined_bytes;       /* of those, in messages */
    size_t ahead_count;           /* requests for what nobody has asked for */
    bool has_room; /* to go on: whoever waits for it clears it first */
    bool is_closing;
    bool is_closed;
};

struct tow_slice {
    uint32_t reference_count;
    tow_client_t *client; /* counted */
    uint64_t id;
    uint32_t life; /* of the client, as of all that is made of it */
    settling_t opening;
    tow_device_t *devices; /* owned */
    char *text;            /* owned: what they point to */
    const char *stablehlo; /* in `text` */
    size_t device_count;
};

/* The program that a call on a slice is. */
typedef struct call_program {
    tow_slice_t *slice;     /* counted */
    tow_program_t *program; /* counted */
} call_program_t;

struct tow_function {
    uint32_t reference_count;
    tow_slice_t *slice; /* counted: that it was compiled for */
    uint64_t id;
    settling_t compiling;
    tow_arena_t arena;
    tow_signature_t signature; /* in the arena */
    TOW_VEC(call_program_t) calls;
    uint32_t time_limit_ms; /* of a host function; 0: the default */
    /* A question of the compiler's: settled when there is one, or none will
     * come. */
    settling_t asking;
    uint64_t question_number;
    void *question; /* owned; NULL: none */
    size_t question_size;
};

typedef struct program_result {
    tow_slice_t *slice; /* counted */
    tow_shape_t shape;
    uint32_t bounds;
    uint32_t credit;    /* see ahead.c */
    bool is_read_whole; /* not its first shard only */
} program_result_t;

struct tow_program {
    uint32_t reference_count;
    tow_client_t *client; /* counted, except by programs of calls */
    bool is_of_call;
    uint32_t life;      /* of the client */
    uint64_t id;        /* 0: not sent */
    tow_graph_t *graph; /* owned; NULL when it has been sent */
    settling_t adding;
    bool is_finished;
    size_t argument_count;
    TOW_VEC(program_result_t) results;
    TOW_VEC(uint32_t) donated;           /* arguments that a run consumes */
    size_t wanted_count;                 /* results that are fetched ahead */
    TOW_VEC(tow_slice_t *) slices;       /* counted: kept while it lives */
    TOW_VEC(tow_function_t *) functions; /* counted */
};

struct tow_array {
    uint32_t reference_count;
    tow_client_t *client; /* counted */
    tow_slice_t *slice;   /* counted */
    uint64_t id;
    tow_shape_t shape;    /* of one shard */
    uint64_t shard_bytes; /* the most, if some dims are bounds */
    uint32_t bounds;      /* bit i: shape.dims[i] is the most that it can be */
    settling_t value;
    run_record_t *run;    /* lent: that makes it; NULL: none, or done */
    upload_t *upload;     /* lent: that makes it */
    tow_list_t waiting;   /* callback_t, owned */
    tow_list_t followers; /* follower_t, owned: of arrays made of our shards */
    gathering_t *gathering; /* lent: what we are made of */
    /* A value of a program that is being traced; then there is no object. */
    tow_program_t *program; /* counted */
    tow_value_t place;
    /* See ahead.c. */
    uint64_t maker; /* the program that it is a result of; 0: none */
    uint32_t maker_result;
    bool is_fetched;  /* ahead */
    bool is_read;     /* somebody has looked at it */
    tow_kept_t *kept; /* each counted: shards that are here */
    request_t *ahead; /* lent: those that are on their way */
};

/* One of the arrays that a regrouped one waits for, which it holds. */
typedef struct follower {
    tow_list_t node;
    gathering_t *gathering;
} follower_t;

struct gathering {
    tow_array_t *array; /* lent; NULL: released */
    uint32_t left_count;
    tow_status_t error; /* owned: the first */
    follower_t followers[];
};

/* A run that has not been told done. */
struct run_record {
    uint64_t id;
    tow_program_t *program; /* counted */
    bool is_given_up;
    uint32_t result_count;
    tow_array_t *results[]; /* lent; NULL: released */
};

struct upload {
    tow_client_t *client;
    tow_array_t *array; /* lent; NULL: released */
    uint64_t id;        /* of the object */
    tow_list_t node;    /* in client->uploads */
    const uint8_t *bytes;
    void *copy; /* owned: what `bytes` is, if we made it */
    size_t shard_bytes;
    size_t shard_count;
    size_t size; /* as it counts among those in flight */
    bool replicated;
    bool inlined;
    size_t unsent_count;    /* shards whose bytes are still needed */
    size_t writing_count;   /* writes under way */
    bool is_answered;       /* PutDone came, or never will */
    bool is_given_up;       /* and the controller knows */
    settling_t *bytes_free; /* lent: who waits for the bytes */
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
    settling_t *answer;   /* lent: who waits; NULL: */
    callback_t *callback; /* owned: who is called */
    void *bytes;          /* lent: where a value goes */
    size_t size;
    char **out_text;  /* lent: where a report goes */
    size_t *out_size; /* lent: its bytes; may be NULL */
    tow_region_t *region;
    tow_status_t status;    /* owned: while the region closes */
    tow_shape_t *out_shape; /* lent until answered; NULL: the size is known */
    /* Of one that nobody has asked for: */
    tow_kept_t *kept;   /* owned: where it goes; NULL: it was asked for */
    tow_array_t *array; /* lent; NULL: released */
    request_t *next_ahead;
    reader_t *readers; /* owned: who has asked meanwhile */
};

/* -- machine.c ----------------------------------------------------------------- */

tow_status_t tow_client_send(tow_client_t *client, uint32_t type,
                             const tow_body_t *body) TOW_MUST_USE;
/* A blob that came, which a message names; tow_free. NULL: it did not. */
void *tow_client_take_blob(tow_client_t *client, uint64_t number,
                           size_t *out_size);
/* The copy is the session's. 0: gone. */
uint64_t tow_client_send_blob(tow_client_t *client, void *take_bytes,
                              size_t size);
void tow_settle(tow_client_t *client, settling_t *settling,
                tow_status_t take_status);
/* Takes the callback: it will be called outside of the lock, soon. */
void tow_client_call_later(tow_client_t *client, callback_t *take_callback,
                           tow_status_t take_status);
void tow_client_expect(tow_client_t *client, bool expected);
void tow_callback_free(callback_t *callback);
/* Calls what is in the list, and empties it. Not inside. */
void tow_callbacks_run(tow_list_t *callbacks);
void tow_client_flush_releases(tow_client_t *client);
void tow_client_forget_releases(tow_client_t *client);
void tow_client_forget_blobs(tow_client_t *client);
void tow_client_note_release(tow_client_t *client, uint64_t id);

extern const tow_session_handler_t tow_client_handler;

/* -- life.c --------------------------------------------------------------------- */

/* What to say when something is asked of a client without a cluster. */
tow_status_t tow_client_check(const tow_client_t *client) TOW_MUST_USE;
/* The same of what was made in that life. */
tow_status_t tow_client_check_life(const tow_client_t *client, uint32_t life)
    TOW_MUST_USE;
/* And of a slice, a function's or an array's too: it is theirs. */
tow_status_t tow_slice_check(const tow_slice_t *slice) TOW_MUST_USE;
/* Would the controller that is there know what it is told of it? */
static inline bool tow_slice_is_known(const tow_slice_t *slice)
{
    return slice->life ==
           atomic_load_explicit(&slice->client->life, memory_order_relaxed);
}

/* The cluster is gone: all that waits gets this, and it is dialled again. */
void tow_client_lose(tow_client_t *client, tow_status_t take_cause);
/* It has let us in. */
void tow_client_begin_life(tow_client_t *client);
tow_status_t tow_client_open_first(tow_client_t *client,
                                   const tow_machine_options_t *options)
    TOW_MUST_USE;

/* -- Things, and the answers to them ------------------------------------------- */

void tow_slice_opened(tow_client_t *client,
                      const tow_msg_slice_opened_t *opened);

void tow_function_compiled(tow_client_t *client,
                           const tow_msg_compile_done_t *done);

void tow_function_asked(tow_client_t *client,
                        const tow_msg_question_t *message);

void tow_program_answered(tow_client_t *client,
                          const tow_msg_program_added_t *added);
/* The program of a call, made at the first. Lent. */
tow_status_t tow_function_program(tow_function_t *function, tow_slice_t *slice,
                                  tow_program_t **out_program) TOW_MUST_USE;

tow_status_t tow_array_make(tow_slice_t *slice, const tow_shape_t *shape,
                            tow_array_t **out_array) TOW_MUST_USE;
void tow_array_settle(tow_array_t *array, tow_status_t take_status);
/* Of one that is settled: TOW_OK if its value is there. */
tow_status_t tow_array_outcome(const tow_array_t *array) TOW_MUST_USE;
/* Arrays made of its shards are told, if it is settled. */
void tow_array_tell_followers(tow_array_t *array);

void tow_runs_told(tow_client_t *client, const tow_msg_runs_done_t *done);
void tow_runs_lost(tow_client_t *client);
/* For another run, or an upload of so many bytes. */
bool tow_client_has_room(tow_client_t *client);
bool tow_client_has_room_for(tow_client_t *client, uint64_t upload_bytes);
/* There may be room again, or nothing to wait for any more. */
void tow_client_tell_room(tow_client_t *client);

void tow_client_called(tow_client_t *client, const tow_msg_callback_t *message);
void tow_run_is_late(tow_client_t *client, const tow_msg_run_late_t *late);

void tow_upload_opened(tow_client_t *client,
                       const tow_msg_put_opened_t *opened);
void tow_upload_done(tow_client_t *client, const tow_msg_put_done_t *done);
void tow_uploads_lost(tow_client_t *client);
void tow_download_done(tow_client_t *client, const tow_msg_get_done_t *done);
/* What a report is to be of: ReportGet has the same. */
typedef struct report_wish {
    tow_report_kind_t kind;
    const tow_function_t *function; /* or NULL */
    uint64_t window_ns;
} report_wish_t;

tow_status_t tow_report_start(tow_client_t *client, const report_wish_t *wish,
                              char **out_text, size_t *out_size,
                              settling_t *answer) TOW_MUST_USE;
void tow_report_done(tow_client_t *client, const tow_msg_report_t *report);
void tow_requests_lost(tow_client_t *client);
/* Asks for a shard that comes in the answer, in a request that nobody waits for
 * yet. Lent until it is done. */
tow_status_t tow_request_get(tow_array_t *array, size_t shard, void *bytes,
                             size_t size, request_t **out_request) TOW_MUST_USE;

/* -- ahead.c -------------------------------------------------------------------- */

/* Keeps the bytes of an upload, if they are few. */
void tow_array_keep(tow_array_t *array, const tow_upload_options_t *options);
/* The array goes, or is consumed. */
void tow_array_forget_kept(tow_array_t *array);
void tow_array_leave_ahead(tow_array_t *array);
/* It goes, and was fetched for nothing. */
void tow_array_note_unread(tow_array_t *array);
/* After the run has been sent. */
void tow_results_fetch(const tow_program_t *program,
                       tow_array_t *const *results);
void tow_ahead_done(request_t *request, tow_status_t take_status);
void tow_ahead_abandon(request_t *request);
/* It is here, or on its way: then the callback is taken. False: it must be asked
 * for. */
bool tow_array_read(tow_array_t *array, size_t shard, void *bytes,
                    settling_t *answer, callback_t *take_callback);

/* -- The end of things ---------------------------------------------------------- */

/* For a process that has died: frees without a word to the env. */
void tow_runs_abandon(tow_client_t *client);
void tow_transfers_abandon(tow_client_t *client);
/* Frees the callbacks that wait for it. */
void tow_array_abandon(tow_array_t *array);
void tow_lanes_close(tow_client_t *client);
bool tow_transfers_are_quiet(const tow_client_t *client);

#endif /* TOW_CLIENT_CLIENT_IMPL_H_ */
