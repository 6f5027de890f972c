/* Slices, functions and random programs of a simulated client. */
#include <elf.h>
#include <stdio.h>
#include <string.h>

#include "simcluster/client_impl.h"

/* Time limit of a host function. */
#define HOST_LIMIT_MS 300

const uint32_t sim_size_bytes[SIM_SIZES] = {256, 40000, 80000};

/* -- Functions and programs -------------------------------------------------------- */

tow_shape_t sim_client_shape_of(uint32_t size)
{
    return (tow_shape_t){
        .type = TOW_TYPE_U8, .rank = 1, .dims = {sim_size_bytes[size]}};
}

/* Kind 0: one argument, one result, a collective over all devices; 1: two
 * arguments, one result that may alias the first; 2: one argument, two results,
 * no collective; 3: as 0 with a collective over groups. */
static size_t write_function(char *text, size_t capacity, uint32_t kind,
                             uint32_t size, uint32_t device_count)
{
    const uint32_t bytes = sim_size_bytes[size];
    char shape[32], step[64];
    snprintf(shape, sizeof(shape), "u8[%u]", bytes);
    if (kind == 3 && device_count % 2 == 0)
        snprintf(step, sizeof(step), "all_gather %u group 2 stride %u", bytes,
                 device_count / 2);
    else
        snprintf(step, sizeof(step),
                 kind == 2 ? "duration 3000" : "all_reduce %u", bytes);
    return (size_t)snprintf(
        text, capacity,
        "towpath-cost 1\nname f%u.%u\nargument %s\n%s%s%sresult %s%s\n"
        "%s%s%stemporary 1000\nduration %u\n%s\n",
        kind, size, shape, kind == 1 ? "argument " : "", kind == 1 ? shape : "",
        kind == 1 ? "\n" : "", shape, kind == 1 ? " alias 0" : "",
        kind == 2 ? "result " : "", kind == 2 ? shape : "",
        kind == 2 ? "\n" : "", 1000 * (kind + 1), step);
}

static size_t inputs_of(uint32_t kind)
{
    return kind == 1 ? 2 : 1;
}

static bool request_host_functions(sim_client_t *self);

bool sim_client_request_functions(sim_client_t *self)
{
    char text[512];
    for (size_t slice = 0; slice < self->slice_count; slice++)
        for (uint32_t size = 0; size < SIM_SIZES; size++)
            for (uint32_t kind = 0; kind < SIM_FUNCTIONS; kind++) {
                tow_source_t source = {.struct_size = sizeof(source),
                                       .format = TOW_SOURCE_COST,
                                       .bytes = text};
                source.size = write_function(text, sizeof(text), kind, size,
                                             self->slice_sizes[slice]);
                if (!sim_client_try(self,
                                    tow_function_compile_start(
                                        self->slices[slice], &source,
                                        &self->functions[slice][size][kind]),
                                    "requesting a function"))
                    return false;
            }
    return request_host_functions(self);
}

/* Kinds of host functions: results of the argument's size, of any smaller size,
 * and from any smaller size to the full one. */
enum {
    HOST_SAME,
    HOST_FILTER,
    HOST_PAD
};

static tow_status_t request_host_function(sim_client_t *self, size_t slice,
                                          uint32_t size, uint32_t kind)
{
    static const char *const names[SIM_HOSTS] = {"same", "filter", "pad"};
    static const Elf64_Ehdr object = {
        .e_ident = {ELFMAG0, ELFMAG1, ELFMAG2, ELFMAG3, ELFCLASS64},
        .e_type = ET_DYN,
        .e_machine = EM_X86_64};
    const tow_array_info_t plain = {.shape = sim_client_shape_of(size),
                                    .bytes = sim_size_bytes[size]};
    tow_array_info_t bounded = plain;
    bounded.bounds = 1;
    const tow_signature_t signature = {
        .name = names[kind],
        .replica_count = 1,
        .partition_count = self->slice_sizes[slice],
        .argument_count = 1,
        .arguments = kind == HOST_PAD ? &bounded : &plain,
        .result_count = 1,
        .results = kind == HOST_FILTER ? &bounded : &plain,
        .is_host = true};
    return tow_host_function_load_start(
        self->slices[slice], (tow_bytes_t){&object, sizeof(object)}, &signature,
        HOST_LIMIT_MS, &self->hosts[slice][size][kind]);
}

