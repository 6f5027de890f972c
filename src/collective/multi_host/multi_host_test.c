/* The blocking layer on real nets: several simulated processes, each with a
 * loop on a thread of its own; arenas stand for hosts. Most tests run them all
 * in this process, so that sanitizers see both sides; tests that kill a process
 * fork one. */
#include "base/testing.h"

#include <fcntl.h>
#include <sched.h> /* tow-allow: a test of threads */
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>

#include "base/random.h"
#include "collective/multi_host/fixture_testing_impl.h"
#include "collective/multi_host/multi_host_impl.h"
#include "collective/reduce.h"

extern char **environ;

/* -- Fixture -------------------------------------------------- */

typedef struct layout {
    const char *name;
    size_t process_count;
    struct {
        int host;
        uint32_t device_count;
    } processes[TEST_PROCESS_COUNT_MAX];
    size_t member_count;
    /* In rank order: process * 10 + device. */
    int members[TEST_MEMBER_COUNT_MAX];
} layout_t;

static const layout_t two_hosts = {"two hosts",
                                   2,
                                   {{0, 1}, {1, 1}},
                                   2,
                                   {0, 10}};
static const layout_t ragged = {"ragged, interleaved",
                                3,
                                {{0, 2}, {0, 1}, {1, 1}},
                                4,
                                {0, 20, 10, 1}};
static const layout_t three_hosts = {"three hosts, backwards",
                                     4,
                                     {{2, 1}, {0, 2}, {1, 1}, {0, 1}},
                                     5,
                                     {30, 20, 11, 10, 0}};
static const layout_t five_hosts = {"five hosts",
                                    5,
                                    {{0, 1}, {1, 1}, {2, 1}, {3, 1}, {4, 1}},
                                    5,
                                    {0, 10, 20, 30, 40}};
static const layout_t one_host = {"one host", 2, {{0, 1}, {0, 1}}, 2, {0, 10}};

#define HOST_COUNT_MAX 5

typedef struct world {
    const layout_t *layout;
    test_process_t processes[TEST_PROCESS_COUNT_MAX];
    int64_t ids[TEST_MEMBER_COUNT_MAX];
    test_member_t members[TEST_MEMBER_COUNT_MAX];
    uint64_t run_id;
    uint64_t occurrence;
} world_t;

static world_t world;

static void introduce(void)
{
    for (size_t i = 0; i < world.layout->process_count; i++)
        for (size_t k = 0; k < world.layout->process_count; k++) {
            if (i == k) continue;
            const tow_multi_host_peer_t peer =
                tow_multi_host_self(world.processes[k].span);
            test_must(tow_multi_host_add_peer(world.processes[i].span, &peer));
        }
}

static void world_open(const layout_t *layout)
{
    world = (world_t){.layout = layout, .run_id = 1};
    for (int host = 0; host < HOST_COUNT_MAX; host++) {
        char arena[64];
        test_arena_name(arena, sizeof(arena), host);
        test_must(tow_intra_host_arena_create(arena));
    }
    for (size_t i = 0; i < layout->process_count; i++) {
        char arena[64];
        test_arena_name(arena, sizeof(arena), layout->processes[i].host);
        test_process_open(
            &world.processes[i],
            &(test_process_options_t){
                .arena = arena,
                .process_id = (uint32_t)i,
                .device_count = layout->processes[i].device_count,
                .host_id = (uint64_t)layout->processes[i].host,
                .check = i % 2 == 0 ? TOW_WRITE_CRC32C : TOW_WRITE_UNCHECKED});
    }
    introduce();
    for (size_t i = 0; i < layout->process_count; i++)
        test_process_run(&world.processes[i]);
    for (size_t i = 0; i < layout->member_count; i++) {
        const int process = layout->members[i] / 10;
        world.ids[i] =
            (int64_t)process * TOW_XLA_PROCESS_STRIDE + layout->members[i] % 10;
        world.members[i].process = &world.processes[process];
    }
}

static void remove_arenas(void)
{
    for (int host = 0; host < HOST_COUNT_MAX; host++) {
        char arena[64];
        test_arena_name(arena, sizeof(arena), host);
        tow_intra_host_arena_remove(arena);
    }
}

