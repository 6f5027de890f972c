#include "base/testing.h"

#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/random.h"
#include "collective/intra_host/intra_host.h"
#include "collective/intra_host/tuning.h"
#include "collective/reduce.h"

#define MEMBER_COUNT_MAX 8

/* -- A gang of threads ----------------------------------------------------- */

static char arena_name[64];

static int set_up(void **state)
{
    static int serial;
    (void)state;
    snprintf(arena_name, sizeof(arena_name), "/tow-test-%d-%d", (int)getpid(),
             serial++);
    assert_null(tow_intra_host_arena_create(arena_name));
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    tow_intra_host_arena_remove(arena_name);
    return 0;
}

static tow_intra_host_t *open_host(int64_t first_id, size_t count)
{
    int64_t ids[MEMBER_COUNT_MAX];
    for (size_t i = 0; i < count; i++)
        ids[i] = first_id + (int64_t)i;
    tow_intra_host_options_t options = {
        .arena = arena_name, .device_ids = ids, .device_count = count};
    tow_intra_host_t *host = NULL;
    tow_status_t status = tow_intra_host_open(&options, &host);
    assert_string_equal(tow_status_message(status), "");
    return host;
}

typedef struct member {
    pthread_t thread;
    tow_intra_host_t *host;
    tow_xla_collective_t collective;
    const void *send[MEMBER_COUNT_MAX];
    void *receive[MEMBER_COUNT_MAX];
    size_t target;
    int code;
    char error[256];
} member_t;

static void *member_main(void *argument)
{
    member_t *member = argument;
    member->collective.send = member->send;
    member->collective.receive = member->receive;
    member->code =
        tow_intra_host_collective(member->host, &member->collective,
                                  member->error, sizeof(member->error));
    return NULL;
}

typedef struct gang {
    tow_intra_host_t *host;
    int64_t ids[MEMBER_COUNT_MAX];
    size_t count;
    member_t members[MEMBER_COUNT_MAX];
} gang_t;

static void gang_open(gang_t *gang, size_t count)
{
    memset(gang, 0, sizeof(*gang));
    gang->count = count;
    gang->host = open_host(100, count);
    for (size_t i = 0; i < count; i++)
        gang->ids[i] = 100 + (int64_t)i;
}

/* Starts all members on `like`, with rank, members and sizes filled in. */
static void gang_prepare(gang_t *gang, tow_xla_collective_t like)
{
    for (size_t i = 0; i < gang->count; i++) {
        member_t *member = &gang->members[i];
        member->host = gang->host;
        member->collective = like;
        member->collective.struct_size = sizeof(like);
        member->collective.members = gang->ids;
        member->collective.member_count = gang->count;
        member->collective.rank = i;
    }
}

static void gang_run(gang_t *gang)
{
    for (size_t i = 0; i < gang->count; i++)
        assert_int_equal(pthread_create(&gang->members[i].thread, NULL,
                                        member_main, &gang->members[i]),
                         0);
    for (size_t i = 0; i < gang->count; i++)
        pthread_join(gang->members[i].thread, NULL);
}

static void gang_succeeds(gang_t *gang)
{
    gang_run(gang);
    for (size_t i = 0; i < gang->count; i++) {
        assert_string_equal(gang->members[i].error, "");
        assert_int_equal(gang->members[i].code, 0);
    }
}

/* -- Expected results ------------------------------------------------------ */

/* Element `at` of what member `rank` sends, small enough to be exact. */
static float value_of(size_t rank, size_t at)
{
    return (float)((rank + 1) * 3 + at % 97);
}

static float *new_floats(size_t rank, size_t count)
{
    float *values = tow_malloc((count + 1) * sizeof(float));
    for (size_t i = 0; i < count; i++)
        values[i] = value_of(rank, i);
    return values;
}

static tow_xla_collective_t floats_like(tow_xla_collective_kind_t kind,
                                        size_t element_count)
{
    return (tow_xla_collective_t){.kind = kind,
                                  .run_id = 7,
                                  .op_id = (uint64_t)kind,
                                  .occurrence = element_count,
                                  .element_type = TOW_TYPE_F32,
                                  .element_bytes = sizeof(float),
                                  .reduction = TOW_XLA_SUM,
                                  .element_count = element_count};
}

/* Below, at and above TOW_INTRA_HOST_WHOLE_BYTES_MAX and the size of a stage.
 */
