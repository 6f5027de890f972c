/* Transfer engines, connected in memory. */
#include "dataflow/transfer_testing_impl.h"

#include <time.h> /* tow-allow: a measurement, printed and not judged */

#include "dataflow/fake_driver_testing_impl.h"

/* -- Plans ----------------------------------------------------------------- */

#define ROW_BYTES (32u << 10) /* large */

static tow_shape_t matrix(int64_t rows, int64_t columns)
{
    return (tow_shape_t){
        .type = TOW_TYPE_F32, .rank = 2, .dims = {rows, columns}};
}

/* Rows in two parts on worker 0 become one array on worker 1. */
static void plan_gather(plan_t *plan, int64_t columns)
{
    *plan =
        (plan_t){.whole = matrix(2, columns),
                 .from = {.parts = {2, 1}, .place_count = 2, .places = {0, 0}},
                 .to = {.parts = {1, 1}, .place_count = 1, .places = {1}}};
    plan_make(plan, 2);
}

/* Rows on workers 0 and 1 become columns there: no piece is contiguous in its
 * source. */
static void plan_transpose(plan_t *plan, int64_t side)
{
    *plan =
        (plan_t){.whole = matrix(side, side),
                 .from = {.parts = {2, 1}, .place_count = 2, .places = {0, 1}},
                 .to = {.parts = {1, 2}, .place_count = 2, .places = {0, 1}}};
    plan_make(plan, 2);
}

/* The reverse: no piece is contiguous in its target. */
static void plan_untranspose(plan_t *plan, int64_t side)
{
    *plan =
        (plan_t){.whole = matrix(side, side),
                 .from = {.parts = {1, 2}, .place_count = 2, .places = {0, 1}},
                 .to = {.parts = {2, 1}, .place_count = 2, .places = {0, 1}}};
    plan_make(plan, 2);
}

/* A whole shard of worker 0 goes to worker 1 and, if there is one, worker 2. */
static void plan_pass(plan_t *plan, uint32_t worker_count)
{
    *plan = (plan_t){.whole = matrix(2, ROW_BYTES / 8),
                     .from = {.parts = {1, 1}, .place_count = 1, .places = {0}},
                     .to = {.parts = {1, 1},
                            .place_count = worker_count - 1,
                            .places = {1, 2}}};
    plan_make(plan, worker_count);
}

static void start_all(exchange_t *exchange)
{
    for (uint32_t i = 0; i < exchange->fixture->worker_count; i++)
        must(exchange_start(exchange, i));
}

static void produce_all(exchange_t *exchange)
{
    for (size_t s = 0; s < exchange->plan->from.place_count; s++)
        exchange_produce(exchange, s);
}

static void expect_all(const exchange_t *exchange, tow_code_t code)
{
    for (uint32_t i = 0; i < exchange->fixture->worker_count; i++) {
        assert_true(exchange->parts[i].is_done);
        if (exchange->parts[i].code != code)
            fail_msg("worker %u: %s", i, exchange->parts[i].message);
    }
}

static void expect_part(const char *text, const char *part)
{
    if (strstr(text, part) == NULL) fail_msg("'%s' has no '%s'", text, part);
}

/* One transfer, from start to end. */
static void run_exchange(transfer_fixture_t *fixture, const plan_t *plan)
{
    exchange_t exchange;
    exchange_init(&exchange, fixture, plan, 5);
    start_all(&exchange);
    transfer_fixture_run(fixture);
    produce_all(&exchange);
    transfer_fixture_run(fixture);
    expect_all(&exchange, TOW_CODE_OK);
    exchange_expect_bytes(&exchange);
    exchange_release(&exchange);
}

/* -- Methods of transfer --------------------------------------------------- */

static void a_whole_local_shard_is_copied_by_the_driver(void **state)
{
    (void)state;
    transfer_fixture_t fixture;
    plan_t plan = {
        .whole = matrix(4, 3),
        .from = {.parts = {4, 1}, .place_count = 4, .places = {0, 0, 0, 0}},
        .to = {.parts = {4, 1}, .place_count = 4, .places = {0, 0, 0, 0}}};
    transfer_fixture_open(&fixture, 1, 0);
    plan_make(&plan, 1);
    run_exchange(&fixture, &plan);
    assert_int_equal(
        tow_transfer_engine_stats(fixture.workers[0].engine).copied, 4);
    assert_int_equal(fixture.message_count, 0);
    transfer_fixture_close(&fixture);
    plan_free(&plan, 1);
}

/* It was promised before, so the driver cannot make it. */
static void a_held_local_shard_uses_the_memory_of_its_source(void **state)
{
    (void)state;
    for (int copies = 0; copies < 2; copies++) {
        transfer_fixture_t fixture;
        plan_t plan = {
            .whole = matrix(4, 8192),
            .from = {.parts = {4, 1}, .place_count = 4, .places = {0, 0, 0, 0}},
            .to = {.parts = {4, 1}, .place_count = 4, .places = {0, 0, 0, 0}}};
        transfer_fixture_open(&fixture, 1, 0);
        fixture.holds = true;
        fixture.copies_uploads = copies;
        plan_make(&plan, 1);
        run_exchange(&fixture, &plan);
        const tow_transfer_engine_stats_t stats =
            tow_transfer_engine_stats(fixture.workers[0].engine);
        assert_int_equal(stats.copied, 4);
        assert_int_equal(stats.memory_bytes_peak, 0);
        transfer_fixture_close(&fixture);
        plan_free(&plan, 1);
    }
}

static void local_parts_are_copied_by_the_engine(void **state)
{
    (void)state;
    transfer_fixture_t fixture;
    plan_t plan = {
        .whole = matrix(4, 6),
        .from = {.parts = {1, 2}, .place_count = 2, .places = {0, 0}},
        .to = {.parts = {4, 1}, .place_count = 4, .places = {0, 0, 0, 0}}};
    transfer_fixture_open(&fixture, 1, 0);
    plan_make(&plan, 1);
    assert_false(plan.routes[0].is_packed);
    run_exchange(&fixture, &plan);
    assert_int_equal(fixture.message_count, 0);
    transfer_fixture_close(&fixture);
    plan_free(&plan, 1);
}

static void without_driver_copies_local_shards_are_shared(void **state)
{
    (void)state;
    transfer_fixture_t fixture;
    plan_t plan = {
        .whole = matrix(4, 3),
        .from = {.parts = {2, 1}, .place_count = 2, .places = {0, 0}},
        .to = {.parts = {2, 1}, .place_count = 2, .places = {0, 0}}};
    tow_driver_ops_t ops = transfer_fixture_driver_ops;
    ops.copy = NULL;
    transfer_fixture_open(&fixture, 1, 0);
    fixture.workers[0].driver.ops = &ops;
    plan_make(&plan, 1);
    run_exchange(&fixture, &plan);
    transfer_fixture_close(&fixture);
    plan_free(&plan, 1);
}

static void small_pieces_are_sent_in_messages(void **state)
{
    (void)state;
    transfer_fixture_t fixture;
    plan_t plan;
    transfer_fixture_open(&fixture, 2, 0);
    plan_gather(&plan, 5);
    run_exchange(&fixture, &plan);
    assert_int_equal(fixture.message_count, 2);
    assert_int_equal(fixture.write_count, 0);
    const tow_transfer_engine_stats_t stats =
        tow_transfer_engine_stats(fixture.workers[0].engine);
    assert_int_equal(stats.sent_small, 2);
    assert_int_equal(stats.bytes_sent, 40);
    transfer_fixture_close(&fixture);
    plan_free(&plan, 2);
}

