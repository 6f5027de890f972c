#include "wire/tls.h"

#include <limits.h>
#include <openssl/err.h>
#include <openssl/x509v3.h>
#include <string.h>

#include "base/alloc.h"
#include "base/assert.h"
#include "wire/tls_impl.h"
#include "wire/tuning.h"

/* Part of the protocol: both sides must use the same label. */
static const char binding_label[] = "EXPORTER-towpath-token-1";

struct tow_tls {
    SSL *ssl;       /* owned; owns both ends below */
    BIO *from_peer; /* cipher bytes that were fed */
    BIO *to_peer;   /* cipher bytes to drain */
    tow_side_t side;
};

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
    tls->from_peer = BIO_new(BIO_s_mem());
    tls->to_peer = BIO_new(BIO_s_mem());
    if (tls->from_peer == NULL || tls->to_peer == NULL) {
        BIO_free(tls->from_peer);
        BIO_free(tls->to_peer);
        return tow_status_bare(TOW_RESOURCE_EXHAUSTED);
    }
    /* An empty buffer means "retry later", not "end of file". */
    BIO_set_mem_eof_return(tls->from_peer, -1);
    BIO_set_mem_eof_return(tls->to_peer, -1);
    SSL_set_bio(tls->ssl, tls->from_peer, tls->to_peer);
    if (tls->side == TOW_SIDE_LISTENER) {
        SSL_set_accept_state(tls->ssl);
        return TOW_OK;
    }
    SSL_set_connect_state(tls->ssl);
    if (!expect_host(tls->ssl, host))
        return tow_tls_error(TOW_INVALID_ARGUMENT, host);
    return TOW_OK;
}

tow_status_t tow_tls_create(tow_tls_context_t *context, tow_side_t side,
                            const char *host, tow_tls_t **out_tls)
{
    TOW_ASSERT(context != NULL && out_tls != NULL);
    TOW_ASSERT((side == TOW_SIDE_DIALLER) == (host != NULL));
    *out_tls = NULL;
    SSL_CTX *half =
        side == TOW_SIDE_LISTENER ? context->listener : context->dialler;
    if (half == NULL)
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
    tow_free(tls);
}

tow_status_t tow_tls_feed(tow_tls_t *tls, const void *bytes, size_t count)
{
    if (count > TOW_TLS_FEED_BYTES_MAX - BIO_ctrl_pending(tls->from_peer))
        return TOW_ERROR(TOW_RESOURCE_EXHAUSTED,
                         "TLS: %zu cipher bytes wait to be read and %zu more "
                         "came; the limit is %zu",
                         BIO_ctrl_pending(tls->from_peer), count,
                         TOW_TLS_FEED_BYTES_MAX);
    if (count == 0) return TOW_OK;
    if (BIO_write(tls->from_peer, bytes, (int)count) != (int)count)
        return tow_tls_error(TOW_RESOURCE_EXHAUSTED, "TLS");
    return TOW_OK;
}

size_t tow_tls_drain(tow_tls_t *tls, void *bytes, size_t capacity)
{
    int most = capacity > INT_MAX ? INT_MAX : (int)capacity;
    int got = BIO_read(tls->to_peer, bytes, most);
    return got > 0 ? (size_t)got : 0;
}

size_t tow_tls_drain_pending(const tow_tls_t *tls)
{
    return BIO_ctrl_pending(tls->to_peer);
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

static tow_status_t failed(tow_tls_t *tls)
{
    long verdict = SSL_get_verify_result(tls->ssl);
    int reason = ERR_GET_REASON(ERR_peek_error());
    if (tls->side == TOW_SIDE_DIALLER && verdict != X509_V_OK) {
        ERR_clear_error();
        return TOW_ERROR(TOW_UNAUTHENTICATED,
                         "TLS: the peer's certificate is not trusted: %s; give "
                         "the cert.pem of this listener, or of its authority",
                         X509_verify_cert_error_string(verdict));
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
