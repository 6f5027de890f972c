#include "bench/netns.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/assert.h"
#include "bench/pair.h"
#include "bench/peer.h"
#include "supervisor/cores.h"

#define IP_TIMEOUT_NS      INT64_C(10000000000)
#define ARGUMENTS_MAX      32
#define CARRIER_ATTEMPTS   100
#define CARRIER_ATTEMPT_US 50000

static const char *const addresses[TOW_BENCH_HOST_COUNT] = {"10.94.17.1",
                                                            "10.94.17.2"};

const char *tow_bench_host_address(size_t index)
{
    TOW_ASSERT(index < TOW_BENCH_HOST_COUNT);
    return addresses[index];
}

/* -- Inside a host --------------------------------------------------------- */

/* The kernel kills the calling process when its parent ends. */
static void end_with_parent(void)
{
    prctl(PR_SET_PDEATHSIG, SIGKILL);
}

static tow_status_t mount_own(const char *type, const char *path)
{
    if (mount(type, path, type, 0, NULL) == 0) return TOW_OK;
    return TOW_ERRNO(errno, "mounting %s on %s", type, path);
}

/* UCX finds devices in /sys, and peers in /proc and /dev/shm. */
static tow_status_t mount_all(void)
{
    if (mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) != 0)
        return TOW_ERRNO(errno, "making mounts private");
    TOW_RETURN_IF_ERROR(mount_own("proc", "/proc"));
    TOW_RETURN_IF_ERROR(mount_own("sysfs", "/sys"));
    return mount_own("tmpfs", "/dev/shm");
}

/* Process 1 of a host: adopts orphans until it is killed. */
static tow_status_t live(const char *name)
{
    end_with_parent();
    signal(SIGCHLD, SIG_IGN);
    if (sethostname(name, strlen(name)) != 0)
        return TOW_ERRNO(errno, "naming host %s", name);
    TOW_RETURN_IF_ERROR(mount_all());
    printf("ready\n");
    fflush(stdout);
    for (;;)
        pause();
}

static tow_status_t wait_for(pid_t pid, int *out_exit_status)
{
    while (waitpid(pid, out_exit_status, 0) < 0)
        if (errno != EINTR) return TOW_ERRNO(errno, "waiting for %d", (int)pid);
    return TOW_OK;
}

tow_status_t tow_bench_host_hold(int argc, char **argv)
{
    const int apart =
        CLONE_NEWNET | CLONE_NEWIPC | CLONE_NEWPID | CLONE_NEWNS | CLONE_NEWUTS;
    if (argc != 2)
        return TOW_ERROR(TOW_INVALID_ARGUMENT, "%d arguments, not 1", argc - 1);
    if (unshare(apart) != 0) return TOW_ERRNO(errno, "making namespaces");
    const pid_t pid = fork();
    if (pid == 0) return live(argv[1]);
    if (pid < 0) return TOW_ERRNO(errno, "starting process 1 of a host");
    int exit_status = 0;
    TOW_RETURN_IF_ERROR(wait_for(pid, &exit_status));
    return TOW_ERROR(TOW_ABORTED, "process 1 of host %s ended", argv[1]);
}

/* All are opened before the first is entered: /proc changes. */
static tow_status_t enter_namespaces(const char *pid)
{
    static const char *const kinds[] = {"net", "ipc", "uts", "pid_for_children",
                                        "mnt"};
    int fds[TOW_COUNT_OF(kinds)];
    for (size_t i = 0; i < TOW_COUNT_OF(kinds); i++) {
        char path[64];
        snprintf(path, sizeof(path), "/proc/%s/ns/%s", pid, kinds[i]);
        fds[i] = open(path, O_RDONLY | O_CLOEXEC);
        if (fds[i] < 0) return TOW_ERRNO(errno, "opening %s", path);
    }
    for (size_t i = 0; i < TOW_COUNT_OF(kinds); i++)
        if (setns(fds[i], 0) != 0)
            return TOW_ERRNO(errno, "entering namespace %s of process %s",
                             kinds[i], pid);
    return TOW_OK;
}

