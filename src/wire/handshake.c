/* One state machine for both sides. It consumes exactly the bytes of the
 * handshake, one unit (the preface, then frames) at a time, and replies to
 * each.
 *
 * The listener proves itself first, so a dialler never sends a proof to an
 * unauthenticated peer. Each side reveals only a name, a version and a proof
 * that is valid on no other connection. */
#include "wire/handshake.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/arena.h"
#include "base/assert.h"
#include "wire/bytes_impl.h"
#include "wire/frame.h"
#include "wire/message.h"
#include "wire/text_impl.h"
#include "wire/tuning.h"

#define MAGIC_SIZE (TOW_PREFACE_SIZE - 1)
static const uint8_t magic[MAGIC_SIZE] = {'T', 'O', 'W', 'P', 'A', 'T', 'H'};

/* The prefix separates these proofs from those of other protocols. */
static const char proof_label[] = "towpath handshake proof";

/* A preface, a Hello or a Refuse, and a Proof or a Welcome: below 500. */
#define OUTPUT_BYTES_MAX 1024
/* Bytes of another protocol shown in an error. */
#define STRANGE_BYTES_MAX 32
#define PAYLOAD_BYTES_MAX (TOW_HANDSHAKE_BYTES_MAX - TOW_FRAME_HEADER_SIZE)

typedef enum step {
    STEP_PREFACE,
    STEP_HELLO,
    STEP_ANSWER, /* listener: expects Proof; dialler: expects Welcome */
    STEP_DONE,
    STEP_FAILED,
} step_t;

struct tow_handshake {
    tow_handshake_options_t options; /* its pointers are lent */
    step_t step;
    bool preface_sent;
    tow_identity_t peer; /* as claimed; from DONE on, features of both */
    uint8_t peer_nonce[TOW_NONCE_SIZE];
    tow_status_t error; /* owned; set in STEP_FAILED */
    tow_arena_t arena;  /* of the current message */
    size_t output_count;
    size_t input_count;
    size_t input_needed; /* size of the current unit, as far as is known */
    uint8_t output[OUTPUT_BYTES_MAX];
    uint8_t input[TOW_HANDSHAKE_BYTES_MAX];
};

/* -- Sending -------------------------------------------------------------- */

static void send_preface(tow_handshake_t *handshake)
{
    TOW_ASSERT(!handshake->preface_sent);
    uint8_t *room = handshake->output + handshake->output_count;
    memcpy(room, magic, MAGIC_SIZE);
    room[MAGIC_SIZE] = TOW_PROTOCOL_MAJOR;
    handshake->output_count += TOW_PREFACE_SIZE;
    handshake->preface_sent = true;
}

static void send(tow_handshake_t *handshake, tow_message_type_t type,
                 const tow_body_t *body)
{
    if (!handshake->preface_sent) send_preface(handshake);
    size_t size = tow_message_size(body);
    size_t room = OUTPUT_BYTES_MAX - handshake->output_count;
    TOW_ASSERT(size + TOW_FRAME_HEADER_SIZE <= room);
    uint8_t *frame = handshake->output + handshake->output_count;
    tow_message_encode(body, frame + TOW_FRAME_HEADER_SIZE);
    tow_frame_seal(frame, (uint16_t)type, (uint32_t)size);
    handshake->output_count += TOW_FRAME_HEADER_SIZE + size;
}

/* -- Failures -------------------------------------------------------------- */

static void fail(tow_handshake_t *handshake, tow_status_t take_error)
{
    const char *address = handshake->options.peer_address;
    TOW_ASSERT(handshake->error == TOW_OK);
    handshake->step = STEP_FAILED;
    handshake->error = tow_status_annotate(
        take_error, "handshake with %s", address != NULL ? address : "a peer");
}

/* Fails, and sends `reason` to the peer; it must not contain a secret. */
static void refuse(tow_handshake_t *handshake, tow_status_t take_error,
                   const char *reason)
{
    tow_msg_refuse_t message = TOW_MSG_REFUSE_INIT;
    char bounded[TOW_REFUSE_REASON_MAX + 1];
    snprintf(bounded, sizeof(bounded), "%s", reason);
    message.code = (uint32_t)tow_status_code(take_error);
    message.reason = bounded;
    send(handshake, TOW_MESSAGE_REFUSE, &message.base);
    fail(handshake, take_error);
}

