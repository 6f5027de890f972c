/* The benchmarks of `tow bench`. A benchmark is one file that defines a
 * tow_benchmark_t, and a row in registry.c. */
#ifndef TOW_BENCH_REGISTRY_H_
#define TOW_BENCH_REGISTRY_H_

#include <stdbool.h>
#include <stddef.h>

#include "base/macros.h"
#include "base/status.h"
#include "bench/harness.h"

/* A helper process of a benchmark: `tow bench NAME ARGUMENT...`. */
typedef struct tow_benchmark_child {
    const char *name;
    tow_status_t (*run)(int argc, char **argv);
} tow_benchmark_child_t;

typedef struct tow_benchmark {
    const char *name;         /* `tow bench NAME` */
    const char *summary;      /* one line, for `tow bench --help` */
    const char *const *cases; /* names, NULL at the end; NULL: see print_help */
    tow_status_t (*run)(const tow_bench_options_t *options);
    /* `tow bench NAME --help`; NULL: the summary and the cases. */
    tow_status_t (*print_help)(void);
    const tow_benchmark_child_t *children; /* no name at the end; NULL: none */
} tow_benchmark_t;

size_t tow_benchmark_count(void);
const tow_benchmark_t *tow_benchmark_at(size_t index);
/* NULL: there is no such benchmark. */
const tow_benchmark_t *tow_benchmark_find(const char *name);
/* True if the benchmark lists the case. */
bool tow_benchmark_has_case(const tow_benchmark_t *benchmark, const char *name);
/* NULL: no benchmark has such a helper process. */
const tow_benchmark_child_t *tow_benchmark_child_find(const char *name);

#endif /* TOW_BENCH_REGISTRY_H_ */
