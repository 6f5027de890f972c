/* A gang of two processes with two devices each: real XLA, and our own
 * collectives in shared memory.
 *
 * The test itself, the parent, compiles the programs with a client that has
 * none of the gang's devices, starts the processes from its own executable and
 * waits for them. Each process loads the programs and runs the part that the
 * parent names; an expectation that fails there ends the process, and fails the
 * test. */
#ifndef TOW_TESTS_GANG_GANG_H_
#define TOW_TESTS_GANG_GANG_H_

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <sys/types.h>

#include "collective/intra_host/intra_host.h"
#include "device/xla_cpu/harness.h"

enum {
    PROCESS_COUNT = 2,
    DEVICES_EACH = 2,
    MEMBER_COUNT = PROCESS_COUNT * DEVICES_EACH,
    PROGRAM_COUNT_MAX = 16,
};

/* -- In the parent --------------------------------------------------------- */

typedef struct shared shared_t;

typedef struct gang {
    shared_t *shared;
    int file;
    pid_t processes[PROCESS_COUNT];
} gang_t;

void gang_open(gang_t *gang);
/* For all four members, or for the two devices of each process alone. */
void gang_add_program(gang_t *gang, const char *text, size_t member_count);
void gang_start(gang_t *gang, const char *part);
/* Returns once that process has begun `count` collectives since the last call.
 */
void gang_await_inside(gang_t *gang, size_t process, size_t count);
/* Waits for set_mark; false after a timeout. */
bool gang_try_await_mark(gang_t *gang);
/* Waits until the process has ended without an error. */
void gang_finish_process(gang_t *gang, size_t process);
/* The same for all remaining processes; then frees everything. */
void gang_close(gang_t *gang);

/* -- In its processes ------------------------------------------------------ */

typedef struct process {
    size_t index;
    shared_t *shared;
    PJRT_Client *client;
    tow_intra_host_t *host;
    tow_xla_collectives_t table;
    pthread_t main_thread;
    /* Collectives on fibers, and those of them on the main thread. Written by
     * any thread. */
    _Atomic size_t fiber_count;
    _Atomic size_t inline_count;
} process_t;

typedef struct part {
    const char *name;
    void (*run)(process_t *process);
} part_t;

/* Ranks go round the processes: those of one process are not neighbours. */
size_t rank_of(const process_t *process, size_t device);
/* The global id of a device. */
int64_t device_id_of(size_t process, size_t device);
/* Program `index`, on the devices that it was compiled for. */
PJRT_LoadedExecutable *load(process_t *process, size_t index);
size_t program_count(const process_t *process);
/* A barrier between the two processes. */
void meet(process_t *process);
/* Signals the parent. */
void set_mark(process_t *process);
/* The same as in the parent, for any process. */
void await_inside(process_t *process, size_t of_process, size_t count);

/* Starts a run with four floats on each device: 10 k + rank + 1. */
call_t start(process_t *process, PJRT_LoadedExecutable *executable,
             uint64_t run_id);
/* The same with flags of tow_xla_execute_options_t. */
call_t start_with(process_t *process, PJRT_LoadedExecutable *executable,
                  uint64_t run_id, uint32_t flags);
/* Waits for a success, compares output 0 with four floats, and ends the call.
 */
void finish(call_t *call, float a, float b, float c, float d);
/* Waits for a failure on all devices, and ends the call. */
void finish_failed(call_t *call, size_t output_count, PJRT_Error_Code code,
                   const char *words);

/* -- Both ------------------------------------------------------------------ */

/* The whole program: tests, or a part in a process of a gang. */
int gang_main(int argc, char **argv, const part_t *parts, size_t part_count,
              const struct CMUnitTest *tests, size_t test_count);

/* Text of programs. */
/* clang-format off */
#define GROUPS_ALL    "dense<[[0, 1, 2, 3]]> : tensor<1x4xi64>"
#define GROUPS_PAIRS  "dense<[[0, 1], [2, 3]]> : tensor<2x2xi64>"
#define GROUPS_ACROSS "dense<[[0, 2], [1, 3]]> : tensor<2x2xi64>"
#define GROUPS_UNEQUAL "dense<[[0, 1, 2], [3, -1, -1]]> : tensor<2x3xi64>"
#define GROUPS_TWO    "dense<[[0, 1]]> : tensor<1x2xi64>"

#define ALL_REDUCE(OUT, IN, OP, GROUPS, MORE)                               \
    OUT " = \"stablehlo.all_reduce\"(" IN ") "                              \
    "({^bb0(%x: tensor<f32>, %y: tensor<f32>):\n"                           \
    "  %z = stablehlo." OP " %x, %y : tensor<f32>\n"                        \
    "  stablehlo.return %z : tensor<f32>\n"                                 \
    "}) {replica_groups = " GROUPS MORE "} : (tensor<4xf32>) -> "           \
    "tensor<4xf32>\n"

#define CHANNEL(N) \
    ", channel_handle = #stablehlo.channel_handle<handle = " N ", type = 0>"

#define FUNCTION(BODY)                                                      \
    "func.func public @main(%a: tensor<4xf32>) -> tensor<4xf32> {\n" BODY "}\n"

/* Runs BODY, which makes %w from %v, so many times. */
#define LOOP(TIMES, BODY)                                                   \
    FUNCTION(                                                               \
    "%zero = stablehlo.constant dense<0> : tensor<i32>\n"                   \
    "%r:2 = stablehlo.while(%i = %zero, %v = %a) : tensor<i32>, "           \
    "tensor<4xf32>\n"                                                       \
    "cond {\n"                                                              \
    "  %n = stablehlo.constant dense<" TIMES "> : tensor<i32>\n"            \
    "  %c = stablehlo.compare LT, %i, %n : (tensor<i32>, tensor<i32>) -> "  \
    "tensor<i1>\n"                                                          \
    "  stablehlo.return %c : tensor<i1>\n"                                  \
    "} do {\n"                                                              \
    "  %one = stablehlo.constant dense<1> : tensor<i32>\n"                  \
    "  %j = stablehlo.add %i, %one : tensor<i32>\n"                         \
    BODY                                                                    \
    "  stablehlo.return %j, %w : tensor<i32>, tensor<4xf32>\n"              \
    "}\n"                                                                   \
    "return %r#1 : tensor<4xf32>\n")

#define QUARTER                                                             \
    "  %quarter = stablehlo.constant dense<0.25> : tensor<4xf32>\n"         \
    "  %w = stablehlo.multiply %q, %quarter : tensor<4xf32>\n"
/* clang-format on */

#endif /* TOW_TESTS_GANG_GANG_H_ */
