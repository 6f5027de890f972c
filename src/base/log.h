/* The log: levels, one line per event, as text or JSON.
 *
 *     tow_log(log, TOW_LOG_WARN, "link down", TOW_F_STR("peer", name),
 *             TOW_F_U64("epoch", epoch), TOW_F_STATUS("cause", status));
 *
 * Text: `2026-11-15T20:14:31.000123Z warn worker-1 link down peer worker/2
 * epoch 3 cause "UNAVAILABLE: ..."`. JSON: one object per line, with "time",
 * "level", "source", "event", then the fields by name; numbers above INT64_MAX
 * are strings. The event is a constant in lower case; variable parts go into
 * fields. Time comes from the owner of the log, so a simulated run logs virtual
 * time. Fields are evaluated even when the level is off: keep them cheap, or
 * check tow_log_enabled first. */
#ifndef TOW_BASE_LOG_H_
#define TOW_BASE_LOG_H_

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/macros.h"
#include "base/status.h"

typedef enum tow_log_level {
    TOW_LOG_DEBUG,
    TOW_LOG_INFO,
    TOW_LOG_WARN,
    TOW_LOG_ERROR,
    TOW_LOG_OFF,
} tow_log_level_t;

typedef enum tow_log_format {
    TOW_LOG_TEXT,
    TOW_LOG_JSON
} tow_log_format_t;

typedef enum tow_field_kind {
    TOW_FIELD_STR,
    TOW_FIELD_U64,
    TOW_FIELD_I64,
    TOW_FIELD_STATUS,
} tow_field_kind_t;

typedef struct tow_field {
    const char *name;
    tow_field_kind_t kind;
    union {
        const char *str;
        uint64_t u64;
        int64_t i64;
        tow_status_t status; /* lent: the log does not release it */
    } value;
} tow_field_t;

#define TOW_F_STR(n, v) \
    ((tow_field_t){.name = (n), .kind = TOW_FIELD_STR, .value.str = (v)})
#define TOW_F_U64(n, v) \
    ((tow_field_t){.name = (n), .kind = TOW_FIELD_U64, .value.u64 = (v)})
#define TOW_F_I64(n, v) \
    ((tow_field_t){.name = (n), .kind = TOW_FIELD_I64, .value.i64 = (v)})
#define TOW_F_STATUS(n, v) \
    ((tow_field_t){.name = (n), .kind = TOW_FIELD_STATUS, .value.status = (v)})

/* Receives one whole line, newline included, on any thread that logs. */
typedef void (*tow_log_sink_t)(void *context, const char *line, size_t length);

typedef struct tow_log {
    tow_log_level_t level;
    tow_log_format_t format;
    const char *source;  /* lent: name of the process, "worker-1" */
    tow_log_sink_t sink; /* NULL: standard error */
    void *sink_context;  /* lent */
    /* Nanoseconds since the epoch; NULL: the real time of day. */
    int64_t (*wall_ns)(void *context);
    void *wall_context; /* lent */
} tow_log_t;

static inline bool tow_log_enabled(const tow_log_t *log, tow_log_level_t level)
{
    return level >= log->level && log->level != TOW_LOG_OFF;
}

/* A line is truncated to TOW_LOG_LINE_MAX bytes, marked by "...". Control
 * characters and quotes are escaped: a peer cannot forge a line. */
#define TOW_LOG_LINE_MAX 2048

void tow_log_write(const tow_log_t *log, tow_log_level_t level,
                   const char *event, const tow_field_t *fields,
                   size_t field_count);

#define tow_log(log, level, event, ...)                           \
    do {                                                          \
        if (tow_log_enabled((log), (level))) {                    \
            const tow_field_t fields_[] = {__VA_ARGS__};          \
            tow_log_write((log), (level), (event), fields_,       \
                          sizeof(fields_) / sizeof(tow_field_t)); \
        }                                                         \
    } while (0)

/* "debug", "info", ...; false when `text` is none of them. */
bool tow_log_level_parse(const char *text, tow_log_level_t *out_level);

#endif /* TOW_BASE_LOG_H_ */
