/* `tow version`: versions of this program and its libraries. */
#include "tool/version.h"

#include <jansson.h>
#include <openssl/crypto.h>
#include <stdio.h>
#include <ucp/api/ucp.h>

#include "commit.h"
#include "tool/command.h"
#include "wire/handshake.h"

const char *tow_version_commit(void)
{
    return TOW_COMMIT;
}

void tow_version_line(char *line, size_t capacity)
{
    snprintf(line, capacity, "tow %s (commit %s), protocol %u",
             TOW_VERSION_STRING, tow_version_commit(), TOW_PROTOCOL_MAJOR);
}

typedef struct version_options {
    bool json;
} version_options_t;

static error_t parse(int key, char *argument, struct argp_state *state)
{
    (void)argument;
    version_options_t *options = state->input;
    if (key != 'j') return ARGP_ERR_UNKNOWN;
    options->json = true;
    return 0;
}

static void print_json(const char *ucx)
{
    json_t *object = json_pack(
        "{s:s, s:s, s:i, s:s, s:s, s:s}", "towpath", TOW_VERSION_STRING,
        "commit", tow_version_commit(), "protocol", (int)TOW_PROTOCOL_MAJOR,
        "ucx", ucx, "openssl", OpenSSL_version(OPENSSL_VERSION_STRING),
        "compiler", __VERSION__);
    if (object == NULL) return;
    json_dumpf(object, stdout, JSON_COMPACT);
    printf("\n");
    json_decref(object);
}

int tow_command_version(int argc, char **argv)
{
    static const struct argp_option table[] = {
        {"json", 'j', NULL, 0, "Print one JSON object", 0},
        {0},
    };
    static const struct argp argp = {
        .options = table,
        .parser = parse,
        .doc = "Prints the versions of this program and its libraries.",
    };
    version_options_t options = {0};
    int usage = tow_command_parse(&argp, argc, argv, &options);
    if (usage != 0) return usage;
    const char *ucx = ucp_get_version_string();
    if (options.json) {
        print_json(ucx);
    } else {
        char line[160];
        tow_version_line(line, sizeof(line));
        puts(line);
        printf("ucx %s, openssl %s, compiled by %s\n", ucx,
               OpenSSL_version(OPENSSL_VERSION_STRING), __VERSION__);
    }
    return TOW_EXIT_OK;
}
