/* Host functions: C functions that run on the CPUs of the workers' hosts.
 *
 * A host function is an ordinary C function in a shared object. It is called
 * once for each shard of its node, on the worker that has the shard, and takes
 * and returns whole shards. Unlike a computation it may return an array whose
 * size depends on the data. It needs this header only and links with nothing of
 * Towpath. Build it with `cc -shared -fPIC` and pass the file to
 * tow_host_function_load (towpath.h), which sends its bytes to the workers.
 *
 * It runs in a child process: a crash, an exit or a call beyond its time limit
 * ends only that process. Later calls reuse the process, so static memory may
 * or may not survive from call to call; do not depend on it. Calls do not
 * overlap within a process. */
#ifndef TOWPATH_HOST_H_
#define TOWPATH_HOST_H_

#include <stddef.h>
#include <stdint.h>
#include <towpath/types.h>

#ifdef __cplusplus
extern "C" {
#endif

#define TOW_HOST_VERSION 1u

/* An array of one shard: dense, row major. */
typedef struct tow_host_input {
    tow_type_t type;
    uint32_t rank;
    const int64_t *dims;
    const void *bytes;
    size_t size; /* of bytes */
} tow_host_input_t;

typedef struct tow_host_output {
    tow_type_t type;
    uint32_t rank;
    /* As declared. Where a dimension is a bound, the function writes the actual
     * size, at most the bound. */
    int64_t *dims;
    void *bytes;
    size_t capacity; /* of bytes: by the bounds */
} tow_host_output_t;

typedef struct tow_host_call {
    size_t struct_size; /* new fields go last */
    uint32_t version;   /* TOW_HOST_VERSION of the worker */
    size_t input_count;
    const tow_host_input_t *inputs;
    size_t output_count;
    tow_host_output_t *outputs;
    uint32_t shard; /* index among all shards of the node */
    uint32_t shard_count;
    /* Buffer for an error message, NUL-terminated. */
    char *error;
    size_t error_size;
} tow_host_call_t;

/* Returns 0 on success. Any other number fails the run, with `error` and the
 * number. */
typedef int (*tow_host_entry_t)(tow_host_call_t *call);

#ifdef __cplusplus
}
#endif

#endif /* TOWPATH_HOST_H_ */
