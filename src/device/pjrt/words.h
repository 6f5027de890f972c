/* Options of a plugin's client as words of a command: of each, NAME, TYPE as a
 * number, VALUE. For programs that load plugins in our stead. */
#ifndef TOW_DEVICE_PJRT_WORDS_H_
#define TOW_DEVICE_PJRT_WORDS_H_

#include <stdbool.h>
#include <stddef.h>

#include "base/arena.h"
#include "device/pjrt/pjrt.h"

#define TOW_PJRT_WORDS_PER_VALUE 3

/* Writes 3 * count words. They live in the arena, but for the names, which are
 * lent. False when memory is exhausted. */
bool tow_pjrt_words_write(tow_arena_t *arena, const tow_pjrt_value_t *values,
                          size_t count, char **out_words) TOW_MUST_USE;

/* The reverse; words that do not make a whole value are left out. The values
 * live in the arena and point into the words. NULL when memory is exhausted. */
const tow_pjrt_value_t *tow_pjrt_words_read(tow_arena_t *arena,
                                            char *const *words,
                                            size_t word_count,
                                            size_t *out_count) TOW_MUST_USE;

#endif /* TOW_DEVICE_PJRT_WORDS_H_ */
