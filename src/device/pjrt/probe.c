/* The parent's side. The child gets the plugin's path and its values as words,
 * and writes one verdict: a code, a blank, and the message. What it says beside
 * that goes to standard error; the end of it serves as last words. */
#include "device/pjrt/probe.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/arena.h"
#include "device/pjrt/tuning.h"
#include "device/pjrt/words.h"

#define NS_PER_S       1000000000
#define NS_PER_MS      1000000
#define VERDICT_BYTES  4096
#define LAST_WORDS_MAX 300

extern char **environ;

/* -- The words of the command ----------------------------------------------- */

/* PROGRAM PLUGIN, and the values. */
static char **make_words(tow_arena_t *arena, const tow_pjrt_open_t *open)
{
    char **words = tow_arena_calloc(
        arena, TOW_PJRT_WORDS_PER_VALUE * open->value_count + 3,
        sizeof(words[0]));
    if (words == NULL) return NULL;
    words[0] = (char *)open->probe_program;
    words[1] = (char *)open->path;
    return tow_pjrt_words_write(arena, open->values, open->value_count,
                                words + 2)
               ? words
               : NULL;
}

/* -- The child -------------------------------------------------------------- */

typedef struct child {
    const tow_pjrt_open_t *open;
    int64_t timeout_ns;
    pid_t pid;
    int pid_fd;
    int verdict_fd;
    int error_fd;
    size_t verdict_size;
    char verdict[VERDICT_BYTES];
    size_t last_size;
    char last_words[LAST_WORDS_MAX];
    int wait_status;
} child_t;

static int64_t now_ns(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (int64_t)time.tv_sec * NS_PER_S + time.tv_nsec;
}

static tow_status_t spawn(child_t *child, char **words, int verdict_fd,
                          int error_fd)
{
    posix_spawn_file_actions_t files;
    posix_spawnattr_t attributes;
    posix_spawn_file_actions_init(&files);
    posix_spawnattr_init(&attributes);
    /* A group of its own, so that what it starts ends with it. */
    posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETPGROUP);
    posix_spawn_file_actions_addopen(&files, 0, "/dev/null", O_RDONLY, 0);
    posix_spawn_file_actions_adddup2(&files, error_fd, 1);
    posix_spawn_file_actions_adddup2(&files, error_fd, 2);
    posix_spawn_file_actions_adddup2(&files, verdict_fd, TOW_PJRT_PROBE_FD);
    int error =
        posix_spawn(&child->pid, words[0], &files, &attributes, words, environ);
    posix_spawn_file_actions_destroy(&files);
    posix_spawnattr_destroy(&attributes);
    if (error != 0) return TOW_ERRNO(error, "starting the probe %s", words[0]);
    child->pid_fd = (int)syscall(SYS_pidfd_open, child->pid, 0);
    return TOW_OK;
}

/* Above the descriptor that the child's verdict gets, or dup2 onto itself would
 * leave it to be closed. */
static tow_status_t open_pipe(int ends[2])
{
    if (pipe2(ends, O_CLOEXEC) != 0) return TOW_ERRNO(errno, "pipe");
    for (int i = 0; i < 2; i++) {
        if (ends[i] > TOW_PJRT_PROBE_FD) continue;
        int moved = fcntl(ends[i], F_DUPFD_CLOEXEC, TOW_PJRT_PROBE_FD + 1);
        if (moved < 0) {
            tow_status_t status = TOW_ERRNO(errno, "fcntl");
            close(ends[0]);
            close(ends[1]);
            return status;
        }
        close(ends[i]);
        ends[i] = moved;
    }
    return TOW_OK;
}

static tow_status_t start(child_t *child, char **words)
{
    int verdict[2];
    int error[2];
    TOW_RETURN_IF_ERROR(open_pipe(verdict));
    tow_status_t status = open_pipe(error);
    if (status != TOW_OK) {
        close(verdict[0]);
        close(verdict[1]);
        return status;
    }
    status = spawn(child, words, verdict[1], error[1]);
    close(verdict[1]);
    close(error[1]);
    child->verdict_fd = verdict[0];
    child->error_fd = error[0];
    return status;
}

/* False at the end. */
static bool read_verdict(child_t *child)
{
    char *room = child->verdict + child->verdict_size;
    const size_t size = sizeof(child->verdict) - 1 - child->verdict_size;
    ssize_t count = size > 0 ? read(child->verdict_fd, room, size) : 0;
    if (count > 0) child->verdict_size += (size_t)count;
    return count > 0;
}

