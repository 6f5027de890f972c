#include "device/child/process.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/assert.h"
#include "base/macros.h"
#include "device/child/fork_request.h"

/* A full pipe, 64 KiB. */
#define LISTEN_COUNT_MAX 16

extern char **environ;

/* -- Start ------------------------------------------------------------------ */

/* Both ends of the child's socket and of its output pipe. */
typedef struct ends {
    int sockets[2]; /* ours, its */
    int errors[2];  /* ours, its */
} ends_t;

static void close_end(int *fd)
{
    if (*fd >= 0) close(*fd);
    *fd = -1;
}

/* Moves a descriptor above those that the child gets: dup2 onto itself would
 * leave it close-on-exec. */
static tow_status_t move_up(int *fd)
{
    if (*fd > TOW_CHILD_SOCKET_FD) return TOW_OK;
    int moved = fcntl(*fd, F_DUPFD_CLOEXEC, TOW_CHILD_SOCKET_FD + 1);
    if (moved < 0) return TOW_ERRNO(errno, "fcntl");
    close(*fd);
    *fd = moved;
    return TOW_OK;
}

static tow_status_t open_ends(ends_t *ends)
{
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends->sockets) != 0)
        return TOW_ERRNO(errno, "socketpair");
    if (pipe2(ends->errors, O_CLOEXEC) != 0) return TOW_ERRNO(errno, "pipe");
    TOW_RETURN_IF_ERROR(move_up(&ends->sockets[1]));
    TOW_RETURN_IF_ERROR(move_up(&ends->errors[1]));
    if (fcntl(ends->sockets[0], F_SETFL, O_NONBLOCK) != 0 ||
        fcntl(ends->errors[0], F_SETFL, O_NONBLOCK) != 0)
        return TOW_ERRNO(errno, "fcntl");
    return TOW_OK;
}

static int spawn_with(tow_child_process_t *process, char **argv,
                      const ends_t *ends, posix_spawn_file_actions_t *files,
                      posix_spawnattr_t *attributes)
{
    sigset_t none, all;
    sigemptyset(&none);
    sigfillset(&all);
    /* A process group of its own, so that its own children can be killed with
     * it; and default signals, whatever our process does with them. */
    posix_spawnattr_setflags(attributes, POSIX_SPAWN_SETPGROUP |
                                             POSIX_SPAWN_SETSIGMASK |
                                             POSIX_SPAWN_SETSIGDEF);
    posix_spawnattr_setsigmask(attributes, &none);
    posix_spawnattr_setsigdefault(attributes, &all);
    posix_spawn_file_actions_addopen(files, 0, "/dev/null", O_RDONLY, 0);
    posix_spawn_file_actions_adddup2(files, ends->errors[1], 1);
    posix_spawn_file_actions_adddup2(files, ends->errors[1], 2);
    posix_spawn_file_actions_adddup2(files, ends->sockets[1],
                                     TOW_CHILD_SOCKET_FD);
    posix_spawn_file_actions_addclosefrom_np(files, TOW_CHILD_SOCKET_FD + 1);
    return posix_spawn(&process->pid, argv[0], files, attributes, argv,
                       environ);
}

static tow_status_t spawn(tow_child_process_t *process, char **argv,
                          const ends_t *ends)
{
    posix_spawn_file_actions_t files;
    posix_spawnattr_t attributes;
    posix_spawn_file_actions_init(&files);
    posix_spawnattr_init(&attributes);
    int error = spawn_with(process, argv, ends, &files, &attributes);
    posix_spawn_file_actions_destroy(&files);
    posix_spawnattr_destroy(&attributes);
    if (error != 0) {
        process->pid = 0;
        return TOW_ERRNO(error, "starting %s", argv[0]);
    }
    process->pid_fd = (int)syscall(SYS_pidfd_open, process->pid, 0);
    return process->pid_fd >= 0 ? TOW_OK : TOW_ERRNO(errno, "pidfd_open");
}

void tow_child_process_init(tow_child_process_t *process)
{
    *process = (tow_child_process_t){
        .pid_fd = -1, .control_fd = -1, .socket_fd = -1, .error_fd = -1};
}

static bool launch(tow_child_process_t *process, char **argv,
                   int fork_server_fd, const ends_t *ends)
{
    return fork_server_fd > 0 &&
           tow_fork_request_send(fork_server_fd, argv, ends->sockets[1],
                                 ends->errors[1], &process->pid,
                                 &process->pid_fd, &process->control_fd);
}

tow_status_t tow_child_process_start(tow_child_process_t *process, char **argv)
{
    return tow_child_process_launch(process, argv, 0);
}

tow_status_t tow_child_process_launch(tow_child_process_t *process, char **argv,
                                      int fork_server_fd)
{
    ends_t ends = {{-1, -1}, {-1, -1}};
    tow_child_process_init(process);
    tow_status_t status = open_ends(&ends);
    if (status == TOW_OK && !launch(process, argv, fork_server_fd, &ends))
        status = spawn(process, argv, &ends);
    close_end(&ends.sockets[1]);
    close_end(&ends.errors[1]);
    process->socket_fd = ends.sockets[0];
    process->error_fd = ends.errors[0];
    if (status != TOW_OK) tow_child_process_end(process);
    tow_child_process_check(process);
    return status;
}

void tow_child_process_check(const tow_child_process_t *process)
{
    const bool is_there = process->pid > 0;
    TOW_ASSERT(is_there == (process->pid_fd >= 0));
    TOW_ASSERT(is_there == (process->socket_fd >= 0));
    TOW_ASSERT(is_there == (process->error_fd >= 0));
    TOW_ASSERT(is_there || process->control_fd < 0);
    TOW_ASSERT(process->last_output_size <= TOW_CHILD_LAST_OUTPUT_BYTES_MAX);
}

