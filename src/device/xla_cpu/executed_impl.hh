/* The time of executions, and the latest ones of a device for traces. Their
 * recording begins with the first read. */
#ifndef TOW_DEVICE_XLA_CPU_EXECUTED_IMPL_HH_
#define TOW_DEVICE_XLA_CPU_EXECUTED_IMPL_HH_

#include <algorithm>
#include <atomic>
#include <cstring>
#include <memory>
#include <string>

#include "base/clock.h"
#include "device/xla_cpu/tuning.h"
#include "device/xla_cpu/xla_cpu.h"

namespace tow
{

/* Measures executions: reading it costs half as much as the kernel's clock. */
class execution_clock
{
  public:
    execution_clock()
    {
        tow_fast_clock_init(&clock_);
    }

    int64_t now_ns()
    {
        return tow_fast_clock_now_ns(&clock_);
    }

  private:
    tow_fast_clock_t clock_;
};

/* Written by the consumer of the device's queue, read by any thread. */
class executed_ring
{
  public:
    void add(int64_t start_ns, int64_t end_ns, uint64_t run_id,
             const std::string &name)
    {
        if (!is_recording_.load(std::memory_order_acquire)) return;
        const uint64_t count = count_.load(std::memory_order_relaxed);
        tow_xla_executed_t &to = ring_[count % TOW_XLA_EXECUTED_COUNT];
        to.start_ns = start_ns;
        to.end_ns = end_ns;
        to.run_id = run_id;
        const size_t size = std::min(name.size(), sizeof(to.name) - 1);
        std::memcpy(to.name, name.data(), size);
        to.name[size] = '\0';
        count_.store(count + 1, std::memory_order_release);
    }

    /* Oldest first, without those that are overwritten meanwhile. The first
     * call starts the recording. One reader at a time. */
    size_t read(tow_xla_executed_t *out, size_t capacity)
    {
        if (!start_recording()) return 0;
        const uint64_t last = count_.load(std::memory_order_acquire);
        const uint64_t count = std::min<uint64_t>(
            {last, TOW_XLA_EXECUTED_COUNT, uint64_t{capacity}});
        for (uint64_t i = 0; i < count; i++)
            out[i] = ring_[(last - count + i) % TOW_XLA_EXECUTED_COUNT];
        std::atomic_thread_fence(std::memory_order_acquire);
        /* The writer may be overwriting one more. */
        const uint64_t now = count_.load(std::memory_order_relaxed) + 1;
        const uint64_t first = last - count;
        if (now <= first + TOW_XLA_EXECUTED_COUNT) return count;
        const uint64_t lost =
            std::min(now - TOW_XLA_EXECUTED_COUNT - first, count);
        std::memmove(out, out + lost, (count - lost) * sizeof(*out));
        return count - lost;
    }

  private:
    bool start_recording()
    {
        if (is_recording_.load(std::memory_order_relaxed)) return true;
        ring_.reset(new (std::nothrow)
                        tow_xla_executed_t[TOW_XLA_EXECUTED_COUNT]);
        if (ring_ == nullptr) return false;
        is_recording_.store(true, std::memory_order_release);
        return true;
    }

    std::atomic<bool> is_recording_{false};
    std::atomic<uint64_t> count_{0};
    std::unique_ptr<tow_xla_executed_t[]> ring_;
};

} // namespace tow

#endif /* TOW_DEVICE_XLA_CPU_EXECUTED_IMPL_HH_ */
