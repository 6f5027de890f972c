#include "gang.h"

#include <errno.h>
#include <pthread.h>
#include <semaphore.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

extern char **environ;

/* Ends a process that hangs, even on a busy machine. */
#define TIMEOUT_S 200

/* Longer than the default, for machines where a process waits seconds for a
 * core. */
#define HEARTBEAT_TIMEOUT_NS 5000000000

#define PROGRAM_BYTES_MAX ((size_t)1 << 20)

typedef struct shared_program {
    size_t member_count;
    size_t size;
    char bytes[PROGRAM_BYTES_MAX];
} shared_program_t;

struct shared {
    char arena[64];
    pthread_barrier_t meeting;
    /* Posted at each collective that the process begins. No lock: it may be
     * killed anywhere. */
    sem_t inside[PROCESS_COUNT];
    sem_t mark;
    size_t program_count;
    shared_program_t programs[PROGRAM_COUNT_MAX];
};

static shared_t *map_shared(int file)
{
    void *memory = mmap(NULL, sizeof(shared_t), PROT_READ | PROT_WRITE,
                        MAP_SHARED, file, 0);
    assert_ptr_not_equal(memory, MAP_FAILED);
    return memory;
}

/* False after a timeout: the process that should post has ended. */
static bool try_await_posts(sem_t *semaphore, size_t count)
{
    struct timespec end;
    clock_gettime(CLOCK_REALTIME, &end);
    end.tv_sec += TIMEOUT_S;
    for (size_t i = 0; i < count; i++)
        while (sem_timedwait(semaphore, &end) != 0)
            if (errno != EINTR) return false;
    return true;
}

static void await_posts(sem_t *semaphore, size_t count)
{
    assert_true(try_await_posts(semaphore, count));
}

/* -- In the parent --------------------------------------------------------- */

void gang_open(gang_t *gang)
{
    static int serial;
    *gang = (gang_t){.file = memfd_create("gang", 0)};
    assert_true(gang->file >= 0);
    assert_int_equal(ftruncate(gang->file, sizeof(shared_t)), 0);
    gang->shared = map_shared(gang->file);
    snprintf(gang->shared->arena, sizeof(gang->shared->arena),
             "/tow-gang-%d-%d", (int)getpid(), serial++);
    assert_null(tow_intra_host_arena_create(gang->shared->arena));
    pthread_barrierattr_t attributes;
    pthread_barrierattr_init(&attributes);
    pthread_barrierattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED);
    pthread_barrier_init(&gang->shared->meeting, &attributes, PROCESS_COUNT);
    for (size_t i = 0; i < PROCESS_COUNT; i++)
        assert_int_equal(sem_init(&gang->shared->inside[i], 1, 0), 0);
    assert_int_equal(sem_init(&gang->shared->mark, 1, 0), 0);
}

static void store_bytes(shared_program_t *program,
                        PJRT_LoadedExecutable *compiled)
{
    PJRT_Executable *executable = executable_of(compiled);
    PJRT_Executable_Serialize_Args args = {.struct_size = sizeof(args),
                                           .executable = executable};
    expect_ok(api->PJRT_Executable_Serialize(&args));
    assert_true(args.serialized_bytes_size <= PROGRAM_BYTES_MAX);
    program->size = args.serialized_bytes_size;
    memcpy(program->bytes, args.serialized_bytes, program->size);
    args.serialized_executable_deleter(args.serialized_executable);
    executable_close(executable);
}

void gang_add_program(gang_t *gang, const char *text, size_t member_count)
{
    shared_t *shared = gang->shared;
    assert_true(shared->program_count < PROGRAM_COUNT_MAX);
    shared_program_t *program = &shared->programs[shared->program_count++];
    program->member_count = member_count;
    const int64_t nowhere[MEMBER_COUNT] = {2048, 4096, 6144, 8192};
    bytes_t options = options_pack(member_count, 1, nowhere);
    PJRT_Client *compiler = client_open((client_options_t){.process_id = 99});
    PJRT_LoadedExecutable *compiled = compile(compiler, text, &options);
    store_bytes(program, compiled);
    unload(compiled);
    client_close(compiler);
}

