/* `tow bench jax`: JAX is driven from Python, so the benchmark is a script
 * (bench/jax/bench_jax.py), and this process becomes it. */
#include <errno.h>
#include <stdlib.h>
#include <unistd.h>

#include "tool/bench.h"
#include "tool/bench_peer.h"

/* The plugin of this build, unless another is asked for. */
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

static tow_status_t become(char *argv[])
{
    static char python[PATH_MAX], script[PATH_MAX];
    TOW_RETURN_IF_ERROR(tow_bench_find_python(python));
    TOW_RETURN_IF_ERROR(tow_bench_find_built("bench/jax/bench_jax.py", script));
    TOW_RETURN_IF_ERROR(name_plugin());
    argv[0] = python;
    argv[1] = script;
    execv(python, argv);
    return TOW_ERRNO(errno, "starting %s", python);
}

tow_status_t tow_bench_jax(const tow_bench_options_t *options)
{
    char *argv[8] = {NULL};
    size_t count = 2;
    if (options->json) argv[count++] = "--json";
    if (options->quick) argv[count++] = "--quick";
    if (options->only != NULL) {
        argv[count++] = "--case";
        argv[count++] = (char *)(uintptr_t)options->only;
    }
    return become(argv);
}

tow_status_t tow_bench_jax_help(void)
{
    char *argv[] = {NULL, NULL, "--help", NULL};
    return become(argv);
}
