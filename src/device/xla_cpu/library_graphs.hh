/* XLA's library fusions under a lock: see library_graphs.cc. */
#ifndef TOW_DEVICE_XLA_CPU_LIBRARY_GRAPHS_HH_
#define TOW_DEVICE_XLA_CPU_LIBRARY_GRAPHS_HH_

#include <cstdint>

namespace tow
{

/* Graphs built in this process. Any thread. */
uint64_t library_graph_count() noexcept;

} // namespace tow

#endif // TOW_DEVICE_XLA_CPU_LIBRARY_GRAPHS_HH_
