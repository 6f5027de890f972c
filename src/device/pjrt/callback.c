/* Runs on threads of the plugin; uses only the arguments and the table. */
#include "device/pjrt/callback_impl.h"

#include <string.h>

#include "base/alloc.h"

#define NS_PER_MS 1000000

/* Takes the status; the error is the plugin's own. */
static PJRT_Error *error_of(PJRT_CallbackError *make, tow_status_t take_status)
{
    if (take_status == TOW_OK) return NULL;
    const char *message = tow_status_message(take_status);
    PJRT_Error *error = (*make)((PJRT_Error_Code)tow_status_code(take_status),
                                message, strlen(message));
    tow_status_release(take_status);
    return error;
}

static void free_value(char *value)
{
    tow_free(value);
}

static PJRT_Error *get(PJRT_KeyValueGetCallback_Args *args)
{
    args->value_deleter_callback = free_value;
    /* A timeout of 0 still waits for the key, as plugins expect. */
    const int64_t timeout_ms =
        args->timeout_in_ms > 0 ? args->timeout_in_ms : 1;
    return error_of(args->callback_error,
                    tow_pjrt_table_get(args->user_arg, args->key,
                                       args->key_size, timeout_ms * NS_PER_MS,
                                       &args->value, &args->value_size));
}

static PJRT_Error *try_get(PJRT_KeyValueTryGetCallback_Args *args)
{
    args->value_deleter_callback = free_value;
    return error_of(args->callback_error,
                    tow_pjrt_table_get(args->user_arg, args->key,
                                       args->key_size, 0, &args->value,
                                       &args->value_size));
}

static PJRT_Error *put(PJRT_KeyValuePutCallback_Args *args)
{
    return error_of(args->callback_error,
                    tow_pjrt_table_put(args->user_arg, args->key,
                                       args->key_size, args->value,
                                       args->value_size));
}

void tow_pjrt_callbacks_set(PJRT_Client_Create_Args *args,
                            tow_pjrt_table_t *table)
{
    args->kv_get_callback = get;
    args->kv_get_user_arg = table;
    args->kv_put_callback = put;
    args->kv_put_user_arg = table;
    args->kv_try_get_callback = try_get;
    args->kv_try_get_user_arg = table;
}
