/* Programs that Python makes: their recipe, and its translation to a program
 * of the client library. */
#include <string.h>

#include "ir/sharding.h"
#include "pjrt/program_impl.h"
#include "wire/message.h"

static tow_status_t exhausted(void)
{
    return tow_status_bare(TOW_RESOURCE_EXHAUSTED);
}

/* Longer names are cut off. */
static char *copy_name(const char *name)
{
    const size_t size = strnlen(name, TOW_NAME_MAX);
    char *copy = tow_malloc(size + 1);
    if (copy == NULL) return NULL;
    memcpy(copy, name, size);
    copy[size] = '\0';
    return copy;
}

/* -- Creating and destroying ----------------------------------------------- */

tow_status_t tow_plugin_program_create(PJRT_Client *client, const char *name,
                                       plugin_program_t **out_program)
{
    plugin_program_t *program = tow_calloc(1, sizeof(*program));
    if (program == NULL) return exhausted();
    program->reference_count = 1;
    program->client = client;
    program->name = copy_name(name);
    if (program->name == NULL) {
        tow_free(program);
        return exhausted();
    }
    *out_program = program;
    return TOW_OK;
}

bool tow_plugin_program_release(plugin_program_t *program)
{
    TOW_ASSERT(program->reference_count > 0);
    return --program->reference_count == 0;
}

void tow_plugin_program_detach(plugin_program_t *program)
{
    for (size_t i = 0; i < program->ports.count; i++)
        program->ports.items[i]->stub->port = NULL;
}

/* Accepts one that is partly built. */
static void free_port(plugin_port_t *port)
{
    tow_free(port->nodes);
    tow_free(port->results);
    tow_free(port->is_donated);
    tow_free(port);
}

static void free_recipe(plugin_program_t *program)
{
    for (size_t i = 0; i < program->ports.count; i++) {
        tow_plugin_executable_release(program->ports.items[i]->stub);
        free_port(program->ports.items[i]);
    }
    for (size_t i = 0; i < program->nodes.count; i++) {
        tow_plugin_executable_release(program->nodes.items[i].function);
        tow_plugin_host_destroy(program->nodes.items[i].host);
        tow_free(program->nodes.items[i].name);
        tow_free(program->nodes.items[i].inputs);
    }
}

void tow_plugin_program_destroy(plugin_program_t *program)
{
    TOW_ASSERT(program->reference_count == 0);
    client_enter(program->client);
    tow_plugin_program_detach(program);
    tow_plugin_program_free_calls(program);
    if (program->traced != NULL) tow_program_release_locked(program->traced);
    client_leave_lazily(program->client);
    free_recipe(program);
    tow_vec_deinit(&program->ports);
    tow_vec_deinit(&program->nodes);
    tow_vec_deinit(&program->slices);
    tow_free(program->name);
    tow_free(program);
}

/* -- Places ---------------------------------------------------------------- */

value_place_t tow_plugin_program_place(const plugin_program_t *program,
                                       tow_value_t value)
{
    const recipe_node_t *node = &program->nodes.items[value.node];
    if (recipe_node_is_call(node)) {
        const tow_signature_t *signature = recipe_node_signature(node);
        return (value_place_t){recipe_node_slice(node), signature,
                               &signature->results[value.output]};
    }
    const PJRT_Executable *stub = program->ports.items[node->port]->stub;
    return (value_place_t){stub->slice, stub->signature,
                           &stub->signature->arguments[node->argument]};
}

value_place_t tow_plugin_port_result_place(const plugin_port_t *port,
                                           size_t result)
{
    return (value_place_t){.slice = port->stub->slice,
                           .signature = port->stub->signature,
                           .array = &port->stub->signature->results[result]};
}

tow_sharding_t tow_plugin_place_sharding(const value_place_t *place)
{
    const tow_array_info_t *array = place->array;
    tow_sharding_t sharding = {0};
    if (place->slice->count == 1)
        return tow_sharding_replicated(array->shape.rank, 1);
    /* The sharding is of the dimensions in their own order; replicas of a
     * computation have values of their own. */
    if (array->sharding.data == NULL || array->order.size > 0 ||
        place->signature->replica_count > 1)
        return sharding;
    tow_status_t status = tow_sharding_from_xla(
        array->sharding, array->shape.rank, place->slice->count, &sharding);
    if (status == TOW_OK) return sharding;
    tow_status_ignore(status, "a sharding that we cannot represent is unknown");
    return (tow_sharding_t){0};
}

