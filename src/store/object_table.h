/* The object table: the controller's record of logical buffers and device
 * memory.
 *
 * A logical buffer (object) is all shards of one array: one id, one owner, one
 * hold count, whatever the number of its shards. The bytes are in the workers'
 * shard stores (store/shard_store.h); the table records who may use them, how
 * much memory they take, and when they are freed.
 *
 * An object is held by its owner's handle and by every run that was admitted
 * with it. When the last hold ends, the table discards it and calls
 * `discarded`; the owner of the table then sends a release to the workers, in
 * the same ordered stream as their grants, so that every run granted before
 * still finds the object. Memory is counted per device: objects, and
 * reservations of runs under way. Pure bookkeeping, one thread; every byte
 * taken is given back exactly once, which tow_object_table_check verifies. */
#ifndef TOW_STORE_OBJECT_TABLE_H_
#define TOW_STORE_OBJECT_TABLE_H_

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/assert.h"
#include "base/id.h"
#include "base/list.h"
#include "base/macros.h"
#include "base/status.h"
#include "device/device.h"

/* A tow_key: the client number in the high bits, the client's own id below. */
TOW_ID_TYPE(tow_object_id)

/* Ids that clients choose, made unique in the cluster. */
#define TOW_CLIENT_NUMBER_MAX ((1u << 24) - 1)
#define TOW_CLIENT_ID_MAX     ((UINT64_C(1) << 40) - 1)
static inline uint64_t tow_key(uint32_t client, uint64_t id)
{
    return (uint64_t)client << 40 | id;
}
static inline uint32_t tow_key_client(uint64_t key)
{
    return (uint32_t)(key >> 40);
}
static inline uint64_t tow_key_id(uint64_t key)
{
    return key & TOW_CLIENT_ID_MAX;
}

typedef struct tow_object_table tow_object_table_t;

/* -- Devices and placements ------------------------------------------------ */

/* Island numbers are below this: a set of islands is a 64-bit word. */
#define TOW_ISLANDS_MAX 64u

/* One device's memory. One cache line: scheduling iterates over accounts. */
typedef struct tow_account {
    uint64_t limit_bytes;       /* 0: none */
    uint64_t object_bytes;      /* 0 when closed */
    uint64_t reserved_bytes;    /* by runs under way; 0 when closed */
    uint64_t peak_bytes;        /* of the sum of both */
    uint64_t recent_peak_bytes; /* since tow_account_take_recent_peak */
    uint64_t queued_ns;  /* of gangs under way; belongs to the scheduler */
    uint64_t claim_;     /* belongs to the scheduler: one claim per device */
    uint32_t gang_count; /* under way; belongs to the scheduler */
    bool closed;         /* its worker has disconnected */
    uint8_t island;      /* set by the owner before the account is placed */
    /* What a run needs of a device is above: 64 bytes. */
    uint32_t host; /* number of its worker's tow_host_memory_t; 0: none */
    uint64_t spilled_bytes; /* of its shards in host memory; 0 when closed */
    /* For loops over accounts; zero outside them. */
    uint64_t scratch_bytes_;
    uint64_t scratch_sum_;
} tow_account_t;

/* Host memory for spilled objects: one record per worker. */
typedef struct tow_host_memory {
    uint64_t limit_bytes;
    uint64_t spilled_bytes; /* 0 when closed */
    uint64_t peak_bytes;
    uint32_t number; /* from 1 */
    bool closed;
    uint64_t scratch_bytes_; /* zero outside loops over hosts */
} tow_host_memory_t;

/* Where shards are: accounts in the order of the shards. Counted; made once per
 * mapping of a slice and shared by all its objects. */
