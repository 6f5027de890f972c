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

/* Islands have numbers below this: sets of them are words of 64 bits. */
#define TOW_ISLANDS_MAX 64u

/* One device's memory. A cache line: scheduling walks them. */
typedef struct tow_account {
    uint64_t limit_bytes;    /* 0: none */
    uint64_t object_bytes;   /* 0 when closed */
    uint64_t reserved_bytes; /* of runs that are under way; 0 when closed */
    uint64_t peak_bytes;     /* of the sum */
    uint32_t step_count;     /* under way; belongs to the scheduler */
    bool closed;             /* its worker is gone */
    uint8_t island;          /* the owner's to set, before it is placed */
    /* For whoever walks accounts; zero between walks. */
    uint32_t scratch_steps_;
    uint32_t host; /* whose memory is near: tow_host_t's number; 0: none */
    uint64_t spilled_bytes; /* of its shards that are there; 0 when closed */
    uint64_t scratch_bytes_;
    uint64_t claim_; /* belongs to the scheduler: one a device */
} tow_account_t;

/* Memory beside devices, for objects that are spilled: one for each worker. */
typedef struct tow_host {
    uint64_t limit_bytes;
    uint64_t spilled_bytes; /* 0 when closed */
    uint64_t peak_bytes;
    uint32_t number; /* from 1 */
    bool closed;
    uint64_t scratch_bytes_; /* zero between walks */
} tow_host_t;

/* Where the shards of something lie: accounts in order of the shards. Counted;
 * made once per mapping of a slice and shared by all its objects. */
typedef struct tow_placement {
    uint32_t reference_count;
    bool lost; /* one of its devices is gone: what is placed here fails */
    uint32_t device_count;
    uint64_t islands;         /* of its devices: a bit for each */
    tow_account_t **accounts; /* owned array; accounts lent by the ledger */
    void *context;            /* lent: the owner's own, e.g. its workers */
    tow_status_t error;       /* owned; lost: why */
    uint64_t reserved_bytes;  /* on each device, by tow_placement_reserve */
    uint64_t claim_;          /* belongs to the scheduler */
    tow_list_t of_ledger_;
} tow_placement_t;

/* -- Objects ----------------------------------------------------------------- */

typedef enum tow_object_state {
    TOW_OBJECT_ARRIVING, /* its bytes are on their way from the client */
    TOW_OBJECT_PENDING,  /* its run has not finished; a run may use it */
    TOW_OBJECT_READY,
    TOW_OBJECT_FAILED,
} tow_object_state_t;

/* Where an object's bytes are, as opposed to where its shards belong. Those of
 * one on its way are counted on both sides. */
typedef enum tow_residence {
    TOW_ON_DEVICE,
    TOW_SPILLING,
    TOW_SPILLED, /* in host memory only: not `counted` */
    TOW_RETURNING,
} tow_residence_t;

typedef struct tow_object {
    tow_object_id_t id;
    tow_object_state_t state;
    /* Runs that were admitted with it, or whose result it is, and have not
     * finished. */
    uint32_t hold_count;
    bool has_handle;   /* the client holds it */
    bool consumed;     /* donated: its handle is good for nothing any more */
    bool counted;      /* its bytes are in the accounts */
    bool dropped;      /* consumed and gone: only the handle's record is left */
    uint8_t residence; /* tow_residence_t */
    bool kept;         /* the owner's own: it cannot be spilled now */
    bool scratch;      /* for whoever walks objects; false between walks */
    uint64_t bytes;    /* of one shard, on its device */
    tow_placement_t *placement; /* counted; NULL: it has no shards (FAILED) */
    tow_status_t error;         /* owned; FAILED */
    void *context;              /* lent: the owner of the ledger's own */
    /* The owner's own: the last run that named it, and as which argument. */
    uint64_t mark;
    uint32_t mark_index;
    tow_list_t of_owner; /* belongs to the ledger */
    void *owner_;        /* belongs to the ledger */
    tow_shape_t shape;   /* of one shard */
} tow_object_t;

