/* `tow lower --memory`: the bytes that the controller reserves for a run. */
#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>

#include "tool/lower_print.h"

typedef struct slice_memory {
    uint64_t argument_bytes; /* beside the cost, which does not count them */
    tow_graph_cost_t cost;
} slice_memory_t;

static tow_status_t add_arguments(const tow_graph_t *program,
                                  tow_slice_id_t slice, uint64_t *out_bytes)
{
    *out_bytes = 0;
    for (uint32_t i = 0; i < tow_graph_node_count(program); i++) {
        const tow_node_t *node = tow_graph_node(program, i);
        uint64_t bytes = 0;
        if (node->kind != TOW_NODE_ARGUMENT ||
            !tow_slice_id_equal(node->slice, slice))
            continue;
        TOW_RETURN_IF_ERROR(tow_shape_bytes(&node->shape, &bytes));
        if (__builtin_add_overflow(*out_bytes, bytes, out_bytes))
            return TOW_ERROR(TOW_OUT_OF_RANGE,
                             "the arguments have more than 2^64 - 1 bytes");
    }
    return TOW_OK;
}

static void print_memory(const tow_lower_slice_t *slice,
                         const slice_memory_t *memory)
{
    printf("slice %" PRIu64 ", %zu device(s), bytes of each: arguments %" PRIu64
           ", run at most %" PRIu64 ", of them results %" PRIu64
           "; consumed arguments %" PRIu64 "\n",
           slice->id.value, (size_t)slice->places.count, memory->argument_bytes,
           memory->cost.peak_bytes, memory->cost.result_bytes,
           memory->cost.donated_bytes);
}

static void print_json(const tow_lower_slice_t *slice,
                       const slice_memory_t *memory)
{
    json_t *devices = json_array();
    for (size_t i = 0; i < slice->places.count; i++)
        json_array_append_new(
            devices, json_pack("[i, i]", (int)slice->places.items[i].process,
                               (int)slice->places.items[i].device));
    json_t *object =
        json_pack("{s:I, s:o, s:I, s:I, s:I, s:I, s:I}", "slice",
                  (json_int_t)slice->id.value, "devices", devices,
                  "argument_bytes", (json_int_t)memory->argument_bytes,
                  "peak_bytes", (json_int_t)memory->cost.peak_bytes,
                  "result_bytes", (json_int_t)memory->cost.result_bytes,
                  "donated_bytes", (json_int_t)memory->cost.donated_bytes,
                  "steps", (json_int_t)memory->cost.step_count);
    json_dumpf(object, stdout, JSON_COMPACT);
    printf("\n");
    json_decref(object);
}

tow_status_t tow_lower_show_memory(const tow_lower_header_t *header,
                                   const tow_graph_t *program,
                                   tow_lower_format_t format)
{
    const tow_graph_scope_t *scope = &header->scope.program;
    for (size_t i = 0; i < header->slices.count; i++) {
        const tow_lower_slice_t *slice = &header->slices.items[i];
        slice_memory_t memory = {0};
        TOW_RETURN_IF_ERROR(
            add_arguments(program, slice->id, &memory.argument_bytes));
        TOW_RETURN_IF_ERROR(
            tow_graph_cost(program, scope, slice->id, &memory.cost));
        if (format == TOW_LOWER_JSON)
            print_json(slice, &memory);
        else
            print_memory(slice, &memory);
    }
    return TOW_OK;
}