typedef struct tow_placement {
    uint32_t reference_count;
    bool disconnected; /* one of its workers has: its objects fail */
    uint32_t device_count;
    uint64_t islands; /* of its devices: one bit each */
    tow_account_t *
        *accounts;      /* owned array; accounts lent by the object table */
    void *context;      /* lent: the owner's own, e.g. its workers */
    tow_status_t error; /* owned; lost: why */
    uint64_t reserved_bytes; /* on each device, by tow_placement_reserve */
    uint64_t claim_;         /* belongs to the scheduler */
    tow_list_t of_ledger_;
} tow_placement_t;

/* -- Objects --------------------------------------------------------------- */

typedef enum tow_object_state {
    TOW_OBJECT_ARRIVING, /* its bytes are arriving from the client */
    TOW_OBJECT_PENDING,  /* its run has not finished; a run may use it */
    TOW_OBJECT_READY,
    TOW_OBJECT_FAILED,
} tow_object_state_t;

/* Where an object's bytes are now, as opposed to where its shards belong. The
 * bytes of an object that moves are counted on both sides. */
typedef enum tow_residence {
    TOW_ON_DEVICE,
    TOW_SPILLING,
    TOW_SPILLED, /* in host memory only: not `counted` */
    TOW_RETURNING,
} tow_residence_t;

typedef struct tow_object {
    tow_object_id_t id;
    tow_object_state_t state;
    /* Unfinished runs that were admitted with it or produce it. */
    uint32_t hold_count;
    bool has_handle; /* the client has not released it */
    bool consumed;   /* donated: its handle cannot be used any more */
    bool counted;    /* its bytes are in the accounts */
    bool discarded;  /* consumed, and only the record for its handle is left */
    uint8_t residence;          /* tow_residence_t */
    bool pinned;                /* by the owner: it cannot be spilled now */
    bool scratch;               /* for loops over objects; false outside them */
    uint64_t bytes;             /* of one shard, on its device */
    tow_placement_t *placement; /* counted; NULL: it has no shards (FAILED) */
    tow_status_t error;         /* owned; FAILED */
    void *context;              /* lent: the owner of the object table's own */
    /* Set by the owner: the last run that named it, and as which argument. */
    uint64_t mark;
    uint32_t mark_index;
    /* Set by the owner: runs with it as an argument that are granted in part. */
    uint32_t partly_count;
    tow_list_t of_owner; /* belongs to the table */
    void *owner_;        /* belongs to the table */
    tow_shape_t shape;   /* of one shard */
} tow_object_t;

typedef struct tow_object_table_options {
    uint64_t object_count_max; /* 0: the default; per client */
    /* The object is discarded, once: release it on the workers. It may not be
     * used after this; only the record of a consumed object stays, until its
     * handle is released. The callback may end holds and disconnect accounts,
     * but neither add nor release. May be NULL. */
    void (*discarded)(void *context, tow_object_t *object);
    void *context;
} tow_object_table_options_t;

tow_status_t tow_object_table_create(const tow_object_table_options_t *options,
                                     tow_object_table_t **out_ledger)
    TOW_MUST_USE;
/* Frees the remaining objects without calling `discarded`. */
void tow_object_table_destroy(tow_object_table_t *object_table);

/* Lent for the life of the table; a closed account stays: 88 bytes. */
tow_status_t tow_object_table_add_account(tow_object_table_t *object_table,
                                          uint64_t limit_bytes,
                                          tow_account_t **out_account)
    TOW_MUST_USE;
/* INVALID_ARGUMENT for no device or a device given twice, UNAVAILABLE for a
 * closed one; the error names its index. Devices may be of several islands. */
tow_status_t tow_object_table_place(tow_object_table_t *object_table,
                                    tow_account_t *const *accounts,
                                    size_t count, void *context,
                                    tow_placement_t **out_placement)
    TOW_MUST_USE;
/* Lent for the life of the table; accounts refer to it by its number. */
tow_status_t tow_object_table_add_host_memory(tow_object_table_t *object_table,
                                              uint64_t limit_bytes,
                                              tow_host_memory_t **out_host)
    TOW_MUST_USE;
