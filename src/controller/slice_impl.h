/* Slices: ordered sets of devices that a client has opened. */
#ifndef TOW_CONTROLLER_SLICE_IMPL_H_
#define TOW_CONTROLLER_SLICE_IMPL_H_

#include "controller/types_impl.h"
#include "resource/resource.h"

struct tow_ctl_slice {
    tow_resource_device_t **devices; /* owned array */
    size_t device_count;
    tow_ctl_mapping_t *mapping; /* counted */
    /* The request, for remapping. */
    bool is_named; /* these devices and no others */
    char *island;  /* owned; "": any */
    uint32_t dims[TOW_SLICE_RANK_MAX];
    size_t dim_count; /* 0: all devices */
};

void tow_ctl_slice_open(tow_ctl_client_t *client,
                        const tow_msg_slice_open_t *open);
void tow_ctl_slice_close(tow_ctl_client_t *client, uint64_t id);
void tow_ctl_slice_destroy(tow_ctl_client_t *client, tow_ctl_slice_t *slice);
/* Gives other devices to slices that have lost some, if enough are available
 * and workers have joined or disconnected since the last attempt. */
void tow_ctl_slices_remap(tow_ctl_client_t *client);
void tow_ctl_slice_check(const tow_ctl_slice_t *slice);

#endif /* TOW_CONTROLLER_SLICE_IMPL_H_ */
