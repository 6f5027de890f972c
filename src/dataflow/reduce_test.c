/* Collectives on movers that are joined in memory: bytes by chance, an abort, a
 * loss and a death at every single step, messages that lie. */
#include "dataflow/mover_testing_impl.h"

#include "collective/reduce.h"
#include "dataflow/mover_reduce_impl.h"

#define TENSORS_MAX 3

/* One collective on all its workers. Shard s of the slice is on worker
 * places[s], and in group groups[s]. */
typedef struct gather_part {
    tow_move_t move;
    struct gather *gather;
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
} gather_part_t;

typedef struct gather {
    yard_t *yard;
    uint64_t gang;
    size_t shard_count;
    uint32_t places[SHARDS_MAX];
    uint32_t groups[SHARDS_MAX];
    tow_shape_t tensors[TENSORS_MAX];
    size_t tensor_count;
    tow_reduction_t how;
    uint64_t chunk_bytes;
    gather_part_t parts[WORKERS_MAX];
} gather_t;

/* -- What it is ------------------------------------------------------------------ */

static void gather_done(tow_move_t *move, tow_status_t take_status)
{
    gather_part_t *part = TOW_CONTAINER_OF(move, gather_part_t, move);
    assert_false(part->is_done);
    part->is_done = true;
    part->code = tow_status_code(take_status);
    snprintf(part->message, sizeof(part->message), "%s",
             tow_status_message(take_status));
    tow_status_release(take_status);
}

static tow_members_t *group_of(gather_part_t *part, uint32_t number)
{
    for (size_t i = 0; i < part->part.group_count; i++)
        if (part->groups[i].group == number) return &part->groups[i];
    const size_t at = part->part.group_count++;
    part->groups[at] = (tow_members_t){.group = number,
                                       .processes = part->processes[at],
                                       .shards = part->shards[at]};
    return &part->groups[at];
}

static void add_process(gather_part_t *part, tow_members_t *members,
                        uint32_t process, uint32_t self)
{
    uint32_t *processes = part->processes[members - part->groups];
    for (size_t i = 0; i < members->process_count; i++)
        if (processes[i] == process) return;
    if (process == self) members->self = members->process_count;
    processes[members->process_count++] = process;
}

static void describe(gather_t *gather, uint32_t process)
{
    gather_part_t *part = &gather->parts[process];
    part->part = (tow_collective_part_t){.kind = TOW_COLLECTIVE_ALL_REDUCE,
                                         .reduction = gather->how,
                                         .tensors = gather->tensors,
                                         .tensor_count = gather->tensor_count,
                                         .devices = part->devices,
                                         .groups = part->groups,
                                         .chunk_bytes = gather->chunk_bytes};
    for (uint32_t s = 0; s < gather->shard_count; s++) {
        if (gather->places[s] != process) continue;
        tow_members_t *members = group_of(part, gather->groups[s]);
        const uint32_t own = (uint32_t)part->part.shard_count++;
        part->shards[members - part->groups][members->shard_count++] = own;
        part->owned[own] = s;
        part->devices[own] = own % DEVICES_MAX;
    }
    for (size_t i = 0; i < part->part.group_count; i++)
        for (uint32_t s = 0; s < gather->shard_count; s++)
            if (gather->groups[s] == part->groups[i].group)
                add_process(part, &part->groups[i], gather->places[s], process);
}

/* Everything but yard, gang, shards, tensors, how and chunk_bytes is made here. */
static void gather_init(gather_t *gather)
{
    const size_t count = gather->tensor_count;
    for (uint32_t w = 0; w < gather->yard->hand_count; w++) {
        gather_part_t *part = &gather->parts[w];
        *part = (gather_part_t){.gather = gather};
        describe(gather, w);
        part->move = (tow_move_t){.part = &part->part,
                                  .gang = gather->gang,
                                  .sources = part->sources,
                                  .source_stride = count,
                                  .targets = part->targets,
                                  .done = gather_done};
        for (size_t i = 0; i < part->part.shard_count * count; i++)
            part->sources[i] =
                &yard_buffer(&gather->yard->hands[w], part->devices[i / count],
                             &gather->tensors[i % count])
                     ->base;
    }
}

