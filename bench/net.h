/* The two processes between which `tow bench net` measures. */
#ifndef TOW_BENCH_NET_H_
#define TOW_BENCH_NET_H_

#include <stdint.h>

#include "base/macros.h"
#include "base/status.h"
#include "bench/netns.h"

#define TOW_BENCH_BULK_SIZE (64u << 20)

/* net-serve ADDRESS KEYS_FOLDER: prints its address and serves one peer. */
tow_status_t tow_bench_net_serve(int argc, char **argv) TOW_MUST_USE;
/* net-measure KIND COUNT ADDRESS KEYS_FOLDER: prints seconds per operation. KIND
 * is link_roundtrip, link_oneway, lane_roundtrip or lane_bulk. */
tow_status_t tow_bench_net_measure(int argc, char **argv) TOW_MUST_USE;

/* A measurement between two new processes, net-serve and net-measure. */
typedef struct tow_bench_net_pair {
    const char *kind;
    uint64_t count;
    const char *address; /* of the server */
    const char *keys_folder;
    char *const *environment; /* transports; NULL-terminated */
    tow_bench_place_t server_place, measure_place;
} tow_bench_net_pair_t;

/* Seconds per operation. */
tow_status_t tow_bench_net_pair_run(const tow_bench_net_pair_t *pair,
                                    double *out_seconds) TOW_MUST_USE;

#endif /* TOW_BENCH_NET_H_ */