static bool request_host_functions(sim_client_t *self)
{
    /* If running out of memory is an error, programs have few values. */
    self->has_hosts =
        !self->cluster->is_spilling && sim_client_below(self, 2) == 0;
    for (size_t slice = 0; slice < self->slice_count; slice++)
        for (uint32_t size = 0; size < SIM_SIZES; size++)
            for (uint32_t kind = 0; kind < SIM_HOSTS && self->has_hosts; kind++)
                if (!sim_client_try(
                        self, request_host_function(self, slice, size, kind),
                        "requesting a host function"))
                    return false;
    return true;
}

/* Values of one slice and size that the program has so far. */
typedef struct sim_pool {
    tow_value_t values[16];
    size_t count;
    size_t argument_count; /* at the start of `values` */
} sim_pool_t;

static tow_status_t add_arguments(sim_client_t *self, sim_routine_t *routine,
                                  sim_value_t like, sim_pool_t *pool)
{
    const size_t count = 1 + sim_client_below(self, 2);
    const tow_shape_t shape = sim_client_shape_of(like.size);
    for (size_t i = 0; i < count; i++) {
        like.donated = sim_client_below(self, 3) == 0;
        TOW_RETURN_IF_ERROR(tow_program_add_argument(
            routine->program, self->slices[like.slice], &shape, like.donated,
            &pool->values[pool->count++]));
        routine->arguments[routine->argument_count++] = like;
    }
    pool->argument_count = pool->count;
    return TOW_OK;
}

/* A collective over one or two values and all devices, or over rows or columns
 * of two rows. If running out of memory is an error, it takes one value, as a
 * call does. */
static tow_status_t add_collective(sim_client_t *self, sim_routine_t *routine,
                                   sim_value_t like, sim_pool_t *pool)
{
    const uint32_t devices = self->slice_sizes[like.slice];
    const size_t most = self->cluster->is_spilling ? 1 : 2;
    const size_t count = 1 + sim_client_below(self, most);
    tow_collective_t collective = {
        .kind = TOW_COLLECTIVE_ALL_REDUCE,
        .reduction = (tow_reduction_t)(1 + sim_client_below(self, 4))};
    if (devices % 2 == 0 && sim_client_below(self, 2) == 0) {
        collective.mesh_rank = 2;
        collective.mesh_dims[0] = 2;
        collective.mesh_dims[1] = devices / 2;
        collective.axis_count = 1;
        collective.axes[0] = (uint32_t)sim_client_below(self, 2);
    }
    tow_value_t inputs[2];
    for (size_t i = 0; i < count; i++)
        inputs[i] = pool->values[sim_client_below(self, pool->count)];
    uint32_t node;
    TOW_RETURN_IF_ERROR(
        tow_program_add_collective(routine->program, self->slices[like.slice],
                                   &collective, inputs, count, &node));
    for (uint32_t i = 0; i < count; i++)
        pool->values[pool->count++] = (tow_value_t){node, i};
    return TOW_OK;
}

static tow_status_t add_call(sim_client_t *self, sim_routine_t *routine,
                             sim_value_t like, sim_pool_t *pool)
{
    const uint32_t kind = (uint32_t)sim_client_below(self, SIM_FUNCTIONS);
    tow_value_t inputs[2];
    for (size_t i = 0; i < inputs_of(kind); i++)
        inputs[i] = pool->values[sim_client_below(self, pool->count)];
    uint32_t node;
    TOW_RETURN_IF_ERROR(tow_program_add_call(
        routine->program, self->functions[like.slice][like.size][kind],
        self->slices[like.slice], inputs, inputs_of(kind), &node));
    pool->values[pool->count++] = (tow_value_t){.node = node};
    if (kind == 2)
        pool->values[pool->count++] = (tow_value_t){.node = node, .output = 1};
    return TOW_OK;
}

