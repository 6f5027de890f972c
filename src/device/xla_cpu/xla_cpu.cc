/* XLA's CPU client as a PJRT plugin: the table of functions.
 *
 * What is behind them: objects_impl.hh (what the pointers point at),
 * program_impl.hh (compiling and loading), run_impl.hh (executions and copies),
 * collective_impl.hh (the way out to C), policy_impl.hh (what clients may ask
 * for), wait_impl.hh (threads and events). All in one translation unit, for one
 * inclusion of XLA's headers costs a minute.
 *
 * Every function may be called from any thread. None blocks on a device, except
 * PJRT_Event_Await, the destruction of a client, and an execution that asks to
 * run inline. */
#include "device/xla_cpu/xla_cpu.h"

#include <cstring>
#include <memory>
#include <new>
#include <string>
#include <utility>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/log/globals.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "device/xla_cpu/objects_impl.hh"
#include "device/xla_cpu/program_impl.hh"
#include "device/xla_cpu/run_impl.hh"
#include "xla/pjrt/c/pjrt_c_api.h"
#include "xla/pjrt/plugin/xla_cpu/cpu_client_options.h"
#include "xla/pjrt/plugin/xla_cpu/xla_cpu_pjrt_client.h"

/* Declared in xla/pjrt/mlir_to_hlo.h; see program_impl.hh. */
namespace xla
{
std::string GetDefaultStablehloVersion();
}

namespace tow
{
namespace
{

/* --- The edge -------------------------------------------------------------- */

PJRT_Error *error_of(absl::Status status) noexcept
{
    if (status.ok()) return nullptr;
    static PJRT_Error *const no_memory =
        new PJRT_Error{absl::ResourceExhaustedError("out of memory")};
    auto *error = new (std::nothrow) PJRT_Error{std::move(status)};
    return error != nullptr ? error : no_memory;
}

template <typename Body> PJRT_Error *at_edge(Body body) noexcept
{
    return error_of(guarded(std::move(body)));
}

absl::string_view text(const char *data, size_t size)
{
    return data == nullptr ? absl::string_view()
                           : absl::string_view(data, size);
}

void error_destroy(PJRT_Error_Destroy_Args *args)
{
    delete args->error;
}

void error_message(PJRT_Error_Message_Args *args)
{
    args->message = args->error->status.message().data();
    args->message_size = args->error->status.message().size();
}

PJRT_Error *error_get_code(PJRT_Error_GetCode_Args *args)
{
    args->code = static_cast<PJRT_Error_Code>(args->error->status.code());
    return nullptr;
}

/* --- The plugin ------------------------------------------------------------ */

PJRT_Error *plugin_initialize(PJRT_Plugin_Initialize_Args *)
{
    return nullptr;
}

PJRT_NamedValue list_attribute(const char *name, const int64_t *values,
                               size_t count)
{
    PJRT_NamedValue attribute = {};
    attribute.struct_size = PJRT_NamedValue_STRUCT_SIZE;
    attribute.name = name;
    attribute.name_size = std::strlen(name);
    attribute.type = PJRT_NamedValue_kInt64List;
    attribute.int64_array_value = values;
    attribute.value_size = count;
    return attribute;
}

std::vector<int64_t> stablehlo_version()
{
    std::vector<int64_t> numbers;
    for (absl::string_view part :
         absl::StrSplit(xla::GetDefaultStablehloVersion(), '.'))
        numbers.push_back(std::strtoll(std::string(part).c_str(), nullptr, 10));
    return numbers;
}

/* With the first, JAX writes programs that this older StableHLO can read. */
PJRT_Error *plugin_attributes(PJRT_Plugin_Attributes_Args *args)
{
    static const auto *const current =
        new std::vector<int64_t>(stablehlo_version());
    static const int64_t minimum[] = {0, 9, 0};
    static const PJRT_NamedValue attributes[] = {
        list_attribute("stablehlo_current_version", current->data(),
                       current->size()),
        list_attribute("stablehlo_minimum_version", minimum, 3),
    };
    args->attributes = attributes;
    args->num_attributes = sizeof(attributes) / sizeof(attributes[0]);
    return nullptr;
}

/* --- Events ----------------------------------------------------------------- */

PJRT_Error *event_destroy(PJRT_Event_Destroy_Args *args)
{
    if (args->event != nullptr) args->event->release();
    return nullptr;
}

PJRT_Error *event_is_ready(PJRT_Event_IsReady_Args *args)
{
    args->is_ready = args->event->is_ready();
    return nullptr;
}

PJRT_Error *event_error(PJRT_Event_Error_Args *args)
{
    if (!args->event->is_ready())
        return error_of(absl::FailedPreconditionError(
            "the event is not ready; ask PJRT_Event_IsReady first"));
    return error_of(args->event->status());
}

PJRT_Error *event_await(PJRT_Event_Await_Args *args)
{
    args->event->await();
    return error_of(args->event->status());
}

struct user_callback final : waiter, pooled<user_callback> {
    user_callback(PJRT_Event_OnReadyCallback function, void *argument)
        : callback(function), user_arg(argument)
    {
    }

    void fire(const absl::Status &status) override
    {
        callback(error_of(status), user_arg);
    }

