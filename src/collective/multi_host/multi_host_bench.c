/* All-reduce between two processes on two hosts (two arenas), through the
 * blocking layer: median of rounds, over shared memory and over TCP on
 * loopback.
 *
 *     multi_host_bench [shm|tcp]     default: both */
#include <spawn.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h> /* tow-allow: a benchmark */

#include "collective/multi_host/fixture_testing_impl.h"
#include "device/device.h"

extern char **environ;

#define LARGE_BYTES ((size_t)64 << 20)

typedef struct plan {
    size_t bytes;
    int step_count; /* of one round */
    int round_count;
} plan_t;

static const plan_t plans[] = {
    {8, 2000, 7},     {4096, 1000, 7},     {65536, 300, 7},
    {1 << 20, 60, 7}, {LARGE_BYTES, 3, 5},
};

static double now_s(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now); /* tow-allow: a benchmark */
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

/* Of all threads of this process: independent of the load of the machine. */
static double cpu_s(void)
{
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    return (double)(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
           (double)(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) * 1e-6;
}

static void all_reduce(test_process_t *process, size_t rank, size_t bytes,
                       uint64_t occurrence, float *values)
{
    static const int64_t ids[] = {0, TOW_XLA_PROCESS_STRIDE};
    const void *send = values;
    void *receive = values;
    char error[300] = "";
    const tow_xla_collective_t collective = {
        .struct_size = sizeof(collective),
        .kind = TOW_XLA_ALL_REDUCE,
        .run_id = 1,
        .op_id = bytes,
        .occurrence = occurrence,
        .members = ids,
        .member_count = 2,
        .rank = rank,
        .element_type = TOW_TYPE_F32,
        .reduction = TOW_XLA_MAX,
        .element_count = bytes / 4,
        .element_bytes = 4,
        .send = &send,
        .receive = &receive,
    };
    if (tow_multi_host_collective(process->span, &collective, error,
                                  sizeof(error)) == 0)
        return;
    fprintf(stderr, "rank %zu: %s\n", rank, error);
    exit(1);
}

static int compare(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void run_plan(test_process_t *process, size_t rank, const plan_t *plan,
                     float *values, const char *transport)
{
    double times[16], cpu_start = 0;
    uint64_t occurrence = 0;
    for (int round = -1; round < plan->round_count; round++) {
        if (round == 0) cpu_start = cpu_s();
        const double start = now_s();
        for (int i = 0; i < plan->step_count; i++)
            all_reduce(process, rank, plan->bytes, occurrence++, values);
        if (round >= 0) times[round] = (now_s() - start) / plan->step_count;
    }
    if (rank != 0) return;
    qsort(times, (size_t)plan->round_count, sizeof(times[0]), compare);
    const double median = times[plan->round_count / 2];
    const double cpu =
        (cpu_s() - cpu_start) / (plan->step_count * plan->round_count);
    printf("%-4s %9zu bytes  %10.1f us [%.1f-%.1f]  %6.2f GB/s  %10.1f us of "
           "cpu\n",
           transport, plan->bytes, median * 1e6, times[0] * 1e6,
           times[plan->round_count - 1] * 1e6,
           (double)plan->bytes / median * 1e-9, cpu * 1e6);
    fflush(stdout);
}

static int member_main(size_t rank, const char *arena, int in, int out,
                       const char *transport)
{
    test_process_t process;
    float *values = calloc(1, LARGE_BYTES);
    memset(values, 1, LARGE_BYTES);
    test_process_open(&process,
                      &(test_process_options_t){.arena = arena,
                                                .process_id = (uint32_t)rank,
                                                .device_count = 1,
                                                .host_id = rank});
    test_send_card(out, &process);
    test_add_card(in, &process);
    test_process_run(&process);
    for (size_t i = 0; i < TOW_COUNT_OF(plans); i++)
        run_plan(&process, rank, &plans[i], values, transport);
    test_process_close(&process);
    free(values);
    return 0;
}

static void bench(const char *transport)
{
    char arenas[2][64];
    int down[2], up[2];
    if (strcmp(transport, "tcp") == 0)
        test_use_tcp();
    else
        test_use_shm();
    for (int i = 0; i < 2; i++) {
        test_arena_name(arenas[i], sizeof(arenas[i]), i);
        test_must(tow_intra_host_arena_create(arenas[i]));
    }
    if (pipe(down) != 0 || pipe(up) != 0) abort();
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, down[0], STDIN_FILENO);
    posix_spawn_file_actions_adddup2(&actions, up[1], STDOUT_FILENO);
    char *argv[] = {(char *)"multi_host_bench", (char *)"--child", arenas[1],
                    NULL};
    pid_t pid;
    int error;
    error = posix_spawn(/* tow-allow: a benchmark */ &pid, "/proc/self/exe",
                        &actions, NULL, argv, environ);
    if (error != 0) abort();
    member_main(0, arenas[0], up[0], down[1], transport);
    waitpid(pid, NULL, 0);
    for (int i = 0; i < 2; i++)
        tow_intra_host_arena_remove(arenas[i]);
}

int main(int argc, char **argv)
{
    if (argc == 3 && strcmp(argv[1], "--child") == 0)
        return member_main(1, argv[2], STDIN_FILENO, STDOUT_FILENO, "");
    if (argc == 1 || strcmp(argv[1], "shm") == 0) bench("shm");
    if (argc == 1 || strcmp(argv[1], "tcp") == 0) bench("tcp");
    return 0;
}
