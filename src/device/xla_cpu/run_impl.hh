/* Work items: executions, which run on their device's thread or on a fiber, and
 * copies, which run on the thread that finds the source ready, or on the copy
 * thread. Each is the event that it completes. */
#ifndef TOW_DEVICE_XLA_CPU_RUN_IMPL_HH_
#define TOW_DEVICE_XLA_CPU_RUN_IMPL_HH_

#include <algorithm>
#include <cstring>
#include <exception>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "device/xla_cpu/objects_impl.hh"
#include "xla/literal.h"

namespace tow
{

/* XLA returns statuses; the standard library throws exceptions. */
template <typename Body> absl::Status guarded(Body body) noexcept
{
    try {
        return body();
    } catch (const std::bad_alloc &) {
        return absl::ResourceExhaustedError("out of memory");
    } catch (const std::exception &error) {
        return absl::InternalError(error.what());
    } catch (...) {
        return absl::InternalError("unknown exception");
    }
}

inline absl::Status cancelled()
{
    return absl::CancelledError("cancelled: the client has been closed");
}

/* Whether the bytes on the device equal those of a dense array on the host. */
inline bool is_plain(const PJRT_Buffer &buffer)
{
    const xla::Shape &shape = buffer.value->on_device_shape();
    return shape.IsArray() &&
           xla::primitive_util::BitWidth(shape.element_type()) >= 8;
}

/* Whether another process may have its memory mapped for an unknown time. */
inline bool is_quarantined(const PJRT_Buffer &buffer)
{
    const tow_xla_blocks_t *blocks = shareable_blocks.load();
    if (blocks == nullptr || !is_large(buffer.type.size_bytes)) return false;
    auto base =
        buffer.device()->client->xla->UnsafeBufferPointer(buffer.value.get());
    return base.ok() &&
           blocks->is_quarantined(reinterpret_cast<const void *>(*base)) != 0;
}

using values = absl::StatusOr<std::unique_ptr<xla::PjRtBuffer>>;

/* The same value in memory of its own, for the device of `memory`. */
inline values copy_of(const PJRT_Buffer &source, PJRT_Memory *memory)
{
    xla::PjRtClient *client = source.device()->client->xla.get();
    charge allocations(&memory->device->account);
    if (!is_plain(source)) {
        auto literal = source.value->ToLiteral().Await();
        if (!literal.ok()) return literal.status();
        /* XLA reads the literal until the buffer is ready. */
        const auto stored = as_stored(**literal);
        auto made = client->BufferFromHostLiteral(stored, memory->xla);
        if (!made.ok()) return made;
        absl::Status status = (*made)->GetReadyFuture().Await();
        return status.ok() ? std::move(made) : values(status);
    }
    auto base = client->UnsafeBufferPointer(source.value.get());
    if (!base.ok()) return base.status();
    return client->BufferFromHostBuffer(
        reinterpret_cast<const void *>(*base), source.type.element,
        source.type.dims, std::nullopt,
        xla::PjRtClient::HostBufferSemantics::kImmutableOnlyDuringCall, nullptr,
        memory->xla, nullptr);
}

/* Ends the share of a view; XLA calls it once. Until then the memory counts as
 * the other device's. */
struct share_release {
    share_release(PJRT_Buffer *shared, PJRT_Device *user)
        : source(shared), device(user)
    {
        source->add_hold();
        source->begin_share();
        source->begin_share_away();
        device->account.borrow(bytes());
    }

    share_release(share_release &&other)
        : source(std::exchange(other.source, nullptr)), device(other.device)
    {
    }

    ~share_release()
    {
        if (source != nullptr) (*this)();
    }

    void operator()()
    {
        device->account.borrow(-bytes());
        source->end_share_away();
        source->end_share();
        std::exchange(source, nullptr)->release_hold();
    }

    int64_t bytes() const
    {
        return static_cast<int64_t>(source->type.size_bytes);
    }

