/* Compiling, once for all equal requests: format, program, options without a
 * device assignment, number and kind of devices. Code that is not in use stays
 * cached, up to a limit in bytes. */
#include "controller/controller_impl.h"

#include <string.h>

#include "base/alloc.h"
#include "base/assert.h"
#include "base/hash.h"
#include "controller/blob_impl.h"
#include "controller/slice_impl.h"
#include "device/host/host.h"
#include "device/options.h"

/* -- References ------------------------------------------------------------ */

uint64_t tow_ctl_code_bytes(const tow_ctl_code_t *code)
{
    return code->program_size + code->options_size + code->signature_size +
           (code->compiled != NULL ? code->compiled->size : 0);
}

static void free_code(tow_ctl_code_t *code)
{
    tow_list_remove(&code->node);
    tow_compiled_destroy(code->compiled);
    tow_status_release(code->error);
    tow_free(code->signature);
    tow_free(code->job_options);
    tow_free(code->options);
    tow_free(code->program);
    tow_free(code->kind);
    tow_free(code);
}

static void discard_code(tow_ctl_code_t *code)
{
    code->controller->codes.bytes -= tow_ctl_code_bytes(code);
    free_code(code);
}

void tow_ctl_code_retain(tow_ctl_code_t *code)
{
    code->reference_count++;
}

/* Frees code that is not in use, least recently used first. */
static void trim(tow_controller_t *controller)
{
    tow_list_t *item = controller->codes.list.next;
    while (item != &controller->codes.list &&
           controller->codes.bytes > controller->options.code_bytes_max) {
        tow_ctl_code_t *code = TOW_CONTAINER_OF(item, tow_ctl_code_t, node);
        item = item->next;
        if (code->reference_count == 0) discard_code(code);
    }
}

void tow_ctl_code_release(tow_ctl_code_t *code)
{
    TOW_ASSERT(code->reference_count > 0);
    if (--code->reference_count > 0) return;
    /* A failure is not cached: the next request tries again. */
    if (code->state == CODE_FAILED || code->asks)
        discard_code(code);
    else
        trim(code->controller);
}

void tow_ctl_codes_cancel(tow_controller_t *controller)
{
    for (tow_list_t *item = controller->codes.list.next;
         item != &controller->codes.list; item = item->next) {
        tow_ctl_code_t *code = TOW_CONTAINER_OF(item, tow_ctl_code_t, node);
        if (code->state != CODE_COMPILING) continue;
        controller->closing_count++; /* until the job has ended */
        tow_compiler_cancel(controller->options.compiler, &code->job);
    }
}

void tow_ctl_codes_destroy(tow_controller_t *controller)
{
    while (!tow_list_is_empty(&controller->codes.list))
        free_code(TOW_CONTAINER_OF(controller->codes.list.next, tow_ctl_code_t,
                                   node));
}

/* -- Answers ------------------------------------------------------------------- */

static void answer(tow_ctl_function_t *function)
{
    const tow_ctl_code_t *code = function->code;
    tow_msg_compile_done_t done = TOW_MSG_COMPILE_DONE_INIT;
    tow_msg_failure_t failure = tow_failure_of(code->error);
    function->is_answered = true;
    done.function = function->id;
    if (code->error != TOW_OK)
        done.failure = &failure;
    else
        done.signature =
            (ProtobufCBinaryData){code->signature_size, code->signature};
    tow_ctl_client_send(function->client, TOW_MESSAGE_COMPILE_DONE, &done.base);
}

static void answer_failure(tow_ctl_client_t *client, uint64_t function,
                           tow_status_t take_status)
{
    tow_msg_compile_done_t done = TOW_MSG_COMPILE_DONE_INIT;
    tow_msg_failure_t failure = tow_failure_of(take_status);
    done.function = function;
    done.failure = &failure;
    tow_ctl_client_send(client, TOW_MESSAGE_COMPILE_DONE, &done.base);
    tow_status_release(take_status);
}

/* A function whose code failed ceases to exist: the client has been notified.
 */
static void settle_function(tow_ctl_function_t *function)
{
    tow_list_remove(&function->node);
    answer(function);
    if (function->code->state == CODE_READY) return;
    tow_map_remove(&function->client->functions, function->id);
    tow_ctl_code_t *code = function->code;
    tow_free(function);
    tow_ctl_code_release(code);
}

