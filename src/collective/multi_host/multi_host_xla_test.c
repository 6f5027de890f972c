/* A gang of real XLA across two hosts: two processes, each with an arena of its
 * own and one loop for driver and collectives, run examples/all_reduce.mlir.
 * Needs TOW_XLA_CPU and TOW_ALL_REDUCE_MLIR. */
#include "base/testing.h"

#include <fcntl.h>
#include <poll.h> /* tow-allow: a test of processes */
#include <spawn.h>
#include <sys/wait.h>

#include "collective/multi_host/fixture_testing_impl.h"
#include "device/options.h"
#include "device/pjrt/pjrt.h"

extern char **environ;

#define ELEMENT_COUNT 4

static const int64_t gang_ids[] = {0, TOW_XLA_PROCESS_STRIDE};

/* -- One member: a process with a device ----------------------------------- */

typedef struct member {
    test_process_t process;
    tow_xla_collectives_t collectives;
    tow_driver_t *driver;
    tow_executable_t *executable;
    bool is_done;
    tow_status_t status;
} member_t;

static member_t member;

static void complete(tow_status_t take_status)
{
    member.status = take_status;
    member.is_done = true;
}

static tow_status_t await(void)
{
    while (!member.is_done)
        tow_net_turn(member.process.net, TOW_TIME_NEVER);
    member.is_done = false;
    return member.status;
}

static void opened(tow_pjrt_open_t *open, tow_status_t take_status,
                   tow_driver_t *take_driver)
{
    (void)open;
    member.driver = take_driver;
    complete(take_status);
}

static void member_open(uint32_t rank, const char *arena)
{
    test_process_open(&member.process,
                      &(test_process_options_t){.arena = arena,
                                                .process_id = rank,
                                                .device_count = 1,
                                                .host_id = rank});
    member.collectives =
        (tow_xla_collectives_t){.struct_size = sizeof(member.collectives),
                                .context = member.process.span,
                                .run = tow_multi_host_collective,
                                .supports_fibers = 1};
    const tow_pjrt_value_t values[] = {
        {.name = "process_id", .type = TOW_PJRT_INT64, .int64 = rank},
        {.name = "device_count", .type = TOW_PJRT_INT64, .int64 = 1},
        {.name = "tow_collectives",
         .type = TOW_PJRT_INT64,
         .int64 = (int64_t)(intptr_t)&member.collectives},
    };
    tow_pjrt_open_t open = {.path = getenv("TOW_XLA_CPU"),
                            .values = values,
                            .value_count = TOW_COUNT_OF(values),
                            .done = opened};
    test_must(tow_pjrt_open(tow_net_env(member.process.net), &open));
    test_must(await());
}

static void closed(void *context)
{
    (void)context;
    complete(TOW_OK);
}

static void member_close(void)
{
    tow_executable_release(member.executable);
    tow_driver_close(member.driver, (tow_closed_t){closed, NULL});
    test_must(await());
    test_process_close(&member.process);
}

static void made(tow_compile_t *compile, tow_status_t take_status,
                 tow_executable_t *take_executable)
{
    (void)compile;
    member.executable = take_executable;
    complete(take_status);
}

typedef tow_status_t (*maker_t)(tow_driver_t *driver, tow_compile_t *compile);

/* Compiles, or loads, for both devices of the gang. */
static void make(maker_t maker, tow_bytes_t program)
{
    uint8_t bytes[256];
    const tow_compile_options_t options = {
        .assignment = {.replica_count = 2, .device_ids = gang_ids}};
    tow_compile_t compile = {
        .format = TOW_PROGRAM_MLIR,
        .program = program,
        .options = {bytes, tow_compile_options_pack(&options, bytes)},
        .done = made};
    test_must(maker(member.driver, &compile));
    test_must(await());
}

static void uploaded(tow_upload_t *upload, tow_status_t take_status)
{
    (void)upload;
    complete(take_status);
}

static void downloaded(tow_download_t *download, tow_status_t take_status)
{
    (void)download;
    complete(take_status);
}

static void ran(tow_run_t *run, tow_status_t take_status)
{
    (void)run;
    complete(take_status);
}

/* Sends `base`, `base` + 1, ... and expects the sums. */
static tow_status_t run(uint64_t gang_id, float base,
                        float results[ELEMENT_COUNT])
{
    float values[ELEMENT_COUNT];
    for (int i = 0; i < ELEMENT_COUNT; i++)
        values[i] = base + (float)i;
    tow_upload_t upload = {.bytes = values, .done = uploaded};
    test_must(tow_shape_parse("f32[4]", &upload.shape));
    test_must(tow_driver_upload(member.driver, &upload));
    test_must(await());
    tow_buffer_t *result = NULL;
    tow_run_t execution = {.executable = member.executable,
                           .gang_id = gang_id,
                           .arguments = &upload.buffer,
                           .argument_count = 1,
                           .results = &result,
                           .done = ran};
    test_must(tow_driver_run(member.driver, &execution));
    if (gang_id == 0) /* No other member joins this run. */
        tow_multi_host_abort(member.process.span, 0, TOW_CANCELLED,
                             "not wanted");
    tow_status_t status = await();
    if (status == TOW_OK) {
        tow_download_t download = {.buffer = result,
                                   .bytes = results,
                                   .size = ELEMENT_COUNT * sizeof(float),
                                   .done = downloaded};
        test_must(tow_driver_download(member.driver, &download));
        test_must(await());
    }
    tow_buffer_release(result);
    tow_buffer_release(upload.buffer);
    return status;
}

