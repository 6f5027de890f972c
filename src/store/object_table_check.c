/* The invariants of the object table: recomputes every sum and mark from the
 * objects and placements. */
#include <inttypes.h>

#include "store/object_table_impl.h"

#define FAULT(...) TOW_ERROR(TOW_INTERNAL, __VA_ARGS__)

static tow_status_t check_placement(const tow_placement_t *placement)
{
    bool lost = false;
    for (size_t i = 0; i < placement->device_count; i++)
        lost |= placement->accounts[i]->closed;
    if (placement->reference_count == 0)
        return FAULT("a placement without references is still listed");
    if (lost != placement->disconnected)
        return FAULT("a placement is marked %s, its accounts are not",
                     placement->disconnected ? "disconnected" : "connected");
    if (placement->disconnected != (placement->error != TOW_OK))
        return FAULT("a placement's mark and its error disagree");
    return TOW_OK;
}

static const char *fault_of_object(const tow_object_t *object)
{
    bool is_lost = object->placement != NULL && object->placement->disconnected;
    bool is_failed = object->state == TOW_OBJECT_FAILED;
    if (is_failed != (object->error != TOW_OK))
        return "its state and its error disagree";
    if (is_lost && !is_failed)
        return "its placement has disconnected, but it has not failed";
    if (object->residence == TOW_SPILLED && object->counted)
        return "it is spilled, but counted on its devices";
    if ((object->residence == TOW_SPILLING ||
         object->residence == TOW_RETURNING) &&
        !object->counted)
        return "it moves, but is not counted on its devices";
    if (object->discarded) {
        if (object->hold_count > 0) return "it is discarded, but held";
        if (object->counted) return "it is discarded, but counted";
        if (!object->has_handle || !object->consumed)
            return "it is discarded without a handle, but its record is listed";
        return NULL;
    }
    bool is_wanted = object->has_handle && !object->consumed;
    if (object->hold_count == 0 && !is_wanted)
        return "it has no holds, but is not discarded";
    return NULL;
}

static tow_status_t check_object(const tow_object_table_t *object_table,
                                 const tow_object_t *object)
{
    const char *fault = fault_of_object(object);
    if (tow_map_find(&object_table->objects, object->id.value) != object)
        fault = "it is not found by its id";
    if (fault == NULL) return TOW_OK;
    return FAULT("object %" PRIu64 " of client %" PRIu32 ": %s",
                 tow_key_id(object->id.value), tow_key_client(object->id.value),
                 fault);
}

static tow_status_t check_client(const tow_object_table_t *object_table,
                                 const object_table_client_t *client)
{
    uint64_t object_count = 0;
    uint64_t discarded_count = 0;
    for (const tow_list_t *link = client->objects.next;
         link != &client->objects; link = link->next) {
        const tow_object_t *object = OBJECT_OF_OWNER(link);
        if (object->owner_ != client)
            return FAULT("an object is on the list of client %" PRIu32
                         ", which does not own it",
                         client->number);
        TOW_RETURN_IF_ERROR(check_object(object_table, object));
        object_count++;
        discarded_count += object->discarded;
    }
    if (object_count != client->object_count ||
        discarded_count != client->discarded_count)
        return FAULT("client %" PRIu32 " has %" PRIu64 " objects, %" PRIu64
                     " discarded; the record says %" PRIu64 " and %" PRIu64,
                     client->number, object_count, discarded_count,
                     client->object_count, client->discarded_count);
    if (client->released && object_count == 0)
        return FAULT("client %" PRIu32
                     " is released and empty, but still listed",
                     client->number);
    return TOW_OK;
}

static tow_status_t check_clients(const tow_object_table_t *object_table)
{
    uint64_t object_count = 0;
    size_t cursor = 0;
    uint64_t number;
    void *client;
    while (tow_map_next(&object_table->clients, &cursor, &number, &client)) {
        TOW_RETURN_IF_ERROR(check_client(object_table, client));
        object_count += ((object_table_client_t *)client)->object_count;
    }
    if (object_count != tow_map_count(&object_table->objects))
        return FAULT("clients have %" PRIu64 " objects, the table has %zu",
                     object_count, tow_map_count(&object_table->objects));
    return TOW_OK;
}

typedef enum side {
    OBJECTS,
    SPILLED,
    RESERVATIONS
} side_t;

static const char *const side_names[] = {"objects", "spilled objects",
                                         "reservations"};

static uint64_t booked(const tow_account_t *account, side_t side)
{
    switch (side) {
    case OBJECTS: return account->object_bytes;
    case SPILLED: return account->spilled_bytes;
    default: return account->reserved_bytes;
    }
}

