/* Cached values and prefetching, with a scripted controller. */
#include "client/client_impl.h"
#include "client/fixture_testing_impl.h"

/* A program of one argument and one result, of two shards of 16 bytes. */
typedef struct fetch {
    fixture_t fixture;
    tow_slice_t *slice;
    tow_function_t *function;
    tow_program_t *program;
    tow_array_t *x;
    uint64_t run; /* the last received */
} fetch_fixture_t;

static void open_fetch(fetch_fixture_t *fetch)
{
    fixture_connect(&fetch->fixture);
    fetch->slice = open_slice(&fetch->fixture);
    fetch->function = compile(&fetch->fixture, fetch->slice);
    fetch->program = call_of(&fetch->fixture, fetch->function, fetch->slice);
    fetch->x = make_array(&fetch->fixture, fetch->slice);
}

static void release_fetch(fetch_fixture_t *fetch)
{
    tow_array_release_locked(fetch->x);
    tow_function_release_locked(fetch->function);
    tow_slice_release_locked(fetch->slice);
}

static void close_fetch(fetch_fixture_t *fetch)
{
    release_fetch(fetch);
    fixture_close(&fetch->fixture);
}

static tow_array_t *call(fetch_fixture_t *fetch)
{
    tow_array_t *y;
    must(tow_program_start(fetch->program, &fetch->x, 1, &y, 1));
    fetch->run = EXPECT(&fetch->fixture, RUN, run)->run;
    return y;
}

/* Reads a shard that is not cached; the controller gets a request. */
static void read_uncached(fetch_fixture_t *fetch, tow_array_t *array,
                          size_t shard)
{
    uint8_t bytes[16];
    tow_completion_t answer = {0};
    must(tow_download_start(array, shard, bytes, 16, &answer, NULL));
    const tow_msg_get_t *get = EXPECT(&fetch->fixture, GET, get);
    assert_int_equal(get->shard, shard);
    send_get_done(&fetch->fixture, get->request, "the first answer", 16, NULL);
    expect_settled(&answer);
    assert_memory_equal(bytes, "the first answer", 16);
}

/* Reads a shard that is cached. */
static void read_cached(fetch_fixture_t *fetch, tow_array_t *array,
                        size_t shard, const char *expected)
{
    uint8_t bytes[16];
    tow_completion_t answer = {0};
    must(tow_download_start(array, shard, bytes, 16, &answer, NULL));
    assert_true(answer.settled);
    must(answer.error);
    assert_memory_equal(bytes, expected, 16);
    expect_no_message(&fetch->fixture);
}

/* Reads a result, so that the next ones are prefetched. */
static void read_once(fetch_fixture_t *fetch)
{
    tow_array_t *y = call(fetch);
    send_done(&fetch->fixture, fetch->run);
    read_uncached(fetch, y, 0);
    tow_array_release_locked(y);
    soon(&fetch->fixture);
    EXPECT(&fetch->fixture, RELEASE, release);
}

/* -- Uploads ------------------------------------------------------------------------ */

static void small_uploads_are_cached(void **state)
{
    (void)state;
    fetch_fixture_t fetch;
    open_fetch(&fetch);
    read_cached(&fetch, fetch.x, 0, "0123456789abcde");
    read_cached(&fetch, fetch.x, 1, "0123456789abcde"); /* It is replicated. */
    calls_t calls = {0};
    uint8_t bytes[16];
    must(
        tow_download_start(fetch.x, 0, bytes, 16, NULL, make_callback(&calls)));
    assert_int_equal(calls.count, 1);
    assert_int_equal(calls.code, TOW_OK);
    close_fetch(&fetch);
}

static void cached_bytes_outlive_their_array(void **state)
{
    (void)state;
    fetch_fixture_t fetch;
    open_fetch(&fetch);
    tow_array_t *array = make_array(&fetch.fixture, fetch.slice);
    tow_cached_value_t *cached = tow_array_cached_value(array, 1);
    assert_non_null(cached);
    assert_int_equal((uintptr_t)cached->bytes % 16, 0);
    tow_cached_value_retain(cached);
    tow_array_release_locked(array);
    assert_memory_equal(cached->bytes, "0123456789abcde", 16);
    tow_cached_value_release(cached);
    close_fetch(&fetch);
}

static void a_failed_upload_is_not_cached(void **state)
{
    (void)state;
    fetch_fixture_t fetch;
    open_fetch(&fetch);
    tow_array_t *array;
    must(start_upload(fetch.slice, "0123456789abcde", 16, &array));
    tow_msg_failure_t failure = failure_of(TOW_UNAVAILABLE, "worker/1 is gone");
    send_put_done(&fetch.fixture, EXPECT(&fetch.fixture, PUT, put)->object,
                  &failure);
    assert_null(tow_array_cached_value(array, 0));
    tow_array_release_locked(array);
    close_fetch(&fetch);
}

