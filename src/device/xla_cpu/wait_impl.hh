/* How threads of the adapter wait for one another: PJRT_Event, which is
 * completed once and then never changes, and a worker, which runs items one
 * after the other on a thread of its own. Both look for a short while before
 * they sleep, for waking a thread costs more than most computations here. */
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
#include <functional>
#include <memory>
#include <string>
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
        if (tow::spin_until([this] { return is_ready(); })) return;
        for (;;) {
            uint32_t state = WAITED_FOR_NOT;
            state_.compare_exchange_strong(state, WAITED_FOR);
            if (state == READY) return;
            tow::futex_wait(&state_, WAITED_FOR);
        }
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

namespace tow
{

/* One thing for a worker to do. */
struct work {
    work *next = nullptr;
    virtual ~work() = default;
    virtual void run() = 0;
    /* Instead of run, when the worker is stopped first. */
    virtual void cancel() = 0;

    /* Fetches what another core has just written, all lines at once; running
     * the item would fetch them one after the other, 0.1 us each. */
    void prefetch() const
    {
        const char *around = reinterpret_cast<const char *>(this) - 64;
        for (int i = 0; i < TOW_XLA_PREFETCH_LINES; i++)
            __builtin_prefetch(around + 64 * i);
    }
};

/* Runs what is submitted, in order, one at a time. Any thread may submit. */
class worker
{
  public:
    /* `tidy` is called on the thread between items and while it looks for the
     * next one: it must be quick to find that there is nothing to do. */
    explicit worker(
        const std::string &name, std::function<void()> tidy = [] {})
        : tidy_(std::move(tidy))
    {
        thread_ = std::thread([this] { loop(); });
        pthread_setname_np(thread_.native_handle(), name.c_str());
    }

    ~worker()
    {
        stop();
    }

    /* Finishes what runs now and cancels what waits. Nothing may be submitted
     * after that. */
    void stop()
    {
        if (!thread_.joinable()) return;
        stopping_ = true;
        wake();
        thread_.join();
        sleeping_ = 1; /* For good. */
        tidy_();
    }

    /* Whether the caller is this worker's thread. */
    bool is_here() const
    {
        return here == this;
    }

    /* Whether nothing is tidied until the next item comes. */
    bool is_asleep() const
    {
        return sleeping_.load() != 0;
    }

    /* Looks at what the worker writes only when it has to. */
    bool is_full()
    {
        uint64_t submitted = submitted_.load(std::memory_order_relaxed);
        if (submitted - seen_finished_.load(std::memory_order_relaxed) <
            TOW_XLA_QUEUE_DEPTH_MAX)
            return false;
        uint64_t finished = finished_.load(std::memory_order_relaxed);
        seen_finished_.store(finished, std::memory_order_relaxed);
        return submitted - finished >= TOW_XLA_QUEUE_DEPTH_MAX;
    }

    void submit(work *item)
    {
        submitted_.fetch_add(1, std::memory_order_relaxed);
        work *last = last_.load(std::memory_order_relaxed);
        do {
            item->next = last;
        } while (!last_.compare_exchange_weak(last, item));
        if (sleeping_.load() != 0) wake();
    }

    /* Runs `item` here and now if nothing else runs or waits. */
    bool try_run_here(work *item)
    {
        if (last_.load(std::memory_order_relaxed) != nullptr) return false;
        if (busy_.exchange(true)) return false;
        bool alone = last_.load() == nullptr;
        if (alone) item->run();
        busy_ = false;
        if (last_.load() != nullptr) wake();
        return alone;
    }

  private:
    /* A stack that the worker takes whole and turns round: one exchange for as
     * many items as have come since it last looked. */
    work *take_all()
    {
        work *last = last_.exchange(nullptr);
        work *first = nullptr;
        while (last != nullptr) {
            last->prefetch();
            work *next = std::exchange(last->next, first);
            first = std::exchange(last, next);
        }
        return first;
    }

    void wake()
    {
        if (sleeping_.exchange(0) != 0) futex_wake_all(&sleeping_);
    }

    bool may_begin()
    {
        return (last_.load() != nullptr && !busy_.exchange(true)) || stopping_;
    }

    bool tidy_or_begin()
    {
        if (may_begin()) return true;
        tidy_();
        return false;
    }

    /* Returns with busy_ held, unless stopping. */
    void wait_for_work()
    {
        while (!spin_until([this] { return tidy_or_begin(); })) {
            sleeping_ = 1;
            if (tidy_or_begin()) {
                sleeping_ = 0;
                return;
            }
            futex_wait(&sleeping_, 1);
        }
    }

    void loop()
    {
        /* Signals are for the process's own threads. */
        sigset_t all;
        sigfillset(&all);
        pthread_sigmask(SIG_BLOCK, &all, nullptr);
        here = this;
        for (;;) {
            wait_for_work();
            work *item = take_all();
            while (item != nullptr) {
                work *next = item->next;
                if (stopping_)
                    item->cancel();
                else
                    item->run();
                finished_.fetch_add(1, std::memory_order_relaxed);
                tidy_();
                item = next;
            }
            if (stopping_ && last_.load() == nullptr) return;
            busy_ = false;
        }
    }

    /* Each group in a cache line of its own. Written by submitters: */
    alignas(64) std::atomic<work *> last_{nullptr};
    std::atomic<uint64_t> submitted_{0};
    std::atomic<uint64_t> seen_finished_{0};
    /* Written by the worker, for every item; busy_ also by who runs one here: */
    alignas(64) std::atomic<uint64_t> finished_{0};
    std::atomic<bool> busy_{false};
    /* Written seldom: */
    alignas(64) std::atomic<uint32_t> sleeping_{0};
    std::atomic<bool> stopping_{false};
    const std::function<void()> tidy_;
    std::thread thread_;

    static inline thread_local const worker *here = nullptr;
};

} // namespace tow

#endif /* TOW_DEVICE_XLA_CPU_WAIT_IMPL_HH_ */
