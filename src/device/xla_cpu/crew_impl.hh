/* Who runs what a device has to do.
 *
 * Every device has a queue, and one at a time may take from it: whoever has its
 * turn. Heavy items run on the device's own thread, which may block in them.
 * Light ones (light_impl.hh says which those are) run as fibers of a crew: the
 * devices that share a thread, called a seat. Where a light item has to wait, in
 * a collective or for an input, it passes the thread on to the next of the
 * crew; waking another thread would cost more than it computes. A seat sleeps
 * when all of its crew wait, for all that they wait for at once.
 *
 * A crew may also sit down on the thread of a caller who has nothing better to
 * do (PJRT_Client::guests): then nobody at all is woken. */
#ifndef TOW_DEVICE_XLA_CPU_CREW_IMPL_HH_
#define TOW_DEVICE_XLA_CPU_CREW_IMPL_HH_

#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdint>
#include <functional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/fiber.h"
#include "device/xla_cpu/memory_impl.hh"
#include "device/xla_cpu/tuning.h"
#include "device/xla_cpu/wait_impl.hh"
#include "device/xla_cpu/xla_cpu.h"

namespace tow
{

class crew;
class seat;
class worker;

/* One thing for a worker to do. */
struct work {
    work *next = nullptr;
    bool is_light = false; /* for a crew */
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

/* A futex that somebody waits for. */
struct bell {
    const uint32_t *word = nullptr; /* null: none, look again after a while */
    uint32_t heard = 0;
    bool is_shared = false; /* with other processes */
};

/* A device's place in the crew that it is in at the moment. Belongs to whoever
 * has the device's turn. */
struct berth {
    tow_fiber_t *fiber = nullptr; /* owned; null: no light items here */
    work *item = nullptr;         /* under way */
    crew *aboard = nullptr;
    bell waits_for;
    tow_xla_turns_t turns = {};
};

/* Of the caller: the worker whose item it is in, if that is on a fiber. */
inline thread_local worker *rowing = nullptr;

/* --- Queues and threads of devices ------------------------------------------- */

/* Runs what is submitted, in order, one at a time. Any thread may submit. */
class worker
{
  public:
    /* `tidy` is called between items and while threads look for the next one:
     * it must be quick to find that there is nothing to do. Light items run on
     * `home`, which outlives us; without it there must be none. */
    explicit worker(
        const std::string &name, std::function<void()> tidy = [] {},
        seat *home = nullptr)
        : tidy_(std::move(tidy)), seat_(home)
    {
        if (seat_ != nullptr) berth_.fiber = tow_fiber_create(TOW_XLA_STACK);
        thread_ = std::thread([this] { loop(); });
        pthread_setname_np(thread_.native_handle(), name.c_str());
    }

    ~worker()
    {
        stop();
        tow_fiber_destroy(berth_.fiber);
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

    bool can_run_light() const
    {
        return berth_.fiber != nullptr;
    }

    /* Whether light items that are submitted share a thread with those of other
     * devices. Alone they gain nothing by it: our own thread takes them. */
    inline bool has_crew() const;

    /* Whether the caller is in an item of ours, or is our thread. */
    bool is_here() const
    {
        return here == this;
    }

    /* Whether nothing is tidied until the next item comes. */
    inline bool is_asleep() const;

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

    inline void submit(work *item);

    /* Runs `item` here and now if nothing else runs or waits. */
    bool try_run_here(work *item)
    {
        if (!try_begin_alone()) return false;
        item->run();
        end_turn();
        return true;
    }

    /* --- For whoever wants the turn, and has it --- */

    bool has_light_work() const
    {
        return is_any_waiting(LIGHT) && has_work();
    }

    /* Takes the turn, if nobody has it. */
    bool try_begin()
    {
        return !busy_.exchange(true);
    }

    /* The same, and nothing may be waiting. */
    bool try_begin_alone()
    {
        if (has_work() || !try_begin()) return false;
        if (!has_work()) return true;
        end_turn();
        return false;
    }

    /* The next item, or null. */
    work *peek()
    {
        work *first = first_.load(std::memory_order_relaxed);
        if (first != nullptr) return first;
        first = take_all();
        first_.store(first, std::memory_order_relaxed);
        return first;
    }

    void pop(work *item)
    {
        first_.store(item->next, std::memory_order_relaxed);
        taken_[item->is_light].fetch_add(1);
    }

    void finished_one()
    {
        finished_.fetch_add(1, std::memory_order_relaxed);
        tidy_();
    }

    /* Gives up the turn and calls whoever it is up to now. */
    inline void end_turn();

    bool is_stopping() const
    {
        return stopping_;
    }

    void tidy() const
    {
        tidy_();
    }

    tow::berth &berth()
    {
        return berth_;
    }

    /* Marks that the caller is in an item of ours, until it is destroyed. */
    class presence
    {
      public:
        explicit presence(const worker *where)
            : before_(std::exchange(here, where))
        {
        }
        ~presence()
        {
            here = before_;
        }

      private:
        const worker *const before_;
    };

  private:
    enum weight {
        HEAVY = 0,
        LIGHT = 1
    };

    /* Two counts instead of one that both sides change: that line would go from
     * core to core and back for every item. */
    bool is_any_waiting(weight which) const
    {
        return put_[which].load() != taken_[which].load();
    }

    bool has_work() const
    {
        return last_.load() != nullptr || first_.load() != nullptr;
    }

    /* A stack that is taken whole and turned round: one exchange for as many
     * items as have come since the last. */
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
        if (sleeping_.load() != 0 && sleeping_.exchange(0) != 0)
            futex_wake_all(&sleeping_);
    }

