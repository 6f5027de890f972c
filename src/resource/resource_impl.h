/* What the files of the resource manager share. */
#ifndef TOW_RESOURCE_RESOURCE_IMPL_H_
#define TOW_RESOURCE_RESOURCE_IMPL_H_

#include "base/map.h"
#include "base/vec.h"
#include "resource/resource.h"

struct tow_resource {
    tow_ledger_t *ledger;               /* lent */
    TOW_VEC(tow_worker_entry_t *) here; /* owned, in order of arrival */
    TOW_VEC(tow_worker_entry_t *) gone; /* owned: slices still name them */
    tow_map_t devices;                  /* tow_device_key -> entry, of `here` */
    uint64_t arrival_count;
    tow_island_entry_t islands[TOW_ISLANDS_MAX]; /* by number */
};

/* A negative id is refused before it gets here. */
static inline uint64_t tow_device_key(int64_t id)
{
    return (uint64_t)id;
}

/* Frees it if it is gone and no slice has a device of it. */
void tow_resource_forget_gone(tow_resource_t *resource,
                              tow_worker_entry_t *worker);

#endif /* TOW_RESOURCE_RESOURCE_IMPL_H_ */