    PJRT_Buffer *source; /* held */
    PJRT_Device *device; /* of the view */
};

/* The same value in the same memory, for the device of `memory`. XLA does not
 * write to memory passed as zero-copy: if such a value is donated XLA copies
 * it. */
inline values view_of(PJRT_Buffer &source, PJRT_Memory *memory)
{
    xla::PjRtClient *client = source.device()->client->xla.get();
    auto base = client->UnsafeBufferPointer(source.value.get());
    if (!base.ok()) return base.status();
    charge allocations(&memory->device->account); /* If XLA copies anyway. */
    return client->BufferFromHostBuffer(
        reinterpret_cast<const void *>(*base), source.type.element,
        source.type.dims, std::nullopt,
        xla::PjRtClient::HostBufferSemantics::kImmutableZeroCopy,
        share_release(&source, memory->device), memory->xla, nullptr);
}

/* One run of a program on one device. */
struct execution final : PJRT_Event, work_item, pooled<execution> {
    execution(tow::program *what, PJRT_Device *where, uint64_t gang_run)
        : program(what), device(where), run_id(gang_run)
    {
        program->retain();
    }

    struct input {
        PJRT_Buffer *buffer; /* held */
        bool is_donated;
    };

    tow::program *const program; /* counted */
    PJRT_Device *const device;
    const uint64_t run_id;
    absl::InlinedVector<input, 6> inputs;
    absl::InlinedVector<PJRT_Buffer *, 4> outputs; /* held until filled */
    /* Inputs that this run must not donate; usually empty. */
    absl::InlinedVector<int, 2> undonated_inputs;
    /* Valid once the event is ready; zero if XLA was not called. */
    uint64_t busy_ns = 0;
    uint64_t wait_ns = 0;

    void run() override
    {
        finish(guarded([this] {
            absl::Status waited = wait_for_inputs();
            return waited.ok() ? execute() : waited;
        }));
    }

    void cancel() override
    {
        finish(cancelled());
    }

    /* For an execution that cannot be queued. */
    void fail(absl::Status status)
    {
        finish(std::move(status));
    }

    bool has_ready_inputs() const
    {
        for (const input &each : inputs)
            if (!each.buffer->is_ready() ||
                (each.is_donated && each.buffer->is_read()))
                return false;
        return true;
    }

  private:
    ~execution() override
    {
        program->release();
    }

    /* XLA would run on its own pool, out of order, if an input or a use of a
     * donated input were still pending. */
    absl::Status wait_for_inputs()
    {
        for (size_t i = 0; i < inputs.size(); i++) {
            PJRT_Buffer *buffer = inputs[i].buffer;
            if (!buffer->is_ready()) wait_for(*buffer);
            if (absl::Status status = buffer->status(); !status.ok())
                return failed_input(i, std::move(status));
        }
        /* The copy thread never waits for a device, so this ends. */
        for (const input &each : inputs)
            if (each.is_donated && each.buffer->is_read()) wait_unread(each);
        return absl::OkStatus();
    }

    void wait_for(PJRT_Buffer &buffer) const
    {
        if (fiber_queue != nullptr)
            yield_until_ready(*buffer.ready);
        else
            buffer.ready->await();
    }

    void wait_unread(const input &donated) const
    {
        if (fiber_queue != nullptr)
            yield_until([&donated] { return !donated.buffer->is_read(); });
        while (donated.buffer->is_read())
            sched_yield();
    }

    /* Names the first execution that an error has failed; executions that
     * depend on that one pass the error on unchanged. */
    absl::Status failed_input(size_t index, absl::Status status) const
    {
        static constexpr char MARK[] = " [input ";
        if (absl::StrContains(status.message(), MARK)) return status;
        return absl::Status(status.code(),
                            absl::StrCat(status.message(), MARK, index, " of ",
                                         program->name, "]"));
    }

    /* A donated input that is shared must not be overwritten: XLA gets a copy.
     * In this order: a remote share that is lost quarantines its block first.
     */
    static bool must_copy(const input &each)
    {
        return each.is_donated &&
               (each.buffer->is_shared() || is_quarantined(*each.buffer));
    }

