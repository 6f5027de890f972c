#include "tool/literal.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"

static bool is_signed(tow_type_t type)
{
    return type >= TOW_TYPE_S8 && type <= TOW_TYPE_S64;
}

static bool is_unsigned(tow_type_t type)
{
    return type == TOW_TYPE_PRED ||
           (type >= TOW_TYPE_U8 && type <= TOW_TYPE_U64);
}

/* -- One element ------------------------------------------------------------ */

static tow_status_t store(tow_type_t type, const char *text, void *element)
{
    char *end = NULL;
    const size_t size = tow_type_bits(type) / 8;
    errno = 0;
    if (type == TOW_TYPE_F32) {
        float value = strtof(text, &end);
        memcpy(element, &value, sizeof(value));
    } else if (type == TOW_TYPE_F64) {
        double value = strtod(text, &end);
        memcpy(element, &value, sizeof(value));
    } else if (is_signed(type)) {
        int64_t value = strtoll(text, &end, 10);
        memcpy(element, &value, size); /* Little endian: the low bytes. */
    } else if (is_unsigned(type)) {
        uint64_t value = strtoull(text, &end, 10);
        memcpy(element, &value, type == TOW_TYPE_PRED ? 1 : size);
    } else {
        return TOW_ERROR(TOW_UNIMPLEMENTED,
                         "values of type %s have no text form: use @FILE",
                         tow_type_name(type));
    }
    if (end == text || *end != '\0' || errno == ERANGE)
        return TOW_ERROR(TOW_INVALID_ARGUMENT, "'%s' is not a value of type %s",
                         text, tow_type_name(type));
    return TOW_OK;
}

static void print_element(FILE *out, tow_type_t type, const uint8_t *element)
{
    const size_t size = tow_type_bits(type) / 8;
    float f32 = 0;
    double f64 = 0;
    uint64_t bits = 0;
    if (type == TOW_TYPE_F32) {
        memcpy(&f32, element, sizeof(f32));
        fprintf(out, "%.9g", (double)f32);
    } else if (type == TOW_TYPE_F64) {
        memcpy(&f64, element, sizeof(f64));
        fprintf(out, "%.17g", f64);
    } else if (is_signed(type)) {
        memcpy(&bits, element, size);
        const unsigned shift = 64 - tow_type_bits(type);
        fprintf(out, "%" PRId64, (int64_t)(bits << shift) >> shift);
    } else {
        memcpy(&bits, element, size == 0 ? 1 : size < 8 ? size : 8);
        fprintf(out, is_unsigned(type) ? "%" PRIu64 : "0x%" PRIx64, bits);
    }
}

/* -- All elements ------------------------------------------------------------ */

static size_t element_bytes(tow_type_t type)
{
    const size_t bits = tow_type_bits(type);
    return bits < 8 ? 1 : bits / 8;
}

static tow_status_t fill_iota(tow_literal_t *literal)
{
    const size_t step = element_bytes(literal->shape.type);
    char text[32];
    for (size_t i = 0; i * step < literal->size; i++) {
        snprintf(text, sizeof(text), "%zu", i);
        TOW_RETURN_IF_ERROR(store(literal->shape.type, text,
                                  (uint8_t *)literal->bytes + i * step));
    }
    return TOW_OK;
}

/* A single value fills all elements. */
static tow_status_t fill_list(tow_literal_t *literal, const char *values)
{
    const size_t step = element_bytes(literal->shape.type);
    const size_t count = literal->size / step;
    char *list = tow_strdup(values);
    if (list == NULL) return tow_status_bare(TOW_RESOURCE_EXHAUSTED);
    size_t found = 0;
    tow_status_t status = TOW_OK;
    char *save = NULL;
    for (char *value = strtok_r(list, ",", &save);
         value != NULL && status == TOW_OK && found < count;
         value = strtok_r(NULL, ",", &save))
        status = store(literal->shape.type, value,
                       (uint8_t *)literal->bytes + found++ * step);
    const bool too_many =
        status == TOW_OK && save != NULL && *save != '\0' && found == count;
    tow_free(list);
    TOW_RETURN_IF_ERROR(status);
    for (size_t i = 1; found == 1 && i < count; i++)
        memcpy((uint8_t *)literal->bytes + i * step, literal->bytes, step);
    if (too_many || (found != 1 && found != count))
        return TOW_ERROR(TOW_INVALID_ARGUMENT,
                         "%s%zu values for %zu elements: give one for all, or "
                         "one each",
                         too_many ? "more than " : "", found, count);
    return TOW_OK;
}

static tow_status_t fill_file(tow_literal_t *literal, const char *path)
{
    FILE *file = fopen(path, "rb");
    if (file == NULL) return TOW_ERRNO(errno, "opening %s", path);
    size_t got = fread(literal->bytes, 1, literal->size, file);
    bool longer = got == literal->size && fgetc(file) != EOF;
    fclose(file);
    if (got != literal->size || longer)
        return TOW_ERROR(TOW_INVALID_ARGUMENT,
                         "%s has %s than the %zu bytes of its shape", path,
                         longer ? "more" : "fewer", literal->size);
    return TOW_OK;
}

static tow_status_t fill(tow_literal_t *literal, const char *values)
{
    if (values[0] == '@') return fill_file(literal, values + 1);
    if (strcmp(values, "iota") == 0) return fill_iota(literal);
    return fill_list(literal, values);
}

tow_status_t tow_literal_parse(const char *text, tow_literal_t *out_literal)
{
    *out_literal = (tow_literal_t){0};
    const char *equals = strchr(text, '=');
    char shape[TOW_SHAPE_TEXT_MAX];
    if (equals == NULL || (size_t)(equals - text) >= sizeof(shape))
        return TOW_ERROR(TOW_INVALID_ARGUMENT,
                         "'%s' is not an array such as f32[2,2]=1,2,3,4, "
                         "s32[8]=iota or f32[4]=@FILE",
                         text);
    memcpy(shape, text, (size_t)(equals - text));
    shape[equals - text] = '\0';
    TOW_RETURN_IF_ERROR(tow_shape_parse(shape, &out_literal->shape));
    uint64_t bytes = 0;
    TOW_RETURN_IF_ERROR(tow_shape_bytes(&out_literal->shape, &bytes));
    out_literal->size = bytes;
    out_literal->bytes = tow_calloc(1, bytes + 8);
    if (out_literal->bytes == NULL)
        return TOW_ERROR(TOW_RESOURCE_EXHAUSTED, "no memory for %s", shape);
    tow_status_t status = bytes == 0 ? TOW_OK : fill(out_literal, equals + 1);
    if (status != TOW_OK) tow_literal_deinit(out_literal);
    return tow_status_annotate(status, "%s", shape);
}

void tow_literal_deinit(tow_literal_t *literal)
{
    tow_free(literal->bytes);
    literal->bytes = NULL;
}

void tow_literal_print(FILE *out, const tow_shape_t *shape, const void *bytes,
                       size_t element_count_max)
{
    char text[TOW_SHAPE_TEXT_MAX];
    fprintf(out, "%s=", tow_shape_format(shape, text));
    const size_t step = element_bytes(shape->type);
    size_t count = 1;
    for (uint32_t i = 0; i < shape->rank; i++)
        count *= (size_t)shape->dims[i];
    for (size_t i = 0; i < count && i < element_count_max; i++) {
        if (i > 0) fputc(',', out);
        print_element(out, shape->type, (const uint8_t *)bytes + i * step);
    }
    if (count > element_count_max) fprintf(out, ",...");
}
