#include "supervisor/supervisor.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/pidfd.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/assert.h"
#include "client/local_cluster.h"
#include "env/tuning.h"
#include "supervisor/cores.h"
#include "supervisor/daemon.h"
#include "supervisor/fork_server.h"
#include "supervisor/preload.h"
#include "supervisor/process_title.h"
#include "supervisor/remote_worker.h"
#include "worker/gang_comm.h"

/* Time until all processes are ready: XLA takes ten seconds from a cold disk,
 * and workers share the cores. */
#define START_NS (120 * TOW_NS_PER_S)
/* Time between SIGTERM and SIGKILL. */
#define STOP_NS (5 * TOW_NS_PER_S)
/* Delay before a restart. It doubles each time, and starts again at the minimum
 * after the process has run for STABLE_NS. */
#define RESTART_MIN_NS (100 * TOW_NS_PER_MS)
#define RESTART_MAX_NS (10 * TOW_NS_PER_S)
#define STABLE_NS      (30 * TOW_NS_PER_S)
/* The child's end of the pipe on which it reports that it is ready. */
#define CHILD_READY_FD 3
/* The controller's end of the socket to the fork server. */
#define CHILD_FORK_SERVER_FD 4
/* Process numbers that a controller gives until it is restarted, and the limit of
 * its option. */
#define PROCESSES_PER_START 4096
#define PROCESS_FIRST_MAX   (1u << 19)
#define ARGUMENT_COUNT_MAX  32
#define QUOTED_SIZE         1024

typedef struct child {
    char name[TOW_HOST_NAME_MAX + 12]; /* "controller", "worker-0" */
    const tow_host_t *host;            /* lent; NULL: this one */
    /* Of a worker on another host: closing it ends the worker; -1: none. */
    int follow_fd;
    /* The only worker of a cluster may also be its controller. */
    bool is_controller;
    bool is_worker;
    uint32_t place; /* of a worker: its index */
    uint32_t start_count;
    pid_t pid;    /* 0: not running */
    int ready_fd; /* -1: it is ready, or not running */
    bool is_ready;
    int64_t started_ns;
    int64_t restart_ns; /* time of the next start; 0: none is due */
    int64_t delay_ns;
    char line[TOW_ADDRESS_TEXT_MAX + 32]; /* read from ready_fd */
    size_t line_length;
} child_t;

typedef struct supervisor {
    const tow_supervisor_options_t *options; /* lent */
    char address[TOW_ADDRESS_TEXT_MAX +
                 32]; /* with its port, once the controller is ready */
    int signal_fd;
    int parent_fd; /* pidfd of the parent, if follow_fd is given; -1: none */
    tow_fork_server_t fork_server;
    bool is_preloaded; /* XLA is loaded: workers are forked */
    bool is_ready;
    bool is_stopping;
    tow_status_t failure; /* owned: why the cluster did not start */
    size_t child_count;
    tow_credential_t credential; /* for other hosts */
    child_t children[1 + TOW_HOSTS_WORKERS_MAX];
} supervisor_t;

static int64_t now_ns(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (int64_t)time.tv_sec * TOW_NS_PER_S + time.tv_nsec;
}

/* Writes a line to standard error: `up.log`, or the terminal. */
static void log_line(const char *format, ...)
    __attribute__((format(printf, 1, 2)));
static void log_line(const char *format, ...)
{
    va_list values;
    va_start(values, format);
    fputs("tow up: ", stderr);
    vfprintf(stderr, format, values);
    fputc('\n', stderr);
    va_end(values);
}

/* -- Invariants ------------------------------------------------------------- */

static void check_child(const child_t *child)
{
    TOW_ASSERT(child->is_controller || child->is_worker);
    TOW_ASSERT(child->pid >= 0 && child->restart_ns >= 0);
    TOW_ASSERT(child->line_length < sizeof(child->line));
    /* Running, or waiting for a restart, or neither; never both. */
    TOW_ASSERT(child->pid == 0 || child->restart_ns == 0);
    /* Only a running child that is not ready has a pipe. */
    TOW_ASSERT(child->ready_fd < 0 || (child->pid != 0 && !child->is_ready));
    TOW_ASSERT(child->follow_fd < 0 || (child->pid != 0 && child->host));
}

