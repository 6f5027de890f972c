/* Declarations shared by the files of the resource manager. */
#ifndef TOW_RESOURCE_RESOURCE_IMPL_H_
#define TOW_RESOURCE_RESOURCE_IMPL_H_

#include "base/map.h"
#include "base/vec.h"
#include "resource/resource.h"

struct tow_resource {
    tow_object_table_t *object_table;           /* lent */
    TOW_VEC(tow_resource_worker_t *) connected; /* owned, in order of arrival */
    /* Owned: disconnected, with slices. */
    TOW_VEC(tow_resource_worker_t *) disconnected;
    tow_map_t
        devices; /* tow_resource_device_key -> entry, of connected workers */
    uint64_t arrival_count;
    tow_resource_island_t islands[TOW_ISLANDS_MAX]; /* by number */
};

/* A negative id is refused earlier. */
static inline uint64_t tow_resource_device_key(int64_t id)
{
    return (uint64_t)id;
}

/* Frees it if it has disconnected and no slice has a device of it. */
void tow_resource_discard_if_unused(tow_resource_t *resource,
                                    tow_resource_worker_t *worker);

#endif /* TOW_RESOURCE_RESOURCE_IMPL_H_ */
