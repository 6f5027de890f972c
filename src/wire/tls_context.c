/* TLS settings and certificates, loaded once. A context has one SSL_CTX per
 * side: a listener presents a certificate, of a file or made for this process;
 * a dialler verifies it if it has a file to compare with. Diallers have no
 * certificates: the token authenticates them. */
#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/x509v3.h>
#include <string.h>

#include "base/alloc.h"
#include "base/assert.h"
#include "wire/file_impl.h"
#include "wire/tls_impl.h"
#include "wire/tuning.h"

tow_status_t tow_tls_error(tow_code_t code, const char *doing)
{
    unsigned long error = ERR_peek_error();
    char words[160] = "out of memory or a broken installation of OpenSSL";
    const char *reason = ERR_reason_error_string(error);
    if (reason == NULL && error != 0)
        ERR_error_string_n(error, words, sizeof(words));
    ERR_clear_error();
    return TOW_ERROR(code, "%s: %s", doing, reason != NULL ? reason : words);
}

bool tow_tls_context_can_listen(const tow_tls_context_t *context)
{
    return context->listener != NULL;
}

bool tow_tls_context_checks_names(const tow_tls_context_t *context)
{
    return context->checks_names;
}

bool tow_tls_host_is_address(const char *host)
{
    ASN1_OCTET_STRING *address = a2i_IPADDRESS(host);
    ASN1_OCTET_STRING_free(address);
    ERR_clear_error();
    return address != NULL;
}

/* Otherwise OpenSSL prompts for the password of an encrypted key. */
static int refuse_to_ask(char *words, int capacity, int writing, void *context)
{
    return -1;
}

/* Reads a file into an OpenSSL BIO; the caller owns *out_memory. */
static tow_status_t open_pem(const char *path, tow_file_kind_t kind,
                             const char *what, uint8_t **out_memory,
                             BIO **out_source)
{
    *out_source = NULL;
    *out_memory = tow_malloc(TOW_PEM_FILE_BYTES_MAX);
    if (*out_memory == NULL) return tow_status_bare(TOW_RESOURCE_EXHAUSTED);
    size_t count;
    tow_status_t status = tow_file_read(path, kind, what, *out_memory,
                                        TOW_PEM_FILE_BYTES_MAX, &count);
    if (status != TOW_OK) return status;
    *out_source = BIO_new_mem_buf(*out_memory, (int)count);
    if (*out_source == NULL) return tow_status_bare(TOW_RESOURCE_EXHAUSTED);
    return TOW_OK;
}

static void close_pem(uint8_t *memory, BIO *source)
{
    BIO_free(source);
    if (memory != NULL) explicit_bzero(memory, TOW_PEM_FILE_BYTES_MAX);
    tow_free(memory);
}

/* Calls `add` with every certificate of a file, which has at least one. */
static tow_status_t for_each_certificate(const char *path, SSL_CTX *context,
                                         int (*add)(SSL_CTX *context,
                                                    X509 *certificate))
{
    uint8_t *memory;
    BIO *source;
    size_t count = 0;
    tow_status_t status =
        open_pem(path, TOW_FILE_PUBLIC, "certificate file", &memory, &source);
    while (status == TOW_OK) {
        X509 *certificate =
            PEM_read_bio_X509(source, NULL, refuse_to_ask, NULL);
        if (certificate == NULL) break;
        if (add(context, certificate) != 1)
            status = tow_tls_error(TOW_INVALID_ARGUMENT, path);
        X509_free(certificate);
        count++;
    }
    if (status == TOW_OK && count == 0)
        status =
            TOW_ERROR(TOW_INVALID_ARGUMENT,
                      "certificate file %s: no certificate in it; expected "
                      "PEM, which begins with -----BEGIN CERTIFICATE-----",
                      path);
    ERR_clear_error(); /* OpenSSL reports the end of the file as an error. */
    close_pem(memory, source);
    return status;
}

static int add_to_chain(SSL_CTX *context, X509 *certificate)
{
    if (SSL_CTX_get0_certificate(context) == NULL)
        return SSL_CTX_use_certificate(context, certificate);
    return (int)SSL_CTX_add1_chain_cert(context, certificate);
}

static int add_to_trusted(SSL_CTX *context, X509 *certificate)
{
    return X509_STORE_add_cert(SSL_CTX_get_cert_store(context), certificate);
}

static tow_status_t load_key(const tow_tls_options_t *options, SSL_CTX *context)
{
    uint8_t *memory;
    BIO *source;
    tow_status_t status = open_pem(options->key_path, TOW_FILE_SECRET,
                                   "key file", &memory, &source);
    if (status == TOW_OK) {
        EVP_PKEY *key =
            PEM_read_bio_PrivateKey(source, NULL, refuse_to_ask, NULL);
        if (key == NULL)
            status = TOW_ERROR(TOW_INVALID_ARGUMENT,
                               "key file %s: no private key in it that can be "
                               "read without a password; expected PEM",
                               options->key_path);
        else if (SSL_CTX_use_PrivateKey(context, key) != 1)
            status = TOW_ERROR(TOW_INVALID_ARGUMENT,
                               "key file %s does not belong to certificate %s",
                               options->key_path, options->certificate_path);
        EVP_PKEY_free(key);
        ERR_clear_error();
    }
    close_pem(memory, source);
    return status;
}

