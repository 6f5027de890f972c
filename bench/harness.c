#include "bench/harness.h"

#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/assert.h"
#include "bench/registry.h"

int64_t tow_bench_now_ns(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (int64_t)time.tv_sec * 1000000000 + time.tv_nsec;
}

typedef struct spread {
    double low;
    double median;
    double high;
    double median_low; /* the 95 % confidence interval of the median */
    double median_high;
} spread_t;

static int compare_doubles(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

double tow_bench_median(double *values, size_t count)
{
    TOW_ASSERT(count > 0);
    qsort(values, count, sizeof(*values), compare_doubles);
    return count % 2 == 1 ? values[count / 2]
                          : (values[count / 2 - 1] + values[count / 2]) / 2;
}

/* How many of the sorted rounds to leave out at each end for the 95 %
 * confidence interval of the median by ranks, as in bench/jax/bench_jax.py. */
static size_t count_outside(size_t count)
{
    size_t cut = 0;
    double below = 0, chance = ldexp(1, -(int)count);
    while (below + chance <= 0.025 && cut < count / 2) {
        below += chance;
        chance *= (double)(count - cut) / (double)(cut + 1);
        cut++;
    }
    return cut > 0 ? cut - 1 : 0;
}

static spread_t spread_of(const double *values, size_t count)
{
    double sorted[TOW_BENCH_ROUNDS_MAX];
    memcpy(sorted, values, count * sizeof(*values));
    const double median = tow_bench_median(sorted, count);
    const size_t outside = count_outside(count);
    return (spread_t){.low = sorted[0],
                      .median = median,
                      .high = sorted[count - 1],
                      .median_low = sorted[outside],
                      .median_high = sorted[count - 1 - outside]};
}

typedef struct result {
    spread_t ours;
    spread_t peer;
    spread_t ratio;
    size_t rounds;
} result_t;

static void print_json(const tow_bench_case_t *c, const result_t *r)
{
    json_t *object = json_pack(
        "{s:s, s:s, s:f, s:s, s:s, s:f, s:f, s:[f,f], s:b, s:f, s:f, s:f, s:f, "
        "s:I}",
        "bench", c->bench, "case", c->name, "value", r->ours.median, "unit",
        c->unit, "peer", c->peer, "peer_value", r->peer.median, "ratio",
        r->ratio.median, "spread", r->ratio.median_low, r->ratio.median_high,
        "simulated", c->simulated ? 1 : 0, "value_low", r->ours.low,
        "value_high", r->ours.high, "ratio_low", r->ratio.low, "ratio_high",
        r->ratio.high, "rounds", (json_int_t)r->rounds);
    if (object == NULL) return;
    if (c->bar > 0) json_object_set_new(object, "bar", json_real(c->bar));
    json_dumpf(object, stdout, JSON_COMPACT | JSON_REAL_PRECISION(6));
    printf("\n");
    json_decref(object);
}

/* A target is met by the median, met within the spread, or missed. */
static const char *verdict(const tow_bench_case_t *c, const result_t *r)
{
    if (r->ratio.median >= c->bar) return "met";
    return r->ratio.high >= c->bar ? "within the spread" : "missed";
}

static void print_text(const tow_bench_case_t *c, const result_t *r)
{
    printf("%-6s %-26s %11.4g %-6s  peer %11.4g  ratio %6.2f [%.2f-%.2f]",
           c->bench, c->name, r->ours.median, c->unit, r->peer.median,
           r->ratio.median, r->ratio.low, r->ratio.high);
    if (c->bar > 0) printf("  bar %.2f %s", c->bar, verdict(c, r));
    printf("  (%s%s)\n", c->peer, c->simulated ? "; simulated" : "");
}

static tow_status_t measure_peer(const tow_bench_case_t *c, double *out_value)
{
    if (c->peer_run != NULL) return c->peer_run(c->context, out_value);
    *out_value = c->limit;
    return TOW_OK;
}

bool tow_bench_is_chosen(const tow_bench_case_t *c,
                         const tow_bench_options_t *options)
{
    return options->only == NULL || strstr(c->name, options->only) != NULL;
}

tow_status_t tow_bench_run_case(const tow_bench_case_t *c, size_t rounds,
                                const tow_bench_options_t *options)
{
    TOW_ASSERT(rounds > 0 && rounds <= TOW_BENCH_ROUNDS_MAX);
    TOW_ASSERT(tow_benchmark_has_case(tow_benchmark_find(c->bench), c->name));
    if (!tow_bench_is_chosen(c, options)) return TOW_OK;
    double ours[TOW_BENCH_ROUNDS_MAX], peer[TOW_BENCH_ROUNDS_MAX];
    double ratio[TOW_BENCH_ROUNDS_MAX];
    for (size_t i = 0; i < rounds; i++) {
        tow_status_t status = c->run(c->context, &ours[i]);
        if (status == TOW_OK) status = measure_peer(c, &peer[i]);
        if (status != TOW_OK)
            return tow_status_annotate(status, "bench %s, case %s", c->bench,
                                       c->name);
        ratio[i] = c->better == TOW_BENCH_LOWER_IS_BETTER ? peer[i] / ours[i]
                                                          : ours[i] / peer[i];
    }
    result_t result = {spread_of(ours, rounds), spread_of(peer, rounds),
                       spread_of(ratio, rounds), rounds};
    if (options->json)
        print_json(c, &result);
    else
        print_text(c, &result);
    fflush(stdout);
    return TOW_OK;
}
