#include "device/sim/model.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/assert.h"
#include "device/sim/reader_impl.h"
#include "device/sim/tuning.h"

/* models.csv, made by embed.py. */
extern const char tow_sim_models_csv[];

/* -- Times ----------------------------------------------------------------- */

typedef unsigned __int128 wide_t;

static uint64_t clamp_ns(wide_t ns)
{
    return ns < TOW_SIM_NS_MAX ? (uint64_t)ns : TOW_SIM_NS_MAX;
}

/* Below 2^64 * 2^30, and so is its sum with a divisor: 128 bits suffice. */
uint64_t tow_sim_ns_at_rate(uint64_t amount, uint64_t per_second)
{
    TOW_ASSERT(per_second > 0);
    wide_t scaled = (wide_t)amount * 1000000000u;
    return clamp_ns((scaled + per_second - 1) / per_second);
}

uint64_t tow_sim_ns_add(uint64_t a, uint64_t b)
{
    return clamp_ns((wide_t)a + b);
}

const char *tow_sim_collective_name(tow_sim_collective_kind_t kind)
{
    static const char *const names[TOW_SIM_COLLECTIVE_KIND_COUNT] = {
        [TOW_SIM_ALL_REDUCE] = "all_reduce",
        [TOW_SIM_REDUCE_SCATTER] = "reduce_scatter",
        [TOW_SIM_ALL_GATHER] = "all_gather",
        [TOW_SIM_ALL_TO_ALL] = "all_to_all",
        [TOW_SIM_PERMUTE] = "permute",
        [TOW_SIM_BROADCAST] = "broadcast",
        [TOW_SIM_BARRIER] = "barrier",
    };
    TOW_ASSERT(kind < TOW_SIM_COLLECTIVE_KIND_COUNT);
    return names[kind];
}

static uint64_t log2_ceil(uint64_t count)
{
    uint64_t steps = 0;
    while (((uint64_t)1 << steps) < count)
        steps++;
    return steps;
}

uint64_t tow_sim_model_collective_ns(const tow_sim_model_t *model,
                                     tow_sim_collective_kind_t kind,
                                     uint64_t bytes, uint64_t member_count)
{
    TOW_ASSERT(member_count > 0 && member_count <= TOW_SIM_DEVICE_COUNT_MAX);
    if (member_count == 1) return 0;
    /* Each member sends all but its own part once: ceil((n - 1) / n *
     * bytes). */
    wide_t share =
        ((wide_t)bytes * (member_count - 1) + member_count - 1) / member_count;
    uint64_t once =
        tow_sim_ns_at_rate((uint64_t)share, model->link_bytes_per_second);
    uint64_t whole = tow_sim_ns_at_rate(bytes, model->link_bytes_per_second);
    uint64_t steps =
        clamp_ns((wide_t)log2_ceil(member_count) * model->link_latency_ns);
    switch (kind) {
    case TOW_SIM_ALL_REDUCE:
        return tow_sim_ns_add(tow_sim_ns_add(once, once),
                              tow_sim_ns_add(steps, steps));
    case TOW_SIM_REDUCE_SCATTER:
    case TOW_SIM_ALL_GATHER:
    case TOW_SIM_ALL_TO_ALL: return tow_sim_ns_add(once, steps);
    case TOW_SIM_PERMUTE:
        return tow_sim_ns_add(whole, clamp_ns(model->link_latency_ns));
    case TOW_SIM_BROADCAST: return tow_sim_ns_add(whole, steps);
    case TOW_SIM_BARRIER: return steps;
    case TOW_SIM_COLLECTIVE_KIND_COUNT: break;
    }
    TOW_UNREACHABLE();
}

/* -- The file -------------------------------------------------------------- */

typedef struct property {
    const char *name;
    size_t offset;
    bool may_be_zero;
} property_t;

#define NUMBER(field)                                   \
    {                                                   \
#field, offsetof(tow_sim_model_t, field), false \
    }
#define NUMBER_OR_ZERO(field)                          \
    {                                                  \
#field, offsetof(tow_sim_model_t, field), true \
    }

static const property_t numbers[] = {
    NUMBER(memory_bytes),          NUMBER(memory_bytes_per_second),
    NUMBER(link_bytes_per_second), NUMBER_OR_ZERO(link_latency_ns),
    NUMBER(host_bytes_per_second), NUMBER_OR_ZERO(host_latency_ns),
    NUMBER_OR_ZERO(launch_ns),
};
#define KIND_BIT  (1u << TOW_COUNT_OF(numbers))
#define FLOPS_BIT (1u << (TOW_COUNT_OF(numbers) + 1))
#define FLOPS_KEY "flops_per_second."

/* One line, split. */
typedef struct row {
    piece_t model;
    piece_t property;
    piece_t value;
} row_t;

static bool cut_at_comma(piece_t *line, piece_t *out_piece)
{
    const char *comma = memchr(line->start, ',', line->length);
    if (comma == NULL) return false;
    *out_piece = (piece_t){line->start, (size_t)(comma - line->start)};
    line->length -= out_piece->length + 1;
    line->start = comma + 1;
    return true;
}

