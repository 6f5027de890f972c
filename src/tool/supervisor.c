#include "tool/supervisor.h"

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

#include "client/local.h"
#include "env/tuning.h"
#include "tool/command.h"
#include "tool/cores.h"
#include "tool/launcher.h"
#include "tool/preload.h"
#include "tool/role.h"
#include "tool/title.h"
#include "worker/gangs.h"

/* Until all have said that they are ready; XLA from a cold disk takes ten
 * seconds, and workers share the cores. */
#define START_NS (120 * TOW_NS_PER_S)
/* What a process may take to end by itself; then it is killed. */
#define STOP_NS (5 * TOW_NS_PER_S)
/* From a death to the next start. Doubles, and begins anew after a life of
 * CALM_NS. */
#define RESTART_MIN_NS (100 * TOW_NS_PER_MS)
#define RESTART_MAX_NS (10 * TOW_NS_PER_S)
#define CALM_NS        (30 * TOW_NS_PER_S)
/* The child's end of the pipe on which it says that it is ready. */
#define CHILD_READY_FD 3
/* The controller's end of the launcher's socket. */
#define CHILD_LAUNCHER_FD 4
#define WORD_COUNT_MAX    32
#define QUOTED_SIZE       1024

typedef struct member {
    char name[32]; /* "controller", "worker-0" */
    /* The only worker of a cluster may be both. */
    bool is_controller;
    bool is_worker;
    uint32_t place;   /* a worker's, among all */
    uint32_t process; /* a worker's number, never used again */
    pid_t pid;        /* 0: it is not there */
    int ready_fd;     /* -1: it has said so, or is not there */
    bool is_ready;
    int64_t started_ns;
    int64_t restart_ns; /* when to start it again; 0: not to be */
    int64_t delay_ns;
    char line[TOW_ADDRESS_TEXT_MAX + 32]; /* what it has said */
    size_t line_length;
} member_t;

typedef struct supervisor {
    const tow_supervisor_options_t *options; /* lent */
    char address[TOW_ADDRESS_TEXT_MAX + 32]; /* the true one, once known */
    uint32_t process_count;
    int signal_fd;
    int parent_fd; /* who follow_fd belongs to; -1: nobody */
    tow_launcher_t launcher;
    bool is_preloaded; /* XLA is here: workers are forked */
    bool is_ready;
    bool is_ending;
    tow_status_t failure; /* owned; it never got ready */
    size_t member_count;
    member_t members[1 + TOW_CLUSTER_WORKER_COUNT_MAX];
} supervisor_t;

static int64_t now_ns(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (int64_t)time.tv_sec * TOW_NS_PER_S + time.tv_nsec;
}

/* One line of `up.log`, or of the screen. */
static void say(const char *format, ...) __attribute__((format(printf, 1, 2)));
static void say(const char *format, ...)
{
    va_list values;
    va_start(values, format);
    fputs("tow up: ", stderr);
    vfprintf(stderr, format, values);
    fputc('\n', stderr);
    va_end(values);
}

/* -- Starting ------------------------------------------------------------------ */

typedef struct words {
    char *items[WORD_COUNT_MAX + 1];
    size_t count;
    char texts[4][32]; /* of numbers */
    size_t text_count;
    char island[32];
} words_t;

static void add(words_t *words, const char *word)
{
    words->items[words->count++] = (char *)word;
}

static void add_number(words_t *words, const char *option, uint64_t number)
{
    char *text = words->texts[words->text_count++];
    snprintf(text, sizeof(words->texts[0]), "%llu", (unsigned long long)number);
    add(words, option);
    add(words, text);
}

static void add_devices(words_t *words, const tow_supervisor_options_t *options)
{
    if (options->model != NULL) {
        add(words, "--simulated");
        add(words, options->model);
    } else if (options->plugin != NULL) {
        add(words, "--plugin");
        add(words, options->plugin);
    }
}

