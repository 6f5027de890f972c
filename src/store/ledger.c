/* Objects and who holds them. Records come from a pool and are found through a
 * map by id; each client has its own in a list, in the order in which it made
 * them, so that all of them can go at once and in the same order every time. */
#include "store/ledger.h"

#include <inttypes.h>
#include <string.h>

#include "base/alloc.h"
#include "base/assert.h"
#include "store/ledger_impl.h"
#include "store/tuning.h"

/* Said as clients count: every kind of thing from 1. */
#define ID_FORMAT   "object %" PRIu64 " of client %" PRIu32
#define ID_ARGS(id) tow_key_id((id).value), tow_key_client((id).value)

/* -- The ledger --------------------------------------------------------------- */

tow_status_t tow_ledger_create(const tow_ledger_options_t *options,
                               tow_ledger_t **out_ledger)
{
    *out_ledger = NULL;
    tow_ledger_t *ledger = tow_calloc(1, sizeof(*ledger));
    if (ledger == NULL) return tow_status_bare(TOW_RESOURCE_EXHAUSTED);
    ledger->options = *options;
    if (ledger->options.object_count_max == 0)
        ledger->options.object_count_max = TOW_LEDGER_OBJECT_COUNT_MAX;
    tow_pool_init(&ledger->object_pool, sizeof(tow_object_t), 0);
    tow_pool_init(&ledger->client_pool, sizeof(ledger_client_t), 0);
    tow_pool_init(&ledger->account_pool, sizeof(tow_account_t), 0);
    tow_list_init(&ledger->placements);
    *out_ledger = ledger;
    return TOW_OK;
}

static void free_object_parts(tow_object_t *object)
{
    tow_status_release(object->error);
    if (object->placement != NULL) tow_placement_release(object->placement);
}

void tow_ledger_destroy(tow_ledger_t *ledger)
{
    if (ledger == NULL) return;
    size_t cursor = 0;
    uint64_t key;
    void *object;
    while (tow_map_next(&ledger->objects, &cursor, &key, &object))
        free_object_parts(object);
    /* Placements that others still count lose their accounts, not more. */
    while (tow_list_pop_front(&ledger->placements) != NULL)
        continue;
    tow_map_deinit(&ledger->objects);
    tow_map_deinit(&ledger->clients);
    tow_pool_deinit(&ledger->object_pool);
    tow_pool_deinit(&ledger->client_pool);
    tow_pool_deinit(&ledger->account_pool);
    tow_vec_deinit(&ledger->accounts);
    for (size_t i = 0; i < ledger->hosts.count; i++)
        tow_free(ledger->hosts.items[i]);
    tow_vec_deinit(&ledger->hosts);
    tow_free(ledger);
}

/* -- Clients ------------------------------------------------------------------ */

static ledger_client_t *find_client(const tow_ledger_t *ledger, uint32_t number)
{
    if (ledger->recent != NULL && ledger->recent->number == number)
        return ledger->recent;
    return tow_map_find(&ledger->clients, number);
}

/* NULL when memory is exhausted. */
static ledger_client_t *add_client(tow_ledger_t *ledger, uint32_t number)
{
    ledger_client_t *client = tow_pool_take(&ledger->client_pool);
    if (client == NULL) return NULL;
    *client = (ledger_client_t){.number = number};
    tow_list_init(&client->objects);
    if (tow_map_put(&ledger->clients, number, client)) return client;
    tow_pool_give(&ledger->client_pool, client);
    return NULL;
}

static void forget_client_if_done(tow_ledger_t *ledger, ledger_client_t *client)
{
    if (!client->released || client->object_count > 0) return;
    if (ledger->recent == client) ledger->recent = NULL;
    tow_map_remove(&ledger->clients, client->number);
    tow_pool_give(&ledger->client_pool, client);
}

/* -- Objects come ------------------------------------------------------------- */

static void init_object(tow_object_t *object, ledger_client_t *owner,
                        const tow_object_options_t *options)
{
    const tow_shape_t *shape = &options->shape;
    memset(object, 0, offsetof(tow_object_t, shape));
    object->id = options->id;
    object->state = options->state;
    object->has_handle = true;
    object->bytes = options->bytes;
    object->owner_ = owner;
    object->placement = options->placement;
    /* A shape has room for many more dimensions than arrays have: copy those. */
    TOW_ASSERT(shape->rank <= TOW_RANK_MAX);
    object->shape.type = shape->type;
    object->shape.rank = shape->rank;
    memcpy(object->shape.dims, shape->dims, shape->rank * sizeof(int64_t));
}

