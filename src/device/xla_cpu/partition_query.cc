#include "device/xla_cpu/partition_query.hh"

#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "device/xla_cpu/policy_impl.hh"
#include "device/xla_cpu/spmd_impl.hh"
#include "xla/debug_options_flags.h"
#include "xla/hlo/builder/xla_computation.h"
#include "xla/hlo/ir/hlo_casting_utils.h"
#include "xla/hlo/ir/hlo_clone_context.h"
#include "xla/hlo/ir/hlo_computation.h"
#include "xla/hlo/ir/hlo_instruction.h"
#include "xla/hlo/ir/hlo_instructions.h"
#include "xla/hlo/ir/hlo_module.h"
#include "xla/hlo/ir/hlo_sharding.h"
#include "xla/service/call_inliner.h"
#include "xla/service/spmd/spmd_partitioner_util.h"
#include "xla/xla_data.pb.h"

namespace xla
{
/* Declared in xla/pjrt/mlir_to_hlo.h, which needs headers that the wheel does
 * not carry. */
absl::Status ParseMlirModuleStringAndConvertToXlaComputation(
    std::string_view module, XlaComputation &computation, bool use_tuple_args,
    bool return_tuple);
} // namespace xla

namespace tow
{
namespace
{

std::atomic<const tow_xla_query_handler_t *> query_handler{nullptr};

/* The first error of this compilation. */
std::mutex error_mutex;
absl::Status first_error;

/* Returns `status`. */
absl::Status record_error(absl::Status status)
{
    std::lock_guard<std::mutex> lock(error_mutex);
    first_error.Update(status);
    return status;
}

absl::Status recorded_error()
{
    std::lock_guard<std::mutex> lock(error_mutex);
    return first_error;
}

/* --- Queries -------------------------------------------------------------- */

/* A query and the bytes that it points to. */
class partition_query
{
  public:
    partition_query(tow_xla_partition_query_kind_t kind,
                    const xla::HloInstruction &call)
        : target_(call.custom_call_target())
    {
        query_.kind = kind;
        query_.target = target_.c_str();
        const std::string &config = call.raw_backend_config_string();
        query_.config = {config.data(), config.size()};
        for (const xla::HloInstruction *operand : call.operands())
            operands_.push_back(value_of(*operand));
        query_.result = value_of(call);
    }

    void set_result_sharding(const xla::HloSharding &sharding)
    {
        query_.result.sharding = bytes_of(sharding);
    }

    /* The reply is valid until the next query. */
    absl::StatusOr<tow_xla_partition_reply_t> send()
    {
        const tow_xla_query_handler_t *handler = query_handler.load();
        if (absl::Status before = recorded_error(); !before.ok()) return before;
        if (handler == nullptr)
            return record_error(absl::FailedPreconditionError(
                "the program needs its client to partition a custom call, but "
                "the compiler has no handler for partition queries"));
        query_.operands = operands_.data();
        query_.operand_count = operands_.size();
        tow_xla_partition_reply_t reply = {};
        char error[TOW_XLA_CALL_ERROR_SIZE] = "";
        int code = handler->query(handler->context, &query_, &reply, error,
                                  sizeof(error));
        if (code == 0) return reply;
        return record_error(
            absl::Status(static_cast<absl::StatusCode>(code), error));
    }

  private:
    tow_xla_bytes_t store(std::string bytes)
    {
        storage_.push_back(std::move(bytes));
        return {storage_.back().data(), storage_.back().size()};
    }

    tow_xla_bytes_t bytes_of(const xla::HloSharding &sharding)
    {
        return store(sharding.ToProto().SerializeAsString());
    }

    tow_xla_partition_value_t value_of(const xla::HloInstruction &instruction)
    {
        tow_xla_partition_value_t value = {};
        value.shape = store(instruction.shape().ToProto().SerializeAsString());
        if (instruction.has_sharding())
            value.sharding = bytes_of(instruction.sharding());
        return value;
    }

