/* A client of the simulated cluster: opens slices, compiles, builds programs,
 * and then uploads, runs, downloads and drops at random. Whatever it is told must
 * make sense: every future settles once, errors are those that faults explain,
 * and bytes come back as they went. */
#include <string.h>

#include "base/alloc.h"
#include "base/assert.h"
#include "tool/sim_cluster_impl.h"

/* Bytes of one shard. With several shards the second is written over lanes, and
 * still read in messages; the third goes over lanes both ways. */
static const uint32_t size_bytes[SIM_SIZES] = {256, 40000, 80000};

typedef enum sim_phase {
    PHASE_DIAL,
    PHASE_OPENING,
    PHASE_SLICES,
    PHASE_FUNCTIONS,
    PHASE_PROGRAMS,
    PHASE_WORK,
    PHASE_DRAIN,
    PHASE_LEAVE,
    PHASE_DONE,
} sim_phase_t;

typedef struct sim_value {
    uint32_t slice;
    uint32_t size;
    bool donated;
} sim_value_t;

typedef struct sim_routine { /* a program, and what it takes and gives */
    tow_program_t *program;
    sim_value_t arguments[SIM_VALUES_MAX];
    size_t argument_count;
    sim_value_t results[SIM_VALUES_MAX];
    size_t result_count;
} sim_routine_t;

typedef struct sim_array {
    tow_array_t *array;
    uint32_t slice;
    uint32_t size;
    bool is_uploaded; /* then its bytes are known: */
    bool replicated;
    uint32_t offset; /* in the pattern */
} sim_array_t;

typedef struct sim_client sim_client_t;

/* Something that was promised. */
typedef struct sim_future {
    tow_list_t node;
    sim_client_t *client;
    const char *what;
    uint8_t *bytes; /* owned: of a download */
    size_t size;
    const uint8_t *expected; /* lent; NULL: not known */
} sim_future_t;

struct sim_client {
    sim_process_t *process;
    sim_cluster_t *cluster;
    tow_env_t *env;
    tow_random_t random;
    tow_timer_t timer;
    sim_phase_t phase;
    tow_client_t *client;
    bool is_shut;
    bool is_broken; /* something was lost: begin anew */
    tow_slice_t *slices[SIM_SLICES_MAX];
    uint32_t slice_sizes[SIM_SLICES_MAX];
    size_t slice_count;
    tow_function_t *functions[SIM_SLICES_MAX][SIM_SIZES][SIM_FUNCTIONS];
    sim_routine_t routines[SIM_PROGRAMS_MAX];
    size_t routine_count;
    sim_array_t arrays[SIM_ARRAYS_MAX];
    size_t array_count;
    tow_list_t futures; /* that have not settled */
};

static uint64_t below(sim_client_t *self, uint64_t bound)
{
    return sim_below(&self->random, bound);
}

static void fail(sim_client_t *self, tow_status_t take_status)
{
    tow_sim_fail(self->cluster->sim,
                 tow_status_annotate(take_status, "%s", self->process->name));
}

/* -- Errors ---------------------------------------------------------------------- */

/* Which errors do faults, and the memory that there is, explain? */
static bool is_explained(const sim_client_t *self, tow_code_t code)
{
    const sim_cluster_t *cluster = self->cluster;
    if (code == TOW_CODE_OK) return true;
    if (code == TOW_RESOURCE_EXHAUSTED && cluster->is_tight) return true;
    if (self->is_shut && code == TOW_CANCELLED) return true;
    if (cluster->is_calm) return false;
    return code == TOW_UNAVAILABLE || code == TOW_ABORTED ||
           code == TOW_CANCELLED ||
           (code == TOW_DATA_LOSS && cluster->is_damaging);
}

/* True if all is well. Anything but want of memory breaks what we have. */
static bool look_at(sim_client_t *self, tow_status_t status, const char *what)
{
    tow_code_t code = tow_status_code(status);
    if (code != TOW_CODE_OK)
        tow_log(&self->env->log, TOW_LOG_INFO, "failed",
                TOW_F_STR("what", what),
                TOW_F_STR("why", tow_status_message(status)));
    if (!is_explained(self, code))
        fail(self,
             tow_status_annotate(tow_status_retain(status),
                                 "nothing explains this error of %s", what));
    if (code != TOW_CODE_OK && code != TOW_RESOURCE_EXHAUSTED)
        self->is_broken = true;
    return code == TOW_CODE_OK;
}

