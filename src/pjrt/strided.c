#include "pjrt/strided.h"

#include <stdlib.h>
#include <string.h>

#include "pjrt/tuning.h"

void tow_strided_set_dense(tow_strided_t *array)
{
    int64_t stride = (int64_t)array->element_bytes;
    for (uint32_t i = array->rank; i-- > 0;) {
        array->strides[i] = stride;
        stride *= array->dims[i];
    }
}

tow_strided_t tow_strided_permuted(const tow_strided_t *array,
                                   const uint8_t *order)
{
    tow_strided_t permuted = {.data = array->data,
                              .element_bytes = array->element_bytes,
                              .rank = array->rank};
    for (uint32_t i = 0; i < array->rank; i++) {
        permuted.dims[i] = array->dims[order[i]];
        permuted.strides[i] = array->strides[order[i]];
    }
    return permuted;
}

static bool is_empty(const tow_strided_t *array)
{
    for (uint32_t i = 0; i < array->rank; i++)
        if (array->dims[i] == 0) return true;
    return false;
}

bool tow_strided_is_dense(const tow_strided_t *array)
{
    int64_t stride = (int64_t)array->element_bytes;
    if (is_empty(array)) return true;
    for (uint32_t i = array->rank; i-- > 0;) {
        if (array->dims[i] != 1 && array->strides[i] != stride) return false;
        stride *= array->dims[i];
    }
    return true;
}

/* -- Copying --------------------------------------------------------------- */

/* Two dimensions of an array: `minor` is its last one, `other` another. */
typedef struct plane {
    size_t element_bytes;
    int64_t minor_count, minor_stride;
    int64_t other_count, other_stride;
    int64_t other_to_stride; /* in the copy */
} plane_t;

#define COPY_ROW(type)                                                        \
    for (int64_t i = 0; i < count; i++, from += stride) {                     \
        type element;                                                         \
        memcpy(&element, from, sizeof(element));                              \
        memcpy(to + i * (int64_t)sizeof(element), &element, sizeof(element)); \
    }                                                                         \
    return

/* Constant element sizes compile to moves instead of memcpy calls. */
static void copy_row(const uint8_t *from, int64_t stride, int64_t count,
                     size_t element_bytes, uint8_t *to)
{
    if (stride == (int64_t)element_bytes) {
        memcpy(to, from, (size_t)count * element_bytes);
        return;
    }
    switch (element_bytes) {
    case 1: COPY_ROW(uint8_t);
    case 2: COPY_ROW(uint16_t);
    case 4: COPY_ROW(uint32_t);
    case 8: COPY_ROW(uint64_t);
    default:
        for (int64_t i = 0; i < count; i++, from += stride)
            memcpy(to + i * (int64_t)element_bytes, from, element_bytes);
    }
}

static int64_t smaller(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

/* Tile by tile, so that consecutive rows reuse cache lines. */
static void copy_plane(const plane_t *plane, const uint8_t *from, uint8_t *to)
{
    const int64_t tile = TOW_PLUGIN_TILE_COUNT;
    for (int64_t other = 0; other < plane->other_count; other += tile)
        for (int64_t minor = 0; minor < plane->minor_count; minor += tile) {
            const int64_t end = smaller(other + tile, plane->other_count);
            const int64_t count = smaller(tile, plane->minor_count - minor);
            for (int64_t i = other; i < end; i++)
                copy_row(from + i * plane->other_stride +
                             minor * plane->minor_stride,
                         plane->minor_stride, count, plane->element_bytes,
                         to + i * plane->other_to_stride +
                             minor * (int64_t)plane->element_bytes);
        }
}

/* The dimension with the smallest stride, except the last. */
static uint32_t nearest(const tow_strided_t *array)
{
    uint32_t found = 0;
    for (uint32_t i = 1; i + 1 < array->rank; i++)
        if (array->dims[i] > 1 &&
            (array->dims[found] <= 1 ||
             llabs(array->strides[i]) < llabs(array->strides[found])))
            found = i;
    return found;
}

/* Steps to the next plane, over all dimensions except `other` and the last.
 * False: that was the last plane. */
static bool step(const tow_strided_t *array, const tow_strided_t *dense,
                 uint32_t other, int64_t *index, const uint8_t **from,
                 uint8_t **to)
{
    for (uint32_t d = array->rank - 1; d-- > 0;) {
        if (d == other) continue;
        *from += array->strides[d];
        *to += dense->strides[d];
        if (++index[d] < array->dims[d]) return true;
        *from -= array->strides[d] * array->dims[d];
        *to -= dense->strides[d] * array->dims[d];
        index[d] = 0;
    }
    return false;
}

void tow_strided_copy(const tow_strided_t *array, void *to)
{
    if (is_empty(array)) return;
    if (array->rank == 0) {
        memcpy(to, array->data, array->element_bytes);
        return;
    }
    const uint32_t minor = array->rank - 1, other = nearest(array);
    tow_strided_t dense = *array;
    tow_strided_set_dense(&dense);
    const bool is_row = array->rank == 1;
    const plane_t plane = {.element_bytes = array->element_bytes,
                           .minor_count = array->dims[minor],
                           .minor_stride = array->strides[minor],
                           .other_count = is_row ? 1 : array->dims[other],
                           .other_stride = array->strides[other],
                           .other_to_stride = dense.strides[other]};
    int64_t index[TOW_RANK_MAX] = {0};
    const uint8_t *from = array->data;
    uint8_t *at = to;
    do
        copy_plane(&plane, from, at);
    while (step(array, &dense, other, index, &from, &at));
}
