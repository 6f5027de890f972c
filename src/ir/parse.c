/* Parses programs from text, which print.c writes: characters, then words, then
 * nodes. */
#include <inttypes.h>
#include <string.h>

#include "base/alloc.h"
#include "base/assert.h"
#include "ir/graph_impl.h"
#include "wire/message.h"

typedef struct parser {
    const char *at;
    const char *end;
    const char *line_start;
    unsigned line; /* from 1 */
    tow_graph_t *program;
    TOW_VEC(tow_value_t) inputs; /* of the current node */
    tow_sharding_t from, to;     /* of the current node */
    tow_collective_t collective; /* of the current node */
} parser_t;

/* -- Characters ------------------------------------------------------------ */

#define PARSE_ERROR(parser, ...) \
    place((parser), TOW_ERROR(TOW_INVALID_ARGUMENT, __VA_ARGS__))

static TOW_COLD tow_status_t place(const parser_t *parser,
                                   tow_status_t take_status)
{
    return tow_status_annotate(take_status, "line %u, column %zu", parser->line,
                               (size_t)(parser->at - parser->line_start) + 1);
}

/* The next character; NUL at the end, and for a NUL, which is never valid. */
static char look(const parser_t *parser)
{
    return parser->at < parser->end ? *parser->at : '\0';
}

static bool is_comment(const parser_t *parser)
{
    return parser->end - parser->at >= 2 && memcmp(parser->at, "//", 2) == 0;
}

/* Skips blanks, line ends and comments. */
static void skip_blanks(parser_t *parser)
{
    for (; parser->at < parser->end; parser->at++) {
        if (is_comment(parser))
            while (parser->at < parser->end && *parser->at != '\n')
                parser->at++;
        const char c = look(parser);
        if (c == '\n') {
            parser->line++;
            parser->line_start = parser->at + 1;
        } else if (c != ' ' && c != '\t' && c != '\r') {
            return;
        }
    }
}

static bool take(parser_t *parser, char wanted)
{
    skip_blanks(parser);
    if (parser->at == parser->end || *parser->at != wanted) return false;
    parser->at++;
    return true;
}

static tow_status_t expect(parser_t *parser, char wanted)
{
    if (take(parser, wanted)) return TOW_OK;
    return PARSE_ERROR(parser, "expected '%c'", wanted);
}

static bool is_digit(char c)
{
    return c >= '0' && c <= '9';
}

static bool is_word(char c)
{
    return (c >= 'a' && c <= 'z') || is_digit(c) || c == '_';
}

/* -- Words ----------------------------------------------------------------- */

/* Copies letters, digits and '_' to `word`, which is empty if there are none or
 * too many. Does not advance. */
#define WORD_SIZE 32
static size_t look_word(parser_t *parser, char word[WORD_SIZE])
{
    size_t length = 0;
    skip_blanks(parser);
    const size_t left = (size_t)(parser->end - parser->at);
    while (length < left && is_word(parser->at[length]))
        length++;
    if (length >= WORD_SIZE) length = 0;
    memcpy(word, parser->at, length);
    word[length] = '\0';
    return length;
}

static bool take_word(parser_t *parser, const char *wanted)
{
    char word[WORD_SIZE];
    const size_t length = look_word(parser, word);
    if (length == 0 || strcmp(word, wanted) != 0) return false;
    parser->at += length;
    return true;
}

static tow_status_t expect_word(parser_t *parser, const char *wanted)
{
    if (take_word(parser, wanted)) return TOW_OK;
    return PARSE_ERROR(parser, "expected \"%s\"", wanted);
}

static tow_status_t expect_number(parser_t *parser, uint64_t max,
                                  uint64_t *out_number)
{
    uint64_t number = 0;
    *out_number = 0;
    skip_blanks(parser);
    const char *start = parser->at;
    for (; is_digit(look(parser)); parser->at++) {
        const uint64_t digit = (uint64_t)(*parser->at - '0');
        if (number > (max - digit) / 10 || digit > max) {
            parser->at = start;
            return PARSE_ERROR(parser, "the number exceeds %" PRIu64, max);
        }
        number = number * 10 + digit;
    }
    if (parser->at == start) return PARSE_ERROR(parser, "expected a number");
    *out_number = number;
    return TOW_OK;
}