static bool try(sim_client_t *self, tow_status_t take_status, const char *what)
{
    bool ok = look_at(self, take_status, what);
    tow_status_release(take_status);
    return ok;
}

/* -- Futures --------------------------------------------------------------------- */

static void free_future(sim_future_t *future)
{
    tow_list_remove(&future->node);
    tow_free(future->bytes);
    tow_free(future);
}

static void settled(void *context, tow_status_t take_status)
{
    sim_future_t *future = context;
    sim_client_t *self = future->client;
    tow_sim_cluster_stats_t *stats = &self->cluster->stats;
    bool ok = look_at(self, take_status, future->what);
    if (strcmp(future->what, "a run") == 0)
        *(ok ? &stats->runs_done : &stats->runs_failed) += 1;
    if (ok && future->expected != NULL) {
        stats->bytes_checked += future->size;
        if (memcmp(future->bytes, future->expected, future->size) != 0)
            fail(self, TOW_ERROR(TOW_INTERNAL,
                                 "%zu bytes came back other than they went",
                                 future->size));
    }
    tow_status_release(take_status);
    free_future(future);
}

static sim_future_t *make_future(sim_client_t *self,
                                 tow_callback_t **out_callback)
{
    sim_future_t *future = tow_calloc(1, sizeof(*future));
    tow_callback_t *callback = tow_calloc(1, sizeof(*callback));
    TOW_ASSERT(future != NULL && callback != NULL);
    future->client = self;
    tow_list_append(&self->futures, &future->node);
    callback->done = settled;
    callback->context = future;
    *out_callback = callback;
    return future;
}

static void expect_value(sim_client_t *self, tow_array_t *array,
                         const char *what)
{
    tow_callback_t *callback;
    make_future(self, &callback)->what = what;
    tow_array_call_when_ready(array, callback);
}

/* -- Functions and programs -------------------------------------------------------- */

static tow_shape_t shape_of(uint32_t size)
{
    return (tow_shape_t){
        .type = TOW_TYPE_U8, .rank = 1, .dims = {size_bytes[size]}};
}

/* 0: one to one, a collective of all; 1: two to one, may take the first one's
 * memory; 2: one to two, nothing is exchanged; 3: one to one, in groups. */
static size_t write_function(char *text, size_t capacity, uint32_t kind,
                             uint32_t size, uint32_t device_count)
{
    const uint32_t bytes = size_bytes[size];
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

static bool ask_functions(sim_client_t *self)
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
                if (!try(self,
                         tow_function_ask(self->slices[slice], &source,
                                          &self->functions[slice][size][kind]),
                         "asking for a function"))
                    return false;
            }
    return true;
}

/* Values of one slice and size that a program has so far. */
typedef struct sim_pool {
    tow_value_t values[16];
    size_t count;
    size_t argument_count; /* the first ones */
} sim_pool_t;

static tow_status_t add_arguments(sim_client_t *self, sim_routine_t *routine,
                                  sim_value_t like, sim_pool_t *pool)
{
    const size_t count = 1 + below(self, 2);
    const tow_shape_t shape = shape_of(like.size);
    for (size_t i = 0; i < count; i++) {
        like.donated = below(self, 3) == 0;
        TOW_RETURN_IF_ERROR(tow_program_add_argument(
            routine->program, self->slices[like.slice], &shape, like.donated,
            &pool->values[pool->count++]));
        routine->arguments[routine->argument_count++] = like;
    }
    pool->argument_count = pool->count;
    return TOW_OK;
}