bool tow_plugin_place_differs(const value_place_t *from,
                              const value_place_t *to)
{
    if (from->slice != to->slice) return true;
    const tow_sharding_t a = tow_plugin_place_sharding(from),
                         b = tow_plugin_place_sharding(to);
    return tow_sharding_is_known(&a) && tow_sharding_is_known(&b) &&
           !tow_sharding_equal(&a, &b);
}

/* -- Adding to the recipe -------------------------------------------------- */

static tow_status_t check_open(const plugin_program_t *program)
{
    if (!program->is_closed) return TOW_OK;
    return TOW_ERROR(TOW_FAILED_PRECONDITION,
                     "program '%s' is finished: nothing can be added",
                     program->name);
}

static tow_status_t find_port(const plugin_program_t *program, uint32_t index,
                              plugin_port_t **out_port)
{
    if (index >= program->ports.count)
        return TOW_ERROR(TOW_INVALID_ARGUMENT,
                         "program '%s' has no port %u, but %zu", program->name,
                         index, program->ports.count);
    *out_port = program->ports.items[index];
    return TOW_OK;
}

static tow_status_t check_value(const plugin_program_t *program,
                                tow_value_t value)
{
    if (value.node >= program->nodes.count)
        return TOW_ERROR(TOW_INVALID_ARGUMENT,
                         "program '%s' has no node %u, but %zu", program->name,
                         value.node, program->nodes.count);
    const recipe_node_t *node = &program->nodes.items[value.node];
    const size_t outputs = recipe_node_is_call(node)
                               ? recipe_node_signature(node)->result_count
                               : 1;
    if (value.output < outputs) return TOW_OK;
    return TOW_ERROR(TOW_INVALID_ARGUMENT,
                     "node %u of program '%s' has no output %u, but %zu",
                     value.node, program->name, value.output, outputs);
}

static const char *name_of(const PJRT_Executable *executable)
{
    return executable->signature->name != NULL ? executable->signature->name
                                               : "a function";
}

static tow_status_t check_executable(const plugin_program_t *program,
                                     const PJRT_Executable *executable)
{
    if (executable->client != program->client)
        return TOW_ERROR(TOW_INVALID_ARGUMENT, "%s is of another client",
                         name_of(executable));
    if (!atomic_load(&executable->is_port)) return TOW_OK;
    return TOW_ERROR(TOW_INVALID_ARGUMENT, "%s is a port of a program already",
                     name_of(executable));
}

static plugin_port_t *make_port(plugin_program_t *program,
                                const tow_signature_t *signature)
{
    const size_t arguments = signature->argument_count;
    plugin_port_t *port = tow_calloc(1, sizeof(*port));
    if (port == NULL) return NULL;
    port->program = program;
    port->index = (uint32_t)program->ports.count;
    port->nodes = tow_malloc((arguments + 1) * sizeof(*port->nodes));
    port->is_donated = tow_calloc(arguments + 1, sizeof(bool));
    port->results =
        tow_calloc(signature->result_count + 1, sizeof(*port->results));
    if (port->nodes == NULL || port->is_donated == NULL ||
        port->results == NULL) {
        free_port(port);
        return NULL;
    }
    for (size_t i = 0; i < arguments; i++)
        port->nodes[i] = TOW_PLUGIN_NO_NODE;
    port->first_argument = program->argument_count;
    port->first_result = program->result_count;
    return port;
}

tow_status_t tow_plugin_program_add_port(plugin_program_t *program,
                                         PJRT_Executable *take_stub,
                                         uint32_t *out_port)
{
    TOW_RETURN_IF_ERROR(check_open(program));
    TOW_RETURN_IF_ERROR(check_executable(program, take_stub));
    plugin_port_t *port = make_port(program, take_stub->signature);
    if (port == NULL) return exhausted();
    if (!tow_vec_push(&program->ports, port)) {
        free_port(port);
        return exhausted();
    }
    port->stub = take_stub;
    program->argument_count += take_stub->signature->argument_count;
    program->result_count += take_stub->signature->result_count;
    take_stub->port = port;
    atomic_store(&take_stub->is_port, true);
    *out_port = port->index;
    return TOW_OK;
}

