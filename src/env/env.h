/* tow_env: all that a state machine may do to the world.
 *
 * Controller, worker, scheduler, store, dataflow and client logic are single-
 * threaded state machines. They react to messages, timers and completions, and
 * they act only through this interface. It has two implementations: `net`
 * (epoll, TCP or Unix sockets, UCX) and `sim` (a virtual clock and a modelled
 * network, all from one seed). The same machine must behave in both, so what
 * follows is a contract; tests/conformance/env checks it on each of them.
 *
 * Turns. An env calls back on one thread, one callback at a time: a turn. Time
 * (tow_env_now_ns) does not move within a turn. All functions here are for that
 * thread, except tow_env_post. A completion never fires inside the call that
 * started it. Every accepted operation completes exactly once, also when it is
 * cancelled, its link breaks, or the env closes.
 *
 * Links (control plane): small messages to a named peer, in epochs. An epoch
 * begins with `up` on both sides and ends with `down`. Within an epoch
 * messages arrive in the order in which they were sent, each at most once, none
 * altered, and without a gap: what arrives is a prefix of what was sent. When
 * an epoch breaks, the rest is lost; the env sends nothing again. Protocols
 * above resend by their own sequence numbers. A side that dialled dials again,
 * with growing delay, until it closes the link.
 *
 * Lanes (data plane): datagrams and bulk writes to a peer whose lane address
 * came over a link. Datagrams are unaltered when they arrive, but they may be
 * lost, doubled, or overtake each other. A bulk write puts bytes into a region
 * that the peer has opened; see tow_lane_write. An env never decides from a
 * lane that a peer is dead: that is the control plane's business, which closes
 * the lane by force.
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
typedef struct tow_loan tow_loan_t;
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
    int64_t now_ns;      /* read it with tow_env_now_ns */
    tow_random_t random; /* read it with tow_env_random */
    tow_log_t log;
    const char *name; /* owned by the implementation: our name to peers */
};

/* Called once when something that was told to close is gone. */
typedef struct tow_closed {
    void (*run)(void *context); /* NULL: nobody cares */
    void *context;              /* lent */
} tow_closed_t;

typedef enum tow_send_result {
    TOW_SEND_OK,
    TOW_SEND_FULL, /* the bound is reached; `writable` says when to go on */
    TOW_SEND_DOWN, /* no epoch is up, or the thing is closing */
} tow_send_result_t;

/* -- Time ---------------------------------------------------------------- */

/* Nanoseconds of a clock that never goes back. Starts anywhere. */
static inline int64_t tow_env_now_ns(const tow_env_t *env)
{
    return env->now_ns;
}

/* Owned by the caller, who keeps it alive while it is armed. Zeroed memory
 * with `fire` set is a stopped timer. */
struct tow_timer {
    void (*fire)(tow_timer_t *timer);
    int64_t deadline_ns; /* set by start */
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

/* -- Foreign threads and work off the loop -------------------------------- */

/* Owned by the caller until `run`, which may free it. */
struct tow_post {
    void (*run)(tow_post_t *post);
    tow_post_t *next_; /* belongs to the env */
};

/* A piece of work off the loop: a compile, a checksum, a file. `run` touches
 * only what belongs to the work; `net` runs it on a helper thread, `sim` runs
 * it between turns and lets `cost_ns` of virtual time pass. */
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
    uint32_t type; /* below 65,536; what it means is the schema's business */
    uint32_t size;
    const uint8_t *bytes; /* lent for the callback */
} tow_message_t;

/* Who is at the other end, as the handshake proved it. */
typedef struct tow_peer {
    char name[TOW_PEER_NAME_MAX + 1];
    uint64_t incarnation; /* differs in each life of a process of that name */
    uint64_t features;    /* those that both sides have */
    uint64_t epoch;       /* counts up on each `up` of this link */
    /* At `down`: the system says that its process has ended, so it will not come
     * again. False where the system does not know. */
    bool is_dead;
} tow_peer_t;

