/* The hosts of `tow up --hosts`, before the cluster starts on them. */
#ifndef TOW_TOOL_UP_HOSTS_H_
#define TOW_TOOL_UP_HOSTS_H_

#include <stdbool.h>
#include <stddef.h>

#include "base/macros.h"
#include "base/status.h"
#include "supervisor/hosts_file.h"

typedef struct tow_up_hosts_options {
    const char *file;    /* of the hosts */
    const char *address; /* of the controller; NULL: chosen */
    const char *folder;  /* of the cluster */
    bool has_keys;       /* false: makes them, in the folder */
    void (*report)(void *context, const char *line); /* progress */
    void *context;
} tow_up_hosts_options_t;

/* Reads the file, checks the hosts over ssh, chooses the address on which the
 * controller listens, and makes the keys. After an error nothing is left. */
tow_status_t tow_up_hosts_open(const tow_up_hosts_options_t *options,
                               tow_hosts_t *out_hosts, char *out_address,
                               size_t capacity) TOW_MUST_USE;
/* Removes the certificate that was made, and frees the hosts. */
void tow_up_hosts_close(const tow_up_hosts_options_t *options,
                        tow_hosts_t *hosts);

#endif /* TOW_TOOL_UP_HOSTS_H_ */