static tow_status_t add_node(plugin_program_t *program, recipe_node_t node,
                             uint32_t *out_node)
{
    if (program->nodes.count >= TOW_NODES_MAX)
        return TOW_ERROR(TOW_INVALID_ARGUMENT,
                         "program '%s' has more than the limit of %u nodes",
                         program->name, TOW_NODES_MAX);
    if (!tow_vec_push(&program->nodes, node)) return exhausted();
    *out_node = (uint32_t)program->nodes.count - 1;
    return TOW_OK;
}

tow_status_t tow_plugin_program_add_argument(plugin_program_t *program,
                                             uint32_t port_index,
                                             uint32_t argument, bool is_donated,
                                             uint32_t *out_node)
{
    plugin_port_t *port = NULL;
    TOW_RETURN_IF_ERROR(check_open(program));
    TOW_RETURN_IF_ERROR(find_port(program, port_index, &port));
    if (argument >= port->stub->signature->argument_count ||
        port->nodes[argument] != TOW_PLUGIN_NO_NODE)
        return TOW_ERROR(TOW_INVALID_ARGUMENT,
                         "port %u has %zu arguments: argument %u is given "
                         "twice, or is not one of them",
                         port_index, port->stub->signature->argument_count,
                         argument);
    const recipe_node_t node = {
        .port = port_index, .argument = argument, .is_donated = is_donated};
    TOW_RETURN_IF_ERROR(add_node(program, node, out_node));
    port->nodes[argument] = *out_node;
    port->is_donated[argument] = is_donated;
    if (is_donated) program->donated_shard_count += port->stub->slice->count;
    return TOW_OK;
}

/* The cluster does not know how a shard's dimensions are ordered in memory. */
static tow_status_t check_layouts(const value_place_t *value,
                                  const value_place_t *user)
{
    const layout_t given = tow_plugin_layout_of(value->array),
                   wanted = tow_plugin_layout_of(user->array);
    if (TOW_LIKELY(tow_plugin_layout_equal(&given, &wanted))) return TOW_OK;
    return TOW_ERROR(TOW_INVALID_ARGUMENT,
                     "its layout in memory is not the one that is expected: "
                     "compile both with the same layouts");
}

static const char *name_of_node(const recipe_node_t *node)
{
    const char *name = recipe_node_signature(node)->name;
    return name != NULL ? name : "a function";
}

static tow_status_t read_inputs(const plugin_program_t *program,
                                const uint32_t (*given)[2],
                                const recipe_node_t *node)
{
    const tow_signature_t *signature = recipe_node_signature(node);
    for (size_t i = 0; i < node->input_count; i++) {
        node->inputs[i] = (tow_value_t){given[i][0], given[i][1]};
        TOW_RETURN_IF_ERROR(check_value(program, node->inputs[i]));
        const value_place_t value = tow_plugin_program_place(program,
                                                             node->inputs[i]),
                            user = {recipe_node_slice(node), signature,
                                    &signature->arguments[i]};
        TOW_RETURN_IF_ERROR(tow_status_annotate(check_layouts(&value, &user),
                                                "%s, input %zu",
                                                name_of_node(node), i));
    }
    return TOW_OK;
}

/* `node` has its function. */
static tow_status_t add_call(plugin_program_t *program, recipe_node_t node,
                             const char *name, const uint32_t (*inputs)[2],
                             size_t count, uint32_t *out_node)
{
    const size_t wanted = recipe_node_signature(&node)->argument_count;
    if (count != wanted)
        return TOW_ERROR(TOW_INVALID_ARGUMENT,
                         "%s takes %zu arguments, but %zu are given",
                         name_of_node(&node), wanted, count);
    node.name = name != NULL ? copy_name(name) : NULL;
    node.inputs = tow_calloc(count + 1, sizeof(tow_value_t));
    node.input_count = count;
    tow_status_t status =
        node.inputs != NULL && (name == NULL) == (node.name == NULL)
            ? read_inputs(program, inputs, &node)
            : exhausted();
    if (status == TOW_OK) status = add_node(program, node, out_node);
    if (status == TOW_OK) return TOW_OK;
    tow_free(node.inputs);
    tow_free(node.name);
    return status;
}

