/* tow_env: the interface through which a state machine does I/O.
 *
 * The controller, worker, scheduler, store, dataflow and client are single-
 * threaded state machines. They react to messages, timers and completions, and
 * act only through this interface, which has two implementations: `net` (epoll,
 * TCP or Unix sockets, UCX) and `sim` (a virtual clock and a modelled network,
 * driven by one seed). A state machine must work unchanged on either, so this
 * header is a contract; tests/conformance/env checks both against it.
 *
 * Turns. An env runs callbacks on one thread, one at a time. One callback is a
 * turn. The clock (tow_env_now_ns) stands still during a turn. Every function
 * here must be called on that thread, except tow_env_post.
 *
 * Completions. A completion never runs inside the call that started its
 * operation. Every accepted operation completes exactly once, including when it
 * is cancelled, its link or lane breaks, or the env closes.
 *
 * Links carry the control plane: small messages to a named peer, in epochs. An
 * epoch starts with `up` on both sides and ends with `down`. Within an epoch,
 * the messages received are a prefix of the messages sent: in order, unaltered,
 * without gaps or duplicates. When an epoch breaks, the remaining messages are
 * lost; the env retransmits nothing, and protocols above it resend by their own
 * sequence numbers. The dialling side redials with exponential backoff until it
 * closes the link.
 *
 * Lanes carry the data plane: datagrams and bulk writes to a peer whose lane
 * address arrived over a link. A peer that does not listen cannot be dialled:
 * it must prepare for our lane (tow_env_lane_prepare). A datagram arrives unaltered or not at all, and
 * may be duplicated or reordered. A bulk write copies bytes into a region that
 * the peer opened, or shares them without a copy; see tow_lane_write. The env
 * does not infer from a lane that a peer is dead: the control plane decides
 * that, and closes the lane by force.
 *
 * Back-pressure is an ordinary result (tow_send_result_t), not an error. */
#ifndef TOW_ENV_ENV_H_
#define TOW_ENV_ENV_H_

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "base/assert.h"
#include "base/log.h"
#include "base/macros.h"
#include "base/random.h"
#include "base/status.h"

typedef struct tow_env tow_env_t;
typedef struct tow_env_ops tow_env_ops_t;
typedef struct tow_link tow_link_t;
typedef struct tow_listener tow_listener_t;
typedef struct tow_lane tow_lane_t;
typedef struct tow_region tow_region_t;
typedef struct tow_share tow_share_t;
typedef struct tow_timer tow_timer_t;
typedef struct tow_post tow_post_t;
typedef struct tow_work tow_work_t;
typedef struct tow_write tow_write_t;

#define TOW_MESSAGE_SIZE_MAX  (4u << 20) /* one message on a link */
#define TOW_DATAGRAM_SIZE_MAX 4096u      /* one datagram on a lane */
#define TOW_PEER_NAME_MAX     63         /* bytes, without the final NUL */
#define TOW_TIME_NEVER        INT64_MAX

struct tow_env {
    const tow_env_ops_t *ops;
    int64_t now_ns;      /* read with tow_env_now_ns */
    tow_random_t random; /* use through tow_env_random */
    tow_log_t log;
    const char *name; /* owned by the implementation; peers see this name */
};

/* Runs once, in a turn of its own, when a close has completed. */
typedef struct tow_closed {
    void (*run)(void *context); /* NULL: no notification */
    void *context;              /* lent */
} tow_closed_t;

typedef enum tow_send_result {
    TOW_SEND_OK,
    TOW_SEND_FULL, /* the queue is full; retry after `writable` */
    TOW_SEND_DOWN, /* no epoch is up, or the link or lane is closing */
} tow_send_result_t;

/* -- Time ----------------------------------------------------------------- */

/* A monotonic clock in nanoseconds; its zero is arbitrary. */
static inline int64_t tow_env_now_ns(const tow_env_t *env)
{
    return env->now_ns;
}

/* Owned by the caller, who keeps it alive while it is armed. Zeroed memory with
 * `fire` set is a stopped timer. */
