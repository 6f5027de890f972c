#include "subject_pjrt.h"

#include "device/pjrt/pjrt.h"
#include "fixture.h"

static struct {
    tow_pjrt_open_t open;
    tow_pjrt_value_t values[2];
} opening;

static void opened(tow_pjrt_open_t *open, tow_status_t take_status,
                   tow_driver_t *take_driver)
{
    (void)open;
    fixture_opened(take_status, take_driver);
}

void subject_pjrt_open(tow_env_t *env, const char *path, size_t device_count,
                       uint64_t memory_bytes)
{
    opening.values[0] = (tow_pjrt_value_t){.name = "device_count",
                                           .type = TOW_PJRT_INT64,
                                           .int64 = (int64_t)device_count};
    opening.values[1] = (tow_pjrt_value_t){.name = "memory_limit_bytes",
                                           .type = TOW_PJRT_INT64,
                                           .int64 = (int64_t)memory_bytes};
    opening.open = (tow_pjrt_open_t){.path = path,
                                     .values = opening.values,
                                     .value_count = memory_bytes > 0 ? 2 : 1,
                                     .done = opened};
    tow_status_t status = tow_pjrt_open(env, &opening.open);
    if (status != TOW_OK) fixture_opened(status, NULL);
}