static void world_close(void)
{
    for (size_t i = 0; i < world.layout->process_count; i++)
        test_process_stop(&world.processes[i]);
    for (size_t i = 0; i < world.layout->process_count; i++)
        test_process_close(&world.processes[i]);
    remove_arenas();
}

static void prepare(tow_xla_collective_t like)
{
    like.run_id = world.run_id;
    like.op_id = (uint64_t)like.kind;
    like.occurrence = world.occurrence++;
    like.members = world.ids;
    like.member_count = world.layout->member_count;
    for (size_t i = 0; i < like.member_count; i++) {
        world.members[i].collective = like;
        world.members[i].collective.rank = i;
    }
}

static void run_all(void)
{
    for (size_t i = 0; i < world.layout->member_count; i++)
        test_member_start(&world.members[i]);
    for (size_t i = 0; i < world.layout->member_count; i++)
        pthread_join(world.members[i].thread, NULL);
}

static void succeed(void)
{
    run_all();
    for (size_t i = 0; i < world.layout->member_count; i++) {
        assert_string_equal(world.members[i].error, "");
        assert_int_equal(world.members[i].code, 0);
    }
}

/* -- Values ---------------------------------------------------------------- */

typedef struct kind_of_value {
    tow_type_t type;
    size_t bytes;
    tow_reduction_t reduction;
} kind_of_value_t;

static const kind_of_value_t values_of[] = {
    {TOW_TYPE_F32, 4, TOW_REDUCE_SUM},  {TOW_TYPE_F64, 8, TOW_REDUCE_MAX},
    {TOW_TYPE_S32, 4, TOW_REDUCE_MIN},  {TOW_TYPE_U8, 1, TOW_REDUCE_SUM},
    {TOW_TYPE_BF16, 2, TOW_REDUCE_SUM}, {TOW_TYPE_C128, 16, TOW_REDUCE_SUM},
};

/* Element `at` of the block that `rank` sends to `to`, small enough for exact
 * sums in every type. */
static int value_at(size_t rank, size_t to, size_t at)
{
    return (int)((rank * 5 + to * 3 + at % 11) % 23);
}

static void encode(const kind_of_value_t *kind, int value, uint8_t *out)
{
    const float f32 = (float)value;
    const double f64 = value, c128[2] = {value, -value};
    const int32_t s32 = value;
    uint32_t bits;
    memcpy(&bits, &f32, sizeof(bits));
    const uint16_t bf16 = (uint16_t)(bits >> 16);
    switch (kind->type) {
    case TOW_TYPE_F32: memcpy(out, &f32, 4); break;
    case TOW_TYPE_F64: memcpy(out, &f64, 8); break;
    case TOW_TYPE_S32: memcpy(out, &s32, 4); break;
    case TOW_TYPE_U8: *out = (uint8_t)value; break;
    case TOW_TYPE_BF16: memcpy(out, &bf16, 2); break;
    case TOW_TYPE_C128: memcpy(out, c128, 16); break;
    default: fail();
    }
}

static uint8_t *new_block(const kind_of_value_t *kind, size_t rank, size_t to,
                          size_t first, size_t count)
{
    uint8_t *block = tow_malloc(count * kind->bytes + 1);
    for (size_t i = 0; i < count; i++)
        encode(kind, value_at(rank, to, first + i), block + i * kind->bytes);
    return block;
}

/* The sum of all members' blocks for `to`. */
static uint8_t *reduced(const kind_of_value_t *kind, size_t to, size_t first,
                        size_t count)
{
    uint8_t *sum = new_block(kind, 0, to, first, count);
    for (size_t rank = 1; rank < world.layout->member_count; rank++) {
        uint8_t *block = new_block(kind, rank, to, first, count);
        tow_reduce(sum, block, count, kind->type, kind->reduction);
        tow_free(block);
    }
    return sum;
}

static void expect(size_t rank, const void *got, uint8_t *take_expected,
                   size_t bytes)
{
    if (memcmp(got, take_expected, bytes) != 0)
        fail_msg("rank %zu got other bytes", rank);
    tow_free(take_expected);
}

static tow_xla_collective_t like(tow_xla_collective_kind_t kind,
                                 const kind_of_value_t *value, size_t count)
{
    return (tow_xla_collective_t){.kind = kind,
                                  .element_type = (int)value->type,
                                  .reduction =
                                      (tow_xla_reduction_t)value->reduction,
                                  .element_bytes = value->bytes,
                                  .element_count = count};
}