/* island-0, island-1, ...: as many workers in each, or one more. */
static void add_island(const supervisor_t *supervisor, const member_t *member,
                       words_t *words)
{
    const tow_supervisor_options_t *options = supervisor->options;
    if (options->island_count == 0) return;
    snprintf(words->island, sizeof(words->island), "island-%llu",
             (unsigned long long)(member->place * options->island_count /
                                  options->worker_count));
    add(words, "--island");
    add(words, words->island);
}

static bool uses_xla(const tow_supervisor_options_t *options)
{
    return options->model == NULL && options->plugin == NULL;
}

static void add_relays(words_t *words, const tow_supervisor_options_t *options)
{
    if (options->relay_above > 0)
        add_number(words, "--relay-above", options->relay_above);
    if (options->relay_group > 0)
        add_number(words, "--relay-group", options->relay_group);
}

/* See TOW_NET_WORKER_SPIN_NS: it pays where a core is left for the controller. */
static void add_spin(words_t *words, const tow_supervisor_options_t *options)
{
    if (options->worker_count < tow_cores_count())
        add_number(words, "--spin", TOW_NET_WORKER_SPIN_NS / TOW_NS_PER_US);
}

static void add_controller(words_t *words,
                           const tow_supervisor_options_t *options)
{
    if (options->keeps_compiled) add(words, "--compile-cache");
    if (!uses_xla(options)) return;
    add(words, "--launcher-fd");
    add(words, "4");
}

static void add_worker(const supervisor_t *supervisor, const member_t *member,
                       words_t *words)
{
    const tow_supervisor_options_t *options = supervisor->options;
    add(words, "--name");
    add(words, member->name);
    add_number(words, "--process", member->process);
    add_number(words, "--devices", options->device_count);
    if (options->host_functions) add(words, "--host-functions");
    if (options->memory_bytes > 0)
        add_number(words, "--memory", options->memory_bytes);
    add_number(words, "--host-memory", options->host_bytes);
    add_island(supervisor, member, words);
}

static void make_words(const supervisor_t *supervisor, const member_t *member,
                       words_t *words)
{
    const tow_supervisor_options_t *options = supervisor->options;
    add(words, "tow");
    add(words, member->is_worker ? "worker" : "controller");
    add(words, member->is_worker ? "--controller" : "--listen");
    add(words, supervisor->address);
    add(words, "--keys");
    add(words, options->keys);
    add(words, "--ready-fd");
    add(words, "3");
    add_devices(words, options);
    if (member->is_controller) add_controller(words, options);
    if (member->is_worker) {
        if (member->is_controller) add(words, "--with-controller");
        add_worker(supervisor, member, words);
    } else {
        add_relays(words, options);
        add_spin(words, options);
    }
}

/* As main() does with the same words. */
TOW_NORETURN static void become_worker(words_t *words)
{
    tow_title_set(words->items, words->count);
    words->items[1] = "tow worker";
    exit(tow_command_worker((int)words->count - 1, words->items + 1));
}

/* In the child, after fork. The supervisor has one thread. */
TOW_NORETURN static void become(const supervisor_t *supervisor,
                                const member_t *member, words_t *words,
                                const char *log, const int fds[2], pid_t parent)
{
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) _exit(127); /* It died before we asked. */
    sigset_t none;
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    const int log_fd = open(log, O_WRONLY | O_CREAT | O_APPEND, 0600);
    const int null_fd = open("/dev/null", O_RDONLY);
    dup2(null_fd, STDIN_FILENO);
    dup2(log_fd, STDOUT_FILENO);
    dup2(log_fd, STDERR_FILENO);
    dup2(fds[0], CHILD_READY_FD);
    if (fds[1] >= 0) dup2(fds[1], CHILD_LAUNCHER_FD);
    close_range(fds[1] >= 0 ? CHILD_LAUNCHER_FD + 1 : CHILD_READY_FD + 1, ~0u,
                0);
    if (member->is_worker && supervisor->is_preloaded) become_worker(words);
    execv("/proc/self/exe", words->items);
    fprintf(stderr, "tow up: cannot run itself: %s\n", strerror(errno));
    _exit(127);
}

