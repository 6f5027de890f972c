/* Scheduling of fibers: short work items of several devices on one thread.
 *
 * A fiber group is the set of queues whose fibers share a thread. Where a fiber
 * has to wait, in a collective or for an input, it yields to the next one;
 * waking another thread would cost more than most items compute. When all
 * fibers of a group wait, their thread sleeps on all their futexes at once.
 *
 * A group runs on a carrier, a thread of its own (one per core), or on the
 * thread of a caller that has nothing better to do (inline_executor), which
 * saves waking any thread at all. */
#ifndef TOW_DEVICE_XLA_CPU_FIBER_GROUP_IMPL_HH_
#define TOW_DEVICE_XLA_CPU_FIBER_GROUP_IMPL_HH_

#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdint>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/fiber.h"
#include "device/xla_cpu/memory_impl.hh"
#include "device/xla_cpu/tuning.h"
#include "device/xla_cpu/wait_impl.hh"
#include "device/xla_cpu/work_queue_impl.hh"
#include "device/xla_cpu/xla_cpu.h"

namespace tow
{

/* --- Fiber groups --------------------------------------------------------- */

/* Runs on one thread for as long as it has any fiber. */
class fiber_group
{
  public:
    bool is_empty() const
    {
        return queues_.empty();
    }

    /* Starts `item` on the fiber of `queue`. The caller is the queue's
     * consumer; the group takes that over. */
    void start(work_queue *queue, work_item *item)
    {
        fiber_slot &slot = queue->slot();
        queue->check();
        TOW_ASSERT(slot.group == nullptr);
        slot.item = item;
        slot.group = this;
        slot.fiber_ops = {sizeof(slot.fiber_ops), queue, yield, sleep};
        slot.check();
        tow_fiber_start(slot.fiber, run_item, queue);
        queues_.push_back(queue);
    }

    /* Resumes each fiber once. True if any made progress. `is_last`: the thread
     * is about to sleep. */
    bool poll(bool is_last)
    {
        is_falling_asleep_ = is_last;
        has_progress_ = false;
        for (size_t i = 0; i < queues_.size();) {
            if (resume(queues_[i]) && !start_next(queues_[i])) {
                queues_[i] = queues_.back();
                queues_.pop_back();
            } else {
                i++;
            }
        }
        return has_progress_;
    }

    /* Sleeps until any fiber may continue, for at most `limit_ns`; or until
     * *also, which may be null, is no longer 1. After a last poll in which none
     * made progress. */
    void sleep_for_all(int64_t limit_ns, const std::atomic<uint32_t> *also)
    {
        futex_waitv words[FUTEX_WAITV_MAX] = {};
        size_t count = 0;
        if (also != nullptr)
            words[count++] =
                word_of({reinterpret_cast<const uint32_t *>(also), 1, false});
        for (work_queue *each : queues_) {
            const wait_futex &waits_for = each->slot().waits_for;
            if (waits_for.word == nullptr || count == FUTEX_WAITV_MAX)
                limit_ns = std::min<int64_t>(limit_ns, TOW_XLA_POLL_NS);
            else
                words[count++] = word_of(waits_for);
        }
        wait_for_any(words, count, limit_ns);
    }

    /* Whether a queue whose item has ended continues with its next fiber item,
     * instead of leaving the group. */
    bool takes_next_item = false;

  private:
    static void run_item(void *queue)
    {
        static_cast<work_queue *>(queue)->slot().item->run();
    }

    /* True when its item has ended. */
    bool resume(work_queue *queue)
    {
        work_queue::execution_scope scope(queue);
        work_queue *before = std::exchange(fiber_queue, queue);
        thread_charge charge_before = thread_charge::get();
        queue->slot().waits_for = {};
        bool has_ended = tow_fiber_resume(queue->slot().fiber);
        charge_before.set();
        fiber_queue = before;
        has_progress_ |= has_ended;
        return has_ended;
    }

    /* False if the queue has left the group. */
    bool start_next(work_queue *queue)
    {
        if (takes_next_item) {
            queue->finished_one();
            work_item *next = queue->peek();
            if (next != nullptr && next->on_fiber && !queue->is_stopping()) {
                queue->pop(next);
                queue->slot().item = next;
                tow_fiber_start(queue->slot().fiber, run_item, queue);
                return true;
            }
        }
        queue->slot().group = nullptr;
        queue->slot().check();
        queue->release();
        return false;
    }

    static futex_waitv word_of(const wait_futex &waits_for)
    {
        futex_waitv word = {};
        word.uaddr = reinterpret_cast<uintptr_t>(waits_for.word);
        word.val = waits_for.expected;
        word.flags = FUTEX_32 | (waits_for.is_shared ? 0 : FUTEX_PRIVATE_FLAG);
        return word;
    }

