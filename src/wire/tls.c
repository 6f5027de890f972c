#include "wire/tls.h"

#include <openssl/err.h>
#include <openssl/x509v3.h>
#include <string.h>

#include "base/alloc.h"
#include "base/assert.h"
#include "wire/tls_impl.h"
#include "wire/tuning.h"

/* Part of the protocol: both sides must use the same label. */
static const char binding_label[] = "EXPORTER-towpath-token-1";

/* Cipher bytes in one direction, in one piece: OpenSSL and the socket use the
 * same memory. */
typedef struct cipher_buffer {
    uint8_t *bytes; /* owned; NULL: none */
    size_t begin;
    size_t end;
    size_t capacity;
    bool is_kept;            /* while it is empty, whatever its size */
    tow_tls_source_t source; /* of more bytes; zeroed: none */
} cipher_buffer_t;

struct tow_tls {
    SSL *ssl; /* owned; owns the BIOs, which refer to the buffers below */
    cipher_buffer_t from_peer;
    cipher_buffer_t to_peer;
    tow_side_t side;
};

/* -- Buffers --------------------------------------------------------------- */

static size_t count_in(const cipher_buffer_t *buffer)
{
    return buffer->end - buffer->begin;
}

/* Makes room for `more` bytes at the end; false when memory is exhausted. Bytes
 * are moved to the front only if at least as many have been consumed, so each
 * is moved once at most. */
static bool make_room(cipher_buffer_t *buffer, size_t more)
{
    const size_t count = count_in(buffer);
    if (buffer->capacity - buffer->end >= more) return true;
    if (buffer->begin >= count && buffer->capacity - count >= more) {
        memcpy(buffer->bytes, buffer->bytes + buffer->begin, count);
        buffer->begin = 0;
        buffer->end = count;
        return true;
    }
    size_t capacity = 2 * buffer->capacity;
    if (capacity < buffer->end + more) capacity = buffer->end + more;
    if (capacity < TOW_TLS_BUFFER_BYTES_MIN)
        capacity = TOW_TLS_BUFFER_BYTES_MIN;
    uint8_t *bytes = tow_realloc(buffer->bytes, capacity);
    if (bytes == NULL) return false;
    buffer->bytes = bytes;
    buffer->capacity = capacity;
    return true;
}

static void consume(cipher_buffer_t *buffer, size_t count)
{
    TOW_ASSERT(count <= count_in(buffer));
    buffer->begin += count;
    if (buffer->begin < buffer->end) return;
    buffer->begin = buffer->end = 0;
    if (buffer->is_kept || buffer->capacity <= TOW_TLS_BUFFER_BYTES_KEPT)
        return;
    tow_free(buffer->bytes);
    buffer->bytes = NULL;
    buffer->capacity = 0;
}

static size_t take(cipher_buffer_t *buffer, void *bytes, size_t capacity)
{
    size_t count = count_in(buffer);
    if (count > capacity) count = capacity;
    memcpy(bytes, buffer->bytes + buffer->begin, count);
    consume(buffer, count);
    return count;
}

static int bio_read(BIO *bio, char *bytes, int capacity)
{
    cipher_buffer_t *buffer = BIO_get_data(bio);
    BIO_clear_retry_flags(bio);
    if (capacity <= 0) return 0;
    size_t count = 0;
    if (count_in(buffer) > 0)
        count = take(buffer, bytes, (size_t)capacity);
    else if (buffer->source.receive != NULL)
        count = buffer->source.receive(buffer->source.context, bytes,
                                       (size_t)capacity);
    if (count > 0) return (int)count;
    BIO_set_retry_read(bio); /* More may come: not the end of a file. */
    return -1;
}

static bool append(cipher_buffer_t *buffer, const void *bytes, size_t count)
{
    if (!make_room(buffer, count)) return false;
    memcpy(buffer->bytes + buffer->end, bytes, count);
    buffer->end += count;
    return true;
}

static int bio_write(BIO *bio, const char *bytes, int count)
{
    BIO_clear_retry_flags(bio);
    if (count <= 0) return 0;
    return append(BIO_get_data(bio), bytes, (size_t)count) ? count : -1;
}

