/* Random programs of a simulated client, and their recipes. */
#include <string.h>

#include "base/assert.h"
#include "simcluster/client_impl.h"

/* Bytes of an array that is resharded: all its parts may be on one device. */
#define WHOLE_BYTES_MAX 640000u
/* Transfers and collectives in a chain: well below TOW_TRANSFER_CHAIN_MAX. */
#define CHAIN_MAX 10u
/* Values that a part of a program may use next. */
#define POOL_MAX 16u

/* A value of the program under construction. */
typedef struct sim_pooled {
    tow_value_t value;
    uint32_t model; /* the same value of the recipe */
    bool is_argument;
    bool is_uniform;
    uint32_t chain; /* transfers and collectives since the last computation */
} sim_pooled_t;

/* Values of one slice and size that the program has so far. */
typedef struct sim_pool {
    sim_pooled_t values[POOL_MAX];
    size_t count;
    size_t capacity;
} sim_pool_t;

static void pool_init(sim_pool_t *pool, const sim_client_t *self)
{
    /* If running out of memory is an error, programs have few values. */
    *pool = (sim_pool_t){.capacity = self->cluster->is_spilling ? 10 : 16};
}

/* Forgets a random value if it is full. */
static void pool_add(sim_client_t *self, sim_pool_t *pool, sim_pooled_t value)
{
    TOW_ASSERT(pool->capacity > 0);
    if (pool->count == pool->capacity) {
        const size_t gone = sim_client_below(self, pool->count);
        pool->count--;
        memmove(&pool->values[gone], &pool->values[gone + 1],
                (pool->count - gone) * sizeof(pool->values[0]));
    }
    pool->values[pool->count++] = value;
}

static sim_pooled_t pool_last(const sim_pool_t *pool)
{
    return pool->values[pool->count - 1];
}

static sim_pooled_t pool_any(sim_client_t *self, const sim_pool_t *pool)
{
    return pool->values[sim_client_below(self, pool->count)];
}

/* -- Arguments ------------------------------------------------------------ */

static tow_status_t add_argument(sim_client_t *self, sim_routine_t *routine,
                                 sim_value_t like, sim_pool_t *pool)
{
    const tow_shape_t shape = sim_client_shape_of(like.size);
    like.donated = sim_client_below(self, 3) == 0;
    like.is_uniform = sim_client_below(self, 2) == 0;
    sim_pooled_t pooled = {.is_argument = true, .is_uniform = like.is_uniform};
    TOW_RETURN_IF_ERROR(
        tow_program_add_argument(routine->program, self->slices[like.slice],
                                 &shape, like.donated, &pooled.value));
    pooled.model = sim_recipe_add(
        &routine->recipe,
        &(sim_step_t){.kind = SIM_STEP_ARGUMENT,
                      .device_count = self->slice_sizes[like.slice],
                      .output_count = 1,
                      .as.argument = (uint32_t)routine->argument_count});
    routine->arguments[routine->argument_count++] = like;
    pool_add(self, pool, pooled);
    return TOW_OK;
}

static tow_status_t add_arguments(sim_client_t *self, sim_routine_t *routine,
                                  sim_value_t like, sim_pool_t *pool)
{
    for (size_t count = 1 + sim_client_below(self, 2); count > 0; count--)
        TOW_RETURN_IF_ERROR(add_argument(self, routine, like, pool));
    return TOW_OK;
}

/* -- Collectives ---------------------------------------------------------- */

static tow_collective_t choose_collective(sim_client_t *self, uint32_t devices)
{
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
    return collective;
}

/* A collective over one or two values and all devices, or over rows or columns
 * of two rows. If running out of memory is an error, it takes one value, as a
 * call does. */