    bool may_begin()
    {
        return ((is_any_waiting(HEAVY) && has_work()) || stopping_) &&
               try_begin();
    }

    bool tidy_or_begin()
    {
        if (may_begin()) return true;
        tidy_();
        return false;
    }

    /* Returns with the turn. */
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

    void run_heavy()
    {
        for (work *item; (item = peek()) != nullptr;) {
            if (item->is_light && !stopping_) return;
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
        here = this;
        for (;;) {
            wait_for_work();
            run_heavy();
            if (stopping_ && !has_work()) return;
            end_turn();
        }
    }

    /* Each group in a cache line of its own. Written by submitters: */
    alignas(64) std::atomic<work *> last_{nullptr};
    std::atomic<uint64_t> submitted_{0};
    std::atomic<uint64_t> seen_finished_{0};
    std::atomic<uint32_t> put_[2] = {}; /* heavy items and light ones */
    /* Written by whoever has the turn, for every item: */
    alignas(64) std::atomic<uint64_t> finished_{0};
    std::atomic<uint32_t> taken_[2] = {}; /* of those that were put */
    std::atomic<bool> busy_{false};       /* Somebody has the turn. */
    std::atomic<work *> first_{nullptr};
    tow::berth berth_;
    /* Written seldom: */
    alignas(64) std::atomic<uint32_t> sleeping_{0};
    std::atomic<bool> stopping_{false};
    const std::function<void()> tidy_;
    seat *const seat_;
    std::thread thread_;

    static inline thread_local const worker *here = nullptr;
};

/* --- Crews --------------------------------------------------------------------- */

/* Light items of several devices on one thread, which is always the same while
 * any is under way. */
class crew
{
  public:
    bool is_empty() const
    {
        return workers_.empty();
    }

    /* Begins an item of `device`, whose turn the caller has and gives to us. */
    void board(worker *device, work *item)
    {
        berth &place = device->berth();
        place.item = item;
        place.aboard = this;
        place.turns = {sizeof(place.turns), device, pass, sleep};
        tow_fiber_start(place.fiber, run_item, device);
        workers_.push_back(device);
    }

    /* Goes once through all of them. True if any did something but look in
     * vain. `is_last`: it is time to sleep. */
    bool round(bool is_last)
    {
        is_falling_asleep_ = is_last;
        has_moved_ = false;
        for (size_t i = 0; i < workers_.size();) {
            if (resume(workers_[i]) && !next_item(workers_[i])) {
                workers_[i] = workers_.back();
                workers_.pop_back();
            } else {
                i++;
            }
        }
        return has_moved_;
    }

    /* Sleeps until any of them may go on, for at most `limit_ns`; or until
     * *also, which may be null, is no longer 1. After a last round in which
     * none moved. */
    void sleep_for_all(int64_t limit_ns, const std::atomic<uint32_t> *also)
    {
        futex_waitv words[FUTEX_WAITV_MAX] = {};
        size_t count = 0;
        if (also != nullptr)
            words[count++] =
                word_of({reinterpret_cast<const uint32_t *>(also), 1, false});
        for (worker *each : workers_) {
            const bell &waits_for = each->berth().waits_for;
            if (waits_for.word == nullptr || count == FUTEX_WAITV_MAX)
                limit_ns = std::min<int64_t>(limit_ns, TOW_XLA_POLL_NS);
            else
                words[count++] = word_of(waits_for);
        }
        wait_for_any(words, count, limit_ns);
    }

    /* Whether devices stay for their next light item. */
    bool stays_aboard = false;

  private:
    static void run_item(void *device)
    {
        static_cast<worker *>(device)->berth().item->run();
    }

