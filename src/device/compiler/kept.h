/* A compiled program as a file: a header, the signature, the executable. Bytes in,
 * bytes out. What comes from a disk is trusted in nothing: a file that is short,
 * long, altered, of another form or for another key is refused. */
#ifndef TOW_DEVICE_COMPILER_KEPT_H_
#define TOW_DEVICE_COMPILER_KEPT_H_

#include <stdint.h>

#include "base/status.h"
#include "device/device.h"

#define TOW_CODE_KEY_SIZE 32

/* SHA-256 of all that the machine code depends on. */
typedef struct tow_code_key {
    uint8_t bytes[TOW_CODE_KEY_SIZE];
} tow_code_key_t;

/* Of the parts, in order; where one ends and the next begins counts too. */
tow_status_t tow_code_key_make(const tow_bytes_t *parts, size_t count,
                               tow_code_key_t *out_key) TOW_MUST_USE;

#define TOW_KEPT_HEADER_SIZE 96

/* What stands before the signature and the executable in the file. */
tow_status_t tow_kept_header(const tow_code_key_t *key, tow_bytes_t signature,
                             tow_bytes_t executable,
                             uint8_t out_header[TOW_KEPT_HEADER_SIZE])
    TOW_MUST_USE;
/* What it gives lies in `file`. DATA_LOSS says what is wrong. */
tow_status_t tow_kept_parse(tow_bytes_t file, const tow_code_key_t *key,
                            tow_bytes_t *out_signature,
                            tow_bytes_t *out_executable) TOW_MUST_USE;

#endif /* TOW_DEVICE_COMPILER_KEPT_H_ */