static void log_path(const supervisor_t *supervisor, const member_t *member,
                     char path[TOW_RUN_PATH_SIZE])
{
    char file[48];
    snprintf(file, sizeof(file), "%s.log", member->name);
    tow_run_folder_file(supervisor->options->folder, file, path);
}

/* Above the numbers that the child's ends get. Closes `fd`. */
static int move_up(int fd)
{
    const int moved = fcntl(fd, F_DUPFD_CLOEXEC, CHILD_LAUNCHER_FD + 1);
    const int error = errno;
    close(fd);
    errno = error;
    return moved;
}

static int open_ready_pipe(int fds[2])
{
    if (pipe2(fds, O_CLOEXEC | O_NONBLOCK) != 0) return errno;
    fds[1] = move_up(fds[1]);
    if (fds[1] >= 0) return 0;
    const int error = errno;
    close(fds[0]);
    return error;
}

/* The end for a controller; -1: for others, and if there is none to be had, which
 * it notices and does without. */
static int open_launcher(supervisor_t *supervisor, const member_t *member)
{
    if (!member->is_controller || !uses_xla(supervisor->options)) return -1;
    const int fd = tow_launcher_open(&supervisor->launcher);
    return fd >= 0 ? move_up(fd) : -1;
}

/* In the child. The controller goes where there is room. */
static void take_cores(const supervisor_t *supervisor, const member_t *member)
{
    const tow_supervisor_options_t *options = supervisor->options;
    if (!member->is_worker || options->is_unbound) return;
    tow_cores_take_share(member->place, options->worker_count);
}

static tow_status_t start_member(supervisor_t *supervisor, member_t *member)
{
    char log[TOW_RUN_PATH_SIZE];
    words_t words = {0};
    int fds[2];
    if (member->is_worker) member->process = supervisor->process_count++;
    make_words(supervisor, member, &words);
    log_path(supervisor, member, log);
    const int error = open_ready_pipe(fds);
    if (error != 0) return TOW_ERRNO(error, "making a pipe");
    const int child_fds[2] = {fds[1], open_launcher(supervisor, member)};
    const pid_t parent = getpid(), pid = fork();
    if (pid == 0) {
        take_cores(supervisor, member);
        become(supervisor, member, &words, log, child_fds, parent);
    }
    const int fork_error = errno;
    close(fds[1]);
    if (child_fds[1] >= 0) close(child_fds[1]);
    if (pid < 0) {
        close(fds[0]);
        return TOW_ERRNO(fork_error, "starting %s", member->name);
    }
    member->pid = pid;
    member->ready_fd = fds[0];
    member->is_ready = false;
    member->line_length = 0;
    member->started_ns = now_ns();
    member->restart_ns = 0;
    return TOW_OK;
}

/* -- What happens to them --------------------------------------------------------- */

static void quote_log(const supervisor_t *supervisor, const member_t *member,
                      char text[QUOTED_SIZE])
{
    char path[TOW_RUN_PATH_SIZE];
    log_path(supervisor, member, path);
    tow_local_quote_log(path, text, QUOTED_SIZE);
}

static void fail(supervisor_t *supervisor, tow_status_t take_status)
{
    if (supervisor->failure == TOW_OK)
        supervisor->failure = take_status;
    else
        tow_status_release(take_status);
    supervisor->is_ending = true;
}

static void describe_end(int exit_status, char text[64])
{
    if (WIFSIGNALED(exit_status))
        snprintf(text, 64, "was ended by signal %d", WTERMSIG(exit_status));
    else
        snprintf(text, 64, "ended with status %d", WEXITSTATUS(exit_status));
}

static void plan_restart(member_t *member)
{
    const int64_t now = now_ns();
    if (member->delay_ns == 0 || now - member->started_ns >= CALM_NS)
        member->delay_ns = RESTART_MIN_NS;
    member->restart_ns = now + member->delay_ns;
    member->delay_ns = 2 * member->delay_ns < RESTART_MAX_NS
                           ? 2 * member->delay_ns
                           : RESTART_MAX_NS;
}