tow_status_t tow_bench_host_enter(int argc, char **argv)
{
    if (argc < 5)
        return TOW_ERROR(TOW_INVALID_ARGUMENT, "%d arguments, not 4 or more",
                         argc - 1);
    TOW_RETURN_IF_ERROR(enter_namespaces(argv[1]));
    /* Only a child is in the PID namespace. */
    const pid_t pid = fork();
    if (pid < 0) return TOW_ERRNO(errno, "starting %s", argv[4]);
    if (pid == 0) {
        end_with_parent();
        tow_cores_take_share(strtoul(argv[2], NULL, 10),
                             strtoul(argv[3], NULL, 10));
        execvp(argv[4], argv + 4);
        return TOW_ERRNO(errno, "starting %s", argv[4]);
    }
    int exit_status = 0;
    TOW_RETURN_IF_ERROR(wait_for(pid, &exit_status));
    exit(WIFEXITED(exit_status) ? WEXITSTATUS(exit_status)
                                : 128 + WTERMSIG(exit_status));
}

/* -- Starting processes ---------------------------------------------------- */

tow_status_t tow_bench_start(const tow_bench_place_t *place, char *const argv[],
                             char *const extra[],
                             tow_subprocess_output_t output,
                             tow_subprocess_t *out_process)
{
    if (place->hosts == NULL)
        return tow_subprocess_start(argv, extra, output, out_process);
    TOW_ASSERT(place->index < TOW_BENCH_HOST_COUNT);
    char pid[16], index[24], *all[ARGUMENTS_MAX + 8] = {0};
    char *const enter[] = {
        (char *)place->hosts->program,   "bench", "host-enter", pid, index,
        place->has_own_cores ? "2" : "1"};
    _Static_assert(TOW_BENCH_HOST_COUNT == 2, "shares of the cores");
    snprintf(pid, sizeof(pid), "%d",
             (int)place->hosts->hosts[place->index].pid);
    snprintf(index, sizeof(index), "%zu",
             place->has_own_cores ? place->index : 0);
    memcpy(all, enter, sizeof(enter));
    size_t count = 0;
    for (; argv[count] != NULL; count++) {
        TOW_ASSERT(count < ARGUMENTS_MAX);
        all[TOW_COUNT_OF(enter) + count] = argv[count];
    }
    return tow_subprocess_start(all, extra, output, out_process);
}

/* -- Making hosts ---------------------------------------------------------- */

#define IP_TEXT_SIZE 512

static tow_status_t read_ip(const tow_bench_place_t *place, char *const argv[],
                            char text[IP_TEXT_SIZE])
{
    tow_subprocess_t ip = {.output_fd = -1};
    TOW_RETURN_IF_ERROR(
        tow_bench_start(place, argv, NULL, TOW_SUBPROCESS_PIPE, &ip));
    return tow_subprocess_finish(&ip, "ip", IP_TIMEOUT_NS, text, IP_TEXT_SIZE);
}

static tow_status_t run_ip(const tow_bench_place_t *place, char *const argv[])
{
    char text[IP_TEXT_SIZE];
    return read_ip(place, argv, text);
}

static tow_status_t start_host(tow_bench_hosts_t *hosts, size_t index)
{
    char name[32], line[16];
    snprintf(name, sizeof(name), "bench-host-%zu", index);
    char *const argv[] = {"tow", "bench", "host-hold", name, NULL};
    tow_subprocess_t *host = &hosts->hosts[index];
    TOW_RETURN_IF_ERROR(
        tow_subprocess_start_self(argv, NULL, TOW_SUBPROCESS_PIPE, host));
    tow_status_t status = tow_bench_read_line(host, name, line, sizeof(line));
    if (status == TOW_OK) return TOW_OK;
    tow_status_ignore(status, "its process has printed the cause");
    return TOW_ERROR(TOW_PERMISSION_DENIED,
                     "this machine allows no namespaces (the cause is above)");
}

