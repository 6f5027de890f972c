#include "tool/role.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "client/local.h"
#include "tool/command.h"
#include "tool/keys.h"

/* The last events of each process, for `tow trace`: 640 KB, and about 2 MB as
 * text, which the controller reads in 20 ms. */
#define TRACE_EVENT_COUNT (16u << 10)

/* For the handler alone. */
static tow_net_t *stopping_net;

static void on_signal(int number)
{
    (void)number;
    tow_net_stop(stopping_net);
}

static void take_signals(tow_net_t *net)
{
    stopping_net = net;
    struct sigaction action = {.sa_handler = on_signal};
    sigemptyset(&action.sa_mask);
    sigaction(SIGTERM, &action, NULL);
    sigaction(SIGINT, &action, NULL);
    sigaction(SIGHUP, &action, NULL);
    signal(SIGPIPE, SIG_IGN);
}

static tow_status_t load_keys(tow_role_t *role,
                              const tow_role_options_t *options)
{
    if (options->keys == NULL)
        return tow_local_security(NULL, options->address, &role->security);
    tow_keys_t keys;
    TOW_RETURN_IF_ERROR(tow_keys_in(options->keys, &keys));
    return tow_keys_load(&keys, &role->security);
}

tow_status_t tow_role_open(tow_role_t *role, const tow_role_options_t *options)
{
    *role = (tow_role_t){0};
    TOW_RETURN_IF_ERROR(load_keys(role, options));
    const tow_net_options_t net = {.name = options->name,
                                   .security = &role->security,
                                   .log = tow_command_log(options->name),
                                   .data_plane = options->data_plane,
                                   .data_devices = options->data_devices,
                                   .spin_ns = options->spin_ns};
    TOW_RETURN_IF_ERROR(tow_net_create(&net, &role->net));
    take_signals(role->net);
    TOW_RETURN_IF_ERROR(tow_trace_ring_create("loop", TRACE_EVENT_COUNT, NULL,
                                              NULL, &role->ring));
    tow_trace_attach(role->ring);
    return TOW_OK;
}

void tow_role_close(tow_role_t *role)
{
    signal(SIGTERM, SIG_DFL);
    signal(SIGINT, SIG_DFL);
    signal(SIGHUP, SIG_DFL);
    if (role->net != NULL) tow_net_destroy(role->net);
    tow_trace_attach(NULL);
    if (role->ring != NULL) tow_trace_ring_destroy(role->ring);
    tow_tls_context_destroy(role->security.tls);
}

void tow_role_run(tow_role_t *role)
{
    tow_net_run(role->net);
}

void tow_role_await(tow_role_t *role, const bool *done)
{
    while (!*done)
        tow_net_turn(role->net, TOW_TIME_NEVER);
}

void tow_role_set_done(void *context)
{
    *(bool *)context = true;
}

void tow_role_host_name(char name[TOW_ROLE_HOST_SIZE])
{
    name[TOW_ROLE_HOST_SIZE - 1] = '\0';
    if (gethostname(name, TOW_ROLE_HOST_SIZE - 1) != 0 || name[0] == '\0')
        snprintf(name, TOW_ROLE_HOST_SIZE, "localhost");
}

uint64_t tow_role_host_bytes(uint64_t share)
{
    const long pages = sysconf(_SC_PHYS_PAGES);
    const long page_bytes = sysconf(_SC_PAGESIZE);
    if (pages <= 0 || page_bytes <= 0) return 0;
    return (uint64_t)pages / share * (uint64_t)page_bytes;
}

void tow_role_say_ready(int fd, const char *text)
{
    dprintf(fd, "%s\n", text);
    if (fd > STDERR_FILENO) close(fd);
}
