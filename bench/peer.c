#include "bench/peer.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/assert.h"

#define CHILD_TIMEOUT_NS INT64_C(60000000000)
#define CHILD_TIMEOUT_MS 60000

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

static tow_status_t receive(tow_bench_jax_t *jax, char *line, size_t capacity)
{
    struct pollfd waited = {.fd = jax->socket, .events = POLLIN};
    ssize_t size = -1;
    if (poll(&waited, 1, CHILD_TIMEOUT_MS) == 1)
        size = read(jax->socket, line, capacity - 1);
    if (size <= 0)
        return TOW_ERROR(TOW_UNAVAILABLE,
                         "the process that runs JAX %s (its output is above)",
                         size == 0 ? "ended" : "does not reply");
    line[size] = '\0';
    return TOW_OK;
}

static tow_status_t start(const char *script, size_t device_count,
                          tow_bench_jax_t *jax)
{
    char python[PATH_MAX], path[PATH_MAX], count[24], descriptor[24];
    char flags[96], line[64];
    int ends[2];
    TOW_RETURN_IF_ERROR(tow_bench_find_python(python));
    TOW_RETURN_IF_ERROR(tow_bench_find_built(script, path));
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0)
        return TOW_ERRNO(errno, "making a socket for JAX");
    jax->socket = ends[0];
    fcntl(ends[1], F_SETFD, 0);
    snprintf(count, sizeof(count), "%zu", device_count);
    snprintf(descriptor, sizeof(descriptor), "%d", ends[1]);
    snprintf(flags, sizeof(flags),
             "XLA_FLAGS=--xla_force_host_platform_device_count=%s", count);
    char *const argv[] = {python, path, count, descriptor, NULL};
    char *const extra[] = {flags, "NPROC=16", "JAX_PLATFORMS=cpu", NULL};
    tow_status_t status = tow_subprocess_start(
        argv, extra, TOW_SUBPROCESS_INHERIT, &jax->process);
    close(ends[1]);
    TOW_RETURN_IF_ERROR(status);
    return receive(jax, line, sizeof(line));
}

tow_status_t tow_bench_jax_start(const char *script, size_t device_count,
                                 tow_bench_jax_t *out_jax)
{
    *out_jax = TOW_BENCH_JAX_NONE;
    tow_status_t status = start(script, device_count, out_jax);
    if (status != TOW_OK) tow_bench_jax_stop(out_jax);
    return status;
}

tow_status_t tow_bench_jax_request(tow_bench_jax_t *jax, const char *line,
                                   double *out_seconds)
{
    const ssize_t length = (ssize_t)strlen(line);
    char answer[64];
    if (send(jax->socket, line, (size_t)length, MSG_NOSIGNAL) != length)
        return TOW_ERRNO(errno, "sending to the process that runs JAX");
    TOW_RETURN_IF_ERROR(receive(jax, answer, sizeof(answer)));
    *out_seconds = strtod(answer, NULL);
    if (*out_seconds > 0) return TOW_OK;
    return TOW_ERROR(TOW_INTERNAL, "JAX replied '%s'", answer);
}

void tow_bench_jax_stop(tow_bench_jax_t *jax)
{
    if (jax->socket >= 0) close(jax->socket);
    jax->socket = -1;
    tow_subprocess_kill(&jax->process);
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