static void large_uploads_are_not_cached(void **state)
{
    (void)state;
    fetch_fixture_t fetch;
    open_fetch(&fetch);
    static const uint8_t many[TOW_CLIENT_CACHED_BYTES_MAX + 1];
    tow_array_t *array;
    must(start_upload(fetch.slice, many, sizeof(many), &array));
    assert_null(tow_array_cached_value(array, 0));
    tow_array_release_locked(array);
    close_fetch(&fetch);
}

static void consumed_arrays_are_not_cached(void **state)
{
    (void)state;
    fetch_fixture_t fetch;
    open_fetch(&fetch);
    tow_program_t *program;
    tow_value_t value;
    uint32_t node;
    must(tow_program_begin(fetch.fixture.client, "consumes", &program));
    must(tow_program_add_argument(program, fetch.slice, &row, true, &value));
    must(tow_program_add_call(program, fetch.function, fetch.slice, &value, 1,
                              &node));
    must(tow_program_add_result(program, (tow_value_t){.node = node},
                                fetch.slice, &row));
    must(tow_program_send(program));
    EXPECT(&fetch.fixture, PROGRAM_ADD, program_add);
    assert_non_null(tow_array_cached_value(fetch.x, 0));
    tow_array_t *y;
    must(tow_program_start(program, &fetch.x, 1, &y, 1));
    assert_null(tow_array_cached_value(fetch.x, 0));
    tow_array_release_locked(y);
    tow_program_release_locked(program);
    close_fetch(&fetch);
}

/* -- Results ------------------------------------------------------------------------ */

static void a_result_that_was_read_is_prefetched_with_the_next_run(void **state)
{
    (void)state;
    fetch_fixture_t fetch;
    open_fetch(&fetch);
    read_once(&fetch);
    for (int i = 0; i < 3; i++) {
        tow_array_t *y = call(&fetch);
        const tow_msg_get_t *get = EXPECT(&fetch.fixture, GET, get);
        assert_int_equal(get->object, y->id);
        assert_int_equal(get->shard, 0);
        assert_null(tow_array_cached_value(y, 0));
        send_get_done(&fetch.fixture, get->request, "that was fetched", 16,
                      NULL);
        send_done(&fetch.fixture, fetch.run);
        read_cached(&fetch, y, 0, "that was fetched");
        tow_array_release_locked(y);
        EXPECT(&fetch.fixture, RELEASE, release);
    }
    close_fetch(&fetch);
}

static void a_read_during_a_prefetch_sends_no_request(void **state)
{
    (void)state;
    fetch_fixture_t fetch;
    open_fetch(&fetch);
    read_once(&fetch);
    tow_array_t *y = call(&fetch);
    const uint64_t request = EXPECT(&fetch.fixture, GET, get)->request;
    uint8_t one[16], other[16];
    tow_completion_t answer = {0};
    calls_t calls = {0};
    must(tow_download_start(y, 0, one, 16, &answer, NULL));
    must(tow_download_start(y, 0, other, 16, NULL, make_callback(&calls)));
    expect_no_message(&fetch.fixture);
    assert_false(answer.settled);
    tow_array_release_locked(y); /* Readers wait as for any get. */
    send_get_done(&fetch.fixture, request, "that was fetched", 16, NULL);
    expect_settled(&answer);
    assert_int_equal(calls.count, 1);
    assert_memory_equal(one, "that was fetched", 16);
    assert_memory_equal(other, "that was fetched", 16);
    close_fetch(&fetch);
}

static void unread_results_lose_their_prefetch(void **state)
{
    (void)state;
    fetch_fixture_t fetch;
    open_fetch(&fetch);
    read_once(&fetch);
    tow_array_t *y = call(&fetch);
    send_get_done(&fetch.fixture, EXPECT(&fetch.fixture, GET, get)->request,
                  "that was fetched", 16, NULL);
    tow_array_release_locked(y);
    soon(&fetch.fixture);
    EXPECT(&fetch.fixture, RELEASE, release);
    y = call(&fetch);
    expect_no_message(&fetch.fixture);
    read_uncached(&fetch, y, 0); /* Until one is read. */
    tow_array_release_locked(y);
    EXPECT(&fetch.fixture, RELEASE, release);
    y = call(&fetch);
    EXPECT(&fetch.fixture, GET, get);
    tow_array_release_locked(y); /* During the prefetch. */
    close_fetch(&fetch);
}

static void reading_all_shards_prefetches_all(void **state)
{
    (void)state;
    fetch_fixture_t fetch;
    open_fetch(&fetch);
    tow_array_t *y = call(&fetch);
    read_uncached(&fetch, y, 0);
    read_uncached(&fetch, y, 1);
    tow_array_release_locked(y);
    soon(&fetch.fixture);
    EXPECT(&fetch.fixture, RELEASE, release);
    y = call(&fetch);
    uint64_t first = EXPECT(&fetch.fixture, GET, get)->request;
    const tow_msg_get_t *second = EXPECT(&fetch.fixture, GET, get);
    assert_int_equal(second->shard, 1);
    send_get_done(&fetch.fixture, second->request, "the other shard.", 16,
                  NULL);
    send_get_done(&fetch.fixture, first, "the first shard.", 16, NULL);
    read_cached(&fetch, y, 0, "the first shard.");
    read_cached(&fetch, y, 1, "the other shard.");
    tow_array_release_locked(y);
    close_fetch(&fetch);
}

