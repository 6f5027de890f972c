/* The intra-host engine through the interface of XLA's collectives, with every
 * kind, type and reduction: XLA widens bf16 and f16, and never calls broadcast
 * or barrier, so tests through XLA would not cover these. */
#include "base/testing.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "collective/intra_host/intra_host.h"
#include "element.h"

enum {
    MEMBER_COUNT = 4,
    BLOCK_LENGTH = 4,
    BLOCKS_MAX = MEMBER_COUNT,
    BYTES_MAX = BLOCKS_MAX * BLOCK_LENGTH * 16,
};

static char arena_name[64];
static tow_intra_host_t *host;
static const int64_t IDS[MEMBER_COUNT] = {100, 101, 102, 103};

static int set_up(void **state)
{
    static int serial;
    snprintf(arena_name, sizeof(arena_name), "/tow-engine-%d-%d", (int)getpid(),
             serial++);
    assert_null(tow_intra_host_arena_create(arena_name));
    tow_intra_host_options_t options = {
        .arena = arena_name, .device_ids = IDS, .device_count = MEMBER_COUNT};
    assert_null(tow_intra_host_open(&options, &host));
    return 0;
}

static int tear_down(void **state)
{
    tow_intra_host_close(host);
    tow_intra_host_arena_remove(arena_name);
    return 0;
}

/* -- A gang of threads ----------------------------------------------------- */

typedef struct member {
    pthread_t thread;
    tow_xla_collective_t collective;
    unsigned char sent[BYTES_MAX];
    unsigned char received[BYTES_MAX];
    const void *send[MEMBER_COUNT];
    void *receive[MEMBER_COUNT];
    size_t target;
    int code;
    char error[256];
} member_t;

static void *take_part(void *argument)
{
    member_t *member = argument;
    member->code = tow_intra_host_collective(
        host, &member->collective, member->error, sizeof(member->error));
    return NULL;
}

static member_t members[MEMBER_COUNT];

static bool sends_many(tow_xla_collective_kind_t kind)
{
    return kind == TOW_XLA_REDUCE_SCATTER || kind == TOW_XLA_ALL_TO_ALL;
}

/* Rank 0 receives nothing. */
static void prepare_permute(member_t *member, size_t rank)
{
    member->collective.source = rank == 0 ? SIZE_MAX : rank - 1;
    member->target = rank + 1;
    member->collective.targets = &member->target;
    member->collective.target_count = rank + 1 < MEMBER_COUNT;
}

static void prepare(size_t rank, const tow_xla_collective_t *like,
                    const element_kind_t *type)
{
    member_t *member = &members[rank];
    *member = (member_t){.collective = *like};
    tow_xla_collective_t *collective = &member->collective;
    const size_t blocks = sends_many(like->kind) ? MEMBER_COUNT : 1;
    for (size_t i = 0; i < blocks * BLOCK_LENGTH; i++)
        element_write(type, element_sent(type, rank, i / BLOCK_LENGTH + i),
                      member->sent + i * type->bytes);
    for (size_t i = 0; i < MEMBER_COUNT; i++) {
        member->send[i] = member->sent + i * BLOCK_LENGTH * type->bytes;
        member->receive[i] = member->received + i * BLOCK_LENGTH * type->bytes;
    }
    collective->struct_size = sizeof(*collective);
    collective->members = IDS;
    collective->member_count = MEMBER_COUNT;
    collective->rank = rank;
    collective->element_type = (int)type->type;
    collective->element_bytes = type->bytes;
    collective->element_count = BLOCK_LENGTH;
    collective->send = member->send;
    collective->receive = member->receive;
    if (like->kind == TOW_XLA_PERMUTE) prepare_permute(member, rank);
}

static void run_all(tow_xla_collective_t like, const element_kind_t *type)
{
    static uint64_t run_id;
    like.run_id = ++run_id;
    for (size_t rank = 0; rank < MEMBER_COUNT; rank++)
        prepare(rank, &like, type);
    for (size_t rank = 0; rank < MEMBER_COUNT; rank++)
        assert_int_equal(pthread_create(&members[rank].thread, NULL, take_part,
                                        &members[rank]),
                         0);
    for (size_t rank = 0; rank < MEMBER_COUNT; rank++)
        pthread_join(members[rank].thread, NULL);
    for (size_t rank = 0; rank < MEMBER_COUNT; rank++) {
        assert_string_equal(members[rank].error, "");
        assert_int_equal(members[rank].code, 0);
    }
}

/* -- Expected results ----------------------------------------------------- */

static double complex sent_at(const element_kind_t *type, size_t rank,
                              size_t block, size_t at)
{
    return element_sent(type, rank, block + block * BLOCK_LENGTH + at);
}