static tow_status_t check_new(const tow_ledger_t *ledger,
                              const ledger_client_t *client, tow_object_id_t id)
{
    if (TOW_UNLIKELY(tow_key_id(id.value) == 0))
        return TOW_ERROR(TOW_INVALID_ARGUMENT, ID_FORMAT ": ids begin with 1",
                         ID_ARGS(id));
    if (TOW_UNLIKELY(client->object_count >= ledger->options.object_count_max))
        return TOW_ERROR(TOW_RESOURCE_EXHAUSTED,
                         ID_FORMAT ": the client has %" PRIu64
                                   " objects already, and may have no more; "
                                   "release some",
                         ID_ARGS(id), client->object_count);
    if (TOW_UNLIKELY(tow_map_find(&ledger->objects, id.value) != NULL))
        return TOW_ERROR(TOW_ALREADY_EXISTS, ID_FORMAT " exists already",
                         ID_ARGS(id));
    return TOW_OK;
}

tow_status_t tow_ledger_add(tow_ledger_t *ledger,
                            const tow_object_options_t *options,
                            tow_object_t **out_object)
{
    TOW_ASSERT(options->state == TOW_OBJECT_ARRIVING ||
               options->state == TOW_OBJECT_PENDING);
    TOW_ASSERT(options->placement != NULL || !options->count_bytes);
    *out_object = NULL;
    uint32_t number = tow_key_client(options->id.value);
    ledger_client_t *client = find_client(ledger, number);
    if (client == NULL) client = add_client(ledger, number);
    if (client == NULL) return tow_status_bare(TOW_RESOURCE_EXHAUSTED);
    ledger->recent = client;
    TOW_RETURN_IF_ERROR(check_new(ledger, client, options->id));

    tow_object_t *object = tow_pool_take(&ledger->object_pool);
    if (object == NULL) return tow_status_bare(TOW_RESOURCE_EXHAUSTED);
    if (!tow_map_put(&ledger->objects, options->id.value, object)) {
        tow_pool_give(&ledger->object_pool, object);
        return tow_status_bare(TOW_RESOURCE_EXHAUSTED);
    }
    init_object(object, client, options);
    tow_list_append(&client->objects, &object->of_owner);
    client->object_count++;
    client->released = false;
    if (object->placement != NULL) tow_placement_retain(object->placement);
    if (options->count_bytes) tow_object_count_bytes(object);
    if (object->placement != NULL && object->placement->lost)
        tow_object_fail(object, object->placement->error);
    *out_object = object;
    return TOW_OK;
}

tow_object_t *tow_ledger_find(tow_ledger_t *ledger, tow_object_id_t id)
{
    return tow_map_find(&ledger->objects, id.value);
}

tow_object_t *tow_ledger_next(const tow_ledger_t *ledger, size_t *cursor)
{
    uint64_t id;
    void *object = NULL;
    return tow_map_next(&ledger->objects, cursor, &id, &object) ? object : NULL;
}

void tow_object_set_ready(tow_object_t *object)
{
    if (object->state == TOW_OBJECT_FAILED) return;
    object->state = TOW_OBJECT_READY;
}

void tow_object_fail(tow_object_t *object, tow_status_t cause)
{
    TOW_ASSERT(cause != TOW_OK);
    if (object->state == TOW_OBJECT_FAILED) return;
    object->state = TOW_OBJECT_FAILED;
    object->error = tow_status_retain(cause);
}

/* -- Objects go --------------------------------------------------------------- */

static void forget(tow_ledger_t *ledger, tow_object_t *object)
{
    TOW_ASSERT(object->dropped && object->hold_count == 0);
    ledger_client_t *client = object->owner_;
    tow_map_remove(&ledger->objects, object->id.value);
    tow_list_remove(&object->of_owner);
    client->object_count--;
    free_object_parts(object);
    tow_pool_give(&ledger->object_pool, object);
}

/* Nobody holds it. The record of a consumed one stays for its handle, so that
 * using it is told from using an id that never was, and releasing it is not a
 * client's mistake. */
static void drop(tow_ledger_t *ledger, tow_object_t *object)
{
    TOW_ASSERT(!object->dropped && object->hold_count == 0);
    object->dropped = true;
    if (object->counted) tow_object_uncount_bytes(object);
    if (TOW_UNLIKELY(object->residence != TOW_ON_DEVICE))
        tow_object_uncount_host(ledger, object);
    if (ledger->options.dropped != NULL)
        ledger->options.dropped(ledger->options.context, object);
    object->residence = TOW_ON_DEVICE;
    if (object->has_handle)
        ((ledger_client_t *)object->owner_)->dropped_count++;
    else
        forget(ledger, object);
}

void tow_object_hold(tow_object_t *object)
{
    TOW_ASSERT(!object->dropped);
    TOW_ASSERT(object->hold_count < UINT32_MAX);
    object->hold_count++;
}

