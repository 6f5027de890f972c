/* Shared by the programs without Towpath that `tow bench` runs as peers. */
#ifndef TOW_BENCH_PEERS_BARE_H_
#define TOW_BENCH_PEERS_BARE_H_

#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

static inline double now_s(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + (double)time.tv_nsec * 1e-9;
}

static inline void die(const char *what)
{
    perror(what);
    exit(1);
}

static inline int compare_doubles(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Sorts the samples; `count` > 0. */
static inline double median_of(double *samples, size_t count)
{
    qsort(samples, count, sizeof(*samples), compare_doubles);
    return samples[count / 2];
}

#endif /* TOW_BENCH_PEERS_BARE_H_ */
