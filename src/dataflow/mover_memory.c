/* Memory of targets. Small blocks are of one size and kept for the next; large
 * ones come from the owner, who keeps them too: fresh pages cost as much to touch
 * as copying does. */
#include "base/alloc.h"
#include "base/assert.h"
#include "dataflow/mover_impl.h"

static void *take_small(tow_mover_t *mover)
{
    spare_t *spare = mover->spares;
    if (TOW_UNLIKELY(spare == NULL))
        return tow_aligned_alloc(TOW_MOVER_ALIGNMENT, TOW_MOVER_SMALL_BYTES);
    mover->spares = spare->next;
    mover->spare_count--;
    return spare;
}

static void give_small(tow_mover_t *mover, void *bytes)
{
    if (mover->spare_count >= TOW_MOVER_SMALL_SPARE_COUNT) {
        tow_free(bytes);
        return;
    }
    spare_t *spare = bytes;
    spare->next = mover->spares;
    mover->spares = spare;
    mover->spare_count++;
}

void *mover_memory_take(tow_mover_t *mover, uint64_t size)
{
    const tow_mover_options_t *options = &mover->options;
    if (size <= TOW_MOVER_SMALL_BYTES) return take_small(mover);
    if (options->memory_take != NULL)
        return options->memory_take(options->context, (size_t)size);
    return tow_aligned_alloc(TOW_MOVER_ALIGNMENT, (size_t)size);
}

void mover_memory_give(tow_mover_t *mover, void *bytes, uint64_t size)
{
    const tow_mover_options_t *options = &mover->options;
    if (bytes == NULL) return;
    if (size <= TOW_MOVER_SMALL_BYTES)
        give_small(mover, bytes);
    else if (options->memory_give != NULL)
        options->memory_give(options->context, bytes, (size_t)size);
    else
        tow_free(bytes);
}

void mover_memory_clear(tow_mover_t *mover)
{
    while (mover->spares != NULL)
        tow_free(take_small(mover));
}