/* The peer sent malformed bytes: the message may be sent to it. */
static void refuse_bytes(tow_handshake_t *handshake, tow_status_t take_error)
{
    char reason[TOW_REFUSE_REASON_MAX + 1];
    snprintf(reason, sizeof(reason), "%s", tow_status_message(take_error));
    refuse(handshake, take_error, reason);
}

/* -- Proofs --------------------------------------------------------------- */

/* The authenticated bytes, appended in order. */
typedef struct claim {
    size_t count;
    uint8_t bytes[512];
} claim_t;

static void claim_bytes(claim_t *claim, const void *bytes, size_t count)
{
    TOW_ASSERT(count <= sizeof(claim->bytes) - claim->count);
    memcpy(claim->bytes + claim->count, bytes, count);
    claim->count += count;
}

static void claim_u64(claim_t *claim, uint64_t number)
{
    uint8_t bytes[8];
    tow_store_u64(bytes, number);
    claim_bytes(claim, bytes, sizeof(bytes));
}

/* The length prefix makes the concatenation unambiguous. */
static void claim_text(claim_t *claim, const char *text)
{
    size_t length = strlen(text);
    claim_u64(claim, length);
    claim_bytes(claim, text, length);
}

static void claim_identity(claim_t *claim, const tow_identity_t *identity)
{
    claim_text(claim, identity->name);
    claim_u64(claim, identity->incarnation);
    claim_u64(claim, identity->features);
    claim_text(claim, identity->software);
}

/* The proof of the side `prover`. Both sides compute both. */
static void compute_proof(const tow_handshake_t *handshake, tow_side_t prover,
                          uint8_t proof[TOW_PROOF_SIZE])
{
    const tow_handshake_options_t *options = &handshake->options;
    bool we_dial = options->side == TOW_SIDE_DIALLER;
    claim_t claim = {.count = 0};
    claim_bytes(&claim, proof_label, sizeof(proof_label));
    claim_u64(&claim, prover == TOW_SIDE_DIALLER ? 1 : 2);
    claim_u64(&claim, TOW_PROTOCOL_MAJOR);
    claim_bytes(&claim, we_dial ? options->nonce : handshake->peer_nonce,
                TOW_NONCE_SIZE);
    claim_bytes(&claim, we_dial ? handshake->peer_nonce : options->nonce,
                TOW_NONCE_SIZE);
    claim_identity(&claim, we_dial ? &options->self : &handshake->peer);
    claim_identity(&claim, we_dial ? &handshake->peer : &options->self);
    claim_u64(&claim, options->has_binding ? TOW_TLS_BINDING_SIZE : 0);
    if (options->has_binding)
        claim_bytes(&claim, options->binding, TOW_TLS_BINDING_SIZE);
    unsigned length = 0;
    const uint8_t *made =
        HMAC(EVP_sha256(), options->security->token.bytes, TOW_TOKEN_SIZE,
             claim.bytes, claim.count, proof, &length);
    TOW_ASSERT(made != NULL && length == TOW_PROOF_SIZE);
}

static bool proof_is_right(const tow_handshake_t *handshake, tow_side_t prover,
                           const ProtobufCBinaryData *proof)
{
    uint8_t expected[TOW_PROOF_SIZE];
    if (proof->len != TOW_PROOF_SIZE) return false;
    compute_proof(handshake, prover, expected);
    bool right = CRYPTO_memcmp(expected, proof->data, TOW_PROOF_SIZE) == 0;
    OPENSSL_cleanse(expected, sizeof(expected));
    return right;
}

static void refuse_proof(tow_handshake_t *handshake)
{
    const char *between =
        handshake->options.has_binding
            ? ", or a man in the middle intercepts the connection"
            : "";
    refuse(handshake,
           TOW_ERROR(TOW_UNAUTHENTICATED,
                     "the peer that calls itself %s does not have our token%s; "
                     "give both sides the same token file",
                     handshake->peer.name, between),
           "authentication failed");
}

/* After the proof: compares the name with the expected one. */
static bool peer_is_expected(tow_handshake_t *handshake)
{
    const char *expected = handshake->options.expected_name;
    if (expected == NULL || strcmp(expected, handshake->peer.name) == 0)
        return true;
    refuse(handshake,
           TOW_ERROR(TOW_FAILED_PRECONDITION, "expected peer %s, found %s",
                     expected, handshake->peer.name),
           "expected a peer of another name");
    return false;
}

