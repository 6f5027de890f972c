/* Slices and functions of a simulated client. */
#include <elf.h>
#include <inttypes.h>
#include <stdio.h>

#include "simcluster/client_impl.h"

/* Time limit of a host function. */
#define HOST_LIMIT_MS 300

const uint32_t sim_size_bytes[SIM_SIZES] = {256, 40000, 80000};

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

/* -- Functions ------------------------------------------------------------ */

tow_shape_t sim_client_shape_of(uint32_t size)
{
    return (tow_shape_t){
        .type = TOW_TYPE_U8, .rank = 1, .dims = {sim_size_bytes[size]}};
}

/* Kind 0: one argument, one result, a collective over all devices; 1: two
 * arguments, one result that may alias the first; 2: one argument, two results,
 * no collective; 3: as 0 with a collective over groups. */
sim_function_t sim_client_function(uint32_t kind, uint32_t size,
                                   uint32_t device_count)
{
    sim_function_t function = {.input_count = kind == 1 ? 2 : 1,
                               .output_count = kind == 2 ? 2 : 1,
                               .collective = SIM_ALL_REDUCE,
                               .output_bytes = sim_size_bytes[size]};
    snprintf(function.name, sizeof(function.name), "f%u.%u", kind, size);
    if (kind == 2) function.collective = SIM_ALONE;
    if (kind == 3 && device_count % 2 == 0)
        function.collective = SIM_GATHER_PAIRS;
    return function;
}

static void write_step(char *text, size_t capacity,
                       const sim_function_t *function, uint32_t device_count)
{
    const uint32_t bytes = function->output_bytes;
    if (function->collective == SIM_ALONE)
        snprintf(text, capacity, "duration 3000");
    else if (function->collective == SIM_ALL_REDUCE)
        snprintf(text, capacity, "all_reduce %u", bytes);
    else
        snprintf(text, capacity, "all_gather %u group 2 stride %u", bytes,
                 device_count / 2);
}

static size_t write_function(char *text, size_t capacity, uint32_t kind,
                             uint32_t size, uint32_t device_count)
{
    const sim_function_t function =
        sim_client_function(kind, size, device_count);
    char shape[32], step[64];
    snprintf(shape, sizeof(shape), "u8[%u]", function.output_bytes);
    write_step(step, sizeof(step), &function, device_count);
    return (size_t)snprintf(
        text, capacity,
        "towpath-cost 1\nname %s\nargument %s\n%s%s%sresult %s%s\n"
        "%s%s%stemporary 1000\nduration %u\n%s\n",
        function.name, shape, kind == 1 ? "argument " : "",
        kind == 1 ? shape : "", kind == 1 ? "\n" : "", shape,
        kind == 1 ? " alias 0" : "", kind == 2 ? "result " : "",
        kind == 2 ? shape : "", kind == 2 ? "\n" : "", 1000 * (kind + 1), step);
}

static tow_status_t request_function(sim_client_t *self, size_t slice,
                                     const char *text, size_t size,
                                     tow_function_t **out_function)
{
    const tow_source_t source = {.struct_size = sizeof(source),
                                 .format = TOW_SOURCE_COST,
                                 .bytes = text,
                                 .size = size};
    return tow_function_compile_start(self->slices[slice], &source,
                                      out_function);
}

/* A function that needs more memory than a device has: no piece of it fits. */
static tow_status_t request_giant(sim_client_t *self, size_t slice)
{
    char text[256];
    const size_t size = (size_t)snprintf(
        text, sizeof(text),
        "towpath-cost 1\nname giant\nargument u8[256]\nresult u8[256]\n"
        "temporary %" PRIu64 "\nduration 1000\n",
        self->cluster->memory_bytes);
    return request_function(self, slice, text, size, &self->giants[slice]);
}

static tow_status_t request_host_function(sim_client_t *self, size_t slice,
                                          uint32_t size, sim_host_kind_t kind);

static bool request_functions_of(sim_client_t *self, size_t slice,
                                 uint32_t size)
{
    char text[512];
    for (uint32_t kind = 0; kind < SIM_FUNCTIONS; kind++) {
        const size_t length = write_function(text, sizeof(text), kind, size,
                                             self->slice_sizes[slice]);
        if (!sim_client_try(
                self,
                request_function(self, slice, text, length,
                                 &self->functions[slice][size][kind]),
                "requesting a function"))
            return false;
    }
    for (uint32_t kind = 0; kind < SIM_HOSTS && self->has_hosts; kind++)
        if (!sim_client_try(
                self,
                request_host_function(self, slice, size, (sim_host_kind_t)kind),
                "requesting a host function"))
            return false;
    return true;
}

bool sim_client_request_functions(sim_client_t *self)
{
    /* If running out of memory is an error, programs have few values. */
    self->has_hosts =
        !self->cluster->is_spilling && sim_client_below(self, 2) == 0;
    for (size_t slice = 0; slice < self->slice_count; slice++) {
        for (uint32_t size = 0; size < SIM_SIZES; size++)
            if (!request_functions_of(self, slice, size)) return false;
        if (self->cluster->has_giants &&
            !sim_client_try(self, request_giant(self, slice),
                            "requesting a giant function"))
            return false;
    }
    return true;
}

/* -- Host functions ------------------------------------------------------- */

sim_host_function_t sim_client_host_function(sim_host_kind_t kind,
                                             uint32_t size)
{
    static const char *const names[SIM_HOSTS] = {"same", "filter", "pad"};
    return (sim_host_function_t){.name = names[kind],
                                 .output_bytes = sim_size_bytes[size],
                                 .is_bounded = kind == HOST_FILTER};
}

static tow_status_t request_host_function(sim_client_t *self, size_t slice,
                                          uint32_t size, sim_host_kind_t kind)
{
    static const Elf64_Ehdr object = {
        .e_ident = {ELFMAG0, ELFMAG1, ELFMAG2, ELFMAG3, ELFCLASS64},
        .e_type = ET_DYN,
        .e_machine = EM_X86_64};
    const tow_array_info_t plain = {.shape = sim_client_shape_of(size),
                                    .bytes = sim_size_bytes[size]};
    tow_array_info_t bounded = plain;
    bounded.bounds = 1;
    const tow_signature_t signature = {
        .name = sim_client_host_function(kind, size).name,
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