    const PJRT_Event_OnReadyCallback callback;
    void *const user_arg;
};

PJRT_Error *event_on_ready(PJRT_Event_OnReady_Args *args)
{
    return at_edge([args] {
        args->event->on_ready(
            std::make_unique<user_callback>(args->callback, args->user_arg));
        return absl::OkStatus();
    });
}

PJRT_Error *event_create(PJRT_Event_Create_Args *args)
{
    return at_edge([args] {
        args->event = new PJRT_Event;
        return absl::OkStatus();
    });
}

PJRT_Error *event_set(PJRT_Event_Set_Args *args)
{
    return at_edge([args] {
        if (args->event->is_ready())
            return absl::FailedPreconditionError("the event was set before");
        args->event->retain();
        args->event->complete(
            absl::Status(static_cast<absl::StatusCode>(args->error_code),
                         text(args->error_message, args->error_message_size)));
        args->event->release();
        return absl::OkStatus();
    });
}

PJRT_Event *completed_event(absl::Status status)
{
    auto *event = new PJRT_Event;
    event->complete(std::move(status));
    return event;
}

/* --- Making a client --------------------------------------------------------- */

struct client_options {
    int64_t process_id = 0;
    int64_t device_count = 1;
    int64_t memory_limit_bytes = 0;
    int64_t collectives = 0;
};

absl::Status read_option(const PJRT_NamedValue &option, client_options &into)
{
    absl::string_view name = text(option.name, option.name_size);
    struct {
        absl::string_view name;
        int64_t *value;
        int64_t minimum;
        int64_t maximum;
    } const known[] = {
        {"process_id", &into.process_id, 0, TOW_XLA_PROCESS_COUNT_MAX - 1},
        {"device_count", &into.device_count, 1, TOW_XLA_DEVICE_COUNT_MAX},
        {"memory_limit_bytes", &into.memory_limit_bytes, 0, INT64_MAX},
        {"tow_collectives", &into.collectives, INT64_MIN, INT64_MAX},
    };
    for (const auto &each : known) {
        if (each.name != name) continue;
        int64_t value = option.int64_value;
        if (option.type != PJRT_NamedValue_kInt64 || value < each.minimum ||
            value > each.maximum)
            return absl::InvalidArgumentError(
                absl::StrCat("create option ", name,
                             " is not a whole number "
                             "from ",
                             each.minimum, " to ", each.maximum));
        *each.value = value;
        return absl::OkStatus();
    }
    return absl::InvalidArgumentError(
        absl::StrCat("create option ", name, " is unknown here"));
}

void add_devices(PJRT_Client &client, int64_t memory_limit_bytes)
{
    for (xla::PjRtDevice *each : client.xla->addressable_devices()) {
        auto device = std::make_unique<PJRT_Device>(&client, each);
        device->account.limit = memory_limit_bytes;
        for (xla::PjRtMemorySpace *space : each->memory_spaces()) {
            client.owned_memories.push_back(std::make_unique<PJRT_Memory>(
                PJRT_Memory{space, device.get()}));
            client.memories.push_back(client.owned_memories.back().get());
            device->memories.push_back(client.memories.back());
        }
        device->default_memory =
            client.memory_of(each->default_memory_space().value());
        client.devices.push_back(device.get());
        client.owned_devices.push_back(std::move(device));
    }
}

absl::StatusOr<std::unique_ptr<PJRT_Client>> make_client(
    const client_options &options)
{
    auto client = std::make_unique<PJRT_Client>();
    auto find_run = [raw = client.get()](int64_t id) -> const current_run * {
        for (PJRT_Device *each : raw->devices)
            if (each->xla->global_device_id().value() == id) return &each->run;
        return nullptr;
    };
    client->collectives = std::make_shared<collectives>(
        reinterpret_cast<const tow_xla_collectives_t *>(options.collectives),
        find_run);

    xla::CpuClientOptions xla_options;
    xla_options.process_id = static_cast<int>(options.process_id);
    xla_options.cpu_device_count = static_cast<int>(options.device_count);
    /* Each device has a thread of its own; XLA must not use another. */
    xla_options.asynchronous = false;
    xla_options.collectives = client->collectives;
    xla_options.allocator = allocate;
    auto made = xla::GetXlaPjrtCpuClient(std::move(xla_options));
    if (!made.ok()) return made.status();
    client->xla = *std::move(made);
    add_devices(*client, options.memory_limit_bytes);
    client->copier = std::make_unique<worker>("tow-cpu-copy");
    return client;
}

/* XLA tells standard error what it found in the machine; errors are enough,
 * unless someone asked for more. */
void quiet_log()
{
    if (getenv("TF_CPP_MIN_LOG_LEVEL") == nullptr)
        absl::SetStderrThreshold(absl::LogSeverityAtLeast::kError);
}

PJRT_Error *client_create(PJRT_Client_Create_Args *args)
{
    return at_edge([args] {
        quiet_log();
        client_options options;
        for (size_t i = 0; i < args->num_options; i++) {
            absl::Status status = read_option(args->create_options[i], options);
            if (!status.ok()) return status;
        }
        auto client = make_client(options);
        if (!client.ok()) return client.status();
        args->client = client->release();
        return absl::OkStatus();
    });
}

PJRT_Error *client_destroy(PJRT_Client_Destroy_Args *args)
{
    delete args->client;
    return nullptr;
}

/* --- Asking a client, a device, a memory ------------------------------------ */

PJRT_Error *client_platform_name(PJRT_Client_PlatformName_Args *args)
{
    absl::string_view name = args->client->xla->platform_name();
    args->platform_name = name.data();
    args->platform_name_size = name.size();
    return nullptr;
}

PJRT_Error *client_platform_version(PJRT_Client_PlatformVersion_Args *args)
{
    static const char version[] = "XLA of tensorflow-cpu 2.21";
    args->platform_version = version;
    args->platform_version_size = sizeof(version) - 1;
    return nullptr;
}

PJRT_Error *client_process_index(PJRT_Client_ProcessIndex_Args *args)
{
    args->process_index = args->client->xla->process_index();
    return nullptr;
}

PJRT_Error *client_devices(PJRT_Client_Devices_Args *args)
{
    args->devices = args->client->devices.data();
    args->num_devices = args->client->devices.size();
    return nullptr;
}

PJRT_Error *client_addressable_devices(
    PJRT_Client_AddressableDevices_Args *args)
{
    args->addressable_devices = args->client->devices.data();
    args->num_addressable_devices = args->client->devices.size();
    return nullptr;
}

PJRT_Error *client_lookup_device(PJRT_Client_LookupDevice_Args *args)
{
    return at_edge([args] {
        for (PJRT_Device *each : args->client->devices)
            if (each->xla->global_device_id().value() == args->id) {
                args->device = each;
                return absl::OkStatus();
            }
        return absl::NotFoundError(
            absl::StrCat("no device ", args->id, " in this client"));
    });
}

PJRT_Error *client_lookup_addressable_device(
    PJRT_Client_LookupAddressableDevice_Args *args)
{
    return at_edge([args] {
        for (PJRT_Device *each : args->client->devices)
            if (each->xla->local_hardware_id().value() ==
                args->local_hardware_id) {
                args->addressable_device = each;
                return absl::OkStatus();
            }
        return absl::NotFoundError(
            absl::StrCat("no device with local id ", args->local_hardware_id));
    });
}

PJRT_Error *client_addressable_memories(
    PJRT_Client_AddressableMemories_Args *args)
{
    args->addressable_memories = args->client->memories.data();
    args->num_addressable_memories = args->client->memories.size();
    return nullptr;
}

PJRT_Error *client_default_device_assignment(
    PJRT_Client_DefaultDeviceAssignment_Args *args)
{
    return at_edge([args]() -> absl::Status {
        auto devices = args->client->xla->GetDefaultDeviceAssignment(
            args->num_replicas, args->num_partitions);
        if (!devices.ok()) return devices.status();
        size_t count = static_cast<size_t>(args->num_replicas) *
                       static_cast<size_t>(args->num_partitions);
        if (args->default_assignment_size < count)
            return absl::InvalidArgumentError(
                absl::StrCat("room for ", args->default_assignment_size,
                             " devices, but there are ", count));
        for (size_t i = 0; i < count; i++)
            args->default_assignment[i] = static_cast<int>(
                (*devices)(i / args->num_partitions, i % args->num_partitions));
        return absl::OkStatus();
    });
}

PJRT_Error *description_id(PJRT_DeviceDescription_Id_Args *args)
{
    args->id = args->device_description->xla->id();
    return nullptr;
}

PJRT_Error *description_process_index(
    PJRT_DeviceDescription_ProcessIndex_Args *args)
{
    args->process_index = args->device_description->xla->process_index();
    return nullptr;
}

PJRT_Error *description_attributes(PJRT_DeviceDescription_Attributes_Args *args)
{
    args->attributes = nullptr;
    args->num_attributes = 0;
    return nullptr;
}

PJRT_Error *description_kind(PJRT_DeviceDescription_Kind_Args *args)
{
    absl::string_view kind = args->device_description->xla->device_kind();
    args->device_kind = kind.data();
    args->device_kind_size = kind.size();
    return nullptr;
}

PJRT_Error *description_debug_string(
    PJRT_DeviceDescription_DebugString_Args *args)
{
    absl::string_view words = args->device_description->xla->DebugString();
    args->debug_string = words.data();
    args->debug_string_size = words.size();
    return nullptr;
}

PJRT_Error *description_to_string(PJRT_DeviceDescription_ToString_Args *args)
{
    absl::string_view words = args->device_description->xla->ToString();
    args->to_string = words.data();
    args->to_string_size = words.size();
    return nullptr;
}

PJRT_Error *device_get_description(PJRT_Device_GetDescription_Args *args)
{
    args->device_description = &args->device->description;
    return nullptr;
}

PJRT_Error *device_is_addressable(PJRT_Device_IsAddressable_Args *args)
{
    args->is_addressable = true;
    return nullptr;
}

PJRT_Error *device_local_hardware_id(PJRT_Device_LocalHardwareId_Args *args)
{
    args->local_hardware_id = args->device->xla->local_hardware_id().value();
    return nullptr;
}

PJRT_Error *device_addressable_memories(
    PJRT_Device_AddressableMemories_Args *args)
{
    args->memories = args->device->memories.data();
    args->num_memories = args->device->memories.size();
    return nullptr;
}

PJRT_Error *device_default_memory(PJRT_Device_DefaultMemory_Args *args)
{
    args->memory = args->device->default_memory;
    return nullptr;
}

PJRT_Error *device_memory_stats(PJRT_Device_MemoryStats_Args *args)
{
    const memory_account &account = args->device->account;
    args->bytes_in_use = account.needed();
    args->peak_bytes_in_use = account.peak.load();
    args->peak_bytes_in_use_is_set = true;
    args->num_allocs = account.count.load();
    args->num_allocs_is_set = true;
    args->largest_alloc_size = account.largest.load();
    args->largest_alloc_size_is_set = true;
    args->bytes_limit = account.limit;
    args->bytes_limit_is_set = account.limit != 0;
    args->bytes_reserved_is_set = false;
    args->peak_bytes_reserved_is_set = false;
    args->bytes_reservable_limit_is_set = false;
    args->largest_free_block_bytes_is_set = false;
    args->pool_bytes_is_set = false;
    args->peak_pool_bytes_is_set = false;
    return nullptr;
}

PJRT_Error *memory_id(PJRT_Memory_Id_Args *args)
{
    args->id = args->memory->xla->id();
    return nullptr;
}

PJRT_Error *memory_kind(PJRT_Memory_Kind_Args *args)
{
    args->kind = args->memory->xla->kind().data();
    args->kind_size = args->memory->xla->kind().size();
    return nullptr;
}

PJRT_Error *memory_kind_id(PJRT_Memory_Kind_Id_Args *args)
{
    args->kind_id = args->memory->xla->kind_id();
    return nullptr;
}

PJRT_Error *memory_debug_string(PJRT_Memory_DebugString_Args *args)
{
    args->debug_string = args->memory->xla->DebugString().data();
    args->debug_string_size = args->memory->xla->DebugString().size();
    return nullptr;
}

PJRT_Error *memory_to_string(PJRT_Memory_ToString_Args *args)
{
    args->to_string = args->memory->xla->ToString().data();
    args->to_string_size = args->memory->xla->ToString().size();
    return nullptr;
}

PJRT_Error *memory_addressable_by_devices(
    PJRT_Memory_AddressableByDevices_Args *args)
{
    args->devices = &args->memory->device;
    args->num_devices = 1;
    return nullptr;
}

/* --- Compiling and loading --------------------------------------------------- */

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

/* --- Asking an executable ---------------------------------------------------- */

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
        args->temp_size_in_bytes = stats->temp_size_in_bytes;
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

} // namespace
} // namespace tow

