/* Memory for small objects that one thread allocates and another frees.
 *
 * The C library frees such memory into the heap of the thread that allocated
 * it, under a lock on which a thread sleeps when the other one holds it: with
 * the threads of a device and of its user in step that happened every other
 * execution, and cost 5 us. Here each thread keeps a batch of free objects of
 * its own, and exchanges full batches through a common depot. */
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

/* A base class that gives T its operators new and delete. T is final. */
template <typename T> class pooled
{
  public:
    static void *operator new(size_t size)
    {
        batch &own = mine();
        if (own.first == nullptr) own = take_batch();
        if (own.first == nullptr) return ::operator new(size);
        own.count--;
        return std::exchange(own.first, own.first->next);
    }

    static void operator delete(void *memory)
    {
        batch &own = mine();
        if (own.count >= TOW_XLA_POOL_BATCH) {
            put_batch(own);
            own = {};
        }
        own.first = new (memory) spare{own.first};
        own.count++;
    }

  private:
    struct spare {
        spare *next;
    };

    struct batch {
        spare *first = nullptr;
        int count = 0;
    };

    /* Frees the batch of a thread that ends. */
    struct owned_batch : batch {
        ~owned_batch()
        {
            free_all(*this);
        }
    };

    static batch &mine()
    {
        static_assert(sizeof(T) >= sizeof(spare));
        static thread_local owned_batch own;
        return own;
    }

    static void free_all(batch &some)
    {
        while (some.first != nullptr)
            ::operator delete(std::exchange(some.first, some.first->next));
        some.count = 0;
    }

    /* Full batches. Locked for a few instructions only. */
    struct depot {
        std::atomic_flag is_locked = ATOMIC_FLAG_INIT;
        batch full[TOW_XLA_POOL_DEPOT_COUNT];
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
    static depot &common()
    {
        static depot *const only = new depot;
        return *only;
    }

    static batch take_batch()
    {
        depot &all = common();
        all.lock();
        batch taken;
        if (all.count > 0) taken = all.full[--all.count];
        all.unlock();
        return taken;
    }

    static void put_batch(batch &some)
    {
        depot &all = common();
        all.lock();
        bool has_room = all.count < TOW_XLA_POOL_DEPOT_COUNT;
        if (has_room) all.full[all.count++] = some;
        all.unlock();
        if (!has_room) free_all(some);
    }
};

} // namespace tow

#endif /* TOW_DEVICE_XLA_CPU_POOL_IMPL_HH_ */
