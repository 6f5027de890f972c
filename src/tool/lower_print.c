#include "tool/lower_print.h"

#include <inttypes.h>
#include <stdio.h>

#include "base/alloc.h"

/* -- Places -------------------------------------------------------------------- */

void tow_lower_print_places(const tow_lower_header_t *header)
{
    for (size_t i = 0; i < header->slices.count; i++) {
        const tow_lower_slice_t *slice = &header->slices.items[i];
        printf("slice %" PRIu64 " on", slice->id.value);
        for (size_t k = 0; k < slice->places.count; k++)
            printf("%s %u.%u", k > 0 ? "," : "", slice->places.items[k].process,
                   slice->places.items[k].device);
        printf("\n");
    }
    for (size_t i = 0; i < header->executables.count; i++)
        printf("executable %zu is function %" PRIu64 " on slice %" PRIu64 "\n",
               i + 1, header->executables.items[i].function.value,
               header->executables.items[i].slice.value);
}

tow_status_t tow_lower_print_program(const tow_graph_t *program)
{
    char *text;
    TOW_RETURN_IF_ERROR(tow_graph_print(program, &text));
    printf("%s", text);
    tow_free(text);
    return TOW_OK;
}

/* -- Workers --------------------------------------------------------------------- */

static void print_numbers(const char *head, const uint32_t *numbers,
                          size_t count)
{
    if (count == 0) return;
    printf("%s", head);
    for (size_t i = 0; i < count; i++)
        printf("%s%u", i > 0 ? ", " : " ", numbers[i]);
}

static void print_slots(const char *head, uint32_t first, uint32_t count)
{
    if (count == 0) return;
    printf("%s %u", head, first);
    if (count > 1) printf(" to %u", first + count - 1);
}

/* ""0:2, 4:8": the range of a box in each dimension. */
static void print_box(const int64_t *start, const int64_t *extent,
                      uint32_t rank)
{
    printf("[");
    for (uint32_t i = 0; i < rank; i++)
        printf("%s%" PRId64 ":%" PRId64, i > 0 ? ", " : "", start[i],
               start[i] + extent[i]);
    printf("]");
}

static void print_piece(const tow_route_t *route, const tow_piece_t *piece,
                        bool is_sent)
{
    const uint32_t rank = route->target.rank;
    printf("    %s shard %u ", is_sent ? "send" : "receive",
           is_sent ? piece->source_shard : piece->target_shard);
    if (is_sent)
        print_box(piece->source_start, piece->extent, rank);
    else
        print_box(piece->target_start, piece->extent, rank);
    printf(" %s worker %u shard %u ", is_sent ? "to" : "from", piece->process,
           is_sent ? piece->target_shard : piece->source_shard);
    if (is_sent)
        print_box(piece->target_start, piece->extent, rank);
    else
        print_box(piece->source_start, piece->extent, rank);
    printf(", piece %u, %" PRIu64 " bytes at %" PRIu64 "\n", piece->number,
           piece->bytes, piece->offset);
}

static void print_route(const tow_route_t *route)
{
    char texts[2][TOW_SHAPE_TEXT_MAX];
    printf("    %zu shards %s to %zu shards %s", route->source_count,
           tow_shape_format(&route->source, texts[0]), route->target_count,
           tow_shape_format(&route->target, texts[1]));
    print_numbers(" on devices", route->target_devices, route->target_count);
    printf("%s\n", route->is_packed ? ", packed" : "");
    for (size_t i = 0; i < route->send_count; i++)
        print_piece(route, &route->sends[i], true);
    for (size_t i = 0; i < route->receive_count; i++)
        print_piece(route, &route->receives[i], false);
}

static void print_part(const tow_collective_part_t *part)
{
    char text[TOW_SHAPE_TEXT_MAX];
    printf("    %s of", tow_reduction_name(part->reduction));
    for (size_t i = 0; i < part->tensor_count; i++)
        printf("%s %s", i > 0 ? "," : "",
               tow_shape_format(&part->tensors[i], text));
    print_numbers(" on devices", part->devices, part->shard_count);
    printf(", in chunks of %" PRIu64 " bytes\n", part->chunk_bytes);
    for (size_t i = 0; i < part->group_count; i++) {
        const tow_members_t *members = &part->groups[i];
        printf("    group %u: shards", members->group);
        print_numbers("", members->shards, members->shard_count);
        printf(" here, with workers");
        print_numbers("", members->processes, members->process_count);
        printf("\n");
    }
}

/* Names are arbitrary bytes, and the output may be a terminal. */
static void print_name(const char *name)
{
    if (*name == '\0') return;
    printf(" \"");
    for (; *name != '\0'; name++)
        putchar(*name >= 0x20 && *name < 0x7f ? *name : '?');
    printf("\"");
}

static void print_step(const tow_graph_t *program,
                       const tow_lowered_step_t *step)
{
    const char *name = tow_graph_node(program, step->node)->name;
    printf("  step %u, of node %u", step->index, step->node);
    print_name(name);
    if (step->route != NULL)
        printf(": transfer");
    else if (step->collective != NULL)
        printf(": all_reduce");
    else
        printf(": %s %" PRIu64, step->is_host ? "host function" : "executable",
               step->executable.value);
    if (step->is_sequential) printf(", sequential");
    if (step->time_limit_ms > 0) printf(", within %u ms", step->time_limit_ms);
    print_numbers(", reads slots", step->inputs, step->input_count);
    print_slots(", fills slots", step->first_output, step->output_count);
    print_numbers(", keeps inputs", step->non_donatable,
                  step->non_donatable_count);
    print_numbers(", frees slots", step->freed, step->freed_count);
    printf("\n");
    if (step->route != NULL) print_route(step->route);
    if (step->collective != NULL) print_part(step->collective);
}

void tow_lower_print_worker(const tow_lower_header_t *header,
                            const tow_graph_t *program,
                            const tow_lowered_t *lowered)
{
    printf("worker %u: %zu of %u steps, %u slots\n", header->scope.process,
           lowered->step_count, lowered->step_count_all, lowered->slot_count);
    for (size_t i = 0; i < lowered->step_count; i++)
        print_step(program, &lowered->steps[i]);
    print_numbers("  results are slots", lowered->results,
                  lowered->result_count);
    printf("\n");
}
