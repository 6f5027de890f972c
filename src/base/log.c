/* A line is built in a buffer on the stack and written as a whole, so that
 * lines of several threads do not mix and logging never allocates. Each piece
 * is written in whole or not at all: truncation never splits a character or an
 * escape, and a truncated JSON line is still valid JSON. */
#include "base/log.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/assert.h"
#include "base/escape_impl.h"

static const char *const level_names[] = {"debug", "info", "warn", "error",
                                          "off"};

/* Reserved for the end of a truncated line: ..."  ,"cut":"..."}  newline. */
#define TAIL_BYTES_MAX 32

typedef struct line {
    tow_log_format_t format;
    bool is_cut;
    bool is_cut_in_quotes; /* and marks it */
    size_t length;
    char bytes[TOW_LOG_LINE_MAX];
} line_t;

/* Appends all of it, or truncates the line here. */
static void put(line_t *line, const char *bytes, size_t count)
{
    if (line->is_cut) return;
    if (line->length + count > sizeof(line->bytes) - TAIL_BYTES_MAX) {
        line->is_cut = true;
        return;
    }
    memcpy(line->bytes + line->length, bytes, count);
    line->length += count;
}

static void put_text(line_t *line, const char *text)
{
    put(line, text, strlen(text));
}

/* For bytes that follow a truncation too. */
static void put_tail(line_t *line, const char *text)
{
    size_t count = strlen(text);
    TOW_ASSERT(count <= sizeof(line->bytes) - line->length);
    memcpy(line->bytes + line->length, text, count);
    line->length += count;
}

static void put_escaped(line_t *line, const char *text)
{
    tow_escape_style_t style =
        line->format == TOW_LOG_JSON ? TOW_ESCAPE_JSON : TOW_ESCAPE_TEXT;
    char piece[TOW_ESCAPED_BYTES_MAX];
    while (*text != '\0' && !line->is_cut) {
        size_t count = tow_escape_next(style, &text, piece);
        put(line, piece, count);
    }
}

static void open_quote(line_t *line)
{
    put(line, "\"", 1);
}

/* Closes the quote that was opened, cut or not. */
static void close_quote(line_t *line)
{
    line->is_cut_in_quotes = line->is_cut;
    put_tail(line, line->is_cut ? "...\"" : "\"");
}

static void put_quoted(line_t *line, const char *text)
{
    open_quote(line);
    if (line->is_cut) return;
    put_escaped(line, text);
    close_quote(line);
}

/* Quoted where a reader could take it for several words. */
static bool is_plain_word(const char *text)
{
    if (*text == '\0') return false;
    for (; *text != '\0'; text++) {
        if (*text <= ' ' || *text >= 0x7f || *text == '"' || *text == '\\')
            return false;
    }
    return true;
}

static void put_string(line_t *line, const char *text)
{
    if (text == NULL) {
        put_text(line, line->format == TOW_LOG_JSON ? "null" : "-");
    } else if (line->format == TOW_LOG_TEXT && is_plain_word(text) &&
               strlen(text) < TOW_LOG_LINE_MAX / 4) {
        put_text(line, text);
    } else {
        put_quoted(line, text);
    }
}

/* "UNAVAILABLE: message (file:line)"; a bare status is its code alone. */
static void put_status(line_t *line, tow_status_t status)
{
    char place[32];
    const char *code = tow_code_name(tow_status_code(status));
    if (tow_status_file(status)[0] == '\0') {
        put_string(line, code);
        return;
    }
    open_quote(line);
    if (line->is_cut) return;
    put_text(line, code);
    put_text(line, ": ");
    put_escaped(line, tow_status_message(status));
    put_text(line, " (");
    put_escaped(line, tow_status_file(status));
    snprintf(place, sizeof(place), ":%d)", tow_status_line(status));
    put_text(line, place);
    close_quote(line);
}

/* Many readers of JSON keep integers in 64 bits with a sign and refuse the line
 * that holds a larger one, so those are written as strings. */
static void put_u64(line_t *line, uint64_t value)
{
    char digits[24];
    bool is_string = line->format == TOW_LOG_JSON && value > INT64_MAX;
    snprintf(digits, sizeof(digits), is_string ? "\"%llu\"" : "%llu",
             (unsigned long long)value);
    put_text(line, digits);
}

static void put_i64(line_t *line, int64_t value)
{
    char digits[24];
    snprintf(digits, sizeof(digits), "%lld", (long long)value);
    put_text(line, digits);
}

