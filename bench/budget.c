#include "bench/budget.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/vec.h"

#define PATH_SIZE 96
#define LINE_SIZE 512

typedef struct process {
    long pid;
    long parent;
} process_t;

typedef TOW_VEC(process_t) process_vec_t;

static bool is_number(const char *name)
{
    return isdigit((unsigned char)name[0]) != 0;
}

static void read_file(const char *path, char *text, size_t capacity)
{
    text[0] = '\0';
    FILE *file = fopen(path, "r");
    if (file == NULL) return;
    const size_t size = fread(text, 1, capacity - 1, file);
    fclose(file);
    text[size] = '\0';
}

static long parent_of(long pid)
{
    char path[PATH_SIZE], line[LINE_SIZE];
    snprintf(path, sizeof(path), "/proc/%ld/stat", pid);
    read_file(path, line, sizeof(line));
    /* The process name may contain anything; it ends at the last bracket. */
    const char *end = strrchr(line, ')');
    char state;
    long parent = -1;
    if (end == NULL || sscanf(end + 1, " %c %ld", &state, &parent) != 2)
        return -1;
    return parent;
}

static tow_status_t list_processes(process_vec_t *processes)
{
    DIR *folder = opendir("/proc");
    if (folder == NULL) return TOW_ERRNO(errno, "listing processes");
    tow_status_t status = TOW_OK;
    for (struct dirent *entry; (entry = readdir(folder)) != NULL;) {
        if (!is_number(entry->d_name)) continue;
        const long pid = strtol(entry->d_name, NULL, 10);
        const process_t process = {pid, parent_of(pid)};
        if (!tow_vec_push(processes, process))
            status = tow_status_bare(TOW_RESOURCE_EXHAUSTED);
    }
    closedir(folder);
    return status;
}

static bool descends(const process_vec_t *processes, long pid, long from)
{
    for (int depth = 0; depth < 16 && pid > 1; depth++) {
        long parent = -1;
        for (size_t i = 0; i < processes->count; i++)
            if (processes->items[i].pid == pid)
                parent = processes->items[i].parent;
        if (parent == from) return true;
        pid = parent;
    }
    return false;
}

/* The share of a thread's CPU time spent in the kernel: fields 14 and 15. */
static double kernel_share(long pid, const char *thread)
{
    char path[PATH_SIZE], line[LINE_SIZE];
    unsigned long long user = 0, kernel = 0;
    snprintf(path, sizeof(path), "/proc/%ld/task/%.16s/stat", pid, thread);
    read_file(path, line, sizeof(line));
    const char *end = strrchr(line, ')');
    if (end == NULL ||
        sscanf(end + 1,
               " %*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %llu %llu", &user,
               &kernel) != 2 ||
        user + kernel == 0)
        return 0;
    return (double)kernel / (double)(user + kernel);
}

/* CPU time of one thread: the first number, in nanoseconds. */
static void add_thread(long pid, const char *thread,
                       tow_bench_budget_part_t *part)
{
    char path[PATH_SIZE], line[LINE_SIZE];
    snprintf(path, sizeof(path), "/proc/%ld/task/%.16s/schedstat", pid, thread);
    read_file(path, line, sizeof(line));
    const double seconds = (double)strtoull(line, NULL, 10) * 1e-9;
    part->all += seconds;
    part->wire += seconds * kernel_share(pid, thread);
}

/* The first thread of a process runs its event loop. */
static void add_threads(long pid, tow_bench_budget_part_t *loop,
                        tow_bench_budget_part_t *others)
{
    char path[PATH_SIZE];
    snprintf(path, sizeof(path), "/proc/%ld/task", pid);
    DIR *folder = opendir(path);
    if (folder == NULL) return;
    for (struct dirent *entry; (entry = readdir(folder)) != NULL;)
        if (is_number(entry->d_name))
            add_thread(pid, entry->d_name,
                       strtol(entry->d_name, NULL, 10) == pid ? loop : others);
    closedir(folder);
}

/* The role is the first argument: `tow controller`, `tow worker`. */
static void read_role(long pid, char *role, size_t capacity)
{
    char path[PATH_SIZE], line[512];
    role[0] = '\0';
    snprintf(path, sizeof(path), "/proc/%ld/cmdline", pid);
    FILE *file = fopen(path, "r");
    if (file == NULL) return;
    const size_t size = fread(line, 1, sizeof(line) - 1, file);
    fclose(file);
    line[size] = '\0';
    const size_t first = strlen(line) + 1;
    if (first < size) snprintf(role, capacity, "%s", line + first);
}

tow_status_t tow_bench_budget_read(tow_bench_budget_t *out_budget)
{
    process_vec_t processes = {0};
    tow_status_t status = list_processes(&processes);
    tow_bench_budget_t budget = {0};
    bool any = false;
    for (size_t i = 0; status == TOW_OK && i < processes.count; i++) {
        const long pid = processes.items[i].pid;
        char role[32];
        if (!descends(&processes, pid, getpid())) continue;
        read_role(pid, role, sizeof(role));
        if (strcmp(role, "controller") == 0)
            add_threads(pid, &budget.controller, &budget.controller);
        else if (strcmp(role, "worker") == 0)
            add_threads(pid, &budget.worker, &budget.device);
        else
            continue;
        any = true;
    }
    tow_vec_deinit(&processes);
    TOW_RETURN_IF_ERROR(status);
    if (!any)
        return TOW_ERROR(TOW_NOT_FOUND,
                         "no controller or worker descends from this process");
    add_threads(getpid(), &budget.client, &budget.client);
    *out_budget = budget;
    return TOW_OK;
}

static tow_bench_budget_part_t between(tow_bench_budget_part_t before,
                                       tow_bench_budget_part_t after)
{
    const double wire = after.wire - before.wire;
    return (tow_bench_budget_part_t){.all = after.all - before.all,
                                     .wire = wire > 0 ? wire : 0};
}

tow_bench_budget_t tow_bench_budget_between(const tow_bench_budget_t *before,
                                            const tow_bench_budget_t *after)
{
    return (tow_bench_budget_t){
        .client = between(before->client, after->client),
        .controller = between(before->controller, after->controller),
        .worker = between(before->worker, after->worker),
        .device = between(before->device, after->device),
    };
}
