/* `tow bench device`: a device of XLA on the CPU, through our driver.
 *
 * This file: one computation from enqueueing to completion against XLA without
 * our driver, and uploads of large arrays against memcpy. device_gang.c has the
 * gangs. */
#include "bench/device.h"
#include "bench/benchmarks.h"
#include "bench/gang.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "base/alloc.h"
#include "base/assert.h"
#include "device/device.h"
#include "device/pjrt/pjrt.h"
#include "env/net/net.h"
#include "supervisor/adapter.h"
#include "supervisor/log_environment.h"
#include "supervisor/sync_driver.h"

#define PATH_SIZE       4096
#define UPLOAD_BYTES    ((size_t)64 << 20)
#define HUGE_PAGE_BYTES ((size_t)2 << 20)
/* One float: XLA needs 64-byte alignment and must copy such memory. */
#define OFF_ALIGNMENT sizeof(float)

typedef struct device_bench {
    tow_security_t security; /* empty: nothing connects */
    tow_net_t *net;          /* owned */
    tow_driver_t *driver;    /* owned */
    tow_executable_t *add;   /* owned */
    tow_buffer_t *scalar;    /* owned */
    uint64_t add_count;      /* of a round */
    size_t upload_count;
    uint8_t *source; /* owned: UPLOAD_BYTES and a page */
    uint8_t *copy;   /* owned: target of the peer's memcpy */
    /* The operation in progress. */
    bool is_done;
    tow_status_t status; /* owned */
} device_bench_t;

/* -- Waiting ---------------------------------------------------------------- */

static tow_status_t await(device_bench_t *bench)
{
    while (!bench->is_done)
        tow_net_turn(bench->net, TOW_TIME_NEVER);
    bench->is_done = false;
    tow_status_t status = bench->status;
    bench->status = TOW_OK;
    return status;
}

static void complete(device_bench_t *bench, tow_status_t take_status)
{
    TOW_ASSERT(!bench->is_done);
    bench->is_done = true;
    bench->status = take_status;
}

static void complete_closed(void *context)
{
    complete(context, TOW_OK);
}

/* -- One computation -------------------------------------------------------- */

typedef struct timed_run {
    tow_run_t run;
    device_bench_t *bench;
} timed_run_t;

static void ran(tow_run_t *run, tow_status_t take_status)
{
    complete(TOW_CONTAINER_OF(run, timed_run_t, run)->bench, take_status);
}

static tow_status_t time_adds(device_bench_t *bench, bool may_block,
                              double *out_us)
{
    tow_buffer_t *result = NULL;
    tow_buffer_t *arguments[] = {bench->scalar, bench->scalar};
    timed_run_t timed = {.bench = bench,
                         .run = {.executable = bench->add,
                                 .arguments = arguments,
                                 .argument_count = 2,
                                 .results = &result,
                                 .may_block = may_block,
                                 .done = ran}};
    const int64_t start_ns = tow_bench_now_ns();
    for (uint64_t i = 0; i < bench->add_count; i++) {
        timed.run.gang_id = i + 1;
        TOW_RETURN_IF_ERROR(tow_driver_run(bench->driver, &timed.run));
        tow_status_t status = await(bench);
        tow_buffer_release(result);
        TOW_RETURN_IF_ERROR(status);
    }
    *out_us = (double)(tow_bench_now_ns() - start_ns) * 1e-3 /
              (double)bench->add_count;
    return TOW_OK;
}

static tow_status_t add_inline(void *context, double *out_us)
{
    return time_adds(context, true, out_us);
}

static tow_status_t add_handed_over(void *context, double *out_us)
{
    return time_adds(context, false, out_us);
}

/* -- Uploads ---------------------------------------------------------------- */

typedef struct timed_upload {
    tow_upload_t upload;
    device_bench_t *bench;
} timed_upload_t;

static void uploaded(tow_upload_t *upload, tow_status_t take_status)
{
    complete(TOW_CONTAINER_OF(upload, timed_upload_t, upload)->bench,
             take_status);
}

