/* The boundary of the plugin, where exceptions become statuses and statuses
 * become PJRT_Error; PJRT's functions on errors, events and the plugin itself.
 */
#ifndef TOW_DEVICE_XLA_CPU_EVENT_IMPL_HH_
#define TOW_DEVICE_XLA_CPU_EVENT_IMPL_HH_

#include <cstdlib>
#include <cstring>
#include <memory>
#include <new>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "device/xla_cpu/objects_impl.hh"
#include "device/xla_cpu/run_impl.hh"
#include "xla/pjrt/c/pjrt_c_api.h"

/* Declared in xla/pjrt/mlir_to_hlo.h; see program_impl.hh. */
namespace xla
{
std::string GetDefaultStablehloVersion();
}

namespace tow
{
namespace
{

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

/* --- The plugin ----------------------------------------------------------- */

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

/* By the current version, JAX emits programs that this StableHLO can read. */
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

/* --- Events --------------------------------------------------------------- */

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
            "the event is not ready; call PJRT_Event_IsReady first"));
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
            return absl::FailedPreconditionError(
                "the event has been set before");
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

} // namespace
} // namespace tow

#endif /* TOW_DEVICE_XLA_CPU_EVENT_IMPL_HH_ */
