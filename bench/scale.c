/* `tow bench scale`: the smallest computation with which one controller keeps
 * all devices of a large cluster busy, as in Figure 6 of the Pathways paper.
 *
 * Network, devices and time are simulated. Client, controller and workers are
 * the production code, and each message takes the CPU time that `tow bench
 * calibrate` has just measured in real processes on this host. The computation
 * has a given duration and an all-reduce over all devices; calls are chained
 * without waiting.
 *
 * "Busy" means 95% of the rate of the same devices with messages that cost
 * nothing. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/assert.h"
#include "bench/benchmarks.h"
#include "bench/calibrate.h"
#include "bench/harness.h"
#include "client/client.h"
#include "simcluster/roles.h"

#define IN_FLIGHT      64
#define WARM_UP        64
#define BUSY           0.95
#define LATENCY_NS     10000 /* of the network, one way */
#define BANDWIDTH      INT64_C(12500000000)
#define SHORTEST_NS    1000
#define LONGEST_NS     100000000
#define PRECISION      1.05
#define LOOK_EVERY_NS  1000000
#define HOST_NAME_SIZE 24
#define FINISH_BY_NS   (INT64_C(3600) * 1000000000)
#define MEASURED_MANY  256
#define MEASURED_FEW   96

typedef struct scale_size {
    const char *name;
    uint32_t host_count;
    uint32_t devices_per_host;
    double limit_us; /* the target */
} scale_size_t;

typedef struct scale_world {
    const scale_size_t *size;
    const tow_bench_costs_t *costs; /* NULL: messages cost nothing */
    uint64_t length_ns;         /* of a computation without its all-reduce */
    uint32_t computation_count; /* timed computations */
    tow_sim_t *sim;             /* owned, as the fields below */
    tow_sim_fabric_t *fabric;
    tow_sim_model_t model;
    tow_simcluster_role_t controller, *workers;
    char (*names)[HOST_NAME_SIZE];
    uint32_t process_number;
    /* The client. */
    tow_timer_t timer;
    tow_env_t *env;
    tow_client_t *client;
    tow_slice_t *slice;
    tow_function_t *function;
    tow_array_t *last;
    uint32_t started, finished;
    int64_t begun_ns, ended_ns;
} scale_world_t;

/* -- The client ------------------------------------------------------------------- */

static void fail(scale_world_t *world, tow_status_t take_status)
{
    if (take_status != TOW_OK) tow_sim_fail(world->sim, take_status);
}

static uint32_t all_count(const scale_world_t *world)
{
    return WARM_UP + world->computation_count;
}

static void start_more(scale_world_t *world);

static void one_finished(void *context, tow_status_t take_status)
{
    scale_world_t *world = context;
    fail(world, take_status);
    world->finished++;
    if (world->finished == WARM_UP)
        world->begun_ns = tow_env_now_ns(world->env);
    if (world->finished == all_count(world))
        world->ended_ns = tow_env_now_ns(world->env);
    start_more(world);
}

static tow_status_t start_one(scale_world_t *world)
{
    tow_program_t *program;
    tow_array_t *next = NULL;
    TOW_RETURN_IF_ERROR(
        tow_function_program(world->function, world->slice, &program));
    TOW_RETURN_IF_ERROR(tow_program_start(program, &world->last, 1, &next, 1));
    tow_array_release_locked(world->last);
    world->last = next;
    tow_callback_t *callback = tow_calloc(1, sizeof(*callback));
    if (callback == NULL) return tow_status_bare(TOW_RESOURCE_EXHAUSTED);
    callback->done = one_finished;
    callback->context = world;
    tow_array_call_when_ready(next, callback);
    world->started++;
    return TOW_OK;
}

static void start_more(scale_world_t *world)
{
    tow_status_t status = TOW_OK;
    while (status == TOW_OK && world->started < all_count(world) &&
           world->started - world->finished < IN_FLIGHT)
        status = start_one(world);
    fail(world, status);
}

static tow_status_t ask_function(scale_world_t *world)
{
    char text[256];
    tow_source_t source = {.struct_size = sizeof(source),
                           .format = TOW_SOURCE_COST,
                           .bytes = text};
    source.size = (size_t)snprintf(text, sizeof(text),
                                   "towpath-cost 1\nname step\n"
                                   "argument f32[]\nresult f32[]\n"
                                   "duration %" PRIu64 "\nall_reduce 4\n",
                                   world->length_ns);
    return tow_function_compile_start(world->slice, &source, &world->function);
}

static tow_status_t upload_zero(scale_world_t *world)
{
    static const float zero = 0;
    tow_completion_t free_bytes = {0};
    tow_upload_options_t options = {.struct_size = sizeof(options),
                                    .bytes = &zero,
                                    .size = sizeof(zero),
                                    .replicated = true};
    const tow_shape_t scalar = {.type = TOW_TYPE_F32};
    return tow_upload_start(world->slice, &options, &scalar, sizeof(zero),
                            &free_bytes, &world->last);
}