void gang_start(gang_t *gang, const char *part)
{
    char file[16];
    snprintf(file, sizeof(file), "%d", gang->file);
    for (size_t i = 0; i < PROCESS_COUNT; i++) {
        char index[16];
        snprintf(index, sizeof(index), "%zu", i);
        char *arguments[] = {
            (char *)"gang", (char *)"--part", (char *)part, index, file, NULL};
        assert_int_equal(posix_spawn(&gang->processes[i], "/proc/self/exe",
                                     NULL, NULL, arguments, environ),
                         0);
    }
}

void gang_await_inside(gang_t *gang, size_t process, size_t count)
{
    await_posts(&gang->shared->inside[process], count);
}

bool gang_try_await_mark(gang_t *gang)
{
    return try_await_posts(&gang->shared->mark, 1);
}

void gang_finish_process(gang_t *gang, size_t process)
{
    int status = 0;
    pid_t pid = gang->processes[process];
    gang->processes[process] = 0;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    if (status == 0) return;
    tow_intra_host_arena_remove(
        gang->shared->arena); /* The arena would stay behind. */
    fail_msg("process %zu ended with status %d", process, status);
}

void gang_close(gang_t *gang)
{
    for (size_t i = 0; i < PROCESS_COUNT; i++)
        if (gang->processes[i] != 0) gang_finish_process(gang, i);
    tow_intra_host_arena_remove(gang->shared->arena);
    munmap(gang->shared, sizeof(*gang->shared));
    close(gang->file);
}

/* -- In its processes ------------------------------------------------------ */

static int64_t process_id_of(size_t index)
{
    return 11 + 2 * (int64_t)index;
}

int64_t device_id_of(size_t process, size_t device)
{
    return process_id_of(process) * TOW_XLA_PROCESS_STRIDE + (int64_t)device;
}

size_t rank_of(const process_t *process, size_t device)
{
    return device * PROCESS_COUNT + process->index;
}

size_t program_count(const process_t *process)
{
    return process->shared->program_count;
}

PJRT_LoadedExecutable *load(process_t *process, size_t index)
{
    const shared_program_t *program = &process->shared->programs[index];
    int64_t devices[MEMBER_COUNT];
    for (size_t i = 0; i < program->member_count; i++)
        devices[i] = program->member_count == MEMBER_COUNT
                         ? device_id_of(i % PROCESS_COUNT, i / PROCESS_COUNT)
                         : device_id_of(process->index, i);
    bytes_t options = options_pack(program->member_count, 1, devices);
    PJRT_Executable_DeserializeAndLoad_Args args = {
        .struct_size = sizeof(args),
        .client = process->client,
        .serialized_executable = program->bytes,
        .serialized_executable_size = program->size,
        .overridden_serialized_compile_options = options.data,
        .overridden_serialized_compile_options_size = options.size,
    };
    expect_ok(api->PJRT_Executable_DeserializeAndLoad(&args));
    return args.loaded_executable;
}

void meet(process_t *process)
{
    int result = pthread_barrier_wait(&process->shared->meeting);
    assert_true(result == 0 || result == PTHREAD_BARRIER_SERIAL_THREAD);
}

void set_mark(process_t *process)
{
    sem_post(&process->shared->mark);
}

void await_inside(process_t *process, size_t of_process, size_t count)
{
    await_posts(&process->shared->inside[of_process], count);
}

call_t start(process_t *process, PJRT_LoadedExecutable *executable,
             uint64_t run_id)
{
    return start_with(process, executable, run_id, 0);
}

