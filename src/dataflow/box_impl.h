/* Boxes: rectangular parts of dense, row-major arrays. Pure. */
#ifndef TOW_DATAFLOW_BOX_IMPL_H_
#define TOW_DATAFLOW_BOX_IMPL_H_

#include <stdbool.h>
#include <stdint.h>

#include "device/device.h"
#include "ir/lower.h"

/* The position of a box: in an array of these dims, starting at `start`. */
typedef struct box_side {
    const int64_t *dims;
    const int64_t *start; /* NULL: from the beginning */
} box_side_t;

/* In host memory, where elements smaller than a byte take one each. */
static inline uint64_t box_element_bytes(const tow_shape_t *shape)
{
    const uint32_t bits = tow_type_bits(shape->type);
    return bits <= 8 ? 1 : bits / 8;
}

/* Is the box contiguous there? Then `out_offset` is where it begins. */
bool box_is_row(const box_side_t *side, const int64_t *extent, uint32_t rank,
                uint64_t element_bytes, uint64_t *out_offset);

/* Copies the box of that extent from one array to another. */
void box_copy(const box_side_t *to, void *to_bytes, const box_side_t *from,
              const void *from_bytes, const int64_t *extent, uint32_t rank,
              uint64_t element_bytes);

#endif /* TOW_DATAFLOW_BOX_IMPL_H_ */