struct tow_timer {
    void (*fire)(tow_timer_t *timer);
    int64_t deadline_ns; /* set by tow_env_timer_start */
    /* Belongs to the env. */
    struct {
        tow_timer_t *child;
        tow_timer_t *next;
        tow_timer_t *previous;
        uint64_t sequence;
        bool armed;
    } private_;
};

static inline bool tow_timer_is_armed(const tow_timer_t *timer)
{
    return timer->private_.armed;
}

/* -- Posts from other threads, work on helper threads --------------------- */

/* Owned by the env from tow_env_post until `run`, which may free it. */
struct tow_post {
    void (*run)(tow_post_t *post);
    tow_post_t *next_; /* belongs to the env */
};

/* A job that would block the loop: a compilation, a checksum, file I/O. `run`
 * may touch only memory that belongs to the job. `net` calls it on a helper
 * thread; `sim` calls it between turns and charges `cost_ns` of virtual time.
 * `done` runs on the loop. */
struct tow_work {
    tow_status_t (*run)(tow_work_t *work);
    void (*done)(tow_work_t *work, tow_status_t take_status);
    int64_t cost_ns;
    /* Belongs to the env. */
    tow_env_t *env_;
    tow_post_t post_;
    tow_work_t *next_;
    tow_work_t *previous_;
    tow_status_t status_;
    int state_;
};

/* -- Links ---------------------------------------------------------------- */

typedef struct tow_message {
    uint32_t type; /* below 65,536; the schema (src/wire) gives it meaning */
    uint32_t size;
    const uint8_t *bytes; /* lent for the callback */
} tow_message_t;

/* The other end of a link, as authenticated by the handshake. */
typedef struct tow_peer {
    char name[TOW_PEER_NAME_MAX + 1];
    uint64_t incarnation; /* differs between processes of the same name */
    uint64_t features;    /* supported by both sides */
    uint64_t epoch;       /* incremented on each `up` of this link */
    /* Valid in `down`: the operating system reports that the peer's process has
     * exited, so it will not reconnect. False when that is unknown. */
    bool is_dead;
} tow_peer_t;

typedef struct tow_link_handler {
    /* An epoch has started; tow_link_peer identifies the peer. */
    void (*up)(void *context, tow_link_t *link);
    void (*message)(void *context, tow_link_t *link,
                    const tow_message_t *message);
    /* After TOW_SEND_FULL, when at least half of the queue is free. May be NULL
     * if the owner never fills the queue. */
    void (*writable)(void *context, tow_link_t *link);
    /* The epoch has ended, or a dial attempt failed. `cause` is lent. A
     * dialling link redials by itself; an accepted link is FINISHED and must be
     * closed by its owner. */
    void (*down)(void *context, tow_link_t *link, tow_status_t cause);
} tow_link_handler_t;

typedef enum tow_link_state {
    TOW_LINK_DIALLING, /* between epochs */
    TOW_LINK_UP,
    TOW_LINK_FINISHED, /* an accepted link whose epoch has ended */
    TOW_LINK_CLOSING,
} tow_link_state_t;

struct tow_link { /* first member of each implementation's struct */
    tow_env_t *env;
    const tow_link_handler_t *handler; /* lent, outlives the link */
    void *context;                     /* lent to the handler */
    tow_link_state_t state;
    tow_peer_t peer; /* in the current or the last epoch */
};

typedef struct tow_connect_options {
    /* See wire/address.h: "unix:PATH", "tcp:HOST:PORT", "tls:HOST:PORT", or in
     * the simulator "sim:NAME". */
    const char *address;
    /* If not NULL, the handshake with a peer of any other name fails. */
    const char *expected_name;
    /* The address came over an authenticated link, not from a user. The peer's
     * certificate then need not name its host: the token authenticates it. */
    bool is_announced;
    const tow_link_handler_t *handler;
    void *context;
} tow_connect_options_t;

