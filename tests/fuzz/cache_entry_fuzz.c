/* Input: a file of the compile cache. It is refused, or equals the file that we
 * would write for its key. */
#include <string.h>

#include "base/assert.h"
#include "device/compiler/cache_entry.h"
#include "fuzz.h"

#define KEY_OFFSET 32

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t count)
{
    tow_code_key_t key = {{0}};
    tow_bytes_t signature, executable;
    uint8_t header[TOW_CACHE_ENTRY_HEADER_SIZE];
    /* The file's own key, so that a wrong key is not the reason to refuse
     * it. */
    if (count >= KEY_OFFSET + sizeof(key))
        memcpy(&key, bytes + KEY_OFFSET, sizeof(key));
    tow_status_t status = tow_cache_entry_parse((tow_bytes_t){bytes, count},
                                                &key, &signature, &executable);
    TOW_ASSERT(status == TOW_OK || tow_status_code(status) == TOW_DATA_LOSS);
    if (status == TOW_OK) {
        TOW_ASSERT(sizeof(header) + signature.size + executable.size == count);
        TOW_ASSERT(tow_cache_entry_header(&key, signature, executable,
                                          header) == TOW_OK);
        TOW_ASSERT(memcmp(header, bytes, sizeof(header)) == 0);
    }
    tow_status_release(status);
    return 0;
}
