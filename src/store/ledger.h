/* The ledger: the controller's books of logical buffers and device memory.
 *
 * A logical buffer (object) is all shards of one array: one id, one owner, one
 * count of holders, whatever the number of its shards. The bytes lie on the
 * workers' shelves (store/shelf.h); here is who may use them, what they weigh
 * and when they go.
 *
 * An object is held by its owner's handle and by every run that was admitted
 * with it. When nobody holds it, it is dropped: `dropped` tells the owner of the
 * ledger, who tells the workers, in the same ordered stream as their grants, so
 * nothing that was granted before can miss it. Memory is counted per device:
 * objects, and reservations of runs that are under way. Pure bookkeeping, one
 * thread; every byte that was taken is given back exactly once, and
 * tow_ledger_check says so. */
#ifndef TOW_STORE_LEDGER_H_
#define TOW_STORE_LEDGER_H_

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/id.h"
#include "base/list.h"
#include "base/macros.h"
#include "base/status.h"
#include "device/device.h"

TOW_ID_TYPE(tow_object_id) /* tow_key: client above, the client's own below */

/* Ids of one client's things, made unique in the cluster. */
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

typedef struct tow_ledger tow_ledger_t;

/* -- Devices and placements -------------------------------------------------- */

/* One device's memory. */
typedef struct tow_account {
    uint64_t limit_bytes; /* 0: none */
    uint64_t object_bytes;
    uint64_t reserved_bytes; /* of runs that are under way */
    uint64_t peak_bytes;     /* of the sum */
    uint32_t step_count;     /* under way; belongs to the scheduler */
    bool closed;             /* its worker is gone */
} tow_account_t;

/* Where the shards of something lie: accounts in order of the shards. Counted;
 * made once per mapping of a slice and shared by all its objects. */
typedef struct tow_placement {
    uint32_t reference_count;
    bool lost; /* one of its devices is gone: nothing new can be placed */
    uint32_t device_count;
    tow_account_t **accounts; /* owned array; accounts lent by the ledger */
    void *context;            /* lent: the owner's own, e.g. its workers */
} tow_placement_t;

/* -- Objects ----------------------------------------------------------------- */

typedef enum tow_object_state {
    TOW_OBJECT_ARRIVING, /* its bytes are on their way from the client */
    TOW_OBJECT_PENDING,  /* its run has not finished; a run may use it */
    TOW_OBJECT_READY,
    TOW_OBJECT_FAILED,
} tow_object_state_t;

typedef struct tow_object {
    tow_object_id_t id;
    tow_object_state_t state;
    bool has_handle;     /* the client holds it */
    bool consumed;       /* donated: its handle is good for nothing any more */
    bool counted;        /* its bytes are in the accounts */
    uint32_t hold_count; /* runs that were admitted and have not finished */
    tow_shape_t shape;   /* of one shard */
    uint64_t bytes;      /* of one shard, on its device */
    tow_placement_t *placement; /* counted */
    tow_status_t error;         /* owned; FAILED */
    tow_list_t of_owner;        /* belongs to the ledger */
    void *context;              /* lent: the owner of the ledger's own */
} tow_object_t;

typedef struct tow_ledger_options {
    uint64_t object_count_max; /* 0: the default; per client */
    /* The object is going; it is freed when this returns. Tell the workers. */
    void (*dropped)(void *context, tow_object_t *object);
    void *context;
} tow_ledger_options_t;

tow_status_t tow_ledger_create(const tow_ledger_options_t *options,
                               tow_ledger_t **out_ledger) TOW_MUST_USE;
/* Objects that are left go without a word. */
void tow_ledger_destroy(tow_ledger_t *ledger);

/* Lent, for the life of the ledger; one that is closed stays. */
tow_status_t tow_ledger_add_account(tow_ledger_t *ledger, uint64_t limit_bytes,
                                    tow_account_t **out_account) TOW_MUST_USE;
