/* The shelf: a worker's part of the object store.
 *
 * The ledger (store/ledger.h) is the controller's and knows who may use an
 * object. A shelf knows only which buffers of this worker's devices are its
 * shards here: key -> buffers in the order of the object's devices that are
 * ours, or the error that came instead of them. Every call is O(1), but for the
 * shards of one object; nothing comes from the heap once the shelf has been as
 * full before.
 *
 * Pure bookkeeping over counted buffers; one thread. */
#ifndef TOW_STORE_SHELF_H_
#define TOW_STORE_SHELF_H_

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/macros.h"
#include "base/status.h"
#include "device/device.h"

/* Objects of one worker, unless told otherwise: about 100 bytes each. The
 * controller bounds each client; this holds when it does not. */
#define TOW_SHELF_OBJECT_COUNT_MAX (1u << 20)

typedef struct tow_shelf tow_shelf_t;

/* Read it freely; only the shelf changes it. Lent until the object leaves. */
typedef struct tow_shelf_object {
    uint64_t key;
    uint64_t bytes;     /* of its shards, on their devices */
    tow_status_t error; /* owned; set: it has no shards */
    uint32_t shard_count;
    tow_buffer_t *shards[]; /* counted */
} tow_shelf_object_t;

typedef struct tow_shelf_options {
    size_t shard_count_max;  /* of one object: the worker's devices */
    size_t object_count_max; /* 0: TOW_SHELF_OBJECT_COUNT_MAX */
} tow_shelf_options_t;

/* Shards that do not lie side by side: shard i is first[i * stride]. */
typedef struct tow_shard_list {
    tow_buffer_t *const *first;
    size_t stride;
    size_t count; /* 1 or more */
} tow_shard_list_t;

tow_status_t tow_shelf_create(const tow_shelf_options_t *options,
                              tow_shelf_t **out_shelf) TOW_MUST_USE;
/* Releases what is left on it. NULL is harmless. */
void tow_shelf_destroy(tow_shelf_t *shelf);
/* The same for a process that has died, whose driver frees all buffers by
 * itself: none is released. */
void tow_shelf_forget(tow_shelf_t *shelf);

/* Takes one reference of each shard on success, and none on failure:
 * ALREADY_EXISTS, RESOURCE_EXHAUSTED. */
tow_status_t tow_shelf_put(tow_shelf_t *shelf, uint64_t key,
                           const tow_shard_list_t *take_shards) TOW_MUST_USE;
/* A place for an object that never came to be. `cause` is retained. */
tow_status_t tow_shelf_put_failed(tow_shelf_t *shelf, uint64_t key,
                                  tow_status_t cause) TOW_MUST_USE;
/* Is one of its shards another object's too? Results of a program that are one
 * value, arguments that are results, regroups: who consumes one of them must
 * leave the others their bytes. */
bool tow_shelf_is_shared(const tow_shelf_object_t *object);
/* Somebody else needs the shard's bytes and has not asked the device for them
 * yet; until tow_shard_unshare its objects are shared. */
void tow_shard_share(tow_buffer_t *shard);
void tow_shard_unshare(tow_buffer_t *shard);
/* NULL: there is none. */
tow_shelf_object_t *tow_shelf_find(const tow_shelf_t *shelf, uint64_t key);
/* Its shards go, and `cause` (retained) takes their place: its run has failed,
 * or another has consumed it. The first cause stays. */
void tow_shelf_fail(tow_shelf_t *shelf, tow_shelf_object_t *object,
                    tow_status_t cause);
/* False: there is none. */
bool tow_shelf_remove(tow_shelf_t *shelf, uint64_t key);
void tow_shelf_clear(tow_shelf_t *shelf);

typedef struct tow_shelf_totals {
    uint64_t object_count; /* failed ones included */
    uint64_t failed_count;
    uint64_t shard_count;
    uint64_t bytes;
} tow_shelf_totals_t;
tow_shelf_totals_t tow_shelf_totals(const tow_shelf_t *shelf);

#endif /* TOW_STORE_SHELF_H_ */
