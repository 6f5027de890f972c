/* Calls of programs through their ports: the hot path of programs in Python.
 *
 * Each port takes its arguments and hands out its results as promises; the
 * last one starts the run of all. Between two ports a call belongs to its
 * thread. It holds the arrays of its arguments and promises, so it neither
 * matters nor leaks if JAX frees them meanwhile; buffers that it consumes it
 * holds too, and discards them when the run has started. A call of the same
 * program reuses its memory. */
#include "pjrt/execute_impl.h"
#include "pjrt/program_impl.h"

/* A number of this thread that no other thread ever has. */
static uint64_t this_thread(void)
{
    static atomic_uint_fast64_t last_number;
    static _Thread_local uint64_t number;
    if (TOW_UNLIKELY(number == 0))
        number = atomic_fetch_add(&last_number, 1) + 1;
    return number;
}

/* -- Calls ----------------------------------------------------------------- */

/* Accepts one that is partly built. */
static void free_call(plugin_call_t *call)
{
    TOW_ASSERT(call->argument_count + call->result_count == 0);
    tow_free(call->arguments);
    tow_free(call->results);
    tow_free(call->donated);
    tow_free(call);
}

static plugin_call_t *make_call(plugin_program_t *program)
{
    plugin_call_t *call = tow_calloc(1, sizeof(*call));
    if (call == NULL) return NULL;
    call->arguments =
        tow_malloc((program->argument_count + 1) * sizeof(tow_array_t *));
    call->results =
        tow_malloc((program->result_count + 1) * sizeof(tow_array_t *));
    call->donated =
        tow_malloc((program->donated_shard_count + 1) * sizeof(PJRT_Buffer *));
    if (call->arguments != NULL && call->results != NULL &&
        call->donated != NULL && tow_vec_push(&program->calls, call))
        return call;
    free_call(call);
    return NULL;
}

/* `thread` 0: one to be reused. NULL: none. */
static plugin_call_t *find_call(const plugin_program_t *program,
                                uint64_t thread)
{
    for (size_t i = 0; i < program->calls.count; i++)
        if (program->calls.items[i]->thread == thread)
            return program->calls.items[i];
    return NULL;
}

static void release_all(plugin_call_t *call)
{
    for (size_t i = 0; i < call->argument_count; i++)
        tow_array_release_locked(call->arguments[i]);
    for (size_t i = 0; i < call->result_count; i++)
        tow_array_release_locked(call->results[i]);
    for (size_t i = 0; i < call->donated_count; i++)
        tow_plugin_buffer_release_locked(call->donated[i]);
    if (call->traced != NULL) tow_program_release_locked(call->traced);
    call->argument_count = call->result_count = call->donated_count = 0;
    call->traced = NULL;
}

/* All its results, those of later ports too, have this error. */
static void fail(plugin_call_t *call, tow_status_t take_status)
{
    TOW_ASSERT(call->error == TOW_OK && take_status != TOW_OK);
    call->error = take_status;
    for (size_t i = 0; i < call->result_count; i++)
        tow_program_break_promise(call->results[i],
                                  tow_status_retain(take_status));
    release_all(call);
}

/* Its memory may be reused. */
static void end(plugin_call_t *call)
{
    release_all(call);
    tow_status_release(call->error);
    call->error = TOW_OK;
    call->thread = 0;
}

static void abandon(plugin_call_t *call, tow_status_t take_cause)
{
    if (call->error == TOW_OK)
        fail(call, take_cause);
    else
        tow_status_release(take_cause);
    end(call);
}

static tow_status_t abandoned(const plugin_program_t *program,
                              const plugin_call_t *call)
{
    return TOW_ERROR(TOW_CANCELLED,
                     "the call was abandoned: of the ports of program '%s' "
                     "only %u of %zu were executed",
                     program->name, call->next_port, program->ports.count);
}

void tow_plugin_program_abandon(plugin_program_t *program)
{
    plugin_call_t *call = find_call(program, this_thread());
    if (call != NULL) abandon(call, abandoned(program, call));
}

void tow_plugin_program_free_calls(plugin_program_t *program)
{
    for (size_t i = 0; i < program->calls.count; i++) {
        plugin_call_t *call = program->calls.items[i];
        if (call->thread != 0) abandon(call, abandoned(program, call));
        free_call(call);
    }
    tow_vec_deinit(&program->calls);
}

/* -- Beginning a call ------------------------------------------------------ */

/* Left while it waits, with a reference to the program. */
static tow_status_t renew(plugin_program_t *program)
{
    client_leave_lazily(program->client);
    tow_status_t status = tow_plugin_program_renew(program);
    client_enter(program->client);
    return status;
}