static const size_t sizes[] = {
    0,
    1,
    3,
    TOW_INTRA_HOST_WHOLE_BYTES_MAX / 4,
    TOW_INTRA_HOST_WHOLE_BYTES_MAX / 4 + 1,
    TOW_INTRA_HOST_STAGE_BYTES / 4,
    TOW_INTRA_HOST_STAGE_BYTES / 4 * 2 + 5,
};
static const size_t counts[] = {1, 2, 3, 8};

/* Checks what member `rank` has received. */
typedef void (*judge_t)(const gang_t *gang, size_t rank, size_t element_count,
                        const float *received);

static void for_all_sizes(tow_xla_collective_kind_t kind, bool sends_all,
                          bool receives_all, judge_t judge)
{
    for (size_t n = 0; n < TOW_COUNT_OF(counts); n++) {
        gang_t gang;
        gang_open(&gang, counts[n]);
        for (size_t s = 0; s < TOW_COUNT_OF(sizes); s++) {
            size_t sent = sizes[s] * (sends_all ? gang.count : 1);
            size_t received = sizes[s] * (receives_all ? gang.count : 1);
            gang_prepare(&gang, floats_like(kind, sizes[s]));
            for (size_t i = 0; i < gang.count; i++) {
                gang.members[i].send[0] = new_floats(i, sent);
                gang.members[i].receive[0] = new_floats(99, received);
            }
            gang_succeeds(&gang);
            for (size_t i = 0; i < gang.count; i++) {
                judge(&gang, i, sizes[s], gang.members[i].receive[0]);
                tow_free((void *)gang.members[i].send[0]);
                tow_free(gang.members[i].receive[0]);
            }
        }
        tow_intra_host_close(gang.host);
    }
}

static float sum_at(size_t member_count, size_t at)
{
    float sum = 0;
    for (size_t i = 0; i < member_count; i++)
        sum += value_of(i, at);
    return sum;
}

static void judge_all_reduce(const gang_t *gang, size_t rank, size_t count,
                             const float *received)
{
    (void)rank;
    for (size_t i = 0; i < count; i++)
        assert_true(received[i] == sum_at(gang->count, i));
}

static void all_reduce_sums_over_all_members(void **state)
{
    (void)state;
    for_all_sizes(TOW_XLA_ALL_REDUCE, false, false, judge_all_reduce);
}

static void judge_all_gather(const gang_t *gang, size_t rank, size_t count,
                             const float *received)
{
    (void)rank;
    for (size_t from = 0; from < gang->count; from++)
        for (size_t i = 0; i < count; i++)
            assert_true(received[from * count + i] == value_of(from, i));
}

static void all_gather_returns_blocks_in_rank_order(void **state)
{
    (void)state;
    for_all_sizes(TOW_XLA_ALL_GATHER, false, true, judge_all_gather);
}

static void judge_reduce_scatter(const gang_t *gang, size_t rank, size_t count,
                                 const float *received)
{
    for (size_t i = 0; i < count; i++)
        assert_true(received[i] == sum_at(gang->count, rank * count + i));
}

static void reduce_scatter_gives_each_member_its_block(void **state)
{
    (void)state;
    for_all_sizes(TOW_XLA_REDUCE_SCATTER, true, false, judge_reduce_scatter);
}

static void judge_broadcast(const gang_t *gang, size_t rank, size_t count,
                            const float *received)
{
    (void)gang, (void)rank;
    for (size_t i = 0; i < count; i++)
        assert_true(received[i] == value_of(0, i));
}

static void broadcast_comes_from_the_root(void **state)
{
    (void)state;
    for_all_sizes(TOW_XLA_BROADCAST, false, false, judge_broadcast);
}

static void all_to_all_transposes_blocks(void **state)
{
    (void)state;
    enum {
        N = 4,
        BLOCK = TOW_INTRA_HOST_STAGE_BYTES / 4 / N + 3
    };
    gang_t gang;
    gang_open(&gang, N);
    gang_prepare(&gang, floats_like(TOW_XLA_ALL_TO_ALL, BLOCK));
    for (size_t i = 0; i < N; i++) {
        for (size_t j = 0; j < N; j++) {
            gang.members[i].send[j] = new_floats(i * N + j, BLOCK);
            gang.members[i].receive[j] = new_floats(99, BLOCK);
        }
    }
    gang_succeeds(&gang);
    for (size_t i = 0; i < N; i++) {
        for (size_t j = 0; j < N; j++) {
            const float *received = gang.members[i].receive[j];
            for (size_t at = 0; at < BLOCK; at++)
                assert_true(received[at] == value_of(j * N + i, at));
            tow_free((void *)gang.members[i].send[j]);
            tow_free(gang.members[i].receive[j]);
        }
    }
    tow_intra_host_close(gang.host);
}

