/* The digest: all events folded into 64 bits and, for comparing two runs,
 * logged line by line. */
#ifndef TOW_ENV_SIM_DIGEST_IMPL_H_
#define TOW_ENV_SIM_DIGEST_IMPL_H_

#include <stdint.h>
#include <stdio.h>

#include "base/hash.h"
#include "base/macros.h"

typedef enum tow_sim_event_kind {
    EVENT_START = 1,
    EVENT_TIMER,
    EVENT_POST,
    EVENT_CLOSED,
    EVENT_WORK,
    EVENT_ACCEPT,
    EVENT_UP,
    EVENT_MESSAGE,
    EVENT_WRITABLE,
    EVENT_DOWN,
    EVENT_DATAGRAM,
    EVENT_ARRIVED,
    EVENT_WRITTEN,
    EVENT_LANE_DOWN,
    EVENT_LANE_WRITABLE,
    EVENT_LOST,
    EVENT_CRASH,
    EVENT_RESTART,
    EVENT_PAUSE,
    EVENT_RESUME,
    EVENT_CUT,
    EVENT_HEAL,
    EVENT_PATH,
    EVENT_CALL,
    EVENT_KIND_COUNT,
} tow_sim_event_kind_t;

#define EVENT_NO_NODE UINT32_MAX

typedef struct tow_sim_event {
    int64_t time_ns;
    tow_sim_event_kind_t kind;
    uint32_t node; /* where it happened */
    uint32_t peer; /* the peer's index, or EVENT_NO_NODE */
    uint32_t type;
    uint64_t size;
    uint64_t content; /* hash of the payload, or a code */
} tow_sim_event_t;

typedef struct tow_sim_digest {
    uint64_t value;
    FILE *log; /* lent, or NULL */
} tow_sim_digest_t;

TOW_COLD void tow_sim_digest_log(const tow_sim_digest_t *digest,
                                 const tow_sim_event_t *event);

/* A folded product of two varying factors: each field affects all bits, the
 * order matters, and endianness does not. About 3 ns per event. */
static inline uint64_t tow_sim_digest_mix(uint64_t a, uint64_t b)
{
    __extension__ typedef unsigned __int128 wide_t;
    wide_t product =
        (wide_t)(a ^ 0x9e3779b97f4a7c15u) * (b ^ 0xbf58476d1ce4e5b9u);
    return (uint64_t)product ^ (uint64_t)(product >> 64);
}

static inline void tow_sim_digest_add(tow_sim_digest_t *digest,
                                      const tow_sim_event_t *event)
{
    uint64_t who = (uint64_t)event->node << 32 | event->peer;
    uint64_t what = (uint64_t)event->kind << 32 | event->type;
    /* Added, and not only multiplied: a factor of zero must not erase the
     * history. */
    uint64_t when = digest->value + (uint64_t)event->time_ns;
    uint64_t a = tow_sim_digest_mix(when, who);
    uint64_t b = tow_sim_digest_mix(
        event->size, event->content ^ what * 0x94d049bb133111ebu);
    digest->value = tow_mix64(digest->value ^ a) + b;
    if (TOW_UNLIKELY(digest->log != NULL)) tow_sim_digest_log(digest, event);
}

#endif /* TOW_ENV_SIM_DIGEST_IMPL_H_ */
