/* Movers, joined in memory. */
#include "dataflow/mover_testing_impl.h"

#include <time.h> /* tow-allow: a measurement, printed and not judged */

#include "dataflow/fake_driver_testing_impl.h"

/* -- Plans ------------------------------------------------------------------------ */

#define ROW_BYTES (32u << 10) /* large */

static tow_shape_t matrix(int64_t rows, int64_t columns)
{
    return (tow_shape_t){
        .type = TOW_TYPE_F32, .rank = 2, .dims = {rows, columns}};
}

/* Rows, cut in two on worker 0, whole on worker 1. */
static void plan_gather(plan_t *plan, int64_t columns)
{
    *plan =
        (plan_t){.whole = matrix(2, columns),
                 .from = {.parts = {2, 1}, .place_count = 2, .places = {0, 0}},
                 .to = {.parts = {1, 1}, .place_count = 1, .places = {1}}};
    plan_make(plan, 2);
}

/* Rows on workers 0 and 1 become columns on the same: no piece is a row of bytes
 * where it comes from. */
static void plan_transpose(plan_t *plan, int64_t side)
{
    *plan =
        (plan_t){.whole = matrix(side, side),
                 .from = {.parts = {2, 1}, .place_count = 2, .places = {0, 1}},
                 .to = {.parts = {1, 2}, .place_count = 2, .places = {0, 1}}};
    plan_make(plan, 2);
}

/* The other way: none is where it goes to. */
static void plan_untranspose(plan_t *plan, int64_t side)
{
    *plan =
        (plan_t){.whole = matrix(side, side),
                 .from = {.parts = {1, 2}, .place_count = 2, .places = {0, 1}},
                 .to = {.parts = {2, 1}, .place_count = 2, .places = {0, 1}}};
    plan_make(plan, 2);
}

/* A whole shard of worker 0 becomes one of worker 1, and, the same, of worker 2. */
static void plan_pass(plan_t *plan, uint32_t hand_count)
{
    *plan = (plan_t){.whole = matrix(2, ROW_BYTES / 8),
                     .from = {.parts = {1, 1}, .place_count = 1, .places = {0}},
                     .to = {.parts = {1, 1},
                            .place_count = hand_count - 1,
                            .places = {1, 2}}};
    plan_make(plan, hand_count);
}

static void start_all(trip_t *trip)
{
    for (uint32_t i = 0; i < trip->yard->hand_count; i++)
        must(trip_start(trip, i));
}

static void produce_all(trip_t *trip)
{
    for (size_t s = 0; s < trip->plan->from.place_count; s++)
        trip_produce(trip, s);
}

static void expect_all(const trip_t *trip, tow_code_t code)
{
    for (uint32_t i = 0; i < trip->yard->hand_count; i++) {
        assert_true(trip->parts[i].is_done);
        if (trip->parts[i].code != code)
            fail_msg("worker %u: %s", i, trip->parts[i].message);
    }
}

static void expect_part(const char *text, const char *part)
{
    if (strstr(text, part) == NULL) fail_msg("'%s' has no '%s'", text, part);
}

/* The whole life of one transfer. */
static void go(yard_t *yard, const plan_t *plan)
{
    trip_t trip;
    trip_init(&trip, yard, plan, 5);
    start_all(&trip);
    yard_run(yard);
    produce_all(&trip);
    yard_run(yard);
    expect_all(&trip, TOW_CODE_OK);
    trip_expect_bytes(&trip);
    trip_release(&trip);
}

/* -- Ways -------------------------------------------------------------------------- */

static void a_whole_shard_of_our_own_is_the_drivers_copy(void **state)
{
    (void)state;
    yard_t yard;
    plan_t plan = {
        .whole = matrix(4, 3),
        .from = {.parts = {4, 1}, .place_count = 4, .places = {0, 0, 0, 0}},
        .to = {.parts = {4, 1}, .place_count = 4, .places = {0, 0, 0, 0}}};
    yard_open(&yard, 1, 0);
    plan_make(&plan, 1);
    go(&yard, &plan);
    assert_int_equal(tow_mover_stats(yard.hands[0].mover).copied, 4);
    assert_int_equal(yard.message_count, 0);
    yard_close(&yard);
    plan_free(&plan, 1);
}

static void parts_of_our_own_are_laid_out(void **state)
{
    (void)state;
    yard_t yard;
    plan_t plan = {
        .whole = matrix(4, 6),
        .from = {.parts = {1, 2}, .place_count = 2, .places = {0, 0}},
        .to = {.parts = {4, 1}, .place_count = 4, .places = {0, 0, 0, 0}}};
    yard_open(&yard, 1, 0);
    plan_make(&plan, 1);
    assert_false(plan.routes[0].is_packed);
    go(&yard, &plan);
    assert_int_equal(yard.message_count, 0);
    yard_close(&yard);
    plan_free(&plan, 1);
}

static void a_driver_without_copies_lends_its_bytes(void **state)
{
    (void)state;
    yard_t yard;
    plan_t plan = {
        .whole = matrix(4, 3),
        .from = {.parts = {2, 1}, .place_count = 2, .places = {0, 0}},
        .to = {.parts = {2, 1}, .place_count = 2, .places = {0, 0}}};
    tow_driver_ops_t ops = yard_driver_ops;
    ops.copy = NULL;
    yard_open(&yard, 1, 0);
    yard.hands[0].driver.ops = &ops;
    plan_make(&plan, 1);
    go(&yard, &plan);
    yard_close(&yard);
    plan_free(&plan, 1);
}

static void small_pieces_travel_in_messages(void **state)
{
    (void)state;
    yard_t yard;
    plan_t plan;
    yard_open(&yard, 2, 0);
    plan_gather(&plan, 5);
    go(&yard, &plan);
    assert_int_equal(yard.message_count, 2);
    assert_int_equal(yard.write_count, 0);
    const tow_mover_stats_t stats = tow_mover_stats(yard.hands[0].mover);
    assert_int_equal(stats.sent_small, 2);
    assert_int_equal(stats.bytes_sent, 40);
    yard_close(&yard);
    plan_free(&plan, 2);
}

static void large_pieces_are_written_into_the_target(void **state)
{
    (void)state;
    yard_t yard;
    plan_t plan;
    yard_open(&yard, 2, 0);
    plan_gather(&plan, ROW_BYTES / 4);
    assert_false(plan.routes[0].is_packed);
    go(&yard, &plan);
    assert_int_equal(yard.message_count, 1); /* one offer for both */
    assert_int_equal(yard.write_count, 2);
    yard_close(&yard);
    plan_free(&plan, 2);
}

/* The move ends while its receivers use the sender's bytes; the sender keeps them
 * until both have let go, also if nobody else holds them. */