static void large_pieces_are_written_into_the_target(void **state)
{
    (void)state;
    transfer_fixture_t fixture;
    plan_t plan;
    transfer_fixture_open(&fixture, 2, 0);
    plan_gather(&plan, ROW_BYTES / 4);
    assert_false(plan.routes[0].is_packed);
    run_exchange(&fixture, &plan);
    assert_int_equal(fixture.message_count, 1); /* one offer for both */
    assert_int_equal(fixture.write_count, 2);
    transfer_fixture_close(&fixture);
    plan_free(&plan, 2);
}

/* The transfer ends while its receivers use the sender's bytes. The sender
 * keeps them until both shares have ended, even without other references. */
static void a_whole_shard_is_shared(void **state)
{
    (void)state;
    transfer_fixture_t fixture;
    plan_t plan;
    exchange_t exchange;
    transfer_fixture_open(&fixture, 3, 0);
    fixture.shares_writes = fixture.exports_shares = true;
    plan_pass(&plan, 3);
    exchange_init(&exchange, &fixture, &plan, 5);
    start_all(&exchange);
    produce_all(&exchange);
    transfer_fixture_run(&fixture);
    expect_all(&exchange, TOW_CODE_OK);
    assert_int_equal(fixture.shared_count, 2);
    tow_buffer_release(exchange.parts[0].sources[0]);
    transfer_fixture_run(&fixture);
    assert_int_equal(fixture.workers[0].buffer_count, 1);
    assert_int_equal(fixture.workers[0].share_count, 1);
    assert_int_equal(
        tow_transfer_engine_stats(fixture.workers[0].engine).shared_count, 2);
    exchange_expect_bytes(&exchange);
    tow_buffer_release(exchange.parts[1].targets[0]);
    transfer_fixture_run(&fixture);
    assert_int_equal(fixture.workers[0].share_count, 1);
    assert_false(tow_transfer_engine_is_quiet(fixture.workers[0].engine));
    tow_buffer_release(exchange.parts[2].targets[0]);
    transfer_fixture_run(&fixture);
    assert_int_equal(fixture.workers[0].buffer_count, 0);
    assert_int_equal(
        tow_transfer_engine_stats(fixture.workers[0].engine).sent_shared, 2);
    transfer_fixture_close(&fixture);
    plan_free(&plan, 3);
}

/* A device that copies its upload ends the share at once. */
static void a_share_that_is_copied_ends_at_once(void **state)
{
    (void)state;
    transfer_fixture_t fixture;
    plan_t plan;
    transfer_fixture_open(&fixture, 2, 0);
    fixture.shares_writes = fixture.copies_uploads = true;
    plan_pass(&plan, 2);
    run_exchange(&fixture, &plan);
    assert_int_equal(fixture.shared_count, 1);
    assert_true(tow_list_is_empty(&fixture.shares));
    transfer_fixture_close(&fixture);
    plan_free(&plan, 2);
}

/* A part is copied, so that it does not keep a whole array in memory. */
static void parts_are_not_shared(void **state)
{
    (void)state;
    for (int way = 0; way < 2; way++) {
        transfer_fixture_t fixture;
        plan_t plan;
        transfer_fixture_open(&fixture, 2, 0);
        fixture.shares_writes = true;
        if (way == 0)
            plan_gather(&plan, ROW_BYTES / 4);
        else
            plan_untranspose(&plan, 256);
        run_exchange(&fixture, &plan);
        assert_int_equal(fixture.shared_count, 0);
        transfer_fixture_close(&fixture);
        plan_free(&plan, 2);
    }
}

static void large_pieces_that_are_no_target_rows_arrive_packed(void **state)
{
    (void)state;
    transfer_fixture_t fixture;
    plan_t plan;
    transfer_fixture_open(&fixture, 2, 0);
    plan_untranspose(&plan, 256);
    assert_true(plan.routes[0].is_packed);
    run_exchange(&fixture, &plan);
    assert_int_equal(fixture.message_count, 2);
    assert_int_equal(fixture.write_count, 2);
    transfer_fixture_close(&fixture);
    plan_free(&plan, 2);
}

static void large_pieces_are_packed_by_the_sender(void **state)
{
    (void)state;
    transfer_fixture_t fixture;
    plan_t plan;
    transfer_fixture_open(&fixture, 2, 0);
    plan_transpose(&plan, 256);
    assert_false(plan.routes[0].is_packed);
    run_exchange(&fixture, &plan);
    assert_int_equal(fixture.write_count, 2);
    transfer_fixture_close(&fixture);
    plan_free(&plan, 2);
}

static void devices_may_copy_uploads(void **state)
{
    (void)state;
    transfer_fixture_t fixture;
    plan_t plan;
    transfer_fixture_open(&fixture, 2, 0);
    fixture.copies_uploads = true;
    plan_transpose(&plan, 256);
    run_exchange(&fixture, &plan);
    transfer_fixture_close(&fixture);
    plan_free(&plan, 2);
}

static void an_empty_array_needs_no_transfer(void **state)
{
    (void)state;
    transfer_fixture_t fixture;
    tow_buffer_t *target = NULL;
    const uint32_t device = 0;
    const tow_route_t route = {.source = matrix(0, 4),
                               .target = matrix(0, 2),
                               .target_devices = &device,
                               .target_count = 1};
    exchange_part_t part = {.transfer = {.route = &route,
                                         .gang = 1,
                                         .targets = &target,
                                         .done = exchange_done}};
    must(tow_route_check(&route, 0, 1));
    transfer_fixture_open(&fixture, 1, 0);
    must(tow_transfer_start(fixture.workers[0].engine, &part.transfer));
    assert_false(part.is_done); /* Not inside the call. */
    transfer_fixture_run(&fixture);
    assert_true(part.is_done);
    assert_int_equal(tow_buffer_state(target), TOW_BUFFER_READY);
    tow_buffer_release(target);
    transfer_fixture_close(&fixture);
}

/* -- Before and after the grant -------------------------------------------- */

static void early_pieces_wait_for_their_grant(void **state)
{
    (void)state;
    transfer_fixture_t fixture;
    plan_t plans[2];
    transfer_fixture_open(&fixture, 2, 0);
    plan_gather(&plans[0], 5);
    plan_gather(&plans[1], 900); /* larger than a pool record */
    for (int i = 0; i < 2; i++) {
        exchange_t exchange;
        exchange_init(&exchange, &fixture, &plans[i], 7 + (uint64_t)i);
        must(exchange_start(&exchange, 0));
        produce_all(&exchange);
        transfer_fixture_run(&fixture);
        assert_true(exchange.parts[0].is_done);
        assert_int_equal(
            tow_transfer_engine_stats(fixture.workers[1].engine).early_count,
            2);
        must(exchange_start(&exchange, 1));
        transfer_fixture_run(&fixture);
        expect_all(&exchange, TOW_CODE_OK);
        assert_int_equal(
            tow_transfer_engine_stats(fixture.workers[1].engine).early_count,
            0);
        exchange_expect_bytes(&exchange);
        exchange_release(&exchange);
    }
    transfer_fixture_close(&fixture);
    plan_free(&plans[0], 2);
    plan_free(&plans[1], 2);
}

static void early_offers_wait_for_their_grant(void **state)
{
    (void)state;
    transfer_fixture_t fixture;
    plan_t plan;
    exchange_t exchange;
    transfer_fixture_open(&fixture, 2, 0);
    plan_gather(&plan, ROW_BYTES / 4);
    exchange_init(&exchange, &fixture, &plan, 7);
    must(exchange_start(&exchange, 1));
    transfer_fixture_run(&fixture);
    assert_int_equal(
        tow_transfer_engine_stats(fixture.workers[0].engine).early_count, 1);
    produce_all(&exchange);
    must(exchange_start(&exchange, 0));
    transfer_fixture_run(&fixture);
    expect_all(&exchange, TOW_CODE_OK);
    exchange_expect_bytes(&exchange);
    exchange_release(&exchange);
    transfer_fixture_close(&fixture);
    plan_free(&plan, 2);
}

