#include "base/vec.h"

#include <stdint.h>

#include "base/alloc.h"
#include "base/assert.h"

#define CAPACITY_MIN 8

bool tow_vec_grow(void **items, size_t *capacity, size_t item_bytes,
                  size_t wanted)
{
    TOW_ASSERT(item_bytes > 0);
    size_t count_max = PTRDIFF_MAX / item_bytes;
    if (wanted > count_max) return false;
    size_t grown = *capacity + *capacity / 2;
    if (grown < CAPACITY_MIN) grown = CAPACITY_MIN;
    if (grown > count_max) grown = count_max;
    if (grown < wanted) grown = wanted;
    void *moved = tow_realloc(*items, grown * item_bytes);
    if (moved == NULL) return false;
    *items = moved;
    *capacity = grown;
    return true;
}