/* Every member sends and receives this many contiguous blocks. */
static void give_memory(const kind_of_value_t *kind, size_t sent,
                        size_t received)
{
    for (size_t i = 0; i < world.layout->member_count; i++) {
        world.members[i].send[0] = new_block(kind, i, 0, 0, sent);
        world.members[i].receive[0] = tow_calloc(received + 1, kind->bytes);
    }
}

static void take_memory(void)
{
    for (size_t i = 0; i < world.layout->member_count; i++) {
        tow_free((void *)world.members[i].send[0]);
        tow_free(world.members[i].receive[0]);
    }
}

static void try_all_reduce(const kind_of_value_t *kind, size_t count)
{
    prepare(like(TOW_XLA_ALL_REDUCE, kind, count));
    give_memory(kind, count, count);
    succeed();
    for (size_t i = 0; i < world.layout->member_count; i++)
        expect(i, world.members[i].receive[0], reduced(kind, 0, 0, count),
               count * kind->bytes);
    take_memory();
}

static void try_reduce_scatter(const kind_of_value_t *kind, size_t count)
{
    const size_t n = world.layout->member_count;
    prepare(like(TOW_XLA_REDUCE_SCATTER, kind, count));
    give_memory(kind, n * count, count);
    succeed();
    for (size_t i = 0; i < n; i++)
        expect(i, world.members[i].receive[0],
               reduced(kind, 0, i * count, count), count * kind->bytes);
    take_memory();
}

static void try_all_gather(const kind_of_value_t *kind, size_t count)
{
    const size_t n = world.layout->member_count;
    prepare(like(TOW_XLA_ALL_GATHER, kind, count));
    give_memory(kind, count, n * count);
    succeed();
    for (size_t i = 0; i < n; i++)
        for (size_t from = 0; from < n; from++)
            expect(i,
                   (uint8_t *)world.members[i].receive[0] +
                       from * count * kind->bytes,
                   new_block(kind, from, 0, 0, count), count * kind->bytes);
    take_memory();
}

static void try_broadcast(const kind_of_value_t *kind, size_t count)
{
    for (size_t root = 0; root < world.layout->member_count; root++) {
        tow_xla_collective_t broadcast = like(TOW_XLA_BROADCAST, kind, count);
        broadcast.root = root;
        prepare(broadcast);
        give_memory(kind, count, count);
        succeed();
        for (size_t i = 0; i < world.layout->member_count; i++)
            expect(i, world.members[i].receive[0],
                   new_block(kind, root, 0, 0, count), count * kind->bytes);
        take_memory();
    }
}

static void try_all_to_all(const kind_of_value_t *kind, size_t count)
{
    const size_t n = world.layout->member_count;
    prepare(like(TOW_XLA_ALL_TO_ALL, kind, count));
    for (size_t i = 0; i < n; i++)
        for (size_t k = 0; k < n; k++) {
            world.members[i].send[k] = new_block(kind, i, k, 0, count);
            world.members[i].receive[k] = tow_calloc(count, kind->bytes);
        }
    succeed();
    for (size_t i = 0; i < n; i++)
        for (size_t k = 0; k < n; k++) {
            expect(i, world.members[i].receive[k],
                   new_block(kind, k, i, 0, count), count * kind->bytes);
            tow_free((void *)world.members[i].send[k]);
            tow_free(world.members[i].receive[k]);
        }
}

/* A ring of all but the last, which neither sends nor receives. */
static void try_permute(const kind_of_value_t *kind, size_t count)
{
    const size_t n = world.layout->member_count;
    const size_t circle = n > 2 ? n - 1 : n;
    prepare(like(TOW_XLA_PERMUTE, kind, count));
    give_memory(kind, count, count);
    for (size_t i = 0; i < n; i++) {
        test_member_t *member = &world.members[i];
        member->target = (i + 1) % circle;
        member->collective.targets = &member->target;
        member->collective.target_count = i < circle;
        member->collective.source =
            i < circle ? (i + circle - 1) % circle : SIZE_MAX;
    }
    succeed();
    for (size_t i = 0; i < circle; i++)
        expect(i, world.members[i].receive[0],
               new_block(kind, (i + circle - 1) % circle, 0, 0, count),
               count * kind->bytes);
    take_memory();
}