tow_status_t tow_plugin_program_add_call(plugin_program_t *program,
                                         PJRT_Executable *take_function,
                                         const char *name,
                                         const uint32_t (*inputs)[2],
                                         size_t count, uint32_t *out_node)
{
    TOW_RETURN_IF_ERROR(check_open(program));
    TOW_RETURN_IF_ERROR(check_executable(program, take_function));
    return add_call(program, (recipe_node_t){.function = take_function}, name,
                    inputs, count, out_node);
}

tow_status_t tow_plugin_program_add_host_call(plugin_program_t *program,
                                              plugin_host_t *take_host,
                                              const char *name,
                                              const uint32_t (*inputs)[2],
                                              size_t count, uint32_t *out_node)
{
    TOW_RETURN_IF_ERROR(check_open(program));
    return add_call(program, (recipe_node_t){.host = take_host}, name, inputs,
                    count, out_node);
}

/* The shapes that must be equal: of the whole arrays; of shards, if a sharding
 * is unknown and the value stays where it is. */
static tow_status_t find_shapes(const value_place_t *value,
                                const value_place_t *result,
                                tow_shape_t *out_given, tow_shape_t *out_wanted)
{
    const tow_sharding_t from = tow_plugin_place_sharding(value),
                         to = tow_plugin_place_sharding(result);
    *out_given = value->array->shape;
    *out_wanted = result->array->shape;
    if (tow_sharding_is_known(&from) && tow_sharding_is_known(&to)) {
        TOW_RETURN_IF_ERROR(
            tow_sharding_whole(&from, &value->array->shape, out_given));
        return tow_sharding_whole(&to, &result->array->shape, out_wanted);
    }
    if (value->slice == result->slice) return TOW_OK;
    return TOW_ERROR(TOW_INVALID_ARGUMENT,
                     "the value is on other devices than the port, and its "
                     "sharding there or here is unknown");
}

/* The cluster does not know what the stub says about its results. */
static tow_status_t check_result(const value_place_t *value,
                                 const value_place_t *result)
{
    tow_shape_t given, wanted;
    char texts[2][TOW_SHAPE_TEXT_MAX];
    if (value->array->bounds != 0)
        return TOW_ERROR(TOW_INVALID_ARGUMENT,
                         "the size of the value is known only at run time: pad "
                         "it in a host function");
    TOW_RETURN_IF_ERROR(find_shapes(value, result, &given, &wanted));
    if (!tow_shape_equal(&given, &wanted))
        return TOW_ERROR(TOW_INVALID_ARGUMENT,
                         "the value is %s, but the port's result is %s",
                         tow_shape_format(&given, texts[0]),
                         tow_shape_format(&wanted, texts[1]));
    return check_layouts(value, result);
}

tow_status_t tow_plugin_program_add_result(plugin_program_t *program,
                                           uint32_t port_index, uint32_t result,
                                           tow_value_t value)
{
    plugin_port_t *port = NULL;
    TOW_RETURN_IF_ERROR(check_open(program));
    TOW_RETURN_IF_ERROR(find_port(program, port_index, &port));
    if (result >= port->stub->signature->result_count ||
        port->results[result].is_given)
        return TOW_ERROR(TOW_INVALID_ARGUMENT,
                         "port %u has %zu results: result %u is given twice, "
                         "or is not one of them",
                         port_index, port->stub->signature->result_count,
                         result);
    TOW_RETURN_IF_ERROR(check_value(program, value));
    const value_place_t from = tow_plugin_program_place(program, value),
                        to = tow_plugin_port_result_place(port, result);
    TOW_RETURN_IF_ERROR(tow_status_annotate(
        check_result(&from, &to), "port %u, result %u", port_index, result));
    port->results[result] = (recipe_result_t){true, value};
    return TOW_OK;
}

/* -- Tracing --------------------------------------------------------------- */

typedef struct trace {
    const plugin_program_t *program;
    tow_program_t *traced;
    uint32_t *nodes; /* owned: of the graph, by nodes of the recipe */
    TOW_VEC(tow_value_t) inputs;
} trace_t;

static tow_value_t translate(const trace_t *trace, tow_value_t value)
{
    return (tow_value_t){trace->nodes[value.node], value.output};
}

