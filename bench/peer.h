/* Peers that benchmarks compare with: JAX, as a process that performs rounds on
 * command, and Open MPI, as a new mpirun for each round. */
#ifndef TOW_BENCH_PEER_H_
#define TOW_BENCH_PEER_H_

#include <limits.h>
#include <stdbool.h>

#include "bench/responder.h"

/* The path of a file in the build folder: "bench/peers/jax_gang.py". */
tow_status_t tow_bench_find_built(const char *name, char path[PATH_MAX])
    TOW_MUST_USE;

/* The Python that has JAX: TOW_PYTHON, or that of the source tree. The error
 * says how to install it. */
tow_status_t tow_bench_find_python(char path[PATH_MAX]) TOW_MUST_USE;

/* Runs `script` of the build folder on JAX's own CPU backend with that many
 * devices. The error says how to install JAX. */
tow_status_t tow_bench_jax_start(const char *script, size_t device_count,
                                 tow_bench_responder_t *out_jax) TOW_MUST_USE;

/* True if Open MPI and our program for it are installed. */
bool tow_bench_can_run_mpi(void);
/* MPI_Allreduce of one float: calls per second. */
tow_status_t tow_bench_mpi_rate(size_t rank_count, unsigned long long count,
                                double *out_rate) TOW_MUST_USE;

#endif /* TOW_BENCH_PEER_H_ */
