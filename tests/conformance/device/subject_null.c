#include "device/null/null.h"

#include "fixture.h"

static void open_null(tow_env_t *env, size_t device_count,
                      uint64_t memory_bytes)
{
    (void)device_count;
    (void)memory_bytes;
    tow_driver_t *driver;
    tow_status_t status = tow_null_open(env, &driver);
    fixture_opened(status, driver);
}

const subject_t subject = {.name = "null", .open = open_null};