static void a_whole_shard_is_lent(void **state)
{
    (void)state;
    yard_t yard;
    plan_t plan;
    trip_t trip;
    yard_open(&yard, 3, 0);
    yard.lends = yard.lends_on = true;
    plan_pass(&plan, 3);
    trip_init(&trip, &yard, &plan, 5);
    start_all(&trip);
    produce_all(&trip);
    yard_run(&yard);
    expect_all(&trip, TOW_CODE_OK);
    assert_int_equal(yard.lent_count, 2);
    tow_buffer_release(trip.parts[0].sources[0]);
    yard_run(&yard);
    assert_int_equal(yard.hands[0].buffer_count, 1);
    assert_int_equal(yard.hands[0].loan_count, 1);
    assert_int_equal(tow_mover_stats(yard.hands[0].mover).lent_count, 2);
    trip_expect_bytes(&trip);
    tow_buffer_release(trip.parts[1].targets[0]);
    yard_run(&yard);
    assert_int_equal(yard.hands[0].loan_count, 1);
    assert_false(tow_mover_is_quiet(yard.hands[0].mover));
    tow_buffer_release(trip.parts[2].targets[0]);
    yard_run(&yard);
    assert_int_equal(yard.hands[0].buffer_count, 0);
    assert_int_equal(tow_mover_stats(yard.hands[0].mover).sent_lent, 2);
    yard_close(&yard);
    plan_free(&plan, 3);
}

/* A device that takes a copy gives them back at once. */
static void what_is_copied_from_a_loan_is_given_back(void **state)
{
    (void)state;
    yard_t yard;
    plan_t plan;
    yard_open(&yard, 2, 0);
    yard.lends = yard.copies_uploads = true;
    plan_pass(&plan, 2);
    go(&yard, &plan);
    assert_int_equal(yard.lent_count, 1);
    assert_true(tow_list_is_empty(&yard.loans));
    yard_close(&yard);
    plan_free(&plan, 2);
}

/* Parts, here or there, are copied: nobody keeps a whole for the sake of a
 * part. */
static void parts_are_not_lent(void **state)
{
    (void)state;
    for (int way = 0; way < 2; way++) {
        yard_t yard;
        plan_t plan;
        yard_open(&yard, 2, 0);
        yard.lends = true;
        if (way == 0)
            plan_gather(&plan, ROW_BYTES / 4);
        else
            plan_untranspose(&plan, 256);
        go(&yard, &plan);
        assert_int_equal(yard.lent_count, 0);
        yard_close(&yard);
        plan_free(&plan, 2);
    }
}

static void large_pieces_that_are_no_rows_arrive_packed(void **state)
{
    (void)state;
    yard_t yard;
    plan_t plan;
    yard_open(&yard, 2, 0);
    plan_untranspose(&plan, 256);
    assert_true(plan.routes[0].is_packed);
    go(&yard, &plan);
    assert_int_equal(yard.message_count, 2);
    assert_int_equal(yard.write_count, 2);
    yard_close(&yard);
    plan_free(&plan, 2);
}

static void large_pieces_are_packed_by_who_sends_them(void **state)
{
    (void)state;
    yard_t yard;
    plan_t plan;
    yard_open(&yard, 2, 0);
    plan_transpose(&plan, 256);
    assert_false(plan.routes[0].is_packed);
    go(&yard, &plan);
    assert_int_equal(yard.write_count, 2);
    yard_close(&yard);
    plan_free(&plan, 2);
}

static void devices_may_copy_what_they_are_given(void **state)
{
    (void)state;
    yard_t yard;
    plan_t plan;
    yard_open(&yard, 2, 0);
    yard.copies_uploads = true;
    plan_transpose(&plan, 256);
    go(&yard, &plan);
    yard_close(&yard);
    plan_free(&plan, 2);
}

static void an_empty_array_is_there_at_once(void **state)
{
    (void)state;
    yard_t yard;
    tow_buffer_t *target = NULL;
    const uint32_t device = 0;
    const tow_route_t route = {.source = matrix(0, 4),
                               .target = matrix(0, 2),
                               .target_devices = &device,
                               .target_count = 1};
    trip_part_t part = {
        .move = {
            .route = &route, .gang = 1, .targets = &target, .done = trip_done}};
    must(tow_route_check(&route, 0, 1));
    yard_open(&yard, 1, 0);
    must(tow_mover_start(yard.hands[0].mover, &part.move));
    assert_false(part.is_done); /* Never inside the call. */
    yard_run(&yard);
    assert_true(part.is_done);
    assert_int_equal(tow_buffer_state(target), TOW_BUFFER_READY);
    tow_buffer_release(target);
    yard_close(&yard);
}

/* -- Before and after the grant ------------------------------------------------------- */

static void what_comes_early_waits_for_its_grant(void **state)
{
    (void)state;
    yard_t yard;
    plan_t plans[2];
    yard_open(&yard, 2, 0);
    plan_gather(&plans[0], 5);
    plan_gather(&plans[1], 900); /* too much for a record of the pool */
    for (int i = 0; i < 2; i++) {
        trip_t trip;
        trip_init(&trip, &yard, &plans[i], 7 + (uint64_t)i);
        must(trip_start(&trip, 0));
        produce_all(&trip);
        yard_run(&yard);
        assert_true(trip.parts[0].is_done);
        assert_int_equal(tow_mover_stats(yard.hands[1].mover).early_count, 2);
        must(trip_start(&trip, 1));
        yard_run(&yard);
        expect_all(&trip, TOW_CODE_OK);
        assert_int_equal(tow_mover_stats(yard.hands[1].mover).early_count, 0);
        trip_expect_bytes(&trip);
        trip_release(&trip);
    }
    yard_close(&yard);
    plan_free(&plans[0], 2);
    plan_free(&plans[1], 2);
}

static void offers_come_early_too(void **state)
{
    (void)state;
    yard_t yard;
    plan_t plan;
    trip_t trip;
    yard_open(&yard, 2, 0);
    plan_gather(&plan, ROW_BYTES / 4);
    trip_init(&trip, &yard, &plan, 7);
    must(trip_start(&trip, 1));
    yard_run(&yard);
    assert_int_equal(tow_mover_stats(yard.hands[0].mover).early_count, 1);
    produce_all(&trip);
    must(trip_start(&trip, 0));
    yard_run(&yard);
    expect_all(&trip, TOW_CODE_OK);
    trip_expect_bytes(&trip);
    trip_release(&trip);
    yard_close(&yard);
    plan_free(&plan, 2);
}

static void what_comes_late_is_dropped(void **state)
{
    (void)state;
    yard_t yard;
    plan_t plan;
    trip_t trip;
    yard_open(&yard, 2, 0);
    plan_gather(&plan, 5);
    trip_init(&trip, &yard, &plan, 7);
    tow_mover_granted(yard.hands[1].mover,
                      7); /* It could not be begun there. */
    must(trip_start(&trip, 0));
    produce_all(&trip);
    yard_run(&yard);
    assert_int_equal(tow_mover_stats(yard.hands[1].mover).early_count, 0);
    assert_int_equal(yard.hands[1].last_error, TOW_CODE_OK);
    trip_release(&trip);
    yard_close(&yard);
    plan_free(&plan, 2);
}

static void what_came_early_goes_when_its_grant_has_passed(void **state)
{
    (void)state;
    yard_t yard;
    tow_mover_stats_t stats;
    yard_open(&yard, 1, 0);
    tow_mover_t *mover = yard.hands[0].mover;
    uint8_t bytes[300] = {0};
    tow_msg_edge_piece_t piece = TOW_MSG_EDGE_PIECE_INIT;
    static const uint64_t gangs[] = {9, 4, 7, 4, 12, 8};
    for (size_t i = 0; i < TOW_COUNT_OF(gangs); i++) {
        piece.gang = gangs[i];
        piece.bytes.data = bytes;
        piece.bytes.len = 50 * i;
        must(tow_mover_piece(mover, 1 + i % 2, &piece));
    }
    tow_mover_granted(mover, 7);
    stats = tow_mover_stats(mover);
    assert_int_equal(stats.early_count, 3);
    assert_int_equal(stats.early_bytes, 0 + 200 + 250);
    tow_status_t gone = TOW_ERROR(TOW_UNAVAILABLE, "gone");
    tow_mover_peer_gone(mover, 1, gone);
    tow_status_release(gone);
    assert_int_equal(tow_mover_stats(mover).early_count, 1);
    tow_mover_clear(mover);
    assert_int_equal(tow_mover_stats(mover).early_count, 0);
    yard_close(&yard);
}

