#include "bench/script.h"

#include <errno.h>
#include <stdint.h>
#include <stdlib.h>
#include <unistd.h>

#include "bench/peer.h"

/* Selects the plugin of this build unless TOW_PJRT_LIBRARY is set. */
static tow_status_t name_plugin(void)
{
    char library[PATH_MAX];
    if (getenv("TOW_PJRT_LIBRARY") != NULL) return TOW_OK;
    TOW_RETURN_IF_ERROR(
        tow_bench_find_built("src/pjrt/libtowpath_pjrt.so", library));
    if (setenv("TOW_PJRT_LIBRARY", library, 1) != 0)
        return TOW_ERRNO(errno, "setting TOW_PJRT_LIBRARY");
    return TOW_OK;
}

/* The first two arguments are filled in here. */
static tow_status_t exec_script(const char *script, char *argv[])
{
    static char python[PATH_MAX], path[PATH_MAX];
    TOW_RETURN_IF_ERROR(tow_bench_find_python(python));
    TOW_RETURN_IF_ERROR(tow_bench_find_built(script, path));
    TOW_RETURN_IF_ERROR(name_plugin());
    argv[0] = python;
    argv[1] = path;
    execv(python, argv);
    return TOW_ERRNO(errno, "starting %s", python);
}

tow_status_t tow_bench_exec_script(const char *script,
                                   const tow_bench_options_t *options)
{
    char *argv[8] = {NULL};
    size_t count = 2;
    if (options->json) argv[count++] = "--json";
    if (options->quick) argv[count++] = "--quick";
    if (options->only != NULL) {
        argv[count++] = "--case";
        argv[count++] = (char *)(uintptr_t)options->only;
    }
    return exec_script(script, argv);
}

tow_status_t tow_bench_exec_script_help(const char *script)
{
    char *argv[] = {NULL, NULL, "--help", NULL};
    return exec_script(script, argv);
}
