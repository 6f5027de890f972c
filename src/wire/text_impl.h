/* Words about bytes that a peer or a user gave, made safe to print. */
#ifndef TOW_WIRE_TEXT_IMPL_H_
#define TOW_WIRE_TEXT_IMPL_H_

#include <stdbool.h>
#include <stddef.h>

/* Room that `count` bytes may take when quoted: four each, quotes, dots, NUL. */
#define TOW_QUOTED_SIZE(count) ((count)*4 + 6)

/* Writes the bytes between double quotes, as ASCII: what could end a line,
 * move a terminal's cursor or leave the quotes becomes an escape. What does not
 * fit into `capacity` (at least 8) is cut off and shown as "...". Returns
 * `text`. */
const char *tow_text_quote(const void *bytes, size_t count, char *text,
                           size_t capacity);

/* A word for a shell's command line: quoted where a shell would change it. */
const char *tow_text_quote_for_shell(const char *word, char *text,
                                     size_t capacity);

/* Only printable ASCII? */
bool tow_text_is_plain(const char *text, size_t length);

/* A name of a peer: 1 to `length_max` letters, digits and "-_./". */
bool tow_text_is_name(const char *text, size_t length, size_t length_max);

#endif /* TOW_WIRE_TEXT_IMPL_H_ */
