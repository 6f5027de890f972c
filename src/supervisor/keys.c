#include "supervisor/keys.h"

#include <stdio.h>
#include <string.h>

tow_status_t tow_keys_in(const char *folder, tow_keys_t *out_keys)
{
    if (strlen(folder) >= PATH_MAX)
        return TOW_ERROR(TOW_INVALID_ARGUMENT,
                         "the name of the keys folder has %zu bytes, limit %d",
                         strlen(folder), PATH_MAX - 1);
    snprintf(out_keys->token, TOW_KEYS_PATH_SIZE, "%s/token", folder);
    snprintf(out_keys->certificate, TOW_KEYS_PATH_SIZE, "%s/cert.pem", folder);
    snprintf(out_keys->key, TOW_KEYS_PATH_SIZE, "%s/key.pem", folder);
    return TOW_OK;
}

tow_status_t tow_keys_make(const tow_keys_t *keys, const char *host)
{
    tow_token_t ignored;
    TOW_RETURN_IF_ERROR(tow_token_create(keys->token, &ignored));
    if (host == NULL) return TOW_OK;
    return tow_tls_make_self_signed(keys->certificate, keys->key, host);
}