static void add_to_scratch(const tow_placement_t *placement, uint64_t bytes)
{
    for (size_t i = 0; i < placement->device_count; i++)
        placement->accounts[i]->scratch_bytes_ += bytes;
}

static void sum_up(const tow_object_table_t *object_table, side_t side)
{
    size_t cursor = 0;
    uint64_t key;
    void *found;
    if (side == RESERVATIONS) {
        for (tow_list_t *link = object_table->placements.next;
             link != &object_table->placements; link = link->next) {
            tow_placement_t *placement = PLACEMENT_OF_LEDGER(link);
            add_to_scratch(placement, placement->reserved_bytes);
        }
        return;
    }
    while (tow_map_next(&object_table->objects, &cursor, &key, &found)) {
        const tow_object_t *object = found;
        if (side == OBJECTS && object->counted)
            add_to_scratch(object->placement, object->bytes);
        if (side == SPILLED && object->residence != TOW_ON_DEVICE)
            add_to_scratch(object->placement, tow_object_host_bytes(object));
    }
}

/* Clears the scratch fields in any case. */
static tow_status_t check_accounts(const tow_object_table_t *object_table,
                                   side_t side)
{
    tow_status_t status = TOW_OK;
    sum_up(object_table, side);
    for (size_t i = 0; i < object_table->accounts.count; i++) {
        tow_account_t *account = object_table->accounts.items[i];
        uint64_t sum = account->closed ? 0 : account->scratch_bytes_;
        account->scratch_bytes_ = 0;
        if (status != TOW_OK || sum == booked(account, side)) continue;
        status = FAULT("account %zu: %s have %" PRIu64
                       " bytes, the record says %" PRIu64,
                       i, side_names[side], sum, booked(account, side));
    }
    return status;
}

static void add_to_hosts(const tow_object_table_t *object_table,
                         const tow_object_t *object)
{
    const uint64_t bytes = tow_object_host_bytes(object);
    for (size_t i = 0; i < object->placement->device_count; i++) {
        tow_host_memory_t *host =
            tow_account_host(object_table, object->placement->accounts[i]);
        if (host != NULL && !host->closed) host->scratch_bytes_ += bytes;
    }
}

/* Clears the scratch fields in any case. */
static tow_status_t check_hosts(const tow_object_table_t *object_table)
{
    tow_status_t status = TOW_OK;
    size_t cursor = 0;
    for (const tow_object_t *object;
         (object = tow_object_table_next(object_table, &cursor)) != NULL;)
        if (object->residence != TOW_ON_DEVICE)
            add_to_hosts(object_table, object);
    for (size_t i = 0; i < object_table->hosts.count; i++) {
        tow_host_memory_t *host = object_table->hosts.items[i];
        const uint64_t sum = host->scratch_bytes_;
        host->scratch_bytes_ = 0;
        if (status != TOW_OK) continue;
        if (sum != host->spilled_bytes)
            status = FAULT("host %u: spilled objects have %" PRIu64
                           " bytes, the record says %" PRIu64,
                           host->number, sum, host->spilled_bytes);
        else if (sum > host->limit_bytes || sum > host->peak_bytes)
            status = FAULT("host %u: %" PRIu64
                           " bytes are spilled, the limit is %" PRIu64,
                           host->number, sum, host->limit_bytes);
    }
    return status;
}

static tow_status_t check_peaks(const tow_object_table_t *object_table)
{
    for (size_t i = 0; i < object_table->accounts.count; i++) {
        const tow_account_t *account = object_table->accounts.items[i];
        if (account->object_bytes + account->reserved_bytes >
            account->peak_bytes)
            return FAULT("account %zu: more bytes are in use than its peak", i);
    }
    return TOW_OK;
}

tow_status_t tow_object_table_check(const tow_object_table_t *object_table)
{
    for (const tow_list_t *link = object_table->placements.next;
         link != &object_table->placements; link = link->next)
        TOW_RETURN_IF_ERROR(check_placement(PLACEMENT_OF_LEDGER(link)));
    TOW_RETURN_IF_ERROR(check_clients(object_table));
    TOW_RETURN_IF_ERROR(check_accounts(object_table, OBJECTS));
    TOW_RETURN_IF_ERROR(check_accounts(object_table, SPILLED));
    TOW_RETURN_IF_ERROR(check_accounts(object_table, RESERVATIONS));
    TOW_RETURN_IF_ERROR(check_hosts(object_table));
    return check_peaks(object_table);
}
