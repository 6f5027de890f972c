/* Arrays of shards that are there. */
#include "base/alloc.h"
#include "base/assert.h"
#include "client/client_impl.h"

/* -- Becoming ready ------------------------------------------------------------ */

static void free_gathering(gathering_t *gathering)
{
    tow_array_t *array = gathering->array;
    tow_status_t error = gathering->error;
    tow_free(gathering);
    if (array == NULL) {
        tow_status_release(error);
        return;
    }
    array->gathering = NULL;
    tow_array_settle(array, error);
}

/* One of its sources has its value, or never will. */
static void source_settled(gathering_t *gathering, tow_status_t error)
{
    if (gathering->error == TOW_OK) gathering->error = tow_status_retain(error);
    if (--gathering->left_count == 0) free_gathering(gathering);
}

void tow_array_tell_followers(tow_array_t *array)
{
    tow_list_t *item;
    while ((item = tow_list_pop_front(&array->followers)) != NULL) {
        follower_t *follower = TOW_CONTAINER_OF(item, follower_t, node);
        source_settled(follower->gathering, array->value.error);
        tow_array_drop(array); /* The follower's. The caller holds it too. */
    }
}

/* Holds those of its sources that are not settled until they are. */
static void follow(gathering_t *gathering, tow_array_t *const *sources,
                   size_t count)
{
    gathering->left_count = (uint32_t)count + 1;
    for (size_t i = 0; i < count; i++) {
        tow_array_t *source = sources[i];
        if (source->value.settled) {
            source_settled(gathering, source->value.error);
            continue;
        }
        gathering->followers[i].gathering = gathering;
        tow_list_append(&source->followers, &gathering->followers[i].node);
        tow_array_hold(source);
    }
    source_settled(gathering, TOW_OK); /* All are looked at. */
}

/* -- Starting ------------------------------------------------------------------ */

static tow_status_t send(const tow_array_t *array, tow_array_t *const *sources,
                         const uint32_t *shards)
{
    const size_t count = array->slice->device_count;
    uint64_t *ids = tow_malloc(count * sizeof(*ids));
    if (ids == NULL) return tow_status_bare(TOW_RESOURCE_EXHAUSTED);
    for (size_t i = 0; i < count; i++)
        ids[i] = sources[i]->id;
    tow_msg_regroup_t regroup = TOW_MSG_REGROUP_INIT;
    regroup.object = array->id;
    regroup.slice = array->slice->id;
    regroup.sources = ids;
    regroup.n_sources = count;
    regroup.shards = (uint32_t *)shards;
    regroup.n_shards = count;
    tow_status_t status =
        tow_client_send(array->client, TOW_MESSAGE_REGROUP, &regroup.base);
    tow_free(ids);
    return status;
}

tow_status_t tow_regroup_start(tow_slice_t *slice, tow_array_t *const *sources,
                               const uint32_t *shards, tow_array_t **out_array)
{
    tow_client_t *client = slice->client;
    const size_t count = slice->device_count;
    TOW_ASSERT(count > 0);
    TOW_RETURN_IF_ERROR(tow_slice_check(slice));
    for (size_t i = 0; i < count; i++)
        TOW_RETURN_IF_ERROR(tow_slice_check(sources[i]->slice));
    gathering_t *gathering =
        tow_calloc(1, sizeof(*gathering) + count * sizeof(follower_t));
    if (gathering == NULL) return tow_status_bare(TOW_RESOURCE_EXHAUSTED);
    tow_array_t *array;
    tow_status_t status = tow_array_make(slice, &sources[0]->shape, &array);
    if (status != TOW_OK) {
        tow_free(gathering);
        return status;
    }
    array->id = ++client->object_number;
    status = send(array, sources, shards);
    if (status != TOW_OK) {
        array->id = 0; /* The cluster has never heard of it. */
        tow_array_drop(array);
        tow_free(gathering);
        return status;
    }
    gathering->array = array;
    array->gathering = gathering;
    follow(gathering, sources, count);
    *out_array = array;
    return TOW_OK;
}
