/* Escaping of untrusted text inside double quotes: for the log, and for the
 * JSON of traces. */
#ifndef TOW_BASE_ESCAPE_IMPL_H_
#define TOW_BASE_ESCAPE_IMPL_H_

#include <stddef.h>

typedef enum tow_escape_style {
    TOW_ESCAPE_TEXT, /* bytes that are not UTF-8 become \xNN */
    TOW_ESCAPE_JSON, /* they become \ufffd: JSON has no way to say a byte */
} tow_escape_style_t;

#define TOW_ESCAPED_BYTES_MAX 6

/* Reads one character at *cursor, which is not the terminating NUL, and writes
 * its escaped form to `out`. Escapes quotes, backslashes, line ends, control
 * characters and direction marks. Returns the number of bytes written. */
size_t tow_escape_next(tow_escape_style_t style, const char **cursor,
                       char out[static TOW_ESCAPED_BYTES_MAX]);

#endif /* TOW_BASE_ESCAPE_IMPL_H_ */
