/* A local cluster is a child process, `tow up`, that starts and supervises the
 * others. It holds the read end of a pipe whose write end only this process
 * has: however this process ends, the child reads end-of-file and ends the
 * cluster. Nothing here uses an env: it runs before there is a client, or
 * after. */
#include "client/local_cluster.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <limits.h>
#include <poll.h>    /* tow-allow: a process, not a machine */
#include <pthread.h> /* tow-allow: a process, not a machine */
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/pidfd.h>
#include <sys/random.h> /* tow-allow: before there is an env */
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h> /* tow-allow: a process, not a machine */
#include <unistd.h>

#include "base/alloc.h"
#include "client/tuning.h"
#include "env/tuning.h"

#define PATH_SIZE (PATH_MAX + 64)
/* Bytes of the child's log to quote in an error. */
#define QUOTED_SIZE 1024
/* Descriptors of the child, beside the three usual ones. */
#define CHILD_FOLLOW_FD 3
#define CHILD_READY_FD  4

extern char **environ;

struct tow_local_cluster {
    char folder[64]; /* "": none */
    char address[TOW_ADDRESS_TEXT_MAX + 32];
    char token_file[128];
    int process_fd; /* -1: none */
    int control_fd; /* our end of the pipe; -1: none */
    bool is_joint;
};

/* -- Size of the cluster --------------------------------------------------- */

typedef struct local_size {
    unsigned long worker_count;
    unsigned long device_count; /* of each */
    unsigned long island_count; /* 0: one */
    bool is_apart;              /* the controller always has its own process */
} local_size_t;

static bool read_word(const char **text, const char *word)
{
    const size_t length = strlen(word);
    const char end = strncmp(*text, word, length) == 0 ? (*text)[length] : '?';
    if (end != ',' && end != '\0') return false;
    *text += end == ',' ? length + 1 : length;
    return true;
}

static bool read_count(const char **text, const char *word,
                       unsigned long *out_count)
{
    const size_t length = strlen(word);
    if (strncmp(*text, word, length) != 0) return false;
    char *end = NULL;
    const unsigned long count = strtoul(*text + length, &end, 10);
    if (end == *text + length || count == 0 || count > TOW_LOCAL_COUNT_MAX)
        return false;
    *out_count = count;
    *text = *end == ',' ? end + 1 : end;
    return *end == ',' || *end == '\0';
}

/* "workers=2,devices=4,islands=2,apart", each alone too, in any order. */
static tow_status_t parse_size(const char *text, local_size_t *size)
{
    const char *rest = text;
    while (*rest != '\0')
        if (read_word(&rest, "apart"))
            size->is_apart = true;
        else if (!read_count(&rest, "workers=", &size->worker_count) &&
                 !read_count(&rest, "devices=", &size->device_count) &&
                 !read_count(&rest, "islands=", &size->island_count))
            return TOW_ERROR(TOW_INVALID_ARGUMENT,
                             "TOW_LOCAL is '%s'; the format is "
                             "workers=2,devices=4, with numbers from 1 to %u, "
                             "islands=2 if there are to be several, and apart "
                             "if the controller is to outlive its only worker",
                             text, TOW_LOCAL_COUNT_MAX);
    return TOW_OK;
}

static tow_status_t find_size(const tow_client_options_t *options,
                              local_size_t *out_size)
{
    *out_size = (local_size_t){.worker_count = TOW_LOCAL_WORKER_COUNT,
                               .device_count = TOW_LOCAL_DEVICE_COUNT};
    const char *text = getenv("TOW_LOCAL");
    if (text != NULL) TOW_RETURN_IF_ERROR(parse_size(text, out_size));
    if (options->worker_count > 0)
        out_size->worker_count = options->worker_count;
    if (options->devices_per_worker > 0)
        out_size->device_count = options->devices_per_worker;
    return TOW_OK;
}

/* A single worker shares a process with the controller: one message fewer each
 * way, and a core for them and one for the client. */
static bool is_joint(const local_size_t *size)
{
    return size->worker_count == 1 && !size->is_apart;
}

/* -- Finding `tow` --------------------------------------------------------- */

static bool try_beside(char path[PATH_SIZE], const char *file)
{
    /* In a build folder, beside this library or a program that links it; and
     * where both are installed. */
    static const char *const tails[] = {"tow", "../tow", "../../tow",
                                        "../bin/tow", "../../bin/tow"};
    const char *slash = strrchr(file, '/');
    if (slash == NULL) return false;
    for (size_t i = 0; i < TOW_COUNT_OF(tails); i++) {
        struct stat info;
        const int length = snprintf(path, PATH_SIZE, "%.*s/%s",
                                    (int)(slash - file), file, tails[i]);
        if (length > 0 && length < PATH_SIZE && stat(path, &info) == 0 &&
            S_ISREG(info.st_mode) && access(path, X_OK) == 0)
            return true;
    }
    return false;
}

