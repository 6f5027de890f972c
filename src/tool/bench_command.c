/* `tow bench NAME`: the table of benchmarks. */
#include <stdio.h>
#include <string.h>

#include "tool/bench.h"
#include "tool/bench_net.h"
#include "tool/command.h"

typedef struct benchmark {
    const char *name;
    const char *summary;
    tow_status_t (*run)(const tow_bench_options_t *options);
} benchmark_t;

static const benchmark_t benchmarks[] = {
    {"calibrate", "what a message costs here, for simulations",
     tow_bench_calibrate},
    {"device", "runs, gangs and transfers on XLA on the CPU", tow_bench_device},
    {"dispatch", "computations on a cluster of real processes",
     tow_bench_dispatch},
    {"jax", "plain JAX on a cluster (`tow bench jax --help`: its cases)",
     tow_bench_jax},
    {"net", "messages and bulk data between two processes", tow_bench_net},
    {"pipeline", "stages on devices of their own, hundreds in flight",
     tow_bench_pipeline},
    {"scale", "how small computations may be on large clusters (simulated)",
     tow_bench_scale},
    {"sim", "the simulator's own speed and size", tow_bench_sim},
    {"transfer", "64 MiB from worker to worker", tow_bench_transfer},
};

typedef struct bench_arguments {
    tow_bench_options_t options;
    const benchmark_t *chosen;
} bench_arguments_t;

static const benchmark_t *find(const char *name)
{
    for (size_t i = 0; i < TOW_COUNT_OF(benchmarks); i++)
        if (strcmp(benchmarks[i].name, name) == 0) return &benchmarks[i];
    return NULL;
}

/* "calibrate, device, ..." into `text`, which it returns. */
#define NAMES_SIZE 256
static const char *names(char text[NAMES_SIZE])
{
    size_t length = 0;
    for (size_t i = 0; i < TOW_COUNT_OF(benchmarks); i++)
        length += (size_t)snprintf(text + length, NAMES_SIZE - length, "%s%s",
                                   i > 0 ? ", " : "", benchmarks[i].name);
    return text;
}

/* What stands below the options: the table, in words. */
static char *describe(int key, const char *text, void *input)
{
    if (key != ARGP_KEY_HELP_POST_DOC) return (char *)text;
    char *said = NULL;
    size_t size = 0;
    FILE *out = open_memstream(&said, &size);
    if (out == NULL) return (char *)text;
    fprintf(out, "Names:\n");
    for (size_t i = 0; i < TOW_COUNT_OF(benchmarks); i++)
        fprintf(out, "  %-10s %s\n", benchmarks[i].name, benchmarks[i].summary);
    fprintf(out, "\n%s", text);
    fclose(out);
    return said; /* argp frees it. */
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
        if (arguments->chosen != NULL)
            argp_error(state, "one benchmark at a time: '%s' is a second",
                       argument);
        arguments->chosen = find(argument);
        if (arguments->chosen == NULL)
            argp_error(state, "no benchmark '%s': there are %s", argument,
                       names(text));
        return 0;
    case ARGP_KEY_END:
        if (arguments->chosen == NULL)
            argp_error(state, "name a benchmark: one of %s", names(text));
        return 0;
    default: return ARGP_ERR_UNKNOWN;
    }
}

int tow_command_bench(int argc, char **argv)
{
    static const struct argp_option table[] = {
        {"json", 'j', NULL, 0, "One JSON object a line", 0},
        {"quick", 'q', NULL, 0, "Fewer and shorter rounds: at most 40 s", 0},
        {"case", 'c', "TEXT", 0, "Only cases whose name contains TEXT", 0},
        {0},
    };
    static const struct argp argp = {
        .options = table,
        .parser = parse,
        .args_doc = "NAME",
        .help_filter = describe,
        .doc = "Measures, each time beside a peer or a limit in the same run."
               "\v"
               "The ratio is ours to the peer's; above 1 is better for us. It "
               "comes from alternating paired rounds: median [lowest-highest].",
    };
    if (argc > 1 && strcmp(argv[1], "net-serve") == 0)
        return tow_bench_net_serve(argc - 1, argv + 1);
    if (argc > 1 && strcmp(argv[1], "net-measure") == 0)
        return tow_bench_net_measure(argc - 1, argv + 1);
    if (argc == 3 && strcmp(argv[1], "jax") == 0 &&
        strcmp(argv[2], "--help") == 0)
        return tow_command_finish("bench", tow_bench_jax_help());
    bench_arguments_t arguments = {0};
    int usage = tow_command_parse(&argp, argc, argv, &arguments);
    if (usage != 0) return usage;
    return tow_command_finish("bench",
                              arguments.chosen->run(&arguments.options));
}
