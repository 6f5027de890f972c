#include "device/sim/cost.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/vec.h"
#include "device/sim/reader_impl.h"

#define FIRST_LINE "towpath-cost 1"

/* The state of parsing; becomes a tow_sim_cost_t at the end. */
typedef struct parse {
    reader_t reader;
    piece_t name;
    bool has_temporary;
    uint64_t temporary_bytes;
    TOW_VEC(tow_array_info_t) arguments;
    TOW_VEC(tow_array_info_t) results;
    TOW_VEC(tow_alias_t) aliases;
    TOW_VEC(tow_sim_cost_step_t) steps;
} parse_t;

static tow_status_t out_of_memory(void)
{
    return tow_status_bare(TOW_RESOURCE_EXHAUSTED);
}

/* -- Words ----------------------------------------------------------------- */

static tow_status_t expect_end(const parse_t *parse, piece_t *line)
{
    piece_t word;
    char shown[TOW_SIM_SHOWN_SIZE];
    if (!tow_sim_piece_word(line, &word)) return TOW_OK;
    return tow_sim_reader_error(&parse->reader, "unexpected \"%s\"",
                                tow_sim_piece_show(word, shown));
}

static tow_status_t expect_number(const parse_t *parse, piece_t *line,
                                  const char *what, uint64_t *out_number)
{
    piece_t word = {line->start, 0};
    char shown[TOW_SIM_SHOWN_SIZE];
    if (tow_sim_piece_word(line, &word) &&
        tow_sim_piece_number(word, out_number))
        return TOW_OK;
    return tow_sim_reader_error(
        &parse->reader, "%s must be a whole number below 2^63, not \"%s\"",
        what, tow_sim_piece_show(word, shown));
}

static tow_status_t expect_shape(const parse_t *parse, piece_t *line,
                                 tow_array_info_t *out_array)
{
    piece_t word = {line->start, 0};
    char text[TOW_SHAPE_TEXT_MAX];
    *out_array = (tow_array_info_t){0};
    if (!tow_sim_piece_word(line, &word) || word.length >= sizeof(text) ||
        memchr(word.start, '\0', word.length) != NULL)
        return tow_sim_reader_error(&parse->reader,
                                    "a shape is missing, as f32[2,3]");
    memcpy(text, word.start, word.length);
    text[word.length] = '\0';
    tow_status_t status = tow_shape_parse(text, &out_array->shape);
    if (status == TOW_OK)
        status = tow_shape_bytes(&out_array->shape, &out_array->bytes);
    return tow_status_annotate(status, "%s, line %u", parse->reader.what,
                               parse->reader.line);
}

static tow_status_t expect_type(const parse_t *parse, piece_t *line,
                                tow_type_t *out_type)
{
    piece_t word = {line->start, 0};
    char shown[TOW_SIM_SHOWN_SIZE];
    (void)tow_sim_piece_word(line, &word);
    *out_type = tow_type_parse(tow_sim_piece_show(word, shown));
    if (*out_type != TOW_TYPE_INVALID) return TOW_OK;
    return tow_sim_reader_error(
        &parse->reader, "flops need an element type, as f32, not \"%s\"",
        shown);
}

/* -- Lines ----------------------------------------------------------------- */

static tow_status_t parse_name(parse_t *parse, piece_t *line)
{
    piece_t word;
    if (parse->name.length > 0)
        return tow_sim_reader_error(&parse->reader, "a second name");
    if (!tow_sim_piece_word(line, &word) ||
        !tow_sim_piece_is_name(word, TOW_SIM_COST_NAME_MAX))
        return tow_sim_reader_error(
            &parse->reader, "a name is 1 to %u letters, digits and \"-_./\"",
            TOW_SIM_COST_NAME_MAX);
    parse->name = word;
    return expect_end(parse, line);
}

static tow_status_t too_many(const parse_t *parse, const char *what,
                             unsigned max)
{
    return tow_sim_reader_error(&parse->reader, "more than %u %s", max, what);
}

