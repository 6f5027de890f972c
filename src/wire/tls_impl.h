/* Internals shared by tls_context.c, certificate.c and tls.c. */
#ifndef TOW_WIRE_TLS_IMPL_H_
#define TOW_WIRE_TLS_IMPL_H_

#include <openssl/ssl.h>
#include <stdbool.h>

#include "base/macros.h"
#include "base/status.h"
#include "wire/security.h"

struct tow_tls_context {
    SSL_CTX *listener; /* owned; NULL without a certificate */
    SSL_CTX *dialler;  /* owned */
    bool checks_names; /* the dialler has certificates to compare with */
};

bool tow_tls_context_can_listen(const tow_tls_context_t *context);

/* A self-signed certificate for `host` and its key, both for the caller. */
tow_status_t tow_tls_make_certificate(const char *host, X509 **out_certificate,
                                      EVP_PKEY **out_key) TOW_MUST_USE;

/* True for an IP address, false for a name. */
bool tow_tls_host_is_address(const char *host);

/* "doing: OpenSSL's oldest error". Clears OpenSSL's error queue. */
tow_status_t tow_tls_error(tow_code_t code, const char *doing) TOW_MUST_USE;

#endif /* TOW_WIRE_TLS_IMPL_H_ */
