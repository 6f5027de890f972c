/* The bare minimum that TLS lanes are measured against: two processes, one TCP
 * connection, OpenSSL with TLS 1.3, blocking sockets.
 *
 *     tls_pump serve ADDRESS CERTIFICATE KEY [CIPHER]
 *         prints the port and serves one connection
 *     tls_pump pump ADDRESS PORT COUNT [CIPHER]
 *         sends 64 MiB COUNT times, each acknowledged by one byte, and prints
 *         the seconds of one
 *     tls_pump roundtrip ADDRESS PORT COUNT [CIPHER]
 *         prints the median round trip of 8 bytes in us
 *
 * CIPHER is a suite of TLS 1.3 (TLS_AES_128_GCM_SHA256). */
#include <arpa/inet.h>
#include <netinet/tcp.h>
#include <openssl/ssl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "bare.h"

#define PUMP_BYTES     ((size_t)64 << 20)
#define CHUNK_BYTES    ((size_t)1 << 20)
#define MESSAGE_SIZE   8
#define DEFAULT_CIPHER "TLS_AES_128_GCM_SHA256"

/* The first bytes of a connection. */
typedef struct request {
    uint64_t is_pump;
    uint64_t count;
} request_t;

/* -- TLS ------------------------------------------------------------------- */

/* OpenSSL's defaults: reading ahead, into a larger buffer, was 10 % slower. */
static SSL_CTX *make_context(const char *cipher)
{
    SSL_CTX *context = SSL_CTX_new(TLS_method());
    if (context == NULL ||
        SSL_CTX_set_min_proto_version(context, TLS1_3_VERSION) != 1 ||
        SSL_CTX_set_ciphersuites(context, cipher) != 1)
        die("making a TLS context");
    return context;
}

static SSL *make_connection(SSL_CTX *context, int fd)
{
    const int yes = 1;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof(yes));
    SSL *tls = SSL_new(context);
    if (tls == NULL || SSL_set_fd(tls, fd) != 1) die("making a TLS connection");
    return tls;
}

static void read_exactly(SSL *tls, void *bytes, size_t count)
{
    for (char *at = bytes; count > 0;) {
        size_t got = 0;
        if (SSL_read_ex(tls, at, count, &got) != 1) die("SSL_read");
        at += got;
        count -= got;
    }
}

static void write_exactly(SSL *tls, const void *bytes, size_t count)
{
    const char *at = bytes;
    while (count > 0) {
        const size_t chunk = count < CHUNK_BYTES ? count : CHUNK_BYTES;
        size_t put = 0;
        if (SSL_write_ex(tls, at, chunk, &put) != 1) die("SSL_write");
        at += put;
        count -= put;
    }
}

static struct sockaddr_in parse_address(const char *host, int port)
{
    struct sockaddr_in address = {.sin_family = AF_INET,
                                  .sin_port = htons((uint16_t)port)};
    if (inet_pton(AF_INET, host, &address.sin_addr) != 1) die(host);
    return address;
}

static char *make_memory(void)
{
    char *bytes = malloc(PUMP_BYTES);
    if (bytes == NULL) die("malloc");
    memset(bytes, 1, PUMP_BYTES);
    return bytes;
}

/* -- Serving --------------------------------------------------------------- */

static int accept_one(const char *host)
{
    struct sockaddr_in address = parse_address(host, 0);
    socklen_t size = sizeof(address);
    int listener = socket(AF_INET, SOCK_STREAM, 0);
    if (listener < 0 ||
        bind(listener, (struct sockaddr *)&address, size) != 0 ||
        listen(listener, 1) != 0 ||
        getsockname(listener, (struct sockaddr *)&address, &size) != 0)
        die("listening");
    printf("%d\n", ntohs(address.sin_port));
    fflush(stdout);
    int fd = accept(listener, NULL, NULL);
    if (fd < 0) die("accept");
    return fd;
}

