/* The subcommands of `tow`, one row of a table each. */
#ifndef TOW_TOOL_COMMAND_H_
#define TOW_TOOL_COMMAND_H_

#include <argp.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"

typedef struct tow_command {
    const char *name;
    const char *summary; /* one line, for `tow help` */
    /* Gets its own name as argv[0] ("tow sim"). Returns the exit status. */
    int (*run)(int argc, char **argv);
} tow_command_t;

int tow_command_version(int argc, char **argv);
int tow_command_controller(int argc, char **argv);
int tow_command_devices(int argc, char **argv);
int tow_command_down(int argc, char **argv);
int tow_command_env(int argc, char **argv);
int tow_command_lower(int argc, char **argv);
int tow_command_schedule(int argc, char **argv);
int tow_command_setup(int argc, char **argv);
int tow_command_run(int argc, char **argv);
int tow_command_sim(int argc, char **argv);
int tow_command_status(int argc, char **argv);
int tow_command_trace(int argc, char **argv);
int tow_command_up(int argc, char **argv);
int tow_command_worker(int argc, char **argv);
int tow_command_bench(int argc, char **argv);
int tow_command_keys(int argc, char **argv);

/* Exit statuses, the same for every command. */
enum {
    TOW_EXIT_OK = 0,
    TOW_EXIT_FAILED = 1, /* the command ran and failed */
    TOW_EXIT_USAGE = 2,  /* wrong command line */
};

/* Prints "tow NAME: message" on standard error, releases the status, and
 * returns TOW_EXIT_FAILED; TOW_EXIT_OK for TOW_OK. */
int tow_command_finish(const char *name, tow_status_t take_status);

/* argp_parse with our exit status and error format. Returns 0, or the exit
 * status. */
int tow_command_parse(const struct argp *argp, int argc, char **argv,
                      void *input);

/* Parses an integer in [low, high] with an optional suffix k, M or G (powers of
 * 1,000); otherwise exits with a usage error that names the option. */
uint64_t tow_command_number(const struct argp_state *state, const char *option,
                            const char *text, uint64_t low, uint64_t high);

#endif /* TOW_TOOL_COMMAND_H_ */