/* Time until the buffer is usable. Freeing it is not timed. */
static tow_status_t time_upload(device_bench_t *bench, const void *source,
                                bool must_alias, double *out_us)
{
    timed_upload_t timed = {
        .bench = bench,
        .upload = {.shape = {.type = TOW_TYPE_F32,
                             .rank = 1,
                             .dims = {UPLOAD_BYTES / sizeof(float)}},
                   .bytes = source,
                   .may_alias = true,
                   .done = uploaded}};
    const int64_t start_ns = tow_bench_now_ns();
    TOW_RETURN_IF_ERROR(tow_driver_upload(bench->driver, &timed.upload));
    tow_buffer_t *buffer = timed.upload.buffer;
    while (tow_buffer_state(buffer) == TOW_BUFFER_PENDING)
        tow_net_turn(bench->net, TOW_TIME_NEVER);
    *out_us = (double)(tow_bench_now_ns() - start_ns) * 1e-3;
    void *address = NULL;
    tow_status_t status = tow_buffer_error(buffer);
    if (status == TOW_OK) status = tow_buffer_address(buffer, &address);
    if (status == TOW_OK && (address == source) != must_alias)
        status = TOW_ERROR(TOW_INTERNAL,
                           must_alias ? "aligned memory was copied, from %p to "
                                        "%p"
                                      : "unaligned memory at %p is used as it "
                                        "is, at %p",
                           source, address);
    tow_buffer_release(buffer);
    tow_status_t released = await(bench);
    if (status == TOW_OK) return released;
    tow_status_ignore(released, "the first error is kept");
    return status;
}

static tow_status_t time_uploads(device_bench_t *bench, const void *source,
                                 bool must_alias, double *out_us)
{
    double samples[64];
    TOW_ASSERT(bench->upload_count <= TOW_COUNT_OF(samples));
    for (size_t i = 0; i < bench->upload_count; i++)
        TOW_RETURN_IF_ERROR(
            time_upload(bench, source, must_alias, &samples[i]));
    *out_us = tow_bench_median(samples, bench->upload_count);
    return TOW_OK;
}

static tow_status_t upload_aligned(void *context, double *out_us)
{
    device_bench_t *bench = context;
    return time_uploads(bench, bench->source, true, out_us);
}

static tow_status_t upload_unaligned(void *context, double *out_us)
{
    device_bench_t *bench = context;
    return time_uploads(bench, bench->source + OFF_ALIGNMENT, false, out_us);
}

static double time_copies(device_bench_t *bench, const uint8_t *source)
{
    double samples[64];
    for (size_t i = 0; i < bench->upload_count; i++) {
        const int64_t start_ns = tow_bench_now_ns();
        memcpy(bench->copy, source, UPLOAD_BYTES);
        samples[i] = (double)(tow_bench_now_ns() - start_ns) * 1e-3;
        __asm__ volatile("" : : "r"(bench->copy) : "memory");
    }
    return tow_bench_median(samples, bench->upload_count);
}

static tow_status_t copy_aligned(void *context, double *out_us)
{
    device_bench_t *bench = context;
    *out_us = time_copies(bench, bench->source);
    return TOW_OK;
}

static tow_status_t copy_unaligned(void *context, double *out_us)
{
    device_bench_t *bench = context;
    *out_us = time_copies(bench, bench->source + OFF_ALIGNMENT);
    return TOW_OK;
}

/* Written once and in huge pages, like the adapter's own memory. */
static uint8_t *make_memory(size_t size)
{
    const size_t rounded =
        (size + HUGE_PAGE_BYTES - 1) / HUGE_PAGE_BYTES * HUGE_PAGE_BYTES;
    uint8_t *memory = tow_aligned_alloc(HUGE_PAGE_BYTES, rounded);
    if (memory == NULL) return NULL;
    madvise(memory, rounded, MADV_HUGEPAGE);
    memset(memory, 1, rounded);
    return memory;
}

/* -- The driver ------------------------------------------------------------- */

#if TOW_HAS_PJRT

