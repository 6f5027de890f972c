#include "wire/address.h"

#include <arpa/inet.h> /* tow-allow: text to numbers, no sockets */
#include <stdio.h>
#include <string.h>

#include "base/assert.h"
#include "wire/text_impl.h"

/* Size of sun_path without the NUL. */
#define UNIX_PATH_MAX 107
/* What DNS allows. */
#define HOST_NAME_LENGTH_MAX  253
#define HOST_LABEL_LENGTH_MAX 63
#define SIM_NAME_MAX          63

static const struct {
    const char *prefix;
    tow_address_kind_t kind;
} schemes[] = {
    {"unix:", TOW_ADDRESS_UNIX},
    {"tcp:", TOW_ADDRESS_TCP},
    {"tls:", TOW_ADDRESS_TLS},
    {"sim:", TOW_ADDRESS_SIM},
};

/* Parsers return a description of the problem; NULL: none. */
typedef const char *problem_t;

static problem_t parse_path(const char *path, tow_address_t *out_address)
{
    size_t length = strlen(path);
    if (length == 0) return "the path is missing, as in unix:/run/towpath.sock";
    if (length > UNIX_PATH_MAX)
        return "the system allows 107 bytes in the path of a Unix socket; use "
               "a shorter one";
    memcpy(out_address->host, path, length + 1);
    return NULL;
}

static problem_t parse_sim_name(const char *name, tow_address_t *out_address)
{
    size_t length = strlen(name);
    if (!tow_text_is_name(name, length, SIM_NAME_MAX))
        return "a simulated name has 1 to 63 letters, digits and -_./, as in "
               "sim:worker/3";
    memcpy(out_address->host, name, length + 1);
    return NULL;
}

static problem_t parse_port(const char *text, uint16_t *out_port)
{
    unsigned long port = 0;
    if (*text == '\0') return "the port is missing, as in tcp:127.0.0.1:7000";
    for (; *text != '\0'; text++) {
        if (*text < '0' || *text > '9')
            return "the port is not a number, as in tcp:127.0.0.1:7000";
        port = port * 10 + (unsigned long)(*text - '0');
        if (port > UINT16_MAX) return "a port is at most 65535";
    }
    *out_port = (uint16_t)port;
    return NULL;
}

static bool is_ipv4(const char *host)
{
    struct in_addr ignored;
    return inet_pton(AF_INET, host, &ignored) == 1;
}

static bool is_ipv6(const char *host)
{
    struct in6_addr ignored;
    return inet_pton(AF_INET6, host, &ignored) == 1;
}

static bool is_host_character(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
           (c >= '0' && c <= '9') || c == '-' || c == '_';
}

/* Host names are case-insensitive: lower case makes them comparable, and makes
 * "LocalHost" local. */
static void lower(char *host)
{
    for (; *host != '\0'; host++) {
        if (*host >= 'A' && *host <= 'Z') *host = (char)(*host - 'A' + 'a');
    }
}

static problem_t check_host_name(const char *host)
{
    if (strlen(host) > HOST_NAME_LENGTH_MAX)
        return "a host name has at most 253 characters";
    bool numeric = true;
    while (true) {
        size_t length = 0;
        numeric = true;
        for (; is_host_character(host[length]); length++)
            numeric = numeric && host[length] >= '0' && host[length] <= '9';
        if (length == 0 || length > HOST_LABEL_LENGTH_MAX)
            return "the host is neither a name nor an address";
        host += length;
        if (*host == '\0') break;
        if (*host++ != '.')
            return "the host has a character that host names cannot have";
    }
    /* "127.1", "10.0.0.256": resolvers disagree about these, and we must know
     * which hosts are local. */
    return numeric ? "not an IPv4 address of four numbers" : NULL;
}

static problem_t parse_bracketed(const char *text, tow_address_t *out_address)
{
    const char *end = strchr(text, ']');
    if (end == NULL)
        return "the ] after the IPv6 address is missing, as in tcp:[::1]:7000";
    size_t length = (size_t)(end - text) - 1;
    memcpy(out_address->host, text + 1, length);
    out_address->host[length] = '\0';
    if (!is_ipv6(out_address->host)) return "no IPv6 address between [ and ]";
    if (end[1] != ':') return "the port is missing, as in tcp:[::1]:7000";
    return parse_port(end + 2, &out_address->port);
}

