/* Gangs: several processes, each with a client that knows only its own devices,
 * run one program with collectives between them. A simple implementation in
 * shared memory matches members by the adapter's key alone.
 *
 * Each test starts its members from this same program and waits for them.
 * Member 0 compiles with a client that has none of the gang's devices, and puts
 * the bytes where all members load them from. Needs TOW_XLA_CPU. */
#include "device/xla_cpu/harness.h"

#include <errno.h>
#include <pthread.h>
#include <spawn.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

extern char **environ;

enum {
    PROCESS_COUNT = 2,
    DEVICES_EACH = 2,
    MEMBER_COUNT = PROCESS_COUNT * DEVICES_EACH,
    MEETING_COUNT_MAX = 64,
    BLOCK_BYTES_MAX = 4096,
    PROGRAM_BYTES_MAX = 4 << 20,
};

/* Long enough for a machine that is busy with other tests. */
#define PATIENCE_S 60

/* --- The collectives ------------------------------------------------------ */

/* One collective. */
typedef struct meeting {
    bool is_taken;
    uint64_t run_id;
    uint64_t op_id;
    uint64_t occurrence;
    tow_xla_collective_kind_t kind;
    size_t member_count;
    int64_t members[MEMBER_COUNT];
    size_t arrived_count;
    size_t left_count;
    /* The blocks that each member sends, one after another. */
    char sent[MEMBER_COUNT][BLOCK_BYTES_MAX];
} meeting_t;

typedef struct shared {
    pthread_mutex_t mutex;
    pthread_cond_t changed;
    meeting_t meetings[MEETING_COUNT_MAX];
    size_t program_size;
    char program[PROGRAM_BYTES_MAX];
    /* Collectives of this run fail. */
    _Atomic uint64_t aborted_run;
    _Atomic uint64_t call_count;
    _Atomic uint64_t occurrence_max;
} shared_t;

static bool is_same(const meeting_t *meeting, const tow_xla_collective_t *call)
{
    return meeting->is_taken && meeting->run_id == call->run_id &&
           meeting->op_id == call->op_id &&
           meeting->occurrence == call->occurrence &&
           meeting->member_count == call->member_count &&
           memcmp(meeting->members, call->members,
                  call->member_count * sizeof(*call->members)) == 0;
}

/* Under the mutex. */
static meeting_t *meet(shared_t *shared, const tow_xla_collective_t *call)
{
    meeting_t *free_one = NULL;
    for (size_t i = 0; i < MEETING_COUNT_MAX; i++) {
        meeting_t *meeting = &shared->meetings[i];
        if (is_same(meeting, call)) return meeting;
        if (!meeting->is_taken) free_one = meeting;
    }
    if (free_one == NULL || call->member_count > MEMBER_COUNT) return NULL;
    *free_one = (meeting_t){
        .is_taken = true,
        .run_id = call->run_id,
        .op_id = call->op_id,
        .occurrence = call->occurrence,
        .kind = call->kind,
        .member_count = call->member_count,
    };
    memcpy(free_one->members, call->members,
           call->member_count * sizeof(*call->members));
    return free_one;
}

#define REDUCE_AS(TYPE)                                                       \
    static void reduce_##TYPE(tow_xla_reduction_t kind, TYPE *into,           \
                              const TYPE *from, size_t count)                 \
    {                                                                         \
        for (size_t i = 0; i < count; i++)                                    \
            switch (kind) {                                                   \
            case TOW_XLA_SUM: into[i] = (TYPE)(into[i] + from[i]); break;     \
            case TOW_XLA_PRODUCT: into[i] = (TYPE)(into[i] * from[i]); break; \
            case TOW_XLA_MIN:                                                 \
                if (from[i] < into[i]) into[i] = from[i];                     \
                break;                                                        \
            case TOW_XLA_MAX:                                                 \
                if (from[i] > into[i]) into[i] = from[i];                     \
                break;                                                        \
            }                                                                 \
    }

REDUCE_AS(float)
REDUCE_AS(double)
REDUCE_AS(int8_t)
REDUCE_AS(int32_t)
REDUCE_AS(uint64_t)
REDUCE_AS(uint8_t)

