#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/assert.h"
#include "device/device.h"

tow_status_t tow_shape_bytes(const tow_shape_t *shape, uint64_t *out_bytes)
{
    char text[TOW_SHAPE_TEXT_MAX];
    *out_bytes = 0;
    if (shape->rank > TOW_RANK_MAX)
        return TOW_ERROR(TOW_INVALID_ARGUMENT, "rank %u is above the limit, %d",
                         shape->rank, TOW_RANK_MAX);
    const uint32_t bits = tow_type_bits(shape->type);
    if (bits == 0)
        return TOW_ERROR(TOW_INVALID_ARGUMENT,
                         "%s: elements of type %d have no size",
                         tow_shape_format(shape, text), (int)shape->type);
    int64_t bytes = (bits + 7) / 8;
    bool is_empty = false;
    for (uint32_t i = 0; i < shape->rank; i++) {
        if (shape->dims[i] < 0)
            return TOW_ERROR(TOW_OUT_OF_RANGE, "%s: dimension %u is negative",
                             tow_shape_format(shape, text), i);
        is_empty |= shape->dims[i] == 0;
    }
    for (uint32_t i = 0; i < shape->rank && !is_empty; i++)
        if (__builtin_mul_overflow(bytes, shape->dims[i], &bytes))
            return TOW_ERROR(TOW_OUT_OF_RANGE, "%s: more than 2^63 - 1 bytes",
                             tow_shape_format(shape, text));
    if (!is_empty) *out_bytes = (uint64_t)bytes;
    return TOW_OK;
}

bool tow_shape_equal(const tow_shape_t *a, const tow_shape_t *b)
{
    if (a->type != b->type || a->rank != b->rank) return false;
    for (uint32_t i = 0; i < a->rank; i++)
        if (a->dims[i] != b->dims[i]) return false;
    return true;
}

const char *tow_shape_format(const tow_shape_t *shape,
                             char text[TOW_SHAPE_TEXT_MAX])
{
    const uint32_t rank =
        shape->rank <= TOW_RANK_MAX ? shape->rank : TOW_RANK_MAX;
    size_t used = (size_t)snprintf(text, TOW_SHAPE_TEXT_MAX, "%s[",
                                   tow_type_name(shape->type));
    for (uint32_t i = 0; i < rank; i++)
        used +=
            (size_t)snprintf(text + used, TOW_SHAPE_TEXT_MAX - used,
                             "%s%" PRId64, i > 0 ? "," : "", shape->dims[i]);
    /* Large enough for 32 dimensions of 20 characters each. */
    TOW_ASSERT(used + 2 <= TOW_SHAPE_TEXT_MAX);
    text[used] = ']';
    text[used + 1] = '\0';
    return text;
}

/* -- Parsing ---------------------------------------------------------------- */

static tow_status_t malformed(const char *text)
{
    return TOW_ERROR(TOW_INVALID_ARGUMENT,
                     "'%.64s' is no shape; write it as f32[2,3], or f32[] for "
                     "a scalar",
                     text);
}

/* The type's name, before the bracket. False if it is not a type. */
static bool parse_type(const char *text, size_t size, tow_type_t *out_type)
{
    char name[32];
    if (size >= sizeof(name)) return false;
    memcpy(name, text, size);
    name[size] = '\0';
    *out_type = tow_type_parse(name);
    return *out_type != TOW_TYPE_INVALID;
}

/* Digits only: strtoll would take blanks and signs. NULL if there are none. */
static const char *parse_dimension(const char *text, int64_t *out_value)
{
    if (*text < '0' || *text > '9') return NULL;
    char *end = NULL;
    errno = 0;
    *out_value = strtoll(text, &end, 10);
    return errno == 0 ? end : NULL;
}

tow_status_t tow_shape_parse(const char *text, tow_shape_t *out_shape)
{
    *out_shape = (tow_shape_t){.type = TOW_TYPE_INVALID};
    tow_shape_t shape = {.rank = 0};
    const char *at = strchr(text, '[');
    if (at == NULL || !parse_type(text, (size_t)(at - text), &shape.type))
        return malformed(text);
    at++;
    while (*at != ']') {
        if (shape.rank > 0 && *at++ != ',') return malformed(text);
        if (shape.rank == TOW_RANK_MAX)
            return TOW_ERROR(TOW_INVALID_ARGUMENT,
                             "'%.64s' has more than %d dimensions", text,
                             TOW_RANK_MAX);
        at = parse_dimension(at, &shape.dims[shape.rank++]);
        if (at == NULL) return malformed(text);
    }
    if (at[1] != '\0') return malformed(text);
    *out_shape = shape;
    return TOW_OK;
}