static void settle_code(tow_ctl_code_t *code)
{
    tow_ctl_code_retain(code);
    while (!tow_list_is_empty(&code->waiting))
        settle_function(
            TOW_CONTAINER_OF(code->waiting.next, tow_ctl_function_t, node));
    tow_ctl_code_release(code);
}

/* -- Compiling ----------------------------------------------------------------- */

static tow_status_t keep_compiled(tow_ctl_code_t *code,
                                  tow_compiled_t *take_compiled)
{
    const tow_signature_t *signature = &take_compiled->signature;
    code->compiled = take_compiled;
    code->controller->codes.bytes += take_compiled->size;
    if (signature->argument_count == TOW_COUNT_UNKNOWN ||
        signature->result_count == TOW_COUNT_UNKNOWN)
        return TOW_ERROR(TOW_UNIMPLEMENTED,
                         "%s: the device plugin does not report the arguments "
                         "and results of a program",
                         signature->name);
    tow_status_t status =
        tow_signature_pack(signature, &code->signature, &code->signature_size);
    if (status == TOW_OK) code->controller->codes.bytes += code->signature_size;
    return status;
}

static void compile_done(tow_compile_job_t *job, tow_status_t take_status,
                         tow_compiled_t *take_compiled)
{
    tow_ctl_code_t *code = TOW_CONTAINER_OF(job, tow_ctl_code_t, job);
    tow_controller_t *controller = code->controller;
    tow_free(code->job_options);
    code->job_options = NULL;
    if (controller->is_closing) {
        code->state = CODE_FAILED;
        tow_status_release(take_status);
        tow_compiled_destroy(take_compiled);
        tow_controller_part_closed(controller);
        return;
    }
    if (take_status == TOW_OK) take_status = keep_compiled(code, take_compiled);
    code->state = take_status == TOW_OK ? CODE_READY : CODE_FAILED;
    code->error = take_status;
    settle_code(code);
    tow_ctl_code_check(code);
    tow_ctl_code_release(code); /* The compiler's reference. */
    tow_controller_touch(controller);
}

static tow_status_t start_job(tow_ctl_code_t *code,
                              const tow_ctl_mapping_t *mapping,
                              const tow_assignment_t *counts)
{
    tow_assignment_t assignment = *counts;
    assignment.device_ids = mapping->device_ids;
    size_t size;
    TOW_RETURN_IF_ERROR(tow_compile_options_reassign(
        (tow_bytes_t){code->options, code->options_size}, &assignment,
        &code->job_options, &size));
    code->job = (tow_compile_job_t){
        .format = code->job.format,
        .program = {code->program, code->program_size},
        .options = {code->job_options, size},
        .device_kind = code->kind,
        .done = compile_done,
        .on_query = code->asks ? tow_ctl_code_partition_query : NULL,
    };
    switch (
        tow_compiler_submit(code->controller->options.compiler, &code->job)) {
    case TOW_SUBMIT_OK: code->controller->codes.compile_count++; return TOW_OK;
    case TOW_SUBMIT_FULL:
        return TOW_ERROR(TOW_RESOURCE_EXHAUSTED,
                         "the compile queue is full: try again");
    case TOW_SUBMIT_CLOSING: break;
    }
    return TOW_ERROR(TOW_UNAVAILABLE, "the compiler is closing");
}

/* A host function is not compiled. The client sends its signature as its
 * options. */
static tow_status_t take_host(tow_ctl_code_t *code)
{
    tow_compiled_t *compiled = tow_calloc(1, sizeof(*compiled));
    if (compiled == NULL) return tow_status_bare(TOW_RESOURCE_EXHAUSTED);
    tow_arena_init(&compiled->arena, 0);
    code->compiled = compiled;
    compiled->bytes = tow_malloc(code->program_size + 1);
    if (compiled->bytes == NULL) return tow_status_bare(TOW_RESOURCE_EXHAUSTED);
    memcpy(compiled->bytes, code->program, code->program_size);
    compiled->size = code->program_size;
    TOW_RETURN_IF_ERROR(
        tow_host_code_check((tow_bytes_t){code->program, code->program_size}));
    TOW_RETURN_IF_ERROR(
        tow_signature_unpack((tow_bytes_t){code->options, code->options_size},
                             &compiled->arena, &compiled->signature));
    TOW_RETURN_IF_ERROR(tow_host_signature_check(&compiled->signature));
    if (compiled->signature.partition_count != code->device_count)
        return TOW_ERROR(TOW_INVALID_ARGUMENT,
                         "host function %s is for %zu shards, but the slice "
                         "has %zu devices",
                         compiled->signature.name,
                         compiled->signature.partition_count,
                         code->device_count);
    code->state = CODE_READY;
    return tow_signature_pack(&compiled->signature, &code->signature,
                              &code->signature_size);
}

