#include "client/name.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* The longest of each part; together with pid and separators a name. */
#define USER_MAX   12
#define HOST_MAX   16
#define SCRIPT_MAX 22

static const char *base_name(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash != NULL ? slash + 1 : path;
}

/* The word after `word`; NULL at the end. Every word ends with a NUL. */
static const char *next_word(const char *word, const char *end)
{
    word += strlen(word) + 1;
    return word < end ? word : NULL;
}

/* The argument of Python that names what it runs; NULL: none, it reads its
 * program from standard input. */
static const char *find_python_script(const char *python, const char *end)
{
    const char *word = next_word(python, end);
    for (; word != NULL; word = next_word(word, end)) {
        if (strcmp(word, "-c") == 0) return word;
        if (strcmp(word, "-m") == 0) return next_word(word, end);
        const bool takes_value =
            strcmp(word, "-W") == 0 || strcmp(word, "-X") == 0;
        if (takes_value && next_word(word, end) != NULL)
            word = next_word(word, end);
        else if (word[0] != '-')
            return word;
    }
    return NULL;
}

void tow_client_name_script(const char *command_line, size_t size, char *script,
                            size_t capacity)
{
    const char *program = base_name(size > 0 ? command_line : "");
    const char *found = NULL;
    if (strncmp(program, "python", strlen("python")) == 0)
        found = find_python_script(command_line, command_line + size);
    snprintf(script, capacity, "%s",
             found != NULL ? base_name(found) : program);
}

static void find_script(char *script, size_t capacity)
{
    char line[PATH_MAX + 1];
    const int fd = open("/proc/self/cmdline", O_RDONLY | O_CLOEXEC);
    const ssize_t got = fd >= 0 ? read(fd, line, sizeof(line) - 1) : 0;
    if (fd >= 0) close(fd);
    const size_t size = got > 0 ? (size_t)got : 0;
    line[size] = '\0';
    tow_client_name_script(line, size, script, capacity);
    if (script[0] == '\0')
        snprintf(script, capacity, "%s", program_invocation_short_name);
}

/* Replaces what could confuse the reader of a list or of a log. */
static void make_printable(char *text)
{
    for (; *text != '\0'; text++)
        if (*text <= ' ' || *text > '~') *text = '_';
}

void tow_client_name(const char *given, char name[TOW_CLIENT_NAME_SIZE])
{
    char script[PATH_MAX], host[HOST_NAME_MAX + 1] = "";
    const char *user = getenv("USER");
    if (given != NULL)
        snprintf(script, sizeof(script), "%s", given);
    else
        find_script(script, sizeof(script));
    char number[16];
    snprintf(number, sizeof(number), "%u", (unsigned)geteuid());
    if (user == NULL || user[0] == '\0')
        user = geteuid() == 0 ? "root" : number;
    if (gethostname(host, sizeof(host) - 1) != 0 || host[0] == '\0')
        snprintf(host, sizeof(host), "host");
    snprintf(name, TOW_CLIENT_NAME_SIZE, "%.*s@%.*s:%u:%.*s", USER_MAX, user,
             HOST_MAX, host, (unsigned)getpid(), SCRIPT_MAX, script);
    make_printable(name);
}