typedef struct tow_listen_options {
    const char *address; /* as above; with port 0 the system chooses one */
    /* Peers may also dial here to carry their lanes and ours. The address
     * becomes part of our lane address. */
    bool carries_lanes;
    /* An authenticated peer has connected. The callback sets the link's handler
     * and context; `up` follows in a turn of its own. To reject the peer, close
     * the link instead. */
    void (*accept)(void *context, tow_link_t *link);
    void *context;
} tow_listen_options_t;

struct tow_listener { /* first member of each implementation's struct */
    tow_env_t *env;
    const char *address; /* owned; with the port that was bound */
};

/* -- Lanes ---------------------------------------------------------------- */

typedef struct tow_lane_options {
    const void *address; /* lent for the call: the peer's lane address */
    size_t address_size;
    const char *peer_name; /* copied; used in error messages */
    /* The lane failed. Every pending write has completed or will complete with
     * an error. The owner must close the lane. `cause` is lent. */
    void (*down)(void *context, tow_lane_t *lane, tow_status_t cause);
    /* After TOW_SEND_FULL. May be NULL. */
    void (*writable)(void *context, tow_lane_t *lane);
    void *context;
} tow_lane_options_t;

struct tow_lane { /* first member of each implementation's struct */
    tow_env_t *env;
};

typedef enum tow_lane_close_mode {
    /* Completes pending operations first. */
    TOW_LANE_CLOSE_GRACEFUL,
    /* For a peer known to be dead: pending operations fail now, in both
     * directions. `arrived` does not run for writes of that peer that were in
     * progress; some of their bytes may still be written into our regions until
     * those are closed. */
    TOW_LANE_CLOSE_FORCE,
} tow_lane_close_mode_t;

/* Identifies a region to a peer and grants write access to it: a capability,
 * which must only be sent over an authenticated link. */
typedef struct tow_region_key {
    uint64_t id;
    uint64_t secret;
} tow_region_key_t;

typedef struct tow_arrival {
    uint64_t offset;
    uint64_t size;
    uint64_t tag; /* chosen by the writer */
    /* Not NULL: a zero-copy write. The region is unchanged and the bytes are
     * here, read-only, in the writer's memory, until the receiver releases
     * `share`. */
    const void *shared;
    tow_share_t *share; /* owned by the receiver; NULL exactly if not shared */
} tow_arrival_t;

typedef struct tow_region_options {
    void *bytes; /* lent until the region is closed */
    size_t size;
    /* A write that covers the whole region may be shared instead of copied, if
     * its writer allows that too (tow_write_t). */
    bool may_share;
    /* A write has completed and its checksum, if requested, matches. */
    void (*arrived)(void *context, tow_region_t *region,
                    const tow_arrival_t *arrival);
    void *context;
} tow_region_options_t;

struct tow_region { /* first member of each implementation's struct */
    tow_env_t *env;
    tow_region_key_t key;
};

typedef enum tow_write_check {
    TOW_WRITE_UNCHECKED,
    TOW_WRITE_CRC32C, /* end to end; resent on mismatch, then DATA_LOSS */
} tow_write_check_t;

/* A bulk write. Owned by the caller, who keeps it and its bytes alive and
 * unchanged until `done`. Writes to the same bytes, pending at the same time,
 * leave either's bytes; a checked one may then fail with DATA_LOSS. */
struct tow_write {
    const void *bytes;
    size_t size; /* above 0 */
    tow_region_key_t key;
    uint64_t offset;
    uint64_t tag;
    tow_write_check_t check;
    /* Allows zero-copy sharing; NULL: the bytes are always copied. Runs at most
     * once, when the target has received the write and reads the bytes in our
     * memory. `done` follows when the target releases them, which may be at any
     * later time. */
    void (*shared)(tow_write_t *write);
    /* Out, valid in `done` with an error: the lane broke and the target may
     * read the bytes for an unlimited time. The caller must neither change them
     * nor reuse their memory; see base/block.h. */
    bool is_stranded;
    /* TOW_OK: the bytes are in place, and `arrived` has run at the target or
     * will run unless the target dies; until then, another write to the same
     * place may change what the target sees. On an error, some of the bytes may
     * be in place, more may follow until that region is closed, and `arrived`
     * may have run; so a retry needs a new region. Codes: OUT_OF_RANGE,
     * NOT_FOUND (no such region), PERMISSION_DENIED (wrong secret), DATA_LOSS
     * (checksum), UNAVAILABLE (the lane broke). */
    void (*done)(tow_write_t *write, tow_status_t take_status);
    /* Belongs to the env. */
    void *private_[8];
};

