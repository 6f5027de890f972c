/* Two state machines in one process: every byte between them can be delayed,
 * split, flipped or replayed. */
#include "base/testing.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "wire/frame.h"
#include "wire/handshake.h"
#include "wire/message.h"

#define STREAM_BYTES_MAX 2048

/* What one side sent so far. */
typedef struct stream {
    uint8_t bytes[STREAM_BYTES_MAX];
    size_t count;
    size_t delivered;
} stream_t;

typedef struct side {
    tow_handshake_options_t options;
    tow_handshake_t *machine; /* owned */
    tow_handshake_state_t state;
    stream_t sent;
} side_t;

typedef struct pair {
    tow_security_t security[2]; /* indexed by tow_side_t */
    side_t sides[2];
} pair_t;

static void init_pair(pair_t *pair)
{
    memset(pair, 0, sizeof(*pair));
    for (int i = 0; i < 2; i++) {
        tow_handshake_options_t *options = &pair->sides[i].options;
        pair->security[i].has_token = true;
        memset(pair->security[i].token.bytes, 0x5a, TOW_TOKEN_SIZE);
        options->side = (tow_side_t)i;
        options->security = &pair->security[i];
        options->self.incarnation = 100 + (uint64_t)i;
        options->self.features = i == 0 ? 0xf0f : 0xff0;
        snprintf(options->self.name, sizeof(options->self.name), "%s",
                 i == 0 ? "worker/3" : "controller");
        snprintf(options->self.software, sizeof(options->self.software),
                 "towpath test");
        memset(options->nonce, 0x10 + i, TOW_NONCE_SIZE);
        options->peer_address = i == 0 ? "tcp:127.0.0.1:7000" : "unix:x";
    }
}

static void collect(side_t *side)
{
    const uint8_t *bytes;
    size_t count;
    tow_handshake_take_output(side->machine, &bytes, &count);
    assert_true(count <= STREAM_BYTES_MAX - side->sent.count);
    memcpy(side->sent.bytes + side->sent.count, bytes, count);
    side->sent.count += count;
}

static void start_pair(pair_t *pair)
{
    for (int i = 0; i < 2; i++) {
        side_t *side = &pair->sides[i];
        assert_null(tow_handshake_create(&side->options, &side->machine));
        side->state = TOW_HANDSHAKE_MORE;
        side->sent.count = side->sent.delivered = 0;
        collect(side);
    }
}

static void stop_pair(pair_t *pair)
{
    for (int i = 0; i < 2; i++)
        tow_handshake_destroy(pair->sides[i].machine);
}

/* Gives `to` the next bytes of `from`, at most `piece` of them. Returns whether
 * there were any. */
static bool deliver(side_t *from, side_t *to, size_t piece)
{
    size_t left = from->sent.count - from->sent.delivered;
    if (left == 0 || to->state != TOW_HANDSHAKE_MORE) return false;
    size_t count = left < piece ? left : piece, consumed;
    to->state = tow_handshake_feed(
        to->machine, from->sent.bytes + from->sent.delivered, count, &consumed);
    assert_true(consumed <= count);
    if (to->state == TOW_HANDSHAKE_MORE) assert_int_equal(consumed, count);
    from->sent.delivered += consumed;
    collect(to);
    return true;
}

/* Runs until neither side makes progress. */
static void run_pair(pair_t *pair, size_t piece)
{
    side_t *dialler = &pair->sides[0], *listener = &pair->sides[1];
    while (deliver(dialler, listener, piece) ||
           deliver(listener, dialler, piece))
        continue;
}

static void expect_done(const pair_t *pair)
{
    for (int i = 0; i < 2; i++) {
        const side_t *side = &pair->sides[i], *other = &pair->sides[!i];
        assert_int_equal(side->state, TOW_HANDSHAKE_DONE);
        const tow_identity_t *peer = tow_handshake_peer(side->machine);
        assert_string_equal(peer->name, other->options.self.name);
        assert_string_equal(peer->software, other->options.self.software);
        assert_true(peer->incarnation == other->options.self.incarnation);
        assert_true(peer->features == 0xf00);
    }
}

static void expect_failed(const side_t *side, tow_code_t code,
                          const char *words)
{
    assert_int_equal(side->state, TOW_HANDSHAKE_FAILED);
    tow_status_t error = tow_handshake_error(side->machine);
    const char *message = tow_status_message(error);
    if (tow_status_code(error) != code || strstr(message, words) == NULL)
        fail_msg("no '%s' in %s: %s", words,
                 tow_code_name(tow_status_code(error)), message);
    assert_null(strchr(message, '\n'));
    assert_null(strchr(message, '\x1b'));
    tow_status_release(error);
}

