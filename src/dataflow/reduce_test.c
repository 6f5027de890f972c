/* Collectives on transfer engines connected in memory: random values; an abort,
 * a disconnect and a crash at every step; invalid messages. */
#include "dataflow/transfer_testing_impl.h"

#include "collective/reduce.h"
#include "dataflow/transfer_reduce_impl.h"

#define TENSORS_MAX 3

/* One collective on all its workers. Shard s of the slice is on worker
 * places[s], and in group groups[s]. */
typedef struct collective_part {
    tow_transfer_t transfer;
    struct collective *collective;
    tow_collective_part_t part;
    tow_members_t groups[SHARDS_MAX];
    uint32_t processes[SHARDS_MAX][WORKERS_MAX];
    uint32_t shards[SHARDS_MAX][SHARDS_MAX];
    uint32_t devices[SHARDS_MAX];
    uint32_t owned[SHARDS_MAX]; /* of the slice, by our shards */
    bool is_begun;
    bool is_done;
    tow_code_t code;
    char message[256];
    tow_buffer_t *sources[SHARDS_MAX * TENSORS_MAX];
    tow_buffer_t *targets[SHARDS_MAX * TENSORS_MAX];
} collective_part_t;

typedef struct collective {
    transfer_fixture_t *fixture;
    uint64_t gang;
    size_t shard_count;
    uint32_t places[SHARDS_MAX];
    uint32_t groups[SHARDS_MAX];
    tow_shape_t tensors[TENSORS_MAX];
    size_t tensor_count;
    tow_reduction_t how;
    uint64_t chunk_bytes;
    collective_part_t parts[WORKERS_MAX];
} collective_t;

/* -- Collectives ----------------------------------------------------------- */

static void collective_done(tow_transfer_t *transfer, tow_status_t take_status)
{
    collective_part_t *part =
        TOW_CONTAINER_OF(transfer, collective_part_t, transfer);
    assert_false(part->is_done);
    part->is_done = true;
    part->code = tow_status_code(take_status);
    snprintf(part->message, sizeof(part->message), "%s",
             tow_status_message(take_status));
    tow_status_release(take_status);
}

static tow_members_t *group_of(collective_part_t *part, uint32_t number)
{
    for (size_t i = 0; i < part->part.group_count; i++)
        if (part->groups[i].group == number) return &part->groups[i];
    const size_t at = part->part.group_count++;
    part->groups[at] = (tow_members_t){.group = number,
                                       .processes = part->processes[at],
                                       .shards = part->shards[at]};
    return &part->groups[at];
}

static void add_process(collective_part_t *part, tow_members_t *members,
                        uint32_t process, uint32_t self)
{
    uint32_t *processes = part->processes[members - part->groups];
    for (size_t i = 0; i < members->process_count; i++)
        if (processes[i] == process) return;
    if (process == self) members->self = members->process_count;
    processes[members->process_count++] = process;
}

static void describe(collective_t *collective, uint32_t process)
{
    collective_part_t *part = &collective->parts[process];
    part->part =
        (tow_collective_part_t){.kind = TOW_COLLECTIVE_ALL_REDUCE,
                                .reduction = collective->how,
                                .tensors = collective->tensors,
                                .tensor_count = collective->tensor_count,
                                .devices = part->devices,
                                .groups = part->groups,
                                .chunk_bytes = collective->chunk_bytes};
    for (uint32_t s = 0; s < collective->shard_count; s++) {
        if (collective->places[s] != process) continue;
        tow_members_t *members = group_of(part, collective->groups[s]);
        const uint32_t own = (uint32_t)part->part.shard_count++;
        part->shards[members - part->groups][members->shard_count++] = own;
        part->owned[own] = s;
        part->devices[own] = own % DEVICES_MAX;
    }
    for (size_t i = 0; i < part->part.group_count; i++)
        for (uint32_t s = 0; s < collective->shard_count; s++)
            if (collective->groups[s] == part->groups[i].group)
                add_process(part, &part->groups[i], collective->places[s],
                            process);
}

