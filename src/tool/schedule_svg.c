/* A timeline as an SVG picture: a row of boxes per device, its memory below, a
 * time axis, a legend. */
#include <inttypes.h>
#include <string.h>

#include "tool/schedule_drawing.h"

#define MARGIN          24
#define LABEL_WIDTH     92
#define HEADER_HEIGHT   66
#define ROW_HEIGHT      30
#define STRIP_HEIGHT    5 /* all-reduces, below the boxes */
#define MEMORY_HEIGHT   22
#define ROW_GAP         10
#define AXIS_HEIGHT     30
#define LEGEND_HEIGHT   30
#define PLOT_WIDTH_MIN  680
#define PLOT_WIDTH_MAX  2400
#define ACTION_WIDTH    26 /* of an action of mean length */
#define DIGIT_WIDTH     7
#define TICK_COUNT      8
#define TRANSFERS_SHOWN 4000
#define MEMORY_FILL     "#cfd6e0"

typedef struct look {
    const char *fill;
    const char *later_fill; /* of the other stages of a device */
    const char *text;
    const char *later_text;
    const char *meaning;
} look_t;

static const look_t looks[TOW_PLAN_ACTION_KIND_COUNT] = {
    [TOW_PLAN_FORWARD] = {"#3b6fb5", "#a9c4e6", "#ffffff", "#1d2939",
                          "forward"},
    [TOW_PLAN_BACKWARD] = {"#3f8f5b", "#aed7bb", "#ffffff", "#1d2939",
                           "backward"},
    [TOW_PLAN_INPUT_GRAD] = {"#2a8c8c", "#a3d5d3", "#ffffff", "#1d2939",
                             "input gradient"},
    [TOW_PLAN_WEIGHT_GRAD] = {"#8cb04c", "#d5e5b3", "#1d2939", "#1d2939",
                              "weight gradient"},
    [TOW_PLAN_RECOMPUTE] = {"#8a63b0", "#d3c1e5", "#ffffff", "#1d2939",
                            "recompute"},
    [TOW_PLAN_ALL_REDUCE] = {"#d4574e", "#d4574e", "#ffffff", "#ffffff",
                             "all-reduce"},
    [TOW_PLAN_UPDATE] = {"#e0a526", "#f3d995", "#1d2939", "#1d2939", "update"},
};

typedef struct picture {
    const tow_drawing_t *drawing;
    FILE *out;
    double plot_width;
    double row_pitch;
    uint64_t bytes_peak; /* of all devices: the scale of memory */
    bool has_strips;
} picture_t;

static double x_of(const picture_t *p, int64_t time_ns)
{
    const int64_t step_ns = p->drawing->timeline->step_ns;
    const double share = step_ns == 0 ? 0 : (double)time_ns / (double)step_ns;
    return MARGIN + LABEL_WIDTH + p->plot_width * share;
}

static double y_of(const picture_t *p, uint32_t device)
{
    return MARGIN + HEADER_HEIGHT + p->row_pitch * device;
}

static void print_escaped(const char *text, FILE *out)
{
    for (; *text != '\0'; text++)
        switch (*text) {
        case '&': fputs("&amp;", out); break;
        case '<': fputs("&lt;", out); break;
        case '>': fputs("&gt;", out); break;
        default:
            /* A path may have bytes that no XML may have. */
            fputc((unsigned char)*text >= ' ' && (unsigned char)*text < 0x7f
                      ? *text
                      : '?',
                  out);
        }
}

/* -- Rows ------------------------------------------------------------------ */

static uint32_t digits_of(uint32_t number)
{
    uint32_t digits = 1;
    for (; number >= 10; number /= 10)
        digits++;
    return digits;
}

