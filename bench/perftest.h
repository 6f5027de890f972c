/* Runs `ucx_perftest` once as a peer: a server and a client process. */
#ifndef TOW_BENCH_PERFTEST_H_
#define TOW_BENCH_PERFTEST_H_

#include <stdbool.h>
#include <stdint.h>

#include "base/macros.h"
#include "base/status.h"
#include "bench/netns.h"

typedef struct tow_bench_perftest {
    const char *name;         /* "ucp_am_bw" */
    char *const *environment; /* transports; NULL-terminated */
    uint64_t size;            /* of a message */
    uint64_t count;
    bool handles_errors; /* as our endpoints always do */
    tow_bench_place_t server_place, client_place;
    const char *server_address; /* NULL: loopback */
} tow_bench_perftest_t;

typedef struct tow_bench_perftest_result {
    double latency_us; /* median, one way */
    double bytes_per_second;
} tow_bench_perftest_result_t;

tow_status_t tow_bench_perftest_run(const tow_bench_perftest_t *test,
                                    tow_bench_perftest_result_t *out_result)
    TOW_MUST_USE;

#endif /* TOW_BENCH_PERFTEST_H_ */
