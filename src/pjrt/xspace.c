#include "pjrt/xspace.h"

#include <stdio.h>

#include "base/hash.h"
#include "base/map.h"
#include "pjrt/text_impl.h"

/* Field numbers in tsl/profiler/protobuf/xplane.proto. */
enum {
    SPACE_PLANES = 1,
    PLANE_ID = 1,
    PLANE_NAME = 2,
    PLANE_LINES = 3,
    PLANE_EVENT_METADATA = 4,
    ENTRY_KEY = 1,
    ENTRY_VALUE = 2,
    METADATA_ID = 1,
    METADATA_NAME = 2,
    LINE_ID = 1,
    LINE_NAME = 2,
    LINE_TIMESTAMP_NS = 3,
    LINE_EVENTS = 4,
    EVENT_METADATA_ID = 1,
    EVENT_OFFSET_PS = 2,
    EVENT_DURATION_PS = 3,
};

/* Profilers show planes with this prefix. */
#define PLANE_PREFIX "/device:CUSTOM:towpath "
#define PS_PER_NS    1000

/* The current process and thread while reading. */
typedef struct writer {
    const tow_xspace_source_t *source;
    text_t space;
    text_t plane;    /* no bytes: none has begun */
    text_t line;     /* the same */
    tow_map_t names; /* keys: numbers of names that the plane has */
    uint64_t plane_count;
} writer_t;

static void end_line(writer_t *writer)
{
    if (writer->line.size > 0)
        put_message(&writer->plane, PLANE_LINES, &writer->line);
}

static void end_plane(writer_t *writer)
{
    end_line(writer);
    if (writer->plane.size > 0)
        put_message(&writer->space, SPACE_PLANES, &writer->plane);
    tow_map_deinit(&writer->names);
    writer->names = (tow_map_t){0};
}

static void begin_plane(writer_t *writer, const char *name, size_t length)
{
    char text[256];
    end_plane(writer);
    const int size = snprintf(text, sizeof(text), PLANE_PREFIX "%.*s",
                              (int)(length < 200 ? length : 200), name);
    put_number(&writer->plane, PLANE_ID, ++writer->plane_count);
    put_bytes(&writer->plane, PLANE_NAME, text, (size_t)size);
}

static void begin_line(writer_t *writer, uint64_t thread, const char *name,
                       size_t length)
{
    end_line(writer);
    put_number(&writer->line, LINE_ID, thread);
    put_bytes(&writer->line, LINE_NAME, name, length);
    put_number(&writer->line, LINE_TIMESTAMP_NS,
               (uint64_t)writer->source->start_ns);
}

/* Its number in the plane: a hash, because merged processes must not share
 * numbers. */
static uint64_t number_of_name(writer_t *writer, const char *name,
                               size_t length)
{
    const uint64_t number = (tow_hash_bytes(name, length, 0) >> 1) + 1;
    if (tow_map_find(&writer->names, number) != NULL) return number;
    if (!tow_map_put(&writer->names, number, writer)) {
        writer->space.has_failed = true;
        return number;
    }
    text_t metadata = {0}, entry = {0};
    put_number(&metadata, METADATA_ID, number);
    put_bytes(&metadata, METADATA_NAME, name, length);
    put_number(&entry, ENTRY_KEY, number);
    put_message(&entry, ENTRY_VALUE, &metadata);
    put_message(&writer->plane, PLANE_EVENT_METADATA, &entry);
    return number;
}

/* Writes the part of the event within the trace. */
static void put_event(writer_t *writer, int64_t start_ns, int64_t duration_ns,
                      const char *name, size_t length)
{
    const tow_xspace_source_t *source = writer->source;
    int64_t begin_ns = start_ns + source->shift_ns;
    int64_t end_ns = begin_ns + duration_ns;
    if (writer->line.size == 0 || duration_ns < 0 ||
        end_ns < source->start_ns || begin_ns > source->end_ns)
        return;
    if (begin_ns < source->start_ns) begin_ns = source->start_ns;
    if (end_ns > source->end_ns) end_ns = source->end_ns;
    text_t event = {0};
    put_number(&event, EVENT_METADATA_ID, number_of_name(writer, name, length));
    put_number(&event, EVENT_OFFSET_PS,
               (uint64_t)(begin_ns - source->start_ns) * PS_PER_NS);
    put_number(&event, EVENT_DURATION_PS,
               (uint64_t)(end_ns - begin_ns) * PS_PER_NS);
    put_message(&writer->line, LINE_EVENTS, &event);
}

static void read_line(writer_t *writer, const char *line, size_t length)
{
    long long process, thread, start_ns, duration_ns;
    int read = -1;
    if (sscanf(line, "event %lld %lld %lld %lld %n", &process, &thread,
               &start_ns, &duration_ns, &read) == 4 &&
        read > 0 && (size_t)read <= length)
        put_event(writer, start_ns, duration_ns, line + read,
                  length - (size_t)read);
    else if (sscanf(line, "thread %lld %lld %n", &process, &thread, &read) ==
                 2 &&
             read > 0 && (size_t)read <= length && writer->plane.size > 0)
        begin_line(writer, (uint64_t)thread, line + read,
                   length - (size_t)read);
    else if (sscanf(line, "process %lld %n", &process, &read) == 1 &&
             read > 0 && (size_t)read <= length)
        begin_plane(writer, line + read, length - (size_t)read);
}

/* One line at a time: sscanf scans its input to the end. */
static void read_spans(writer_t *writer, const char *spans)
{
    char line[512];
    while (*spans != '\0') {
        const size_t length = strcspn(spans, "\n");
        if (length < sizeof(line)) {
            memcpy(line, spans, length);
            line[length] = '\0';
            read_line(writer, line, length);
        }
        spans += length + (spans[length] == '\n');
    }
}

tow_status_t tow_xspace_write(const tow_xspace_source_t *source,
                              void **out_bytes, size_t *out_size)
{
    writer_t writer = {.source = source};
    if (source->spans != NULL) read_spans(&writer, source->spans);
    /* XSpace has a field for errors, but no tool shows it. */
    if (source->error != NULL)
        begin_plane(&writer, source->error, strlen(source->error));
    end_plane(&writer);
    *out_bytes = writer.space.bytes;
    *out_size = writer.space.size;
    if (!writer.space.has_failed) return TOW_OK;
    tow_free(writer.space.bytes);
    *out_bytes = NULL;
    *out_size = 0;
    return tow_status_bare(TOW_RESOURCE_EXHAUSTED);
}
