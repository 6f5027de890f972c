/* The objects behind PJRT's opaque pointers, and their ownership.
 *
 * A client owns its devices, memories and threads, and outlives all other
 * objects (PJRT requires that order). Buffers, events, executables and work
 * items are reference-counted, so that a user may destroy a handle as soon as
 * the call that takes it has returned. */
#ifndef TOW_DEVICE_XLA_CPU_OBJECTS_IMPL_HH_
#define TOW_DEVICE_XLA_CPU_OBJECTS_IMPL_HH_

#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <new>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "device/xla_cpu/assert_impl.hh"
#include "device/xla_cpu/collective_impl.hh"
#include "device/xla_cpu/executed_impl.hh"
#include "device/xla_cpu/fiber_group_impl.hh"
#include "device/xla_cpu/layout_impl.hh"
#include "device/xla_cpu/memory_impl.hh"
#include "device/xla_cpu/pool_impl.hh"
#include "device/xla_cpu/types_impl.hh"
#include "device/xla_cpu/wait_impl.hh"
#include "device/xla_cpu/xla_cpu.h"
#include "xla/pjrt/c/pjrt_c_api.h"
#include "xla/pjrt/pjrt_client.h"
#include "xla/pjrt/pjrt_executable.h"
#include "xla/primitive_util.h"
#include "xla/shape_util.h"

struct PJRT_Error {
    absl::Status status;
};

namespace tow
{

/* The type of an array, known before its value. */
struct array_type {
    xla::PrimitiveType element = xla::PRIMITIVE_TYPE_INVALID;
    dimensions dims;
    size_t size_bytes = 0;

    static array_type of(const xla::Shape &shape)
    {
        array_type type;
        type.element = shape.element_type();
        /* JAX represents tokens, which order effects, by empty arrays. */
        if (shape.IsToken()) {
            type.element = xla::PRED;
            type.dims.assign(1, 0);
        }
        if (!shape.IsArray()) return type;
        type.dims = stored_dims(shape);
        type.size_bytes = xla::ShapeUtil::ByteSizeOf(shape);
        return type;
    }

    bool operator==(const array_type &other) const
    {
        return element == other.element && dims == other.dims;
    }

    bool is_array() const
    {
        return xla::primitive_util::IsArrayType(element);
    }

    std::string to_string() const
    {
        if (!is_array()) return xla::PrimitiveType_Name(element);
        return xla::ShapeUtil::HumanString(
            xla::ShapeUtil::MakeShape(element, dims));
    }
};

} // namespace tow

struct PJRT_Memory {
    xla::PjRtMemorySpace *xla; /* owned by the client's XLA client */
    PJRT_Device *device;       /* owned by the client */
};

struct PJRT_DeviceDescription {
    const xla::PjRtDeviceDescription *xla;
};

struct PJRT_Device {
    PJRT_Device(PJRT_Client *owner, xla::PjRtDevice *device,
                tow::carrier *carrier)
        : client(owner), xla(device), description{&device->description()},
          queue(
              absl::StrCat("tow-cpu-", device->local_hardware_id().value()),
              [this] { account.deferred.free_all(); }, carrier)
    {
        carrier->add(&queue);
    }

    PJRT_Client *const client;
    xla::PjRtDevice *const xla;
    PJRT_DeviceDescription description;
    std::vector<PJRT_Memory *> memories; /* owned by the client */
    PJRT_Memory *default_memory = nullptr;
    tow::memory_account account;
    tow::current_run run;
    tow::executed_ring executed;
    tow::execution_clock clock; /* of the queue's consumer */
    /* Last, because its thread uses the above and must be joined first. */
    tow::work_queue queue;
};

struct PJRT_Client {
    /* Devices first: their executions may wait for the copier and submit to
     * it. */
    ~PJRT_Client()
    {
        for (PJRT_Device *each : devices)
            each->queue.stop();
        for (const auto &each : carriers)
            each->stop();
        if (copier != nullptr) copier->stop();
    }

    std::shared_ptr<tow::collectives> collectives;
    bool supports_fibers = false;           /* the collectives do */
    const tow_xla_calls_t *calls = nullptr; /* not owned; null: none */
    std::unique_ptr<xla::PjRtClient> xla;
    std::vector<std::unique_ptr<PJRT_Memory>> owned_memories;
    std::vector<std::unique_ptr<tow::carrier>> carriers;
    /* Runs fibers on the threads of callers. */
    tow::inline_executor inline_executor;
    std::vector<std::unique_ptr<PJRT_Device>> owned_devices;
    std::vector<PJRT_Device *> devices;
    std::vector<PJRT_Memory *> memories;
    /* Runs copies that are too large for the thread that finds them ready. */
    std::unique_ptr<tow::work_queue> copier;
    /* Held while an execution is submitted to the queues of several devices, so
     * that two gangs have the same order in all queues that they share. */
    std::mutex gang_mutex;

