/* Which XLA options and custom calls a client may use. Some of XLA's options
 * write files or affect the whole process, and some custom calls and
 * instructions have effects outside the computation. Programs and options come
 * from users, so everything that is not listed here is refused. (The operator
 * may still set options in XLA_FLAGS.) */
#ifndef TOW_DEVICE_XLA_CPU_POLICY_IMPL_HH_
#define TOW_DEVICE_XLA_CPU_POLICY_IMPL_HH_

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "device/xla_cpu/callback.h"
#include "device/xla_cpu/lapack/lapack.h"
#include "device/xla_cpu/partition_query.hh"
#include "google/protobuf/descriptor.h"
#include "google/protobuf/io/coded_stream.h"
#include "google/protobuf/io/zero_copy_stream_impl_lite.h"
#include "google/protobuf/message.h"
#include "xla/debug_options_flags.h"
#include "xla/service/hlo.pb.h"
#include "xla/xla.pb.h"

namespace tow
{

/* Options that are allowed although they hold text, contain a refused word, or
 * have no allowed prefix. (Only the GPU compiler, which is not built in, reads
 * xla_gpu_cuda_data_dir.) */
inline constexpr absl::string_view ALLOWED_OPTIONS[] = {
    "xla_cpu_max_isa",
    "xla_detailed_logging",
    "xla_disable_hlo_passes",
    "xla_dump_max_hlo_modules", /* a bound; turning dumps on is refused */
    "xla_embed_ir_in_executable",
    "xla_enable_hlo_passes_only",
    "xla_force_host_platform_device_count",
    "xla_gpu_cuda_data_dir",
    "xla_hlo_evaluator_use_fast_path",
    "xla_keep_shardings_after_spmd",
    "xla_partitioning_algorithm",
    "xla_step_marker_location",
    "xla_syntax_sugar_async_ops",
};

/* Prefixes of numeric and boolean options that only affect code generation, or
 * that the CPU compiler does not read. */
inline constexpr absl::string_view ALLOWED_OPTION_PREFIXES[] = {
    "xla_allow_",         "xla_backend_optimization_level",
    "xla_cpu_",           "xla_detect_",
    "xla_disable_",       "xla_early_exit_with_layouts",
    "xla_eliminate_",     "xla_enable_",
    "xla_gpu_",           "xla_llvm_",
    "xla_multiheap_",     "xla_pjrt_",
    "xla_reduce_window_", "xla_test_",
    "xla_tpu_",           "xla_unsupported_",
};

/* Words in the names of options that write or read files, whatever their
 * prefix. */
inline constexpr absl::string_view REFUSED_OPTION_WORDS[] = {
    "dump", "profile", "path", "file", "dir", "log", "cache", "extra_options",
};

inline bool may_set(const google::protobuf::FieldDescriptor *option)
{
    absl::string_view name = option->name();
    for (absl::string_view allowed : ALLOWED_OPTIONS)
        if (name == allowed) return true;

    using type = google::protobuf::FieldDescriptor;
    bool is_text = option->cpp_type() == type::CPPTYPE_STRING ||
                   option->cpp_type() == type::CPPTYPE_MESSAGE;
    if (is_text) return false;
    for (absl::string_view word : REFUSED_OPTION_WORDS)
        if (absl::StrContains(name, word)) return false;
    for (absl::string_view prefix : ALLOWED_OPTION_PREFIXES)
        if (absl::StartsWith(name, prefix)) return true;
    return false;
}

/* Removes one field from `options` and returns it serialised, with maps ordered
 * by key. */
inline std::string take_field(xla::DebugOptions &options,
                              const google::protobuf::FieldDescriptor *field)
{
    xla::DebugOptions alone;
    options.GetReflection()->SwapFields(&options, &alone, {field});
    std::string bytes;
    {
        google::protobuf::io::StringOutputStream stream(&bytes);
        google::protobuf::io::CodedOutputStream coded(&stream);
        coded.SetSerializationDeterministic(true);
        alone.SerializeToCodedStream(&coded);
    }
    return bytes;
}

/* JAX sends every option that its own XLA knows, so values that equal the
 * default or the operator's setting pass. Options that this XLA does not know
 * pass too: nothing reads them. */
inline absl::Status check_options(xla::DebugOptions sent)
{
    xla::DebugOptions defaults = xla::DefaultDebugOptionsIgnoringFlags();
    xla::DebugOptions operators = xla::GetDebugOptionsFromFlags();
    const google::protobuf::Descriptor *type = sent.GetDescriptor();
    std::vector<std::string> refused;
    for (int i = 0; i < type->field_count(); i++) {
        const google::protobuf::FieldDescriptor *field = type->field(i);
        std::string value = take_field(sent, field);
        if (value.empty() || value == take_field(defaults, field) ||
            value == take_field(operators, field))
            continue;
        if (!may_set(field)) refused.push_back(std::string(field->name()));
    }
    if (refused.empty()) return absl::OkStatus();
    return absl::PermissionDeniedError(absl::StrCat(
        "XLA options with effects outside the computation cannot be set by a "
        "client: ",
        absl::StrJoin(refused, ", "), "; leave them at their defaults"));
}

/* Annotations that XLA's own passes replace, and pure functions inside XLA. */
inline constexpr absl::string_view ALLOWED_CUSTOM_CALLS[] = {
    "AllocateBuffer",
    "ApproxTopK",
    "AssumeGatherIndicesInBound",
    "Cholesky",
    "Eigh",
    "GlobalToLocalShape",
    "LayoutConstraint",
    "LocalToGlobalShape",
    "LuDecomposition",
    "MoveToDevice",
    "MoveToHost",
    "NopReturnToken",
    "PadToStatic",
    "PartialReduce",
    "ProductOfElementaryHouseholderReflectors",
    "Qr",
    "QrDecomposition",
    "SPMDFullToShardShape",
    "SPMDShardToFullShape",
    "Sharding",
    "SliceToDynamic",
    "TopK",
    "X64Combine",
    "X64SplitHigh",
    "X64SplitLow",
    "annotate_device_placement",
    "mhlo.topk",
    "mhlo.erf",
    "mhlo.asin",
    "mhlo.acos",
    "mhlo.acosh",
    "mhlo.asinh",
    "mhlo.atanh",
    "mhlo.cosh",
    "mhlo.sinh",
    "shape_assertion",
    "stablehlo.dynamic_broadcast_in_dim",
    "stablehlo.dynamic_iota",
    "stablehlo.dynamic_reshape",
    TOW_XLA_CALLBACK_TARGET,
    TOW_XLA_SHARD_CALLBACK_TARGET,
};

inline bool may_call(absl::string_view target)
{
    /* Shardy's annotations, which the partitioner removes. */
    if (absl::StartsWith(target, "xla.sdy.")) return true;
    for (absl::string_view allowed : ALLOWED_CUSTOM_CALLS)
        if (target == allowed) return true;
    /* The partitioner replaces these by the client's reply to a query. */
    if (is_partition_target(target)) return true;
    /* Pure functions of the adapter, which check their arguments. */
    return tow_lapack_handler(target.data(), target.size()) != nullptr;
}

/* Instructions that wait for a transfer with the host, which nothing here
 * makes: the execution would block its device for ever. */
inline bool talks_to_host(const xla::HloInstructionProto &instruction)
{
    const std::string &opcode = instruction.opcode();
    return opcode == "infeed" || opcode == "outfeed" ||
           ((opcode == "send" || opcode == "recv") &&
            instruction.is_host_transfer());
}

inline absl::Status check_program(const xla::HloModuleProto &module)
{
    for (const xla::HloComputationProto &computation : module.computations())
        for (const xla::HloInstructionProto &each :
             computation.instructions()) {
            if (talks_to_host(each))
                return absl::UnimplementedError(absl::StrCat(
                    each.opcode(), " (", each.name(),
                    "): transfers with the host inside a computation are not "
                    "supported; pass the array as an argument or a result"));
            if (each.opcode() == "custom-call" &&
                !may_call(each.custom_call_target()))
                return absl::PermissionDeniedError(absl::StrCat(
                    "custom call target '", each.custom_call_target(), "' (",
                    each.name(),
                    ") is not among those that clients may use on this "
                    "device"));
        }
    return absl::OkStatus();
}

} // namespace tow

#endif /* TOW_DEVICE_XLA_CPU_POLICY_IMPL_HH_ */