/* The caller has set fixture, gang, shards, tensors, how and chunk_bytes. */
static void collective_init(collective_t *collective)
{
    const size_t count = collective->tensor_count;
    for (uint32_t w = 0; w < collective->fixture->worker_count; w++) {
        collective_part_t *part = &collective->parts[w];
        *part = (collective_part_t){.collective = collective};
        describe(collective, w);
        part->transfer = (tow_transfer_t){.part = &part->part,
                                          .gang = collective->gang,
                                          .sources = part->sources,
                                          .source_stride = count,
                                          .targets = part->targets,
                                          .done = collective_done};
        for (size_t i = 0; i < part->part.shard_count * count; i++)
            part->sources[i] =
                &transfer_fixture_buffer(&collective->fixture->workers[w],
                                         part->devices[i / count],
                                         &collective->tensors[i % count])
                     ->base;
    }
}

static tow_status_t collective_start(collective_t *collective, uint32_t process)
{
    collective_part_t *part = &collective->parts[process];
    tow_transfer_engine_t *engine =
        collective->fixture->workers[process].engine;
    tow_status_t status = TOW_OK;
    if (part->part.shard_count > 0) {
        must(tow_part_check(&part->part, process, DEVICES_MAX));
        status = tow_transfer_start(engine, &part->transfer);
        part->is_begun = status == TOW_OK;
    } else {
        part->is_done = true;
    }
    tow_transfer_engine_granted(engine, collective->gang);
    return status;
}

/* -- Bytes ----------------------------------------------------------------- */

/* Small numbers, so that sums and products of all types are exact and the same
 * in any order. */
static void fill(const collective_t *collective, uint32_t shard, size_t tensor,
                 uint8_t *bytes, uint64_t size)
{
    const tow_type_t type = collective->tensors[tensor].type;
    const uint64_t element = tow_type_bits(type) / 8;
    for (uint64_t i = 0; i < size / element; i++) {
        const uint8_t small =
            1 + plan_byte_at(i, collective->gang * 31 + shard * 7 + tensor) % 2;
        uint8_t *at = bytes + i * element;
        memset(at, 0, element);
        if (type == TOW_TYPE_F32)
            memcpy(at, &(float){small}, 4);
        else if (type == TOW_TYPE_F64)
            memcpy(at, &(double){small}, 8);
        else
            at[0] = small;
    }
}

static void produce(collective_t *collective, uint32_t process, size_t index)
{
    collective_part_t *part = &collective->parts[process];
    tow_buffer_t *buffer = part->sources[index];
    uint8_t *bytes = test_malloc(buffer->bytes + 1);
    fill(collective, part->owned[index / collective->tensor_count],
         index % collective->tensor_count, bytes, buffer->bytes);
    fixture_buffer_finish(buffer, bytes);
    test_free(bytes);
}

static void produce_all(collective_t *collective)
{
    for (uint32_t w = 0; w < collective->fixture->worker_count; w++)
        for (size_t i = 0; i < collective->parts[w].part.shard_count *
                                   collective->tensor_count;
             i++)
            produce(collective, w, i);
}

static void expect_tensor(const collective_t *collective,
                          const collective_part_t *part, size_t index)
{
    const size_t tensor = index % collective->tensor_count;
    const uint32_t shard = part->owned[index / collective->tensor_count];
    const fixture_buffer_t *buffer =
        (const fixture_buffer_t *)part->targets[index];
    const uint64_t size = buffer->base.bytes;
    uint8_t *wanted = test_calloc(1, size + 1);
    uint8_t *other = test_malloc(size + 1);
    bool is_first = true;
    assert_int_equal(buffer->state, TOW_BUFFER_READY);
    assert_int_equal(buffer->base.device,
                     part->devices[index / collective->tensor_count]);
    for (uint32_t s = 0; s < collective->shard_count; s++) {
        if (collective->groups[s] != collective->groups[shard]) continue;
        fill(collective, s, tensor, is_first ? wanted : other, size);
        const tow_type_t type = collective->tensors[tensor].type;
        if (!is_first)
            tow_reduce(wanted, other, size / (tow_type_bits(type) / 8), type,
                       collective->how);
        is_first = false;
    }
    assert_memory_equal(buffer->bytes, wanted, size);
    test_free(wanted);
    test_free(other);
}

