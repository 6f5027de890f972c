/* Objects and their holds. Records come from a pool and are found through a map
 * by id. Each client has a list of its own objects in the order in which it
 * created them, so that all of them can be discarded at once, in the same order
 * every time. */
#include "store/object_table.h"

#include <inttypes.h>
#include <string.h>

#include "base/alloc.h"
#include "base/assert.h"
#include "store/object_table_impl.h"
#include "store/tuning.h"

/* Ids as clients count them: each kind from 1. */
#define ID_FORMAT   "object %" PRIu64 " of client %" PRIu32
#define ID_ARGS(id) tow_key_id((id).value), tow_key_client((id).value)

/* -- Creating and destroying the table ------------------------------------- */

tow_status_t tow_object_table_create(const tow_object_table_options_t *options,
                                     tow_object_table_t **out_ledger)
{
    *out_ledger = NULL;
    tow_object_table_t *object_table = tow_calloc(1, sizeof(*object_table));
    if (object_table == NULL) return tow_status_bare(TOW_RESOURCE_EXHAUSTED);
    object_table->options = *options;
    if (object_table->options.object_count_max == 0)
        object_table->options.object_count_max =
            TOW_OBJECT_TABLE_OBJECT_COUNT_MAX;
    tow_pool_init(&object_table->object_pool, sizeof(tow_object_t), 0);
    tow_pool_init(&object_table->client_pool, sizeof(object_table_client_t), 0);
    tow_pool_init(&object_table->account_pool, sizeof(tow_account_t), 0);
    tow_list_init(&object_table->placements);
    *out_ledger = object_table;
    return TOW_OK;
}

static void free_object_parts(tow_object_t *object)
{
    tow_status_release(object->error);
    if (object->placement != NULL) tow_placement_release(object->placement);
}

void tow_object_table_destroy(tow_object_table_t *object_table)
{
    if (object_table == NULL) return;
    size_t cursor = 0;
    uint64_t key;
    void *object;
    while (tow_map_next(&object_table->objects, &cursor, &key, &object))
        free_object_parts(object);
    /* Placements that others still count only lose their accounts. */
    while (tow_list_pop_front(&object_table->placements) != NULL)
        continue;
    tow_map_deinit(&object_table->objects);
    tow_map_deinit(&object_table->clients);
    tow_pool_deinit(&object_table->object_pool);
    tow_pool_deinit(&object_table->client_pool);
    tow_pool_deinit(&object_table->account_pool);
    tow_vec_deinit(&object_table->accounts);
    for (size_t i = 0; i < object_table->hosts.count; i++)
        tow_free(object_table->hosts.items[i]);
    tow_vec_deinit(&object_table->hosts);
    tow_free(object_table);
}

/* -- Clients --------------------------------------------------------------- */

static object_table_client_t *find_client(
    const tow_object_table_t *object_table, uint32_t number)
{
    if (object_table->recent != NULL && object_table->recent->number == number)
        return object_table->recent;
    return tow_map_find(&object_table->clients, number);
}

/* NULL when memory is exhausted. */
static object_table_client_t *add_client(tow_object_table_t *object_table,
                                         uint32_t number)
{
    object_table_client_t *client = tow_pool_take(&object_table->client_pool);
    if (client == NULL) return NULL;
    *client = (object_table_client_t){.number = number};
    tow_list_init(&client->objects);
    if (tow_map_put(&object_table->clients, number, client)) return client;
    tow_pool_give(&object_table->client_pool, client);
    return NULL;
}

static void forget_client_if_done(tow_object_table_t *object_table,
                                  object_table_client_t *client)
{
    if (!client->released || client->object_count > 0) return;
    if (object_table->recent == client) object_table->recent = NULL;
    tow_map_remove(&object_table->clients, client->number);
    tow_pool_give(&object_table->client_pool, client);
}

/* -- Adding objects -------------------------------------------------------- */

static void init_object(tow_object_t *object, object_table_client_t *owner,
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
    /* A shape has room for many more dimensions than arrays have: copy
     * those. */
    TOW_ASSERT(shape->rank <= TOW_RANK_MAX);
    object->shape.type = shape->type;
    object->shape.rank = shape->rank;
    memcpy(object->shape.dims, shape->dims, shape->rank * sizeof(int64_t));
}