static void try_barrier(void)
{
    prepare((tow_xla_collective_t){.kind = TOW_XLA_BARRIER});
    succeed();
}

/* -- All kinds against a reference ---------------------------------------- */

static void try_everything(const layout_t *layout, size_t count)
{
    world_open(layout);
    for (size_t k = 0; k < TOW_COUNT_OF(values_of); k++) {
        const kind_of_value_t *kind = &values_of[k];
        try_all_reduce(kind, count);
        try_reduce_scatter(kind, count);
        try_all_gather(kind, count);
        try_broadcast(kind, count);
        try_all_to_all(kind, count);
        try_permute(kind, count);
        try_barrier();
    }
    world_close();
}

/* One letter, several, and more than there are slots for. */
static const size_t counts[] = {1, 1000, 70001};

static void all_kinds_on(const layout_t *layout)
{
    for (size_t i = 0; i < TOW_COUNT_OF(counts); i++)
        try_everything(layout, counts[i]);
}

static void all_kinds_on_two_hosts(void **state)
{
    (void)state;
    all_kinds_on(&two_hosts);
}

static void all_kinds_on_ragged_hosts(void **state)
{
    (void)state;
    all_kinds_on(&ragged);
}

static void all_kinds_on_three_hosts(void **state)
{
    (void)state;
    all_kinds_on(&three_hosts);
}

static void all_kinds_on_five_hosts(void **state)
{
    (void)state;
    all_kinds_on(&five_hosts);
}

static void a_gang_of_one_host_needs_no_leader(void **state)
{
    (void)state;
    try_everything(&one_host, 1000);
}

static void nothing_is_exchanged_for_no_elements(void **state)
{
    (void)state;
    try_everything(&ragged, 0);
}

/* The sums depend on the order of additions, but all members get the same. */
static void all_members_get_the_same_bits(void **state)
{
    (void)state;
    static const size_t sizes[] = {64, 100000};
    const kind_of_value_t *kind = &values_of[0];
    tow_random_t random;
    tow_random_init(&random, 7);
    world_open(&three_hosts);
    for (size_t s = 0; s < TOW_COUNT_OF(sizes); s++) {
        prepare(like(TOW_XLA_ALL_REDUCE, kind, sizes[s]));
        give_memory(kind, sizes[s], sizes[s]);
        for (size_t i = 0; i < world.layout->member_count; i++)
            for (size_t k = 0; k < sizes[s]; k++)
                ((float *)world.members[i].send[0])[k] =
                    (float)(int64_t)tow_random_next(&random) * 1e-9f;
        succeed();
        for (size_t i = 1; i < world.layout->member_count; i++)
            assert_memory_equal(world.members[i].receive[0],
                                world.members[0].receive[0], sizes[s] * 4);
        take_memory();
    }
    world_close();
}

/* -- Sequences and concurrent sub-gangs ------------------------------------ */

#define MARCH_STEPS 200

typedef struct marcher {
    pthread_t thread;
    test_process_t *process;
    const int64_t *ids;
    size_t count;
    size_t rank;
    uint64_t run_id;
    char wrong[300];
} marcher_t;

static void *march(void *argument)
{
    marcher_t *marcher = argument;
    for (uint64_t i = 0; i < MARCH_STEPS && marcher->wrong[0] == '\0'; i++) {
        int64_t mine = (int64_t)(i + marcher->rank), sum = 0;
        const void *send = &mine;
        void *receive = &sum;
        const tow_xla_collective_t collective = {
            .struct_size = sizeof(collective),
            .kind = TOW_XLA_ALL_REDUCE,
            .run_id = marcher->run_id,
            .op_id = 1,
            .occurrence = i,
            .members = marcher->ids,
            .member_count = marcher->count,
            .rank = marcher->rank,
            .element_type = TOW_TYPE_S64,
            .reduction = TOW_XLA_SUM,
            .element_count = 1,
            .element_bytes = 8,
            .send = &send,
            .receive = &receive,
        };
        const int code =
            tow_multi_host_collective(marcher->process->span, &collective,
                                      marcher->wrong, sizeof(marcher->wrong));
        const int64_t n = (int64_t)marcher->count;
        if (code == 0 && sum != n * (int64_t)i + n * (n - 1) / 2)
            snprintf(marcher->wrong, sizeof(marcher->wrong), "step %d: %lld",
                     (int)i, (long long)sum);
    }
    return NULL;
}