/* Bytes that a caller gives back through a deleter. */
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
                             " bytes, but there is room for ", out.code_size));
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
                made.name, " is portable: it has no devices of its own"));
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

/* --- Executing ---------------------------------------------------------------- */

struct run_options {
    uint64_t run_id = 0;
    uint32_t flags = 0;
    absl::Span<const int64_t> kept_inputs;
};

run_options options_of(const PJRT_ExecuteOptions *given)
{
    run_options options;
    if (given == nullptr) return options;
    options.run_id = static_cast<uint32_t>(given->launch_id);
    options.kept_inputs = {given->non_donatable_input_indices,
                           given->num_non_donatable_input_indices};
    for (const PJRT_Extension_Base *node = given->extension_start;
         node != nullptr; node = node->next) {
        if (static_cast<int>(node->type) != TOW_XLA_EXECUTE_OPTIONS_TYPE)
            continue;
        auto *own = reinterpret_cast<const tow_xla_execute_options_t *>(node);
        options.run_id = own->run_id;
        options.flags = own->flags;
    }
    return options;
}

absl::Status check_argument(const program &what, const PJRT_Device *where,
                            size_t index, const PJRT_Buffer *buffer)
{
    if (buffer == nullptr)
        return absl::InvalidArgumentError(
            absl::StrCat("argument ", index, " of ", what.name, " is null"));
    if (!(buffer->type == what.parameters[index]))
        return absl::InvalidArgumentError(
            absl::StrCat("argument ", index, " of ", what.name, " is ",
                         buffer->type.to_string(), ", but the program takes ",
                         what.parameters[index].to_string()));
    if (buffer->device() != where)
        return absl::InvalidArgumentError(absl::StrCat(
            "argument ", index, " of ", what.name, " is on device ",
            buffer->device()->xla->global_device_id().value(),
            ", but is needed on ", where->xla->global_device_id().value()));
    if (buffer->is_deleted())
        return absl::InvalidArgumentError(
            absl::StrCat("argument ", index, " of ", what.name,
                         " was deleted or donated before"));
    return absl::OkStatus();
}

