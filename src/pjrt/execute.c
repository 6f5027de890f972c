/* Execution: one call is one run and locks the net once, whatever the number
 * of devices. */
#include <string.h>

#include "pjrt/execute_impl.h"
#include "pjrt/tuning.h"

/* -- Variants: the program for one set of donated arguments --------------------------- */

/* Arguments that an alias names and that the caller does not keep. Addresses
 * that were given out are those of cached bytes, which no run changes. */
static void choose_donated(const PJRT_Executable *executable,
                           const execute_args_t *args, bool *is_donated)
{
    const PJRT_ExecuteOptions *options = args->options;
    memcpy(is_donated, executable->may_donate, args->num_args * sizeof(bool));
    if (executable->donor_count == 0) return;
    for (size_t i = 0; i < options->num_non_donatable_input_indices; i++) {
        const int64_t index = options->non_donatable_input_indices[i];
        if (index >= 0 && (size_t)index < args->num_args)
            is_donated[index] = false;
    }
}

static tow_status_t trace(PJRT_Executable *executable,
                          const slice_entry_t *slice, const bool *is_donated,
                          tow_value_t *inputs, tow_program_t *program)
{
    const tow_signature_t *signature = executable->signature;
    for (size_t i = 0; i < signature->argument_count; i++)
        TOW_RETURN_IF_ERROR(tow_program_add_argument(
            program, slice->slice, &signature->arguments[i].shape,
            is_donated[i], &inputs[i]));
    uint32_t node;
    TOW_RETURN_IF_ERROR(tow_program_add_call(program, executable->function,
                                             slice->slice, inputs,
                                             signature->argument_count, &node));
    for (size_t i = 0; i < signature->result_count; i++)
        TOW_RETURN_IF_ERROR(tow_program_add_result(
            program, (tow_value_t){.node = node, .output = (uint32_t)i},
            slice->slice, &signature->results[i].shape));
    return tow_program_send(program);
}

static tow_status_t make_program(PJRT_Executable *executable,
                                 const slice_entry_t *slice,
                                 const bool *is_donated,
                                 tow_program_t **out_program)
{
    const tow_signature_t *signature = executable->signature;
    tow_value_t *inputs =
        tow_calloc(signature->argument_count + 1, sizeof(*inputs));
    if (inputs == NULL) return tow_status_bare(TOW_RESOURCE_EXHAUSTED);
    tow_program_t *program = NULL;
    tow_status_t status = tow_program_begin(
        executable->client->tow,
        signature->name != NULL ? signature->name : "jit", &program);
    if (status == TOW_OK) {
        status = trace(executable, slice, is_donated, inputs, program);
        if (status != TOW_OK) tow_program_release_locked(program);
    }
    tow_free(inputs);
    *out_program = program;
    return status;
}

static tow_status_t add_variant(PJRT_Executable *executable,
                                const slice_entry_t *slice,
                                const bool *is_donated, variant_t *out_variant)
{
    const size_t count = executable->signature->argument_count;
    variant_t variant = {.slice = slice,
                         .generation = slice->generation,
                         .is_donated = tow_calloc(count + 1, sizeof(bool))};
    if (variant.is_donated == NULL ||
        !tow_vec_reserve(&executable->variants,
                         executable->variants.count + 1)) {
        tow_free(variant.is_donated);
        return tow_status_bare(TOW_RESOURCE_EXHAUSTED);
    }
    memcpy(variant.is_donated, is_donated, count * sizeof(bool));
    tow_status_t status =
        make_program(executable, slice, is_donated, &variant.program);
    if (status != TOW_OK) {
        tow_free(variant.is_donated);
        return status;
    }
    TOW_ASSERT(variant.program != NULL);
    executable->variants.items[executable->variants.count++] = variant;
    *out_variant = variant;
    return TOW_OK;
}

/* Its slice was reopened: the program is loaded again, without a compilation.
 */
