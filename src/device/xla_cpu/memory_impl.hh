/* Device memory: its allocation, the accounts that it is charged to, and the
 * deferred freeing of small objects by the thread that allocated them. */
#ifndef TOW_DEVICE_XLA_CPU_MEMORY_IMPL_HH_
#define TOW_DEVICE_XLA_CPU_MEMORY_IMPL_HH_

#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "device/xla_cpu/assert_impl.hh"
#include "device/xla_cpu/tuning.h"
#include "device/xla_cpu/xla_cpu.h"
#include "xla/pjrt/plugin/xla_cpu/cpu_memory.h"

namespace tow
{

/* An object to be freed by the thread that allocated it. */
struct deferred_free {
    deferred_free *next = nullptr;
    int64_t deferred_bytes = 0;
    virtual void free_now() = 0;

  protected:
    ~deferred_free() = default;
};

/* Objects of one device to be freed, in no order. Any thread may put and free.
 */
class deferred_free_list
{
  public:
    bool is_full() const
    {
        return count_.load(std::memory_order_relaxed) >=
               TOW_XLA_DEFERRED_FREE_COUNT_MAX;
    }

    /* Bytes that will be freed soon. */
    int64_t bytes() const
    {
        return bytes_.load(std::memory_order_acquire);
    }

    void put(deferred_free *item, int64_t bytes)
    {
        item->deferred_bytes = bytes;
        bytes_.fetch_add(bytes, std::memory_order_relaxed);
        count_.fetch_add(1, std::memory_order_relaxed);
        item->next = first_.load(std::memory_order_relaxed);
        while (!first_.compare_exchange_weak(item->next, item)) {
        }
    }

    void free_all()
    {
        if (first_.load() == nullptr) return;
        deferred_free *item = first_.exchange(nullptr);
        while (item != nullptr) {
            deferred_free *next = item->next;
            int64_t bytes = item->deferred_bytes;
            item->free_now();
            bytes_.fetch_sub(bytes, std::memory_order_release);
            count_.fetch_sub(1, std::memory_order_relaxed);
            item = next;
        }
    }

