#include "bench/pair.h"

#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/assert.h"

#define TIMEOUT_NS    INT64_C(60000000000)
#define TIMEOUT_MS    60000
#define ARGUMENTS_MAX 16
#define LINE_BYTES    4200 /* an address with a long path */

/* The process prints a line at once, so one read gets it. */
tow_status_t tow_bench_read_line(const tow_subprocess_t *process,
                                 const char *name, char *line, size_t capacity)
{
    struct pollfd waited = {.fd = process->output_fd, .events = POLLIN};
    ssize_t size = -1;
    if (poll(&waited, 1, TIMEOUT_MS) == 1)
        size = read(process->output_fd, line, capacity - 1);
    if (size <= 0)
        return TOW_ERROR(TOW_UNAVAILABLE, "%s %s (its output is above)", name,
                         size == 0 ? "ended" : "is not ready in 60 s");
    line[size] = '\0';
    line[strcspn(line, "\n")] = '\0';
    return TOW_OK;
}

tow_status_t tow_bench_run_for_number(const tow_bench_place_t *place,
                                      const char *name, char *const argv[],
                                      char *const extra[], double *out_value)
{
    char text[4096], *end = NULL;
    tow_subprocess_t process = {.output_fd = -1};
    TOW_RETURN_IF_ERROR(
        tow_bench_start(place, argv, extra, TOW_SUBPROCESS_PIPE, &process));
    TOW_RETURN_IF_ERROR(
        tow_subprocess_finish(&process, name, TIMEOUT_NS, text, sizeof(text)));
    *out_value = strtod(text, &end);
    if (end == text || *out_value <= 0)
        return TOW_ERROR(TOW_INTERNAL, "%s printed '%s' instead of a number",
                         name, text);
    return TOW_OK;
}

static tow_status_t measure(const tow_bench_pair_t *pair, char *server_line,
                            double *out_value)
{
    char *argv[ARGUMENTS_MAX + 1] = {0};
    for (size_t i = 0; pair->measure_argv[i] != NULL; i++) {
        TOW_ASSERT(i < ARGUMENTS_MAX);
        argv[i] = strcmp(pair->measure_argv[i], TOW_BENCH_SERVER_LINE) == 0
                      ? server_line
                      : pair->measure_argv[i];
    }
    return tow_bench_run_for_number(&pair->measure_place, pair->name, argv,
                                    pair->environment, out_value);
}

tow_status_t tow_bench_pair_run(const tow_bench_pair_t *pair, double *out_value)
{
    char line[LINE_BYTES], ignored[1024];
    tow_subprocess_t server = {.output_fd = -1};
    TOW_RETURN_IF_ERROR(tow_bench_start(&pair->server_place, pair->server_argv,
                                        pair->environment, TOW_SUBPROCESS_PIPE,
                                        &server));
    tow_status_t status =
        tow_bench_read_line(&server, pair->name, line, sizeof(line));
    if (status == TOW_OK) status = measure(pair, line, out_value);
    if (status == TOW_OK)
        status = tow_subprocess_finish(&server, pair->name, TIMEOUT_NS, ignored,
                                       sizeof(ignored));
    tow_subprocess_kill(&server);
    return status;
}
