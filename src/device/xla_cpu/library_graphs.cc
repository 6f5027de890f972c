/* Makes XLA's YNNPACK fusions safe for gangs.
 *
 * The local members of a gang execute one executable at the same time. A thread
 * that finds no idle graph of a fusion builds one, and XLA 2.21 appends the
 * constants of every graph to one vector without a lock (EmitYnnSubgraph): two
 * threads that build at the same time corrupt it, which ended workers. Without
 * these fusions a training step takes a quarter longer. So this library, which
 * comes before XLA in the search order of its symbols, puts a function of its
 * own in place of the one that makes builders, and a lock around each. Building
 * happens a few times per executable and device. */
#include "device/xla_cpu/library_graphs.hh"

#include <dlfcn.h>

#include <atomic>
#include <memory>
#include <mutex>
#include <utility>

#include "xla/backends/cpu/ynn_emitter.h"

namespace
{

using builder_t = absl::AnyInvocable<absl::StatusOr<xla::cpu::YnnSubgraph>(
    absl::Span<const stream_executor::DeviceAddressBase>)>;
using emit_t = absl::StatusOr<builder_t> (*)(const xla::HloComputation *);

std::atomic<uint64_t> graph_count{0};

emit_t xla_emit()
{
    static const emit_t emit = reinterpret_cast<emit_t>(dlsym(
        RTLD_NEXT, "_ZN3xla3cpu20EmitYnnFusionBuilderEPKNS_14HloComputationE"));
    return emit;
}

} // namespace

namespace xla::cpu
{

__attribute__((visibility("default"))) absl::StatusOr<builder_t>
EmitYnnFusionBuilder(const HloComputation *computation)
{
    if (xla_emit() == nullptr)
        return absl::InternalError("XLA has no builder of YNNPACK fusions");
    absl::StatusOr<builder_t> built = xla_emit()(computation);
    if (!built.ok()) return built;
    return builder_t(
        [lock = std::make_unique<std::mutex>(), build = *std::move(built)](
            absl::Span<const stream_executor::DeviceAddressBase>
                arguments) mutable {
            std::lock_guard<std::mutex> hold(*lock);
            graph_count.fetch_add(1, std::memory_order_relaxed);
            return build(arguments);
        });
}

} // namespace xla::cpu

namespace tow
{

uint64_t library_graph_count() noexcept
{
    return graph_count.load(std::memory_order_relaxed);
}

} // namespace tow
