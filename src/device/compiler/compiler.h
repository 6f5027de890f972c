/* A compile service: turns a program into a serialised executable and its
 * signature, asynchronously, on the owner's env.
 *
 * Compilers are large and trust their input: about one in a hundred mutated
 * StableHLO programs crashes XLA's reader or makes it loop for ever. Two
 * implementations:
 *
 *     child    in child processes, where crashes, hangs and leaks do no harm:
 *              child.h
 *     direct   in this process, through a driver, for trusted programs such as
 *              those of simulated devices: direct.h
 *
 * tow_driver_load takes the result, on this host or others, under any device
 * assignment of the same size. All calls are for the owner's loop. */
#ifndef TOW_DEVICE_COMPILER_COMPILER_H_
#define TOW_DEVICE_COMPILER_COMPILER_H_

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/arena.h"
#include "base/list.h"
#include "device/device.h"
#include "device/signature.h"

typedef struct tow_compiler tow_compiler_t;
typedef struct tow_compile_job tow_compile_job_t;

/* The result of a job. */
typedef struct tow_compiled {
    void *bytes; /* owned: for tow_driver_load */
    size_t size;
    tow_signature_t signature; /* in the arena */
    tow_arena_t arena;
} tow_compiled_t;

/* NULL is fine. */
void tow_compiled_destroy(tow_compiled_t *compiled);

/* Owned by the caller until `done`. */
struct tow_compile_job {
    const char *name; /* lent until done; for messages. NULL: "a program" */
    tow_program_format_t format;
    tow_bytes_t program; /* lent until done */
    /* A serialised CompileOptionsProto; size 0: one device. */
    tow_bytes_t options; /* lent until done */
    /* Must be the compiler's kind of device. NULL: any. */
    const char *device_kind; /* lent until done */
    /* On TOW_OK the caller owns the result. Errors: the compiler's own;
     * INTERNAL, with the signal and the last output, if it crashed;
     * DEADLINE_EXCEEDED; CANCELLED. */
    void (*done)(tow_compile_job_t *job, tow_status_t take_status,
                 tow_compiled_t *take_compiled);
    /* A partition query of the compiler (device/partition_query.h). The job
     * pauses, its time limit too, until tow_compiler_reply or its cancellation.
     * In a turn of its own; the bytes are lent for the call. NULL: the job may
     * not query. Results of jobs that may query depend on the replies and are
     * not cached. */
    void (*on_query)(tow_compile_job_t *job, tow_bytes_t query);
    /* Belongs to the compiler. */
    struct {
        tow_list_t list; /* of the jobs that are queued, running, or ended */
        int state;
        bool is_cancelled;
        bool is_querying;
        tow_status_t status;      /* owned, once it has ended */
        tow_compiled_t *compiled; /* owned, once it has ended */
        void *place;              /* the implementation's, while it runs */
    } private_;
};

typedef enum tow_submit_result {
    TOW_SUBMIT_OK,
    TOW_SUBMIT_FULL,    /* the queue is full: try again later */
    TOW_SUBMIT_CLOSING, /* `done` will not run */
} tow_submit_result_t;

/* `done` runs once, in a turn of its own, after TOW_SUBMIT_OK. Jobs begin in
 * the order of submission. */
tow_submit_result_t tow_compiler_submit(tow_compiler_t *compiler,
                                        tow_compile_job_t *job) TOW_MUST_USE;

/* A job that was submitted and is not done ends with CANCELLED, soon, also if
 * it runs; a direct compiler first completes the compilation. */
void tow_compiler_cancel(tow_compiler_t *compiler, tow_compile_job_t *job);

/* The reply to a job's query, which is copied; or an error, with which the job
 * ends. Ignored if the job is not waiting for a reply. */
void tow_compiler_reply(tow_compiler_t *compiler, tow_compile_job_t *job,
                        tow_bytes_t reply, tow_status_t take_status);

/* Refuses new jobs and cancels the others. After the last `done` frees the
 * compiler and calls `closed`, in a turn of its own. */
void tow_compiler_close(tow_compiler_t *compiler, tow_closed_t closed);

#endif /* TOW_DEVICE_COMPILER_COMPILER_H_ */
