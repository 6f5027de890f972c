/* The `tow` command: finds the subcommand in the table and runs it. */
#include <stdio.h>
#include <string.h>

#include "tool/command.h"
#include "tool/version.h"

static const tow_command_t commands[] = {
    {"up", "start a cluster on this host: a controller and workers",
     tow_command_up},
    {"down", "stop the cluster that `up` started", tow_command_down},
    {"env", "print what clients of that cluster export", tow_command_env},
    {"status", "show workers, devices, memory, clients and queues",
     tow_command_status},
    {"run", "compile and run a StableHLO program", tow_command_run},
    {"trace", "save recent events of all processes, for Perfetto",
     tow_command_trace},
    {"controller", "run the controller of a cluster", tow_command_controller},
    {"worker", "run a worker of a cluster", tow_command_worker},
    {"setup", "download XLA, which workers need, into the cache folder",
     tow_command_setup},
    {"devices", "list the devices of this host", tow_command_devices},
    {"lower", "show a program after each lowering pass", tow_command_lower},
    {"schedule", "draw, check and simulate a pipeline schedule",
     tow_command_schedule},
    {"sim", "run simulated clusters and search for failing seeds",
     tow_command_sim},
    {"bench", "run a benchmark against a peer or a limit", tow_command_bench},
    {"keys", "create the token and the certificate of a cluster",
     tow_command_keys},
    {"version", "print the versions of this program and its libraries",
     tow_command_version},
};

static void print_help(FILE *out)
{
    fprintf(out, "Usage: tow COMMAND [OPTION...]\n"
                 "Towpath " TOW_VERSION_STRING
                 ": one program drives the accelerators of many hosts.\n\n");
    for (size_t i = 0; i < TOW_COUNT_OF(commands); i++)
        fprintf(out, "  %-10s %s\n", commands[i].name, commands[i].summary);
    fprintf(out,
            "\n`tow COMMAND --help` explains a command. For example:\n"
            "  tow up --workers 2 --devices 2    start a cluster\n"
            "  tow run examples/add.mlir --cluster -i f32[4]=iota -i f32[4]=1\n"
            "  tow sim --seeds 100               search 100 seeds\n"
            "  tow bench net --quick --json      one JSON object per case\n\n"
            "TOW_LOG=debug|info|warn|error|off sets the log level;\n"
            "TOW_LOG_FORMAT=json makes each line an object.\n");
}

static const tow_command_t *find(const char *name)
{
    for (size_t i = 0; i < TOW_COUNT_OF(commands); i++)
        if (strcmp(commands[i].name, name) == 0) return &commands[i];
    return NULL;
}

static int run(const tow_command_t *command, int argc, char **argv)
{
    char full_name[64];
    snprintf(full_name, sizeof(full_name), "tow %s", command->name);
    argv[0] = full_name;
    return command->run(argc, argv);
}

int main(int argc, char **argv)
{
    if (argc < 2) {
        print_help(stderr);
        return TOW_EXIT_USAGE;
    }
    const char *name = argv[1];
    if (strcmp(name, "help") == 0 || strcmp(name, "--help") == 0 ||
        strcmp(name, "-h") == 0) {
        print_help(stdout);
        return TOW_EXIT_OK;
    }
    if (strcmp(name, "--version") == 0) name = "version";
    const tow_command_t *command = find(name);
    if (command == NULL) {
        fprintf(stderr, "tow: no command '%s': see `tow help`\n", name);
        return TOW_EXIT_USAGE;
    }
    return run(command, argc - 1, argv + 1);
}
