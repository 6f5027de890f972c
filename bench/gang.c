#include "bench/gang.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/assert.h"
#include "bench/gang_impl.h"
#include "bench/harness.h"
#include "collective/intra_host/intra_host.h"
#include "supervisor/subprocess.h"

/* Loading XLA and a program takes seconds on a busy machine. */
#define LOAD_TIMEOUT_NS INT64_C(60000000000)
/* How long the other members may take to reply after one has failed. After an
 * exit: collectives time out on a silent member after 2 s. After an error: the
 * member has aborted the run, which the others see within milliseconds. */
#define GRACE_AFTER_EXIT_NS  INT64_C(3000000000)
#define GRACE_AFTER_ERROR_NS INT64_C(500000000)

typedef struct member {
    tow_subprocess_t process; /* killed by close */
    pid_t pid;                /* kept after its exit */
    int socket;               /* owned; -1: none */
    bool has_replied;
    bool has_exited;
    int exit_status; /* valid after the exit */
    gang_reply_t reply;
} member_t;

struct tow_bench_gang {
    char arena[64]; /* "": removed */
    int program_fd; /* owned */
    size_t program_size;
    size_t member_count;
    member_t members[];
};

/* -- Starting --------------------------------------------------------------- */

static tow_status_t start_member(tow_bench_gang_t *gang, size_t index,
                                 const tow_bench_gang_options_t *options,
                                 int member_socket)
{
    char socket[24], program[24], member[24], processes[24], devices[24];
    snprintf(socket, sizeof(socket), "%d", member_socket);
    snprintf(program, sizeof(program), "%d", gang->program_fd);
    snprintf(member, sizeof(member), "%zu", index);
    snprintf(processes, sizeof(processes), "%zu", options->process_count);
    snprintf(devices, sizeof(devices), "%zu", options->device_count);
    char *const argv[] = {"tow",       "bench", "gang-member", socket,  program,
                          gang->arena, member,  processes,     devices, NULL};
    static_assert(sizeof(argv) / sizeof(argv[0]) == 2 + GANG_ARGUMENT_COUNT + 1,
                  "one argument per GANG_ARGUMENT");
    tow_status_t status = tow_subprocess_start_self(
        argv, NULL, TOW_SUBPROCESS_INHERIT, &gang->members[index].process);
    gang->members[index].pid = gang->members[index].process.pid;
    return status;
}

/* Only the member holds its end of the socket, so the parent reads end of file
 * when the member dies. */
static tow_status_t connect_member(tow_bench_gang_t *gang, size_t index,
                                   const tow_bench_gang_options_t *options)
{
    int ends[2];
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0)
        return TOW_ERRNO(errno, "making a socket for member %zu", index);
    gang->members[index].socket = ends[0];
    fcntl(ends[1], F_SETFD, 0);
    tow_status_t status = start_member(gang, index, options, ends[1]);
    close(ends[1]);
    return status;
}

static tow_status_t start_members(tow_bench_gang_t *gang,
                                  const tow_bench_gang_options_t *options)
{
    char name[sizeof(gang->arena)];
    snprintf(name, sizeof(name), "/tow-gang-%d-%llx", (int)getpid(),
             (unsigned long long)tow_bench_now_ns());
    TOW_RETURN_IF_ERROR(tow_intra_host_arena_create(name));
    memcpy(gang->arena, name, sizeof(name));
    gang->program_fd = memfd_create("program", 0);
    if (gang->program_fd < 0)
        return TOW_ERRNO(errno, "making memory for the program");
    for (size_t i = 0; i < gang->member_count; i++)
        TOW_RETURN_IF_ERROR(connect_member(gang, i, options));
    return TOW_OK;
}

/* -- Commands and replies ---------------------------------------------------- */

static tow_status_t send_command(tow_bench_gang_t *gang, size_t index,
                                 const gang_command_t *command)
{
    member_t *member = &gang->members[index];
    member->has_replied = false;
    if (send(member->socket, command, sizeof(*command), MSG_NOSIGNAL) >= 0 ||
        errno == EPIPE) /* It has died: waiting for its reply reports that. */
        return TOW_OK;
    return TOW_ERRNO(errno, "sending a command to member %zu", index);
}

static void wait_for_exit(member_t *member)
{
    while (waitpid(member->process.pid, &member->exit_status, 0) < 0 &&
           errno == EINTR) {
    }
    member->has_exited = true;
    member->process.pid = 0;
}

/* Receives a reply or the end of the member. A dead member must be waited for at
 * once: until then its process still exists for the other members. */
static void receive_reply(member_t *member)
{
    ssize_t size;
    do
        size = recv(member->socket, &member->reply, sizeof(member->reply), 0);
    while (size < 0 && errno == EINTR);
    if (size != (ssize_t)sizeof(member->reply))
        wait_for_exit(member);
    else
        member->has_replied = true;
}

static bool is_awaited(const member_t *member)
{
    return !member->has_replied && !member->has_exited;
}

