/* The bare minimum that TLS lanes are measured against: two processes, TCP,
 * OpenSSL with TLS 1.3, blocking sockets.
 *
 *     tls_pump serve ADDRESS CERTIFICATE KEY [CIPHER]
 *         prints the port and serves one measurement
 *     tls_pump pump ADDRESS PORT COUNT [CIPHER [CONNECTIONS]]
 *         sends 64 MiB COUNT times, in equal parts over the connections, each
 *         with a thread on both sides; each part is acknowledged by one byte.
 *         Prints the seconds of one
 *     tls_pump roundtrip ADDRESS PORT COUNT [CIPHER [CONNECTIONS]]
 *         prints the median round trip of 8 bytes in us, over one connection
 *
 * CIPHER is a suite of TLS 1.3 (TLS_AES_128_GCM_SHA256). */
#include <arpa/inet.h>
#include <netinet/tcp.h>
#include <openssl/ssl.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "bare.h"

#define PUMP_BYTES     ((size_t)64 << 20)
#define CHUNK_BYTES    ((size_t)1 << 20)
#define MESSAGE_SIZE   8
#define CONNECTION_MAX 16
#define DEFAULT_CIPHER "TLS_AES_128_GCM_SHA256"

/* The first bytes of a connection. */
typedef struct request {
    uint64_t is_pump;
    uint64_t count;
    uint64_t connection_count;
} request_t;

static size_t part_of(const request_t *request)
{
    return PUMP_BYTES / request->connection_count;
}

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

static int listen_at(const char *host)
{
    struct sockaddr_in address = parse_address(host, 0);
    socklen_t size = sizeof(address);
    int listener = socket(AF_INET, SOCK_STREAM, 0);
    if (listener < 0 ||
        bind(listener, (struct sockaddr *)&address, size) != 0 ||
        listen(listener, CONNECTION_MAX) != 0 ||
        getsockname(listener, (struct sockaddr *)&address, &size) != 0)
        die("listening");
    printf("%d\n", ntohs(address.sin_port));
    fflush(stdout);
    return listener;
}

static SSL *accept_one(SSL_CTX *context, int listener, request_t *out_request)
{
    int fd = accept(listener, NULL, NULL);
    if (fd < 0) die("accept");
    SSL *tls = make_connection(context, fd);
    if (SSL_accept(tls) != 1) die("SSL_accept");
    read_exactly(tls, out_request, sizeof(*out_request));
    if (out_request->connection_count == 0 ||
        out_request->connection_count > CONNECTION_MAX)
        die("a request");
    return tls;
}

static void answer(SSL *tls, const request_t *request)
{
    char message[MESSAGE_SIZE] = {0};
    char *memory = request->is_pump ? make_memory() : NULL;
    write_exactly(tls, message, 1); /* ready */
    for (uint64_t i = 0; i < request->count; i++) {
        if (request->is_pump) {
            read_exactly(tls, memory, part_of(request));
            write_exactly(tls, message, 1);
        } else {
            read_exactly(tls, message, sizeof(message));
            write_exactly(tls, message, sizeof(message));
        }
    }
    free(memory);
}

/* One connection, with a thread of its own. */
typedef struct line {
    SSL *tls;
    request_t request;
    pthread_barrier_t *round; /* lent: all begin it at the same time */
    pthread_t thread;
} line_t;

static void *answer_line(void *argument)
{
    line_t *line = argument;
    answer(line->tls, &line->request);
    return NULL;
}

static void start(line_t *line, void *(*run)(void *argument))
{
    if (pthread_create(&line->thread, NULL, run, line) != 0)
        die("starting a thread");
}

static void end(line_t *line)
{
    pthread_join(line->thread, NULL);
    SSL_shutdown(line->tls);
    SSL_free(line->tls);
}

