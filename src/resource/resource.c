#include "resource/resource.h"

#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/assert.h"
#include "base/map.h"
#include "base/vec.h"
#include "device/xla_cpu/xla_cpu.h"

struct tow_resource {
    tow_ledger_t *ledger;               /* lent */
    TOW_VEC(tow_worker_entry_t *) here; /* owned, in order of arrival */
    TOW_VEC(tow_worker_entry_t *) gone; /* owned: slices still name them */
    tow_map_t devices;                  /* id + 1 -> entry, of `here` */
    uint64_t arrival_count;
};

/* Ids start at 0, and a map's key may be anything: no offset is needed, but a
 * negative id is refused before it gets here. */
static uint64_t key_of(int64_t id)
{
    return (uint64_t)id;
}

/* -- Life ------------------------------------------------------------------- */

tow_status_t tow_resource_create(tow_ledger_t *ledger,
                                 tow_resource_t **out_resource)
{
    *out_resource = tow_calloc(1, sizeof(**out_resource));
    if (*out_resource == NULL) return tow_status_bare(TOW_RESOURCE_EXHAUSTED);
    (*out_resource)->ledger = ledger;
    return TOW_OK;
}

static void free_worker(tow_worker_entry_t *worker)
{
    for (size_t i = 0; worker->devices != NULL && i < worker->device_count;
         i++) {
        tow_free(worker->devices[i].kind);
        tow_free(worker->devices[i].name);
    }
    tow_free(worker->devices);
    tow_free(worker->name);
    tow_free(worker->host);
    tow_free(worker->platform);
    tow_free(worker->version);
    tow_free(worker);
}

void tow_resource_destroy(tow_resource_t *resource)
{
    if (resource == NULL) return;
    for (size_t i = 0; i < resource->here.count; i++)
        free_worker(resource->here.items[i]);
    for (size_t i = 0; i < resource->gone.count; i++)
        free_worker(resource->gone.items[i]);
    tow_vec_deinit(&resource->here);
    tow_vec_deinit(&resource->gone);
    tow_map_deinit(&resource->devices);
    tow_free(resource);
}

/* -- Workers ---------------------------------------------------------------- */

static tow_status_t check_device(const tow_resource_t *resource,
                                 const tow_msg_worker_join_t *join,
                                 size_t index)
{
    const tow_msg_device_t *device = join->devices[index];
    const int64_t first = (int64_t)join->process * TOW_XLA_PROCESS_STRIDE;
    if (device->id < first || device->id >= first + TOW_XLA_PROCESS_STRIDE)
        return TOW_ERROR(TOW_INVALID_ARGUMENT,
                         "device id %lld is not of process %u, whose ids are "
                         "%lld to %lld",
                         (long long)device->id, join->process, (long long)first,
                         (long long)first + TOW_XLA_PROCESS_STRIDE - 1);
    for (size_t i = 0; i < index; i++)
        if (join->devices[i]->id == device->id)
            return TOW_ERROR(TOW_INVALID_ARGUMENT,
                             "device id %lld is there twice",
                             (long long)device->id);
    const tow_device_entry_t *other =
        tow_map_find(&resource->devices, key_of(device->id));
    if (other != NULL)
        return TOW_ERROR(TOW_ALREADY_EXISTS,
                         "device id %lld is taken by worker %s on host %s",
                         (long long)device->id, other->worker->name,
                         other->worker->host);
    return TOW_OK;
}

static tow_status_t check_join(const tow_resource_t *resource, const char *name,
                               const tow_msg_worker_join_t *join)
{
    if (join->n_devices == 0)
        return TOW_ERROR(TOW_INVALID_ARGUMENT, "worker %s has no devices",
                         name);
    for (size_t i = 0; i < resource->here.count; i++) {
        const tow_worker_entry_t *other = resource->here.items[i];
        if (strcmp(other->name, name) == 0)
            return TOW_ERROR(TOW_ALREADY_EXISTS,
                             "a worker named %s is there already, on host %s: "
                             "give this one another name",
                             name, other->host);
        if (other->process == join->process)
            return TOW_ERROR(TOW_ALREADY_EXISTS,
                             "process number %u is taken by worker %s: give "
                             "%s another one",
                             join->process, other->name, name);
    }
    for (size_t i = 0; i < join->n_devices; i++)
        TOW_RETURN_IF_ERROR(check_device(resource, join, i));
    return TOW_OK;
}

