#include "tool/lower_header.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/assert.h"
#include "wire/message.h"

static tow_status_t exhausted(void)
{
    return tow_status_bare(TOW_RESOURCE_EXHAUSTED);
}

/* -- A line -------------------------------------------------------------------- */

typedef struct line {
    const char *at;
    const char *end;
} line_t;

static void skip_blanks(line_t *line)
{
    while (line->at < line->end &&
           (*line->at == ' ' || *line->at == '\t' || *line->at == '\r'))
        line->at++;
    if (line->end - line->at >= 2 && memcmp(line->at, "//", 2) == 0)
        line->at = line->end;
}

static bool is_done(line_t *line)
{
    skip_blanks(line);
    return line->at == line->end;
}

static bool take(line_t *line, const char *wanted)
{
    const size_t length = strlen(wanted);
    skip_blanks(line);
    if ((size_t)(line->end - line->at) < length ||
        memcmp(line->at, wanted, length) != 0)
        return false;
    line->at += length;
    return true;
}

static tow_status_t expect(line_t *line, const char *wanted)
{
    if (take(line, wanted)) return TOW_OK;
    return TOW_ERROR(TOW_INVALID_ARGUMENT, "'%s' is missing before '%.*s'",
                     wanted, (int)(line->end - line->at), line->at);
}

static tow_status_t expect_number(line_t *line, uint64_t max, uint64_t *out)
{
    uint64_t number = 0;
    skip_blanks(line);
    const char *start = line->at;
    for (; line->at < line->end && *line->at >= '0' && *line->at <= '9';
         line->at++) {
        const uint64_t digit = (uint64_t)(*line->at - '0');
        if (__builtin_mul_overflow(number, 10u, &number) ||
            __builtin_add_overflow(number, digit, &number) || number > max)
            return TOW_ERROR(TOW_INVALID_ARGUMENT,
                             "a number exceeds the limit of %" PRIu64, max);
    }
    *out = number;
    if (line->at > start) return TOW_OK;
    return TOW_ERROR(TOW_INVALID_ARGUMENT, "a number is missing before '%.*s'",
                     (int)(line->end - line->at), line->at);
}

/* "3", or "3-5". */
static tow_status_t expect_range(line_t *line, uint64_t max,
                                 uint64_t *out_first, uint64_t *out_last)
{
    TOW_RETURN_IF_ERROR(expect_number(line, max, out_first));
    *out_last = *out_first;
    if (take(line, "-"))
        TOW_RETURN_IF_ERROR(expect_number(line, max, out_last));
    if (*out_last >= *out_first) return TOW_OK;
    return TOW_ERROR(TOW_INVALID_ARGUMENT,
                     "the range %" PRIu64 "-%" PRIu64 " ends before it begins",
                     *out_first, *out_last);
}

/* -- Slices --------------------------------------------------------------------- */

static tow_status_t note_process(tow_lower_header_t *header, uint32_t process)
{
    size_t at = 0;
    while (at < header->processes.count &&
           header->processes.items[at] < process)
        at++;
    if (at < header->processes.count && header->processes.items[at] == process)
        return TOW_OK;
    if (!tow_vec_push(&header->processes, process)) return exhausted();
    memmove(header->processes.items + at + 1, header->processes.items + at,
            (header->processes.count - 1 - at) * sizeof(process));
    header->processes.items[at] = process;
    return TOW_OK;
}

/* Numbers the shards of each worker; a device occurs only once. */
static tow_status_t add_device(tow_lower_header_t *header,
                               tow_lower_slice_t *slice, uint32_t process,
                               uint32_t device)
{
    tow_place_t place = {.process = process, .device = device, .host = process};
    if (slice->places.count == TOW_DEVICES_MAX)
        return TOW_ERROR(TOW_INVALID_ARGUMENT,
                         "a slice has more than the limit of %u devices",
                         TOW_DEVICES_MAX);
    for (size_t i = 0; i < slice->places.count; i++) {
        if (slice->places.items[i].process != process) continue;
        if (slice->places.items[i].device == device)
            return TOW_ERROR(TOW_INVALID_ARGUMENT,
                             "device %u.%u is listed twice", process, device);
        place.index++;
    }
    if (!tow_vec_push(&slice->places, place)) return exhausted();
    return note_process(header, process);
}

