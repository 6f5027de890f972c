/* The queue of work items of one device, with the thread that runs them.
 *
 * One consumer at a time owns the queue and takes items from it, in order.
 * Items that may block run on the queue's own thread ("threaded" items). Short
 * items that never leave their thread (fiber_safety_impl.hh) run on fibers,
 * which fiber_group_impl.hh schedules; their consumer is a carrier thread or
 * the thread of a caller. */
#ifndef TOW_DEVICE_XLA_CPU_WORK_QUEUE_IMPL_HH_
#define TOW_DEVICE_XLA_CPU_WORK_QUEUE_IMPL_HH_

#include <pthread.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <string>
#include <thread>
#include <utility>

#include "base/fiber.h"
#include "device/xla_cpu/assert_impl.hh"
#include "device/xla_cpu/tuning.h"
#include "device/xla_cpu/wait_impl.hh"
#include "device/xla_cpu/xla_cpu.h"

namespace tow
{

class carrier;
class fiber_group;
class work_queue;

/* An execution or a copy in a queue. */
struct work_item {
    work_item *next = nullptr;
    bool on_fiber = false; /* else on the queue's thread */
    virtual ~work_item() = default;
    virtual void run() = 0;
    /* Instead of run, if the queue is stopped first. */
    virtual void cancel() = 0;

    /* Fetches the cache lines that another core has just written, all at once;
     * running the item would fetch them one after another, 0.1 us each. */
    void prefetch() const
    {
        const char *around = reinterpret_cast<const char *>(this) - 64;
        for (int i = 0; i < TOW_XLA_PREFETCH_LINES; i++)
            __builtin_prefetch(around + 64 * i);
    }
};

/* The futex that a fiber waits for. */
struct wait_futex {
    const uint32_t *word = nullptr; /* null: none, poll again after a while */
    uint32_t expected = 0;
    bool is_shared = false; /* with other processes */
};

/* The fiber of a queue, and the group that runs it. Accessed by the queue's
 * consumer only. */
struct fiber_slot {
    tow_fiber_t *fiber = nullptr; /* owned; null: the queue runs no fibers */
    work_item *item = nullptr;    /* that the fiber runs */
    fiber_group *group = nullptr; /* null: the fiber is idle */
    wait_futex waits_for;
    tow_xla_fiber_ops_t fiber_ops = {};

    /* By the queue's consumer, when the group or the item has changed. */
    void check() const
    {
        TOW_ASSERT(fiber != nullptr);
        TOW_ASSERT(group == nullptr || item != nullptr);
        TOW_ASSERT(group == nullptr || fiber_ops.context != nullptr);
    }
};

/* The queue whose item the calling fiber runs; null: not on a fiber. */
inline thread_local work_queue *fiber_queue = nullptr;

/* Runs submitted items in order, one at a time. Any thread may submit. */
class work_queue
{
  public:
    /* `idle` is called between items and while a consumer polls for the next
     * one; it must return quickly when it has nothing to do. Fiber items run on
     * `home`, which outlives the queue; without it there must be none. */
    explicit work_queue(
        const std::string &name, std::function<void()> idle = [] {},
        carrier *home = nullptr)
        : idle_(std::move(idle)), carrier_(home)
    {
        if (carrier_ != nullptr)
            slot_.fiber = tow_fiber_create(TOW_XLA_FIBER_STACK_BYTES);
        thread_ = std::thread([this] { loop(); });
        pthread_setname_np(thread_.native_handle(), name.c_str());
    }

    ~work_queue()
    {
        stop();
        tow_fiber_destroy(slot_.fiber);
    }

    /* Finishes the running item and cancels all others. Nothing may be
     * submitted afterwards. */
    void stop()
    {
        if (!thread_.joinable()) return;
        stopping_ = true;
        wake();
        thread_.join();
        sleeping_ = 1; /* For good. */
        idle_();
    }

    bool can_run_fibers() const
    {
        return slot_.fiber != nullptr;
    }

    /* Whether fiber items share their thread with those of other queues. Alone
     * they gain nothing by running on a fiber. */
    inline bool shares_carrier() const;

    /* Whether the caller runs an item of this queue, or is its thread. */
    bool is_current() const
    {
        return current == this;
    }

    /* Whether `idle` is not called before the next item is submitted. */
    inline bool is_asleep() const;

    /* Reads the consumer's cache line only when it has to. */
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

    inline void submit(work_item *item);

    /* Runs `item` on the calling thread if the queue is idle. */
    bool try_run_inline(work_item *item)
    {
        if (!try_acquire_idle()) return false;
        item->run();
        release();
        return true;
    }

    /* --- For consumers --- */

    bool has_fiber_items() const
    {
        return is_any_waiting(FIBER) && has_items();
    }

