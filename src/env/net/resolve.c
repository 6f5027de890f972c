#include "env/net/resolve.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>
#include <sys/un.h>

static void add(tow_net_addresses_t *addresses, const void *address,
                socklen_t size)
{
    if (addresses->count == TOW_NET_RESOLVE_COUNT_MAX) return;
    TOW_ASSERT(size <= sizeof(addresses->items[0].storage));
    memcpy(&addresses->items[addresses->count].storage, address, size);
    addresses->items[addresses->count].size = size;
    addresses->count++;
}

static tow_net_resolve_result_t resolve_unix(const tow_address_t *address,
                                             tow_net_addresses_t *addresses,
                                             tow_status_t *out_error)
{
    struct sockaddr_un name = {.sun_family = AF_UNIX};
    size_t length = strlen(address->host);
    if (length == 0 || length >= sizeof(name.sun_path)) {
        *out_error = TOW_ERROR(
            TOW_INVALID_ARGUMENT,
            "unix:%s: a socket path of %zu bytes; the limit is %zu: use a "
            "shorter one",
            address->host, length, sizeof(name.sun_path) - 1);
        return TOW_NET_RESOLVE_BAD;
    }
    memcpy(name.sun_path, address->host, length + 1);
    add(addresses, &name, sizeof(name));
    return TOW_NET_RESOLVED;
}

static bool add_numeric(tow_net_addresses_t *addresses, const char *host,
                        uint16_t port)
{
    struct sockaddr_in ipv4 = {.sin_family = AF_INET, .sin_port = htons(port)};
    if (inet_pton(AF_INET, host, &ipv4.sin_addr) == 1) {
        add(addresses, &ipv4, sizeof(ipv4));
        return true;
    }
    struct sockaddr_in6 ipv6 = {.sin6_family = AF_INET6,
                                .sin6_port = htons(port)};
    if (inet_pton(AF_INET6, host, &ipv6.sin6_addr) == 1) {
        add(addresses, &ipv6, sizeof(ipv6));
        return true;
    }
    return false;
}

tow_net_resolve_result_t tow_net_resolve_inline(
    const tow_address_t *address, tow_net_addresses_t *out_addresses,
    tow_status_t *out_error)
{
    *out_addresses = (tow_net_addresses_t){0};
    *out_error = TOW_OK;
    if (address->kind == TOW_ADDRESS_UNIX)
        return resolve_unix(address, out_addresses, out_error);
    if (address->kind == TOW_ADDRESS_SIM) {
        *out_error = TOW_ERROR(TOW_INVALID_ARGUMENT,
                               "sim:%s: exists in the simulator only: use a "
                               "unix:, tcp: or tls: address",
                               address->host);
        return TOW_NET_RESOLVE_BAD;
    }
    /* "localhost" means the same everywhere, whatever the hosts file says: the
     * security rules rely on it staying on this host. */
    if (strcmp(address->host, "localhost") == 0) {
        add_numeric(out_addresses, "127.0.0.1", address->port);
        add_numeric(out_addresses, "::1", address->port);
        return TOW_NET_RESOLVED;
    }
    return add_numeric(out_addresses, address->host, address->port)
               ? TOW_NET_RESOLVED
               : TOW_NET_RESOLVE_NAME;
}

tow_status_t tow_net_resolve_blocking(const tow_address_t *address,
                                      tow_net_addresses_t *out_addresses)
{
    *out_addresses = (tow_net_addresses_t){0};
    char port[8];
    snprintf(port, sizeof(port), "%u", address->port);
    const struct addrinfo hints = {.ai_socktype = SOCK_STREAM};
    struct addrinfo *found = NULL;
    int error = getaddrinfo(address->host, port, &hints, &found);
    if (error == EAI_SYSTEM)
        return TOW_ERRNO(errno, "resolving the name %s", address->host);
    if (error != 0)
        return TOW_ERROR(
            TOW_NOT_FOUND,
            "the name %s does not resolve (%s): check the spelling "
            "and the name service, or give the address in numbers",
            address->host, gai_strerror(error));
    for (struct addrinfo *item = found; item != NULL; item = item->ai_next)
        if (item->ai_family == AF_INET || item->ai_family == AF_INET6)
            add(out_addresses, item->ai_addr, item->ai_addrlen);
    freeaddrinfo(found);
    if (out_addresses->count == 0)
        return TOW_ERROR(TOW_NOT_FOUND, "the name %s has no internet address",
                         address->host);
    return TOW_OK;
}

static tow_status_t run(tow_work_t *work)
{
    tow_net_resolve_t *resolve =
        TOW_CONTAINER_OF(work, tow_net_resolve_t, work);
    return tow_net_resolve_blocking(&resolve->address, &resolve->addresses);
}

static void done(tow_work_t *work, tow_status_t take_status)
{
    tow_net_resolve_t *resolve =
        TOW_CONTAINER_OF(work, tow_net_resolve_t, work);
    resolve->done(resolve->context, resolve, take_status);
}

void tow_net_resolve_start(tow_env_t *env, tow_net_resolve_t *resolve)
{
    resolve->work.run = run;
    resolve->work.done = done;
    tow_env_work_start(env, &resolve->work);
}
