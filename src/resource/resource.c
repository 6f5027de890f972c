/* Workers and their islands: who is there. slice.c gives devices out. */
#include "resource/resource.h"

#include <string.h>

#include "base/alloc.h"
#include "base/assert.h"
#include "device/xla_cpu/xla_cpu.h"
#include "resource/resource_impl.h"

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
    for (size_t i = 0; i < resource->here.count; i++)
        free_worker(resource->here.items[i]);
    for (size_t i = 0; i < resource->gone.count; i++)
        free_worker(resource->gone.items[i]);
    for (size_t i = 0; i < TOW_ISLANDS_MAX; i++)
        tow_free(resource->islands[i].name);
    tow_vec_deinit(&resource->here);
    tow_vec_deinit(&resource->gone);
    tow_map_deinit(&resource->devices);
    tow_free(resource);
}

/* -- Islands ---------------------------------------------------------------- */

/* NULL when there are too many. One that has no worker left, not even for the
 * slices of before, may get another name. */
static tow_island_entry_t *island_named(tow_resource_t *resource,
                                        const char *name)
{
    tow_island_entry_t *unused = NULL;
    for (uint32_t i = 0; i < TOW_ISLANDS_MAX; i++) {
        tow_island_entry_t *island = &resource->islands[i];
        if (island->name != NULL && strcmp(island->name, name) == 0)
            return island;
        if (unused == NULL && island->entry_count == 0) unused = island;
    }
    return unused;
}

static tow_status_t enter_island(tow_resource_t *resource,
                                 tow_worker_entry_t *worker, const char *name)
{
    if (name[0] == '\0') name = TOW_ISLAND_DEFAULT;
    if (strcmp(name, TOW_ISLAND_EVERY) == 0)
        return TOW_ERROR(TOW_INVALID_ARGUMENT,
                         "no island is called '%s', which means all of them",
                         name);
    tow_island_entry_t *island = island_named(resource, name);
    if (island == NULL)
        return TOW_ERROR(TOW_RESOURCE_EXHAUSTED,
                         "island '%s': there are %u already, and no more can "
                         "be: name one of them",
                         name, TOW_ISLANDS_MAX);
    if (island->entry_count == 0) {
        char *copy = tow_strdup(name);
        if (copy == NULL) return tow_status_bare(TOW_RESOURCE_EXHAUSTED);
        tow_free(island->name);
        *island = (tow_island_entry_t){
            .name = copy, .number = (uint32_t)(island - resource->islands)};
    }
    island->entry_count++;
    worker->island = island;
    return TOW_OK;
}

/* Places are in the order of names, as islands are: the same at each start,
 * whoever came first. w-2 is before w-10, and no two are equal. */
static bool stands_behind(const tow_worker_entry_t *worker,
                          const tow_worker_entry_t *other)
{
    return other->island == worker->island &&
           strverscmp(other->name, worker->name) > 0;
}

/* Before it is among those here. */
static void take_place(tow_resource_t *resource, tow_worker_entry_t *worker)
{
    worker->place = (uint32_t)worker->island->worker_count;
    for (size_t i = 0; i < resource->here.count; i++)
        if (stands_behind(worker, resource->here.items[i])) {
            resource->here.items[i]->place++;
            worker->place--;
        }
}

/* When it is no longer among them; its own stays as it was. */
static void leave_place(tow_resource_t *resource,
                        const tow_worker_entry_t *worker)
{
    for (size_t i = 0; i < resource->here.count; i++)
        if (stands_behind(worker, resource->here.items[i]))
            resource->here.items[i]->place--;
}

static void count_in(tow_worker_entry_t *worker)
{
    worker->island->worker_count++;
    worker->island->device_count += worker->device_count;
}

static void count_out(tow_worker_entry_t *worker)
{
    worker->island->worker_count--;
    worker->island->device_count -= worker->device_count;
}

const tow_island_entry_t *tow_resource_island(const tow_resource_t *resource,
                                              uint32_t number)
{
    TOW_ASSERT(number < TOW_ISLANDS_MAX);
    const tow_island_entry_t *island = &resource->islands[number];
    return island->worker_count > 0 ? island : NULL;
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
        tow_map_find(&resource->devices, tow_device_key(device->id));
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
    if (status == TOW_OK) {
        device->account->island = (uint8_t)worker->island->number;
        return true;
    }
    tow_status_ignore(status, "the caller says that memory is exhausted");
    return false;
}

static bool fill_worker(tow_resource_t *resource, tow_worker_entry_t *worker,
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
                                tow_worker_entry_t **out_worker)
{
    tow_worker_entry_t *worker = tow_calloc(1, sizeof(*worker));
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

static bool enter_devices(tow_resource_t *resource, tow_worker_entry_t *worker)
{
    for (size_t i = 0; i < worker->device_count; i++)
        if (!tow_map_put(&resource->devices,
                         tow_device_key(worker->devices[i].id),
                         &worker->devices[i])) {
            while (i-- > 0)
                tow_map_remove(&resource->devices,
                               tow_device_key(worker->devices[i].id));
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
    tow_worker_entry_t *worker = NULL;
    TOW_RETURN_IF_ERROR(make_worker(resource, name, join, &worker));
    TOW_ASSERT(worker != NULL);
    /* Room to be gone is taken now: going must not fail. */
    bool added =
        tow_vec_reserve(&resource->gone,
                        resource->gone.count + resource->here.count + 1) &&
        tow_vec_reserve(&resource->here, resource->here.count + 1) &&
        enter_devices(resource, worker);
    if (!added) {
        free_worker(worker);
        return TOW_ERROR(TOW_RESOURCE_EXHAUSTED,
                         "no memory to take in worker %s", name);
    }
    worker->context = context;
    worker->arrival = ++resource->arrival_count;
    take_place(resource, worker);
    resource->here.items[resource->here.count++] = worker;
    count_in(worker);
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
    count_out(worker);
    for (size_t i = 0; i < worker->device_count; i++)
        tow_map_remove(&resource->devices,
                       tow_device_key(worker->devices[i].id));
    keep_order_without(resource, worker);
    leave_place(resource, worker);
    if (has_slices(worker)) {
        TOW_ASSERT(resource->gone.count < resource->gone.capacity);
        resource->gone.items[resource->gone.count++] = worker;
    } else {
        free_worker(worker);
    }
}

void tow_resource_forget_gone(tow_resource_t *resource,
                              tow_worker_entry_t *worker)
{
    if (!worker->gone || has_slices(worker)) return;
    for (size_t i = 0; i < resource->gone.count; i++)
        if (resource->gone.items[i] == worker) {
            tow_vec_swap_remove(&resource->gone, i);
            free_worker(worker);
            return;
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
