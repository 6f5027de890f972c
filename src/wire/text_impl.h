/* Quoting of untrusted bytes for messages. */
#ifndef TOW_WIRE_TEXT_IMPL_H_
#define TOW_WIRE_TEXT_IMPL_H_

#include <stdbool.h>
#include <stddef.h>

/* Largest quoted size of `count` bytes: four each, quotes, dots, NUL. */
#define TOW_QUOTED_SIZE(count) ((count)*4 + 6)

/* Writes the bytes between double quotes, as ASCII: line ends, control
 * characters and quotes are escaped. Truncates to `capacity` (at least 8) and
 * marks that by "...". Returns `text`. */
const char *tow_text_quote(const void *bytes, size_t count, char *text,
                           size_t capacity);

/* A word of a shell command: quoted where the shell would change it. */
const char *tow_text_quote_for_shell(const char *word, char *text,
                                     size_t capacity);

/* True if all is printable ASCII. */
bool tow_text_is_plain(const char *text, size_t length);

/* A name of a peer: 1 to `length_max` letters, digits and "-_./". */
bool tow_text_is_name(const char *text, size_t length, size_t length_max);

#endif /* TOW_WIRE_TEXT_IMPL_H_ */
