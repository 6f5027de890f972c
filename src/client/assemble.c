/* Arrays assembled from existing shards. */
#include "base/alloc.h"
#include "base/assert.h"
#include "client/client_impl.h"

/* -- Completion ------------------------------------------------------------ */

static void free_assembly(assembly_t *assembly)
{
    tow_array_t *array = assembly->array;
    tow_status_t error = assembly->error;
    tow_free(assembly);
    if (array == NULL) {
        tow_status_release(error);
        return;
    }
    array->assembly = NULL;
    tow_array_settle(array, error);
}

/* One of its sources has its value, or has failed. */
static void source_settled(assembly_t *assembly, tow_status_t error)
{
    if (assembly->error == TOW_OK) assembly->error = tow_status_retain(error);
    if (--assembly->left_count == 0) free_assembly(assembly);
}

void tow_array_notify_assemblies(tow_array_t *array)
{
    tow_list_t *item;
    while ((item = tow_list_pop_front(&array->assembly_sources)) != NULL) {
        assembly_source_t *assembly_source =
            TOW_CONTAINER_OF(item, assembly_source_t, node);
        source_settled(assembly_source->assembly, array->value.error);
        tow_array_release_locked(
            array); /* The reference of the wait. The caller holds another. */
    }
}

/* Holds its sources until they have completed. */
static void follow(assembly_t *assembly, tow_array_t *const *sources,
                   size_t count)
{
    assembly->left_count = (uint32_t)count + 1;
    for (size_t i = 0; i < count; i++) {
        tow_array_t *source = sources[i];
        if (source->value.settled) {
            source_settled(assembly, source->value.error);
            continue;
        }
        assembly->assembly_sources[i].assembly = assembly;
        tow_list_append(&source->assembly_sources,
                        &assembly->assembly_sources[i].node);
        tow_array_retain_locked(source);
    }
    source_settled(assembly, TOW_OK); /* The reference of this function. */
}

/* -- Starting an assembly -------------------------------------------------- */

static tow_status_t send(const tow_array_t *array, tow_array_t *const *sources,
                         const uint32_t *shards)
{
    const size_t count = array->slice->device_count;
    uint64_t *ids = tow_malloc(count * sizeof(*ids));
    if (ids == NULL) return tow_status_bare(TOW_RESOURCE_EXHAUSTED);
    for (size_t i = 0; i < count; i++)
        ids[i] = sources[i]->id;
    tow_msg_assemble_t message = TOW_MSG_ASSEMBLE_INIT;
    message.object = array->id;
    message.slice = array->slice->id;
    message.sources = ids;
    message.n_sources = count;
    message.shards = (uint32_t *)shards;
    message.n_shards = count;
    tow_status_t status =
        tow_client_send(array->client, TOW_MESSAGE_ASSEMBLE, &message.base);
    tow_free(ids);
    return status;
}

tow_status_t tow_assemble_start(tow_slice_t *slice, tow_array_t *const *sources,
                                const uint32_t *shards, tow_array_t **out_array)
{
    tow_client_t *client = slice->client;
    const size_t count = slice->device_count;
    TOW_ASSERT(count > 0);
    TOW_RETURN_IF_ERROR(tow_slice_generation_status(slice));
    for (size_t i = 0; i < count; i++) {
        TOW_RETURN_IF_ERROR(tow_slice_generation_status(sources[i]->slice));
        TOW_RETURN_IF_ERROR(tow_array_check_started(sources[i]));
    }
    assembly_t *assembly =
        tow_calloc(1, sizeof(*assembly) + count * sizeof(assembly_source_t));
    if (assembly == NULL) return tow_status_bare(TOW_RESOURCE_EXHAUSTED);
    tow_array_t *array;
    tow_status_t status = tow_array_make(slice, &sources[0]->shape, &array);
    if (status != TOW_OK) {
        tow_free(assembly);
        return status;
    }
    array->id = ++client->object_number;
    status = send(array, sources, shards);
    if (status != TOW_OK) {
        array->id = 0; /* The controller does not know it. */
        tow_array_release_locked(array);
        tow_free(assembly);
        return status;
    }
    assembly->array = array;
    array->assembly = assembly;
    follow(assembly, sources, count);
    *out_array = array;
    return TOW_OK;
}