/* -- Success -------------------------------------------------------- */

static void sides_find_each_other_however_bytes_are_cut(void **state)
{
    static const size_t pieces[] = {1, 2, 7, 8, 12, 13, 100, STREAM_BYTES_MAX};
    for (size_t i = 0; i < TOW_COUNT_OF(pieces); i++) {
        pair_t pair;
        init_pair(&pair);
        start_pair(&pair);
        run_pair(&pair, pieces[i]);
        expect_done(&pair);
        stop_pair(&pair);
    }
}

static void bytes_behind_the_handshake_are_left(void **state)
{
    pair_t pair;
    init_pair(&pair);
    start_pair(&pair);
    side_t *dialler = &pair.sides[0], *listener = &pair.sides[1];
    deliver(dialler, listener, STREAM_BYTES_MAX);
    deliver(listener, dialler, STREAM_BYTES_MAX);
    /* Frames of the session right behind the Proof and the Welcome. */
    memset(dialler->sent.bytes + dialler->sent.count, 0xee, 5);
    dialler->sent.count += 5;
    deliver(dialler, listener, STREAM_BYTES_MAX);
    memset(listener->sent.bytes + listener->sent.count, 0xee, 9);
    listener->sent.count += 9;
    deliver(listener, dialler, STREAM_BYTES_MAX);
    expect_done(&pair);
    assert_int_equal(dialler->sent.count - dialler->sent.delivered, 5);
    assert_int_equal(listener->sent.count - listener->sent.delivered, 9);
    stop_pair(&pair);
}

/* The last 32 bytes of a side's Hello or Proof, as hexadecimal digits. */
static void last_proof(const side_t *side, char digits[65])
{
    const uint8_t *proof = side->sent.bytes + side->sent.count - TOW_PROOF_SIZE;
    for (size_t i = 0; i < TOW_PROOF_SIZE; i++)
        snprintf(digits + 2 * i, 3, "%02x", proof[i]);
}

/* The test vector of docs/wire.md. */
static void proofs_are_the_documented_ones(void **state)
{
    pair_t pair;
    char digits[65];
    init_pair(&pair);
    start_pair(&pair);
    side_t *dialler = &pair.sides[0], *listener = &pair.sides[1];
    deliver(dialler, listener, STREAM_BYTES_MAX);
    last_proof(listener, digits);
    assert_string_equal(digits, "d560e81d45f49d894c1be05cb6c05fdc"
                                "76d2097896a950ffa7d94d9dc6380294");
    deliver(listener, dialler, STREAM_BYTES_MAX);
    last_proof(dialler, digits);
    assert_string_equal(digits, "545fbf497e17a9f4143958450bd2157a"
                                "6bbecf178e87d1261450fd4ed6560828");
    stop_pair(&pair);
}

static void same_binding_on_both_sides_is_accepted(void **state)
{
    pair_t pair;
    init_pair(&pair);
    for (int i = 0; i < 2; i++) {
        pair.sides[i].options.has_binding = true;
        memset(pair.sides[i].options.binding, 0x77, TOW_TLS_BINDING_SIZE);
    }
    start_pair(&pair);
    run_pair(&pair, 64);
    expect_done(&pair);
    stop_pair(&pair);
}

static void expected_names_that_fit_are_accepted(void **state)
{
    pair_t pair;
    init_pair(&pair);
    pair.sides[0].options.expected_name = "controller";
    pair.sides[1].options.expected_name = "worker/3";
    start_pair(&pair);
    run_pair(&pair, 64);
    expect_done(&pair);
    stop_pair(&pair);
}

/* -- Refused peers ------------------------------------------------------- */

static void wrong_token_is_refused_by_the_dialler_first(void **state)
{
    pair_t pair;
    init_pair(&pair);
    pair.security[1].token.bytes[31] ^= 1;
    start_pair(&pair);
    run_pair(&pair, 64);
    expect_failed(&pair.sides[0], TOW_UNAUTHENTICATED,
                  "calls itself controller does not have our token");
    expect_failed(&pair.sides[1], TOW_PERMISSION_DENIED,
                  "UNAUTHENTICATED \"authentication failed\"");
    stop_pair(&pair);
}