/* -- What an implementation provides -------------------------------------- */

/* Callers use the functions below, which check arguments, never the table. */
struct tow_env_ops {
    const char *name; /* "net" or "sim" */
    void (*timer_start)(tow_env_t *env, tow_timer_t *timer);
    void (*timer_stop)(tow_env_t *env, tow_timer_t *timer);
    void (*post)(tow_env_t *env, tow_post_t *post);
    void (*work_start)(tow_env_t *env, tow_work_t *work);
    void (*work_cancel)(tow_env_t *env, tow_work_t *work);
    tow_status_t (*listen)(tow_env_t *env, const tow_listen_options_t *options,
                           tow_listener_t **out_listener);
    void (*listener_close)(tow_listener_t *listener, tow_closed_t closed);
    tow_status_t (*connect)(tow_env_t *env,
                            const tow_connect_options_t *options,
                            tow_link_t **out_link);
    tow_send_result_t (*link_begin)(tow_link_t *link, uint32_t size_max,
                                    uint8_t **out_bytes);
    void (*link_commit)(tow_link_t *link, uint32_t type, uint32_t size);
    void (*link_close)(tow_link_t *link, tow_closed_t closed);
    /* Lane and region entries are NULL in an env without a data plane. */
    void (*lane_address)(tow_env_t *env, const void **out_bytes,
                         size_t *out_size);
    /* NULL in an env whose peers can all be dialled. */
    void (*lane_prepare)(tow_env_t *env, const void *address, size_t size);
    void (*datagram_handler)(tow_env_t *env,
                             void (*arrived)(void *context, uint64_t channel,
                                             const void *bytes, size_t size),
                             void *context);
    tow_status_t (*lane_open)(tow_env_t *env, const tow_lane_options_t *options,
                              tow_lane_t **out_lane);
    tow_send_result_t (*lane_send)(tow_lane_t *lane, uint64_t channel,
                                   const void *bytes, size_t size);
    tow_send_result_t (*lane_write)(tow_lane_t *lane, tow_write_t *write);
    void (*lane_close)(tow_lane_t *lane, tow_lane_close_mode_t mode,
                       tow_closed_t closed);
    tow_status_t (*region_open)(tow_env_t *env,
                                const tow_region_options_t *options,
                                tow_region_t **out_region);
    void (*region_close)(tow_region_t *region, tow_closed_t closed);
    /* NULL in an env that always copies. */
    void (*share_release)(tow_env_t *env, tow_share_t *share);
    void (*close)(tow_env_t *env, tow_closed_t closed);
};

/* -- Random numbers, timers, posts, work ---------------------------------- */

/* The env's generator: seeded from the run's seed in `sim`, by the operating
 * system in `net`. */
static inline tow_random_t *tow_env_random(tow_env_t *env)
{
    return &env->random;
}

/* Arms the timer, or moves the deadline of an armed one. A timer whose deadline
 * has passed fires in the next turn. Timers fire in order of their deadlines;
 * equal deadlines, in order of start. */
static inline void tow_env_timer_start(tow_env_t *env, tow_timer_t *timer,
                                       int64_t deadline_ns)
{
    TOW_ASSERT(timer->fire != NULL);
    timer->deadline_ns = deadline_ns;
    env->ops->timer_start(env, timer);
}

/* Does nothing to a stopped timer. */
static inline void tow_env_timer_stop(tow_env_t *env, tow_timer_t *timer)
{
    if (timer->private_.armed) env->ops->timer_stop(env, timer);
}

/* Runs `post` in a turn of its own. May be called on any thread and cannot
 * fail. Posts of one thread run in the order in which it posted them. */