    static void wait_for_any(futex_waitv *words, size_t count, int64_t limit_ns)
    {
        int64_t until_ns = now_ns() + limit_ns;
        timespec until = {until_ns / 1000000000, until_ns % 1000000000};
        if (count > 0 && (syscall(SYS_futex_waitv, words, count, 0, &until,
                                  CLOCK_MONOTONIC) >= 0 ||
                          errno != ENOSYS))
            return;
        /* No futex to wait for, or Linux before 5.16. */
        timespec nap = {0, std::min<int64_t>(limit_ns, TOW_XLA_POLL_NS)};
        nanosleep(&nap, nullptr);
    }

    /* --- Called on fibers --- */

    static void leave()
    {
        thread_charge own = thread_charge::get();
        tow_fiber_yield();
        own.set();
    }

    static int yield(void *context, int is_first)
    {
        fiber_group *self = static_cast<work_queue *>(context)->slot().group;
        self->has_progress_ |= is_first != 0;
        leave();
        return self->is_falling_asleep_;
    }

    static void sleep(void *context, const uint32_t *word, uint32_t expected,
                      int is_shared)
    {
        auto *queue = static_cast<work_queue *>(context);
        queue->slot().waits_for = {word, expected, is_shared != 0};
        leave();
    }

    std::vector<work_queue *> queues_; /* whose fibers run */
    bool has_progress_ = false;
    bool is_falling_asleep_ = false;
};

/* Waits on a fiber. */
inline void yield_until_ready(PJRT_Event &event)
{
    const tow_xla_fiber_ops_t &fiber_ops = fiber_queue->slot().fiber_ops;
    for (int is_first = 1; !event.is_ready(); is_first = 0) {
        if (fiber_ops.yield(fiber_ops.context, is_first) == 0) continue;
        uint32_t expected;
        const uint32_t *word = event.word_to_sleep_on(&expected);
        if (!event.is_ready())
            fiber_ops.sleep(fiber_ops.context, word, expected, 0);
    }
}

/* The same for `done`, which another thread makes true without waking us. */
template <typename Done> void yield_until(Done done)
{
    const tow_xla_fiber_ops_t &fiber_ops = fiber_queue->slot().fiber_ops;
    for (int is_first = 1; !done(); is_first = 0)
        if (fiber_ops.yield(fiber_ops.context, is_first))
            fiber_ops.sleep(fiber_ops.context, nullptr, 0, 0);
}

/* --- Carriers ------------------------------------------------------------- */

/* A thread that runs the fiber items of some queues. */
class carrier
{
  public:
    explicit carrier(std::string name) : name_(std::move(name))
    {
        group_.takes_next_item = true;
    }

    ~carrier()
    {
        stop();
    }

    /* Before the carrier is started. */
    void add(work_queue *queue)
    {
        queues_.push_back(queue);
    }

    bool is_shared() const
    {
        return queues_.size() > 1;
    }

    void start()
    {
        if (!is_shared()) return;
        sleeping_ = 0;
        thread_ = std::thread([this] { loop(); });
        pthread_setname_np(thread_.native_handle(), name_.c_str());
    }

    /* After all its queues have stopped. */
    void stop()
    {
        if (!thread_.joinable()) return;
        stopping_ = true;
        wake();
        thread_.join();
        sleeping_ = 1;
    }

    void wake()
    {
        if (sleeping_.load() != 0 && sleeping_.exchange(0) != 0)
            futex_wake_all(&sleeping_);
    }

    bool is_asleep() const
    {
        return sleeping_.load() != 0;
    }

  private:
    bool start_new()
    {
        bool any = false;
        for (work_queue *each : queues_) {
            each->run_idle();
            if (!each->has_fiber_items() || !each->try_acquire()) continue;
            work_item *item = each->peek();
            if (item != nullptr && item->on_fiber && !each->is_stopping()) {
                each->pop(item);
                group_.start(each, item);
                any = true;
            } else {
                each->release();
            }
        }
        return any;
    }

    bool poll()
    {
        bool any = start_new();
        return group_.poll(false) || any;
    }

    /* Yields the core between two polls, and notes if other threads kept it for
     * long: then the carrier should sleep soon, because the kernel prefers
     * threads that are woken. */
    void yield_core()
    {
        int64_t start_ns = now_ns();
        sched_yield();
        int64_t end_ns = now_ns();
        if (end_ns - start_ns > TOW_XLA_LONG_YIELD_NS)
            contended_until_ns_ = end_ns + TOW_XLA_CONTENDED_NS;
        polled_ns_ = end_ns;
    }

    bool may_spin(int64_t since_ns) const
    {
        int64_t limit_ns = polled_ns_ < contended_until_ns_
                               ? TOW_XLA_CONTENDED_SPIN_NS
                               : TOW_XLA_SPIN_NS;
        return polled_ns_ - since_ns < limit_ns;
    }

