#include "supervisor/remote_worker.h"

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/assert.h"
#include "supervisor/keys.h"

/* -- The credential --------------------------------------------------------- */

static tow_status_t add_file(tow_credential_t *credential, const char *path,
                             const char *name)
{
    FILE *file = fopen(path, "re");
    if (file == NULL)
        return TOW_ERRNO(
            errno, "reading %s: `tow keys FOLDER --host NAME` makes it", path);
    const size_t room = sizeof(credential->bytes) - credential->size;
    const size_t size =
        fread(credential->bytes + credential->size, 1, room, file);
    fclose(file);
    if (size == 0 || size == room)
        return TOW_ERROR(TOW_INVALID_ARGUMENT,
                         "%s is empty, or has more than %zu bytes", path, room);
    credential->size += size;
    /* dd reads exactly so many bytes, and leaves the rest. */
    const size_t length = strlen(credential->script);
    snprintf(credential->script + length, sizeof(credential->script) - length,
             "dd bs=1 count=%zu of=\"$d/%s\" 2>/dev/null && ", size, name);
    return TOW_OK;
}

tow_status_t tow_credential_load(const char *keys_folder,
                                 tow_credential_t *out_credential)
{
    tow_keys_t keys;
    *out_credential = (tow_credential_t){0};
    TOW_RETURN_IF_ERROR(tow_keys_in(keys_folder, &keys));
    TOW_RETURN_IF_ERROR(add_file(out_credential, keys.token, "token"));
    return add_file(out_credential, keys.certificate, "cert.pem");
}

/* -- The command ------------------------------------------------------------ */

typedef struct script {
    char text[TOW_SSH_SCRIPT_SIZE - 64];
    size_t length;
    bool is_full;
} script_t;

static void add(script_t *script, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
static void add(script_t *script, const char *format, ...)
{
    va_list values;
    va_start(values, format);
    const size_t room = sizeof(script->text) - script->length;
    const int length =
        vsnprintf(script->text + script->length, room, format, values);
    va_end(values);
    script->is_full = script->is_full || (size_t)length >= room;
    if (!script->is_full) script->length += (size_t)length;
}

/* Between double quotes a shell interprets these characters. */
static tow_status_t add_quoted(script_t *script, const char *option,
                               const char *value)
{
    for (const char *at = value; *at != '\0'; at++)
        if (strchr("\"'`$\\!", *at) != NULL || iscntrl((unsigned char)*at))
            return TOW_ERROR(TOW_INVALID_ARGUMENT,
                             "%s %s cannot be passed on to other hosts: it has "
                             "quotes, $, !, ` or a backslash",
                             option, value);
    add(script, " %s \"%s\"", option, value);
    return TOW_OK;
}

static tow_status_t add_worker(script_t *script,
                               const tow_remote_worker_t *worker)
{
    add(script, "%s worker --keys \"$d\" --follow-fd 0 --ready-fd 3",
        worker->host->tow);
    TOW_RETURN_IF_ERROR(add_quoted(script, "--controller", worker->controller));
    TOW_RETURN_IF_ERROR(add_quoted(script, "--name", worker->name));
    if (worker->host->island[0] != '\0')
        TOW_RETURN_IF_ERROR(
            add_quoted(script, "--island", worker->host->island));
    if (worker->model != NULL)
        TOW_RETURN_IF_ERROR(add_quoted(script, "--simulated", worker->model));
    if (worker->plugin != NULL)
        TOW_RETURN_IF_ERROR(add_quoted(script, "--plugin", worker->plugin));
    const uint64_t device_count = worker->host->device_count != 0
                                      ? worker->host->device_count
                                      : worker->device_count;
    add(script, " --devices %llu", (unsigned long long)device_count);
    if (worker->memory_bytes > 0)
        add(script, " --memory %llu", (unsigned long long)worker->memory_bytes);
    if (worker->host_functions) add(script, " --host-functions");
    return TOW_OK;
}

/* The folder is removed when the worker has ended, also after a signal. Libraries
 * print to standard output, so the line of the worker goes through descriptor 3. */
tow_status_t tow_remote_worker_command(const tow_remote_worker_t *worker,
                                       const tow_credential_t *credential,
                                       tow_ssh_command_t *out_command)
{
    script_t script = {0};
    add(&script,
        "umask 077; TOW_LOG=${TOW_LOG:-info}; export TOW_LOG; "
        "d=$(mktemp -d \"${TMPDIR:-/tmp}/towpath-keys-XXXXXX\") || exit 1; "
        "trap \"rm -rf \\\"$d\\\"\" EXIT; trap \"exit 143\" HUP INT TERM; ");
    add(&script, "%s", credential->script);
    TOW_RETURN_IF_ERROR(add_worker(&script, worker));
    add(&script, " 3>&1 1>&2");
    if (script.is_full)
        return TOW_ERROR(
            TOW_INVALID_ARGUMENT,
            "the command line of worker %s has more than %zu bytes",
            worker->name, sizeof(script.text));
    tow_ssh_command(worker->host, script.text, out_command);
    return TOW_OK;
}

/* -- Starting --------------------------------------------------------------- */

/* The pipe has room for the whole credential. */
static tow_status_t write_all(int fd, const char *bytes, size_t size)
{
    while (size > 0) {
        const ssize_t count = write(fd, bytes, size);
        if (count < 0 && errno == EINTR) continue;
        if (count < 0) return TOW_ERRNO(errno, "writing the credential");
        bytes += count;
        size -= (size_t)count;
    }
    return TOW_OK;
}

tow_status_t tow_remote_worker_start(const tow_ssh_command_t *command,
                                     const tow_credential_t *credential,
                                     const char *log, int ready_fd,
                                     tow_remote_process_t *out_process)
{
    int input[2];
    *out_process = (tow_remote_process_t){.follow_fd = -1};
    if (pipe2(input, O_CLOEXEC) != 0) return TOW_ERRNO(errno, "making a pipe");
    tow_status_t status =
        write_all(input[1], credential->bytes, credential->size);
    const pid_t parent = getpid();
    const pid_t pid = status == TOW_OK ? fork() : -1;
    if (pid == 0) {
        const int log_fd = open(log, O_WRONLY | O_CREAT | O_APPEND, 0600);
        const tow_ssh_streams_t streams = {input[0], ready_fd, log_fd};
        tow_ssh_become(command, &streams, parent);
    }
    if (status == TOW_OK && pid < 0)
        status = TOW_ERRNO(errno, "starting %s", command->items[0]);
    close(input[0]);
    if (status != TOW_OK) {
        close(input[1]);
        return status;
    }
    *out_process = (tow_remote_process_t){.pid = pid, .follow_fd = input[1]};
    return TOW_OK;
}
