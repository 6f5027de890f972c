/* A folder of its own for each test that needs files. */
#ifndef TOW_WIRE_FOLDER_TESTING_IMPL_H_
#define TOW_WIRE_FOLDER_TESTING_IMPL_H_

#include "base/testing.h"

#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#define TOW_FOLDER_PATH_MAX 256

static char folder_path[TOW_FOLDER_PATH_MAX];

static inline int folder_set_up(void **state)
{
    const char *parent = getenv("TMPDIR");
    snprintf(folder_path, sizeof(folder_path), "%s/tow-wire-XXXXXX",
             parent != NULL ? parent : "/tmp");
    return mkdtemp(folder_path) == NULL;
}

static inline int folder_remove_entry(const char *path,
                                      const struct stat *facts, int kind,
                                      struct FTW *place)
{
    return remove(path);
}

static inline int folder_tear_down(void **state)
{
    return nftw(folder_path, folder_remove_entry, 8, FTW_DEPTH | FTW_PHYS);
}

/* A path in the folder. Lent until the fourth call after it. */
static inline const char *in_folder(const char *name)
{
    static char paths[4][TOW_FOLDER_PATH_MAX + 64];
    static size_t next;
    char *path = paths[next++ % TOW_COUNT_OF(paths)];
    snprintf(path, sizeof(paths[0]), "%s/%s", folder_path, name);
    return path;
}

#endif /* TOW_WIRE_FOLDER_TESTING_IMPL_H_ */