static tow_status_t add_collective(sim_client_t *self, sim_routine_t *routine,
                                   sim_value_t like, sim_pool_t *pool)
{
    const uint32_t devices = self->slice_sizes[like.slice];
    const size_t most = self->cluster->is_spilling ? 1 : 2;
    const uint32_t count = 1 + (uint32_t)sim_client_below(self, most);
    sim_step_t step = {.kind = SIM_STEP_COLLECTIVE,
                       .device_count = devices,
                       .input_count = count,
                       .output_count = count};
    step.as.collective = choose_collective(self, devices);
    sim_pooled_t inputs[2];
    tow_value_t values[2];
    uint32_t chain = 0, node;
    for (size_t i = 0; i < count; i++) {
        inputs[i] = pool_any(self, pool);
        values[i] = inputs[i].value;
        step.inputs[i] = inputs[i].model;
        if (inputs[i].chain > chain) chain = inputs[i].chain;
    }
    if (chain >= CHAIN_MAX) return TOW_OK;
    TOW_RETURN_IF_ERROR(
        tow_program_add_collective(routine->program, self->slices[like.slice],
                                   &step.as.collective, values, count, &node));
    const uint32_t model = sim_recipe_add(&routine->recipe, &step);
    for (uint32_t i = 0; i < count; i++)
        pool_add(self, pool,
                 (sim_pooled_t){.value = {node, i},
                                .model = model + i,
                                .is_uniform = inputs[i].is_uniform ||
                                              step.as.collective.mesh_rank == 0,
                                .chain = chain + 1});
    return TOW_OK;
}

/* -- Computations --------------------------------------------------------- */

static bool call_is_uniform(const sim_function_t *function,
                            const sim_pooled_t *inputs)
{
    if (function->collective == SIM_ALL_REDUCE) return true;
    bool is_uniform = true;
    for (uint32_t i = 0; i < function->input_count; i++)
        is_uniform &= inputs[i].is_uniform;
    return is_uniform;
}

static tow_status_t add_call_of(sim_client_t *self, sim_routine_t *routine,
                                sim_value_t like, uint32_t kind,
                                const sim_pooled_t *inputs, sim_pool_t *pool)
{
    const uint32_t devices = self->slice_sizes[like.slice];
    sim_step_t step = {.kind = SIM_STEP_CALL, .device_count = devices};
    step.as.function = sim_client_function(kind, like.size, devices);
    step.input_count = step.as.function.input_count;
    step.output_count = step.as.function.output_count;
    tow_value_t values[SIM_INPUTS_MAX];
    for (uint32_t i = 0; i < step.input_count; i++) {
        values[i] = inputs[i].value;
        step.inputs[i] = inputs[i].model;
    }
    sim_pooled_t pooled = {.is_uniform =
                               call_is_uniform(&step.as.function, inputs)};
    TOW_RETURN_IF_ERROR(tow_program_add_call(
        routine->program, self->functions[like.slice][like.size][kind],
        self->slices[like.slice], values, step.input_count,
        &pooled.value.node));
    pooled.model = sim_recipe_add(&routine->recipe, &step);
    for (uint32_t i = 0; i < step.output_count; i++) {
        pooled.value.output = i;
        pool_add(self, pool, pooled);
        pooled.model++;
    }
    return TOW_OK;
}

static tow_status_t add_call(sim_client_t *self, sim_routine_t *routine,
                             sim_value_t like, sim_pool_t *pool)
{
    const uint32_t kind = (uint32_t)sim_client_below(self, SIM_FUNCTIONS);
    sim_pooled_t inputs[SIM_INPUTS_MAX];
    for (uint32_t i = 0; i < SIM_INPUTS_MAX; i++)
        inputs[i] = pool_any(self, pool);
    return add_call_of(self, routine, like, kind, inputs, pool);
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

/* -- Host functions ------------------------------------------------------- */

static tow_status_t add_host(sim_client_t *self, sim_routine_t *routine,
                             sim_value_t like, sim_host_kind_t kind,
                             sim_pooled_t *value)
{
    const tow_value_t input = value->value;
    sim_step_t step = {.kind = SIM_STEP_HOST,
                       .device_count = self->slice_sizes[like.slice],
                       .inputs = {value->model},
                       .input_count = 1,
                       .output_count = 1};
    step.as.host = sim_client_host_function(kind, like.size);
    *value = (sim_pooled_t){.is_uniform = value->is_uniform};
    value->model = sim_recipe_add(&routine->recipe, &step);
    return tow_program_add_call(
        routine->program, self->hosts[like.slice][like.size][kind],
        self->slices[like.slice], &input, 1, &value->value.node);
}

/* Host functions: one that keeps the size, or one that filters followed by one
 * that pads; sometimes on another slice of equal size, to which the filtered
 * value is transferred. */
static tow_status_t add_hosts(sim_client_t *self, sim_routine_t *routine,
                              sim_value_t *like, sim_pool_t *pool)
{
    sim_pooled_t value = pool_last(pool);
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
        if (like->slice != before) pool_init(pool, self);
    }
    pool_add(self, pool, value);
    return TOW_OK;
}

