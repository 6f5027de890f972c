#include "tool/command.h"

#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int tow_command_finish(const char *name, tow_status_t take_status)
{
    if (take_status == TOW_OK) return TOW_EXIT_OK;
    fprintf(stderr, "tow %s: %s\n", name, tow_status_message(take_status));
    tow_status_release(take_status);
    return TOW_EXIT_FAILED;
}

int tow_command_parse(const struct argp *argp, int argc, char **argv,
                      void *input)
{
    argp_err_exit_status = TOW_EXIT_USAGE;
    error_t error = argp_parse(argp, argc, argv, 0, NULL, input);
    if (error == 0) return 0;
    fprintf(stderr, "%s: %s\n", argv[0], strerror(error));
    return TOW_EXIT_USAGE;
}

static uint64_t suffix_factor(const char *suffix)
{
    if (strcmp(suffix, "") == 0) return 1;
    if (strcmp(suffix, "k") == 0) return 1000;
    if (strcmp(suffix, "M") == 0) return 1000000;
    if (strcmp(suffix, "G") == 0) return 1000000000;
    return 0;
}

uint64_t tow_command_number(const struct argp_state *state, const char *option,
                            const char *text, uint64_t low, uint64_t high)
{
    char *end = NULL;
    errno = 0;
    uint64_t number = strtoull(text, &end, 10);
    uint64_t factor = end != text && text[0] != '-' ? suffix_factor(end) : 0;
    uint64_t scaled = 0;
    if (errno != 0 || factor == 0 ||
        __builtin_mul_overflow(number, factor, &scaled) || scaled < low ||
        scaled > high)
        argp_error(
            state, "--%s takes a whole number from %llu to %llu, not '%s'",
            option, (unsigned long long)low, (unsigned long long)high, text);
    return scaled;
}