/* TLS 1.3 only, no resumption, no early data: every connection has its own
 * handshake, which the proof is bound to. */
static tow_status_t make_context(const SSL_METHOD *method,
                                 SSL_CTX **out_context)
{
    SSL_CTX *context = SSL_CTX_new(method);
    *out_context = context;
    if (context == NULL ||
        SSL_CTX_set_min_proto_version(context, TLS1_3_VERSION) != 1 ||
        SSL_CTX_set_max_proto_version(context, TLS1_3_VERSION) != 1 ||
        SSL_CTX_set_num_tickets(context, 0) != 1 ||
        /* The fastest first: the dialler's order decides. */
        SSL_CTX_set_ciphersuites(context, "TLS_AES_128_GCM_SHA256:"
                                          "TLS_AES_256_GCM_SHA384:"
                                          "TLS_CHACHA20_POLY1305_SHA256") != 1)
        return tow_tls_error(TOW_INTERNAL, "setting TLS up");
    SSL_CTX_set_options(context, SSL_OP_NO_TICKET | SSL_OP_NO_COMPRESSION |
                                     SSL_OP_NO_RENEGOTIATION);
    SSL_CTX_set_session_cache_mode(context, SSL_SESS_CACHE_OFF);
    SSL_CTX_set_mode(context, SSL_MODE_RELEASE_BUFFERS);
    return TOW_OK;
}

static tow_status_t use_own_certificate(SSL_CTX *context)
{
    X509 *certificate = NULL;
    EVP_PKEY *key = NULL;
    TOW_RETURN_IF_ERROR(
        tow_tls_make_certificate("localhost", &certificate, &key));
    const bool is_used = SSL_CTX_use_certificate(context, certificate) == 1 &&
                         SSL_CTX_use_PrivateKey(context, key) == 1;
    X509_free(certificate);
    EVP_PKEY_free(key);
    if (is_used) return TOW_OK;
    return tow_tls_error(TOW_INTERNAL, "using a certificate of this process");
}

static tow_status_t make_listener(const tow_tls_options_t *options,
                                  tow_tls_context_t *context)
{
    TOW_RETURN_IF_ERROR(make_context(TLS_server_method(), &context->listener));
    if (options->certificate_path == NULL)
        return use_own_certificate(context->listener);
    TOW_RETURN_IF_ERROR(for_each_certificate(options->certificate_path,
                                             context->listener, add_to_chain));
    return load_key(options, context->listener);
}

static tow_status_t make_dialler(const tow_tls_options_t *options,
                                 tow_tls_context_t *context)
{
    TOW_RETURN_IF_ERROR(make_context(TLS_client_method(), &context->dialler));
    if (options->authority_path == NULL) return TOW_OK;
    SSL_CTX_set_verify(context->dialler, SSL_VERIFY_PEER, NULL);
    context->checks_names = true;
    /* Trust the certificates of the file even if they are no authority: a
     * self-signed or pinned certificate. */
    X509_VERIFY_PARAM_set_flags(SSL_CTX_get0_param(context->dialler),
                                X509_V_FLAG_PARTIAL_CHAIN);
    return for_each_certificate(options->authority_path, context->dialler,
                                add_to_trusted);
}

tow_status_t tow_tls_context_create(const tow_tls_options_t *options,
                                    tow_tls_context_t **out_context)
{
    TOW_ASSERT(options != NULL && out_context != NULL);
    *out_context = NULL;
    if ((options->certificate_path == NULL) != (options->key_path == NULL))
        return TOW_ERROR(TOW_INVALID_ARGUMENT,
                         "TLS: a certificate and its key go together, and the "
                         "%s is missing",
                         options->key_path == NULL ? "key" : "certificate");
    tow_tls_context_t *context = tow_calloc(1, sizeof(*context));
    if (context == NULL) return tow_status_bare(TOW_RESOURCE_EXHAUSTED);
    tow_status_t status = TOW_OK;
    if (options->certificate_path != NULL || options->makes_certificate)
        status = make_listener(options, context);
    if (status == TOW_OK) status = make_dialler(options, context);
    if (status != TOW_OK) {
        tow_tls_context_destroy(context);
        return status;
    }
    *out_context = context;
    return TOW_OK;
}

void tow_tls_context_destroy(tow_tls_context_t *context)
{
    if (context == NULL) return;
    SSL_CTX_free(context->listener);
    SSL_CTX_free(context->dialler);
    tow_free(context);
}