typedef struct tow_ledger_options {
    uint64_t object_count_max; /* 0: the default; per client */
    /* The object goes, once: tell the workers. Nobody may use it after this;
     * only the record of a consumed one stays, until its handle goes. May give
     * up holds and lose accounts, but neither add nor release. NULL: nobody
     * asks. */
    void (*dropped)(void *context, tow_object_t *object);
    void *context;
} tow_ledger_options_t;

tow_status_t tow_ledger_create(const tow_ledger_options_t *options,
                               tow_ledger_t **out_ledger) TOW_MUST_USE;
/* Objects that are left go without a word. */
void tow_ledger_destroy(tow_ledger_t *ledger);

/* Lent, for the life of the ledger; one that is closed stays: 64 bytes. */
tow_status_t tow_ledger_add_account(tow_ledger_t *ledger, uint64_t limit_bytes,
                                    tow_account_t **out_account) TOW_MUST_USE;
/* INVALID_ARGUMENT for no device or one twice, UNAVAILABLE for a closed one; they
 * name it by its index. Devices may be of several islands. */
tow_status_t tow_ledger_place(tow_ledger_t *ledger,
                              tow_account_t *const *accounts, size_t count,
                              void *context, tow_placement_t **out_placement)
    TOW_MUST_USE;
/* Lent, for the life of the ledger; accounts name it by its number. */
tow_status_t tow_ledger_add_host(tow_ledger_t *ledger, uint64_t limit_bytes,
                                 tow_host_t **out_host) TOW_MUST_USE;
/* Its worker is gone, and what was spilled there. */
void tow_ledger_lose_host(tow_host_t *host);
void tow_placement_retain(tow_placement_t *placement);
void tow_placement_release(tow_placement_t *placement);

typedef struct tow_object_options {
    tow_object_id_t id;
    tow_object_state_t state; /* ARRIVING or PENDING */
    tow_shape_t shape;
    uint64_t bytes;
    tow_placement_t *placement; /* retained; may be NULL if nothing counts */
    /* Count its bytes now. Results of runs are not: their run's reservation
     * has them until it finishes. */
    bool count_bytes;
} tow_object_options_t;

/* With a handle. ALREADY_EXISTS, or RESOURCE_EXHAUSTED past the client's number
 * of objects, name the id. Never fails for want of device memory: ask
 * tow_placement_fits first. On a placement that is lost the object is FAILED at
 * once, with the placement's error. */
tow_status_t tow_ledger_add(tow_ledger_t *ledger,
                            const tow_object_options_t *options,
                            tow_object_t **out_object) TOW_MUST_USE;
/* NULL: there is none. An id carries its client, so who asks with a key made of
 * its own number sees only its own. One whose handle is gone is found as long as
 * runs hold it: look at has_handle and consumed before using it. */
tow_object_t *tow_ledger_find(tow_ledger_t *ledger, tow_object_id_t id);
/* All, those dropped whose handles are left too; NULL at the end. `*cursor` is 0
 * before the first; nothing may be added or dropped on the way. */
tow_object_t *tow_ledger_next(const tow_ledger_t *ledger, size_t *cursor);

/* A run was admitted with it or makes it, and has finished. Drop follows when it
 * was the last hold and the handle is gone or the object consumed. A run holds
 * its results too: a handle may go before the workers have heard of the run. */
void tow_object_hold(tow_object_t *object);
void tow_object_unhold(tow_ledger_t *ledger, tow_object_t *object);
/* The client's handle goes, that of a consumed or failed object too. NOT_FOUND
 * for one that is not there: a client's mistake. */
tow_status_t tow_ledger_release(tow_ledger_t *ledger, tow_object_id_t id)
    TOW_MUST_USE;
/* A failed object stays failed, with its first error. */
void tow_object_set_ready(tow_object_t *object);
void tow_object_fail(tow_object_t *object, tow_status_t cause /* lent */);
/* The run that is being admitted, and holds it, consumes it. Its bytes stay
 * counted until nobody holds it: the run may wait for long before it starts, and
 * those that came before still read it. So runs reserve what they take beside
 * all their arguments, donated ones too. */