static const layout_t squares = {"two hosts, two devices each",
                                 2,
                                 {{0, 2}, {1, 2}},
                                 4,
                                 {0, 10, 1, 11}};

/* All four, then two halves across both hosts, concurrently. */
static void gangs_and_sub_gangs_follow_each_other(void **state)
{
    (void)state;
    world_open(&squares);
    for (uint64_t round = 0; round < 3; round++) {
        const size_t count = round % 2 == 0 ? 4 : 2;
        marcher_t marchers[4];
        for (size_t i = 0; i < 4; i++) {
            marchers[i] = (marcher_t){.process = world.members[i].process,
                                      .ids = &world.ids[i / count * count],
                                      .count = count,
                                      .rank = i % count,
                                      .run_id = round};
            test_thread_start(&marchers[i].thread, march, &marchers[i]);
        }
        for (size_t i = 0; i < 4; i++) {
            pthread_join(marchers[i].thread, NULL);
            assert_string_equal(marchers[i].wrong, "");
        }
    }
    world_close();
}

#define BROADCAST_COUNT 400

typedef struct runner {
    test_member_t member;
    pthread_t thread;
    _Atomic uint64_t step_count;
    int64_t value;
    char wrong[400];
} runner_t;

/* Rank 0 broadcasts numbers to rank 1. */
static void *run_broadcasts(void *argument)
{
    runner_t *runner = argument;
    test_member_t *member = &runner->member;
    for (uint64_t i = 0; i < BROADCAST_COUNT && runner->wrong[0] == '\0'; i++) {
        runner->value = member->collective.rank == 0 ? (int64_t)i : -1;
        member->send[0] = member->receive[0] = &runner->value;
        member->collective.occurrence = i;
        test_member_main(member);
        if (member->code != 0 || runner->value != (int64_t)i)
            snprintf(runner->wrong, sizeof(runner->wrong), "step %d: %s",
                     (int)i, member->error);
        atomic_fetch_add(&runner->step_count, 1);
    }
    return NULL;
}

/* A device that only sends runs ahead of a late reader, but within bounds. */
static void a_sender_runs_ahead_within_bounds(void **state)
{
    (void)state;
    world_open(&two_hosts);
    tow_xla_collective_t broadcast = like(TOW_XLA_BROADCAST, &values_of[1], 1);
    prepare(broadcast);
    static runner_t runners[2];
    for (size_t i = 0; i < 2; i++) {
        runners[i] = (runner_t){.member = world.members[i]};
        runners[i].member.collective.rank = i;
    }
    test_thread_start(&runners[0].thread, run_broadcasts, &runners[0]);
    while (atomic_load(&runners[0].step_count) < TOW_MULTI_HOST_SLOT_COUNT)
        sched_yield();
    test_process_stop(&world.processes[0]);
    assert_true(
        tow_letters_stats(world.processes[0].span->letters).envelope_count <=
        TOW_MULTI_HOST_BACKLOG_COUNT_MAX);
    assert_true(atomic_load(&runners[0].step_count) <=
                TOW_MULTI_HOST_SLOT_COUNT + TOW_MULTI_HOST_BACKLOG_COUNT_MAX);
    test_process_run(&world.processes[0]);
    test_thread_start(&runners[1].thread, run_broadcasts, &runners[1]);
    for (size_t i = 0; i < 2; i++) {
        pthread_join(runners[i].thread, NULL);
        assert_string_equal(runners[i].wrong, "");
    }
    world_close();
}

/* -- Failures ------------------------------------------------------- */