static long bio_ctrl(BIO *bio, int command, long number, void *pointer)
{
    (void)number, (void)pointer;
    const cipher_buffer_t *buffer = BIO_get_data(bio);
    switch (command) {
    case BIO_CTRL_FLUSH:
    case BIO_CTRL_DUP: return 1;
    case BIO_CTRL_PENDING:
    case BIO_CTRL_WPENDING: return (long)count_in(buffer);
    default: return 0;
    }
}

static BIO_METHOD *bio_method;

static void make_bio_method(void)
{
    BIO_METHOD *method =
        BIO_meth_new(BIO_get_new_index() | BIO_TYPE_SOURCE_SINK, "towpath");
    if (method == NULL) return;
    BIO_meth_set_read(method, bio_read);
    BIO_meth_set_write(method, bio_write);
    BIO_meth_set_ctrl(method, bio_ctrl);
    bio_method = method;
}

/* NULL when memory is exhausted. */
static BIO *make_bio(cipher_buffer_t *buffer)
{
    static CRYPTO_ONCE once = CRYPTO_ONCE_STATIC_INIT;
    if (CRYPTO_THREAD_run_once(&once, make_bio_method) != 1 ||
        bio_method == NULL)
        return NULL;
    BIO *bio = BIO_new(bio_method);
    if (bio == NULL) return NULL;
    BIO_set_data(bio, buffer);
    BIO_set_init(bio, 1);
    return bio;
}

/* -- Connections ----------------------------------------------------------- */

static bool expect_host(SSL *ssl, const char *host)
{
    if (tow_tls_host_is_address(host))
        return X509_VERIFY_PARAM_set1_ip_asc(SSL_get0_param(ssl), host) == 1;
    SSL_set_hostflags(ssl, X509_CHECK_FLAG_NO_PARTIAL_WILDCARDS);
    return SSL_set1_host(ssl, host) == 1 &&
           SSL_set_tlsext_host_name(ssl, host) == 1;
}

static tow_status_t set_up(tow_tls_t *tls, SSL_CTX *context, const char *host)
{
    tls->ssl = SSL_new(context);
    if (tls->ssl == NULL) return tow_tls_error(TOW_INTERNAL, "setting TLS up");
    BIO *from_peer = make_bio(&tls->from_peer);
    BIO *to_peer = make_bio(&tls->to_peer);
    if (from_peer == NULL || to_peer == NULL) {
        BIO_free(from_peer);
        BIO_free(to_peer);
        return tow_status_bare(TOW_RESOURCE_EXHAUSTED);
    }
    SSL_set_bio(tls->ssl, from_peer, to_peer);
    if (tls->side == TOW_SIDE_LISTENER) {
        SSL_set_accept_state(tls->ssl);
        return TOW_OK;
    }
    SSL_set_connect_state(tls->ssl);
    if (host == NULL) { /* The token's proof will authenticate the peer. */
        SSL_set_verify(tls->ssl, SSL_VERIFY_NONE, NULL);
        return TOW_OK;
    }
    if (!expect_host(tls->ssl, host))
        return tow_tls_error(TOW_INVALID_ARGUMENT, host);
    return TOW_OK;
}

tow_status_t tow_tls_create(tow_tls_context_t *context, tow_side_t side,
                            const char *host, tow_tls_t **out_tls)
{
    TOW_ASSERT(context != NULL && out_tls != NULL);
    TOW_ASSERT(side == TOW_SIDE_DIALLER || host == NULL);
    *out_tls = NULL;
    SSL_CTX *half =
        side == TOW_SIDE_LISTENER ? context->listener : context->dialler;
    if (half == NULL || (host != NULL && !context->checks_names))
        return TOW_ERROR(TOW_FAILED_PRECONDITION, "TLS: no certificate to %s",
                         side == TOW_SIDE_LISTENER ? "show" : "trust");
    tow_tls_t *tls = tow_calloc(1, sizeof(*tls));
    if (tls == NULL) return tow_status_bare(TOW_RESOURCE_EXHAUSTED);
    tls->side = side;
    tow_status_t status = set_up(tls, half, host);
    if (status != TOW_OK) {
        tow_tls_destroy(tls);
        return status;
    }
    *out_tls = tls;
    return TOW_OK;
}