/* Run ids count up, and device ids are small: no two of these keys may be
 * equal. */
static void devices_in_another_order_are_another_gang(void **state)
{
    (void)state;
    enum {
        N = 2,
        RUN_COUNT = 200
    };
    gang_t gang = {.host = open_host(0, N), .count = N};
    float received[N][N];
    float sent[N];
    for (uint64_t run = 1; run <= RUN_COUNT; run++) {
        gang.ids[0] = run % 2 == 0;
        gang.ids[1] = run % 2 == 1;
        tow_xla_collective_t like = floats_like(TOW_XLA_ALL_GATHER, 1);
        like.run_id = run;
        gang_prepare(&gang, like);
        for (size_t i = 0; i < N; i++) {
            sent[i] = (float)(run * 10 + i);
            gang.members[i].send[0] = &sent[i];
            gang.members[i].receive[0] = received[i];
        }
        gang_succeeds(&gang);
        for (size_t i = 0; i < N; i++)
            for (size_t j = 0; j < N; j++)
                assert_true(received[i][j] == sent[j]);
    }
    tow_intra_host_close(gang.host);
}

/* 0 -> 1 -> 2 -> 0, 3 sends to itself, 4 gets nothing and sends nothing. */
static void permute_follows_its_pairs(void **state)
{
    (void)state;
    static const size_t source[] = {2, 0, 1, 3, SIZE_MAX};
    static const size_t target[] = {1, 2, 0, 3, SIZE_MAX};
    enum {
        N = 5,
        COUNT = TOW_INTRA_HOST_STAGE_BYTES / 4 + 9
    };
    gang_t gang;
    gang_open(&gang, N);
    gang_prepare(&gang, floats_like(TOW_XLA_PERMUTE, COUNT));
    for (size_t i = 0; i < N; i++) {
        member_t *member = &gang.members[i];
        member->send[0] = new_floats(i, COUNT);
        member->receive[0] = new_floats(99, COUNT);
        member->target = target[i];
        member->collective.source = source[i];
        member->collective.targets = &member->target;
        member->collective.target_count = target[i] == SIZE_MAX ? 0 : 1;
    }
    gang_succeeds(&gang);
    for (size_t i = 0; i < N; i++) {
        const float *received = gang.members[i].receive[0];
        size_t from = source[i] == SIZE_MAX ? 99 : source[i];
        for (size_t at = 0; at < COUNT; at++)
            assert_true(received[at] == value_of(from, at));
        tow_free((void *)gang.members[i].send[0]);
        tow_free(gang.members[i].receive[0]);
    }
    tow_intra_host_close(gang.host);
}

static void reductions_work_in_place(void **state)
{
    (void)state;
    enum {
        N = 3,
        COUNT = TOW_INTRA_HOST_STAGE_BYTES / 2
    };
    gang_t gang;
    gang_open(&gang, N);
    gang_prepare(&gang, floats_like(TOW_XLA_ALL_REDUCE, COUNT));
    for (size_t i = 0; i < N; i++) {
        gang.members[i].receive[0] = new_floats(i, COUNT);
        gang.members[i].send[0] = gang.members[i].receive[0];
    }
    gang_succeeds(&gang);
    for (size_t i = 0; i < N; i++) {
        judge_all_reduce(&gang, i, COUNT, gang.members[i].receive[0]);
        tow_free(gang.members[i].receive[0]);
    }
    tow_intra_host_close(gang.host);
}

/* -- Sequences and concurrent sub-gangs ------------------------------------ */

typedef struct reducer {
    pthread_t thread;
    tow_intra_host_t *host;
    const int64_t *ids;
    size_t count;
    size_t rank;
    uint64_t run_id;
    bool wrong;
} reducer_t;

#define REDUCE_STEPS 2000

