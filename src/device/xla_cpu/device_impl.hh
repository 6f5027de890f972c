/* PJRT's functions that create a client and describe it, its devices and its
 * memories. */
#ifndef TOW_DEVICE_XLA_CPU_DEVICE_IMPL_HH_
#define TOW_DEVICE_XLA_CPU_DEVICE_IMPL_HH_

#include <sched.h>

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <string>
#include <thread>
#include <utility>

#include "absl/log/globals.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "device/xla_cpu/callback.h"
#include "device/xla_cpu/event_impl.hh"
#include "device/xla_cpu/ffi_impl.hh"
#include "device/xla_cpu/linear_algebra.hh"
#include "device/xla_cpu/objects_impl.hh"
#include "device/xla_cpu/partition_query.hh"
#include "device/xla_cpu/xla_cpu.h"
#include "xla/pjrt/c/pjrt_c_api.h"
#include "xla/pjrt/plugin/xla_cpu/cpu_client_options.h"
#include "xla/pjrt/plugin/xla_cpu/xla_cpu_pjrt_client.h"

namespace tow
{
namespace
{

/* --- Creating a client ---------------------------------------------------- */

struct client_options {
    int64_t process_id = 0;
    int64_t device_count = 1;
    int64_t memory_limit_bytes = 0;
    int64_t collectives = 0;
    int64_t calls = 0;
    int64_t blocks = 0;
};

/* --- Client functions ----------------------------------------------------- */

/* The client whose tow_xla_calls_t serves calls of client functions. A worker
 * has one client; of several, the latest serves. */
inline std::atomic<PJRT_Client *> callback_client{nullptr};

bool find_caller(int32_t device_id, tow_xla_caller_t *out_caller)
{
    const PJRT_Client *client = callback_client.load();
    if (client == nullptr) return false;
    for (const PJRT_Device *each : client->devices) {
        if (each->xla->global_device_id().value() != device_id) continue;
        *out_caller = {client->calls, each->run.run_id, device_id};
        return true;
    }
    return false;
}

/* Once per process, also in processes that only compile. */
absl::Status register_callback()
{
    static const absl::Status *status = [] {
        XLA_FFI_Error *error =
            tow_xla_callback_register(xla::ffi::GetXlaFfiApi(), find_caller);
        return new absl::Status(error == nullptr ? absl::OkStatus()
                                                 : xla::ffi::TakeStatus(error));
    }();
    return *status;
}

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
        {"tow_calls", &into.calls, INT64_MIN, INT64_MAX},
        {"tow_blocks", &into.blocks, INT64_MIN, INT64_MAX},
    };
    for (const auto &each : known) {
        if (each.name != name) continue;
        int64_t value = option.int64_value;
        if (option.type != PJRT_NamedValue_kInt64 || value < each.minimum ||
            value > each.maximum)
            return absl::InvalidArgumentError(absl::StrCat(
                "create option ", name, " must be an integer from ",
                each.minimum, " to ", each.maximum));
        *each.value = value;
        return absl::OkStatus();
    }
    return absl::InvalidArgumentError(
        absl::StrCat("unknown create option ", name));
}

/* One per core, but no more than there are devices. */
void add_carriers(PJRT_Client &client, size_t device_count)
{
    cpu_set_t cores;
    size_t core_count = std::thread::hardware_concurrency();
    if (sched_getaffinity(0, sizeof(cores), &cores) == 0)
        core_count = CPU_COUNT(&cores);
    size_t count = std::max<size_t>(1, std::min(core_count, device_count));
    for (size_t i = 0; i < count; i++)
        client.carriers.push_back(
            std::make_unique<carrier>(absl::StrCat("tow-carrier-", i)));
}

