/* What the files of the ledger share. */
#ifndef TOW_STORE_LEDGER_IMPL_H_
#define TOW_STORE_LEDGER_IMPL_H_

#include "base/map.h"
#include "base/pool.h"
#include "base/vec.h"
#include "store/ledger.h"

/* One client's objects. Made with its first; stays, empty or not, until the
 * client is released and its last object has gone. */
typedef struct ledger_client {
    uint32_t number;
    bool released;
    uint64_t object_count;
    uint64_t dropped_count;
    tow_list_t objects; /* in the order in which they were added */
} ledger_client_t;

struct tow_ledger {
    tow_ledger_options_t options;
    tow_map_t objects;       /* by id; lent by the pool */
    tow_map_t clients;       /* by number; lent by the pool */
    ledger_client_t *recent; /* whom the last look-up found; may be NULL */
    tow_pool_t object_pool;
    tow_pool_t client_pool;
    tow_pool_t account_pool;
    TOW_VEC(tow_account_t *) accounts; /* lent by the pool */
    TOW_VEC(tow_host_t *) hosts;       /* owned; by number - 1 */
    tow_list_t placements;             /* counted by others */
};

#define OBJECT_OF_OWNER(link) TOW_CONTAINER_OF(link, tow_object_t, of_owner)
#define PLACEMENT_OF_LEDGER(link) \
    TOW_CONTAINER_OF(link, tow_placement_t, of_ledger_)

/* -- ledger_memory.c ---------------------------------------------------------- */

void tow_object_uncount_bytes(tow_object_t *object);
/* What it has of hosts, whatever became of it. */
void tow_object_uncount_host(tow_ledger_t *ledger, const tow_object_t *object);
/* Of one shard in host memory. */
uint64_t tow_object_host_bytes(const tow_object_t *object);
/* NULL: none. */
static inline tow_host_t *tow_account_host(const tow_ledger_t *ledger,
                                           const tow_account_t *account)
{
    return account->host != 0 ? ledger->hosts.items[account->host - 1] : NULL;
}
/* Closes it and marks every placement with it as lost. */
void tow_account_close(tow_ledger_t *ledger, tow_account_t *account,
                       tow_status_t cause);

#endif /* TOW_STORE_LEDGER_IMPL_H_ */