/* A peer without the token: it gets the listener's Hello, sends an invalid
 * proof, and gets a reason that reveals nothing about the token. */
static void made_up_proof_is_refused(void **state)
{
    pair_t pair;
    init_pair(&pair);
    start_pair(&pair);
    side_t *dialler = &pair.sides[0], *listener = &pair.sides[1];
    deliver(dialler, listener, STREAM_BYTES_MAX);
    uint8_t made_up[TOW_PROOF_SIZE] = {0};
    tow_msg_proof_t proof = TOW_MSG_PROOF_INIT;
    proof.proof = (ProtobufCBinaryData){sizeof(made_up), made_up};
    uint8_t *frame = dialler->sent.bytes + dialler->sent.count;
    size_t size =
        tow_message_encode(&proof.base, frame + TOW_FRAME_HEADER_SIZE);
    tow_frame_seal(frame, TOW_MESSAGE_PROOF, (uint32_t)size);
    dialler->sent.count += TOW_FRAME_HEADER_SIZE + size;
    deliver(dialler, listener, STREAM_BYTES_MAX);
    expect_failed(listener, TOW_UNAUTHENTICATED,
                  "calls itself worker/3 does not have our token; give both "
                  "sides the same token file");
    deliver(listener, dialler, STREAM_BYTES_MAX);
    expect_failed(dialler, TOW_PERMISSION_DENIED, "authentication failed");
    stop_pair(&pair);
}

/* The listener's own proof, sent back to it, is not the dialler's. */
static void reflected_proof_is_refused(void **state)
{
    pair_t pair;
    init_pair(&pair);
    start_pair(&pair);
    side_t *dialler = &pair.sides[0], *listener = &pair.sides[1];
    deliver(dialler, listener, STREAM_BYTES_MAX);
    /* The last field of its Hello is the proof: 32 bytes at the end. */
    uint8_t *frame = dialler->sent.bytes + dialler->sent.count;
    frame[12] = 0x0a;
    frame[13] = TOW_PROOF_SIZE;
    memcpy(frame + 14,
           listener->sent.bytes + listener->sent.count - TOW_PROOF_SIZE,
           TOW_PROOF_SIZE);
    tow_frame_seal(frame, TOW_MESSAGE_PROOF, 2 + TOW_PROOF_SIZE);
    dialler->sent.count += TOW_FRAME_HEADER_SIZE + 2 + TOW_PROOF_SIZE;
    deliver(dialler, listener, STREAM_BYTES_MAX);
    expect_failed(listener, TOW_UNAUTHENTICATED, "does not have our token");
    stop_pair(&pair);
}

static void dialler_that_meets_a_dialler_stops(void **state)
{
    pair_t pair;
    init_pair(&pair);
    pair.sides[1].options.side = TOW_SIDE_DIALLER;
    start_pair(&pair);
    run_pair(&pair, 64);
    expect_failed(&pair.sides[1], TOW_INVALID_ARGUMENT,
                  "a proof of a wrong size");
    expect_failed(&pair.sides[0], TOW_INVALID_ARGUMENT,
                  "a proof of a wrong size");
    stop_pair(&pair);
}

static void replayed_transcript_is_refused(void **state)
{
    pair_t pair;
    init_pair(&pair);
    start_pair(&pair);
    run_pair(&pair, 64);
    expect_done(&pair);
    stop_pair(&pair);

    for (int replayed = 0; replayed < 2; replayed++) {
        side_t victim = {.options = pair.sides[!replayed].options,
                         .state = TOW_HANDSHAKE_MORE};
        victim.options.nonce[0] ^= 0x80; /* fresh, as it always is */
        assert_null(tow_handshake_create(&victim.options, &victim.machine));
        side_t attacker = pair.sides[replayed];
        attacker.sent.delivered = 0;
        while (deliver(&attacker, &victim, 64))
            continue;
        expect_failed(&victim, TOW_UNAUTHENTICATED, "does not have our token");
        tow_handshake_destroy(victim.machine);
    }
}

static void other_binding_is_refused(void **state)
{
    for (int missing = 0; missing < 2; missing++) {
        pair_t pair;
        init_pair(&pair);
        pair.sides[0].options.has_binding = true;
        pair.sides[1].options.has_binding = missing == 0;
        pair.sides[1].options.binding[5] = 1;
        start_pair(&pair);
        run_pair(&pair, 64);
        expect_failed(&pair.sides[0], TOW_UNAUTHENTICATED,
                      "or a man in the middle intercepts");
        assert_int_equal(pair.sides[1].state, TOW_HANDSHAKE_FAILED);
        stop_pair(&pair);
    }
}

