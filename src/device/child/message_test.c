#include "base/testing.h"

#include <fcntl.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/alloc.h"
#include "device/child/message.h"

#define SIZE_MAX_LARGE ((uint64_t)8 << 20)

enum {
    REQUEST = 1,
    REPLY,
    TYPE_COUNT
};

static const uint64_t part_bytes_max[][TOW_CHILD_PART_COUNT] = {
    [REQUEST] = {16},
    [REPLY] = {100, 100, SIZE_MAX_LARGE},
};

static const tow_child_protocol_t protocol = {.magic = 0x1234,
                                              .type_count = TYPE_COUNT,
                                              .part_bytes_max = part_bytes_max};

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

static tow_child_out_t message(const char *first, const char *last,
                               size_t last_output_size)
{
    tow_child_out_t out = tow_child_out(&protocol, REPLY);
    out.header.code = 3;
    tow_child_out_set(&out, 0, first, strlen(first));
    tow_child_out_set(&out, 2, last, last_output_size);
    return out;
}

static tow_child_transfer_t receive(const pair_t *pair, tow_child_in_t *in)
{
    return tow_child_receive(pair->ends[1], &protocol, in);
}

static void messages_arrive_in_order(void **state)
{
    const pair_t *pair = *state;
    tow_child_in_t in = {0};
    for (int i = 0; i < 2; i++) {
        tow_child_out_t out = message(i == 0 ? "one" : "", "bytes", 5);
        assert_int_equal(tow_child_send(pair->ends[0], &out), TOW_CHILD_DONE);
    }
    assert_int_equal(receive(pair, &in), TOW_CHILD_DONE);
    assert_int_equal(in.header.code, 3);
    assert_string_equal(in.parts[0], "one");
    assert_string_equal(in.parts[1], "");
    char *taken = tow_child_in_take(&in, 2);
    assert_string_equal(taken, "bytes");
    tow_free(taken);
    tow_child_in_reset(&in);
    assert_int_equal(receive(pair, &in), TOW_CHILD_DONE);
    assert_string_equal(in.parts[0], "");
    tow_child_in_reset(&in);
    assert_int_equal(receive(pair, &in), TOW_CHILD_BLOCKED);
}

/* More than a socket buffers. */
static void large_messages_are_sent_in_pieces(void **state)
{
    enum {
        SIZE = 4 << 20
    };
    const pair_t *pair = *state;
    char *bytes = tow_malloc(SIZE);
    assert_non_null(bytes);
    for (size_t i = 0; i < SIZE; i++)
        bytes[i] = (char)(i * 31 / 7);
    tow_child_out_t out = message("large", bytes, SIZE);
    tow_child_in_t in = {0};
    size_t blocked_count = 0;
    tow_child_transfer_t sent, received;
    do {
        sent = tow_child_send(pair->ends[0], &out);
        received = receive(pair, &in);
        blocked_count += sent == TOW_CHILD_BLOCKED;
    } while (received == TOW_CHILD_BLOCKED);
    assert_int_equal(sent, TOW_CHILD_DONE);
    assert_int_equal(received, TOW_CHILD_DONE);
    assert_true(blocked_count > 0);
    assert_memory_equal(in.parts[2], bytes, SIZE);
    tow_child_in_reset(&in);
    tow_free(bytes);
}

static void descriptors_arrive_where_they_are_accepted(void **state)
{
    const pair_t *pair = *state;
    int pipe_ends[2];
    assert_int_equal(pipe(pipe_ends), 0);
    for (int i = 0; i < 2; i++) {
        tow_child_out_t out = message("", "", 0);
        out.fds[out.header.fd_count++] = pipe_ends[1];
        assert_int_equal(tow_child_send(pair->ends[0], &out), TOW_CHILD_DONE);
    }
    close(pipe_ends[1]);
    tow_child_in_t in = {.accepts_fds = true};
    assert_int_equal(receive(pair, &in), TOW_CHILD_DONE);
    assert_int_equal(write(in.fds[0], "x", 1), 1);
    assert_int_equal(in.fds[1], -1);
    close(in.fds[0]);
    tow_child_in_reset(&in);
    in.accepts_fds = false;
    assert_int_equal(receive(pair, &in), TOW_CHILD_DONE);
    tow_child_in_reset(&in);
    char bytes[2]; /* No copy of the pipe's end is open any more. */
    assert_int_equal(read(pipe_ends[0], bytes, 2), 1);
    assert_int_equal(read(pipe_ends[0], bytes, 2), 0);
    close(pipe_ends[0]);
}

