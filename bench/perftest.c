#include "bench/perftest.h"

#include <errno.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "supervisor/subprocess.h"

#define TIMEOUT_NS   INT64_C(30000000000)
#define ATTEMPTS     20
#define ATTEMPT_US   100000
#define FIELDS_MAX   16
#define OUTPUT_BYTES 8192

/* The last line of the output has eight numbers: iterations; one-way latency in
 * us (median, average, overall); bandwidth in MiB/s (average, overall); message
 * rate (average, overall). Fields are counted from the end. */
enum {
    PERFTEST_BANDWIDTH = 2,
    PERFTEST_MEDIAN = 6
};

static char *last_line(char *text)
{
    char *last = NULL, *save = NULL;
    for (char *line = strtok_r(text, "\n", &save); line != NULL;
         line = strtok_r(NULL, "\n", &save))
        if (strstr(line, "Final:") != NULL || strspn(line, " 0123456789.") > 40)
            last = line;
    return last;
}

static tow_status_t parse(char *text, tow_bench_perftest_result_t *out_result)
{
    char *line = last_line(text), *save = NULL, *fields[FIELDS_MAX];
    if (line == NULL)
        return TOW_ERROR(TOW_INTERNAL, "ucx_perftest printed no result");
    int count = 0;
    for (char *field = strtok_r(line, " ", &save);
         field != NULL && count < FIELDS_MAX;
         field = strtok_r(NULL, " ", &save))
        fields[count++] = field;
    if (count <= PERFTEST_MEDIAN)
        return TOW_ERROR(TOW_INTERNAL, "ucx_perftest printed too few numbers");
    out_result->latency_us = strtod(fields[count - 1 - PERFTEST_MEDIAN], NULL);
    out_result->bytes_per_second =
        strtod(fields[count - 1 - PERFTEST_BANDWIDTH], NULL) * 1048576;
    if (out_result->latency_us > 0 && out_result->bytes_per_second > 0)
        return TOW_OK;
    return TOW_ERROR(TOW_INTERNAL, "ucx_perftest printed no numbers");
}

static tow_status_t start(const tow_bench_perftest_t *test,
                          const tow_bench_place_t *place, const char *host,
                          uint16_t port, tow_subprocess_t *out_process)
{
    char size[32], count[32], port_text[16];
    snprintf(size, sizeof(size), "%llu", (unsigned long long)test->size);
    snprintf(count, sizeof(count), "%llu", (unsigned long long)test->count);
    snprintf(port_text, sizeof(port_text), "%u", port);
    char *argv[16] = {
        "ucx_perftest", "-t", (char *)test->name, "-s", size, "-n",
        count,          "-p", port_text,          "-w", "10", "-f"};
    size_t argument_count = 12;
    if (test->handles_errors) argv[argument_count++] = "-e";
    argv[argument_count] = (char *)host;
    return tow_bench_start(place, argv, test->environment, TOW_SUBPROCESS_PIPE,
                           out_process);
}

/* The server does not report when it listens, and a client tries only once. */
static tow_status_t measure(const tow_bench_perftest_t *test, uint16_t port,
                            tow_bench_perftest_result_t *out_result)
{
    const char *address =
        test->server_address != NULL ? test->server_address : "127.0.0.1";
    char text[OUTPUT_BYTES];
    tow_status_t status = TOW_OK;
    for (int attempt = 0; attempt < ATTEMPTS; attempt++) {
        tow_subprocess_t client = {.output_fd = -1};
        usleep(ATTEMPT_US);
        tow_status_release(status);
        TOW_RETURN_IF_ERROR(
            start(test, &test->client_place, address, port, &client));
        status = tow_subprocess_finish(&client, "ucx_perftest", TIMEOUT_NS,
                                       text, sizeof(text));
        tow_subprocess_kill(&client);
        if (status == TOW_OK) return parse(text, out_result);
    }
    return status;
}

/* A TCP port on loopback that was free when asked for. */
static tow_status_t find_free_port(uint16_t *out_port)
{
    struct sockaddr_in address = {.sin_family = AF_INET,
                                  .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t size = sizeof(address);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0) return TOW_ERRNO(errno, "making a socket");
    int failed = bind(fd, (struct sockaddr *)&address, size) != 0 ||
                 getsockname(fd, (struct sockaddr *)&address, &size) != 0;
    int error = errno;
    close(fd);
    if (failed) return TOW_ERRNO(error, "finding a free port");
    *out_port = ntohs(address.sin_port);
    return TOW_OK;
}

tow_status_t tow_bench_perftest_run(const tow_bench_perftest_t *test,
                                    tow_bench_perftest_result_t *out_result)
{
    uint16_t port = 0;
    char ignored[OUTPUT_BYTES];
    tow_subprocess_t server = {.output_fd = -1};
    TOW_RETURN_IF_ERROR(find_free_port(&port));
    TOW_RETURN_IF_ERROR(start(test, &test->server_place, NULL, port, &server));
    tow_status_t status = measure(test, port, out_result);
    if (status == TOW_OK)
        status = tow_subprocess_finish(&server, "ucx_perftest", TIMEOUT_NS,
                                       ignored, sizeof(ignored));
    tow_subprocess_kill(&server);
    return status;
}
