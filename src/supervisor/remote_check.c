/* The check of all hosts before a cluster starts on them. One ssh per host, all at
 * the same time, in one thread. */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/assert.h"
#include "supervisor/remote_worker.h"

#define OUTPUT_SIZE 2048
#define ERROR_SIZE  1000

enum {
    OUT,
    ERR,
    STREAMS
};

/* One ssh. */
typedef struct probe {
    const tow_host_t *host; /* lent */
    pid_t pid;              /* 0: it has ended */
    int fds[STREAMS];       /* -1: at its end */
    char text[STREAMS][OUTPUT_SIZE];
    size_t length[STREAMS];
    int exit_status;
    bool is_late;
    char error[ERROR_SIZE]; /* "": the host is fine */
} probe_t;

static int64_t now_ns(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (int64_t)time.tv_sec * 1000000000ll + time.tv_nsec;
}

/* -- Running ssh ------------------------------------------------------------ */

static tow_status_t start(probe_t *probe, const char *script)
{
    tow_ssh_command_t command;
    int out[2], err[2];
    tow_ssh_command(probe->host, script, &command);
    if (pipe2(out, O_CLOEXEC) != 0) return TOW_ERRNO(errno, "making a pipe");
    if (pipe2(err, O_CLOEXEC) != 0) {
        close(out[0]), close(out[1]);
        return TOW_ERRNO(errno, "making a pipe");
    }
    const pid_t parent = getpid(), pid = fork();
    if (pid == 0) {
        const tow_ssh_streams_t streams = {open("/dev/null", O_RDONLY), out[1],
                                           err[1]};
        tow_ssh_become(&command, &streams, parent);
    }
    const int error = errno;
    close(out[1]), close(err[1]);
    probe->fds[OUT] = out[0];
    probe->fds[ERR] = err[0];
    if (pid < 0) return TOW_ERRNO(error, "starting %s", command.items[0]);
    probe->pid = pid;
    return TOW_OK;
}

static void read_stream(probe_t *probe, int stream)
{
    char bytes[1024];
    const ssize_t count = read(probe->fds[stream], bytes, sizeof(bytes));
    if (count < 0 && errno == EINTR) return;
    if (count <= 0) {
        close(probe->fds[stream]);
        probe->fds[stream] = -1;
        return;
    }
    size_t room = OUTPUT_SIZE - 1 - probe->length[stream];
    if ((size_t)count < room) room = (size_t)count;
    memcpy(probe->text[stream] + probe->length[stream], bytes, room);
    probe->length[stream] += room;
}

static bool has_ended(const probe_t *probe)
{
    return probe->fds[OUT] < 0 && probe->fds[ERR] < 0;
}

/* Ends it if it runs, and waits. */
static void finish(probe_t *probe)
{
    for (int i = 0; i < STREAMS; i++) {
        if (probe->fds[i] >= 0) close(probe->fds[i]);
        probe->fds[i] = -1;
    }
    if (probe->pid == 0) return;
    if (probe->is_late) kill(probe->pid, SIGKILL);
    while (waitpid(probe->pid, &probe->exit_status, 0) < 0 && errno == EINTR) {
    }
    probe->pid = 0;
}

/* -- Answers ---------------------------------------------------------------- */

/* The value of a line "tow-check KEY VALUE" of its output; other lines are those
 * of the user's shell. NULL: none. */
static const char *find_line(const probe_t *probe, const char *key, char *value,
                             size_t capacity)
{
    const char *at = probe->text[OUT];
    char prefix[32];
    snprintf(prefix, sizeof(prefix), "tow-check %s ", key);
    for (; at != NULL && *at != '\0'; at = strchr(at, '\n')) {
        at += *at == '\n';
        if (strncmp(at, prefix, strlen(prefix)) != 0) continue;
        at += strlen(prefix);
        snprintf(value, capacity, "%.*s", (int)strcspn(at, "\n"), at);
        return value;
    }
    return NULL;
}

/* The last line that ssh wrote. */
static const char *last_error(const probe_t *probe, char line[160])
{
    const char *text = probe->text[ERR];
    size_t end = strlen(text);
    while (end > 0 && (text[end - 1] == '\n' || text[end - 1] == '\r'))
        end--;
    size_t begin = end;
    while (begin > 0 && text[begin - 1] != '\n')
        begin--;
    snprintf(line, 160, "%.*s", (int)(end - begin), text + begin);
    return line[0] != '\0' ? line : "it printed no error";
}

static void judge(const tow_remote_check_t *check, probe_t *probe)
{
    const tow_host_t *host = probe->host;
    char line[160], version[160];
    if (probe->is_late)
        snprintf(probe->error, ERROR_SIZE,
                 "%s: ssh %s did not finish within %lld s: %s", host->name,
                 host->ssh, TOW_REMOTE_CHECK_NS / 1000000000,
                 last_error(probe, line));
    else if (find_line(probe, "missing", line, sizeof(line)) != NULL)
        snprintf(probe->error, ERROR_SIZE,
                 "%s: there is no program %s: install towpath there, or name "
                 "the program with tow=PATH in the hosts file",
                 host->name, host->tow);
    else if (find_line(probe, "version", version, sizeof(version)) == NULL)
        snprintf(probe->error, ERROR_SIZE,
                 "%s: ssh %s exited with status %d: %s: try `ssh %s true`",
                 host->name, host->ssh, WEXITSTATUS(probe->exit_status),
                 last_error(probe, line), host->ssh);
    else if (strcmp(version, check->version) != 0)
        snprintf(probe->error, ERROR_SIZE,
                 "%s: it has %s, and this host has %s: install the same on "
                 "both",
                 host->name, version, check->version);
}