static void answer(SSL *tls)
{
    request_t request;
    char message[MESSAGE_SIZE] = {0};
    read_exactly(tls, &request, sizeof(request));
    char *memory = request.is_pump ? make_memory() : NULL;
    write_exactly(tls, message, 1); /* ready */
    for (uint64_t i = 0; i < request.count; i++) {
        if (request.is_pump) {
            read_exactly(tls, memory, PUMP_BYTES);
            write_exactly(tls, message, 1);
        } else {
            read_exactly(tls, message, sizeof(message));
            write_exactly(tls, message, sizeof(message));
        }
    }
    free(memory);
}

static int serve(int argc, char **argv)
{
    SSL_CTX *context = make_context(argc > 5 ? argv[5] : DEFAULT_CIPHER);
    if (SSL_CTX_use_certificate_chain_file(context, argv[3]) != 1 ||
        SSL_CTX_use_PrivateKey_file(context, argv[4], SSL_FILETYPE_PEM) != 1)
        die("loading the certificate");
    SSL *tls = make_connection(context, accept_one(argv[2]));
    if (SSL_accept(tls) != 1) die("SSL_accept");
    answer(tls);
    SSL_shutdown(tls);
    SSL_free(tls);
    SSL_CTX_free(context);
    return 0;
}

/* -- Measuring ------------------------------------------------------------- */

static double pump(SSL *tls, uint64_t count)
{
    char acknowledgement, *memory = make_memory();
    const double start = now_s();
    for (uint64_t i = 0; i < count; i++) {
        write_exactly(tls, memory, PUMP_BYTES);
        read_exactly(tls, &acknowledgement, 1);
    }
    const double seconds = (now_s() - start) / (double)count;
    free(memory);
    return seconds;
}

static double roundtrip(SSL *tls, uint64_t count)
{
    char message[MESSAGE_SIZE] = {0};
    double *samples = calloc(count, sizeof(*samples));
    if (samples == NULL) die("calloc");
    double before = now_s();
    for (uint64_t i = 0; i < count; i++) {
        write_exactly(tls, message, sizeof(message));
        read_exactly(tls, message, sizeof(message));
        const double after = now_s();
        samples[i] = after - before;
        before = after;
    }
    const double us = median_of(samples, count) * 1e6;
    free(samples);
    return us;
}

static int measure(int argc, char **argv)
{
    SSL_CTX *context = make_context(argc > 5 ? argv[5] : DEFAULT_CIPHER);
    const struct sockaddr_in address = parse_address(argv[2], atoi(argv[3]));
    const request_t request = {.is_pump = strcmp(argv[1], "pump") == 0,
                               .count = strtoull(argv[4], NULL, 10)};
    char ready;
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    if (fd < 0 ||
        connect(fd, (const struct sockaddr *)&address, sizeof(address)) != 0)
        die("connect");
    SSL *tls = make_connection(context, fd);
    if (SSL_connect(tls) != 1) die("SSL_connect");
    write_exactly(tls, &request, sizeof(request));
    read_exactly(tls, &ready, 1);
    printf("%.9g\n", request.is_pump ? pump(tls, request.count)
                                     : roundtrip(tls, request.count));
    SSL_shutdown(tls);
    SSL_free(tls);
    SSL_CTX_free(context);
    return 0;
}

int main(int argc, char **argv)
{
    if (argc >= 5 && strcmp(argv[1], "serve") == 0) return serve(argc, argv);
    if (argc >= 5 && atoll(argv[4]) > 0 &&
        (strcmp(argv[1], "pump") == 0 || strcmp(argv[1], "roundtrip") == 0))
        return measure(argc, argv);
    fprintf(stderr,
            "usage: tls_pump serve ADDRESS CERTIFICATE KEY [CIPHER]\n"
            "       tls_pump pump|roundtrip ADDRESS PORT COUNT [CIPHER]\n");
    return 2;
}