static tow_status_t renew_variant(PJRT_Executable *executable,
                                  variant_t *variant)
{
    tow_program_t *program;
    TOW_ASSERT(variant->generation < variant->slice->generation);
    TOW_RETURN_IF_ERROR(make_program(executable, variant->slice,
                                     variant->is_donated, &program));
    tow_program_release_locked(variant->program);
    variant->program = program;
    variant->generation = variant->slice->generation;
    return TOW_OK;
}

static tow_status_t find_variant(PJRT_Executable *executable,
                                 const slice_entry_t *slice,
                                 const bool *is_donated, variant_t *out_variant)
{
    const size_t bytes = executable->signature->argument_count * sizeof(bool);
    for (size_t i = 0; i < executable->variants.count; i++) {
        variant_t *variant = &executable->variants.items[i];
        if (variant->slice != slice ||
            memcmp(variant->is_donated, is_donated, bytes) != 0)
            continue;
        if (TOW_UNLIKELY(variant->generation != slice->generation))
            TOW_RETURN_IF_ERROR(renew_variant(executable, variant));
        *out_variant = *variant;
        return TOW_OK;
    }
    return add_variant(executable, slice, is_donated, out_variant);
}

/* -- Results --------------------------------------------------------------------------- */

void tow_plugin_results_clear(const execute_args_t *args, size_t result_count)
{
    for (size_t d = 0; d < args->num_devices; d++)
        for (size_t i = 0; i < result_count; i++)
            args->output_lists[d][i] = NULL;
}

void tow_plugin_results_free(const execute_args_t *args, size_t result_count)
{
    for (size_t d = 0; d < args->num_devices; d++)
        for (size_t i = 0; i < result_count; i++) {
            PJRT_Buffer *buffer = args->output_lists[d][i];
            if (buffer == NULL) continue;
            tow_plugin_buffer_release_locked(buffer);
        }
    tow_plugin_results_clear(args, result_count);
}

bool tow_plugin_result_make(const execute_args_t *args,
                            const slice_entry_t *slice, shard_type_t *type,
                            PJRT_Event *event, shard_group_t *group,
                            size_t result)
{
    for (size_t d = 0; d < slice->count; d++) {
        PJRT_Buffer *buffer = tow_plugin_buffer_make(slice->devices[d], type,
                                                     event, group, (uint32_t)d);
        args->output_lists[d][result] = buffer;
        if (buffer == NULL) return false;
    }
    return true;
}

/* Takes the arrays, even on failure. */
static tow_status_t make_results(PJRT_Executable *executable,
                                 const execute_args_t *args,
                                 const slice_entry_t *slice, PJRT_Event *event,
                                 tow_array_t **take_arrays)
{
    const size_t count = executable->signature->result_count;
    tow_plugin_results_clear(args, count);
    bool is_made = true;
    for (size_t i = 0; i < count; i++) {
        shard_group_t *group = tow_plugin_shard_group_create(
            executable->client, slice, take_arrays[i]);
        is_made =
            is_made && group != NULL &&
            tow_plugin_result_make(args, slice, executable->result_types[i],
                                   event, group, i);
        tow_plugin_shard_group_release_locked(group);
    }
    if (is_made) return TOW_OK;
    tow_plugin_results_free(args, count);
    return tow_status_bare(TOW_RESOURCE_EXHAUSTED);
}

void tow_plugin_events_hand_out(const execute_args_t *args, PJRT_Event *event)
{
    if (args->device_complete_events == NULL) return;
    for (size_t d = 0; d < args->num_devices; d++) {
        tow_plugin_event_retain(event);
        args->device_complete_events[d] = event;
    }
}

/* -- The call -------------------------------------------------------------------------- */

/* Room for the arrays and flags of one call. */
typedef struct room {
    tow_array_t **arguments;
    tow_array_t **results;
    bool *is_donated;
} room_t;