static tow_status_t add_call(sim_client_t *self, sim_routine_t *routine,
                             sim_value_t like, sim_pool_t *pool)
{
    const uint32_t kind = (uint32_t)below(self, SIM_FUNCTIONS);
    tow_value_t inputs[2];
    for (size_t i = 0; i < inputs_of(kind); i++)
        inputs[i] = pool->values[below(self, pool->count)];
    uint32_t node;
    TOW_RETURN_IF_ERROR(tow_program_add_call(
        routine->program, self->functions[like.slice][like.size][kind],
        self->slices[like.slice], inputs, inputs_of(kind), &node));
    pool->values[pool->count++] = (tow_value_t){.node = node};
    if (kind == 2)
        pool->values[pool->count++] = (tow_value_t){.node = node, .output = 1};
    return TOW_OK;
}

/* A chain, a fan or a knot on one slice. */
static tow_status_t add_part(sim_client_t *self, sim_routine_t *routine)
{
    sim_value_t like = {.slice = (uint32_t)below(self, self->slice_count),
                        .size = (uint32_t)below(self, SIM_SIZES)};
    sim_pool_t pool = {0};
    TOW_RETURN_IF_ERROR(add_arguments(self, routine, like, &pool));
    for (size_t calls = 1 + below(self, 4); calls > 0; calls--)
        TOW_RETURN_IF_ERROR(add_call(self, routine, like, &pool));
    const size_t made = pool.count - pool.argument_count;
    const tow_shape_t shape = shape_of(like.size);
    for (size_t count = 1 + below(self, 2); count > 0; count--) {
        tow_value_t value =
            pool.values[pool.argument_count + below(self, made)];
        if (count == 1) value = pool.values[pool.count - 1];
        TOW_RETURN_IF_ERROR(tow_program_add_result(
            routine->program, value, self->slices[like.slice], &shape));
        routine->results[routine->result_count++] = like;
    }
    return TOW_OK;
}

static tow_status_t make_routine(sim_client_t *self, sim_routine_t *routine)
{
    *routine = (sim_routine_t){0};
    TOW_RETURN_IF_ERROR(
        tow_program_begin(self->client, "random", &routine->program));
    for (size_t parts = 1 + below(self, SIM_PARTS_MAX); parts > 0; parts--)
        TOW_RETURN_IF_ERROR(add_part(self, routine));
    return tow_program_send(routine->program);
}

static bool ask_programs(sim_client_t *self)
{
    for (size_t count = 1 + below(self, SIM_PROGRAMS_MAX); count > 0; count--)
        if (!try(self,
                 make_routine(self, &self->routines[self->routine_count++]),
                 "asking for a program"))
            return false;
    return true;
}

/* -- Slices ------------------------------------------------------------------------ */

/* On an island by name, or on any that has room: the first is the largest. */
static tow_status_t ask_slice(sim_client_t *self, size_t index)
{
    const sim_cluster_t *cluster = self->cluster;
    const size_t island = below(self, cluster->island_count);
    const bool is_named = below(self, 2) == 0;
    const size_t most = sim_island_devices(cluster, is_named ? island : 0);
    uint32_t size = below(self, 4) == 0 ? 1 : 1 + (uint32_t)below(self, most);
    const uint32_t rows = size % 2 == 0 && below(self, 2) == 0 ? 2 : 1;
    char name[SIM_NAME_SIZE];
    sim_island_name(island, name);
    tow_slice_options_t options = {.struct_size = sizeof(options),
                                   .dims = {rows, size / rows},
                                   .island = is_named ? name : NULL};
    self->slice_sizes[index] = size;
    return tow_slice_ask(self->client, &options, &self->slices[index]);
}

static bool ask_slices(sim_client_t *self)
{
    self->slice_count = 0;
    for (size_t count = 1 + below(self, SIM_SLICES_MAX); count > 0; count--) {
        if (!try(self, ask_slice(self, self->slice_count),
                 "asking for a slice"))
            return false;
        self->slice_count++;
    }
    return true;
}

/* -- Working ----------------------------------------------------------------------- */

static void drop_array(sim_client_t *self, size_t index)
{
    tow_array_drop(self->arrays[index].array);
    self->arrays[index] = self->arrays[--self->array_count];
}

static void keep_array(sim_client_t *self, sim_array_t array)
{
    if (self->array_count == SIM_ARRAYS_MAX)
        drop_array(self, below(self, self->array_count));
    self->arrays[self->array_count++] = array;
}