/* One member is absent; the others get the error, and all stay usable. */
static void an_aborted_gang_fails_and_its_devices_stay_usable(void **state)
{
    (void)state;
    const kind_of_value_t *kind = &values_of[0];
    world_open(&three_hosts);
    try_all_reduce(kind, 10);
    const size_t n = world.layout->member_count;
    for (size_t absent = 0; absent < n; absent++) {
        prepare(like(TOW_XLA_ALL_REDUCE, kind, 50000));
        give_memory(kind, 50000, 50000);
        for (size_t i = 0; i < n; i++)
            if (i != absent) test_member_start(&world.members[i]);
        tow_multi_host_abort(world.members[absent].process->span, world.run_id,
                             TOW_CANCELLED, "the client has left");
        for (size_t i = 0; i < n; i++)
            if (i != absent) pthread_join(world.members[i].thread, NULL);
        test_member_main(&world.members[absent]);
        for (size_t i = 0; i < n; i++) {
            assert_string_equal(world.members[i].error, "the client has left");
            assert_int_equal(world.members[i].code, TOW_CANCELLED);
        }
        take_memory();
        world.run_id++;
        try_all_reduce(kind, 50000);
    }
    world_close();
}

/* Of all processes. */
static size_t list_waits(tow_intra_host_wait_t waits[TEST_MEMBER_COUNT_MAX])
{
    size_t count = 0;
    int64_t now_ns;
    for (size_t i = 0; i < world.layout->process_count; i++)
        count +=
            tow_intra_host_list_waits(world.processes[i].host, waits + count,
                                      TEST_MEMBER_COUNT_MAX - count, &now_ns);
    return count;
}

static bool waits(const tow_intra_host_wait_t *all, size_t count,
                  int64_t device)
{
    for (size_t i = 0; i < count; i++)
        if (all[i].device == device) return true;
    return false;
}

/* Members wait for members of their host, leaders for leaders: each of these
 * chains ends at the late member. */
static void waits_lead_to_the_late_member(void **state)
{
    (void)state;
    tow_intra_host_wait_t all[TEST_MEMBER_COUNT_MAX];
    world_open(&three_hosts);
    const size_t n = world.layout->member_count;
    for (size_t late = 0; late < n; late++) {
        prepare((tow_xla_collective_t){.kind = TOW_XLA_BARRIER});
        for (size_t i = 0; i < n; i++)
            if (i != late) test_member_start(&world.members[i]);
        while (list_waits(all) != n - 1)
            sched_yield();
        for (size_t i = 0; i < n - 1; i++) {
            assert_true(all[i].missing_count > 0);
            for (size_t k = 0; k < all[i].missing_count; k++)
                assert_true(all[i].missing[k] == world.ids[late] ||
                            waits(all, n - 1, all[i].missing[k]));
        }
        test_member_main(&world.members[late]);
        for (size_t i = 0; i < n; i++) {
            if (i != late) pthread_join(world.members[i].thread, NULL);
            assert_int_equal(world.members[i].code, 0);
        }
        assert_int_equal(list_waits(all), 0);
    }
    world_close();
}

static void bad_input_fails_every_member(void **state)
{
    (void)state;
    world_open(&ragged);
    tow_xla_collective_t bad = like(TOW_XLA_ALL_REDUCE, &values_of[5], 1);
    bad.reduction = TOW_XLA_MAX;
    prepare(bad);
    run_all();
    for (size_t i = 0; i < world.layout->member_count; i++) {
        assert_int_equal(world.members[i].code, TOW_UNIMPLEMENTED);
        assert_non_null(strstr(world.members[i].error, "c128"));
    }
    /* One of them runs another program. */
    world.run_id++;
    prepare(like(TOW_XLA_ALL_REDUCE, &values_of[0], 100));
    give_memory(&values_of[0], 100, 100);
    world.members[1].collective.element_count = 50;
    run_all();
    for (size_t i = 0; i < world.layout->member_count; i++) {
        assert_int_equal(world.members[i].code, TOW_INVALID_ARGUMENT);
        assert_non_null(
            strstr(world.members[i].error, "do not run the same program"));
    }
    take_memory();
    world.run_id++;
    try_all_reduce(&values_of[0], 100);
    world_close();
}

static void an_absent_process_is_named(void **state)
{
    (void)state;
    world_open(&two_hosts);
    prepare(like(TOW_XLA_ALL_REDUCE, &values_of[0], 1));
    give_memory(&values_of[0], 1, 1);
    world.ids[1] = 77 * TOW_XLA_PROCESS_STRIDE;
    test_member_main(&world.members[0]);
    assert_int_equal(world.members[0].code, TOW_UNAVAILABLE);
    assert_non_null(strstr(world.members[0].error, "its process 77"));
    take_memory();
    world_close();
}