static void report(const tow_remote_check_t *check, const probe_t *probe)
{
    char line[ERROR_SIZE + 64];
    if (probe->error[0] != '\0')
        snprintf(line, sizeof(line), "%s", probe->error);
    else
        snprintf(line, sizeof(line), "%s: reached, %u worker(s) to start",
                 probe->host->name, probe->host->worker_count);
    check->report(check->context, line);
}

/* -- All hosts -------------------------------------------------------------- */

static size_t fill_polls(probe_t *probes, size_t count, struct pollfd *fds)
{
    size_t open_count = 0;
    for (size_t i = 0; i < count; i++)
        for (int k = 0; k < STREAMS; k++) {
            fds[STREAMS * i + (size_t)k] =
                (struct pollfd){.fd = probes[i].fds[k], .events = POLLIN};
            open_count += probes[i].fds[k] >= 0;
        }
    return open_count;
}

static void take_events(const tow_remote_check_t *check, probe_t *probes,
                        const struct pollfd *fds)
{
    for (size_t i = 0; i < check->hosts->count; i++) {
        probe_t *probe = &probes[i];
        if (probe->pid == 0) continue;
        for (int k = 0; k < STREAMS; k++)
            if (fds[STREAMS * i + (size_t)k].revents != 0)
                read_stream(probe, k);
        if (!has_ended(probe)) continue;
        finish(probe);
        judge(check, probe);
        report(check, probe);
    }
}

static void await_all(const tow_remote_check_t *check, probe_t *probes)
{
    const int64_t deadline_ns = now_ns() + TOW_REMOTE_CHECK_NS;
    struct pollfd fds[STREAMS * TOW_HOSTS_MAX];
    while (fill_polls(probes, check->hosts->count, fds) > 0) {
        const int64_t left_ms = (deadline_ns - now_ns()) / 1000000;
        if (left_ms <= 0) break;
        if (poll(fds, STREAMS * check->hosts->count, (int)left_ms) > 0)
            take_events(check, probes, fds);
    }
    for (size_t i = 0; i < check->hosts->count; i++) {
        if (probes[i].pid == 0) continue;
        probes[i].is_late = true;
        finish(&probes[i]);
        judge(check, &probes[i]);
        report(check, &probes[i]);
    }
}

/* Prints the address from which the host sees us, and the version of its tow. */
static tow_status_t start_all(const tow_remote_check_t *check, probe_t *probes)
{
    for (size_t i = 0; i < check->hosts->count; i++) {
        const tow_host_t *host = &check->hosts->items[i];
        char script[1024];
        probes[i].host = host;
        snprintf(
            script, sizeof(script),
            "echo \"tow-check address ${SSH_CONNECTION%%%% *}\"; "
            "command -v %s >/dev/null || { echo \"tow-check missing tow\"; "
            "exit 0; }; "
            "v=$(%s version) && echo \"tow-check version $v\"",
            host->tow, host->tow);
        TOW_RETURN_IF_ERROR(start(&probes[i], script));
    }
    return TOW_OK;
}

static tow_status_t collect_errors(const tow_remote_check_t *check,
                                   const probe_t *probes)
{
    char text[3600] = "";
    size_t failed_count = 0, length = 0;
    for (size_t i = 0; i < check->hosts->count; i++) {
        if (probes[i].error[0] == '\0') continue;
        failed_count++;
        if (length + ERROR_SIZE + 2 > sizeof(text)) continue;
        length += (size_t)snprintf(text + length, sizeof(text) - length, "%s%s",
                                   length > 0 ? "\n" : "", probes[i].error);
    }
    if (failed_count == 0) return TOW_OK;
    if (failed_count == 1) return TOW_ERROR(TOW_UNAVAILABLE, "%s", text);
    return TOW_ERROR(TOW_UNAVAILABLE, "%zu of %zu hosts failed:\n%s",
                     failed_count, check->hosts->count, text);
}

tow_status_t tow_remote_check(const tow_remote_check_t *check,
                              char out_address[TOW_REMOTE_ADDRESS_SIZE])
{
    const size_t count = check->hosts->count;
    TOW_ASSERT(count > 0 && count <= TOW_HOSTS_MAX);
    out_address[0] = '\0';
    TOW_RETURN_IF_ERROR(tow_ssh_find());
    probe_t *probes = tow_calloc(count, sizeof(*probes));
    if (probes == NULL) return tow_status_bare(TOW_RESOURCE_EXHAUSTED);
    for (size_t i = 0; i < count; i++)
        probes[i].fds[OUT] = probes[i].fds[ERR] = -1;
    tow_status_t status = start_all(check, probes);
    if (status == TOW_OK) {
        await_all(check, probes);
        status = collect_errors(check, probes);
    }
    for (size_t i = 0; i < count; i++) {
        probes[i].is_late = true;
        finish(&probes[i]);
    }
    (void)find_line(&probes[0], "address", out_address,
                    TOW_REMOTE_ADDRESS_SIZE);
    tow_free(probes);
    return status;
}