/* Called after every event: there are at most 257 children. */
static void check(const supervisor_t *supervisor)
{
    const tow_supervisor_options_t *options = supervisor->options;
    TOW_ASSERT(supervisor->child_count ==
               (options->is_joint ? 1 : 1 + options->worker_count));
    TOW_ASSERT(supervisor->failure == TOW_OK || supervisor->is_stopping);
    TOW_ASSERT(!supervisor->is_ready || supervisor->failure == TOW_OK);
    for (size_t i = 0; i < supervisor->child_count; i++) {
        check_child(&supervisor->children[i]);
        TOW_ASSERT(supervisor->children[i].is_controller == (i == 0));
    }
}

/* -- Starting ------------------------------------------------------------------ */

typedef struct command {
    char *items[ARGUMENT_COUNT_MAX + 1];
    size_t count;
    char texts[8][32]; /* storage of numbers */
    size_t text_count;
    char island[32];
} command_line_t;

static void add(command_line_t *command, const char *word)
{
    command->items[command->count++] = (char *)word;
}

static void add_number(command_line_t *command, const char *option,
                       uint64_t number)
{
    char *text = command->texts[command->text_count++];
    snprintf(text, sizeof(command->texts[0]), "%llu",
             (unsigned long long)number);
    add(command, option);
    add(command, text);
}

static void add_devices(command_line_t *command,
                        const tow_supervisor_options_t *options)
{
    if (options->model != NULL) {
        add(command, "--simulated");
        add(command, options->model);
    } else if (options->plugin != NULL) {
        add(command, "--plugin");
        add(command, options->plugin);
    }
}

/* Splits the workers evenly: island-0, island-1, ... */
static void add_island(const supervisor_t *supervisor, const child_t *child,
                       command_line_t *command)
{
    const tow_supervisor_options_t *options = supervisor->options;
    if (options->island_count == 0) return;
    snprintf(command->island, sizeof(command->island), "island-%llu",
             (unsigned long long)(child->place * options->island_count /
                                  options->worker_count));
    add(command, "--island");
    add(command, command->island);
}

static bool uses_xla(const tow_supervisor_options_t *options)
{
    return options->model == NULL && options->plugin == NULL;
}

static void add_relays(command_line_t *command,
                       const tow_supervisor_options_t *options)
{
    if (options->relay_above > 0)
        add_number(command, "--relay-above", options->relay_above);
    if (options->relay_group > 0)
        add_number(command, "--relay-group", options->relay_group);
}

/* See TOW_NET_WORKER_SPIN_NS: spinning pays if the controller has a core of its
 * own. */
static void add_spin(command_line_t *command,
                     const tow_supervisor_options_t *options)
{
    if (options->hosts != NULL || options->worker_count < tow_cores_count())
        add_number(command, "--spin", TOW_NET_WORKER_SPIN_NS / TOW_NS_PER_US);
}

/* The workers of the controller before may not have returned yet. */
static uint64_t first_process(const child_t *child)
{
    const uint64_t first =
        (uint64_t)PROCESSES_PER_START * (child->start_count - 1);
    return first < PROCESS_FIRST_MAX ? first : PROCESS_FIRST_MAX;
}

static void add_controller(command_line_t *command, const child_t *child,
                           const tow_supervisor_options_t *options)
{
    if (!options->is_joint && child->start_count > 1)
        add_number(command, "--first-process", first_process(child));
    if (options->use_compile_cache) add(command, "--compile-cache");
    if (options->idle_timeout_s > 0)
        add_number(command, "--idle-timeout", options->idle_timeout_s);
    if (!options->is_joint && options->hosts == NULL)
        add_number(command, "--own-workers", options->worker_count);
    if (!uses_xla(options)) return;
    add(command, "--launcher-fd");
    add(command, "4");
}

/* A worker that is restarted gets a new number from the controller; with its own
 * controller it takes the next one. */
static void add_number_of(command_line_t *command, const child_t *child)
{
    if (child->start_count > 1 && !child->is_controller) return;
    add_number(command, "--process", child->place + child->start_count - 1);
    add(command, "--assigned");
}

