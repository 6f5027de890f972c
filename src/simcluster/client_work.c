/* Random operations of a simulated client: upload, run, download, copy, move,
 * delete, cancel. */
#include "base/alloc.h"
#include "base/assert.h"
#include "simcluster/client_impl.h"

/* All parts of an array that is transferred may be on one device. */
#define MOVED_BYTES_MAX 640000u
/* Runs that a client starts at once when it floods the controller. */
#define FLOOD_RUNS_MAX 40u
/* Shards of an array that a client compares at its end. */
#define AUDITED_SHARDS_MAX 2u

/* -- Operations ----------------------------------------------------------- */

void sim_client_delete_array(sim_client_t *self, size_t index)
{
    tow_array_release_locked(self->arrays[index].array);
    sim_contents_release(self->arrays[index].contents);
    self->arrays[index] = self->arrays[--self->array_count];
}

/* Takes the references to the array and to its contents. */
static void keep_array(sim_client_t *self, sim_array_t array)
{
    const size_t count_max =
        self->cluster->is_spilling ? SIM_ARRAYS_MAX : SIM_ARRAYS_FEW;
    if (self->array_count == count_max)
        sim_client_delete_array(self,
                                sim_client_below(self, self->array_count));
    self->arrays[self->array_count++] = array;
}

static bool upload(sim_client_t *self, sim_value_t like)
{
    const uint32_t devices = self->slice_sizes[like.slice];
    const uint32_t bytes = sim_size_bytes[like.size];
    const bool replicated =
        like.is_uniform || devices > 16 || sim_client_below(self, 2) == 0;
    const uint32_t parts = replicated ? 1 : devices;
    const uint8_t *source =
        self->cluster->pattern + sim_client_below(self, 4096);
    sim_array_t array = {.slice = like.slice,
                         .size = like.size,
                         .shard_bytes = bytes,
                         .origin.what = "an upload"};
    tow_upload_options_t options = {.struct_size = sizeof(options),
                                    .bytes = source,
                                    .size = (size_t)bytes * parts,
                                    .replicated = replicated};
    const tow_shape_t shape = sim_client_shape_of(like.size);
    if (!sim_client_try(self,
                        tow_upload_start(self->slices[like.slice], &options,
                                         &shape, bytes, NULL, &array.array),
                        "uploading"))
        return false;
    self->cluster->stats.uploads++;
    array.contents = sim_contents_upload(source, bytes, parts, devices);
    sim_client_expect_value(self, array.array, "an upload");
    keep_array(self, array);
    return true;
}

static void download_shard(sim_client_t *self, const sim_array_t *array,
                           size_t shard)
{
    tow_callback_t *callback;
    sim_future_t *future = sim_client_make_future(self, &callback);
    future->what = "a download";
    future->size = array->shard_bytes;
    future->bytes = tow_calloc(1, future->size);
    TOW_ASSERT(future->bytes != NULL);
    future->origin = array->origin;
    future->shard = shard;
    /* Bulk writes have no checksums of their own: TLS has. */
    future->is_expected = !self->cluster->is_damaging;
    future->expected =
        sim_shard_retain(sim_contents_shard(array->contents, shard));
    tow_status_t status = tow_download_start(array->array, shard, future->bytes,
                                             future->size, NULL, callback);
    self->cluster->stats.downloads++;
    if (status == TOW_OK) return;
    tow_free(callback);
    sim_client_free_future(future);
    (void)!sim_client_try(self, status, "downloading");
}

/* Of a random shard. */
static void download_some(sim_client_t *self, const sim_array_t *array)
{
    download_shard(self, array,
                   sim_client_below(self, self->slice_sizes[array->slice]));
}

static void download(sim_client_t *self)
{
    if (self->array_count == 0) return;
    download_some(self,
                  &self->arrays[sim_client_below(self, self->array_count)]);
}

void sim_client_audit(sim_client_t *self)
{
    for (size_t i = 0; i < self->array_count && !self->is_broken; i++) {
        const sim_array_t *array = &self->arrays[i];
        const size_t devices = self->slice_sizes[array->slice];
        const size_t count =
            devices < AUDITED_SHARDS_MAX ? devices : AUDITED_SHARDS_MAX;
        const size_t first = sim_client_below(self, devices);
        for (size_t k = 0; k < count; k++)
            download_shard(self, array, (first + k) % devices);
    }
}

/* An array that failed makes everything fail that uses it. */
static void forget_failed_arrays(sim_client_t *self)
{
    for (size_t i = self->array_count; i-- > 0;)
        if (tow_array_value(self->arrays[i].array)->error != TOW_OK)
            sim_client_delete_array(self, i);
}