    /* True when its item has ended. */
    bool resume(worker *device)
    {
        worker::presence there(device);
        worker *before = std::exchange(rowing, device);
        thread_charge charge_before = thread_charge::get();
        device->berth().waits_for = {};
        bool has_ended = tow_fiber_resume(device->berth().fiber);
        charge_before.set();
        rowing = before;
        has_moved_ |= has_ended;
        return has_ended;
    }

    /* False if the device has left us. */
    bool next_item(worker *device)
    {
        if (stays_aboard) {
            device->finished_one();
            work *next = device->peek();
            if (next != nullptr && next->is_light && !device->is_stopping()) {
                device->pop(next);
                device->berth().item = next;
                tow_fiber_start(device->berth().fiber, run_item, device);
                return true;
            }
        }
        device->berth().aboard = nullptr;
        device->end_turn();
        return false;
    }

    static futex_waitv word_of(const bell &waits_for)
    {
        futex_waitv word = {};
        word.uaddr = reinterpret_cast<uintptr_t>(waits_for.word);
        word.val = waits_for.heard;
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
        /* Nothing to be woken by, or Linux before 5.16. */
        timespec nap = {0, std::min<int64_t>(limit_ns, TOW_XLA_POLL_NS)};
        nanosleep(&nap, nullptr);
    }

    /* --- Called on fibers --- */

    static void leave()
    {
        thread_charge own = thread_charge::get();
        tow_fiber_pass();
        own.set();
    }

    static int pass(void *context, int is_first)
    {
        crew *self = static_cast<worker *>(context)->berth().aboard;
        self->has_moved_ |= is_first != 0;
        leave();
        return self->is_falling_asleep_;
    }

    static void sleep(void *context, const uint32_t *word, uint32_t heard,
                      int is_shared)
    {
        auto *device = static_cast<worker *>(context);
        device->berth().waits_for = {word, heard, is_shared != 0};
        leave();
    }

    std::vector<worker *> workers_; /* with an item under way */
    bool has_moved_ = false;
    bool is_falling_asleep_ = false;
};

/* Waits on a fiber. */
inline void pass_until_ready(PJRT_Event &event)
{
    const tow_xla_turns_t &turns = rowing->berth().turns;
    for (int is_first = 1; !event.is_ready(); is_first = 0) {
        if (turns.pass(turns.context, is_first) == 0) continue;
        uint32_t expected;
        const uint32_t *word = event.word_to_sleep_on(&expected);
        if (!event.is_ready()) turns.sleep(turns.context, word, expected, 0);
    }
}

/* The same for `done`, which becomes true on another thread and says so to
 * nobody. */
template <typename Done> void pass_until(Done done)
{
    const tow_xla_turns_t &turns = rowing->berth().turns;
    for (int is_first = 1; !done(); is_first = 0)
        if (turns.pass(turns.context, is_first))
            turns.sleep(turns.context, nullptr, 0, 0);
}

/* --- Seats ----------------------------------------------------------------------- */

/* A thread for the light items of some devices. */
class seat
{
  public:
    explicit seat(std::string name) : name_(std::move(name))
    {
        crew_.stays_aboard = true;
    }

    ~seat()
    {
        stop();
    }

    /* Before it is started. */
    void add(worker *device)
    {
        workers_.push_back(device);
    }

    bool has_crew() const
    {
        return workers_.size() > 1;
    }

    void start()
    {
        if (!has_crew()) return;
        sleeping_ = 0;
        thread_ = std::thread([this] { loop(); });
        pthread_setname_np(thread_.native_handle(), name_.c_str());
    }

    /* After all its workers have stopped. */
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
    bool begin_new()
    {
        bool any = false;
        for (worker *each : workers_) {
            each->tidy();
            if (!each->has_light_work() || !each->try_begin()) continue;
            work *item = each->peek();
            if (item != nullptr && item->is_light && !each->is_stopping()) {
                each->pop(item);
                crew_.board(each, item);
                any = true;
            } else {
                each->end_turn();
            }
        }
        return any;
    }

    bool look()
    {
        bool any = begin_new();
        return crew_.round(false) || any;
    }

    /* Offers the core between two looks, and notes if others took it for long:
     * then we should sleep soon, for whoever is woken goes first. */
    void offer_core()
    {
        int64_t start_ns = now_ns();
        sched_yield();
        int64_t end_ns = now_ns();
        if (end_ns - start_ns > TOW_XLA_LONG_YIELD_NS)
            crowded_until_ns_ = end_ns + TOW_XLA_CROWDED_NS;
        looked_ns_ = end_ns;
    }

    bool is_patient(int64_t since_ns) const
    {
        int64_t limit_ns = looked_ns_ < crowded_until_ns_
                               ? TOW_XLA_CROWDED_SPIN_NS
                               : TOW_XLA_SPIN_NS;
        return looked_ns_ - since_ns < limit_ns;
    }