/* -- The peer's messages -------------------------------------------------- */

static void finish(tow_handshake_t *handshake)
{
    handshake->peer.features &= handshake->options.self.features;
    handshake->step = STEP_DONE;
}

static const char *problem_in_hello(const tow_handshake_t *handshake,
                                    const tow_msg_hello_t *hello)
{
    bool from_listener = handshake->options.side == TOW_SIDE_DIALLER;
    if (hello->nonce.len != TOW_NONCE_SIZE) return "a nonce of a wrong size";
    if (!tow_text_is_name(hello->name, strlen(hello->name),
                          TOW_IDENTITY_NAME_MAX))
        return "an invalid name";
    if (!tow_text_is_plain(hello->software, strlen(hello->software)))
        return "unprintable characters";
    if (hello->proof.len != (from_listener ? TOW_PROOF_SIZE : 0))
        return "a proof of a wrong size";
    return NULL;
}

static bool take_identity(tow_handshake_t *handshake,
                          const tow_msg_hello_t *hello)
{
    const char *problem = problem_in_hello(handshake, hello);
    if (problem != NULL) {
        refuse_bytes(handshake, TOW_ERROR(TOW_INVALID_ARGUMENT,
                                          "the peer's Hello has %s", problem));
        return false;
    }
    tow_identity_t *peer = &handshake->peer;
    snprintf(peer->name, sizeof(peer->name), "%s", hello->name);
    snprintf(peer->software, sizeof(peer->software), "%s", hello->software);
    peer->incarnation = hello->incarnation;
    peer->features = hello->features;
    memcpy(handshake->peer_nonce, hello->nonce.data, TOW_NONCE_SIZE);
    return true;
}

/* Sends our Hello. A listener knows both nonces and adds its proof. */
static void send_hello(tow_handshake_t *handshake)
{
    tow_handshake_options_t *options = &handshake->options;
    uint8_t proof[TOW_PROOF_SIZE];
    tow_msg_hello_t hello = TOW_MSG_HELLO_INIT;
    hello.nonce = (ProtobufCBinaryData){TOW_NONCE_SIZE, options->nonce};
    hello.name = options->self.name;
    hello.incarnation = options->self.incarnation;
    hello.features = options->self.features;
    hello.software = options->self.software;
    if (options->side == TOW_SIDE_LISTENER) {
        compute_proof(handshake, TOW_SIDE_LISTENER, proof);
        hello.proof = (ProtobufCBinaryData){TOW_PROOF_SIZE, proof};
    }
    send(handshake, TOW_MESSAGE_HELLO, &hello.base);
}

static void send_proof(tow_handshake_t *handshake)
{
    uint8_t proof[TOW_PROOF_SIZE];
    tow_msg_proof_t message = TOW_MSG_PROOF_INIT;
    compute_proof(handshake, TOW_SIDE_DIALLER, proof);
    message.proof = (ProtobufCBinaryData){TOW_PROOF_SIZE, proof};
    send(handshake, TOW_MESSAGE_PROOF, &message.base);
}

static void on_hello(tow_handshake_t *handshake, const tow_msg_hello_t *hello)
{
    if (!take_identity(handshake, hello)) return;
    handshake->step = STEP_ANSWER;
    if (handshake->options.side == TOW_SIDE_LISTENER) {
        send_hello(handshake);
        return;
    }
    if (!proof_is_right(handshake, TOW_SIDE_LISTENER, &hello->proof)) {
        refuse_proof(handshake);
        return;
    }
    if (peer_is_expected(handshake)) send_proof(handshake);
}

static void on_proof(tow_handshake_t *handshake, const tow_msg_proof_t *proof)
{
    if (!proof_is_right(handshake, TOW_SIDE_DIALLER, &proof->proof)) {
        refuse_proof(handshake);
        return;
    }
    if (!peer_is_expected(handshake)) return;
    tow_msg_welcome_t welcome = TOW_MSG_WELCOME_INIT;
    send(handshake, TOW_MESSAGE_WELCOME, &welcome.base);
    finish(handshake);
}