    std::string target_;
    std::deque<std::string> storage_; /* a deque does not move its elements */
    std::vector<tow_xla_partition_value_t> operands_;
    tow_xla_partition_query_t query_ = {};
};

/* --- Replies -------------------------------------------------------------- */

/* XLA does not check shardings; one that does not fit would crash the process.
 */
absl::StatusOr<xla::HloSharding> read_sharding(tow_xla_bytes_t bytes,
                                               const xla::Shape &shape)
{
    xla::OpSharding proto;
    if (bytes.data == nullptr ||
        !proto.ParseFromString(std::string(bytes.data, bytes.size)))
        return absl::InvalidArgumentError("it is not an OpSharding");
    auto sharding = xla::HloSharding::FromProto(proto);
    if (!sharding.ok()) return sharding.status();
    absl::Status status = sharding->Validate(shape);
    if (!status.ok()) return status;
    return sharding;
}

absl::StatusOr<std::unique_ptr<xla::HloModule>> read_program(
    tow_xla_bytes_t bytes)
{
    xla::XlaComputation computation;
    absl::Status status = xla::ParseMlirModuleStringAndConvertToXlaComputation(
        std::string_view(bytes.data, bytes.size), computation, false, false);
    if (status.ok()) status = check_program(computation.proto());
    if (!status.ok()) return status;
    auto config = xla::HloModule::CreateModuleConfigFromProto(
        computation.proto(), xla::DefaultDebugOptionsIgnoringFlags());
    if (!config.ok()) return config.status();
    auto module = xla::HloModule::CreateFromProto(computation.proto(), *config);
    if (!module.ok()) return module.status();
    /* The inliner below does not handle calls. */
    auto inlined = xla::CallInliner().Run(module->get());
    if (!inlined.ok()) return inlined.status();
    return module;
}

absl::Status invalid_reply(const xla::HloInstruction &call,
                           absl::string_view what, const absl::Status &why)
{
    return absl::Status(
        why.code(),
        absl::StrCat("invalid reply of the function that partitions ",
                     call.name(), ": ", what, ": ", why.message()));
}

/* A checked reply: the program of one device and its shardings. */
struct partition {
    std::unique_ptr<xla::HloModule> module;
    std::vector<xla::HloSharding> operands;
    std::optional<xla::HloSharding> result;
};

absl::Status check_shapes(const xla::HloInstruction &call,
                          const partition &made)
{
    const xla::HloComputation *entry = made.module->entry_computation();
    if (entry->num_parameters() != call.operand_count())
        return absl::InvalidArgumentError(absl::StrCat(
            "its program has ", entry->num_parameters(), " parameters for ",
            call.operand_count(), " operands"));
    auto fits = [](const xla::Shape &has, const xla::Shape &whole,
                   const xla::HloSharding &sharding) {
        return xla::ShapeUtil::Compatible(
            has, xla::spmd::MakePartitionedShape(whole, sharding));
    };
    for (int64_t i = 0; i < call.operand_count(); i++)
        if (!fits(entry->parameter_instruction(i)->shape(),
                  call.operand(i)->shape(), made.operands[i]))
            return absl::InvalidArgumentError(absl::StrCat(
                "parameter ", i,
                " of its program does not have the shape of a shard"));
    if (!fits(entry->root_instruction()->shape(), call.shape(), *made.result))
        return absl::InvalidArgumentError(
            "the result of its program does not have the shape of a shard");
    return absl::OkStatus();
}

absl::StatusOr<partition> read_partition(const xla::HloInstruction &call,
                                         const tow_xla_partition_reply_t &reply)
{
    partition made;
    if (reply.operand_count != static_cast<size_t>(call.operand_count()))
        return invalid_reply(call, "shardings",
                             absl::InvalidArgumentError(absl::StrCat(
                                 reply.operand_count, " for ",
                                 call.operand_count(), " operands")));
    for (size_t i = 0; i < reply.operand_count; i++) {
        auto sharding =
            read_sharding(reply.operand_shardings[i], call.operand(i)->shape());
        if (!sharding.ok())
            return invalid_reply(call, absl::StrCat("sharding of operand ", i),
                                 sharding.status());
        made.operands.push_back(*sharding);
    }
    auto result = read_sharding(reply.result_sharding, call.shape());
    if (!result.ok())
        return invalid_reply(call, "sharding of the result", result.status());
    made.result = *result;
    auto module = read_program(reply.program);
    if (!module.ok())
        return invalid_reply(call, "its program", module.status());
    made.module = *std::move(module);
    absl::Status status = check_shapes(call, made);
    if (!status.ok()) return invalid_reply(call, "shapes", status);
    return made;
}

/* --- Inlining ------------------------------------------------------------- */

/* Copies the entry computation of a module, with all that it calls, into the
 * program that the partitioner builds. */
class inliner
{
  public:
    inliner(xla::spmd::SpmdPartitioningVisitor *visitor,
            xla::HloInstruction *call)
        : visitor_(visitor), context_(call->GetModule(), "_of_client")
    {
    }

