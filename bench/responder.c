#include "bench/responder.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/assert.h"

/* JAX compiles in its first answer. */
#define ANSWER_TIMEOUT_MS 180000
#define ARGUMENTS_MAX     16
#define LINE_BYTES        256

tow_status_t tow_bench_responder_receive(tow_bench_responder_t *responder,
                                         char *line, size_t capacity)
{
    struct pollfd waited = {.fd = responder->socket, .events = POLLIN};
    ssize_t size = -1;
    if (poll(&waited, 1, ANSWER_TIMEOUT_MS) == 1)
        size = read(responder->socket, line, capacity - 1);
    if (size <= 0)
        return TOW_ERROR(TOW_UNAVAILABLE, "%s %s (its output is above)",
                         responder->name,
                         size == 0 ? "ended" : "does not reply");
    line[size] = '\0';
    return TOW_OK;
}

static tow_status_t start(tow_bench_responder_t *responder,
                          const tow_bench_place_t *place, char *const argv[],
                          char *const extra[])
{
    char descriptor[24], line[LINE_BYTES], *all[ARGUMENTS_MAX + 2] = {0};
    int ends[2];
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0)
        return TOW_ERRNO(errno, "making a socket for %s", responder->name);
    responder->socket = ends[0];
    fcntl(ends[1], F_SETFD, 0);
    snprintf(descriptor, sizeof(descriptor), "%d", ends[1]);
    size_t count = 0;
    for (; argv[count] != NULL; count++) {
        TOW_ASSERT(count < ARGUMENTS_MAX);
        all[count] = argv[count];
    }
    all[count] = descriptor;
    tow_status_t status = tow_bench_start(
        place, all, extra, TOW_SUBPROCESS_INHERIT, &responder->process);
    close(ends[1]);
    TOW_RETURN_IF_ERROR(status);
    return tow_bench_responder_receive(responder, line, sizeof(line));
}

tow_status_t tow_bench_responder_start(const char *name,
                                       const tow_bench_place_t *place,
                                       char *const argv[], char *const extra[],
                                       tow_bench_responder_t *out_responder)
{
    *out_responder = TOW_BENCH_RESPONDER_NONE;
    out_responder->name = name;
    tow_status_t status = start(out_responder, place, argv, extra);
    if (status != TOW_OK) tow_bench_responder_stop(out_responder);
    return status;
}

tow_status_t tow_bench_responder_send(tow_bench_responder_t *responder,
                                      const char *line)
{
    const ssize_t length = (ssize_t)strlen(line);
    if (send(responder->socket, line, (size_t)length, MSG_NOSIGNAL) == length)
        return TOW_OK;
    return TOW_ERRNO(errno, "sending to %s", responder->name);
}

tow_status_t tow_bench_responder_ask(tow_bench_responder_t *responder,
                                     const char *line, char *answer,
                                     size_t capacity)
{
    TOW_RETURN_IF_ERROR(tow_bench_responder_send(responder, line));
    return tow_bench_responder_receive(responder, answer, capacity);
}

tow_status_t tow_bench_responder_ask_seconds(tow_bench_responder_t *responder,
                                             const char *line,
                                             double *out_seconds)
{
    char answer[LINE_BYTES];
    TOW_RETURN_IF_ERROR(
        tow_bench_responder_ask(responder, line, answer, sizeof(answer)));
    *out_seconds = strtod(answer, NULL);
    if (*out_seconds > 0) return TOW_OK;
    return TOW_ERROR(TOW_INTERNAL, "%s replied '%s'", responder->name, answer);
}

void tow_bench_responder_stop(tow_bench_responder_t *responder)
{
    if (responder->socket >= 0) close(responder->socket);
    responder->socket = -1;
    tow_subprocess_kill(&responder->process);
}

/* -- The other side -------------------------------------------------------- */

static tow_status_t answer_lines(FILE *requests, int socket,
                                 tow_bench_answer_t answer, void *context)
{
    char line[LINE_BYTES];
    dprintf(socket, "ready\n");
    while (fgets(line, sizeof(line), requests) != NULL) {
        double seconds = 0;
        TOW_RETURN_IF_ERROR(answer(context, line, &seconds));
        dprintf(socket, "%.9f\n", seconds);
    }
    return TOW_OK;
}

tow_status_t tow_bench_respond(const char *descriptor,
                               tow_bench_answer_t answer, void *context)
{
    const int socket = (int)strtol(descriptor, NULL, 10);
    FILE *requests = fdopen(socket, "r");
    if (requests == NULL)
        return TOW_ERRNO(errno, "opening descriptor %s", descriptor);
    tow_status_t status = answer_lines(requests, socket, answer, context);
    fclose(requests);
    return status;
}
