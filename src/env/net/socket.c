#include "env/net/socket.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <libgen.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/pidfd.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include "env/net/resolve.h"

/* Another process replaces a socket file within microseconds. */
#define LOCK_ATTEMPT_COUNT_MAX 1000
#define LOCK_PAUSE_NS          TOW_NS_PER_MS

tow_status_t tow_net_socket_open(const struct sockaddr *address, int *out_fd)
{
    *out_fd = socket(address->sa_family,
                     SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (*out_fd < 0) return TOW_ERRNO(errno, "opening a socket");
    tow_net_socket_tune(*out_fd);
    return TOW_OK;
}

static void set_number(int fd, int level, int option, int value)
{
    /* A failure costs speed or a longer timeout, never correctness. */
    (void)setsockopt(fd, level, option, &value, sizeof(value));
}

void tow_net_socket_tune(int fd)
{
    int domain = AF_UNSPEC;
    socklen_t size = sizeof(domain);
    if (getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &domain, &size) != 0 ||
        domain == AF_UNIX)
        return;
    set_number(fd, IPPROTO_TCP, TCP_NODELAY, 1);
    set_number(fd, SOL_SOCKET, SO_KEEPALIVE, 1);
    set_number(fd, IPPROTO_TCP, TCP_KEEPIDLE, TOW_NET_KEEPALIVE_IDLE_S);
    set_number(fd, IPPROTO_TCP, TCP_KEEPINTVL, TOW_NET_KEEPALIVE_INTERVAL_S);
    set_number(fd, IPPROTO_TCP, TCP_KEEPCNT, TOW_NET_KEEPALIVE_COUNT_MAX);
    set_number(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, TOW_NET_USER_TIMEOUT_MS);
}

static tow_status_t bind_source(int fd, int family, const char *source,
                                bool *out_is_address)
{
    struct sockaddr_in ipv4 = {.sin_family = AF_INET};
    struct sockaddr_in6 ipv6 = {.sin6_family = AF_INET6};
    const bool is_ipv4 = inet_pton(AF_INET, source, &ipv4.sin_addr) == 1;
    const bool is_ipv6 = inet_pton(AF_INET6, source, &ipv6.sin6_addr) == 1;
    *out_is_address = is_ipv4 || is_ipv6;
    if (!*out_is_address) return TOW_OK;
    if ((family == AF_INET) != is_ipv4)
        return TOW_ERROR(TOW_INVALID_ARGUMENT,
                         "connecting from %s (TOW_DATA, --data): the peer has "
                         "an address of the other IP version",
                         source);
    const int result =
        is_ipv4 ? bind(fd, (const struct sockaddr *)&ipv4, sizeof(ipv4))
                : bind(fd, (const struct sockaddr *)&ipv6, sizeof(ipv6));
    if (result == 0) return TOW_OK;
    return TOW_ERRNO(errno,
                     "connecting from %s (TOW_DATA, --data): `ip address` "
                     "shows the addresses of this host",
                     source);
}

tow_status_t tow_net_socket_use_source(int fd, int family, const char *source)
{
    bool is_address;
    if (family == AF_UNIX) return TOW_OK;
    TOW_RETURN_IF_ERROR(bind_source(fd, family, source, &is_address));
    if (is_address || setsockopt(fd, SOL_SOCKET, SO_BINDTODEVICE, source,
                                 (socklen_t)strlen(source) + 1) == 0)
        return TOW_OK;
    return TOW_ERRNO(errno,
                     "connecting from '%s' (TOW_DATA, --data), which should be "
                     "a network interface or an address of this host",
                     source);
}

/* -- Peer names ----------------------------------------------------------- */

typedef union internet_name {
    struct sockaddr any;
    struct sockaddr_in ipv4;
    struct sockaddr_in6 ipv6;
} internet_name_t;

static uint16_t port_of(const internet_name_t *name)
{
    return ntohs(name->any.sa_family == AF_INET6 ? name->ipv6.sin6_port
                                                 : name->ipv4.sin_port);
}

static void format_internet(tow_address_kind_t kind,
                            const internet_name_t *name, char *text,
                            size_t capacity)
{
    tow_address_t address = {.kind = kind, .port = port_of(name)};
    const void *host = &name->ipv4.sin_addr;
    if (name->any.sa_family == AF_INET6) host = &name->ipv6.sin6_addr;
    inet_ntop(name->any.sa_family, host, address.host, sizeof(address.host));
    tow_address_format(&address, text, capacity);
}