    xla::HloInstruction *copy(
        xla::HloComputation *entry,
        const std::vector<xla::HloInstruction *> &operands)
    {
        for (xla::HloInstruction *each : entry->MakeInstructionPostOrder())
            made_[each] = each->opcode() == xla::HloOpcode::kParameter
                              ? operands[each->parameter_number()]
                              : copy_one(each);
        return made_[entry->root_instruction()];
    }

  private:
    xla::HloInstruction *copy_one(xla::HloInstruction *each)
    {
        std::vector<xla::HloInstruction *> operands;
        for (xla::HloInstruction *operand : each->operands())
            operands.push_back(made_[operand]);
        xla::HloInstruction *made = visitor_->builder()->AddInstruction(
            each->CloneWithNewOperands(each->shape(), operands, &context_));
        auto *collective = xla::DynCast<xla::HloChannelInstruction>(each);
        if (collective != nullptr && collective->channel_id().has_value())
            made->set_channel_id(channel_of(*collective->channel_id()));
        return made;
    }

    /* The module numbers its channels independently. */
    int64_t channel_of(int64_t channel)
    {
        auto [found, is_new] = channels_.try_emplace(channel, 0);
        if (is_new) found->second = visitor_->NewChannel();
        return found->second;
    }

    xla::spmd::SpmdPartitioningVisitor *visitor_;
    xla::HloCloneContext context_;
    absl::flat_hash_map<xla::HloInstruction *, xla::HloInstruction *> made_;
    absl::flat_hash_map<int64_t, int64_t> channels_;
};

/* --- Partitioners --------------------------------------------------------- */

/* The common part: the call may have any sharding. */
class client_call_partitioner : public xla::CustomCallPartitioner
{
  public:
    bool IsCustomCallShardable(const xla::HloInstruction *) const override
    {
        return true;
    }

    bool CanSideEffectingHaveReplicatedSharding() const override
    {
        return true;
    }
};

/* jax.experimental.custom_partitioning. */
class client_partitioner : public client_call_partitioner
{
  public:
    std::optional<xla::HloSharding> InferShardingFromOperands(
        const xla::HloInstruction *call) const override
    {
        auto reply =
            partition_query(TOW_XLA_QUERY_RESULT_SHARDING, *call).send();
        if (!reply.ok() || reply->result_sharding.data == nullptr)
            return std::nullopt;
        return sharding_of(*call, *reply);
    }

    xla::HloSharding PropagateUserSharding(
        const xla::HloInstruction *call, const xla::HloInstruction *,
        const xla::HloSharding &sharding) const override
    {
        partition_query query(TOW_XLA_QUERY_USER_SHARDING, *call);
        query.set_result_sharding(sharding);
        auto reply = query.send();
        if (!reply.ok()) return sharding;
        return sharding_of(*call, *reply).value_or(sharding);
    }

    absl::Status Partition(xla::spmd::SpmdPartitioningVisitor *visitor,
                           xla::HloInstruction *call) const override
    {
        auto reply = partition_query(TOW_XLA_QUERY_PARTITION, *call).send();
        if (!reply.ok()) return reply.status();
        auto part = read_partition(*call, *reply);
        if (!part.ok()) return record_error(part.status());
        std::vector<xla::HloInstruction *> operands;
        for (int64_t i = 0; i < call->operand_count(); i++)
            operands.push_back(visitor->GetPartitionedHlo(call->operand(i))
                                   .Reshard(part->operands[i])
                                   .hlo());
        xla::HloInstruction *made =
            inliner(visitor, call)
                .copy(part->module->entry_computation(), operands);
        made->set_sharding(*part->result);
        visitor->SetPartitionedHlo(
            call, xla::spmd::PartitionedHlo(made, call->shape(),
                                            visitor->MakePartitioningState())
                      .Reshard(call->sharding()));
        return absl::OkStatus();
    }

