#include "device/xla_cpu/linear_algebra.hh"

#include <cstdint>
#include <initializer_list>
#include <memory>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/types/span.h"
#include "device/xla_cpu/ffi_impl.hh"
#include "device/xla_cpu/lapack/lapack.h"
#include "device/xla_cpu/spmd_impl.hh"
#include "xla/hlo/ir/hlo_instruction.h"
#include "xla/hlo/ir/hlo_instructions.h"
#include "xla/hlo/ir/hlo_module.h"
#include "xla/hlo/ir/hlo_sharding.h"
#include "xla/hlo/ir/tile_assignment.h"
#include "xla/service/call_graph.h"
#include "xla/service/custom_call_sharding_helper.h"
#include "xla/service/spmd/spmd_partitioner_util.h"
#include "xla/shape.h"
#include "xla/shape_util.h"

namespace tow
{
namespace
{

/* How XLA divides a batch of matrices among the devices of a gang: each device
 * gets whole matrices and calls the same routine on them, so nothing moves if
 * only the batch is sharded. A matrix that is itself sharded is gathered first.
 * Without this XLA would gather the whole batch on every device.
 *
 * An attribute set by JAX gives the number of batch dimensions, which lead the
 * shape. Programs can be written by hand, so its value is checked. */
class batch_partitioner : public xla::CustomCallPartitioner
{
  public:
    bool IsCustomCallShardable(const xla::HloInstruction *) const override
    {
        return true;
    }

    std::optional<xla::HloSharding> InferShardingFromOperands(
        const xla::HloInstruction *call) const override
    {
        for (const xla::HloInstruction *operand : call->operands()) {
            if (!operand->has_sharding()) continue;
            auto batch = batch_of(*call, operand->sharding());
            if (batch) return on_results(*call, *batch);
        }
        return std::nullopt;
    }

    absl::Status Partition(xla::spmd::SpmdPartitioningVisitor *visitor,
                           xla::HloInstruction *call) const override
    {
        if (call->sharding().IsManual()) return clone_call(visitor, call);
        auto batch = result_batch(*call);
        if (!batch) return visitor->DefaultAction(call);
        std::vector<xla::HloInstruction *> operands;
        for (const xla::HloInstruction *each : call->operands())
            operands.push_back(
                visitor->GetPartitionedHlo(each)
                    .Reshard(of_rank(*batch, rank_of(each->shape())))
                    .hlo());
        xla::HloSharding made = on_results(*call, *batch);
        xla::HloInstruction *part =
            visitor->builder()->AddInstruction(per_device_call(
                *xla::Cast<xla::HloCustomCallInstruction>(call), operands,
                xla::spmd::MakePartitionedShape(call->shape(), made)));
        part->set_sharding(made);
        set_results(visitor, call, part);
        return absl::OkStatus();
    }

  private:
    /* Within shard_map the program itself is written per device. */
    static absl::Status clone_call(xla::spmd::SpmdPartitioningVisitor *visitor,
                                   xla::HloInstruction *call)
    {
        std::vector<xla::HloInstruction *> operands;
        for (const xla::HloInstruction *each : call->operands())
            operands.push_back(visitor->GetPartitionedHlo(each).hlo());
        visitor->SetPartitionedHlo(
            call, visitor->builder()->AddInstruction(
                      call->CloneWithNewOperands(call->shape(), operands)));
        return absl::OkStatus();
    }

    /* The sharding of the batch's dimensions alone. */
    struct batch_sharding {
        xla::HloSharding tiled; /* of some rank; not tiled after `rank` */
        int64_t rank;
    };

    static int64_t rank_of(const xla::Shape &shape)
    {
        return static_cast<int64_t>(shape.dimensions().size());
    }

    static int64_t batch_rank(const xla::HloInstruction &call)
    {
        const auto &attributes = call.frontend_attributes().map();
        auto found = attributes.find("num_batch_dims");
        int64_t rank = 0;
        if (found == attributes.end() ||
            !absl::SimpleAtoi(found->second, &rank))
            return 0;
        for (const xla::HloInstruction *operand : call.operands())
            if (!operand->shape().IsArray() || rank > rank_of(operand->shape()))
                return 0;
        for (const xla::Shape &result : results_of(call))
            if (!result.IsArray() || rank > rank_of(result)) return 0;
        return rank;
    }

    static std::vector<xla::Shape> results_of(const xla::HloInstruction &call)
    {
        if (!call.shape().IsTuple()) return {call.shape()};
        return {call.shape().tuple_shapes().begin(),
                call.shape().tuple_shapes().end()};
    }

