/* Collectives between the leaders of the hosts, one thread per host.
 *
 * Small arrays are reduced by recursive doubling: log2(hosts) rounds, in each
 * of which pairs exchange all their data; hosts beyond a power of two send
 * theirs to a neighbour first. Large arrays use a ring: a reduce-scatter, then
 * an all-gather; every link carries 2(n-1)/n of the bytes, which is optimal.
 * Either way all hosts get the bits that one of them computed, or that both of
 * a pair computed from the same operands in the same order. */
#include <string.h>

#include "base/alloc.h"
#include "collective/multi_host/multi_host_impl.h"

static size_t smaller(size_t a, size_t b)
{
    return a < b ? a : b;
}

static size_t divide_up(size_t a, size_t b)
{
    return (a + b - 1) / b;
}

/* -- Byte ranges split into letters ---------------------------------------- */

typedef struct stretch {
    uint8_t *bytes;
    size_t size;
    size_t letter_bytes;
    const tow_xla_collective_t *collective;
} stretch_t;

/* At least one letter, so that a barrier has something to send. */
static size_t letters_of(size_t size, size_t letter_bytes)
{
    return size == 0 ? 1 : divide_up(size, letter_bytes);
}

static size_t stretch_size(const flow_t *flow, size_t index)
{
    const stretch_t *stretch = flow->context;
    return smaller(stretch->letter_bytes,
                   stretch->size - index * stretch->letter_bytes);
}

static void stretch_fill(flow_t *flow, size_t index, uint8_t *letter)
{
    const stretch_t *stretch = flow->context;
    const size_t size = stretch_size(flow, index);
    if (size > 0)
        memcpy(letter, stretch->bytes + index * stretch->letter_bytes, size);
}

static void stretch_take(flow_t *flow, size_t index, uint8_t *letter)
{
    const stretch_t *stretch = flow->context;
    const size_t size = stretch_size(flow, index);
    if (size > 0)
        memcpy(stretch->bytes + index * stretch->letter_bytes, letter, size);
}

static void combine(const tow_xla_collective_t *collective, uint8_t *into,
                    const uint8_t *from, size_t size)
{
    if (size == 0) return;
    tow_reduce(into, from, size / collective->element_bytes,
               (tow_type_t)collective->element_type,
               (tow_reduction_t)collective->reduction);
}

/* values = values op letter */
static void stretch_combine(flow_t *flow, size_t index, uint8_t *letter)
{
    const stretch_t *stretch = flow->context;
    combine(stretch->collective, stretch->bytes + index * stretch->letter_bytes,
            letter, stretch_size(flow, index));
}

/* values = letter op values: the letter comes from lower hosts. */
static void stretch_combine_before(flow_t *flow, size_t index, uint8_t *letter)
{
    const stretch_t *stretch = flow->context;
    const size_t size = stretch_size(flow, index);
    uint8_t *values = stretch->bytes + index * stretch->letter_bytes;
    combine(stretch->collective, letter, values, size);
    if (size > 0) memcpy(values, letter, size);
}

static flow_t flow_over(const stretch_t *stretch, size_t host,
                        void (*move)(flow_t *, size_t, uint8_t *))
{
    return (flow_t){.host = host,
                    .count = letters_of(stretch->size, stretch->letter_bytes),
                    .size_of = stretch_size,
                    .move = move,
                    .context = stretch};
}

/* -- Recursive doubling ---------------------------------------------------- */

static tow_status_t swap_with(job_t *job, const stretch_t *values, size_t host)
{
    flow_t out = flow_over(values, host, stretch_fill);
    flow_t in = flow_over(values, host,
                          host < job->gang->here ? stretch_combine_before
                                                 : stretch_combine);
    in.after = &out; /* Send the values before they change. */
    return flow_run(job, &out, 1, &in, 1);
}

static tow_status_t give_to(job_t *job, const stretch_t *values, size_t host)
{
    flow_t out = flow_over(values, host, stretch_fill);
    return flow_run(job, &out, 1, NULL, 0);
}

static tow_status_t take_from(job_t *job, const stretch_t *values, size_t host,
                              void (*move)(flow_t *, size_t, uint8_t *))
{
    flow_t in = flow_over(values, host, move);
    return flow_run(job, NULL, 0, &in, 1);
}

/* Step numbers reserved for one recursive doubling, including the steps before
 * and after it; hosts skip those that they have no part in. */
#define ROUND_COUNT_MAX 66

/* Of the first 2 * extra hosts, each even one sends its values to the odd one
 * after it and receives the result from there; the rest is a power of two. */
