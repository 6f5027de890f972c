/* Lowered programs as bytes: the message Lowered of towpath.proto. */
#include <string.h>

#include "base/alloc.h"
#include "base/assert.h"
#include "ir/graph_impl.h"
#include "ir/lowered_impl.h"
#include "wire/message.h"

/* Steps and their numbers follow in the same block. */
typedef struct block {
    tow_lowered_t lowered;
    tow_arena_t arena;
} block_t;

tow_lowered_t *tow_lowered_allocate(size_t step_count, size_t number_count,
                                    tow_lowered_step_t **out_steps,
                                    uint32_t **out_numbers)
{
    block_t *block =
        tow_malloc(sizeof(*block) + step_count * sizeof(tow_lowered_step_t) +
                   number_count * sizeof(uint32_t));
    if (block == NULL) return NULL;
    *out_steps = (tow_lowered_step_t *)(block + 1);
    *out_numbers = (uint32_t *)(*out_steps + step_count);
    block->lowered =
        (tow_lowered_t){.steps = *out_steps, .step_count = step_count};
    tow_arena_init(&block->arena, 0);
    memset(*out_steps, 0, step_count * sizeof(tow_lowered_step_t));
    return &block->lowered;
}

tow_arena_t *tow_lowered_arena(tow_lowered_t *lowered)
{
    return &TOW_CONTAINER_OF(lowered, block_t, lowered)->arena;
}

void tow_lowered_destroy(tow_lowered_t *lowered)
{
    if (lowered == NULL) return;
    tow_arena_deinit(tow_lowered_arena(lowered));
    tow_free(TOW_CONTAINER_OF(lowered, block_t, lowered));
}

/* -- Packing --------------------------------------------------------------- */

/* protobuf-c only reads these, but its pointers are not const. */
static bool pack_step(const tow_lowered_step_t *step, tow_arena_t *arena,
                      tow_msg_lowered_step_t *message)
{
    *message = (tow_msg_lowered_step_t)TOW_MSG_LOWERED_STEP_INIT;
    message->executable = step->executable.value;
    message->inputs = (uint32_t *)step->inputs;
    message->n_inputs = step->input_count;
    message->first_output = step->first_output;
    message->output_count = step->output_count;
    message->non_donatable = (uint32_t *)step->non_donatable;
    message->n_non_donatable = step->non_donatable_count;
    message->freed = (uint32_t *)step->freed;
    message->n_freed = step->freed_count;
    message->node = step->node;
    message->index = step->index;
    message->host = step->is_host;
    message->sequential = step->is_sequential;
    message->time_limit_ms = step->time_limit_ms;
    message->memory_after = step->memory_after;
    message->sent_before = step->sent_before;
    message->late = step->is_late;
    if (step->name != NULL) message->name = (char *)step->name;
    if (step->route != NULL) {
        message->route = tow_route_pack(step->route, arena);
        return message->route != NULL;
    }
    if (step->collective == NULL) return true;
    message->collective = tow_part_pack(step->collective, arena);
    return message->collective != NULL;
}

/* The message with all its pointers in the arena; NULL without memory. */
static tow_msg_lowered_t *make_message(const tow_lowered_t *lowered,
                                       tow_arena_t *arena)
{
    const size_t count = lowered->step_count;
    tow_msg_lowered_t *message = tow_arena_alloc(arena, sizeof(*message));
    tow_msg_lowered_step_t *steps =
        tow_arena_alloc(arena, (count + 1) * sizeof(*steps));
    tow_msg_lowered_step_t **pointers =
        tow_arena_alloc(arena, (count + 1) * sizeof(*pointers));
    if (message == NULL || steps == NULL || pointers == NULL) return NULL;
    *message = (tow_msg_lowered_t)TOW_MSG_LOWERED_INIT;
    message->steps = pointers;
    message->n_steps = count;
    for (size_t i = 0; i < count; i++) {
        if (!pack_step(&lowered->steps[i], arena, &steps[i])) return NULL;
        pointers[i] = &steps[i];
    }
    message->slot_count = lowered->slot_count;
    message->argument_count = lowered->argument_count;
    message->results = (uint32_t *)lowered->results;
    message->n_results = lowered->result_count;
    message->step_count_all = lowered->step_count_all;
    return message;
}