/* -- Transfers ------------------------------------------------------------ */

/* Sometimes in an order of devices other than theirs. */
tow_sharding_t sim_client_cut(sim_client_t *self, uint32_t parts,
                              uint32_t devices)
{
    tow_sharding_t sharding = {
        .rank = 1, .parts = {parts}, .replicas = devices / parts};
    if (devices % 2 == 0 && sim_client_below(self, 4) == 0) {
        sharding.mesh_rank = 2;
        sharding.mesh_dims[0] = 2;
        sharding.mesh_dims[1] = devices / 2;
        sharding.mesh_axes[0] = 1;
    }
    return sharding;
}

uint32_t sim_client_choose_parts(sim_client_t *self, uint32_t devices,
                                 uint64_t bytes)
{
    uint32_t parts = 1 + (uint32_t)sim_client_below(self, devices);
    while (devices % parts != 0 || bytes % parts != 0)
        parts--;
    return parts;
}

static tow_status_t add_transfer(sim_client_t *self, sim_routine_t *routine,
                                 uint32_t slice, const tow_sharding_t *from,
                                 const tow_sharding_t *to, sim_pooled_t *value)
{
    sim_step_t step = {.kind = SIM_STEP_TRANSFER,
                       .device_count = self->slice_sizes[slice],
                       .inputs = {value->model},
                       .input_count = 1,
                       .output_count = 1};
    step.as.transfer.from = *from;
    step.as.transfer.to = *to;
    const tow_value_t source = value->value;
    *value = (sim_pooled_t){.model = sim_recipe_add(&routine->recipe, &step),
                            .is_uniform = to->parts[0] == 1,
                            .chain = value->chain + 1};
    return tow_program_add_transfer(routine->program, source,
                                    self->slices[slice], from, to,
                                    &value->value.node);
}

/* To the other slice in parts of another size, and on to `slice` in those of
 * `to`, which has as many parts as `from`. */
static tow_status_t add_detour(sim_client_t *self, sim_routine_t *routine,
                               sim_value_t like, const tow_sharding_t *from,
                               const tow_sharding_t *to, sim_pooled_t *value)
{
    const uint32_t via = (uint32_t)sim_client_below(self, self->slice_count);
    const uint32_t devices = self->slice_sizes[via];
    const uint64_t bytes = (uint64_t)sim_size_bytes[like.size] * from->parts[0];
    if (bytes > WHOLE_BYTES_MAX || self->cluster->is_spilling)
        return add_transfer(self, routine, like.slice, from, to, value);
    const tow_sharding_t between = sim_client_cut(
        self, sim_client_choose_parts(self, devices, bytes), devices);
    TOW_RETURN_IF_ERROR(
        add_transfer(self, routine, via, from, &between, value));
    return add_transfer(self, routine, like.slice, &between, to, value);
}

/* Transfers the value to the slice of `like`. If its shards differ and the
 * slices have equally many devices, it stays cut; else all shards are combined
 * first, so that a transfer from any of them gives the same bytes. */
