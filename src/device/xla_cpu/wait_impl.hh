/* How threads of the adapter wait for each other: PJRT_Event, which is
 * completed once and never changes afterwards. A waiting thread spins for a
 * short while before it sleeps, because waking a thread costs more than most
 * computations. */
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

/* Polls of a spin before the thread yields its core: none in a process that has
 * a device for each core, because the awaited thread needs ours. Set when a
 * client is created. */
inline std::atomic<int> polls_before_yield{TOW_XLA_SPIN_POLLS_BEFORE_YIELD};

inline void set_device_count(size_t device_count)
{
    if (device_count >= std::thread::hardware_concurrency())
        polls_before_yield = 0;
}

/* Signals go to the threads of the application. */
inline void block_signals()
{
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, nullptr);
}

/* Makes progress on the unfinished fibers of the calling thread
 * (tow::inline_executor), which it may be waiting for; false when none is left.
 * Null: it has none. */
inline thread_local bool (*progress_hook)() = nullptr;

/* Polls `done` until it returns true or the spin time is over. */
template <typename Done> bool spin_until(Done done)
{
    const int looks = polls_before_yield.load(std::memory_order_relaxed);
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

/* A callback of an event; deleted after it has fired. */
struct waiter {
    waiter *next = nullptr;
    virtual ~waiter() = default;
    virtual void fire(const absl::Status &status) = 0;
};

} // namespace tow

/* Counted. Completed exactly once, by its creator. Everything written before
 * `complete` is visible after `is_ready` has returned true. */
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

    /* Valid once ready. */
    const absl::Status &status() const
    {
        return status_;
    }

    void await()
    {
        while (tow::progress_hook != nullptr && !is_ready() &&
               tow::progress_hook())
            sched_yield();
        if (tow::spin_until([this] { return is_ready(); })) return;
        for (;;) {
            uint32_t state = WAITED_FOR_NOT;
            state_.compare_exchange_strong(state, WAITED_FOR);
            if (state == READY) return;
            tow::futex_wait(&state_, WAITED_FOR);
        }
    }

    /* For a thread that sleeps on several futexes: the futex that changes from
     * *out_expected, and is woken, when the event becomes ready. */
    const uint32_t *word_to_sleep_on(uint32_t *out_expected)
    {
        uint32_t state = WAITED_FOR_NOT;
        state_.compare_exchange_strong(state, WAITED_FOR);
        *out_expected = WAITED_FOR;
        return reinterpret_cast<const uint32_t *>(&state_);
    }

    /* Takes `waiter`. Fires at once, on the calling thread, if the event is
     * ready; otherwise on the thread that completes it, in the order of the
     * calls. */
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

    void fire_all(tow::waiter *newest)
    {
        tow::waiter *first = nullptr;
        while (newest != nullptr) {
            tow::waiter *next = std::exchange(newest->next, first);
            first = std::exchange(newest, next);
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
