/* PJRT's functions on executables, but for running them. */
#ifndef TOW_DEVICE_XLA_CPU_EXECUTABLE_IMPL_HH_
#define TOW_DEVICE_XLA_CPU_EXECUTABLE_IMPL_HH_

#include <cstring>
#include <mutex>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "device/xla_cpu/event_impl.hh"
#include "device/xla_cpu/objects_impl.hh"
#include "device/xla_cpu/program_impl.hh"
#include "device/xla_cpu/xla_cpu.h"
#include "xla/pjrt/c/pjrt_c_api.h"

/* Bytes that the caller frees by a deleter. */
struct PJRT_SerializedExecutable {
    std::string bytes;
};
struct PJRT_DeviceAssignmentSerialized {
    std::string bytes;
};
struct PJRT_SerializedCompileOptions {
    std::string bytes;
};

namespace tow
{
namespace
{

/* --- Compiling and loading ------------------------------------------------ */

absl::Status hand_out(absl::StatusOr<program *> made,
                      PJRT_LoadedExecutable **out)
{
    if (!made.ok()) return made.status();
    *out = new PJRT_LoadedExecutable{*made};
    return absl::OkStatus();
}

PJRT_Error *client_compile(PJRT_Client_Compile_Args *args)
{
    return at_edge([args] {
        const PJRT_Program &source = *args->program;
        return hand_out(
            compile(args->client, text(source.code, source.code_size),
                    text(source.format, source.format_size),
                    text(args->compile_options, args->compile_options_size)),
            &args->executable);
    });
}

PJRT_Error *executable_deserialize_and_load(
    PJRT_Executable_DeserializeAndLoad_Args *args)
{
    return at_edge([args] {
        return hand_out(
            load(args->client,
                 text(args->serialized_executable,
                      args->serialized_executable_size),
                 text(args->overridden_serialized_compile_options,
                      args->overridden_serialized_compile_options_size)),
            &args->loaded_executable);
    });
}

/* --- Describing an executable --------------------------------------------- */

PJRT_Error *executable_destroy(PJRT_Executable_Destroy_Args *args)
{
    if (args->executable == nullptr) return nullptr;
    args->executable->program->release();
    delete args->executable;
    return nullptr;
}

PJRT_Error *executable_name(PJRT_Executable_Name_Args *args)
{
    args->executable_name = args->executable->program->name.data();
    args->executable_name_size = args->executable->program->name.size();
    return nullptr;
}

PJRT_Error *executable_num_replicas(PJRT_Executable_NumReplicas_Args *args)
{
    args->num_replicas = args->executable->program->loaded->num_replicas();
    return nullptr;
}

PJRT_Error *executable_num_partitions(PJRT_Executable_NumPartitions_Args *args)
{
    args->num_partitions = args->executable->program->loaded->num_partitions();
    return nullptr;
}

PJRT_Error *executable_num_outputs(PJRT_Executable_NumOutputs_Args *args)
{
    args->num_outputs = args->executable->program->outputs.size();
    return nullptr;
}

PJRT_Error *executable_code_size(
    PJRT_Executable_SizeOfGeneratedCodeInBytes_Args *args)
{
    args->size_in_bytes =
        args->executable->program->loaded->SizeOfGeneratedCodeInBytes();
    return nullptr;
}

PJRT_Error *executable_output_types(
    PJRT_Executable_OutputElementTypes_Args *args)
{
    args->output_types = args->executable->program->output_types.data();
    args->num_output_types = args->executable->program->output_types.size();
    return nullptr;
}

PJRT_Error *executable_output_dimensions(
    PJRT_Executable_OutputDimensions_Args *args)
{
    const program &made = *args->executable->program;
    args->num_outputs = made.outputs.size();
    args->dims = made.output_dims.data();
    args->dim_sizes = made.output_dim_counts.data();
    return nullptr;
}

PJRT_Error *executable_output_memory_kinds(
    PJRT_Executable_OutputMemoryKinds_Args *args)
{
    const program &made = *args->executable->program;
    args->num_outputs = made.outputs.size();
    args->memory_kinds = made.output_memory_kinds.data();
    args->memory_kind_sizes = made.output_memory_kind_sizes.data();
    return nullptr;
}

PJRT_Error *executable_cost_analysis(PJRT_Executable_GetCostAnalysis_Args *args)
{
    return at_edge([args] {
        program &made = *args->executable->program;
        std::call_once(made.costs_once,
                       [&] { made.costs_status = compute_costs(made); });
        args->num_properties = made.costs.size();
        args->properties = made.costs.data();
        return made.costs_status;
    });
}

/* Several results are a tuple: XLA allocates the table of its elements while it
 * runs, and counts it as output. */
int64_t tuple_table_bytes(const program &what)
{
    const size_t count = what.outputs.size();
    return count > 1 ? static_cast<int64_t>(count * sizeof(void *)) : 0;
}

PJRT_Error *executable_memory_stats(
    PJRT_Executable_GetCompiledMemoryStats_Args *args)
{
    return at_edge([args]() -> absl::Status {
        auto stats =
            args->executable->program->loaded->GetCompiledMemoryStats();
        if (!stats.ok()) return stats.status();
        args->generated_code_size_in_bytes =
            stats->generated_code_size_in_bytes;
        args->argument_size_in_bytes = stats->argument_size_in_bytes;
        args->output_size_in_bytes = stats->output_size_in_bytes;
        args->alias_size_in_bytes = stats->alias_size_in_bytes;
        args->temp_size_in_bytes =
            stats->temp_size_in_bytes +
            tuple_table_bytes(*args->executable->program);
        args->host_generated_code_size_in_bytes =
            stats->host_generated_code_size_in_bytes;
        args->host_argument_size_in_bytes = stats->host_argument_size_in_bytes;
        args->host_output_size_in_bytes = stats->host_output_size_in_bytes;
        args->host_alias_size_in_bytes = stats->host_alias_size_in_bytes;
        args->host_temp_size_in_bytes = stats->host_temp_size_in_bytes;
        /* Newer than the rest: older callers have no room for them. */
        if (args->struct_size >=
            PJRT_STRUCT_SIZE(PJRT_Executable_GetCompiledMemoryStats_Args,
                             peak_memory_in_bytes))
            args->peak_memory_in_bytes = stats->peak_memory_in_bytes;
        if (args->struct_size >=
            PJRT_Executable_GetCompiledMemoryStats_Args_STRUCT_SIZE)
            args->total_size_in_bytes = stats->total_size_in_bytes;
        return absl::OkStatus();
    });
}

PJRT_Error *executable_serialize(PJRT_Executable_Serialize_Args *args)
{
    return at_edge([args]() -> absl::Status {
        auto bytes = args->executable->program->loaded->SerializeExecutable();
        if (!bytes.ok()) return bytes.status();
        auto *holder = new PJRT_SerializedExecutable{*std::move(bytes)};
        args->serialized_executable = holder;
        args->serialized_bytes = holder->bytes.data();
        args->serialized_bytes_size = holder->bytes.size();
        args->serialized_executable_deleter =
            [](PJRT_SerializedExecutable *done) { delete done; };
        return absl::OkStatus();
    });
}

PJRT_Error *executable_compile_options(
    PJRT_Executable_GetCompileOptions_Args *args)
{
    return at_edge([args]() -> absl::Status {
        auto options = args->executable->program->loaded->GetCompileOptions();
        if (!options.ok()) return options.status();
        auto proto = options->ToProto();
        if (!proto.ok()) return proto.status();
        auto *holder =
            new PJRT_SerializedCompileOptions{proto->SerializeAsString()};
        args->serialized_compile_options = holder;
        args->serialized_bytes = holder->bytes.data();
        args->serialized_bytes_size = holder->bytes.size();
        args->serialized_compile_options_deleter =
            [](PJRT_SerializedCompileOptions *done) { delete done; };
        return absl::OkStatus();
    });
}

PJRT_Error *executable_fingerprint(PJRT_Executable_Fingerprint_Args *args)
{
    const std::string &print = args->executable->program->fingerprint;
    args->executable_fingerprint = print.data();
    args->executable_fingerprint_size = print.size();
    return nullptr;
}

PJRT_Error *executable_optimized_program(
    PJRT_Executable_OptimizedProgram_Args *args)
{
    return at_edge([args]() -> absl::Status {
        auto modules = args->executable->program->loaded->GetHloModules();
        if (!modules.ok()) return modules.status();
        static const char format[] = "hlo";
        std::string bytes = (*modules)[0]->ToProto().SerializeAsString();
        PJRT_Program &out = *args->program;
        out.format = format;
        out.format_size = sizeof(format) - 1;
        if (out.code == nullptr) {
            out.code_size = bytes.size();
            return absl::OkStatus();
        }
        if (out.code_size < bytes.size())
            return absl::InvalidArgumentError(
                absl::StrCat("the program has ", bytes.size(),
                             " bytes, but the buffer has ", out.code_size));
        std::memcpy(out.code, bytes.data(), bytes.size());
        return absl::OkStatus();
    });
}

PJRT_Error *executable_signature(PJRT_Executable *executable,
                                 const tow_xla_signature_t **out_signature)
{
    *out_signature = &executable->program->signature;
    return nullptr;
}

PJRT_Error *loaded_destroy(PJRT_LoadedExecutable_Destroy_Args *args)
{
    if (args->executable == nullptr) return nullptr;
    args->executable->program->release();
    delete args->executable;
    return nullptr;
}

PJRT_Error *loaded_get_executable(
    PJRT_LoadedExecutable_GetExecutable_Args *args)
{
    return at_edge([args] {
        program *made = args->loaded_executable->program;
        args->executable = new PJRT_Executable{made};
        made->retain();
        return absl::OkStatus();
    });
}

PJRT_Error *loaded_addressable_devices(
    PJRT_LoadedExecutable_AddressableDevices_Args *args)
{
    const program &made = *args->executable->program;
    args->addressable_devices = made.devices.data();
    args->num_addressable_devices = made.devices.size();
    return nullptr;
}

PJRT_Error *loaded_device_assignment(
    PJRT_LoadedExecutable_GetDeviceAssignment_Args *args)
{
    return at_edge([args]() -> absl::Status {
        const program &made = *args->executable->program;
        if (made.is_portable)
            return absl::FailedPreconditionError(absl::StrCat(
                made.name, " is portable: it has no device assignment"));
        xla::DeviceAssignmentProto proto;
        made.loaded->device_assignment().Serialize(&proto);
        auto *holder =
            new PJRT_DeviceAssignmentSerialized{proto.SerializeAsString()};
        args->serialized_device_assignment = holder;
        args->serialized_bytes = holder->bytes.data();
        args->serialized_bytes_size = holder->bytes.size();
        args->serialized_device_assignment_deleter =
            [](PJRT_DeviceAssignmentSerialized *done) { delete done; };
        return absl::OkStatus();
    });
}

PJRT_Error *loaded_delete(PJRT_LoadedExecutable_Delete_Args *args)
{
    args->executable->deleted = true;
    return nullptr;
}

PJRT_Error *loaded_is_deleted(PJRT_LoadedExecutable_IsDeleted_Args *args)
{
    args->is_deleted = args->executable->deleted;
    return nullptr;
}

PJRT_Error *loaded_fingerprint(PJRT_LoadedExecutable_Fingerprint_Args *args)
{
    const std::string &print = args->executable->program->fingerprint;
    args->executable_fingerprint = print.data();
    args->executable_fingerprint_size = print.size();
    return nullptr;
}

} // namespace
} // namespace tow

#endif /* TOW_DEVICE_XLA_CPU_EXECUTABLE_IMPL_HH_ */
