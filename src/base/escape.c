#include "base/escape_impl.h"

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

static const char hex_digits[] = "0123456789abcdef";

/* How many bytes a sequence with this first byte has; 0 if none starts so. */
static size_t sequence_length(uint8_t first)
{
    if (first < 0x80) return 1;
    if (first >= 0xc2 && first <= 0xdf) return 2;
    if (first >= 0xe0 && first <= 0xef) return 3;
    if (first >= 0xf0 && first <= 0xf4) return 4;
    return 0;
}

/* Decodes one code point. Returns its bytes, or 0 when they are not UTF-8 (cut
 * off, overlong, a surrogate, past U+10FFFF). */
static size_t decode(const char *text, uint32_t *out_point)
{
    static const uint32_t least[] = {0, 0, 0x80, 0x800, 0x10000};
    const uint8_t *bytes = (const uint8_t *)text;
    size_t length = sequence_length(bytes[0]);
    if (length == 0) return 0;
    uint32_t point = length == 1 ? bytes[0] : bytes[0] & (0x7fu >> length);
    for (size_t i = 1; i < length; i++) {
        if ((bytes[i] & 0xc0) != 0x80) return 0; /* NUL stops here too. */
        point = point << 6 | (bytes[i] & 0x3fu);
    }
    if (point < least[length] || point > 0x10ffff) return 0;
    if (point >= 0xd800 && point <= 0xdfff) return 0;
    *out_point = point;
    return length;
}

static bool is_unsafe(uint32_t point)
{
    if (point < 0x20) return true;
    if (point >= 0x7f && point <= 0x9f) return true;     /* DEL, C1 */
    if (point >= 0x2028 && point <= 0x202e) return true; /* lines, direction */
    return point >= 0x2066 && point <= 0x2069;           /* direction */
}

static size_t put_u_escape(uint32_t point, char *out)
{
    memcpy(out, "\\u", 2);
    for (int i = 0; i < 4; i++)
        out[2 + i] = hex_digits[point >> (12 - 4 * i) & 0xf];
    return 6;
}

static size_t put_bad_byte(tow_escape_style_t style, uint8_t byte, char *out)
{
    if (style == TOW_ESCAPE_JSON) return put_u_escape(0xfffd, out);
    memcpy(out, "\\x", 2);
    out[2] = hex_digits[byte >> 4];
    out[3] = hex_digits[byte & 0xf];
    return 4;
}

static size_t put_pair(char second, char *out)
{
    out[0] = '\\';
    out[1] = second;
    return 2;
}

size_t tow_escape_next(tow_escape_style_t style, const char **cursor,
                       char out[static TOW_ESCAPED_BYTES_MAX])
{
    const char *text = *cursor;
    uint32_t point;
    size_t length = decode(text, &point);
    if (length == 0) {
        *cursor += 1;
        return put_bad_byte(style, (uint8_t)text[0], out);
    }
    *cursor += length;
    switch (point) {
    case '"':
    case '\\': return put_pair((char)point, out);
    case '\n': return put_pair('n', out);
    case '\r': return put_pair('r', out);
    case '\t': return put_pair('t', out);
    }
    if (is_unsafe(point)) return put_u_escape(point, out);
    memcpy(out, text, length);
    return length;
}
