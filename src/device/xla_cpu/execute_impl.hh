/* PJRT_LoadedExecutable_Execute, and XLA's own execution for benchmarks. */
#ifndef TOW_DEVICE_XLA_CPU_EXECUTE_IMPL_HH_
#define TOW_DEVICE_XLA_CPU_EXECUTE_IMPL_HH_

#include <memory>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "device/xla_cpu/event_impl.hh"
#include "device/xla_cpu/objects_impl.hh"
#include "device/xla_cpu/run_impl.hh"
#include "device/xla_cpu/xla_cpu.h"
#include "xla/pjrt/c/pjrt_c_api.h"

namespace tow
{
namespace
{

struct run_options {
    uint64_t run_id = 0;
    uint32_t flags = 0;
    absl::Span<const int64_t> undonated_inputs;
};

run_options options_of(const PJRT_ExecuteOptions *given)
{
    run_options options;
    if (given == nullptr) return options;
    options.run_id = static_cast<uint32_t>(given->launch_id);
    options.undonated_inputs = {given->non_donatable_input_indices,
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
                         " has been deleted or donated"));
    return absl::OkStatus();
}

absl::Status check_call(const PJRT_LoadedExecutable_Execute_Args &args,
                        absl::Span<PJRT_Device *const> devices)
{
    const program &what = *args.executable->program;
    if (args.executable->deleted)
        return absl::InvalidArgumentError(
            absl::StrCat("program ", what.name, " has been deleted"));
    if (args.num_devices != devices.size())
        return absl::InvalidArgumentError(absl::StrCat(
            what.name, " runs on ", devices.size(),
            " devices of this client, but was called with arguments for ",
            args.num_devices));
    if (args.options != nullptr &&
        (args.options->num_send_ops != 0 || args.options->num_recv_ops != 0))
        return absl::UnimplementedError(
            "send and receive operations with the host during an execution");
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
        if (devices[d]->queue.is_full())
            return absl::ResourceExhaustedError(absl::StrCat(
                "device ", devices[d]->xla->global_device_id().value(), " has ",
                TOW_XLA_QUEUE_DEPTH_MAX,
                " executions queued (the limit); wait for some of them"));
    }
    return absl::OkStatus();
}

/* Takes holds of the inputs. A failure is a race with a deletion, or the same
 * buffer donated twice; it fails the execution, not the call. */
absl::Status take_inputs(execution &run, PJRT_Buffer *const *arguments,
                         const run_options &options)
{
    const program &what = *run.program;
    for (size_t i = 0; i < what.parameters.size(); i++) {
        PJRT_Buffer *buffer = arguments[i];
        bool is_undonated = absl::c_linear_search(options.undonated_inputs, i);
        bool donated = what.is_donated[i] && !is_undonated;
        if (is_undonated && what.is_donated[i])
            run.undonated_inputs.push_back(static_cast<int>(i));
        if (donated ? !buffer->try_take_from_user() : !buffer->try_hold())
            return absl::InvalidArgumentError(
                absl::StrCat("argument ", i, " of ", what.name,
                             " has been deleted or donated"));
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

using executions = absl::InlinedVector<execution *, 8>;

/* Acquires the queues of all devices, if all of them are idle, and starts the
 * fibers. */
bool try_start_fibers(inline_executor &executor, const executions &runs)
{
    if (!executor.try_acquire()) return false;
    for (size_t i = 0; i < runs.size(); i++) {
        if (runs[i]->device->queue.try_acquire_idle()) continue;
        while (i-- > 0)
            runs[i]->device->queue.release();
        executor.release();
        return false;
    }
    for (execution *run : runs)
        executor.start(&run->device->queue, run);
    return true;
}

bool may_run_on_fibers(const run_options &options, const executions &runs)
{
    if ((options.flags & TOW_XLA_EXECUTE_INLINE_FIBERS) == 0 || runs.empty())
        return false;
    for (const execution *run : runs)
        if (!run->on_fiber || !run->program->fits_inline ||
            !run->has_ready_inputs())
            return false;
    return true;
}

/* Then it waits for no other member. */
bool is_whole_gang(const execution &run)
{
    const xla::PjRtLoadedExecutable &loaded = *run.program->loaded;
    return loaded.num_replicas() * loaded.num_partitions() == 1;
}

/* True when they were run, or started, on this thread. `gang_lock` keeps other
 * gangs out of the devices' queues until all of these are acquired. */
bool try_run_inline(const run_options &options, const executions &runs,
                    PJRT_Client &client,
                    std::unique_lock<std::mutex> &gang_lock)
{
    bool may = may_run_on_fibers(options, runs);
    if (runs.size() == 1 &&
        ((may && is_whole_gang(*runs[0])) ||
         ((options.flags & TOW_XLA_EXECUTE_INLINE) != 0 &&
          !runs[0]->program->calls_client && runs[0]->has_ready_inputs())) &&
        runs[0]->device->queue.try_run_inline(runs[0]))
        return true;
    if (!may || !try_start_fibers(client.inline_executor, runs)) return false;
    if (gang_lock.owns_lock()) gang_lock.unlock();
    client.inline_executor.run(TOW_XLA_INLINE_LIMIT_NS);
    return true;
}

absl::Status execute_checked(PJRT_LoadedExecutable_Execute_Args &args,
                             absl::Span<PJRT_Device *const> devices)
{
    program *what = args.executable->program;
    run_options options = options_of(args.options);
    bool on_fiber = what->is_fiber_safe();
    executions runs;
    std::unique_lock<std::mutex> gang_lock;
    if (devices.size() > 1)
        gang_lock = std::unique_lock<std::mutex>(what->client->gang_mutex);
    for (size_t d = 0; d < devices.size(); d++) {
        auto *run = new execution(what, devices[d], options.run_id);
        make_outputs(*run, args.output_lists[d]);
        if (args.device_complete_events != nullptr) {
            run->retain();
            args.device_complete_events[d] = run;
        }
        run->on_fiber = on_fiber && devices[d]->queue.can_run_fibers();
        absl::Status taken = take_inputs(*run, args.argument_lists[d], options);
        if (taken.ok())
            runs.push_back(run);
        else
            run->fail(std::move(taken));
    }
    if (try_run_inline(options, runs, *what->client, gang_lock))
        return absl::OkStatus();
    for (execution *run : runs) {
        work_queue &queue = run->device->queue;
        run->on_fiber = run->on_fiber && queue.shares_carrier();
        queue.submit(run);
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

/* --- Benchmarks ----------------------------------------------------------- */

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
                status = absl::FailedPreconditionError(absl::StrCat(
                    "argument ", i, " of ", what.name, " is not ready"));
            if (!status.ok()) return status;
        }
        int64_t start = now_ns();
        absl::Status status = run_bare(what, arguments, repetition_count);
        *out_ns = now_ns() - start;
        return status;
    });
}

void device_time(const PJRT_Event *event, uint64_t *out_busy_ns,
                 uint64_t *out_wait_ns)
{
    auto *run = static_cast<const execution *>(event);
    *out_busy_ns = run->busy_ns;
    *out_wait_ns = run->wait_ns;
}

int progress()
{
    return inline_executor::progress();
}

} // namespace
} // namespace tow

#endif /* TOW_DEVICE_XLA_CPU_EXECUTE_IMPL_HH_ */
