/* Host functions: C that runs beside the devices, on the hosts of workers.
 *
 * A host function is an ordinary C function in a shared object. It takes and
 * gives whole shards, once for each shard of its node, on the CPU of the worker
 * that has the shard; it may do what computations cannot: give as many rows as
 * it likes. Nothing of Towpath is linked into it: this header is all. Build it
 * with `cc -shared -fPIC`, give the file to tow_host_function_load
 * (towpath.h): its bytes travel to the workers, which need no files of yours.
 *
 * It runs in a process of its own, which a crash, an exit or a call past its
 * time limit ends without harm to others. That process is kept for the next
 * call, so what the function keeps in static memory may be there then, or not;
 * nothing may depend on it. Calls do not overlap within a process. */
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
    /* As they were declared; where that was a bound the function writes what it
     * gives, at most the bound. */
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
    uint32_t shard; /* among all of the node's */
    uint32_t shard_count;
    /* Room for what went wrong; ends with a NUL. */
    char *error;
    size_t error_size;
} tow_host_call_t;

/* 0: all is well. Anything else fails the run, with `error` and this number. */
typedef int (*tow_host_entry_t)(tow_host_call_t *call);

#ifdef __cplusplus
}
#endif

#endif /* TOWPATH_HOST_H_ */