static void late_pieces_are_discarded(void **state)
{
    (void)state;
    transfer_fixture_t fixture;
    plan_t plan;
    exchange_t exchange;
    transfer_fixture_open(&fixture, 2, 0);
    plan_gather(&plan, 5);
    exchange_init(&exchange, &fixture, &plan, 7);
    tow_transfer_engine_granted(fixture.workers[1].engine,
                                7); /* Its start failed. */
    must(exchange_start(&exchange, 0));
    produce_all(&exchange);
    transfer_fixture_run(&fixture);
    assert_int_equal(
        tow_transfer_engine_stats(fixture.workers[1].engine).early_count, 0);
    assert_int_equal(fixture.workers[1].last_error, TOW_CODE_OK);
    exchange_release(&exchange);
    transfer_fixture_close(&fixture);
    plan_free(&plan, 2);
}

static void early_pieces_are_discarded_after_their_grant(void **state)
{
    (void)state;
    transfer_fixture_t fixture;
    tow_transfer_engine_stats_t stats;
    transfer_fixture_open(&fixture, 1, 0);
    tow_transfer_engine_t *engine = fixture.workers[0].engine;
    uint8_t bytes[300] = {0};
    tow_msg_edge_piece_t piece = TOW_MSG_EDGE_PIECE_INIT;
    static const uint64_t gangs[] = {9, 4, 7, 4, 12, 8};
    for (size_t i = 0; i < TOW_COUNT_OF(gangs); i++) {
        piece.gang = gangs[i];
        piece.bytes.data = bytes;
        piece.bytes.len = 50 * i;
        must(tow_transfer_engine_on_piece(engine, 1 + i % 2, &piece));
    }
    tow_transfer_engine_granted(engine, 7);
    stats = tow_transfer_engine_stats(engine);
    assert_int_equal(stats.early_count, 3);
    assert_int_equal(stats.early_bytes, 0 + 200 + 250);
    tow_status_t disconnected = TOW_ERROR(TOW_UNAVAILABLE, "gone");
    tow_transfer_engine_on_peer_disconnect(engine, 1, disconnected);
    tow_status_release(disconnected);
    assert_int_equal(tow_transfer_engine_stats(engine).early_count, 1);
    tow_transfer_engine_clear(engine);
    assert_int_equal(tow_transfer_engine_stats(engine).early_count, 0);
    transfer_fixture_close(&fixture);
}

static void early_pieces_of_one_worker_are_bounded(void **state)
{
    (void)state;
    transfer_fixture_t fixture;
    tow_status_t status = TOW_OK;
    uint32_t count = 0;
    transfer_fixture_open(&fixture, 1, 0);
    tow_transfer_engine_t *engine = fixture.workers[0].engine;
    tow_msg_edge_piece_t piece = TOW_MSG_EDGE_PIECE_INIT;
    while (status == TOW_OK && count <= TOW_TRANSFER_EARLY_COUNT_MAX) {
        piece.gang = 1 + count / 2;
        status = tow_transfer_engine_on_piece(engine, 3, &piece);
        if (status == TOW_OK) count++;
    }
    assert_int_equal(tow_status_code(status), TOW_RESOURCE_EXHAUSTED);
    expect_part(tow_status_message(status), "process 3 is ahead");
    tow_status_release(status);
    assert_int_equal(count, TOW_TRANSFER_EARLY_COUNT_MAX);
    must(tow_transfer_engine_on_piece(engine, 4,
                                      &piece)); /* Others are not affected. */
    transfer_fixture_close(&fixture);
}

/* -- Sizes that only the sender knows -------------------------------------- */

#define SIZED_ROWS 4 /* at the most */

/* A whole shard of worker 0 goes to worker 0 and to worker 1. */
static void plan_sized(plan_t *plan, int64_t columns)
{
    *plan =
        (plan_t){.whole = matrix(SIZED_ROWS, columns),
                 .from = {.parts = {1, 1}, .place_count = 1, .places = {0}},
                 .to = {.parts = {1, 1}, .place_count = 2, .places = {0, 1}}};
    plan_make(plan, 2);
}

static void count_sized(tow_transfer_t *transfer)
{
    TOW_CONTAINER_OF(transfer, exchange_part_t, transfer)->sized_count++;
}

/* The plan has the bound; the source has `rows` rows. */
static void exchange_init_sized(exchange_t *exchange,
                                transfer_fixture_t *fixture, const plan_t *plan,
                                uint64_t gang, int64_t rows)
{
    exchange_init(exchange, fixture, plan, gang);
    tow_buffer_t **source = &exchange->parts[0].sources[0];
    tow_shape_t shape = (*source)->shape;
    shape.dims[0] = rows;
    tow_buffer_release(*source);
    *source = &transfer_fixture_buffer(&fixture->workers[0], 0, &shape)->base;
    for (uint32_t i = 0; i < fixture->worker_count; i++) {
        exchange->parts[i].transfer.is_sized = true;
        exchange->parts[i].transfer.sized = count_sized;
    }
}

/* The first rows of the plan's array. */
static void produce_sized(exchange_t *exchange)
{
    tow_buffer_t *source = exchange->parts[0].sources[0];
    uint8_t *bytes = test_malloc(source->bytes + 1);
    for (uint64_t i = 0; i < source->bytes; i++)
        bytes[i] = plan_byte_at(i, exchange->salt);
    fixture_buffer_finish(source, bytes);
    test_free(bytes);
}

static void expect_sized(const exchange_t *exchange, int64_t rows)
{
    expect_all(exchange, TOW_CODE_OK);
    for (uint32_t w = 0; w < 2; w++) {
        const fixture_buffer_t *target =
            (const fixture_buffer_t *)exchange->parts[w].targets[0];
        assert_int_equal(exchange->parts[w].sized_count, 1);
        assert_int_equal(target->state, TOW_BUFFER_READY);
        assert_int_equal(target->base.shape.dims[0], rows);
        for (uint64_t i = 0; i < target->base.bytes; i++)
            assert_int_equal(((const uint8_t *)target->bytes)[i],
                             plan_byte_at(i, exchange->salt));
    }
}

/* The receiver is granted before the size arrives, or after. */
static void run_sized_exchange(int64_t columns, int64_t rows, bool is_early)
{
    transfer_fixture_t fixture;
    plan_t plan;
    exchange_t exchange;
    transfer_fixture_open(&fixture, 2, 0);
    plan_sized(&plan, columns);
    exchange_init_sized(&exchange, &fixture, &plan, 7, rows);
    must(exchange_start(&exchange, 0));
    if (!is_early) must(exchange_start(&exchange, 1));
    transfer_fixture_run(&fixture);
    assert_int_equal(exchange.parts[1].sized_count, 0);
    produce_sized(&exchange);
    transfer_fixture_run(&fixture);
    assert_int_equal(exchange.parts[1].is_done, !is_early);
    if (is_early) must(exchange_start(&exchange, 1));
    transfer_fixture_run(&fixture);
    expect_sized(&exchange, rows);
    exchange_release(&exchange);
    transfer_fixture_close(&fixture);
    plan_free(&plan, 2);
}

static void a_sized_transfer_allocates_when_the_size_arrives(void **state)
{
    (void)state;
    for (int64_t rows = 0; rows <= SIZED_ROWS; rows++)
        for (int is_early = 0; is_early <= 1; is_early++) {
            run_sized_exchange(8, rows, is_early);
            run_sized_exchange(ROW_BYTES / 4, rows, is_early);
        }
}

static void expect_wrong_size(tow_transfer_engine_t *engine, uint32_t process,
                              tow_msg_edge_size_t size)
{
    tow_status_t status = tow_transfer_engine_on_size(engine, process, &size);
    assert_int_equal(tow_status_code(status), TOW_INVALID_ARGUMENT);
    expect_part(tow_status_message(status), "sent the size of shard");
    tow_status_release(status);
}

