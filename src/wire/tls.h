/* TLS of one connection, without I/O: cipher bytes go in and out through
 * memory. The event loop owns the socket; a test needs none. */
#ifndef TOW_WIRE_TLS_H_
#define TOW_WIRE_TLS_H_

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/macros.h"
#include "base/status.h"
#include "wire/security.h"

typedef struct tow_tls tow_tls_t;

typedef enum tow_side {
    TOW_SIDE_DIALLER,
    TOW_SIDE_LISTENER
} tow_side_t;

/* `host`: the host that a dialler expects in the peer's certificate. NULL: the
 * certificate is not checked, and only the proof of the token, which is bound
 * to the connection, authenticates the peer; always NULL on a listener. */
tow_status_t tow_tls_create(tow_tls_context_t *context, tow_side_t side,
                            const char *host, tow_tls_t **out_tls) TOW_MUST_USE;
void tow_tls_destroy(tow_tls_t *tls);

/* Passes cipher bytes from the socket; takes all of them. RESOURCE_EXHAUSTED if
 * TOW_TLS_FEED_BYTES_MAX are unread: call tow_tls_read in between. */
tow_status_t tow_tls_feed(tow_tls_t *tls, const void *bytes, size_t count)
    TOW_MUST_USE;
/* Cipher bytes for the socket: up to `capacity` of them; 0 when none wait. */
size_t tow_tls_drain(tow_tls_t *tls, void *bytes, size_t capacity);
size_t tow_tls_drain_pending(const tow_tls_t *tls);
/* The same without a copy: all that wait, and how many the socket took. */
size_t tow_tls_peek(const tow_tls_t *tls, const uint8_t **out_bytes);
void tow_tls_drained(tow_tls_t *tls, size_t count);
/* For a connection that carries much data: reads cipher bytes straight from
 * `receive`, once those that were fed are used up, and keeps buffers between
 * two uses. `receive` returns how many bytes it has put into the buffer; 0:
 * none for now. */
typedef struct tow_tls_source {
    size_t (*receive)(void *context, void *bytes, size_t capacity);
    void *context; /* lent */
} tow_tls_source_t;
void tow_tls_expect_bulk(tow_tls_t *tls, tow_tls_source_t source);
/* Advances the handshake; *out_done when it is complete. After an error, too,
 * drain: there may be an alert for the peer. */
tow_status_t tow_tls_handshake(tow_tls_t *tls, bool *out_done) TOW_MUST_USE;
/* Reads plain bytes; *out_count 0 if none are available. *out_closed: the peer
 * has shut the connection down in order. */
tow_status_t tow_tls_read(tow_tls_t *tls, void *bytes, size_t capacity,
                          size_t *out_count, bool *out_closed) TOW_MUST_USE;
/* Encrypts plain bytes; takes all of them. After the handshake only. The caller
 * bounds the bytes that wait to be drained. */
tow_status_t tow_tls_write(tow_tls_t *tls, const void *bytes, size_t count)
    TOW_MUST_USE;

/* Orderly shutdown: drain afterwards, then close the socket. */
void tow_tls_shutdown(tow_tls_t *tls);

#define TOW_TLS_BINDING_SIZE 32u
/* The exporter value that binds the token's proof to this connection. */
tow_status_t tow_tls_binding(tow_tls_t *tls,
                             uint8_t binding[TOW_TLS_BINDING_SIZE])
    TOW_MUST_USE;

#endif /* TOW_WIRE_TLS_H_ */
