/* One call of a host function, on the thread of its slot: copies inputs into
 * shared memory, sends the call, and checks and copies the outputs. */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/assert.h"
#include "device/host/child_impl.h"

static const char *symbol_of(const host_slot_t *slot)
{
    const tow_host_job_t *job = slot->child.job;
    return job->code->signature.name;
}

void tow_host_slot_describe(const tow_child_slot_t *child, char *text,
                            size_t capacity, int64_t *out_timeout_ns)
{
    const host_slot_t *slot = host_slot_of(child);
    const tow_host_job_t *job = child->job;
    snprintf(text, capacity, "host function %s on worker %s", symbol_of(slot),
             slot->host->name);
    *out_timeout_ns = job->time_limit_ns;
}

void tow_host_slot_child_ended(tow_child_slot_t *child)
{
    host_slot_t *slot = host_slot_of(child);
    slot->codes.count = 0;
    slot->child_has_memory = false;
}

void tow_host_slot_thread_ended(tow_child_slot_t *child)
{
    tow_child_memory_deinit(&host_slot_of(child)->memory);
}

/* -- Arrays in shared memory ------------------------------------------------ */

static tow_status_t ensure_memory(host_slot_t *slot, uint64_t size)
{
    const int fd = slot->memory.fd;
    const uint64_t size_before = slot->memory.size;
    tow_status_t status = tow_child_memory_ensure(&slot->memory, size);
    if (slot->memory.fd != fd || slot->memory.size != size_before)
        slot->child_has_memory = false;
    return status;
}

static uint64_t align(uint64_t size)
{
    return (size + HOST_ARRAY_ALIGNMENT - 1) / HOST_ARRAY_ALIGNMENT *
           HOST_ARRAY_ALIGNMENT;
}

static uint64_t place(host_layout_array_t *at, const tow_host_array_t *array,
                      uint64_t offset)
{
    at->type = (uint32_t)array->shape.type;
    at->rank = array->shape.rank;
    memcpy(at->dims, array->shape.dims,
           array->shape.rank * sizeof(array->shape.dims[0]));
    at->offset = offset;
    at->size = array->size;
    return offset + align(array->size);
}

/* Describes the call and where its arrays are. Returns the end of the
 * memory. */
static uint64_t lay_out(const tow_host_job_t *job, host_layout_t *layout)
{
    const tow_signature_t *signature = &job->code->signature;
    uint64_t offset = align(sizeof(*layout));
    layout->input_count = (uint32_t)signature->argument_count;
    layout->output_count = (uint32_t)signature->result_count;
    layout->shard = job->shard;
    layout->shard_count = (uint32_t)signature->partition_count;
    for (size_t i = 0; i < signature->argument_count; i++)
        offset = place(&layout->arrays[i], &job->inputs[i], offset);
    for (size_t i = 0; i < signature->result_count; i++)
        offset = place(&layout->arrays[signature->argument_count + i],
                       &job->outputs[i], offset);
    return offset;
}

static tow_status_t write_inputs(host_slot_t *slot)
{
    const tow_host_job_t *job = slot->child.job;
    host_layout_t layout = {0};
    if (job->is_probe) return TOW_OK;
    TOW_RETURN_IF_ERROR(ensure_memory(slot, lay_out(job, &layout)));
    memcpy(slot->memory.bytes, &layout, sizeof(layout));
    for (uint32_t i = 0; i < layout.input_count; i++)
        if (layout.arrays[i].size > 0)
            memcpy((char *)slot->memory.bytes + layout.arrays[i].offset,
                   job->inputs[i].bytes, layout.arrays[i].size);
    return TOW_OK;
}

/* Offsets and sizes are ours, not those in the memory that the child may have
 * overwritten. */
static tow_status_t read_outputs(host_slot_t *slot)
{
    tow_host_job_t *job = slot->child.job;
    const host_layout_t *shared = slot->memory.bytes;
    host_layout_t layout = {0};
    lay_out(job, &layout);
    for (uint32_t i = 0; i < layout.output_count; i++) {
        const uint32_t at = layout.input_count + i;
        int64_t dims[TOW_RANK_MAX];
        uint64_t size;
        memcpy(dims, shared->arrays[at].dims, sizeof(dims));
        TOW_RETURN_IF_ERROR(tow_host_accept_dims(job, i, dims));
        TOW_RETURN_IF_ERROR(tow_shape_bytes(&job->outputs[i].shape, &size));
        TOW_ASSERT(size <= job->outputs[i].size);
        if (size > 0)
            memcpy(job->outputs[i].bytes,
                   (const char *)slot->memory.bytes + layout.arrays[at].offset,
                   size);
    }
    return TOW_OK;
}

/* -- The call --------------------------------------------------------------- */

