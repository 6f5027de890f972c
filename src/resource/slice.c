/* Which devices a slice gets.
 *
 * For each island that has enough devices, computes its best offer, and takes
 * the best of these: first the fewest devices of the client's other slices, then
 * a shape that fits, then the least load on the devices, then the least load of
 * the island.
 *
 * Devices have coordinates (the position of the worker in its island, the index
 * among the worker's devices). A shape fits if its inner dimensions lie within
 * a worker and the outer ones go over adjacent workers: 2 x 4 is four adjacent
 * devices on each of two workers, where a worker has at least four, or eight on
 * one that has as many. Where no such block exists, any devices are used. */
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/assert.h"
#include "resource/resource_impl.h"

typedef TOW_VEC(tow_resource_device_t *) device_vec_t;

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

static bool is_named(const char *name)
{
    return name != NULL && name[0] != '\0';
}

static bool is_kind(const tow_slice_request_t *request, const char *kind)
{
    return !is_named(request->kind) || strcmp(request->kind, kind) == 0;
}

static bool is_every_island(const tow_slice_request_t *request)
{
    return request->island != NULL &&
           strcmp(request->island, TOW_ISLAND_EVERY) == 0;
}

static bool is_island(const tow_slice_request_t *request,
                      const tow_resource_island_t *island)
{
    return !is_named(request->island) || is_every_island(request) ||
           strcmp(request->island, island->name) == 0;
}

static tow_status_t check_island(const tow_slice_request_t *request,
                                 const tow_resource_device_t *device)
{
    const tow_resource_island_t *island = device->worker->island;
    if (is_island(request, island)) return TOW_OK;
    return TOW_ERROR(TOW_INVALID_ARGUMENT,
                     "device %lld is of island '%s', not of '%s'",
                     (long long)device->id, island->name, request->island);
}

static tow_status_t take_named(const tow_resource_t *resource,
                               const tow_slice_request_t *request,
                               device_vec_t *devices)
{
    for (size_t i = 0; i < request->device_id_count; i++) {
        const int64_t id = request->device_ids[i];
        tow_resource_device_t *device =
            id < 0
                ? NULL
                : tow_map_find(&resource->devices, tow_resource_device_key(id));
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
        TOW_RETURN_IF_ERROR(check_island(request, device));
        if (!tow_vec_push(devices, device))
            return tow_status_bare(TOW_RESOURCE_EXHAUSTED);
    }
    return TOW_OK;
}

static int by_id(const void *a, const void *b)
{
    const tow_resource_device_t *const *left = a, *const *right = b;
    return (*left)->id < (*right)->id ? -1 : (*left)->id > (*right)->id;
}

