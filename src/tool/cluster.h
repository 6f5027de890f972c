/* Being a client of a cluster, for commands: through towpath.h, as any program. */
#ifndef TOW_TOOL_CLUSTER_H_
#define TOW_TOOL_CLUSTER_H_

#include <towpath/towpath.h>

#include "base/macros.h"
#include "tool/run_folder.h"

typedef struct tow_cluster_options {
    const char *address; /* NULL: TOW_ADDRESS, or that of `folder` */
    const char *folder;  /* NULL: the usual one */
    const char *token_file;
} tow_cluster_options_t;

/* Connects as "tow". NOT_FOUND: no cluster is known, and how to start one. */
tow_status_t tow_cluster_open(const tow_cluster_options_t *options,
                              tow_client_t **out_client) TOW_MUST_USE;

typedef struct tow_cluster_run {
    const void *program;
    size_t program_size;
    const char *path;          /* for messages */
    const char *const *inputs; /* as tow_literal_parse takes them */
    size_t input_count;
    size_t device_count; /* 0: all */
    size_t repeat_count;
    size_t printed_elements_max;
    bool is_cost; /* a program of simulated devices */
    bool json;
} tow_cluster_run_t;

/* `tow run` on a cluster: every device gets all inputs. */
tow_status_t tow_cluster_run(tow_client_t *client, const tow_cluster_run_t *run)
    TOW_MUST_USE;

#endif /* TOW_TOOL_CLUSTER_H_ */