static tow_status_t check_new(const tow_object_table_t *object_table,
                              const object_table_client_t *client,
                              tow_object_id_t id)
{
    if (TOW_UNLIKELY(tow_key_id(id.value) == 0))
        return TOW_ERROR(TOW_INVALID_ARGUMENT, ID_FORMAT ": ids begin with 1",
                         ID_ARGS(id));
    if (TOW_UNLIKELY(client->object_count >=
                     object_table->options.object_count_max))
        return TOW_ERROR(TOW_RESOURCE_EXHAUSTED,
                         ID_FORMAT ": the client has %" PRIu64
                                   " objects, and its limit is %" PRIu64
                                   "; release some",
                         ID_ARGS(id), client->object_count,
                         object_table->options.object_count_max);
    if (TOW_UNLIKELY(tow_map_find(&object_table->objects, id.value) != NULL))
        return TOW_ERROR(TOW_ALREADY_EXISTS, ID_FORMAT " exists already",
                         ID_ARGS(id));
    return TOW_OK;
}

tow_status_t tow_object_table_add(tow_object_table_t *object_table,
                                  const tow_object_options_t *options,
                                  tow_object_t **out_object)
{
    TOW_ASSERT(options->state == TOW_OBJECT_ARRIVING ||
               options->state == TOW_OBJECT_PENDING);
    TOW_ASSERT(options->placement != NULL || !options->count_bytes);
    *out_object = NULL;
    uint32_t number = tow_key_client(options->id.value);
    object_table_client_t *client = find_client(object_table, number);
    if (client == NULL) client = add_client(object_table, number);
    if (client == NULL) return tow_status_bare(TOW_RESOURCE_EXHAUSTED);
    object_table->recent = client;
    TOW_RETURN_IF_ERROR(check_new(object_table, client, options->id));

    tow_object_t *object = tow_pool_take(&object_table->object_pool);
    if (object == NULL) return tow_status_bare(TOW_RESOURCE_EXHAUSTED);
    if (!tow_map_put(&object_table->objects, options->id.value, object)) {
        tow_pool_give(&object_table->object_pool, object);
        return tow_status_bare(TOW_RESOURCE_EXHAUSTED);
    }
    init_object(object, client, options);
    tow_list_append(&client->objects, &object->of_owner);
    client->object_count++;
    client->released = false;
    if (object->placement != NULL) tow_placement_retain(object->placement);
    if (options->count_bytes) tow_object_count_bytes(object);
    if (object->placement != NULL && object->placement->disconnected)
        tow_object_fail(object, object->placement->error);
    *out_object = object;
    return TOW_OK;
}

tow_object_t *tow_object_table_find(tow_object_table_t *object_table,
                                    tow_object_id_t id)
{
    return tow_map_find(&object_table->objects, id.value);
}