/* Its worker has disconnected, and the objects spilled there are lost. */
void tow_host_memory_on_disconnect(tow_host_memory_t *host);
void tow_placement_retain(tow_placement_t *placement);
void tow_placement_release(tow_placement_t *placement);

typedef struct tow_object_options {
    tow_object_id_t id;
    tow_object_state_t state; /* ARRIVING or PENDING */
    tow_shape_t shape;
    uint64_t bytes;
    tow_placement_t
        *placement; /* retained; may be NULL if no bytes are counted */
    /* Count its bytes now. Results of runs are not counted: the reservation of
     * their run covers them until it finishes. */
    bool count_bytes;
} tow_object_options_t;

/* With a handle. ALREADY_EXISTS, or RESOURCE_EXHAUSTED beyond the client's
 * object limit; both name the id. Does not check device memory: call
 * tow_placement_fits first. On a disconnected placement the object is FAILED at
 * once, with the placement's error. */
tow_status_t tow_object_table_add(tow_object_table_t *object_table,
                                  const tow_object_options_t *options,
                                  tow_object_t **out_object) TOW_MUST_USE;
/* NULL: not found. An id carries its client's number, so a client that looks up
 * ids made with its own number finds only its own objects. An object without a
 * handle is found while runs hold it: check has_handle and consumed before
 * using it. */
tow_object_t *tow_object_table_find(tow_object_table_t *object_table,
                                    tow_object_id_t id);
/* Iterates over all objects, including discarded ones that still have a handle;
 * NULL at the end. `*cursor` is 0 before the first. Nothing may be added or
 * discarded meanwhile. */
tow_object_t *tow_object_table_next(const tow_object_table_t *object_table,
                                    size_t *cursor);

/* A run that was admitted with it or produces it begins, or has finished. The
 * object is discarded with its last hold if it has no handle or is consumed. A
 * run holds its results too: a client may release a handle before the workers
 * have received the run. */
void tow_object_hold(tow_object_t *object);
void tow_object_unhold(tow_object_table_t *object_table, tow_object_t *object);
/* Releases the client's handle, also of a consumed or failed object. NOT_FOUND
 * if there is no such handle: a client's mistake. */
tow_status_t tow_object_table_release(tow_object_table_t *object_table,
                                      tow_object_id_t id) TOW_MUST_USE;
/* A failed object stays failed, with its first error. */
void tow_object_set_ready(tow_object_t *object);
void tow_object_fail(tow_object_t *object, tow_status_t cause /* lent */);
/* The run that is being admitted, and holds it, consumes it. Its bytes stay
 * counted until the last hold ends: the run may be queued for long, and earlier
 * runs still read it. So runs reserve what they need beside all their
 * arguments, donated ones included. */
void tow_object_consume(tow_object_table_t *object_table, tow_object_t *object);

/* Releases all handles of a client, when the client has disconnected. Objects
 * that runs still hold are discarded when those finish. */
void tow_object_table_release_client(tow_object_table_t *object_table,
                                     uint32_t client);
/* A device's worker has disconnected: every object and placement with a shard
 * there fails. The bytes on that device are uncounted at once, those of the
 * other shards when the objects are discarded. O(objects + devices of all
 * placements). */
void tow_object_table_on_disconnect(tow_object_table_t *object_table,
                                    tow_account_t *account,
                                    tow_status_t cause /* lent */);

/* -- Memory ---------------------------------------------------------------- */

/* The peak of object_bytes + reserved_bytes since the last call. */
uint64_t tow_account_take_recent_peak(tow_account_t *account);

/* Do `bytes` more fit? 0 bytes always fit, except on a closed account. */
static inline bool tow_account_fits(const tow_account_t *account,
                                    uint64_t bytes)
{
    uint64_t limit =
        account->limit_bytes != 0 ? account->limit_bytes : UINT64_MAX;
    uint64_t used = account->object_bytes + account->reserved_bytes;
    if (TOW_UNLIKELY(account->closed)) return false;
    return bytes == 0 || (used <= limit && bytes <= limit - used);
}
/* Do `bytes` more fit on each device of the placement? */
bool tow_placement_fits(const tow_placement_t *placement, uint64_t bytes);
/* RESOURCE_EXHAUSTED with the bytes requested, the bytes available and the
 * device (index in the placement) that is short; or UNAVAILABLE with the cause
 * if the placement has disconnected. Only for requests that do not fit. */
