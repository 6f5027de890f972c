#include "plan/schedule/csv.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/assert.h"

/* -- Parsing --------------------------------------------------------------- */

typedef struct cell {
    const char *text; /* not ended by a zero byte */
    size_t size;
    uint32_t row;    /* from 1 */
    uint32_t column; /* from 1 */
} cell_t;

typedef TOW_VEC(tow_plan_actions_t) rows_t;

#define CELL_SHOWN_MAX 24

static tow_status_t refuse(const cell_t *cell, const char *reason)
{
    char shown[CELL_SHOWN_MAX + 4];
    const size_t size =
        cell->size < CELL_SHOWN_MAX ? cell->size : CELL_SHOWN_MAX;
    for (size_t i = 0; i < size; i++)
        shown[i] =
            cell->text[i] >= ' ' && cell->text[i] <= '~' ? cell->text[i] : '?';
    snprintf(shown + size, sizeof(shown) - size, "%s",
             cell->size > size ? "..." : "");
    return TOW_ERROR(TOW_INVALID_ARGUMENT,
                     "row %" PRIu32 ", column %" PRIu32 ": '%s': %s", cell->row,
                     cell->column, shown, reason);
}

/* Digits at *at; false without one, or above `max`. */
static bool parse_number(const cell_t *cell, size_t *at, uint32_t max,
                         uint32_t *out_number)
{
    const size_t first = *at;
    uint64_t number = 0;
    while (*at < cell->size && cell->text[*at] >= '0' &&
           cell->text[*at] <= '9') {
        number = number * 10 + (uint64_t)(cell->text[(*at)++] - '0');
        if (number > max) return false;
    }
    *out_number = (uint32_t)number;
    return *at > first;
}

static bool parse_kind(const cell_t *cell, size_t *at,
                       tow_plan_action_kind_t *out_kind)
{
    const size_t first = *at;
    while (*at < cell->size && (cell->text[*at] < '0' || cell->text[*at] > '9'))
        (*at)++;
    for (int kind = 0; kind < TOW_PLAN_ACTION_KIND_COUNT; kind++) {
        const char *name = tow_plan_action_kind_name(kind);
        if (strlen(name) == *at - first &&
            memcmp(name, cell->text + first, *at - first) == 0) {
            *out_kind = (tow_plan_action_kind_t)kind;
            return true;
        }
    }
    return false;
}

static tow_status_t parse_cell(const cell_t *cell,
                               tow_plan_action_t *out_action)
{
    tow_plan_action_t action = {.microbatch = TOW_PLAN_NONE};
    size_t at = 0;
    if (!parse_number(cell, &at, TOW_PLAN_STAGE_COUNT_MAX - 1, &action.stage))
        return refuse(cell, "an action begins with the number of its stage, "
                            "0 to 4095, as in 2F0");
    if (!parse_kind(cell, &at, &action.kind))
        return refuse(cell, "the actions are F, B, I, W, R, SEND_F and SEND_B "
                            "with a microbatch, AR and U without");
    if (tow_plan_action_has_microbatch(action.kind) &&
        !parse_number(cell, &at, TOW_PLAN_MICROBATCH_MAX - 1,
                      &action.microbatch))
        return refuse(cell, "this action ends with the number of its "
                            "microbatch, 0 to 65535, as in 2F0");
    if (at != cell->size) return refuse(cell, "there is text after the action");
    *out_action = action;
    return TOW_OK;
}

static bool is_blank(char character)
{
    return character == ' ' || character == '\t' || character == '\r';
}

static void trim(cell_t *cell)
{
    while (cell->size > 0 && is_blank(cell->text[0])) {
        cell->text++;
        cell->size--;
    }
    while (cell->size > 0 && is_blank(cell->text[cell->size - 1]))
        cell->size--;
}

/* The length of text up to `end_mark`, or to its end. */
static size_t length_to(const char *text, size_t size, char end_mark)
{
    const char *end = memchr(text, end_mark, size);
    return end == NULL ? size : (size_t)(end - text);
}

static tow_status_t parse_row(const char *text, size_t size, uint32_t row,
                              tow_plan_actions_t *actions)
{
    for (uint32_t column = 1;; column++) {
        const size_t length = length_to(text, size, ',');
        cell_t cell = {text, length, row, column};
        tow_plan_action_t action;
        trim(&cell);
        if (cell.size > 0) {
            TOW_RETURN_IF_ERROR(parse_cell(&cell, &action));
            if (!tow_vec_push(actions, action))
                return tow_status_bare(TOW_RESOURCE_EXHAUSTED);
        }
        if (length == size) return TOW_OK;
        text += length + 1;
        size -= length + 1;
    }
}

