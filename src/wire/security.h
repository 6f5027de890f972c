/* Authentication: a 256-bit token that both sides have, and TLS 1.3 beyond
 * loopback.
 *
 * The token is never sent. Each side proves that it has the token by an HMAC
 * over both nonces, both identities and, under TLS, the connection's exporter
 * value. So a proof is valid on one connection only, and a man in the middle of
 * TLS is detected even with self-signed certificates. */
#ifndef TOW_WIRE_SECURITY_H_
#define TOW_WIRE_SECURITY_H_

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/macros.h"
#include "base/status.h"
#include "wire/address.h"

#define TOW_TOKEN_SIZE 32u

typedef struct tow_token {
    uint8_t bytes[TOW_TOKEN_SIZE];
} tow_token_t;

/* Reads a token file: 64 hexadecimal digits. A file that other users may access
 * is refused; the error names the command that fixes its mode. */
tow_status_t tow_token_load(const char *path, tow_token_t *out_token)
    TOW_MUST_USE;
/* Makes a token from the system's random numbers, into a new file of mode
 * 0600; ALREADY_EXISTS if the file is there. */
tow_status_t tow_token_create(const char *path, tow_token_t *out_token)
    TOW_MUST_USE;

/* Certificates for TLS, loaded once and shared by all connections. */
typedef struct tow_tls_context tow_tls_context_t;

typedef struct tow_tls_options {
    const char *certificate_path; /* PEM; of a listener, with its key */
    const char *key_path;         /* PEM, mode 0600 */
    /* Without a file, listeners present a certificate that is made for this
     * process; otherwise they cannot listen. */
    bool makes_certificate;
    /* PEM; certificates that a dialler trusts. NULL: diallers do not check
     * certificates; the proof of the token authenticates the peer. */
    const char *authority_path;
} tow_tls_options_t;

tow_status_t tow_tls_context_create(const tow_tls_options_t *options,
                                    tow_tls_context_t **out_context)
    TOW_MUST_USE;
void tow_tls_context_destroy(tow_tls_context_t *context);
/* Whether diallers compare certificates with a file. */
bool tow_tls_context_checks_names(const tow_tls_context_t *context);
/* Makes a self-signed certificate and its key (mode 0600), for clusters without
 * an authority of their own. `host` goes into the certificate's names. */
tow_status_t tow_tls_make_self_signed(const char *certificate_path,
                                      const char *key_path, const char *host)
    TOW_MUST_USE;

typedef struct tow_security {
    bool has_token;
    tow_token_t token;
    tow_tls_context_t *tls; /* lent; NULL: no TLS */
} tow_security_t;

/* TOW_OK if listening on `address` is allowed: beyond loopback only as tls: and
 * with a token; a tls: address needs certificates. The error names the missing
 * file and the command that makes it. */
tow_status_t tow_security_check_listen(const tow_security_t *security,
                                       const tow_address_t *address)
    TOW_MUST_USE;
/* The same for dialling: beyond loopback, proofs are sent over TLS only. */
tow_status_t tow_security_check_dial(const tow_security_t *security,
                                     const tow_address_t *address) TOW_MUST_USE;

#endif /* TOW_WIRE_SECURITY_H_ */