static void peer_of_another_name_is_refused(void **state)
{
    for (int i = 0; i < 2; i++) {
        pair_t pair;
        init_pair(&pair);
        pair.sides[i].options.expected_name = "worker/4";
        start_pair(&pair);
        run_pair(&pair, 64);
        expect_failed(&pair.sides[i], TOW_FAILED_PRECONDITION,
                      i == 0 ? "expected peer worker/4, found controller"
                             : "expected peer worker/4, found worker/3");
        expect_failed(&pair.sides[!i], TOW_PERMISSION_DENIED,
                      "expected a peer of another name");
        stop_pair(&pair);
    }
}

static void set_text(char *text, size_t capacity, const char *value)
{
    snprintf(text, capacity, "%s", value);
}

static void handshake_without_a_token_or_a_name_is_not_begun(void **state)
{
    pair_t pair;
    init_pair(&pair);
    tow_handshake_t *machine;
    tow_handshake_options_t *options = &pair.sides[0].options;
    pair.security[0].has_token = false;
    tow_status_t status = tow_handshake_create(options, &machine);
    assert_int_equal(tow_status_code(status), TOW_INVALID_ARGUMENT);
    assert_null(machine);
    tow_status_release(status);
    pair.security[0].has_token = true;
    static const char *const names[] = {"", "a b", "w\xc3\xb6rker", "a\nb"};
    for (size_t i = 0; i < TOW_COUNT_OF(names); i++) {
        set_text(options->self.name, sizeof(options->self.name), names[i]);
        status = tow_handshake_create(options, &machine);
        assert_int_equal(tow_status_code(status), TOW_INVALID_ARGUMENT);
        tow_status_release(status);
    }
    memset(options->self.name, 'a', sizeof(options->self.name)); /* no NUL */
    status = tow_handshake_create(options, &machine);
    assert_int_equal(tow_status_code(status), TOW_INVALID_ARGUMENT);
    tow_status_release(status);
    set_text(options->self.name, sizeof(options->self.name), "a");
    set_text(options->self.software, sizeof(options->self.software), "\t");
    status = tow_handshake_create(options, &machine);
    assert_int_equal(tow_status_code(status), TOW_INVALID_ARGUMENT);
    tow_status_release(status);
}

/* -- Other protocols, versions and corrupt bytes --------------------------- */

static void feed_listener(const void *bytes, size_t count, tow_code_t code,
                          const char *words, bool answered)
{
    pair_t pair;
    init_pair(&pair);
    start_pair(&pair);
    side_t *listener = &pair.sides[1];
    size_t consumed;
    listener->state =
        tow_handshake_feed(listener->machine, bytes, count, &consumed);
    assert_true(consumed <= count);
    expect_failed(listener, code, words);
    collect(listener);
    assert_int_equal(listener->sent.count > 0, answered);
    stop_pair(&pair);
}

#define FEED(text, code, words, answered) \
    feed_listener(text, sizeof(text) - 1, code, words, answered)

static void other_protocols_are_named_and_get_no_answer(void **state)
{
    FEED("GET / HTTP/1.1\r\nHost: x\r\n", TOW_INVALID_ARGUMENT,
         "but, it seems, HTTP: it began with \"GET / HTTP/1.1\\r\\nHost: "
         "x\\r\\n\"",
         false);
    FEED("HTTP/1.1 400 Bad Request\r\n", TOW_INVALID_ARGUMENT, "seems, HTTP",
         false);
    FEED("PRI * HTTP/2.0\r\n\r\nSM", TOW_INVALID_ARGUMENT, "seems, HTTP",
         false);
    FEED("SSH-2.0-OpenSSH_9.2", TOW_INVALID_ARGUMENT, "seems, SSH", false);
    FEED("\x16\x03\x01\x02\x00\x01", TOW_INVALID_ARGUMENT,
         "one side has a tcp: and the other a tls: address", false);
    FEED("\x15\x03\x01\x00\x02\x02", TOW_INVALID_ARGUMENT, "seems, TLS", false);
    FEED("\x1b[2J", TOW_INVALID_ARGUMENT, "it began with \"\\x1b[2J\"", false);
    FEED("towpath\x01", TOW_INVALID_ARGUMENT, "does not speak Towpath: it",
         false);
    FEED("TOWPATX", TOW_INVALID_ARGUMENT, "\"TOWPATX\"", false);
    FEED("X", TOW_INVALID_ARGUMENT, "\"X\"", false);
    char much[5000];
    memset(much, 'x', sizeof(much));
    feed_listener(much, sizeof(much), TOW_INVALID_ARGUMENT, "xxx", false);
}

