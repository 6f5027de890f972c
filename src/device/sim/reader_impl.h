/* A strict reader of small text files: lines, words, integers, and errors with
 * line numbers. For the cost format and for device models. */
#ifndef TOW_DEVICE_SIM_READER_IMPL_H_
#define TOW_DEVICE_SIM_READER_IMPL_H_

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

/* A part of the text, without a NUL. */
typedef struct piece {
    const char *start;
    size_t length;
} piece_t;

typedef struct reader {
    const char *at;
    const char *end;
    const char *what; /* "cost program", for messages */
    uint32_t line;    /* of what reader_next_line gave last; from 1 */
} reader_t;

/* The next line without its end; false after the last one. */
bool tow_sim_reader_line(reader_t *reader, piece_t *out_line);
/* Cuts the first word, up to a space, off the line; false when none is left. */
bool tow_sim_piece_word(piece_t *line, piece_t *out_word);

bool tow_sim_piece_is(piece_t piece, const char *text);
/* Digits only; at most INT64_MAX, so that sums of a few do not overflow. */
bool tow_sim_piece_number(piece_t piece, uint64_t *out_number);
/* 1 to `length_max` letters, digits and "-_./". */
bool tow_sim_piece_is_name(piece_t piece, size_t length_max);

#define TOW_SIM_SHOWN_SIZE 64
/* The piece as printable ASCII, truncated. */
const char *tow_sim_piece_show(piece_t piece, char text[TOW_SIM_SHOWN_SIZE]);

/* "WHAT, line N: ..." */
tow_status_t tow_sim_reader_error(const reader_t *reader, const char *format,
                                  ...) TOW_PRINTF(2, 3) TOW_MUST_USE TOW_COLD;

#endif /* TOW_DEVICE_SIM_READER_IMPL_H_ */
