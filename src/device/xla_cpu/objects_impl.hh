/* The objects behind PJRT's opaque pointers, and who owns what.
 *
 * A client owns its devices, memories and threads, and outlives all else (PJRT
 * asks its user for that order). Buffers, events, executables and the work in
 * flight are counted, so that a user may destroy a handle as soon as the call
 * that takes it has returned. */
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
#include "device/xla_cpu/collective_impl.hh"
#include "device/xla_cpu/crew_impl.hh"
#include "device/xla_cpu/executed_impl.hh"
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

/* What can be said of an array before it has a value. */
struct array_type {
    xla::PrimitiveType element = xla::PRIMITIVE_TYPE_INVALID;
    dimensions dims;
    size_t size_bytes = 0;

    static array_type of(const xla::Shape &shape)
    {
        array_type type;
        type.element = shape.element_type();
        /* JAX has empty arrays in the place of tokens, which order effects. */
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
    xla::PjRtMemorySpace *xla; /* lent by the client's XLA client */
    PJRT_Device *device;       /* lent by the client */
};

struct PJRT_DeviceDescription {
    const xla::PjRtDeviceDescription *xla;
};

struct PJRT_Device {
    PJRT_Device(PJRT_Client *owner, xla::PjRtDevice *device, tow::seat *seat)
        : client(owner), xla(device), description{&device->description()},
          worker(
              absl::StrCat("tow-cpu-", device->local_hardware_id().value()),
              [this] { account.returns.free_all(); }, seat)
    {
        seat->add(&worker);
    }

    PJRT_Client *const client;
    xla::PjRtDevice *const xla;
    PJRT_DeviceDescription description;
    std::vector<PJRT_Memory *> memories; /* lent by the client */
    PJRT_Memory *default_memory = nullptr;
    tow::memory_account account;
    tow::current_run run;
    tow::executed_ring executed;
    /* Last: its thread uses the above, and is joined first. */
    tow::worker worker;
};

struct PJRT_Client {
    /* Devices first: what they run may wait for the copier, and may give it
     * more to do. */
    ~PJRT_Client()
    {
        for (PJRT_Device *each : devices)
            each->worker.stop();
        for (const auto &each : seats)
            each->stop();
        if (copier != nullptr) copier->stop();
    }

    std::shared_ptr<tow::collectives> collectives;
    bool takes_turns = false;               /* in collectives */
    const tow_xla_calls_t *calls = nullptr; /* lent; null: none */
    std::unique_ptr<xla::PjRtClient> xla;
    std::vector<std::unique_ptr<PJRT_Memory>> owned_memories;
    std::vector<std::unique_ptr<tow::seat>> seats;
    /* Light executions on the thread of whoever called. */
    tow::guests guests;
    std::vector<std::unique_ptr<PJRT_Device>> owned_devices;
    std::vector<PJRT_Device *> devices;
    std::vector<PJRT_Memory *> memories;
    /* Copies that are too large for the thread that finds them ready. */
    std::unique_ptr<tow::worker> copier;
    /* Held while an execution joins the queues of several devices: two gangs
     * that share devices stand in the same order in all of them. */
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

/* An array on a device, or the promise of one: a buffer is handed out before
 * the execution that fills it has run.
 *
 * Four counts. References keep the object; the user's handle is one, and all
 * holds together are one. Holds keep the value: one until it is deleted or
 * donated, and one for each piece of work in flight that uses it. Reads are
 * copies in flight: whoever would overwrite a donated value waits for them.
 * Shares are users of its memory who may stay, references from outside and views
 * on other devices, with a hold each: whoever would overwrite it makes a copy. */
struct PJRT_Buffer final : tow::returned, tow::pooled<PJRT_Buffer> {
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
        *const ready; /* counted; null when the value was there at once */
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

    /* Only once ready. */
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

    void drop_hold()
    {
        if (holds_.fetch_sub(1, std::memory_order_acq_rel) != 1) return;
        if (!is_result || !try_return()) free_here();
    }

