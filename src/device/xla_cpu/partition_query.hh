/* Partitioners of custom calls that belong to the client: those that only the
 * client knows how to partition, about which the compiler sends queries
 * (tow_xla_query_handler_t), and those by which each device calls the client. A
 * separate translation unit, because it needs headers of XLA that little else
 * here does. */
#ifndef TOW_DEVICE_XLA_CPU_PARTITION_QUERY_HH_
#define TOW_DEVICE_XLA_CPU_PARTITION_QUERY_HH_

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "device/xla_cpu/xla_cpu.h"

namespace tow
{

/* Repeated calls have no effect. */
void register_partitioners();

void set_query_handler(const tow_xla_query_handler_t *handler);

/* Whether calls of `target` send partition queries, and a handler is set. */
bool is_partition_target(absl::string_view target);

/* Around each compilation. XLA's sharding propagation cannot take an error from
 * a query, so `end_queries` returns the first one. */
void begin_queries();
absl::Status end_queries();

} // namespace tow

#endif /* TOW_DEVICE_XLA_CPU_PARTITION_QUERY_HH_ */
