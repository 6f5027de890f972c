#include "wire/security.h"

#include <errno.h>
#include <string.h>
#include <sys/random.h> /* tow-allow: draws tokens */

#include "base/assert.h"
#include "wire/file_impl.h"
#include "wire/tls_impl.h"

#define TOKEN_DIGITS (2 * TOW_TOKEN_SIZE)
/* The digits and an end of line, of either kind. */
#define TOKEN_FILE_BYTES_MAX (TOKEN_DIGITS + 2)

static const char token_file[] = "token file";

static int digit_value(uint8_t digit)
{
    if (digit >= '0' && digit <= '9') return digit - '0';
    if (digit >= 'a' && digit <= 'f') return digit - 'a' + 10;
    if (digit >= 'A' && digit <= 'F') return digit - 'A' + 10;
    return -1;
}

static size_t without_end_of_line(const uint8_t *text, size_t count)
{
    if (count > 0 && text[count - 1] == '\n') count--;
    if (count > 0 && text[count - 1] == '\r') count--;
    return count;
}

/* Errors never contain the digits themselves. */
static tow_status_t parse_token(const char *path, const uint8_t *text,
                                size_t count, tow_token_t *out_token)
{
    count = without_end_of_line(text, count);
    for (size_t i = 0; i < count; i++) {
        if (digit_value(text[i]) < 0)
            return TOW_ERROR(TOW_INVALID_ARGUMENT,
                             "%s %s: byte %zu is no hexadecimal digit; a token "
                             "is %u of them (`tow keys FOLDER` makes one)",
                             token_file, path, i + 1, TOKEN_DIGITS);
    }
    if (count != TOKEN_DIGITS)
        return TOW_ERROR(TOW_INVALID_ARGUMENT,
                         "%s %s has %zu hexadecimal digits; a token is %u of "
                         "them (`tow keys FOLDER` makes one)",
                         token_file, path, count, TOKEN_DIGITS);
    for (size_t i = 0; i < TOW_TOKEN_SIZE; i++)
        out_token->bytes[i] = (uint8_t)(digit_value(text[2 * i]) << 4 |
                                        digit_value(text[2 * i + 1]));
    return TOW_OK;
}

tow_status_t tow_token_load(const char *path, tow_token_t *out_token)
{
    TOW_ASSERT(path != NULL);
    *out_token = (tow_token_t){0};
    uint8_t text[TOKEN_FILE_BYTES_MAX];
    size_t count;
    tow_status_t status = tow_file_read(path, TOW_FILE_SECRET, token_file, text,
                                        sizeof(text), &count);
    if (status == TOW_OK) status = parse_token(path, text, count, out_token);
    explicit_bzero(text, sizeof(text));
    return status;
}

static tow_status_t draw_token(tow_token_t *out_token)
{
    size_t count = 0;
    while (count < TOW_TOKEN_SIZE) {
        ssize_t got =
            getrandom(out_token->bytes + count, /* tow-allow: see the top */
                      TOW_TOKEN_SIZE - count, 0);
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) return TOW_ERRNO(errno, "drawing a token");
        count += (size_t)got;
    }
    return TOW_OK;
}

tow_status_t tow_token_create(const char *path, tow_token_t *out_token)
{
    TOW_ASSERT(path != NULL);
    static const char digits[] = "0123456789abcdef";
    uint8_t text[TOKEN_DIGITS + 1];
    *out_token = (tow_token_t){0};
    tow_token_t token;
    TOW_RETURN_IF_ERROR(draw_token(&token));
    for (size_t i = 0; i < TOW_TOKEN_SIZE; i++) {
        text[2 * i] = (uint8_t)digits[token.bytes[i] >> 4];
        text[2 * i + 1] = (uint8_t)digits[token.bytes[i] & 15];
    }
    text[TOKEN_DIGITS] = '\n';
    tow_status_t status =
        tow_file_create(path, TOW_FILE_SECRET, token_file, text, sizeof(text));
    if (status == TOW_OK) *out_token = token;
    explicit_bzero(text, sizeof(text));
    explicit_bzero(&token, sizeof(token));
    return status;
}

typedef struct address_text {
    char text[TOW_ADDRESS_TEXT_MAX + 32];
} address_text_t;

static address_text_t text_of(const tow_address_t *address)
{
    address_text_t result;
    tow_address_format(address, result.text, sizeof(result.text));
    return result;
}

/* The rules that listening and dialling share. */
static tow_status_t check_common(const tow_security_t *security,
                                 const tow_address_t *address, const char *verb)
{
    if (!security->has_token)
        return TOW_ERROR(TOW_FAILED_PRECONDITION,
                         "cannot %s %s without a token; make one with `tow "
                         "keys FOLDER` and give FOLDER/token to every process",
                         verb, text_of(address).text);
    if (address->kind == TOW_ADDRESS_TCP && !tow_address_is_local(address))
        return TOW_ERROR(TOW_FAILED_PRECONDITION,
                         "cannot %s %s: beyond this host only TLS is spoken; "
                         "use tls:HOST:PORT and certificates (`tow keys FOLDER "
                         "--host HOST` makes them)",
                         verb, text_of(address).text);
    return TOW_OK;
}

tow_status_t tow_security_check_listen(const tow_security_t *security,
                                       const tow_address_t *address)
{
    TOW_ASSERT(security != NULL && address != NULL);
    if (address->kind == TOW_ADDRESS_SIM) return TOW_OK;
    TOW_RETURN_IF_ERROR(check_common(security, address, "listen on"));
    if (address->kind != TOW_ADDRESS_TLS) return TOW_OK;
    if (security->tls == NULL || !tow_tls_context_can_listen(security->tls))
        return TOW_ERROR(TOW_FAILED_PRECONDITION,
                         "cannot listen on %s without a certificate and its "
                         "key; `tow keys FOLDER --host %s` makes them",
                         text_of(address).text, address->host);
    return TOW_OK;
}

tow_status_t tow_security_check_dial(const tow_security_t *security,
                                     const tow_address_t *address)
{
    TOW_ASSERT(security != NULL && address != NULL);
    if (address->kind == TOW_ADDRESS_SIM) return TOW_OK;
    if (address->kind != TOW_ADDRESS_UNIX && address->port == 0)
        return TOW_ERROR(TOW_INVALID_ARGUMENT,
                         "cannot dial %s: port 0 is for listening, where the "
                         "system then chooses one",
                         text_of(address).text);
    TOW_RETURN_IF_ERROR(check_common(security, address, "dial"));
    if (address->kind != TOW_ADDRESS_TLS) return TOW_OK;
    if (security->tls == NULL)
        return TOW_ERROR(TOW_FAILED_PRECONDITION,
                         "cannot dial %s: this process has no TLS",
                         text_of(address).text);
    return TOW_OK;
}
