#include "fixture.h"
#include "subject.h"

#include "device/compiler/direct.h"
#include "device/pjrt/pjrt.h"

static tow_driver_t *driver;
static bool is_opened, is_closed;

static void opened(tow_pjrt_open_t *open, tow_status_t take_status,
                   tow_driver_t *take_driver)
{
    (void)open;
    expect_ok(take_status);
    driver = take_driver;
    is_opened = true;
}

tow_compiler_t *subject_open(size_t queue_count_max)
{
    tow_pjrt_open_t open = {.path = subject_plugin(), .done = opened};
    tow_compiler_t *compiler = NULL;
    is_opened = is_closed = false;
    expect_ok(tow_pjrt_open(fixture_env(), &open));
    FIXTURE_UNTIL(is_opened);
    const tow_direct_compiler_options_t options = {.queue_count_max =
                                                       queue_count_max};
    expect_ok(tow_direct_compiler_create(driver, &options, &compiler));
    return compiler;
}

static void closed(void *context)
{
    (void)context;
    is_closed = true;
}

void subject_close(void)
{
    tow_driver_close(driver, (tow_closed_t){.run = closed});
    FIXTURE_UNTIL(is_closed);
}
