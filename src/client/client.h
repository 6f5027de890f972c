/* For siblings: the client's state machine on an env of their own, as simulations
 * drive it. Programs use include/towpath/towpath.h.
 *
 * Functions here are for the one thread that turns the env. None of them waits:
 * what has an answer has a tow_settling_t that its answer settles. In a
 * simulation callbacks run at once, inside of the turn that has the answer. */
#ifndef TOW_CLIENT_CLIENT_H_
#define TOW_CLIENT_CLIENT_H_

#include <stdatomic.h>
#include <stdbool.h>
#include <towpath/towpath.h>

#include "base/list.h"
#include "base/macros.h"
#include "base/status.h"
#include "device/device.h"
#include "env/env.h"
#include "ir/graph.h"

/* Something that an answer settles, once. */
typedef struct tow_settling {
    bool settled;
    tow_status_t error; /* owned */
} tow_settling_t;

/* What a user wants to be called for. From tow_calloc; whoever takes it frees
 * it. */
typedef struct tow_callback {
    tow_list_t node;
    void (*done)(void *context, tow_status_t take_status); /* or NULL: */
    void (*plain)(void *context);
    void *context;
    tow_status_t status; /* owned */
    /* It may come late: no thread need look out for it. */
    bool is_patient;
    bool is_lent; /* it is part of something, which its call may free */
    bool is_due;  /* inside: it is about to be called */
} tow_callback_t;

/* Who keeps the cluster alive, and knows when it has ended for good. */
typedef struct tow_client_keeper {
    /* Inside, before it is dialled again. An error: it will not come again, and
     * why. NULL: nobody knows. */
    tow_status_t (*check)(void *context);
    void *context; /* lent */
} tow_client_keeper_t;

typedef struct tow_machine_options {
    const char *address;
    const char *name;    /* for people; NULL: the env's, which is unique */
    int64_t patience_ns; /* for the first time */
    tow_client_keeper_t keeper;
    struct tow_shared_net *shared; /* NULL in a simulation */
} tow_machine_options_t;

/* Dials. tow_client_opening settles. A controller that is lost later is dialled
 * again, for as long as the client is open. */
tow_status_t tow_client_dial(tow_env_t *env,
                             const tow_machine_options_t *options,
                             tow_client_t **out_client) TOW_MUST_USE;
/* Ends the session: all that waits is settled with CANCELLED. */
void tow_client_shut(tow_client_t *client);
/* After tow_client_shut: nothing is under way any more. */
bool tow_client_is_quiet(const tow_client_t *client);
/* For a simulated process that has died: no env is called and nobody else, not
 * even whoever waits. What the user holds is dropped after this. */
void tow_client_abandon(tow_client_t *client);
/* When it is quiet or abandoned, and all that was made of it is dropped. */
void tow_client_free(tow_client_t *client);

const tow_settling_t *tow_client_opening(const tow_client_t *client);
/* TOW_OK, or why there is no cluster now. Lent. */
tow_status_t tow_client_lost(const tow_client_t *client);
/* How often the cluster was lost. What was made before it was last is lost too:
 * every use is UNAVAILABLE. On any thread. */
uint32_t tow_client_life(const tow_client_t *client);
/* Runs that have not been told done. */
size_t tow_client_run_count(const tow_client_t *client);

tow_status_t tow_slice_ask(tow_client_t *client,
                           const tow_slice_options_t *options,
                           tow_slice_t **out_slice) TOW_MUST_USE;
const tow_settling_t *tow_slice_opening(const tow_slice_t *slice);
/* The newest version of StableHLO that the compilers for all its devices read,
 * "1.13.7"; "": they do not say. Lent by the slice, which is open. */
const char *tow_slice_stablehlo(const tow_slice_t *slice);
void tow_slice_hold(tow_slice_t *slice);
void tow_slice_drop(tow_slice_t *slice);

tow_status_t tow_function_ask(tow_slice_t *slice, const tow_source_t *source,
                              tow_function_t **out_function) TOW_MUST_USE;