static void one_worker_may_be_ahead_only_so_far(void **state)
{
    (void)state;
    yard_t yard;
    tow_status_t status = TOW_OK;
    uint32_t count = 0;
    yard_open(&yard, 1, 0);
    tow_mover_t *mover = yard.hands[0].mover;
    tow_msg_edge_piece_t piece = TOW_MSG_EDGE_PIECE_INIT;
    while (status == TOW_OK && count <= TOW_MOVER_EARLY_COUNT_MAX) {
        piece.gang = 1 + count / 2;
        status = tow_mover_piece(mover, 3, &piece);
        if (status == TOW_OK) count++;
    }
    assert_int_equal(tow_status_code(status), TOW_RESOURCE_EXHAUSTED);
    expect_part(tow_status_message(status), "process 3 is ahead");
    tow_status_release(status);
    assert_int_equal(count, TOW_MOVER_EARLY_COUNT_MAX);
    must(tow_mover_piece(mover, 4, &piece)); /* Others are not concerned. */
    yard_close(&yard);
}

/* -- Sizes that only the sender knows ------------------------------------------------------ */

#define SIZED_ROWS 4 /* at the most */

/* A whole shard of worker 0 becomes one of worker 0 and one of worker 1. */
static void plan_sized(plan_t *plan, int64_t columns)
{
    *plan =
        (plan_t){.whole = matrix(SIZED_ROWS, columns),
                 .from = {.parts = {1, 1}, .place_count = 1, .places = {0}},
                 .to = {.parts = {1, 1}, .place_count = 2, .places = {0, 1}}};
    plan_make(plan, 2);
}

static void count_sized(tow_move_t *move)
{
    TOW_CONTAINER_OF(move, trip_part_t, move)->sized_count++;
}

/* What the plan says is the bound; the source has so many rows. */
static void trip_init_sized(trip_t *trip, yard_t *yard, const plan_t *plan,
                            uint64_t gang, int64_t rows)
{
    trip_init(trip, yard, plan, gang);
    tow_buffer_t **source = &trip->parts[0].sources[0];
    tow_shape_t shape = (*source)->shape;
    shape.dims[0] = rows;
    tow_buffer_release(*source);
    *source = &yard_buffer(&yard->hands[0], 0, &shape)->base;
    for (uint32_t i = 0; i < yard->hand_count; i++) {
        trip->parts[i].move.is_sized = true;
        trip->parts[i].move.sized = count_sized;
    }
}

/* The first rows of the plan's array. */
static void produce_sized(trip_t *trip)
{
    tow_buffer_t *source = trip->parts[0].sources[0];
    uint8_t *bytes = test_malloc(source->bytes + 1);
    for (uint64_t i = 0; i < source->bytes; i++)
        bytes[i] = byte_at(i, trip->salt);
    buffer_finish(source, bytes);
    test_free(bytes);
}

static void expect_sized(const trip_t *trip, int64_t rows)
{
    expect_all(trip, TOW_CODE_OK);
    for (uint32_t w = 0; w < 2; w++) {
        const yard_buffer_t *target =
            (const yard_buffer_t *)trip->parts[w].targets[0];
        assert_int_equal(trip->parts[w].sized_count, 1);
        assert_int_equal(target->state, TOW_BUFFER_READY);
        assert_int_equal(target->base.shape.dims[0], rows);
        for (uint64_t i = 0; i < target->base.bytes; i++)
            assert_int_equal(((const uint8_t *)target->bytes)[i],
                             byte_at(i, trip->salt));
    }
}

/* Small and large, from nothing to all that may be; the receiver is granted
 * before the size comes, or after. */
static void go_sized(int64_t columns, int64_t rows, bool is_early)
{
    yard_t yard;
    plan_t plan;
    trip_t trip;
    yard_open(&yard, 2, 0);
    plan_sized(&plan, columns);
    trip_init_sized(&trip, &yard, &plan, 7, rows);
    must(trip_start(&trip, 0));
    if (!is_early) must(trip_start(&trip, 1));
    yard_run(&yard);
    assert_int_equal(trip.parts[1].sized_count, 0);
    produce_sized(&trip);
    yard_run(&yard);
    assert_int_equal(trip.parts[1].is_done, !is_early);
    if (is_early) must(trip_start(&trip, 1));
    yard_run(&yard);
    expect_sized(&trip, rows);
    trip_release(&trip);
    yard_close(&yard);
    plan_free(&plan, 2);
}

static void a_sized_move_makes_room_when_it_is_told_the_size(void **state)
{
    (void)state;
    for (int64_t rows = 0; rows <= SIZED_ROWS; rows++)
        for (int is_early = 0; is_early <= 1; is_early++) {
            go_sized(8, rows, is_early);
            go_sized(ROW_BYTES / 4, rows, is_early);
        }
}

static void expect_wrong_size(tow_mover_t *mover, uint32_t process,
                              tow_msg_edge_size_t size)
{
    tow_status_t status = tow_mover_size(mover, process, &size);
    assert_int_equal(tow_status_code(status), TOW_INVALID_ARGUMENT);
    expect_part(tow_status_message(status), "told the size of shard");
    tow_status_release(status);
}

static void wrong_sizes_are_refused(void **state)
{
    (void)state;
    yard_t yard;
    plan_t plan;
    trip_t trip;
    yard_open(&yard, 2, 0);
    plan_sized(&plan, 8);
    trip_init_sized(&trip, &yard, &plan, 7, 2);
    start_all(&trip);
    tow_mover_t *mover = yard.hands[1].mover;
    int64_t dims[] = {2, 8};
    tow_msg_edge_size_t right = TOW_MSG_EDGE_SIZE_INIT, wrong;
    right.gang = 7;
    right.dims = dims;
    right.n_dims = 2;
    expect_wrong_size(mover, 3, right); /* It sends nothing. */
    wrong = right, wrong.shard = 1;
    expect_wrong_size(mover, 0, wrong);
    wrong = right, wrong.n_dims = 1;
    expect_wrong_size(mover, 0, wrong);
    wrong = right, wrong.dims = (int64_t[]){SIZED_ROWS + 1, 8};
    expect_wrong_size(mover, 0, wrong);
    wrong = right, wrong.dims = (int64_t[]){-1, 8};
    expect_wrong_size(mover, 0, wrong);
    wrong = right, wrong.gang = 6; /* Stale: of no interest. */
    must(tow_mover_size(mover, 0, &wrong));
    assert_int_equal(trip.parts[1].sized_count, 0);
    must(tow_mover_size(mover, 0, &right));
    assert_int_equal(trip.parts[1].sized_count, 1);
    expect_wrong_size(mover, 0, right); /* Twice. */
    tow_status_t cause = TOW_ERROR(TOW_ABORTED, "the run was aborted");
    for (uint32_t i = 0; i < 2; i++)
        tow_mover_abort(yard.hands[i].mover, &trip.parts[i].move, cause);
    tow_status_release(cause);
    yard_run(&yard);
    expect_all(&trip, TOW_ABORTED);
    trip_release(&trip);
    yard_run(&yard);
    yard_close(&yard);
    plan_free(&plan, 2);
}