static void reduce(const tow_xla_collective_t *call, void *into,
                   const void *from)
{
    size_t count = call->element_count;
    switch (call->element_type) {
    case PJRT_Buffer_Type_F32:
        reduce_float(call->reduction, into, from, count);
        break;
    case PJRT_Buffer_Type_C64: /* Sums only. */
        reduce_float(call->reduction, into, from, 2 * count);
        break;
    case PJRT_Buffer_Type_F64:
        reduce_double(call->reduction, into, from, count);
        break;
    case PJRT_Buffer_Type_S8:
        reduce_int8_t(call->reduction, into, from, count);
        break;
    case PJRT_Buffer_Type_S32:
        reduce_int32_t(call->reduction, into, from, count);
        break;
    case PJRT_Buffer_Type_U64:
        reduce_uint64_t(call->reduction, into, from, count);
        break;
    case PJRT_Buffer_Type_PRED:
        reduce_uint8_t(call->reduction, into, from, count);
        break;
    default: abort();
    }
}

/* Block `block` of every member, reduced into `into`. */
static void reduce_block(const tow_xla_collective_t *call,
                         const meeting_t *meeting, size_t block, void *into)
{
    size_t bytes = call->element_count * call->element_bytes;
    memcpy(into, meeting->sent[0] + block * bytes, bytes);
    for (size_t i = 1; i < call->member_count; i++)
        reduce(call, into, meeting->sent[i] + block * bytes);
}

static size_t blocks_sent(const tow_xla_collective_t *call)
{
    switch (call->kind) {
    case TOW_XLA_REDUCE_SCATTER:
    case TOW_XLA_ALL_TO_ALL: return call->member_count;
    case TOW_XLA_BARRIER: return 0;
    default: return 1;
    }
}

static void put(const tow_xla_collective_t *call, meeting_t *meeting)
{
    size_t bytes = call->element_count * call->element_bytes;
    char *to = meeting->sent[call->rank];
    if (call->kind == TOW_XLA_ALL_TO_ALL)
        for (size_t i = 0; i < call->member_count; i++)
            memcpy(to + i * bytes, call->send[i], bytes);
    else
        memcpy(to, call->send[0], blocks_sent(call) * bytes);
}

static void get(const tow_xla_collective_t *call, const meeting_t *meeting)
{
    size_t bytes = call->element_count * call->element_bytes;
    char *to = call->receive[0];
    switch (call->kind) {
    case TOW_XLA_ALL_REDUCE: reduce_block(call, meeting, 0, to); break;
    case TOW_XLA_REDUCE_SCATTER:
        reduce_block(call, meeting, call->rank, to);
        break;
    case TOW_XLA_ALL_GATHER:
        for (size_t i = 0; i < call->member_count; i++)
            memcpy(to + i * bytes, meeting->sent[i], bytes);
        break;
    case TOW_XLA_ALL_TO_ALL:
        for (size_t i = 0; i < call->member_count; i++)
            memcpy(call->receive[i], meeting->sent[i] + call->rank * bytes,
                   bytes);
        break;
    case TOW_XLA_PERMUTE:
        if (call->source != SIZE_MAX)
            memcpy(to, meeting->sent[call->source], bytes);
        break;
    case TOW_XLA_BROADCAST: memcpy(to, meeting->sent[call->root], bytes); break;
    case TOW_XLA_BARRIER: break;
    }
}

/* Under the mutex. False if the run was aborted or a member is missing. */
static bool await_all(shared_t *shared, const meeting_t *meeting)
{
    struct timespec end;
    clock_gettime(CLOCK_REALTIME, &end);
    end.tv_sec += PATIENCE_S;
    while (meeting->arrived_count < meeting->member_count) {
        if (atomic_load(&shared->aborted_run) == meeting->run_id) return false;
        if (pthread_cond_timedwait(&shared->changed, &shared->mutex, &end) ==
            ETIMEDOUT)
            return false;
    }
    return true;
}

static int refuse(char *error, size_t capacity, const char *why)
{
    snprintf(error, capacity, "%s", why);
    return PJRT_Error_Code_ABORTED;
}

