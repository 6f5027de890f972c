#include "tool/preload.h"

#include <dirent.h>
#include <limits.h>
#include <stddef.h>

#include "device/pjrt/pjrt.h"
#include "tool/local.h"

#if TOW_HAS_PJRT

static bool has_one_thread(void)
{
    size_t count = 0;
    DIR *folder = opendir("/proc/self/task");
    if (folder == NULL) return false;
    for (const struct dirent *entry; (entry = readdir(folder)) != NULL;)
        count += entry->d_name[0] != '.';
    closedir(folder);
    return count == 1;
}

bool tow_preload_xla(void)
{
    char path[PATH_MAX];
    tow_status_t status = tow_local_find_adapter(path, sizeof(path));
    if (status == TOW_OK) {
        tow_local_quiet_adapter();
        status = tow_pjrt_preload(path);
    }
    const bool is_loaded = status == TOW_OK;
    tow_status_ignore(status,
                      "workers meet the same, and their words are read");
    return is_loaded && has_one_thread();
}

#else

bool tow_preload_xla(void)
{
    return false;
}

#endif