/* "Falls back to "tow" in PATH. */
static void find_command(char path[PATH_SIZE])
{
    const char *given = getenv("TOW_COMMAND");
    if (given != NULL && given[0] != '\0') {
        snprintf(path, PATH_SIZE, "%s", given);
        return;
    }
    char self[PATH_MAX];
    const ssize_t length = readlink("/proc/self/exe", self, sizeof(self) - 1);
    self[length > 0 ? length : 0] = '\0';
    Dl_info info = {0};
    if (dladdr((void *)tow_local_cluster_start, &info) != 0 &&
        info.dli_fname != NULL && try_beside(path, info.dli_fname))
        return;
    if (!try_beside(path, self)) snprintf(path, PATH_SIZE, "tow");
}

/* -- The child process ----------------------------------------------------- */

typedef struct child_pipes {
    int leash[2];
    int ready[2];
} child_pipes_t;

static void close_fd(int *fd)
{
    if (*fd >= 0) close(*fd);
    *fd = -1;
}

static void close_pipes(child_pipes_t *pipes)
{
    close_fd(&pipes->leash[0]);
    close_fd(&pipes->leash[1]);
    close_fd(&pipes->ready[0]);
    close_fd(&pipes->ready[1]);
}

/* Above the numbers that the child's ends get, so that none overwrites
 * another. */
static tow_status_t move_up(int *fd)
{
    const int moved = fcntl(*fd, F_DUPFD_CLOEXEC, CHILD_READY_FD + 1);
    if (moved < 0) return TOW_ERRNO(errno, "fcntl");
    close(*fd);
    *fd = moved;
    return TOW_OK;
}

static tow_status_t open_pipes(child_pipes_t *pipes)
{
    if (pipe2(pipes->leash, O_CLOEXEC) != 0 ||
        pipe2(pipes->ready, O_CLOEXEC) != 0)
        return TOW_ERRNO(errno, "making a pipe");
    TOW_RETURN_IF_ERROR(move_up(&pipes->leash[0]));
    return move_up(&pipes->ready[1]);
}

static int add_files(posix_spawn_file_actions_t *files,
                     const tow_local_cluster_t *cluster,
                     const child_pipes_t *pipes)
{
    char log[128];
    snprintf(log, sizeof(log), "%s/up.log", cluster->folder);
    int error = posix_spawn_file_actions_addopen(files, STDIN_FILENO,
                                                 "/dev/null", O_RDONLY, 0);
    if (error == 0)
        error = posix_spawn_file_actions_addopen(
            files, STDERR_FILENO, log, O_WRONLY | O_CREAT | O_APPEND, 0600);
    if (error == 0)
        error = posix_spawn_file_actions_adddup2(files, STDERR_FILENO,
                                                 STDOUT_FILENO);
    if (error == 0)
        error = posix_spawn_file_actions_adddup2(files, pipes->leash[0],
                                                 CHILD_FOLLOW_FD);
    if (error == 0)
        error = posix_spawn_file_actions_adddup2(files, pipes->ready[1],
                                                 CHILD_READY_FD);
    return error;
}

/* A session of its own, so that signals of our terminal do not reach it; and
 * default signal handling, whatever this process ignores. */
static int add_attributes(posix_spawnattr_t *attributes)
{
    sigset_t none, all;
    sigemptyset(&none);
    sigfillset(&all);
    posix_spawnattr_setsigmask(attributes, &none);
    posix_spawnattr_setsigdefault(attributes, &all);
    return posix_spawnattr_setflags(attributes, POSIX_SPAWN_SETSID |
                                                    POSIX_SPAWN_SETSIGMASK |
                                                    POSIX_SPAWN_SETSIGDEF);
}

static int spawn(char *const argv[], const tow_local_cluster_t *cluster,
                 const child_pipes_t *pipes, pid_t *out_pid)
{
    posix_spawn_file_actions_t files;
    posix_spawnattr_t attributes;
    int error = posix_spawn_file_actions_init(&files);
    if (error != 0) return error;
    error = posix_spawnattr_init(&attributes);
    if (error == 0) {
        error = add_files(&files, cluster, pipes);
        if (error == 0) error = add_attributes(&attributes);
        if (error == 0)
            error = posix_spawnp(out_pid, argv[0], &files, &attributes, argv,
                                 environ);
        posix_spawnattr_destroy(&attributes);
    }
    posix_spawn_file_actions_destroy(&files);
    return error;
}