static int run_collective(void *context, const tow_xla_collective_t *call,
                          char *error, size_t capacity)
{
    shared_t *shared = context;
    atomic_fetch_add(&shared->call_count, 1);
    if (atomic_load(&shared->aborted_run) == call->run_id)
        return refuse(error, capacity, "the gang was aborted");
    if (blocks_sent(call) * call->element_count * call->element_bytes >
        BLOCK_BYTES_MAX)
        return refuse(error, capacity, "a block too large for this test");
    pthread_mutex_lock(&shared->mutex);
    if (atomic_load(&shared->occurrence_max) < call->occurrence)
        atomic_store(&shared->occurrence_max, call->occurrence);
    meeting_t *meeting = meet(shared, call);
    bool all_came = false;
    if (meeting != NULL && meeting->kind == call->kind) {
        put(call, meeting);
        meeting->arrived_count++;
        pthread_cond_broadcast(&shared->changed);
        all_came = await_all(shared, meeting);
        if (all_came) get(call, meeting);
        if (++meeting->left_count == meeting->member_count)
            meeting->is_taken = false;
    }
    pthread_mutex_unlock(&shared->mutex);
    return all_came ? 0 : refuse(error, capacity, "the gang was aborted");
}

/* --- Processes ------------------------------------------------------------ */

static shared_t *share(int file)
{
    void *memory = mmap(NULL, sizeof(shared_t), PROT_READ | PROT_WRITE,
                        MAP_SHARED, file, 0);
    assert_ptr_not_equal(memory, MAP_FAILED);
    return memory;
}

static int make_shared(void)
{
    int file = memfd_create("gang", 0);
    assert_true(file >= 0);
    assert_int_equal(ftruncate(file, sizeof(shared_t)), 0);
    shared_t *shared = share(file);
    pthread_mutexattr_t mutex;
    pthread_mutexattr_init(&mutex);
    pthread_mutexattr_setpshared(&mutex, PTHREAD_PROCESS_SHARED);
    pthread_mutex_init(&shared->mutex, &mutex);
    pthread_condattr_t changed;
    pthread_condattr_init(&changed);
    pthread_condattr_setpshared(&changed, PTHREAD_PROCESS_SHARED);
    pthread_cond_init(&shared->changed, &changed);
    munmap(shared, sizeof(*shared));
    return file;
}

/* Runs the test of this name in every process of the gang. */
static void run_members(const char *name)
{
    int file = make_shared();
    char file_text[16];
    snprintf(file_text, sizeof(file_text), "%d", file);
    pid_t members[PROCESS_COUNT];
    for (int i = 0; i < PROCESS_COUNT; i++) {
        char index_text[16];
        snprintf(index_text, sizeof(index_text), "%d", i);
        char *arguments[] = {(char *)"gang", (char *)"--member", (char *)name,
                             index_text,     file_text,          NULL};
        assert_int_equal(posix_spawn(&members[i], "/proc/self/exe", NULL, NULL,
                                     arguments, environ),
                         0);
    }
    int failed_count = 0;
    for (int i = 0; i < PROCESS_COUNT; i++) {
        int status = 0;
        assert_int_equal(waitpid(members[i], &status, 0), members[i]);
        if (status != 0) failed_count++;
    }
    close(file);
    assert_int_equal(failed_count, 0);
}

/* One process of the gang. */
typedef struct member {
    shared_t *shared;
    int index;
    tow_xla_collectives_t table;
    PJRT_Client *client;
} member_t;

static int64_t process_id_of(int index)
{
    return 11 + 2 * index;
}

/* In rank order: the devices of one process are not neighbours. */
static void list_devices(int64_t devices[MEMBER_COUNT])
{
    for (int i = 0; i < MEMBER_COUNT; i++)
        devices[i] = process_id_of(i % PROCESS_COUNT) * TOW_XLA_PROCESS_STRIDE +
                     i / PROCESS_COUNT;
}

static void compile_elsewhere(shared_t *shared, const char *text,
                              const bytes_t *options)
{
    PJRT_Client *compiler = client_open((client_options_t){
        .process_id = 99,
    });
    PJRT_LoadedExecutable *compiled = compile(compiler, text, options);
    PJRT_Executable *executable = executable_of(compiled);
    PJRT_Executable_Serialize_Args args = {.struct_size = sizeof(args),
                                           .executable = executable};
    expect_ok(api->PJRT_Executable_Serialize(&args));
    assert_true(args.serialized_bytes_size <= PROGRAM_BYTES_MAX);
    memcpy(shared->program, args.serialized_bytes, args.serialized_bytes_size);
    pthread_mutex_lock(&shared->mutex);
    shared->program_size = args.serialized_bytes_size;
    pthread_cond_broadcast(&shared->changed);
    pthread_mutex_unlock(&shared->mutex);
    args.serialized_executable_deleter(args.serialized_executable);
    executable_close(executable);
    unload(compiled);
    client_close(compiler);
}

