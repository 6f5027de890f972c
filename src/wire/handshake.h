/* The handshake of a control connection, without I/O.
 *
 *     dialler                          listener
 *     preface, Hello      ->
 *                         <-           preface, Hello with proof, or Refuse
 *     Proof               ->
 *                         <-           Welcome, or Refuse
 *
 * The preface is eight bytes in a form that never changes: "TOWPATH" and the
 * major version of the protocol. Its first bytes identify another protocol or
 * another version. Everything after it is frames. Both sides need the same
 * major version and use the features that both have. A side that refuses sends
 * the reason to the peer before it closes; the reason reveals nothing about the
 * token. */
#ifndef TOW_WIRE_HANDSHAKE_H_
#define TOW_WIRE_HANDSHAKE_H_

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/macros.h"
#include "base/status.h"
#include "wire/security.h"
#include "wire/tls.h"

#define TOW_PROTOCOL_MAJOR    1u
#define TOW_PREFACE_SIZE      8u
#define TOW_NONCE_SIZE        32u
#define TOW_IDENTITY_NAME_MAX 63u
/* The largest unit of a handshake, and so the most that a peer can make us
 * buffer. */
#define TOW_HANDSHAKE_BYTES_MAX 4096u

/* The connection carries lanes of the data plane instead of messages. A dialler
 * has this bit if it wants that, a listener if it accepts it. */
#define TOW_FEATURE_LANES (UINT64_C(1) << 63)

typedef struct tow_identity {
    char
        name[TOW_IDENTITY_NAME_MAX + 1]; /* "worker/3": letters, digits, -_./ */
    uint64_t incarnation;
    uint64_t features;
    char software[32]; /* "towpath 0.1.0", for messages only */
} tow_identity_t;

/* 1 to TOW_IDENTITY_NAME_MAX letters, digits and -_./ */
bool tow_identity_name_is_valid(const char *name);

typedef struct tow_handshake_options {
    tow_side_t side;
    tow_identity_t self;
    const tow_security_t *security; /* lent */
    const char *expected_name;      /* lent; NULL: anyone with the token */
    uint8_t nonce[TOW_NONCE_SIZE];  /* fresh, from the system */
    bool has_binding;
    uint8_t binding[TOW_TLS_BINDING_SIZE];
    const char *peer_address; /* lent, for messages: "tcp:127.0.0.1:9000" */
} tow_handshake_options_t;

typedef struct tow_handshake tow_handshake_t;

/* INVALID_ARGUMENT without a token, or for an identity that peers would
 * refuse. */
tow_status_t tow_handshake_create(const tow_handshake_options_t *options,
                                  tow_handshake_t **out_handshake) TOW_MUST_USE;
void tow_handshake_destroy(tow_handshake_t *handshake);

typedef enum tow_handshake_state {
    TOW_HANDSHAKE_MORE, /* needs more bytes from the peer */
    TOW_HANDSHAKE_DONE,
    TOW_HANDSHAKE_FAILED, /* send what is pending, then close */
} tow_handshake_state_t;

/* Passes bytes received from the peer. *out_consumed is the number that belongs
 * to the handshake; the rest are frames of the session. */
tow_handshake_state_t tow_handshake_feed(tow_handshake_t *handshake,
                                         const uint8_t *bytes, size_t count,
                                         size_t *out_consumed);
/* The peer has closed the connection: FAILED, unless DONE, with an error that
 * names the missing message (UNAVAILABLE). */
tow_handshake_state_t tow_handshake_end(tow_handshake_t *handshake);
/* The message that is due from the peer, for timeout errors: "its Hello".
 * Static. */
const char *tow_handshake_waits_for(const tow_handshake_t *handshake);
/* Bytes to send now. Lent until the next call; taking them clears them. A
 * dialler has some from the start, a failed side may have a Refuse. */
void tow_handshake_take_output(tow_handshake_t *handshake,
                               const uint8_t **out_bytes, size_t *out_count);

/* After DONE: the peer's identity; `features` are those that both have. */
const tow_identity_t *tow_handshake_peer(const tow_handshake_t *handshake);
/* After FAILED: the cause. The caller owns a reference. UNAUTHENTICATED
 * (token), FAILED_PRECONDITION (version), INVALID_ARGUMENT (not our protocol),
 * PERMISSION_DENIED (the peer refused us; the message quotes its untrusted
 * reason), UNAVAILABLE (it closed), DATA_LOSS (corrupt bytes). */
tow_status_t tow_handshake_error(const tow_handshake_t *handshake) TOW_MUST_USE;

#endif /* TOW_WIRE_HANDSHAKE_H_ */