static tow_status_t begin(plugin_program_t *program, plugin_call_t **out_call)
{
    const uint64_t thread = this_thread();
    tow_plugin_program_abandon(program);
    plugin_call_t *call = find_call(program, 0);
    if (TOW_UNLIKELY(call == NULL)) call = make_call(program);
    if (call == NULL) return tow_status_bare(TOW_RESOURCE_EXHAUSTED);
    call->thread = thread;
    call->number = ++program->client->port_call_number;
    call->next_port = 0;
    *out_call = call;
    if (TOW_UNLIKELY(!tow_plugin_program_is_fresh(program))) {
        tow_status_t status = renew(program);
        if (status != TOW_OK) {
            fail(call, status);
            return TOW_OK;
        }
    }
    call->traced = program->traced;
    tow_program_retain_locked(call->traced);
    return TOW_OK;
}

/* The call of this thread that the port is the next one of. */
static tow_status_t join(const plugin_port_t *port, plugin_call_t **out_call)
{
    plugin_program_t *program = port->program;
    if (port->index == 0) return begin(program, out_call);
    *out_call = find_call(program, this_thread());
    if (TOW_LIKELY(*out_call != NULL && (*out_call)->next_port == port->index))
        return TOW_OK;
    return TOW_ERROR(TOW_INVALID_ARGUMENT,
                     "port %u of program '%s' is executed, but this thread's "
                     "call expects port %u",
                     port->index, program->name,
                     *out_call != NULL ? (*out_call)->next_port : 0);
}

/* -- Arguments ------------------------------------------------------------- */

/* Programs without donation do not come here. */
static tow_status_t note_buffer(plugin_call_t *call, PJRT_Buffer *buffer,
                                bool is_donated)
{
    const bool is_second = buffer->port_call == call->number;
    if (is_second && (is_donated || buffer->is_donated))
        return TOW_ERROR(TOW_INVALID_ARGUMENT,
                         "the same array is another argument of this call, and "
                         "one of them is donated");
    buffer->port_call = call->number;
    buffer->is_donated = is_donated;
    if (!is_donated) return TOW_OK;
    tow_plugin_buffer_retain(buffer);
    call->donated[call->donated_count++] = buffer;
    return TOW_OK;
}

static tow_status_t take_argument(plugin_call_t *call,
                                  const plugin_port_t *port,
                                  const execute_args_t *args, size_t index)
{
    PJRT_Executable *stub = port->stub;
    tow_array_t *array;
    TOW_RETURN_IF_ERROR(
        tow_plugin_assemble(stub->slice, args->argument_lists, index, &array));
    if (TOW_UNLIKELY(stub->has_permuted_arguments ||
                     args->argument_lists[0][index]->is_permuted))
        TOW_RETURN_IF_ERROR(tow_plugin_check_layout(
            stub, args->argument_lists[0][index], index));
    tow_array_retain_locked(array);
    call->arguments[call->argument_count++] = array;
    if (port->program->donated_shard_count == 0) return TOW_OK;
    for (size_t d = 0; d < args->num_devices; d++) {
        tow_status_t status = note_buffer(call, args->argument_lists[d][index],
                                          port->is_donated[index]);
        if (status != TOW_OK)
            return tow_status_annotate(status, "argument %zu", index);
    }
    return TOW_OK;
}

static tow_status_t take_arguments(plugin_call_t *call,
                                   const plugin_port_t *port,
                                   const execute_args_t *args)
{
    TOW_ASSERT(call->argument_count == port->first_argument);
    for (size_t i = 0; i < args->num_args; i++) {
        tow_status_t status = take_argument(call, port, args, i);
        if (TOW_UNLIKELY(status != TOW_OK))
            return tow_status_annotate(status, "program '%s', port %u",
                                       port->program->name, port->index);
    }
    return TOW_OK;
}

/* -- Results --------------------------------------------------------------- */

static tow_status_t promise(plugin_call_t *call, const plugin_port_t *port,
                            const execute_args_t *args, size_t index)
{
    PJRT_Executable *stub = port->stub;
    tow_array_t *array;
    TOW_RETURN_IF_ERROR(
        tow_program_promise(call->traced, port->first_result + index, &array));
    call->results[call->result_count++] = array;
    PJRT_Event *event = tow_plugin_event_create(stub->client);
    if (event == NULL) return tow_status_bare(TOW_RESOURCE_EXHAUSTED);
    tow_plugin_event_follow(event, array);
    tow_array_retain_locked(array);
    shard_group_t *group =
        tow_plugin_shard_group_create(stub->client, stub->slice, array);
    const bool is_made =
        group != NULL &&
        tow_plugin_result_make(args, stub->slice, stub->result_types[index],
                               event, group, index);
    tow_plugin_shard_group_release_locked(group);
    tow_plugin_event_release(event);
    return is_made ? TOW_OK : tow_status_bare(TOW_RESOURCE_EXHAUSTED);
}

