/* Device memory: where it comes from, who is charged for it, and how small things
 * get back to the thread that made them. */
#ifndef TOW_DEVICE_XLA_CPU_MEMORY_IMPL_HH_
#define TOW_DEVICE_XLA_CPU_MEMORY_IMPL_HH_

#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "device/xla_cpu/tuning.h"
#include "xla/pjrt/plugin/xla_cpu/cpu_memory.h"

namespace tow
{

/* Something that the thread which made it should free. */
struct returned {
    returned *next = nullptr;
    int64_t returned_bytes = 0;
    virtual void free_here() = 0;

  protected:
    ~returned() = default;
};

/* Returned things of one device, in no order. Any thread may put and free. */
class return_list
{
  public:
    bool is_full() const
    {
        return count_.load(std::memory_order_relaxed) >=
               TOW_XLA_RETURN_COUNT_MAX;
    }

    /* Bytes that are as good as free. */
    int64_t bytes() const
    {
        return bytes_.load(std::memory_order_acquire);
    }

    void put(returned *item, int64_t bytes)
    {
        item->returned_bytes = bytes;
        bytes_.fetch_add(bytes, std::memory_order_relaxed);
        count_.fetch_add(1, std::memory_order_relaxed);
        item->next = first_.load(std::memory_order_relaxed);
        while (!first_.compare_exchange_weak(item->next, item)) {
        }
    }

    void free_all()
    {
        if (first_.load() == nullptr) return;
        returned *item = first_.exchange(nullptr);
        while (item != nullptr) {
            returned *next = item->next;
            int64_t bytes = item->returned_bytes;
            item->free_here();
            bytes_.fetch_sub(bytes, std::memory_order_release);
            count_.fetch_sub(1, std::memory_order_relaxed);
            item = next;
        }
    }

  private:
    std::atomic<returned *> first_{nullptr};
    std::atomic<int64_t> bytes_{0};
    std::atomic<int> count_{0};
};

/* Bytes that a device holds. */
struct memory_account {
    int64_t limit = 0; /* 0: none */
    std::atomic<int64_t> in_use{0};
    std::atomic<int64_t> peak{0};
    std::atomic<int64_t> largest{0};
    std::atomic<int64_t> count{0};
    return_list returns; /* in `in_use`, but as good as free */

    static void raise(std::atomic<int64_t> &mark, int64_t value)
    {
        int64_t seen = mark.load(std::memory_order_relaxed);
        while (seen < value && !mark.compare_exchange_weak(
                                   seen, value, std::memory_order_relaxed)) {
        }
    }

    int64_t needed() const
    {
        return std::max<int64_t>(0, in_use.load() - returns.bytes());
    }

    bool take(int64_t bytes)
    {
        int64_t now =
            in_use.fetch_add(bytes, std::memory_order_relaxed) + bytes;
        if (limit != 0 && now - returns.bytes() > limit) {
            give(bytes);
            return false;
        }
        raise(peak, now);
        raise(largest, bytes);
        count.fetch_add(1, std::memory_order_relaxed);
        return true;
    }

    void give(int64_t bytes)
    {
        in_use.fetch_sub(bytes, std::memory_order_relaxed);
    }
};

/* Large blocks that nobody uses, for whoever needs one of the same size next:
 * mapping fresh memory takes as long as filling it, and a program that runs
 * again asks for the same sizes again. For the whole process. */
class block_cache
{
  public:
    static block_cache &common()
    {
        static block_cache *const only = new block_cache;
        return *only;
    }

    /* NULL if there is none of this size. The newest is the warmest. */
    void *take(size_t size_bytes)
    {
        std::lock_guard<std::mutex> lock(mutex_);
        for (size_t i = blocks_.size(); i-- > 0;) {
            if (blocks_[i].size_bytes != size_bytes) continue;
            void *base = blocks_[i].base;
            blocks_.erase(blocks_.begin() + i);
            size_bytes_ -= size_bytes;
            return base;
        }
        return nullptr;
    }

