/* The resource manager: workers, their devices, and which devices a slice gets.
 *
 * A worker belongs to an island, and a slice lies within one, unless it names
 * its devices or requests those of every island. Devices are known by their
 * global ids, and have coordinates in their island: the position of their
 * worker and their index on it. The load of a device is the number of slices on
 * it; a new slice gets devices that its client's other slices do not have, a
 * shape that fits, and the least loaded devices (slice.c). Slices may share devices: the scheduler orders their gangs. Pure
 * bookkeeping. */
#ifndef TOW_RESOURCE_RESOURCE_H_
#define TOW_RESOURCE_RESOURCE_H_

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/macros.h"
#include "base/status.h"
#include "store/object_table.h"
#include "wire/message.h"

typedef struct tow_resource tow_resource_t;
typedef struct tow_resource_worker tow_resource_worker_t;

/* Of workers that name none. */
#define TOW_ISLAND_DEFAULT "main"
/* The island of a slice with devices of all islands, as in <towpath/towpath.h>;
 * no island has this name. */
#define TOW_ISLAND_EVERY "*"

typedef struct tow_resource_island {
    char *name;      /* owned */
    uint32_t number; /* below TOW_ISLANDS_MAX; of accounts and placements */
    size_t worker_count;
    size_t device_count;
    size_t
        entry_count; /* of workers, including disconnected ones with slices */
} tow_resource_island_t;

typedef struct tow_resource_device {
    int64_t id;
    char *kind; /* owned */
    char *name; /* owned */
    uint64_t memory_bytes;
    tow_resource_worker_t *worker; /* lent */
    uint32_t index;       /* among the worker's: its second coordinate */
    uint32_t slice_count; /* its load */
    /* During a request: slices of the same client, by tow_slice_choice. */
    uint32_t own_count;
    uint32_t own_named_count;
    tow_account_t *account; /* lent by the object table */
} tow_resource_device_t;

/* Stays in memory while slices use its devices, also when it has
 * disconnected. */
struct tow_resource_worker {
    char *name;
    char *host;
    char *platform;
    char *version;
    char *stablehlo; /* "": unknown */
    bool simulated;
    uint32_t process;
    uint64_t arrival;              /* counts up: the order of workers */
    tow_resource_island_t *island; /* lent */
    /* Position among the connected workers of its island, in the order of
     * names: the first coordinate of its devices. */
    uint32_t place;
    bool disconnected;
    tow_resource_device_t *devices;
    size_t device_count;
    void *context; /* lent: the controller's own */
};

tow_status_t tow_resource_create(tow_object_table_t *object_table /* lent */,
                                 tow_resource_t **out_resource) TOW_MUST_USE;
void tow_resource_destroy(tow_resource_t *resource);

/* RESOURCE_EXHAUSTED: a new island, and there are TOW_ISLANDS_MAX.
 * ALREADY_EXISTS: a connected worker, which the message names, has its process
 * number, its name or a device id. INVALID_ARGUMENT: no devices, two with one
 * id, ids that are not its process's, or an island TOW_ISLAND_EVERY. */
tow_status_t tow_resource_add_worker(tow_resource_t *resource, const char *name,
                                     const tow_msg_worker_join_t *join,
                                     void *context,
                                     tow_resource_worker_t **out_worker)
    TOW_MUST_USE;
/* It has disconnected: no new slice gets its devices. The entry is freed with
 * the last slice on them, at once if there is none. */
void tow_resource_remove_worker(tow_resource_t *resource,
                                tow_resource_worker_t *worker);

/* Connected workers, in order of arrival. */
size_t tow_resource_worker_count(const tow_resource_t *resource);
tow_resource_worker_t *tow_resource_worker(const tow_resource_t *resource,
                                           size_t index);
size_t tow_resource_device_count(const tow_resource_t *resource);
/* By its number; NULL if it has no worker. Lent. */
const tow_resource_island_t *tow_resource_island(const tow_resource_t *resource,
                                                 uint32_t number);

#define TOW_SLICE_RANK_MAX 3u

/* A slice that names its devices, or has those of all islands, chooses nothing.
 * To its own client it is no load: such slices are how JAX addresses its
 * devices. */
typedef enum tow_slice_choice {
    TOW_SLICE_NOT_CHOSEN = 1,
    TOW_SLICE_CHOSEN,
} tow_slice_choice_t;

/* The devices of one slice. Lent. */
typedef struct tow_slice_devices {
    tow_resource_device_t *const *devices;
    size_t count;
    tow_slice_choice_t choice;
} tow_slice_devices_t;

typedef struct tow_slice_request {
    const char *kind;   /* "" or NULL: any one kind */
    const char *island; /* "" or NULL: any one; or TOW_ISLAND_EVERY */
    /* All devices of the kind on an island, or on all islands, if there are
     * none. */
    const uint32_t *dims;
    size_t dim_count;          /* at most TOW_SLICE_RANK_MAX */
    const int64_t *device_ids; /* these, in this order; NULL: any */
    size_t device_id_count;
    /* Slices of the same client. Devices that were chosen for it before are the
     * last choice. */
    const tow_slice_devices_t *own;
    size_t own_count;
} tow_slice_request_t;

tow_slice_choice_t tow_slice_choice(const tow_slice_request_t *request);

/* The devices of a slice, in order; `*out_devices` is the caller's array, the
 * entries are lent and stay until tow_resource_release_devices.
 * RESOURCE_EXHAUSTED: fewer devices exist, with their number; NOT_FOUND: no
 * such kind, island or id; INVALID_ARGUMENT: invalid dims, devices of several
 * kinds or of another island than requested, a device given twice. */
tow_status_t tow_resource_acquire_devices(tow_resource_t *resource,
                                          const tow_slice_request_t *request,
                                          tow_resource_device_t ***out_devices,
                                          size_t *out_count) TOW_MUST_USE;
/* The newest version of StableHLO that the workers of all of them read; "":
 * unknown. Lent by one of them. */
const char *tow_resource_stablehlo(tow_resource_device_t *const *devices,
                                   size_t count);
void tow_resource_release_devices(tow_resource_t *resource,
                                  tow_resource_device_t *const *devices,
                                  size_t count);

/* Verifies the invariants. O(workers^2 + devices): for tests and simulation. */
tow_status_t tow_resource_check(const tow_resource_t *resource) TOW_MUST_USE;

#endif /* TOW_RESOURCE_RESOURCE_H_ */