static tow_status_t add_directly(void *context, double *out_us)
{
    device_bench_t *bench = context;
    uint64_t ns = 0;
    tow_buffer_t *arguments[] = {bench->scalar, bench->scalar};
    TOW_RETURN_IF_ERROR(tow_pjrt_time_xla_alone(bench->add, arguments, 2,
                                                bench->add_count, &ns));
    *out_us = (double)ns * 1e-3 / (double)bench->add_count;
    return TOW_OK;
}

typedef struct opening {
    tow_pjrt_open_t open;
    device_bench_t *bench;
} opening_t;

static void opened(tow_pjrt_open_t *open, tow_status_t take_status,
                   tow_driver_t *take_driver)
{
    opening_t *opening = TOW_CONTAINER_OF(open, opening_t, open);
    opening->bench->driver = take_driver;
    complete(opening->bench, take_status);
}

static tow_status_t open_driver(device_bench_t *bench)
{
    char plugin[PATH_SIZE];
    TOW_RETURN_IF_ERROR(tow_adapter_find(plugin, sizeof(plugin)));
    /* Otherwise the library prints a notice to standard error. */
    setenv("TF_ENABLE_ONEDNN_OPTS", "0", 0);
    setenv("TF_CPP_MIN_LOG_LEVEL", "3", 0);
    opening_t opening = {.bench = bench,
                         .open = {.path = plugin, .done = opened}};
    TOW_RETURN_IF_ERROR(tow_pjrt_open(tow_net_env(bench->net), &opening.open));
    return await(bench);
}

#else

static tow_status_t add_directly(void *context, double *out_us)
{
    (void)context, (void)out_us;
    return tow_status_bare(TOW_UNIMPLEMENTED);
}

static tow_status_t open_driver(device_bench_t *bench)
{
    (void)bench;
    return TOW_ERROR(TOW_UNIMPLEMENTED,
                     "this program was built without the PJRT header; `make "
                     "setup` installs it");
}

#endif

typedef struct compiling {
    tow_compile_t compile;
    device_bench_t *bench;
} compiling_t;

static void compiled(tow_compile_t *compile, tow_status_t take_status,
                     tow_executable_t *take_executable)
{
    device_bench_t *bench =
        TOW_CONTAINER_OF(compile, compiling_t, compile)->bench;
    bench->add = take_executable;
    complete(bench, take_status);
}

static tow_status_t compile_add(device_bench_t *bench)
{
    static const char program[] =
        "func.func public @main(%a: tensor<f32>, %b: tensor<f32>) -> "
        "tensor<f32> {\n"
        "  %c = stablehlo.add %a, %b : tensor<f32>\n"
        "  return %c : tensor<f32>\n"
        "}\n";
    compiling_t compiling = {.bench = bench,
                             .compile = {.format = TOW_PROGRAM_MLIR,
                                         .program = {program, strlen(program)},
                                         .done = compiled}};
    TOW_RETURN_IF_ERROR(tow_driver_compile(bench->driver, &compiling.compile));
    return await(bench);
}

static tow_status_t upload_scalar(device_bench_t *bench)
{
    const float value = 1;
    timed_upload_t timed = {.bench = bench,
                            .upload = {.shape = {.type = TOW_TYPE_F32},
                                       .bytes = &value,
                                       .done = uploaded}};
    TOW_RETURN_IF_ERROR(tow_driver_upload(bench->driver, &timed.upload));
    bench->scalar = timed.upload.buffer;
    return await(bench);
}

static tow_status_t open_bench(device_bench_t *bench, bool is_quick)
{
    bench->add_count = is_quick ? 20000 : 100000;
    bench->upload_count = is_quick ? 5 : 11;
    tow_net_options_t net = {.name = "bench",
                             .security = &bench->security,
                             .log = tow_log_from_environment("bench")};
    TOW_RETURN_IF_ERROR(tow_net_create(&net, &bench->net));
    TOW_RETURN_IF_ERROR(open_driver(bench));
    TOW_RETURN_IF_ERROR(compile_add(bench));
    TOW_RETURN_IF_ERROR(upload_scalar(bench));
    bench->source = make_memory(UPLOAD_BYTES + HUGE_PAGE_BYTES);
    bench->copy = make_memory(UPLOAD_BYTES);
    if (bench->source == NULL || bench->copy == NULL)
        return tow_status_bare(TOW_RESOURCE_EXHAUSTED);
    return TOW_OK;
}