static void a_sized_move_whose_sender_fails_is_never_sized(void **state)
{
    (void)state;
    yard_t yard;
    plan_t plan;
    trip_t trip;
    yard_open(&yard, 2, 0);
    plan_sized(&plan, 8);
    trip_init_sized(&trip, &yard, &plan, 7, 2);
    start_all(&trip);
    buffer_fail(trip.parts[0].sources[0],
                TOW_ERROR(TOW_INTERNAL, "filter failed"));
    tow_status_t cause = TOW_ERROR(TOW_ABORTED, "the run was aborted");
    tow_mover_abort(yard.hands[1].mover, &trip.parts[1].move, cause);
    tow_status_release(cause);
    yard_run(&yard);
    assert_string_equal(trip.parts[0].message, "filter failed");
    assert_int_equal(trip.parts[1].code, TOW_ABORTED);
    for (uint32_t i = 0; i < 2; i++) {
        assert_int_equal(trip.parts[i].sized_count, 0);
        assert_null(trip.parts[i].targets[0]);
    }
    trip_release(&trip);
    yard_close(&yard);
    plan_free(&plan, 2);
}

/* -- Failing ----------------------------------------------------------------------------- */

static void a_poisoned_source_fails_the_move_with_its_own_error(void **state)
{
    (void)state;
    yard_t yard;
    plan_t plan;
    trip_t trip;
    yard_open(&yard, 2, 0);
    plan_transpose(&plan, 256);
    trip_init(&trip, &yard, &plan, 7);
    start_all(&trip);
    trip_produce(&trip, 1);
    yard_run(&yard);
    buffer_fail(trip.parts[0].sources[0],
                TOW_ERROR(TOW_INTERNAL, "matmul failed"));
    yard_run(&yard);
    assert_int_equal(trip.parts[0].code, TOW_INTERNAL);
    assert_string_equal(trip.parts[0].message, "matmul failed");
    yard_buffer_t *target = (yard_buffer_t *)trip.parts[0].targets[0];
    assert_int_equal(target->state, TOW_BUFFER_FAILED);
    assert_string_equal(tow_status_message(target->error), "matmul failed");
    /* The other has only lost a sender, of which somebody tells it. */
    assert_false(trip.parts[1].is_done);
    tow_status_t cause = TOW_ERROR(TOW_ABORTED, "the run was aborted");
    tow_mover_abort(yard.hands[1].mover, &trip.parts[1].move, cause);
    assert_false(trip.parts[1].is_done); /* Never inside the call. */
    tow_status_release(cause);
    yard_run(&yard);
    assert_string_equal(trip.parts[1].message, "the run was aborted");
    assert_int_equal(tow_buffer_state(trip.parts[1].targets[0]),
                     TOW_BUFFER_FAILED);
    trip_release(&trip);
    yard_close(&yard);
    plan_free(&plan, 2);
}

static void a_peer_that_goes_fails_those_that_need_it(void **state)
{
    (void)state;
    yard_t yard;
    plan_t near, far;
    trip_t here, there;
    yard_open(&yard, 2, 0);
    plan_gather(&far, ROW_BYTES / 4);
    near =
        (plan_t){.whole = matrix(2, 4),
                 .from = {.parts = {2, 1}, .place_count = 2, .places = {0, 0}},
                 .to = {.parts = {1, 1}, .place_count = 1, .places = {0}}};
    plan_make(&near, 2);
    trip_init(&here, &yard, &near, 7);
    trip_init(&there, &yard, &far, 8);
    must(trip_start(&here, 0));
    start_all(&there);
    tow_status_t gone = TOW_ERROR(TOW_UNAVAILABLE, "worker w1 is gone");
    tow_mover_peer_gone(yard.hands[0].mover, 1, gone);
    tow_status_release(gone);
    gone = TOW_ERROR(TOW_UNAVAILABLE, "worker w0 is gone");
    tow_mover_peer_gone(yard.hands[1].mover, 0, gone);
    tow_status_release(gone);
    yard_run(&yard);
    assert_string_equal(there.parts[0].message,
                        "transfer to process 1: worker w1 is gone");
    assert_string_equal(there.parts[1].message,
                        "transfer from process 0: worker w0 is gone");
    assert_false(here.parts[0].is_done);
    produce_all(&here);
    yard_run(&yard);
    assert_true(here.parts[0].is_done);
    trip_expect_bytes(&here);
    trip_release(&here);
    trip_release(&there);
    yard_close(&yard);
    plan_free(&near, 2);
    plan_free(&far, 2);
}

static void what_was_lost_is_not_waited_for(void **state)
{
    (void)state;
    yard_t yard;
    plan_t plan;
    trip_t trips[3];
    yard_open(&yard, 2, 0);
    plan_gather(&plan, 5);
    for (uint64_t i = 0; i < 3; i++)
        trip_init(&trips[i], &yard, &plan, 7 + i);
    must(trip_start(&trips[0], 1));
    tow_mover_peer_lost(yard.hands[1].mover, 0, 8);
    assert_false(trips[0].parts[1].is_done); /* Never inside the call. */
    must(trip_start(&trips[1], 1));          /* It begins later. */
    must(trip_start(&trips[2], 1));          /* It was sent later. */
    yard_run(&yard);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(trips[i].parts[1].code, TOW_UNAVAILABLE);
        expect_part(trips[i].parts[1].message, "transfer from process 0: ");
    }
    assert_false(trips[2].parts[1].is_done);
    must(trip_start(&trips[2], 0));
    produce_all(&trips[2]);
    yard_run(&yard);
    expect_all(&trips[2], TOW_CODE_OK);
    trip_expect_bytes(&trips[2]);
    for (int i = 0; i < 3; i++)
        trip_release(&trips[i]);
    yard_close(&yard);
    plan_free(&plan, 2);
}

static void a_write_that_fails_fails_the_sender(void **state)
{
    (void)state;
    for (int way = 0; way < 4; way++) {
        yard_t yard;
        plan_t plan;
        trip_t trip;
        yard_open(&yard, 2, 0);
        if (way < 2)
            yard.refuse_write_at = 1 + way;
        else
            yard.spoil_write_at = way - 1;
        plan_gather(&plan, ROW_BYTES / 4);
        trip_init(&trip, &yard, &plan, 7);
        start_all(&trip);
        produce_all(&trip);
        yard_run(&yard);
        assert_true(trip.parts[0].is_done);
        expect_part(trip.parts[0].message, "transfer to process 1: ");
        assert_false(trip.parts[1].is_done);
        tow_status_t cause = TOW_ERROR(TOW_ABORTED, "aborted");
        tow_mover_abort(yard.hands[1].mover, &trip.parts[1].move, cause);
        tow_status_release(cause);
        yard_run(&yard);
        assert_true(trip.parts[1].is_done);
        trip_release(&trip);
        yard_close(&yard);
        plan_free(&plan, 2);
    }
}

