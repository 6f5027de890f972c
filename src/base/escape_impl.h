/* Text from anywhere, made safe to print inside double quotes: for the log, and
 * for the JSON of traces. */
#ifndef TOW_BASE_ESCAPE_IMPL_H_
#define TOW_BASE_ESCAPE_IMPL_H_

#include <stddef.h>

typedef enum tow_escape_style {
    TOW_ESCAPE_TEXT, /* bytes that are not UTF-8 become \xNN */
    TOW_ESCAPE_JSON, /* they become \ufffd: JSON has no way to say a byte */
} tow_escape_style_t;

#define TOW_ESCAPED_BYTES_MAX 6

/* Takes one character from *cursor, which is before its terminating NUL, and
 * writes its safe form to `out`. Quotes, backslashes, and whatever could end a
 * line, move a terminal's cursor or turn the direction of text come out
 * escaped. Returns the number of bytes written. */
size_t tow_escape_next(tow_escape_style_t style, const char **cursor,
                       char out[static TOW_ESCAPED_BYTES_MAX]);

#endif /* TOW_BASE_ESCAPE_IMPL_H_ */
