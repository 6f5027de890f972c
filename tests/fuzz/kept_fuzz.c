/* Whatever is in a file of the compile cache either is refused, or is what we would
 * have written for that key. */
#include <string.h>

#include "base/assert.h"
#include "device/compiler/kept.h"
#include "fuzz.h"

#define KEY_OFFSET 32

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t count)
{
    tow_code_key_t key = {{0}};
    tow_bytes_t signature, executable;
    uint8_t header[TOW_KEPT_HEADER_SIZE];
    /* Its own, so that it is not refused for that alone. */
    if (count >= KEY_OFFSET + sizeof(key))
        memcpy(&key, bytes + KEY_OFFSET, sizeof(key));
    tow_status_t status = tow_kept_parse((tow_bytes_t){bytes, count}, &key,
                                         &signature, &executable);
    TOW_ASSERT(status == TOW_OK || tow_status_code(status) == TOW_DATA_LOSS);
    if (status == TOW_OK) {
        TOW_ASSERT(sizeof(header) + signature.size + executable.size == count);
        TOW_ASSERT(tow_kept_header(&key, signature, executable, header) ==
                   TOW_OK);
        TOW_ASSERT(memcmp(header, bytes, sizeof(header)) == 0);
    }
    tow_status_release(status);
    return 0;
}
