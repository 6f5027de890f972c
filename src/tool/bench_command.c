/* `tow bench NAME`: runs a benchmark of the registry. */
#include <stdio.h>
#include <string.h>

#include "bench/registry.h"
#include "tool/command.h"

typedef struct bench_arguments {
    tow_bench_options_t options;
    const tow_benchmark_t *benchmark;
} bench_arguments_t;

/* Writes "calibrate, device, ..." into `text` and returns it. */
#define NAMES_SIZE 256
static const char *list_names(char text[NAMES_SIZE])
{
    size_t length = 0;
    for (size_t i = 0; i < tow_benchmark_count() && length < NAMES_SIZE; i++)
        length +=
            (size_t)snprintf(text + length, NAMES_SIZE - length, "%s%s",
                             i > 0 ? ", " : "", tow_benchmark_at(i)->name);
    return text;
}

/* Adds the benchmarks to the text below the options. */
static char *describe(int key, const char *text, void *input)
{
    (void)input;
    if (key != ARGP_KEY_HELP_POST_DOC) return (char *)text;
    char *help = NULL;
    size_t size = 0;
    FILE *out = open_memstream(&help, &size);
    if (out == NULL) return (char *)text;
    fprintf(out, "Benchmarks (`tow bench NAME --help` lists the cases):\n");
    for (size_t i = 0; i < tow_benchmark_count(); i++)
        fprintf(out, "  %-10s %s\n", tow_benchmark_at(i)->name,
                tow_benchmark_at(i)->summary);
    fprintf(out, "\n%s", text);
    fclose(out);
    return help; /* argp frees it. */
}

static error_t parse(int key, char *argument, struct argp_state *state)
{
    bench_arguments_t *arguments = state->input;
    char text[NAMES_SIZE];
    switch (key) {
    case 'j': arguments->options.json = true; return 0;
    case 'q': arguments->options.quick = true; return 0;
    case 'c': arguments->options.only = argument; return 0;
    case ARGP_KEY_ARG:
        if (arguments->benchmark != NULL)
            argp_error(state, "unexpected argument '%s': one benchmark per run",
                       argument);
        arguments->benchmark = tow_benchmark_find(argument);
        if (arguments->benchmark == NULL)
            argp_error(state, "no benchmark '%s': there are %s", argument,
                       list_names(text));
        return 0;
    case ARGP_KEY_END:
        if (arguments->benchmark == NULL)
            argp_error(state, "name a benchmark: one of %s", list_names(text));
        return 0;
    default: return ARGP_ERR_UNKNOWN;
    }
}

/* `tow bench NAME --help`. */
static tow_status_t print_help(const tow_benchmark_t *benchmark)
{
    if (benchmark->print_help != NULL) return benchmark->print_help();
    printf("Usage: tow bench %s [OPTION...]\n%s.\n", benchmark->name,
           benchmark->summary);
    if (benchmark->cases != NULL) printf("\nCases:\n");
    for (const char *const *name = benchmark->cases;
         name != NULL && *name != NULL; name++)
        printf("  %s\n", *name);
    printf("\n`tow bench --help` explains the options.\n");
    return TOW_OK;
}

/* A helper process of a benchmark. */
static int run_child(const tow_benchmark_child_t *child, int argc, char **argv)
{
    char name[64];
    snprintf(name, sizeof(name), "bench %s", child->name);
    return tow_command_finish(name, child->run(argc, argv));
}

int tow_command_bench(int argc, char **argv)
{
    static const struct argp_option table[] = {
        {"json", 'j', NULL, 0, "Print one JSON object per case", 0},
        {"quick", 'q', NULL, 0, "Fewer and shorter rounds: at most 40 s", 0},
        {"case", 'c', "TEXT", 0, "Run only cases whose name contains TEXT", 0},
        {0},
    };
    static const struct argp argp = {
        .options = table,
        .parser = parse,
        .args_doc = "NAME",
        .help_filter = describe,
        .doc = "Runs a benchmark. Each case alternates with a peer or compares "
               "with a limit in the same run."
               "\v"
               "The ratio is ours to the peer's; above 1 is better for us. It "
               "is taken in alternating paired rounds: median "
               "[lowest-highest].",
    };
    const tow_benchmark_child_t *child =
        argc > 1 ? tow_benchmark_child_find(argv[1]) : NULL;
    if (child != NULL) return run_child(child, argc - 1, argv + 1);
    const tow_benchmark_t *with_help =
        argc == 3 && strcmp(argv[2], "--help") == 0
            ? tow_benchmark_find(argv[1])
            : NULL;
    if (with_help != NULL)
        return tow_command_finish("bench", print_help(with_help));
    bench_arguments_t arguments = {0};
    int usage = tow_command_parse(&argp, argc, argv, &arguments);
    if (usage != 0) return usage;
    return tow_command_finish("bench",
                              arguments.benchmark->run(&arguments.options));
}