/* -- Output ----------------------------------------------------------------- */

static void keep(tow_child_process_t *process, const char *text, size_t size)
{
    const size_t room = TOW_CHILD_LAST_OUTPUT_BYTES_MAX;
    if (size > room) {
        text += size - room;
        size = room;
    }
    const size_t kept = process->last_output_size < room - size
                            ? process->last_output_size
                            : room - size;
    memmove(process->last_output,
            process->last_output + process->last_output_size - kept, kept);
    memcpy(process->last_output + kept, text, size);
    process->last_output_size = kept + size;
}

bool tow_child_process_read_output(tow_child_process_t *process)
{
    char text[4096];
    /* A limit, for a child that never stops writing. */
    for (int i = 0; i < LISTEN_COUNT_MAX; i++) {
        ssize_t count = read(process->error_fd, text, sizeof(text));
        if (count == 0) return false;
        if (count < 0) return errno == EAGAIN || errno == EINTR;
        keep(process, text, (size_t)count);
    }
    return true;
}

const char *tow_child_process_last_output(tow_child_process_t *process)
{
    if (process->last_output_size == 0) return "nothing";
    process->last_output[process->last_output_size] = '\0';
    for (char *at = process->last_output; *at != '\0'; at++)
        if ((unsigned char)*at < ' ') *at = ' ';
    return process->last_output;
}

/* -- End -------------------------------------------------------------------- */

static void end_own(tow_child_process_t *process)
{
    /* Harmless if it has ended: its wait status does not change. */
    kill(-process->pid, SIGKILL);
    kill(process->pid, SIGKILL);
    while (waitpid(process->pid, &process->wait_status, 0) < 0 &&
           errno == EINTR)
        ;
}

void tow_child_process_end(tow_child_process_t *process)
{
    if (process->pid > 0) {
        if (process->control_fd >= 0)
            process->wait_status = tow_fork_end_child(process->control_fd);
        else
            end_own(process);
        tow_child_process_read_output(process);
    }
    process->control_fd = -1;
    process->pid = 0;
    close_end(&process->pid_fd);
    close_end(&process->socket_fd);
    close_end(&process->error_fd);
    tow_child_process_check(process);
}

bool tow_child_process_has_ended(const tow_child_process_t *process)
{
    struct pollfd poll_fd = {.fd = process->pid_fd, .events = POLLIN};
    return poll(&poll_fd, 1, 0) > 0;
}

tow_child_process_end_text_t tow_child_process_end_text(
    const tow_child_process_t *process)
{
    tow_child_process_end_text_t end;
    const int status = process->wait_status;
    if (!WIFSIGNALED(status)) {
        snprintf(end.text, sizeof(end.text), "exit status %d (without a reply)",
                 WEXITSTATUS(status));
        return end;
    }
    const int number = WTERMSIG(status);
    const char *name = sigdescr_np(number); /* NULL for real-time ones. */
    snprintf(end.text, sizeof(end.text), "signal %d (%s%s)", number,
             name != NULL ? name : "unnamed",
             number == SIGKILL ? ", by the user or the out-of-memory killer"
                               : "");
    return end;
}

/* -- In the child ------------------------------------------------------------ */

static void limit(int resource, uint64_t bytes)
{
    const struct rlimit limits = {.rlim_cur = bytes, .rlim_max = bytes};
    if (setrlimit((__rlimit_resource_t)resource, &limits) != 0)
        perror("setrlimit");
}

void tow_child_process_enter(const char *parent, const char *memory)
{
    const uint64_t memory_bytes_max = strtoull(memory, NULL, 10);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != (pid_t)atoi(parent)) _exit(0); /* It has ended. */
    limit(RLIMIT_CORE, 0); /* Crashes are expected here. */
    if (memory_bytes_max > 0) limit(RLIMIT_DATA, memory_bytes_max);
}

/* -- Finding programs -------------------------------------------------------- */

static bool try_path(char *path, size_t capacity, const char *file,
                     const char *folder, const char *name)
{
    const char *slash = strrchr(file, '/');
    if (slash == NULL) return false;
    int length = snprintf(path, capacity, "%.*s/%s/%s", (int)(slash - file),
                          file, folder, name);
    return length > 0 && (size_t)length < capacity && access(path, X_OK) == 0;
}

/* `file` is this program or library, in a build folder or installed. */
static bool try_beside(char *path, size_t capacity, const char *file,
                       const char *name)
{
    static const char *const folders[] = {"src/device", "../libexec/towpath",
                                          "../../libexec/towpath"};
    for (size_t i = 0; i < TOW_COUNT_OF(folders); i++)
        if (try_path(path, capacity, file, folders[i], name)) return true;
    return false;
}

tow_status_t tow_child_process_find(const char *name, const char *variable,
                                    char *path, size_t capacity)
{
    const char *given = getenv(variable);
    if (given != NULL) {
        snprintf(path, capacity, "%s", given);
        return TOW_OK;
    }
    char self[4096];
    ssize_t length = readlink("/proc/self/exe", self, sizeof(self) - 1);
    self[length > 0 ? length : 0] = '\0';
    Dl_info info = {0};
    const bool has_info = dladdr((void *)&tow_child_process_find, &info) != 0;
    if (try_beside(path, capacity, self, name) ||
        (has_info && info.dli_fname != NULL &&
         try_beside(path, capacity, info.dli_fname, name)))
        return TOW_OK;
    return TOW_ERROR(TOW_NOT_FOUND,
                     "no program %s: `make` builds it, or the environment "
                     "variable %s names it",
                     name, variable);
}
