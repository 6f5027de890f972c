#include "tool/up_hosts.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "supervisor/daemon.h"
#include "supervisor/keys.h"
#include "supervisor/remote_worker.h"
#include "tool/version.h"
#include "wire/address.h"

/* The address on which the controller listens: --address, or the address of this
 * host as the hosts see it. */
static tow_status_t choose_address(const tow_up_hosts_options_t *options,
                                   const char *seen, tow_address_t *out_address)
{
    char host[TOW_DAEMON_HOST_SIZE], text[TOW_ADDRESS_TEXT_MAX + 32];
    tow_daemon_host_name(host);
    if (seen[0] == '\0') seen = host;
    snprintf(text, sizeof(text),
             strchr(seen, ':') != NULL ? "tls:[%s]:0" : "tls:%s:0", seen);
    const char *address = options->address != NULL ? options->address : text;
    TOW_RETURN_IF_ERROR(tow_status_annotate(
        tow_address_parse(address, out_address), "the controller's address"));
    if (out_address->kind == TOW_ADDRESS_TLS) return TOW_OK;
    return TOW_ERROR(TOW_INVALID_ARGUMENT,
                     "--address %s: other hosts need tls:HOST:PORT", address);
}

/* Creates a new token and a certificate for the controller's host. */
static tow_status_t make_keys(const char *folder, const char *host)
{
    tow_keys_t keys;
    TOW_RETURN_IF_ERROR(tow_keys_in(folder, &keys));
    unlink(keys.token);
    unlink(keys.certificate);
    unlink(keys.key);
    return tow_keys_make(&keys, host);
}

static void remove_keys(const char *folder)
{
    tow_keys_t keys;
    tow_status_t status = tow_keys_in(folder, &keys);
    if (status == TOW_OK) {
        unlink(keys.certificate);
        unlink(keys.key);
    }
    tow_status_ignore(status, "then there are none");
}

static tow_status_t prepare(const tow_up_hosts_options_t *options,
                            const tow_hosts_t *hosts, char *out_address,
                            size_t capacity)
{
    char version[160], seen[TOW_REMOTE_ADDRESS_SIZE];
    tow_address_t address;
    tow_version_line(version, sizeof(version));
    const tow_remote_check_t check = {.hosts = hosts,
                                      .version = version,
                                      .report = options->report,
                                      .context = options->context};
    TOW_RETURN_IF_ERROR(tow_remote_check(&check, seen));
    TOW_RETURN_IF_ERROR(choose_address(options, seen, &address));
    tow_address_format(&address, out_address, capacity);
    return options->has_keys ? TOW_OK
                             : make_keys(options->folder, address.host);
}

tow_status_t tow_up_hosts_open(const tow_up_hosts_options_t *options,
                               tow_hosts_t *out_hosts, char *out_address,
                               size_t capacity)
{
    TOW_RETURN_IF_ERROR(tow_hosts_load(options->file, out_hosts));
    tow_status_t status = prepare(options, out_hosts, out_address, capacity);
    if (status != TOW_OK) tow_up_hosts_close(options, out_hosts);
    return status;
}

void tow_up_hosts_close(const tow_up_hosts_options_t *options,
                        tow_hosts_t *hosts)
{
    if (!options->has_keys) remove_keys(options->folder);
    tow_hosts_deinit(hosts);
}
