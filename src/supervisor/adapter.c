#include "supervisor/adapter.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define PATH_SIZE 4096

static bool try_path(char *path, size_t capacity, const char *folder,
                     const char *tail)
{
    int length = snprintf(path, capacity, "%s/%s", folder, tail);
    return length > 0 && (size_t)length < capacity && access(path, R_OK) == 0;
}

tow_status_t tow_adapter_find(char *path, size_t capacity)
{
    const char *given = getenv("TOW_XLA_CPU");
    if (given != NULL) {
        snprintf(path, capacity, "%s", given);
        return TOW_OK;
    }
    char folder[PATH_SIZE];
    ssize_t length = readlink("/proc/self/exe", folder, sizeof(folder) - 1);
    if (length > 0) {
        folder[length] = '\0';
        *strrchr(folder, '/') = '\0';
        if (try_path(path, capacity, folder,
                     "src/device/xla_cpu/libtow_xla_cpu.so") ||
            try_path(path, capacity, folder,
                     "../lib/x86_64-linux-gnu/towpath/libtow_xla_cpu.so") ||
            try_path(path, capacity, folder,
                     "../lib/towpath/libtow_xla_cpu.so"))
            return TOW_OK;
    }
    return TOW_ERROR(TOW_NOT_FOUND,
                     "libtow_xla_cpu.so is not built here: `make` builds it, "
                     "or set TOW_XLA_CPU to its path");
}

void tow_adapter_quiet(void)
{
    /* Without it, the library prints a oneDNN notice when it loads. */
    setenv("TF_ENABLE_ONEDNN_OPTS", "0", 0);
    /* XLA records two tuning preferences among the CPU features of an executable
     * and then warns on every load that this processor lacks them. */
    setenv("TF_CPP_MIN_LOG_LEVEL", "3", 0);
}
