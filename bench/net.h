/* The two processes between which `tow bench net` measures. */
#ifndef TOW_BENCH_NET_H_
#define TOW_BENCH_NET_H_

#include "base/macros.h"
#include "base/status.h"

#define TOW_BENCH_BULK_SIZE (64u << 20)

/* net-serve ADDRESS TOKEN: prints "ready" and serves one peer. */
tow_status_t tow_bench_net_serve(int argc, char **argv) TOW_MUST_USE;
/* net-measure KIND COUNT ADDRESS TOKEN: prints seconds per operation. KIND is
 * link_roundtrip, link_oneway, lane_roundtrip or lane_bulk. */
tow_status_t tow_bench_net_measure(int argc, char **argv) TOW_MUST_USE;

#endif /* TOW_BENCH_NET_H_ */