typedef struct tow_link_handler {
    /* An epoch has begun: tow_link_peer says with whom. */
    void (*up)(void *context, tow_link_t *link);
    void (*message)(void *context, tow_link_t *link,
                    const tow_message_t *message);
    /* After TOW_SEND_FULL: at least half of the queue is free again. NULL if
     * the owner never fills it. */
    void (*writable)(void *context, tow_link_t *link);
    /* The epoch is over, or, on a dialling link, an attempt failed before it
     * began. `cause` is lent. A dialling link tries again by itself; an
     * accepted one is finished and waits to be closed. */
    void (*down)(void *context, tow_link_t *link, tow_status_t cause);
} tow_link_handler_t;

typedef enum tow_link_state {
    TOW_LINK_DIALLING, /* between epochs */
    TOW_LINK_UP,
    TOW_LINK_FINISHED, /* accepted, and its epoch is over */
    TOW_LINK_CLOSING,
} tow_link_state_t;

struct tow_link { /* first member of each implementation's struct */
    tow_env_t *env;
    const tow_link_handler_t *handler; /* lent, outlives the link */
    void *context;                     /* lent to the handler */
    tow_link_state_t state;
    tow_peer_t peer; /* of the current or last epoch */
};

typedef struct tow_connect_options {
    /* See wire/address.h: "unix:PATH", "tcp:HOST:PORT", "tls:HOST:PORT", or in
     * the simulator "sim:NAME". */
    const char *address;
    /* When set, another peer's answer is refused. */
    const char *expected_name;
    const tow_link_handler_t *handler;
    void *context;
} tow_connect_options_t;

typedef struct tow_listen_options {
    const char *address; /* as above; port 0 lets the system choose */
    /* A peer has been let in. Set the link's handler and context here, then
     * return; `up` follows in a turn of its own. To refuse, close it. */
    void (*accept)(void *context, tow_link_t *link);
    void *context;
} tow_listen_options_t;

struct tow_listener { /* first member of each implementation's struct */
    tow_env_t *env;
    const char *address; /* owned: the true one, port resolved */
};

/* -- Lanes ---------------------------------------------------------------- */

typedef struct tow_lane_options {
    const void *address; /* lent for the call: the peer's lane address */
    size_t address_size;
    const char *peer_name; /* copied, for messages */
    /* The lane broke by itself: every pending write has completed or will,
     * with an error. The owner closes it. `cause` is lent. */
    void (*down)(void *context, tow_lane_t *lane, tow_status_t cause);
    /* After TOW_SEND_FULL. May be NULL. */
    void (*writable)(void *context, tow_lane_t *lane);
    void *context;
} tow_lane_options_t;

struct tow_lane { /* first member of each implementation's struct */
    tow_env_t *env;
};

/* How a lane goes. GRACEFUL completes what is pending first; FORCE is for a
 * peer that is known to be dead: all that is pending either way fails now. What
 * it was writing into regions of ours never arrives; some of its bytes may still
 * get there until the region is closed. */
typedef enum tow_lane_close_mode {
    TOW_LANE_CLOSE_GRACEFUL,
    TOW_LANE_CLOSE_FORCE,
} tow_lane_close_mode_t;

/* Names a region to a peer. Travels over an authenticated link only: whoever
 * has it may write there. */
typedef struct tow_region_key {
    uint64_t id;
    uint64_t secret;
} tow_region_key_t;

typedef struct tow_arrival {
    uint64_t offset;
    uint64_t size;
    uint64_t tag; /* as the writer gave it */
    /* Not NULL: nothing was copied. The bytes are here, in memory of the writer,
     * to be read and not written, until tow_loan_end. */
    const void *lent;
    tow_loan_t *loan; /* of that */
} tow_arrival_t;

typedef struct tow_region_options {
    void *bytes; /* lent until the region is closed */
    size_t size;
    /* A write of the whole region may be lent instead of copied, if its writer
     * says so too. */
    bool may_borrow;
    /* A write is complete and, where asked for, its checksum was right. */
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
    TOW_WRITE_CRC32C, /* end to end; a mismatch is sent again, then refused */
} tow_write_check_t;