static double complex reduced_at(const element_kind_t *type,
                                 element_reduction_t reduction, size_t block,
                                 size_t at)
{
    double complex value = sent_at(type, 0, block, at);
    for (size_t rank = 1; rank < MEMBER_COUNT; rank++)
        value = element_reduce(type, reduction, value,
                               sent_at(type, rank, block, at));
    return value;
}

static void expect_block(const element_kind_t *type, size_t rank, size_t block,
                         size_t at, double complex value)
{
    unsigned char expected[16];
    element_write(type, value, expected);
    const unsigned char *got =
        members[rank].received + (block * BLOCK_LENGTH + at) * type->bytes;
    if (memcmp(got, expected, type->bytes) != 0)
        fail_msg("%s, kind %d, reduction %d: rank %zu, block %zu, element %zu",
                 type->name, (int)members[rank].collective.kind,
                 (int)members[rank].collective.reduction, rank, block, at);
}

/* The expected content of block `block` of member `rank`. */
static double complex moved_to(const element_kind_t *type,
                               tow_xla_collective_kind_t kind, size_t rank,
                               size_t block, size_t at)
{
    switch (kind) {
    case TOW_XLA_ALL_GATHER: return sent_at(type, block, 0, at);
    case TOW_XLA_ALL_TO_ALL: return sent_at(type, block, rank, at);
    case TOW_XLA_BROADCAST: return sent_at(type, 2, 0, at);
    default: return sent_at(type, rank - 1, 0, at); /* permute */
    }
}

#define FOR_ALL_TYPES(TYPE)                          \
    for (const element_kind_t *TYPE = ELEMENT_KINDS; \
         TYPE < ELEMENT_KINDS + ELEMENT_KIND_COUNT; TYPE++)

static void every_type_can_be_moved(void **state)
{
    static const tow_xla_collective_kind_t kinds[] = {
        TOW_XLA_ALL_GATHER, TOW_XLA_ALL_TO_ALL, TOW_XLA_BROADCAST,
        TOW_XLA_PERMUTE};
    FOR_ALL_TYPES(type)
    for (size_t k = 0; k < TOW_COUNT_OF(kinds); k++) {
        run_all((tow_xla_collective_t){.kind = kinds[k], .root = 2}, type);
        const bool is_many =
            kinds[k] == TOW_XLA_ALL_GATHER || kinds[k] == TOW_XLA_ALL_TO_ALL;
        const size_t first = kinds[k] == TOW_XLA_PERMUTE ? 1 : 0;
        for (size_t rank = first; rank < MEMBER_COUNT; rank++)
            for (size_t b = 0; b < (is_many ? MEMBER_COUNT : 1); b++)
                for (size_t at = 0; at < BLOCK_LENGTH; at++)
                    expect_block(type, rank, b, at,
                                 moved_to(type, kinds[k], rank, b, at));
    }
}

static void reduce_everywhere(const element_kind_t *type,
                              element_reduction_t reduction)
{
    tow_xla_collective_t like = {.kind = TOW_XLA_ALL_REDUCE,
                                 .reduction =
                                     (tow_xla_reduction_t)(reduction + 1)};
    run_all(like, type);
    for (size_t rank = 0; rank < MEMBER_COUNT; rank++)
        for (size_t at = 0; at < BLOCK_LENGTH; at++)
            expect_block(type, rank, 0, at, reduced_at(type, reduction, 0, at));
    like.kind = TOW_XLA_REDUCE_SCATTER;
    run_all(like, type);
    for (size_t rank = 0; rank < MEMBER_COUNT; rank++)
        for (size_t at = 0; at < BLOCK_LENGTH; at++)
            expect_block(type, rank, 0, at,
                         reduced_at(type, reduction, rank, at));
}

static void every_type_can_be_reduced(void **state)
{
    FOR_ALL_TYPES(type)
    for (element_reduction_t reduction = ELEMENT_SUM;
         reduction < ELEMENT_REDUCTION_COUNT; reduction++)
        if (element_can(type, reduction)) reduce_everywhere(type, reduction);
}

/* XLA uses MIN and MAX for `and` and `or` of PRED. */
static void predicates_support_min_and_max(void **state)
{
    const element_kind_t *pred = &ELEMENT_KINDS[0];
    for (int is_max = 0; is_max < 2; is_max++) {
        run_all((tow_xla_collective_t){.kind = TOW_XLA_ALL_REDUCE,
                                       .reduction =
                                           is_max ? TOW_XLA_MAX : TOW_XLA_MIN},
                pred);
        for (size_t at = 0; at < BLOCK_LENGTH; at++)
            expect_block(pred, 0, 0, at,
                         reduced_at(pred,
                                    is_max ? ELEMENT_SUM : ELEMENT_PRODUCT, 0,
                                    at));
    }
}

