/* `tow up` and `tow down`: a cluster on this host, or on hosts that ssh reaches. */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/pidfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include "supervisor/daemon.h"
#include "supervisor/keys.h"
#include "supervisor/scratch_folder.h"
#include "supervisor/supervisor.h"
#include "tool/command.h"
#include "tool/up_hosts.h"
#include "wire/address.h"
#include "wire/message.h"

#define CHILD_READY_FD     3
#define HOST_BYTES_DEFAULT UINT64_MAX /* not given */
/* Longer than the supervisor waits for its processes. */
#define DOWN_MS     10000
#define QUOTED_SIZE 4096
/* Lines of the supervisor before it is ready: progress. */
#define PROGRESS_MARK "> "
#define LINE_SIZE     1024

typedef struct up_arguments {
    const char *folder;
    const char *address;
    const char *keys;
    const char *hosts_file; /* NULL: workers run on this host */
    bool has_worker_count;
    bool has_progress; /* lines of progress go to options.ready_fd */
    tow_supervisor_options_t options;
    bool is_foreground;
    bool is_ended; /* interrupted while starting */
    pid_t child;   /* then: the child to stop; 0: none */
} up_arguments_t;

enum {
    OPTION_FOLDER = 256,
    OPTION_KEYS,
    OPTION_FOLLOW_FD,
    OPTION_READY_FD,
    OPTION_UNBOUND,
    OPTION_RELAY_ABOVE,
    OPTION_RELAY_GROUP,
    OPTION_HOST_FUNCTIONS,
    OPTION_HOST_MEMORY,
    OPTION_COMPILE_CACHE,
    OPTION_JOINT,
    OPTION_IDLE_TIMEOUT,
    OPTION_ENDED,
    OPTION_HOSTS,
    OPTION_PROGRESS,
};

static error_t parse_more(int key, char *argument, struct argp_state *state)
{
    up_arguments_t *a = state->input;
    switch (key) {
    case OPTION_RELAY_ABOVE:
        a->options.relay_above =
            tow_command_number(state, "relay-above", argument, 1, UINT32_MAX);
        return 0;
    case OPTION_RELAY_GROUP:
        a->options.relay_group = tow_command_number(
            state, "relay-group", argument, 1, TOW_RELAY_FANOUT_MAX);
        return 0;
    case OPTION_HOST_MEMORY:
        a->options.host_bytes =
            tow_command_number(state, "host-memory", argument, 0, INT64_MAX);
        return 0;
    case OPTION_IDLE_TIMEOUT:
        a->options.idle_timeout_s =
            tow_command_number(state, "idle-timeout", argument, 1, UINT32_MAX);
        return 0;
    case OPTION_FOLLOW_FD:
        a->options.follow_fd =
            (int)tow_command_number(state, "follow-fd", argument, 0, 1 << 20);
        return 0;
    case OPTION_READY_FD:
        a->options.ready_fd =
            (int)tow_command_number(state, "ready-fd", argument, 0, 1 << 20);
        return 0;
    case OPTION_HOSTS: a->hosts_file = argument; return 0;
    case OPTION_PROGRESS: a->has_progress = true; return 0;
    case OPTION_ENDED:
        a->is_ended = true;
        a->child =
            (pid_t)tow_command_number(state, "ended", argument, 0, INT32_MAX);
        return 0;
    default: return ARGP_ERR_UNKNOWN;
    }
}

