/* Mappings: placements with the workers that have their shards. */
#ifndef TOW_CONTROLLER_MAPPING_IMPL_H_
#define TOW_CONTROLLER_MAPPING_IMPL_H_

#include "base/list.h"
#include "base/map.h"
#include "controller/types_impl.h"
#include "resource/resource.h"

typedef struct tow_ctl_mappings {
    tow_list_t list;    /* all */
    tow_names_t by_key; /* device ids as text -> tow_ctl_mapping_t */
} tow_ctl_mappings_t;

typedef struct tow_ctl_mapping_part {
    tow_ctl_worker_t *worker; /* counted */
    uint32_t *devices; /* owned: indices among the worker's, in shard order */
    uint32_t *shards;  /* owned: the shards on these devices */
    uint32_t count;
} tow_ctl_mapping_part_t;

/* One for each ordered set of devices that slices have now. Counted by slices,
 * programs, executables and puts, and by each object on its placement, whose
 * context it is. */
struct tow_ctl_mapping {
    tow_controller_t *controller;
    uint32_t reference_count;
    tow_list_t node;            /* in controller->mappings */
    char *key;                  /* owned */
    tow_placement_t *placement; /* counted */
    char *kind;                 /* owned */
    int64_t *device_ids;        /* owned */
    uint32_t device_count;
    tow_ctl_mapping_part_t *parts; /* owned */
    uint32_t part_count;
    uint32_t *part_of_shard; /* owned */
    uint32_t *index_in_part; /* owned */
    tow_list_t executables;  /* loaded for it */
};

/* Finds or makes the mapping of these devices; the caller gets a reference. */
tow_status_t tow_ctl_mapping_of(tow_controller_t *controller,
                                tow_resource_device_t *const *devices,
                                size_t count, tow_ctl_mapping_t **out_mapping)
    TOW_MUST_USE;
void tow_ctl_mapping_retain(tow_ctl_mapping_t *mapping);
void tow_ctl_mapping_release(tow_ctl_mapping_t *mapping);
/* UNAVAILABLE if one of its workers has disconnected. */
tow_status_t tow_ctl_mapping_status(const tow_ctl_mapping_t *mapping)
    TOW_MUST_USE;
/* Frees all that are left, regardless of references. */
void tow_ctl_mappings_destroy(tow_controller_t *controller);
/* O(devices). */
void tow_ctl_mapping_check(const tow_ctl_mapping_t *mapping);

#endif /* TOW_CONTROLLER_MAPPING_IMPL_H_ */
