/* Internals of maps, for tests: text keys with a given hash, so that a test can
 * make two names collide. */
#ifndef TOW_BASE_MAP_IMPL_H_
#define TOW_BASE_MAP_IMPL_H_

#include "base/map.h"

void *tow_names_find_hashed(const tow_names_t *names, uint64_t hash,
                            const char *name);
bool tow_names_put_hashed(tow_names_t *names, uint64_t hash, const char *name,
                          void *value) TOW_MUST_USE;
void *tow_names_remove_hashed(tow_names_t *names, uint64_t hash,
                              const char *name);

/* Asserts that the table finds every live entry, and nothing else. O(n). */
void tow_map_check(const tow_map_t *map);

#endif /* TOW_BASE_MAP_IMPL_H_ */