absl::Status check_call(const PJRT_LoadedExecutable_Execute_Args &args,
                        absl::Span<PJRT_Device *const> devices)
{
    const program &what = *args.executable->program;
    if (args.executable->deleted)
        return absl::InvalidArgumentError(
            absl::StrCat(what.name, " was deleted"));
    if (args.num_devices != devices.size())
        return absl::InvalidArgumentError(absl::StrCat(
            what.name, " runs on ", devices.size(),
            " devices of this client, but was called with arguments for ",
            args.num_devices));
    if (args.options != nullptr &&
        (args.options->num_send_ops != 0 || args.options->num_recv_ops != 0))
        return absl::UnimplementedError(
            "transfers to and from the host during an execution");
    if (args.num_args != what.parameters.size())
        return absl::InvalidArgumentError(
            absl::StrCat(what.name, " takes ", what.parameters.size(),
                         " arguments, but was called with ", args.num_args));
    for (size_t d = 0; d < devices.size(); d++) {
        for (size_t i = 0; i < args.num_args; i++) {
            absl::Status status =
                check_argument(what, devices[d], i, args.argument_lists[d][i]);
            if (!status.ok()) return status;
        }
        if (devices[d]->worker.is_full())
            return absl::ResourceExhaustedError(absl::StrCat(
                "device ", devices[d]->xla->global_device_id().value(), " has ",
                TOW_XLA_QUEUE_DEPTH_MAX,
                " executions waiting; wait for some of them"));
    }
    return absl::OkStatus();
}

/* Takes the inputs for the execution. A failure here is a race with a deletion
 * or the same buffer donated twice; it fails the execution, not the call. */
absl::Status take_inputs(execution &run, PJRT_Buffer *const *arguments,
                         const run_options &options)
{
    const program &what = *run.program;
    for (size_t i = 0; i < what.parameters.size(); i++) {
        PJRT_Buffer *buffer = arguments[i];
        bool kept = absl::c_linear_search(options.kept_inputs, i);
        bool donated = what.is_donated[i] && !kept;
        if (kept && what.is_donated[i])
            run.kept_inputs.push_back(static_cast<int>(i));
        if (donated ? !buffer->try_take_from_user() : !buffer->try_hold())
            return absl::InvalidArgumentError(absl::StrCat(
                "argument ", i, " of ", what.name, " was deleted or donated"));
        run.inputs.push_back({buffer, donated});
    }
    return absl::OkStatus();
}

void make_outputs(execution &run, PJRT_Buffer **out)
{
    for (const array_type &type : run.program->outputs) {
        auto *buffer = new PJRT_Buffer(type, run.device->default_memory, &run);
        buffer->is_result = true;
        buffer->try_hold();
        run.outputs.push_back(buffer);
        *out++ = buffer;
    }
}

void start(execution *run, absl::Status taken, const run_options &options,
           bool is_alone)
{
    if (!taken.ok()) {
        run->fail(std::move(taken));
        return;
    }
    if (is_alone && (options.flags & TOW_XLA_EXECUTE_INLINE) != 0 &&
        run->has_ready_inputs() && run->device->worker.try_run_here(run))
        return;
    run->device->worker.submit(run);
}

absl::Status execute_checked(PJRT_LoadedExecutable_Execute_Args &args,
                             absl::Span<PJRT_Device *const> devices)
{
    program *what = args.executable->program;
    run_options options = options_of(args.options);
    bool is_alone = devices.size() == 1;
    std::unique_lock<std::mutex> gang_lock;
    if (!is_alone)
        gang_lock = std::unique_lock<std::mutex>(what->client->gang_mutex);
    for (size_t d = 0; d < devices.size(); d++) {
        auto *run = new execution(what, devices[d], options.run_id);
        make_outputs(*run, args.output_lists[d]);
        if (args.device_complete_events != nullptr) {
            run->retain();
            args.device_complete_events[d] = run;
        }
        absl::Status taken = take_inputs(*run, args.argument_lists[d], options);
        start(run, std::move(taken), options, is_alone);
    }
    return absl::OkStatus();
}

