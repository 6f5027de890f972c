/* Entries in insertion order, found through a table of indices with linear
 * probing. The table has two slots per possible entry: a probe looks into the
 * entries, which costs a cache miss, so short runs are worth the memory (16
 * bytes an entry and 8 to 16 of slots when full).
 *
 * Removal closes the gap in the table at once (backward shift, Knuth 6.4
 * algorithm R), so searches never step over tombstones, and leaves a hole among
 * the entries. Holes at the end go at once; others at the next rebuild, which
 * only an insertion does. */
#include "base/map.h"

#include <string.h>

#include "base/alloc.h"
#include "base/assert.h"
#include "base/hash.h"
#include "base/map_impl.h"

#define SLOT_COUNT_MIN 16u
#define SLOT_COUNT_MAX (1u << 31)
#define NOT_FOUND      UINT32_MAX

static uint32_t entry_capacity(uint32_t slot_count)
{
    return slot_count / 2;
}

static uint32_t home_slot(const tow_map_t *map, uint64_t key)
{
    return (uint32_t)tow_mix64(key) & (map->slot_count - 1);
}

static uint32_t next_slot(const tow_map_t *map, uint32_t slot)
{
    return (slot + 1) & (map->slot_count - 1);
}

void tow_map_deinit(tow_map_t *map)
{
    tow_free(map->entries);
    tow_free(map->slots);
    *map = (tow_map_t){0};
}

/* The slot that leads to `key`, or NOT_FOUND. */
static uint32_t find_slot(const tow_map_t *map, uint64_t key)
{
    if (map->live_count == 0) return NOT_FOUND;
    uint32_t slot = home_slot(map, key);
    while (map->slots[slot] != 0) {
        if (map->entries[map->slots[slot] - 1].key == key) return slot;
        slot = next_slot(map, slot);
    }
    return NOT_FOUND;
}

void *tow_map_find(const tow_map_t *map, uint64_t key)
{
    uint32_t slot = find_slot(map, key);
    if (slot == NOT_FOUND) return NULL;
    return map->entries[map->slots[slot] - 1].value;
}

static void link_entry(tow_map_t *map, uint32_t index)
{
    uint32_t slot = home_slot(map, map->entries[index].key);
    while (map->slots[slot] != 0)
        slot = next_slot(map, slot);
    map->slots[slot] = index + 1;
}

/* Moves the live entries of `source` to the front of map->entries, which may be
 * the same array, and fills the empty table anew. */
static void gather_entries(tow_map_t *map, const tow_map_entry_t *source)
{
    uint32_t live = 0;
    for (uint32_t i = 0; i < map->entry_count; i++) {
        if (source[i].value == NULL) continue;
        map->entries[live] = source[i];
        link_entry(map, live++);
    }
    TOW_ASSERT(live == map->live_count);
    map->entry_count = live;
}

static void close_holes(tow_map_t *map)
{
    memset(map->slots, 0, map->slot_count * sizeof(*map->slots));
    gather_entries(map, map->entries);
}

static bool resize(tow_map_t *map, uint32_t slot_count)
{
    tow_map_t resized = *map;
    resized.slot_count = slot_count;
    resized.entries = tow_malloc((size_t)entry_capacity(slot_count) *
                                 sizeof(*resized.entries));
    if (resized.entries == NULL) return false;
    resized.slots = tow_calloc(slot_count, sizeof(*resized.slots));
    if (resized.slots == NULL) {
        tow_free(resized.entries);
        return false;
    }
    gather_entries(&resized, map->entries);
    tow_free(map->entries);
    tow_free(map->slots);
    *map = resized;
    return true;
}

/* Slots such that a rebuild leaves room for half as many entries again: then
 * rebuilding is paid for by the insertions before the next one. */
static uint32_t fitting_slot_count(uint32_t live_count)
{
    uint64_t entries = (uint64_t)live_count + live_count / 2 + 1;
    uint32_t slot_count = SLOT_COUNT_MIN;
    while (entry_capacity(slot_count) < entries && slot_count < SLOT_COUNT_MAX)
        slot_count *= 2;
    return slot_count;
}

/* Whether visiting all entries would mostly visit holes. */
static bool is_mostly_holes(const tow_map_t *map)
{
    uint64_t hole_count = map->entry_count - map->live_count;
    return hole_count > (uint64_t)map->live_count * 3 + 64;
}

static bool make_room(tow_map_t *map)
{
    uint32_t capacity = entry_capacity(map->slot_count);
    bool is_full = map->entry_count == capacity;
    if (TOW_LIKELY(!is_full && !is_mostly_holes(map))) return true;
    uint32_t wanted = fitting_slot_count(map->live_count);
    if (wanted != map->slot_count && resize(map, wanted)) return true;
    /* The right size already, or memory is exhausted and holes may help. */
    if (map->live_count == capacity) return false;
    close_holes(map);
    return true;
}

bool tow_map_put(tow_map_t *map, uint64_t key, void *value)
{
    TOW_ASSERT(value != NULL);
    uint32_t slot = find_slot(map, key);
    if (slot != NOT_FOUND) {
        map->entries[map->slots[slot] - 1].value = value;
        return true;
    }
    if (!make_room(map)) return false;
    map->entries[map->entry_count] = (tow_map_entry_t){key, value};
    link_entry(map, map->entry_count);
    map->entry_count++;
    map->live_count++;
    return true;
}

/* Empties `gap` and moves back the entries after it that are not at home, so
 * that every probe still meets its entry before an empty slot. */
