/* A cluster of child processes, for a client without an address. It ends with
 * this process, even if that is killed. */
#ifndef TOW_CLIENT_LOCAL_CLUSTER_H_
#define TOW_CLIENT_LOCAL_CLUSTER_H_

#include <towpath/towpath.h>

#include "base/macros.h"
#include "wire/security.h"

typedef struct tow_local_cluster tow_local_cluster_t;

/* Starts `tow up` (TOW_COMMAND, or beside this library in a build folder, or
 * where it is installed, or in PATH) with posix_spawn, and waits until it is
 * ready. Errors quote its output. */
tow_status_t tow_local_cluster_start(const tow_client_options_t *options,
                                     tow_local_cluster_t **out_cluster)
    TOW_MUST_USE;
/* Borrowed. */
const char *tow_local_cluster_address(const tow_local_cluster_t *cluster);
/* Borrowed. */
const char *tow_local_cluster_token_file(const tow_local_cluster_t *cluster);
/* Its controller and its only worker are one process. */
bool tow_local_cluster_is_joint(const tow_local_cluster_t *cluster);
/* `context` is the tow_local_cluster_t. An error if `tow up` has ended, so that
 * its processes will not be restarted. */
tow_status_t tow_local_cluster_check(void *context) TOW_MUST_USE;
/* Ends all its processes and removes their files. NULL is fine. */
void tow_local_cluster_stop(tow_local_cluster_t *cluster);

/* The default folder for the files of `tow up`:
 * XDG_RUNTIME_DIR/towpath, or /tmp/towpath-UID. */
void tow_local_cluster_run_folder(char *path, size_t capacity);

typedef enum tow_credentials_use {
    TOW_CREDENTIALS_TO_DIAL,
    TOW_CREDENTIALS_TO_LISTEN, /* and to dial */
} tow_credentials_use_t;

/* The credentials for `address`: the token of `token_file`; or, if that
 * is NULL, of TOW_TOKEN_FILE; beside the socket of a "unix:" address; in
 * ~/.config/towpath; or of a cluster that `tow up` started: the first of these
 * that there is, and no token if there is none. For a tls: address, diallers
 * trust the cert.pem beside the token; without one the token alone
 * authenticates. Listeners present it if key.pem is there too, and otherwise a
 * certificate made for this process.
 * tow_tls_context_destroy(out_security->tls). */
tow_status_t tow_local_cluster_security(const char *token_file,
                                        const char *address,
                                        tow_credentials_use_t use,
                                        tow_security_t *out_security)
    TOW_MUST_USE;
/* A random number, to make names unique. */
uint64_t tow_local_cluster_random(void);
/* The end of a process's log, to quote in an error. */
void tow_local_cluster_quote_log(const char *path, char *text, size_t capacity);
/* Runs it on a detached thread, or in place if there can be none. */
void tow_local_cluster_detach_thread(void *(*run)(void *context),
                                     void *context);

#endif /* TOW_CLIENT_LOCAL_CLUSTER_H_ */
