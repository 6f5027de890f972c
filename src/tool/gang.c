/* The parent's side of a gang. */
#include "tool/gang.h"

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
#include "base/vec.h"
#include "collective/host/host.h"
#include "tool/bench.h"
#include "tool/gang_impl.h"
#include "tool/process.h"

/* Loading XLA and a program: seconds, on a busy machine. */
#define PATIENCE_NS INT64_C(60000000000)
/* How long the others may take to say what they saw. After the end of a member:
 * collectives give up on a silent one after 2 s. After an error: it has aborted
 * the run, which those that wait see within milliseconds. */
#define GRACE_AFTER_END_NS   INT64_C(3000000000)
#define GRACE_AFTER_ERROR_NS INT64_C(500000000)

typedef struct member {
    tow_process_t process; /* killed by close */
    pid_t pid;             /* stays when it has ended */
    int socket;            /* owned; -1: none */
    bool has_answered;
    bool has_ended;
    int exit_status; /* once it has */
    gang_answer_t answer;
} member_t;

struct tow_gang {
    char arena[64]; /* "": none any more */
    int program_fd; /* owned */
    size_t program_size;
    double compile_ms;
    size_t result_count;
    size_t member_count;
    member_t members[];
};

/* -- Starting --------------------------------------------------------------- */

typedef struct words {
    char socket[24];
    char program[24];
    char member[24];
    char process_count[24];
    char device_count[24];
    char printed_max[24];
} words_t;

static tow_status_t start_member(tow_gang_t *gang, size_t index,
                                 const tow_gang_options_t *options,
                                 int member_socket)
{
    words_t words;
    snprintf(words.socket, sizeof(words.socket), "%d", member_socket);
    snprintf(words.program, sizeof(words.program), "%d", gang->program_fd);
    snprintf(words.member, sizeof(words.member), "%zu", index);
    snprintf(words.process_count, sizeof(words.process_count), "%zu",
             options->process_count);
    snprintf(words.device_count, sizeof(words.device_count), "%zu",
             options->device_count);
    snprintf(words.printed_max, sizeof(words.printed_max), "%zu",
             options->printed_elements_max);
    TOW_VEC(char *) argv = {0};
    bool has_room =
        tow_vec_reserve(&argv, GANG_WORD_INPUTS + options->input_count + 3);
    if (!has_room) return tow_status_bare(TOW_RESOURCE_EXHAUSTED);
    char *const fixed[] = {"tow",
                           "run",
                           "gang-member",
                           words.socket,
                           words.program,
                           gang->arena,
                           words.member,
                           words.process_count,
                           words.device_count,
                           words.printed_max};
    TOW_ASSERT(argv.items != NULL);
    memcpy(argv.items, fixed, sizeof(fixed));
    for (size_t i = 0; i < options->input_count; i++)
        argv.items[TOW_COUNT_OF(fixed) + i] = (char *)options->inputs[i];
    argv.items[TOW_COUNT_OF(fixed) + options->input_count] = NULL;
    tow_status_t status = tow_process_start_self(
        argv.items, NULL, TOW_OUTPUT_INHERIT, &gang->members[index].process);
    gang->members[index].pid = gang->members[index].process.pid;
    tow_vec_deinit(&argv);
    return status;
}

/* Only the member itself may have its end of the socket, or nobody would notice
 * when it is gone. */
static tow_status_t connect_member(tow_gang_t *gang, size_t index,
                                   const tow_gang_options_t *options)
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

static tow_status_t start_members(tow_gang_t *gang,
                                  const tow_gang_options_t *options)
{
    char name[sizeof(gang->arena)];
    snprintf(name, sizeof(name), "/tow-gang-%d-%llx", (int)getpid(),
             (unsigned long long)tow_bench_now_ns());
    TOW_RETURN_IF_ERROR(tow_host_arena_create(name));
    memcpy(gang->arena, name, sizeof(name));
    gang->program_fd = memfd_create("program", 0);
    if (gang->program_fd < 0)
        return TOW_ERRNO(errno, "making memory for the program");
    for (size_t i = 0; i < gang->member_count; i++)
        TOW_RETURN_IF_ERROR(connect_member(gang, i, options));
    return TOW_OK;
}

/* -- Answers ---------------------------------------------------------------- */

static tow_status_t tell(tow_gang_t *gang, size_t index,
                         const gang_command_t *command)
{
    member_t *member = &gang->members[index];
    member->has_answered = false;
    if (send(member->socket, command, sizeof(*command), MSG_NOSIGNAL) >= 0 ||
        errno == EPIPE) /* It is gone: the wait for its answer tells. */
        return TOW_OK;
    return TOW_ERRNO(errno, "telling member %zu", index);
}

static void take_end(member_t *member)
{
    while (waitpid(member->process.pid, &member->exit_status, 0) < 0 &&
           errno == EINTR) {
    }
    member->has_ended = true;
    member->process.pid = 0;
}