PJRT_Error *loaded_execute(PJRT_LoadedExecutable_Execute_Args *args)
{
    return at_edge([args]() -> absl::Status {
        const program &what = *args->executable->program;
        absl::Span<PJRT_Device *const> devices = what.devices;
        if (args->execute_device != nullptr) {
            if (!what.is_portable &&
                !absl::c_linear_search(what.devices, args->execute_device))
                return absl::InvalidArgumentError(absl::StrCat(
                    what.name, " is not loaded on device ",
                    args->execute_device->xla->global_device_id().value()));
            devices = absl::MakeConstSpan(&args->execute_device, 1);
        } else if (what.is_portable) {
            return absl::InvalidArgumentError(absl::StrCat(
                what.name, " is portable: name the device to run it on"));
        }
        absl::Status status = check_call(*args, devices);
        return status.ok() ? execute_checked(*args, devices) : status;
    });
}

/* --- Buffers -------------------------------------------------------------------- */

/* Waits on XLA's side for a value that is there but not yet defined. */
PJRT_Event *event_of(const xla::Future<> &future)
{
    if (future.IsReady() && future.Await().ok()) return nullptr;
    auto *event = new PJRT_Event;
    event->retain();
    future.OnReady([event](const absl::Status &status) {
        event->complete(status);
        event->release();
    });
    return event;
}

PJRT_Buffer *wrap(std::unique_ptr<xla::PjRtBuffer> value, PJRT_Memory *memory)
{
    PJRT_Event *ready = event_of(value->GetReadyFuture());
    auto *buffer = new PJRT_Buffer(array_type::of(value->on_device_shape()),
                                   memory, ready);
    if (ready != nullptr) ready->release();
    buffer->value = std::move(value);
    return buffer;
}

absl::StatusOr<PJRT_Memory *> place_of(PJRT_Device *device, PJRT_Memory *memory)
{
    if (memory != nullptr) return memory;
    if (device != nullptr) return device->default_memory;
    return absl::InvalidArgumentError("neither a device nor a memory is given");
}

absl::StatusOr<std::optional<xla::Layout>> layout_of(
    const PJRT_Buffer_MemoryLayout *layout)
{
    if (layout == nullptr) return std::optional<xla::Layout>();
    if (layout->type != PJRT_Buffer_MemoryLayout_Type_Tiled ||
        layout->tiled.num_tiles != 0)
        return absl::UnimplementedError(
            "a memory layout of strides or tiles; give minor-to-major order");
    return std::optional<xla::Layout>(xla::Layout(absl::MakeConstSpan(
        layout->tiled.minor_to_major, layout->tiled.minor_to_major_size)));
}

absl::Status check_array(xla::PrimitiveType type,
                         absl::Span<const int64_t> dims)
{
    if (type == xla::PRIMITIVE_TYPE_INVALID || type == xla::TOKEN)
        return absl::InvalidArgumentError("the element type is unknown here");
    return xla::ShapeUtil::MakeValidatedShape(type, dims).status();
}

/* XLA says when it has done with the host's memory by calling back, once. */
struct host_release {
    explicit host_release(PJRT_Event *done) : event(done) {}

    host_release(host_release &&other)
        : event(std::exchange(other.event, nullptr))
    {
    }

    ~host_release()
    {
        if (event != nullptr) (*this)();
    }

    void operator()()
    {
        event->complete(absl::OkStatus());
        std::exchange(event, nullptr)->release();
    }

    PJRT_Event *event; /* counted */
};

absl::Status buffer_from_host(PJRT_Client_BufferFromHostBuffer_Args &args)
{
    auto memory = place_of(args.device, args.memory);
    if (!memory.ok()) return memory.status();
    auto layout = layout_of(args.device_layout);
    if (!layout.ok()) return layout.status();
    xla::PrimitiveType type = primitive_type_of(args.type);
    auto dims = absl::MakeConstSpan(args.dims, args.num_dims);
    absl::Status valid = check_array(type, dims);
    if (!valid.ok()) return valid;
    std::optional<absl::Span<const int64_t>> strides;
    if (args.num_byte_strides != 0)
        strides = absl::MakeConstSpan(args.byte_strides, args.num_byte_strides);
    if (strides.has_value() && strides->size() != dims.size())
        return absl::InvalidArgumentError("as many strides as dimensions");

    auto *done = new PJRT_Event;
    done->retain();
    charge allocations(&(*memory)->device->account);
    auto value = args.client->xla->BufferFromHostBuffer(
        args.data, type, dims, strides,
        static_cast<xla::PjRtClient::HostBufferSemantics>(
            args.host_buffer_semantics),
        host_release(done), (*memory)->xla,
        layout->has_value() ? &**layout : nullptr);
    if (!value.ok()) {
        done->release();
        return value.status();
    }
    args.buffer = wrap(*std::move(value), *memory);
    args.done_with_host_buffer = done;
    return absl::OkStatus();
}

PJRT_Error *client_buffer_from_host_buffer(
    PJRT_Client_BufferFromHostBuffer_Args *args)
{
    return at_edge([args] { return buffer_from_host(*args); });
}

PJRT_Error *client_create_uninitialized_buffer(
    PJRT_Client_CreateUninitializedBuffer_Args *args)
{
    return at_edge([args]() -> absl::Status {
        auto memory = place_of(args->device, args->memory);
        if (!memory.ok()) return memory.status();
        auto layout = layout_of(args->shape_layout);
        if (!layout.ok()) return layout.status();
        xla::PrimitiveType type = primitive_type_of(args->shape_element_type);
        auto dims = absl::MakeConstSpan(args->shape_dims, args->shape_num_dims);
        absl::Status valid = check_array(type, dims);
        if (!valid.ok()) return valid;
        xla::Shape shape = xla::ShapeUtil::MakeShape(type, dims);
        if (layout->has_value()) *shape.mutable_layout() = **layout;
        charge allocations(&(*memory)->device->account);
        auto value =
            args->client->xla->CreateUninitializedBuffer(shape, (*memory)->xla);
        if (!value.ok()) return value.status();
        args->buffer = wrap(*std::move(value), *memory);
        return absl::OkStatus();
    });
}