tow_status_t tow_lowered_pack(const tow_lowered_t *lowered, void **out_bytes,
                              size_t *out_size)
{
    TOW_ASSERT(lowered != NULL && out_bytes != NULL && out_size != NULL);
    tow_arena_t arena;
    *out_bytes = NULL;
    *out_size = 0;
    tow_arena_init(&arena, 0);
    tow_msg_lowered_t *message = make_message(lowered, &arena);
    if (message != NULL) {
        *out_size = tow_message_size(&message->base);
        *out_bytes = tow_malloc(*out_size + 1); /* not zero bytes */
    }
    if (*out_bytes != NULL) tow_message_encode(&message->base, *out_bytes);
    tow_arena_deinit(&arena);
    return *out_bytes != NULL ? TOW_OK : tow_ir_exhausted();
}

/* -- Checking -------------------------------------------------------------- */

/* State of a slot: one of these, or FIRST_TOUCH plus the index in the message
 * of the step that wrote or read it last. */
enum {
    SLOT_EMPTY = 0,
    SLOT_ARGUMENT = 1,
    SLOT_GONE = 2,
    FIRST_TOUCH = 3
};

typedef struct check {
    const tow_msg_lowered_t *message;
    uint32_t *slots; /* owned */
} check_t;

static tow_status_t check_head(const tow_msg_lowered_t *message)
{
    if (message->slot_count > TOW_SLOTS_MAX)
        return TOW_ERROR(TOW_INVALID_ARGUMENT, "%u slots, and there may be %u",
                         message->slot_count, TOW_SLOTS_MAX);
    if (message->argument_count > message->slot_count ||
        message->argument_count > TOW_VALUES_MAX)
        return TOW_ERROR(TOW_INVALID_ARGUMENT,
                         "%u arguments, with %u slots; there may be %u",
                         message->argument_count, message->slot_count,
                         TOW_VALUES_MAX);
    if (message->step_count_all > TOW_NODES_MAX ||
        message->n_steps > message->step_count_all)
        return TOW_ERROR(TOW_INVALID_ARGUMENT,
                         "%zu steps of %u; there may be %u", message->n_steps,
                         message->step_count_all, TOW_NODES_MAX);
    return TOW_OK;
}

static tow_status_t check_ids(const check_t *check, size_t at)
{
    const tow_msg_lowered_step_t *step = check->message->steps[at];
    const int kinds = (step->executable != 0) + (step->route != NULL) +
                      (step->collective != NULL);
    if (kinds != 1)
        return TOW_ERROR(TOW_INVALID_ARGUMENT,
                         "it is not one of a computation, a transfer and a "
                         "collective");
    if (step->host && step->executable == 0)
        return TOW_ERROR(TOW_INVALID_ARGUMENT,
                         "it is a host function, and has no executable");
    if (step->node >= TOW_NODES_MAX)
        return TOW_ERROR(TOW_INVALID_ARGUMENT, "invalid node %u", step->node);
    if (step->index >= check->message->step_count_all ||
        (at > 0 && step->index <= check->message->steps[at - 1]->index))
        return TOW_ERROR(TOW_INVALID_ARGUMENT,
                         "its index is %u of %u; indices must ascend",
                         step->index, check->message->step_count_all);
    return TOW_OK;
}

/* Waits point backwards, so they end. */
static tow_status_t check_waits(const check_t *check, size_t at)
{
    const tow_msg_lowered_step_t *step = check->message->steps[at];
    if (step->memory_after == 0 && step->sent_before == 0 && !step->late)
        return TOW_OK;
    if (step->route == NULL || !step->late ||
        step->memory_after > step->index ||
        (step->sent_before != 0 &&
         (step->sent_before <= step->index + 1 ||
          step->sent_before > check->message->step_count_all)))
        return TOW_ERROR(TOW_INVALID_ARGUMENT,
                         "step %u of %u takes memory after step %u and is sent "
                         "before step %u, counted from 1",
                         step->index, check->message->step_count_all,
                         step->memory_after, step->sent_before);
    return TOW_OK;
}

static tow_status_t check_inputs(check_t *check, size_t at)
{
    const tow_msg_lowered_step_t *step = check->message->steps[at];
    for (size_t i = 0; i < step->n_inputs; i++) {
        const uint32_t slot = step->inputs[i];
        if (slot >= check->message->slot_count)
            return TOW_ERROR(TOW_INVALID_ARGUMENT, "there is no slot %u", slot);
        if (check->slots[slot] == SLOT_EMPTY)
            return TOW_ERROR(TOW_INVALID_ARGUMENT,
                             "slot %u is read before it is written", slot);
        if (check->slots[slot] == SLOT_GONE)
            return TOW_ERROR(TOW_INVALID_ARGUMENT,
                             "slot %u is read after it was freed", slot);
        check->slots[slot] = (uint32_t)at + FIRST_TOUCH;
    }
    return TOW_OK;
}

