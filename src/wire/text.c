#include "wire/text_impl.h"

#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "base/assert.h"

static bool is_letter_or_digit(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
           (c >= '0' && c <= '9');
}

static bool is_one_of(char c, const char *set)
{
    return c != '\0' && strchr(set, c) != NULL;
}

/* The safe form of one byte; returns its length, at most 4. */
static size_t escape(uint8_t byte, char out[5])
{
    switch (byte) {
    case '"': return (size_t)sprintf(out, "\\\"");
    case '\\': return (size_t)sprintf(out, "\\\\");
    case '\n': return (size_t)sprintf(out, "\\n");
    case '\r': return (size_t)sprintf(out, "\\r");
    case '\t': return (size_t)sprintf(out, "\\t");
    }
    bool printable = byte >= 0x20 && byte < 0x7f;
    return (size_t)sprintf(out, printable ? "%c" : "\\x%02x", byte);
}

const char *tow_text_quote(const void *bytes, size_t count, char *text,
                           size_t capacity)
{
    TOW_ASSERT(capacity >= 8);
    const uint8_t *next = bytes;
    size_t length = 0;
    text[length++] = '"';
    for (size_t i = 0; i < count; i++) {
        char escaped[5];
        size_t more = escape(next[i], escaped);
        /* Behind it, room for the dots, the quote and the NUL. */
        if (length + more + 5 > capacity) {
            memcpy(text + length, "...", 3);
            length += 3;
            break;
        }
        memcpy(text + length, escaped, more);
        length += more;
    }
    memcpy(text + length, "\"", 2);
    return text;
}

static bool is_safe_in_shell(const char *word)
{
    if (*word == '\0') return false;
    for (; *word != '\0'; word++) {
        if (!is_letter_or_digit(*word) && !is_one_of(*word, "-_./+=:,@%"))
            return false;
    }
    return true;
}

const char *tow_text_quote_for_shell(const char *word, char *text,
                                     size_t capacity)
{
    TOW_ASSERT(capacity >= 8);
    if (is_safe_in_shell(word)) {
        snprintf(text, capacity, "%s", word);
        return text;
    }
    size_t length = 0;
    text[length++] = '\'';
    for (; *word != '\0' && length + 6 <= capacity; word++) {
        if (*word == '\'') {
            memcpy(text + length, "'\\''", 4);
            length += 4;
        } else {
            text[length++] = *word;
        }
    }
    memcpy(text + length, "'", 2);
    return text;
}

bool tow_text_is_plain(const char *text, size_t length)
{
    for (size_t i = 0; i < length; i++) {
        if (text[i] < 0x20 || text[i] > 0x7e) return false;
    }
    return true;
}

bool tow_text_is_name(const char *text, size_t length, size_t length_max)
{
    if (length == 0 || length > length_max) return false;
    for (size_t i = 0; i < length; i++) {
        if (!is_letter_or_digit(text[i]) && !is_one_of(text[i], "-_./"))
            return false;
    }
    return true;
}