  private:
    /* XLA takes no error here, so it is recorded. */
    static std::optional<xla::HloSharding> sharding_of(
        const xla::HloInstruction &call, const tow_xla_partition_reply_t &reply)
    {
        auto sharding = read_sharding(reply.result_sharding, call.shape());
        if (sharding.ok()) return *sharding;
        (void)record_error(invalid_reply(call, "sharding", sharding.status()));
        return std::nullopt;
    }
};

/* jax.debug.inspect_array_sharding; the result is the operand. */
class inspecting_partitioner : public client_call_partitioner
{
  public:
    std::optional<xla::HloSharding> InferShardingFromOperands(
        const xla::HloInstruction *call) const override
    {
        if (call->operand_count() != 1 || !call->operand(0)->has_sharding())
            return std::nullopt;
        return call->operand(0)->sharding();
    }

    absl::Status Partition(xla::spmd::SpmdPartitioningVisitor *visitor,
                           xla::HloInstruction *call) const override
    {
        if (call->operand_count() != 1)
            return absl::InvalidArgumentError(
                absl::StrCat(call->name(), " inspects one operand, but has ",
                             call->operand_count()));
        auto reply = partition_query(TOW_XLA_QUERY_INSPECT, *call).send();
        if (!reply.ok()) return reply.status();
        xla::spmd::PartitionedHlo operand =
            visitor->GetPartitionedHlo(call->operand(0));
        visitor->SetPartitionedHlo(call, std::move(operand));
        return absl::OkStatus();
    }
};

/* jax.debug.callback(..., partitioned=True): sends no query; each device calls
 * the client at run time, with its shards of the operands. */
class calling_partitioner : public client_call_partitioner
{
  public:
    absl::Status Partition(xla::spmd::SpmdPartitioningVisitor *visitor,
                           xla::HloInstruction *call) const override
    {
        if (xla::ShapeUtil::ElementsInRecursive(call->shape()) > 0)
            return absl::UnimplementedError(absl::StrCat(
                call->name(), ": a callback that each device makes for its own "
                              "shards cannot have results"));
        std::vector<xla::HloInstruction *> operands;
        for (const xla::HloInstruction *each : call->operands())
            operands.push_back(visitor->GetPartitionedHlo(each).hlo());
        visitor->SetPartitionedHlo(
            call, visitor->builder()->AddInstruction(per_device_call(
                      *xla::Cast<xla::HloCustomCallInstruction>(call), operands,
                      call->shape())));
        return absl::OkStatus();
    }
};

void register_all()
{
    xla::RegisterCustomCallPartitioner(TOW_XLA_SHARD_CALLBACK_TARGET,
                                       std::make_unique<calling_partitioner>());
    xla::RegisterCustomCallPartitioner(TOW_XLA_PARTITION_TARGET,
                                       std::make_unique<client_partitioner>());
    xla::RegisterCustomCallPartitioner(
        TOW_XLA_INSPECT_TARGET, std::make_unique<inspecting_partitioner>());
}

} // namespace

void register_partitioners()
{
    static std::once_flag once;
    std::call_once(once, register_all);
}

void set_query_handler(const tow_xla_query_handler_t *handler)
{
    query_handler.store(handler);
}

bool is_partition_target(absl::string_view target)
{
    return query_handler.load() != nullptr &&
           (target == TOW_XLA_PARTITION_TARGET ||
            target == TOW_XLA_INSPECT_TARGET);
}

void begin_queries()
{
    std::lock_guard<std::mutex> lock(error_mutex);
    first_error = absl::OkStatus();
}

absl::Status end_queries()
{
    return recorded_error();
}

} // namespace tow
