/* PJRT's functions on buffers. */
#ifndef TOW_DEVICE_XLA_CPU_BUFFER_IMPL_HH_
#define TOW_DEVICE_XLA_CPU_BUFFER_IMPL_HH_

#include <memory>
#include <optional>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "device/xla_cpu/event_impl.hh"
#include "device/xla_cpu/objects_impl.hh"
#include "device/xla_cpu/run_impl.hh"
#include "xla/pjrt/c/pjrt_c_api.h"
#include "xla/shape_util.h"

namespace tow
{
namespace
{

/* An event for a value that XLA has allocated but not yet computed; null if it
 * is ready. */
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
    return absl::InvalidArgumentError(
        "neither a device nor a memory was given");
}

absl::StatusOr<std::optional<xla::Layout>> layout_of(
    const PJRT_Buffer_MemoryLayout *layout)
{
    if (layout == nullptr) return std::optional<xla::Layout>();
    if (layout->type != PJRT_Buffer_MemoryLayout_Type_Tiled ||
        layout->tiled.num_tiles != 0)
        return absl::UnimplementedError(
            "memory layouts with strides or tiles; use minor-to-major order");
    return std::optional<xla::Layout>(xla::Layout(absl::MakeConstSpan(
        layout->tiled.minor_to_major, layout->tiled.minor_to_major_size)));
}

absl::Status check_array(xla::PrimitiveType type,
                         absl::Span<const int64_t> dims)
{
    if (type == xla::PRIMITIVE_TYPE_INVALID || type == xla::TOKEN)
        return absl::InvalidArgumentError("the element type is not supported");
    return xla::ShapeUtil::MakeValidatedShape(type, dims).status();
}

/* Whether a buffer may use the host's memory for its whole life. */
bool is_zero_copy(int semantics)
{
    return semantics == PJRT_HostBufferSemantics_kImmutableZeroCopy ||
           semantics == PJRT_HostBufferSemantics_kMutableZeroCopy;
}

/* The callback by which XLA reports, once, that it no longer reads the host's
 * memory. Until then `borrowed_bytes` of it count as the device's. */
struct host_release {
    host_release(PJRT_Event *done, PJRT_Device *user, int64_t borrowed_bytes)
        : event(done), device(user), bytes(borrowed_bytes)
    {
        device->account.borrow(bytes);
    }

    host_release(host_release &&other)
        : event(std::exchange(other.event, nullptr)), device(other.device),
          bytes(other.bytes)
    {
    }

    ~host_release()
    {
        if (event != nullptr) (*this)();
    }

    void operator()()
    {
        device->account.borrow(-bytes);
        event->complete(absl::OkStatus());
        std::exchange(event, nullptr)->release();
    }

    PJRT_Event *event; /* counted */
    PJRT_Device *device;
    int64_t bytes;
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
        return absl::InvalidArgumentError(absl::StrCat(
            strides->size(), " byte strides for ", dims.size(), " dimensions"));

    auto *done = new PJRT_Event;
    done->retain();
    const int64_t borrowed_bytes =
        is_zero_copy(args.host_buffer_semantics)
            ? xla::ShapeUtil::ByteSizeOf(xla::ShapeUtil::MakeShape(type, dims))
            : 0;
    charge allocations(&(*memory)->device->account);
    auto value = args.client->xla->BufferFromHostBuffer(
        args.data, type, dims, strides,
        static_cast<xla::PjRtClient::HostBufferSemantics>(
            args.host_buffer_semantics),
        host_release(done, (*memory)->device, borrowed_bytes), (*memory)->xla,
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

/* Zeroed, because its user may read it: see xla_cpu.h. */
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
        charge allocations(&(*memory)->device->account, content::zeroes);
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
    if (buffer->try_take_from_user()) buffer->release_hold();
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

/* "Yes" means that the caller may query the address, which exists once the
 * value does. Until then a caller copies to the host, as from any device. */
PJRT_Error *buffer_is_on_cpu(PJRT_Buffer_IsOnCpu_Args *args)
{
    args->is_on_cpu = args->buffer->is_ready() && args->buffer->status().ok();
    return nullptr;
}

absl::Status deleted_error()
{
    return absl::InvalidArgumentError("the buffer has been deleted or donated");
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
        TOW_XLA_QUEUE_DEPTH_MAX,
        " copies are queued, which is the limit; wait for some of them"));
}

/* Takes a hold for a new `Job`, and starts it. */
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
            absl::StrCat("a ", type.to_string(), " has no value"));
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
                         " bytes, but the destination has ", args.dst_size));
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
                absl::StrCat(args->transfer_size, " bytes at offset ",
                             args->offset, " of a buffer of ", size, " bytes"));
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