static void print_number(const picture_t *p, const look_t *look, bool is_later,
                         uint32_t number, double x, double y, double width)
{
    if (width < digits_of(number) * DIGIT_WIDTH + 4) return;
    fprintf(p->out,
            "<text x=\"%.2f\" y=\"%.2f\" fill=\"%s\" "
            "text-anchor=\"middle\">%" PRIu32 "</text>\n",
            x + width / 2, y + ROW_HEIGHT / 2.0 + 4.2,
            is_later ? look->later_text : look->text, number);
}

static void print_box(const picture_t *p, uint32_t device,
                      tow_plan_action_t action,
                      const tow_plan_interval_t *interval)
{
    const look_t *look = &looks[action.kind];
    const bool is_strip = action.kind == TOW_PLAN_ALL_REDUCE;
    const bool is_later = tow_drawing_chunk(p->drawing, action.stage) > 0;
    const double x = x_of(p, interval->start_ns);
    const double width = x_of(p, interval->end_ns) - x;
    const double y = y_of(p, device) + (is_strip ? ROW_HEIGHT + 1 : 0);
    const double gap = width > 3 ? 1 : 0;
    char name[TOW_PLAN_ACTION_TEXT_MAX];
    char start[TOW_DRAWING_TEXT_MAX];
    char end[TOW_DRAWING_TEXT_MAX];
    if (look->fill == NULL || width <= 0) return;
    fprintf(p->out,
            "<rect x=\"%.2f\" y=\"%.2f\" width=\"%.2f\" height=\"%d\" "
            "rx=\"%.1f\" fill=\"%s\"><title>%s on device %" PRIu32
            ": %s to %s</title></rect>\n",
            x, y, width - gap, is_strip ? STRIP_HEIGHT - 1 : ROW_HEIGHT,
            width > 8 ? 2.5 : 0.0, is_later ? look->later_fill : look->fill,
            tow_plan_action_format(action, name), device,
            tow_drawing_time(interval->start_ns, start),
            tow_drawing_time(interval->end_ns, end));
    if (tow_plan_action_has_microbatch(action.kind))
        print_number(p, look, is_later, action.microbatch, x, y, width - gap);
}

/* The memory of a device as an area, on the scale of the largest. */
static void print_memory(const picture_t *p, uint32_t device)
{
    const tow_plan_device_times_t *times =
        &p->drawing->timeline->devices[device];
    const double base = y_of(p, device) + ROW_HEIGHT +
                        (p->has_strips ? STRIP_HEIGHT : 0) + 3 + MEMORY_HEIGHT;
    double y = base;
    char peak[TOW_DRAWING_TEXT_MAX];
    if (!p->drawing->has_memory || p->bytes_peak == 0) return;
    fprintf(p->out, "<path fill=\"" MEMORY_FILL "\" d=\"M%.2f %.2f", x_of(p, 0),
            base);
    for (size_t i = 0; i < times->memory.count; i++) {
        const tow_plan_memory_sample_t *it = &times->memory.items[i];
        const double x = x_of(p, it->time_ns);
        fprintf(p->out, "L%.2f %.2f", x, y);
        y = base - MEMORY_HEIGHT * (double)it->bytes / (double)p->bytes_peak;
        fprintf(p->out, "L%.2f %.2f", x, y);
    }
    const double right = x_of(p, p->drawing->timeline->step_ns);
    fprintf(p->out, "L%.2f %.2fL%.2f %.2fZ\"/>\n", right, y, right, base);
    fprintf(p->out,
            "<text class=\"small\" x=\"%d\" y=\"%.2f\" "
            "text-anchor=\"end\">%s</text>\n",
            MARGIN + LABEL_WIDTH - 10, base - 5,
            tow_drawing_bytes(times->bytes_peak, peak));
}