/* Chooses an array for an argument; a donated one is used only once. */
static bool choose_array(sim_client_t *self, sim_value_t like,
                         tow_array_t *const *taken, size_t taken_count,
                         size_t *out_index)
{
    const size_t first = sim_client_below(self, SIM_ARRAYS_MAX);
    for (size_t i = 0; i < self->array_count; i++) {
        const size_t index = (first + i) % self->array_count;
        const sim_array_t *array = &self->arrays[index];
        bool fits = array->slice == like.slice && array->size == like.size;
        if (like.is_uniform) fits &= array->contents->distinct_count == 1;
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
            sim_client_delete_array(self, i);
            return;
        }
}

typedef struct sim_arguments {
    tow_array_t *arrays[SIM_VALUES_MAX];      /* retained */
    sim_contents_t *contents[SIM_VALUES_MAX]; /* retained */
    size_t count;
} sim_arguments_t;

static bool gather_arguments(sim_client_t *self, const sim_routine_t *routine,
                             sim_arguments_t *arguments)
{
    for (size_t i = 0; i < routine->argument_count; i++) {
        const sim_value_t like = routine->arguments[i];
        size_t index;
        if (!choose_array(self, like, arguments->arrays, i, &index)) {
            if (!upload(self, like)) return false;
            index = self->array_count - 1;
        }
        const sim_array_t *array = &self->arrays[index];
        arguments->arrays[i] = array->array;
        arguments->contents[i] = sim_contents_retain(array->contents);
        tow_array_retain_locked(array->array);
        arguments->count = i + 1;
    }
    return true;
}

static void release_arguments(sim_arguments_t *arguments)
{
    for (size_t i = 0; i < arguments->count; i++) {
        tow_array_release_locked(arguments->arrays[i]);
        sim_contents_release(arguments->contents[i]);
    }
}

/* Works out what the results should be. */
static void keep_results(sim_client_t *self, const sim_routine_t *routine,
                         const sim_arguments_t *arguments,
                         tow_array_t *const *results)
{
    const uint64_t run = ++self->cluster->stats.runs_started;
    sim_contents_t *contents[SIM_VALUES_MAX];
    sim_recipe_run(&routine->recipe, arguments->contents, contents);
    for (size_t i = 0; i < routine->result_count; i++) {
        const sim_value_t value = routine->results[i];
        sim_client_expect_value(self, results[i],
                                i == 0 ? "a run" : "another result");
        const sim_array_t array = {.array = results[i],
                                   .slice = value.slice,
                                   .size = value.size,
                                   .shard_bytes = sim_size_bytes[value.size],
                                   .contents = contents[i],
                                   .origin = {"a result", run, value.node}};
        if (sim_client_below(self, 4) == 0) download_some(self, &array);
        keep_array(self, array);
    }
}

static void start_run(sim_client_t *self, const sim_routine_t *routine,
                      const sim_arguments_t *arguments)
{
    tow_array_t *results[SIM_VALUES_MAX];
    if (!sim_client_try(self,
                        tow_program_start(routine->program, arguments->arrays,
                                          routine->argument_count, results,
                                          routine->result_count),
                        "running"))
        return;
    for (size_t i = 0; i < routine->argument_count; i++)
        if (routine->arguments[i].donated)
            forget_array(self, arguments->arrays[i]);
    keep_results(self, routine, arguments, results);
}

static void run_routine(sim_client_t *self, const sim_routine_t *routine)
{
    sim_arguments_t arguments = {0};
    if (gather_arguments(self, routine, &arguments))
        start_run(self, routine, &arguments);
    release_arguments(&arguments);
}

/* Long programs take long to simulate: there are few runs of them. */
static const sim_routine_t *choose_routine(sim_client_t *self)
{
    simcluster_t *cluster = self->cluster;
    const size_t first = sim_client_below(self, self->routine_count);
    for (size_t i = 0; i < self->routine_count; i++) {
        const sim_routine_t *routine =
            &self->routines[(first + i) % self->routine_count];
        if (!routine->is_long) return routine;
        if (cluster->long_runs_left == 0) continue;
        cluster->long_runs_left--;
        return routine;
    }
    return NULL;
}

static void run(sim_client_t *self)
{
    const sim_routine_t *routine = choose_routine(self);
    if (routine != NULL) run_routine(self, routine);
}

/* Many runs at once. */
static void flood(sim_client_t *self)
{
    const sim_routine_t *routine = choose_routine(self);
    if (routine == NULL || routine->is_long) return;
    for (size_t count = 1 + sim_client_below(self, FLOOD_RUNS_MAX);
         count > 0 && !self->is_broken; count--)
        run_routine(self, routine);
}

