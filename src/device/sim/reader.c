#include "device/sim/reader_impl.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

bool tow_sim_reader_line(reader_t *reader, piece_t *out_line)
{
    if (reader->at == reader->end) return false;
    size_t left = (size_t)(reader->end - reader->at);
    const char *stop = memchr(reader->at, '\n', left);
    *out_line =
        (piece_t){.start = reader->at,
                  .length = stop != NULL ? (size_t)(stop - reader->at) : left};
    reader->at = stop != NULL ? stop + 1 : reader->end;
    reader->line++;
    return true;
}

bool tow_sim_piece_word(piece_t *line, piece_t *out_word)
{
    while (line->length > 0 && line->start[0] == ' ') {
        line->start++;
        line->length--;
    }
    if (line->length == 0) return false;
    const char *stop = memchr(line->start, ' ', line->length);
    out_word->start = line->start;
    out_word->length =
        stop != NULL ? (size_t)(stop - line->start) : line->length;
    line->start += out_word->length;
    line->length -= out_word->length;
    return true;
}

bool tow_sim_piece_is(piece_t piece, const char *text)
{
    return strlen(text) == piece.length &&
           memcmp(piece.start, text, piece.length) == 0;
}

bool tow_sim_piece_number(piece_t piece, uint64_t *out_number)
{
    uint64_t number = 0;
    if (piece.length == 0) return false;
    for (size_t i = 0; i < piece.length; i++) {
        if (piece.start[i] < '0' || piece.start[i] > '9') return false;
        uint64_t digit = (uint64_t)(piece.start[i] - '0');
        if (number > (INT64_MAX - digit) / 10) return false;
        number = number * 10 + digit;
    }
    *out_number = number;
    return true;
}

static bool is_name_byte(char byte)
{
    return (byte >= 'a' && byte <= 'z') || (byte >= 'A' && byte <= 'Z') ||
           (byte >= '0' && byte <= '9') ||
           (byte != '\0' && strchr("-_./", byte) != NULL);
}

bool tow_sim_piece_is_name(piece_t piece, size_t length_max)
{
    if (piece.length == 0 || piece.length > length_max) return false;
    for (size_t i = 0; i < piece.length; i++)
        if (!is_name_byte(piece.start[i])) return false;
    return true;
}

const char *tow_sim_piece_show(piece_t piece, char text[TOW_SIM_SHOWN_SIZE])
{
    size_t room = TOW_SIM_SHOWN_SIZE - 4;
    size_t count = piece.length < room ? piece.length : room;
    for (size_t i = 0; i < count; i++) {
        char byte = piece.start[i];
        text[i] = byte >= ' ' && byte <= '~' ? byte : '?';
    }
    memcpy(text + count, piece.length > room ? "..." : "\0\0\0", 4);
    return text;
}

tow_status_t tow_sim_reader_error(const reader_t *reader, const char *format,
                                  ...)
{
    char text[512];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof(text), format, arguments);
    va_end(arguments);
    return TOW_ERROR(TOW_INVALID_ARGUMENT, "%s, line %u: %s", reader->what,
                     reader->line, text);
}
