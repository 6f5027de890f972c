/* A service that calls host functions (include/towpath/host.h), asynchronously,
 * on the owner's env. Prefix: tow_host_. Two implementations:
 *
 *     child   in child processes, where crashes, hangs and exits do no harm:
 *             child.h
 *     sim     simulated: takes time, has random output sizes, fails and hangs:
 *             sim.h
 *
 * All calls are for the owner's loop. `done` never runs inside a call. */
#ifndef TOW_DEVICE_HOST_HOST_H_
#define TOW_DEVICE_HOST_HOST_H_

#include "base/arena.h"
#include "base/list.h"
#include "device/device.h"

typedef struct tow_host_runner tow_host_runner_t;
typedef struct tow_host_job tow_host_job_t;

/* A function; counted. */
typedef struct tow_host_code {
    uint32_t reference_count;
    uint64_t number; /* unique in the process */
    void *bytes;     /* owned: the shared object */
    size_t size;
    tow_signature_t signature; /* in the arena; its name is the symbol */
    uint32_t *devices;         /* in the arena: the worker's, by local shard */
    size_t device_count;
    uint32_t *shards; /* in the arena: their indices in the whole slice */
    tow_arena_t arena;
} tow_host_code_t;

typedef struct tow_host_code_options {
    void *take_bytes; /* taken, also on failure; tow_free */
    size_t size;
    tow_bytes_t signature;   /* packed */
    const uint32_t *devices; /* lent for the call */
    const uint32_t *shards;  /* the same; as many */
    size_t device_count;
    size_t device_count_max; /* the worker's */
} tow_host_code_options_t;

/* One reference for the caller. INVALID_ARGUMENT: not a signature of a host
 * function, not an ELF object, or devices that do not exist. */
tow_status_t tow_host_code_create(const tow_host_code_options_t *options,
                                  tow_host_code_t **out_code) TOW_MUST_USE;
void tow_host_code_retain(tow_host_code_t *code);
void tow_host_code_release(tow_host_code_t *code); /* NULL is fine */
/* Checks that the bytes are a shared object for this kind of machine. */
tow_status_t tow_host_code_check(tow_bytes_t bytes) TOW_MUST_USE;
/* Checks that a host function may have the signature. */
tow_status_t tow_host_signature_check(const tow_signature_t *signature)
    TOW_MUST_USE;

/* Arrays of one call, in and out. */
#define TOW_HOST_ARRAY_COUNT_MAX 64u

typedef struct tow_host_array {
    tow_shape_t shape; /* of an output: as declared, then as returned */
    void *bytes;       /* lent until done; inputs are only read */
    uint64_t size;     /* of `bytes`; of an output the largest possible */
} tow_host_array_t;

/* One call, for one shard. Owned by the caller until `done`. */
struct tow_host_job {
    tow_host_code_t *code; /* lent until done */
    /* Only checks that the function can be called: no arrays. */
    bool is_probe;
    tow_host_array_t *inputs; /* lent until done, by the signature */
    tow_host_array_t *outputs;
    uint32_t shard;
    int64_t time_limit_ns;
    /* Errors: ABORTED with the function's own text and number; INTERNAL with
     * the signal or exit status and the last output; DEADLINE_EXCEEDED;
     * CANCELLED; NOT_FOUND for a symbol that does not exist. */
    void (*done)(tow_host_job_t *job, tow_status_t take_status);
    struct {
        tow_list_t list;
        void *place;
        bool is_cancelled;
        tow_status_t status;
        tow_timer_t timer;
    } private_;
};

typedef struct tow_host_runner_ops {
    const char *name;
    tow_status_t (*submit)(tow_host_runner_t *host, tow_host_job_t *job);
    void (*cancel)(tow_host_runner_t *host, tow_host_job_t *job);
    void (*close)(tow_host_runner_t *host, tow_closed_t closed);
    void (*discard)(tow_host_runner_t *host);
} tow_host_runner_ops_t;

struct tow_host_runner { /* first member of each implementation's */
    const tow_host_runner_ops_t *ops;
    tow_env_t *env; /* lent, outlives it */
};

/* `done` runs once, in a turn of its own, unless this fails: RESOURCE_EXHAUSTED
 * when the queue is full. */
static inline tow_status_t tow_host_runner_submit(tow_host_runner_t *host,
                                                  tow_host_job_t *job)
{
    return host->ops->submit(host, job);
}

/* A job that was submitted and is not done ends with CANCELLED, soon. */
static inline void tow_host_runner_cancel(tow_host_runner_t *host,
                                          tow_host_job_t *job)
{
    host->ops->cancel(host, job);
}

/* Cancels all jobs, frees the runner after the last `done`, and calls
 * `closed`. */
static inline void tow_host_runner_close(tow_host_runner_t *host,
                                         tow_closed_t closed)
{
    host->ops->close(host, closed);
}

/* For a simulated process that has died: frees it without any callback. */
static inline void tow_host_runner_discard(tow_host_runner_t *host)
{
    if (host != NULL) host->ops->discard(host);
}

/* -- For implementations ---------------------------------------------------- */

/* Checks an output's returned dims against the declaration, and sets its
 * shape. */
tow_status_t tow_host_accept_dims(tow_host_job_t *job, size_t output,
                                  const int64_t *dims) TOW_MUST_USE;

#endif /* TOW_DEVICE_HOST_HOST_H_ */