/* ""0-3.0-7": devices 0 to 7 of each of the processes 0 to 3. */
static tow_status_t add_devices(tow_lower_header_t *header,
                                tow_lower_slice_t *slice, line_t *line)
{
    uint64_t processes[2], devices[2];
    TOW_RETURN_IF_ERROR(
        expect_range(line, UINT16_MAX, &processes[0], &processes[1]));
    TOW_RETURN_IF_ERROR(expect(line, "."));
    TOW_RETURN_IF_ERROR(expect_range(line, TOW_WORKER_DEVICES_MAX - 1,
                                     &devices[0], &devices[1]));
    for (uint64_t process = processes[0]; process <= processes[1]; process++)
        for (uint64_t device = devices[0]; device <= devices[1]; device++)
            TOW_RETURN_IF_ERROR(
                add_device(header, slice, (uint32_t)process, (uint32_t)device));
    return TOW_OK;
}

const tow_lower_slice_t *tow_lower_header_slice(
    const tow_lower_header_t *header, tow_slice_id_t id)
{
    for (size_t i = 0; i < header->slices.count; i++)
        if (tow_slice_id_equal(header->slices.items[i].id, id))
            return &header->slices.items[i];
    return NULL;
}

static tow_status_t read_slice(tow_lower_header_t *header, line_t *line)
{
    tow_slice_id_t id;
    TOW_RETURN_IF_ERROR(expect_number(line, UINT64_MAX, &id.value));
    TOW_RETURN_IF_ERROR(expect(line, "on"));
    if (id.value == 0 || tow_lower_header_slice(header, id) != NULL)
        return TOW_ERROR(TOW_INVALID_ARGUMENT,
                         "slice id %" PRIu64 " is 0 or declared twice",
                         id.value);
    if (!tow_vec_push(&header->slices, ((tow_lower_slice_t){.id = id})))
        return exhausted();
    tow_lower_slice_t *slice = &header->slices.items[header->slices.count - 1];
    do
        TOW_RETURN_IF_ERROR(add_devices(header, slice, line));
    while (take(line, ","));
    return TOW_OK;
}

/* The processes of one host, whose slices are declared above. */
static tow_status_t read_host(tow_lower_header_t *header, line_t *line)
{
    uint64_t first, last, host = UINT64_MAX;
    do {
        TOW_RETURN_IF_ERROR(expect_range(line, UINT16_MAX, &first, &last));
        if (host == UINT64_MAX) host = first;
        for (size_t i = 0; i < header->slices.count; i++)
            for (size_t k = 0; k < header->slices.items[i].places.count; k++) {
                tow_place_t *place = &header->slices.items[i].places.items[k];
                if (place->process >= first && place->process <= last)
                    place->host = (uint32_t)host;
            }
    } while (take(line, ","));
    return TOW_OK;
}

/* -- Functions ------------------------------------------------------------------- */

/* The text up to one of these characters or the end. */
static tow_bytes_t take_until(line_t *line, const char *stops)
{
    skip_blanks(line);
    const char *start = line->at;
    while (line->at < line->end && strchr(stops, *line->at) == NULL)
        line->at++;
    return (tow_bytes_t){start, (size_t)(line->at - start)};
}

static char *copy_text(tow_lower_header_t *header, tow_bytes_t text)
{
    return tow_arena_strndup(&header->arena, text.data, text.size);
}

/* Turns "f32[<=8,4]" into "f32[8,4]" and a bit for each bounded dimension. */
static uint32_t take_bounds(char *shape)
{
    uint32_t bounds = 0, dimension = 0;
    char *to = shape;
    for (const char *at = shape; *at != '\0'; at++) {
        dimension += *at == ',';
        if (at[0] == '<' && at[1] == '=' && dimension < TOW_RANK_MAX) {
            bounds |= (uint32_t)1 << dimension;
            at++;
        } else {
            *to++ = *at;
        }
    }
    *to = '\0';
    return bounds;
}