static void forget_donated(const execute_args_t *args, const bool *is_donated)
{
    for (size_t i = 0; i < args->num_args; i++)
        for (size_t d = 0; is_donated[i] && d < args->num_devices; d++)
            tow_plugin_buffer_discard(args->argument_lists[d][i]);
}

/* Locked. */
static tow_status_t run(PJRT_Executable *executable, const execute_args_t *args,
                        const slice_entry_t *slice, const room_t *room)
{
    const size_t result_count = executable->signature->result_count;
    choose_donated(executable, args, room->is_donated);
    variant_t variant = {0};
    TOW_RETURN_IF_ERROR(tow_client_await_room(executable->client->tow));
    TOW_RETURN_IF_ERROR(
        find_variant(executable, slice, room->is_donated, &variant));
    for (size_t i = 0; i < args->num_args; i++) {
        TOW_RETURN_IF_ERROR(tow_plugin_assemble(slice, args->argument_lists, i,
                                                &room->arguments[i]));
        if (TOW_UNLIKELY(executable->has_permuted_arguments ||
                         args->argument_lists[0][i]->is_permuted))
            TOW_RETURN_IF_ERROR(tow_plugin_check_layout(
                executable, args->argument_lists[0][i], i));
    }
    PJRT_Event *event = tow_plugin_event_create(executable->client);
    if (event == NULL) return tow_status_bare(TOW_RESOURCE_EXHAUSTED);
    tow_status_t status =
        tow_program_start(variant.program, room->arguments, args->num_args,
                          room->results, result_count);
    if (status == TOW_OK) {
        tow_plugin_event_follow(event, room->results[0]);
        status = make_results(executable, args, slice, event, room->results);
    }
    if (status == TOW_OK) {
        forget_donated(args, room->is_donated);
        tow_plugin_events_hand_out(args, event);
    }
    tow_plugin_event_release(event);
    return status;
}

static tow_status_t check(const PJRT_Executable *executable,
                          const execute_args_t *args)
{
    const slice_entry_t *slice = executable->slice;
    if (TOW_UNLIKELY(args->num_devices != slice->count))
        return TOW_ERROR(TOW_INVALID_ARGUMENT,
                         "arguments for %zu devices, but the executable has "
                         "%zu",
                         args->num_devices, slice->count);
    if (TOW_UNLIKELY(args->num_args != executable->signature->argument_count))
        return TOW_ERROR(TOW_INVALID_ARGUMENT,
                         "%zu arguments, but the executable has %zu",
                         args->num_args, executable->signature->argument_count);
    if (TOW_UNLIKELY(args->options->num_send_ops > 0 ||
                     args->options->num_recv_ops > 0))
        return TOW_ERROR(TOW_UNIMPLEMENTED,
                         "towpath does not have host callbacks by send and "
                         "receive");
    if (TOW_UNLIKELY(atomic_load(&executable->is_deleted)))
        return TOW_ERROR(TOW_INVALID_ARGUMENT,
                         "the executable has been deleted");
    return TOW_OK;
}

/* An executable of one device may be run on any other. */
static tow_status_t choose_slice(const PJRT_Executable *executable,
                                 const execute_args_t *args,
                                 const slice_entry_t **out_slice)
{
    *out_slice = executable->slice;
    if (args->execute_device == NULL || executable->slice->count != 1 ||
        args->execute_device == executable->slice->devices[0])
        return tow_plugin_slice_refresh(executable->slice);
    slice_entry_t *other;
    TOW_RETURN_IF_ERROR(tow_plugin_device_slice(args->execute_device, &other));
    *out_slice = other;
    return TOW_OK;
}

static tow_status_t run_with_room(PJRT_Executable *executable,
                                  const execute_args_t *args,
                                  const slice_entry_t *slice,
                                  const room_t *room)
{
    client_enter(executable->client);
    tow_status_t status = run(executable, args, slice, room);
    tow_client_leave_after_call(executable->client->tow);
    return status;
}

