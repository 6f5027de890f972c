/* Which programs are safe to run on fibers: so short that handing them to
 * another thread costs more than running them, and certain to stay on the
 * thread that calls XLA, from the first operation to the last.
 *
 * The second condition is needed for correctness. While one fiber of a group
 * runs, the others wait for the thread; if it could block for something that
 * another fiber has to do, all would deadlock. XLA leaves the calling thread
 * where it runs parts of a program in parallel, where an operation uses its
 * pool (matrix products, convolutions, kernels that were split), and where
 * control flow leads to such a part in some executions only. So a program is
 * fiber-safe only if its optimised HLO contains none of these, and after it has
 * run once on the threads of its devices with all collectives on those threads
 * (tow::program::is_fiber_safe). */
#ifndef TOW_DEVICE_XLA_CPU_FIBER_SAFETY_IMPL_HH_
#define TOW_DEVICE_XLA_CPU_FIBER_SAFETY_IMPL_HH_

#include <cstddef>
#include <cstdint>

#include "absl/strings/match.h"
#include "device/xla_cpu/tuning.h"
#include "xla/hlo/ir/hlo_computation.h"
#include "xla/hlo/ir/hlo_instruction.h"
#include "xla/hlo/ir/hlo_module.h"
#include "xla/hlo/ir/hlo_opcode.h"
#include "xla/shape_util.h"

namespace tow
{

/* Analyses a compiled program. */
class fiber_safety
{
  public:
    explicit fiber_safety(const xla::HloModule &module)
    {
        for (const xla::HloInstruction *each :
             module.entry_computation()->instructions())
            is_simple_ = is_simple_ && add(*each);
    }

    bool is_fiber_safe() const
    {
        return is_simple_ && is_sequential() && cost_ <= TOW_XLA_FIBER_COST_MAX;
    }

    size_t collective_count() const
    {
        return collective_count_;
    }

  private:
    /* XLA runs programs of few steps, or on small arrays, in sequence. */
    bool is_sequential() const
    {
        return step_count_ <= TOW_XLA_SEQUENCE_STEPS_MAX ||
               largest_bytes_ <= TOW_XLA_SEQUENCE_BYTES_MAX;
    }

    bool add(const xla::HloInstruction &what)
    {
        if (!is_free(what.opcode())) step_count_++;
        add_cost(what.shape());
        if (what.opcode() == xla::HloOpcode::kFusion) return add_fusion(what);
        if (is_split(what)) return false;
        if (is_simple(what)) return true;
        collective_count_++;
        return is_collective(what.opcode());
    }

    bool add_fusion(const xla::HloInstruction &fusion)
    {
        if (fusion.fusion_kind() == xla::HloInstruction::FusionKind::kCustom ||
            is_split(fusion))
            return false;
        for (const xla::HloInstruction *each : fusion.fused_instructions()) {
            add_cost(each->shape());
            if (!is_simple(*each)) return false;
        }
        return true;
    }

    void add_cost(const xla::Shape &shape)
    {
        xla::ShapeUtil::ForEachSubshape(
            shape, [this](const xla::Shape &part, const xla::ShapeIndex &) {
                if (!part.IsArray()) return;
                uint64_t bytes = xla::ShapeUtil::ByteSizeOf(part);
                if (bytes > largest_bytes_) largest_bytes_ = bytes;
                cost_ += bytes + TOW_XLA_FIBER_STEP_COST;
            });
    }

    /* Whether XLA splits it among the threads of its pool. */
    static bool is_split(const xla::HloInstruction &what)
    {
        return absl::StrContains(what.raw_backend_config_string(),
                                 "outer_dimension_partitions\":[\"");
    }

    /* Whether it takes no step at run time. */
    static bool is_free(xla::HloOpcode opcode)
    {
        switch (opcode) {
        case xla::HloOpcode::kBitcast:
        case xla::HloOpcode::kConstant:
        case xla::HloOpcode::kGetTupleElement:
        case xla::HloOpcode::kParameter:
        case xla::HloOpcode::kTuple: return true;
        default: return false;
        }
    }

    static bool is_collective(xla::HloOpcode opcode)
    {
        switch (opcode) {
        case xla::HloOpcode::kAllGather:
        case xla::HloOpcode::kAllReduce:
        case xla::HloOpcode::kAllToAll:
        case xla::HloOpcode::kCollectivePermute:
        case xla::HloOpcode::kReduceScatter: return true;
        default: return false;
        }
    }

    /* A plain loop over the elements of its result or of its operands. */
    static bool is_simple(const xla::HloInstruction &what)
    {
        if (is_free(what.opcode())) return true;
        switch (what.opcode()) {
        case xla::HloOpcode::kBroadcast:
        case xla::HloOpcode::kConcatenate:
        case xla::HloOpcode::kCopy:
        case xla::HloOpcode::kDynamicSlice:
        case xla::HloOpcode::kDynamicUpdateSlice:
        case xla::HloOpcode::kIota:
        case xla::HloOpcode::kPad:
        case xla::HloOpcode::kPartitionId:
        case xla::HloOpcode::kReduce:
        case xla::HloOpcode::kReplicaId:
        case xla::HloOpcode::kReshape:
        case xla::HloOpcode::kReverse:
        case xla::HloOpcode::kSlice:
        case xla::HloOpcode::kTranspose: return true;
        case xla::HloOpcode::kMap:
        case xla::HloOpcode::kRng:
        case xla::HloOpcode::kStochasticConvert: return false;
        default: return what.IsElementwise();
        }
    }

    bool is_simple_ = true;
    size_t collective_count_ = 0;
    uint64_t step_count_ = 0;
    uint64_t largest_bytes_ = 0;
    uint64_t cost_ = 0;
};

} // namespace tow

#endif /* TOW_DEVICE_XLA_CPU_FIBER_SAFETY_IMPL_HH_ */
