/* The simulator's own numbers. Those that `net` shares are in env/tuning.h. */
#ifndef TOW_ENV_SIM_TUNING_H_
#define TOW_ENV_SIM_TUNING_H_

#include "env/tuning.h"

/* -- Bounds --------------------------------------------------------------- */

#define TOW_SIM_NODE_COUNT_MAX (1u << 20)
#define TOW_SIM_HOST_COUNT_MAX (1u << 20)
/* Partitions in force at once. Each is looked at when a channel is made. */
#define TOW_SIM_CUT_COUNT_MAX 64
/* How old a world may get: 146 years. What would be later happens then, and
 * the run ends. Sums of two times never overflow. */
#define TOW_SIM_TIME_MAX (INT64_MAX / 2)
/* The longest latency, patience or cost that options may ask for: a year. */
#define TOW_SIM_DELAY_MAX_NS (365 * 86400 * TOW_NS_PER_S)

/* -- Model ---------------------------------------------------------------- */

/* How long silence lasts until a side gives up, unless tow_sim_patience_t says
 * otherwise: what TCP in `net` is told (TOW_NET_USER_TIMEOUT_MS), what UCX
 * takes by default, and TOW_NET_HANDSHAKE_NS. */
#define TOW_SIM_LINK_PATIENCE_NS (20 * TOW_NS_PER_S)
#define TOW_SIM_LANE_PATIENCE_NS (20 * TOW_NS_PER_S)
#define TOW_SIM_DIAL_PATIENCE_NS (5 * TOW_NS_PER_S)
/* The two sides of a silent link give up at different times: up to this share
 * of the patience later. */
#define TOW_SIM_PATIENCE_SPREAD 8
/* An address that no node has: as long as a name server takes to say so. */
#define TOW_SIM_UNKNOWN_NAME_NS (1 * TOW_NS_PER_MS)
/* A listener hears of a dial after one trip; it has been shown the token, and
 * has let the peer in, four trips later (see wire/handshake.h). */
#define TOW_SIM_HANDSHAKE_ROUND_TRIPS 2
/* TCP's least retransmission timeout on Linux: what a lost fragment of a bulk
 * write costs, and how often a blocked one is tried. */
#define TOW_SIM_RETRANSMIT_NS (200 * TOW_NS_PER_MS)
/* Losses of one fragment in a row until its lane is given up: TCP's default
 * number of retries. */
#define TOW_SIM_RETRANSMIT_COUNT_MAX 15
/* How far a datagram is put back, unless the path says so. */
#define TOW_SIM_REORDER_NS (100 * TOW_NS_PER_US)
/* Credit for bytes taken goes back to the sender when this share of the link's
 * bound has gathered: 8 acknowledgements for a bound's worth of messages. */
#define TOW_SIM_CREDIT_SHARE 8

/* A bulk write takes the path in pieces of this size, so that messages can go
 * between them: 21 us of a 100 Gbit/s path. Smaller is more events. */
#define TOW_SIM_FRAGMENT_BYTES (256u << 10)
/* Writes whose checksum was wrong are sent again this often, then refused. */
#define TOW_SIM_WRITE_RETRY_COUNT_MAX 3
/* Datagram bytes of one lane that may be on their way, and what each adds to
 * its payload on the path. */
#define TOW_SIM_LANE_BYTES_MAX        (1u << 20)
#define TOW_SIM_DATAGRAM_HEADER_BYTES 16u
/* Writes of one lane that have not completed. They cost a transfer each, not
 * their bytes. */
#define TOW_SIM_LANE_WRITE_COUNT_MAX 1024

/* -- Memory --------------------------------------------------------------- */

/* Payloads up to this size lie inside the pooled event; larger ones take a
 * trip to the heap. Most control messages are smaller. */
#define TOW_SIM_INLINE_BYTES 64

#endif /* TOW_ENV_SIM_TUNING_H_ */
