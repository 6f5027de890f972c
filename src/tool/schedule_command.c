/* `tow schedule`: makes, checks and simulates a pipeline schedule, and draws
 * it. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "base/alloc.h"
#include "plan/schedule/check.h"
#include "plan/schedule/csv.h"
#include "plan/schedule/generate.h"
#include "tool/command.h"
#include "tool/schedule_costs.h"
#include "tool/schedule_drawing.h"
#include "tool/schedule_program.h"
#include "tool/text_file.h"

#define WIDTH_DEFAULT 100
#define WIDTH_MAX     1000

/* Keys of long options; those of costs follow KEY_COST. */
enum {
    KEY_CHUNKS = 256,
    KEY_WARMUP,
    KEY_IN_FLIGHT,
    KEY_REMAT,
    KEY_SENDS,
    KEY_MEMORY,
    KEY_CSV,
    KEY_PROGRAM,
    KEY_SVG,
    KEY_WIDTH,
    KEY_COST,
};

typedef struct schedule_arguments {
    tow_plan_generate_options_t options;
    bool has_name;
    const char *file; /* of argv; NULL: generated */
    tow_cost_texts_t costs;
    uint64_t bytes_max; /* 0: no limit */
    bool csv;
    bool program;
    bool json;
    const char *svg; /* of argv; "-": standard output */
    uint32_t width;  /* 0: of the terminal */
} schedule_arguments_t;

/* -- Command line ---------------------------------------------------------- */

static void parse_name(schedule_arguments_t *a, const char *text,
                       const struct argp_state *state)
{
    if (a->has_name)
        argp_error(state, "unexpected argument '%s': one schedule per run",
                   text);
    if (!tow_plan_generator_find(text, &a->options.generator))
        argp_error(state,
                   "no schedule is called '%s': gpipe, 1f1b, interleaved, "
                   "zb-h1, zb-h2, zb-v, or --file",
                   text);
    a->has_name = true;
}

static void parse_warmup(schedule_arguments_t *a, const char *text,
                         const struct argp_state *state)
{
    if (strcmp(text, "a") == 0)
        a->options.warmup = TOW_PLAN_WARMUP_A;
    else if (strcmp(text, "b") == 0)
        a->options.warmup = TOW_PLAN_WARMUP_B;
    else
        argp_error(state, "--warmup takes a or b, not '%s'", text);
}

static void check_arguments(const schedule_arguments_t *a,
                            const struct argp_state *state)
{
    if (!a->has_name && a->file == NULL)
        argp_error(state, "name a schedule: gpipe, 1f1b, interleaved, zb-h1, "
                          "zb-h2, zb-v, or --file");
    if (a->has_name && a->file != NULL)
        argp_error(state, "name a schedule or --file, not both");
    if (a->file != NULL && a->options.device_count + a->options.chunk_count +
                                   a->options.microbatch_count >
                               0)
        argp_error(state, "--stages, --microbatches and --chunks follow from "
                          "--file");
    if (a->has_name && a->options.device_count == 0)
        argp_error(state, "--stages is needed: the stages of the pipeline");
    if (a->has_name && a->options.microbatch_count == 0)
        argp_error(state, "--microbatches is needed");
    if (a->csv + a->json + a->program > 1)
        argp_error(state, "one of --csv, --json and --program");
}

static error_t parse(int key, char *argument, struct argp_state *state)
{
    schedule_arguments_t *a = state->input;
    tow_plan_generate_options_t *o = &a->options;
    if (key >= KEY_COST && key < KEY_COST + TOW_COST_OPTION_COUNT) {
        a->costs.texts[key - KEY_COST] = argument;
        return 0;
    }
    switch (key) {
    case 's':
        o->device_count = (uint32_t)tow_command_number(
            state, "stages", argument, 1, TOW_PLAN_DEVICE_COUNT_MAX);
        return 0;
    case 'm':
        o->microbatch_count = (uint32_t)tow_command_number(
            state, "microbatches", argument, 1, TOW_PLAN_MICROBATCH_MAX);
        return 0;
    case KEY_CHUNKS:
        o->chunk_count = (uint32_t)tow_command_number(
            state, "chunks", argument, 1, TOW_PLAN_STAGE_COUNT_MAX);
        return 0;
    case KEY_WARMUP: parse_warmup(a, argument, state); return 0;
    case KEY_IN_FLIGHT:
        o->in_flight_max = (uint32_t)tow_command_number(
            state, "in-flight", argument, 1, TOW_PLAN_MICROBATCH_MAX);
        return 0;
    case KEY_REMAT: o->extras.recompute = true; return 0;
    case KEY_SENDS: o->extras.sends = true; return 0;
    case KEY_MEMORY:
        a->bytes_max =
            tow_command_number(state, "memory", argument, 1, UINT64_C(1) << 62);
        return 0;
    case 'f': a->file = argument; return 0;
    case KEY_CSV: a->csv = true; return 0;
    case KEY_PROGRAM: a->program = true; return 0;
    case 'j': a->json = true; return 0;
    case KEY_SVG: a->svg = argument; return 0;
    case KEY_WIDTH:
        a->width = (uint32_t)tow_command_number(state, "width", argument, 1,
                                                WIDTH_MAX);
        return 0;
    case ARGP_KEY_ARG: parse_name(a, argument, state); return 0;
    case ARGP_KEY_END: check_arguments(a, state); return 0;
    default: return ARGP_ERR_UNKNOWN;
    }
}

