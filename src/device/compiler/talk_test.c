#include "base/testing.h"

#include <fcntl.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/alloc.h"
#include "device/compiler/talk_impl.h"
#include "device/compiler/tuning.h"
#include "wire/message.h"

typedef struct pair {
    int ends[2]; /* neither blocks */
} pair_t;

static int set_up(void **state)
{
    static pair_t pair;
    assert_int_equal(
        socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, pair.ends), 0);
    *state = &pair;
    return 0;
}

static int tear_down(void **state)
{
    pair_t *pair = *state;
    if (pair->ends[0] >= 0) close(pair->ends[0]);
    close(pair->ends[1]);
    return 0;
}

static talk_out_t message(const char *first, const char *last, size_t last_size)
{
    return (talk_out_t){
        .header = {.magic = TALK_MAGIC,
                   .type = TALK_REPLY,
                   .code = 3,
                   .sizes = {strlen(first), 0, last_size}},
        .parts = {first, NULL, last},
    };
}

static void messages_arrive_one_after_the_other(void **state)
{
    const pair_t *pair = *state;
    talk_in_t in = {0};
    for (int i = 0; i < 2; i++) {
        talk_out_t out = message(i == 0 ? "one" : "", "bytes", 5);
        assert_int_equal(tow_talk_send(pair->ends[0], &out), TALK_DONE);
    }
    assert_int_equal(tow_talk_receive(pair->ends[1], &in), TALK_DONE);
    assert_int_equal(in.header.code, 3);
    assert_string_equal(in.parts[REPLY_MESSAGE], "one");
    assert_string_equal(in.parts[REPLY_SIGNATURE], "");
    char *taken = tow_talk_take(&in, REPLY_EXECUTABLE);
    assert_string_equal(taken, "bytes");
    tow_free(taken);
    tow_talk_reset(&in);
    assert_int_equal(tow_talk_receive(pair->ends[1], &in), TALK_DONE);
    assert_string_equal(in.parts[REPLY_MESSAGE], "");
    tow_talk_reset(&in);
    assert_int_equal(tow_talk_receive(pair->ends[1], &in), TALK_WAIT);
}

/* More than a socket holds. */
static void large_messages_go_in_pieces(void **state)
{
    enum {
        SIZE = 4 << 20
    };
    const pair_t *pair = *state;
    char *bytes = tow_malloc(SIZE);
    assert_non_null(bytes);
    for (size_t i = 0; i < SIZE; i++)
        bytes[i] = (char)(i * 31 / 7);
    talk_out_t out = message("large", bytes, SIZE);
    talk_in_t in = {0};
    size_t wait_count = 0;
    talk_result_t sent, received;
    do {
        sent = tow_talk_send(pair->ends[0], &out);
        received = tow_talk_receive(pair->ends[1], &in);
        wait_count += sent == TALK_WAIT;
    } while (received == TALK_WAIT);
    assert_int_equal(sent, TALK_DONE);
    assert_int_equal(received, TALK_DONE);
    assert_true(wait_count > 0);
    assert_memory_equal(in.parts[REPLY_EXECUTABLE], bytes, SIZE);
    tow_talk_reset(&in);
    tow_free(bytes);
}

static void other_side_that_goes_is_noticed(void **state)
{
    pair_t *pair = *state;
    talk_out_t out = message("one", "bytes", 5);
    talk_in_t in = {0};
    assert_int_equal(tow_talk_send(pair->ends[0], &out), TALK_DONE);
    const talk_header_t cut = {.magic = TALK_MAGIC, .type = TALK_REPLY};
    assert_int_equal(write(pair->ends[0], &cut, sizeof(cut) / 2),
                     sizeof(cut) / 2);
    close(pair->ends[0]);
    pair->ends[0] = -1;
    assert_int_equal(tow_talk_receive(pair->ends[1], &in), TALK_DONE);
    tow_talk_reset(&in);
    assert_int_equal(tow_talk_receive(pair->ends[1], &in), TALK_OVER);
    tow_talk_reset(&in);
    out.done_count = 0;
    assert_int_equal(tow_talk_send(pair->ends[1], &out), TALK_OVER);
}

/* A size that is too large by one would be memory that nobody bounds. */
static void headers_that_make_no_sense_are_garbage(void **state)
{
    const pair_t *pair = *state;
    const talk_header_t wrong[] = {
        {.magic = 7, .type = TALK_REPLY},
        {.magic = TALK_MAGIC, .type = 0},
        {.magic = TALK_MAGIC, .type = TALK_ANSWER + 1},
        {.magic = TALK_MAGIC,
         .type = TALK_QUESTION,
         .sizes = {[ASKED_BYTES] = TOW_QUESTION_BYTES_MAX + 1}},
        {.magic = TALK_MAGIC,
         .type = TALK_ANSWER,
         .sizes = {[ASKED_BYTES] = TOW_ANSWER_BYTES_MAX + 1}},
        {.magic = TALK_MAGIC,
         .type = TALK_REPLY,
         .sizes = {TOW_COMPILER_MESSAGE_BYTES_MAX + 1}},
        {.magic = TALK_MAGIC,
         .type = TALK_READY,
         .sizes = {0, 0, TOW_COMPILER_EXECUTABLE_BYTES_MAX + 1}},
        {.magic = TALK_MAGIC, .type = TALK_REPLY, .sizes = {0, UINT64_MAX}},
        {.magic = TALK_MAGIC, .type = TALK_REQUEST, .sizes = {256}},
    };
    for (size_t i = 0; i < TOW_COUNT_OF(wrong); i++) {
        talk_in_t in = {0};
        assert_int_equal(write(pair->ends[0], &wrong[i], sizeof(wrong[i])),
                         sizeof(wrong[i]));
        assert_int_equal(tow_talk_receive(pair->ends[1], &in), TALK_GARBAGE);
        tow_talk_reset(&in);
    }
}

static tow_exhaust_result_t receive_one(void *context)
{
    const pair_t *pair = context;
    talk_out_t out = message("one", "bytes", 5);
    talk_in_t in = {0};
    assert_int_equal(tow_talk_send(pair->ends[0], &out), TALK_DONE);
    const talk_result_t result = tow_talk_receive(pair->ends[1], &in);
    tow_talk_reset(&in);
    if (result == TALK_DONE) return TOW_EXHAUST_SUCCEEDED;
    assert_int_equal(result, TALK_MEMORY);
    char rest[64]; /* A parent ends the child; here it must be read away. */
    assert_int_equal(read(pair->ends[1], rest, sizeof(rest)), 8);
    return TOW_EXHAUST_FAILED;
}

static void memory_that_runs_out_is_a_result(void **state)
{
    assert_true(tow_test_exhaust(receive_one, *state) > 0);
}

#define CASE(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)

TOW_TEST_MAIN(CASE(messages_arrive_one_after_the_other),
              CASE(large_messages_go_in_pieces),
              CASE(other_side_that_goes_is_noticed),
              CASE(headers_that_make_no_sense_are_garbage),
              CASE(memory_that_runs_out_is_a_result))
