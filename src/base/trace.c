#include "base/trace.h"

#include <errno.h>
#include <string.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/assert.h"
#include "base/clock.h"
#include "base/escape_impl.h"

struct tow_trace_ring {
    int64_t (*clock)(void *context); /* NULL: real_clock */
    void *clock_context;             /* lent */
    tow_fast_clock_t real_clock;
    size_t event_count_max;
    size_t next; /* where the next event goes */
    uint64_t written_count;
    char *thread_name; /* owned */
    tow_trace_event_t events[];
};

_Thread_local tow_trace_ring_t *tow_trace_current;

tow_status_t tow_trace_ring_create(const char *thread_name,
                                   size_t event_count_max,
                                   int64_t (*clock)(void *context),
                                   void *clock_context,
                                   tow_trace_ring_t **out_ring)
{
    TOW_ASSERT(thread_name != NULL && out_ring != NULL);
    *out_ring = NULL;
    if (event_count_max == 0 ||
        event_count_max > PTRDIFF_MAX / sizeof(tow_trace_event_t) - 16)
        return TOW_ERROR(TOW_INVALID_ARGUMENT,
                         "trace ring of %s: %zu events is no size", thread_name,
                         event_count_max);
    tow_trace_ring_t *ring =
        tow_malloc(sizeof(*ring) + event_count_max * sizeof(tow_trace_event_t));
    if (ring == NULL) return tow_status_bare(TOW_RESOURCE_EXHAUSTED);
    /* The events are not initialised: a ring uses memory only as it fills. */
    memset(ring, 0, sizeof(*ring));
    ring->clock = clock;
    ring->clock_context = clock_context;
    ring->event_count_max = event_count_max;
    if (clock == NULL) tow_fast_clock_init(&ring->real_clock);
    ring->thread_name = tow_strdup(thread_name);
    if (ring->thread_name == NULL) {
        tow_trace_ring_destroy(ring);
        return tow_status_bare(TOW_RESOURCE_EXHAUSTED);
    }
    *out_ring = ring;
    return TOW_OK;
}

void tow_trace_ring_destroy(tow_trace_ring_t *ring)
{
    if (ring == NULL) return;
    TOW_ASSERT(tow_trace_current != ring);
    tow_free(ring->thread_name);
    tow_free(ring);
}

tow_trace_ring_t *tow_trace_attach(tow_trace_ring_t *ring)
{
    tow_trace_ring_t *before = tow_trace_current;
    tow_trace_current = ring;
    return before;
}

size_t tow_trace_ring_count(const tow_trace_ring_t *ring)
{
    return ring->written_count < ring->event_count_max
               ? (size_t)ring->written_count
               : ring->event_count_max;
}

const tow_trace_event_t *tow_trace_ring_at(const tow_trace_ring_t *ring,
                                           size_t index)
{
    size_t count = tow_trace_ring_count(ring);
    TOW_ASSERT(index < count);
    size_t oldest = count < ring->event_count_max ? 0 : ring->next;
    return &ring->events[(oldest + index) % ring->event_count_max];
}

uint64_t tow_trace_ring_dropped(const tow_trace_ring_t *ring)
{
    return ring->written_count - tow_trace_ring_count(ring);
}

static int64_t ring_now_ns(tow_trace_ring_t *ring)
{
    if (ring->clock == NULL) return tow_fast_clock_now_ns(&ring->real_clock);
    return ring->clock(ring->clock_context);
}

static tow_trace_event_t *append(tow_trace_ring_t *ring)
{
    tow_trace_event_t *event = &ring->events[ring->next];
    if (++ring->next == ring->event_count_max) ring->next = 0;
    ring->written_count++;
    return event;
}

void tow_trace_ring_add(tow_trace_ring_t *ring, const tow_trace_event_t *event)
{
    *append(ring) = *event;
}

tow_trace_zone_t tow_trace_zone_begin_slow(const char *name)
{
    return (tow_trace_zone_t){.name = name,
                              .start_ns = ring_now_ns(tow_trace_current)};
}

void tow_trace_zone_end_slow(const tow_trace_zone_t *zone)
{
    tow_trace_ring_t *ring = tow_trace_current;
    if (ring == NULL) return; /* Detached inside the zone. */
    int64_t duration_ns = ring_now_ns(ring) - zone->start_ns;
    if (duration_ns < 0) duration_ns = 0; /* Another ring, another clock. */
    *append(ring) = (tow_trace_event_t){.time_ns = zone->start_ns,
                                        .name = zone->name,
                                        .duration_ns = (uint64_t)duration_ns,
                                        .kind = TOW_TRACE_ZONE};
}