static bool fill_device(tow_resource_t *resource, tow_worker_entry_t *worker,
                        size_t index, const tow_msg_device_t *from)
{
    tow_device_entry_t *device = &worker->devices[index];
    device->id = from->id;
    device->kind = tow_strdup(from->kind);
    device->name = tow_strdup(from->name);
    device->memory_bytes = from->memory_bytes;
    device->worker = worker;
    device->index = (uint32_t)index;
    if (device->kind == NULL || device->name == NULL) return false;
    tow_status_t status = tow_ledger_add_account(
        resource->ledger, from->memory_bytes, &device->account);
    if (status == TOW_OK) return true;
    tow_status_ignore(status, "the caller says that memory is exhausted");
    return false;
}

static tow_worker_entry_t *make_worker(tow_resource_t *resource,
                                       const char *name,
                                       const tow_msg_worker_join_t *join)
{
    tow_worker_entry_t *worker = tow_calloc(1, sizeof(*worker));
    if (worker == NULL) return NULL;
    worker->name = tow_strdup(name);
    worker->host = tow_strdup(join->host);
    worker->platform = tow_strdup(join->platform);
    worker->version = tow_strdup(join->version);
    worker->simulated = join->simulated;
    worker->process = join->process;
    worker->devices = tow_calloc(join->n_devices, sizeof(*worker->devices));
    bool made = worker->name != NULL && worker->host != NULL &&
                worker->platform != NULL && worker->version != NULL &&
                worker->devices != NULL;
    if (made) worker->device_count = join->n_devices;
    for (size_t i = 0; made && i < join->n_devices; i++)
        made = fill_device(resource, worker, i, join->devices[i]);
    if (made) return worker;
    free_worker(worker);
    return NULL;
}

static bool enter_devices(tow_resource_t *resource, tow_worker_entry_t *worker)
{
    for (size_t i = 0; i < worker->device_count; i++)
        if (!tow_map_put(&resource->devices, key_of(worker->devices[i].id),
                         &worker->devices[i])) {
            while (i-- > 0)
                tow_map_remove(&resource->devices,
                               key_of(worker->devices[i].id));
            return false;
        }
    return true;
}

tow_status_t tow_resource_add_worker(tow_resource_t *resource, const char *name,
                                     const tow_msg_worker_join_t *join,
                                     void *context,
                                     tow_worker_entry_t **out_worker)
{
    *out_worker = NULL;
    TOW_RETURN_IF_ERROR(check_join(resource, name, join));
    tow_worker_entry_t *worker = make_worker(resource, name, join);
    /* Room to be gone is taken now: going must not fail. */
    bool added =
        worker != NULL &&
        tow_vec_reserve(&resource->gone,
                        resource->gone.count + resource->here.count + 1) &&
        tow_vec_reserve(&resource->here, resource->here.count + 1) &&
        enter_devices(resource, worker);
    if (!added) {
        if (worker != NULL) free_worker(worker);
        return TOW_ERROR(TOW_RESOURCE_EXHAUSTED,
                         "no memory to take in worker %s", name);
    }
    worker->context = context;
    worker->arrival = ++resource->arrival_count;
    resource->here.items[resource->here.count++] = worker;
    *out_worker = worker;
    return TOW_OK;
}

static bool has_slices(const tow_worker_entry_t *worker)
{
    for (size_t i = 0; i < worker->device_count; i++)
        if (worker->devices[i].slice_count > 0) return true;
    return false;
}

static void keep_order_without(tow_resource_t *resource,
                               const tow_worker_entry_t *worker)
{
    size_t kept = 0;
    for (size_t i = 0; i < resource->here.count; i++)
        if (resource->here.items[i] != worker)
            resource->here.items[kept++] = resource->here.items[i];
    TOW_ASSERT(kept + 1 == resource->here.count);
    resource->here.count = kept;
}

void tow_resource_remove_worker(tow_resource_t *resource,
                                tow_worker_entry_t *worker)
{
    TOW_ASSERT(!worker->gone);
    worker->gone = true;
    for (size_t i = 0; i < worker->device_count; i++)
        tow_map_remove(&resource->devices, key_of(worker->devices[i].id));
    keep_order_without(resource, worker);
    if (has_slices(worker)) {
        TOW_ASSERT(resource->gone.count < resource->gone.capacity);
        resource->gone.items[resource->gone.count++] = worker;
    } else {
        free_worker(worker);
    }
}