static void print_row(const picture_t *p, uint32_t device)
{
    const tow_plan_actions_t *list = &p->drawing->schedule->devices[device];
    const tow_plan_device_times_t *times =
        &p->drawing->timeline->devices[device];
    fprintf(p->out,
            "<text class=\"label\" x=\"%d\" y=\"%.2f\" "
            "text-anchor=\"end\">device %" PRIu32 "</text>\n"
            "<rect x=\"%.2f\" y=\"%.2f\" width=\"%.2f\" height=\"%d\" "
            "rx=\"2.5\" fill=\"#eef1f5\"/>\n",
            MARGIN + LABEL_WIDTH - 10, y_of(p, device) + ROW_HEIGHT / 2.0 + 4.2,
            device, x_of(p, 0), y_of(p, device), p->plot_width, ROW_HEIGHT);
    for (size_t i = 0; i < list->count; i++)
        print_box(p, device, list->items[i], &times->intervals[i]);
    print_memory(p, device);
}

/* Lines from sender to receiver, where values take time. */
static void print_transfers(const picture_t *p)
{
    const tow_plan_timeline_t *timeline = p->drawing->timeline;
    if (timeline->transfers.count > TRANSFERS_SHOWN) return;
    fprintf(p->out,
            "<g stroke=\"#475467\" stroke-opacity=\"0.45\" fill=\"none\">\n");
    for (size_t i = 0; i < timeline->transfers.count; i++) {
        const tow_plan_transfer_t *it = &timeline->transfers.items[i];
        const bool goes_down = it->to_device > it->from_device;
        if (it->arrival_ns == it->link.start_ns) continue;
        fprintf(p->out, "<path d=\"M%.2f %.2fL%.2f %.2f\"/>\n",
                x_of(p, it->link.start_ns),
                y_of(p, it->from_device) + (goes_down ? ROW_HEIGHT : 0),
                x_of(p, it->arrival_ns),
                y_of(p, it->to_device) + (goes_down ? 0 : ROW_HEIGHT));
    }
    fprintf(p->out, "</g>\n");
}

/* -- Frame ----------------------------------------------------------------- */

/* 1, 2 or 5 times a power of ten, at most TICK_COUNT of them in a step. */
static int64_t tick_of(int64_t step_ns)
{
    int64_t tick = 1;
    for (;;) {
        static const int64_t factors[] = {1, 2, 5};
        for (size_t i = 0; i < TOW_COUNT_OF(factors); i++)
            if (step_ns / (tick * factors[i]) <= TICK_COUNT)
                return tick * factors[i];
        tick *= 10;
    }
}

static void print_axis(const picture_t *p, double y)
{
    const int64_t step_ns = p->drawing->timeline->step_ns;
    const int64_t tick = tick_of(step_ns);
    char text[TOW_DRAWING_TEXT_MAX];
    fprintf(p->out,
            "<path d=\"M%.2f %.2fH%.2f\" stroke=\"#98a2b3\" fill=\"none\"/>\n",
            x_of(p, 0), y, x_of(p, step_ns));
    for (int64_t time_ns = 0; time_ns <= step_ns; time_ns += tick)
        fprintf(p->out,
                "<path d=\"M%.2f %.2fv5\" stroke=\"#98a2b3\"/>"
                "<text class=\"small\" x=\"%.2f\" y=\"%.2f\" "
                "text-anchor=\"middle\">%s</text>\n",
                x_of(p, time_ns), y, x_of(p, time_ns), y + 18,
                tow_drawing_time(time_ns, text));
}

/* Returns where the next entry begins. */
static double print_entry(const picture_t *p, double x, double y,
                          const char *fill, const char *meaning)
{
    fprintf(p->out,
            "<rect x=\"%.2f\" y=\"%.2f\" width=\"14\" height=\"14\" "
            "rx=\"2.5\" fill=\"%s\"/>"
            "<text class=\"label\" x=\"%.2f\" y=\"%.2f\">%s</text>\n",
            x, y, fill, x + 20, y + 11.5, meaning);
    return x + 20 + 6.6 * (double)strlen(meaning) + 22;
}

