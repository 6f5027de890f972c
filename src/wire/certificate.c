/* Self-signed certificates, for clusters without an authority of their own. */
#include <openssl/bn.h>
#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/x509v3.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/assert.h"
#include "wire/address.h"
#include "wire/file_impl.h"
#include "wire/tls_impl.h"
#include "wire/tuning.h"

#define SERIAL_BITS 159 /* 20 bytes with a sign bit: what X.509 allows */

static bool set_serial(X509 *certificate)
{
    BIGNUM *number = BN_new();
    bool done =
        number != NULL &&
        BN_rand(number, SERIAL_BITS, BN_RAND_TOP_ONE, BN_RAND_BOTTOM_ANY) ==
            1 &&
        BN_to_ASN1_INTEGER(number, X509_get_serialNumber(certificate)) != NULL;
    BN_free(number);
    return done;
}

static bool set_name(X509 *certificate)
{
    X509_NAME *name = X509_get_subject_name(certificate);
    return X509_NAME_add_entry_by_txt(name, "CN", MBSTRING_ASC,
                                      (const unsigned char *)"towpath", -1, -1,
                                      0) == 1 &&
           X509_set_issuer_name(certificate, name) == 1;
}

static bool set_validity(X509 *certificate)
{
    return X509_gmtime_adj(X509_getm_notBefore(certificate),
                           -TOW_CERTIFICATE_BACKDATED_SECONDS) != NULL &&
           X509_time_adj_ex(X509_getm_notAfter(certificate),
                            TOW_CERTIFICATE_DAYS, 0, NULL) != NULL;
}

static bool add_extension(X509 *certificate, int nid, const char *value)
{
    X509V3_CTX context;
    X509V3_set_ctx_nodb(&context);
    X509V3_set_ctx(&context, certificate, certificate, NULL, NULL, 0);
    X509_EXTENSION *extension = X509V3_EXT_conf_nid(NULL, &context, nid, value);
    bool done =
        extension != NULL && X509_add_ext(certificate, extension, -1) == 1;
    X509_EXTENSION_free(extension);
    return done;
}

static bool set_extensions(X509 *certificate, const char *host)
{
    char names[TOW_ADDRESS_TEXT_MAX + 8];
    snprintf(names, sizeof(names), "%s:%s",
             tow_tls_host_is_address(host) ? "IP" : "DNS", host);
    return add_extension(certificate, NID_subject_alt_name, names) &&
           add_extension(certificate, NID_basic_constraints,
                         "critical,CA:FALSE") &&
           add_extension(certificate, NID_key_usage,
                         "critical,digitalSignature") &&
           add_extension(certificate, NID_ext_key_usage, "serverAuth") &&
           add_extension(certificate, NID_subject_key_identifier, "hash");
}

static bool fill_and_sign(X509 *certificate, EVP_PKEY *key, const char *host)
{
    return X509_set_version(certificate, X509_VERSION_3) == 1 &&
           set_serial(certificate) && set_name(certificate) &&
           set_validity(certificate) &&
           X509_set_pubkey(certificate, key) == 1 &&
           set_extensions(certificate, host) &&
           X509_sign(certificate, key, EVP_sha256()) > 0;
}

static tow_status_t write_pem(const char *path, tow_file_kind_t kind,
                              const char *what, BIO *text)
{
    char *bytes;
    long count = BIO_get_mem_data(text, &bytes);
    return tow_file_create(path, kind, what, (const uint8_t *)bytes,
                           (size_t)count);
}

static tow_status_t write_files(const char *certificate_path,
                                const char *key_path, BIO *certificate_text,
                                BIO *key_text)
{
    TOW_RETURN_IF_ERROR(
        write_pem(key_path, TOW_FILE_SECRET, "key file", key_text));
    tow_status_t status = write_pem(certificate_path, TOW_FILE_PUBLIC,
                                    "certificate file", certificate_text);
    if (status != TOW_OK)
        unlink(key_path); /* A key without its certificate is useless. */
    return status;
}

/* The name becomes part of a comma-separated list of names, so only names that
 * an address may have are accepted. */
static tow_status_t check_host(const char *host)
{
    tow_address_t address;
    char text[TOW_ADDRESS_TEXT_MAX + 1];
    bool bracketed = tow_tls_host_is_address(host) && strchr(host, ':') != NULL;
    int length = snprintf(text, sizeof(text),
                          bracketed ? "tls:[%s]:1" : "tls:%s:1", host);
    if (length < 0 || (size_t)length >= sizeof(text))
        return TOW_ERROR(TOW_INVALID_ARGUMENT,
                         "the host of a certificate: %zu characters are too "
                         "long",
                         strlen(host));
    tow_status_t status = tow_address_parse(text, &address);
    if (status == TOW_OK && strcmp(address.host, host) != 0)
        status = TOW_ERROR(TOW_INVALID_ARGUMENT, "%s is not a valid host name",
                           host);
    return tow_status_annotate(status, "the host of a certificate");
}

tow_status_t tow_tls_make_certificate(const char *host, X509 **out_certificate,
                                      EVP_PKEY **out_key)
{
    *out_key = EVP_EC_gen("P-256");
    *out_certificate = X509_new();
    if (*out_key != NULL && *out_certificate != NULL &&
        fill_and_sign(*out_certificate, *out_key, host))
        return TOW_OK;
    X509_free(*out_certificate);
    EVP_PKEY_free(*out_key);
    *out_certificate = NULL;
    *out_key = NULL;
    return tow_tls_error(TOW_INTERNAL, "making a certificate");
}

tow_status_t tow_tls_make_self_signed(const char *certificate_path,
                                      const char *key_path, const char *host)
{
    TOW_ASSERT(certificate_path != NULL && key_path != NULL && host != NULL);
    TOW_RETURN_IF_ERROR(check_host(host));
    EVP_PKEY *key;
    X509 *certificate;
    TOW_RETURN_IF_ERROR(tow_tls_make_certificate(host, &certificate, &key));
    BIO *certificate_text = BIO_new(BIO_s_mem());
    BIO *key_text = BIO_new(BIO_s_secmem());
    tow_status_t status;
    if (certificate_text == NULL || key_text == NULL ||
        PEM_write_bio_X509(certificate_text, certificate) != 1 ||
        PEM_write_bio_PKCS8PrivateKey(key_text, key, NULL, NULL, 0, NULL,
                                      NULL) != 1)
        status = tow_tls_error(TOW_INTERNAL, "making a certificate");
    else
        status =
            write_files(certificate_path, key_path, certificate_text, key_text);
    BIO_free(key_text);
    BIO_free(certificate_text);
    X509_free(certificate);
    EVP_PKEY_free(key);
    return status;
}
