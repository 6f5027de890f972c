/* Inside of maps, for their tests: text keys under a given hash, so that a test
 * can make two names collide. */
#ifndef TOW_BASE_MAP_IMPL_H_
#define TOW_BASE_MAP_IMPL_H_

#include "base/map.h"

void *tow_names_find_hashed(const tow_names_t *names, uint64_t hash,
                            const char *name);
bool tow_names_put_hashed(tow_names_t *names, uint64_t hash, const char *name,
                          void *value) TOW_MUST_USE;
void *tow_names_remove_hashed(tow_names_t *names, uint64_t hash,
                              const char *name);

#endif /* TOW_BASE_MAP_IMPL_H_ */