static tow_status_t check_distinct(const device_vec_t *devices)
{
    if (devices->count < 2) return TOW_OK;
    size_t bytes = devices->count * sizeof(*devices->items);
    tow_resource_device_t **sorted = tow_malloc(bytes);
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

/* -- Any devices ----------------------------------------------------------- */

/* In order of coordinates, so that the devices of one worker stay together.
 * Islands are in the order of their names, whatever the order of arrival;
 * island-2 is before island-10. */
static int by_place(const void *a, const void *b)
{
    const tow_resource_device_t *left = *(tow_resource_device_t *const *)a;
    const tow_resource_device_t *right = *(tow_resource_device_t *const *)b;
    if (left->worker->island != right->worker->island)
        return strverscmp(left->worker->island->name,
                          right->worker->island->name);
    if (left->worker != right->worker)
        return left->worker->place < right->worker->place ? -1 : 1;
    return left->index < right->index ? -1 : left->index > right->index;
}

/* A device of another slice of the client weighs more than any load. */
#define OWN_WEIGHT ((uint64_t)1 << 40)

static uint64_t load_of(tow_resource_device_t *const *devices, size_t count)
{
    uint64_t load = 0;
    for (size_t i = 0; i < count; i++)
        load += devices[i]->slice_count - devices[i]->own_named_count +
                devices[i]->own_count * OWN_WEIGHT;
    return load;
}

static uint64_t overlap_of(uint64_t load)
{
    return load / OWN_WEIGHT;
}

/* Least load first. */
static int by_load(const void *a, const void *b)
{
    const uint64_t loads[] = {load_of(a, 1), load_of(b, 1)};
    if (loads[0] != loads[1]) return loads[0] < loads[1] ? -1 : 1;
    return by_place(a, b);
}

/* The kind if none is requested: the most common one. */
static const char *commonest_kind(const tow_resource_t *resource)
{
    const char *best = "";
    size_t best_count = 0;
    for (size_t i = 0; i < resource->connected.count; i++) {
        const char *kind = resource->connected.items[i]->devices[0].kind;
        size_t count = 0;
        for (size_t j = 0; j < resource->connected.count; j++)
            if (strcmp(resource->connected.items[j]->devices[0].kind, kind) ==
                0)
                count += resource->connected.items[j]->device_count;
        if (count > best_count) best = kind, best_count = count;
    }
    return best;
}

/* Those of a kind on one island, or on all (NULL), in order of coordinates. */
static tow_status_t gather(const tow_resource_t *resource,
                           const tow_resource_island_t *island,
                           const char *kind, device_vec_t *devices)
{
    devices->count = 0;
    for (size_t i = 0; i < resource->connected.count; i++) {
        tow_resource_worker_t *worker = resource->connected.items[i];
        if (island != NULL && worker->island != island) continue;
        for (size_t j = 0; j < worker->device_count; j++)
            if (strcmp(worker->devices[j].kind, kind) == 0 &&
                !tow_vec_push(devices, &worker->devices[j]))
                return tow_status_bare(TOW_RESOURCE_EXHAUSTED);
    }
    if (devices->count > 0)
        qsort(devices->items, devices->count, sizeof(*devices->items),
              by_place);
    return TOW_OK;
}

/* -- Shapes that fit ------------------------------------------------------- */

/* Adjacent devices on each of some adjacent workers. */
typedef struct block {
    size_t first;        /* worker, as an index into the list of `hosts_t` */
    size_t worker_count; /* 0: not found */
    size_t offset;       /* among a worker's devices */
    size_t width;
    uint64_t load;
} block_t;

/* Where each worker's devices begin in a list in order of coordinates. */
typedef struct hosts {
    tow_resource_device_t *const *devices; /* lent */
    size_t *begins;                        /* owned: one more than workers */
    size_t count;
    size_t width_max;
} hosts_t;

static bool list_hosts(const device_vec_t *devices, hosts_t *hosts)
{
    *hosts = (hosts_t){.devices = devices->items};
    hosts->begins = tow_malloc((devices->count + 1) * sizeof(*hosts->begins));
    if (hosts->begins == NULL) return false;
    for (size_t i = 0; i < devices->count; i++)
        if (i == 0 ||
            devices->items[i]->worker != devices->items[i - 1]->worker)
            hosts->begins[hosts->count++] = i;
    hosts->begins[hosts->count] = devices->count;
    for (size_t h = 0; h < hosts->count; h++) {
        size_t width = hosts->begins[h + 1] - hosts->begins[h];
        if (width > hosts->width_max) hosts->width_max = width;
    }
    return true;
}

/* The load of a block; UINT64_MAX if one of its workers is too small. */
static uint64_t weigh(const hosts_t *hosts, const block_t *block)
{
    uint64_t load = 0;
    for (size_t h = block->first; h < block->first + block->worker_count; h++) {
        size_t begin = hosts->begins[h] + block->offset;
        if (begin + block->width > hosts->begins[h + 1]) return UINT64_MAX;
        load += load_of(hosts->devices + begin, block->width);
    }
    return load;
}

/* Searches for a better block of this shape. O(workers x offsets x devices). */
static void look_for(const hosts_t *hosts, size_t worker_count, size_t width,
                     block_t *best)
{
    if (width > hosts->width_max || worker_count > hosts->count) return;
    for (size_t h = 0; h + worker_count <= hosts->count; h++)
        for (size_t offset = 0; offset + width <= hosts->width_max; offset++) {
            block_t block = {h, worker_count, offset, width, 0};
            block.load = weigh(hosts, &block);
            if (block.load == UINT64_MAX) break;
            if (best->worker_count == 0 || block.load < best->load)
                *best = block;
            if (best->load == 0) return;
        }
}

/* On as few workers as possible; then the outermost dimension over workers,
 * then the outer two; finally whole workers, whatever the shape. */
static block_t find_block(const hosts_t *hosts,
                          const tow_slice_request_t *request, size_t wanted)
{
    block_t best = {0};
    size_t outer = 1;
    const size_t width = hosts->width_max;
    TOW_ASSERT(width > 0);
    for (size_t i = 0; i < request->dim_count; i++) {
        look_for(hosts, outer, wanted / outer, &best);
        outer *= request->dims[i];
    }
    // NOLINTNEXTLINE(clang-analyzer-core.DivideZero): asserted above
    if (wanted % width == 0) look_for(hosts, wanted / width, width, &best);
    return best;
}

/* Moves the block's devices to the front, in its order. */
static void keep_block(const hosts_t *hosts, const block_t *block,
                       device_vec_t *devices)
{
    size_t count = 0;
    for (size_t h = block->first; h < block->first + block->worker_count; h++)
        for (size_t i = 0; i < block->width; i++)
            devices->items[count++] =
                devices->items[hosts->begins[h] + block->offset + i];
    devices->count = count;
}

/* -- The best of all islands ----------------------------------------------- */

typedef struct offer {
    device_vec_t devices; /* owned */
    bool is_shaped;
    uint64_t load;
    uint64_t island_load; /* of all its devices ... */
    size_t island_size;   /* ... and their number */
} offer_t;

static bool is_better(const offer_t *offer, const offer_t *best)
{
    if (best->devices.count == 0) return true;
    /* More devices, where all were requested. */
    if (offer->devices.count != best->devices.count)
        return offer->devices.count > best->devices.count;
    const uint64_t overlaps[] = {overlap_of(offer->load),
                                 overlap_of(best->load)};
    if (overlaps[0] != overlaps[1]) return overlaps[0] < overlaps[1];
    if (offer->is_shaped != best->is_shaped) return offer->is_shaped;
    if (offer->load != best->load) return offer->load < best->load;
    return offer->island_load * best->island_size <
           best->island_load * offer->island_size;
}

static void keep_least_loaded(device_vec_t *devices, size_t wanted)
{
    qsort(devices->items, devices->count, sizeof(*devices->items), by_load);
    devices->count = wanted;
    qsort(devices->items, devices->count, sizeof(*devices->items), by_place);
}

/* The devices of the client's other slices among the least loaded ones: as few
 * as possible. Keeps their order. */
static uint64_t least_overlap(const device_vec_t *devices, size_t wanted)
{
    uint64_t overlap = 0;
    size_t taken = 0;
    for (uint32_t own = 0; taken < wanted; own++) {
        size_t count = 0;
        bool is_last = true;
        for (size_t i = 0; i < devices->count; i++) {
            count += devices->items[i]->own_count == own;
            is_last = is_last && devices->items[i]->own_count <= own;
        }
        if (count > wanted - taken) count = wanted - taken;
        taken += count;
        overlap += (uint64_t)own * count;
        if (is_last) break;
    }
    return overlap;
}

/* `wanted` 0: all. No devices: the island has fewer. */
static tow_status_t make_offer(const tow_resource_t *resource,
                               const tow_resource_island_t *island,
                               const tow_slice_request_t *request,
                               const char *kind, size_t wanted, offer_t *offer)
{
    device_vec_t *devices = &offer->devices;
    TOW_RETURN_IF_ERROR(gather(resource, island, kind, devices));
    offer->island_size = devices->count;
    offer->island_load = load_of(devices->items, devices->count) % OWN_WEIGHT;
    if (wanted == 0) wanted = devices->count;
    if (wanted > devices->count) devices->count = 0;
    if (devices->count == 0) return TOW_OK;
    hosts_t hosts;
    if (!list_hosts(devices, &hosts))
        return tow_status_bare(TOW_RESOURCE_EXHAUSTED);
    block_t block = find_block(&hosts, request, wanted);
    offer->is_shaped = block.worker_count > 0 &&
                       overlap_of(block.load) <= least_overlap(devices, wanted);
    if (offer->is_shaped) {
        keep_block(&hosts, &block, devices);
    } else {
        keep_least_loaded(devices, wanted);
    }
    tow_free(hosts.begins);
    offer->load = load_of(devices->items, devices->count);
    return TOW_OK;
}

static tow_status_t describe_shortage(const tow_resource_t *resource,
                                      const tow_slice_request_t *request,
                                      const char *kind, size_t wanted,
                                      size_t largest)
{
    const char *island = is_named(request->island) ? request->island : "";
    if (is_every_island(request)) island = "";
    bool is_there = island[0] == '\0';
    for (uint32_t i = 0; i < TOW_ISLANDS_MAX && !is_there; i++) {
        const tow_resource_island_t *entry = tow_resource_island(resource, i);
        is_there = entry != NULL && strcmp(entry->name, island) == 0;
    }
    if (!is_there)
        return TOW_ERROR(TOW_NOT_FOUND,
                         "there is no island '%s': `tow status` lists them",
                         island);
    const char *where = island[0] != '\0' ? "of island " : "";
    if (largest == 0)
        return TOW_ERROR(TOW_NOT_FOUND,
                         "there is no device of kind '%s' among %zu devices of "
                         "%zu workers %s%s: `tow status` lists them",
                         kind, tow_resource_device_count(resource),
                         resource->connected.count, where, island);
    return TOW_ERROR(TOW_RESOURCE_EXHAUSTED,
                     "%zu devices of kind %s were asked for, and %s%s has %zu",
                     wanted, kind,
                     island[0] != '\0'          ? "island "
                     : is_every_island(request) ? "the cluster"
                                                : "the largest island",
                     island, largest);
}

/* Shapes do not span islands: takes the least loaded devices. */
static tow_status_t take_of_every_island(const tow_resource_t *resource,
                                         const tow_slice_request_t *request,
                                         const char *kind, size_t wanted,
                                         device_vec_t *devices)
{
    TOW_RETURN_IF_ERROR(gather(resource, NULL, kind, devices));
    if (devices->count == 0 || wanted > devices->count)
        return describe_shortage(resource, request, kind, wanted,
                                 devices->count);
    if (wanted > 0 && wanted < devices->count)
        keep_least_loaded(devices, wanted);
    return TOW_OK;
}

static tow_status_t take_any(const tow_resource_t *resource,
                             const tow_slice_request_t *request, size_t wanted,
                             device_vec_t *devices)
{
    const char *kind =
        is_named(request->kind) ? request->kind : commonest_kind(resource);
    if (is_every_island(request))
        return take_of_every_island(resource, request, kind, wanted, devices);
    offer_t best = {0}, offer = {0};
    size_t largest = 0;
    tow_status_t status = TOW_OK;
    for (uint32_t i = 0; i < TOW_ISLANDS_MAX && status == TOW_OK; i++) {
        const tow_resource_island_t *island = tow_resource_island(resource, i);
        if (island == NULL || !is_island(request, island)) continue;
        status = make_offer(resource, island, request, kind, wanted, &offer);
        if (offer.island_size > largest) largest = offer.island_size;
        if (status != TOW_OK || offer.devices.count == 0 ||
            !is_better(&offer, &best))
            continue;
        offer_t worse = best;
        best = offer;
        offer = worse;
    }
    tow_vec_deinit(&offer.devices);
    *devices = best.devices;
    if (status == TOW_OK && best.devices.count == 0)
        status = describe_shortage(resource, request, kind, wanted, largest);
    return status;
}

/* -- Acquiring and releasing devices --------------------------------------- */

tow_slice_choice_t tow_slice_choice(const tow_slice_request_t *request)
{
    const bool has_all = is_every_island(request) && request->dim_count == 0;
    return request->device_id_count > 0 || has_all ? TOW_SLICE_NOT_CHOSEN
                                                   : TOW_SLICE_CHOSEN;
}

static void mark_own(const tow_slice_request_t *request)
{
    for (size_t i = 0; i < request->own_count; i++)
        for (size_t k = 0; k < request->own[i].count; k++) {
            tow_resource_device_t *device = request->own[i].devices[k];
            if (request->own[i].choice == TOW_SLICE_CHOSEN)
                device->own_count++;
            else
                device->own_named_count++;
            TOW_ASSERT(device->own_named_count <= device->slice_count);
        }
}

static void unmark_own(const tow_slice_request_t *request)
{
    for (size_t i = 0; i < request->own_count; i++)
        for (size_t k = 0; k < request->own[i].count; k++) {
            tow_resource_device_t *device = request->own[i].devices[k];
            device->own_count = device->own_named_count = 0;
        }
}

tow_status_t tow_resource_acquire_devices(tow_resource_t *resource,
                                          const tow_slice_request_t *request,
                                          tow_resource_device_t ***out_devices,
                                          size_t *out_count)
{
    *out_devices = NULL;
    *out_count = 0;
    size_t wanted = 0;
    TOW_RETURN_IF_ERROR(wanted_count(request, &wanted));
    device_vec_t devices = {0};
    mark_own(request);
    tow_status_t status = request->device_id_count > 0
                              ? take_named(resource, request, &devices)
                              : take_any(resource, request, wanted, &devices);
    unmark_own(request);
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

const char *tow_resource_stablehlo(tow_resource_device_t *const *devices,
                                   size_t count)
{
    const char *oldest = "";
    for (size_t i = 0; i < count; i++) {
        const char *version = devices[i]->worker->stablehlo;
        if (version[0] != '\0' &&
            (oldest[0] == '\0' || strverscmp(version, oldest) < 0))
            oldest = version;
    }
    return oldest;
}

void tow_resource_release_devices(tow_resource_t *resource,
                                  tow_resource_device_t *const *devices,
                                  size_t count)
{
    for (size_t i = 0; i < count; i++) {
        TOW_ASSERT(devices[i]->slice_count > 0);
        devices[i]->slice_count--;
    }
    /* Devices of one worker are adjacent, so each is visited about once; the
     * entry may be freed by this. */
    for (size_t i = 0; i < count;) {
        tow_resource_worker_t *worker = devices[i]->worker;
        while (i < count && devices[i]->worker == worker)
            i++;
        bool appears_later = false;
        for (size_t j = i; j < count && worker->disconnected; j++)
            appears_later |= devices[j]->worker == worker;
        if (!appears_later) tow_resource_discard_if_unused(resource, worker);
    }
}