/* -- The cache of code ----------------------------------------------------- */

/* A compile request. */
typedef struct wanted {
    tow_program_format_t format;
    const tow_ctl_blob_t *program;
    void *options; /* owned: without an assignment */
    size_t options_size;
    tow_assignment_t counts;
    const tow_ctl_mapping_t *mapping;
    uint64_t hash;
    bool asks;
} wanted_t;

/* The client's options, or by default as many replicas as devices. */
static tow_status_t read_options(wanted_t *wanted,
                                 const tow_ctl_blob_t *options)
{
    const size_t device_count = wanted->mapping->device_count;
    tow_bytes_t given = {0};
    if (wanted->format == TOW_PROGRAM_HOST) {
        wanted->options_size = options != NULL ? options->size : 0;
        wanted->options = tow_malloc(wanted->options_size + 1);
        if (wanted->options == NULL)
            return tow_status_bare(TOW_RESOURCE_EXHAUSTED);
        if (wanted->options_size > 0)
            memcpy(wanted->options, options->bytes, wanted->options_size);
        return TOW_OK;
    }
    if (options != NULL) given = (tow_bytes_t){options->bytes, options->size};
    tow_assignment_t *counts = &wanted->counts;
    *counts =
        (tow_assignment_t){.replica_count = device_count, .partition_count = 1};
    if (given.size > 0)
        TOW_RETURN_IF_ERROR(tow_compile_options_counts(
            given, &counts->replica_count, &counts->partition_count));
    if (counts->replica_count * counts->partition_count != device_count)
        return TOW_ERROR(TOW_INVALID_ARGUMENT,
                         "compile options for %zu replicas x %zu partitions, "
                         "but the slice has %zu devices",
                         counts->replica_count, counts->partition_count,
                         device_count);
    return tow_compile_options_reassign(given, counts, &wanted->options,
                                        &wanted->options_size);
}

static uint64_t hash_of(const wanted_t *wanted)
{
    uint64_t hash =
        tow_hash_bytes(wanted->program->bytes, wanted->program->size,
                       (uint64_t)wanted->format);
    hash = tow_hash_bytes(wanted->options, wanted->options_size, hash);
    return tow_hash_bytes(wanted->mapping->kind, strlen(wanted->mapping->kind),
                          hash);
}

static bool is_same(const tow_ctl_code_t *code, const wanted_t *wanted)
{
    return code->hash == wanted->hash && code->state != CODE_FAILED &&
           !code->asks && !wanted->asks && code->job.format == wanted->format &&
           code->device_count == wanted->mapping->device_count &&
           strcmp(code->kind, wanted->mapping->kind) == 0 &&
           code->program_size == wanted->program->size &&
           code->options_size == wanted->options_size &&
           memcmp(code->program, wanted->program->bytes, code->program_size) ==
               0 &&
           (code->options_size == 0 ||
            memcmp(code->options, wanted->options, code->options_size) == 0);
}

/* Moves it to the end of the list: it is the most recently used. */
static tow_ctl_code_t *find_code(tow_controller_t *controller,
                                 const wanted_t *wanted)
{
    for (tow_list_t *item = controller->codes.list.previous;
         item != &controller->codes.list; item = item->previous) {
        tow_ctl_code_t *code = TOW_CONTAINER_OF(item, tow_ctl_code_t, node);
        if (!is_same(code, wanted)) continue;
        tow_list_remove(&code->node);
        tow_list_append(&controller->codes.list, &code->node);
        return code;
    }
    return NULL;
}