static error_t parse(int key, char *argument, struct argp_state *state)
{
    up_arguments_t *a = state->input;
    switch (key) {
    case 'w':
        a->options.worker_count = tow_command_number(
            state, "workers", argument, 1, TOW_CLUSTER_WORKER_COUNT_MAX);
        a->has_worker_count = true;
        return 0;
    case 'n':
        a->options.device_count =
            tow_command_number(state, "devices", argument, 1, 256);
        return 0;
    case 'm':
        a->options.memory_bytes =
            tow_command_number(state, "memory", argument, 1, INT64_MAX);
        return 0;
    case 'i':
        a->options.island_count = tow_command_number(
            state, "islands", argument, 1, TOW_CLUSTER_WORKER_COUNT_MAX);
        return 0;
    case 's': a->options.model = argument; return 0;
    case 'p': a->options.plugin = argument; return 0;
    case 'a': a->address = argument; return 0;
    case 'f': a->is_foreground = true; return 0;
    case OPTION_FOLDER: a->folder = argument; return 0;
    case OPTION_KEYS: a->keys = argument; return 0;
    case OPTION_UNBOUND: a->options.is_unbound = true; return 0;
    case OPTION_HOST_FUNCTIONS: a->options.host_functions = true; return 0;
    case OPTION_JOINT: a->options.is_joint = true; return 0;
    case OPTION_COMPILE_CACHE: a->options.use_compile_cache = true; return 0;
    case ARGP_KEY_ARG:
        argp_error(state, "unexpected argument '%s'", argument);
        return EINVAL;
    case ARGP_KEY_END:
        if (a->options.follow_fd >= 0 && !a->is_foreground)
            argp_error(state, "--follow-fd needs --foreground");
        if (a->hosts_file != NULL &&
            (a->has_worker_count || a->options.is_joint ||
             a->options.island_count > 0))
            argp_error(state,
                       "--hosts excludes --workers, --islands and --joint: "
                       "write workers=N and island=NAME into the file");
        if (a->options.is_joint && a->options.worker_count > 1)
            argp_error(state, "--joint needs --workers 1");
        if (a->options.island_count > a->options.worker_count)
            argp_error(state,
                       "--islands %llu exceeds --workers %llu: every island "
                       "has a worker",
                       (unsigned long long)a->options.island_count,
                       (unsigned long long)a->options.worker_count);
        return 0;
    default: return parse_more(key, argument, state);
    }
}

/* -- On this host ------------------------------------------------------------------ */

/* Creates a new token for this cluster, if --keys is not given. */
static tow_status_t make_token(const tow_run_folder_t *folder)
{
    tow_keys_t keys;
    TOW_RETURN_IF_ERROR(tow_keys_in(folder->path, &keys));
    unlink(keys.token);
    return tow_keys_make(&keys, NULL);
}

/* Runs the cluster, with the keys in --keys or in its folder. */
static tow_status_t supervise_at(const up_arguments_t *a,
                                 tow_run_folder_t *folder, const char *address,
                                 tow_supervisor_options_t *options)
{
    char keys[PATH_MAX];
    if (a->keys != NULL && realpath(a->keys, keys) == NULL)
        return TOW_ERRNO(errno, "finding --keys %s", a->keys);
    options->folder = folder;
    options->worker_main = tow_command_worker;
    options->keys = a->keys != NULL ? keys : folder->path;
    options->address = address;
    setenv("TOW_LOG", "info", 0); /* The processes log to files. */
    return tow_supervisor_run(options);
}

static tow_status_t supervise(const up_arguments_t *a, tow_run_folder_t *folder)
{
    char address[TOW_RUN_PATH_SIZE];
    tow_supervisor_options_t options = a->options;
    snprintf(address, sizeof(address), "unix:%s/cluster.sock", folder->path);
    if (a->keys == NULL) TOW_RETURN_IF_ERROR(make_token(folder));
    return supervise_at(a, folder, a->address != NULL ? a->address : address,
                        &options);
}

/* -- On other hosts --------------------------------------------------------------- */

static void on_progress(void *context, const char *line)
{
    const up_arguments_t *a = context;
    if (a->has_progress)
        dprintf(a->options.ready_fd, PROGRESS_MARK "%s\n", line);
    else
        fprintf(stderr, "tow up: %s\n", line);
}

static tow_status_t supervise_hosts(const up_arguments_t *a,
                                    tow_run_folder_t *folder)
{
    char address[TOW_ADDRESS_TEXT_MAX + 32];
    tow_hosts_t hosts;
    const tow_up_hosts_options_t prepare = {.file = a->hosts_file,
                                            .address = a->address,
                                            .folder = folder->path,
                                            .has_keys = a->keys != NULL,
                                            .report = on_progress,
                                            .context = (void *)a};
    TOW_RETURN_IF_ERROR(
        tow_up_hosts_open(&prepare, &hosts, address, sizeof(address)));
    tow_supervisor_options_t options = a->options;
    options.hosts = &hosts;
    options.worker_count = hosts.worker_count;
    options.progress = on_progress;
    options.context = (void *)a;
    tow_status_t status = supervise_at(a, folder, address, &options);
    tow_up_hosts_close(&prepare, &hosts);
    return status;
}

/* -- In the foreground ---------------------------------------------------------- */

/* A signal arrived while XLA was loading, and replaced the supervisor by this
 * process. */
