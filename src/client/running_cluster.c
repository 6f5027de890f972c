#include "client/running_cluster.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "client/local_cluster.h"

#define PATH_SIZE     (PATH_MAX + 64)
#define ADDRESS_START "TOW_ADDRESS="
#define TOKEN_START   "TOW_TOKEN_FILE="

pid_t tow_running_cluster_holder(const char *folder)
{
    char path[PATH_SIZE];
    struct stat info;
    if (lstat(folder, &info) != 0 || info.st_uid != geteuid()) return 0;
    snprintf(path, sizeof(path), "%s/" TOW_RUNNING_CLUSTER_LOCK, folder);
    const int fd = open(path, O_RDWR | O_CLOEXEC);
    if (fd < 0) return 0;
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
    const int failed = fcntl(fd, F_GETLK, &lock);
    close(fd);
    return failed == 0 && lock.l_type != F_UNLCK ? lock.l_pid : 0;
}

tow_status_t tow_running_cluster_write(const char *folder,
                                       const tow_running_cluster_t *cluster)
{
    char path[PATH_SIZE], fresh[PATH_SIZE + 8];
    snprintf(path, sizeof(path), "%s/" TOW_RUNNING_CLUSTER_NOTE, folder);
    snprintf(fresh, sizeof(fresh), "%s.new", path);
    FILE *file = fopen(fresh, "we");
    if (file == NULL) return TOW_ERRNO(errno, "writing %s", fresh);
    fprintf(file, ADDRESS_START "%s\n" TOKEN_START "%s\n", cluster->address,
            cluster->token_file);
    if (fclose(file) != 0) return TOW_ERRNO(errno, "writing %s", fresh);
    if (rename(fresh, path) != 0) return TOW_ERRNO(errno, "writing %s", path);
    return TOW_OK;
}

/* The rest of the line if it starts with `start`. */
static void take_line(const char *line, const char *start, char *text,
                      size_t capacity)
{
    const size_t length = strlen(start);
    if (strncmp(line, start, length) != 0) return;
    snprintf(text, capacity, "%.*s", (int)strcspn(line + length, "\n"),
             line + length);
}

bool tow_running_cluster_find(tow_running_cluster_t *out_cluster)
{
    char folder[PATH_MAX], path[PATH_SIZE], line[PATH_SIZE];
    *out_cluster = (tow_running_cluster_t){0};
    tow_local_cluster_run_folder(folder, sizeof(folder));
    if (tow_running_cluster_holder(folder) == 0) return false;
    snprintf(path, sizeof(path), "%s/" TOW_RUNNING_CLUSTER_NOTE, folder);
    FILE *file = fopen(path, "re");
    if (file == NULL) return false;
    while (fgets(line, sizeof(line), file) != NULL) {
        take_line(line, ADDRESS_START, out_cluster->address,
                  sizeof(out_cluster->address));
        take_line(line, TOKEN_START, out_cluster->token_file,
                  sizeof(out_cluster->token_file));
    }
    fclose(file);
    return out_cluster->address[0] != '\0' &&
           out_cluster->token_file[0] != '\0';
}