/* A Refuse is not authenticated: its text is quoted, and its only effect is
 * that the handshake fails. */
static void on_refuse(tow_handshake_t *handshake,
                      const tow_msg_refuse_t *message)
{
    char quoted[TOW_QUOTED_SIZE(TOW_REFUSE_REASON_MAX)];
    const char *hint = message->code == TOW_UNAUTHENTICATED
                           ? "; do both sides have the same token file?"
                           : "";
    fail(handshake,
         TOW_ERROR(TOW_PERMISSION_DENIED, "the peer refused us: %s %s%s",
                   tow_code_name((tow_code_t)message->code),
                   tow_text_quote(message->reason, strlen(message->reason),
                                  quoted, sizeof(quoted)),
                   hint));
}

/* -- Receiving ------------------------------------------------------------ */

static tow_message_type_t expected_type(const tow_handshake_t *handshake)
{
    if (handshake->step == STEP_HELLO) return TOW_MESSAGE_HELLO;
    return handshake->options.side == TOW_SIDE_LISTENER ? TOW_MESSAGE_PROOF
                                                        : TOW_MESSAGE_WELCOME;
}

static void on_message(tow_handshake_t *handshake, uint32_t type,
                       const tow_body_t *body)
{
    switch (type) {
    case TOW_MESSAGE_HELLO:
        on_hello(handshake, (const tow_msg_hello_t *)body);
        return;
    case TOW_MESSAGE_PROOF:
        on_proof(handshake, (const tow_msg_proof_t *)body);
        return;
    case TOW_MESSAGE_WELCOME: finish(handshake); return;
    case TOW_MESSAGE_REFUSE:
        on_refuse(handshake, (const tow_msg_refuse_t *)body);
        return;
    }
    TOW_UNREACHABLE();
}

static void on_frame(tow_handshake_t *handshake, const tow_frame_t *frame)
{
    tow_message_type_t expected = expected_type(handshake);
    if (frame->type != expected && frame->type != TOW_MESSAGE_REFUSE) {
        refuse_bytes(handshake,
                     TOW_ERROR(TOW_INVALID_ARGUMENT,
                               "expected %s and got a message of type %u (%s)",
                               tow_message_type_name(expected), frame->type,
                               tow_message_type_name(frame->type)));
        return;
    }
    const tow_body_t *body;
    tow_arena_reset(&handshake->arena);
    tow_status_t status = tow_message_decode(
        frame->type, frame->payload, frame->size, &handshake->arena, &body);
    if (status != TOW_OK)
        refuse_bytes(handshake, status);
    else
        on_message(handshake, frame->type, body);
}

static void advance_frame(tow_handshake_t *handshake)
{
    tow_frame_t frame;
    tow_status_t error;
    switch (tow_frame_parse(handshake->input, handshake->input_count,
                            PAYLOAD_BYTES_MAX, &frame, &handshake->input_needed,
                            &error)) {
    case TOW_FRAME_PARTIAL: return;
    case TOW_FRAME_BAD: refuse_bytes(handshake, error); return;
    case TOW_FRAME_READY:
        handshake->input_count = 0;
        handshake->input_needed = TOW_FRAME_HEADER_SIZE;
        on_frame(handshake, &frame);
        return;
    }
}

/* Guesses the protocol from the first bytes, as far as received. */
static const char *guess_protocol(const uint8_t *bytes, size_t count)
{
    static const struct {
        const char *begins;
        const char *words;
    } table[] = {
        {"GET ", "HTTP"},     {"POST ", "HTTP"},  {"HEAD ", "HTTP"},
        {"PUT ", "HTTP"},     {"PRI * ", "HTTP"}, {"OPTIONS ", "HTTP"},
        {"CONNECT ", "HTTP"}, {"HTTP/", "HTTP"},  {"SSH-", "SSH"},
    };
    for (size_t i = 0; i < TOW_COUNT_OF(table); i++) {
        size_t length = strlen(table[i].begins);
        if (count >= length && memcmp(bytes, table[i].begins, length) == 0)
            return table[i].words;
    }
    /* A TLS record: its type, then major version 3. */
    if (count >= 2 && bytes[0] >= 0x14 && bytes[0] <= 0x17 && bytes[1] == 3)
        return "TLS, so one side has a tcp: and the other a tls: address";
    return NULL;
}