static tow_status_t add_move_of(sim_client_t *self, sim_routine_t *routine,
                                uint32_t from_slice, sim_value_t like,
                                sim_pooled_t *value)
{
    const uint32_t sources = self->slice_sizes[from_slice];
    const uint32_t targets = self->slice_sizes[like.slice];
    const bool stays_cut =
        !value->is_uniform && sources == targets && value->chain < CHAIN_MAX;
    if (!stays_cut && (!value->is_uniform || value->chain >= CHAIN_MAX)) {
        sim_pool_t made = {.capacity = 1};
        const sim_value_t there = {.slice = from_slice, .size = like.size};
        TOW_RETURN_IF_ERROR(add_call_of(self, routine, there, 0, value, &made));
        *value = made.values[0];
    }
    /* A later transfer states the same sharding again. */
    const tow_sharding_t from = stays_cut ? tow_sharding_by_shard(1, sources)
                                          : tow_sharding_replicated(1, sources);
    const tow_sharding_t to = stays_cut ? tow_sharding_by_shard(1, targets)
                                        : sim_client_cut(self, 1, targets);
    return sim_client_below(self, 3) == 0
               ? add_detour(self, routine, like, &from, &to, value)
               : add_transfer(self, routine, like.slice, &from, &to, value);
}

/* Transfers the last value to another slice and adds computations there. */
static tow_status_t add_move(sim_client_t *self, sim_routine_t *routine,
                             sim_value_t *like, sim_pool_t *pool)
{
    const uint32_t before = like->slice;
    sim_pooled_t moved = pool_last(pool);
    like->slice = (uint32_t)sim_client_below(self, self->slice_count);
    TOW_RETURN_IF_ERROR(add_move_of(self, routine, before, *like, &moved));
    pool_init(pool, self);
    pool_add(self, pool, moved);
    return add_calls(self, routine, *like, pool);
}

/* -- Results -------------------------------------------------------------- */

static tow_status_t add_result(sim_client_t *self, sim_routine_t *routine,
                               sim_value_t like, const sim_pooled_t *value)
{
    const tow_shape_t shape = sim_client_shape_of(like.size);
    TOW_RETURN_IF_ERROR(tow_program_add_result(
        routine->program, value->value, self->slices[like.slice], &shape));
    sim_recipe_add_result(&routine->recipe, value->model);
    like.node = value->value.node;
    routine->results[routine->result_count++] = like;
    return TOW_OK;
}

static tow_status_t add_results(sim_client_t *self, sim_routine_t *routine,
                                sim_value_t like, const sim_pool_t *pool)
{
    const sim_pooled_t last = pool_last(pool);
    const sim_pooled_t any = pool_any(self, pool);
    const bool is_another = sim_client_below(self, 2) == 0;
    /* Two results may be the same value, which cannot be spilled. */
    if (is_another && !any.is_argument && !self->cluster->is_spilling)
        TOW_RETURN_IF_ERROR(add_result(self, routine, like, &any));
    return last.is_argument ? TOW_OK : add_result(self, routine, like, &last);
}

/* -- Short programs ------------------------------------------------------- */

/* A random graph on one slice, sometimes continued on others. */
static tow_status_t add_part(sim_client_t *self, sim_routine_t *routine)
{
    sim_value_t like = {.slice =
                            (uint32_t)sim_client_below(self, self->slice_count),
                        .size = (uint32_t)sim_client_below(self, SIM_SIZES)};
    sim_pool_t pool;
    pool_init(&pool, self);
    TOW_RETURN_IF_ERROR(add_arguments(self, routine, like, &pool));
    TOW_RETURN_IF_ERROR(add_calls(self, routine, like, &pool));
    if (self->has_hosts && sim_client_below(self, 2) == 0)
        TOW_RETURN_IF_ERROR(add_hosts(self, routine, &like, &pool));
    /* If running out of memory is an error, no program has more than 13
     * values. */
    const size_t most = self->cluster->is_spilling ? 2 : 3;
    for (size_t moves = sim_client_below(self, most); moves > 0; moves--) {
        TOW_RETURN_IF_ERROR(add_move(self, routine, &like, &pool));
        if (self->has_hosts && sim_client_below(self, 2) == 0)
            TOW_RETURN_IF_ERROR(add_hosts(self, routine, &like, &pool));
    }
    return add_results(self, routine, like, &pool);
}

