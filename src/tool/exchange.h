/* The exchange: the smallest protocol that uses everything an env offers. It is
 * what `make run` shows and what `tow sim` searches for faults, with the same
 * code in both worlds.
 *
 * A node listens, dials others, or both. To each node that it dials it sends a
 * stream of numbered messages, resending after a break by its own sequence
 * numbers, then writes blocks of bulk data into a region that the other side
 * offers. The receiver checks every byte. What must hold:
 *
 *   - a stream is taken exactly once and in order by each life of a receiver;
 *   - every block that a receiver confirms is the block that was written;
 *   - when faults end, every stream finishes.
 */
#ifndef TOW_TOOL_EXCHANGE_H_
#define TOW_TOOL_EXCHANGE_H_

#include <stdint.h>

#include "base/status.h"
#include "env/env.h"

typedef struct tow_exchange tow_exchange_t;

#define TOW_EXCHANGE_PAYLOAD_SIZE_MAX 65536u

typedef struct tow_exchange_options {
    const char *listen_address;        /* NULL: does not listen */
    const char *const *dial_addresses; /* lent for the call */
    size_t dial_count;
    uint64_t message_count; /* to each node that is dialled */
    uint32_t payload_size;  /* 16 to TOW_EXCHANGE_PAYLOAD_SIZE_MAX */
    uint64_t block_count;   /* bulk writes to each; 0 without a data plane */
    size_t block_size;      /* 16 at least */
    /* All streams to dialled nodes are done. */
    void (*finished)(void *context);
    /* A node that was listened to has left for good. May be NULL. */
    void (*peer_left)(void *context);
    void *context;
} tow_exchange_options_t;

typedef struct tow_exchange_stats {
    uint64_t messages_sent; /* first sendings */
    uint64_t messages_resent;
    uint64_t messages_taken; /* in order, checked */
    uint64_t duplicates_dropped;
    uint64_t blocks_written; /* confirmed by the receiver */
    uint64_t blocks_repeated;
    uint64_t blocks_taken;
    uint64_t epochs;
    uint64_t breaks;
} tow_exchange_stats_t;

tow_status_t tow_exchange_create(tow_env_t *env,
                                 const tow_exchange_options_t *options,
                                 tow_exchange_t **out_exchange) TOW_MUST_USE;
/* Frees the machine without touching the env: for a process that has crashed,
 * or after tow_env_close has completed. */
void tow_exchange_destroy(tow_exchange_t *exchange);

/* Where it listens; NULL when it does not. */
const char *tow_exchange_address(const tow_exchange_t *exchange);
const tow_exchange_stats_t *tow_exchange_stats(const tow_exchange_t *exchange);
/* As the options gave it. */
void *tow_exchange_context(const tow_exchange_t *exchange);
bool tow_exchange_is_finished(const tow_exchange_t *exchange);

/* The first promise that was found broken, or TOW_OK. Lent. */
tow_status_t tow_exchange_violation(const tow_exchange_t *exchange);

/* Compares what the machine believes with itself; TOW_OK, or what is wrong.
 * Cheap: the simulator calls it after every event. */
tow_status_t tow_exchange_check(const tow_exchange_t *exchange) TOW_MUST_USE;

#endif /* TOW_TOOL_EXCHANGE_H_ */