static void invalid_sizes_are_refused(void **state)
{
    (void)state;
    transfer_fixture_t fixture;
    plan_t plan;
    exchange_t exchange;
    transfer_fixture_open(&fixture, 2, 0);
    plan_sized(&plan, 8);
    exchange_init_sized(&exchange, &fixture, &plan, 7, 2);
    start_all(&exchange);
    tow_transfer_engine_t *engine = fixture.workers[1].engine;
    int64_t dims[] = {2, 8};
    tow_msg_edge_size_t right = TOW_MSG_EDGE_SIZE_INIT, wrong;
    right.gang = 7;
    right.dims = dims;
    right.n_dims = 2;
    expect_wrong_size(engine, 3, right); /* It sends nothing. */
    wrong = right, wrong.shard = 1;
    expect_wrong_size(engine, 0, wrong);
    wrong = right, wrong.n_dims = 1;
    expect_wrong_size(engine, 0, wrong);
    wrong = right, wrong.dims = (int64_t[]){SIZED_ROWS + 1, 8};
    expect_wrong_size(engine, 0, wrong);
    wrong = right, wrong.dims = (int64_t[]){-1, 8};
    expect_wrong_size(engine, 0, wrong);
    wrong = right, wrong.gang = 6; /* Stale: ignored. */
    must(tow_transfer_engine_on_size(engine, 0, &wrong));
    assert_int_equal(exchange.parts[1].sized_count, 0);
    must(tow_transfer_engine_on_size(engine, 0, &right));
    assert_int_equal(exchange.parts[1].sized_count, 1);
    expect_wrong_size(engine, 0, right); /* Twice. */
    tow_status_t cause = TOW_ERROR(TOW_ABORTED, "the run was aborted");
    for (uint32_t i = 0; i < 2; i++)
        tow_transfer_abort(fixture.workers[i].engine,
                           &exchange.parts[i].transfer, cause);
    tow_status_release(cause);
    transfer_fixture_run(&fixture);
    expect_all(&exchange, TOW_ABORTED);
    exchange_release(&exchange);
    transfer_fixture_run(&fixture);
    transfer_fixture_close(&fixture);
    plan_free(&plan, 2);
}

static void a_sized_transfer_whose_sender_fails_is_never_sized(void **state)
{
    (void)state;
    transfer_fixture_t fixture;
    plan_t plan;
    exchange_t exchange;
    transfer_fixture_open(&fixture, 2, 0);
    plan_sized(&plan, 8);
    exchange_init_sized(&exchange, &fixture, &plan, 7, 2);
    start_all(&exchange);
    fixture_buffer_fail(exchange.parts[0].sources[0],
                        TOW_ERROR(TOW_INTERNAL, "filter failed"));
    tow_status_t cause = TOW_ERROR(TOW_ABORTED, "the run was aborted");
    tow_transfer_abort(fixture.workers[1].engine, &exchange.parts[1].transfer,
                       cause);
    tow_status_release(cause);
    transfer_fixture_run(&fixture);
    assert_string_equal(exchange.parts[0].message, "filter failed");
    assert_int_equal(exchange.parts[1].code, TOW_ABORTED);
    for (uint32_t i = 0; i < 2; i++) {
        assert_int_equal(exchange.parts[i].sized_count, 0);
        assert_null(exchange.parts[i].targets[0]);
    }
    exchange_release(&exchange);
    transfer_fixture_close(&fixture);
    plan_free(&plan, 2);
}

/* -- Failures -------------------------------------------------------------- */

static void a_failed_source_fails_the_transfer_with_its_error(void **state)
{
    (void)state;
    transfer_fixture_t fixture;
    plan_t plan;
    exchange_t exchange;
    transfer_fixture_open(&fixture, 2, 0);
    plan_transpose(&plan, 256);
    exchange_init(&exchange, &fixture, &plan, 7);
    start_all(&exchange);
    exchange_produce(&exchange, 1);
    transfer_fixture_run(&fixture);
    fixture_buffer_fail(exchange.parts[0].sources[0],
                        TOW_ERROR(TOW_INTERNAL, "matmul failed"));
    transfer_fixture_run(&fixture);
    assert_int_equal(exchange.parts[0].code, TOW_INTERNAL);
    assert_string_equal(exchange.parts[0].message, "matmul failed");
    fixture_buffer_t *target = (fixture_buffer_t *)exchange.parts[0].targets[0];
    assert_int_equal(target->state, TOW_BUFFER_FAILED);
    assert_string_equal(tow_status_message(target->error), "matmul failed");
    /* The receiver is aborted by the controller. */
    assert_false(exchange.parts[1].is_done);
    tow_status_t cause = TOW_ERROR(TOW_ABORTED, "the run was aborted");
    tow_transfer_abort(fixture.workers[1].engine, &exchange.parts[1].transfer,
                       cause);
    assert_false(exchange.parts[1].is_done); /* Not inside the call. */
    tow_status_release(cause);
    transfer_fixture_run(&fixture);
    assert_string_equal(exchange.parts[1].message, "the run was aborted");
    assert_int_equal(tow_buffer_state(exchange.parts[1].targets[0]),
                     TOW_BUFFER_FAILED);
    exchange_release(&exchange);
    transfer_fixture_close(&fixture);
    plan_free(&plan, 2);
}

static void a_disconnected_peer_fails_its_transfers(void **state)
{
    (void)state;
    transfer_fixture_t fixture;
    plan_t near, far;
    exchange_t here, there;
    transfer_fixture_open(&fixture, 2, 0);
    plan_gather(&far, ROW_BYTES / 4);
    near =
        (plan_t){.whole = matrix(2, 4),
                 .from = {.parts = {2, 1}, .place_count = 2, .places = {0, 0}},
                 .to = {.parts = {1, 1}, .place_count = 1, .places = {0}}};
    plan_make(&near, 2);
    exchange_init(&here, &fixture, &near, 7);
    exchange_init(&there, &fixture, &far, 8);
    must(exchange_start(&here, 0));
    start_all(&there);
    tow_status_t disconnected = TOW_ERROR(TOW_UNAVAILABLE, "worker w1 is gone");
    tow_transfer_engine_on_peer_disconnect(fixture.workers[0].engine, 1,
                                           disconnected);
    tow_status_release(disconnected);
    disconnected = TOW_ERROR(TOW_UNAVAILABLE, "worker w0 is gone");
    tow_transfer_engine_on_peer_disconnect(fixture.workers[1].engine, 0,
                                           disconnected);
    tow_status_release(disconnected);
    transfer_fixture_run(&fixture);
    assert_string_equal(there.parts[0].message,
                        "transfer to process 1: worker w1 is gone");
    assert_string_equal(there.parts[1].message,
                        "transfer from process 0: worker w0 is gone");
    assert_false(here.parts[0].is_done);
    produce_all(&here);
    transfer_fixture_run(&fixture);
    assert_true(here.parts[0].is_done);
    exchange_expect_bytes(&here);
    exchange_release(&here);
    exchange_release(&there);
    transfer_fixture_close(&fixture);
    plan_free(&near, 2);
    plan_free(&far, 2);
}