static void close_ready(member_t *member)
{
    if (member->ready_fd >= 0) close(member->ready_fd);
    member->ready_fd = -1;
}

static void member_ended(supervisor_t *supervisor, member_t *member,
                         int exit_status)
{
    char how[64];
    describe_end(exit_status, how);
    member->pid = 0;
    close_ready(member);
    if (supervisor->is_ending) return;
    if (!supervisor->is_ready) {
        char quoted[QUOTED_SIZE];
        quote_log(supervisor, member, quoted);
        fail(supervisor, TOW_ERROR(TOW_UNAVAILABLE, "%s %s: %s", member->name,
                                   how, quoted));
        return;
    }
    plan_restart(member);
    say("%s %s; it starts again in %lld ms", member->name, how,
        (long long)((member->restart_ns - now_ns()) / TOW_NS_PER_MS));
}

static void reap(supervisor_t *supervisor)
{
    for (size_t i = 0; i < supervisor->member_count; i++) {
        member_t *member = &supervisor->members[i];
        int exit_status;
        if (member->pid != 0 &&
            waitpid(member->pid, &exit_status, WNOHANG) == member->pid)
            member_ended(supervisor, member, exit_status);
    }
    tow_launcher_reap(&supervisor->launcher);
}

static void start_workers(supervisor_t *supervisor)
{
    for (size_t i = 1; i < supervisor->member_count; i++) {
        member_t *member = &supervisor->members[i];
        if (member->pid != 0 || member->restart_ns != 0) continue;
        tow_status_t status = start_member(supervisor, member);
        if (status != TOW_OK) fail(supervisor, status);
    }
}

static void all_ready(supervisor_t *supervisor)
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

/* A member has said its line. The controller's is its address: the workers can
 * start, and come back to the same one ever after. */
static void member_ready(supervisor_t *supervisor, member_t *member)
{
    member->is_ready = true;
    close_ready(member);
    if (member->is_controller && !supervisor->is_ready) {
        snprintf(supervisor->address, sizeof(supervisor->address), "%s",
                 member->line);
        start_workers(supervisor);
    }
    if (supervisor->is_ready || supervisor->is_ending) return;
    for (size_t i = 0; i < supervisor->member_count; i++)
        if (!supervisor->members[i].is_ready) return;
    all_ready(supervisor);
}

static void read_ready(supervisor_t *supervisor, member_t *member)
{
    while (member->line_length + 1 < sizeof(member->line)) {
        char *next = member->line + member->line_length;
        const ssize_t got = read(member->ready_fd, next, 1);
        if (got < 0 && (errno == EAGAIN || errno == EINTR)) return;
        if (got <= 0) break; /* Its end comes as a signal. */
        if (*next == '\n') {
            *next = '\0';
            member_ready(supervisor, member);
            return;
        }
        member->line_length++;
    }
    close_ready(member);
}

static void start_due(supervisor_t *supervisor)
{
    const int64_t now = now_ns();
    for (size_t i = 0; i < supervisor->member_count; i++) {
        member_t *member = &supervisor->members[i];
        if (member->restart_ns == 0 || member->restart_ns > now) continue;
        tow_status_t status = start_member(supervisor, member);
        if (status == TOW_OK) {
            say("%s is process %d", member->name, (int)member->pid);
            continue;
        }
        say("%s", tow_status_message(status));
        tow_status_release(status);
        plan_restart(member);
    }
}

/* -- Minding ---------------------------------------------------------------------- */