static tow_status_t parse_rows(const char *text, size_t size, rows_t *rows)
{
    while (size > 0) {
        const size_t length = length_to(text, size, '\n');
        if (rows->count == TOW_PLAN_DEVICE_COUNT_MAX)
            return TOW_ERROR(TOW_INVALID_ARGUMENT,
                             "more than %d rows: one row is one device",
                             TOW_PLAN_DEVICE_COUNT_MAX);
        if (!tow_vec_push(rows, ((tow_plan_actions_t){0})))
            return tow_status_bare(TOW_RESOURCE_EXHAUSTED);
        TOW_RETURN_IF_ERROR(parse_row(text, length, (uint32_t)rows->count,
                                      &rows->items[rows->count - 1]));
        if (length == size) break;
        text += length + 1;
        size -= length + 1;
    }
    return TOW_OK;
}

/* Blank lines at the end are no devices; elsewhere they are a mistake. */
static tow_status_t drop_blank_rows(rows_t *rows)
{
    while (rows->count > 0 && rows->items[rows->count - 1].count == 0)
        rows->count--; /* An empty vector has no memory. */
    if (rows->count == 0)
        return TOW_ERROR(TOW_INVALID_ARGUMENT, "the schedule has no action");
    for (size_t i = 0; i < rows->count; i++)
        if (rows->items[i].count == 0)
            return TOW_ERROR(TOW_INVALID_ARGUMENT,
                             "row %zu has no action: each row is a device",
                             i + 1);
    return TOW_OK;
}

static tow_plan_shape_t shape_of(const rows_t *rows)
{
    tow_plan_shape_t shape = {(uint32_t)rows->count, 1, 1};
    for (size_t row = 0; row < rows->count; row++)
        for (size_t i = 0; i < rows->items[row].count; i++) {
            const tow_plan_action_t *it = &rows->items[row].items[i];
            if (it->stage >= shape.stage_count)
                shape.stage_count = it->stage + 1;
            if (it->microbatch != TOW_PLAN_NONE &&
                it->microbatch >= shape.microbatch_count)
                shape.microbatch_count = it->microbatch + 1;
        }
    return shape;
}

/* Moves the rows into a schedule. Later rows are visited first, so that the
 * first row that names a stage is its device. */
static tow_status_t take_rows(rows_t *rows, tow_plan_schedule_t *schedule)
{
    const tow_plan_shape_t shape = shape_of(rows);
    TOW_RETURN_IF_ERROR(tow_plan_schedule_init(schedule, &shape));
    for (uint32_t d = shape.device_count; d-- > 0;) {
        for (size_t i = 0; i < rows->items[d].count; i++)
            schedule->stage_devices[rows->items[d].items[i].stage] = d;
        schedule->devices[d] = rows->items[d];
        rows->items[d] = (tow_plan_actions_t){0};
    }
    return TOW_OK;
}

tow_status_t tow_plan_csv_parse(const char *text, size_t size,
                                tow_plan_schedule_t *out_schedule)
{
    rows_t rows = {0};
    *out_schedule = (tow_plan_schedule_t){0};
    if (size > TOW_PLAN_CSV_BYTES_MAX)
        return TOW_ERROR(TOW_INVALID_ARGUMENT, "%zu bytes; the limit is %zu",
                         size, TOW_PLAN_CSV_BYTES_MAX);
    tow_status_t status = parse_rows(text, size, &rows);
    if (status == TOW_OK) status = drop_blank_rows(&rows);
    if (status == TOW_OK) status = take_rows(&rows, out_schedule);
    for (size_t i = 0; i < rows.count; i++)
        tow_vec_deinit(&rows.items[i]);
    tow_vec_deinit(&rows);
    return status;
}

/* -- Printing -------------------------------------------------------------- */

typedef TOW_VEC(char) text_t;

static bool append(text_t *text, const char *more)
{
    const size_t size = strlen(more);
    if (!tow_vec_reserve(text, text->count + size + 1)) return false;
    memcpy(text->items + text->count, more, size + 1);
    text->count += size;
    return true;
}

static bool print_row(const tow_plan_actions_t *actions, text_t *text)
{
    char cell[TOW_PLAN_ACTION_TEXT_MAX];
    for (size_t i = 0; i < actions->count; i++)
        if ((i > 0 && !append(text, ",")) ||
            !append(text, tow_plan_action_format(actions->items[i], cell)))
            return false;
    return append(text, "\n");
}

tow_status_t tow_plan_csv_print(const tow_plan_schedule_t *schedule,
                                char **out_text, size_t *out_size)
{
    text_t text = {0};
    bool ok = true;
    for (uint32_t d = 0; ok && d < schedule->shape.device_count; d++)
        ok = print_row(&schedule->devices[d], &text);
    if (!ok) {
        tow_vec_deinit(&text);
        return tow_status_bare(TOW_RESOURCE_EXHAUSTED);
    }
    *out_text = text.items;
    *out_size = text.count;
    return TOW_OK;
}