static void check_sum(uint64_t gang_id, float base)
{
    float results[ELEMENT_COUNT];
    test_must(run(gang_id, base, results));
    for (int i = 0; i < ELEMENT_COUNT; i++)
        if (results[i] != 10 + 20 + 2 * (float)i) abort();
}

/* -- The other ------------------------------------------------------------- */

/* The next step, while the loop runs. */
static bool next_run(uint64_t *out_gang_id)
{
    struct pollfd waited = {.fd = STDIN_FILENO, .events = POLLIN};
    while (poll(&waited, 1, 0) == 0)
        tow_net_turn(member.process.net, TOW_NS_PER_MS);
    return read(STDIN_FILENO, out_gang_id, sizeof(*out_gang_id)) ==
           sizeof(*out_gang_id);
}

static int child_main(const char *arena)
{
    member_open(1, arena);
    test_send_card(STDOUT_FILENO, &member.process);
    test_add_card(STDIN_FILENO, &member.process);
    size_t size;
    test_read_whole(STDIN_FILENO, &size, sizeof(size));
    void *bytes = malloc(size);
    test_read_whole(STDIN_FILENO, bytes, size);
    make(tow_driver_load, (tow_bytes_t){bytes, size});
    uint64_t gang_id;
    while (next_run(&gang_id))
        check_sum(gang_id, 20);
    member_close();
    free(bytes);
    return 0;
}

typedef struct child {
    pid_t pid;
    int to;
    int from;
} child_t;

static void child_start(child_t *child, const char *arena)
{
    int in[2], out[2];
    assert_int_equal(pipe2(in, O_CLOEXEC), 0);
    assert_int_equal(pipe2(out, O_CLOEXEC), 0);
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, in[0], STDIN_FILENO);
    posix_spawn_file_actions_adddup2(&actions, out[1], STDOUT_FILENO);
    char *argv[] = {(char *)"span_xla_test", (char *)"--child", (char *)arena,
                    NULL};
    int error;
    error = posix_spawn(/* tow-allow: test */ &child->pid, "/proc/self/exe",
                        &actions, NULL, argv, environ);
    assert_int_equal(error, 0);
    posix_spawn_file_actions_destroy(&actions);
    close(in[0]);
    close(out[1]);
    child->to = in[1];
    child->from = out[0];
}

static void tell(const child_t *child, const void *bytes, size_t size)
{
    for (size_t done = 0; done < size;) {
        const ssize_t count =
            write(child->to, (const char *)bytes + done, size - done);
        assert_true(count > 0);
        done += (size_t)count;
    }
}

/* Compiles, and passes the bytes to both processes. */
static void share_program(const child_t *child)
{
    char text[4096];
    FILE *file = fopen(getenv("TOW_ALL_REDUCE_MLIR"), "r");
    assert_non_null(file);
    const size_t text_size = fread(text, 1, sizeof(text), file);
    fclose(file);
    make(tow_driver_compile, (tow_bytes_t){text, text_size});
    void *bytes = NULL;
    size_t size = 0;
    test_must(tow_executable_serialize(member.executable, &bytes, &size));
    tow_executable_release(member.executable);
    tell(child, &size, sizeof(size));
    tell(child, bytes, size);
    make(tow_driver_load, (tow_bytes_t){bytes, size});
    tow_free(bytes);
}

static void xla_reduces_across_two_hosts(void **state)
{
    (void)state;
    if (getenv("TOW_XLA_CPU") == NULL || getenv("TOW_ALL_REDUCE_MLIR") == NULL)
        tow_test_skip("TOW_XLA_CPU and TOW_ALL_REDUCE_MLIR name no files");
    char arenas[2][64];
    for (int i = 0; i < 2; i++) {
        test_arena_name(arenas[i], sizeof(arenas[i]), i);
        test_must(tow_intra_host_arena_create(arenas[i]));
    }
    child_t child;
    child_start(&child, arenas[1]);
    member_open(0, arenas[0]);
    test_add_card(child.from, &member.process);
    test_send_card(child.to, &member.process);
    share_program(&child);
    for (uint64_t gang_id = 1; gang_id <= 3; gang_id++) {
        tell(&child, &gang_id, sizeof(gang_id));
        check_sum(gang_id, 10);
        float results[ELEMENT_COUNT];
        tow_status_t status = run(0, 10, results);
        assert_int_equal(tow_status_code(status), TOW_CANCELLED);
        assert_non_null(strstr(tow_status_message(status), "not wanted"));
        tow_status_ignore(status, "as it should be");
    }
    close(child.to);
    int ended = -1;
    assert_int_equal(waitpid(child.pid, &ended, 0), child.pid);
    assert_int_equal(ended, 0);
    close(child.from);
    member_close();
    for (int i = 0; i < 2; i++)
        tow_intra_host_arena_remove(arenas[i]);
}

int main(int argc, char **argv)
{
    if (argc == 3 && strcmp(argv[1], "--child") == 0)
        return child_main(argv[2]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(xla_reduces_across_two_hosts),
    };
    return tow_test_main(argc, argv, tests, TOW_COUNT_OF(tests));
}
