/* Host memory of workers, and objects that are spilled to it.
 *
 * An object that moves is counted on both sides until it has arrived, so that
 * neither a device nor a host ever promises bytes that are still in use. */
#include <inttypes.h>

#include "base/alloc.h"
#include "base/assert.h"
#include "store/object_table_impl.h"

tow_status_t tow_object_table_add_host_memory(tow_object_table_t *object_table,
                                              uint64_t limit_bytes,
                                              tow_host_memory_t **out_host)
{
    *out_host = NULL;
    tow_host_memory_t *host = tow_calloc(1, sizeof(*host));
    if (host == NULL || !tow_vec_push(&object_table->hosts, host)) {
        tow_free(host);
        return tow_status_bare(TOW_RESOURCE_EXHAUSTED);
    }
    host->limit_bytes = limit_bytes;
    host->number = (uint32_t)object_table->hosts.count;
    *out_host = host;
    return TOW_OK;
}

void tow_host_memory_on_disconnect(tow_host_memory_t *host)
{
    host->closed = true;
    host->spilled_bytes = 0;
}

uint64_t tow_object_host_bytes(const tow_object_t *object)
{
    uint64_t bytes = 0;
    tow_status_t status = tow_shape_bytes(&object->shape, &bytes);
    if (status == TOW_OK) return bytes;
    tow_status_release(status); /* A token: it has no bytes anywhere. */
    return 0;
}

const tow_host_memory_t *tow_object_full_host(
    const tow_object_table_t *object_table, const tow_object_t *object)
{
    static const tow_host_memory_t nowhere;
    const tow_placement_t *placement = object->placement;
    const uint64_t bytes = tow_object_host_bytes(object);
    const tow_host_memory_t *short_host = NULL;
    for (size_t i = 0; i < placement->device_count; i++) {
        tow_host_memory_t *host =
            tow_account_host(object_table, placement->accounts[i]);
        if (host == NULL) {
            short_host = &nowhere;
            continue;
        }
        const uint64_t left = host->limit_bytes - host->spilled_bytes;
        if (host->closed || bytes > left || host->scratch_bytes_ > left - bytes)
            short_host = host;
        else
            host->scratch_bytes_ += bytes;
    }
    for (size_t i = 0; i < placement->device_count; i++) {
        tow_host_memory_t *host =
            tow_account_host(object_table, placement->accounts[i]);
        if (host != NULL) host->scratch_bytes_ = 0;
    }
    return short_host;
}

void tow_object_begin_spill(tow_object_table_t *object_table,
                            tow_object_t *object)
{
    TOW_ASSERT(object->state == TOW_OBJECT_READY && object->counted);
    TOW_ASSERT(object->residence == TOW_ON_DEVICE && !object->discarded);
    object->residence = TOW_SPILLING;
    const uint64_t bytes = tow_object_host_bytes(object);
    for (size_t i = 0; i < object->placement->device_count; i++) {
        tow_account_t *account = object->placement->accounts[i];
        tow_host_memory_t *host = tow_account_host(object_table, account);
        if (!account->closed) account->spilled_bytes += bytes;
        if (host == NULL || host->closed) continue;
        TOW_ASSERT(bytes <= host->limit_bytes - host->spilled_bytes);
        host->spilled_bytes += bytes;
        if (host->spilled_bytes > host->peak_bytes)
            host->peak_bytes = host->spilled_bytes;
    }
}

void tow_object_end_spill(tow_object_t *object)
{
    TOW_ASSERT(object->residence == TOW_SPILLING);
    object->residence = TOW_SPILLED;
    tow_object_uncount_bytes(object);
}

void tow_object_begin_return(tow_object_t *object)
{
    TOW_ASSERT(object->residence == TOW_SPILLED ||
               object->residence == TOW_SPILLING);
    object->residence = TOW_RETURNING;
    tow_object_count_bytes(object);
}

void tow_object_uncount_host(tow_object_table_t *object_table,
                             const tow_object_t *object)
{
    const uint64_t bytes = tow_object_host_bytes(object);
    for (size_t i = 0; i < object->placement->device_count; i++) {
        tow_account_t *account = object->placement->accounts[i];
        tow_host_memory_t *host = tow_account_host(object_table, account);
        TOW_ASSERT(account->closed || account->spilled_bytes >= bytes);
        if (!account->closed) account->spilled_bytes -= bytes;
        if (host == NULL || host->closed) continue;
        TOW_ASSERT(host->spilled_bytes >= bytes);
        host->spilled_bytes -= bytes;
    }
}

void tow_object_end_return(tow_object_table_t *object_table,
                           tow_object_t *object)
{
    TOW_ASSERT(object->residence == TOW_RETURNING);
    object->residence = TOW_ON_DEVICE;
    tow_object_uncount_host(object_table, object);
}