static bool has_code(const host_slot_t *slot, uint64_t number)
{
    for (size_t i = 0; i < slot->codes.count; i++)
        if (slot->codes.items[i] == number) return true;
    return false;
}

/* The shared object, for a child that does not have it; -1: it has. */
static tow_status_t open_code(host_slot_t *slot, const tow_host_code_t *code,
                              int *out_fd)
{
    *out_fd = -1;
    if (has_code(slot, code->number)) return TOW_OK;
    if (!tow_vec_push(&slot->codes, code->number))
        return tow_status_bare(TOW_RESOURCE_EXHAUSTED);
    tow_status_t status = tow_child_file_create(
        code->signature.name, code->bytes, code->size, out_fd);
    if (status != TOW_OK) slot->codes.count--;
    return status;
}

static void make_call(const host_slot_t *slot, int code_fd, host_call_t *call,
                      tow_child_out_t *out)
{
    const tow_host_job_t *job = slot->child.job;
    *call = (host_call_t){.is_probe = job->is_probe,
                          .code = job->code->number,
                          .memory_size = slot->memory.size};
    memcpy(call->symbol, symbol_of(slot),
           strnlen(symbol_of(slot), TOW_NAME_MAX));
    *out = tow_child_out(&tow_host_protocol, HOST_CALL);
    tow_child_out_set(out, 0, call, sizeof(*call));
    call->has_memory = !slot->child_has_memory && slot->memory.fd >= 0;
    if (call->has_memory) out->fds[out->header.fd_count++] = slot->memory.fd;
    call->has_code = code_fd >= 0;
    if (call->has_code) out->fds[out->header.fd_count++] = code_fd;
}

static void make_printable(char *text)
{
    for (char *at = text; *at != '\0'; at++)
        if ((unsigned char)*at < ' ') *at = ' ';
}

static tow_status_t take_result(host_slot_t *slot, const tow_child_in_t *in)
{
    const tow_host_job_t *job = slot->child.job;
    const int32_t result = (int32_t)in->header.code;
    char *text = in->parts[0];
    if (in->header.type != HOST_RESULT)
        return tow_child_slot_reject(&slot->child);
    make_printable(text);
    switch ((host_outcome_t)in->header.value) {
    case HOST_CALLED: break;
    case HOST_NO_OBJECT:
        tow_child_slot_end(&slot->child); /* We noted that it has the code. */
        return TOW_ERROR(TOW_INVALID_ARGUMENT,
                         "host function %s: worker %s cannot load its shared "
                         "object: %s",
                         symbol_of(slot), slot->host->name, text);
    case HOST_NO_SYMBOL:
        return TOW_ERROR(TOW_NOT_FOUND,
                         "host function %s: its shared object has no such "
                         "symbol; is it declared static, or mangled?",
                         symbol_of(slot));
    default: return tow_child_slot_reject(&slot->child);
    }
    if (result != 0)
        return TOW_ERROR(TOW_ABORTED,
                         "host function %s on worker %s failed with %d: %s",
                         symbol_of(slot), slot->host->name, result,
                         text[0] != '\0' ? text : "no message");
    return job->is_probe ? TOW_OK : read_outputs(slot);
}

static tow_status_t await_result(host_slot_t *slot,
                                 tow_child_exchange_t *exchange)
{
    tow_child_event_t event;
    do {
        event = tow_child_slot_wait(&slot->child, exchange);
    } while (event == TOW_CHILD_NOTIFIED);
    if (event != TOW_CHILD_RECEIVED)
        return tow_child_slot_error(&slot->child, event);
    return take_result(slot, &exchange->in);
}

static tow_status_t send_and_wait(host_slot_t *slot, int code_fd)
{
    const tow_host_job_t *job = slot->child.job;
    host_call_t call;
    tow_child_exchange_t exchange =
        tow_child_slot_exchange(&slot->child, job->time_limit_ns);
    make_call(slot, code_fd, &call, &exchange.out);
    exchange.has_out = true;
    slot->child_has_memory |= call.has_memory;
    tow_status_t status = await_result(slot, &exchange);
    tow_child_exchange_deinit(&exchange);
    return status;
}

tow_status_t tow_host_slot_run(tow_child_slot_t *child)
{
    host_slot_t *slot = host_slot_of(child);
    const tow_host_job_t *job = child->job;
    int code_fd;
    if (slot->codes.count >= TOW_HOST_CODE_COUNT_MAX) tow_child_slot_end(child);
    TOW_RETURN_IF_ERROR(tow_child_slot_ensure(child));
    TOW_RETURN_IF_ERROR(write_inputs(slot));
    TOW_RETURN_IF_ERROR(open_code(slot, job->code, &code_fd));
    tow_status_t status = send_and_wait(slot, code_fd);
    if (code_fd >= 0) close(code_fd);
    return status;
}