    /* True if there was something to do. */
    bool look_for_a_while()
    {
        int64_t since_ns = looked_ns_ = now_ns();
        do {
            if (look()) return true;
            offer_core();
        } while (is_patient(since_ns));
        return look();
    }

    void fall_asleep()
    {
        sleeping_ = 1;
        bool is_awake = begin_new() || crew_.round(true) || stopping_;
        if (!is_awake && crew_.is_empty())
            futex_wait(&sleeping_, 1);
        else if (!is_awake)
            crew_.sleep_for_all(TOW_XLA_SLEEP_NS, &sleeping_);
        sleeping_ = 0;
    }

    void loop()
    {
        block_signals();
        while (!stopping_ || !crew_.is_empty()) {
            if (!look_for_a_while()) fall_asleep();
        }
    }

    const std::string name_;
    std::vector<worker *> workers_; /* lent */
    crew crew_;
    int64_t looked_ns_ = 0;
    int64_t crowded_until_ns_ = 0;
    alignas(64) std::atomic<uint32_t> sleeping_{1};
    std::atomic<bool> stopping_{false};
    std::thread thread_;
};

inline bool worker::has_crew() const
{
    return seat_ != nullptr && seat_->has_crew();
}

inline bool worker::is_asleep() const
{
    return sleeping_.load() != 0 && (seat_ == nullptr || seat_->is_asleep());
}

inline void worker::submit(work *item)
{
    submitted_.fetch_add(1, std::memory_order_relaxed);
    /* It may run and be gone as soon as it is in the queue. */
    bool is_light = item->is_light;
    put_[is_light].fetch_add(1);
    work *last = last_.load(std::memory_order_relaxed);
    do {
        item->next = last;
    } while (!last_.compare_exchange_weak(last, item));
    if (is_light)
        seat_->wake();
    else
        wake();
}

/* Whoever looked while we had the turn may have gone to sleep since. */
inline void worker::end_turn()
{
    busy_ = false;
    if (is_any_waiting(HEAVY) || stopping_) wake();
    if (is_any_waiting(LIGHT)) seat_->wake();
}

/* --- On a caller's thread ------------------------------------------------------------ */

/* A crew on the thread of a caller, who goes on with it, in turns, until it is
 * empty. One caller at a time. */
class guests
{
  public:
    /* Not for a thread that still has others to go on with. */
    bool try_take()
    {
        return mine == nullptr && !is_taken_.exchange(true);
    }

    /* The rest is for whoever has taken it. */
    void give_back()
    {
        is_taken_ = false;
    }

    void board(worker *device, work *item)
    {
        crew_.board(device, item);
    }

    /* Goes on until all is done or `limit_ns` have passed. */
    void row(int64_t limit_ns)
    {
        int64_t end_ns = now_ns() + limit_ns;
        while (!crew_.is_empty()) {
            if (look_for_a_while()) continue;
            int64_t left_ns = end_ns - now_ns();
            if (left_ns <= 0) break;
            if (!crew_.round(true)) crew_.sleep_for_all(left_ns, nullptr);
        }
        settle();
    }

    /* Goes on for as long as anything moves. False once all is done; always
     * for a caller who has not begun it. */
    static bool turn()
    {
        if (mine == nullptr) return false;
        guests *self = mine;
        for (bool is_last = true; self->crew_.round(is_last);)
            is_last = false;
        self->settle();
        return mine != nullptr;
    }

  private:
    /* Without offering the core, for who takes it may keep it for milliseconds;
     * and shorter if that was in vain before: then whoever we wait for needs
     * our core. */
    bool look_for_a_while()
    {
        for (int64_t end_ns = now_ns() + patience_ns_; now_ns() < end_ns;) {
            if (crew_.round(false)) {
                patience_ns_ = std::min(2 * patience_ns_, PATIENCE_MAX_NS);
                return true;
            }
            pause_briefly();
        }
        patience_ns_ = std::max(patience_ns_ / 2, PATIENCE_MIN_NS);
        return false;
    }

    void settle()
    {
        mine = crew_.is_empty() ? nullptr : this;
        turn_held = mine == nullptr ? nullptr : turn;
        if (mine == nullptr) give_back();
    }

    static constexpr int64_t PATIENCE_MIN_NS = TOW_XLA_GUESTS_SPIN_MIN_NS;
    static constexpr int64_t PATIENCE_MAX_NS = TOW_XLA_GUESTS_SPIN_MAX_NS;

    crew crew_;
    int64_t patience_ns_ = PATIENCE_MAX_NS;
    std::atomic<bool> is_taken_{false};

    static inline thread_local guests *mine = nullptr;
};

} // namespace tow

#endif /* TOW_DEVICE_XLA_CPU_CREW_IMPL_HH_ */
