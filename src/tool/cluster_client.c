#include "tool/cluster_client.h"

#include <stdlib.h>
#include <unistd.h>

tow_status_t tow_cluster_client_open(
    const tow_cluster_client_options_t *options, tow_client_t **out_client)
{
    tow_run_folder_t folder;
    tow_run_state_t state;
    tow_client_options_t client = {.struct_size = sizeof(client),
                                   .address = options->address,
                                   .name = "tow",
                                   .token_file = options->token_file};
    const char *environment = getenv("TOW_ADDRESS");
    if (client.address == NULL && options->folder == NULL &&
        environment != NULL && environment[0] != '\0')
        client.address = environment;
    if (client.address != NULL) return tow_client_open(&client, out_client);
    TOW_RETURN_IF_ERROR(tow_run_folder_name(&folder, options->folder));
    TOW_RETURN_IF_ERROR(tow_run_folder_read(&folder, &state));
    client.address = state.address;
    if (client.token_file == NULL) client.token_file = state.token_file;
    return tow_client_open(&client, out_client);
}