static void messages_lost_in_a_reconnect_are_not_awaited(void **state)
{
    (void)state;
    transfer_fixture_t fixture;
    plan_t plan;
    exchange_t exchanges[3];
    transfer_fixture_open(&fixture, 2, 0);
    plan_gather(&plan, 5);
    for (uint64_t i = 0; i < 3; i++)
        exchange_init(&exchanges[i], &fixture, &plan, 7 + i);
    must(exchange_start(&exchanges[0], 1));
    tow_transfer_engine_on_peer_reconnect(fixture.workers[1].engine, 0, 8);
    assert_false(exchanges[0].parts[1].is_done); /* Not inside the call. */
    must(exchange_start(&exchanges[1], 1));      /* Begins later. */
    must(exchange_start(&exchanges[2], 1));      /* Sent later. */
    transfer_fixture_run(&fixture);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(exchanges[i].parts[1].code, TOW_UNAVAILABLE);
        expect_part(exchanges[i].parts[1].message, "transfer from process 0: ");
    }
    assert_false(exchanges[2].parts[1].is_done);
    must(exchange_start(&exchanges[2], 0));
    produce_all(&exchanges[2]);
    transfer_fixture_run(&fixture);
    expect_all(&exchanges[2], TOW_CODE_OK);
    exchange_expect_bytes(&exchanges[2]);
    for (int i = 0; i < 3; i++)
        exchange_release(&exchanges[i]);
    transfer_fixture_close(&fixture);
    plan_free(&plan, 2);
}

static void a_failed_write_fails_the_sender(void **state)
{
    (void)state;
    for (int way = 0; way < 4; way++) {
        transfer_fixture_t fixture;
        plan_t plan;
        exchange_t exchange;
        transfer_fixture_open(&fixture, 2, 0);
        if (way < 2)
            fixture.refuse_write_at = 1 + way;
        else
            fixture.fail_write_at = way - 1;
        plan_gather(&plan, ROW_BYTES / 4);
        exchange_init(&exchange, &fixture, &plan, 7);
        start_all(&exchange);
        produce_all(&exchange);
        transfer_fixture_run(&fixture);
        assert_true(exchange.parts[0].is_done);
        expect_part(exchange.parts[0].message, "transfer to process 1: ");
        assert_false(exchange.parts[1].is_done);
        tow_status_t cause = TOW_ERROR(TOW_ABORTED, "aborted");
        tow_transfer_abort(fixture.workers[1].engine,
                           &exchange.parts[1].transfer, cause);
        tow_status_release(cause);
        transfer_fixture_run(&fixture);
        assert_true(exchange.parts[1].is_done);
        exchange_release(&exchange);
        transfer_fixture_close(&fixture);
        plan_free(&plan, 2);
    }
}

static void a_driver_without_support_is_named(void **state)
{
    (void)state;
    transfer_fixture_t fixture;
    plan_t plan;
    exchange_t exchange;
    tow_driver_ops_t ops = transfer_fixture_driver_ops;
    ops.upload_settle = NULL;
    transfer_fixture_open(&fixture, 2, 0);
    fixture.workers[1].driver.ops = &ops;
    plan_gather(&plan, 5);
    exchange_init(&exchange, &fixture, &plan, 7);
    tow_status_t status = exchange_start(&exchange, 1);
    assert_int_equal(tow_status_code(status), TOW_UNIMPLEMENTED);
    expect_part(tow_status_message(status), "the fixture driver");
    tow_status_release(status);
    exchange_release(&exchange);
    transfer_fixture_close(&fixture);
    plan_free(&plan, 2);
}

static void a_gang_has_one_transfer(void **state)
{
    (void)state;
    transfer_fixture_t fixture;
    plan_t plan;
    exchange_t first, second;
    transfer_fixture_open(&fixture, 2, 0);
    plan_gather(&plan, 5);
    exchange_init(&first, &fixture, &plan, 7);
    exchange_init(&second, &fixture, &plan, 7);
    must(exchange_start(&first, 0));
    tow_status_t status = exchange_start(&second, 0);
    assert_int_equal(tow_status_code(status), TOW_ALREADY_EXISTS);
    tow_status_release(status);
    exchange_release(&first);
    exchange_release(&second);
    transfer_fixture_close(&fixture);
    plan_free(&plan, 2);
}

/* -- Protocol violations --------------------------------------------------- */

typedef struct invalid_piece {
    uint32_t process, shard, number;
    size_t size;
} invalid_piece_t;

static void invalid_pieces_are_refused(void **state)
{
    (void)state;
    static const invalid_piece_t invalid[] = {
        {0, 1, 0, 20},          {0, 0, 2, 20},          {0, 0, 0, 19},
        {0, 0, 0, 0},           {1, 0, 0, 20},          {2, 0, 0, 20},
        {0, UINT32_MAX, 0, 20}, {0, 0, UINT32_MAX, 20},
    };
    for (size_t i = 0; i <= TOW_COUNT_OF(invalid); i++) {
        transfer_fixture_t fixture;
        plan_t plan;
        exchange_t exchange;
        uint8_t bytes[20] = {0};
        transfer_fixture_open(&fixture, 2, 0);
        plan_gather(&plan, 5);
        exchange_init(&exchange, &fixture, &plan, 7);
        must(exchange_start(&exchange, 1));
        tow_msg_edge_piece_t piece = TOW_MSG_EDGE_PIECE_INIT;
        piece.gang = 7;
        piece.bytes.data = bytes;
        piece.bytes.len = 20;
        uint32_t process = 0;
        if (i < TOW_COUNT_OF(invalid)) {
            process = invalid[i].process;
            piece.shard = invalid[i].shard;
            piece.number = invalid[i].number;
            piece.bytes.len = invalid[i].size;
        } else { /* The same one twice. */
            must(tow_transfer_engine_on_piece(fixture.workers[1].engine, 0,
                                              &piece));
        }
        tow_status_t status = tow_transfer_engine_on_piece(
            fixture.workers[1].engine, process, &piece);
        assert_int_equal(tow_status_code(status), TOW_INVALID_ARGUMENT);
        tow_transfer_engine_on_peer_disconnect(fixture.workers[1].engine, 0,
                                               status);
        tow_status_release(status);
        exchange_release(&exchange);
        transfer_fixture_close(&fixture);
        assert_true(exchange.parts[1].is_done);
        plan_free(&plan, 2);
    }
}

static void an_invalid_early_piece_fails_the_transfer(void **state)
{
    (void)state;
    transfer_fixture_t fixture;
    plan_t plan;
    exchange_t exchange;
    transfer_fixture_open(&fixture, 2, 0);
    plan_gather(&plan, 5);
    exchange_init(&exchange, &fixture, &plan, 7);
    tow_msg_edge_piece_t piece = TOW_MSG_EDGE_PIECE_INIT;
    piece.gang = 7;
    must(tow_transfer_engine_on_piece(fixture.workers[1].engine, 0, &piece));
    must(exchange_start(&exchange, 1));
    assert_false(exchange.parts[1].is_done);
    transfer_fixture_run(&fixture);
    assert_int_equal(exchange.parts[1].code, TOW_INVALID_ARGUMENT);
    expect_part(exchange.parts[1].message, "transfer: process 0 sent piece 0");
    exchange_release(&exchange);
    transfer_fixture_close(&fixture);
    plan_free(&plan, 2);
}

static tow_status_t offer_to(transfer_fixture_t *fixture, uint32_t shard,
                             uint8_t *address, size_t size)
{
    tow_msg_edge_offer_t offer = TOW_MSG_EDGE_OFFER_INIT;
    tow_msg_lane_target_t target = TOW_MSG_LANE_TARGET_INIT;
    offer.gang = 7;
    offer.shard = shard;
    target.lane_address.data = address;
    target.lane_address.len = size;
    if (address != NULL) offer.target = &target;
    return tow_transfer_engine_on_offer(fixture->workers[0].engine, 1, &offer);
}

