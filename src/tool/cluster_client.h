/* Opens a client of a running cluster, for subcommands. */
#ifndef TOW_TOOL_CLUSTER_CLIENT_H_
#define TOW_TOOL_CLUSTER_CLIENT_H_

#include <towpath/towpath.h>

#include "base/macros.h"
#include "supervisor/run_folder.h"

typedef struct tow_cluster_client_options {
    const char *address; /* NULL: TOW_ADDRESS, or as `folder` says */
    const char *folder;  /* of `tow up`; NULL: the default */
    const char *token_file;
} tow_cluster_client_options_t;

/* Connects as "tow". NOT_FOUND: no cluster is running; says how to start one. */
tow_status_t tow_cluster_client_open(
    const tow_cluster_client_options_t *options, tow_client_t **out_client)
    TOW_MUST_USE;

#endif /* TOW_TOOL_CLUSTER_CLIENT_H_ */