    /* True if there was progress. */
    bool spin()
    {
        int64_t since_ns = polled_ns_ = now_ns();
        do {
            if (poll()) return true;
            yield_core();
        } while (may_spin(since_ns));
        return poll();
    }

    void fall_asleep()
    {
        sleeping_ = 1;
        bool is_awake = start_new() || group_.poll(true) || stopping_;
        if (!is_awake && group_.is_empty())
            futex_wait(&sleeping_, 1);
        else if (!is_awake)
            group_.sleep_for_all(TOW_XLA_SLEEP_NS, &sleeping_);
        sleeping_ = 0;
    }

    void loop()
    {
        block_signals();
        while (!stopping_ || !group_.is_empty()) {
            if (!spin()) fall_asleep();
        }
    }

    const std::string name_;
    std::vector<work_queue *> queues_; /* outlive the carrier's thread */
    fiber_group group_;
    int64_t polled_ns_ = 0;
    int64_t contended_until_ns_ = 0;
    alignas(64) std::atomic<uint32_t> sleeping_{1};
    std::atomic<bool> stopping_{false};
    std::thread thread_;
};

inline bool work_queue::shares_carrier() const
{
    return carrier_ != nullptr && carrier_->is_shared();
}

inline bool work_queue::is_asleep() const
{
    return sleeping_.load() != 0 &&
           (carrier_ == nullptr || carrier_->is_asleep());
}

inline void work_queue::submit(work_item *item)
{
    submitted_.fetch_add(1, std::memory_order_relaxed);
    /* The item may run and be freed as soon as it is in the queue. */
    bool on_fiber = item->on_fiber;
    put_[on_fiber].fetch_add(1);
    work_item *last = last_.load(std::memory_order_relaxed);
    do {
        item->next = last;
    } while (!last_.compare_exchange_weak(last, item));
    if (on_fiber)
        carrier_->wake();
    else
        wake();
}

/* A thread that polled while the queue had a consumer may sleep by now. */
inline void work_queue::release()
{
    is_owned_ = false;
    if (is_any_waiting(THREADED) || stopping_) wake();
    if (is_any_waiting(FIBER)) carrier_->wake();
}

/* --- Inline executor ------------------------------------------------------ */

/* A fiber group on the thread of a caller, which continues it, call by call,
 * until it is empty. One caller at a time. */
class inline_executor
{
  public:
    /* False for a thread that has unfinished fibers of another executor. */
    bool try_acquire()
    {
        return current == nullptr && !is_acquired_.exchange(true);
    }

    /* The rest is for the thread that has acquired the executor. */
    void release()
    {
        is_acquired_ = false;
    }

    void start(work_queue *queue, work_item *item)
    {
        group_.start(queue, item);
    }

    /* Runs the fibers until all have ended or `limit_ns` have passed. */
    void run(int64_t limit_ns)
    {
        int64_t end_ns = now_ns() + limit_ns;
        while (!group_.is_empty()) {
            if (spin()) continue;
            int64_t left_ns = end_ns - now_ns();
            if (left_ns <= 0) break;
            if (!group_.poll(true)) group_.sleep_for_all(left_ns, nullptr);
        }
        finish_call();
    }

    /* Runs the unfinished fibers of the calling thread for as long as any makes
     * progress. False when none is left. */
    static bool progress()
    {
        if (current == nullptr) return false;
        inline_executor *self = current;
        for (bool is_last = true; self->group_.poll(is_last);)
            is_last = false;
        self->finish_call();
        return current != nullptr;
    }

  private:
    /* Does not yield the core, because the thread that gets it may keep it for
     * milliseconds. Spins for a shorter time after it has spun in vain: the
     * member that we wait for may need our core. */
    bool spin()
    {
        for (int64_t end_ns = now_ns() + spin_ns_; now_ns() < end_ns;) {
            if (group_.poll(false)) {
                spin_ns_ = std::min(2 * spin_ns_, SPIN_MAX_NS);
                return true;
            }
            pause_briefly();
        }
        spin_ns_ = std::max(spin_ns_ / 2, SPIN_MIN_NS);
        return false;
    }

    void finish_call()
    {
        current = group_.is_empty() ? nullptr : this;
        progress_hook = current == nullptr ? nullptr : progress;
        if (current == nullptr) release();
    }

    static constexpr int64_t SPIN_MIN_NS = TOW_XLA_INLINE_SPIN_MIN_NS;
    static constexpr int64_t SPIN_MAX_NS = TOW_XLA_INLINE_SPIN_MAX_NS;

    fiber_group group_;
    int64_t spin_ns_ = SPIN_MAX_NS;
    std::atomic<bool> is_acquired_{false};

    /* With unfinished fibers of this thread; null: none. */
    static inline thread_local inline_executor *current = nullptr;
};

} // namespace tow

#endif /* TOW_DEVICE_XLA_CPU_FIBER_GROUP_IMPL_HH_ */
