/* A worker's part of a collective as bytes: the message CollectivePart of
 * towpath.proto. */
#include <inttypes.h>
#include <string.h>

#include "base/assert.h"
#include "base/map.h"
#include "ir/graph_impl.h"
#include "ir/lowered_impl.h"
#include "wire/message.h"

/* -- Packing --------------------------------------------------------------- */

static bool pack_tensors(const tow_collective_part_t *part, tow_arena_t *arena,
                         tow_msg_collective_part_t *message)
{
    const size_t count = part->tensor_count;
    message->tensors = tow_arena_alloc(arena, (count + 1) * sizeof(void *));
    if (message->tensors == NULL) return false;
    message->n_tensors = count;
    for (size_t i = 0; i < count; i++) {
        message->tensors[i] = tow_shape_pack(&part->tensors[i], arena);
        if (message->tensors[i] == NULL) return false;
    }
    return true;
}

/* protobuf-c only reads these, but its pointers are not const. */
static bool pack_groups(const tow_collective_part_t *part, tow_arena_t *arena,
                        tow_msg_collective_part_t *message)
{
    const size_t count = part->group_count;
    tow_msg_members_t *groups =
        tow_arena_alloc(arena, (count + 1) * sizeof(*groups));
    message->groups = tow_arena_alloc(arena, (count + 1) * sizeof(void *));
    if (groups == NULL || message->groups == NULL) return false;
    message->n_groups = count;
    for (size_t i = 0; i < count; i++) {
        const tow_members_t *members = &part->groups[i];
        groups[i] = (tow_msg_members_t)TOW_MSG_MEMBERS_INIT;
        groups[i].group = members->group;
        groups[i].processes = (uint32_t *)members->processes;
        groups[i].n_processes = members->process_count;
        groups[i].self = (uint32_t)members->self;
        groups[i].shards = (uint32_t *)members->shards;
        groups[i].n_shards = members->shard_count;
        message->groups[i] = &groups[i];
    }
    return true;
}

tow_msg_collective_part_t *tow_part_pack(const tow_collective_part_t *part,
                                         tow_arena_t *arena)
{
    tow_msg_collective_part_t *message =
        tow_arena_alloc(arena, sizeof(*message));
    if (message == NULL) return NULL;
    *message = (tow_msg_collective_part_t)TOW_MSG_COLLECTIVE_PART_INIT;
    message->kind = (uint32_t)part->kind;
    message->reduction = (uint32_t)part->reduction;
    message->devices = (uint32_t *)part->devices;
    message->n_devices = part->shard_count;
    message->chunk_bytes = part->chunk_bytes;
    if (!pack_tensors(part, arena, message) ||
        !pack_groups(part, arena, message))
        return NULL;
    return message;
}

/* -- Unpacking ------------------------------------------------------------- */

static tow_status_t check_words(const tow_msg_collective_part_t *message)
{
    if (message->kind != TOW_COLLECTIVE_ALL_REDUCE)
        return TOW_ERROR(TOW_UNIMPLEMENTED,
                         "collective %u is not known to this version",
                         message->kind);
    if (message->chunk_bytes > 0 &&
        message->chunk_bytes % TOW_COLLECTIVE_CHUNK_ALIGNMENT == 0 &&
        message->chunk_bytes <= TOW_COLLECTIVE_CHUNK_BYTES_MAX)
        return TOW_OK;
    return TOW_ERROR(TOW_INVALID_ARGUMENT,
                     "chunks of %" PRIu64 " bytes; they are multiples of %u",
                     message->chunk_bytes, TOW_COLLECTIVE_CHUNK_ALIGNMENT);
}

static tow_status_t read_tensors(const tow_msg_collective_part_t *message,
                                 tow_arena_t *arena,
                                 tow_collective_part_t *part)
{
    const size_t count = message->n_tensors;
    tow_shape_t *tensors = tow_arena_calloc(arena, count + 1, sizeof(*tensors));
    if (tensors == NULL) return tow_ir_exhausted();
    part->tensors = tensors;
    part->tensor_count = count;
    for (size_t i = 0; i < count; i++) {
        uint64_t bytes;
        TOW_RETURN_IF_ERROR(tow_status_annotate(
            tow_shape_unpack(message->tensors[i], &tensors[i], &bytes),
            "tensor %zu", i));
        if (!tow_type_is_reducible(tensors[i].type, part->reduction))
            return TOW_ERROR(TOW_INVALID_ARGUMENT,
                             "tensor %zu: there is no reduction %u of %s", i,
                             message->reduction,
                             tow_type_name(tensors[i].type));
    }
    return TOW_OK;
}