/* Compiled for other devices than it is loaded on. */
static PJRT_LoadedExecutable *load_gang(member_t *member, const char *text)
{
    int64_t devices[MEMBER_COUNT];
    list_devices(devices);
    if (member->index == 0) {
        int64_t others[MEMBER_COUNT] = {2048, 4096, 6144, 8192};
        bytes_t options = options_pack(MEMBER_COUNT, 1, others);
        compile_elsewhere(member->shared, text, &options);
    }
    pthread_mutex_lock(&member->shared->mutex);
    while (member->shared->program_size == 0)
        pthread_cond_wait(&member->shared->changed, &member->shared->mutex);
    pthread_mutex_unlock(&member->shared->mutex);
    bytes_t options = options_pack(MEMBER_COUNT, 1, devices);
    PJRT_Executable_DeserializeAndLoad_Args args = {
        .struct_size = sizeof(args),
        .client = member->client,
        .serialized_executable = member->shared->program,
        .serialized_executable_size = member->shared->program_size,
        .overridden_serialized_compile_options = options.data,
        .overridden_serialized_compile_options_size = options.size,
    };
    expect_ok(api->PJRT_Executable_DeserializeAndLoad(&args));
    return args.loaded_executable;
}

/* The rank of one of this process's devices. */
static size_t rank_of(const member_t *member, size_t device)
{
    return device * PROCESS_COUNT + (size_t)member->index;
}

/* Starts a run with a vector of four floats on each device: rank + 1, and so
 * on by tens. */
static call_t start(member_t *member, PJRT_LoadedExecutable *executable,
                    uint64_t run_id)
{
    call_t call = {.executable = executable,
                   .run_id = run_id,
                   .device_count = DEVICES_EACH,
                   .argument_count = 1};
    for (size_t i = 0; i < DEVICES_EACH; i++) {
        float values[4];
        for (size_t k = 0; k < 4; k++)
            values[k] = (float)(rank_of(member, i) + 1 + 10 * k);
        call.arguments[i][0] =
            upload(member->client, device_at(member->client, i), values, 4);
    }
    expect_ok(try_execute(&call));
    for (size_t i = 0; i < DEVICES_EACH; i++)
        destroy(call.arguments[i][0]);
    return call;
}

static void expect_floats(PJRT_Buffer *buffer, const float *expected,
                          size_t count)
{
    float values[64];
    download(buffer, values, count * sizeof(float));
    for (size_t i = 0; i < count; i++)
        if (values[i] != expected[i])
            fail_msg("element %zu is %g instead of %g", i, (double)values[i],
                     (double)expected[i]);
    destroy(buffer);
}

/* --- The tests, as each member runs them ---------------------------------- */

/* clang-format off */
#define GROUPS_ALL    "dense<[[0, 1, 2, 3]]> : tensor<1x4xi64>"
#define GROUPS_PAIRS  "dense<[[0, 1], [2, 3]]> : tensor<2x2xi64>"
#define GROUPS_ACROSS "dense<[[0, 2], [1, 3]]> : tensor<2x2xi64>"

#define REDUCTION(TYPE, OP)                                             \
    "({^bb0(%x: tensor<" TYPE ">, %y: tensor<" TYPE ">):\n"             \
    "  %z = stablehlo." OP " %x, %y : tensor<" TYPE ">\n"               \
    "  stablehlo.return %z : tensor<" TYPE ">\n"                        \
    "})"

#define ALL_REDUCE(OUT, IN, TYPE, OP, GROUPS, MORE)                     \
    OUT " = \"stablehlo.all_reduce\"(" IN ") " REDUCTION(TYPE, OP)      \
    " {replica_groups = " GROUPS MORE "} : (tensor<4x" TYPE ">) -> "    \
    "tensor<4x" TYPE ">\n"

