/* Random operations of a simulated client: upload, run, download, copy, move,
 * delete. */
#include "base/alloc.h"
#include "base/assert.h"
#include "simcluster/client_impl.h"

/* Simulated devices store the bytes of arrays up to this size. */
#define KEPT_BYTES_MAX 65536

/* -- Operations ----------------------------------------------------------- */

void sim_client_delete_array(sim_client_t *self, size_t index)
{
    tow_array_release_locked(self->arrays[index].array);
    self->arrays[index] = self->arrays[--self->array_count];
}

static void keep_array(sim_client_t *self, sim_array_t array)
{
    const size_t count_max =
        self->cluster->is_spilling ? SIM_ARRAYS_MAX : SIM_ARRAYS_FEW;
    if (self->array_count == count_max)
        sim_client_delete_array(self,
                                sim_client_below(self, self->array_count));
    self->arrays[self->array_count++] = array;
}

static bool upload(sim_client_t *self, uint32_t slice, uint32_t size)
{
    const uint32_t devices = self->slice_sizes[slice];
    const uint32_t bytes = sim_size_bytes[size];
    const bool replicated = devices > 16 || sim_client_below(self, 2) == 0;
    sim_array_t array = {.slice = slice,
                         .size = size,
                         .shard_bytes = bytes,
                         .is_known = bytes <= KEPT_BYTES_MAX,
                         .parts = replicated ? 1 : devices};
    array.offset = (uint32_t)sim_client_below(self, 4096);
    tow_upload_options_t options = {.struct_size = sizeof(options),
                                    .bytes =
                                        self->cluster->pattern + array.offset,
                                    .size = (size_t)bytes * array.parts,
                                    .replicated = replicated};
    const tow_shape_t shape = sim_client_shape_of(size);
    if (!sim_client_try(self,
                        tow_upload_start(self->slices[slice], &options, &shape,
                                         bytes, NULL, &array.array),
                        "uploading"))
        return false;
    self->cluster->stats.uploads++;
    sim_client_expect_value(self, array.array, "an upload");
    keep_array(self, array);
    return true;
}

/* Offset of the shard's bytes in the pattern. */
static uint32_t offset_of(const sim_client_t *self, const sim_array_t *array,
                          size_t shard)
{
    const uint32_t replicas = self->slice_sizes[array->slice] / array->parts;
    return array->offset + (uint32_t)(shard / replicas) * array->shard_bytes;
}

static void download(sim_client_t *self)
{
    if (self->array_count == 0) return;
    const sim_array_t *array =
        &self->arrays[sim_client_below(self, self->array_count)];
    const size_t shard =
        sim_client_below(self, self->slice_sizes[array->slice]);
    tow_callback_t *callback;
    sim_future_t *future = sim_client_make_future(self, &callback);
    future->what = "a download";
    future->size = array->shard_bytes;
    future->bytes = tow_calloc(1, future->size);
    TOW_ASSERT(future->bytes != NULL);
    if (array->is_known && !self->cluster->is_damaging)
        future->expected =
            self->cluster->pattern + offset_of(self, array, shard);
    tow_status_t status = tow_download_start(array->array, shard, future->bytes,
                                             future->size, NULL, callback);
    self->cluster->stats.downloads++;
    if (status == TOW_OK) return;
    tow_free(callback);
    sim_client_free_future(future);
    (void)!sim_client_try(self, status, "downloading");
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

/* Retains the arguments. */
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
        tow_array_retain_locked(arguments[i]);
        *out_count = i + 1;
    }
    return true;
}

static void start_run(sim_client_t *self, const sim_routine_t *routine,
                      tow_array_t *const *arguments)
{
    tow_array_t *results[SIM_VALUES_MAX];
    if (!sim_client_try(self,
                        tow_program_start(routine->program, arguments,
                                          routine->argument_count, results,
                                          routine->result_count),
                        "running"))
        return;
    self->cluster->stats.runs_started++;
    for (size_t i = 0; i < routine->argument_count; i++)
        if (routine->arguments[i].donated) forget_array(self, arguments[i]);
    for (size_t i = 0; i < routine->result_count; i++) {
        sim_client_expect_value(self, results[i],
                                i == 0 ? "a run" : "another result");
        const sim_value_t value = routine->results[i];
        keep_array(self,
                   (sim_array_t){.array = results[i],
                                 .slice = value.slice,
                                 .size = value.size,
                                 .shard_bytes = sim_size_bytes[value.size]});
    }
}

