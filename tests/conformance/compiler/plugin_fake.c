#include "subject.h"

#include <stdlib.h>

#include "base/testing.h"

const subject_t subject = {
    .device_kind = "fakium",
    .program = "add 4",
    .malformed = "hope 4",
    .complaint = "'hope 4' is no program of the fake",
};

const char *subject_plugin(void)
{
    const char *path = getenv("TOW_FAKE_PJRT_PATH");
    if (path == NULL)
        tow_test_skip("TOW_FAKE_PJRT_PATH does not name the fake plugin");
    return path;
}