void add_devices(PJRT_Client &client, int64_t memory_limit_bytes)
{
    auto devices = client.xla->addressable_devices();
    add_carriers(client, devices.size());
    for (xla::PjRtDevice *each : devices) {
        size_t index = client.devices.size();
        auto device = std::make_unique<PJRT_Device>(
            &client, each,
            client.carriers[index * client.carriers.size() / devices.size()]
                .get());
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
    for (const auto &each : client.carriers)
        each->start();
}

/* Before the first allocation, because the table frees what it has allocated.
 */
absl::Status use_blocks(const tow_xla_blocks_t *table)
{
    if (table == nullptr) return absl::OkStatus();
    if (table->struct_size < sizeof(*table))
        return absl::InvalidArgumentError(
            "create option tow_blocks: the table is of an older version: "
            "rebuild the caller");
    const tow_xla_blocks_t *before = nullptr;
    if (shareable_blocks.compare_exchange_strong(before, table) ||
        before == table)
        return absl::OkStatus();
    return absl::InvalidArgumentError(
        "create option tow_blocks: another client of this process uses another "
        "table");
}

absl::StatusOr<std::unique_ptr<PJRT_Client>> make_client(
    const client_options &options)
{
    set_device_count(static_cast<size_t>(options.device_count));
    absl::Status blocks =
        use_blocks(reinterpret_cast<const tow_xla_blocks_t *>(options.blocks));
    if (!blocks.ok()) return blocks;
    absl::Status status =
        register_linear_algebra(static_cast<size_t>(options.device_count));
    if (!status.ok()) return status;
    register_partitioners();
    auto client = std::make_unique<PJRT_Client>();
    auto find_run = [raw = client.get()](int64_t id) -> current_run * {
        for (PJRT_Device *each : raw->devices)
            if (each->xla->global_device_id().value() == id) return &each->run;
        return nullptr;
    };
    auto *table =
        reinterpret_cast<const tow_xla_collectives_t *>(options.collectives);
    if (table != nullptr &&
        (table->struct_size < sizeof(*table) || table->run == nullptr))
        return absl::InvalidArgumentError(
            "create option tow_collectives: the table is of an older version "
            "or has no `run`");
    client->collectives = std::make_shared<collectives>(table, find_run);
    client->supports_fibers = table != nullptr && table->supports_fibers != 0;
    client->calls = reinterpret_cast<const tow_xla_calls_t *>(options.calls);
    absl::Status registered = register_callback();
    if (!registered.ok()) return registered;

    xla::CpuClientOptions xla_options;
    xla_options.process_id = static_cast<int>(options.process_id);
    xla_options.cpu_device_count = static_cast<int>(options.device_count);
    /* Executions run on the threads that call XLA, never on its pool. */
    xla_options.asynchronous = false;
    xla_options.collectives = client->collectives;
    xla_options.allocator = allocate;
    auto made = xla::GetXlaPjrtCpuClient(std::move(xla_options));
    if (!made.ok()) return made.status();
    client->xla = *std::move(made);
    add_devices(*client, options.memory_limit_bytes);
    client->copier = std::make_unique<work_queue>("tow-cpu-copy");
    if (client->calls != nullptr) callback_client = client.get();
    return client;
}

/* XLA logs what it finds in the machine to standard error; we only want errors,
 * unless the user has set a level. */
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
    PJRT_Client *closed = args->client;
    delete closed;
    callback_client.compare_exchange_strong(closed, nullptr);
    return nullptr;
}

/* --- Describing a client, a device, a memory ------------------------------ */

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

/* Not NULL in the table, because JAX calls it without checking. */
PJRT_Error *client_topology(PJRT_Client_TopologyDescription_Args *)
{
    return error_of(absl::UnimplementedError(
        "topology descriptions: a client knows its own devices only"));
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
                absl::StrCat("the default device assignment has ", count,
                             " devices, but the array holds ",
                             args->default_assignment_size));
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

size_t device_executed(PJRT_Device *device, tow_xla_executed_t *out,
                       size_t capacity)
{
    return device->executed.read(out, capacity);
}

void device_borrow(PJRT_Device *device, int64_t bytes)
{
    device->account.borrow(bytes);
}

int64_t device_recent_peak(PJRT_Device *device)
{
    return device->account.take_recent_peak();
}

PJRT_Error *device_memory_stats(PJRT_Device_MemoryStats_Args *args)
{
    const memory_account &account = args->device->account;
    args->bytes_in_use = account.used();
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
    args->pool_bytes = account.needed() + account.cache.cached_bytes.load();
    args->pool_bytes_is_set = true;
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

} // namespace
} // namespace tow

#endif /* TOW_DEVICE_XLA_CPU_DEVICE_IMPL_HH_ */