static tow_status_t add_host(sim_client_t *self, sim_routine_t *routine,
                             sim_value_t like, uint32_t kind,
                             tow_value_t *value)
{
    const tow_value_t input = *value;
    *value = (tow_value_t){0};
    return tow_program_add_call(
        routine->program, self->hosts[like.slice][like.size][kind],
        self->slices[like.slice], &input, 1, &value->node);
}

/* Host functions: one that keeps the size, or one that filters followed by one
 * that pads; sometimes on another slice of equal size, to which the filtered
 * value is transferred. */
static tow_status_t add_hosts(sim_client_t *self, sim_routine_t *routine,
                              sim_value_t *like, sim_pool_t *pool)
{
    tow_value_t value = pool->values[pool->count - 1];
    if (sim_client_below(self, 3) == 0) {
        TOW_RETURN_IF_ERROR(add_host(self, routine, *like, HOST_SAME, &value));
    } else {
        const uint32_t slice =
            (uint32_t)sim_client_below(self, self->slice_count);
        const uint32_t before = like->slice;
        TOW_RETURN_IF_ERROR(
            add_host(self, routine, *like, HOST_FILTER, &value));
        if (self->slice_sizes[slice] == self->slice_sizes[like->slice])
            like->slice = slice;
        TOW_RETURN_IF_ERROR(add_host(self, routine, *like, HOST_PAD, &value));
        if (like->slice != before) *pool = (sim_pool_t){0};
    }
    pool->values[pool->count++] = value;
    return TOW_OK;
}

static tow_status_t add_calls(sim_client_t *self, sim_routine_t *routine,
                              sim_value_t like, sim_pool_t *pool)
{
    const size_t most = self->cluster->is_spilling ? 2 : 4;
    for (size_t calls = 1 + sim_client_below(self, most); calls > 0; calls--)
        TOW_RETURN_IF_ERROR(sim_client_below(self, 4) == 0
                                ? add_collective(self, routine, like, pool)
                                : add_call(self, routine, like, pool));
    return TOW_OK;
}

/* Transfers the last value to another slice and adds computations there. */
static tow_status_t add_move(sim_client_t *self, sim_routine_t *routine,
                             sim_value_t *like, sim_pool_t *pool)
{
    const uint32_t slice = (uint32_t)sim_client_below(self, self->slice_count);
    const tow_sharding_t from =
        tow_sharding_replicated(1, self->slice_sizes[like->slice]);
    const tow_sharding_t to =
        tow_sharding_replicated(1, self->slice_sizes[slice]);
    tow_value_t moved = {0};
    TOW_RETURN_IF_ERROR(tow_program_add_transfer(
        routine->program, pool->values[pool->count - 1], self->slices[slice],
        &from, &to, &moved.node));
    like->slice = slice;
    *pool = (sim_pool_t){.values = {moved}, .count = 1};
    return add_calls(self, routine, *like, pool);
}

static tow_status_t add_results(sim_client_t *self, sim_routine_t *routine,
                                sim_value_t like, const sim_pool_t *pool)
{
    const size_t made = pool->count - pool->argument_count;
    const tow_shape_t shape = sim_client_shape_of(like.size);
    size_t count = 1 + sim_client_below(self, 2);
    if (self->cluster->is_spilling)
        count = 1; /* Two results may be the same value. */
    for (; count > 0; count--) {
        tow_value_t value =
            pool->values[pool->argument_count + sim_client_below(self, made)];
        if (count == 1) value = pool->values[pool->count - 1];
        TOW_RETURN_IF_ERROR(tow_program_add_result(
            routine->program, value, self->slices[like.slice], &shape));
        routine->results[routine->result_count++] = like;
    }
    return TOW_OK;
}