/* Owned by the caller, who keeps it and the bytes alive until `done`. */
struct tow_write {
    const void *bytes;
    size_t size; /* above 0 */
    tow_region_key_t key;
    uint64_t offset;
    uint64_t tag;
    tow_write_check_t check;
    /* The target uses the bytes where they are: they have arrived as far as it is
     * concerned, and `done` follows when it has let go of them, which may take as
     * long as it likes. At most once. NULL: they are always copied. */
    void (*lent)(tow_write_t *write);
    /* Out, with an error: the lane broke, and the target may be using the bytes
     * where they are for as long as it likes. They must not change, and their
     * memory is not to be used for anything else: see base/block.h. */
    bool is_adrift;
    /* TOW_OK: the bytes are in place, and `arrived` has run there or surely
     * will unless that peer dies; until it has, writing to the same place again
     * would change what it sees. An error: they may be there in part, more of
     * them may still land until that region is closed, and `arrived` may have
     * run; so whoever tries again asks for a fresh region. OUT_OF_RANGE,
     * NOT_FOUND (no such region), PERMISSION_DENIED (wrong secret), DATA_LOSS
     * (checksum), UNAVAILABLE. */
    void (*done)(tow_write_t *write, tow_status_t take_status);
    /* Belongs to the env. */
    void *private_[8];
};

/* -- The table ------------------------------------------------------------ */

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
    /* The lane entries are NULL in an env without a data plane. */
    void (*lane_address)(tow_env_t *env, const void **out_bytes,
                         size_t *out_size);
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
    /* NULL where nothing is ever lent. */
    void (*loan_end)(tow_env_t *env, tow_loan_t *loan);
    void (*close)(tow_env_t *env, tow_closed_t closed);
};

/* -- Calls ---------------------------------------------------------------- */

/* The env's own generator: seeded by the run in `sim`, by the system in
 * `net`. */
static inline tow_random_t *tow_env_random(tow_env_t *env)
{
    return &env->random;
}

/* Arms the timer, or arms it anew. A deadline that has passed fires in the
 * next turn. Timers fire in order of deadline, equal ones in order of start. */
static inline void tow_env_timer_start(tow_env_t *env, tow_timer_t *timer,
                                       int64_t deadline_ns)
{
    TOW_ASSERT(timer->fire != NULL);
    timer->deadline_ns = deadline_ns;
    env->ops->timer_start(env, timer);
}

/* Harmless on a stopped timer. */
static inline void tow_env_timer_stop(tow_env_t *env, tow_timer_t *timer)
{
    if (timer->private_.armed) env->ops->timer_stop(env, timer);
}

/* Runs `post` in a turn of its own. Any thread; never fails; in the order of
 * posting for posts from one thread. */
static inline void tow_env_post(tow_env_t *env, tow_post_t *post)
{
    TOW_ASSERT(post->run != NULL);
    env->ops->post(env, post);
}

static inline void tow_env_work_start(tow_env_t *env, tow_work_t *work)
{
    TOW_ASSERT(work->run != NULL && work->done != NULL);
    env->ops->work_start(env, work);
}

/* Work that has not begun ends with CANCELLED; work that has begun ends as it
 * would have. Either way `done` runs once, later. */
static inline void tow_env_work_cancel(tow_env_t *env, tow_work_t *work)
{
    env->ops->work_cancel(env, work);
}

static inline tow_status_t TOW_MUST_USE tow_env_listen(
    tow_env_t *env, const tow_listen_options_t *options,
    tow_listener_t **out_listener)
{
    TOW_ASSERT(options->accept != NULL);
    *out_listener = NULL;
    return env->ops->listen(env, options, out_listener);
}

/* Accepts no more. Links that were accepted live on. */
static inline void tow_listener_close(tow_listener_t *listener,
                                      tow_closed_t closed)
{
    listener->env->ops->listener_close(listener, closed);
}

/* Begins to dial. Fails only for an address that makes no sense; that nobody
 * answers is told by `down`. */
