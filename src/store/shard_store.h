/* The shard store: a worker's part of the object store.
 *
 * The object table (store/object_table.h) belongs to the controller and records
 * who may use an object. The shard store only maps a key to the buffers on this
 * worker's devices, in the order of the object's devices here, or to the error
 * in their place. Every call is O(1) in the number of objects, O(shards of one
 * object); the heap is used only while the store grows beyond its largest size
 * so far.
 *
 * Pure bookkeeping over counted buffers; one thread. */
#ifndef TOW_STORE_SHARD_STORE_H_
#define TOW_STORE_SHARD_STORE_H_

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/macros.h"
#include "base/status.h"
#include "device/device.h"

/* Default limit of objects per worker: about 100 bytes each. The controller
 * limits each client; this limit applies if it does not. */
#define TOW_SHARD_STORE_OBJECT_COUNT_MAX (1u << 20)

typedef struct tow_shard_store tow_shard_store_t;

/* Read-only outside the store. Lent until the object is removed. */
typedef struct tow_shard_store_object {
    uint64_t key;
    uint64_t bytes;     /* of its shards, on their devices */
    tow_status_t error; /* owned; set: it has no shards */
    uint32_t shard_count;
    tow_buffer_t *shards[]; /* counted */
} tow_shard_store_object_t;

typedef struct tow_shard_store_options {
    size_t
        shard_count_max; /* of one object: the number of the worker's devices */
    size_t object_count_max; /* 0: TOW_SHARD_STORE_OBJECT_COUNT_MAX */
} tow_shard_store_options_t;

/* Shards with a stride: shard i is first[i * stride]. */
typedef struct tow_shard_list {
    tow_buffer_t *const *first;
    size_t stride;
    size_t count; /* 1 or more */
} tow_shard_list_t;

tow_status_t tow_shard_store_create(const tow_shard_store_options_t *options,
                                    tow_shard_store_t **out_shelf) TOW_MUST_USE;
/* Releases the remaining shards. NULL is harmless. */
void tow_shard_store_destroy(tow_shard_store_t *shard_store);
/* The same after a simulated crash, where the driver frees all buffers itself:
 * releases none. */
void tow_shard_store_discard(tow_shard_store_t *shard_store);

/* Takes one reference of each shard on success, and none on failure:
 * ALREADY_EXISTS, RESOURCE_EXHAUSTED. */
tow_status_t tow_shard_store_put(tow_shard_store_t *shard_store, uint64_t key,
                                 const tow_shard_list_t *take_shards)
    TOW_MUST_USE;
/* Adds an object that failed before it had shards. `cause` is retained. */
tow_status_t tow_shard_store_put_failed(tow_shard_store_t *shard_store,
                                        uint64_t key, tow_status_t cause)
    TOW_MUST_USE;
/* Does another object use one of its shards too? Results of a program that are
 * the same value, arguments that are results, and assembled arrays share
 * buffers: a run that consumes one of them must leave the others their
 * bytes. */
bool tow_shard_store_is_shared(const tow_shard_store_object_t *object);
/* A reader needs the shard's bytes and has not enqueued the read yet; until
 * tow_shard_unshare the objects of this shard count as shared. */
void tow_shard_share(tow_buffer_t *shard);
void tow_shard_unshare(tow_buffer_t *shard);
/* NULL: not found. */
tow_shard_store_object_t *tow_shard_store_find(
    const tow_shard_store_t *shard_store, uint64_t key);
/* Releases its shards and stores `cause` (retained) instead: its run has
 * failed, or another run has consumed it. The first cause stays. */
void tow_shard_store_fail(tow_shard_store_t *shard_store,
                          tow_shard_store_object_t *object, tow_status_t cause);
/* False: not found. */
bool tow_shard_store_remove(tow_shard_store_t *shard_store, uint64_t key);
void tow_shard_store_clear(tow_shard_store_t *shard_store);

typedef struct tow_shard_store_totals {
    uint64_t object_count; /* including failed ones */
    uint64_t failed_count;
    uint64_t shard_count;
    uint64_t bytes;
} tow_shard_store_totals_t;
tow_shard_store_totals_t tow_shard_store_totals(
    const tow_shard_store_t *shard_store);
/* Verifies the invariants. O(shards): for tests and simulation. */
tow_status_t tow_shard_store_check(const tow_shard_store_t *shard_store)
    TOW_MUST_USE;

#endif /* TOW_STORE_SHARD_STORE_H_ */