void tow_tls_destroy(tow_tls_t *tls)
{
    if (tls == NULL) return;
    SSL_free(tls->ssl);
    tow_free(tls->from_peer.bytes);
    tow_free(tls->to_peer.bytes);
    tow_free(tls);
}

tow_status_t tow_tls_feed(tow_tls_t *tls, const void *bytes, size_t count)
{
    const size_t unread = count_in(&tls->from_peer);
    if (count > TOW_TLS_FEED_BYTES_MAX - unread)
        return TOW_ERROR(TOW_RESOURCE_EXHAUSTED,
                         "TLS: %zu cipher bytes wait to be read and %zu more "
                         "came; the limit is %zu",
                         unread, count, TOW_TLS_FEED_BYTES_MAX);
    if (count == 0) return TOW_OK;
    return append(&tls->from_peer, bytes, count)
               ? TOW_OK
               : tow_status_bare(TOW_RESOURCE_EXHAUSTED);
}

size_t tow_tls_peek(const tow_tls_t *tls, const uint8_t **out_bytes)
{
    const cipher_buffer_t *buffer = &tls->to_peer;
    const size_t count = count_in(buffer);
    *out_bytes = count > 0 ? buffer->bytes + buffer->begin : NULL;
    return count;
}

void tow_tls_drained(tow_tls_t *tls, size_t count)
{
    consume(&tls->to_peer, count);
}

size_t tow_tls_drain(tow_tls_t *tls, void *bytes, size_t capacity)
{
    return count_in(&tls->to_peer) > 0 ? take(&tls->to_peer, bytes, capacity)
                                       : 0;
}

size_t tow_tls_drain_pending(const tow_tls_t *tls)
{
    return count_in(&tls->to_peer);
}

void tow_tls_expect_bulk(tow_tls_t *tls, tow_tls_source_t source)
{
    SSL_clear_mode(tls->ssl, SSL_MODE_RELEASE_BUFFERS);
    SSL_set_default_read_buffer_len(tls->ssl, TOW_TLS_BULK_READ_BYTES);
    SSL_set_read_ahead(tls->ssl, 1);
    tls->from_peer.source = source;
    tls->to_peer.is_kept = true;
}

/* OpenSSL's reasons in terms of a cluster's configuration. */
static const struct {
    int reason;
    tow_code_t code;
    const char *words;
} explanations[] = {
    {SSL_R_WRONG_VERSION_NUMBER, TOW_INVALID_ARGUMENT,
     "the peer does not speak TLS; is its address a tcp: one?"},
    {SSL_R_HTTP_REQUEST, TOW_INVALID_ARGUMENT,
     "the peer speaks plain HTTP to a TLS address"},
    {SSL_R_HTTPS_PROXY_REQUEST, TOW_INVALID_ARGUMENT,
     "the peer takes us for an HTTP proxy"},
    {SSL_R_PACKET_LENGTH_TOO_LONG, TOW_INVALID_ARGUMENT,
     "the peer does not speak TLS"},
    {SSL_R_BAD_RECORD_TYPE, TOW_INVALID_ARGUMENT,
     "the peer does not speak TLS"},
    {SSL_R_UNSUPPORTED_PROTOCOL, TOW_FAILED_PRECONDITION,
     "the peer cannot speak TLS 1.3, and nothing older is accepted"},
    {SSL_R_TLSV1_ALERT_PROTOCOL_VERSION, TOW_FAILED_PRECONDITION,
     "the peer cannot speak TLS 1.3, and nothing older is accepted"},
    {SSL_R_TLSV1_ALERT_UNKNOWN_CA, TOW_PERMISSION_DENIED,
     "the peer does not trust our certificate"},
    {SSL_R_SSLV3_ALERT_BAD_CERTIFICATE, TOW_PERMISSION_DENIED,
     "the peer does not trust our certificate: is it for another host?"},
    {SSL_R_SSLV3_ALERT_CERTIFICATE_EXPIRED, TOW_PERMISSION_DENIED,
     "the peer finds that our certificate has expired"},
    {SSL_R_SSLV3_ALERT_CERTIFICATE_UNKNOWN, TOW_PERMISSION_DENIED,
     "the peer does not trust our certificate"},
    {SSL_R_DECRYPTION_FAILED_OR_BAD_RECORD_MAC, TOW_DATA_LOSS,
     "the bytes of the peer were damaged or forged on their way"},
};