static tow_status_t gather_start(gather_t *gather, uint32_t process)
{
    gather_part_t *part = &gather->parts[process];
    tow_mover_t *mover = gather->yard->hands[process].mover;
    tow_status_t status = TOW_OK;
    if (part->part.shard_count > 0) {
        must(tow_part_check(&part->part, process, DEVICES_MAX));
        status = tow_mover_start(mover, &part->move);
        part->is_begun = status == TOW_OK;
    } else {
        part->is_done = true;
    }
    tow_mover_granted(mover, gather->gang);
    return status;
}

/* -- Bytes ------------------------------------------------------------------------ */

/* Small numbers, so that sums and products of all types are exact and the same in
 * any order. */
static void fill(const gather_t *gather, uint32_t shard, size_t tensor,
                 uint8_t *bytes, uint64_t size)
{
    const tow_type_t type = gather->tensors[tensor].type;
    const uint64_t element = tow_type_bits(type) / 8;
    for (uint64_t i = 0; i < size / element; i++) {
        const uint8_t small =
            1 + byte_at(i, gather->gang * 31 + shard * 7 + tensor) % 2;
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

static void produce(gather_t *gather, uint32_t process, size_t index)
{
    gather_part_t *part = &gather->parts[process];
    tow_buffer_t *buffer = part->sources[index];
    uint8_t *bytes = test_malloc(buffer->bytes + 1);
    fill(gather, part->owned[index / gather->tensor_count],
         index % gather->tensor_count, bytes, buffer->bytes);
    buffer_finish(buffer, bytes);
    test_free(bytes);
}

static void produce_all(gather_t *gather)
{
    for (uint32_t w = 0; w < gather->yard->hand_count; w++)
        for (size_t i = 0;
             i < gather->parts[w].part.shard_count * gather->tensor_count; i++)
            produce(gather, w, i);
}

static void expect_tensor(const gather_t *gather, const gather_part_t *part,
                          size_t index)
{
    const size_t tensor = index % gather->tensor_count;
    const uint32_t shard = part->owned[index / gather->tensor_count];
    const yard_buffer_t *buffer = (const yard_buffer_t *)part->targets[index];
    const uint64_t size = buffer->base.bytes;
    uint8_t *wanted = test_calloc(1, size + 1);
    uint8_t *other = test_malloc(size + 1);
    bool is_first = true;
    assert_int_equal(buffer->state, TOW_BUFFER_READY);
    assert_int_equal(buffer->base.device,
                     part->devices[index / gather->tensor_count]);
    for (uint32_t s = 0; s < gather->shard_count; s++) {
        if (gather->groups[s] != gather->groups[shard]) continue;
        fill(gather, s, tensor, is_first ? wanted : other, size);
        const tow_type_t type = gather->tensors[tensor].type;
        if (!is_first)
            tow_reduce(wanted, other, size / (tow_type_bits(type) / 8), type,
                       gather->how);
        is_first = false;
    }
    assert_memory_equal(buffer->bytes, wanted, size);
    test_free(wanted);
    test_free(other);
}

static void expect_all(const gather_t *gather)
{
    for (uint32_t w = 0; w < gather->yard->hand_count; w++) {
        const gather_part_t *part = &gather->parts[w];
        assert_true(part->is_done);
        if (part->code != TOW_CODE_OK) fail_msg("%s", part->message);
        for (size_t i = 0; i < part->part.shard_count * gather->tensor_count;
             i++)
            expect_tensor(gather, part, i);
    }
}

static void gather_release(gather_t *gather)
{
    for (uint32_t w = 0; w < gather->yard->hand_count; w++) {
        gather_part_t *part = &gather->parts[w];
        const size_t count = part->part.shard_count * gather->tensor_count;
        for (size_t i = 0; i < count; i++) {
            if (tow_buffer_state(part->sources[i]) == TOW_BUFFER_PENDING)
                buffer_fail(part->sources[i],
                            TOW_ERROR(TOW_CANCELLED, "not any more"));
            tow_buffer_release(part->sources[i]);
        }
        for (size_t i = 0; part->is_begun && i < count; i++)
            tow_buffer_release(part->targets[i]);
    }
}

/* -- Worlds by chance ---------------------------------------------------------------- */

static int64_t random_size(tow_random_t *random)
{
    static const int64_t sizes[] = {0, 1, 7, 600, 3000, 9000, 30000};
    return sizes[tow_random_below(random, TOW_COUNT_OF(sizes))];
}

static void random_gather(gather_t *gather, yard_t *yard, tow_random_t *random,
                          uint64_t gang)
{
    static const tow_type_t types[] = {TOW_TYPE_F32, TOW_TYPE_S8, TOW_TYPE_F64,
                                       TOW_TYPE_U32, TOW_TYPE_PRED};
    *gather = (gather_t){
        .yard = yard,
        .gang = gang,
        .shard_count = 1 + tow_random_below(random, 8),
        .tensor_count = 1 + tow_random_below(random, TENSORS_MAX),
        .how = (tow_reduction_t)(1 + tow_random_below(random, 4)),
        .chunk_bytes = UINT64_C(1024) << tow_random_below(random, 8)};
    const uint32_t groups = 1 + (uint32_t)tow_random_below(random, 3);
    for (size_t s = 0; s < gather->shard_count; s++) {
        gather->places[s] =
            (uint32_t)tow_random_below(random, yard->hand_count);
        gather->groups[s] = (uint32_t)tow_random_below(random, groups);
    }
    for (size_t t = 0; t < gather->tensor_count; t++)
        gather->tensors[t] = (tow_shape_t){
            .type = types[tow_random_below(random, TOW_COUNT_OF(types))],
            .rank = 1,
            .dims = {random_size(random)}};
}

static void random_collectives_give_the_right_bytes(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= 600; seed++) {
        yard_t yard;
        tow_random_t random;
        static gather_t gathers[3];
        tow_random_init(&random, seed);
        const uint32_t workers = 1 + (uint32_t)tow_random_below(&random, 4);
        yard_open(&yard, workers, seed);
        yard.copies_uploads = seed % 2;
        for (uint64_t i = 0; i < 3; i++) {
            random_gather(&gathers[i], &yard, &random, 10 + i);
            gather_init(&gathers[i]);
        }
        /* Grants come in order at each worker, and at each in its own time. */
        uint32_t next[WORKERS_MAX] = {0};
        for (uint32_t left = 3 * workers; left > 0;) {
            const uint32_t w = (uint32_t)tow_random_below(&random, workers);
            if (next[w] < 3) {
                must(gather_start(&gathers[next[w]++], w));
                left--;
            }
            for (uint64_t k = tow_random_below(&random, 6); k > 0; k--)
                yard_step(&yard);
        }
        for (int i = 2; i >= 0; i--)
            produce_all(&gathers[i]);
        yard_run(&yard);
        for (size_t i = 0; i < 3; i++)
            expect_all(&gathers[i]);
        for (size_t i = 0; i < 3; i++)
            gather_release(&gathers[i]);
        yard_close(&yard);
    }
}

/* -- Ways to fail ---------------------------------------------------------------------- */

/* Three workers, two shards each, of which two tensors are combined: a small and
 * a large one, in chunks. */
static void standard_gather(gather_t *gather, yard_t *yard)
{
    *gather = (gather_t){.yard = yard,
                         .gang = 5,
                         .shard_count = 6,
                         .places = {0, 0, 1, 1, 2, 2},
                         .tensor_count = 2,
                         .how = TOW_REDUCE_SUM,
                         .chunk_bytes = 32 << 10};
    gather->tensors[0] =
        (tow_shape_t){.type = TOW_TYPE_F32, .rank = 1, .dims = {10}};
    gather->tensors[1] =
        (tow_shape_t){.type = TOW_TYPE_F32, .rank = 1, .dims = {40000}};
    gather_init(gather);
}

typedef enum mishap {
    MISHAP_ABORT,
    MISHAP_GONE,
    MISHAP_CRASH,
    MISHAP_COUNT,
} mishap_t;

static void others_lose(yard_t *yard, uint32_t process)
{
    tow_status_t cause = TOW_ERROR(TOW_UNAVAILABLE, "it died");
    for (uint32_t w = 0; w < yard->hand_count; w++)
        if (w != process)
            tow_mover_peer_gone(yard->hands[w].mover, process, cause);
    tow_status_release(cause);
}

/* What the controller does when one has reported: the others are aborted. */
static void abort_others(gather_t *gather)
{
    tow_status_t cause = TOW_ERROR(TOW_ABORTED, "another failed");
    bool has_failed = false;
    for (uint32_t w = 0; w < gather->yard->hand_count; w++)
        has_failed |=
            gather->parts[w].is_done && gather->parts[w].code != TOW_CODE_OK;
    for (uint32_t w = 0; has_failed && w < gather->yard->hand_count; w++)
        if (gather->parts[w].is_begun && !gather->parts[w].is_done)
            tow_mover_abort(gather->yard->hands[w].mover,
                            &gather->parts[w].move, cause);
    tow_status_release(cause);
}

/* Returns false when the collective is over before that step. */
static bool mishap_at(mishap_t mishap, size_t step, uint64_t seed)
{
    static gather_t gather;
    yard_t yard;
    yard_open(&yard, 3, seed);
    standard_gather(&gather, &yard);
    for (uint32_t w = 0; w < 3; w++)
        must(gather_start(&gather, w));
    produce_all(&gather);
    bool is_over = false;
    for (size_t i = 0; i < step && !is_over; i++)
        is_over = !yard_step(&yard);
    if (mishap == MISHAP_CRASH) {
        yard_crash(&yard);
        return !is_over;
    }
    tow_status_t cause = TOW_ERROR(TOW_CANCELLED, "not wanted");
    if (mishap == MISHAP_ABORT && !gather.parts[1].is_done)
        tow_mover_abort(yard.hands[1].mover, &gather.parts[1].move, cause);
    if (mishap == MISHAP_GONE) {
        others_lose(&yard, 1);
        if (!gather.parts[1].is_done)
            tow_mover_abort(yard.hands[1].mover, &gather.parts[1].move, cause);
    }
    tow_status_release(cause);
    yard_run(&yard);
    abort_others(&gather);
    yard_run(&yard);
    for (uint32_t w = 0; w < 3; w++) {
        assert_true(gather.parts[w].is_done);
        if (gather.parts[w].code != TOW_CODE_OK) continue;
        for (size_t i = 0; i < 4; i++)
            expect_tensor(&gather, &gather.parts[w], i);
    }
    gather_release(&gather);
    yard_close(&yard);
    return !is_over;
}

static void a_mishap_at_every_step_leaks_nothing(void **state)
{
    (void)state;
    for (mishap_t mishap = 0; mishap < MISHAP_COUNT; mishap++)
        for (uint64_t seed = 0; seed < 4; seed++)
            for (size_t step = 0; mishap_at(mishap, step, seed); step++)
                assert_true(step < 10000);
}

static void a_write_that_fails_fails_the_collective(void **state)
{
    (void)state;
    for (int at = 1; at < 40; at++)
        for (int way = 0; way < 2; way++) {
            static gather_t gather;
            yard_t yard;
            yard_open(&yard, 3, 0);
            *(way == 0 ? &yard.refuse_write_at : &yard.spoil_write_at) = at;
            standard_gather(&gather, &yard);
            for (uint32_t w = 0; w < 3; w++)
                must(gather_start(&gather, w));
            produce_all(&gather);
            yard_run(&yard);
            abort_others(&gather);
            yard_run(&yard);
            const int written = yard.write_count;
            gather_release(&gather);
            yard_close(&yard);
            if (written < at) break;
        }
}

static void the_error_of_a_source_is_passed_on(void **state)
{
    (void)state;
    static gather_t gather;
    yard_t yard;
    yard_open(&yard, 3, 0);
    standard_gather(&gather, &yard);
    for (uint32_t w = 0; w < 3; w++)
        must(gather_start(&gather, w));
    buffer_fail(gather.parts[1].sources[0],
                TOW_ERROR(TOW_INTERNAL, "device 3 is on fire"));
    yard_run(&yard);
    assert_true(gather.parts[1].is_done);
    assert_int_equal(gather.parts[1].code, TOW_INTERNAL);
    assert_string_equal(gather.parts[1].message, "device 3 is on fire");
    assert_int_equal(tow_buffer_state(gather.parts[1].targets[3]),
                     TOW_BUFFER_FAILED);
    abort_others(&gather);
    yard_run(&yard);
    gather_release(&gather);
    yard_close(&yard);
}

/* -- Each by itself ---------------------------------------------------------------------- */

static void a_tensor_is_there_before_the_next_is(void **state)
{
    (void)state;
    static gather_t gather;
    yard_t yard;
    yard_open(&yard, 3, 0);
    standard_gather(&gather, &yard);
    for (uint32_t w = 0; w < 3; w++)
        must(gather_start(&gather, w));
    for (uint32_t w = 0; w < 3; w++)
        for (size_t i = 0; i < 4; i += 2)
            produce(&gather, w, i);
    yard_run(&yard);
    for (uint32_t w = 0; w < 3; w++) {
        assert_false(gather.parts[w].is_done);
        expect_tensor(&gather, &gather.parts[w], 0);
        expect_tensor(&gather, &gather.parts[w], 2);
        assert_int_equal(tow_buffer_state(gather.parts[w].targets[1]),
                         TOW_BUFFER_PENDING);
    }
    gather_release(&gather);
    yard_run(&yard);
    abort_others(&gather);
    yard_close(&yard);
}

/* Late as it is, the first in the list is combined first. */
static void the_first_tensor_is_combined_first(void **state)
{
    (void)state;
    static gather_t gather;
    yard_t yard;
    yard_open(&yard, 1, 0);
    gather = (gather_t){.yard = &yard,
                        .gang = 5,
                        .shard_count = 2,
                        .tensor_count = 2,
                        .how = TOW_REDUCE_SUM,
                        .chunk_bytes = 1 << 20};
    for (size_t t = 0; t < 2; t++)
        gather.tensors[t] = (tow_shape_t){.type = TOW_TYPE_F32,
                                          .rank = 1,
                                          .dims = {t == 0 ? 20000 : 8 << 20}};
    gather_init(&gather);
    must(gather_start(&gather, 0));
    produce(&gather, 0, 1);
    produce(&gather, 0, 3);
    for (int i = 0; i < 3; i++) /* Both are there, and work has begun. */
        yard_step(&yard);
    produce(&gather, 0, 0);
    produce(&gather, 0, 2);
    while (tow_buffer_state(gather.parts[0].targets[0]) == TOW_BUFFER_PENDING)
        assert_true(yard_step(&yard));
    assert_int_equal(tow_buffer_state(gather.parts[0].targets[1]),
                     TOW_BUFFER_PENDING);
    yard_run(&yard);
    expect_all(&gather);
    gather_release(&gather);
    yard_close(&yard);
}

/* -- Messages that lie ---------------------------------------------------------------------- */

static void what_was_not_to_come_is_refused(void **state)
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
        static gather_t gather;
        static uint8_t bytes[40000];
        yard_t yard;
        yard_open(&yard, 3, 0);
        standard_gather(&gather, &yard);
        must(gather_start(&gather, 0));
        tow_msg_edge_piece_t piece = TOW_MSG_EDGE_PIECE_INIT;
        piece.gang = 5;
        piece.shard = pieces[i].shard;
        piece.number = pieces[i].number;
        piece.bytes.data = bytes;
        piece.bytes.len = pieces[i].size;
        tow_status_t status = tow_mover_piece(yard.hands[0].mover, 1, &piece);
        assert_int_equal(tow_status_code(status), TOW_INVALID_ARGUMENT);
        tow_status_release(status);
        gather_release(&gather);
        yard_run(&yard);
        yard_close(&yard);
    }
}