static tow_status_t check_outputs(check_t *check, size_t at)
{
    const tow_msg_lowered_step_t *step = check->message->steps[at];
    if (step->first_output > check->message->slot_count ||
        step->output_count > check->message->slot_count - step->first_output)
        return TOW_ERROR(TOW_INVALID_ARGUMENT,
                         "its %u outputs from slot %u on pass the last slot",
                         step->output_count, step->first_output);
    for (uint32_t i = 0; i < step->output_count; i++) {
        uint32_t *slot = &check->slots[step->first_output + i];
        if (*slot != SLOT_EMPTY)
            return TOW_ERROR(TOW_INVALID_ARGUMENT,
                             "slot %u is written a second time",
                             step->first_output + i);
        *slot = (uint32_t)at + FIRST_TOUCH;
    }
    return TOW_OK;
}

static tow_status_t check_kept(const tow_msg_lowered_step_t *step)
{
    for (size_t i = 0; i < step->n_non_donatable; i++)
        if (step->non_donatable[i] >= step->n_inputs ||
            (i > 0 && step->non_donatable[i] <= step->non_donatable[i - 1]))
            return TOW_ERROR(TOW_INVALID_ARGUMENT,
                             "non-donatable input %u of %zu; they must ascend",
                             step->non_donatable[i], step->n_inputs);
    return TOW_OK;
}

static tow_status_t check_freed(check_t *check, size_t at)
{
    const tow_msg_lowered_step_t *step = check->message->steps[at];
    for (size_t i = 0; i < step->n_freed; i++) {
        const uint32_t slot = step->freed[i];
        if (slot >= check->message->slot_count)
            return TOW_ERROR(TOW_INVALID_ARGUMENT, "there is no slot %u", slot);
        if (check->slots[slot] == SLOT_GONE)
            return TOW_ERROR(TOW_INVALID_ARGUMENT,
                             "slot %u is freed a second time", slot);
        if (check->slots[slot] != at + FIRST_TOUCH)
            return TOW_ERROR(TOW_INVALID_ARGUMENT,
                             "slot %u is freed where it is not used", slot);
        check->slots[slot] = SLOT_GONE;
    }
    return TOW_OK;
}

static tow_status_t check_step(check_t *check, size_t at)
{
    TOW_RETURN_IF_ERROR(check_ids(check, at));
    TOW_RETURN_IF_ERROR(check_waits(check, at));
    TOW_RETURN_IF_ERROR(check_inputs(check, at));
    TOW_RETURN_IF_ERROR(check_outputs(check, at));
    TOW_RETURN_IF_ERROR(check_kept(check->message->steps[at]));
    return check_freed(check, at);
}

/* If other workers have steps, a result may be theirs. */
static bool has_all(const tow_msg_lowered_t *message)
{
    for (size_t i = 0; i < message->n_steps; i++)
        if (message->steps[i]->route != NULL &&
            message->steps[i]->output_count == 0)
            return false;
    return message->n_steps == message->step_count_all;
}

static tow_status_t check_results(const check_t *check)
{
    const tow_msg_lowered_t *message = check->message;
    const bool is_whole = has_all(message);
    for (size_t i = 0; i < message->n_results; i++) {
        const uint32_t slot = message->results[i];
        if (slot >= message->slot_count)
            return TOW_ERROR(TOW_INVALID_ARGUMENT,
                             "result %zu: there is no slot %u", i, slot);
        if (check->slots[slot] == SLOT_GONE)
            return TOW_ERROR(TOW_INVALID_ARGUMENT,
                             "result %zu: slot %u is freed", i, slot);
        if (is_whole && check->slots[slot] == SLOT_EMPTY)
            return TOW_ERROR(TOW_INVALID_ARGUMENT,
                             "result %zu: slot %u is never written", i, slot);
    }
    return TOW_OK;
}

