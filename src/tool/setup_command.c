/* `tow setup`: downloads XLA into the user's cache folder. It runs
 * python/towpath/xla.py, as `make` does, which uses pip and thus the package
 * index that the user has configured. */
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/macros.h"
#include "tool/command.h"

/* In a wheel, in the build folder of a clone, and where `make install` puts
 * it. */
static bool find_script(const char *folder, char script[PATH_MAX])
{
    static const char *const tails[] = {"../xla.py", "../python/towpath/xla.py",
                                        "../share/towpath/xla.py"};
    for (size_t i = 0; i < TOW_COUNT_OF(tails); i++) {
        const int length =
            snprintf(script, PATH_MAX, "%s/%s", folder, tails[i]);
        if (length < PATH_MAX && access(script, R_OK) == 0) return true;
    }
    return false;
}

/* TOW_PYTHON, which the wheel's `tow` sets to its own Python; else the clone's;
 * else the one in PATH. */
static const char *find_python(const char *folder, char path[PATH_MAX])
{
    const char *given = getenv("TOW_PYTHON");
    if (given != NULL && given[0] != '\0') return given;
    const int length =
        snprintf(path, PATH_MAX, "%s/../.venv/bin/python", folder);
    return length < PATH_MAX && access(path, X_OK) == 0 ? path : "python3";
}

static tow_status_t become_script(int argc, char **argv)
{
    char folder[PATH_MAX], script[PATH_MAX], python[PATH_MAX];
    const ssize_t length =
        readlink("/proc/self/exe", folder, sizeof(folder) - 1);
    if (length <= 0) return TOW_ERRNO(errno, "finding the program itself");
    folder[length] = '\0';
    *strrchr(folder, '/') = '\0';
    if (!find_script(folder, script))
        return TOW_ERROR(TOW_NOT_FOUND,
                         "xla.py is not beside %s: reinstall Towpath", folder);
    const char **words = tow_calloc((size_t)argc + 3, sizeof(*words));
    if (words == NULL) return tow_status_bare(TOW_RESOURCE_EXHAUSTED);
    words[0] = find_python(folder, python);
    words[1] = "-I";
    words[2] = script;
    for (int i = 1; i < argc; i++)
        words[i + 2] = argv[i];
    execvp(words[0], (char *const *)words);
    tow_status_t status = TOW_ERRNO(
        errno, "starting %s (set TOW_PYTHON to use another Python)", words[0]);
    tow_free(words);
    return status;
}

int tow_command_setup(int argc, char **argv)
{
    return tow_command_finish("setup", become_script(argc, argv));
}
