/* The commands of `tow`: one row of a table each. */
#ifndef TOW_TOOL_COMMAND_H_
#define TOW_TOOL_COMMAND_H_

#include <argp.h>
#include <stdbool.h>

#include "base/log.h"
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
int tow_command_exchange(int argc, char **argv);
int tow_command_lower(int argc, char **argv);
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
    TOW_EXIT_FAILED = 1, /* it ran, and the answer is no */
    TOW_EXIT_USAGE = 2,  /* wrong words on the command line */
};

/* Prints "tow NAME: message" on standard error, releases the status, and
 * returns TOW_EXIT_FAILED; TOW_EXIT_OK for TOW_OK. */
int tow_command_finish(const char *name, tow_status_t take_status);

/* argp_parse with our exit status and error form: one line that names the
 * word, and the help to read. Returns 0, or the exit status to end with. */
int tow_command_parse(const struct argp *argp, int argc, char **argv,
                      void *input);

/* A whole number in [low, high] with an optional k, M or G (powers of 1,000);
 * ends the program with a usage error that names the option otherwise. */
uint64_t tow_command_number(const struct argp_state *state, const char *option,
                            const char *text, uint64_t low, uint64_t high);

/* The log that a command hands to what it starts: TOW_LOG is the level
 * (debug, info, warn, error, off; default warn), TOW_LOG_FORMAT text or
 * json. */
tow_log_t tow_command_log(const char *source);

#endif /* TOW_TOOL_COMMAND_H_ */