static void fail_strange(tow_handshake_t *handshake, const uint8_t *bytes,
                         size_t count)
{
    char quoted[TOW_QUOTED_SIZE(STRANGE_BYTES_MAX)];
    const char *guess = guess_protocol(bytes, count);
    fail(handshake,
         TOW_ERROR(TOW_INVALID_ARGUMENT,
                   "the peer does not speak Towpath%s%s: it began with %s; is "
                   "the address right?",
                   guess != NULL ? " but, it seems, " : "",
                   guess != NULL ? guess : "",
                   tow_text_quote(bytes, count, quoted, sizeof(quoted))));
}

static void check_version(tow_handshake_t *handshake)
{
    unsigned theirs = handshake->input[MAGIC_SIZE];
    if (theirs == TOW_PROTOCOL_MAJOR) {
        handshake->step = STEP_HELLO;
        handshake->input_count = 0;
        handshake->input_needed = TOW_FRAME_HEADER_SIZE;
        return;
    }
    char reason[TOW_REFUSE_REASON_MAX + 1];
    snprintf(reason, sizeof(reason), "protocol version %u here (%s), not %u",
             TOW_PROTOCOL_MAJOR, handshake->options.self.software, theirs);
    refuse(handshake,
           TOW_ERROR(TOW_FAILED_PRECONDITION,
                     "the peer speaks protocol version %u and we speak %u; "
                     "bring both to the same release of Towpath",
                     theirs, TOW_PROTOCOL_MAJOR),
           reason);
}

/* Fails at the first wrong byte. `beyond` are the bytes after the current unit,
 * used in the error message only. */
static void advance_preface(tow_handshake_t *handshake, const uint8_t *beyond,
                            size_t beyond_count)
{
    size_t count = handshake->input_count;
    size_t checked = count < MAGIC_SIZE ? count : MAGIC_SIZE;
    if (memcmp(handshake->input, magic, checked) != 0) {
        size_t room = STRANGE_BYTES_MAX - count;
        size_t more = beyond_count < room ? beyond_count : room;
        memcpy(handshake->input + count, beyond, more);
        fail_strange(handshake, handshake->input, count + more);
        return;
    }
    if (count == TOW_PREFACE_SIZE) check_version(handshake);
}

/* O(1): called after every change of state. */
static void check(const tow_handshake_t *handshake)
{
    TOW_ASSERT((handshake->step == STEP_FAILED) ==
               (handshake->error != TOW_OK));
    TOW_ASSERT(handshake->output_count <= OUTPUT_BYTES_MAX);
    TOW_ASSERT(handshake->input_needed <= TOW_HANDSHAKE_BYTES_MAX);
    /* A dialler sends its preface first; both have by the time they are
     * done. */
    TOW_ASSERT(handshake->preface_sent ||
               handshake->options.side == TOW_SIDE_LISTENER);
    TOW_ASSERT(handshake->preface_sent || handshake->step != STEP_DONE);
    if (handshake->step < STEP_DONE)
        TOW_ASSERT(handshake->input_count < handshake->input_needed);
}

static tow_handshake_state_t state_of(const tow_handshake_t *handshake)
{
    switch (handshake->step) {
    case STEP_DONE: return TOW_HANDSHAKE_DONE;
    case STEP_FAILED: return TOW_HANDSHAKE_FAILED;
    default: return TOW_HANDSHAKE_MORE;
    }
}

tow_handshake_state_t tow_handshake_feed(tow_handshake_t *handshake,
                                         const uint8_t *bytes, size_t count,
                                         size_t *out_consumed)
{
    size_t consumed = 0;
    while (consumed < count && state_of(handshake) == TOW_HANDSHAKE_MORE) {
        size_t wanted = handshake->input_needed - handshake->input_count;
        size_t left = count - consumed;
        size_t taken = wanted < left ? wanted : left;
        TOW_ASSERT(handshake->input_needed <= TOW_HANDSHAKE_BYTES_MAX);
        memcpy(handshake->input + handshake->input_count, bytes + consumed,
               taken);
        handshake->input_count += taken;
        consumed += taken;
        if (handshake->step == STEP_PREFACE)
            advance_preface(handshake, bytes + consumed, count - consumed);
        else
            advance_frame(handshake);
    }
    check(handshake);
    *out_consumed = consumed;
    return state_of(handshake);
}

