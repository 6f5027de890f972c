/* The order of a program's steps: Kahn's algorithm with a heap. Among ready
 * nodes, transfers and collectives come first, then the lowest number. */
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/assert.h"
#include "ir/graph_impl.h"

/* Nodes of a cycle listed in an error. */
#define CYCLE_SHOWN_MAX 8u

typedef struct sort {
    const tow_graph_t *program;
    uint32_t *pending;    /* by node: inputs from steps not yet emitted */
    uint32_t *first_user; /* by node: of `users`; one more at the end */
    uint32_t *users;      /* nodes, grouped by the node that they use */
    uint32_t *heap;       /* nodes that are ready, the next one first */
    size_t heap_count;
    uint32_t *out_nodes; /* the caller's */
    size_t out_count;
} sort_t;

static bool is_step(const tow_graph_t *program, uint32_t node)
{
    return tow_node_is_step(&program->nodes.items[node]);
}

/* True if `a` comes before `b` when both are ready. */
static bool is_before(const sort_t *sort, uint32_t a, uint32_t b)
{
    const tow_node_t *nodes = sort->program->nodes.items;
    const bool is_computed = tow_node_has_function(&nodes[a]);
    if (is_computed != tow_node_has_function(&nodes[b])) return !is_computed;
    return a < b;
}

/* -- Heap ---------------------------------------------------------------- */

static void swap(uint32_t *a, uint32_t *b)
{
    uint32_t old = *a;
    *a = *b;
    *b = old;
}

static void push(sort_t *sort, uint32_t node)
{
    uint32_t *heap = sort->heap;
    size_t at = sort->heap_count++;
    heap[at] = node;
    for (; at > 0 && is_before(sort, heap[at], heap[(at - 1) / 2]);
         at = (at - 1) / 2)
        swap(&heap[at], &heap[(at - 1) / 2]);
}

static uint32_t pop(sort_t *sort)
{
    uint32_t *heap = sort->heap;
    const uint32_t first = heap[0];
    const size_t count = --sort->heap_count;
    heap[0] = heap[count];
    for (size_t at = 0;;) {
        size_t child = 2 * at + 1;
        if (child + 1 < count && is_before(sort, heap[child + 1], heap[child]))
            child++;
        if (child >= count || !is_before(sort, heap[child], heap[at])) break;
        swap(&heap[at], &heap[child]);
        at = child;
    }
    return first;
}

/* -- Sorting --------------------------------------------------------------- */

/* Counting sort: `first_user` advances while users are placed, and is restored
 * at the end. */
static void list_users(sort_t *sort)
{
    const tow_graph_t *program = sort->program;
    const size_t count = program->nodes.count;
    for (uint32_t node = 0; node < count; node++) {
        const tow_node_t *it = &program->nodes.items[node];
        if (!tow_node_is_step(it)) continue;
        for (size_t i = 0; i < it->input_count; i++) {
            if (!is_step(program, it->inputs[i].node)) continue;
            sort->first_user[it->inputs[i].node + 1]++;
            sort->pending[node]++;
        }
    }
    for (size_t node = 0; node < count; node++)
        sort->first_user[node + 1] += sort->first_user[node];
    for (uint32_t node = 0; node < count; node++) {
        const tow_node_t *it = &program->nodes.items[node];
        if (!tow_node_is_step(it)) continue;
        for (size_t i = 0; i < it->input_count; i++)
            if (is_step(program, it->inputs[i].node))
                sort->users[sort->first_user[it->inputs[i].node]++] = node;
    }
    memmove(sort->first_user + 1, sort->first_user,
            count * sizeof(sort->first_user[0]));
    sort->first_user[0] = 0;
}

static void take_ready(sort_t *sort)
{
    while (sort->heap_count > 0) {
        const uint32_t node = pop(sort);
        sort->out_nodes[sort->out_count++] = node;
        for (uint32_t i = sort->first_user[node];
             i < sort->first_user[node + 1]; i++)
            if (--sort->pending[sort->users[i]] == 0)
                push(sort, sort->users[i]);
    }
}