static void close_bench(device_bench_t *bench)
{
    if (bench->scalar != NULL) tow_buffer_release(bench->scalar);
    if (bench->add != NULL) tow_executable_release(bench->add);
    if (bench->driver != NULL) {
        tow_driver_close(bench->driver, (tow_closed_t){complete_closed, bench});
        tow_status_ignore(await(bench), "closing always ends well");
    }
    tow_net_destroy(bench->net);
    tow_free(bench->source);
    tow_free(bench->copy);
}

/* -- The cases -------------------------------------------------------------- */

/* Targets: a computation takes at most 1.5 times XLA's time, and a copy has at
 * least 0.9 of memcpy's speed; the aligned case fails if memory is copied at
 * all. Execution on the device thread costs two thread switches, which
 * `may_block` avoids: no target. */
static const tow_bench_case_t rows[] = {
    {.name = "add_inline",
     .unit = "us",
     .peer = "XLA's C++ client directly, one thread",
     .better = TOW_BENCH_LOWER_IS_BETTER,
     .bar = 1 / 1.5,
     .run = add_inline,
     .peer_run = add_directly},
    {.name = "add_device_thread",
     .unit = "us",
     .peer = "XLA's C++ client directly, one thread",
     .better = TOW_BENCH_LOWER_IS_BETTER,
     .run = add_handed_over,
     .peer_run = add_directly},
    {.name = "upload_64MiB_aligned",
     .unit = "us",
     .peer = "memcpy into warm memory",
     .better = TOW_BENCH_LOWER_IS_BETTER,
     .bar = 1,
     .run = upload_aligned,
     .peer_run = copy_aligned},
    {.name = "upload_64MiB_unaligned",
     .unit = "us",
     .peer = "memcpy into warm memory",
     .better = TOW_BENCH_LOWER_IS_BETTER,
     .bar = 0.9,
     .run = upload_unaligned,
     .peer_run = copy_unaligned},
};

static tow_status_t run_rows(device_bench_t *bench,
                             const tow_bench_options_t *options)
{
    for (size_t i = 0; i < TOW_COUNT_OF(rows); i++) {
        tow_bench_case_t shown = rows[i];
        shown.bench = "device";
        shown.context = bench;
        TOW_RETURN_IF_ERROR(
            tow_bench_run_case(&shown, options->quick ? 5 : 11, options));
    }
    return TOW_OK;
}

static tow_status_t run_alone(const tow_bench_options_t *options)
{
    device_bench_t bench = {0};
    tow_status_t status = open_bench(&bench, options->quick);
    if (status == TOW_OK) status = run_rows(&bench, options);
    close_bench(&bench);
    return status;
}

/* The gangs come first: they fork, and XLA has not started threads in this
 * process yet. */
static tow_status_t run_benchmark(const tow_bench_options_t *options)
{
    TOW_RETURN_IF_ERROR(tow_bench_device_gangs(options));
    for (size_t i = 0; i < TOW_COUNT_OF(rows); i++)
        if (tow_bench_is_chosen(&rows[i], options)) return run_alone(options);
    return TOW_OK;
}

static const tow_benchmark_child_t children[] = {
    {"gang-member", tow_bench_gang_member},
    {0},
};

static const char *const case_names[] = {"add_inline",
                                         "add_device_thread",
                                         "upload_64MiB_aligned",
                                         "upload_64MiB_unaligned",
                                         "gang_2x1",
                                         "gang_2x1_mpi",
                                         "gang_2x4",
                                         "gang_2x4_mpi",
                                         NULL};

const tow_benchmark_t tow_bench_device = {
    .name = "device",
    .summary = "runs, gangs and transfers on XLA on the CPU, without a cluster",
    .cases = case_names,
    .run = run_benchmark,
    .children = children,
};
