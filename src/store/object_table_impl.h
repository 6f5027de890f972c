/* Declarations shared by the files of the object table. */
#ifndef TOW_STORE_OBJECT_TABLE_IMPL_H_
#define TOW_STORE_OBJECT_TABLE_IMPL_H_

#include "base/map.h"
#include "base/pool.h"
#include "base/vec.h"
#include "store/object_table.h"

/* One client's objects. Created with the first; stays, empty or not, until the
 * client is released and its last object has been removed. */
typedef struct object_table_client {
    uint32_t number;
    bool released;
    uint64_t object_count;
    uint64_t discarded_count;
    tow_list_t objects; /* in the order in which they were added */
} object_table_client_t;

struct tow_object_table {
    tow_object_table_options_t options;
    tow_map_t objects;             /* by id; lent by the pool */
    tow_map_t clients;             /* by number; lent by the pool */
    object_table_client_t *recent; /* found by the last look-up; may be NULL */
    tow_pool_t object_pool;
    tow_pool_t client_pool;
    tow_pool_t account_pool;
    TOW_VEC(tow_account_t *) accounts;  /* lent by the pool */
    TOW_VEC(tow_host_memory_t *) hosts; /* owned; by number - 1 */
    tow_list_t placements;              /* counted by others */
};

#define OBJECT_OF_OWNER(link) TOW_CONTAINER_OF(link, tow_object_t, of_owner)
#define PLACEMENT_OF_LEDGER(link) \
    TOW_CONTAINER_OF(link, tow_placement_t, of_ledger_)

/* -- object_table_memory.c ------------------------------------------------- */

void tow_object_uncount_bytes(tow_object_t *object);
/* Uncounts its bytes of host memory, whatever its state. */
void tow_object_uncount_host(tow_object_table_t *object_table,
                             const tow_object_t *object);
/* Of one shard in host memory. */
uint64_t tow_object_host_bytes(const tow_object_t *object);
/* NULL: none. */
static inline tow_host_memory_t *tow_account_host(
    const tow_object_table_t *object_table, const tow_account_t *account)
{
    return account->host != 0 ? object_table->hosts.items[account->host - 1]
                              : NULL;
}
/* Closes it and marks every placement that has it as disconnected. */
void tow_account_close(tow_object_table_t *object_table, tow_account_t *account,
                       tow_status_t cause);

#endif /* TOW_STORE_OBJECT_TABLE_IMPL_H_ */
