/* A measurement between two new processes: one serves, the other measures. */
#ifndef TOW_BENCH_PAIR_H_
#define TOW_BENCH_PAIR_H_

#include <stddef.h>

#include "bench/netns.h"

/* An argument of the measuring process: the first line that the server
 * prints, which says where it listens. */
#define TOW_BENCH_SERVER_LINE "@"

typedef struct tow_bench_pair {
    const char *name; /* in errors */
    tow_bench_place_t server_place;
    char *const *server_argv;
    tow_bench_place_t measure_place;
    char *const *measure_argv;
    char *const *environment; /* of both; NULL-terminated, may be NULL */
} tow_bench_pair_t;

/* The positive number that the measuring process prints. */
tow_status_t tow_bench_pair_run(const tow_bench_pair_t *pair, double *out_value)
    TOW_MUST_USE;

/* Reads the first line that a process prints, in bounded time. */
tow_status_t tow_bench_read_line(const tow_subprocess_t *process,
                                 const char *name, char *line, size_t capacity)
    TOW_MUST_USE;
/* Runs a program that prints a positive number. */
tow_status_t tow_bench_run_for_number(const tow_bench_place_t *place,
                                      const char *name, char *const argv[],
                                      char *const extra[], double *out_value)
    TOW_MUST_USE;

#endif /* TOW_BENCH_PAIR_H_ */
