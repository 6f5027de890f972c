/* The hosts of a cluster, as a text file lists them for `tow up --hosts`:
 *
 *     # one host per line
 *     node-1
 *     node-2 devices=4 workers=2 island=left
 *     node-3 ssh=me@10.0.0.3 port=2222 tow=/opt/towpath/bin/tow
 *
 * Parsing is a pure function. Hosts, users, paths and names consist of characters
 * that no shell interprets, and begin with none that a program takes for an
 * option. */
#ifndef TOW_SUPERVISOR_HOSTS_FILE_H_
#define TOW_SUPERVISOR_HOSTS_FILE_H_

#include <stddef.h>
#include <stdint.h>

#include "base/macros.h"
#include "base/status.h"

#define TOW_HOSTS_MAX            256u
#define TOW_HOSTS_WORKERS_MAX    256u /* of all hosts */
#define TOW_HOSTS_TEXT_BYTES_MAX (1u << 20)
#define TOW_HOST_NAME_MAX        56u /* leaves room for "-255" in a worker's */
#define TOW_HOST_WORD_MAX        255u

typedef struct tow_host {
    /* For ssh, for messages, and of its workers. Workers report the name that
     * the host gives itself. */
    char name[TOW_HOST_NAME_MAX + 1];
    char ssh[TOW_HOST_WORD_MAX + 1];    /* destination for ssh; the name */
    char tow[TOW_HOST_WORD_MAX + 1];    /* the program there; "tow" */
    char island[TOW_HOST_NAME_MAX + 1]; /* "": the default */
    uint32_t device_count;              /* of each worker; 0: the default */
    uint32_t worker_count;
    uint32_t port; /* of ssh; 0: its default */
    uint32_t line; /* in the file */
} tow_host_t;

typedef struct tow_hosts {
    tow_host_t *items; /* owned */
    size_t count;
    size_t worker_count; /* of all hosts */
} tow_hosts_t;

/* `path` is for messages. INVALID_ARGUMENT, in one line that begins with
 * "PATH:LINE: ": a line that is malformed, a host that is there twice, or too
 * many hosts or workers; or no host at all. */
tow_status_t tow_hosts_parse(const char *path, const char *text, size_t size,
                             tow_hosts_t *out_hosts) TOW_MUST_USE;
/* Reads the file and parses it. NOT_FOUND: there is no such file. */
tow_status_t tow_hosts_load(const char *path, tow_hosts_t *out_hosts)
    TOW_MUST_USE;
void tow_hosts_deinit(tow_hosts_t *hosts);

#endif /* TOW_SUPERVISOR_HOSTS_FILE_H_ */
