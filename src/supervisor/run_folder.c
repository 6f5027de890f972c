#include "supervisor/run_folder.h"

#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "client/local_cluster.h"
#include "client/running_cluster.h"

#define STATE "cluster.json"

tow_status_t tow_run_folder_name(tow_run_folder_t *folder, const char *path)
{
    *folder = (tow_run_folder_t){.lock_fd = -1};
    if (path == NULL) {
        tow_local_cluster_run_folder(folder->path, sizeof(folder->path));
        return TOW_OK;
    }
    if (path[0] == '\0' || strlen(path) >= sizeof(folder->path))
        return TOW_ERROR(
            TOW_INVALID_ARGUMENT,
            "the name of the cluster's folder has %zu bytes, limits 1 and %zu",
            strlen(path), sizeof(folder->path) - 1);
    snprintf(folder->path, sizeof(folder->path), "%s", path);
    return TOW_OK;
}

void tow_run_folder_file(const tow_run_folder_t *folder, const char *name,
                         char path[TOW_RUN_PATH_SIZE])
{
    snprintf(path, TOW_RUN_PATH_SIZE, "%s/%s", folder->path, name);
}

/* In /tmp another user may have created a folder of that name. */
static tow_status_t check_private(const char *path)
{
    struct stat info;
    if (lstat(path, &info) != 0) return TOW_ERRNO(errno, "looking at %s", path);
    if (!S_ISDIR(info.st_mode) || info.st_uid != geteuid() ||
        (info.st_mode & 0077) != 0)
        return TOW_ERROR(
            TOW_PERMISSION_DENIED,
            "%s is not a private folder of this user (owner %u, mode "
            "%o): remove it, or name another with --folder",
            path, (unsigned)info.st_uid, info.st_mode & 0777);
    return TOW_OK;
}

tow_status_t tow_run_folder_take(tow_run_folder_t *folder)
{
    if (mkdir(folder->path, 0700) != 0 && errno != EEXIST)
        return TOW_ERRNO(errno, "making %s", folder->path);
    TOW_RETURN_IF_ERROR(check_private(folder->path));
    /* The absolute path: other processes have other working directories. */
    char path[TOW_RUN_PATH_SIZE], whole[PATH_MAX];
    if (realpath(folder->path, whole) == NULL)
        return TOW_ERRNO(errno, "looking for %s", folder->path);
    snprintf(folder->path, sizeof(folder->path), "%s", whole);
    tow_run_folder_file(folder, TOW_RUNNING_CLUSTER_LOCK, path);
    folder->lock_fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (folder->lock_fd < 0) return TOW_ERRNO(errno, "opening %s", path);
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
    if (fcntl(folder->lock_fd, F_SETLK, &lock) == 0) return TOW_OK;
    close(folder->lock_fd);
    folder->lock_fd = -1;
    return TOW_ERROR(
        TOW_FAILED_PRECONDITION,
        "a cluster is up in %s (process %d): `tow down` stops it, and --folder names another place",
        folder->path, (int)tow_run_folder_holder(folder));
}

pid_t tow_run_folder_holder(const tow_run_folder_t *folder)
{
    return tow_running_cluster_holder(folder->path);
}

static tow_status_t dump(json_t *json, const char *path)
{
    char fresh[TOW_RUN_PATH_SIZE + 8];
    snprintf(fresh, sizeof(fresh), "%s.new", path);
    if (json == NULL || json_dump_file(json, fresh, JSON_INDENT(2)) != 0)
        return TOW_ERROR(TOW_UNKNOWN, "writing %s", fresh);
    if (rename(fresh, path) != 0) return TOW_ERRNO(errno, "writing %s", path);
    return TOW_OK;
}

tow_status_t tow_run_folder_write(const tow_run_folder_t *folder,
                                  const tow_run_state_t *state)
{
    char path[TOW_RUN_PATH_SIZE];
    tow_run_folder_file(folder, STATE, path);
    json_t *json = json_pack(
        "{s:i, s:s, s:s, s:i, s:i}", "pid", (int)state->pid, "address",
        state->address, "token", state->token_file, "workers",
        (int)state->worker_count, "devices", (int)state->device_count);
    tow_status_t status = dump(json, path);
    json_decref(json);
    if (status != TOW_OK) return status;
    tow_running_cluster_t note;
    snprintf(note.address, sizeof(note.address), "%s", state->address);
    snprintf(note.token_file, sizeof(note.token_file), "%s", state->token_file);
    return tow_running_cluster_write(folder->path, &note);
}

tow_status_t tow_run_folder_read(const tow_run_folder_t *folder,
                                 tow_run_state_t *out_state)
{
    *out_state = (tow_run_state_t){.pid = tow_run_folder_holder(folder)};
    if (out_state->pid == 0)
        return TOW_ERROR(TOW_NOT_FOUND,
                         "no cluster is up in %s: `tow up` starts one, and "
                         "--address or TOW_ADDRESS name one elsewhere",
                         folder->path);
    char path[TOW_RUN_PATH_SIZE];
    tow_run_folder_file(folder, STATE, path);
    json_t *json = json_load_file(path, 0, NULL);
    const char *address = NULL, *token = NULL;
    int pid = 0, workers = 0, devices = 0;
    const int failed = json_unpack(json, "{s:i, s:s, s:s, s:i, s:i}", "pid",
                                   &pid, "address", &address, "token", &token,
                                   "workers", &workers, "devices", &devices);
    if (failed == 0 && pid == out_state->pid) {
        snprintf(out_state->address, sizeof(out_state->address), "%s", address);
        snprintf(out_state->token_file, sizeof(out_state->token_file), "%s",
                 token);
        out_state->worker_count = (unsigned)workers;
        out_state->device_count = (unsigned)devices;
    }
    json_decref(json);
    if (out_state->address[0] != '\0') return TOW_OK;
    return TOW_ERROR(TOW_UNAVAILABLE,
                     "the cluster in %s is not ready yet; its logs are there",
                     folder->path);
}

void tow_run_folder_leave(tow_run_folder_t *folder)
{
    if (folder->lock_fd < 0) return;
    char path[TOW_RUN_PATH_SIZE];
    tow_run_folder_file(folder, STATE, path);
    unlink(path);
    tow_run_folder_file(folder, TOW_RUNNING_CLUSTER_NOTE, path);
    unlink(path);
    tow_run_folder_file(folder, "token", path);
    unlink(path);
    close(folder->lock_fd);
    folder->lock_fd = -1;
}