/* The same for a program of which the compiler will ask, and which is compiled for
 * this function alone. */
tow_status_t tow_asking_function_ask(tow_slice_t *slice,
                                     const tow_source_t *source,
                                     tow_function_t **out_function)
    TOW_MUST_USE;
/* Settles when there is a question (device/question.h), or tow_function_compiling
 * has. */
const tow_settling_t *tow_function_asking(const tow_function_t *function);
/* The caller's, who answers; tow_free. NULL: there is none. tow_function_asking
 * may settle again after it. */
void *tow_function_take_question(tow_function_t *function, size_t *out_size);
/* The bytes are taken; or why there are none, with which compiling ends. */
void tow_function_answer(tow_function_t *function, void *take_bytes,
                         size_t size, tow_status_t take_status);
/* A host function: `bytes` is a shared object, `signature` what is declared. */
tow_status_t tow_host_function_ask(tow_slice_t *slice, tow_bytes_t bytes,
                                   const tow_signature_t *signature,
                                   uint32_t time_limit_ms,
                                   tow_function_t **out_function) TOW_MUST_USE;
const tow_settling_t *tow_function_compiling(const tow_function_t *function);
void tow_function_hold(tow_function_t *function);
void tow_function_drop(tow_function_t *function);
/* The program of a call, made at the first. Lent. */
tow_status_t tow_function_program(tow_function_t *function, tow_slice_t *slice,
                                  tow_program_t **out_program) TOW_MUST_USE;

tow_status_t tow_program_begin(tow_client_t *client, const char *name,
                               tow_program_t **out_program) TOW_MUST_USE;
/* While it is traced: nothing of it shall be begun ahead of its data. */
tow_status_t tow_program_make_sequential(tow_program_t *program) TOW_MUST_USE;
void tow_program_hold(tow_program_t *program);
void tow_program_drop(tow_program_t *program);
tow_status_t tow_program_add_argument(tow_program_t *program,
                                      tow_slice_t *slice,
                                      const tow_shape_t *shape, bool donated,
                                      tow_value_t *out_value) TOW_MUST_USE;
tow_status_t tow_program_add_call(tow_program_t *program,
                                  tow_function_t *function, tow_slice_t *slice,
                                  const tow_value_t *inputs, size_t count,
                                  uint32_t *out_node) TOW_MUST_USE;
tow_status_t tow_program_add_transfer(tow_program_t *program, tow_value_t value,
                                      tow_slice_t *slice,
                                      const tow_sharding_t *from,
                                      const tow_sharding_t *to,
                                      uint32_t *out_node) TOW_MUST_USE;
tow_status_t tow_program_add_collective(tow_program_t *program,
                                        tow_slice_t *slice,
                                        const tow_collective_t *collective,
                                        const tow_value_t *inputs, size_t count,
                                        uint32_t *out_node) TOW_MUST_USE;
tow_status_t tow_program_add_result(tow_program_t *program, tow_value_t value,
                                    tow_slice_t *slice,
                                    const tow_shape_t *shape) TOW_MUST_USE;
/* What the options say, in full; INVALID_ARGUMENT. */
tow_status_t tow_array_shardings(const tow_array_t *array,
                                 const tow_slice_t *slice,
                                 const tow_transfer_options_t *options,
                                 tow_sharding_t *out_from,
                                 tow_sharding_t *out_to) TOW_MUST_USE;
/* The value of an array, shaped like `array`, on `slice`; noted if the array is
 * being traced, else run at once. */
tow_status_t tow_array_move(tow_array_t *array, tow_slice_t *slice,
                            const tow_sharding_t *from,
                            const tow_sharding_t *to, tow_array_t **out_array)
    TOW_MUST_USE;
/* Each array combined over the devices of its slice, which is that of all; noted
 * if they are being traced, else run at once. */
tow_status_t tow_arrays_combine(tow_array_t *const *arrays, size_t count,
                                const tow_collective_t *collective,
                                tow_array_t **results) TOW_MUST_USE;