static tow_status_t double_up(job_t *job, const stretch_t *values, size_t extra,
                              size_t power)
{
    const uint64_t first = job->exchange_count;
    const size_t here = job->gang->here;
    const bool is_paired = here < 2 * extra;
    if (is_paired && here % 2 == 0) {
        TOW_RETURN_IF_ERROR(give_to(job, values, here + 1));
        job->exchange_count = first + ROUND_COUNT_MAX - 1;
        return take_from(job, values, here + 1, stretch_take);
    }
    if (is_paired)
        TOW_RETURN_IF_ERROR(
            take_from(job, values, here - 1, stretch_combine_before));
    job->exchange_count = first + 1;
    const size_t index = is_paired ? here / 2 : here - extra;
    for (size_t reach = 1; reach < power; reach *= 2) {
        const size_t other = index ^ reach;
        const size_t host = other < extra ? 2 * other + 1 : other + extra;
        TOW_RETURN_IF_ERROR(swap_with(job, values, host));
    }
    job->exchange_count = first + ROUND_COUNT_MAX - 1;
    return is_paired ? give_to(job, values, here - 1) : TOW_OK;
}

static tow_status_t reduce_by_doubling(job_t *job, const stretch_t *values)
{
    const uint64_t first = job->exchange_count;
    size_t power = 1;
    while (power * 2 <= job->gang->host_count)
        power *= 2;
    TOW_RETURN_IF_ERROR(
        double_up(job, values, job->gang->host_count - power, power));
    job->exchange_count = first + ROUND_COUNT_MAX;
    return TOW_OK;
}

/* -- Ring ------------------------------------------------------------------ */

typedef struct circle {
    uint8_t *values;
    size_t element_count;
    size_t letter_elements;
    size_t letters_a_step; /* of the largest block; the last may be empty */
    size_t host_count;
    size_t here;
    const tow_xla_collective_t *collective;
} circle_t;

typedef struct piece {
    uint8_t *bytes;
    size_t size;
    bool is_final; /* combined by all */
} piece_t;

/* The data of letter `index`, `behind` hosts behind us. In step s we send block
 * (here - s) and receive block (here - s - 1); after host_count - 1 steps our
 * block is complete, and goes round the ring once more. */
static piece_t piece_at(const circle_t *circle, size_t index, size_t behind)
{
    const size_t n = circle->host_count;
    const size_t step = index / circle->letters_a_step;
    const size_t block = (circle->here + 2 * n - step - behind) % n;
    const size_t begin = circle->element_count * block / n;
    const size_t end = circle->element_count * (block + 1) / n;
    const size_t at =
        begin + index % circle->letters_a_step * circle->letter_elements;
    const size_t elements =
        at >= end ? 0 : smaller(circle->letter_elements, end - at);
    const size_t element_bytes = circle->collective->element_bytes;
    return (piece_t){.bytes = circle->values + at * element_bytes,
                     .size = elements * element_bytes,
                     .is_final = step >= n - 1};
}

static size_t circle_out_size(const flow_t *flow, size_t index)
{
    return piece_at(flow->context, index, 0).size;
}

static size_t circle_in_size(const flow_t *flow, size_t index)
{
    return piece_at(flow->context, index, 1).size;
}

static void circle_fill(flow_t *flow, size_t index, uint8_t *letter)
{
    const piece_t piece = piece_at(flow->context, index, 0);
    if (piece.size > 0) memcpy(letter, piece.bytes, piece.size);
}

static void circle_take(flow_t *flow, size_t index, uint8_t *letter)
{
    const circle_t *circle = flow->context;
    const piece_t piece = piece_at(circle, index, 1);
    if (piece.size == 0) return;
    if (piece.is_final)
        memcpy(piece.bytes, letter, piece.size);
    else
        combine(circle->collective, piece.bytes, letter, piece.size);
}

static tow_status_t reduce_by_ring(job_t *job, uint8_t *values,
                                   size_t element_count)
{
    const tow_xla_collective_t *collective = job->collective;
    const size_t n = job->gang->host_count;
    const size_t letter_elements =
        job->errand->capacity / collective->element_bytes;
    const circle_t circle = {
        .values = values,
        .element_count = element_count,
        .letter_elements = letter_elements,
        .letters_a_step =
            divide_up(divide_up(element_count, n), letter_elements),
        .host_count = n,
        .here = job->gang->here,
        .collective = collective,
    };
    flow_t out = {.host = (circle.here + 1) % n,
                  .count = 2 * (n - 1) * circle.letters_a_step,
                  .lag = circle.letters_a_step,
                  .size_of = circle_out_size,
                  .move = circle_fill,
                  .context = &circle};
    flow_t in = {.host = (circle.here + n - 1) % n,
                 .count = out.count,
                 .size_of = circle_in_size,
                 .move = circle_take,
                 .context = &circle};
    out.after = &in; /* A step sends what the previous one received. */
    return flow_run(job, &out, 1, &in, 1);
}

