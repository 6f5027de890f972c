#include "device/pjrt/xla_home.h"

#include <stdlib.h>

#include "base/testing.h"
#include "device/pjrt/xla_version.h"

static void xla_home_is_for_our_adapter_alone(void **state)
{
    (void)state;
    assert_true(tow_xla_home_is_needed("/a/b/libtow_xla_cpu.so"));
    assert_true(tow_xla_home_is_needed("libtow_xla_cpu.so"));
    assert_false(tow_xla_home_is_needed("/a/libtow_xla_cpu.so/other.so"));
    assert_false(tow_xla_home_is_needed(""));
}

static void expect_home(const char *wanted)
{
    char folder[128];
    tow_xla_home(folder, sizeof(folder));
    assert_string_equal(folder, wanted);
}

static void xla_home_is_given_or_in_the_cache(void **state)
{
    (void)state;
    setenv("TOW_XLA_DIR", "/given", 1);
    setenv("XDG_CACHE_HOME", "/cache", 1);
    setenv("HOME", "/me", 1);
    expect_home("/given");
    setenv("TOW_XLA_DIR", "", 1);
    expect_home("/cache/towpath/xla-" TOW_XLA_VERSION);
    unsetenv("XDG_CACHE_HOME");
    expect_home("/me/.cache/towpath/xla-" TOW_XLA_VERSION);
    unsetenv("HOME");
    expect_home("");
}

static void xla_home_without_libraries_does_not_load(void **state)
{
    (void)state;
    assert_false(tow_xla_home_load("/nowhere"));
}

TOW_TEST_MAIN(cmocka_unit_test(xla_home_is_for_our_adapter_alone),
              cmocka_unit_test(xla_home_is_given_or_in_the_cache),
              cmocka_unit_test(xla_home_without_libraries_does_not_load))
