/* `tow bench jax`: JAX needs Python, so this process executes the script
 * bench/jax/bench_jax.py. */
#include <errno.h>
#include <stdlib.h>
#include <unistd.h>

#include "bench/benchmarks.h"
#include "bench/harness.h"
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

static tow_status_t exec_script(char *argv[])
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

static tow_status_t run_benchmark(const tow_bench_options_t *options)
{
    char *argv[8] = {NULL};
    size_t count = 2;
    if (options->json) argv[count++] = "--json";
    if (options->quick) argv[count++] = "--quick";
    if (options->only != NULL) {
        argv[count++] = "--case";
        argv[count++] = (char *)(uintptr_t)options->only;
    }
    return exec_script(argv);
}

static tow_status_t print_help(void)
{
    char *argv[] = {NULL, NULL, "--help", NULL};
    return exec_script(argv);
}

const tow_benchmark_t tow_bench_jax = {
    .name = "jax",
    .summary = "unmodified JAX programs on a cluster",
    .run = run_benchmark,
    .print_help = print_help,
};
