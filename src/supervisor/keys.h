/* The token and certificate files of a cluster, in one folder. */
#ifndef TOW_SUPERVISOR_KEYS_H_
#define TOW_SUPERVISOR_KEYS_H_

#include <limits.h>

#include "base/macros.h"
#include "base/status.h"
#include "wire/security.h"

/* Longer than any path, so that no name is truncated. */
#define TOW_KEYS_PATH_SIZE (PATH_MAX + 16)

typedef struct tow_keys {
    char token[TOW_KEYS_PATH_SIZE];
    char certificate[TOW_KEYS_PATH_SIZE];
    char key[TOW_KEYS_PATH_SIZE];
} tow_keys_t;

/* Names the files. INVALID_ARGUMENT: the folder's name is too long. */
tow_status_t tow_keys_in(const char *folder, tow_keys_t *out_keys) TOW_MUST_USE;

/* Creates the token and, if `host` is not NULL, a self-signed certificate for
 * it. */
tow_status_t tow_keys_make(const tow_keys_t *keys, const char *host)
    TOW_MUST_USE;

#endif /* TOW_SUPERVISOR_KEYS_H_ */