static void other_versions_are_named_on_both_sides(void **state)
{
    FEED("TOWPATH\x02", TOW_FAILED_PRECONDITION,
         "the peer speaks protocol version 2 and we speak 1", true);
    FEED("TOWPATH\x00", TOW_FAILED_PRECONDITION, "version 0 and we speak 1",
         true);
    FEED("TOWPATH\xff", TOW_FAILED_PRECONDITION, "version 255 and we speak 1",
         true);
    /* The dialler detects it too, from the preface. */
    pair_t pair;
    init_pair(&pair);
    start_pair(&pair);
    pair.sides[0].sent.bytes[7] = 9;
    run_pair(&pair, 64);
    expect_failed(&pair.sides[1], TOW_FAILED_PRECONDITION, "version 9");
    expect_failed(&pair.sides[0], TOW_PERMISSION_DENIED,
                  "FAILED_PRECONDITION \"protocol version 1 here (towpath "
                  "test), not 9\"");
    stop_pair(&pair);
}

/* A preface and one frame, as a listener would get it. */
static void feed_frame(uint16_t type, const void *payload, uint32_t size,
                       tow_code_t code, const char *words)
{
    uint8_t bytes[TOW_HANDSHAKE_BYTES_MAX * 2];
    memcpy(bytes, "TOWPATH\x01", 8);
    memcpy(bytes + 8 + TOW_FRAME_HEADER_SIZE, payload, size);
    tow_frame_seal(bytes + 8, type, size);
    feed_listener(bytes, 8 + TOW_FRAME_HEADER_SIZE + size, code, words, true);
}

static void unexpected_and_malformed_messages_are_refused(void **state)
{
    feed_frame(TOW_MESSAGE_SEQUENCE, "", 0, TOW_INVALID_ARGUMENT,
               "expected Hello and got a message of type 100 (Sequence)");
    feed_frame(TOW_MESSAGE_PROOF, "", 0, TOW_INVALID_ARGUMENT,
               "expected Hello and got a message of type 2 (Proof)");
    feed_frame(60000, "", 0, TOW_INVALID_ARGUMENT, "type 60000 (?)");
    feed_frame(TOW_MESSAGE_HELLO, "", 0, TOW_INVALID_ARGUMENT,
               "a nonce of a wrong size");
    feed_frame(TOW_MESSAGE_HELLO, "\x0a\xff", 2, TOW_INVALID_ARGUMENT,
               "message Hello, field nonce: malformed length");
    static const uint8_t big[TOW_HANDSHAKE_BYTES_MAX];
    feed_frame(TOW_MESSAGE_HELLO, big, TOW_HANDSHAKE_BYTES_MAX - 11,
               TOW_INVALID_ARGUMENT, "exceeds the limit of 4084 bytes");
}

static void feed_hello(const char *name, const char *software,
                       size_t nonce_size, size_t proof_size, const char *words)
{
    uint8_t bytes[512], zeros[64] = {0};
    tow_msg_hello_t hello = TOW_MSG_HELLO_INIT;
    hello.nonce = (ProtobufCBinaryData){nonce_size, zeros};
    hello.proof = (ProtobufCBinaryData){proof_size, zeros};
    hello.name = (char *)name;
    hello.software = (char *)software;
    size_t size = tow_message_encode(&hello.base, bytes);
    feed_frame(TOW_MESSAGE_HELLO, bytes, (uint32_t)size, TOW_INVALID_ARGUMENT,
               words);
}

static void impossible_identities_are_refused(void **state)
{
    feed_hello("", "", 32, 0, "an invalid name");
    feed_hello("a b", "", 32, 0, "an invalid name");
    feed_hello("a\x1b[31m", "", 32, 0, "an invalid name");
    feed_hello("0123456789012345678901234567890123456789012345678901234567890"
               "123",
               "", 32, 0, "field name: too long");
    feed_hello("a", "\x1b", 32, 0, "unprintable characters");
    feed_hello("a", "0123456789012345678901234567890123", 32, 0,
               "field software: too long");
    feed_hello("a", "", 31, 0, "a nonce of a wrong size");
    feed_hello("a", "", 33, 0, "field nonce: too long");
    feed_hello("a", "", 32, 32, "a proof of a wrong size");
}