static tow_status_t add_parts(sim_client_t *self, sim_routine_t *routine)
{
    size_t parts = 1 + sim_client_below(self, SIM_PARTS_MAX);
    if (self->cluster->is_spilling) parts = 1;
    for (; parts > 0; parts--)
        TOW_RETURN_IF_ERROR(add_part(self, routine));
    return TOW_OK;
}

/* -- Long programs -------------------------------------------------------- */

/* Adds one or a few nodes on the slice of `like`, with values of that slice or
 * of another one. */
static tow_status_t add_some(sim_client_t *self, sim_routine_t *routine,
                             sim_value_t like, sim_pool_t *pools)
{
    sim_pool_t *pool = &pools[like.slice];
    const uint64_t drawn = sim_client_below(self, 100);
    if (drawn < 10) return add_collective(self, routine, like, pool);
    if (drawn >= 30) return add_call(self, routine, like, pool);
    if (drawn == 29 && self->has_hosts) {
        sim_pooled_t value = pool_last(pool);
        TOW_RETURN_IF_ERROR(add_host(self, routine, like, HOST_SAME, &value));
        pool_add(self, pool, value);
        return TOW_OK;
    }
    const uint32_t from = (uint32_t)sim_client_below(self, self->slice_count);
    sim_pooled_t value = pool_any(self, &pools[from]);
    TOW_RETURN_IF_ERROR(add_move_of(self, routine, from, like, &value));
    pool_add(self, pool, value);
    return TOW_OK;
}

/* The last value is computed on its slice: an argument is not a result. */
static tow_status_t end_long(sim_client_t *self, sim_routine_t *routine,
                             sim_value_t like, sim_pool_t *pool)
{
    const sim_pooled_t last = pool_last(pool);
    TOW_RETURN_IF_ERROR(add_call_of(self, routine, like, 2, &last, pool));
    return add_results(self, routine, like, pool);
}

static tow_status_t add_long(sim_client_t *self, sim_routine_t *routine)
{
    const uint32_t count = self->cluster->long_nodes;
    sim_pool_t pools[SIM_SLICES_MAX];
    sim_value_t like = {.size = (uint32_t)sim_client_below(self, 2)};
    /* Small transfers take their memory early: of large values, all of a program
     * would not fit. */
    if (self->cluster->is_spilling) like.size = 0;
    for (like.slice = 0; like.slice < self->slice_count; like.slice++) {
        pool_init(&pools[like.slice], self);
        pools[like.slice].capacity /= 2;
        TOW_RETURN_IF_ERROR(
            add_arguments(self, routine, like, &pools[like.slice]));
    }
    while (routine->recipe.steps.count < count) {
        like.slice = (uint32_t)sim_client_below(self, self->slice_count);
        TOW_RETURN_IF_ERROR(add_some(self, routine, like, pools));
    }
    for (like.slice = 0; like.slice < self->slice_count; like.slice++)
        TOW_RETURN_IF_ERROR(end_long(self, routine, like, &pools[like.slice]));
    routine->is_long = true;
    return TOW_OK;
}

/* -- Programs ------------------------------------------------------------- */

/* Every client has one long program. */
static bool is_long_due(const sim_client_t *self)
{
    if (self->cluster->long_nodes == 0) return false;
    for (size_t i = 0; i < self->routine_count; i++)
        if (self->routines[i].is_long) return false;
    return true;
}

tow_status_t sim_client_make_routine(sim_client_t *self, sim_routine_t *routine)
{
    const bool is_long = is_long_due(self);
    *routine = (sim_routine_t){0};
    TOW_RETURN_IF_ERROR(
        tow_program_begin(self->client, "random", &routine->program));
    if (sim_client_below(self, 6) == 0)
        TOW_RETURN_IF_ERROR(tow_program_make_sequential(routine->program));
    TOW_RETURN_IF_ERROR(is_long ? add_long(self, routine)
                                : add_parts(self, routine));
    return tow_program_send(routine->program);
}

void sim_client_discard_routine(sim_routine_t *routine)
{
    if (routine->program != NULL) tow_program_release_locked(routine->program);
    sim_recipe_deinit(&routine->recipe);
    *routine = (sim_routine_t){0};
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