static tow_status_t check_message(const tow_msg_lowered_t *message)
{
    TOW_RETURN_IF_ERROR(check_head(message));
    check_t check = {.message = message};
    check.slots = tow_calloc(message->slot_count + 1, sizeof(check.slots[0]));
    if (check.slots == NULL) return tow_ir_exhausted();
    for (uint32_t i = 0; i < message->argument_count; i++)
        check.slots[i] = SLOT_ARGUMENT;
    tow_status_t status = TOW_OK;
    for (size_t at = 0; status == TOW_OK && at < message->n_steps; at++) {
        status = check_step(&check, at);
        if (status != TOW_OK)
            status = tow_status_annotate(status, "step %zu, of node %u", at,
                                         message->steps[at]->node);
    }
    if (status == TOW_OK) status = check_results(&check);
    tow_free(check.slots);
    return status;
}

/* -- Unpacking ------------------------------------------------------------- */

static const uint32_t *copy_numbers(uint32_t **next, const uint32_t *numbers,
                                    size_t count)
{
    uint32_t *copy = *next;
    if (count > 0) memcpy(copy, numbers, count * sizeof(*numbers));
    *next += count;
    return copy;
}

static tow_status_t copy_step(const tow_msg_lowered_step_t *message,
                              tow_arena_t *arena, uint32_t **next,
                              tow_lowered_step_t *out)
{
    *out = (tow_lowered_step_t){
        .executable = {message->executable},
        .inputs = copy_numbers(next, message->inputs, message->n_inputs),
        .input_count = message->n_inputs,
        .first_output = message->first_output,
        .output_count = message->output_count,
        .non_donatable = copy_numbers(next, message->non_donatable,
                                      message->n_non_donatable),
        .non_donatable_count = message->n_non_donatable,
        .freed = copy_numbers(next, message->freed, message->n_freed),
        .freed_count = message->n_freed,
        .node = message->node,
        .index = message->index,
        .is_host = message->host,
        .is_sequential = message->sequential,
        .time_limit_ms = message->time_limit_ms,
        .memory_after = message->memory_after,
        .sent_before = message->sent_before,
        .is_late = message->late,
    };
    tow_status_t status = TOW_OK;
    if (message->name[0] != '\0') {
        out->name =
            tow_arena_strndup(arena, message->name, strlen(message->name));
        if (out->name == NULL) return tow_ir_exhausted();
    }
    if (message->route != NULL)
        status = tow_route_unpack(message, arena, &out->route);
    else if (message->collective != NULL)
        status = tow_part_unpack(message, arena, &out->collective);
    return tow_status_annotate(status, "step of node %u", message->node);
}

static tow_status_t copy_message(const tow_msg_lowered_t *message,
                                 tow_lowered_t **out_lowered)
{
    tow_lowered_step_t *steps;
    uint32_t *next;
    size_t number_count = message->n_results;
    for (size_t i = 0; i < message->n_steps; i++)
        number_count += message->steps[i]->n_inputs +
                        message->steps[i]->n_non_donatable +
                        message->steps[i]->n_freed;
    tow_lowered_t *lowered =
        tow_lowered_allocate(message->n_steps, number_count, &steps, &next);
    if (lowered == NULL) return tow_ir_exhausted();
    lowered->slot_count = message->slot_count;
    lowered->argument_count = message->argument_count;
    lowered->step_count_all = message->step_count_all;
    lowered->result_count = message->n_results;
    lowered->results =
        copy_numbers(&next, message->results, message->n_results);
    *out_lowered = lowered;
    for (size_t i = 0; i < message->n_steps; i++)
        TOW_RETURN_IF_ERROR(copy_step(
            message->steps[i], tow_lowered_arena(lowered), &next, &steps[i]));
    return TOW_OK;
}

tow_status_t tow_lowered_unpack(const void *bytes, size_t size,
                                tow_lowered_t **out_lowered)
{
    TOW_ASSERT(out_lowered != NULL);
    *out_lowered = NULL;
    tow_arena_t arena;
    const tow_body_t *body = NULL;
    tow_arena_init(&arena, 0);
    tow_status_t status =
        tow_message_decode(TOW_MESSAGE_LOWERED, bytes, size, &arena, &body);
    const tow_msg_lowered_t *message = (const tow_msg_lowered_t *)body;
    if (status == TOW_OK) status = check_message(message);
    if (status == TOW_OK) status = copy_message(message, out_lowered);
    tow_arena_deinit(&arena);
    if (status != TOW_OK) {
        tow_lowered_destroy(*out_lowered);
        *out_lowered = NULL;
    }
    return tow_status_annotate(status, "lowered program");
}
