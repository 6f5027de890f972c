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
    tow_list_init(&array->followers);
    tow_slice_hold(slice);
    slice->client->reference_count++;
    *out_array = array;
    return TOW_OK;
}

void tow_array_hold(tow_array_t *array)
{
    array->reference_count++;
}

/* Its producer goes on without it. Those who wanted to be called are: their
 * value is not to be had any more, but they need not know. */
static void leave_producer(tow_array_t *array)
{
    if (array->upload != NULL) array->upload->array = NULL;
    if (array->gathering != NULL) array->gathering->array = NULL;
    if (array->run == NULL) return;
    for (uint32_t i = 0; i < array->run->result_count; i++)
        if (array->run->results[i] == array) array->run->results[i] = NULL;
}

void tow_array_drop(tow_array_t *array)
{
    TOW_ASSERT(array->reference_count > 0);
    if (--array->reference_count > 0) return;
    /* Whoever waits for it, or is to be called for it, holds it. */
    TOW_ASSERT(tow_list_is_empty(&array->waiting) &&
               tow_list_is_empty(&array->followers));
    tow_client_t *client = array->client;
    leave_producer(array);
    if (TOW_UNLIKELY(array->is_fetched)) {
        if (!array->is_read) tow_array_note_unread(array);
        tow_array_leave_ahead(array);
    }
    tow_array_forget_kept(array);
    if (array->id != 0 && tow_slice_is_known(array->slice))
        tow_client_note_release(client, array->id);
    if (array->program != NULL) tow_program_drop(array->program);
    tow_slice_drop(array->slice);
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
    tow_array_hold(array); /* Those who are told may be all who hold it. */
    tow_settle(client, &array->value, take_status);
    tow_array_tell_followers(array);
    while (!tow_list_is_empty(&array->waiting)) {
        callback_t *callback = TOW_CONTAINER_OF(
            tow_list_pop_front(&array->waiting), callback_t, node);
        if (!callback->is_patient) tow_client_expect(client, false);
        tow_client_call_later(client, callback,
                              tow_status_retain(array->value.error));
        tow_array_drop(array);
    }
    tow_array_drop(array);
}

const tow_settling_t *tow_array_value(const tow_array_t *array)
{
    return &array->value;
}

tow_status_t tow_array_outcome(const tow_array_t *array)
{
    if (array->value.error == TOW_OK &&
        TOW_LIKELY(tow_slice_is_known(array->slice)))
        return TOW_OK;
    return array->value.error != TOW_OK ? tow_status_retain(array->value.error)
                                        : tow_slice_check(array->slice);
}

void tow_array_abandon(tow_array_t *array)
{
    array->run = NULL;
    array->upload = NULL;
    tow_list_t *item;
    tow_array_hold(array);
    tow_array_tell_followers(array);
    while ((item = tow_list_pop_front(&array->waiting)) != NULL) {
        tow_callback_free(TOW_CONTAINER_OF(item, callback_t, node));
        tow_array_drop(array);
    }
    tow_array_drop(array);
}

void tow_array_call_when_ready(tow_array_t *array, callback_t *take_callback)
{
    if (array->value.settled) {
        tow_client_call_later(array->client, take_callback,
                              tow_array_outcome(array));
        return;
    }
    tow_array_hold(array);
    tow_list_append(&array->waiting, &take_callback->node);
    if (!take_callback->is_patient) tow_client_expect(array->client, true);
}