static bool has_failed(const member_t *member)
{
    return member->has_exited ||
           (member->has_replied && member->reply.code != TOW_CODE_OK);
}

/* Called while replies are collected. */
static void check(const tow_bench_gang_t *gang)
{
    TOW_ASSERT(gang->member_count > 0 &&
               gang->member_count <= TOW_BENCH_GANG_PROCESS_COUNT_MAX);
    for (size_t i = 0; i < gang->member_count; i++) {
        const member_t *member = &gang->members[i];
        TOW_ASSERT(member->has_exited == (member->process.pid == 0));
        TOW_ASSERT(member->socket >= 0);
    }
}

/* Why a member failed. */
static void describe(const tow_bench_gang_t *gang, size_t index, FILE *out)
{
    const member_t *member = &gang->members[index];
    fprintf(out, "member %zu (process %d)", index, (int)member->pid);
    if (member->has_exited && WIFSIGNALED(member->exit_status))
        fprintf(out, " was killed by signal %d", WTERMSIG(member->exit_status));
    else if (member->has_exited)
        fprintf(out, " exited with status %d",
                WEXITSTATUS(member->exit_status));
    else if (member->has_replied)
        fprintf(out, ": %s", member->reply.text);
    else
        fprintf(out, " does not reply");
}

/* The first error that a member replied, then all members without a reply. */
static tow_status_t failure_of(const tow_bench_gang_t *gang)
{
    char *text = NULL;
    size_t size = 0;
    FILE *out = open_memstream(&text, &size);
    if (out == NULL) return tow_status_bare(TOW_RESOURCE_EXHAUSTED);
    tow_code_t code = TOW_CODE_OK;
    for (size_t i = 0; i < gang->member_count && code == TOW_CODE_OK; i++) {
        if (!gang->members[i].has_replied || !has_failed(&gang->members[i]))
            continue;
        code = (tow_code_t)gang->members[i].reply.code;
        describe(gang, i, out);
    }
    for (size_t i = 0; i < gang->member_count; i++) {
        if (gang->members[i].has_replied) continue;
        fflush(out);
        if (size > 0) fputs("; ", out);
        describe(gang, i, out);
    }
    fclose(out);
    tow_status_t status =
        TOW_ERROR(code != TOW_CODE_OK ? code : TOW_UNAVAILABLE, "%s", text);
    free(text);
    return status;
}

/* Polls once. Returns the next deadline, or 0 when it has passed. */
static int64_t collect_some(tow_bench_gang_t *gang, int64_t deadline_ns)
{
    struct pollfd waited[TOW_BENCH_GANG_PROCESS_COUNT_MAX];
    for (size_t i = 0; i < gang->member_count; i++)
        waited[i] = (struct pollfd){
            .fd = is_awaited(&gang->members[i]) ? gang->members[i].socket : -1,
            .events = POLLIN};
    int64_t left_ms = -1;
    if (deadline_ns != TOW_TIME_NEVER) {
        left_ms = (deadline_ns - tow_bench_now_ns()) / 1000000;
        if (left_ms <= 0) return 0;
    }
    if (poll(waited, gang->member_count, (int)left_ms) <= 0) return deadline_ns;
    for (size_t i = 0; i < gang->member_count; i++) {
        member_t *member = &gang->members[i];
        if (waited[i].revents == 0) continue;
        receive_reply(member);
        if (!has_failed(member)) continue;
        const int64_t end_ns =
            tow_bench_now_ns() +
            (member->has_exited ? GRACE_AFTER_EXIT_NS : GRACE_AFTER_ERROR_NS);
        if (end_ns < deadline_ns) deadline_ns = end_ns;
    }
    return deadline_ns;
}

/* Waits until all have replied, or one has failed and the grace time is over. */
static tow_status_t collect(tow_bench_gang_t *gang, int64_t timeout_ns)
{
    int64_t deadline_ns = timeout_ns == TOW_TIME_NEVER
                              ? TOW_TIME_NEVER
                              : tow_bench_now_ns() + timeout_ns;
    for (;;) {
        size_t awaited_count = 0, failed_count = 0;
        for (size_t i = 0; i < gang->member_count; i++) {
            awaited_count += is_awaited(&gang->members[i]);
            failed_count += has_failed(&gang->members[i]);
        }
        check(gang);
        if (awaited_count == 0 && failed_count == 0) return TOW_OK;
        if (awaited_count == 0 || deadline_ns == 0) return failure_of(gang);
        deadline_ns = collect_some(gang, deadline_ns);
    }
}

static tow_status_t send_to_all(tow_bench_gang_t *gang,
                                const gang_command_t *command,
                                int64_t timeout_ns)
{
    for (size_t i = 0; i < gang->member_count; i++)
        TOW_RETURN_IF_ERROR(send_command(gang, i, command));
    return collect(gang, timeout_ns);
}

/* -- The program ------------------------------------------------------------ */

