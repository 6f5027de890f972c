/* Mappings: an ordered set of devices, and which of them each worker has.
 * Slices with the same devices share one. */
#include "controller/controller_impl.h"

#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/assert.h"

void tow_ctl_worker_retain(tow_ctl_worker_t *worker)
{
    worker->reference_count++;
}

void tow_ctl_mapping_retain(tow_ctl_mapping_t *mapping)
{
    mapping->reference_count++;
}

static void free_mapping(tow_ctl_mapping_t *mapping)
{
    tow_list_remove(&mapping->node);
    for (uint32_t i = 0; i < mapping->part_count; i++) {
        tow_free(mapping->parts[i].devices);
        tow_free(mapping->parts[i].shards);
        if (mapping->parts[i].worker != NULL)
            tow_ctl_worker_release(mapping->parts[i].worker);
    }
    if (mapping->placement != NULL) tow_placement_release(mapping->placement);
    tow_free(mapping->parts);
    tow_free(mapping->part_of_shard);
    tow_free(mapping->index_in_part);
    tow_free(mapping->device_ids);
    tow_free(mapping->kind);
    tow_free(mapping->key);
    tow_free(mapping);
}

void tow_ctl_mapping_release(tow_ctl_mapping_t *mapping)
{
    TOW_ASSERT(mapping->reference_count > 0);
    if (--mapping->reference_count > 0) return;
    TOW_ASSERT(tow_list_is_empty(&mapping->executables));
    /* A newer one may have this key: the devices' worker has joined again. */
    tow_names_t *names = &mapping->controller->mappings.by_key;
    if (tow_names_find(names, mapping->key) == mapping)
        tow_names_remove(names, mapping->key);
    free_mapping(mapping);
}

void tow_ctl_mappings_destroy(tow_controller_t *controller)
{
    while (!tow_list_is_empty(&controller->mappings.list))
        free_mapping(TOW_CONTAINER_OF(controller->mappings.list.next,
                                      tow_ctl_mapping_t, node));
}

/* Device ids as text, with the workers' arrival numbers: a worker that joins
 * again with the same ids is another one. */
static char *make_key(tow_resource_device_t *const *devices, size_t count)
{
    char *key = tow_malloc(count * 42 + 1);
    if (key == NULL) return NULL;
    size_t length = 0;
    for (size_t i = 0; i < count; i++)
        length += (size_t)sprintf(
            key + length, "%llx.%llx ", (unsigned long long)devices[i]->id,
            (unsigned long long)devices[i]->worker->arrival);
    key[length] = '\0';
    return key;
}

static uint32_t part_of(const tow_ctl_mapping_t *mapping,
                        const tow_ctl_worker_t *worker)
{
    uint32_t part = 0;
    while (part < mapping->part_count && mapping->parts[part].worker != worker)
        part++;
    return part;
}

/* Assigns shards to parts, and counts them. */
static void sort_shards(tow_ctl_mapping_t *mapping,
                        tow_resource_device_t *const *devices)
{
    uint32_t last = 0;
    for (uint32_t i = 0; i < mapping->device_count; i++) {
        tow_ctl_worker_t *worker = devices[i]->worker->context;
        uint32_t part =
            last < mapping->part_count && mapping->parts[last].worker == worker
                ? last
                : part_of(mapping, worker);
        if (part == mapping->part_count) {
            mapping->part_count++;
            mapping->parts[part].worker = worker;
            tow_ctl_worker_retain(worker);
        }
        mapping->part_of_shard[i] = part;
        mapping->index_in_part[i] = mapping->parts[part].count++;
        last = part;
    }
}

static bool fill_parts(tow_ctl_mapping_t *mapping,
                       tow_resource_device_t *const *devices)
{
    for (uint32_t i = 0; i < mapping->part_count; i++) {
        tow_ctl_mapping_part_t *part = &mapping->parts[i];
        part->devices = tow_malloc(part->count * sizeof(*part->devices));
        part->shards = tow_malloc(part->count * sizeof(*part->shards));
        if (part->devices == NULL || part->shards == NULL) return false;
    }
    for (uint32_t i = 0; i < mapping->device_count; i++) {
        tow_ctl_mapping_part_t *part =
            &mapping->parts[mapping->part_of_shard[i]];
        part->devices[mapping->index_in_part[i]] = devices[i]->index;
        part->shards[mapping->index_in_part[i]] = i;
    }
    return true;
}