static inline void tow_env_post(tow_env_t *env, tow_post_t *post)
{
    TOW_ASSERT(post->run != NULL);
    env->ops->post(env, post);
}

/* Queues the job for a helper thread; `done` runs once. */
static inline void tow_env_work_start(tow_env_t *env, tow_work_t *work)
{
    TOW_ASSERT(work->run != NULL && work->done != NULL);
    env->ops->work_start(env, work);
}

/* A job that has not started ends with CANCELLED; one that has started runs to
 * its end. In both cases `done` runs once, later. */
static inline void tow_env_work_cancel(tow_env_t *env, tow_work_t *work)
{
    env->ops->work_cancel(env, work);
}

/* -- Links ---------------------------------------------------------------- */

/* ALREADY_EXISTS if the address is in use, INVALID_ARGUMENT if it is
 * malformed. */
static inline tow_status_t TOW_MUST_USE tow_env_listen(
    tow_env_t *env, const tow_listen_options_t *options,
    tow_listener_t **out_listener)
{
    TOW_ASSERT(options->accept != NULL);
    *out_listener = NULL;
    return env->ops->listen(env, options, out_listener);
}

/* Stops accepting. Links that were accepted stay open. */
static inline void tow_listener_close(tow_listener_t *listener,
                                      tow_closed_t closed)
{
    listener->env->ops->listener_close(listener, closed);
}

/* Starts dialling. Fails only for an invalid address; an unreachable peer is
 * reported by `down`. */
static inline tow_status_t TOW_MUST_USE tow_env_connect(
    tow_env_t *env, const tow_connect_options_t *options, tow_link_t **out_link)
{
    TOW_ASSERT(options->handler != NULL);
    *out_link = NULL;
    return env->ops->connect(env, options, out_link);
}

/* The peer of the current or the last epoch. Lent, lives as long as the
 * link. */
static inline const tow_peer_t *tow_link_peer(const tow_link_t *link)
{
    return &link->peer;
}

/* Reserves `size_max` bytes in the link's send queue, for the caller to encode
 * a message in place. After TOW_SEND_OK the caller must call tow_link_commit
 * once before any other function of this link. */
static inline tow_send_result_t TOW_MUST_USE tow_link_begin(tow_link_t *link,
                                                            uint32_t size_max,
                                                            uint8_t **out_bytes)
{
    TOW_ASSERT(size_max <= TOW_MESSAGE_SIZE_MAX);
    if (TOW_UNLIKELY(link->state != TOW_LINK_UP)) return TOW_SEND_DOWN;
    return link->env->ops->link_begin(link, size_max, out_bytes);
}

/* Queues the message in the reserved bytes; `size` is at most the reservation.
 * It is sent at the end of the turn at the latest. */
static inline void tow_link_commit(tow_link_t *link, uint32_t type,
                                   uint32_t size)
{
    TOW_ASSERT(type <= UINT16_MAX);
    link->env->ops->link_commit(link, type, size);
}

/* Queues a copy of a message. */
static inline tow_send_result_t TOW_MUST_USE tow_link_send(tow_link_t *link,
                                                           uint32_t type,
                                                           const void *bytes,
                                                           uint32_t size)
{
    uint8_t *room = NULL;
    tow_send_result_t result = tow_link_begin(link, size, &room);
    if (result != TOW_SEND_OK) return result;
    if (size > 0) memcpy(room, bytes, size);
    tow_link_commit(link, type, size);
    return TOW_SEND_OK;
}

/* No callback of the handler runs after this call, only `closed`. Queued
 * messages are still sent if the peer receives them soon (TOW_NET_LINGER_NS);
 * then the peer sees `down`. */
static inline void tow_link_close(tow_link_t *link, tow_closed_t closed)
{
    link->env->ops->link_close(link, closed);
}

/* -- Lanes and regions ---------------------------------------------------- */

/* Whether this env has a data plane. */
static inline bool tow_env_has_lanes(const tow_env_t *env)
{
    return env->ops->lane_open != NULL;
}

/* The bytes that a peer needs to open a lane to this env. Lent, live as long as
 * the env. */