static void invalid_offers_are_refused(void **state)
{
    (void)state;
    transfer_fixture_t fixture;
    plan_t plan;
    exchange_t exchange;
    uint8_t address[8] = {9}, other[8] = {8};
    transfer_fixture_open(&fixture, 2, 0);
    plan_gather(&plan, ROW_BYTES / 4);
    exchange_init(&exchange, &fixture, &plan, 7);
    must(exchange_start(&exchange, 0));
    const struct {
        uint32_t shard;
        uint8_t *address;
        size_t size;
    } rows[] = {{0, NULL, 0},
                {0, address, 0},
                {1, address, 8},
                {0, other, 8},
                {0, address, 7}};
    must(offer_to(&fixture, 0, address, 8));
    for (size_t i = 0; i < TOW_COUNT_OF(rows); i++) {
        tow_status_t status =
            offer_to(&fixture, rows[i].shard, rows[i].address, rows[i].size);
        assert_int_equal(tow_status_code(status), TOW_INVALID_ARGUMENT);
        tow_status_release(status);
    }
    tow_status_t status = offer_to(&fixture, 0, address, 8); /* again */
    assert_int_equal(tow_status_code(status), TOW_INVALID_ARGUMENT);
    tow_transfer_engine_on_peer_disconnect(fixture.workers[0].engine, 1,
                                           status);
    tow_status_release(status);
    exchange_release(&exchange);
    transfer_fixture_close(&fixture);
    plan_free(&plan, 2);
}

static void an_invalid_write_fails_the_transfer(void **state)
{
    (void)state;
    const tow_arrival_t invalid[] = {{.size = ROW_BYTES, .tag = 2},
                                     {.size = ROW_BYTES, .tag = UINT64_MAX},
                                     {.offset = 4, .size = ROW_BYTES},
                                     {.size = ROW_BYTES - 4},
                                     {.offset = ROW_BYTES, .size = ROW_BYTES}};
    for (size_t i = 0; i <= TOW_COUNT_OF(invalid); i++) {
        transfer_fixture_t fixture;
        plan_t plan;
        exchange_t exchange;
        transfer_fixture_open(&fixture, 2, 0);
        plan_gather(&plan, ROW_BYTES / 4);
        exchange_init(&exchange, &fixture, &plan, 7);
        must(exchange_start(&exchange, 1));
        fixture_region_t *region =
            transfer_fixture_find_region(&fixture.workers[1], 1);
        tow_arrival_t arrival = {.size = ROW_BYTES};
        if (i < TOW_COUNT_OF(invalid))
            arrival = invalid[i];
        else /* twice */
            region->options.arrived(region->options.context, &region->base,
                                    &arrival);
        region->options.arrived(region->options.context, &region->base,
                                &arrival);
        region->options.arrived(region->options.context, &region->base,
                                &arrival);
        transfer_fixture_run(&fixture);
        assert_int_equal(exchange.parts[1].code, TOW_INVALID_ARGUMENT);
        exchange_release(&exchange);
        transfer_fixture_close(&fixture);
        plan_free(&plan, 2);
    }
}

static void invalid_routes_are_refused(void **state)
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

/* -- Faults at every step -------------------------------------------------- */

typedef enum fault {
    FAULT_ABORT_SENDER,
    FAULT_ABORT_RECEIVER,
    FAULT_ABORT_BOTH,
    FAULT_DISCONNECT,
    FAULT_RELEASE, /* of sources and targets: no error */
    FAULT_COUNT,
} fault_t;

static void inject(exchange_t *exchange, fault_t fault)
{
    transfer_fixture_t *fixture = exchange->fixture;
    tow_status_t cause = TOW_ERROR(TOW_ABORTED, "struck");
    for (uint32_t i = 0; i < 2; i++) {
        const bool is_here =
            fault == FAULT_ABORT_BOTH ||
            fault == (i == 0 ? FAULT_ABORT_SENDER : FAULT_ABORT_RECEIVER);
        if (is_here && !exchange->parts[i].is_done)
            tow_transfer_abort(fixture->workers[i].engine,
                               &exchange->parts[i].transfer, cause);
        if (fault == FAULT_DISCONNECT)
            tow_transfer_engine_on_peer_disconnect(fixture->workers[i].engine,
                                                   1 - i, cause);
    }
    tow_status_release(cause);
}

/* False: the exchange had fewer steps. */
static bool inject_at(const plan_t *plan, size_t step, fault_t fault,
                      bool holds)
{
    transfer_fixture_t fixture;
    exchange_t exchange;
    size_t at = 0;
    bool is_injected = false;
    transfer_fixture_open(&fixture, 2, 0);
    fixture.shares_writes = true;
    fixture.holds = holds;
    exchange_init(&exchange, &fixture, plan, 7);
    for (size_t act = 0; act < 2 + plan->from.place_count; act++) {
        do {
            if (at++ == step) {
                is_injected = true;
                if (fault == FAULT_RELEASE) goto out;
                if (exchange.parts[0].is_begun && exchange.parts[1].is_begun)
                    inject(&exchange, fault);
            }
        } while (transfer_fixture_step(&fixture));
        if (act < 2)
            must(exchange_start(&exchange, (uint32_t)act));
        else
            exchange_produce(&exchange, act - 2);
    }
    while (at++ < step && transfer_fixture_step(&fixture))
        continue;
    if (at > step && !is_injected) {
        is_injected = true;
        inject(&exchange, fault);
    }
out:
    exchange_release(&exchange);
    inject(&exchange, FAULT_ABORT_BOTH);
    transfer_fixture_close(&fixture);
    for (uint32_t i = 0; i < 2; i++)
        assert_true(!exchange.parts[i].is_begun || exchange.parts[i].is_done);
    return is_injected && at <= step + 1 && at < 200;
}

static void transfers_end_after_a_fault_at_any_step(void **state)
{
    (void)state;
    plan_t plans[5];
    plan_gather(&plans[0], 5);
    plan_gather(&plans[1], ROW_BYTES / 4);
    plan_transpose(&plans[2], 256);
    plan_untranspose(&plans[3], 256);
    plan_pass(&plans[4], 2);
    for (int p = 0; p < 5; p++) {
        for (int fault = 0; fault < FAULT_COUNT; fault++)
            for (size_t step = 0; step < 120; step++)
                inject_at(&plans[p], step / 2, (fault_t)fault, step % 2 == 1);
        plan_free(&plans[p], 2);
    }
}

/* A crash at every step: no leaks, and no calls of `done`. */
static void an_engine_may_crash_at_any_step(void **state)
{
    (void)state;
    for (size_t steps = 0; steps < 48; steps++) {
        transfer_fixture_t fixture;
        exchange_t exchange;
        plan_t plan;
        transfer_fixture_open(&fixture, 2, 0);
        fixture.shares_writes = true;
        fixture.holds = steps % 4 >= 2;
        if (steps % 2 == 0)
            plan_transpose(&plan, 256);
        else
            plan_pass(&plan, 2);
        exchange_init(&exchange, &fixture, &plan, 7);
        must(exchange_start(&exchange, 0));
        for (size_t i = 0; i < steps / 2 && transfer_fixture_step(&fixture);
             i++)
            if (i == 1) must(exchange_start(&exchange, 1));
        produce_all(&exchange);
        for (size_t i = 0; i < steps / 2 && transfer_fixture_step(&fixture);
             i++)
            continue;
        transfer_fixture_crash(&fixture);
        plan_free(&plan, 2);
    }
}

/* -- Random transfers ------------------------------------------------------ */

static uint32_t below(transfer_fixture_t *fixture, uint64_t limit)
{
    return (uint32_t)tow_random_below(&fixture->random, limit);
}

static void random_layout(transfer_fixture_t *fixture, uint32_t rank,
                          layout_t *layout)
{
    size_t count = 1;
    for (uint32_t i = 0; i < rank; i++) {
        static const uint32_t choices[] = {1, 2, 3, 4};
        do
            layout->parts[i] = choices[below(fixture, 4)];
        while (count * layout->parts[i] > 8);
        count *= layout->parts[i];
    }
    layout->place_count =
        count * (count <= 8 && below(fixture, 3) == 0 ? 2 : 1);
    for (size_t i = 0; i < layout->place_count; i++)
        layout->places[i] = below(fixture, fixture->worker_count);
}

