#include "supervisor/scratch_folder.h"

#include <errno.h>
#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>

tow_status_t tow_scratch_folder_create(char *path, size_t capacity)
{
    const char *parent = getenv("TMPDIR");
    if (parent == NULL || parent[0] == '\0') parent = "/tmp";
    int length = snprintf(path, capacity, "%s/tow-XXXXXX", parent);
    if (length < 0 || (size_t)length >= capacity)
        return TOW_ERROR(TOW_INVALID_ARGUMENT,
                         "TMPDIR is longer than %zu bytes: %s", capacity,
                         parent);
    if (mkdtemp(path) == NULL)
        return TOW_ERRNO(errno, "making a scratch folder under %s", parent);
    return TOW_OK;
}

static int remove_entry(const char *path, const struct stat *info, int kind,
                        struct FTW *position)
{
    (void)info, (void)kind, (void)position;
    remove(path);
    return 0;
}

void tow_scratch_folder_remove(const char *path)
{
    nftw(path, remove_entry, 8, FTW_DEPTH | FTW_PHYS);
}