/* Quoted, without quotes inside, so that any CSV reader accepts it. */
static bool is_source(piece_t piece)
{
    return piece.length > 2 && piece.start[0] == '"' &&
           memchr(piece.start + 1, '"', piece.length - 1) ==
               piece.start + piece.length - 1;
}

static tow_status_t cut_row(const reader_t *reader, piece_t line,
                            row_t *out_row)
{
    if (!cut_at_comma(&line, &out_row->model) ||
        !cut_at_comma(&line, &out_row->property) ||
        !cut_at_comma(&line, &out_row->value))
        return tow_sim_reader_error(
            reader, "not of the form model,property,value,\"source\"");
    if (!is_source(line))
        return tow_sim_reader_error(
            reader, "each number needs its source, in double quotes");
    if (!tow_sim_piece_is_name(out_row->model, TOW_SIM_MODEL_NAME_MAX))
        return tow_sim_reader_error(
            reader, "a model's name is 1 to %d letters, digits and \"-_./\"",
            TOW_SIM_MODEL_NAME_MAX);
    return TOW_OK;
}

static tow_status_t mark_found(const reader_t *reader, const row_t *row,
                               unsigned bit, unsigned *found)
{
    char shown[TOW_SIM_SHOWN_SIZE];
    if ((*found & bit) != 0)
        return tow_sim_reader_error(reader, "%s is given twice",
                                    tow_sim_piece_show(row->property, shown));
    *found |= bit;
    return TOW_OK;
}

static tow_status_t read_number(const reader_t *reader, const row_t *row,
                                bool may_be_zero, uint64_t *out_number)
{
    char shown[TOW_SIM_SHOWN_SIZE];
    if (!tow_sim_piece_number(row->value, out_number) ||
        (*out_number == 0 && !may_be_zero))
        return tow_sim_reader_error(
            reader, "\"%s\" is not a whole number above %s",
            tow_sim_piece_show(row->value, shown), may_be_zero ? "-1" : "0");
    return TOW_OK;
}

static tow_status_t read_kind(const reader_t *reader, const row_t *row,
                              tow_sim_model_t *model)
{
    char shown[TOW_SIM_SHOWN_SIZE];
    if (row->value.length == 0 || row->value.length >= sizeof(model->kind) - 4)
        return tow_sim_reader_error(reader, "a kind has 1 to %zu bytes",
                                    sizeof(model->kind) - 5);
    snprintf(model->kind, sizeof(model->kind), "%s",
             tow_sim_piece_show(row->value, shown));
    return TOW_OK;
}

static tow_status_t read_flops(const reader_t *reader, const row_t *row,
                               tow_sim_model_t *model)
{
    char type_name[TOW_SIM_SHOWN_SIZE];
    piece_t rest = {row->property.start + strlen(FLOPS_KEY),
                    row->property.length - strlen(FLOPS_KEY)};
    tow_type_t type = tow_type_parse(tow_sim_piece_show(rest, type_name));
    if (type == TOW_TYPE_INVALID || type >= TOW_SIM_MODEL_TYPE_COUNT)
        return tow_sim_reader_error(reader, "\"%s\" is no element type",
                                    type_name);
    if (model->flops_per_second[type] != 0)
        return tow_sim_reader_error(reader, "the rate of %s is given twice",
                                    type_name);
    return read_number(reader, row, false, &model->flops_per_second[type]);
}

static tow_status_t read_property(const reader_t *reader, const row_t *row,
                                  tow_sim_model_t *model, unsigned *found)
{
    char shown[TOW_SIM_SHOWN_SIZE];
    if (tow_sim_piece_is(row->property, "kind")) {
        TOW_RETURN_IF_ERROR(mark_found(reader, row, KIND_BIT, found));
        return read_kind(reader, row, model);
    }
    if (row->property.length > strlen(FLOPS_KEY) &&
        memcmp(row->property.start, FLOPS_KEY, strlen(FLOPS_KEY)) == 0) {
        *found |= FLOPS_BIT;
        return read_flops(reader, row, model);
    }
    for (unsigned i = 0; i < TOW_COUNT_OF(numbers); i++) {
        if (!tow_sim_piece_is(row->property, numbers[i].name)) continue;
        TOW_RETURN_IF_ERROR(mark_found(reader, row, 1u << i, found));
        uint64_t *number =
            (uint64_t *)(void *)((char *)model + numbers[i].offset);
        return read_number(reader, row, numbers[i].may_be_zero, number);
    }
    return tow_sim_reader_error(reader, "no property is called \"%s\"",
                                tow_sim_piece_show(row->property, shown));
}

static tow_status_t check_whole(const reader_t *reader,
                                const tow_sim_model_t *model, unsigned found)
{
    const char *missing = NULL;
    for (unsigned i = 0; i < TOW_COUNT_OF(numbers); i++)
        if ((found & (1u << i)) == 0) missing = numbers[i].name;
    if ((found & FLOPS_BIT) == 0) missing = FLOPS_KEY "TYPE";
    if ((found & KIND_BIT) == 0) missing = "kind";
    if (missing == NULL) return TOW_OK;
    return tow_sim_reader_error(reader, "model %s ends here and has no %s",
                                model->name, missing);
}