    void put(void *base, size_t size_bytes)
    {
        std::vector<block> evicted;
        {
            std::lock_guard<std::mutex> lock(mutex_);
            blocks_.push_back({base, size_bytes});
            size_bytes_ += size_bytes;
            while (size_bytes_ > TOW_XLA_CACHE_BYTES_MAX ||
                   blocks_.size() > TOW_XLA_CACHE_COUNT_MAX) {
                size_bytes_ -= blocks_.front().size_bytes;
                evicted.push_back(blocks_.front());
                blocks_.erase(blocks_.begin());
            }
        }
        for (const block &each : evicted)
            std::free(each.base);
    }

  private:
    struct block {
        void *base;
        size_t size_bytes;
    };

    std::mutex mutex_;
    std::vector<block> blocks_; /* oldest first */
    size_t size_bytes_ = 0;
};

inline bool is_large(size_t size_bytes)
{
    return size_bytes >= TOW_XLA_HUGE_PAGE_BYTES;
}

inline size_t round_up(size_t size_bytes, size_t alignment)
{
    return std::max<size_t>(1, (size_bytes + alignment - 1) / alignment) *
           alignment;
}

inline void *allocate_large(size_t size_bytes)
{
    size_t rounded = round_up(size_bytes, TOW_XLA_HUGE_PAGE_BYTES);
    void *base = block_cache::common().take(rounded);
    if (base != nullptr) return base;
    base = std::aligned_alloc(TOW_XLA_HUGE_PAGE_BYTES, rounded);
    if (base != nullptr) madvise(base, rounded, MADV_HUGEPAGE);
    return base;
}

inline void free_block(void *base, size_t size_bytes)
{
    if (is_large(size_bytes))
        block_cache::common().put(
            base, round_up(size_bytes, TOW_XLA_HUGE_PAGE_BYTES));
    else
        std::free(base);
}

/* Memory that XLA asked for. The account is null when no device did. */
class device_memory final : public xla::CpuMemory
{
  public:
    device_memory(void *base, size_t size_bytes, memory_account *account)
        : base_(base), size_bytes_(size_bytes), account_(account)
    {
    }

    ~device_memory() override
    {
        free_block(base_, size_bytes_);
        if (account_ != nullptr) account_->give(size_bytes_);
    }

    void *base() const override
    {
        return base_;
    }

    size_t size_bytes() const override
    {
        return size_bytes_;
    }

  private:
    void *const base_;
    const size_t size_bytes_;
    memory_account *const account_;
};

/* XLA does not say for which device it allocates, but it allocates on the
 * thread that calls it: for the device of this account. */
inline thread_local memory_account *charged_account = nullptr;

class charge
{
  public:
    explicit charge(memory_account *account)
        : before_(std::exchange(charged_account, account))
    {
    }

    ~charge()
    {
        charged_account = before_;
    }

    charge(const charge &) = delete;
    charge &operator=(const charge &) = delete;

  private:
    memory_account *const before_;
};

inline absl::StatusOr<std::unique_ptr<xla::CpuMemory>> allocate(
    size_t size_bytes, size_t alignment)
{
    memory_account *account = charged_account;
    if (account != nullptr && !account->take(size_bytes))
        return absl::ResourceExhaustedError(absl::StrCat(
            "out of device memory: ", size_bytes, " bytes more than the ",
            account->needed(), " in use pass the limit of ", account->limit));
    void *base =
        is_large(size_bytes)
            ? allocate_large(size_bytes)
            : std::aligned_alloc(alignment, round_up(size_bytes, alignment));
    if (base == nullptr) {
        if (account != nullptr) account->give(size_bytes);
        return absl::ResourceExhaustedError(absl::StrCat(
            "the host has no ", size_bytes, " bytes of memory left"));
    }
    return std::make_unique<device_memory>(base, size_bytes, account);
}

} // namespace tow

#endif /* TOW_DEVICE_XLA_CPU_MEMORY_IMPL_HH_ */
