/* Between `tow bench net` and the two processes that it starts. */
#ifndef TOW_TOOL_BENCH_NET_H_
#define TOW_TOOL_BENCH_NET_H_

#define TOW_BENCH_BULK_SIZE (64u << 20)

/* net-serve ADDRESS TOKEN: says "ready" and serves one peer. */
int tow_bench_net_serve(int argc, char **argv);
/* net-measure KIND COUNT ADDRESS TOKEN: prints seconds per operation. KIND is
 * link_roundtrip, link_oneway, lane_roundtrip or lane_bulk. */
int tow_bench_net_measure(int argc, char **argv);

#endif /* TOW_TOOL_BENCH_NET_H_ */
