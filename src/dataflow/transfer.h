/* The transfer engine: a worker's part of transfers between sharded values.
 *
 * A transfer is a step of a lowered program with a route (ir/lower.h): pieces
 * of our source shards go to target shards here and on other workers, and
 * pieces from here and from other workers make up our target shards. It starts
 * when its run is granted, ahead of the data: target buffers are promises (late
 * uploads), and later steps are enqueued behind them at once.
 *
 * How a piece travels depends on the other end and on its size:
 *   - same process, a whole shard: the driver copies it;
 *   - same process, a part: copied from borrowed bytes to the target's memory;
 *   - another process, small: an EDGE_PIECE carries the bytes. If it arrives
 *     before our grant, it is queued;
 *   - another process, large: when granted, we open a region for each target
 *     shard and offer it to the senders (EDGE_OFFER); they write directly into
 *     it when their value is ready.
 * Sequential transfers of whole shards, whose sizes are known only when the
 * value is produced, are not started early: the sender announces the size
 * (EDGE_SIZE) when it has the value, and the receiver then allocates memory.
 *
 * A transfer is identified by its gang. Grants arrive in the order of gangs, so
 * a piece or an offer of an unknown gang is early if the gang is after the last
 * grant, and stale otherwise.
 *
 * A collective between computations is a step with a part (ir/collective.h) and
 * uses the same paths: see transfer_reduce_impl.h. Large combinations run off
 * the loop, on the env's helper threads.
 *
 * A state machine over its driver, the driver's env, and messages that its
 * owner carries. It never blocks and decides no order. */
#ifndef TOW_DATAFLOW_TRANSFER_H_
#define TOW_DATAFLOW_TRANSFER_H_

#include "device/device.h"
#include "ir/lower.h"
#include "wire/message.h"

typedef struct tow_transfer_engine tow_transfer_engine_t;
typedef struct tow_transfer tow_transfer_t;

/* A bulk write to another worker, which the owner does over a lane. */
typedef struct tow_transfer_write {
    tow_write_t write; /* bytes, size, offset and tag are set */
    const tow_msg_lane_target_t *target; /* lent until done */
    uint32_t process;
    /* The receiver uses the bytes without a copy: env.h. NULL: not allowed. */
    void (*shared)(struct tow_transfer_write *write);
    /* `write.is_stranded` is set. */
    void (*done)(struct tow_transfer_write *write, tow_status_t take_status);
} tow_transfer_write_t;

/* Would the receiver learn of it if the message did not reach it? */
typedef enum tow_transfer_sent {
    TOW_TRANSFER_SENT, /* yes: it knows of the connection */
    /* There is no connection yet. The transfer stays open until
     * tow_transfer_engine_on_peer_ready, or fails with ..._on_peer_disconnect:
     * otherwise the receiver would wait for ever. */
    TOW_TRANSFER_WAITS,
} tow_transfer_sent_t;

typedef struct tow_transfer_engine_options {
    tow_driver_t *driver; /* lent, outlives the engine */
    uint32_t process;     /* our own */
    /* Carries a message to the worker of that process, in order and exactly
     * once; otherwise the owner calls tow_transfer_engine_on_peer_disconnect,
     * in a turn of its own. Lent for the call. */
    tow_transfer_sent_t (*send)(void *context, uint32_t process, uint32_t type,
                                const tow_body_t *body);
    /* `done` follows in a turn of its own, unless this fails. */
    tow_status_t (*write)(void *context, tow_transfer_write_t *write);
    /* Memory for targets, aligned to TOW_TRANSFER_ALIGNMENT, from an owner that
     * caches large blocks; both may be NULL. `size` is the size requested. */
    void *(*memory_take)(void *context, size_t size);
    void (*memory_give)(void *context, void *bytes, size_t size);
    /* The last operation under way has ended: tow_transfer_engine_is_quiet. In
     * a turn of the driver, the env or a post. May be NULL. */
    void (*quiet)(void *context);
    void *context;
} tow_transfer_engine_options_t;

tow_status_t tow_transfer_engine_create(
    const tow_transfer_engine_options_t *options,
    tow_transfer_engine_t **out_mover) TOW_MUST_USE;
/* Nothing is under way. */
void tow_transfer_engine_destroy(tow_transfer_engine_t *engine);
/* The same after a simulated crash, at any moment: makes no calls. */
void tow_transfer_engine_discard(tow_transfer_engine_t *engine);

/* One transfer, or one collective. Owned by the caller until `done`. */
struct tow_transfer {
    /* One of the two, lent until done. */
    const tow_route_t *route;
    const tow_collective_part_t *part;
    uint64_t gang;
    /* Our source shards: shard i is sources[i * source_stride]; that of tensor
     * t of a collective is sources[i * source_stride + t]. Lent for the call:
     * the engine takes its own references. */
    tow_buffer_t *const *sources;
    size_t source_stride;
    /* Space for route->target_count handles, or tensor_count for each of our
     * shards, shard by shard; filled in by the call, one reference each. */
    tow_buffer_t **targets;
    /* Both shapes of the route are upper bounds. Each target is then filled in
     * when its size is known, and `sized` is called once all are; not if the
     * transfer has failed before. */
    bool is_sized;
    /* Memory for its targets counts in `late_bytes`, and its end is reported
     * to tow_transfer_engine_watch. */
    bool is_late;
    /* It waits for memory: its targets are promises, and nothing else happens
     * before tow_transfer_begin. Messages for it are early until then. Only for
     * transfers of known sizes and drivers with free promises. */
    bool is_held;
    /* A computation will overwrite the targets: their memory must not be shared
     * with the sender, nor with another device. */
    bool is_consumed;
    void (*sized)(tow_transfer_t *transfer);
    /* All our pieces have been sent or shared, and all our targets are
     * complete; or the first error, with the process at the other end:
     * incomplete targets are then poisoned with the same error, and steps that
     * depend on them fail later. The error of a source is passed on
     * unchanged. */
    void (*done)(tow_transfer_t *transfer, tow_status_t take_status);
    void *private_[16];
};