static void a_driver_that_cannot_is_told_of_by_name(void **state)
{
    (void)state;
    yard_t yard;
    plan_t plan;
    trip_t trip;
    tow_driver_ops_t ops = yard_driver_ops;
    ops.upload_settle = NULL;
    yard_open(&yard, 2, 0);
    yard.hands[1].driver.ops = &ops;
    plan_gather(&plan, 5);
    trip_init(&trip, &yard, &plan, 7);
    tow_status_t status = trip_start(&trip, 1);
    assert_int_equal(tow_status_code(status), TOW_UNIMPLEMENTED);
    expect_part(tow_status_message(status), "the yard driver");
    tow_status_release(status);
    trip_release(&trip);
    yard_close(&yard);
    plan_free(&plan, 2);
}

static void one_gang_is_moved_once(void **state)
{
    (void)state;
    yard_t yard;
    plan_t plan;
    trip_t first, second;
    yard_open(&yard, 2, 0);
    plan_gather(&plan, 5);
    trip_init(&first, &yard, &plan, 7);
    trip_init(&second, &yard, &plan, 7);
    must(trip_start(&first, 0));
    tow_status_t status = trip_start(&second, 0);
    assert_int_equal(tow_status_code(status), TOW_ALREADY_EXISTS);
    tow_status_release(status);
    trip_release(&first);
    trip_release(&second);
    yard_close(&yard);
    plan_free(&plan, 2);
}

/* -- Who does not keep the rules ------------------------------------------------------------ */

typedef struct wrong {
    uint32_t process, shard, number;
    size_t size;
} wrong_t;

static void wrong_pieces_are_refused(void **state)
{
    (void)state;
    static const wrong_t wrongs[] = {
        {0, 1, 0, 20},          {0, 0, 2, 20},          {0, 0, 0, 19},
        {0, 0, 0, 0},           {1, 0, 0, 20},          {2, 0, 0, 20},
        {0, UINT32_MAX, 0, 20}, {0, 0, UINT32_MAX, 20},
    };
    for (size_t i = 0; i <= TOW_COUNT_OF(wrongs); i++) {
        yard_t yard;
        plan_t plan;
        trip_t trip;
        uint8_t bytes[20] = {0};
        yard_open(&yard, 2, 0);
        plan_gather(&plan, 5);
        trip_init(&trip, &yard, &plan, 7);
        must(trip_start(&trip, 1));
        tow_msg_edge_piece_t piece = TOW_MSG_EDGE_PIECE_INIT;
        piece.gang = 7;
        piece.bytes.data = bytes;
        piece.bytes.len = 20;
        uint32_t process = 0;
        if (i < TOW_COUNT_OF(wrongs)) {
            process = wrongs[i].process;
            piece.shard = wrongs[i].shard;
            piece.number = wrongs[i].number;
            piece.bytes.len = wrongs[i].size;
        } else { /* The same one twice. */
            must(tow_mover_piece(yard.hands[1].mover, 0, &piece));
        }
        tow_status_t status =
            tow_mover_piece(yard.hands[1].mover, process, &piece);
        assert_int_equal(tow_status_code(status), TOW_INVALID_ARGUMENT);
        tow_mover_peer_gone(yard.hands[1].mover, 0, status);
        tow_status_release(status);
        trip_release(&trip);
        yard_close(&yard);
        assert_true(trip.parts[1].is_done);
        plan_free(&plan, 2);
    }
}

static void an_early_piece_that_is_wrong_fails_the_move(void **state)
{
    (void)state;
    yard_t yard;
    plan_t plan;
    trip_t trip;
    yard_open(&yard, 2, 0);
    plan_gather(&plan, 5);
    trip_init(&trip, &yard, &plan, 7);
    tow_msg_edge_piece_t piece = TOW_MSG_EDGE_PIECE_INIT;
    piece.gang = 7;
    must(tow_mover_piece(yard.hands[1].mover, 0, &piece));
    must(trip_start(&trip, 1));
    assert_false(trip.parts[1].is_done);
    yard_run(&yard);
    assert_int_equal(trip.parts[1].code, TOW_INVALID_ARGUMENT);
    expect_part(trip.parts[1].message, "transfer: process 0 sent piece 0");
    trip_release(&trip);
    yard_close(&yard);
    plan_free(&plan, 2);
}

static tow_status_t offer_to(yard_t *yard, uint32_t shard, uint8_t *address,
                             size_t size)
{
    tow_msg_edge_offer_t offer = TOW_MSG_EDGE_OFFER_INIT;
    tow_msg_lane_target_t target = TOW_MSG_LANE_TARGET_INIT;
    offer.gang = 7;
    offer.shard = shard;
    target.lane_address.data = address;
    target.lane_address.len = size;
    if (address != NULL) offer.target = &target;
    return tow_mover_offer(yard->hands[0].mover, 1, &offer);
}

static void wrong_offers_are_refused(void **state)
{
    (void)state;
    yard_t yard;
    plan_t plan;
    trip_t trip;
    uint8_t address[8] = {9}, other[8] = {8};
    yard_open(&yard, 2, 0);
    plan_gather(&plan, ROW_BYTES / 4);
    trip_init(&trip, &yard, &plan, 7);
    must(trip_start(&trip, 0));
    const struct {
        uint32_t shard;
        uint8_t *address;
        size_t size;
    } rows[] = {{0, NULL, 0},
                {0, address, 0},
                {1, address, 8},
                {0, other, 8},
                {0, address, 7}};
    must(offer_to(&yard, 0, address, 8));
    for (size_t i = 0; i < TOW_COUNT_OF(rows); i++) {
        tow_status_t status =
            offer_to(&yard, rows[i].shard, rows[i].address, rows[i].size);
        assert_int_equal(tow_status_code(status), TOW_INVALID_ARGUMENT);
        tow_status_release(status);
    }
    tow_status_t status = offer_to(&yard, 0, address, 8); /* again */
    assert_int_equal(tow_status_code(status), TOW_INVALID_ARGUMENT);
    tow_mover_peer_gone(yard.hands[0].mover, 1, status);
    tow_status_release(status);
    trip_release(&trip);
    yard_close(&yard);
    plan_free(&plan, 2);
}

static void a_wrong_write_fails_the_move(void **state)
{
    (void)state;
    const tow_arrival_t wrongs[] = {{.size = ROW_BYTES, .tag = 2},
                                    {.size = ROW_BYTES, .tag = UINT64_MAX},
                                    {.offset = 4, .size = ROW_BYTES},
                                    {.size = ROW_BYTES - 4},
                                    {.offset = ROW_BYTES, .size = ROW_BYTES}};
    for (size_t i = 0; i <= TOW_COUNT_OF(wrongs); i++) {
        yard_t yard;
        plan_t plan;
        trip_t trip;
        yard_open(&yard, 2, 0);
        plan_gather(&plan, ROW_BYTES / 4);
        trip_init(&trip, &yard, &plan, 7);
        must(trip_start(&trip, 1));
        yard_region_t *region = find_region(&yard.hands[1], 1);
        tow_arrival_t arrival = {.size = ROW_BYTES};
        if (i < TOW_COUNT_OF(wrongs))
            arrival = wrongs[i];
        else /* twice */
            region->options.arrived(region->options.context, &region->base,
                                    &arrival);
        region->options.arrived(region->options.context, &region->base,
                                &arrival);
        region->options.arrived(region->options.context, &region->base,
                                &arrival);
        yard_run(&yard);
        assert_int_equal(trip.parts[1].code, TOW_INVALID_ARGUMENT);
        trip_release(&trip);
        yard_close(&yard);
        plan_free(&plan, 2);
    }
}