/* Cancels the run that makes a random array, if it has not ended. */
static void cancel(sim_client_t *self)
{
    if (self->array_count == 0) return;
    self->has_cancelled = true;
    tow_array_cancel_locked(
        self->arrays[sim_client_below(self, self->array_count)].array);
}

/* The recipe of a program with one call. */
static void write_call(sim_client_t *self, sim_value_t like,
                       sim_routine_t *routine)
{
    const uint32_t devices = self->slice_sizes[like.slice];
    const sim_step_t argument = {
        .kind = SIM_STEP_ARGUMENT, .device_count = devices, .output_count = 1};
    sim_step_t step = {.kind = SIM_STEP_CALL,
                       .device_count = devices,
                       .input_count = 1,
                       .output_count = 1};
    step.as.function = sim_client_function(0, like.size, devices);
    step.inputs[0] = sim_recipe_add(&routine->recipe, &argument);
    sim_recipe_add_result(&routine->recipe,
                          sim_recipe_add(&routine->recipe, &step));
}

/* Calls a function outside a program. */
static void call(sim_client_t *self)
{
    sim_routine_t routine = {.argument_count = 1, .result_count = 1};
    sim_value_t like = {.slice =
                            (uint32_t)sim_client_below(self, self->slice_count),
                        .size = (uint32_t)sim_client_below(self, SIM_SIZES)};
    routine.arguments[0] = routine.results[0] = like;
    if (!sim_client_try(
            self,
            tow_function_program(self->functions[like.slice][like.size][0],
                                 self->slices[like.slice], &routine.program),
            "calling"))
        return;
    write_call(self, like, &routine);
    run_routine(self, &routine);
    sim_recipe_deinit(&routine.recipe);
}

/* Calls a function that needs more memory than a device has: it must be
 * refused, whatever else happens. */
static void call_giant(sim_client_t *self)
{
    sim_routine_t routine = {.argument_count = 1, .result_count = 1};
    const uint32_t slice = (uint32_t)sim_client_below(self, self->slice_count);
    routine.arguments[0].slice = slice;
    if (self->giants[slice] == NULL ||
        !sim_client_try(self,
                        tow_function_program(self->giants[slice],
                                             self->slices[slice],
                                             &routine.program),
                        "calling a giant"))
        return;
    sim_arguments_t arguments = {0};
    tow_array_t *result;
    if (gather_arguments(self, &routine, &arguments) &&
        sim_client_try(
            self,
            tow_program_start(routine.program, arguments.arrays, 1, &result, 1),
            "running a giant")) {
        tow_callback_t *callback;
        sim_future_t *future = sim_client_make_future(self, &callback);
        future->what = "a giant run";
        future->must_fail = true;
        tow_array_call_when_ready(result, callback);
        tow_array_release_locked(result);
    }
    release_arguments(&arguments);
}

/* Assembles an array from existing shards of arrays of equal shape. */
static void assemble(sim_client_t *self)
{
    /* Shards that share memory cannot be spilled. */
    if (self->array_count == 0 || self->cluster->is_spilling) return;
    const sim_array_t like =
        self->arrays[sim_client_below(self, self->array_count)];
    const uint32_t devices = self->slice_sizes[like.slice];
    if (like.size == SIM_SIZES) return;
    tow_array_t **sources = tow_calloc(devices, sizeof(tow_array_t *));
    uint32_t *shards = tow_calloc(devices, sizeof(uint32_t));
    TOW_ASSERT(sources != NULL && shards != NULL);
    sim_contents_t *contents = sim_contents_create(devices, devices);
    for (uint32_t i = 0; i < devices; i++) {
        size_t index;
        if (!choose_array(self,
                          (sim_value_t){.slice = like.slice, .size = like.size},
                          NULL, 0, &index))
            TOW_UNREACHABLE(); /* `like` matches itself. */
        const sim_array_t *source = &self->arrays[index];
        sources[i] = source->array;
        shards[i] = i;
        contents->shards[i] =
            sim_shard_retain(sim_contents_shard(source->contents, i));
    }
    sim_array_t array = {.slice = like.slice,
                         .size = like.size,
                         .shard_bytes = like.shard_bytes,
                         .origin.what = "an assembled array"};
    if (sim_client_try(self,
                       tow_assemble_start(self->slices[like.slice], sources,
                                          shards, &array.array),
                       "regrouping")) {
        sim_client_expect_value(self, array.array, "an assembled array");
        array.contents = sim_contents_retain(contents);
        keep_array(self, array);
    }
    sim_contents_release(contents);
    tow_free(sources);
    tow_free(shards);
}