static void run(sim_client_t *self)
{
    const sim_routine_t *routine =
        &self->routines[sim_client_below(self, self->routine_count)];
    tow_array_t *arguments[SIM_VALUES_MAX];
    size_t count = 0;
    if (gather_arguments(self, routine, arguments, &count))
        start_run(self, routine, arguments);
    while (count > 0)
        tow_array_release_locked(arguments[--count]);
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
    tow_array_t *argument;
    size_t count = 0;
    if (gather_arguments(self, &routine, &argument, &count))
        start_run(self, &routine, &argument);
    if (count > 0) tow_array_release_locked(argument);
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
    for (uint32_t i = 0; i < devices; i++) {
        size_t index;
        if (!choose_array(self, (sim_value_t){like.slice, like.size, false},
                          NULL, 0, &index))
            TOW_UNREACHABLE(); /* `like` matches itself. */
        sources[i] = self->arrays[index].array;
        shards[i] = i;
    }
    sim_array_t array = {.slice = like.slice,
                         .size = like.size,
                         .shard_bytes = like.shard_bytes};
    if (sim_client_try(self,
                       tow_assemble_start(self->slices[like.slice], sources,
                                          shards, &array.array),
                       "regrouping")) {
        sim_client_expect_value(self, array.array, "a assemble");
        keep_array(self, array);
    }
    tow_free(sources);
    tow_free(shards);
}

/* Copies a shard to a slice of one device; its bytes are known if the array's
 * are. */
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
    array.parts = 1;
    if (source.is_known) array.offset = offset_of(self, &source, shard);
    if (!sim_client_try(self,
                        tow_copy_start(self->slices[slice], source.array, shard,
                                       &array.array),
                        "copying"))
        return;
    sim_client_expect_value(self, array.array, "a copy");
    keep_array(self, array);
}

static tow_sharding_t cut_into(uint32_t parts, uint32_t devices)
{
    return (tow_sharding_t){
        .rank = 1, .parts = {parts}, .replicas = devices / parts};
}

/* A number of parts that divides both devices and bytes. */
static uint32_t choose_parts(sim_client_t *self, uint32_t devices,
                             uint64_t bytes)
{
    uint32_t parts = 1 + (uint32_t)sim_client_below(self, devices);
    while (devices % parts != 0 || bytes % parts != 0)
        parts--;
    return parts;
}

/* Transfers the array to another slice with another sharding. An array with
 * unknown bytes may be treated as sharded in any way: simulated devices compute
 * nothing. */
static void move(sim_client_t *self)
{
    if (self->array_count == 0) return;
    const sim_array_t source =
        self->arrays[sim_client_below(self, self->array_count)];
    const uint32_t devices = self->slice_sizes[source.slice];
    sim_array_t array = source;
    array.slice = (uint32_t)sim_client_below(self, self->slice_count);
    const uint32_t from_parts = source.is_known ? source.parts : 1;
    const uint64_t bytes = (uint64_t)source.shard_bytes * from_parts;
    const uint32_t targets = self->slice_sizes[array.slice];
    array.parts = choose_parts(self, targets, bytes);
    array.shard_bytes = (uint32_t)(bytes / array.parts);
    if (array.shard_bytes != source.shard_bytes) array.size = SIM_SIZES;
    array.is_known &= array.shard_bytes <= KEPT_BYTES_MAX;
    const tow_sharding_t from = cut_into(from_parts, devices);
    const tow_sharding_t to = cut_into(array.parts, targets);
    if (!sim_client_try(self,
                        tow_array_move(source.array, self->slices[array.slice],
                                       &from, &to, &array.array),
                        "moving"))
        return;
    self->cluster->stats.moves++;
    sim_client_expect_value(self, array.array, "a move");
    keep_array(self, array);
}

static void replace_program(sim_client_t *self)
{
    sim_routine_t *routine =
        &self->routines[sim_client_below(self, self->routine_count)];
    tow_program_release_locked(routine->program);
    if (sim_client_try(self, sim_client_make_routine(self, routine),
                       "another program"))
        return;
    if (routine->program != NULL) tow_program_release_locked(routine->program);
    *routine = self->routines[--self->routine_count];
    self->is_broken = true;
}

void sim_client_operate(sim_client_t *self)
{
    self->process->operations_left--;
    /* Drawn in this order: C does not order the arguments of a call. */
    const uint32_t slice = (uint32_t)sim_client_below(self, self->slice_count);
    const uint32_t size = (uint32_t)sim_client_below(self, SIM_SIZES);
    switch (sim_client_below(self, 16)) {
    case 0: (void)!upload(self, slice, size); return;
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