tow_object_t *tow_object_table_next(const tow_object_table_t *object_table,
                                    size_t *cursor)
{
    uint64_t id;
    void *object = NULL;
    return tow_map_next(&object_table->objects, cursor, &id, &object) ? object
                                                                      : NULL;
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

/* -- Discarding objects ---------------------------------------------------- */

static void forget(tow_object_table_t *object_table, tow_object_t *object)
{
    TOW_ASSERT(object->discarded && object->hold_count == 0);
    object_table_client_t *client = object->owner_;
    tow_map_remove(&object_table->objects, object->id.value);
    tow_list_remove(&object->of_owner);
    client->object_count--;
    free_object_parts(object);
    tow_pool_give(&object_table->object_pool, object);
}

/* The last hold has ended. The record of a consumed object stays for its
 * handle: so using it is told apart from using an unknown id, and releasing it
 * is not a client's mistake. */
static void drop(tow_object_table_t *object_table, tow_object_t *object)
{
    TOW_ASSERT(!object->discarded && object->hold_count == 0);
    object->discarded = true;
    if (object->counted) tow_object_uncount_bytes(object);
    if (TOW_UNLIKELY(object->residence != TOW_ON_DEVICE))
        tow_object_uncount_host(object_table, object);
    if (object_table->options.discarded != NULL)
        object_table->options.discarded(object_table->options.context, object);
    object->residence = TOW_ON_DEVICE;
    if (object->has_handle)
        ((object_table_client_t *)object->owner_)->discarded_count++;
    else
        forget(object_table, object);
}

void tow_object_hold(tow_object_t *object)
{
    TOW_ASSERT(!object->discarded);
    TOW_ASSERT(object->hold_count < UINT32_MAX);
    object->hold_count++;
}

void tow_object_unhold(tow_object_table_t *object_table, tow_object_t *object)
{
    TOW_ASSERT(object->hold_count > 0);
    if (--object->hold_count > 0) return;
    if (object->has_handle && !object->consumed) return;
    object_table_client_t *client = object->owner_;
    drop(object_table, object);
    forget_client_if_done(object_table, client);
}

void tow_object_consume(tow_object_table_t *object_table, tow_object_t *object)
{
    (void)object_table; /* Nothing to count: the bytes stay with the object. */
    TOW_ASSERT(object->hold_count > 0 && !object->discarded);
    object->consumed = true;
}

static void release_handle(tow_object_table_t *object_table,
                           tow_object_t *object)
{
    TOW_ASSERT(object->has_handle);
    object->has_handle = false;
    if (object->discarded) {
        ((object_table_client_t *)object->owner_)->discarded_count--;
        forget(object_table, object);
    } else if (object->hold_count == 0) {
        drop(object_table, object);
    }
}

tow_status_t tow_object_table_release(tow_object_table_t *object_table,
                                      tow_object_id_t id)
{
    tow_object_t *object = tow_map_find(&object_table->objects, id.value);
    if (TOW_UNLIKELY(object == NULL || !object->has_handle))
        return TOW_ERROR(TOW_NOT_FOUND,
                         ID_FORMAT ": no such handle to release: it was "
                                   "released before, or never created",
                         ID_ARGS(id));
    release_handle(object_table, object);
    return TOW_OK;
}

static void move_all(tow_list_t *to, tow_list_t *from)
{
    for (tow_list_t *link; (link = tow_list_pop_front(from)) != NULL;)
        tow_list_append(to, link);
}

void tow_object_table_release_client(tow_object_table_t *object_table,
                                     uint32_t number)
{
    object_table_client_t *client = find_client(object_table, number);
    if (client == NULL) return;
    /* The callback may end holds of other objects: between two objects only the
     * list of those not yet visited is kept. */
    tow_list_t unseen;
    tow_list_init(&unseen);
    move_all(&unseen, &client->objects);
    for (tow_list_t *link; (link = tow_list_pop_front(&unseen)) != NULL;) {
        tow_object_t *object = OBJECT_OF_OWNER(link);
        tow_list_append(&client->objects, link);
        if (object->has_handle) release_handle(object_table, object);
    }
    client->released = true;
    forget_client_if_done(object_table, client);
}

void tow_object_table_on_disconnect(tow_object_table_t *object_table,
                                    tow_account_t *account, tow_status_t cause)
{
    if (account->closed) return;
    tow_account_close(object_table, account, cause);
    size_t cursor = 0;
    uint64_t id;
    void *found;
    while (tow_map_next(&object_table->objects, &cursor, &id, &found)) {
        tow_object_t *object = found;
        /* Objects on a placement that disconnected earlier have failed
         * already. */
        if (object->placement != NULL && object->placement->disconnected)
            tow_object_fail(object, cause);
    }
}

/* -- Totals ---------------------------------------------------------------- */

tow_object_table_totals_t tow_object_table_client_totals(
    const tow_object_table_t *object_table, uint32_t number)
{
    tow_object_table_totals_t totals = {0};
    const object_table_client_t *client = find_client(object_table, number);
    if (client == NULL) return totals;
    totals.object_count = client->object_count;
    totals.discarded_count = client->discarded_count;
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

tow_object_table_totals_t tow_object_table_totals(
    const tow_object_table_t *object_table)
{
    tow_object_table_totals_t totals = {
        .object_count = tow_map_count(&object_table->objects)};
    for (size_t i = 0; i < object_table->accounts.count; i++) {
        totals.object_bytes += object_table->accounts.items[i]->object_bytes;
        totals.reserved_bytes +=
            object_table->accounts.items[i]->reserved_bytes;
    }
    for (size_t i = 0; i < object_table->hosts.count; i++)
        totals.spilled_bytes += object_table->hosts.items[i]->spilled_bytes;
    size_t cursor = 0;
    uint64_t number;
    void *client;
    while (tow_map_next(&object_table->clients, &cursor, &number, &client))
        totals.discarded_count +=
            ((object_table_client_t *)client)->discarded_count;
    return totals;
}
