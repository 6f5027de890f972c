#include "client/client_impl.h"

#include "base/alloc.h"
#include "base/assert.h"

tow_status_t tow_array_make(tow_slice_t *slice, const tow_shape_t *shape,
                            tow_array_t **out_array)
{
    uint64_t bytes;
    TOW_RETURN_IF_ERROR(tow_shape_bytes(shape, &bytes));
    tow_array_t *array = tow_calloc(1, sizeof(*array));
    if (array == NULL) return tow_status_bare(TOW_RESOURCE_EXHAUSTED);
    array->reference_count = 1;
    array->client = slice->client;
    array->slice = slice;
    array->shape = *shape;
    array->shard_bytes = bytes;
    tow_list_init(&array->waiting);
    tow_list_init(&array->assembly_sources);
    tow_slice_retain_locked(slice);
    slice->client->reference_count++;
    *out_array = array;
    return TOW_OK;
}

void tow_array_retain_locked(tow_array_t *array)
{
    array->reference_count++;
}

/* Detaches the array from its run or upload, which continue without it. Calls
 * the pending callbacks: nothing can read the value any more. */
static void leave_producer(tow_array_t *array)
{
    if (array->upload != NULL) array->upload->array = NULL;
    if (array->assembly != NULL) array->assembly->array = NULL;
    if (array->run == NULL) return;
    for (uint32_t i = 0; i < array->run->result_count; i++)
        if (array->run->results[i] == array) array->run->results[i] = NULL;
}

void tow_array_release_locked(tow_array_t *array)
{
    TOW_ASSERT(array->reference_count > 0);
    if (--array->reference_count > 0) return;
    /* Waiters and pending callbacks hold the array. */
    TOW_ASSERT(tow_list_is_empty(&array->waiting) &&
               tow_list_is_empty(&array->assembly_sources));
    tow_client_t *client = array->client;
    leave_producer(array);
    if (TOW_UNLIKELY(array->is_fetched)) {
        if (!array->is_read) tow_array_note_unread(array);
        tow_array_leave_prefetch(array);
    }
    tow_array_discard_cached(array);
    if (array->id != 0 && tow_slice_is_known(array->slice))
        tow_client_note_release(client, array->id);
    if (array->program != NULL) tow_program_release_locked(array->program);
    tow_slice_release_locked(array->slice);
    tow_status_release(array->value.error);
    tow_free(array);
    client->reference_count--;
}

void tow_array_settle(tow_array_t *array, tow_status_t take_status)
{
    tow_client_t *client = array->client;
    if (array->value.settled) {
        tow_status_release(take_status);
        return;
    }
    array->run = NULL;
    tow_array_check(array);
    /* Those that are notified may hold the last references. */
    tow_array_retain_locked(array);
    tow_completion_settle(client, &array->value, take_status);
    tow_array_notify_assemblies(array);
    while (!tow_list_is_empty(&array->waiting)) {
        callback_t *callback = TOW_CONTAINER_OF(
            tow_list_pop_front(&array->waiting), callback_t, node);
        if (!callback->is_patient) tow_client_expect(client, false);
        tow_client_call_later(client, callback,
                              tow_status_retain(array->value.error));
        tow_array_release_locked(array);
    }
    tow_array_release_locked(array);
}

const tow_completion_t *tow_array_value(const tow_array_t *array)
{
    return &array->value;
}

tow_status_t tow_array_outcome(const tow_array_t *array)
{
    if (array->value.error == TOW_OK &&
        TOW_LIKELY(tow_slice_is_known(array->slice)))
        return TOW_OK;
    return array->value.error != TOW_OK
               ? tow_status_retain(array->value.error)
               : tow_slice_generation_status(array->slice);
}

tow_status_t tow_array_check_started(const tow_array_t *array)
{
    if (TOW_LIKELY(array->id != 0)) return TOW_OK;
    if (array->program != NULL)
        return TOW_ERROR(TOW_INVALID_ARGUMENT,
                         "a value of a program under trace has no bytes");
    if (array->value.settled) return tow_status_retain(array->value.error);
    return TOW_ERROR(TOW_FAILED_PRECONDITION,
                     "the array is a result of a call that is not complete");
}

void tow_array_discard_callbacks(tow_array_t *array)
{
    array->run = NULL;
    array->upload = NULL;
    tow_list_t *item;
    tow_array_retain_locked(array);
    tow_array_notify_assemblies(array);
    while ((item = tow_list_pop_front(&array->waiting)) != NULL) {
        tow_client_callback_free(TOW_CONTAINER_OF(item, callback_t, node));
        tow_array_release_locked(array);
    }
    tow_array_release_locked(array);
}

void tow_array_call_when_ready(tow_array_t *array, callback_t *take_callback)
{
    if (array->value.settled) {
        tow_client_call_later(array->client, take_callback,
                              tow_array_outcome(array));
        return;
    }
    tow_array_retain_locked(array);
    tow_list_append(&array->waiting, &take_callback->node);
    if (!take_callback->is_patient) tow_client_expect(array->client, true);
}