static void add_worker(const supervisor_t *supervisor, const child_t *child,
                       command_line_t *command)
{
    const tow_supervisor_options_t *options = supervisor->options;
    add(command, "--name");
    add(command, child->name);
    add_number_of(command, child);
    add_number(command, "--devices", options->device_count);
    if (options->host_functions) add(command, "--host-functions");
    if (options->memory_bytes > 0)
        add_number(command, "--memory", options->memory_bytes);
    add_number(command, "--host-memory", options->host_bytes);
    add_island(supervisor, child, command);
}

static void build_command_line(const supervisor_t *supervisor,
                               const child_t *child, command_line_t *command)
{
    const tow_supervisor_options_t *options = supervisor->options;
    add(command, "tow");
    add(command, child->is_worker ? "worker" : "controller");
    add(command, child->is_worker ? "--controller" : "--listen");
    add(command, supervisor->address);
    add(command, "--keys");
    add(command, options->keys);
    add(command, "--ready-fd");
    add(command, "3");
    add_devices(command, options);
    if (child->is_controller) add_controller(command, child, options);
    if (child->is_worker) {
        if (child->is_controller) add(command, "--with-controller");
        add_worker(supervisor, child, command);
    } else {
        add_relays(command, options);
        add_spin(command, options);
    }
}

/* As main() does with the same arguments. */
TOW_NORETURN static void become_worker(const supervisor_t *supervisor,
                                       command_line_t *command)
{
    tow_process_title_set(command->items, command->count);
    command->items[1] = "tow worker";
    exit(supervisor->options->worker_main((int)command->count - 1,
                                          command->items + 1));
}

/* Runs in the child after fork; the supervisor has one thread. */
TOW_NORETURN static void exec_child(const supervisor_t *supervisor,
                                    const child_t *child,
                                    command_line_t *command, const char *log,
                                    const int fds[2], pid_t parent)
{
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) _exit(127); /* The supervisor is already dead. */
    sigset_t none;
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    const int log_fd = open(log, O_WRONLY | O_CREAT | O_APPEND, 0600);
    const int null_fd = open("/dev/null", O_RDONLY);
    dup2(null_fd, STDIN_FILENO);
    dup2(log_fd, STDOUT_FILENO);
    dup2(log_fd, STDERR_FILENO);
    dup2(fds[0], CHILD_READY_FD);
    if (fds[1] >= 0) dup2(fds[1], CHILD_FORK_SERVER_FD);
    close_range(fds[1] >= 0 ? CHILD_FORK_SERVER_FD + 1 : CHILD_READY_FD + 1,
                ~0u, 0);
    if (child->is_worker && supervisor->is_preloaded)
        become_worker(supervisor, command);
    execv("/proc/self/exe", command->items);
    fprintf(stderr, "tow up: cannot execute itself: %s\n", strerror(errno));
    _exit(127);
}

static void log_path(const supervisor_t *supervisor, const child_t *child,
                     char path[TOW_RUN_PATH_SIZE])
{
    char file[TOW_HOST_NAME_MAX + 20];
    snprintf(file, sizeof(file), "%s.log", child->name);
    tow_run_folder_file(supervisor->options->folder, file, path);
}

/* Duplicates `fd` above the descriptors that the child gets, and closes it. */
static int move_above_child_fds(int fd)
{
    const int moved = fcntl(fd, F_DUPFD_CLOEXEC, CHILD_FORK_SERVER_FD + 1);
    const int error = errno;
    close(fd);
    errno = error;
    return moved;
}

static int open_ready_pipe(int fds[2])
{
    if (pipe2(fds, O_CLOEXEC | O_NONBLOCK) != 0) return errno;
    fds[1] = move_above_child_fds(fds[1]);
    if (fds[1] >= 0) return 0;
    const int error = errno;
    close(fds[0]);
    return error;
}

/* The controller's end of the fork server's socket; -1 for other children and if
 * there is none: then the controller starts its own compilers. */
static int open_fork_server(supervisor_t *supervisor, const child_t *child)
{
    if (!child->is_controller || !uses_xla(supervisor->options)) return -1;
    const int fd = tow_fork_server_open(&supervisor->fork_server);
    return fd >= 0 ? move_above_child_fds(fd) : -1;
}