static tow_status_t start_child(tow_local_cluster_t *cluster,
                                const tow_client_options_t *options,
                                const local_size_t *size,
                                const child_pipes_t *pipes)
{
    char command[PATH_SIZE], workers[24], devices[24], islands[24];
    char follow[8], ready[8];
    find_command(command);
    snprintf(workers, sizeof(workers), "%lu", size->worker_count);
    snprintf(devices, sizeof(devices), "%lu", size->device_count);
    snprintf(islands, sizeof(islands), "%lu", size->island_count);
    snprintf(follow, sizeof(follow), "%d", CHILD_FOLLOW_FD);
    snprintf(ready, sizeof(ready), "%d", CHILD_READY_FD);
    char *argv[24] = {command,
                      "up",
                      "--foreground",
                      "--folder",
                      cluster->folder,
                      "--follow-fd",
                      follow,
                      "--ready-fd",
                      ready,
                      "--workers",
                      workers,
                      "--devices",
                      devices,
                      "--host-functions", /* ours, as our user */
                      "--compile-cache"};
    size_t count = 15;
    if (options->simulated != NULL) {
        argv[count++] = "--simulated";
        argv[count++] = (char *)options->simulated;
    }
    if (is_joint(size)) argv[count++] = "--joint";
    if (size->island_count > 0) {
        argv[count++] = "--islands";
        argv[count++] = islands;
    }
    pid_t pid = 0;
    const int error = spawn(argv, cluster, pipes, &pid);
    if (error != 0)
        return TOW_ERRNO(error,
                         "starting %s (TOW_COMMAND names another, TOW_ADDRESS "
                         "a cluster that is there)",
                         command);
    /* Before the child can have been reaped, so the pid is still its own. */
    cluster->process_fd = pidfd_open(pid, 0);
    if (cluster->process_fd < 0)
        return TOW_ERRNO(errno, "holding on to process %d", (int)pid);
    return TOW_OK;
}

/* -- Waiting until it is ready --------------------------------------------- */

static int64_t now_ns(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time); /* tow-allow: as above */
    return (int64_t)time.tv_sec * TOW_NS_PER_S + time.tv_nsec;
}

void tow_local_cluster_quote_log(const char *path, char *text, size_t capacity)
{
    const off_t quoted = (off_t)capacity - 1;
    snprintf(text, capacity, "it said nothing");
    const int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return;
    const off_t size = lseek(fd, 0, SEEK_END);
    const off_t start = size > quoted ? size - quoted : 0;
    ssize_t count = pread(fd, text, (size_t)quoted, start);
    close(fd);
    while (count > 0 && text[count - 1] == '\n')
        count--;
    if (count > 0)
        text[count] = '\0';
    else
        snprintf(text, capacity, "it said nothing");
}

static void quote_log(const tow_local_cluster_t *cluster,
                      char text[QUOTED_SIZE])
{
    char path[128];
    snprintf(path, sizeof(path), "%s/up.log", cluster->folder);
    tow_local_cluster_quote_log(path, text, QUOTED_SIZE);
}

/* Its first line is the cluster's address. */
static tow_status_t read_address(tow_local_cluster_t *cluster, int fd,
                                 int64_t timeout_ns)
{
    const int64_t deadline_ns = now_ns() + timeout_ns;
    size_t count = 0;
    char quoted[QUOTED_SIZE];
    while (count + 1 < sizeof(cluster->address)) {
        const int64_t left_ms = (deadline_ns - now_ns()) / TOW_NS_PER_MS;
        struct pollfd waited = {.fd = fd, .events = POLLIN};
        if (left_ms <= 0 ||
            poll(&waited, 1, left_ms < INT_MAX ? (int)left_ms : INT_MAX) == 0) {
            quote_log(cluster, quoted);
            return TOW_ERROR(TOW_DEADLINE_EXCEEDED,
                             "the local cluster is not ready after %lld s: %s",
                             (long long)(timeout_ns / TOW_NS_PER_S), quoted);
        }
        char *next = cluster->address + count;
        const ssize_t got = read(fd, next, 1);
        if (got < 0 && errno == EINTR) continue;
        if (got <= 0) break;
        if (*next == '\n') {
            *next = '\0';
            return TOW_OK;
        }
        count++;
    }
    quote_log(cluster, quoted);
    return TOW_ERROR(TOW_UNAVAILABLE, "the local cluster did not start: %s",
                     quoted);
}