static tow_status_t store_program(void *context, const void *bytes, size_t size)
{
    tow_bench_gang_t *gang = context;
    for (size_t at = 0; at < size;) {
        ssize_t written =
            write(gang->program_fd, (const char *)bytes + at, size - at);
        if (written < 0)
            return TOW_ERRNO(errno, "writing a program of %zu bytes", size);
        at += (size_t)written;
    }
    gang->program_size = size;
    return TOW_OK;
}

/* -- Opening and closing ------------------------------------------------------ */

static tow_status_t check_size(const tow_bench_gang_options_t *options)
{
    const size_t processes = options->process_count;
    if (processes == 0 || processes > TOW_BENCH_GANG_PROCESS_COUNT_MAX ||
        options->device_count == 0 ||
        options->device_count > TOW_BENCH_GANG_DEVICE_COUNT_MAX / processes)
        return TOW_ERROR(TOW_INVALID_ARGUMENT,
                         "%zu processes with %zu devices each: the limit is %d "
                         "processes and %d devices",
                         processes, options->device_count,
                         TOW_BENCH_GANG_PROCESS_COUNT_MAX,
                         TOW_BENCH_GANG_DEVICE_COUNT_MAX);
    return TOW_OK;
}

/* The members load XLA while the compiler runs. */
static tow_status_t set_up(tow_bench_gang_t *gang,
                           const tow_bench_gang_options_t *options)
{
    TOW_RETURN_IF_ERROR(start_members(gang, options));
    TOW_RETURN_IF_ERROR(gang_compile(options, store_program, gang));
    TOW_RETURN_IF_ERROR(collect(gang, LOAD_TIMEOUT_NS));
    tow_intra_host_arena_remove(gang->arena);
    gang->arena[0] = '\0';
    gang_command_t load = {.kind = GANG_LOAD,
                           .program_size = gang->program_size};
    return send_to_all(gang, &load, LOAD_TIMEOUT_NS);
}

tow_status_t tow_bench_gang_open(const tow_bench_gang_options_t *options,
                                 tow_bench_gang_t **out_gang)
{
    *out_gang = NULL;
    TOW_RETURN_IF_ERROR(check_size(options));
    tow_bench_gang_t *gang = tow_calloc(
        1, sizeof(*gang) + options->process_count * sizeof(gang->members[0]));
    if (gang == NULL) return tow_status_bare(TOW_RESOURCE_EXHAUSTED);
    gang->program_fd = -1;
    gang->member_count = options->process_count;
    for (size_t i = 0; i < gang->member_count; i++)
        gang->members[i] =
            (member_t){.socket = -1, .process = {.output_fd = -1}};
    tow_status_t status = set_up(gang, options);
    if (status != TOW_OK) {
        tow_bench_gang_close(gang);
        return status;
    }
    *out_gang = gang;
    return TOW_OK;
}

void tow_bench_gang_close(tow_bench_gang_t *gang)
{
    if (gang == NULL) return;
    for (size_t i = 0; i < gang->member_count; i++) {
        if (gang->members[i].socket >= 0) close(gang->members[i].socket);
        tow_subprocess_kill(&gang->members[i].process);
    }
    if (gang->program_fd >= 0) close(gang->program_fd);
    if (gang->arena[0] != '\0') tow_intra_host_arena_remove(gang->arena);
    tow_free(gang);
}

/* Number 0 belongs to the compiler's process. */
int64_t gang_device_id(size_t member, size_t device)
{
    return TOW_XLA_PROCESS_STRIDE * (int64_t)(member + 1) + (int64_t)device;
}

/* -- Running ---------------------------------------------------------------- */

tow_status_t tow_bench_gang_run(tow_bench_gang_t *gang,
                                const tow_bench_gang_run_t *run,
                                double *out_seconds)
{
    TOW_ASSERT(run->in_flight > 0 &&
               run->in_flight <= TOW_BENCH_GANG_IN_FLIGHT_MAX);
    gang_command_t command = {.kind = GANG_RUN, .run = *run};
    TOW_RETURN_IF_ERROR(send_to_all(gang, &command, TOW_TIME_NEVER));
    int64_t start_ns = INT64_MAX, end_ns = 0;
    for (size_t i = 0; i < gang->member_count; i++) {
        const gang_reply_t *reply = &gang->members[i].reply;
        if (reply->start_ns < start_ns) start_ns = reply->start_ns;
        if (reply->end_ns > end_ns) end_ns = reply->end_ns;
    }
    *out_seconds = (double)(end_ns - start_ns) * 1e-9;
    return TOW_OK;
}

tow_status_t tow_bench_gang_value(tow_bench_gang_t *gang, size_t member,
                                  size_t device, float *out_value)
{
    TOW_ASSERT(member < gang->member_count);
    gang_command_t command = {.kind = GANG_VALUE, .device = device};
    TOW_RETURN_IF_ERROR(send_command(gang, member, &command));
    TOW_RETURN_IF_ERROR(collect(gang, LOAD_TIMEOUT_NS));
    *out_value = gang->members[member].reply.value;
    return TOW_OK;
}