static void wrong_routes_are_refused(void **state)
{
    (void)state;
    plan_t plan;
    plan_gather(&plan, 5);
    tow_piece_t *piece = &plan.receives[1][1];
    const tow_piece_t good = *piece;
    const tow_route_t *route = &plan.routes[1];
    for (int i = 0; i < 11; i++) {
        uint32_t devices = DEVICES_MAX;
        tow_route_t bad = *route;
        *piece = good;
        switch (i) {
        case 0: piece->number = 2; break;
        case 1: piece->target_shard = 1; break;
        case 2: piece->bytes = 16; break;
        case 3: piece->offset = 21; break;
        case 4: piece->extent[0] = 2; break;
        case 5: piece->target_start[0] = -1; break;
        case 6: piece->source_start[1] = INT64_MAX; break;
        case 7: bad.receive_count = 1; break;
        case 8: devices = 0; break;
        case 9: bad.source.type = TOW_TYPE_U32; break;
        default: piece->offset = 0; break;
        }
        tow_status_t status = tow_route_check(&bad, 1, devices);
        if (tow_status_code(status) != TOW_INVALID_ARGUMENT)
            fail_msg("wrong route %d is let through", i);
        tow_status_release(status);
    }
    *piece = good;
    must(tow_route_check(route, 1, DEVICES_MAX));
    plan_free(&plan, 2);
}

/* -- At every point ---------------------------------------------------------------------------- */

typedef enum blow {
    BLOW_ABORT_SENDER,
    BLOW_ABORT_RECEIVER,
    BLOW_ABORT_BOTH,
    BLOW_PEER_GONE,
    BLOW_RELEASE, /* the owner lets go of sources and targets; no error */
    BLOW_COUNT,
} blow_t;

static void strike(trip_t *trip, blow_t blow)
{
    yard_t *yard = trip->yard;
    tow_status_t cause = TOW_ERROR(TOW_ABORTED, "struck");
    for (uint32_t i = 0; i < 2; i++) {
        const bool is_here =
            blow == BLOW_ABORT_BOTH ||
            blow == (i == 0 ? BLOW_ABORT_SENDER : BLOW_ABORT_RECEIVER);
        if (is_here && !trip->parts[i].is_done)
            tow_mover_abort(yard->hands[i].mover, &trip->parts[i].move, cause);
        if (blow == BLOW_PEER_GONE)
            tow_mover_peer_gone(yard->hands[i].mover, 1 - i, cause);
    }
    tow_status_release(cause);
}

/* False: the trip took fewer steps. */
static bool strike_at(const plan_t *plan, size_t step, blow_t blow)
{
    yard_t yard;
    trip_t trip;
    size_t at = 0;
    bool is_struck = false;
    yard_open(&yard, 2, 0);
    yard.lends = true;
    trip_init(&trip, &yard, plan, 7);
    for (size_t act = 0; act < 2 + plan->from.place_count; act++) {
        do {
            if (at++ == step) {
                is_struck = true;
                if (blow == BLOW_RELEASE) goto out;
                if (trip.parts[0].is_begun && trip.parts[1].is_begun)
                    strike(&trip, blow);
            }
        } while (yard_step(&yard));
        if (act < 2)
            must(trip_start(&trip, (uint32_t)act));
        else
            trip_produce(&trip, act - 2);
    }
    while (at++ < step && yard_step(&yard))
        continue;
    if (at > step && !is_struck) {
        is_struck = true;
        strike(&trip, blow);
    }
out:
    trip_release(&trip);
    strike(&trip, BLOW_ABORT_BOTH);
    yard_close(&yard);
    for (uint32_t i = 0; i < 2; i++)
        assert_true(!trip.parts[i].is_begun || trip.parts[i].is_done);
    return is_struck && at <= step + 1 && at < 200;
}

static void everything_ends_wherever_it_is_struck(void **state)
{
    (void)state;
    plan_t plans[5];
    plan_gather(&plans[0], 5);
    plan_gather(&plans[1], ROW_BYTES / 4);
    plan_transpose(&plans[2], 256);
    plan_untranspose(&plans[3], 256);
    plan_pass(&plans[4], 2);
    for (int p = 0; p < 5; p++) {
        for (int blow = 0; blow < BLOW_COUNT; blow++)
            for (size_t step = 0; step < 60; step++)
                strike_at(&plans[p], step, (blow_t)blow);
        plan_free(&plans[p], 2);
    }
}

/* A process that dies, at every step: no memory is left, and nobody called. */
static void a_mover_is_forgotten_at_any_moment(void **state)
{
    (void)state;
    for (size_t steps = 0; steps < 48; steps++) {
        yard_t yard;
        trip_t trip;
        plan_t plan;
        yard_open(&yard, 2, 0);
        yard.lends = true;
        if (steps % 2 == 0)
            plan_transpose(&plan, 256);
        else
            plan_pass(&plan, 2);
        trip_init(&trip, &yard, &plan, 7);
        must(trip_start(&trip, 0));
        for (size_t i = 0; i < steps / 2 && yard_step(&yard); i++)
            if (i == 1) must(trip_start(&trip, 1));
        produce_all(&trip);
        for (size_t i = 0; i < steps / 2 && yard_step(&yard); i++)
            continue;
        yard_crash(&yard);
        plan_free(&plan, 2);
    }
}

/* -- By chance ------------------------------------------------------------------------------------ */

static uint32_t below(yard_t *yard, uint64_t limit)
{
    return (uint32_t)tow_random_below(&yard->random, limit);
}

static void random_layout(yard_t *yard, uint32_t rank, layout_t *layout)
{
    size_t count = 1;
    for (uint32_t i = 0; i < rank; i++) {
        static const uint32_t choices[] = {1, 2, 3, 4};
        do
            layout->parts[i] = choices[below(yard, 4)];
        while (count * layout->parts[i] > 8);
        count *= layout->parts[i];
    }
    layout->place_count = count * (count <= 8 && below(yard, 3) == 0 ? 2 : 1);
    for (size_t i = 0; i < layout->place_count; i++)
        layout->places[i] = below(yard, yard->hand_count);
}

static void random_plan(yard_t *yard, plan_t *plan)
{
    static const tow_type_t types[] = {TOW_TYPE_U8, TOW_TYPE_F32, TOW_TYPE_F64};
    *plan = (plan_t){
        .whole = {.type = types[below(yard, 3)], .rank = 1 + below(yard, 3)}};
    for (uint32_t i = 0; i < plan->whole.rank; i++)
        plan->whole.dims[i] = 12 * (1 + (int64_t)below(yard, 3));
    if (below(yard, 3) == 0) plan->whole.dims[plan->whole.rank - 1] *= 256;
    random_layout(yard, plan->whole.rank, &plan->from);
    random_layout(yard, plan->whole.rank, &plan->to);
    if (below(yard, 3) == 0) { /* Whole shards, to wherever. */
        memcpy(plan->to.parts, plan->from.parts, sizeof(plan->to.parts));
        plan->to.place_count = plan->from.place_count;
        for (size_t i = 0; i < plan->to.place_count; i++)
            plan->to.places[i] = below(yard, yard->hand_count);
    }
    plan_make(plan, yard->hand_count);
}

