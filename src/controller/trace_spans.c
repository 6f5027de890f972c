/* Trace spans as lines of text, for readers without a JSON parser: plugins in
 * users' processes. */
#include "controller/trace_spans_impl.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static long long integer_in(const json_t *event, const char *key)
{
    return json_integer_value(json_object_get(event, key));
}

/* Perfetto's times are in microseconds; they are never negative. */
static long long ns_in(const json_t *event, const char *key)
{
    const double us = json_number_value(json_object_get(event, key));
    return (long long)(us * 1e3 + 0.5);
}

/* The last field of a line may contain spaces, but no line breaks. */
static void end_line(FILE *out, const char *name)
{
    fputc(' ', out);
    for (; name != NULL && *name != '\0'; name++)
        fputc((unsigned char)*name < ' ' ? '?' : *name, out);
    fputc('\n', out);
}

static void write_name(FILE *out, const json_t *event, const char *what)
{
    const char *name = json_string_value(
        json_object_get(json_object_get(event, "args"), "name"));
    if (strcmp(what, "process_name") == 0)
        fprintf(out, "process %lld", integer_in(event, "pid"));
    else
        fprintf(out, "thread %lld %lld", integer_in(event, "pid"),
                integer_in(event, "tid"));
    end_line(out, name);
}

static void write_event(FILE *out, const json_t *event)
{
    const char *phase = json_string_value(json_object_get(event, "ph"));
    const char *name = json_string_value(json_object_get(event, "name"));
    if (phase == NULL || name == NULL) return;
    if (strcmp(phase, "M") == 0) write_name(out, event, name);
    if (strcmp(phase, "X") != 0) return;
    fprintf(out, "event %lld %lld %lld %lld", integer_in(event, "pid"),
            integer_in(event, "tid"), ns_in(event, "ts"), ns_in(event, "dur"));
    end_line(out, name);
}

char *tow_ctl_trace_spans_write(const json_t *events)
{
    char *text = NULL;
    size_t size = 0;
    FILE *out = open_memstream(&text, &size);
    if (out == NULL) return NULL;
    for (size_t i = 0; i < json_array_size(events); i++)
        write_event(out, json_array_get(events, i));
    if (fclose(out) == 0) return text;
    free(text);
    return NULL;
}