/* The next step for someone whose peer has a certificate that is not
 * trusted. */
static const char *advice_on(long verdict)
{
    switch (verdict) {
    case X509_V_ERR_CERT_NOT_YET_VALID:
    case X509_V_ERR_CERT_HAS_EXPIRED:
        return "compare the clocks of both hosts (`date -u`); if they are "
               "right, make another certificate with `tow keys`";
    case X509_V_ERR_HOSTNAME_MISMATCH:
    case X509_V_ERR_IP_ADDRESS_MISMATCH:
        return "use the name or address that the certificate is for, or make "
               "one for this name with `tow keys FOLDER --host NAME`";
    default:
        return "copy token and cert.pem of this cluster's keys to this host; "
               "cert.pem may also be that of the certificate's authority";
    }
}

static tow_status_t failed(tow_tls_t *tls)
{
    long verdict = SSL_get_verify_result(tls->ssl);
    int reason = ERR_GET_REASON(ERR_peek_error());
    if (tls->side == TOW_SIDE_DIALLER && verdict != X509_V_OK) {
        ERR_clear_error();
        return TOW_ERROR(TOW_UNAUTHENTICATED,
                         "TLS: the peer's certificate is not trusted: %s; %s",
                         X509_verify_cert_error_string(verdict),
                         advice_on(verdict));
    }
    for (size_t i = 0; i < TOW_COUNT_OF(explanations); i++) {
        if (explanations[i].reason != reason) continue;
        ERR_clear_error();
        return TOW_ERROR(explanations[i].code, "TLS: %s",
                         explanations[i].words);
    }
    return tow_tls_error(TOW_INVALID_ARGUMENT, "TLS");
}

tow_status_t tow_tls_handshake(tow_tls_t *tls, bool *out_done)
{
    *out_done = false;
    ERR_clear_error();
    int result = SSL_do_handshake(tls->ssl);
    if (result == 1) {
        *out_done = true;
        return TOW_OK;
    }
    int error = SSL_get_error(tls->ssl, result);
    return error == SSL_ERROR_WANT_READ ? TOW_OK : failed(tls);
}

tow_status_t tow_tls_read(tow_tls_t *tls, void *bytes, size_t capacity,
                          size_t *out_count, bool *out_closed)
{
    *out_count = 0;
    *out_closed = false;
    if (capacity == 0) return TOW_OK;
    ERR_clear_error();
    int result = SSL_read_ex(tls->ssl, bytes, capacity, out_count);
    if (result == 1) return TOW_OK;
    switch (SSL_get_error(tls->ssl, result)) {
    case SSL_ERROR_WANT_READ: return TOW_OK;
    case SSL_ERROR_ZERO_RETURN: *out_closed = true; return TOW_OK;
    default: return failed(tls);
    }
}

tow_status_t tow_tls_write(tow_tls_t *tls, const void *bytes, size_t count)
{
    TOW_ASSERT(SSL_is_init_finished(tls->ssl));
    if (count == 0) return TOW_OK;
    ERR_clear_error();
    size_t written;
    if (SSL_write_ex(tls->ssl, bytes, count, &written) != 1) return failed(tls);
    TOW_ASSERT(written == count);
    return TOW_OK;
}

void tow_tls_shutdown(tow_tls_t *tls)
{
    /* Before the handshake is complete there is no orderly shutdown. */
    if (SSL_is_init_finished(tls->ssl)) SSL_shutdown(tls->ssl);
    ERR_clear_error();
}

tow_status_t tow_tls_binding(tow_tls_t *tls,
                             uint8_t binding[TOW_TLS_BINDING_SIZE])
{
    TOW_ASSERT(SSL_is_init_finished(tls->ssl));
    if (SSL_export_keying_material(tls->ssl, binding, TOW_TLS_BINDING_SIZE,
                                   binding_label, sizeof(binding_label) - 1,
                                   NULL, 0, 0) != 1)
        return tow_tls_error(TOW_INTERNAL, "TLS exporter");
    return TOW_OK;
}