static bool upload(sim_client_t *self, uint32_t slice, uint32_t size)
{
    const uint32_t devices = self->slice_sizes[slice];
    const size_t bytes = size_bytes[size];
    sim_array_t array = {.slice = slice,
                         .size = size,
                         .is_uploaded = true,
                         .replicated = devices > 16 || below(self, 2) == 0};
    array.offset = (uint32_t)below(self, 4096);
    tow_upload_options_t options = {
        .struct_size = sizeof(options),
        .bytes = self->cluster->pattern + array.offset,
        .size = array.replicated ? bytes : bytes * devices,
        .replicated = array.replicated};
    const tow_shape_t shape = shape_of(size);
    if (!try(self,
             tow_upload_start(self->slices[slice], &options, &shape, bytes,
                              NULL, &array.array),
             "uploading"))
        return false;
    self->cluster->stats.uploads++;
    expect_value(self, array.array, "an upload");
    keep_array(self, array);
    return true;
}

static void download(sim_client_t *self)
{
    if (self->array_count == 0) return;
    const sim_array_t *array = &self->arrays[below(self, self->array_count)];
    const size_t shard = below(self, self->slice_sizes[array->slice]);
    tow_callback_t *callback;
    sim_future_t *future = make_future(self, &callback);
    future->what = "a download";
    future->size = size_bytes[array->size];
    future->bytes = tow_calloc(1, future->size);
    TOW_ASSERT(future->bytes != NULL);
    /* Simulated devices keep the bytes of small arrays only. */
    if (array->is_uploaded && future->size <= 65536 &&
        !self->cluster->is_damaging)
        future->expected =
            self->cluster->pattern + array->offset +
            (array->replicated ? 0 : shard * size_bytes[array->size]);
    tow_status_t status = tow_download_start(array->array, shard, future->bytes,
                                             future->size, NULL, callback);
    self->cluster->stats.downloads++;
    if (status == TOW_OK) return;
    tow_free(callback);
    free_future(future);
    (void)!try(self, status, "downloading");
}

/* An array for an argument; none is used twice if one use is a donation. */
static bool choose_array(sim_client_t *self, sim_value_t like,
                         tow_array_t *const *taken, size_t taken_count,
                         size_t *out_index)
{
    const size_t first = below(self, SIM_ARRAYS_MAX);
    for (size_t i = 0; i < self->array_count; i++) {
        const size_t index = (first + i) % self->array_count;
        const sim_array_t *array = &self->arrays[index];
        bool fits = array->slice == like.slice && array->size == like.size;
        for (size_t j = 0; j < taken_count; j++)
            fits &= taken[j] != array->array;
        if (!fits) continue;
        *out_index = index;
        return true;
    }
    return false;
}

static void forget_array(sim_client_t *self, const tow_array_t *array)
{
    for (size_t i = 0; i < self->array_count; i++)
        if (self->arrays[i].array == array) {
            drop_array(self, i);
            return;
        }
}

/* Arguments are held from here on. */
static bool gather_arguments(sim_client_t *self, const sim_routine_t *routine,
                             tow_array_t **arguments, size_t *out_count)
{
    for (size_t i = 0; i < routine->argument_count; i++) {
        const sim_value_t like = routine->arguments[i];
        size_t index;
        if (!choose_array(self, like, arguments, i, &index)) {
            if (!upload(self, like.slice, like.size)) return false;
            index = self->array_count - 1;
        }
        arguments[i] = self->arrays[index].array;
        tow_array_hold(arguments[i]);
        *out_count = i + 1;
    }
    return true;
}

static void start_run(sim_client_t *self, const sim_routine_t *routine,
                      tow_array_t *const *arguments)
{
    tow_array_t *results[SIM_VALUES_MAX];
    if (!try(self,
             tow_program_start(routine->program, arguments,
                               routine->argument_count, results,
                               routine->result_count),
             "running"))
        return;
    self->cluster->stats.runs_started++;
    for (size_t i = 0; i < routine->argument_count; i++)
        if (routine->arguments[i].donated) forget_array(self, arguments[i]);
    for (size_t i = 0; i < routine->result_count; i++) {
        expect_value(self, results[i], i == 0 ? "a run" : "another result");
        keep_array(self, (sim_array_t){.array = results[i],
                                       .slice = routine->results[i].slice,
                                       .size = routine->results[i].size});
    }
}

