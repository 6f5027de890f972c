/* From a program's bytes to a loaded program and its description: parsing,
 * policy checks, compiling, and loading a serialised program onto other
 * devices. */
#ifndef TOW_DEVICE_XLA_CPU_PROGRAM_IMPL_HH_
#define TOW_DEVICE_XLA_CPU_PROGRAM_IMPL_HH_

#include <cstdio>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "device/xla_cpu/fiber_safety_impl.hh"
#include "device/xla_cpu/layout_impl.hh"
#include "device/xla_cpu/objects_impl.hh"
#include "device/xla_cpu/placement_impl.hh"
#include "device/xla_cpu/policy_impl.hh"
#include "xla/hlo/builder/xla_computation.h"
#include "xla/hlo/ir/hlo_module.h"
#include "xla/pjrt/pjrt_executable.h"
#include "xla/pjrt/proto/compile_options.pb.h"
#include "xla/service/computation_placer.h"

/* Declared in xla/pjrt/mlir_to_hlo.h, which needs headers that the wheel does
 * not carry. */
namespace xla
{
absl::Status ParseMlirModuleStringAndConvertToXlaComputation(
    std::string_view module, XlaComputation &computation, bool use_tuple_args,
    bool return_tuple);
} // namespace xla

namespace tow
{

/* The options of a caller that gave none. */
inline xla::CompileOptionsProto default_options()
{
    xla::CompileOptionsProto proto;
    proto.mutable_executable_build_options()->set_device_ordinal(-1);
    return proto;
}

/* Completes and checks the size of the gang; XLA does not check it. */
inline absl::Status settle_counts(xla::CompileOptionsProto &proto)
{
    auto *build = proto.mutable_executable_build_options();
    if (build->num_replicas() == 0) build->set_num_replicas(1);
    if (build->num_partitions() == 0) build->set_num_partitions(1);
    int64_t replicas = build->num_replicas();
    int64_t partitions = build->num_partitions();
    if (replicas < 1 || replicas > TOW_XLA_GANG_SIZE_MAX || partitions < 1 ||
        partitions > TOW_XLA_GANG_SIZE_MAX / replicas)
        return absl::InvalidArgumentError(absl::StrCat(
            "a gang of ", replicas, " replicas of ", partitions,
            " partitions; the limit is ", TOW_XLA_GANG_SIZE_MAX, " devices"));
    if (!build->has_device_assignment()) return absl::OkStatus();

    const xla::DeviceAssignmentProto &devices = build->device_assignment();
    bool fits = devices.replica_count() == replicas &&
                devices.computation_count() == partitions &&
                devices.computation_devices_size() == partitions;
    for (const auto &column : devices.computation_devices())
        fits = fits && column.replica_device_ids_size() == replicas;
    if (fits) return absl::OkStatus();
    return absl::InvalidArgumentError(
        absl::StrCat("the device assignment does not have ", replicas,
                     " replicas of ", partitions, " partitions"));
}

inline absl::StatusOr<xla::CompileOptions> checked_options(
    const xla::CompileOptionsProto &proto)
{
    auto options = xla::CompileOptions::FromProto(proto);
    if (!options.ok()) return options.status();
    /* Named overrides become debug options. */
    xla::CompileOptions applied = *options;
    absl::Status status = applied.ApplyAllOptionOverrides();
    if (!status.ok()) return status;
    const auto &build = applied.executable_build_options;
    if (build.has_debug_options())
        status = check_options(build.debug_options());
    if (!status.ok()) return status;
    return options;
}

inline absl::StatusOr<xla::CompileOptions> parse_options(
    absl::string_view bytes)
{
    xla::CompileOptionsProto proto = default_options();
    if (!bytes.empty() && !proto.ParseFromString(std::string(bytes)))
        return absl::InvalidArgumentError(
            "the compile options are not a CompileOptionsProto");
    absl::Status status = settle_counts(proto);
    if (!status.ok()) return status;
    return checked_options(proto);
}

/* The text around the position that an error of the compiler names
 * ("-:LINE:COLUMN: error"), because the message does not name an unknown
 * operation. Empty for bytecode, which has no lines. */
inline absl::string_view text_around(absl::string_view code,
                                     const std::string &message)
{
    size_t line = 0, column = 0;
    if (absl::StartsWith(code, "ML\xefR") ||
        std::sscanf(message.c_str(), "-:%zu:%zu", &line, &column) != 2)
        return {};
    for (; line > 1; line--) {
        size_t end = code.find('\n');
        if (end == absl::string_view::npos) return {};
        code.remove_prefix(end + 1);
    }
    code = code.substr(0, code.find('\n'));
    size_t before = TOW_XLA_QUOTE_LENGTH / 2;
    size_t first = column > before ? column - before : 0;
    if (first >= code.size()) return {};
    return code.substr(first, TOW_XLA_QUOTE_LENGTH);
}

inline absl::Status parse_error(absl::string_view code,
                                absl::string_view message)
{
    absl::string_view quote = text_around(code, std::string(message));
    return absl::InvalidArgumentError(
        absl::StrCat("cannot read the program: ", message,
                     quote.empty() ? "" : "\nat: ", quote));
}

/* XLA's own format, used by frameworks that do not emit StableHLO. */
inline absl::StatusOr<xla::XlaComputation> parse_hlo(absl::string_view code)
{
    xla::HloModuleProto proto;
    if (!proto.ParseFromString(std::string(code)) ||
        !proto.has_host_program_shape())
        return absl::InvalidArgumentError(
            "cannot read the program: it is not an HloModuleProto");
    return xla::XlaComputation(std::move(proto));
}

inline absl::StatusOr<xla::XlaComputation> parse_program(
    absl::string_view code, absl::string_view format, bool is_tupled)
{
    if (format != "mlir")
        return absl::InvalidArgumentError(
            absl::StrCat("program format '", format,
                         "' is not supported; use mlir (StableHLO)"));
    if (absl::ConsumePrefix(&code, TOW_XLA_HLO_MARK)) return parse_hlo(code);
    xla::XlaComputation computation;
    absl::Status status = xla::ParseMlirModuleStringAndConvertToXlaComputation(
        std::string_view(code.data(), code.size()), computation, is_tupled,
        false);
    if (!status.ok()) return parse_error(code, status.message());
    return computation;
}

/* --- The description of a loaded program ---------------------------------- */

inline std::vector<xla::Shape> parameter_shapes(const xla::HloModule &module,
                                                bool is_tupled)
{
    const xla::HloComputation *entry = module.entry_computation();
    if (is_tupled && entry->num_parameters() == 1)
        return leaves_of(entry->parameter_instruction(0)->shape());
    std::vector<xla::Shape> shapes;
    for (const xla::HloInstruction *each : entry->parameter_instructions())
        shapes.push_back(each->shape());
    return shapes;
}

inline void describe_aliases(program &made, const xla::HloModule &module,
                             bool is_tupled)
{
    module.input_output_alias_config().ForEachAlias(
        [&](const xla::ShapeIndex &output,
            const xla::HloInputOutputAliasConfig::Alias &alias) {
            tow_xla_alias_t entry = {};
            entry.output = output.empty() ? 0 : output[0];
            entry.parameter = alias.parameter_number;
            if (is_tupled && !alias.parameter_index.empty())
                entry.parameter = alias.parameter_index[0];
            entry.must = alias.must_alias();
            made.aliases.push_back(entry);
        });
}

inline absl::Status describe_donation(program &made,
                                      const xla::HloModule &module,
                                      bool is_tupled)
{
    auto donated = xla::ComputeParametersThatMustBeDonated(module, is_tupled);
    if (!donated.ok()) return donated.status();
    made.is_donated.resize(made.parameters.size());
    for (int index : *donated) {
        made.is_donated[index] = true;
        made.donated.push_back(index);
    }
    made.donates = !donated->empty();
    return absl::OkStatus();
}

inline std::vector<tow_xla_array_t> views_of(
    program &made, const std::vector<array_type> &types,
    const std::vector<std::string> &orders,
    const std::optional<std::vector<xla::OpSharding>> &shardings)
{
    std::vector<tow_xla_array_t> views;
    for (size_t i = 0; i < types.size(); i++) {
        tow_xla_array_t view = {};
        view.element_type = buffer_type_of(types[i].element);
        view.dimensions = types[i].dims.data();
        view.dimension_count = types[i].dims.size();
        view.size_bytes = types[i].size_bytes;
        view.order = {orders[i].data(), orders[i].size()};
        if (shardings.has_value() && i < shardings->size()) {
            made.shardings.push_back((*shardings)[i].SerializeAsString());
            view.sharding = {made.shardings.back().data(),
                             made.shardings.back().size()};
        }
        views.push_back(view);
    }
    return views;
}

inline void describe_for_c(program &made)
{
    /* Views point into these strings, so they must not move. */
    made.shardings.reserve(made.parameters.size() + made.outputs.size());
    made.parameter_views =
        views_of(made, made.parameters, made.parameter_orders,
                 made.loaded->GetParameterShardings());
    made.output_views = views_of(made, made.outputs, made.output_orders,
                                 made.loaded->GetOutputShardings());
    tow_xla_signature_t &signature = made.signature;
    signature.struct_size = sizeof(signature);
    signature.parameters = made.parameter_views.data();
    signature.parameter_count = made.parameter_views.size();
    signature.outputs = made.output_views.data();
    signature.output_count = made.output_views.size();
    signature.aliases = made.aliases.data();
    signature.alias_count = made.aliases.size();
    signature.donated = made.donated.data();
    signature.donated_count = made.donated.size();

    for (const array_type &type : made.outputs) {
        made.output_types.push_back(buffer_type_of(type.element));
        made.output_dims.insert(made.output_dims.end(), type.dims.begin(),
                                type.dims.end());
        made.output_dim_counts.push_back(type.dims.size());
        /* XLA's CPU client places all results in the default memory, which is
         * host memory, so they also are where the program wants them. */
        size_t index = made.output_memory_kinds.size();
        absl::string_view kind =
            made.client->devices[0]->default_memory->xla->kind();
        if (index < made.result_kinds.size() &&
            !made.result_kinds[index].empty())
            kind = made.result_kinds[index];
        made.output_memory_kinds.push_back(kind.data());
        made.output_memory_kind_sizes.push_back(kind.size());
    }
}

/* A buffer's shape must be known before its value is computed. */
inline absl::Status check_shape(const xla::Shape &shape)
{
    if (!shape.is_dynamic()) return absl::OkStatus();
    return absl::UnimplementedError(absl::StrCat(
        "dynamic shapes: the size of a result is known only after the run: ",
        shape.ToString()));
}

inline bool calls_client(const xla::HloModule &module)
{
    for (const xla::HloComputation *computation : module.computations())
        for (const xla::HloInstruction *each : computation->instructions())
            if (each->opcode() == xla::HloOpcode::kCustomCall &&
                (each->custom_call_target() == TOW_XLA_CALLBACK_TARGET ||
                 each->custom_call_target() == TOW_XLA_SHARD_CALLBACK_TARGET))
                return true;
    return false;
}

inline absl::Status describe(program &made)
{
    auto modules = made.loaded->GetHloModules();
    if (!modules.ok()) return modules.status();
    if (modules->size() != 1)
        return absl::UnimplementedError(
            absl::StrCat("programs of ", modules->size(),
                         " modules; only one is supported"));
    const xla::HloModule &module = *(*modules)[0];
    auto options = made.loaded->GetCompileOptions();
    if (!options.ok()) return options.status();
    bool is_tupled = options->parameter_is_tupled_arguments;

    made.is_portable = options->compile_portable_executable;
    made.name = made.loaded->name();
    if (auto print = made.loaded->FingerprintExecutable(); print.ok())
        made.fingerprint = *print;
    for (const xla::PjRtDevice *each : made.loaded->addressable_devices())
        made.devices.push_back(made.client->device_of(each));
    for (const xla::Shape &shape : parameter_shapes(module, is_tupled)) {
        made.parameters.push_back(array_type::of(shape));
        made.parameter_orders.push_back(stored_order(shape));
    }
    absl::Status status;
    for (const xla::Shape &shape : leaves_of(module.result_shape())) {
        status.Update(check_shape(shape));
        made.outputs.push_back(array_type::of(shape));
        made.output_orders.push_back(stored_order(shape));
    }
    if (!status.ok()) return status;
    describe_aliases(made, module, is_tupled);
    fiber_safety safety(module);
    made.looks_fiber_safe =
        safety.is_fiber_safe() &&
        (made.client->supports_fibers || safety.collective_count() == 0);
    made.fits_inline =
        safety.collective_count() <= TOW_XLA_INLINE_COLLECTIVES_MAX;
    made.calls_client = calls_client(module);
    status = describe_donation(made, module, is_tupled);
    if (status.ok()) describe_for_c(made);
    return status;
}

inline absl::StatusOr<program *> finished(
    PJRT_Client *client,
    absl::StatusOr<std::unique_ptr<xla::PjRtLoadedExecutable>> loaded,
    std::vector<std::string> result_kinds)
{
    if (!loaded.ok()) return loaded.status();
    auto made = std::make_unique<program>(client, *std::move(loaded));
    made->result_kinds = std::move(result_kinds);
    absl::Status status = describe(*made);
    if (!status.ok()) return status;
    return made.release();
}

inline absl::StatusOr<program *> compile(PJRT_Client *client,
                                         absl::string_view code,
                                         absl::string_view format,
                                         absl::string_view option_bytes)
{
    auto options = parse_options(option_bytes);
    if (!options.ok()) return options.status();
    auto computation =
        parse_program(code, format, options->parameter_is_tupled_arguments);
    if (!computation.ok()) return computation.status();
    std::vector<std::string> kinds = result_kinds(computation->proto());
    remove_placements(*computation->mutable_proto());
    absl::Status status = check_program(computation->proto());
    if (status.ok()) status = apply_layouts(code, *computation, *options);
    if (!status.ok()) return status;
    begin_queries();
    auto loaded = client->xla->CompileAndLoad(*computation, *options);
    status = end_queries();
    if (!status.ok()) return status;
    return finished(client, std::move(loaded), std::move(kinds));
}

/* --- Serialised executables ----------------------------------------------- */

/* Puts the devices of `overriding` in place of those that the program was
 * compiled for. All else is fixed in the code. */
inline absl::Status override_devices(xla::CompileOptionsProto &compiled,
                                     absl::string_view overriding)
{
    xla::CompileOptionsProto proto;
    if (!proto.ParseFromString(std::string(overriding)))
        return absl::InvalidArgumentError(
            "the overriding compile options are not a CompileOptionsProto");
    if (!proto.executable_build_options().has_device_assignment())
        return absl::OkStatus();
    const auto &devices = proto.executable_build_options().device_assignment();
    auto *build = compiled.mutable_executable_build_options();
    absl::Status status = settle_counts(compiled);
    if (!status.ok()) return status;
    if (devices.replica_count() != build->num_replicas() ||
        devices.computation_count() != build->num_partitions())
        return absl::InvalidArgumentError(absl::StrCat(
            "the program was compiled for ", build->num_replicas(),
            " replicas of ", build->num_partitions(),
            " partitions and cannot be loaded onto ", devices.replica_count(),
            " of ", devices.computation_count()));
    *build->mutable_device_assignment() = devices;
    build->set_device_ordinal(-1);
    compiled.set_compile_portable_executable(false);
    return settle_counts(compiled);
}

inline absl::StatusOr<program *> load(PJRT_Client *client,
                                      absl::string_view bytes,
                                      absl::string_view overriding)
{
    xla::ExecutableAndOptionsProto proto;
    if (!proto.ParseFromString(std::string(bytes)) ||
        proto.serialized_executable().empty())
        return absl::InvalidArgumentError(
            "the bytes are not an executable that this XLA has serialised");
    absl::Status status =
        override_devices(*proto.mutable_compile_options(), overriding);
    if (!status.ok()) return status;
    auto options = checked_options(proto.compile_options());
    if (!options.ok()) return options.status();
    return finished(client,
                    client->xla->LoadSerializedExecutable(bytes, *options,
                                                          xla::LoadOptions()),
                    {});
}

/* --- Costs ---------------------------------------------------------------- */

inline absl::Status compute_costs(program &made)
{
    auto costs = made.loaded->GetCostAnalysis();
    if (!costs.ok()) return costs.status();
    made.cost_names.reserve(costs->size());
    for (const auto &[name, value] : *costs) {
        const float *number = std::get_if<float>(&value);
        if (number == nullptr) continue;
        made.cost_names.push_back(name);
        PJRT_NamedValue entry = {};
        entry.struct_size = PJRT_NamedValue_STRUCT_SIZE;
        entry.name = made.cost_names.back().c_str();
        entry.name_size = made.cost_names.back().size();
        entry.type = PJRT_NamedValue_kFloat;
        entry.float_value = *number;
        entry.value_size = 1;
        made.costs.push_back(entry);
    }
    return absl::OkStatus();
}

} // namespace tow

#endif /* TOW_DEVICE_XLA_CPU_PROGRAM_IMPL_HH_ */