/* An answer, or the end of the member. To wait for an ended one at once matters:
 * as long as nobody has, the others see a process that exists. */
static void take_answer(member_t *member)
{
    ssize_t size;
    do
        size = recv(member->socket, &member->answer, sizeof(member->answer), 0);
    while (size < 0 && errno == EINTR);
    if (size != (ssize_t)sizeof(member->answer))
        take_end(member);
    else
        member->has_answered = true;
}

static bool is_awaited(const member_t *member)
{
    return !member->has_answered && !member->has_ended;
}

static bool has_failed(const member_t *member)
{
    return member->has_ended ||
           (member->has_answered && member->answer.code != TOW_CODE_OK);
}

/* What became of a member that did not do as it was told. */
static void describe(const tow_gang_t *gang, size_t index, FILE *out)
{
    const member_t *member = &gang->members[index];
    fprintf(out, "member %zu (process %d)", index, (int)member->pid);
    if (member->has_ended && WIFSIGNALED(member->exit_status))
        fprintf(out, " was ended by signal %d", WTERMSIG(member->exit_status));
    else if (member->has_ended)
        fprintf(out, " ended with status %d", WEXITSTATUS(member->exit_status));
    else if (member->has_answered)
        fprintf(out, ": %s", member->answer.text);
    else
        fprintf(out, " does not answer");
}

