/* Device memory: accounts, placements, and which bytes are counted where. A
 * closed account has no bytes: the device's memory was lost with its worker. */
#include <inttypes.h>
#include <string.h>

#include "base/alloc.h"
#include "base/assert.h"
#include "store/object_table_impl.h"

/* -- Accounts and placements ----------------------------------------------- */

tow_status_t tow_object_table_add_account(tow_object_table_t *object_table,
                                          uint64_t limit_bytes,
                                          tow_account_t **out_account)
{
    *out_account = NULL;
    tow_account_t *account = tow_pool_take(&object_table->account_pool);
    if (account == NULL) return tow_status_bare(TOW_RESOURCE_EXHAUSTED);
    *account = (tow_account_t){.limit_bytes = limit_bytes};
    if (!tow_vec_push(&object_table->accounts, account)) {
        tow_pool_give(&object_table->account_pool, account);
        return tow_status_bare(TOW_RESOURCE_EXHAUSTED);
    }
    *out_account = account;
    return TOW_OK;
}

static tow_status_t check_devices(tow_account_t *const *accounts, size_t count)
{
    if (count == 0 || count > UINT32_MAX)
        return TOW_ERROR(TOW_INVALID_ARGUMENT,
                         "a placement of %zu devices; at least one is needed",
                         count);
    for (size_t i = 0; i < count; i++) {
        if (accounts[i]->closed)
            return TOW_ERROR(
                TOW_UNAVAILABLE,
                "device %zu of %zu of the placement has disconnected", i,
                count);
        accounts[i]->scratch_sum_++;
    }
    tow_status_t status = TOW_OK;
    for (size_t i = 0; i < count && status == TOW_OK; i++)
        if (accounts[i]->scratch_sum_ > 1)
            status = TOW_ERROR(TOW_INVALID_ARGUMENT,
                               "device %zu of %zu of the placement is given "
                               "more than once",
                               i, count);
    return status;
}

static void clear_scratch(tow_account_t *const *accounts, size_t count)
{
    for (size_t i = 0; i < count; i++)
        accounts[i]->scratch_sum_ = 0;
}

tow_status_t tow_object_table_place(tow_object_table_t *object_table,
                                    tow_account_t *const *accounts,
                                    size_t count, void *context,
                                    tow_placement_t **out_placement)
{
    *out_placement = NULL;
    tow_status_t status = check_devices(accounts, count);
    clear_scratch(accounts, count);
    if (status != TOW_OK) return status;
    tow_placement_t *placement = tow_calloc(1, sizeof(*placement));
    if (placement == NULL) return tow_status_bare(TOW_RESOURCE_EXHAUSTED);
    placement->accounts = tow_calloc(count, sizeof(tow_account_t *));
    if (placement->accounts == NULL) {
        tow_free(placement);
        return tow_status_bare(TOW_RESOURCE_EXHAUSTED);
    }
    memcpy(placement->accounts, accounts, count * sizeof(tow_account_t *));
    placement->reference_count = 1;
    placement->device_count = (uint32_t)count;
    placement->context = context;
    for (size_t i = 0; i < count; i++) {
        TOW_ASSERT(accounts[i]->island < TOW_ISLANDS_MAX);
        placement->islands |= (uint64_t)1 << accounts[i]->island;
    }
    tow_list_append(&object_table->placements, &placement->of_ledger_);
    *out_placement = placement;
    return TOW_OK;
}

void tow_placement_retain(tow_placement_t *placement)
{
    TOW_ASSERT(placement->reference_count > 0 &&
               placement->reference_count < UINT32_MAX);
    placement->reference_count++;
}

void tow_placement_release(tow_placement_t *placement)
{
    TOW_ASSERT(placement->reference_count > 0);
    if (--placement->reference_count > 0) return;
    tow_list_remove(&placement->of_ledger_);
    tow_status_release(placement->error);
    tow_free(placement->accounts);
    tow_free(placement);
}

static bool placement_has(const tow_placement_t *placement,
                          const tow_account_t *account)
{
    for (size_t i = 0; i < placement->device_count; i++)
        if (placement->accounts[i] == account) return true;
    return false;
}