static void routes_by_chance_carry_the_right_bytes(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= 60; seed++) {
        yard_t yard;
        plan_t plan;
        trip_t trip;
        yard_open(&yard, 3, seed);
        yard.copies_uploads = seed % 3 == 0;
        random_plan(&yard, &plan);
        trip_init(&trip, &yard, &plan, 5);
        uint32_t started = 0;
        size_t produced = 0;
        while (started < 3 || produced < plan.from.place_count) {
            const uint32_t choice = below(&yard, 3);
            if (choice == 0 && started < 3)
                must(trip_start(&trip, started++));
            else if (choice == 1 && produced < plan.from.place_count)
                trip_produce(&trip, produced++);
            else
                yard_step(&yard);
        }
        yard_run(&yard);
        expect_all(&trip, TOW_CODE_OK);
        trip_expect_bytes(&trip);
        trip_release(&trip);
        yard_close(&yard);
        plan_free(&plan, 3);
    }
}

#define TRIPS 6

/* Whatever happens to whom: all ends, and what is READY has the right bytes. */
static void expect_sane(const trip_t *trip)
{
    const plan_t *plan = trip->plan;
    for (size_t t = 0; t < plan->to.place_count; t++) {
        const trip_part_t *part = &trip->parts[plan->to.places[t]];
        if (!part->is_begun) continue;
        assert_true(part->is_done);
        const yard_buffer_t *buffer =
            (const yard_buffer_t *)part->targets[local_index(&plan->to, t)];
        assert_true(buffer->state != TOW_BUFFER_PENDING);
        if (part->code == TOW_CODE_OK)
            assert_int_equal(buffer->state, TOW_BUFFER_READY);
        if (buffer->state != TOW_BUFFER_READY) continue;
        uint8_t *bytes = test_malloc(buffer->base.bytes + 1);
        fill_shard(plan, &plan->to, t, trip->salt, bytes);
        assert_memory_equal(buffer->bytes, bytes, buffer->base.bytes);
        test_free(bytes);
    }
}

typedef struct storm {
    yard_t yard;
    plan_t plans[TRIPS];
    trip_t trips[TRIPS];
    uint32_t started[3]; /* trips, in order, by worker */
    size_t produced[TRIPS];
} storm_t;

static void storm_act(storm_t *storm)
{
    yard_t *yard = &storm->yard;
    const uint32_t hand = below(yard, 3);
    trip_t *trip = &storm->trips[below(yard, TRIPS)];
    const size_t at = (size_t)(trip - storm->trips);
    const uint32_t choice = below(yard, 100);
    if (choice < 20 && storm->started[hand] < TRIPS) {
        trip_t *next = &storm->trips[storm->started[hand]++];
        if (below(yard, 20) > 0)
            must(trip_start(next, hand));
        else /* It cannot be begun there. */
            tow_mover_granted(yard->hands[hand].mover,
                              next->parts[hand].move.gang);
    } else if (choice < 40 &&
               storm->produced[at] < trip->plan->from.place_count) {
        const size_t shard = storm->produced[at]++;
        if (below(yard, 20) > 0)
            trip_produce(trip, shard);
        else
            buffer_fail(trip->parts[trip->plan->from.places[shard]]
                            .sources[local_index(&trip->plan->from, shard)],
                        TOW_ERROR(TOW_INTERNAL, "failed"));
    } else if (choice < 44) {
        tow_status_t cause = TOW_ERROR(TOW_ABORTED, "aborted");
        if (trip->parts[hand].is_begun && !trip->parts[hand].is_done)
            tow_mover_abort(yard->hands[hand].mover, &trip->parts[hand].move,
                            cause);
        tow_status_release(cause);
    } else if (choice < 45) {
        tow_status_t cause = TOW_ERROR(TOW_UNAVAILABLE, "gone");
        tow_mover_peer_gone(yard->hands[hand].mover, (hand + 1) % 3, cause);
        tow_status_release(cause);
    } else {
        yard_step(yard);
    }
}

static void storm_end(storm_t *storm)
{
    yard_t *yard = &storm->yard;
    tow_status_t cause = TOW_ERROR(TOW_ABORTED, "the end");
    yard_run(yard);
    for (int i = 0; i < TRIPS; i++)
        for (uint32_t h = 0; h < 3; h++) {
            trip_part_t *part = &storm->trips[i].parts[h];
            if (part->is_begun && !part->is_done)
                tow_mover_abort(yard->hands[h].mover, &part->move, cause);
        }
    tow_status_release(cause);
    yard_run(yard);
    for (int i = 0; i < TRIPS; i++)
        while (storm->produced[i] < storm->plans[i].from.place_count)
            trip_produce(&storm->trips[i], storm->produced[i]++);
    yard_run(yard);
    for (int i = 0; i < TRIPS; i++) {
        expect_sane(&storm->trips[i]);
        trip_release(&storm->trips[i]);
    }
    yard_close(yard);
    for (int i = 0; i < TRIPS; i++)
        plan_free(&storm->plans[i], 3);
}

static void all_ends_whatever_happens(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= 60; seed++) {
        static storm_t storm;
        storm = (storm_t){0};
        yard_open(&storm.yard, 3, seed);
        storm.yard.copies_uploads = seed % 3 == 0;
        if (seed % 4 == 0) storm.yard.spoil_write_at = 1 + (int)(seed % 7);
        if (seed % 5 == 0) storm.yard.refuse_write_at = 1 + (int)(seed % 9);
        for (int i = 0; i < TRIPS; i++) {
            random_plan(&storm.yard, &storm.plans[i]);
            trip_init(&storm.trips[i], &storm.yard, &storm.plans[i],
                      10 + (uint64_t)i);
        }
        for (int i = 0; i < 600; i++)
            storm_act(&storm);
        storm_end(&storm);
    }
}

/* -- Memory ------------------------------------------------------------------------------------------ */

static tow_exhaust_result_t start_without_memory(void *context)
{
    const plan_t *plan = context;
    yard_t yard;
    trip_t trip;
    yard_open(&yard, 2, 0);
    trip_init(&trip, &yard, plan, 7);
    tow_status_t first = trip_start(&trip, 0);
    tow_status_t second = trip_start(&trip, 1);
    const bool is_ok = first == TOW_OK && second == TOW_OK;
    tow_status_release(first);
    tow_status_release(second);
    trip_release(&trip);
    strike(&trip, BLOW_ABORT_BOTH);
    yard_close(&yard);
    return is_ok ? TOW_EXHAUST_SUCCEEDED : TOW_EXHAUST_FAILED;
}

/* The yard itself does not bear it: memory is taken away around the mover. */
static void a_move_that_cannot_begin_leaves_nothing(void **state)
{
    (void)state;
    plan_t plan;
    plan_transpose(&plan, 256);
    for (uint64_t nth = 0; nth < 40; nth++) {
        yard_t yard;
        trip_t trip;
        yard_open(&yard, 2, 0);
        trip_init(&trip, &yard, &plan, 7);
        tow_alloc_fail_after(nth);
        tow_status_t status = trip_start(&trip, 0);
        tow_alloc_fail_after(UINT64_MAX);
        if (status != TOW_OK) assert_false(trip.parts[0].is_begun);
        tow_status_release(status);
        trip_release(&trip);
        if (trip.parts[0].is_begun) strike(&trip, BLOW_ABORT_SENDER);
        yard_close(&yard);
    }
    assert_int_equal(start_without_memory(&plan), TOW_EXHAUST_SUCCEEDED);
    plan_free(&plan, 2);
}

/* -- What it costs ------------------------------------------------------------------------------------ */

#define COST_MOVES 200000

