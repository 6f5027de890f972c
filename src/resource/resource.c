/* Workers and their islands. slice.c chooses devices for slices. */
#include "resource/resource.h"

#include <string.h>

#include "base/alloc.h"
#include "base/assert.h"
#include "base/invariant.h"
#include "device/xla_cpu/xla_cpu.h"
#include "resource/resource_impl.h"

/* -- Creating and destroying ----------------------------------------------- */

tow_status_t tow_resource_create(tow_object_table_t *object_table,
                                 tow_resource_t **out_resource)
{
    *out_resource = tow_calloc(1, sizeof(**out_resource));
    if (*out_resource == NULL) return tow_status_bare(TOW_RESOURCE_EXHAUSTED);
    (*out_resource)->object_table = object_table;
    return TOW_OK;
}

static void free_worker(tow_resource_worker_t *worker)
{
    if (worker->island != NULL) worker->island->entry_count--;
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
    tow_free(worker->stablehlo);
    tow_free(worker);
}

void tow_resource_destroy(tow_resource_t *resource)
{
    if (resource == NULL) return;
    for (size_t i = 0; i < resource->connected.count; i++)
        free_worker(resource->connected.items[i]);
    for (size_t i = 0; i < resource->disconnected.count; i++)
        free_worker(resource->disconnected.items[i]);
    for (size_t i = 0; i < TOW_ISLANDS_MAX; i++)
        tow_free(resource->islands[i].name);
    tow_vec_deinit(&resource->connected);
    tow_vec_deinit(&resource->disconnected);
    tow_map_deinit(&resource->devices);
    tow_free(resource);
}

/* -- Islands --------------------------------------------------------------- */

/* NULL when there are too many. An island without workers, also without
 * disconnected ones that slices use, may get another name. */
static tow_resource_island_t *island_named(tow_resource_t *resource,
                                           const char *name)
{
    tow_resource_island_t *unused = NULL;
    for (uint32_t i = 0; i < TOW_ISLANDS_MAX; i++) {
        tow_resource_island_t *island = &resource->islands[i];
        if (island->name != NULL && strcmp(island->name, name) == 0)
            return island;
        if (unused == NULL && island->entry_count == 0) unused = island;
    }
    return unused;
}

static tow_status_t enter_island(tow_resource_t *resource,
                                 tow_resource_worker_t *worker,
                                 const char *name)
{
    if (name[0] == '\0') name = TOW_ISLAND_DEFAULT;
    if (strcmp(name, TOW_ISLAND_EVERY) == 0)
        return TOW_ERROR(TOW_INVALID_ARGUMENT,
                         "no island is called '%s', which means all of them",
                         name);
    tow_resource_island_t *island = island_named(resource, name);
    if (island == NULL)
        return TOW_ERROR(TOW_RESOURCE_EXHAUSTED,
                         "island '%s': there are %u already, and no more can "
                         "be: name one of them",
                         name, TOW_ISLANDS_MAX);
    if (island->entry_count == 0) {
        char *copy = tow_strdup(name);
        if (copy == NULL) return tow_status_bare(TOW_RESOURCE_EXHAUSTED);
        tow_free(island->name);
        *island = (tow_resource_island_t){
            .name = copy, .number = (uint32_t)(island - resource->islands)};
    }
    island->entry_count++;
    worker->island = island;
    return TOW_OK;
}

/* Positions are in the order of names, as islands are: the same at each start,
 * whatever the order of arrival. w-2 is before w-10, and no two are equal. */
static bool stands_behind(const tow_resource_worker_t *worker,
                          const tow_resource_worker_t *other)
{
    return other->island == worker->island &&
           strverscmp(other->name, worker->name) > 0;
}

/* Before it is among the connected workers. */
static void take_place(tow_resource_t *resource, tow_resource_worker_t *worker)
{
    worker->place = (uint32_t)worker->island->worker_count;
    for (size_t i = 0; i < resource->connected.count; i++)
        if (stands_behind(worker, resource->connected.items[i])) {
            resource->connected.items[i]->place++;
            worker->place--;
        }
}

/* When it is no longer among them; its own position stays. */
static void leave_place(tow_resource_t *resource,
                        const tow_resource_worker_t *worker)
{
    for (size_t i = 0; i < resource->connected.count; i++)
        if (stands_behind(worker, resource->connected.items[i]))
            resource->connected.items[i]->place--;
}

static void count_in(tow_resource_worker_t *worker)
{
    worker->island->worker_count++;
    worker->island->device_count += worker->device_count;
}

static void count_out(tow_resource_worker_t *worker)
{
    TOW_ASSERT(worker->island->worker_count > 0 &&
               worker->island->device_count >= worker->device_count);
    worker->island->worker_count--;
    worker->island->device_count -= worker->device_count;
}

