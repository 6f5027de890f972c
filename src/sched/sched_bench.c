/* What a ticket and an object cost the controller, without messages.
 *
 *     ninja -C build src/sched/sched_bench && build/src/sched/sched_bench */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h> /* tow-allow: a benchmark reads the clock */

#include "base/assert.h"
#include "sched/sched.h"

#define DEVICE_COUNT_MAX 2048
#define CLIENT_COUNT_MAX 100
#define ROUND_COUNT      15

typedef struct bench {
    tow_object_table_t *object_table;
    tow_sched_t *sched;
    tow_placement_t *placement;
    tow_placement_t *elsewhere; /* as many devices of another island */
    uint64_t granted_count;
} bench_t;

static void note_granted(void *context, tow_ticket_t *ticket)
{
    (void)ticket;
    ((bench_t *)context)->granted_count++;
}

static void note_refused(void *context, tow_ticket_t *ticket,
                         tow_status_t take_status)
{
    (void)context, (void)ticket, (void)take_status;
    TOW_UNREACHABLE();
}

static void must(tow_status_t status)
{
    TOW_ASSERT(status == TOW_OK);
}

static void open_bench(bench_t *bench, size_t device_count)
{
    static tow_account_t *accounts[DEVICE_COUNT_MAX];
    memset(bench, 0, sizeof(*bench));
    must(tow_object_table_create(&(tow_object_table_options_t){0},
                                 &bench->object_table));
    for (uint8_t island = 0; island < 2; island++) {
        for (size_t i = 0; i < device_count; i++) {
            must(tow_object_table_add_account(bench->object_table,
                                              UINT64_C(1) << 34, &accounts[i]));
            accounts[i]->island = island;
        }
        must(tow_object_table_place(
            bench->object_table, accounts, device_count, NULL,
            island == 0 ? &bench->placement : &bench->elsewhere));
    }
    tow_sched_options_t options = {
        .grant = note_granted, .refuse = note_refused, .context = bench};
    must(tow_sched_create(&options, &bench->sched));
    must(tow_sched_add_island(bench->sched, 1));
    for (uint32_t i = 1; i <= CLIENT_COUNT_MAX; i++)
        must(tow_sched_add_client(bench->sched, i));
}

static void close_bench(bench_t *bench)
{
    tow_sched_destroy(bench->sched);
    tow_placement_release(bench->placement);
    tow_placement_release(bench->elsewhere);
    tow_object_table_destroy(bench->object_table);
}

/* Of the processor: how crowded the machine is does not count. */
static double now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now); /* tow-allow: a benchmark */
    return (double)now.tv_sec * 1e9 + (double)now.tv_nsec;
}

/* `count` times; the work of one round. */
typedef void (*work_t)(bench_t *bench, size_t count);

static int compare_doubles(const void *a, const void *b)
{
    double difference = *(const double *)a - *(const double *)b;
    return (difference > 0) - (difference < 0);
}

static void report(const char *name, size_t device_count, size_t count,
                   work_t work)
{
    double rounds[ROUND_COUNT];
    bench_t bench;
    open_bench(&bench, device_count);
    work(&bench, count); /* Warms up. */
    for (size_t i = 0; i < ROUND_COUNT; i++) {
        double begin = now_ns();
        work(&bench, count);
        rounds[i] = (now_ns() - begin) / (double)count;
    }
    qsort(rounds, ROUND_COUNT, sizeof(*rounds), compare_doubles);
    printf("%-44s %5zu devices %9.1f ns (%.1f to %.1f)\n", name, device_count,
           rounds[ROUND_COUNT / 2], rounds[0], rounds[ROUND_COUNT - 1]);
    close_bench(&bench);
}

static void submit_turn_finish(bench_t *bench, size_t count)
{
    tow_ticket_part_t part = {bench->placement, 1 << 20, 1};
    tow_ticket_t ticket = {.client = 1,
                           .next = {.step_ns = 1000},
                           .parts = &part,
                           .part_count = 1};
    for (size_t i = 0; i < count; i++) {
        tow_sched_submit(bench->sched, &ticket);
        tow_sched_pass(bench->sched);
        tow_sched_finish(bench->sched, &ticket);
    }
}

static void submit_turn_finish_on_two(bench_t *bench, size_t count)
{
    tow_ticket_part_t parts[] = {{bench->placement, 1 << 20, 1},
                                 {bench->elsewhere, 1 << 20, 1}};
    tow_ticket_link_t links[2];
    tow_ticket_t ticket = {.client = 1,
                           .next = {.step_ns = 1000},
                           .parts = parts,
                           .part_count = 2,
                           .links = links};
    for (size_t i = 0; i < count; i++) {
        tow_sched_submit(bench->sched, &ticket);
        tow_sched_pass(bench->sched);
        tow_sched_finish(bench->sched, &ticket);
    }
}

