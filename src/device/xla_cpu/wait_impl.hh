/* How threads of the adapter wait for one another: PJRT_Event, which is
 * completed once and then never changes. Who waits looks for a short while before
 * it sleeps, for waking a thread costs more than most computations here. */
#ifndef TOW_DEVICE_XLA_CPU_WAIT_IMPL_HH_
#define TOW_DEVICE_XLA_CPU_WAIT_IMPL_HH_

#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <thread>
#include <utility>

#include "absl/status/status.h"
#include "device/xla_cpu/tuning.h"
#include "xla/pjrt/c/pjrt_c_api.h"

namespace tow
{

inline int64_t now_ns()
{
    timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return int64_t{time.tv_sec} * 1000000000 + time.tv_nsec;
}

inline void pause_briefly()
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#else
    std::atomic_signal_fence(std::memory_order_seq_cst);
#endif
}

inline void futex_wait(std::atomic<uint32_t> *word, uint32_t expected)
{
    syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, expected, nullptr, nullptr, 0);
}

inline void futex_wake_all(std::atomic<uint32_t> *word)
{
    syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, INT32_MAX, nullptr, nullptr,
            0);
}

/* Looks that pass without giving up the processor: none in a process that has
 * devices for all cores, for whoever we wait for needs ours. Set when a client
 * is made. */
inline std::atomic<int> looks_before_yield{TOW_XLA_SPIN_LOOKS_BEFORE_YIELD};

inline void expect_devices(size_t device_count)
{
    if (device_count >= std::thread::hardware_concurrency())
        looks_before_yield = 0;
}

/* Signals are for the process's own threads. */
inline void block_signals()
{
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, nullptr);
}

/* What the calling thread has to go on with while it waits for anything: it may
 * be waiting for that. Null: nothing; see tow::guests. */
inline thread_local bool (*turn_held)() = nullptr;

/* Looks at `done` until it holds or the time to look is over. */
template <typename Done> bool spin_until(Done done)
{
    const int looks = looks_before_yield.load(std::memory_order_relaxed);
    for (int look = 0; look < looks; look++) {
        if (done()) return true;
        pause_briefly();
    }
    for (int64_t end = now_ns() + TOW_XLA_SPIN_NS; now_ns() < end;) {
        if (done()) return true;
        sched_yield();
    }
    return done();
}

/* Something to do once an event is ready. Deletes itself when it fires. */
struct waiter {
    waiter *next = nullptr;
    virtual ~waiter() = default;
    virtual void fire(const absl::Status &status) = 0;
};

} // namespace tow

/* Counted. Completed exactly once, by whoever made it; what was written before
 * `complete` can be read after `is_ready` was seen to be true. */
struct PJRT_Event {
    PJRT_Event() = default;
    PJRT_Event(const PJRT_Event &) = delete;
    PJRT_Event &operator=(const PJRT_Event &) = delete;
    virtual ~PJRT_Event() = default;

    void retain()
    {
        references_.fetch_add(1, std::memory_order_relaxed);
    }

    void release()
    {
        if (references_.fetch_sub(1, std::memory_order_acq_rel) == 1)
            delete this;
    }

    bool is_ready() const
    {
        return state_.load(std::memory_order_acquire) == READY;
    }

    /* Only once ready. */
    const absl::Status &status() const
    {
        return status_;
    }

    void await()
    {
        while (tow::turn_held != nullptr && !is_ready() && tow::turn_held())
            sched_yield();
        if (tow::spin_until([this] { return is_ready(); })) return;
        for (;;) {
            uint32_t state = WAITED_FOR_NOT;
            state_.compare_exchange_strong(state, WAITED_FOR);
            if (state == READY) return;
            tow::futex_wait(&state_, WAITED_FOR);
        }
    }

    /* For whoever sleeps on several things: the futex that changes from
     * *out_expected, and is rung, when the event becomes ready. */
    const uint32_t *word_to_sleep_on(uint32_t *out_expected)
    {
        uint32_t state = WAITED_FOR_NOT;
        state_.compare_exchange_strong(state, WAITED_FOR);
        *out_expected = WAITED_FOR;
        return reinterpret_cast<const uint32_t *>(&state_);
    }

    /* Takes `waiter`. Fires at once, here, if the event is ready; else on the
     * thread that completes it, in the order in which waiters came. */
    void on_ready(std::unique_ptr<tow::waiter> waiter)
    {
        tow::waiter *first = waiters_.load(std::memory_order_acquire);
        do {
            if (first == closed()) {
                waiter->fire(status_);
                return;
            }
            waiter->next = first;
        } while (!waiters_.compare_exchange_weak(first, waiter.get(),
                                                 std::memory_order_acq_rel));
        waiter.release();
    }

    /* The caller holds a reference. */
    void complete(absl::Status status)
    {
        status_ = std::move(status);
        if (state_.exchange(READY) == WAITED_FOR) tow::futex_wake_all(&state_);
        fire_all(waiters_.exchange(closed(), std::memory_order_acq_rel));
    }

  private:
    enum : uint32_t {
        WAITED_FOR_NOT = 0,
        WAITED_FOR,
        READY
    };

    static tow::waiter *closed()
    {
        return reinterpret_cast<tow::waiter *>(1);
    }

    void fire_all(tow::waiter *last_come)
    {
        tow::waiter *first = nullptr;
        while (last_come != nullptr) {
            tow::waiter *next = std::exchange(last_come->next, first);
            first = std::exchange(last_come, next);
        }
        while (first != nullptr) {
            std::unique_ptr<tow::waiter> waiter(first);
            first = waiter->next;
            waiter->fire(status_);
        }
    }

    std::atomic<uint32_t> references_{1};
    std::atomic<uint32_t> state_{WAITED_FOR_NOT};
    std::atomic<tow::waiter *> waiters_{nullptr};
    absl::Status status_;
};

#endif /* TOW_DEVICE_XLA_CPU_WAIT_IMPL_HH_ */