    absl::Status copy_shared(std::vector<std::unique_ptr<xla::PjRtBuffer>> &own,
                             absl::Span<xla::PjRtBuffer *> arguments)
    {
        for (size_t i = 0; i < inputs.size(); i++) {
            if (!must_copy(inputs[i])) continue;
            auto copied = copy_of(*inputs[i].buffer, device->default_memory);
            if (!copied.ok()) return copied.status();
            own.push_back(*std::move(copied));
            arguments[i] = own.back().get();
        }
        return absl::OkStatus();
    }

    absl::Status execute()
    {
        absl::InlinedVector<xla::PjRtBuffer *, 8> arguments;
        for (const input &each : inputs)
            arguments.push_back(each.buffer->value.get());
        std::vector<std::unique_ptr<xla::PjRtBuffer>> own;
        if (program->donates) {
            absl::Status copied_all =
                copy_shared(own, absl::MakeSpan(arguments));
            if (!copied_all.ok()) return copied_all;
        }
        xla::ExecuteOptions options;
        options.execution_mode =
            xla::ExecuteOptions::ExecutionMode::kSynchronous;
        for (int index : undonated_inputs)
            options.non_donatable_input_indices.insert(index);
        publish_run();

        charge allocations(&device->account);
        std::optional<xla::Future<>> unused;
        const int64_t start_ns = device->clock.now_ns();
        auto results =
            program->is_portable
                ? program->loaded->ExecutePortable(arguments, device->xla,
                                                   options, unused, false)
                : program->loaded->ExecuteSharded(arguments, device->xla,
                                                  options, unused, false);
        const int64_t end_ns = device->clock.now_ns();
        count_time(end_ns - start_ns);
        device->executed.add(start_ns, end_ns, run_id, program->name);
        if (!results.ok()) return std::move(results).status();
        if (!program->has_run) program->has_run = true;
        return take(*std::move(results));
    }

    void count_time(int64_t kept_ns)
    {
        const uint64_t kept = std::max<int64_t>(kept_ns, 0);
        wait_ns = std::min(device->run.wait_ns, kept);
        busy_ns = kept - wait_ns;
    }

    /* For the collectives of this execution. */
    void publish_run()
    {
        device->run.wait_ns = 0;
        device->run.run_id = run_id;
        device->run.serial++;
        device->run.thread = std::this_thread::get_id();
        device->run.left_thread = &program->left_thread;
        device->run.fiber_ops =
            fiber_queue != nullptr ? &device->queue.slot().fiber_ops : nullptr;
    }

    absl::Status take(std::vector<std::unique_ptr<xla::PjRtBuffer>> results)
    {
        if (results.size() != outputs.size())
            return absl::InternalError(
                absl::StrCat(program->name, " gave ", results.size(),
                             " results instead of ", outputs.size()));
        for (size_t i = 0; i < outputs.size(); i++)
            outputs[i]->value = std::move(results[i]);
        /* With donated inputs XLA may have deferred the execution, because of a
         * use that the adapter does not know of, such as an external
         * reference. */
        if (!program->donates || outputs.empty()) return absl::OkStatus();
        auto ready = outputs[0]->value->GetReadyFuture();
        return ready.IsReady() ? ready.Await() : await_deferred(ready);
    }

    absl::Status await_deferred(xla::Future<> &ready)
    {
        const int64_t start_ns = now_ns();
        if (fiber_queue != nullptr)
            yield_until([&ready] { return ready.IsReady(); });
        absl::Status status = ready.Await();
        busy_ns += std::max<int64_t>(now_ns() - start_ns, 0);
        return status;
    }

    /* Releases the holds first, so that the memory is free when the event is
     * ready. */
    void finish(absl::Status status)
    {
        for (const input &each : inputs)
            each.buffer->release_hold();
        for (PJRT_Buffer *each : outputs)
            each->release_hold();
        inputs.clear();
        outputs.clear();
        complete(std::move(status));
        release();
    }
};

/* Starts `job` when its source is ready. */
template <typename Job>
struct when_ready final : waiter, pooled<when_ready<Job>> {
    explicit when_ready(Job *waiting_job) : job(waiting_job) {}

    void fire(const absl::Status &status) override
    {
        job->start(status);
    }

