/* The roles of victims, and the messages that they send to the test. */
#ifndef TOW_TESTS_CONFORMANCE_ENV_ROLES_H_
#define TOW_TESTS_CONFORMANCE_ENV_ROLES_H_

#include "stream.h"
#include "world.h"

/* "quiet":  dials, and sends nothing.
 * "flood":  dials, and sends FLOOD_STREAM until it is killed.
 * "host":   dials, listens, and sends the address in HOST_ADDRESS.
 * "target": dials, opens a region of TARGET_SIZE, sends it in LANE_TARGET, and
 *           sends LANE_ARRIVED for each arrival.
 * "writer": dials, sends its lane address in LANE_TARGET without a region,
 *           waits for LANE_TARGET, and writes there until it is killed:
 *           WRITER_DEPTH concurrent writes, each of the whole region. */
enum {
    HOST_ADDRESS = 1,
    LANE_TARGET = 2,
    LANE_ARRIVED = 3
};

#define FLOOD_STREAM ((stream_t){.seed = 77, .size_max = 50000})
#define TARGET_SIZE  (64u << 20)
#define WRITER_DEPTH 4

#define LANE_ADDRESS_SIZE_MAX 4096

/* The encoding of lane targets on a link. */
typedef struct lane_target {
    tow_region_key_t key;
    uint64_t region_size;
    uint64_t address_size;
    uint8_t address[LANE_ADDRESS_SIZE_MAX];
} lane_target_t;

void lane_target_of(tow_env_t *env, tow_region_key_t key, uint64_t region_size,
                    lane_target_t *out_target);

#endif /* TOW_TESTS_CONFORMANCE_ENV_ROLES_H_ */
