/* Constants of the simulator. Those shared with `net` are in env/tuning.h. */
#ifndef TOW_ENV_SIM_TUNING_H_
#define TOW_ENV_SIM_TUNING_H_

#include "env/tuning.h"

/* -- Bounds --------------------------------------------------------------- */

#define TOW_SIM_NODE_COUNT_MAX (1u << 20)
#define TOW_SIM_HOST_COUNT_MAX (1u << 20)
/* Partitions in force at once. Each is checked when a channel is created. */
#define TOW_SIM_CUT_COUNT_MAX 64
/* The maximal virtual time: 146 years. Later events happen then, and the run
 * ends. The sum of two times never overflows. */
#define TOW_SIM_TIME_MAX (INT64_MAX / 2)
/* The maximal latency, timeout or cost in options: a year. */
#define TOW_SIM_DELAY_MAX_NS (365 * 86400 * TOW_NS_PER_S)

/* -- Model ---------------------------------------------------------------- */

/* How long silence lasts until a side gives up, unless tow_sim_timeouts_t says
 * otherwise: TCP's setting in `net` (TOW_NET_USER_TIMEOUT_MS), UCX's default,
 * and TOW_NET_HANDSHAKE_NS. */
#define TOW_SIM_LINK_TIMEOUT_NS (20 * TOW_NS_PER_S)
#define TOW_SIM_LANE_TIMEOUT_NS (20 * TOW_NS_PER_S)
#define TOW_SIM_DIAL_TIMEOUT_NS (5 * TOW_NS_PER_S)
/* The two sides of a silent link give up at different times: up to this
 * fraction of the timeout later. */
#define TOW_SIM_TIMEOUT_SPREAD 8
/* An address that no node has: the time a name server takes to reply. */
#define TOW_SIM_UNKNOWN_NAME_NS (1 * TOW_NS_PER_MS)
/* A listener sees a dial after one trip, and has authenticated and accepted the
 * peer four trips later (see wire/handshake.h). */
#define TOW_SIM_HANDSHAKE_ROUND_TRIPS 2
/* TCP's minimal retransmission timeout on Linux: the delay of a lost fragment
 * of a bulk write, and the retry interval of a blocked one. */
#define TOW_SIM_RETRANSMIT_NS (200 * TOW_NS_PER_MS)
/* Consecutive losses of one fragment until its lane breaks: TCP's default
 * number of retries. */
#define TOW_SIM_RETRANSMIT_COUNT_MAX 15
/* The delay of a reordered datagram, unless the path sets it. */
#define TOW_SIM_REORDER_NS (100 * TOW_NS_PER_US)
/* Credit for consumed bytes is sent back when it amounts to this fraction of
 * the link's bound: 8 acknowledgements per bound's worth of messages. */
#define TOW_SIM_CREDIT_SHARE 8

/* Bulk writes occupy the path in pieces of this size, so that messages can go
 * in between: 21 us of a 100 Gbit/s path. Smaller pieces mean more events. */
#define TOW_SIM_FRAGMENT_BYTES (256u << 10)
/* Writes with a wrong checksum are resent this many times, then rejected. */
#define TOW_SIM_WRITE_RETRY_COUNT_MAX 3
/* Datagram bytes of one lane that may be in flight, and the overhead of each on
 * the path. */
#define TOW_SIM_LANE_BYTES_MAX        (1u << 20)
#define TOW_SIM_DATAGRAM_HEADER_BYTES 16u
/* Writes of one lane that have not completed. They cost a transfer each, not
 * their bytes. */
#define TOW_SIM_LANE_WRITE_COUNT_MAX 1024

/* -- Memory --------------------------------------------------------------- */

/* Payloads up to this size are inside the pooled event; larger ones are
 * allocated. Most control messages are smaller. */
#define TOW_SIM_INLINE_BYTES 64

#endif /* TOW_ENV_SIM_TUNING_H_ */