void tow_net_socket_describe_peer(int fd, const tow_address_t *listening,
                                  char *text, size_t capacity)
{
    if (listening->kind == TOW_ADDRESS_UNIX) {
        struct ucred peer = {0};
        socklen_t size = sizeof(peer);
        (void)getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &size);
        snprintf(text, capacity, "unix:%s (process %ld)", listening->host,
                 (long)peer.pid);
        return;
    }
    internet_name_t name = {.ipv6 = {0}};
    socklen_t size = sizeof(name);
    if (getpeername(fd, &name.any, &size) != 0)
        tow_address_format(listening, text,
                           capacity); /* Already disconnected. */
    else
        format_internet(listening->kind, &name, text, capacity);
}

int tow_net_socket_peer_process(int fd)
{
    struct ucred peer = {0};
    socklen_t size = sizeof(peer);
    if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &size) != 0 ||
        peer.pid <= 0 || peer.pid == getpid())
        return -1;
    return pidfd_open(peer.pid, 0);
}

/* -- Unix sockets --------------------------------------------------------- */

/* Serializes all processes that bind in a folder, so that two which find the
 * same stale socket file do not remove each other's new one. The lock is on the
 * folder itself and leaves no file behind. A folder that cannot be locked (-1)
 * is used without it. */
static int lock_folder(const char *path)
{
    char copy[TOW_ADDRESS_TEXT_MAX + 1];
    snprintf(copy, sizeof(copy), "%s", path);
    int fd = open(dirname(copy), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0) return -1;
    for (int i = 0; i < LOCK_ATTEMPT_COUNT_MAX; i++) {
        if (flock(fd, LOCK_EX | LOCK_NB) == 0) return fd;
        const struct timespec pause = {.tv_nsec = LOCK_PAUSE_NS};
        nanosleep(&pause, NULL);
    }
    close(fd);
    return -1;
}

/* TOW_OK if no process listens on the socket file at `name`. */
static tow_status_t check_is_dead(const struct sockaddr_un *name)
{
    struct stat file;
    if (lstat(name->sun_path, &file) == 0 && !S_ISSOCK(file.st_mode))
        return TOW_ERROR(TOW_ALREADY_EXISTS,
                         "unix:%s: the path exists and is not a socket: "
                         "choose another path, or remove it",
                         name->sun_path);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd < 0) return TOW_ERRNO(errno, "opening a socket");
    int result = connect(fd, (const struct sockaddr *)name, sizeof(*name));
    int error = result == 0 ? 0 : errno;
    close(fd);
    if (error == ECONNREFUSED || error == ENOENT) return TOW_OK;
    if (error == 0 || error == EAGAIN)
        return TOW_ERROR(TOW_ALREADY_EXISTS,
                         "unix:%s: another process listens there: end it, or "
                         "choose another path",
                         name->sun_path);
    return TOW_ERRNO(error,
                     "unix:%s: checking whether another process listens there",
                     name->sun_path);
}

static tow_status_t bind_unix(int fd, const struct sockaddr_un *name)
{
    /* The file inherits the socket's mode: it is private from the start,
     * without changing the umask, which all threads share. */
    if (fchmod(fd, 0600) != 0)
        return TOW_ERRNO(errno, "unix:%s: making it private", name->sun_path);
    const struct sockaddr *address = (const struct sockaddr *)name;
    if (bind(fd, address, sizeof(*name)) == 0) return TOW_OK;
    if (errno != EADDRINUSE)
        return TOW_ERRNO(errno, "unix:%s: making the socket there",
                         name->sun_path);
    TOW_RETURN_IF_ERROR(check_is_dead(name));
    (void)unlink(name->sun_path); /* If that fails, bind reports why. */
    if (bind(fd, address, sizeof(*name)) == 0) return TOW_OK;
    return TOW_ERRNO(errno, "unix:%s: replacing the socket of a dead process",
                     name->sun_path);
}