static tow_status_t parse_argument(parse_t *parse, piece_t *line)
{
    tow_array_info_t array;
    if (parse->arguments.count == TOW_SIM_COST_ARRAYS_MAX)
        return too_many(parse, "arguments", TOW_SIM_COST_ARRAYS_MAX);
    TOW_RETURN_IF_ERROR(expect_shape(parse, line, &array));
    if (!tow_vec_push(&parse->arguments, array)) return out_of_memory();
    return expect_end(parse, line);
}

/* Arguments may follow, so the alias is checked at the end. */
static tow_status_t parse_alias(parse_t *parse, piece_t *line)
{
    piece_t word;
    uint64_t argument;
    if (!tow_sim_piece_word(line, &word)) return TOW_OK;
    bool required = tow_sim_piece_is(word, "must_alias");
    if (!required && !tow_sim_piece_is(word, "alias"))
        return tow_sim_reader_error(
            &parse->reader, "after a result's shape comes nothing, \"alias N\" "
                            "or \"must_alias N\"");
    TOW_RETURN_IF_ERROR(expect_number(parse, line, "the argument", &argument));
    if (argument >= TOW_SIM_COST_ARRAYS_MAX)
        return too_many(parse, "arguments", TOW_SIM_COST_ARRAYS_MAX);
    tow_alias_t alias = {.result = parse->results.count - 1,
                         .argument = (size_t)argument,
                         .required = required};
    return tow_vec_push(&parse->aliases, alias) ? TOW_OK : out_of_memory();
}

static tow_status_t parse_result(parse_t *parse, piece_t *line)
{
    tow_array_info_t array;
    if (parse->results.count == TOW_SIM_COST_ARRAYS_MAX)
        return too_many(parse, "results", TOW_SIM_COST_ARRAYS_MAX);
    TOW_RETURN_IF_ERROR(expect_shape(parse, line, &array));
    if (!tow_vec_push(&parse->results, array)) return out_of_memory();
    TOW_RETURN_IF_ERROR(parse_alias(parse, line));
    return expect_end(parse, line);
}

static tow_status_t parse_temporary(parse_t *parse, piece_t *line)
{
    if (parse->has_temporary)
        return tow_sim_reader_error(&parse->reader, "a second \"temporary\"");
    parse->has_temporary = true;
    TOW_RETURN_IF_ERROR(
        expect_number(parse, line, "bytes", &parse->temporary_bytes));
    return expect_end(parse, line);
}

static tow_status_t add_step(parse_t *parse, piece_t *line,
                             const tow_sim_cost_step_t *step)
{
    TOW_RETURN_IF_ERROR(expect_end(parse, line));
    if (parse->steps.count == TOW_SIM_COST_STEPS_MAX)
        return too_many(parse, "steps", TOW_SIM_COST_STEPS_MAX);
    return tow_vec_push(&parse->steps, *step) ? TOW_OK : out_of_memory();
}

static tow_status_t parse_compute(parse_t *parse, piece_t *line)
{
    tow_sim_cost_step_t step = {.kind = TOW_SIM_STEP_COMPUTE};
    piece_t word = {line->start, 0};
    bool has_word = tow_sim_piece_word(line, &word);
    if (has_word && tow_sim_piece_is(word, "flops")) {
        TOW_RETURN_IF_ERROR(expect_number(parse, line, "flops", &step.flops));
        TOW_RETURN_IF_ERROR(expect_type(parse, line, &step.type));
        if (step.flops == 0) step.type = TOW_TYPE_INVALID;
        has_word = tow_sim_piece_word(line, &word);
        if (!has_word) return add_step(parse, line, &step);
    }
    if (!has_word || !tow_sim_piece_is(word, "bytes"))
        return tow_sim_reader_error(
            &parse->reader, "the form is \"compute flops N TYPE bytes N\"; one "
                            "of the two may be missing");
    TOW_RETURN_IF_ERROR(expect_number(parse, line, "bytes", &step.bytes));
    return add_step(parse, line, &step);
}

