#include "client/client_impl.h"

#include <string.h>

#include "base/alloc.h"
#include "base/assert.h"
#include "device/host/host.h"
#include "device/host/tuning.h"

#define SIGNATURE_ARENA_BYTES ((size_t)64 << 20)

static void free_function(tow_function_t *function)
{
    tow_status_release(function->compiling.error);
    tow_status_release(function->query_ready.error);
    tow_free(function->query);
    tow_vec_deinit(&function->calls);
    tow_arena_deinit(&function->arena);
    tow_free(function);
}

static tow_status_t send_copy(tow_client_t *client, const void *bytes,
                              size_t size, uint64_t *out_blob)
{
    void *copy = tow_malloc(size + 1);
    if (copy == NULL) return tow_status_bare(TOW_RESOURCE_EXHAUSTED);
    memcpy(copy, bytes, size);
    *out_blob = tow_client_send_blob(client, copy, size);
    return TOW_OK;
}

static tow_status_t send_compile(tow_function_t *function,
                                 const tow_source_t *source, bool asks)
{
    tow_client_t *client = function->slice->client;
    tow_msg_compile_t compile = TOW_MSG_COMPILE_INIT;
    compile.function = function->id;
    compile.slice = function->slice->id;
    compile.format = source->format;
    compile.may_query = asks;
    TOW_RETURN_IF_ERROR(tow_slice_generation_status(function->slice));
    TOW_RETURN_IF_ERROR(
        send_copy(client, source->bytes, source->size, &compile.program_blob));
    if (source->options_size > 0)
        TOW_RETURN_IF_ERROR(send_copy(client, source->options,
                                      source->options_size,
                                      &compile.options_blob));
    return tow_client_send(client, TOW_MESSAGE_COMPILE, &compile.base);
}

static tow_status_t ask(tow_slice_t *slice, const tow_source_t *source,
                        bool asks, tow_function_t **out_function)
{
    tow_client_t *client = slice->client;
    if (source->bytes == NULL || source->size == 0)
        return TOW_ERROR(TOW_INVALID_ARGUMENT, "the program is empty");
    tow_function_t *function = tow_calloc(1, sizeof(*function));
    if (function == NULL) return tow_status_bare(TOW_RESOURCE_EXHAUSTED);
    tow_arena_init(&function->arena, SIGNATURE_ARENA_BYTES);
    function->reference_count = 1;
    function->slice = slice;
    function->id = ++client->function_number;
    tow_status_t status =
        tow_map_put(&client->functions, function->id, function)
            ? send_compile(function, source, asks)
            : tow_status_bare(TOW_RESOURCE_EXHAUSTED);
    if (status != TOW_OK) {
        tow_map_remove(&client->functions, function->id);
        free_function(function);
        return status;
    }
    tow_slice_retain_locked(slice);
    *out_function = function;
    return TOW_OK;
}

tow_status_t tow_function_compile_start(tow_slice_t *slice,
                                        const tow_source_t *source,
                                        tow_function_t **out_function)
{
    return ask(slice, source, false, out_function);
}

tow_status_t tow_function_compile_start_with_queries(
    tow_slice_t *slice, const tow_source_t *source,
    tow_function_t **out_function)
{
    return ask(slice, source, true, out_function);
}

tow_status_t tow_host_function_load_start(tow_slice_t *slice, tow_bytes_t bytes,
                                          const tow_signature_t *signature,
                                          uint32_t time_limit_ms,
                                          tow_function_t **out_function)
{
    void *packed;
    size_t size;
    TOW_RETURN_IF_ERROR(tow_host_signature_check(signature));
    TOW_RETURN_IF_ERROR(tow_host_code_check(bytes));
    if (time_limit_ms > TOW_HOST_TIME_LIMIT_MS_MAX)
        return TOW_ERROR(
            TOW_INVALID_ARGUMENT,
            "the time limit is %u ms, more than the maximum of %u ms",
            time_limit_ms, TOW_HOST_TIME_LIMIT_MS_MAX);
    TOW_RETURN_IF_ERROR(tow_signature_pack(signature, &packed, &size));
    const tow_source_t source = {.format =
                                     (tow_source_format_t)TOW_PROGRAM_HOST,
                                 .bytes = bytes.data,
                                 .size = bytes.size,
                                 .options = packed,
                                 .options_size = size};
    tow_status_t status =
        tow_function_compile_start(slice, &source, out_function);
    if (status == TOW_OK) (*out_function)->time_limit_ms = time_limit_ms;
    tow_free(packed);
    return status;
}

void tow_function_retain_locked(tow_function_t *function)
{
    function->reference_count++;
}

