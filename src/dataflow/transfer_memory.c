/* Memory of targets. Small blocks have one size and are cached; large ones come
 * from the owner, which caches them too: touching fresh pages costs as much as
 * copying. */
#include "base/alloc.h"
#include "base/assert.h"
#include "dataflow/transfer_impl.h"

static void *take_small(tow_transfer_engine_t *engine)
{
    spare_t *spare = engine->spares;
    if (TOW_UNLIKELY(spare == NULL))
        return tow_aligned_alloc(TOW_TRANSFER_ALIGNMENT,
                                 TOW_TRANSFER_SMALL_BYTES);
    engine->spares = spare->next;
    engine->spare_count--;
    return spare;
}

static void give_small(tow_transfer_engine_t *engine, void *bytes)
{
    if (engine->spare_count >= TOW_TRANSFER_SMALL_SPARE_COUNT) {
        tow_free(bytes);
        return;
    }
    spare_t *spare = bytes;
    spare->next = engine->spares;
    engine->spares = spare;
    engine->spare_count++;
}

static void count(tow_transfer_engine_t *engine, uint64_t size)
{
    tow_transfer_engine_stats_t *stats = &engine->stats;
    stats->memory_bytes += size;
    if (stats->memory_bytes > stats->memory_bytes_peak)
        stats->memory_bytes_peak = stats->memory_bytes;
}

void *transfer_memory_alloc(tow_transfer_engine_t *engine, uint64_t size)
{
    const tow_transfer_engine_options_t *options = &engine->options;
    if (size <= TOW_TRANSFER_SMALL_BYTES) return take_small(engine);
    void *bytes = options->memory_take != NULL
                      ? options->memory_take(options->context, (size_t)size)
                      : tow_aligned_alloc(TOW_TRANSFER_ALIGNMENT, (size_t)size);
    if (bytes != NULL) count(engine, size);
    return bytes;
}

void transfer_memory_free(tow_transfer_engine_t *engine, void *bytes,
                          uint64_t size)
{
    const tow_transfer_engine_options_t *options = &engine->options;
    if (bytes == NULL) return;
    if (size > TOW_TRANSFER_SMALL_BYTES) {
        TOW_ASSERT(engine->stats.memory_bytes >= size);
        engine->stats.memory_bytes -= size;
    }
    if (size <= TOW_TRANSFER_SMALL_BYTES)
        give_small(engine, bytes);
    else if (options->memory_give != NULL)
        options->memory_give(options->context, bytes, (size_t)size);
    else
        tow_free(bytes);
}

void transfer_memory_clear(tow_transfer_engine_t *engine)
{
    while (engine->spares != NULL)
        tow_free(take_small(engine));
}