#define CHANNEL(N) \
    ", channel_handle = #stablehlo.channel_handle<handle = " N ", type = 0>"

/* Permute and all-to-all over replicas have no channel: with one, XLA takes
 * their groups for partitions. */
static const char KINDS[] =
    "func.func public @main(%a: tensor<4xf32>) -> (tensor<4xf32>, "
    "tensor<16xf32>, tensor<1xf32>, tensor<4xf32>, tensor<4xf32>, "
    "tensor<4xf32>) {\n"
    ALL_REDUCE("%sum", "%a", "f32", "add", GROUPS_ALL, CHANNEL("1"))
    "%all = \"stablehlo.all_gather\"(%a) {all_gather_dim = 0 : i64, "
    "replica_groups = " GROUPS_ALL CHANNEL("2")
    "} : (tensor<4xf32>) -> tensor<16xf32>\n"
    "%part = \"stablehlo.reduce_scatter\"(%a) " REDUCTION("f32", "add")
    " {scatter_dimension = 0 : i64, replica_groups = " GROUPS_ALL CHANNEL("3")
    "} : (tensor<4xf32>) -> tensor<1xf32>\n"
    "%turned = \"stablehlo.all_to_all\"(%a) {split_dimension = 0 : i64, "
    "concat_dimension = 0 : i64, split_count = 4 : i64, replica_groups = "
    GROUPS_ALL "} : (tensor<4xf32>) -> tensor<4xf32>\n"
    "%moved = \"stablehlo.collective_permute\"(%a) {source_target_pairs = "
    "dense<[[0, 1], [1, 2], [2, 3]]> : tensor<3x2xi64>"
    "} : (tensor<4xf32>) -> tensor<4xf32>\n"
    ALL_REDUCE("%most", "%a", "f32", "maximum", GROUPS_PAIRS, CHANNEL("6"))
    "return %sum, %all, %part, %turned, %moved, %most : tensor<4xf32>, "
    "tensor<16xf32>, tensor<1xf32>, tensor<4xf32>, tensor<4xf32>, "
    "tensor<4xf32>\n"
    "}\n";

/* Without channels, and with pairs that overlap from one operation to the
 * next: only members and occurrence distinguish them. */
static const char LOOP[] =
    "func.func public @main(%a: tensor<4xf32>) -> tensor<4xf32> {\n"
    "%zero = stablehlo.constant dense<0> : tensor<i32>\n"
    "%r:2 = stablehlo.while(%i = %zero, %v = %a) : tensor<i32>, "
    "tensor<4xf32>\n"
    "cond {\n"
    "  %n = stablehlo.constant dense<5> : tensor<i32>\n"
    "  %c = stablehlo.compare LT, %i, %n : (tensor<i32>, tensor<i32>) -> "
    "tensor<i1>\n"
    "  stablehlo.return %c : tensor<i1>\n"
    "} do {\n"
    "  %one = stablehlo.constant dense<1> : tensor<i32>\n"
    "  %j = stablehlo.add %i, %one : tensor<i32>\n"
    ALL_REDUCE("%p", "%v", "f32", "add", GROUPS_PAIRS, "")
    ALL_REDUCE("%q", "%p", "f32", "add", GROUPS_ACROSS, "")
    "  %quarter = stablehlo.constant dense<0.25> : tensor<4xf32>\n"
    "  %w = stablehlo.multiply %q, %quarter : tensor<4xf32>\n"
    "  stablehlo.return %j, %w : tensor<i32>, tensor<4xf32>\n"
    "}\n"
    "return %r#1 : tensor<4xf32>\n"
    "}\n";