    Job *const job;
};

/* A copy of `source`: the common part of all copies. */
struct copy : PJRT_Event, work_item {
    copy(PJRT_Buffer *from, PJRT_Client *whose) : source(from), client(whose)
    {
        source->begin_read();
    }

    PJRT_Buffer *const source; /* held */
    PJRT_Client *const client;

    /* Starts when the source is ready. The copy owns itself: a caller that
     * wants the event retains it first. */
    static void begin(copy *job)
    {
        if (job->source->ready == nullptr)
            job->start(absl::OkStatus());
        else
            job->source->ready->on_ready(
                std::make_unique<when_ready<copy>>(job));
    }

    void start(const absl::Status &source_status)
    {
        if (!source_status.ok())
            finish(source_status);
        else if (size_bytes() <= TOW_XLA_INLINE_COPY_BYTES_MAX)
            run();
        else
            client->copier->submit(this);
    }

    void run() override
    {
        finish(guarded([this] { return perform(); }));
    }

    void cancel() override
    {
        finish(cancelled());
    }

  protected:
    virtual size_t size_bytes() const = 0;
    virtual absl::Status perform() = 0;
    virtual void release_target() {}

  private:
    void finish(absl::Status status)
    {
        source->end_read();
        source->release_hold();
        release_target();
        complete(std::move(status));
        release();
    }
};

/* Copies bytes as they are on the device. */
struct raw_read final : copy, pooled<raw_read> {
    raw_read(PJRT_Buffer *from, PJRT_Client *whose, void *to, size_t first,
             size_t bytes)
        : copy(from, whose), destination(to), offset(first), count(bytes)
    {
    }

    void *const destination;
    const size_t offset;
    const size_t count;

  protected:
    size_t size_bytes() const override
    {
        return count;
    }

    absl::Status perform() override
    {
        auto base = client->xla->UnsafeBufferPointer(source->value.get());
        if (!base.ok()) return base.status();
        std::memcpy(destination, reinterpret_cast<char *>(*base) + offset,
                    count);
        return absl::OkStatus();
    }
};

/* Copies into another layout, or from packed elements of less than a byte. */
struct converting_read final : copy {
    converting_read(PJRT_Buffer *from, PJRT_Client *whose, void *to,
                    xla::Shape host_shape)
        : copy(from, whose), destination(to), shape(std::move(host_shape))
    {
    }

    void *const destination;
    const xla::Shape shape;

  protected:
    size_t size_bytes() const override
    {
        return SIZE_MAX; /* Always on the copy thread: XLA may block it. */
    }

    absl::Status perform() override
    {
        /* XLA's copy keeps the order that the elements have on the device. */
        auto dense = source->value->ToLiteral().Await();
        if (!dense.ok()) return dense.status();
        xla::Literal laid_out = as_stored(**dense).Relayout(shape.layout());
        std::memcpy(destination, laid_out.untyped_data(),
                    laid_out.size_bytes());
        return absl::OkStatus();
    }
};

/* Copies to another device or memory of this client. Large values share the
 * memory of their source. Either takes about as long as creating XLA's buffer
 * object, so it runs on the thread that finds the source ready. */
struct transfer final : copy, pooled<transfer> {
    transfer(PJRT_Buffer *from, PJRT_Client *whose, PJRT_Memory *where)
        : copy(from, whose), memory(where)
    {
    }

    PJRT_Memory *const memory;
    PJRT_Buffer *target = nullptr; /* held */

  protected:
    size_t size_bytes() const override
    {
        return is_plain(*source) ? 0 : SIZE_MAX; /* As above. */
    }

    absl::Status perform() override
    {
        bool shares = source->type.size_bytes >= TOW_XLA_SHARE_BYTES_MIN &&
                      is_plain(*source);
        auto made =
            shares ? view_of(*source, memory) : copy_of(*source, memory);
        if (!made.ok()) return made.status();
        target->value = *std::move(made);
        return absl::OkStatus();
    }

    /* Not in the destructor: the target refers to this event. */
    void release_target() override
    {
        target->release_hold();
    }
};

} // namespace tow

#endif /* TOW_DEVICE_XLA_CPU_RUN_IMPL_HH_ */
