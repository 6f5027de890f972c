/* XLA's collectives, implemented by tow_xla_collectives_t.
 *
 * XLA creates one communicator for each (clique, rank) that a program uses and
 * keeps it for as long as the collectives object lives. It caches failures too,
 * so creating one is local and cannot fail. XLA's key does not contain the run
 * of a call, but a device runs one execution at a time, so the communicator
 * takes the run from its device. */
#ifndef TOW_DEVICE_XLA_CPU_COLLECTIVE_IMPL_HH_
#define TOW_DEVICE_XLA_CPU_COLLECTIVE_IMPL_HH_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "device/xla_cpu/types_impl.hh"
#include "device/xla_cpu/xla_cpu.h"
#include "xla/backends/cpu/collectives/cpu_collectives.h"
#include "xla/core/collectives/clique_key.h"
#include "xla/core/collectives/communicator.h"

namespace tow
{

/* The execution that a device runs. Written by the thread that runs it, between
 * executions; read by XLA's threads during them. */
struct current_run {
    uint64_t run_id = 0;
    uint64_t serial = 0; /* counts this device's executions */
    std::thread::id thread;
    /* Of the program: set when a collective comes on another thread. */
    std::atomic<bool> *left_thread = nullptr;
    const tow_xla_fiber_ops_t *fiber_ops = nullptr; /* null: not on a fiber */
    /* Waits of this execution in collectives so far. Written by the threads of
     * its collectives, which come one after another. */
    uint64_t wait_ns = 0;
};

class communicator final : public xla::Communicator
{
  public:
    using address = stream_executor::DeviceAddressBase;

    /* `run` and `table` outlive the communicator; `run` is null for a device of
     * another process, for which XLA never calls. */
    communicator(const tow_xla_collectives_t *table, current_run *run,
                 const xla::CliqueKey &clique, size_t rank)
        : table_(table), run_(run), rank_(rank)
    {
        for (const auto &device : clique.devices())
            members_.push_back(device.value());
    }

    xla::Future<> AllReduce(address send, address receive,
                            xla::PrimitiveType type, size_t count,
                            xla::ReductionKind reduction,
                            const Executor &executor) override
    {
        tow_xla_collective_t call = begin(TOW_XLA_ALL_REDUCE, type, count);
        call.reduction = reduction_of(reduction);
        return run_one(call, send, receive, executor);
    }

    xla::Future<> ReduceScatter(address send, address receive,
                                xla::PrimitiveType type, size_t count,
                                xla::ReductionKind reduction,
                                const Executor &executor) override
    {
        tow_xla_collective_t call = begin(TOW_XLA_REDUCE_SCATTER, type, count);
        call.reduction = reduction_of(reduction);
        return run_one(call, send, receive, executor);
    }

    xla::Future<> AllGather(address send, address receive,
                            xla::PrimitiveType type, size_t count,
                            const Executor &executor) override
    {
        tow_xla_collective_t call = begin(TOW_XLA_ALL_GATHER, type, count);
        return run_one(call, send, receive, executor);
    }

    xla::Future<> Broadcast(address send, address receive,
                            xla::PrimitiveType type, size_t count,
                            xla::RankId root, const Executor &executor) override
    {
        tow_xla_collective_t call = begin(TOW_XLA_BROADCAST, type, count);
        call.root = root.value();
        return run_one(call, send, receive, executor);
    }

    xla::Future<> CollectivePermute(address send, address receive,
                                    xla::PrimitiveType type, size_t count,
                                    std::optional<xla::RankId> source,
                                    absl::Span<const xla::RankId> targets,
                                    const Executor &executor) override
    {
        tow_xla_collective_t call = begin(TOW_XLA_PERMUTE, type, count);
        absl::InlinedVector<size_t, 4> target_ranks;
        for (xla::RankId target : targets)
            target_ranks.push_back(target.value());
        if (source.has_value()) call.source = source->value();
        call.targets = target_ranks.data();
        call.target_count = target_ranks.size();
        absl::Status status = call_out(call, {send}, {receive}, executor);
        if (status.ok() && !source.has_value())
            std::memset(receive.opaque(), 0, receive.size());
        return xla::Future<>(std::move(status));
    }

    xla::Future<> AllToAll(absl::InlinedVector<address, 4> send,
                           absl::InlinedVector<address, 4> receive,
                           xla::PrimitiveType type, size_t count,
                           const Executor &executor) override
    {
        tow_xla_collective_t call = begin(TOW_XLA_ALL_TO_ALL, type, count);
        return xla::Future<>(call_out(call, send, receive, executor));
    }

    absl::Status Barrier(const Executor &executor) override
    {
        tow_xla_collective_t call = begin(TOW_XLA_BARRIER, xla::U8, 0);
        return call_out(call, {}, {}, executor);
    }

    xla::Future<> Send(address, xla::PrimitiveType, size_t, xla::RankId,
                       const Executor &) override
    {
        return unsupported("send");
    }

    xla::Future<> Recv(address, xla::PrimitiveType, size_t, xla::RankId,
                       const Executor &) override
    {
        return unsupported("receive");
    }

    absl::StatusOr<size_t> NumRanks() const override
    {
        return members_.size();
    }

    absl::StatusOr<size_t> CurrentRank() override
    {
        return rank_;
    }