static const char TYPES[] =
    "func.func public @main(%a: tensor<4xf32>) -> (tensor<4xf64>, "
    "tensor<4xi8>, tensor<4xui64>, tensor<4xi1>, tensor<4xi1>, "
    "tensor<4xi32>, tensor<4xcomplex<f32>>) {\n"
    "%d = stablehlo.convert %a : (tensor<4xf32>) -> tensor<4xf64>\n"
    "%b = stablehlo.convert %a : (tensor<4xf32>) -> tensor<4xi8>\n"
    "%u = stablehlo.convert %a : (tensor<4xf32>) -> tensor<4xui64>\n"
    "%i = stablehlo.convert %a : (tensor<4xf32>) -> tensor<4xi32>\n"
    "%c = stablehlo.complex %a, %a : tensor<4xcomplex<f32>>\n"
    "%two = stablehlo.constant dense<2.0> : tensor<4xf32>\n"
    "%p = stablehlo.compare LT, %a, %two : (tensor<4xf32>, tensor<4xf32>) "
    "-> tensor<4xi1>\n"
    ALL_REDUCE("%0", "%d", "f64", "multiply", GROUPS_ALL, CHANNEL("1"))
    ALL_REDUCE("%1", "%b", "i8", "add", GROUPS_ALL, CHANNEL("2"))
    ALL_REDUCE("%2", "%u", "ui64", "maximum", GROUPS_ALL, CHANNEL("3"))
    ALL_REDUCE("%3", "%p", "i1", "and", GROUPS_ALL, CHANNEL("4"))
    ALL_REDUCE("%4", "%p", "i1", "or", GROUPS_ALL, CHANNEL("5"))
    ALL_REDUCE("%5", "%i", "i32", "minimum", GROUPS_ALL, CHANNEL("6"))
    ALL_REDUCE("%6", "%c", "complex<f32>", "add", GROUPS_ALL, CHANNEL("7"))
    "return %0, %1, %2, %3, %4, %5, %6 : tensor<4xf64>, tensor<4xi8>, "
    "tensor<4xui64>, tensor<4xi1>, tensor<4xi1>, tensor<4xi32>, "
    "tensor<4xcomplex<f32>>\n"
    "}\n";

static const char ADD_TOGETHER[] =
    "func.func public @main(%a: tensor<4xf32>) -> tensor<4xf32> {\n"
    ALL_REDUCE("%0", "%a", "f32", "add",
               "dense<[[0, 1]]> : tensor<1x2xi64>", "")
    "return %0 : tensor<4xf32>\n"
    "}\n";
/* clang-format on */

static void check_kinds(const member_t *member, const call_t *call, size_t i)
{
    size_t rank = rank_of(member, i);
    float mine = (float)(rank + 1);
    PJRT_Buffer *const *outputs = call->outputs[i];
    expect_floats(outputs[0], (float[]){10, 50, 90, 130}, 4);
    float all[16];
    for (size_t k = 0; k < 16; k++)
        all[k] = (float)(k / 4 + 1 + 10 * (k % 4));
    expect_floats(outputs[1], all, 16);
    expect_floats(outputs[2], (float[]){10 + 40 * (float)rank}, 1);
    float ten = 10 * (float)rank;
    expect_floats(outputs[3], (float[]){1 + ten, 2 + ten, 3 + ten, 4 + ten}, 4);
    float before = rank == 0 ? 0 : mine - 1;
    float step = rank == 0 ? 0 : 10;
    expect_floats(
        outputs[4],
        (float[]){before, before + step, before + 2 * step, before + 3 * step},
        4);
    float most = rank < 2 ? 2 : 4;
    expect_floats(outputs[5], (float[]){most, most + 10, most + 20, most + 30},
                  4);
}

static void all_kinds(member_t *member)
{
    PJRT_LoadedExecutable *program = load_gang(member, KINDS);
    for (uint64_t run = 0; run < 20; run++) {
        call_t call = start(member, program, (1ull << 40) + run);
        for (size_t i = 0; i < DEVICES_EACH; i++) {
            await(call.done[i]);
            check_kinds(member, &call, i);
        }
    }
    unload(program);
}

/* Many runs are in flight at once. */
static void loops(member_t *member)
{
    enum {
        RUN_COUNT = 50
    };
    PJRT_LoadedExecutable *program = load_gang(member, LOOP);
    static call_t calls[RUN_COUNT];
    for (uint64_t run = 0; run < RUN_COUNT; run++)
        calls[run] = start(member, program, 1 + run);
    for (uint64_t run = 0; run < RUN_COUNT; run++)
        for (size_t i = 0; i < DEVICES_EACH; i++) {
            await(calls[run].done[i]);
            expect_floats(calls[run].outputs[i][0],
                          (float[]){2.5f, 12.5f, 22.5f, 32.5f}, 4);
        }
    assert_int_equal(atomic_load(&member->shared->occurrence_max), 4);
    unload(program);
}