  private:
    std::atomic<deferred_free *> first_{nullptr};
    std::atomic<int64_t> bytes_{0};
    std::atomic<int> count_{0};
};

/* --- Blocks --------------------------------------------------------------- */

inline bool is_large(size_t size_bytes)
{
    return size_bytes >= TOW_XLA_BLOCK_BYTES_MIN;
}

inline size_t round_up(size_t size_bytes, size_t alignment)
{
    return std::max<size_t>(1, (size_bytes + alignment - 1) / alignment) *
           alignment;
}

/* The size of the block for a large allocation. */
inline size_t round_to_block(size_t size_bytes)
{
    return round_up(size_bytes, size_bytes < TOW_XLA_HUGE_PAGE_BYTES
                                    ? TOW_XLA_BLOCK_STEP_BYTES
                                    : TOW_XLA_HUGE_PAGE_BYTES);
}

/* Fresh zeroed memory of at least a huge page, aligned to huge pages; NULL if
 * there is none. `size_bytes` is a multiple of the huge page size. */
inline void *map_huge_pages(size_t size_bytes)
{
    size_t mapped = size_bytes + TOW_XLA_HUGE_PAGE_BYTES;
    void *start = mmap(nullptr, mapped, PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (start == MAP_FAILED) return nullptr;
    char *first = static_cast<char *>(start);
    char *base = reinterpret_cast<char *>(
        round_up(reinterpret_cast<uintptr_t>(first), TOW_XLA_HUGE_PAGE_BYTES));
    size_t before = base - first;
    if (before != 0) munmap(first, before);
    if (mapped != before + size_bytes)
        munmap(base + size_bytes, mapped - before - size_bytes);
    madvise(base, size_bytes, MADV_HUGEPAGE);
    return base;
}

/* Fresh zeroed memory; NULL if there is none. */
inline void *map_block(size_t size_bytes)
{
    if (size_bytes >= TOW_XLA_HUGE_PAGE_BYTES)
        return map_huge_pages(size_bytes);
    void *base = mmap(nullptr, size_bytes, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    return base == MAP_FAILED ? nullptr : base;
}

/* The allocator of blocks that other processes can map; null: none. Set by the
 * first client that has one. */
inline std::atomic<const tow_xla_blocks_t *> shareable_blocks{nullptr};

struct mapped_block {
    void *base = nullptr; /* null: no memory */
    bool is_shareable = false;
};

inline void unmap_block(mapped_block block, size_t size_bytes)
{
    if (block.is_shareable)
        shareable_blocks.load()->free(block.base);
    else
        munmap(block.base, size_bytes);
}

/* Whether no other process can still have it mapped. */
inline bool may_reuse(mapped_block block)
{
    return !block.is_shareable ||
           !shareable_blocks.load()->is_quarantined(block.base);
}

/* Blocks that devices have freed, for later allocations of the same device and
 * size: mapping fresh memory takes as long as filling it, and a program that
 * runs again allocates the same sizes again. One cache for the process, so that
 * busy devices can use all of it. Any thread. */
class block_cache
{
  public:
    static block_cache &common()
    {
        static block_cache *const only = new block_cache;
        return *only;
    }

    /* A device's part of the cache. */
    struct owner {
        std::atomic<int64_t> cached_bytes{0};
    };

    /* Empty if there is none of this size. The newest is likeliest to be in the
     * processor's caches. */
    mapped_block take(owner &of, size_t size_bytes, bool must_be_shareable)
    {
        std::lock_guard<std::mutex> lock(mutex_);
        for (size_t i = blocks_.size(); i-- > 0;)
            if (blocks_[i].of == &of && blocks_[i].size_bytes == size_bytes &&
                (!must_be_shareable || blocks_[i].mapped.is_shareable))
                return remove(i).mapped;
        return {};
    }

    void put(owner &of, mapped_block mapped, size_t size_bytes)
    {
        std::vector<block> evicted;
        {
            std::lock_guard<std::mutex> lock(mutex_);
            blocks_.push_back({&of, mapped, size_bytes});
            of.cached_bytes += size_bytes;
            size_bytes_ += size_bytes;
            while (size_bytes_ > TOW_XLA_CACHE_BYTES_MAX ||
                   blocks_.size() > TOW_XLA_CACHE_COUNT_MAX)
                evicted.push_back(remove(0));
        }
        unmap(evicted);
    }

    /* Unmaps the oldest blocks of `of` until it has at most `kept_bytes`. */
    void trim(owner &of, int64_t kept_bytes)
    {
        std::vector<block> evicted;
        {
            std::lock_guard<std::mutex> lock(mutex_);
            for (size_t i = 0;
                 i < blocks_.size() && of.cached_bytes.load() > kept_bytes;)
                if (blocks_[i].of == &of)
                    evicted.push_back(remove(i));
                else
                    i++;
        }
        unmap(evicted);
    }

  private:
    struct block {
        owner *of;
        mapped_block mapped;
        size_t size_bytes;
    };

    /* Under the mutex. */
    block remove(size_t index)
    {
        block removed = blocks_[index];
        blocks_.erase(blocks_.begin() + index);
        removed.of->cached_bytes -= removed.size_bytes;
        size_bytes_ -= removed.size_bytes;
        return removed;
    }

    static void unmap(const std::vector<block> &blocks)
    {
        for (const block &each : blocks)
            unmap_block(each.mapped, each.size_bytes);
    }

    std::mutex mutex_;
    std::vector<block> blocks_; /* oldest first */
    size_t size_bytes_ = 0;
};

/* --- Accounting ----------------------------------------------------------- */

/* The memory of a device. Bytes in use and cached bytes together stay within
 * the limit, so the process stays within the sum of its devices' limits. */
struct memory_account {
    int64_t limit = 0; /* 0: none */
    std::atomic<int64_t> in_use{0};
    std::atomic<int64_t> peak{0};        /* of used() */
    std::atomic<int64_t> recent_peak{0}; /* the same, since take_recent_peak */
    std::atomic<int64_t> largest{0};
    std::atomic<int64_t> count{0};
    deferred_free_list deferred; /* part of `in_use`, but soon free */
    /* Part of `in_use`, but only used by other processes, which count it. */
    std::atomic<int64_t> remote_only{0};
    /* Not in `in_use`, and without a limit here: memory of the caller, and of
     * other devices, that this device uses. */
    std::atomic<int64_t> borrowed{0};
    block_cache::owner cache; /* not in `in_use` */

    ~memory_account()
    {
        block_cache::common().trim(cache, 0);
    }

    static void raise(std::atomic<int64_t> &mark, int64_t value)
    {
        int64_t seen = mark.load(std::memory_order_relaxed);
        while (seen < value && !mark.compare_exchange_weak(
                                   seen, value, std::memory_order_relaxed)) {
        }
    }

    int64_t needed() const
    {
        return std::max<int64_t>(0, in_use.load() - deferred.bytes() -
                                        remote_only.load());
    }

    int64_t used() const
    {
        return std::max<int64_t>(0, in_use.load() - deferred.bytes() -
                                        remote_only.load() + borrowed.load());
    }

    void raise_peaks()
    {
        const int64_t now = used();
        raise(peak, now);
        raise(recent_peak, now);
    }

    /* The peak since the last call. */
    int64_t take_recent_peak()
    {
        const int64_t now = used();
        return std::max(recent_peak.exchange(now), now);
    }

    /* `bytes` is negative when the device no longer uses them. */
    void borrow(int64_t bytes)
    {
        borrowed.fetch_add(bytes);
        if (bytes > 0) raise_peaks();
    }

    bool take(int64_t bytes)
    {
        int64_t now =
            in_use.fetch_add(bytes, std::memory_order_relaxed) + bytes;
        if (limit != 0 && now - deferred.bytes() - remote_only.load() > limit) {
            give(bytes);
            return false;
        }
        raise_peaks();
        raise(largest, bytes);
        count.fetch_add(1, std::memory_order_relaxed);
        return true;
    }

    void give(int64_t bytes)
    {
        int64_t before = in_use.fetch_sub(bytes, std::memory_order_relaxed);
        TOW_ASSERT(before >= bytes);
    }

    /* Cached blocks make room for memory in use. */
    void trim_cache()
    {
        if (limit == 0 || cache.cached_bytes.load() == 0) return;
        block_cache::common().trim(cache,
                                   std::max<int64_t>(0, limit - needed()));
    }
};

/* The initial content of allocated memory. Memory that a client can read before
 * writing it must be zeroed, because it may hold data of another client. */
enum class content {
    undefined,
    zeroes
};

inline mapped_block take_cached(size_t rounded, memory_account *account,
                                bool must_be_shareable)
{
    if (account == nullptr) return {};
    mapped_block used =
        block_cache::common().take(account->cache, rounded, must_be_shareable);
    account->trim_cache();
    return used;
}

/* A fresh block that other processes can map. */
inline mapped_block alloc_shareable(size_t rounded)
{
    return {shareable_blocks.load()->alloc(rounded), true};
}

inline mapped_block allocate_large(size_t rounded, memory_account *account,
                                   bool *out_is_used)
{
    const tow_xla_blocks_t *blocks = shareable_blocks.load();
    bool is_wanted = blocks != nullptr && blocks->is_preferred(rounded);
    *out_is_used = true;
    mapped_block used = take_cached(rounded, account, is_wanted);
    if (used.base != nullptr) return used;
    *out_is_used = false;
    mapped_block shown = is_wanted ? alloc_shareable(rounded) : mapped_block{};
    if (shown.base != nullptr) return shown;
    if (is_wanted) used = take_cached(rounded, account, false);
    *out_is_used = used.base != nullptr;
    return *out_is_used ? used : mapped_block{map_block(rounded), false};
}

/* `account` may be null. */
inline mapped_block allocate_block(size_t size_bytes, size_t alignment,
                                   memory_account *account, content wanted)
{
    mapped_block block;
    bool is_used = true;
    if (is_large(size_bytes))
        block = allocate_large(round_to_block(size_bytes), account, &is_used);
    else
        block.base =
            std::aligned_alloc(alignment, round_up(size_bytes, alignment));
    if (block.base != nullptr && is_used && wanted == content::zeroes)
        std::memset(block.base, 0, size_bytes);
    return block;
}

/* After the account has been credited. */
inline void free_block(mapped_block block, size_t size_bytes,
                       memory_account *account)
{
    if (!is_large(size_bytes)) {
        std::free(block.base);
        return;
    }
    size_t rounded = round_to_block(size_bytes);
    if (account == nullptr || !may_reuse(block)) {
        unmap_block(block, rounded);
        return;
    }
    block_cache::common().put(account->cache, block, rounded);
    account->trim_cache();
}

/* Memory allocated for XLA. The account is null if it was not for a device. */
class device_memory final : public xla::CpuMemory
{
  public:
    device_memory(mapped_block block, size_t size_bytes,
                  memory_account *account)
        : block_(block), size_bytes_(size_bytes), account_(account)
    {
    }

    ~device_memory() override
    {
        if (account_ != nullptr) account_->give(size_bytes_);
        free_block(block_, size_bytes_, account_);
    }

    void *base() const override
    {
        return block_.base;
    }

    size_t size_bytes() const override
    {
        return size_bytes_;
    }

  private:
    const mapped_block block_;
    const size_t size_bytes_;
    memory_account *const account_;
};

/* XLA's allocator interface does not name the device, but XLA allocates on the
 * thread that calls it. These say for which account and with which content. */
inline thread_local memory_account *charged_account = nullptr;
inline thread_local content wanted_content = content::undefined;

/* The same as a value, to be saved when a thread switches fibers. */
struct thread_charge {
    memory_account *account;
    content wanted;

    static thread_charge get()
    {
        return {charged_account, wanted_content};
    }

    void set() const
    {
        charged_account = account;
        wanted_content = wanted;
    }
};

/* Charges the allocations of the calling thread to `account`, while it exists.
 */
class charge
{
  public:
    explicit charge(memory_account *account,
                    content wanted = content::undefined)
        : before_(std::exchange(charged_account, account)),
          wanted_before_(std::exchange(wanted_content, wanted))
    {
    }

    ~charge()
    {
        charged_account = before_;
        wanted_content = wanted_before_;
    }

    charge(const charge &) = delete;
    charge &operator=(const charge &) = delete;

  private:
    memory_account *const before_;
    const content wanted_before_;
};

inline absl::StatusOr<std::unique_ptr<xla::CpuMemory>> allocate(
    size_t size_bytes, size_t alignment)
{
    memory_account *account = charged_account;
    if (account != nullptr && !account->take(size_bytes))
        return absl::ResourceExhaustedError(absl::StrCat(
            "out of device memory: ", size_bytes, " bytes requested, ",
            account->needed(), " in use, limit ", account->limit));
    mapped_block block =
        allocate_block(size_bytes, alignment, account, wanted_content);
    if (block.base == nullptr) {
        if (account != nullptr) account->give(size_bytes);
        return absl::ResourceExhaustedError(absl::StrCat(
            "out of host memory: cannot allocate ", size_bytes, " bytes"));
    }
    return std::make_unique<device_memory>(block, size_bytes, account);
}

} // namespace tow

#endif /* TOW_DEVICE_XLA_CPU_MEMORY_IMPL_HH_ */
