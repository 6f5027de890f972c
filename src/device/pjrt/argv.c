#include "device/pjrt/argv.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* -- Writing ---------------------------------------------------------------- */

static char *format_list(tow_arena_t *arena, const tow_pjrt_value_t *value)
{
    const size_t room = value->count * 21 + 1;
    char *text = tow_arena_alloc(arena, room);
    if (text == NULL) return NULL;
    size_t used = 0;
    text[0] = '\0';
    for (size_t i = 0; i < value->count; i++)
        used += (size_t)snprintf(text + used, room - used, "%s%" PRId64,
                                 i > 0 ? "," : "", value->int64_list[i]);
    return text;
}

static char *format_value(tow_arena_t *arena, const tow_pjrt_value_t *value)
{
    char text[64];
    switch (value->type) {
    case TOW_PJRT_STRING:
        return tow_arena_strndup(arena, value->string, strlen(value->string));
    case TOW_PJRT_INT64_LIST: return format_list(arena, value);
    case TOW_PJRT_INT64:
        snprintf(text, sizeof(text), "%" PRId64, value->int64);
        break;
    case TOW_PJRT_FLOAT:
        snprintf(text, sizeof(text), "%a", (double)value->float_);
        break;
    case TOW_PJRT_BOOL: snprintf(text, sizeof(text), "%d", value->bool_); break;
    }
    return tow_arena_strndup(arena, text, strlen(text));
}

bool tow_pjrt_argv_write(tow_arena_t *arena, const tow_pjrt_value_t *values,
                         size_t count, char **out_words)
{
    static const char *const types[] = {"0", "1", "2", "3", "4"};
    for (size_t i = 0; i < count; i++) {
        char **word = out_words + TOW_PJRT_ARGS_PER_VALUE * i;
        word[0] = (char *)values[i].name;
        word[1] = (char *)types[values[i].type];
        word[2] = format_value(arena, &values[i]);
        if (word[2] == NULL) return false;
    }
    return true;
}

/* -- Reading ---------------------------------------------------------------- */

static bool read_list(tow_arena_t *arena, const char *text,
                      tow_pjrt_value_t *value)
{
    size_t count = text[0] != '\0';
    for (const char *at = text; *at != '\0'; at++)
        count += *at == ',';
    int64_t *list = tow_arena_calloc(arena, count + 1, sizeof(list[0]));
    if (list == NULL) return false;
    for (size_t i = 0; i < count; i++) {
        char *end = NULL;
        list[i] = strtoll(text, &end, 10);
        text = *end == ',' ? end + 1 : end;
    }
    value->int64_list = list;
    value->count = count;
    return true;
}

static bool read_value(tow_arena_t *arena, char *const *argv,
                       tow_pjrt_value_t *out)
{
    *out = (tow_pjrt_value_t){.name = argv[0],
                              .type = (tow_pjrt_value_type_t)atoi(argv[1])};
    switch (out->type) {
    case TOW_PJRT_STRING: out->string = argv[2]; break;
    case TOW_PJRT_INT64: out->int64 = strtoll(argv[2], NULL, 10); break;
    case TOW_PJRT_INT64_LIST: return read_list(arena, argv[2], out);
    case TOW_PJRT_FLOAT: out->float_ = strtof(argv[2], NULL); break;
    case TOW_PJRT_BOOL: out->bool_ = argv[2][0] == '1'; break;
    }
    return true;
}

const tow_pjrt_value_t *tow_pjrt_argv_read(tow_arena_t *arena,
                                           char *const *argv, size_t argc,
                                           size_t *out_count)
{
    const size_t count = argc / TOW_PJRT_ARGS_PER_VALUE;
    tow_pjrt_value_t *values =
        tow_arena_calloc(arena, count + 1, sizeof(values[0]));
    for (size_t i = 0; values != NULL && i < count; i++)
        if (!read_value(arena, argv + TOW_PJRT_ARGS_PER_VALUE * i, &values[i]))
            return NULL;
    *out_count = count;
    return values;
}