static void a_failed_prefetch_fails_its_readers(void **state)
{
    (void)state;
    fetch_fixture_t fetch;
    open_fetch(&fetch);
    read_once(&fetch);
    tow_array_t *y = call(&fetch);
    uint64_t request = EXPECT(&fetch.fixture, GET, get)->request;
    calls_t calls = {0};
    uint8_t bytes[16];
    must(tow_download_start(y, 0, bytes, 16, NULL, make_callback(&calls)));
    tow_msg_failure_t failure = failure_of(TOW_DATA_LOSS, "gone");
    send_get_done(&fetch.fixture, request, NULL, 0, &failure);
    assert_int_equal(calls.count, 1);
    assert_int_equal(calls.code, TOW_DATA_LOSS);
    read_uncached(&fetch, y, 0); /* The next read sends a request. */
    tow_array_release_locked(y);
    soon(&fetch.fixture);
    EXPECT(&fetch.fixture, RELEASE, release);
    y = call(&fetch);
    request = EXPECT(&fetch.fixture, GET, get)->request;
    send_get_done(&fetch.fixture, request, "short", 5, NULL);
    assert_null(tow_array_cached_value(y, 0));
    tow_array_release_locked(y);
    close_fetch(&fetch);
}

static void a_failed_result_is_not_cached(void **state)
{
    (void)state;
    fetch_fixture_t fetch;
    open_fetch(&fetch);
    read_once(&fetch);
    tow_array_t *y = call(&fetch);
    send_get_done(&fetch.fixture, EXPECT(&fetch.fixture, GET, get)->request,
                  "that was fetched", 16, NULL);
    assert_non_null(tow_array_cached_value(y, 0));
    send_failed(&fetch.fixture, fetch.run, TOW_ABORTED, "on another worker");
    assert_null(tow_array_cached_value(y, 0));
    tow_array_release_locked(y);
    close_fetch(&fetch);
}

/* -- Closing and disconnecting --------------------------------------------- */

static void readers_of_a_prefetch_fail_when_the_controller_disconnects(
    void **state)
{
    (void)state;
    fetch_fixture_t fetch;
    open_fetch(&fetch);
    read_once(&fetch);
    tow_array_t *y = call(&fetch);
    calls_t calls = {0};
    uint8_t bytes[16];
    must(tow_download_start(y, 0, bytes, 16, NULL, make_callback(&calls)));
    tow_sim_crash(fetch.fixture.controller_node);
    run_for(&fetch.fixture, 5 * SECOND);
    assert_int_equal(calls.count, 1);
    assert_int_equal(calls.code, TOW_UNAVAILABLE);
    tow_array_release_locked(y);
    close_fetch(&fetch);
}

static void a_crashed_client_leaks_nothing(void **state)
{
    (void)state;
    fetch_fixture_t fetch;
    open_fetch(&fetch);
    read_once(&fetch);
    tow_array_t *y = call(&fetch);
    calls_t calls = {0};
    uint8_t bytes[16];
    must(tow_download_start(y, 0, bytes, 16, NULL, make_callback(&calls)));
    tow_sim_crash(fetch.fixture.client_node);
    tow_client_discard(fetch.fixture.client);
    assert_int_equal(calls.count, 0);
    tow_array_release_locked(y);
    release_fetch(&fetch);
    tow_client_free(fetch.fixture.client);
    run_for(&fetch.fixture, 5 * SECOND);
    fixture_free(&fetch.fixture);
}

TOW_TEST_MAIN(
    cmocka_unit_test(small_uploads_are_cached),
    cmocka_unit_test(cached_bytes_outlive_their_array),
    cmocka_unit_test(a_failed_upload_is_not_cached),
    cmocka_unit_test(large_uploads_are_not_cached),
    cmocka_unit_test(consumed_arrays_are_not_cached),
    cmocka_unit_test(a_result_that_was_read_is_prefetched_with_the_next_run),
    cmocka_unit_test(a_read_during_a_prefetch_sends_no_request),
    cmocka_unit_test(unread_results_lose_their_prefetch),
    cmocka_unit_test(reading_all_shards_prefetches_all),
    cmocka_unit_test(a_failed_prefetch_fails_its_readers),
    cmocka_unit_test(a_failed_result_is_not_cached),
    cmocka_unit_test(
        readers_of_a_prefetch_fail_when_the_controller_disconnects),
    cmocka_unit_test(a_crashed_client_leaks_nothing))
