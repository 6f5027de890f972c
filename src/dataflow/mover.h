/* The mover: a worker's part of transfers between sharded values.
 *
 * A transfer is a step of a lowered program with a route (ir/lower.h): pieces of
 * our source shards go to target shards here and elsewhere, pieces from here and
 * elsewhere make up our target shards. It is begun when its run is granted, ahead
 * of the data: target buffers are promises (late uploads) that later steps are
 * enqueued behind at once.
 *
 * How a piece travels, by who is at the other end and how large it is:
 *   - our own process, a whole shard: the driver's copy;
 *   - our own process, a part: from borrowed bytes into the target's memory;
 *   - another process, small: an EDGE_PIECE that carries the bytes. It may come
 *     before our grant; then it waits;
 *   - another process, large: we open a region per target shard when we are
 *     granted and offer it to the senders (EDGE_OFFER); they write straight into
 *     it when their value is ready.
 * A move that is sized is of whole shards whose size is known only when they are
 * there, and nothing of it is done ahead: the sender tells it (EDGE_SIZE) when it
 * has the value, and the receiver makes room then.
 *
 * Transfers are named by their gang. Grants come in the order of gangs, so a
 * piece or an offer of a gang that is not known is early if it lies beyond the
 * last grant, and stale otherwise.
 *
 * A collective between computations is a step with a part (ir/collective.h), and
 * goes the same ways: mover_reduce_impl.h says how. What is combined is small, or
 * it is done off the loop, by the env's helpers.
 *
 * A state machine over its driver, the driver's env, and messages that its owner
 * carries. It waits for nothing and decides no order. */
#ifndef TOW_DATAFLOW_MOVER_H_
#define TOW_DATAFLOW_MOVER_H_

#include "device/device.h"
#include "ir/lower.h"
#include "wire/message.h"

typedef struct tow_mover tow_mover_t;
typedef struct tow_move tow_move_t;

/* A bulk write to another worker: what the owner does over a lane. */
typedef struct tow_mover_write {
    tow_write_t write; /* bytes, size, offset and tag are set */
    const tow_msg_lane_target_t *target; /* lent until done */
    uint32_t process;
    /* The receiver uses the bytes where they are: env.h. NULL: it must not. */
    void (*lent)(struct tow_mover_write *write);
    /* `write.is_adrift` is set. */
    void (*done)(struct tow_mover_write *write, tow_status_t take_status);
} tow_mover_write_t;

/* Would the receiver be told, should the message not reach it? */
typedef enum tow_mover_sent {
    TOW_MOVER_SENT, /* yes: it knows of the connection */
    /* There is none yet. The move stays until tow_mover_peer_ready, or fails
     * with tow_mover_peer_gone: or the receiver would wait for ever. */
    TOW_MOVER_WAITS,
} tow_mover_sent_t;

typedef struct tow_mover_options {
    tow_driver_t *driver; /* lent, outlives the mover */
    uint32_t process;     /* our own */
    /* Carries a message to the worker of that process, in order and exactly
     * once, or the owner calls tow_mover_peer_gone, in a turn of its own. Lent
     * for the call. */
    tow_mover_sent_t (*send)(void *context, uint32_t process, uint32_t type,
                             const tow_body_t *body);
    /* `done` follows in a turn of its own, unless this fails. */
    tow_status_t (*write)(void *context, tow_mover_write_t *write);
    /* Memory for targets, aligned to TOW_MOVER_ALIGNMENT, from an owner that
     * keeps large blocks; both may be NULL. `size` as it was asked for. */
    void *(*memory_take)(void *context, size_t size);
    void (*memory_give)(void *context, void *bytes, size_t size);
    /* The last of all that was under way has ended: tow_mover_is_quiet. In a
     * turn of the driver, the env or a post. May be NULL. */
    void (*quiet)(void *context);
    void *context;
} tow_mover_options_t;

tow_status_t tow_mover_create(const tow_mover_options_t *options,
                              tow_mover_t **out_mover) TOW_MUST_USE;
/* Nothing is under way. */
void tow_mover_destroy(tow_mover_t *mover);
/* The same for a process that has died, at any moment: calls nobody. */
void tow_mover_forget(tow_mover_t *mover);