static void random_plan(transfer_fixture_t *fixture, plan_t *plan)
{
    static const tow_type_t types[] = {TOW_TYPE_U8, TOW_TYPE_F32, TOW_TYPE_F64};
    *plan = (plan_t){.whole = {.type = types[below(fixture, 3)],
                               .rank = 1 + below(fixture, 3)}};
    for (uint32_t i = 0; i < plan->whole.rank; i++)
        plan->whole.dims[i] = 12 * (1 + (int64_t)below(fixture, 3));
    if (below(fixture, 3) == 0) plan->whole.dims[plan->whole.rank - 1] *= 256;
    random_layout(fixture, plan->whole.rank, &plan->from);
    random_layout(fixture, plan->whole.rank, &plan->to);
    if (below(fixture, 3) == 0) { /* Whole shards, to any workers. */
        memcpy(plan->to.parts, plan->from.parts, sizeof(plan->to.parts));
        plan->to.place_count = plan->from.place_count;
        for (size_t i = 0; i < plan->to.place_count; i++)
            plan->to.places[i] = below(fixture, fixture->worker_count);
    }
    plan_make(plan, fixture->worker_count);
}

static void random_routes_carry_the_right_bytes(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= 60; seed++) {
        transfer_fixture_t fixture;
        plan_t plan;
        exchange_t exchange;
        transfer_fixture_open(&fixture, 3, seed);
        fixture.copies_uploads = seed % 3 == 0;
        fixture.holds = seed % 2 == 0;
        random_plan(&fixture, &plan);
        exchange_init(&exchange, &fixture, &plan, 5);
        uint32_t started = 0;
        size_t produced = 0;
        while (started < 3 || produced < plan.from.place_count) {
            const uint32_t choice = below(&fixture, 3);
            if (choice == 0 && started < 3)
                must(exchange_start(&exchange, started++));
            else if (choice == 1 && produced < plan.from.place_count)
                exchange_produce(&exchange, produced++);
            else
                transfer_fixture_step(&fixture);
        }
        transfer_fixture_run(&fixture);
        expect_all(&exchange, TOW_CODE_OK);
        exchange_expect_bytes(&exchange);
        exchange_release(&exchange);
        transfer_fixture_close(&fixture);
        plan_free(&plan, 3);
    }
}

#define EXCHANGES 6

/* All transfers have ended, and READY buffers have the right bytes. */
static void expect_consistent(const exchange_t *exchange)
{
    const plan_t *plan = exchange->plan;
    for (size_t t = 0; t < plan->to.place_count; t++) {
        const exchange_part_t *part = &exchange->parts[plan->to.places[t]];
        if (!part->is_begun) continue;
        assert_true(part->is_done);
        const fixture_buffer_t *buffer =
            (const fixture_buffer_t *)
                part->targets[plan_local_index(&plan->to, t)];
        assert_true(buffer->state != TOW_BUFFER_PENDING);
        if (part->code == TOW_CODE_OK)
            assert_int_equal(buffer->state, TOW_BUFFER_READY);
        if (buffer->state != TOW_BUFFER_READY) continue;
        uint8_t *bytes = test_malloc(buffer->base.bytes + 1);
        plan_fill_shard(plan, &plan->to, t, exchange->salt, bytes);
        assert_memory_equal(buffer->bytes, bytes, buffer->base.bytes);
        test_free(bytes);
    }
}

typedef struct stress {
    transfer_fixture_t fixture;
    plan_t plans[EXCHANGES];
    exchange_t exchanges[EXCHANGES];
    uint32_t started[3]; /* exchanges, in order, by worker */
    size_t produced[EXCHANGES];
} stress_t;

static void stress_act(stress_t *stress)
{
    transfer_fixture_t *fixture = &stress->fixture;
    const uint32_t worker = below(fixture, 3);
    exchange_t *exchange = &stress->exchanges[below(fixture, EXCHANGES)];
    const size_t at = (size_t)(exchange - stress->exchanges);
    const uint32_t choice = below(fixture, 100);
    if (choice < 20 && stress->started[worker] < EXCHANGES) {
        exchange_t *next = &stress->exchanges[stress->started[worker]++];
        if (below(fixture, 20) > 0)
            must(exchange_start(next, worker));
        else /* Its start fails. */
            tow_transfer_engine_granted(fixture->workers[worker].engine,
                                        next->parts[worker].transfer.gang);
    } else if (choice < 40 &&
               stress->produced[at] < exchange->plan->from.place_count) {
        const size_t shard = stress->produced[at]++;
        if (below(fixture, 20) > 0)
            exchange_produce(exchange, shard);
        else
            fixture_buffer_fail(
                exchange->parts[exchange->plan->from.places[shard]]
                    .sources[plan_local_index(&exchange->plan->from, shard)],
                TOW_ERROR(TOW_INTERNAL, "failed"));
    } else if (choice < 44) {
        tow_status_t cause = TOW_ERROR(TOW_ABORTED, "aborted");
        if (exchange->parts[worker].is_begun &&
            !exchange->parts[worker].is_done)
            tow_transfer_abort(fixture->workers[worker].engine,
                               &exchange->parts[worker].transfer, cause);
        tow_status_release(cause);
    } else if (choice < 45) {
        tow_status_t cause = TOW_ERROR(TOW_UNAVAILABLE, "gone");
        tow_transfer_engine_on_peer_disconnect(fixture->workers[worker].engine,
                                               (worker + 1) % 3, cause);
        tow_status_release(cause);
    } else {
        transfer_fixture_step(fixture);
    }
}

static void stress_end(stress_t *stress)
{
    transfer_fixture_t *fixture = &stress->fixture;
    tow_status_t cause = TOW_ERROR(TOW_ABORTED, "the end");
    transfer_fixture_run(fixture);
    for (int i = 0; i < EXCHANGES; i++)
        for (uint32_t h = 0; h < 3; h++) {
            exchange_part_t *part = &stress->exchanges[i].parts[h];
            if (part->is_begun && !part->is_done)
                tow_transfer_abort(fixture->workers[h].engine, &part->transfer,
                                   cause);
        }
    tow_status_release(cause);
    transfer_fixture_run(fixture);
    for (int i = 0; i < EXCHANGES; i++)
        while (stress->produced[i] < stress->plans[i].from.place_count)
            exchange_produce(&stress->exchanges[i], stress->produced[i]++);
    transfer_fixture_run(fixture);
    for (int i = 0; i < EXCHANGES; i++) {
        expect_consistent(&stress->exchanges[i]);
        exchange_release(&stress->exchanges[i]);
    }
    transfer_fixture_close(fixture);
    for (int i = 0; i < EXCHANGES; i++)
        plan_free(&stress->plans[i], 3);
}

static void transfers_end_under_random_faults(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= 60; seed++) {
        static stress_t stress;
        stress = (stress_t){0};
        transfer_fixture_open(&stress.fixture, 3, seed);
        stress.fixture.copies_uploads = seed % 3 == 0;
        stress.fixture.holds = seed % 2 == 0;
        if (seed % 4 == 0) stress.fixture.fail_write_at = 1 + (int)(seed % 7);
        if (seed % 5 == 0) stress.fixture.refuse_write_at = 1 + (int)(seed % 9);
        for (int i = 0; i < EXCHANGES; i++) {
            random_plan(&stress.fixture, &stress.plans[i]);
            exchange_init(&stress.exchanges[i], &stress.fixture,
                          &stress.plans[i], 10 + (uint64_t)i);
        }
        for (int i = 0; i < 600; i++)
            stress_act(&stress);
        stress_end(&stress);
    }
}

/* -- Memory ---------------------------------------------------------------- */