void tow_account_close(tow_object_table_t *object_table, tow_account_t *account,
                       tow_status_t cause)
{
    TOW_ASSERT(cause != TOW_OK);
    account->closed = true;
    account->object_bytes = account->reserved_bytes = 0;
    account->spilled_bytes = 0;
    for (tow_list_t *link = object_table->placements.next;
         link != &object_table->placements; link = link->next) {
        tow_placement_t *placement = PLACEMENT_OF_LEDGER(link);
        if (placement->disconnected || !placement_has(placement, account))
            continue;
        placement->disconnected = true;
        placement->error = tow_status_retain(cause);
    }
}

/* -- Bytes ----------------------------------------------------------------- */

static void take(uint64_t *sum, uint64_t bytes)
{
    bool overflows = __builtin_add_overflow(*sum, bytes, sum);
    TOW_ASSERT(!overflows);
}

static void give_back(uint64_t *sum, uint64_t bytes)
{
    TOW_ASSERT(*sum >= bytes);
    *sum -= bytes;
}

static void raise_peak(tow_account_t *account)
{
    uint64_t used = account->object_bytes + account->reserved_bytes;
    if (used > account->peak_bytes) account->peak_bytes = used;
    if (used > account->recent_peak_bytes) account->recent_peak_bytes = used;
}

uint64_t tow_account_take_recent_peak(tow_account_t *account)
{
    const uint64_t peak = account->recent_peak_bytes;
    account->recent_peak_bytes =
        account->object_bytes + account->reserved_bytes;
    return peak;
}

void tow_object_count_bytes(tow_object_t *object)
{
    TOW_ASSERT(!object->discarded && object->placement != NULL);
    if (object->counted) return;
    object->counted = true;
    const tow_placement_t *placement = object->placement;
    for (size_t i = 0; i < placement->device_count; i++) {
        tow_account_t *account = placement->accounts[i];
        if (TOW_UNLIKELY(account->closed)) continue;
        take(&account->object_bytes, object->bytes);
        raise_peak(account);
    }
}

void tow_object_uncount_bytes(tow_object_t *object)
{
    TOW_ASSERT(object->counted);
    object->counted = false;
    const tow_placement_t *placement = object->placement;
    for (size_t i = 0; i < placement->device_count; i++) {
        tow_account_t *account = placement->accounts[i];
        if (TOW_UNLIKELY(account->closed)) continue;
        give_back(&account->object_bytes, object->bytes);
    }
}

void tow_placement_reserve(tow_placement_t *placement, uint64_t bytes)
{
    take(&placement->reserved_bytes, bytes);
    for (size_t i = 0; i < placement->device_count; i++)
        tow_account_reserve(placement->accounts[i], bytes);
}

void tow_placement_unreserve(tow_placement_t *placement, uint64_t bytes)
{
    give_back(&placement->reserved_bytes, bytes);
    for (size_t i = 0; i < placement->device_count; i++)
        tow_account_unreserve(placement->accounts[i], bytes);
}

/* -- Fits and refusals ----------------------------------------------------- */

bool tow_placement_fits(const tow_placement_t *placement, uint64_t bytes)
{
    for (size_t i = 0; i < placement->device_count; i++)
        if (!tow_account_fits(placement->accounts[i], bytes)) return false;
    return true;
}

tow_status_t tow_placement_refusal_at(const tow_placement_t *placement,
                                      size_t index, uint64_t bytes)
{
    TOW_ASSERT(index < placement->device_count);
    if (placement->disconnected) return tow_status_retain(placement->error);
    const tow_account_t *account = placement->accounts[index];
    return TOW_ERROR(
        TOW_RESOURCE_EXHAUSTED,
        "%" PRIu64 " bytes do not fit on device %zu of %" PRIu32
        ": of its %" PRIu64 " bytes of memory, objects have %" PRIu64
        " and runs under way %" PRIu64,
        bytes, index, placement->device_count, account->limit_bytes,
        account->object_bytes, account->reserved_bytes);
}

tow_status_t tow_placement_refusal(const tow_placement_t *placement,
                                   uint64_t bytes)
{
    size_t index = 0;
    while (index + 1 < placement->device_count &&
           tow_account_fits(placement->accounts[index], bytes))
        index++;
    return tow_placement_refusal_at(placement, index, bytes);
}