static inline void tow_env_lane_address(tow_env_t *env, const void **out_bytes,
                                        size_t *out_size)
{
    env->ops->lane_address(env, out_bytes, out_size);
}

/* Whether a peer that has our lane address can open a lane to us. If not, we
 * must have prepared for it. */
static inline bool tow_env_lanes_need_preparation(const tow_env_t *env)
{
    return env->ops->lane_prepare != NULL;
}

/* The peer with this lane address is about to open a lane to us: dials it if it
 * cannot dial us. Bytes that are no lane address are ignored; if the peer
 * cannot be reached, its lane fails. */
static inline void tow_env_lane_prepare(tow_env_t *env, const void *address,
                                        size_t size)
{
    if (env->ops->lane_prepare != NULL)
        env->ops->lane_prepare(env, address, size);
}

/* Sets the handler for the datagrams of all peers. `channel` is a number that
 * the two sides have agreed on over a link; `bytes` is lent for the
 * callback. */
static inline void tow_env_datagram_handler(tow_env_t *env,
                                            void (*arrived)(void *context,
                                                            uint64_t channel,
                                                            const void *bytes,
                                                            size_t size),
                                            void *context)
{
    env->ops->datagram_handler(env, arrived, context);
}

/* INVALID_ARGUMENT for a malformed lane address. */
static inline tow_status_t TOW_MUST_USE tow_env_lane_open(
    tow_env_t *env, const tow_lane_options_t *options, tow_lane_t **out_lane)
{
    *out_lane = NULL;
    return env->ops->lane_open(env, options, out_lane);
}

/* Sends a datagram. The bytes are copied before the call returns. */
static inline tow_send_result_t TOW_MUST_USE tow_lane_send(tow_lane_t *lane,
                                                           uint64_t channel,
                                                           const void *bytes,
                                                           size_t size)
{
    TOW_ASSERT(size <= TOW_DATAGRAM_SIZE_MAX);
    return lane->env->ops->lane_send(lane, channel, bytes, size);
}

/* Starts a bulk write into a region of the peer. After TOW_SEND_OK, `done` runs
 * once; after any other result, it does not. */
static inline tow_send_result_t TOW_MUST_USE tow_lane_write(tow_lane_t *lane,
                                                            tow_write_t *write)
{
    TOW_ASSERT(write->done != NULL && write->size > 0);
    return lane->env->ops->lane_write(lane, write);
}

static inline void tow_lane_close(tow_lane_t *lane, tow_lane_close_mode_t mode,
                                  tow_closed_t closed)
{
    lane->env->ops->lane_close(lane, mode, closed);
}

/* Lets peers that hold the region's key write into options->bytes. */
static inline tow_status_t TOW_MUST_USE tow_env_region_open(
    tow_env_t *env, const tow_region_options_t *options,
    tow_region_t **out_region)
{
    TOW_ASSERT(options->size > 0);
    *out_region = NULL;
    return env->ops->region_open(env, options, out_region);
}

static inline tow_region_key_t tow_region_key(const tow_region_t *region)
{
    return region->key;
}

/* Rejects new writes from now on. `closed` runs when no write is in progress;
 * the caller may free or reuse the memory only then. */
static inline void tow_region_close(tow_region_t *region, tow_closed_t closed)
{
    region->env->ops->region_close(region, closed);
}

/* Whether this env can share the memory of writers on this host. */
static inline bool tow_env_can_share(const tow_env_t *env)
{
    return env->ops->share_release != NULL;
}

/* Releases the shared bytes of an arrival; the writer's `done` follows. */
static inline void tow_share_release(tow_env_t *env, tow_share_t *take_share)
{
    env->ops->share_release(env, take_share);
}

/* -- Closing the env ------------------------------------------------------ */

/* Closes everything that is open, lanes by force, then runs `closed`. Waits for
 * the owner to release every share it still holds. */
static inline void tow_env_close(tow_env_t *env, tow_closed_t closed)
{
    env->ops->close(env, closed);
}

#endif /* TOW_ENV_ENV_H_ */