static tow_status_t parse_duration(parse_t *parse, piece_t *line)
{
    tow_sim_cost_step_t step = {.kind = TOW_SIM_STEP_DURATION};
    TOW_RETURN_IF_ERROR(expect_number(parse, line, "nanoseconds", &step.ns));
    if (step.ns > TOW_SIM_NS_MAX)
        return tow_sim_reader_error(&parse->reader,
                                    "a duration is at most %" PRIu64 " ns",
                                    TOW_SIM_NS_MAX);
    return add_step(parse, line, &step);
}

static tow_status_t parse_count(parse_t *parse, piece_t *line, const char *what,
                                uint32_t *out_count)
{
    uint64_t count = 0;
    TOW_RETURN_IF_ERROR(expect_number(parse, line, what, &count));
    if (count == 0 || count > TOW_SIM_DEVICE_COUNT_MAX)
        return tow_sim_reader_error(&parse->reader, "%s must be 1 to %u", what,
                                    TOW_SIM_DEVICE_COUNT_MAX);
    *out_count = (uint32_t)count;
    return TOW_OK;
}

static tow_status_t parse_group(parse_t *parse, piece_t *line,
                                tow_sim_cost_step_t *step)
{
    piece_t word;
    if (!tow_sim_piece_word(line, &word)) return TOW_OK;
    if (!tow_sim_piece_is(word, "group"))
        return tow_sim_reader_error(
            &parse->reader, "after the bytes comes nothing, \"group SIZE\" or "
                            "\"group SIZE stride N\"");
    TOW_RETURN_IF_ERROR(
        parse_count(parse, line, "a group's size", &step->group_size));
    step->stride = 1;
    if (!tow_sim_piece_word(line, &word)) return TOW_OK;
    if (!tow_sim_piece_is(word, "stride"))
        return tow_sim_reader_error(&parse->reader,
                                    "after a group comes nothing or \"stride "
                                    "N\"");
    return parse_count(parse, line, "a stride", &step->stride);
}

static tow_status_t parse_collective(parse_t *parse, piece_t *line,
                                     tow_sim_collective_kind_t kind)
{
    tow_sim_cost_step_t step = {.kind = TOW_SIM_STEP_COLLECTIVE,
                                .collective = kind};
    if (kind != TOW_SIM_BARRIER)
        TOW_RETURN_IF_ERROR(expect_number(parse, line, "bytes", &step.bytes));
    TOW_RETURN_IF_ERROR(parse_group(parse, line, &step));
    return add_step(parse, line, &step);
}

static tow_status_t parse_line(parse_t *parse, piece_t line)
{
    static const struct {
        const char *word;
        tow_status_t (*parse)(parse_t *parse, piece_t *line);
    } lines[] = {
        {"name", parse_name},       {"argument", parse_argument},
        {"result", parse_result},   {"temporary", parse_temporary},
        {"compute", parse_compute}, {"duration", parse_duration},
    };
    piece_t word;
    char shown[TOW_SIM_SHOWN_SIZE];
    if (line.length > 0 && line.start[0] == '#') return TOW_OK;
    if (!tow_sim_piece_word(&line, &word)) return TOW_OK;
    for (size_t i = 0; i < TOW_COUNT_OF(lines); i++)
        if (tow_sim_piece_is(word, lines[i].word))
            return lines[i].parse(parse, &line);
    for (int kind = 0; kind < TOW_SIM_COLLECTIVE_KIND_COUNT; kind++)
        if (tow_sim_piece_is(word, tow_sim_collective_name(kind)))
            return parse_collective(parse, &line, kind);
    return tow_sim_reader_error(&parse->reader,
                                "no line begins with \"%s\"; "
                                "src/device/sim/cost.h has the form",
                                tow_sim_piece_show(word, shown));
}

/* -- The program ----------------------------------------------------------- */

