/* Memory of targets, kept for the next: fresh pages cost as much as copying. */
#include "base/alloc.h"
#include "base/assert.h"
#include "dataflow/mover_impl.h"

static bool is_small(uint64_t size)
{
    return size <= TOW_MOVER_SMALL_BYTES;
}

static void *take_small(tow_mover_t *mover)
{
    spare_t *spare = mover->small_spares;
    if (TOW_UNLIKELY(spare == NULL))
        return tow_aligned_alloc(TOW_MOVER_ALIGNMENT, TOW_MOVER_SMALL_BYTES);
    mover->small_spares = (spare_t *)spare->in_mover.next;
    mover->small_spare_count--;
    return spare;
}

static void give_small(tow_mover_t *mover, void *bytes)
{
    if (mover->small_spare_count >= TOW_MOVER_SMALL_SPARE_COUNT) {
        tow_free(bytes);
        return;
    }
    spare_t *spare = bytes;
    spare->in_mover.next = (tow_list_t *)mover->small_spares;
    mover->small_spares = spare;
    mover->small_spare_count++;
}

static void unlist(tow_mover_t *mover, spare_t *spare)
{
    tow_list_remove(&spare->in_mover);
    mover->spare_count--;
    mover->spare_bytes -= spare->size;
}

void *mover_memory_take(tow_mover_t *mover, uint64_t size)
{
    if (is_small(size)) return take_small(mover);
    const tow_list_t *head = &mover->spares;
    for (tow_list_t *at = head->previous; at != head; at = at->previous) {
        spare_t *spare = TOW_CONTAINER_OF(at, spare_t, in_mover);
        if (spare->size != size) continue;
        unlist(mover, spare);
        return spare;
    }
    return tow_aligned_alloc(TOW_MOVER_ALIGNMENT, (size_t)size);
}

static void drop_oldest(tow_mover_t *mover)
{
    spare_t *oldest = TOW_CONTAINER_OF(mover->spares.next, spare_t, in_mover);
    unlist(mover, oldest);
    tow_free(oldest);
}

void mover_memory_give(tow_mover_t *mover, void *bytes, uint64_t size)
{
    if (bytes == NULL) return;
    if (is_small(size)) {
        give_small(mover, bytes);
        return;
    }
    if (size > TOW_MOVER_SPARE_BYTES_MAX) {
        tow_free(bytes);
        return;
    }
    spare_t *spare = bytes;
    spare->size = size;
    tow_list_append(&mover->spares, &spare->in_mover);
    mover->spare_count++;
    mover->spare_bytes += size;
    while (mover->spare_count > TOW_MOVER_SPARE_COUNT ||
           mover->spare_bytes > TOW_MOVER_SPARE_BYTES_MAX)
        drop_oldest(mover);
}

void mover_memory_clear(tow_mover_t *mover)
{
    while (mover->small_spares != NULL)
        tow_free(take_small(mover));
    while (!tow_list_is_empty(&mover->spares))
        drop_oldest(mover);
}