static void statuses_arrive_with_their_message(void **state)
{
    const pair_t *pair = *state;
    tow_status_t status = TOW_ERROR(TOW_NOT_FOUND, "no such thing");
    tow_child_out_t out = tow_child_out(&protocol, REPLY);
    tow_child_out_set_status(&out, status);
    assert_int_equal(tow_child_send(pair->ends[0], &out), TOW_CHILD_DONE);
    tow_status_release(status);
    tow_child_in_t in = {0};
    assert_int_equal(receive(pair, &in), TOW_CHILD_DONE);
    status = tow_child_in_status(&in);
    assert_int_equal(tow_status_code(status), TOW_NOT_FOUND);
    assert_string_equal(tow_status_message(status), "no such thing");
    tow_status_release(status);
    in.header.code = 99;
    status = tow_child_in_status(&in);
    assert_int_equal(tow_status_code(status), TOW_INTERNAL);
    tow_status_release(status);
    tow_child_in_reset(&in);
}

static void closed_socket_is_a_result(void **state)
{
    pair_t *pair = *state;
    tow_child_out_t out = message("one", "bytes", 5);
    tow_child_in_t in = {0};
    assert_int_equal(tow_child_send(pair->ends[0], &out), TOW_CHILD_DONE);
    const tow_child_header_t cut = {.magic = protocol.magic, .type = REPLY};
    assert_int_equal(write(pair->ends[0], &cut, sizeof(cut) / 2),
                     sizeof(cut) / 2);
    close(pair->ends[0]);
    pair->ends[0] = -1;
    assert_int_equal(receive(pair, &in), TOW_CHILD_DONE);
    tow_child_in_reset(&in);
    assert_int_equal(receive(pair, &in), TOW_CHILD_CLOSED);
    tow_child_in_reset(&in);
    out.done_count = 0;
    assert_int_equal(tow_child_send(pair->ends[1], &out), TOW_CHILD_CLOSED);
}

/* A size above the limit would allocate unlimited memory. */
static void headers_that_break_the_protocol_are_malformed(void **state)
{
    const pair_t *pair = *state;
    const uint32_t magic = protocol.magic;
    const tow_child_header_t wrong[] = {
        {.magic = 7, .type = REPLY},
        {.magic = magic, .type = 0},
        {.magic = magic, .type = TYPE_COUNT},
        {.magic = magic, .type = REPLY, .fd_count = TOW_CHILD_FD_COUNT_MAX + 1},
        {.magic = magic, .type = REPLY, .sizes = {101}},
        {.magic = magic, .type = REPLY, .sizes = {0, UINT64_MAX}},
        {.magic = magic, .type = REPLY, .sizes = {0, 0, SIZE_MAX_LARGE + 1}},
        {.magic = magic, .type = REQUEST, .sizes = {17}},
        {.magic = magic, .type = REQUEST, .sizes = {0, 1}},
    };
    for (size_t i = 0; i < TOW_COUNT_OF(wrong); i++) {
        tow_child_in_t in = {0};
        assert_int_equal(write(pair->ends[0], &wrong[i], sizeof(wrong[i])),
                         sizeof(wrong[i]));
        assert_int_equal(receive(pair, &in), TOW_CHILD_MALFORMED);
        tow_child_in_reset(&in);
    }
}

static tow_exhaust_result_t receive_one(void *context)
{
    const pair_t *pair = context;
    tow_child_out_t out = message("one", "bytes", 5);
    tow_child_in_t in = {0};
    assert_int_equal(tow_child_send(pair->ends[0], &out), TOW_CHILD_DONE);
    const tow_child_transfer_t result = receive(pair, &in);
    tow_child_in_reset(&in);
    if (result == TOW_CHILD_DONE) return TOW_EXHAUST_SUCCEEDED;
    assert_int_equal(result, TOW_CHILD_NO_MEMORY);
    char rest[64]; /* A parent would end the child. */
    assert_int_equal(read(pair->ends[1], rest, sizeof(rest)), 8);
    return TOW_EXHAUST_FAILED;
}

static void exhausted_memory_is_a_result(void **state)
{
    assert_true(tow_test_exhaust(receive_one, *state) > 0);
}

#define CASE(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)

TOW_TEST_MAIN(CASE(messages_arrive_in_order),
              CASE(large_messages_are_sent_in_pieces),
              CASE(descriptors_arrive_where_they_are_accepted),
              CASE(statuses_arrive_with_their_message),
              CASE(closed_socket_is_a_result),
              CASE(headers_that_break_the_protocol_are_malformed),
              CASE(exhausted_memory_is_a_result))