static void refusal_of_the_peer_is_quoted_and_bounded(void **state)
{
    uint8_t bytes[512];
    tow_msg_refuse_t refuse = TOW_MSG_REFUSE_INIT;
    refuse.code = 4242;
    refuse.reason = "go\naway \x1b[31m\"now\"";
    size_t size = tow_message_encode(&refuse.base, bytes + 20);
    memcpy(bytes, "TOWPATH\x01", 8);
    tow_frame_seal(bytes + 8, TOW_MESSAGE_REFUSE, (uint32_t)size);
    feed_listener(bytes, 20 + size, TOW_PERMISSION_DENIED,
                  "the peer refused us: UNKNOWN \"go\\naway "
                  "\\x1b[31m\\\"now\\\"\"",
                  false);
    char longer[TOW_REFUSE_REASON_MAX + 2] = {0};
    memset(longer, 'a', TOW_REFUSE_REASON_MAX + 1);
    refuse.reason = longer;
    size = tow_message_encode(&refuse.base, bytes + 20);
    tow_frame_seal(bytes + 8, TOW_MESSAGE_REFUSE, (uint32_t)size);
    feed_listener(bytes, 20 + size, TOW_INVALID_ARGUMENT,
                  "message Refuse, field reason: too long", true);
}

static void peer_that_closes_early_is_named_by_what_was_due(void **state)
{
    static const char *const due[2][3] = {
        {"its first eight bytes were due", "its Hello was due",
         "its Welcome was due"},
        {"its first eight bytes were due", "its Hello was due",
         "its Proof was due"},
    };
    pair_t whole;
    init_pair(&whole);
    start_pair(&whole);
    run_pair(&whole, 64);
    expect_done(&whole);
    stop_pair(&whole);
    for (int i = 0; i < 2; i++) {
        const stream_t *from = &whole.sides[!i].sent;
        size_t seen = 0;
        for (size_t cut = 0; cut < from->count; cut++) {
            side_t victim = {.options = whole.sides[i].options};
            assert_null(tow_handshake_create(&victim.options, &victim.machine));
            size_t consumed;
            victim.state =
                tow_handshake_feed(victim.machine, from->bytes, cut, &consumed);
            assert_int_equal(victim.state, TOW_HANDSHAKE_MORE);
            victim.state = tow_handshake_end(victim.machine);
            tow_status_t error = tow_handshake_error(victim.machine);
            const char *message = tow_status_message(error);
            while (seen < 2 && strstr(message, due[i][seen]) == NULL)
                seen++;
            assert_non_null(strstr(message, due[i][seen]));
            tow_status_release(error);
            expect_failed(&victim, TOW_UNAVAILABLE, "closed the connection");
            tow_handshake_destroy(victim.machine);
        }
        assert_int_equal(seen, 2);
    }
}

/* -- Man in the middle ----------------------------------------------------- */

typedef enum turn {
    TURN_BIT,        /* corruption: the checksum stays */
    TURN_AND_RESEAL, /* forgery: the checksum is recomputed */
} turn_t;

/* Seals the frame anew in which byte `at` lies, if it lies in one. */
static void reseal(stream_t *stream, size_t at)
{
    size_t frame = TOW_PREFACE_SIZE;
    while (frame + TOW_FRAME_HEADER_SIZE <= stream->count) {
        uint8_t *bytes = stream->bytes + frame;
        uint32_t size = bytes[0] | (uint32_t)bytes[1] << 8;
        size_t end = frame + TOW_FRAME_HEADER_SIZE + size;
        if (at >= frame + TOW_FRAME_HEADER_SIZE && at < end)
            tow_frame_seal(bytes, (uint16_t)(bytes[4] | bytes[5] << 8), size);
        frame = end;
    }
}

/* Runs a pair with one flipped bit in the bytes of `turned`. If both complete,
 * the identities that they know are correct. */
