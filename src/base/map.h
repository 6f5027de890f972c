/* Hash maps that iterate in insertion order.
 *
 * Entries are in an array in the order of insertion; a table of indices finds
 * them. So a simulated run visits them in the same order on every machine,
 * never by pointer value. Removal leaves a hole that the next growth closes:
 * removing while iterating is allowed, inserting is not.
 *
 * tow_map_t has 64-bit keys (ids); tow_names_t has text keys. Both hold one
 * pointer-sized value. Zeroed memory is an empty map. */
#ifndef TOW_BASE_MAP_H_
#define TOW_BASE_MAP_H_

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/macros.h"

typedef struct tow_map_entry {
    uint64_t key;
    void *value; /* NULL marks a hole: values are never NULL */
} tow_map_entry_t;

typedef struct tow_map {
    tow_map_entry_t *entries; /* owned, in insertion order */
    uint32_t *slots;          /* owned, power of two, index + 1 or 0 */
    uint32_t entry_count;     /* holes included */
    uint32_t live_count;
    uint32_t slot_count;
} tow_map_t;

void tow_map_deinit(tow_map_t *map);

static inline size_t tow_map_count(const tow_map_t *map)
{
    return map->live_count;
}

/* The value under `key`, or NULL. */
void *tow_map_find(const tow_map_t *map, uint64_t key);

/* Inserts, or replaces the value in its old place. `value` is not NULL.
 * False, and nothing changed, when memory is exhausted. */
bool tow_map_put(tow_map_t *map, uint64_t key, void *value) TOW_MUST_USE;

/* Removes and returns the value that was there, or NULL. */
void *tow_map_remove(tow_map_t *map, uint64_t key);

/* Iterates: start with *cursor = 0; false at the end. */
bool tow_map_next(const tow_map_t *map, size_t *cursor, uint64_t *out_key,
                  void **out_value);

typedef struct tow_names {
    tow_map_t by_hash; /* value: chain of owned entries with that hash */
    size_t live_count;
} tow_names_t;

void tow_names_deinit(tow_names_t *names);
static inline size_t tow_names_count(const tow_names_t *names)
{
    return names->live_count;
}
/* Keys are copied. Otherwise as tow_map_t. */
void *tow_names_find(const tow_names_t *names, const char *name);
bool tow_names_put(tow_names_t *names, const char *name, void *value)
    TOW_MUST_USE;
void *tow_names_remove(tow_names_t *names, const char *name);

#endif /* TOW_BASE_MAP_H_ */
