/* Arrays as text: "f32[2,2]=1,2,3,4". */
#ifndef TOW_TOOL_LITERAL_H_
#define TOW_TOOL_LITERAL_H_

#include <stddef.h>
#include <stdio.h>

#include "base/macros.h"
#include "base/status.h"
#include "device/device.h"

typedef struct tow_literal {
    tow_shape_t shape;
    void *bytes; /* owned */
    size_t size;
} tow_literal_t;

/* Parses SHAPE=VALUES: values separated by commas, one value for all elements,
 * `iota`, or @FILE with the raw bytes. */
tow_status_t tow_literal_parse(const char *text, tow_literal_t *out_literal)
    TOW_MUST_USE;
void tow_literal_deinit(tow_literal_t *literal);

/* "Prints "f32[2]=1,2"; after `element_count_max` values, "...". */
void tow_literal_print(FILE *out, const tow_shape_t *shape, const void *bytes,
                       size_t element_count_max);

#endif /* TOW_TOOL_LITERAL_H_ */