static int hex_digit(char c)
{
    if (is_digit(c)) return c - '0';
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

/* One character of a name after a backslash; NUL if invalid. */
static char take_escape(parser_t *parser)
{
    const char c = look(parser);
    if (c == '"' || c == '\\') {
        parser->at++;
        return c;
    }
    if (c != 'x' || parser->end - parser->at < 3) return '\0';
    const int high = hex_digit(parser->at[1]);
    const int low = hex_digit(parser->at[2]);
    if (high < 0 || low < 0) return '\0';
    parser->at += 3;
    return (char)(high * 16 + low);
}

/* A name in quotes; empty if there is none. */
static tow_status_t parse_name(parser_t *parser, char name[TOW_NAME_MAX + 1])
{
    size_t length = 0;
    name[0] = '\0';
    if (!take(parser, '"')) return TOW_OK;
    while (look(parser) != '"') {
        char c = look(parser);
        if (c == '\0' || c == '\n')
            return PARSE_ERROR(parser, "the name has no end; it needs a '\"'");
        if (length == TOW_NAME_MAX)
            return PARSE_ERROR(parser, "a name has at most %u characters",
                               TOW_NAME_MAX);
        parser->at++;
        if (c == '\\') c = take_escape(parser);
        if (c == '\0')
            return PARSE_ERROR(parser, "a backslash must be followed by a "
                                       "quote, a backslash or xNN, not x00");
        name[length++] = c;
    }
    parser->at++;
    name[length] = '\0';
    return TOW_OK;
}

/* -- Shapes ---------------------------------------------------------------- */

/* f32, or #77 for a type without a name. */
static tow_status_t parse_type(parser_t *parser, tow_type_t *out_type)
{
    char word[WORD_SIZE];
    uint64_t number;
    if (take(parser, '#')) {
        TOW_RETURN_IF_ERROR(expect_number(parser, UINT32_MAX, &number));
        *out_type = (tow_type_t)number;
        return TOW_OK;
    }
    const size_t length = look_word(parser, word);
    *out_type = tow_type_parse(word);
    if (*out_type == TOW_TYPE_INVALID)
        return PARSE_ERROR(parser, "expected a shape, such as f32[2,3]");
    parser->at += length;
    return TOW_OK;
}

/* Accepts negative ones: the verifier has a better error for them. */
static tow_status_t parse_dimension(parser_t *parser, int64_t *out_dimension)
{
    uint64_t number;
    const bool is_negative = take(parser, '-');
    const uint64_t max = (uint64_t)INT64_MAX + (is_negative ? 1 : 0);
    TOW_RETURN_IF_ERROR(expect_number(parser, max, &number));
    *out_dimension = (int64_t)(is_negative ? 0 - number : number);
    return TOW_OK;
}

static tow_status_t parse_shape(parser_t *parser, tow_shape_t *shape)
{
    TOW_RETURN_IF_ERROR(parse_type(parser, &shape->type));
    TOW_RETURN_IF_ERROR(expect(parser, '['));
    if (take(parser, ']')) return TOW_OK;
    do {
        if (shape->rank == TOW_RANK_MAX)
            return PARSE_ERROR(parser, "a shape has at most %d dimensions",
                               TOW_RANK_MAX);
        TOW_RETURN_IF_ERROR(
            parse_dimension(parser, &shape->dims[shape->rank++]));
    } while (take(parser, ','));
    return expect(parser, ']');
}

/* -- Shardings ------------------------------------------------------------- */

/* Appends numbers and their separators to `text`. False if there are none, or
 * too many. */
static bool take_numbers(parser_t *parser, char text[TOW_SHARDING_TEXT_MAX],
                         size_t *used)
{
    const size_t start = *used;
    skip_blanks(parser);
    for (; is_digit(look(parser)) ||
           (look(parser) != '\0' && strchr("x*?,", look(parser)) != NULL);
         parser->at++) {
        if (*used + 1 == TOW_SHARDING_TEXT_MAX) return false;
        text[(*used)++] = look(parser);
    }
    return *used > start;
}

static bool take_keyword(parser_t *parser, const char *word,
                         char text[TOW_SHARDING_TEXT_MAX], size_t *used)
{
    const size_t length = strlen(word);
    if (!take_word(parser, word) || *used + length + 2 >= TOW_SHARDING_TEXT_MAX)
        return false;
    text[(*used)++] = ' ';
    memcpy(text + *used, word, length);
    *used += length;
    text[(*used)++] = ' ';
    return true;
}

/* 2x4*2 mesh 4x2x2 axes 1,0,2. White space between words becomes one blank for
 * tow_sharding_parse. */
static tow_status_t parse_sharding(parser_t *parser, tow_sharding_t *room,
                                   const tow_sharding_t **out)
{
    char text[TOW_SHARDING_TEXT_MAX];
    size_t used = 0;
    if (!take_numbers(parser, text, &used))
        return PARSE_ERROR(parser, "expected a sharding, such as 2x4 or ?");
    if (take_keyword(parser, "mesh", text, &used) &&
        take_numbers(parser, text, &used) &&
        take_keyword(parser, "axes", text, &used))
        (void)take_numbers(parser, text, &used);
    tow_status_t status = tow_sharding_parse(text, used, room);
    *out = room;
    return status == TOW_OK ? TOW_OK : place(parser, status);
}

/* -- Nodes ----------------------------------------------------------------- */

static tow_status_t parse_kind(parser_t *parser, tow_node_kind_t *out_kind)
{
    if (take_word(parser, "argument"))
        *out_kind = TOW_NODE_ARGUMENT;
    else if (take_word(parser, "compute"))
        *out_kind = TOW_NODE_COMPUTE;
    else if (take_word(parser, "result"))
        *out_kind = TOW_NODE_RESULT;
    else if (take_word(parser, "transfer"))
        *out_kind = TOW_NODE_TRANSFER;
    else if (take_word(parser, "host"))
        *out_kind = TOW_NODE_HOST;
    else if (take_word(parser, "all_reduce"))
        *out_kind = TOW_NODE_COLLECTIVE;
    else
        return PARSE_ERROR(parser, "a node is an argument, compute, host, "
                                   "transfer, all_reduce or result");
    return TOW_OK;
}

/* %1, or %1:2. */
static tow_status_t parse_value(parser_t *parser, tow_value_t *out_value)
{
    uint64_t node, output = 0;
    TOW_RETURN_IF_ERROR(expect(parser, '%'));
    TOW_RETURN_IF_ERROR(expect_number(parser, UINT32_MAX, &node));
    if (take(parser, ':'))
        TOW_RETURN_IF_ERROR(expect_number(parser, UINT32_MAX, &output));
    *out_value = (tow_value_t){(uint32_t)node, (uint32_t)output};
    return TOW_OK;
}

static tow_status_t parse_inputs(parser_t *parser, tow_node_t *node)
{
    TOW_RETURN_IF_ERROR(expect(parser, '('));
    parser->inputs.count = 0;
    if (!take(parser, ')')) {
        do {
            tow_value_t value;
            TOW_RETURN_IF_ERROR(parse_value(parser, &value));
            if (!tow_vec_push(&parser->inputs, value))
                return tow_ir_exhausted();
        } while (take(parser, ','));
        TOW_RETURN_IF_ERROR(expect(parser, ')'));
    }
    node->inputs = parser->inputs.items;
    node->input_count = parser->inputs.count;
    return TOW_OK;
}

static tow_status_t parse_slice(parser_t *parser, const char *word,
                                tow_node_t *node)
{
    TOW_RETURN_IF_ERROR(expect_word(parser, word));
    TOW_RETURN_IF_ERROR(expect_word(parser, "slice"));
    return expect_number(parser, UINT64_MAX, &node->slice.value);
}

static tow_status_t parse_argument(parser_t *parser, tow_node_t *node)
{
    TOW_RETURN_IF_ERROR(expect(parser, ':'));
    TOW_RETURN_IF_ERROR(parse_shape(parser, &node->shape));
    TOW_RETURN_IF_ERROR(parse_slice(parser, "on", node));
    if (take_word(parser, "as"))
        TOW_RETURN_IF_ERROR(parse_sharding(parser, &parser->to, &node->to));
    node->donated = take_word(parser, "donated");
    skip_blanks(parser);
    return look(parser) == '(' ? parse_inputs(parser, node) : TOW_OK;
}

static tow_status_t parse_compute(parser_t *parser, tow_node_t *node)
{
    TOW_RETURN_IF_ERROR(expect_word(parser, "function"));
    TOW_RETURN_IF_ERROR(
        expect_number(parser, UINT64_MAX, &node->function.value));
    if (node->kind == TOW_NODE_HOST && take_word(parser, "within")) {
        uint64_t limit;
        TOW_RETURN_IF_ERROR(expect_number(parser, UINT32_MAX, &limit));
        TOW_RETURN_IF_ERROR(expect_word(parser, "ms"));
        node->time_limit_ms = (uint32_t)limit;
    }
    TOW_RETURN_IF_ERROR(parse_slice(parser, "on", node));
    return parse_inputs(parser, node);
}

static tow_status_t parse_transfer(parser_t *parser, tow_node_t *node)
{
    TOW_RETURN_IF_ERROR(expect_word(parser, "from"));
    TOW_RETURN_IF_ERROR(parse_sharding(parser, &parser->from, &node->from));
    TOW_RETURN_IF_ERROR(parse_slice(parser, "to", node));
    TOW_RETURN_IF_ERROR(expect_word(parser, "as"));
    TOW_RETURN_IF_ERROR(parse_sharding(parser, &parser->to, &node->to));
    return parse_inputs(parser, node);
}

/* sum, or #77 for one without a name; ? for none at all. */
static tow_status_t parse_reduction(parser_t *parser, tow_node_t *node)
{
    tow_collective_t *collective = &parser->collective;
    char word[WORD_SIZE];
    uint64_t number = TOW_COLLECTIVE_ALL_REDUCE;
    if (take(parser, '?')) return TOW_OK;
    *collective = (tow_collective_t){0};
    node->collective = collective;
    if (take_word(parser, "kind"))
        TOW_RETURN_IF_ERROR(expect_number(parser, UINT32_MAX, &number));
    collective->kind = (tow_collective_kind_t)number;
    if (take(parser, '#')) {
        TOW_RETURN_IF_ERROR(expect_number(parser, UINT32_MAX, &number));
        collective->reduction = (tow_reduction_t)number;
        return TOW_OK;
    }
    const size_t length = look_word(parser, word);
    collective->reduction = tow_reduction_parse(word);
    if (collective->reduction == 0)
        return PARSE_ERROR(parser, "expected sum, product, min or max");
    parser->at += length;
    return TOW_OK;
}

static tow_status_t parse_numbers(parser_t *parser, char between,
                                  uint32_t numbers[TOW_MESH_RANK_MAX],
                                  uint32_t *out_count)
{
    do {
        uint64_t number;
        if (*out_count == TOW_MESH_RANK_MAX)
            return PARSE_ERROR(parser, "a mesh has at most %u axes",
                               TOW_MESH_RANK_MAX);
        TOW_RETURN_IF_ERROR(expect_number(parser, UINT32_MAX, &number));
        numbers[(*out_count)++] = (uint32_t)number;
    } while (take(parser, between));
    return TOW_OK;
}

/* over 2x4 axes 1 */
static tow_status_t parse_groups(parser_t *parser, tow_collective_t *collective)
{
    skip_blanks(parser);
    if (is_digit(look(parser)))
        TOW_RETURN_IF_ERROR(parse_numbers(parser, 'x', collective->mesh_dims,
                                          &collective->mesh_rank));
    if (!take_word(parser, "axes")) return TOW_OK;
    return parse_numbers(parser, ',', collective->axes,
                         &collective->axis_count);
}

static tow_status_t parse_collective(parser_t *parser, tow_node_t *node)
{
    TOW_RETURN_IF_ERROR(parse_reduction(parser, node));
    TOW_RETURN_IF_ERROR(parse_slice(parser, "on", node));
    if (node->collective != NULL && take_word(parser, "over"))
        TOW_RETURN_IF_ERROR(parse_groups(parser, &parser->collective));
    return parse_inputs(parser, node);
}

static tow_status_t parse_rest(parser_t *parser, tow_node_t *node)
{
    switch (node->kind) {
    case TOW_NODE_ARGUMENT: return parse_argument(parser, node);
    case TOW_NODE_COMPUTE:
    case TOW_NODE_HOST: return parse_compute(parser, node);
    case TOW_NODE_TRANSFER: return parse_transfer(parser, node);
    case TOW_NODE_COLLECTIVE: return parse_collective(parser, node);
    case TOW_NODE_RESULT: break;
    }
    return parse_inputs(parser, node);
}

/* "%0 =", with the number that is next. */
static tow_status_t parse_number(parser_t *parser)
{
    const size_t next = parser->program->nodes.count;
    uint64_t number;
    TOW_RETURN_IF_ERROR(expect(parser, '%'));
    TOW_RETURN_IF_ERROR(expect_number(parser, UINT32_MAX, &number));
    if (number != next)
        return PARSE_ERROR(
            parser,
            "node %" PRIu64
            " found where node %zu is expected; nodes are numbered from 0",
            number, next);
    return expect(parser, '=');
}

static tow_status_t parse_node(parser_t *parser)
{
    char name[TOW_NAME_MAX + 1];
    tow_node_t node = {.name = name};
    TOW_RETURN_IF_ERROR(parse_number(parser));
    TOW_RETURN_IF_ERROR(parse_kind(parser, &node.kind));
    TOW_RETURN_IF_ERROR(parse_name(parser, name));
    TOW_RETURN_IF_ERROR(parse_rest(parser, &node));
    tow_status_t status = tow_graph_add(parser->program, &node, NULL);
    return status == TOW_OK ? TOW_OK : place(parser, status);
}

/* -- Programs -------------------------------------------------------------- */

static tow_status_t parse_program(parser_t *parser)
{
    char name[TOW_NAME_MAX + 1];
    TOW_RETURN_IF_ERROR(expect_word(parser, "program"));
    TOW_RETURN_IF_ERROR(parse_name(parser, name));
    TOW_RETURN_IF_ERROR(tow_graph_create(name, &parser->program));
    parser->program->is_sequential = take_word(parser, "sequential");
    TOW_RETURN_IF_ERROR(expect(parser, '{'));
    while (!take(parser, '}'))
        TOW_RETURN_IF_ERROR(parse_node(parser));
    skip_blanks(parser);
    if (parser->at < parser->end)
        return PARSE_ERROR(parser,
                           "unexpected text after the end of the program");
    return TOW_OK;
}

tow_status_t tow_graph_parse(const char *text, size_t size,
                             tow_graph_t **out_program)
{
    TOW_ASSERT(out_program != NULL);
    TOW_ASSERT(text != NULL || size == 0);
    if (text == NULL) text = "";
    parser_t parser = {
        .at = text, .end = text + size, .line_start = text, .line = 1};
    tow_status_t status = parse_program(&parser);
    tow_vec_deinit(&parser.inputs);
    if (status != TOW_OK) {
        tow_graph_destroy(parser.program);
        parser.program = NULL;
    }
    *out_program = parser.program;
    return status;
}
