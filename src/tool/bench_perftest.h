/* `ucx_perftest` as a peer: a server and a client, two processes, once. */
#ifndef TOW_TOOL_BENCH_PERFTEST_H_
#define TOW_TOOL_BENCH_PERFTEST_H_

#include <stdbool.h>
#include <stdint.h>

#include "base/macros.h"
#include "base/status.h"

typedef struct tow_perftest {
    const char *name;         /* "ucp_am_bw" */
    char *const *environment; /* which transports it may use; NULL ends it */
    uint64_t size;            /* of a message */
    uint64_t count;
    bool handles_errors; /* as our endpoints always do */
} tow_perftest_t;

typedef struct tow_perftest_result {
    double latency_us; /* median, one way */
    double bytes_per_second;
} tow_perftest_result_t;

tow_status_t tow_perftest_run(const tow_perftest_t *test,
                              tow_perftest_result_t *out_result) TOW_MUST_USE;

#endif /* TOW_TOOL_BENCH_PERFTEST_H_ */