static tow_status_t start(tow_local_cluster_t *cluster,
                          const tow_client_options_t *options)
{
    local_size_t size;
    TOW_RETURN_IF_ERROR(find_size(options, &size));
    cluster->is_joint = is_joint(&size);
    /* Not TMPDIR: the path of a socket has a hundred characters. */
    const char *parent = getenv("XDG_RUNTIME_DIR");
    if (parent == NULL || access(parent, W_OK | X_OK) != 0 ||
        strlen(parent) > TOW_LOCAL_FOLDER_MAX)
        parent = "/tmp";
    snprintf(cluster->folder, sizeof(cluster->folder), "%s/towpath-XXXXXX",
             parent);
    if (mkdtemp(cluster->folder) == NULL) {
        cluster->folder[0] = '\0';
        return TOW_ERRNO(errno, "making a folder in %s", parent);
    }
    snprintf(cluster->token_file, sizeof(cluster->token_file), "%s/token",
             cluster->folder);
    child_pipes_t pipes = {.leash = {-1, -1}, .ready = {-1, -1}};
    tow_status_t status = open_pipes(&pipes);
    if (status == TOW_OK) status = start_child(cluster, options, &size, &pipes);
    cluster->control_fd = pipes.leash[1];
    pipes.leash[1] = -1;
    close_fd(&pipes.ready[1]); /* So that the child's exit closes the pipe. */
    if (status == TOW_OK)
        status = read_address(cluster, pipes.ready[0],
                              options->timeout_ns > 0 ? options->timeout_ns
                                                      : TOW_LOCAL_START_NS);
    close_pipes(&pipes);
    return status;
}

tow_status_t tow_local_cluster_start(const tow_client_options_t *options,
                                     tow_local_cluster_t **out_cluster)
{
    *out_cluster = NULL;
    tow_local_cluster_t *cluster = tow_calloc(1, sizeof(*cluster));
    if (cluster == NULL) return tow_status_bare(TOW_RESOURCE_EXHAUSTED);
    cluster->process_fd = cluster->control_fd = -1;
    tow_status_t status = start(cluster, options);
    if (status != TOW_OK) {
        tow_local_cluster_stop(cluster);
        return status;
    }
    *out_cluster = cluster;
    return TOW_OK;
}

const char *tow_local_cluster_address(const tow_local_cluster_t *cluster)
{
    return cluster->address;
}

const char *tow_local_cluster_token_file(const tow_local_cluster_t *cluster)
{
    return cluster->token_file;
}

bool tow_local_cluster_is_joint(const tow_local_cluster_t *cluster)
{
    return cluster->is_joint;
}

tow_status_t tow_local_cluster_check(void *context)
{
    const tow_local_cluster_t *cluster = context;
    struct pollfd ended = {.fd = cluster->process_fd, .events = POLLIN};
    if (poll(&ended, 1, 0) <= 0) return TOW_OK;
    char quoted[QUOTED_SIZE];
    quote_log(cluster, quoted);
    return TOW_ERROR(TOW_UNAVAILABLE,
                     "the cluster is gone: the local cluster has ended for "
                     "good; start the program again. It said: %s",
                     quoted);
}

/* -- Stopping -------------------------------------------------------------- */

static int remove_entry(const char *path, const struct stat *info, int kind,
                        struct FTW *walk)
{
    (void)info, (void)kind, (void)walk;
    remove(path);
    return 0;
}

/* It ends its children within TOW_LOCAL_STOP_NS; they end with it in any case.
 * Another part of the process may have reaped it: that is fine. */
static void await_child(int process_fd)
{
    struct pollfd waited = {.fd = process_fd, .events = POLLIN};
    const int64_t deadline_ns = now_ns() + TOW_LOCAL_STOP_NS;
    int got;
    do {
        const int64_t left_ms = (deadline_ns - now_ns()) / TOW_NS_PER_MS;
        got = poll(&waited, 1, left_ms > 0 ? (int)left_ms : 0);
    } while (got < 0 && errno == EINTR);
    if (got == 0) pidfd_send_signal(process_fd, SIGKILL, NULL, 0);
    siginfo_t info;
    while (waitid(P_PIDFD, (id_t)process_fd, &info, WEXITED) != 0 &&
           errno == EINTR) {
    }
}