size_t tow_resource_worker_count(const tow_resource_t *resource)
{
    return resource->here.count;
}

tow_worker_entry_t *tow_resource_worker(const tow_resource_t *resource,
                                        size_t index)
{
    TOW_ASSERT(index < resource->here.count);
    return resource->here.items[index];
}

size_t tow_resource_device_count(const tow_resource_t *resource)
{
    return tow_map_count(&resource->devices);
}

/* -- Slices ----------------------------------------------------------------- */

typedef TOW_VEC(tow_device_entry_t *) device_vec_t;

/* 0: all of them. */
static tow_status_t wanted_count(const tow_slice_request_t *request,
                                 size_t *out_count)
{
    uint64_t count = request->dim_count == 0 ? 0 : 1;
    for (size_t i = 0; i < request->dim_count; i++) {
        count *= request->dims[i];
        if (count == 0 || count > TOW_DEVICES_MAX)
            return TOW_ERROR(TOW_INVALID_ARGUMENT,
                             "dimension %zu of the slice is %u: a slice has 1 "
                             "to %u devices",
                             i, request->dims[i], TOW_DEVICES_MAX);
    }
    if (request->device_id_count > 0 && count > 0 &&
        count != request->device_id_count)
        return TOW_ERROR(TOW_INVALID_ARGUMENT,
                         "the slice's dimensions make %llu devices, but %zu "
                         "are named",
                         (unsigned long long)count, request->device_id_count);
    *out_count = count;
    return TOW_OK;
}

static bool is_kind(const tow_slice_request_t *request, const char *kind)
{
    return request->kind == NULL || request->kind[0] == '\0' ||
           strcmp(request->kind, kind) == 0;
}

static tow_status_t take_named(const tow_resource_t *resource,
                               const tow_slice_request_t *request,
                               device_vec_t *devices)
{
    for (size_t i = 0; i < request->device_id_count; i++) {
        const int64_t id = request->device_ids[i];
        tow_device_entry_t *device =
            id < 0 ? NULL : tow_map_find(&resource->devices, key_of(id));
        if (device == NULL)
            return TOW_ERROR(TOW_NOT_FOUND,
                             "there is no device %lld: `tow status` lists them",
                             (long long)id);
        if (!is_kind(request, device->kind) ||
            (i > 0 && strcmp(devices->items[0]->kind, device->kind) != 0))
            return TOW_ERROR(TOW_INVALID_ARGUMENT,
                             "device %lld is a %s: all devices of a slice are "
                             "of one kind",
                             (long long)id, device->kind);
        if (!tow_vec_push(devices, device))
            return tow_status_bare(TOW_RESOURCE_EXHAUSTED);
    }
    return TOW_OK;
}

static int by_id(const void *a, const void *b)
{
    const tow_device_entry_t *const *left = a, *const *right = b;
    return (*left)->id < (*right)->id ? -1 : (*left)->id > (*right)->id;
}

static tow_status_t check_distinct(const device_vec_t *devices)
{
    if (devices->count < 2) return TOW_OK;
    size_t bytes = devices->count * sizeof(*devices->items);
    tow_device_entry_t **sorted = tow_malloc(bytes);
    if (sorted == NULL) return tow_status_bare(TOW_RESOURCE_EXHAUSTED);
    memcpy(sorted, devices->items, bytes);
    qsort(sorted, devices->count, sizeof(*sorted), by_id);
    tow_status_t status = TOW_OK;
    for (size_t i = 1; i < devices->count && status == TOW_OK; i++)
        if (sorted[i] == sorted[i - 1])
            status = TOW_ERROR(TOW_INVALID_ARGUMENT,
                               "device %lld is in the slice twice",
                               (long long)sorted[i]->id);
    tow_free(sorted);
    return status;
}

/* Least load first; then workers in order of arrival, so that the devices of
 * one stay together. */
static int by_load(const void *a, const void *b)
{
    const tow_device_entry_t *left = *(tow_device_entry_t *const *)a;
    const tow_device_entry_t *right = *(tow_device_entry_t *const *)b;
    if (left->slice_count != right->slice_count)
        return left->slice_count < right->slice_count ? -1 : 1;
    if (left->worker != right->worker)
        return left->worker->arrival < right->worker->arrival ? -1 : 1;
    return left->index < right->index ? -1 : 1;
}