tow_status_t tow_ledger_place(tow_ledger_t *ledger,
                              tow_account_t *const *accounts, size_t count,
                              void *context, tow_placement_t **out_placement)
    TOW_MUST_USE;
void tow_placement_retain(tow_placement_t *placement);
void tow_placement_release(tow_placement_t *placement);

typedef struct tow_object_options {
    tow_object_id_t id;
    tow_object_state_t state; /* ARRIVING or PENDING */
    tow_shape_t shape;
    uint64_t bytes;
    tow_placement_t *placement; /* retained */
    /* Count its bytes now. Results of runs are not: their run's reservation
     * has them until it finishes. */
    bool count_bytes;
} tow_object_options_t;

/* With a handle. ALREADY_EXISTS, or RESOURCE_EXHAUSTED past the client's number
 * of objects, name the id. Never fails for want of device memory: ask
 * tow_placement_fits first. */
tow_status_t tow_ledger_add(tow_ledger_t *ledger,
                            const tow_object_options_t *options,
                            tow_object_t **out_object) TOW_MUST_USE;
/* NULL: there is none, or it is not visible to `client` (always checked by the
 * id's own client part). */
tow_object_t *tow_ledger_find(tow_ledger_t *ledger, tow_object_id_t id);

/* A run was admitted with it, and has finished. Drop follows when it was the
 * last hold and the handle is gone. */
void tow_object_hold(tow_object_t *object);
void tow_object_unhold(tow_ledger_t *ledger, tow_object_t *object);
/* The client's handle goes. NOT_FOUND for one that is not there: a client's
 * mistake. */
tow_status_t tow_ledger_release(tow_ledger_t *ledger, tow_object_id_t id)
    TOW_MUST_USE;
void tow_object_set_ready(tow_object_t *object);
void tow_object_fail(tow_object_t *object, tow_status_t cause /* lent */);
/* The run that is being admitted consumes it. Its bytes go to the run. */
void tow_object_consume(tow_ledger_t *ledger, tow_object_t *object);

/* All handles of a client go: bulk release when an owner dies. Objects that
 * runs still hold go when those finish. */
void tow_ledger_release_client(tow_ledger_t *ledger, uint32_t client);
/* A device is gone: every object and placement with a shard there fails. */
void tow_ledger_lose_account(tow_ledger_t *ledger, tow_account_t *account,
                             tow_status_t cause /* lent */);

/* -- Memory ------------------------------------------------------------------ */

/* Would `bytes` more on each device of the placement fit? */
bool tow_placement_fits(const tow_placement_t *placement, uint64_t bytes);
/* RESOURCE_EXHAUSTED in words: what was asked for, what there is, on which
 * device (index in the placement) it is short. */
tow_status_t tow_placement_refusal(const tow_placement_t *placement,
                                   uint64_t bytes) TOW_MUST_USE;
/* Takes without asking: the caller has asked. Given back exactly once. */
void tow_placement_reserve(tow_placement_t *placement, uint64_t bytes);
void tow_placement_unreserve(tow_placement_t *placement, uint64_t bytes);
/* A result's bytes pass from its run's reservation to the object. */
void tow_object_count_bytes(tow_object_t *object);

/* -- Telling ----------------------------------------------------------------- */

typedef struct tow_ledger_totals {
    uint64_t object_count;
    uint64_t object_bytes; /* over all devices */
    uint64_t reserved_bytes;
} tow_ledger_totals_t;
tow_ledger_totals_t tow_ledger_totals(const tow_ledger_t *ledger);
/* Of one client; for `tow status`. */
tow_ledger_totals_t tow_ledger_client_totals(const tow_ledger_t *ledger,
                                             uint32_t client);
/* Do the books balance? O(objects x shards): for tests and simulations. */
tow_status_t tow_ledger_check(const tow_ledger_t *ledger) TOW_MUST_USE;

#endif /* TOW_STORE_LEDGER_H_ */
