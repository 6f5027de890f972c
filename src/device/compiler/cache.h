/* Compiled programs in a folder of the user's, for clusters that come and go: what
 * one has compiled the next need not.
 *
 * The folder is the user's alone (0700), and files in it are read only if they are
 * too; beyond that their bytes are trusted in nothing (kept.h). A file is named by
 * its key: the program, its options, the kind of device, and all that makes the
 * machine code what it is: the plugin, XLA, this host's processor, XLA_FLAGS. So
 * what has changed is not found, and ages. Written beside and renamed: processes
 * may share a folder. Past the bound those not used for longest go.
 *
 * Only what a compiler has just made is put here: XLA can serialise an executable
 * that it has loaded, but what comes out does not load.
 *
 * Blocks in files; any thread may call. */
#ifndef TOW_DEVICE_COMPILER_CACHE_H_
#define TOW_DEVICE_COMPILER_CACHE_H_

#include "device/compiler/compiler.h"
#include "device/compiler/kept.h"

typedef struct tow_code_cache tow_code_cache_t;

typedef struct tow_code_cache_options {
    const char *folder; /* lent; made if it is not there */
    const char *plugin; /* lent: the path of our adapter */
    uint64_t bytes_max; /* of all files; 0: TOW_CODE_CACHE_BYTES_MAX */
} tow_code_cache_options_t;

/* An error: the folder cannot be had, or others could write to it. */
tow_status_t tow_code_cache_open(const tow_code_cache_options_t *options,
                                 tow_code_cache_t **out_cache) TOW_MUST_USE;
/* NULL is fine. */
void tow_code_cache_close(tow_code_cache_t *cache);

/* $TOW_COMPILE_CACHE; else towpath/compiled in the user's cache folder. False: it
 * says "off", or there is no such folder. */
bool tow_code_cache_folder(char *path, size_t capacity);

tow_status_t tow_code_cache_key(const tow_code_cache_t *cache,
                                const tow_compile_job_t *job,
                                tow_code_key_t *out_key) TOW_MUST_USE;
/* NULL: it is not there. An error: it is, and cannot be used; it is removed. */
tow_status_t tow_code_cache_get(const tow_code_cache_t *cache,
                                const tow_code_key_t *key,
                                tow_compiled_t **out_compiled) TOW_MUST_USE;
/* An error: it was not kept, and nothing of it is left. What is too large is not
 * kept either. */
tow_status_t tow_code_cache_put(const tow_code_cache_t *cache,
                                const tow_code_key_t *key,
                                const tow_compiled_t *compiled) TOW_MUST_USE;

#endif /* TOW_DEVICE_COMPILER_CACHE_H_ */
