/* Whole files, or standard input, as text. */
#ifndef TOW_TOOL_TEXT_FILE_H_
#define TOW_TOOL_TEXT_FILE_H_

#include <stddef.h>

#include "base/macros.h"
#include "base/status.h"
#include "base/vec.h"

typedef TOW_VEC(char) tow_text_t;

/* Appends the file to `text`; "-" is standard input. OUT_OF_RANGE above
 * `bytes_max`. Messages do not name the file. */
tow_status_t tow_text_file_read(const char *path, size_t bytes_max,
                                tow_text_t *text) TOW_MUST_USE;

#endif /* TOW_TOOL_TEXT_FILE_H_ */