static tow_status_t ask_slice(scale_world_t *world)
{
    tow_slice_options_t options = {.struct_size = sizeof(options)};
    options.dims[0] = world->size->host_count * world->size->devices_per_host;
    return tow_slice_open_start(world->client, &options, &world->slice);
}

static bool all_joined(const scale_world_t *world)
{
    const tow_controller_t *controller = tow_simcluster_controller_of(
        tow_sim_node_find(world->sim, "controller"));
    return tow_controller_totals(controller).worker_count ==
           world->size->host_count;
}

/* Issues the next request when the last one has completed. */
static tow_status_t go_on(scale_world_t *world)
{
    if (world->client == NULL)
        return tow_client_dial(
            world->env,
            &(tow_client_dial_options_t){.address = "sim:controller"},
            &world->client);
    if (!tow_client_opening(world->client)->settled || !all_joined(world))
        return TOW_OK;
    if (world->slice == NULL) return ask_slice(world);
    if (!tow_slice_opening(world->slice)->settled) return TOW_OK;
    if (world->function == NULL) return ask_function(world);
    if (!tow_function_compiling(world->function)->settled ||
        world->last != NULL)
        return TOW_OK;
    TOW_RETURN_IF_ERROR(upload_zero(world));
    start_more(world);
    return TOW_OK;
}

static void look(tow_timer_t *timer)
{
    scale_world_t *world = TOW_CONTAINER_OF(timer, scale_world_t, timer);
    fail(world, go_on(world));
    if (world->last == NULL)
        tow_env_timer_start(world->env, timer,
                            tow_env_now_ns(world->env) + LOOK_EVERY_NS);
}

static tow_status_t start_client(tow_env_t *env, void *argument,
                                 void **out_machine)
{
    scale_world_t *world = argument;
    world->env = env;
    world->timer.fire = look;
    tow_env_timer_start(env, &world->timer, tow_env_now_ns(env));
    *out_machine = world;
    return TOW_OK;
}

static void destroy_client(void *machine)
{
    scale_world_t *world = machine;
    if (world->client != NULL) tow_client_discard(world->client);
    if (world->last != NULL) tow_array_release_locked(world->last);
    if (world->function != NULL) tow_function_release_locked(world->function);
    if (world->slice != NULL) tow_slice_release_locked(world->slice);
    if (world->client != NULL) tow_client_free(world->client);
}

static const tow_sim_program_t client_program = {.start = start_client,
                                                 .destroy = destroy_client};

/* -- The cluster ---------------------------------------------------------- */

static tow_status_t add_node(scale_world_t *world, const char *name,
                             const tow_sim_costs_t *costs,
                             const tow_sim_program_t *program, void *argument)
{
    tow_sim_host_options_t host = {.core_count = 1};
    if (world->costs != NULL) host.costs = *costs;
    tow_sim_host_t *made;
    tow_sim_node_t *node;
    TOW_RETURN_IF_ERROR(tow_sim_host_create(world->sim, &host, &made));
    return tow_sim_node_create(world->sim,
                               &(tow_sim_node_options_t){.name = name,
                                                         .host = made,
                                                         .program = program,
                                                         .argument = argument},
                               &node);
}

static tow_status_t add_nodes(scale_world_t *world)
{
    const tow_bench_costs_t *costs = world->costs;
    TOW_RETURN_IF_ERROR(
        add_node(world, "controller", costs != NULL ? &costs->controller : NULL,
                 &tow_simcluster_controller_program, &world->controller));
    for (uint32_t i = 0; i < world->size->host_count; i++) {
        snprintf(world->names[i], HOST_NAME_SIZE, "host-%u", i);
        world->workers[i] = world->controller;
        world->workers[i].host = world->names[i];
        TOW_RETURN_IF_ERROR(add_node(
            world, world->names[i], costs != NULL ? &costs->worker : NULL,
            &tow_simcluster_worker_program, &world->workers[i]));
    }
    return add_node(world, "client", costs != NULL ? &costs->client : NULL,
                    &client_program, world);
}

static tow_status_t make_world(scale_world_t *world)
{
    const size_t count = world->size->host_count;
    tow_sim_options_t options = {.seed = 1, .log = {.level = TOW_LOG_ERROR}};
    if (world->costs != NULL)
        options.remote_path = (tow_sim_path_t){
            .latency_ns = LATENCY_NS, .bandwidth_bytes_per_second = BANDWIDTH};
    world->workers = tow_calloc(count, sizeof(*world->workers));
    world->names = tow_calloc(count, sizeof(*world->names));
    if (world->workers == NULL || world->names == NULL)
        return tow_status_bare(TOW_RESOURCE_EXHAUSTED);
    TOW_RETURN_IF_ERROR(tow_sim_model_find("tpu_v4", &world->model));
    TOW_RETURN_IF_ERROR(tow_sim_create(&options, &world->sim));
    TOW_RETURN_IF_ERROR(
        tow_sim_fabric_create(&(tow_sim_fabric_options_t){0}, &world->fabric));
    world->controller =
        (tow_simcluster_role_t){.model = &world->model,
                                .fabric = world->fabric,
                                .controller = "sim:controller",
                                .device_count = world->size->devices_per_host,
                                .process_number = &world->process_number};
    return add_nodes(world);
}