tow_status_t leaders_reduce(job_t *job, uint8_t *values, size_t element_count)
{
    const size_t element_bytes = job->collective->element_bytes;
    const size_t size = element_count * element_bytes;
    if (size > TOW_MULTI_HOST_DOUBLING_BYTES_MAX)
        return reduce_by_ring(job, values, element_count);
    const stretch_t stretch = {
        .bytes = values,
        .size = size,
        .letter_bytes = job->errand->capacity,
        .collective = job->collective,
    };
    return reduce_by_doubling(job, &stretch);
}

/* -- Tree ------------------------------------------------------------------ */

/* A binomial tree. Hosts are numbered from the root: host v receives from v
 * without its lowest bit, and sends to v plus each smaller power of two. */
tow_status_t leaders_broadcast(job_t *job, size_t root, uint8_t *bytes,
                               size_t size)
{
    const size_t n = job->gang->host_count;
    const size_t number = (job->gang->here + n - root) % n;
    const stretch_t stretch = {
        .bytes = bytes, .size = size, .letter_bytes = job->errand->capacity};
    flow_t in;
    flow_t outs[64];
    size_t out_count = 0;
    size_t reach = number & (~number + 1);
    if (number != 0)
        in = flow_over(&stretch, ((number & (number - 1)) + root) % n,
                       stretch_take);
    else
        for (reach = 1; reach < n;)
            reach *= 2;
    for (reach /= 2; reach > 0; reach /= 2) {
        if (number + reach >= n) continue;
        outs[out_count] =
            flow_over(&stretch, (number + reach + root) % n, stretch_fill);
        if (number != 0) outs[out_count].after = &in;
        out_count++;
    }
    return flow_run(job, outs, out_count, &in, number != 0);
}

/* -- All-to-all exchange --------------------------------------------------- */

typedef struct exchange {
    stretch_t *stretches; /* two a host */
    flow_t *flows;        /* likewise: senders, then receivers */
    size_t out_count;
    size_t in_count;
} exchange_t;

static void exchange_close(exchange_t *exchange)
{
    tow_free(exchange->stretches);
    tow_free(exchange->flows);
}

/* Both sides know that there is no data, so no letter is sent. */
static void add_flow(job_t *job, exchange_t *exchange, size_t host,
                     stretch_t stretch,
                     void (*move)(flow_t *, size_t, uint8_t *))
{
    if (stretch.size == 0) return;
    const size_t n = job->gang->host_count;
    const bool sends = move == stretch_fill;
    const size_t index =
        sends ? exchange->out_count++ : n + exchange->in_count++;
    stretch.letter_bytes = job->errand->capacity;
    stretch.collective = job->collective;
    exchange->stretches[index] = stretch;
    exchange->flows[index] = flow_over(&exchange->stretches[index], host, move);
}

static tow_status_t exchange_open(job_t *job, const parcel_t *parcels,
                                  void (*move)(flow_t *, size_t, uint8_t *),
                                  exchange_t *exchange)
{
    const size_t n = job->gang->host_count;
    *exchange = (exchange_t){
        .stretches = tow_calloc(2 * n, sizeof(*exchange->stretches)),
        .flows = tow_calloc(2 * n, sizeof(*exchange->flows))};
    if (exchange->stretches == NULL || exchange->flows == NULL) {
        exchange_close(exchange);
        return tow_status_bare(TOW_RESOURCE_EXHAUSTED);
    }
    /* Each host starts at another one, to spread the load. */
    for (size_t i = 1; i < n; i++) {
        const size_t host = (job->gang->here + i) % n;
        const parcel_t *parcel = &parcels[host];
        add_flow(job, exchange, host,
                 (stretch_t){.bytes = (uint8_t *)parcel->send,
                             .size = parcel->send_size},
                 stretch_fill);
    }
    for (size_t host = 0; host < n; host++) {
        if (host == job->gang->here) continue;
        const parcel_t *parcel = &parcels[host];
        add_flow(
            job, exchange, host,
            (stretch_t){.bytes = parcel->receive, .size = parcel->receive_size},
            move);
    }
    return TOW_OK;
}

static tow_status_t exchange_run(job_t *job, exchange_t *exchange)
{
    tow_status_t status =
        flow_run(job, exchange->flows, exchange->out_count,
                 exchange->flows + job->gang->host_count, exchange->in_count);
    exchange_close(exchange);
    return status;
}

tow_status_t leaders_exchange(job_t *job, const parcel_t *parcels)
{
    exchange_t exchange;
    TOW_RETURN_IF_ERROR(exchange_open(job, parcels, stretch_take, &exchange));
    return exchange_run(job, &exchange);
}

tow_status_t leaders_scatter(job_t *job, const parcel_t *parcels)
{
    exchange_t exchange;
    TOW_RETURN_IF_ERROR(
        exchange_open(job, parcels, stretch_combine, &exchange));
    /* In the order of hosts, so that all runs give the same bits. */
    flow_t *ins = exchange.flows + job->gang->host_count;
    for (size_t i = 1; i < exchange.in_count; i++)
        ins[i].after = &ins[i - 1];
    return exchange_run(job, &exchange);
}