    void free_here() override
    {
        value.reset();
        release();
    }

    /* Deletes for the user, and leaves the caller the user's hold to drop.
     * False if it was deleted before. */
    bool try_take_from_user()
    {
        if (deleted_.exchange(true)) return false;
        if (lends_.load() != 0) settle_lent();
        return true;
    }

    /* Its memory, at `base`, is lent to another process. By one who has a
     * share. */
    void begin_lend(const void *base)
    {
        lent_base_ = base;
        lends_.fetch_add(1);
        settle_lent();
    }

    void end_lend()
    {
        lends_.fetch_sub(1);
        settle_lent();
    }

    void begin_read()
    {
        reads_.fetch_add(1, std::memory_order_acq_rel);
    }

    void end_read()
    {
        reads_.fetch_sub(1, std::memory_order_acq_rel);
    }

    bool is_read() const
    {
        return reads_.load(std::memory_order_acquire) != 0;
    }

    /* Of one who has a hold already. */
    void hold_again()
    {
        holds_.fetch_add(1, std::memory_order_relaxed);
    }

    void begin_share()
    {
        shares_.fetch_add(1, std::memory_order_acq_rel);
    }

    void end_share()
    {
        shares_.fetch_sub(1, std::memory_order_acq_rel);
    }

    /* Once it is deleted and no longer read, it never becomes true again. */
    bool is_shared() const
    {
        return shares_.load(std::memory_order_acquire) != 0;
    }

  private:
    /* Gives the value back to the thread that made it, if that pays and that
     * thread is awake to take it; see tuning.h. */
    bool try_return()
    {
        const tow::worker &worker = device()->worker;
        tow::return_list &returns = device()->account.returns;
        if (worker.is_here() || worker.is_asleep() || returns.is_full() ||
            type.size_bytes > TOW_XLA_RETURN_BYTES_MAX)
            return false;
        returns.put(this, static_cast<int64_t>(type.size_bytes));
        /* It may have gone to sleep before it saw this. */
        if (worker.is_asleep()) returns.free_all();
        return true;
    }

    /* What only others still use is not charged to our device. Views are charged
     * to nobody. */
    void settle_lent()
    {
        static std::mutex *const mutex = new std::mutex;
        std::lock_guard<std::mutex> lock(*mutex);
        bool is_theirs = is_result && is_deleted() && lends_.load() != 0;
        if (is_theirs == (uncharged_.account != nullptr)) return;
        if (is_theirs) {
            uncharged_ = tow::shown_charges::common().find(lent_base_);
            if (uncharged_.account != nullptr)
                uncharged_.account->lent += uncharged_.size_bytes;
        } else {
            uncharged_.account->lent -= uncharged_.size_bytes;
            uncharged_ = {};
        }
    }

    const void *lent_base_ = nullptr;
    tow::shown_charges::charged uncharged_; /* by settle_lent */
    std::atomic<int> lends_{0};
    std::atomic<int> references_{2};
    std::atomic<int> holds_{1};
    std::atomic<int> reads_{0};
    std::atomic<int> shares_{0};
    std::atomic<bool> deleted_{false};
};

namespace tow
{

/* One compiled computation, loaded. Counted: by the handles of both kinds that
 * PJRT has for it, and by executions in flight. */
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
    std::vector<PJRT_Device *> devices; /* ours, in the order of arguments */
    std::vector<array_type> parameters;
    std::vector<array_type> outputs;
    std::vector<bool> is_donated; /* by parameter */
    bool donates = false;
    /* See light_impl.hh. */
    bool looks_light = false;
    bool is_brief = false;            /* enough for the thread of a caller */
    bool calls_client = false;        /* and waits for it: not on that thread */
    std::atomic<bool> has_run{false}; /* to its end */
    std::atomic<bool> has_strayed{false}; /* to other threads than its own */

    bool is_light() const
    {
        return looks_light && has_run && !has_strayed;
    }

    /* The same for C: views of the above and of what follows. */
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
    std::vector<std::string> result_kinds; /* as marked; "": not */
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
