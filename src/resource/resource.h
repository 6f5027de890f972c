/* The resource manager: workers that come and go, their devices, and which of
 * them a slice gets.
 *
 * A worker belongs to an island, and a slice lies within one, unless it names its
 * devices or says that it may have those of every island. Devices are known by
 * their global ids, and have coordinates in their island: their worker's place
 * and their index there. A device carries a load, the number of slices on it; a
 * new slice gets a shape that fits, and the devices with the least (slice.c).
 * Slices may share devices: the scheduler orders their gangs. Pure bookkeeping. */
#ifndef TOW_RESOURCE_RESOURCE_H_
#define TOW_RESOURCE_RESOURCE_H_

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/macros.h"
#include "base/status.h"
#include "store/ledger.h"
#include "wire/message.h"

typedef struct tow_resource tow_resource_t;
typedef struct tow_worker_entry tow_worker_entry_t;

/* Of workers that do not say which. */
#define TOW_ISLAND_DEFAULT "main"
/* What a slice of devices of all islands says, as in <towpath/towpath.h>; no island
 * is called so. */
#define TOW_ISLAND_EVERY "*"

typedef struct tow_island_entry {
    char *name;      /* owned */
    uint32_t number; /* below TOW_ISLANDS_MAX; of accounts and placements */
    size_t worker_count;
    size_t device_count;
    size_t entry_count; /* of workers, those gone that slices name too */
} tow_island_entry_t;

typedef struct tow_device_entry {
    int64_t id;
    char *kind; /* owned */
    char *name; /* owned */
    uint64_t memory_bytes;
    tow_worker_entry_t *worker; /* lent */
    uint32_t index;             /* among the worker's: its second coordinate */
    uint32_t slice_count;       /* its load */
    tow_account_t *account;     /* lent by the ledger */
} tow_device_entry_t;

/* Stays in memory while slices use its devices, also when it is gone. */
struct tow_worker_entry {
    char *name;
    char *host;
    char *platform;
    char *version;
    char *stablehlo; /* "": it does not say */
    bool simulated;
    uint32_t process;
    uint64_t arrival;           /* counts up: the order of workers */
    tow_island_entry_t *island; /* lent */
    /* Among those of its island that are there, in the order of names: the first
     * coordinate of its devices. */
    uint32_t place;
    bool gone;
    tow_device_entry_t *devices;
    size_t device_count;
    void *context; /* lent: the controller's own */
};

tow_status_t tow_resource_create(tow_ledger_t *ledger /* lent */,
                                 tow_resource_t **out_resource) TOW_MUST_USE;
void tow_resource_destroy(tow_resource_t *resource);

/* RESOURCE_EXHAUSTED: a new island, and there are TOW_ISLANDS_MAX. ALREADY_EXISTS:
 * its process number, its name or a device id is taken by
 * another that lives, which the message names. INVALID_ARGUMENT: no devices,
 * two with one id, ids that are not its process's, or an island TOW_ISLAND_EVERY. */
tow_status_t tow_resource_add_worker(tow_resource_t *resource, const char *name,
                                     const tow_msg_worker_join_t *join,
                                     void *context,
                                     tow_worker_entry_t **out_worker)
    TOW_MUST_USE;
/* It is gone: no new slice gets its devices. The entry goes with the last slice
 * on them, at once if there is none. */
void tow_resource_remove_worker(tow_resource_t *resource,
                                tow_worker_entry_t *worker);

/* Those that are there, in order of arrival. */
size_t tow_resource_worker_count(const tow_resource_t *resource);
tow_worker_entry_t *tow_resource_worker(const tow_resource_t *resource,
                                        size_t index);
size_t tow_resource_device_count(const tow_resource_t *resource);
/* By its number; NULL if there is no worker of it. Lent. */
const tow_island_entry_t *tow_resource_island(const tow_resource_t *resource,
                                              uint32_t number);

#define TOW_SLICE_RANK_MAX 3u

typedef struct tow_slice_request {
    const char *kind;   /* "" or NULL: any one kind */
    const char *island; /* "" or NULL: any one; or TOW_ISLAND_EVERY */
    /* All devices of the kind on an island, or on every, if there are none. */
    const uint32_t *dims;
    size_t dim_count;          /* at most TOW_SLICE_RANK_MAX */
    const int64_t *device_ids; /* these, in this order; NULL: any */
    size_t device_id_count;
} tow_slice_request_t;

/* The devices of a slice, in order; `*out_devices` is the caller's array, the
 * entries are lent and stay until tow_resource_give_back. RESOURCE_EXHAUSTED: not
 * so many are there, and what is; NOT_FOUND: no such kind, island or id;
 * INVALID_ARGUMENT: dims that make no sense, devices of several kinds or of another
 * island than was named, one device twice. */
tow_status_t tow_resource_take(tow_resource_t *resource,
                               const tow_slice_request_t *request,
                               tow_device_entry_t ***out_devices,
                               size_t *out_count) TOW_MUST_USE;
/* The newest version of StableHLO that the workers of all of them read; "": none
 * says. Lent by one of them. */
const char *tow_resource_stablehlo(tow_device_entry_t *const *devices,
                                   size_t count);
void tow_resource_give_back(tow_resource_t *resource,
                            tow_device_entry_t *const *devices, size_t count);

#endif /* TOW_RESOURCE_RESOURCE_H_ */