/* The control plane removes a process that others wait for. */
static void a_removed_process_is_named(void **state)
{
    (void)state;
    const kind_of_value_t *kind = &values_of[0];
    world_open(&ragged);
    try_all_reduce(kind, 10);
    prepare(like(TOW_XLA_ALL_REDUCE, kind, 10));
    give_memory(kind, 10, 10);
    const size_t n = world.layout->member_count;
    for (size_t i = 0; i < n; i++)
        if (i != 1) test_member_start(&world.members[i]);
    tow_status_t cause = TOW_ERROR(TOW_UNAVAILABLE, "its lease has ended");
    for (size_t i = 0; i < 2; i++) {
        test_process_stop(&world.processes[i]);
        tow_multi_host_remove_peer(world.processes[i].span, 2, cause);
        test_process_run(&world.processes[i]);
    }
    tow_status_ignore(cause, "told");
    for (size_t i = 0; i < n; i++) {
        if (i == 1) continue;
        pthread_join(world.members[i].thread, NULL);
        assert_int_equal(world.members[i].code, TOW_UNAVAILABLE);
        assert_string_equal(world.members[i].error,
                            "process 2 is gone: its lease has ended");
    }
    take_memory();
    world_close();
}

/* -- Another process that dies or freezes ---------------------------------- */

typedef struct child {
    pid_t pid;
    int to;   /* what it reads */
    int from; /* what it writes */
} child_t;

enum {
    CHILD_ID = 1,
};

/* Runs the collective of run `run_id` with the child, here or there. */
static int meet(test_process_t *process, size_t rank, uint64_t run_id,
                char *error, size_t capacity)
{
    static const int64_t ids[] = {0, CHILD_ID * TOW_XLA_PROCESS_STRIDE};
    static float values[2][40000];
    const void *send = values[0];
    void *receive = values[1];
    const tow_xla_collective_t collective = {
        .struct_size = sizeof(collective),
        .kind = TOW_XLA_ALL_REDUCE,
        .run_id = run_id,
        .members = ids,
        .member_count = 2,
        .rank = rank,
        .element_type = TOW_TYPE_F32,
        .reduction = TOW_XLA_SUM,
        .element_count = TOW_COUNT_OF(values[0]),
        .element_bytes = 4,
        .send = &send,
        .receive = &receive,
    };
    error[0] = '\0';
    return tow_multi_host_collective(process->span, &collective, error,
                                     capacity);
}

/* Runs the collectives whose run ids it reads, until the pipe ends. */
static int child_main(const char *arena)
{
    test_process_t process;
    test_process_open(&process,
                      &(test_process_options_t){.arena = arena,
                                                .process_id = CHILD_ID,
                                                .device_count = 1,
                                                .host_id = 1});
    test_send_card(STDOUT_FILENO, &process);
    test_add_card(STDIN_FILENO, &process);
    test_process_run(&process);
    uint64_t run_id;
    while (read(STDIN_FILENO, &run_id, sizeof(run_id)) == sizeof(run_id)) {
        char error[300];
        const int code = meet(&process, 1, run_id, error, sizeof(error));
        if (write(STDOUT_FILENO, &code, sizeof(code)) != sizeof(code)) break;
    }
    test_process_close(&process);
    return 0;
}

static void child_start(child_t *child, const char *arena)
{
    int in[2], out[2];
    assert_int_equal(pipe2(in, O_CLOEXEC), 0);
    assert_int_equal(pipe2(out, O_CLOEXEC), 0);
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, in[0], STDIN_FILENO);
    posix_spawn_file_actions_adddup2(&actions, out[1], STDOUT_FILENO);
    char *argv[] = {(char *)"span_test", (char *)"--child", (char *)arena,
                    NULL};
    int error;
    error = posix_spawn(/* tow-allow: test */ &child->pid, "/proc/self/exe",
                        &actions, NULL, argv, environ);
    assert_int_equal(error, 0);
    posix_spawn_file_actions_destroy(&actions);
    close(in[0]);
    close(out[1]);
    child->to = in[1];
    child->from = out[0];
}

static void child_meet(const child_t *child, uint64_t run_id)
{
    assert_int_equal(write(child->to, &run_id, sizeof(run_id)), sizeof(run_id));
}