static tow_status_t run_with_heap(PJRT_Executable *executable,
                                  const execute_args_t *args,
                                  const slice_entry_t *slice)
{
    const size_t results = executable->signature->result_count;
    room_t room = {.arguments =
                       tow_calloc(args->num_args + 1, sizeof(tow_array_t *)),
                   .results = tow_calloc(results + 1, sizeof(tow_array_t *)),
                   .is_donated = tow_calloc(args->num_args + 1, sizeof(bool))};
    tow_status_t status = room.arguments != NULL && room.results != NULL &&
                                  room.is_donated != NULL
                              ? run_with_room(executable, args, slice, &room)
                              : tow_status_bare(TOW_RESOURCE_EXHAUSTED);
    tow_free(room.arguments);
    tow_free(room.results);
    tow_free(room.is_donated);
    return status;
}

static tow_status_t try_to_run(PJRT_Executable *executable,
                               const execute_args_t *args)
{
    const size_t results = executable->signature->result_count;
    const slice_entry_t *slice;
    TOW_RETURN_IF_ERROR(tow_plugin_check_fork());
    TOW_RETURN_IF_ERROR(choose_slice(executable, args, &slice));
    TOW_RETURN_IF_ERROR(tow_plugin_executable_recompile(executable, slice));
    if (results == 0) { /* It has no observable effect. */
        tow_plugin_events_hand_out(args, tow_plugin_event_done());
        return TOW_OK;
    }
    if (args->num_args > TOW_PLUGIN_FEW || results > TOW_PLUGIN_FEW)
        return run_with_heap(executable, args, slice);
    tow_array_t *arguments_few[TOW_PLUGIN_FEW], *results_few[TOW_PLUGIN_FEW];
    bool donated_few[TOW_PLUGIN_FEW];
    return run_with_room(executable, args, slice,
                         &(room_t){arguments_few, results_few, donated_few});
}

tow_status_t tow_plugin_poison(PJRT_Executable *executable,
                               const execute_args_t *args,
                               tow_status_t take_status)
{
    const size_t count = executable->signature->result_count;
    if (tow_status_code(take_status) == TOW_INVALID_ARGUMENT)
        return take_status;
    PJRT_Event *event = tow_plugin_event_create(NULL);
    if (event == NULL) return take_status;
    tow_plugin_event_retain(event);
    tow_plugin_event_complete(event, tow_status_retain(take_status));
    tow_plugin_results_clear(args, count);
    bool is_made = true;
    for (size_t d = 0; d < args->num_devices; d++)
        for (size_t i = 0; i < count && is_made; i++) {
            PJRT_Device *device =
                args->execute_device != NULL && args->num_devices == 1
                    ? args->execute_device
                    : executable->slice->devices[d];
            args->output_lists[d][i] = tow_plugin_buffer_make(
                device, executable->result_types[i], event, NULL, 0);
            is_made = args->output_lists[d][i] != NULL;
        }
    if (is_made)
        tow_plugin_events_hand_out(args, event);
    else
        tow_plugin_results_free(args, count);
    tow_plugin_event_release(event);
    if (!is_made) return take_status;
    tow_status_release(take_status);
    return TOW_OK;
}

static tow_status_t execute(const execute_args_t *args)
{
    PJRT_Executable *executable = &args->executable->executable;
    TOW_RETURN_IF_ERROR(check(executable, args));
    if (atomic_load_explicit(&executable->is_port, memory_order_acquire))
        return tow_plugin_port_execute(executable, args);
    tow_status_t status = try_to_run(executable, args);
    return TOW_LIKELY(status == TOW_OK)
               ? TOW_OK
               : tow_plugin_poison(executable, args, status);
}

static PJRT_Error *loaded_execute(execute_args_t *args)
{
    return take_error(execute(args));
}

void tow_plugin_fill_execute(PJRT_Api *api)
{
    api->PJRT_LoadedExecutable_Execute = loaded_execute;
}
