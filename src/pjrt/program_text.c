/* A program as text, in the form that `tow lower` reads: the slices, the hosts
 * and the functions, then the graph. Slices and functions are numbered from 1,
 * in the order of their first use. */
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "device/xla_cpu/xla_cpu.h"
#include "ir/graph.h"
#include "pjrt/program_impl.h"

typedef struct writer {
    const plugin_program_t *program;
    TOW_VEC(char) text;
    bool is_exhausted; /* then the text is not extended */
    TOW_VEC(const recipe_node_t *) functions; /* the first call of each */
    uint32_t *nodes; /* owned: of the graph, by nodes of the recipe */
    TOW_VEC(tow_value_t) inputs;
} writer_t;

static tow_status_t exhausted(void)
{
    return tow_status_bare(TOW_RESOURCE_EXHAUSTED);
}

/* -- Text ------------------------------------------------------------------ */

static void write_bytes(writer_t *writer, const char *bytes, size_t size)
{
    if (writer->is_exhausted ||
        !tow_vec_reserve(&writer->text, writer->text.count + size)) {
        writer->is_exhausted = true;
        return;
    }
    memcpy(writer->text.items + writer->text.count, bytes, size);
    writer->text.count += size;
}

static void write_text(writer_t *writer, const char *text)
{
    write_bytes(writer, text, strlen(text));
}

/* For short texts: numbers and keywords. */
static void write_format(writer_t *writer, const char *format, ...)
    TOW_PRINTF(2, 3);
static void write_format(writer_t *writer, const char *format, ...)
{
    char text[96];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof(text), format, arguments);
    va_end(arguments);
    write_text(writer, text);
}

/* The header has no escapes. */
static void write_name(writer_t *writer, const char *name)
{
    write_text(writer, " \"");
    for (; *name != '\0'; name++) {
        const bool is_plain = *name >= ' ' && *name <= '~' && *name != '"';
        write_bytes(writer, is_plain ? name : "_", 1);
    }
    write_text(writer, "\"");
}

/* -- Slices and hosts ------------------------------------------------------ */

static uint64_t process_of(const PJRT_Device *device)
{
    return (uint64_t)device->cluster_id / TOW_XLA_PROCESS_STRIDE;
}

static tow_slice_id_t slice_of(const plugin_program_t *program,
                               const slice_entry_t *entry)
{
    size_t i = 0;
    while (program->slices.items[i].entry != entry)
        i++;
    return (tow_slice_id_t){i + 1};
}

static void write_slice(writer_t *writer, const slice_entry_t *entry)
{
    write_format(writer, "slice %" PRIu64 " on ",
                 slice_of(writer->program, entry).value);
    for (size_t i = 0; i < entry->count; i++)
        write_format(writer, "%s%" PRIu64 ".%" PRIu64, i > 0 ? ", " : "",
                     process_of(entry->devices[i]),
                     (uint64_t)entry->devices[i]->cluster_id %
                         TOW_XLA_PROCESS_STRIDE);
    write_text(writer, "\n");
}

static const char *host_of(const PJRT_Device *device)
{
    tow_device_t info = {.struct_size = sizeof(info)};
    tow_status_ignore(tow_slice_device(device->client->all,
                                       (size_t)device->local_index, &info),
                      "in range");
    return info.host;
}

/* A line for each host of several processes, with its processes in order. */
static void write_host(writer_t *writer, const char *host)
{
    const PJRT_Client *client = writer->program->client;
    uint64_t last = UINT64_MAX;
    bool is_first = true;
    for (size_t i = 0; i < client->device_count; i++) {
        const PJRT_Device *device = client->devices[i];
        if (strcmp(host_of(device), host) != 0 || process_of(device) == last)
            continue;
        last = process_of(device);
        write_format(writer, "%s%" PRIu64, is_first ? "host " : ", ", last);
        is_first = false;
    }
    write_text(writer, "\n");
}

static void write_hosts(writer_t *writer)
{
    const PJRT_Client *client = writer->program->client;
    for (size_t i = 0; i < client->device_count; i++) {
        const char *host = host_of(client->devices[i]);
        size_t before = 0;
        while (before < i &&
               strcmp(host_of(client->devices[before]), host) != 0)
            before++;
        if (before == i) write_host(writer, host);
    }
}

/* -- Functions ------------------------------------------------------------- */

static bool is_same_function(const recipe_node_t *a, const recipe_node_t *b)
{
    return a->function == b->function && a->host == b->host;
}

