#include <string.h>

#include "dataflow/box_impl.h"

bool box_is_row(const box_side_t *side, const int64_t *extent, uint32_t rank,
                uint64_t element_bytes, uint64_t *out_offset)
{
    /* From the last dimension: whole ones, then one that may be a part, then
     * single ones. */
    uint64_t stride = element_bytes;
    uint64_t offset = 0;
    bool is_whole = true;
    bool is_row = true;
    for (uint32_t i = rank; i-- > 0;) {
        const int64_t start = side->start != NULL ? side->start[i] : 0;
        if (!is_whole && extent[i] != 1) is_row = false;
        if (extent[i] != side->dims[i]) is_whole = false;
        offset += (uint64_t)start * stride;
        stride *= (uint64_t)side->dims[i];
    }
    *out_offset = offset;
    return is_row;
}

/* Rows of `row_bytes` bytes, laid out by the outer dimensions. */
typedef struct walk {
    uint32_t rank; /* of the outer dimensions */
    uint64_t row_bytes;
    int64_t extent[TOW_RANK_MAX];
    uint64_t to_stride[TOW_RANK_MAX];
    uint64_t from_stride[TOW_RANK_MAX];
} walk_t;

static void copy_rows(const walk_t *walk, uint32_t depth, char *to,
                      const char *from)
{
    if (depth == walk->rank) {
        memcpy(to, from, walk->row_bytes);
        return;
    }
    const uint64_t to_stride = walk->to_stride[depth];
    const uint64_t from_stride = walk->from_stride[depth];
    if (depth + 1 == walk->rank) {
        for (int64_t i = 0; i < walk->extent[depth]; i++)
            memcpy(to + (uint64_t)i * to_stride,
                   from + (uint64_t)i * from_stride, walk->row_bytes);
        return;
    }
    for (int64_t i = 0; i < walk->extent[depth]; i++)
        copy_rows(walk, depth + 1, to + (uint64_t)i * to_stride,
                  from + (uint64_t)i * from_stride);
}

void box_copy(const box_side_t *to, void *to_bytes, const box_side_t *from,
              const void *from_bytes, const int64_t *extent, uint32_t rank,
              uint64_t element_bytes)
{
    walk_t walk = {.rank = rank, .row_bytes = element_bytes};
    uint64_t to_stride = element_bytes, from_stride = element_bytes;
    char *to_at = to_bytes;
    const char *from_at = from_bytes;
    for (uint32_t i = rank; i-- > 0;) {
        if (extent[i] == 0) return;
        walk.extent[i] = extent[i];
        walk.to_stride[i] = to_stride;
        walk.from_stride[i] = from_stride;
        if (to->start != NULL) to_at += (uint64_t)to->start[i] * to_stride;
        if (from->start != NULL)
            from_at += (uint64_t)from->start[i] * from_stride;
        to_stride *= (uint64_t)to->dims[i];
        from_stride *= (uint64_t)from->dims[i];
    }
    /* What lies side by side on both sides is one row. */
    while (walk.rank > 0) {
        const uint32_t last = walk.rank - 1;
        if (walk.to_stride[last] != walk.row_bytes ||
            walk.from_stride[last] != walk.row_bytes)
            break;
        walk.row_bytes *= (uint64_t)walk.extent[last];
        walk.rank--;
    }
    copy_rows(&walk, 0, to_at, from_at);
}