void tow_trace_emit_slow(tow_trace_kind_t kind, const char *name,
                         uint64_t value)
{
    tow_trace_ring_t *ring = tow_trace_current;
    TOW_ASSERT(ring != NULL);
    *append(ring) = (tow_trace_event_t){.time_ns = ring_now_ns(ring),
                                        .name = name,
                                        .value = value,
                                        .kind = (uint32_t)kind};
}

/* The trace-event format: times are microseconds, so nanoseconds go behind the
 * point. Threads are numbered by their place among the rings. */

static void write_quoted(FILE *out, const char *text)
{
    char piece[TOW_ESCAPED_BYTES_MAX];
    fputc('"', out);
    while (*text != '\0') {
        size_t count = tow_escape_next(TOW_ESCAPE_JSON, &text, piece);
        fwrite(piece, 1, count, out);
    }
    fputc('"', out);
}

static void write_us(FILE *out, const char *key, int64_t time_ns)
{
    /* The magnitude as unsigned: the least int64_t has no negative. */
    uint64_t magnitude = time_ns < 0 ? -(uint64_t)time_ns : (uint64_t)time_ns;
    fprintf(out, ",\"%s\":%s%llu.%03llu", key, time_ns < 0 ? "-" : "",
            (unsigned long long)(magnitude / 1000),
            (unsigned long long)(magnitude % 1000));
}

typedef struct json_thread {
    int process;
    size_t thread;
} json_thread_t;

static void write_name(FILE *out, json_thread_t at, const char *what,
                       const char *name)
{
    fprintf(out, "{\"ph\":\"M\",\"name\":\"%s\",\"pid\":%d,\"tid\":%zu", what,
            at.process, at.thread);
    fputs(",\"args\":{\"name\":", out);
    write_quoted(out, name);
    fputs("}}", out);
}

/* Integers past 63 bits make some readers refuse the file. An id must stay
 * exact and becomes a string; a counter must stay a number. */
static void write_value(FILE *out, const tow_trace_event_t *event)
{
    const char *format = "%llu";
    if (event->value > INT64_MAX)
        format = event->kind == TOW_TRACE_MARK ? "\"%llu\"" : "%llu.0";
    fputs(",\"args\":{\"value\":", out);
    fprintf(out, format, (unsigned long long)event->value);
    fputs("}", out);
}

static void write_event(FILE *out, json_thread_t at,
                        const tow_trace_event_t *event)
{
    fputs(",\n{\"name\":", out);
    write_quoted(out, event->name);
    fprintf(out, ",\"pid\":%d,\"tid\":%zu", at.process, at.thread);
    write_us(out, "ts", event->time_ns);
    if (event->kind == TOW_TRACE_ZONE) {
        fputs(",\"ph\":\"X\"", out);
        write_us(out, "dur", (int64_t)event->duration_ns);
    } else {
        fputs(event->kind == TOW_TRACE_MARK ? ",\"ph\":\"i\",\"s\":\"t\""
                                            : ",\"ph\":\"C\"",
              out);
        write_value(out, event);
    }
    fputs("}", out);
}

static uint64_t write_ring(FILE *out, json_thread_t at,
                           const tow_trace_ring_t *ring, int64_t since_ns)
{
    fputs(",\n", out);
    write_name(out, at, "thread_name", ring->thread_name);
    size_t count = tow_trace_ring_count(ring);
    for (size_t i = 0; i < count; i++) {
        const tow_trace_event_t *event = tow_trace_ring_at(ring, i);
        if (event->time_ns + (int64_t)event->duration_ns >= since_ns)
            write_event(out, at, event);
    }
    return tow_trace_ring_dropped(ring);
}

tow_status_t tow_trace_write_json(FILE *out, const char *process_name,
                                  tow_trace_ring_t *const *rings,
                                  size_t ring_count, int64_t since_ns)
{
    TOW_ASSERT(out != NULL && process_name != NULL);
    json_thread_t at = {.process = (int)getpid()};
    uint64_t dropped = 0;
    errno = 0;
    fputs("{\"displayTimeUnit\":\"ns\",\"traceEvents\":[\n", out);
    write_name(out, at, "process_name", process_name);
    for (size_t i = 0; i < ring_count; i++) {
        at.thread = i + 1;
        dropped += write_ring(out, at, rings[i], since_ns);
    }
    fprintf(out, "\n],\"otherData\":{\"dropped_events\":\"%llu\"}}\n",
            (unsigned long long)dropped);
    if (fflush(out) != 0 || ferror(out))
        return TOW_ERRNO(errno == 0 ? EIO : errno,
                         "writing the trace of %s: check the disk",
                         process_name);
    return TOW_OK;
}