static tow_status_t check_processes(const tow_msg_members_t *message)
{
    tow_map_t seen = {0};
    tow_status_t status = TOW_OK;
    if (message->self >= message->n_processes)
        return TOW_ERROR(TOW_INVALID_ARGUMENT, "the worker is member %u of %zu",
                         message->self, message->n_processes);
    for (size_t i = 0; i < message->n_processes && status == TOW_OK; i++) {
        if (tow_map_find(&seen, message->processes[i]) != NULL)
            status =
                TOW_ERROR(TOW_INVALID_ARGUMENT, "process %u is a member twice",
                          message->processes[i]);
        else if (!tow_map_put(&seen, message->processes[i], &seen))
            status = tow_ir_exhausted();
    }
    tow_map_deinit(&seen);
    return status;
}

/* Every local shard is in one group; `taken` has those of earlier groups. */
static tow_status_t check_shards(const tow_msg_members_t *message,
                                 size_t shard_count, bool *taken)
{
    if (message->n_shards == 0)
        return TOW_ERROR(TOW_INVALID_ARGUMENT, "the worker has no shard of it");
    for (size_t i = 0; i < message->n_shards; i++) {
        const uint32_t shard = message->shards[i];
        if (shard >= shard_count || taken[shard] ||
            (i > 0 && shard <= message->shards[i - 1]))
            return TOW_ERROR(TOW_INVALID_ARGUMENT,
                             "shard %u of %zu; each is in one group, ascending",
                             shard, shard_count);
        taken[shard] = true;
    }
    return TOW_OK;
}

static tow_status_t read_group(const tow_msg_members_t *message,
                               tow_arena_t *arena, tow_members_t *out)
{
    uint32_t *numbers = tow_arena_alloc(
        arena, (message->n_processes + message->n_shards) * sizeof(*numbers));
    if (numbers == NULL) return tow_ir_exhausted();
    memcpy(numbers, message->processes,
           message->n_processes * sizeof(*numbers));
    memcpy(numbers + message->n_processes, message->shards,
           message->n_shards * sizeof(*numbers));
    *out = (tow_members_t){
        .group = message->group,
        .processes = numbers,
        .process_count = message->n_processes,
        .self = message->self,
        .shards = numbers + message->n_processes,
        .shard_count = message->n_shards,
    };
    return TOW_OK;
}

static tow_status_t read_groups(const tow_msg_collective_part_t *message,
                                tow_arena_t *arena, tow_collective_part_t *part)
{
    bool taken[TOW_WORKER_DEVICES_MAX] = {false};
    size_t shard_count = 0;
    tow_members_t *groups =
        tow_arena_calloc(arena, message->n_groups + 1, sizeof(*groups));
    if (groups == NULL) return tow_ir_exhausted();
    part->groups = groups;
    part->group_count = message->n_groups;
    for (size_t i = 0; i < message->n_groups; i++) {
        const tow_msg_members_t *it = message->groups[i];
        tow_status_t status = check_processes(it);
        if (status == TOW_OK)
            status = check_shards(it, part->shard_count, taken);
        if (status == TOW_OK && i > 0 && it->group <= groups[i - 1].group)
            status = TOW_ERROR(TOW_INVALID_ARGUMENT, "groups must ascend");
        if (status == TOW_OK) status = read_group(it, arena, &groups[i]);
        if (status != TOW_OK)
            return tow_status_annotate(status, "group %u", it->group);
        shard_count += it->n_shards;
    }
    if (shard_count == part->shard_count) return TOW_OK;
    return TOW_ERROR(TOW_INVALID_ARGUMENT,
                     "%zu of the worker's %zu shards are in a group",
                     shard_count, part->shard_count);
}

tow_status_t tow_part_unpack(const tow_msg_lowered_step_t *step,
                             tow_arena_t *arena,
                             const tow_collective_part_t **out_part)
{
    const tow_msg_collective_part_t *message = step->collective;
    tow_collective_part_t *part = tow_arena_calloc(arena, 1, sizeof(*part));
    if (part == NULL) return tow_ir_exhausted();
    *out_part = part;
    TOW_RETURN_IF_ERROR(check_words(message));
    part->kind = (tow_collective_kind_t)message->kind;
    part->reduction = (tow_reduction_t)message->reduction;
    part->chunk_bytes = message->chunk_bytes;
    TOW_RETURN_IF_ERROR(tow_devices_unpack(message->devices, message->n_devices,
                                           arena, &part->devices));
    part->shard_count = message->n_devices;
    if (message->n_tensors == 0 || step->n_inputs != message->n_tensors ||
        step->output_count != message->n_tensors || step->n_non_donatable > 0)
        return TOW_ERROR(TOW_INVALID_ARGUMENT,
                         "%zu tensors with %zu inputs, %u outputs and %zu "
                         "non-donatable inputs",
                         message->n_tensors, step->n_inputs, step->output_count,
                         step->n_non_donatable);
    TOW_RETURN_IF_ERROR(read_tensors(message, arena, part));
    return read_groups(message, arena, part);
}