void tow_object_consume(tow_ledger_t *ledger, tow_object_t *object);

/* All handles of a client go: bulk release when an owner dies. Objects that
 * runs still hold go when those finish. */
void tow_ledger_release_client(tow_ledger_t *ledger, uint32_t client);
/* A device is gone: every object and placement with a shard there fails. Its
 * own bytes are off the books at once, those of the other shards when the
 * objects are dropped. O(objects + all placements' devices). */
void tow_ledger_lose_account(tow_ledger_t *ledger, tow_account_t *account,
                             tow_status_t cause /* lent */);

/* -- Memory ------------------------------------------------------------------ */

/* Would `bytes` more fit? Nothing more always does, but on a closed one. */
static inline bool tow_account_fits(const tow_account_t *account,
                                    uint64_t bytes)
{
    uint64_t limit =
        account->limit_bytes != 0 ? account->limit_bytes : UINT64_MAX;
    uint64_t used = account->object_bytes + account->reserved_bytes;
    if (TOW_UNLIKELY(account->closed)) return false;
    return bytes == 0 || (used <= limit && bytes <= limit - used);
}
/* Would `bytes` more on each device of the placement fit? */
bool tow_placement_fits(const tow_placement_t *placement, uint64_t bytes);
/* RESOURCE_EXHAUSTED in words: what was asked for, what there is, on which
 * device (index in the placement) it is short. UNAVAILABLE and why, where the
 * placement is lost. Only for what does not fit. */
tow_status_t tow_placement_refusal(const tow_placement_t *placement,
                                   uint64_t bytes) TOW_MUST_USE;
/* The same for its device `index` alone. */
tow_status_t tow_placement_refusal_at(const tow_placement_t *placement,
                                      size_t index, uint64_t bytes)
    TOW_MUST_USE;
/* Takes without asking: the caller has asked. Given back exactly once, also
 * when the placement was lost meanwhile. */
void tow_placement_reserve(tow_placement_t *placement, uint64_t bytes);
void tow_placement_unreserve(tow_placement_t *placement, uint64_t bytes);
/* A result's bytes pass from its run's reservation to the object: when the run
 * has finished, after the reservation was given back (tow_sched_finish) and
 * before anything else is granted. Twice is once. */
void tow_object_count_bytes(tow_object_t *object);

/* -- Spilling ---------------------------------------------------------------- */

/* Has every host of its shards room for them? NULL: yes. Lent. */
const tow_host_t *tow_object_short_host(const tow_ledger_t *ledger,
                                        const tow_object_t *object);
/* Of one that is READY, counted and on its devices: host memory is taken. */
void tow_object_begin_spill(tow_ledger_t *ledger, tow_object_t *object);
/* It is in host memory: its devices have their bytes back. */
void tow_object_end_spill(tow_object_t *object);
/* Its devices' bytes are taken, without asking, and those of hosts kept until it
 * is back. One that is SPILLING turns round. */
void tow_object_begin_return(tow_object_t *object);
void tow_object_end_return(tow_ledger_t *ledger, tow_object_t *object);

/* -- Telling ----------------------------------------------------------------- */

typedef struct tow_ledger_totals {
    uint64_t object_count;
    uint64_t
        dropped_count;     /* of those: consumed, and only the handle is left */
    uint64_t object_bytes; /* over all devices */
    uint64_t reserved_bytes; /* reservations are nobody's: 0 for a client */
    uint64_t spilled_bytes;  /* over all hosts; 0 for a client */
} tow_ledger_totals_t;
tow_ledger_totals_t tow_ledger_totals(const tow_ledger_t *ledger);
/* Of one client, O(its objects x shards); for `tow status`. */
tow_ledger_totals_t tow_ledger_client_totals(const tow_ledger_t *ledger,
                                             uint32_t client);
/* Do the books balance? O(objects x shards): for tests and simulations. */
tow_status_t tow_ledger_check(const tow_ledger_t *ledger) TOW_MUST_USE;

#endif /* TOW_STORE_LEDGER_H_ */