static void free_world(scale_world_t *world)
{
    tow_sim_destroy(world->sim);
    tow_sim_fabric_destroy(world->fabric);
    tow_free(world->workers);
    tow_free(world->names);
}

static bool is_over(void *context)
{
    return ((scale_world_t *)context)->ended_ns > 0;
}

/* Virtual nanoseconds per computation of a chain. */
static tow_status_t time_computation(const scale_size_t *size,
                                     const tow_bench_costs_t *costs,
                                     uint64_t length_ns, uint32_t count,
                                     double *out_ns)
{
    scale_world_t world = {.size = size,
                           .costs = costs,
                           .length_ns = length_ns,
                           .computation_count = count};
    tow_status_t status = make_world(&world);
    if (status == TOW_OK)
        status = tow_sim_run(
            world.sim, &(tow_sim_run_options_t){.until = is_over,
                                                .context = &world,
                                                .until_ns = FINISH_BY_NS});
    *out_ns = (double)(world.ended_ns - world.begun_ns) / count;
    free_world(&world);
    return status;
}

/* -- The search ------------------------------------------------------------------- */

typedef struct scale_bench {
    const scale_size_t *size;
    const tow_bench_costs_t *costs;
    uint32_t computation_count;
} scale_bench_t;

/* True if the devices are busy. Also returns the duration of a computation with
 * its all-reduce. */
static tow_status_t try_length(const scale_bench_t *bench, uint64_t length_ns,
                               bool *out_is_busy, double *out_device_ns)
{
    double real_ns;
    TOW_RETURN_IF_ERROR(time_computation(
        bench->size, NULL, length_ns, bench->computation_count, out_device_ns));
    TOW_RETURN_IF_ERROR(time_computation(bench->size, bench->costs, length_ns,
                                         bench->computation_count, &real_ns));
    *out_is_busy = *out_device_ns >= BUSY * real_ns;
    return TOW_OK;
}

static tow_status_t find_smallest(void *context, double *out_us)
{
    const scale_bench_t *bench = context;
    double low = SHORTEST_NS, high = LONGEST_NS;
    *out_us = 0;
    while (high / low > PRECISION) {
        const double middle = low * __builtin_sqrt(high / low);
        bool is_busy;
        double device_ns;
        TOW_RETURN_IF_ERROR(
            try_length(bench, (uint64_t)middle, &is_busy, &device_ns));
        if (is_busy) {
            high = middle;
            *out_us = device_ns * 1e-3;
        } else {
            low = middle;
        }
    }
    if (*out_us > 0) return TOW_OK;
    return TOW_ERROR(TOW_OUT_OF_RANGE,
                     "devices are not busy even with computations of %d ms",
                     LONGEST_NS / 1000000);
}

static const scale_size_t sizes[] = {
    {"smallest_16x8", 16, 8, 200},
    {"smallest_64x8", 64, 8, 0},
    {"smallest_512x4", 512, 4, 2000},
};

static tow_status_t run_benchmark(const tow_bench_options_t *options)
{
    tow_bench_costs_t costs;
    TOW_RETURN_IF_ERROR(tow_bench_measure_costs(options, &costs));
    tow_bench_print_costs(&costs, options);
    for (size_t i = 0; i < TOW_COUNT_OF(sizes); i++) {
        scale_bench_t bench = {
            .size = &sizes[i],
            .costs = &costs,
            .computation_count = options->quick ? MEASURED_FEW : MEASURED_MANY};
        tow_bench_case_t shown = {
            .bench = "scale",
            .name = sizes[i].name,
            .unit = "us",
            .peer = "limit",
            .better = TOW_BENCH_LOWER_IS_BETTER,
            .bar = sizes[i].limit_us > 0 ? 1.0 : 0,
            .limit = sizes[i].limit_us > 0 ? sizes[i].limit_us : 1000,
            .simulated = true,
            .run = find_smallest,
            .context = &bench};
        TOW_RETURN_IF_ERROR(tow_bench_run_case(&shown, 1, options));
    }
    return TOW_OK;
}

static const char *const case_names[] = {"smallest_16x8", "smallest_64x8",
                                         "smallest_512x4", NULL};

const tow_benchmark_t tow_bench_scale = {
    .name = "scale",
    .summary = "smallest efficient computation on large clusters (simulated)",
    .cases = case_names,
    .run = run_benchmark,
};