/* -- Barriers -------------------------------------------------------------- */

enum {
    BARRIER_COUNT = 500
};

static _Atomic int arrived[BARRIER_COUNT];

/* After barrier i all members have arrived at it. */
static void *pass_barriers(void *argument)
{
    member_t *member = argument;
    for (int i = 0; i < BARRIER_COUNT && member->code == 0; i++) {
        member->collective.occurrence = (uint64_t)i;
        atomic_fetch_add(&arrived[i], 1);
        member->code = tow_intra_host_collective(
            host, &member->collective, member->error, sizeof(member->error));
        if (atomic_load(&arrived[i]) != MEMBER_COUNT) member->code = -1;
    }
    return NULL;
}

static void no_member_passes_a_barrier_before_all_arrive(void **state)
{
    for (size_t rank = 0; rank < MEMBER_COUNT; rank++) {
        members[rank] = (member_t){
            .collective = {.struct_size = sizeof(tow_xla_collective_t),
                           .kind = TOW_XLA_BARRIER,
                           .run_id = 1000000,
                           .members = IDS,
                           .member_count = MEMBER_COUNT,
                           .rank = rank}};
        assert_int_equal(pthread_create(&members[rank].thread, NULL,
                                        pass_barriers, &members[rank]),
                         0);
    }
    for (size_t rank = 0; rank < MEMBER_COUNT; rank++)
        pthread_join(members[rank].thread, NULL);
    for (size_t rank = 0; rank < MEMBER_COUNT; rank++) {
        assert_string_equal(members[rank].error, "");
        assert_int_equal(members[rank].code, 0);
    }
}

/* -- Waits ----------------------------------------------------------------- */

#define DELAY_NS 1000000

static int64_t clock_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

static void start_others(void)
{
    for (size_t rank = 1; rank < MEMBER_COUNT; rank++)
        assert_int_equal(pthread_create(&members[rank].thread, NULL, take_part,
                                        &members[rank]),
                         0);
}

/* The first member waits: only now, after a delay, the others start. */
static int yield_once(void *context, int is_first)
{
    bool *has_yielded = context;
    if (*has_yielded) return 0;
    *has_yielded = true;
    for (int64_t since_ns = clock_ns(); clock_ns() < since_ns + DELAY_NS;) {
    }
    start_others();
    return 0;
}

static void member_counts_the_time_that_it_waits(void **state)
{
    bool has_yielded = false;
    uint64_t waits_ns[MEMBER_COUNT] = {0};
    const tow_xla_fiber_ops_t fiber_ops = {.struct_size = sizeof(fiber_ops),
                                           .context = &has_yielded,
                                           .yield = yield_once};
    const tow_xla_collective_t like = {.kind = TOW_XLA_ALL_REDUCE,
                                       .reduction = TOW_XLA_SUM,
                                       .run_id = 2000000};
    const int64_t since_ns = clock_ns();
    for (size_t rank = 0; rank < MEMBER_COUNT; rank++) {
        prepare(rank, &like, &ELEMENT_KINDS[3]);
        members[rank].collective.wait_ns = &waits_ns[rank];
    }
    members[0].collective.fiber_ops = &fiber_ops;
    take_part(&members[0]);
    for (size_t rank = 1; rank < MEMBER_COUNT; rank++)
        pthread_join(members[rank].thread, NULL);
    assert_true(waits_ns[0] >= DELAY_NS);
    for (size_t rank = 0; rank < MEMBER_COUNT; rank++) {
        assert_string_equal(members[rank].error, "");
        assert_true(waits_ns[rank] <= (uint64_t)(clock_ns() - since_ns));
    }
}

/* A single member waits for nobody. */
static void member_alone_does_not_wait(void **state)
{
    uint64_t wait_ns = 0;
    const tow_xla_collective_t like = {.kind = TOW_XLA_ALL_REDUCE,
                                       .reduction = TOW_XLA_SUM,
                                       .run_id = 2000001};
    prepare(0, &like, &ELEMENT_KINDS[3]);
    members[0].collective.member_count = 1;
    members[0].collective.wait_ns = &wait_ns;
    take_part(&members[0]);
    assert_string_equal(members[0].error, "");
    assert_int_equal(wait_ns, 0);
}

#define CASE(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)

TOW_TEST_MAIN(CASE(every_type_can_be_moved), CASE(every_type_can_be_reduced),
              CASE(predicates_support_min_and_max),
              CASE(no_member_passes_a_barrier_before_all_arrive),
              CASE(member_counts_the_time_that_it_waits),
              CASE(member_alone_does_not_wait))
