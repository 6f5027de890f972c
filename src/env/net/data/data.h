/* The data plane of a net: lanes and regions over UCX.
 *
 * Bulk writes are split into active messages that UCX sends eagerly; the target
 * validates each and copies it into the region. UCX never holds memory of ours
 * longer than a send, so a lane can always be closed by force; see
 * docs/decisions/0003-bulk-as-fragments.md. */
#ifndef TOW_ENV_NET_DATA_H_
#define TOW_ENV_NET_DATA_H_

#include "env/net/net.h"

/* Adds the lane entries to net->ops and the data plane to the loop. `devices`
 * as in tow_net_options_t. On failure the net is unchanged. */
tow_status_t tow_net_data_create(tow_net_t *net, const char *devices)
    TOW_MUST_USE;

/* For tests: flips a bit in each of the next `count` fragments that this net
 * copies into a region. */
void tow_net_data_damage(tow_net_t *net, uint32_t count);

#endif /* TOW_ENV_NET_DATA_H_ */