/* A value of a program that is traced. */
tow_status_t tow_program_placeholder(tow_program_t *program, tow_slice_t *slice,
                                     const tow_shape_t *shape,
                                     tow_value_t place, tow_array_t **out_array)
    TOW_MUST_USE;
/* Sends it; tow_program_adding settles. */
tow_status_t tow_program_send(tow_program_t *program) TOW_MUST_USE;
const tow_settling_t *tow_program_adding(const tow_program_t *program);
tow_status_t tow_program_start(tow_program_t *program,
                               tow_array_t *const *arguments,
                               size_t argument_count, tow_array_t **results,
                               size_t result_count) TOW_MUST_USE;

void tow_array_hold(tow_array_t *array);
void tow_array_drop(tow_array_t *array);
const tow_settling_t *tow_array_value(const tow_array_t *array);
/* Takes the callback. */
void tow_array_call_when_ready(tow_array_t *array,
                               tow_callback_t *take_callback);

/* With inlined bytes `bytes_free` settles at once. */
tow_status_t tow_upload_start(tow_slice_t *slice,
                              const tow_upload_options_t *options,
                              const tow_shape_t *shape, uint64_t shard_bytes,
                              tow_settling_t *bytes_free,
                              tow_array_t **out_array) TOW_MUST_USE;
/* One of `answer` and `take_callback`, which is taken only on success. */
tow_status_t tow_download_start(tow_array_t *array, size_t shard, void *bytes,
                                size_t size, tow_settling_t *answer,
                                tow_callback_t *take_callback) TOW_MUST_USE;

/* The same of a shard that may be smaller than the room; its shape is told. */
tow_status_t tow_download_sized_start(tow_array_t *array, size_t shard,
                                      void *bytes, size_t size,
                                      tow_shape_t *out_shape,
                                      tow_settling_t *answer) TOW_MUST_USE;

/* -- Values that are here ------------------------------------------------------ */

/* The bytes of a shard that this process has: of a small upload, or of a small
 * result that was fetched ahead of its being wanted. They never change. Counted,
 * by any thread. */
typedef struct tow_kept {
    atomic_uint reference_count;
    uint32_t shard;        /* TOW_KEPT_EVERY_SHARD: they are all the same */
    struct tow_kept *next; /* inside: of the same array */
    size_t size;
    _Alignas(16) uint8_t bytes[];
} tow_kept_t;
#define TOW_KEPT_EVERY_SHARD UINT32_MAX

void tow_kept_retain(tow_kept_t *kept);
/* NULL is harmless. */
void tow_kept_release(tow_kept_t *kept);
/* Inside. Somebody looks at it: lent by the array, or NULL if it is not here. */
tow_kept_t *tow_array_kept(tow_array_t *array, size_t shard);
/* Inside: a download of a few bytes will not wait for long. */
bool tow_array_is_near(const tow_array_t *array);

/* -- Shards ------------------------------------------------------------------- */

/* A new array whose shard i is shard shards[i] of sources[i], on the same device,
 * which is device i of the slice. They share memory. It is ready when its
 * sources are. */
tow_status_t tow_regroup_start(tow_slice_t *slice, tow_array_t *const *sources,
                               const uint32_t *shards, tow_array_t **out_array)
    TOW_MUST_USE;
/* A new array with the value of one shard, on a slice of one device. */
tow_status_t tow_copy_start(tow_slice_t *slice, tow_array_t *source,
                            uint32_t shard, tow_array_t **out_array)
    TOW_MUST_USE;

/* -- Functions that computations call ------------------------------------------- */

/* A computation of this client's stands still until it is answered. */
typedef struct tow_client_request {
    uint64_t number;
    uint32_t life;     /* inside: of the client, when it came */
    uint64_t function; /* as the program names it */
    int64_t device;    /* that calls */
    void *bytes;       /* owned: all arguments, one behind the other */
    size_t size;
    size_t result_size; /* bytes that it wants */
    tow_list_t node;    /* of whoever has it */
} tow_client_request_t;