static void run(sim_client_t *self)
{
    const sim_routine_t *routine =
        &self->routines[below(self, self->routine_count)];
    tow_array_t *arguments[SIM_VALUES_MAX];
    size_t count = 0;
    if (gather_arguments(self, routine, arguments, &count))
        start_run(self, routine, arguments);
    while (count > 0)
        tow_array_drop(arguments[--count]);
}

/* A function by itself. */
static void call(sim_client_t *self)
{
    sim_routine_t routine = {.argument_count = 1, .result_count = 1};
    sim_value_t like = {.slice = (uint32_t)below(self, self->slice_count),
                        .size = (uint32_t)below(self, SIM_SIZES)};
    routine.arguments[0] = routine.results[0] = like;
    if (!try(self,
             tow_function_program(self->functions[like.slice][like.size][0],
                                  self->slices[like.slice], &routine.program),
             "calling"))
        return;
    tow_array_t *argument;
    size_t count = 0;
    if (gather_arguments(self, &routine, &argument, &count))
        start_run(self, &routine, &argument);
    if (count > 0) tow_array_drop(argument);
}

/* A new array of shards that are there, of arrays that are alike. */
static void regroup(sim_client_t *self)
{
    if (self->array_count == 0) return;
    const sim_array_t like = self->arrays[below(self, self->array_count)];
    const uint32_t devices = self->slice_sizes[like.slice];
    tow_array_t **sources = tow_calloc(devices, sizeof(tow_array_t *));
    uint32_t *shards = tow_calloc(devices, sizeof(uint32_t));
    TOW_ASSERT(sources != NULL && shards != NULL);
    for (uint32_t i = 0; i < devices; i++) {
        size_t index;
        if (!choose_array(self, (sim_value_t){like.slice, like.size, false},
                          NULL, 0, &index))
            TOW_UNREACHABLE(); /* There is `like`. */
        sources[i] = self->arrays[index].array;
        shards[i] = i;
    }
    sim_array_t array = {.slice = like.slice, .size = like.size};
    if (try(self,
            tow_regroup_start(self->slices[like.slice], sources, shards,
                              &array.array),
            "regrouping")) {
        expect_value(self, array.array, "a regroup");
        keep_array(self, array);
    }
    tow_free(sources);
    tow_free(shards);
}

/* A shard on a device of its own; its bytes are known if the array's are. */
static void copy(sim_client_t *self)
{
    uint32_t slice = 0;
    while (slice < self->slice_count && self->slice_sizes[slice] != 1)
        slice++;
    if (self->array_count == 0 || slice == self->slice_count) return;
    const sim_array_t source = self->arrays[below(self, self->array_count)];
    const uint32_t shard =
        (uint32_t)below(self, self->slice_sizes[source.slice]);
    sim_array_t array = source;
    array.slice = slice;
    array.replicated = true;
    if (!source.replicated) array.offset += shard * size_bytes[source.size];
    if (!try(self,
             tow_copy_start(self->slices[slice], source.array, shard,
                            &array.array),
             "copying"))
        return;
    expect_value(self, array.array, "a copy");
    keep_array(self, array);
}

static void replace_program(sim_client_t *self)
{
    sim_routine_t *routine = &self->routines[below(self, self->routine_count)];
    tow_program_drop(routine->program);
    if (try(self, make_routine(self, routine), "another program")) return;
    if (routine->program != NULL) tow_program_drop(routine->program);
    *routine = self->routines[--self->routine_count];
    self->is_broken = true;
}

static void operate(sim_client_t *self)
{
    self->process->operations_left--;
    /* In this order, whatever a compiler does with arguments of a call. */
    const uint32_t slice = (uint32_t)below(self, self->slice_count);
    const uint32_t size = (uint32_t)below(self, SIM_SIZES);
    switch (below(self, 14)) {
    case 0: (void)!upload(self, slice, size); return;
    case 1:
    case 2: download(self); return;
    case 3:
        if (self->array_count > 0)
            drop_array(self, below(self, self->array_count));
        return;
    case 4: replace_program(self); return;
    case 5:
    case 6: call(self); return;
    case 7: regroup(self); return;
    case 8: copy(self); return;
    default: run(self); return;
    }
}

