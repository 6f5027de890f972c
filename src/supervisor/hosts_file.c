#include "supervisor/hosts_file.h"

#include <ctype.h>
#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "device/xla_cpu/xla_cpu.h"

#define PORT_MAX 65535u

/* A line that is being parsed. */
typedef struct parser {
    const char *path;
    uint32_t line;
    const char *at, *end;
} parser_t;

/* A word of the line; not terminated. */
typedef struct word {
    const char *text;
    size_t size;
} word_t;

#define MALFORMED(parser, format, ...)                                \
    TOW_ERROR(TOW_INVALID_ARGUMENT, "%s:%u: " format, (parser)->path, \
              (parser)->line, __VA_ARGS__)

/* -- Words ------------------------------------------------------------------ */

/* Printable, for messages; truncated. */
static const char *quote(word_t word, char text[64])
{
    size_t length = 0;
    for (size_t i = 0; i < word.size && length < 60; i++)
        text[length++] =
            isprint((unsigned char)word.text[i]) ? word.text[i] : '?';
    text[length] = '\0';
    return text;
}

static bool next_word(parser_t *parser, word_t *out_word)
{
    while (parser->at < parser->end &&
           (*parser->at == ' ' || *parser->at == '\t' || *parser->at == '\r'))
        parser->at++;
    if (parser->at == parser->end || *parser->at == '#') return false;
    const char *begin = parser->at;
    while (parser->at < parser->end && *parser->at != ' ' &&
           *parser->at != '\t' && *parser->at != '\r')
        parser->at++;
    *out_word = (word_t){begin, (size_t)(parser->at - begin)};
    return true;
}

/* Letters, digits and these others. None begins with '-'. */
static bool is_made_of(word_t word, const char *others, size_t size_max)
{
    if (word.size == 0 || word.size > size_max || word.text[0] == '-')
        return false;
    for (size_t i = 0; i < word.size; i++) {
        const unsigned char c = (unsigned char)word.text[i];
        if (c == '\0' ||
            (!(isascii(c) && isalnum(c)) && strchr(others, c) == NULL))
            return false;
    }
    return true;
}

static void copy_word(word_t word, char *text)
{
    memcpy(text, word.text, word.size);
    text[word.size] = '\0';
}

static tow_status_t parse_text(const parser_t *parser, const char *key,
                               word_t value, const char *others,
                               size_t size_max, char *out_text)
{
    char quoted[64];
    if (!is_made_of(value, others, size_max))
        return MALFORMED(parser,
                         "%s is 1 to %zu letters, digits and %s, and does not "
                         "begin with '-'; '%s' is not",
                         key, size_max, others, quote(value, quoted));
    copy_word(value, out_text);
    return TOW_OK;
}

static tow_status_t parse_number(const parser_t *parser, const char *key,
                                 word_t value, uint32_t high,
                                 uint32_t *out_number)
{
    char quoted[64];
    uint32_t number = 0;
    bool is_number = value.size >= 1 && value.size <= 6;
    for (size_t i = 0; is_number && i < value.size; i++) {
        is_number = value.text[i] >= '0' && value.text[i] <= '9';
        number = 10 * number + (uint32_t)(value.text[i] - '0');
    }
    if (!is_number || number < 1 || number > high)
        return MALFORMED(parser,
                         "%s is a whole number from 1 to %u; '%s' is not", key,
                         high, quote(value, quoted));
    *out_number = number;
    return TOW_OK;
}

/* -- Lines ------------------------------------------------------------------ */

static bool key_is(word_t word, size_t key_size, const char *key)
{
    return key_size == strlen(key) && memcmp(word.text, key, key_size) == 0;
}

static tow_status_t parse_setting(const parser_t *parser, word_t word,
                                  tow_host_t *host)
{
    char quoted[64];
    const char *equals = memchr(word.text, '=', word.size);
    const size_t size =
        equals != NULL ? (size_t)(equals - word.text) : word.size;
    const word_t value = {word.text + size + 1,
                          equals != NULL ? word.size - size - 1 : 0};
    if (key_is(word, size, "devices") && equals != NULL)
        return parse_number(parser, "devices", value, TOW_XLA_DEVICE_COUNT_MAX,
                            &host->device_count);
    if (key_is(word, size, "workers") && equals != NULL)
        return parse_number(parser, "workers", value, TOW_HOSTS_WORKERS_MAX,
                            &host->worker_count);
    if (key_is(word, size, "port") && equals != NULL)
        return parse_number(parser, "port", value, PORT_MAX, &host->port);
    if (key_is(word, size, "island") && equals != NULL)
        return parse_text(parser, "island", value, "-_.", TOW_HOST_NAME_MAX,
                          host->island);
    if (key_is(word, size, "ssh") && equals != NULL)
        return parse_text(parser, "ssh", value, "-_.@:[]", TOW_HOST_WORD_MAX,
                          host->ssh);
    if (key_is(word, size, "tow") && equals != NULL)
        return parse_text(parser, "tow", value, "-_./+~", TOW_HOST_WORD_MAX,
                          host->tow);
    return MALFORMED(parser,
                     "'%s' is none of devices=N, workers=N, island=NAME, "
                     "ssh=USER@ADDRESS, port=N and tow=PATH",
                     quote(word, quoted));
}

