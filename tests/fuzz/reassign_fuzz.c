/* Input: compile options. Reassigning their devices is refused, or gives
 * compile options, and is idempotent. */
#include <string.h>

#include "base/alloc.h"
#include "base/assert.h"
#include "device/options.h"
#include "fuzz.h"

static const int64_t ids[] = {7, 2048, -1, 3};
static const tow_assignment_t assignment = {.replica_count = 2,
                                            .partition_count = 2,
                                            .device_ids = ids};

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t count)
{
    void *first, *second;
    size_t first_size, second_size;
    tow_status_t status = tow_compile_options_reassign(
        (tow_bytes_t){bytes, count}, &assignment, &first, &first_size);
    TOW_ASSERT((status == TOW_OK) == (first != NULL));
    tow_status_release(status);
    if (first == NULL) return 0;
    status = tow_compile_options_reassign((tow_bytes_t){first, first_size},
                                          &assignment, &second, &second_size);
    TOW_ASSERT(status == TOW_OK);
    TOW_ASSERT(first_size == second_size &&
               memcmp(first, second, first_size) == 0);
    tow_free(first);
    tow_free(second);
    return 0;
}