/* Runs in the child. The controller may use every core. */
static void bind_cores(const supervisor_t *supervisor, const child_t *child)
{
    const tow_supervisor_options_t *options = supervisor->options;
    if (!child->is_worker || options->is_unbound) return;
    tow_cores_take_share(child->place, options->worker_count);
}

static tow_status_t fork_local(supervisor_t *supervisor, child_t *child,
                               const char *log, int ready_fd)
{
    command_line_t command = {0};
    build_command_line(supervisor, child, &command);
    const int child_fds[2] = {ready_fd, open_fork_server(supervisor, child)};
    const pid_t parent = getpid(), pid = fork();
    if (pid == 0) {
        bind_cores(supervisor, child);
        exec_child(supervisor, child, &command, log, child_fds, parent);
    }
    const int fork_error = errno;
    if (child_fds[1] >= 0) close(child_fds[1]);
    if (pid < 0) return TOW_ERRNO(fork_error, "starting %s", child->name);
    child->pid = pid;
    return TOW_OK;
}

static tow_status_t fork_remote(supervisor_t *supervisor, child_t *child,
                                const char *log, int ready_fd)
{
    const tow_supervisor_options_t *options = supervisor->options;
    const tow_remote_worker_t worker = {.host = child->host,
                                        .controller = supervisor->address,
                                        .name = child->name,
                                        .model = options->model,
                                        .plugin = options->plugin,
                                        .device_count = options->device_count,
                                        .memory_bytes = options->memory_bytes,
                                        .host_functions =
                                            options->host_functions};
    tow_ssh_command_t command;
    tow_remote_process_t process;
    TOW_RETURN_IF_ERROR(
        tow_remote_worker_command(&worker, &supervisor->credential, &command));
    TOW_RETURN_IF_ERROR(tow_remote_worker_start(
        &command, &supervisor->credential, log, ready_fd, &process));
    child->pid = process.pid;
    child->follow_fd = process.follow_fd;
    return TOW_OK;
}

static tow_status_t start_child(supervisor_t *supervisor, child_t *child)
{
    char log[TOW_RUN_PATH_SIZE];
    int fds[2];
    child->start_count++;
    log_path(supervisor, child, log);
    const int error = open_ready_pipe(fds);
    if (error != 0) return TOW_ERRNO(error, "making a pipe");
    tow_status_t status = child->host != NULL
                              ? fork_remote(supervisor, child, log, fds[1])
                              : fork_local(supervisor, child, log, fds[1]);
    close(fds[1]);
    if (status != TOW_OK) {
        close(fds[0]);
        return status;
    }
    child->ready_fd = fds[0];
    child->is_ready = false;
    child->line_length = 0;
    child->started_ns = now_ns();
    child->restart_ns = 0;
    return TOW_OK;
}

/* -- Child events --------------------------------------------------------- */

static void quote_log(const supervisor_t *supervisor, const child_t *child,
                      char text[QUOTED_SIZE])
{
    char path[TOW_RUN_PATH_SIZE];
    log_path(supervisor, child, path);
    tow_local_cluster_quote_log(path, text, QUOTED_SIZE);
}

static void fail(supervisor_t *supervisor, tow_status_t take_status)
{
    if (supervisor->failure == TOW_OK)
        supervisor->failure = take_status;
    else
        tow_status_release(take_status);
    supervisor->is_stopping = true;
}

static void describe_exit(int exit_status, char text[64])
{
    if (WIFSIGNALED(exit_status))
        snprintf(text, 64, "was killed by signal %d", WTERMSIG(exit_status));
    else
        snprintf(text, 64, "exited with status %d", WEXITSTATUS(exit_status));
}

static void schedule_restart(child_t *child)
{
    const int64_t now = now_ns();
    if (child->delay_ns == 0 || now - child->started_ns >= STABLE_NS)
        child->delay_ns = RESTART_MIN_NS;
    child->restart_ns = now + child->delay_ns;
    child->delay_ns = 2 * child->delay_ns < RESTART_MAX_NS ? 2 * child->delay_ns
                                                           : RESTART_MAX_NS;
}

static void close_ready(child_t *child)
{
    if (child->ready_fd >= 0) close(child->ready_fd);
    child->ready_fd = -1;
}

static void close_follow(child_t *child)
{
    if (child->follow_fd >= 0) close(child->follow_fd);
    child->follow_fd = -1;
}

