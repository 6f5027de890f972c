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
typedef struct rows {
    uint32_t rank; /* of the outer dimensions */
    uint64_t row_bytes;
    int64_t extent[TOW_RANK_MAX];
    uint64_t to_stride[TOW_RANK_MAX];
    uint64_t from_stride[TOW_RANK_MAX];
} rows_t;

static void copy_rows(const rows_t *rows, uint32_t depth, char *to,
                      const char *from)
{
    if (depth == rows->rank) {
        memcpy(to, from, rows->row_bytes);
        return;
    }
    const uint64_t to_stride = rows->to_stride[depth];
    const uint64_t from_stride = rows->from_stride[depth];
    if (depth + 1 == rows->rank) {
        for (int64_t i = 0; i < rows->extent[depth]; i++)
            memcpy(to + (uint64_t)i * to_stride,
                   from + (uint64_t)i * from_stride, rows->row_bytes);
        return;
    }
    for (int64_t i = 0; i < rows->extent[depth]; i++)
        copy_rows(rows, depth + 1, to + (uint64_t)i * to_stride,
                  from + (uint64_t)i * from_stride);
}

void box_copy(const box_side_t *to, void *to_bytes, const box_side_t *from,
              const void *from_bytes, const int64_t *extent, uint32_t rank,
              uint64_t element_bytes)
{
    rows_t rows = {.rank = rank, .row_bytes = element_bytes};
    uint64_t to_stride = element_bytes, from_stride = element_bytes;
    char *to_at = to_bytes;
    const char *from_at = from_bytes;
    for (uint32_t i = rank; i-- > 0;) {
        if (extent[i] == 0) return;
        rows.extent[i] = extent[i];
        rows.to_stride[i] = to_stride;
        rows.from_stride[i] = from_stride;
        if (to->start != NULL) to_at += (uint64_t)to->start[i] * to_stride;
        if (from->start != NULL)
            from_at += (uint64_t)from->start[i] * from_stride;
        to_stride *= (uint64_t)to->dims[i];
        from_stride *= (uint64_t)from->dims[i];
    }
    /* Dimensions that are contiguous on both sides join the row. */
    while (rows.rank > 0) {
        const uint32_t last = rows.rank - 1;
        if (rows.to_stride[last] != rows.row_bytes ||
            rows.from_stride[last] != rows.row_bytes)
            break;
        rows.row_bytes *= (uint64_t)rows.extent[last];
        rows.rank--;
    }
    copy_rows(&rows, 0, to_at, from_at);
}
