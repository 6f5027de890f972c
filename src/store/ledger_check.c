/* Do the books balance? Everything that the ledger keeps as a sum or as a mark
 * is worked out again from the objects and placements. */
#include <inttypes.h>

#include "store/ledger_impl.h"

#define FAULT(...) TOW_ERROR(TOW_INTERNAL, __VA_ARGS__)

static tow_status_t check_placement(const tow_placement_t *placement)
{
    bool lost = false;
    for (size_t i = 0; i < placement->device_count; i++)
        lost |= placement->accounts[i]->closed;
    if (placement->reference_count == 0)
        return FAULT("a placement that nobody counts is still there");
    if (lost != placement->lost)
        return FAULT("a placement is marked %s, its devices say otherwise",
                     placement->lost ? "lost" : "whole");
    if (placement->lost != (placement->error != TOW_OK))
        return FAULT("a placement's loss and its error disagree");
    return TOW_OK;
}

static const char *fault_of_object(const tow_object_t *object)
{
    bool is_lost = object->placement != NULL && object->placement->lost;
    bool is_failed = object->state == TOW_OBJECT_FAILED;
    if (is_failed != (object->error != TOW_OK))
        return "its state and its error disagree";
    if (is_lost && !is_failed)
        return "its placement is lost, it has not failed";
    if (object->residence == TOW_SPILLED && object->counted)
        return "it was spilled, and its devices have its bytes";
    if ((object->residence == TOW_SPILLING ||
         object->residence == TOW_RETURNING) &&
        !object->counted)
        return "it moves, and its devices do not have its bytes";
    if (object->dropped) {
        if (object->hold_count > 0) return "it was dropped, and is held";
        if (object->counted) return "it was dropped, and is counted";
        if (!object->has_handle || !object->consumed)
            return "it was dropped, and its record is still there";
        return NULL;
    }
    bool is_wanted = object->has_handle && !object->consumed;
    if (object->hold_count == 0 && !is_wanted)
        return "nobody holds it, and it was not dropped";
    return NULL;
}

static tow_status_t check_object(const tow_ledger_t *ledger,
                                 const tow_object_t *object)
{
    const char *fault = fault_of_object(object);
    if (tow_map_find(&ledger->objects, object->id.value) != object)
        fault = "it is not found by its id";
    if (fault == NULL) return TOW_OK;
    return FAULT("object %" PRIu64 " of client %" PRIu32 ": %s",
                 tow_key_id(object->id.value), tow_key_client(object->id.value),
                 fault);
}

static tow_status_t check_client(const tow_ledger_t *ledger,
                                 const ledger_client_t *client)
{
    uint64_t object_count = 0;
    uint64_t dropped_count = 0;
    for (const tow_list_t *link = client->objects.next;
         link != &client->objects; link = link->next) {
        const tow_object_t *object = OBJECT_OF_OWNER(link);
        if (object->owner_ != client)
            return FAULT("an object is on the list of client %" PRIu32
                         ", which does not own it",
                         client->number);
        TOW_RETURN_IF_ERROR(check_object(ledger, object));
        object_count++;
        dropped_count += object->dropped;
    }
    if (object_count != client->object_count ||
        dropped_count != client->dropped_count)
        return FAULT("client %" PRIu32 " has %" PRIu64 " objects, %" PRIu64
                     " dropped; the books say %" PRIu64 " and %" PRIu64,
                     client->number, object_count, dropped_count,
                     client->object_count, client->dropped_count);
    if (client->released && object_count == 0)
        return FAULT("client %" PRIu32
                     " is released and empty, and still there",
                     client->number);
    return TOW_OK;
}