static tow_status_t read_shape(tow_lower_header_t *header, line_t *line,
                               tow_array_info_t *array)
{
    tow_bytes_t text = take_until(line, "]");
    if (line->at < line->end) {
        line->at++;
        text.size++;
    }
    char *shape = copy_text(header, text);
    if (shape == NULL) return exhausted();
    array->bounds = take_bounds(shape);
    TOW_RETURN_IF_ERROR(tow_shape_parse(shape, &array->shape));
    return tow_shape_bytes(&array->shape, &array->bytes);
}

/* A sharding ends at `alias`, the next array or the end of the list; commas
 * within a mesh are followed by digits. */
static tow_bytes_t take_sharding(line_t *line)
{
    skip_blanks(line);
    const char *start = line->at;
    for (; line->at < line->end && *line->at != ')'; line->at++) {
        const size_t left = (size_t)(line->end - line->at);
        if (*line->at == ',' && (left < 2 || line->at[1] == ' ')) break;
        if (left > 6 && memcmp(line->at, " alias", 6) == 0) break;
    }
    const char *end = line->at;
    while (end > start && end[-1] == ' ')
        end--;
    return (tow_bytes_t){start, (size_t)(end - start)};
}

static tow_status_t read_sharding(tow_lower_header_t *header, line_t *line,
                                  size_t device_count, tow_array_info_t *array)
{
    const tow_bytes_t text = take_sharding(line);
    tow_sharding_t sharding;
    tow_shape_t whole;
    TOW_RETURN_IF_ERROR(tow_sharding_parse(text.data, text.size, &sharding));
    if (!tow_sharding_is_known(&sharding)) return TOW_OK;
    TOW_RETURN_IF_ERROR(tow_sharding_check(&sharding, device_count));
    TOW_RETURN_IF_ERROR(tow_sharding_whole(&sharding, &array->shape, &whole));
    uint8_t *bytes = tow_arena_alloc(&header->arena, TOW_SHARDING_XLA_MAX);
    if (bytes == NULL) return exhausted();
    array->sharding.data = bytes;
    array->sharding.size = tow_sharding_to_xla(&sharding, bytes);
    return TOW_OK;
}

typedef struct arrays {
    tow_array_info_t *items; /* in the arena */
    size_t count;
    size_t capacity;
} arrays_t;

/* Every array has a bracket, so the brackets ahead are at least as many. */
static size_t count_brackets(const line_t *line)
{
    size_t count = 0;
    for (const char *at = line->at; at < line->end; at++)
        count += *at == '[';
    return count;
}

static tow_status_t reserve_arrays(tow_lower_header_t *header,
                                   const line_t *line, arrays_t *arrays)
{
    arrays->capacity = count_brackets(line);
    if (arrays->capacity > TOW_VALUES_MAX) arrays->capacity = TOW_VALUES_MAX;
    arrays->items = tow_arena_calloc(&header->arena, arrays->capacity + 1,
                                     sizeof(*arrays->items));
    return arrays->items != NULL ? TOW_OK : exhausted();
}

static tow_status_t add_array(arrays_t *arrays, tow_array_info_t **out_array)
{
    if (arrays->count == TOW_VALUES_MAX)
        return TOW_ERROR(TOW_INVALID_ARGUMENT,
                         "more than the limit of %u arrays", TOW_VALUES_MAX);
    if (arrays->count == arrays->capacity)
        return TOW_ERROR(TOW_INVALID_ARGUMENT, "an array has no brackets");
    *out_array = &arrays->items[arrays->count++];
    return TOW_OK;
}

static tow_status_t read_alias(line_t *line, const arrays_t *arrays,
                               tow_signature_t *signature, tow_alias_t *aliases)
{
    uint64_t argument;
    TOW_RETURN_IF_ERROR(
        expect_number(line, signature->argument_count, &argument));
    if (argument >= signature->argument_count)
        return TOW_ERROR(TOW_INVALID_ARGUMENT,
                         "alias of argument %" PRIu64
                         ", but the function has %zu",
                         argument, (size_t)signature->argument_count);
    aliases[signature->alias_count++] =
        (tow_alias_t){.result = arrays->count - 1, .argument = argument};
    return TOW_OK;
}