static void *reduce_repeatedly(void *argument)
{
    reducer_t *reducer = argument;
    char error[256];
    for (uint64_t i = 0; i < REDUCE_STEPS; i++) {
        int64_t mine = (int64_t)(i + reducer->rank), sum = 0;
        const void *send = &mine;
        void *receive = &sum;
        tow_xla_collective_t collective = {
            .struct_size = sizeof(collective),
            .kind = TOW_XLA_ALL_REDUCE,
            .run_id = reducer->run_id,
            .op_id = 1,
            .occurrence = i,
            .members = reducer->ids,
            .member_count = reducer->count,
            .rank = reducer->rank,
            .element_type = TOW_TYPE_S64,
            .reduction = TOW_XLA_SUM,
            .element_count = 1,
            .element_bytes = 8,
            .send = &send,
            .receive = &receive,
        };
        int code = tow_intra_host_collective(reducer->host, &collective, error,
                                             sizeof(error));
        int64_t n = (int64_t)reducer->count;
        if (code != 0 || sum != n * (int64_t)i + n * (n - 1) / 2)
            reducer->wrong = true;
    }
    return NULL;
}

/* First all four, then two halves at the same time, as sub-gangs do. */
static void gangs_and_sub_gangs_follow_each_other(void **state)
{
    (void)state;
    static const int64_t ids[] = {100, 101, 102, 103};
    tow_intra_host_t *host = open_host(100, 4);
    for (uint64_t round = 0; round < 3; round++) {
        size_t count = round % 2 == 0 ? 4 : 2;
        reducer_t reducers[4];
        for (size_t i = 0; i < 4; i++) {
            reducers[i] = (reducer_t){.host = host,
                                      .ids = &ids[i / count * count],
                                      .count = count,
                                      .rank = i % count,
                                      .run_id = round};
            assert_int_equal(pthread_create(&reducers[i].thread, NULL,
                                            reduce_repeatedly, &reducers[i]),
                             0);
        }
        for (size_t i = 0; i < 4; i++) {
            pthread_join(reducers[i].thread, NULL);
            assert_false(reducers[i].wrong);
        }
    }
    tow_intra_host_close(host);
}

/* -- Failures ------------------------------------------------------------- */

static void unsupported_reductions_fail_every_member(void **state)
{
    (void)state;
    gang_t gang;
    gang_open(&gang, 2);
    tow_xla_collective_t like = floats_like(TOW_XLA_ALL_REDUCE, 1);
    like.element_type = TOW_TYPE_C64;
    like.element_bytes = 8;
    like.reduction = TOW_XLA_MAX;
    gang_prepare(&gang, like);
    gang_run(&gang);
    for (size_t i = 0; i < 2; i++) {
        assert_int_equal(gang.members[i].code, TOW_UNIMPLEMENTED);
        assert_non_null(strstr(gang.members[i].error, "c64"));
    }
    tow_intra_host_close(gang.host);
}

/* Member 1 is late; the run is aborted from outside, and the next run of the
 * same devices succeeds. */
static void an_aborted_gang_fails_and_its_devices_stay_usable(void **state)
{
    (void)state;
    gang_t gang;
    gang_open(&gang, 2);
    gang_prepare(&gang, floats_like(TOW_XLA_ALL_REDUCE, 4));
    for (size_t i = 0; i < 2; i++) {
        gang.members[i].send[0] = new_floats(i, 4);
        gang.members[i].receive[0] = new_floats(99, 4);
    }
    pthread_create(&gang.members[0].thread, NULL, member_main,
                   &gang.members[0]);
    tow_intra_host_abort(gang.host, 7, TOW_CANCELLED, "the client has left");
    pthread_join(gang.members[0].thread, NULL);
    assert_int_equal(gang.members[0].code, TOW_CANCELLED);
    assert_string_equal(gang.members[0].error, "the client has left");
    /* The late member gets the error too. */
    member_main(&gang.members[1]);
    assert_int_equal(gang.members[1].code, TOW_CANCELLED);

    for (size_t i = 0; i < 2; i++) {
        gang.members[i].collective.run_id = 8;
        gang.members[i].error[0] = '\0';
    }
    gang_succeeds(&gang);
    for (size_t i = 0; i < 2; i++) {
        judge_all_reduce(&gang, i, 4, gang.members[i].receive[0]);
        tow_free((void *)gang.members[i].send[0]);
        tow_free(gang.members[i].receive[0]);
    }
    tow_intra_host_close(gang.host);
}

/* Waits until `count` devices report long waits. */
static void await_waits(tow_intra_host_t *host, tow_intra_host_wait_t *waits,
                        size_t count)
{
    int64_t now_ns;
    while (tow_intra_host_list_waits(host, waits, MEMBER_COUNT_MAX, &now_ns) !=
           count)
        sched_yield();
    for (size_t i = 0; i < count; i++)
        assert_true(waits[i].since_ns <= now_ns);
}