static inline tow_status_t TOW_MUST_USE tow_env_connect(
    tow_env_t *env, const tow_connect_options_t *options, tow_link_t **out_link)
{
    TOW_ASSERT(options->handler != NULL);
    *out_link = NULL;
    return env->ops->connect(env, options, out_link);
}

static inline const tow_peer_t *tow_link_peer(const tow_link_t *link)
{
    return &link->peer;
}

/* Room for a message of up to `size_max` bytes, written straight into the
 * link's queue. After TOW_SEND_OK exactly one commit follows before
 * anything else is done with the link. */
static inline tow_send_result_t TOW_MUST_USE tow_link_begin(tow_link_t *link,
                                                            uint32_t size_max,
                                                            uint8_t **out_bytes)
{
    TOW_ASSERT(size_max <= TOW_MESSAGE_SIZE_MAX);
    if (TOW_UNLIKELY(link->state != TOW_LINK_UP)) return TOW_SEND_DOWN;
    return link->env->ops->link_begin(link, size_max, out_bytes);
}

/* Queues what was written. It leaves at the end of the turn at the latest. */
static inline void tow_link_commit(tow_link_t *link, uint32_t type,
                                   uint32_t size)
{
    TOW_ASSERT(type <= UINT16_MAX);
    link->env->ops->link_commit(link, type, size);
}

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

/* No callback of the handler runs after this, only `closed`. What was queued is
 * still sent if the peer takes it soon; then the peer sees `down`. */
static inline void tow_link_close(tow_link_t *link, tow_closed_t closed)
{
    link->env->ops->link_close(link, closed);
}

static inline bool tow_env_has_lanes(const tow_env_t *env)
{
    return env->ops->lane_open != NULL;
}

/* What a peer needs to open a lane to us. Lent, lives as long as the env. */
static inline void tow_env_lane_address(tow_env_t *env, const void **out_bytes,
                                        size_t *out_size)
{
    env->ops->lane_address(env, out_bytes, out_size);
}

/* Where datagrams of all peers arrive. `channel` is a number that the two
 * sides agreed on over a link; bytes are lent for the callback. */
static inline void tow_env_datagram_handler(tow_env_t *env,
                                            void (*arrived)(void *context,
                                                            uint64_t channel,
                                                            const void *bytes,
                                                            size_t size),
                                            void *context)
{
    env->ops->datagram_handler(env, arrived, context);
}

static inline tow_status_t TOW_MUST_USE tow_env_lane_open(
    tow_env_t *env, const tow_lane_options_t *options, tow_lane_t **out_lane)
{
    *out_lane = NULL;
    return env->ops->lane_open(env, options, out_lane);
}

/* The bytes are copied before this returns. */
static inline tow_send_result_t TOW_MUST_USE tow_lane_send(tow_lane_t *lane,
                                                           uint64_t channel,
                                                           const void *bytes,
                                                           size_t size)
{
    TOW_ASSERT(size <= TOW_DATAGRAM_SIZE_MAX);
    return lane->env->ops->lane_send(lane, channel, bytes, size);
}

/* Writes into a region of the peer. After TOW_SEND_OK, `done` runs once. */
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

/* Refuses new writes at once. `closed` runs when no write is under way any
 * more: only then may the memory go. */
static inline void tow_region_close(tow_region_t *region, tow_closed_t closed)
{
    region->env->ops->region_close(region, closed);
}

/* May writes of processes of this host be lent at all? */
static inline bool tow_env_can_lend(const tow_env_t *env)
{
    return env->ops->loan_end != NULL;
}

/* The bytes of an arrival are needed no more. */
static inline void tow_loan_end(tow_env_t *env, tow_loan_t *take_loan)
{
    env->ops->loan_end(env, take_loan);
}

/* Closes all that is open, by force where it must, then calls `closed`. What was
 * lent to us must have been given back, or will be: it waits for that. */
static inline void tow_env_close(tow_env_t *env, tow_closed_t closed)
{
    env->ops->close(env, closed);
}

#endif /* TOW_ENV_ENV_H_ */