PJRT_Error *client_create_error_buffer(PJRT_Client_CreateErrorBuffer_Args *args)
{
    return at_edge([args]() -> absl::Status {
        xla::PrimitiveType type = primitive_type_of(args->shape_element_type);
        auto dims = absl::MakeConstSpan(args->shape_dims, args->shape_num_dims);
        absl::Status valid = check_array(type, dims);
        if (!valid.ok()) return valid;
        PJRT_Event *failed = completed_event(
            absl::Status(static_cast<absl::StatusCode>(args->error_code),
                         text(args->error_message, args->error_message_size)));
        args->buffer = new PJRT_Buffer(
            array_type::of(xla::ShapeUtil::MakeShape(type, dims)), args->memory,
            failed);
        failed->release();
        return absl::OkStatus();
    });
}

void delete_for_user(PJRT_Buffer *buffer)
{
    if (buffer->try_take_from_user()) buffer->drop_hold();
}

PJRT_Error *buffer_destroy(PJRT_Buffer_Destroy_Args *args)
{
    if (args->buffer == nullptr) return nullptr;
    delete_for_user(args->buffer);
    args->buffer->release();
    return nullptr;
}

PJRT_Error *buffer_delete(PJRT_Buffer_Delete_Args *args)
{
    delete_for_user(args->buffer);
    return nullptr;
}

PJRT_Error *buffer_is_deleted(PJRT_Buffer_IsDeleted_Args *args)
{
    args->is_deleted = args->buffer->is_deleted();
    return nullptr;
}

PJRT_Error *buffer_element_type(PJRT_Buffer_ElementType_Args *args)
{
    args->type = buffer_type_of(args->buffer->type.element);
    return nullptr;
}

PJRT_Error *buffer_dimensions(PJRT_Buffer_Dimensions_Args *args)
{
    args->dims = args->buffer->type.dims.data();
    args->num_dims = args->buffer->type.dims.size();
    return nullptr;
}

PJRT_Error *buffer_unpadded_dimensions(
    PJRT_Buffer_UnpaddedDimensions_Args *args)
{
    args->unpadded_dims = args->buffer->type.dims.data();
    args->num_dims = args->buffer->type.dims.size();
    return nullptr;
}

PJRT_Error *buffer_dynamic_dimensions(
    PJRT_Buffer_DynamicDimensionIndices_Args *args)
{
    args->dynamic_dim_indices = nullptr;
    args->num_dynamic_dims = 0;
    return nullptr;
}

PJRT_Error *buffer_size(PJRT_Buffer_OnDeviceSizeInBytes_Args *args)
{
    args->on_device_size_in_bytes = args->buffer->type.size_bytes;
    return nullptr;
}

PJRT_Error *buffer_device(PJRT_Buffer_Device_Args *args)
{
    args->device = args->buffer->device();
    return nullptr;
}

PJRT_Error *buffer_memory(PJRT_Buffer_Memory_Args *args)
{
    args->memory = args->buffer->memory;
    return nullptr;
}

PJRT_Error *buffer_is_on_cpu(PJRT_Buffer_IsOnCpu_Args *args)
{
    args->is_on_cpu = true;
    return nullptr;
}

absl::Status deleted_error()
{
    return absl::InvalidArgumentError("the buffer was deleted or donated");
}

PJRT_Error *buffer_ready_event(PJRT_Buffer_ReadyEvent_Args *args)
{
    return at_edge([args] {
        PJRT_Buffer *buffer = args->buffer;
        if (buffer->is_deleted()) {
            args->event = completed_event(deleted_error());
        } else if (buffer->ready == nullptr) {
            args->event = completed_event(absl::OkStatus());
        } else {
            buffer->ready->retain();
            args->event = buffer->ready;
        }
        return absl::OkStatus();
    });
}

absl::Status too_many_copies()
{
    return absl::ResourceExhaustedError(absl::StrCat(
        TOW_XLA_QUEUE_DEPTH_MAX, " copies are waiting; wait for some of them"));
}

/* Takes a hold for `job`, which is new, and begins it. */
template <typename Job, typename... Arguments>
absl::StatusOr<PJRT_Event *> begin_read(PJRT_Buffer *source,
                                        Arguments &&...arguments)
{
    if (source->device()->client->copier->is_full()) return too_many_copies();
    if (!source->try_hold()) return deleted_error();
    copy *job = new Job(source, source->device()->client,
                        std::forward<Arguments>(arguments)...);
    job->retain();
    copy::begin(job);
    return job;
}

absl::Status read_to_host(PJRT_Buffer_ToHostBuffer_Args &args)
{
    const array_type &type = args.src->type;
    if (!type.is_array())
        return absl::InvalidArgumentError(
            absl::StrCat("a ", type.to_string(), " has no value to read"));
    auto layout = layout_of(args.host_layout);
    if (!layout.ok()) return layout.status();
    xla::Shape shape = xla::ShapeUtil::MakeShape(type.element, type.dims);
    xla::Layout dense = shape.layout();
    if (layout->has_value()) *shape.mutable_layout() = **layout;
    size_t needed = xla::ShapeUtil::ByteSizeOf(shape);
    if (args.dst == nullptr) {
        args.dst_size = needed;
        return absl::OkStatus();
    }
    if (args.dst_size < needed)
        return absl::InvalidArgumentError(
            absl::StrCat("the array has ", needed,
                         " bytes, but there is room for ", args.dst_size));
    bool is_raw = shape.layout() == dense && needed == type.size_bytes;
    auto event = is_raw
                     ? begin_read<raw_read>(args.src, args.dst, 0, needed)
                     : begin_read<converting_read>(args.src, args.dst, shape);
    if (event.ok()) args.event = *event;
    return event.status();
}

PJRT_Error *buffer_to_host_buffer(PJRT_Buffer_ToHostBuffer_Args *args)
{
    return at_edge([args] { return read_to_host(*args); });
}

PJRT_Error *buffer_copy_raw_to_host(PJRT_Buffer_CopyRawToHost_Args *args)
{
    return at_edge([args]() -> absl::Status {
        int64_t size = static_cast<int64_t>(args->buffer->type.size_bytes);
        if (args->offset < 0 || args->transfer_size < 0 ||
            args->offset > size || args->transfer_size > size - args->offset)
            return absl::OutOfRangeError(
                absl::StrCat(args->transfer_size, " bytes from ", args->offset,
                             " of a buffer of ", size));
        auto event = begin_read<raw_read>(args->buffer, args->dst, args->offset,
                                          args->transfer_size);
        if (event.ok()) args->event = *event;
        return event.status();
    });
}