/* -- Output ---------------------------------------------------------------- */

static uint32_t terminal_width(void)
{
    struct winsize size;
    const char *columns = getenv("COLUMNS");
    if (ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0)
        return size.ws_col;
    const unsigned long number =
        columns == NULL ? 0 : strtoul(columns, NULL, 10);
    return number > 0 && number <= WIDTH_MAX ? (uint32_t)number : WIDTH_DEFAULT;
}

static tow_status_t print_csv(const tow_plan_schedule_t *schedule)
{
    char *text;
    size_t size;
    TOW_RETURN_IF_ERROR(tow_plan_csv_print(schedule, &text, &size));
    fwrite(text, 1, size, stdout);
    tow_free(text);
    return TOW_OK;
}

static tow_status_t write_svg(const tow_drawing_t *drawing, const char *path)
{
    if (strcmp(path, "-") == 0) {
        tow_drawing_print_svg(drawing, stdout);
        return TOW_OK;
    }
    FILE *file = fopen(path, "w");
    if (file == NULL) return TOW_ERRNO(errno, "cannot create %s", path);
    tow_drawing_print_svg(drawing, file);
    const bool failed = ferror(file) != 0;
    if (fclose(file) != 0 || failed)
        return TOW_ERRNO(errno, "cannot write %s", path);
    return TOW_OK;
}

static tow_status_t show(const schedule_arguments_t *a,
                         const tow_drawing_t *drawing)
{
    if (a->svg != NULL) TOW_RETURN_IF_ERROR(write_svg(drawing, a->svg));
    if (a->csv) return print_csv(drawing->schedule);
    if (a->program)
        return tow_pipeline_program_print("pipeline", drawing->schedule,
                                          stdout);
    const bool is_svg_only = a->svg != NULL && strcmp(a->svg, "-") == 0;
    const tow_drawing_terminal_t terminal = {
        .width = a->width > 0 ? a->width : terminal_width(),
        .has_colours = isatty(STDOUT_FILENO) && getenv("NO_COLOR") == NULL,
    };
    if (a->json)
        tow_drawing_print_json(drawing, stdout);
    else if (!is_svg_only)
        tow_drawing_print(drawing, &terminal, stdout);
    return TOW_OK;
}

/* -- Schedules ------------------------------------------------------------- */

static tow_status_t read_schedule(const schedule_arguments_t *a,
                                  tow_plan_schedule_t *schedule)
{
    tow_text_t text = {0};
    tow_status_t status =
        tow_text_file_read(a->file, TOW_PLAN_CSV_BYTES_MAX, &text);
    if (status == TOW_OK)
        status = tow_plan_csv_parse(text.items, text.count, schedule);
    tow_vec_deinit(&text);
    if (status == TOW_OK)
        status = tow_plan_schedule_check(schedule, NULL, NULL);
    if (status == TOW_OK)
        status = tow_plan_schedule_extend(schedule, &a->options.extras);
    return tow_status_annotate(status, "%s", a->file);
}

static tow_status_t simulate(const schedule_arguments_t *a,
                             const tow_plan_schedule_t *schedule,
                             const tow_cost_set_t *costs)
{
    const tow_plan_check_options_t check = {.costs = costs->costs,
                                            .bytes_max = a->bytes_max};
    tow_plan_timeline_t timeline;
    TOW_RETURN_IF_ERROR(tow_plan_schedule_check(schedule, &check, NULL));
    TOW_RETURN_IF_ERROR(tow_plan_simulate(schedule, &costs->costs, &timeline));
    const tow_drawing_t drawing = {
        .name = a->file != NULL ? a->file
                                : tow_plan_generator_name(a->options.generator),
        .schedule = schedule,
        .timeline = &timeline,
        .has_memory = costs->has_memory,
    };
    tow_status_t status = show(a, &drawing);
    tow_plan_timeline_deinit(&timeline);
    return status;
}

static tow_status_t run(schedule_arguments_t *a)
{
    tow_plan_schedule_t schedule = {0};
    tow_cost_set_t costs = {0};
    tow_plan_extras_t *extras = &a->options.extras;
    extras->all_reduce = a->costs.texts[TOW_COST_ALL_REDUCE] != NULL;
    extras->update = a->costs.texts[TOW_COST_UPDATE] != NULL;
    tow_status_t status = a->file != NULL
                              ? read_schedule(a, &schedule)
                              : tow_plan_generate(&a->options, &schedule);
    if (status == TOW_OK)
        status = tow_cost_set_init(&costs, &a->costs, &schedule.shape);
    if (status == TOW_OK) status = simulate(a, &schedule, &costs);
    tow_cost_set_deinit(&costs);
    tow_plan_schedule_deinit(&schedule);
    return status;
}