const tow_resource_island_t *tow_resource_island(const tow_resource_t *resource,
                                                 uint32_t number)
{
    TOW_ASSERT(number < TOW_ISLANDS_MAX);
    const tow_resource_island_t *island = &resource->islands[number];
    return island->worker_count > 0 ? island : NULL;
}

/* -- Workers --------------------------------------------------------------- */

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
    const tow_resource_device_t *other =
        tow_map_find(&resource->devices, tow_resource_device_key(device->id));
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
    for (size_t i = 0; i < resource->connected.count; i++) {
        const tow_resource_worker_t *other = resource->connected.items[i];
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

static bool fill_device(tow_resource_t *resource, tow_resource_worker_t *worker,
                        size_t index, const tow_msg_device_t *from)
{
    tow_resource_device_t *device = &worker->devices[index];
    device->id = from->id;
    device->kind = tow_strdup(from->kind);
    device->name = tow_strdup(from->name);
    device->memory_bytes = from->memory_bytes;
    device->worker = worker;
    device->index = (uint32_t)index;
    if (device->kind == NULL || device->name == NULL) return false;
    tow_status_t status = tow_object_table_add_account(
        resource->object_table, from->memory_bytes, &device->account);
    if (status == TOW_OK) {
        device->account->island = (uint8_t)worker->island->number;
        return true;
    }
    tow_status_ignore(status, "the caller says that memory is exhausted");
    return false;
}

static bool fill_worker(tow_resource_t *resource, tow_resource_worker_t *worker,
                        const char *name, const tow_msg_worker_join_t *join)
{
    worker->name = tow_strdup(name);
    worker->host = tow_strdup(join->host);
    worker->platform = tow_strdup(join->platform);
    worker->version = tow_strdup(join->version);
    worker->stablehlo = tow_strdup(join->stablehlo);
    worker->simulated = join->simulated;
    worker->process = join->process;
    worker->devices = tow_calloc(join->n_devices, sizeof(*worker->devices));
    bool made = worker->name != NULL && worker->host != NULL &&
                worker->platform != NULL && worker->version != NULL &&
                worker->stablehlo != NULL && worker->devices != NULL;
    if (made) worker->device_count = join->n_devices;
    for (size_t i = 0; made && i < join->n_devices; i++)
        made = fill_device(resource, worker, i, join->devices[i]);
    return made;
}

static tow_status_t make_worker(tow_resource_t *resource, const char *name,
                                const tow_msg_worker_join_t *join,
                                tow_resource_worker_t **out_worker)
{
    tow_resource_worker_t *worker = tow_calloc(1, sizeof(*worker));
    if (worker == NULL) return tow_status_bare(TOW_RESOURCE_EXHAUSTED);
    tow_status_t status = enter_island(resource, worker, join->island);
    if (status == TOW_OK && !fill_worker(resource, worker, name, join))
        status = tow_status_bare(TOW_RESOURCE_EXHAUSTED);
    if (status != TOW_OK) {
        free_worker(worker);
        return status;
    }
    *out_worker = worker;
    return TOW_OK;
}

static bool enter_devices(tow_resource_t *resource,
                          tow_resource_worker_t *worker)
{
    for (size_t i = 0; i < worker->device_count; i++)
        if (!tow_map_put(&resource->devices,
                         tow_resource_device_key(worker->devices[i].id),
                         &worker->devices[i])) {
            while (i-- > 0)
                tow_map_remove(&resource->devices,
                               tow_resource_device_key(worker->devices[i].id));
            return false;
        }
    return true;
}

tow_status_t tow_resource_add_worker(tow_resource_t *resource, const char *name,
                                     const tow_msg_worker_join_t *join,
                                     void *context,
                                     tow_resource_worker_t **out_worker)
{
    *out_worker = NULL;
    TOW_RETURN_IF_ERROR(check_join(resource, name, join));
    tow_resource_worker_t *worker = NULL;
    TOW_RETURN_IF_ERROR(make_worker(resource, name, join, &worker));
    TOW_ASSERT(worker != NULL);
    /* Reserved now, so that disconnecting cannot fail. */
    bool added =
        tow_vec_reserve(&resource->disconnected, resource->disconnected.count +
                                                     resource->connected.count +
                                                     1) &&
        tow_vec_reserve(&resource->connected, resource->connected.count + 1) &&
        enter_devices(resource, worker);
    if (!added) {
        free_worker(worker);
        return TOW_ERROR(TOW_RESOURCE_EXHAUSTED,
                         "no memory to take in worker %s", name);
    }
    worker->context = context;
    worker->arrival = ++resource->arrival_count;
    take_place(resource, worker);
    resource->connected.items[resource->connected.count++] = worker;
    count_in(worker);
    *out_worker = worker;
    return TOW_OK;
}

static bool has_slices(const tow_resource_worker_t *worker)
{
    for (size_t i = 0; i < worker->device_count; i++)
        if (worker->devices[i].slice_count > 0) return true;
    return false;
}

static void keep_order_without(tow_resource_t *resource,
                               const tow_resource_worker_t *worker)
{
    size_t kept = 0;
    for (size_t i = 0; i < resource->connected.count; i++)
        if (resource->connected.items[i] != worker)
            resource->connected.items[kept++] = resource->connected.items[i];
    TOW_ASSERT(kept + 1 == resource->connected.count);
    resource->connected.count = kept;
}

void tow_resource_remove_worker(tow_resource_t *resource,
                                tow_resource_worker_t *worker)
{
    TOW_ASSERT(!worker->disconnected);
    worker->disconnected = true;
    count_out(worker);
    for (size_t i = 0; i < worker->device_count; i++)
        tow_map_remove(&resource->devices,
                       tow_resource_device_key(worker->devices[i].id));
    keep_order_without(resource, worker);
    leave_place(resource, worker);
    if (has_slices(worker)) {
        TOW_ASSERT(resource->disconnected.count <
                   resource->disconnected.capacity);
        resource->disconnected.items[resource->disconnected.count++] = worker;
    } else {
        free_worker(worker);
    }
}

void tow_resource_discard_if_unused(tow_resource_t *resource,
                                    tow_resource_worker_t *worker)
{
    if (!worker->disconnected || has_slices(worker)) return;
    for (size_t i = 0; i < resource->disconnected.count; i++)
        if (resource->disconnected.items[i] == worker) {
            tow_vec_swap_remove(&resource->disconnected, i);
            free_worker(worker);
            return;
        }
}

size_t tow_resource_worker_count(const tow_resource_t *resource)
{
    return resource->connected.count;
}

tow_resource_worker_t *tow_resource_worker(const tow_resource_t *resource,
                                           size_t index)
{
    TOW_ASSERT(index < resource->connected.count);
    return resource->connected.items[index];
}

size_t tow_resource_device_count(const tow_resource_t *resource)
{
    return tow_map_count(&resource->devices);
}

/* -- Invariants ------------------------------------------------------------ */

static tow_status_t check_worker(const tow_resource_t *resource,
                                 const tow_resource_worker_t *worker)
{
    TOW_INVARIANT(worker->island != NULL && worker->device_count > 0);
    for (size_t i = 0; i < worker->device_count; i++) {
        const tow_resource_device_t *device = &worker->devices[i];
        const tow_resource_device_t *found = tow_map_find(
            &resource->devices, tow_resource_device_key(device->id));
        TOW_INVARIANT(device->worker == worker && device->index == i);
        TOW_INVARIANT(device->account->island == worker->island->number);
        TOW_INVARIANT(worker->disconnected ? found != device : found == device);
    }
    if (worker->disconnected) {
        TOW_INVARIANT(has_slices(worker));
        return TOW_OK;
    }
    size_t before_count = 0;
    for (size_t i = 0; i < resource->connected.count; i++) {
        const tow_resource_worker_t *other = resource->connected.items[i];
        before_count +=
            other->island == worker->island && other->place < worker->place;
    }
    TOW_INVARIANT(before_count == worker->place);
    return TOW_OK;
}

static tow_status_t check_island(const tow_resource_t *resource,
                                 const tow_resource_island_t *island)
{
    size_t worker_count = 0, device_count = 0, gone_count = 0;
    for (size_t i = 0; i < resource->connected.count; i++) {
        const tow_resource_worker_t *worker = resource->connected.items[i];
        if (worker->island != island) continue;
        worker_count++;
        device_count += worker->device_count;
    }
    for (size_t i = 0; i < resource->disconnected.count; i++)
        gone_count += resource->disconnected.items[i]->island == island;
    TOW_INVARIANT(worker_count == island->worker_count);
    TOW_INVARIANT(device_count == island->device_count);
    TOW_INVARIANT(worker_count + gone_count == island->entry_count);
    TOW_INVARIANT(island->entry_count == 0 || island->name != NULL);
    return TOW_OK;
}

tow_status_t tow_resource_check(const tow_resource_t *resource)
{
    size_t device_count = 0;
    for (size_t i = 0; i < resource->connected.count; i++) {
        const tow_resource_worker_t *worker = resource->connected.items[i];
        TOW_INVARIANT(!worker->disconnected);
        TOW_INVARIANT(i == 0 || resource->connected.items[i - 1]->arrival <
                                    worker->arrival);
        TOW_RETURN_IF_ERROR(check_worker(resource, worker));
        device_count += worker->device_count;
    }
    for (size_t i = 0; i < resource->disconnected.count; i++) {
        TOW_INVARIANT(resource->disconnected.items[i]->disconnected);
        TOW_RETURN_IF_ERROR(
            check_worker(resource, resource->disconnected.items[i]));
    }
    TOW_INVARIANT(device_count == tow_map_count(&resource->devices));
    for (size_t i = 0; i < TOW_ISLANDS_MAX; i++)
        TOW_RETURN_IF_ERROR(check_island(resource, &resource->islands[i]));
    return TOW_OK;
}