/* Both ends are made in their places, so no name is used on this machine. */
static tow_status_t lay_cable(const tow_bench_hosts_t *hosts)
{
    char pids[TOW_BENCH_HOST_COUNT][16];
    for (size_t i = 0; i < TOW_BENCH_HOST_COUNT; i++)
        snprintf(pids[i], sizeof(pids[i]), "%d", (int)hosts->hosts[i].pid);
    char *const argv[] = {
        "ip",   "link", "add",  "name", TOW_BENCH_HOST_DEVICE, "netns", pids[0],
        "type", "veth", "peer", "name", TOW_BENCH_HOST_DEVICE, "netns", pids[1],
        NULL};
    return run_ip(&(tow_bench_place_t){0}, argv);
}

static tow_status_t set_up_network(const tow_bench_hosts_t *hosts, size_t index)
{
    const tow_bench_place_t place = {.hosts = hosts, .index = index};
    char address[32];
    snprintf(address, sizeof(address), "%s/24", addresses[index]);
    char *const own[] = {
        "ip", "address", "add", address, "dev", TOW_BENCH_HOST_DEVICE, NULL};
    char *const up[] = {"ip", "link", "set", TOW_BENCH_HOST_DEVICE, "up", NULL};
    char *const loopback_up[] = {"ip", "link", "set", "lo", "up", NULL};
    TOW_RETURN_IF_ERROR(run_ip(&place, own));
    TOW_RETURN_IF_ERROR(run_ip(&place, up));
    return run_ip(&place, loopback_up);
}

/* The kernel reports a carrier up to a second late, and UCX does not use a
 * device without one. */
static tow_status_t await_carrier(const tow_bench_hosts_t *hosts, size_t index)
{
    const tow_bench_place_t place = {.hosts = hosts, .index = index};
    char *const show[] = {
        "ip", "-oneline", "link", "show", TOW_BENCH_HOST_DEVICE, NULL};
    for (int i = 0; i < CARRIER_ATTEMPTS; i++) {
        char text[IP_TEXT_SIZE];
        TOW_RETURN_IF_ERROR(read_ip(&place, show, text));
        if (strstr(text, "state UP") != NULL) return TOW_OK;
        usleep(CARRIER_ATTEMPT_US);
    }
    return TOW_ERROR(TOW_DEADLINE_EXCEEDED,
                     "the cable between the hosts has no carrier after 5 s");
}

static tow_status_t make_folder(void)
{
    if (unshare(CLONE_NEWNS) != 0)
        return TOW_ERROR(TOW_PERMISSION_DENIED,
                         "this machine allows no mount namespaces: %s",
                         strerror(errno));
    if (mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) != 0)
        return TOW_ERRNO(errno, "making mounts private");
    return mount_own("tmpfs", TOW_BENCH_HOST_FOLDER);
}

static tow_status_t open_hosts(tow_bench_hosts_t *hosts)
{
    TOW_RETURN_IF_ERROR(tow_bench_find_built("tow", hosts->program));
    TOW_RETURN_IF_ERROR(make_folder());
    for (size_t i = 0; i < TOW_BENCH_HOST_COUNT; i++)
        TOW_RETURN_IF_ERROR(start_host(hosts, i));
    TOW_RETURN_IF_ERROR(lay_cable(hosts));
    for (size_t i = 0; i < TOW_BENCH_HOST_COUNT; i++)
        TOW_RETURN_IF_ERROR(set_up_network(hosts, i));
    for (size_t i = 0; i < TOW_BENCH_HOST_COUNT; i++)
        TOW_RETURN_IF_ERROR(await_carrier(hosts, i));
    return TOW_OK;
}

tow_status_t tow_bench_hosts_open(tow_bench_hosts_t *out_hosts)
{
    *out_hosts = (tow_bench_hosts_t){0};
    for (size_t i = 0; i < TOW_BENCH_HOST_COUNT; i++)
        out_hosts->hosts[i].output_fd = -1;
    if (geteuid() != 0)
        return TOW_ERROR(TOW_PERMISSION_DENIED,
                         "hosts are made of namespaces, which needs root");
    tow_status_t status = open_hosts(out_hosts);
    if (status != TOW_OK) tow_bench_hosts_close(out_hosts);
    return tow_status_annotate(status, "making two hosts of namespaces");
}

void tow_bench_hosts_close(tow_bench_hosts_t *hosts)
{
    for (size_t i = 0; i < TOW_BENCH_HOST_COUNT; i++)
        tow_subprocess_kill(&hosts->hosts[i]);
}