static int child_code(const child_t *child)
{
    int code = -1;
    assert_int_equal(read(child->from, &code, sizeof(code)), sizeof(code));
    return code;
}

static void child_end(const child_t *child)
{
    close(child->to);
    close(child->from);
    assert_int_equal(waitpid(child->pid, NULL, 0), child->pid);
}

/* We are process 0 on host 0, and the child is on host 1. */
static void pair_open(test_process_t *process, child_t *child)
{
    char arenas[2][64];
    for (int i = 0; i < 2; i++) {
        test_arena_name(arenas[i], sizeof(arenas[i]), i);
        test_must(tow_intra_host_arena_create(arenas[i]));
    }
    child_start(child, arenas[1]);
    test_process_open(process, &(test_process_options_t){.arena = arenas[0],
                                                         .process_id = 0,
                                                         .device_count = 1,
                                                         .host_id = 0});
    test_add_card(child->from, process);
    test_send_card(child->to, process);
    test_process_run(process);
    char error[300];
    child_meet(child, 1);
    assert_int_equal(meet(process, 0, 1, error, sizeof(error)), 0);
    assert_int_equal(child_code(child), 0);
}

static void pair_close(test_process_t *process, const child_t *child)
{
    child_end(child);
    test_process_close(process);
    remove_arenas();
}

static void a_killed_process_is_named(void **state)
{
    (void)state;
    test_process_t process;
    child_t child;
    char error[300];
    pair_open(&process, &child);
    kill(child.pid, SIGKILL);
    assert_int_equal(meet(&process, 0, 2, error, sizeof(error)),
                     TOW_UNAVAILABLE);
    assert_non_null(strstr(error, "process 1"));
    pair_close(&process, &child);
}

static void a_frozen_process_is_named_and_may_wake_up(void **state)
{
    (void)state;
    test_process_t process;
    child_t child;
    char error[300];
    pair_open(&process, &child);
    kill(child.pid, SIGSTOP);
    child_meet(&child, 2);
    assert_int_equal(meet(&process, 0, 2, error, sizeof(error)),
                     TOW_UNAVAILABLE);
    assert_non_null(strstr(error, "process 1 has given no sign of life"));
    kill(child.pid, SIGCONT);
    assert_int_equal(child_code(&child), TOW_UNAVAILABLE);
    child_meet(&child, 3);
    assert_int_equal(meet(&process, 0, 3, error, sizeof(error)), 0);
    assert_int_equal(child_code(&child), 0);
    pair_close(&process, &child);
}

/* -- Transports ------------------------------------------------------------ */

static int use_shm(void **state)
{
    (void)state;
    test_use_shm();
    return 0;
}

static int use_tcp(void **state)
{
    (void)state;
    test_use_tcp();
    return 0;
}

#define ON_SHM(test) cmocka_unit_test_setup(test, use_shm)
#define ON_BOTH(test)                              \
    {#test "_on_shm", test, use_shm, NULL, NULL},  \
    {                                              \
#test "_on_tcp", test, use_tcp, NULL, NULL \
    }

int main(int argc, char **argv)
{
    if (argc == 3 && strcmp(argv[1], "--child") == 0)
        return child_main(argv[2]);
    const struct CMUnitTest tests[] = {
        ON_BOTH(all_kinds_on_two_hosts),
        ON_BOTH(all_kinds_on_ragged_hosts),
        ON_SHM(all_kinds_on_three_hosts),
        ON_BOTH(all_kinds_on_five_hosts),
        ON_SHM(a_gang_of_one_host_needs_no_leader),
        ON_SHM(nothing_is_exchanged_for_no_elements),
        ON_BOTH(all_members_get_the_same_bits),
        ON_BOTH(gangs_and_sub_gangs_follow_each_other),
        ON_BOTH(a_sender_runs_ahead_within_bounds),
        ON_BOTH(an_aborted_gang_fails_and_its_devices_stay_usable),
        ON_SHM(waits_lead_to_the_late_member),
        ON_SHM(bad_input_fails_every_member),
        ON_SHM(an_absent_process_is_named),
        ON_BOTH(a_removed_process_is_named),
        ON_BOTH(a_killed_process_is_named),
        ON_BOTH(a_frozen_process_is_named_and_may_wake_up),
    };
    return tow_test_main(argc, argv, tests, TOW_COUNT_OF(tests));
}
