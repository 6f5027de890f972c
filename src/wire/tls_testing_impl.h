/* Certificates in a test's folder, and bytes carried between two ends of
 * TLS. */
#ifndef TOW_WIRE_TLS_TESTING_IMPL_H_
#define TOW_WIRE_TLS_TESTING_IMPL_H_

#include "wire/folder_testing_impl.h"

#include <stdbool.h>
#include <string.h>

#include "wire/tls.h"

static inline void expect_error(tow_status_t status, tow_code_t code,
                                const char *words)
{
    if (tow_status_code(status) != code ||
        strstr(tow_status_message(status), words) == NULL)
        fail_msg("no '%s' in %s: %s", words,
                 tow_code_name(tow_status_code(status)),
                 tow_status_message(status));
    tow_status_release(status);
}

/* FOLDER/NAME.cert and FOLDER/NAME.key. */
static inline void make_certificate(const char *name, const char *host)
{
    char certificate[64], key[64];
    snprintf(certificate, sizeof(certificate), "%s.cert", name);
    snprintf(key, sizeof(key), "%s.key", name);
    assert_null(
        tow_tls_make_self_signed(in_folder(certificate), in_folder(key), host));
}

static inline tow_tls_context_t *context_that_shows(const char *name)
{
    char certificate[64], key[64];
    snprintf(certificate, sizeof(certificate), "%s.cert", name);
    snprintf(key, sizeof(key), "%s.key", name);
    const tow_tls_options_t options = {
        .certificate_path = in_folder(certificate),
        .key_path = in_folder(key),
    };
    tow_tls_context_t *context;
    assert_null(tow_tls_context_create(&options, &context));
    return context;
}

static inline tow_tls_context_t *context_that_trusts(const char *name)
{
    char certificate[64];
    snprintf(certificate, sizeof(certificate), "%s.cert", name);
    const tow_tls_options_t options = {.authority_path =
                                           in_folder(certificate)};
    tow_tls_context_t *context;
    assert_null(tow_tls_context_create(&options, &context));
    return context;
}

#endif /* TOW_WIRE_TLS_TESTING_IMPL_H_ */
