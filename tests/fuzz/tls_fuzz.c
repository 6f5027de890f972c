/* Input: a byte of flags, then the first bytes of a peer to a TLS listener or
 * dialler. OpenSSL has fuzzers of its own: this one tests our use of it. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/assert.h"
#include "fuzz.h"
#include "wire/tls.h"

enum {
    LISTENER = 1,
    PIECES = 2,
};

static tow_tls_context_t *make_context(void)
{
    char folder[] = "/tmp/tow-fuzz-XXXXXX", certificate[64], key[64];
    TOW_ASSERT(mkdtemp(folder) != NULL);
    snprintf(certificate, sizeof(certificate), "%s/cert.pem", folder);
    snprintf(key, sizeof(key), "%s/key.pem", folder);
    const tow_tls_options_t options = {.certificate_path = certificate,
                                       .key_path = key,
                                       .authority_path = certificate};
    tow_tls_context_t *context;
    tow_status_t status =
        tow_tls_make_self_signed(certificate, key, "localhost");
    TOW_ASSERT(status == TOW_OK);
    status = tow_tls_context_create(&options, &context);
    TOW_ASSERT(status == TOW_OK);
    unlink(certificate);
    unlink(key);
    rmdir(folder);
    return context;
}

static void drain(tow_tls_t *tls)
{
    uint8_t bytes[4096];
    size_t waits = tow_tls_drain_pending(tls), count, total = 0;
    while ((count = tow_tls_drain(tls, bytes, sizeof(bytes))) > 0)
        total += count;
    TOW_ASSERT(total == waits);
}

/* Like the event loop: feed, handshake, drain. No input can finish a
 * handshake. */
static tow_status_t step(tow_tls_t *tls, const uint8_t *bytes, size_t count)
{
    bool done;
    TOW_RETURN_IF_ERROR(tow_tls_feed(tls, bytes, count));
    tow_status_t status = tow_tls_handshake(tls, &done);
    TOW_ASSERT(!done);
    drain(tls);
    return status;
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t count)
{
    static tow_tls_context_t *context;
    if (context == NULL) context = make_context();
    if (count == 0) return 0;
    bool listens = bytes[0] & LISTENER;
    size_t piece = bytes[0] & PIECES ? 16 : count;
    tow_tls_t *tls;
    tow_status_t status =
        tow_tls_create(context, listens ? TOW_SIDE_LISTENER : TOW_SIDE_DIALLER,
                       listens ? NULL : "localhost", &tls);
    TOW_ASSERT(status == TOW_OK);
    for (size_t at = 1; at < count && status == TOW_OK; at += piece)
        status = step(tls, bytes + at, piece < count - at ? piece : count - at);
    tow_status_release(status);
    tow_tls_destroy(tls);
    return 0;
}