static int serve(int argc, char **argv)
{
    line_t lines[CONNECTION_MAX];
    SSL_CTX *context = make_context(argc > 5 ? argv[5] : DEFAULT_CIPHER);
    if (SSL_CTX_use_certificate_chain_file(context, argv[3]) != 1 ||
        SSL_CTX_use_PrivateKey_file(context, argv[4], SSL_FILETYPE_PEM) != 1)
        die("loading the certificate");
    const int listener = listen_at(argv[2]);
    uint64_t count = 1;
    for (uint64_t i = 0; i < count; i++) {
        lines[i].tls = accept_one(context, listener, &lines[i].request);
        count = lines[i].request.connection_count;
        start(&lines[i], answer_line);
    }
    for (uint64_t i = 0; i < count; i++)
        end(&lines[i]);
    SSL_CTX_free(context);
    return 0;
}

/* -- Measuring ------------------------------------------------------------- */

static void *pump_line(void *argument)
{
    const line_t *line = argument;
    char acknowledgement, *memory = make_memory();
    pthread_barrier_wait(line->round);
    for (uint64_t i = 0; i < line->request.count; i++) {
        write_exactly(line->tls, memory, part_of(&line->request));
        read_exactly(line->tls, &acknowledgement, 1);
        pthread_barrier_wait(line->round);
    }
    free(memory);
    return NULL;
}

/* The seconds of 64 MiB. */
static double pump(line_t *lines, const request_t *request)
{
    pthread_barrier_t round;
    pthread_barrier_init(&round, NULL, (unsigned)request->connection_count + 1);
    for (uint64_t i = 0; i < request->connection_count; i++) {
        lines[i].round = &round;
        start(&lines[i], pump_line);
    }
    pthread_barrier_wait(&round);
    const double before = now_s();
    for (uint64_t i = 0; i < request->count; i++)
        pthread_barrier_wait(&round);
    const double seconds = (now_s() - before) / (double)request->count;
    for (uint64_t i = 0; i < request->connection_count; i++)
        end(&lines[i]);
    pthread_barrier_destroy(&round);
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

static SSL *dial(SSL_CTX *context, const struct sockaddr_in *address,
                 const request_t *request)
{
    char ready;
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    if (fd < 0 ||
        connect(fd, (const struct sockaddr *)address, sizeof(*address)) != 0)
        die("connect");
    SSL *tls = make_connection(context, fd);
    if (SSL_connect(tls) != 1) die("SSL_connect");
    write_exactly(tls, request, sizeof(*request));
    read_exactly(tls, &ready, 1);
    return tls;
}

static int measure(int argc, char **argv)
{
    line_t lines[CONNECTION_MAX];
    SSL_CTX *context = make_context(argc > 5 ? argv[5] : DEFAULT_CIPHER);
    const struct sockaddr_in address = parse_address(argv[2], atoi(argv[3]));
    request_t request = {.is_pump = strcmp(argv[1], "pump") == 0,
                         .count = strtoull(argv[4], NULL, 10),
                         .connection_count = 1};
    if (argc > 6 && request.is_pump)
        request.connection_count = strtoull(argv[6], NULL, 10);
    for (uint64_t i = 0; i < request.connection_count; i++) {
        if (i == CONNECTION_MAX) die("so many connections");
        lines[i].tls = dial(context, &address, &request);
        lines[i].request = request;
    }
    if (request.is_pump) {
        printf("%.9g\n", pump(lines, &request));
    } else {
        printf("%.9g\n", roundtrip(lines[0].tls, request.count));
        SSL_shutdown(lines[0].tls);
        SSL_free(lines[0].tls);
    }
    SSL_CTX_free(context);
    return 0;
}

int main(int argc, char **argv)
{
    if (argc >= 5 && strcmp(argv[1], "serve") == 0) return serve(argc, argv);
    if (argc >= 5 && atoll(argv[4]) > 0 &&
        (strcmp(argv[1], "pump") == 0 || strcmp(argv[1], "roundtrip") == 0))
        return measure(argc, argv);
    fprintf(stderr, "usage: tls_pump serve ADDRESS CERTIFICATE KEY [CIPHER]\n"
                    "       tls_pump pump|roundtrip ADDRESS PORT COUNT "
                    "[CIPHER [CONNECTIONS]]\n");
    return 2;
}
