#include "element.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

const element_kind_t ELEMENT_KINDS[] = {
    {.name = "i1", .type = TOW_TYPE_PRED, .bytes = 1},
    {.name = "i8", .type = TOW_TYPE_S8, .bytes = 1, .is_signed = true},
    {.name = "i16", .type = TOW_TYPE_S16, .bytes = 2, .is_signed = true},
    {.name = "i32", .type = TOW_TYPE_S32, .bytes = 4, .is_signed = true},
    {.name = "i64", .type = TOW_TYPE_S64, .bytes = 8, .is_signed = true},
    {.name = "ui8", .type = TOW_TYPE_U8, .bytes = 1},
    {.name = "ui16", .type = TOW_TYPE_U16, .bytes = 2},
    {.name = "ui32", .type = TOW_TYPE_U32, .bytes = 4},
    {.name = "ui64", .type = TOW_TYPE_U64, .bytes = 8},
    {.name = "f16", .type = TOW_TYPE_F16, .bytes = 2, .is_signed = true},
    {.name = "bf16", .type = TOW_TYPE_BF16, .bytes = 2, .is_signed = true},
    {.name = "f32", .type = TOW_TYPE_F32, .bytes = 4, .is_signed = true},
    {.name = "f64", .type = TOW_TYPE_F64, .bytes = 8, .is_signed = true},
    {.name = "complex<f32>",
     .type = TOW_TYPE_C64,
     .bytes = 8,
     .is_signed = true,
     .is_complex = true},
    {.name = "complex<f64>",
     .type = TOW_TYPE_C128,
     .bytes = 16,
     .is_signed = true,
     .is_complex = true},
};
const size_t ELEMENT_KIND_COUNT = TOW_COUNT_OF(ELEMENT_KINDS);

/* The bits of a whole number of magnitude up to 2048. */
static uint16_t f16_of(double value)
{
    const uint16_t sign = value < 0 ? 0x8000 : 0;
    const unsigned whole = (unsigned)(value < 0 ? -value : value);
    if (whole == 0) return sign;
    int exponent = 0;
    while (whole >> (exponent + 1) != 0)
        exponent++;
    const unsigned fraction =
        exponent <= 10 ? whole << (10 - exponent) : whole >> (exponent - 10);
    return (uint16_t)(sign | (unsigned)(exponent + 15) << 10 |
                      (fraction & 0x3ff));
}

/* Exact: the lower half of such a float is zero. */
static uint16_t bf16_of(double value)
{
    const float wide = (float)value;
    uint32_t bits;
    memcpy(&bits, &wide, sizeof(bits));
    return (uint16_t)(bits >> 16);
}

#define WRITE(TYPE, VALUE)                  \
    do {                                    \
        const TYPE typed = (TYPE)(VALUE);   \
        memcpy(out, &typed, sizeof(typed)); \
    } while (0)

void element_write(const element_kind_t *kind, double complex value, void *out)
{
    const double real = creal(value);
    switch (kind->type) {
    case TOW_TYPE_PRED: WRITE(uint8_t, real != 0); break;
    case TOW_TYPE_S8:
    case TOW_TYPE_U8: WRITE(uint8_t, (int64_t)real); break;
    case TOW_TYPE_S16:
    case TOW_TYPE_U16: WRITE(uint16_t, (int64_t)real); break;
    case TOW_TYPE_S32:
    case TOW_TYPE_U32: WRITE(uint32_t, (int64_t)real); break;
    case TOW_TYPE_S64:
    case TOW_TYPE_U64: WRITE(uint64_t, (int64_t)real); break;
    case TOW_TYPE_F16: WRITE(uint16_t, f16_of(real)); break;
    case TOW_TYPE_BF16: WRITE(uint16_t, bf16_of(real)); break;
    case TOW_TYPE_F32: WRITE(float, real); break;
    case TOW_TYPE_F64: WRITE(double, real); break;
    case TOW_TYPE_C64: WRITE(float complex, value); break;
    case TOW_TYPE_C128: WRITE(double complex, value); break;
    default: abort();
    }
}

bool element_can(const element_kind_t *kind, element_reduction_t reduction)
{
    if (reduction == ELEMENT_SUM || reduction == ELEMENT_PRODUCT) return true;
    return !kind->is_complex && kind->type != TOW_TYPE_PRED;
}

double complex element_reduce(const element_kind_t *kind,
                              element_reduction_t reduction, double complex a,
                              double complex b)
{
    const bool is_pred = kind->type == TOW_TYPE_PRED;
    switch (reduction) {
    case ELEMENT_SUM: return is_pred ? (a != 0 || b != 0) : a + b;
    case ELEMENT_PRODUCT: return is_pred ? (a != 0 && b != 0) : a * b;
    case ELEMENT_MIN: return creal(a) < creal(b) ? a : b;
    default: return creal(a) > creal(b) ? a : b;
    }
}

/* PRED: all true, one true, all false, one false, by element. Numbers: small
 * enough that products of four are exact in bf16; the odd ones negative. */
double complex element_sent(const element_kind_t *kind, size_t rank,
                            size_t index)
{
    if (kind->type == TOW_TYPE_PRED) {
        const bool is_one = rank == 1;
        const bool by_index[] = {true, is_one, false, !is_one};
        return by_index[index % 4];
    }
    const double number = (double)(rank + 1 + index % 4);
    const double real = kind->is_signed && index % 2 != 0 ? -number : number;
    return kind->is_complex ? real + ((double)rank - 1) * I : real;
}
