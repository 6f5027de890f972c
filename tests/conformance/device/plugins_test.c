/* Plugins of other vendors, if scripts/fetch_plugins.sh has downloaded them:
 * each opens, or returns a reason. A probe tries each first, so that none
 * crashes this process. */
#include "fixture.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "device/pjrt/pjrt.h"

const subject_t subject = {.name = "pjrt"};

static struct {
    bool is_done;
    tow_status_t status; /* owned */
    tow_driver_t *driver;
} result;

static void opened(tow_pjrt_open_t *open, tow_status_t take_status,
                   tow_driver_t *take_driver)
{
    (void)open;
    result.is_done = true;
    result.status = take_status;
    result.driver = take_driver;
}

/* Fails the test unless the plugin opens or refuses with this text. */
static void expect_open_or_refusal(const char *file, const char *const words[])
{
    const char *folder = getenv("TOW_PLUGIN_DIR");
    char path[4096];
    snprintf(path, sizeof(path), "%s/%s", folder != NULL ? folder : "", file);
    if (folder == NULL || access(path, R_OK) != 0)
        fixture_skip("not there; scripts/fetch_plugins.sh brings it");
    tow_pjrt_open_t open = {.path = path,
                            .probe_program = getenv("TOW_PJRT_PROBE"),
                            .done = opened};
    assert_non_null(open.probe_program);
    result.is_done = false;
    expect_ok(tow_pjrt_open(fixture_env(), &open));
    FIXTURE_UNTIL(result.is_done);
    if (result.driver != NULL) {
        assert_true(result.driver->device_count > 0);
        fixture_close(result.driver);
        return;
    }
    const char *message = tow_status_message(result.status);
    print_message("%s\n", message);
    assert_non_null(strstr(message, path));
    bool is_known = false;
    for (; *words != NULL; words++)
        is_known |= strstr(message, *words) != NULL;
    if (!is_known) fail_msg("it does not say why: %s", message);
    tow_status_release(result.status);
    fixture_end();
}

static void cuda_plugin_opens_or_says_why_not(void **state)
{
    static const char *const words[] = {"No visible GPU devices", "CUDA", NULL};
    expect_open_or_refusal("cuda/jax_plugins/xla_cuda12/xla_cuda_plugin.so",
                           words);
}

static void tpu_plugin_opens_or_says_why_not(void **state)
{
    static const char *const words[] = {"TPU", "device", NULL};
    /* Otherwise it waits for minutes for a service that only Google's clouds
     * have. */
    setenv("TPU_SKIP_MDS_QUERY", "1", 1);
    expect_open_or_refusal("tpu/libtpu/libtpu.so", words);
}

static void tpu_plugin_that_waits_for_its_cloud_is_given_up(void **state)
{
    const char *folder = getenv("TOW_PLUGIN_DIR");
    char path[4096];
    snprintf(path, sizeof(path), "%s/tpu/libtpu/libtpu.so",
             folder != NULL ? folder : "");
    if (folder == NULL || access(path, R_OK) != 0)
        fixture_skip("not there; scripts/fetch_plugins.sh brings it");
    unsetenv("TPU_SKIP_MDS_QUERY");
    tow_pjrt_open_t open = {.path = path,
                            .probe_program = getenv("TOW_PJRT_PROBE"),
                            .probe_timeout_ns = 1000000000,
                            .done = opened};
    result.is_done = false;
    expect_ok(tow_pjrt_open(fixture_env(), &open));
    FIXTURE_UNTIL(result.is_done);
    if (result.driver != NULL) {
        fixture_close(result.driver);
        return;
    }
    print_message("%s\n", tow_status_message(result.status));
    assert_non_null(strstr(tow_status_message(result.status), path));
    tow_status_release(result.status);
    fixture_end();
}

TOW_TEST_MAIN(FIXTURE_CASE(cuda_plugin_opens_or_says_why_not),
              FIXTURE_CASE(tpu_plugin_opens_or_says_why_not),
              FIXTURE_CASE(tpu_plugin_that_waits_for_its_cloud_is_given_up))