static tow_status_t trace_arguments(trace_t *trace, const plugin_port_t *port)
{
    const tow_signature_t *signature = port->stub->signature;
    for (size_t i = 0; i < signature->argument_count; i++) {
        const value_place_t place = tow_plugin_program_place(
            trace->program, (tow_value_t){.node = port->nodes[i]});
        const tow_sharding_t sharding = tow_plugin_place_sharding(&place);
        tow_value_t value;
        TOW_RETURN_IF_ERROR(tow_program_add_sharded_argument(
            trace->traced, place.slice->slice, &place.array->shape,
            tow_sharding_is_known(&sharding) ? &sharding : NULL,
            port->is_donated[i], &value));
        trace->nodes[port->nodes[i]] = value.node;
    }
    return TOW_OK;
}

static tow_status_t trace_call(trace_t *trace, const recipe_node_t *node,
                               uint32_t *out_node)
{
    trace->inputs.count = 0;
    for (size_t i = 0; i < node->input_count; i++)
        if (!tow_vec_push(&trace->inputs, translate(trace, node->inputs[i])))
            return exhausted();
    return tow_program_add_named_call(
        trace->traced,
        node->host != NULL ? node->host->function : node->function->function,
        recipe_node_slice(node)->slice,
        node->name != NULL ? node->name : name_of_node(node),
        trace->inputs.items, node->input_count, out_node);
}

static tow_status_t trace_results(trace_t *trace, const plugin_port_t *port)
{
    for (size_t i = 0; i < port->stub->signature->result_count; i++) {
        const tow_value_t given = port->results[i].value;
        tow_value_t value = translate(trace, given);
        const value_place_t from =
                                tow_plugin_program_place(trace->program, given),
                            to = tow_plugin_port_result_place(port, i);
        tow_slice_t *slice = to.slice->slice;
        const tow_sharding_t sharding = tow_plugin_place_sharding(&to);
        if (tow_plugin_place_differs(&from, &to)) {
            tow_value_t moved = {0};
            TOW_RETURN_IF_ERROR(tow_program_add_transfer(
                trace->traced, value, slice, NULL, &sharding, &moved.node));
            value = moved;
        }
        TOW_RETURN_IF_ERROR(tow_program_add_result(trace->traced, value, slice,
                                                   &to.array->shape));
    }
    return TOW_OK;
}

static tow_status_t trace_all(trace_t *trace)
{
    const plugin_program_t *program = trace->program;
    for (size_t i = 0; i < program->ports.count; i++)
        TOW_RETURN_IF_ERROR(trace_arguments(trace, program->ports.items[i]));
    for (size_t i = 0; i < program->nodes.count; i++)
        if (recipe_node_is_call(&program->nodes.items[i]))
            TOW_RETURN_IF_ERROR(
                trace_call(trace, &program->nodes.items[i], &trace->nodes[i]));
    for (size_t i = 0; i < program->ports.count; i++)
        TOW_RETURN_IF_ERROR(trace_results(trace, program->ports.items[i]));
    return TOW_OK;
}

/* Locked. Not sent. */
static tow_status_t make_traced(const plugin_program_t *program,
                                tow_program_t **out_traced)
{
    trace_t trace = {.program = program};
    trace.nodes = tow_calloc(program->nodes.count + 1, sizeof(*trace.nodes));
    if (trace.nodes == NULL) return exhausted();
    tow_status_t status =
        tow_program_begin(program->client->tow, program->name, &trace.traced);
    if (status == TOW_OK) {
        status = trace_all(&trace);
        if (status != TOW_OK) tow_program_release_locked(trace.traced);
    }
    tow_free(trace.nodes);
    tow_vec_deinit(&trace.inputs);
    *out_traced = trace.traced;
    return status;
}

/* -- Slices that it uses --------------------------------------------------- */

static bool use_slice(plugin_program_t *program, slice_entry_t *entry)
{
    for (size_t i = 0; i < program->slices.count; i++)
        if (program->slices.items[i].entry == entry) return true;
    return tow_vec_push(&program->slices, ((used_slice_t){.entry = entry}));
}

static tow_status_t find_slices(plugin_program_t *program)
{
    bool is_found = true;
    for (size_t i = 0; i < program->ports.count && is_found; i++)
        is_found = use_slice(program, program->ports.items[i]->stub->slice);
    for (size_t i = 0; i < program->nodes.count && is_found; i++)
        if (recipe_node_is_call(&program->nodes.items[i]))
            is_found =
                use_slice(program, recipe_node_slice(&program->nodes.items[i]));
    return is_found ? TOW_OK : exhausted();
}