static int by_place(const void *a, const void *b)
{
    const tow_device_entry_t *left = *(tow_device_entry_t *const *)a;
    const tow_device_entry_t *right = *(tow_device_entry_t *const *)b;
    if (left->worker != right->worker)
        return left->worker->arrival < right->worker->arrival ? -1 : 1;
    return left->index < right->index ? -1 : left->index > right->index;
}

/* The kind to take when none is named: the one of which there are most. */
static const char *commonest_kind(const tow_resource_t *resource)
{
    const char *best = "";
    size_t best_count = 0;
    for (size_t i = 0; i < resource->here.count; i++) {
        const char *kind = resource->here.items[i]->devices[0].kind;
        size_t count = 0;
        for (size_t j = 0; j < resource->here.count; j++)
            if (strcmp(resource->here.items[j]->devices[0].kind, kind) == 0)
                count += resource->here.items[j]->device_count;
        if (count > best_count) best = kind, best_count = count;
    }
    return best;
}

static tow_status_t gather(const tow_resource_t *resource, const char *kind,
                           device_vec_t *devices)
{
    for (size_t i = 0; i < resource->here.count; i++) {
        tow_worker_entry_t *worker = resource->here.items[i];
        for (size_t j = 0; j < worker->device_count; j++)
            if (strcmp(worker->devices[j].kind, kind) == 0 &&
                !tow_vec_push(devices, &worker->devices[j]))
                return tow_status_bare(TOW_RESOURCE_EXHAUSTED);
    }
    return TOW_OK;
}

static tow_status_t take_any(const tow_resource_t *resource,
                             const tow_slice_request_t *request, size_t wanted,
                             device_vec_t *devices)
{
    const char *kind = request->kind != NULL && request->kind[0] != '\0'
                           ? request->kind
                           : commonest_kind(resource);
    TOW_RETURN_IF_ERROR(gather(resource, kind, devices));
    if (devices->count == 0)
        return TOW_ERROR(TOW_NOT_FOUND,
                         "there is no device of kind '%s' among %zu devices of "
                         "%zu workers: `tow status` lists them",
                         kind, tow_resource_device_count(resource),
                         resource->here.count);
    if (wanted > devices->count)
        return TOW_ERROR(TOW_RESOURCE_EXHAUSTED,
                         "%zu devices of kind %s were asked for, and there are "
                         "%zu",
                         wanted, kind, devices->count);
    qsort(devices->items, devices->count, sizeof(*devices->items), by_load);
    if (wanted > 0) devices->count = wanted;
    qsort(devices->items, devices->count, sizeof(*devices->items), by_place);
    return TOW_OK;
}

tow_status_t tow_resource_take(tow_resource_t *resource,
                               const tow_slice_request_t *request,
                               tow_device_entry_t ***out_devices,
                               size_t *out_count)
{
    *out_devices = NULL;
    *out_count = 0;
    size_t wanted = 0;
    TOW_RETURN_IF_ERROR(wanted_count(request, &wanted));
    device_vec_t devices = {0};
    tow_status_t status = request->device_id_count > 0
                              ? take_named(resource, request, &devices)
                              : take_any(resource, request, wanted, &devices);
    if (status == TOW_OK) status = check_distinct(&devices);
    if (status != TOW_OK) {
        tow_vec_deinit(&devices);
        return status;
    }
    for (size_t i = 0; i < devices.count; i++)
        devices.items[i]->slice_count++;
    *out_devices = devices.items;
    *out_count = devices.count;
    return TOW_OK;
}

static void forget_gone(tow_resource_t *resource, tow_worker_entry_t *worker)
{
    if (!worker->gone || has_slices(worker)) return;
    for (size_t i = 0; i < resource->gone.count; i++)
        if (resource->gone.items[i] == worker) {
            tow_vec_swap_remove(&resource->gone, i);
            free_worker(worker);
            return;
        }
}

void tow_resource_give_back(tow_resource_t *resource,
                            tow_device_entry_t *const *devices, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        TOW_ASSERT(devices[i]->slice_count > 0);
        devices[i]->slice_count--;
    }
    /* Devices of one worker stand together, so each is looked at once or
     * little more; the entry is gone after this. */
    for (size_t i = 0; i < count;) {
        tow_worker_entry_t *worker = devices[i]->worker;
        while (i < count && devices[i]->worker == worker)
            i++;
        bool appears_later = false;
        for (size_t j = i; j < count && worker->gone; j++)
            appears_later |= devices[j]->worker == worker;
        if (!appears_later) forget_gone(resource, worker);
    }
}
