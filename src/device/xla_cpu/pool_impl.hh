/* Memory for small objects that one thread makes and another frees.
 *
 * The C library gives such memory back to the heap of the thread that made it,
 * under a lock that puts a thread to sleep when the other one is in it: with a
 * device's thread and its user's in step that happened every other execution,
 * and cost 5 us. Here each thread keeps some of its own, and they trade the rest
 * by the handful. */
#ifndef TOW_DEVICE_XLA_CPU_POOL_IMPL_HH_
#define TOW_DEVICE_XLA_CPU_POOL_IMPL_HH_

#include <atomic>
#include <cstddef>
#include <new>
#include <utility>

#include "device/xla_cpu/tuning.h"
#include "device/xla_cpu/wait_impl.hh"

namespace tow
{

/* A base that gives T its operators new and delete. T is final. */
template <typename T> class pooled
{
  public:
    static void *operator new(size_t size)
    {
        handful &own = mine();
        if (own.first == nullptr) own = trade_empty_for_full();
        if (own.first == nullptr) return ::operator new(size);
        own.count--;
        return std::exchange(own.first, own.first->next);
    }

    static void operator delete(void *memory)
    {
        handful &own = mine();
        if (own.count >= TOW_XLA_POOL_HANDFUL) {
            give_away(own);
            own = {};
        }
        own.first = new (memory) spare{own.first};
        own.count++;
    }

  private:
    struct spare {
        spare *next;
    };

    struct handful {
        spare *first = nullptr;
        int count = 0;
    };

    /* Gives back to the C library what a thread leaves when it ends. */
    struct owned_handful : handful {
        ~owned_handful()
        {
            free_all(*this);
        }
    };

    static handful &mine()
    {
        static_assert(sizeof(T) >= sizeof(spare));
        static thread_local owned_handful own;
        return own;
    }

    static void free_all(handful &some)
    {
        while (some.first != nullptr)
            ::operator delete(std::exchange(some.first, some.first->next));
        some.count = 0;
    }

    /* Full handfuls that nobody has. Held for a few instructions. */
    struct shelf {
        std::atomic_flag is_locked = ATOMIC_FLAG_INIT;
        handful full[TOW_XLA_POOL_SHELF];
        int count = 0;

        void lock()
        {
            while (is_locked.test_and_set(std::memory_order_acquire))
                pause_briefly();
        }

        void unlock()
        {
            is_locked.clear(std::memory_order_release);
        }
    };

    /* Never destroyed: threads may outlive static objects. */
    static shelf &common()
    {
        static shelf *const only = new shelf;
        return *only;
    }

    static handful trade_empty_for_full()
    {
        shelf &all = common();
        all.lock();
        handful taken;
        if (all.count > 0) taken = all.full[--all.count];
        all.unlock();
        return taken;
    }

    static void give_away(handful &some)
    {
        shelf &all = common();
        all.lock();
        bool has_room = all.count < TOW_XLA_POOL_SHELF;
        if (has_room) all.full[all.count++] = some;
        all.unlock();
        if (!has_room) free_all(some);
    }
};

} // namespace tow

#endif /* TOW_DEVICE_XLA_CPU_POOL_IMPL_HH_ */