static void submit_turn_finish_in_batches(bench_t *bench, size_t count)
{
    enum {
        BATCH = 64
    };
    tow_ticket_part_t part = {bench->placement, 1 << 20, 1};
    static tow_ticket_t tickets[BATCH];
    for (size_t i = 0; i < BATCH; i++)
        tickets[i] = (tow_ticket_t){.client = 1,
                                    .next = {.step_ns = 1000},
                                    .parts = &part,
                                    .part_count = 1};
    for (size_t i = 0; i < count; i += BATCH) {
        for (size_t j = 0; j < BATCH; j++)
            tow_sched_submit(bench->sched, &tickets[j]);
        tow_sched_pass(bench->sched);
        for (size_t j = 0; j < BATCH; j++)
            tow_sched_finish(bench->sched, &tickets[j]);
    }
}

/* A hundred clients on the same devices, all but a few waiting for run-ahead:
 * each turn has one finished and one new ticket. */
static void crowd(bench_t *bench, size_t count)
{
    tow_ticket_part_t part = {bench->placement, 1 << 20, 64};
    static tow_ticket_t tickets[CLIENT_COUNT_MAX];
    for (uint32_t i = 0; i < CLIENT_COUNT_MAX; i++) {
        tickets[i] = (tow_ticket_t){.client = i + 1,
                                    .next = {.step_ns = 1000},
                                    .parts = &part,
                                    .part_count = 1};
        tow_sched_submit(bench->sched, &tickets[i]);
    }
    tow_sched_pass(bench->sched);
    for (size_t i = 0; i < count; i++) {
        tow_ticket_t *oldest = &tickets[i % CLIENT_COUNT_MAX];
        tow_sched_finish(bench->sched, oldest);
        tow_sched_submit(bench->sched, oldest);
        tow_sched_pass(bench->sched);
    }
    for (size_t i = 0; i < CLIENT_COUNT_MAX; i++) {
        tow_ticket_t *ticket = &tickets[(count + i) % CLIENT_COUNT_MAX];
        tow_sched_finish(bench->sched, ticket);
        tow_sched_pass(bench->sched);
    }
}

static void live_and_die(bench_t *bench, size_t count)
{
    tow_object_options_t options = {
        .state = TOW_OBJECT_PENDING,
        .shape = {.type = TOW_TYPE_F32, .rank = 2, .dims = {128, 128}},
        .bytes = 1 << 16,
        .placement = bench->placement,
        .count_bytes = true};
    for (size_t i = 0; i < count; i++) {
        options.id.value = tow_key(1, i + 1);
        tow_object_t *object;
        must(tow_object_table_add(bench->object_table, &options, &object));
        object = tow_object_table_find(bench->object_table, options.id);
        tow_object_hold(object);
        tow_object_set_ready(object);
        tow_object_unhold(bench->object_table, object);
        must(tow_object_table_release(bench->object_table, options.id));
    }
}

/* The same while the client has many others, and the oldest goes. */
static void live_and_die_among_many(bench_t *bench, size_t count)
{
    enum {
        OTHERS = 100000
    };
    tow_object_options_t options = {
        .state = TOW_OBJECT_PENDING,
        .shape = {.type = TOW_TYPE_F32, .rank = 2, .dims = {128, 128}},
        .bytes = 1 << 10,
        .placement = bench->placement,
        .count_bytes = true};
    static uint64_t next = 1;
    static const tow_object_table_t *filled;
    size_t fill = filled == bench->object_table ? 0 : OTHERS;
    filled = bench->object_table;
    for (size_t i = 0; i < count + fill; i++) {
        options.id.value = tow_key(1, next++);
        tow_object_t *object;
        must(tow_object_table_add(bench->object_table, &options, &object));
        if (i < fill) continue;
        object = tow_object_table_find(bench->object_table, options.id);
        tow_object_hold(object);
        tow_object_unhold(bench->object_table, object);
        options.id.value = tow_key(1, next - 1 - OTHERS);
        must(tow_object_table_release(bench->object_table, options.id));
    }
}

int main(void)
{
    const char *ticket = "ticket: submit, turn, grant, finish";
    report(ticket, 1, 100000, submit_turn_finish);
    report(ticket, 8, 100000, submit_turn_finish);
    report(ticket, 128, 10000, submit_turn_finish);
    report(ticket, 2048, 1000, submit_turn_finish);
    report("the same, over two islands (of each)", 1, 100000,
           submit_turn_finish_on_two);
    report("the same, over two islands (of each)", 8, 100000,
           submit_turn_finish_on_two);
    report("the same, 64 tickets a turn", 1, 100032,
           submit_turn_finish_in_batches);
    report("the same, 64 tickets a turn", 8, 100032,
           submit_turn_finish_in_batches);
    report("the same, 96 clients wait for run-ahead", 8, 10000, crowd);
    report("the same, 96 clients wait for run-ahead", 2048, 1000, crowd);
    const char *object = "object: add, find, hold, unhold, release";
    report(object, 1, 100000, live_and_die);
    report(object, 8, 100000, live_and_die);
    report(object, 2048, 1000, live_and_die);
    report("the same beside 100,000 others", 8, 100000,
           live_and_die_among_many);
    return 0;
}
