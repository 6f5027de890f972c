/* Blobs that have arrived and that no message has named yet. */
#ifndef TOW_CONTROLLER_BLOB_IMPL_H_
#define TOW_CONTROLLER_BLOB_IMPL_H_

#include "base/map.h"
#include "controller/types_impl.h"

struct tow_ctl_blob {
    void *bytes; /* owned */
    size_t size;
};

void tow_ctl_blob_free(tow_ctl_blob_t *blob);
/* Takes the bytes; NULL is no blob. */
uint64_t tow_ctl_blob_send(tow_session_t *session, tow_ctl_blob_t *take_blob);
/* Adds one, unless there are `count_max`: then frees the bytes and returns
 * false. */
bool tow_ctl_blob_add(tow_map_t *blobs, size_t count_max, uint64_t number,
                      void *take_bytes, size_t size);
void tow_ctl_blobs_deinit(tow_map_t *blobs);

#endif /* TOW_CONTROLLER_BLOB_IMPL_H_ */
