/* A cache of compiled programs in a folder of the user, which outlives
 * clusters.
 *
 * Only the user may write to the folder (0700), and the cache reads only the
 * user's own files; it checks their bytes all the same (cache_entry.h). A file
 * is named by its key, a hash of everything that the machine code depends on:
 * the program, its options, the kind of device, the plugin, XLA, this host's
 * processor, XLA_FLAGS. Files are written under another name and renamed, so
 * that processes can share a folder. Above the size limit the cache removes the
 * least recently used files.
 *
 * Only freshly compiled programs may be put here: XLA can serialise an
 * executable that it has loaded, but cannot load the result.
 *
 * Calls block in file I/O. Any thread may call. */
#ifndef TOW_DEVICE_COMPILER_CACHE_H_
#define TOW_DEVICE_COMPILER_CACHE_H_

#include "device/compiler/cache_entry.h"
#include "device/compiler/compiler.h"

typedef struct tow_code_cache tow_code_cache_t;

typedef struct tow_code_cache_options {
    const char *folder; /* lent; created if it does not exist */
    const char *plugin; /* lent: the path of our adapter */
    uint64_t bytes_max; /* of all files; 0: TOW_CODE_CACHE_BYTES_MAX */
} tow_code_cache_options_t;

/* An error: the folder cannot be opened, or other users can write to it. */
tow_status_t tow_code_cache_open(const tow_code_cache_options_t *options,
                                 tow_code_cache_t **out_cache) TOW_MUST_USE;
/* NULL is fine. */
void tow_code_cache_close(tow_code_cache_t *cache);

/* $TOW_COMPILE_CACHE, or towpath/compiled in the user's cache folder. False:
 * the variable is "off", or there is no such folder. */
bool tow_code_cache_folder(char *path, size_t capacity);

tow_status_t tow_code_cache_key(const tow_code_cache_t *cache,
                                const tow_compile_job_t *job,
                                tow_code_key_t *out_key) TOW_MUST_USE;
/* NULL: no entry. An error: the entry was damaged, and has been removed. */
tow_status_t tow_code_cache_get(const tow_code_cache_t *cache,
                                const tow_code_key_t *key,
                                tow_compiled_t **out_compiled) TOW_MUST_USE;
/* An error: no entry was written. Programs above the size limit of an entry are
 * skipped without an error. */
tow_status_t tow_code_cache_put(const tow_code_cache_t *cache,
                                const tow_code_key_t *key,
                                const tow_compiled_t *compiled) TOW_MUST_USE;

#endif /* TOW_DEVICE_COMPILER_CACHE_H_ */
