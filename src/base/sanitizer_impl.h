/* Tells AddressSanitizer which parts of arenas and pools are not allocated, so
 * that it detects overruns and use after release as on the heap. */
#ifndef TOW_BASE_SANITIZER_IMPL_H_
#define TOW_BASE_SANITIZER_IMPL_H_

#include <stddef.h>

#if defined(__SANITIZE_ADDRESS__)
#define TOW_HAS_ASAN 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define TOW_HAS_ASAN 1
#endif
#endif

#ifdef TOW_HAS_ASAN
#include <sanitizer/asan_interface.h>
static inline void poison(const void *memory, size_t bytes)
{
    __asan_poison_memory_region(memory, bytes);
}
static inline void unpoison(const void *memory, size_t bytes)
{
    __asan_unpoison_memory_region(memory, bytes);
}
#else
static inline void poison(const void *memory, size_t bytes) {}
static inline void unpoison(const void *memory, size_t bytes) {}
#endif

#endif /* TOW_BASE_SANITIZER_IMPL_H_ */
