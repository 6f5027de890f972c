/* `tow env`: what a client of the running cluster exports. */
#include <jansson.h>
#include <stdio.h>
#include <string.h>

#include "supervisor/run_folder.h"
#include "tool/command.h"

typedef struct env_options {
    const char *folder;
    bool json;
} env_options_t;

static error_t parse(int key, char *argument, struct argp_state *state)
{
    env_options_t *options = state->input;
    switch (key) {
    case 'f': options->folder = argument; return 0;
    case 'j': options->json = true; return 0;
    case ARGP_KEY_ARG:
        argp_error(state, "unexpected argument '%s'", argument);
        return EINVAL;
    default: return ARGP_ERR_UNKNOWN;
    }
}

/* Single quotes, which a shell does not look into. */
static void print_export(const char *name, const char *value)
{
    printf("export %s='", name);
    for (; *value != '\0'; value++)
        if (*value == '\'')
            fputs("'\\''", stdout);
        else
            putchar(*value);
    puts("'");
}

static tow_status_t print_env(const env_options_t *options)
{
    tow_run_folder_t folder;
    tow_run_state_t state;
    TOW_RETURN_IF_ERROR(tow_run_folder_name(&folder, options->folder));
    TOW_RETURN_IF_ERROR(tow_run_folder_read(&folder, &state));
    const char *const values[][2] = {{"TOW_ADDRESS", state.address},
                                     {"TOW_TOKEN_FILE", state.token_file},
                                     {"JAX_PLATFORMS", "towpath"}};
    json_t *object = options->json ? json_object() : NULL;
    for (size_t i = 0; i < TOW_COUNT_OF(values); i++)
        if (options->json)
            json_object_set_new(object, values[i][0],
                                json_string(values[i][1]));
        else
            print_export(values[i][0], values[i][1]);
    if (options->json) {
        json_dumpf(object, stdout, JSON_COMPACT);
        putchar('\n');
        json_decref(object);
    }
    return TOW_OK;
}

int tow_command_env(int argc, char **argv)
{
    static const struct argp_option table[] = {
        {"folder", 'f', "FOLDER", 0, "Folder of `tow up`", 0},
        {"json", 'j', NULL, 0, "Print one JSON object", 0},
        {0},
    };
    static const struct argp argp = {
        .options = table,
        .parser = parse,
        .doc =
            "Prints the environment of a client of the cluster that `tow up` started: eval \"$(tow env)\". Clients of the same user find the cluster without it.",
    };
    env_options_t options = {0};
    int usage = tow_command_parse(&argp, argc, argv, &options);
    if (usage != 0) return usage;
    return tow_command_finish("env", print_env(&options));
}