static tow_status_t check_clients(const tow_ledger_t *ledger)
{
    uint64_t object_count = 0;
    size_t cursor = 0;
    uint64_t number;
    void *client;
    while (tow_map_next(&ledger->clients, &cursor, &number, &client)) {
        TOW_RETURN_IF_ERROR(check_client(ledger, client));
        object_count += ((ledger_client_t *)client)->object_count;
    }
    if (object_count != tow_map_count(&ledger->objects))
        return FAULT("clients have %" PRIu64 " objects, there are %zu",
                     object_count, tow_map_count(&ledger->objects));
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

static void sum_up(const tow_ledger_t *ledger, side_t side)
{
    size_t cursor = 0;
    uint64_t key;
    void *found;
    if (side == RESERVATIONS) {
        for (tow_list_t *link = ledger->placements.next;
             link != &ledger->placements; link = link->next) {
            tow_placement_t *placement = PLACEMENT_OF_LEDGER(link);
            add_to_scratch(placement, placement->reserved_bytes);
        }
        return;
    }
    while (tow_map_next(&ledger->objects, &cursor, &key, &found)) {
        const tow_object_t *object = found;
        if (side == OBJECTS && object->counted)
            add_to_scratch(object->placement, object->bytes);
        if (side == SPILLED && object->residence != TOW_ON_DEVICE)
            add_to_scratch(object->placement, tow_object_host_bytes(object));
    }
}

/* Clears the scratch whatever it finds. */
static tow_status_t check_accounts(const tow_ledger_t *ledger, side_t side)
{
    tow_status_t status = TOW_OK;
    sum_up(ledger, side);
    for (size_t i = 0; i < ledger->accounts.count; i++) {
        tow_account_t *account = ledger->accounts.items[i];
        uint64_t sum = account->closed ? 0 : account->scratch_bytes_;
        account->scratch_bytes_ = 0;
        if (status != TOW_OK || sum == booked(account, side)) continue;
        status = FAULT("account %zu: %s have %" PRIu64
                       " bytes, the books say %" PRIu64,
                       i, side_names[side], sum, booked(account, side));
    }
    return status;
}

static void add_to_hosts(const tow_ledger_t *ledger, const tow_object_t *object)
{
    const uint64_t bytes = tow_object_host_bytes(object);
    for (size_t i = 0; i < object->placement->device_count; i++) {
        tow_host_t *host =
            tow_account_host(ledger, object->placement->accounts[i]);
        if (host != NULL && !host->closed) host->scratch_bytes_ += bytes;
    }
}

/* Clears the scratch whatever it finds. */
static tow_status_t check_hosts(const tow_ledger_t *ledger)
{
    tow_status_t status = TOW_OK;
    size_t cursor = 0;
    for (const tow_object_t *object;
         (object = tow_ledger_next(ledger, &cursor)) != NULL;)
        if (object->residence != TOW_ON_DEVICE) add_to_hosts(ledger, object);
    for (size_t i = 0; i < ledger->hosts.count; i++) {
        tow_host_t *host = ledger->hosts.items[i];
        const uint64_t sum = host->scratch_bytes_;
        host->scratch_bytes_ = 0;
        if (status != TOW_OK) continue;
        if (sum != host->spilled_bytes)
            status = FAULT("host %u: spilled objects have %" PRIu64
                           " bytes, the books say %" PRIu64,
                           host->number, sum, host->spilled_bytes);
        else if (sum > host->limit_bytes || sum > host->peak_bytes)
            status = FAULT("host %u: %" PRIu64
                           " bytes are spilled, and %" PRIu64 " may be",
                           host->number, sum, host->limit_bytes);
    }
    return status;
}

static tow_status_t check_peaks(const tow_ledger_t *ledger)
{
    for (size_t i = 0; i < ledger->accounts.count; i++) {
        const tow_account_t *account = ledger->accounts.items[i];
        if (account->object_bytes + account->reserved_bytes >
            account->peak_bytes)
            return FAULT("account %zu: more than its peak is in use", i);
    }
    return TOW_OK;
}

tow_status_t tow_ledger_check(const tow_ledger_t *ledger)
{
    for (const tow_list_t *link = ledger->placements.next;
         link != &ledger->placements; link = link->next)
        TOW_RETURN_IF_ERROR(check_placement(PLACEMENT_OF_LEDGER(link)));
    TOW_RETURN_IF_ERROR(check_clients(ledger));
    TOW_RETURN_IF_ERROR(check_accounts(ledger, OBJECTS));
    TOW_RETURN_IF_ERROR(check_accounts(ledger, SPILLED));
    TOW_RETURN_IF_ERROR(check_accounts(ledger, RESERVATIONS));
    TOW_RETURN_IF_ERROR(check_hosts(ledger));
    return check_peaks(ledger);
}
