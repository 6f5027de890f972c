/* Memory for large shards. Pages that were never touched cost as much as the
 * bytes that are put there: a fault and a clearing each. So large blocks consist
 * of huge pages, and those that come free are kept for the next shard, for as
 * long as shards come and go.
 *
 * With other workers on this host they are memory that these can be shown
 * (base/block.h), as long as there is such, so that a shard travels without being
 * copied. One that somebody may still look at is not kept. */
#ifndef TOW_WORKER_STASH_H_
#define TOW_WORKER_STASH_H_

#include "base/list.h"
#include "env/env.h"

typedef struct tow_stash {
    tow_env_t *env;    /* lent */
    tow_list_t blocks; /* that are free, in themselves; last freed last */
    uint64_t bytes;    /* of them */
    bool shares;       /* new ones may be shown to others */
    tow_timer_t timer; /* when they go */
} tow_stash_t;

void tow_stash_init(tow_stash_t *stash, tow_env_t *env);
/* From now on there is somebody to show them to. */
void tow_stash_share(tow_stash_t *stash);
/* Frees what is kept; what is out may be given to tow_free. */
void tow_stash_deinit(tow_stash_t *stash);
/* The same for a process that has died, at any moment: calls nobody. */
void tow_stash_forget(tow_stash_t *stash);
/* NULL when memory is exhausted. Holds whatever was there before. Aligned to
 * TOW_WORKER_UPLOAD_ALIGNMENT at least. */
void *tow_stash_take(tow_stash_t *stash, size_t size);
/* `size` as it was asked for. NULL is fine. */
void tow_stash_give(tow_stash_t *stash, void *bytes, size_t size);

#endif /* TOW_WORKER_STASH_H_ */