static void expect_all(const collective_t *collective)
{
    for (uint32_t w = 0; w < collective->fixture->worker_count; w++) {
        const collective_part_t *part = &collective->parts[w];
        assert_true(part->is_done);
        if (part->code != TOW_CODE_OK) fail_msg("%s", part->message);
        for (size_t i = 0;
             i < part->part.shard_count * collective->tensor_count; i++)
            expect_tensor(collective, part, i);
    }
}

static void collective_release(collective_t *collective)
{
    for (uint32_t w = 0; w < collective->fixture->worker_count; w++) {
        collective_part_t *part = &collective->parts[w];
        const size_t count = part->part.shard_count * collective->tensor_count;
        for (size_t i = 0; i < count; i++) {
            if (tow_buffer_state(part->sources[i]) == TOW_BUFFER_PENDING)
                fixture_buffer_fail(part->sources[i],
                                    TOW_ERROR(TOW_CANCELLED, "not any more"));
            tow_buffer_release(part->sources[i]);
        }
        for (size_t i = 0; part->is_begun && i < count; i++)
            tow_buffer_release(part->targets[i]);
    }
}

/* -- Random collectives ---------------------------------------------------- */

static int64_t random_size(tow_random_t *random)
{
    static const int64_t sizes[] = {0, 1, 7, 600, 3000, 9000, 30000};
    return sizes[tow_random_below(random, TOW_COUNT_OF(sizes))];
}

static void random_collective(collective_t *collective,
                              transfer_fixture_t *fixture, tow_random_t *random,
                              uint64_t gang)
{
    static const tow_type_t types[] = {TOW_TYPE_F32, TOW_TYPE_S8, TOW_TYPE_F64,
                                       TOW_TYPE_U32, TOW_TYPE_PRED};
    *collective = (collective_t){
        .fixture = fixture,
        .gang = gang,
        .shard_count = 1 + tow_random_below(random, 8),
        .tensor_count = 1 + tow_random_below(random, TENSORS_MAX),
        .how = (tow_reduction_t)(1 + tow_random_below(random, 4)),
        .chunk_bytes = UINT64_C(1024) << tow_random_below(random, 8)};
    const uint32_t groups = 1 + (uint32_t)tow_random_below(random, 3);
    for (size_t s = 0; s < collective->shard_count; s++) {
        collective->places[s] =
            (uint32_t)tow_random_below(random, fixture->worker_count);
        collective->groups[s] = (uint32_t)tow_random_below(random, groups);
    }
    for (size_t t = 0; t < collective->tensor_count; t++)
        collective->tensors[t] = (tow_shape_t){
            .type = types[tow_random_below(random, TOW_COUNT_OF(types))],
            .rank = 1,
            .dims = {random_size(random)}};
}

static void random_collectives_give_the_right_bytes(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= 600; seed++) {
        transfer_fixture_t fixture;
        tow_random_t random;
        static collective_t collectives[3];
        tow_random_init(&random, seed);
        const uint32_t workers = 1 + (uint32_t)tow_random_below(&random, 4);
        transfer_fixture_open(&fixture, workers, seed);
        fixture.copies_uploads = seed % 2;
        for (uint64_t i = 0; i < 3; i++) {
            random_collective(&collectives[i], &fixture, &random, 10 + i);
            collective_init(&collectives[i]);
        }
        /* Each worker gets grants in order, at its own pace. */
        uint32_t next[WORKERS_MAX] = {0};
        for (uint32_t left = 3 * workers; left > 0;) {
            const uint32_t w = (uint32_t)tow_random_below(&random, workers);
            if (next[w] < 3) {
                must(collective_start(&collectives[next[w]++], w));
                left--;
            }
            for (uint64_t k = tow_random_below(&random, 6); k > 0; k--)
                transfer_fixture_step(&fixture);
        }
        for (int i = 2; i >= 0; i--)
            produce_all(&collectives[i]);
        transfer_fixture_run(&fixture);
        for (size_t i = 0; i < 3; i++)
            expect_all(&collectives[i]);
        for (size_t i = 0; i < 3; i++)
            collective_release(&collectives[i]);
        transfer_fixture_close(&fixture);
    }
}

/* -- Failures -------------------------------------------------------------- */

/* Three workers with two shards each; two tensors, a small one and a large one
 * in chunks. */