static tow_status_t check_alias(const parse_t *parse, const tow_alias_t *alias)
{
    char result[TOW_SHAPE_TEXT_MAX], argument[TOW_SHAPE_TEXT_MAX];
    if (alias->argument >= parse->arguments.count)
        return TOW_ERROR(TOW_INVALID_ARGUMENT,
                         "%s: result %zu is an alias of argument %zu, and "
                         "there are %zu arguments",
                         parse->reader.what, alias->result, alias->argument,
                         parse->arguments.count);
    const tow_array_info_t *from = &parse->arguments.items[alias->argument];
    const tow_array_info_t *to = &parse->results.items[alias->result];
    if (from->bytes == to->bytes) return TOW_OK;
    return TOW_ERROR(
        TOW_INVALID_ARGUMENT,
        "%s: result %zu, %.100s, is an alias of argument %zu, %.100s, of "
        "another size",
        parse->reader.what, alias->result, tow_shape_format(&to->shape, result),
        alias->argument, tow_shape_format(&from->shape, argument));
}

static tow_status_t check_aliases(const parse_t *parse)
{
    bool taken[TOW_SIM_COST_ARRAYS_MAX] = {false};
    for (size_t i = 0; i < parse->aliases.count; i++) {
        const tow_alias_t *alias = &parse->aliases.items[i];
        TOW_RETURN_IF_ERROR(check_alias(parse, alias));
        if (taken[alias->argument])
            return TOW_ERROR(TOW_INVALID_ARGUMENT,
                             "%s: two results are aliases of argument %zu",
                             parse->reader.what, alias->argument);
        taken[alias->argument] = true;
    }
    return TOW_OK;
}

static tow_status_t parse_lines(parse_t *parse)
{
    piece_t line = {parse->reader.at, 0};
    if (!tow_sim_reader_line(&parse->reader, &line) ||
        !tow_sim_piece_is(line, FIRST_LINE))
        return tow_sim_reader_error(
            &parse->reader, "the first line must be \"" FIRST_LINE "\"");
    while (tow_sim_reader_line(&parse->reader, &line))
        TOW_RETURN_IF_ERROR(parse_line(parse, line));
    if (parse->name.length == 0)
        return TOW_ERROR(TOW_INVALID_ARGUMENT, "%s: it has no name",
                         parse->reader.what);
    return check_aliases(parse);
}

static void parse_deinit(parse_t *parse)
{
    tow_vec_deinit(&parse->arguments);
    tow_vec_deinit(&parse->results);
    tow_vec_deinit(&parse->aliases);
    tow_vec_deinit(&parse->steps);
}

static tow_status_t take_parse(const parse_t *parse, tow_sim_cost_t *out_cost)
{
    char *name = tow_calloc(1, parse->name.length + 1);
    if (name == NULL) return out_of_memory();
    memcpy(name, parse->name.start, parse->name.length);
    *out_cost = (tow_sim_cost_t){
        .name = name,
        .arguments = parse->arguments.items,
        .argument_count = parse->arguments.count,
        .results = parse->results.items,
        .result_count = parse->results.count,
        .aliases = parse->aliases.items,
        .alias_count = parse->aliases.count,
        .temporary_bytes = parse->temporary_bytes,
        .steps = parse->steps.items,
        .step_count = parse->steps.count,
    };
    return TOW_OK;
}

tow_status_t tow_sim_cost_parse(const void *text, size_t size,
                                tow_sim_cost_t *out_cost)
{
    *out_cost = (tow_sim_cost_t){0};
    if (size > TOW_SIM_COST_TEXT_BYTES_MAX)
        return TOW_ERROR(TOW_INVALID_ARGUMENT,
                         "cost program: %zu bytes; %u are allowed", size,
                         TOW_SIM_COST_TEXT_BYTES_MAX);
    if (size == 0)
        return TOW_ERROR(TOW_INVALID_ARGUMENT,
                         "cost program: it is empty; the first line must be "
                         "\"" FIRST_LINE "\"");
    const char *start = text;
    parse_t parse = {
        .reader = {.at = start, .end = start + size, .what = "cost program"}};
    tow_status_t status = parse_lines(&parse);
    if (status == TOW_OK) status = take_parse(&parse, out_cost);
    if (status != TOW_OK) parse_deinit(&parse);
    return status;
}