    PJRT_Device *device_of(const xla::PjRtDevice *device) const
    {
        for (PJRT_Device *each : devices)
            if (each->xla == device) return each;
        return nullptr;
    }

    PJRT_Memory *memory_of(const xla::PjRtMemorySpace *space) const
    {
        for (PJRT_Memory *each : memories)
            if (each->xla == space) return each;
        return nullptr;
    }
};

/* An array on a device. A buffer is handed out before the execution that
 * computes its value has run.
 *
 * It has five counts:
 *   references     keep the object: one of the user's handle, one of all holds
 *   holds          keep the value: one until it is deleted or donated, and one
 *                  for each work item in flight that uses it
 *   reads          copies in flight: an execution that overwrites a donated
 *                  value waits for them
 *   shares         users of the memory that may stay (external references,
 *                  views on other devices), with a hold each: an execution that
 *                  would overwrite the value works on a copy
 *   shares away    shares by other processes and views on other devices: these
 *                  devices count the memory as theirs */
struct PJRT_Buffer final : tow::deferred_free, tow::pooled<PJRT_Buffer> {
    PJRT_Buffer(tow::array_type array, PJRT_Memory *where, PJRT_Event *event)
        : type(std::move(array)), memory(where), ready(event)
    {
        if (ready != nullptr) ready->retain();
    }

    ~PJRT_Buffer()
    {
        if (ready != nullptr) ready->release();
    }

    const tow::array_type type;
    PJRT_Memory *const memory;
    PJRT_Event
        *const ready; /* counted; null if the value was available at once */
    std::unique_ptr<xla::PjRtBuffer> value; /* written before `ready` */
    bool is_result = false;                 /* of an execution */

    PJRT_Device *device() const
    {
        return memory->device;
    }

    bool is_ready() const
    {
        return ready == nullptr || ready->is_ready();
    }

    /* Valid once ready. */
    absl::Status status() const
    {
        return ready == nullptr ? absl::OkStatus() : ready->status();
    }

    bool is_deleted() const
    {
        return deleted_.load(std::memory_order_acquire);
    }

    void release()
    {
        if (references_.fetch_sub(1, std::memory_order_acq_rel) == 1)
            delete this;
    }

    /* False if the value was deleted or donated. */
    bool try_hold()
    {
        int count = holds_.load(std::memory_order_relaxed);
        do {
            if (count == 0 || is_deleted()) return false;
        } while (!holds_.compare_exchange_weak(count, count + 1,
                                               std::memory_order_acq_rel));
        return true;
    }

    void release_hold()
    {
        if (shares_away_.load() != 0) {
            release_hold_of_shared();
            return;
        }
        int before = holds_.fetch_sub(1, std::memory_order_acq_rel);
        TOW_ASSERT(before > 0);
        if (before != 1) return;
        if (!is_result || !try_defer_free()) free_now();
    }

    /* The value of a view holds the buffer that it shows, which may be a view
     * again. A chain of thousands is freed link by link: nested calls would
     * overflow the stack. */
    void free_now() override
    {
        static thread_local PJRT_Buffer *waiting = nullptr;
        static thread_local bool is_freeing = false;
        if (is_freeing) {
            next_to_free_ = std::exchange(waiting, this);
            return;
        }
        is_freeing = true;
        PJRT_Buffer *each = this;
        while (each != nullptr) {
            each->value.reset();
            each->release();
            each = waiting;
            if (each != nullptr) waiting = each->next_to_free_;
        }
        is_freeing = false;
    }

    /* Deletes the buffer for the user; the caller must release the user's hold.
     * False if it has been deleted before. */
    bool try_take_from_user()
    {
        return !deleted_.exchange(true);
    }

    /* Another process or device uses its memory. The caller has a share, and a
     * hold for it. */
    void begin_share_away()
    {
        shares_away_.fetch_add(1);
        update_charge();
    }

    void end_share_away()
    {
        shares_away_.fetch_sub(1);
        update_charge();
    }

    void begin_read()
    {
        reads_.fetch_add(1, std::memory_order_acq_rel);
    }

    void end_read()
    {
        int before = reads_.fetch_sub(1, std::memory_order_acq_rel);
        TOW_ASSERT(before > 0);
    }

    bool is_read() const
    {
        return reads_.load(std::memory_order_acquire) != 0;
    }

    /* The caller has a hold already. */
    void add_hold()
    {
        int before = holds_.fetch_add(1, std::memory_order_relaxed);
        TOW_ASSERT(before > 0);
    }

    void begin_share()
    {
        shares_.fetch_add(1, std::memory_order_acq_rel);
    }

    void end_share()
    {
        shares_.fetch_sub(1, std::memory_order_acq_rel);
    }

    /* Once false of a deleted buffer that is no longer read, it stays false. */
    bool is_shared() const
    {
        return shares_.load(std::memory_order_acquire) != 0;
    }

