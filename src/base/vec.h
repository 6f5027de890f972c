/* Growable arrays. A vector is a plain struct that its owner may look into:
 *
 *     TOW_VEC(tow_node_t) nodes = {0};
 *     if (!tow_vec_push(&nodes, node)) return tow_status_bare(...);
 *     for (size_t i = 0; i < nodes.count; i++) visit(&nodes.items[i]);
 *     tow_vec_deinit(&nodes);
 *
 * Zeroed memory is an empty vector. */
#ifndef TOW_BASE_VEC_H_
#define TOW_BASE_VEC_H_

#include <stdbool.h>
#include <stddef.h>

#include "base/macros.h"

#define TOW_VEC(type)            \
    struct {                     \
        type *items; /* owned */ \
        size_t count;            \
        size_t capacity;         \
    }

/* Makes room for `wanted` items in all; false, and nothing changed, when
 * memory is exhausted. Grows by half again, so pushing is O(1) amortised. */
bool tow_vec_grow(void **items, size_t *capacity, size_t item_bytes,
                  size_t wanted) TOW_MUST_USE;

#define tow_vec_reserve(vec, wanted)                        \
    ((wanted) <= (vec)->capacity ||                         \
     tow_vec_grow((void **)&(vec)->items, &(vec)->capacity, \
                  sizeof(*(vec)->items), (wanted)))

/* Appends a copy of `item`; evaluates to false when memory is exhausted. */
#define tow_vec_push(vec, item)                          \
    (tow_vec_reserve((vec), (vec)->count + 1)            \
         ? ((vec)->items[(vec)->count++] = (item), true) \
         : false)

/* Removes item `index` by moving the last one into its place: O(1), and the
 * order changes in a defined way. */
#define tow_vec_swap_remove(vec, index) \
    ((vec)->items[(index)] = (vec)->items[--(vec)->count])

#define tow_vec_deinit(vec)                 \
    do {                                    \
        tow_free((vec)->items);             \
        (vec)->items = NULL;                \
        (vec)->count = (vec)->capacity = 0; \
    } while (0)

#include "base/alloc.h"

#endif /* TOW_BASE_VEC_H_ */