static int64_t next_deadline_ns(const supervisor_t *supervisor,
                                int64_t start_deadline_ns)
{
    int64_t next = supervisor->is_ready ? INT64_MAX : start_deadline_ns;
    for (size_t i = 0; i < supervisor->member_count; i++) {
        const int64_t restart_ns = supervisor->members[i].restart_ns;
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
        if (info.ssi_signo != SIGCHLD) supervisor->is_ending = true;
    reap(supervisor);
}

static bool follow_has_ended(int fd)
{
    char byte;
    ssize_t got;
    while ((got = read(fd, &byte, 1)) > 0 || (got < 0 && errno == EINTR)) {
    }
    return got == 0 || errno != EAGAIN;
}

/* Waits for one round of news, and handles it. */
static void mind(supervisor_t *supervisor, int64_t deadline_ns)
{
    enum {
        SIGNALS,
        FOLLOW,
        PARENT,
        MEMBERS
    };
    struct pollfd fds[MEMBERS + TOW_COUNT_OF(supervisor->members) +
                      TOW_LAUNCHER_POLL_MAX] = {
        [SIGNALS] = {.fd = supervisor->signal_fd, .events = POLLIN},
        [FOLLOW] = {.fd = supervisor->options->follow_fd, .events = POLLIN},
        [PARENT] = {.fd = supervisor->parent_fd, .events = POLLIN},
    };
    for (size_t i = 0; i < supervisor->member_count; i++)
        fds[MEMBERS + i] = (struct pollfd){
            .fd = supervisor->members[i].ready_fd, .events = POLLIN};
    struct pollfd *launches = fds + MEMBERS + supervisor->member_count;
    const size_t launch_count =
        tow_launcher_polls(&supervisor->launcher, launches);
    if (poll(fds, MEMBERS + supervisor->member_count + launch_count,
             poll_ms(deadline_ns)) < 0)
        return;
    /* Lines before ends: what was said last counts. */
    for (size_t i = 0; i < supervisor->member_count; i++)
        if (fds[MEMBERS + i].revents != 0 &&
            supervisor->members[i].ready_fd == fds[MEMBERS + i].fd)
            read_ready(supervisor, &supervisor->members[i]);
    if (fds[FOLLOW].revents != 0 && follow_has_ended(fds[FOLLOW].fd))
        supervisor->is_ending = true;
    if (fds[PARENT].revents != 0) supervisor->is_ending = true;
    tow_launcher_mind(&supervisor->launcher, launches, launch_count,
                      supervisor->is_preloaded);
    if (fds[SIGNALS].revents != 0) take_signals(supervisor);
}

/* One that has not said that it is ready, and what it has said instead. */
static tow_status_t out_of_patience(const supervisor_t *supervisor)
{
    size_t i = 0;
    while (i + 1 < supervisor->member_count && supervisor->members[i].is_ready)
        i++;
    char quoted[QUOTED_SIZE];
    quote_log(supervisor, &supervisor->members[i], quoted);
    return TOW_ERROR(TOW_DEADLINE_EXCEEDED, "%s is not ready after %lld s: %s",
                     supervisor->members[i].name,
                     (long long)(START_NS / TOW_NS_PER_S), quoted);
}

static void run(supervisor_t *supervisor)
{
    const int64_t start_deadline_ns = now_ns() + START_NS;
    while (!supervisor->is_ending) {
        mind(supervisor, next_deadline_ns(supervisor, start_deadline_ns));
        if (supervisor->is_ending) return;
        start_due(supervisor);
        if (!supervisor->is_ready && now_ns() >= start_deadline_ns)
            fail(supervisor, out_of_patience(supervisor));
    }
}

/* -- Ending ----------------------------------------------------------------------- */

static bool any_is_there(const supervisor_t *supervisor)
{
    for (size_t i = 0; i < supervisor->member_count; i++)
        if (supervisor->members[i].pid != 0) return true;
    return false;
}

static void signal_all(const supervisor_t *supervisor, int number)
{
    for (size_t i = 0; i < supervisor->member_count; i++)
        if (supervisor->members[i].pid != 0)
            kill(supervisor->members[i].pid, number);
}

/* One that is stopped by a signal hears no other but SIGKILL. */
static void end_all(supervisor_t *supervisor)
{
    const int64_t deadline_ns = now_ns() + STOP_NS;
    signal_all(supervisor, SIGTERM);
    while (any_is_there(supervisor) && now_ns() < deadline_ns) {
        struct pollfd fd = {.fd = supervisor->signal_fd, .events = POLLIN};
        poll(&fd, 1, poll_ms(deadline_ns));
        take_signals(supervisor);
    }
    if (!any_is_there(supervisor)) return;
    say("some did not end within %lld s and are killed",
        (long long)(STOP_NS / TOW_NS_PER_S));
    signal_all(supervisor, SIGKILL);
    for (size_t i = 0; i < supervisor->member_count; i++) {
        member_t *member = &supervisor->members[i];
        if (member->pid != 0) waitpid(member->pid, NULL, 0);
        member->pid = 0;
        close_ready(member);
    }
}

/* -- All of it -------------------------------------------------------------------- */

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

/* A process that was forked from the one we follow has its end of the pipe too,
 * so we also look at that one itself. */
static void follow(supervisor_t *supervisor)
{
    const int fd = supervisor->options->follow_fd;
    if (fd < 0) return;
    fcntl(fd, F_SETFD, FD_CLOEXEC);
    fcntl(fd, F_SETFL, O_NONBLOCK);
    if (getppid() > 1) supervisor->parent_fd = pidfd_open(getppid(), 0);
}

static void name_member(member_t *member, size_t index, bool is_joint)
{
    *member = (member_t){.is_controller = index == 0,
                         .is_worker = index > 0 || is_joint,
                         .place = index > 0 ? (uint32_t)index - 1 : 0,
                         .ready_fd = -1};
    if (member->is_worker)
        snprintf(member->name, sizeof(member->name), "worker-%u",
                 (unsigned)member->place);
    else
        snprintf(member->name, sizeof(member->name), "controller");
}

static void name_members(supervisor_t *supervisor)
{
    const tow_supervisor_options_t *options = supervisor->options;
    supervisor->member_count =
        options->is_joint ? 1 : 1 + options->worker_count;
    for (size_t i = 0; i < supervisor->member_count; i++) {
        name_member(&supervisor->members[i], i, options->is_joint);
        char log[TOW_RUN_PATH_SIZE];
        log_path(supervisor, &supervisor->members[i], log);
        unlink(log); /* Of a cluster that was here before. */
    }
}

/* Workers that were killed could not remove what they shared. */
static void remove_arena(const supervisor_t *supervisor)
{
    char host[TOW_ROLE_HOST_SIZE];
    tow_role_host_name(host);
    tow_gangs_sweep(supervisor->address, host);
}

/* Told to end meanwhile we become `tow up --ended`, which knows how. */
static void preload(supervisor_t *supervisor)
{
    const tow_supervisor_options_t *options = supervisor->options;
    char child[24];
    char *words[] = {"tow",
                     "up",
                     "--foreground",
                     "--folder",
                     options->folder->path,
                     "--ended",
                     child,
                     options->follow_fd >= 0 ? "--follow-fd" : NULL,
                     "0",
                     NULL};
    snprintf(child, sizeof(child), "%d", (int)supervisor->members[0].pid);
    supervisor->is_preloaded = tow_preload_xla(words);
}

void tow_supervise_end(pid_t child)
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

tow_status_t tow_supervise(const tow_supervisor_options_t *options)
{
    supervisor_t supervisor = {
        .options = options, .signal_fd = -1, .parent_fd = -1};
    snprintf(supervisor.address, sizeof(supervisor.address), "%s",
             options->address);
    tow_launcher_init(&supervisor.launcher);
    name_members(&supervisor);
    tow_status_t status = open_signals(&supervisor);
    follow(&supervisor);
    if (uses_xla(options) && options->is_joint) preload(&supervisor);
    if (status == TOW_OK)
        status = start_member(&supervisor, &supervisor.members[0]);
    if (status == TOW_OK) {
        /* While the controller starts. */
        if (uses_xla(options) && !options->is_joint) preload(&supervisor);
        run(&supervisor);
        /* First: a controller that ends waits for the end of its compilers, which
         * it hears from us. */
        tow_launcher_close(&supervisor.launcher);
        end_all(&supervisor);
        remove_arena(&supervisor);
        status = supervisor.failure;
    }
    if (supervisor.signal_fd >= 0) close(supervisor.signal_fd);
    if (supervisor.parent_fd >= 0) close(supervisor.parent_fd);
    return status;
}
