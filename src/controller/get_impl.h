/* Gets: shards on their way to a client, or to the destination of a copy. */
#ifndef TOW_CONTROLLER_GET_IMPL_H_
#define TOW_CONTROLLER_GET_IMPL_H_

#include "base/list.h"
#include "base/map.h"
#include "controller/types_impl.h"
#include "resource/resource.h"

typedef struct tow_ctl_gets {
    tow_map_t by_number; /* request number -> tow_ctl_get_t */
} tow_ctl_gets_t;

struct tow_ctl_get {
    uint64_t number;
    tow_ctl_client_t *client; /* NULL: disconnected, or a copy's */
    uint64_t request;
    tow_object_t *object;     /* held */
    tow_ctl_worker_t *worker; /* counted; NULL: not sent yet */
    uint32_t shard;
    bool has_target;
    tow_msg_lane_target_t target;
    void *lane_address; /* owned */
    tow_list_t node;    /* of the run, put or assembly that makes its object */
    tow_ctl_put_t *put; /* borrowed: the copy that it fetches for; or NULL */
    tow_status_t error; /* owned: it has failed, and waits for its run */
};

void tow_ctl_get_begin(tow_ctl_client_t *client, const tow_msg_get_t *message);
/* Holds the object. */
tow_status_t tow_ctl_get_make(tow_ctl_client_t *client,
                              const tow_msg_get_t *message,
                              tow_object_t *object, tow_ctl_get_t **out_get)
    TOW_MUST_USE;
/* Sends it as soon as its object is on the workers. */
void tow_ctl_get_route(tow_ctl_get_t *get);
void tow_ctl_get_send(tow_ctl_get_t *get);
void tow_ctl_get_fail(tow_ctl_get_t *get, tow_status_t take_status);
void tow_ctl_get_done(tow_ctl_worker_t *worker,
                      const tow_msg_shard_get_done_t *message);
void tow_ctl_gets_on_disconnect(tow_controller_t *controller,
                                tow_ctl_worker_t *worker,
                                tow_ctl_client_t *client, tow_status_t cause);
void tow_ctl_gets_destroy(tow_controller_t *controller);
void tow_ctl_get_check(const tow_ctl_get_t *get);

#endif /* TOW_CONTROLLER_GET_IMPL_H_ */