tow_status_t tow_placement_refusal(const tow_placement_t *placement,
                                   uint64_t bytes) TOW_MUST_USE;
/* The same for device `index` alone. */
tow_status_t tow_placement_refusal_at(const tow_placement_t *placement,
                                      size_t index, uint64_t bytes)
    TOW_MUST_USE;
/* Reserves without checking: the caller has checked. Given back exactly once,
 * also when the placement has disconnected meanwhile. */
void tow_placement_reserve(tow_placement_t *placement, uint64_t bytes);
void tow_placement_unreserve(tow_placement_t *placement, uint64_t bytes);
/* The same on one of its devices, for a caller that has more to do on each; it
 * changes `reserved_bytes` of the placement itself. */
static inline void tow_account_reserve(tow_account_t *account, uint64_t bytes)
{
    if (TOW_UNLIKELY(account->closed)) return;
    const uint64_t reserved = account->reserved_bytes + bytes;
    const uint64_t used = account->object_bytes + reserved;
    TOW_ASSERT(reserved >= bytes);
    account->reserved_bytes = reserved;
    if (used > account->peak_bytes) account->peak_bytes = used;
    if (used > account->recent_peak_bytes) account->recent_peak_bytes = used;
}
static inline void tow_account_unreserve(tow_account_t *account, uint64_t bytes)
{
    if (TOW_UNLIKELY(account->closed)) return;
    TOW_ASSERT(account->reserved_bytes >= bytes);
    account->reserved_bytes -= bytes;
}
/* Moves a result's bytes from its run's reservation to the object: when the run
 * has finished, after its reservation ended (tow_sched_finish) and before the
 * next grant. Idempotent. */
void tow_object_count_bytes(tow_object_t *object);

/* -- Spilling -------------------------------------------------------------- */

/* NULL if the host memory of every shard has room; otherwise the first that has
 * not. Lent. */
const tow_host_memory_t *tow_object_full_host(
    const tow_object_table_t *object_table, const tow_object_t *object);
/* Takes host memory. The object is READY, counted and on its devices. */
void tow_object_begin_spill(tow_object_table_t *object_table,
                            tow_object_t *object);
/* The object is in host memory: the memory of its devices is free again. */
void tow_object_end_spill(tow_object_t *object);
/* Takes the memory of its devices without checking, and keeps the host memory
 * until the object is back. Reverses a spill that is under way. */
void tow_object_begin_return(tow_object_t *object);
void tow_object_end_return(tow_object_table_t *object_table,
                           tow_object_t *object);

/* -- Totals and checks ----------------------------------------------------- */

typedef struct tow_object_table_totals {
    uint64_t object_count;
    uint64_t
        discarded_count;     /* of those: consumed, with only the handle left */
    uint64_t object_bytes;   /* over all devices */
    uint64_t reserved_bytes; /* a client has no reservations: 0 */
    uint64_t spilled_bytes;  /* over all hosts; 0 for a client */
} tow_object_table_totals_t;
tow_object_table_totals_t tow_object_table_totals(
    const tow_object_table_t *object_table);
/* Totals of one client, O(its objects x shards); for `tow status`. */
tow_object_table_totals_t tow_object_table_client_totals(
    const tow_object_table_t *object_table, uint32_t client);
/* Verifies all invariants. O(objects x shards): for tests and simulation. */
tow_status_t tow_object_table_check(const tow_object_table_t *object_table)
    TOW_MUST_USE;

#endif /* TOW_STORE_OBJECT_TABLE_H_ */
