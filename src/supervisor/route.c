#include "supervisor/route.h"

#include <arpa/inet.h>
#include <errno.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

/* Any address that is not ours and not local will do. */
static const char some_ipv4[] = "192.0.2.1";
static const char some_ipv6[] = "2001:db8::1";

static bool is_any(const char *host)
{
    return strcmp(host, "0.0.0.0") == 0 || strcmp(host, "::") == 0;
}

static tow_status_t format(const struct sockaddr *address, char *host,
                           size_t capacity)
{
    const socklen_t size = address->sa_family == AF_INET6
                               ? sizeof(struct sockaddr_in6)
                               : sizeof(struct sockaddr_in);
    const int error = getnameinfo(address, size, host, (socklen_t)capacity,
                                  NULL, 0, NI_NUMERICHOST);
    if (error == 0) return TOW_OK;
    return TOW_ERROR(TOW_INTERNAL, "formatting an address of this host: %s",
                     gai_strerror(error));
}

/* Connecting a datagram socket sends nothing, but chooses the source. */
static tow_status_t source_of(const struct addrinfo *to, char *host,
                              size_t capacity)
{
    struct sockaddr_storage own = {0};
    socklen_t size = sizeof(own);
    const int fd = socket(to->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (fd < 0) return TOW_ERRNO(errno, "opening a socket");
    const bool is_known = connect(fd, to->ai_addr, to->ai_addrlen) == 0 &&
                          getsockname(fd, (struct sockaddr *)&own, &size) == 0;
    const int error = errno;
    close(fd);
    if (!is_known) return TOW_ERRNO(error, "finding the route");
    return format((const struct sockaddr *)&own, host, capacity);
}

tow_status_t tow_route_source(const tow_address_t *to, char *host,
                              size_t capacity)
{
    const char *target = to->host;
    if (is_any(target)) target = target[0] == ':' ? some_ipv6 : some_ipv4;
    const struct addrinfo hints = {.ai_socktype = SOCK_DGRAM};
    struct addrinfo *found = NULL;
    /* Resolved in full before `host`, which may be to->host, is written. */
    const int error = getaddrinfo(target, "9", &hints, &found);
    if (error != 0)
        return TOW_ERROR(TOW_UNAVAILABLE, "%s: resolving the name: %s",
                         to->host, gai_strerror(error));
    char name[sizeof(to->host)];
    snprintf(name, sizeof(name), "%s", to->host);
    tow_status_t status = TOW_OK;
    for (const struct addrinfo *at = found; at != NULL; at = at->ai_next) {
        tow_status_release(status);
        status = source_of(at, host, capacity);
        if (status == TOW_OK) break;
    }
    freeaddrinfo(found);
    return tow_status_annotate(
        status, "%s: choosing our address (--data names an interface)", name);
}

/* Link-local addresses need a scope, which addresses of ours do not have. */
static bool is_usable(const struct ifaddrs *at, const char *name)
{
    if (at->ifa_addr == NULL || strcmp(at->ifa_name, name) != 0) return false;
    if (at->ifa_addr->sa_family == AF_INET) return true;
    if (at->ifa_addr->sa_family != AF_INET6) return false;
    const struct sockaddr_in6 *ipv6 = (const struct sockaddr_in6 *)at->ifa_addr;
    return !IN6_IS_ADDR_LINKLOCAL(&ipv6->sin6_addr);
}

static tow_status_t address_of_interface(const char *name, char *host,
                                         size_t capacity)
{
    struct ifaddrs *all = NULL;
    if (getifaddrs(&all) != 0)
        return TOW_ERRNO(errno, "listing network interfaces");
    const struct ifaddrs *at = all;
    while (at != NULL && !is_usable(at, name))
        at = at->ifa_next;
    tow_status_t status =
        at != NULL ? format(at->ifa_addr, host, capacity)
                   : TOW_ERROR(TOW_INVALID_ARGUMENT,
                               "network interface %s has no address; `ip "
                               "address` shows those of this host",
                               name);
    freeifaddrs(all);
    return status;
}

tow_status_t tow_route_named(const char *name, char *host, size_t capacity)
{
    struct in6_addr parsed;
    if (inet_pton(AF_INET, name, &parsed) == 1 ||
        inet_pton(AF_INET6, name, &parsed) == 1) {
        snprintf(host, capacity, "%s", name);
        return TOW_OK;
    }
    if (if_nametoindex(name) == 0)
        return TOW_ERROR(TOW_INVALID_ARGUMENT,
                         "'%s' is neither a network interface nor an address "
                         "of this host; `ip address` shows them",
                         name);
    return address_of_interface(name, host, capacity);
}