/* -- Phases ------------------------------------------------------------------------ */

/* All handles go. */
static void drop_everything(sim_client_t *self)
{
    while (self->array_count > 0)
        drop_array(self, self->array_count - 1);
    for (size_t i = 0; i < self->routine_count; i++)
        if (self->routines[i].program != NULL)
            tow_program_drop(self->routines[i].program);
    self->routine_count = 0;
    tow_function_t **functions = &self->functions[0][0][0];
    for (size_t i = 0; i < SIM_SLICES_MAX * SIM_SIZES * SIM_FUNCTIONS; i++) {
        if (functions[i] != NULL) tow_function_drop(functions[i]);
        functions[i] = NULL;
    }
    for (size_t i = 0; i < self->slice_count; i++)
        tow_slice_drop(self->slices[i]);
    self->slice_count = 0;
}

/* 1: all are settled well; 0: not yet; -1: one is not well. */
static int look_at_all(sim_client_t *self, const tow_settling_t *settling,
                       int before, const char *what)
{
    if (before < 0) return before;
    if (!settling->settled) return 0;
    return look_at(self, settling->error, what) ? before : -1;
}

static int look_at_functions(sim_client_t *self)
{
    int state = 1;
    for (size_t slice = 0; slice < self->slice_count; slice++)
        for (uint32_t i = 0; i < SIM_SIZES * SIM_FUNCTIONS; i++)
            state = look_at_all(
                self,
                tow_function_compiling(self->functions[slice][i / SIM_FUNCTIONS]
                                                      [i % SIM_FUNCTIONS]),
                state, "a function");
    return state;
}

static int look_at_programs(sim_client_t *self)
{
    int state = 1;
    for (size_t i = 0; i < self->routine_count; i++)
        state = look_at_all(self, tow_program_adding(self->routines[i].program),
                            state, "a program");
    return state;
}

/* There may be too few devices, or none, while workers are away. */
static int look_at_slices(sim_client_t *self)
{
    int state = 1;
    for (size_t i = 0; i < self->slice_count; i++) {
        const tow_settling_t *opening = tow_slice_opening(self->slices[i]);
        tow_code_t code = tow_status_code(opening->error);
        if (opening->settled &&
            (code == TOW_RESOURCE_EXHAUSTED || code == TOW_NOT_FOUND))
            self->is_broken = true, state = -1;
        else
            state = look_at_all(self, opening, state, "a slice");
    }
    return state;
}

static void leave(sim_client_t *self)
{
    self->phase = PHASE_LEAVE;
    drop_everything(self);
    self->is_shut = true;
    tow_client_shut(self->client);
}

/* Slices, functions and programs outlive devices: only values are lost. */
static bool may_go_on(sim_client_t *self)
{
    return self->phase == PHASE_WORK && self->routine_count > 0 &&
           below(self, 2) == 0;
}

/* Begins anew with what the session is good for. */
static void begin_anew(sim_client_t *self)
{
    self->is_broken = false;
    if (self->process->operations_left > 0) self->process->operations_left--;
    if (may_go_on(self)) {
        while (self->array_count > 0)
            drop_array(self, self->array_count - 1);
        return;
    }
    drop_everything(self);
    self->phase = PHASE_SLICES;
    (void)!ask_slices(self);
}

static void dial(sim_client_t *self)
{
    tow_machine_options_t options = {.address = "sim:controller",
                                     .name = self->process->name};
    self->is_shut = self->is_broken = false;
    if (!try(self, tow_client_dial(self->env, &options, &self->client),
             "dialling"))
        return;
    self->cluster->stats.sessions++;
    self->phase = PHASE_OPENING;
}

static void after_leaving(sim_client_t *self)
{
    if (!tow_client_is_quiet(self->client)) return;
    if (!tow_list_is_empty(&self->futures)) {
        fail(self, TOW_ERROR(TOW_INTERNAL,
                             "the client is closed and a future has not "
                             "settled"));
        return;
    }
    tow_client_free(self->client);
    self->client = NULL;
    self->process->is_done = self->process->operations_left == 0;
    self->phase = self->process->is_done ? PHASE_DONE : PHASE_DIAL;
}