/* The first error that a member has told, then all that cannot tell. */
static tow_status_t verdict(const tow_gang_t *gang)
{
    char *text = NULL;
    size_t size = 0;
    FILE *out = open_memstream(&text, &size);
    if (out == NULL) return tow_status_bare(TOW_RESOURCE_EXHAUSTED);
    tow_code_t code = TOW_CODE_OK;
    for (size_t i = 0; i < gang->member_count && code == TOW_CODE_OK; i++) {
        if (!gang->members[i].has_answered || !has_failed(&gang->members[i]))
            continue;
        code = (tow_code_t)gang->members[i].answer.code;
        describe(gang, i, out);
    }
    for (size_t i = 0; i < gang->member_count; i++) {
        if (gang->members[i].has_answered) continue;
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

/* Looks once. Returns the next deadline, or 0 when it has passed. */
static int64_t collect_some(tow_gang_t *gang, int64_t deadline_ns)
{
    struct pollfd waited[TOW_GANG_PROCESS_COUNT_MAX];
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
        take_answer(member);
        if (!has_failed(member)) continue;
        const int64_t end_ns =
            tow_bench_now_ns() +
            (member->has_ended ? GRACE_AFTER_END_NS : GRACE_AFTER_ERROR_NS);
        if (end_ns < deadline_ns) deadline_ns = end_ns;
    }
    return deadline_ns;
}

/* Until all have answered, or one has failed and the others had their say. */
static tow_status_t collect(tow_gang_t *gang, int64_t patience_ns)
{
    int64_t deadline_ns = patience_ns == TOW_TIME_NEVER
                              ? TOW_TIME_NEVER
                              : tow_bench_now_ns() + patience_ns;
    for (;;) {
        size_t awaited_count = 0, failed_count = 0;
        for (size_t i = 0; i < gang->member_count; i++) {
            awaited_count += is_awaited(&gang->members[i]);
            failed_count += has_failed(&gang->members[i]);
        }
        if (awaited_count == 0 && failed_count == 0) return TOW_OK;
        if (awaited_count == 0 || deadline_ns == 0) return verdict(gang);
        deadline_ns = collect_some(gang, deadline_ns);
    }
}

static tow_status_t tell_all(tow_gang_t *gang, const gang_command_t *command,
                             int64_t patience_ns)
{
    for (size_t i = 0; i < gang->member_count; i++)
        TOW_RETURN_IF_ERROR(tell(gang, i, command));
    return collect(gang, patience_ns);
}

/* -- The program ------------------------------------------------------------ */

static tow_status_t share(void *context, const void *bytes, size_t size)
{
    tow_gang_t *gang = context;
    for (size_t at = 0; at < size;) {
        ssize_t written =
            write(gang->program_fd, (const char *)bytes + at, size - at);
        if (written < 0)
            return TOW_ERRNO(errno, "sharing a program of %zu bytes", size);
        at += (size_t)written;
    }
    gang->program_size = size;
    return TOW_OK;
}

static tow_status_t compile(tow_gang_t *gang, const tow_gang_options_t *options)
{
    const int64_t start_ns = tow_bench_now_ns();
    TOW_RETURN_IF_ERROR(gang_compile(options, share, gang));
    gang->compile_ms = (double)(tow_bench_now_ns() - start_ns) * 1e-6;
    return TOW_OK;
}

/* -- Life ------------------------------------------------------------------- */

static tow_status_t check_size(const tow_gang_options_t *options)
{
    const size_t processes = options->process_count;
    if (processes == 0 || processes > TOW_GANG_PROCESS_COUNT_MAX ||
        options->device_count == 0 ||
        options->device_count > TOW_GANG_DEVICE_COUNT_MAX / processes)
        return TOW_ERROR(TOW_INVALID_ARGUMENT,
                         "%zu processes with %zu devices each: a gang has at "
                         "most %d processes and %d devices",
                         processes, options->device_count,
                         TOW_GANG_PROCESS_COUNT_MAX, TOW_GANG_DEVICE_COUNT_MAX);
    return TOW_OK;
}

/* The members load XLA while we compile. */
static tow_status_t set_up(tow_gang_t *gang, const tow_gang_options_t *options)
{
    TOW_RETURN_IF_ERROR(start_members(gang, options));
    TOW_RETURN_IF_ERROR(compile(gang, options));
    TOW_RETURN_IF_ERROR(collect(gang, PATIENCE_NS));
    tow_host_arena_remove(gang->arena);
    gang->arena[0] = '\0';
    gang_command_t load = {.kind = GANG_LOAD,
                           .program_size = gang->program_size};
    TOW_RETURN_IF_ERROR(tell_all(gang, &load, PATIENCE_NS));
    gang->result_count = gang->members[0].answer.result_count;
    return TOW_OK;
}

tow_status_t tow_gang_open(const tow_gang_options_t *options,
                           tow_gang_t **out_gang)
{
    *out_gang = NULL;
    TOW_RETURN_IF_ERROR(check_size(options));
    tow_gang_t *gang = tow_calloc(
        1, sizeof(*gang) + options->process_count * sizeof(gang->members[0]));
    if (gang == NULL) return tow_status_bare(TOW_RESOURCE_EXHAUSTED);
    gang->program_fd = -1;
    gang->member_count = options->process_count;
    for (size_t i = 0; i < gang->member_count; i++)
        gang->members[i] =
            (member_t){.socket = -1, .process = {.output_fd = -1}};
    tow_status_t status = set_up(gang, options);
    if (status != TOW_OK) {
        tow_gang_close(gang);
        return status;
    }
    *out_gang = gang;
    return TOW_OK;
}

void tow_gang_close(tow_gang_t *gang)
{
    if (gang == NULL) return;
    for (size_t i = 0; i < gang->member_count; i++) {
        if (gang->members[i].socket >= 0) close(gang->members[i].socket);
        tow_process_kill(&gang->members[i].process);
    }
    if (gang->program_fd >= 0) close(gang->program_fd);
    if (gang->arena[0] != '\0') tow_host_arena_remove(gang->arena);
    tow_free(gang);
}

double tow_gang_compile_ms(const tow_gang_t *gang)
{
    return gang->compile_ms;
}

pid_t tow_gang_pid(const tow_gang_t *gang, size_t member)
{
    return gang->members[member].pid;
}

/* Process 0 of XLA is whoever compiles. */
int64_t tow_gang_device_id(size_t member, size_t device)
{
    return TOW_XLA_PROCESS_STRIDE * (int64_t)(member + 1) + (int64_t)device;
}

size_t tow_gang_result_count(const tow_gang_t *gang)
{
    return gang->result_count;
}

/* -- Running ---------------------------------------------------------------- */

static double larger(double a, double b)
{
    return a > b ? a : b;
}

tow_status_t tow_gang_run(tow_gang_t *gang, const tow_gang_run_t *run,
                          tow_gang_timing_t *out_timing)
{
    TOW_ASSERT(run->ahead > 0 && run->ahead <= TOW_GANG_AHEAD_MAX);
    gang_command_t command = {.kind = GANG_RUN, .run = *run};
    TOW_RETURN_IF_ERROR(tell_all(gang, &command, TOW_TIME_NEVER));
    int64_t start_ns = INT64_MAX, end_ns = 0;
    *out_timing = (tow_gang_timing_t){0};
    for (size_t i = 0; i < gang->member_count; i++) {
        const gang_answer_t *answer = &gang->members[i].answer;
        if (answer->start_ns < start_ns) start_ns = answer->start_ns;
        if (answer->end_ns > end_ns) end_ns = answer->end_ns;
        out_timing->first_us = larger(out_timing->first_us, answer->first_us);
        out_timing->median_us =
            larger(out_timing->median_us, answer->median_us);
    }
    out_timing->seconds = (double)(end_ns - start_ns) * 1e-9;
    return TOW_OK;
}

tow_status_t tow_gang_result(tow_gang_t *gang, const tow_gang_result_t *which,
                             char text[TOW_GANG_TEXT_MAX])
{
    TOW_ASSERT(which->member < gang->member_count);
    gang_command_t command = {.kind = GANG_RESULT, .result = *which};
    TOW_RETURN_IF_ERROR(tell(gang, which->member, &command));
    TOW_RETURN_IF_ERROR(collect(gang, PATIENCE_NS));
    memcpy(text, gang->members[which->member].answer.text, TOW_GANG_TEXT_MAX);
    return TOW_OK;
}
