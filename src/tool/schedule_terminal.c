/* A timeline in a terminal: one line per device, one colour or letter per kind
 * of action, a dot for idle time. */
#include <inttypes.h>
#include <string.h>

#include "tool/schedule_drawing.h"

#define LABEL_WIDTH  6 /* "  12 |" */
#define COLUMNS_MAX  1000
#define ACTION_WIDTH 4 /* of the shortest action, where there is room */
#define NARROWEST    20

/* SGR parameters: of the first stage of a device, and of its others. */
static const char *const colours[TOW_PLAN_ACTION_KIND_COUNT][2] = {
    [TOW_PLAN_FORWARD] = {"97;44", "30;104"},
    [TOW_PLAN_BACKWARD] = {"97;42", "30;102"},
    [TOW_PLAN_INPUT_GRAD] = {"97;46", "30;106"},
    [TOW_PLAN_WEIGHT_GRAD] = {"30;42", "30;102"},
    [TOW_PLAN_RECOMPUTE] = {"97;45", "30;105"},
    [TOW_PLAN_UPDATE] = {"30;43", "30;103"},
};

/* One column of a line. */
typedef struct column {
    char character;
    const char *colour; /* NULL: none */
} column_t;

static int64_t shortest_action(const tow_drawing_t *drawing)
{
    int64_t shortest_ns = INT64_MAX;
    for (uint32_t d = 0; d < drawing->timeline->device_count; d++)
        for (size_t i = 0; i < drawing->schedule->devices[d].count; i++) {
            const tow_plan_interval_t *it =
                &drawing->timeline->devices[d].intervals[i];
            const int64_t time_ns = it->end_ns - it->start_ns;
            if (time_ns > 0 && time_ns < shortest_ns) shortest_ns = time_ns;
        }
    return shortest_ns;
}

/* The width of "F" and the largest microbatch. */
static uint32_t label_width(const tow_drawing_t *drawing)
{
    uint32_t width = 2;
    for (uint32_t m = drawing->schedule->shape.microbatch_count - 1; m >= 10;
         m /= 10)
        width++;
    return width;
}

/* No wider than the terminal, and than the shortest action needs. Where there
 * is room for all labels, actions of one length get the same width. */
static uint32_t columns_of(const tow_drawing_t *drawing, uint32_t width)
{
    const int64_t step_ns = drawing->timeline->step_ns;
    if (step_ns == 0) return 0;
    uint32_t columns =
        width > LABEL_WIDTH + NARROWEST ? width - LABEL_WIDTH : NARROWEST;
    if (columns > COLUMNS_MAX) columns = COLUMNS_MAX;
    const int64_t shortest_ns = shortest_action(drawing);
    const __int128 wanted = (__int128)step_ns * ACTION_WIDTH / shortest_ns;
    if (wanted <= columns) return (uint32_t)wanted;
    const int64_t each = columns * (__int128)shortest_ns / step_ns;
    if (each < label_width(drawing)) return columns;
    return (uint32_t)(each * (__int128)step_ns / shortest_ns);
}

/* The first column whose middle is not before `time_ns`. */
static uint32_t column_at(int64_t time_ns, int64_t step_ns, uint32_t columns)
{
    const __int128 twice = (__int128)2 * time_ns * columns;
    return (uint32_t)((twice + step_ns - 1) / ((__int128)2 * step_ns));
}

/* "F12" where it fits, else "F", and then the small letter. */
static void fill(column_t *line, uint32_t first, uint32_t end,
                 tow_plan_action_t action, const char *colour)
{
    const char *kind = tow_plan_action_kind_name(action.kind);
    char label[TOW_PLAN_ACTION_TEXT_MAX];
    if (tow_plan_action_has_microbatch(action.kind))
        snprintf(label, sizeof(label), "%s%" PRIu32, kind, action.microbatch);
    else
        snprintf(label, sizeof(label), "%s", kind);
    if (strlen(label) > end - first) label[1] = '\0';
    const uint32_t size = (uint32_t)strlen(label);
    for (uint32_t i = first; i < end; i++)
        line[i] = (column_t){i - first < size ? label[i - first]
                                              : (char)(kind[0] + 'a' - 'A'),
                             colour};
}

static void fill_line(const tow_drawing_t *drawing, uint32_t device,
                      column_t *line, uint32_t columns)
{
    const tow_plan_timeline_t *timeline = drawing->timeline;
    const tow_plan_actions_t *list = &drawing->schedule->devices[device];
    for (uint32_t i = 0; i < columns; i++)
        line[i] = (column_t){'.', NULL};
    for (size_t i = 0; i < list->count; i++) {
        const tow_plan_action_t action = list->items[i];
        const tow_plan_interval_t *it = &timeline->devices[device].intervals[i];
        const bool is_later = tow_drawing_chunk(drawing, action.stage) > 0;
        if (tow_plan_action_is_asynchronous(action.kind)) continue;
        fill(line, column_at(it->start_ns, timeline->step_ns, columns),
             column_at(it->end_ns, timeline->step_ns, columns), action,
             colours[action.kind][is_later]);
    }
}

static void print_line(const column_t *line, uint32_t columns, bool has_colours,
                       FILE *out)
{
    const char *current = NULL;
    for (uint32_t i = 0; i < columns; i++) {
        const column_t *it = &line[i];
        /* The small letters stand in for the colour. */
        const bool is_fill = it->character >= 'a' && it->character <= 'z';
        if (has_colours && it->colour != current) {
            fprintf(out, "\x1b[0m");
            if (it->colour != NULL) fprintf(out, "\x1b[%sm", it->colour);
            current = it->colour;
        }
        fputc(has_colours && is_fill ? ' ' : it->character, out);
    }
    if (has_colours) fprintf(out, "\x1b[0m");
    fputc('\n', out);
}