bool tow_plugin_program_is_fresh(const plugin_program_t *program)
{
    const PJRT_Client *client = program->client;
    if (!tow_plugin_devices_are_fresh(client) ||
        program->client_generation != tow_client_generation(client->tow))
        return false;
    for (size_t i = 0; i < program->slices.count; i++) {
        const used_slice_t *slice = &program->slices.items[i];
        if (atomic_load(&slice->entry->is_stale) ||
            slice->entry->generation != slice->generation)
            return false;
    }
    return true;
}

/* Not locked. The program is closed, so its recipe does not change. */
static tow_status_t refresh(const plugin_program_t *program)
{
    for (size_t i = 0; i < program->slices.count; i++)
        TOW_RETURN_IF_ERROR(
            tow_plugin_slice_refresh(program->slices.items[i].entry));
    for (size_t i = 0; i < program->nodes.count; i++) {
        const recipe_node_t *node = &program->nodes.items[i];
        if (node->function != NULL)
            TOW_RETURN_IF_ERROR(tow_plugin_executable_recompile(
                node->function, node->function->slice));
        if (node->host != NULL)
            TOW_RETURN_IF_ERROR(tow_plugin_host_reload(node->host));
    }
    return TOW_OK;
}

/* Locked. Replaces the traced program. */
static void adopt(plugin_program_t *program, tow_program_t *take_traced)
{
    if (program->traced != NULL) tow_program_release_locked(program->traced);
    program->traced = take_traced;
    program->client_generation = tow_client_generation(program->client->tow);
    for (size_t i = 0; i < program->slices.count; i++)
        program->slices.items[i].generation =
            program->slices.items[i].entry->generation;
}

tow_status_t tow_plugin_program_renew(plugin_program_t *program)
{
    TOW_RETURN_IF_ERROR(refresh(program));
    client_enter(program->client);
    tow_status_t status = TOW_OK;
    /* Another thread may have done it. */
    if (!tow_plugin_program_is_fresh(program)) {
        tow_program_t *traced;
        status = make_traced(program, &traced);
        if (status == TOW_OK) {
            status = tow_program_send(traced);
            if (status == TOW_OK)
                adopt(program, traced);
            else
                tow_program_release_locked(traced);
        }
    }
    client_leave_lazily(program->client);
    return status;
}

/* -- Finishing ------------------------------------------------------------- */

static tow_status_t check_port(const plugin_port_t *port)
{
    const tow_signature_t *signature = port->stub->signature;
    for (size_t i = 0; i < signature->argument_count; i++)
        if (port->nodes[i] == TOW_PLUGIN_NO_NODE)
            return TOW_ERROR(TOW_INVALID_ARGUMENT,
                             "port %u: argument %zu of %zu is not given",
                             port->index, i, signature->argument_count);
    for (size_t i = 0; i < signature->result_count; i++)
        if (!port->results[i].is_given)
            return TOW_ERROR(TOW_INVALID_ARGUMENT,
                             "port %u: result %zu of %zu is not given",
                             port->index, i, signature->result_count);
    return TOW_OK;
}

/* Locked. */
static tow_status_t close_recipe(plugin_program_t *program)
{
    TOW_RETURN_IF_ERROR(check_open(program));
    program->is_closed = true;
    if (program->ports.count == 0)
        return TOW_ERROR(TOW_INVALID_ARGUMENT, "program '%s' has no port",
                         program->name);
    for (size_t i = 0; i < program->ports.count; i++)
        TOW_RETURN_IF_ERROR(check_port(program->ports.items[i]));
    return find_slices(program);
}

/* Locked, and left while it waits. */
static tow_status_t verify(plugin_program_t *program)
{
    tow_program_t *traced;
    TOW_RETURN_IF_ERROR(make_traced(program, &traced));
    adopt(program, traced); /* Nobody calls it before it is finished. */
    client_leave_lazily(program->client);
    tow_status_t status = tow_program_finish(traced);
    client_enter(program->client);
    program->is_finished = status == TOW_OK;
    return status;
}

tow_status_t tow_plugin_program_finish(plugin_program_t *program)
{
    client_enter(program->client);
    tow_status_t status = close_recipe(program);
    client_leave_lazily(program->client);
    TOW_RETURN_IF_ERROR(status);
    TOW_RETURN_IF_ERROR(refresh(program));
    client_enter(program->client);
    status = verify(program);
    client_leave_lazily(program->client);
    return tow_status_annotate(status, "program '%s'", program->name);
}
