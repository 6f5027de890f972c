/* The headers of XLA's SPMD partitioner, adapted to gcc 12. */
#ifndef TOW_DEVICE_XLA_CPU_SPMD_IMPL_HH_
#define TOW_DEVICE_XLA_CPU_SPMD_IMPL_HH_

#include <cstdint>
#include <initializer_list>
#include <memory>
#include <vector>

#include "absl/types/span.h"
#include "xla/hlo/ir/hlo_casting_utils.h"
#include "xla/hlo/ir/hlo_instruction.h"
#include "xla/hlo/ir/hlo_instructions.h"
#include "xla/hlo/ir/tile_assignment.h"
#include "xla/service/call_graph.h"
#include "xla/service/custom_call_sharding_helper.h"
#include "xla/shape.h"
#include "xla/shape_util.h"

/* gcc 12 finds `TileAssignment({a, b})`, in one place of this header,
 * ambiguous. These functions resolve it. */
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

namespace tow
{

/* The custom call on the shards of one device, with the same layouts, aliases
 * and attributes. */
inline std::unique_ptr<xla::HloInstruction> per_device_call(
    const xla::HloCustomCallInstruction &call,
    const std::vector<xla::HloInstruction *> &operands, const xla::Shape &shape)
{
    if (!call.layout_constrained())
        return call.CloneWithNewOperands(shape, operands);
    std::vector<xla::Shape> layouts;
    for (size_t i = 0; i < operands.size(); i++) {
        layouts.push_back(operands[i]->shape());
        if (layouts.back().IsArray())
            *layouts.back().mutable_layout() =
                call.operand_shapes_with_layout()[i].layout();
    }
    auto made = xla::HloInstruction::CreateCustomCall(
        shape, operands, call.custom_call_target(), layouts, call.opaque(),
        call.api_version());
    auto *custom = xla::Cast<xla::HloCustomCallInstruction>(made.get());
    custom->set_custom_call_has_side_effect(call.custom_call_has_side_effect());
    custom->set_output_to_operand_aliasing(call.output_operand_aliasing());
    custom->set_frontend_attributes(call.frontend_attributes());
    custom->set_metadata(call.metadata());
    return made;
}

} // namespace tow

#endif /* TOW_DEVICE_XLA_CPU_SPMD_IMPL_HH_ */
