#include "tool/bench_perftest.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tool/process.h"

#define TIMEOUT_NS   INT64_C(30000000000)
#define ATTEMPTS     20
#define ATTEMPT_US   100000
#define FIELDS_MAX   16
#define OUTPUT_BYTES 8192

/* Its last line has eight numbers: iterations; the median, average and overall
 * latency in us, one way; bandwidth (average, overall) in units of 2^20 bytes/s;
 * message rate (average, overall). Counted from the end. */
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

static tow_status_t parse(char *text, tow_perftest_result_t *out_result)
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
        return TOW_ERROR(TOW_INTERNAL, "ucx_perftest's result is too short");
    out_result->latency_us = strtod(fields[count - 1 - PERFTEST_MEDIAN], NULL);
    out_result->bytes_per_second =
        strtod(fields[count - 1 - PERFTEST_BANDWIDTH], NULL) * 1048576;
    if (out_result->latency_us > 0 && out_result->bytes_per_second > 0)
        return TOW_OK;
    return TOW_ERROR(TOW_INTERNAL, "ucx_perftest printed no numbers");
}

static tow_status_t start(const tow_perftest_t *test, const char *host,
                          uint16_t port, tow_process_t *out_process)
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
    return tow_process_start(argv, test->environment, TOW_OUTPUT_PIPE,
                             out_process);
}

/* The server says nothing when it listens, and a client tries once. */
static tow_status_t ask(const tow_perftest_t *test, uint16_t port,
                        tow_perftest_result_t *out_result)
{
    char text[OUTPUT_BYTES];
    tow_status_t status = TOW_OK;
    for (int attempt = 0; attempt < ATTEMPTS; attempt++) {
        tow_process_t client = {.output_fd = -1};
        usleep(ATTEMPT_US);
        tow_status_release(status);
        TOW_RETURN_IF_ERROR(start(test, "127.0.0.1", port, &client));
        status = tow_process_finish(&client, "ucx_perftest", TIMEOUT_NS, text,
                                    sizeof(text));
        tow_process_kill(&client);
        if (status == TOW_OK) return parse(text, out_result);
    }
    return status;
}

tow_status_t tow_perftest_run(const tow_perftest_t *test,
                              tow_perftest_result_t *out_result)
{
    uint16_t port = 0;
    char ignored[OUTPUT_BYTES];
    tow_process_t server = {.output_fd = -1};
    TOW_RETURN_IF_ERROR(tow_free_port(&port));
    TOW_RETURN_IF_ERROR(start(test, NULL, port, &server));
    tow_status_t status = ask(test, port, out_result);
    if (status == TOW_OK)
        status = tow_process_finish(&server, "ucx_perftest", TIMEOUT_NS,
                                    ignored, sizeof(ignored));
    tow_process_kill(&server);
    return status;
}