void tow_object_unhold(tow_ledger_t *ledger, tow_object_t *object)
{
    TOW_ASSERT(object->hold_count > 0);
    if (--object->hold_count > 0) return;
    if (object->has_handle && !object->consumed) return;
    ledger_client_t *client = object->owner_;
    drop(ledger, object);
    forget_client_if_done(ledger, client);
}

void tow_object_consume(tow_ledger_t *ledger, tow_object_t *object)
{
    (void)ledger; /* Nothing to book: the bytes stay with the object. */
    TOW_ASSERT(object->hold_count > 0 && !object->dropped);
    object->consumed = true;
}

static void release_handle(tow_ledger_t *ledger, tow_object_t *object)
{
    TOW_ASSERT(object->has_handle);
    object->has_handle = false;
    if (object->dropped) {
        ((ledger_client_t *)object->owner_)->dropped_count--;
        forget(ledger, object);
    } else if (object->hold_count == 0) {
        drop(ledger, object);
    }
}

tow_status_t tow_ledger_release(tow_ledger_t *ledger, tow_object_id_t id)
{
    tow_object_t *object = tow_map_find(&ledger->objects, id.value);
    if (TOW_UNLIKELY(object == NULL || !object->has_handle))
        return TOW_ERROR(TOW_NOT_FOUND,
                         ID_FORMAT ": there is none to release: it was "
                                   "released before, or never made",
                         ID_ARGS(id));
    release_handle(ledger, object);
    return TOW_OK;
}

static void move_all(tow_list_t *to, tow_list_t *from)
{
    for (tow_list_t *link; (link = tow_list_pop_front(from)) != NULL;)
        tow_list_append(to, link);
}

void tow_ledger_release_client(tow_ledger_t *ledger, uint32_t number)
{
    ledger_client_t *client = find_client(ledger, number);
    if (client == NULL) return;
    /* Whoever hears of a drop may give up holds of others: nothing is
     * remembered from one to the next but the list of those not yet seen. */
    tow_list_t unseen;
    tow_list_init(&unseen);
    move_all(&unseen, &client->objects);
    for (tow_list_t *link; (link = tow_list_pop_front(&unseen)) != NULL;) {
        tow_object_t *object = OBJECT_OF_OWNER(link);
        tow_list_append(&client->objects, link);
        if (object->has_handle) release_handle(ledger, object);
    }
    client->released = true;
    forget_client_if_done(ledger, client);
}

void tow_ledger_lose_account(tow_ledger_t *ledger, tow_account_t *account,
                             tow_status_t cause)
{
    if (account->closed) return;
    tow_account_close(ledger, account, cause);
    size_t cursor = 0;
    uint64_t id;
    void *found;
    while (tow_map_next(&ledger->objects, &cursor, &id, &found)) {
        tow_object_t *object = found;
        /* What lay on a placement lost earlier has failed already. */
        if (object->placement != NULL && object->placement->lost)
            tow_object_fail(object, cause);
    }
}

/* -- Telling ------------------------------------------------------------------ */

tow_ledger_totals_t tow_ledger_client_totals(const tow_ledger_t *ledger,
                                             uint32_t number)
{
    tow_ledger_totals_t totals = {0};
    const ledger_client_t *client = find_client(ledger, number);
    if (client == NULL) return totals;
    totals.object_count = client->object_count;
    totals.dropped_count = client->dropped_count;
    for (const tow_list_t *link = client->objects.next;
         link != &client->objects; link = link->next) {
        const tow_object_t *object = OBJECT_OF_OWNER(link);
        if (!object->counted) continue;
        for (size_t i = 0; i < object->placement->device_count; i++)
            if (!object->placement->accounts[i]->closed)
                totals.object_bytes += object->bytes;
    }
    return totals;
}

tow_ledger_totals_t tow_ledger_totals(const tow_ledger_t *ledger)
{
    tow_ledger_totals_t totals = {.object_count =
                                      tow_map_count(&ledger->objects)};
    for (size_t i = 0; i < ledger->accounts.count; i++) {
        totals.object_bytes += ledger->accounts.items[i]->object_bytes;
        totals.reserved_bytes += ledger->accounts.items[i]->reserved_bytes;
    }
    for (size_t i = 0; i < ledger->hosts.count; i++)
        totals.spilled_bytes += ledger->hosts.items[i]->spilled_bytes;
    size_t cursor = 0;
    uint64_t number;
    void *client;
    while (tow_map_next(&ledger->clients, &cursor, &number, &client))
        totals.dropped_count += ((ledger_client_t *)client)->dropped_count;
    return totals;
}