void tow_local_cluster_stop(tow_local_cluster_t *cluster)
{
    if (cluster == NULL) return;
    close_fd(&cluster->control_fd);
    if (cluster->process_fd >= 0) await_child(cluster->process_fd);
    close_fd(&cluster->process_fd);
    if (cluster->folder[0] != '\0')
        nftw(cluster->folder, remove_entry, 8, FTW_DEPTH | FTW_PHYS);
    tow_free(cluster);
}

/* -- Folders, security, threads -------------------------------------------- */

void tow_local_cluster_run_folder(char *path, size_t capacity)
{
    const char *runtime = getenv("XDG_RUNTIME_DIR");
    if (runtime != NULL && runtime[0] == '/')
        snprintf(path, capacity, "%s/towpath", runtime);
    else
        snprintf(path, capacity, "/tmp/towpath-%u", (unsigned)geteuid());
}

static bool is_file(const char *path)
{
    return access(path, F_OK) == 0;
}

static bool find_beside_socket(const char *address, char path[PATH_SIZE])
{
    const char *slash = strrchr(address, '/');
    if (strncmp(address, "unix:/", 6) != 0 || slash == NULL) return false;
    snprintf(path, PATH_SIZE, "%.*s/token", (int)(slash - (address + 5)),
             address + 5);
    return is_file(path);
}

static bool find_in_config(char path[PATH_SIZE])
{
    const char *config = getenv("XDG_CONFIG_HOME"), *home = getenv("HOME");
    if (config != NULL && config[0] == '/')
        snprintf(path, PATH_SIZE, "%s/towpath/token", config);
    else if (home != NULL)
        snprintf(path, PATH_SIZE, "%s/.config/towpath/token", home);
    else
        return false;
    return is_file(path);
}

static bool find_token(const char *address, char path[PATH_SIZE])
{
    const char *given = getenv("TOW_TOKEN_FILE");
    if (given != NULL && given[0] != '\0') {
        snprintf(path, PATH_SIZE, "%s", given);
        return true;
    }
    if (find_beside_socket(address, path) || find_in_config(path)) return true;
    char folder[PATH_MAX];
    tow_local_cluster_run_folder(folder, sizeof(folder));
    snprintf(path, PATH_SIZE, "%s/token", folder);
    return is_file(path);
}

/* The path of a file beside the token, or NULL if there is none. */
static const char *beside(const char *token_file, const char *name,
                          char path[PATH_SIZE])
{
    const char *slash = strrchr(token_file, '/');
    const int length = slash != NULL ? (int)(slash - token_file) : 1;
    snprintf(path, PATH_SIZE, "%.*s/%s", length,
             slash != NULL ? token_file : ".", name);
    return is_file(path) ? path : NULL;
}

static tow_status_t load_tls(const char *token_file, tow_credentials_use_t use,
                             tow_security_t *security)
{
    char certificate[PATH_SIZE], key[PATH_SIZE];
    tow_tls_options_t options = {
        .authority_path = beside(token_file, "cert.pem", certificate)};
    if (use == TOW_CREDENTIALS_TO_LISTEN) {
        options.makes_certificate = true;
        options.key_path = options.authority_path != NULL
                               ? beside(token_file, "key.pem", key)
                               : NULL;
        if (options.key_path != NULL) options.certificate_path = certificate;
    }
    return tow_tls_context_create(&options, &security->tls);
}

tow_status_t tow_local_cluster_security(const char *token_file,
                                        const char *address,
                                        tow_credentials_use_t use,
                                        tow_security_t *out_security)
{
    *out_security = (tow_security_t){0};
    char found[PATH_SIZE];
    if (token_file == NULL) {
        if (!find_token(address, found))
            return TOW_OK; /* Dialling reports that. */
        token_file = found;
    }
    TOW_RETURN_IF_ERROR(tow_token_load(token_file, &out_security->token));
    out_security->has_token = true;
    if (strncmp(address, "tls:", 4) != 0) return TOW_OK;
    return load_tls(token_file, use, out_security);
}

uint64_t tow_local_cluster_random(void)
{
    uint64_t number = (uint64_t)getpid() << 32 ^ (uint64_t)now_ns();
    uint64_t noise;
    const ssize_t got =
        getrandom(&noise, sizeof(noise), 0); /* tow-allow: no env yet */
    if (got == sizeof(noise)) number ^= noise;
    return number;
}

void tow_local_cluster_detach_thread(void *(*run)(void *context), void *context)
{
    pthread_t thread;
    if (pthread_create(&thread, NULL, run, context) == 0) /* tow-allow: ditto */
        pthread_detach(thread);
    else
        run(context);
}