static void standard_collective(collective_t *collective,
                                transfer_fixture_t *fixture)
{
    *collective = (collective_t){.fixture = fixture,
                                 .gang = 5,
                                 .shard_count = 6,
                                 .places = {0, 0, 1, 1, 2, 2},
                                 .tensor_count = 2,
                                 .how = TOW_REDUCE_SUM,
                                 .chunk_bytes = 32 << 10};
    collective->tensors[0] =
        (tow_shape_t){.type = TOW_TYPE_F32, .rank = 1, .dims = {10}};
    collective->tensors[1] =
        (tow_shape_t){.type = TOW_TYPE_F32, .rank = 1, .dims = {40000}};
    collective_init(collective);
}

typedef enum fault {
    FAULT_ABORT,
    FAULT_DISCONNECT,
    FAULT_CRASH,
    FAULT_COUNT,
} fault_t;

static void disconnect_from_others(transfer_fixture_t *fixture,
                                   uint32_t process)
{
    tow_status_t cause = TOW_ERROR(TOW_UNAVAILABLE, "it died");
    for (uint32_t w = 0; w < fixture->worker_count; w++)
        if (w != process)
            tow_transfer_engine_on_peer_disconnect(fixture->workers[w].engine,
                                                   process, cause);
    tow_status_release(cause);
}

/* As the controller does after the report of a failure. */
static void abort_others(collective_t *collective)
{
    tow_status_t cause = TOW_ERROR(TOW_ABORTED, "another failed");
    bool has_failed = false;
    for (uint32_t w = 0; w < collective->fixture->worker_count; w++)
        has_failed |= collective->parts[w].is_done &&
                      collective->parts[w].code != TOW_CODE_OK;
    for (uint32_t w = 0; has_failed && w < collective->fixture->worker_count;
         w++)
        if (collective->parts[w].is_begun && !collective->parts[w].is_done)
            tow_transfer_abort(collective->fixture->workers[w].engine,
                               &collective->parts[w].transfer, cause);
    tow_status_release(cause);
}

/* Returns false when the collective is over before that step. */
static bool fault_at(fault_t fault, size_t step, uint64_t seed)
{
    static collective_t collective;
    transfer_fixture_t fixture;
    transfer_fixture_open(&fixture, 3, seed);
    standard_collective(&collective, &fixture);
    for (uint32_t w = 0; w < 3; w++)
        must(collective_start(&collective, w));
    produce_all(&collective);
    bool is_over = false;
    for (size_t i = 0; i < step && !is_over; i++)
        is_over = !transfer_fixture_step(&fixture);
    if (fault == FAULT_CRASH) {
        transfer_fixture_crash(&fixture);
        return !is_over;
    }
    tow_status_t cause = TOW_ERROR(TOW_CANCELLED, "not wanted");
    if (fault == FAULT_ABORT && !collective.parts[1].is_done)
        tow_transfer_abort(fixture.workers[1].engine,
                           &collective.parts[1].transfer, cause);
    if (fault == FAULT_DISCONNECT) {
        disconnect_from_others(&fixture, 1);
        if (!collective.parts[1].is_done)
            tow_transfer_abort(fixture.workers[1].engine,
                               &collective.parts[1].transfer, cause);
    }
    tow_status_release(cause);
    transfer_fixture_run(&fixture);
    abort_others(&collective);
    transfer_fixture_run(&fixture);
    for (uint32_t w = 0; w < 3; w++) {
        assert_true(collective.parts[w].is_done);
        if (collective.parts[w].code != TOW_CODE_OK) continue;
        for (size_t i = 0; i < 4; i++)
            expect_tensor(&collective, &collective.parts[w], i);
    }
    collective_release(&collective);
    transfer_fixture_close(&fixture);
    return !is_over;
}

static void a_fault_at_any_step_leaks_nothing(void **state)
{
    (void)state;
    for (fault_t fault = 0; fault < FAULT_COUNT; fault++)
        for (uint64_t seed = 0; seed < 4; seed++)
            for (size_t step = 0; fault_at(fault, step, seed); step++)
                assert_true(step < 10000);
}

