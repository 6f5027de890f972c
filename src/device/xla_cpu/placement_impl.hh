/* Memory kinds. JAX annotates values to be placed in host memory (offloading,
 * out_shardings with such a memory kind) with a custom call that XLA's CPU
 * compiler does not know. Here device and host share one memory: annotations
 * become copies, most of which XLA removes, and the memory kinds of results are
 * recorded. */
#ifndef TOW_DEVICE_XLA_CPU_PLACEMENT_IMPL_HH_
#define TOW_DEVICE_XLA_CPU_PLACEMENT_IMPL_HH_

#include <string>
#include <unordered_map>
#include <vector>

#include "absl/strings/string_view.h"
#include "xla/service/hlo.pb.h"

namespace tow
{

inline bool is_call_of(const xla::HloInstructionProto &each,
                       absl::string_view target)
{
    return each.opcode() == "custom-call" &&
           each.custom_call_target() == target;
}

inline bool is_placement(const xla::HloInstructionProto &each)
{
    return is_call_of(each, "annotate_device_placement") &&
           each.operand_ids_size() == 1;
}

/* Operations between an annotation and the result that change no value. */
inline bool is_transparent(const xla::HloInstructionProto &each)
{
    return each.operand_ids_size() >= 1 &&
           (is_call_of(each, "Sharding") ||
            is_call_of(each, "xla.sdy.FuncResultSharding") ||
            each.opcode() == "copy" || each.opcode() == "reshape");
}

using instructions_by_id =
    std::unordered_map<int64_t, const xla::HloInstructionProto *>;

inline const xla::HloInstructionProto *find_instruction(
    const instructions_by_id &by_id, int64_t id)
{
    auto found = by_id.find(id);
    return found != by_id.end() ? found->second : nullptr;
}

/* One step towards the annotation of a value; nullptr if there is none. Ids
 * should only refer to earlier instructions, but the program comes from a
 * client: the caller bounds the number of steps. */
inline const xla::HloInstructionProto *before(
    const instructions_by_id &by_id, const xla::HloInstructionProto &each)
{
    if (is_transparent(each))
        return find_instruction(by_id, each.operand_ids(0));
    if (each.opcode() != "get-tuple-element" || each.operand_ids_size() != 1)
        return nullptr;
    const auto *tuple = find_instruction(by_id, each.operand_ids(0));
    if (tuple == nullptr || tuple->opcode() != "tuple" ||
        each.tuple_index() < 0 ||
        each.tuple_index() >= tuple->operand_ids_size())
        return nullptr;
    return find_instruction(by_id, tuple->operand_ids(each.tuple_index()));
}

inline std::string kind_of(const instructions_by_id &by_id, int64_t id)
{
    const auto *each = find_instruction(by_id, id);
    for (size_t i = 0; each != nullptr && i < by_id.size(); i++) {
        if (is_placement(*each)) {
            const auto &said = each->frontend_attributes().map();
            auto found = said.find("_xla_buffer_placement");
            return found != said.end() ? found->second : std::string();
        }
        each = before(by_id, *each);
    }
    return {};
}

inline const xla::HloComputationProto *entry_of(
    const xla::HloModuleProto &module)
{
    for (const auto &each : module.computations())
        if (each.id() == module.entry_computation_id()) return &each;
    return nullptr;
}

/* The memory kind that each result is annotated with; "" if none. */
inline std::vector<std::string> result_kinds(const xla::HloModuleProto &module)
{
    const xla::HloComputationProto *entry = entry_of(module);
    if (entry == nullptr) return {};
    instructions_by_id by_id;
    for (const auto &each : entry->instructions())
        by_id[each.id()] = &each;
    const auto *root = find_instruction(by_id, entry->root_id());
    if (root == nullptr) return {};
    if (root->opcode() != "tuple") return {kind_of(by_id, root->id())};
    std::vector<std::string> kinds;
    for (int64_t id : root->operand_ids())
        kinds.push_back(kind_of(by_id, id));
    return kinds;
}

/* Only these fields: XLA rejects a copy with fields of a call. */
inline xla::HloInstructionProto copy_for(const xla::HloInstructionProto &mark)
{
    xla::HloInstructionProto copy;
    copy.set_name(mark.name());
    copy.set_opcode("copy");
    *copy.mutable_shape() = mark.shape();
    *copy.mutable_metadata() = mark.metadata();
    copy.set_id(mark.id());
    copy.add_operand_ids(mark.operand_ids(0));
    if (mark.has_sharding()) *copy.mutable_sharding() = mark.sharding();
    return copy;
}

inline void remove_placements(xla::HloModuleProto &module)
{
    for (auto &computation : *module.mutable_computations())
        for (auto &each : *computation.mutable_instructions())
            if (is_placement(each)) each = copy_for(each);
}

} // namespace tow

#endif /* TOW_DEVICE_XLA_CPU_PLACEMENT_IMPL_HH_ */
