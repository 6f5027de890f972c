/* Peers that benchmarks run beside us: JAX, as a process that stays up and does
 * rounds on command, and Open MPI, as a fresh mpirun each time. */
#ifndef TOW_TOOL_BENCH_PEER_H_
#define TOW_TOOL_BENCH_PEER_H_

#include <limits.h>
#include <stdbool.h>

#include "tool/process.h"

/* A file that the build puts beside `tow`: "bench/jax_gang.py". */
tow_status_t tow_bench_find_built(const char *name, char path[PATH_MAX])
    TOW_MUST_USE;

/* TOW_PYTHON, or that of the tree whose build folder we are in. The error says
 * how to get one that has JAX. */
tow_status_t tow_bench_find_python(char path[PATH_MAX]) TOW_MUST_USE;

typedef struct tow_bench_jax {
    tow_process_t process;
    int socket; /* owned; -1: none */
} tow_bench_jax_t;

#define TOW_BENCH_JAX_NONE \
    ((tow_bench_jax_t){.process = {.output_fd = -1}, .socket = -1})

/* Runs `script` (of the build's bench folder) with JAX's own CPU backend and
 * that many devices. The error says how to get JAX. */
tow_status_t tow_bench_jax_start(const char *script, size_t device_count,
                                 tow_bench_jax_t *out_jax) TOW_MUST_USE;
/* Sends a line and hears how many seconds it took. */
tow_status_t tow_bench_jax_ask(tow_bench_jax_t *jax, const char *line,
                               double *out_seconds) TOW_MUST_USE;
/* Harmless twice. */
void tow_bench_jax_stop(tow_bench_jax_t *jax);

/* Is there an Open MPI, and our program for it? */
bool tow_bench_can_run_mpi(void);
/* MPI_Allreduce of one float, calls a second. */
tow_status_t tow_bench_mpi_rate(size_t rank_count, unsigned long long count,
                                double *out_rate) TOW_MUST_USE;

#endif /* TOW_TOOL_BENCH_PEER_H_ */