    std::string ToString() const override
    {
        return "towpath";
    }

  private:
    using addresses = absl::Span<const address>;

    static xla::Future<> unsupported(const char *what)
    {
        return xla::Future<>(absl::UnimplementedError(
            std::string(what) + " between devices inside a computation"));
    }

    static tow_xla_reduction_t reduction_of(xla::ReductionKind kind)
    {
        switch (kind) {
        case xla::ReductionKind::SUM: return TOW_XLA_SUM;
        case xla::ReductionKind::PRODUCT: return TOW_XLA_PRODUCT;
        case xla::ReductionKind::MIN: return TOW_XLA_MIN;
        case xla::ReductionKind::MAX: return TOW_XLA_MAX;
        }
        return TOW_XLA_SUM;
    }

    tow_xla_collective_t begin(tow_xla_collective_kind_t kind,
                               xla::PrimitiveType type, size_t count) const
    {
        tow_xla_collective_t call = {};
        call.struct_size = sizeof(call);
        call.kind = kind;
        call.members = members_.data();
        call.member_count = members_.size();
        call.rank = rank_;
        call.element_type = buffer_type_of(type);
        call.element_count = count;
        call.element_bytes = xla::ShapeUtil::ByteSizeOfPrimitiveType(type);
        call.source = SIZE_MAX;
        return call;
    }

    xla::Future<> run_one(tow_xla_collective_t &call, address send,
                          address receive, const Executor &executor)
    {
        return xla::Future<>(call_out(call, {send}, {receive}, executor));
    }

    absl::Status call_out(tow_xla_collective_t &call, addresses send,
                          addresses receive, const Executor &executor)
    {
        if (table_ == nullptr) return no_table();
        number(call, executor);
        absl::InlinedVector<const void *, 4> sources;
        absl::InlinedVector<void *, 4> destinations;
        for (const address &each : send)
            sources.push_back(each.opaque());
        for (const address &each : receive)
            destinations.push_back(each.opaque());
        call.send = sources.data();
        call.receive = destinations.data();
        call.fiber_ops = fiber_ops();
        call.wait_ns = &run_->wait_ns;

        char error[1024] = "";
        int code = table_->run(table_->context, &call, error, sizeof(error));
        if (code == 0) return absl::OkStatus();
        error[sizeof(error) - 1] = '\0';
        bool is_known = code > 0 && code <= PJRT_Error_Code_UNAUTHENTICATED;
        return absl::Status(is_known ? static_cast<absl::StatusCode>(code)
                                     : absl::StatusCode::kInternal,
                            error);
    }

    /* Collectives of a fiber-safe program come on the thread that runs it. */
    const tow_xla_fiber_ops_t *fiber_ops() const
    {
        if (std::this_thread::get_id() == run_->thread) return run_->fiber_ops;
        *run_->left_thread = true;
        return nullptr;
    }

    static absl::Status no_table()
    {
        return absl::FailedPreconditionError(
            "the program has a collective, but the client was created without "
            "the option tow_collectives");
    }

    void number(tow_xla_collective_t &call, const Executor &executor)
    {
        const auto &key =
            static_cast<const xla::cpu::CpuCollectives::Executor &>(executor)
                .rendezvous_key();
        bool has_channel =
            key.collective_op_kind == xla::RendezvousKey::kCrossModule;
        call.run_id = run_->run_id;
        call.op_id = has_channel ? key.op_id : 0;
        call.occurrence = next_occurrence(call.op_id);
    }

    uint64_t next_occurrence(uint64_t op_id)
    {
        absl::MutexLock lock(&mutex_);
        if (counted_serial_ != run_->serial) counts_.clear();
        counted_serial_ = run_->serial;
        for (auto &[counted_op, count] : counts_)
            if (counted_op == op_id) return count++;
        counts_.emplace_back(op_id, 1);
        return 0;
    }

    const tow_xla_collectives_t *const table_;
    current_run *const run_;
    const size_t rank_;
    std::vector<int64_t> members_;

    absl::Mutex mutex_;
    uint64_t counted_serial_ = 0;
    /* Operations of this execution, and how often each has run. Few. */
    std::vector<std::pair<uint64_t, uint64_t>> counts_;
};

class collectives final : public xla::cpu::CpuCollectives
{
  public:
    using find_run = std::function<current_run *(int64_t device)>;

    collectives(const tow_xla_collectives_t *table, find_run find)
        : table_(table), find_(std::move(find))
    {
    }

    absl::StatusOr<std::vector<std::unique_ptr<xla::Communicator>>>
    CreateCommunicators(const xla::CliqueKey &clique,
                        const std::optional<xla::CliqueIds> &,
                        absl::Span<const DeviceRank> ranks,
                        const Config &) override
    {
        std::vector<std::unique_ptr<xla::Communicator>> made;
        for (const DeviceRank &each : ranks) {
            size_t rank = each.rank.value();
            made.push_back(std::make_unique<communicator>(
                table_, find_(clique.devices()[rank].value()), clique, rank));
        }
        return made;
    }

  private:
    const tow_xla_collectives_t *const table_;
    const find_run find_;
};

} // namespace tow

#endif /* TOW_DEVICE_XLA_CPU_COLLECTIVE_IMPL_HH_ */