static problem_t parse_host_and_port(const char *text,
                                     tow_address_t *out_address)
{
    if (*text == '[') return parse_bracketed(text, out_address);
    const char *colon = strchr(text, ':');
    if (colon == NULL) return "the port is missing, as in tcp:127.0.0.1:7000";
    if (strchr(colon + 1, ':') != NULL)
        return "an IPv6 address stands in brackets, as in tcp:[::1]:7000";
    size_t length = (size_t)(colon - text);
    memcpy(out_address->host, text, length);
    out_address->host[length] = '\0';
    if (length == 0) return "the host is missing, as in tcp:127.0.0.1:7000";
    if (!is_ipv4(out_address->host)) {
        lower(out_address->host);
        problem_t problem = check_host_name(out_address->host);
        if (problem != NULL) return problem;
    }
    return parse_port(colon + 1, &out_address->port);
}

static problem_t parse(const char *text, tow_address_t *out_address)
{
    size_t length = strlen(text);
    if (length > TOW_ADDRESS_TEXT_MAX)
        return "an address has at most 255 characters";
    if (!tow_text_is_plain(text, length))
        return "an address is printable ASCII";
    for (size_t i = 0; i < TOW_COUNT_OF(schemes); i++) {
        size_t prefix_length = strlen(schemes[i].prefix);
        if (strncmp(text, schemes[i].prefix, prefix_length) != 0) continue;
        const char *rest = text + prefix_length;
        out_address->kind = schemes[i].kind;
        if (out_address->kind == TOW_ADDRESS_UNIX)
            return parse_path(rest, out_address);
        if (out_address->kind == TOW_ADDRESS_SIM)
            return parse_sim_name(rest, out_address);
        return parse_host_and_port(rest, out_address);
    }
    return "expected unix:PATH, tcp:HOST:PORT (this host only), tls:HOST:PORT "
           "or, in the simulator, sim:NAME";
}

tow_status_t tow_address_parse(const char *text, tow_address_t *out_address)
{
    TOW_ASSERT(text != NULL);
    TOW_ASSERT(out_address != NULL);
    *out_address = (tow_address_t){0};
    problem_t problem = parse(text, out_address);
    if (problem == NULL) return TOW_OK;
    char quoted[TOW_QUOTED_SIZE(64)];
    *out_address = (tow_address_t){0};
    return TOW_ERROR(TOW_INVALID_ARGUMENT, "address %s: %s",
                     tow_text_quote(text, strlen(text), quoted, sizeof(quoted)),
                     problem);
}

void tow_address_format(const tow_address_t *address, char *text,
                        size_t capacity)
{
    switch (address->kind) {
    case TOW_ADDRESS_UNIX:
        snprintf(text, capacity, "unix:%s", address->host);
        return;
    case TOW_ADDRESS_SIM:
        snprintf(text, capacity, "sim:%s", address->host);
        return;
    case TOW_ADDRESS_TCP:
    case TOW_ADDRESS_TLS: break;
    }
    bool bracketed = strchr(address->host, ':') != NULL;
    snprintf(text, capacity, "%s:%s%s%s:%u",
             address->kind == TOW_ADDRESS_TCP ? "tcp" : "tls",
             bracketed ? "[" : "", address->host, bracketed ? "]" : "",
             address->port);
}

bool tow_address_is_local(const tow_address_t *address)
{
    if (address->kind == TOW_ADDRESS_UNIX || address->kind == TOW_ADDRESS_SIM)
        return true;
    if (strcmp(address->host, "localhost") == 0) return true;
    struct in_addr v4;
    if (inet_pton(AF_INET, address->host, &v4) == 1)
        return ntohl(v4.s_addr) >> 24 == 127;
    struct in6_addr v6;
    return inet_pton(AF_INET6, address->host, &v6) == 1 &&
           memcmp(&v6, &in6addr_loopback, sizeof(v6)) == 0;
}

bool tow_address_is_same(const tow_address_t *a, const tow_address_t *b)
{
    return a->kind == b->kind && a->port == b->port &&
           strcmp(a->host, b->host) == 0;
}