static void print_axis(const tow_drawing_t *drawing, uint32_t columns,
                       FILE *out)
{
    char step[TOW_DRAWING_TEXT_MAX];
    tow_drawing_time(drawing->timeline->step_ns, step);
    const int rest = (int)columns - (int)strlen(step) - 1;
    fprintf(out, "%*s0%*s%s\n", LABEL_WIDTH, "", rest > 1 ? rest : 1, "", step);
}

static void print_timeline(const tow_drawing_t *drawing,
                           const tow_drawing_terminal_t *terminal, FILE *out)
{
    column_t line[COLUMNS_MAX];
    const uint32_t columns = columns_of(drawing, terminal->width);
    if (columns == 0) return;
    for (uint32_t d = 0; d < drawing->timeline->device_count; d++) {
        fill_line(drawing, d, line, columns);
        fprintf(out, "%4" PRIu32 " |", d);
        print_line(line, columns, terminal->has_colours, out);
    }
    print_axis(drawing, columns, out);
}

static void print_legend(const tow_drawing_t *drawing,
                         const tow_drawing_terminal_t *terminal, FILE *out)
{
    static const struct {
        tow_plan_action_kind_t kind;
        const char *meaning;
    } entries[] = {
        {TOW_PLAN_FORWARD, "forward"},
        {TOW_PLAN_BACKWARD, "backward"},
        {TOW_PLAN_INPUT_GRAD, "input gradient"},
        {TOW_PLAN_WEIGHT_GRAD, "weight gradient"},
        {TOW_PLAN_RECOMPUTE, "recompute"},
        {TOW_PLAN_UPDATE, "update"},
    };
    const char *separator = "";
    fprintf(out, "%*s", LABEL_WIDTH, "");
    for (size_t i = 0; i < TOW_COUNT_OF(entries); i++) {
        const char *name = tow_plan_action_kind_name(entries[i].kind);
        if (!tow_plan_schedule_has(drawing->schedule, entries[i].kind))
            continue;
        if (terminal->has_colours)
            fprintf(out, "%s\x1b[%sm%s\x1b[0m %s", separator,
                    colours[entries[i].kind][0], name, entries[i].meaning);
        else
            fprintf(out, "%s%s %s", separator, name, entries[i].meaning);
        separator = "  ";
    }
    fprintf(out, "%s. idle\n\n", separator);
}

/* "0, 7": the stages of a device; cut after a few. */
static void list_stages(const tow_drawing_t *drawing, uint32_t device,
                        char *text, size_t capacity)
{
    size_t size = 0;
    text[0] = '\0';
    for (uint32_t s = 0; s < drawing->schedule->shape.stage_count; s++) {
        if (drawing->schedule->stage_devices[s] != device) continue;
        if (size + 16 > capacity) {
            snprintf(text + size, capacity - size, ", ...");
            return;
        }
        size += (size_t)snprintf(text + size, capacity - size, "%s%" PRIu32,
                                 size > 0 ? ", " : "", s);
    }
}

static void print_device(const tow_drawing_t *drawing, uint32_t device,
                         FILE *out)
{
    const tow_plan_device_times_t *it = &drawing->timeline->devices[device];
    char stages[40];
    char busy[TOW_DRAWING_TEXT_MAX];
    char bubble[TOW_DRAWING_TEXT_MAX];
    char share[TOW_DRAWING_TEXT_MAX];
    list_stages(drawing, device, stages, sizeof(stages));
    fprintf(out, "%6" PRIu32 "  %-10s %10s %10s %7s %12" PRIu32, device, stages,
            tow_drawing_time(it->busy_ns, busy),
            tow_drawing_time(it->bubble_ns, bubble),
            tow_drawing_share(tow_drawing_bubble_ppm(drawing, device), share),
            it->activation_count_peak);
    if (tow_plan_schedule_has(drawing->schedule, TOW_PLAN_RECOMPUTE))
        fprintf(out, " %7" PRIu32, it->input_count_peak);
    if (drawing->has_memory) {
        char peak[TOW_DRAWING_TEXT_MAX];
        char mean[TOW_DRAWING_TEXT_MAX];
        fprintf(out, " %11s %11s", tow_drawing_bytes(it->bytes_peak, peak),
                tow_drawing_bytes(it->bytes_mean, mean));
    }
    fputc('\n', out);
}

static void print_table(const tow_drawing_t *drawing, FILE *out)
{
    fprintf(out, "%6s  %-10s %10s %10s %7s %12s", "device", "stages", "busy",
            "bubble", "", "activations");
    if (tow_plan_schedule_has(drawing->schedule, TOW_PLAN_RECOMPUTE))
        fprintf(out, " %7s", "inputs");
    if (drawing->has_memory) fprintf(out, " %11s %11s", "peak memory", "mean");
    fputc('\n', out);
    for (uint32_t d = 0; d < drawing->timeline->device_count; d++)
        print_device(drawing, d, out);
}

void tow_drawing_print(const tow_drawing_t *drawing,
                       const tow_drawing_terminal_t *terminal, FILE *out)
{
    char summary[512];
    tow_drawing_summary(drawing, summary, sizeof(summary));
    print_timeline(drawing, terminal, out);
    print_legend(drawing, terminal, out);
    print_table(drawing, out);
    fprintf(out, "\n%s\n", summary);
}
