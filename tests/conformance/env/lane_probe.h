/* Probes of the data plane: lanes, regions and writes. */
#ifndef TOW_TESTS_CONFORMANCE_ENV_LANE_PROBE_H_
#define TOW_TESTS_CONFORMANCE_ENV_LANE_PROBE_H_

#include "probe.h"

typedef struct lane_probe {
    tow_lane_t *lane;
    tow_env_t *env;
    bool closing;
    int down_count;
    int writable_count;
    char cause[1024];
    closed_probe_t closed;
    int pending_count; /* writes that are not done */
    void (*writable)(struct lane_probe *probe);
    void *context;
} lane_probe_t;

void lane_probe_open(lane_probe_t *probe, tow_env_t *from, tow_env_t *to);
/* To an address received over a link, valid or not. */
tow_status_t lane_probe_try_open(lane_probe_t *probe, tow_env_t *from,
                                 const void *address, size_t address_size)
    TOW_MUST_USE;
void lane_probe_open_at(lane_probe_t *probe, tow_env_t *from,
                        const void *address, size_t address_size);
void lane_probe_close(lane_probe_t *probe, tow_lane_close_mode_t mode);

#define ARRIVAL_COUNT_MAX 4096

typedef struct region_probe {
    tow_region_t *region;
    tow_env_t *env;
    uint8_t *bytes; /* owned; guarded on both sides */
    size_t size;
    bool closing;
    int arrived_count;
    tow_arrival_t arrivals[ARRIVAL_COUNT_MAX];
    closed_probe_t closed;
    void (*arrived)(struct region_probe *probe, const tow_arrival_t *arrival);
    void *context;
} region_probe_t;

/* Zeroed memory of `size` bytes between two guards. */
void region_probe_open(region_probe_t *probe, tow_env_t *env, size_t size);
void region_probe_close(region_probe_t *probe);
/* Fails if a guard was overwritten. To be called once the region or its env is
 * closed. */
void region_probe_free(region_probe_t *probe);

typedef struct write_probe {
    tow_write_t write;
    lane_probe_t *lane;
    uint8_t *bytes; /* owned */
    int done_count;
    tow_code_t code;
    char cause[512];
    void (*done)(struct write_probe *probe);
    void *context;
} write_probe_t;

typedef struct write_plan {
    size_t size;
    tow_region_key_t key;
    uint64_t offset;
    uint64_t tag; /* also the seed of the bytes */
    tow_write_check_t check;
} write_plan_t;

/* Generates the bytes and submits the write. */
tow_send_result_t write_probe_start(write_probe_t *probe, lane_probe_t *lane,
                                    const write_plan_t *plan);
/* Submits the same write again, after FULL. */
tow_send_result_t write_probe_submit(write_probe_t *probe, lane_probe_t *lane);
/* The write must be done, or never have been accepted. */
void write_probe_free(write_probe_t *probe);

#endif /* TOW_TESTS_CONFORMANCE_ENV_LANE_PROBE_H_ */
