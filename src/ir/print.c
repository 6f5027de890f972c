/* Prints programs as text, which parse.c reads. */
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/assert.h"
#include "ir/graph_impl.h"

/* A growing text. After a failure it is not extended, and `failed` is set. */
typedef struct writer {
    TOW_VEC(char) text;
    bool failed;
} writer_t;

static void write_bytes(writer_t *writer, const char *bytes, size_t count)
{
    if (writer->failed ||
        !tow_vec_reserve(&writer->text, writer->text.count + count)) {
        writer->failed = true;
        return;
    }
    memcpy(writer->text.items + writer->text.count, bytes, count);
    writer->text.count += count;
}

/* For short texts: numbers and keywords. */
static void write_format(writer_t *writer, const char *format, ...)
    TOW_PRINTF(2, 3);
static void write_format(writer_t *writer, const char *format, ...)
{
    char text[96];
    va_list arguments;
    va_start(arguments, format);
    const int length = vsnprintf(text, sizeof(text), format, arguments);
    va_end(arguments);
    TOW_ASSERT(length >= 0 && (size_t)length < sizeof(text));
    write_bytes(writer, text, (size_t)length);
}

static void write_name(writer_t *writer, const char *name)
{
    if (*name == '\0') return;
    write_bytes(writer, " \"", 2);
    for (; *name != '\0'; name++) {
        char escaped[TOW_ESCAPED_SIZE];
        write_bytes(writer, escaped, tow_name_escape(*name, escaped));
    }
    write_bytes(writer, "\"", 1);
}

static void write_shape(writer_t *writer, const tow_shape_t *shape)
{
    const char *name = tow_type_name(shape->type);
    if (tow_type_parse(name) == shape->type && shape->type != TOW_TYPE_INVALID)
        write_format(writer, " : %s[", name);
    else
        write_format(writer, " : #%u[", (unsigned)shape->type);
    for (uint32_t i = 0; i < shape->rank; i++)
        write_format(writer, "%s%" PRId64, i > 0 ? "," : "", shape->dims[i]);
    write_bytes(writer, "]", 1);
}

static void write_sharding(writer_t *writer, const char *word,
                           const tow_sharding_t *sharding)
{
    char text[TOW_SHARDING_TEXT_MAX];
    write_format(writer, " %s ", word);
    write_bytes(writer, text, strlen(tow_sharding_format(sharding, text)));
}

/* The slice of a node, and the sharding of its output. */
static void write_place(writer_t *writer, const tow_node_t *node)
{
    const bool is_transfer = node->kind == TOW_NODE_TRANSFER;
    if (is_transfer) write_sharding(writer, "from", node->from);
    write_format(writer, " %s slice %" PRIu64, is_transfer ? "to" : "on",
                 node->slice.value);
    if (is_transfer || tow_sharding_is_known(node->to))
        write_sharding(writer, "as", node->to);
}

static void write_numbers(writer_t *writer, const char *before,
                          const char *between, const uint32_t *numbers,
                          uint32_t count)
{
    for (uint32_t i = 0; i < count; i++)
        write_format(writer, "%s%u", i > 0 ? between : before, numbers[i]);
}

/* Unknown kinds are written as numbers, which parse too. */
static void write_collective(writer_t *writer, const tow_node_t *node)
{
    const tow_collective_t *it = node->collective;
    if (it == NULL) {
        write_format(writer, " ? on slice %" PRIu64, node->slice.value);
        return;
    }
    const char *name = tow_reduction_name(it->reduction);
    if (it->kind != TOW_COLLECTIVE_ALL_REDUCE)
        write_format(writer, " kind %u", (unsigned)it->kind);
    if (tow_reduction_parse(name) == it->reduction && it->reduction != 0)
        write_format(writer, " %s", name);
    else
        write_format(writer, " #%u", (unsigned)it->reduction);
    write_format(writer, " on slice %" PRIu64, node->slice.value);
    if (it->mesh_rank == 0 && it->axis_count == 0) return;
    write_format(writer, " over");
    write_numbers(writer, " ", "x", it->mesh_dims, it->mesh_rank);
    write_numbers(writer, " axes ", ",", it->axes, it->axis_count);
}

static void write_inputs(writer_t *writer, const tow_node_t *node)
{
    write_bytes(writer, " (", 2);
    for (size_t i = 0; i < node->input_count; i++) {
        const tow_value_t value = node->inputs[i];
        write_format(writer, "%s%%%u", i > 0 ? ", " : "", value.node);
        if (value.output > 0) write_format(writer, ":%u", value.output);
    }
    write_bytes(writer, ")", 1);
}

static void write_node(writer_t *writer, const tow_node_t *node, size_t index)
{
    static const char *const kinds[] = {
        [TOW_NODE_ARGUMENT] = "argument",     [TOW_NODE_COMPUTE] = "compute",
        [TOW_NODE_RESULT] = "result",         [TOW_NODE_TRANSFER] = "transfer",
        [TOW_NODE_COLLECTIVE] = "all_reduce", [TOW_NODE_HOST] = "host",
    };
    write_format(writer, "  %%%zu = %s", index, kinds[node->kind]);
    write_name(writer, node->name);
    if (node->kind == TOW_NODE_ARGUMENT) write_shape(writer, &node->shape);
    if (tow_node_has_function(node))
        write_format(writer, " function %" PRIu64, node->function.value);
    if (node->time_limit_ms > 0)
        write_format(writer, " within %u ms", node->time_limit_ms);
    if (node->kind == TOW_NODE_COLLECTIVE)
        write_collective(writer, node);
    else if (node->kind != TOW_NODE_RESULT)
        write_place(writer, node);
    if (node->donated) write_format(writer, " donated");
    /* An argument with inputs is invalid, but printed as it is. */
    if (node->kind != TOW_NODE_ARGUMENT || node->input_count > 0)
        write_inputs(writer, node);
    write_bytes(writer, "\n", 1);
}

tow_status_t tow_graph_print(const tow_graph_t *program, char **out_text)
{
    TOW_ASSERT(program != NULL && out_text != NULL);
    writer_t writer = {0};
    *out_text = NULL;
    write_format(&writer, "program");
    write_name(&writer, program->name);
    if (program->is_sequential) write_format(&writer, " sequential");
    write_format(&writer, " {\n");
    for (size_t i = 0; i < program->nodes.count; i++)
        write_node(&writer, &program->nodes.items[i], i);
    write_bytes(&writer, "}\n", 3); /* and the NUL */
    if (writer.failed) {
        tow_vec_deinit(&writer.text);
        return tow_ir_exhausted();
    }
    *out_text = writer.text.items;
    return TOW_OK;
}