static tow_status_t promise_all(plugin_call_t *call, const plugin_port_t *port,
                                const execute_args_t *args)
{
    const size_t count = port->stub->signature->result_count;
    TOW_ASSERT(call->result_count == port->first_result);
    tow_plugin_results_clear(args, count);
    for (size_t i = 0; i < count; i++) {
        tow_status_t status = promise(call, port, args, i);
        if (TOW_LIKELY(status == TOW_OK)) continue;
        tow_plugin_results_free(args, count);
        return status;
    }
    return TOW_OK;
}

/* The device's part has completed when its first result is ready. A port
 * without results completes at once: the results of others tell. */
static void hand_out_events(const plugin_port_t *port,
                            const execute_args_t *args)
{
    if (port->stub->signature->result_count > 0) {
        tow_plugin_events_hand_out(args, args->output_lists[0][0]->ready);
        return;
    }
    PJRT_Event *done = tow_plugin_event_done();
    tow_plugin_events_hand_out(args, done);
    tow_plugin_event_release(done);
}

/* -- The run --------------------------------------------------------------- */

/* Another thread may have deleted or consumed them since their port. */
static tow_status_t check_donated(const plugin_call_t *call)
{
    for (size_t i = 0; i < call->donated_count; i++)
        if (TOW_UNLIKELY(atomic_load(&call->donated[i]->is_deleted)))
            return TOW_ERROR(TOW_INVALID_ARGUMENT,
                             "a donated argument was deleted, or donated to "
                             "another call, between two ports");
    return TOW_OK;
}

static tow_status_t start(const plugin_program_t *program,
                          const plugin_call_t *call)
{
    TOW_RETURN_IF_ERROR(tow_client_await_room(program->client->tow));
    TOW_RETURN_IF_ERROR(check_donated(call));
    return tow_program_start_promised(call->traced, call->arguments,
                                      call->argument_count, call->results,
                                      call->result_count);
}

static void start_run(const plugin_program_t *program, plugin_call_t *call)
{
    tow_status_t status = start(program, call);
    if (TOW_UNLIKELY(status != TOW_OK)) {
        fail(call, status);
        return;
    }
    for (size_t i = 0; i < call->donated_count; i++)
        tow_plugin_buffer_discard(call->donated[i]);
}

/* -- Executing a port ------------------------------------------------------ */

/* Errors of the cluster fail the call; those of the caller end it. */
static tow_status_t refuse(plugin_call_t *call, tow_status_t take_status)
{
    fail(call, tow_status_retain(take_status));
    if (tow_status_code(take_status) == TOW_INVALID_ARGUMENT) end(call);
    return take_status;
}

static tow_status_t execute(const plugin_port_t *port,
                            const execute_args_t *args)
{
    plugin_program_t *program = port->program;
    plugin_call_t *call = NULL;
    if (TOW_UNLIKELY(!program->is_finished))
        return TOW_ERROR(TOW_INVALID_ARGUMENT, "program '%s' is not finished",
                         program->name);
    TOW_RETURN_IF_ERROR(join(port, &call));
    tow_status_t status = TOW_OK;
    if (TOW_LIKELY(call->error == TOW_OK)) {
        status = take_arguments(call, port, args);
        if (TOW_LIKELY(status == TOW_OK))
            status = promise_all(call, port, args);
        if (TOW_UNLIKELY(status != TOW_OK)) status = refuse(call, status);
    } else {
        status = tow_status_retain(call->error);
    }
    if (status == TOW_OK) hand_out_events(port, args);
    if (call->thread == 0) return status; /* It has ended. */
    if (++call->next_port < program->ports.count) return status;
    if (call->error == TOW_OK) start_run(program, call);
    end(call);
    return status;
}

static void leave(const plugin_port_t *port, bool is_last)
{
    PJRT_Client *client = port->program->client;
    if (is_last)
        tow_client_leave_after_call(client->tow);
    else
        client_leave_lazily(client);
}

tow_status_t tow_plugin_port_execute(PJRT_Executable *stub,
                                     const execute_args_t *args)
{
    TOW_RETURN_IF_ERROR(tow_plugin_check_fork());
    client_enter(stub->client);
    const plugin_port_t *port = stub->port;
    if (TOW_UNLIKELY(port == NULL)) {
        client_leave_lazily(stub->client);
        return TOW_ERROR(TOW_INVALID_ARGUMENT,
                         "the program of this port has been released");
    }
    plugin_program_t *program = port->program;
    program->reference_count++;
    tow_status_t status = execute(port, args);
    const bool is_last_port = port->index + 1 == program->ports.count;
    const bool is_unused = tow_plugin_program_release(program);
    leave(port, is_last_port);
    if (TOW_UNLIKELY(is_unused)) tow_plugin_program_destroy(program);
    return TOW_LIKELY(status == TOW_OK) ? TOW_OK
                                        : tow_plugin_poison(stub, args, status);
}
