/* Whether a peer is on this host: established by reading a random number that
 * it put into its shared memory, not inferred from names or ids, which
 * containers share.
 *
 * A data plane keeps a beacon, a segment of System V shared memory with a
 * random number. Its lane address has the segment's id and the number. A
 * process that reads that number in that segment, and can send to the socket
 * that is named after the node, can use everything that lanes on one host need:
 * System V shared memory (UCX and rings) and Unix sockets in one network
 * namespace (wakeups, cross-process reads). The segment must belong to our own
 * user, so that the peer can read ours as well. */
#ifndef TOW_ENV_NET_DATA_HOST_H_
#define TOW_ENV_NET_DATA_HOST_H_

#include "env/net/data/wire.h"

typedef struct tow_data_beacon {
    void *memory;    /* attached; NULL: none */
    int32_t segment; /* negative: none */
    uint64_t proof;
} tow_data_beacon_t;

/* The segment disappears with the process. */
tow_status_t tow_data_beacon_open(tow_data_beacon_t *beacon, uint64_t proof)
    TOW_MUST_USE;
void tow_data_beacon_close(tow_data_beacon_t *beacon);
/* Whether the beacon of this address can be read here. */
bool tow_data_beacon_is_visible(const tow_data_address_t *address);

#endif /* TOW_ENV_NET_DATA_HOST_H_ */