static void advance(sim_client_t *self, int state, bool (*ask)(sim_client_t *),
                    sim_phase_t next)
{
    if (state <= 0) return;
    self->phase = next;
    if (ask != NULL) (void)!ask(self);
}

static void work(sim_client_t *self)
{
    for (size_t burst = 1 + below(self, 4); burst > 0; burst--) {
        if (self->process->operations_left == 0 || self->routine_count == 0) {
            self->phase = PHASE_DRAIN;
            return;
        }
        operate(self);
        if (self->is_broken) return;
    }
}

static void step(sim_client_t *self)
{
    if (self->phase == PHASE_DIAL) {
        dial(self);
        return;
    }
    if (self->phase == PHASE_LEAVE) {
        after_leaving(self);
        return;
    }
    if (tow_client_lost(self->client) != TOW_OK) {
        (void)!look_at(self, tow_client_lost(self->client), "the session");
        leave(self);
        return;
    }
    if (self->is_broken) {
        begin_anew(self);
        return;
    }
    switch (self->phase) {
    case PHASE_OPENING:
        advance(self, tow_client_opening(self->client)->settled, ask_slices,
                PHASE_SLICES);
        return;
    case PHASE_SLICES:
        advance(self, look_at_slices(self), ask_functions, PHASE_FUNCTIONS);
        return;
    case PHASE_FUNCTIONS:
        advance(self, look_at_functions(self), ask_programs, PHASE_PROGRAMS);
        return;
    case PHASE_PROGRAMS:
        advance(self, look_at_programs(self), NULL, PHASE_WORK);
        return;
    case PHASE_WORK: work(self); return;
    case PHASE_DRAIN:
        if (tow_list_is_empty(&self->futures)) leave(self);
        return;
    default: return;
    }
}

static void on_timer(tow_timer_t *timer)
{
    sim_client_t *self = TOW_CONTAINER_OF(timer, sim_client_t, timer);
    step(self);
    if (self->phase == PHASE_DONE) return;
    int64_t pause_ns = (int64_t)(1 + below(self, 20)) * SIM_MILLISECOND_NS / 4;
    if (self->is_broken || self->phase == PHASE_DIAL)
        pause_ns += 50 * SIM_MILLISECOND_NS;
    tow_env_timer_start(self->env, &self->timer,
                        tow_env_now_ns(self->env) + pause_ns);
}

/* -- Life -------------------------------------------------------------------------- */

static tow_status_t start(tow_env_t *env, void *argument, void **out_machine)
{
    sim_process_t *process = argument;
    sim_client_t *self = tow_calloc(1, sizeof(*self));
    if (self == NULL) return tow_status_bare(TOW_RESOURCE_EXHAUSTED);
    self->process = process;
    self->cluster = process->cluster;
    self->env = env;
    self->phase = process->is_done ? PHASE_DONE : PHASE_DIAL;
    self->timer.fire = on_timer;
    tow_random_init(&self->random,
                    tow_random_next(tow_env_random(env)) + ++process->life);
    tow_list_init(&self->futures);
    if (!process->is_done)
        tow_env_timer_start(env, &self->timer, tow_env_now_ns(env));
    *out_machine = self;
    return TOW_OK;
}

static void destroy(void *machine)
{
    sim_client_t *self = machine;
    if (self->client != NULL) {
        tow_client_abandon(self->client);
        drop_everything(self);
        tow_client_free(self->client);
    }
    while (!tow_list_is_empty(&self->futures))
        free_future(TOW_CONTAINER_OF(self->futures.next, sim_future_t, node));
    tow_free(self);
}

const char *tow_sim_client_awaits(const void *machine)
{
    const sim_client_t *self = machine;
    if (self == NULL || tow_list_is_empty(&self->futures)) return "nothing";
    return TOW_CONTAINER_OF(self->futures.next, sim_future_t, node)->what;
}

const tow_sim_program_t tow_sim_client_program = {.start = start,
                                                  .destroy = destroy};