static void on_child_exit(supervisor_t *supervisor, child_t *child,
                          int exit_status)
{
    char how[64];
    describe_exit(exit_status, how);
    child->pid = 0;
    close_ready(child);
    close_follow(child);
    if (supervisor->is_stopping) return;
    if (!supervisor->is_ready) {
        char quoted[QUOTED_SIZE];
        quote_log(supervisor, child, quoted);
        fail(supervisor,
             TOW_ERROR(TOW_UNAVAILABLE, "%s %s: %s", child->name, how, quoted));
        return;
    }
    if (child->is_controller && exit_status == 0 &&
        supervisor->options->idle_timeout_s > 0) {
        log_line("no client for %llu s: the cluster stops",
                 (unsigned long long)supervisor->options->idle_timeout_s);
        supervisor->is_stopping = true;
        return;
    }
    schedule_restart(child);
    log_line("%s %s; restarting in %lld ms", child->name, how,
             (long long)((child->restart_ns - now_ns()) / TOW_NS_PER_MS));
}

static void reap(supervisor_t *supervisor)
{
    for (size_t i = 0; i < supervisor->child_count; i++) {
        child_t *child = &supervisor->children[i];
        int exit_status;
        if (child->pid != 0 &&
            waitpid(child->pid, &exit_status, WNOHANG) == child->pid)
            on_child_exit(supervisor, child, exit_status);
    }
    tow_fork_server_reap(&supervisor->fork_server);
}

static void start_workers(supervisor_t *supervisor)
{
    for (size_t i = 1; i < supervisor->child_count; i++) {
        child_t *child = &supervisor->children[i];
        if (child->pid != 0 || child->restart_ns != 0) continue;
        tow_status_t status = start_child(supervisor, child);
        if (status != TOW_OK) fail(supervisor, status);
    }
}

static void report_ready(supervisor_t *supervisor)
{
    const tow_supervisor_options_t *options = supervisor->options;
    tow_run_state_t state = {.pid = getpid(),
                             .worker_count = (unsigned)options->worker_count,
                             .device_count = (unsigned)options->device_count};
    snprintf(state.address, sizeof(state.address), "%s", supervisor->address);
    snprintf(state.token_file, sizeof(state.token_file), "%s/token",
             options->keys);
    tow_status_t status = tow_run_folder_write(options->folder, &state);
    if (status != TOW_OK) {
        fail(supervisor, status);
        return;
    }
    supervisor->is_ready = true;
    if (options->ready_fd < 0) return;
    dprintf(options->ready_fd, "%s\n", supervisor->address);
    if (options->ready_fd > STDERR_FILENO) close(options->ready_fd);
}

static void report_progress(const supervisor_t *supervisor,
                            const child_t *child)
{
    const tow_supervisor_options_t *options = supervisor->options;
    char line[TOW_HOST_NAME_MAX + 64];
    if (options->progress == NULL || child->host == NULL) return;
    snprintf(line, sizeof(line), "%s: worker %s has joined", child->host->name,
             child->name);
    options->progress(options->context, line);
}

/* A child has reported that it is ready. The controller's line is its address:
 * the workers start with it and reconnect to it. */
static void on_child_ready(supervisor_t *supervisor, child_t *child)
{
    child->is_ready = true;
    close_ready(child);
    if (child->is_controller && !supervisor->is_ready) {
        snprintf(supervisor->address, sizeof(supervisor->address), "%s",
                 child->line);
        start_workers(supervisor);
    }
    if (supervisor->is_ready || supervisor->is_stopping) return;
    report_progress(supervisor, child);
    for (size_t i = 0; i < supervisor->child_count; i++)
        if (!supervisor->children[i].is_ready) return;
    report_ready(supervisor);
}

/* A shell on another host may print lines of its own before. */
static bool is_ready_line(const child_t *child)
{
    return child->host == NULL ||
           (child->line_length == strlen(child->name) &&
            memcmp(child->line, child->name, child->line_length) == 0);
}