absl::StatusOr<PJRT_Buffer *> copy_to(PJRT_Buffer *source, PJRT_Memory *memory)
{
    if (memory->device->client != source->device()->client)
        return absl::InvalidArgumentError(
            "the destination belongs to another client");
    if (memory->device->client->copier->is_full()) return too_many_copies();
    if (!source->try_hold()) return deleted_error();
    auto *job = new transfer(source, memory->device->client, memory);
    auto *target = new PJRT_Buffer(source->type, memory, job);
    target->try_hold();
    job->target = target;
    copy::begin(job);
    return target;
}

PJRT_Error *buffer_copy_to_device(PJRT_Buffer_CopyToDevice_Args *args)
{
    return at_edge([args] {
        auto made = copy_to(args->buffer, args->dst_device->default_memory);
        if (made.ok()) args->dst_buffer = *made;
        return made.status();
    });
}

PJRT_Error *buffer_copy_to_memory(PJRT_Buffer_CopyToMemory_Args *args)
{
    return at_edge([args] {
        auto made = copy_to(args->buffer, args->dst_memory);
        if (made.ok()) args->dst_buffer = *made;
        return made.status();
    });
}

/* Where the value lies; only once it is there, for this must not block. */
absl::StatusOr<uintptr_t> address_of(PJRT_Buffer *buffer)
{
    if (!buffer->is_ready())
        return absl::FailedPreconditionError(
            "the buffer is not ready; await its ready event first");
    absl::Status status = buffer->status();
    if (!status.ok()) return status;
    if (!buffer->try_hold()) return deleted_error();
    auto address =
        buffer->device()->client->xla->UnsafeBufferPointer(buffer->value.get());
    buffer->drop_hold();
    return address;
}

PJRT_Error *buffer_unsafe_pointer(PJRT_Buffer_UnsafePointer_Args *args)
{
    return at_edge([args] {
        auto address = address_of(args->buffer);
        if (address.ok()) args->buffer_pointer = *address;
        return address.status();
    });
}

PJRT_Error *buffer_opaque_data_pointer(
    PJRT_Buffer_OpaqueDeviceMemoryDataPointer_Args *args)
{
    return at_edge([args] {
        auto address = address_of(args->buffer);
        if (address.ok())
            args->device_memory_ptr = reinterpret_cast<void *>(*address);
        return address.status();
    });
}

/* While someone outside reads the memory, an execution that donates the buffer
 * waits: see PJRT_Buffer. */
PJRT_Error *buffer_increase_references(
    PJRT_Buffer_IncreaseExternalReferenceCount_Args *args)
{
    return at_edge([args] {
        if (!args->buffer->try_hold()) return deleted_error();
        args->buffer->begin_read();
        return absl::OkStatus();
    });
}

PJRT_Error *buffer_decrease_references(
    PJRT_Buffer_DecreaseExternalReferenceCount_Args *args)
{
    args->buffer->end_read();
    args->buffer->drop_hold();
    return nullptr;
}

/* --- Benchmarks --------------------------------------------------------------- */

absl::Status run_bare(const program &what, PJRT_Buffer *const *arguments,
                      uint64_t repetition_count)
{
    std::vector<xla::PjRtBuffer *> values;
    for (size_t i = 0; i < what.parameters.size(); i++)
        values.push_back(arguments[i]->value.get());
    xla::ExecuteOptions options;
    std::optional<xla::Future<>> unused;
    for (uint64_t i = 0; i < repetition_count; i++) {
        auto results = what.loaded->ExecuteSharded(values, what.devices[0]->xla,
                                                   options, unused, false);
        if (!results.ok()) return results.status();
    }
    return absl::OkStatus();
}

PJRT_Error *time_directly(PJRT_LoadedExecutable *executable,
                          PJRT_Buffer *const *arguments,
                          uint64_t repetition_count, uint64_t *out_ns)
{
    return at_edge([=]() -> absl::Status {
        const program &what = *executable->program;
        if (what.devices.size() != 1 || what.donates)
            return absl::InvalidArgumentError(absl::StrCat(
                what.name, " is not for one device, or donates its inputs"));
        for (size_t i = 0; i < what.parameters.size(); i++) {
            absl::Status status =
                check_argument(what, what.devices[0], i, arguments[i]);
            if (status.ok() && !arguments[i]->is_ready())
                status = absl::FailedPreconditionError("not ready");
            if (!status.ok()) return status;
        }
        int64_t start = now_ns();
        absl::Status status = run_bare(what, arguments, repetition_count);
        *out_ns = now_ns() - start;
        return status;
    });
}

/* --- The table -------------------------------------------------------------------- */

tow_xla_extension_t extension = {
    sizeof(tow_xla_extension_t), TOW_XLA_EXTENSION_TYPE, nullptr,
    executable_signature,        time_directly,
};