static tow_status_t start_listening(int fd, const tow_address_t *address)
{
    if (listen(fd, TOW_NET_LISTEN_BACKLOG) == 0) return TOW_OK;
    int error = errno;
    char text[TOW_ADDRESS_TEXT_MAX + 32];
    tow_address_format(address, text, sizeof(text));
    if (error == EADDRINUSE)
        return TOW_ERROR(TOW_ALREADY_EXISTS,
                         "%s: another process listens there: end it, or choose "
                         "another port (0 lets the system choose)",
                         text);
    return TOW_ERRNO(error, "%s: listening", text);
}

static tow_status_t listen_unix(int fd, const tow_address_t *address,
                                const struct sockaddr_un *name,
                                tow_net_socket_file_t *out_file)
{
    int lock_fd = lock_folder(name->sun_path);
    tow_status_t status = bind_unix(fd, name);
    if (status == TOW_OK) {
        struct stat file;
        if (lstat(name->sun_path, &file) == 0)
            *out_file = (tow_net_socket_file_t){file.st_dev, file.st_ino};
        status = start_listening(fd, address);
    }
    if (lock_fd >= 0) close(lock_fd);
    return status;
}

void tow_net_socket_file_remove(const char *path,
                                const tow_net_socket_file_t *file)
{
    struct stat now;
    if (file->inode == 0 || lstat(path, &now) != 0) return;
    if (now.st_dev == file->device && now.st_ino == file->inode) unlink(path);
}

/* -- TCP ------------------------------------------------------------------ */

static tow_status_t listen_internet(int fd, tow_address_t *address,
                                    const struct sockaddr *name, socklen_t size)
{
    set_number(fd, SOL_SOCKET, SO_REUSEADDR, 1);
    char text[TOW_ADDRESS_TEXT_MAX + 32];
    tow_address_format(address, text, sizeof(text));
    if (bind(fd, name, size) != 0) {
        if (errno == EADDRINUSE)
            return TOW_ERROR(
                TOW_ALREADY_EXISTS,
                "%s: the port is in use: end the process that has it (`ss "
                "-ltnp` names it), or choose another (0 lets the system choose)",
                text);
        if (errno == EADDRNOTAVAIL)
            return TOW_ERROR(TOW_INVALID_ARGUMENT,
                             "%s: binding: this host does not have that "
                             "address; `ip address` shows those that it has",
                             text);
        return TOW_ERRNO(errno, "%s: binding", text);
    }
    TOW_RETURN_IF_ERROR(start_listening(fd, address));
    internet_name_t bound = {.ipv6 = {0}};
    socklen_t bound_size = sizeof(bound);
    if (getsockname(fd, &bound.any, &bound_size) != 0)
        return TOW_ERRNO(errno, "%s: asking for the port", text);
    address->port = port_of(&bound);
    return TOW_OK;
}

static tow_status_t resolve_to_listen(const tow_address_t *address,
                                      tow_net_addresses_t *addresses)
{
    tow_status_t error = TOW_OK;
    switch (tow_net_resolve_inline(address, addresses, &error)) {
    case TOW_NET_RESOLVED: return TOW_OK;
    case TOW_NET_RESOLVE_BAD: return error;
    case TOW_NET_RESOLVE_NAME: break;
    }
    /* Listening is set-up: the caller may block on the resolver. */
    return tow_net_resolve_blocking(address, addresses);
}

tow_status_t tow_net_socket_listen(tow_address_t *address, int *out_fd,
                                   tow_net_socket_file_t *out_file)
{
    *out_fd = -1;
    *out_file = (tow_net_socket_file_t){0};
    tow_net_addresses_t addresses;
    TOW_RETURN_IF_ERROR(resolve_to_listen(address, &addresses));
    const struct sockaddr *name =
        (const struct sockaddr *)&addresses.items[0].storage;
    int fd;
    TOW_RETURN_IF_ERROR(tow_net_socket_open(name, &fd));
    tow_status_t status =
        address->kind == TOW_ADDRESS_UNIX
            ? listen_unix(fd, address, (const struct sockaddr_un *)name,
                          out_file)
            : listen_internet(fd, address, name, addresses.items[0].size);
    if (status != TOW_OK) {
        tow_net_socket_file_remove(address->host, out_file);
        close(fd);
        return status;
    }
    *out_fd = fd;
    return TOW_OK;
}
