#include "supervisor/daemon.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "client/local_cluster.h"
#include "supervisor/keys.h"

/* Events that each process keeps for `tow trace`: 640 KB, about 2 MB as text,
 * which the controller reads in 20 ms. */
#define TRACE_EVENT_COUNT (16u << 10)

/* Used by the signal handler only. */
static tow_net_t *stopping_net;
static volatile sig_atomic_t is_signalled;

static void on_signal(int number)
{
    (void)number;
    is_signalled = 1;
    tow_net_stop(stopping_net);
}

static void install_handlers(tow_net_t *net)
{
    stopping_net = net;
    struct sigaction action = {.sa_handler = on_signal};
    sigemptyset(&action.sa_mask);
    sigaction(SIGTERM, &action, NULL);
    sigaction(SIGINT, &action, NULL);
    sigaction(SIGHUP, &action, NULL);
    signal(SIGPIPE, SIG_IGN);
}

static tow_status_t load_keys(tow_daemon_t *daemon,
                              const tow_daemon_options_t *options)
{
    tow_keys_t keys;
    const char *token_file = NULL;
    if (options->keys != NULL) {
        TOW_RETURN_IF_ERROR(tow_keys_in(options->keys, &keys));
        token_file = keys.token;
    }
    return tow_local_cluster_security(token_file, options->address,
                                      TOW_CREDENTIALS_TO_LISTEN,
                                      &daemon->security);
}

tow_status_t tow_daemon_open(tow_daemon_t *daemon,
                             const tow_daemon_options_t *options)
{
    *daemon = (tow_daemon_t){0};
    TOW_RETURN_IF_ERROR(load_keys(daemon, options));
    const tow_net_options_t net = {.name = options->name,
                                   .security = &daemon->security,
                                   .log = options->log,
                                   .data_plane = options->data_plane,
                                   .data_trusted = options->data_trusted,
                                   .data_source = options->data_source,
                                   .data_streams = options->data_streams,
                                   .spin_ns = options->spin_ns};
    TOW_RETURN_IF_ERROR(tow_net_create(&net, &daemon->net));
    install_handlers(daemon->net);
    TOW_RETURN_IF_ERROR(tow_trace_ring_create("loop", TRACE_EVENT_COUNT, NULL,
                                              NULL, &daemon->ring));
    tow_trace_attach(daemon->ring);
    return TOW_OK;
}

void tow_daemon_close(tow_daemon_t *daemon)
{
    signal(SIGTERM, SIG_DFL);
    signal(SIGINT, SIG_DFL);
    signal(SIGHUP, SIG_DFL);
    if (daemon->net != NULL) tow_net_destroy(daemon->net);
    tow_trace_attach(NULL);
    if (daemon->ring != NULL) tow_trace_ring_destroy(daemon->ring);
    tow_tls_context_destroy(daemon->security.tls);
}

void tow_daemon_run(tow_daemon_t *daemon)
{
    tow_net_run(daemon->net);
}

void tow_daemon_await(tow_daemon_t *daemon, const bool *done)
{
    while (!*done)
        tow_net_turn(daemon->net, TOW_TIME_NEVER);
}

bool tow_daemon_await_until(tow_daemon_t *daemon, const bool *done,
                            int64_t deadline_ns)
{
    const tow_env_t *env = tow_net_env(daemon->net);
    while (!*done) {
        const int64_t now_ns = tow_env_now_ns(env);
        if (now_ns >= deadline_ns) return false;
        tow_net_turn(daemon->net, deadline_ns - now_ns);
    }
    return true;
}

bool tow_daemon_is_signalled(void)
{
    return is_signalled != 0;
}

/* -- Following a descriptor ------------------------------------------------- */

/* On a thread of its own: the event loop watches no foreign descriptors. */
static void *follow(void *context)
{
    const int fd = (int)(intptr_t)context;
    char bytes[256];
    ssize_t count;
    do {
        count = read(fd, bytes, sizeof(bytes));
    } while (count > 0 || (count < 0 && errno == EINTR));
    kill(getpid(), SIGTERM);
    return NULL;
}

tow_status_t tow_daemon_follow(int fd)
{
    pthread_t thread;
    sigset_t all, old;
    sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, &old); /* Signals are the loop's. */
    const int error =
        pthread_create(&thread, NULL, follow, (void *)(intptr_t)fd);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    if (error != 0) return TOW_ERRNO(error, "starting a thread");
    pthread_detach(thread);
    return TOW_OK;
}

/* -- Parts of a service ----------------------------------------------------- */

void tow_daemon_set_done(void *context)
{
    *(bool *)context = true;
}

void tow_daemon_host_name(char name[TOW_DAEMON_HOST_SIZE])
{
    name[TOW_DAEMON_HOST_SIZE - 1] = '\0';
    if (gethostname(name, TOW_DAEMON_HOST_SIZE - 1) != 0 || name[0] == '\0')
        snprintf(name, TOW_DAEMON_HOST_SIZE, "localhost");
}

uint64_t tow_daemon_host_memory_share(uint64_t share)
{
    const long pages = sysconf(_SC_PHYS_PAGES);
    const long page_bytes = sysconf(_SC_PAGESIZE);
    if (pages <= 0 || page_bytes <= 0) return 0;
    return (uint64_t)pages / share * (uint64_t)page_bytes;
}

void tow_daemon_report_ready(int fd, const char *text)
{
    dprintf(fd, "%s\n", text);
    if (fd > STDERR_FILENO) close(fd);
}