static void run_turned(int turned, size_t bit, turn_t turn)
{
    pair_t pair;
    init_pair(&pair);
    start_pair(&pair);
    side_t *from = &pair.sides[turned], *to = &pair.sides[!turned];
    bool done = false, progress = true;
    while (progress) {
        progress = deliver(to, from, STREAM_BYTES_MAX);
        if (!done && from->sent.count > bit / 8) {
            from->sent.bytes[bit / 8] ^= (uint8_t)(1u << bit % 8);
            if (turn == TURN_AND_RESEAL) reseal(&from->sent, bit / 8);
            done = true;
        }
        if (deliver(from, to, STREAM_BYTES_MAX)) progress = true;
    }
    assert_true(done);
    /* A side that still waits now sees the connection close. */
    for (int i = 0; i < 2; i++) {
        if (pair.sides[i].state == TOW_HANDSHAKE_MORE)
            pair.sides[i].state = tow_handshake_end(pair.sides[i].machine);
    }
    assert_true(pair.sides[0].state == TOW_HANDSHAKE_FAILED ||
                pair.sides[1].state == TOW_HANDSHAKE_FAILED);
    stop_pair(&pair);
}

static void every_turned_bit_stops_the_handshake(void **state)
{
    pair_t whole;
    init_pair(&whole);
    start_pair(&whole);
    run_pair(&whole, 64);
    expect_done(&whole);
    stop_pair(&whole);
    for (int i = 0; i < 2; i++) {
        size_t bits = whole.sides[i].sent.count * 8;
        for (size_t bit = 0; bit < bits; bit++) {
            run_turned(i, bit, TURN_BIT);
            run_turned(i, bit, TURN_AND_RESEAL);
        }
    }
}

/* -- Memory ---------------------------------------------------------------- */

static tow_exhaust_result_t shake_hands_with_little_memory(void *context)
{
    pair_t pair;
    init_pair(&pair);
    tow_exhaust_result_t result = TOW_EXHAUST_FAILED;
    bool created = true;
    for (int i = 0; i < 2; i++) {
        side_t *side = &pair.sides[i];
        tow_status_t status =
            tow_handshake_create(&side->options, &side->machine);
        if (status == TOW_OK) {
            collect(side);
        } else {
            created = false;
            assert_int_equal(tow_status_code(status), TOW_RESOURCE_EXHAUSTED);
            tow_status_release(status);
        }
    }
    if (created) {
        run_pair(&pair, 64);
        if (pair.sides[0].state == TOW_HANDSHAKE_DONE &&
            pair.sides[1].state == TOW_HANDSHAKE_DONE)
            result = TOW_EXHAUST_SUCCEEDED;
        for (int i = 0; i < 2; i++) {
            if (pair.sides[i].state != TOW_HANDSHAKE_FAILED) continue;
            tow_status_release(tow_handshake_error(pair.sides[i].machine));
        }
    }
    stop_pair(&pair);
    return result;
}

static void refused_memory_ends_the_handshake_and_nothing_leaks(void **state)
{
    assert_true(tow_test_exhaust(shake_hands_with_little_memory, NULL) >= 4);
}

TOW_TEST_MAIN(
    cmocka_unit_test(sides_find_each_other_however_bytes_are_cut),
    cmocka_unit_test(bytes_behind_the_handshake_are_left),
    cmocka_unit_test(proofs_are_the_documented_ones),
    cmocka_unit_test(same_binding_on_both_sides_is_accepted),
    cmocka_unit_test(expected_names_that_fit_are_accepted),
    cmocka_unit_test(wrong_token_is_refused_by_the_dialler_first),
    cmocka_unit_test(made_up_proof_is_refused),
    cmocka_unit_test(reflected_proof_is_refused),
    cmocka_unit_test(dialler_that_meets_a_dialler_stops),
    cmocka_unit_test(replayed_transcript_is_refused),
    cmocka_unit_test(other_binding_is_refused),
    cmocka_unit_test(peer_of_another_name_is_refused),
    cmocka_unit_test(handshake_without_a_token_or_a_name_is_not_begun),
    cmocka_unit_test(other_protocols_are_named_and_get_no_answer),
    cmocka_unit_test(other_versions_are_named_on_both_sides),
    cmocka_unit_test(unexpected_and_malformed_messages_are_refused),
    cmocka_unit_test(impossible_identities_are_refused),
    cmocka_unit_test(refusal_of_the_peer_is_quoted_and_bounded),
    cmocka_unit_test(peer_that_closes_early_is_named_by_what_was_due),
    cmocka_unit_test(every_turned_bit_stops_the_handshake),
    cmocka_unit_test(refused_memory_ends_the_handshake_and_nothing_leaks))