static void read_ready(supervisor_t *supervisor, child_t *child)
{
    while (child->line_length + 1 < sizeof(child->line)) {
        char *next = child->line + child->line_length;
        const ssize_t got = read(child->ready_fd, next, 1);
        if (got < 0 && (errno == EAGAIN || errno == EINTR)) return;
        if (got <= 0) break; /* SIGCHLD reports its exit. */
        if (*next == '\n' && is_ready_line(child)) {
            *next = '\0';
            on_child_ready(supervisor, child);
            return;
        }
        child->line_length = *next == '\n' ? 0 : child->line_length + 1;
    }
    close_ready(child);
}

static void restart_due(supervisor_t *supervisor)
{
    const int64_t now = now_ns();
    for (size_t i = 0; i < supervisor->child_count; i++) {
        child_t *child = &supervisor->children[i];
        if (child->restart_ns == 0 || child->restart_ns > now) continue;
        tow_status_t status = start_child(supervisor, child);
        if (status == TOW_OK) {
            log_line("%s restarted as process %d", child->name,
                     (int)child->pid);
            continue;
        }
        log_line("%s", tow_status_message(status));
        tow_status_release(status);
        schedule_restart(child);
    }
}

/* -- Event loop ----------------------------------------------------------- */

static int64_t next_deadline_ns(const supervisor_t *supervisor,
                                int64_t start_deadline_ns)
{
    int64_t next = supervisor->is_ready ? INT64_MAX : start_deadline_ns;
    for (size_t i = 0; i < supervisor->child_count; i++) {
        const int64_t restart_ns = supervisor->children[i].restart_ns;
        if (restart_ns != 0 && restart_ns < next) next = restart_ns;
    }
    return next;
}

static int poll_ms(int64_t deadline_ns)
{
    if (deadline_ns == INT64_MAX) return -1;
    const int64_t left_ms = (deadline_ns - now_ns()) / TOW_NS_PER_MS + 1;
    return left_ms < 0 ? 0 : left_ms > 60000 ? 60000 : (int)left_ms;
}

static void take_signals(supervisor_t *supervisor)
{
    struct signalfd_siginfo info;
    while (read(supervisor->signal_fd, &info, sizeof(info)) == sizeof(info))
        if (info.ssi_signo != SIGCHLD) supervisor->is_stopping = true;
    reap(supervisor);
}

static bool follow_is_closed(int fd)
{
    char byte;
    ssize_t got;
    while ((got = read(fd, &byte, 1)) > 0 || (got < 0 && errno == EINTR)) {
    }
    return got == 0 || errno != EAGAIN;
}

/* Polls once and handles the events. */
static void poll_once(supervisor_t *supervisor, int64_t deadline_ns)
{
    enum {
        SIGNALS,
        FOLLOW,
        PARENT,
        MEMBERS
    };
    struct pollfd fds[MEMBERS + TOW_COUNT_OF(supervisor->children) +
                      TOW_FORK_SERVER_POLL_MAX] = {
        [SIGNALS] = {.fd = supervisor->signal_fd, .events = POLLIN},
        [FOLLOW] = {.fd = supervisor->options->follow_fd, .events = POLLIN},
        [PARENT] = {.fd = supervisor->parent_fd, .events = POLLIN},
    };
    for (size_t i = 0; i < supervisor->child_count; i++)
        fds[MEMBERS + i] = (struct pollfd){
            .fd = supervisor->children[i].ready_fd, .events = POLLIN};
    struct pollfd *fork_server_fds = fds + MEMBERS + supervisor->child_count;
    const size_t fork_server_fd_count =
        tow_fork_server_polls(&supervisor->fork_server, fork_server_fds);
    if (poll(fds, MEMBERS + supervisor->child_count + fork_server_fd_count,
             poll_ms(deadline_ns)) < 0)
        return;
    /* Read lines before handling exits: a child may report and then exit. */
    for (size_t i = 0; i < supervisor->child_count; i++)
        if (fds[MEMBERS + i].revents != 0 &&
            supervisor->children[i].ready_fd == fds[MEMBERS + i].fd)
            read_ready(supervisor, &supervisor->children[i]);
    if (fds[FOLLOW].revents != 0 && follow_is_closed(fds[FOLLOW].fd))
        supervisor->is_stopping = true;
    if (fds[PARENT].revents != 0) supervisor->is_stopping = true;
    tow_fork_server_handle(&supervisor->fork_server, fork_server_fds,
                           fork_server_fd_count, supervisor->is_preloaded);
    if (fds[SIGNALS].revents != 0) take_signals(supervisor);
}