static void a_long_wait_reports_the_missing_devices(void **state)
{
    (void)state;
    gang_t gang;
    tow_intra_host_wait_t waits[MEMBER_COUNT_MAX];
    gang_open(&gang, 4);
    gang_prepare(&gang,
                 (tow_xla_collective_t){.kind = TOW_XLA_BARRIER, .run_id = 7});
    for (size_t i = 0; i < 3; i += 2)
        pthread_create(&gang.members[i].thread, NULL, member_main,
                       &gang.members[i]);
    await_waits(gang.host, waits, 2);
    for (size_t i = 0; i < 2; i++) {
        assert_true(waits[i].device == 100 || waits[i].device == 102);
        assert_int_equal(waits[i].run_id, 7);
        assert_int_equal(waits[i].missing_count, 2);
        assert_int_equal(waits[i].missing[0], 101);
        assert_int_equal(waits[i].missing[1], 103);
    }
    pthread_create(&gang.members[3].thread, NULL, member_main,
                   &gang.members[3]);
    do
        await_waits(gang.host, waits, 3);
    while (waits[0].missing_count != 1 || waits[1].missing_count != 1);
    assert_int_equal(waits[0].missing[0], 101);
    member_main(&gang.members[1]);
    for (size_t i = 0; i < 4; i++) {
        if (i != 1) pthread_join(gang.members[i].thread, NULL);
        assert_int_equal(gang.members[i].code, 0);
    }
    await_waits(gang.host, waits, 0);
    tow_intra_host_close(gang.host);
}

static void a_broadcast_waits_for_its_root_alone(void **state)
{
    (void)state;
    gang_t gang;
    tow_intra_host_wait_t waits[MEMBER_COUNT_MAX];
    gang_open(&gang, 3);
    tow_xla_collective_t like = floats_like(TOW_XLA_BROADCAST, 4);
    like.root = 1;
    gang_prepare(&gang, like);
    for (size_t i = 0; i < 3; i++) {
        gang.members[i].send[0] = new_floats(i, 4);
        gang.members[i].receive[0] = new_floats(99, 4);
    }
    pthread_create(&gang.members[0].thread, NULL, member_main,
                   &gang.members[0]);
    await_waits(gang.host, waits, 1);
    assert_int_equal(waits[0].missing_count, 1);
    assert_int_equal(waits[0].missing[0], 101);
    tow_intra_host_abort(gang.host, 7, TOW_CANCELLED, "the client has left");
    pthread_join(gang.members[0].thread, NULL);
    await_waits(gang.host, waits, 0);
    for (size_t i = 0; i < 3; i++) {
        tow_free((void *)gang.members[i].send[0]);
        tow_free(gang.members[i].receive[0]);
    }
    tow_intra_host_close(gang.host);
}

/* -- Members that only send ------------------------------------------------ */

#define BROADCAST_COUNT 5

/* One member's part in a sequence of broadcasts between devices 100 and 101. */
typedef struct broadcasts {
    tow_intra_host_t *host;
    size_t rank;
    uint64_t run_ids[BROADCAST_COUNT];
    float values[BROADCAST_COUNT];
    int codes[BROADCAST_COUNT];
    char error[1100];
} broadcasts_t;

static void *broadcasts_main(void *argument)
{
    broadcasts_t *row = argument;
    const int64_t ids[] = {100, 101};
    for (size_t i = 0; i < BROADCAST_COUNT; i++) {
        const void *send = &row->values[i];
        void *receive = &row->values[i];
        tow_xla_collective_t collective = floats_like(TOW_XLA_BROADCAST, 1);
        collective.struct_size = sizeof(collective);
        collective.run_id = row->run_ids[i];
        collective.occurrence = i;
        collective.members = ids;
        collective.member_count = 2;
        collective.rank = row->rank;
        collective.send = &send;
        collective.receive = &receive;
        row->codes[i] = tow_intra_host_collective(
            row->host, &collective, row->error, sizeof(row->error));
    }
    return NULL;
}

/* A shorter timeout would fail readers on a busy machine. */
#define SHORT_TIMEOUT_NS 1000000000

