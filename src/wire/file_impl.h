/* Small files that hold secrets and certificates. */
#ifndef TOW_WIRE_FILE_IMPL_H_
#define TOW_WIRE_FILE_IMPL_H_

#include <stddef.h>
#include <stdint.h>

#include "base/macros.h"
#include "base/status.h"

typedef enum tow_file_kind {
    TOW_FILE_PUBLIC,
    TOW_FILE_SECRET, /* nobody but its owner may read or write it */
} tow_file_kind_t;

/* Reads a whole file of at most `capacity` bytes. `what` names it in messages:
 * "token file". A secret that others may touch is refused, with the command
 * that mends it. */
tow_status_t tow_file_read(const char *path, tow_file_kind_t kind,
                           const char *what, uint8_t *bytes, size_t capacity,
                           size_t *out_count) TOW_MUST_USE;

/* Makes a new file; ALREADY_EXISTS if something is there. A file that could not
 * be written in whole is removed again. */
tow_status_t tow_file_create(const char *path, tow_file_kind_t kind,
                             const char *what, const uint8_t *bytes,
                             size_t count) TOW_MUST_USE;

#endif /* TOW_WIRE_FILE_IMPL_H_ */