/* -- Cycles ---------------------------------------------------------------- */

/* An input of `node` that never became ready. Each such node has one. */
static uint32_t waited_for(const sort_t *sort, uint32_t node)
{
    const tow_node_t *it = &sort->program->nodes.items[node];
    for (size_t i = 0; i < it->input_count; i++)
        if (sort->pending[it->inputs[i].node] > 0) return it->inputs[i].node;
    TOW_ASSERT(false);
    return node;
}

/* Follows inputs until a node repeats. Writes the cycle to `path`, against the
 * edges, and returns its length. */
static size_t walk_cycle(const sort_t *sort, uint32_t *path)
{
    uint32_t *place = sort->heap; /* by node: 1 + its index in `path` */
    uint32_t node = 0;
    size_t length = 0;
    memset(place, 0, sort->program->nodes.count * sizeof(*place));
    while (sort->pending[node] == 0)
        node++;
    for (; place[node] == 0; node = waited_for(sort, node)) {
        path[length++] = node;
        place[node] = (uint32_t)length;
    }
    const size_t lead = place[node] - 1;
    memmove(path, path + lead, (length - lead) * sizeof(*path));
    return length - lead;
}

static TOW_COLD tow_status_t refuse_cycle(const sort_t *sort)
{
    char label[TOW_LABEL_SIZE];
    char list[(CYCLE_SHOWN_MAX + 2) * (TOW_LABEL_SIZE + 4) + 32];
    uint32_t *path = sort->out_nodes;
    const size_t length = walk_cycle(sort, path);
    const size_t shown = length < CYCLE_SHOWN_MAX ? length : CYCLE_SHOWN_MAX;
    size_t used = 0;
    /* path[0], then the others from the end: in the direction of the edges. */
    for (size_t i = 0; i < shown; i++)
        used += (size_t)snprintf(
            list + used, sizeof(list) - used, "%s -> ",
            tow_node_label(sort->program, path[(length - i) % length], label));
    if (shown < length)
        used += (size_t)snprintf(list + used, sizeof(list) - used,
                                 "%zu more -> ", length - shown);
    tow_node_label(sort->program, path[0], label);
    snprintf(list + used, sizeof(list) - used, "%s", label);
    return TOW_ERROR(TOW_INVALID_ARGUMENT,
                     "%s depends on itself, in a cycle of %zu: %s", label,
                     length, list);
}

/* -- Entry point ----------------------------------------------------------- */

static bool allocate(sort_t *sort)
{
    const size_t nodes = sort->program->nodes.count;
    const size_t words = 3 * nodes + 1 + sort->program->input_count;
    uint32_t *memory = tow_calloc(words, sizeof(*memory));
    if (memory == NULL) return false;
    sort->pending = memory;
    sort->heap = memory + nodes;
    sort->first_user = memory + 2 * nodes;
    sort->users = memory + 3 * nodes + 1;
    return true;
}

static tow_status_t sort_nodes(sort_t *sort)
{
    size_t step_count = 0;
    list_users(sort);
    for (uint32_t node = 0; node < sort->program->nodes.count; node++) {
        if (!is_step(sort->program, node)) continue;
        step_count++;
        if (sort->pending[node] == 0) push(sort, node);
    }
    take_ready(sort);
    return sort->out_count == step_count ? TOW_OK : refuse_cycle(sort);
}

tow_status_t tow_graph_order(const tow_graph_t *program, uint32_t *out_nodes,
                             size_t *out_count)
{
    *out_count = 0;
    if (program->in_order) {
        for (uint32_t node = 0; node < program->nodes.count; node++)
            if (is_step(program, node)) out_nodes[(*out_count)++] = node;
        return TOW_OK;
    }
    sort_t sort = {.program = program, .out_nodes = out_nodes};
    if (!allocate(&sort)) return tow_ir_exhausted();
    tow_status_t status = sort_nodes(&sort);
    tow_free(sort.pending);
    *out_count = sort.out_count;
    return status;
}