#define COST(option, name, unit, text)              \
    {                                               \
        name, KEY_COST + (option), unit, 0, text, 2 \
    }

static const struct argp_option table[] = {
    {"stages", 's', "S", 0,
     "Stages of the pipeline, one on each device; with chunks, of each chunk",
     1},
    {"microbatches", 'm', "M", 0, "Microbatches of a step", 1},
    {"chunks", KEY_CHUNKS, "V", 0, "Chunks per device of interleaved (2)", 1},
    {"warmup", KEY_WARMUP, "a|b", 0,
     "Forwards that stage i of 1f1b starts with: a: S - i; b: 2 (S - i) - 1 (a)",
     1},
    {"in-flight", KEY_IN_FLIGHT, "D", 0,
     "At most D microbatches between forward and backward in 1f1b", 1},
    {"remat", KEY_REMAT, NULL, 0, "Recompute the forward before each backward",
     1},
    {"sends", KEY_SENDS, NULL, 0, "Write the sends into the schedule", 1},
    {"file", 'f', "CSV", 0,
     "Read the schedule from a file, or - for standard input", 1},
    COST(TOW_COST_FORWARD, "forward", "NS", "Time of a forward (1M)"),
    COST(
        TOW_COST_BACKWARD, "backward", "NS",
        "Time of an input gradient; a whole backward takes this and --weight (1M)"),
    COST(TOW_COST_WEIGHT, "weight", "NS", "Time of a weight gradient (1M)"),
    COST(TOW_COST_RECOMPUTE, "recompute", "NS",
         "Time of a recomputation (as the forward)"),
    COST(TOW_COST_ALL_REDUCE, "all-reduce", "NS",
         "All-reduce the gradients of each stage, in this time"),
    COST(TOW_COST_UPDATE, "update", "NS", "Update each stage, in this time"),
    COST(TOW_COST_ACTIVATION, "activation", "BYTES",
         "Kept from a forward to its backward or input gradient (0)"),
    COST(TOW_COST_STASH, "stash", "BYTES",
         "Kept from an input gradient to its weight gradient (0)"),
    COST(TOW_COST_INPUT, "input", "BYTES",
         "Kept from a forward to its recomputation (0)"),
    COST(TOW_COST_PARAMETERS, "parameters", "BYTES", "Always in memory (0)"),
    COST(TOW_COST_EDGE, "edge", "BYTES", "Sent from a stage to the next (0)"),
    COST(TOW_COST_LATENCY, "latency", "NS", "Latency of an edge (0)"),
    COST(TOW_COST_BANDWIDTH, "bandwidth", "BYTES/S",
         "Of the link below an edge (no limit)"),
    {"memory", KEY_MEMORY, "BYTES", 0,
     "Fail if a device needs more, receive buffers apart", 3},
    {"csv", KEY_CSV, NULL, 0, "Print the schedule as CSV instead", 4},
    {"json", 'j', NULL, 0, "Print one JSON object instead", 4},
    {"program", KEY_PROGRAM, NULL, 0,
     "Print the program of a model pipeline instead, for tow lower", 4},
    {"svg", KEY_SVG, "FILE", 0, "Write a picture too; - for standard output",
     4},
    {"width", KEY_WIDTH, "COLUMNS", 0, "Width of the drawing (the terminal's)",
     4},
    {0},
};

int tow_command_schedule(int argc, char **argv)
{
    static const struct argp argp = {
        .options = table,
        .parser = parse,
        .args_doc = "NAME -s S -m M\n--file CSV",
        .doc =
            "Makes a pipeline schedule, checks it, simulates one step of it, and draws what each device does when, with the step time, the bubble and the most activations of each device. NAME is gpipe, 1f1b, interleaved (M a multiple of S), zb-h1, zb-h2 or zb-v.\v"
            "Costs are one number for all stages, or as many as there are stages, separated by commas: --forward 10k,12k,9k,10k. Suffixes k, M and G are powers of 1,000.\n\n"
            "A file has one row per device, and cells STAGE ACTION MICROBATCH:\n\n"
            "  0F0,0F1,0B0,0B1\n"
            "  1F0,1B0,1F1,1B1\n\n"
            "Actions: F forward, B backward, I input gradient, W weight gradient, R recompute, SEND_F, SEND_B; without a microbatch AR all-reduce, U update. The period, \"without a barrier\", is the time between two steps if no device waits for the others between them.\n\n"
            "  tow schedule 1f1b -s 4 -m 8\n"
            "  tow schedule zb-v -s 4 -m 8 --svg zb-v.svg\n"
            "  tow schedule 1f1b -s 4 -m 16 --warmup b --edge 8M --bandwidth 10G\n"
            "  tow schedule gpipe -s 4 -m 8 --activation 2G --memory 12G",
    };
    schedule_arguments_t arguments = {0};
    const int usage = tow_command_parse(&argp, argc, argv, &arguments);
    if (usage != 0) return usage;
    return tow_command_finish("schedule", run(&arguments));
}