static tow_function_id_t function_of(const writer_t *writer,
                                     const recipe_node_t *call)
{
    size_t i = 0;
    while (i < writer->functions.count &&
           !is_same_function(writer->functions.items[i], call))
        i++;
    return (tow_function_id_t){i < writer->functions.count ? i + 1 : 0};
}

/* "f32[<=4,8]": the first dimension is an upper bound. */
static void write_bounded(writer_t *writer, const tow_array_info_t *array)
{
    write_format(writer, "%s[", tow_type_name(array->shape.type));
    for (uint32_t i = 0; i < array->shape.rank; i++)
        write_format(writer, "%s%s%" PRId64, i > 0 ? "," : "",
                     array->bounds >> i & 1 ? "<=" : "", array->shape.dims[i]);
    write_text(writer, "]");
}

static void write_array(writer_t *writer, const recipe_node_t *call,
                        const tow_array_info_t *array)
{
    const value_place_t place = {recipe_node_slice(call),
                                 recipe_node_signature(call), array};
    const tow_sharding_t sharding = tow_plugin_place_sharding(&place);
    char shape[TOW_SHAPE_TEXT_MAX], text[TOW_SHARDING_TEXT_MAX];
    if (array->bounds != 0)
        write_bounded(writer, array);
    else
        write_text(writer, tow_shape_format(&array->shape, shape));
    if (!tow_sharding_is_known(&sharding)) return;
    write_text(writer, " as ");
    write_text(writer, tow_sharding_format(&sharding, text));
}

static void write_alias(writer_t *writer, const tow_signature_t *signature,
                        size_t result)
{
    for (size_t i = 0; i < signature->alias_count; i++)
        if (signature->aliases[i].result == result)
            write_format(writer, " alias %" PRIu64,
                         (uint64_t)signature->aliases[i].argument);
}

static void write_function(writer_t *writer, const recipe_node_t *call)
{
    const tow_signature_t *signature = recipe_node_signature(call);
    write_format(writer, "function %" PRIu64, function_of(writer, call).value);
    write_name(writer, signature->name != NULL ? signature->name : "");
    write_format(writer, " for %zu%s (", recipe_node_slice(call)->count,
                 call->host != NULL ? " host" : "");
    for (size_t i = 0; i < signature->argument_count; i++) {
        if (i > 0) write_text(writer, ", ");
        write_array(writer, call, &signature->arguments[i]);
    }
    write_text(writer, ") -> (");
    for (size_t i = 0; i < signature->result_count; i++) {
        if (i > 0) write_text(writer, ", ");
        write_array(writer, call, &signature->results[i]);
        write_alias(writer, signature, i);
    }
    write_text(writer, ")");
    if (signature->temporary_bytes > 0)
        write_format(writer, " temporary %" PRIu64, signature->temporary_bytes);
    write_text(writer, "\n");
}

static tow_status_t write_header(writer_t *writer)
{
    const plugin_program_t *program = writer->program;
    for (size_t i = 0; i < program->slices.count; i++)
        write_slice(writer, program->slices.items[i].entry);
    write_hosts(writer);
    for (size_t i = 0; i < program->nodes.count; i++) {
        const recipe_node_t *node = &program->nodes.items[i];
        if (!recipe_node_is_call(node) || function_of(writer, node).value > 0)
            continue;
        if (!tow_vec_push(&writer->functions, node)) return exhausted();
        write_function(writer, node);
    }
    return TOW_OK;
}

/* -- The graph ------------------------------------------------------------- */

static tow_status_t add_arguments(writer_t *writer, tow_graph_t *graph,
                                  const plugin_port_t *port)
{
    for (size_t i = 0; i < port->stub->signature->argument_count; i++) {
        const tow_value_t value = {.node = port->nodes[i]};
        const value_place_t place =
            tow_plugin_program_place(writer->program, value);
        const tow_sharding_t sharding = tow_plugin_place_sharding(&place);
        const tow_node_t node = {
            .kind = TOW_NODE_ARGUMENT,
            .name = "",
            .slice = slice_of(writer->program, place.slice),
            .shape = place.array->shape,
            .to = tow_sharding_is_known(&sharding) ? &sharding : NULL,
            .donated = port->is_donated[i]};
        TOW_RETURN_IF_ERROR(
            tow_graph_add(graph, &node, &writer->nodes[value.node]));
    }
    return TOW_OK;
}