void tow_function_release_locked(tow_function_t *function)
{
    TOW_ASSERT(function->reference_count > 0);
    if (--function->reference_count > 0) return;
    tow_slice_t *slice = function->slice;
    tow_client_t *client = slice->client;
    for (size_t i = 0; i < function->calls.count; i++) {
        tow_program_release_locked(function->calls.items[i].program);
        tow_slice_release_locked(function->calls.items[i].slice);
    }
    tow_map_remove(&client->functions, function->id);
    tow_msg_function_discard_t drop = TOW_MSG_FUNCTION_DISCARD_INIT;
    drop.function = function->id;
    if (tow_slice_is_known(slice))
        tow_status_ignore(
            tow_client_send(client, TOW_MESSAGE_FUNCTION_DISCARD, &drop.base),
            "without a cluster there is nothing to release");
    free_function(function);
    tow_slice_release_locked(slice);
}

void tow_function_compiled(tow_client_t *client,
                           const tow_msg_compile_done_t *done)
{
    tow_function_t *function = tow_map_find(&client->functions, done->function);
    if (function == NULL || function->compiling.settled) return;
    tow_status_t status = tow_failure_status(done->failure);
    if (status == TOW_OK)
        status = tow_signature_unpack(
            (tow_bytes_t){done->signature.data, done->signature.len},
            &function->arena, &function->signature);
    tow_completion_settle(client, &function->query_ready, TOW_OK);
    tow_completion_settle(client, &function->compiling, status);
    tow_function_check(function);
}

const tow_completion_t *tow_function_compiling(const tow_function_t *function)
{
    return &function->compiling;
}

uint32_t tow_function_generation(const tow_function_t *function)
{
    return function->slice->generation;
}

const tow_signature_t *tow_function_signature(const tow_function_t *function)
{
    return &function->signature;
}

/* -- Calls --------------------------------------------------------------------- */

/* Builds the graph of one call: arguments, computation, results. */
static tow_status_t trace_call(tow_program_t *program, tow_function_t *function,
                               tow_slice_t *slice)
{
    const tow_signature_t *signature = &function->signature;
    tow_value_t *inputs =
        tow_calloc(signature->argument_count + 1, sizeof(*inputs));
    if (inputs == NULL) return tow_status_bare(TOW_RESOURCE_EXHAUSTED);
    tow_status_t status = TOW_OK;
    for (size_t i = 0; i < signature->argument_count && status == TOW_OK; i++)
        status = tow_program_add_argument(
            program, slice, &signature->arguments[i].shape, false, &inputs[i]);
    uint32_t node = 0;
    if (status == TOW_OK)
        status = tow_program_add_call(program, function, slice, inputs,
                                      signature->argument_count, &node);
    tow_free(inputs);
    for (size_t i = 0; i < signature->result_count && status == TOW_OK; i++)
        status = tow_program_add_result(
            program, (tow_value_t){.node = node, .output = (uint32_t)i}, slice,
            &signature->results[i].shape);
    for (size_t i = 0; i < signature->result_count && status == TOW_OK; i++)
        program->results.items[i].bounds = signature->results[i].bounds;
    return status;
}

static tow_status_t make_call(tow_function_t *function, tow_slice_t *slice,
                              tow_program_t **out_program)
{
    TOW_RETURN_IF_ERROR(tow_slice_generation_status(function->slice));
    TOW_RETURN_IF_ERROR(tow_slice_generation_status(slice));
    if (!tow_vec_reserve(&function->calls, function->calls.count + 1))
        return tow_status_bare(TOW_RESOURCE_EXHAUSTED);
    const char *name =
        function->signature.name != NULL ? function->signature.name : "call";
    tow_program_t *program;
    TOW_RETURN_IF_ERROR(
        tow_program_begin(function->slice->client, name, &program));
    program->is_of_call = true;
    tow_status_t status = trace_call(program, function, slice);
    if (status == TOW_OK) status = tow_program_send(program);
    if (status != TOW_OK) {
        tow_program_release_locked(program);
        return status;
    }
    tow_slice_retain_locked(slice);
    function->calls.items[function->calls.count++] =
        (call_program_t){slice, program};
    *out_program = program;
    return TOW_OK;
}

tow_status_t tow_function_program(tow_function_t *function, tow_slice_t *slice,
                                  tow_program_t **out_program)
{
    for (size_t i = 0; i < function->calls.count; i++)
        if (function->calls.items[i].slice == slice) {
            *out_program = function->calls.items[i].program;
            return TOW_OK;
        }
    return make_call(function, slice, out_program);
}