static tow_status_t make_code(tow_controller_t *controller, wanted_t *wanted,
                              tow_ctl_blob_t *program,
                              tow_ctl_code_t **out_code)
{
    tow_ctl_code_t *code = tow_calloc(1, sizeof(*code));
    if (code == NULL) return tow_status_bare(TOW_RESOURCE_EXHAUSTED);
    code->controller = controller;
    tow_list_init(&code->waiting);
    tow_list_init(&code->node);
    code->hash = wanted->hash;
    code->asks = wanted->asks;
    code->job.format = wanted->format;
    code->device_count = wanted->mapping->device_count;
    code->kind = tow_strdup(wanted->mapping->kind);
    code->program = program->bytes;
    code->program_size = program->size;
    program->bytes = NULL;
    code->options = wanted->options;
    code->options_size = wanted->options_size;
    wanted->options = NULL;
    tow_status_t status =
        code->kind == NULL ? tow_status_bare(TOW_RESOURCE_EXHAUSTED)
        : wanted->format == TOW_PROGRAM_HOST
            ? take_host(code)
            : start_job(code, wanted->mapping, &wanted->counts);
    if (status != TOW_OK) {
        free_code(code);
        return status;
    }
    if (code->state == CODE_COMPILING)
        tow_ctl_code_retain(code); /* The compiler's. */
    controller->codes.bytes += tow_ctl_code_bytes(code);
    tow_list_append(&controller->codes.list, &code->node);
    tow_ctl_code_check(code);
    *out_code = code;
    return TOW_OK;
}

static tow_status_t add_function(tow_ctl_client_t *client, uint64_t id,
                                 tow_ctl_code_t *code)
{
    tow_ctl_function_t *function = tow_calloc(1, sizeof(*function));
    if (function == NULL || !tow_map_put(&client->functions, id, function)) {
        tow_free(function);
        return tow_status_bare(TOW_RESOURCE_EXHAUSTED);
    }
    *function = (tow_ctl_function_t){.client = client, .id = id, .code = code};
    tow_list_init(&function->node);
    tow_ctl_code_retain(code);
    if (code->state == CODE_COMPILING)
        tow_list_append(&code->waiting, &function->node);
    else
        answer(function);
    return TOW_OK;
}

static tow_status_t compile(tow_ctl_client_t *client,
                            const tow_msg_compile_t *message,
                            tow_ctl_blob_t *program,
                            const tow_ctl_blob_t *options, wanted_t *wanted)
{
    const tow_ctl_slice_t *slice =
        tow_map_find(&client->slices, message->slice);
    if (slice == NULL)
        return TOW_ERROR(TOW_NOT_FOUND, "there is no slice %llu",
                         (unsigned long long)message->slice);
    if (message->format > TOW_PROGRAM_HOST)
        return TOW_ERROR(TOW_INVALID_ARGUMENT, "program format %u is unknown",
                         message->format);
    if (tow_map_count(&client->functions) >= TOW_CLIENT_FUNCTIONS_MAX)
        return TOW_ERROR(TOW_RESOURCE_EXHAUSTED,
                         "a client has at most %u functions: release some",
                         TOW_CLIENT_FUNCTIONS_MAX);
    wanted->mapping = slice->mapping;
    wanted->format = (tow_program_format_t)message->format;
    wanted->program = program;
    wanted->asks = message->may_query;
    TOW_RETURN_IF_ERROR(read_options(wanted, options));
    wanted->hash = hash_of(wanted);
    tow_ctl_code_t *code = find_code(client->controller, wanted);
    if (code == NULL)
        TOW_RETURN_IF_ERROR(
            make_code(client->controller, wanted, program, &code));
    TOW_RETURN_IF_ERROR(add_function(client, message->function, code));
    trim(client->controller);
    return TOW_OK;
}

void tow_ctl_code_compile(tow_ctl_client_t *client,
                          const tow_msg_compile_t *message,
                          tow_ctl_blob_t *program, tow_ctl_blob_t *options)
{
    wanted_t wanted = {0};
    tow_status_t status = compile(client, message, program, options, &wanted);
    tow_free(wanted.options);
    if (status != TOW_OK) answer_failure(client, message->function, status);
}

void tow_ctl_function_discard(tow_ctl_client_t *client,
                              tow_ctl_function_t *function)
{
    tow_ctl_code_t *code = function->code;
    tow_list_remove(&function->node);
    tow_free(function);
    /* There is no client left to reply to its queries. */
    if (code->asks && code->state == CODE_COMPILING)
        tow_compiler_cancel(client->controller->options.compiler, &code->job);
    tow_ctl_code_release(code);
}
