/* Strided arrays, and copying them to row-major order. Pure. */
#ifndef TOW_PJRT_STRIDED_H_
#define TOW_PJRT_STRIDED_H_

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "device/device.h"

/* Dimensions, and their strides in bytes. */
typedef struct tow_strided {
    const void *data; /* borrowed: the first element */
    size_t element_bytes;
    uint32_t rank;
    int64_t dims[TOW_RANK_MAX];
    int64_t strides[TOW_RANK_MAX];
} tow_strided_t;

/* Sets the strides of a row-major array. */
void tow_strided_set_dense(tow_strided_t *array);
/* Dimension i of the result is dimension order[i] of the array. */
tow_strided_t tow_strided_permuted(const tow_strided_t *array,
                                   const uint8_t *order);
/* It is dense and row-major; also true without elements. */
bool tow_strided_is_dense(const tow_strided_t *array);
/* All elements, in the order of their indices: the last dimension fastest. */
void tow_strided_copy(const tow_strided_t *array, void *to);

#endif /* TOW_PJRT_STRIDED_H_ */