static tow_intra_host_t *open_host_with_short_timeout(void)
{
    const int64_t ids[] = {100, 101};
    tow_intra_host_t *host = NULL;
    assert_null(tow_intra_host_open(
        &(tow_intra_host_options_t){.arena = arena_name,
                                    .device_ids = ids,
                                    .device_count = 2,
                                    .heartbeat_timeout_ns = SHORT_TIMEOUT_NS},
        &host));
    return host;
}

/* Waits until a device has waited for longer than the timeout. */
static tow_intra_host_wait_t await_timeout(tow_intra_host_t *host)
{
    tow_intra_host_wait_t wait = {0};
    int64_t now_ns;
    while (tow_intra_host_list_waits(host, &wait, 1, &now_ns) == 0 ||
           now_ns - wait.since_ns <= SHORT_TIMEOUT_NS)
        usleep(1000);
    return wait;
}

/* The sender has run ahead as far as it can, and nothing that it sent is lost.
 */
static void expect_late_reader_gets_all(broadcasts_t sender)
{
    pthread_t thread;
    sender.host = open_host_with_short_timeout();
    for (size_t i = 0; i < BROADCAST_COUNT; i++)
        sender.values[i] = (float)i + 1;
    broadcasts_t reader = sender;
    reader.rank = 1;
    memset(reader.values, 0, sizeof(reader.values));
    pthread_create(&thread, NULL, broadcasts_main, &sender);
    const tow_intra_host_wait_t wait = await_timeout(sender.host);
    assert_int_equal(wait.device, 100);
    assert_int_equal(wait.missing_count, 1);
    assert_int_equal(wait.missing[0], 101);
    broadcasts_main(&reader);
    pthread_join(thread, NULL);
    for (size_t i = 0; i < BROADCAST_COUNT; i++) {
        assert_int_equal(reader.codes[i], 0);
        assert_int_equal(sender.codes[i], 0);
        assert_true(reader.values[i] == (float)i + 1);
    }
    tow_intra_host_close(sender.host);
}

static void sent_data_waits_for_late_readers(void **state)
{
    (void)state;
    expect_late_reader_gets_all((broadcasts_t){.run_ids = {7, 7, 7, 7, 7}});
    expect_late_reader_gets_all((broadcasts_t){.run_ids = {7, 7, 8, 8, 9}});
}

static void unread_data_of_an_aborted_run_blocks_no_later_run(void **state)
{
    (void)state;
    broadcasts_t sender = {.host = open_host(100, 2),
                           .run_ids = {7, 7, 8, 8, 8}};
    pthread_t thread;
    tow_intra_host_wait_t waits[MEMBER_COUNT_MAX];
    pthread_create(&thread, NULL, broadcasts_main, &sender);
    await_waits(sender.host, waits, 1);
    assert_int_equal(waits[0].run_id, 8);
    tow_intra_host_abort(sender.host, 7, TOW_CANCELLED, "the client has left");
    broadcasts_t reader = {
        .host = sender.host, .rank = 1, .run_ids = {7, 7, 8, 8, 8}};
    broadcasts_main(&reader);
    pthread_join(thread, NULL);
    for (size_t i = 0; i < BROADCAST_COUNT; i++)
        assert_int_equal(reader.codes[i], i < 2 ? TOW_CANCELLED : 0);
    assert_int_equal(sender.codes[2], 0);
    tow_intra_host_close(sender.host);
}

static void an_absent_device_is_named(void **state)
{
    (void)state;
    gang_t gang;
    gang_open(&gang, 2);
    gang.ids[1] = 555;
    gang_prepare(&gang, floats_like(TOW_XLA_ALL_REDUCE, 1));
    gang.count = 1;
    gang_run(&gang);
    assert_int_equal(gang.members[0].code, TOW_UNAVAILABLE);
    assert_non_null(strstr(gang.members[0].error, "555"));
    tow_intra_host_close(gang.host);
}

/* A child that joins as device 200 and then waits to be killed or stopped. */
static pid_t start_silent_member(void)
{
    int ready[2];
    assert_int_equal(pipe(ready), 0);
    pid_t child = fork();
    if (child == 0) {
        open_host(200, 1);
        if (write(ready[1], "r", 1) != 1) _exit(1);
        for (;;)
            pause();
    }
    char byte;
    assert_int_equal(read(ready[0], &byte, 1), 1);
    close(ready[0]);
    close(ready[1]);
    return child;
}

