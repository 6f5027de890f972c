/* The cluster that this user has started on this host with `tow up`. Its folder
 * has a note for clients, TOW_RUNNING_CLUSTER_NOTE:
 *
 *   TOW_ADDRESS=unix:/run/user/1000/towpath/cluster.sock
 *   TOW_TOKEN_FILE=/run/user/1000/towpath/token
 */
#ifndef TOW_CLIENT_RUNNING_CLUSTER_H_
#define TOW_CLIENT_RUNNING_CLUSTER_H_

#include <limits.h>
#include <stdbool.h>
#include <sys/types.h>

#include "base/macros.h"
#include "base/status.h"
#include "wire/address.h"

#define TOW_RUNNING_CLUSTER_LOCK "lock"
#define TOW_RUNNING_CLUSTER_NOTE "cluster.env"

typedef struct tow_running_cluster {
    char address[TOW_ADDRESS_TEXT_MAX + 32];
    char token_file[PATH_MAX + 64];
} tow_running_cluster_t;

/* The process that holds the lock of `folder`, which belongs to this user; 0:
 * none, no cluster runs there. */
pid_t tow_running_cluster_holder(const char *folder);
/* Writes the note. */
tow_status_t tow_running_cluster_write(const char *folder,
                                       const tow_running_cluster_t *cluster)
    TOW_MUST_USE;
/* False: no cluster runs in the default folder, or it is not ready. */
bool tow_running_cluster_find(tow_running_cluster_t *out_cluster);

#endif /* TOW_CLIENT_RUNNING_CLUSTER_H_ */