/* Keeps the end of what it says. False when that is over. */
static bool read_error(child_t *child)
{
    char text[512];
    ssize_t count = read(child->error_fd, text, sizeof(text));
    if (count <= 0) return false;
    size_t size = (size_t)count;
    const char *from = text;
    const size_t room = sizeof(child->last_words) - 1;
    if (size > room) {
        from += size - room;
        size = room;
    }
    const size_t kept =
        child->last_size < room - size ? child->last_size : room - size;
    memmove(child->last_words, child->last_words + child->last_size - kept,
            kept);
    memcpy(child->last_words + kept, from, size);
    child->last_size = kept + size;
    return true;
}

/* Reads until the child has ended. False if it has not in time. */
static bool follow(child_t *child)
{
    const int64_t deadline_ns = now_ns() + child->timeout_ns;
    struct pollfd polls[] = {{.fd = child->verdict_fd, .events = POLLIN},
                             {.fd = child->error_fd, .events = POLLIN},
                             {.fd = child->pid_fd, .events = POLLIN}};
    for (;;) {
        const int64_t left_ns = deadline_ns - now_ns();
        if (left_ns <= 0) return false;
        int count = poll(polls, 3, (int)(left_ns / NS_PER_MS) + 1);
        if (count < 0 && errno != EINTR) return false;
        if (count <= 0) continue;
        bool any = false;
        if (polls[0].revents != 0) {
            any = read_verdict(child);
            if (!any) polls[0].fd = -1;
        }
        if (polls[1].revents != 0) {
            const bool has_more = read_error(child);
            if (!has_more) polls[1].fd = -1;
            any |= has_more;
        }
        if (!any && polls[2].revents != 0) return true;
        /* Kernels before 5.3 have no pidfd: then the ends of both pipes tell. */
        if (child->pid_fd < 0 && polls[0].fd < 0 && polls[1].fd < 0)
            return true;
    }
}

static void end(child_t *child, bool has_ended)
{
    if (child->pid > 0) {
        if (!has_ended) kill(-child->pid, SIGKILL);
        while (waitpid(child->pid, &child->wait_status, 0) < 0 &&
               errno == EINTR)
            ;
    }
    if (child->pid_fd >= 0) close(child->pid_fd);
    if (child->verdict_fd >= 0) close(child->verdict_fd);
    if (child->error_fd >= 0) close(child->error_fd);
}

/* -- The verdict ------------------------------------------------------------ */

/* One line, for a status. */
static const char *last_words_of(child_t *child)
{
    child->last_words[child->last_size] = '\0';
    for (char *at = child->last_words; *at != '\0'; at++)
        if ((unsigned char)*at < ' ') *at = ' ';
    return child->last_words;
}

static tow_status_t late(child_t *child)
{
    return TOW_ERROR(
        TOW_DEADLINE_EXCEEDED,
        "plugin %s was not ready within %lld ms; its probe was ended; its last "
        "words: %s",
        child->open->path, (long long)(child->timeout_ns / NS_PER_MS),
        last_words_of(child));
}

static tow_status_t crashed(child_t *child)
{
    const bool is_signal = WIFSIGNALED(child->wait_status);
    const int number = is_signal ? WTERMSIG(child->wait_status)
                                 : WEXITSTATUS(child->wait_status);
    return TOW_ERROR(TOW_ABORTED,
                     "plugin %s ended its probe by %s %d (%s); its last words: "
                     "%s",
                     child->open->path, is_signal ? "signal" : "exit status",
                     number,
                     is_signal ? sigdescr_np(number) : "without a verdict",
                     last_words_of(child));
}

static tow_status_t judge(child_t *child)
{
    child->verdict[child->verdict_size] = '\0';
    char *message = NULL;
    const long code = strtol(child->verdict, &message, 10);
    if (message == child->verdict || *message != ' ') return crashed(child);
    if (code == TOW_CODE_OK) return TOW_OK;
    return TOW_ERROR((tow_code_t)code, "%s", message + 1);
}

tow_status_t tow_pjrt_probe(const tow_pjrt_open_t *open)
{
    tow_arena_t arena;
    tow_arena_init(&arena, 0);
    child_t child = {.open = open,
                     .timeout_ns = open->probe_timeout_ns > 0
                                       ? open->probe_timeout_ns
                                       : TOW_PJRT_PROBE_TIMEOUT_NS,
                     .pid_fd = -1,
                     .verdict_fd = -1,
                     .error_fd = -1};
    char **words = make_words(&arena, open);
    tow_status_t status = words != NULL
                              ? start(&child, words)
                              : tow_status_bare(TOW_RESOURCE_EXHAUSTED);
    const bool has_ended = status == TOW_OK && follow(&child);
    end(&child, has_ended);
    if (status == TOW_OK) status = has_ended ? judge(&child) : late(&child);
    tow_arena_deinit(&arena);
    return status;
}