static void a_failed_write_fails_the_collective(void **state)
{
    (void)state;
    for (int at = 1; at < 40; at++)
        for (int way = 0; way < 2; way++) {
            static collective_t collective;
            transfer_fixture_t fixture;
            transfer_fixture_open(&fixture, 3, 0);
            *(way == 0 ? &fixture.refuse_write_at : &fixture.fail_write_at) =
                at;
            standard_collective(&collective, &fixture);
            for (uint32_t w = 0; w < 3; w++)
                must(collective_start(&collective, w));
            produce_all(&collective);
            transfer_fixture_run(&fixture);
            abort_others(&collective);
            transfer_fixture_run(&fixture);
            const int written = fixture.write_count;
            collective_release(&collective);
            transfer_fixture_close(&fixture);
            if (written < at) break;
        }
}

static void the_error_of_a_source_is_propagated(void **state)
{
    (void)state;
    static collective_t collective;
    transfer_fixture_t fixture;
    transfer_fixture_open(&fixture, 3, 0);
    standard_collective(&collective, &fixture);
    for (uint32_t w = 0; w < 3; w++)
        must(collective_start(&collective, w));
    fixture_buffer_fail(collective.parts[1].sources[0],
                        TOW_ERROR(TOW_INTERNAL, "device 3 is on fire"));
    transfer_fixture_run(&fixture);
    assert_true(collective.parts[1].is_done);
    assert_int_equal(collective.parts[1].code, TOW_INTERNAL);
    assert_string_equal(collective.parts[1].message, "device 3 is on fire");
    assert_int_equal(tow_buffer_state(collective.parts[1].targets[3]),
                     TOW_BUFFER_FAILED);
    abort_others(&collective);
    transfer_fixture_run(&fixture);
    collective_release(&collective);
    transfer_fixture_close(&fixture);
}

/* -- Order of tensors ------------------------------------------------------ */

static void a_tensor_completes_before_the_next_is_produced(void **state)
{
    (void)state;
    static collective_t collective;
    transfer_fixture_t fixture;
    transfer_fixture_open(&fixture, 3, 0);
    standard_collective(&collective, &fixture);
    for (uint32_t w = 0; w < 3; w++)
        must(collective_start(&collective, w));
    for (uint32_t w = 0; w < 3; w++)
        for (size_t i = 0; i < 4; i += 2)
            produce(&collective, w, i);
    transfer_fixture_run(&fixture);
    for (uint32_t w = 0; w < 3; w++) {
        assert_false(collective.parts[w].is_done);
        expect_tensor(&collective, &collective.parts[w], 0);
        expect_tensor(&collective, &collective.parts[w], 2);
        assert_int_equal(tow_buffer_state(collective.parts[w].targets[1]),
                         TOW_BUFFER_PENDING);
    }
    collective_release(&collective);
    transfer_fixture_run(&fixture);
    abort_others(&collective);
    transfer_fixture_close(&fixture);
}

/* The first in the list is combined first, even if it is produced last. */
static void the_first_tensor_is_combined_first(void **state)
{
    (void)state;
    static collective_t collective;
    transfer_fixture_t fixture;
    transfer_fixture_open(&fixture, 1, 0);
    collective = (collective_t){.fixture = &fixture,
                                .gang = 5,
                                .shard_count = 2,
                                .tensor_count = 2,
                                .how = TOW_REDUCE_SUM,
                                .chunk_bytes = 1 << 20};
    for (size_t t = 0; t < 2; t++)
        collective.tensors[t] =
            (tow_shape_t){.type = TOW_TYPE_F32,
                          .rank = 1,
                          .dims = {t == 0 ? 20000 : 8 << 20}};
    collective_init(&collective);
    must(collective_start(&collective, 0));
    produce(&collective, 0, 1);
    produce(&collective, 0, 3);
    for (int i = 0; i < 3; i++) /* Both are complete, and work has begun. */
        transfer_fixture_step(&fixture);
    produce(&collective, 0, 0);
    produce(&collective, 0, 2);
    while (tow_buffer_state(collective.parts[0].targets[0]) ==
           TOW_BUFFER_PENDING)
        assert_true(transfer_fixture_step(&fixture));
    assert_int_equal(tow_buffer_state(collective.parts[0].targets[1]),
                     TOW_BUFFER_PENDING);
    transfer_fixture_run(&fixture);
    expect_all(&collective);
    collective_release(&collective);
    transfer_fixture_close(&fixture);
}

