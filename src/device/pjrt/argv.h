/* Options of a plugin's client as arguments of a command: NAME, TYPE as a
 * number, VALUE for each. For child processes that load plugins. */
#ifndef TOW_DEVICE_PJRT_ARGV_H_
#define TOW_DEVICE_PJRT_ARGV_H_

#include <stdbool.h>
#include <stddef.h>

#include "base/arena.h"
#include "device/pjrt/pjrt.h"

#define TOW_PJRT_ARGS_PER_VALUE 3

/* Writes 3 * count arguments into the arena, except the names, which are lent.
 * False when memory is exhausted. */
bool tow_pjrt_argv_write(tow_arena_t *arena, const tow_pjrt_value_t *values,
                         size_t count, char **out_words) TOW_MUST_USE;

/* The reverse; ignores arguments that do not make a whole value. The values are
 * in the arena and point to the arguments. NULL when memory is exhausted. */
const tow_pjrt_value_t *tow_pjrt_argv_read(tow_arena_t *arena,
                                           char *const *argv, size_t argc,
                                           size_t *out_count) TOW_MUST_USE;

#endif /* TOW_DEVICE_PJRT_ARGV_H_ */