/* The bytes of `late_bytes` that a late transfer takes: of targets that the
 * driver does not copy. */
uint64_t tow_transfer_memory(const tow_transfer_engine_t *engine,
                             const tow_route_t *route, bool is_consumed);
/* `freed` is called when memory of a late transfer has been freed, in a turn of
 * the driver or the env. */
void tow_transfer_engine_watch(tow_transfer_engine_t *engine,
                               void (*freed)(void *context), void *context);

/* On an error nothing has started, and `done` is not called. */
tow_status_t tow_transfer_start(tow_transfer_engine_t *engine,
                                tow_transfer_t *transfer) TOW_MUST_USE;
/* A held transfer gets its memory. If that fails, the transfer does. */
void tow_transfer_begin(tow_transfer_engine_t *engine,
                        tow_transfer_t *transfer);
/* Aborts the transfer: incomplete targets are poisoned with `cause` (lent).
 * Writes under way continue. `done` follows. */
void tow_transfer_abort(tow_transfer_engine_t *engine, tow_transfer_t *transfer,
                        tow_status_t cause);
/* All transfers of grants up to this gang have started, or are held: messages
 * for unknown gangs up to it are stale. */
void tow_transfer_engine_granted(tow_transfer_engine_t *engine,
                                 uint64_t last_gang);

/* From the worker of that process. An error means that it broke the
 * protocol. */
tow_status_t tow_transfer_engine_on_offer(tow_transfer_engine_t *engine,
                                          uint32_t process,
                                          const tow_msg_edge_offer_t *offer)
    TOW_MUST_USE;
tow_status_t tow_transfer_engine_on_piece(tow_transfer_engine_t *engine,
                                          uint32_t process,
                                          const tow_msg_edge_piece_t *piece)
    TOW_MUST_USE;
tow_status_t tow_transfer_engine_on_size(tow_transfer_engine_t *engine,
                                         uint32_t process,
                                         const tow_msg_edge_size_t *size)
    TOW_MUST_USE;
/* The connection is open: queued messages are on their way. */
void tow_transfer_engine_on_peer_ready(tow_transfer_engine_t *engine,
                                       uint32_t process);
/* It has reconnected, and messages that it sent for gangs up to this one may be
 * lost: transfers of those gangs that wait for it fail, also if they start
 * later. */
void tow_transfer_engine_on_peer_reconnect(tow_transfer_engine_t *engine,
                                           uint32_t process,
                                           uint64_t last_gang);
/* Transfers that need it fail with `cause` (lent). */
void tow_transfer_engine_on_peer_disconnect(tow_transfer_engine_t *engine,
                                            uint32_t process,
                                            tow_status_t cause);
/* The controller has disconnected: discards early messages. Transfers were
 * aborted before. */
void tow_transfer_engine_clear(tow_transfer_engine_t *engine);

typedef struct tow_transfer_engine_stats {
    size_t transfer_count; /* under way */
    size_t early_count;    /* pieces and offers ahead of their grant */
    uint64_t early_bytes;
    uint64_t receive_bytes; /* of targets under way */
    /* Memory for targets, until their devices have released it, and for packed
     * pieces: now, and the most so far. Not that of blocks below
     * TOW_TRANSFER_SMALL_BYTES. */
    uint64_t memory_bytes, memory_bytes_peak;
    uint64_t late_bytes; /* of those, for targets of late transfers, now */
    uint64_t copied, sent_small, sent_large; /* pieces, in total */
    uint64_t bytes_sent;
    /* Of those, shared without a copy: in total, and now. */
    uint64_t sent_shared;
    uint64_t shared_count, shared_bytes;
    uint64_t reduced; /* tensors of collectives, in total */
} tow_transfer_engine_stats_t;
tow_transfer_engine_stats_t tow_transfer_engine_stats(
    const tow_transfer_engine_t *engine);
/* Is nothing under way, and is all borrowed and shared memory returned? A
 * device may keep a target's memory as long as the buffer lives, if it uses it
 * without a copy. */
bool tow_transfer_engine_is_quiet(const tow_transfer_engine_t *engine);
/* Verifies the invariants of all records, between turns of the env. O(all of
 * them): for tests and simulation. */
tow_status_t tow_transfer_engine_check(const tow_transfer_engine_t *engine)
    TOW_MUST_USE;

/* Is the route valid on this worker? Its boxes lie in their shards, the pieces
 * of each target shard are numbered from 0 and cover all its bytes, and its
 * devices exist. Checked once per program: the engine trusts routes. */
tow_status_t tow_route_check(const tow_route_t *route, uint32_t process,
                             size_t device_count) TOW_MUST_USE;

/* The same for a collective, whose encoding was checked when it was
 * unpacked. */
tow_status_t tow_part_check(const tow_collective_part_t *part, uint32_t process,
                            size_t device_count) TOW_MUST_USE;

#endif /* TOW_DATAFLOW_TRANSFER_H_ */