static tow_status_t end_early(const up_arguments_t *a)
{
    sigset_t none;
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    fputs("tow up: stopped by a signal before the cluster was ready\n", stderr);
    tow_supervisor_end_child(a->child);
    return TOW_OK;
}

static tow_status_t run_foreground(const up_arguments_t *a)
{
    tow_run_folder_t folder;
    TOW_RETURN_IF_ERROR(tow_run_folder_name(&folder, a->folder));
    TOW_RETURN_IF_ERROR(tow_run_folder_take(&folder));
    tow_status_t status = a->is_ended             ? end_early(a)
                          : a->hosts_file != NULL ? supervise_hosts(a, &folder)
                                                  : supervise(a, &folder);
    tow_run_folder_leave(&folder);
    /* The client may be dead, and nobody else uses the folder. */
    if (a->options.follow_fd >= 0 && status == TOW_OK)
        tow_scratch_folder_remove(folder.path);
    return status;
}

/* -- In the background ---------------------------------------------------------- */

/* A signal during the start is meant for the supervisor. */
static volatile sig_atomic_t started;

static void forward(int number)
{
    (void)number;
    if (started > 0) kill(started, SIGTERM);
}

static void set_forwarding(void (*handler)(int), int how)
{
    static const int ends[] = {SIGTERM, SIGINT, SIGHUP};
    sigset_t set;
    sigemptyset(&set);
    for (size_t i = 0; i < TOW_COUNT_OF(ends); i++) {
        sigaddset(&set, ends[i]);
        signal(ends[i], handler);
    }
    sigprocmask(how, &set, NULL);
}

