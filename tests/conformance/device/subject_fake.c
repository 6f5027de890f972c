/* The fake plugin. SUBJECT_MODE "plain": without our extension, as other
 * vendors' plugins; "old": of an old version. */
#include <stdlib.h>

#include "fixture.h"
#include "subject_pjrt.h"

static void open_fake(tow_env_t *env, size_t device_count,
                      uint64_t memory_bytes)
{
    setenv("TOW_FAKE_PJRT", SUBJECT_MODE, 1);
    subject_pjrt_open(env, getenv("TOW_FAKE_PJRT_PATH"), device_count,
                      memory_bytes);
}

static const char *why_not(void)
{
    return getenv("TOW_FAKE_PJRT_PATH") == NULL
               ? "TOW_FAKE_PJRT_PATH does not name the fake plugin"
               : NULL;
}

const subject_t subject = {
    .name = "pjrt",
    .computes = true,
    .shares_host = true,
    .shares_in_place = SUBJECT_SHARES_IN_PLACE,
    .format = TOW_PROGRAM_MLIR,
    .programs = {[PROGRAM_ADD] = "add 4",
                 [PROGRAM_DONATE] = "donate 4",
                 [PROGRAM_LARGE] = "donate 65536",
                 [PROGRAM_FAIL] = "fail 4",
                 [PROGRAM_AFTER] = "copy 4",
                 [PROGRAM_LONG] = "hold 4",
                 [PROGRAM_MALFORMED] = "hope 4"},
    .open = open_fake,
    .why_not = why_not,
};