static void member_waits_for_device_200(gang_t *gang)
{
    gang_open(gang, 1);
    gang->ids[1] = 200;
    gang->count = 2;
    gang_prepare(gang, floats_like(TOW_XLA_ALL_REDUCE, 1));
    gang->members[0].send[0] = new_floats(0, 1);
    gang->members[0].receive[0] = new_floats(99, 1);
    gang->count = 1;
    pthread_create(&gang->members[0].thread, NULL, member_main,
                   &gang->members[0]);
}

static void member_fails_and_names_device_200(gang_t *gang)
{
    pthread_join(gang->members[0].thread, NULL);
    assert_int_equal(gang->members[0].code, TOW_UNAVAILABLE);
    assert_non_null(strstr(gang->members[0].error, "device 200"));
    tow_free((void *)gang->members[0].send[0]);
    tow_free(gang->members[0].receive[0]);
    tow_intra_host_close(gang->host);
}

static void a_killed_member_is_named(void **state)
{
    (void)state;
    pid_t child = start_silent_member();
    gang_t gang;
    member_waits_for_device_200(&gang);
    kill(child, SIGKILL);
    assert_int_equal(waitpid(child, NULL, 0), child);
    member_fails_and_names_device_200(&gang);
}

static void a_frozen_member_is_named(void **state)
{
    (void)state;
    pid_t child = start_silent_member();
    kill(child, SIGSTOP);
    gang_t gang;
    member_waits_for_device_200(&gang);
    member_fails_and_names_device_200(&gang);
    kill(child, SIGKILL);
    assert_int_equal(waitpid(child, NULL, 0), child);
}

static void a_dead_process_leaves_its_devices_to_others(void **state)
{
    (void)state;
    pid_t child = start_silent_member();
    int64_t id = 200;
    tow_intra_host_options_t options = {
        .arena = arena_name, .device_ids = &id, .device_count = 1};
    tow_intra_host_t *host = NULL;
    tow_status_t status = tow_intra_host_open(&options, &host);
    assert_int_equal(tow_status_code(status), TOW_ALREADY_EXISTS);
    tow_status_release(status);
    kill(child, SIGKILL);
    assert_int_equal(waitpid(child, NULL, 0), child);
    tow_intra_host_close(open_host(200, 1));
}

static void opening_foreign_memory_fails(void **state)
{
    (void)state;
    tow_intra_host_t *host = NULL;
    tow_intra_host_options_t options = {.arena = "no-slash"};
    tow_status_t status = tow_intra_host_open(&options, &host);
    assert_int_equal(tow_status_code(status), TOW_INVALID_ARGUMENT);
    tow_status_release(status);
    options.arena = "/tow-test-nobody-made-this";
    status = tow_intra_host_open(&options, &host);
    assert_int_equal(tow_status_code(status), TOW_NOT_FOUND);
    tow_status_release(status);
    status = tow_intra_host_arena_create(arena_name);
    assert_int_equal(tow_status_code(status), TOW_ALREADY_EXISTS);
    tow_status_release(status);
}

#define WITH_ARENA(test) \
    cmocka_unit_test_setup_teardown(test, set_up, tear_down)

TOW_TEST_MAIN(WITH_ARENA(all_reduce_sums_over_all_members),
              WITH_ARENA(all_gather_returns_blocks_in_rank_order),
              WITH_ARENA(reduce_scatter_gives_each_member_its_block),
              WITH_ARENA(broadcast_comes_from_the_root),
              WITH_ARENA(all_to_all_transposes_blocks),
              WITH_ARENA(permute_follows_its_pairs),
              WITH_ARENA(devices_in_another_order_are_another_gang),
              WITH_ARENA(reductions_work_in_place),
              WITH_ARENA(gangs_and_sub_gangs_follow_each_other),
              WITH_ARENA(unsupported_reductions_fail_every_member),
              WITH_ARENA(an_aborted_gang_fails_and_its_devices_stay_usable),
              WITH_ARENA(a_long_wait_reports_the_missing_devices),
              WITH_ARENA(a_broadcast_waits_for_its_root_alone),
              WITH_ARENA(sent_data_waits_for_late_readers),
              WITH_ARENA(unread_data_of_an_aborted_run_blocks_no_later_run),
              WITH_ARENA(an_absent_device_is_named),
              WITH_ARENA(a_killed_member_is_named),
              WITH_ARENA(a_frozen_member_is_named),
              WITH_ARENA(a_dead_process_leaves_its_devices_to_others),
              WITH_ARENA(opening_foreign_memory_fails))
