/* A cluster of processes of our own, for a client that was given no address: it
 * ends with this process, also when that is killed. */
#ifndef TOW_CLIENT_LOCAL_H_
#define TOW_CLIENT_LOCAL_H_

#include <towpath/towpath.h>

#include "base/macros.h"
#include "wire/security.h"

typedef struct tow_local_cluster tow_local_cluster_t;

/* Starts `tow up` (TOW_COMMAND, or beside this library in a build folder, or
 * where it is installed, or in PATH) with posix_spawn, and waits until it is
 * ready. Errors carry what it said. */
tow_status_t tow_local_cluster_start(const tow_client_options_t *options,
                                     tow_local_cluster_t **out_cluster)
    TOW_MUST_USE;
/* Lent. */
const char *tow_local_cluster_address(const tow_local_cluster_t *cluster);
/* Lent. */
const char *tow_local_cluster_token_file(const tow_local_cluster_t *cluster);
/* Its controller and its only worker are one process. */
bool tow_local_cluster_is_joint(const tow_local_cluster_t *cluster);
/* The tow_local_cluster_t: an error if `tow up` has ended, so that nobody starts
 * its processes again. */
tow_status_t tow_local_cluster_check(void *context) TOW_MUST_USE;
/* Ends all its processes and removes what they left. NULL is fine. */
void tow_local_cluster_stop(tow_local_cluster_t *cluster);

/* Where `tow up` keeps what belongs to its cluster unless told otherwise:
 * XDG_RUNTIME_DIR/towpath, or /tmp/towpath-UID. */
void tow_local_run_folder(char *path, size_t capacity);

/* What a client needs to dial `address`: the token of `token_file`; or, if that
 * is NULL, of TOW_TOKEN_FILE; beside the socket of a "unix:" address; in
 * ~/.config/towpath; or of a cluster that `tow up` started: the first of these
 * that there is, and no token if there is none. A cert.pem beside the token is
 * whom TLS believes. tow_tls_context_destroy(out_security->tls). */
tow_status_t tow_local_security(const char *token_file, const char *address,
                                tow_security_t *out_security) TOW_MUST_USE;
/* One that no other client has. */
uint64_t tow_local_random(void);
/* The end of what a process wrote into its log, for an error about it. */
void tow_local_quote_log(const char *path, char *text, size_t capacity);
/* Runs it on a thread that nobody waits for; in place if none can be had. */
void tow_local_detach(void *(*run)(void *context), void *context);

#endif /* TOW_CLIENT_LOCAL_H_ */