static tow_value_t translate(const writer_t *writer, tow_value_t value)
{
    return (tow_value_t){writer->nodes[value.node], value.output};
}

static tow_status_t add_call(writer_t *writer, tow_graph_t *graph,
                             const recipe_node_t *call, uint32_t *out_node)
{
    writer->inputs.count = 0;
    for (size_t i = 0; i < call->input_count; i++)
        if (!tow_vec_push(&writer->inputs, translate(writer, call->inputs[i])))
            return exhausted();
    const tow_node_t node = {
        .kind = call->host != NULL ? TOW_NODE_HOST : TOW_NODE_COMPUTE,
        .name = call->name != NULL ? call->name : "",
        .slice = slice_of(writer->program, recipe_node_slice(call)),
        .function = function_of(writer, call),
        .time_limit_ms = call->host != NULL ? call->host->time_limit_ms : 0,
        .inputs = writer->inputs.items,
        .input_count = call->input_count};
    return tow_graph_add(graph, &node, out_node);
}

static tow_status_t add_results(writer_t *writer, tow_graph_t *graph,
                                const plugin_port_t *port)
{
    for (size_t i = 0; i < port->stub->signature->result_count; i++) {
        const tow_value_t given = port->results[i].value;
        tow_value_t value = translate(writer, given);
        const value_place_t from = tow_plugin_program_place(writer->program,
                                                            given),
                            to = tow_plugin_port_result_place(port, i);
        if (tow_plugin_place_differs(&from, &to)) {
            const tow_sharding_t target = tow_plugin_place_sharding(&to);
            const tow_node_t move = {.kind = TOW_NODE_TRANSFER,
                                     .name = "",
                                     .slice =
                                         slice_of(writer->program, to.slice),
                                     .to = &target,
                                     .inputs = &value,
                                     .input_count = 1};
            tow_value_t moved = {0};
            TOW_RETURN_IF_ERROR(tow_graph_add(graph, &move, &moved.node));
            value = moved;
        }
        const tow_node_t node = {.kind = TOW_NODE_RESULT,
                                 .name = "",
                                 .inputs = &value,
                                 .input_count = 1};
        TOW_RETURN_IF_ERROR(tow_graph_add(graph, &node, NULL));
    }
    return TOW_OK;
}

static tow_status_t add_nodes(writer_t *writer, tow_graph_t *graph)
{
    const plugin_program_t *program = writer->program;
    for (size_t i = 0; i < program->ports.count; i++)
        TOW_RETURN_IF_ERROR(
            add_arguments(writer, graph, program->ports.items[i]));
    for (size_t i = 0; i < program->nodes.count; i++)
        if (recipe_node_is_call(&program->nodes.items[i]))
            TOW_RETURN_IF_ERROR(add_call(
                writer, graph, &program->nodes.items[i], &writer->nodes[i]));
    for (size_t i = 0; i < program->ports.count; i++)
        TOW_RETURN_IF_ERROR(
            add_results(writer, graph, program->ports.items[i]));
    return TOW_OK;
}

static tow_status_t write_graph(writer_t *writer)
{
    const plugin_program_t *program = writer->program;
    tow_graph_t *graph;
    writer->nodes =
        tow_calloc(program->nodes.count + 1, sizeof(*writer->nodes));
    if (writer->nodes == NULL) return exhausted();
    TOW_RETURN_IF_ERROR(tow_graph_create(program->name, &graph));
    char *text = NULL;
    tow_status_t status = add_nodes(writer, graph);
    if (status == TOW_OK) status = tow_graph_print(graph, &text);
    if (status == TOW_OK) write_text(writer, text);
    tow_free(text);
    tow_graph_destroy(graph);
    return status;
}

tow_status_t tow_plugin_program_text(const plugin_program_t *program,
                                     char **out_text)
{
    if (program->slices.count == 0)
        return TOW_ERROR(TOW_FAILED_PRECONDITION,
                         "program '%s' is not finished", program->name);
    writer_t writer = {.program = program};
    tow_status_t status = write_header(&writer);
    if (status == TOW_OK) status = write_graph(&writer);
    write_bytes(&writer, "", 1);
    if (status == TOW_OK && writer.is_exhausted) status = exhausted();
    tow_vec_deinit(&writer.functions);
    tow_vec_deinit(&writer.inputs);
    tow_free(writer.nodes);
    *out_text = status == TOW_OK ? writer.text.items : NULL;
    if (status != TOW_OK) tow_vec_deinit(&writer.text);
    return status;
}