static void put_value(line_t *line, const tow_field_t *field)
{
    switch (field->kind) {
    case TOW_FIELD_STR: put_string(line, field->value.str); return;
    case TOW_FIELD_U64: put_u64(line, field->value.u64); return;
    case TOW_FIELD_I64: put_i64(line, field->value.i64); return;
    case TOW_FIELD_STATUS: put_status(line, field->value.status); return;
    }
    TOW_UNREACHABLE();
}

static void put_name(line_t *line, const char *name)
{
    if (line->format == TOW_LOG_JSON) {
        put_text(line, ",\"");
        put_escaped(line, name);
        put_text(line, "\":");
    } else {
        put_text(line, " ");
        put_escaped(line, name);
        put_text(line, " ");
    }
}

/* A truncated line contains the beginning of a field's value, or nothing of
 * it. */
static void put_field(line_t *line, const tow_field_t *field)
{
    if (line->is_cut) return;
    size_t length_before = line->length;
    put_name(line, field->name);
    size_t value_at = line->length;
    put_value(line, field);
    if (line->is_cut && line->length == value_at) line->length = length_before;
}

static int64_t wall_now_ns(const tow_log_t *log)
{
    if (log->wall_ns != NULL) return log->wall_ns(log->wall_context);
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

/* 2026-11-15T20:14:31.000123Z */
static void format_time(int64_t wall_ns, char *out, size_t out_bytes)
{
    int64_t seconds = wall_ns / 1000000000;
    int64_t rest_ns = wall_ns % 1000000000;
    if (rest_ns < 0) {
        rest_ns += 1000000000;
        seconds--;
    }
    struct tm utc;
    time_t time = (time_t)seconds;
    gmtime_r(&time, &utc); /* 64 bits of nanoseconds are within its range. */
    snprintf(out, out_bytes, "%04d-%02d-%02dT%02d:%02d:%02d.%06dZ",
             utc.tm_year + 1900, utc.tm_mon + 1, utc.tm_mday, utc.tm_hour,
             utc.tm_min, utc.tm_sec, (int)(rest_ns / 1000));
}

static void put_text_head(line_t *line, const tow_log_t *log, const char *time,
                          const char *level, const char *event)
{
    put_text(line, time);
    put_text(line, " ");
    put_text(line, level);
    put_text(line, " ");
    put_string(line, log->source);
    put_text(line, " ");
    put_escaped(line, event);
}

static void put_json_head(line_t *line, const tow_log_t *log, const char *time,
                          const char *level, const char *event)
{
    put_text(line, "{\"time\":\"");
    put_text(line, time);
    put_text(line, "\",\"level\":\"");
    put_text(line, level);
    put_text(line, "\"");
    put_field(line, &TOW_F_STR("source", log->source));
    put_field(line, &TOW_F_STR("event", event));
}

static void put_end(line_t *line)
{
    if (line->format == TOW_LOG_JSON)
        put_tail(line, line->is_cut ? ",\"cut\":\"...\"}\n" : "}\n");
    else
        put_tail(line,
                 line->is_cut && !line->is_cut_in_quotes ? " ...\n" : "\n");
}

/* One write per line, so that the kernel does not mix lines of several
 * processes. Write errors are ignored: logging must not stop the program. */
static void write_to_standard_error(const char *bytes, size_t length)
{
    while (length > 0) {
        ssize_t written = write(STDERR_FILENO, bytes, length);
        if (written < 0 && errno == EINTR) continue;
        if (written <= 0) return;
        bytes += written;
        length -= (size_t)written;
    }
}

void tow_log_write(const tow_log_t *log, tow_log_level_t level,
                   const char *event, const tow_field_t *fields,
                   size_t field_count)
{
    TOW_ASSERT(level < TOW_LOG_OFF);
    char time[64];
    format_time(wall_now_ns(log), time, sizeof(time));
    line_t line;
    line.format = log->format;
    line.is_cut = line.is_cut_in_quotes = false;
    line.length = 0;
    if (log->format == TOW_LOG_JSON)
        put_json_head(&line, log, time, level_names[level], event);
    else
        put_text_head(&line, log, time, level_names[level], event);
    for (size_t i = 0; i < field_count; i++)
        put_field(&line, &fields[i]);
    put_end(&line);
    if (log->sink != NULL)
        log->sink(log->sink_context, line.bytes, line.length);
    else
        write_to_standard_error(line.bytes, line.length);
}

bool tow_log_level_parse(const char *text, tow_log_level_t *out_level)
{
    for (size_t i = 0; i < TOW_COUNT_OF(level_names); i++) {
        if (strcmp(text, level_names[i]) != 0) continue;
        *out_level = (tow_log_level_t)i;
        return true;
    }
    return false;
}