    /* Makes the caller the consumer, if there is none. */
    bool try_acquire()
    {
        return !is_owned_.exchange(true);
    }

    /* The same, but only if no item is queued. */
    bool try_acquire_idle()
    {
        if (has_items() || !try_acquire()) return false;
        if (!has_items()) return true;
        release();
        return false;
    }

    /* The next item, or null. */
    work_item *peek()
    {
        work_item *first = first_.load(std::memory_order_relaxed);
        if (first != nullptr) return first;
        first = take_all();
        first_.store(first, std::memory_order_relaxed);
        return first;
    }

    void pop(work_item *item)
    {
        first_.store(item->next, std::memory_order_relaxed);
        taken_[item->on_fiber].fetch_add(1);
    }

    void finished_one()
    {
        finished_.fetch_add(1, std::memory_order_relaxed);
        check();
        idle_();
    }

    /* Ends the caller's consumption and wakes the thread that runs the next
     * item. */
    inline void release();

    /* By the consumer. Reads its own cache line only. */
    void check() const
    {
        TOW_ASSERT(is_owned_.load(std::memory_order_relaxed));
    }

    bool is_stopping() const
    {
        return stopping_;
    }

    void run_idle() const
    {
        idle_();
    }

    fiber_slot &slot()
    {
        return slot_;
    }

    /* Marks the caller as running an item of `queue`, until it is destroyed. */
    class execution_scope
    {
      public:
        explicit execution_scope(const work_queue *queue)
            : before_(std::exchange(current, queue))
        {
        }
        ~execution_scope()
        {
            current = before_;
        }

      private:
        const work_queue *const before_;
    };

  private:
    enum item_kind {
        THREADED = 0,
        FIBER = 1
    };

    /* Two counters instead of one that both sides change: the cache line of one
     * would move between cores and back for every item. */
    bool is_any_waiting(item_kind kind) const
    {
        return put_[kind].load() != taken_[kind].load();
    }

    bool has_items() const
    {
        return last_.load() != nullptr || first_.load() != nullptr;
    }

    /* Takes the whole stack of submitted items and reverses it: one exchange
     * for as many items as have come since the last. */
    work_item *take_all()
    {
        work_item *last = last_.exchange(nullptr);
        work_item *first = nullptr;
        while (last != nullptr) {
            last->prefetch();
            work_item *next = std::exchange(last->next, first);
            first = std::exchange(last, next);
        }
        return first;
    }

    void wake()
    {
        if (sleeping_.load() != 0 && sleeping_.exchange(0) != 0)
            futex_wake_all(&sleeping_);
    }

    bool try_acquire_threaded()
    {
        return ((is_any_waiting(THREADED) && has_items()) || stopping_) &&
               try_acquire();
    }

    bool poll()
    {
        if (try_acquire_threaded()) return true;
        idle_();
        return false;
    }

    /* Returns as the consumer. */
    void wait_for_items()
    {
        while (!spin_until([this] { return poll(); })) {
            sleeping_ = 1;
            if (poll()) {
                sleeping_ = 0;
                return;
            }
            futex_wait(&sleeping_, 1);
        }
    }

    void run_threaded()
    {
        for (work_item *item; (item = peek()) != nullptr;) {
            if (item->on_fiber && !stopping_) return;
            pop(item);
            if (stopping_)
                item->cancel();
            else
                item->run();
            finished_one();
        }
    }

    void loop()
    {
        block_signals();
        current = this;
        for (;;) {
            wait_for_items();
            run_threaded();
            if (stopping_ && !has_items()) return;
            release();
        }
    }

    /* Each group in a cache line of its own. Written by submitters: */
    alignas(64) std::atomic<work_item *> last_{nullptr};
    std::atomic<uint64_t> submitted_{0};
    std::atomic<uint64_t> seen_finished_{0};
    std::atomic<uint32_t> put_[2] = {}; /* by item_kind */
    /* Written by the consumer, for every item: */
    alignas(64) std::atomic<uint64_t> finished_{0};
    std::atomic<uint32_t> taken_[2] = {}; /* by item_kind */
    std::atomic<bool> is_owned_{false};   /* There is a consumer. */
    std::atomic<work_item *> first_{nullptr};
    fiber_slot slot_;
    /* Written seldom: */
    alignas(64) std::atomic<uint32_t> sleeping_{0};
    std::atomic<bool> stopping_{false};
    const std::function<void()> idle_;
    carrier *const carrier_;
    std::thread thread_;

    static inline thread_local const work_queue *current = nullptr;
};

} // namespace tow

#endif /* TOW_DEVICE_XLA_CPU_WORK_QUEUE_IMPL_HH_ */