static tow_exhaust_result_t start_without_memory(void *context)
{
    const plan_t *plan = context;
    transfer_fixture_t fixture;
    exchange_t exchange;
    transfer_fixture_open(&fixture, 2, 0);
    exchange_init(&exchange, &fixture, plan, 7);
    tow_status_t first = exchange_start(&exchange, 0);
    tow_status_t second = exchange_start(&exchange, 1);
    const bool is_ok = first == TOW_OK && second == TOW_OK;
    tow_status_release(first);
    tow_status_release(second);
    exchange_release(&exchange);
    inject(&exchange, FAULT_ABORT_BOTH);
    transfer_fixture_close(&fixture);
    return is_ok ? TOW_EXHAUST_SUCCEEDED : TOW_EXHAUST_FAILED;
}

/* Allocations fail only within the engine, since the fixture needs its own. */
static void a_transfer_that_cannot_begin_leaks_nothing(void **state)
{
    (void)state;
    plan_t plan;
    plan_transpose(&plan, 256);
    for (uint64_t nth = 0; nth < 40; nth++) {
        transfer_fixture_t fixture;
        exchange_t exchange;
        transfer_fixture_open(&fixture, 2, 0);
        exchange_init(&exchange, &fixture, &plan, 7);
        tow_alloc_fail_after(nth);
        tow_status_t status = exchange_start(&exchange, 0);
        tow_alloc_fail_after(UINT64_MAX);
        if (status != TOW_OK) assert_false(exchange.parts[0].is_begun);
        tow_status_release(status);
        exchange_release(&exchange);
        if (exchange.parts[0].is_begun) inject(&exchange, FAULT_ABORT_SENDER);
        transfer_fixture_close(&fixture);
    }
    assert_int_equal(start_without_memory(&plan), TOW_EXHAUST_SUCCEEDED);
    plan_free(&plan, 2);
}

/* -- Cost ------------------------------------------------------------------ */

#define COST_TRANSFERS 200000

typedef struct cost {
    fake_driver_t fake;
    tow_env_t env;
    tow_post_t *post;
    tow_transfer_engine_t *engine;
    tow_piece_t piece;
    tow_route_t route;
    tow_transfer_t transfer;
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

static tow_transfer_sent_t cost_send(void *context, uint32_t process,
                                     uint32_t type, const tow_body_t *body)
{
    (void)context, (void)process, (void)type, (void)body;
    return TOW_TRANSFER_SENT;
}

static tow_status_t cost_write(void *context, tow_transfer_write_t *write)
{
    (void)context, (void)write;
    return tow_status_bare(TOW_UNIMPLEMENTED);
}

static void cost_done(tow_transfer_t *transfer, tow_status_t take_status)
{
    must(take_status);
    TOW_CONTAINER_OF(transfer, cost_t, transfer)->done_count++;
}

/* One shard of one number. */
static void cost_open(cost_t *cost, bool is_sent, bool is_received,
                      uint32_t other)
{
    *cost = (cost_t){.env = {.ops = &cost_env_ops}};
    fake_open(&cost->fake, &cost->env);
    fake_executable_release(&cost->fake.executable);
    must(tow_transfer_engine_create(
        &(tow_transfer_engine_options_t){.driver = &cost->fake.base,
                                         .process = 1,
                                         .send = cost_send,
                                         .write = cost_write},
        &cost->engine));
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
    assert_int_equal(cost->done_count, COST_TRANSFERS);
    tow_buffer_release(cost->source);
    tow_transfer_engine_destroy(cost->engine);
    fake_close(&cost->fake);
}

static void cost_run_post(cost_t *cost)
{
    tow_post_t *post = cost->post;
    cost->post = NULL;
    if (post != NULL) post->run(post);
}

static void cost_transfer(cost_t *cost, uint64_t gang)
{
    fake_driver_t *fake = &cost->fake;
    cost->transfer = (tow_transfer_t){.route = &cost->route,
                                      .gang = gang,
                                      .sources = &cost->source,
                                      .source_stride = 1,
                                      .targets = &cost->target,
                                      .done = cost_done};
    must(tow_transfer_start(cost->engine, &cost->transfer));
    tow_transfer_engine_granted(cost->engine, gang);
    if (fake->copy != NULL) fake->copy->done(fake->copy, TOW_OK);
    if (fake->share != NULL) fake->share->done(fake->share, TOW_OK);
    if (cost->route.receive_count > 0 && cost->piece.process != 1) {
        tow_msg_edge_piece_t piece = TOW_MSG_EDGE_PIECE_INIT;
        piece.gang = gang;
        piece.bytes.data = fake->bytes;
        piece.bytes.len = 4;
        must(tow_transfer_engine_on_piece(cost->engine, 2, &piece));
    }
    cost_run_post(cost);
    if (fake->upload != NULL) fake->upload->done(fake->upload, TOW_OK);
    fake->copy = NULL;
    fake->share = NULL;
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
    for (uint64_t i = 1; i <= COST_TRANSFERS; i++)
        cost_transfer(&cost, i);
    fprintf(stderr, "%s: %.0f ns\n", what, (now_ns() - begin) / COST_TRANSFERS);
    cost_close(&cost);
}

static void the_cost_of_a_small_transfer_is_printed(void **state)
{
    (void)state;
    measure("a shard within a worker", true, true, 1);
    measure("a small piece, sender", true, false, 2);
    measure("a small piece, receiver", false, true, 2);
}

TOW_TEST_MAIN(
    cmocka_unit_test(a_whole_local_shard_is_copied_by_the_driver),
    cmocka_unit_test(a_held_local_shard_uses_the_memory_of_its_source),
    cmocka_unit_test(local_parts_are_copied_by_the_engine),
    cmocka_unit_test(without_driver_copies_local_shards_are_shared),
    cmocka_unit_test(small_pieces_are_sent_in_messages),
    cmocka_unit_test(large_pieces_are_written_into_the_target),
    cmocka_unit_test(a_whole_shard_is_shared),
    cmocka_unit_test(a_share_that_is_copied_ends_at_once),
    cmocka_unit_test(parts_are_not_shared),
    cmocka_unit_test(large_pieces_that_are_no_target_rows_arrive_packed),
    cmocka_unit_test(large_pieces_are_packed_by_the_sender),
    cmocka_unit_test(devices_may_copy_uploads),
    cmocka_unit_test(an_empty_array_needs_no_transfer),
    cmocka_unit_test(early_pieces_wait_for_their_grant),
    cmocka_unit_test(early_offers_wait_for_their_grant),
    cmocka_unit_test(late_pieces_are_discarded),
    cmocka_unit_test(early_pieces_are_discarded_after_their_grant),
    cmocka_unit_test(early_pieces_of_one_worker_are_bounded),
    cmocka_unit_test(a_sized_transfer_allocates_when_the_size_arrives),
    cmocka_unit_test(invalid_sizes_are_refused),
    cmocka_unit_test(a_sized_transfer_whose_sender_fails_is_never_sized),
    cmocka_unit_test(a_failed_source_fails_the_transfer_with_its_error),
    cmocka_unit_test(a_disconnected_peer_fails_its_transfers),
    cmocka_unit_test(messages_lost_in_a_reconnect_are_not_awaited),
    cmocka_unit_test(a_failed_write_fails_the_sender),
    cmocka_unit_test(a_driver_without_support_is_named),
    cmocka_unit_test(a_gang_has_one_transfer),
    cmocka_unit_test(invalid_pieces_are_refused),
    cmocka_unit_test(an_invalid_early_piece_fails_the_transfer),
    cmocka_unit_test(invalid_offers_are_refused),
    cmocka_unit_test(an_invalid_write_fails_the_transfer),
    cmocka_unit_test(invalid_routes_are_refused),
    cmocka_unit_test(transfers_end_after_a_fault_at_any_step),
    cmocka_unit_test(an_engine_may_crash_at_any_step),
    cmocka_unit_test(random_routes_carry_the_right_bytes),
    cmocka_unit_test(transfers_end_under_random_faults),
    cmocka_unit_test(a_transfer_that_cannot_begin_leaks_nothing),
    cmocka_unit_test(the_cost_of_a_small_transfer_is_printed))