/* Copies a shard to a slice of one device. */
static void copy(sim_client_t *self)
{
    uint32_t slice = 0;
    while (slice < self->slice_count && self->slice_sizes[slice] != 1)
        slice++;
    if (self->array_count == 0 || slice == self->slice_count) return;
    const sim_array_t source =
        self->arrays[sim_client_below(self, self->array_count)];
    const uint32_t shard =
        (uint32_t)sim_client_below(self, self->slice_sizes[source.slice]);
    sim_array_t array = source;
    array.slice = slice;
    array.origin = (sim_origin_t){.what = "a copy"};
    if (!sim_client_try(self,
                        tow_copy_start(self->slices[slice], source.array, shard,
                                       &array.array),
                        "copying"))
        return;
    sim_client_expect_value(self, array.array, "a copy");
    array.contents = sim_contents_create(1, 1);
    array.contents->shards[0] =
        sim_shard_retain(sim_contents_shard(source.contents, shard));
    keep_array(self, array);
}

/* Transfers the array to another slice with another sharding. */
static void move(sim_client_t *self)
{
    if (self->array_count == 0) return;
    const sim_array_t source =
        self->arrays[sim_client_below(self, self->array_count)];
    const uint32_t devices = self->slice_sizes[source.slice];
    sim_array_t array = source;
    array.slice = (uint32_t)sim_client_below(self, self->slice_count);
    const uint32_t from_parts = source.contents->distinct_count;
    const uint64_t bytes = (uint64_t)source.shard_bytes * from_parts;
    if (bytes > MOVED_BYTES_MAX) return;
    const uint32_t targets = self->slice_sizes[array.slice];
    const uint32_t to_parts = sim_client_choose_parts(self, targets, bytes);
    array.shard_bytes = (uint32_t)(bytes / to_parts);
    if (array.shard_bytes != source.shard_bytes) array.size = SIM_SIZES;
    const tow_sharding_t from = from_parts == 1
                                    ? tow_sharding_replicated(1, devices)
                                    : tow_sharding_by_shard(1, devices);
    const tow_sharding_t to = sim_client_cut(self, to_parts, targets);
    if (!sim_client_try(self,
                        tow_array_move(source.array, self->slices[array.slice],
                                       &from, &to, &array.array),
                        "moving"))
        return;
    self->cluster->stats.moves++;
    array.origin = (sim_origin_t){.what = "a moved array"};
    array.contents = sim_contents_reshard(source.contents, &from, &to, targets);
    sim_client_expect_value(self, array.array, "a move");
    keep_array(self, array);
}

static void replace_program(sim_client_t *self)
{
    sim_routine_t *routine =
        &self->routines[sim_client_below(self, self->routine_count)];
    sim_client_discard_routine(routine);
    if (sim_client_try(self, sim_client_make_routine(self, routine),
                       "another program"))
        return;
    sim_client_discard_routine(routine);
    sim_routine_t *last = &self->routines[--self->routine_count];
    *routine = *last;
    *last = (sim_routine_t){0};
    self->is_broken = true;
}

/* Operations of clients that behave badly. */
static void misbehave(sim_client_t *self)
{
    const simcluster_t *cluster = self->cluster;
    if (cluster->is_cancelling && sim_client_below(self, 8) == 0) cancel(self);
    if (cluster->is_flooding && sim_client_below(self, 24) == 0) flood(self);
    if (cluster->has_giants && sim_client_below(self, 8) == 0) call_giant(self);
}

void sim_client_operate(sim_client_t *self)
{
    self->process->operations_left--;
    forget_failed_arrays(self);
    misbehave(self);
    if (self->is_broken) return;
    /* Drawn in this order: C does not order the arguments of a call. */
    sim_value_t like = {
        .slice = (uint32_t)sim_client_below(self, self->slice_count)};
    like.size = (uint32_t)sim_client_below(self, SIM_SIZES);
    switch (sim_client_below(self, 16)) {
    case 0: (void)!upload(self, like); return;
    case 1:
    case 2: download(self); return;
    case 3:
        if (self->array_count > 0)
            sim_client_delete_array(self,
                                    sim_client_below(self, self->array_count));
        return;
    case 4: replace_program(self); return;
    case 5:
    case 6: call(self); return;
    case 7: assemble(self); return;
    case 8: copy(self); return;
    case 9:
    case 10: move(self); return;
    default: run(self); return;
    }
}
