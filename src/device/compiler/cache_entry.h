/* The format of a cache entry, a compiled program as a file: a header, the
 * signature, the executable. Pure functions on bytes. Refuses files that are
 * too short, too long, altered, of another format or for another key. */
#ifndef TOW_DEVICE_COMPILER_CACHE_ENTRY_H_
#define TOW_DEVICE_COMPILER_CACHE_ENTRY_H_

#include <stdint.h>

#include "base/status.h"
#include "device/device.h"

#define TOW_CODE_KEY_SIZE 32

/* SHA-256 of everything that the machine code depends on. */
typedef struct tow_code_key {
    uint8_t bytes[TOW_CODE_KEY_SIZE];
} tow_code_key_t;

/* Hashes the parts and their sizes, in order. */
tow_status_t tow_code_key_make(const tow_bytes_t *parts, size_t count,
                               tow_code_key_t *out_key) TOW_MUST_USE;

#define TOW_CACHE_ENTRY_HEADER_SIZE 96

/* The header of the file; the signature and the executable follow it. */
tow_status_t tow_cache_entry_header(
    const tow_code_key_t *key, tow_bytes_t signature, tow_bytes_t executable,
    uint8_t out_header[TOW_CACHE_ENTRY_HEADER_SIZE]) TOW_MUST_USE;
/* The results point into `file`. DATA_LOSS says what is wrong. */
tow_status_t tow_cache_entry_parse(tow_bytes_t file, const tow_code_key_t *key,
                                   tow_bytes_t *out_signature,
                                   tow_bytes_t *out_executable) TOW_MUST_USE;

#endif /* TOW_DEVICE_COMPILER_CACHE_ENTRY_H_ */
