/* XLA's partitioner: its headers, as gcc 12 can read them. */
#ifndef TOW_DEVICE_XLA_CPU_SPMD_IMPL_HH_
#define TOW_DEVICE_XLA_CPU_SPMD_IMPL_HH_

#include <cstdint>
#include <initializer_list>

#include "absl/types/span.h"
#include "xla/hlo/ir/tile_assignment.h"
#include "xla/service/call_graph.h"
#include "xla/service/custom_call_sharding_helper.h"
#include "xla/shape.h"
#include "xla/shape_util.h"

/* gcc 12 finds `TileAssignment({a, b})`, in one place of this header, ambiguous:
 * there it is made by a function. */
namespace tow
{
inline xla::TileAssignment tiles(std::initializer_list<int64_t> dims)
{
    return xla::TileAssignment(absl::MakeConstSpan(dims.begin(), dims.size()));
}
inline xla::TileAssignment tiles(std::initializer_list<int64_t> dims,
                                 absl::Span<const int64_t> reshaped,
                                 absl::Span<const int> transposed)
{
    return xla::TileAssignment(absl::MakeConstSpan(dims.begin(), dims.size()),
                               reshaped, transposed);
}
inline const xla::TileAssignment &tiles(const xla::TileAssignment &same)
{
    return same;
}
} // namespace tow
#define TileAssignment(...) TileAssignment(tow::tiles(__VA_ARGS__))
#include "xla/hlo/utils/hlo_sharding_util.h"
#undef TileAssignment
#include "xla/service/spmd/spmd_partitioner.h"

#endif /* TOW_DEVICE_XLA_CPU_SPMD_IMPL_HH_ */
