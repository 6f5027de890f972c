/* The peer of `tow bench device`: consecutive MPI_Allreduce calls of one float.
 * Rank 0 prints calls per second.
 *
 *   mpirun -np N mpi_allreduce COUNT */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

static void reduce(long count)
{
    float value = 1, sum = 0;
    for (long i = 0; i < count; i++)
        MPI_Allreduce(&value, &sum, 1, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
}

int main(int argc, char **argv)
{
    if (argc != 2) return 2;
    int rank = 0;
    const long count = atol(argv[1]);
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    reduce(count / 10 + 1);
    MPI_Barrier(MPI_COMM_WORLD);
    const double start = MPI_Wtime();
    reduce(count);
    const double seconds = MPI_Wtime() - start;
    if (rank == 0) printf("%.9g\n", (double)count / seconds);
    MPI_Finalize();
    return 0;
}