const char *tow_handshake_waits_for(const tow_handshake_t *handshake)
{
    switch (handshake->step) {
    case STEP_PREFACE: return "its first eight bytes";
    case STEP_HELLO: return "its Hello";
    case STEP_ANSWER:
        return handshake->options.side == TOW_SIDE_LISTENER ? "its Proof"
                                                            : "its Welcome";
    default: return "nothing";
    }
}

tow_handshake_state_t tow_handshake_end(tow_handshake_t *handshake)
{
    if (state_of(handshake) == TOW_HANDSHAKE_MORE)
        fail(handshake,
             TOW_ERROR(TOW_UNAVAILABLE,
                       "the peer closed the connection when %s %s due (%zu "
                       "bytes received)",
                       tow_handshake_waits_for(handshake),
                       handshake->step == STEP_PREFACE ? "were" : "was",
                       handshake->input_count));
    check(handshake);
    return state_of(handshake);
}

void tow_handshake_take_output(tow_handshake_t *handshake,
                               const uint8_t **out_bytes, size_t *out_count)
{
    *out_bytes = handshake->output;
    *out_count = handshake->output_count;
    handshake->output_count = 0;
}

const tow_identity_t *tow_handshake_peer(const tow_handshake_t *handshake)
{
    TOW_ASSERT(handshake->step == STEP_DONE);
    return &handshake->peer;
}

tow_status_t tow_handshake_error(const tow_handshake_t *handshake)
{
    TOW_ASSERT(handshake->step == STEP_FAILED);
    return tow_status_retain(handshake->error);
}

/* -- Creation and destruction ---------------------------------------------- */

static tow_status_t check_options(const tow_handshake_options_t *options)
{
    const tow_identity_t *self = &options->self;
    size_t length = strnlen(self->name, sizeof(self->name));
    size_t software_length = strnlen(self->software, sizeof(self->software));
    char quoted[TOW_QUOTED_SIZE(TOW_IDENTITY_NAME_MAX)];
    if (!options->security->has_token)
        return TOW_ERROR(TOW_INVALID_ARGUMENT,
                         "a handshake needs a token; `tow keys FOLDER` makes "
                         "one");
    if (!tow_text_is_name(self->name, length, TOW_IDENTITY_NAME_MAX))
        return TOW_ERROR(
            TOW_INVALID_ARGUMENT,
            "a name has 1 to %u letters, digits and -_./; %s is "
            "none",
            TOW_IDENTITY_NAME_MAX,
            tow_text_quote(self->name, length, quoted, sizeof(quoted)));
    if (software_length > TOW_SOFTWARE_MAX ||
        !tow_text_is_plain(self->software, software_length))
        return TOW_ERROR(TOW_INVALID_ARGUMENT,
                         "the name of our software is at most %u printable "
                         "characters",
                         TOW_SOFTWARE_MAX);
    return TOW_OK;
}

bool tow_identity_name_is_valid(const char *name)
{
    return tow_text_is_name(name, strlen(name), TOW_IDENTITY_NAME_MAX);
}

tow_status_t tow_handshake_create(const tow_handshake_options_t *options,
                                  tow_handshake_t **out_handshake)
{
    TOW_ASSERT(options != NULL && out_handshake != NULL);
    TOW_ASSERT(options->security != NULL);
    *out_handshake = NULL;
    TOW_RETURN_IF_ERROR(check_options(options));
    tow_handshake_t *handshake = tow_calloc(1, sizeof(*handshake));
    if (handshake == NULL) return tow_status_bare(TOW_RESOURCE_EXHAUSTED);
    handshake->options = *options;
    handshake->input_needed = TOW_PREFACE_SIZE;
    tow_arena_init(&handshake->arena, TOW_HANDSHAKE_ARENA_BYTES_MAX);
    if (options->side == TOW_SIDE_DIALLER) send_hello(handshake);
    check(handshake);
    *out_handshake = handshake;
    return TOW_OK;
}

void tow_handshake_destroy(tow_handshake_t *handshake)
{
    if (handshake == NULL) return;
    tow_arena_deinit(&handshake->arena);
    tow_status_release(handshake->error);
    OPENSSL_cleanse(handshake, sizeof(*handshake));
    tow_free(handshake);
}
