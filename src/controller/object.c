/* Objects: whether they are on the workers, and the release of handles. */
#include "controller/controller_impl.h"

#include <string.h>

#include "base/alloc.h"
#include "base/assert.h"
#include "controller/object_impl.h"
#include "controller/slice_impl.h"

char tow_ctl_object_is_placed;

/* -- Releases -------------------------------------------------------------- */

/* Ids released in one turn are often consecutive: results of consecutive runs.
 */
static void note_release(tow_ctl_worker_t *worker, uint64_t key)
{
    if (worker->session == NULL) return;
    const size_t count = worker->release_firsts.count;
    if (count > 0 && worker->release_firsts.items[count - 1] +
                             worker->release_counts.items[count - 1] ==
                         key) {
        worker->release_counts.items[count - 1]++;
        return;
    }
    if (tow_vec_reserve(&worker->release_firsts, count + 1) &&
        tow_vec_reserve(&worker->release_counts, count + 1)) {
        worker->release_firsts.items[worker->release_firsts.count++] = key;
        worker->release_counts.items[worker->release_counts.count++] = 1;
        return;
    }
    tow_ctl_worker_fault(worker,
                         TOW_ERROR(TOW_RESOURCE_EXHAUSTED,
                                   "no memory for the releases to worker %s",
                                   worker->name));
}

void tow_ctl_object_discarded(void *context, tow_object_t *object)
{
    tow_controller_t *controller = context;
    if (controller->is_closing || object->placement == NULL) return;
    tow_sched_notify(controller->sched, object->placement);
    tow_ctl_spill_object_discarded(controller, object);
    tow_ctl_mapping_t *mapping = object->placement->context;
    if (object->context == &tow_ctl_object_is_placed)
        for (uint32_t i = 0; i < mapping->part_count; i++)
            note_release(mapping->parts[i].worker, object->id.value);
    tow_ctl_mapping_release(mapping);
    tow_controller_touch(controller);
}

tow_status_t tow_ctl_object_add(tow_controller_t *controller,
                                tow_ctl_mapping_t *mapping,
                                tow_object_options_t *options,
                                tow_object_t **out_object)
{
    options->placement = mapping != NULL ? mapping->placement : NULL;
    TOW_RETURN_IF_ERROR(
        tow_object_table_add(controller->object_table, options, out_object));
    if (mapping != NULL) tow_ctl_mapping_retain(mapping);
    return TOW_OK;
}

tow_status_t tow_ctl_object_add_failed(tow_ctl_client_t *client,
                                       const tow_ctl_slice_t *slice,
                                       uint64_t id, tow_status_t cause)
{
    tow_object_options_t options = {.id = {tow_key(client->number, id)},
                                    .state = TOW_OBJECT_PENDING};
    tow_object_t *object;
    TOW_RETURN_IF_ERROR(tow_ctl_object_add(client->controller, slice->mapping,
                                           &options, &object));
    tow_object_fail(object, cause);
    return TOW_OK;
}

void tow_ctl_release_handles(tow_ctl_client_t *client,
                             const tow_msg_release_t *message)
{
    tow_controller_t *controller = client->controller;
    size_t ranges = message->n_firsts;
    if (message->n_counts != ranges) {
        tow_ctl_client_fault(
            client, TOW_ERROR(TOW_INVALID_ARGUMENT,
                              "client %s releases %zu ranges with %zu "
                              "counts",
                              client->name, ranges, message->n_counts));
        return;
    }
    uint64_t left = TOW_CLIENT_RELEASES_MAX;
    for (size_t i = 0; i < ranges; i++) {
        if (message->counts[i] > left) {
            tow_ctl_client_fault(
                client, TOW_ERROR(TOW_INVALID_ARGUMENT,
                                  "client %s releases more than %u "
                                  "objects at once",
                                  client->name, TOW_CLIENT_RELEASES_MAX));
            return;
        }
        left -= message->counts[i];
        for (uint32_t j = 0; j < message->counts[i]; j++) {
            const uint64_t id = message->firsts[i] + j;
            tow_object_id_t key = {tow_key(client->number, id)};
            if (id > TOW_CLIENT_ID_MAX) continue;
            /* Results of a run that was rejected do not exist. */
            tow_status_ignore(
                tow_object_table_release(controller->object_table, key),
                "a client can only hurt itself with this");
        }
    }
}

/* -- Placement on workers -------------------------------------------------- */

void tow_ctl_object_placed(tow_object_t *object, tow_list_t *gets)
{
    object->context = &tow_ctl_object_is_placed;
    while (!tow_list_is_empty(gets))
        tow_ctl_get_send(
            TOW_CONTAINER_OF(tow_list_pop_front(gets), tow_ctl_get_t, node));
}

void tow_ctl_object_fail_gets(tow_object_t *object, tow_list_t *gets,
                              tow_status_t cause)
{
    object->context = NULL;
    tow_list_t *item = gets->next;
    while (item != gets) {
        tow_ctl_get_t *get = TOW_CONTAINER_OF(item, tow_ctl_get_t, node);
        item = item->next;
        if (get->object == object)
            tow_ctl_get_fail(get, tow_status_retain(cause));
    }
}

tow_status_t tow_ctl_shard_find(const tow_ctl_client_t *client, uint64_t id,
                                uint32_t shard, tow_object_t **out_source)
{
    tow_object_t *source =
        id > TOW_CLIENT_ID_MAX
            ? NULL
            : tow_object_table_find(
                  client->controller->object_table,
                  (tow_object_id_t){tow_key(client->number, id)});
    if (source == NULL || !source->has_handle)
        return TOW_ERROR(TOW_NOT_FOUND, "there is no object %llu",
                         (unsigned long long)id);
    if (source->consumed)
        return TOW_ERROR(TOW_FAILED_PRECONDITION,
                         "object %llu was donated to a run",
                         (unsigned long long)id);
    if (source->placement == NULL) return tow_status_retain(source->error);
    if (shard >= source->placement->device_count)
        return TOW_ERROR(TOW_OUT_OF_RANGE, "object %llu has %u shards, not %u",
                         (unsigned long long)id,
                         source->placement->device_count, shard);
    *out_source = source;
    return TOW_OK;
}