static tow_status_t place(tow_ctl_mapping_t *mapping,
                          tow_resource_device_t *const *devices)
{
    tow_account_t **accounts =
        tow_malloc(mapping->device_count * sizeof(*accounts));
    if (accounts == NULL) return tow_status_bare(TOW_RESOURCE_EXHAUSTED);
    for (uint32_t i = 0; i < mapping->device_count; i++) {
        accounts[i] = devices[i]->account;
        mapping->device_ids[i] = devices[i]->id;
    }
    tow_status_t status = tow_object_table_place(
        mapping->controller->object_table, accounts, mapping->device_count,
        mapping, &mapping->placement);
    tow_free(accounts);
    return status;
}

static tow_status_t fill_mapping(tow_ctl_mapping_t *mapping,
                                 tow_resource_device_t *const *devices)
{
    const size_t count = mapping->device_count;
    mapping->parts = tow_calloc(count, sizeof(*mapping->parts));
    mapping->part_of_shard = tow_calloc(count, sizeof(uint32_t));
    mapping->index_in_part = tow_calloc(count, sizeof(uint32_t));
    mapping->device_ids = tow_calloc(count, sizeof(int64_t));
    mapping->kind = tow_strdup(devices[0]->kind);
    if (mapping->parts == NULL || mapping->part_of_shard == NULL ||
        mapping->index_in_part == NULL || mapping->device_ids == NULL ||
        mapping->kind == NULL)
        return tow_status_bare(TOW_RESOURCE_EXHAUSTED);
    sort_shards(mapping, devices);
    if (!fill_parts(mapping, devices))
        return tow_status_bare(TOW_RESOURCE_EXHAUSTED);
    return place(mapping, devices);
}

static tow_status_t make_mapping(tow_controller_t *controller, char *take_key,
                                 tow_resource_device_t *const *devices,
                                 size_t count, tow_ctl_mapping_t **out_mapping)
{
    tow_ctl_mapping_t *mapping = tow_calloc(1, sizeof(*mapping));
    if (mapping == NULL) {
        tow_free(take_key);
        return tow_status_bare(TOW_RESOURCE_EXHAUSTED);
    }
    mapping->controller = controller;
    mapping->reference_count = 1;
    mapping->key = take_key;
    mapping->device_count = (uint32_t)count;
    tow_list_init(&mapping->executables);
    tow_list_append(&controller->mappings.list, &mapping->node);
    tow_status_t status = fill_mapping(mapping, devices);
    if (status == TOW_OK &&
        !tow_names_put(&controller->mappings.by_key, mapping->key, mapping))
        status = tow_status_bare(TOW_RESOURCE_EXHAUSTED);
    if (status != TOW_OK) {
        free_mapping(mapping);
        return status;
    }
    tow_ctl_mapping_check(mapping);
    *out_mapping = mapping;
    return TOW_OK;
}

tow_status_t tow_ctl_mapping_of(tow_controller_t *controller,
                                tow_resource_device_t *const *devices,
                                size_t count, tow_ctl_mapping_t **out_mapping)
{
    char *key = make_key(devices, count);
    if (key == NULL) return tow_status_bare(TOW_RESOURCE_EXHAUSTED);
    *out_mapping = tow_names_find(&controller->mappings.by_key, key);
    if (*out_mapping == NULL)
        return make_mapping(controller, key, devices, count, out_mapping);
    tow_free(key);
    tow_ctl_mapping_retain(*out_mapping);
    return TOW_OK;
}

tow_status_t tow_ctl_mapping_status(const tow_ctl_mapping_t *mapping)
{
    for (uint32_t i = 0; i < mapping->part_count; i++) {
        const tow_ctl_worker_t *worker = mapping->parts[i].worker;
        if (worker->session == NULL)
            return TOW_ERROR(
                TOW_UNAVAILABLE,
                "worker %s is gone, and %u devices of the slice "
                "with it: the slice gets other devices when enough "
                "are available, unless it named its devices",
                worker->name, mapping->parts[i].count);
    }
    return TOW_OK;
}
