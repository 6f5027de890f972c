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

/* Reads a whole file of at most `capacity` bytes. `what` describes it in
 * errors: "token file". A secret that other users may access is refused; the
 * error names the command that fixes its mode. */
tow_status_t tow_file_read(const char *path, tow_file_kind_t kind,
                           const char *what, uint8_t *bytes, size_t capacity,
                           size_t *out_count) TOW_MUST_USE;

/* Creates a file; ALREADY_EXISTS if the path exists. A partially written file
 * is removed. */
tow_status_t tow_file_create(const char *path, tow_file_kind_t kind,
                             const char *what, const uint8_t *bytes,
                             size_t count) TOW_MUST_USE;

#endif /* TOW_WIRE_FILE_IMPL_H_ */