typedef struct tow_client_server {
    /* Inside, once a request. Whoever takes it answers it, later, on any thread
     * that has entered. */
    void (*called)(void *context, tow_client_request_t *take_request);
    void *context; /* lent */
} tow_client_server_t;

/* Copied. Without one such programs fail. */
void tow_client_set_server(tow_client_t *client,
                           const tow_client_server_t *server);
/* A run that takes long. Lent for the call. */
typedef struct tow_late_run {
    uint64_t run; /* its number, among those of this client */
    uint64_t waited_ns;
    const char *text; /* for people: which, how long, who has not finished it */
} tow_late_run_t;

typedef struct tow_client_watcher {
    /* Inside; of the oldest run, again and again. True: it is given up, and fails
     * with DEADLINE_EXCEEDED and the same text. */
    bool (*late)(void *context, const tow_late_run_t *run);
    void *context; /* lent */
} tow_client_watcher_t;

/* Inside. Copied. */
void tow_client_set_watcher(tow_client_t *client,
                            const tow_client_watcher_t *watcher);
/* `results`: as many bytes as it wants, lent for the call; not looked at if the
 * status is an error, which the run then fails with. */
void tow_client_answer(tow_client_t *client, tow_client_request_t *take_request,
                       const void *results, tow_status_t take_status);

/* -- For siblings that enter by themselves -------------------------------------- */

/* Lent; NULL in a simulation. env/net/shared.h says how to enter. */
struct tow_shared_net *tow_client_shared(const tow_client_t *client);
/* Inside: until another run may be started. Not in callbacks, where it says so. */
tow_status_t tow_client_await_room(tow_client_t *client) TOW_MUST_USE;
/* The same until an upload of so many bytes may be. */
tow_status_t tow_client_await_upload(tow_client_t *client, size_t size)
    TOW_MUST_USE;
/* Leaves after a call that started something: at once, or with the next ones. */
void tow_client_leave_after_call(tow_client_t *client);
/* The same after an upload of so many bytes. */
void tow_client_leave_after_upload(tow_client_t *client, size_t size);
/* Leaves after something was dropped; closes the client if it was the last. */
void tow_client_leave_maybe_last(tow_client_t *client);
/* Not inside, for they wait. What the controller's books say of the memory of all
 * devices (TOW_REPORT_MEMORY of wire/message.h); tow_free_text. */
tow_status_t tow_client_memory(tow_client_t *client, char **out_text)
    TOW_MUST_USE;
/* What all processes of the cluster did in the last `window_ns`, in lines
 * (TOW_REPORT_SPANS); tow_free_text. Devices begin to remember what they did with
 * the first such question. */
tow_status_t tow_client_spans(tow_client_t *client, uint64_t window_ns,
                              char **out_text) TOW_MUST_USE;
/* What to add to times of the cluster, which are its controller's, to get those of
 * CLOCK_MONOTONIC here. 0 where they may well be the same. */
int64_t tow_client_clock_shift_ns(tow_client_t *client);
/* Who answers what the compiler asks, on the thread that waits for it, not
 * inside: it may do whatever it likes, compile something else too. The bytes are
 * from tow_malloc, and taken. */
typedef struct tow_answerer {
    tow_status_t (*answer)(void *context, tow_bytes_t question,
                           void **out_bytes, size_t *out_size);
    void *context; /* lent for the call */
} tow_answerer_t;

/* As tow_function_compile, for a program of which the compiler will ask. */
tow_status_t tow_function_compile_asking(tow_slice_t *slice,
                                         const tow_source_t *source,
                                         const tow_answerer_t *answerer,
                                         tow_function_t **out_function)
    TOW_MUST_USE;
/* What the compiler made of it; tow_free_text. */
tow_status_t tow_function_code(tow_function_t *function, char **out_bytes,
                               size_t *out_size) TOW_MUST_USE;
/* The life of the client in which it was compiled. */
uint32_t tow_function_life(const tow_function_t *function);
/* Lent. What compiling answered. */
const tow_signature_t *tow_function_signature(const tow_function_t *function);

#endif /* TOW_CLIENT_CLIENT_H_ */