/* Names a child that is not ready and quotes its log. */
static tow_status_t start_timed_out(const supervisor_t *supervisor)
{
    size_t i = 0;
    while (i + 1 < supervisor->child_count && supervisor->children[i].is_ready)
        i++;
    char quoted[QUOTED_SIZE];
    quote_log(supervisor, &supervisor->children[i], quoted);
    return TOW_ERROR(TOW_DEADLINE_EXCEEDED, "%s is not ready after %lld s: %s",
                     supervisor->children[i].name,
                     (long long)(START_NS / TOW_NS_PER_S), quoted);
}

static void run(supervisor_t *supervisor)
{
    const int64_t start_deadline_ns = now_ns() + START_NS;
    while (!supervisor->is_stopping) {
        poll_once(supervisor, next_deadline_ns(supervisor, start_deadline_ns));
        check(supervisor);
        if (supervisor->is_stopping) return;
        restart_due(supervisor);
        check(supervisor);
        if (!supervisor->is_ready && now_ns() >= start_deadline_ns)
            fail(supervisor, start_timed_out(supervisor));
    }
}

/* -- Stopping ------------------------------------------------------------- */

static bool any_is_running(const supervisor_t *supervisor)
{
    for (size_t i = 0; i < supervisor->child_count; i++)
        if (supervisor->children[i].pid != 0) return true;
    return false;
}

static void signal_all(const supervisor_t *supervisor, int number)
{
    for (size_t i = 0; i < supervisor->child_count; i++)
        if (supervisor->children[i].pid != 0)
            kill(supervisor->children[i].pid, number);
}

/* A worker on another host ends with its standard input, and ssh after it. */
static void ask_all_to_end(supervisor_t *supervisor)
{
    for (size_t i = 0; i < supervisor->child_count; i++) {
        child_t *child = &supervisor->children[i];
        if (child->pid == 0) continue;
        if (child->host != NULL)
            close_follow(child);
        else
            kill(child->pid, SIGTERM);
    }
}

/* A process stopped by SIGSTOP reacts only to SIGKILL. */
static void stop_all(supervisor_t *supervisor)
{
    const int64_t deadline_ns = now_ns() + STOP_NS;
    ask_all_to_end(supervisor);
    while (any_is_running(supervisor) && now_ns() < deadline_ns) {
        struct pollfd fd = {.fd = supervisor->signal_fd, .events = POLLIN};
        poll(&fd, 1, poll_ms(deadline_ns));
        take_signals(supervisor);
    }
    if (!any_is_running(supervisor)) return;
    log_line("killing processes that did not exit within %lld s",
             (long long)(STOP_NS / TOW_NS_PER_S));
    signal_all(supervisor, SIGKILL);
    for (size_t i = 0; i < supervisor->child_count; i++) {
        child_t *child = &supervisor->children[i];
        if (child->pid != 0) waitpid(child->pid, NULL, 0);
        child->pid = 0;
        close_ready(child);
        close_follow(child);
    }
}

/* -- Running a cluster ---------------------------------------------------- */

static tow_status_t open_signals(supervisor_t *supervisor)
{
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGCHLD);
    sigaddset(&set, SIGTERM);
    sigaddset(&set, SIGINT);
    sigaddset(&set, SIGHUP);
    sigprocmask(SIG_BLOCK, &set, NULL);
    signal(SIGPIPE, SIG_IGN);
    supervisor->signal_fd = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
    if (supervisor->signal_fd < 0) return TOW_ERRNO(errno, "signalfd");
    return TOW_OK;
}

/* A process forked from the client inherits its end of the pipe, so the
 * client's process is watched too. */
static void open_follow(supervisor_t *supervisor)
{
    const int fd = supervisor->options->follow_fd;
    if (fd < 0) return;
    fcntl(fd, F_SETFD, FD_CLOEXEC);
    fcntl(fd, F_SETFL, O_NONBLOCK);
    if (getppid() > 1) supervisor->parent_fd = pidfd_open(getppid(), 0);
}