/* One transfer, or one collective. Owned by the caller until `done`. */
struct tow_move {
    /* One of both, lent until done. */
    const tow_route_t *route;
    const tow_collective_part_t *part;
    uint64_t gang;
    /* Our source shards: shard i is sources[i * source_stride]; that of tensor t
     * of a collective sources[i * source_stride + t]. Lent for the call: the
     * mover keeps its own references. */
    tow_buffer_t *const *sources;
    size_t source_stride;
    /* Room for route->target_count handles, or tensor_count for each of our
     * shards, shard by shard; filled in by the call, one reference each. */
    tow_buffer_t **targets;
    /* Both shapes of the route are bounds. Then targets come later: each is
     * filled in when its size is known, and `sized` is called once all are; not
     * if the move has failed before. */
    bool is_sized;
    void (*sized)(tow_move_t *move);
    /* All our pieces have been sent, or lent, and all our targets are there; or the first
     * error, with the process at the other end: then targets that were not there
     * are poisoned with the same, and what depends on them is told later. The
     * error of a source is passed on as it is. */
    void (*done)(tow_move_t *move, tow_status_t take_status);
    void *private_[16];
};

/* An error here is of the call: nothing was begun, and `done` will not run. */
tow_status_t tow_mover_start(tow_mover_t *mover, tow_move_t *move) TOW_MUST_USE;
/* Gives up: targets that are not complete are poisoned with `cause` (lent). What
 * is being written still goes out. `done` follows. */
void tow_mover_abort(tow_mover_t *mover, tow_move_t *move, tow_status_t cause);
/* All transfers of the grants up to this gang have been started: what comes for
 * unknown ones up to it is stale. */
void tow_mover_granted(tow_mover_t *mover, uint64_t last_gang);

/* From the worker of that process. An error means that it broke the rules. */
tow_status_t tow_mover_offer(tow_mover_t *mover, uint32_t process,
                             const tow_msg_edge_offer_t *offer) TOW_MUST_USE;
tow_status_t tow_mover_piece(tow_mover_t *mover, uint32_t process,
                             const tow_msg_edge_piece_t *piece) TOW_MUST_USE;
tow_status_t tow_mover_size(tow_mover_t *mover, uint32_t process,
                            const tow_msg_edge_size_t *size) TOW_MUST_USE;
/* What waited for the connection is on its way. */
void tow_mover_peer_ready(tow_mover_t *mover, uint32_t process);
/* It is there again, and what it had sent for gangs up to this one may never
 * have come: moves of those that wait for it fail, also if they begin later. */
void tow_mover_peer_lost(tow_mover_t *mover, uint32_t process,
                         uint64_t last_gang);
/* Moves that need it fail with `cause` (lent). */
void tow_mover_peer_gone(tow_mover_t *mover, uint32_t process,
                         tow_status_t cause);
/* The controller is gone: what came early goes too. Moves were aborted before. */
void tow_mover_clear(tow_mover_t *mover);

typedef struct tow_mover_stats {
    size_t move_count;  /* under way */
    size_t early_count; /* pieces and offers that wait for their grant */
    uint64_t early_bytes;
    uint64_t receive_bytes;                  /* of targets under way */
    uint64_t copied, sent_small, sent_large; /* pieces, ever */
    uint64_t bytes_sent;
    /* Of those, used by their receivers where they are: ever, and still. */
    uint64_t sent_lent;
    uint64_t lent_count, lent_bytes;
    uint64_t reduced; /* tensors of collectives, ever */
} tow_mover_stats_t;
tow_mover_stats_t tow_mover_stats(const tow_mover_t *mover);
/* Is nothing under way, and has everybody given back what the mover lent or
 * borrowed? A target's memory is the device's as long as it likes: until the
 * buffer is freed, if it uses it as it is. */
bool tow_mover_is_quiet(const tow_mover_t *mover);

/* Can this worker go by the route? Its boxes lie in their shards, the pieces of
 * each target shard are numbered from 0 and cover as many bytes as it has, and
 * its devices are there. Asked once per program: the mover believes routes. */
tow_status_t tow_route_check(const tow_route_t *route, uint32_t process,
                             size_t device_count) TOW_MUST_USE;

/* The same of a collective, whose bytes unpacking has checked. */
tow_status_t tow_part_check(const tow_collective_part_t *part, uint32_t process,
                            size_t device_count) TOW_MUST_USE;

#endif /* TOW_DATAFLOW_MOVER_H_ */
