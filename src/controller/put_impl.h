/* Puts: objects from the client's memory; and copies, whose bytes another
 * worker writes (copy.c). */
#ifndef TOW_CONTROLLER_PUT_IMPL_H_
#define TOW_CONTROLLER_PUT_IMPL_H_

#include "base/list.h"
#include "base/map.h"
#include "controller/types_impl.h"
#include "controller/unit_impl.h"

typedef struct tow_ctl_puts {
    tow_map_t by_key;  /* object key -> tow_ctl_put_t */
    size_t copy_count; /* of those, copies */
} tow_ctl_puts_t;

/* A put that waits to be granted, or for its bytes. */
struct tow_ctl_put {
    tow_ctl_unit_t unit;
    /* A copy from another island is ordered behind its source there. */
    tow_ticket_part_t parts[2];
    size_t part_count;
    tow_ticket_link_t *links;   /* owned; NULL: it is on one island */
    tow_ctl_client_t *client;   /* NULL: disconnected */
    tow_object_t *object;       /* held */
    tow_ctl_mapping_t *mapping; /* counted */
    bool inlined;
    bool replicated;
    void *bytes; /* owned */
    size_t size;
    uint32_t open_count; /* workers that have not finished */
    bool *is_open;       /* owned: by part */
    tow_status_t error;  /* owned: the first */
    tow_list_t waiting;  /* tow_ctl_block_t of units that need it */
    tow_list_t gets;     /* that wait for it */
    /* A copy: the bytes are those of a shard of another object. */
    tow_object_t *source; /* held; NULL: they come from the client */
    uint32_t source_shard;
    tow_ctl_get_t *fetch; /* borrowed: fetches the bytes */
};

void tow_ctl_put_begin(tow_ctl_client_t *client, const tow_msg_put_t *message);
/* Makes an object and its put, which waits to be granted. `source` is that of a
 * copy, or NULL. */
tow_status_t tow_ctl_put_start(tow_ctl_client_t *client,
                               const tow_msg_put_t *message,
                               const tow_ctl_slice_t *slice,
                               const tow_shape_t *shape, uint64_t shard_bytes,
                               const tow_object_t *source) TOW_MUST_USE;
void tow_ctl_put_grant(tow_controller_t *controller, tow_ctl_put_t *put);
void tow_ctl_put_refuse(tow_controller_t *controller, tow_ctl_put_t *put,
                        tow_status_t take_status);
void tow_ctl_put_opened(tow_ctl_worker_t *worker,
                        const tow_msg_shard_put_opened_t *message);
void tow_ctl_put_done(tow_ctl_worker_t *worker,
                      const tow_msg_shard_put_done_t *message);
/* Its bytes will never arrive. `cause` is borrowed. */
void tow_ctl_put_fail(tow_controller_t *controller, tow_ctl_put_t *put,
                      tow_status_t cause);
/* The client reports that its bytes will never arrive. */
void tow_ctl_put_cancel(tow_ctl_client_t *client,
                        const tow_msg_put_done_t *message);
/* Blocks the ticket until the object, which is ARRIVING, has arrived. */
void tow_ctl_put_await(tow_controller_t *controller, const tow_object_t *object,
                       tow_ctl_block_t *block, tow_ticket_t *ticket);
void tow_ctl_puts_on_disconnect(tow_controller_t *controller,
                                tow_ctl_worker_t *worker,
                                tow_ctl_client_t *client, tow_status_t cause);
void tow_ctl_puts_destroy(tow_controller_t *controller);
void tow_ctl_put_check(const tow_ctl_put_t *put);

void tow_ctl_copy_begin(tow_ctl_client_t *client,
                        const tow_msg_copy_t *message);
/* The destination's worker is ready for the bytes of a copy. */
void tow_ctl_copy_fetch(tow_ctl_worker_t *worker, tow_ctl_put_t *put,
                        const tow_msg_shard_put_opened_t *message);
/* Blocks the ticket until all copies from the object have completed. */
void tow_ctl_copies_await(tow_controller_t *controller,
                          const tow_object_t *object, tow_ctl_block_t *block,
                          tow_ticket_t *ticket);

#endif /* TOW_CONTROLLER_PUT_IMPL_H_ */