  private:
    /* Leaves freeing to the thread that allocated the value, if that pays and
     * the thread is awake; see TOW_XLA_DEFERRED_FREE_BYTES_MAX. */
    bool try_defer_free()
    {
        const tow::work_queue &queue = device()->queue;
        tow::deferred_free_list &deferred = device()->account.deferred;
        if (queue.is_current() || queue.is_asleep() || deferred.is_full() ||
            type.size_bytes > TOW_XLA_DEFERRED_FREE_BYTES_MAX)
            return false;
        deferred.put(this, static_cast<int64_t>(type.size_bytes));
        /* The thread may have fallen asleep without seeing it. */
        if (queue.is_asleep()) deferred.free_all();
        return true;
    }

    /* Once the hold is released another thread may free the value, but not the
     * object. */
    void release_hold_of_shared()
    {
        references_.fetch_add(1, std::memory_order_relaxed);
        int before = holds_.fetch_sub(1, std::memory_order_acq_rel);
        TOW_ASSERT(before > 0);
        if (before == 1)
            free_now();
        else
            update_charge();
        release();
    }

    /* Memory that only other processes or devices use is not charged to its own
     * device: they charge it to theirs. */
    void update_charge()
    {
        static std::mutex *const mutex = new std::mutex;
        std::lock_guard<std::mutex> lock(*mutex);
        const int away = shares_away_.load();
        const bool is_away = away != 0 && is_deleted() && holds_.load() <= away;
        if (is_away == is_uncharged_) return;
        is_uncharged_ = is_away;
        const auto bytes = static_cast<int64_t>(type.size_bytes);
        tow::memory_account &account = device()->account;
        if (is_result)
            account.remote_only += is_away ? bytes : -bytes;
        else
            account.borrowed += is_away ? -bytes : bytes;
    }

    bool is_uncharged_ = false; /* by update_charge */
    std::atomic<int> shares_away_{0};
    std::atomic<int> references_{2};
    std::atomic<int> holds_{1};
    std::atomic<int> reads_{0};
    std::atomic<int> shares_{0};
    std::atomic<bool> deleted_{false};
    PJRT_Buffer *next_to_free_ = nullptr; /* while it waits for its turn */
};

namespace tow
{

/* A loaded program. Counted by the handles of both kinds that PJRT has for it,
 * and by executions in flight. */
struct program {
    program(PJRT_Client *owner,
            std::unique_ptr<xla::PjRtLoadedExecutable> executable)
        : client(owner), loaded(std::move(executable))
    {
    }

    void retain()
    {
        references_.fetch_add(1, std::memory_order_relaxed);
    }

    void release()
    {
        if (references_.fetch_sub(1, std::memory_order_acq_rel) == 1)
            delete this;
    }

    PJRT_Client *const client;
    const std::unique_ptr<xla::PjRtLoadedExecutable> loaded;
    std::string name;
    std::string fingerprint;
    bool is_portable = false;
    std::vector<PJRT_Device *> devices; /* local, in the order of arguments */
    std::vector<array_type> parameters;
    std::vector<array_type> outputs;
    std::vector<bool> is_donated; /* by parameter */
    bool donates = false;
    bool looks_fiber_safe = false;    /* by its HLO: see fiber_safety_impl.hh */
    bool fits_inline = false;         /* has few enough collectives */
    bool calls_client = false;        /* and waits for its reply */
    std::atomic<bool> has_run{false}; /* to completion */
    std::atomic<bool> left_thread{false}; /* ran a collective on another */

    bool is_fiber_safe() const
    {
        return looks_fiber_safe && has_run && !left_thread;
    }

    /* The signature for C: points into the above and the following. */
    std::vector<std::string> parameter_orders;
    std::vector<std::string> output_orders;
    std::vector<std::string> shardings;
    std::vector<tow_xla_array_t> parameter_views;
    std::vector<tow_xla_array_t> output_views;
    std::vector<tow_xla_alias_t> aliases;
    std::vector<size_t> donated;
    tow_xla_signature_t signature = {};
    std::vector<PJRT_Buffer_Type> output_types;
    std::vector<int64_t> output_dims;
    std::vector<size_t> output_dim_counts;
    std::vector<std::string> result_kinds; /* memory kinds; "": default */
    std::vector<const char *> output_memory_kinds;
    std::vector<size_t> output_memory_kind_sizes;

    std::once_flag costs_once;
    absl::Status costs_status;
    std::vector<std::string> cost_names;
    std::vector<PJRT_NamedValue> costs;

  private:
    std::atomic<int> references_{1};
};

} // namespace tow

struct PJRT_LoadedExecutable {
    tow::program *program; /* counted */
    std::atomic<bool> deleted{false};
};

struct PJRT_Executable {
    tow::program *program; /* counted */
};

#endif /* TOW_DEVICE_XLA_CPU_OBJECTS_IMPL_HH_ */