static void nothing_is_left_of_a_start_without_memory(void **state)
{
    (void)state;
    for (size_t nth = 0; nth < 60; nth++) {
        static gather_t gather;
        yard_t yard;
        yard_open(&yard, 3, 0);
        standard_gather(&gather, &yard);
        tow_alloc_fail_after(nth);
        tow_status_t status = gather_start(&gather, 0);
        tow_alloc_fail_after(UINT64_MAX);
        const bool is_through = status == TOW_OK;
        if (status != TOW_OK)
            assert_int_equal(tow_status_code(status), TOW_RESOURCE_EXHAUSTED);
        tow_status_release(status);
        gather_release(&gather);
        yard_run(&yard);
        yard_close(&yard);
        if (is_through) break;
    }
}

/* -- Plans ------------------------------------------------------------------------------------- */

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
              cmocka_unit_test(a_mishap_at_every_step_leaks_nothing),
              cmocka_unit_test(a_write_that_fails_fails_the_collective),
              cmocka_unit_test(the_error_of_a_source_is_passed_on),
              cmocka_unit_test(a_tensor_is_there_before_the_next_is),
              cmocka_unit_test(the_first_tensor_is_combined_first),
              cmocka_unit_test(what_was_not_to_come_is_refused),
              cmocka_unit_test(nothing_is_left_of_a_start_without_memory))
