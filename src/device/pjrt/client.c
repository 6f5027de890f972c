#include "device/pjrt/client_impl.h"

#include <string.h>

#include "base/alloc.h"
#include "device/pjrt/callback_impl.h"

static PJRT_NamedValue named_value(const tow_pjrt_value_t *value)
{
    PJRT_NamedValue named = {
        .struct_size = PJRT_NamedValue_STRUCT_SIZE,
        .name = value->name,
        .name_size = strlen(value->name),
        .type = (PJRT_NamedValue_Type)value->type,
        .value_size = 1,
    };
    switch (value->type) {
    case TOW_PJRT_STRING:
        named.string_value = value->string;
        named.value_size = strlen(value->string);
        break;
    case TOW_PJRT_INT64: named.int64_value = value->int64; break;
    case TOW_PJRT_INT64_LIST:
        named.int64_array_value = value->int64_list;
        named.value_size = value->count;
        break;
    case TOW_PJRT_FLOAT: named.float_value = value->float_; break;
    case TOW_PJRT_BOOL: named.bool_value = value->bool_; break;
    }
    return named;
}

tow_status_t tow_pjrt_client_create(const pjrt_plugin_t *plugin,
                                    const tow_pjrt_open_t *open,
                                    PJRT_Client **out_client)
{
    *out_client = NULL;
    PJRT_NamedValue *values =
        tow_calloc(open->value_count + 1, sizeof(values[0]));
    if (values == NULL) return tow_status_bare(TOW_RESOURCE_EXHAUSTED);
    for (size_t i = 0; i < open->value_count; i++)
        values[i] = named_value(&open->values[i]);
    PJRT_Client_Create_Args args =
        PJRT_ARGS(PJRT_Client_Create, .create_options = values,
                  .num_options = open->value_count);
    if (open->table != NULL) tow_pjrt_callbacks_set(&args, open->table);
    tow_status_t status =
        tow_pjrt_status(plugin, plugin->api.PJRT_Client_Create(&args));
    tow_free(values);
    if (status != TOW_OK) return tow_status_annotate(status, "making a client");
    *out_client = args.client;
    return TOW_OK;
}

void tow_pjrt_client_destroy(const pjrt_plugin_t *plugin, PJRT_Client *client)
{
    if (client == NULL) return;
    PJRT_Client_Destroy_Args args =
        PJRT_ARGS(PJRT_Client_Destroy, .client = client);
    tow_pjrt_error_discard(plugin, plugin->api.PJRT_Client_Destroy(&args));
}