void tow_sim_cost_deinit(tow_sim_cost_t *cost)
{
    tow_free(cost->name);
    tow_free(cost->arguments);
    tow_free(cost->results);
    tow_free(cost->aliases);
    tow_free(cost->steps);
    *cost = (tow_sim_cost_t){0};
}

/* -- Printing -------------------------------------------------------------- */

typedef struct text {
    TOW_VEC(char) bytes;
    bool failed;
} text_t;

#define LINE_SIZE_MAX (TOW_SHAPE_TEXT_MAX + TOW_SIM_COST_NAME_MAX + 128)

static void add(text_t *text, const char *format, ...) TOW_PRINTF(2, 3);
static void add(text_t *text, const char *format, ...)
{
    char line[LINE_SIZE_MAX];
    va_list arguments;
    va_start(arguments, format);
    int length = vsnprintf(line, sizeof(line), format, arguments);
    va_end(arguments);
    TOW_ASSERT(length >= 0 && (size_t)length < sizeof(line));
    size_t wanted = text->bytes.count + (size_t)length;
    if (text->failed || !tow_vec_reserve(&text->bytes, wanted)) {
        text->failed = true;
        return;
    }
    memcpy(text->bytes.items + text->bytes.count, line, (size_t)length);
    text->bytes.count = wanted;
}

static void add_result(text_t *text, const tow_sim_cost_t *cost, size_t result)
{
    char shape[TOW_SHAPE_TEXT_MAX];
    add(text, "result %s",
        tow_shape_format(&cost->results[result].shape, shape));
    for (size_t i = 0; i < cost->alias_count; i++)
        if (cost->aliases[i].result == result)
            add(text, " %s %zu",
                cost->aliases[i].required ? "must_alias" : "alias",
                cost->aliases[i].argument);
    add(text, "\n");
}

static void add_compute(text_t *text, const tow_sim_cost_step_t *step)
{
    add(text, "compute");
    if (step->flops > 0)
        add(text, " flops %" PRIu64 " %s", step->flops,
            tow_type_name(step->type));
    if (step->bytes > 0 || step->flops == 0)
        add(text, " bytes %" PRIu64, step->bytes);
    add(text, "\n");
}

static void add_collective(text_t *text, const tow_sim_cost_step_t *step)
{
    add(text, "%s", tow_sim_collective_name(step->collective));
    if (step->collective != TOW_SIM_BARRIER)
        add(text, " %" PRIu64, step->bytes);
    if (step->group_size > 0) add(text, " group %u", step->group_size);
    if (step->stride > 1) add(text, " stride %u", step->stride);
    add(text, "\n");
}

static void add_step_line(text_t *text, const tow_sim_cost_step_t *step)
{
    switch (step->kind) {
    case TOW_SIM_STEP_COMPUTE: add_compute(text, step); break;
    case TOW_SIM_STEP_DURATION:
        add(text, "duration %" PRIu64 "\n", step->ns);
        break;
    case TOW_SIM_STEP_COLLECTIVE: add_collective(text, step); break;
    }
}

tow_status_t tow_sim_cost_print(const tow_sim_cost_t *cost, char **out_text,
                                size_t *out_size)
{
    text_t text = {0};
    char shape[TOW_SHAPE_TEXT_MAX];
    add(&text, FIRST_LINE "\nname %s\n", cost->name);
    for (size_t i = 0; i < cost->argument_count; i++)
        add(&text, "argument %s\n",
            tow_shape_format(&cost->arguments[i].shape, shape));
    for (size_t i = 0; i < cost->result_count; i++)
        add_result(&text, cost, i);
    if (cost->temporary_bytes > 0)
        add(&text, "temporary %" PRIu64 "\n", cost->temporary_bytes);
    for (size_t i = 0; i < cost->step_count; i++)
        add_step_line(&text, &cost->steps[i]);
    if (text.failed) {
        tow_vec_deinit(&text.bytes);
        return out_of_memory();
    }
    *out_text = text.bytes.items;
    *out_size = text.bytes.count;
    return TOW_OK;
}
