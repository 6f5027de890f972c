#include "bench/peer.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/assert.h"

#define CHILD_TIMEOUT_NS INT64_C(60000000000)

tow_status_t tow_bench_find_built(const char *name, char path[PATH_MAX])
{
    TOW_ASSERT(path !=
               NULL); /* gcc with sanitizers warns of a NULL path otherwise. */
    ssize_t length = readlink("/proc/self/exe", path, PATH_MAX - 64);
    if (length <= 0) return TOW_ERRNO(errno, "finding the program itself");
    path[length] = '\0';
    snprintf(strrchr(path, '/'), 64, "/%s", name);
    if (access(path, R_OK) != 0)
        return TOW_ERRNO(errno, "%s: build it with `make`", path);
    return TOW_OK;
}

/* -- JAX -------------------------------------------------------------------- */

tow_status_t tow_bench_find_python(char path[PATH_MAX])
{
    const char *given = getenv("TOW_PYTHON");
    if (given != NULL) {
        snprintf(path, PATH_MAX, "%s", given);
        return TOW_OK;
    }
    return tow_status_annotate(
        tow_bench_find_built("../.venv/bin/python", path),
        "JAX is needed: `make setup` installs it into .venv, or set TOW_PYTHON to a Python that has it");
}

tow_status_t tow_bench_jax_start(const char *script, size_t device_count,
                                 tow_bench_responder_t *out_jax)
{
    char python[PATH_MAX], path[PATH_MAX], count[24], flags[96];
    *out_jax = TOW_BENCH_RESPONDER_NONE;
    TOW_RETURN_IF_ERROR(tow_bench_find_python(python));
    TOW_RETURN_IF_ERROR(tow_bench_find_built(script, path));
    snprintf(count, sizeof(count), "%zu", device_count);
    snprintf(flags, sizeof(flags),
             "XLA_FLAGS=--xla_force_host_platform_device_count=%s", count);
    char *const argv[] = {python, path, count, NULL};
    char *const extra[] = {flags, "NPROC=16", "JAX_PLATFORMS=cpu", NULL};
    return tow_bench_responder_start("the process that runs JAX",
                                     &(tow_bench_place_t){0}, argv, extra,
                                     out_jax);
}

/* -- Open MPI --------------------------------------------------------------- */

bool tow_bench_can_run_mpi(void)
{
    char path[PATH_MAX];
    tow_status_t status =
        tow_bench_find_built("bench/peers/mpi_allreduce", path);
    const bool is_built = status == TOW_OK;
    tow_status_ignore(status, "the caller reports that it skips the peer");
    return is_built && system("command -v mpirun >/dev/null") == 0;
}

/* A new mpirun each time: ranks that wait for a command would spin. */
tow_status_t tow_bench_mpi_rate(size_t rank_count, unsigned long long count,
                                double *out_rate)
{
    char program[PATH_MAX], ranks[24], calls[24], text[1024];
    TOW_RETURN_IF_ERROR(
        tow_bench_find_built("bench/peers/mpi_allreduce", program));
    snprintf(ranks, sizeof(ranks), "%zu", rank_count);
    snprintf(calls, sizeof(calls), "%llu", count);
    /* With more ranks than cores, waiting ranks must yield. */
    const long cores = sysconf(_SC_NPROCESSORS_ONLN);
    char *yields = (long)rank_count > cores ? "1" : "0";
    char *const argv[] = {"mpirun",
                          "-np",
                          ranks,
                          "--oversubscribe",
                          "--allow-run-as-root",
                          "--bind-to",
                          "none",
                          "--mca",
                          "btl",
                          "self,vader",
                          "--mca",
                          "mpi_yield_when_idle",
                          yields,
                          program,
                          calls,
                          NULL};
    tow_subprocess_t child = {.output_fd = -1};
    TOW_RETURN_IF_ERROR(
        tow_subprocess_start(argv, NULL, TOW_SUBPROCESS_PIPE, &child));
    TOW_RETURN_IF_ERROR(tow_subprocess_finish(
        &child, "mpirun", CHILD_TIMEOUT_NS, text, sizeof(text)));
    *out_rate = strtod(text, NULL);
    if (*out_rate <= 0)
        return TOW_ERROR(TOW_INTERNAL, "mpirun printed '%s'", text);
    return TOW_OK;
}