typedef struct cost {
    fake_driver_t fake;
    tow_env_t env;
    tow_post_t *post;
    tow_mover_t *mover;
    tow_piece_t piece;
    tow_route_t route;
    tow_move_t move;
    tow_buffer_t *source;
    tow_buffer_t *target;
    uint32_t device;
    size_t done_count;
} cost_t;

static void cost_post(tow_env_t *env, tow_post_t *post)
{
    TOW_CONTAINER_OF(env, cost_t, env)->post = post;
}

static const tow_env_ops_t cost_env_ops = {.post = cost_post};

static tow_mover_sent_t cost_send(void *context, uint32_t process,
                                  uint32_t type, const tow_body_t *body)
{
    (void)context, (void)process, (void)type, (void)body;
    return TOW_MOVER_SENT;
}

static tow_status_t cost_write(void *context, tow_mover_write_t *write)
{
    (void)context, (void)write;
    return tow_status_bare(TOW_UNIMPLEMENTED);
}

static void cost_done(tow_move_t *move, tow_status_t take_status)
{
    must(take_status);
    TOW_CONTAINER_OF(move, cost_t, move)->done_count++;
}

/* One shard of one number. */
static void cost_open(cost_t *cost, bool is_sent, bool is_received,
                      uint32_t other)
{
    *cost = (cost_t){.env = {.ops = &cost_env_ops}};
    fake_open(&cost->fake, &cost->env);
    fake_executable_release(&cost->fake.executable);
    must(tow_mover_create(&(tow_mover_options_t){.driver = &cost->fake.base,
                                                 .process = 1,
                                                 .send = cost_send,
                                                 .write = cost_write},
                          &cost->mover));
    cost->piece = (tow_piece_t){.process = other, .bytes = 4};
    cost->route = (tow_route_t){.source = {.type = TOW_TYPE_F32},
                                .target = {.type = TOW_TYPE_F32},
                                .sends = &cost->piece,
                                .send_count = is_sent,
                                .source_count = is_sent,
                                .receives = &cost->piece,
                                .receive_count = is_received,
                                .target_devices = &cost->device,
                                .target_count = is_received};
    must(tow_route_check(&cost->route, 1, 1));
    cost->source = fake_buffer_make(&cost->fake);
}

static void cost_close(cost_t *cost)
{
    assert_int_equal(cost->done_count, COST_MOVES);
    tow_buffer_release(cost->source);
    tow_mover_destroy(cost->mover);
    fake_close(&cost->fake);
}

static void cost_turn(cost_t *cost)
{
    tow_post_t *post = cost->post;
    cost->post = NULL;
    if (post != NULL) post->run(post);
}

static void cost_move(cost_t *cost, uint64_t gang)
{
    fake_driver_t *fake = &cost->fake;
    cost->move = (tow_move_t){.route = &cost->route,
                              .gang = gang,
                              .sources = &cost->source,
                              .source_stride = 1,
                              .targets = &cost->target,
                              .done = cost_done};
    must(tow_mover_start(cost->mover, &cost->move));
    tow_mover_granted(cost->mover, gang);
    if (fake->copy != NULL) fake->copy->done(fake->copy, TOW_OK);
    if (fake->borrow != NULL) fake->borrow->done(fake->borrow, TOW_OK);
    if (cost->route.receive_count > 0 && cost->piece.process != 1) {
        tow_msg_edge_piece_t piece = TOW_MSG_EDGE_PIECE_INIT;
        piece.gang = gang;
        piece.bytes.data = fake->bytes;
        piece.bytes.len = 4;
        must(tow_mover_piece(cost->mover, 2, &piece));
    }
    cost_turn(cost);
    if (fake->upload != NULL) fake->upload->done(fake->upload, TOW_OK);
    fake->copy = NULL;
    fake->borrow = NULL;
    fake->upload = NULL;
    if (cost->target != NULL) tow_buffer_release(cost->target);
    cost->target = NULL;
}

static double now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now); /* tow-allow: as above */
    return (double)now.tv_sec * 1e9 + (double)now.tv_nsec;
}

static void measure(const char *what, bool is_sent, bool is_received,
                    uint32_t other)
{
    static cost_t cost;
    cost_open(&cost, is_sent, is_received, other);
    const double begin = now_ns();
    for (uint64_t i = 1; i <= COST_MOVES; i++)
        cost_move(&cost, i);
    fprintf(stderr, "%s: %.0f ns\n", what, (now_ns() - begin) / COST_MOVES);
    cost_close(&cost);
}

static void what_a_small_move_costs(void **state)
{
    (void)state;
    measure("a shard within a worker", true, true, 1);
    measure("a small piece, who sends it", true, false, 2);
    measure("a small piece, who gets it", false, true, 2);
}

TOW_TEST_MAIN(
    cmocka_unit_test(a_whole_shard_of_our_own_is_the_drivers_copy),
    cmocka_unit_test(parts_of_our_own_are_laid_out),
    cmocka_unit_test(a_driver_without_copies_lends_its_bytes),
    cmocka_unit_test(small_pieces_travel_in_messages),
    cmocka_unit_test(large_pieces_are_written_into_the_target),
    cmocka_unit_test(a_whole_shard_is_lent),
    cmocka_unit_test(what_is_copied_from_a_loan_is_given_back),
    cmocka_unit_test(parts_are_not_lent),
    cmocka_unit_test(large_pieces_that_are_no_rows_arrive_packed),
    cmocka_unit_test(large_pieces_are_packed_by_who_sends_them),
    cmocka_unit_test(devices_may_copy_what_they_are_given),
    cmocka_unit_test(an_empty_array_is_there_at_once),
    cmocka_unit_test(what_comes_early_waits_for_its_grant),
    cmocka_unit_test(offers_come_early_too),
    cmocka_unit_test(what_comes_late_is_dropped),
    cmocka_unit_test(what_came_early_goes_when_its_grant_has_passed),
    cmocka_unit_test(one_worker_may_be_ahead_only_so_far),
    cmocka_unit_test(a_sized_move_makes_room_when_it_is_told_the_size),
    cmocka_unit_test(wrong_sizes_are_refused),
    cmocka_unit_test(a_sized_move_whose_sender_fails_is_never_sized),
    cmocka_unit_test(a_poisoned_source_fails_the_move_with_its_own_error),
    cmocka_unit_test(a_peer_that_goes_fails_those_that_need_it),
    cmocka_unit_test(what_was_lost_is_not_waited_for),
    cmocka_unit_test(a_write_that_fails_fails_the_sender),
    cmocka_unit_test(a_driver_that_cannot_is_told_of_by_name),
    cmocka_unit_test(one_gang_is_moved_once),
    cmocka_unit_test(wrong_pieces_are_refused),
    cmocka_unit_test(an_early_piece_that_is_wrong_fails_the_move),
    cmocka_unit_test(wrong_offers_are_refused),
    cmocka_unit_test(a_wrong_write_fails_the_move),
    cmocka_unit_test(wrong_routes_are_refused),
    cmocka_unit_test(everything_ends_wherever_it_is_struck),
    cmocka_unit_test(a_mover_is_forgotten_at_any_moment),
    cmocka_unit_test(routes_by_chance_carry_the_right_bytes),
    cmocka_unit_test(all_ends_whatever_happens),
    cmocka_unit_test(a_move_that_cannot_begin_leaves_nothing),
    cmocka_unit_test(what_a_small_move_costs))
