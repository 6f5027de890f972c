/* Host functions in child processes (the program tow_host_child): a pool of
 * device/child/pool.h.
 *
 * A child loads shared objects from memory and calls one function at a time. It
 * runs as the worker's user: that protects the worker from accidents, not from
 * attacks. */
#ifndef TOW_DEVICE_HOST_CHILD_H_
#define TOW_DEVICE_HOST_CHILD_H_

#include "device/host/host.h"

typedef struct tow_host_child_options {
    const char *program;       /* copied: see tow_host_child_find */
    const char *name;          /* copied: of the worker, for messages */
    size_t child_count_max;    /* 0: TOW_HOST_CHILD_COUNT_MAX */
    uint64_t memory_bytes_max; /* of a child's private memory; 0: no limit */
} tow_host_child_options_t;

/* Starts no process yet. */
tow_status_t tow_host_child_create(tow_env_t *env,
                                   const tow_host_child_options_t *options,
                                   tow_host_runner_t **out_host) TOW_MUST_USE;
tow_status_t tow_host_child_find(char *path, size_t capacity) TOW_MUST_USE;

#endif /* TOW_DEVICE_HOST_CHILD_H_ */
