/* Compiling, as a service: a program in, a serialised executable and its
 * signature out, in some later turn of the owner's env.
 *
 * Compilers are large and trust what they read: of mutated StableHLO bytecode
 * about one program in a hundred crashes XLA's reader or makes it loop for ever.
 * So they may run elsewhere:
 *
 *     child    in child processes that a crash, a hang or a leak ends without
 *              harm: child.h
 *     direct   in this process, through a driver, for programs that are ours:
 *              the simulated devices': direct.h
 *
 * What comes out is for tow_driver_load, here or on other hosts, under any
 * device assignment of the same size. All calls are for the owner's loop. */
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

/* What came out. */
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
    /* The kind of device that it is for, which must be the compiler's. NULL:
     * whatever the compiler's is. */
    const char *device_kind; /* lent until done */
    /* On TOW_OK the caller gets what came out. An error is the compiler's own,
     * in its words; or INTERNAL, with the signal and the last words, if it
     * crashed; DEADLINE_EXCEEDED; CANCELLED. */
    void (*done)(tow_compile_job_t *job, tow_status_t take_status,
                 tow_compiled_t *take_compiled);
    /* The compiler asks about the program (device/question.h), and stands still
     * until tow_compiler_answer; the job may end first, by cancelling it. Its time
     * stands still, too. In a turn of its own; the bytes are lent for the call.
     * NULL: it has nobody to ask. What comes out of a job that may ask depends on
     * the answers: it is not kept for others. */
    void (*asked)(tow_compile_job_t *job, tow_bytes_t question);
    /* Belongs to the compiler. */
    struct {
        tow_list_t list; /* of those that wait, run, or have ended */
        int state;
        bool is_cancelled;
        bool is_asking;
        tow_status_t status;      /* owned, once it has ended */
        tow_compiled_t *compiled; /* owned, once it has ended */
        void *place;              /* the implementation's, while it runs */
    } private_;
};

typedef enum tow_submit_result {
    TOW_SUBMIT_OK,
    TOW_SUBMIT_FULL,    /* the queue's bound is reached: try again later */
    TOW_SUBMIT_CLOSING, /* `done` will not run */
} tow_submit_result_t;

/* `done` runs once, in a turn of its own, after TOW_SUBMIT_OK. Jobs begin in the
 * order of submission. */
tow_submit_result_t tow_compiler_submit(tow_compiler_t *compiler,
                                        tow_compile_job_t *job) TOW_MUST_USE;

/* A job that was submitted and is not done ends with CANCELLED, soon, also if it
 * runs; but a direct compiler first finishes what it is at. */
void tow_compiler_cancel(tow_compiler_t *compiler, tow_compile_job_t *job);

/* The answer, which is copied; or why there is none, with which the job ends. Of a
 * job that does not ask, or not any more, it is dropped. */
void tow_compiler_answer(tow_compiler_t *compiler, tow_compile_job_t *job,
                         tow_bytes_t answer, tow_status_t take_status);

/* Refuses new jobs and cancels the old ones; when the last is done it calls
 * `closed`, in a turn of its own, and the compiler is gone. */
void tow_compiler_close(tow_compiler_t *compiler, tow_closed_t closed);

#endif /* TOW_DEVICE_COMPILER_COMPILER_H_ */
