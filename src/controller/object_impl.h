/* Objects: whether they are on the workers, and the release of handles. The
 * object table (store/) has the records. */
#ifndef TOW_CONTROLLER_OBJECT_IMPL_H_
#define TOW_CONTROLLER_OBJECT_IMPL_H_

#include "base/list.h"
#include "controller/types_impl.h"
#include "resource/resource.h"

/* An object's context: this once it is on the workers; before that the list of
 * gets that wait for it; NULL if it never will be. */
extern char tow_ctl_object_is_placed;

/* Its put or run has been granted: sends the gets that waited. */
void tow_ctl_object_placed(tow_object_t *object, tow_list_t *gets);
/* It never will be: the gets that waited fail with `cause` (borrowed). */
void tow_ctl_object_fail_gets(tow_object_t *object, tow_list_t *gets,
                              tow_status_t cause);
/* Adds it to the object table; it counts its mapping until it is discarded. One
 * without a mapping is about to fail. */
tow_status_t tow_ctl_object_add(tow_controller_t *controller,
                                tow_ctl_mapping_t *mapping,
                                tow_object_options_t *options,
                                tow_object_t **out_object) TOW_MUST_USE;
/* Adds one that has failed with `cause` (borrowed) from the start, because its
 * sources do not exist: the client may already have used it. */
tow_status_t tow_ctl_object_add_failed(tow_ctl_client_t *client,
                                       const tow_ctl_slice_t *slice,
                                       uint64_t id, tow_status_t cause)
    TOW_MUST_USE;
/* A client's object that has such a shard and may be used. */
tow_status_t tow_ctl_shard_find(const tow_ctl_client_t *client, uint64_t id,
                                uint32_t shard, tow_object_t **out_source)
    TOW_MUST_USE;
void tow_ctl_release_handles(tow_ctl_client_t *client,
                             const tow_msg_release_t *message);
/* For the object table: once for each object, however it ended. */
void tow_ctl_object_discarded(void *context, tow_object_t *object);

#endif /* TOW_CONTROLLER_OBJECT_IMPL_H_ */