call_t start_with(process_t *process, PJRT_LoadedExecutable *executable,
                  uint64_t run_id, uint32_t flags)
{
    call_t call = {.executable = executable,
                   .run_id = run_id,
                   .flags = flags,
                   .device_count = DEVICES_EACH,
                   .argument_count = 1};
    for (size_t i = 0; i < DEVICES_EACH; i++) {
        float values[4];
        for (size_t k = 0; k < 4; k++)
            values[k] = (float)(rank_of(process, i) + 1 + 10 * k);
        call.arguments[i][0] =
            upload(process->client, device_at(process->client, i), values, 4);
    }
    expect_ok(try_execute(&call));
    for (size_t i = 0; i < DEVICES_EACH; i++)
        destroy(call.arguments[i][0]);
    return call;
}

void finish(call_t *call, float a, float b, float c, float d)
{
    for (size_t i = 0; i < DEVICES_EACH; i++) {
        await(call->done[i]);
        expect_values(call->outputs[i][0], a, b, c, d);
        destroy(call->outputs[i][0]);
    }
}

void finish_failed(call_t *call, size_t output_count, PJRT_Error_Code code,
                   const char *words)
{
    for (size_t i = 0; i < DEVICES_EACH; i++) {
        expect_error(try_await(call->done[i]), code, words);
        for (size_t k = 0; k < output_count; k++) {
            expect_error(try_await(ready_event_of(call->outputs[i][k])), code,
                         words);
            destroy(call->outputs[i][k]);
        }
    }
}

/* -- Starting a process ---------------------------------------------------- */

static int run_collective(void *context, const tow_xla_collective_t *collective,
                          char *error, size_t capacity)
{
    process_t *process = context;
    if (collective->fiber_ops != NULL) {
        atomic_fetch_add(&process->fiber_count, 1);
        if (pthread_equal(pthread_self(), process->main_thread))
            atomic_fetch_add(&process->inline_count, 1);
    }
    sem_post(&process->shared->inside[process->index]);
    return tow_intra_host_collective(process->host, collective, error,
                                     capacity);
}

static void open_process(process_t *process)
{
    int64_t ids[DEVICES_EACH];
    for (size_t i = 0; i < DEVICES_EACH; i++)
        ids[i] = device_id_of(process->index, i);
    tow_intra_host_options_t options = {.arena = process->shared->arena,
                                        .device_ids = ids,
                                        .device_count = DEVICES_EACH,
                                        .heartbeat_timeout_ns =
                                            HEARTBEAT_TIMEOUT_NS};
    tow_status_t status = tow_intra_host_open(&options, &process->host);
    assert_string_equal(tow_status_message(status), "");
    process->table = (tow_xla_collectives_t){
        .struct_size = sizeof(process->table),
        .context = process,
        .run = run_collective,
        .supports_fibers = 1,
    };
    process->client = client_open((client_options_t){
        .process_id = process_id_of(process->index),
        .device_count = DEVICES_EACH,
        .collectives = &process->table,
    });
}

/* A failed assertion outside a cmocka test ends the process, as it should. */
static int run_part(char **arguments, const part_t *parts, size_t part_count)
{
    process_t process = {
        .index = (size_t)atoi(arguments[3]),
        .shared = map_shared(atoi(arguments[4])),
        .main_thread = pthread_self(),
    };
    alarm(TIMEOUT_S);
    if (!harness_load()) return 1;
    open_process(&process);
    meet(&process);
    for (size_t i = 0; i < part_count; i++)
        if (strcmp(parts[i].name, arguments[2]) == 0) parts[i].run(&process);
    client_close(process.client);
    tow_intra_host_close(process.host);
    return 0;
}

int gang_main(int argc, char **argv, const part_t *parts, size_t part_count,
              const struct CMUnitTest *tests, size_t test_count)
{
    if (argc == 5 && strcmp(argv[1], "--part") == 0)
        return run_part(argv, parts, part_count);
    return tow_test_main(argc, argv, tests, test_count);
}
