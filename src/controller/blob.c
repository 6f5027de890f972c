/* Blobs that have arrived and that no message has named yet. */
#include "controller/blob_impl.h"

#include "base/alloc.h"
#include "session/session.h"

void tow_ctl_blob_free(tow_ctl_blob_t *blob)
{
    if (blob == NULL) return;
    tow_free(blob->bytes);
    tow_free(blob);
}

uint64_t tow_ctl_blob_send(tow_session_t *session, tow_ctl_blob_t *take_blob)
{
    const tow_session_blob_t blob = {.bytes = take_blob->bytes,
                                     .size = take_blob->size,
                                     .release = tow_free,
                                     .context = take_blob->bytes};
    tow_free(take_blob);
    return tow_session_send_blob(session, &blob);
}

bool tow_ctl_blob_add(tow_map_t *blobs, size_t count_max, uint64_t number,
                      void *take_bytes, size_t size)
{
    tow_ctl_blob_t *blob = tow_calloc(1, sizeof(*blob));
    if (blob != NULL && tow_map_count(blobs) < count_max &&
        tow_map_put(blobs, number, blob)) {
        *blob = (tow_ctl_blob_t){take_bytes, size};
        return true;
    }
    tow_free(blob);
    tow_free(take_bytes);
    return false;
}

void tow_ctl_blobs_deinit(tow_map_t *blobs)
{
    size_t cursor = 0;
    uint64_t number;
    void *blob;
    while (tow_map_next(blobs, &cursor, &number, &blob))
        tow_ctl_blob_free(blob);
    tow_map_deinit(blobs);
}