/* -- Invalid messages ------------------------------------------------------ */

static void unexpected_messages_are_refused(void **state)
{
    (void)state;
    static const struct {
        uint32_t shard, number;
        size_t size;
    } pieces[] = {
        {0, 1, 40},    /* no such chunk */
        {0, 0, 39},    /* another size */
        {1, 0, 40},    /* results of a tensor that all combine themselves */
        {99, 0, 40},   /* no such tensor */
        {2, 0, 40000}, /* too large for a message */
    };
    for (size_t i = 0; i < TOW_COUNT_OF(pieces); i++) {
        static collective_t collective;
        static uint8_t bytes[40000];
        transfer_fixture_t fixture;
        transfer_fixture_open(&fixture, 3, 0);
        standard_collective(&collective, &fixture);
        must(collective_start(&collective, 0));
        tow_msg_edge_piece_t piece = TOW_MSG_EDGE_PIECE_INIT;
        piece.gang = 5;
        piece.shard = pieces[i].shard;
        piece.number = pieces[i].number;
        piece.bytes.data = bytes;
        piece.bytes.len = pieces[i].size;
        tow_status_t status =
            tow_transfer_engine_on_piece(fixture.workers[0].engine, 1, &piece);
        assert_int_equal(tow_status_code(status), TOW_INVALID_ARGUMENT);
        tow_status_release(status);
        collective_release(&collective);
        transfer_fixture_run(&fixture);
        transfer_fixture_close(&fixture);
    }
}

static void a_start_without_memory_leaks_nothing(void **state)
{
    (void)state;
    for (size_t nth = 0; nth < 60; nth++) {
        static collective_t collective;
        transfer_fixture_t fixture;
        transfer_fixture_open(&fixture, 3, 0);
        standard_collective(&collective, &fixture);
        tow_alloc_fail_after(nth);
        tow_status_t status = collective_start(&collective, 0);
        tow_alloc_fail_after(UINT64_MAX);
        const bool is_through = status == TOW_OK;
        if (status != TOW_OK)
            assert_int_equal(tow_status_code(status), TOW_RESOURCE_EXHAUSTED);
        tow_status_release(status);
        collective_release(&collective);
        transfer_fixture_run(&fixture);
        transfer_fixture_close(&fixture);
        if (is_through) break;
    }
}

/* -- Plans ----------------------------------------------------------------- */

static void plans_cover_each_byte_once(void **state)
{
    (void)state;
    tow_random_t random;
    tow_random_init(&random, 3);
    for (int i = 0; i < 20000; i++) {
        const uint64_t size = tow_random_below(
            &random, UINT64_C(1) << tow_random_below(&random, 28));
        const size_t members = 1 + tow_random_below(&random, 20);
        const reduce_plan_t plan = reduce_plan_make(
            size, UINT64_C(64) << tow_random_below(&random, 16), members,
            tow_random_next(&random));
        uint64_t end = 0;
        for (uint32_t c = 0; c < plan.chunk_count && c < 1000; c++) {
            uint32_t owners = 0;
            for (uint32_t m = 0; m < members; m++)
                owners += reduce_owns(&plan, m, c);
            assert_int_equal(owners, plan.is_shared ? members : 1);
            assert_true(reduce_offset(&plan, c) == end);
            assert_true(reduce_length(&plan, c) > 0);
            end += reduce_length(&plan, c);
        }
        assert_true(plan.chunk_count >= 1000 || end == size);
        assert_int_equal(plan.chunk_bytes % 64, 0);
    }
}

TOW_TEST_MAIN(cmocka_unit_test(plans_cover_each_byte_once),
              cmocka_unit_test(random_collectives_give_the_right_bytes),
              cmocka_unit_test(a_fault_at_any_step_leaks_nothing),
              cmocka_unit_test(a_failed_write_fails_the_collective),
              cmocka_unit_test(the_error_of_a_source_is_propagated),
              cmocka_unit_test(a_tensor_completes_before_the_next_is_produced),
              cmocka_unit_test(the_first_tensor_is_combined_first),
              cmocka_unit_test(unexpected_messages_are_refused),
              cmocka_unit_test(a_start_without_memory_leaks_nothing))