static void print_legend(const picture_t *p, double y)
{
    const tow_plan_schedule_t *schedule = p->drawing->schedule;
    double x = MARGIN + LABEL_WIDTH;
    for (int kind = 0; kind < TOW_PLAN_ACTION_KIND_COUNT; kind++)
        if (looks[kind].fill != NULL &&
            tow_plan_schedule_has(schedule, (tow_plan_action_kind_t)kind))
            x = print_entry(p, x, y, looks[kind].fill, looks[kind].meaning);
    if (schedule->shape.stage_count > schedule->shape.device_count)
        x = print_entry(p, x, y, looks[TOW_PLAN_FORWARD].later_fill,
                        "lighter: later stages of a device");
    if (p->drawing->has_memory)
        print_entry(p, x, y, MEMORY_FILL, "memory, with its peak");
}

static void print_header(const picture_t *p, double height)
{
    const double width = 2 * MARGIN + LABEL_WIDTH + p->plot_width;
    char summary[512];
    tow_drawing_summary(p->drawing, summary, sizeof(summary));
    const size_t name_size = strlen(p->drawing->name);
    fprintf(p->out,
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%.0f\" "
            "height=\"%.0f\" viewBox=\"0 0 %.0f %.0f\" "
            "font-family=\"Inter, Helvetica, Arial, 'DejaVu Sans', "
            "sans-serif\" font-size=\"12\">\n"
            "<style>.label{fill:#344054}.small{fill:#667085;font-size:11px}"
            "</style>\n"
            "<rect width=\"100%%\" height=\"100%%\" fill=\"#ffffff\"/>\n",
            width, height, width, height);
    fprintf(p->out,
            "<text x=\"%d\" y=\"%d\" font-size=\"18\" font-weight=\"600\" "
            "fill=\"#101828\">",
            MARGIN, MARGIN + 14);
    print_escaped(p->drawing->name, p->out);
    fprintf(p->out, "</text>\n<text class=\"label\" x=\"%d\" y=\"%d\">", MARGIN,
            MARGIN + 38);
    /* The rest of "NAME: ...". */
    if (strlen(summary) > name_size + 2)
        print_escaped(summary + name_size + 2, p->out);
    fprintf(p->out, "</text>\n");
}

static picture_t picture_of(const tow_drawing_t *drawing, FILE *out)
{
    picture_t p = {.drawing = drawing, .out = out};
    const tow_plan_timeline_t *timeline = drawing->timeline;
    size_t most = 0;
    for (uint32_t d = 0; d < timeline->device_count; d++) {
        if (drawing->schedule->devices[d].count > most)
            most = drawing->schedule->devices[d].count;
        if (timeline->devices[d].bytes_peak > p.bytes_peak)
            p.bytes_peak = timeline->devices[d].bytes_peak;
    }
    p.has_strips =
        tow_plan_schedule_has(drawing->schedule, TOW_PLAN_ALL_REDUCE);
    p.plot_width = (double)most * ACTION_WIDTH;
    if (p.plot_width < PLOT_WIDTH_MIN) p.plot_width = PLOT_WIDTH_MIN;
    if (p.plot_width > PLOT_WIDTH_MAX) p.plot_width = PLOT_WIDTH_MAX;
    p.row_pitch = ROW_HEIGHT + ROW_GAP + (p.has_strips ? STRIP_HEIGHT : 0) +
                  (drawing->has_memory ? MEMORY_HEIGHT + 3 : 0);
    return p;
}

void tow_drawing_print_svg(const tow_drawing_t *drawing, FILE *out)
{
    const picture_t p = picture_of(drawing, out);
    const uint32_t devices = drawing->timeline->device_count;
    const double axis = y_of(&p, devices) + 2;
    print_header(&p, axis + AXIS_HEIGHT + LEGEND_HEIGHT + MARGIN);
    for (uint32_t d = 0; d < devices; d++)
        print_row(&p, d);
    print_transfers(&p);
    print_axis(&p, axis);
    print_legend(&p, axis + AXIS_HEIGHT + 8);
    fprintf(out, "</svg>\n");
}