/* ""(f32[4] as 4, f32[])"; a result may name the argument that it aliases. */
static tow_status_t read_arrays(tow_lower_header_t *header, line_t *line,
                                tow_signature_t *signature, arrays_t *arrays,
                                tow_alias_t *aliases)
{
    TOW_RETURN_IF_ERROR(expect(line, "("));
    TOW_RETURN_IF_ERROR(reserve_arrays(header, line, arrays));
    if (take(line, ")")) return TOW_OK;
    do {
        tow_array_info_t *array = NULL;
        TOW_RETURN_IF_ERROR(add_array(arrays, &array));
        TOW_RETURN_IF_ERROR(read_shape(header, line, array));
        if (take(line, "as "))
            TOW_RETURN_IF_ERROR(
                read_sharding(header, line, signature->partition_count, array));
        if (aliases != NULL && take(line, "alias"))
            TOW_RETURN_IF_ERROR(read_alias(line, arrays, signature, aliases));
    } while (take(line, ","));
    return expect(line, ")");
}

static tow_status_t read_name(tow_lower_header_t *header, line_t *line,
                              uint64_t id, const char **out_name)
{
    char text[32];
    tow_bytes_t name = {text, 0};
    if (take(line, "\"")) {
        name = take_until(line, "\"");
        TOW_RETURN_IF_ERROR(expect(line, "\""));
    } else {
        name.size = (size_t)snprintf(text, sizeof(text), "f%" PRIu64, id);
    }
    *out_name = copy_text(header, name);
    return *out_name != NULL ? TOW_OK : exhausted();
}

static const tow_signature_t *find_function(void *context, tow_function_id_t id)
{
    const tow_lower_header_t *header = context;
    for (size_t i = 0; i < header->functions.count; i++)
        if (tow_function_id_equal(header->functions.items[i].id, id))
            return &header->functions.items[i].signature;
    return NULL;
}

static tow_status_t read_function(tow_lower_header_t *header, line_t *line)
{
    tow_lower_function_t function = {.signature = {.replica_count = 1}};
    tow_signature_t *signature = &function.signature;
    arrays_t arguments = {0}, results = {0};
    uint64_t devices;
    TOW_RETURN_IF_ERROR(expect_number(line, UINT64_MAX, &function.id.value));
    if (function.id.value == 0 || find_function(header, function.id) != NULL)
        return TOW_ERROR(TOW_INVALID_ARGUMENT,
                         "function id %" PRIu64 " is 0 or declared twice",
                         function.id.value);
    TOW_RETURN_IF_ERROR(
        read_name(header, line, function.id.value, &signature->name));
    TOW_RETURN_IF_ERROR(expect(line, "for"));
    TOW_RETURN_IF_ERROR(expect_number(line, TOW_DEVICES_MAX, &devices));
    signature->partition_count = devices;
    signature->is_host = take(line, "host");
    if (devices == 0)
        return TOW_ERROR(TOW_INVALID_ARGUMENT,
                         "a function needs at least one device");
    tow_alias_t *aliases = tow_arena_calloc(
        &header->arena, count_brackets(line) + 1, sizeof(*aliases));
    if (aliases == NULL) return exhausted();
    TOW_RETURN_IF_ERROR(read_arrays(header, line, signature, &arguments, NULL));
    signature->arguments = arguments.items;
    signature->argument_count = arguments.count;
    TOW_RETURN_IF_ERROR(expect(line, "->"));
    TOW_RETURN_IF_ERROR(
        read_arrays(header, line, signature, &results, aliases));
    signature->results = results.items;
    signature->result_count = results.count;
    signature->aliases = aliases;
    if (take(line, "temporary"))
        TOW_RETURN_IF_ERROR(
            expect_number(line, INT64_MAX, &signature->temporary_bytes));
    return tow_vec_push(&header->functions, function) ? TOW_OK : exhausted();
}

/* -- Scope of the program ------------------------------------------------- */

static size_t slice_devices(void *context, tow_slice_id_t id)
{
    const tow_lower_slice_t *slice = tow_lower_header_slice(context, id);
    return slice == NULL ? 0 : slice->places.count;
}