static void take_and_compare(PJRT_Buffer *buffer, const void *expected,
                             size_t size)
{
    char read[64];
    assert_true(size <= sizeof(read));
    download(buffer, read, size);
    assert_memory_equal(read, expected, size);
    destroy(buffer);
}

static void types(member_t *member)
{
    PJRT_LoadedExecutable *program = load_gang(member, TYPES);
    call_t call = start(member, program, 3);
    for (size_t i = 0; i < DEVICES_EACH; i++) {
        await(call.done[i]);
        PJRT_Buffer *const *outputs = call.outputs[i];
        take_and_compare(outputs[0],
                         (double[]){24, 11. * 12 * 13 * 14, 21. * 22 * 23 * 24,
                                    31. * 32 * 33 * 34},
                         32);
        take_and_compare(outputs[1], (int8_t[]){10, 50, 90, (int8_t)130}, 4);
        take_and_compare(outputs[2], (uint64_t[]){4, 14, 24, 34}, 32);
        take_and_compare(outputs[3], (uint8_t[]){0, 0, 0, 0}, 4);
        take_and_compare(outputs[4], (uint8_t[]){1, 0, 0, 0}, 4);
        take_and_compare(outputs[5], (int32_t[]){1, 11, 21, 31}, 16);
        take_and_compare(outputs[6],
                         (float[]){10, 10, 50, 50, 90, 90, 130, 130}, 32);
    }
    unload(program);
}

/* One process starts a run and aborts it; the other never joins. Then both do
 * the next one. */
static void abort_and_go_on(member_t *member)
{
    enum {
        ABORTED_RUN = 7,
        NEXT_RUN = 8
    };
    PJRT_LoadedExecutable *program = load_gang(member, KINDS);
    if (member->index == 0) {
        call_t call = start(member, program, ABORTED_RUN);
        while (atomic_load(&member->shared->call_count) < DEVICES_EACH)
            sched_yield();
        atomic_store(&member->shared->aborted_run, ABORTED_RUN);
        pthread_cond_broadcast(&member->shared->changed);
        for (size_t i = 0; i < DEVICES_EACH; i++) {
            expect_error(try_await(call.done[i]), PJRT_Error_Code_ABORTED,
                         "the gang was aborted");
            for (size_t k = 0; k < 6; k++) {
                expect_error(try_await(ready_event_of(call.outputs[i][k])),
                             PJRT_Error_Code_ABORTED, "aborted");
                destroy(call.outputs[i][k]);
            }
        }
    }
    call_t call = start(member, program, NEXT_RUN);
    for (size_t i = 0; i < DEVICES_EACH; i++) {
        await(call.done[i]);
        check_kinds(member, &call, i);
    }
    unload(program);
}

/* --- Starting the processes ----------------------------------------------- */

static const struct {
    const char *name;
    void (*body)(member_t *member);
} BODIES[] = {
    {"all_kinds", all_kinds},
    {"loops", loops},
    {"types", types},
    {"abort_and_go_on", abort_and_go_on},
};

/* A failed assertion outside a cmocka test ends the process, as it should. */
static int member_main(char **arguments)
{
    const char *name = arguments[2];
    member_t member = {
        .shared = share(atoi(arguments[4])),
        .index = atoi(arguments[3]),
    };
    alarm(4 * PATIENCE_S);
    if (!harness_load()) return 1;
    member.table = (tow_xla_collectives_t){
        .struct_size = sizeof(member.table),
        .context = member.shared,
        .run = run_collective,
    };
    member.client = client_open((client_options_t){
        .process_id = process_id_of(member.index),
        .device_count = DEVICES_EACH,
        .collectives = &member.table,
    });
    for (size_t i = 0; i < TOW_COUNT_OF(BODIES); i++)
        if (strcmp(BODIES[i].name, name) == 0) BODIES[i].body(&member);
    client_close(member.client);
    return 0;
}

static void gang_runs_all_kinds_of_collectives(void **state)
{
    run_members("all_kinds");
}

static void gang_distinguishes_collectives_in_loops(void **state)
{
    run_members("loops");
}

static void gang_reduces_all_types(void **state)
{
    run_members("types");
}

