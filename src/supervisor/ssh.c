#include "supervisor/ssh.h"

#include <errno.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

#include "base/assert.h"

static const char *program(void)
{
    const char *other = getenv("TOW_SSH");
    return other != NULL && other[0] != '\0' ? other : "ssh";
}

static bool is_in_path(const char *name)
{
    const char *at = getenv("PATH");
    char file[4096];
    while (at != NULL && *at != '\0') {
        const size_t length = strcspn(at, ":");
        snprintf(file, sizeof(file), "%.*s/%s", (int)length, at, name);
        if (access(file, X_OK) == 0) return true;
        at += length;
        at += *at == ':';
    }
    return false;
}

tow_status_t tow_ssh_find(void)
{
    const char *name = program();
    const bool is_found =
        strchr(name, '/') != NULL ? access(name, X_OK) == 0 : is_in_path(name);
    if (is_found) return TOW_OK;
    return TOW_ERROR(TOW_NOT_FOUND,
                     "there is no program %s, with which workers are started "
                     "on other hosts: install an ssh client (Debian: "
                     "openssh-client), or name it in TOW_SSH",
                     name);
}

void tow_ssh_command(const tow_host_t *host, const char *script,
                     tow_ssh_command_t *out_command)
{
    TOW_ASSERT(strchr(script, '\'') == NULL);
    static const char *const fixed[] = {
        "-T", /* no terminal */
        "-o", "BatchMode=yes", "-o", "ConnectTimeout=10",
        /* A host that vanished: after 15 s. */
        "-o", "ServerAliveInterval=5", "-o", "ServerAliveCountMax=3", "-o",
        "ClearAllForwardings=yes"};
    size_t count = 0;
    out_command->items[count++] = (char *)program();
    for (size_t i = 0; i < TOW_COUNT_OF(fixed); i++)
        out_command->items[count++] = (char *)fixed[i];
    if (host->port != 0) {
        snprintf(out_command->port, sizeof(out_command->port), "%u",
                 host->port);
        out_command->items[count++] = "-p";
        out_command->items[count++] = out_command->port;
    }
    /* The user's shell may be any: it starts sh. */
    const int length = snprintf(out_command->script, TOW_SSH_SCRIPT_SIZE,
                                "exec sh -c '%s'", script);
    TOW_ASSERT(length > 0 && length < TOW_SSH_SCRIPT_SIZE);
    out_command->items[count++] = "--";
    out_command->items[count++] = (char *)host->ssh;
    out_command->items[count++] = out_command->script;
    out_command->items[count] = NULL;
    TOW_ASSERT(count < TOW_COUNT_OF(out_command->items));
}

void tow_ssh_become(const tow_ssh_command_t *command,
                    const tow_ssh_streams_t *streams, pid_t parent)
{
    sigset_t none;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) _exit(127); /* The parent is already dead. */
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    dup2(streams->input_fd, STDIN_FILENO);
    dup2(streams->output_fd, STDOUT_FILENO);
    dup2(streams->error_fd, STDERR_FILENO);
    close_range(STDERR_FILENO + 1, ~0u, 0);
    execvp(command->items[0], command->items);
    fprintf(stderr, "cannot run %s: %s\n", command->items[0], strerror(errno));
    _exit(127);
}