static bool slice_is_here(void *context, tow_slice_id_t id)
{
    const tow_lower_header_t *header = context;
    const tow_lower_slice_t *slice = tow_lower_header_slice(header, id);
    for (size_t i = 0; i < slice->places.count; i++)
        if (slice->places.items[i].process == header->scope.process)
            return true;
    return false;
}

static tow_place_t place_of(void *context, tow_slice_id_t id, size_t shard)
{
    return tow_lower_header_slice(context, id)->places.items[shard];
}

static tow_executable_id_t executable_of(void *context,
                                         tow_function_id_t function,
                                         tow_slice_id_t slice)
{
    const tow_lower_header_t *header = context;
    for (size_t i = 0; i < header->executables.count; i++)
        if (tow_function_id_equal(header->executables.items[i].function,
                                  function) &&
            tow_slice_id_equal(header->executables.items[i].slice, slice))
            return (tow_executable_id_t){i + 1};
    return (tow_executable_id_t){0};
}

tow_status_t tow_lower_header_place(tow_lower_header_t *header,
                                    const tow_graph_t *program)
{
    for (uint32_t i = 0; i < tow_graph_node_count(program); i++) {
        const tow_node_t *node = tow_graph_node(program, i);
        if ((node->kind != TOW_NODE_COMPUTE && node->kind != TOW_NODE_HOST) ||
            executable_of(header, node->function, node->slice).value > 0)
            continue;
        const tow_lower_executable_t executable = {node->function, node->slice};
        if (!tow_vec_push(&header->executables, executable)) return exhausted();
    }
    return TOW_OK;
}

/* -- Lines ---------------------------------------------------------------- */

static tow_status_t read_line(tow_lower_header_t *header, line_t *line)
{
    if (is_done(line)) return TOW_OK;
    if (take(line, "slice "))
        TOW_RETURN_IF_ERROR(read_slice(header, line));
    else if (take(line, "host "))
        TOW_RETURN_IF_ERROR(read_host(header, line));
    else if (take(line, "function "))
        TOW_RETURN_IF_ERROR(read_function(header, line));
    else
        return TOW_ERROR(TOW_INVALID_ARGUMENT,
                         "expected slice, host, function or program at the "
                         "start of the line");
    if (is_done(line)) return TOW_OK;
    return TOW_ERROR(TOW_INVALID_ARGUMENT, "unexpected '%.*s'",
                     (int)(line->end - line->at), line->at);
}

static bool is_program(line_t line)
{
    return take(&line, "program");
}

static tow_status_t read_lines(tow_lower_header_t *header, char *text,
                               size_t size)
{
    size_t number = 1;
    for (size_t start = 0; start < size; number++) {
        const char *end = memchr(text + start, '\n', size - start);
        const size_t length =
            end != NULL ? (size_t)(end - text) - start : size - start;
        line_t line = {text + start, text + start + length};
        if (is_program(line)) return TOW_OK;
        tow_status_t status = read_line(header, &line);
        if (status != TOW_OK)
            return tow_status_annotate(status, "line %zu", number);
        memset(text + start, ' ', length);
        start += length + 1;
    }
    return TOW_ERROR(TOW_INVALID_ARGUMENT, "no line begins with \"program\"");
}

tow_status_t tow_lower_header_open(tow_lower_header_t *header, char *text,
                                   size_t size)
{
    *header = (tow_lower_header_t){0};
    tow_arena_init(&header->arena, 0);
    header->scope = (tow_lower_scope_t){
        .program = {.slice_devices = slice_devices,
                    .function = find_function,
                    .context = header},
        .executable = executable_of,
        .slice_is_here = slice_is_here,
        .place = place_of,
        .context = header,
    };
    return read_lines(header, text, size);
}

void tow_lower_header_close(tow_lower_header_t *header)
{
    for (size_t i = 0; i < header->slices.count; i++)
        tow_vec_deinit(&header->slices.items[i].places);
    tow_vec_deinit(&header->slices);
    tow_vec_deinit(&header->functions);
    tow_vec_deinit(&header->executables);
    tow_vec_deinit(&header->processes);
    tow_arena_deinit(&header->arena);
}
