/* The data plane of a net: lanes and regions over UCX on one host, over trunks
 * between hosts.
 *
 * Bulk writes are split into messages; the target validates each and places its
 * bytes in the region. UCX never holds memory of ours
 * longer than a send, so a lane can always be closed by force; see
 * docs/decisions/0003-bulk-as-fragments.md. */
#ifndef TOW_ENV_NET_DATA_H_
#define TOW_ENV_NET_DATA_H_

#include "env/net/net.h"

/* Adds the lane entries to net->ops and the data plane to the loop. On failure
 * the net is unchanged. */
tow_status_t tow_net_data_create(tow_net_t *net,
                                 const tow_net_options_t *options) TOW_MUST_USE;
/* Peers may dial `address` to carry lanes: it becomes part of ours. */
tow_status_t tow_net_data_listens(tow_net_t *net, const char *address)
    TOW_MUST_USE;

/* For tests: flips a bit in each of the next `count` fragments that this net
 * copies into a region. */
void tow_net_data_damage(tow_net_t *net, uint32_t count);
/* For tests of hostile peers: sends raw bytes on the trunk of this lane. False
 * if it has none that is up. */
bool tow_net_data_inject(tow_lane_t *lane, const void *bytes, size_t size);
/* For the same: on a subflow of that trunk. `may_stripe` opens them when it is
 * called first, and says whether one can be used. */
bool tow_net_data_may_stripe(tow_lane_t *lane);
bool tow_net_data_inject_striped(tow_lane_t *lane, const void *bytes,
                                 size_t size);
/* Whether the peer has answered, and the number of the lane's stream. */
bool tow_net_data_is_answered(const tow_lane_t *lane, uint64_t *out_stream);

#endif /* TOW_ENV_NET_DATA_H_ */
