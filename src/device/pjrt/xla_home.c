#include "device/pjrt/xla_home.h"

#include <dlfcn.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/macros.h"
#include "device/pjrt/xla_version.h"

bool tow_xla_home_is_needed(const char *plugin_path)
{
    const char *slash = strrchr(plugin_path, '/');
    const char *name = slash != NULL ? slash + 1 : plugin_path;
    return strcmp(name, "libtow_xla_cpu.so") == 0;
}

static bool is_given(const char *value)
{
    return value != NULL && value[0] != '\0';
}

void tow_xla_home(char *folder, size_t capacity)
{
    const char *given = getenv("TOW_XLA_DIR");
    const char *cache = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
    if (is_given(given))
        snprintf(folder, capacity, "%s", given);
    else if (is_given(cache))
        snprintf(folder, capacity, "%s/towpath/xla-" TOW_XLA_VERSION, cache);
    else if (is_given(home))
        snprintf(folder, capacity, "%s/.cache/towpath/xla-" TOW_XLA_VERSION,
                 home);
    else
        snprintf(folder, capacity, "%s", "");
}

/* The second needs the first, which is loaded by then. */
bool tow_xla_home_load(const char *folder)
{
    static const char *const names[] = {"libtensorflow_framework.so.2",
                                        "libtensorflow_cc.so.2"};
    for (size_t i = 0; i < TOW_COUNT_OF(names); i++) {
        char path[PATH_MAX];
        const int length =
            snprintf(path, sizeof(path), "%s/%s", folder, names[i]);
        if (length >= (int)sizeof(path) ||
            dlopen(path, RTLD_NOW | RTLD_LOCAL) == NULL)
            return false;
    }
    return true;
}