TOW_NORETURN static void become_supervisor(int argc, char **argv,
                                           const char *log, int ready_fd)
{
    char **words = calloc((size_t)argc + 7, sizeof(*words));
    if (words == NULL) _exit(127);
    size_t count = 0;
    words[count++] = "tow";
    words[count++] = "up";
    for (int i = 1; i < argc; i++)
        words[count++] = argv[i];
    words[count++] = "--foreground";
    words[count++] = "--progress";
    words[count++] = "--ready-fd";
    words[count] = "3";
    setsid();
    set_forwarding(SIG_DFL, SIG_UNBLOCK);
    const int log_fd = open(log, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    const int null_fd = open("/dev/null", O_RDONLY);
    dup2(null_fd, STDIN_FILENO);
    dup2(log_fd, STDOUT_FILENO);
    dup2(log_fd, STDERR_FILENO);
    dup2(ready_fd, CHILD_READY_FD);
    close_range(CHILD_READY_FD + 1, ~0u, 0);
    execv("/proc/self/exe", words);
    _exit(127);
}

/* Reads the supervisor's line; "" if it exited instead. */
static void read_line(int fd, char *line, size_t capacity)
{
    size_t count = 0;
    while (count + 1 < capacity) {
        const ssize_t got = read(fd, line + count, 1);
        if (got < 0 && errno == EINTR) continue;
        if (got <= 0 || line[count] == '\n') break;
        count++;
    }
    line[count] = '\0';
}

/* Reads the address; "" if the supervisor exited instead. */
static void read_address(int fd, char line[LINE_SIZE])
{
    const size_t mark_size = strlen(PROGRESS_MARK);
    for (;;) {
        read_line(fd, line, LINE_SIZE);
        if (strncmp(line, PROGRESS_MARK, mark_size) != 0) return;
        fprintf(stderr, "%s\n", line + mark_size);
    }
}

static tow_status_t quote_failure(const char *log)
{
    char text[QUOTED_SIZE] = "";
    const int fd = open(log, O_RDONLY | O_CLOEXEC);
    ssize_t count = fd >= 0 ? read(fd, text, sizeof(text) - 1) : 0;
    if (fd >= 0) close(fd);
    while (count > 0 && text[count - 1] == '\n')
        count--;
    text[count > 0 ? count : 0] = '\0';
    /* The caller adds the prefix again. */
    const char *prefix = "tow up: ";
    const bool has_prefix = strncmp(text, prefix, strlen(prefix)) == 0;
    return TOW_ERROR(TOW_UNAVAILABLE, "%s",
                     count > 0 ? text + (has_prefix ? strlen(prefix) : 0)
                               : "the supervisor exited without a message");
}

static void print_up(const up_arguments_t *a, pid_t pid, const char *address,
                     const char *folder)
{
    char workers[PATH_MAX + 32];
    if (a->hosts_file != NULL)
        snprintf(workers, sizeof(workers), "the workers of %s", a->hosts_file);
    else if (a->options.plugin != NULL)
        snprintf(workers, sizeof(workers),
                 "%llu worker(s) with the devices of the plugin",
                 (unsigned long long)a->options.worker_count);
    else
        snprintf(workers, sizeof(workers),
                 "%llu worker(s) with %llu device(s) each",
                 (unsigned long long)a->options.worker_count,
                 (unsigned long long)a->options.device_count);
    printf("up: %s, process %d\naddress  %s\nlogs     %s\n", workers, (int)pid,
           address, folder);
}

static tow_status_t run_background(const up_arguments_t *a, int argc,
                                   char **argv)
{
    tow_run_folder_t folder;
    char log[TOW_RUN_PATH_SIZE];
    char address[LINE_SIZE];
    TOW_RETURN_IF_ERROR(tow_run_folder_name(&folder, a->folder));
    TOW_RETURN_IF_ERROR(tow_run_folder_take(&folder));
    close(
        folder
            .lock_fd); /* Only the child holds the lock; the folder exists for its log now. */
    tow_run_folder_file(&folder, "up.log", log);
    int fds[2];
    if (pipe2(fds, O_CLOEXEC) != 0) return TOW_ERRNO(errno, "making a pipe");
    set_forwarding(forward, SIG_BLOCK);
    const pid_t pid = fork();
    if (pid == 0) become_supervisor(argc, argv, log, fds[1]);
    if (pid < 0) return TOW_ERRNO(errno, "starting a process");
    started = pid;
    set_forwarding(forward, SIG_UNBLOCK);
    close(fds[1]);
    read_address(fds[0], address);
    close(fds[0]);
    if (address[0] == '\0') {
        waitpid(pid, NULL, 0);
        return quote_failure(log);
    }
    print_up(a, pid, address, folder.path);
    return TOW_OK;
}

int tow_command_up(int argc, char **argv)
{
    static const struct argp_option table[] = {
        {"workers", 'w', "N", 0, "Worker processes (1)", 0},
        {"devices", 'n', "N", 0,
         "Devices per worker (8); a plugin determines their number itself", 0},
        {"hosts", OPTION_HOSTS, "FILE", 0,
         "Start the workers over ssh, on the hosts in FILE, one per line: HOST "
         "[devices=N] [workers=N] [island=NAME] [ssh=USER@ADDRESS] [port=N] "
         "[tow=PATH]",
         0},
        {"islands", 'i', "N", 0,
         "Split the workers evenly into islands island-0, island-1, ... (default: one, main)",
         0},
        {"memory", 'm', "BYTES", 0, "Memory limit of each device (none)", 0},
        {"host-memory", OPTION_HOST_MEMORY, "BYTES", 0,
         "Host memory of each worker for objects spilled from devices; 0: none (default: all workers share a quarter of the host's)",
         0},
        {"joint", OPTION_JOINT, NULL, 0,
         "Run the controller in the process of the only worker: faster, but the death of that process ends all sessions",
         0},
        {"unbound", OPTION_UNBOUND, NULL, 0,
         "Let every worker use all cores instead of a share", 0},
        {"host-functions", OPTION_HOST_FUNCTIONS, NULL, 0,
         "Let workers run clients' host functions: native code, as this user",
         0},
        {"compile-cache", OPTION_COMPILE_CACHE, NULL, 0,
         "Cache compiled programs in the user's cache folder (TOW_COMPILE_CACHE: another folder, or off)",
         0},
        {"simulated", 's', "MODEL", 0,
         "Simulated devices: tpu_v3, tpu_v4, ... (default: XLA on the CPU)", 0},
        {"plugin", 'p', "PATH", 0, "PJRT plugin", 0},
        {"address", 'a', "ADDRESS", 0,
         "Address of the controller (default: a socket in the cluster's folder; "
         "with --hosts, this host's address as they see it, and a free port)",
         0},
        {"keys", OPTION_KEYS, "FOLDER", 0,
         "Folder with token and certificate (default: new ones)", 0},
        {"relay-above", OPTION_RELAY_ABOVE, "N", 0,
         "Send grants of runs on more than N workers through relays (128)", 0},
        {"relay-group", OPTION_RELAY_GROUP, "N", 0,
         "Workers per relay, itself included (16); 1: no relays", 0},
        {"folder", OPTION_FOLDER, "FOLDER", 0,
         "Folder for state, token and logs (default: XDG_RUNTIME_DIR/towpath, or "
         "/tmp/towpath-UID)",
         0},
        {"idle-timeout", OPTION_IDLE_TIMEOUT, "SECONDS", 0,
         "Stop the cluster when it has had no client for this long (never)", 0},
        {"foreground", 'f', NULL, 0,
         "Run in the foreground until SIGTERM or SIGINT", 0},
        {"ready-fd", OPTION_READY_FD, "N", 0,
         "When ready, write the address to this file descriptor", 0},
        {"follow-fd", OPTION_FOLLOW_FD, "N", 0,
         "Stop at the end of file of this descriptor, and remove the folder",
         0},
        {"ended", OPTION_ENDED, "PROCESS", OPTION_HIDDEN, NULL, 0},
        {"progress", OPTION_PROGRESS, NULL, OPTION_HIDDEN, NULL, 0},
        {0},
    };
    static const struct argp argp = {
        .options = table,
        .parser = parse,
        .doc =
            "Starts a cluster: a controller on this host, and workers here or, with --hosts, on other hosts. A process that dies is restarted. `tow status` shows the cluster, `tow down` stops it.",
    };
    up_arguments_t arguments = {.options = {.worker_count = 1,
                                            .device_count = 8,
                                            .host_bytes = HOST_BYTES_DEFAULT,
                                            .follow_fd = -1,
                                            .ready_fd = -1}};
    int usage = tow_command_parse(&argp, argc, argv, &arguments);
    if (usage != 0) return usage;
    if (arguments.options.host_bytes == HOST_BYTES_DEFAULT)
        arguments.options.host_bytes = tow_daemon_host_memory_share(
            TOW_CLUSTER_HOST_SHARE * arguments.options.worker_count);
    return tow_command_finish(
        "up", arguments.is_foreground ? run_foreground(&arguments)
                                      : run_background(&arguments, argc, argv));
}

/* -- Down ------------------------------------------------------------------------ */

static error_t parse_down(int key, char *argument, struct argp_state *state)
{
    const char **folder = state->input;
    switch (key) {
    case OPTION_FOLDER: *folder = argument; return 0;
    case ARGP_KEY_ARG:
        argp_error(state, "unexpected argument '%s'", argument);
        return EINVAL;
    default: return ARGP_ERR_UNKNOWN;
    }
}

/* The lock names the process, which excludes a reused process id. */
static tow_status_t end_holder(const tow_run_folder_t *folder, pid_t pid)
{
    const int fd = pidfd_open(pid, 0);
    if (fd < 0 || tow_run_folder_holder(folder) != pid) {
        if (fd >= 0) close(fd);
        printf("down: process %d has just exited\n", (int)pid);
        return TOW_OK;
    }
    tow_status_t status = TOW_OK;
    struct pollfd ended = {.fd = fd, .events = POLLIN};
    if (pidfd_send_signal(fd, SIGTERM, NULL, 0) != 0) {
        status = TOW_ERRNO(errno, "sending SIGTERM to process %d", (int)pid);
    } else if (poll(&ended, 1, DOWN_MS) == 1) {
        printf("down: process %d and its children have exited\n", (int)pid);
    } else {
        pidfd_send_signal(fd, SIGKILL, NULL, 0);
        poll(&ended, 1, DOWN_MS);
        printf(
            "down: process %d did not exit within %d s and was killed with its children\n",
            (int)pid, DOWN_MS / 1000);
    }
    close(fd);
    return status;
}

static tow_status_t go_down(const char *path)
{
    tow_run_folder_t folder;
    TOW_RETURN_IF_ERROR(tow_run_folder_name(&folder, path));
    const pid_t pid = tow_run_folder_holder(&folder);
    if (pid == 0)
        return TOW_ERROR(TOW_NOT_FOUND, "no cluster is up in %s", folder.path);
    return end_holder(&folder, pid);
}

int tow_command_down(int argc, char **argv)
{
    static const struct argp_option table[] = {
        {"folder", OPTION_FOLDER, "FOLDER", 0, "Folder of `tow up`", 0},
        {0},
    };
    static const struct argp argp = {
        .options = table,
        .parser = parse_down,
        .doc =
            "Stops the cluster that `tow up` started and waits until it has exited.",
    };
    const char *folder = NULL;
    int usage = tow_command_parse(&argp, argc, argv, &folder);
    if (usage != 0) return usage;
    return tow_command_finish("down", go_down(folder));
}