PJRT_Api make_api()
{
    PJRT_Api api = {};
    api.struct_size = PJRT_Api_STRUCT_SIZE;
    api.extension_start = reinterpret_cast<PJRT_Extension_Base *>(&extension);
    api.pjrt_api_version.struct_size = PJRT_Api_Version_STRUCT_SIZE;
    api.pjrt_api_version.major_version = PJRT_API_MAJOR;
    api.pjrt_api_version.minor_version = PJRT_API_MINOR;

    api.PJRT_Error_Destroy = error_destroy;
    api.PJRT_Error_Message = error_message;
    api.PJRT_Error_GetCode = error_get_code;
    api.PJRT_Plugin_Initialize = plugin_initialize;
    api.PJRT_Plugin_Attributes = plugin_attributes;
    api.PJRT_Event_Destroy = event_destroy;
    api.PJRT_Event_IsReady = event_is_ready;
    api.PJRT_Event_Error = event_error;
    api.PJRT_Event_Await = event_await;
    api.PJRT_Event_OnReady = event_on_ready;
    api.PJRT_Event_Create = event_create;
    api.PJRT_Event_Set = event_set;

    api.PJRT_Client_Create = client_create;
    api.PJRT_Client_Destroy = client_destroy;
    api.PJRT_Client_PlatformName = client_platform_name;
    api.PJRT_Client_PlatformVersion = client_platform_version;
    api.PJRT_Client_ProcessIndex = client_process_index;
    api.PJRT_Client_Devices = client_devices;
    api.PJRT_Client_AddressableDevices = client_addressable_devices;
    api.PJRT_Client_LookupDevice = client_lookup_device;
    api.PJRT_Client_LookupAddressableDevice = client_lookup_addressable_device;
    api.PJRT_Client_AddressableMemories = client_addressable_memories;
    api.PJRT_Client_DefaultDeviceAssignment = client_default_device_assignment;
    api.PJRT_Client_Compile = client_compile;
    api.PJRT_Client_BufferFromHostBuffer = client_buffer_from_host_buffer;
    api.PJRT_Client_CreateUninitializedBuffer =
        client_create_uninitialized_buffer;
    api.PJRT_Client_CreateErrorBuffer = client_create_error_buffer;

    api.PJRT_DeviceDescription_Id = description_id;
    api.PJRT_DeviceDescription_ProcessIndex = description_process_index;
    api.PJRT_DeviceDescription_Attributes = description_attributes;
    api.PJRT_DeviceDescription_Kind = description_kind;
    api.PJRT_DeviceDescription_DebugString = description_debug_string;
    api.PJRT_DeviceDescription_ToString = description_to_string;
    api.PJRT_Device_GetDescription = device_get_description;
    api.PJRT_Device_IsAddressable = device_is_addressable;
    api.PJRT_Device_LocalHardwareId = device_local_hardware_id;
    api.PJRT_Device_AddressableMemories = device_addressable_memories;
    api.PJRT_Device_DefaultMemory = device_default_memory;
    api.PJRT_Device_MemoryStats = device_memory_stats;
    api.PJRT_Memory_Id = memory_id;
    api.PJRT_Memory_Kind = memory_kind;
    api.PJRT_Memory_Kind_Id = memory_kind_id;
    api.PJRT_Memory_DebugString = memory_debug_string;
    api.PJRT_Memory_ToString = memory_to_string;
    api.PJRT_Memory_AddressableByDevices = memory_addressable_by_devices;

    api.PJRT_Executable_Destroy = executable_destroy;
    api.PJRT_Executable_Name = executable_name;
    api.PJRT_Executable_NumReplicas = executable_num_replicas;
    api.PJRT_Executable_NumPartitions = executable_num_partitions;
    api.PJRT_Executable_NumOutputs = executable_num_outputs;
    api.PJRT_Executable_SizeOfGeneratedCodeInBytes = executable_code_size;
    api.PJRT_Executable_OutputElementTypes = executable_output_types;
    api.PJRT_Executable_OutputDimensions = executable_output_dimensions;
    api.PJRT_Executable_OutputMemoryKinds = executable_output_memory_kinds;
    api.PJRT_Executable_GetCostAnalysis = executable_cost_analysis;
    api.PJRT_Executable_GetCompiledMemoryStats = executable_memory_stats;
    api.PJRT_Executable_Serialize = executable_serialize;
    api.PJRT_Executable_GetCompileOptions = executable_compile_options;
    api.PJRT_Executable_Fingerprint = executable_fingerprint;
    api.PJRT_Executable_OptimizedProgram = executable_optimized_program;
    api.PJRT_Executable_DeserializeAndLoad = executable_deserialize_and_load;
    api.PJRT_LoadedExecutable_Destroy = loaded_destroy;
    api.PJRT_LoadedExecutable_GetExecutable = loaded_get_executable;
    api.PJRT_LoadedExecutable_AddressableDevices = loaded_addressable_devices;
    api.PJRT_LoadedExecutable_GetDeviceAssignment = loaded_device_assignment;
    api.PJRT_LoadedExecutable_Delete = loaded_delete;
    api.PJRT_LoadedExecutable_IsDeleted = loaded_is_deleted;
    api.PJRT_LoadedExecutable_Fingerprint = loaded_fingerprint;
    api.PJRT_LoadedExecutable_Execute = loaded_execute;

    api.PJRT_Buffer_Destroy = buffer_destroy;
    api.PJRT_Buffer_Delete = buffer_delete;
    api.PJRT_Buffer_IsDeleted = buffer_is_deleted;
    api.PJRT_Buffer_ElementType = buffer_element_type;
    api.PJRT_Buffer_Dimensions = buffer_dimensions;
    api.PJRT_Buffer_UnpaddedDimensions = buffer_unpadded_dimensions;
    api.PJRT_Buffer_DynamicDimensionIndices = buffer_dynamic_dimensions;
    api.PJRT_Buffer_OnDeviceSizeInBytes = buffer_size;
    api.PJRT_Buffer_Device = buffer_device;
    api.PJRT_Buffer_Memory = buffer_memory;
    api.PJRT_Buffer_IsOnCpu = buffer_is_on_cpu;
    api.PJRT_Buffer_ReadyEvent = buffer_ready_event;
    api.PJRT_Buffer_ToHostBuffer = buffer_to_host_buffer;
    api.PJRT_Buffer_CopyRawToHost = buffer_copy_raw_to_host;
    api.PJRT_Buffer_CopyToDevice = buffer_copy_to_device;
    api.PJRT_Buffer_CopyToMemory = buffer_copy_to_memory;
    api.PJRT_Buffer_UnsafePointer = buffer_unsafe_pointer;
    api.PJRT_Buffer_OpaqueDeviceMemoryDataPointer = buffer_opaque_data_pointer;
    api.PJRT_Buffer_IncreaseExternalReferenceCount = buffer_increase_references;
    api.PJRT_Buffer_DecreaseExternalReferenceCount = buffer_decrease_references;
    return api;
}

} // namespace
} // namespace tow

extern "C" __attribute__((visibility("default"))) const PJRT_Api *
GetPjrtApi() noexcept
{
    static const PJRT_Api api = tow::make_api();
    return &api;
}
