/* `tow keys`: creates the token and the certificate of a cluster, to be copied
 * to its hosts. */
#include <stdio.h>
#include <sys/stat.h>

#include "supervisor/keys.h"
#include "tool/command.h"

typedef struct keys_options {
    const char *folder;
    const char *host;
} keys_options_t;

static error_t parse(int key, char *argument, struct argp_state *state)
{
    keys_options_t *options = state->input;
    switch (key) {
    case 'n': options->host = argument; return 0;
    case ARGP_KEY_ARG:
        if (options->folder != NULL)
            argp_error(state, "unexpected argument '%s': one folder per run",
                       argument);
        options->folder = argument;
        return 0;
    case ARGP_KEY_END:
        if (options->folder == NULL) argp_error(state, "name a folder");
        return 0;
    default: return ARGP_ERR_UNKNOWN;
    }
}

static tow_status_t make_keys(const keys_options_t *options)
{
    tow_keys_t keys;
    TOW_RETURN_IF_ERROR(tow_keys_in(options->folder, &keys));
    TOW_RETURN_IF_ERROR(tow_keys_make(&keys, options->host));
    printf("token        %s\ncertificate  %s\nkey          %s\n", keys.token,
           keys.certificate, keys.key);
    printf("Copy token and cert.pem to every host; key.pem only to hosts that "
           "listen.\n");
    return TOW_OK;
}

int tow_command_keys(int argc, char **argv)
{
    static const struct argp_option table[] = {
        {"host", 'n', "NAME", 0,
         "Host name or address of the certificate (default: localhost)", 0},
        {0},
    };
    static const struct argp argp = {
        .options = table,
        .parser = parse,
        .args_doc = "FOLDER",
        .doc =
            "Creates FOLDER/token (256 random bits), FOLDER/cert.pem and FOLDER/key.pem (self-signed, TLS 1.3). Fails if a file exists already.",
    };
    keys_options_t options = {.host = "localhost"};
    int usage = tow_command_parse(&argp, argc, argv, &options);
    if (usage != 0) return usage;
    if (mkdir(options.folder, 0700) == 0)
        fprintf(stderr, "created folder %s\n", options.folder);
    return tow_command_finish("keys", make_keys(&options));
}