    static std::optional<batch_sharding> batch_of(
        const xla::HloInstruction &call, const xla::HloSharding &sharding)
    {
        int64_t rank = batch_rank(call);
        if (rank <= 0 || sharding.IsTuple() || !sharding.IsTiled() ||
            sharding.UseNamedShardingLeaf() || sharding.TiledDataRank() < rank)
            return std::nullopt;
        std::vector<int64_t> batch_dims;
        for (int64_t i = 0; i < rank; i++)
            batch_dims.push_back(i);
        xla::HloSharding tiled = xla::hlo_sharding_util::
            PartiallyReplicateTiledShardingOnAllDimsExcept(sharding,
                                                           batch_dims);
        if (!tiled.IsTiled()) return std::nullopt;
        return batch_sharding{tiled, rank};
    }

    /* The partitioner's sharding of the first result that is sharded. */
    static std::optional<batch_sharding> result_batch(
        const xla::HloInstruction &call)
    {
        const xla::HloSharding &sharding = call.sharding();
        if (!sharding.IsTuple()) return batch_of(call, sharding);
        for (const xla::HloSharding &each : sharding.tuple_elements())
            if (auto batch = batch_of(call, each)) return batch;
        return std::nullopt;
    }

    /* The same tiles for an array of another rank. The dimensions of the data
     * are followed by those along which it is replicated or manual. */
    static xla::HloSharding of_rank(const batch_sharding &batch, int64_t rank)
    {
        const xla::TileAssignment &tiles = batch.tiled.tile_assignment();
        auto from = tiles.dimensions();
        std::vector<int64_t> dims(from.begin(), from.begin() + batch.rank);
        dims.resize(static_cast<size_t>(rank), 1);
        dims.insert(dims.end(), from.begin() + batch.tiled.TiledDataRank(),
                    from.end());
        std::vector<xla::OpSharding::Type> types(
            batch.tiled.subgroup_types().begin(),
            batch.tiled.subgroup_types().end());
        if (batch.tiled.ReplicateOnLastTileDim())
            types.push_back(xla::OpSharding::REPLICATED);
        return xla::HloSharding::Subgroup(tiles.Reshape(dims), types);
    }

    static xla::HloSharding on_results(const xla::HloInstruction &call,
                                       const batch_sharding &batch)
    {
        if (!call.shape().IsTuple())
            return of_rank(batch, rank_of(call.shape()));
        std::vector<xla::HloSharding> each;
        for (const xla::Shape &shape : call.shape().tuple_shapes())
            each.push_back(of_rank(batch, rank_of(shape)));
        return xla::HloSharding::Tuple(call.shape(), each);
    }

    /* Reshards each result as the program wants it. */
    static void set_results(xla::spmd::SpmdPartitioningVisitor *visitor,
                            xla::HloInstruction *call,
                            xla::HloInstruction *part)
    {
        auto resharded = [visitor](xla::HloInstruction *has,
                                   const xla::Shape &shape,
                                   const xla::HloSharding &wanted) {
            return xla::spmd::PartitionedHlo(has, shape,
                                             visitor->MakePartitioningState())
                .Reshard(wanted)
                .hlo();
        };
        visitor->SetPartitionedHlo(call, [&] {
            if (!call->shape().IsTuple())
                return resharded(part, call->shape(), call->sharding());
            std::vector<xla::HloInstruction *> results;
            for (int64_t i = 0; i < call->shape().tuple_shapes().size(); i++) {
                const xla::Shape &shape = call->shape().tuple_shapes(i);
                auto *one = visitor->builder()->AddInstruction(
                    xla::HloInstruction::CreateGetTupleElement(
                        part->shape().tuple_shapes(i), part, i));
                one->set_sharding(
                    part->sharding().GetSubSharding(part->shape(), {i}));
                results.push_back(resharded(
                    one, shape,
                    call->sharding().GetSubSharding(call->shape(), {i})));
            }
            return visitor->builder()->AddInstruction(
                xla::HloInstruction::CreateTuple(results));
        });
    }
};

absl::Status register_all(size_t device_count)
{
    tow_lapack_share(device_count);
    XLA_FFI_Error *error = tow_lapack_register(xla::ffi::GetXlaFfiApi());
    if (error != nullptr) return xla::ffi::TakeStatus(error);
    for (size_t i = 0; tow_lapack_target(i) != nullptr; i++)
        xla::RegisterCustomCallPartitioner(
            tow_lapack_target(i), std::make_unique<batch_partitioner>());
    return absl::OkStatus();
}

} // namespace

absl::Status register_linear_algebra(size_t device_count)
{
    static const absl::Status *status =
        new absl::Status(register_all(device_count));
    return *status;
}

} // namespace tow