static void gang_can_be_aborted_and_stays_usable(void **state)
{
    run_members("abort_and_go_on");
}

static void collectives_without_a_table_are_an_error(void **state)
{
    PJRT_Client *client = client_open((client_options_t){.device_count = 2});
    bytes_t options = options_pack(2, 1, (int64_t[]){0, 1});
    PJRT_LoadedExecutable *program = compile(client, ADD_TOGETHER, &options);
    const float ones[4] = {1, 1, 1, 1};
    call_t call = {
        .executable = program, .device_count = 2, .argument_count = 1};
    for (size_t i = 0; i < 2; i++)
        call.arguments[i][0] = upload(client, device_at(client, i), ones, 4);
    expect_ok(try_execute(&call));
    for (size_t i = 0; i < 2; i++) {
        expect_error(try_await(call.done[i]),
                     PJRT_Error_Code_FAILED_PRECONDITION, "tow_collectives");
        destroy(call.arguments[i][0]);
        destroy(call.outputs[i][0]);
    }
    unload(program);
    client_close(client);
}

/* --- Two gangs of one process --------------------------------------------- */

enum {
    RIVAL_COUNT = 2,
    RIVAL_RUN_COUNT = 200
};

typedef struct rival {
    PJRT_Client *client;
    PJRT_LoadedExecutable *program;
    uint64_t first_run_id;
    size_t wrong_count;
    pthread_t thread;
} rival_t;

static void *run_rival(void *argument)
{
    rival_t *rival = argument;
    call_t call = {
        .executable = rival->program, .device_count = 2, .argument_count = 1};
    for (size_t i = 0; i < 2; i++)
        call.arguments[i][0] =
            upload(rival->client, device_at(rival->client, i),
                   (float[]){1, 2, 3, 4}, 4);
    for (uint64_t run = 0; run < RIVAL_RUN_COUNT; run++) {
        call.run_id = rival->first_run_id + run;
        execute(&call);
        for (size_t i = 0; i < 2; i++) {
            float values[4];
            download(call.outputs[i][0], values, sizeof(values));
            if (values[3] != 8) rival->wrong_count++;
            destroy(call.outputs[i][0]);
        }
    }
    for (size_t i = 0; i < 2; i++)
        destroy(call.arguments[i][0]);
    return NULL;
}

/* If their order differed between the devices, each device would wait for the
 * other in a different gang. */
static void gangs_of_two_threads_have_one_order(void **state)
{
    int file = make_shared();
    shared_t *shared = share(file);
    tow_xla_collectives_t table = {
        .struct_size = sizeof(table),
        .context = shared,
        .run = run_collective,
    };
    PJRT_Client *client = client_open(
        (client_options_t){.device_count = 2, .collectives = &table});
    bytes_t options = options_pack(2, 1, (int64_t[]){0, 1});
    rival_t rivals[RIVAL_COUNT];
    for (size_t i = 0; i < RIVAL_COUNT; i++) {
        rivals[i] = (rival_t){
            .client = client,
            .program = compile(client, ADD_TOGETHER, &options),
            .first_run_id = 1 + i * RIVAL_RUN_COUNT,
        };
        assert_int_equal(
            pthread_create(&rivals[i].thread, NULL, run_rival, &rivals[i]), 0);
    }
    for (size_t i = 0; i < RIVAL_COUNT; i++) {
        pthread_join(rivals[i].thread, NULL);
        assert_int_equal(rivals[i].wrong_count, 0);
        unload(rivals[i].program);
    }
    client_close(client);
    munmap(shared, sizeof(*shared));
    close(file);
}

#define CASE(name) cmocka_unit_test_setup(name, harness_set_up)

int main(int argc, char **argv)
{
    if (argc == 5 && strcmp(argv[1], "--member") == 0) return member_main(argv);
    const struct CMUnitTest tests[] = {
        CASE(gang_runs_all_kinds_of_collectives),
        CASE(gang_distinguishes_collectives_in_loops),
        CASE(gang_reduces_all_types),
        CASE(gang_can_be_aborted_and_stays_usable),
        CASE(collectives_without_a_table_are_an_error),
        CASE(gangs_of_two_threads_have_one_order),
    };
    return tow_test_main(argc, argv, tests, TOW_COUNT_OF(tests));
}