static void init_child(child_t *child, size_t index, bool is_joint)
{
    *child = (child_t){.is_controller = index == 0,
                       .is_worker = index > 0 || is_joint,
                       .place = index > 0 ? (uint32_t)index - 1 : 0,
                       .follow_fd = -1,
                       .ready_fd = -1};
    if (child->is_worker)
        snprintf(child->name, sizeof(child->name), "worker-%u",
                 (unsigned)child->place);
    else
        snprintf(child->name, sizeof(child->name), "controller");
}

/* A worker on another host has the name of its host. */
static void init_remote(const tow_hosts_t *hosts, child_t *child)
{
    uint32_t index = child->place;
    const tow_host_t *host = hosts->items;
    while (index >= host->worker_count)
        index -= host++->worker_count;
    child->host = host;
    if (host->worker_count == 1)
        snprintf(child->name, sizeof(child->name), "%s", host->name);
    else
        snprintf(child->name, sizeof(child->name), "%s-%u", host->name, index);
}

static void init_children(supervisor_t *supervisor)
{
    const tow_supervisor_options_t *options = supervisor->options;
    supervisor->child_count = options->is_joint ? 1 : 1 + options->worker_count;
    for (size_t i = 0; i < supervisor->child_count; i++) {
        init_child(&supervisor->children[i], i, options->is_joint);
        if (i > 0 && options->hosts != NULL)
            init_remote(options->hosts, &supervisor->children[i]);
        char log[TOW_RUN_PATH_SIZE];
        log_path(supervisor, &supervisor->children[i], log);
        unlink(log); /* Left by an earlier cluster. */
    }
}

/* Killed workers leave their shared memory behind. */
static void remove_arena(const supervisor_t *supervisor)
{
    char host[TOW_DAEMON_HOST_SIZE];
    tow_daemon_host_name(host);
    tow_gang_comm_sweep(supervisor->address, host);
}

/* A signal during loading replaces this process by `tow up --ended`, which
 * stops the child. */
static void preload(supervisor_t *supervisor)
{
    const tow_supervisor_options_t *options = supervisor->options;
    char child[24];
    char *arguments[] = {"tow",
                         "up",
                         "--foreground",
                         "--folder",
                         options->folder->path,
                         "--ended",
                         child,
                         options->follow_fd >= 0 ? "--follow-fd" : NULL,
                         "0",
                         NULL};
    snprintf(child, sizeof(child), "%d", (int)supervisor->children[0].pid);
    supervisor->is_preloaded = tow_preload_xla(arguments);
}

void tow_supervisor_end_child(pid_t child)
{
    if (child == 0) return;
    const int fd = pidfd_open(child, 0);
    struct pollfd ended = {.fd = fd, .events = POLLIN};
    kill(child, SIGTERM);
    if (fd < 0 || poll(&ended, 1, (int)(STOP_NS / 1000000)) != 1)
        kill(child, SIGKILL);
    if (fd >= 0) close(fd);
    waitpid(child, NULL, 0);
}

tow_status_t tow_supervisor_run(const tow_supervisor_options_t *options)
{
    supervisor_t supervisor = {
        .options = options, .signal_fd = -1, .parent_fd = -1};
    snprintf(supervisor.address, sizeof(supervisor.address), "%s",
             options->address);
    tow_fork_server_init(&supervisor.fork_server);
    init_children(&supervisor);
    tow_status_t status = open_signals(&supervisor);
    if (status == TOW_OK && options->hosts != NULL)
        status = tow_credential_load(options->keys, &supervisor.credential);
    open_follow(&supervisor);
    if (uses_xla(options) && options->is_joint) preload(&supervisor);
    if (status == TOW_OK)
        status = start_child(&supervisor, &supervisor.children[0]);
    if (status == TOW_OK) {
        /* While the controller starts. */
        if (uses_xla(options) && !options->is_joint) preload(&supervisor);
        run(&supervisor);
        /* First: a controller that exits waits for its compilers, whose exit
         * the fork server reports. */
        tow_fork_server_close(&supervisor.fork_server);
        stop_all(&supervisor);
        TOW_ASSERT(!any_is_running(&supervisor));
        remove_arena(&supervisor);
        status = supervisor.failure;
    }
    if (supervisor.signal_fd >= 0) close(supervisor.signal_fd);
    if (supervisor.parent_fd >= 0) close(supervisor.parent_fd);
    return status;
}
