/* An address that parses prints as one that parses to the same. */
#include <string.h>

#include "base/assert.h"
#include "fuzz.h"
#include "wire/address.h"
#include "wire/security.h"

static void check_printed_form(const tow_address_t *address)
{
    char text[TOW_ADDRESS_TEXT_MAX + 32];
    tow_address_t again;
    tow_address_format(address, text, sizeof(text));
    tow_status_t status = tow_address_parse(text, &again);
    TOW_ASSERT(status == TOW_OK);
    TOW_ASSERT(address->kind == again.kind && address->port == again.port);
    TOW_ASSERT(strcmp(address->host, again.host) == 0);
    TOW_ASSERT(tow_address_is_local(address) == tow_address_is_local(&again));
}

/* A token without TLS allows only addresses of this host. */
static void check_security(const tow_address_t *address)
{
    const tow_security_t token = {.has_token = true};
    tow_status_t listen = tow_security_check_listen(&token, address);
    tow_status_t dial = tow_security_check_dial(&token, address);
    TOW_ASSERT(listen != TOW_OK || tow_address_is_local(address));
    TOW_ASSERT(dial != TOW_OK || tow_address_is_local(address));
    tow_status_release(listen);
    tow_status_release(dial);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t count)
{
    char text[512];
    if (count >= sizeof(text)) return 0;
    memcpy(text, bytes, count);
    text[count] = '\0';
    tow_address_t address;
    tow_status_t status = tow_address_parse(text, &address);
    if (status == TOW_OK) {
        check_printed_form(&address);
        check_security(&address);
    } else {
        TOW_ASSERT(strchr(tow_status_message(status), '\n') == NULL);
    }
    tow_status_release(status);
    return 0;
}
