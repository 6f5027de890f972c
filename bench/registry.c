#include "bench/registry.h"

#include <string.h>

#include "base/assert.h"
#include "bench/benchmarks.h"

static const tow_benchmark_t *const benchmarks[] = {
    &tow_bench_calibrate, &tow_bench_device,   &tow_bench_dispatch,
    &tow_bench_hosts,     &tow_bench_jax,      &tow_bench_net,
    &tow_bench_pieces,    &tow_bench_pipeline, &tow_bench_program,
    &tow_bench_scale,     &tow_bench_sim,      &tow_bench_transfer,
};

size_t tow_benchmark_count(void)
{
    return TOW_COUNT_OF(benchmarks);
}

const tow_benchmark_t *tow_benchmark_at(size_t index)
{
    TOW_ASSERT(index < TOW_COUNT_OF(benchmarks));
    return benchmarks[index];
}

const tow_benchmark_t *tow_benchmark_find(const char *name)
{
    for (size_t i = 0; i < TOW_COUNT_OF(benchmarks); i++)
        if (strcmp(benchmarks[i]->name, name) == 0) return benchmarks[i];
    return NULL;
}

bool tow_benchmark_has_case(const tow_benchmark_t *benchmark, const char *name)
{
    for (const char *const *at = benchmark->cases; at != NULL && *at != NULL;
         at++)
        if (strcmp(*at, name) == 0) return true;
    return false;
}

const tow_benchmark_child_t *tow_benchmark_child_find(const char *name)
{
    for (size_t i = 0; i < TOW_COUNT_OF(benchmarks); i++) {
        const tow_benchmark_child_t *child = benchmarks[i]->children;
        for (; child != NULL && child->name != NULL; child++)
            if (strcmp(child->name, name) == 0) return child;
    }
    return NULL;
}