/* The address of the value; an error until it is ready, because this must not
 * block. */
absl::StatusOr<uintptr_t> address_of(PJRT_Buffer *buffer)
{
    if (!buffer->is_ready())
        return absl::FailedPreconditionError(
            "the buffer is not ready; await its ready event first");
    absl::Status status = buffer->status();
    if (!status.ok()) return status;
    /* An external reference keeps the value, donated or not. */
    bool is_held = buffer->try_hold();
    if (!is_held && !buffer->is_shared()) return deleted_error();
    auto address =
        buffer->device()->client->xla->UnsafeBufferPointer(buffer->value.get());
    if (is_held) buffer->release_hold();
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

/* While an external reference exists, an execution that donates the buffer
 * works on a copy: see PJRT_Buffer. */
PJRT_Error *buffer_increase_references(
    PJRT_Buffer_IncreaseExternalReferenceCount_Args *args)
{
    return at_edge([args] {
        if (!args->buffer->try_hold()) return deleted_error();
        args->buffer->begin_share();
        return absl::OkStatus();
    });
}

PJRT_Error *buffer_decrease_references(
    PJRT_Buffer_DecreaseExternalReferenceCount_Args *args)
{
    args->buffer->end_share();
    args->buffer->release_hold();
    return nullptr;
}

void buffer_share(PJRT_Buffer *buffer, int begins)
{
    if (begins != 0)
        buffer->begin_share_away();
    else
        buffer->end_share_away();
}

/* --- Promises, for C ------------------------------------------------------ */

/* The buffer holds its value until `fulfil` or `fail`. */
PJRT_Error *buffer_promise(PJRT_Device *device, int element_type,
                           const int64_t *dimensions, size_t dimension_count,
                           PJRT_Buffer **out_buffer)
{
    return at_edge([=]() -> absl::Status {
        xla::PrimitiveType type =
            primitive_type_of(static_cast<PJRT_Buffer_Type>(element_type));
        auto dims = absl::MakeConstSpan(dimensions, dimension_count);
        absl::Status valid = check_array(type, dims);
        if (!valid.ok()) return valid;
        auto *ready = new PJRT_Event;
        auto *buffer = new PJRT_Buffer(
            array_type::of(xla::ShapeUtil::MakeShape(type, dims)),
            device->default_memory, ready);
        ready->release();
        buffer->try_hold();
        *out_buffer = buffer;
        return absl::OkStatus();
    });
}

/* Releases the promise's own hold first: an execution that waits for the value
 * frees it at its end, not this thread some time later. */
void settle(PJRT_Buffer *buffer, const absl::Status &status)
{
    PJRT_Event *ready = buffer->ready;
    ready->retain();
    buffer->release_hold();
    ready->complete(status);
    ready->release();
}

PJRT_Error *buffer_fulfil(PJRT_Buffer *buffer, const void *data, int semantics,
                          PJRT_Event **out_done)
{
    return at_edge([=]() -> absl::Status {
        auto *done = new PJRT_Event;
        done->retain();
        const auto size = static_cast<int64_t>(buffer->type.size_bytes);
        charge allocations(&buffer->device()->account);
        auto value = buffer->device()->client->xla->BufferFromHostBuffer(
            data, buffer->type.element, buffer->type.dims, std::nullopt,
            static_cast<xla::PjRtClient::HostBufferSemantics>(semantics),
            host_release(done, buffer->device(),
                         is_zero_copy(semantics) ? size : 0),
            buffer->memory->xla, nullptr);
        if (!value.ok()) {
            done->release();
            return value.status();
        }
        *out_done = done;
        xla::Future<> ready = (*value)->GetReadyFuture();
        buffer->value = *std::move(value);
        if (ready.IsReady())
            settle(buffer, ready.Await());
        else
            ready.OnReady([buffer](const absl::Status &status) {
                settle(buffer, status);
            });
        return absl::OkStatus();
    });
}

void buffer_fail(PJRT_Buffer *buffer, int code, const char *message,
                 size_t message_size)
{
    settle(buffer, absl::Status(static_cast<absl::StatusCode>(code),
                                text(message, message_size)));
}

} // namespace
} // namespace tow

#endif /* TOW_DEVICE_XLA_CPU_BUFFER_IMPL_HH_ */