static tow_status_t check_host(const parser_t *parser, const tow_hosts_t *hosts,
                               const tow_host_t *host)
{
    for (size_t i = 0; i < hosts->count; i++)
        if (strcmp(hosts->items[i].name, host->name) == 0)
            return MALFORMED(parser,
                             "host %s is there twice, first in line %u: write "
                             "workers=2 for two workers",
                             host->name, hosts->items[i].line);
    if (hosts->count == TOW_HOSTS_MAX)
        return MALFORMED(parser, "more than %u hosts", TOW_HOSTS_MAX);
    if (hosts->worker_count + host->worker_count > TOW_HOSTS_WORKERS_MAX)
        return MALFORMED(parser, "more than %u workers", TOW_HOSTS_WORKERS_MAX);
    return TOW_OK;
}

static tow_status_t parse_line(parser_t *parser, tow_hosts_t *hosts)
{
    tow_host_t host = {.worker_count = 1, .tow = "tow", .line = parser->line};
    word_t word;
    if (!next_word(parser, &word)) return TOW_OK;
    TOW_RETURN_IF_ERROR(parse_text(parser, "a host's name", word, "-_.",
                                   TOW_HOST_NAME_MAX, host.name));
    snprintf(host.ssh, sizeof(host.ssh), "%s", host.name);
    while (next_word(parser, &word))
        TOW_RETURN_IF_ERROR(parse_setting(parser, word, &host));
    TOW_RETURN_IF_ERROR(check_host(parser, hosts, &host));
    hosts->items[hosts->count++] = host;
    hosts->worker_count += host.worker_count;
    return TOW_OK;
}

static tow_status_t parse_lines(const char *path, const char *text, size_t size,
                                tow_hosts_t *hosts)
{
    const char *at = text, *end = text + size;
    for (uint32_t line = 1; at < end; line++) {
        const char *stop = memchr(at, '\n', (size_t)(end - at));
        if (stop == NULL) stop = end;
        parser_t parser = {.path = path, .line = line, .at = at, .end = stop};
        TOW_RETURN_IF_ERROR(parse_line(&parser, hosts));
        at = stop < end ? stop + 1 : end;
    }
    if (hosts->count == 0)
        return TOW_ERROR(TOW_INVALID_ARGUMENT,
                         "%s names no host: write one per line", path);
    return TOW_OK;
}

tow_status_t tow_hosts_parse(const char *path, const char *text, size_t size,
                             tow_hosts_t *out_hosts)
{
    *out_hosts = (tow_hosts_t){0};
    out_hosts->items = tow_calloc(TOW_HOSTS_MAX, sizeof(*out_hosts->items));
    if (out_hosts->items == NULL)
        return tow_status_bare(TOW_RESOURCE_EXHAUSTED);
    tow_status_t status = parse_lines(path, text, size, out_hosts);
    if (status != TOW_OK) tow_hosts_deinit(out_hosts);
    return status;
}

tow_status_t tow_hosts_load(const char *path, tow_hosts_t *out_hosts)
{
    *out_hosts = (tow_hosts_t){0};
    FILE *file = fopen(path, "re");
    if (file == NULL) return TOW_ERRNO(errno, "reading the hosts of %s", path);
    char *text = tow_malloc(TOW_HOSTS_TEXT_BYTES_MAX + 1);
    const size_t size =
        text != NULL ? fread(text, 1, TOW_HOSTS_TEXT_BYTES_MAX + 1, file) : 0;
    const int error = ferror(file) ? errno : 0;
    fclose(file);
    tow_status_t status;
    if (text == NULL)
        status = tow_status_bare(TOW_RESOURCE_EXHAUSTED);
    else if (error != 0)
        status = TOW_ERRNO(error, "reading the hosts of %s", path);
    else if (size > TOW_HOSTS_TEXT_BYTES_MAX)
        status = TOW_ERROR(TOW_INVALID_ARGUMENT, "%s has more than %u bytes",
                           path, TOW_HOSTS_TEXT_BYTES_MAX);
    else
        status = tow_hosts_parse(path, text, size, out_hosts);
    tow_free(text);
    return status;
}

void tow_hosts_deinit(tow_hosts_t *hosts)
{
    tow_free(hosts->items);
    *hosts = (tow_hosts_t){0};
}
