/* Slices: ordered sets of devices that a client has opened. */
#ifndef TOW_CONTROLLER_SLICE_IMPL_H_
#define TOW_CONTROLLER_SLICE_IMPL_H_

#include "controller/types_impl.h"
#include "resource/resource.h"

struct tow_ctl_slice {
    tow_resource_device_t **devices; /* owned array */
    size_t device_count;
    tow_ctl_mapping_t *mapping; /* counted */
    tow_slice_choice_t choice;  /* of its devices */
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
/* Acquires devices that were not chosen for other slices of the client, if there
 * are enough. `except`: a slice that does not count; or NULL. */
tow_status_t tow_ctl_slice_acquire(tow_ctl_client_t *client,
                                   const tow_ctl_slice_t *except,
                                   tow_slice_request_t *request,
                                   tow_resource_device_t ***out_devices,
                                   size_t *out_count) TOW_MUST_USE;
/* Gives other devices to slices that have lost some, if enough are available
 * and workers have joined or disconnected since the last attempt. */
void tow_ctl_slices_remap(tow_ctl_client_t *client);
void tow_ctl_slice_check(const tow_ctl_slice_t *slice);

#endif /* TOW_CONTROLLER_SLICE_IMPL_H_ */