/* A random graph on one slice, sometimes continued on others. */
static tow_status_t add_part(sim_client_t *self, sim_routine_t *routine)
{
    sim_value_t like = {.slice =
                            (uint32_t)sim_client_below(self, self->slice_count),
                        .size = (uint32_t)sim_client_below(self, SIM_SIZES)};
    sim_pool_t pool = {0};
    TOW_RETURN_IF_ERROR(add_arguments(self, routine, like, &pool));
    TOW_RETURN_IF_ERROR(add_calls(self, routine, like, &pool));
    if (self->has_hosts && sim_client_below(self, 2) == 0)
        TOW_RETURN_IF_ERROR(add_hosts(self, routine, &like, &pool));
    /* If running out of memory is an error, no program has more than 11
     * values. */
    const size_t most = self->cluster->is_spilling ? 2 : 3;
    for (size_t moves = sim_client_below(self, most); moves > 0; moves--) {
        TOW_RETURN_IF_ERROR(add_move(self, routine, &like, &pool));
        if (self->has_hosts && sim_client_below(self, 2) == 0)
            TOW_RETURN_IF_ERROR(add_hosts(self, routine, &like, &pool));
    }
    return add_results(self, routine, like, &pool);
}

tow_status_t sim_client_make_routine(sim_client_t *self, sim_routine_t *routine)
{
    *routine = (sim_routine_t){0};
    TOW_RETURN_IF_ERROR(
        tow_program_begin(self->client, "random", &routine->program));
    if (sim_client_below(self, 6) == 0)
        TOW_RETURN_IF_ERROR(tow_program_make_sequential(routine->program));
    size_t parts = 1 + sim_client_below(self, SIM_PARTS_MAX);
    if (self->cluster->is_spilling) parts = 1;
    for (; parts > 0; parts--)
        TOW_RETURN_IF_ERROR(add_part(self, routine));
    return tow_program_send(routine->program);
}

bool sim_client_request_programs(sim_client_t *self)
{
    for (size_t count = 1 + sim_client_below(self, SIM_PROGRAMS_MAX); count > 0;
         count--)
        if (!sim_client_try(self,
                            sim_client_make_routine(
                                self, &self->routines[self->routine_count++]),
                            "requesting a program"))
            return false;
    return true;
}

/* -- Slices ------------------------------------------------------------------------ */

/* On a named island, on any with enough devices (the first is the largest), or
 * across all islands. */
static tow_status_t request_slice(sim_client_t *self, size_t index)
{
    const simcluster_t *cluster = self->cluster;
    const size_t island = sim_client_below(self, cluster->island_count);
    const bool is_named = sim_client_below(self, 2) == 0;
    const bool spans = !is_named && sim_client_below(self, 3) == 0;
    const size_t most =
        spans ? cluster->worker_count * cluster->devices_per_worker
              : sim_island_devices(cluster, is_named ? island : 0);
    uint32_t size = sim_client_below(self, 4) == 0
                        ? 1
                        : 1 + (uint32_t)sim_client_below(self, most);
    const uint32_t rows =
        size % 2 == 0 && sim_client_below(self, 2) == 0 ? 2 : 1;
    char name[SIM_NAME_SIZE];
    sim_island_name(island, name);
    tow_slice_options_t options = {.struct_size = sizeof(options),
                                   .dims = {rows, size / rows},
                                   .island = is_named ? name
                                             : spans  ? TOW_ISLAND_EVERY
                                                      : NULL};
    self->slice_sizes[index] = size;
    return tow_slice_open_start(self->client, &options, &self->slices[index]);
}

bool sim_client_request_slices(sim_client_t *self)
{
    self->slice_count = 0;
    for (size_t count = 1 + sim_client_below(self, SIM_SLICES_MAX); count > 0;
         count--) {
        if (!sim_client_try(self, request_slice(self, self->slice_count),
                            "requesting a slice"))
            return false;
        self->slice_count++;
    }
    return true;
}