/* Reads one model after the other. */
typedef struct model_reader {
    reader_t reader;
    row_t row; /* the first of the next model, if there is one */
    bool has_row;
} model_reader_t;

static tow_status_t next_row(model_reader_t *models)
{
    piece_t line;
    models->has_row = tow_sim_reader_line(&models->reader, &line);
    if (!models->has_row) return TOW_OK;
    return cut_row(&models->reader, line, &models->row);
}

static tow_status_t open_models(model_reader_t *models, const char *text,
                                size_t size, const char *what)
{
    piece_t line = {text, 0};
    models->reader = (reader_t){.at = text, .end = text + size, .what = what};
    if (!tow_sim_reader_line(&models->reader, &line) ||
        !tow_sim_piece_is(line, "model,property,value,source"))
        return tow_sim_reader_error(
            &models->reader,
            "the first line must be \"model,property,value,source\"");
    return next_row(models);
}

static bool same_piece(piece_t piece, const char *text)
{
    return tow_sim_piece_is(piece, text);
}

static tow_status_t next_model(model_reader_t *models,
                               tow_sim_model_t *out_model)
{
    unsigned found = 0;
    *out_model = (tow_sim_model_t){0};
    memcpy(out_model->name, models->row.model.start, models->row.model.length);
    while (models->has_row && same_piece(models->row.model, out_model->name)) {
        TOW_RETURN_IF_ERROR(
            read_property(&models->reader, &models->row, out_model, &found));
        TOW_RETURN_IF_ERROR(next_row(models));
    }
    return check_whole(&models->reader, out_model, found);
}

static void add_name(char *names, size_t size, const char *name)
{
    size_t length = strlen(names);
    snprintf(names + length, size - length, "%s%s", length > 0 ? ", " : "",
             name);
}

tow_status_t tow_sim_model_parse(const char *text, size_t size,
                                 const char *what, const char *name,
                                 tow_sim_model_t *out_model)
{
    char names[512] = "";
    bool found = false;
    model_reader_t models;
    TOW_RETURN_IF_ERROR(open_models(&models, text, size, what));
    while (models.has_row) {
        tow_sim_model_t model;
        TOW_RETURN_IF_ERROR(next_model(&models, &model));
        add_name(names, sizeof(names), model.name);
        if (strcmp(model.name, name) != 0) continue;
        if (found)
            return tow_sim_reader_error(
                &models.reader, "the lines of model %s are not together", name);
        found = true;
        *out_model = model;
    }
    if (found) return TOW_OK;
    return TOW_ERROR(TOW_NOT_FOUND, "%s has no device model \"%s\"; it has: %s",
                     what, name, names);
}

tow_status_t tow_sim_model_find(const char *name, tow_sim_model_t *out_model)
{
    return tow_sim_model_parse(tow_sim_models_csv, strlen(tow_sim_models_csv),
                               "models.csv", name, out_model);
}

bool tow_sim_model_name(size_t index, char out_name[TOW_SIM_MODEL_NAME_MAX + 1])
{
    model_reader_t models;
    tow_sim_model_t model;
    tow_status_t status = open_models(&models, tow_sim_models_csv,
                                      strlen(tow_sim_models_csv), "models.csv");
    for (size_t i = 0; status == TOW_OK && models.has_row; i++) {
        status = next_model(&models, &model);
        if (status != TOW_OK || i < index) continue;
        memcpy(out_name, model.name, sizeof(model.name));
        return true;
    }
    TOW_ASSERT(status == TOW_OK); /* It is our own file. */
    return false;
}

static tow_status_t read_file(const char *path, char **out_text,
                              size_t *out_size)
{
    FILE *file = fopen(path, "rbe");
    if (file == NULL) return TOW_ERRNO(errno, "opening device models %s", path);
    char *text = tow_malloc(TOW_SIM_MODEL_FILE_BYTES_MAX + 1);
    tow_status_t status = TOW_OK;
    size_t size = 0;
    if (text == NULL)
        status = tow_status_bare(TOW_RESOURCE_EXHAUSTED);
    else
        size = fread(text, 1, TOW_SIM_MODEL_FILE_BYTES_MAX + 1, file);
    if (status == TOW_OK && ferror(file))
        status = TOW_ERRNO(errno, "reading device models %s", path);
    else if (size > TOW_SIM_MODEL_FILE_BYTES_MAX)
        status = TOW_ERROR(TOW_INVALID_ARGUMENT,
                           "device models %s: more than %u bytes", path,
                           TOW_SIM_MODEL_FILE_BYTES_MAX);
    (void)fclose(file);
    if (status != TOW_OK) {
        tow_free(text);
        return status;
    }
    *out_text = text;
    *out_size = size;
    return TOW_OK;
}

tow_status_t tow_sim_model_load(const char *path, const char *name,
                                tow_sim_model_t *out_model)
{
    char *text = NULL;
    size_t size = 0;
    TOW_RETURN_IF_ERROR(read_file(path, &text, &size));
    tow_status_t status =
        tow_sim_model_parse(text, size, path, name, out_model);
    tow_free(text);
    return status;
}