static void shift_back_into(tow_map_t *map, uint32_t gap)
{
    uint32_t mask = map->slot_count - 1;
    uint32_t slot = next_slot(map, gap);
    for (; map->slots[slot] != 0; slot = next_slot(map, slot)) {
        uint32_t home = home_slot(map, map->entries[map->slots[slot] - 1].key);
        if (((slot - home) & mask) < ((slot - gap) & mask)) continue;
        map->slots[gap] = map->slots[slot];
        gap = slot;
    }
    map->slots[gap] = 0;
}

void *tow_map_remove(tow_map_t *map, uint64_t key)
{
    uint32_t slot = find_slot(map, key);
    if (slot == NOT_FOUND) return NULL;
    tow_map_entry_t *entry = &map->entries[map->slots[slot] - 1];
    void *value = entry->value;
    shift_back_into(map, slot);
    entry->value = NULL;
    map->live_count--;
    while (map->entry_count > 0 &&
           map->entries[map->entry_count - 1].value == NULL)
        map->entry_count--;
    return value;
}

bool tow_map_next(const tow_map_t *map, size_t *cursor, uint64_t *out_key,
                  void **out_value)
{
    while (*cursor < map->entry_count) {
        const tow_map_entry_t *entry = &map->entries[(*cursor)++];
        if (entry->value == NULL) continue;
        *out_key = entry->key;
        *out_value = entry->value;
        return true;
    }
    return false;
}

void tow_map_check(const tow_map_t *map)
{
    uint32_t live_count = 0, linked_count = 0;
    TOW_ASSERT(map->entry_count <= entry_capacity(map->slot_count));
    for (uint32_t i = 0; i < map->entry_count; i++) {
        if (map->entries[i].value == NULL) continue;
        const uint32_t slot = find_slot(map, map->entries[i].key);
        TOW_ASSERT(slot != NOT_FOUND && map->slots[slot] == i + 1);
        live_count++;
    }
    for (uint32_t i = 0; i < map->slot_count; i++)
        linked_count += map->slots[i] != 0;
    TOW_ASSERT(live_count == map->live_count);
    TOW_ASSERT(linked_count == live_count);
}

/* Names whose hashes are equal share one entry of the map as a list. */
typedef struct name_entry {
    struct name_entry *next; /* owned */
    void *value;             /* lent by the map's user */
    char name[];
} name_entry_t;

static uint64_t hash_of_name(const char *name)
{
    return tow_hash_bytes(name, strlen(name), 0);
}

void tow_names_deinit(tow_names_t *names)
{
    size_t cursor = 0;
    uint64_t hash;
    void *chain;
    while (tow_map_next(&names->by_hash, &cursor, &hash, &chain)) {
        for (name_entry_t *entry = chain, *next; entry != NULL; entry = next) {
            next = entry->next;
            tow_free(entry);
        }
    }
    tow_map_deinit(&names->by_hash);
    names->live_count = 0;
}

static name_entry_t *find_in_chain(name_entry_t *chain, const char *name)
{
    while (chain != NULL && strcmp(chain->name, name) != 0)
        chain = chain->next;
    return chain;
}

void *tow_names_find_hashed(const tow_names_t *names, uint64_t hash,
                            const char *name)
{
    name_entry_t *entry =
        find_in_chain(tow_map_find(&names->by_hash, hash), name);
    return entry == NULL ? NULL : entry->value;
}

static name_entry_t *make_name_entry(const char *name, void *value)
{
    size_t name_bytes = strlen(name) + 1;
    name_entry_t *entry = tow_malloc(sizeof(*entry) + name_bytes);
    if (entry == NULL) return NULL;
    entry->next = NULL;
    entry->value = value;
    memcpy(entry->name, name, name_bytes);
    return entry;
}

bool tow_names_put_hashed(tow_names_t *names, uint64_t hash, const char *name,
                          void *value)
{
    TOW_ASSERT(value != NULL);
    name_entry_t *chain = tow_map_find(&names->by_hash, hash);
    name_entry_t *entry = find_in_chain(chain, name);
    if (entry != NULL) {
        entry->value = value;
        return true;
    }
    entry = make_name_entry(name, value);
    if (entry == NULL) return false;
    entry->next = chain;
    if (!tow_map_put(&names->by_hash, hash, entry)) {
        tow_free(entry);
        return false;
    }
    names->live_count++;
    return true;
}

void *tow_names_remove_hashed(tow_names_t *names, uint64_t hash,
                              const char *name)
{
    name_entry_t *chain = tow_map_find(&names->by_hash, hash);
    name_entry_t **link = &chain;
    while (*link != NULL && strcmp((*link)->name, name) != 0)
        link = &(*link)->next;
    name_entry_t *entry = *link;
    if (entry == NULL) return NULL;
    *link = entry->next;
    if (chain == NULL) {
        tow_map_remove(&names->by_hash, hash);
    } else {
        bool replaced = tow_map_put(&names->by_hash, hash, chain);
        TOW_ASSERT(replaced); /* The key is there: no memory is needed. */
    }
    void *value = entry->value;
    tow_free(entry);
    names->live_count--;
    return value;
}

void *tow_names_find(const tow_names_t *names, const char *name)
{
    return tow_names_find_hashed(names, hash_of_name(name), name);
}

bool tow_names_put(tow_names_t *names, const char *name, void *value)
{
    return tow_names_put_hashed(names, hash_of_name(name), name, value);
}

void *tow_names_remove(tow_names_t *names, const char *name)
{
    return tow_names_remove_hashed(names, hash_of_name(name), name);
}
